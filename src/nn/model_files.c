/* Reading and writing `config.json` and `model.safetensors` in the Hugging Face layout.
 *
 * A file is not trusted: the configuration is checked first, then the list of tensors against the parameters that it asks for,
 * and only then is memory taken for them. Weights are written in the backend's type, so a saved model is the same to the bit;
 * they are read from any floating type. Tensors that have no place in the model are refused, but for tables that are no weights
 * and a tied head that equals the embedding: those are passed over and named. */
#include "nn/model_files.h"
#include "base/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/weights.h"
#include "nn/config.h"
#include "nn/model.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char CONFIG_FILE[] = "config.json", WEIGHTS_FILE[] = "model.safetensors";

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static dr_status write_config(const dr_model *model, dr_folder *change) {
    bool wide = model->backend->ops->dtype == DR_F64;
    json_t *object = dr_config_write(&model->config, wide ? "float64" : "float32");
    if (!object) return dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", CONFIG_FILE);
    dr_status status = dr_json_write(dr_folder_path(change, CONFIG_FILE), object);
    json_decref(object);
    return status;
}

static dr_status read_parameter(void *context, int64_t index, int64_t first, int64_t count, void *to) {
    const dr_model *model = context;
    const dr_operations *ops = model->backend->ops;
    int64_t begin = model->parameters[index].offset + first;
    return ops->download(model->backend, to, ops->dtype, model->values + dr_kind_bytes(model->backend, DR_NUMBER, begin),
                         count);
}

static dr_status write_weights(const dr_model *model, dr_folder *change) {
    static const char *const metadata[] = {"format", "pt", NULL};
    void *names_memory = NULL, *tensors_memory = NULL;
    dr_status status = DR_OK;
    DR_GO(dr_allocate((size_t)model->listed * sizeof(char *), "names of tensors", &names_memory));
    DR_GO(dr_allocate((size_t)model->listed * sizeof(dr_tensor), "tensors", &tensors_memory));
    const char **names = names_memory;
    dr_tensor *tensors = tensors_memory;
    for (int64_t i = 0; i < model->listed; i++) {
        const dr_parameter *parameter = &model->parameters[i];
        names[i] = parameter->name;
        tensors[i] = (dr_tensor){.dtype = model->backend->ops->dtype, .rank = parameter->rank};
        memcpy(tensors[i].shape, parameter->shape, sizeof parameter->shape);
    }
    DR_GO(dr_safetensors_write_from(dr_folder_path(change, WEIGHTS_FILE), model->listed, names, tensors, metadata,
                                    read_parameter, (void *)model));
done:
    dr_release(names_memory);
    dr_release(tensors_memory);
    return status;
}

dr_status dr_model_write(const dr_model *model, dr_folder *change) {
    DR_TRY(write_config(model, change));
    return write_weights(model, change);
}

