/* Scoring synthetic examples. */
#include "evaluate/examples.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/streams.h"

#include <math.h>

typedef struct {
    const dr_examples_options *options;
    dr_example_batch examples;
    uint8_t *hit; /* [targets of a batch] */
    double loss;
    int64_t targets, hits, whole; /* so far; whole: examples without a mistake */
} scorer;

dr_batch dr_examples_as_batch(const dr_example_batch *examples) {
    return (dr_batch){.layout = {.sequences = examples->sequences,
                                 .rows = examples->rows,
                                 .cu_seqlens = examples->even ? NULL : examples->bounds},
                      .ids = examples->ids,
                      .targets = examples->targets,
                      .positions = examples->positions,
                      .labels = examples->labels};
}

/* How many examples a call takes. */
static int64_t examples_a_call(const dr_examples_options *o) {
    const int64_t tokens = o->generator->kind->tokens(o->generator, dr_size_most(o->size));
    int64_t count = o->batch < o->examples ? o->batch : o->examples;
    if (count > o->rows / tokens) count = o->rows / tokens;
    return count > 1 ? count : 1;
}

static dr_status score_batch(scorer *self, dr_session *session, int64_t first, int64_t count) {
    const dr_examples_options *o = self->options;
    dr_example_batch *examples = &self->examples;
    double loss;
    int64_t hits;
    dr_example_batch_clear(examples);
    for (int64_t i = 0; i < count; i++) {
        dr_random random = dr_stream(o->seed, DR_STREAM_HELD_OUT_EXAMPLES, first + i);
        const dr_example_size size = dr_size_draw(o->size, o->generator->kind, &random);
        dr_example_batch_draw(examples, o->generator, &random, size);
    }
    const dr_batch batch = dr_examples_as_batch(examples);
    DR_TRY(dr_session_loss(session, &batch, NULL, &loss, &hits, NULL, self->hit));
    self->loss += loss;
    self->hits += hits;
    self->targets += examples->targets;
    for (int64_t i = 0; i < count; i++) {
        bool right = true;
        for (int64_t k = examples->target_bounds[i]; k < examples->target_bounds[i + 1]; k++) right = right && self->hit[k];
        self->whole += right;
    }
    return DR_OK;
}

dr_status dr_score_examples(dr_session *session, const dr_examples_options *options,
                            bool (*progress)(void *context, int64_t done, int64_t total), void *context,
                            dr_examples_score *score) {
    const dr_examples_options *o = options;
    const double start = dr_clock_now();
    const int64_t most = examples_a_call(o);
    scorer self = {.options = o};
    void *memory;
    dr_status status;
    DR_GO(dr_example_batch_create(o->generator, dr_size_most(o->size), most, &self.examples));
    DR_GO(dr_allocate((size_t)self.examples.most_targets, "the hits of examples", &memory));
    self.hit = memory;
    for (int64_t first = 0; first < o->examples; first += most) {
        const int64_t count = o->examples - first < most ? o->examples - first : most;
        DR_GO(score_batch(&self, session, first, count));
        if (!progress || progress(context, first + count, o->examples)) continue;
        status = dr_fail(DR_ERROR_INTERRUPTED, "scoring was stopped after %lld of %lld examples", (long long)(first + count),
                         (long long)o->examples);
        goto done;
    }
    *score = (dr_examples_score){.examples = o->examples,
                                 .targets = self.targets,
                                 .loss = isnan(self.loss) ? (double)NAN : self.loss / (double)self.targets, /* no "-nan" */
                                 .accuracy = (double)self.hits / (double)self.targets,
                                 .sequence_accuracy = (double)self.whole / (double)o->examples,
                                 .seconds = dr_clock_now() - start};
    if (!isfinite(self.loss))
        status = dr_fail(DR_ERROR_NUMERIC, "the loss is %s: the model computes no finite numbers, and there is no score",
                         isnan(self.loss) ? "not a number" : "infinite");
done:
    dr_example_batch_destroy(&self.examples);
    dr_release(self.hit);
    return status;
}
