/* The calls of a plan: every argument is checked once, before anything is written, then the backend runs. */
#include "base/error.h"
#include "ops/forms.h"
#include "ops/operations.h"
#include "ops/plan_make.h"
#include "ops/shapes.h"

static dr_status check_pointer(const void *pointer, bool needed, const char *what) {
    return pointer || !needed ? DR_OK : dr_fail(DR_ERROR_ARGUMENT, "%s is missing", what);
}

static dr_status check_memory(const void *pointer, size_t bytes, const char *what) {
    DR_TRY(check_pointer(pointer, bytes > 0, what));
    if (pointer && (uintptr_t)pointer % DR_POINTER_ALIGNMENT != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%s begins at an address that is not a multiple of %d", what, DR_POINTER_ALIGNMENT);
    return DR_OK;
}

/* Every input that the rule uses is there, and no other: one too many is a mistake about the rule. */
static dr_status check_inputs(const dr_recurrence *recurrence, const dr_inputs *inputs) {
    DR_NEED(inputs);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(recurrence->rule, (dr_input)i)) {
            if (inputs->at[i])
                return dr_fail(DR_ERROR_ARGUMENT, "input %s is given, but the rule does not use it",
                               dr_input_name((dr_input)i));
        } else if (!inputs->at[i] && dr_recurrence_input_count(recurrence, (dr_input)i) > 0) {
            return dr_fail(DR_ERROR_ARGUMENT, "input %s is missing", dr_input_name((dr_input)i));
        }
    }
    return DR_OK;
}

static dr_status check_state(const dr_recurrence *recurrence, const void *at, int state, const char *what) {
    if (at && !dr_rule_carries(recurrence->rule, (dr_state_kind)state))
        return dr_fail(DR_ERROR_ARGUMENT, "%s state %s is given, but the rule does not carry it", what,
                       dr_state_name((dr_state_kind)state));
    return DR_OK;
}

/* None may be for a state that the rule does not carry. */
static dr_status check_states(const dr_recurrence *recurrence, const dr_states *states, const char *what) {
    for (int i = 0; states && i < DR_STATES; i++) DR_TRY(check_state(recurrence, states->at[i], i, what));
    return DR_OK;
}

static dr_status check_mutable_states(const dr_recurrence *recurrence, const dr_mutable_states *states, const char *what) {
    for (int i = 0; states && i < DR_STATES; i++) DR_TRY(check_state(recurrence, states->at[i], i, what));
    return DR_OK;
}

static dr_status check_gradients(const dr_recurrence *recurrence, const dr_input_gradients *gradients) {
    for (int i = 0; i < DR_INPUTS; i++)
        if (gradients->at[i] && !dr_rule_uses(recurrence->rule, (dr_input)i))
            return dr_fail(DR_ERROR_ARGUMENT, "the gradient of %s is wanted, but the rule does not use it",
                           dr_input_name((dr_input)i));
    return DR_OK;
}

/* Plan, size, threads and stream. */
static dr_status check_call(const dr_plan *plan, const dr_call *call) {
    DR_NEED(plan);
    DR_NEED(call);
    if (call->size != sizeof *call)
        return dr_fail(DR_ERROR_ARGUMENT, "the call says that it has %zu bytes: a dr_call of this library has %zu", call->size,
                       sizeof *call);
    const dr_backend *backend = plan->backend;
    if (call->threads < 0 || (!backend->ops->device && call->threads > backend->threads))
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "a call of %d threads: there may be 1 to the %d of backend %s, for which workspaces are planned, or 0 for all",
            call->threads, backend->threads, backend->ops->name);
    if (call->stream && !backend->ops->device)
        return dr_fail(DR_ERROR_ARGUMENT, "backend %s has no streams, and a call gives one", backend->ops->name);
    return DR_OK;
}

/* ---- boundaries ------------------------------------------------------------------------------------------------------ */

