/* Language models on random tokens: optimizer steps, which are the gradient of the mean loss over a batch, clipping and the
 * update; scoring, the loss of a batch; and generating. What a run does beside its steps (reading text, evaluations,
 * checkpoints) is not measured. On a device steps follow one another without waiting for the host, as in a run. */
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "check/bench/count.h"
#include "check/bench/device.h"
#include "check/bench/limit.h"
#include "data/corpus.h"
#include "nn/session.h"
#include "ops/kind.h"
#include "train/optimizer.h"
#include "train/settings.h"

#include <math.h>
#include <stdio.h>

enum { STREAM_TOKENS = 3, OPERATIONS_A_PARAMETER = 2 };

/* Small, so that the model stays near its start however many steps are measured. */
static const double LEARNING_RATE = 1e-5;

typedef struct train_case train_case;

/* What is measured. */
typedef struct {
    dr_status (*prepare)(train_case *); /* what it needs beside a model and its batch */
    dr_status (*run)(void *context);
    dr_status (*check)(const train_case *);
    int passes;    /* a forward is one, its backward two */
    bool waits;    /* for the backend, so that the clock of the process tells its time */
    bool one_each; /* of its batch one token a sequence is read, DR_BENCH_GENERATED times */
} bench_kind;

/* A model with a number of threads, and its batch. */
struct train_case {
    const bench_kind *kind;
    const dr_train_options *settings;
    dr_backend *backend;
    dr_model *model;
    dr_session *session;
    dr_optimizer *optimizer;
    dr_batch batch;
    int32_t *ids;         /* [rows], then the labels [rows] */
    dr_bench_sgemm sgemm; /* on the CPU */
    double loss;          /* of scoring */
    dr_model_state *state;
    dr_draw *draws;  /* [sequences], of generating */
    int32_t *chosen; /* [sequences] */
    float *logits;   /* [sequences, vocabulary], where the backend does not choose */
};

/* ---- training ------------------------------------------------------------------------------------------------------- */

static dr_status prepare_step(train_case *c) {
    dr_optimizer_settings optimizer;
    DR_TRY(dr_train_optimizer_settings(c->settings, &optimizer));
    DR_TRY(dr_optimizer_create(c->model, &optimizer, &c->optimizer));
    return dr_session_keep(c->session, dr_setting_integer(c->settings, DR_SET_KEEP_LEVEL));
}

static dr_status run_step(void *context) {
    train_case *c = context;
    dr_optimizer_zero(c->optimizer);
    DR_TRY(dr_session_gradient(c->session, &c->batch, 1.0 / (double)c->batch.targets, c->optimizer->gradient, NULL, NULL));
    return dr_optimizer_update(c->optimizer, LEARNING_RATE);
}

/* What the last step came to. */
static dr_status check_step(const train_case *c) {
    double loss, norm;
    bool skipped;
    DR_TRY(dr_session_result(c->session, &loss, NULL));
    DR_TRY(dr_optimizer_result(c->optimizer, &norm, &skipped));
    if (skipped) return dr_fail(DR_ERROR_NUMERIC, "the gradient is not finite: its norm is %g", norm);
    return isfinite(loss) ? DR_OK : dr_fail(DR_ERROR_NUMERIC, "the loss is %g", loss);
}

static const bench_kind training = {prepare_step, run_step, check_step, 3, false, false};

/* ---- scoring -------------------------------------------------------------------------------------------------------- */

static dr_status prepare_nothing(train_case *c) {
    (void)c;
    return DR_OK;
}

static dr_status run_score(void *context) {
    train_case *c = context;
    return dr_session_loss(c->session, &c->batch, NULL, &c->loss, NULL, NULL, NULL);
}

static dr_status check_score(const train_case *c) {
    return isfinite(c->loss) ? DR_OK : dr_fail(DR_ERROR_NUMERIC, "the loss is %g", c->loss);
}

static const bench_kind scoring = {prepare_nothing, run_score, check_score, 1, true, false};

