/* scan and output of a chunk, S its entry state:
 *
 *     X      = Z - c fade (readers S)              erase rows
 *     U      = (I + L)^-1 X                        by substitution, in blocks of 16 rows that stay in registers
 *     O      = scale fade (readers S) + P U        queries
 *     S'     = keep S + (writers faded to the exit)^T U
 *
 * No inverse is formed: with the state in cache the substitution is short, and it loses nothing when keys are alike. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

void dr_chunk_scan(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state) {
    float *erased = chunk->update + dr_cpu_erase_row(plan, 0) * plan->value_pitch;
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = chunk->erases,
        .columns = plan->value_width,
        .depth = plan->key_size,
        .a = plan->channel ? chunk->reader_entry : chunk->reader,
        .a_row = plan->key_pitch,
        .a_step = 1,
        .b = state,
        .b_pitch = plan->value_pitch,
        .c = erased,
        .c_pitch = plan->erase_stride * plan->value_pitch,
        .base = erased,
        .factor = chunk->reader_factor,
        .ahead = &chunk->ahead,
    });
    dr_chunk_solve(plan, chunk, chunk->update, false);
}

void dr_chunk_output(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, float *to, int64_t pitch) {
    const dr_matrix_product within = {
        .depth = chunk->rows,
        .a = chunk->score + chunk->erases * chunk->columns,
        .a_row = chunk->columns,
        .a_step = 1,
        .b = chunk->update,
        .b_pitch = plan->value_pitch,
        .token_rows = 1,
        .token_end = plan->steps,
    };
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = chunk->tokens,
        .columns = plan->value_width,
        .depth = plan->key_size,
        .a = (plan->channel ? chunk->reader_entry : chunk->reader) + chunk->erases * plan->key_pitch,
        .a_row = plan->key_pitch,
        .a_step = 1,
        .b = state,
        .b_pitch = plan->value_pitch,
        .c = to,
        .c_pitch = pitch,
        .factor = chunk->reader_factor + chunk->erases,
        .also = &within,
        .ahead = &chunk->ahead,
    });
}

/* The updates, faded to the exit where the writers are not. */
static const float *faded_updates(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (!plan->scalar) return chunk->update;
    for (int64_t row = 0; row < chunk->rows; row++)
        scale_row(plan->value_width, chunk->writer_fade[row], chunk->update + row * plan->value_pitch,
                  chunk->faded + row * plan->value_pitch);
    return chunk->faded;
}

void dr_chunk_pass(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *state) {
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = plan->key_size,
        .columns = plan->value_width,
        .depth = chunk->rows,
        .a = plan->channel ? chunk->write_exit : chunk->write,
        .a_row = 1,
        .a_step = plan->key_pitch,
        .b = faded_updates(plan, chunk),
        .b_pitch = plan->value_pitch,
        .c = state,
        .c_pitch = plan->value_pitch,
        .base = state,
        .keep = chunk->keep,
        .ahead = &chunk->ahead,
    });
}

void dr_chunk_pass_turned(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, float *after) {
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = plan->value_width, /* whole tiles, whose last rows are zero */
        .columns = plan->key_width,
        .depth = chunk->rows,
        .a = faded_updates(plan, chunk),
        .a_row = 1,
        .a_step = plan->value_pitch,
        .b = plan->channel ? chunk->write_exit : chunk->write,
        .b_pitch = plan->key_pitch,
        .c = after,
        .c_pitch = plan->key_pitch,
        .base = state,
        .keep_columns = chunk->keep,
        .ahead = &chunk->ahead,
    });
}

/* ---- (I + L)^-1 ------------------------------------------------------------------------------------------------------ */

/* Rows of a triangle in registers, one vector of columns at a time. */
#if defined(DR_ISA_avx512)
enum { SOLVE_ROWS = 16 };
#else
enum { SOLVE_ROWS = 8 };
#endif

/* The square of L on rows base .. base + SOLVE_ROWS - 1, zero where a row has no read or lies behind the chunk. */
static void copy_square(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t base, int64_t first, int64_t last,
                        float square[SOLVE_ROWS][SOLVE_ROWS]) {
    memset(square, 0, sizeof(float) * SOLVE_ROWS * SOLVE_ROWS);
    for (int64_t i = first; i < last; i++) {
        int64_t row = dr_cpu_erase_row(plan, i) - base;
        memcpy(square[row], chunk->score + i * chunk->columns + base, (size_t)row * sizeof(float));
    }
}

