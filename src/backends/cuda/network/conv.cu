/* Depthwise causal convolution over the tokens of each sequence, then the activation, and its backward:
 *
 *     u[t, c] = bias[c] + sum_w weight[c, w] x[t - W + 1 + w, c]     y = act(u)
 *     d_u = d_y act'(u)     d_x[t] = sum_w weight[w] d_u[t + W - 1 - w]     d_weight[w] = sum_t d_u[t] x[t - W + 1 + w]
 *
 * A thread walks along a stretch of tokens with NEIGHBOURS channels and keeps the last W inputs in registers, so that each
 * input is read once; it asks for those of AHEAD tokens at a time, which come while it computes. The backward walks the other
 * way, makes u again and keeps the last W gradients of u as well. A kernel has W taps: those of a narrower convolution that
 * come first are zero. */
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/functions.cuh"
#include "backends/cuda/network/sequences.cuh"

#define TAPS _Pragma("unroll") for (int w = 0; w < W; w++)

enum { THREADS = 128, STRETCH = 64, AHEAD = 4, NEIGHBOURS = 4 };
enum { FEW = 4, MOST = 16 }; /* taps of the instances */

template <typename T> struct conv_call {
    dr_cuda_layout layout;
    int64_t channels;
    int width;
    dr_activation activation;
    const T *x, *d_y;
    const float *weight, *bias, *initial;
    T *y, *d_x;
    float *partial; /* [stretches][W + 1][channels]: gradients of the taps, then of the bias */

    /* The input of a token of a sequence, from its state where the token lies before it. */
    template <int N> __device__ dr_floats<N> input(const dr_span &of, int64_t token, int64_t channel) const {
        const int64_t kept = width - 1, before = token - of.begin + kept;
        if (token >= of.begin) return dr_load_floats<N>(x + token * channels + channel);
        if (!initial || before < 0) return dr_same<N>(0);
        return dr_load_floats<N>(initial + (of.index * kept + before) * channels + channel);
    }

    template <int N, int W> __device__ void taps(int64_t channel, dr_floats<N> (&tap)[W], dr_floats<N> &constant) const {
        constant = bias ? dr_load_floats<N>(bias + channel) : dr_same<N>(0);
        TAPS {
            const int at = w - (W - width);
            EACH tap[w].at[n] = at < 0 ? 0 : weight[(channel + n) * width + at];
        }
    }
};

template <int N, int W>
static __device__ dr_floats<N> convolved(const dr_floats<N> (&tap)[W], const dr_floats<N> (&window)[W], dr_floats<N> u) {
    TAPS EACH u.at[n] += tap[w].at[n] * window[w].at[n];
    return u;
}

/* Where a thread works; false: nowhere. */
template <int N, typename T> static __device__ bool place_of(const conv_call<T> &call, int64_t *stretch, int64_t *channel) {
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, loads = call.channels / N;
    *stretch = index / loads;
    *channel = index % loads * N;
    return *stretch * STRETCH < call.layout.rows;
}

template <int N, int W, typename T>
static __global__ void __launch_bounds__(THREADS) conv_forward(const __grid_constant__ conv_call<T> call) {
    int64_t stretch, channel;
    dr_floats<N> tap[W], window[W], constant;
    if (!place_of<N>(call, &stretch, &channel)) return;
    call.taps(channel, tap, constant);
    const int64_t first = stretch * STRETCH, end = first + STRETCH < call.layout.rows ? first + STRETCH : call.layout.rows;
    dr_span of = dr_span_of(call.layout, first);
    for (int64_t begin = first; begin < end; begin += AHEAD) {
        dr_floats<N> x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (begin + a < end) x[a] = dr_load_floats<N>(call.x + (begin + a) * call.channels + channel);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int64_t t = begin + a;
            if (t >= end) break;
            const bool fresh = t == first || t == of.end;
            while (t >= of.end) of = dr_span_at(call.layout, of.index + 1);
            TAPS if (w < W - 1) window[w] = fresh ? call.template input<N>(of, t - W + 1 + w, channel) : window[w + 1];
            window[W - 1] = x[a];
            dr_floats<N> y = convolved(tap, window, constant);
            EACH y.at[n] = dr_activate(call.activation, y.at[n]);
            dr_store_floats<N>(call.y + t * call.channels + channel, y);
        }
    }
}

