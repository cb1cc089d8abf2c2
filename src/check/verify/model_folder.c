#include "check/verify/model_folder.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "formats/json.h"
#include "formats/safetensors.h"

#include <deltarule/model.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const dr_way_names[DR_WAYS] = {"whole", "steps", "parts", "packed"};

enum { SEQUENCES = 2 };

static const char EXPECTED_FILE[] = "expected.safetensors", CONFIG_FILE[] = "config.json";

typedef struct {
    dr_safetensors *file;
    int64_t tokens, vocabulary;
    int32_t *ids;     /* [SEQUENCES, tokens] */
    dr_tensor logits; /* [SEQUENCES, tokens, vocabulary] */
    double loss;      /* NaN: not recorded */
    int64_t prompt, greedy;
    int32_t *prompts, *continuations; /* [SEQUENCES, prompt], [SEQUENCES, greedy] */
} expected;

static dr_status join(const char *folder, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the path of the folder %s is too long", folder);
}

bool dr_is_model_folder(const char *folder) {
    char path[PATH_MAX];
    return join(folder, CONFIG_FILE, path) == DR_OK && access(path, F_OK) == 0 && join(folder, EXPECTED_FILE, path) == DR_OK &&
           access(path, F_OK) == 0;
}

/* ---- what is expected -------------------------------------------------------------------------------------------------- */

/* Ids [SEQUENCES, *count] as int32. */
static dr_status read_ids(const dr_safetensors *file, const char *name, int64_t *count, int32_t **ids) {
    dr_tensor tensor;
    void *memory = NULL;
    if (!dr_safetensors_find(file, name, &tensor) || tensor.dtype != DR_I64 || tensor.rank != 2 || tensor.shape[0] != SEQUENCES)
        return dr_fail(DR_ERROR_FORMAT, "it has no I64 tensor %s of two sequences", name);
    *count = tensor.shape[1];
    DR_TRY(dr_allocate((size_t)(SEQUENCES * *count) * sizeof(int32_t), "recorded tokens", &memory));
    *ids = memory;
    for (int64_t i = 0; i < SEQUENCES * *count; i++) (*ids)[i] = (int32_t)dr_tensor_element(&tensor, i);
    return DR_OK;
}

static dr_status read_expected(expected *e) {
    DR_TRY(read_ids(e->file, "input_ids", &e->tokens, &e->ids));
    if (e->tokens < 4) return dr_fail(DR_ERROR_FORMAT, "its sequences have fewer than four tokens");
    if (!dr_safetensors_find(e->file, "logits", &e->logits) || e->logits.rank != 3 || e->logits.shape[0] != SEQUENCES ||
        e->logits.shape[1] != e->tokens)
        return dr_fail(DR_ERROR_FORMAT, "it has no logits of the sequences");
    e->vocabulary = e->logits.shape[2];
    const char *loss = dr_safetensors_metadata(e->file, "loss");
    e->loss = (double)NAN;
    if (loss && !dr_number_parse(loss, DR_NUMBER_ANY, &e->loss)) return dr_fail(DR_ERROR_FORMAT, "its \"loss\" is no number");
    if (dr_safetensors_index(e->file, "greedy") < 0) return DR_OK;
    DR_TRY(read_ids(e->file, "greedy_prompt", &e->prompt, &e->prompts));
    return read_ids(e->file, "greedy", &e->greedy, &e->continuations);
}

static dr_status open_expected(const char *folder, expected *e) {
    char path[PATH_MAX];
    *e = (expected){0};
    DR_TRY(join(folder, EXPECTED_FILE, path));
    DR_TRY(dr_safetensors_open(path, &e->file));
    const dr_status status = read_expected(e);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", path);
}

static void close_expected(expected *e) {
    dr_release(e->ids);
    dr_release(e->prompts);
    dr_release(e->continuations);
    dr_safetensors_close(e->file);
}

/* Exact arithmetic is within 3e-6 of the folders with continuations, within 3e-5 of the older ones; mesa_net's logits were made
 * with products of half precision, from which exact arithmetic is 1e-3 away. */
static dr_status set_tolerances(const char *folder, const expected *e, dr_model_result *result) {
    char path[PATH_MAX];
    json_t *config = NULL;
    DR_TRY(join(folder, CONFIG_FILE, path));
    DR_TRY(dr_json_read(path, &config));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const bool half = type && strcmp(type, "mesa_net") == 0;
    result->logits_most = half ? 5e-3 : e->greedy > 0 ? 1e-5 : 1e-4;
    result->loss_most = half ? 1e-4 : e->greedy > 0 ? 1e-6 : 1e-5;
    json_decref(config);
    return DR_OK;
}

