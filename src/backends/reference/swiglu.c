/* The gated unit of the MLP, y = silu(gate) up, element by element. */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"
#include "base/error.h"

dr_status dr_reference_swiglu_forward(dr_backend *backend, int64_t count, const void *gate_, const void *up_, void *y_) {
    (void)backend;
    const double *gate = gate_, *up = up_;
    double *y = y_;
    for (int64_t i = 0; i < count; i++) y[i] = silu(gate[i]) * up[i];
    return DR_OK;
}

dr_status dr_reference_swiglu_backward(dr_backend *backend, int64_t count, const void *gate_, const void *up_, const void *d_y_,
                                       void *d_gate_, void *d_up_) {
    (void)backend;
    const double *gate = gate_, *up = up_, *d_y = d_y_;
    double *d_gate = d_gate_, *d_up = d_up_;
    for (int64_t i = 0; i < count; i++) {
        double to_gate = d_y[i] * up[i] * silu_derivative(gate[i]), to_up = d_y[i] * silu(gate[i]);
        if (d_gate) d_gate[i] = to_gate;
        if (d_up) d_up[i] = to_up;
    }
    return DR_OK;
}

/* A row of a panel is one of gate and one of up. */
dr_status dr_reference_swiglu_panel_forward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel_, void *y_) {
    const double *panel = panel_;
    double *y = y_;
    for (int64_t r = 0; r < rows; r++) {
        const double *gate = panel + 2 * r * columns;
        DR_TRY(dr_reference_swiglu_forward(backend, columns, gate, gate + columns, y + r * columns));
    }
    return DR_OK;
}

dr_status dr_reference_swiglu_panel_backward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel_,
                                             const void *d_y_, void *d_panel_) {
    const double *panel = panel_, *d_y = d_y_;
    double *d_panel = d_panel_;
    for (int64_t r = 0; r < rows; r++) {
        const double *gate = panel + 2 * r * columns;
        double *d_gate = d_panel + 2 * r * columns;
        DR_TRY(
            dr_reference_swiglu_backward(backend, columns, gate, gate + columns, d_y + r * columns, d_gate, d_gate + columns));
    }
    return DR_OK;
}
