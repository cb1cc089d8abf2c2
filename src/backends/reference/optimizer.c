/* The norm of a gradient and AdamW with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019), step t from 1:
 *
 *     g = scale gradient
 *     m = b1 m + (1 - b1) g          mhat = m / (1 - b1^t)
 *     v = b2 v + (1 - b2) g^2        vhat = v / (1 - b2^t)
 *     p = p - lr (mhat / (sqrt vhat + eps) + weight_decay p)
 *
 * and what Muon needs beside products (train/muon.h): Nesterov's momentum, and a step along a direction. */
#include "backends/reference/reference.h"

#include <math.h>

dr_status dr_reference_sum_squares(dr_backend *backend, int64_t count, const void *x_, dr_control *control) {
    (void)backend;
    const double *x = x_;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    control->squares = squares;
    return DR_OK;
}

dr_status dr_reference_adamw(dr_backend *backend, const dr_adamw *adamw, const dr_control *control, int runs,
                             const dr_adamw_run *run, const void *gradient_, void *parameter_, void *m_, void *v_) {
    (void)backend;
    if (control->skipped_in_row > 0) return DR_OK;
    const double step = (double)control->updates;
    const double *gradient = gradient_;
    double *parameter = parameter_, *m = m_, *v = v_;
    double first = 1 - pow(adamw->beta1, step), second = 1 - pow(adamw->beta2, step);
    for (const dr_adamw_run *end = run + runs; run < end; run++)
        for (int64_t i = run->begin; i < run->begin + run->count; i++) {
            double g = control->scale * gradient[i];
            m[i] = adamw->beta1 * m[i] + (1 - adamw->beta1) * g;
            v[i] = adamw->beta2 * v[i] + (1 - adamw->beta2) * g * g;
            double direction = m[i] / first / (sqrt(v[i] / second) + adamw->eps);
            parameter[i] -= run->learning_rate * (direction + run->weight_decay * parameter[i]);
        }
    return DR_OK;
}

dr_status dr_reference_momentum(dr_backend *backend, double beta, const dr_control *control, int64_t count,
                                const void *gradient_, void *momentum_, void *y_) {
    (void)backend;
    if (control->skipped_in_row > 0) return DR_OK;
    const double *gradient = gradient_;
    double *momentum = momentum_, *y = y_;
    for (int64_t i = 0; i < count; i++) {
        const double g = control->scale * gradient[i];
        momentum[i] = beta * momentum[i] + g;
        y[i] = g + beta * momentum[i];
    }
    return DR_OK;
}

dr_status dr_reference_descend(dr_backend *backend, const dr_descent *descent, const dr_control *control, int64_t count,
                               const void *direction_, void *parameter_) {
    (void)backend;
    if (control->skipped_in_row > 0) return DR_OK;
    const double *direction = direction_;
    double *parameter = parameter_;
    for (int64_t i = 0; i < count; i++)
        parameter[i] -= descent->learning_rate * (descent->factor * direction[i] + descent->weight_decay * parameter[i]);
    return DR_OK;
}
