/* scan and output of a chunk, S its entry state:
 *
 *     read   = readers S                           one product for erase rows and queries
 *     X      = Z - c fade read                     erase rows
 *     U      = (I + L)^-1 X                        by substitution, in blocks of 16 rows that stay in registers
 *     O      = scale fade read + P U               queries
 *     S'     = keep S + (writers faded to the exit)^T U
 *
 * No inverse is formed: with the state in cache the substitution is short, and it loses nothing when keys are alike. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

static const float *entry_readers(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk) {
    return plan->channel ? chunk->reader_entry : chunk->reader;
}

void dr_chunk_scan(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state) {
    const int64_t pitch = plan->value_pitch, V = plan->value_width;
    dr_matrix_multiply(chunk->readers, V, plan->key_size, entry_readers(plan, chunk), plan->key_pitch, 1, state, pitch,
                       chunk->read, pitch, DR_PRODUCT_SET, NULL, &chunk->ahead);
    for (int64_t i = 0; i < chunk->erases; i++) {
        int64_t row = dr_cpu_erase_row(plan, i);
        add_row(V, -chunk->gain[row] * chunk->reader_fade[i], chunk->read + i * pitch, chunk->update + row * pitch);
    }
    dr_chunk_solve(plan, chunk, chunk->update, false);
}

void dr_chunk_output(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *state) {
    const int64_t pitch = plan->value_pitch, V = plan->value_width;
    for (int64_t t = 0; t < chunk->tokens; t++) {
        int64_t i = chunk->erases + t;
        scale_row(V, plan->scale * chunk->reader_fade[i], chunk->read + i * pitch, chunk->output + t * pitch);
    }
    for (int64_t t = 0; t < chunk->tokens; t += plan->block) {
        int64_t end = t + plan->block < chunk->tokens ? t + plan->block : chunk->tokens;
        dr_matrix_multiply(end - t, V, end * plan->steps, chunk->score + (chunk->erases + t) * chunk->columns, chunk->columns,
                           1, chunk->update, pitch, chunk->output + t * pitch, pitch, DR_PRODUCT_ADD, NULL, NULL);
    }
    const float *updates = chunk->update;
    if (plan->scalar) {
        for (int64_t row = 0; row < chunk->rows; row++)
            scale_row(V, chunk->writer_fade[row], chunk->update + row * pitch, chunk->faded + row * pitch);
        updates = chunk->faded;
    }
    const float *writers = plan->channel ? chunk->write_exit : chunk->write;
    dr_matrix_multiply(plan->key_size, V, chunk->rows, writers, 1, plan->key_pitch, updates, pitch, state, pitch,
                       DR_PRODUCT_ADD, chunk->keep, &chunk->ahead);
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

static void substitute(float square[SOLVE_ROWS][SOLVE_ROWS], int64_t width, float *rows, int64_t pitch) {
    for (int64_t v = 0; v < width; v += LANES) {
        lanes x[SOLVE_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < SOLVE_ROWS; i++) x[i] = lanes_load(rows + i * pitch + v);
#pragma GCC unroll 16
        for (int j = 0; j < SOLVE_ROWS - 1; j++)
#pragma GCC unroll 16
            for (int i = j + 1; i < SOLVE_ROWS; i++) x[i] = lanes_fnma(lanes_set(square[i][j]), x[j], x[i]);
#pragma GCC unroll 16
        for (int i = 1; i < SOLVE_ROWS; i++) lanes_store(rows + i * pitch + v, x[i]);
    }
}

static void substitute_transposed(float square[SOLVE_ROWS][SOLVE_ROWS], int64_t width, float *rows, int64_t pitch) {
    for (int64_t v = 0; v < width; v += LANES) {
        lanes x[SOLVE_ROWS];
#pragma GCC unroll 16
        for (int i = 0; i < SOLVE_ROWS; i++) x[i] = lanes_load(rows + i * pitch + v);
#pragma GCC unroll 16
        for (int i = SOLVE_ROWS - 1; i > 0; i--)
#pragma GCC unroll 16
            for (int j = 0; j < i; j++) x[j] = lanes_fnma(lanes_set(square[i][j]), x[i], x[j]);
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
    float square[SOLVE_ROWS][SOLVE_ROWS];
    for (int64_t i = chunk->rows; i < blocks * SOLVE_ROWS; i++) memset(rows + i * pitch, 0, (size_t)V * sizeof(float));
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t base = (transposed ? blocks - 1 - b : b) * SOLVE_ROWS;
        const int64_t first = first_erase(plan, chunk, base), last = first_erase(plan, chunk, base + SOLVE_ROWS);
        float *block = rows + base * pitch;
        const float *left = chunk->score + first * chunk->columns; /* L of the block's rows, all columns before it */
        float *erased = rows + dr_cpu_erase_row(plan, first) * pitch;
        copy_square(plan, chunk, base, first, last, square);
        if (transposed) {
            substitute_transposed(square, V, block, pitch);
            dr_matrix_multiply(base, V, last - first, left, 1, chunk->columns, erased, plan->erase_stride * pitch, rows, pitch,
                               DR_PRODUCT_SUBTRACT, NULL, NULL);
        } else {
            dr_matrix_multiply(last - first, V, base, left, chunk->columns, 1, rows, pitch, erased, plan->erase_stride * pitch,
                               DR_PRODUCT_SUBTRACT, NULL, NULL);
            substitute(square, V, block, pitch);
        }
    }
}
