/* Mixing of rows: token shift, blending, bonus. Gradients of what all rows share are summed in DR_CPU_PARTS parts of rows. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

#include <string.h>

/* sums [DR_CPU_PARTS, columns] of zeros, or none where no gradient is wanted */
static dr_status take_sums(dr_backend *backend, int64_t columns, bool wanted, dr_cpu_scratch **scratch, float **sums) {
    const size_t bytes = (size_t)(DR_CPU_PARTS * columns) * sizeof(float);
    *scratch = NULL;
    *sums = NULL;
    if (!wanted) return DR_OK;
    DR_TRY(dr_cpu_scratch_take(backend, bytes, scratch));
    *sums = (float *)(*scratch)->memory;
    memset(*sums, 0, bytes);
    return DR_OK;
}

/* ---- token shift ----------------------------------------------------------------------------------------------------- */

/* The sequence of row t, found from the one of the row before; a row's first token has what the state holds before it. */
static int64_t sequence_of(const dr_layout *layout, int64_t from, int64_t t) {
    while (dr_layout_begin(layout, from + 1) <= t) from++;
    return from;
}

dr_status dr_cpu_token_shift_forward(dr_backend *backend, const dr_token_shift *shift, const void *x_, const void *factors,
                                     const void *initial_, void *y, void *final_) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t dim = shift->dim, rows = shift->layout.rows;
    const float *x = x_, *initial = initial_;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *dim * shift->mixes))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t sequence = 0;
        for (int64_t t = dr_cpu_part(rows, part, DR_CPU_PARTS); t < dr_cpu_part(rows, part + 1, DR_CPU_PARTS); t++) {
            sequence = sequence_of(&shift->layout, sequence, t);
            const bool first = t == dr_layout_begin(&shift->layout, sequence);
            const float *before = !first ? x + (t - 1) * dim : initial ? initial + sequence * dim : NULL;
            for (int64_t m = 0; m < shift->mixes; m++)
                kernels->blend_forward(dim, x + t * dim, before, (const float *)factors + m * dim,
                                       (float *)y + (m * rows + t) * dim);
        }
    }
    for (int64_t i = 0; i < shift->layout.sequences && final_; i++) {
        const int64_t begin = dr_layout_begin(&shift->layout, i), end = dr_layout_begin(&shift->layout, i + 1);
        float *final = (float *)final_ + i * dim;
        if (end > begin)
            memcpy(final, x + (end - 1) * dim, (size_t)dim * sizeof *final);
        else if (!initial)
            memset(final, 0, (size_t)dim * sizeof *final);
        else if (final != initial + i * dim)
            memcpy(final, initial + i * dim, (size_t)dim * sizeof *final);
    }
    return DR_OK;
}

dr_status dr_cpu_token_shift_backward(dr_backend *backend, const dr_token_shift *shift, const void *x_, const void *factors_,
                                      const void *initial_, const void *d_y_, void *d_x_, bool accumulate, void *d_factors) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t dim = shift->dim, rows = shift->layout.rows, width = shift->mixes * dim;
    const float *x = x_, *factors = factors_, *initial = initial_, *d_y = d_y_;
    dr_cpu_scratch *scratch;
    float *sums;
    DR_TRY(take_sums(backend, width, d_factors, &scratch, &sums));
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *width))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        int64_t sequence = 0;
        for (int64_t t = dr_cpu_part(rows, part, DR_CPU_PARTS); t < dr_cpu_part(rows, part + 1, DR_CPU_PARTS); t++) {
            sequence = sequence_of(&shift->layout, sequence, t);
            const bool first = t == dr_layout_begin(&shift->layout, sequence);
            const bool last = t + 1 == dr_layout_begin(&shift->layout, sequence + 1);
            const float *before = !first ? x + (t - 1) * dim : initial ? initial + sequence * dim : NULL;
            float *d_x = d_x_ ? (float *)d_x_ + t * dim : NULL;
            for (int64_t m = 0; m < shift->mixes; m++)
                kernels->blend_backward(dim, x + t * dim, before, factors + m * dim, d_y + (m * rows + t) * dim, d_x,
                                        accumulate || m > 0, NULL, false, sums ? sums + part * width + m * dim : NULL, true);
            for (int64_t m = 0; m < shift->mixes && d_x && !last; m++) /* what the next token takes of this one */
                kernels->blend_backward(dim, NULL, NULL, factors + m * dim, d_y + (m * rows + t + 1) * dim, NULL, false, d_x,
                                        true, NULL, false);
        }
    }
    if (d_factors) dr_cpu_add_parts(sums, width, d_factors);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* ---- blend ----------------------------------------------------------------------------------------------------------- */

