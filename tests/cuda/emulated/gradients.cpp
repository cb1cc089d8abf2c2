/* The kernel gradients of backends/cuda/backward/gradients.cu on the host (block.h), where there need be no GPU: a program that
 * prints a line for each case, and exits with 1 and a sentence at the first check that does not hold.
 *
 * The kernel has an instance for plain calls, in which questions to the plan are answered beforehand, beside the general one
 * that takes the same calls. Both do the same arithmetic in the same order, so that they must leave the same bits. The plans,
 * the layouts of memory and the choice of the instance are the project's own; tensors, and what earlier stages would have left,
 * are random numbers. Of every case:
 *
 *     the bits that the general instance leaves, copies and products made at once and threads in turn, are left by both with
 *     copies and products as late as may be, and by threads in a random order with rests
 *     inputs, and memory around the tensors, are as they were
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of a key that is flipped makes a difference, so that the comparison can fail
 *     gradients of queries, keys and values are near those by plain loops in double
 *
 * and of what wider heads come to instead, updates and keys, the same but for instances. */
#include "block.h"

#include "backends/cuda/backward/gradients.cu"
#include "call.h"

/* No call here has a decay of each channel. */
extern "C" dr_status dr_cuda_backward_keys_channel(const dr_cuda_backward_call *, dr_cuda_stream) {
    check(false, "the call has a decay of each channel");
    return DR_OK;
}

/* ---- a call ------------------------------------------------------------------------------------------------------------- */

enum { SIZE = 128 };

struct setting : call_memory {
    dr_cuda_backward_call call;
    int reading;
};

/* What prepare and the diagonal scan would have made: factors of rows, A (unit and lower) in two halves, write keys. */
static void fill_prepared(setting *s) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const float *beta = (const float *)plan.rows.input[DR_INPUT_BETA].at;
    const T *key = (const T *)plan.rows.input[DR_INPUT_KEY].at;
    for (int64_t block = 0; block < plan.blocks; block++) {
        const dr_row_block x = dr_row_block_of(plan, NULL, (unsigned)block);
        char *inverse = (char *)s->call.chunk.inverse + block * DR_HALVES_BYTES;
        for (int row = 0; row < 64; row++) {
            const bool there = row < x.rows;
            const float gain = there ? beta[(x.place.first + row) * HEADS + x.head] : 0;
            dr_put_factors(s->call.chunk.factors[block], row, {gain, there ? 1.0f : 0.0f, gain, there ? plan.rows.scale : 0});
            T *d_update = (T *)s->call.back.d_update + (block * 64 + row) * SIZE;
            if (there) fill_normal(s, d_update, (size_t)plan.rows.value_size, 1);
            for (int column = 0; column < 64; column++) {
                const float a = row == column ? 1 : there && column < row ? 0.1f * (float)dr_random_normal(&s->random) : 0;
                const unsigned at = dr_tile_at<T>(0, 64, row, column);
                const T high = __float2bfloat16_rn(a);
                *(T *)(inverse + at) = high;
                *(T *)(inverse + BOX + at) = __float2bfloat16_rn(a - __bfloat162float(high));
            }
        }
    }
    for (int64_t i = 0; i < plan.tokens * HEADS * SIZE && plan.rows.input[DR_SOURCE_SQUASHED].at; i++)
        ((T *)plan.rows.input[DR_SOURCE_SQUASHED].at)[i] =
            __float2bfloat16_rn(uniform(s, 0.6f, 1.5f) * __bfloat162float(key[i]));
}

/* Updates take decays of what is read from the factors of rows, too. */
static void fade_reads(setting *s) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const float *decays = (const float *)plan.rows.input[DR_INPUT_LOG_DECAY].at;
    for (int64_t block = 0; block < plan.blocks; block++) {
        const dr_row_block x = dr_row_block_of(plan, NULL, (unsigned)block);
        float sum = 0;
        for (int row = 0; row < x.rows; row++) {
            sum += decays[(x.place.first + row) * HEADS + x.head];
            s->call.chunk.factors[block].erase[row] *= expf(sum);
        }
    }
}

