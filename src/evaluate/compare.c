/* Two models on the same tokens, window by window: from the logits of each token, in double, the loss of both, how far the
 * second distribution is from the first, and whether both have the same likeliest token. */
#include <deltarule/evaluate.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"
#include "nn/model.h"

#include <math.h>

enum { WINDOW = 128, WARM_STEPS = 4, STEPS = 32 };

/* One of the two. */
typedef struct {
    dr_session *session;
    dr_model_state *state;
    float *logits; /* [WINDOW, vocabulary] */
} reader;

static dr_status open_reader(const dr_model *model, reader *one) {
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)(WINDOW * model->description.vocabulary) * sizeof(float), "the logits of a window", &memory));
    one->logits = memory;
    DR_TRY(dr_session_create(model, &one->session));
    return dr_model_state_create(model, 1, &one->state);
}

static void close_reader(reader *one) {
    dr_release(one->logits);
    dr_session_destroy(one->session);
    dr_model_state_destroy(one->state);
}

/* *likeliest: the first of the largest. Gives the logarithm of the sum of exponentials. */
static double log_sum(const float *logits, int64_t count, int64_t *likeliest) {
    double sum = 0;
    *likeliest = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[*likeliest]) *likeliest = i;
    const double most = (double)logits[*likeliest];
    for (int64_t i = 0; i < count; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* sums: loss of both, divergence, agreement */
static void add_token(const float *one, const float *two, int64_t count, int32_t next, double sums[4], double *largest) {
    int64_t first, second;
    const double of_one = log_sum(one, count, &first), of_two = log_sum(two, count, &second);
    double divergence = 0;
    for (int64_t i = 0; i < count; i++) {
        const double p = (double)one[i] - of_one, q = (double)two[i] - of_two;
        if (p > -700) divergence += exp(p) * (p - q);
    }
    sums[0] += of_one - (double)one[next];
    sums[1] += of_two - (double)two[next];
    sums[2] += divergence;
    sums[3] += first == second;
    if (divergence > *largest) *largest = divergence;
}

static dr_status compare_ids(const dr_model *model, const dr_model *other, const int32_t *ids, int64_t count,
                             const dr_score_options *options, dr_comparison *comparison) {
    const int64_t vocabulary = model->description.vocabulary;
    reader one = {0}, two = {0};
    double sums[4] = {0}, largest = 0;
    dr_status status;
    DR_GO(open_reader(model, &one));
    DR_GO(open_reader(other, &two));
    for (int64_t from = 0; from < count - 1; from += WINDOW) {
        const int64_t rows = count - 1 - from < WINDOW ? count - 1 - from : WINDOW;
        const dr_batch batch = {.layout = {1, rows, NULL}, .ids = ids + from, .targets = rows};
        DR_GO(dr_session_logits(one.session, &batch, one.state, DR_F32, one.logits));
        DR_GO(dr_session_logits(two.session, &batch, two.state, DR_F32, two.logits));
        for (int64_t i = 0; i < rows; i++)
            add_token(one.logits + i * vocabulary, two.logits + i * vocabulary, vocabulary, ids[from + i + 1], sums, &largest);
        if (options->progress && !options->progress(options->context, from + rows, count - 1))
            DR_GO(dr_fail(DR_ERROR_INTERRUPTED, "the comparison was stopped after %lld tokens", (long long)(from + rows)));
    }
    comparison->tokens = count - 1;
    comparison->loss = sums[0], comparison->other_loss = sums[1];
    comparison->divergence = sums[2] / (double)(count - 1);
    comparison->agreement = sums[3] / (double)(count - 1);
    comparison->largest_divergence = largest;
done:
    close_reader(&one);
    close_reader(&two);
    return status;
}

static dr_status measure_decoding(const dr_model *model, const int32_t *ids, int64_t count, double *rate) {
    dr_model_state *state = NULL;
    void *logits = NULL;
    double start = 0;
    dr_status status;
    DR_GO(dr_allocate((size_t)model->description.vocabulary * sizeof(float), "the logits", &logits));
    DR_GO(dr_model_state_create(model, 1, &state));
    for (int i = 0; i < WARM_STEPS + STEPS; i++) {
        if (i == WARM_STEPS) start = dr_clock_now();
        DR_GO(dr_model_step(model, &ids[i % count], state, logits));
    }
    *rate = STEPS / fmax(dr_clock_now() - start, 1e-9);
done:
    dr_model_state_destroy(state);
    dr_release(logits);
    return status;
}

dr_status dr_compare_text(const dr_model *model, const dr_model *other, const char *text, size_t bytes,
                          const dr_score_options *options, dr_comparison *comparison) {
    const dr_score_options defaults = dr_score_defaults();
    int32_t *ids = NULL;
    int64_t count = 0;
    DR_NEED(model);
    DR_NEED(other);
    DR_NEED(text);
    DR_NEED(comparison);
    if (!options) options = &defaults;
    DR_TRY(dr_vocabulary_check(model->description.vocabulary, options->tokenizer));
    if (model->description.vocabulary != other->description.vocabulary)
        return dr_fail(DR_ERROR_ARGUMENT, "the models have %lld and %lld tokens: they must have one tokenizer",
                       (long long)model->description.vocabulary, (long long)other->description.vocabulary);
    *comparison = (dr_comparison){.bytes = (int64_t)bytes};
    comparison->weight_bytes = (int64_t)(dr_kind_bytes(other->backend, DR_NUMBER, other->block_count) +
                                         (dr_weights_apart(other->backend) ? other->trunk.weight_bytes : 0));
    DR_TRY(dr_text_ids(options->tokenizer, text, bytes, DR_TEXT_OPEN, &ids, &count));
    dr_status status = count < 2
                           ? dr_fail(DR_ERROR_ARGUMENT, "a text of %lld tokens: there must be two at least", (long long)count)
                           : compare_ids(model, other, ids, count, options, comparison);
    if (status == DR_OK) status = measure_decoding(other, ids, count, &comparison->tokens_per_second);
    dr_release(ids);
    if (status != DR_OK) return status;
    const double bits = (double)bytes * log(2.0);
    comparison->bits_per_byte = comparison->loss / bits, comparison->other_bits_per_byte = comparison->other_loss / bits;
    comparison->loss /= (double)comparison->tokens, comparison->other_loss /= (double)comparison->tokens;
    if (isfinite(comparison->loss) && isfinite(comparison->other_loss)) return DR_OK;
    return dr_fail(DR_ERROR_NUMERIC, "a loss of the text is not finite");
}
