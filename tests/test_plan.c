/* Plans: their calls give the bits of the functions that plan at each call, whatever the boundaries, from many threads at once;
 * what they tell of memory is so; and what is refused. */
#include "allocation.h"
#include "recurrence/problem.h"
#include "statuses.h"

#include <deltarule/plan.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

enum { TOLD_EVEN, TOLD_HOST, TOLD_HOST32, TOLD_DEVICE, TOLD_DEVICE32, TOLD };

static size_t bytes_of(const dr_backend *backend, int64_t count) {
    return (size_t)count * dr_dtype_size(dr_backend_dtype(backend));
}

/* All that a forward and its backward read and write, before which every byte of it is `before`. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    void *o, *d_o, *saved;
    size_t saved_bytes;
} tensors;

static void *filled(size_t bytes, int with) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    memset(memory, with, bytes);
    return memory;
}

static tensors tensors_of(const dr_backend *backend, const problem *p, size_t saved, int before) {
    const size_t outputs = bytes_of(backend, p->o_count);
    tensors t = {.o = filled(outputs, before),
                 .d_o = tensor_in(backend, p->d_o, p->o_count),
                 .saved = filled(saved, before),
                 .saved_bytes = saved};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        t.inputs.at[i] = tensor_in(backend, p->input[i], p->input_count[i]);
        t.d_inputs.at[i] = filled(bytes_of(backend, p->input_count[i]), before);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!p->initial[i]) continue;
        t.initial.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
        t.d_final.at[i] = tensor_in(backend, p->d_final[i], p->state_count[i]);
        t.final.at[i] = filled(bytes_of(backend, p->state_count[i]), before);
        t.d_initial.at[i] = filled(bytes_of(backend, p->state_count[i]), before);
    }
    return t;
}

static void tensors_free(const dr_backend *backend, tensors *t) {
    free(t->o), free(t->saved), backend_release(backend, t->d_o);
    for (int i = 0; i < DR_INPUTS; i++) backend_release(backend, (void *)t->inputs.at[i]), free(t->d_inputs.at[i]);
    for (int i = 0; i < DR_STATES; i++) {
        backend_release(backend, (void *)t->initial.at[i]), backend_release(backend, (void *)t->d_final.at[i]);
        free(t->final.at[i]), free(t->d_initial.at[i]);
    }
}

/* What differs first, NULL: nothing. */
static const char *difference(const dr_backend *backend, const problem *p, const tensors *a, const tensors *b) {
    if (memcmp(a->o, b->o, bytes_of(backend, p->o_count)) != 0) return "o";
    if (memcmp(a->saved, b->saved, a->saved_bytes) != 0) return "saved";
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i] && memcmp(a->d_inputs.at[i], b->d_inputs.at[i], bytes_of(backend, p->input_count[i])) != 0)
            return dr_input_name((dr_input)i);
    for (int i = 0; i < DR_STATES; i++) {
        const size_t bytes = bytes_of(backend, p->state_count[i]);
        if (!p->initial[i]) continue;
        if (memcmp(a->final.at[i], b->final.at[i], bytes) != 0) return "final state";
        if (memcmp(a->d_initial.at[i], b->d_initial.at[i], bytes) != 0) return "gradient of the initial state";
    }
    return NULL;
}

/* Boundaries of the problem, told in one of the ways; numbers has room for them. */
static dr_boundaries boundaries_of(const problem *p, int told, int32_t numbers[MOST_SEQUENCES + 1]) {
    for (int64_t i = 0; i <= p->recurrence.layout.sequences; i++) numbers[i] = (int32_t)p->cu_seqlens[i];
    switch (told) {
    case TOLD_EVEN:
        return (dr_boundaries){0};
    case TOLD_HOST32:
    case TOLD_DEVICE32:
        return (dr_boundaries){.at = numbers, .dtype = DR_I32, .device = told == TOLD_DEVICE32};
    default:
        return (dr_boundaries){.at = p->cu_seqlens, .dtype = DR_I64, .device = told == TOLD_DEVICE};
    }
}

