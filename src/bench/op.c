/* Recurrences over many tokens, case by case in turn: sgemm, forward, sgemm, forward and backward. */
#include "base/error.h"
#include "base/memory.h"
#include "bench/count.h"
#include "bench/inputs.h"
#include "bench/limit.h"
#include "bench/timing.h"

#include <string.h>

enum { SGEMM_FORWARD, FORWARD, SGEMM_BOTH, BOTH, ITEMS }; /* of a case */

/* A case with all that its runs read and write. */
typedef struct {
    const dr_bench_op_case *asked;
    bool backward;
    dr_bench_memory memory; /* memory.backend: the case's own, for its number of threads */
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    void *o, *d_o, *saved, *workspace;
    dr_bench_sgemm sgemm;
    double *seconds; /* [ITEMS, repeats] */
} op_case;

static dr_status run_forward(void *context) {
    op_case *c = context;
    return dr_recurrence_forward(c->memory.backend, &c->asked->recurrence, &c->inputs, NULL, c->o, NULL, NULL, c->workspace);
}

static dr_status run_both(void *context) {
    op_case *c = context;
    const dr_recurrence *recurrence = &c->asked->recurrence;
    DR_TRY(dr_recurrence_forward(c->memory.backend, recurrence, &c->inputs, NULL, c->o, NULL, c->saved, c->workspace));
    return dr_recurrence_backward(c->memory.backend, recurrence, &c->inputs, NULL, c->saved, c->d_o, NULL, &c->d_inputs, NULL,
                                  c->workspace);
}

static dr_status prepare_backward(op_case *c, const dr_recurrence_memory *bytes, uint64_t seed) {
    const dr_recurrence *recurrence = &c->asked->recurrence;
    size_t element = dr_dtype_size(dr_backend_dtype(c->memory.backend));
    DR_TRY(dr_bench_take(&c->memory, bytes->saved, &c->saved));
    for (int i = 0; i < DR_INPUTS; i++)
        if (c->inputs.at[i])
            DR_TRY(
                dr_bench_take(&c->memory, (size_t)dr_bench_input_count(recurrence, (dr_input)i) * element, &c->d_inputs.at[i]));
    return dr_bench_normals(&c->memory, recurrence->layout.rows * recurrence->value_heads * recurrence->value_size, seed,
                            &c->d_o);
}

static dr_status prepare(const dr_bench_options *options, const dr_bench_op_case *asked, op_case *c) {
    const dr_recurrence *recurrence = &asked->recurrence;
    c->asked = asked;
    c->backward = !options->forward_only;
    if (asked->threads < 1) return dr_fail(DR_ERROR_ARGUMENT, "%d threads cannot run: ask for 1 or more", asked->threads);
    DR_TRY(dr_backend_open("cpu", &(dr_backend_options){.threads = asked->threads, .isa = options->isa}, &c->memory.backend));
    dr_recurrence_memory bytes;
    DR_TRY(dr_recurrence_plan(c->memory.backend, recurrence, &bytes));
    DR_TRY(dr_bench_inputs(&c->memory, recurrence, options->seed, &c->inputs));
    size_t outputs = (size_t)(recurrence->layout.rows * recurrence->value_heads * recurrence->value_size);
    DR_TRY(dr_bench_take(&c->memory, outputs * dr_dtype_size(dr_backend_dtype(c->memory.backend)), &c->o));
    if (c->backward) DR_TRY(prepare_backward(c, &bytes, options->seed));
    size_t workspace = c->backward && bytes.backward > bytes.forward ? bytes.backward : bytes.forward;
    DR_TRY(dr_bench_take(&c->memory, workspace, &c->workspace));
    return dr_bench_sgemm_create(asked->threads, options->seed, &c->sgemm);
}

static void destroy(op_case *c) {
    dr_bench_sgemm_destroy(&c->sgemm);
    dr_bench_free(&c->memory);
    dr_backend_close(c->memory.backend);
}

