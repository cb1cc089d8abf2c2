/* Recurrences over many tokens: of each, the forward, which keeps nothing, and forward and backward together. */
#include "base/error.h"
#include "base/memory.h"
#include "bench/count.h"
#include "bench/inputs.h"
#include "bench/limit.h"

#include <stdlib.h>
#include <string.h>

enum { FORWARD, BOTH, WORKS };

/* A rule with a number of threads, and all that its runs read and write. */
typedef struct {
    const dr_recurrence *recurrence;
    dr_bench_memory memory; /* memory.backend: its own */
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    void *o, *d_o, *saved, *workspace;
    dr_bench_sgemm sgemm;
} op_case;

static dr_status run_forward(void *context) {
    const op_case *c = context;
    return dr_recurrence_forward(c->memory.backend, c->recurrence, &c->inputs, NULL, c->o, NULL, NULL, c->workspace);
}

static dr_status run_both(void *context) {
    const op_case *c = context;
    DR_TRY(dr_recurrence_forward(c->memory.backend, c->recurrence, &c->inputs, NULL, c->o, NULL, c->saved, c->workspace));
    return dr_recurrence_backward(c->memory.backend, c->recurrence, &c->inputs, NULL, c->saved, c->d_o, NULL, &c->d_inputs,
                                  NULL, c->workspace);
}

static int64_t outputs_of(const dr_recurrence *recurrence) {
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static dr_status prepare_backward(op_case *c, size_t saved, uint64_t seed) {
    size_t element = dr_dtype_size(dr_backend_dtype(c->memory.backend));
    DR_TRY(dr_bench_take(&c->memory, saved, &c->saved));
    for (int i = 0; i < DR_INPUTS; i++) {
        size_t count = (size_t)dr_bench_input_count(c->recurrence, (dr_input)i);
        if (c->inputs.at[i]) DR_TRY(dr_bench_take(&c->memory, count * element, &c->d_inputs.at[i]));
    }
    return dr_bench_normals(&c->memory, outputs_of(c->recurrence), seed, &c->d_o);
}

static dr_status prepare(const dr_bench_options *options, int threads, bool forward_only, op_case *c) {
    dr_backend_options backend = {.threads = threads, .isa = options->isa};
    DR_TRY(dr_backend_open("cpu", &backend, &c->memory.backend));
    dr_recurrence_memory bytes;
    DR_TRY(dr_recurrence_plan(c->memory.backend, c->recurrence, &bytes));
    DR_TRY(dr_bench_inputs(&c->memory, c->recurrence, options->seed, &c->inputs));
    size_t element = dr_dtype_size(dr_backend_dtype(c->memory.backend));
    DR_TRY(dr_bench_take(&c->memory, (size_t)outputs_of(c->recurrence) * element, &c->o));
    if (!forward_only) DR_TRY(prepare_backward(c, bytes.saved, options->seed));
    size_t workspace = !forward_only && bytes.backward > bytes.forward ? bytes.backward : bytes.forward;
    DR_TRY(dr_bench_take(&c->memory, workspace, &c->workspace));
    return dr_bench_sgemm_create(threads, options->seed, &c->sgemm);
}

static void destroy(op_case *c) {
    dr_bench_sgemm_destroy(&c->sgemm);
    dr_bench_free(&c->memory);
    dr_backend_close(c->memory.backend);
}

/* What the runs left must be numbers. */
static dr_status check(const op_case *c, bool forward_only) {
    DR_TRY(dr_bench_check_finite(c->memory.backend, c->o, outputs_of(c->recurrence), "the output"));
    for (int i = 0; i < DR_INPUTS && !forward_only; i++)
        if (c->d_inputs.at[i])
            DR_TRY(dr_bench_check_finite(c->memory.backend, c->d_inputs.at[i], dr_bench_input_count(c->recurrence, (dr_input)i),
                                         "a gradient"));
    return DR_OK;
}

static void fill_pairs(op_case *c, bool forward_only, dr_bench_pair *pair) {
    double counted = dr_bench_counted(c->recurrence);
    for (int i = 0; i < (forward_only ? 1 : WORKS); i++) dr_bench_sgemm_item(&c->sgemm, &pair[i].limit);
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
    *result = (dr_bench_op_result){.threads = threads, .chunk = 1};
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
                         op_case *cases, dr_bench_grid *grid, dr_bench_op_result *results) {
    int all = options->thread_counts * count;
    for (int i = 0; i < all; i++) {
        cases[i].recurrence = &recurrences[i % count];
        DR_TRY(prepare(options, options->threads[i / count], forward_only, &cases[i]));
        fill_pairs(&cases[i], forward_only, dr_bench_grid_at(grid, i / count, i % count, 0));
    }
    DR_TRY(dr_bench_grid_measure(grid));
    for (int i = 0; i < all; i++) DR_TRY(check(&cases[i], forward_only));
    for (int i = 0; i < all; i++) {
        describe(&cases[i], options->threads[i / count], &results[i]);
        results[i].forward = dr_bench_grid_work(grid, i / count, i % count, FORWARD);
        if (!forward_only) results[i].forward_backward = dr_bench_grid_work(grid, i / count, i % count, BOTH);
    }
    return DR_OK;
}

dr_status dr_bench_op(const dr_bench_options *options, bool forward_only, int count, const dr_recurrence *recurrences,
                      dr_bench_op_result *results) {
    DR_TRY(dr_bench_check(options, count));
    int all = options->thread_counts * count;
    dr_bench_grid grid = {0};
    void *cases = NULL;
    dr_status status;
    DR_GO(dr_bench_grid_create(options, count, forward_only ? 1 : WORKS, &grid));
    DR_GO(dr_allocate_zero((size_t)all * sizeof(op_case), "cases", &cases));
    DR_GO(measure(options, forward_only, count, recurrences, cases, &grid, results));
done:
    for (int i = 0; cases && i < all; i++) destroy((op_case *)cases + i);
    dr_release(cases);
    dr_bench_grid_destroy(&grid);
    return status;
}
