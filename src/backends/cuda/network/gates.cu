/* Maps from a projection to what a rule reads, y = f(x + shift + bias, exp(A_log)), element by element, and their gradients;
 * the formulas stand in backends/reference/gate.c. x and y are vectors or numbers, as the descriptor says. */
#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/functions.cuh"

typedef struct {
    float y, d_u, d_a_log;
} value;

/* What a gate is made of, as floats. */
typedef struct {
    float multiplier, shift, lower, upper;
} form;

static __device__ value bounded_softplus(const form &f, float u) {
    const float y = dr_softplus(u);
    if (y < f.lower) return {f.lower, 0, 0};
    if (f.upper > 0 && y > f.upper) return {f.upper, 0, 0};
    return {y, dr_sigmoid(u), 0};
}

template <dr_gate_kind KIND> static __device__ value evaluate(const form &f, float u, float a) {
    const float m = f.multiplier, l = f.lower;
    switch (KIND) {
    case DR_GATE_SIGMOID:
        return {m * dr_sigmoid(u), m * dr_sigmoid_slope(u), 0};
    case DR_GATE_SOFTPLUS:
        return bounded_softplus(f, u);
    case DR_GATE_LOG_DECAY: {
        const value step = bounded_softplus(f, u);
        return {-a * step.y, -a * step.d_u, -a * step.y};
    }
    case DR_GATE_KDA_BOUNDED: {
        const float d_u = l * a * dr_sigmoid_slope(a * u);
        return {l * dr_sigmoid(a * u), d_u, u * d_u};
    }
    case DR_GATE_EDA_BOUNDED: {
        const float exponent = -a / fabsf(l) * dr_softplus(u), slope = l / fabsf(l) * a * expf(exponent);
        return {-l * expm1f(exponent), slope * dr_sigmoid(u), slope * dr_softplus(u)};
    }
    case DR_GATE_LOG_SIGMOID:
        return {-m * dr_softplus(-u), m * dr_sigmoid(-u), 0};
    case DR_GATE_SILU:
        return {dr_silu(u), dr_silu_slope(u), 0};
    case DR_GATE_IDENTITY:
        return {u, 1, 0};
    }
    return {NAN, NAN, NAN};
}

/* A tensor of one kind or the other. */
typedef struct {
    void *at;
    bool narrow; /* bf16 */
} either;

template <int N> static __device__ dr_floats<N> load(const either &x, int64_t i) {
    return x.narrow ? dr_load_floats<N>((const __nv_bfloat16 *)x.at + i) : dr_load_floats<N>((const float *)x.at + i);
}

template <int N> static __device__ void store(const either &x, int64_t i, const dr_floats<N> &values, bool add) {
    if (x.narrow)
        dr_store_or_add<N>((__nv_bfloat16 *)x.at + i, values, add);
    else
        dr_store_or_add<N>((float *)x.at + i, values, add);
}

/* Kernels know the kind: with a question for each element they are limited by instructions. */
template <dr_gate_kind KIND> struct gate_call {
    form of;
    int64_t channels, x_row; /* heads dim; elements from a row of x and d_x to the next */
    int dim;
    dr_divider loads, heads; /* by the loads of a row, where `few`; by dim */
    bool few;                /* loads, less than 2^31 */
    bool a_log_per_channel, accumulate;
    either x, y, d_y, d_x; /* d_y nowhere: the forward */
    const float *a_log, *bias;

    /* exp(A_log) of a channel and its neighbours */
    template <int N> __device__ dr_floats<N> scales(int channel) const {
        dr_floats<N> a = dr_same<N>(1);
        if (!a_log) return a;
        if (!a_log_per_channel && dim % N == 0) return dr_same<N>(expf(a_log[dr_divide((unsigned)channel, heads)]));
        EACH a.at[n] = expf(a_log[a_log_per_channel ? channel + n : (int)dr_divide((unsigned)(channel + n), heads)]);
        return a;
    }

    __device__ value evaluate_at(float projected, int channel, float a) const {
        return evaluate<KIND>(of, projected + of.shift + (bias ? bias[channel] : 0), a);
    }

    template <int N> __device__ void at(int64_t i) const {
        const int64_t row = few ? dr_divide((unsigned)(i / N), loads) : i / channels, x_at = i + row * (x_row - channels);
        const int channel = (int)(i - row * channels);
        const dr_floats<N> from = load<N>(x, x_at), a = scales<N>(channel);
        dr_floats<N> to;
        if (!d_y.at) {
            EACH to.at[n] = evaluate_at(from.at[n], channel + n, a.at[n]).y;
            return store<N>(y, i, to, false);
        }
        to = load<N>(d_y, i);
        EACH to.at[n] *= evaluate_at(from.at[n], channel + n, a.at[n]).d_u;
        store<N>(d_x, x_at, to, accumulate);
    }

    /* what a row has for the gradients of A_log and bias; and d_x, if it is wanted, which may lie in the place of x or d_y */
    template <int N> __device__ void add(int64_t row, int64_t channel, dr_floats<N> (&sum)[2]) const {
        const dr_floats<N> from = load<N>(x, row * x_row + channel), d = load<N>(d_y, row * channels + channel);
        const dr_floats<N> a = scales<N>((int)channel);
        dr_floats<N> to;
        EACH {
            const value v = evaluate_at(from.at[n], (int)channel + n, a.at[n]);
            to.at[n] = d.at[n] * v.d_u;
            sum[0].at[n] += d.at[n] * v.d_a_log;
            sum[1].at[n] += to.at[n];
        }
        if (d_x.at) store<N>(d_x, row * x_row + channel, to, accumulate);
    }
};

