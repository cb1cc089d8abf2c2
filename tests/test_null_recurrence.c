/* Every pointer of recurrence.h, plan.h and state.h, NULL: arguments, and what stands in the structs of a call. */
#include "null.h"

#include <deltarule/plan.h>
#include <deltarule/prefill.h>
#include <deltarule/state.h>

enum { ROWS = 8, SEQUENCES = 2, HEADS = 1, SIZE = 4 };

/* A rule of two states at most, and all that its calls take. */
typedef struct {
    dr_backend *backend;
    dr_recurrence many, one; /* many tokens; one of each sequence */
    dr_plan *plan, *decoding;
    dr_recurrence_memory memory;
    dr_inputs inputs;
    dr_input_gradients gradients;
    dr_mutable_states states;
    dr_states initial;
    void *o, *d_o, *saved, *workspace;
} things;

static void *take(const dr_backend *backend, size_t bytes) {
    void *memory = NULL;
    assert_int_equal(dr_backend_allocate((dr_backend *)backend, bytes, &memory), DR_OK);
    dr_backend_zero((dr_backend *)backend, memory, bytes);
    return memory;
}

static things begin(void) {
    const dr_backend_options options = {.threads = 1};
    things t = {.many = dr_recurrence_default()};
    assert_int_equal(dr_backend_open("cpu", &options, &t.backend), DR_OK);
    t.many.rule = dr_rule_find("gdn");
    t.many.layout = (dr_layout){.sequences = SEQUENCES, .rows = ROWS};
    t.many.key_heads = t.many.value_heads = HEADS;
    t.many.key_size = t.many.value_size = SIZE;
    t.one = t.many;
    t.one.layout.rows = SEQUENCES;
    assert_int_equal(dr_plan_create(t.backend, &t.many, &t.plan), DR_OK);
    assert_int_equal(dr_plan_create(t.backend, &t.one, &t.decoding), DR_OK);
    assert_int_equal(dr_plan_memory(t.plan, &t.memory), DR_OK);
    const size_t bytes = ROWS * SIZE * sizeof(float);
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(t.many.rule, (dr_input)i)) {
            t.inputs.at[i] = take(t.backend, bytes);
            t.gradients.at[i] = take(t.backend, bytes);
        }
    t.states.at[DR_STATE_S] = take(t.backend, SEQUENCES * SIZE * SIZE * sizeof(float));
    t.initial.at[DR_STATE_S] = t.states.at[DR_STATE_S];
    t.o = take(t.backend, bytes);
    t.d_o = take(t.backend, bytes);
    t.saved = take(t.backend, t.memory.saved);
    const size_t most = t.memory.forward > t.memory.backward ? t.memory.forward : t.memory.backward;
    t.workspace = take(t.backend, most + t.memory.decode);
    return t;
}

static void end(things *t) {
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_backend_free(t->backend, (void *)t->inputs.at[i]);
        dr_backend_free(t->backend, t->gradients.at[i]);
    }
    dr_backend_free(t->backend, t->states.at[DR_STATE_S]);
    dr_backend_free(t->backend, t->o);
    dr_backend_free(t->backend, t->d_o);
    dr_backend_free(t->backend, t->saved);
    dr_backend_free(t->backend, t->workspace);
    dr_plan_destroy(t->plan);
    dr_plan_destroy(t->decoding);
    dr_backend_close(t->backend);
}

