/* What the kernels that go token by token share: channels of the inputs, keys and query of a token, one channel a thread. Keys
 * of the diagonal scan are made here in float from the A that the thread carries along, nothing is read back from memory. */
#ifndef DR_CUDA_TOKENS_CUH
#define DR_CUDA_TOKENS_CUH

#include "backends/cuda/device/device.cuh"
#include "backends/cuda/rows/rows.cuh"
#include "maps/diagonal.h"

/* Channel d of a vector among the inputs. */
template <typename T>
static __device__ inline float channel_at(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head, int d) {
    const dr_cuda_input &input = rows.input[i];
    return dr_to_float(((const T *)input.at)[dr_input_index(input, token, step, head) + d]);
}

static __device__ inline float ridge_at(const dr_cuda_rows &rows, int key_head, int d) {
    return channel_at<float>(rows, DR_INPUT_RIDGE, 0, 0, key_head, d);
}

static __device__ inline bool rule_writes(const dr_cuda_rows &rows, dr_write write) {
    return rows.row[0].write == write || (!rows.step_axis && rows.steps > 1 && rows.row[1].write == write);
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
    if (rule_writes(rows, DR_WRITE_PRECONDITIONED)) {
        float slope;
        made.squash =
            dr_map_squash_value(&rows.squash, after, dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, key_head), &slope);
        made.key_dot = key * (made.squash * key);
    }
    if (rule_writes(rows, DR_WRITE_SHERMAN_MORRISON)) {
        made.m = key / (before + ridge_at(rows, key_head, d));
        made.morrison = key * made.m;
    }
    return made;
}

/* A channel of q~; after: A_t, where there is a scan. */
template <typename T>
static __device__ inline float query_channel_at(const dr_cuda_rows &rows, int64_t token, int key_head, int d, float after) {
    const float query = channel_at<T>(rows, DR_INPUT_QUERY, token, 0, key_head, d);
    if (rows.query == DR_QUERY_RIDGE) return query / (after + ridge_at(rows, key_head, d));
    if (rows.query != DR_QUERY_CORRECTED) return query;
    return query - dr_input_scalar(rows, DR_INPUT_CORRECTION, 0, 0, key_head) *
                       channel_at<T>(rows, DR_INPUT_KEY, token, 0, key_head, d);
}

/* A channel of the tensors that a row's keys are made of; those that it does not read are not loaded. */
typedef struct {
    float query, key, erase_key, feedback_key, free_read, free_write, rate, erase_gate, squash, morrison;
} key_channel;

static __device__ inline dr_map_keys key_channel_pointers(key_channel &x) {
    dr_map_keys keys = {};
    keys.query = &x.query;
    keys.key = &x.key;
    keys.erase_key = &x.erase_key;
    keys.feedback_key = &x.feedback_key;
    keys.free_read = &x.free_read;
    keys.free_write = &x.free_write;
    keys.rate = &x.rate;
    keys.erase_gate = &x.erase_gate;
    keys.squash = &x.squash;
    keys.morrison = &x.morrison;
    return keys;
}

/* squash, morrison: of scan_channel_at, the latter with its factor. */
template <typename T>
static __device__ inline key_channel key_channel_at(const dr_cuda_rows &rows, const dr_row &row, int64_t token, int step,
                                                    int key_head, int value_head, int d, float squash, float morrison) {
    const dr_read read = row.read;
    const dr_write write = row.write;
    key_channel x = {0, 0, 0, 0, 0, 0, 0, 0, squash, morrison};
    if (read == DR_READ_KEY || read == DR_READ_GATED_KEY || read == DR_READ_KEY_PLUS_QUERY || write == DR_WRITE_KEY ||
        write == DR_WRITE_PRECONDITIONED)
        x.key = channel_at<T>(rows, DR_INPUT_KEY, token, step, key_head, d);
    if (read == DR_READ_KEY_PLUS_QUERY) x.query = channel_at<T>(rows, DR_INPUT_QUERY, token, 0, key_head, d);
    if (read == DR_READ_GATED_KEY) x.erase_gate = channel_at<T>(rows, DR_INPUT_ERASE_GATE, token, 0, value_head, d);
    if (read == DR_READ_ERASE_KEY || write == DR_WRITE_ERASE_KEY)
        x.erase_key = channel_at<T>(rows, DR_INPUT_ERASE_KEY, token, 0, key_head, d);
    if (read == DR_READ_FEEDBACK) x.feedback_key = channel_at<T>(rows, DR_INPUT_FEEDBACK_KEY, token, 0, key_head, d);
    if (read == DR_READ_FREE) x.free_read = channel_at<T>(rows, DR_INPUT_FREE_READ, token, 0, key_head, d);
    if (write == DR_WRITE_FREE) x.free_write = channel_at<T>(rows, DR_INPUT_FREE_WRITE, token, 0, key_head, d);
    if (write == DR_WRITE_RATE_READ) x.rate = channel_at<T>(rows, DR_INPUT_RATE, token, 0, key_head, d);
    return x;
}

#endif
