/* Depthwise causal convolution over the tokens of each sequence, then the
 * activation, and its backward:
 *
 *     u[t, c] = bias[c] + sum_w weight[c, w] x[t - W + 1 + w, c]     y = act(u)
 *     d_u = d_y act'(u)     d_x[t] = sum_w weight[w] d_u[t + W - 1 - w]
 * d_weight[w] = sum_t d_u[t] x[t - W + 1 + w]
 *
 * A warp walks along a stretch of tokens, each lane with NEIGHBOURS channels of
 * which it keeps the last W inputs in registers, so that each input is read
 * once; it asks for those of AHEAD tokens at a time. What lies in one sequence
 * is one loop, in which nothing is asked about boundaries. The backward walks
 * the same way, makes u again, keeps the last W gradients of u as well and
 * writes d_x W - 1 tokens behind; it goes W - 1 tokens beyond the stretch for
 * the last of them. A kernel has W taps: those of a narrower convolution that
 * come first are zero.
 *
 * Where vectors of y are divided by their length, n = y / s, they are those of
 * neighbouring lanes, and the backward takes (d_n - n (d_n . n)) / s for d_y.
 *
 * x may be columns of a panel, and d_x then goes where x was. What a warp reads
 * of the stretches beside its own is kept beforehand in that case: W - 1 rows
 * on both sides of where a stretch begins. */
#include "backends/cuda/network/columns.cuh"
#include "backends/cuda/network/functions.cuh"
#include "backends/cuda/network/sequences.cuh"

#define TAPS _Pragma("unroll") for (int w = 0; w < W; w++)

enum { WARPS = 4, THREADS = 32 * WARPS, AHEAD = 4, NEIGHBOURS = 4 };
enum { SHORTEST = 8, LONGEST = 64, ENOUGH = 65536 }; /* tokens of a stretch; lanes that fill a GPU */
enum { FEW = 4, MOST = 16 };                         /* taps of the instances */
enum { UNIT = 32 * NEIGHBOURS };                     /* most channels of a vector that is divided, a warp's */
enum { NONE = 0, SOME = 1, ALL = 32 };               /* lanes that have such a vector: kernels know all of a warp */

