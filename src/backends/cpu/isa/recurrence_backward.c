/* Reverse scan of a chunk: from the gradient of the state behind it to that of the state before it.
 *
 *     dU = P^T dO + (writers faded to the exit) dS'        dz = (I + L)^-T dU
 *     dS = keep dS' + (readers faded from the entry)^T cotangent       cotangent: (-c dz, scale dO)
 *
 * It needs neither the state nor the values. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* The part of dU that comes from behind the chunk: turned, because the state's gradient is. */
static void updates_behind(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *d_state) {
    const float *writers = chunk->write_turned;
    if (plan->channel) {
        dr_matrix_transpose(chunk->rows, plan->key_width, chunk->write_exit, plan->key_pitch, chunk->exit_turned,
                            chunk->columns, plan->key_width, round_to_tile(chunk->rows));
        writers = chunk->exit_turned;
    }
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = plan->value_size,
        .columns = round_to_tile(chunk->rows),
        .depth = plan->key_size,
        .a = d_state,
        .a_row = plan->key_pitch,
        .a_step = 1,
        .b = writers,
        .b_pitch = chunk->columns,
        .c = chunk->update_turned,
        .c_pitch = chunk->columns,
        .ahead = &chunk->ahead,
    });
    dr_matrix_transpose(plan->value_size, chunk->rows, chunk->update_turned, chunk->columns, chunk->d_update, plan->value_pitch,
                        chunk->rows, plan->value_width);
    if (!plan->scalar) return;
    for (int64_t row = 0; row < chunk->rows; row++) {
        float *d_update = chunk->d_update + row * plan->value_pitch;
        scale_row(plan->value_width, chunk->writer_fade[row], d_update, d_update);
    }
}

void dr_chunk_scan_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *d_state) {
    const int64_t pitch = plan->value_pitch, V = plan->value_width;
    updates_behind(plan, chunk, d_state);
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = chunk->rows,
        .columns = V,
        .depth = chunk->tokens,
        .a = chunk->score + chunk->erases * chunk->columns,
        .a_row = 1,
        .a_step = chunk->columns,
        .b = chunk->d_output,
        .b_pitch = pitch,
        .c = chunk->d_update,
        .c_pitch = pitch,
        .base = chunk->d_update,
        .token_rows = plan->steps,
        .token_begin = 1,
    });
    dr_chunk_solve(plan, chunk, chunk->d_update, true);
    for (int64_t i = 0; i < chunk->erases; i++)
        scale_row(V, chunk->reader_factor[i], chunk->d_update + dr_cpu_erase_row(plan, i) * pitch,
                  chunk->cotangent + i * pitch);
    for (int64_t t = 0; t < chunk->tokens; t++)
        scale_row(V, chunk->reader_factor[chunk->erases + t], chunk->d_output + t * pitch,
                  chunk->cotangent + (chunk->erases + t) * pitch);
}

void dr_chunk_pass_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *d_state) {
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = plan->value_size,
        .columns = plan->key_width,
        .depth = chunk->readers,
        .a = chunk->cotangent,
        .a_row = 1,
        .a_step = plan->value_pitch,
        .b = plan->channel ? chunk->reader_entry : chunk->reader,
        .b_pitch = plan->key_pitch,
        .c = d_state,
        .c_pitch = plan->key_pitch,
        .base = d_state,
        .keep_columns = chunk->keep,
        .ahead = &chunk->ahead,
    });
}
