/* Models: the list of parameters and their block, random first values, and what callers ask a model for. */
#include "nn/model.h"
#include "base/error.h"
#include "nn/config.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- parameters ----------------------------------------------------------------------------------------------------- */

static void list_parameter(dr_model *model, const char *name, const dr_slot *slot, int64_t offset) {
    dr_parameter *parameter = &model->parameters[model->listed];
    *parameter = (dr_parameter){.rank = slot->rank, .offset = offset, .count = slot->count, .decays = slot->decays};
    snprintf(parameter->name, sizeof parameter->name, "%s", name);
    memcpy(parameter->shape, slot->shape, sizeof slot->shape);
    model->initials[model->listed++] = slot->initial;
    model->count += slot->count;
}

static int64_t list_model_parameter(dr_model *model, const char *name, dr_slot slot) {
    int64_t offset = model->block_count;
    list_parameter(model, name, &slot, offset);
    model->block_count += (slot.count + DR_OFFSET_UNIT - 1) / DR_OFFSET_UNIT * DR_OFFSET_UNIT;
    return offset;
}

static int roles_present(const dr_mixer *mixer) {
    int present = 0;
    for (int role = 0; role < DR_ROLES; role++) present += mixer->slot[role].count > 0;
    return present;
}

static dr_slot matrix(int64_t rows, int64_t columns) {
    return (dr_slot){
        .initial = {DR_INITIAL_NORMAL, 0}, .decays = true, .rank = 2, .shape = {rows, columns}, .count = rows * columns};
}

static dr_status list_parameters(dr_model *model) {
    const dr_model_config *config = &model->config;
    dr_slot vector = {.initial = {DR_INITIAL_CONSTANT, 1}, .rank = 1, .shape = {config->hidden}, .count = config->hidden};
    int64_t present = roles_present(&model->mixer), all = config->layers * present + 3;
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)all * sizeof(dr_parameter), "the list of parameters", &memory));
    model->parameters = memory;
    DR_TRY(dr_allocate_zero((size_t)all * sizeof(dr_initial), "the list of parameters", &memory));
    model->initials = memory;
    model->layer_stride = dr_slots_place(model->mixer.slot);
    list_model_parameter(model, "model.embeddings.weight", matrix(config->vocabulary, config->hidden));
    model->first_layer = model->block_count;
    for (int64_t i = 0; i < config->layers; i++) {
        for (int role = 0; role < DR_ROLES; role++) {
            const dr_slot *slot = &model->mixer.slot[role];
            char name[sizeof model->parameters->name];
            if (slot->count == 0) continue;
            snprintf(name, sizeof name, "model.layers.%" PRId64 ".%s", i, slot->name);
            list_parameter(model, name, slot, model->block_count + slot->offset);
        }
        model->block_count += model->layer_stride;
    }
    model->final_norm = list_model_parameter(model, "model.norm.weight", vector);
    if (!config->tied) model->head = list_model_parameter(model, "lm_head.weight", matrix(config->vocabulary, config->hidden));
    return DR_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

/* The block must not overflow: its elements, counted in double, stay far below 2^63 bytes. */
static dr_status check_block(const dr_model_config *config, int64_t layer) {
    double elements = (double)config->layers * (double)layer + 2.0 * (double)config->vocabulary * (double)config->hidden;
    if (elements <= 0x1p40) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "a model of %g parameters: at most 2^40 are possible; make layers, hidden or vocabulary smaller", elements);
}

/* A model may need any operation of its layers, whatever its rule. */
static dr_status check_backend(const dr_backend *backend) {
    static const dr_operation needed[] = {DR_OPERATION_LINEAR,       DR_OPERATION_GROUPED_LINEAR, DR_OPERATION_EMBEDDING,
                                          DR_OPERATION_RMS_NORM,     DR_OPERATION_L2_NORM,        DR_OPERATION_CONV,
                                          DR_OPERATION_GATE,         DR_OPERATION_ROTARY,         DR_OPERATION_SWIGLU,
                                          DR_OPERATION_ADD,          DR_OPERATION_SCALE_HEADS,    DR_OPERATION_ROWS_GATHER,
                                          DR_OPERATION_ROWS_SCATTER, DR_OPERATION_CROSS_ENTROPY,  DR_OPERATION_SUM_LOSSES,
                                          DR_OPERATION_SUM_SQUARES,  DR_OPERATION_CLIP,           DR_OPERATION_ADAMW};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!dr_supports(backend, needed[i]))
            return dr_fail(
                DR_ERROR_UNSUPPORTED,
                "backend %s does not compute networks (it has no %s): models train, score and generate on backend cpu "
                "or reference",
                backend->ops->name, dr_operation_name(needed[i]));
    return DR_OK;
}

