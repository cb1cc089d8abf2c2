/* Norms of vectors: RMS norm with or without a gate, layer norm, L2 norm, division by the sum. Each vector is that of 1 to 32
 * neighbouring lanes, which go along it in steps of a load each; it is read from memory once, and from the first-level cache
 * when it is wanted again.
 *
 * With n the normed vector and d_n the gradient of n, all four have d_u = (d_n - mean - n along) inverse, where
 *
 *     RMS   inverse = 1 / sqrt(mean u^2 + eps)          mean = 0             along = mean(d_n n)
 *     L2    inverse = 1 / sqrt(sum u^2 + eps)           mean = 0             along = sum(d_n n)
 *     layer inverse = 1 / sqrt(variance + eps)          mean = mean(d_n)     along = mean(d_n n)
 *     sum   inverse = 1 / sum u, n = u inverse          mean = sum(d_n n)    along = 0
 */
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/functions.cuh"

enum { THREADS = 256 };

typedef enum { RMS, L2, LAYER, SUM } kind;

/* What a backward's kernels tell of a vector: n = (u - mean) inverse. */
typedef struct {
    float mean, inverse;
} moments;

template <typename T> struct norm_call {
    kind of;
    int64_t vectors, dim, groups;   /* weights of group r % groups */
    int64_t gate_row, gate_vectors; /* of a panel (dr_rms_norm); 0: dense */
    int lanes;
    float eps, weight_offset;
    dr_activation activation;
    bool gate_first, accumulate;
    const T *x, *gate, *d_y;
    const float *weight, *bias; /* [groups][dim]; NULL: ones, zeros */
    T *y, *d_x, *d_gate;
    moments *told; /* [vectors]: for the gradients of parameters, or NULL */

    __device__ float factor(float g) const { return gate ? dr_activate(activation, g) : 1; }

    /* where the gate of a vector begins: in 32 bits, which hold as many vectors as a call has */
    __device__ int64_t gate_at(int64_t vector) const {
        if (gate_row == 0) return vector * dim;
        const unsigned row = (unsigned)vector / (unsigned)gate_vectors;
        return row * gate_row + ((unsigned)vector - row * (unsigned)gate_vectors) * dim;
    }

    template <int N> __device__ dr_floats<N> gates(int64_t vector, int64_t i) const {
        return gate ? dr_load_floats<N>(gate + gate_at(vector) + i) : dr_same<N>(0);
    }

    /* what the norm divides, at an element of a vector and its neighbours */
    template <int N> __device__ dr_floats<N> input(int64_t vector, int64_t i) const {
        dr_floats<N> u = dr_load_floats<N>(x + vector * dim + i);
        if (gate_first) {
            const dr_floats<N> g = gates<N>(vector, i);
            EACH u.at[n] *= factor(g.at[n]);
        }
        return u;
    }

    template <int N> __device__ dr_floats<N> weights(int64_t at) const {
        dr_floats<N> w = weight ? dr_load_floats<N>(weight + at) : dr_same<N>(1);
        EACH w.at[n] += weight_offset;
        return w;
    }

    /* d_w[column] and d_b[column], columns of all groups side by side */
    template <int N> __device__ void add(int64_t row, int64_t column, dr_floats<N> (&sum)[2]) const {
        const int64_t vector = row * groups + column / dim, i = column % dim;
        const moments m = told[vector];
        const dr_floats<N> u = input<N>(vector, i), d = dr_load_floats<N>(d_y + vector * dim + i), g = gates<N>(vector, i);
        EACH {
            const float after = gate_first ? 1 : factor(g.at[n]);
            sum[0].at[n] += d.at[n] * after * (u.at[n] - m.mean) * m.inverse;
            sum[1].at[n] += d.at[n];
        }
    }
};

