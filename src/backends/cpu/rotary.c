/* Rotary embedding in place: the tokens of each sequence from its offset on, rows shared out among threads. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <math.h>

dr_status dr_cpu_rotary(dr_backend *backend, const dr_rotary *rotary, void *x, bool backward) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t half = rotary->dim / 2;
    dr_cpu_scratch *scratch = NULL;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)half * sizeof(double), &scratch));
    double *turns = (double *)scratch->memory; /* [half] turns of each pair by one position */
    for (int64_t i = 0; i < half; i++) {
        double frequency =
            rotary->frequencies ? rotary->frequencies[i] : pow(rotary->base, -2 * (double)i / (double)rotary->dim);
        turns[i] = frequency / 6.283185307179586476925;
    }
    for (int64_t s = 0; s < rotary->layout.sequences; s++) {
        int64_t begin = dr_layout_begin(&rotary->layout, s), rows = dr_layout_begin(&rotary->layout, s + 1) - begin;
        int64_t offset = rotary->offset ? rotary->offset[s] : 0;
        int64_t parts = dr_cpu_threads(backend, rows, rows * rotary->heads * rotary->dim);
#pragma omp parallel for schedule(static) num_threads((int)parts)
        for (int64_t part = 0; part < parts; part++) {
            int64_t first = dr_cpu_part(rows, part, parts), last = dr_cpu_part(rows, part + 1, parts);
            kernels->rotary(rotary, last - first, offset + first, turns, backward, (float *)x + (begin + first) * rotary->row);
        }
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
