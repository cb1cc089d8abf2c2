/* Long sequences of few heads in parts that begin early: as many chunks as their decays ask for, or not at all where one of
 * them asks for too many. Which it is follows from numbers, so each case says what its decays are. */
#include "rounding.h"

#include <math.h>
#include <string.h>

typedef struct {
    int64_t sequences, tokens, heads, group, size; /* group: value heads a key head; size: K and V */
    int64_t weak;                                  /* heads whose decays are weak, where a case wants some */
    bool cut; /* where parts do not begin early they are joined; else a sequence is whole then */
} shape;

static problem *create(const dr_rule *rule, const shape *s, int64_t *cu_seqlens, uint64_t seed) {
    for (int64_t i = 0; i <= s->sequences; i++) cu_seqlens[i] = i * s->tokens;
    const dr_recurrence sizes = {
        .rule = rule,
        .layout = {.sequences = s->sequences, .rows = s->sequences * s->tokens, .cu_seqlens = cu_seqlens},
        .key_heads = s->heads / s->group,
        .value_heads = s->heads,
        .key_size = s->size,
        .value_size = s->size,
    };
    dr_random random = dr_random_start(seed, 7);
    problem *p = problem_create(rule, &sizes, false, &random);
    p->recurrence.layout.cu_seqlens = NULL;
    return p;
}

/* Log decays of the first heads of the last sequence, from which nothing fades within a part. */
static void weaken(problem *p, const shape *s) {
    for (int64_t i = (s->sequences - 1) * s->tokens; i < s->sequences * s->tokens; i++)
        for (int64_t head = 0; head < s->weak; head++) p->input[DR_INPUT_LOG_DECAY][i * s->heads + head] = -1e-4f;
}

static bool is_same(gpu *g, const problem *p, const char *of, const double *got, const double *want, int64_t count,
                    fault *what) {
    g->checks++;
    if (!want || !memcmp(got, want, (size_t)count * sizeof *got)) return true;
    return fault_is(what, "%s in parts: %s has other bits", p->rule.name, of);
}

/* o of heads that go as if nothing began early; where packed sequences are cut, and trimmed, of those whose decays are weak. */
static bool are_joined(gpu *g, const problem *p, const shape *s, const double *got, const double *want, fault *what) {
    const int64_t heads = s->cut ? s->weak : s->heads, size = heads * s->size;
    bool holds = true;
    for (int64_t token = 0; token < s->tokens && holds; token++, got += s->heads * s->size, want += s->heads * s->size)
        holds = !memcmp(got, want, (size_t)size * sizeof *got) ||
                fault_is(what, "%s in parts: o of joined parts has other bits", p->rule.name);
    g->checks++;
    return holds;
}

/* Within the bound of the plain loop, as packed sequences, whose parts are joined, are in other suites; forward the same bits
 * whether a backward follows or not. What decays of the last sequence keep from beginning early has the bits of joined parts.
 */
static bool parts_are_right(gpu *g, const char *rule, const shape *s, bool weak, uint64_t seed, fault *what) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    problem *p = create(dr_rule_find(rule), s, cu_seqlens, seed);
    dr_random random = dr_random_start(seed, 8);
    if (weak) weaken(p, s);
    result joined = {0}, got = {0}, alone = {0};
    bool holds = rounds_as_plain(g, 1, p, DR_PATH_CHUNKWISE, &random, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &got, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &alone, what) &&
                 is_same(g, p, "o that no backward follows", alone.o, got.o, p->o_count, what);
    for (int i = 0; i < DR_STATES && holds; i++)
        holds = is_same(g, p, "a final state that no backward follows", alone.final[i], got.final[i], p->state_count[i], what);
    p->recurrence.layout.cu_seqlens = cu_seqlens;
    const int64_t count = p->o_count / s->sequences, before = p->o_count - count;
    holds = holds && (!weak || (problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &joined, what) &&
                                are_joined(g, p, s, got.o + before, joined.o + before, what)));
    result_free(&joined), result_free(&got), result_free(&alone);
    problem_free(p);
    return holds;
}