/* Of the lanes' vector; all lanes of a warp call it, those behind the last vector with dim 0. */
template <int N, typename T>
static __device__ moments moments_of(const norm_call<T> &call, int64_t vector, int64_t dim, int lane) {
    float sum = 0, squares = 0;
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> u = call.template input<N>(vector, i);
        EACH {
            sum += u.at[n];
            squares += u.at[n] * u.at[n];
        }
    }
    const float count = (float)call.dim;
    if (call.of == SUM) return {0, 1 / dr_sum_lanes(sum, call.lanes)};
    if (call.of != LAYER) {
        squares = dr_sum_lanes(squares, call.lanes);
        return {0, 1 / sqrtf((call.of == RMS ? squares / count : squares) + call.eps)};
    }
    const float mean = dr_sum_lanes(sum, call.lanes) / count;
    squares = 0; /* again, of what is left without the mean */
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> u = call.template input<N>(vector, i);
        EACH squares += (u.at[n] - mean) * (u.at[n] - mean);
    }
    return {mean, 1 / sqrtf(dr_sum_lanes(squares, call.lanes) / count + call.eps)};
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) norm_forward(const __grid_constant__ norm_call<T> call) {
    const int64_t vector = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / call.lanes, begin = vector * call.dim;
    const int64_t dim = vector < call.vectors ? call.dim : 0, weights = vector % call.groups * call.dim;
    const int lane = (int)threadIdx.x % call.lanes;
    dr_chain();
    const moments m = moments_of<N>(call, vector, dim, lane);
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> u = call.template input<N>(vector, i), w = call.template weights<N>(weights + i);
        const dr_floats<N> b = call.bias ? dr_load_floats<N>(call.bias + weights + i) : dr_same<N>(0);
        const dr_floats<N> g = call.template gates<N>(vector, i);
        dr_floats<N> y;
        EACH {
            y.at[n] = (u.at[n] - m.mean) * m.inverse * w.at[n] + b.at[n];
            if (!call.gate_first) y.at[n] *= call.factor(g.at[n]);
        }
        dr_store_floats<N>(call.y + begin + i, y);
    }
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) norm_backward(const __grid_constant__ norm_call<T> call) {
    const int64_t vector = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / call.lanes, begin = vector * call.dim;
    const int64_t dim = vector < call.vectors ? call.dim : 0, weights = vector % call.groups * call.dim;
    const int lane = (int)threadIdx.x % call.lanes;
    const moments m = moments_of<N>(call, vector, dim, lane);
    float mean = 0, along = 0; /* of d_n and of d_n n */
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> u = call.template input<N>(vector, i), w = call.template weights<N>(weights + i);
        const dr_floats<N> g = call.template gates<N>(vector, i), d_y = dr_load_floats<N>(call.d_y + begin + i);
        EACH {
            const float d_n = d_y.at[n] * w.at[n] * (call.gate_first ? 1 : call.factor(g.at[n]));
            mean += d_n;
            along += d_n * (u.at[n] - m.mean) * m.inverse;
        }
    }
    const float share = call.of == RMS || call.of == LAYER ? 1 / (float)call.dim : 1;
    mean = dr_sum_lanes(mean, call.lanes) * share;
    along = dr_sum_lanes(along, call.lanes) * share;
    if (call.of == SUM)
        mean = along, along = 0;
    else if (call.of != LAYER)
        mean = 0;
    if (call.told && dim && lane == 0) call.told[vector] = m;
    for (int64_t i = lane * N; i < dim; i += call.lanes * N) {
        const dr_floats<N> x = dr_load_floats<N>(call.x + begin + i), w = call.template weights<N>(weights + i);
        const dr_floats<N> g = call.template gates<N>(vector, i), d_y = dr_load_floats<N>(call.d_y + begin + i);
        dr_floats<N> d_x, d_gate;
        EACH {
            const float a = call.factor(g.at[n]), before = call.gate_first ? a : 1, after = call.gate_first ? 1 : a;
            const float normed = (x.at[n] * before - m.mean) * m.inverse;
            const float d_u = (d_y.at[n] * w.at[n] * after - mean - normed * along) * m.inverse;
            const float d_factor = call.gate_first ? d_u * x.at[n] : d_y.at[n] * normed * w.at[n];
            d_x.at[n] = d_u * before;
            d_gate.at[n] = d_factor * dr_activation_slope(call.activation, g.at[n]);
        }
        if (call.d_gate) dr_store_floats<N>(call.d_gate + call.gate_at(vector) + i, d_gate);
        if (call.d_x) dr_store_or_add<N>(call.d_x + begin + i, d_x, call.accumulate);
    }
}

