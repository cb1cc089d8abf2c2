/* Samples and their quantiles, vectors, and a state that is computed token by token in double with plain loops. */
#include "base/error.h"
#include "base/memory.h"
#include "base/order.h"
#include "check/blas.h"
#include "check/probe/probe.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* ---- samples -------------------------------------------------------------------------------------------------------- */

void dr_probe_add(dr_probe_samples *samples, double value) {
    if (samples->status != DR_OK || !isfinite(value)) return;
    void *memory = samples->values;
    samples->status = dr_grow(&memory, samples->count, sizeof *samples->values, "the samples of a probe");
    samples->values = memory;
    if (samples->status == DR_OK) samples->values[samples->count++] = value;
}

/* The number below which this share of sorted numbers lies, between its neighbours. */
static double quantile(const double *sorted, int64_t count, double share) {
    const double place = share * (double)(count - 1);
    const int64_t below = (int64_t)place;
    if (below + 1 >= count) return sorted[count - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

dr_status dr_probe_tell(const dr_probe_listener *listener, int64_t layer, const char *name, dr_probe_samples *samples) {
    const double *sorted = samples->values;
    const int64_t count = samples->count;
    if (samples->status == DR_OK && count > 0) {
        double sum = 0;
        for (int64_t i = 0; i < count; i++) sum += samples->values[i];
        qsort(samples->values, (size_t)count, sizeof *samples->values, dr_ascending);
        const dr_probe_figure figure = {.layer = layer,
                                        .name = name,
                                        .count = count,
                                        .mean = sum / (double)count,
                                        .least = sorted[0],
                                        .low = quantile(sorted, count, 0.05),
                                        .median = quantile(sorted, count, 0.5),
                                        .high = quantile(sorted, count, 0.95),
                                        .most = sorted[count - 1]};
        listener->figure(listener->context, &figure);
    }
    const dr_status status = samples->status;
    dr_release(samples->values);
    *samples = (dr_probe_samples){0};
    return status;
}

/* ---- vectors -------------------------------------------------------------------------------------------------------- */

double dr_probe_dot(int64_t count, const double *a, const double *b) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

double dr_probe_norm(int64_t count, const double *a) {
    return sqrt(dr_probe_dot(count, a, a));
}

double dr_probe_cosine(int64_t count, const double *a, const double *b) {
    return dr_probe_dot(count, a, b) / (dr_probe_norm(count, a) * dr_probe_norm(count, b));
}

/* ---- the state ------------------------------------------------------------------------------------------------------ */

void dr_probe_state_decay(const dr_probe_layer *layer, int64_t token, int64_t value_head, double *state) {
    const int64_t K = layer->recurrence.key_size, V = layer->recurrence.value_size;
    for (int64_t i = 0; i < K; i++) {
        const double alpha = dr_probe_decay(layer, token, value_head, i);
        for (int64_t j = 0; j < V; j++) state[i * V + j] *= alpha;
    }
}

void dr_probe_state_read(const dr_recurrence *recurrence, const double *state, const double *query, double *read) {
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    for (int64_t j = 0; j < V; j++) read[j] = 0;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) read[j] += state[i * V + j] * query[i];
}

void dr_probe_state_write(const dr_recurrence *recurrence, double gain, const double *write, const double *value,
                          const double *read, double *state) {
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) state[i * V + j] += gain * write[i] * ((value ? value[j] : 0) - read[j]);
}

/* ---- eigenvalues ---------------------------------------------------------------------------------------------------- */

static int descending(const void *one, const void *other) {
    return dr_ascending(other, one);
}

dr_status dr_probe_eigenvalues(int64_t n, double *matrix, double *eigenvalues) {
    const dr_blas *blas;
    DR_TRY(dr_blas_open(&blas));
    if (n > INT_MAX / 8) return dr_fail(DR_ERROR_UNSUPPORTED, "a matrix of %lld rows is too large", (long long)n);
    const int order = (int)n, one = 1, numbers = 8 * order;
    int info = 1;
    double none[1];
    void *memory;
    DR_TRY(dr_allocate((size_t)(numbers + order) * sizeof(double), "the work on eigenvalues", &memory));
    double *imaginary = memory, *work = imaginary + order;
    blas->eigenvalues("N", "N", &order, matrix, &order, eigenvalues, imaginary, none, &one, none, &one, work, &numbers, &info,
                      1, 1);
    dr_release(memory);
    if (info != 0) return dr_fail(DR_ERROR_NUMERIC, "LAPACK found no eigenvalues: its status is %d", info);
    qsort(eigenvalues, (size_t)n, sizeof *eigenvalues, descending);
    return DR_OK;
}