static void test_recurrence(void **unused) {
    (void)unused;
    things t = begin();
    dr_backend *backend = t.backend;
    const dr_recurrence *many = &t.many;
    dr_recurrence_memory memory;
    HARMLESS(dr_recurrence_input_dtype, "backend", == DR_F32, NULL, DR_INPUT_KEY);
    HARMLESS(dr_recurrence_input_dtype, "backend", == DR_F32, NULL, DR_INPUT_BETA);
    HARMLESS(dr_recurrence_output_dtype, "backend", == DR_F32, NULL);
    HARMLESS(dr_forms_default, "backend", .output == DR_F32, NULL);
    REFUSED(dr_recurrence_plan, "backend", NULL, many, &memory);
    REFUSED(dr_recurrence_plan, "recurrence", backend, NULL, &memory);
    REFUSED(dr_recurrence_plan, "memory", backend, many, NULL);
    dr_recurrence no_rule = t.many;
    no_rule.rule = NULL;
    REFUSED(dr_recurrence_plan, "rule", backend, &no_rule, &memory);

    REFUSED(dr_recurrence_forward, "backend", NULL, many, &t.inputs, NULL, t.o, NULL, t.saved, t.workspace);
    REFUSED(dr_recurrence_forward, "recurrence", backend, NULL, &t.inputs, NULL, t.o, NULL, t.saved, t.workspace);
    REFUSED(dr_recurrence_forward, "inputs", backend, many, NULL, NULL, t.o, NULL, t.saved, t.workspace);
    ALLOWED(dr_recurrence_forward, "initial", backend, many, &t.inputs, NULL, t.o, &t.states, t.saved, t.workspace);
    REFUSED(dr_recurrence_forward, "output o", backend, many, &t.inputs, NULL, NULL, NULL, t.saved, t.workspace); /* "o" */
    ALLOWED(dr_recurrence_forward, "final", backend, many, &t.inputs, &t.initial, t.o, NULL, t.saved, t.workspace);
    ALLOWED(dr_recurrence_forward, "saved", backend, many, &t.inputs, NULL, t.o, NULL, NULL, t.workspace);
    REFUSED(dr_recurrence_forward, "workspace", backend, many, &t.inputs, NULL, t.o, NULL, t.saved, NULL);
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_inputs without = t.inputs;
        if (!without.at[i]) continue;
        without.at[i] = NULL;
        REFUSED(dr_recurrence_forward, dr_input_name((dr_input)i), backend, many, &without, NULL, t.o, NULL, t.saved,
                t.workspace);
    }
    end(&t);
    null_all_right();
}

#define BACKWARD(saved, d_o, d_final, d_inputs, d_initial, workspace)                                                          \
    backend, many, &t.inputs, NULL, saved, d_o, d_final, d_inputs, d_initial, workspace
static void test_backward(void **unused) {
    (void)unused;
    things t = begin();
    dr_backend *backend = t.backend;
    const dr_recurrence *many = &t.many;
    REFUSED(dr_recurrence_backward, "backend", NULL, many, &t.inputs, NULL, t.saved, t.d_o, NULL, &t.gradients, NULL,
            t.workspace);
    REFUSED(dr_recurrence_backward, "recurrence", backend, NULL, &t.inputs, NULL, t.saved, t.d_o, NULL, &t.gradients, NULL,
            t.workspace);
    REFUSED(dr_recurrence_backward, "inputs", backend, many, NULL, NULL, t.saved, t.d_o, NULL, &t.gradients, NULL, t.workspace);
    ALLOWED(dr_recurrence_backward, "initial", BACKWARD(t.saved, t.d_o, &t.initial, &t.gradients, NULL, t.workspace));
    REFUSED(dr_recurrence_backward, "saved", BACKWARD(NULL, t.d_o, NULL, &t.gradients, NULL, t.workspace));
    REFUSED(dr_recurrence_backward, "d_o", BACKWARD(t.saved, NULL, NULL, &t.gradients, NULL, t.workspace));
    ALLOWED(dr_recurrence_backward, "d_final", BACKWARD(t.saved, t.d_o, NULL, &t.gradients, &t.states, t.workspace));
    REFUSED(dr_recurrence_backward, "d_inputs", BACKWARD(t.saved, t.d_o, NULL, NULL, NULL, t.workspace));
    ALLOWED(dr_recurrence_backward, "d_initial", BACKWARD(t.saved, t.d_o, NULL, &t.gradients, NULL, t.workspace));
    REFUSED(dr_recurrence_backward, "workspace", BACKWARD(t.saved, t.d_o, NULL, &t.gradients, NULL, NULL));
    end(&t);
    null_all_right();
}

