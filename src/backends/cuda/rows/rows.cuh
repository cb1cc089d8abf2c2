/* The load stage: read key, write key, query, value and gains of a row from the inputs, and back from their gradients to those
 * of the inputs. One warp takes one row; a lane holds E neighbouring channels (32 E >= K or V). The maps are those of src/maps
 * over lanes of one float, and every switch in them is the same for a whole launch, so a new combination of options is no new
 * kernel. */
#ifndef DR_CUDA_ROWS_CUH
#define DR_CUDA_ROWS_CUH

#include "backends/cuda/device/lanes.cuh"
#include "backends/cuda/rows/leads.h"
#include "backends/cuda/rows/rows.h"
#include "maps/gain.h"
#include "maps/keys.h"

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
#pragma unroll
        for (int i = 0; i < half; i++) {
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
#pragma unroll
        for (int i = 0; i < pack::words; i++) x.packed[i] = reinterpret_cast<const typename pack::word *>(from)[i];
#pragma unroll
        for (int e = 0; e < E; e++) to[e] = dr_to_float(x.element[e]);
        return;
    }
#pragma unroll
    for (int e = 0; e < E; e++) to[e] = e < left ? dr_to_float(from[e]) : 0.0f;
}

template <typename T, int E>
static __device__ inline void dr_store_lane(T *to, int left, bool aligned, const float (&from)[E]) {
    typedef dr_lane_pack<T, E> pack;
    if (aligned && left >= E) {
        pack x;
#pragma unroll
        for (int e = 0; e < E; e++) x.element[e] = dr_from_float<T>(from[e]);
#pragma unroll
        for (int i = 0; i < pack::words; i++) reinterpret_cast<typename pack::word *>(to)[i] = x.packed[i];
        return;
    }
#pragma unroll
    for (int e = 0; e < E; e++)
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
static __device__ inline float dr_input_scalar(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head) {
    const dr_cuda_input &input = rows.input[i];
    return input.at ? ((const float *)input.at)[dr_input_index(input, token, step, head)] : 0.0f;
}

/* E channels from channel `first` on, of `size`. */
template <typename T, int E>
static __device__ inline void dr_input_vector(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head, int size,
                                              int first, float (&to)[E]) {
    const dr_cuda_input &input = rows.input[i];
    const T *from = (const T *)input.at + dr_input_index(input, token, step, head) + first;
    dr_load_lane<T, E>(from, size - first, rows.aligned, to);
}

/* A vector that the scan made: [tokens, H, K]. */
template <typename T, int E>
static __device__ inline void dr_scan_vector(const dr_cuda_rows &rows, const void *made, int64_t token, int key_head, int first,
                                             float (&to)[E]) {
    const T *from = (const T *)made + (token * rows.key_heads + key_head) * rows.key_size + first;
    dr_load_lane<T, E>(from, rows.key_size - first, rows.aligned, to);
}

static __device__ inline const dr_row &dr_rule_row(const dr_cuda_rows &rows, int step) {
    return rows.row[rows.step_axis ? 0 : step];
}

/* The step at which key, value and beta stand in their tensors. */
static __device__ inline int dr_step_index(const dr_cuda_rows &rows, int step) {
    return rows.step_axis ? step : 0;
}

static __device__ inline bool dr_row_reads(const dr_cuda_rows &rows, int step) {
    return dr_rule_row(rows, step).read != DR_READ_NONE;
}

/* Whether the row reads the state before the decay of its token. */
static __device__ inline bool dr_row_undecayed(const dr_cuda_rows &rows, int step) {
    return step == 0 && rows.row[0].undecayed;
}

/* ---- diagonal scan --------------------------------------------------------------------------------------------------- */

static __host__ __device__ inline bool dr_rows_write(const dr_cuda_rows &rows, dr_write write) {
    const int count = rows.step_axis ? 1 : rows.steps;
    for (int i = 0; i < count; i++)
        if (rows.row[i].write == write) return true;
    return false;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* The tensors that a row's keys need, a lane's part of them. The maps take them by address, so each has its own array; those
 * that a rule does not use are never loaded and take no register once the switches are resolved. */
template <int E> struct dr_key_lanes {
    float query[E], key[E], erase_key[E], feedback_key[E], free_read[E], free_write[E], rate[E], erase_gate[E], made[E];
};

template <int E> static __device__ inline dr_map_keys dr_key_pointers(dr_key_lanes<E> &x) {
    dr_map_keys keys = {};
    keys.query = x.query;
    keys.key = x.key;
    keys.erase_key = x.erase_key;
    keys.feedback_key = x.feedback_key;
    keys.free_read = x.free_read;
    keys.free_write = x.free_write;
    keys.rate = x.rate;
    keys.erase_gate = x.erase_gate;
    keys.morrison = x.made;
    return keys;
}

/* A preconditioned key comes whole from the scan, like a Sherman-Morrison key. */
static __device__ inline dr_write dr_lane_write(dr_write write) {
    return write == DR_WRITE_PRECONDITIONED ? DR_WRITE_SHERMAN_MORRISON : write;
}

template <typename T, int E>
static __device__ inline void dr_load_key_lanes(const dr_cuda_rows &rows, const dr_row &row, int64_t token, int step,
                                                int key_head, int value_head, int first, dr_key_lanes<E> &x) {
    const int K = rows.key_size, at = dr_step_index(rows, step);
    const dr_read read = row.read;
    const dr_write write = row.write;
    if (read == DR_READ_KEY || read == DR_READ_GATED_KEY || read == DR_READ_KEY_PLUS_QUERY || write == DR_WRITE_KEY)
        dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, at, key_head, K, first, x.key);
    if (read == DR_READ_GATED_KEY)
        dr_input_vector<T, E>(rows, DR_INPUT_ERASE_GATE, token, 0, value_head, K, first, x.erase_gate);
    if (read == DR_READ_KEY_PLUS_QUERY) dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, key_head, K, first, x.query);
    if (read == DR_READ_ERASE_KEY || write == DR_WRITE_ERASE_KEY)
        dr_input_vector<T, E>(rows, DR_INPUT_ERASE_KEY, token, 0, key_head, K, first, x.erase_key);
    if (read == DR_READ_FEEDBACK)
        dr_input_vector<T, E>(rows, DR_INPUT_FEEDBACK_KEY, token, 0, key_head, K, first, x.feedback_key);
    if (read == DR_READ_FREE) dr_input_vector<T, E>(rows, DR_INPUT_FREE_READ, token, 0, key_head, K, first, x.free_read);
    if (write == DR_WRITE_FREE) dr_input_vector<T, E>(rows, DR_INPUT_FREE_WRITE, token, 0, key_head, K, first, x.free_write);
    if (write == DR_WRITE_RATE_READ) dr_input_vector<T, E>(rows, DR_INPUT_RATE, token, 0, key_head, K, first, x.rate);
    if (write == DR_WRITE_PRECONDITIONED) dr_scan_vector<T, E>(rows, rows.squashed, token, key_head, first, x.made);
    if (write == DR_WRITE_SHERMAN_MORRISON) dr_scan_vector<T, E>(rows, rows.morrison, token, key_head, first, x.made);
}

