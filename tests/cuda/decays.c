/* The gradient of log decays where gates are saturated, and keys that are zero where the gain is a quotient by key . key.
 *
 * A decay of exp(-16) has a gradient of that size beside others of 1, so that any term which should cancel shows. Held to the
 * bound of the plain loop: the sums that reach A_log (d_log_decay log_decay over tokens and channels, for each head) and what a
 * token has of a head, those of each size of decay for themselves. Of one token without a state the gradient is exactly 0. */
#include "rounding.h"

#include "ops/shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 7, MIXED = LEVELS, DECAYS = 2, MOST_NEIGHBOURS = 24 };
static const double levels[LEVELS] = {-0.01, -1, -4, -10, -16, -30, -60};
static const dr_input decay_inputs[DECAYS] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};
static const char *const type_names[3] = {"float32", "bf16", "fp16"};

static bool decays(const dr_rule *rule) {
    return rule->scan != DR_SCAN_GRAM && rule->scan != DR_SCAN_INVERSE_GRAM &&
           (dr_rule_uses(rule, DR_INPUT_LOG_DECAY) || dr_rule_uses(rule, DR_INPUT_SCAN_LOG_DECAY));
}

/* Every log decay near one level, or those of each token near one of its own (MIXED). */
static void saturate(problem *p, int level, dr_random *random) {
    for (int k = 0; k < DECAYS; k++) {
        const int64_t count = p->input_count[decay_inputs[k]], tokens = p->recurrence.layout.rows;
        double at = 0;
        for (int64_t i = 0; i < count; i++) {
            if (level < MIXED || count < tokens || i % (count / tokens) == 0)
                at = levels[level < MIXED ? level : (int)dr_random_below(random, LEVELS)];
            p->input[decay_inputs[k]][i] = (float)(at * uniform(random, 0.9, 1));
        }
    }
}

static int level_of(double log_decay) {
    int level = 0;
    while (level < LEVELS - 1 && log_decay <= 0.9 * levels[level + 1]) level++;
    return level;
}

/* A scalar log decay's gradient is made of whole products in 16 bits, from which pairs that span nothing are taken off again:
 * other suites hold it, where decays are not saturated. */
static bool is_held(const problem *p, int type, dr_input input) {
    return p->input[input] && (type == 0 || input != DR_INPUT_LOG_DECAY || p->rule.decay == DR_DECAY_CHANNEL);
}

/* How far off the gradients of decays are: of rows near each level the worst beside their root mean square, and of the sums of
 * heads the worst beside the sizes of their terms. */
typedef struct {
    double row[DECAYS][LEVELS], sum[DECAYS];
} decay_errors;

static const double least = 1e-30; /* below it float32 has no digits left */

static void raise(double *to, double error) {
    *to = isfinite(error) ? fmax(*to, error) : INFINITY;
}

static void raise_errors(const problem *p, int k, const result *got, const result *want, decay_errors *errors) {
    const dr_input input = decay_inputs[k];
    const dr_input_form form = dr_recurrence_input_form(&p->recurrence, input);
    const double *decay = p->input[input], *a = got->gradient[input], *b = want->gradient[input];
    double apart[LEVELS] = {0}, size[LEVELS] = {0}, rows[LEVELS] = {0};
    for (int64_t head = 0; head < form.heads; head++) {
        double is = 0, wanted = 0, sizes = 0;
        for (int64_t at = head * form.size; at < p->input_count[input]; at += form.heads * form.size) {
            const int level = level_of(decay[at]);
            double squares = 0;
            for (int64_t i = at; i < at + form.size; i++) {
                is += a[i] * decay[i];
                wanted += b[i] * decay[i];
                sizes += fabs(b[i] * decay[i]);
                squares += (a[i] - b[i]) * (a[i] - b[i]);
                size[level] += b[i] * b[i];
            }
            raise(&apart[level], squares);
            rows[level]++;
        }
        if (is_per_token(p, input)) raise(&errors->sum[k], fabs(is - wanted) / fmax(sizes, least));
    }
    for (int level = 0; level < LEVELS; level++)
        if (rows[level] > 0) raise(&errors->row[k][level], sqrt(apart[level]) / fmax(sqrt(size[level] / rows[level]), least));
}

static void take_decays(const problem *p, result *exact, const result *rounded, void *context) {
    for (int k = 0; k < DECAYS; k++)
        if (p->input[decay_inputs[k]]) raise_errors(p, k, rounded, exact, context);
}