/* Adds the items of a case, and gives each its seconds. */
static int add_items(op_case *c, int64_t repeats, dr_bench_item *items) {
    const dr_bench_item all[ITEMS] = {[SGEMM_FORWARD] = {dr_bench_sgemm_run, &c->sgemm, NULL},
                                      [FORWARD] = {run_forward, c, NULL},
                                      [SGEMM_BOTH] = {dr_bench_sgemm_run, &c->sgemm, NULL},
                                      [BOTH] = {run_both, c, NULL}};
    int count = c->backward ? ITEMS : SGEMM_BOTH;
    for (int i = 0; i < count; i++) {
        items[i] = all[i];
        items[i].seconds = c->seconds + i * repeats;
    }
    return count;
}

/* The figures of one item, FORWARD or BOTH, its sgemm before it. first: the first case's seconds of all items. */
static dr_bench_work work_of(const op_case *c, const double *first, int item, int64_t repeats, double counted,
                             double performed) {
    const double *seconds = c->seconds + item * repeats, *sgemm = seconds - repeats;
    double limit = dr_bench_sgemm_operations(&c->sgemm);
    dr_bench_work work = {.seconds = dr_bench_summary(seconds, repeats), .counted = counted, .performed = performed};
    work.rate = counted / work.seconds.median;
    work.share = counted / limit * dr_bench_median_ratio(sgemm, seconds, repeats);
    work.share_best = counted / limit * dr_bench_summary(sgemm, repeats).best / work.seconds.best;
    work.ratio = dr_bench_median_ratio(seconds, first + item * repeats, repeats);
    return work;
}

static void conclude(const op_case *c, const double *first, int64_t repeats, dr_bench_op_result *result) {
    const dr_recurrence *recurrence = &c->asked->recurrence;
    int64_t boundaries;
    *result = (dr_bench_op_result){.chunk = 1};
    dr_recurrence_kernel(c->memory.backend, recurrence, false, result->kernel, sizeof result->kernel);
    bool chunkwise = strstr(result->kernel, "chunkwise") != NULL;
    if (chunkwise) dr_recurrence_boundaries(c->memory.backend, recurrence, 0, &result->chunk, &boundaries);
    dr_bench_seconds sgemm = dr_bench_summary(c->seconds, repeats);
    result->limit = dr_bench_sgemm_operations(&c->sgemm) / sgemm.median;
    result->limit_best = dr_bench_sgemm_operations(&c->sgemm) / sgemm.best;
    double counted = dr_bench_counted(recurrence);
    double forward = dr_bench_performed_forward(recurrence, chunkwise, result->chunk);
    double backward = dr_bench_performed_backward(recurrence, chunkwise, result->chunk);
    result->forward = work_of(c, first, FORWARD, repeats, counted, forward);
    if (c->backward) result->forward_backward = work_of(c, first, BOTH, repeats, 3 * counted, forward + backward);
}

dr_status dr_bench_op(const dr_bench_options *options, int count, const dr_bench_op_case *cases, dr_bench_op_result *results) {
    int64_t repeats = options->repeats;
    if (repeats < 1 || repeats > DR_BENCH_MOST_REPEATS)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld repeats cannot be: ask for 1 to %d", (long long)repeats, DR_BENCH_MOST_REPEATS);
    void *cases_memory = NULL, *items_memory = NULL, *seconds = NULL;
    dr_status status;
    DR_GO(dr_allocate_zero((size_t)count * sizeof(op_case), "cases", &cases_memory));
    DR_GO(dr_allocate((size_t)count * ITEMS * sizeof(dr_bench_item), "measurements", &items_memory));
    DR_GO(dr_allocate((size_t)(count * ITEMS * repeats) * sizeof(double), "measurements", &seconds));
    op_case *prepared = cases_memory;
    dr_bench_item *items = items_memory;
    int used = 0;
    for (int i = 0; i < count; i++) {
        prepared[i].seconds = (double *)seconds + i * ITEMS * repeats;
        DR_GO(prepare(options, &cases[i], &prepared[i]));
        used += add_items(&prepared[i], repeats, items + used);
    }
    DR_GO(dr_bench_measure(items, used, repeats));
    for (int i = 0; i < count; i++) conclude(&prepared[i], prepared[0].seconds, repeats, &results[i]);
done:
    for (int i = 0; cases_memory && i < count; i++) destroy((op_case *)cases_memory + i);
    dr_release(seconds);
    dr_release(items_memory);
    dr_release(cases_memory);
    return status;
}
