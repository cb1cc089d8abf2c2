/* Models: their layers, the list of parameters and their block, random first values, and what callers ask a model for. */
#include "nn/model.h"
#include "base/error.h"
#include "base/tasks.h"
#include "nn/build.h"
#include "nn/config.h"
#include "nn/describe.h"
#include "nn/layer_list.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- layers --------------------------------------------------------------------------------------------------------- */

/* The kind of layers that are configured like this one, byte for byte, or NULL. Where equal numbers have other bytes between
 * them there is one kind more, and nothing else differs. */
static const dr_layer *find_kind(const dr_model *model, const dr_layer_description *layer) {
    for (int64_t k = 0; k < model->kind_count; k++)
        if (memcmp((const char *)model->kinds[k].description, (const char *)layer, sizeof *layer) == 0) return &model->kinds[k];
    return NULL;
}

static dr_status make_layers(dr_model *model) {
    const dr_description *description = &model->description;
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)description->count * sizeof(dr_layer), "the kinds of layers", &memory));
    model->kinds = memory;
    DR_TRY(dr_allocate_zero((size_t)description->count * sizeof(dr_model_layer), "the list of layers", &memory));
    model->layers = memory;
    for (int64_t i = 0; i < description->count; i++) {
        const dr_layer_description *layer = &description->layers[i];
        model->layers[i].kind = find_kind(model, layer);
        if (model->layers[i].kind) continue;
        dr_layer *kind = &model->kinds[model->kind_count++];
        model->layers[i].kind = kind;
        DR_TRY(dr_layer_build(model->backend, description->hidden, layer, kind));
    }
    return DR_OK;
}

/* The first module that knows of something passed from layer to layer writes it, and no other one; all agree on its size. */
static dr_status check_passed(dr_model *model) {
    for (int64_t i = 0; i < model->description.count; i++)
        for (int p = 0; p < model->layers[i].kind->parts; p++) {
            const dr_module *module = model->layers[i].kind->part[p].module;
            bool writes = false;
            const int64_t columns = module->operations->passed ? module->operations->passed(module, &writes) : 0;
            if (columns == 0) continue;
            if (writes != (model->passed == 0))
                return dr_fail(DR_ERROR_ARGUMENT,
                               writes ? "layer %" PRId64 " passes its value on as a first one; only the first of its kind may"
                                      : "layer %" PRId64 " mixes in the value of a first layer, but there is none before it",
                               i);
            if (model->passed != 0 && model->passed != columns)
                return dr_fail(DR_ERROR_ARGUMENT,
                               "layer %" PRId64 " has values of %" PRId64 " channels, but mixes in a first layer's of %" PRId64,
                               i, columns, model->passed);
            model->passed = columns;
        }
    return DR_OK;
}

/* Whether the backend has what the model and its modules call. */
static dr_status check_operations(const dr_model *model) {
    static const dr_operation own[] = {DR_OPERATION_EMBEDDING,     DR_OPERATION_LINEAR,      DR_OPERATION_ADD,
                                       DR_OPERATION_BOUND,         DR_OPERATION_ROWS_GATHER, DR_OPERATION_ROWS_SCATTER,
                                       DR_OPERATION_CROSS_ENTROPY, DR_OPERATION_SUM_LOSSES,  DR_OPERATION_SUM_SQUARES,
                                       DR_OPERATION_CLIP,          DR_OPERATION_ADAMW,       DR_OPERATIONS};
    DR_TRY(dr_operations_check_backend(own, model->backend));
    for (int64_t k = 0; k < model->kind_count; k++) DR_TRY(dr_layer_check_backend(&model->kinds[k], model->backend));
    DR_TRY(dr_norm_check_backend(&model->embedding_norm, model->backend));
    return dr_norm_check_backend(&model->final_norm, model->backend);
}

/* ---- parameters ----------------------------------------------------------------------------------------------------- */

/* The block must not overflow: its elements, counted in double, stay far below 2^63 bytes. */
static dr_status check_block(const dr_model *model) {
    double elements = 2.0 * (double)model->description.vocabulary * (double)model->description.hidden;
    for (int64_t i = 0; i < model->description.count; i++) elements += (double)model->layers[i].kind->list.elements;
    if (elements <= 0x1p40) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "a model of %g parameters: at most 2^40 are possible; make layers, hidden or vocabulary smaller", elements);
}

