/* prepare: decay factors, and how strongly every reader sees what every row of its chunk wrote:
 *
 *     score_ij = factor_i sum_d reader_id write_jd f(at_i, j+1)_d      factor: the gain of an erase row, the scale of a query
 *
 * for the rows j that reader i sees (an erase row those before it, a query those of its token and before), 0 for the others. f
 * is the product of alpha between two rows. No factor here is a quotient or has a positive exponent, so alpha = 0 is no special
 * case.
 *
 * Scalar decay multiplies scores: f comes from a table. Decay by channel stands inside the sum over channels: the tokens are
 * cut into blocks of some 16 rows, and a pair of rows in different blocks takes f = head (block start to reader) * product of
 * the blocks between * tail (writer to block end), which makes a product of scaled keys; a pair in one block is done element by
 * element (the formulas: docs/chunkwise.md). */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- decay factors --------------------------------------------------------------------------------------------------- */

static void fill(float *x, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++) x[i] = value;
}

static void set_fades_to_one(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    fill(chunk->reader_fade, chunk->readers, 1);
    fill(chunk->writer_fade, chunk->rows, 1);
    fill(chunk->keep, plan->key_width, 1);
}

/* factors[b][j]: from row j to the boundary before token b, 0 for rows behind it; entry[b]: from the chunk's start. */
static void scalar_factors(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t n = plan->steps, width = round_to_tile(chunk->rows);
    float *factors = chunk->factors;
    memset(factors, 0, (size_t)width * sizeof(float));
    chunk->entry[0] = 1;
    for (int64_t t = 0; t < chunk->tokens; t++, factors += chunk->columns) {
        scale_row(width, chunk->alpha[t], factors, factors + chunk->columns);
        fill(factors + chunk->columns + t * n, n, 1);
        chunk->entry[t + 1] = chunk->entry[t] * chunk->alpha[t];
    }
    for (int64_t i = 0; i < chunk->erases; i++) chunk->reader_fade[i] = chunk->entry[dr_cpu_erase_boundary(plan, i)];
    memcpy(chunk->reader_fade + chunk->erases, chunk->entry + 1, (size_t)chunk->tokens * sizeof(float));
    memcpy(chunk->writer_fade, factors, (size_t)chunk->rows * sizeof(float));
    fill(chunk->keep, plan->key_width, chunk->entry[chunk->tokens]);
}

/* head, tail and total of a block of tokens */
static void block_factors(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t begin, int64_t end) {
    const int64_t pitch = plan->key_pitch, K = plan->key_width;
    float *total = chunk->total + begin / plan->block * pitch;
    for (int64_t d = 0; d < K; d += LANES) {
        lanes product = lanes_set(1.0f);
        for (int64_t t = begin; t < end; t++) {
            product = product * lanes_load(chunk->alpha + t * pitch + d);
            lanes_store(chunk->head + t * pitch + d, product);
        }
        lanes_store(total + d, product);
        product = lanes_set(1.0f);
        for (int64_t t = end - 1; t >= begin; t--) {
            lanes_store(chunk->tail + t * pitch + d, product);
            product = product * lanes_load(chunk->alpha + t * pitch + d);
        }
    }
}

/* products of the totals of all blocks before and after each block, and of all */
static void between_factors(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t pitch = plan->key_pitch, blocks = (chunk->tokens + plan->block - 1) / plan->block;
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes product = lanes_set(1.0f);
        for (int64_t b = 0; b < blocks; b++) {
            lanes_store(chunk->before + b * pitch + d, product);
            product = product * lanes_load(chunk->total + b * pitch + d);
        }
        lanes_store(chunk->keep + d, product);
        product = lanes_set(1.0f);
        for (int64_t b = blocks - 1; b >= 0; b--) {
            lanes_store(chunk->after + b * pitch + d, product);
            product = product * lanes_load(chunk->total + b * pitch + d);
        }
    }
}

