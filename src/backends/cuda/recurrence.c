/* The recurrence on a GPU: what it takes, and which engine runs. Two engines share what this table entry offers: token by
 * token and chunkwise, which DR_PATH_BEST prefers where it takes the recurrence. Decoding is the first
 * one's. The thread's device is set here, once a call. */
#include "backends/cuda/recurrence.h"

#include "backends/cuda/chunkwise/widened.h"
#include "backends/cuda/engines.h"

/* The rules and sizes that no engine of the GPU takes. */
static dr_status check(const dr_recurrence *recurrence) {
    const dr_rule *rule = recurrence->rule;
    if (rule->scan == DR_SCAN_GRAM || rule->scan == DR_SCAN_INVERSE_GRAM)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda has no scan \"%s\", only none and diagonal: use backend cpu",
                       dr_scan_name(rule->scan));
    if (recurrence->key_size > DR_CUDA_MOST_KEY || recurrence->value_size > DR_CUDA_MOST_VALUE)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend cuda takes heads of at most %d key and %d value channels, not %lld and %lld: use backend cpu",
                       DR_CUDA_MOST_KEY, DR_CUDA_MOST_VALUE, (long long)recurrence->key_size,
                       (long long)recurrence->value_size);
    return DR_OK;
}

/* The entries of an engine (engines.h). */
typedef struct {
    dr_status (*plan)(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
    dr_status (*forward)(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                         const dr_states *initial, void *o, const dr_mutable_states *final, void *saved, void *workspace);
    dr_status (*backward)(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                          const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                          const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace);
    dr_status (*boundary)(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                          int64_t boundary, const dr_mutable_states *states);
} engine;

static const engine recurrent = {dr_cuda_recurrent_plan, dr_cuda_recurrent_forward, dr_cuda_recurrent_backward,
                                 dr_cuda_recurrent_boundary};
static const engine chunkwise = {dr_cuda_chunkwise_plan, dr_cuda_chunkwise_forward, dr_cuda_chunkwise_backward,
                                 dr_cuda_chunkwise_boundary};
static const engine widened = {dr_cuda_widened_plan, dr_cuda_widened_forward, dr_cuda_widened_backward,
                               dr_cuda_widened_boundary};

/* DR_ERROR_UNSUPPORTED if the chunkwise engine is asked for and does not take the recurrence. */
static dr_status choose(const dr_backend *backend, const dr_recurrence *recurrence, const engine **chosen) {
    DR_TRY(check(recurrence));
    *chosen = &recurrent;
    if (recurrence->path == DR_PATH_RECURRENT) return DR_OK;
    dr_status status = dr_cuda_chunkwise_check(backend, recurrence);
    if (status == DR_OK) *chosen = dr_cuda_widens(backend, recurrence) ? &widened : &chunkwise;
    return recurrence->path == DR_PATH_CHUNKWISE ? status : DR_OK;
}

/* What a call is about: the plan's, with where its sequences begin. */
static dr_status recurrence_of(const dr_plan *plan, const dr_call *call, dr_recurrence *recurrence) {
    *recurrence = plan->recurrence;
    if (call->boundaries.at && (call->boundaries.device || call->boundaries.dtype != DR_I64))
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda takes boundaries as I64 in host memory");
    recurrence->layout.cu_seqlens = call->boundaries.at;
    return DR_OK;
}

dr_status dr_cuda_recurrence_plan(dr_plan *plan) {
    const engine *chosen;
    DR_TRY(choose(plan->backend, &plan->recurrence, &chosen));
    plan->memory = (dr_recurrence_memory){0};
    plan->saved = (dr_saved_size){.segment = 1};
    DR_TRY(dr_cuda_decode_plan(plan->backend, &plan->recurrence, &plan->memory));
    return chosen->plan(plan->backend, &plan->recurrence, &plan->memory);
}

dr_status dr_cuda_recurrence_forward(const dr_plan *plan, const dr_call *call) {
    const dr_states from = call->initial ? *call->initial : (dr_states){{NULL}};
    const dr_mutable_states to = call->final ? *call->final : (dr_mutable_states){{NULL}};
    const engine *chosen;
    dr_recurrence recurrence;
    int before;
    DR_TRY(recurrence_of(plan, call, &recurrence));
    DR_TRY(choose(plan->backend, &recurrence, &chosen));
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status =
        chosen->forward(plan->backend, &recurrence, call->inputs, &from, call->o, &to, call->saved, call->workspace);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_backward(const dr_plan *plan, const dr_call *call) {
    const dr_states from = call->initial ? *call->initial : (dr_states){{NULL}};
    const dr_states d_from = call->d_final ? *call->d_final : (dr_states){{NULL}};
    const dr_mutable_states d_to = call->d_initial ? *call->d_initial : (dr_mutable_states){{NULL}};
    const engine *chosen;
    dr_recurrence recurrence;
    int before;
    DR_TRY(recurrence_of(plan, call, &recurrence));
    DR_TRY(choose(plan->backend, &recurrence, &chosen));
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status = chosen->backward(plan->backend, &recurrence, call->inputs, &from, call->saved, call->d_o, &d_from,
                                        call->d_inputs, &d_to, call->workspace);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_decode(const dr_plan *plan, const dr_call *call) {
    int before;
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status =
        dr_cuda_decode(plan->backend, &plan->recurrence, call->slots, call->inputs, call->states, call->o, call->workspace);
    dr_cuda_leave(before);
    return status;
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

int64_t dr_cuda_recurrence_chunk(const dr_plan *plan) {
    const engine *chosen;
    const dr_recurrence *recurrence = &plan->recurrence;
    return choose(plan->backend, recurrence, &chosen) == DR_OK && chosen != &recurrent
               ? dr_cuda_chunkwise_chunk(plan->backend, recurrence)
               : dr_cuda_recurrent_chunk(recurrence);
}

dr_status dr_cuda_recurrence_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                      const dr_mutable_states *states) {
    const engine *chosen;
    dr_recurrence recurrence;
    int before;
    DR_TRY(recurrence_of(plan, call, &recurrence));
    DR_TRY(choose(plan->backend, &recurrence, &chosen));
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status = chosen->boundary(plan->backend, &recurrence, call->saved, sequence, boundary, states);
    dr_cuda_leave(before);
    return status;
}

int dr_cuda_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size) {
    const engine *chosen;
    const dr_backend *backend = plan->backend;
    const char *storage = dr_dtype_name(backend->storage);
    if (decode) return snprintf(text, size, "cuda decode %s %s", backend->isa, storage);
    const dr_status status = choose(backend, &plan->recurrence, &chosen);
    if (status == DR_OK && chosen == &widened) return dr_cuda_widened_kernel(backend, &plan->recurrence, text, size);
    if (status == DR_OK && chosen == &chunkwise) return dr_cuda_chunkwise_kernel(backend, &plan->recurrence, text, size);
    return snprintf(text, size, "cuda recurrent %s %s", backend->isa, storage);
}

void dr_cuda_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path) {
    (void)packed;
    *path = (dr_stage_path){.storage = plan->backend->storage, .chunk = dr_cuda_recurrence_chunk(plan), .parts = 1};
    dr_cuda_recurrence_kernel(plan, stage == DR_STAGE_DECODE, path->instance, sizeof path->instance);
}
