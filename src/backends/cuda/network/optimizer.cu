/* The norm of a gradient, clipping, AdamW and Muon's steps beside its products; what is decided from step to step stays in the
 * GPU's memory (dr_control). The formulas stand in backends/reference/optimizer.c. */
#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { THREADS = 256, MOST_BLOCKS = 512 };

/* partial [blocks]: of every gridDim-th stretch of numbers; in double, so that no gradient of floats overflows */
template <int N> static __global__ void __launch_bounds__(THREADS) sum_squares(int64_t count, const float *x, double *partial) {
    __shared__ double sums[THREADS];
    double sum = 0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < count; i += (int64_t)gridDim.x * THREADS * N) {
        const dr_floats<N> some = dr_load_floats<N>(x + i);
        EACH sum += (double)some.at[n] * (double)some.at[n];
    }
    sum = dr_join_threads<THREADS>(sum, sums, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS) add_squares(int blocks, const double *partial, dr_control *control) {
    __shared__ double sums[THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < blocks; i += THREADS) sum += partial[i];
    sum = dr_join_threads<THREADS>(sum, sums, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) control->squares = sum;
}

dr_status dr_cuda_sum_squares(dr_backend *backend, int64_t count, const void *x, dr_control *control) {
    DR_NETWORK_ENTER(backend);
    const dr_scratch scratch(backend, MOST_BLOCKS * (int64_t)sizeof(double));
    DR_TRY(scratch.status);
    double *const partial = (double *)scratch.at;
    const bool wide = dr_can_be_wide(4, count, x);
    const int64_t all = dr_blocks_of(count, THREADS * (wide ? 4 : 1)), blocks = all < MOST_BLOCKS ? all : (int64_t)MOST_BLOCKS;
    DR_TRY(dr_cuda_launch("sum_squares", wide ? sum_squares<4> : sum_squares<1>, {blocks}, THREADS, 0, gpu->stream, count,
                          (const float *)x, partial));
    return dr_cuda_launch("add_squares", add_squares, {1}, THREADS, 0, gpu->stream, (int)blocks, (const double *)partial,
                          control);
}

static __global__ void clip_norm(double clip, dr_control *control) {
    if (threadIdx.x != 0) return;
    const double norm = sqrt(control->squares);
    control->norm = norm;
    if (!(norm < (double)INFINITY)) {
        control->skipped++;
        control->skipped_in_row++;
        return;
    }
    control->scale = clip > 0 && norm > clip ? clip / norm : 1;
    control->skipped_in_row = 0;
    control->updates++;
}

dr_status dr_cuda_clip(dr_backend *backend, double clip, dr_control *control) {
    DR_NETWORK_ENTER(backend);
    return dr_cuda_launch("clip", clip_norm, {1}, 32, 0, gpu->stream, clip, control);
}

/* A run as a kernel takes it: blocks from `block` on are its own. */
typedef struct {
    int64_t begin, count;
    float learning_rate, weight_decay;
    int block;
    bool wide; /* by loads of four */
} adamw_run;

enum { MOST_RUNS = 96 }; /* of a launch, whose arguments take up to 4 KB */

typedef struct {
    dr_adamw of;
    const dr_control *control;
    const float *gradient;
    float *parameter, *m, *v;
    int runs;
    adamw_run run[MOST_RUNS];
} adamw_call;

/* LOADS loads a thread, so that the powers of a block are few beside its numbers. */
enum { LOADS = 4 };

/* What a step does to numbers at a place. */
typedef struct {
    float scale, beta1, beta2, rest1, rest2, first_share, second_share, eps; /* shares: 1 / (1 - b^t) */
} adamw_step;

template <int N>
static __device__ void adamw_at(const adamw_call &call, const adamw_step &step, const adamw_run &run, int64_t i) {
    const dr_floats<N> g = dr_load_floats<N>(call.gradient + i);
    dr_floats<N> p = dr_load_floats<N>(call.parameter + i), m = dr_load_floats<N>(call.m + i),
                 v = dr_load_floats<N>(call.v + i);
    EACH {
        const float gradient = step.scale * g.at[n];
        m.at[n] = step.beta1 * m.at[n] + step.rest1 * gradient;
        v.at[n] = step.beta2 * v.at[n] + step.rest2 * gradient * gradient;
        const float direction = m.at[n] * step.first_share / (sqrtf(v.at[n] * step.second_share) + step.eps);
        p.at[n] -= run.learning_rate * (direction + run.weight_decay * p.at[n]);
    }
    dr_store_floats<N>(call.parameter + i, p);
    dr_store_floats<N>(call.m + i, m);
    dr_store_floats<N>(call.v + i, v);
}

