/* decay: the gradient of the log decays. f(b, a), the decay between two boundaries, has itself as derivative for each row
 * between them, so the gradient at a row is the sum over all pairs of what was written before its decay and read after it:
 *
 *     entry state, exit state     D (S . dS')
 *     entry state, reader         reader . its gradient from the entry          a suffix sum over rows
 *     writer, exit state          writer . its gradient from the exit           a prefix sum over rows
 *     writer, reader              the pairs that span the row
 *
 * All pairs of the chunk are in one suffix sum of reader . d_reader - writer . d_near, where those that do not span the row
 * cancel: what should cancel comes from the same roundings. No division. Scalar decay: keys.cu has the dots of each row; decay
 * by channel: here, a channel each. */
#include "backends/cuda/device.cuh"
#include "backends/cuda/row_tiles.cuh"

enum { SCALAR_THREADS = 64, CHANNEL_WARPS = 4 };

static __global__ void __launch_bounds__(SCALAR_THREADS) scalar_decay(const __grid_constant__ dr_cuda_backward_call call) {
    __shared__ float reader[64], writer[64], part[64];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x);
    if (x.rows == 0) return;
    const int m = (int)threadIdx.x, parts = plan.key_width / 64;
    float exit = 0, read = 0, write = 0;
    for (int i = 0; i < parts; i++) {
        exit += call.back.exit_part[x.block * plan.key_width + i * 64 + m];
        read += call.back.reader_part[(x.block * parts + i) * 64 + m];
        write += call.back.writer_part[(x.block * parts + i) * 64 + m];
    }
    part[m] = exit;
    reader[m] = read;
    writer[m] = write;
    __syncthreads();
    if (m >= x.rows || m % rows.steps != 0) return;
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += part[i];
    for (int i = 0; i < m; i++) sum += writer[i];
    float behind = 0;
    for (int i = 63; i >= m; i--) behind += reader[i];
    sum += behind;
    const int64_t token = x.place.first + m / rows.steps;
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    if (rows.constant_decay)
        call.back.d_log_decay[token * rows.value_heads + x.head] = sum;
    else if (decay.gradient)
        ((float *)decay.gradient)[dr_input_index(decay, token, 0, x.head)] =
            dr_input_scalar(rows, DR_INPUT_LOG_DECAY, token, 0, x.head) == -INFINITY ? 0 : sum;
}

/* A warp takes all channels of a block. */
template <typename T, int E>
static __global__ void __launch_bounds__(32 * CHANNEL_WARPS) channel_decay(const __grid_constant__ dr_cuda_backward_call call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int64_t block = (int64_t)blockIdx.x * CHANNEL_WARPS + threadIdx.x / 32;
    if (block >= plan.blocks) return;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, block);
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    const int first = dr_lane_first<E>(), width = plan.key_width, left = rows.key_size - first;
    const int64_t at = block * 64 * width + first;
    const dr_cuda_row_factors *factors = call.chunk.factors + block * 64;
    float sum[E];
#pragma unroll
    for (int e = 0; e < E; e++) sum[e] = 0;
    for (int m = x.rows - 1; m >= 0; m--) {
        const int step = m % rows.steps;
        const int64_t token = x.place.first + m / rows.steps, row_at = at + (int64_t)m * width;
        float r[E], w[E], d[E];
        dr_row_keys<T, E>(rows, token, step, x.key_head, x.head, r, w);
        if (dr_queries(rows, m)) {
            float q[E];
            dr_row_query<T, E>(rows, token, x.key_head, q);
            dr_load_lane<float, E>(call.back.d_query + row_at, E, true, d);
#pragma unroll
            for (int e = 0; e < E; e++) sum[e] = fmaf(q[e], d[e], sum[e]);
        }
        dr_load_lane<float, E>(call.back.d_near + row_at, E, true, d);
#pragma unroll
        for (int e = 0; e < E; e++) sum[e] = fmaf(-w[e], d[e], sum[e]);
        float read[E];
        if (dr_row_reads(rows, step)) {
            const float gain = factors[m].gain;
            dr_load_lane<float, E>(call.back.d_read + row_at, E, true, d);
#pragma unroll
            for (int e = 0; e < E; e++) read[e] = -gain * r[e] * d[e];
        } else {
#pragma unroll
            for (int e = 0; e < E; e++) read[e] = 0;
        }
        const bool undecayed = dr_undecayed(rows, m);
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float with = sum[e] + read[e];
            d[e] = undecayed ? sum[e] : with;
            sum[e] = with;
        }
        if (step == 0)
            dr_store_lane<float, E>((float *)decay.gradient + dr_input_index(decay, token, 0, x.head) + first, left,
                                    rows.aligned, d);
    }
    if (x.rows == 0) return;
    dr_load_lane<float, E>(call.back.exit_part + block * width + first, E, true, sum);
    for (int m = 0; m < x.rows; m++) {
        const int step = m % rows.steps;
        const int64_t token = x.place.first + m / rows.steps;
        float r[E], w[E], d[E];
        if (step == 0) {
            float *to = (float *)decay.gradient + dr_input_index(decay, token, 0, x.head) + first, g[E];
            dr_load_lane<float, E>(to, left, rows.aligned, d);
            dr_input_vector<float, E>(rows, DR_INPUT_LOG_DECAY, token, 0, x.head, rows.key_size, first, g);
#pragma unroll
            for (int e = 0; e < E; e++) d[e] = g[e] == -INFINITY ? 0 : d[e] + sum[e];
            dr_store_lane<float, E>(to, left, rows.aligned, d);
        }
        dr_row_keys<T, E>(rows, token, step, x.key_head, x.head, r, w);
        dr_load_lane<float, E>(call.back.d_far + at + (int64_t)m * width, E, true, d);
#pragma unroll
        for (int e = 0; e < E; e++) sum[e] = fmaf(w[e], d[e], sum[e]);
    }
}

template <typename T, int E> static dr_status launch_channel(const dr_cuda_backward_call *call, cudaStream_t stream) {
    const int64_t blocks = (call->plan.blocks + CHANNEL_WARPS - 1) / CHANNEL_WARPS;
    unsigned grid;
    DR_TRY(dr_cuda_grid(&blocks, 1, "channel_decay", &grid));
    channel_decay<T, E><<<grid, 32 * CHANNEL_WARPS, 0, stream>>>(*call);
    DR_CUDA_LAUNCHED("channel_decay");
    return DR_OK;
}

dr_status dr_cuda_backward_decay(const dr_cuda_backward_call *call, cudaStream_t stream) {
    const dr_cuda_rows *rows = &call->plan.rows;
    if (call->plan.blocks == 0 || !rows->input[DR_INPUT_LOG_DECAY].gradient) return DR_OK;
    if (rows->channel_decay) {
        DR_CUDA_CHUNK_STORAGE(call->plan.storage, T, {
            if (call->plan.key_width == 64) return launch_channel<T, 2>(call, stream);
            if (call->plan.key_width == 128) return launch_channel<T, 4>(call, stream);
            return launch_channel<T, 8>(call, stream);
        });
    }
    if (!rows->scalar_decay) return DR_OK;
    unsigned grid;
    DR_TRY(dr_cuda_grid(&call->plan.blocks, 1, "scalar_decay", &grid));
    scalar_decay<<<grid, SCALAR_THREADS, 0, stream>>>(*call);
    DR_CUDA_LAUNCHED("scalar_decay");
    return DR_OK;
}