/* ---- vectors in registers -------------------------------------------------------------------------------------------------
 */

/* RMS and L2 norm of vectors of at most 32 lanes CHUNKS loads, the weights the same for all, the gate, if there is one, last:
 * what a lane has of a vector is loaded at once and stays in its registers. */
#define CHUNK _Pragma("unroll") for (int c = 0; c < CHUNKS; c++)

template <int N, int CHUNKS, bool GATED, typename T> struct kept_vector {
    dr_floats<N> u[CHUNKS], g[GATED ? CHUNKS : 1];
    float inverse;

    /* All lanes of a warp call it, those behind the last vector with dim 0. */
    __device__ void load(const norm_call<T> &call, int64_t vector, int64_t dim, int lane) {
        const int64_t begin = vector * call.dim, gate = GATED ? call.gate_at(vector) : 0;
        float squares = 0;
        CHUNK {
            const int64_t i = (int64_t)(c * call.lanes + lane) * N;
            u[c] = i < dim ? dr_load_floats<N>(call.x + begin + i) : dr_same<N>(0);
            if constexpr (GATED) g[c] = i < dim ? dr_load_floats<N>(call.gate + gate + i) : dr_same<N>(0);
        }
        CHUNK EACH squares += u[c].at[n] * u[c].at[n];
        squares = dr_sum_lanes(squares, call.lanes);
        inverse = 1 / sqrtf((call.of == RMS ? squares / (float)call.dim : squares) + call.eps);
    }

    __device__ float factor(const norm_call<T> &call, int c, int n) const {
        if constexpr (GATED) return dr_activate(call.activation, g[c].at[n]);
        return 1;
    }
};

template <int N, int CHUNKS, bool GATED, typename T>
static __global__ void __launch_bounds__(THREADS) norm_kept_forward(const __grid_constant__ norm_call<T> call) {
    const int64_t vector = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / call.lanes, begin = vector * call.dim;
    const int64_t dim = vector < call.vectors ? call.dim : 0;
    const int lane = (int)threadIdx.x % call.lanes;
    kept_vector<N, CHUNKS, GATED, T> kept;
    if (blockIdx.x == 0 && call.weight) { /* once for all vectors */
        CHUNK if ((c * call.lanes + lane) * N < call.dim) dr_prefetch(call.weight + (c * call.lanes + lane) * N);
    }
    dr_chain();
    kept.load(call, vector, dim, lane);
    CHUNK {
        const int64_t i = (int64_t)(c * call.lanes + lane) * N;
        if (i >= dim) continue;
        const dr_floats<N> w = call.template weights<N>(i);
        dr_floats<N> y;
        EACH y.at[n] = kept.u[c].at[n] * kept.inverse * w.at[n] * kept.factor(call, c, n);
        dr_store_floats<N>(call.y + begin + i, y);
    }
}

