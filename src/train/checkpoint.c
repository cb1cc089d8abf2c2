/* Writing and reading checkpoints. Numbers of the position stand in the metadata of optimizer.safetensors as text; reals in
 * hexadecimal, which loses nothing. */
#include "train/checkpoint.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "formats/folder.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "nn/model_files.h"
#include "nn/parameters.h"
#include "ops/kind.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char OPTIMIZER_FILE[] = "optimizer.safetensors", SETTINGS_FILE[] = "settings.json";

/* ---- writing -------------------------------------------------------------------------------------------------------- */

typedef struct {
    char step[24], skipped[24], skipped_in_row[24], updates[24], seconds[32], held_out[32], accuracy[32], fingerprint[24];
} position_text;

static position_text to_text(const dr_run_position *position, int64_t updates) {
    position_text text;
    snprintf(text.step, sizeof text.step, "%" PRId64, position->step);
    snprintf(text.skipped, sizeof text.skipped, "%" PRId64, position->skipped);
    snprintf(text.skipped_in_row, sizeof text.skipped_in_row, "%" PRId64, position->skipped_in_row);
    snprintf(text.updates, sizeof text.updates, "%" PRId64, updates);
    dr_format(text.seconds, sizeof text.seconds, "%a", position->seconds);
    dr_format(text.held_out, sizeof text.held_out, "%a", position->held_out);
    dr_format(text.accuracy, sizeof text.accuracy, "%a", position->accuracy);
    snprintf(text.fingerprint, sizeof text.fingerprint, "%016" PRIx64, position->fingerprint);
    return text;
}

/* Means in the file stand in the order in which the model lists its parameters, each at a multiple of DR_OFFSET_UNIT elements
 * with zeros behind it, wherever the block in memory has them. */
static int64_t stored_count(const dr_model *model) {
    const dr_parameter *parameters;
    const int64_t count = dr_model_parameters(model, &parameters);
    int64_t elements = 0;
    for (int64_t i = 0; i < count; i++) elements += dr_parameter_room(parameters[i].count);
    return elements;
}

static dr_status read_moment(void *context, int64_t index, int64_t first, int64_t count, void *to) {
    const dr_optimizer *optimizer = context;
    dr_backend *backend = dr_model_backend(optimizer->model);
    const dr_dtype dtype = dr_backend_dtype(backend);
    const char *moment = index == 0 ? optimizer->mean : optimizer->square;
    const dr_parameter *parameters;
    const int64_t listed = dr_model_parameters(optimizer->model, &parameters);
    int64_t begin = 0; /* of a parameter in the file */
    memset(to, 0, (size_t)count * dr_dtype_size(dtype));
    if (optimizer->updates == 0) return DR_OK; /* all zero */
    for (int64_t i = 0; i < listed && begin < first + count; begin += dr_parameter_room(parameters[i++].count)) {
        const int64_t end = begin + parameters[i].count, from = begin > first ? begin : first,
                      until = end < first + count ? end : first + count;
        if (from >= until) continue;
        DR_TRY(dr_backend_download(backend, (char *)to + (size_t)(from - first) * dr_dtype_size(dtype), dtype,
                                   moment + dr_kind_bytes(backend, DR_NUMBER, parameters[i].offset + from - begin),
                                   until - from));
    }
    return DR_OK;
}

static dr_status write_optimizer(const char *file, const dr_optimizer *optimizer, const dr_run_position *position) {
    dr_dtype dtype = dr_backend_dtype(dr_model_backend(optimizer->model));
    position_text text = to_text(position, optimizer->updates);
    const char *const metadata[] = {
        "step",        text.step,        "skipped",    text.skipped, "skipped_in_row", text.skipped_in_row, "updates",
        text.updates,  "seconds",        text.seconds, "held_out",   text.held_out,    "accuracy",          text.accuracy,
        "fingerprint", text.fingerprint, NULL};
    const char *const names[] = {"mean", "square"};
    const int64_t count = stored_count(optimizer->model);
    const dr_tensor tensors[] = {{.dtype = dtype, .rank = 1, .shape = {count}}, {.dtype = dtype, .rank = 1, .shape = {count}}};
    return dr_safetensors_write_from(file, 2, names, tensors, metadata, read_moment, (void *)optimizer);
}

static dr_status write_settings(const char *file, const dr_train_options *options) {
    json_t *object;
    DR_TRY(dr_train_options_to_json(options, &object));
    dr_status status = dr_json_write(file, object);
    json_decref(object);
    return status;
}

dr_status dr_checkpoint_finish(dr_folder *change, const dr_train_options *options, const dr_optimizer *optimizer,
                               const dr_run_position *position) {
    dr_status status;
    DR_GO(dr_model_write(optimizer->model, change));
    DR_GO(write_settings(dr_folder_path(change, SETTINGS_FILE), options));
    DR_GO(write_optimizer(dr_folder_path(change, OPTIMIZER_FILE), optimizer, position));
    return dr_folder_commit(change);
done:
    dr_folder_abandon(change);
    return status;
}

