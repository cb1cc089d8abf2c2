/* What is made of inputs, and its gradients: the formulas stand in backends/reference/recurrence_forms.c. A thread has an
 * element; where a row's length matters a warp has the row. Arithmetic is float. */
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/forms/tensors.h"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 132 * 32, PARTS = 32 };

static __device__ inline float load(dr_dtype dtype, const void *tensor, int64_t at) {
    float x = 0;
    DR_CUDA_STORAGE(dtype, T, x = dr_to_float(((const T *)tensor)[at]));
    return x;
}

static __device__ inline void store(dr_dtype dtype, float x, void *tensor, int64_t at) {
    DR_CUDA_STORAGE(dtype, T, ((T *)tensor)[at] = dr_from_float<T>(x));
}

/* The caller's first element of a row. */
static __device__ inline int64_t row_at(const dr_cuda_tensor &t, int64_t row, int64_t token) {
    return row / t.each * token + row % t.each * t.size;
}

static __device__ inline bool is_skipped(const dr_cuda_tensor &t, int64_t row) {
    return t.from && t.from[row / t.from_rows] < 0;
}

/* ---- maps of an element ---------------------------------------------------------------------------------------------- */

static __device__ inline float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* 1 / (1 + e^-x) with the bits of PyTorch's sigmoid on a CPU, whose exponential is Sleef's (Sleef_expf_u10): a beta that the
 * host made and one that is made here of its logit are the same number. The limits change no sigmoid; a NaN passes. */
static __device__ inline float sigmoid(float x) {
    const float y = x > 104.0f ? -104.0f : x < -104.0f ? 104.0f : -x;
    const float n = rintf(y * 1.442695041f);
    const float r = fmaf(n, -1.428606765e-06f, fmaf(n, -0.693145752f, y));
    float p = fmaf(1.985276176e-04f, r, 1.393043553e-03f);
    p = fmaf(p, r, 8.333360776e-03f);
    p = fmaf(p, r, 4.166648537e-02f);
    p = fmaf(p, r, 1.666666716e-01f);
    p = fmaf(p, r, 0.5f);
    const float e = ldexpf(1.0f + fmaf(r * r, p, r), (int)n);
    return 1.0f / (1.0f + e);
}

typedef struct {
    float y, d_u, d_A_log; /* and its derivatives by u = x + dt_bias and by A_log */
} decay_value;

static __device__ inline decay_value decay_of(const dr_cuda_tensor &t, float x, int64_t head, int d) {
    const float rate = t.A_log ? expf(t.A_log[head]) : 1.0f, u = t.dt_bias ? x + t.dt_bias[head * t.size + d] : x;
    if (!t.bounded) return {-rate * softplus(u), -rate * sigmoid(u), -rate * softplus(u)};
    const float z = rate * u, open = sigmoid(z), d_u = t.lower_bound * rate * open * sigmoid(-z);
    return {t.lower_bound * open, d_u, u * d_u};
}

static __device__ inline float made_of(const dr_cuda_tensor &t, float x, int64_t row, int d) {
    switch (t.made) {
    case DR_CUDA_MADE_AS_IT_IS:
    case DR_CUDA_MADE_NORMALIZED: /* rows of them */
        break;
    case DR_CUDA_MADE_SIGMOID:
        return t.factor * sigmoid(x);
    case DR_CUDA_MADE_DECAY:
        return decay_of(t, x, row % t.heads, d).y;
    }
    return x;
}

/* Of what is made of x, whose own gradient is dy. */
static __device__ inline float gradient_of(const dr_cuda_tensor &t, const void *given, float dy, int64_t row, int d) {
    switch (t.made) {
    case DR_CUDA_MADE_AS_IT_IS:
    case DR_CUDA_MADE_NORMALIZED:
        break;
    case DR_CUDA_MADE_SIGMOID: {
        const float x = load(t.dtype, given, row_at(t, row, t.token) + d);
        return dy * t.factor * sigmoid(x) * sigmoid(-x);
    }
    case DR_CUDA_MADE_DECAY:
        return dy == 0 ? 0 : dy * decay_of(t, load(t.dtype, given, row_at(t, row, t.token) + d), row % t.heads, d).d_u;
    }
    return dy;
}

