/* Gradients of the rows of a chunk, once its updates u and its cotangents are known.
 *
 *     G_ij       = cotangent_i . u_j                                          where reader i sees row j
 *     d_reader_i = f(entry) (S cotangent_i) + sum_j G_ij f(at_i, j+1) write_j          = D_i cotangent_i
 *     erase rows: d_gain = -reader . d_reader, then d_reader and row i of G times -gain
 *     d_far_j    = f(exit) (dS' u_j)       d_write_j = sum_i G_ij f(at_i, j+1) reader_i
 */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The readers of tokens begin .. end-1: first and count of the erase rows, of the queries. */
typedef struct {
    int64_t first[2], count[2];
} reader_range;

static reader_range readers_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t begin, int64_t end) {
    return (reader_range){{begin * plan->erases, chunk->erases + begin}, {(end - begin) * plan->erases, end - begin}};
}

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
    const reader_range range = readers_of(plan, chunk, 0, chunk->tokens);
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

/* ---- decay by channel ------------------------------------------------------------------------------------------------ */

/* x *= factor (NULL: 1) */
static void fade_row(int64_t width, const float *factor, float *x) {
    if (!factor) return;
    for (int64_t d = 0; d < width; d += LANES) lanes_store(x + d, lanes_load(x + d) * lanes_load(factor + d));
}

/* to += between the blocks * from, for some rows */
static void add_faded_rows(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t to_block, int64_t from_block,
                           int64_t rows, const float *from, float *to) {
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes between = dr_cpu_between(plan, chunk, to_block, from_block, d);
        for (int64_t at = d; at < rows * plan->key_pitch; at += plan->key_pitch)
            lanes_store(to + at, lanes_fma(between, lanes_load(from + at), lanes_load(to + at)));
    }
}

static void reader_blocks(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t b, int64_t begin, int64_t end) {
    const int64_t pitch = plan->key_pitch, K = plan->key_width, from_rows = plan->block * plan->steps;
    reader_range range = readers_of(plan, chunk, begin, end);
    for (int i = 0; i < 2; i++) {
        float *d_reader = chunk->d_reader + range.first[i] * pitch;
        for (int64_t r = 0; r < range.count[i]; r++) fade_row(K, chunk->before + b * pitch, d_reader + r * pitch);
        for (int64_t from = 0; from < b; from++) {
            dr_matrix_multiply(&(dr_matrix_product){
                .rows = range.count[i],
                .columns = K,
                .depth = from_rows,
                .a = chunk->d_score + range.first[i] * chunk->columns + from * from_rows,
                .a_row = chunk->columns,
                .a_step = 1,
                .b = chunk->write_tail + from * from_rows * pitch,
                .b_pitch = pitch,
                .c = chunk->scratch,
                .c_pitch = pitch,
            });
            add_faded_rows(plan, chunk, b, from, range.count[i], chunk->scratch, d_reader);
        }
        for (int64_t r = 0; r < range.count[i]; r++) {
            const int64_t row = i ? 0 : dr_cpu_erase_row(plan, range.first[0] + r);
            const int64_t t = i ? begin + r : row / plan->steps;
            fade_row(K, dr_cpu_reader_head(plan, chunk, t, !i && dr_cpu_reads_undecayed(plan, row)), d_reader + r * pitch);
        }
    }
}

/* Pairs of one block: both gradients, G being without the gain of erase rows. */
static void pairs_within(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t begin, int64_t end) {
    const int64_t n = plan->steps, e = plan->erases, pitch = plan->key_pitch;
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        for (int64_t row = begin * n; row < end * n; row++) {
            lanes fade = lanes_set(1.0f), write = lanes_load(chunk->write + row * pitch + d), d_write = lanes_zero();
            for (int64_t t = row / n; t < end; t++) {
                bool decayed = t == row / n;
                const lanes alpha = lanes_load(chunk->alpha + t * pitch + d);
                for (int64_t i = t * e; i < (t + 1) * e; i++) {
                    const int64_t reads = dr_cpu_erase_row(plan, i);
                    if (reads <= row) continue;
                    if (!decayed && !dr_cpu_reads_undecayed(plan, reads)) {
                        fade = fade * alpha;
                        decayed = true;
                    }
                    const lanes score = lanes_set(chunk->d_score[i * chunk->columns + row]) * fade;
                    float *d_reader = chunk->d_reader + i * pitch + d;
                    lanes_store(d_reader, lanes_fma(score, write, lanes_load(d_reader)));
                    d_write =
                        lanes_fnma(lanes_set(chunk->gain[reads]) * score, lanes_load(chunk->reader + i * pitch + d), d_write);
                }
                if (!decayed) fade = fade * alpha;
                const int64_t query = chunk->erases + t;
                const lanes score = lanes_set(chunk->d_score[query * chunk->columns + row]) * fade;
                float *d_reader = chunk->d_reader + query * pitch + d;
                lanes_store(d_reader, lanes_fma(score, write, lanes_load(d_reader)));
                d_write = lanes_fma(score, lanes_load(chunk->reader + query * pitch + d), d_write);
            }
            lanes_store(chunk->d_write + row * pitch + d, d_write);
        }
    }
}

static void reader_gradients_by_channel(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t b = 0, begin = 0; begin < chunk->tokens; b++, begin += plan->block) {
        int64_t end = smaller(begin + plan->block, chunk->tokens);
        reader_blocks(plan, chunk, b, begin, end);
        pairs_within(plan, chunk, begin, end);
    }
}

static void writer_gradients_by_channel(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t pitch = plan->key_pitch, K = plan->key_width, n = plan->steps;
    const int64_t blocks = (chunk->tokens + plan->block - 1) / plan->block;
    for (int64_t from = 0; from < blocks; from++) {
        const int64_t first = from * plan->block * n, rows = smaller(plan->block * n, chunk->rows - first);
        float *crossing = chunk->scratch;
        for (int64_t b = from + 1; b < blocks; b++) {
            reader_range range = readers_of(plan, chunk, b * plan->block, smaller((b + 1) * plan->block, chunk->tokens));
            for (int i = 0; i < 2; i++)
                dr_matrix_multiply(&(dr_matrix_product){
                    .rows = rows,
                    .columns = K,
                    .depth = range.count[i],
                    .a = chunk->d_score + range.first[i] * chunk->columns + first,
                    .a_row = 1,
                    .a_step = chunk->columns,
                    .b = chunk->reader_head + range.first[i] * pitch,
                    .b_pitch = pitch,
                    .c = crossing,
                    .c_pitch = pitch,
                    .base = i ? crossing : NULL,
                });
            for (int64_t row = 0; row < rows; row++)
                fade_row(K, chunk->tail + (first + row) / n * pitch, crossing + row * pitch);
            add_faded_rows(plan, chunk, b, from, rows, crossing, chunk->d_write + first * pitch);
        }
        for (int64_t row = first; row < first + rows; row++) {
            fade_row(K, chunk->tail + row / n * pitch, chunk->d_far + row * pitch);
            fade_row(K, chunk->after + from * pitch, chunk->d_far + row * pitch);
        }
    }
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
        reader_gradients_by_channel(plan, chunk);
        apply_gains(plan, chunk);
        writer_gradients_by_channel(plan, chunk);
        dr_chunk_decay_channel(plan, chunk, state, d_state);
        for (int64_t row = 0; row < chunk->rows * plan->key_pitch; row += plan->key_pitch)
            add_row(plan->key_width, 1, chunk->d_far + row, chunk->d_write + row);
    } else {
        reader_gradients(plan, chunk);
        apply_gains(plan, chunk);
        writer_gradients(plan, chunk);
    }
}
