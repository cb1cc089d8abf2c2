/* The reference's results of all cases are made first, by several threads; then the tested backend takes its turn. */
#include "models.h"

#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/random.h"
#include "nn/model.h"

#include <deltarule/deltarule.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 300, FEW_ROWS = 75, MOST_CASES = 24, MOST_POOLS = 1024, WIDTH = 256, VOCABULARY = 512 };

static const model_case recurrent_cases[] = {
    {.name = "delta_net", .rule = "delta_net", .layers = 2, .heads = 2},
    {.name = "gdn", .rule = "gdn", .layers = 2, .heads = 2},
    {.name = "gdn, 4 layers", .rule = "gdn", .layers = 4, .heads = 4},
    {.name = "pgdn", .rule = "pgdn", .layers = 2, .heads = 2},
    {.name = "qdelta", .rule = "qdelta", .layers = 2, .heads = 2},
    {.name = "kda", .rule = "kda", .layers = 2, .heads = 2},
    {.name = "kda, 4 layers", .rule = "kda", .layers = 4, .heads = 4},
    {.name = "eda", .rule = "eda", .layers = 2, .heads = 2},
    {.name = "gla", .rule = "gla", .layers = 2, .heads = 4},
    {.name = "hybrid", .rule = "gdn", .layer_list = "gdn attention gdn attention", .layers = 4, .heads = 2},
    {.name = "kda and experts",
     .rule = "kda",
     .layer_list = "[{\"mixer\": \"kda\"}, {\"mixer\": \"kda\", \"feed\": \"experts\", \"experts\": "
                   "{\"count\": 8, \"chosen\": 2, \"width\": 128}}]",
     .layers = 2,
     .heads = 2,
     .routed = true},
    {.name = "mamba2_hf", .folder = "mamba2_hf"},
    {.name = "rwkv7", .folder = "rwkv7"},
    {.name = "qwen3_next", .folder = "qwen3_next_mixed", .routed = true},
    {0},
};

static const model_case plain_cases[] = {
    {.name = "fla_transformer", .folder = "fla_transformer", .brief = true},
    {.name = "llama_yarn", .folder = "llama_yarn", .brief = true},
    {.name = "qwen2_tied", .folder = "qwen2_tied", .brief = true},
    {.name = "qwen3_moe", .folder = "qwen3_moe", .brief = true, .routed = true},
    {0},
};

const model_case *models_to_hold(bool recurrent) {
    return recurrent ? recurrent_cases : plain_cases;
}

/* ---- loss and gradient --------------------------------------------------------------------------------------------------- */

typedef struct {
    char wrong[256]; /* "": all right */
    double loss;
    int64_t count;
    double *gradient; /* [count], one parameter behind the other as they are listed: backends place them differently */
} outcome;

static dr_status make_model(dr_backend *b, const model_case *of, dr_model **model) {
    char folder[1024];
    if (of->folder) {
        snprintf(folder, sizeof folder, "%s/checkpoints/%s", DR_TESTS_FOLDER, of->folder);
        return dr_model_load(b, folder, model);
    }
    const dr_rule *rule = dr_rule_find(of->rule);
    if (!rule) return dr_fail(DR_ERROR_ARGUMENT, "there is no rule %s", of->rule);
    dr_model_config config = dr_model_config_default(rule);
    config.vocabulary = VOCABULARY, config.hidden = WIDTH, config.layers = of->layers, config.heads = of->heads;
    config.layer_list = of->layer_list;
    config.initializer_range = 0.06; /* so that activations are not small */
    return dr_model_create(b, &config, 7, model);
}

/* The block without what lies between parameters. */
static void list_gradient(const dr_model *model, const double *block, outcome *of) {
    const dr_parameter *parameters;
    const int64_t listed = dr_model_parameters(model, &parameters);
    of->count = 0;
    for (int64_t p = 0; p < listed; p++) {
        memcpy(of->gradient + of->count, block + parameters[p].offset, (size_t)parameters[p].count * sizeof(double));
        of->count += parameters[p].count;
    }
}

