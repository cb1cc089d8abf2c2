/* What holds of any engine, on the reference: pieces of a sequence, packed sequences and single gradients have the bits of the
 * whole, missing states are zero; and refused arguments, which write nothing. */
#include "reference_problem.h"

/* Pointers to the rows from first on of the inputs that have rows; the parameters as they are. */
static dr_inputs inputs_from(const problem *p, int64_t first) {
    dr_inputs inputs = inputs_of(p);
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i] && dr_recurrence_input_form(&p->recurrence, i).per_row)
            inputs.at[i] = p->input[i] + first * (p->input_count[i] / p->recurrence.layout.rows);
    return inputs;
}

/* Rules that between them use every axis: the named ones and some drawn. */
enum { DRAWN = 40 };
static dr_rule rule_number(int i, dr_random *random) {
    return i < dr_rule_count() ? *dr_rule_at(i) : draw_rule_with(random, AXIS_ROWS, i % 2);
}

static void copy_states(const problem *p, double *const from[DR_STATES], double *to[DR_STATES], int64_t sequence) {
    for (int s = 0; s < DR_STATES; s++) {
        int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
        to[s] = p->initial[s] ? numbers(each) : NULL;
        if (to[s]) memcpy(to[s], from[s] + sequence * each, (size_t)each * sizeof(double));
    }
}

static void free_states(double *states[DR_STATES]) {
    for (int s = 0; s < DR_STATES; s++) free(states[s]);
}

/* Each sequence of a packed call, alone, gives the same bits; so does one token after the other through decode, and a split
 * anywhere with the state carried over: the reference runs the same operations in each. */
static void assert_pieces_agree(problem *p, int64_t piece, bool decode) {
    int64_t row_size = p->recurrence.value_heads * p->recurrence.value_size;
    double *o = numbers(p->o_count);
    void *workspace = workspace_of(decode ? p->memory.decode : p->memory.forward);
    for (int64_t i = 0; i < p->recurrence.layout.sequences; i++) {
        double *carried[DR_STATES];
        copy_states(p, p->initial, carried, i);
        for (int64_t row = p->cu_seqlens[i]; row < p->cu_seqlens[i + 1]; row += piece) {
            int64_t left = p->cu_seqlens[i + 1] - row, rows = left < piece ? left : piece;
            dr_recurrence part = p->recurrence;
            part.layout = (dr_layout){.sequences = 1, .rows = rows};
            dr_inputs inputs = inputs_from(p, row);
            dr_states initial = states_of(carried);
            dr_mutable_states final = mutable_states_of(carried);
            double *o_part = o + row * row_size;
            dr_status status =
                decode ? dr_recurrence_decode(p->backend, &part, &inputs, &final, o_part, workspace)
                       : dr_recurrence_forward(p->backend, &part, &inputs, &initial, o_part, &final, NULL, workspace);
            if (status != DR_OK) fail_msg("%s", dr_last_error());
        }
        for (int s = 0; s < DR_STATES; s++) {
            int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
            if (carried[s]) assert_memory_equal(carried[s], p->final[s] + i * each, (size_t)each * sizeof(double));
        }
        free_states(carried);
    }
    assert_memory_equal(o, p->o, (size_t)p->o_count * sizeof(double));
    free(o), free(workspace);
}

static void test_pieces_agree(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 2);
    for (int i = 0; i < dr_rule_count() + DRAWN; i++) {
        dr_rule rule = rule_number(i, &random);
        shape size = {2, rule.tied_scan ? 2 : 4, 3, 2, 4, {5, 0, 1, 4}};
        problem *p = problem_create(&rule, &size, &random);
        if (i % 2) fill(p, DR_INPUT_LOG_DECAY, -INFINITY, 5);
        forward(p);
        assert_pieces_agree(p, 100, false);
        assert_pieces_agree(p, 2, false);
        assert_pieces_agree(p, 1, true);
        problem_free(p);
    }
}

/* The gradients of a packed call are those of each sequence alone, bit for bit. Parameters,
 * which all share, are left out. */