/* x head -> from_block, and times what lies before the block -> from_entry; head NULL: 1 */
static void fade_reader(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t reader, const float *head, int64_t block) {
    const int64_t row = reader * plan->key_pitch;
    const float *before = chunk->before + block * plan->key_pitch;
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes x = lanes_load(chunk->reader + row + d);
        if (head) x = x * lanes_load(head + d);
        lanes_store(chunk->reader_head + row + d, x);
        lanes_store(chunk->reader_entry + row + d, x * lanes_load(before + d));
    }
}

static void fade_writer(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t row) {
    const int64_t t = row / plan->steps, pitch = plan->key_pitch, at = row * pitch;
    const float *after = chunk->after + t / plan->block * pitch, *tail = chunk->tail + t * pitch;
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes x = lanes_load(chunk->write + at + d) * lanes_load(tail + d);
        lanes_store(chunk->write_tail + at + d, x);
        lanes_store(chunk->write_exit + at + d, x * lanes_load(after + d));
    }
}

static void channel_factors(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t t = 0; t < chunk->tokens; t += plan->block)
        block_factors(plan, chunk, t, smaller(t + plan->block, chunk->tokens));
    between_factors(plan, chunk);
}

void dr_chunk_fade_writers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    set_fades_to_one(plan, chunk);
    if (plan->scalar) scalar_factors(plan, chunk);
    if (!plan->channel) return;
    channel_factors(plan, chunk);
    for (int64_t row = 0; row < chunk->rows; row++) fade_writer(plan, chunk, row);
}

static void fade_readers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t i = 0; i < chunk->erases; i++) {
        int64_t row = dr_cpu_erase_row(plan, i), t = row / plan->steps;
        fade_reader(plan, chunk, i, dr_cpu_reader_head(plan, chunk, t, dr_cpu_reads_undecayed(plan, row)), t / plan->block);
    }
    for (int64_t t = 0; t < chunk->tokens; t++)
        fade_reader(plan, chunk, chunk->erases + t, chunk->head + t * plan->key_pitch, t / plan->block);
}

void dr_chunk_fade(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    dr_chunk_fade_writers(plan, chunk);
    if (plan->channel) fade_readers(plan, chunk);
    for (int64_t i = 0; i < chunk->erases; i++)
        chunk->reader_factor[i] = -chunk->gain[dr_cpu_erase_row(plan, i)] * chunk->reader_fade[i];
    for (int64_t i = chunk->erases; i < chunk->readers; i++) chunk->reader_factor[i] = plan->scale * chunk->reader_fade[i];
}

/* ---- scores of blocks ------------------------------------------------------------------------------------------------ */

/* Scores of the erase rows and of the queries of tokens begin .. end-1 over the rows of tokens from .. to-1, without decay; of
 * the tile of a row, only what it may see if `triangle`. */
static void multiply_scores(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *readers, int64_t begin, int64_t end,
                            int64_t from, int64_t to, bool triangle) {
    const int64_t first[2] = {begin * plan->erases, chunk->erases + begin};
    const int64_t a_token[2] = {plan->erases, 1}, column = from * plan->steps;
    for (int i = 0; i < 2; i++)
        dr_matrix_multiply(&(dr_matrix_product){
            .rows = (end - begin) * a_token[i],
            .columns = round_to_tile((to - from) * plan->steps),
            .depth = plan->key_size,
            .a = readers + first[i] * plan->key_pitch,
            .a_row = plan->key_pitch,
            .a_step = 1,
            .b = chunk->write_turned + column,
            .b_pitch = chunk->columns,
            .c = chunk->score + first[i] * chunk->columns + column,
            .c_pitch = chunk->columns,
            .token_rows = a_token[i],
            .token_columns = triangle ? plan->steps : 0,
        });
}

/* One row of scores: times factor and, for scalar decay, the decay to boundary `at`; 0 where nothing is seen. */
static void finish_row(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t reader, int64_t at, int64_t sees, float factor) {
    float *score = chunk->score + reader * chunk->columns;
    const float *fade = plan->scalar ? chunk->factors + at * chunk->columns : NULL;
    const int64_t width = round_to_tile(chunk->rows);
    const lanes x = lanes_set(factor);
    for (int64_t j = 0; j < width; j += LANES) {
        lanes y = x * lanes_load(score + j);
        if (fade) y = y * lanes_load(fade + j);
        lanes_store(score + j, lanes_keep_first(y, sees - j));
    }
}

