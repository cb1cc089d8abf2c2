/* Depthwise causal convolution over one sequence: u[t] = bias + sum_w weight[w] x[t - W + 1 + w], y = act(u).
 *
 * LANES channels at a time run down the tokens with their taps in registers. The backward makes d_u[t] from a u computed anew,
 * adds it to the gradients of taps and bias (in the order of tokens), keeps it in d_x[t], and then finishes
 * d_x[t - W + 1] = sum_w weight[w] d_u[t - w], whose last term has just come. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    lanes tap[DR_CPU_MAX_CONV_WIDTH], bias;
} channel_taps;

/* taps of the channels [c, c + n), turned from [channels, width] */
static channel_taps taps_of(const dr_cpu_conv *part, int64_t c, int64_t n) {
    channel_taps taps = {.bias = part->bias ? lanes_load_n(part->bias + c, n) : lanes_zero()};
    int64_t width = part->conv->width;
    for (int64_t w = 0; w < width; w++) {
        float column[LANES] = {0};
        for (int64_t i = 0; i < n; i++) column[i] = part->weight[(c + i) * width + w];
        taps.tap[w] = lanes_load(column);
    }
    return taps;
}

/* the input at token t, which is in the state before the sequence's start */
INLINE lanes input(const dr_cpu_conv *part, int64_t t, int64_t c, int64_t n) {
    int64_t channels = part->conv->channels;
    if (t >= 0) return lanes_load_n(part->x + t * channels + c, n);
    return part->initial ? lanes_load_n(part->initial + (t + part->conv->width - 1) * channels + c, n) : lanes_zero();
}

/* width is a constant for the usual 4 taps, which then stay in registers */
INLINE lanes convolved(const dr_cpu_conv *part, const channel_taps *taps, int64_t width, int64_t t, int64_t c, int64_t n) {
    lanes u = taps->bias;
    for (int64_t w = 0; w < width; w++) u = lanes_fma(taps->tap[w], input(part, t - width + 1 + w, c, n), u);
    return u;
}

INLINE void forward(const dr_cpu_conv *part, int64_t width, float *y) {
    int64_t channels = part->conv->channels;
    dr_activation act = part->conv->activation;
    for (int64_t c = part->first; c < part->last; c += LANES) {
        int64_t n = lanes_left(part->last, c);
        channel_taps taps = taps_of(part, c, n);
        for (int64_t t = part->begin; t < part->end; t++) {
            lanes u = convolved(part, &taps, width, t, c, n);
            if (act == DR_ACTIVATION_SILU) u = lanes_silu(u);
            if (act == DR_ACTIVATION_SIGMOID) u = lanes_sigmoid(u);
            lanes_store_n(y + t * channels + c, n, u);
        }
    }
}

void DR_ISA_NAME(dr_cpu_conv_forward)(const dr_cpu_conv *part, float *y) {
    if (part->conv->width == 4)
        forward(part, 4, y);
    else
        forward(part, part->conv->width, y);
}

INLINE lanes slope(dr_activation act, lanes u) {
    if (act == DR_ACTIVATION_SILU) return lanes_silu_slope(u);
    if (act == DR_ACTIVATION_SIGMOID) return lanes_sigmoid_slope(u);
    return lanes_set(1.0f);
}

/* d_x[t], where d_u stands from t on, up to the sequence's end */
INLINE void finish(const dr_cpu_conv *part, const channel_taps *taps, int64_t width, int64_t t, int64_t c, int64_t n,
                   float *d_x) {
    int64_t channels = part->conv->channels;
    lanes sum = lanes_zero();
    for (int64_t w = width - 1, s = t; w >= 0 && s < part->end; w--, s++)
        sum = lanes_fma(taps->tap[w], lanes_load_n(d_x + s * channels + c, n), sum);
    lanes_store_n(d_x + t * channels + c, n, sum);
}

/* adds the gradients of the taps of the channels [c, c + n) to d_weight [channels, width] */
static void add_taps(const lanes *d_tap, int64_t width, int64_t c, int64_t n, float *d_weight) {
    for (int64_t w = 0; w < width; w++) {
        float column[LANES];
        lanes_store(column, d_tap[w]);
        for (int64_t i = 0; i < n; i++) d_weight[(c + i) * width + w] += column[i];
    }
}

INLINE void backward(const dr_cpu_conv *part, int64_t width, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    int64_t channels = part->conv->channels;
    for (int64_t c = part->first; c < part->last; c += LANES) {
        int64_t n = lanes_left(part->last, c);
        channel_taps taps = taps_of(part, c, n);
        lanes d_tap[DR_CPU_MAX_CONV_WIDTH], sum = lanes_zero();
        for (int64_t w = 0; w < width; w++) d_tap[w] = lanes_zero();
        for (int64_t t = 0; t < part->end; t++) {
            lanes u = convolved(part, &taps, width, t, c, n);
            lanes d_u = lanes_load_n(d_y + t * channels + c, n) * slope(part->conv->activation, u);
            sum = sum + d_u;
            for (int64_t w = 0; w < width; w++) d_tap[w] = lanes_fma(d_u, input(part, t - width + 1 + w, c, n), d_tap[w]);
            if (!d_x) continue;
            lanes_store_n(d_x + t * channels + c, n, d_u);
            if (t >= width - 1) finish(part, &taps, width, t - width + 1, c, n, d_x);
        }
        for (int64_t t = part->end < width - 1 ? 0 : part->end - width + 1; d_x && t < part->end; t++)
            finish(part, &taps, width, t, c, n, d_x);
        if (d_weight) add_taps(d_tap, width, c, n, d_weight);
        if (d_bias) lanes_store_n(d_bias + c, n, lanes_load_n(d_bias + c, n) + sum);
    }
}

/* part must hold the whole sequence: begin = 0, end = its length */
void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    if (part->conv->width == 4)
        backward(part, 4, d_y, d_x, d_weight, d_bias);
    else
        backward(part, part->conv->width, d_y, d_x, d_weight, d_bias);
}
