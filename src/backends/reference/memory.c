/* Memory of the reference is host memory; copies convert between its doubles and the floating types of the host. To the 16-bit
 * types they go by way of float. */
#include "base/memory.h"
#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/half.h"

#include <string.h>

dr_status dr_reference_allocate(dr_backend *backend, size_t bytes, void **memory) {
    (void)backend;
    return dr_allocate(bytes, "tensors of the reference", memory);
}

dr_status dr_reference_upload(dr_backend *backend, void *to_, const void *from, dr_dtype from_dtype, int64_t count) {
    (void)backend;
    double *to = to_;
    switch (from_dtype) {
    case DR_F64:
        for (int64_t i = 0; i < count; i++) to[i] = ((const double *)from)[i];
        return DR_OK;
    case DR_F32:
        for (int64_t i = 0; i < count; i++) to[i] = (double)((const float *)from)[i];
        return DR_OK;
    case DR_F16:
        for (int64_t i = 0; i < count; i++) to[i] = (double)dr_f16_to_float(((const uint16_t *)from)[i]);
        return DR_OK;
    case DR_BF16:
        for (int64_t i = 0; i < count; i++) to[i] = (double)dr_bf16_to_float(((const uint16_t *)from)[i]);
        return DR_OK;
    default:
        return dr_fail(DR_ERROR_ARGUMENT, "tensors of type %s cannot be uploaded: only F32, F64, F16 and BF16 can",
                       dr_dtype_name(from_dtype));
    }
}

dr_status dr_reference_download(dr_backend *backend, void *to, dr_dtype to_dtype, const void *from_, int64_t count) {
    (void)backend;
    const double *from = from_;
    switch (to_dtype) {
    case DR_F64:
        for (int64_t i = 0; i < count; i++) ((double *)to)[i] = from[i];
        return DR_OK;
    case DR_F32:
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)from[i];
        return DR_OK;
    case DR_F16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dr_f16_from_float((float)from[i]);
        return DR_OK;
    case DR_BF16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dr_bf16_from_float((float)from[i]);
        return DR_OK;
    default:
        return dr_fail(DR_ERROR_ARGUMENT, "tensors cannot be downloaded as %s: only as F32, F64, F16 and BF16",
                       dr_dtype_name(to_dtype));
    }
}
