/* Mixture of experts (ops/experts.h), token by token. */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* ---- routing --------------------------------------------------------------------------------------------------------- */

/* s [experts] of one token */
static void scores_of(const dr_router *router, const double *logits, double *s) {
    const int64_t experts = router->of.experts;
    double largest = (double)-INFINITY, sum = 0;
    for (int64_t e = 0; e < experts; e++) largest = fmax(largest, logits[e]);
    for (int64_t e = 0; e < experts; e++) {
        s[e] = router->sigmoid ? sigmoid(logits[e]) : exp(logits[e] - largest);
        sum += s[e];
    }
    for (int64_t e = 0; e < experts && !router->sigmoid; e++) s[e] /= sum;
}

/* The sum of the two largest of count numbers. */
static double two_largest(int64_t count, const double *x) {
    double first = (double)-INFINITY, second = (double)-INFINITY;
    for (int64_t i = 0; i < count; i++)
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    return first + second;
}

/* The index of the largest of count numbers that is not taken, of equal ones the first; it is then taken. */
static int64_t take_largest(int64_t count, const double *x, bool *taken) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    taken[best] = true;
    return best;
}

/* What choosing works in, for one token. */
typedef struct {
    double *s, *choice, *group; /* [experts], [experts], [groups] */
    bool *taken, *kept;         /* [experts], [groups] */
    void *memory;
} space;

static dr_status take_space(const dr_router *router, space *w) {
    const int64_t experts = router->of.experts, groups = router->groups;
    DR_TRY(dr_allocate((size_t)(2 * experts + groups) * sizeof(double) + (size_t)(experts + groups) * sizeof(bool),
                       "routing of the reference", &w->memory));
    w->s = w->memory;
    w->choice = w->s + experts;
    w->group = w->choice + experts;
    w->taken = (bool *)(w->group + groups);
    w->kept = w->taken + experts;
    return DR_OK;
}

static void choose(const dr_router *router, const double *logits, const double *bias, const space *w, int32_t *index,
                   double *weights) {
    const int64_t experts = router->of.experts, chosen = router->of.chosen, size = experts / router->groups;
    scores_of(router, logits, w->s);
    for (int64_t e = 0; e < experts; e++) w->choice[e] = w->s[e] + (bias ? bias[e] : 0);
    for (int64_t g = 0; g < router->groups; g++) w->group[g] = two_largest(size, w->choice + g * size);
    memset(w->kept, 0, (size_t)router->groups * sizeof(bool));
    for (int64_t k = 0; k < router->kept; k++) take_largest(router->groups, w->group, w->kept);
    for (int64_t g = 0; g < router->groups; g++)
        for (int64_t e = g * size; e < (g + 1) * size; e++) w->taken[e] = !w->kept[g];
    double sum = 0;
    for (int64_t j = 0; j < chosen; j++) {
        index[j] = (int32_t)take_largest(experts, w->choice, w->taken);
        sum += w->s[index[j]];
    }
    for (int64_t j = 0; j < chosen; j++) weights[j] = router->scale * w->s[index[j]] / (router->normalised ? sum + 1e-20 : 1);
}

dr_status dr_reference_route_forward(dr_backend *backend, const dr_router *router, const void *logits_, const void *bias,
                                     int32_t *index, void *weights_) {
    (void)backend;
    space w;
    DR_TRY(take_space(router, &w));
    for (int64_t t = 0; t < router->of.rows; t++)
        choose(router, (const double *)logits_ + t * router->of.experts, bias, &w, index + t * router->of.chosen,
               (double *)weights_ + t * router->of.chosen);
    dr_release(w.memory);
    return DR_OK;
}

/* d_logits [experts] += what the scores' gradient d_s [experts] makes of it */
static void add_score_gradient(const dr_router *router, const double *logits, const double *s, const double *d_s,
                               double *d_logits) {
    double along = 0;
    for (int64_t e = 0; e < router->of.experts; e++) along += s[e] * d_s[e];
    for (int64_t e = 0; e < router->of.experts; e++)
        d_logits[e] += router->sigmoid ? d_s[e] * sigmoid_derivative(logits[e]) : s[e] * (d_s[e] - along);
}

