/* One call of the reference with vectors stored in 16 bits: what it reads is widened to double, and what it wrote is rounded at
 * the end. */
#ifndef DR_BACKENDS_REFERENCE_STORED_CALL_H
#define DR_BACKENDS_REFERENCE_STORED_CALL_H

#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/half.h"
#include "base/memory.h"

enum { DR_STORED_MOST = 2 * DR_DEPTH_MOST + 2 }; /* of depth_backward, which has the most */

/* The vectors of one call. */
typedef struct {
    const dr_backend *backend;
    dr_status status;
    int count;
    struct {
        double *wide;
        void *stored; /* where it is rounded to, or NULL: only read */
        int64_t count;
    } vector[DR_STORED_MOST];
} widened;

static inline double load(dr_dtype dtype, const void *stored, int64_t i) {
    uint16_t bits = ((const uint16_t *)stored)[i];
    return (double)(dtype == DR_BF16 ? dr_bf16_to_float(bits) : dr_f16_to_float(bits));
}

static inline void store(dr_dtype dtype, void *stored, int64_t i, double value) {
    ((uint16_t *)stored)[i] = dtype == DR_BF16 ? dr_bf16_from_double(value) : dr_f16_from_double(value);
}

static inline double *widen(widened *call, const void *stored, int64_t count) {
    void *memory = NULL;
    if (!stored || call->status != DR_OK) return NULL;
    call->status = dr_allocate((size_t)(count + 1) * sizeof(double), "vectors in double", &memory);
    if (call->status != DR_OK) return NULL;
    double *wide = memory;
    for (int64_t i = 0; i < count; i++) wide[i] = load(call->backend->storage, stored, i);
    call->vector[call->count].wide = wide;
    call->vector[call->count].stored = NULL;
    call->vector[call->count++].count = count;
    return wide;
}

/* A vector that is written, or added to; NULL where it is not wanted. */
static inline double *result(widened *call, void *stored, int64_t count) {
    double *wide = widen(call, stored, count);
    if (wide) call->vector[call->count - 1].stored = stored;
    return wide;
}

static inline dr_status finish(widened *call) {
    for (int i = 0; i < call->count; i++) {
        for (int64_t j = 0; call->vector[i].stored && call->status == DR_OK && j < call->vector[i].count; j++)
            store(call->backend->storage, call->vector[i].stored, j, call->vector[i].wide[j]);
        dr_release(call->vector[i].wide);
    }
    return call->status;
}

/* Runs the operation in double on what was widened. */
#define RUN(call, operation)                                                                                                   \
    do {                                                                                                                       \
        if ((call).status == DR_OK) (call).status = (operation);                                                               \
    } while (0)

#endif