/* ---- what is computed -------------------------------------------------------------------------------------------------- */

typedef struct {
    const expected *e;
    const dr_model *model;
    dr_session *session;
    dr_model_state *state; /* of SEQUENCES */
    double *logits;        /* [SEQUENCES, tokens, vocabulary] */
    double *some;          /* of a call, likewise */
    int32_t *ids;          /* of a call, [SEQUENCES tokens] */
    float *step;           /* [SEQUENCES, vocabulary] */
} work;

static double *row_of(const work *w, int64_t sequence, int64_t token) {
    return w->logits + (sequence * w->e->tokens + token) * w->e->vocabulary;
}

/* Tokens first[s] .. first[s] + count[s] - 1 of each sequence in one call. state: carried on, or NULL. */
static dr_status run_call(work *w, const int64_t first[SEQUENCES], const int64_t count[SEQUENCES], dr_model_state *state) {
    const expected *e = w->e;
    const int64_t bounds[SEQUENCES + 1] = {0, count[0], count[0] + count[1]};
    const bool even = count[0] == count[1];
    for (int s = 0; s < SEQUENCES; s++)
        memcpy(w->ids + bounds[s], e->ids + s * e->tokens + first[s], (size_t)count[s] * sizeof(int32_t));
    const dr_batch batch = {.layout = {SEQUENCES, bounds[SEQUENCES], even ? NULL : bounds},
                            .ids = w->ids,
                            .targets = bounds[SEQUENCES],
                            .labels = w->ids};
    DR_TRY(dr_session_logits(w->session, &batch, state, DR_F64, w->some));
    for (int s = 0; s < SEQUENCES; s++)
        memcpy(row_of(w, s, first[s]), w->some + bounds[s] * e->vocabulary,
               (size_t)(count[s] * e->vocabulary) * sizeof(double));
    return DR_OK;
}

/* One token a call from first[s] on, to the end of both; a sequence that has ended goes on with its last token. */
static dr_status run_steps(work *w, const int64_t first[SEQUENCES]) {
    const expected *e = w->e;
    const int64_t least = first[0] < first[1] ? first[0] : first[1];
    for (int64_t t = 0; t < e->tokens - least; t++) {
        int32_t ids[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++)
            ids[s] = e->ids[s * e->tokens + (first[s] + t < e->tokens ? first[s] + t : e->tokens - 1)];
        DR_TRY(dr_model_step(w->model, ids, w->state, w->step));
        for (int s = 0; s < SEQUENCES; s++)
            for (int64_t v = 0; first[s] + t < e->tokens && v < e->vocabulary; v++)
                row_of(w, s, first[s] + t)[v] = (double)w->step[s * e->vocabulary + v];
    }
    return DR_OK;
}

static dr_status run_way(work *w, dr_way way) {
    const int64_t T = w->e->tokens, none[SEQUENCES] = {0, 0}, all[SEQUENCES] = {T, T};
    const int64_t half[SEQUENCES] = {T / 2, T / 2}, rest[SEQUENCES] = {T - T / 2, T - T / 2},
                  unlike[SEQUENCES] = {T / 2, T / 4};
    dr_model_state_reset(w->state);
    switch (way) {
    case DR_WAY_WHOLE:
        return run_call(w, none, all, NULL);
    case DR_WAY_STEPS:
        return run_steps(w, none);
    case DR_WAY_PARTS:
        DR_TRY(run_call(w, none, half, w->state));
        return run_call(w, half, rest, w->state);
    case DR_WAY_PACKED:
        DR_TRY(run_call(w, none, unlike, w->state));
        return run_steps(w, unlike);
    case DR_WAYS:
        break;
    }
    return DR_OK;
}

static double error_of(const work *w) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < SEQUENCES * w->e->tokens * w->e->vocabulary; i++) {
        const double wanted = dr_tensor_element(&w->e->logits, i), apart = w->logits[i] - wanted;
        difference += apart * apart;
        norm += wanted * wanted;
    }
    return sqrt(difference / norm);
}

/* Mean of -ln softmax at the next token. */
static double loss_of(const work *w) {
    const expected *e = w->e;
    double sum = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t + 1 < e->tokens; t++) {
            const double *row = row_of(w, s, t);
            double most = row[0], parts = 0;
            for (int64_t v = 1; v < e->vocabulary; v++) most = fmax(most, row[v]);
            for (int64_t v = 0; v < e->vocabulary; v++) parts += exp(row[v] - most);
            sum += most + log(parts) - row[e->ids[s * e->tokens + t + 1]];
        }
    return sum / (double)(SEQUENCES * (e->tokens - 1));
}

