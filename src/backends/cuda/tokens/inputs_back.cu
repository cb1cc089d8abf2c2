/* From what the columns of the states gave to the keys, gains and decays of the rows, to the gradients of the inputs: a block
 * takes one key head of a sequence back through its tokens, a thread one channel of K and two of V.
 *
 *     for each token, last first:    for each of its value heads, for each row, last first:
 *                                        sums over the slices of columns      value: dv, d gate, dc      gains      r and w to
 * keys query, then the diagonal scan: ridge query, B, A_t, Sherman-Morrison key
 *
 * With an axis of steps the loop over rows is the outer one, since a key is then a row's own; a key's gradient is summed over
 * the value heads in order in any case. What is summed over tokens (parameters, the initial A) stays with the block. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens.cuh"
#include "backends/cuda/tokens/tokens_back.h"

constexpr int WIDTH = DR_CUDA_MOST_KEY, WIDTH_WARPS = WIDTH / 32; /* threads: at least K */
constexpr int COLUMNS = (DR_CUDA_MOST_VALUE + WIDTH - 1) / WIDTH; /* of V, WIDTH apart, that a thread has */

/* What the block shares: parts of sums, two in turn. */
struct back_shared {
    float part[2][WIDTH_WARPS];
};

/* The block's place and its thread's, and what the thread gathers. */
struct back_place {
    int64_t sequence, token;
    int key_head, d, turn;
    bool channel;          /* d is one of K */
    float a, d_a;          /* A before the token; its gradient after the token, then before it */
    scan_channel made;     /* of the token's key; morrison: the sum over channels */
    float key_dot, slope;  /* key . (B key); dB/dr */
    dr_key_sums<1> d_keys; /* of the token's key head */
    double d_ridge, d_centre, d_correction;
};

/* Of a value head at a token, or at one of its steps. */
struct head_gradients {
    float beta, erase_gain, lambda, alpha, erase_gate, value[COLUMNS], write_gate[COLUMNS];
};

