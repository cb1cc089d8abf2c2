/* The load stage: read key, write key, query, value and gains of a row from the tensors that its traits name, and back from
 * their gradients to those of the tensors. One warp takes one row; a lane holds E neighbouring channels (32 E >= K or V). Gains
 * are those of src/maps/gain.h. Every switch here is the same for a whole launch, so a new combination of traits is no new
 * kernel. */
#ifndef DR_CUDA_ROWS_CUH
#define DR_CUDA_ROWS_CUH

#include "backends/cuda/device/lanes.cuh"
#include "backends/cuda/rows/rows.h"
#include "maps/gain.h"

/* ---- vectors of a warp ----------------------------------------------------------------------------------------------- */

static __device__ inline float dr_warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Sums over the warp of count values, a power of two: lane l has in x[0] the sum of x[l / (32 / count)]. */
template <int count> static __device__ inline void dr_warp_sums(float (&x)[count]) {
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll
    for (int half = count / 2, distance = 16; half > 0; half /= 2, distance /= 2)
        DR_UNROLL (i, half) {
            const float first = x[i], second = x[i + half]; /* loaded in the choice they would leave the registers */
            const float mine = lane & distance ? second : first, other = lane & distance ? first : second;
            x[i] = mine + __shfl_xor_sync(0xffffffffu, other, distance);
        }
#pragma unroll
    for (int distance = 16 / count; distance > 0; distance /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], distance);
}

/* The widest words that E elements are a multiple of, one load or store each. */
template <int bytes> struct dr_lane_word { typedef uint4 type; };
template <> struct dr_lane_word<2> { typedef unsigned short type; };
template <> struct dr_lane_word<4> { typedef unsigned type; };
template <> struct dr_lane_word<8> { typedef uint2 type; };

template <typename T, int E> union dr_lane_pack {
    typedef typename dr_lane_word<E *(int)sizeof(T)>::type word;
    enum { words = E * sizeof(T) / sizeof(word) };
    word packed[words];
    T element[E];
};

/* E elements of `from`, of which the first `left` exist, as floats; the others are 0. */
template <typename T, int E> static __device__ inline void dr_load_lane(const T *from, int left, bool aligned, float (&to)[E]) {
    typedef dr_lane_pack<T, E> pack;
    if (aligned && left >= E) {
        pack x;
        DR_UNROLL (i, pack::words) x.packed[i] = reinterpret_cast<const typename pack::word *>(from)[i];
        DR_UNROLL (e, E) to[e] = dr_to_float(x.element[e]);
        return;
    }
    DR_UNROLL (e, E) to[e] = e < left ? dr_to_float(from[e]) : 0.0f;
}

template <typename T, int E>
static __device__ inline void dr_store_lane(T *to, int left, bool aligned, const float (&from)[E]) {
    typedef dr_lane_pack<T, E> pack;
    if (aligned && left >= E) {
        pack x;
        DR_UNROLL (e, E) x.element[e] = dr_from_float<T>(from[e]);
        DR_UNROLL (i, pack::words) reinterpret_cast<typename pack::word *>(to)[i] = x.packed[i];
        return;
    }
    DR_UNROLL (e, E)
        if (e < left) to[e] = dr_from_float<T>(from[e]);
}

