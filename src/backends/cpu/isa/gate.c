/* Maps from a projection to what a rule reads, y = f(u) with u = x + shift + bias, channel by channel, with the rate A =
 * exp(A_log) of the channel. The kind is a constant of each instance, so that nothing is asked in the inner loops.
 *
 * 1 - sigmoid(u) is made as sigmoid(-u), and 1 - exp(-q) by a series near 0: both keep their relative accuracy where the
 * difference would lose it. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    lanes d_u, d_rate_log; /* the gradients of u and of A_log */
} gate_gradients;

INLINE lanes bounded_softplus(const dr_cpu_gate *gate, lanes u) {
    return lanes_max(lanes_set(gate->lower_bound), lanes_min(lanes_set(gate->upper_bound), lanes_softplus(u)));
}

INLINE lanes value(const dr_cpu_gate *gate, dr_gate_kind kind, lanes u, lanes rate) {
    lanes m = lanes_set(gate->multiplier), bound = lanes_set(gate->lower_bound);
    switch (kind) {
    case DR_GATE_SIGMOID:
        return m * lanes_sigmoid(u);
    case DR_GATE_SOFTPLUS:
        return bounded_softplus(gate, u);
    case DR_GATE_LOG_DECAY:
        return -(rate * bounded_softplus(gate, u));
    case DR_GATE_KDA_BOUNDED:
        return bound * lanes_sigmoid(rate * u);
    case DR_GATE_EDA_BOUNDED:
        return bound * lanes_saturation(rate * lanes_set(1 / fabsf(gate->lower_bound)) * lanes_softplus(u));
    case DR_GATE_LOG_SIGMOID:
        return -(m * lanes_softplus(-u));
    case DR_GATE_SILU:
        return lanes_silu(u);
    case DR_GATE_IDENTITY:
        break;
    }
    return u;
}

/* d, or 0 where y is beyond the bounds */
INLINE lanes within(const dr_cpu_gate *gate, lanes y, lanes d) {
    d = lanes_select(lanes_less(y, lanes_set(gate->lower_bound)), lanes_zero(), d);
    return lanes_select(lanes_less(lanes_set(gate->upper_bound), y), lanes_zero(), d);
}

/* d: the gradient of y */
INLINE gate_gradients gradients(const dr_cpu_gate *gate, dr_gate_kind kind, lanes d, lanes u, lanes rate) {
    lanes m = lanes_set(gate->multiplier), bound = lanes_set(gate->lower_bound);
    switch (kind) {
    case DR_GATE_SIGMOID:
        return (gate_gradients){.d_u = d * m * lanes_sigmoid_slope(u)};
    case DR_GATE_SOFTPLUS:
        return (gate_gradients){.d_u = within(gate, lanes_softplus(u), d * lanes_sigmoid(u))};
    case DR_GATE_LOG_DECAY: {
        lanes rated = -(d * rate);
        return (gate_gradients){.d_u = within(gate, lanes_softplus(u), rated * lanes_sigmoid(u)),
                                .d_rate_log = rated * bounded_softplus(gate, u)};
    }
    case DR_GATE_KDA_BOUNDED: {
        lanes z = rate * u, d_z = d * bound * lanes_sigmoid_slope(z);
        return (gate_gradients){.d_u = d_z * rate, .d_rate_log = d_z * z};
    }
    case DR_GATE_EDA_BOUNDED: {
        lanes part = rate * lanes_set(1 / fabsf(gate->lower_bound)), soft = lanes_softplus(u),
              rated = d * bound * part * lanes_exp_fall(part * soft);
        return (gate_gradients){.d_u = rated * lanes_sigmoid(u), .d_rate_log = rated * soft};
    }
    case DR_GATE_LOG_SIGMOID:
        return (gate_gradients){.d_u = d * m * lanes_sigmoid(-u)};
    case DR_GATE_SILU:
        return (gate_gradients){.d_u = d * lanes_silu_slope(u)};
    case DR_GATE_IDENTITY:
        break;
    }
    return (gate_gradients){.d_u = d};
}