dr_status dr_checkpoint_write(const char *folder, const dr_train_options *options, const dr_optimizer *optimizer,
                              const dr_run_position *position) {
    dr_folder *change;
    DR_TRY(dr_folder_begin(folder, &change));
    return dr_checkpoint_finish(change, options, optimizer, position);
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static dr_status path_of(const char *folder, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the path of the run folder %s is too long", folder);
}

bool dr_checkpoint_exists(const char *folder) {
    char path[PATH_MAX];
    return path_of(folder, SETTINGS_FILE, path) == DR_OK && access(path, F_OK) == 0;
}

static dr_status metadata_text(const dr_safetensors *file, const char *key, const char **text) {
    *text = dr_safetensors_metadata(file, key);
    return *text ? DR_OK : dr_fail(DR_ERROR_FORMAT, "%s has no \"%s\" in its metadata", OPTIMIZER_FILE, key);
}

static dr_status metadata_count(const dr_safetensors *file, const char *key, int64_t *count) {
    const char *text;
    DR_TRY(metadata_text(file, key, &text));
    if (dr_integer_parse(text, count) && *count >= 0) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" in %s is \"%.40s\": it must be a count", key, OPTIMIZER_FILE, text);
}

static dr_status metadata_real(const dr_safetensors *file, const char *key, double *number) {
    const char *text;
    DR_TRY(metadata_text(file, key, &text));
    if (dr_number_parse(text, DR_NUMBER_ANY, number)) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" in %s is \"%.40s\": it must be a number", key, OPTIMIZER_FILE, text);
}

static dr_status read_position(const dr_safetensors *file, dr_run_position *position, int64_t *updates) {
    const char *text;
    char *end;
    DR_TRY(metadata_count(file, "step", &position->step));
    DR_TRY(metadata_count(file, "skipped", &position->skipped));
    DR_TRY(metadata_count(file, "skipped_in_row", &position->skipped_in_row));
    DR_TRY(metadata_count(file, "updates", updates));
    DR_TRY(metadata_real(file, "seconds", &position->seconds));
    DR_TRY(metadata_real(file, "held_out", &position->held_out));
    DR_TRY(metadata_real(file, "accuracy", &position->accuracy));
    DR_TRY(metadata_text(file, "fingerprint", &text));
    position->fingerprint = strtoull(text, &end, 16);
    if (end == text || *end)
        return dr_fail(DR_ERROR_FORMAT, "\"fingerprint\" in %s is \"%.40s\": it must be a hexadecimal number", OPTIMIZER_FILE,
                       text);
    return DR_OK;
}

static dr_status read_means(const dr_safetensors *file, const char *name, const dr_optimizer *optimizer, void *means) {
    dr_backend *backend = dr_model_backend(optimizer->model);
    dr_dtype dtype = dr_backend_dtype(backend);
    const int64_t count = stored_count(optimizer->model);
    dr_tensor tensor;
    if (!dr_safetensors_find(file, name, &tensor))
        return dr_fail(DR_ERROR_FORMAT, "%s has no tensor \"%s\"", OPTIMIZER_FILE, name);
    if (tensor.rank != 1 || tensor.shape[0] != count)
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" in %s is not [%lld], as the model's parameters are", name, OPTIMIZER_FILE,
                       (long long)count);
    if (tensor.dtype != dtype)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the run was trained in %s, but the backend %s computes in %s: resume it on the backend that "
                       "began it",
                       dr_dtype_name(tensor.dtype), dr_backend_name(backend), dr_dtype_name(dtype));
    const dr_parameter *parameters;
    const int64_t listed = dr_model_parameters(optimizer->model, &parameters);
    const char *from = tensor.data;
    for (int64_t i = 0; i < listed; i++) {
        DR_TRY(dr_backend_upload(backend, (char *)means + dr_kind_bytes(backend, DR_NUMBER, parameters[i].offset), from, dtype,
                                 parameters[i].count));
        from += (size_t)dr_parameter_room(parameters[i].count) * dr_dtype_size(dtype);
    }
    return DR_OK;
}

dr_status dr_checkpoint_read(const char *folder, dr_optimizer *optimizer, dr_run_position *position) {
    char path[PATH_MAX];
    dr_safetensors *file;
    dr_status status;
    int64_t updates = 0;
    DR_TRY(path_of(folder, OPTIMIZER_FILE, path));
    DR_TRY(dr_safetensors_open(path, &file));
    DR_GO(read_position(file, position, &updates));
    DR_GO(read_means(file, "mean", optimizer, optimizer->mean));
    DR_GO(read_means(file, "square", optimizer, optimizer->square));
    DR_GO(dr_optimizer_resume(optimizer, updates));
done:
    dr_safetensors_close(file);
    return status;
}