/* calls: of one session, the last of which counts; a backend may keep what it does for the later ones. */
static dr_status take_gradient(dr_backend *b, const dr_model *model, bool brief, int calls, outcome *of) {
    const int64_t rows = brief ? FEW_ROWS : ROWS, begins[] = {0, 0, 1, 64, 65, rows};
    int32_t tokens[ROWS + 1];
    dr_session *session = NULL;
    void *gradients = NULL;
    double *block = NULL;
    dr_status status;
    dr_random random = dr_random_start(5, 0);
    const int64_t count = dr_model_block_count(model);
    const uint64_t vocabulary = (uint64_t)dr_model_get_config(model)->vocabulary;
    for (int i = 0; i <= ROWS; i++) tokens[i] = (int32_t)dr_random_below(&random, vocabulary);
    const dr_batch batch = {
        .layout = {.sequences = 5, .rows = rows, .cu_seqlens = begins}, .ids = tokens, .targets = rows, .labels = tokens + 1};
    of->gradient = calloc((size_t)count, sizeof(double));
    block = calloc((size_t)count, sizeof(double));
    if (!of->gradient || !block) DR_GO(dr_fail(DR_ERROR_MEMORY, "no memory for a gradient"));
    DR_GO(dr_model_gradients_create(model, &gradients));
    DR_GO(dr_session_create(model, &session));
    for (int i = 0; i < calls; i++) {
        b->ops->zero(b, gradients, dr_kind_bytes(b, DR_NUMBER, count));
        DR_GO(dr_session_gradient(session, &batch, 1.0 / (double)rows, gradients, &of->loss, NULL));
    }
    DR_GO(b->ops->download(b, block, DR_F64, gradients, count));
    list_gradient(model, block, of);
done:
    dr_session_destroy(session);
    if (gradients) b->ops->free(b, gradients);
    free(block);
    return status;
}

static void run(dr_backend *b, const model_case *of, int calls, outcome *to) {
    dr_model *model = NULL;
    dr_status status = make_model(b, of, &model);
    if (status == DR_OK) status = take_gradient(b, model, of->brief, calls, to);
    if (status != DR_OK) snprintf(to->wrong, sizeof to->wrong, "%s on %s: %.200s", of->name, b->ops->name, dr_last_error());
    dr_model_destroy(model);
}

/* ---- distances ----------------------------------------------------------------------------------------------------------- */

/* Parameters that are compared as one: a matrix, or what has the same name in several layers. */
typedef struct {
    char name[96];
    int64_t numbers;
    double size, tested, rounded; /* squares: of the gradient, of the differences */
} pool;

/* Rounding errors of fewer numbers than this have no size that one draw shows: in bf16 such pools are judged together. */
enum { FEW_NUMBERS = 16 };

/* Behind the number of the layer. */
static const char *role_of(const dr_parameter *parameter) {
    const char *at = strstr(parameter->name, "layers.");
    if (!at || (parameter->decays && parameter->rank > 1)) return parameter->name;
    at = strchr(at + strlen("layers."), '.');
    return at ? at : parameter->name;
}

static pool *pool_of(pool *pools, int *count, const char *name) {
    for (int i = 0; i < *count; i++)
        if (strcmp(pools[i].name, name) == 0) return &pools[i];
    if (*count == MOST_POOLS) abort();
    pool *made = &pools[(*count)++];
    *made = (pool){0};
    snprintf(made->name, sizeof made->name, "%s", name);
    return made;
}

static double square_of(double a, double b) {
    return (a - b) * (a - b);
}

/* Their mean squares, each beside the size of its own gradient, as one more pool. */
static void join_few(pool *pools, int *count) {
    pool all = {.name = "parameters of few numbers"};
    int kept = 0, joined = 0;
    for (int c = 0; c < *count; c++) {
        const pool of = pools[c];
        if (of.numbers >= FEW_NUMBERS || of.size == 0) {
            pools[kept++] = of;
            continue;
        }
        joined++, all.size += 1, all.tested += of.tested / of.size, all.rounded += of.rounded / of.size;
    }
    if (joined > 0) pools[kept++] = all;
    *count = kept;
}

