/* States in safetensors files. Everything in a file is checked before memory is taken for it: the metadata give a recurrence,
 * which is checked like any other, and every tensor must have the shape and type that follow from it. */
#include "states/state.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FORMAT[] = "deltarule.state", LAYOUT[] = "sequences first, dense";

enum { SIZES = 5, TEXT = 24, LARGEST_RULE = 4096 };

static const char *const size_keys[SIZES] = {"key_heads", "value_heads", "key_size", "value_size", "sequences"};

/* ---- saving --------------------------------------------------------------------------------------------------------- */

/* The tensors of a state, copied to host memory that the caller releases: *host. */
static dr_status copy_out(const dr_state *state, dr_tensor tensors[DR_STATES], const char *names[DR_STATES], int *count,
                          void **host) {
    const dr_operations *ops = state->backend->ops;
    char *at;
    *count = 0;
    DR_TRY(dr_allocate(state->bytes, "a copy of a state", host));
    at = *host;
    for (int i = 0; i < DR_STATES; i++) {
        if (!state->count[i]) continue;
        dr_tensor *tensor = &tensors[*count];
        const int64_t words = state->recurrence.layout.sequences * dr_state_words(state, (dr_state_kind)i);
        *tensor = (dr_tensor){.dtype = dr_state_dtype(state, (dr_state_kind)i), .data = at};
        tensor->rank = dr_recurrence_state_shape(&state->recurrence, (dr_state_kind)i, tensor->shape);
        DR_TRY(ops->download(state->backend, at, ops->dtype, state->at[i], words));
        at += dr_kind_bytes(state->backend, DR_NUMBER, words);
        names[(*count)++] = dr_state_name((dr_state_kind)i);
    }
    return DR_OK;
}

static dr_status write_file(const dr_state *state, const char *file) {
    const dr_recurrence *recurrence = &state->recurrence;
    const int64_t sizes[SIZES] = {recurrence->key_heads, recurrence->value_heads, recurrence->key_size, recurrence->value_size,
                                  recurrence->layout.sequences};
    char rule[LARGEST_RULE], size_text[SIZES][TEXT];
    const char *names[DR_STATES], *metadata[2 * (SIZES + 3) + 1] = {"format", FORMAT, "layout", LAYOUT, "rule", rule};
    dr_tensor tensors[DR_STATES];
    void *host = NULL;
    int count;
    const int length = dr_rule_write_text(&state->rule, NULL, rule, sizeof rule);
    if (length < 0 || length >= (int)sizeof rule) return dr_fail(DR_ERROR_MEMORY, "there is no memory for the rule's JSON");
    for (int i = 0; i < SIZES; i++) {
        snprintf(size_text[i], TEXT, "%" PRId64, sizes[i]);
        metadata[6 + 2 * i] = size_keys[i];
        metadata[7 + 2 * i] = size_text[i];
    }
    dr_status status = copy_out(state, tensors, names, &count, &host);
    if (status == DR_OK) status = dr_safetensors_write(file, count, names, tensors, metadata);
    dr_release(host);
    return status;
}

dr_status dr_state_save(const dr_state *state, const char *file) {
    DR_NEED(state);
    DR_NEED(file);
    return write_file(state, file);
}

/* ---- loading -------------------------------------------------------------------------------------------------------- */

static dr_status read_text(const dr_safetensors *file, const char *key, const char *wanted, const char **value) {
    *value = dr_safetensors_metadata(file, key);
    if (!*value) return dr_fail(DR_ERROR_FORMAT, "there is no '%s' in its metadata: not a state", key);
    if (wanted && strcmp(*value, wanted) != 0)
        return dr_fail(DR_ERROR_FORMAT, "its %s is \"%.40s\", not \"%s\"", key, *value, wanted);
    return DR_OK;
}

static dr_status read_size(const dr_safetensors *file, const char *key, int64_t *size) {
    const char *text;
    char again[TEXT];
    DR_TRY(read_text(file, key, NULL, &text));
    errno = 0;
    *size = strtoll(text, NULL, 10);
    snprintf(again, sizeof again, "%" PRId64, *size);
    if (errno != 0 || *size < 1 || strcmp(again, text) != 0)
        return dr_fail(DR_ERROR_FORMAT, "its %s is \"%.40s\", not a number from 1", key, text);
    return DR_OK;
}

/* Whether S lies in the file as bfloat16, and may on that backend. */
static bool has_bf16_state(const dr_backend *backend, const dr_safetensors *file) {
    dr_tensor tensor;
    return backend->ops->bf16_state && dr_safetensors_find(file, dr_state_name(DR_STATE_S), &tensor) && tensor.dtype == DR_BF16;
}

