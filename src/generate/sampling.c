/* Choosing a token. The order of the steps stands in the header; here it is made cheap: logits are copied only once, into
 * candidates, and these are ordered only as far as the likeliest are asked for, by a heap of which the largest is taken until
 * top_k or top_p is reached. Equal logits rank by id, so that a seed gives the same text everywhere the logits are the same. */
#include "generate/sampling.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"

#include <math.h>
#include <string.h>

static const int64_t most_samples = (int64_t)1 << 56; /* the purpose of a random stream stands above */

dr_sampling dr_sampling_defaults(void) {
    return (dr_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

/* ---- options ---- */

static dr_status check_biases(const dr_sampling *sampling, int64_t vocabulary) {
    if (sampling->bias_count < 0 || (sampling->bias_count > 0 && !sampling->bias))
        return dr_fail(DR_ERROR_ARGUMENT, "bias_count is %lld: it must be the number of the biases at bias",
                       (long long)sampling->bias_count);
    for (int64_t i = 0; i < sampling->bias_count; i++) {
        const dr_logit_bias *bias = &sampling->bias[i];
        if (bias->id < 0 || bias->id >= vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "a logit bias names token %lld: ids are from 0 to %lld", (long long)bias->id,
                           (long long)vocabulary - 1);
        if (!isfinite(bias->bias) && !(isinf(bias->bias) && bias->bias < 0))
            return dr_fail(DR_ERROR_ARGUMENT, "the logit bias of token %lld is %g: it must be finite, or -inf to forbid it",
                           (long long)bias->id, bias->bias);
        for (int64_t j = 0; j < i; j++)
            if (sampling->bias[j].id == bias->id)
                return dr_fail(DR_ERROR_ARGUMENT, "token %lld has two logit biases", (long long)bias->id);
    }
    return DR_OK;
}

static dr_status check_penalties(const dr_sampling *sampling) {
    if (!(sampling->repetition_penalty > 0 && sampling->repetition_penalty <= 1e6))
        return dr_fail(DR_ERROR_ARGUMENT, "repetition_penalty is %g: it must be above 0 and at most 1e6; 1 is none",
                       sampling->repetition_penalty);
    if (!(fabs(sampling->presence_penalty) <= 1e6))
        return dr_fail(DR_ERROR_ARGUMENT, "presence_penalty is %g: it must be from -1e6 to 1e6; 0 is none",
                       sampling->presence_penalty);
    if (!(fabs(sampling->frequency_penalty) <= 1e6))
        return dr_fail(DR_ERROR_ARGUMENT, "frequency_penalty is %g: it must be from -1e6 to 1e6; 0 is none",
                       sampling->frequency_penalty);
    return DR_OK;
}

dr_status dr_sampling_check(const dr_sampling *sampling, int64_t vocabulary) {
    DR_NEED(sampling);
    if (vocabulary < 1 || vocabulary > INT32_MAX)
        return dr_fail(DR_ERROR_ARGUMENT, "a vocabulary of %lld ids: it must be from 1 to 2^31 - 1", (long long)vocabulary);
    if (!(sampling->temperature >= 0 && sampling->temperature <= 1e6))
        return dr_fail(DR_ERROR_ARGUMENT, "temperature is %g: it must be from 0 (the likeliest) to 1e6", sampling->temperature);
    if (sampling->top_k < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "top_k is %lld: it must be 0 (all) or more", (long long)sampling->top_k);
    if (!(sampling->top_p > 0 && sampling->top_p <= 1))
        return dr_fail(DR_ERROR_ARGUMENT, "top_p is %g: it must be above 0 and at most 1 (all)", sampling->top_p);
    if (!(sampling->min_p >= 0 && sampling->min_p <= 1))
        return dr_fail(DR_ERROR_ARGUMENT, "min_p is %g: it must be from 0 (all) to 1", sampling->min_p);
    DR_TRY(check_penalties(sampling));
    if (sampling->sample < 0 || sampling->sample >= most_samples)
        return dr_fail(DR_ERROR_ARGUMENT, "sample is %lld: it must be from 0 to 2^56 - 1", (long long)sampling->sample);
    if (sampling->top_logprobs < 0 || sampling->top_logprobs > DR_MOST_TOP_LOGPROBS)
        return dr_fail(DR_ERROR_ARGUMENT, "top_logprobs is %lld: it must be from 0 to %d", (long long)sampling->top_logprobs,
                       DR_MOST_TOP_LOGPROBS);
    if (sampling->top_logprobs > 0 && !sampling->logprobs)
        return dr_fail(DR_ERROR_ARGUMENT, "top_logprobs is %lld without logprobs", (long long)sampling->top_logprobs);
    return check_biases(sampling, vocabulary);
}

/* ---- a sampler ---- */

typedef struct {
    double weight; /* the logit, then exp of its distance to the largest, over the temperature */
    int32_t id;
} candidate;

struct dr_sampler {
    dr_sampling options;
    int64_t vocabulary;
    dr_random random;
    candidate *candidates; /* [vocabulary] */
    uint32_t *made;        /* [vocabulary] how often a token occurs in the answer */
    bool *occurred;        /* [vocabulary] in the prompt or the answer */
    dr_token_logprob top[DR_MOST_TOP_LOGPROBS];
};

dr_status dr_sampler_create(int64_t vocabulary, const dr_sampling *sampling, dr_sampler **sampler) {
    DR_NEED(sampling);
    DR_NEED(sampler);
    DR_TRY(dr_sampling_check(sampling, vocabulary));
    void *memory;
    dr_status status;
    DR_TRY(dr_allocate_zero(sizeof(dr_sampler), "a sampler", &memory));
    dr_sampler *made = memory;
    made->vocabulary = vocabulary;
    DR_GO(dr_allocate((size_t)vocabulary * sizeof(candidate), "the candidates", &memory));
    made->candidates = memory;
    DR_GO(dr_allocate((size_t)vocabulary * sizeof(uint32_t), "the counts of tokens", &memory));
    made->made = memory;
    DR_GO(dr_allocate((size_t)vocabulary * sizeof(bool), "the tokens that occurred", &memory));
    made->occurred = memory;
    DR_GO(dr_sampler_restart(made, sampling));
    *sampler = made;
    return DR_OK;
done:
    dr_sampler_destroy(made);
    return status;
}

void dr_sampler_destroy(dr_sampler *sampler) {
    if (!sampler) return;
    dr_release(sampler->candidates);
    dr_release(sampler->made);
    dr_release(sampler->occurred);
    dr_release(sampler);
}

dr_status dr_sampler_restart(dr_sampler *sampler, const dr_sampling *sampling) {
    DR_NEED(sampler);
    DR_TRY(dr_sampling_check(sampling, sampler->vocabulary));
    sampler->options = *sampling;
    sampler->random = dr_stream(sampling->seed, DR_STREAM_SAMPLING, sampling->sample);
    memset(sampler->made, 0, (size_t)sampler->vocabulary * sizeof *sampler->made);
    memset(sampler->occurred, 0, (size_t)sampler->vocabulary * sizeof *sampler->occurred);
    return DR_OK;
}

dr_status dr_sampler_read(dr_sampler *sampler, const int32_t *ids, int64_t count) {
    DR_NEED(sampler);
    if (count > 0) DR_NEED(ids);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < sampler->vocabulary) sampler->occurred[ids[i]] = true;
    return DR_OK;
}

/* ---- log-probabilities ---- */

static dr_status find_largest(const float *logits, int64_t vocabulary, int64_t *largest) {
    int64_t best = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        if (isnan(logits[i])) return dr_fail(DR_ERROR_NUMERIC, "the logit of token %lld is not a number", (long long)i);
        if (logits[i] > logits[best]) best = i;
    }
    if (!isfinite(logits[best])) return dr_fail(DR_ERROR_NUMERIC, "the largest logit is %g", (double)logits[best]);
    *largest = best;
    return DR_OK;
}

