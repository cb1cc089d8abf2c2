/* Associative recall of one size, asked with sizes alone. */
#include "base/error.h"
#include "base/memory.h"
#include "data/mqar.h"
#include "evaluate/examples.h"

#include <deltarule/evaluate.h>

dr_recall_options dr_recall_defaults(void) {
    return (dr_recall_options){
        .seq_len = 64, .pairs = 4, .examples = 1000, .batch = 64, .power_a = 0.01, .random_fillers = true, .seed = 1};
}

static dr_status open_generator(const dr_recall_options *o, int64_t vocabulary, dr_generator **generator) {
    const dr_mqar_shape shape = {.vocabulary = vocabulary, .length = o->seq_len, .pairs = o->pairs, .power = o->power_a};
    const dr_generator_options options = {.vocabulary = vocabulary, .power = o->power_a, .random_fillers = o->random_fillers};
    if (o->examples < 1) return dr_fail(DR_ERROR_ARGUMENT, "examples is %lld: it must be at least 1", (long long)o->examples);
    if (o->batch < 1) return dr_fail(DR_ERROR_ARGUMENT, "batch is %lld: it must be at least 1", (long long)o->batch);
    DR_TRY(dr_mqar_check(&shape));
    if (!dr_product((int64_t[]){o->examples, o->pairs, sizeof(int64_t)}, 3, &(int64_t){0}))
        return dr_fail(DR_ERROR_ARGUMENT, "%lld examples are more than can be counted", (long long)o->examples);
    return dr_generator_mqar.create(&options, (dr_example_size){o->seq_len, o->pairs}, generator);
}

dr_status dr_score_recall(const dr_model *model, const dr_recall_options *options,
                          bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_recall_score *score) {
    DR_NEED(model);
    DR_NEED(score);
    const dr_recall_options defaults = dr_recall_defaults(), *o = options ? options : &defaults;
    const dr_size_range size = {.least = o->seq_len, .most = o->seq_len, .pairs = o->pairs, .weight = 1};
    dr_examples_options of_examples = {
        .size = &size, .examples = o->examples, .batch = o->batch, .rows = INT64_MAX, .seed = o->seed};
    dr_examples_score found = {0};
    dr_session *session = NULL;
    dr_status status;
    DR_GO(open_generator(o, dr_model_get_config(model)->vocabulary, &of_examples.generator));
    DR_GO(dr_session_create(model, &session));
    DR_GO(dr_score_examples(session, &of_examples, progress, context, &found));
done:
    if (status == DR_OK || status == DR_ERROR_NUMERIC)
        *score = (dr_recall_score){found.examples, found.targets, found.loss, found.accuracy, found.seconds};
    dr_session_destroy(session);
    dr_generator_destroy(of_examples.generator);
    return status;
}