static void test_decode(void **unused) {
    (void)unused;
    things t = begin();
    dr_backend *backend = t.backend;
    const dr_recurrence *one = &t.one;
    const int32_t slots_of[SEQUENCES] = {0, 1};
    const dr_slots slots = {.slots = SEQUENCES, .tokens = 1, .from = slots_of};
    const dr_mutable_states nowhere = {{NULL}};
    REFUSED(dr_recurrence_decode, "backend", NULL, one, &t.inputs, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode, "recurrence", backend, NULL, &t.inputs, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode, "inputs", backend, one, NULL, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode, "states", backend, one, &t.inputs, NULL, t.o, t.workspace);
    REFUSED(dr_recurrence_decode, "state S", backend, one, &t.inputs, &nowhere, t.o, t.workspace);
    REFUSED(dr_recurrence_decode, "output o", backend, one, &t.inputs, &t.states, NULL, t.workspace); /* "o" */
    if (t.memory.decode > 0) REFUSED(dr_recurrence_decode, "workspace", backend, one, &t.inputs, &t.states, t.o, NULL);
    REFUSED(dr_recurrence_decode_slots, "backend", NULL, one, &slots, &t.inputs, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode_slots, "recurrence", backend, NULL, &slots, &t.inputs, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode_slots, "slots", backend, one, NULL, &t.inputs, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode_slots, "inputs", backend, one, &slots, NULL, &t.states, t.o, t.workspace);
    REFUSED(dr_recurrence_decode_slots, "states", backend, one, &slots, &t.inputs, NULL, t.o, t.workspace);
    REFUSED(dr_recurrence_decode_slots, "output o", backend, one, &slots, &t.inputs, &t.states, NULL, t.workspace); /* "o" */
    if (t.memory.decode > 0)
        REFUSED(dr_recurrence_decode_slots, "workspace", backend, one, &slots, &t.inputs, &t.states, t.o, NULL);
    const dr_slots no_slots = {.slots = SEQUENCES, .tokens = 1};
    REFUSED(dr_recurrence_decode_slots, "from", backend, one, &no_slots, &t.inputs, &t.states, t.o, t.workspace);
    end(&t);
    null_all_right();
}

static void test_questions(void **unused) {
    (void)unused;
    things t = begin();
    dr_backend *backend = t.backend;
    const dr_recurrence *many = &t.many;
    dr_recurrence no_rule = t.many;
    no_rule.rule = NULL;
    char text[128];
    int64_t shape[DR_MAX_RANK], chunk, count;
    REFUSED(dr_recurrence_boundaries, "backend", NULL, many, 0, &chunk, &count);
    REFUSED(dr_recurrence_boundaries, "recurrence", backend, NULL, 0, &chunk, &count);
    REFUSED(dr_recurrence_boundaries, "chunk", backend, many, 0, NULL, &count);
    REFUSED(dr_recurrence_boundaries, "count", backend, many, 0, &chunk, NULL);
    REFUSED(dr_recurrence_boundary, "backend", NULL, many, t.saved, 0, 0, &t.states);
    REFUSED(dr_recurrence_boundary, "recurrence", backend, NULL, t.saved, 0, 0, &t.states);
    REFUSED(dr_recurrence_boundary, "saved", backend, many, NULL, 0, 0, &t.states);
    REFUSED(dr_recurrence_boundary, "states", backend, many, t.saved, 0, 0, NULL);
    HARMLESS(dr_recurrence_kernel, "backend", == -1, NULL, many, false, text, sizeof text);
    HARMLESS(dr_recurrence_kernel, "recurrence", == -1, backend, NULL, false, text, sizeof text);
    HARMLESS(dr_recurrence_kernel, "text", == -1, backend, many, false, NULL, sizeof text);
    HARMLESS(dr_recurrence_kernel, "text", > 0, backend, many, false, NULL, 0);
    HARMLESS(dr_recurrence_input_shape, "recurrence", == 0, NULL, DR_INPUT_KEY, shape);
    HARMLESS(dr_recurrence_input_shape, "rule", == 0, &no_rule, DR_INPUT_KEY, shape);
    HARMLESS(dr_recurrence_input_shape, "shape", == 0, many, DR_INPUT_KEY, NULL);
    HARMLESS(dr_recurrence_state_shape, "recurrence", == 0, NULL, DR_STATE_S, shape);
    HARMLESS(dr_recurrence_state_shape, "shape", == 0, many, DR_STATE_S, NULL);
    end(&t);
    null_all_right();
}