template <typename T> struct conv_call {
    dr_cuda_layout layout;
    int64_t channels, x_row, tiles; /* x_row: elements from a row of x and d_x to
                                       the next; tiles: of 32 loads of channels */
    int width, stretch, unit_lanes; /* unit_lanes: that have a vector which is
                                       divided; 0: none is */
    float eps;
    dr_activation activation;
    const T *x, *d_y;
    const float *weight, *bias, *initial;
    const T *beside; /* [stretches][2 (W - 1)][channels] of x, where d_x takes its
                        place; else NULL */
    T *y, *d_x;
    float *partial; /* [WARPS stretches][W + 1][channels]: gradients of the taps,
                       then of the bias */

    /* The input of a token of a sequence, from its state where the token lies
     * before it. */
    template <int N> __device__ dr_floats<N> input(const dr_span &of, int64_t token, int64_t channel) const {
        const int64_t kept = width - 1, before = token - of.begin + kept;
        if (token >= of.begin) return dr_load_floats<N>(x + token * x_row + channel);
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

/* N elements as they are stored. */
template <int N, typename T> struct held {
    unsigned word[(N * sizeof(T) + 3) / 4];

    __device__ void load(const T *from) {
        if constexpr (N == 1)
            memcpy(word, from, sizeof(T));
        else if constexpr (N * sizeof(T) == 8)
            *(uint2 *)(void *)word = *(const uint2 *)(const void *)from;
        else
            *(uint4 *)(void *)word = *(const uint4 *)(const void *)from;
    }

    __device__ dr_floats<N> floats() const {
        T element[N];
        dr_floats<N> x;
        memcpy(element, word, sizeof element);
        EACH x.at[n] = dr_to_float(element[n]);
        return x;
    }
};

/* A truth that the compiler knows. */
template <bool is> struct known { static constexpr bool value = is; };

template <int N, int W>
static __device__ dr_floats<N> convolved(const dr_floats<N> (&tap)[W], const dr_floats<N> (&window)[W], dr_floats<N> u) {
    TAPS EACH u.at[n] += tap[w].at[n] * window[w].at[n];
    return u;
}

template <int N> static __device__ dr_floats<N> activated(dr_activation kind, dr_floats<N> u) {
    if (kind == DR_ACTIVATION_SILU) {
        EACH u.at[n] = dr_silu(u.at[n]);
    } else {
        EACH u.at[n] = dr_activate(kind, u.at[n]);
    }
    return u;
}

template <int N> static __device__ dr_floats<N> slopes(dr_activation kind, dr_floats<N> u) {
    if (kind == DR_ACTIVATION_SILU) {
        EACH u.at[n] = dr_silu_slope(u.at[n]);
    } else {
        EACH u.at[n] = dr_activation_slope(kind, u.at[n]);
    }
    return u;
}

/* Where a lane works: lanes behind the last channel compute what another one
 * has and leave nothing. */
typedef struct {
    int64_t channel, first, end; /* tokens; first = end: nowhere, as the whole warp */
    bool idle;
} conv_place;

template <int N, typename T> static __device__ conv_place place_of(const conv_call<T> &call) {
    const int64_t tile = blockIdx.x % call.tiles, stretch = blockIdx.x / call.tiles * WARPS + threadIdx.x / 32;
    const int64_t channel = (tile * 32 + threadIdx.x % 32) * N, first = stretch * call.stretch, rows = call.layout.rows;
    const bool idle = channel >= call.channels;
    if (first >= rows) return {0, 0, 0, true};
    return {idle ? 0 : channel, first, first + call.stretch < rows ? first + call.stretch : rows, idle};
}

/* One over the length of the vector that `lanes` lanes have of y. */
template <int N> static __device__ float inverse_length(const dr_floats<N> &y, int lanes, float eps) {
    float squares = 0;
    EACH squares += y.at[n] * y.at[n];
    return 1 / sqrtf(dr_sum_lanes(squares, lanes) + eps);
}

/* The inputs before a token, to all places of the window but the first: a step
 * moves them down. kept: those of its sequence, at the channel, or NULL. */
template <int N, int W, typename T>
static __device__ void begin_window(const conv_call<T> &call, const dr_span &of, int64_t token, int64_t channel, const T *kept,
                                    dr_floats<N> (&window)[W]) {
    TAPS if (w > 0) {
        const int64_t at = token - W + w;
        window[w] = kept && at >= of.begin ? dr_load_floats<N>(kept + (w - 1) * call.channels)
                                           : call.template input<N>(of, at, channel);
    }
}

template <int N, int W> static __device__ void move_window(dr_floats<N> (&window)[W], const dr_floats<N> &next) {
    TAPS window[w] = w < W - 1 ? window[w + 1] : next;
}

template <int N, int W, int LANES, typename T>
static __global__ void __launch_bounds__(THREADS, 4) conv_forward(const __grid_constant__ conv_call<T> call) {
    const conv_place place = place_of<N>(call);
    if (place.first == place.end) return;
    dr_floats<N> tap[W], window[W], constant;
    call.taps(place.channel, tap, constant);
    dr_span of = dr_span_of(call.layout, place.first);
    for (int64_t token = place.first; token < place.end;) {
        while (token >= of.end) of = dr_span_at(call.layout, of.index + 1);
        const int count = (int)((place.end < of.end ? place.end : of.end) - token);
        const T *x_at = call.x + token * call.x_row + place.channel;
        T *y_at = call.y + token * call.channels + place.channel;
        begin_window(call, of, token, place.channel, (const T *)NULL, window);
        const auto walk = [&](auto whole, int begin) {
            held<N, T> x[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++, x_at += call.x_row)
                if (whole.value || begin + a < count) x[a].load(x_at);
#pragma unroll
            for (int a = 0; a < AHEAD; a++, y_at += call.channels) {
                if (!whole.value && begin + a >= count) break;
                move_window(window, x[a].floats());
                dr_floats<N> y = activated(call.activation, convolved(tap, window, constant));
                if constexpr (LANES > 0) {
                    const float inverse = inverse_length(y, LANES == SOME ? call.unit_lanes : LANES, call.eps);
                    EACH y.at[n] *= inverse;
                }
                if (!place.idle) dr_store_floats<N>(y_at, y);
            }
        };
        int begin = 0;
        for (; begin + AHEAD <= count; begin += AHEAD) walk(known<true>(), begin);
        if (begin < count) walk(known<false>(), begin);
        token += count;
    }
}

/* One token of each sequence, which takes and leaves the state at once: final
 * may be initial, of which a lane reads its channels before it writes them. */
template <int N, int W, int LANES, typename T>
static __global__ void __launch_bounds__(THREADS) conv_step(const __grid_constant__ conv_call<T> call, float *final) {
    const int64_t tile = blockIdx.x % call.tiles, row = blockIdx.x / call.tiles * WARPS + threadIdx.x / 32;
    const int64_t place = (tile * 32 + threadIdx.x % 32) * N, channel = place < call.channels ? place : 0;
    const int kept = call.width - 1;
    const int64_t state = row * kept * call.channels + channel;
    dr_prefetch(call.weight + channel * call.width);
    for (int at = 0; call.initial && row < call.layout.rows && at < kept; at++)
        dr_prefetch(call.initial + state + at * call.channels);
    dr_chain();
    if (row >= call.layout.rows) return;
    dr_floats<N> tap[W], window[W], constant;
    call.taps(channel, tap, constant);
    TAPS {
        const int at = w - (W - call.width);
        window[w] =
            w < W - 1 && at >= 0 && call.initial ? dr_load_floats<N>(call.initial + state + at * call.channels) : dr_same<N>(0);
    }
    window[W - 1] = dr_load_floats<N>(call.x + row * call.x_row + channel);
    dr_floats<N> y = activated(call.activation, convolved(tap, window, constant));
    if constexpr (LANES > 0) {
        const float inverse = inverse_length(y, LANES == SOME ? call.unit_lanes : LANES, call.eps);
        EACH y.at[n] *= inverse;
    }
    if (place >= call.channels) return;
    dr_store_floats<N>(call.y + row * call.channels + channel, y);
    TAPS {
        const int to = w - 1 - (W - call.width);
        if (final && to >= 0) dr_store_floats<N>(final + state + to * call.channels, window[w]);
    }
}

/* final [sequences][width - 1][channels], which may be initial: a thread writes
 * the rows of one channel in order. The value of row i comes from a row of
 * initial with the same or a higher number, or from x, so no row that is
 * still to be read has been overwritten. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) conv_final(const __grid_constant__ conv_call<T> call, float *final) {
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, channel = index % call.channels;
    if (index >= call.layout.sequences * call.channels) return;
    const dr_span of = dr_span_at(call.layout, index / call.channels);
    const int kept = call.width - 1;
    for (int j = 0; j < kept; j++)
        final[(of.index * kept + j) * call.channels + channel] = call.template input<1>(of, of.end - kept + j, channel).at[0];
}

/* Rows of x on both sides of where a stretch begins, W - 1 each. */
template <int W, typename T> struct beside_call {
    conv_call<T> conv;
    T *to;

    template <int N> __device__ void at(int64_t i) const {
        const int64_t row = i / conv.channels, stretch = row / (2 * (W - 1));
        const int64_t token = stretch * conv.stretch - (W - 1) + row % (2 * (W - 1));
        if (token < 0 || token >= conv.layout.rows) return;
        dr_store_floats<N>(to + i, dr_load_floats<N>(conv.x + token * conv.x_row + i % conv.channels));
    }
};

/* Sums of the warps' lanes, in the order of the warps, to `to` [W +
 * 1][channels]. */
template <int N, int W>
static __device__ void leave_sums(const dr_floats<N> (&sum)[W + 1], int64_t channels, int64_t tile, float *to) {
    __shared__ float sums[WARPS][32 * N];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int k = 0; k <= W; k++) {
        __syncthreads();
#pragma unroll
        for (int w = 0; w <= W; w++)
            if (w == k) {
                EACH sums[warp][lane * N + n] = sum[w].at[n];
            }
        __syncthreads();
        const int i = (int)threadIdx.x;
        const int64_t channel = tile * 32 * N + i;
        if (i >= 32 * N || channel >= channels) continue;
        float all = 0;
        for (int w = 0; w < WARPS; w++) all += sums[w][i];
        to[k * channels + channel] = all;
    }
}

template <int N, int W, int LANES, typename T>
static __global__ void __launch_bounds__(THREADS, 4) conv_backward(const __grid_constant__ conv_call<T> call) {
    const conv_place place = place_of<N>(call);
    dr_floats<N> tap[W], window[W], d_u[W], sum[W + 1], constant; /* d_u[w]: of the token W - 1 - w before the newest */
#pragma unroll
    for (int w = 0; w <= W; w++) sum[w] = dr_same<N>(0);
    if (place.first < place.end) call.taps(place.channel, tap, constant);
    const T *const kept =
        call.beside ? call.beside + place.first / call.stretch * 2 * (W - 1) * call.channels + place.channel : NULL;
    dr_span of = dr_span_of(call.layout, place.first);
    for (int64_t token = place.first; token < place.end;) {
        while (token >= of.end) of = dr_span_at(call.layout, of.index + 1);
        const int own = (int)((place.end < of.end ? place.end : of.end) - token), all = own + W - 1;
        const int there = all < of.end - token ? all : (int)(of.end - token); /* tokens whose d_u is wanted */
        const T *x_at = call.x + token * call.x_row + place.channel, *d_y_at = call.d_y + token * call.channels + place.channel;
        T *d_x_at = call.d_x + token * call.x_row + place.channel;
        begin_window(call, of, token, place.channel, token == place.first ? kept : NULL, window);
        TAPS d_u[w] = dr_same<N>(0);
        /* whole: of AHEAD own tokens, behind the first W - 1 */
        const auto walk = [&](auto whole, int begin) {
            held<N, T> x[AHEAD], d_y[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++, x_at += call.x_row, d_y_at += call.channels) {
                const int i = begin + a;
                if (!whole.value && i >= there) continue;
                const bool behind = !whole.value && kept && i >= own; /* where the next stretch begins */
                x[a].load(behind ? kept + (3 * (W - 1) + i - own) * call.channels : x_at);
                d_y[a].load(d_y_at);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int i = begin + a;
                if (!whole.value && i >= all) break;
                dr_floats<N> d = dr_same<N>(0);
                if (whole.value || i < there) {
                    move_window(window, x[a].floats());
                    const dr_floats<N> u = convolved(tap, window, constant), slope = slopes(call.activation, u);
                    d = d_y[a].floats();
                    if constexpr (LANES > 0) {
                        const int lanes = LANES == SOME ? call.unit_lanes : LANES;
                        const dr_floats<N> y = activated(call.activation, u);
                        float along = 0;
                        EACH along += d.at[n] * y.at[n];
                        const float inverse = inverse_length(y, lanes, call.eps);
                        along = dr_sum_lanes(along, lanes) * inverse * inverse;
                        EACH d.at[n] = (d.at[n] - y.at[n] * along) * inverse;
                    }
                    EACH d.at[n] *= slope.at[n];
                }
                move_window(d_u, d);
                if (whole.value || i < own) {
                    TAPS EACH sum[w].at[n] += d.at[n] * window[w].at[n];
                    EACH sum[W].at[n] += d.at[n];
                }
                if ((!whole.value && i < W - 1) || !call.d_x || place.idle) continue;
                dr_floats<N> d_x = dr_same<N>(0);
                TAPS EACH d_x.at[n] += tap[w].at[n] * d_u[W - 1 - w].at[n];
                dr_store_floats<N>(d_x_at, d_x);
                d_x_at += call.x_row;
            }
        };
        int begin = 0;
        for (; begin < W - 1 && begin < all; begin += AHEAD) walk(known<false>(), begin);
        for (; begin + AHEAD <= own; begin += AHEAD) walk(known<true>(), begin);
        for (; begin < all; begin += AHEAD) walk(known<false>(), begin);
        token += own;
    }
    if (call.partial)
        leave_sums<N, W>(sum, call.channels, blockIdx.x % call.tiles,
                         call.partial + blockIdx.x / call.tiles * (W + 1) * call.channels);
}

/* ---- on the host
 * ----------------------------------------------------------------------------------------------------------
 */

template <typename T>
static conv_call<T> call_of(const dr_conv *conv, const void *x, const void *weight, const void *bias, const void *initial) {
    conv_call<T> call = {};
    call.layout = dr_layout_on_device(conv->layout);
    call.channels = conv->channels, call.x_row = dr_conv_pitch(conv);
    call.width = (int)conv->width, call.activation = conv->activation;
    call.x = (const T *)x, call.weight = (const float *)weight, call.bias = (const float *)bias;
    call.initial = (const float *)initial;
    call.unit_lanes = (int)(conv->unit / NEIGHBOURS), call.eps = (float)conv->eps;
    return call;
}

bool dr_cuda_conv_units(int64_t width, int64_t unit) {
    return width <= FEW && unit >= NEIGHBOURS && unit <= UNIT && (unit & (unit - 1)) == 0;
}

static dr_status check(const dr_conv *conv) {
    if (conv->unit > 0 && !dr_cuda_conv_units(conv->width, conv->unit))
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend cuda divides no vectors of %lld channels in a "
                       "convolution over %lld tokens",
                       (long long)conv->unit, (long long)conv->width);
    if (conv->width <= MOST) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda convolves over at most %d tokens, not %lld", MOST,
                   (long long)conv->width);
}