static dr_status check_host_boundaries(const dr_plan *plan, const dr_boundaries *boundaries) {
    const dr_layout *layout = &plan->recurrence.layout;
    const int64_t longest = plan->recurrence.longest;
    int64_t before = dr_boundaries_at(boundaries, 0);
    if (before != 0) return dr_fail(DR_ERROR_ARGUMENT, "boundary 0 is %lld: it must be 0", (long long)before);
    for (int64_t i = 1; i <= layout->sequences; i++) {
        const int64_t at = dr_boundaries_at(boundaries, i);
        if (at < before)
            return dr_fail(DR_ERROR_ARGUMENT, "boundaries fall from %lld to %lld at sequence %lld: they must never fall",
                           (long long)before, (long long)at, (long long)(i - 1));
        if (at - before > longest)
            return dr_fail(DR_ERROR_ARGUMENT, "sequence %lld has %lld tokens: the plan is for at most %lld", (long long)(i - 1),
                           (long long)(at - before), (long long)longest);
        before = at;
    }
    if (before != layout->rows)
        return dr_fail(DR_ERROR_ARGUMENT, "the last boundary is %lld: it must be the plan's %lld rows", (long long)before,
                       (long long)layout->rows);
    return DR_OK;
}

static dr_status check_boundaries(const dr_plan *plan, const dr_boundaries *boundaries) {
    if (!boundaries->at) {
        if (plan->calls & DR_CALLS_EVEN) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT, "%lld rows cannot be %lld sequences of one length: give boundaries",
                       (long long)plan->recurrence.layout.rows, (long long)plan->recurrence.layout.sequences);
    }
    if (boundaries->dtype != DR_I64 && boundaries->dtype != DR_I32)
        return dr_fail(DR_ERROR_ARGUMENT, "boundaries are I64 or I32, not %s", dr_dtype_name(boundaries->dtype));
    if (boundaries->device && plan->backend->ops->device) return DR_OK;
    return check_host_boundaries(plan, boundaries);
}

/* The call as the backend takes it: on the host with boundaries in int64, for which the head of the workspace is. */
static dr_call prepare_call(const dr_plan *plan, const dr_call *call) {
    dr_call prepared = *call;
    dr_boundaries *boundaries = &prepared.boundaries;
    if (plan->backend->ops->device) return prepared;
    if (boundaries->at && boundaries->dtype == DR_I32) {
        int64_t *wide = call->workspace;
        for (int64_t i = 0; i <= plan->recurrence.layout.sequences; i++) wide[i] = dr_boundaries_at(&call->boundaries, i);
        boundaries->at = wide;
    }
    if (call->workspace) prepared.workspace = (char *)call->workspace + plan->room;
    return prepared;
}

/* A_log and dt_bias belong to a raw decay, and so do their gradients. */
static dr_status check_decay_parameters(const dr_plan *plan, const dr_call *call) {
    const bool raw = dr_forms_make(&plan->forms, DR_INPUT_LOG_DECAY);
    if (!raw && (call->A_log || call->dt_bias || call->d_A_log || call->d_dt_bias))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%s is given, but the plan's log decay is not made of a raw one: plan it so (dr_forms)",
                       call->A_log     ? "A_log"
                       : call->dt_bias ? "dt_bias"
                       : call->d_A_log ? "d_A_log"
                                       : "d_dt_bias");
    if (call->d_A_log && !call->A_log)
        return dr_fail(DR_ERROR_ARGUMENT, "the gradient of A_log is wanted, and A_log is missing");
    if (call->d_dt_bias && !call->dt_bias)
        return dr_fail(DR_ERROR_ARGUMENT, "the gradient of dt_bias is wanted, and dt_bias is missing");
    return DR_OK;
}

/* ---- pools ----------------------------------------------------------------------------------------------------------- */

