/* The CPU backend's table of operations, and opening it: which kernels run is decided once, here, from what the machine has and
 * the options ask for. Apart from scratch memory it keeps nothing between calls. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "backends/cpu/recurrence.h"
#include "backends/cpu/threads.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/host.h"

#include <stdio.h>
#include <string.h>

static void describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    const dr_cpu_state *state = backend->state;
    char text[160];
    snprintf(text, sizeof text, "cpu: float32, OpenMP, threads: %d", backend->threads);
    line(context, text);
#if defined(__aarch64__)
    const char *neon = ", neon";
#else
    const char *neon = "";
#endif
    snprintf(text, sizeof text, "cpu features found: portable%s%s%s", state->features.avx2 ? ", avx2" : "",
             state->features.avx512 ? ", avx512" : "", neon);
    line(context, text);
    snprintf(text, sizeof text, "cpu kernels chosen: %s for matrix products, convolutions, norms, gates, losses, optimizer",
             backend->isa);
    line(context, text);
    snprintf(text, sizeof text, "cpu kernels chosen: %s for recurrences (chunkwise, recurrent, decode)", backend->isa);
    line(context, text);
}

static void close_backend(dr_backend *backend) {
    dr_cpu_state *state = backend->state;
    for (int i = 0; i < DR_CPU_SCRATCH_PLACES; i++) dr_release(atomic_load(&state->scratch[i]));
    dr_release(state);
    dr_release(backend);
}

static const dr_operations operations = {
    .name = "cpu",
    .dtype = DR_F32,
    .bf16_state = true,
    .pools = true,
    .prefill = true,
    .forms = true,
    .panels = 1,
    .allocate = dr_cpu_allocate,
    .free = dr_host_free,
    .zero = dr_host_zero,
    .copy = dr_host_copy,
    .put = dr_host_copy,
    .get = dr_host_copy,
    .upload = dr_cpu_upload,
    .download = dr_cpu_download,
    .describe = describe,
    .close = close_backend,
    .linear_forward = dr_cpu_linear_forward,
    .linear_backward = dr_cpu_linear_backward,
    .grouped_linear_forward = dr_cpu_grouped_linear_forward,
    .grouped_linear_backward = dr_cpu_grouped_linear_backward,
    .embedding_forward = dr_cpu_embedding_forward,
    .embedding_backward = dr_cpu_embedding_backward,
    .rms_norm_forward = dr_cpu_rms_norm_forward,
    .rms_norm_backward = dr_cpu_rms_norm_backward,
    .l2_norm_forward = dr_cpu_l2_norm_forward,
    .l2_norm_backward = dr_cpu_l2_norm_backward,
    .conv_forward = dr_cpu_conv_forward,
    .conv_backward = dr_cpu_conv_backward,
    .gate_forward = dr_cpu_gate_forward,
    .gate_backward = dr_cpu_gate_backward,
    .rotary = dr_cpu_rotary,
    .attention_forward = dr_cpu_attention_forward,
    .attention_backward = dr_cpu_attention_backward,
    .attention_append = dr_cpu_attention_append,
    .route_forward = dr_cpu_route_forward,
    .route_backward = dr_cpu_route_backward,
    .balance = dr_cpu_balance,
    .experts_sort = dr_cpu_experts_sort,
    .experts_gather_forward = dr_cpu_experts_gather_forward,
    .experts_gather_backward = dr_cpu_experts_gather_backward,
    .experts_linear_forward = dr_cpu_experts_linear_forward,
    .experts_linear_backward = dr_cpu_experts_linear_backward,
    .experts_combine_forward = dr_cpu_experts_combine_forward,
    .experts_combine_backward = dr_cpu_experts_combine_backward,
    .layer_norm_forward = dr_cpu_layer_norm_forward,
    .layer_norm_backward = dr_cpu_layer_norm_backward,
    .sum_norm_forward = dr_cpu_sum_norm_forward,
    .sum_norm_backward = dr_cpu_sum_norm_backward,
    .token_shift_forward = dr_cpu_token_shift_forward,
    .token_shift_backward = dr_cpu_token_shift_backward,
    .blend_forward = dr_cpu_blend_forward,
    .blend_backward = dr_cpu_blend_backward,
    .bonus_forward = dr_cpu_bonus_forward,
    .bonus_backward = dr_cpu_bonus_backward,
    .depth_forward = dr_cpu_depth_forward,
    .depth_backward = dr_cpu_depth_backward,
    .apply_forward = dr_cpu_apply_forward,
    .apply_backward = dr_cpu_apply_backward,
    .gated_forward = dr_cpu_gated_forward,
    .gated_backward = dr_cpu_gated_backward,
    .bound_forward = dr_cpu_bound_forward,
    .bound_backward = dr_cpu_bound_backward,
    .swiglu_forward = dr_cpu_swiglu_forward,
    .swiglu_backward = dr_cpu_swiglu_backward,
    .add = dr_cpu_add,
    .scale_heads_forward = dr_cpu_scale_heads_forward,
    .scale_heads_backward = dr_cpu_scale_heads_backward,
    .copy_heads = dr_cpu_copy_heads,
    .rows_gather = dr_cpu_rows_gather,
    .rows_scatter = dr_cpu_rows_scatter,
    .cross_entropy = dr_cpu_cross_entropy,
    .sum_losses = dr_host_sum_losses,
    .sum_squares = dr_cpu_sum_squares,
    .clip = dr_host_clip,
    .adamw = dr_cpu_adamw,
    .momentum = dr_cpu_momentum,
    .descend = dr_cpu_descend,
    .recurrence_plan = dr_cpu_recurrence_plan,
    .recurrence_forward = dr_cpu_recurrence_forward,
    .recurrence_backward = dr_cpu_recurrence_backward,
    .recurrence_decode = dr_cpu_recurrence_decode,
    .recurrence_chunk = dr_cpu_recurrence_chunk,
    .recurrence_boundary = dr_cpu_recurrence_boundary,
    .recurrence_kernel = dr_cpu_recurrence_kernel,
    .recurrence_path = dr_cpu_recurrence_path,
};

#if defined(__aarch64__)
#define DR_ISA_NAMES "neon"
#else
#define DR_ISA_NAMES "avx2, avx512"
#endif

/* The kernels that the options name, or the best that the machine has. */
static dr_status choose_kernels(const char *isa, dr_cpu_features features, const dr_cpu_kernels **kernels) {
    const struct {
        const dr_cpu_kernels *kernels;
        bool found;
    } known[] = {
#if defined(__x86_64__)
        {&dr_cpu_kernels_avx512, features.avx512},
        {&dr_cpu_kernels_avx2, features.avx2},
#elif defined(__aarch64__)
        {&dr_cpu_kernels_neon, true},
#endif
        {&dr_cpu_kernels_portable, true}
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (isa && strcmp(isa, known[i].kernels->name) != 0) continue;
        if (isa && !known[i].found)
            return dr_fail(DR_ERROR_UNSUPPORTED, "this machine has no %s: choose portable%s, or none to take the best", isa,
                           features.avx2 ? " or avx2" : "");
        if (!known[i].found) continue;
        *kernels = known[i].kernels;
        return DR_OK;
    }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no instruction set \"%s\": it is one of portable, " DR_ISA_NAMES, isa);
}

