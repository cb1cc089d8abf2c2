/* Gradient of the log decays of a chunk. f(b, a), the decay between two boundaries, has itself as derivative for each token
 * between them, so the gradient at a token is the sum over all pairs of what was written before its decay and read after it:
 *
 *     entry state, exit state     keep (S . dS')
 *     entry state, reader         reader . its far gradient         a suffix sum over tokens
 *     writer, exit state          write . its far gradient          a prefix sum over tokens
 *     writer, reader              score cotangent . u               over the pairs that span the token
 *
 * As written, every term has the factor alpha of the token, so that even a gradient of 1e-20 is right, and there is no
 * division: no sum takes off what another one added. Here is what both kinds of decay begin with, and the scalar decay, whose
 * pairs are the product of two matrices; recurrence_channel.c has the decay by channel. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* keep (S . dS') of every channel; four sums a channel hide the latency of one */
void dr_chunk_meet_exit(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, const float *d_state) {
    const int64_t pitch = plan->key_pitch;
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes sum[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};
        for (int64_t v = 0; v < plan->value_width; v += 4)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const int64_t at = (v + i) * pitch + d;
                sum[i] = lanes_fma(lanes_load(state + at), lanes_load(d_state + at), sum[i]);
            }
        lanes_store(chunk->exit + d, lanes_load(chunk->keep + d) * ((sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
}

/* Adds the pairs of reader i to pairs[j], the sum over the readers behind a token for every row j, and returns its pair with
 * the entry state. pair_factor, entry_factor: what a product of score and d_score, of reader and d_reader lacks of the gain. */
static float add_reader(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t i, float pair_factor, float entry_factor,
                        int64_t columns, float *pairs) {
    const float *score = chunk->score + i * chunk->columns, *d_score = chunk->d_score + i * chunk->columns;
    const lanes x = lanes_set(pair_factor);
    for (int64_t j = 0; j < columns; j += LANES)
        lanes_store(pairs + j, lanes_fma(x * lanes_load(score + j), lanes_load(d_score + j), lanes_load(pairs + j)));
    return entry_factor * dot_rows(plan->key_width, chunk->reader + i * plan->key_pitch, chunk->d_reader + i * plan->key_pitch);
}

/* The erase rows of token t that read before (undecayed) or after its decay. Their scores have the gain, d_reader has not. */
static float add_erases(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t, bool undecayed, int64_t columns,
                        float *pairs) {
    float sum = 0;
    for (int64_t i = t * plan->erases; i < (t + 1) * plan->erases; i++) {
        const int64_t row = dr_cpu_erase_row(plan, i);
        if (dr_cpu_reads_undecayed(plan, row) == undecayed)
            sum += add_reader(plan, chunk, i, -1, -chunk->gain[row], columns, pairs);
    }
    return sum;
}

static float sum_of(const float *x, int64_t count) {
    lanes sum = lanes_zero();
    for (int64_t j = 0; j < count; j += LANES) sum = sum + lanes_load_n(x + j, lanes_left(count, j));
    return lanes_sum(sum);
}

/* d_reader, d_far: the far parts only. d_score: before mask, decay and scale, so that with score there is one of each in a
 * pair.
 */
void dr_chunk_decay_scalar(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *state, const float *d_state) {
    const int64_t n = plan->steps, pitch = plan->key_pitch;
    float *pairs = chunk->pairs, entry = 0;
    dr_chunk_meet_exit(plan, chunk, state, d_state);
    memset(pairs, 0, (size_t)round_to_tile(chunk->rows) * sizeof(float));
    for (int64_t t = chunk->tokens - 1; t >= 0; t--) {
        const int64_t columns = ((t + 1) * n + LANES - 1) / LANES * LANES; /* what there is of d_score */
        if (t + 1 < chunk->tokens) entry += add_erases(plan, chunk, t + 1, true, columns, pairs);
        entry += add_erases(plan, chunk, t, false, columns, pairs);
        entry += add_reader(plan, chunk, chunk->erases + t, 1, 1, columns, pairs);
        chunk->d_log_decay[t] = entry + sum_of(pairs, t * n);
    }
    float exit = sum_of(chunk->exit, plan->key_width);
    for (int64_t t = 0; t < chunk->tokens; t++) {
        chunk->d_log_decay[t] += exit;
        for (int64_t at = t * n * pitch; at < (t + 1) * n * pitch; at += pitch)
            exit += dot_rows(plan->key_width, chunk->write + at, chunk->d_far + at);
    }
}