static void test_plan(void **unused) {
    (void)unused;
    things t = begin();
    dr_plan *plan;
    dr_recurrence_memory memory;
    dr_saved_size saved;
    dr_stage_path path;
    int64_t chunk, count;
    REFUSED(dr_plan_create, "backend", NULL, &t.many, &plan);
    REFUSED(dr_plan_create, "recurrence", t.backend, NULL, &plan);
    REFUSED(dr_plan_create, "plan", t.backend, &t.many, NULL);
    const dr_forms forms = dr_forms_default(t.backend);
    REFUSED(dr_plan_create_with_forms, "backend", NULL, &t.many, &forms, &plan);
    REFUSED(dr_plan_create_with_forms, "recurrence", t.backend, NULL, &forms, &plan);
    ALLOWED(dr_plan_create_with_forms, "forms", t.backend, &t.many, NULL, &plan);
    REFUSED(dr_plan_create_with_forms, "plan", t.backend, &t.many, &forms, NULL);
    REFUSED(dr_plan_create_for_slots, "backend", NULL, &t.many, &forms, &plan);
    REFUSED(dr_plan_create_for_slots, "recurrence", t.backend, NULL, &forms, &plan);
    ALLOWED(dr_plan_create_for_slots, "forms", t.backend, &t.many, NULL, &plan);
    REFUSED(dr_plan_create_for_slots, "plan", t.backend, &t.many, &forms, NULL);
    NOTHING(dr_plan_destroy, "plan", NULL);
    REFUSED(dr_plan_memory, "plan", NULL, &memory);
    REFUSED(dr_plan_memory, "memory", t.plan, NULL);
    REFUSED(dr_plan_saved, "plan", NULL, &saved);
    REFUSED(dr_plan_saved, "saved", t.plan, NULL);
    REFUSED(dr_recurrence_saved, "backend", NULL, NULL, &t.many, &saved);
    ALLOWED(dr_recurrence_saved, "options", "cpu", NULL, &t.many, &saved);
    REFUSED(dr_recurrence_saved, "recurrence", "cpu", NULL, NULL, &saved);
    REFUSED(dr_recurrence_saved, "saved", "cpu", NULL, &t.many, NULL);
    HARMLESS(dr_saved_bytes, "saved", == SIZE_MAX, NULL, 1, 1);
    HARMLESS(dr_size_of, "type", == 0, NULL);
    REFUSED(dr_plan_path, "plan", NULL, false, DR_STAGE_OUTPUT, &path);
    REFUSED(dr_plan_path, "path", t.plan, false, DR_STAGE_OUTPUT, NULL);

    const dr_call whole = {.size = sizeof whole,
                           .inputs = &t.inputs,
                           .o = t.o,
                           .saved = t.saved,
                           .workspace = t.workspace,
                           .d_o = t.d_o,
                           .d_inputs = &t.gradients,
                           .states = &t.states};
    REFUSED(dr_plan_forward, "plan", NULL, &whole);
    REFUSED(dr_plan_forward, "call", t.plan, NULL);
    REFUSED(dr_plan_backward, "plan", NULL, &whole);
    REFUSED(dr_plan_backward, "call", t.plan, NULL);
    REFUSED(dr_plan_decode, "plan", NULL, &whole);
    REFUSED(dr_plan_decode, "call", t.decoding, NULL);
    REFUSED(dr_plan_boundaries, "plan", NULL, &whole, 0, &chunk, &count);
    REFUSED(dr_plan_boundaries, "call", t.plan, NULL, 0, &chunk, &count);
    REFUSED(dr_plan_boundaries, "chunk", t.plan, &whole, 0, NULL, &count);
    REFUSED(dr_plan_boundaries, "count", t.plan, &whole, 0, &chunk, NULL);
    REFUSED(dr_plan_boundary, "plan", NULL, &whole, 0, 0, &t.states);
    REFUSED(dr_plan_boundary, "call", t.plan, NULL, 0, 0, &t.states);
    REFUSED(dr_plan_boundary, "states", t.plan, &whole, 0, 0, NULL);
    end(&t);
    null_all_right();
}