/* What an early part drops is there, and no larger than the bound: of a state that values of 1e6 have made two chunks before
 * the part, of decays that bring just 2^-20 of it there. Without that a program that drops nothing would pass. */
static bool dropped_is_bounded(gpu *g, fault *what) {
    enum { HEADS = 50, PART = 1024, SIZE = 128, EARLY = 128 };
    const shape s = {1, 2 * PART, HEADS, 1, SIZE, 0, false};
    const double each = -0.1084, huge = 1e6; /* a log decay; 128 of them are 20.018 powers of two */
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    problem *p = create(dr_rule_find("gdn"), &s, cu_seqlens, 3);
    problem_forget_states(p);
    for (int64_t i = 0; i < p->input_count[DR_INPUT_LOG_DECAY]; i++) p->input[DR_INPUT_LOG_DECAY][i] = (float)each;
    double largest = 0;
    for (int64_t i = 0; i < (PART - EARLY) * HEADS * SIZE; i++)
        largest = fmax(largest, fabs(p->input[DR_INPUT_VALUE][i] *= huge));
    result early = {0}, joined = {0};
    bool holds = problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &early, what);
    p->recurrence.layout.cu_seqlens = cu_seqlens;
    holds = holds && problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &joined, what);
    double dropped = 0;
    for (int64_t i = PART * HEADS * SIZE; i < (PART + 64) * HEADS * SIZE && holds; i++)
        dropped = fmax(dropped, fabs(early.o[i] - joined.o[i]));
    /* |S| <= the sum of alpha^n |k| |v|; keys and queries are no longer than 1.1 */
    const double state = 1.1 * largest * sqrt(SIZE) / (1 - exp(each)), most = ldexp(state, -20) * 1.1;
    g->checks += 2;
    if (holds && !(dropped > 0)) holds = fault_is(what, "gdn in parts that begin early: nothing of a huge state is dropped");
    if (holds && !(dropped <= most))
        holds =
            fault_is(what, "gdn in parts that begin early: %.3g of a state is dropped, at most %.3g is right", dropped, most);
    result_free(&early), result_free(&joined);
    problem_free(p);
    return holds;
}

/* Of an H200's 132 multiprocessors three quarters get a part. Sequences that are not cut else, beside whose scan prepare would
 * run or not, and two of them; one that is cut in five both ways, forward and back, all of whose heads may have weak decays, or
 * some; and one whose vectors do not begin at 16 bytes, which goes as if its decays were weak. */
static const shape uncut = {1, 3100, 44, 1, 128, 1, false}, grouped = {1, 2090, 50, 2, 128, 1, false},
                   two = {2, 2090, 30, 1, 128, 1, false}, cut = {1, 8200, 13, 1, 128, 13, true},
                   some = {1, 8200, 13, 1, 128, 4, true}, odd = {1, 2090, 50, 1, 100, 1, false};
static const struct {
    const char *rule;
    const shape *shape;
    bool weak;
} cases[] = {{"gdn", &uncut, false},  {"gdn", &uncut, true},   {"gdn", &grouped, false}, {"gdn", &two, true},
             {"gdn", &cut, false},    {"gdn", &cut, true},     {"gdn", &some, true},     {"qdelta", &two, true},
             {"qdelta", &cut, false}, {"qdelta", &some, true}, {"pgdn", &uncut, false},  {"pgdn", &two, true},
             {"pgdn", &cut, false},   {"pgdn", &some, true},   {"gdn", &odd, true}};
enum { CASES = sizeof cases / sizeof *cases };

static bool case_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    (void)context;
    return n == CASES ? dropped_is_bounded(own, what)
                      : parts_are_right(own, cases[n].rule, cases[n].shape, cases[n].weak, n, what);
}

bool suite_early(gpu *g, fault *what) {
    return gpu_share(g, 0, CASES, case_is_right, NULL, what);
}