static dr_status check_pool_size(const dr_slots *slots) {
    DR_TRY(check_pointer(slots->from, true, "the list of slots that sequences start from"));
    if (slots->slots < 1 || slots->slots > INT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld slots: there must be 1 to %lld", (long long)slots->slots, (long long)INT32_MAX);
    return DR_OK;
}

/* Lists in host memory name slots that there are; negative numbers have a meaning of their own. */
static dr_status check_slot_list(const int32_t *list, int64_t count, int64_t slots, const char *what) {
    for (int64_t i = 0; list && i < count; i++)
        if (list[i] >= slots)
            return dr_fail(DR_ERROR_ARGUMENT, "%s %lld names slot %d: the pool has %lld", what, (long long)i, (int)list[i],
                           (long long)slots);
    return DR_OK;
}

/* The sequence of a row; boundaries are checked. */
static int64_t begin_of(const dr_layout *layout, const dr_boundaries *boundaries, int64_t row) {
    if (!boundaries->at) return row - row % (layout->rows / layout->sequences);
    int64_t begin = 0;
    for (int64_t i = 0; i < layout->sequences && dr_boundaries_at(boundaries, i) <= row; i++)
        begin = dr_boundaries_at(boundaries, i);
    return begin;
}

static dr_status check_checkpoints(const dr_plan *plan, const dr_call *call) {
    const dr_slots *slots = call->slots;
    const dr_operations *ops = plan->backend->ops;
    const dr_layout *layout = &plan->recurrence.layout;
    if (slots->checkpoints < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld checkpoints: there may be 0 or more", (long long)slots->checkpoints);
    if (slots->checkpoints == 0) return DR_OK;
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(&plan->rule, (dr_state_kind)i) && !(call->final && call->final->at[i]))
            return dr_fail(DR_ERROR_ARGUMENT, "checkpoints are kept in the final pool, and its state %s is missing",
                           dr_state_name((dr_state_kind)i));
    DR_TRY(check_pointer(slots->row, true, "the list of rows of checkpoints"));
    DR_TRY(check_pointer(slots->slot, true, "the list of slots of checkpoints"));
    if (ops->device) return DR_OK;
    DR_TRY(check_slot_list(slots->slot, slots->checkpoints, slots->slots, "checkpoint"));
    const int64_t apart = dr_supports(plan->backend, DR_OPERATION_BOUNDARY) ? ops->recurrence_chunk(plan) : 1;
    for (int64_t i = 0; i < slots->checkpoints; i++) {
        const int64_t row = slots->row[i];
        if (row < 0 || row >= layout->rows)
            return dr_fail(DR_ERROR_ARGUMENT, "checkpoint %lld lies before row %lld: rows are 0 to %lld", (long long)i,
                           (long long)row, (long long)layout->rows - 1);
        const int64_t token = row - begin_of(layout, &call->boundaries, row);
        if (token % apart != 0)
            return dr_fail(DR_ERROR_ARGUMENT,
                           "checkpoint %lld lies before token %lld of its sequence: states are kept every %lld tokens",
                           (long long)i, (long long)token, (long long)apart);
    }
    return DR_OK;
}

/* Slots of a forward. */
static dr_status check_pool(const dr_plan *plan, const dr_call *call) {
    const dr_slots *slots = call->slots;
    const dr_backend *backend = plan->backend;
    const int64_t sequences = plan->recurrence.layout.sequences;
    if (!backend->ops->prefill)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "a forward of backend %s has no pools of states: give it the states of each sequence",
                       backend->ops->name);
    if (backend->ops->device && !(plan->calls & DR_CALLS_POOLED))
        return dr_fail(DR_ERROR_ARGUMENT, "a forward with slots on backend %s: plan it so (dr_plan_create_for_slots)",
                       backend->ops->name);
    DR_TRY(check_pool_size(slots));
    if (!backend->ops->device) {
        DR_TRY(check_slot_list(slots->from, sequences, slots->slots, "the start of sequence"));
        DR_TRY(check_slot_list(slots->to, sequences, slots->slots, "the end of sequence"));
    }
    return check_checkpoints(plan, call);
}

/* ---- forward and backward -------------------------------------------------------------------------------------------- */

