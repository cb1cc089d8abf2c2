/* Element types, counts of tensors, and how rows fall into sequences. */
#include <deltarule/tensor.h>

#include "base/error.h"

#include <inttypes.h>

size_t dr_dtype_size(dr_dtype dtype) {
    switch (dtype) {
    case DR_F64:
    case DR_I64:
        return 8;
    case DR_F32:
    case DR_I32:
        return 4;
    case DR_F16:
    case DR_BF16:
        return 2;
    case DR_U8:
    case DR_I8:
        return 1;
    }
    return 0;
}

const char *dr_dtype_name(dr_dtype dtype) {
    switch (dtype) {
    case DR_F32:
        return "F32";
    case DR_F64:
        return "F64";
    case DR_F16:
        return "F16";
    case DR_BF16:
        return "BF16";
    case DR_I32:
        return "I32";
    case DR_I64:
        return "I64";
    case DR_U8:
        return "U8";
    case DR_I8:
        return "I8";
    }
    return "unknown type";
}

int64_t dr_tensor_count(const dr_tensor *tensor) {
    int64_t count = tensor ? 1 : 0;
    for (int i = 0; tensor && i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

dr_status dr_layout_check(const dr_layout *layout) {
    DR_NEED(layout);
    if (layout->sequences < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "a layout of %" PRId64 " sequences: there must be at least one", layout->sequences);
    if (layout->rows < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "a layout of %" PRId64 " rows: there must be none or more", layout->rows);
    const int64_t *begin = layout->cu_seqlens;
    if (!begin) {
        if (layout->rows % layout->sequences != 0)
            return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " rows cannot be %" PRId64 " sequences of one length: give cu_seqlens",
                           layout->rows, layout->sequences);
        return DR_OK;
    }
    if (begin[0] != 0) return dr_fail(DR_ERROR_ARGUMENT, "cu_seqlens[0] is %" PRId64 ": it must be 0", begin[0]);
    for (int64_t i = 0; i < layout->sequences; i++)
        if (begin[i + 1] < begin[i])
            return dr_fail(DR_ERROR_ARGUMENT,
                           "cu_seqlens falls from %" PRId64 " to %" PRId64 " at sequence %" PRId64 ": it must never fall",
                           begin[i], begin[i + 1], i);
    if (begin[layout->sequences] != layout->rows)
        return dr_fail(DR_ERROR_ARGUMENT, "cu_seqlens ends at %" PRId64 ": it must end at the %" PRId64 " rows",
                       begin[layout->sequences], layout->rows);
    return DR_OK;
}

int64_t dr_layout_begin(const dr_layout *layout, int64_t i) {
    if (!layout) return 0;
    return layout->cu_seqlens ? layout->cu_seqlens[i] : layout->rows / layout->sequences * i;
}
