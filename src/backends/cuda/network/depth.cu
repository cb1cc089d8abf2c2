/* Softmax attention over depth, in the formulas of backends/reference/depth.c: a token weighs its own rows of several tensors.
 * A warp makes what a row has of each tensor; sums and gradients then follow, the latter one tensor a launch. */
#include "backends/cuda/network/columns.cuh"

enum { THREADS = 256 };

/* Of a row and a tensor. */
typedef struct {
    float score, inverse, share, along; /* along: d_y . x */
} weight_of;

template <typename T> struct depth_call {
    int64_t rows, dim, count;
    float eps;
    const float *weight, *query;
    const T *d_y;    /* NULL: the forward */
    weight_of *told; /* [rows][count] */
    const T *x[DR_DEPTH_MOST];
};

/* Lanes that read told behind another's writing wait for the warp. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) weigh(const __grid_constant__ depth_call<T> call) {
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, dim = row < call.rows ? call.dim : 0;
    const int lane = (int)threadIdx.x % 32;
    weight_of *const told = call.told + row * call.count;
    float most = -INFINITY, sum = 0;
    for (int64_t l = 0; l < call.count; l++) {
        float squares = 0, score = 0, along = 0;
        for (int64_t i = lane * N; i < dim; i += 32 * N) {
            const dr_floats<N> x = dr_load_floats<N>(call.x[l] + row * dim + i), w = dr_load_floats<N>(call.weight + i);
            const dr_floats<N> q = dr_load_floats<N>(call.query + i);
            const dr_floats<N> d = call.d_y ? dr_load_floats<N>(call.d_y + row * dim + i) : dr_same<N>(0);
            EACH {
                squares += x.at[n] * x.at[n];
                score += q.at[n] * w.at[n] * x.at[n];
                along += d.at[n] * x.at[n];
            }
        }
        squares = dr_sum_lanes(squares, 32), score = dr_sum_lanes(score, 32), along = dr_sum_lanes(along, 32);
        const float inverse = 1 / sqrtf(squares / (float)call.dim + call.eps);
        score *= inverse;
        if (dim && lane == 0) told[l] = {score, inverse, 0, along};
        most = fmaxf(most, score);
    }
    if (!dim || lane != 0) return;
    for (int64_t l = 0; l < call.count; l++) sum += told[l].share = expf(told[l].score - most);
    for (int64_t l = 0; l < call.count; l++) told[l].share /= sum;
}

template <typename T> struct depth_sum {
    depth_call<T> of;
    T *y;

    template <int N> __device__ void at(int64_t i) const {
        dr_floats<N> sum = dr_same<N>(0);
        const weight_of *const told = of.told + i / of.dim * of.count;
        for (int64_t l = 0; l < of.count; l++) {
            const dr_floats<N> x = dr_load_floats<N>(of.x[l] + i);
            EACH sum.at[n] += told[l].share * x.at[n];
        }
        dr_store_floats<N>(y + i, sum);
    }
};

/* The gradients of tensor l, and what its rows have for those of weight and query. */
template <typename T> struct depth_gradient {
    int64_t dim, count, l;
    const float *weight, *query;
    const weight_of *told;
    const T *x, *d_y;
    T *d_x;

    /* d_score inverse */
    __device__ float slope(int64_t row) const {
        const weight_of *const of = told + row * count;
        float mean = 0;
        for (int64_t m = 0; m < count; m++) mean += of[m].share * of[m].along;
        return of[l].share * (of[l].along - mean) * of[l].inverse;
    }

    template <int N> __device__ void at(int64_t i) const {
        const int64_t row = i / dim, channel = i % dim;
        const weight_of own = told[row * count + l];
        const float d_score = slope(row), part = own.score * own.inverse / (float)dim;
        const dr_floats<N> from = dr_load_floats<N>(x + i), d = dr_load_floats<N>(d_y + i);
        const dr_floats<N> w = dr_load_floats<N>(weight + channel), q = dr_load_floats<N>(query + channel);
        dr_floats<N> to;
        EACH to.at[n] = own.share * d.at[n] + d_score * (q.at[n] * w.at[n] - part * from.at[n]);
        dr_store_or_add<N>(d_x + i, to, true);
    }

    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[2]) const {
        const float d_score = slope(row);
        const dr_floats<N> from = dr_load_floats<N>(x + row * dim + column);
        const dr_floats<N> w = dr_load_floats<N>(weight + column), q = dr_load_floats<N>(query + column);
        EACH {
            sum[0].at[n] += d_score * from.at[n] * q.at[n];
            sum[1].at[n] += d_score * from.at[n] * w.at[n];
        }
    }
};

