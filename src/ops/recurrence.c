/* The public recurrence: checks every argument once, before anything is written, then hands over to the backend. */
#include "base/error.h"
#include "ops/operations.h"
#include "ops/shapes.h"

static dr_status check_backend(const dr_backend *backend) {
    return backend ? DR_OK : dr_fail(DR_ERROR_ARGUMENT, "the backend is missing");
}

static dr_status check_pointer(const void *pointer, bool needed, const char *what) {
    return pointer || !needed ? DR_OK : dr_fail(DR_ERROR_ARGUMENT, "%s is missing", what);
}

/* Every input that the rule uses is there, and no other: one too many is a mistake about the rule. */
static dr_status check_inputs(const dr_recurrence *recurrence, const dr_inputs *inputs) {
    if (!inputs) return dr_fail(DR_ERROR_ARGUMENT, "the inputs are missing");
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(recurrence->rule, i)) {
            if (inputs->at[i])
                return dr_fail(DR_ERROR_ARGUMENT, "input %s is given, but the rule does not use it", dr_input_name(i));
        } else if (!inputs->at[i] && dr_recurrence_input_count(recurrence, i) > 0) {
            return dr_fail(DR_ERROR_ARGUMENT, "input %s is missing", dr_input_name(i));
        }
    }
    return DR_OK;
}

/* at: the pointers of any of the structs of states; none may be for a state that the rule does not carry. */
static dr_status check_states(const dr_recurrence *recurrence, const void *const *at, const char *what) {
    for (int i = 0; i < DR_STATES; i++)
        if (at[i] && !dr_rule_carries(recurrence->rule, i))
            return dr_fail(DR_ERROR_ARGUMENT, "%s state %s is given, but the rule does not carry it", what, dr_state_name(i));
    return DR_OK;
}

static dr_status check_mutable_states(const dr_recurrence *recurrence, const dr_mutable_states *states, const char *what) {
    dr_states view = {{0}};
    for (int i = 0; i < DR_STATES; i++) view.at[i] = states ? states->at[i] : NULL;
    return check_states(recurrence, view.at, what);
}

static dr_status check_gradients(const dr_recurrence *recurrence, const dr_input_gradients *gradients) {
    if (!gradients) return dr_fail(DR_ERROR_ARGUMENT, "the gradients of the inputs are missing");
    for (int i = 0; i < DR_INPUTS; i++)
        if (gradients->at[i] && !dr_rule_uses(recurrence->rule, i))
            return dr_fail(DR_ERROR_ARGUMENT, "the gradient of %s is wanted, but the rule does not use it", dr_input_name(i));
    return DR_OK;
}

dr_dtype dr_recurrence_output_dtype(const dr_backend *backend) {
    return backend->ops->dtype == DR_F32 ? backend->storage : backend->ops->dtype;
}

dr_dtype dr_recurrence_input_dtype(const dr_backend *backend, dr_input input) {
    return dr_input_is_vector(input) ? dr_recurrence_output_dtype(backend) : backend->ops->dtype;
}

/* Whether o and d_o have elements: every size but rows is at least 1. */
static bool has_output(const dr_recurrence *recurrence) {
    return recurrence->layout.rows > 0;
}

dr_status dr_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    DR_TRY(check_backend(backend));
    DR_TRY(dr_recurrence_check(recurrence));
    if (!memory) return dr_fail(DR_ERROR_ARGUMENT, "the place for the plan is missing");
    if (recurrence->bf16_state && !backend->ops->bf16_state)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no states in bfloat16", backend->ops->name);
    return backend->ops->recurrence_plan(backend, recurrence, memory);
}

dr_status dr_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                void *workspace) {
    dr_recurrence_memory memory;
    DR_TRY(dr_recurrence_plan(backend, recurrence, &memory));
    DR_TRY(check_inputs(recurrence, inputs));
    if (initial) DR_TRY(check_states(recurrence, initial->at, "initial"));
    DR_TRY(check_pointer(o, has_output(recurrence), "the output o"));
    DR_TRY(check_mutable_states(recurrence, final, "final"));
    DR_TRY(check_pointer(workspace, memory.forward > 0, "the workspace"));
    return backend->ops->recurrence_forward(backend, recurrence, inputs, initial, o, final, saved, workspace);
}

dr_status dr_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                 const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                 const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    dr_recurrence_memory memory;
    DR_TRY(dr_recurrence_plan(backend, recurrence, &memory));
    DR_TRY(check_inputs(recurrence, inputs));
    if (initial) DR_TRY(check_states(recurrence, initial->at, "initial"));
    DR_TRY(check_pointer(saved, memory.saved > 0, "what the forward saved"));
    DR_TRY(check_pointer(d_o, has_output(recurrence), "the gradient d_o of the output"));
    if (d_final) DR_TRY(check_states(recurrence, d_final->at, "the gradient of the final"));
    DR_TRY(check_gradients(recurrence, d_inputs));
    DR_TRY(check_mutable_states(recurrence, d_initial, "the gradient of the initial"));
    DR_TRY(check_pointer(workspace, memory.backward > 0, "the workspace"));
    return backend->ops->recurrence_backward(backend, recurrence, inputs, initial, saved, d_o, d_final, d_inputs, d_initial,
                                             workspace);
}