/* A call of two sequences without states, as engine.c makes it; apart: for updates and keys. */
static void make_call(setting *s, const char *rule, int tokens, bool full, int size = SIZE, bool apart = false) {
    dr_cuda_backward_call *call = &s->call;
    dr_cuda_chunk_plan *plan = &call->plan;
    make_plan(s, dr_rule_find(rule), tokens, size, plan, 2, true, size);
    if (full) plan->rows.row[0].formula = DR_GAIN_ONE;
    s->reading = reading_of(plan);
    if (apart) plan->warpgroups = false;
    lay_backward(s, call);
    fill_prepared(s);
    if (apart) fade_reads(s);
    const size_t rows = (size_t)plan->blocks * 64, states = (size_t)plan->blocks * SIZE;
    keep_earlier(s, call->back.d_exit, states * SIZE * sizeof(T));
    keep_earlier(s, call->back.d_update, rows * SIZE * sizeof(T));
}

/* ---- what an instance leaves -------------------------------------------------------------------------------------------- */

template <int reading> static dr_status launch_instance(const dr_cuda_backward_call *call, bool plain) {
    const gradients_call known = gradients_of(*call);
    check(gradients_plain(known, reading), "the call is not plain");
    if (plain) return launch<T, 2, 2, reading>(call, {});
    return dr_cuda_launch("gradients", gradients<T, 2, 2, reading, false>, {2}, chunk_shape<2, 2, reading>::threads,
                          SHARED_BYTES, dr_cuda_stream{}, known);
}

static result run(setting *s, bool plain, unsigned seed, bool late, unsigned char before) {
    return run_kernel(s, seed, late, before, [&] {
        return s->reading == READS_WRITTEN ? launch_instance<READS_WRITTEN>(&s->call, plain)
                                           : launch_instance<READS_OTHER>(&s->call, plain);
    });
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

/* The gradients of the queries, keys and values of a chunk by the equations of backward.h, in double. */
static void add_chunk_distances(const setting *s, int64_t block, distance *query, distance *key, distance *value) {
    const dr_cuda_backward_call *call = &s->call;
    const dr_cuda_rows &rows = call->plan.rows;
    const dr_row_block x = dr_row_block_of(call->plan, NULL, (unsigned)block);
    const int count = x.rows, size = rows.key_size;
    const bool other = s->reading == READS_OTHER;
    const auto place = [&](int row, int column) { return ((x.place.first + row) * HEADS + x.head) * size + column; };
    const auto state = [&](const void *tensor, int v, int k) { return element(tensor, (block * SIZE + v) * SIZE + k); };
    const auto d_update = [&](int row, int v) { return element(call->back.d_update, (block * 64 + row) * SIZE + v); };
    const auto of_row = [&](dr_input input, int row) {
        return (double)((const float *)rows.input[input].at)[(x.place.first + row) * HEADS + x.head];
    };
    const void *queries = rows.input[DR_INPUT_QUERY].at, *keys = rows.input[DR_INPUT_KEY].at,
               *writes = other ? rows.input[DR_SOURCE_SQUASHED].at : keys;
    double decay[64], beta[64];
    static double y[64][SIZE], u[64][SIZE], score[64][64], erase[64][64];
    for (int i = 0; i < count; i++) {
        decay[i] = (i ? decay[i - 1] : 1) * exp(of_row(DR_INPUT_LOG_DECAY, i));
        beta[i] = of_row(DR_INPUT_BETA, i);
        for (int v = 0; v < size; v++) {
            double read = 0;
            for (int k = 0; k < size; k++) read += element(keys, place(i, k)) * state(call->saved, v, k);
            y[i][v] = beta[i] * (element(rows.input[DR_INPUT_VALUE].at, place(i, v)) - decay[i] * read);
            u[i][v] = score[i][v % 64] = erase[i][v % 64] = 0;
        }
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j <= i; j++) {
            const char *tile = (const char *)call->chunk.inverse + block * DR_HALVES_BYTES + dr_tile_at<T>(0, 64, i, j);
            for (int v = 0; v < size; v++) u[i][v] += (element(tile, 0) + element(tile + BOX, 0)) * y[j][v];
        }
    for (int i = 0; i < count; i++)
        for (int j = 0; j <= i; j++)
            for (int v = 0; v < size; v++) {
                score[i][j] += rows.scale * decay[i] / decay[j] * element(call->d_o, place(i, v)) * u[j][v];
                if (j < i) erase[i][j] += beta[i] * decay[i] / decay[j] * d_update(i, v) * u[j][v];
            }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < size; k++) {
            double of_query = 0, of_read = 0, of_write = 0;
            for (int v = 0; v < size; v++) {
                of_query += rows.scale * decay[i] * state(call->saved, v, k) * element(call->d_o, place(i, v));
                of_read -= beta[i] * decay[i] * state(call->saved, v, k) * d_update(i, v);
                of_write += decay[count - 1] / decay[i] * state(call->back.d_exit, v, k) * u[i][v];
            }
            for (int j = 0; j <= i; j++) {
                of_query += score[i][j] * element(writes, place(j, k));
                of_read -= erase[i][j] * element(writes, place(j, k));
            }
            for (int j = i; j < count; j++)
                of_write += score[j][i] * element(queries, place(j, k)) - erase[j][i] * element(keys, place(j, k));
            const auto gradient = [&](dr_input input) { return element(rows.input[input].gradient, place(i, k)); };
            add_distance(query, gradient(DR_INPUT_QUERY), of_query);
            add_distance(key, gradient(DR_INPUT_KEY), other ? of_read : of_read + of_write);
            add_distance(value, gradient(DR_INPUT_VALUE), beta[i] * d_update(i, k));
        }
}