/* final [sequences][width - 1][channels], which may be initial: a thread takes the rows of a channel in order, each of which
 * reads a later one at the earliest. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) conv_final(const __grid_constant__ conv_call<T> call, float *final) {
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, channel = index % call.channels;
    if (index >= call.layout.sequences * call.channels) return;
    const dr_span of = dr_span_at(call.layout, index / call.channels);
    const int kept = call.width - 1;
    for (int j = 0; j < kept; j++)
        final[(of.index * kept + j) * call.channels + channel] = call.template input<1>(of, of.end - kept + j, channel).at[0];
}

template <int N, int W, typename T>
static __global__ void __launch_bounds__(THREADS) conv_backward(const __grid_constant__ conv_call<T> call) {
    int64_t stretch, channel;
    dr_floats<N> tap[W], window[W], d_u[W], sum[W], d_constant = dr_same<N>(0), constant; /* d_u[w]: of token t + w */
    if (!place_of<N>(call, &stretch, &channel)) return;
    call.taps(channel, tap, constant);
    TAPS sum[w] = d_u[w] = dr_same<N>(0);
    const int64_t first = stretch * STRETCH, rows = call.layout.rows;
    const int64_t last = (first + STRETCH < rows ? first + STRETCH : rows) - 1;
    dr_span of = dr_span_of(call.layout, last);
    const int64_t ahead = last + W - 1 < of.end ? last + W - 1 : of.end - 1; /* tokens that read the last of the stretch */
    for (int64_t top = ahead; top >= first; top -= AHEAD) {
        dr_floats<N> x[AHEAD], d_y[AHEAD]; /* of tokens top - a - W + 1 and top - a */
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int64_t t = top - a;
            if (t < first) break;
            if (t - W + 1 >= 0) x[a] = dr_load_floats<N>(call.x + (t - W + 1) * call.channels + channel);
            d_y[a] = dr_load_floats<N>(call.d_y + t * call.channels + channel);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int64_t t = top - a;
            if (t < first) break;
            const bool other = t < of.begin, fresh = t == ahead || other;
            while (t < of.begin) of = dr_span_at(call.layout, of.index - 1);
            TAPS {
                const int at = W - 1 - w; /* downwards, as the window moves */
                if (at == 0 && t - W + 1 >= of.begin)
                    window[0] = x[a];
                else if (at == 0 || fresh)
                    window[at] = call.template input<N>(of, t - W + 1 + at, channel);
                else
                    window[at] = window[at - 1];
                d_u[at] = other || at == 0 ? dr_same<N>(0) : d_u[at - 1];
            }
            const dr_floats<N> u = convolved(tap, window, constant);
            EACH d_u[0].at[n] = d_y[a].at[n] * dr_activation_slope(call.activation, u.at[n]);
            if (t > last) continue;
            dr_floats<N> d_x = dr_same<N>(0);
            TAPS EACH {
                d_x.at[n] += tap[W - 1 - w].at[n] * d_u[w].at[n];
                sum[w].at[n] += d_u[0].at[n] * window[w].at[n];
            }
            EACH d_constant.at[n] += d_u[0].at[n];
            if (call.d_x) dr_store_floats<N>(call.d_x + t * call.channels + channel, d_x);
        }
    }
    if (!call.partial) return;
    float *to = call.partial + stretch * (W + 1) * call.channels + channel;
    TAPS EACH to[w * call.channels + n] = sum[w].at[n];
    EACH to[W * call.channels + n] = d_constant.at[n];
}

/* ---- on the host ----------------------------------------------------------------------------------------------------------
 */

