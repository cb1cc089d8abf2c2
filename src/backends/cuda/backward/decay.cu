/* decay: the gradient of the log decays. f(b, a), the decay between two boundaries, has itself as derivative for each row
 * between them, so the gradient at a row is the sum over all pairs of what was written before its decay and read after it:
 *
 *     entry state, exit state     D (S . dS')
 *     entry state, reader         reader . its gradient from the entry          a suffix sum over rows
 *     writer, exit state          writer . its gradient from the exit           a prefix sum over rows
 *     writer, reader              the pairs that span the row
 *
 * For scalar decay keys.cu has made these sums of 64 channels each, which are added up here; keys_channel.cuh does it all for
 * each channel. */
#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"

static __global__ void __launch_bounds__(64) scalar_decay(const __grid_constant__ dr_cuda_backward_call call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x);
    const int m = (int)threadIdx.x, parts = plan.key_width / 64;
    if (m >= x.rows || m % rows.steps != 0) return;
    float sum = 0;
    for (int i = 0; i < parts; i++) sum += call.back.decay_part[(x.block * parts + i) * 64 + m];
    if (m == 0 && dr_begins_empty(call, x)) sum = 0;
    const int64_t token = x.place.first + m / rows.steps;
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    if (rows.constant_decay)
        call.back.d_log_decay[token * rows.value_heads + x.head] = sum;
    else if (decay.gradient)
        ((float *)decay.gradient)[dr_input_index(decay, token, 0, x.head)] =
            dr_input_scalar(rows, DR_INPUT_LOG_DECAY, token, 0, x.head) == -INFINITY ? 0 : sum;
}

dr_status dr_cuda_backward_decay(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_rows *rows = &call->plan.rows;
    if (call->plan.blocks == 0 || !rows->input[DR_INPUT_LOG_DECAY].gradient) return DR_OK;
    if (!rows->scalar_decay) return DR_OK;
    return dr_cuda_launch("scalar_decay", scalar_decay, {call->plan.blocks}, 64, 0, stream, *call);
}