static void assert_sequences_have_own_gradients(problem *p) {
    backward(p);
    for (int64_t i = 0; i < p->recurrence.layout.sequences; i++) {
        int64_t first = p->cu_seqlens[i], rows = p->cu_seqlens[i + 1] - first, heads = p->recurrence.value_heads;
        dr_recurrence part = p->recurrence;
        part.layout = (dr_layout){.sequences = 1, .rows = rows};
        dr_inputs inputs = inputs_from(p, first);
        double *initial_of[DR_STATES], *d_final_of[DR_STATES], *d_initial_of[DR_STATES];
        copy_states(p, p->initial, initial_of, i);
        copy_states(p, p->d_final, d_final_of, i);
        copy_states(p, p->d_initial, d_initial_of, i); /* overwritten below */
        dr_states initial = states_of(initial_of), d_final = states_of(d_final_of);
        dr_mutable_states d_initial = mutable_states_of(d_initial_of);
        dr_input_gradients gradients = {{NULL}};
        for (int input = 0; input < DR_INPUTS; input++)
            if (p->input[input]) gradients.at[input] = numbers(dr_recurrence_input_count(&part, input));
        void *workspace = workspace_of(p->memory.backward);
        assert_int_equal(dr_recurrence_backward(p->backend, &part, &inputs, &initial, NULL,
                                                p->d_o + first * heads * p->recurrence.value_size, &d_final, &gradients,
                                                &d_initial, workspace),
                         DR_OK);
        free(workspace);
        for (int input = 0; input < DR_INPUTS; input++) {
            int64_t count = dr_recurrence_input_count(&part, input);
            if (p->input[input] && dr_recurrence_input_form(&part, input).per_row && rows > 0)
                assert_memory_equal(gradients.at[input], p->gradient[input] + first * (count / rows),
                                    (size_t)count * sizeof(double));
            free(gradients.at[input]);
        }
        for (int s = 0; s < DR_STATES; s++) {
            int64_t each = p->state_count[s] / p->recurrence.layout.sequences;
            if (p->initial[s]) assert_memory_equal(d_initial_of[s], p->d_initial[s] + i * each, (size_t)each * sizeof(double));
        }
        free_states(initial_of), free_states(d_final_of), free_states(d_initial_of);
    }
}

static void test_sequences_have_own_gradients(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 4);
    for (int i = 0; i < dr_rule_count() + DRAWN; i++) {
        dr_rule rule = rule_number(i, &random);
        shape size = {2, rule.tied_scan ? 2 : 4, 3, 2, 4, {3, 0, 1, 2}};
        problem *p = problem_create(&rule, &size, &random);
        assert_sequences_have_own_gradients(p);
        problem_free(p);
    }
}

/* Sequences of equal length without cu_seqlens are the same as with. */
static void test_equal_lengths_need_no_cu_seqlens(void **state) {
    (void)state;
    dr_random random = dr_random_start(4, 0);
    problem *p = problem_create(dr_rule_find("pkda"), &(shape){2, 4, 3, 2, 3, {4, 4, 4}}, &random);
    forward(p);
    double *o = numbers(p->o_count);
    memcpy(o, p->o, (size_t)p->o_count * sizeof *o);
    p->recurrence.layout.cu_seqlens = NULL;
    forward(p);
    assert_memory_equal(p->o, o, (size_t)p->o_count * sizeof *o);
    free(o);
    problem_free(p);
}

/* A sequence without tokens passes its states on, and their gradients back. */
static void test_empty_sequences(void **state) {
    (void)state;
    dr_random random = dr_random_start(5, 0);
    for (int r = 0; r < dr_rule_count(); r++) {
        problem *p = problem_create(dr_rule_at(r), &empty_shape, &random);
        forward(p);
        backward(p);
        for (int s = 0; s < DR_STATES; s++)
            if (p->initial[s]) {
                assert_memory_equal(p->final[s], p->initial[s], (size_t)p->state_count[s] * sizeof(double));
                assert_memory_equal(p->d_initial[s], p->d_final[s], (size_t)p->state_count[s] * sizeof(double));
            }
        for (int i = 0; i < DR_INPUTS; i++) /* parameters have a gradient, of nothing */
            for (int64_t j = 0; j < p->input_count[i]; j++) assert_true(p->gradient[i][j] == 0);
        problem_free(p);
    }
}