/* ---- generating ----------------------------------------------------------------------------------------------------- */

static dr_status prepare_tokens(train_case *c) {
    const size_t sequences = (size_t)c->batch.layout.sequences, vocabulary = (size_t)dr_model_get_config(c->model)->vocabulary;
    void *memory = NULL;
    DR_TRY(dr_model_state_create(c->model, (int64_t)sequences, &c->state));
    DR_TRY(dr_allocate_zero(sequences * sizeof *c->draws, "draws", &memory)); /* temperature 0: the most likely token */
    c->draws = memory;
    DR_TRY(dr_allocate_zero(sequences * sizeof *c->chosen, "tokens", &memory));
    c->chosen = memory;
    if (c->backend->ops->choose) return DR_OK;
    DR_TRY(dr_allocate(sequences * vocabulary * sizeof *c->logits, "logits", &memory));
    c->logits = memory;
    return DR_OK;
}

static dr_status step_on_host(train_case *c) {
    const int64_t vocabulary = dr_model_get_config(c->model)->vocabulary;
    DR_TRY(dr_model_step(c->model, c->chosen, c->state, c->logits));
    for (int64_t i = 0; i < c->batch.layout.sequences; i++) {
        const float *row = c->logits + i * vocabulary;
        int32_t most = 0;
        for (int32_t id = 1; id < vocabulary; id++)
            if (row[id] > row[most]) most = id;
        c->chosen[i] = most;
    }
    return DR_OK;
}

static dr_status run_tokens(void *context) {
    train_case *c = context;
    const int64_t vocabulary = dr_model_get_config(c->model)->vocabulary;
    const bool chooses = c->backend->ops->choose != NULL, beside = c->backend->ops->fetch != NULL;
    dr_model_state_reset(c->state);
    for (int i = 0; !chooses && i < DR_BENCH_GENERATED; i++) DR_TRY(step_on_host(c));
    if (chooses) DR_TRY(dr_model_choose_begin(c->model, c->chosen, c->state, vocabulary, c->draws));
    for (int i = 1; chooses && i <= DR_BENCH_GENERATED; i++) {
        const bool more = i < DR_BENCH_GENERATED;
        if (more && beside) DR_TRY(dr_model_choose_begin(c->model, NULL, c->state, vocabulary, c->draws));
        DR_TRY(dr_model_choose_end(c->state, c->chosen));
        if (more && !beside) DR_TRY(dr_model_choose_begin(c->model, c->chosen, c->state, vocabulary, c->draws));
    }
    return DR_OK;
}

/* That logits are numbers is looked at in each step where the backend chooses. */
static dr_status check_tokens(const train_case *c) {
    if (!c->logits || isfinite(c->logits[0])) return DR_OK;
    return dr_fail(DR_ERROR_NUMERIC, "a logit is %g", (double)c->logits[0]);
}

static const bench_kind generating = {prepare_tokens, run_tokens, check_tokens, 1, true, true};

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

static dr_status draw_batch(const dr_bench_options *options, train_case *c) {
    const int64_t sequences = dr_setting_integer(c->settings, DR_SET_BATCH);
    const int64_t vocabulary = dr_model_get_config(c->model)->vocabulary;
    int64_t sizes[2] = {sequences, dr_setting_integer(c->settings, DR_SET_SEQ_LEN)}, rows = 0;
    void *memory = NULL;
    if (!dr_product(sizes, 2, &rows)) return dr_fail(DR_ERROR_ARGUMENT, "batch and seq_len are too large together");
    DR_TRY(dr_allocate((size_t)rows * 2 * sizeof(int32_t), "tokens", &memory));
    c->ids = memory;
    dr_random random = dr_random_start(options->seed, STREAM_TOKENS);
    for (int64_t i = 0; i < 2 * rows; i++) c->ids[i] = (int32_t)dr_random_below(&random, (uint64_t)vocabulary);
    c->batch =
        (dr_batch){.layout = {.sequences = sequences, .rows = rows}, .ids = c->ids, .targets = rows, .labels = c->ids + rows};
    return DR_OK;
}