/* The recurrence that a file tells, of the rule in *rule. */
static dr_status read_recurrence(const dr_backend *backend, const dr_safetensors *file, dr_rule *rule,
                                 dr_recurrence *recurrence) {
    const char *text;
    int64_t sizes[SIZES];
    DR_TRY(read_text(file, "format", FORMAT, &text));
    DR_TRY(read_text(file, "layout", LAYOUT, &text));
    DR_TRY(read_text(file, "rule", NULL, &text));
    dr_status status = dr_rule_read_text(text, rule, NULL);
    if (status != DR_OK) return dr_fail_in(status == DR_ERROR_MEMORY ? status : DR_ERROR_FORMAT, "its rule");
    for (int i = 0; i < SIZES; i++) DR_TRY(read_size(file, size_keys[i], &sizes[i]));
    *recurrence = (dr_recurrence){.rule = rule,
                                  .key_heads = sizes[0],
                                  .value_heads = sizes[1],
                                  .key_size = sizes[2],
                                  .value_size = sizes[3],
                                  .layout = {.sequences = sizes[4], .rows = sizes[4]},
                                  .bf16_state = has_bf16_state(backend, file)};
    return DR_OK;
}

/* The tensors that the file must have, and no other. */
static dr_status read_tensors(const dr_safetensors *file, const dr_state *state, dr_tensor tensors[DR_STATES]) {
    int64_t count = 0;
    for (int i = 0; i < DR_STATES; i++) {
        if (!state->count[i]) continue;
        const char *name = dr_state_name((dr_state_kind)i);
        const dr_dtype dtype = dr_state_dtype(state, (dr_state_kind)i);
        dr_tensor *tensor = &tensors[i];
        int64_t shape[DR_MAX_RANK];
        const int rank = dr_recurrence_state_shape(&state->recurrence, (dr_state_kind)i, shape);
        if (!dr_safetensors_find(file, name, tensor)) return dr_fail(DR_ERROR_FORMAT, "there is no tensor %s in it", name);
        if (tensor->rank != rank || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0)
            return dr_fail(DR_ERROR_FORMAT, "its tensor %s has not the shape that its metadata tell", name);
        if (tensor->dtype != dtype)
            return dr_fail(DR_ERROR_ARGUMENT, "its tensor %s is %s, but backend %s computes in %s", name,
                           dr_dtype_name(tensor->dtype), state->backend->ops->name, dr_dtype_name(dtype));
        count++;
    }
    if (dr_safetensors_count(file) != count)
        return dr_fail(DR_ERROR_FORMAT, "it has %" PRId64 " tensors, but its rule carries %" PRId64 " states",
                       dr_safetensors_count(file), count);
    return DR_OK;
}

/* Through aligned memory: views of a file may be unaligned. */
static dr_status upload(dr_state *state, int kind, const dr_tensor *tensor) {
    const dr_operations *ops = state->backend->ops;
    const int64_t words = state->recurrence.layout.sequences * dr_state_words(state, (dr_state_kind)kind);
    const size_t bytes = dr_kind_bytes(state->backend, DR_NUMBER, words);
    void *host = NULL;
    DR_TRY(dr_allocate(bytes, "a copy of a state", &host));
    memcpy(host, tensor->data, bytes);
    dr_status status = ops->upload(state->backend, state->at[kind], host, ops->dtype, words);
    dr_release(host);
    return status;
}

static dr_status load(dr_backend *backend, const dr_recurrence *recurrence, const dr_safetensors *file, dr_state **state) {
    dr_rule rule;
    dr_recurrence own;
    dr_state described;
    dr_tensor tensors[DR_STATES];
    dr_state *made;
    DR_TRY(read_recurrence(backend, file, &rule, &own));
    dr_status status = dr_state_describe(backend, &own, &described);
    if (status != DR_OK) return dr_fail_in(DR_ERROR_FORMAT, "its metadata");
    if (recurrence) DR_TRY(dr_state_compare(&own, "the file", recurrence, "the recurrence", true));
    DR_TRY(read_tensors(file, &described, tensors));
    DR_TRY(dr_state_create(backend, &own, &made));
    for (int i = 0; i < DR_STATES && status == DR_OK; i++)
        if (made->count[i]) status = upload(made, i, &tensors[i]);
    if (status != DR_OK) {
        dr_state_destroy(made);
        return status;
    }
    *state = made;
    return DR_OK;
}

dr_status dr_state_load(dr_backend *backend, const dr_recurrence *recurrence, const char *file, dr_state **state) {
    dr_safetensors *opened;
    dr_state expected;
    DR_NEED(backend);
    DR_NEED(file);
    DR_NEED(state);
    if (recurrence) DR_TRY(dr_state_describe(backend, recurrence, &expected));
    DR_TRY(dr_safetensors_open(file, &opened));
    dr_status status = load(backend, recurrence, opened, state);
    dr_safetensors_close(opened);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", file);
}
