/* Gradients of the rows of a chunk and of its log decays, under decay by channel: its factors stand inside the sums over
 * channels, so the products of recurrence_gradients.c become products of blocks of tokens with scaled keys, and pairs of one
 * block are done element by element (the formulas: docs/chunkwise.md).
 *
 * d_log_decay of a token is the sum over all pairs of what was written before its decay and read after it (recurrence_decay.c).
 * A pair is added to the decays between its two, wherever its part of d_reader or d_write comes up: the entry state's and those
 * of earlier blocks with d_reader, those of later blocks and the exit state's with d_write, and those of one block one by one.
 * So a pair that spans no decay, such as a token with itself, is in no sum, and where decays are saturated no rounding of large
 * pairs is left in the place of small ones. */
#include "backends/cpu/isa/recurrence_stages.h"

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline void add_to(float *to, lanes x) {
    lanes_store(to, lanes_load(to) + x);
}

/* x *= factor (NULL: 1) */
static void fade_row(int64_t width, const float *factor, float *x) {
    if (!factor) return;
    for (int64_t d = 0; d < width; d += LANES) lanes_store(x + d, lanes_load(x + d) * lanes_load(factor + d));
}

/* What d_reader lacks of the gradient of reader i. */
static float factor_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t i) {
    return i < chunk->erases ? -chunk->gain[dr_cpu_erase_row(plan, i)] : 1;
}

static bool is_undecayed(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t i) {
    return i < chunk->erases && dr_cpu_reads_undecayed(plan, dr_cpu_erase_row(plan, i));
}

/* ---- readers --------------------------------------------------------------------------------------------------------- */

/* Adds to the log decays of tokens begin .. end - 1, which lie between the readers i .. i + rows - 1 and what they meet in d
 * [rows][Kp]. reader [R][Kp]: faded as far as d is not. */
static void span_before(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t i, int64_t rows, const float *reader,
                        const float *d, int64_t begin, int64_t end) {
    const int64_t pitch = plan->key_pitch;
    if (begin >= end) return;
    for (int64_t c = 0; c < plan->key_width; c += LANES) {
        lanes sum = lanes_zero();
        for (int64_t r = 0; r < rows; r++)
            sum = lanes_fma(lanes_set(factor_of(plan, chunk, i + r)) * lanes_load(reader + (i + r) * pitch + c),
                            lanes_load(d + r * pitch + c), sum);
        for (int64_t t = begin; t < end; t++) add_to(chunk->d_log_decay + t * pitch + c, sum);
    }
}

/* The readers of a block with all that lies before it, in d_reader: to the log decays from the block's start to each of them.
 */
static void span_within(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t begin, int64_t end) {
    const int64_t e = plan->erases, pitch = plan->key_pitch;
    for (int64_t c = 0; c < plan->key_width; c += LANES) {
        lanes sum = lanes_zero();
        for (int64_t t = end - 1; t >= begin; t--) {
            const int64_t query = (chunk->erases + t) * pitch + c;
            lanes undecayed = lanes_zero();
            sum = lanes_fma(lanes_load(chunk->reader + query), lanes_load(chunk->d_reader + query), sum);
            for (int64_t i = t * e; i < (t + 1) * e; i++) {
                lanes part = lanes_set(factor_of(plan, chunk, i)) * lanes_load(chunk->reader + i * pitch + c) *
                             lanes_load(chunk->d_reader + i * pitch + c);
                if (is_undecayed(plan, chunk, i))
                    undecayed = part;
                else
                    sum = sum + part;
            }
            add_to(chunk->d_log_decay + t * pitch + c, sum);
            sum = sum + undecayed;
        }
    }
}

/* to += between the blocks * from, for some rows; from becomes what is added */
static void add_faded_rows(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t to_block, int64_t from_block,
                           int64_t rows, float *from, float *to) {
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes between = dr_cpu_between(plan, chunk, to_block, from_block, d);
        for (int64_t at = d; at < rows * plan->key_pitch; at += plan->key_pitch) {
            const lanes x = between * lanes_load(from + at);
            lanes_store(from + at, x);
            add_to(to + at, x);
        }
    }
}

