/* What every kernel of a network shares: how it reads and writes vectors and numbers, N neighbours of a row at once in float.
 *
 * N is that of a 16-byte load of the storage type T (8 of bf16, 4 of float) where all tensors of a call begin at 16 bytes and
 * their rows are multiples of N, and 1 otherwise. Numbers are float in both types, so that N of them may be two loads. */
#ifndef DR_CUDA_NETWORK_VECTORS_CUH
#define DR_CUDA_NETWORK_VECTORS_CUH

#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/lanes.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/network/network.h"

/* For each of the N. */
#define EACH _Pragma("unroll") for (int n = 0; n < N; n++)

template <int N> struct dr_floats { float at[N]; };

/* Elements of a 16-byte load. */
template <typename T> constexpr int dr_wide = 16 / (int)sizeof(T);

template <int N, typename T> static __device__ inline dr_floats<N> dr_load_floats(const T *from) {
    dr_floats<N> x;
    if constexpr (N == 1) {
        x.at[0] = dr_to_float(*from);
    } else if constexpr (N * sizeof(T) == 8) {
        const uint2 words = *(const uint2 *)(const void *)from;
        T part[N];
        memcpy(part, &words, sizeof part);
#pragma unroll
        for (int i = 0; i < N; i++) x.at[i] = dr_to_float(part[i]);
    } else {
        static_assert(N * sizeof(T) % 16 == 0, "whole loads of 8 or 16 bytes");
        constexpr int each = 16 / (int)sizeof(T);
#pragma unroll
        for (int i = 0; i < N / each; i++) {
            const uint4 words = *(const uint4 *)(const void *)(from + i * each);
            T part[each];
            memcpy(part, &words, sizeof part);
#pragma unroll
            for (int j = 0; j < each; j++) x.at[i * each + j] = dr_to_float(part[j]);
        }
    }
    return x;
}

/* Rounds each once, to the nearest. */
template <int N, typename T> static __device__ inline void dr_store_floats(T *to, const dr_floats<N> &x) {
    if constexpr (N == 1) {
        *to = dr_from_float<T>(x.at[0]);
    } else if constexpr (N * sizeof(T) == 8) {
        T part[N];
#pragma unroll
        for (int i = 0; i < N; i++) part[i] = dr_from_float<T>(x.at[i]);
        uint2 words;
        memcpy(&words, part, sizeof words);
        *(uint2 *)(void *)to = words;
    } else {
        constexpr int each = 16 / (int)sizeof(T);
#pragma unroll
        for (int i = 0; i < N / each; i++) {
            T part[each];
#pragma unroll
            for (int j = 0; j < each; j++) part[j] = dr_from_float<T>(x.at[i * each + j]);
            uint4 words;
            memcpy(&words, part, sizeof words);
            *(uint4 *)(void *)(to + i * each) = words;
        }
    }
}

template <int N> static __device__ inline dr_floats<N> dr_same(float value) {
    dr_floats<N> x;
#pragma unroll
    for (int i = 0; i < N; i++) x.at[i] = value;
    return x;
}

/* Writes x, or, add, what is there and x. */
template <int N, typename T> static __device__ inline void dr_store_or_add(T *to, dr_floats<N> x, bool add) {
    if (add) {
        const dr_floats<N> before = dr_load_floats<N>(to);
#pragma unroll
        for (int i = 0; i < N; i++) x.at[i] += before.at[i];
    }
    dr_store_floats<N>(to, x);
}

/* The sum over groups of `lanes` neighbouring lanes of a warp, a power of two, to all of them. All lanes of the warp call it.
 */
static __device__ inline float dr_sum_lanes(float x, int lanes) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffff, x, apart);
    return x;
}

static __device__ inline float dr_most_of_lanes(float x, int lanes) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, apart));
    return x;
}

/* ---- on the host ----------------------------------------------------------------------------------------------------------
 */

/* The thread's device while an entry of the backend's table runs. */
struct dr_cuda_scope {
    dr_status status;
    int before;
    explicit dr_cuda_scope(const dr_backend *backend) { status = dr_cuda_enter(backend, &before); }
    ~dr_cuda_scope() {
        if (status == DR_OK) dr_cuda_leave(before);
    }
    dr_cuda_scope(const dr_cuda_scope &) = delete;
};

/* Opens an entry of the table: gpu is the backend's device. */
#define DR_NETWORK_ENTER(backend)                                                                                              \
    const dr_cuda_scope scope(backend);                                                                                        \
    if (scope.status != DR_OK) return scope.status;                                                                            \
    const dr_cuda *const gpu = dr_cuda_of(backend)