/* The blocks stay, and add up what their vectors have for the weights: partial [blocks][dim], or NULL. */
template <int N, int CHUNKS, bool GATED, typename T>
static __global__ void __launch_bounds__(THREADS)
    norm_kept_backward(const __grid_constant__ norm_call<T> call, float *partial) {
    __shared__ float shared[N][THREADS];
    const int lanes = call.lanes, lane = (int)threadIdx.x % lanes, groups = THREADS / lanes;
    const float share = call.of == RMS ? 1 / (float)call.dim : 1;
    dr_floats<N> w[CHUNKS], sum[CHUNKS];
    CHUNK {
        const int64_t i = (int64_t)(c * lanes + lane) * N;
        w[c] = i < call.dim ? call.template weights<N>(i) : dr_same<N>(0);
        sum[c] = dr_same<N>(0);
    }
    for (int64_t first = (int64_t)blockIdx.x * groups; first < call.vectors; first += (int64_t)gridDim.x * groups) {
        const int64_t vector = first + threadIdx.x / lanes, begin = vector * call.dim,
                      dim = vector < call.vectors ? call.dim : 0;
        kept_vector<N, CHUNKS, GATED, T> kept;
        dr_floats<N> d[CHUNKS];
        float along = 0;
        uint4 before[CHUNKS]; /* of d_x, asked for before the sums need their time */
        CHUNK {
            const int64_t i = (int64_t)(c * lanes + lane) * N;
            d[c] = i < dim ? dr_load_floats<N>(call.d_y + begin + i) : dr_same<N>(0);
            if (call.accumulate && i < dim) before[c] = *(const uint4 *)(const void *)(call.d_x + begin + i);
        }
        kept.load(call, vector, dim, lane);
        CHUNK EACH along += d[c].at[n] * w[c].at[n] * kept.factor(call, c, n) * kept.u[c].at[n] * kept.inverse;
        along = dr_sum_lanes(along, lanes) * share;
        CHUNK {
            const int64_t i = (int64_t)(c * lanes + lane) * N;
            dr_floats<N> d_x, d_gate;
            EACH {
                const float normed = kept.u[c].at[n] * kept.inverse, d_n = d[c].at[n] * kept.factor(call, c, n);
                d_x.at[n] = (d_n * w[c].at[n] - normed * along) * kept.inverse;
                sum[c].at[n] += d_n * normed;
                if constexpr (GATED)
                    d_gate.at[n] = d[c].at[n] * normed * w[c].at[n] * dr_activation_slope(call.activation, kept.g[c].at[n]);
            }
            if (i >= dim) continue;
            if (GATED && call.d_gate) dr_store_floats<N>(call.d_gate + call.gate_at(vector) + i, d_gate);
            if (call.accumulate) {
                const dr_floats<N> had = dr_load_floats<N>((const T *)(const void *)&before[c]);
                EACH d_x.at[n] += had.at[n];
            }
            if (call.d_x) dr_store_floats<N>(call.d_x + begin + i, d_x);
        }
    }
    if (!partial) return;
    CHUNK {
        __syncthreads();
        EACH shared[n][threadIdx.x] = sum[c].at[n];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < lanes * N; i += THREADS) {
            const int of = i / lanes, from = i % lanes;
            const int64_t column = (int64_t)(c * lanes + from) * N + of;
            float all = 0;
            for (int thread = from; thread < THREADS; thread += lanes) all += shared[of][thread];
            if (column < call.dim) partial[blockIdx.x * call.dim + column] = all;
        }
    }
}

/* ---- on the host ----------------------------------------------------------------------------------------------------------
 */

enum { KEPT_BLOCKS = 512, MOST_CHUNKS = 4, MOST_GATED_CHUNKS = 2 };

/* Loads of a lane that its vector takes; 0: the kernels for vectors in registers do not take it. */
template <int N, typename T> static int chunks_of(const norm_call<T> &call) {
    const int64_t chunks = dr_blocks_of(call.dim, (int64_t)call.lanes * N);
    const bool takes = N > 1 && (call.of == RMS || call.of == L2) && !call.gate_first && call.groups == 1 && !call.bias;
    return takes && chunks <= (call.gate ? MOST_GATED_CHUNKS : MOST_CHUNKS) ? (int)chunks : 0;
}

static int64_t kept_blocks(int64_t vectors, int lanes) {
    const int64_t blocks = dr_blocks_of(vectors, THREADS / lanes);
    return blocks < KEPT_BLOCKS ? blocks : (int64_t)KEPT_BLOCKS;
}

template <int N, int CHUNKS, bool GATED, typename T>
static dr_status run_kept(const dr_cuda *gpu, const char *name, const norm_call<T> &call, float *partial) {
    if (call.d_y)
        return dr_cuda_launch(name, norm_kept_backward<N, CHUNKS, GATED, T>, {kept_blocks(call.vectors, call.lanes)}, THREADS,
                              0, gpu->stream, call, partial);
    return dr_launch_chained(gpu, name, norm_kept_forward<N, CHUNKS, GATED, T>,
                             {dr_blocks_of(call.vectors * call.lanes, THREADS)}, THREADS, 0, call);
}

template <int N, typename T>
static dr_status choose_kept(const dr_cuda *gpu, const char *name, const norm_call<T> &call, int chunks, float *partial) {
    if (call.gate)
        return chunks == 1 ? run_kept<N, 1, true>(gpu, name, call, partial) : run_kept<N, 2, true>(gpu, name, call, partial);
    if (chunks == 1) return run_kept<N, 1, false>(gpu, name, call, partial);
    if (chunks == 2) return run_kept<N, 2, false>(gpu, name, call, partial);
    return run_kept<N, 4, false>(gpu, name, call, partial);
}

