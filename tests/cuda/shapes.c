/* Fixed shapes against the CPU backend: sequences of 1, 63, 64 and 65 tokens in one call, head sizes that the kernels have and
 * some between them; sequences that are cut into parts, whose first pass and joins have kernels of their own; and calls without
 * states, for which many kernels have instances of their own; and as many heads as a GPU has multiprocessors. */
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const rules[] = {"linear_attention", "mamba2", "gla",    "delta_net",     "gdn",  "kda",  "comba", "eda",
                                    "delta_product",    "rwkv7",  "qdelta", "pgdn_unstable", "pkda", "pgla", "gdn2",  "pgdn"};
enum { RULES = sizeof rules / sizeof *rules, SIZES = 8 };
/* Of these rules' sequences the longest are cut: few heads, and three times the least part. With the decays that problems have
 * some chunks of a part do for the first passes; of a head with weak ones none do. */
static const char *const cut_rules[] = {"linear_attention", "mamba2", "gla", "gdn", "kda", "eda", "qdelta"};
enum { CUT_RULES = sizeof cut_rules / sizeof *cut_rules };
/* With a decay of each channel: chunks of all forms of the kernels for these, mild and not. */
static const char *const channel_rules[] = {"gla", "kda", "gdn2", "pkda", "eda"};
enum { CHANNEL_RULES = sizeof channel_rules / sizeof *channel_rules };
static const char *const head_rules[] = {"delta_net", "gdn", "qdelta", "pgdn"};
enum { HEAD_RULES = sizeof head_rules / sizeof *head_rules };
static const int64_t short_seqlens[MOST_SEQUENCES + 1] = {0, 1, 64, 128, 193};
static const int64_t equal_seqlens[MOST_SEQUENCES + 1] = {0, 129, 258, 387, 516}; /* given as equally long */
static const int64_t cut_seqlens[MOST_SEQUENCES + 1] = {0, 3100, 3101, 3165, 6400};
static const int64_t sizes[SIZES][2] = {{64, 64}, {128, 128}, {256, 256}, {1, 1}, {100, 36}, {33, 200}, {256, 512}, {65, 300}};

static bool is_near(gpu *g, int type, const char *name, const char *of, const double *got, const double *want, int64_t count,
                    double allowed, fault *what) {
    if (!want || count == 0) return true;
    const double error = error_of(got, want, count, least_size_chunkwise);
    g->worst[type] = fmax(g->worst[type], error / allowed);
    g->checks++;
    return error <= allowed || fault_is(what, "%s: %s has error %.3g, at most %.2g is right", name, of, error, allowed);
}

static bool run_is_near(gpu *g, int type, const problem *p, dr_path path, const result *want, fault *what) {
    static const double forward[3] = {2e-5, 5e-2, 1e-2}, backward[3] = {1e-4, 1e-1, 2e-2};
    char name[160], kernel[96];
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    dr_recurrence_kernel(g->cuda[type], &recurrence, false, kernel, sizeof kernel);
    snprintf(name, sizeof name, "%s %s K %lld V %lld", p->rule.name, kernel, (long long)recurrence.key_size,
             (long long)recurrence.value_size);
    result got = {0};
    bool holds = problem_run(g->cuda[type], p, path, 0, true, &got, what) &&
                 is_near(g, type, name, "o", got.o, want->o, p->o_count, forward[type], what);
    for (int i = 0; i < DR_STATES && holds; i++)
        holds = is_near(g, type, name, "a final state", got.final[i], want->final[i], p->state_count[i], forward[type], what) &&
                is_near(g, type, name, "a gradient of an initial state", got.d_initial[i], want->d_initial[i],
                        p->state_count[i], backward[type], what);
    for (int i = 0; i < DR_INPUTS && holds; i++) /* a parameter's gradient is a few sums that all but cancel: suite_trials */
        holds = (type > 0 && p->input[i] && !is_per_token(p, (dr_input)i)) ||
                is_near(g, type, name, dr_input_name((dr_input)i), got.gradient[i], want->gradient[i], p->input_count[i],
                        backward[type], what);
    result_free(&got);
    return holds;
}

