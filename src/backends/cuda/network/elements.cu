/* Operations element by element: functions of one number, alone and as factors of gates, bounds, the gated unit of a
 * feed-forward, sums and conversions. Each reads and writes every element once. */
#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/functions.cuh"
#include "backends/cuda/network/vectors.cuh"

/* ---- functions ------------------------------------------------------------------------------------------------------------
 */

typedef struct {
    float y, slope;
} value;

/* (1 + tanh u) / 2 = sigmoid(2u) */
static __device__ value gelu_tanh(float x) {
    const float root_two_over_pi = 0.7978845608f;
    const float twice_u = 2 * root_two_over_pi * (x + 0.044715f * x * x * x);
    const float twice_slope = 2 * root_two_over_pi * (1 + 3 * 0.044715f * x * x), s = dr_sigmoid(twice_u);
    return {x * s, s + x * dr_sigmoid_slope(twice_u) * twice_slope};
}

static __device__ value gelu(float x) {
    const float below = erfcf(-x * 0.7071067812f) / 2;
    return {x * below, below + x * 0.3989422804f * expf(-x * x / 2)};
}

static __device__ value evaluate(dr_function function, float x) {
    switch (function) {
    case DR_FUNCTION_IDENTITY:
        return {x, 1};
    case DR_FUNCTION_RELU:
        return {x > 0 ? x : isnan(x) ? x : 0, x > 0 ? 1.0f : 0.0f};
    case DR_FUNCTION_SQUARED_RELU:
        return {x > 0 ? x * x : isnan(x) ? x : 0, x > 0 ? 2 * x : 0};
    case DR_FUNCTION_SIGMOID:
        return {dr_sigmoid(x), dr_sigmoid_slope(x)};
    case DR_FUNCTION_SILU:
        return {dr_silu(x), dr_silu_slope(x)};
    case DR_FUNCTION_TANH:
        return {tanhf(x), 4 * dr_sigmoid_slope(2 * x)};
    case DR_FUNCTION_GELU:
        return gelu(x);
    case DR_FUNCTION_GELU_TANH:
        return gelu_tanh(x);
    case DR_FUNCTION_ELU_1:
        return x > 0 ? value{x + 1, 1} : value{expf(x), expf(x)};
    case DR_FUNCTIONS:
        break;
    }
    return {NAN, NAN};
}

/* y = f(x) by, and its gradients; by, d_y, d_x, d_by NULL: 1, the forward, not wanted. */
template <typename T> struct function_call {
    dr_function function;
    const T *x, *by, *d_y;
    T *y, *d_x, *d_by;

    template <int N> __device__ void at(int64_t i) const {
        const dr_floats<N> from = dr_load_floats<N>(x + i), factor = by ? dr_load_floats<N>(by + i) : dr_same<N>(1);
        dr_floats<N> to, slope;
        EACH {
            const value v = evaluate(function, from.at[n]);
            to.at[n] = v.y, slope.at[n] = v.slope;
        }
        if (!d_y) {
            EACH to.at[n] *= factor.at[n];
            return dr_store_floats<N>(y + i, to);
        }
        const dr_floats<N> d_to = dr_load_floats<N>(d_y + i);
        EACH {
            slope.at[n] *= factor.at[n] * d_to.at[n];
            to.at[n] *= d_to.at[n];
        }
        if (d_x) dr_store_floats<N>(d_x + i, slope);
        if (d_by) dr_store_floats<N>(d_by + i, to);
    }
};

static dr_status run_function(dr_backend *backend, const char *name, dr_function function, int64_t count, const void *x,
                              const void *by, const void *d_y, void *y, void *d_x, void *d_by) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(
        backend, count, (x, by, d_y, y, d_x, d_by), T, N,
        const function_call<T> call = {function, (const T *)x, (const T *)by, (const T *)d_y, (T *)y, (T *)d_x, (T *)d_by};
        return dr_run_each<N>(gpu, name, count, call))
}

dr_status dr_cuda_apply_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, void *y) {
    return run_function(backend, "apply", function, count, x, NULL, NULL, y, NULL, NULL);
}

dr_status dr_cuda_apply_backward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *d_y,
                                 void *d_x) {
    return run_function(backend, "apply_back", function, count, x, NULL, d_y, NULL, d_x, NULL);
}

dr_status dr_cuda_gated_forward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *gate,
                                void *y) {
    return run_function(backend, "gated", function, count, gate, x, NULL, y, NULL, NULL);
}

dr_status dr_cuda_gated_backward(dr_backend *backend, dr_function function, int64_t count, const void *x, const void *gate,
                                 const void *d_y, void *d_x, void *d_gate) {
    return run_function(backend, "gated_back", function, count, gate, x, d_y, NULL, d_gate, d_x);
}

