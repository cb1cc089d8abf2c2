/* The limits of a device are measured by the backend's own operations. Sets of inputs are those of one longer recurrence, so
 * that a set is an offset: everything but parameters has rows. */
#include "check/bench/device.h"

#include "base/error.h"
#include "ops/operations.h"

#include <stdio.h>

enum { MOST_SETS = 256, COPIED = 1 << 29, SIZE = 8192 };
/* More than twice the largest second-level cache of the devices that there are kernels for. */
static const size_t LEAST_ROTATED = (size_t)160 << 20;

dr_status dr_bench_open(const dr_bench_options *options, int threads, dr_backend **backend) {
    const char *name = options->backend ? options->backend : "cpu";
    dr_backend_options chosen = {.isa = options->isa, .dtype = options->dtype, .device = options->device, .threads = threads};
    return dr_backend_open(name, &chosen, backend);
}

dr_backend *dr_bench_device_of(dr_backend *backend) {
    return dr_supports(backend, DR_OPERATION_TIME_RUNS) ? backend : NULL;
}

/* ---- sets ------------------------------------------------------------------------------------------------------------ */

int64_t dr_bench_sets(dr_backend *backend, size_t bytes) {
    if (!dr_bench_device_of(backend) || bytes == 0) return 1;
    int64_t sets = (int64_t)((LEAST_ROTATED + bytes - 1) / bytes);
    return sets < MOST_SETS ? sets : MOST_SETS;
}

dr_recurrence dr_bench_widened(const dr_recurrence *recurrence, int64_t sets) {
    dr_recurrence wide = *recurrence;
    wide.layout.sequences *= sets;
    wide.layout.rows *= sets;
    wide.layout.cu_seqlens = NULL; /* of one set */
    return wide;
}

int64_t dr_bench_set_elements(const dr_recurrence *recurrence, dr_input input) {
    dr_recurrence wide = dr_bench_widened(recurrence, 2);
    return dr_bench_input_count(&wide, input) - dr_bench_input_count(recurrence, input);
}

size_t dr_bench_set_bytes(dr_backend *backend, const dr_recurrence *recurrence) {
    size_t bytes = 0;
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(recurrence->rule, (dr_input)i))
            bytes += (size_t)dr_bench_set_elements(recurrence, (dr_input)i) *
                     dr_dtype_size(dr_recurrence_input_dtype(backend, (dr_input)i));
    return bytes;
}

/* ---- limits ---------------------------------------------------------------------------------------------------------- */

static dr_status run_copy(void *context) {
    const dr_bench_limits *limits = context;
    return limits->memory.backend->ops->copy(limits->memory.backend, limits->to, limits->from, COPIED);
}

static dr_status run_product(void *context) {
    const dr_bench_limits *limits = context;
    return limits->memory.backend->ops->product(limits->memory.backend, SIZE, limits->a, limits->b, limits->c);
}

/* Without a library for it the limit is lacking; any other failure is one. */
static dr_status create_product(uint64_t seed, dr_bench_limits *limits) {
    const int64_t count = (int64_t)SIZE * SIZE;
    DR_TRY(dr_bench_take(&limits->memory, (size_t)count * dr_dtype_size(DR_BF16), &limits->c));
    DR_TRY(dr_bench_normals(&limits->memory, DR_BF16, count, seed, &limits->a));
    DR_TRY(dr_bench_normals(&limits->memory, DR_BF16, count, seed + 1, &limits->b));
    dr_status status = run_product(limits);
    if (status != DR_ERROR_UNSUPPORTED) return status;
    snprintf(limits->lacking, sizeof limits->lacking, "%s", dr_last_error());
    return DR_OK;
}

dr_status dr_bench_limits_create(bool product, uint64_t seed, dr_bench_limits *limits) {
    DR_TRY(dr_bench_take(&limits->memory, COPIED, &limits->from));
    DR_TRY(dr_bench_take(&limits->memory, COPIED, &limits->to));
    return product ? create_product(seed, limits) : DR_OK;
}

void dr_bench_limits_destroy(dr_bench_limits *limits) {
    dr_bench_free(&limits->memory);
}

void dr_bench_copy_item(dr_bench_limits *limits, dr_bench_item *item) {
    item->run = run_copy;
    item->context = limits;
    item->device = limits->memory.backend;
    item->amount = 2.0 * COPIED;
}

void dr_bench_product_item(dr_bench_limits *limits, dr_bench_item *item) {
    if (limits->lacking[0]) return;
    item->run = run_product;
    item->context = limits;
    item->device = limits->memory.backend;
    item->amount = 2.0 * SIZE * SIZE * SIZE;
}
