/* Tokens drawn from rows of logits l. With m the largest logit and T the temperature, token i weighs w_i = exp((l_i - m) / T).
 * In the order of weights, of equal ones the lower id first, stay the first top_k, of these the fewest that hold top_p of the
 * sum, and of these the ones with w_i >= min_p. The draw is the first of them whose weight, with those before it, exceeds
 * point times their sum; where neither top_k nor top_p leaves any out, those before it are those of lower ids. */
#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double weight;
    int32_t id;
} candidate;

static int by_rank(const void *x_, const void *y_) {
    const candidate *x = x_, *y = y_;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The largest logit, the first of equal ones; -1 where it is not finite, or one is not a number. */
static int32_t find_largest(const double *logits, int64_t count) {
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i])) return -1;
        if ((float)logits[i] > (float)logits[largest]) largest = i;
    }
    return isfinite((float)logits[largest]) ? (int32_t)largest : -1;
}

/* How many of the candidates, which are in the order of weights, stay. */
static int64_t count_kept(const dr_draw *draw, const candidate *candidates, int64_t count, double sum) {
    const int64_t most = draw->top_k > 0 && draw->top_k < count ? draw->top_k : count;
    int64_t kept = 0;
    double held = 0;
    if (most < count) sum = 0;
    for (int64_t i = 0; most < count && i < most; i++) sum += candidates[i].weight;
    while (kept < most && (kept == 0 || held < draw->top_p * sum) && candidates[kept].weight >= draw->min_p)
        held += candidates[kept++].weight;
    return kept;
}

static int32_t choose_one(const dr_draw *draw, const double *logits, int64_t count, candidate *candidates) {
    const int32_t largest = find_largest(logits, count);
    double sum = 0, held = 0, passed = 0;
    int64_t kept = 0;
    if (largest < 0 || draw->temperature == 0) return largest;
    for (int64_t i = 0; i < count; i++) {
        const double above = (double)(float)logits[i] - (double)(float)logits[largest];
        candidates[i] = (candidate){exp(above / draw->temperature), (int32_t)i};
        sum += candidates[i].weight;
    }
    if (draw->top_k == 0 && draw->top_p == 1) {
        for (int64_t i = 0; i < count; i++)
            if (candidates[i].weight >= draw->min_p && candidates[i].weight > 0) candidates[kept++] = candidates[i];
    } else {
        qsort(candidates, (size_t)count, sizeof *candidates, by_rank);
        kept = count_kept(draw, candidates, count, sum);
    }
    for (int64_t i = 0; i < kept; i++) held += candidates[i].weight;
    for (int64_t i = 0; i < kept; i++)
        if ((passed += candidates[i].weight) > draw->point * held) return candidates[i].id;
    return candidates[0].id; /* rounding left the point at the sum */
}

dr_status dr_reference_choose(dr_backend *backend, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                              const dr_draw *draws, int32_t *ids) {
    void *memory;
    (void)backend;
    DR_TRY(dr_allocate((size_t)allowed * sizeof(candidate), "the candidates", &memory));
    for (int64_t i = 0; i < count; i++)
        ids[i] = choose_one(&draws[i], (const double *)logits + i * vocabulary, allowed, memory);
    dr_release(memory);
    return DR_OK;
}
