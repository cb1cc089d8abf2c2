/* Threads of the host on one CPU backend, as the headers allow them: models that each have a thread, one model that many
 * threads step. Every number has the bits that it has when one thread computes alone. Run under the thread sanitizer it also
 * holds that nothing is written by two of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include <deltarule/generate.h>

enum { THREADS = 4, REPEATS = 6, SEQUENCES = 3, TOKENS = 40, ROWS = SEQUENCES * TOKENS, VOCABULARY = 61, STEPS = 12 };

/* Between them they have convolutions, gates of both forms, norms with weights, rotary embeddings, factors of heads. */
static const char *const rules[] = {"gdn", "kda", "retnet", "mamba2", "comba", "qdelta"};
enum { RULES = sizeof rules / sizeof *rules };

static dr_model *model_of(dr_backend *backend, int rule, uint64_t seed) {
    dr_model_config config = dr_model_config_default(dr_rule_find(rules[rule]));
    dr_model *model = NULL;
    config.vocabulary = VOCABULARY;
    config.hidden = 64;
    config.layers = 2;
    config.heads = 2;
    config.intermediate = 96;
    if (dr_model_create(backend, &config, seed, &model) != DR_OK) print_error("%s: %s\n", rules[rule], dr_last_error());
    return model;
}

static int32_t token_at(int64_t i, int rule) {
    return (int32_t)((i * 17 + i * i * 5 + rule) % VOCABULARY);
}

typedef struct {
    int64_t count;
    float *gradient;
    double loss;
} result;

/* The gradient of a batch on a model of its own. */
static result compute(dr_backend *backend, int rule) {
    int32_t ids[ROWS], labels[ROWS];
    for (int64_t i = 0; i < ROWS; i++) ids[i] = token_at(i, rule), labels[i] = token_at(i + 1, rule);
    const dr_batch batch = {.layout = {.sequences = SEQUENCES, .rows = ROWS}, .ids = ids, .targets = ROWS, .labels = labels};
    dr_model *model = model_of(backend, rule, 7);
    result made = {.count = dr_model_block_count(model)};
    dr_session *session = NULL;
    void *gradients = NULL;
    if (dr_model_gradients_create(model, &gradients) == DR_OK && dr_session_create(model, &session) == DR_OK &&
        dr_session_gradient(session, &batch, 1.0 / ROWS, gradients, &made.loss, NULL) == DR_OK) {
        const size_t bytes = (size_t)made.count * sizeof(float);
        made.gradient = malloc(bytes);
        if (made.gradient) memcpy(made.gradient, gradients, bytes);
    }
    dr_session_destroy(session);
    dr_backend_free(backend, gradients);
    dr_model_destroy(model);
    return made;
}

typedef struct {
    dr_backend *backend;
    const result *expected; /* [RULES] */
    int first, wrong;
} worker;

static void *work(void *context) {
    worker *w = context;
    for (int i = 0; i < REPEATS; i++) {
        const int rule = (w->first + i) % RULES;
        const result made = compute(w->backend, rule), *expected = &w->expected[rule];
        if (!made.gradient || memcmp(&made.loss, &expected->loss, sizeof made.loss) != 0 ||
            memcmp(made.gradient, expected->gradient, (size_t)expected->count * sizeof(float)) != 0)
            w->wrong++;
        free(made.gradient);
    }
    return NULL;
}

