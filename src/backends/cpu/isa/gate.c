/* Maps from a projection to what a rule reads, y = f(u) with u = x + shift + bias, channel by channel, with the rate A =
 * exp(A_log) of the channel. The kind is a constant of each instance, so that nothing is asked in the inner loops.
 *
 * 1 - sigmoid(u) is made as sigmoid(-u), and 1 - exp(-q) by a series near 0: both keep their relative accuracy where the
 * difference would lose it. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    lanes d_u, d_rate_log; /* the derivatives of y by u and by A_log */
} gate_slopes;

INLINE lanes value(const dr_cpu_gate *gate, dr_gate_kind kind, lanes u, lanes rate) {
    lanes m = lanes_set(gate->multiplier), bound = lanes_set(gate->lower_bound);
    switch (kind) {
    case DR_GATE_SIGMOID:
        return m * lanes_sigmoid(u);
    case DR_GATE_SOFTPLUS:
        return lanes_softplus(u);
    case DR_GATE_LOG_DECAY:
        return -(rate * lanes_softplus(u));
    case DR_GATE_KDA_BOUNDED:
        return bound * lanes_sigmoid(rate * u);
    case DR_GATE_EDA_BOUNDED:
        return bound * lanes_saturation(rate * lanes_set(1 / fabsf(gate->lower_bound)) * lanes_softplus(u));
    case DR_GATE_LOG_SIGMOID:
        return -(m * lanes_softplus(-u));
    case DR_GATE_SILU:
        return lanes_silu(u);
    }
    return u;
}

INLINE gate_slopes slopes(const dr_cpu_gate *gate, dr_gate_kind kind, lanes u, lanes rate) {
    lanes m = lanes_set(gate->multiplier), bound = lanes_set(gate->lower_bound);
    switch (kind) {
    case DR_GATE_SIGMOID:
        return (gate_slopes){.d_u = m * lanes_sigmoid_slope(u)};
    case DR_GATE_SOFTPLUS:
        return (gate_slopes){.d_u = lanes_sigmoid(u)};
    case DR_GATE_LOG_DECAY:
        return (gate_slopes){.d_u = -(rate * lanes_sigmoid(u)), .d_rate_log = -(rate * lanes_softplus(u))};
    case DR_GATE_KDA_BOUNDED: {
        lanes z = rate * u, d_z = bound * lanes_sigmoid_slope(z);
        return (gate_slopes){.d_u = d_z * rate, .d_rate_log = d_z * z};
    }
    case DR_GATE_EDA_BOUNDED: {
        lanes part = rate * lanes_set(1 / fabsf(gate->lower_bound)), soft = lanes_softplus(u),
              slope = bound * part * lanes_exp(-(part * soft));
        return (gate_slopes){.d_u = slope * lanes_sigmoid(u), .d_rate_log = slope * soft};
    }
    case DR_GATE_LOG_SIGMOID:
        return (gate_slopes){.d_u = m * lanes_sigmoid(-u)};
    case DR_GATE_SILU:
        return (gate_slopes){.d_u = lanes_silu_slope(u)};
    }
    return (gate_slopes){.d_u = u};
}

INLINE lanes shifted(const dr_cpu_gate *gate, const float *x, int64_t c, int64_t n) {
    lanes u = lanes_load_n(x + c, n) + lanes_set(gate->shift);
    return gate->bias ? u + lanes_load_n(gate->bias + c, n) : u;
}

INLINE lanes rate_at(const dr_cpu_gate *gate, int64_t c, int64_t n) {
    return gate->rate ? lanes_load_n(gate->rate + c, n) : lanes_set(1.0f);
}

INLINE void forward_lanes(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t c, int64_t n, const float *x, float *y) {
    lanes_store_n(y + c, n, value(gate, kind, shifted(gate, x, c, n), rate_at(gate, c, n)));
}

/* Here and below, n is a constant but for the last vector of a row. */
INLINE void forward(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t rows, const float *x, float *y) {
    const int64_t columns = gate->columns;
    for (int64_t r = 0; r < rows; r++, x += columns, y += columns) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) forward_lanes(gate, kind, c, LANES, x, y);
        if (c < columns) forward_lanes(gate, kind, c, columns - c, x, y);
    }
}

INLINE void add_to(float *sum, int64_t n, lanes x) {
    lanes_store_n(sum, n, lanes_load_n(sum, n) + x);
}

INLINE void backward_lanes(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t c, int64_t n, const float *x, const float *d_y,
                           float *d_x, bool accumulate, float *d_rate_log, float *d_bias) {
    const bool rated = kind == DR_GATE_LOG_DECAY || kind == DR_GATE_KDA_BOUNDED || kind == DR_GATE_EDA_BOUNDED;
    lanes d = lanes_load_n(d_y + c, n);
    gate_slopes slope = slopes(gate, kind, shifted(gate, x, c, n), rate_at(gate, c, n));
    lanes d_u = d * slope.d_u;
    if (rated && d_rate_log) add_to(d_rate_log + c, n, d * slope.d_rate_log);
    if (d_bias) add_to(d_bias + c, n, d_u);
    if (d_x) lanes_store_n(d_x + c, n, accumulate ? lanes_load_n(d_x + c, n) + d_u : d_u);
}

INLINE void backward(const dr_cpu_gate *gate, dr_gate_kind kind, int64_t rows, const float *x, const float *d_y, float *d_x,
                     bool accumulate, float *d_rate_log, float *d_bias) {
    const int64_t columns = gate->columns;
    for (int64_t r = 0; r < rows; r++, x += columns, d_y += columns) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES)
            backward_lanes(gate, kind, c, LANES, x, d_y, d_x, accumulate, d_rate_log, d_bias);
        if (c < columns) backward_lanes(gate, kind, c, columns - c, x, d_y, d_x, accumulate, d_rate_log, d_bias);
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
    CASE(DR_GATE_SILU)

void DR_ISA_NAME(dr_cpu_gate_forward)(const dr_cpu_gate *gate, int64_t rows, const float *x, float *y) {
    switch (gate->kind) {
#define CASE(kind)                                                                                                             \
    case kind:                                                                                                                 \
        forward(gate, kind, rows, x, y);                                                                                       \
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
        backward(gate, kind, rows, x, d_y, d_x, accumulate, d_rate_log, d_bias);                                               \
        break;
        KINDS(CASE)
#undef CASE
    }
}
