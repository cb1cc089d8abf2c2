/* make_*, lead_* (made.h): half a warp takes a vector of a token, and whatever value heads make of it. All cost little more
 * than reading the vectors once and writing what comes of them, as long as few instructions go to finding them: vectors are
 * counted in 32 bits (plan.c bounds them). */
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/diagonal/diagonal.h"
#include "backends/cuda/engine/made.h"
#include "backends/cuda/rows/rows.cuh"

enum { MADE_THREADS = 256, MADE_LANES = 16, MADE_VECTORS = MADE_THREADS / MADE_LANES, MADE_CHANNELS = 8 };

/* Rows that half a warp makes gains of. It asks for all their vectors before it waits for one: there is little else to do. */
enum { MADE_ROWS = 4 };

/* What half a warp takes: a row of a token and a head of so many. */
typedef struct {
    int64_t token;
    int step, head;
    bool there; /* else it is the first once more, of which nothing is stored */
} made_row;

/* each: rows that half a warp takes, one behind the other, of which this is the first. */
static __device__ inline made_row find_row(unsigned heads, unsigned steps, int64_t tokens, unsigned each = 1) {
    const unsigned index = (blockIdx.x * MADE_VECTORS + threadIdx.x / MADE_LANES) * each;
    const bool there = index < (uint64_t)tokens * steps * heads;
    const unsigned of = there ? index : 0, row = of / heads, token = steps == 1 ? row : row / steps;
    return {token, (int)(row - token * steps), (int)(of - row * heads), there};
}

/* The row behind x; behind the last one it is x once more, of which nothing is stored. */
static __device__ inline made_row row_behind(const made_row &x, int heads, int steps, int64_t tokens) {
    made_row next = {x.token, x.step, x.head + 1, x.there};
    if (next.head == heads) next.head = 0, next.step++;
    if (next.step == steps) next.step = 0, next.token++;
    if (x.there && next.token < tokens) return next;
    next = x, next.there = false;
    return next;
}

static __device__ inline int first_channel() {
    return (int)(threadIdx.x % MADE_LANES) * MADE_CHANNELS;
}

