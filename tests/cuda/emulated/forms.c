/* cuda_emulated_forms: the stages of forms of backend cuda on the host, where there need be no GPU (block.h), around the CPU's
 * recurrence in the place of the GPU's engines: ../formed.h in float32 and in bf16. Threads of a block take turns in other
 * orders in every second round. */
#include "backends/cuda/forms/forms.h"
#include "../formed.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/transfer.h"
#include "base/clock.h"
#include "runtime.h"

#include <deltarule/deltarule.h>
#include <stdio.h>
#include <stdlib.h>

static dr_backend *cpu;

/* A plan of the CPU for what the engine is given. */
static dr_status make(const dr_recurrence *recurrence, dr_dtype storage, dr_plan **plan) {
    dr_forms forms = dr_forms_default(cpu);
    dr_recurrence own = *recurrence;
    if (own.longest == own.layout.rows) own.longest = 0;
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_input_is_vector((dr_input)i)) forms.dtype[i] = storage;
    forms.output = storage;
    return dr_plan_create_with_forms(cpu, &own, &forms, plan);
}

static dr_status plan_calls(dr_plan *plan) {
    dr_plan *own;
    DR_TRY(make(&plan->recurrence, plan->backend->storage, &own));
    dr_plan_memory(own, &plan->memory);
    dr_plan_saved(own, &plan->saved);
    dr_plan_destroy(own);
    if (dr_cuda_is_formed(plan)) dr_cuda_forms_plan(plan);
    return DR_OK;
}

static dr_status run(const dr_cuda_call *call, const dr_slots *slots, const dr_mutable_states *states,
                     dr_status (*calls)(const dr_plan *plan, const dr_call *call)) {
    const dr_call given = {.size = sizeof given,
                           .boundaries = *call->boundaries,
                           .inputs = call->inputs,
                           .initial = call->initial,
                           .o = call->o,
                           .final = call->final,
                           .saved = call->saved,
                           .workspace = call->workspace,
                           .d_o = call->d_o,
                           .d_final = call->d_final,
                           .d_inputs = call->d_inputs,
                           .d_initial = call->d_initial,
                           .states = states,
                           .slots = slots};
    dr_plan *plan;
    DR_TRY(make(call->recurrence, call->storage, &plan));
    dr_recurrence_memory memory;
    dr_plan_memory(plan, &memory);
    dr_call own = given;
    void *workspace = states ? malloc(memory.decode + 64) : NULL; /* a decode of the GPU has none */
    if (workspace) own.workspace = (char *)workspace + (64 - (uintptr_t)workspace % 64) % 64;
    const dr_status status = calls(plan, &own);
    free(workspace);
    dr_plan_destroy(plan);
    return status;
}

static dr_status engine_forward(const dr_cuda_call *call) {
    return run(call, NULL, NULL, dr_plan_forward);
}

static dr_status engine_backward(const dr_cuda_call *call) {
    return run(call, NULL, NULL, dr_plan_backward);
}

static dr_status engine_decode(const dr_cuda_call *call, const dr_slots *slots, const dr_mutable_states *states) {
    return run(call, slots, states, dr_plan_decode);
}

/* States on the way are read out of what the GPU's engines save. */
dr_cuda_saved_states dr_cuda_recurrent_saved(const dr_cuda_call *call) {
    (void)call;
    abort();
}

dr_cuda_saved_states dr_cuda_chunkwise_saved(const dr_cuda_call *call) {
    (void)call;
    abort();
}

static dr_cuda_call call_of(const dr_plan *plan, const dr_call *call) {
    static const dr_states no_states;
    static const dr_mutable_states no_mutable_states;
    return (dr_cuda_call){
        .gpu = dr_cuda_of(plan->backend),
        .storage = plan->backend->storage,
        .recurrence = &plan->recurrence,
        .boundaries = &call->boundaries,
        .inputs = call->inputs,
        .initial = call->initial ? call->initial : &no_states,
        .o = call->o,
        .final = call->final ? call->final : &no_mutable_states,
        .saved = call->saved,
        .workspace = call->workspace,
        .d_o = call->d_o,
        .d_final = call->d_final ? call->d_final : &no_states,
        .d_inputs = call->d_inputs,
        .d_initial = call->d_initial ? call->d_initial : &no_mutable_states,
    };
}

static dr_status forward(const dr_plan *plan, const dr_call *given) {
    const dr_cuda_call call = call_of(plan, given);
    return dr_cuda_is_formed(plan) ? dr_cuda_formed_forward(plan, given, &call, engine_forward) : engine_forward(&call);
}

static dr_status backward(const dr_plan *plan, const dr_call *given) {
    const dr_cuda_call call = call_of(plan, given);
    return dr_cuda_is_formed(plan) ? dr_cuda_formed_backward(plan, given, &call, engine_backward) : engine_backward(&call);
}

static dr_status decode(const dr_plan *plan, const dr_call *given) {
    const dr_cuda_call call = call_of(plan, given);
    return dr_cuda_is_formed(plan) ? dr_cuda_formed_decode(plan, given, &call, engine_decode)
                                   : engine_decode(&call, given->slots, given->states);
}

static const dr_operations operations = {
    .name = "cuda, emulated",
    .dtype = DR_F32,
    .device = true,
    .pools = true,
    .prefill = true,
    .forms = true,
    .allocate = dr_cuda_allocate,
    .free = dr_cuda_free,
    .zero = dr_cuda_zero,
    .upload = dr_cuda_upload,
    .download = dr_cuda_download,
    .upload_as = dr_cuda_upload_as,
    .download_as = dr_cuda_download_as,
    .recurrence_plan = plan_calls,
    .recurrence_forward = forward,
    .recurrence_backward = backward,
    .recurrence_decode = decode,
};

static bool takes(const dr_rule *rule) {
    return rule->scan == DR_SCAN_NONE || rule->scan == DR_SCAN_DIAGONAL;
}

static bool holds(dr_dtype storage, unsigned round, dr_backend *reference) {
    dr_cuda gpu = {.major = 9, .hopper = true, .processors = 4, .shared_limit = 232448};
    dr_backend tested = {.ops = &operations, .isa = "host", .threads = 1, .storage = storage, .state = &gpu};
    fault what = {""};
    formed_trials t = {.tested = &tested,
                       .reference = reference,
                       .takes = takes,
                       .brief = true,
                       .forward = storage == DR_F32 ? 1e-4 : 3e-2,
                       .backward = storage == DR_F32 ? 1e-3 : 6e-2,
                       .what = &what};
    const double start = dr_clock_now();
    if (dr_cuda_transfers_open(&gpu) != DR_OK) return false;
    emulate_manner(round);
    const bool right = formed_calls_hold(&t, round + 1);
    dr_cuda_transfers_close(&gpu);
    printf("%-5s %6ld checks %6.1f s  %s%s; largest error %.2f of what is allowed\n", dr_dtype_name(storage), t.checks,
           dr_clock_now() - start, right ? "all right" : "FAIL: ", what.text, t.worst);
    fflush(stdout);
    return right;
}

int main(void) {
    dr_backend *reference;
    if (dr_backend_open("cpu", NULL, &cpu) != DR_OK || dr_backend_open("reference", NULL, &reference) != DR_OK) return 1;
    bool right = true;
    for (unsigned round = 0; round < 2 && right; round++) right = holds(round ? DR_BF16 : DR_F32, round, reference);
    dr_backend_close(cpu), dr_backend_close(reference);
    return right ? 0 : 1;
}