/* Lanes share a vector that is divided where each has NEIGHBOURS of its
 * channels. */
static dr_status check_aligned(int64_t unit, bool wide) {
    if (unit == 0 || wide) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "a convolution that divides vectors needs "
                                      "tensors that begin at 16 bytes");
}

/* Blocks of a launch: WARPS stretches each, which are the shorter the fewer
 * there are. */
template <int N, typename T> static int64_t divide(conv_call<T> *call) {
    const int64_t loads = call->channels / N;
    call->tiles = dr_blocks_of(loads, 32), call->stretch = LONGEST;
    while (call->stretch > SHORTEST && call->layout.rows * loads / call->stretch < ENOUGH) call->stretch /= 2;
    return dr_blocks_of(call->layout.rows, (int64_t)call->stretch * WARPS);
}

template <int N, int W, typename T> static dr_status forward(const dr_cuda *gpu, conv_call<T> call) {
    const int64_t parts = divide<N>(&call);
    void (*kernel)(conv_call<T>) = conv_forward<N, W, NONE, T>;
    if constexpr (N == NEIGHBOURS) {
        if (call.unit_lanes == ALL) kernel = conv_forward<N, W, ALL, T>;
        if (call.unit_lanes > 0 && call.unit_lanes < ALL) kernel = conv_forward<N, W, SOME, T>;
    }
    return dr_cuda_launch("conv", kernel, {parts, call.tiles}, THREADS, 0, gpu->stream, call);
}

