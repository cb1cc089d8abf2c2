/* More chunks than the GPU has multiprocessors. Kernels whose blocks stay on one take several of them, one behind the other in
 * the same shared memory, which short problems never show: sequences that are many together and few alone must have the same
 * bits both ways. Head sizes that differ, as what a group of warps does then differs. */
#include "suites.h"

static const struct {
    const char *rule;
    int64_t key_size, value_size;
} cases[] = {{"gdn", 64, 128},    {"gdn", 128, 64},    {"gdn", 128, 128},   {"delta_net", 64, 128}, {"mamba2", 64, 128},
             {"mamba2", 128, 64}, {"qdelta", 64, 128}, {"pgdn", 128, 64},   {"kda", 128, 128},      {"eda", 64, 128},
             {"pkda", 64, 64},    {"gdn2", 64, 128},   {"retnet", 128, 128}};
enum { CASES = sizeof cases / sizeof *cases, HEADS = 6 };

static const int64_t lengths[MOST_SEQUENCES + 1] = {0, 700, 1401, 2040, 2760}; /* 11, 11, 10 and 12 chunks */

static bool case_is_right(gpu *g, int n, fault *what) {
    const dr_recurrence shape = {
        .rule = dr_rule_find(cases[n].rule),
        .layout = {.sequences = MOST_SEQUENCES, .rows = lengths[MOST_SEQUENCES], .cu_seqlens = lengths},
        .key_heads = HEADS,
        .value_heads = HEADS,
        .key_size = cases[n].key_size,
        .value_size = cases[n].value_size,
    };
    dr_backend *cuda = g->cuda[1];
    dr_random random = dr_random_start((uint64_t)n, 9);
    problem *p = problem_create(shape.rule, &shape, false, &random);
    result together = {0};
    fault apart;
    bool holds = problem_run(cuda, p, DR_PATH_CHUNKWISE, 0, true, &together, what);
    for (int64_t i = 0; i < MOST_SEQUENCES && holds; i++) {
        const int64_t first = 0, tokens = lengths[i + 1] - lengths[i];
        problem *own = problem_part(p, i, 1, &first, &tokens, NULL);
        result alone = {0};
        holds = problem_run(cuda, own, DR_PATH_CHUNKWISE, 0, true, &alone, what) &&
                (sequence_same(p, own, i, &together, &alone, &apart) ||
                 fault_is(what, "%s K %lld V %lld: %s", cases[n].rule, (long long)shape.key_size, (long long)shape.value_size,
                          apart.text));
        result_free(&alone);
        problem_free(own);
        g->checks++;
    }
    result_free(&together);
    problem_free(p);
    return holds;
}

bool suite_busy(gpu *g, fault *what) {
    for (int n = 0; n < CASES; n++)
        if (!case_is_right(g, n, what)) return false;
    return true;
}
