/* Recurrences over many tokens: of each, the forward, which keeps nothing, and forward and backward together. */
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "check/bench/count.h"
#include "check/bench/device.h"
#include "check/bench/limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARD, BOTH, WORKS };

/* A rule with a number of threads, and all that its runs read and write. */
typedef struct {
    const dr_recurrence *recurrence;
    dr_bench_memory memory; /* memory.backend: its own */
    dr_recurrence_memory bytes;
    double first;
    int64_t sets, next; /* of what follows, and which is next */
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    void *o, *d_o;
    void *saved, *workspace;
    dr_bench_sgemm sgemm; /* on the CPU */
} op_case;

static int64_t outputs_of(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

/* What a run reads and writes. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    void *o, *d_o;
} op_set;

static void *moved(const void *block, int64_t set, int64_t elements, dr_dtype dtype) {
    return block ? (char *)block + (size_t)(set * elements) * dr_dtype_size(dtype) : NULL;
}

static op_set next_set(op_case *c) {
    op_set set = {.o = c->o, .d_o = c->d_o, .inputs = c->inputs, .d_inputs = c->d_inputs};
    int64_t n = c->next;
    c->next = (n + 1) % c->sets;
    if (n == 0) return set;
    dr_dtype output = dr_recurrence_output_dtype(c->memory.backend);
    set.o = moved(c->o, n, outputs_of(c->recurrence), output);
    set.d_o = moved(c->d_o, n, outputs_of(c->recurrence), output);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!c->inputs.at[i]) continue;
        dr_dtype dtype = dr_recurrence_input_dtype(c->memory.backend, (dr_input)i);
        int64_t elements = dr_bench_set_elements(c->recurrence, (dr_input)i);
        set.inputs.at[i] = moved(c->inputs.at[i], n, elements, dtype);
        set.d_inputs.at[i] = moved(c->d_inputs.at[i], n, elements, dtype);
    }
    return set;
}

static dr_status run_forward(void *context) {
    op_case *c = context;
    op_set set = next_set(c);
    return dr_recurrence_forward(c->memory.backend, c->recurrence, &set.inputs, NULL, set.o, NULL, NULL, c->workspace);
}

static dr_status run_both(void *context) {
    op_case *c = context;
    op_set set = next_set(c);
    DR_TRY(dr_recurrence_forward(c->memory.backend, c->recurrence, &set.inputs, NULL, set.o, NULL, c->saved, c->workspace));
    return dr_recurrence_backward(c->memory.backend, c->recurrence, &set.inputs, NULL, c->saved, set.d_o, NULL, &set.d_inputs,
                                  NULL, c->workspace);
}

/* ---- preparing ------------------------------------------------------------------------------------------------------- */

static dr_status prepare_backward(op_case *c, const dr_recurrence *wide, uint64_t seed) {
    dr_backend *backend = c->memory.backend;
    DR_TRY(dr_bench_take(&c->memory, c->bytes.saved, &c->saved));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!c->inputs.at[i]) continue;
        size_t element = dr_dtype_size(dr_recurrence_input_dtype(backend, (dr_input)i));
        DR_TRY(dr_bench_take(&c->memory, (size_t)dr_bench_input_count(wide, (dr_input)i) * element, &c->d_inputs.at[i]));
    }
    return dr_bench_normals(&c->memory, dr_recurrence_output_dtype(backend), outputs_of(wide), seed, &c->d_o);
}

/* forward and backward take turns in one workspace */
static size_t workspace_of_both(const dr_recurrence_memory *bytes) {
    return bytes->backward > bytes->forward ? bytes->backward : bytes->forward;
}

static dr_status prepare_tensors(const dr_bench_options *options, bool forward_only, op_case *c) {
    dr_backend *backend = c->memory.backend;
    size_t output = dr_dtype_size(dr_recurrence_output_dtype(backend));
    c->sets = dr_bench_sets(backend, dr_bench_set_bytes(backend, c->recurrence) + (size_t)outputs_of(c->recurrence) * output);
    dr_recurrence wide = dr_bench_widened(c->recurrence, c->sets);
    DR_TRY(dr_bench_inputs(&c->memory, &wide, options, &c->inputs));
    DR_TRY(dr_bench_take(&c->memory, (size_t)outputs_of(&wide) * output, &c->o));
    if (!forward_only) DR_TRY(prepare_backward(c, &wide, options->seed));
    return dr_bench_take(&c->memory, forward_only ? c->bytes.forward : workspace_of_both(&c->bytes), &c->workspace);
}

static dr_status prepare(const dr_bench_options *options, int threads, bool forward_only, op_case *c) {
    double start = dr_clock_now();
    DR_TRY(dr_bench_open(options, threads, &c->memory.backend));
    c->first = dr_clock_now() - start;
    DR_TRY(dr_recurrence_plan(c->memory.backend, c->recurrence, &c->bytes));
    DR_TRY(prepare_tensors(options, forward_only, c));
    DR_TRY(dr_backend_wait(c->memory.backend));
    start = dr_clock_now();
    DR_TRY(forward_only ? run_forward(c) : run_both(c));
    DR_TRY(dr_backend_wait(c->memory.backend));
    c->first += dr_clock_now() - start;
    return dr_bench_device_of(c->memory.backend) ? DR_OK : dr_bench_sgemm_create(threads, options->seed, &c->sgemm);
}

static void destroy(op_case *c) {
    dr_bench_sgemm_destroy(&c->sgemm);
    dr_bench_free(&c->memory);
    dr_backend_close(c->memory.backend);
}