/* plain: the errors of the plain loop, for 16 bits. */
static bool decays_near(gpu *g, int type, const char *name, const problem *p, const result *got, const result *want,
                        const decay_errors *plain, fault *what) {
    decay_errors errors = {{{0}}, {0}};
    for (int k = 0; k < DECAYS; k++) {
        if (!is_held(p, type, decay_inputs[k])) continue;
        raise_errors(p, k, got, want, &errors);
        for (int level = 0; level <= LEVELS; level++) {
            const bool sum = level == LEVELS;
            const double error = sum ? errors.sum[k] : errors.row[k][level],
                         of_plain = sum ? plain->sum[k] : plain->row[k][level];
            const double allowed = type > 0 ? times_of_plain * fmax(of_plain, least_error(g->cuda[type])) : sum ? 1e-5 : 1e-4;
            if (error <= allowed) {
                g->worst[type] = fmax(g->worst[type], error / allowed);
                continue;
            }
            return sum ? fault_is(what, "%s: the sum that reaches A_log has error %.3g, %.2g is right", name, error, allowed)
                       : fault_is(what, "%s: the gradient of %s near %g has error %.3g in a row, %.2g is right", name,
                                  dr_input_name(decay_inputs[k]), levels[level], error, allowed);
        }
    }
    return true;
}

static bool saturated_is_near(gpu *g, const dr_rule *rule, int64_t size, int64_t tokens, int level, bool bare, uint64_t seed,
                              fault *what) {
    const int64_t cu_seqlens[] = {0, tokens};
    const dr_recurrence shape = {.rule = rule,
                                 .layout = {1, tokens, cu_seqlens},
                                 .key_heads = 2,
                                 .value_heads = bare || rule->tied_scan ? 2 : 4,
                                 .key_size = size,
                                 .value_size = size};
    if (size < least_key_size(rule)) return true;
    dr_random random = dr_random_start(seed, 11);
    problem *p = problem_create(rule, &shape, false, &random);
    if (bare) problem_forget_states(p);
    saturate(p, level, &random);
    result want = {0};
    bool holds = problem_run(g->reference, p, DR_PATH_BEST, 0, true, &want, what);
    for (int run = 0; run < 4 && holds; run++) {
        const int type = run < 2 ? 0 : run - 1;
        const dr_path path = run == 0 ? DR_PATH_RECURRENT : DR_PATH_CHUNKWISE;
        char kernel[96], name[256];
        dr_recurrence recurrence = p->recurrence;
        recurrence.path = path;
        dr_recurrence_kernel(g->cuda[type], &recurrence, false, kernel, sizeof kernel);
        snprintf(name, sizeof name, "%s in %s, %s, K = V = %lld, %lld tokens%s, decays near %g", rule->name, type_names[type],
                 kernel, (long long)size, (long long)tokens, bare ? " without states" : "",
                 level < MIXED ? levels[level] : NAN);
        result got = {0};
        decay_errors plain = {{{0}}, {0}};
        dr_random drawn = dr_random_start(seed, (uint64_t)(20 + run));
        holds = problem_run(g->cuda[type], p, path, 0, true, &got, what);
        bool near = holds && decays_near(g, type, name, p, &got, &want, &plain, what);
        for (int draws = 0, end = 3; holds && !near && type > 0 && draws < MOST_NEIGHBOURS; draws = end, end *= 2)
            holds = plain_loops(g, type, p, draws, end, &drawn, take_decays, &plain, what),
            near = holds && decays_near(g, type, name, p, &got, &want, &plain, what);
        holds = holds && near;
        result_free(&got);
        g->checks++;
    }
    result_free(&want);
    problem_free(p);
    return holds;
}

static bool one_token_is_zero(gpu *g, const dr_rule *rule, int64_t size, fault *what) {
    static const int64_t cu_seqlens[] = {0, 1, 2, 3};
    const dr_recurrence shape = {.rule = rule,
                                 .layout = {3, 3, cu_seqlens},
                                 .key_heads = 2,
                                 .value_heads = rule->tied_scan ? 2 : 4,
                                 .key_size = size,
                                 .value_size = size};
    if (size < least_key_size(rule)) return true;
    bool holds = true;
    for (int run = 0; run < 12 && holds; run++) {
        const int type = run % 3;
        const dr_path path = run % 6 < 3 ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT;
        dr_recurrence sizes = shape;
        if (run >= 6) sizes.value_heads = sizes.key_heads;
        dr_random random = dr_random_start((uint64_t)size, 12);
        problem *p = problem_create(rule, &sizes, false, &random);
        problem_forget_states(p);
        result got = {0};
        holds = problem_run(g->cuda[type], p, path, 0, true, &got, what);
        for (int k = 0; k < DECAYS && holds; k++)
            for (int64_t i = 0; i < p->input_count[decay_inputs[k]] && holds; i++)
                if (got.gradient[decay_inputs[k]][i] != 0)
                    holds = fault_is(what, "%s in %s, %s, K = V = %lld: one token's %s has gradient %g instead of 0",
                                     rule->name, type_names[type], path == DR_PATH_CHUNKWISE ? "chunkwise" : "token by token",
                                     (long long)size, dr_input_name(decay_inputs[k]), got.gradient[decay_inputs[k]][i]);
        result_free(&got);
        problem_free(p);
        g->checks++;
    }
    return holds;
}