/* Over the half of the warp, of which all lanes are there. */
static __device__ inline float sum_of_half(float x) {
#pragma unroll
    for (int step = MADE_LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Likewise of MADE_ROWS numbers, of which the lane has the sum of x[lane / MADE_ROWS]. */
static __device__ inline float sums_of_half(float (&x)[MADE_ROWS]) {
    static_assert(MADE_ROWS * MADE_ROWS == MADE_LANES, "as many lanes a row as rows");
    const int lane = (int)(threadIdx.x % MADE_LANES);
#pragma unroll
    for (int half = MADE_ROWS / 2, step = MADE_LANES / 2; half > 0; half /= 2, step /= 2)
        DR_UNROLL (i, half) {
            const float first = x[i], second = x[i + half];
            x[i] = (lane & step ? second : first) + __shfl_xor_sync(0xffffffffu, lane & step ? first : second, step);
        }
#pragma unroll
    for (int step = MADE_ROWS / 2; step > 0; step /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
    return x[0];
}

/* From channel `first` on, E of `size` channels of a head of a tensor that lies as an input does. */
typedef struct {
    int size, first;
    bool aligned;
} made_part;

template <typename T, int E>
static __device__ inline void load_part(const made_part &part, const void *at, const dr_cuda_input &input, const made_row &x,
                                        int head, float (&to)[E]) {
    const T *from = (const T *)at + dr_input_index(input, x.token, x.step, head) + part.first;
    dr_load_lane<T, E>(from, part.size - part.first, part.aligned, to);
}

/* adds: to what stands there. at NULL: it is not wanted. */
template <typename T, int E>
static __device__ inline void store_part(const made_part &part, void *at, const dr_cuda_input &input, const made_row &x,
                                         int head, bool adds, float (&from)[E]) {
    if (!at) return;
    T *to = (T *)at + dr_input_index(input, x.token, x.step, head) + part.first;
    if (adds) {
        float sum[E];
        dr_load_lane<T, E>(to, part.size - part.first, part.aligned, sum);
        DR_UNROLL (e, E) from[e] += sum[e];
    }
    dr_store_lane<T, E>(to, part.size - part.first, part.aligned, from);
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

static inline __host__ __device__ int heads_of(const dr_cuda_rows &rows, int source) {
    return rows.input[source].per_value ? rows.value_heads : rows.key_heads;
}

/* rows: with what is made in the place of inputs; from: with the inputs. Value heads of a key head share the other factor. */
template <typename T, int E, bool lead>
static __global__ void __launch_bounds__(MADE_THREADS)
    products(const __grid_constant__ dr_cuda_rows rows, const __grid_constant__ dr_cuda_rows from, int64_t tokens,
             dr_row_product product) {
    const dr_cuda_input &made = rows.input[product.of], &of = from.input[product.of], &by = from.input[product.by];
    const int heads = heads_of(rows, product.by), group = heads_of(rows, product.of) / heads;
    const float sign = product.negative ? -1.0f : 1.0f;
    const made_row x = find_row((unsigned)heads, 1, tokens);
    const int size = product.of == DR_INPUT_VALUE ? rows.value_size : rows.key_size;
    made_part part = {x.there ? size : 0, first_channel(), rows.aligned};
    for (; part.first < part.size; part.first += MADE_LANES * E) {
        float other[E], sum[E] = {};
        load_part<T, E>(part, by.at, by, x, x.head, other);
        for (int i = 0; i < group; i++) {
            const int head = x.head * group + i;
            float own[E], d[E];
            load_part<T, E>(part, of.at, of, x, head, own);
            if (lead) load_part<T, E>(part, made.gradient, made, x, head, d);
            DR_UNROLL (e, E) {
                const float factor = sign * (lead ? d[e] : own[e]);
                sum[e] = fmaf(factor, own[e], sum[e]);
                d[e] = factor * other[e];
            }
            store_part<T, E>(part, lead ? of.gradient : (void *)made.at, of, x, head, false, d);
        }
        if (lead) store_part<T, E>(part, by.gradient, by, x, x.head, product.adds, sum);
    }
}

/* ---- queries ------------------------------------------------------------------------------------------------------------- */

template <typename T, int E, bool lead>
static __global__ void __launch_bounds__(MADE_THREADS)
    queries(const __grid_constant__ dr_cuda_rows rows, const __grid_constant__ dr_cuda_rows from, int64_t tokens,
            float *d_correction) {
    const dr_cuda_input &made = rows.input[rows.asked], &query = from.input[rows.asked], &key = from.input[rows.ask_other];
    const made_row x = find_row((unsigned)rows.key_heads, 1, tokens);
    const float factor = dr_input_scalar(rows, rows.ask_factor, 0, 0, x.head);
    made_part part = {x.there ? rows.key_size : 0, first_channel(), rows.aligned};
    float dot = 0;
    for (; part.first < part.size; part.first += MADE_LANES * E) {
        float a[E], b[E];
        load_part<T, E>(part, key.at, key, x, x.head, b);
        load_part<T, E>(part, lead ? made.gradient : query.at, query, x, x.head, a);
        DR_UNROLL (e, E) {
            dot = fmaf(a[e], b[e], dot);
            a[e] = lead ? -factor * a[e] : fmaf(-factor, b[e], a[e]);
        }
        store_part<T, E>(part, lead ? key.gradient : (void *)made.at, lead ? key : query, x, x.head, lead, a);
    }
    if (!lead) return;
    dot = sum_of_half(dot);
    if (x.there && threadIdx.x % MADE_LANES == 0) d_correction[x.token * rows.key_heads + x.head] = -dot;
}

/* ---- sums ---------------------------------------------------------------------------------------------------------------- */

/* Key + lambda query, of heads that have a key head each. */
template <typename T, int E, bool lead>
static __global__ void __launch_bounds__(MADE_THREADS)
    sums(const __grid_constant__ dr_cuda_rows rows, const __grid_constant__ dr_cuda_rows from, int64_t tokens) {
    const dr_cuda_input &made = rows.input[DR_SOURCE_SUM], &key = from.input[DR_INPUT_KEY], &query = from.input[DR_INPUT_QUERY],
                        &lambda = from.input[DR_INPUT_LAMBDA];
    const made_row x = find_row((unsigned)rows.key_heads, 1, tokens);
    const int64_t at = dr_input_index(lambda, x.token, 0, x.head);
    const float factor = ((const float *)lambda.at)[at];
    made_part part = {x.there ? rows.key_size : 0, first_channel(), rows.aligned};
    float dot = 0;
    for (; part.first < part.size; part.first += MADE_LANES * E) {
        float a[E], b[E];
        load_part<T, E>(part, lead ? made.gradient : key.at, lead ? made : key, x, x.head, a);
        load_part<T, E>(part, query.at, query, x, x.head, b);
        DR_UNROLL (e, E) {
            dot = fmaf(a[e], b[e], dot);
            b[e] = factor * (lead ? a[e] : b[e]);
            if (!lead) a[e] += b[e];
        }
        store_part<T, E>(part, lead ? key.gradient : (void *)made.at, lead ? key : made, x, x.head, lead, a);
        if (lead) store_part<T, E>(part, query.gradient, query, x, x.head, true, b);
    }
    if (!lead || !lambda.gradient) return;
    dot = sum_of_half(dot);
    if (x.there && threadIdx.x % MADE_LANES == 0) ((float *)lambda.gradient)[at] = dot;
}

/* ---- gains --------------------------------------------------------------------------------------------------------------- */

/* What r and w of a row have to do with each other, of a few channels at a time. */
template <typename T, int E>
static __device__ inline void load_keys(const dr_cuda_rows &rows, const made_row &x, const made_part &part, float (&r)[E],
                                        float (&w)[E]) {
    const dr_cuda_row &row = rows.row[0];
    const dr_cuda_input &read = rows.input[row.read], &write = rows.input[row.write];
    load_part<T, E>(part, write.at, write, x, x.head, w);
    load_part<T, E>(part, read.at, read, x, x.head, r);
    DR_UNROLL (e, E) r[e] = row.negative ? -r[e] : r[e];
}

/* Of the gains of a row: the gradients of their inputs, and what r . w gets. */
static __device__ inline float lead_inputs(const dr_cuda_rows &rows, const made_row &x, float dot) {
    const dr_cuda_input &gain = rows.input[DR_SOURCE_GAIN], &beta = rows.input[DR_INPUT_BETA];
    float d_dot = 0;
    for (int i = (int)(threadIdx.x % MADE_LANES); x.there && i < rows.group; i += MADE_LANES) {
        const int head = x.head * rows.group + i;
        const dr_map_gain_inputs inputs = dr_row_gain_inputs(rows, x.token, x.step, x.head, head, dot);
        const float made = dr_map_base_gain(rows.gains_from, rows.gain_eps, &inputs);
        const float d_gain = ((const float *)gain.gradient)[dr_input_index(gain, x.token, x.step, head)];
        dr_map_gain_inputs d = {};
        dr_map_base_gain_backward(rows.gains_from, &inputs, made, d_gain, &d);
        if (beta.at && beta.gradient) ((float *)beta.gradient)[dr_input_index(beta, x.token, x.step, head)] = d.beta;
        d_dot += d.dot;
    }
    return sum_of_half(d_dot);
}

/* Of each row, what a lane's whole words have of r . w: kept as they come, since floats would be twice the registers. */
template <typename T, int E>
static __device__ inline void add_dots(const dr_cuda_rows &rows, const made_row (&x)[MADE_ROWS], int channel,
                                       float (&dot)[MADE_ROWS]) {
    typedef dr_lane_pack<T, E> pack;
    const dr_cuda_row &row = rows.row[0];
    const bool tied = row.reads == DR_READS_TIED;
    pack r[MADE_ROWS], w[MADE_ROWS];
    const auto load = [&](const dr_cuda_input &input, pack(&to)[MADE_ROWS]) {
        DR_UNROLL (i, MADE_ROWS) {
            const T *from = (const T *)input.at + dr_input_index(input, x[i].token, x[i].step, x[i].head) + channel;
            DR_UNROLL (k, pack::words) to[i].packed[k] = ((const typename pack::word *)from)[k];
        }
    };
    load(rows.input[row.write], w);
    if (!tied) load(rows.input[row.read], r);
    DR_UNROLL (i, MADE_ROWS)
        DR_UNROLL (e, E) {
            const float own = dr_to_float(w[i].element[e]);
            dot[i] = fmaf(tied ? own : dr_to_float(r[i].element[e]), own, dot[i]);
        }
}

/* The same where vectors do not begin at whole words, or end within one. */
template <typename T, int E> static __device__ inline float dot_of(const dr_cuda_rows &rows, const made_row &x) {
    float r[E], w[E], dot = 0;
    for (made_part part = {rows.key_size, first_channel(), rows.aligned}; part.first < part.size;
         part.first += MADE_LANES * E) {
        load_keys<T, E>(rows, x, part, r, w);
        DR_UNROLL (e, E) dot = fmaf(r[e], w[e], dot);
    }
    return dot;
}

/* Lanes of half a warp share the value heads of its rows. */
template <typename T, int E>
static __global__ void __launch_bounds__(MADE_THREADS) make_gains(const __grid_constant__ dr_cuda_rows rows, int64_t tokens) {
    const dr_cuda_input &gain = rows.input[DR_SOURCE_GAIN];
    const int own = (int)(threadIdx.x % MADE_LANES) / MADE_ROWS, first = (int)(threadIdx.x % MADE_ROWS);
    made_row x[MADE_ROWS];
    x[0] = find_row((unsigned)rows.key_heads, (unsigned)rows.steps, tokens, MADE_ROWS);
    DR_UNROLL (i, MADE_ROWS - 1) x[i + 1] = row_behind(x[i], rows.key_heads, rows.steps, tokens);
    made_row mine = x[0];
    DR_UNROLL (i, MADE_ROWS)
        if (own == i) mine = x[i];
    const int head = mine.head * rows.group + (first < rows.group ? first : 0);
    dr_map_gain_inputs inputs = dr_row_gain_inputs(rows, mine.token, mine.step, mine.head, head, 0); /* come with the vectors */
    float sum = 0;
    if (rows.aligned && rows.key_size % E == 0) {
        float dot[MADE_ROWS] = {};
        for (int channel = first_channel(); channel < rows.key_size; channel += MADE_LANES * E)
            add_dots<T, E>(rows, x, channel, dot);
        sum = sums_of_half(dot);
        if (rows.row[0].negative) sum = -sum;
    } else {
        made_row at = x[0];
#pragma unroll 1
        for (int i = 0; i < MADE_ROWS; i++, at = row_behind(at, rows.key_heads, rows.steps, tokens)) {
            const float dot = sum_of_half(dot_of<T, E>(rows, at));
            if (i == own) sum = dot;
        }
    }
    for (int i = first; mine.there && i < rows.group; i += MADE_ROWS) {
        const int head = mine.head * rows.group + i;
        if (i != first) inputs = dr_row_gain_inputs(rows, mine.token, mine.step, mine.head, head, 0);
        inputs.dot = sum;
        ((float *)gain.at)[dr_input_index(gain, mine.token, mine.step, head)] =
            dr_map_base_gain(rows.gains_from, rows.gain_eps, &inputs);
    }
}

/* d_dots: where another kernel leads on what r . w gets, else NULL. */
template <typename T, int E>
static __global__ void __launch_bounds__(MADE_THREADS)
    lead_gains(const __grid_constant__ dr_cuda_rows rows, int64_t tokens, float *d_dots) {
    const dr_cuda_row &row = rows.row[0];
    const made_row x = find_row((unsigned)rows.key_heads, (unsigned)rows.steps, tokens);
    made_part part = {x.there ? rows.key_size : 0, first_channel(), rows.aligned};
    float r[E], w[E], dot = 0;
    for (; part.first < part.size; part.first += MADE_LANES * E) {
        load_keys<T, E>(rows, x, part, r, w);
        DR_UNROLL (e, E) dot = fmaf(r[e], w[e], dot);
    }
    dot = sum_of_half(dot);
    const float d_dot = lead_inputs(rows, x, dot);
    if (d_dots) {
        if (x.there && threadIdx.x % MADE_LANES == 0) d_dots[x.token * rows.key_heads + x.head] = d_dot;
        return;
    }
    const dr_cuda_input &read = rows.input[row.read], &write = rows.input[row.write];
    const bool tied = row.reads == DR_READS_TIED;
    for (part.first = first_channel(); part.first < part.size; part.first += MADE_LANES * E) {
        load_keys<T, E>(rows, x, part, r, w);
        DR_UNROLL (e, E) {
            const float of_read = d_dot * w[e];
            w[e] = tied ? of_read + d_dot * r[e] : d_dot * r[e];
            r[e] = row.negative ? -of_read : of_read;
        }
        if (!tied) store_part<T, E>(part, read.gradient, read, x, x.head, true, r);
        store_part<T, E>(part, write.gradient, write, x, x.head, true, w);
    }
}

/* ---- launches ------------------------------------------------------------------------------------------------------------ */

/* Puts a tensor in the place of an input. */
static void replace(bool backward, dr_dtype storage, int64_t tokens, dr_cuda_rows *rows, int source, dr_arena *arena) {
    dr_cuda_input *input = &rows->input[source];
    const size_t bytes = (size_t)(tokens * input->token) * dr_dtype_size(storage);
    input->at = dr_arena_take(arena, bytes);
    if (!backward) return;
    void *const own = dr_arena_take(arena, bytes);
    if (!input->gradient) input->gradient = own;
}

void dr_cuda_made_lay(bool backward, dr_dtype storage, int64_t tokens, dr_cuda_rows *rows, dr_arena *arena,
                      dr_cuda_made *made) {
    *made = {*rows, tokens, NULL, NULL};
    if (rows->gains_made) {
        dr_cuda_input *gain = &rows->input[DR_SOURCE_GAIN];
        gain->at = dr_arena_take(arena, (size_t)(tokens * gain->token) * sizeof(float));
        gain->gradient = backward ? (void *)gain->at : NULL;
    }
    for (int i = 0; i < rows->products; i++) replace(backward, storage, tokens, rows, rows->product[i].of, arena);
    if (rows->sum_made) replace(backward, storage, tokens, rows, DR_SOURCE_SUM, arena);
    if (!rows->query_made) return;
    replace(backward, storage, tokens, rows, rows->asked, arena);
    if (backward) made->d_correction = (float *)dr_arena_take(arena, (size_t)(tokens * rows->key_heads) * sizeof(float));
}

static int64_t blocks_of(int64_t vectors) {
    return (vectors + MADE_VECTORS - 1) / MADE_VECTORS;
}

/* A kernel over the vectors of so many heads a token, in the storage type T. */
#define MADE_LAUNCH(kernel, heads, ...)                                                                                        \
    do {                                                                                                                       \
        DR_CUDA_CHUNK_STORAGE(                                                                                                 \
            storage, T,                                                                                                        \
            DR_TRY(dr_cuda_launch(lead ? "lead_" #kernel : "make_" #kernel, kernel<T, MADE_CHANNELS, lead>,                    \
                                  {blocks_of(made->tokens * (heads))}, MADE_THREADS, 0, stream, *rows, __VA_ARGS__)))          \
    } while (0)

template <bool lead>
static dr_status launch_products(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, dr_cuda_stream stream) {
    for (int i = 0; i < rows->products; i++)
        MADE_LAUNCH(products, heads_of(*rows, rows->product[i].by), made->from, made->tokens, rows->product[i]);
    return DR_OK;
}

template <bool lead>
static dr_status launch_queries(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, dr_cuda_stream stream) {
    if (rows->query_made) MADE_LAUNCH(queries, rows->key_heads, made->from, made->tokens, made->d_correction);
    return DR_OK;
}

template <bool lead>
static dr_status launch_sums(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, dr_cuda_stream stream) {
    if (rows->sum_made) MADE_LAUNCH(sums, rows->key_heads, made->from, made->tokens);
    return DR_OK;
}

static dr_status launch_make_gains(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage,
                                   dr_cuda_stream stream) {
    if (!rows->gains_made) return DR_OK;
    const int64_t halves = (made->tokens * rows->steps * rows->key_heads + MADE_ROWS - 1) / MADE_ROWS;
    DR_CUDA_CHUNK_STORAGE(storage, T,
                          return dr_cuda_launch("make_gains", make_gains<T, MADE_CHANNELS>, {blocks_of(halves)}, MADE_THREADS,
                                                0, stream, *rows, made->tokens));
}

static dr_status launch_lead_gains(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage,
                                   dr_cuda_stream stream) {
    if (!rows->gains_made) return DR_OK;
    const int64_t halves = made->tokens * rows->steps * rows->key_heads;
    DR_CUDA_CHUNK_STORAGE(storage, T,
                          return dr_cuda_launch("lead_gains", lead_gains<T, MADE_CHANNELS>, {blocks_of(halves)}, MADE_THREADS,
                                                0, stream, *rows, made->tokens, made->d_dot));
}

dr_status dr_cuda_made_make(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, bool backward,
                            dr_cuda_stream stream) {
    DR_TRY(launch_products<false>(made, rows, storage, stream));
    DR_TRY(launch_sums<false>(made, rows, storage, stream));
    DR_TRY(launch_queries<false>(made, rows, storage, stream));
    return backward ? DR_OK : launch_make_gains(made, rows, storage, stream);
}

dr_status dr_cuda_made_lead(const dr_cuda_made *made, const dr_cuda_rows *rows, dr_dtype storage, dr_cuda_stream stream) {
    DR_TRY(launch_lead_gains(made, rows, storage, stream));
    DR_TRY(launch_products<true>(made, rows, storage, stream));
    DR_TRY(launch_queries<true>(made, rows, storage, stream)); /* before what others have of the query's gradient */
    DR_TRY(launch_sums<true>(made, rows, storage, stream));
    const dr_cuda_input *correction = &rows->input[rows->ask_factor];
    if (!rows->query_made || !correction->gradient) return DR_OK;
    return dr_cuda_sum_rows(made->d_correction, made->tokens, rows->key_heads, NULL, (float *)correction->gradient, stream);
}
