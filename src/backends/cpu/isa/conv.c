/* Depthwise causal convolution over a part of a sequence: u[t] = bias + sum_w weight[w] x[t - W + 1 + w], y = act(u).
 *
 * Row by row over a block of channels: the taps, turned to [W][block], and the last W rows stay in the first-level cache. The
 * backward makes d_u[t] from a u computed anew, adds it to the gradients of taps and bias, and with the last W rows of it
 * finishes d_x[t - W + 1] = sum_w weight[w] d_u[t - w]. A part goes on W - 1 tokens behind its end, as far as the sequence
 * does, only to finish its own d_x; so parts are independent. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 256, WIDTH = DR_CPU_MAX_CONV_WIDTH };

typedef struct {
    float tap[WIDTH][BLOCK], bias[BLOCK];
} block_taps;

static const float zeros[BLOCK];

/* the taps of the channels [c, c + count) */
static void load_taps(const dr_cpu_conv *part, int64_t c, int64_t count, block_taps *taps) {
    int64_t width = part->conv->width;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t w = 0; w < width; w++) taps->tap[w][i] = part->weight[(c + i) * width + w];
        taps->bias[i] = part->bias ? part->bias[c + i] : 0.0f;
    }
}

/* row[w]: the inputs at token t - W + 1 + w, which are in the state before the sequence's start */
INLINE void find_rows(const dr_cpu_conv *part, int64_t width, int64_t t, int64_t c, const float *row[WIDTH]) {
    int64_t channels = part->conv->channels;
    for (int64_t w = 0; w < width; w++) {
        int64_t at = t - width + 1 + w;
        row[w] = at >= 0         ? part->x + at * channels + c
                 : part->initial ? part->initial + (at + width - 1) * channels + c
                                 : zeros;
    }
}

INLINE lanes convolved(const block_taps *taps, int64_t width, const float *const row[WIDTH], int64_t i, int64_t n) {
    lanes u = lanes_load_n(taps->bias + i, n);
    for (int64_t w = 0; w < width; w++) u = lanes_fma(lanes_load_n(taps->tap[w] + i, n), lanes_load_n(row[w] + i, n), u);
    return u;
}

/* width is a constant for the usual 4 taps */
INLINE void forward(const dr_cpu_conv *part, int64_t width, float *y) {
    dr_activation act = part->conv->activation;
    block_taps taps;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        int64_t count = part->last - c < BLOCK ? part->last - c : BLOCK;
        load_taps(part, c, count, &taps);
        for (int64_t t = part->begin; t < part->end; t++) {
            const float *row[WIDTH];
            float *to = y + t * part->conv->channels + c;
            find_rows(part, width, t, c, row);
            for (int64_t i = 0; i < count; i += LANES) {
                int64_t n = lanes_left(count, i);
                lanes u = convolved(&taps, width, row, i, n);
                if (act == DR_ACTIVATION_SILU) u = lanes_silu(u);
                if (act == DR_ACTIVATION_SIGMOID) u = lanes_sigmoid(u);
                lanes_store_n(to + i, n, u);
            }
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

/* d_u of one token's channels [c, c + count), and its part in the gradients of taps and bias, which are held like them */
INLINE void backward_row(const dr_cpu_conv *part, const block_taps *taps, int64_t width, int64_t t, int64_t c, int64_t count,
                         const float *d_y, float *d_u, block_taps *d_taps) {
    const float *row[WIDTH];
    bool summed = t < part->end; /* tokens behind the part count in the next one */
    find_rows(part, width, t, c, row);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes d = lanes_load_n(d_y + i, n) * slope(part->conv->activation, convolved(taps, width, row, i, n));
        lanes_store_n(d_u + i, n, d);
        if (!summed) continue;
        lanes_store_n(d_taps->bias + i, n, lanes_load_n(d_taps->bias + i, n) + d);
        for (int64_t w = 0; w < width; w++) {
            lanes before = lanes_load_n(d_taps->tap[w] + i, n);
            lanes_store_n(d_taps->tap[w] + i, n, lanes_fma(d, lanes_load_n(row[w] + i, n), before));
        }
    }
}

/* d_x of one token; d_u[w] is the d_u of w tokens later */
INLINE void finish_row(const block_taps *taps, int64_t width, int64_t count, const float *const d_u[WIDTH], float *d_x) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes sum = lanes_zero();
        for (int64_t w = 0; w < width; w++)
            sum = lanes_fma(lanes_load_n(taps->tap[width - 1 - w] + i, n), lanes_load_n(d_u[w] + i, n), sum);
        lanes_store_n(d_x + i, n, sum);
    }
}

static void add_taps(const block_taps *d_taps, int64_t width, int64_t c, int64_t count, float *d_weight, float *d_bias) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t w = 0; d_weight && w < width; w++) d_weight[(c + i) * width + w] += d_taps->tap[w][i];
        if (d_bias) d_bias[c + i] += d_taps->bias[i];
    }
}

INLINE void backward(const dr_cpu_conv *part, int64_t width, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    int64_t channels = part->conv->channels, last = d_x ? part->end + width - 1 : part->end;
    block_taps taps, d_taps;
    float ring[WIDTH][BLOCK]; /* d_u of token t is in row (t - begin) mod width */
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        int64_t count = part->last - c < BLOCK ? part->last - c : BLOCK;
        load_taps(part, c, count, &taps);
        memset(d_taps.tap, 0, (size_t)width * sizeof *d_taps.tap);
        memset(d_taps.bias, 0, sizeof d_taps.bias);
        for (int64_t t = part->begin; t < last; t++) {
            float *d_u = ring[(t - part->begin) % width];
            if (t < part->length)
                backward_row(part, &taps, width, t, c, count, d_y + t * channels + c, d_u, &d_taps);
            else
                memset(d_u, 0, sizeof *ring);
            int64_t done = t - width + 1;
            if (!d_x || done < part->begin) continue;
            const float *later[WIDTH];
            for (int64_t w = 0; w < width; w++) later[w] = ring[(done + w - part->begin) % width];
            finish_row(&taps, width, count, later, d_x + done * channels + c);
        }
        add_taps(&d_taps, width, c, count, d_weight, d_bias);
    }
}

void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    if (part->conv->width == 4)
        backward(part, 4, d_y, d_x, d_weight, d_bias);
    else
        backward(part, part->conv->width, d_y, d_x, d_weight, d_bias);
}