/* Over the block, the same in every thread. */
static __device__ inline float block_sum(float x, back_shared &shared, back_place &at) {
    x = dr_warp_sum(x);
    at.turn ^= 1;
    if (threadIdx.x % 32 == 0) shared.part[at.turn][threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    DR_UNROLL (i, WIDTH_WARPS) sum += shared.part[at.turn][i];
    return sum;
}

/* Sums of a part over the slices, in order; at: of the first. */
static __device__ inline float sum_slices(const float *part, int64_t at, int64_t stride, int slices) {
    float sum = 0;
    for (int i = 0; i < slices; i++) sum += part[i * stride + at];
    return sum;
}

/* Writes element d of a gradient, if it is wanted. */
template <typename T>
static __device__ inline void give(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head, int d, float x) {
    const dr_cuda_input &input = rows.input[i];
    if (input.gradient) ((T *)input.gradient)[dr_input_index(input, token, step, head) + d] = dr_from_float<T>(x);
}

/* dz of a row to value and write gate; adds what it gives to the gain and to the factor. */
template <typename T>
static __device__ inline void value_back(const dr_cuda_tokens_back &call, back_place &at, int step, int value_head,
                                         const dr_row_gains &gains, back_shared &shared, head_gradients &head, float &d_gain,
                                         float &d_factor) {
    const dr_cuda_rows &rows = call.forward.rows;
    const dr_cuda_row &row = dr_rule_row(rows, step);
    if (row.values == DR_VALUES_NONE) return;
    const bool gained = row.values == DR_VALUES_GAINED, gated = row.values == DR_VALUES_GATED;
    const float factor = gained ? gains.gain : gains.factor;
    float part = 0;
    DR_UNROLL (c, COLUMNS) {
        const int column = at.d + c * WIDTH;
        if (column >= rows.value_size) break;
        const int64_t z = ((at.token * rows.steps + step) * rows.value_heads + value_head) * rows.value_size + column;
        const float d_z = call.d_value[z];
        const float v = channel_at<T>(rows, DR_INPUT_VALUE, at.token, dr_step_index(rows, step), value_head, column);
        const float gate = gated ? channel_at<T>(rows, DR_INPUT_WRITE_GATE, at.token, 0, value_head, column) : 1;
        part += gate * v * d_z;
        head.value[c] += factor * gate * d_z;
        if (gated) head.write_gate[c] += factor * v * d_z;
    }
    (gained ? d_gain : d_factor) += block_sum(part, shared, at);
}

/* A row of a value head: from its parts to the gradients of values, gains and keys. */
template <typename T>
static __device__ inline void row_inputs_back(const dr_cuda_tokens_back &call, back_place &at, int step, int value_head,
                                              back_shared &shared, head_gradients &head) {
    const dr_cuda_rows &rows = call.forward.rows;
    const dr_cuda_row &row = dr_rule_row(rows, step);
    const bool reads = row.reads != DR_READS_NONE;
    const int64_t of_row = (at.token * rows.steps + step) * rows.value_heads + value_head;
    const int64_t stride = call.forward.layout.rows * rows.steps * rows.value_heads;
    const float factor = dr_read_factor(rows, row, at.token, value_head);
    dr_key_lanes<1> x = {};
    float r[1] = {}, w[1] = {}, d_r[1] = {}, d_w[1] = {};
    if (at.channel) {
        x = key_channel_at<T>(rows, row, at.token, dr_step_index(rows, step), at.key_head, value_head, at.d, at.made.squash,
                              at.made.m / (1 + at.made.morrison));
        dr_make_keys<1>(row, x, factor, r, w);
        d_w[0] = sum_slices(call.d_write, of_row * rows.key_size + at.d, stride * rows.key_size, call.slices);
        if (reads) d_r[0] = sum_slices(call.d_read, of_row * rows.key_size + at.d, stride * rows.key_size, call.slices);
    }
    dr_map_gain_inputs in = dr_row_gain_inputs(rows, at.token, step, at.key_head, value_head, 0), d_in = {0, 0, 0, 0, 0};
    in.key_dot = at.key_dot;
    if (dr_row_needs_dot(rows, step)) in.dot = block_sum(r[0] * w[0], shared, at);
    const dr_row_gains gains = dr_row_gain_of(rows, step, in);
    float d_gain = reads ? sum_slices(call.d_gain, of_row, stride, call.slices) : 0, d_factor = 0;
    value_back<T>(call, at, step, value_head, gains, shared, head, d_gain, d_factor);
    dr_map_base_gain_backward(row.formula, &in, gains.base, d_gain * gains.factor, &d_in);
    dr_map_normalizer_backward(row.normalizer, &in, gains.factor, d_factor + d_gain * gains.base, &d_in);
    head.beta += d_in.beta;
    head.erase_gain += d_in.erase_gain;
    head.alpha += d_in.alpha * in.alpha;
    float d_read_factor = 0;
    if (at.channel) {
        if (reads) d_r[0] = fmaf(d_in.dot, w[0], d_r[0]);
        if (reads) d_w[0] = fmaf(d_in.dot, r[0], d_w[0]);
        if (row.normalized) {
            d_w[0] = fmaf(d_in.key_dot, channel_at<T>(rows, DR_INPUT_KEY, at.token, 0, at.key_head, at.d), d_w[0]);
            at.d_keys.key[0] += d_in.key_dot * w[0];
        }
        d_read_factor = dr_keys_back<1>(row, x, factor, r, d_r, d_w, at.d_keys);
        head.erase_gate += at.d_keys.erase_gate[0];
        at.d_keys.erase_gate[0] = 0;
    }
    if (row.reads == DR_READS_AFFINE) head.lambda += block_sum(d_read_factor, shared, at);
}

/* What the decay of a token gave to a value head's log decay. */
static __device__ inline void decay_back(const dr_cuda_tokens_back &call, back_place &at, int value_head, float from_gains,
                                         back_shared &shared, float &scalar) {
    const dr_cuda_rows &rows = call.forward.rows;
    if (!rows.scalar_decay && !rows.channel_decay) return;
    const int64_t of_token = (at.token * rows.value_heads + value_head) * rows.key_size + at.d;
    const int64_t stride = call.forward.layout.rows * rows.value_heads * rows.key_size;
    const float own = at.channel ? sum_slices(call.d_decay, of_token, stride, call.slices) : 0;
    if (rows.channel_decay) {
        if (!at.channel) return;
        const bool dead = channel_at<float>(rows, DR_INPUT_LOG_DECAY, at.token, 0, value_head, at.d) == -INFINITY;
        give<float>(rows, DR_INPUT_LOG_DECAY, at.token, 0, value_head, at.d, dead ? 0 : own);
        return;
    }
    scalar = block_sum(own, shared, at) + from_gains;
}

static __device__ inline double *partial_sums(const dr_cuda_tokens_back &call, dr_input i, int64_t sequence, int head,
                                              int heads, int size) {
    return call.d_parameter[i] ? call.d_parameter[i] + (sequence * heads + head) * size : NULL;
}

/* Gradients of a value head's own inputs; step: of value and beta, of the decay at 0. */
template <typename T>
static __device__ inline void give_head(const dr_cuda_tokens_back &call, back_place &at, int step, int value_head,
                                        const head_gradients &head, back_shared &shared) {
    const dr_cuda_rows &rows = call.forward.rows;
    DR_UNROLL (c, COLUMNS) {
        const int column = at.d + c * WIDTH;
        if (column >= rows.value_size) break;
        give<T>(rows, DR_INPUT_VALUE, at.token, step, value_head, column, head.value[c]);
        give<T>(rows, DR_INPUT_WRITE_GATE, at.token, 0, value_head, column, head.write_gate[c]);
    }
    if (at.channel) give<T>(rows, DR_INPUT_ERASE_GATE, at.token, 0, value_head, at.d, head.erase_gate);
    float log_decay = 0;
    if (step == 0) decay_back(call, at, value_head, head.alpha, shared, log_decay);
    if (threadIdx.x != 0) return;
    give<float>(rows, DR_INPUT_BETA, at.token, step, value_head, 0, head.beta);
    give<float>(rows, DR_INPUT_ERASE_GAIN, at.token, 0, value_head, 0, head.erase_gain);
    give<float>(rows, DR_INPUT_LAMBDA, at.token, 0, value_head, 0, head.lambda);
    if (step != 0 || !rows.scalar_decay) return;
    if (dr_input_scalar(rows, DR_INPUT_LOG_DECAY, at.token, 0, value_head) == -INFINITY) log_decay = 0;
    if (!rows.constant_decay) {
        give<float>(rows, DR_INPUT_LOG_DECAY, at.token, 0, value_head, 0, log_decay);
        return;
    }
    double *sum = partial_sums(call, DR_INPUT_LOG_DECAY, at.sequence, value_head, rows.value_heads, 1);
    if (sum) *sum += log_decay;
}

/* Gradients of the key head's own inputs; those of key and query are done when the scan has added to them. */
template <typename T> static __device__ inline void give_keys(const dr_cuda_rows &rows, const back_place &at) {
    give<T>(rows, DR_INPUT_ERASE_KEY, at.token, 0, at.key_head, at.d, at.d_keys.erase_key[0]);
    give<T>(rows, DR_INPUT_FEEDBACK_KEY, at.token, 0, at.key_head, at.d, at.d_keys.feedback_key[0]);
    give<T>(rows, DR_INPUT_FREE_READ, at.token, 0, at.key_head, at.d, at.d_keys.free_read[0]);
    give<T>(rows, DR_INPUT_FREE_WRITE, at.token, 0, at.key_head, at.d, at.d_keys.free_write[0]);
    give<T>(rows, DR_INPUT_RATE, at.token, 0, at.key_head, at.d, at.d_keys.rate[0]);
    give<T>(rows, DR_INPUT_QUERY, at.token, 0, at.key_head, at.d, at.d_keys.query[0]);
    if (!rows.step_axis) give<T>(rows, DR_INPUT_KEY, at.token, 0, at.key_head, at.d, at.d_keys.key[0]);
}

/* The query of a token: from the sum over its value heads of what q~ got. after: A_t. */
template <typename T> static __device__ inline void query_back(const dr_cuda_tokens_back &call, back_place &at, float after) {
    const dr_cuda_rows &rows = call.forward.rows;
    if (!at.channel) return;
    const int64_t stride = call.forward.layout.rows * rows.value_heads * rows.key_size;
    float d_read = 0;
    for (int j = 0; j < rows.group; j++) {
        const int64_t of_head = (at.token * rows.value_heads + at.key_head * rows.group + j) * rows.key_size + at.d;
        d_read += sum_slices(call.d_query, of_head, stride, call.slices);
    }
    if (rows.asks == DR_ASKS_AFFINE) {
        const float key = channel_at<T>(rows, rows.ask_other, at.token, 0, at.key_head, at.d);
        at.d_keys.key[0] -= dr_input_scalar(rows, rows.ask_factor, 0, 0, at.key_head) * d_read;
        at.d_correction -= (double)(key * d_read);
    }
    if (rows.asks == DR_ASKS_MADE) {
        const float sum = after + ridge_at(rows, at.key_head, at.d);
        const float d_query = d_read / sum;
        const float d_sum = -(channel_at<T>(rows, DR_INPUT_QUERY, at.token, 0, at.key_head, at.d) / sum * d_query);
        at.d_ridge += (double)d_sum;
        at.d_a += d_sum;
        d_read = d_query;
    }
    at.d_keys.query[0] += d_read;
}

/* The diagonal scan of a token: B, A_t = alpha A_{t-1} + b key * key, the Sherman-Morrison key. d_a: from A_t to A_{t-1}. */
template <typename T>
static __device__ inline void scan_back(const dr_cuda_rows &rows, back_place &at, float after, back_shared &shared,
                                        float &d_gain, float &d_log_decay) {
    const float key = at.channel ? channel_at<T>(rows, DR_INPUT_KEY, at.token, 0, at.key_head, at.d) : 0;
    if (rows.squashes && at.channel) {
        const float d_position = at.slope * (at.d_keys.squashed[0] * key);
        at.d_keys.key[0] += at.d_keys.squashed[0] * at.made.squash;
        at.d_centre -= (double)d_position;
        at.d_a += d_position / (after + rows.squash.eps);
    }
    const float alpha = scan_alpha_at(rows, at.token, at.key_head), b = scan_gain_at(rows, at.token, at.key_head);
    d_gain = block_sum(key * key * at.d_a, shared, at);
    d_log_decay = alpha * block_sum(at.a * at.d_a, shared, at);
    at.d_keys.key[0] += 2 * b * key * at.d_a;
    at.d_a *= alpha;
    if (!rows.morrison) return;
    /* w = f m, f = 1 / (1 + key . m), m = key / (A_{t-1} + ridge): dm = f dw - f^2 (m . dw) key */
    const float f = 1 / (1 + at.made.morrison), w = f * at.made.m;
    const float d_dot = -f * block_sum(at.channel ? w * at.d_keys.morrison[0] : 0, shared, at);
    if (!at.channel) return;
    const float sum = at.a + ridge_at(rows, at.key_head, at.d);
    const float d_m = fmaf(d_dot, key, f * at.d_keys.morrison[0]) / sum, d_sum = -(at.made.m * d_m);
    at.d_keys.key[0] += fmaf(d_dot, at.made.m, d_m);
    at.d_ridge += (double)d_sum;
    at.d_a += d_sum;
}

/* What the token's key gives in the forward, and A before it. */
template <typename T>
static __device__ inline float make_scan(const dr_cuda_tokens_back &call, back_place &at, back_shared &shared) {
    const dr_cuda_rows &rows = call.forward.rows;
    const int64_t H = rows.key_heads, K = rows.key_size, before = (at.token + at.sequence) * H + at.key_head;
    float after = 0;
    if (at.channel) {
        at.a = call.scan[before * K + at.d];
        after = scan_step_at<T>(rows, at.token, at.key_head, at.d, at.a);
        at.made = scan_channel_at<T>(rows, at.token, at.key_head, at.d, at.a, after);
        if (rows.squashes)
            dr_map_squash_value(&rows.squash, after, dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, at.key_head), &at.slope);
    }
    at.key_dot = block_sum(at.made.key_dot, shared, at);
    at.made.morrison = block_sum(at.made.morrison, shared, at);
    return after;
}