dr_status dr_cpu_blend_forward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                               const void *factor, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, rows, rows *dim))
    for (int64_t r = 0; r < rows; r++)
        kernels->blend_forward(dim, (const float *)x + r * dim, (const float *)z + r * dim,
                               (const float *)factor + (shared ? 0 : r * dim), (float *)y + r * dim);
    return DR_OK;
}

dr_status dr_cpu_blend_backward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate, void *d_factor) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    dr_cpu_scratch *scratch;
    float *sums;
    DR_TRY(take_sums(backend, dim, shared && d_factor, &scratch, &sums));
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *dim))
    for (int part = 0; part < DR_CPU_PARTS; part++)
        for (int64_t r = dr_cpu_part(rows, part, DR_CPU_PARTS); r < dr_cpu_part(rows, part + 1, DR_CPU_PARTS); r++) {
            const int64_t at = r * dim;
            float *to = sums ? sums + part * dim : d_factor ? (float *)d_factor + at : NULL;
            kernels->blend_backward(dim, (const float *)x + at, (const float *)z + at,
                                    (const float *)factor + (shared ? 0 : at), (const float *)d_y + at,
                                    d_x ? (float *)d_x + at : NULL, false, d_z ? (float *)d_z + at : NULL, accumulate, to,
                                    shared);
        }
    if (sums) dr_cpu_add_parts(sums, dim, d_factor);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* ---- bonus ----------------------------------------------------------------------------------------------------------- */

dr_status dr_cpu_bonus_forward(dr_backend *backend, const dr_bonus *bonus, const void *r, const void *k, const void *u,
                               const void *v, void *y) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t key = bonus->heads * bonus->key_size, value = bonus->heads * bonus->value_size;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, bonus->rows, bonus->rows *(key + value)))
    for (int64_t t = 0; t < bonus->rows; t++)
        kernels->bonus_forward(bonus, 1, (const float *)r + t * key, (const float *)k + t * key, u,
                               (const float *)v + t * value, (float *)y + t * value);
    return DR_OK;
}

dr_status dr_cpu_bonus_backward(dr_backend *backend, const dr_bonus *bonus, const void *r, const void *k, const void *u,
                                const void *v, const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t key = bonus->heads * bonus->key_size, value = bonus->heads * bonus->value_size, rows = bonus->rows;
    dr_cpu_scratch *scratch;
    float *sums;
    DR_TRY(take_sums(backend, key, d_u, &scratch, &sums));
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, DR_CPU_PARTS, rows *(key + value)))
    for (int part = 0; part < DR_CPU_PARTS; part++) {
        const int64_t begin = dr_cpu_part(rows, part, DR_CPU_PARTS), end = dr_cpu_part(rows, part + 1, DR_CPU_PARTS);
        const int64_t at = begin * key;
        kernels->bonus_backward(bonus, end - begin, (const float *)r + at, (const float *)k + at, u,
                                (const float *)v + begin * value, (const float *)d_y + begin * value,
                                d_r ? (float *)d_r + at : NULL, d_k ? (float *)d_k + at : NULL, sums ? sums + part * key : NULL,
                                d_v ? (float *)d_v + begin * value : NULL);
    }
    if (d_u) dr_cpu_add_parts(sums, key, d_u);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