template <int N, int W, typename T> static dr_status step(const dr_cuda *gpu, conv_call<T> call, float *final) {
    call.tiles = dr_blocks_of(call.channels / N, 32);
    void (*kernel)(conv_call<T>, float *) = conv_step<N, W, NONE, T>;
    if constexpr (N == NEIGHBOURS) {
        if (call.unit_lanes == ALL) kernel = conv_step<N, W, ALL, T>;
        if (call.unit_lanes > 0 && call.unit_lanes < ALL) kernel = conv_step<N, W, SOME, T>;
    }
    return dr_launch_chained(gpu, "conv_step", kernel, {dr_blocks_of(call.layout.rows, WARPS), call.tiles}, THREADS, 0, call,
                             final);
}

template <int N, int W, typename T>
static dr_status backward(dr_backend *backend, const dr_cuda *gpu, conv_call<T> call, float *d_weight, float *d_bias) {
    const int64_t parts = divide<N>(&call), channels = call.channels;
    const int64_t beside = call.d_x == call.x ? dr_blocks_of(call.layout.rows, call.stretch) * 2 * (W - 1) * channels : 0;
    const int64_t sums = d_weight || d_bias ? parts * (W + 1) * channels : 0;
    const char *name = "conv_back";
    void (*kernel)(conv_call<T>) = conv_backward<N, W, NONE, T>;
    if constexpr (N == NEIGHBOURS) {
        if (call.unit_lanes == ALL) kernel = conv_backward<N, W, ALL, T>;
        if (call.unit_lanes > 0 && call.unit_lanes < ALL) kernel = conv_backward<N, W, SOME, T>;
    }
    if (beside + sums == 0) return dr_cuda_launch(name, kernel, {parts, call.tiles}, THREADS, 0, gpu->stream, call);
    const dr_scratch scratch(backend, beside * (int64_t)sizeof(T) + sums * (int64_t)sizeof(float) + 16);
    DR_TRY(scratch.status);
    if (sums) call.partial = (float *)((char *)scratch.at + dr_blocks_of(beside * (int64_t)sizeof(T), 16) * 16);
    if (beside) {
        call.beside = (const T *)scratch.at;
        DR_TRY(dr_run_each<N>(gpu, "conv_beside", beside, beside_call<W, T>{call, (T *)scratch.at}));
    }
    dr_column_targets<W + 1> targets = {};
    for (int w = W - call.width; w < W && d_weight; w++) targets.of[w] = {d_weight + w - (W - call.width), call.width, 1};
    targets.of[W] = {d_bias, 1, 1};
    DR_TRY(dr_cuda_launch(name, kernel, {parts, call.tiles}, THREADS, 0, gpu->stream, call));
    return sums ? dr_run_add_columns<W + 1>(gpu, targets, channels, parts, call.partial) : DR_OK;
}