/* d_reader of block b from the entry state and the blocks before it. */
static void reader_blocks(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t b, int64_t begin, int64_t end) {
    const int64_t pitch = plan->key_pitch, K = plan->key_width, from_rows = plan->block * plan->steps;
    const dr_cpu_reader_range range = dr_cpu_readers_of(plan, chunk, begin, end);
    for (int k = 0; k < 2; k++) {
        const int64_t first = range.first[k], rows = range.count[k];
        float *d_reader = chunk->d_reader + first * pitch;
        span_before(plan, chunk, first, rows, chunk->reader_entry, d_reader, 0, begin);
        for (int64_t r = 0; r < rows; r++) fade_row(K, chunk->before + b * pitch, d_reader + r * pitch);
        for (int64_t from = 0; from < b; from++) {
            dr_matrix_multiply(&(dr_matrix_product){
                .rows = rows,
                .columns = K,
                .depth = from_rows,
                .a = chunk->d_score + first * chunk->columns + from * from_rows,
                .a_row = chunk->columns,
                .a_step = 1,
                .b = chunk->write_tail + from * from_rows * pitch,
                .b_pitch = pitch,
                .c = chunk->scratch,
                .c_pitch = pitch,
            });
            add_faded_rows(plan, chunk, b, from, rows, chunk->scratch, d_reader);
            span_before(plan, chunk, first, rows, chunk->reader_head, chunk->scratch, (from + 1) * plan->block, begin);
        }
        for (int64_t i = first; i < first + rows; i++) {
            const int64_t t = k ? i - chunk->erases : dr_cpu_erase_row(plan, i) / plan->steps;
            fade_row(K, dr_cpu_reader_head(plan, chunk, t, is_undecayed(plan, chunk, i)), chunk->d_reader + i * pitch);
        }
    }
    span_within(plan, chunk, begin, end);
}

/* One vector of channels of a row with all readers of its block: d_reader without the gain of erase rows, d_write, d_log_decay.
 * Between the row and a reader lie the decays of so many tokens: part[m] is what the readers behind m of them give d_write. */
static inline void pairs_of_row(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t row, int64_t end, int64_t c) {
    const int64_t e = plan->erases, pitch = plan->key_pitch, own = row / plan->steps;
    const lanes write = lanes_load(chunk->write + row * pitch + c);
    lanes fade = lanes_set(1.0f), part[DR_BLOCK_TOKENS];
    for (int64_t t = own; t < end; t++) {
        bool decayed = t == own;
        lanes sum = lanes_zero();
        const lanes alpha = lanes_load(chunk->alpha + t * pitch + c);
        for (int64_t i = t * e; i < (t + 1) * e; i++) {
            const int64_t reads = dr_cpu_erase_row(plan, i);
            if (reads <= row) continue;
            const bool undecayed = dr_cpu_reads_undecayed(plan, reads);
            if (!decayed && !undecayed) {
                fade = fade * alpha;
                decayed = true;
            }
            const lanes score = lanes_set(chunk->d_score[i * chunk->columns + row]) * fade;
            float *d_reader = chunk->d_reader + i * pitch + c;
            lanes_store(d_reader, lanes_fma(score, write, lanes_load(d_reader)));
            const lanes given = lanes_set(chunk->gain[reads]) * score, reader = lanes_load(chunk->reader + i * pitch + c);
            if (undecayed)
                part[t - own - 1] = lanes_fnma(given, reader, part[t - own - 1]);
            else
                sum = lanes_fnma(given, reader, sum);
        }
        if (!decayed) fade = fade * alpha;
        const int64_t query = chunk->erases + t;
        const lanes score = lanes_set(chunk->d_score[query * chunk->columns + row]) * fade;
        float *d_reader = chunk->d_reader + query * pitch + c;
        lanes_store(d_reader, lanes_fma(score, write, lanes_load(d_reader)));
        part[t - own] = lanes_fma(score, lanes_load(chunk->reader + query * pitch + c), sum);
    }
    lanes sum = lanes_zero();
    for (int64_t t = end - 1; t > own; t--) {
        float *to = chunk->d_log_decay + t * pitch + c;
        sum = sum + part[t - own];
        lanes_store(to, lanes_fma(write, sum, lanes_load(to)));
    }
    lanes_store(chunk->d_write + row * pitch + c, sum + part[0]);
}