/* Missing states are zero ones; missing cotangents too. */
static void test_missing_states_are_zero(void **state) {
    (void)state;
    dr_random random = dr_random_start(6, 0);
    problem *p = problem_create(dr_rule_find("pgdn"), &packed_shape, &random);
    for (int s = 0; s < DR_STATES; s++) {
        if (!p->initial[s]) continue;
        memset(p->initial[s], 0, (size_t)p->state_count[s] * sizeof(double));
        memset(p->d_final[s], 0, (size_t)p->state_count[s] * sizeof(double));
    }
    forward(p);
    backward(p);
    double *o = numbers(p->o_count), *gradient[DR_INPUTS] = {NULL};
    dr_inputs inputs = inputs_of(p);
    dr_input_gradients gradients = {{NULL}};
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i]) gradients.at[i] = gradient[i] = numbers(p->input_count[i]);
    assert_int_equal(dr_recurrence_forward(p->backend, &p->recurrence, &inputs, NULL, o, NULL, NULL, p->workspace), DR_OK);
    assert_memory_equal(o, p->o, (size_t)p->o_count * sizeof(double));
    void *workspace = workspace_of(p->memory.backward);
    assert_int_equal(
        dr_recurrence_backward(p->backend, &p->recurrence, &inputs, NULL, NULL, p->d_o, NULL, &gradients, NULL, workspace),
        DR_OK);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (gradient[i]) assert_memory_equal(gradient[i], p->gradient[i], (size_t)p->input_count[i] * sizeof(double));
        free(gradient[i]);
    }
    free(workspace);
    free(o);
    problem_free(p);
}

/* Each gradient alone, all others not wanted, has the same bits as with them. */
static void test_any_gradient_alone(void **state) {
    (void)state;
    dr_random random = dr_random_start(seed(), 3);
    for (int r = 0; r < dr_rule_count() + DRAWN; r++) {
        dr_rule rule = rule_number(r, &random);
        problem *p = problem_create(&rule, &(shape){1, 1, 2, 2, 2, {2, 1}}, &random);
        backward(p);
        for (int wanted = 0; wanted < DR_INPUTS + DR_STATES; wanted++) {
            dr_input_gradients gradients = {{NULL}};
            dr_mutable_states d_initial = {{NULL}};
            bool input = wanted < DR_INPUTS;
            int s = wanted - DR_INPUTS;
            int64_t count = input ? p->input_count[wanted] : p->state_count[s];
            if (count == 0) continue;
            double *alone = numbers(count);
            if (input)
                gradients.at[wanted] = alone;
            else
                d_initial.at[s] = alone;
            backward_into(p, &gradients, &d_initial);
            assert_memory_equal(alone, input ? p->gradient[wanted] : p->d_initial[s], (size_t)count * sizeof(double));
            free(alone);
        }
        problem_free(p);
    }
}

static void test_kernel(void **state) {
    (void)state;
    dr_random random = dr_random_start(7, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &token_shape, &random);
    char text[64];
    for (int decode = 0; decode <= 1; decode++) {
        assert_int_equal(dr_recurrence_kernel(p->backend, &p->recurrence, decode, text, sizeof text), 19);
        assert_string_equal(text, "reference recurrent");
    }
    assert_int_equal(dr_recurrence_kernel(NULL, &p->recurrence, true, text, sizeof text), -1);
    problem_free(p);
}

/* ---- refused arguments ---------------------------------------------------------------------------------------------- */

/* Everything that the calls take, right as it is; a test changes one thing. */
typedef struct {
    dr_backend *backend;
    dr_recurrence recurrence;
    dr_inputs inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    dr_input_gradients gradients;
    double *o, *d_o;
    void *workspace;
    const dr_recurrence *descriptor; /* &recurrence, or NULL */
} call;

static void call_of(problem *p, call *c) {
    *c = (call){.backend = p->backend,
                .recurrence = p->recurrence,
                .inputs = inputs_of(p),
                .initial = states_of(p->initial),
                .d_final = states_of(p->d_final),
                .final = mutable_states_of(p->final),
                .d_initial = mutable_states_of(p->d_initial),
                .o = p->o,
                .d_o = p->d_o,
                .descriptor = &c->recurrence};
    for (int i = 0; i < DR_INPUTS; i++) c->gradients.at[i] = p->gradient[i];
    c->workspace = p->workspace;
}

