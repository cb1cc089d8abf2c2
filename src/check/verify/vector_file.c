/* Vector files: metadata first, then tensors by name.
 *
 * The metadata of safetensors are strings. Numbers in them are parsed as JSON numbers, which does not depend on the locale. */
#include "check/verify/vector_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 64 };
static const double MAX_TOLERANCE = 1e-2; /* with more, a case would show nothing */

static dr_status metadata(const dr_vector_file *file, const char *key, const char **value) {
    *value = dr_safetensors_metadata(file->tensors, key);
    return *value ? DR_OK : dr_fail(DR_ERROR_FORMAT, "its metadata lacks '%s': not a vector file?", key);
}

static dr_status number(const dr_vector_file *file, const char *key, json_t **value) {
    const char *text = NULL;
    DR_TRY(metadata(file, key, &text));
    *value = dr_json_value(text);
    if (json_is_number(*value)) return DR_OK;
    json_decref(*value);
    return dr_fail(DR_ERROR_FORMAT, "its metadata '%s' is '%.40s': it must be a number", key, text);
}

dr_status dr_vector_file_integer(const dr_vector_file *file, const char *key, int64_t least, int64_t most, int64_t *value) {
    json_t *found = NULL;
    DR_TRY(number(file, key, &found));
    bool valid = json_is_integer(found) && json_integer_value(found) >= least && json_integer_value(found) <= most;
    *value = json_integer_value(found);
    json_decref(found);
    if (valid) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "its metadata '%s' must be an integer from %" PRId64 " to %" PRId64, key, least, most);
}

dr_status dr_vector_file_real(const dr_vector_file *file, const char *key, double *value) {
    json_t *found = NULL;
    DR_TRY(number(file, key, &found)); /* JSON has no infinity, and jansson refuses what overflows */
    *value = json_number_value(found);
    json_decref(found);
    return DR_OK;
}

static dr_status tolerance(const dr_vector_file *file, const char *key, double *value) {
    DR_TRY(dr_vector_file_real(file, key, value));
    if (*value > 0 && *value <= MAX_TOLERANCE) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "its metadata '%s' is %g: a tolerance is above 0 and at most %g", key, *value,
                   MAX_TOLERANCE);
}

static dr_status read_metadata(dr_vector_file *file) {
    const char *options = NULL, *gradients = NULL;
    DR_TRY(metadata(file, "rule", &file->rule));
    DR_TRY(metadata(file, "options", &options));
    DR_TRY(dr_json_parse(options, strlen(options), "its metadata 'options'", &file->options));
    DR_TRY(metadata(file, "gradients", &gradients));
    file->backward = strcmp(gradients, "none") != 0;
    DR_TRY(tolerance(file, "rtol_forward", &file->rtol_forward));
    return tolerance(file, "rtol_backward", &file->rtol_backward);
}

dr_status dr_vector_file_open(const char *path, dr_vector_file *file) {
    *file = (dr_vector_file){0};
    DR_TRY(dr_safetensors_open(path, &file->tensors));
    void *memory = NULL;
    dr_status status = dr_allocate_zero((size_t)dr_safetensors_count(file->tensors) * sizeof(bool), "a list of flags", &memory);
    file->taken = memory;
    if (status == DR_OK) status = read_metadata(file);
    if (status == DR_OK) return DR_OK;
    dr_vector_file_close(file);
    return dr_fail_in(status, "%s", path);
}

void dr_vector_file_close(dr_vector_file *file) {
    json_decref(file->options);
    dr_release(file->taken);
    dr_safetensors_close(file->tensors);
    *file = (dr_vector_file){0};
}

/* Index of the tensor, or -1. */
static int64_t find(const dr_vector_file *file, const char *prefix, const char *name) {
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    int64_t low = 0, high = dr_safetensors_count(file->tensors) - 1; /* names are in order */
    while (low <= high) {
        int64_t middle = (low + high) / 2;
        int order = strcmp(full, dr_safetensors_name(file->tensors, middle));
        if (order == 0) return middle;
        if (order < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return -1;
}

bool dr_vector_file_has(const dr_vector_file *file, const char *prefix, const char *name) {
    return find(file, prefix, name) >= 0;
}

int dr_vector_file_rank(const dr_vector_file *file, const char *prefix, const char *name) {
    int64_t index = find(file, prefix, name);
    return index >= 0 ? dr_safetensors_tensor(file->tensors, index).rank : -1;
}

dr_status dr_vector_file_take_any(dr_vector_file *file, const char *prefix, const char *name, dr_dtype dtype, int rank,
                                  dr_tensor *tensor) {
    int64_t index = find(file, prefix, name);
    if (index < 0) return dr_fail(DR_ERROR_FORMAT, "the tensor '%s%s' is missing", prefix, name);
    *tensor = dr_safetensors_tensor(file->tensors, index);
    if (tensor->dtype != dtype)
        return dr_fail(DR_ERROR_FORMAT, "tensor '%s%s' is %s: it must be %s", prefix, name, dr_dtype_name(tensor->dtype),
                       dr_dtype_name(dtype));
    if (tensor->rank != rank)
        return dr_fail(DR_ERROR_FORMAT, "tensor '%s%s' has %d dimensions: it must have %d", prefix, name, tensor->rank, rank);
    file->taken[index] = true;
    return DR_OK;
}

dr_status dr_vector_file_take(dr_vector_file *file, const char *prefix, const char *name, dr_dtype dtype, int rank,
                              const int64_t *shape, dr_tensor *tensor) {
    DR_TRY(dr_vector_file_take_any(file, prefix, name, dtype, rank, tensor));
    for (int i = 0; i < rank; i++)
        if (tensor->shape[i] != shape[i])
            return dr_fail(DR_ERROR_FORMAT, "tensor '%s%s': dimension %d is %" PRId64 ", it must be %" PRId64, prefix, name, i,
                           tensor->shape[i], shape[i]);
    return DR_OK;
}

dr_status dr_vector_file_all_taken(const dr_vector_file *file) {
    for (int64_t i = 0; i < dr_safetensors_count(file->tensors); i++)
        if (!file->taken[i])
            return dr_fail(DR_ERROR_FORMAT, "the tensor '%.60s' has no place in a case of '%s'",
                           dr_safetensors_name(file->tensors, i), file->rule);
    return DR_OK;
}
