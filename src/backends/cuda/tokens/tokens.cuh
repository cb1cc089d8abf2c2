/* What the kernels that go token by token share: channels of the inputs, keys and query of a token, one channel a thread. Keys
 * of the diagonal scan are made here in float from the A that the thread carries along, nothing is read back from memory. */
#ifndef DR_CUDA_TOKENS_CUH
#define DR_CUDA_TOKENS_CUH

#include "backends/cuda/device/device.cuh"
#include "backends/cuda/rows/rows.cuh"
#include "maps/diagonal.h"

/* Channel d of a vector among the inputs. */
template <typename T>
static __device__ inline float channel_at(const dr_cuda_rows &rows, int i, int64_t token, int step, int head, int d) {
    const dr_cuda_input &input = rows.input[i];
    return dr_to_float(((const T *)input.at)[dr_input_index(input, token, step, head) + d]);
}

static __device__ inline float ridge_at(const dr_cuda_rows &rows, int key_head, int d) {
    return channel_at<float>(rows, DR_INPUT_RIDGE, 0, 0, key_head, d);
}

/* b and alpha of A_t = alpha A_{t-1} + b key * key; tied, H = HV. */
static __device__ inline float scan_gain_at(const dr_cuda_rows &rows, int64_t token, int key_head) {
    return dr_input_scalar(rows, rows.tied_scan ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN, token, 0, key_head);
}
static __device__ inline float scan_alpha_at(const dr_cuda_rows &rows, int64_t token, int key_head) {
    return expf(dr_input_scalar(rows, rows.tied_scan ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY, token, 0, key_head));
}

template <typename T>
static __device__ inline float scan_step_at(const dr_cuda_rows &rows, int64_t token, int key_head, int d, float a) {
    return dr_map_scan_step(a, scan_alpha_at(rows, token, key_head), scan_gain_at(rows, token, key_head),
                            channel_at<T>(rows, DR_INPUT_KEY, token, 0, key_head, d));
}

/* A channel of what the diagonal scan makes of a token's key, from A before and after it. */
typedef struct {
    float squash;   /* B */
    float key_dot;  /* this channel's part of key . (B key) */
    float m;        /* key / (A_{t-1} + ridge): the Sherman-Morrison key without its factor */
    float morrison; /* this channel's part of key . m */
} scan_channel;

template <typename T>
static __device__ inline scan_channel scan_channel_at(const dr_cuda_rows &rows, int64_t token, int key_head, int d,
                                                      float before, float after) {
    scan_channel made = {0, 0, 0, 0};
    const float key = channel_at<T>(rows, DR_INPUT_KEY, token, 0, key_head, d);
    if (rows.squashes) {
        float slope;
        made.squash =
            dr_map_squash_value(&rows.squash, after, dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, key_head), &slope);
        made.key_dot = key * (made.squash * key);
    }
    if (rows.morrison) {
        made.m = key / (before + ridge_at(rows, key_head, d));
        made.morrison = key * made.m;
    }
    return made;
}

/* A channel of q~; after: A_t, where there is a scan. */
template <typename T>
static __device__ inline float query_channel_at(const dr_cuda_rows &rows, int64_t token, int key_head, int d, float after) {
    const float query = channel_at<T>(rows, DR_INPUT_QUERY, token, 0, key_head, d);
    switch (rows.asks) {
    case DR_ASKS_TENSOR:
        break;
    case DR_ASKS_MADE:
        return query / (after + ridge_at(rows, key_head, d));
    case DR_ASKS_AFFINE:
        return query - dr_input_scalar(rows, rows.ask_factor, 0, 0, key_head) *
                           channel_at<T>(rows, rows.ask_other, token, 0, key_head, d);
    }
    return query;
}

/* A channel of the tensors that a row's keys are made of; squash, morrison: of scan_channel_at, the latter with its factor. */
template <typename T>
static __device__ inline dr_key_lanes<1> key_channel_at(const dr_cuda_rows &rows, const dr_cuda_row &row, int64_t token,
                                                        int step, int key_head, int value_head, int d, float squash,
                                                        float morrison) {
    const auto at = [&](int source) {
        return channel_at<T>(rows, source, token, step, rows.input[source].per_value ? value_head : key_head, d);
    };
    const bool product = row.reads == DR_READS_PRODUCT, affine = row.reads == DR_READS_AFFINE;
    dr_key_lanes<1> x = {};
    if (row.writes != DR_WRITES_MADE)
        x.write[0] = at(row.write);
    else
        x.write[0] = row.write == DR_SOURCE_SQUASHED ? squash * at(DR_INPUT_KEY) : morrison;
    if (product || affine || row.reads == DR_READS_TENSOR) x.read[0] = at(row.read);
    if (product || affine) x.other[0] = at(row.read_other);
    return x;
}

#endif
