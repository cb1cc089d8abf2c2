/* Maps from a projection to what a rule reads: y = f(u, A) of u = x + shift + bias and A = exp(A_log), element by element.
 *
 *     sigmoid       m sg(u)                        d_u = m sg(u) sg(-u)
 *     softplus      sp(u), between its bounds      d_u = sg(u), beyond them 0
 *     log_decay     -A sp(u), likewise             d_u = -A sg(u)              d_A_log = y
 *     kda_bounded   l sg(A u)                      d_u = l A sg(Au) sg(-Au)    d_A_log = u d_u
 *     eda_bounded   l - l exp(-(A/|l|) sp(u))      d_u = (l/|l|) A E sg(u)     d_A_log = (l/|l|) A E sp(u), E the exponential
 *     log_sigmoid   m ln sg(u)                     d_u = m sg(-u)
 *     silu          u sg(u)                        d_u = sg(u) + u sg(u) sg(-u)
 *     identity      u                              d_u = 1
 *
 * Both bounded kinds lie between l < 0 and 0. */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"

typedef struct {
    double y, d_u, d_a_log;
} gate_value;

static gate_value bounded_softplus(const dr_gate *gate, double u) {
    const double y = softplus(u);
    if (y < gate->lower_bound) return (gate_value){gate->lower_bound, 0, 0};
    if (gate->upper_bound > 0 && y > gate->upper_bound) return (gate_value){gate->upper_bound, 0, 0};
    return (gate_value){y, sigmoid(u), 0};
}

static gate_value evaluate(const dr_gate *gate, double u, double a) {
    double m = gate->multiplier, l = gate->lower_bound;
    switch (gate->kind) {
    case DR_GATE_SIGMOID:
        return (gate_value){m * sigmoid(u), m * sigmoid_derivative(u), 0};
    case DR_GATE_SOFTPLUS:
        return bounded_softplus(gate, u);
    case DR_GATE_LOG_DECAY: {
        const gate_value step = bounded_softplus(gate, u);
        return (gate_value){-a * step.y, -a * step.d_u, -a * step.y};
    }
    case DR_GATE_KDA_BOUNDED: {
        double d_u = l * a * sigmoid_derivative(a * u);
        return (gate_value){l * sigmoid(a * u), d_u, u * d_u};
    }
    case DR_GATE_EDA_BOUNDED: {
        double exponent = -a / fabs(l) * softplus(u), slope = l / fabs(l) * a * exp(exponent);
        return (gate_value){-l * expm1(exponent), slope * sigmoid(u), slope * softplus(u)};
    }
    case DR_GATE_LOG_SIGMOID:
        return (gate_value){-m * softplus(-u), m * sigmoid(-u), 0};
    case DR_GATE_SILU:
        return (gate_value){silu(u), silu_derivative(u), 0};
    case DR_GATE_IDENTITY:
        return (gate_value){u, 1, 0};
    }
    return (gate_value){(double)NAN, (double)NAN, (double)NAN};
}

/* channel: h * dim + d */
static gate_value evaluate_at(const dr_gate *gate, double x, int64_t channel, const double *a_log, const double *bias) {
    double u = x + gate->shift + (bias ? bias[channel] : 0);
    double a = a_log ? exp(a_log[gate->a_log_per_channel ? channel : channel / gate->dim]) : 1;
    return evaluate(gate, u, a);
}

dr_status dr_reference_gate_forward(dr_backend *backend, const dr_gate *gate, const void *x_, const void *a_log,
                                    const void *bias, void *y_) {
    (void)backend;
    int64_t channels = gate->heads * gate->dim, row = dr_gate_pitch(gate);
    const double *x = x_;
    double *y = y_;
    for (int64_t r = 0; r < gate->rows; r++)
        for (int64_t c = 0; c < channels; c++) y[r * channels + c] = evaluate_at(gate, x[r * row + c], c, a_log, bias).y;
    return DR_OK;
}

dr_status dr_reference_gate_backward(dr_backend *backend, const dr_gate *gate, const void *x_, const void *a_log,
                                     const void *bias, const void *d_y_, void *d_x_, bool accumulate, void *d_a_log_,
                                     void *d_bias_) {
    (void)backend;
    int64_t channels = gate->heads * gate->dim, row = dr_gate_pitch(gate);
    const double *x = x_, *d_y = d_y_;
    double *d_x = d_x_, *d_a_log = d_a_log_, *d_bias = d_bias_;
    for (int64_t r = 0; r < gate->rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = r * channels + c, from = r * row + c;
            gate_value value = evaluate_at(gate, x[from], c, a_log, bias);
            double d_u = d_y[at] * value.d_u;
            if (d_a_log) d_a_log[gate->a_log_per_channel ? c : c / gate->dim] += d_y[at] * value.d_a_log;
            if (d_bias) d_bias[c] += d_u;
            if (d_x) d_x[from] = (accumulate ? d_x[from] : 0) + d_u;
        }
    return DR_OK;
}
