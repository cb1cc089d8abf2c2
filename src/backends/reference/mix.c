/* Mixing of rows: a token with the one before it, two rows by factors, and a bonus for what a token itself says (RWKV-7). */
#include "backends/reference/reference.h"

#include <string.h>

/* ---- token shift: y_m[t] = x[t] + (x[t - 1] - x[t]) factor_m --------------------------------------------------------- */

/* Channel c of the row before token t of sequence i: of the call, or from the state, or 0. */
static double before(const dr_token_shift *shift, int64_t i, int64_t t, int64_t c, const double *x, const double *initial) {
    if (t > dr_layout_begin(&shift->layout, i)) return x[(t - 1) * shift->dim + c];
    return initial ? initial[i * shift->dim + c] : 0;
}

dr_status dr_reference_token_shift_forward(dr_backend *backend, const dr_token_shift *shift, const void *x_,
                                           const void *factors, const void *initial, void *y, void *final_) {
    (void)backend;
    const int64_t dim = shift->dim, rows = shift->layout.rows;
    const double *x = x_;
    for (int64_t i = 0; i < shift->layout.sequences; i++) {
        const int64_t begin = dr_layout_begin(&shift->layout, i), end = dr_layout_begin(&shift->layout, i + 1);
        for (int64_t t = begin; t < end; t++) {
            for (int64_t m = 0; m < shift->mixes; m++)
                for (int64_t c = 0; c < dim; c++)
                    ((double *)y)[(m * rows + t) * dim + c] =
                        x[t * dim + c] +
                        (before(shift, i, t, c, x, initial) - x[t * dim + c]) * ((const double *)factors)[m * dim + c];
        }
        if (!final_) continue;
        double *final = (double *)final_ + i * dim;
        for (int64_t c = 0; c < dim; c++) final[c] = before(shift, i, end, c, x, initial);
    }
    return DR_OK;
}

dr_status dr_reference_token_shift_backward(dr_backend *backend, const dr_token_shift *shift, const void *x_,
                                            const void *factors_, const void *initial, const void *d_y_, void *d_x_,
                                            bool accumulate, void *d_factors_) {
    (void)backend;
    const int64_t dim = shift->dim, rows = shift->layout.rows;
    const double *x = x_, *factors = factors_;
    double *d_x = d_x_, *d_factors = d_factors_;
    if (d_x && !accumulate) memset(d_x, 0, (size_t)(rows * dim) * sizeof *d_x);
    for (int64_t i = 0; i < shift->layout.sequences; i++) {
        const int64_t begin = dr_layout_begin(&shift->layout, i), end = dr_layout_begin(&shift->layout, i + 1);
        for (int64_t t = begin; t < end; t++) {
            for (int64_t at = 0; at < shift->mixes * dim; at++) {
                const int64_t m = at / dim, c = at % dim;
                const double d = ((const double *)d_y_)[(m * rows + t) * dim + c];
                if (d_factors) d_factors[at] += d * (before(shift, i, t, c, x, initial) - x[t * dim + c]);
                if (d_x) d_x[t * dim + c] += d * (1 - factors[at]);
                if (d_x && t > begin) d_x[(t - 1) * dim + c] += d * factors[at];
            }
        }
    }
    return DR_OK;
}

/* ---- blend: y = x + (z - x) factor ----------------------------------------------------------------------------------- */

dr_status dr_reference_blend_forward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x_, const void *z,
                                     const void *factor, void *y) {
    (void)backend;
    for (int64_t i = 0; i < rows * dim; i++) {
        const double x = ((const double *)x_)[i];
        ((double *)y)[i] = x + (((const double *)z)[i] - x) * ((const double *)factor)[shared ? i % dim : i];
    }
    return DR_OK;
}

dr_status dr_reference_blend_backward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                      const void *factor_, const void *d_y_, void *d_x, void *d_z_, bool accumulate,
                                      void *d_factor_) {
    (void)backend;
    for (int64_t i = 0; i < rows * dim; i++) {
        const int64_t f = shared ? i % dim : i;
        const double factor = ((const double *)factor_)[f], d_y = ((const double *)d_y_)[i];
        double *d_z = d_z_ ? (double *)d_z_ + i : NULL, *d_factor = d_factor_ ? (double *)d_factor_ + f : NULL;
        if (d_x) ((double *)d_x)[i] = d_y * (1 - factor);
        if (d_z) *d_z = (accumulate ? *d_z : 0) + d_y * factor;
        if (d_factor) *d_factor = (shared ? *d_factor : 0) + d_y * (((const double *)z)[i] - ((const double *)x)[i]);
    }
    return DR_OK;
}

/* ---- bonus: y += (sum r k u) v --------------------------------------------------------------------------------------- */

static double agreement(int64_t size, const double *r, const double *k, const double *u) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += r[i] * k[i] * u[i];
    return sum;
}

dr_status dr_reference_bonus_forward(dr_backend *backend, const dr_bonus *bonus, const void *r, const void *k, const void *u,
                                     const void *v, void *y) {
    (void)backend;
    const int64_t key = bonus->key_size, value = bonus->value_size;
    for (int64_t h = 0; h < bonus->rows * bonus->heads; h++) {
        const double sum = agreement(key, (const double *)r + h * key, (const double *)k + h * key,
                                     (const double *)u + h % bonus->heads * key);
        for (int64_t i = 0; i < value; i++) ((double *)y)[h * value + i] += sum * ((const double *)v)[h * value + i];
    }
    return DR_OK;
}

dr_status dr_reference_bonus_backward(dr_backend *backend, const dr_bonus *bonus, const void *r_, const void *k_,
                                      const void *u_, const void *v_, const void *d_y_, void *d_r, void *d_k, void *d_u,
                                      void *d_v) {
    (void)backend;
    const int64_t key = bonus->key_size, value = bonus->value_size;
    for (int64_t h = 0; h < bonus->rows * bonus->heads; h++) {
        const int64_t shared = h % bonus->heads * key, at = h * key;
        const double *r = (const double *)r_ + at, *k = (const double *)k_ + at, *u = (const double *)u_ + shared;
        const double *v = (const double *)v_ + h * value, *d_y = (const double *)d_y_ + h * value;
        const double sum = agreement(key, r, k, u);
        double d_sum = 0;
        for (int64_t i = 0; i < value; i++) {
            d_sum += d_y[i] * v[i];
            if (d_v) ((double *)d_v)[h * value + i] += sum * d_y[i];
        }
        for (int64_t i = 0; i < key; i++) {
            if (d_r) ((double *)d_r)[at + i] += d_sum * k[i] * u[i];
            if (d_k) ((double *)d_k)[at + i] += d_sum * r[i] * u[i];
            if (d_u) ((double *)d_u)[shared + i] += d_sum * r[i] * k[i];
        }
    }
    return DR_OK;
}