/* What the runs left must be numbers. */
static dr_status check(const op_case *c, bool forward_only) {
    dr_backend *backend = c->memory.backend;
    DR_TRY(dr_bench_check_finite(backend, c->o, dr_recurrence_output_dtype(backend), outputs_of(c->recurrence), "the output"));
    for (int i = 0; i < DR_INPUTS && !forward_only; i++)
        if (c->d_inputs.at[i])
            DR_TRY(dr_bench_check_finite(backend, c->d_inputs.at[i], dr_recurrence_input_dtype(backend, (dr_input)i),
                                         dr_bench_input_count(c->recurrence, (dr_input)i), "a gradient"));
    return DR_OK;
}

/* Bytes that must move: each input once in and the output out; with the backward the inputs once more, and gradients. */
static void fill_device(const op_case *c, bool both, dr_bench_limits *limits, dr_bench_pair *pair) {
    dr_backend *backend = c->memory.backend;
    double in = (double)dr_bench_set_bytes(backend, c->recurrence);
    double out = (double)outputs_of(c->recurrence) * (double)dr_dtype_size(dr_recurrence_output_dtype(backend));
    dr_bench_product_item(limits, &pair->limit);
    dr_bench_copy_item(limits, &pair->memory);
    pair->work.device = backend;
    pair->work.replayed = true;
    pair->bytes = both ? 3 * in + 2 * out : in + out;
}

static void fill_pairs(op_case *c, bool forward_only, dr_bench_limits *limits, dr_bench_pair *pair) {
    double counted = dr_bench_counted(c->recurrence);
    for (int i = 0; i < (forward_only ? 1 : WORKS); i++) {
        if (dr_bench_device_of(c->memory.backend))
            fill_device(c, i == BOTH, limits, &pair[i]);
        else
            dr_bench_sgemm_item(&c->sgemm, &pair[i].limit);
    }
    pair[FORWARD].work.run = run_forward;
    pair[FORWARD].work.context = c;
    pair[FORWARD].work.amount = counted;
    if (forward_only) return;
    pair[BOTH].work.run = run_both;
    pair[BOTH].work.context = c;
    pair[BOTH].work.amount = 3 * counted;
}

/* What ran; the chunk stands in the name of a chunkwise kernel, "cpu chunkwise avx512 chunk 32". */
static void describe(const op_case *c, int threads, dr_bench_op_result *result) {
    int64_t segment = 1, boundaries;
    *result = (dr_bench_op_result){.threads = threads,
                                   .chunk = 1,
                                   .first = c->first,
                                   .workspace_forward = (double)c->bytes.forward,
                                   .saved = (double)c->bytes.saved,
                                   .workspace_forward_backward = (double)c->bytes.saved + (double)workspace_of_both(&c->bytes)};
    dr_recurrence_kernel(c->memory.backend, c->recurrence, false, result->kernel, sizeof result->kernel);
    const char *chunk = strstr(result->kernel, " chunk ");
    if (chunk && strstr(result->kernel, "chunkwise")) result->chunk = strtoll(chunk + strlen(" chunk "), NULL, 10);
    result->performed_forward = dr_bench_performed_forward(c->recurrence, result->chunk);
    dr_recurrence_boundaries(c->memory.backend, c->recurrence, 0, &segment, &boundaries);
    result->performed_forward_backward =
        result->performed_forward + dr_bench_performed_backward(c->recurrence, result->chunk, segment);
}

/* cases: [thread_counts, count] */
static dr_status measure(const dr_bench_options *options, bool forward_only, int count, const dr_recurrence *recurrences,
                         op_case *cases, dr_bench_limits *limits, dr_bench_grid *grid, dr_bench_op_result *results) {
    int all = options->thread_counts * count;
    for (int i = 0; i < all; i++) {
        cases[i].recurrence = &recurrences[i % count];
        DR_TRY(prepare(options, options->threads[i / count], forward_only, &cases[i]));
        if (i == 0 && (limits->memory.backend = dr_bench_device_of(cases[0].memory.backend)))
            DR_TRY(dr_bench_limits_create(true, options->seed, limits));
        fill_pairs(&cases[i], forward_only, limits, dr_bench_grid_at(grid, i / count, i % count, 0));
    }
    DR_TRY(dr_bench_grid_measure(grid));
    for (int i = 0; i < all; i++) DR_TRY(check(&cases[i], forward_only));
    for (int i = 0; i < all; i++) {
        describe(&cases[i], options->threads[i / count], &results[i]);
        const char *lacking = dr_bench_device_of(cases[i].memory.backend) ? limits->lacking : cases[i].sgemm.lacking;
        snprintf(results[i].lacking, sizeof results[i].lacking, "%s", lacking);
        results[i].forward = dr_bench_grid_work(grid, i / count, i % count, FORWARD);
        if (!forward_only) results[i].forward_backward = dr_bench_grid_work(grid, i / count, i % count, BOTH);
    }
    return DR_OK;
}

dr_status dr_bench_op(const dr_bench_options *options, bool forward_only, int count, const dr_recurrence *recurrences,
                      dr_bench_op_result *results) {
    DR_NEED(options);
    DR_NEED(recurrences);
    DR_NEED(results);
    DR_TRY(dr_bench_check(options, count));
    int all = options->thread_counts * count;
    dr_bench_grid grid = {0};
    dr_bench_limits limits = {.from = NULL};
    void *cases = NULL;
    dr_status status;
    DR_GO(dr_bench_grid_create(options, count, forward_only ? 1 : WORKS, &grid));
    DR_GO(dr_allocate_zero((size_t)all * sizeof(op_case), "cases", &cases));
    DR_GO(measure(options, forward_only, count, recurrences, cases, &limits, &grid, results));
done:
    dr_bench_limits_destroy(&limits);
    for (int i = 0; cases && i < all; i++) destroy((op_case *)cases + i);
    dr_release(cases);
    dr_bench_grid_destroy(&grid);
    return status;
}