static int32_t likeliest(const double *row, int64_t count) {
    int64_t best = 0;
    for (int64_t v = 1; v < count; v++)
        if (row[v] > row[best]) best = v;
    return (int32_t)best;
}

/* The tokens behind the prompts, each sequence by itself until it differs. */
static dr_status run_greedy(work *w, int64_t *matched) {
    const expected *e = w->e;
    const dr_batch batch = {.layout = {SEQUENCES, SEQUENCES * e->prompt, NULL},
                            .ids = e->prompts,
                            .targets = SEQUENCES,
                            .positions = (const int64_t[SEQUENCES]){e->prompt - 1, 2 * e->prompt - 1},
                            .labels = e->prompts};
    int32_t ids[SEQUENCES];
    *matched = 0;
    dr_model_state_reset(w->state);
    DR_TRY(dr_session_logits(w->session, &batch, w->state, DR_F64, w->some));
    for (int64_t t = 0; t < e->greedy; t++) {
        for (int s = 0; s < SEQUENCES; s++) {
            ids[s] = likeliest(w->some + s * e->vocabulary, e->vocabulary);
            if (ids[s] != e->continuations[s * e->greedy + t]) return DR_OK;
            ++*matched;
        }
        DR_TRY(dr_model_step(w->model, ids, w->state, w->step));
        for (int64_t i = 0; i < SEQUENCES * e->vocabulary; i++) w->some[i] = (double)w->step[i];
    }
    return DR_OK;
}

static dr_status make_work(work *w) {
    const expected *e = w->e;
    const int64_t tokens = e->tokens > e->prompt ? e->tokens : e->prompt;
    void *memory = NULL;
    DR_TRY(dr_session_create(w->model, &w->session));
    DR_TRY(dr_model_state_create(w->model, SEQUENCES, &w->state));
    DR_TRY(dr_allocate((size_t)(SEQUENCES * tokens * e->vocabulary) * sizeof(double), "logits", &memory));
    w->logits = memory;
    DR_TRY(dr_allocate((size_t)(SEQUENCES * tokens * e->vocabulary) * sizeof(double), "logits", &memory));
    w->some = memory;
    DR_TRY(dr_allocate((size_t)(SEQUENCES * tokens) * sizeof(int32_t), "tokens", &memory));
    w->ids = memory;
    DR_TRY(dr_allocate((size_t)(SEQUENCES * e->vocabulary) * sizeof(float), "logits", &memory));
    w->step = memory;
    return DR_OK;
}

static dr_status run_all(work *w, dr_model_result *result) {
    if (dr_model_get_config(w->model)->vocabulary != w->e->vocabulary)
        return dr_fail(DR_ERROR_FORMAT, "%s has logits of another vocabulary", EXPECTED_FILE);
    for (int64_t i = 0; i < SEQUENCES * w->e->tokens; i++)
        if (w->e->ids[i] < 0 || w->e->ids[i] >= w->e->vocabulary)
            return dr_fail(DR_ERROR_FORMAT, "%s has an id outside of the vocabulary", EXPECTED_FILE);
    DR_TRY(make_work(w));
    result->passed = true;
    for (int way = 0; way < DR_WAYS; way++) {
        DR_TRY(run_way(w, (dr_way)way));
        result->logits[way] = error_of(w);
        if (way == DR_WAY_WHOLE && !isnan(w->e->loss)) result->loss = fabs(loss_of(w) / w->e->loss - 1);
        result->passed &= result->logits[way] <= result->logits_most; /* a NaN is not */
    }
    result->passed &= result->loss <= result->loss_most;
    result->greedy = SEQUENCES * w->e->greedy;
    if (result->greedy > 0) DR_TRY(run_greedy(w, &result->matched));
    result->passed &= result->matched == result->greedy;
    return DR_OK;
}

dr_status dr_model_folder_check(dr_backend *backend, const char *folder, dr_model_result *result) {
    expected e;
    dr_model *model = NULL;
    *result = (dr_model_result){0};
    dr_status status = open_expected(folder, &e);
    work w = {.e = &e};
    if (status == DR_OK) status = set_tolerances(folder, &e, result);
    if (status == DR_OK) status = dr_model_load(backend, folder, &model);
    w.model = model;
    if (status == DR_OK) status = run_all(&w, result);
    dr_release(w.logits);
    dr_release(w.some);
    dr_release(w.ids);
    dr_release(w.step);
    dr_model_state_destroy(w.state);
    dr_session_destroy(w.session);
    dr_model_destroy(model);
    close_expected(&e);
    return status;
}
