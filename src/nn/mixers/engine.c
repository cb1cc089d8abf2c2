/* Prefill, training and one-token decode differ here, and nowhere else in a mixer. */
#include "nn/mixers/engine.h"
#include "base/error.h"
#include "ops/plan_make.h"
#include "ops/shapes.h"

dr_status dr_engine_plan(dr_backend *backend, dr_recurrence recurrence, const dr_layout *layout, void *plan) {
    recurrence.layout = *layout;
    DR_TRY(dr_recurrence_check(&recurrence));
    recurrence.longest = dr_layout_longest(layout);
    if (recurrence.longest < 1) recurrence.longest = 1;
    return dr_plan_make(backend, &recurrence, NULL, layout->cu_seqlens ? DR_CALLS_PACKED : DR_CALLS_EVEN, plan);
}

dr_status dr_engine_chunk(dr_backend *backend, dr_recurrence recurrence, int64_t *tokens) {
    enum { MANY = 4096 };
    const dr_layout layout = {.sequences = 1, .rows = MANY};
    dr_plan plan;
    dr_stage_path path;
    DR_TRY(dr_engine_plan(backend, recurrence, &layout, &plan));
    DR_TRY(dr_plan_path(&plan, false, DR_STAGE_STATE_PASS, &path));
    *tokens = path.chunk > 1 ? path.chunk : 1;
    return DR_OK;
}

static const dr_plan *plan_of(const dr_module_call *call) {
    return call->plan;
}

void *dr_engine_place_saved(const dr_module_call *call, dr_arena *arena) {
    return dr_arena_take(arena, plan_of(call)->memory.saved);
}

void *dr_engine_place_work(const dr_module_call *call, bool backward, dr_arena *arena) {
    const dr_recurrence_memory *engine = &plan_of(call)->memory;
    size_t work = call->decode ? engine->decode : engine->forward;
    if (backward && engine->backward > work) work = engine->backward;
    return dr_arena_take(arena, work);
}

void dr_engine_place_states(const dr_recurrence *recurrence, dr_backend *backend, dr_arena *arena, void *states[DR_STATES]) {
    for (int kind = 0; kind < DR_STATES; kind++) {
        if (!dr_rule_carries(recurrence->rule, (dr_state_kind)kind)) continue;
        const int64_t count = dr_recurrence_state_count(recurrence, (dr_state_kind)kind);
        states[kind] = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, count));
    }
}

static dr_call run_of(const dr_module_call *call, const dr_inputs *inputs, void *saved, void *work) {
    return (dr_call){.size = sizeof(dr_call),
                     .boundaries = {.at = call->decode ? NULL : call->layout.cu_seqlens, .dtype = DR_I64, .device = true},
                     .inputs = inputs,
                     .saved = saved,
                     .workspace = work};
}

/* Several tokens of one sequence, one after another: the plan is of one. */
static dr_status decode_rows(const dr_module_call *call, const dr_inputs *inputs, const dr_call *first) {
    const dr_plan *plan = plan_of(call);
    const dr_recurrence *recurrence = &plan->recurrence;
    dr_inputs row = *inputs;
    dr_call run = *first;
    run.inputs = &row;
    for (int64_t r = 0; r < call->layout.rows; r++) {
        DR_TRY(dr_plan_decode(plan, &run));
        for (int i = 0; i < DR_INPUTS; i++) {
            if (!row.at[i] || !dr_recurrence_input_form(recurrence, (dr_input)i).per_row) continue;
            const int64_t count = dr_recurrence_input_count(recurrence, (dr_input)i);
            row.at[i] = (const char *)row.at[i] + dr_kind_bytes(call->backend, dr_input_kind((dr_input)i), count);
        }
        run.o = (char *)run.o + dr_kind_bytes(call->backend, DR_VECTOR, recurrence->value_heads * recurrence->value_size);
    }
    return DR_OK;
}

dr_status dr_engine_forward(const dr_module_call *call, const dr_inputs *inputs, void *saved, void *work,
                            void *const states[DR_STATES], void *o) {
    dr_states initial = {{NULL}};
    dr_mutable_states final = {{NULL}};
    dr_call run = run_of(call, inputs, saved, work);
    run.o = o;
    for (int kind = 0; states && kind < DR_STATES; kind++) initial.at[kind] = final.at[kind] = states[kind];
    if (call->decode) {
        run.states = &final;
        return call->layout.rows > call->layout.sequences ? decode_rows(call, inputs, &run)
                                                          : dr_plan_decode(plan_of(call), &run);
    }
    if (states) run.initial = &initial, run.final = &final;
    return dr_plan_forward(plan_of(call), &run);
}

dr_status dr_engine_backward(const dr_module_call *call, const dr_inputs *inputs, void *saved, void *work, const void *d_o,
                             const dr_input_gradients *gradients) {
    dr_call run = run_of(call, inputs, saved, work);
    run.d_o = d_o;
    run.d_inputs = gradients;
    return dr_plan_backward(plan_of(call), &run);
}