/* A forward and its backward by a plan; a sentence if one fails. */
static const char *run_planned(const dr_plan *plan, const problem *p, int told, int threads, int before, tensors *t) {
    dr_recurrence_memory memory;
    int32_t numbers[MOST_SEQUENCES + 1];
    if (dr_plan_memory(plan, &memory) != DR_OK) return dr_last_error();
    void *forward = filled(memory.forward, before), *backward = filled(memory.backward, before);
    dr_call call = {.size = sizeof call,
                    .threads = threads,
                    .boundaries = boundaries_of(p, told, numbers),
                    .inputs = &t->inputs,
                    .initial = &t->initial,
                    .o = t->o,
                    .final = &t->final,
                    .saved = t->saved,
                    .workspace = forward,
                    .d_o = t->d_o,
                    .d_final = &t->d_final,
                    .d_inputs = &t->d_inputs,
                    .d_initial = &t->d_initial};
    dr_status status = dr_plan_forward(plan, &call);
    call.workspace = backward;
    if (status == DR_OK) status = dr_plan_backward(plan, &call);
    free(forward), free(backward);
    return status == DR_OK ? NULL : dr_last_error();
}

/* The same without a plan. */
static void run_unplanned(dr_backend *backend, const problem *p, const dr_recurrence *recurrence, tensors *t) {
    dr_recurrence_memory memory;
    must(dr_recurrence_plan(backend, recurrence, &memory));
    void *forward = filled(memory.forward, 0x5A), *backward = filled(memory.backward, 0x5A),
         *saved = filled(memory.saved, 0x5A);
    must(dr_recurrence_forward(backend, recurrence, &t->inputs, &t->initial, t->o, &t->final, saved, forward));
    must(dr_recurrence_backward(backend, recurrence, &t->inputs, &t->initial, saved, t->d_o, &t->d_final, &t->d_inputs,
                                &t->d_initial, backward));
    free(forward), free(backward), free(saved);
    (void)p;
}

static void same(const dr_backend *backend, const problem *p, const tensors *a, const tensors *b, const char *what) {
    const char *where = difference(backend, p, a, b);
    if (where) fail_msg("%s: %s differs, rule of %d rows, scan %s", what, where, p->rule.rows, dr_scan_name(p->rule.scan));
}

/* ---- the same bits --------------------------------------------------------------------------------------------------- */

/* A problem of that many sequences and rows, whose boundaries are drawn. */
static problem *problem_drawn(const dr_rule *rule, int64_t sequences, int64_t rows, bool even, dr_random *random) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1] = {0};
    for (int64_t i = 1; i < sequences; i++)
        cu_seqlens[i] = even ? rows / sequences * i : between(random, cu_seqlens[i - 1], rows);
    cu_seqlens[sequences] = rows;
    const int64_t heads = between(random, 1, 2), least = least_key_size(rule);
    const dr_recurrence sizes = {.layout = {.sequences = sequences, .rows = rows, .cu_seqlens = cu_seqlens},
                                 .key_heads = heads,
                                 .value_heads = rule->tied_scan ? heads : heads * between(random, 1, 2),
                                 .key_size = between(random, least, 20),
                                 .value_size = between(random, 1, 40)};
    return problem_create(rule, &sizes, false, random);
}

