/* Loss of a softmax, its gradient in the place of the logits, and the sum of a batch. With m the largest logit and
 * Z = sum exp(l - m):
 *
 *     loss = ln Z - (l[label] - m)     d_l = factor (exp(l - m) / Z - onehot)
 *
 * A block takes a row, which it reads once for m and Z, the sum being brought to a new m where one is found, and once more,
 * from the second-level cache, for the gradient: the rows of all blocks that run at once are to fit there. Exponentials are the
 * GPU's own (functions.cuh), since with exact ones instructions take longer than memory. */
#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/functions.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { THREADS = 512 };

/* The largest of some logits and the first place where it stands; sum of exp(l - most). */
typedef struct {
    float most, sum;
    int64_t first;
} summary;

static __device__ summary join(const summary &a, const summary &b) {
    const bool second = b.most > a.most || (b.most == a.most && b.first < a.first);
    const float most = fmaxf(a.most, b.most);
    const float sum =
        (a.most == most ? a.sum : a.sum * expf(a.most - most)) + (b.most == most ? b.sum : b.sum * expf(b.most - most));
    return {most, sum, second ? b.first : a.first};
}

template <int N> static __device__ void take(summary *s, const dr_floats<N> &x, int64_t begin) {
    float most = x.at[0];
    EACH most = fmaxf(most, x.at[n]);
    if (most > s->most) { /* seldom */
        s->sum *= lanes_exp_near(s->most - most);
        s->most = most;
#pragma unroll
        for (int n = N - 1; n >= 0; n--)
            if (x.at[n] == most) s->first = begin + n;
    }
    if (s->most == -INFINITY) {
        EACH s->sum += x.at[n] == -INFINITY ? 0 : NAN;
    } else {
        EACH s->sum += lanes_exp_near(x.at[n] - s->most);
    }
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy(int64_t vocabulary, const T *logits, const int32_t *labels, float factor, double *loss, uint8_t *hit, T *d) {
    __shared__ summary summaries[THREADS];
    const int64_t row = blockIdx.x, begin = row * vocabulary, step = (int64_t)THREADS * N;
    const int32_t label = labels[row];
    const float wanted = dr_to_float(logits[begin + label]);
    summary s = {-INFINITY, 0, vocabulary};
    for (int64_t i = threadIdx.x * N; i < vocabulary; i += step) take<N>(&s, dr_load_floats<N>(logits + begin + i), i);
    s = dr_join_threads<THREADS>(s, summaries, join);
    if (threadIdx.x == 0) {
        loss[row] = (double)(logf(s.sum) - (wanted - s.most));
        hit[row] = s.first == label;
    }
    if (!d) return;
    const float share = 1 / s.sum;
    for (int64_t i = threadIdx.x * N; i < vocabulary; i += step) {
        dr_floats<N> x = dr_load_floats<N>(logits + begin + i);
        EACH x.at[n] = lanes_exp_near(x.at[n] - s.most) * share;
        if (label >= i && label < i + N) {
            EACH x.at[n] -= i + n == label ? 1 : 0;
        }
        EACH x.at[n] *= factor;
        dr_store_floats<N>(d + begin + i, x);
    }
}

dr_status dr_cuda_cross_entropy(dr_backend *backend, int64_t count, int64_t vocabulary, const void *logits,
                                const int32_t *labels, double factor, double *loss, uint8_t *hit, void *d_logits) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_INSTANCE(backend, vocabulary, (logits, d_logits), T, N,
                        return dr_cuda_launch("cross_entropy", cross_entropy<N, T>, {count}, THREADS, 0, gpu->stream,
                                              vocabulary, (const T *)logits, labels, (float)factor, loss, hit, (T *)d_logits))
}

/* By one block: its threads take losses in turn. */
static __global__ void __launch_bounds__(THREADS)
    sum_losses(int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *to) {
    __shared__ double losses[THREADS];
    __shared__ int64_t hits[THREADS];
    double sum = 0;
    int64_t found = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        sum += loss[i];
        found += hit[i];
    }
    sum = dr_join_threads<THREADS>(sum, losses, [](double a, double b) { return a + b; });
    found = dr_join_threads<THREADS>(found, hits, [](int64_t a, int64_t b) { return a + b; });
    if (threadIdx.x != 0) return;
    to->loss += sum;
    to->hits += found;
}

dr_status dr_cuda_sum_losses(dr_backend *backend, int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *sum) {
    DR_NETWORK_ENTER(backend);
    return dr_cuda_launch("sum_losses", sum_losses, {1}, THREADS, 0, gpu->stream, count, loss, hit, sum);
}
