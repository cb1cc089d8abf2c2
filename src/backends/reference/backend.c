/* The reference backend's table of operations, and opening it. Its state is a table of its own where weights are narrow. */
#include "backends/reference/narrow.h"
#include "backends/reference/recurrence.h"
#include "backends/reference/reference.h"
#include "backends/reference/stored.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/host.h"

static void describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    (void)backend;
    line(context, "reference: double precision, plain loops on one thread; the specification of every operation");
}

void dr_reference_close(dr_backend *backend) {
    dr_release(backend->state);
    dr_release(backend);
}

static dr_status open_beside(dr_backend *backend, dr_backend **other) {
    const dr_backend_options options = {.dtype = backend->storage == DR_F64 ? (dr_dtype)0 : backend->storage};
    return dr_reference_open(&options, other);
}

static const dr_operations operations = {
    .name = "reference",
    .beside = open_beside,
    .dtype = DR_F64,
    .pools = true,
    .prefill = true,
    .forms = true,
    .panels = 1,
    .allocate = dr_reference_allocate,
    .free = dr_host_free,
    .zero = dr_host_zero,
    .upload = dr_reference_upload,
    .download = dr_reference_download,
    .copy = dr_host_copy,
    .put = dr_host_copy,
    .get = dr_host_copy,
    .describe = describe,
    .close = dr_reference_close,
    .linear_forward = dr_reference_linear_forward,
    .linear_backward = dr_reference_linear_backward,
    .grouped_linear_forward = dr_reference_grouped_linear_forward,
    .grouped_linear_backward = dr_reference_grouped_linear_backward,
    .embedding_forward = dr_reference_embedding_forward,
    .embedding_backward = dr_reference_embedding_backward,
    .rms_norm_forward = dr_reference_rms_norm_forward,
    .rms_norm_backward = dr_reference_rms_norm_backward,
    .l2_norm_forward = dr_reference_l2_norm_forward,
    .l2_norm_backward = dr_reference_l2_norm_backward,
    .conv_forward = dr_reference_conv_forward,
    .conv_backward = dr_reference_conv_backward,
    .gate_forward = dr_reference_gate_forward,
    .gate_backward = dr_reference_gate_backward,
    .rotary = dr_reference_rotary,
    .attention_forward = dr_reference_attention_forward,
    .attention_backward = dr_reference_attention_backward,
    .attention_append = dr_reference_attention_append,
    .route_forward = dr_reference_route_forward,
    .route_backward = dr_reference_route_backward,
    .balance = dr_reference_balance,
    .experts_sort = dr_reference_experts_sort,
    .experts_gather_forward = dr_reference_experts_gather_forward,
    .experts_gather_backward = dr_reference_experts_gather_backward,
    .experts_linear_forward = dr_reference_experts_linear_forward,
    .experts_linear_backward = dr_reference_experts_linear_backward,
    .experts_combine_forward = dr_reference_experts_combine_forward,
    .experts_combine_backward = dr_reference_experts_combine_backward,
    .layer_norm_forward = dr_reference_layer_norm_forward,
    .layer_norm_backward = dr_reference_layer_norm_backward,
    .sum_norm_forward = dr_reference_sum_norm_forward,
    .sum_norm_backward = dr_reference_sum_norm_backward,
    .token_shift_forward = dr_reference_token_shift_forward,
    .token_shift_backward = dr_reference_token_shift_backward,
    .blend_forward = dr_reference_blend_forward,
    .blend_backward = dr_reference_blend_backward,
    .bonus_forward = dr_reference_bonus_forward,
    .bonus_backward = dr_reference_bonus_backward,
    .depth_forward = dr_reference_depth_forward,
    .depth_backward = dr_reference_depth_backward,
    .apply_forward = dr_reference_apply_forward,
    .apply_backward = dr_reference_apply_backward,
    .gated_forward = dr_reference_gated_forward,
    .gated_backward = dr_reference_gated_backward,
    .bound_forward = dr_reference_bound_forward,
    .bound_backward = dr_reference_bound_backward,
    .swiglu_forward = dr_reference_swiglu_forward,
    .swiglu_backward = dr_reference_swiglu_backward,
    .swiglu_panel_forward = dr_reference_swiglu_panel_forward,
    .swiglu_panel_backward = dr_reference_swiglu_panel_backward,
    .add = dr_reference_add,
    .scale_heads_forward = dr_reference_scale_heads_forward,
    .scale_heads_backward = dr_reference_scale_heads_backward,
    .copy_heads = dr_reference_copy_heads,
    .rows_gather = dr_reference_rows_gather,
    .rows_scatter = dr_reference_rows_scatter,
    .cross_entropy = dr_reference_cross_entropy,
    .choose = dr_reference_choose,
    .sum_losses = dr_host_sum_losses,
    .sum_squares = dr_reference_sum_squares,
    .clip = dr_host_clip,
    .adamw = dr_reference_adamw,
    .momentum = dr_reference_momentum,
    .descend = dr_reference_descend,
    .recurrence_plan = dr_reference_recurrence_plan,
    .recurrence_forward = dr_reference_recurrence_forward,
    .recurrence_backward = dr_reference_recurrence_backward,
    .recurrence_decode = dr_reference_recurrence_decode,
    .recurrence_kernel = dr_reference_recurrence_kernel,
    .recurrence_path = dr_reference_recurrence_path,
};

/* DR_F32, the zero of the options, stands for double. */
static bool is_stored(const dr_backend_options *options) {
    return options && (options->dtype == DR_BF16 || options->dtype == DR_F16);
}

dr_backend dr_reference_imagine(const dr_backend_options *options) {
    bool stored = is_stored(options);
    return (dr_backend){.ops = stored ? &dr_reference_stored_operations : &operations,
                        .isa = "double",
                        .threads = 1,
                        .storage = stored ? options->dtype : DR_F64};
}

static dr_status narrow_weights(const dr_backend_options *options, dr_backend *backend) {
    if (!options || options->weights == DR_F32) return DR_OK;
    DR_TRY(dr_weights_check(backend, options->weights));
    DR_TRY(dr_allocate(sizeof(dr_operations), "a table of operations", &backend->state));
    *(dr_operations *)backend->state = operations;
    dr_reference_narrow(backend->state);
    backend->ops = backend->state;
    backend->weights = options->weights;
    return DR_OK;
}

dr_status dr_reference_open(const dr_backend_options *options, dr_backend **backend) {
    void *memory = NULL;
    if (options && options->dtype != DR_F32 && options->dtype != DR_F64 && !is_stored(options))
        return dr_fail(DR_ERROR_ARGUMENT, "vectors of backend \"reference\" are F64, BF16 or F16, not %s",
                       dr_dtype_name(options->dtype));
    DR_TRY(dr_allocate(sizeof(dr_backend), "a backend", &memory));
    dr_backend *opened = memory;
    *opened = dr_reference_imagine(options);
    const dr_status status = narrow_weights(options, opened);
    if (status == DR_OK)
        *backend = opened;
    else
        dr_release(opened);
    return status;
}
