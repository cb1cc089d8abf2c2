/* Memory of the backend is host memory; copies convert between its floats and the floating types of the host. */
#include "base/memory.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"
#include "base/half.h"

#include <string.h>

dr_status dr_cpu_allocate(dr_backend *backend, size_t bytes, void **memory) {
    (void)backend;
    return dr_allocate(bytes, "tensors of the CPU backend", memory);
}

/* Blocks of scratch memory that no call uses lie in the backend's places, each of which is exchanged as a whole: a thread never
 * waits for another, and a child of fork finds none that its parent held locked. */
dr_status dr_cpu_scratch_take(dr_backend *backend, size_t bytes, dr_cpu_scratch **scratch) {
    dr_cpu_state *state = backend->state;
    dr_cpu_scratch *found = NULL;
    for (int i = 0; i < DR_CPU_SCRATCH_PLACES && !found; i++) found = atomic_exchange(&state->scratch[i], NULL);
    if (!found || found->bytes < bytes) {
        void *memory = NULL;
        dr_status status = dr_allocate(sizeof *found + bytes, "scratch memory of the CPU backend", &memory);
        dr_release(found);
        if (status != DR_OK) return status;
        found = memory;
        found->bytes = bytes;
    }
    *scratch = found;
    return DR_OK;
}

void dr_cpu_scratch_give(dr_backend *backend, dr_cpu_scratch *scratch) {
    dr_cpu_state *state = backend->state;
    if (!scratch) return;
    for (int i = 0; i < DR_CPU_SCRATCH_PLACES; i++) {
        dr_cpu_scratch *none = NULL;
        if (atomic_compare_exchange_strong(&state->scratch[i], &none, scratch)) return;
    }
    dr_release(scratch);
}

void dr_cpu_add_parts(const float *sums, int64_t columns, float *total) {
    for (int part = 0; part < DR_CPU_PARTS; part++)
        for (int64_t c = 0; c < columns; c++) total[c] += sums[part * columns + c];
}

dr_status dr_cpu_upload(dr_backend *backend, void *to_, const void *from, dr_dtype from_dtype, int64_t count) {
    (void)backend;
    float *to = to_;
    switch (from_dtype) {
    case DR_F32:
        if (count > 0) memcpy(to, from, (size_t)count * sizeof *to);
        return DR_OK;
    case DR_F64:
        for (int64_t i = 0; i < count; i++) to[i] = (float)((const double *)from)[i];
        return DR_OK;
    case DR_F16:
        for (int64_t i = 0; i < count; i++) to[i] = dr_f16_to_float(((const uint16_t *)from)[i]);
        return DR_OK;
    case DR_BF16:
        for (int64_t i = 0; i < count; i++) to[i] = dr_bf16_to_float(((const uint16_t *)from)[i]);
        return DR_OK;
    default:
        return dr_fail(DR_ERROR_ARGUMENT, "tensors of type %s cannot be uploaded: only F32, F64, F16 and BF16 can",
                       dr_dtype_name(from_dtype));
    }
}

dr_status dr_cpu_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from_, int64_t count) {
    (void)backend;
    const float *from = from_;
    switch (to_dtype) {
    case DR_F32:
        if (count > 0) memcpy(to, from, (size_t)count * sizeof *from);
        return DR_OK;
    case DR_F64:
        for (int64_t i = 0; i < count; i++) ((double *)to)[i] = (double)from[i];
        return DR_OK;
    case DR_F16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dr_f16_from_float(from[i]);
        return DR_OK;
    case DR_BF16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dr_bf16_from_float(from[i]);
        return DR_OK;
    default:
        return dr_fail(DR_ERROR_ARGUMENT, "tensors cannot be downloaded as %s: only as F32, F64, F16 and BF16",
                       dr_dtype_name(to_dtype));
    }
}
