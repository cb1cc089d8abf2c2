/* Heads: multiplied by a factor each, copied from and to parts of wider rows, and the bonus that a token's value gets. The
 * vectors of a head are those of 1 to 32 neighbouring lanes. */
#include "backends/cuda/network/columns.cuh"

enum { THREADS = 256 };

/* ---- scale ----------------------------------------------------------------------------------------------------------------
 */

template <typename T> struct scale_call {
    int64_t heads, dim; /* heads of all rows */
    int64_t factors;    /* of a row, where all rows share them; else as many as heads */
    int lanes;
    bool accumulate;
    const float *factor;
    const T *x, *d_y;
    T *to;         /* y or d_x; NULL: not wanted */
    float *dotted; /* [heads] d_y . x, or NULL */

    template <int N> __device__ void at(int64_t i) const {
        const float f = factor[i / dim % factors];
        dr_floats<N> y = dr_load_floats<N>(x + i);
        EACH y.at[n] *= f;
        dr_store_or_add<N>(to + i, y, accumulate);
    }
};

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) scale_backward(const __grid_constant__ scale_call<T> call) {
    const int64_t head = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / call.lanes, begin = head * call.dim;
    const int64_t dim = head < call.heads ? call.dim : 0;
    const int lane = (int)threadIdx.x % call.lanes;
    const float f = dim ? call.factor[head % call.factors] : 0;
    float sum = 0;
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> x = dr_load_floats<N>(call.x + begin + i);
        dr_floats<N> d = dr_load_floats<N>(call.d_y + begin + i);
        EACH {
            sum += x.at[n] * d.at[n];
            d.at[n] *= f;
        }
        if (call.to) dr_store_or_add<N>(call.to + begin + i, d, call.accumulate);
    }
    sum = dr_sum_lanes(sum, call.lanes);
    if (call.dotted && dim && lane == 0) call.dotted[head] = sum;
}

/* A matrix of floats whose columns are summed. */
struct matrix {
    const float *at;
    int64_t columns;
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[1]) const {
        const dr_floats<N> x = dr_load_floats<N>(at + row * columns + column);
        EACH sum[0].at[n] += x.at[n];
    }
};

template <typename T>
static scale_call<T> scale_of(int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor, const void *x) {
    scale_call<T> call = {};
    call.heads = rows * heads, call.dim = dim, call.factors = shared ? heads : rows * heads;
    call.factor = (const float *)factor, call.x = (const T *)x;
    return call;
}

dr_status dr_cuda_scale_heads_forward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                      const void *factor, const void *x, void *y, bool accumulate) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, dim, (x, y), T, N, scale_call<T> call = scale_of<T>(rows, heads, dim, shared, factor, x);
                        call.to = (T *)y, call.accumulate = accumulate;
                        return dr_run_each<N>(gpu, "scale_heads", call.heads * dim, call))
}

template <int N, typename T> static dr_status scale_back(const dr_cuda *gpu, scale_call<T> call) {
    call.lanes = dr_lanes_for(dr_blocks_of(call.dim, N));
    return dr_cuda_launch("scale_heads_back", scale_backward<N, T>, {dr_blocks_of(call.heads * call.lanes, THREADS)}, THREADS,
                          0, gpu->stream, call);
}

template <int N, typename T>
static dr_status scale_back_shared(dr_backend *backend, const dr_cuda *gpu, scale_call<T> call, float *d_factor) {
    const int64_t rows = call.heads / call.factors, bytes = dr_blocks_of(call.heads, 4) * 16;
    const dr_scratch scratch(backend, bytes + dr_column_bytes<1>(rows, call.factors));
    DR_TRY(scratch.status);
    call.dotted = (float *)scratch.at;
    DR_TRY(scale_back<N>(gpu, call));
    const matrix dotted = {call.dotted, call.factors};
    return dr_run_columns<1, 1>(gpu, "scale_factors", dotted, rows, call.factors, (float *)((char *)scratch.at + bytes),
                                {{{d_factor, 1, 1}}});
}

