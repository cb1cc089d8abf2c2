/* Token shift: y_m[t] = x[t] + (x[t - 1] - x[t]) factor_m for several vectors of factors, x before a sequence from its state.
 */
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/sequences.cuh"

enum { THREADS = 256 };

template <typename T> struct shift_call {
    dr_cuda_layout layout;
    int64_t dim, mixes;
    const T *x, *d_y; /* [rows][dim], [mixes][rows][dim]; d_y NULL: the forward */
    const float *factors, *initial;
    T *y, *d_x;
    bool accumulate;

    /* the row before a token of a sequence; token may be the sequence's end */
    template <int N> __device__ dr_floats<N> before(const dr_span &of, int64_t token, int64_t channel) const {
        if (token > of.begin) return dr_load_floats<N>(x + (token - 1) * dim + channel);
        return initial ? dr_load_floats<N>(initial + of.index * dim + channel) : dr_same<N>(0);
    }

    template <int N> __device__ void forward(int64_t i, const dr_span &of) const {
        const int64_t token = i / dim, channel = i % dim;
        const dr_floats<N> own = dr_load_floats<N>(x + i), last = before<N>(of, token, channel);
        for (int64_t m = 0; m < mixes; m++) {
            const dr_floats<N> factor = dr_load_floats<N>(factors + m * dim + channel);
            dr_floats<N> to;
            EACH to.at[n] = own.at[n] + (last.at[n] - own.at[n]) * factor.at[n];
            dr_store_floats<N>(y + m * layout.rows * dim + i, to);
        }
    }

    template <int N> __device__ void backward(int64_t i, const dr_span &of) const {
        const int64_t token = i / dim, channel = i % dim;
        const bool next = token + 1 < of.end;
        dr_floats<N> sum = dr_same<N>(0);
        for (int64_t m = 0; m < mixes; m++) {
            const T *from = d_y + m * layout.rows * dim + i;
            const dr_floats<N> factor = dr_load_floats<N>(factors + m * dim + channel), own = dr_load_floats<N>(from);
            const dr_floats<N> later = next ? dr_load_floats<N>(from + dim) : dr_same<N>(0);
            EACH sum.at[n] += own.at[n] * (1 - factor.at[n]) + later.at[n] * factor.at[n];
        }
        dr_store_or_add<N>(d_x + i, sum, accumulate);
    }

    template <int N> __device__ void at(int64_t i) const {
        const dr_span of = dr_span_of(layout, i / dim);
        if (d_y)
            backward<N>(i, of);
        else
            forward<N>(i, of);
    }

    /* what a row has for the gradients of the factors, those of all mixes side by side */
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[1]) const {
        const int64_t channel = column % dim, at = row * dim + channel;
        const dr_floats<N> d = dr_load_floats<N>(d_y + column / dim * layout.rows * dim + at), own = dr_load_floats<N>(x + at);
        const dr_floats<N> last = before<N>(dr_span_of(layout, row), row, channel);
        EACH sum[0].at[n] += d.at[n] * (last.at[n] - own.at[n]);
    }
};

/* final [sequences][dim], which may be initial */
template <typename T>
static __global__ void __launch_bounds__(THREADS) shift_final(const __grid_constant__ shift_call<T> call, float *final) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= call.layout.sequences * call.dim) return;
    const dr_span of = dr_span_at(call.layout, i / call.dim);
    final[i] = call.template before<1>(of, of.end, i % call.dim).at[0];
}

template <typename T>
static shift_call<T> call_of(const dr_token_shift *shift, const void *x, const void *factors, const void *initial) {
    shift_call<T> call = {};
    call.layout = dr_layout_on_device(shift->layout), call.dim = shift->dim, call.mixes = shift->mixes;
    call.x = (const T *)x, call.factors = (const float *)factors, call.initial = (const float *)initial;
    return call;
}

dr_status dr_cuda_token_shift_forward(dr_backend *backend, const dr_token_shift *shift, const void *x, const void *factors,
                                      const void *initial, void *y, void *final) {
    DR_NETWORK_ENTER(backend);
    const int64_t count = shift->layout.rows * shift->dim, states = shift->layout.sequences * shift->dim;
    DR_NETWORK_INSTANCE(backend, shift->dim, (x, factors, initial, y), T, N,
                        shift_call<T> call = call_of<T>(shift, x, factors, initial);
                        call.y = (T *)y; DR_TRY(dr_run_each<N>(gpu, "token_shift", count, call)); if (!final) return DR_OK;
                        return dr_cuda_launch("shift_final", shift_final<T>, {dr_blocks_of(states, THREADS)}, THREADS, 0,
                                              gpu->stream, call, (float *) final))
}

template <int N, typename T>
static dr_status backward(dr_backend *backend, const dr_cuda *gpu, const shift_call<T> &call, float *d_factors) {
    const int64_t rows = call.layout.rows, columns = call.mixes * call.dim;
    if (call.d_x) DR_TRY(dr_run_each<N>(gpu, "token_shift_back", rows * call.dim, call));
    if (!d_factors) return DR_OK;
    const dr_scratch scratch(backend, dr_column_bytes<1>(rows, columns));
    DR_TRY(scratch.status);
    return dr_run_columns<N, 1>(gpu, "shift_factors", call, rows, columns, (float *)scratch.at, {{{d_factors, 1, 1}}});
}

dr_status dr_cuda_token_shift_backward(dr_backend *backend, const dr_token_shift *shift, const void *x, const void *factors,
                                       const void *initial, const void *d_y, void *d_x, bool accumulate, void *d_factors) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, shift->dim, (x, factors, initial, d_y, d_x), T, N,
                        shift_call<T> call = call_of<T>(shift, x, factors, initial);
                        call.d_y = (const T *)d_y, call.d_x = (T *)d_x, call.accumulate = accumulate;
                        return backward<N>(backend, gpu, call, (float *)d_factors))
}