static void test_models(void **unused) {
    (void)unused;
    for (int threads = 1; threads <= 2; threads++) {
        const dr_backend_options options = {.threads = threads};
        dr_backend *backend = NULL;
        result expected[RULES];
        worker workers[THREADS];
        pthread_t started[THREADS];
        assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
        for (int i = 0; i < RULES; i++) {
            expected[i] = compute(backend, i);
            assert_non_null(expected[i].gradient);
        }
        for (int i = 0; i < THREADS; i++) {
            workers[i] = (worker){.backend = backend, .expected = expected, .first = i};
            assert_int_equal(pthread_create(&started[i], NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(started[i], NULL), 0);
        for (int i = 0; i < THREADS; i++) assert_int_equal(workers[i].wrong, 0);
        for (int i = 0; i < RULES; i++) free(expected[i].gradient);
        dr_backend_close(backend);
    }
}

/* ---- one model, many threads that step it ---------------------------------------------------------------------------- */

typedef struct {
    dr_model *model;
    int rule;
    float logits[STEPS][VOCABULARY];
    int failed;
} stepper;

static void *step(void *context) {
    stepper *s = context;
    dr_model_state *state = NULL;
    s->failed = dr_model_state_create(s->model, 1, &state) != DR_OK;
    for (int i = 0; i < STEPS && !s->failed; i++) {
        const int32_t id = token_at(i, s->rule);
        s->failed = dr_model_step(s->model, &id, state, s->logits[i]) != DR_OK;
    }
    dr_model_state_destroy(state);
    return NULL;
}

static void test_steps(void **unused) {
    (void)unused;
    static stepper alone, steppers[THREADS];
    const dr_backend_options options = {.threads = 2};
    dr_backend *backend = NULL;
    assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
    for (int rule = 0; rule < RULES; rule++) {
        dr_model *model = model_of(backend, rule, 3);
        pthread_t started[THREADS];
        assert_non_null(model);
        alone = (stepper){.model = model, .rule = rule};
        step(&alone);
        assert_false(alone.failed);
        for (int i = 0; i < THREADS; i++) {
            steppers[i] = (stepper){.model = model, .rule = rule};
            assert_int_equal(pthread_create(&started[i], NULL, step, &steppers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(started[i], NULL), 0);
        for (int i = 0; i < THREADS; i++) {
            assert_false(steppers[i].failed);
            assert_memory_equal(steppers[i].logits, alone.logits, sizeof alone.logits);
        }
        dr_model_destroy(model);
    }
    dr_backend_close(backend);
}

/* ---- one model, many threads that generate, score and learn from it --------------------------------------------------- */

enum { SAMPLES = 3, WRITTEN = 24 };

typedef struct {
    const dr_model *model;
    int number;
    char text[SAMPLES][WRITTEN + 1];
    size_t length;
    double loss[SAMPLES], gradient_loss[SAMPLES];
    float *gradients; /* of the last; freed by the test */
    int failed;
} user;

static bool keep_text(void *context, const char *bytes, size_t count) {
    user *u = context;
    for (size_t i = 0; i < count && u->length < WRITTEN; i++)
        u->text[u->number][u->length++] = (char)(bytes[i] ? bytes[i] : '0');
    return true;
}

/* Prompts and batches of several lengths, so that sessions grow while others compute. */
static void *use(void *context) {
    user *u = context;
    dr_session *session = NULL;
    dr_backend *backend = dr_model_backend(u->model);
    const int64_t count = dr_model_block_count(u->model);
    void *gradients = NULL;
    int32_t ids[ROWS + 1];
    char prompt[201];
    for (int i = 0; i <= ROWS; i++) ids[i] = token_at(i, 0);
    memset(prompt, 'a', sizeof prompt);
    u->failed = dr_session_create(u->model, &session) != DR_OK || dr_model_gradients_create(u->model, &gradients) != DR_OK;
    for (u->number = 0; u->number < SAMPLES && !u->failed; u->number++) {
        dr_generate_options options = dr_generate_defaults();
        options.tokens = WRITTEN, options.sampling.seed = (uint64_t)u->number + 1;
        u->length = 0;
        const int64_t rows = ROWS >> (SAMPLES - 1 - u->number);
        const dr_batch batch = {.layout = {.sequences = 1, .rows = rows}, .ids = ids, .targets = rows, .labels = ids + 1};
        u->failed = dr_generate(u->model, prompt, (size_t)(u->number * 100), &options, keep_text, u) != DR_OK ||
                    dr_session_loss(session, &batch, NULL, &u->loss[u->number], NULL, NULL, NULL) != DR_OK ||
                    dr_session_gradient(session, &batch, 1, gradients, &u->gradient_loss[u->number], NULL) != DR_OK;
    }
    u->gradients = malloc((size_t)count * sizeof(float));
    if (!u->failed && u->gradients) u->failed = dr_backend_download(backend, u->gradients, DR_F32, gradients, count) != DR_OK;
    dr_session_destroy(session);
    dr_backend_free(backend, gradients);
    return NULL;
}

static void test_sessions(void **unused) {
    (void)unused;
    static user alone, users[THREADS];
    const dr_backend_options options = {.threads = 2};
    dr_backend *backend = NULL;
    dr_model *model = NULL;
    assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 257, config.hidden = 32, config.layers = 2, config.heads = 2;
    assert_int_equal(dr_model_create(backend, &config, 1, &model), DR_OK);
    const size_t bytes = (size_t)dr_model_block_count(model) * sizeof(float);
    pthread_t started[THREADS];
    alone = (user){.model = model};
    use(&alone);
    assert_false(alone.failed);
    assert_true(strlen(alone.text[0]) > 0);
    for (int i = 0; i < THREADS; i++) {
        users[i] = (user){.model = model};
        assert_int_equal(pthread_create(&started[i], NULL, use, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(started[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_false(users[i].failed);
        assert_memory_equal(users[i].text, alone.text, sizeof alone.text);
        assert_memory_equal(users[i].loss, alone.loss, sizeof alone.loss);
        assert_memory_equal(users[i].gradient_loss, alone.gradient_loss, sizeof alone.loss);
        assert_memory_equal(users[i].gradients, alone.gradients, bytes);
        free(users[i].gradients);
    }
    free(alone.gradients);
    dr_model_destroy(model);
    dr_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models), cmocka_unit_test(test_steps),
                                       cmocka_unit_test(test_sessions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
