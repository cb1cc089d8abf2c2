/* What a step of training costs with a mixture of experts beside a dense step of the same active parameters: two models of one
 * gdn layer. The feed-forward of the first has EXPERTS experts of width WIDTH, and each token goes to CHOSEN of them; the
 * feed-forward of the second is dense, of width CHOSEN times WIDTH. Steps of both run in turn; the program prints the median
 * ratio of neighbouring steps, once for the gradient and once with the optimizer, which changes all experts, active or not. It
 * fails if the gradient takes more than 1.4 times the dense one.
 *
 * Usage: experts [HIDDEN [WIDTH [EXPERTS [CHOSEN [ROWS [THREADS [STEPS]]]]]]] */
#include "base/clock.h"
#include "check/bench/grid.h"
#include "train/optimizer.h"

#include <deltarule/deltarule.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { VOCABULARY = 256, SEQUENCES = 8, MIXED = 0, DENSE = 1, MODELS = 2 };
static const double most = 1.4;

typedef struct {
    dr_model *model;
    dr_session *session;
    dr_optimizer *optimizer;
    double gradient[DR_BENCH_MOST_REPEATS], update[DR_BENCH_MOST_REPEATS];
} learner;

static void must(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "experts: %s\n", dr_last_error());
    exit(1);
}

static void begin(dr_backend *backend, int64_t hidden, const char *layers, learner *of) {
    const dr_optimizer_settings settings = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY, config.hidden = hidden, config.heads = hidden / 64, config.layer_list = layers;
    must(dr_model_create(backend, &config, 1, &of->model));
    must(dr_session_create(of->model, &of->session));
    must(dr_optimizer_create(of->model, &settings, &of->optimizer));
}

/* Of one thread the processor's time, which does not count what else the machine does. */
static double now(const dr_backend *backend) {
    struct timespec t;
    if (dr_backend_threads(backend) > 1) return dr_clock_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void step(dr_backend *backend, learner *of, const dr_batch *batch, int at) {
    const size_t bytes = (size_t)dr_model_block_count(of->model) * dr_dtype_size(dr_backend_dtype(backend));
    double loss, norm;
    bool skipped;
    dr_backend_zero(backend, of->optimizer->gradient, bytes);
    const double start = now(backend);
    must(dr_session_gradient(of->session, batch, 1.0 / (double)batch->targets, of->optimizer->gradient, &loss, NULL));
    const double made = now(backend);
    must(dr_optimizer_step(of->optimizer, 1e-3, &norm, &skipped));
    if (at < 0) return;
    of->gradient[at] = made - start;
    of->update[at] = now(backend) - made;
}

static double argument(int count, char **words, int i, double otherwise) {
    return count > i ? strtod(words[i], NULL) : otherwise;
}

int main(int count, char **words) {
    static learner learners[MODELS];
    static double ratio[DR_BENCH_MOST_REPEATS];
    const int hidden = (int)argument(count, words, 1, 256), width = (int)argument(count, words, 2, 256),
              experts = (int)argument(count, words, 3, 8), chosen = (int)argument(count, words, 4, 2),
              rows = (int)argument(count, words, 5, 2048), threads = (int)argument(count, words, 6, 1),
              steps = (int)argument(count, words, 7, 11);
    if (hidden < 64 || width < 1 || chosen < 1 || experts < chosen || rows < SEQUENCES || rows % SEQUENCES || threads < 1 ||
        steps < 1 || steps > DR_BENCH_MOST_REPEATS) {
        fprintf(stderr, "usage: experts [HIDDEN [WIDTH [EXPERTS [CHOSEN [ROWS [THREADS [STEPS]]]]]]]\n");
        return 2;
    }
    char mixed[256], dense[256];
    snprintf(mixed, sizeof mixed,
             "[{\"mixer\": \"gdn\", \"feed\": \"experts\", \"experts\": {\"count\": %d, \"chosen\": %d, \"width\": %d}}]",
             experts, chosen, width);
    snprintf(dense, sizeof dense, "[{\"mixer\": \"gdn\", \"intermediate\": %d}]", chosen * width);
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = threads}, &backend));
    begin(backend, hidden, mixed, &learners[MIXED]);
    begin(backend, hidden, dense, &learners[DENSE]);
    int32_t *ids = calloc((size_t)rows, sizeof *ids), *labels = calloc((size_t)rows, sizeof *labels);
    if (!ids || !labels) abort();
    for (int i = 0; i < rows; i++)
        ids[i] = (i * 37 + i / 7 * 11 + i * i % 53) % VOCABULARY, labels[i] = (i * 5 + 3) % VOCABULARY;
    const dr_batch batch = {.layout = {SEQUENCES, rows, NULL}, .ids = ids, .labels = labels, .targets = rows};
    for (int i = -2; i < steps; i++)
        for (int turn = 0; turn < MODELS; turn++) step(backend, &learners[(turn + (i & 1)) % MODELS], &batch, i);
    for (int i = 0; i < steps; i++) ratio[i] = learners[MIXED].gradient[i] / learners[DENSE].gradient[i];
    const dr_bench_seconds gradient = dr_bench_summary(ratio, steps);
    for (int i = 0; i < steps; i++)
        ratio[i] = (learners[MIXED].gradient[i] + learners[MIXED].update[i]) /
                   (learners[DENSE].gradient[i] + learners[DENSE].update[i]);
    const dr_bench_seconds whole = dr_bench_summary(ratio, steps);
    printf("%s, width %d, %d of %d experts of width %d, %d rows, %d threads\n", dr_backend_isa(backend), hidden, chosen,
           experts, width, rows, threads);
    printf("gradient: %.2f ms with experts, %.2f ms dense, %.3f times; with the optimizer %.3f times\n",
           1e3 * dr_bench_summary(learners[MIXED].gradient, steps).median,
           1e3 * dr_bench_summary(learners[DENSE].gradient, steps).median, gradient.median, whole.median);
    for (int m = 0; m < MODELS; m++) {
        dr_optimizer_destroy(learners[m].optimizer);
        dr_session_destroy(learners[m].session);
        dr_model_destroy(learners[m].model);
    }
    free(ids);
    free(labels);
    dr_backend_close(backend);
    return gradient.median > most;
}