dr_status dr_cuda_swiglu_forward(dr_backend *backend, int64_t count, const void *gate, const void *up, void *y) {
    return run_function(backend, "swiglu", DR_FUNCTION_SILU, count, gate, up, NULL, y, NULL, NULL);
}

dr_status dr_cuda_swiglu_backward(dr_backend *backend, int64_t count, const void *gate, const void *up, const void *d_y,
                                  void *d_gate, void *d_up) {
    return run_function(backend, "swiglu_back", DR_FUNCTION_SILU, count, gate, up, d_y, NULL, d_gate, d_up);
}

/* The gated unit from columns of a panel; d_y NULL: the forward. */
template <typename T> struct panel_call {
    int64_t columns;
    dr_divider loads; /* by the loads of a row, where `few` */
    bool few;         /* loads, less than 2^31 */
    const T *panel, *d_y;
    T *y, *d_panel;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t row = few ? dr_divide((unsigned)(i / N), loads) : i / columns, place = i + row * columns;
        const dr_floats<N> gate = dr_load_floats<N>(panel + place), up = dr_load_floats<N>(panel + place + columns);
        dr_floats<N> a, b;
        if (!d_y) {
            EACH a.at[n] = dr_silu(gate.at[n]) * up.at[n];
            return dr_store_floats<N>(y + i, a);
        }
        const dr_floats<N> d = dr_load_floats<N>(d_y + i);
        EACH {
            a.at[n] = dr_silu_slope(gate.at[n]) * (up.at[n] * d.at[n]);
            b.at[n] = dr_silu(gate.at[n]) * d.at[n];
        }
        dr_store_floats<N>(d_panel + place, a);
        dr_store_floats<N>(d_panel + place + columns, b);
    }
};

static dr_status run_panel(dr_backend *backend, const char *name, int64_t rows, int64_t columns, const void *panel,
                           const void *d_y, void *y, void *d_panel) {
    DR_NETWORK_ENTER(backend);
    const int64_t count = rows * columns;
    if (count == 0) return DR_OK;
    DR_NETWORK_INSTANCE(backend, columns, (panel, d_y, y, d_panel), T, N,
                        const panel_call<T> call = {columns, dr_divider_of(columns / N), count / N <= INT32_MAX,
                                                    (const T *)panel, (const T *)d_y, (T *)y, (T *)d_panel};
                        return dr_run_each<N>(gpu, name, count, call))
}

dr_status dr_cuda_swiglu_panel_forward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel, void *y) {
    return run_panel(backend, "swiglu_panel", rows, columns, panel, NULL, y, NULL);
}

dr_status dr_cuda_swiglu_panel_backward(dr_backend *backend, int64_t rows, int64_t columns, const void *panel, const void *d_y,
                                        void *d_panel) {
    return run_panel(backend, "swiglu_panel_back", rows, columns, panel, d_y, NULL, d_panel);
}

/* ---- bounds ---------------------------------------------------------------------------------------------------------------
 */

template <typename T> struct bound_call {
    float factor, low, high;
    const T *x, *d_y; /* d_y NULL: the forward */
    T *to;

    template <int N> __device__ void at(int64_t i) const {
        dr_floats<N> y = dr_load_floats<N>(x + i);
        EACH {
            const float scaled = factor * y.at[n];
            y.at[n] = scaled < low ? low : scaled > high ? high : scaled;
        }
        if (d_y) {
            const dr_floats<N> d = dr_load_floats<N>(d_y + i);
            EACH y.at[n] = y.at[n] == low || y.at[n] == high ? 0 : factor * d.at[n];
        }
        dr_store_floats<N>(to + i, y);
    }
};

static dr_status run_bound(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, const void *d_y,
                           void *to) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, count, (x, d_y, to), T, N,
                        const bound_call<T> call = {(float)bound->factor, (float)bound->low, (float)bound->high, (const T *)x,
                                                    (const T *)d_y, (T *)to};
                        return dr_run_each<N>(gpu, "bound", count, call))
}

dr_status dr_cuda_bound_forward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, void *y) {
    return run_bound(backend, bound, count, x, NULL, y);
}

dr_status dr_cuda_bound_backward(dr_backend *backend, const dr_bound *bound, int64_t count, const void *x, const void *d_y,
                                 void *d_x) {
    return run_bound(backend, bound, count, x, d_y, d_x);
}

/* ---- sums and conversions -------------------------------------------------------------------------------------------------
 */

/* to = from, rounded, or to += factor from */
template <typename F, typename T> struct move_call {
    const F *from;
    T *to;
    float factor;
    bool add;

    template <int N> __device__ void at(int64_t i) const {
        dr_floats<N> x = dr_load_floats<N>(from + i);
        EACH x.at[n] *= factor;
        dr_store_or_add<N>(to + i, x, add);
    }
};

