/* Pools of states on the host's backends: a forward and a decode with slots give the bits of calls with the states of each
 * sequence, checkpoints are the states of the prefixes, nothing else of the pool is touched, and what is refused. */
#include "formed.h"

#include "base/cpu.h"

enum { SLOTS = 9, SEQUENCES = 3 };

/* The states of a pool, of the backend's type, and what was there before. */
typedef struct {
    void *at[DR_STATES];
    size_t each[DR_STATES]; /* bytes of a slot */
} pool;

static size_t item_of(const dr_backend *backend) {
    return dr_dtype_size(dr_backend_dtype(backend));
}

static pool pool_of(const dr_backend *backend, const problem *p, dr_random *random) {
    pool made = {.at = {0}};
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(&p->rule, (dr_state_kind)i)) continue;
        const int64_t count = p->state_count[i] / p->recurrence.layout.sequences;
        made.each[i] = (size_t)count * item_of(backend);
        made.at[i] = block(SLOTS * made.each[i]);
        /* states that can be: a sequence's initial ones, each slot another's */
        for (int64_t s = 0; s < SLOTS; s++)
            for (int64_t j = 0; j < count; j++)
                write_as(dr_backend_dtype(backend), p->initial[i][between(random, 0, 2) * count + j], made.at[i],
                         s * count + j);
    }
    return made;
}

static pool pool_copy(const pool *from) {
    pool to = *from;
    for (int i = 0; i < DR_STATES; i++)
        if (from->at[i]) to.at[i] = memcpy(block(SLOTS * from->each[i]), from->at[i], SLOTS * from->each[i]);
    return to;
}

static void pool_free(pool *p) {
    for (int i = 0; i < DR_STATES; i++) free(p->at[i]);
}

static dr_mutable_states written(const pool *p) {
    dr_mutable_states states = {{0}};
    for (int i = 0; i < DR_STATES; i++) states.at[i] = p->at[i];
    return states;
}

static dr_states read_only(const pool *p) {
    dr_states states = {{0}};
    for (int i = 0; i < DR_STATES; i++) states.at[i] = p->at[i];
    return states;
}

static void same_slot(const char *what, const dr_rule *rule, const pool *a, int64_t slot, const pool *b, int64_t other) {
    for (int i = 0; i < DR_STATES; i++) {
        const char *x = a->at[i], *y = b->at[i];
        if (x && memcmp(x + (size_t)slot * a->each[i], y + (size_t)other * a->each[i], a->each[i]) != 0)
            fail_msg("rule %s: %s: state %s of slot %lld is not that of %lld", rule->name, what,
                     dr_state_name((dr_state_kind)i), (long long)slot, (long long)other);
    }
}

/* ---- a problem ------------------------------------------------------------------------------------------------------- */

static problem *problem_of(const dr_rule *rule, const int64_t cu_seqlens[SEQUENCES + 1], dr_random *random) {
    dr_recurrence sizes = {.layout = {.sequences = SEQUENCES, .rows = cu_seqlens[SEQUENCES], .cu_seqlens = cu_seqlens},
                           .key_heads = 2,
                           .value_heads = rule->tied_scan ? 2 : 4,
                           .key_size = 20,
                           .value_size = 36,
                           .forget = DR_FORGET};
    problem *p = problem_create(rule, &sizes, false, random);
    p->recurrence.rule = &p->rule;
    p->recurrence.chunk = 8;
    return p;
}

static dr_inputs inputs_of(const dr_backend *backend, const problem *p) {
    dr_inputs inputs = {{0}};
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = numbers_in(dr_backend_dtype(backend), p->input[i], p->input_count[i]);
    return inputs;
}

static void inputs_free(dr_inputs *inputs) {
    for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs->at[i]);
}

/* The inputs from a row on. */
static dr_inputs inputs_from(const dr_backend *backend, const problem *p, const dr_inputs *inputs, int64_t row) {
    dr_inputs from = *inputs;
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i] && is_per_token(p, (dr_input)i))
            from.at[i] = (const char *)inputs->at[i] + (size_t)(row * input_width(p, (dr_input)i)) * item_of(backend);
    return from;
}

static size_t output_bytes(const dr_backend *backend, const problem *p, int64_t rows) {
    return (size_t)(rows * p->recurrence.value_heads * p->recurrence.value_size) * item_of(backend);
}