dr_status dr_model_save(const dr_model *model, const char *folder) {
    DR_NEED(model);
    DR_NEED(folder);
    dr_folder *change = NULL;
    DR_TRY(dr_folder_begin(folder, &change));
    dr_status status = dr_model_write(model, change);
    if (status == DR_OK) return dr_folder_commit(change);
    dr_folder_abandon(change);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static void write_shape(char *text, size_t size, int rank, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static const char EMBEDDING[] = "model.embeddings.weight", HEAD[] = "lm_head.weight";

/* The tensor of a parameter. A tied model may be stored by its head alone: the two names are of one matrix. */
static bool find_tensor(const dr_model *model, const dr_weights *weights, const dr_parameter *parameter, dr_tensor *tensor) {
    if (dr_weights_find(weights, parameter->name, tensor)) return true;
    return model->config.tied && strcmp(parameter->name, EMBEDDING) == 0 && dr_weights_find(weights, HEAD, tensor);
}

static dr_status check_tensor(const dr_model *model, const dr_weights *weights, const dr_parameter *parameter) {
    dr_tensor tensor;
    char found[128], wanted[128];
    write_shape(wanted, sizeof wanted, parameter->rank, parameter->shape);
    if (!find_tensor(model, weights, parameter, &tensor))
        return dr_fail(DR_ERROR_FORMAT, "the tensor %s of shape %s is missing", parameter->name, wanted);
    if (tensor.dtype != DR_F32 && tensor.dtype != DR_F64 && tensor.dtype != DR_F16 && tensor.dtype != DR_BF16)
        return dr_fail(DR_ERROR_FORMAT, "the tensor %s is of type %s; it must be F32, F64, F16 or BF16", parameter->name,
                       dr_dtype_name(tensor.dtype));
    write_shape(found, sizeof found, tensor.rank, tensor.shape);
    if (tensor.rank != parameter->rank || memcmp(tensor.shape, parameter->shape, (size_t)tensor.rank * sizeof(int64_t)) != 0)
        return dr_fail(DR_ERROR_FORMAT, "the tensor %s has the shape %s; the configuration asks for %s", parameter->name, found,
                       wanted);
    return DR_OK;
}

static bool is_listed(const dr_model *model, const char *name) {
    for (int64_t i = 0; i < model->listed; i++)
        if (strcmp(model->parameters[i].name, name) == 0) return true;
    return false;
}

/* Tables that modules of other programs compute from their settings and may store: positions, angles, masks. None is a weight,
 * and no layer here reads one. Compared with the last part of a tensor's name. */
static bool is_buffer(const char *name) {
    static const char *const buffers[] = {"inv_freq",     "original_inv_freq", "cos_cached",     "sin_cached",
                                          "cos_k_cached", "sin_k_cached",      "cos_sin_cache",  "freqs_cis",
                                          "position_ids", "masked_bias",       "attention_mask", "causal_mask"};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (strcmp(last, buffers[i]) == 0) return true;
    return false;
}

/* The head that a tied model's file stores beside the embedding must be the same matrix: else the file and the configuration
 * say two things, and nobody knows which of them was trained. */
static dr_status check_stored_head(const dr_weights *weights) {
    dr_tensor head, embedding;
    if (!dr_weights_find(weights, EMBEDDING, &embedding) || !dr_weights_find(weights, HEAD, &head)) return DR_OK;
    bool same = head.rank == embedding.rank && memcmp(head.shape, embedding.shape, (size_t)head.rank * sizeof(int64_t)) == 0;
    int64_t count = dr_tensor_count(&embedding);
    if (same && head.dtype == embedding.dtype)
        same = memcmp(head.data, embedding.data, (size_t)count * dr_dtype_size(head.dtype)) == 0;
    else
        for (int64_t i = 0; i < count && same; i++) same = dr_tensor_element(&head, i) == dr_tensor_element(&embedding, i);
    if (same) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT,
                   "%s is stored and differs from %s, though %s says that they are tied: set \"tie_word_embeddings\" "
                   "(\"tied\") to false to use it, or take it out of the file",
                   HEAD, EMBEDDING, CONFIG_FILE);
}

/* Remembers a tensor that is not used; there are at most so many as the file has. */
static dr_status pass_over(dr_model *model, const dr_weights *weights, const char *name) {
    if (!model->ignored) {
        void *memory;
        size_t bytes = (size_t)dr_weights_count(weights) * sizeof(char *);
        DR_TRY(dr_allocate(bytes, "the names of tensors that are not used", &memory));
        model->ignored = memory;
    }
    DR_TRY(dr_copy_string(name, &model->ignored[model->ignored_count]));
    model->ignored_count++;
    return DR_OK;
}

static dr_status check_weights(dr_model *model, const dr_weights *weights) {
    for (int64_t i = 0; i < model->listed; i++) DR_TRY(check_tensor(model, weights, &model->parameters[i]));
    if (dr_weights_count(weights) == model->listed && dr_weights_find(weights, EMBEDDING, &(dr_tensor){0})) return DR_OK;
    for (int64_t i = 0; i < dr_weights_count(weights); i++) {
        const char *name = dr_weights_name(weights, i);
        if (is_listed(model, name)) continue;
        bool is_head = model->config.tied && strcmp(name, HEAD) == 0;
        if (!is_head && !is_buffer(name))
            return dr_fail(DR_ERROR_FORMAT, "the tensor %.200s has no place in the model that %s tells", name, CONFIG_FILE);
        if (is_head) DR_TRY(check_stored_head(weights));
        DR_TRY(pass_over(model, weights, name));
    }
    return DR_OK;
}

/* Views of a file may be unaligned; those go through aligned memory. */
static dr_status upload(dr_model *model, const dr_parameter *parameter, const dr_tensor *tensor) {
    const dr_operations *ops = model->backend->ops;
    size_t item = dr_dtype_size(tensor->dtype);
    void *to = model->values + dr_kind_bytes(model->backend, DR_NUMBER, parameter->offset), *copy = NULL;
    if ((uintptr_t)tensor->data % item == 0)
        return ops->upload(model->backend, to, tensor->data, tensor->dtype, parameter->count);
    DR_TRY(dr_allocate((size_t)parameter->count * item, "an unaligned tensor", &copy));
    memcpy(copy, tensor->data, (size_t)parameter->count * item);
    dr_status status = ops->upload(model->backend, to, copy, tensor->dtype, parameter->count);
    dr_release(copy);
    return status;
}

static dr_status read_weights(dr_model *model, const dr_weights *weights) {
    DR_TRY(check_weights(model, weights));
    DR_TRY(dr_model_allocate(model));
    for (int64_t i = 0; i < model->listed; i++) {
        dr_tensor tensor;
        if (!find_tensor(model, weights, &model->parameters[i], &tensor)) continue;
        DR_TRY(upload(model, &model->parameters[i], &tensor));
        dr_safetensors_forget(&tensor);
    }
    return dr_model_changed(model);
}

/* A configuration that cannot be built is the file's fault here, not the caller's. */
static dr_status of_file(dr_status status, const char *file) {
    return dr_fail_in(status == DR_ERROR_ARGUMENT ? DR_ERROR_FORMAT : status, "%s", file);
}

static dr_status read_model(dr_backend *backend, const char *config_file, dr_model **model) {
    json_t *object = NULL;
    dr_model_config config;
    DR_TRY(dr_json_read(config_file, &object));
    char *layer_list = NULL;
    dr_status status = dr_config_read(object, &config, &layer_list);
    if (status == DR_OK) status = dr_model_build(backend, &config, model);
    free(layer_list);
    json_decref(object);
    return status == DR_OK ? DR_OK : of_file(status, config_file);
}

static dr_status join(const char *folder, const char *name, char **path) {
    void *memory = NULL;
    size_t size = strlen(folder) + strlen(name) + 2;
    DR_TRY(dr_allocate(size, "a path", &memory));
    snprintf(memory, size, "%s/%s", folder, name);
    *path = memory;
    return DR_OK;
}

dr_status dr_model_load(dr_backend *backend, const char *folder, dr_model **model) {
    DR_NEED(backend);
    DR_NEED(folder);
    DR_NEED(model);
    char *config_file = NULL;
    dr_model *made = NULL;
    dr_weights *weights = NULL;
    dr_status status = DR_OK;
    DR_GO(join(folder, CONFIG_FILE, &config_file));
    DR_GO(dr_folder_recover(folder));
    DR_GO(read_model(backend, config_file, &made));
    DR_GO(dr_weights_open(folder, &weights));
    status = read_weights(made, weights);
    if (status != DR_OK) status = of_file(status, dr_weights_file(weights));
done:
    dr_weights_close(weights);
    dr_release(config_file);
    if (status == DR_OK)
        *model = made;
    else
        dr_model_destroy(made);
    return status;
}