static dr_status call_plan(call *c) {
    dr_recurrence_memory memory = {1, 2, 3, 4};
    dr_status status = dr_recurrence_plan(c->backend, c->descriptor, &memory);
    if (status != DR_OK) assert_true(memory.forward == 1 && memory.backward == 2 && memory.saved == 3 && memory.decode == 4);
    return status;
}

static dr_status call_forward(call *c) {
    return dr_recurrence_forward(c->backend, c->descriptor, &c->inputs, &c->initial, c->o, &c->final, NULL, c->workspace);
}

static dr_status call_backward(call *c) {
    return dr_recurrence_backward(c->backend, c->descriptor, &c->inputs, &c->initial, NULL, c->d_o, &c->d_final, &c->gradients,
                                  &c->d_initial, c->workspace);
}

static dr_status call_decode(call *c) {
    return dr_recurrence_decode(c->backend, c->descriptor, &c->inputs, &c->final, c->o, c->workspace);
}

static void assert_untouched(const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) assert_true(isnan(x[i]));
}

static void assert_refused(problem *p, dr_status status, const char *reason) {
    if (status != DR_ERROR_ARGUMENT) fail_msg("%s, not refused: %s", dr_status_name(status), reason);
    if (!strstr(dr_last_error(), reason)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), reason);
    assert_untouched(p->o, p->o_count);
    for (int i = 0; i < DR_INPUTS; i++) assert_untouched(p->gradient[i], p->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) {
        assert_untouched(p->final[i], p->state_count[i]);
        assert_untouched(p->d_initial[i], p->state_count[i]);
    }
}

#define REFUSED(which, change, reason)                                                                                         \
    do {                                                                                                                       \
        call c;                                                                                                                \
        call_of(p, &c);                                                                                                        \
        change;                                                                                                                \
        assert_refused(p, which(&c), reason);                                                                                  \
    } while (0)

#define ALL_REFUSED(change, reason)                                                                                            \
    do {                                                                                                                       \
        REFUSED(call_plan, change, reason);                                                                                    \
        REFUSED(call_forward, change, reason);                                                                                 \
        REFUSED(call_backward, change, reason);                                                                                \
        REFUSED(call_decode, change, reason);                                                                                  \
    } while (0)

static void test_refuses_bad_descriptors(void **state) {
    (void)state;
    dr_random random = dr_random_start(8, 0);
    problem *p = problem_create(dr_rule_find("pgdn"), &(shape){2, 4, 3, 2, 2, {1, 1}}, &random);
    dr_rule senseless = p->rule, tied = p->rule;
    senseless.scan = DR_SCAN_NONE;
    tied.tied_scan = true;
    const int64_t falling[] = {0, 3, 2}, late[] = {1, 1, 2}, short_[] = {0, 1, 1};
    ALL_REFUSED(c.backend = NULL, "backend");
    ALL_REFUSED(c.descriptor = NULL, "recurrence is missing");
    ALL_REFUSED(c.recurrence.rule = NULL, "no rule");
    ALL_REFUSED(c.recurrence.rule = &senseless, "scan diagonal");
    ALL_REFUSED(c.recurrence.rule = &tied, "tied_scan needs as many value heads as key heads, not 4 and 2");
    ALL_REFUSED(c.recurrence.layout.sequences = 0, "sequence");
    ALL_REFUSED(c.recurrence.layout.rows = -1, "-1");
    ALL_REFUSED((c.recurrence.layout.cu_seqlens = NULL, c.recurrence.layout.rows = 3), "3");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = falling, "cu_seqlens");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = late, "cu_seqlens");
    ALL_REFUSED(c.recurrence.layout.cu_seqlens = short_, "cu_seqlens");
    ALL_REFUSED(c.recurrence.key_heads = 0, "key heads 0");
    ALL_REFUSED(c.recurrence.key_heads = 3, "4 value heads are not a multiple of 3");
    ALL_REFUSED(c.recurrence.value_heads = -4, "value heads -4");
    ALL_REFUSED(c.recurrence.key_size = 0, "key size 0");
    ALL_REFUSED(c.recurrence.value_size = 0, "value size 0");
    ALL_REFUSED(c.recurrence.key_size = INT64_MAX / 4, "more elements than can be addressed");
    ALL_REFUSED(c.recurrence.value_size = INT64_MAX / 16, "more elements than can be addressed");
    ALL_REFUSED(c.recurrence.scale = NAN, "scale");
    ALL_REFUSED(c.recurrence.scale = INFINITY, "scale");
    ALL_REFUSED(c.recurrence.path = DR_PATH_CHUNKWISE + 1, "path 3");
    ALL_REFUSED(c.recurrence.chunk = -1, "chunk -1");
    assert_int_equal(dr_recurrence_plan(p->backend, &p->recurrence, NULL), DR_ERROR_ARGUMENT);
    problem_free(p);
}