/* Tokens of one sequence from slot `from` of a pool (-1: zero) to slot `to`, without slots: the old way. */
static void forward_alone(dr_backend *backend, const problem *p, const dr_inputs *inputs, int64_t row, int64_t tokens,
                          const pool *states, int64_t from, int64_t to, char *o) {
    dr_recurrence recurrence = p->recurrence;
    recurrence.layout = (dr_layout){.sequences = 1, .rows = tokens};
    dr_states initial = {{0}};
    dr_mutable_states final = {{0}};
    for (int i = 0; i < DR_STATES; i++) {
        char *at = states->at[i];
        if (at && from >= 0) initial.at[i] = at + (size_t)from * states->each[i];
        if (at && to >= 0) final.at[i] = at + (size_t)to * states->each[i];
    }
    const dr_inputs own = inputs_from(backend, p, inputs, row);
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &recurrence, &memory));
    void *workspace = block(memory.forward);
    must(dr_recurrence_forward(backend, &recurrence, &own, &initial, o + output_bytes(backend, p, row), &final, NULL,
                               workspace));
    free(workspace);
}

static dr_plan *plan_of(dr_backend *backend, const problem *p) {
    dr_recurrence recurrence = p->recurrence;
    recurrence.layout.cu_seqlens = NULL;
    dr_plan *plan;
    must(dr_plan_create(backend, &recurrence, &plan));
    return plan;
}

/* ---- prefill --------------------------------------------------------------------------------------------------------- */

static void prefill(dr_backend *backend, const dr_rule *rule, bool in_place, dr_random *random) {
    const int64_t cu_seqlens[] = {0, 20, 20, 53};
    const int32_t from[] = {4, 0, -1}, to[] = {4, 6, 7};
    /* before the first token of a sequence, on the way, and one that is not kept */
    const int32_t row[] = {16, 20, 36, 8}, slot[] = {1, 2, 3, -1};
    problem *p = problem_of(rule, cu_seqlens, random);
    pool before = pool_of(backend, p, random), got = pool_copy(&before), want = pool_copy(&before);
    dr_inputs inputs = inputs_of(backend, p);
    char *o = block(output_bytes(backend, p, 53)), *o_want = block(output_bytes(backend, p, 53));
    dr_plan *plan = plan_of(backend, p);
    dr_recurrence_memory memory;
    must(dr_plan_memory(plan, &memory));
    void *workspace = block(memory.forward);
    const dr_states initial = read_only(in_place ? &got : &before);
    const dr_mutable_states final = written(&got);
    const dr_slots slots = {.slots = SLOTS, .from = from, .to = to, .checkpoints = 4, .row = row, .slot = slot};
    const dr_call call = {.size = sizeof call,
                          .boundaries = {.at = cu_seqlens, .dtype = DR_I64},
                          .inputs = &inputs,
                          .initial = &initial,
                          .o = o,
                          .final = &final,
                          .workspace = workspace,
                          .slots = &slots};
    must(dr_plan_forward(plan, &call));
    forward_alone(backend, p, &inputs, 0, 16, &want, 4, 1, o_want);
    forward_alone(backend, p, &inputs, 20, 16, &want, -1, 3, o_want);
    forward_alone(backend, p, &inputs, 0, 20, &want, 4, 4, o_want);
    forward_alone(backend, p, &inputs, 20, 33, &want, -1, 7, o_want);
    if (memcmp(o, o_want, output_bytes(backend, p, 53)) != 0) fail_msg("rule %s: o of a pool is not o", rule->name);
    same_slot("the end of sequence 0", rule, &got, 4, &want, 4);
    forward_alone(backend, p, &inputs, 20, 0, &want, 0, 6, o_want);
    same_slot("the empty sequence", rule, &got, 6, &want, 6);
    same_slot("the end of sequence 2", rule, &got, 7, &want, 7);
    same_slot("checkpoint 0", rule, &got, 1, &want, 1);
    same_slot("checkpoint 2", rule, &got, 3, &want, 3);
    same_slot("a slot of nobody", rule, &got, 5, &before, 5);
    same_slot("a slot that is read only", rule, &got, 0, &before, 0);
    free(o), free(o_want), free(workspace);
    inputs_free(&inputs);
    pool_free(&before), pool_free(&got), pool_free(&want);
    dr_plan_destroy(plan);
    problem_free(p);
}

static void test_prefill(void **state) {
    dr_backend *backend = *state;
    dr_random random = {.seed = 21};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int in_place = 0; in_place < 2; in_place++) prefill(backend, dr_rule_at(i), in_place, &random);
}