/* ---- elements -------------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    make_elements(const __grid_constant__ dr_cuda_tensor t, const void *given, void *dense) {
    const int64_t count = t.rows * t.size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / t.size;
        const int d = (int)(i - row * t.size);
        store(t.own, made_of(t, load(t.dtype, given, row_at(t, row, t.token) + d), row, d), dense, i);
    }
}

static __global__ void __launch_bounds__(THREADS)
    return_elements(const __grid_constant__ dr_cuda_tensor t, const void *given, const void *d_dense, void *d_given) {
    const int64_t count = t.rows * t.size;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / t.size;
        const int d = (int)(i - row * t.size);
        if (is_skipped(t, row)) continue;
        store(t.dtype, gradient_of(t, given, load(t.own, d_dense, i), row, d), d_given, row_at(t, row, t.d_token) + d);
    }
}

/* ---- normalized rows ------------------------------------------------------------------------------------------------- */

static __device__ inline float sum_lanes(float x) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(0xffffffffu, x, bits);
    return x;
}

/* 1 / sqrt(x . x + epsilon) */
static __device__ inline float scale_of(const dr_cuda_tensor &t, const void *given, int64_t at) {
    float squares = 0;
    for (int d = (int)threadIdx.x % 32; d < t.size; d += 32) {
        const float x = load(t.dtype, given, at + d);
        squares += x * x;
    }
    return 1.0f / sqrtf(sum_lanes(squares) + t.epsilon);
}

static __global__ void __launch_bounds__(THREADS)
    make_normalized(const __grid_constant__ dr_cuda_tensor t, const void *given, void *dense) {
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < t.rows; row += (int64_t)gridDim.x * WARPS) {
        const int64_t at = row_at(t, row, t.token);
        const float scale = scale_of(t, given, at);
        for (int d = (int)threadIdx.x % 32; d < t.size; d += 32)
            store(t.own, load(t.dtype, given, at + d) * scale, dense, row * t.size + d);
    }
}

static __global__ void __launch_bounds__(THREADS)
    return_normalized(const __grid_constant__ dr_cuda_tensor t, const void *given, const void *d_dense, void *d_given) {
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < t.rows; row += (int64_t)gridDim.x * WARPS) {
        const int64_t at = row_at(t, row, t.token), to = row_at(t, row, t.d_token);
        const float scale = scale_of(t, given, at);
        float along = 0;
        for (int d = (int)threadIdx.x % 32; d < t.size; d += 32)
            along += load(t.dtype, given, at + d) * scale * load(t.own, d_dense, row * t.size + d);
        along = sum_lanes(along);
        for (int d = (int)threadIdx.x % 32; d < t.size; d += 32) {
            const float y = load(t.dtype, given, at + d) * scale;
            store(t.dtype, (load(t.own, d_dense, row * t.size + d) - y * along) * scale, d_given, to + d);
        }
    }
}

static dr_status run_elements(const dr_cuda_tensor *t, const void *given, void *dense, dr_cuda_stream stream) {
    const int64_t blocks = (t->rows * t->size + THREADS - 1) / THREADS;
    return dr_cuda_launch("make_elements", make_elements, {blocks < MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS}, THREADS, 0,
                          stream, *t, given, dense);
}

dr_status dr_cuda_tensor_make(const dr_cuda_tensor *t, const void *given, void *dense, dr_cuda_stream stream) {
    if (t->made != DR_CUDA_MADE_NORMALIZED) return run_elements(t, given, dense, stream);
    const int64_t blocks = (t->rows + WARPS - 1) / WARPS;
    return dr_cuda_launch("make_normalized", make_normalized, {blocks < MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS}, THREADS,
                          0, stream, *t, given, dense);
}