/* The first token's key and every fifth one's is 0: nothing is written or erased there, and no gradient goes to key or value.
 */
static bool zero_keys_change_nothing(gpu *g, const dr_rule *rule, const char *name, int64_t size, fault *what) {
    static const int64_t cu_seqlens[] = {0, 70};
    const dr_recurrence shape = {
        .rule = rule, .layout = {1, 70, cu_seqlens}, .key_heads = 2, .value_heads = 2, .key_size = size, .value_size = size};
    dr_random random = dr_random_start((uint64_t)size, 13);
    problem *p = problem_create(rule, &shape, false, &random);
    for (int64_t i = 0; i < p->input_count[DR_INPUT_KEY]; i++)
        if (i / (2 * size) % 5 == 0) p->input[DR_INPUT_KEY][i] = 0;
    result want = {0};
    bool holds = problem_run(g->reference, p, DR_PATH_BEST, 0, true, &want, what);
    for (int run = 0; run < 6 && holds; run++) {
        const int type = run % 3;
        const dr_path path = run < 3 ? DR_PATH_CHUNKWISE : DR_PATH_RECURRENT;
        result got = {0};
        holds = problem_run(g->cuda[type], p, path, 0, true, &got, what) &&
                (type == 0 ? floats_are_near(g, p, path, &want, what) : rounds_as_plain(g, type, p, path, &random, what));
        for (int64_t i = 0; i < p->input_count[DR_INPUT_KEY] && holds; i++)
            if (i / (2 * size) % 5 == 0 && !(got.gradient[DR_INPUT_KEY][i] == 0 && got.gradient[DR_INPUT_VALUE][i] == 0))
                holds = fault_is(what, "%s in %s: a zero key or its value has a gradient of %g or %g", name, type_names[type],
                                 got.gradient[DR_INPUT_KEY][i], got.gradient[DR_INPUT_VALUE][i]);
        for (int in = 0; in < DR_INPUTS && holds; in++)
            for (int64_t i = 0; i < p->input_count[in] && holds; i++)
                if (!isfinite(got.gradient[in][i]))
                    holds = fault_is(what, "%s in %s: the gradient of %s is not finite", name, type_names[type],
                                     dr_input_name((dr_input)in));
        result_free(&got);
        g->checks++;
    }
    result_free(&want);
    problem_free(p);
    return holds;
}

static bool quotients_bear_zero_keys(gpu *g, fault *what) {
    dr_rule rules[3];
    for (int i = 0; i < 3; i++) {
        rules[i] = dr_rule_blank();
        rules[i].rows = 1;
        rules[i].row[0] = (dr_row){DR_READ_KEY, false, DR_WRITE_PRECONDITIONED, DR_GAIN_BETA, DR_VALUE_GAIN};
        rules[i].decay = DR_DECAY_SCALAR;
        rules[i].scan = DR_SCAN_DIAGONAL;
    }
    rules[0] = *dr_rule_find("nlms");
    rules[1].normalizer = DR_NORMALIZER_INVERSE;
    rules[2].row[0].gain = DR_GAIN_NORMALIZED;
    static const char *const names[] = {"nlms", "a normalizer of 1/m", "a gain of 1 / (r . w)"};
    static const int64_t sizes[] = {20, 64, 128, 256};
    for (int i = 0; i < 3; i++)
        for (int s = 0; s < 4; s++)
            if (!zero_keys_change_nothing(g, &rules[i], names[i], sizes[s], what)) return false;
    return true;
}

static bool rule_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    static const int64_t sizes[] = {16, 64, 128, 256};
    (void)context;
    const int i = (int)n;
    if (i == dr_rule_count()) {
        dr_rule threefold = *dr_rule_find("kda"); /* rows of a token on both sides of a half of a block */
        threefold.repeat = 3;
        return one_token_is_zero(own, &threefold, 128, what) &&
               saturated_is_near(own, &threefold, 128, 50, 4, true, 3000, what) && quotients_bear_zero_keys(own, what);
    }
    const dr_rule rule = *dr_rule_at(i);
    if (!decays(&rule)) return true;
    for (int s = 0; s < 4; s++)
        if (!one_token_is_zero(own, &rule, sizes[s], what)) return false;
    for (int level = 0; level <= MIXED; level++) {
        const int s = (i + level) % 3;
        const uint64_t seed = (uint64_t)(i * (MIXED + 1) + level);
        if (!saturated_is_near(own, &rule, sizes[s], 70, level, level % 2, seed, what) ||
            !saturated_is_near(own, &rule, 128, 40, level, true, seed + 1000, what))
            return false;
    }
    return true;
}

bool suite_decays(gpu *g, fault *what) {
    return gpu_share(g, 0, (uint64_t)dr_rule_count(), rule_is_right, NULL, what);
}