template <typename T>
static __device__ inline void token_back(const dr_cuda_tokens_back &call, back_place &at, back_shared &shared) {
    const dr_cuda_rows &rows = call.forward.rows;
    const int outer = rows.step_axis ? rows.steps : rows.group, inner = rows.step_axis ? rows.group : rows.steps;
    at.d_keys = {};
    at.made = {0, 0, 0, 0};
    const float after = rows.diagonal_scan ? make_scan<T>(call, at, shared) : 0;
    head_gradients head;
    float tied_gain = 0, tied_decay = 0;
    query_back<T>(call, at, after);
    for (int i = 0; i < outer; i++) {
        for (int j = 0; j < inner; j++) {
            const int step = rows.step_axis ? rows.steps - 1 - i : rows.steps - 1 - j;
            const int value_head = at.key_head * rows.group + (rows.step_axis ? j : i);
            if (rows.step_axis || j == 0) head = {};
            row_inputs_back<T>(call, at, step, value_head, shared, head);
            /* a tied scan has one value head, and gives to its gain and decay too */
            if (rows.tied_scan && j == inner - 1) {
                scan_back<T>(rows, at, after, shared, tied_gain, tied_decay);
                head.beta += tied_gain;
                head.alpha += tied_decay;
            }
            if (rows.step_axis || j == inner - 1) give_head<T>(call, at, dr_step_index(rows, step), value_head, head, shared);
        }
        if (!rows.step_axis) continue;
        const int step = rows.steps - 1 - i;
        if (at.channel) give<T>(rows, DR_INPUT_KEY, at.token, step, at.key_head, at.d, at.d_keys.key[0]);
        at.d_keys.key[0] = 0;
    }
    if (rows.diagonal_scan && !rows.tied_scan) {
        float d_gain, d_log_decay;
        scan_back<T>(rows, at, after, shared, d_gain, d_log_decay);
        if (dr_input_scalar(rows, DR_INPUT_SCAN_LOG_DECAY, at.token, 0, at.key_head) == -INFINITY) d_log_decay = 0;
        if (threadIdx.x == 0) give<float>(rows, DR_INPUT_SCAN_GAIN, at.token, 0, at.key_head, 0, d_gain);
        if (threadIdx.x == 0) give<float>(rows, DR_INPUT_SCAN_LOG_DECAY, at.token, 0, at.key_head, 0, d_log_decay);
    }
    if (at.channel) give_keys<T>(rows, at);
}