dr_status dr_cuda_tensor_return(const dr_cuda_tensor *t, const void *given, const void *d_dense, void *d_given,
                                dr_cuda_stream stream) {
    const bool rows = t->made == DR_CUDA_MADE_NORMALIZED;
    const int64_t blocks = rows ? (t->rows + WARPS - 1) / WARPS : (t->rows * t->size + THREADS - 1) / THREADS;
    return dr_cuda_launch(rows ? "return_normalized" : "return_elements", rows ? return_normalized : return_elements,
                          {blocks < MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS}, THREADS, 0, stream, *t, given, d_dense,
                          d_given);
}

/* ---- parameters of a raw decay --------------------------------------------------------------------------------------- */

typedef struct {
    double d_u, d_A_log;
} decay_sum;

/* Part `part` of all tokens, of 32 channels of a head or, where it has one, of its only one: a thread has a channel and every
 * so many tokens, whose sums the block adds in order. */
static __global__ void __launch_bounds__(THREADS)
    sum_decay_parts(const __grid_constant__ dr_cuda_tensor t, const void *given, const float *d_dense, decay_sum *partial) {
    __shared__ decay_sum sums[THREADS];
    const int channels = t.size < 32 ? t.size : 32, abreast = THREADS / channels, blocks = (t.size + channels - 1) / channels;
    const int part = (int)(blockIdx.x % PARTS), tile = (int)(blockIdx.x / PARTS % blocks);
    const int64_t head = blockIdx.x / PARTS / blocks, tokens = t.rows / t.each;
    const int d = tile * channels + (int)threadIdx.x % channels, first = (int)threadIdx.x / channels;
    decay_sum sum = {0, 0};
    if (first < abreast && d < t.size)
        for (int64_t token = part + (int64_t)first * PARTS; token < tokens; token += (int64_t)abreast * PARTS) {
            const int64_t row = token * t.each + head;
            const float dy = d_dense[row * t.size + d];
            if (dy == 0) continue;
            const decay_value value = decay_of(t, load(t.dtype, given, row_at(t, row, t.token) + d), head, d);
            sum.d_u += (double)(dy * value.d_u), sum.d_A_log += (double)(dy * value.d_A_log);
        }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (first > 0 || d >= t.size) return;
    for (int i = 1; i < abreast; i++) {
        const decay_sum other = sums[threadIdx.x + i * channels];
        sum.d_u += other.d_u, sum.d_A_log += other.d_A_log;
    }
    partial[((int64_t)part * t.heads + head) * t.size + d] = sum;
}

/* A thread a head. */
static __global__ void __launch_bounds__(THREADS)
    add_decay_parts(const __grid_constant__ dr_cuda_tensor t, const decay_sum *partial, float *d_A_log, float *d_dt_bias) {
    const int64_t head = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (head >= t.heads) return;
    double all = 0;
    for (int d = 0; d < t.size; d++) {
        double bias = 0;
        for (int part = 0; part < PARTS; part++) {
            const decay_sum sum = partial[((int64_t)part * t.heads + head) * t.size + d];
            bias += sum.d_u, all += sum.d_A_log;
        }
        if (d_dt_bias) d_dt_bias[head * t.size + d] = (float)bias;
    }
    if (d_A_log) d_A_log[head] = (float)all;
}

size_t dr_cuda_decay_sums_bytes(int64_t heads, int64_t size) {
    return (size_t)(PARTS * heads * size) * sizeof(decay_sum);
}

dr_status dr_cuda_decay_sums(const dr_cuda_tensor *t, const void *given, const float *d_dense, void *partial, float *d_A_log,
                             float *d_dt_bias, dr_cuda_stream stream) {
    const int64_t channels = t->size < 32 ? t->size : 32;
    DR_TRY(dr_cuda_launch("sum_decay_parts", sum_decay_parts, {t->heads, (t->size + channels - 1) / channels, PARTS}, THREADS,
                          0, stream, *t, given, d_dense, (decay_sum *)partial));
    return dr_cuda_launch("add_decay_parts", add_decay_parts, {(t->heads + THREADS - 1) / THREADS}, THREADS, 0, stream, *t,
                          (const decay_sum *)partial, d_A_log, d_dt_bias);
}