enum { WIDE = 8 }; /* of both types */

template <int N, dr_gate_kind KIND>
static gate_call<KIND> call_of(const dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log,
                               const void *bias, const void *y, const void *d_y, const void *d_x) {
    const bool stored = backend->storage == DR_BF16, from = stored && gate->from == DR_VECTOR,
               to = stored && gate->to == DR_VECTOR;
    gate_call<KIND> call = {};
    call.of = {(float)gate->multiplier, (float)gate->shift, (float)gate->lower_bound, (float)gate->upper_bound};
    call.channels = gate->heads * gate->dim, call.dim = (int)gate->dim, call.x_row = dr_gate_pitch(gate);
    call.loads = dr_divider_of(call.channels / N), call.heads = dr_divider_of(gate->dim);
    call.few = gate->rows * call.channels / N <= INT32_MAX;
    call.a_log_per_channel = gate->a_log_per_channel;
    call.x = {(void *)x, from}, call.y = {(void *)y, to}, call.d_y = {(void *)d_y, to}, call.d_x = {(void *)d_x, from};
    call.a_log = (const float *)a_log, call.bias = (const float *)bias;
    return call;
}

template <int N, dr_gate_kind KIND>
static dr_status forward(dr_backend *backend, const dr_cuda *gpu, const dr_gate *gate, const void *x, const void *a_log,
                         const void *bias, void *y) {
    const gate_call<KIND> call = call_of<N, KIND>(backend, gate, x, a_log, bias, y, NULL, NULL);
    return dr_run_each<N>(gpu, "gate", gate->rows * call.channels, call);
}

/* With gradients of parameters the sums over rows, and d_x beside them. */
template <int N, dr_gate_kind KIND>
static dr_status backward(dr_backend *backend, const dr_cuda *gpu, const dr_gate *gate, const void *x, const void *a_log,
                          const void *bias, const void *d_y, void *d_x, bool accumulate, float *d_a_log, float *d_bias) {
    gate_call<KIND> call = call_of<N, KIND>(backend, gate, x, a_log, bias, NULL, d_y, d_x);
    call.accumulate = accumulate;
    if (!d_a_log && !d_bias) return d_x ? dr_run_each<N>(gpu, "gate_back", gate->rows * call.channels, call) : DR_OK;
    const dr_scratch scratch(backend, dr_column_bytes<2>(gate->rows, call.channels));
    DR_TRY(scratch.status);
    const int64_t fold = call.a_log_per_channel ? 1 : call.dim;
    return dr_run_columns<N, 2>(gpu, "gate_parameters", call, gate->rows, call.channels, (float *)scratch.at,
                                {{{d_a_log, 1, fold}, {d_bias, 1, 1}}});
}

/* Runs the statement with KIND as the gate's kind and N as the elements of a load. */
#define CASE(kind, ...)                                                                                                        \
    case kind: {                                                                                                               \
        constexpr dr_gate_kind KIND = kind;                                                                                    \
        if (wide) {                                                                                                            \
            constexpr int N = WIDE;                                                                                            \
            __VA_ARGS__;                                                                                                       \
        } else {                                                                                                               \
            constexpr int N = 1;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        }                                                                                                                      \
    }
#define KINDS(...)                                                                                                             \
    switch (gate->kind) {                                                                                                      \
        CASE(DR_GATE_SIGMOID, __VA_ARGS__)                                                                                     \
        CASE(DR_GATE_SOFTPLUS, __VA_ARGS__)                                                                                    \
        CASE(DR_GATE_LOG_DECAY, __VA_ARGS__)                                                                                   \
        CASE(DR_GATE_KDA_BOUNDED, __VA_ARGS__)                                                                                 \
        CASE(DR_GATE_EDA_BOUNDED, __VA_ARGS__)                                                                                 \
        CASE(DR_GATE_LOG_SIGMOID, __VA_ARGS__)                                                                                 \
        CASE(DR_GATE_SILU, __VA_ARGS__)                                                                                        \
        CASE(DR_GATE_IDENTITY, __VA_ARGS__)                                                                                    \
    }

dr_status dr_cuda_gate_forward(dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log, const void *bias,
                               void *y) {
    DR_NETWORK_ENTER(backend);
    const bool wide = dr_can_be_wide(WIDE, gate->heads * gate->dim | dr_gate_pitch(gate), x, y);
    if (gate->rows == 0) return DR_OK;
    KINDS(return (forward<N, KIND>(backend, gpu, gate, x, a_log, bias, y)))
    return DR_OK;
}

dr_status dr_cuda_gate_backward(dr_backend *backend, const dr_gate *gate, const void *x, const void *a_log, const void *bias,
                                const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias) {
    DR_NETWORK_ENTER(backend);
    const bool wide = dr_can_be_wide(WIDE, gate->heads * gate->dim | dr_gate_pitch(gate), x, d_y, d_x);
    if (gate->rows == 0) return DR_OK;
    KINDS(
        return (backward<N, KIND>(backend, gpu, gate, x, a_log, bias, d_y, d_x, accumulate, (float *)d_a_log, (float *)d_bias)))
    return DR_OK;
}
