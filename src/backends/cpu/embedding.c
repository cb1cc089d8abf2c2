/* Rows of a table by token id. The backward adds rows that may fall on the same id, so threads share out the columns of the
 * table and each goes through all rows in order. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"

#include <string.h>

dr_status dr_cpu_embedding_forward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *table_,
                                   void *y_) {
    const float *table = table_;
    float *y = y_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, rows, rows *dim))
    for (int64_t r = 0; r < rows; r++) memcpy(y + r * dim, table + ids[r] * dim, (size_t)dim * sizeof *y);
    return DR_OK;
}

dr_status dr_cpu_embedding_backward(dr_backend *backend, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y_,
                                    void *d_table_) {
    const float *d_y = d_y_;
    float *d_table = d_table_;
    int64_t parts = dr_cpu_threads(backend, dim, rows * dim);
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = dr_cpu_part(dim, part, parts), last = dr_cpu_part(dim, part + 1, parts);
        for (int64_t r = 0; r < rows; r++) {
            float *to = d_table + ids[r] * dim;
            for (int64_t c = first; c < last; c++) to[c] += d_y[r * dim + c];
        }
    }
    return DR_OK;
}