void dr_chunk_channel_readers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t t = 0; t < chunk->tokens; t++)
        copy_row(plan->key_width, chunk->exit, chunk->d_log_decay + t * plan->key_pitch);
    for (int64_t b = 0, begin = 0; begin < chunk->tokens; b++, begin += plan->block) {
        const int64_t end = smaller(begin + plan->block, chunk->tokens);
        reader_blocks(plan, chunk, b, begin, end);
        for (int64_t c = 0; c < plan->key_width; c += LANES)
            for (int64_t row = begin * plan->steps; row < end * plan->steps; row++) pairs_of_row(plan, chunk, row, end, c);
    }
}

/* ---- writers --------------------------------------------------------------------------------------------------------- */

/* Rows of tokens begin .. end - 1 with what they meet in d [rows][Kp]: to the log decays from behind each of them to the last.
 */
static void span_after(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t begin, int64_t end, const float *d) {
    const int64_t n = plan->steps, pitch = plan->key_pitch;
    for (int64_t c = 0; c < plan->key_width; c += LANES) {
        const float *write = chunk->write + begin * n * pitch + c, *met = d + c;
        lanes sum = lanes_zero();
        for (int64_t t = begin; t < end; t++) {
            add_to(chunk->d_log_decay + t * pitch + c, sum);
            for (int64_t step = 0; step < n; step++, write += pitch, met += pitch)
                sum = lanes_fma(lanes_load(write), lanes_load(met), sum);
        }
    }
}

/* d_write of block `from` from the blocks behind it. */
static void writer_blocks(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t from, int64_t blocks) {
    const int64_t pitch = plan->key_pitch, K = plan->key_width, n = plan->steps, begin = from * plan->block;
    const int64_t first = begin * n, rows = smaller(plan->block * n, chunk->rows - first);
    float *crossing = chunk->scratch;
    for (int64_t b = from + 1; b < blocks; b++) {
        const dr_cpu_reader_range range =
            dr_cpu_readers_of(plan, chunk, b * plan->block, smaller((b + 1) * plan->block, chunk->tokens));
        for (int k = 0; k < 2; k++)
            dr_matrix_multiply(&(dr_matrix_product){
                .rows = rows,
                .columns = K,
                .depth = range.count[k],
                .a = chunk->d_score + range.first[k] * chunk->columns + first,
                .a_row = 1,
                .a_step = chunk->columns,
                .b = chunk->reader_head + range.first[k] * pitch,
                .b_pitch = pitch,
                .c = crossing,
                .c_pitch = pitch,
                .base = k ? crossing : NULL,
            });
        for (int64_t row = 0; row < rows; row++) fade_row(K, chunk->tail + (first + row) / n * pitch, crossing + row * pitch);
        add_faded_rows(plan, chunk, b, from, rows, crossing, chunk->d_write + first * pitch);
        span_after(plan, chunk, begin, begin + rows / n, crossing);
    }
    for (int64_t row = first; row < first + rows; row++) {
        fade_row(K, chunk->tail + row / n * pitch, chunk->d_far + row * pitch);
        fade_row(K, chunk->after + from * pitch, chunk->d_far + row * pitch);
    }
}

void dr_chunk_channel_writers(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const int64_t blocks = (chunk->tokens + plan->block - 1) / plan->block, pitch = plan->key_pitch;
    for (int64_t from = 0; from < blocks; from++) writer_blocks(plan, chunk, from, blocks);
    span_after(plan, chunk, 0, chunk->tokens, chunk->d_far);
    for (int64_t row = 0; row < chunk->rows * pitch; row += pitch)
        add_row(plan->key_width, 1, chunk->d_far + row, chunk->d_write + row);
}