dr_status dr_plan_run_forward(const dr_plan *plan, const dr_call *call, bool bounded) {
    const dr_recurrence *recurrence = &plan->recurrence;
    DR_TRY(check_inputs(recurrence, call->inputs));
    DR_TRY(check_states(recurrence, call->initial, "initial"));
    DR_TRY(check_pointer(call->o, recurrence->layout.rows > 0, "the output o"));
    DR_TRY(check_mutable_states(recurrence, call->final, "final"));
    DR_TRY(check_memory(call->saved, 0, "what the forward saves"));
    DR_TRY(check_memory(call->workspace, plan->memory.forward, "the workspace"));
    DR_TRY(check_decay_parameters(plan, call));
    if (!bounded) DR_TRY(check_boundaries(plan, &call->boundaries));
    if (call->slots) DR_TRY(check_pool(plan, call));
    const dr_call prepared = prepare_call(plan, call);
    return plan->backend->ops->recurrence_forward(plan, &prepared);
}

dr_status dr_plan_run_backward(const dr_plan *plan, const dr_call *call, bool bounded) {
    const dr_recurrence *recurrence = &plan->recurrence;
    DR_TRY(check_inputs(recurrence, call->inputs));
    DR_TRY(check_states(recurrence, call->initial, "initial"));
    DR_TRY(check_memory(call->saved, plan->memory.saved, "what the forward saved"));
    DR_TRY(check_pointer(call->d_o, recurrence->layout.rows > 0, "the gradient d_o of the output"));
    DR_TRY(check_states(recurrence, call->d_final, "the gradient of the final"));
    DR_TRY(check_pointer(call->d_inputs, true, "d_inputs, the place for the gradients,"));
    DR_TRY(check_gradients(recurrence, call->d_inputs));
    DR_TRY(check_mutable_states(recurrence, call->d_initial, "the gradient of the initial"));
    DR_TRY(check_memory(call->workspace, plan->memory.backward, "the workspace"));
    DR_TRY(check_decay_parameters(plan, call));
    if (call->slots)
        return dr_fail(DR_ERROR_ARGUMENT, "a backward takes no slots: give the initial states of its sequences, in order");
    if (!bounded) DR_TRY(check_boundaries(plan, &call->boundaries));
    const dr_call prepared = prepare_call(plan, call);
    return plan->backend->ops->recurrence_backward(plan, &prepared);
}

dr_status dr_plan_forward(const dr_plan *plan, const dr_call *call) {
    DR_TRY(check_call(plan, call));
    return dr_plan_run_forward(plan, call, false);
}

dr_status dr_plan_backward(const dr_plan *plan, const dr_call *call) {
    DR_TRY(check_call(plan, call));
    return dr_plan_run_backward(plan, call, false);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

static dr_status check_carried(const dr_recurrence *recurrence, const dr_mutable_states *states) {
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(recurrence->rule, (dr_state_kind)i) && !states->at[i])
            return dr_fail(DR_ERROR_ARGUMENT, "decode updates state %s in place, and it is missing",
                           dr_state_name((dr_state_kind)i));
    return DR_OK;
}

static dr_status check_slots(const dr_backend *backend, const dr_layout *layout, const dr_slots *slots) {
    DR_TRY(check_pool_size(slots));
    if (slots->tokens < 1 || layout->rows % slots->tokens != 0 || layout->rows / slots->tokens != layout->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld rows are not %lld tokens of each of %lld sequences", (long long)layout->rows,
                       (long long)slots->tokens, (long long)layout->sequences);
    if (slots->checkpoints != 0)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "a decode keeps the state after each token that its list names, and has no checkpoints");
    if (backend->ops->device) return DR_OK;
    DR_TRY(check_slot_list(slots->from, layout->sequences, slots->slots, "the start of sequence"));
    return check_slot_list(slots->to, layout->rows, slots->slots, "the slot after row");
}