/* Log decays of the first head, so that 1e-3 and more of what it has goes through a part. */
static void weaken(problem *p) {
    double *decay = p->input[DR_INPUT_LOG_DECAY];
    const int64_t heads = p->recurrence.value_heads, tokens = p->recurrence.layout.rows;
    const int64_t channels = decay ? p->input_count[DR_INPUT_LOG_DECAY] / (tokens * heads) : 0;
    for (int64_t i = 0; i < tokens * heads * channels; i++)
        if (i / channels % heads == 0) decay[i] *= 0.05;
}

/* One channel of the log decays of every other 128 tokens, so that chunks there are not mild and others are. */
static void steepen(problem *p) {
    double *decay = p->input[DR_INPUT_LOG_DECAY];
    const int64_t tokens = p->recurrence.layout.rows, width = p->input_count[DR_INPUT_LOG_DECAY] / tokens;
    for (int64_t token = 0; token < tokens; token++)
        if (token / 128 % 2 == 0) decay[token * width + 5] = -5;
}

/* What is done to the log decays that a problem has. */
typedef enum { AS_DRAWN, WEAK, STEEP } decays;

/* bare: without states, as layers call it: kernels have instances for that. group: value heads of the key head. */
static bool rule_is_right(gpu *g, const dr_rule *rule, const int64_t *cu_seqlens, int64_t K, int64_t V, bool bare,
                          int64_t group, decays how, uint64_t seed, fault *what) {
    const dr_recurrence shape = {
        .rule = rule,
        .layout = {.sequences = MOST_SEQUENCES, .rows = cu_seqlens[MOST_SEQUENCES], .cu_seqlens = cu_seqlens},
        .key_heads = 1,
        .value_heads = rule->tied_scan ? 1 : group,
        .key_size = K,
        .value_size = V,
    };
    if (K < least_key_size(rule)) return true;
    dr_random random = dr_random_start(seed, 7);
    problem *p = problem_create(rule, &shape, false, &random);
    if (bare) problem_forget_states(p);
    if (how == WEAK) weaken(p);
    if (how == STEEP) steepen(p);
    if (cu_seqlens == equal_seqlens) p->recurrence.layout.cu_seqlens = NULL;
    result want = {0};
    bool holds = problem_run(g->cpu, p, DR_PATH_BEST, 0, true, &want, what) &&
                 run_is_near(g, 0, p, DR_PATH_CHUNKWISE, &want, what) && run_is_near(g, 0, p, DR_PATH_RECURRENT, &want, what) &&
                 run_is_near(g, 1, p, DR_PATH_CHUNKWISE, &want, what) && run_is_near(g, 2, p, DR_PATH_CHUNKWISE, &want, what);
    result_free(&want);
    problem_free(p);
    return holds;
}

/* The repeat of delta_product is a layer's choice: three here, as tokens then do not begin where tiles of 16 rows do; and also
 * with its first read before the decay, which a token's first row alone has. */
bool suite_shapes(gpu *g, fault *what) {
    for (int r = 0; r < RULES; r++)
        for (int s = 0; s < SIZES; s++) {
            dr_rule rule = *dr_rule_find(rules[r]);
            const bool repeats = rule.repeat > 1;
            if (repeats) rule.repeat = 3;
            const uint64_t seed = (uint64_t)(r * SIZES + s);
            if (!rule_is_right(g, &rule, short_seqlens, sizes[s][0], sizes[s][1], false, 2, AS_DRAWN, seed, what)) return false;
            rule.row[0].undecayed = true;
            if (repeats && !rule_is_right(g, &rule, short_seqlens, sizes[s][0], sizes[s][1], false, 2, AS_DRAWN, seed, what))
                return false;
        }
    for (int r = 0; r < CUT_RULES; r++)
        for (decays how = AS_DRAWN; how <= WEAK; how++)
            if (!rule_is_right(g, dr_rule_find(cut_rules[r]), cut_seqlens, 128, 128, false, 2, how, (uint64_t)(1000 + r), what))
                return false;
    for (int r = 0; r < CHANNEL_RULES; r++)
        for (int bare = 0; bare < 2; bare++)
            if (!rule_is_right(g, dr_rule_find(channel_rules[r]), equal_seqlens, 128, 128, bare, bare ? 1 : 2, STEEP,
                               (uint64_t)(1100 + r), what))
                return false;
    return true;
}