/* Sums over the block in double, by thread 0, in order of the threads. */
static __device__ inline void give_sum(double x, double *to, double (&all)[WIDTH]) {
    __syncthreads();
    all[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x != 0 || !to) return;
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += all[i];
    *to = sum;
}

template <typename T>
static __global__ void __launch_bounds__(WIDTH, 1) inputs_back(const __grid_constant__ dr_cuda_tokens_back call) {
    __shared__ back_shared shared;
    __shared__ double all[WIDTH];
    const dr_cuda_rows &rows = call.forward.rows;
    const int H = rows.key_heads, K = rows.key_size;
    back_place at = {};
    at.sequence = blockIdx.x / H;
    at.key_head = (int)(blockIdx.x % H);
    at.d = (int)threadIdx.x;
    at.channel = at.d < K;
    const int64_t begin = sequence_begin(call.forward.layout, at.sequence);
    const int64_t end = sequence_begin(call.forward.layout, at.sequence + 1), of_scan = blockIdx.x * (int64_t)K + at.d;
    if (at.channel && call.d_final_scan) at.d_a = call.d_final_scan[of_scan];
    if (rows.constant_decay && threadIdx.x < rows.group) {
        for (int j = (int)threadIdx.x; j < rows.group; j += WIDTH) {
            double *sum =
                partial_sums(call, DR_INPUT_LOG_DECAY, at.sequence, at.key_head * rows.group + j, rows.value_heads, 1);
            if (sum) *sum = 0;
        }
    }
    __syncthreads();
    for (at.token = end - 1; at.token >= begin; at.token--) token_back<T>(call, at, shared);
    if (at.channel && call.d_initial_scan) call.d_initial_scan[of_scan] = at.d_a;
    double *ridge = partial_sums(call, DR_INPUT_RIDGE, at.sequence, at.key_head, H, K);
    if (at.channel && ridge) ridge[at.d] = at.d_ridge;
    give_sum(at.d_centre, partial_sums(call, DR_INPUT_SCAN_CENTRE, at.sequence, at.key_head, H, 1), all);
    give_sum(at.d_correction, partial_sums(call, DR_INPUT_CORRECTION, at.sequence, at.key_head, H, 1), all);
}