static dr_status prepare(const dr_bench_options *options, int threads, train_case *c) {
    const bool chosen = dr_setting_is_set(c->settings, DR_SET_VOCABULARY);
    dr_model_config config;
    DR_TRY(dr_train_model_config(c->settings, chosen ? dr_setting_integer(c->settings, DR_SET_VOCABULARY) : DR_BYTE_VOCABULARY,
                                 &config));
    DR_TRY(dr_bench_open(options, threads, &c->backend));
    DR_TRY(dr_model_create(c->backend, &config, options->seed, &c->model));
    DR_TRY(dr_session_create(c->model, &c->session));
    DR_TRY(draw_batch(options, c));
    DR_TRY(c->kind->prepare(c));
    DR_TRY(c->kind->run(c)); /* takes all memory that it needs */
    return dr_bench_device_of(c->backend) ? DR_OK : dr_bench_sgemm_create(threads, options->seed, &c->sgemm);
}

static void destroy(train_case *c) {
    dr_bench_sgemm_destroy(&c->sgemm);
    dr_release(c->ids);
    dr_release(c->draws);
    dr_release(c->chosen);
    dr_release(c->logits);
    dr_model_state_destroy(c->state);
    dr_optimizer_destroy(c->optimizer);
    dr_session_destroy(c->session);
    dr_model_destroy(c->model);
    dr_backend_close(c->backend);
}

/* Tokens that a run reads. */
static int64_t tokens_of(const train_case *c) {
    return c->kind->one_each ? c->batch.layout.sequences * DR_BENCH_GENERATED : c->batch.layout.rows;
}

/* Operations of the recurrences of all layers in a run. */
static double recurrence_of(const train_case *c) {
    const dr_model_config *config = dr_model_get_config(c->model);
    dr_recurrence recurrence = {.rule = &config->rule,
                                .forget = DR_FORGET,
                                .layout = {c->batch.layout.sequences, tokens_of(c), NULL},
                                .key_heads = config->heads,
                                .value_heads = config->value_heads,
                                .key_size = config->key_size,
                                .value_size = config->value_size};
    return c->kind->passes * dr_bench_counted(&recurrence) * (double)config->layers;
}

static double amount_of(const train_case *c) {
    const dr_model_config *config = dr_model_get_config(c->model);
    int64_t looked_up = config->tied ? 0 : config->vocabulary * config->hidden;
    double multiplied = (double)(dr_model_parameter_count(c->model) - looked_up);
    return c->kind->passes * OPERATIONS_A_PARAMETER * multiplied * (double)tokens_of(c) + recurrence_of(c);
}

/* Of the backend's memory: parameters, gradient, what the optimizer keeps, and a step. */
static double bytes_of(const train_case *c) {
    const int64_t count = dr_model_block_count(c->model);
    const size_t block = dr_kind_bytes(c->backend, DR_NUMBER, count);
    const size_t copies = dr_has_copies(c->backend) ? dr_kind_bytes(c->backend, DR_VECTOR, count) : 0;
    const double call = (double)copies + (double)c->session->capacity;
    if (!c->optimizer) return (double)block + call + (c->state ? (double)dr_model_state_bytes(c->state) : 0);
    return 4 * (double)block + call + (double)dr_muon_bytes(c->optimizer->muon);
}

/* Bytes that a run of generating must move. */
static double moved_by(const train_case *c) {
    const dr_model_config *config = dr_model_get_config(c->model);
    const int64_t looked_up = config->tied ? 0 : config->vocabulary * config->hidden;
    const int64_t read = dr_model_parameter_count(c->model) - looked_up;
    return DR_BENCH_GENERATED *
           ((double)dr_kind_bytes(c->backend, DR_VECTOR, read) + 2 * (double)dr_model_state_bytes(c->state));
}