dr_status dr_plan_run_decode(const dr_plan *plan, const dr_call *call) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const dr_backend *backend = plan->backend;
    if (call->slots)
        DR_TRY(check_slots(backend, &recurrence->layout, call->slots));
    else if (recurrence->layout.rows != recurrence->layout.sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "decode takes one token for each sequence, not %lld for %lld",
                       (long long)recurrence->layout.rows, (long long)recurrence->layout.sequences);
    DR_TRY(check_inputs(recurrence, call->inputs));
    DR_TRY(check_pointer(call->o, recurrence->layout.rows > 0, "the output o"));
    DR_TRY(check_mutable_states(recurrence, call->states, "the"));
    DR_TRY(check_pointer(call->states, true, "states, which decode updates,"));
    DR_TRY(check_carried(recurrence, call->states));
    DR_TRY(check_decay_parameters(plan, call));
    DR_TRY(check_memory(call->workspace, plan->memory.decode, "the workspace"));
    if (call->slots && !backend->ops->pools)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s keeps no pools of states: decode with the states of each sequence",
                       backend->ops->name);
    return backend->ops->recurrence_decode(plan, call);
}

dr_status dr_plan_decode(const dr_plan *plan, const dr_call *call) {
    DR_TRY(check_call(plan, call));
    if (call->boundaries.at)
        return dr_fail(DR_ERROR_ARGUMENT, "decode takes equally many tokens of each sequence, and no boundaries");
    return dr_plan_run_decode(plan, call);
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

dr_status dr_plan_find_boundaries(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t *chunk, int64_t *count) {
    const dr_layout *layout = &plan->recurrence.layout;
    const dr_backend *backend = plan->backend;
    if (sequence < 0 || sequence >= layout->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "there is no sequence %lld: there are %lld, counted from 0", (long long)sequence,
                       (long long)layout->sequences);
    DR_NEED(chunk);
    DR_NEED(count);
    const dr_boundaries *at = &call->boundaries;
    const int64_t tokens =
        at->at ? dr_boundaries_at(at, sequence + 1) - dr_boundaries_at(at, sequence) : layout->rows / layout->sequences;
    if (!dr_supports(backend, DR_OPERATION_BOUNDARY))
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s saves no states between tokens: its backward computes them again",
                       backend->ops->name);
    *chunk = backend->ops->recurrence_chunk(plan);
    *count = tokens / *chunk + (tokens % *chunk > 0);
    return DR_OK;
}

dr_status dr_plan_find_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                                const dr_mutable_states *states) {
    int64_t chunk = 0, count = 0;
    DR_TRY(dr_plan_find_boundaries(plan, call, sequence, &chunk, &count));
    if (boundary < 0 || boundary >= count)
        return dr_fail(DR_ERROR_ARGUMENT, "sequence %lld has no boundary %lld: it has %lld, counted from 0",
                       (long long)sequence, (long long)boundary, (long long)count);
    DR_TRY(check_pointer(call->saved, true, "what the forward saved"));
    DR_NEED(states);
    DR_TRY(check_mutable_states(&plan->recurrence, states, "the boundary's"));
    return plan->backend->ops->recurrence_boundary(plan, call, sequence, boundary, states);
}

static dr_status check_read_boundaries(const dr_plan *plan, const dr_call *call) {
    DR_TRY(check_call(plan, call));
    if (call->boundaries.at && call->boundaries.device && plan->backend->ops->device)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "boundaries on the device are not read here: give those of this call in host memory");
    return check_boundaries(plan, &call->boundaries);
}

dr_status dr_plan_boundaries(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t *chunk, int64_t *count) {
    DR_TRY(check_read_boundaries(plan, call));
    return dr_plan_find_boundaries(plan, call, sequence, chunk, count);
}

dr_status dr_plan_boundary(const dr_plan *plan, const dr_call *call, int64_t sequence, int64_t boundary,
                           const dr_mutable_states *states) {
    DR_TRY(check_read_boundaries(plan, call));
    return dr_plan_find_boundary(plan, call, sequence, boundary, states);
}