/* Whether rows of so many elements, in memory at `all`, can be read 16 bytes at a time; NULL counts as aligned. */
template <typename... P> static inline bool dr_can_be_wide(int64_t each, int64_t row, const P *...all) {
    uintptr_t address = 0;
    for (const void *at : {(const void *)all...}) address |= (uintptr_t)at;
    return row % each == 0 && address % 16 == 0;
}

/* Runs the statements with T as the storage type, bf16 or float. */
#define DR_NETWORK_TYPE(backend, T, ...)                                                                                       \
    if ((backend)->storage == DR_BF16) {                                                                                       \
        typedef __nv_bfloat16 T;                                                                                               \
        __VA_ARGS__;                                                                                                           \
    } else {                                                                                                                   \
        typedef float T;                                                                                                       \
        __VA_ARGS__;                                                                                                           \
    }

/* And with N as the elements of a load, for rows of `row` elements in memory at the pointers in parentheses. */
#define DR_NETWORK_INSTANCE(backend, row, pointers, T, N, ...)                                                                 \
    DR_NETWORK_TYPE(                                                                                                           \
        backend, T,                                                                                                            \
        if (dr_can_be_wide(dr_wide<T>, row, DR_NETWORK_LIST pointers)) {                                                       \
            constexpr int N = dr_wide<T>;                                                                                      \
            __VA_ARGS__;                                                                                                       \
        } else {                                                                                                               \
            constexpr int N = 1;                                                                                               \
            __VA_ARGS__;                                                                                                       \
        })
#define DR_NETWORK_LIST(...) __VA_ARGS__

static inline int64_t dr_blocks_of(int64_t count, int64_t each) {
    return (count + each - 1) / each;
}

/* How many lanes of a warp share a row of so many loads: a power of two. */
static inline int dr_lanes_for(int64_t loads) {
    int lanes = 1;
    while (lanes < 32 && lanes < loads) lanes *= 2;
    return lanes;
}

/* Memory between the kernels of one operation, the backend's own: nobody else's launches come between while this is there. */
struct dr_scratch {
    dr_backend *backend;
    dr_status status;
    void *at;
    dr_scratch(dr_backend *of, int64_t bytes) : backend(of), at(NULL) { status = dr_cuda_scratch_take(of, (size_t)bytes, &at); }
    ~dr_scratch() {
        if (status == DR_OK) dr_cuda_scratch_give(backend);
    }
    dr_scratch(const dr_scratch &) = delete;
};

/* A launch of a kernel that begins with dr_chain. */
template <int N, typename... P>
static dr_status dr_launch_chained(const dr_cuda *gpu, const char *name, void (*kernel)(P...), const int64_t (&sizes)[N],
                                   int threads, int bytes, const P &...arguments) {
    return dr_cuda_launch_when(gpu->hopper, name, kernel, sizes, threads, bytes, gpu->stream, arguments...);
}

/* ---- element by element ---------------------------------------------------------------------------------------------------
 */

enum { DR_EACH_THREADS = 256 };

/* f.at<N>(i) works on elements i to i + N - 1. */
template <int N, typename F>
static __global__ void __launch_bounds__(DR_EACH_THREADS) dr_each(int64_t count, const __grid_constant__ F f) {
    const int64_t i = ((int64_t)blockIdx.x * DR_EACH_THREADS + threadIdx.x) * N;
    dr_chain();
    if (i < count) f.template at<N>(i);
}

/* The same for parameters, which kernels may load before they wait: none begins before this one has ended. */
template <int N, typename F>
static __global__ void __launch_bounds__(DR_EACH_THREADS) dr_each_alone(int64_t count, const __grid_constant__ F f) {
    const int64_t i = ((int64_t)blockIdx.x * DR_EACH_THREADS + threadIdx.x) * N;
    if (i < count) f.template at<N>(i);
}

template <int N, typename F> static dr_status dr_run_alone(const dr_cuda *gpu, const char *name, int64_t count, const F &f) {
    return dr_cuda_launch(name, dr_each_alone<N, F>, {dr_blocks_of(count, (int64_t)DR_EACH_THREADS * N)}, DR_EACH_THREADS, 0,
                          gpu->stream, count, f);
}

template <int N, typename F> static dr_status dr_run_each(const dr_cuda *gpu, const char *name, int64_t count, const F &f) {
    return dr_launch_chained(gpu, name, dr_each<N, F>, {dr_blocks_of(count, (int64_t)DR_EACH_THREADS * N)}, DR_EACH_THREADS, 0,
                             count, f);
}

#endif