dr_status dr_model_build(dr_backend *backend, const dr_model_config *config, dr_model **result) {
    void *memory = NULL;
    dr_status status = DR_OK;
    DR_TRY(check_backend(backend));
    DR_TRY(dr_allocate_zero(sizeof(dr_model), "a model", &memory));
    dr_model *model = memory;
    model->backend = backend;
    DR_GO(dr_config_resolve(config, &model->config));
    DR_GO(dr_mixer_create(backend, &model->config, &model->mixer));
    DR_GO(dr_block_add_parameters(&model->mixer, model->config.intermediate));
    DR_GO(check_block(&model->config, dr_slots_place(model->mixer.slot)));
    DR_GO(list_parameters(model));
    *result = model;
    return DR_OK;
done:
    dr_model_destroy(model);
    return status;
}

dr_status dr_model_allocate(dr_model *model) {
    const dr_operations *ops = model->backend->ops;
    size_t bytes = dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
    void *memory = NULL;
    DR_TRY(ops->allocate(model->backend, bytes, &memory));
    model->values = memory;
    ops->zero(model->backend, model->values, bytes);
    if (!dr_has_copies(model->backend)) return DR_OK;
    DR_TRY(ops->allocate(model->backend, dr_kind_bytes(model->backend, DR_VECTOR, model->block_count), &memory));
    model->copies = memory;
    return DR_OK;
}

/* Each parameter has a random stream of its own, so values depend on the seed and the place in the list alone. */
static dr_status draw_parameters(dr_model *model, uint64_t seed) {
    const dr_operations *ops = model->backend->ops;
    int64_t longest = 0;
    for (int64_t i = 0; i < model->listed; i++)
        if (model->parameters[i].count > longest) longest = model->parameters[i].count;
    void *host = NULL;
    DR_TRY(dr_allocate((size_t)longest * sizeof(double), "first values", &host));
    dr_status status = DR_OK;
    for (int64_t i = 0; i < model->listed && status == DR_OK; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        dr_initial_draw(&model->initials[i], model->config.initializer_range, seed, (uint64_t)i, parameter->count, host);
        status = ops->upload(model->backend, model->values + dr_kind_bytes(model->backend, DR_NUMBER, parameter->offset), host,
                             DR_F64, parameter->count);
    }
    dr_release(host);
    return status == DR_OK ? dr_model_changed(model) : status;
}

dr_status dr_model_create(dr_backend *backend, const dr_model_config *config, uint64_t seed, dr_model **model) {
    dr_model *made = NULL;
    DR_NEED(backend);
    DR_NEED(config);
    DR_NEED(model);
    DR_TRY(dr_model_build(backend, config, &made));
    dr_status status = dr_model_allocate(made);
    if (status == DR_OK) status = draw_parameters(made, seed);
    if (status != DR_OK) {
        dr_model_destroy(made);
        return status;
    }
    *model = made;
    return DR_OK;
}

void dr_model_destroy(dr_model *model) {
    if (!model) return;
    const dr_operations *ops = model->backend->ops;
    if (model->values) ops->free(model->backend, model->values);
    if (model->copies) ops->free(model->backend, model->copies);
    dr_mixer_destroy(model->backend, &model->mixer);
    dr_release(model->parameters);
    dr_release(model->initials);
    for (int64_t i = 0; i < model->ignored_count; i++) dr_release(model->ignored[i]);
    dr_release(model->ignored);
    dr_release(model);
}

/* ---- what it has ---------------------------------------------------------------------------------------------------- */

int64_t dr_model_ignored_count(const dr_model *model) {
    return model ? model->ignored_count : 0;
}

const char *dr_model_ignored_name(const dr_model *model, int64_t index) {
    return model && index >= 0 && index < model->ignored_count ? model->ignored[index] : NULL;
}

const dr_model_config *dr_model_get_config(const dr_model *model) {
    return model ? &model->config : NULL;
}

dr_backend *dr_model_backend(const dr_model *model) {
    return model ? model->backend : NULL;
}

int64_t dr_model_parameters(const dr_model *model, const dr_parameter **parameters) {
    if (parameters) *parameters = model ? model->parameters : NULL;
    return model ? model->listed : 0;
}

int64_t dr_model_parameter_count(const dr_model *model) {
    return model ? model->count : 0;
}

int64_t dr_model_block_count(const dr_model *model) {
    return model ? model->block_count : 0;
}

void *dr_model_parameter_block(dr_model *model) {
    return model ? model->values : NULL;
}

dr_status dr_model_changed(dr_model *model) {
    DR_NEED(model);
    if (!model->copies) return DR_OK;
    return model->backend->ops->store_vectors(model->backend, model->block_count, model->values, model->copies);
}

dr_status dr_model_gradients_create(const dr_model *model, void **gradients) {
    DR_NEED(model);
    DR_NEED(gradients);
    const dr_operations *ops = model->backend->ops;
    size_t bytes = dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
    void *memory = NULL;
    DR_TRY(ops->allocate(model->backend, bytes, &memory));
    ops->zero(model->backend, memory, bytes);
    *gradients = memory;
    return DR_OK;
}