dr_status dr_cuda_scale_heads_backward(dr_backend *backend, int64_t rows, int64_t heads, int64_t dim, bool shared,
                                       const void *factor, const void *x, const void *d_y, void *d_factor, void *d_x,
                                       bool accumulate) {
    DR_NETWORK_ENTER(backend);
    if (rows * heads == 0) return DR_OK;
    DR_NETWORK_INSTANCE(backend, dim, (x, d_y, d_x), T, N,
                        scale_call<T> call = scale_of<T>(rows, heads, dim, shared, factor, x);
                        call.d_y = (const T *)d_y, call.to = (T *)d_x, call.accumulate = accumulate;
                        if (shared && d_factor) return scale_back_shared<N>(backend, gpu, call, (float *)d_factor);
                        call.dotted = (float *)d_factor; return scale_back<N>(gpu, call))
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------
 */

template <typename T> struct copy_call {
    dr_copy_heads of;
    const T *x;
    T *y;

    /* i counts what is written */
    template <int N> __device__ void at(int64_t i) const {
        const int64_t written = of.to_head ? of.heads : 1, head = i / of.dim % written, row = i / of.dim / written;
        const T *from = x + row * of.from_row + head * of.from_head + i % of.dim;
        dr_floats<N> sum = dr_load_floats<N>(from);
        for (int64_t h = 1; h < of.heads && written == 1; h++) {
            const dr_floats<N> more = dr_load_floats<N>(from + h * of.from_head);
            EACH sum.at[n] += more.at[n];
        }
        dr_store_floats<N>(y + row * of.to_row + head * of.to_head + i % of.dim, sum);
    }
};

dr_status dr_cuda_copy_heads(dr_backend *backend, const dr_copy_heads *copy, const void *x, void *y) {
    DR_NETWORK_ENTER(backend);
    if (copy->rows * copy->heads * copy->dim == 0) return DR_OK;
    const int64_t count = copy->rows * (copy->to_head ? copy->heads : 1) * copy->dim;
    const int64_t apart = copy->dim | copy->from_row | copy->from_head | copy->to_row | copy->to_head;
    DR_NETWORK_INSTANCE(backend, apart, (x, y), T, N, const copy_call<T> call = {*copy, (const T *)x, (T *)y};
                        return dr_run_each<N>(gpu, "copy_heads", count, call))
}

/* ---- bonus: y += (sum r k u) v ---------------------------------------------------------------------------------------------
 */

template <typename T> struct bonus_call {
    dr_bonus of;
    int lanes;
    const T *r, *k, *v, *d_y;
    const float *u;
    T *y, *d_r, *d_k, *d_v;
    float *told; /* [rows heads] d_y . v, for the gradient of u, or NULL */

    /* d_u[head, i], heads side by side */
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[1]) const {
        const int64_t at = row * of.heads * of.key_size + column;
        const float d = told[row * of.heads + column / of.key_size];
        const dr_floats<N> a = dr_load_floats<N>(r + at), b = dr_load_floats<N>(k + at);
        EACH sum[0].at[n] += d * a.at[n] * b.at[n];
    }
};