static void check_problem(dr_backend *backend, const problem *p, dr_path path, int64_t chunk, bool even) {
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    dr_plan *plan;
    dr_saved_size size, alone;
    dr_recurrence_memory memory;
    dr_rule *rule = malloc(sizeof *rule); /* which goes before the calls */
    assert_non_null(rule);
    *rule = p->rule;
    recurrence.rule = rule;
    must(dr_plan_create(backend, &recurrence, &plan));
    must(dr_plan_memory(plan, &memory));
    must(dr_plan_saved(plan, &size));
    must(dr_recurrence_saved(dr_backend_name(backend), NULL, &recurrence, &alone));
    memset(rule, 0xA5, sizeof *rule), free(rule);
    recurrence.rule = &p->rule;
    assert_memory_equal(&size, &alone, sizeof size);
    assert_int_equal(dr_saved_bytes(&size, recurrence.layout.rows, recurrence.layout.sequences), memory.saved);
    tensors first = tensors_of(backend, p, memory.saved, 0x5A);
    assert_null(run_planned(plan, p, TOLD_HOST, 0, 0x5A, &first));
    for (int told = even ? TOLD_EVEN : TOLD_HOST; told < TOLD; told++)
        for (int threads = 0; threads <= dr_backend_threads(backend); threads++) {
            tensors again = tensors_of(backend, p, memory.saved, 0xA5);
            assert_null(run_planned(plan, p, told, threads, 0xA5, &again));
            same(backend, p, &first, &again, "told otherwise, or on other memory");
            tensors_free(backend, &again);
        }
    tensors unplanned = tensors_of(backend, p, 0, 0xFF);
    run_unplanned(backend, p, &recurrence, &unplanned);
    first.saved_bytes = 0;
    same(backend, p, &first, &unplanned, "without a plan");
    tensors_free(backend, &first), tensors_free(backend, &unplanned);
    dr_plan_destroy(plan);
}

static void test_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "reference"};
    for (int n = 0; n < 2; n++) {
        dr_backend *backend;
        must(dr_backend_open(names[n], &(dr_backend_options){.threads = 3}, &backend));
        for (int i = 0; i < dr_rule_count(); i++) {
            dr_random random = dr_random_start(34, (uint64_t)i);
            for (int k = 0; k < 3; k++) {
                const int64_t sequences = between(&random, 1, MOST_SEQUENCES), each = between(&random, 1, 50);
                problem *p = problem_drawn(dr_rule_at(i), sequences, sequences * each, k == 0, &random);
                check_problem(backend, p, k == 2 ? DR_PATH_RECURRENT : DR_PATH_BEST, k == 1 ? between(&random, 1, 70) : 0,
                              k == 0);
                problem_free(p);
            }
        }
        dr_backend_close(backend);
    }
}

/* Few heads and long sequences: a backward in two passes on several threads, in one on fewer. */
static void test_two_passes(void **state) {
    (void)state;
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = 4}, &backend));
    dr_random random = dr_random_start(34, 100);
    const dr_recurrence sizes = {.layout = {.sequences = 2, .rows = 700, .cu_seqlens = (int64_t[]){0, 20, 700}},
                                 .key_heads = 1,
                                 .value_heads = 1,
                                 .key_size = 64,
                                 .value_size = 128};
    problem *p = problem_create(dr_rule_find("gdn"), &sizes, false, &random);
    check_problem(backend, p, DR_PATH_BEST, 0, false);
    problem_free(p);
    dr_backend_close(backend);
}

/* ---- many threads ---------------------------------------------------------------------------------------------------- */

enum { CALLERS = 8, ROUNDS = 6 };

typedef struct {
    const dr_plan *plan;
    dr_backend *backend;
    problem *p[ROUNDS];
    tensors want[ROUNDS];
    char wrong[256];
} caller;

static void *call_in_turn(void *context) {
    caller *c = context;
    dr_recurrence_memory memory;
    if (dr_plan_memory(c->plan, &memory) != DR_OK) return NULL;
    for (int i = 0; i < ROUNDS; i++) {
        tensors got = tensors_of(c->backend, c->p[i], memory.saved, 0xA5);
        const char *wrong = run_planned(c->plan, c->p[i], TOLD_HOST + i % 4, i % 3, 0xA5, &got);
        if (!wrong) wrong = difference(c->backend, c->p[i], &c->want[i], &got);
        if (wrong && !c->wrong[0]) snprintf(c->wrong, sizeof c->wrong, "round %d: %s", i, wrong);
        tensors_free(c->backend, &got);
    }
    return NULL;
}