template <typename T> static dr_status run_add(dr_backend *backend, int64_t count, double factor, const void *x, void *y) {
    DR_NETWORK_ENTER(backend);
    const move_call<T, T> call = {(const T *)x, (T *)y, (float)factor, true};
    if (dr_can_be_wide(dr_wide<T>, count, x, y)) return dr_run_each<dr_wide<T>>(gpu, "add", count, call);
    return dr_run_each<1>(gpu, "add", count, call);
}

dr_status dr_cuda_add(dr_backend *backend, dr_kind kind, int64_t count, double factor, const void *x, void *y) {
    if (kind == DR_VECTOR && backend->storage == DR_BF16) return run_add<__nv_bfloat16>(backend, count, factor, x, y);
    return run_add<float>(backend, count, factor, x, y);
}

dr_status dr_cuda_store_vectors(dr_backend *backend, int64_t count, const void *x, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, count, (x, y), T, N, const move_call<float, T> call = {(const float *)x, (T *)y, 1, false};
                        return dr_run_alone<N>(gpu, "store_vectors", count, call))
}

/* ---- blend: y = x + (z - x) factor ----------------------------------------------------------------------------------------
 */

template <typename T> struct blend_call {
    const T *x, *z, *d_y; /* d_y NULL: the forward */
    const float *factor;
    int64_t dim;
    bool shared, accumulate;
    T *y, *d_x, *d_z;
    float *d_factor; /* of each element; NULL where it is shared */

    template <int N> __device__ void at(int64_t i) const {
        const dr_floats<N> by = dr_load_floats<N>(factor + (shared ? i % dim : i));
        const dr_floats<N> a = dr_load_floats<N>(x + i), b = dr_load_floats<N>(z + i);
        dr_floats<N> to;
        if (!d_y) {
            EACH to.at[n] = a.at[n] + (b.at[n] - a.at[n]) * by.at[n];
            return dr_store_floats<N>(y + i, to);
        }
        const dr_floats<N> d = dr_load_floats<N>(d_y + i);
        EACH to.at[n] = d.at[n] * (1 - by.at[n]);
        if (d_x) dr_store_floats<N>(d_x + i, to);
        EACH to.at[n] = d.at[n] * by.at[n];
        if (d_z) dr_store_or_add<N>(d_z + i, to, accumulate);
        EACH to.at[n] = d.at[n] * (b.at[n] - a.at[n]);
        if (d_factor) dr_store_floats<N>(d_factor + i, to);
    }

    /* what a row has for the gradient of a shared factor */
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[1]) const {
        const int64_t i = row * dim + column;
        const dr_floats<N> a = dr_load_floats<N>(x + i), b = dr_load_floats<N>(z + i), d = dr_load_floats<N>(d_y + i);
        EACH sum[0].at[n] += d.at[n] * (b.at[n] - a.at[n]);
    }
};

dr_status dr_cuda_blend_forward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                const void *factor, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, dim, (x, z, factor, y), T, N, blend_call<T> call = {};
                        call.x = (const T *)x, call.z = (const T *)z, call.factor = (const float *)factor, call.dim = dim;
                        call.shared = shared, call.y = (T *)y; return dr_run_each<N>(gpu, "blend", rows * dim, call))
}

template <int N, typename T>
static dr_status blend_back(dr_backend *backend, const dr_cuda *gpu, int64_t rows, const blend_call<T> &call, float *d_shared) {
    DR_TRY(dr_run_each<N>(gpu, "blend_back", rows * call.dim, call));
    if (!d_shared) return DR_OK;
    const dr_scratch scratch(backend, dr_column_bytes<1>(rows, call.dim));
    DR_TRY(scratch.status);
    return dr_run_columns<N, 1>(gpu, "blend_factor", call, rows, call.dim, (float *)scratch.at, {{{d_shared, 1, 1}}});
}

dr_status dr_cuda_blend_backward(dr_backend *backend, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                 const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate, void *d_factor) {
    DR_NETWORK_ENTER(backend);
    float *const of_elements = shared ? NULL : (float *)d_factor;
    DR_NETWORK_INSTANCE(backend, dim, (x, z, factor, d_y, d_x, d_z, of_elements), T, N,
                        const blend_call<T> call = {(const T *)x, (const T *)z, (const T *)d_y, (const float *)factor, dim,
                                                    shared, accumulate, NULL, (T *)d_x, (T *)d_z, of_elements};
                        return blend_back<N>(backend, gpu, rows, call, shared ? (float *)d_factor : NULL))
}