/* The likeliest by insertion: few are asked for, and most tokens are less likely than all of them. */
static void find_top(const float *logits, int64_t vocabulary, dr_token_logprob *top, int64_t count) {
    int64_t have = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        int64_t place = have;
        while (place > 0 && (double)logits[i] > top[place - 1].logprob) place--;
        if (place == count) continue;
        if (have < count) have++;
        memmove(top + place + 1, top + place, (size_t)(have - place - 1) * sizeof *top);
        top[place] = (dr_token_logprob){.id = (int32_t)i, .logprob = (double)logits[i]};
    }
}

dr_status dr_token_logprobs(const float *logits, int64_t vocabulary, int32_t id, double *logprob, dr_token_logprob *top,
                            int64_t top_count) {
    DR_NEED(logits);
    DR_NEED(logprob);
    if (id < 0 || id >= vocabulary)
        return dr_fail(DR_ERROR_ARGUMENT, "token %lld: ids are from 0 to %lld", (long long)id, (long long)vocabulary - 1);
    if (top_count < 0 || top_count > vocabulary)
        return dr_fail(DR_ERROR_ARGUMENT, "top_count is %lld: it must be from 0 to %lld, the vocabulary", (long long)top_count,
                       (long long)vocabulary);
    if (top_count > 0) DR_NEED(top);
    int64_t largest = 0;
    double sum = 0;
    DR_TRY(find_largest(logits, vocabulary, &largest));
    const double most = (double)logits[largest];
    for (int64_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - most);
    const double whole = log(sum);
    *logprob = ((double)logits[id] - most) - whole;
    find_top(logits, vocabulary, top, top_count);
    for (int64_t i = 0; i < top_count; i++) top[i].logprob = (top[i].logprob - most) - whole;
    return DR_OK;
}