/* One plan and one backend, eight threads, other boundaries in each call: the bits of calls alone. */
static void test_one_plan_many_threads(void **state) {
    (void)state;
    static const char *const rules[] = {"gdn", "pkda", "mesanet"};
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &backend));
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        static caller callers[CALLERS];
        pthread_t thread[CALLERS];
        dr_plan *plan = NULL;
        dr_recurrence_memory memory;
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (caller){.backend = backend};
            for (int k = 0; k < ROUNDS; k++) {
                dr_random random = dr_random_start(35, (uint64_t)(i * ROUNDS + k)), sizes = dr_random_start(36, r);
                int64_t cu_seqlens[5] = {0, between(&random, 0, 90), 90, between(&random, 90, 160), 160};
                const int64_t heads = between(&sizes, 1, 2);
                const dr_recurrence shape = {.layout = {.sequences = 4, .rows = 160, .cu_seqlens = cu_seqlens},
                                             .key_heads = heads,
                                             .value_heads = 2 * heads,
                                             .key_size = between(&sizes, 2, 24),
                                             .value_size = between(&sizes, 1, 40)};
                problem *p = callers[i].p[k] = problem_create(dr_rule_find(rules[r]), &shape, false, &random);
                if (!plan) {
                    must(dr_plan_create(backend, &p->recurrence, &plan));
                    must(dr_plan_memory(plan, &memory));
                }
                callers[i].want[k] = tensors_of(backend, p, memory.saved, 0x5A);
                assert_null(run_planned(plan, p, TOLD_HOST, 0, 0x5A, &callers[i].want[k]));
            }
            callers[i].plan = plan;
        }
        for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&thread[i], NULL, call_in_turn, &callers[i]), 0);
        for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
        for (int i = 0; i < CALLERS; i++) {
            if (callers[i].wrong[0]) fail_msg("%s, caller %d: %s", rules[r], i, callers[i].wrong);
            for (int k = 0; k < ROUNDS; k++) tensors_free(backend, &callers[i].want[k]), problem_free(callers[i].p[k]);
        }
        dr_plan_destroy(plan);
    }
    dr_backend_close(backend);
}

/* ---- what is saved --------------------------------------------------------------------------------------------------- */

/* One formula for all numbers of rows and sequences, whatever the threads. */
static void test_saved_is_a_formula(void **state) {
    (void)state;
    dr_backend *backend[2];
    for (int n = 0; n < 2; n++) must(dr_backend_open("cpu", &(dr_backend_options){.threads = 1 + 6 * n}, &backend[n]));
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_recurrence recurrence = {.rule = dr_rule_at(i), .key_heads = 2, .value_heads = 2, .key_size = 24, .value_size = 40};
        recurrence.layout = (dr_layout){.sequences = 1, .rows = 1};
        dr_saved_size size;
        must(dr_recurrence_saved("cpu", NULL, &recurrence, &size));
        for (int64_t rows = 0; rows < 1100; rows += 1 + rows / 9)
            for (int64_t sequences = 1; sequences < 40; sequences += 6) {
                recurrence.layout = (dr_layout){.sequences = sequences, .rows = rows};
                dr_plan *plan;
                dr_recurrence_memory memory;
                must(dr_plan_create(backend[rows % 2], &recurrence, &plan));
                must(dr_plan_memory(plan, &memory));
                assert_int_equal(memory.saved, dr_saved_bytes(&size, rows, sequences));
                dr_plan_destroy(plan);
            }
    }
    for (int n = 0; n < 2; n++) dr_backend_close(backend[n]);
    const dr_saved_size large = {.per_row = SIZE_MAX / 2, .segment = 1};
    assert_int_equal(dr_saved_bytes(&large, 2, 1), SIZE_MAX - 1);
    assert_int_equal(dr_saved_bytes(&large, 3, 1), SIZE_MAX);
}