static void describe(const train_case *c, int threads, dr_bench_train_result *result) {
    const char *name = dr_model_get_config(c->model)->rule.name;
    *result = (dr_bench_train_result){.threads = threads,
                                      .parameters = dr_model_parameter_count(c->model),
                                      .tokens = tokens_of(c),
                                      .recurrence = recurrence_of(c),
                                      .bytes = bytes_of(c)};
    snprintf(result->rule, sizeof result->rule, "%s", name ? name : "composition");
}

static void fill_pair(train_case *c, dr_bench_limits *limits, dr_bench_pair *pair) {
    dr_backend *device = dr_bench_device_of(c->backend);
    if (device)
        dr_bench_product_item(limits, &pair->limit);
    else
        dr_bench_sgemm_item(&c->sgemm, &pair->limit);
    if (device && c->kind->one_each) {
        dr_bench_copy_item(limits, &pair->memory);
        pair->bytes = moved_by(c);
    }
    pair->work.run = c->kind->run;
    pair->work.context = c;
    pair->work.device = c->kind->waits ? NULL : device;
    pair->work.amount = amount_of(c);
}

/* cases: [thread_counts, count] */
static dr_status measure(const bench_kind *kind, const dr_bench_options *options, int count,
                         const dr_train_options *const *settings, train_case *cases, dr_bench_limits *limits,
                         dr_bench_grid *grid, dr_bench_train_result *results) {
    int all = options->thread_counts * count;
    for (int i = 0; i < all; i++) {
        train_case *c = &cases[i];
        if (!settings[i % count])
            return dr_fail(DR_ERROR_ARGUMENT, "settings %d are missing: they must not be NULL", i % count);
        c->kind = kind;
        c->settings = settings[i % count];
        DR_TRY(prepare(options, options->threads[i / count], c));
        if (i == 0 && (limits->memory.backend = dr_bench_device_of(c->backend)))
            DR_TRY(dr_bench_limits_create(true, options->seed, limits));
        fill_pair(c, limits, dr_bench_grid_at(grid, i / count, i % count, 0));
    }
    DR_TRY(dr_bench_grid_measure(grid));
    for (int i = 0; i < all; i++) {
        DR_TRY(kind->check(&cases[i]));
        describe(&cases[i], options->threads[i / count], &results[i]);
        const char *lacking = dr_bench_device_of(cases[i].backend) ? limits->lacking : cases[i].sgemm.lacking;
        snprintf(results[i].lacking, sizeof results[i].lacking, "%s", lacking);
        results[i].step = dr_bench_grid_work(grid, i / count, i % count, 0);
    }
    return DR_OK;
}

static dr_status bench(const bench_kind *kind, const dr_bench_options *options, int count,
                       const dr_train_options *const *settings, dr_bench_train_result *results) {
    DR_NEED(options);
    DR_NEED(settings);
    DR_NEED(results);
    DR_TRY(dr_bench_check(options, count));
    int all = options->thread_counts * count;
    dr_bench_grid grid = {0};
    dr_bench_limits limits = {.from = NULL};
    void *cases = NULL;
    dr_status status;
    DR_GO(dr_bench_grid_create(options, count, 1, &grid));
    DR_GO(dr_allocate_zero((size_t)all * sizeof(train_case), "cases", &cases));
    DR_GO(measure(kind, options, count, settings, cases, &limits, &grid, results));
done:
    dr_bench_limits_destroy(&limits);
    for (int i = 0; cases && i < all; i++) destroy((train_case *)cases + i);
    dr_release(cases);
    dr_bench_grid_destroy(&grid);
    return status;
}

dr_status dr_bench_train(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                         dr_bench_train_result *results) {
    return bench(&training, options, count, settings, results);
}

dr_status dr_bench_score(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                         dr_bench_train_result *results) {
    return bench(&scoring, options, count, settings, results);
}

dr_status dr_bench_generate(const dr_bench_options *options, int count, const dr_train_options *const *settings,
                            dr_bench_train_result *results) {
    return bench(&generating, options, count, settings, results);
}