template <int E>
static __device__ inline void dr_map_key_lanes(const dr_row &row, float lambda, dr_key_lanes<E> &x, float (&r)[E],
                                               float (&w)[E]) {
    const dr_map_keys keys = dr_key_pointers(x);
#pragma unroll
    for (int e = 0; e < E; e++) {
        r[e] = dr_map_read(row.read, &keys, lambda, e);
        w[e] = dr_map_write(dr_lane_write(row.write), &keys, r[e], e);
    }
}

/* Read key r (0 where the row does not read) and write key w of a row, E channels from channel `first` on. */
template <typename T, int E>
static __device__ inline void dr_row_keys(const dr_cuda_rows &rows, int64_t token, int step, int key_head, int value_head,
                                          int first, float (&r)[E], float (&w)[E]) {
    const dr_row &row = dr_rule_row(rows, step);
    dr_key_lanes<E> x;
    dr_load_key_lanes<T, E>(rows, row, token, step, key_head, value_head, first, x);
    dr_map_key_lanes<E>(row, dr_input_scalar(rows, DR_INPUT_LAMBDA, token, 0, value_head), x, r, w);
}

/* The same, a warp taking the whole row. */
template <typename T, int E>
static __device__ inline void dr_row_keys(const dr_cuda_rows &rows, int64_t token, int step, int key_head, int value_head,
                                          float (&r)[E], float (&w)[E]) {
    dr_row_keys<T, E>(rows, token, step, key_head, value_head, dr_lane_first<E>(), r, w);
}

/* The query q~ as it reads the state, without the scale. */
template <typename T, int E>
static __device__ inline void dr_row_query(const dr_cuda_rows &rows, int64_t token, int key_head, int first, float (&q)[E]) {
    if (rows.query == DR_QUERY_RIDGE) {
        dr_scan_vector<T, E>(rows, rows.ridge_query, token, key_head, first, q);
        return;
    }
    dr_input_vector<T, E>(rows, DR_INPUT_QUERY, token, 0, key_head, rows.key_size, first, q);
    if (rows.query != DR_QUERY_CORRECTED) return;
    const float correction = dr_input_scalar(rows, DR_INPUT_CORRECTION, 0, 0, key_head);
    float key[E];
    dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, 0, key_head, rows.key_size, first, key);
