/* From a model and a text to the streams of its layers, and to the figures of a kind. */
#include "check/probe/probe.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"
#include "nn/observe.h"

#include <math.h>
#include <string.h>

enum { KINDS = 3 };

static const dr_probe_kind_entry *const kinds[KINDS] = {&dr_probe_value, &dr_probe_preconditioner, &dr_probe_erase};

const char *dr_probe_kind(int index) {
    return index >= 0 && index < KINDS ? kinds[index]->name : NULL;
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

const double *dr_probe_input(const dr_probe_layer *layer, dr_input input, int64_t token, int64_t value_head) {
    int64_t shape[DR_MAX_RANK];
    const dr_recurrence *recurrence = &layer->recurrence;
    const int rank = dr_recurrence_input_shape(recurrence, input, shape);
    const bool each_token = input != DR_INPUT_CORRECTION && input != DR_INPUT_SCAN_CENTRE && input != DR_INPUT_RIDGE &&
                            !(input == DR_INPUT_LOG_DECAY && recurrence->rule->decay == DR_DECAY_CONSTANT);
    const int64_t *sizes = each_token ? shape + 1 : shape;
    const int left = each_token ? rank - 1 : rank;
    const int64_t heads = sizes[0], dim = left > 1 ? sizes[1] : 1;
    const int64_t head = value_head / (recurrence->value_heads / heads);
    return layer->at[input] + ((each_token ? token : 0) * heads + head) * dim;
}

double dr_probe_decay(const dr_probe_layer *layer, int64_t token, int64_t value_head, int64_t channel) {
    const dr_decay decay = layer->recurrence.rule->decay;
    if (decay == DR_DECAY_NONE) return 1;
    const double *log_decay = dr_probe_input(layer, DR_INPUT_LOG_DECAY, token, value_head);
    return exp(decay == DR_DECAY_CHANNEL ? log_decay[channel] : *log_decay);
}

static dr_status take_input(dr_backend *backend, const dr_observed *observed, dr_input input, dr_probe_layer *layer) {
    int64_t shape[DR_MAX_RANK], count;
    void *memory;
    const int rank = dr_recurrence_input_shape(&observed->recurrence, input, shape);
    if (!dr_product(shape, rank, &count)) return dr_fail(DR_ERROR_MEMORY, "an input of the recurrence is too large");
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "the streams of a layer", &memory));
    layer->at[input] = memory;
    return dr_backend_download_as(backend, memory, DR_F64, observed->inputs.at[input],
                                  dr_recurrence_input_dtype(backend, input), count);
}

dr_status dr_probe_run(const dr_probe_kind_entry *kind, const dr_probe_layer *layer, const dr_probe_listener *listener) {
    dr_probe_samples samples[DR_PROBE_MOST_FIGURES] = {{0}};
    dr_status status = DR_OK;
    for (int64_t j = 0; j < layer->recurrence.value_heads && status == DR_OK; j++) status = kind->run_head(layer, j, samples);
    for (int i = 0; i < kind->count; i++) {
        const dr_status told = dr_probe_tell(listener, layer->layer, kind->figures[i], &samples[i]);
        if (status == DR_OK) status = told;
    }
    return status;
}

static dr_status probe_layer(dr_backend *backend, int64_t index, const dr_observed *observed, const dr_probe_kind_entry *kind,
                             const dr_probe_listener *listener) {
    dr_probe_layer layer = {.layer = index, .tokens = observed->recurrence.layout.rows, .recurrence = observed->recurrence};
    dr_status status = DR_OK;
    for (int input = 0; input < DR_INPUTS && status == DR_OK; input++)
        if (observed->inputs.at[input]) status = take_input(backend, observed, (dr_input)input, &layer);
    if (status == DR_OK) status = dr_probe_run(kind, &layer, listener);
    for (int input = 0; input < DR_INPUTS; input++) dr_release(layer.at[input]);
    return status;
}

/* ---- a probe -------------------------------------------------------------------------------------------------------- */

static dr_status find_kind(const char *name, const dr_probe_kind_entry **kind) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i]->name, name) == 0) {
            *kind = kinds[i];
            return DR_OK;
        }
    return dr_fail(DR_ERROR_ARGUMENT, "there is no probe '%s': value, preconditioner and erase are those there are", name);
}

static dr_status run_kind(const dr_model *model, const dr_probe_kind_entry *kind, const int32_t *ids, int64_t count,
                          const dr_probe_listener *listener) {
    dr_session *session;
    int64_t probed = 0;
    DR_TRY(dr_session_create(model, &session));
    dr_status status = dr_observe(session, ids, count);
    for (int64_t i = 0; i < dr_model_get_config(model)->layers && status == DR_OK; i++) {
        dr_observed observed;
        if (!dr_observed_layer(session, i, &observed) || !kind->applies(observed.recurrence.rule)) continue;
        status = probe_layer(dr_model_backend(model), i, &observed, kind, listener);
        probed++;
    }
    dr_session_destroy(session);
    if (status != DR_OK || probed > 0) return status;
    return dr_fail(DR_ERROR_UNSUPPORTED, "probe %s: no layer of the model has %s", kind->name, kind->of);
}

dr_status dr_probe(const dr_model *model, const char *kind, const char *text, size_t bytes, int64_t tokens,
                   const dr_tokenizer *tokenizer, void (*figure)(void *context, const dr_probe_figure *figure), void *context) {
    DR_NEED(model);
    DR_NEED(kind);
    DR_NEED(text);
    DR_NEED(figure);
    const dr_probe_kind_entry *found = NULL;
    const dr_probe_listener listener = {figure, context};
    int32_t *ids = NULL;
    int64_t count = 0;
    DR_TRY(find_kind(kind, &found));
    if (tokens < 2) return dr_fail(DR_ERROR_ARGUMENT, "tokens is %lld: a probe needs 2 or more", (long long)tokens);
    DR_TRY(dr_vocabulary_check(dr_model_get_config(model)->vocabulary, tokenizer));
    dr_status status = dr_text_ids(tokenizer, text, bytes, DR_TEXT_WHOLE, &ids, &count);
    if (count > tokens) count = tokens;
    if (status == DR_OK && count < 2)
        status = dr_fail(DR_ERROR_ARGUMENT, "a probe needs two tokens or more, and the text has %lld", (long long)count);
    if (status == DR_OK) status = run_kind(model, found, ids, count, &listener);
    dr_release(ids);
    return status;
}