/* The last state in place, where no list says where it goes. */
static void test_prefill_in_place(void **state) {
    dr_backend *backend = *state;
    dr_random random = {.seed = 22};
    const int64_t cu_seqlens[] = {0, 5, 9, 30};
    const int32_t from[] = {8, -1, 2};
    problem *p = problem_of(dr_rule_find("pgdn"), cu_seqlens, &random);
    pool before = pool_of(backend, p, &random), got = pool_copy(&before), want = pool_copy(&before);
    dr_inputs inputs = inputs_of(backend, p);
    char *o = block(output_bytes(backend, p, 30));
    dr_plan *plan = plan_of(backend, p);
    dr_recurrence_memory memory;
    must(dr_plan_memory(plan, &memory));
    void *workspace = block(memory.forward);
    const dr_states initial = read_only(&got);
    const dr_mutable_states final = written(&got);
    const dr_slots slots = {.slots = SLOTS, .from = from};
    const dr_call call = {.size = sizeof call,
                          .boundaries = {.at = cu_seqlens, .dtype = DR_I64},
                          .inputs = &inputs,
                          .initial = &initial,
                          .o = o,
                          .final = &final,
                          .workspace = workspace,
                          .slots = &slots};
    must(dr_plan_forward(plan, &call));
    forward_alone(backend, p, &inputs, 0, 5, &want, 8, 8, o);
    forward_alone(backend, p, &inputs, 9, 21, &want, 2, 2, o);
    for (int s = 0; s < SLOTS; s++) same_slot("in place", &p->rule, &got, s, &want, s);
    free(o), free(workspace);
    inputs_free(&inputs);
    pool_free(&before), pool_free(&got), pool_free(&want);
    dr_plan_destroy(plan);
    problem_free(p);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

/* One token of one sequence in a slot, without slots. */
static void decode_alone(dr_backend *backend, const problem *p, const dr_inputs *inputs, int64_t row, const pool *states,
                         int64_t slot, char *o) {
    dr_recurrence recurrence = p->recurrence;
    recurrence.layout = (dr_layout){.sequences = 1, .rows = 1};
    dr_mutable_states own = {{0}};
    for (int i = 0; i < DR_STATES; i++)
        if (states->at[i]) own.at[i] = (char *)states->at[i] + (size_t)slot * states->each[i];
    const dr_inputs from = inputs_from(backend, p, inputs, row);
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, &recurrence, &memory));
    void *workspace = block(memory.decode);
    must(dr_recurrence_decode(backend, &recurrence, &from, &own, o + output_bytes(backend, p, row), workspace));
    free(workspace);
}

static void copy_slot(const pool *from, int64_t slot, const pool *to, int64_t other) {
    for (int i = 0; i < DR_STATES; i++)
        if (from->at[i])
            memcpy((char *)to->at[i] + (size_t)other * to->each[i], (char *)from->at[i] + (size_t)slot * from->each[i],
                   from->each[i]);
}

/* Two tokens of each sequence, of which one is skipped: states in place, or after each token where a list says. */
static void decode(dr_backend *backend, const dr_rule *rule, bool listed, dr_random *random) {
    const int64_t cu_seqlens[] = {0, 2, 4, 6};
    const int32_t from[] = {3, -1, 5}, to[] = {0, 1, 2, 2, 8, -1};
    problem *p = problem_of(rule, cu_seqlens, random);
    pool before = pool_of(backend, p, random), got = pool_copy(&before), want = pool_copy(&before);
    dr_inputs inputs = inputs_of(backend, p);
    const size_t bytes = output_bytes(backend, p, 6);
    char *o = block(bytes), *o_want = block(bytes);
    memcpy(o_want, o, bytes); /* of the skipped one nothing is written */
    dr_plan *plan = plan_of(backend, p);
    dr_recurrence_memory memory;
    must(dr_plan_memory(plan, &memory));
    void *workspace = block(memory.decode);
    const dr_mutable_states states = written(&got);
    const dr_slots slots = {.slots = SLOTS, .tokens = 2, .from = from, .to = listed ? to : NULL};
    const dr_call call = {
        .size = sizeof call, .inputs = &inputs, .o = o, .states = &states, .workspace = workspace, .slots = &slots};
    must(dr_plan_decode(plan, &call));
    pool work = pool_copy(&before);
    for (int n = 0; n < SEQUENCES; n++)
        for (int t = 0; from[n] >= 0 && t < 2; t++) {
            decode_alone(backend, p, &inputs, 2 * n + t, &work, from[n], o_want);
            const int32_t kept = listed ? to[2 * n + t] : t == 1 ? from[n] : -1;
            if (kept >= 0) copy_slot(&work, from[n], &want, kept);
        }
    if (memcmp(o, o_want, bytes) != 0) fail_msg("rule %s: o of a decode with slots is not o", rule->name);
    for (int s = 0; s < SLOTS; s++) same_slot("after a decode", rule, &got, s, &want, s);
    free(o), free(o_want), free(workspace);
    inputs_free(&inputs);
    pool_free(&before), pool_free(&got), pool_free(&want), pool_free(&work);
    dr_plan_destroy(plan);
    problem_free(p);
}

