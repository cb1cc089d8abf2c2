#include "rounding.h"

#include "ops/operations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t chunk_of(const trial *t) {
    const int64_t most = 64 / dr_rule_steps(&t->rule);
    return t->chunk < most ? t->chunk : most;
}

/* ---- float32 ---------------------------------------------------------------------------------------------------------- */

static bool engine_is_near(gpu *g, const problem *p, const standard *s, dr_path path, int64_t chunk, fault *what) {
    char kernel[96];
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    recurrence.chunk = chunk;
    dr_recurrence_kernel(g->cuda[0], &recurrence, false, kernel, sizeof kernel);
    result got = {0}, again = {0};
    bool holds = problem_run(g->cuda[0], p, path, chunk, true, &got, what) &&
                 results_near(kernel, p, &got, s, true, path, &g->worst[0], what) && dead_decays(kernel, p, &got, what) &&
                 problem_run(g->cuda[0], p, path, chunk, true, &again, what) &&
                 results_same("the same call again", p, &got, &again, what);
    result_free(&got), result_free(&again);
    g->checks += 2;
    return holds;
}

static bool decode_is_near(gpu *g, const problem *p, const standard *s, fault *what) {
    if (!equally_long(&p->recurrence.layout)) return true;
    result got = {0};
    bool holds = problem_decode(g->cuda[0], p, &got, what) &&
                 results_near("cuda decode", p, &got, s, false, DR_PATH_RECURRENT, &g->worst[0], what);
    result_free(&got);
    g->checks++;
    return holds;
}

static bool packed_is_separate(gpu *g, const trial *t, const problem *p, dr_backend *cuda, dr_path path, fault *what) {
    result packed = {0};
    bool holds = problem_run(cuda, p, path, chunk_of(t), true, &packed, what);
    for (int64_t i = 0; i < t->sequences && holds && t->sequences > 1; i++) {
        problem *own = problem_part(p, i, 1, (int64_t[]){0}, &t->length[i], NULL);
        result alone = {0};
        holds =
            problem_run(cuda, own, path, chunk_of(t), true, &alone, what) && sequence_same(p, own, i, &packed, &alone, what);
        result_free(&alone);
        problem_free(own);
        g->checks++;
    }
    result_free(&packed);
    return holds;
}

/* The rest of the last sequence from its last boundary. */
static bool resumed_is_whole(gpu *g, const trial *t, const problem *p, dr_path path, fault *what) {
    const int64_t sequence = t->sequences - 1, width = p->recurrence.value_heads * p->recurrence.value_size;
    int64_t token = -1;
    double *states[DR_STATES] = {0};
    result whole = {0}, resumed = {0};
    bool holds = problem_boundary(g->cuda[0], p, path, chunk_of(t), sequence, 0, &token, states, what) &&
                 problem_run(g->cuda[0], p, path, chunk_of(t), false, &whole, what);
    if (holds && token >= 0) {
        const int64_t rest = t->length[sequence] - token;
        problem *tail = problem_part(p, sequence, 1, &token, &rest, states);
        holds =
            problem_run(g->cuda[0], tail, path, chunk_of(t), false, &resumed, what) &&
            numbers_same("resumed", "o", resumed.o, whole.o + (p->cu_seqlens[sequence] + token) * width, tail->o_count, what);
        problem_free(tail);
        g->checks++;
    }
    for (int i = 0; i < DR_STATES; i++) free(states[i]);
    result_free(&whole), result_free(&resumed);
    return holds;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

static bool trial_is_right(gpu *g, const trial *t, fault *what) {
    problem *p = trial_problem(t);
    standard s = {0};
    dr_random random = dr_random_start(t->seed, 3);
    const dr_path path = t->seed % 4 ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT;
    const int type = 1 + (int)(t->seed % 2);
    bool holds = standard_create(g->reference, p, &random, &s, what) && engine_is_near(g, p, &s, DR_PATH_RECURRENT, 0, what) &&
                 engine_is_near(g, p, &s, DR_PATH_CHUNKWISE, 0, what) &&
                 engine_is_near(g, p, &s, DR_PATH_CHUNKWISE, chunk_of(t), what) && decode_is_near(g, p, &s, what) &&
                 packed_is_separate(g, t, p, g->cuda[t->seed % 3], path, what) && resumed_is_whole(g, t, p, path, what);
    if (holds && t->values == VALUES_MILD) holds = rounds_as_plain(g, type, p, path, &random, what);
    standard_free(&s);
    problem_free(p);
    return holds;
}

void trial_tell(const trial *t) {
    flockfile(stdout);
    printf("seed %llu:\n", (unsigned long long)t->seed);
    trial_print(t, stdout);
    funlockfile(stdout);
}

static bool seed_is_right(gpu *own, uint64_t seed, void *context, fault *what) {
    (void)context;
    const trial t = trial_draw(seed);
    if (!gpu_takes(&t.rule)) {
        own->refused++;
        return true;
    }
    if (trial_is_right(own, &t, what)) return true;
    trial_tell(&t);
    return false;
}

bool suite_trials(gpu *g, fault *what) {
    return gpu_share(g, g->first, g->last, seed_is_right, NULL, what);
}