/* ---- choosing ---- */

static double penalized(const dr_sampler *sampler, int32_t id, double logit) {
    const dr_sampling *options = &sampler->options;
    if (!sampler->occurred[id]) return logit;
    logit = logit > 0 ? logit / options->repetition_penalty : logit * options->repetition_penalty;
    if (sampler->made[id] == 0) return logit;
    return logit - (options->presence_penalty + sampler->made[id] * options->frequency_penalty);
}

/* Candidates with their logits after biases and penalties; the largest of them. */
static dr_status fill_candidates(dr_sampler *sampler, const float *logits, int64_t *largest) {
    candidate *candidates = sampler->candidates;
    for (int64_t i = 0; i < sampler->vocabulary; i++) candidates[i] = (candidate){(double)logits[i], (int32_t)i};
    for (int64_t i = 0; i < sampler->options.bias_count; i++)
        candidates[sampler->options.bias[i].id].weight += sampler->options.bias[i].bias;
    int64_t best = 0;
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        candidates[i].weight = penalized(sampler, (int32_t)i, candidates[i].weight);
        if (candidates[i].weight > candidates[best].weight) best = i;
    }
    if (!isfinite(candidates[best].weight))
        return dr_fail(DR_ERROR_NUMERIC, "biases and penalties leave no token to choose: the largest logit is %g",
                       candidates[best].weight);
    *largest = best;
    return DR_OK;
}

static bool comes_first(candidate x, candidate y) {
    return x.weight != y.weight ? x.weight > y.weight : x.id < y.id;
}

/* Lets the candidate at `place` of a heap sink to where it belongs. */
static void sink(candidate *heap, int64_t count, int64_t place) {
    const candidate moved = heap[place];
    for (int64_t child; (child = 2 * place + 1) < count; place = child) {
        if (child + 1 < count && comes_first(heap[child + 1], heap[child])) child++;
        if (!comes_first(heap[child], moved)) break;
        heap[place] = heap[child];
    }
    heap[place] = moved;
}

/* Moves the first of a heap of *count to its end, which the heap then leaves out. */
static candidate *take_first(candidate *heap, int64_t *count) {
    const candidate first = heap[0];
    heap[0] = heap[--*count];
    heap[*count] = first;
    if (*count > 0) sink(heap, *count, 0);
    return &heap[*count];
}