/* The embedding stands at the start of the block, the rest behind the layers. */
static dr_status make_trunk(dr_model *model) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0};
    const dr_description *description = &model->description;
    dr_layer_parameters *trunk = &model->trunk;
    trunk->backend = model->backend;
    DR_TRY(dr_add_matrix(trunk, "", "model.embeddings.weight", normal, description->vocabulary, description->hidden, 0,
                         &model->embedding));
    for (int64_t i = 0; i < description->count; i++) {
        model->layers[i].offset = trunk->elements;
        model->layers[i].weights_at = trunk->weight_bytes;
        trunk->elements += model->layers[i].kind->list.elements;
        trunk->weight_bytes += model->layers[i].kind->list.weight_bytes;
    }
    DR_TRY(dr_norm_create(&description->embedding_norm, description->hidden, "model.embedding_norm.", trunk,
                          &model->embedding_norm));
    if (description->residual == DR_RESIDUAL_ATTENTION)
        DR_TRY(dr_depth_query_create(&description->depth_norm, description->hidden, "model.res_", trunk, &model->depth));
    DR_TRY(dr_norm_create(&description->final_norm, description->hidden, "model.norm.", trunk, &model->final_norm));
    model->head = model->embedding;
    if (!description->tied)
        DR_TRY(
            dr_add_matrix(trunk, "", "lm_head.weight", normal, description->vocabulary, description->hidden, 0, &model->head));
    model->block_count = trunk->elements;
    return DR_OK;
}

/* offset, weights_at: where the list that it stands in begins */
static dr_status list_one(dr_model *model, const char *prefix, const dr_layer_parameter *from, int64_t offset,
                          size_t weights_at) {
    dr_parameter *parameter = &model->parameters[model->listed];
    *parameter = (dr_parameter){.rank = from->rank, .offset = -1, .count = from->count, .decays = from->decays};
    if (from->offset >= 0) parameter->offset = offset + from->offset;
    model->weights_at[model->listed] = weights_at + from->weight_at;
    if (snprintf(parameter->name, sizeof parameter->name, "%s%s", prefix, from->name) >= (int)sizeof parameter->name)
        return dr_fail(DR_ERROR_ARGUMENT, "the name of the parameter %s%s is longer than %zu characters", prefix, from->name,
                       sizeof parameter->name - 1);
    memcpy(parameter->shape, from->shape, sizeof from->shape);
    model->initials[model->listed++] = from->initial;
    model->count += from->count;
    return DR_OK;
}

/* In the order of the block. */
static dr_status list_parameters(dr_model *model) {
    const int64_t layers = model->description.count;
    int64_t all = model->trunk.count;
    for (int64_t i = 0; i < layers; i++) all += model->layers[i].kind->list.count;
    void *memory = NULL;
    DR_TRY(dr_allocate_zero((size_t)all * sizeof(dr_parameter), "the list of parameters", &memory));
    model->parameters = memory;
    DR_TRY(dr_allocate_zero((size_t)all * sizeof(dr_initial), "the list of parameters", &memory));
    model->initials = memory;
    DR_TRY(dr_allocate_zero((size_t)all * sizeof(size_t), "the list of parameters", &memory));
    model->weights_at = memory;
    for (int t = 0; t < model->trunk.count; t++) {
        DR_TRY(list_one(model, "", &model->trunk.at[t], 0, 0));
        for (int64_t i = 0; t == model->embedding && i < layers; i++) {
            const dr_layer_parameters *list = &model->layers[i].kind->list;
            char prefix[40];
            snprintf(prefix, sizeof prefix, "model.layers.%" PRId64 ".", i);
            for (int j = 0; j < list->count; j++)
                DR_TRY(list_one(model, prefix, &list->at[j], model->layers[i].offset, model->layers[i].weights_at));
        }
    }
    return DR_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

/* The configuration points to the model's own text, in which every list looks alike. */
static dr_status keep_layer_list(dr_model *model) {
    json_t *list = NULL;
    if (!model->config.layer_list) return DR_OK;
    DR_TRY(dr_layer_list_parse(model->config.layer_list, &list));
    const dr_status status = dr_layer_list_text(list, &model->layer_list);
    json_decref(list);
    model->config.layer_list = model->layer_list;
    return status;
}

static dr_status check_residual(const dr_description *description) {
    switch (description->residual) {
    case DR_RESIDUAL_SUM:
    case DR_RESIDUAL_ATTENTION:
        if (!description->ngrams) return DR_OK;
        return dr_fail(DR_ERROR_UNSUPPORTED, "embeddings of n-grams are not built");
    case DR_RESIDUAL_SINKHORN:
    case DR_RESIDUAL_STREAMS:
        return dr_fail(DR_ERROR_UNSUPPORTED, "several residual streams (hyper-connections) are not built");
    }
    return dr_fail(DR_ERROR_ARGUMENT, "%d is no kind of residual", (int)description->residual);
}

/* model->description and config are filled in. */
static dr_status build(dr_model *model) {
    DR_TRY(check_residual(&model->description));
    DR_TRY(make_layers(model));
    DR_TRY(check_passed(model));
    DR_TRY(check_block(model));
    DR_TRY(make_trunk(model));
    DR_TRY(check_operations(model));
    return list_parameters(model);
}

static dr_status describe_and_build(dr_model *model, const dr_model_config *config) {
    DR_TRY(dr_config_resolve(config, &model->config));
    DR_TRY(keep_layer_list(model));
    DR_TRY(dr_describe(&model->config, &model->description));
    return build(model);
}

static dr_status finish(dr_status status, dr_model *model, dr_model **result) {
    if (status == DR_OK)
        *result = model;
    else
        dr_model_destroy(model);
    return status;
}

dr_status dr_model_build(dr_backend *backend, const dr_model_config *config, dr_model **result) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_model), "a model", &memory));
    dr_model *model = memory;
    model->backend = backend;
    return finish(describe_and_build(model, config), model, result);
}