static void test_paths(void **state) {
    (void)state;
    dr_backend *backend;
    dr_plan *plan;
    dr_stage_path path;
    must(dr_backend_open("cpu", &(dr_backend_options){.isa = "portable"}, &backend));
    dr_recurrence recurrence = {.rule = dr_rule_find("eda"),
                                .layout = {.sequences = 2, .rows = 7},
                                .key_heads = 1,
                                .value_heads = 1,
                                .key_size = 8,
                                .value_size = 8};
    must(dr_plan_create(backend, &recurrence, &plan));
    for (int stage = 0; stage < DR_STAGES; stage++) {
        must(dr_plan_path(plan, true, (dr_stage)stage, &path));
        assert_string_equal(path.instance, stage == DR_STAGE_DECODE ? "decode portable" : "chunkwise portable");
        assert_int_equal(path.chunk, stage == DR_STAGE_DECODE ? 1 : 8);
        assert_int_equal(path.parts, 1);
        assert_int_equal(path.storage, DR_F32);
        assert_true(strlen(dr_stage_name((dr_stage)stage)) > 3);
    }
    assert_refused(dr_plan_path(plan, false, DR_STAGE_OUTPUT, &path), DR_ERROR_ARGUMENT, "cannot be 2 sequences of one length");
    assert_refused(dr_plan_path(plan, true, DR_STAGES, &path), DR_ERROR_ARGUMENT, "no stage 5");
    assert_refused(dr_plan_path(plan, true, DR_STAGE_OUTPUT, NULL), DR_ERROR_ARGUMENT, "path is missing");
    dr_plan_destroy(plan);
    dr_backend_close(backend);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

static void test_decode(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "reference"};
    for (int n = 0; n < 2; n++) {
        dr_backend *backend;
        must(dr_backend_open(names[n], &(dr_backend_options){.threads = 2}, &backend));
        for (int i = 0; i < dr_rule_count(); i++) {
            dr_random random = dr_random_start(37, (uint64_t)i);
            problem *p = problem_drawn(dr_rule_at(i), 3, 3, true, &random);
            tensors a = tensors_of(backend, p, 0, 0x5A), b = tensors_of(backend, p, 0, 0xA5);
            dr_recurrence recurrence = p->recurrence;
            recurrence.layout.cu_seqlens = NULL;
            dr_plan *plan;
            dr_recurrence_memory memory;
            must(dr_plan_create(backend, &recurrence, &plan));
            must(dr_plan_memory(plan, &memory));
            dr_mutable_states states[2] = {{{0}}, {{0}}};
            for (int s = 0; s < DR_STATES; s++)
                if (p->initial[s]) states[0].at[s] = (void *)a.initial.at[s], states[1].at[s] = (void *)b.initial.at[s];
            void *workspace = filled(memory.decode, 0xA5);
            const dr_call call = {
                .size = sizeof call, .inputs = &a.inputs, .o = a.o, .states = &states[0], .workspace = workspace};
            must(dr_plan_decode(plan, &call));
            must(dr_recurrence_decode(backend, &recurrence, &b.inputs, &states[1], b.o, workspace));
            assert_memory_equal(a.o, b.o, bytes_of(backend, p->o_count));
            for (int s = 0; s < DR_STATES; s++)
                if (p->initial[s]) assert_memory_equal(states[0].at[s], states[1].at[s], bytes_of(backend, p->state_count[s]));
            free(workspace);
            tensors_free(backend, &a), tensors_free(backend, &b);
            dr_plan_destroy(plan);
            problem_free(p);
        }
        dr_backend_close(backend);
    }
}

/* ---- alignment ------------------------------------------------------------------------------------------------------- */

