/* Which experts tokens go to, and the loss that balances them (ops/experts.h). Rows of scores are short beside the products of
 * the experts, so that this is plain C, in double: the choice is then that of exact scores wherever these differ at all. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* s [experts] of one token; softmax by its largest logit, sigmoid without an exponential of what is positive */
static void score(const dr_router *router, const float *logits, double *s) {
    const int64_t experts = router->of.experts;
    if (router->sigmoid) {
        for (int64_t e = 0; e < experts; e++) {
            const double fall = exp(-fabs((double)logits[e]));
            s[e] = (logits[e] < 0 ? fall : 1) / (1 + fall);
        }
        return;
    }
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t e = 0; e < experts; e++) largest = logits[e] > largest ? logits[e] : largest;
    for (int64_t e = 0; e < experts; e++) sum += s[e] = exp((double)logits[e] - (double)largest);
    for (int64_t e = 0; e < experts; e++) s[e] /= sum;
}

/* best [count] gets the indices of the largest of n numbers, falling, of equal ones the first. allowed: which of the groups of
 * `size` numbers may be taken; NULL: all. At least count numbers may be. */
static void largest_of(int64_t n, const double *x, int64_t size, const bool *allowed, int64_t count, int32_t *best) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        if (allowed && !allowed[i / size]) continue;
        int64_t at = found < count ? found : count;
        while (at > 0 && x[i] > x[best[at - 1]]) at--;
        if (at == count) continue;
        if (found < count) found++;
        memmove(best + at + 1, best + at, (size_t)(found - 1 - at) * sizeof *best);
        best[at] = (int32_t)i;
    }
}

/* What one thread works in. */
typedef struct {
    double *s, *choice, *group; /* [experts], [experts], [groups] */
    int32_t *best;              /* [groups], at least 2 */
    bool *kept;                 /* [groups] */
} workspace;

static size_t workspace_bytes(const dr_router *router) {
    const size_t experts = (size_t)router->of.experts, groups = (size_t)router->groups;
    const size_t bytes = (2 * experts + groups) * sizeof(double) + (groups + 2) * sizeof(int32_t) + groups * sizeof(bool);
    return (bytes + 63) / 64 * 64;
}

static workspace workspace_in(const dr_router *router, dr_cpu_scratch *scratch) {
    workspace w;
    w.s = (double *)(void *)(scratch->memory + (size_t)omp_get_thread_num() * workspace_bytes(router));
    w.choice = w.s + router->of.experts;
    w.group = w.choice + router->of.experts;
    w.best = (int32_t *)(void *)(w.group + router->groups);
    w.kept = (bool *)(void *)(w.best + router->groups + 2);
    return w;
}

static int team_of(const dr_backend *backend, const dr_router *router) {
    return dr_cpu_threads(backend, router->of.rows, router->of.rows * router->of.experts);
}

/* The groups that experts may be chosen from. */
static void keep_groups(const dr_router *router, const workspace *w) {
    const int64_t size = router->of.experts / router->groups;
    for (int64_t g = 0; g < router->groups; g++) {
        const double *choice = w->choice + g * size;
        largest_of(size, choice, size, NULL, 2, w->best);
        w->group[g] = choice[w->best[0]] + choice[w->best[1]];
    }
    largest_of(router->groups, w->group, router->groups, NULL, router->kept, w->best);
    memset(w->kept, 0, (size_t)router->groups * sizeof(bool));
    for (int64_t k = 0; k < router->kept; k++) w->kept[w->best[k]] = true;
}