/* Channels of one lane of a row. */
template <int E> static __device__ inline int dr_lane_first() {
    return (int)(threadIdx.x % 32) * E;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

static __device__ inline int64_t dr_input_index(const dr_cuda_input &input, int64_t token, int step, int head) {
    return token * input.token + step * input.step + head * input.head;
}

/* One of the float inputs; 0 where the rule does not read it. */
static __device__ inline float dr_input_scalar(const dr_cuda_rows &rows, int i, int64_t token, int step, int head) {
    const dr_cuda_input &input = rows.input[i];
    return input.at ? ((const float *)input.at)[dr_input_index(input, token, step, head)] : 0.0f;
}

/* E channels from channel `first` on, of `size`. */
template <typename T, int E>
static __device__ inline void dr_input_vector(const dr_cuda_rows &rows, int i, int64_t token, int step, int head, int size,
                                              int first, float (&to)[E]) {
    const dr_cuda_input &input = rows.input[i];
    const T *from = (const T *)input.at + dr_input_index(input, token, step, head) + first;
    dr_load_lane<T, E>(from, size - first, rows.aligned, to);
}

/* A vector of a row, whether its heads are value heads or key heads; step: of those that have an axis of steps. */
template <typename T, int E>
static __device__ inline void dr_source_vector(const dr_cuda_rows &rows, int source, int64_t token, int step, int key_head,
                                               int value_head, int first, float (&to)[E]) {
    dr_input_vector<T, E>(rows, source, token, step, rows.input[source].per_value ? value_head : key_head, rows.key_size, first,
                          to);
}

static __device__ inline const dr_cuda_row &dr_rule_row(const dr_cuda_rows &rows, int step) {
    return rows.row[rows.step_axis ? 0 : step];
}

/* The step at which key, value and beta stand in their tensors. */
static __device__ inline int dr_step_index(const dr_cuda_rows &rows, int step) {
    return rows.step_axis ? step : 0;
}

static __device__ inline bool dr_row_reads(const dr_cuda_rows &rows, int step) {
    return dr_rule_row(rows, step).reads != DR_READS_NONE;
}

/* Whether the row reads the state before the decay of its token. */
static __device__ inline bool dr_row_undecayed(const dr_cuda_rows &rows, int step) {
    return step == 0 && rows.row[0].undecayed;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* A lane's part of the tensors that a row's keys are made of. Those that a rule does not use are never loaded. */
template <int E> struct dr_key_lanes { float read[E], other[E], write[E]; };

template <typename T, int E>
static __device__ inline void dr_load_key_lanes(const dr_cuda_rows &rows, const dr_cuda_row &row, int64_t token, int step,
                                                int key_head, int value_head, int first, dr_key_lanes<E> &x) {
    const int at = dr_step_index(rows, step);
    const auto load = [&](int source, float(&to)[E]) {
        dr_source_vector<T, E>(rows, source, token, at, key_head, value_head, first, to);
    };
    const bool made = row.reads == DR_READS_PRODUCT || row.reads == DR_READS_AFFINE;
    load(row.write, x.write);
    if (made || row.reads == DR_READS_TENSOR) load(row.read, x.read);
    if (made) load(row.read_other, x.other);
}

/* Channel e of r, w being a tensor where the row is tied; factor: of the other vector in a sum. */
template <int E>
static __device__ inline float dr_read_channel(const dr_cuda_row &row, const dr_key_lanes<E> &x, float factor, int e) {
    switch (row.reads) {
    case DR_READS_NONE:
        break;
    case DR_READS_TIED:
        return x.write[e];
    case DR_READS_TENSOR:
        return row.negative ? -x.read[e] : x.read[e];
    case DR_READS_PRODUCT:
        return x.other[e] * x.read[e];
    case DR_READS_AFFINE:
        return x.read[e] + factor * x.other[e];
    }
    return 0;
}

/* Read key r (0 where the row does not read) and write key w of a row. */
template <int E>
static __device__ inline void dr_make_keys(const dr_cuda_row &row, const dr_key_lanes<E> &x, float factor, float (&r)[E],
                                           float (&w)[E]) {
    DR_UNROLL (e, E) {
        r[e] = dr_read_channel<E>(row, x, factor, e);
        w[e] = row.writes == DR_WRITES_PRODUCT ? x.write[e] * r[e] : x.write[e];
    }
}

/* The factor of the other vector that a row reads; 0 where there is none. */
static __device__ inline float dr_read_factor(const dr_cuda_rows &rows, const dr_cuda_row &row, int64_t token, int value_head) {
    return row.reads == DR_READS_AFFINE ? dr_input_scalar(rows, row.read_factor, token, 0, value_head) : 0.0f;
}

/* Whether the gain of a row needs the inner product r . w (which is key . key for the exponential gain). */
static __device__ inline bool dr_row_needs_dot(const dr_cuda_rows &rows, int step) {
    return dr_rule_row(rows, step).gains == DR_GAINS_OF_DOT;
}

template <int E> static __device__ inline float dr_lane_dot(const float (&x)[E], const float (&y)[E]) {
    float sum = 0;
    DR_UNROLL (e, E) sum = fmaf(x[e], y[e], sum);
    return dr_warp_sum(sum);
}

static __device__ inline float dr_row_alpha(const dr_cuda_rows &rows, int64_t token, int value_head) {
    return rows.scalar_decay ? expf(dr_input_scalar(rows, DR_INPUT_LOG_DECAY, token, 0, value_head)) : 1.0f;
}

static __device__ inline dr_map_gain_inputs dr_row_gain_inputs(const dr_cuda_rows &rows, int64_t token, int step, int key_head,
                                                               int value_head, float dot) {
    dr_map_gain_inputs x;
    x.beta = dr_input_scalar(rows, DR_INPUT_BETA, token, dr_step_index(rows, step), value_head);
    x.erase_gain = dr_input_scalar(rows, DR_INPUT_ERASE_GAIN, token, 0, value_head);
    const bool discounted = rows.discounted && dr_rule_row(rows, step).normalized;
    x.alpha = discounted ? dr_row_alpha(rows, token, value_head) : 1.0f;
    x.dot = dot;
    x.key_dot = rows.key_dot ? rows.key_dot[token * rows.key_heads + key_head] : 0.0f;
    return x;
}

/* The gain c = base factor of a row; its value is c v, or factor v. */
typedef struct {
    float gain, base, factor;
} dr_row_gains;

static __device__ inline dr_row_gains dr_row_gain_of(const dr_cuda_rows &rows, int step, const dr_map_gain_inputs &x) {
    const dr_cuda_row &row = dr_rule_row(rows, step);
    dr_row_gains g;
    g.base = dr_map_base_gain(row.formula, rows.gain_eps, &x);
    g.factor = dr_map_normalizer(row.normalizer, &x);
    g.gain = g.base * g.factor;
    return g;
}

/* Value z of a row: E channels of the lane from channel `first` on. */
template <typename T, int E>
static __device__ inline void dr_row_value(const dr_cuda_rows &rows, int64_t token, int step, int value_head,
                                           const dr_row_gains &gains, int first, float (&z)[E]) {
    const dr_cuda_row &row = dr_rule_row(rows, step);
    if (row.values == DR_VALUES_NONE) {
        DR_UNROLL (e, E) z[e] = 0;
        return;
    }
    const dr_cuda_input &value = rows.input[DR_INPUT_VALUE], &gate = rows.input[DR_INPUT_WRITE_GATE];
    const int64_t at = dr_input_index(value, token, dr_step_index(rows, step), value_head) + first;
    const float factor = row.values == DR_VALUES_GAINED ? gains.gain : gains.factor;
    dr_load_lane<T, E>((const T *)value.at + at, rows.value_size - first, rows.aligned, z);
    if (row.values == DR_VALUES_GATED) {
        float w[E];
        dr_load_lane<T, E>((const T *)gate.at + dr_input_index(gate, token, 0, value_head) + first, rows.value_size - first,
                           rows.aligned, w);
        DR_UNROLL (e, E) z[e] *= w[e];
    }
    DR_UNROLL (e, E) z[e] *= factor;
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

/* A lane's part of the gradients of a token's vectors; of what the scan makes, whole. */
template <int E> struct dr_key_sums {
    float query[E], key[E], erase_key[E], feedback_key[E], free_read[E], free_write[E], rate[E], erase_gate[E], squashed[E],
        morrison[E];
};

template <int E> static __device__ inline void dr_add_to(dr_key_sums<E> &sums, int source, const float (&x)[E]) {
    const auto add = [&](int of, float(&to)[E]) {
        if (source != of) return;
        DR_UNROLL (e, E) to[e] += x[e];
    };
    add(DR_INPUT_QUERY, sums.query), add(DR_INPUT_KEY, sums.key), add(DR_INPUT_ERASE_KEY, sums.erase_key);
    add(DR_INPUT_FEEDBACK_KEY, sums.feedback_key), add(DR_INPUT_FREE_READ, sums.free_read);
    add(DR_INPUT_FREE_WRITE, sums.free_write), add(DR_INPUT_RATE, sums.rate), add(DR_INPUT_ERASE_GATE, sums.erase_gate);
    add(DR_SOURCE_SQUASHED, sums.squashed), add(DR_SOURCE_MORRISON, sums.morrison);
}

/* From the gradients of r and w to those of the vectors that they are made of. Returns the lane's part of the factor's. */
template <int E>
static __device__ inline float dr_keys_back(const dr_cuda_row &row, const dr_key_lanes<E> &x, float factor, const float (&r)[E],
                                            float (&d_r)[E], const float (&d_w)[E], dr_key_sums<E> &sums) {
    float d[E], d_other[E], d_factor = 0;
    const bool product = row.writes == DR_WRITES_PRODUCT;
    DR_UNROLL (e, E) {
        d[e] = product ? d_w[e] * r[e] : d_w[e];
        if (product) d_r[e] += d_w[e] * x.write[e];
    }
    dr_add_to<E>(sums, row.write, d);
    switch (row.reads) {
    case DR_READS_NONE:
        return 0;
    case DR_READS_TIED:
        dr_add_to<E>(sums, row.write, d_r);
        return 0;
    case DR_READS_TENSOR:
        DR_UNROLL (e, E) d[e] = row.negative ? -d_r[e] : d_r[e];
        dr_add_to<E>(sums, row.read, d);
        return 0;
    case DR_READS_PRODUCT:
        DR_UNROLL (e, E) d[e] = d_r[e] * x.other[e], d_other[e] = d_r[e] * x.read[e];
        break;
    case DR_READS_AFFINE:
        DR_UNROLL (e, E) d[e] = d_r[e], d_other[e] = factor * d_r[e], d_factor = fmaf(d_r[e], x.other[e], d_factor);
        break;
    }
    dr_add_to<E>(sums, row.read, d);
    dr_add_to<E>(sums, row.read_other, d_other);
    return d_factor;
}

#endif