/* Views that begin anywhere give the same bits. */
static void test_misaligned_views(void **state) {
    (void)state;
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &backend));
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_random random = dr_random_start(38, (uint64_t)i);
        const bool wide = i % 2; /* whole tiles are read where they are */
        const dr_recurrence sizes = {.layout = {.sequences = 2, .rows = 75, .cu_seqlens = (int64_t[]){0, 33, 75}},
                                     .key_heads = 1,
                                     .value_heads = 1,
                                     .key_size = wide ? 32 : 7,
                                     .value_size = wide ? 48 : 9};
        problem *p = problem_create(dr_rule_at(i), &sizes, false, &random);
        dr_plan *plan;
        dr_recurrence_memory memory;
        must(dr_plan_create(backend, &p->recurrence, &plan));
        must(dr_plan_memory(plan, &memory));
        tensors want = tensors_of(backend, p, memory.saved, 0x5A), got = tensors_of(backend, p, memory.saved, 0x5A);
        assert_null(run_planned(plan, p, TOLD_HOST, 0, 0x5A, &want));
        const size_t outputs = bytes_of(backend, p->o_count);
        tensors moved = got;
        char *room[2 * DR_INPUTS + 4 * DR_STATES + 2];
        int rooms = 0;
        const size_t by = sizeof(float);
#define MOVE(member, bytes)                                                                                                    \
    do {                                                                                                                       \
        char *there = room[rooms++] = filled((bytes) + 64, 0);                                                                 \
        memcpy(there + by, member, bytes);                                                                                     \
        member = (void *)(there + by);                                                                                         \
    } while (0)
        MOVE(moved.o, outputs);
        MOVE(moved.d_o, outputs);
        for (int k = 0; k < DR_INPUTS; k++) {
            if (!p->input[k]) continue;
            MOVE(moved.inputs.at[k], bytes_of(backend, p->input_count[k]));
            MOVE(moved.d_inputs.at[k], bytes_of(backend, p->input_count[k]));
        }
        for (int k = 0; k < DR_STATES; k++) {
            const size_t bytes = bytes_of(backend, p->state_count[k]);
            if (!p->initial[k]) continue;
            MOVE(moved.initial.at[k], bytes);
            MOVE(moved.d_final.at[k], bytes);
            MOVE(moved.final.at[k], bytes);
            MOVE(moved.d_initial.at[k], bytes);
        }
        assert_null(run_planned(plan, p, TOLD_HOST, 0, 0x5A, &moved));
        same(backend, p, &want, &moved, "misaligned");
        for (int k = 0; k < rooms; k++) free(room[k]);
        tensors_free(backend, &want), tensors_free(backend, &got);
        dr_plan_destroy(plan);
        problem_free(p);
    }
    dr_backend_close(backend);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

static dr_status create_and_destroy(void *context) {
    dr_plan *plan = NULL;
    dr_recurrence recurrence = {.rule = dr_rule_find("gdn"),
                                .layout = {.sequences = 1, .rows = 5},
                                .key_heads = 1,
                                .value_heads = 1,
                                .key_size = 4,
                                .value_size = 4};
    const dr_status status = dr_plan_create(context, &recurrence, &plan);
    if (status != DR_OK) assert_null(plan);
    dr_plan_destroy(plan);
    return status;
}

static void test_failed_allocations(void **state) {
    (void)state;
    dr_backend *backend;
    must(dr_backend_open("cpu", NULL, &backend));
    assert_int_equal(assert_survives_failed_allocations(create_and_destroy, backend), 1);
    dr_backend_close(backend);
}

#define REFUSED(change, reason)                                                                                                \
    do {                                                                                                                       \
        dr_call call = right;                                                                                                  \
        change;                                                                                                                \
        assert_refused(dr_plan_forward(plan, &call), DR_ERROR_ARGUMENT, reason);                                               \
        assert_refused(dr_plan_backward(plan, &call), DR_ERROR_ARGUMENT, reason);                                              \
        assert_memory_equal(t.o, before, bytes_of(backend, p->o_count));                                                       \
    } while (0)

