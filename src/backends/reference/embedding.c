/* Rows of a table by token id: y[r] = table[ids[r]]; the gradient of a row is the sum over the tokens that have its id. */
#include "backends/reference/reference.h"

#include <string.h>

dr_status dr_reference_embedding_forward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *table,
                                         void *y) {
    size_t row = dr_kind_bytes(backend, DR_VECTOR, dim);
    for (int64_t r = 0; r < rows; r++) memcpy((char *)y + (size_t)r * row, (const char *)table + (size_t)ids[r] * row, row);
    return DR_OK;
}

dr_status dr_reference_embedding_backward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y_,
                                          void *d_table_) {
    (void)backend;
    const double *d_y = d_y_;
    double *d_table = d_table_;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < dim; i++) d_table[ids[r] * dim + i] += d_y[r * dim + i];
    return DR_OK;
}
