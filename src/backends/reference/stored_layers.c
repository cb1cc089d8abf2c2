/* The operations around attention and experts, norms and elementwise functions of the reference that stores vectors in 16 bits
 * (stored.c says how each is rounded). */
#include "backends/reference/stored.h"
#include "backends/reference/stored_call.h"

dr_status dr_reference_stored_layer_norm_forward(dr_backend *backend, const dr_layer_norm *of, const void *x,
                                                 const void *weight, const void *bias, void *y) {
    widened call = {.backend = backend};
    const int64_t count = of->rows * of->groups * of->dim;
    const double *wide_x = widen(&call, x, count);
    double *wide_y = result(&call, y, count);
    RUN(call, dr_reference_layer_norm_forward(backend, of, wide_x, weight, bias, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_layer_norm_backward(dr_backend *backend, const dr_layer_norm *of, const void *x,
                                                  const void *weight, const void *d_y, void *d_x, bool accumulate,
                                                  void *d_weight, void *d_bias) {
    widened call = {.backend = backend};
    const int64_t count = of->rows * of->groups * of->dim;
    const double *wide_x = widen(&call, x, count);
    const double *wide_d_y = widen(&call, d_y, count);
    double *wide_d_x = result(&call, d_x, count);
    RUN(call, dr_reference_layer_norm_backward(backend, of, wide_x, weight, wide_d_y, wide_d_x, accumulate, d_weight, d_bias));
    return finish(&call);
}

dr_status dr_reference_stored_sum_norm_forward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, rows * dim);
    double *wide_y = result(&call, y, rows * dim);
    RUN(call, dr_reference_sum_norm_forward(backend, rows, dim, wide_x, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_sum_norm_backward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, const void *d_y,
                                                void *d_x) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, rows * dim);
    const double *wide_d_y = widen(&call, d_y, rows * dim);
    double *wide_d_x = result(&call, d_x, rows * dim);
    RUN(call, dr_reference_sum_norm_backward(backend, rows, dim, wide_x, wide_d_y, wide_d_x));
    return finish(&call);
}

dr_status dr_reference_stored_token_shift_forward(dr_backend *backend, const dr_token_shift *of, const void *x,
                                                  const void *factors, const void *initial, void *y, void *final) {
    widened call = {.backend = backend};
    const int64_t count = of->layout.rows * of->dim;
    const double *wide_x = widen(&call, x, count);
    double *wide_y = result(&call, y, of->mixes * count);
    RUN(call, dr_reference_token_shift_forward(backend, of, wide_x, factors, initial, wide_y, final));
    return finish(&call);
}

dr_status dr_reference_stored_token_shift_backward(dr_backend *backend, const dr_token_shift *of, const void *x,
                                                   const void *factors, const void *initial, const void *d_y, void *d_x,
                                                   bool accumulate, void *d_factors) {
    widened call = {.backend = backend};
    const int64_t count = of->layout.rows * of->dim;
    const double *wide_x = widen(&call, x, count);
    const double *wide_d_y = widen(&call, d_y, of->mixes * count);
    double *wide_d_x = result(&call, d_x, count);
    RUN(call,
        dr_reference_token_shift_backward(backend, of, wide_x, factors, initial, wide_d_y, wide_d_x, accumulate, d_factors));
    return finish(&call);
}

/* Elements from the first to behind the last that is read or written. */
static int64_t reach(const dr_copy_heads *copy, int64_t row, int64_t head) {
    if (copy->rows == 0 || copy->heads == 0 || copy->dim == 0) return 0;
    return (copy->rows - 1) * row + (copy->heads - 1) * head + copy->dim;
}

dr_status dr_reference_stored_copy_heads(dr_backend *backend, const dr_copy_heads *copy, const void *x, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, reach(copy, copy->from_row, copy->from_head));
    double *wide_y = result(&call, y, reach(copy, copy->to_row, copy->to_head));
    RUN(call, dr_reference_copy_heads(backend, copy, wide_x, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_blend_forward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x,
                                            const void *z, const void *factor, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, rows * dim);
    const double *wide_z = widen(&call, z, rows * dim);
    double *wide_y = result(&call, y, rows * dim);
    RUN(call, dr_reference_blend_forward(backend, rows, dim, shared, wide_x, wide_z, factor, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_blend_backward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x,
                                             const void *z, const void *factor, const void *d_y, void *d_x, void *d_z,
                                             bool accumulate, void *d_factor) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, rows * dim);
    const double *wide_z = widen(&call, z, rows * dim);
    const double *wide_d_y = widen(&call, d_y, rows * dim);
    double *wide_d_x = result(&call, d_x, rows * dim);
    double *wide_d_z = result(&call, d_z, rows * dim);
    RUN(call, dr_reference_blend_backward(backend, rows, dim, shared, wide_x, wide_z, factor, wide_d_y, wide_d_x, wide_d_z,
                                          accumulate, d_factor));
    return finish(&call);
}

dr_status dr_reference_stored_bonus_forward(dr_backend *backend, const dr_bonus *of, const void *r, const void *k,
                                            const void *u, const void *v, void *y) {
    widened call = {.backend = backend};
    const int64_t keys = of->rows * of->heads * of->key_size, values = of->rows * of->heads * of->value_size;
    const double *wide_r = widen(&call, r, keys);
    const double *wide_k = widen(&call, k, keys);
    const double *wide_v = widen(&call, v, values);
    double *wide_y = result(&call, y, values);
    RUN(call, dr_reference_bonus_forward(backend, of, wide_r, wide_k, u, wide_v, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_bonus_backward(dr_backend *backend, const dr_bonus *of, const void *r, const void *k,
                                             const void *u, const void *v, const void *d_y, void *d_r, void *d_k, void *d_u,
                                             void *d_v) {
    widened call = {.backend = backend};
    const int64_t keys = of->rows * of->heads * of->key_size, values = of->rows * of->heads * of->value_size;
    const double *wide_r = widen(&call, r, keys);
    const double *wide_k = widen(&call, k, keys);
    const double *wide_v = widen(&call, v, values);
    const double *wide_d_y = widen(&call, d_y, values);
    double *wide_d_r = result(&call, d_r, keys);
    double *wide_d_k = result(&call, d_k, keys);
    double *wide_d_v = result(&call, d_v, values);
    RUN(call, dr_reference_bonus_backward(backend, of, wide_r, wide_k, u, wide_v, wide_d_y, wide_d_r, wide_d_k, d_u, wide_d_v));
    return finish(&call);
}

dr_status dr_reference_stored_depth_forward(dr_backend *backend, const dr_depth *depth, const void *const *x,
                                            const void *weight, const void *query, void *y) {
    widened call = {.backend = backend};
    const void *wide_x[DR_DEPTH_MOST];
    const int64_t count = depth->rows * depth->dim;
    for (int64_t l = 0; l < depth->count; l++) wide_x[l] = widen(&call, x[l], count);
    double *wide_y = result(&call, y, count);
    RUN(call, dr_reference_depth_forward(backend, depth, wide_x, weight, query, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_depth_backward(dr_backend *backend, const dr_depth *depth, const void *const *x,
                                             const void *weight, const void *query, const void *d_y, void *const *d_x,
                                             void *d_weight, void *d_query) {
    widened call = {.backend = backend};
    const void *wide_x[DR_DEPTH_MOST];
    void *wide_d_x[DR_DEPTH_MOST];
    const int64_t count = depth->rows * depth->dim;
    for (int64_t l = 0; l < depth->count; l++) wide_x[l] = widen(&call, x[l], count);
    for (int64_t l = 0; l < depth->count; l++) wide_d_x[l] = result(&call, d_x[l], count);
    const double *wide_d_y = widen(&call, d_y, count);
    RUN(call, dr_reference_depth_backward(backend, depth, wide_x, weight, query, wide_d_y, wide_d_x, d_weight, d_query));
    return finish(&call);
}

dr_status dr_reference_stored_apply_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    double *wide_y = result(&call, y, count);
    RUN(call, dr_reference_apply_forward(backend, function, count, wide_x, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_apply_backward(dr_backend *backend, dr_function function, int64_t count, const void *x,
                                             const void *d_y, void *d_x) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    const double *wide_d_y = widen(&call, d_y, count);
    double *wide_d_x = result(&call, d_x, count);
    RUN(call, dr_reference_apply_backward(backend, function, count, wide_x, wide_d_y, wide_d_x));
    return finish(&call);
}

dr_status dr_reference_stored_bound_forward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    double *wide_y = result(&call, y, count);
    RUN(call, dr_reference_bound_forward(backend, bound, count, wide_x, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_bound_backward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x,
                                             const void *d_y, void *d_x) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    const double *wide_d_y = widen(&call, d_y, count);
    double *wide_d_x = result(&call, d_x, count);
    RUN(call, dr_reference_bound_backward(backend, bound, count, wide_x, wide_d_y, wide_d_x));
    return finish(&call);
}

dr_status dr_reference_stored_gated_forward(dr_backend *backend, dr_function function, int64_t count, const void *x,
                                            const void *gate, void *y) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    const double *wide_gate = widen(&call, gate, count);
    double *wide_y = result(&call, y, count);
    RUN(call, dr_reference_gated_forward(backend, function, count, wide_x, wide_gate, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_gated_backward(dr_backend *backend, dr_function function, int64_t count, const void *x,
                                             const void *gate, const void *d_y, void *d_x, void *d_gate) {
    widened call = {.backend = backend};
    const double *wide_x = widen(&call, x, count);
    const double *wide_gate = widen(&call, gate, count);
    const double *wide_d_y = widen(&call, d_y, count);
    double *wide_d_x = result(&call, d_x, count);
    double *wide_d_gate = result(&call, d_gate, count);
    RUN(call, dr_reference_gated_backward(backend, function, count, wide_x, wide_gate, wide_d_y, wide_d_x, wide_d_gate));
    return finish(&call);
}

dr_status dr_reference_stored_experts_gather_backward(dr_backend *backend, const dr_experts *of, int64_t dim,
                                                      const int32_t *place, const void *d_y, void *d_x, bool accumulate) {
    widened call = {.backend = backend};
    const int64_t slots = of->rows * of->chosen;
    const double *wide_d_y = widen(&call, d_y, slots * dim);
    double *wide_d_x = result(&call, d_x, of->rows * dim);
    RUN(call, dr_reference_experts_gather_backward(backend, of, dim, place, wide_d_y, wide_d_x, accumulate));
    return finish(&call);
}

dr_status dr_reference_stored_experts_linear_forward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                                     const int32_t *begins, const void *x, const void *weight, void *y) {
    widened call = {.backend = backend};
    const int64_t slots = of->rows * of->chosen;
    const double *wide_x = widen(&call, x, slots * in);
    const double *wide_weight = widen(&call, weight, of->experts * out * in);
    double *wide_y = result(&call, y, slots * out);
    RUN(call, dr_reference_experts_linear_forward(backend, of, in, out, begins, wide_x, wide_weight, wide_y));
    return finish(&call);
}

dr_status dr_reference_stored_experts_linear_backward(dr_backend *backend, const dr_experts *of, int64_t in, int64_t out,
                                                      const int32_t *begins, const void *x, const void *weight, const void *d_y,
                                                      void *d_x, bool accumulate, void *d_weight) {
    widened call = {.backend = backend};
    const int64_t slots = of->rows * of->chosen;
    const double *wide_x = widen(&call, x, slots * in);
    const double *wide_weight = widen(&call, weight, of->experts * out * in);
    const double *wide_d_y = widen(&call, d_y, slots * out);
    double *wide_d_x = result(&call, d_x, slots * in);
    RUN(call, dr_reference_experts_linear_backward(backend, of, in, out, begins, wide_x, wide_weight, wide_d_y, wide_d_x,
                                                   accumulate, d_weight));
    return finish(&call);
}

dr_status dr_reference_stored_experts_combine_forward(dr_backend *backend, const dr_experts *of, int64_t dim,
                                                      const int32_t *place, const void *weights, const void *x, void *y,
                                                      bool accumulate) {
    widened call = {.backend = backend};
    const int64_t slots = of->rows * of->chosen;
    const double *wide_x = widen(&call, x, slots * dim);
    double *wide_y = result(&call, y, of->rows * dim);
    RUN(call, dr_reference_experts_combine_forward(backend, of, dim, place, weights, wide_x, wide_y, accumulate));
    return finish(&call);
}

dr_status dr_reference_stored_experts_combine_backward(dr_backend *backend, const dr_experts *of, int64_t dim,
                                                       const int32_t *place, const void *weights, const void *x,
                                                       const void *d_y, void *d_weights, void *d_x) {
    widened call = {.backend = backend};
    const int64_t slots = of->rows * of->chosen;
    const double *wide_x = widen(&call, x, slots * dim);
    const double *wide_d_y = widen(&call, d_y, of->rows * dim);
    double *wide_d_x = result(&call, d_x, slots * dim);
    RUN(call, dr_reference_experts_combine_backward(backend, of, dim, place, weights, wide_x, wide_d_y, d_weights, wide_d_x));
    return finish(&call);
}