static void test_refuses_bad_pointers(void **state) {
    (void)state;
    dr_random random = dr_random_start(9, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &(shape){2, 4, 3, 2, 2, {1, 1}}, &random);
    double other = 0;
    REFUSED(call_forward, c.inputs.at[DR_INPUT_BETA] = NULL, "input beta is missing");
    REFUSED(call_backward, c.inputs.at[DR_INPUT_LOG_DECAY] = NULL, "input log_decay is missing");
    REFUSED(call_decode, c.inputs.at[DR_INPUT_QUERY] = NULL, "input query is missing");
    REFUSED(call_forward, c.inputs.at[DR_INPUT_RATE] = &other, "input rate is given, but the rule does not use it");
    REFUSED(call_forward, c.o = NULL, "output o");
    REFUSED(call_decode, c.o = NULL, "output o");
    REFUSED(call_backward, c.d_o = NULL, "d_o");
    REFUSED(call_forward, c.initial.at[DR_STATE_A] = &other, "initial state A is given, but the rule does not carry it");
    REFUSED(call_forward, c.final.at[DR_STATE_A] = &other, "final state A");
    REFUSED(call_backward, c.d_final.at[DR_STATE_A] = &other, "final state A");
    REFUSED(call_backward, c.d_initial.at[DR_STATE_A] = &other, "initial state A");
    REFUSED(call_backward, c.gradients.at[DR_INPUT_RATE] = &other, "gradient of rate");
    REFUSED(call_decode, c.final.at[DR_STATE_S] = NULL, "state S in place");
    REFUSED(call_forward, c.workspace = NULL, "workspace");
    REFUSED(call_backward, c.workspace = NULL, "workspace");
    REFUSED(call_decode, c.workspace = NULL, "workspace");
    call c;
    call_of(p, &c);
    assert_refused(p, dr_recurrence_forward(c.backend, &c.recurrence, NULL, NULL, c.o, NULL, NULL, c.workspace), "inputs");
    assert_refused(p, dr_recurrence_decode(c.backend, &c.recurrence, &c.inputs, NULL, c.o, c.workspace), "states");
    assert_refused(
        p, dr_recurrence_backward(c.backend, &c.recurrence, &c.inputs, NULL, NULL, c.d_o, NULL, NULL, NULL, c.workspace),
        "gradients");
    assert_true(other == 0);
    problem_free(p);
}

static void test_decode_takes_one_token_each(void **state) {
    (void)state;
    dr_random random = dr_random_start(10, 0);
    problem *p = problem_create(dr_rule_find("gdn"), &(shape){1, 1, 2, 2, 3, {2, 0, 1}}, &random);
    REFUSED(call_decode, (void)0, "sequence 1 begins at row 2");
    problem_free(p);
    p = problem_create(dr_rule_find("gdn"), &(shape){1, 1, 2, 2, 2, {2, 2}}, &random);
    REFUSED(call_decode, (void)0, "one token for each sequence, not 4 for 2");
    problem_free(p);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_agree),
        cmocka_unit_test(test_sequences_have_own_gradients),
        cmocka_unit_test(test_equal_lengths_need_no_cu_seqlens),
        cmocka_unit_test(test_empty_sequences),
        cmocka_unit_test(test_missing_states_are_zero),
        cmocka_unit_test(test_any_gradient_alone),
        cmocka_unit_test(test_kernel),
        cmocka_unit_test(test_refuses_bad_descriptors),
        cmocka_unit_test(test_refuses_bad_pointers),
        cmocka_unit_test(test_decode_takes_one_token_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