/* What may come of a key + lambda query that one kernel rounds and two add in float: what bf16 takes from a number. */
static const double sum_rounded = 0x1p-9;

/* So many heads that one kernel makes all of a forward: near the CPU's results, the same bits whether a backward follows or
 * not, and those of two kernels, which packed sequences take; of key + lambda query nearly those, since one kernel rounds the
 * sum. */
static bool heads_are_right(gpu *g, const dr_rule *rule, int64_t K, int64_t V, bool bare, uint64_t seed, fault *what) {
    const bool scans = dr_rule_uses(rule, DR_INPUT_SCAN_CENTRE); /* by one kernel only where each head has a key */
    const dr_recurrence shape = {
        .rule = rule,
        .layout = {.sequences = MOST_SEQUENCES, .rows = equal_seqlens[MOST_SEQUENCES], .cu_seqlens = equal_seqlens},
        .key_heads = scans ? 32 : 16,
        .value_heads = 32,
        .key_size = K,
        .value_size = V,
    };
    dr_random random = dr_random_start(seed, 7);
    problem *p = problem_create(rule, &shape, false, &random);
    if (bare) problem_forget_states(p);
    p->recurrence.layout.cu_seqlens = NULL;
    result want = {0}, alone = {0}, followed = {0}, packed = {0};
    bool holds = problem_run(g->cpu, p, DR_PATH_BEST, 0, false, &want, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &alone, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &followed, what) &&
                 is_near(g, 1, rule->name, "o of many heads", alone.o, want.o, p->o_count, 5e-2, what);
    p->recurrence.layout.cu_seqlens = equal_seqlens;
    holds = holds && problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &packed, what);
    const bool sums = dr_rule_uses(rule, DR_INPUT_LAMBDA);
    const int64_t count[] = {p->o_count, p->state_count[DR_STATE_S], p->state_count[DR_STATE_A]};
    const double *const first[] = {alone.o, alone.final[DR_STATE_S], alone.final[DR_STATE_A]};
    const double *const second[] = {followed.o, followed.final[DR_STATE_S], followed.final[DR_STATE_A]};
    const double *const two[] = {packed.o, packed.final[DR_STATE_S], packed.final[DR_STATE_A]};
    for (int i = 0; i < 3 && holds; i++) {
        if (!first[i]) continue;
        const size_t size = (size_t)count[i] * sizeof(double);
        g->checks += 2;
        if (memcmp(first[i], second[i], size))
            holds = fault_is(what, "%s of many heads, K %lld, V %lld: a forward that a backward follows has other bits",
                             rule->name, (long long)K, (long long)V);
        else if (sums)
            holds = is_near(g, 1, rule->name, "a forward of many heads, beside packed sequences,", first[i], two[i], count[i],
                            sum_rounded, what);
        else if (memcmp(first[i], two[i], size))
            holds = fault_is(what, "%s of many heads, K %lld, V %lld: a forward has other bits than of packed sequences",
                             rule->name, (long long)K, (long long)V);
    }
    result_free(&want), result_free(&alone), result_free(&followed), result_free(&packed);
    problem_free(p);
    return holds;
}

/* Packed sequences and equal ones: some instances take only these. */
bool suite_layers(gpu *g, fault *what) {
    for (int r = 0; r < RULES; r++) {
        const dr_rule *rule = dr_rule_find(rules[r]);
        const uint64_t seed = (uint64_t)(500 + r);
        if (!rule_is_right(g, rule, short_seqlens, 128, 128, true, 1, AS_DRAWN, seed, what)) return false;
        for (int s = 0; s < 3; s++)
            for (int64_t group = 1; group <= 4; group *= 2)
                if (!rule_is_right(g, rule, equal_seqlens, sizes[s][0], sizes[s][1], true, group, AS_DRAWN, seed, what))
                    return false;
    }
    for (int r = 0; r < HEAD_RULES; r++) {
        const dr_rule *rule = dr_rule_find(head_rules[r]);
        const uint64_t seed = (uint64_t)(2000 + 3 * r);
        if (!heads_are_right(g, rule, 128, 128, true, seed, what) ||
            !heads_are_right(g, rule, 128, 128, false, seed + 1, what) ||
            !heads_are_right(g, rule, 100, 72, false, seed + 2, what))
            return false;
    }
    return true;
}