template <int N, typename T> static dr_status run(const dr_cuda *gpu, const char *name, norm_call<T> call) {
    call.lanes = dr_lanes_for(dr_blocks_of(call.dim, N));
    const int64_t blocks = dr_blocks_of(call.vectors * call.lanes, THREADS);
    if (call.dim == 0) return DR_OK;
    if constexpr (N > 1) {
        const int chunks = chunks_of<N>(call);
        if (chunks > 0) return choose_kept<N>(gpu, name, call, chunks, NULL);
    }
    if (call.d_y) return dr_cuda_launch(name, norm_backward<N, T>, {blocks}, THREADS, 0, gpu->stream, call);
    return dr_launch_chained(gpu, name, norm_forward<N, T>, {blocks}, THREADS, 0, call);
}

/* The vectors' gradients and, of vectors in registers, those of the weights [dim], which are added to. */
template <int N, typename T>
static dr_status run_kept_back(dr_backend *backend, const dr_cuda *gpu, const char *name, const norm_call<T> &call, int chunks,
                               float *d_weight) {
    const int64_t blocks = kept_blocks(call.vectors, call.lanes);
    const dr_scratch scratch(backend, blocks * call.dim * (int64_t)sizeof(float));
    DR_TRY(scratch.status);
    float *const partial = (float *)scratch.at;
    DR_TRY(choose_kept<N>(gpu, name, call, chunks, partial));
    return dr_run_add_columns<1>(gpu, {{{d_weight, 1, 1}}}, call.dim, blocks, partial);
}

/* The vectors' gradients, then those of weight and bias [groups][dim], each added to; NULL: not wanted. */
template <int N, typename T>
static dr_status run_back(dr_backend *backend, const dr_cuda *gpu, const char *name, norm_call<T> call, float *d_weight,
                          float *d_bias) {
    if (call.vectors == 0 || call.dim == 0) return DR_OK;
    if (!d_weight && !d_bias) return run<N>(gpu, name, call);
    if constexpr (N > 1) {
        call.lanes = dr_lanes_for(dr_blocks_of(call.dim, N));
        const int chunks = d_bias ? 0 : chunks_of<N>(call);
        if (chunks > 0) return run_kept_back<N>(backend, gpu, name, call, chunks, d_weight);
    }
    const int64_t columns = call.groups * call.dim, rows = call.vectors / call.groups;
    const int64_t told = dr_blocks_of(call.vectors * (int64_t)sizeof(moments), 16) * 16;
    const dr_scratch scratch(backend, told + dr_column_bytes<2>(rows, columns));
    DR_TRY(scratch.status);
    call.told = (moments *)scratch.at;
    if (call.gate && call.d_gate == call.gate) { /* which the sums read: it is written behind them */
        norm_call<T> told = call;
        told.d_x = told.d_gate = NULL;
        DR_TRY(run<N>(gpu, name, told));
    } else {
        DR_TRY(run<N>(gpu, name, call));
    }
    const dr_column_targets<2> targets = {{{d_weight, 1, 1}, {d_bias, 1, 1}}};
    float *const partial = (float *)((char *)scratch.at + told);
    DR_TRY((dr_run_columns<N, 2>(gpu, "norm_weights", call, rows, columns, partial, targets)));
    if (!call.gate || call.d_gate != call.gate) return DR_OK;
    call.told = NULL;
    return run<N>(gpu, name, call);
}

template <typename T>
static norm_call<T> rms_call(const dr_rms_norm *norm, const void *x, const void *weight, const void *gate) {
    norm_call<T> call = {};
    call.of = RMS, call.vectors = norm->rows, call.dim = norm->dim, call.groups = norm->groups ? norm->groups : 1;
    call.eps = (float)norm->eps, call.weight_offset = (float)norm->weight_offset;
    call.activation = norm->gate;
    call.gate = norm->gate == DR_ACTIVATION_NONE ? NULL : (const T *)gate;
    call.gate_first = norm->gate_first && call.gate;
    call.gate_row = norm->gate_row, call.gate_vectors = norm->gate_vectors;
    call.x = (const T *)x, call.weight = (const float *)weight;
    return call;
}