/* w_j = scale s_j / S with S the sum of the chosen: d_s_j = scale / S (d_w_j - sum_i d_w_i s_i / S) */
dr_status dr_reference_route_backward(dr_backend *backend, const dr_router *router, const void *logits_, const int32_t *index_,
                                      const void *d_weights_, void *d_logits_) {
    (void)backend;
    const int64_t experts = router->of.experts, chosen = router->of.chosen;
    space w;
    DR_TRY(take_space(router, &w));
    for (int64_t t = 0; t < router->of.rows; t++) {
        const double *logits = (const double *)logits_ + t * experts, *d_weights = (const double *)d_weights_ + t * chosen;
        const int32_t *index = index_ + t * chosen;
        double *d_s = w.choice, sum = 0, along = 0;
        scores_of(router, logits, w.s);
        for (int64_t j = 0; j < chosen; j++) {
            sum += w.s[index[j]];
            along += d_weights[j] * w.s[index[j]];
        }
        memset(d_s, 0, (size_t)experts * sizeof *d_s);
        for (int64_t j = 0; j < chosen; j++)
            d_s[index[j]] =
                router->scale * (router->normalised ? (d_weights[j] - along / (sum + 1e-20)) / (sum + 1e-20) : d_weights[j]);
        memset((double *)d_logits_ + t * experts, 0, (size_t)experts * sizeof(double));
        add_score_gradient(router, logits, w.s, d_s, (double *)d_logits_ + t * experts);
    }
    dr_release(w.memory);
    return DR_OK;
}

/* With f_e the share of slots of expert e times chosen, P_e the mean of p_e = s_e (softmax) or s_e / sum s (sigmoid):
 * loss = factor experts sum_e f_e P_e. f has no gradient. */
dr_status dr_reference_balance(dr_backend *backend, const dr_router *router, const void *logits_, const int32_t *index,
                               double factor, void *loss, void *d_logits_) {
    (void)backend;
    const int64_t rows = router->of.rows, experts = router->of.experts;
    space w;
    if (rows == 0) return DR_OK;
    DR_TRY(take_space(router, &w));
    double *slope = w.choice; /* of the loss by p_e of any token */
    memset(slope, 0, (size_t)experts * sizeof *slope);
    for (int64_t i = 0; i < rows * router->of.chosen; i++) slope[index[i]] += 1;
    for (int64_t e = 0; e < experts; e++) slope[e] *= factor * (double)experts / ((double)rows * (double)rows);
    for (int64_t t = 0; t < rows; t++) {
        const double *logits = (const double *)logits_ + t * experts;
        double *d_logits = d_logits_ ? (double *)d_logits_ + t * experts : NULL, sum = 0, mean = 0;
        scores_of(router, logits, w.s);
        for (int64_t e = 0; e < experts; e++) sum += w.s[e];
        for (int64_t e = 0; e < experts; e++) mean += w.s[e] / sum * slope[e];
        *(double *)loss += mean;
        for (int64_t e = 0; e < experts && d_logits; e++)
            d_logits[e] +=
                router->sigmoid ? (slope[e] - mean) / sum * sigmoid_derivative(logits[e]) : w.s[e] * (slope[e] - mean);
    }
    dr_release(w.memory);
    return DR_OK;
}

/* ---- tokens by expert ------------------------------------------------------------------------------------------------ */

dr_status dr_reference_experts_sort(dr_backend *backend, const dr_experts *of, const int32_t *index, int32_t *order,
                                    int32_t *place, int32_t *begins) {
    (void)backend;
    const int64_t slots = of->rows * of->chosen;
    int32_t next = 0;
    for (int64_t e = 0; e < of->experts; e++) {
        begins[e] = next;
        for (int64_t s = 0; s < slots; s++)
            if (index[s] == e) {
                order[next] = (int32_t)s;
                place[s] = next++;
            }
    }
    begins[of->experts] = next;
    return DR_OK;
}

