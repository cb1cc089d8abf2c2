/* A norm of either kind by the backend's operation of that kind. */
#include "nn/norm.h"
#include "base/error.h"

dr_status dr_norm_create(const dr_norm_description *description, int64_t dim, const char *prefix, dr_layer_parameters *list,
                         dr_norm *norm) {
    const dr_initial first = {DR_INITIAL_CONSTANT, 1 - description->offset}, zero = {DR_INITIAL_CONSTANT, 0};
    *norm = (dr_norm){.kind = description->kind,
                      .dim = dim,
                      .eps = description->eps,
                      .offset = description->offset,
                      .weight = DR_NO_PARAMETER,
                      .bias = DR_NO_PARAMETER};
    if (norm->kind == DR_NORM_NONE) return DR_OK;
    DR_TRY(dr_add_vector(list, prefix, "weight", first, dim, 0, &norm->weight));
    return description->bias ? dr_add_vector(list, prefix, "bias", zero, dim, 0, &norm->bias) : DR_OK;
}

static dr_rms_norm rms(const dr_norm *norm, int64_t rows) {
    return (dr_rms_norm){.rows = rows, .dim = norm->dim, .eps = norm->eps, .weight_offset = norm->offset};
}

dr_status dr_norm_forward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, void *y) {
    const dr_operations *ops = call->backend->ops;
    const void *weight = dr_module_parameter(call, norm->weight);
    if (norm->kind == DR_NORM_RMS) {
        const dr_rms_norm of = rms(norm, rows);
        return ops->rms_norm_forward(call->backend, &of, x, weight, NULL, y);
    }
    const dr_layer_norm of = {rows, 1, norm->dim, norm->eps};
    return ops->layer_norm_forward(call->backend, &of, x, weight, dr_module_parameter(call, norm->bias), y);
}

dr_status dr_norm_backward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, const void *d_y,
                           void *d_x, bool accumulate) {
    const dr_operations *ops = call->backend->ops;
    const void *weight = dr_module_parameter(call, norm->weight);
    void *d_weight = dr_module_gradient(call, norm->weight);
    if (norm->kind == DR_NORM_RMS) {
        const dr_rms_norm of = rms(norm, rows);
        return ops->rms_norm_backward(call->backend, &of, x, weight, NULL, d_y, d_x, accumulate, d_weight, NULL);
    }
    const dr_layer_norm of = {rows, 1, norm->dim, norm->eps};
    return ops->layer_norm_backward(call->backend, &of, x, weight, d_y, d_x, accumulate, d_weight,
                                    dr_module_gradient(call, norm->bias));
}