dr_status dr_cuda_rms_norm_forward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                   const void *gate, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, norm->dim | norm->gate_row, (x, weight, gate, y), T, N,
                        norm_call<T> call = rms_call<T>(norm, x, weight, gate);
                        call.y = (T *)y; return run<N>(gpu, "rms_norm", call))
}

dr_status dr_cuda_rms_norm_backward(dr_backend *backend, const dr_rms_norm *norm, const void *x, const void *weight,
                                    const void *gate, const void *d_y, void *d_x, bool accumulate, void *d_weight,
                                    void *d_gate) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, norm->dim | norm->gate_row, (x, weight, gate, d_y, d_x, d_gate), T, N,
                        norm_call<T> call = rms_call<T>(norm, x, weight, gate);
                        call.d_y = (const T *)d_y, call.d_x = (T *)d_x, call.accumulate = accumulate && d_x;
                        call.d_gate = gate ? (T *)d_gate : NULL;
                        return run_back<N>(backend, gpu, "rms_norm_back", call, (float *)d_weight, NULL))
}

template <typename T> static norm_call<T> layer_call(const dr_layer_norm *norm, const void *x, const void *weight) {
    norm_call<T> call = {};
    call.of = LAYER, call.vectors = norm->rows * norm->groups, call.dim = norm->dim, call.groups = norm->groups;
    call.eps = (float)norm->eps, call.x = (const T *)x, call.weight = (const float *)weight;
    return call;
}

dr_status dr_cuda_layer_norm_forward(dr_backend *backend, const dr_layer_norm *norm, const void *x, const void *weight,
                                     const void *bias, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, norm->dim, (x, weight, bias, y), T, N, norm_call<T> call = layer_call<T>(norm, x, weight);
                        call.bias = (const float *)bias, call.y = (T *)y; return run<N>(gpu, "layer_norm", call))
}

dr_status dr_cuda_layer_norm_backward(dr_backend *backend, const dr_layer_norm *norm, const void *x, const void *weight,
                                      const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_bias) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, norm->dim, (x, weight, d_y, d_x), T, N, norm_call<T> call = layer_call<T>(norm, x, weight);
                        call.d_y = (const T *)d_y, call.d_x = (T *)d_x, call.accumulate = accumulate && d_x;
                        return run_back<N>(backend, gpu, "layer_norm_back", call, (float *)d_weight, (float *)d_bias))
}

/* L2 norm and division by the sum, which have no parameters; d_y NULL: the forward, to y. */
static dr_status run_plain(dr_backend *backend, const char *name, kind of, int64_t rows, int64_t dim, double eps, const void *x,
                           const void *d_y, void *to) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, dim, (x, d_y, to), T, N, norm_call<T> call = {};
                        call.of = of, call.vectors = rows, call.dim = dim, call.groups = 1, call.eps = (float)eps;
                        call.x = (const T *)x, call.d_y = (const T *)d_y; (d_y ? call.d_x : call.y) = (T *)to;
                        return run<N>(gpu, name, call))
}

dr_status dr_cuda_l2_norm_forward(dr_backend *backend, const dr_l2_norm *norm, const void *x, void *y) {
    return run_plain(backend, "l2_norm", L2, norm->rows, norm->dim, norm->eps, x, NULL, y);
}

dr_status dr_cuda_l2_norm_backward(dr_backend *backend, const dr_l2_norm *norm, const void *x, const void *d_y, void *d_x) {
    return run_plain(backend, "l2_norm_back", L2, norm->rows, norm->dim, norm->eps, x, d_y, d_x);
}

dr_status dr_cuda_sum_norm_forward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, void *y) {
    return run_plain(backend, "sum_norm", SUM, rows, dim, 0, x, NULL, y);
}

dr_status dr_cuda_sum_norm_backward(dr_backend *backend, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x) {
    return run_plain(backend, "sum_norm_back", SUM, rows, dim, 0, x, d_y, d_x);
}