/* ---- on the host ----------------------------------------------------------------------------------------------------------
 */

static int64_t told_bytes(const dr_depth *depth) {
    return dr_blocks_of(depth->rows * depth->count * (int64_t)sizeof(weight_of), 16) * 16;
}

/* Whether all of the tensors can be read 16 bytes at a time. */
static bool are_wide(int64_t each, const dr_depth *depth, const void *const *x, const void *const *d_x) {
    bool wide = true;
    for (int64_t l = 0; l < depth->count; l++) wide = wide && dr_can_be_wide(each, depth->dim, x[l], d_x ? d_x[l] : NULL);
    return wide;
}

template <typename T>
static depth_call<T> call_of(const dr_depth *depth, const void *const *x, const void *weight, const void *query,
                             const void *d_y, void *told) {
    depth_call<T> call = {};
    call.rows = depth->rows, call.dim = depth->dim, call.count = depth->count, call.eps = (float)depth->eps;
    call.weight = (const float *)weight, call.query = (const float *)query, call.d_y = (const T *)d_y;
    call.told = (weight_of *)told;
    for (int64_t l = 0; l < depth->count; l++) call.x[l] = (const T *)x[l];
    return call;
}

template <int N, typename T> static dr_status run_weigh(const dr_cuda *gpu, const depth_call<T> &call) {
    return dr_cuda_launch("depth_weigh", weigh<N, T>, {dr_blocks_of(call.rows * 32, THREADS)}, THREADS, 0, gpu->stream, call);
}

template <int N, typename T> static dr_status forward(const dr_cuda *gpu, const depth_call<T> &call, T *y) {
    DR_TRY((run_weigh<N>(gpu, call)));
    const depth_sum<T> sum = {call, y};
    return dr_run_each<N>(gpu, "depth", call.rows * call.dim, sum);
}

dr_status dr_cuda_depth_forward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight,
                                const void *query, void *y) {
    DR_NETWORK_ENTER(backend);
    const dr_scratch scratch(backend, told_bytes(depth));
    DR_TRY(scratch.status);
    DR_NETWORK_TYPE(backend, T, const depth_call<T> call = call_of<T>(depth, x, weight, query, NULL, scratch.at);
                    const bool wide = are_wide(dr_wide<T>, depth, x, NULL) && dr_can_be_wide(1, 1, weight, query, y);
                    return wide ? forward<dr_wide<T>>(gpu, call, (T *)y) : forward<1>(gpu, call, (T *)y))
}

template <int N, typename T>
static dr_status backward(const dr_cuda *gpu, const depth_call<T> &call, void *const *d_x, float *partial, float *d_weight,
                          float *d_query) {
    DR_TRY((run_weigh<N>(gpu, call)));
    for (int64_t l = 0; l < call.count; l++) {
        const depth_gradient<T> gradient = {call.dim,  call.count, l,        call.weight, call.query,
                                            call.told, call.x[l],  call.d_y, (T *)d_x[l]};
        if (d_x[l]) DR_TRY(dr_run_each<N>(gpu, "depth_back", call.rows * call.dim, gradient));
        if (d_weight || d_query)
            DR_TRY((dr_run_columns<N, 2>(gpu, "depth_parameters", gradient, call.rows, call.dim, partial,
                                         {{{d_weight, 1, 1}, {d_query, 1, 1}}})));
    }
    return DR_OK;
}

dr_status dr_cuda_depth_backward(dr_backend *backend, const dr_depth *depth, const void *const *x, const void *weight,
                                 const void *query, const void *d_y, void *const *d_x, void *d_weight, void *d_query) {
    DR_NETWORK_ENTER(backend);
    const dr_scratch scratch(backend, told_bytes(depth) + dr_column_bytes<2>(depth->rows, depth->dim));
    DR_TRY(scratch.status);
    float *const partial = (float *)((char *)scratch.at + told_bytes(depth));
    DR_NETWORK_TYPE(backend, T, const depth_call<T> call = call_of<T>(depth, x, weight, query, d_y, scratch.at);
                    const bool wide = are_wide(dr_wide<T>, depth, x, d_x) && dr_can_be_wide(1, 1, weight, query, d_y);
                    return wide ? backward<dr_wide<T>>(gpu, call, d_x, partial, (float *)d_weight, (float *)d_query)
                                : backward<1>(gpu, call, d_x, partial, (float *)d_weight, (float *)d_query))
}
