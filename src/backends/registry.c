/* Backends by name, and the public functions that only pass a call on to a backend's table. Arguments are checked here. */
#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    dr_status (*open)(const dr_backend_options *options, dr_backend **backend);
} entry;

static const entry entries[] = {
    {"reference", dr_reference_open},
    {"cpu", dr_cpu_open},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static dr_status fail_unknown(const char *name) {
    char known[256];
    size_t length = 0;
    for (int i = 0; i < ENTRIES; i++)
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? ", " : "", entries[i].name);
    return dr_fail(DR_ERROR_UNSUPPORTED, "this build has no backend \"%s\": it has %s", name, known);
}

dr_status dr_backend_open(const char *name, const dr_backend_options *options, dr_backend **backend) {
    if (!name || !backend) return dr_fail(DR_ERROR_ARGUMENT, "opening a backend takes a name and a place for the backend");
    if (options && options->threads < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%d threads: there must be one or more, or 0 for what OpenMP says", options->threads);
    for (int i = 0; i < ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0) return entries[i].open(options, backend);
    return fail_unknown(name);
}

void dr_backend_close(dr_backend *backend) {
    if (backend) backend->ops->close(backend);
}

const char *dr_backend_name(const dr_backend *backend) {
    return backend->ops->name;
}

const char *dr_backend_isa(const dr_backend *backend) {
    return backend->isa;
}

dr_dtype dr_backend_dtype(const dr_backend *backend) {
    return backend->ops->dtype;
}

int dr_backend_threads(const dr_backend *backend) {
    return backend->threads;
}

dr_status dr_backend_allocate(dr_backend *backend, size_t bytes, void **memory) {
    return backend->ops->allocate(backend, bytes, memory);
}

void dr_backend_free(dr_backend *backend, void *memory) {
    if (memory) backend->ops->free(backend, memory);
}

void dr_backend_zero(dr_backend *backend, void *memory, size_t bytes) {
    backend->ops->zero(backend, memory, bytes);
}

static dr_status check_copy(dr_dtype dtype, int64_t count) {
    if (dtype != DR_F32 && dtype != DR_F64 && dtype != DR_F16 && dtype != DR_BF16)
        return dr_fail(DR_ERROR_ARGUMENT, "a backend copies F32, F64, F16 and BF16, not %s", dr_dtype_name(dtype));
    if (count < 0) return dr_fail(DR_ERROR_ARGUMENT, "a copy of %" PRId64 " elements: there must be none or more", count);
    return DR_OK;
}

dr_status dr_backend_upload(dr_backend *backend, void *to, const void *from, dr_dtype from_dtype, int64_t count) {
    DR_TRY(check_copy(from_dtype, count));
    return backend->ops->upload(backend, to, from, from_dtype, count);
}

dr_status dr_backend_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from, int64_t count) {
    DR_TRY(check_copy(to_dtype, count));
    return backend->ops->download(backend, to, to_dtype, from, count);
}

void dr_backend_describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    backend->ops->describe(backend, line, context);
}