static void finish_rows(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t i = 0; i < chunk->erases; i++) {
        int64_t row = dr_cpu_erase_row(plan, i);
        finish_row(plan, chunk, i, dr_cpu_erase_boundary(plan, i), row, chunk->gain[row]);
    }
    for (int64_t t = 0; t < chunk->tokens; t++)
        finish_row(plan, chunk, chunk->erases + t, t + 1, (t + 1) * plan->steps, plan->scale);
}

/* Pairs of one block: the write key of row j fades token by token on its way down to the readers. */
static void score_within(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t begin, int64_t end) {
    const int64_t n = plan->steps, pitch = plan->key_pitch, K = plan->key_width, e = plan->erases;
    float *faded = chunk->scratch;
    for (int64_t row = begin * n; row < end * n; row++) {
        copy_row(K, chunk->write + row * pitch, faded);
        for (int64_t t = row / n; t < end; t++) {
            bool decayed = t == row / n;
            for (int64_t i = t * e; i < (t + 1) * e; i++) {
                int64_t reads = dr_cpu_erase_row(plan, i);
                if (reads <= row) continue;
                if (!decayed && !dr_cpu_reads_undecayed(plan, reads)) {
                    for (int64_t d = 0; d < K; d += LANES)
                        lanes_store(faded + d, lanes_load(faded + d) * lanes_load(chunk->alpha + t * pitch + d));
                    decayed = true;
                }
                chunk->score[i * chunk->columns + row] = dot_rows(K, chunk->reader + i * pitch, faded);
            }
            if (!decayed)
                for (int64_t d = 0; d < K; d += LANES)
                    lanes_store(faded + d, lanes_load(faded + d) * lanes_load(chunk->alpha + t * pitch + d));
            int64_t query = chunk->erases + t;
            chunk->score[query * chunk->columns + row] = dot_rows(K, chunk->reader + query * pitch, faded);
        }
    }
}

/* The readers of a block, scaled from the end of block `from` on. */
static const float *readers_from(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t block, int64_t from) {
    if (block == from + 1) return chunk->reader_head;
    const int64_t pitch = plan->key_pitch, begin = block * plan->block, end = smaller(begin + plan->block, chunk->tokens);
    const int64_t first[2] = {begin * plan->erases, chunk->erases + begin};
    const int64_t count[2] = {(end - begin) * plan->erases, end - begin};
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes between = dr_cpu_between(plan, chunk, block, from, d);
        for (int i = 0; i < 2; i++)
            for (int64_t r = first[i]; r < first[i] + count[i]; r++)
                lanes_store(chunk->scratch + r * pitch + d, between * lanes_load(chunk->reader_head + r * pitch + d));
    }
    return chunk->scratch;
}

/* Decay by channel. Columns of a later block are written after those of an earlier one, which spill over into them. */
static void score_blocks(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t blocks = (chunk->tokens + plan->block - 1) / plan->block;
    dr_matrix_transpose(chunk->rows, plan->key_width, chunk->write_tail, plan->key_pitch, chunk->write_turned, chunk->columns,
                        plan->key_width, chunk->columns);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = b * plan->block, end = smaller(begin + plan->block, chunk->tokens);
        for (int64_t from = 0; from < b; from++) {
            multiply_scores(plan, chunk, readers_from(plan, chunk, b, from), begin, end, from * plan->block,
                            (from + 1) * plan->block, false);
        }
        score_within(plan, chunk, begin, end);
    }
}

void dr_chunk_score(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (plan->channel) {
        score_blocks(plan, chunk);
    } else {
        dr_matrix_transpose(chunk->rows, plan->key_width, chunk->write, plan->key_pitch, chunk->write_turned, chunk->columns,
                            plan->key_width, round_to_tile(chunk->rows));
        multiply_scores(plan, chunk, chunk->reader, 0, chunk->tokens, 0, chunk->tokens, true);
    }
    finish_rows(plan, chunk);
}
