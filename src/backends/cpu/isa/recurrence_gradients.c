/* Gradients of the rows of a chunk, once its updates u and its cotangents are known.
 *
 *     G_ij       = cotangent_i . u_j                                          where reader i sees row j
 *     d_reader_i = f(entry) (S cotangent_i) + sum_j G_ij f(at_i, j+1) write_j          = D_i cotangent_i
 *     erase rows: d_gain = -reader . d_reader, then d_reader and row i of G times -gain
 *     d_far_j    = f(exit) (dS' u_j)       d_write_j = sum_i G_ij f(at_i, j+1) reader_i
 */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* ---- G --------------------------------------------------------------------------------------------------------------- */

/* Zero where nothing is seen; elsewhere times factor and the scalar decay. */
static void mask_row(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t reader, int64_t at, int64_t sees, float factor) {
    float *score = chunk->d_score + reader * chunk->columns;
    const float *fade = plan->scalar ? chunk->factors + at * chunk->columns : NULL;
    const lanes x = lanes_set(factor);
    for (int64_t j = 0; j < round_to_tile(chunk->rows); j += LANES) {
        lanes y = x * lanes_load(score + j);
        if (fade) y = y * lanes_load(fade + j);
        lanes_store(score + j, lanes_keep_first(y, sees - j));
    }
}

static void mask_rows(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t i = 0; i < chunk->erases; i++)
        mask_row(plan, chunk, i, dr_cpu_erase_boundary(plan, i), dr_cpu_erase_row(plan, i), 1);
    for (int64_t t = 0; t < chunk->tokens; t++)
        mask_row(plan, chunk, chunk->erases + t, t + 1, (t + 1) * plan->steps, plan->scale);
}

/* A product of the cotangents, dz for erase rows and dO for queries, with what is given for B and C. */
static void multiply_cotangents(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, dr_matrix_product *product, float *to,
                                int64_t to_pitch, const float *query_factor, const float *erase_factor) {
    const int64_t pitch = plan->value_pitch;
    product->depth = plan->value_size;
    product->a_step = 1;
    product->c_pitch = to_pitch;
    product->rows = chunk->erases;
    product->a = chunk->d_update + dr_cpu_erase_row(plan, 0) * pitch;
    product->a_row = plan->erase_stride * pitch;
    product->c = to;
    product->factor = erase_factor;
    product->token_rows = plan->erases;
    dr_matrix_multiply(product);
    product->rows = chunk->tokens;
    product->a = chunk->d_output;
    product->a_row = pitch;
    product->c = to + chunk->erases * to_pitch;
    product->factor = query_factor;
    product->token_rows = 1;
    dr_matrix_multiply(product);
}

/* G before mask, scale and decay */
static void score_cotangents(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    dr_matrix_transpose(chunk->rows, plan->value_width, chunk->update, plan->value_pitch, chunk->update_turned, chunk->columns,
                        plan->value_width, round_to_tile(chunk->rows));
    dr_matrix_product product = {.columns = round_to_tile(chunk->rows),
                                 .b = chunk->update_turned,
                                 .b_pitch = chunk->columns,
                                 .token_columns = plan->steps};
    multiply_cotangents(plan, chunk, &product, chunk->d_score, chunk->columns, NULL, NULL);
}

/* ---- the parts that meet the state ----------------------------------------------------------------------------------- */

static void meet_states(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, const float *d_state) {
    dr_matrix_product product = {.columns = plan->key_width, .b = state, .b_pitch = plan->key_pitch, .ahead = &chunk->ahead};
    multiply_cotangents(plan, chunk, &product, chunk->d_reader, plan->key_pitch, chunk->reader_factor + chunk->erases,
                        plan->scalar ? chunk->reader_fade : NULL);
    dr_matrix_multiply(&(dr_matrix_product){
        .rows = chunk->rows,
        .columns = plan->key_width,
        .depth = plan->value_size,
        .a = chunk->update,
        .a_row = plan->value_pitch,
        .a_step = 1,
        .b = d_state,
        .b_pitch = plan->key_pitch,
        .c = chunk->d_far,
        .c_pitch = plan->key_pitch,
        .factor = plan->scalar ? chunk->writer_fade : NULL,
        .ahead = &chunk->ahead,
    });
}

/* ---- scalar decay or none -------------------------------------------------------------------------------------------- */

static void reader_gradients(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const dr_cpu_reader_range range = dr_cpu_readers_of(plan, chunk, 0, chunk->tokens);
    for (int i = 0; i < 2; i++) {
        float *d_reader = chunk->d_reader + range.first[i] * plan->key_pitch;
        dr_matrix_multiply(&(dr_matrix_product){
            .rows = range.count[i],
            .columns = plan->key_width,
            .depth = chunk->rows,
            .a = chunk->d_score + range.first[i] * chunk->columns,
            .a_row = chunk->columns,
            .a_step = 1,
            .b = chunk->write,
            .b_pitch = plan->key_pitch,
            .c = d_reader,
            .c_pitch = plan->key_pitch,
            .base = d_reader,
            .token_rows = i ? 1 : plan->erases,
            .token_end = plan->steps,
        });
    }
}

static void writer_gradients(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    dr_matrix_product queries = {
        .rows = chunk->rows,
        .columns = plan->key_width,
        .depth = chunk->tokens,
        .a = chunk->d_score + chunk->erases * chunk->columns,
        .a_row = 1,
        .a_step = chunk->columns,
        .b = chunk->reader + chunk->erases * plan->key_pitch,
        .b_pitch = plan->key_pitch,
        .c = chunk->d_write,
        .c_pitch = plan->key_pitch,
        .base = chunk->d_far,
        .token_rows = plan->steps,
        .token_begin = 1,
    };
    dr_matrix_product erases = queries;
    erases.depth = chunk->erases;
    erases.a = chunk->d_score;
    erases.b = chunk->reader;
    erases.token_begin = plan->erases;
    queries.also = &erases;
    dr_matrix_multiply(&queries);
}

/* ---- gains and decays ------------------------------------------------------------------------------------------------ */

/* d_gain; then d_reader and G of the erase rows get their gain. */
static void apply_gains(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t i = 0; i < chunk->erases; i++) {
        const int64_t row = dr_cpu_erase_row(plan, i);
        float *d_reader = chunk->d_reader + i * plan->key_pitch, *score = chunk->d_score + i * chunk->columns;
        chunk->d_gain[row] = -dot_rows(plan->key_width, chunk->reader + i * plan->key_pitch, d_reader);
        scale_row(plan->key_width, -chunk->gain[row], d_reader, d_reader);
        scale_row(round_to_tile(chunk->rows), -chunk->gain[row], score, score);
    }
}

void dr_chunk_gradients(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, const float *d_state) {
    meet_states(plan, chunk, state, d_state);
    score_cotangents(plan, chunk);
    if (plan->scalar) dr_chunk_decay_scalar(plan, chunk, state, d_state);
    mask_rows(plan, chunk);
    if (plan->channel) {
        dr_chunk_meet_exit(plan, chunk, state, d_state);
        dr_chunk_channel_readers(plan, chunk);
        apply_gains(plan, chunk);
        dr_chunk_channel_writers(plan, chunk);
    } else {
        reader_gradients(plan, chunk);
        apply_gains(plan, chunk);
        writer_gradients(plan, chunk);
    }
}
