/* Which model a state is of: a hash of the configuration as config.json would say it and of every parameter's name, shape and
 * numbers; and the hash of the tokens that a sequence has read. */
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "nn/config.h"
#include "nn/model.h"

#include <stdlib.h>

enum { PIECE = 1 << 14 }; /* elements that are taken to the host at once */

static dr_status hash_configuration(const dr_model *model, uint64_t *hash) {
    json_t *object = model->published ? json_incref(model->published) : dr_config_write(&model->config, "float32");
    char *text = object ? dr_json_format(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    if (!text) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the configuration's JSON");
    *hash = dr_hash_bytes(*hash, text, strlen(text));
    free(text);
    return DR_OK;
}

static dr_status hash_parameter(const dr_model *model, int64_t index, float *piece, uint64_t *hash) {
    const dr_parameter *parameter = &model->parameters[index];
    *hash = dr_hash_bytes(*hash, parameter->name, strlen(parameter->name));
    for (int i = 0; i < parameter->rank; i++) *hash = dr_hash_word(*hash, (uint64_t)parameter->shape[i]);
    for (int64_t from = 0; from < parameter->count; from += PIECE) {
        const int64_t left = parameter->count - from, count = left < PIECE ? left : PIECE;
        DR_TRY(dr_model_elements(model, index, from, count, DR_F32, piece));
        *hash = dr_hash_bytes(*hash, piece, (size_t)count * sizeof *piece);
    }
    return DR_OK;
}

dr_status dr_model_identity(const dr_model *model, uint64_t *identity) {
    void *piece = NULL;
    uint64_t hash = DR_HASH_START;
    DR_NEED(model);
    DR_NEED(identity);
    DR_TRY(hash_configuration(model, &hash));
    if (dr_weights_apart(model->backend)) hash = dr_hash_word(hash, (uint64_t)model->backend->weights);
    DR_TRY(dr_allocate(PIECE * sizeof(float), "a model's identity", &piece));
    dr_status status = DR_OK;
    for (int64_t i = 0; i < model->listed && status == DR_OK; i++) status = hash_parameter(model, i, piece, &hash);
    dr_release(piece);
    if (status == DR_OK) *identity = hash;
    return status;
}

uint64_t dr_tokens_hash(const int32_t *ids, int64_t count) {
    uint64_t hash = DR_HASH_START;
    for (int64_t i = 0; ids && i < count; i++) hash = dr_hash_word(hash, (uint64_t)ids[i]);
    return hash;
}