static void test_refused_calls(void **state) {
    (void)state;
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = 2}, &backend));
    dr_random random = dr_random_start(39, 0);
    problem *p = problem_drawn(dr_rule_find("gdn"), 3, 10, false, &random);
    dr_recurrence recurrence = p->recurrence;
    recurrence.longest = 6;
    dr_plan *plan;
    dr_recurrence_memory memory;
    must(dr_plan_create(backend, &recurrence, &plan));
    must(dr_plan_memory(plan, &memory));
    tensors t = tensors_of(backend, p, memory.saved, 0xA5);
    void *before = filled(bytes_of(backend, p->o_count), 0xA5);
    char *workspace = filled(memory.forward + memory.backward, 0);
    const int64_t right_at[] = {0, 4, 4, 10}, late[] = {1, 4, 4, 10}, falls[] = {0, 5, 4, 10}, ends[] = {0, 4, 6, 11},
                  longer[] = {0, 7, 7, 10};
    const int32_t longer32[] = {0, 7, 7, 10};
    const dr_call right = {.size = sizeof right,
                           .boundaries = {.at = right_at, .dtype = DR_I64},
                           .inputs = &t.inputs,
                           .o = t.o,
                           .saved = t.saved,
                           .workspace = workspace,
                           .d_o = t.d_o,
                           .d_inputs = &t.d_inputs};
    REFUSED(call.size = 0, "says that it has 0 bytes");
    REFUSED(call.size = sizeof call + 8, "a dr_call of this library has");
    REFUSED(call.size = sizeof call - 8, "a dr_call of this library has");
    REFUSED(call.threads = -1, "a call of -1 threads");
    REFUSED(call.threads = 3, "1 to the 2 of backend cpu");
    REFUSED(call.stream = workspace, "backend cpu has no streams");
    REFUSED(call.boundaries.at = NULL, "10 rows cannot be 3 sequences of one length");
    REFUSED(call.boundaries.dtype = DR_F32, "boundaries are I64 or I32, not F32");
    REFUSED(call.boundaries.at = late, "boundary 0 is 1");
    REFUSED(call.boundaries.at = falls, "fall from 5 to 4 at sequence 1");
    REFUSED(call.boundaries.at = ends, "the last boundary is 11: it must be the plan's 10 rows");
    REFUSED(call.boundaries.at = longer, "sequence 0 has 7 tokens: the plan is for at most 6");
    REFUSED((call.boundaries.at = longer32, call.boundaries.dtype = DR_I32, call.boundaries.device = true),
            "sequence 0 has 7 tokens");
    REFUSED(call.inputs = NULL, "inputs is missing");
    REFUSED(call.workspace = NULL, "the workspace is missing");
    REFUSED(call.workspace = workspace + 4, "the workspace begins at an address that is not a multiple of 16");
    REFUSED(call.saved = (char *)t.saved + 8, "begins at an address that is not a multiple of 16");
    dr_call call = right;
    assert_refused(dr_plan_forward(NULL, &call), DR_ERROR_ARGUMENT, "plan is missing");
    assert_refused(dr_plan_backward(plan, NULL), DR_ERROR_ARGUMENT, "call is missing");
    assert_refused(dr_plan_decode(plan, &call), DR_ERROR_ARGUMENT, "no boundaries");
    call.boundaries.at = NULL;
    assert_refused(dr_plan_decode(plan, &call), DR_ERROR_ARGUMENT, "one token for each sequence, not 10 for 3");
    must(dr_plan_forward(plan, &right));
    int64_t chunk, count;
    must(dr_plan_boundaries(plan, &right, 2, &chunk, &count));
    assert_int_equal(count, 1);
    assert_refused(dr_plan_boundaries(plan, &right, 3, &chunk, &count), DR_ERROR_ARGUMENT, "no sequence 3");
    call.boundaries.at = longer;
    assert_refused(dr_plan_boundaries(plan, &call, 0, &chunk, &count), DR_ERROR_ARGUMENT, "at most 6");
    free(before), free(workspace);
    tensors_free(backend, &t);
    dr_plan_destroy(plan);
    problem_free(p);
    dr_backend_close(backend);
}