/* The kept ones from the likeliest on stand at the end, the likeliest last: *kept of them with this sum. */
static double keep_likeliest(const dr_sampling *options, candidate *heap, int64_t count, double sum, int64_t *kept) {
    const int64_t most = options->top_k > 0 && options->top_k < count ? options->top_k : count;
    const candidate *const end = heap + count;
    int64_t left = count;
    double held = 0;
    for (int64_t i = count / 2 - 1; i >= 0; i--) sink(heap, count, i);
    *kept = 0;
    if (most < count) { /* the sum that top_p is a share of is that of the top_k */
        sum = 0;
        while (*kept < most) sum += take_first(heap, &left)->weight, ++*kept;
        left = count, *kept = 0;
    }
    while (*kept < most && (*kept == 0 || held < options->top_p * sum)) {
        const candidate *next = most < count ? end - *kept - 1 : take_first(heap, &left);
        if (next->weight < options->min_p) break; /* the likeliest weighs 1 */
        held += next->weight;
        ++*kept;
    }
    return held;
}

/* Every candidate that min_p leaves, moved to the front in the order of ids. */
static double keep_all(const dr_sampling *options, candidate *candidates, int64_t count, int64_t *kept) {
    double held = 0;
    *kept = 0;
    for (int64_t i = 0; i < count; i++) {
        if (candidates[i].weight < options->min_p || candidates[i].weight == 0) continue;
        held += candidates[i].weight;
        candidates[(*kept)++] = candidates[i];
    }
    return held;
}

/* first[0], first[step], ...: `count` candidates that weigh `sum`. */
static int32_t draw(const candidate *first, int64_t step, int64_t count, double sum, dr_random *random) {
    double point = dr_random_uniform(random) * sum, passed = 0;
    for (int64_t i = 0; i < count; i++) {
        passed += first[i * step].weight;
        if (passed > point) return first[i * step].id;
    }
    return first->id; /* rounding left the point at the sum */
}

static int32_t draw_by_weight(dr_sampler *sampler, double largest) {
    const dr_sampling *options = &sampler->options;
    candidate *candidates = sampler->candidates;
    int64_t count = sampler->vocabulary, kept;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        candidates[i].weight = exp((candidates[i].weight - largest) / options->temperature);
        sum += candidates[i].weight;
    }
    if (options->top_k == 0 && options->top_p == 1) {
        sum = keep_all(options, candidates, count, &kept);
        return draw(candidates, 1, kept, sum, &sampler->random);
    }
    sum = keep_likeliest(options, candidates, count, sum, &kept);
    return draw(candidates + count - 1, -1, kept, sum, &sampler->random);
}

dr_status dr_sampler_choose(dr_sampler *sampler, const float *logits, dr_choice *choice) {
    DR_NEED(sampler);
    DR_NEED(logits);
    DR_NEED(choice);
    int64_t largest = 0;
    DR_TRY(find_largest(logits, sampler->vocabulary, &largest));
    DR_TRY(fill_candidates(sampler, logits, &largest));
    const bool greedy = sampler->options.temperature == 0;
    dr_choice made = {
        .id = greedy ? (int32_t)largest : draw_by_weight(sampler, sampler->candidates[largest].weight),
        .top = sampler->top,
    };
    if (sampler->options.logprobs) {
        const int64_t wanted = sampler->options.top_logprobs;
        made.top_count = wanted < sampler->vocabulary ? wanted : sampler->vocabulary;
        DR_TRY(dr_token_logprobs(logits, sampler->vocabulary, made.id, &made.logprob, sampler->top, made.top_count));
    }
    dr_sampler_chosen(sampler, made.id);
    *choice = made;
    return DR_OK;
}

/* ---- for backends that choose ---- */

bool dr_sampling_is_plain(const dr_sampling *sampling) {
    return sampling->repetition_penalty == 1 && sampling->presence_penalty == 0 && sampling->frequency_penalty == 0 &&
           sampling->bias_count == 0 && !sampling->logprobs;
}

dr_draw dr_sampler_draw(dr_sampler *sampler) {
    const dr_sampling *options = &sampler->options;
    return (dr_draw){.temperature = options->temperature,
                     .top_p = options->top_p,
                     .min_p = options->min_p,
                     .top_k = options->top_k,
                     .point = options->temperature == 0 ? 0 : dr_random_uniform(&sampler->random)};
}

void dr_sampler_chosen(dr_sampler *sampler, int32_t id) {
    sampler->occurred[id] = true;
    if (sampler->made[id] < UINT32_MAX) sampler->made[id]++;
}