/* Rows are moved as they are stored. */
dr_status dr_reference_experts_gather_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *order,
                                              const void *x, void *y) {
    const size_t row = dr_kind_bytes(backend, DR_VECTOR, dim);
    for (int64_t i = 0; i < of->rows * of->chosen; i++)
        memcpy((char *)y + (size_t)i * row, (const char *)x + (size_t)(order[i] / of->chosen) * row, row);
    return DR_OK;
}

dr_status dr_reference_experts_gather_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                               const void *d_y, void *d_x_, bool accumulate) {
    (void)backend;
    for (int64_t t = 0; t < of->rows; t++)
        for (int64_t i = 0; i < dim; i++) {
            double *d_x = (double *)d_x_ + t * dim + i, sum = 0;
            for (int64_t j = 0; j < of->chosen; j++) sum += ((const double *)d_y)[place[t * of->chosen + j] * dim + i];
            *d_x = (accumulate ? *d_x : 0) + sum;
        }
    return DR_OK;
}

dr_status dr_reference_experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                              const int32_t *begins, const void *x, const void *weight, void *y) {
    for (int64_t e = 0; e < of->experts; e++) {
        const dr_linear linear = {.rows = begins[e + 1] - begins[e], .in = in, .out = out};
        DR_TRY(dr_reference_linear_forward(backend, &linear, (const double *)x + begins[e] * in,
                                           (const double *)weight + e * out * in, NULL, (double *)y + begins[e] * out));
    }
    return DR_OK;
}

dr_status dr_reference_experts_linear_backward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                               const int32_t *begins, const void *x, const void *weight, const void *d_y,
                                               void *d_x, bool accumulate, void *d_weight) {
    for (int64_t e = 0; e < of->experts; e++) {
        const dr_linear linear = {.rows = begins[e + 1] - begins[e], .in = in, .out = out};
        DR_TRY(dr_reference_linear_backward(backend, &linear, (const double *)x + begins[e] * in,
                                            (const double *)weight + e * out * in, (const double *)d_y + begins[e] * out,
                                            d_x ? (double *)d_x + begins[e] * in : NULL, accumulate,
                                            d_weight ? (double *)d_weight + e * out * in : NULL, NULL));
    }
    return DR_OK;
}

dr_status dr_reference_experts_combine_forward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                               const void *weights, const void *x, void *y_, bool accumulate) {
    (void)backend;
    for (int64_t t = 0; t < of->rows; t++)
        for (int64_t i = 0; i < dim; i++) {
            double *y = (double *)y_ + t * dim + i, sum = 0;
            for (int64_t j = 0; j < of->chosen; j++) {
                const int64_t slot = t * of->chosen + j;
                sum += ((const double *)weights)[slot] * ((const double *)x)[place[slot] * dim + i];
            }
            *y = (accumulate ? *y : 0) + sum;
        }
    return DR_OK;
}

dr_status dr_reference_experts_combine_backward(dr_backend *backend, const dr_experts *of, int64_t dim, const int32_t *place,
                                                const void *weights, const void *x_, const void *d_y_, void *d_weights,
                                                void *d_x) {
    (void)backend;
    for (int64_t slot = 0; slot < of->rows * of->chosen; slot++) {
        const double *x = (const double *)x_ + place[slot] * dim, *d_y = (const double *)d_y_ + slot / of->chosen * dim;
        double sum = 0;
        for (int64_t i = 0; i < dim; i++) {
            sum += x[i] * d_y[i];
            if (d_x) ((double *)d_x)[place[slot] * dim + i] = ((const double *)weights)[slot] * d_y[i];
        }
        if (d_weights) ((double *)d_weights)[slot] = sum;
    }
    return DR_OK;
}
