/* Rotary embedding in place: the pair i of every head of the token at position p is turned by the angle p f_i, backward by
 * -p f_i, and multiplied by the factor. A block takes a token; angles, in double, are made once for all of its heads. */
#include "backends/cuda/network/sequences.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { THREADS = 128, MOST_PAIRS = 256 };

/* 4 KB of arguments are allowed on every device. */
typedef struct {
    double of[MOST_PAIRS];
} frequencies;

template <typename T> struct rotary_call {
    dr_cuda_layout layout;
    int64_t heads, size, row, first;
    int half;
    bool interleaved, backward;
    double factor;
    const int64_t *offset;
    T *x;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rotary(const __grid_constant__ rotary_call<T> call, const __grid_constant__ frequencies by) {
    __shared__ float sine[MOST_PAIRS], cosine[MOST_PAIRS];
    const int64_t token = blockIdx.x;
    const dr_span of = dr_span_of(call.layout, token);
    const double position = (double)(token - of.begin + (call.offset ? call.offset[of.index] : 0));
    for (int i = (int)threadIdx.x; i < call.half; i += THREADS) {
        const double angle = (call.backward ? -position : position) * by.of[i];
        sine[i] = (float)(call.factor * sin(angle));
        cosine[i] = (float)(call.factor * cos(angle));
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < call.heads * call.half; at += THREADS) {
        const int i = (int)(at % call.half);
        T *const x = call.x + token * call.row + at / call.half * call.size + call.first;
        T *const one = x + (call.interleaved ? 2 * i : i), *const other = x + (call.interleaved ? 2 * i + 1 : i + call.half);
        const float a = dr_to_float(*one), b = dr_to_float(*other);
        *one = dr_from_float<T>(a * cosine[i] - b * sine[i]);
        *other = dr_from_float<T>(b * cosine[i] + a * sine[i]);
    }
}

dr_status dr_cuda_rotary(dr_backend *backend, const dr_rotary *of, void *x, bool backward) {
    DR_NETWORK_ENTER(backend);
    frequencies by;
    const int64_t half = of->dim / 2;
    if (half > MOST_PAIRS)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda turns at most %d channels of a head, not %lld", 2 * MOST_PAIRS,
                       (long long)of->dim);
    for (int64_t i = 0; i < half; i++)
        by.of[i] = of->frequencies ? of->frequencies[i] : pow(of->base, -2 * (double)i / (double)of->dim);
    DR_NETWORK_TYPE(backend, T,
                    const rotary_call<T> call = {dr_layout_on_device(of->layout), of->heads, of->size, of->row, of->first,
                                                 (int)half, of->interleaved, backward, of->factor, of->offset, (T *)x};
                    return dr_cuda_launch("rotary", rotary<T>, {of->layout.rows}, THREADS, 0, gpu->stream, call, by))
}