static dr_status check_carried(const dr_recurrence *recurrence, const dr_mutable_states *states) {
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(recurrence->rule, i) && !(states && states->at[i]))
            return dr_fail(DR_ERROR_ARGUMENT, "decode updates state %s in place, and it is missing", dr_state_name(i));
    return DR_OK;
}

static dr_status check_one_token_each(const dr_layout *layout) {
    if (layout->rows != layout->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "decode takes one token for each sequence, not %lld for %lld",
                       (long long)layout->rows, (long long)layout->sequences);
    for (int64_t i = 0; i < layout->sequences; i++)
        if (dr_layout_begin(layout, i) != i)
            return dr_fail(DR_ERROR_ARGUMENT, "decode takes one token for each sequence, but sequence %lld begins at row %lld",
                           (long long)i, (long long)dr_layout_begin(layout, i));
    return DR_OK;
}

dr_status dr_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                               const dr_mutable_states *states, void *o, void *workspace) {
    dr_recurrence_memory memory;
    DR_TRY(dr_recurrence_plan(backend, recurrence, &memory));
    DR_TRY(check_one_token_each(&recurrence->layout));
    DR_TRY(check_inputs(recurrence, inputs));
    DR_TRY(check_pointer(o, has_output(recurrence), "the output o"));
    DR_TRY(check_mutable_states(recurrence, states, "the"));
    DR_TRY(check_carried(recurrence, states));
    DR_TRY(check_pointer(workspace, memory.decode > 0, "the workspace"));
    return backend->ops->recurrence_decode(backend, recurrence, inputs, states, o, workspace);
}

static dr_status check_slots(const dr_layout *layout, const dr_slots *slots) {
    if (!slots) return dr_fail(DR_ERROR_ARGUMENT, "the slots are missing");
    DR_TRY(check_pointer(slots->from, true, "the list of slots that sequences start from"));
    if (slots->slots < 1 || slots->slots > INT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld slots: there must be 1 to %lld", (long long)slots->slots, (long long)INT32_MAX);
    if (slots->tokens < 1 || layout->rows % slots->tokens != 0 || layout->rows / slots->tokens != layout->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld rows are not %lld tokens of each of %lld sequences", (long long)layout->rows,
                       (long long)slots->tokens, (long long)layout->sequences);
    if (layout->cu_seqlens)
        return dr_fail(DR_ERROR_ARGUMENT, "decode from slots takes equally many tokens of each sequence, not cu_seqlens");
    return DR_OK;
}

dr_status dr_recurrence_decode_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                                     const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace) {
    dr_recurrence_memory memory;
    DR_TRY(dr_recurrence_plan(backend, recurrence, &memory));
    DR_TRY(check_slots(&recurrence->layout, slots));
    DR_TRY(check_inputs(recurrence, inputs));
    DR_TRY(check_pointer(o, has_output(recurrence), "the output o"));
    DR_TRY(check_mutable_states(recurrence, states, "the"));
    DR_TRY(check_carried(recurrence, states));
    DR_TRY(check_pointer(workspace, memory.decode > 0, "the workspace"));
    if (!backend->ops->recurrence_decode_slots)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s keeps no pools of states: decode with the states of each sequence",
                       backend->ops->name);
    return backend->ops->recurrence_decode_slots(backend, recurrence, slots, inputs, states, o, workspace);
}

dr_status dr_recurrence_boundaries(dr_backend *backend, const dr_recurrence *recurrence, int64_t sequence, int64_t *chunk,
                                   int64_t *count) {
    dr_recurrence_memory memory;
    DR_TRY(dr_recurrence_plan(backend, recurrence, &memory));
    const dr_layout *layout = &recurrence->layout;
    if (sequence < 0 || sequence >= layout->sequences)
        return dr_fail(DR_ERROR_ARGUMENT, "there is no sequence %lld: there are %lld, counted from 0", (long long)sequence,
                       (long long)layout->sequences);
    DR_TRY(check_pointer(chunk, true, "the place for the tokens of a chunk"));
    DR_TRY(check_pointer(count, true, "the place for the number of boundaries"));
    const int64_t tokens = dr_layout_begin(layout, sequence + 1) - dr_layout_begin(layout, sequence);
    if (!backend->ops->recurrence_chunk)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s saves no states between tokens: its backward computes them again",
                       backend->ops->name);
    *chunk = backend->ops->recurrence_chunk(backend, recurrence);
    *count = (tokens + *chunk - 1) / *chunk;
    return DR_OK;
}

dr_status dr_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                                 int64_t boundary, const dr_mutable_states *states) {
    int64_t chunk, count;
    DR_TRY(dr_recurrence_boundaries(backend, recurrence, sequence, &chunk, &count));
    if (boundary < 0 || boundary >= count)
        return dr_fail(DR_ERROR_ARGUMENT, "sequence %lld has no boundary %lld: it has %lld, counted from 0",
                       (long long)sequence, (long long)boundary, (long long)count);
    DR_TRY(check_pointer(saved, true, "what the forward saved"));
    DR_TRY(check_pointer(states, true, "the place for the states"));
    DR_TRY(check_mutable_states(recurrence, states, "the boundary's"));
    return backend->ops->recurrence_boundary(backend, recurrence, saved, sequence, boundary, states);
}

int dr_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text, size_t size) {
    if (check_backend(backend) != DR_OK || dr_recurrence_check(recurrence) != DR_OK) return -1;
    return backend->ops->recurrence_kernel(backend, recurrence, decode, text, size);
}
