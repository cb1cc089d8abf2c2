/* Scoring associative recall: examples from the stream of held-out ones, the same for a seed wherever they are asked, so that a
 * training run and `score` evaluate on the same. */
#include "evaluate/recall.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/mqar.h"
#include "data/streams.h"

#include <deltarule/evaluate.h>
#include <math.h>

struct asker {
    const dr_recall_options *options;
    dr_mqar *mqar;
    int32_t *ids;       /* [batch, seq_len] */
    int64_t *positions; /* [batch, pairs] rows of the batch */
    int32_t *labels;    /* [batch, pairs] */
};

dr_recall_options dr_recall_defaults(void) {
    return (dr_recall_options){
        .seq_len = 64, .pairs = 4, .examples = 1000, .batch = 64, .power_a = 0.01, .random_fillers = true, .seed = 1};
}

static dr_status open_asker(struct asker *asker, int64_t vocabulary) {
    const dr_recall_options *o = asker->options;
    const dr_mqar_shape shape = {.vocabulary = vocabulary,
                                 .length = o->seq_len,
                                 .pairs = o->pairs,
                                 .power = o->power_a,
                                 .random_fillers = o->random_fillers};
    int64_t tokens, targets;
    void *memory;
    if (o->examples < 1) return dr_fail(DR_ERROR_ARGUMENT, "examples is %lld: it must be at least 1", (long long)o->examples);
    if (o->batch < 1) return dr_fail(DR_ERROR_ARGUMENT, "batch is %lld: it must be at least 1", (long long)o->batch);
    DR_TRY(dr_mqar_create(&shape, &asker->mqar));
    if (!dr_product((int64_t[]){o->batch, o->seq_len, sizeof(int64_t)}, 3, &tokens) ||
        !dr_product((int64_t[]){o->batch, o->pairs, sizeof(int64_t)}, 3, &targets) ||
        !dr_product((int64_t[]){o->examples, o->pairs, sizeof(int64_t)}, 3, &(int64_t){0}))
        return dr_fail(DR_ERROR_ARGUMENT, "batch %lld times seq_len %lld is more than can be counted", (long long)o->batch,
                       (long long)o->seq_len);
    DR_TRY(dr_allocate((size_t)tokens, "a batch of examples", &memory));
    asker->ids = memory;
    DR_TRY(dr_allocate((size_t)targets, "the positions of queries", &memory));
    asker->positions = memory;
    DR_TRY(dr_allocate((size_t)targets, "the labels of queries", &memory));
    asker->labels = memory;
    return DR_OK;
}

static void close_asker(struct asker *asker) {
    dr_mqar_destroy(asker->mqar);
    dr_release(asker->ids);
    dr_release(asker->positions);
    dr_release(asker->labels);
}

/* Examples first .. first + count - 1. */
static dr_batch draw(struct asker *asker, int64_t first, int64_t count) {
    const dr_recall_options *o = asker->options;
    for (int64_t i = 0; i < count; i++) {
        dr_random random = dr_stream(o->seed, DR_STREAM_MQAR_HELD_OUT, first + i);
        int64_t *positions = asker->positions + i * o->pairs;
        dr_mqar_draw(asker->mqar, &random, o->pairs, asker->ids + i * o->seq_len, positions, asker->labels + i * o->pairs);
        for (int64_t k = 0; k < o->pairs; k++) positions[k] += i * o->seq_len;
    }
    return (dr_batch){.layout = {.sequences = count, .rows = count * o->seq_len},
                      .ids = asker->ids,
                      .targets = count * o->pairs,
                      .positions = asker->positions,
                      .labels = asker->labels};
}

/* Every example has the same number of queries, so the mean over queries is the mean over examples of their accuracy. */
dr_status dr_score_recall_in(dr_session *session, const dr_recall_options *options,
                             bool (*progress)(void *context, int64_t done, int64_t total), void *context,
                             dr_recall_score *score) {
    struct asker asker = {.options = options};
    const dr_recall_options *o = asker.options;
    double start = dr_clock_now(), loss = 0;
    int64_t hits = 0;
    dr_status status;
    DR_GO(open_asker(&asker, dr_model_get_config(dr_session_model(session))->vocabulary));
    for (int64_t first = 0; first < o->examples; first += o->batch) {
        int64_t count = o->examples - first < o->batch ? o->examples - first : o->batch, batch_hits;
        dr_batch batch = draw(&asker, first, count);
        double batch_loss;
        DR_GO(dr_session_loss(session, &batch, NULL, &batch_loss, &batch_hits, NULL, NULL));
        loss += batch_loss;
        hits += batch_hits;
        if (!progress || progress(context, first + count, o->examples)) continue;
        status = dr_fail(DR_ERROR_INTERRUPTED, "scoring was stopped after %lld of %lld examples", (long long)(first + count),
                         (long long)o->examples);
        goto done;
    }
    int64_t queries = o->examples * o->pairs;
    *score = (dr_recall_score){.examples = o->examples,
                               .queries = queries,
                               .loss = loss / (double)queries,
                               .accuracy = (double)hits / (double)queries,
                               .seconds = dr_clock_now() - start};
    if (!isfinite(loss))
        status = dr_fail(DR_ERROR_NUMERIC, "the loss is %s: the model computes no finite numbers, and there is no score",
                         isnan(loss) ? "not a number" : "infinite");
done:
    close_asker(&asker);
    return status;
}

dr_status dr_score_recall(const dr_model *model, const dr_recall_options *options,
                          bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_recall_score *score) {
    DR_NEED(model);
    DR_NEED(score);
    dr_recall_options defaults = dr_recall_defaults();
    dr_session *session = NULL;
    DR_TRY(dr_session_create(model, &session));
    dr_status status = dr_score_recall_in(session, options ? options : &defaults, progress, context, score);
    dr_session_destroy(session);
    return status;
}
