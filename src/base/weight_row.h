/* Rows of weights that are stored narrower than products compute:
 *
 *     DR_BF16   [columns], each rounded to the nearest
 *     DR_I8     a float, the scale, then [columns] signed bytes, then up to 3 bytes of zero. An element is scale times its
 * byte, and scale is the largest magnitude of the row / 127.
 *
 * A row begins at any multiple of 4 bytes behind another, so that rows of a matrix can be read from any row on. */
#ifndef DR_BASE_WEIGHT_ROW_H
#define DR_BASE_WEIGHT_ROW_H

#include <deltarule/tensor.h>

enum { DR_WEIGHT_SCALE_BYTES = sizeof(float), DR_WEIGHT_MOST = 127 };

static inline size_t dr_weight_row_bytes(dr_dtype type, int64_t columns) {
    if (type == DR_I8) return DR_WEIGHT_SCALE_BYTES + ((size_t)columns + 3) / 4 * 4;
    return (size_t)columns * dr_dtype_size(type);
}

/* from [columns], DR_F32 or DR_F64, finite */
void dr_weight_row_store(dr_dtype type, int64_t columns, const void *from, dr_dtype from_type, void *row);

/* to [count] = elements first .. first + count - 1 of the row, exactly */
void dr_weight_row_load(dr_dtype type, const void *row, int64_t first, int64_t count, double *to);

#endif