dr_status dr_model_build_described(dr_backend *backend, dr_description *description, const dr_model_config *config,
                                   dr_model **result) {
    void *memory = NULL;
    const dr_status status = dr_allocate_zero(sizeof(dr_model), "a model", &memory);
    if (status != DR_OK) {
        dr_description_release(description);
        return status;
    }
    dr_model *model = memory;
    *model = (dr_model){.backend = backend, .config = *config, .description = *description};
    *description = (dr_description){0};
    return finish(build(model), model, result);
}

/* Whoever allocates fills in each parameter; the elements between them are zero. What joins another has none behind it, and is
 * filled in all the same. */
static void zero_gaps(const dr_model *model) {
    const dr_operations *ops = model->backend->ops;
    for (int64_t i = 0; i < model->listed; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        if (parameter->offset < 0) continue;
        const int64_t end = parameter->offset + parameter->count, gap = dr_parameter_room(end) - end;
        if (gap > 0)
            ops->zero(model->backend, model->values + dr_kind_bytes(model->backend, DR_NUMBER, end),
                      dr_kind_bytes(model->backend, DR_NUMBER, gap));
    }
}

dr_status dr_model_allocate(dr_model *model) {
    const dr_operations *ops = model->backend->ops;
    void *memory = NULL;
    DR_TRY(ops->allocate(model->backend, dr_kind_bytes(model->backend, DR_NUMBER, model->block_count), &memory));
    model->values = memory;
    zero_gaps(model);
    const bool apart = dr_weights_apart(model->backend);
    if (!apart && !dr_has_copies(model->backend)) return DR_OK;
    const size_t copies = dr_kind_bytes(model->backend, DR_VECTOR, model->block_count);
    DR_TRY(ops->allocate(model->backend, apart ? model->trunk.weight_bytes : copies, &memory));
    model->weights = memory;
    return DR_OK;
}

/* All of a parameter from numbers in host memory. */
static dr_status put(dr_model *model, int64_t index, const void *from) {
    dr_backend *backend = model->backend;
    const dr_parameter *parameter = &model->parameters[index];
    if (parameter->offset >= 0)
        return backend->ops->upload(backend, model->values + dr_kind_bytes(backend, DR_NUMBER, parameter->offset), from,
                                    dr_kind_dtype(backend, DR_NUMBER), parameter->count);
    return dr_model_put_rows(model, index, 0, parameter->count / parameter->shape[parameter->rank - 1], from);
}

enum { VALUES_OF_TASK = 1 << 16, MOST_DRAWING_THREADS = 64 };

/* A parameter whose first values are drawn, some at a time. */
typedef struct {
    const dr_initial *initial;
    double range;
    uint64_t seed;
    const dr_parameter *parameter;
    bool doubles; /* the backend's numbers are, else floats */
    void *numbers;
} drawing;

static dr_status draw_task(void *context, int64_t index) {
    const drawing *d = context;
    const int64_t first = index * VALUES_OF_TASK, left = d->parameter->count - first,
                  count = left < VALUES_OF_TASK ? left : VALUES_OF_TASK;
    if (d->doubles)
        dr_initial_draw_part(d->initial, d->range, d->seed, d->parameter->name, first, count, (double *)d->numbers + first);
    else
        dr_initial_draw_floats(d->initial, d->range, d->seed, d->parameter->name, first, count, (float *)d->numbers + first);
    return DR_OK;
}

/* Those of the backend or, of a device that leaves the host's alone, of the machine. */
static int drawing_threads(const dr_backend *backend) {
    const long processors = backend->ops->device ? sysconf(_SC_NPROCESSORS_ONLN) : backend->threads;
    return processors < 1 ? 1 : processors < MOST_DRAWING_THREADS ? (int)processors : MOST_DRAWING_THREADS;
}