static void substitute(const float *square, int64_t square_pitch, int64_t width, float *rows, int64_t pitch) {
    for (int64_t v = 0; v < width; v += LANES) {
        lanes x[SOLVE_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < SOLVE_ROWS; i++) x[i] = lanes_load(rows + i * pitch + v);
#pragma GCC unroll 16
        for (int j = 0; j < SOLVE_ROWS - 1; j++)
#pragma GCC unroll 16
            for (int i = j + 1; i < SOLVE_ROWS; i++) x[i] = lanes_fnma(lanes_set(square[i * square_pitch + j]), x[j], x[i]);
#pragma GCC unroll 16
        for (int i = 1; i < SOLVE_ROWS; i++) lanes_store(rows + i * pitch + v, x[i]);
    }
}

static void substitute_transposed(const float *square, int64_t square_pitch, int64_t width, float *rows, int64_t pitch) {
    for (int64_t v = 0; v < width; v += LANES) {
        lanes x[SOLVE_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < SOLVE_ROWS; i++) x[i] = lanes_load(rows + i * pitch + v);
#pragma GCC unroll 16
        for (int i = SOLVE_ROWS - 1; i > 0; i--)
#pragma GCC unroll 16
            for (int j = 0; j < i; j++) x[j] = lanes_fnma(lanes_set(square[i * square_pitch + j]), x[i], x[j]);
#pragma GCC unroll 16
        for (int i = 0; i < SOLVE_ROWS - 1; i++) lanes_store(rows + i * pitch + v, x[i]);
    }
}

/* First erase row at or behind row `row`. */
static int64_t first_erase(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t row) {
    if (row <= plan->erase_first) return 0;
    int64_t i = (row - plan->erase_first + plan->erase_stride - 1) / plan->erase_stride;
    return i < chunk->erases ? i : chunk->erases;
}

/* rows has SOLVE_ROWS rows to spare, which are zero. */
void dr_chunk_solve(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, float *rows, bool transposed) {
    if (!chunk->erases) return;
    const int64_t pitch = plan->value_pitch, V = plan->value_width;
    const int64_t blocks = (chunk->rows + SOLVE_ROWS - 1) / SOLVE_ROWS;
    float copy[SOLVE_ROWS][SOLVE_ROWS];
    for (int64_t i = chunk->rows; i < blocks * SOLVE_ROWS; i++) memset(rows + i * pitch, 0, (size_t)V * sizeof(float));
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t base = (transposed ? blocks - 1 - b : b) * SOLVE_ROWS;
        const int64_t first = first_erase(plan, chunk, base), last = first_erase(plan, chunk, base + SOLVE_ROWS);
        float *block = rows + base * pitch;
        float *erased = rows + dr_cpu_erase_row(plan, first) * pitch;
        /* every row of the block has a read: L is as it should be in the scores */
        const bool whole = plan->erase_stride == 1 && last - first == SOLVE_ROWS;
        const float *square = whole ? chunk->score + first * chunk->columns + base : copy[0];
        const int64_t square_pitch = whole ? chunk->columns : SOLVE_ROWS;
        if (!whole) copy_square(plan, chunk, base, first, last, copy);
        dr_matrix_product product = {.columns = V, .b_pitch = pitch, .c_pitch = pitch, .subtract = true};
        product.a = chunk->score + first * chunk->columns; /* L of the block's rows, all columns before it */
        if (transposed) {
            substitute_transposed(square, square_pitch, V, block, pitch);
            product.rows = base;
            product.depth = last - first;
            product.a_row = 1;
            product.a_step = chunk->columns;
            product.b = erased;
            product.b_pitch = plan->erase_stride * pitch;
            product.c = rows;
            product.base = rows;
            dr_matrix_multiply(&product);
        } else {
            product.rows = last - first;
            product.depth = base;
            product.a_row = chunk->columns;
            product.a_step = 1;
            product.b = rows;
            product.c = erased;
            product.base = erased;
            product.c_pitch = plan->erase_stride * pitch;
            dr_matrix_multiply(&product);
            substitute(square, square_pitch, V, block, pitch);
        }
    }
}
