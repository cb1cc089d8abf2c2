/* Depthwise causal convolution over a part of a sequence: u[t] = bias + sum_w weight[w] x[t - W + 1 + w], y = act(u).
 *
 * A few tokens at a time over a block of channels: the taps, turned to [W][block], and the last rows stay in the first-level
 * cache, and what those tokens share in registers; the rows of the next tokens are asked for, since nothing else sees that they
 * come. The backward makes d_u[t] from a u computed anew, adds it to the gradients of taps and bias, and with the last W rows
 * of it finishes d_x[t - W + 1] = sum_w weight[w] d_u[t - w]. A part goes on W - 1 tokens behind its end, as far as the
 * sequence does, only to finish its own d_x; so parts are independent. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 256, WIDTH = DR_CPU_MAX_CONV_WIDTH, GROUP = 4, ROWS = WIDTH + GROUP - 1 }; /* GROUP: tokens at a time */

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

/* row[k]: the inputs at token t - W + 1 + k for k < count, which are in the state before the sequence's start */
INLINE void find_rows(const dr_cpu_conv *part, int64_t width, int64_t t, int64_t c, int64_t count, const float *row[ROWS]) {
    int64_t channels = part->conv->channels;
    for (int64_t k = 0; k < count; k++) {
        int64_t at = t - width + 1 + k;
        row[k] = at >= 0         ? part->x + at * channels + c
                 : part->initial ? part->initial + (at + width - 1) * channels + c
                                 : zeros;
    }
}

INLINE lanes convolved(const block_taps *taps, int64_t width, const lanes *x, int64_t i) {
    lanes u = lanes_load(taps->bias + i);
#pragma GCC unroll 8
    for (int64_t w = 0; w < width; w++) u = lanes_fma(lanes_load(taps->tap[w] + i), x[w], u);
    return u;
}

/* the rows of `tokens` tokens, n channels from i on */
INLINE void load_inputs(const float *const row[ROWS], int64_t width, const int tokens, int64_t i, int64_t n, lanes x[ROWS]) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < width + tokens - 1; k++) x[k] = lanes_load_n(row[k] + i, n);
}

/* asks for a vector of each of the next tokens; beyond the end, where there may be none, that does nothing */
INLINE void ask(const float *x, int64_t channels, const int tokens, int64_t i) {
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++) _mm_prefetch((const char *)(x + (tokens + g) * channels + i), _MM_HINT_T0);
}

/* y of the tokens t .. t + tokens - 1 */
INLINE void forward_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, dr_activation act, int64_t t,
                         const int tokens, int64_t c, int64_t count, float *y) {
    const int64_t channels = part->conv->channels;
    const float *row[ROWS];
    find_rows(part, width, t, c, width + tokens - 1, row);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes x[ROWS];
        load_inputs(row, width, tokens, i, n, x);
        ask(row[width - 1], channels, tokens, i);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) {
            lanes u = convolved(taps, width, x + g, i);
            if (act == DR_ACTIVATION_SILU) u = lanes_silu(u);
            if (act == DR_ACTIVATION_SIGMOID) u = lanes_sigmoid(u);
            lanes_store_n(y + g * channels + i, n, u);
        }
    }
}

/* width and act are constants for the usual 4 taps with SiLU */
INLINE void forward(const dr_cpu_conv *part, int64_t width, dr_activation act, float *y) {
    const int64_t channels = part->conv->channels;
    block_taps taps;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        int64_t count = part->last - c < BLOCK ? part->last - c : BLOCK, t = part->begin;
        load_taps(part, c, count, &taps);
        for (; t + GROUP <= part->end; t += GROUP)
            forward_rows(part, &taps, width, act, t, GROUP, c, count, y + t * channels + c);
        for (; t < part->end; t++) forward_rows(part, &taps, width, act, t, 1, c, count, y + t * channels + c);
    }
}

void DR_ISA_NAME(dr_cpu_conv_forward)(const dr_cpu_conv *part, float *y) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        forward(part, 4, DR_ACTIVATION_SILU, y);
    else
        forward(part, part->conv->width, part->conv->activation, y);
}

INLINE lanes slope(dr_activation act, lanes u) {
    if (act == DR_ACTIVATION_SILU) return lanes_silu_slope(u);
    if (act == DR_ACTIVATION_SIGMOID) return lanes_sigmoid_slope(u);
    return lanes_set(1.0f);
}

/* d_u of the last W - 1 tokens */
typedef struct {
    float row[WIDTH - 1][BLOCK];
} last_gradients;