/* All of one head of a row; d_y NULL: the forward. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) bonus(const __grid_constant__ bonus_call<T> call) {
    const int64_t head = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / call.lanes, step = call.lanes * N;
    const bool there = head < call.of.rows * call.of.heads;
    const int64_t keys = there ? call.of.key_size : 0, values = there ? call.of.value_size : 0;
    const int64_t key = head * keys, value = head * values, shared = head % call.of.heads * keys;
    const int first = (int)threadIdx.x % call.lanes * N;
    float sum = 0, d_sum = 0;
    for (int64_t i = first; i < keys; i += step) {
        const dr_floats<N> r = dr_load_floats<N>(call.r + key + i), k = dr_load_floats<N>(call.k + key + i),
                           u = dr_load_floats<N>(call.u + shared + i);
        EACH sum += r.at[n] * k.at[n] * u.at[n];
    }
    sum = dr_sum_lanes(sum, call.lanes);
    for (int64_t i = first; i < values; i += step) {
        dr_floats<N> v = dr_load_floats<N>(call.v + value + i);
        if (call.d_y) {
            dr_floats<N> d = dr_load_floats<N>(call.d_y + value + i);
            EACH {
                d_sum += d.at[n] * v.at[n];
                d.at[n] *= sum;
            }
            if (call.d_v) dr_store_or_add<N>(call.d_v + value + i, d, true);
        } else {
            EACH v.at[n] *= sum;
            dr_store_or_add<N>(call.y + value + i, v, true);
        }
    }
    if (!call.d_y) return;
    d_sum = dr_sum_lanes(d_sum, call.lanes);
    if (call.told && there && first == 0) call.told[head] = d_sum;
    for (int64_t i = first; i < keys; i += step) {
        dr_floats<N> r = dr_load_floats<N>(call.r + key + i), k = dr_load_floats<N>(call.k + key + i);
        const dr_floats<N> u = dr_load_floats<N>(call.u + shared + i);
        EACH {
            const float by = d_sum * u.at[n], read = r.at[n];
            r.at[n] = by * k.at[n];
            k.at[n] = by * read;
        }
        if (call.d_r) dr_store_or_add<N>(call.d_r + key + i, r, true);
        if (call.d_k) dr_store_or_add<N>(call.d_k + key + i, k, true);
    }
}

template <int N, typename T> static dr_status run_bonus(const dr_cuda *gpu, bonus_call<T> call) {
    const int64_t longest = call.of.key_size > call.of.value_size ? call.of.key_size : call.of.value_size;
    call.lanes = dr_lanes_for(dr_blocks_of(longest, N));
    return dr_cuda_launch("bonus", bonus<N, T>, {dr_blocks_of(call.of.rows * call.of.heads * call.lanes, THREADS)}, THREADS, 0,
                          gpu->stream, call);
}

dr_status dr_cuda_bonus_forward(dr_backend *backend, const dr_bonus *of, const void *r, const void *k, const void *u,
                                const void *v, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, of->key_size | of->value_size, (r, k, u, v, y), T, N, bonus_call<T> call = {};
                        call.of = *of, call.r = (const T *)r, call.k = (const T *)k, call.u = (const float *)u;
                        call.v = (const T *)v, call.y = (T *)y; return run_bonus<N>(gpu, call))
}

template <int N, typename T>
static dr_status bonus_back(dr_backend *backend, const dr_cuda *gpu, bonus_call<T> call, float *d_u) {
    if (!d_u) return run_bonus<N>(gpu, call);
    const int64_t heads = call.of.rows * call.of.heads, columns = call.of.heads * call.of.key_size;
    const int64_t told = dr_blocks_of(heads, 4) * 16;
    const dr_scratch scratch(backend, told + dr_column_bytes<1>(call.of.rows, columns));
    DR_TRY(scratch.status);
    call.told = (float *)scratch.at;
    DR_TRY(run_bonus<N>(gpu, call));
    return dr_run_columns<N, 1>(gpu, "bonus_parameter", call, call.of.rows, columns, (float *)((char *)scratch.at + told),
                                {{{d_u, 1, 1}}});
}

dr_status dr_cuda_bonus_backward(dr_backend *backend, const dr_bonus *of, const void *r, const void *k, const void *u,
                                 const void *v, const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, of->key_size | of->value_size, (r, k, u, v, d_y, d_r, d_k, d_v), T, N, bonus_call<T> call = {};
                        call.of = *of, call.r = (const T *)r, call.k = (const T *)k, call.u = (const float *)u;
                        call.v = (const T *)v, call.d_y = (const T *)d_y, call.d_r = (T *)d_r, call.d_k = (T *)d_k;
                        call.d_v = (T *)d_v; return bonus_back<N>(backend, gpu, call, (float *)d_u))
}