static __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ adamw_call call) {
    __shared__ float shares[2];
    const dr_control &control = *call.control;
    if (control.skipped_in_row > 0) return;
    if (threadIdx.x < 2)
        shares[threadIdx.x] = (float)(1 / (1 - pow(threadIdx.x == 0 ? call.of.beta1 : call.of.beta2, (double)control.updates)));
    int low = 0, high = call.runs - 1; /* the block's run lies between */
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (call.run[middle].block <= (int)blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    const adamw_run run = call.run[low];
    __syncthreads();
    const adamw_step step = {(float)control.scale,
                             (float)call.of.beta1,
                             (float)call.of.beta2,
                             (float)(1 - call.of.beta1),
                             (float)(1 - call.of.beta2),
                             shares[0],
                             shares[1],
                             (float)call.of.eps};
    for (int load = 0; load < LOADS; load++) {
        const int64_t i = ((int64_t)((int)blockIdx.x - run.block) * LOADS + load) * THREADS + threadIdx.x;
        if (!run.wide && i < run.count) adamw_at<1>(call, step, run, run.begin + i);
        if (run.wide && i * 4 < run.count) adamw_at<4>(call, step, run, run.begin + i * 4);
    }
}

dr_status dr_cuda_adamw(dr_backend *backend, const dr_adamw *of, const dr_control *control, int runs, const dr_adamw_run *run,
                        const void *gradient, void *parameter, void *m, void *v) {
    DR_NETWORK_ENTER(backend);
    for (int first = 0; first < runs; first += MOST_RUNS) {
        adamw_call call = {*of, control, (const float *)gradient, (float *)parameter, (float *)m, (float *)v};
        int64_t blocks = 0;
        for (int i = first; i < runs && i < first + MOST_RUNS; i++) {
            const int64_t at = run[i].begin, count = run[i].count;
            const bool wide = dr_can_be_wide(4, at | count, gradient, parameter, m, v);
            if (count == 0) continue;
            call.run[call.runs++] = {at, count, (float)run[i].learning_rate, (float)run[i].weight_decay, (int)blocks, wide};
            blocks += dr_blocks_of(count, THREADS * LOADS * (wide ? 4 : 1));
        }
        DR_TRY(dr_cuda_launch("adamw", adamw, {blocks}, THREADS, 0, gpu->stream, call));
    }
    return DR_OK;
}

/* ---- Muon ---------------------------------------------------------------------------------------------------------------- */

/* momentum = beta momentum + g, y = g + beta momentum, with g the clipped gradient */
template <typename T> struct momentum_call {
    const dr_control *control;
    float beta;
    const float *gradient;
    float *momentum;
    T *y;

    template <int N> __device__ void at(int64_t i) const {
        if (control->skipped_in_row > 0) return;
        const float scale = (float)control->scale;
        dr_floats<N> g = dr_load_floats<N>(gradient + i), m = dr_load_floats<N>(momentum + i), direction;
        EACH {
            g.at[n] *= scale;
            m.at[n] = beta * m.at[n] + g.at[n];
            direction.at[n] = g.at[n] + beta * m.at[n];
        }
        dr_store_floats<N>(momentum + i, m);
        dr_store_floats<N>(y + i, direction);
    }
};

dr_status dr_cuda_momentum(dr_backend *backend, double beta, const dr_control *control, int64_t count, const void *gradient,
                           void *momentum, void *y) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(
        backend, count, (gradient, momentum, y), T, N,
        const momentum_call<T> call = {control, (float)beta, (const float *)gradient, (float *)momentum, (T *)y};
        return dr_run_each<N>(gpu, "momentum", count, call))
}

/* parameter -= learning_rate (factor direction + weight_decay parameter) */
template <typename T> struct descent_call {
    const dr_control *control;
    float rate, factor, decay;
    const T *direction;
    float *parameter;

    template <int N> __device__ void at(int64_t i) const {
        if (control->skipped_in_row > 0) return;
        const dr_floats<N> d = dr_load_floats<N>(direction + i);
        dr_floats<N> p = dr_load_floats<N>(parameter + i);
        EACH p.at[n] -= rate * (factor * d.at[n] + decay * p.at[n]);
        dr_store_floats<N>(parameter + i, p);
    }
};

dr_status dr_cuda_descend(dr_backend *backend, const dr_descent *of, const dr_control *control, int64_t count,
                          const void *direction, void *parameter) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, count, (direction, parameter), T, N,
                        const descent_call<T> call = {control, (float)of->learning_rate, (float)of->factor,
                                                      (float)of->weight_decay, (const T *)direction, (float *)parameter};
                        return dr_run_each<N>(gpu, "descend", count, call))
}
