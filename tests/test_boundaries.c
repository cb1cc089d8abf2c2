/* States between the chunks of a forward: from each of them the rest comes out bit for bit, for every named rule; and what is
 * refused. */
#include "recurrence/problem.h"
#include "statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* How the problem runs, and what comes out. */
typedef struct {
    dr_backend *backend;
    const problem *p;
    dr_path path;
    int64_t chunk;
    result whole;
} run;

/* The sequence from its last boundary but `back` on is the rest of the whole, bit for bit. False if there is none. */
static bool check_boundary(const run *r, int64_t sequence, int64_t back) {
    const int64_t begin = r->p->cu_seqlens[sequence], width = r->p->recurrence.value_heads * r->p->recurrence.value_size;
    int64_t token;
    double *states[DR_STATES];
    result got;
    fault what;
    if (!problem_boundary(r->backend, r->p, r->path, r->chunk, sequence, back, &token, states, &what))
        fail_msg("%s", what.text);
    if (token >= 0) {
        const int64_t rest = r->p->cu_seqlens[sequence + 1] - begin - token;
        problem *tail = problem_part(r->p, sequence, 1, &token, &rest, states);
        if (!problem_run(r->backend, tail, r->path, r->chunk, false, &got, &what)) fail_msg("%s", what.text);
        assert_memory_equal(got.o, r->whole.o + (begin + token) * width, (size_t)tail->o_count * sizeof(double));
        for (int i = 0; i < DR_STATES; i++) {
            const size_t bytes = (size_t)tail->state_count[i] * sizeof(double);
            const int64_t at = sequence * tail->state_count[i];
            if (!tail->initial[i]) continue;
            assert_memory_equal(got.final[i], r->whole.final[i] + at, bytes);
            if (token == 0) assert_memory_equal(states[i], r->p->initial[i] + at, bytes);
        }
        result_free(&got);
        problem_free(tail);
    }
    for (int i = 0; i < DR_STATES; i++) free(states[i]);
    return token >= 0;
}

static void check_boundaries(dr_backend *backend, const problem *p, dr_path path, int64_t chunk) {
    run r = {.backend = backend, .p = p, .path = path, .chunk = chunk};
    fault what;
    if (!problem_run(backend, p, path, chunk, false, &r.whole, &what)) fail_msg("%s", what.text);
    for (int64_t s = 0; s < p->recurrence.layout.sequences; s++) {
        const int64_t length = p->cu_seqlens[s + 1] - p->cu_seqlens[s];
        int64_t boundaries = 0;
        while (check_boundary(&r, s, boundaries)) boundaries++;
        if (chunk) assert_int_equal(boundaries, (length + chunk - 1) / chunk);
        assert_int_equal(boundaries > 0, length > 0);
    }
    result_free(&r.whole);
}

static void test_boundaries(void **unused) {
    (void)unused;
    static const int64_t cu_seqlens[] = {0, 50, 50, 57, 58};
    dr_backend *backend = open_backend("cpu", NULL, 2);
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_random random = dr_random_start(11, (uint64_t)i);
        dr_recurrence recurrence = {.rule = dr_rule_at(i),
                                    .layout = {.sequences = 4, .rows = 58, .cu_seqlens = cu_seqlens},
                                    .key_heads = 2,
                                    .value_heads = dr_rule_at(i)->tied_scan ? 2 : 4,
                                    .key_size = 5,
                                    .value_size = 7};
        problem *p = problem_create(recurrence.rule, &recurrence, false, &random);
        double *P = p->initial[DR_STATE_P]; /* a zero one reads as what it stands for */
        for (int64_t j = 0; P && j < p->state_count[DR_STATE_P]; j++) P[j] = j % 25 % 6 == 0;
        check_boundaries(backend, p, DR_PATH_CHUNKWISE, 0);
        check_boundaries(backend, p, DR_PATH_CHUNKWISE, 8);
        check_boundaries(backend, p, DR_PATH_RECURRENT, 0);
        problem_free(p);
    }
    dr_backend_close(backend);
}

static void test_refused_boundaries(void **unused) {
    (void)unused;
    dr_backend *cpu = open_backend("cpu", NULL, 2), *reference = open_backend("reference", NULL, 2);
    dr_recurrence recurrence = {.rule = dr_rule_find("gdn"),
                                .layout = {.sequences = 2, .rows = 6},
                                .key_heads = 2,
                                .value_heads = 4,
                                .key_size = 3,
                                .value_size = 5};
    int64_t chunk = -5, count = -5;
    float saved[1], S[1] = {7};
    dr_mutable_states states = {{S}};
    recurrence.chunk = 2;
    assert_refused(dr_recurrence_boundaries(reference, &recurrence, 0, &chunk, &count), DR_ERROR_UNSUPPORTED,
                   "saves no states");
    assert_refused(dr_recurrence_boundaries(NULL, &recurrence, 0, &chunk, &count), DR_ERROR_ARGUMENT, "backend is missing");
    assert_refused(dr_recurrence_boundaries(cpu, &recurrence, 2, &chunk, &count), DR_ERROR_ARGUMENT, "no sequence 2");
    assert_refused(dr_recurrence_boundaries(cpu, &recurrence, -1, &chunk, &count), DR_ERROR_ARGUMENT, "no sequence -1");
    assert_refused(dr_recurrence_boundaries(cpu, &recurrence, 0, NULL, &count), DR_ERROR_ARGUMENT, "chunk is missing");
    assert_refused(dr_recurrence_boundaries(cpu, &recurrence, 0, &chunk, NULL), DR_ERROR_ARGUMENT, "count is missing");
    assert_int_equal(chunk, -5);
    assert_int_equal(count, -5);
    must(dr_recurrence_boundaries(cpu, &recurrence, 1, &chunk, &count));
    assert_int_equal(chunk, 2);
    assert_int_equal(count, 2);
    assert_refused(dr_recurrence_boundary(cpu, &recurrence, saved, 0, 2, &states), DR_ERROR_ARGUMENT,
                   "no boundary 2: it has 2");
    assert_refused(dr_recurrence_boundary(cpu, &recurrence, saved, 0, -1, &states), DR_ERROR_ARGUMENT, "no boundary -1");
    assert_refused(dr_recurrence_boundary(cpu, &recurrence, NULL, 0, 0, &states), DR_ERROR_ARGUMENT, "what the forward saved");
    assert_refused(dr_recurrence_boundary(cpu, &recurrence, saved, 0, 0, NULL), DR_ERROR_ARGUMENT, "states is missing");
    states.at[DR_STATE_A] = S;
    assert_refused(dr_recurrence_boundary(cpu, &recurrence, saved, 0, 0, &states), DR_ERROR_ARGUMENT, "does not carry it");
    assert_true(S[0] == 7);
    dr_backend_close(cpu), dr_backend_close(reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_boundaries), cmocka_unit_test(test_refused_boundaries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
