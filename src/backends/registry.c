/* Backends by name, and the public functions that only pass a call on to a backend's table. Arguments are checked here. */
#include "backends/cpu/cpu.h"
#ifdef DR_BUILD_CUDA
#include "backends/cuda/open.h"
#endif
#include "backends/reference/reference.h"
#include "base/error.h"
#include "ops/plan_make.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    dr_status (*open)(const dr_backend_options *options, dr_backend **backend);
    dr_backend (*imagine)(const dr_backend_options *options);
} entry;

static const entry entries[] = {
    {"reference", dr_reference_open, dr_reference_imagine},
    {"cpu", dr_cpu_open, dr_cpu_imagine},
#ifdef DR_BUILD_CUDA
    {"cuda", dr_cuda_open, dr_cuda_imagine},
#endif
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static dr_status fail_unknown(const char *name) {
    char known[256];
    size_t length = 0;
    for (int i = 0; i < ENTRIES; i++)
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? ", " : "", entries[i].name);
    const char *cure = strcmp(name, "cuda") == 0 ? "; configure with cmake --preset cuda for it" : "";
    return dr_fail(DR_ERROR_UNSUPPORTED, "this build has no backend \"%s\": it has %s%s", name, known, cure);
}

const char *dr_backend_listed(int index) {
    return index >= 0 && index < ENTRIES ? entries[index].name : NULL;
}

dr_status dr_backend_open(const char *name, const dr_backend_options *options, dr_backend **backend) {
    DR_NEED(name);
    DR_NEED(backend);
    if (options && (options->threads < 0 || options->threads > DR_MOST_THREADS))
        return dr_fail(DR_ERROR_ARGUMENT, "%d threads: ask for 1 to %d, or 0 for what OpenMP says", options->threads,
                       DR_MOST_THREADS);
    if (options && strcmp(name, "cuda") != 0 && (options->device || options->stream))
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"%s\" has no device and stream to choose: only cuda has", name);
    if (options && strcmp(name, "cpu") == 0 && options->dtype)
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"cpu\" has no dtype to choose: only cuda and reference have");
    if (options && strcmp(name, "cuda") == 0 && options->weights)
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"cuda\" has no type of weights to choose: only cpu and reference have");
    for (int i = 0; i < ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0) return entries[i].open(options, backend);
    return fail_unknown(name);
}

dr_status dr_recurrence_saved(const char *backend, const dr_backend_options *options, const dr_recurrence *recurrence,
                              dr_saved_size *saved) {
    DR_NEED(backend);
    DR_NEED(recurrence);
    DR_NEED(saved);
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(entries[i].name, backend) != 0) continue;
        dr_backend imagined = entries[i].imagine(options);
        dr_plan plan;
        DR_TRY(dr_plan_make_any(&imagined, recurrence, NULL, &plan));
        *saved = plan.saved;
        return DR_OK;
    }
    return fail_unknown(backend);
}

void dr_backend_close(dr_backend *backend) {
    if (backend) backend->ops->close(backend);
}

const char *dr_backend_name(const dr_backend *backend) {
    return backend ? backend->ops->name : "";
}

const char *dr_backend_isa(const dr_backend *backend) {
    return backend ? backend->isa : "";
}

dr_dtype dr_backend_dtype(const dr_backend *backend) {
    return backend ? backend->ops->dtype : DR_F32;
}

int dr_backend_threads(const dr_backend *backend) {
    return backend ? backend->threads : 0;
}

dr_status dr_backend_allocate(dr_backend *backend, size_t bytes, void **memory) {
    DR_NEED(backend);
    DR_NEED(memory);
    return backend->ops->allocate(backend, bytes, memory);
}

void dr_backend_free(dr_backend *backend, void *memory) {
    if (backend && memory) backend->ops->free(backend, memory);
}

void dr_backend_zero(dr_backend *backend, void *memory, size_t bytes) {
    if (backend && memory) backend->ops->zero(backend, memory, bytes);
}

/* A copy may be of nothing, from and to nowhere. */
#define NEED_MEMORY(pointer)                                                                                                   \
    do {                                                                                                                       \
        if (count > 0) DR_NEED(pointer);                                                                                       \
    } while (0)

static dr_status check_copy(dr_dtype dtype, int64_t count) {
    if (dtype != DR_F32 && dtype != DR_F64 && dtype != DR_F16 && dtype != DR_BF16)
        return dr_fail(DR_ERROR_ARGUMENT, "a backend copies F32, F64, F16 and BF16, not %s", dr_dtype_name(dtype));
    if (count < 0) return dr_fail(DR_ERROR_ARGUMENT, "a copy of %" PRId64 " elements: there must be none or more", count);
    return DR_OK;
}

dr_status dr_backend_wait(dr_backend *backend) {
    DR_NEED(backend);
    return backend->ops->wait ? backend->ops->wait(backend) : DR_OK;
}

dr_status dr_backend_upload(dr_backend *backend, void *to, const void *from, dr_dtype from_dtype, int64_t count) {
    DR_NEED(backend);
    DR_TRY(check_copy(from_dtype, count));
    NEED_MEMORY(to);
    NEED_MEMORY(from);
    return backend->ops->upload(backend, to, from, from_dtype, count);
}

dr_status dr_backend_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, int64_t count) {
    DR_NEED(backend);
    DR_TRY(check_copy(to_dtype, count));
    NEED_MEMORY(to);
    NEED_MEMORY(from);
    return backend->ops->download(backend, to, to_dtype, from, count);
}

/* dtype: of the backend's side, and not its own */
static dr_status fail_other_type(const dr_backend *backend, dr_dtype dtype) {
    return dr_fail(DR_ERROR_ARGUMENT, "the memory of backend %s holds %s, not %s", backend->ops->name,
                   dr_dtype_name(backend->ops->dtype), dr_dtype_name(dtype));
}

dr_status dr_backend_upload_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                               int64_t count) {
    DR_NEED(backend);
    DR_TRY(check_copy(from_dtype, count));
    NEED_MEMORY(to);
    NEED_MEMORY(from);
    if (to_dtype == backend->ops->dtype) return backend->ops->upload(backend, to, from, from_dtype, count);
    if (!backend->ops->upload_as) return fail_other_type(backend, to_dtype);
    return backend->ops->upload_as(backend, to, to_dtype, from, from_dtype, count);
}

dr_status dr_backend_download_as(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype,
                                 int64_t count) {
    DR_NEED(backend);
    DR_TRY(check_copy(to_dtype, count));
    NEED_MEMORY(to);
    NEED_MEMORY(from);
    if (from_dtype == backend->ops->dtype) return backend->ops->download(backend, to, to_dtype, from, count);
    if (!backend->ops->download_as) return fail_other_type(backend, from_dtype);
    return backend->ops->download_as(backend, to, to_dtype, from, from_dtype, count);
}

void dr_backend_describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    if (backend && line) backend->ops->describe(backend, line, context);
}
