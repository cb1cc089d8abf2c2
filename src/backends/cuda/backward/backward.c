/* The backward's tensors and the order of its stages. */
#include "backends/cuda/backward/backward.h"

static void *take(dr_arena *arena, const dr_cuda_chunk_plan *plan, int64_t rows, int64_t columns, size_t element) {
    return dr_arena_take(arena, (size_t)plan->blocks * (size_t)rows * (size_t)columns * element);
}

/* Rows of an input, of all tokens and steps, and bytes of its gradient's parts of value heads. */
static int64_t input_rows(const dr_cuda_chunk_plan *plan, dr_input i) {
    return plan->tokens * (plan->rows.step_axis && i == DR_INPUT_KEY ? plan->rows.steps : 1);
}

static size_t part_bytes(const dr_cuda_chunk_plan *plan, dr_input i) {
    const size_t bytes = (size_t)input_rows(plan, i) * (size_t)plan->value_heads * (size_t)plan->rows.input[i].bytes;
    return (bytes + 255) / 256 * 256;
}

/* Of all that may be wanted. */
static size_t spread_bytes(const dr_cuda_chunk_plan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < DR_INPUTS; i++)
        if (plan->rows.input[i].vector && !plan->rows.input[i].per_value) bytes += part_bytes(plan, (dr_input)i);
    return bytes;
}

/* Whether an input's gradient is the sum of the parts of its key head's value heads. */
static bool is_spread(const dr_cuda_rows *rows, int i) {
    return rows->group > 1 && rows->input[i].vector && !rows->input[i].per_value && rows->input[i].gradient;
}

/* The call with these parts in the place of gradients, and then their sums. */
static dr_cuda_backward_call spread(const dr_cuda_backward_call *call) {
    dr_cuda_backward_call parts = *call;
    char *at = call->back.heads_part;
    for (int i = 0; i < DR_INPUTS && at; i++) {
        if (!is_spread(&call->plan.rows, i)) continue;
        parts.plan.rows.input[i].gradient = at;
        at += part_bytes(&call->plan, (dr_input)i);
    }
    return parts;
}

static dr_status sum_parts(const dr_cuda_backward_call *call, const dr_cuda_backward_call *parts, dr_cuda_stream stream) {
    for (int i = 0; i < DR_INPUTS && call->back.heads_part; i++)
        if (is_spread(&call->plan.rows, i))
            DR_TRY(dr_cuda_backward_sum_heads(&call->plan, parts->plan.rows.input[i].gradient,
                                              input_rows(&call->plan, (dr_input)i), call->plan.rows.input[i].gradient, stream));
    return DR_OK;
}

void dr_cuda_backward_lay(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_backward_tensors *tensors) {
    const int64_t K = plan->key_width, V = plan->value_width, N = DR_CUDA_CHUNK_ROWS;
    const size_t element = dr_dtype_size(plan->storage), tokens = (size_t)plan->tokens;
    const bool fused = dr_cuda_backward_fuses(plan);
    *tensors = (dr_cuda_backward_tensors){
        .d_exit = take(arena, plan, V, K, element),
        .value_dot = take(arena, plan, 1, N, sizeof(float)),
        .write_dot = take(arena, plan, 1, N, sizeof(float)),
    };
    if (!plan->linear_back) tensors->d_update = take(arena, plan, N, V, element);
    if (!fused) {
        tensors->update = take(arena, plan, N, V, element);
        tensors->d_score = take(arena, plan, N, N, element);
        if (plan->reads) tensors->d_erase = take(arena, plan, N, N, element);
    }
    const bool direct = plan->rows.direct, led = direct || plan->rows.made;
    if (!led) {
        tensors->d_query = take(arena, plan, N, K, sizeof(float));
        tensors->d_write = take(arena, plan, N, K, sizeof(float));
        if (plan->reads) tensors->d_read = take(arena, plan, N, K, sizeof(float));
    }
    if (direct && plan->rows.group > 1) tensors->heads_part = dr_arena_take(arena, spread_bytes(plan));
    if (plan->reads && led) tensors->gain_part = take(arena, plan, K / 64, N, sizeof(float));
    if (direct && !fused && plan->rows.row[0].reads == DR_READS_AFFINE)
        tensors->lambda_part = take(arena, plan, K / 64, N, sizeof(float));
    if (dr_cuda_diagonal_inside_back(plan)) {
        tensors->scan_gain_part = take(arena, plan, K / 64, N, sizeof(float));
        tensors->scan_decay_part = take(arena, plan, K / 64, N, sizeof(float));
    } else if (plan->rows.diagonal_scan) {
        tensors->write_part = take(arena, plan, K / 64, N, sizeof(float));
        tensors->square_part = take(arena, plan, K / 64, N, sizeof(float));
    }
    if (plan->rows.scalar_decay && !fused) tensors->decay_part = take(arena, plan, K / 64, N, sizeof(float));
    if (plan->parts > 1) {
        const size_t states = dr_cuda_chunk_part_states(plan) * sizeof(float);
        tensors->local = dr_arena_take(arena, states);
        tensors->between = dr_arena_take(arena, states);
        if (plan->linear) tensors->passage = dr_arena_take(arena, states / ((size_t)V * (size_t)K));
    }
    if (plan->rows.constant_decay)
        tensors->d_log_decay = dr_arena_take(arena, tokens * (size_t)plan->value_heads * sizeof(float));
    if (plan->rows.asks == DR_ASKS_AFFINE)
        tensors->d_correction = dr_arena_take(arena, tokens * (size_t)plan->key_heads * sizeof(float));
}

dr_status dr_cuda_backward_run(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const bool rows_back = dr_cuda_diagonal_rows_back(&call->plan);
    if (dr_cuda_diagonal_inside_back(&call->plan) || rows_back)
        DR_TRY(dr_cuda_diagonal_begin_inside(&call->plan, call->chunk.cu, &call->chain, NULL, stream));
    const size_t dots = dr_cuda_diagonal_dots_bytes(&call->plan);
    if (dots > 0) DR_CUDA(cudaMemsetAsync(call->diagonal.dots, 0xff, dots, stream.at)); /* to DR_UNTOLD (told.cuh) */
    DR_TRY(dr_cuda_backward_reverse(call, stream));
    const dr_cuda_backward_call parts = spread(call);
    if (dr_cuda_backward_fuses(&call->plan)) {
        DR_TRY(dr_cuda_backward_gradients(&parts, stream));
    } else {
        DR_TRY(dr_cuda_backward_updates(call, stream));
        DR_TRY(dr_cuda_backward_keys(&parts, stream));
        DR_TRY(dr_cuda_backward_decay(call, stream));
    }
    DR_TRY(sum_parts(call, &parts, stream));
    DR_TRY(dr_cuda_backward_rows(call, stream));
    return rows_back ? dr_cuda_backward_key_scan(call, stream) : DR_OK;
}