INLINE bool is_rated(dr_gate_kind kind) {
    return kind == DR_GATE_LOG_DECAY || kind == DR_GATE_KDA_BOUNDED || kind == DR_GATE_EDA_BOUNDED;
}

INLINE lanes shifted(const dr_cpu_gate *gate, const float *x, int64_t c, int64_t n) {
    return lanes_load_n(x + c, n) + lanes_load_n(gate->shift + c, n);
}

INLINE lanes rate_at(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t c, int64_t n) {
    return is_rated(kind) ? lanes_load_n(gate->rate + c, n) : lanes_set(1.0f);
}

INLINE void forward_lanes(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t c, int64_t n, const float *x, float *y) {
    lanes_store_n(y + c, n, value(gate, kind, shifted(gate, x, c, n), rate_at(gate, kind, c, n)));
}

/* Here and below, n is a constant but for the last vector of a row, and the gate a copy that stays in registers. */
INLINE void forward(const dr_cpu_gate gate, dr_gate_kind kind, int64_t rows, const float *x, float *y) {
    const int64_t columns = gate.columns;
    for (int64_t r = 0; r < rows; r++, x += columns, y += columns) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) forward_lanes(&gate, kind, c, LANES, x, y);
        if (c < columns) forward_lanes(&gate, kind, c, columns - c, x, y);
    }
}

INLINE void add_to(float *sum, int64_t n, lanes x) {
    lanes_store_n(sum, n, lanes_load_n(sum, n) + x);
}

INLINE void backward_lanes(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t c, int64_t n, const float *x, const float *d_y,
                           float *d_x, bool accumulate, float *d_rate_log, float *d_bias) {
    const gate_gradients d = gradients(gate, kind, lanes_load_n(d_y + c, n), shifted(gate, x, c, n), rate_at(gate, kind, c, n));
    if (is_rated(kind) && d_rate_log) add_to(d_rate_log + c, n, d.d_rate_log);
    if (d_bias) add_to(d_bias + c, n, d.d_u);
    if (d_x) lanes_store_n(d_x + c, n, accumulate ? lanes_load_n(d_x + c, n) + d.d_u : d.d_u);
}

INLINE void backward(const dr_cpu_gate gate, dr_gate_kind kind, int64_t rows, const float *x, const float *d_y, float *d_x,
                     bool accumulate, float *d_rate_log, float *d_bias) {
    const int64_t columns = gate.columns;
    for (int64_t r = 0; r < rows; r++, x += columns, d_y += columns) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES)
            backward_lanes(&gate, kind, c, LANES, x, d_y, d_x, accumulate, d_rate_log, d_bias);
        if (c < columns) backward_lanes(&gate, kind, c, columns - c, x, d_y, d_x, accumulate, d_rate_log, d_bias);
        if (d_x) d_x += columns;
    }
}

#define KINDS(CASE)                                                                                                            \
    CASE(DR_GATE_SIGMOID)                                                                                                      \
    CASE(DR_GATE_SOFTPLUS)                                                                                                     \
    CASE(DR_GATE_LOG_DECAY)                                                                                                    \
    CASE(DR_GATE_KDA_BOUNDED)                                                                                                  \
    CASE(DR_GATE_EDA_BOUNDED)                                                                                                  \
    CASE(DR_GATE_LOG_SIGMOID)                                                                                                  \
    CASE(DR_GATE_SILU)                                                                                                         \
    CASE(DR_GATE_IDENTITY)

void DR_ISA_NAME(dr_cpu_gate_forward)(const dr_cpu_gate *gate, int64_t rows, const float *x, float *y) {
    switch (gate->kind) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        forward(*gate, kind, rows, x, y);                                                                                      \
        break;
        KINDS(CASE)
#undef CASE
    }
}

void DR_ISA_NAME(dr_cpu_gate_backward)(const dr_cpu_gate *gate, int64_t rows, const float *x, const float *d_y, float *d_x,
                                       bool accumulate, float *d_rate_log, float *d_bias) {
    switch (gate->kind) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        backward(*gate, kind, rows, x, d_y, d_x, accumulate, d_rate_log, d_bias);                                              \
        break;
        KINDS(CASE)
#undef CASE
    }
}
