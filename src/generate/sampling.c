/* Temperature first, then the top_k likeliest, then the fewest of these that hold top_p of their sum, then a draw by weight.
 * Equal logits rank by id, so that a seed gives the same text everywhere the logits are the same. */
#include "generate/sampling.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

dr_status dr_sampling_check(const dr_generate_options *options) {
    if (options->tokens < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "tokens is %lld: it must not be negative", (long long)options->tokens);
    if (!(options->temperature >= 0 && options->temperature <= 1e6))
        return dr_fail(DR_ERROR_ARGUMENT, "temperature is %g: it must be from 0 (the likeliest) to 1e6", options->temperature);
    if (options->top_k < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "top_k is %lld: it must be 0 (all) or more", (long long)options->top_k);
    if (!(options->top_p > 0 && options->top_p <= 1))
        return dr_fail(DR_ERROR_ARGUMENT, "top_p is %g: it must be above 0 and at most 1 (all)", options->top_p);
    if (options->sample < 0 || options->sample >= (int64_t)1 << 56) /* the purpose of a random stream stands above */
        return dr_fail(DR_ERROR_ARGUMENT, "sample is %lld: it must be from 0 to 2^56 - 1", (long long)options->sample);
    if (options->stop_count < 0 || (options->stop_count > 0 && !options->stop))
        return dr_fail(DR_ERROR_ARGUMENT, "stop_count is %lld: it must be the number of the texts at stop",
                       (long long)options->stop_count);
    for (int64_t i = 0; i < options->stop_count; i++)
        if (!options->stop[i] || !*options->stop[i])
            return dr_fail(DR_ERROR_ARGUMENT, "stop text %lld is empty: it would end every text at once", (long long)i + 1);
    return DR_OK;
}

static int likelier_first(const void *a, const void *b) {
    const dr_candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t draw(const dr_candidate *candidates, int64_t count, double sum, dr_random *random) {
    double point = dr_random_uniform(random) * sum, passed = 0;
    for (int64_t i = 0; i < count; i++) {
        passed += candidates[i].weight;
        if (passed > point) return candidates[i].id;
    }
    return candidates[0].id; /* rounding left the point at the sum */
}

dr_status dr_sample(const dr_generate_options *options, const float *logits, int64_t vocabulary, dr_candidate *candidates,
                    dr_random *random, int32_t *id) {
    int32_t best = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        if (isnan(logits[i])) return dr_fail(DR_ERROR_NUMERIC, "the logit of token %lld is not a number", (long long)i);
        if (logits[i] > logits[best]) best = (int32_t)i;
    }
    if (!isfinite(logits[best])) return dr_fail(DR_ERROR_NUMERIC, "the largest logit is %g", (double)logits[best]);
    *id = best;
    if (options->temperature == 0) return DR_OK;

    for (int64_t i = 0; i < vocabulary; i++) {
        double distance = (double)logits[i] - (double)logits[best];
        candidates[i] = (dr_candidate){.weight = exp(distance / options->temperature), .id = (int32_t)i};
    }
    qsort(candidates, (size_t)vocabulary, sizeof *candidates, likelier_first);
    int64_t count = options->top_k > 0 && options->top_k < vocabulary ? options->top_k : vocabulary;
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < count; i++) sum += candidates[i].weight;
    int64_t nucleus = 0;
    while (nucleus < count && (nucleus == 0 || kept < options->top_p * sum)) kept += candidates[nucleus++].weight;
    *id = draw(candidates, nucleus, kept, random);
    return DR_OK;
}