template <typename T>
static conv_call<T> call_of(const dr_conv *conv, const void *x, const void *weight, const void *bias, const void *initial) {
    conv_call<T> call = {};
    call.layout = dr_layout_on_device(conv->layout);
    call.channels = conv->channels, call.width = (int)conv->width, call.activation = conv->activation;
    call.x = (const T *)x, call.weight = (const float *)weight, call.bias = (const float *)bias;
    call.initial = (const float *)initial;
    return call;
}

static dr_status check(const dr_conv *conv) {
    if (conv->width <= MOST) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda convolves over at most %d tokens, not %lld", MOST,
                   (long long)conv->width);
}

template <int N, int W, typename T> static dr_status forward(const dr_cuda *gpu, const conv_call<T> &call) {
    const int64_t stretches = dr_blocks_of(call.layout.rows, STRETCH);
    return dr_cuda_launch("conv", conv_forward<N, W, T>, {dr_blocks_of(stretches * (call.channels / N), THREADS)}, THREADS, 0,
                          gpu->stream, call);
}

template <int N, int W, typename T>
static dr_status backward(dr_backend *backend, const dr_cuda *gpu, conv_call<T> call, float *d_weight, float *d_bias) {
    const int64_t stretches = dr_blocks_of(call.layout.rows, STRETCH), channels = call.channels;
    const int64_t blocks = dr_blocks_of(stretches * (channels / N), THREADS);
    const char *name = "conv_back";
    if (!d_weight && !d_bias) return dr_cuda_launch(name, conv_backward<N, W, T>, {blocks}, THREADS, 0, gpu->stream, call);
    const dr_scratch scratch(backend, stretches * (W + 1) * channels * (int64_t)sizeof(float));
    DR_TRY(scratch.status);
    call.partial = (float *)scratch.at;
    dr_column_targets<W + 1> targets = {};
    for (int w = W - call.width; w < W && d_weight; w++) targets.of[w] = {d_weight + w - (W - call.width), call.width, 1};
    targets.of[W] = {d_bias, 1, 1};
    DR_TRY(dr_cuda_launch(name, conv_backward<N, W, T>, {blocks}, THREADS, 0, gpu->stream, call));
    return dr_run_add_columns<W + 1>(gpu, targets, channels, stretches, call.partial);
}

dr_status dr_cuda_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, void *y, void *final) {
    DR_NETWORK_ENTER(backend);
    DR_TRY(check(conv));
    DR_NETWORK_TYPE(backend, T, conv_call<T> call = call_of<T>(conv, x, weight, bias, initial); call.y = (T *)y;
                    const bool wide = conv->width <= FEW && dr_can_be_wide(NEIGHBOURS, conv->channels, x, y, bias, initial);
                    DR_TRY((wide ? forward<NEIGHBOURS, FEW>(gpu, call) : forward<1, MOST>(gpu, call)));
                    if (!final || conv->width == 1) return DR_OK; return dr_cuda_launch(
                        "conv_final", conv_final<T>, {dr_blocks_of(conv->layout.sequences * conv->channels, THREADS)}, THREADS,
                        0, gpu->stream, call, (float *) final))
}

template <typename T>
static dr_status choose_backward(dr_backend *backend, const dr_cuda *gpu, const conv_call<T> &call, float *d_weight,
                                 float *d_bias) {
    const bool few = call.width <= FEW;
    if (few && dr_can_be_wide(NEIGHBOURS, call.channels, call.x, call.d_y, call.d_x, call.bias, call.initial))
        return backward<NEIGHBOURS, FEW>(backend, gpu, call, d_weight, d_bias);
    return backward<1, MOST>(backend, gpu, call, d_weight, d_bias);
}

dr_status dr_cuda_conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                                const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    DR_NETWORK_ENTER(backend);
    DR_TRY(check(conv));
    DR_NETWORK_TYPE(backend, T, conv_call<T> call = call_of<T>(conv, x, weight, bias, initial); call.d_y = (const T *)d_y;
                    call.d_x = (T *)d_x; return choose_backward(backend, gpu, call, (float *)d_weight, (float *)d_bias))
}