dr_status dr_cpu_route_forward(dr_backend *backend, const dr_router *router, const void *logits, const void *bias,
                               int32_t *index, void *weights) {
    const int64_t experts = router->of.experts, chosen = router->of.chosen;
    const int team = team_of(backend, router);
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * workspace_bytes(router), &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < router->of.rows; t++) {
        const workspace w = workspace_in(router, scratch);
        int32_t *best = index + t * chosen;
        double sum = 0;
        score(router, (const float *)logits + t * experts, w.s);
        for (int64_t e = 0; e < experts; e++) w.choice[e] = w.s[e] + (bias ? (double)((const float *)bias)[e] : 0);
        if (router->groups > 1) keep_groups(router, &w);
        largest_of(experts, w.choice, experts / router->groups, router->groups > 1 ? w.kept : NULL, chosen, best);
        for (int64_t j = 0; j < chosen; j++) sum += w.s[best[j]];
        const double factor = router->normalised ? router->scale / (sum + 1e-20) : router->scale;
        for (int64_t j = 0; j < chosen; j++) ((float *)weights)[t * chosen + j] = (float)(factor * w.s[best[j]]);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* d_logits [experts] of a token from its scores s and their gradient d_s, added to `before` [experts] or to nothing. What
 * sigmoid(-x) rounds to near 1 is made from the logit. */
static void score_gradient(const dr_router *router, const float *logits, const double *s, const double *d_s,
                           const float *before, float *d_logits) {
    double along = 0;
    if (!router->sigmoid)
        for (int64_t e = 0; e < router->of.experts; e++) along += s[e] * d_s[e];
    for (int64_t e = 0; e < router->of.experts; e++) {
        const double rest = router->sigmoid ? 1 / (1 + exp((double)logits[e])) : 1; /* 1 - s of a sigmoid */
        d_logits[e] = (before ? before[e] : 0.0f) + (float)(s[e] * rest * (d_s[e] - along));
    }
}

dr_status dr_cpu_route_backward(dr_backend *backend, const dr_router *router, const void *logits_, const int32_t *index,
                                const void *d_weights_, void *d_logits) {
    const int64_t experts = router->of.experts, chosen = router->of.chosen;
    const int team = team_of(backend, router);
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)team * workspace_bytes(router), &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < router->of.rows; t++) {
        const workspace w = workspace_in(router, scratch);
        const float *logits = (const float *)logits_ + t * experts, *d_weights = (const float *)d_weights_ + t * chosen;
        const int32_t *best = index + t * chosen;
        double sum = 1e-20, along = 0;
        score(router, logits, w.s);
        for (int64_t j = 0; j < chosen; j++) {
            sum += w.s[best[j]];
            along += (double)d_weights[j] * w.s[best[j]];
        }
        memset(w.choice, 0, (size_t)experts * sizeof *w.choice);
        for (int64_t j = 0; j < chosen; j++)
            w.choice[best[j]] = router->normalised ? router->scale * ((double)d_weights[j] - along / sum) / sum
                                                   : router->scale * (double)d_weights[j];
        score_gradient(router, logits, w.s, w.choice, NULL, (float *)d_logits + t * experts);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* slope [experts] of the balancing loss by the share that a token gives an expert */
static void slopes(const dr_router *router, const int32_t *index, double factor, double *slope) {
    const int64_t experts = router->of.experts, slots = router->of.rows * router->of.chosen;
    const double rows = (double)router->of.rows;
    memset(slope, 0, (size_t)experts * sizeof *slope);
    for (int64_t i = 0; i < slots; i++) slope[index[i]]++;
    for (int64_t e = 0; e < experts; e++) slope[e] *= factor * (double)experts / (rows * rows);
}

/* The loss of one token; its gradient is added to d_logits unless that is NULL. */
static double balance_token(const dr_router *router, const float *logits, const double *slope, const workspace *w,
                            float *d_logits) {
    const int64_t experts = router->of.experts;
    double sum = 0, loss = 0;
    score(router, logits, w->s);
    for (int64_t e = 0; e < experts; e++) sum += w->s[e];
    for (int64_t e = 0; e < experts; e++) loss += w->s[e] / sum * slope[e];
    if (!d_logits) return loss;
    for (int64_t e = 0; e < experts; e++) w->choice[e] = router->sigmoid ? (slope[e] - loss) / sum : slope[e];
    score_gradient(router, logits, w->s, w->choice, d_logits, d_logits);
    return loss;
}

dr_status dr_cpu_balance(dr_backend *backend, const dr_router *router, const void *logits, const int32_t *index, double factor,
                         void *loss, void *d_logits) {
    const int64_t rows = router->of.rows, experts = router->of.experts;
    const int team = team_of(backend, router);
    dr_cpu_scratch *scratch;
    if (rows == 0) return DR_OK;
    const size_t each = (size_t)team * workspace_bytes(router);
    DR_TRY(dr_cpu_scratch_take(backend, each + (size_t)experts * sizeof(double), &scratch));
    double *slope = (double *)(void *)(scratch->memory + each), parts[DR_CPU_PARTS] = {0};
    slopes(router, index, factor, slope);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const workspace w = workspace_in(router, scratch);
        for (int64_t t = dr_cpu_part(rows, part, DR_CPU_PARTS); t < dr_cpu_part(rows, part + 1, DR_CPU_PARTS); t++)
            parts[part] += balance_token(router, (const float *)logits + t * experts, slope, &w,
                                         d_logits ? (float *)d_logits + t * experts : NULL);
    }
    double sum = 0;
    for (int part = 0; part < DR_CPU_PARTS; part++) sum += parts[part];
    *(float *)loss += (float)sum;
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
