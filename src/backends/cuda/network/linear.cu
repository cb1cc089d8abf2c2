/* Products with weights: y = x W^T + b, their gradients d_x = d_y W and d_W += d_y^T x, and the same with one matrix a head. A
 * bias is added in float, before the sum is rounded: such a product is left in float first. */
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/products.h"
#include "backends/cuda/network/rows_product.h"
#include "backends/cuda/network/shallow_product.h"

/* ---- biases ---------------------------------------------------------------------------------------------------------------
 */

/* y = sums + bias [columns] + plus, where there is one */
template <typename T> struct bias_call {
    int64_t columns;
    const float *sums, *bias;
    const T *plus;
    T *y;

    template <int N> __device__ void at(int64_t i) const {
        dr_floats<N> x = dr_load_floats<N>(sums + i);
        const dr_floats<N> b = dr_load_floats<N>(bias + i % columns);
        const dr_floats<N> p = plus ? dr_load_floats<N>(plus + i) : dr_same<N>(0);
        EACH x.at[n] += b.at[n] + p.at[n];
        dr_store_floats<N>(y + i, x);
    }
};

template <typename T> struct row_sum {
    const T *x;
    int64_t columns;
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[1]) const {
        const dr_floats<N> some = dr_load_floats<N>(x + row * columns + column);
        EACH sum[0].at[n] += some.at[n];
    }
};

/* d_bias += the sum of the rows of d_y */
static dr_status add_rows(dr_backend *backend, const dr_cuda *gpu, int64_t rows, int64_t columns, const void *d_y,
                          float *d_bias) {
    const dr_scratch scratch(backend, dr_column_bytes<1>(rows, columns));
    DR_TRY(scratch.status);
    DR_NETWORK_INSTANCE(
        backend, columns, (d_y), T, N, const row_sum<T> sum = {(const T *)d_y, columns};
        return dr_run_columns<N, 1>(gpu, "bias_gradient", sum, rows, columns, (float *)scratch.at, {{{d_bias, 1, 1}}}))
}

/* ---- linear ---------------------------------------------------------------------------------------------------------------
 */

static dr_cuda_multiplication product_of(const dr_backend *backend, int64_t rows, int64_t columns, int64_t depth) {
    dr_cuda_multiplication p = {};
    p.rows = rows, p.columns = columns, p.depth = depth, p.batch = 1;
    p.from = p.to = backend->storage;
    return p;
}

dr_status dr_cuda_linear_forward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                 const void *bias, void *y) {
    DR_NETWORK_ENTER(backend);
    const int64_t rows = linear->rows, in = linear->in, out = linear->out, count = rows * out;
    dr_cuda_multiplication p = product_of(backend, rows, out, in);
    if (count == 0) return DR_OK;
    if (dr_cuda_rows_product_takes(backend, linear, x, weight)) return dr_cuda_rows_product(gpu, linear, x, weight, bias, y);
    if (dr_cuda_shallow_product_takes(backend, linear, x, weight, bias, y))
        return dr_cuda_shallow_product(gpu, linear, x, weight, bias, y);
    p.a = x, p.a_row = dr_linear_pitch(linear), p.b = weight, p.b_row = in, p.b_turned = true, p.c = y, p.c_row = out;
    if (!bias) {
        p.plus = linear->plus;
        return dr_cuda_multiply(backend, &p);
    }
    const dr_scratch scratch(backend, count * (int64_t)sizeof(float));
    DR_TRY(scratch.status);
    p.c = scratch.at, p.to = DR_F32;
    DR_TRY(dr_cuda_multiply(backend, &p));
    DR_NETWORK_INSTANCE(
        backend, out, (y, bias, linear->plus), T, N,
        const bias_call<T> call = {out, (const float *)scratch.at, (const float *)bias, (const T *)linear->plus, (T *)y};
        return dr_run_each<N>(gpu, "bias", count, call))
}

dr_status dr_cuda_linear_backward(dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                  const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    DR_NETWORK_ENTER(backend);
    const int64_t rows = linear->rows, in = linear->in, out = linear->out;
    if (rows == 0) return DR_OK;
    if (d_weight) { /* first, since d_x may take the place of x */
        dr_cuda_multiplication p = product_of(backend, out, in, rows);
        p.a = d_y, p.a_row = out, p.a_turned = true, p.b = x, p.b_row = dr_linear_pitch(linear), p.c = d_weight, p.c_row = in;
        p.to = DR_F32, p.add = true;
        DR_TRY(dr_cuda_multiply(backend, &p));
    }
    if (d_x) {
        dr_cuda_multiplication p = product_of(backend, rows, in, out);
        p.a = d_y, p.a_row = out, p.b = weight, p.b_row = in, p.c = d_x, p.c_row = dr_linear_pitch(linear), p.add = accumulate;
        DR_TRY(dr_cuda_multiply(backend, &p));
    }
    return d_bias ? add_rows(backend, gpu, rows, out, d_y, (float *)d_bias) : DR_OK;
}

/* ---- one matrix a group ---------------------------------------------------------------------------------------------------
 */

dr_status dr_cuda_grouped_linear_forward(dr_backend *backend, const dr_grouped_linear *linear, const void *x,
                                         const void *weight, void *y) {
    const int64_t rows = linear->rows, groups = linear->groups, in = linear->in, out = linear->out;
    dr_cuda_multiplication p = product_of(backend, rows, out, in);
    if (rows * groups * out == 0) return DR_OK;
    DR_NETWORK_ENTER(backend);
    (void)gpu;
    p.a = x, p.a_row = dr_grouped_linear_pitch(linear), p.a_apart = in, p.b = weight, p.b_row = in, p.b_turned = true,
    p.b_apart = out * in;
    p.c = y, p.c_row = groups * out, p.c_apart = out, p.batch = groups;
    return dr_cuda_multiply(backend, &p);
}

dr_status dr_cuda_grouped_linear_backward(dr_backend *backend, const dr_grouped_linear *linear, const void *x,
                                          const void *weight, const void *d_y, void *d_x, void *d_weight) {
    const int64_t rows = linear->rows, groups = linear->groups, in = linear->in, out = linear->out;
    if (rows * groups == 0) return DR_OK;
    DR_NETWORK_ENTER(backend);
    (void)gpu;
    const int64_t row = dr_grouped_linear_pitch(linear);
    if (d_weight) {
        dr_cuda_multiplication p = product_of(backend, out, in, rows);
        p.a = d_y, p.a_row = groups * out, p.a_turned = true, p.a_apart = out, p.b = x, p.b_row = row, p.b_apart = in;
        p.c = d_weight, p.c_row = in, p.c_apart = out * in, p.batch = groups, p.to = DR_F32, p.add = true;
        DR_TRY(dr_cuda_multiply(backend, &p));
    }
    if (!d_x) return DR_OK;
    dr_cuda_multiplication p = product_of(backend, rows, in, out);
    p.a = d_y, p.a_row = groups * out, p.a_apart = out, p.b = weight, p.b_row = in, p.b_apart = out * in;
    p.c = d_x, p.c_row = row, p.c_apart = in, p.batch = groups;
    return dr_cuda_multiply(backend, &p);
}