/* wide: NEIGHBOURS channels a thread can be read and written at once. final: as in conv_call's `initial`, or NULL. */
template <typename T> static dr_status choose_forward(const dr_cuda *gpu, const conv_call<T> &call, bool wide, float *final) {
    if (!call.layout.offsets && call.layout.tokens == 1)
        return wide ? step<NEIGHBOURS, FEW>(gpu, call, final) : step<1, MOST>(gpu, call, final);
    DR_TRY((wide ? forward<NEIGHBOURS, FEW>(gpu, call) : forward<1, MOST>(gpu, call)));
    if (!final || call.width == 1) return DR_OK;
    return dr_cuda_launch("conv_final", conv_final<T>, {dr_blocks_of(call.layout.sequences * call.channels, THREADS)}, THREADS,
                          0, gpu->stream, call, final);
}

dr_status dr_cuda_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, void *y, void *final) {
    DR_NETWORK_ENTER(backend);
    DR_TRY(check(conv));
    DR_NETWORK_TYPE(backend, T, {
        conv_call<T> call = call_of<T>(conv, x, weight, bias, initial);
        call.y = (T *)y;
        const bool wide =
            conv->width <= FEW && dr_can_be_wide(NEIGHBOURS, conv->channels | call.x_row, x, y, bias, initial, final);
        DR_TRY(check_aligned(conv->unit, wide));
        return choose_forward(gpu, call, wide, (float *) final);
    })
}

template <typename T>
static dr_status choose_backward(dr_backend *backend, const dr_cuda *gpu, const conv_call<T> &call, float *d_weight,
                                 float *d_bias) {
    const bool wide = call.width <= FEW && dr_can_be_wide(NEIGHBOURS, call.channels | call.x_row, call.x, call.d_y, call.d_x,
                                                          call.bias, call.initial);
    DR_TRY(check_aligned(call.unit_lanes, wide));
    if (wide) return backward<NEIGHBOURS, FEW>(backend, gpu, call, d_weight, d_bias);
    return backward<1, MOST>(backend, gpu, call, d_weight, d_bias);
}

dr_status dr_cuda_conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                                const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    DR_NETWORK_ENTER(backend);
    DR_TRY(check(conv));
    DR_NETWORK_TYPE(backend, T, conv_call<T> call = call_of<T>(conv, x, weight, bias, initial); call.d_y = (const T *)d_y;
                    call.d_x = (T *)d_x; return choose_backward(backend, gpu, call, (float *)d_weight, (float *)d_bias))
}