static void test_call(void **unused) {
    (void)unused;
    things t = begin();
    const dr_call whole = {.size = sizeof whole,
                           .inputs = &t.inputs,
                           .o = t.o,
                           .saved = t.saved,
                           .workspace = t.workspace,
                           .d_o = t.d_o,
                           .d_inputs = &t.gradients,
                           .states = &t.states};
    dr_call call = whole;
    call.inputs = NULL;
    REFUSED(dr_plan_forward, "inputs", t.plan, &call);
    REFUSED(dr_plan_backward, "inputs", t.plan, &call);
    REFUSED(dr_plan_decode, "inputs", t.decoding, &call);
    call = whole, call.o = NULL;
    REFUSED(dr_plan_forward, "output o", t.plan, &call);
    REFUSED(dr_plan_decode, "output o", t.decoding, &call);
    call = whole, call.saved = NULL;
    ALLOWED(dr_plan_forward, "saved", t.plan, &call);
    REFUSED(dr_plan_backward, "saved", t.plan, &call);
    REFUSED(dr_plan_boundary, "saved", t.plan, &call, 0, 0, &t.states);
    call = whole, call.workspace = NULL;
    REFUSED(dr_plan_forward, "workspace", t.plan, &call);
    REFUSED(dr_plan_backward, "workspace", t.plan, &call);
    call = whole, call.d_o = NULL;
    REFUSED(dr_plan_backward, "d_o", t.plan, &call);
    call = whole, call.d_inputs = NULL;
    REFUSED(dr_plan_backward, "d_inputs", t.plan, &call);
    call = whole, call.states = NULL;
    REFUSED(dr_plan_decode, "states", t.decoding, &call);
    end(&t);
    null_all_right();
}

static void test_state(void **unused) {
    (void)unused;
    things t = begin();
    dr_state *state = NULL, *other = NULL;
    dr_states initial;
    dr_mutable_states final;
    char folder[] = "/tmp/null_state_XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/state.safetensors", folder);
    assert_int_equal(dr_state_create(t.backend, &t.many, &state), DR_OK);
    assert_int_equal(dr_state_save(state, file), DR_OK);
    REFUSED(dr_state_create, "backend", NULL, &t.many, &other);
    REFUSED(dr_state_create, "recurrence", t.backend, NULL, &other);
    REFUSED(dr_state_create, "state", t.backend, &t.many, NULL);
    REFUSED(dr_state_clone, "state", NULL, &other);
    REFUSED(dr_state_clone, "copy", state, NULL);
    NOTHING(dr_state_reset, "state", NULL);
    NOTHING(dr_state_destroy, "state", NULL);
    HARMLESS(dr_state_recurrence, "state", == NULL, NULL);
    HARMLESS(dr_state_backend, "state", == NULL, NULL);
    REFUSED(dr_state_check, "state", NULL, t.backend, &t.many);
    REFUSED(dr_state_check, "backend", state, NULL, &t.many);
    REFUSED(dr_state_check, "recurrence", state, t.backend, NULL);
    REFUSED(dr_state_initial, "state", NULL, t.backend, &t.many, &initial);
    REFUSED(dr_state_initial, "backend", state, NULL, &t.many, &initial);
    REFUSED(dr_state_initial, "recurrence", state, t.backend, NULL, &initial);
    REFUSED(dr_state_initial, "initial", state, t.backend, &t.many, NULL);
    REFUSED(dr_state_final, "state", NULL, t.backend, &t.many, &final);
    REFUSED(dr_state_final, "backend", state, NULL, &t.many, &final);
    REFUSED(dr_state_final, "recurrence", state, t.backend, NULL, &final);
    REFUSED(dr_state_final, "final", state, t.backend, &t.many, NULL);
    REFUSED(dr_state_slice, "state", NULL, 0, 1, &other);
    REFUSED(dr_state_slice, "part", state, 0, 1, NULL);
    const dr_state *const parts[] = {state, NULL};
    REFUSED(dr_state_concatenate, "parts", NULL, 1, &other);
    REFUSED(dr_state_concatenate, "part 1", parts, 2, &other);
    REFUSED(dr_state_concatenate, "whole", parts, 1, NULL);
    REFUSED(dr_state_save, "state", NULL, file);
    REFUSED(dr_state_save, "file", state, NULL);
    REFUSED(dr_state_load, "backend", NULL, &t.many, file, &other);
    ALLOWED(dr_state_load, "recurrence", t.backend, NULL, file, &other);
    REFUSED(dr_state_load, "file", t.backend, &t.many, NULL, &other);
    REFUSED(dr_state_load, "state", t.backend, &t.many, file, NULL);
    dr_state_destroy(state);
    unlink(file);
    rmdir(folder);
    end(&t);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recurrence), cmocka_unit_test(test_backward),
                                       cmocka_unit_test(test_decode),     cmocka_unit_test(test_questions),
                                       cmocka_unit_test(test_plan),       cmocka_unit_test(test_call),
                                       cmocka_unit_test(test_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
