/* The recurrence without a plan of the caller's: each call checks its descriptor and plans on the stack, for calls of its own
 * kind and the sequences that are there. */
#include "base/error.h"
#include "ops/operations.h"
#include "ops/plan_make.h"
#include "ops/shapes.h"

dr_recurrence dr_recurrence_default(void) {
    return (dr_recurrence){.path = DR_PATH_BEST, .forget = DR_FORGET};
}

static dr_status plan_of(const dr_backend *backend, const dr_recurrence *recurrence, dr_plan *plan) {
    DR_NEED(backend);
    DR_TRY(dr_recurrence_check(recurrence));
    dr_recurrence bounded = *recurrence;
    bounded.longest = dr_layout_longest(&recurrence->layout);
    if (bounded.longest < 1) bounded.longest = 1;
    const unsigned calls = recurrence->layout.cu_seqlens ? DR_CALLS_PACKED : DR_CALLS_EVEN;
    return dr_plan_make((dr_backend *)backend, &bounded, NULL, calls, plan);
}

static dr_boundaries boundaries_of(const dr_recurrence *recurrence) {
    return (dr_boundaries){.at = recurrence->layout.cu_seqlens, .dtype = DR_I64};
}

dr_status dr_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    DR_NEED(memory);
    *memory = plan.memory;
    return DR_OK;
}

dr_status dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                void *workspace) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    const dr_call call = {.size = sizeof call,
                          .boundaries = boundaries_of(recurrence),
                          .inputs = inputs,
                          .initial = initial,
                          .o = o,
                          .final = final,
                          .saved = saved,
                          .workspace = workspace};
    return dr_plan_run_forward(&plan, &call, true);
}

dr_status dr_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                 const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                 const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    const dr_call call = {.size = sizeof call,
                          .boundaries = boundaries_of(recurrence),
                          .inputs = inputs,
                          .initial = initial,
                          .saved = (void *)saved,
                          .d_o = d_o,
                          .d_final = d_final,
                          .d_inputs = d_inputs,
                          .d_initial = d_initial,
                          .workspace = workspace};
    return dr_plan_run_backward(&plan, &call, true);
}

static dr_status check_one_token_each(const dr_layout *layout) {
    if (layout->rows != layout->sequences) return DR_OK; /* which is told with those of plans */
    for (int64_t i = 0; layout->cu_seqlens && i < layout->sequences; i++)
        if (layout->cu_seqlens[i] != i)
            return dr_fail(DR_ERROR_ARGUMENT, "decode takes one token for each sequence, but sequence %lld begins at row %lld",
                           (long long)i, (long long)layout->cu_seqlens[i]);
    return DR_OK;
}

dr_status dr_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                               const dr_mutable_states *states, void *o, void *workspace) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    DR_TRY(check_one_token_each(&recurrence->layout));
    const dr_call call = {.size = sizeof call, .inputs = inputs, .o = o, .states = states, .workspace = workspace};
    return dr_plan_run_decode(&plan, &call);
}

dr_status dr_recurrence_decode_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                                     const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    DR_NEED(slots);
    if (recurrence->layout.cu_seqlens)
        return dr_fail(DR_ERROR_ARGUMENT, "decode from slots takes equally many tokens of each sequence, not cu_seqlens");
    const dr_call call = {
        .size = sizeof call, .inputs = inputs, .o = o, .states = states, .slots = slots, .workspace = workspace};
    return dr_plan_run_decode(&plan, &call);
}

dr_status dr_recurrence_boundaries(dr_backend *backend, const dr_recurrence *recurrence, int64_t sequence, int64_t *chunk,
                                   int64_t *count) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    const dr_call call = {.size = sizeof call, .boundaries = boundaries_of(recurrence)};
    return dr_plan_find_boundaries(&plan, &call, sequence, chunk, count);
}

dr_status dr_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                                 int64_t boundary, const dr_mutable_states *states) {
    dr_plan plan;
    DR_TRY(plan_of(backend, recurrence, &plan));
    const dr_call call = {.size = sizeof call, .boundaries = boundaries_of(recurrence), .saved = (void *)saved};
    return dr_plan_find_boundary(&plan, &call, sequence, boundary, states);
}

int dr_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text, size_t size) {
    dr_plan plan;
    if ((!text && size > 0) || plan_of(backend, recurrence, &plan) != DR_OK) return -1;
    return backend->ops->recurrence_kernel(&plan, decode, text, size);
}
