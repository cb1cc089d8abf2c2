/* sum_heads: the gradient of a key head's vector is the sum over its value heads, in their order. Kernels that lead gradients
 * to inputs leave each value head's part, [rows][H][group][K] in the storage type; here they are added up in float. */
#include "backends/cuda/backward/backward.h"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/rows/rows.cuh"

enum { SUM_THREADS = 256 };

/* A thread has E numbers of a vector of K; a block the vectors that its threads have. vectors: rows * H. */
template <typename T, int E>
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_heads(const T *parts, int64_t vectors, int group, int key_size, T *gradient) {
    const int units = (key_size + E - 1) / E, unit = (int)threadIdx.x % units;
    const int64_t vector = (int64_t)blockIdx.x * (SUM_THREADS / units) + threadIdx.x / units;
    if (threadIdx.x / units >= SUM_THREADS / units || vector >= vectors) return;
    const T *from = parts + vector * group * key_size + unit * E;
    T *to = gradient + vector * key_size + unit * E;
    if constexpr (E == 1) {
        float sum = 0;
        for (int i = 0; i < group; i++) sum += dr_to_float(from[i * key_size]);
        *to = dr_from_float<T>(sum);
    } else {
        float sum[E] = {}, part[E];
        for (int i = 0; i < group; i++) {
            dr_load_lane<T, E>(from + i * key_size, E, true, part);
            DR_UNROLL (e, E) sum[e] += part[e];
        }
        dr_store_lane<T, E>(to, E, true, sum);
    }
}

template <typename T, int E>
static dr_status launch(const dr_cuda_chunk_plan *plan, const void *parts, int64_t rows, void *gradient,
                        dr_cuda_stream stream) {
    const int64_t vectors = rows * plan->key_heads, each = SUM_THREADS / ((plan->rows.key_size + E - 1) / E);
    return dr_cuda_launch("sum_heads", sum_heads<T, E>, {(vectors + each - 1) / each}, SUM_THREADS, 0, stream, (const T *)parts,
                          vectors, (int)plan->rows.group, (int)plan->rows.key_size, (T *)gradient);
}

dr_status dr_cuda_backward_sum_heads(const dr_cuda_chunk_plan *plan, const void *parts, int64_t rows, void *gradient,
                                     dr_cuda_stream stream) {
    if (rows == 0) return DR_OK;
    DR_CUDA_CHUNK_STORAGE(plan->storage, T, {
        constexpr int whole = 16 / (int)sizeof(T);
        if (plan->rows.aligned) return (launch<T, whole>(plan, parts, rows, gradient, stream));
        return (launch<T, 1>(plan, parts, rows, gradient, stream));
    });
    return DR_OK;
}