static void check_against_loops(const setting *s) {
    distance query = {0, 0}, key = {0, 0}, value = {0, 0};
    for (int64_t block = 0; block < s->call.plan.blocks; block++) add_chunk_distances(s, block, &query, &key, &value);
    check_near(query, "gradients of queries are not those of the plain loops");
    check_near(key, "gradients of keys are not those of the plain loops");
    check_near(value, "gradients of values are not those of the plain loops");
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

/* full: rows are taken for such as take full steps, of which U goes into the scores in two parts. */
static void check_rule(const char *rule, int reading, int tokens, bool full = false, int size = SIZE) {
    check_case(rule, tokens, size, [&] {
        setting s = {};
        make_call(&s, rule, tokens, full, size);
        check(s.reading == reading && dr_cuda_rows_step_fully(&s.call.plan.rows) == full, "the rows are not the case's");
        check_instances([&](bool plain, auto... how) { return run(&s, plain, how...); }, [&] { check_against_loops(&s); },
                        (uint16_t *)s.call.plan.rows.input[DR_INPUT_KEY].at + (tokens - 1) * HEADS * size);
    });
}

/* Updates and keys in the place of gradients. */
static void check_apart(const char *rule, int tokens, bool full) {
    check_case(rule, tokens, SIZE, [&] {
        setting s = {};
        make_call(&s, rule, tokens, full, SIZE, true);
        check(!dr_cuda_backward_fuses(&s.call.plan), "one kernel makes all gradients");
        const auto run_both = [&](unsigned seed, bool late, unsigned char before) {
            return run_kernel(&s, seed, late, before, [&] {
                check(dr_cuda_backward_updates(&s.call, {}) == DR_OK, "updates fail");
                return dr_cuda_backward_keys(&s.call, {});
            });
        };
        check_orders(
            run_both, [&] { check_against_loops(&s); },
            (uint16_t *)s.call.plan.rows.input[DR_INPUT_KEY].at + (tokens - 1) * HEADS * SIZE);
    });
}

int main() {
    static const int tokens[] = {150, 128, 209};
    for (int count : tokens) {
        check_rule("gdn", READS_WRITTEN, count);
        check_rule("pgdn", READS_OTHER, count);
    }
    check_rule("gdn", READS_WRITTEN, 400);
    check_rule("gdn", READS_WRITTEN, 150, true);
    for (bool full : {false, true}) check_apart("gdn", 150, full);
    check_rule("gdn", READS_WRITTEN, 150, false, 120);
    return 0;
}