/* The pool whose error is largest beside what is allowed; *share: that. rounded: NULL in float32. */
static bool compare(const dr_model *model, const outcome *exact, const outcome *rounded, const outcome *is, char *line,
                    size_t size) {
    static pool pools[MOST_POOLS];
    const dr_parameter *parameters;
    const int64_t listed = dr_model_parameters(model, &parameters);
    int count = 0, worst = 0;
    int64_t i = 0;
    double most = 0;
    for (int64_t p = 0; p < listed; p++) {
        pool *of = pool_of(pools, &count, role_of(&parameters[p]));
        of->numbers += parameters[p].count;
        for (const int64_t end = i + parameters[p].count; i < end; i++) {
            of->size += square_of(exact->gradient[i], 0);
            of->tested += square_of(is->gradient[i], exact->gradient[i]);
            if (rounded) of->rounded += square_of(rounded->gradient[i], exact->gradient[i]);
        }
    }
    if (rounded) join_few(pools, &count);
    for (int c = 0; c < count; c++) {
        const double share = sqrt(pools[c].tested) / (rounded ? 2 * sqrt(pools[c].rounded) + 1e-3 * sqrt(pools[c].size)
                                                              : 1e-4 * sqrt(pools[c].size) + 1e-12);
        if (!(share <= most)) most = share, worst = c;
    }
    const double loss = fabs(is->loss - exact->loss) / exact->loss;
    const double near = rounded ? 2 * fabs(rounded->loss - exact->loss) / exact->loss + 1e-3 : 1e-5;
    const pool *of = &pools[worst];
    snprintf(line, size, "loss off by %.1e, gradient at most %.2f of what is allowed: %.95s, %.1e, rounded reference %.1e",
             loss, most, of->name, sqrt(of->tested / of->size), sqrt(of->rounded / of->size));
    return most <= 1 && loss <= near;
}

/* ---- all cases ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const model_case *cases;
    int count;
    bool narrow; /* rounded is wanted */
    int next;
    pthread_mutex_t lock;
    outcome exact[MOST_CASES], rounded[MOST_CASES];
} expectations;

static void *expect(void *context) {
    expectations *all = context;
    const dr_backend_options stored = {.dtype = DR_BF16};
    dr_backend *exact = NULL, *rounded = NULL;
    if (dr_reference_open(NULL, &exact) != DR_OK || dr_reference_open(&stored, &rounded) != DR_OK) abort();
    for (;;) {
        pthread_mutex_lock(&all->lock);
        const int i = all->next++;
        pthread_mutex_unlock(&all->lock);
        if (i >= 2 * all->count) break;
        const model_case *of = &all->cases[i / 2];
        if (i % 2 == 0)
            run(exact, of, 1, &all->exact[i / 2]);
        else if (all->narrow && !of->routed)
            run(rounded, of, 1, &all->rounded[i / 2]);
    }
    dr_reference_close(exact);
    dr_reference_close(rounded);
    return NULL;
}

static void expect_all(expectations *all, int threads) {
    pthread_t thread[64];
    if (threads > 64) threads = 64;
    pthread_mutex_init(&all->lock, NULL);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, expect, all)) abort();
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&all->lock);
}

static bool holds(dr_backend *tested, const model_case *of, const outcome *exact, const outcome *rounded) {
    outcome is = {.count = 0}, again = {.count = 0};
    char line[512] = "";
    dr_model *model = NULL;
    bool right = !exact->wrong[0] && !rounded->wrong[0];
    if (right) run(tested, of, 1, &is), run(tested, of, 4, &again);
    const char *wrong = exact->wrong[0]     ? exact->wrong
                        : rounded->wrong[0] ? rounded->wrong
                        : is.wrong[0]       ? is.wrong
                                            : again.wrong;
    right = right && !is.wrong[0] && !again.wrong[0] && make_model(tested, of, &model) == DR_OK;
    if (right) right = compare(model, exact, rounded->gradient ? rounded : NULL, &is, line, sizeof line);
    const bool same = right && memcmp(is.gradient, again.gradient, (size_t)is.count * sizeof(double)) == 0;
    printf("  %-16s %-5s %s%s%s\n", of->name, dr_dtype_name(tested->storage), line, wrong,
           !right  ? ": FAIL"
           : !same ? ": FAIL, other bits in a later call"
                   : "");
    fflush(stdout);
    dr_model_destroy(model);
    free(is.gradient), free(again.gradient);
    return right && same;
}

bool models_hold(dr_backend *tested, const model_case *cases, int threads, long *checks) {
    expectations *all = calloc(1, sizeof *all);
    bool right = true;
    if (!all) return false;
    all->cases = cases;
    all->narrow = tested->storage == DR_BF16;
    while (cases[all->count].name) all->count++;
    expect_all(all, threads);
    for (int i = 0; i < all->count; i++) {
        if (!(all->narrow && cases[i].routed)) {
            right = holds(tested, &cases[i], &all->exact[i], &all->rounded[i]) && right;
            *checks += 1;
        }
        free(all->exact[i].gradient), free(all->rounded[i].gradient);
    }
    free(all);
    return right;
}