/* The channels [c, c + count) of some tokens: their d_u, the d_x that it finishes, of the tokens from t - W + 1 on as far as
 * they are the part's, and what it brings to the gradients of taps and bias, which are held like them; tokens behind the part
 * count in the next one. there: they are not behind the sequence, where d_u is zero. d_x: of the sequence's first token, or
 * NULL. */
INLINE void backward_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, dr_activation act, int64_t t,
                          const int tokens, const bool there, int64_t c, int64_t count, const float *d_y, last_gradients *last,
                          float *d_x, block_taps *d_taps) {
    const int64_t channels = part->conv->channels, done = t - width + 1, kept = width - 1;
    const float *row[ROWS];
    if (there) find_rows(part, width, t, c, width + tokens - 1, row);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes x[ROWS], d[ROWS]; /* d_u from token t - W + 1 on */
#pragma GCC unroll 8
        for (int64_t k = 0; k < kept; k++) d[k] = lanes_load(last->row[k] + i);
        if (there) {
            load_inputs(row, width, tokens, i, n, x);
            ask(row[width - 1], channels, tokens, i);
            ask(d_y + t * channels + c, channels, tokens, i);
        }
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++)
            d[kept + g] = there
                              ? lanes_load_n(d_y + (t + g) * channels + c + i, n) * slope(act, convolved(taps, width, x + g, i))
                              : lanes_zero();
#pragma GCC unroll 8
        for (int64_t k = 0; k < kept; k++) lanes_store(last->row[k] + i, d[k + tokens]);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) {
            if (!d_x || done + g < part->begin || done + g >= part->end) continue;
            lanes sum = lanes_zero();
#pragma GCC unroll 8
            for (int64_t w = 0; w < width; w++) sum = lanes_fma(lanes_load(taps->tap[width - 1 - w] + i), d[g + w], sum);
            lanes_store_n(d_x + (done + g) * channels + c + i, n, sum);
        }
        if (!there || t + tokens > part->end) continue;
        lanes sum = lanes_load(d_taps->bias + i);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) sum = sum + d[kept + g];
        lanes_store(d_taps->bias + i, sum);
#pragma GCC unroll 8
        for (int64_t w = 0; w < width; w++) {
            sum = lanes_load(d_taps->tap[w] + i);
#pragma GCC unroll 4
            for (int g = 0; g < tokens; g++) sum = lanes_fma(d[kept + g], x[g + w], sum);
            lanes_store(d_taps->tap[w] + i, sum);
        }
    }
}

static void add_taps(const block_taps *d_taps, int64_t width, int64_t c, int64_t count, float *d_weight, float *d_bias) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t w = 0; d_weight && w < width; w++) d_weight[(c + i) * width + w] += d_taps->tap[w][i];
        if (d_bias) d_bias[c + i] += d_taps->bias[i];
    }
}

/* d_y, d_x: of the sequence's first token */
INLINE void backward(const dr_cpu_conv *part, int64_t width, dr_activation act, const float *d_y, float *d_x, float *d_weight,
                     float *d_bias) {
    const int64_t last_token = d_x ? part->end + width - 1 : part->end;
    block_taps taps, d_taps;
    last_gradients last;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        const int64_t count = part->last - c < BLOCK ? part->last - c : BLOCK;
        int64_t t = part->begin;
        load_taps(part, c, count, &taps);
        memset(d_taps.tap, 0, (size_t)width * sizeof *d_taps.tap);
        memset(d_taps.bias, 0, sizeof d_taps.bias);
        memset(&last, 0, (size_t)(width - 1) * sizeof *last.row);
        for (; t + GROUP <= part->end; t += GROUP)
            backward_rows(part, &taps, width, act, t, GROUP, true, c, count, d_y, &last, d_x, &d_taps);
        for (; t < last_token && t < part->length; t++)
            backward_rows(part, &taps, width, act, t, 1, true, c, count, d_y, &last, d_x, &d_taps);
        for (; t < last_token; t++) backward_rows(part, &taps, width, act, t, 1, false, c, count, d_y, &last, d_x, &d_taps);
        add_taps(&d_taps, width, c, count, d_weight, d_bias);
    }
}

void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        backward(part, 4, DR_ACTIVATION_SILU, d_y, d_x, d_weight, d_bias);
    else
        backward(part, part->conv->width, part->conv->activation, d_y, d_x, d_weight, d_bias);
}