/* Each parameter has a random stream of its own, by its name. */
static dr_status draw_parameters(dr_model *model, uint64_t seed) {
    int64_t longest = 0;
    for (int64_t i = 0; i < model->listed; i++)
        if (model->parameters[i].count > longest) longest = model->parameters[i].count;
    const int threads = drawing_threads(model->backend);
    const bool doubles = dr_kind_dtype(model->backend, DR_NUMBER) == DR_F64;
    void *numbers = NULL;
    dr_status status = dr_allocate(dr_kind_bytes(model->backend, DR_NUMBER, longest), "first values", &numbers);
    for (int64_t i = 0; i < model->listed && status == DR_OK; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        drawing d = {&model->initials[i], model->config.initializer_range, seed, parameter, doubles, numbers};
        status = dr_run_tasks(threads, (parameter->count + VALUES_OF_TASK - 1) / VALUES_OF_TASK, &d, draw_task);
        if (status == DR_OK) status = put(model, i, numbers);
    }
    dr_release(numbers);
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
    if (model->weights) ops->free(model->backend, model->weights);
    for (int64_t i = 0; i < model->kind_count; i++) dr_layer_release(model->backend, &model->kinds[i]);
    dr_release(model->kinds);
    dr_release(model->layers);
    dr_layer_parameters_release(&model->trunk);
    dr_description_release(&model->description);
    dr_release(model->layer_list);
    json_decref(model->published);
    dr_release(model->parameters);
    dr_release(model->initials);
    dr_release(model->weights_at);
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
    if (!model->weights || dr_weights_apart(model->backend)) return DR_OK;
    return model->backend->ops->store_vectors(model->backend, model->block_count, model->values, model->weights);
}

dr_status dr_model_learns(const dr_model *model) {
    if (!dr_weights_apart(model->backend)) return DR_OK;
    return dr_fail(
        DR_ERROR_UNSUPPORTED,
        "a model whose weights are stored as %s is only read: load it on a backend without a type of weights for gradients",
        dr_dtype_name(model->backend->weights));
}

static const char *weight_row(const dr_model *model, int64_t parameter, int64_t row, int64_t columns) {
    return model->weights + model->weights_at[parameter] + dr_weight_bytes(model->backend, row, columns);
}

static int64_t columns_of(const dr_parameter *parameter) {
    return parameter->shape[parameter->rank - 1];
}

dr_status dr_model_elements(const dr_model *model, int64_t parameter, int64_t first, int64_t count, dr_dtype dtype, void *to) {
    const dr_parameter *of = &model->parameters[parameter];
    const dr_operations *ops = model->backend->ops;
    if (of->offset < 0)
        return ops->weights_load(model->backend, columns_of(of), first, count, weight_row(model, parameter, 0, columns_of(of)),
                                 to, dtype);
    return ops->download(model->backend, to, dtype,
                         model->values + dr_kind_bytes(model->backend, DR_NUMBER, of->offset + first), count);
}

dr_status dr_model_put_rows(dr_model *model, int64_t parameter, int64_t row, int64_t rows, const void *from) {
    const int64_t columns = columns_of(&model->parameters[parameter]);
    return model->backend->ops->weights_store(model->backend, rows, columns, from,
                                              (char *)weight_row(model, parameter, row, columns));
}

dr_status dr_model_gradients_create(const dr_model *model, void **gradients) {
    DR_NEED(model);
    DR_NEED(gradients);
    const dr_operations *ops = model->backend->ops;
    DR_TRY(dr_model_learns(model));
    size_t bytes = dr_kind_bytes(model->backend, DR_NUMBER, model->block_count);
    void *memory = NULL;
    DR_TRY(ops->allocate(model->backend, bytes, &memory));
    ops->zero(model->backend, memory, bytes);
    *gradients = memory;
    return DR_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

static dr_module_call call_at(const dr_model *model, const dr_layer_parameters *list, int64_t offset, size_t weights_at,
                              char *gradients) {
    const size_t numbers = dr_kind_bytes(model->backend, DR_NUMBER, offset);
    dr_module_call call = {.backend = model->backend, .list = list->at, .parameters = model->values + numbers};
    const size_t copied = dr_kind_bytes(model->backend, DR_VECTOR, offset);
    call.weights =
        !model->weights ? call.parameters : model->weights + (dr_weights_apart(model->backend) ? weights_at : copied);
    call.gradients = gradients ? gradients + numbers : NULL;
    return call;
}

dr_module_call dr_model_trunk(const dr_model *model, char *gradients) {
    return call_at(model, &model->trunk, 0, 0, gradients);
}

dr_module_call dr_model_layer_call(const dr_model *model, int64_t index, char *gradients) {
    return call_at(model, &model->layers[index].kind->list, model->layers[index].offset, model->layers[index].weights_at,
                   gradients);
}