static void test_decode(void **state) {
    dr_backend *backend = *state;
    dr_random random = {.seed = 23};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int listed = 0; listed < 2; listed++) decode(backend, dr_rule_at(i), listed, &random);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------- */

static void test_refused(void **state) {
    dr_backend *backend = *state;
    dr_random random = {.seed = 24};
    const int64_t cu_seqlens[] = {0, 20, 20, 53};
    const int32_t good[] = {0, 1, 2}, beyond[] = {0, 1, SLOTS}, rows[] = {20, 53}, odd[] = {3, 5};
    problem *p = problem_of(dr_rule_find("gdn"), cu_seqlens, &random);
    pool states = pool_of(backend, p, &random);
    dr_inputs inputs = inputs_of(backend, p);
    char *o = block(output_bytes(backend, p, 53));
    dr_plan *plan = plan_of(backend, p);
    dr_recurrence_memory memory;
    must(dr_plan_memory(plan, &memory));
    void *workspace = block(memory.forward + memory.backward), *saved = block(memory.saved);
    const dr_states initial = read_only(&states);
    const dr_mutable_states final = written(&states);
    dr_input_gradients gradients = {{0}};
    dr_slots slots = {.slots = SLOTS, .from = good};
    dr_call call = {.size = sizeof call,
                    .boundaries = {.at = cu_seqlens, .dtype = DR_I64},
                    .inputs = &inputs,
                    .initial = &initial,
                    .o = o,
                    .final = &final,
                    .saved = saved,
                    .workspace = workspace,
                    .d_o = o,
                    .d_inputs = &gradients,
                    .slots = &slots};
#define REFUSED_SLOTS(words, ...)                                                                                              \
    slots = (dr_slots){__VA_ARGS__};                                                                                           \
    assert_refused(dr_plan_forward(plan, &call), DR_ERROR_ARGUMENT, words)
    REFUSED_SLOTS("slots that sequences start from is missing", .slots = SLOTS);
    REFUSED_SLOTS("0 slots", .slots = 0, .from = good);
    REFUSED_SLOTS("the start of sequence 2 names slot 9", .slots = SLOTS, .from = beyond);
    REFUSED_SLOTS("the end of sequence 2 names slot 9", .slots = SLOTS, .from = good, .to = beyond);
    REFUSED_SLOTS("-1 checkpoints", .slots = SLOTS, .from = good, .checkpoints = -1);
    REFUSED_SLOTS("rows of checkpoints is missing", .slots = SLOTS, .from = good, .checkpoints = 1, .slot = good);
    REFUSED_SLOTS("slots of checkpoints is missing", .slots = SLOTS, .from = good, .checkpoints = 1, .row = rows);
    REFUSED_SLOTS("checkpoint 1 lies before row 53", .slots = SLOTS, .from = good, .checkpoints = 2, .row = rows, .slot = good);
    if (strcmp(dr_backend_name(backend), "cpu") == 0) {
        REFUSED_SLOTS("every 8 tokens", .slots = SLOTS, .from = good, .checkpoints = 2, .row = odd, .slot = good);
    }
    call.final = NULL;
    REFUSED_SLOTS("its state S is missing", .slots = SLOTS, .from = good, .checkpoints = 1, .row = rows, .slot = good);
    call.final = &final;
    slots = (dr_slots){.slots = SLOTS, .from = good};
    assert_refused(dr_plan_backward(plan, &call), DR_ERROR_ARGUMENT, "a backward takes no slots");
    free(o), free(workspace), free(saved);
    inputs_free(&inputs);
    pool_free(&states);
    dr_plan_destroy(plan);
    problem_free(p);
}

int main(void) {
    static const char *const isa[] = {NULL, "portable", "avx2", "avx512"};
    const dr_cpu_features features = dr_cpu_detect();
    const int isas = features.avx512 ? 4 : features.avx2 ? 3 : 2;
    struct CMUnitTest tests[32];
    dr_backend *backends[4];
    size_t count = 0;
    for (int i = 0; i < isas; i++) {
        backends[i] = open_backend(i == 0 ? "reference" : "cpu", isa[i], i == 0 ? 1 : 4);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_prefill, backends[i]);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_prefill_in_place, backends[i]);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_decode, backends[i]);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_refused, backends[i]);
    }
    const int failed = _cmocka_run_group_tests("pools", tests, count, NULL, NULL);
    for (int i = 0; i < isas; i++) dr_backend_close(backends[i]);
    return failed;
}
