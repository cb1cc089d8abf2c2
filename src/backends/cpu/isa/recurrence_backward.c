/* Reverse scan of a chunk: from the gradient of the state behind it to that of the state before it.
 *
 *     dU = P^T dO + (writers faded to the exit) dS'        dz = (I + L)^-T dU
 *     cotangent of what a reader reads: scale dO for queries, dz for erase rows (their gain is applied later)
 *     dS = keep dS' + (readers faded from the entry)^T (scale dO, -c dz)
 *
 * It needs neither the state nor the values. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

void dr_chunk_scan_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *d_state) {
    const int64_t pitch = plan->value_pitch, V = plan->value_width, n = plan->steps;
    const float *writers = plan->channel ? chunk->write_exit : chunk->write;
    float *d_update = chunk->d_update;
    dr_matrix_multiply(chunk->rows, V, plan->key_size, writers, plan->key_pitch, 1, d_state, pitch, d_update, pitch,
                       DR_PRODUCT_SET, NULL, NULL);
    if (plan->scalar)
        for (int64_t row = 0; row < chunk->rows; row++)
            scale_row(V, chunk->writer_fade[row], d_update + row * pitch, d_update + row * pitch);
    for (int64_t t = 0; t < chunk->tokens; t += plan->block) {
        int64_t end = t + plan->block < chunk->tokens ? t + plan->block : chunk->tokens;
        const float *score = chunk->score + (chunk->erases + t) * chunk->columns + t * n;
        dr_matrix_multiply((end - t) * n, V, chunk->tokens - t, score, 1, chunk->columns, chunk->d_output + t * pitch, pitch,
                           d_update + t * n * pitch, pitch, DR_PRODUCT_ADD, NULL, NULL);
    }
    dr_chunk_solve(plan, chunk, d_update, true);
    for (int64_t i = 0; i < chunk->erases; i++) {
        const int64_t row = dr_cpu_erase_row(plan, i);
        memcpy(chunk->cotangent + i * pitch, d_update + row * pitch, (size_t)V * sizeof(float));
        scale_row(V, -chunk->gain[row] * chunk->reader_fade[i], d_update + row * pitch, chunk->cotangent_faded + i * pitch);
    }
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const int64_t i = chunk->erases + t;
        scale_row(V, plan->scale, chunk->d_output + t * pitch, chunk->cotangent + i * pitch);
        scale_row(V, chunk->reader_fade[i], chunk->cotangent + i * pitch, chunk->cotangent_faded + i * pitch);
    }
}

void dr_chunk_pass_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *d_state) {
    const float *readers = plan->channel ? chunk->reader_entry : chunk->reader;
    dr_matrix_multiply(plan->key_size, plan->value_width, chunk->readers, readers, 1, plan->key_pitch, chunk->cotangent_faded,
                       plan->value_pitch, d_state, plan->value_pitch, DR_PRODUCT_ADD, chunk->keep, NULL);
}