dr_backend dr_cpu_imagine(const dr_backend_options *options) {
    (void)options; /* what is saved is the same for every instruction set */
    return (dr_backend){.ops = &operations, .isa = dr_cpu_kernels_portable.name, .threads = 1, .storage = DR_F32};
}

/* Its table is one of its own, in which what reads weights reads these. */
static void narrow_weights(dr_backend *backend, dr_dtype weights) {
    dr_operations *own = &((dr_cpu_state *)backend->state)->operations;
    *own = operations;
    own->linear_forward = dr_cpu_narrow_linear_forward;
    own->linear_backward = dr_cpu_narrow_linear_backward;
    own->grouped_linear_forward = dr_cpu_narrow_grouped_linear_forward;
    own->embedding_forward = dr_cpu_narrow_embedding_forward;
    own->experts_linear_forward = dr_cpu_narrow_experts_linear_forward;
    own->weights_store = dr_host_weights_store;
    own->weights_load = dr_host_weights_load;
    backend->ops = own;
    backend->weights = weights;
}

dr_status dr_cpu_open(const dr_backend_options *options, dr_backend **backend) {
    dr_cpu_features features = dr_cpu_detect();
    const dr_cpu_kernels *kernels = NULL;
    DR_TRY(choose_kernels(options ? options->isa : NULL, features, &kernels));
    int threads;
    DR_TRY(dr_cpu_choose_threads(options ? options->threads : 0, &threads));
    void *memory = NULL, *state = NULL;
    const dr_backend plain = dr_cpu_imagine(options);
    if (options && options->weights != DR_F32) DR_TRY(dr_weights_check(&plain, options->weights));
    DR_TRY(dr_allocate(sizeof(dr_backend), "a backend", &memory));
    dr_status status = dr_allocate(sizeof(dr_cpu_state), "a backend's state", &state);
    if (status != DR_OK) {
        dr_release(memory);
        return status;
    }
    *(dr_cpu_state *)state = (dr_cpu_state){.kernels = kernels, .features = features};
    dr_backend *opened = memory;
    *opened = (dr_backend){.ops = &operations, .isa = kernels->name, .threads = threads, .storage = DR_F32, .state = state};
    if (options && options->weights != DR_F32) narrow_weights(opened, options->weights);
    *backend = opened;
    return DR_OK;
}