/* A parameter's gradient: the sum over the sequences, in order; 0 where it is a log decay of -inf. */
static __global__ void sum_sequences(const double *partial, int64_t sequences, int64_t count, const float *log_decay,
                                     float *to) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double sum = 0;
    for (int64_t n = 0; n < sequences; n++) sum += partial[n * count + i];
    to[i] = log_decay && log_decay[i] == -INFINITY ? 0 : (float)sum;
}

template <typename T> static dr_status launch(const dr_cuda *gpu, const dr_cuda_tokens_back *call) {
    const dr_cuda_rows *rows = &call->forward.rows;
    const int64_t sequences = call->forward.layout.sequences;
    DR_TRY(dr_cuda_launch("inputs_back", inputs_back<T>, {sequences, rows->key_heads}, WIDTH, 0, gpu->stream, *call));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!call->d_parameter[i]) continue;
        const int64_t count = call->parameter_count[i];
        const float *log_decay = i == DR_INPUT_LOG_DECAY ? (const float *)rows->input[i].at : NULL;
        DR_TRY(dr_cuda_launch("sum_sequences", sum_sequences, {(count + WIDTH - 1) / WIDTH}, WIDTH, 0, gpu->stream,
                              (const double *)call->d_parameter[i], sequences, count, log_decay,
                              (float *)rows->input[i].gradient));
    }
    return DR_OK;
}

dr_status dr_cuda_inputs_backward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens_back *call) {
    DR_CUDA_STORAGE(storage, T, return launch<T>(gpu, call));
    return DR_OK;
}