static void test_refused_plans(void **state) {
    (void)state;
    dr_backend *backend;
    must(dr_backend_open("cpu", NULL, &backend));
    const dr_recurrence right = {.rule = dr_rule_find("gdn"),
                                 .layout = {.sequences = 2, .rows = 5},
                                 .key_heads = 1,
                                 .value_heads = 1,
                                 .key_size = 4,
                                 .value_size = 4};
    dr_plan *plan = NULL;
    dr_recurrence wrong = right;
    dr_saved_size size;
    assert_refused(dr_plan_create(NULL, &right, &plan), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_plan_create(backend, NULL, &plan), DR_ERROR_ARGUMENT, "the recurrence is missing");
    assert_refused(dr_plan_create(backend, &right, NULL), DR_ERROR_ARGUMENT, "plan is missing");
    wrong.rule = NULL;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "has no rule");
    wrong = right, wrong.layout.sequences = 0;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "a layout of 0 sequences");
    wrong = right, wrong.layout.rows = -1;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "a layout of -1 rows");
    wrong = right, wrong.forget = 1;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "forget 1: it must be at least 0");
    wrong.forget = NAN;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "less than 1");
    wrong = right, wrong.longest = -2;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "longest -2 is below 0");
    wrong.longest = 2;
    assert_refused(dr_plan_create(backend, &wrong, &plan), DR_ERROR_ARGUMENT, "2 sequences of at most 2 tokens cannot have 5");
    assert_refused(dr_recurrence_saved("gpu", NULL, &right, &size), DR_ERROR_UNSUPPORTED, "no backend \"gpu\"");
    assert_refused(dr_recurrence_saved(NULL, NULL, &right, &size), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_recurrence_saved("cpu", NULL, &right, NULL), DR_ERROR_ARGUMENT, "saved is missing");
    assert_refused(dr_recurrence_saved("cpu", NULL, NULL, &size), DR_ERROR_ARGUMENT, "recurrence is missing");
    assert_null(plan);
    dr_plan_destroy(NULL);
    dr_backend_close(backend);
}

/* ---- handles and sizes ----------------------------------------------------------------------------------------------- */

static dr_status make_rule(void *text) {
    dr_rule *rule = NULL;
    const dr_status status = dr_rule_create(text, &rule);
    if (status != DR_OK) assert_null(rule);
    dr_rule_destroy(rule);
    return status;
}

static void test_rule_handles(void **state) {
    (void)state;
    dr_rule *rule = NULL;
    must(dr_rule_create("kda", &rule));
    assert_string_equal(dr_rule_get_name(rule), "kda");
    assert_non_null(dr_rule_get_title(rule)), assert_non_null(dr_rule_get_source(rule));
    dr_rule_destroy(rule);
    must(dr_rule_create(" {\"base\": \"delta_product\", \"repeat\": 3}", &rule));
    assert_int_equal(dr_rule_get_repeat(rule), 3);
    dr_rule_destroy(rule);
    rule = NULL;
    assert_refused(dr_rule_create("gdm", &rule), DR_ERROR_ARGUMENT, "gdn");
    assert_refused(dr_rule_create("{\"base\": \"gdn\"", &rule), DR_ERROR_FORMAT, "");
    assert_refused(dr_rule_create(NULL, &rule), DR_ERROR_ARGUMENT, "text is missing");
    assert_refused(dr_rule_create("gdn", NULL), DR_ERROR_ARGUMENT, "rule is missing");
    assert_null(rule);
    assert_null(dr_rule_get_name(NULL));
    assert_survives_failed_allocations(make_rule, (void *)"gdn");
}

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(dr_size_of("dr_recurrence"), sizeof(dr_recurrence));
    assert_int_equal(dr_size_of("dr_call"), sizeof(dr_call));
    assert_int_equal(dr_size_of("dr_rule"), sizeof(dr_rule));
    assert_int_equal(dr_size_of("dr_plan"), 0);
    assert_int_equal(dr_size_of(NULL), 0);
    const dr_recurrence usual = dr_recurrence_default();
    assert_true(usual.forget == 0x1p-20 && usual.path == DR_PATH_BEST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_two_passes),
        cmocka_unit_test(test_one_plan_many_threads),
        cmocka_unit_test(test_saved_is_a_formula),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_misaligned_views),
        cmocka_unit_test(test_failed_allocations),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_refused_plans),
        cmocka_unit_test(test_rule_handles),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