#pragma unroll
    for (int e = 0; e < E; e++) q[e] -= correction * key[e];
}

template <typename T, int E>
static __device__ inline void dr_row_query(const dr_cuda_rows &rows, int64_t token, int key_head, float (&q)[E]) {
    dr_row_query<T, E>(rows, token, key_head, dr_lane_first<E>(), q);
}

/* Whether the gain of a row needs the inner product r . w (which is key . key for the exponential gain). */
static __device__ inline bool dr_row_needs_dot(const dr_cuda_rows &rows, int step) {
    const dr_gain gain = dr_rule_row(rows, step).gain;
    return gain == DR_GAIN_IMPLICIT || gain == DR_GAIN_NORMALIZED || gain == DR_GAIN_EXPONENTIAL;
}

template <int E> static __device__ inline float dr_lane_dot(const float (&x)[E], const float (&y)[E]) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++) sum = fmaf(x[e], y[e], sum);
    return dr_warp_sum(sum);
}

static __device__ inline float dr_row_alpha(const dr_cuda_rows &rows, int64_t token, int value_head) {
    return rows.scalar_decay ? expf(dr_input_scalar(rows, DR_INPUT_LOG_DECAY, token, 0, value_head)) : 1.0f;
}

static __device__ inline dr_normalizer dr_row_normalizer(const dr_cuda_rows &rows, int step) {
    return dr_rule_row(rows, step).write == DR_WRITE_PRECONDITIONED ? rows.normalizer : DR_NORMALIZER_NONE;
}

static __device__ inline dr_map_gain_inputs dr_row_gain_inputs(const dr_cuda_rows &rows, int64_t token, int step, int key_head,
                                                               int value_head, float dot) {
    dr_map_gain_inputs x;
    x.beta = dr_input_scalar(rows, DR_INPUT_BETA, token, dr_step_index(rows, step), value_head);
    x.erase_gain = dr_input_scalar(rows, DR_INPUT_ERASE_GAIN, token, 0, value_head);
    const bool discounted = dr_row_normalizer(rows, step) == DR_NORMALIZER_DISCOUNTED;
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
    dr_row_gains g;
    g.base = dr_map_base_gain(dr_rule_row(rows, step).gain, rows.gain_eps, &x);
    g.factor = dr_map_normalizer(dr_row_normalizer(rows, step), &x);
    g.gain = g.base * g.factor;
    return g;
}

static __device__ inline dr_row_gains dr_row_gain(const dr_cuda_rows &rows, int64_t token, int step, int key_head,
                                                  int value_head, float dot) {
    return dr_row_gain_of(rows, step, dr_row_gain_inputs(rows, token, step, key_head, value_head, dot));
}

/* Value z of a row: E channels of the lane from channel `first` on. */
template <typename T, int E>
static __device__ inline void dr_row_value(const dr_cuda_rows &rows, int64_t token, int step, int value_head,
                                           const dr_row_gains &gains, int first, float (&z)[E]) {
    const dr_row &row = dr_rule_row(rows, step);
    if (row.value == DR_VALUE_NONE) {
#pragma unroll
        for (int e = 0; e < E; e++) z[e] = 0;
        return;
    }
    const dr_cuda_input &value = rows.input[DR_INPUT_VALUE], &gate = rows.input[DR_INPUT_WRITE_GATE];
    const int64_t at = dr_input_index(value, token, dr_step_index(rows, step), value_head) + first;
    const float factor = row.value == DR_VALUE_GAIN ? gains.gain : gains.factor;
    dr_load_lane<T, E>((const T *)value.at + at, rows.value_size - first, rows.aligned, z);
    if (row.value == DR_VALUE_GATED) {
        float w[E];
        dr_load_lane<T, E>((const T *)gate.at + dr_input_index(gate, token, 0, value_head) + first, rows.value_size - first,
                           rows.aligned, w);
#pragma unroll
        for (int e = 0; e < E; e++) z[e] *= w[e];
    }
#pragma unroll
    for (int e = 0; e < E; e++) z[e] *= factor;
}

/* The decay factors by channel of a token. */
template <int E>
static __device__ inline void dr_row_channel_alpha(const dr_cuda_rows &rows, int64_t token, int value_head, int first,
                                                   float (&alpha)[E]) {
    dr_input_vector<float, E>(rows, DR_INPUT_LOG_DECAY, token, 0, value_head, rows.key_size, first, alpha);
#pragma unroll
    for (int e = 0; e < E; e++) alpha[e] = expf(alpha[e]);
}

template <int E>
static __device__ inline void dr_row_channel_alpha(const dr_cuda_rows &rows, int64_t token, int value_head, float (&alpha)[E]) {
    dr_row_channel_alpha<E>(rows, token, value_head, dr_lane_first<E>(), alpha);
}

#endif
