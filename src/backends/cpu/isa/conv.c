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
#pragma GCC unroll 16
    for (int64_t w = 0; w < width; w++) u = lanes_fma(lanes_load(taps->tap[w] + i), x[w], u);
    return u;
}

/* the rows of `tokens` tokens, n channels from i on */
INLINE void load_inputs(const float *const row[ROWS], int64_t width, const int tokens, int64_t i, int64_t n, lanes x[ROWS]) {
#pragma GCC unroll 20
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

/* d_u of the channels [c, c + count) of some tokens, and if `summed` their part in the gradients of taps and bias, which are
 * held like them: tokens behind the part count in the next one */
INLINE void backward_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, dr_activation act, int64_t t,
                          const int tokens, bool summed, int64_t c, int64_t count, const float *d_y, float *const d_u[GROUP],
                          block_taps *d_taps) {
    const int64_t channels = part->conv->channels;
    const float *row[ROWS];
    find_rows(part, width, t, c, width + tokens - 1, row);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes x[ROWS], d[GROUP];
        load_inputs(row, width, tokens, i, n, x);
        ask(row[width - 1], channels, tokens, i);
        ask(d_y, channels, tokens, i);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) {
            d[g] = lanes_load_n(d_y + g * channels + i, n) * slope(act, convolved(taps, width, x + g, i));
            lanes_store(d_u[g] + i, d[g]);
        }
        if (!summed) continue;
        lanes sum = lanes_load(d_taps->bias + i);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) sum = sum + d[g];
        lanes_store(d_taps->bias + i, sum);
#pragma GCC unroll 16
        for (int64_t w = 0; w < width; w++) {
            sum = lanes_load(d_taps->tap[w] + i);
#pragma GCC unroll 4
            for (int g = 0; g < tokens; g++) sum = lanes_fma(d[g], x[g + w], sum);
            lanes_store(d_taps->tap[w] + i, sum);
        }
    }
}

/* d_x of one token; d_u[w] is the d_u of w tokens later */
INLINE void finish_row(const block_taps *taps, int64_t width, int64_t count, const float *const d_u[WIDTH], float *d_x) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes sum = lanes_zero();
        for (int64_t w = 0; w < width; w++)
            sum = lanes_fma(lanes_load(taps->tap[width - 1 - w] + i), lanes_load(d_u[w] + i), sum);
        lanes_store_n(d_x + i, n, sum);
    }
}

static void add_taps(const block_taps *d_taps, int64_t width, int64_t c, int64_t count, float *d_weight, float *d_bias) {
    for (int64_t i = 0; i < count; i++) {
        for (int64_t w = 0; d_weight && w < width; w++) d_weight[(c + i) * width + w] += d_taps->tap[w][i];
        if (d_bias) d_bias[c + i] += d_taps->bias[i];
    }
}

/* d_u of token t is in row (t - begin) mod (width + GROUP) of the ring */
typedef struct {
    float row[WIDTH + GROUP][BLOCK];
} gradient_ring;

/* d_x of the tokens of the part among done .. done + tokens - 1 */
INLINE void finish_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, int64_t done, int64_t tokens, int64_t c,
                        int64_t count, const gradient_ring *ring, float *d_x) {
    for (int64_t t = done < part->begin ? part->begin : done; t < done + tokens && t < part->end; t++) {
        const float *later[WIDTH];
        for (int64_t w = 0; w < width; w++) later[w] = ring->row[(t + w - part->begin) % (width + GROUP)];
        finish_row(taps, width, count, later, d_x + t * part->conv->channels + c);
    }
}

INLINE void backward(const dr_cpu_conv *part, int64_t width, dr_activation act, const float *d_y, float *d_x, float *d_weight,
                     float *d_bias) {
    const int64_t channels = part->conv->channels, last = d_x ? part->end + width - 1 : part->end;
    block_taps taps, d_taps;
    gradient_ring ring;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        const int64_t count = part->last - c < BLOCK ? part->last - c : BLOCK;
        load_taps(part, c, count, &taps);
        memset(d_taps.tap, 0, (size_t)width * sizeof *d_taps.tap);
        memset(d_taps.bias, 0, sizeof d_taps.bias);
        for (int64_t t = part->begin, tokens; t < last; t += tokens) {
            float *d_u[GROUP];
            tokens = t + GROUP <= part->end ? GROUP : 1;
            for (int64_t g = 0; g < tokens; g++) d_u[g] = ring.row[(t + g - part->begin) % (width + GROUP)];
            if (tokens == GROUP)
                backward_rows(part, &taps, width, act, t, GROUP, true, c, count, d_y + t * channels + c, d_u, &d_taps);
            else if (t < part->length)
                backward_rows(part, &taps, width, act, t, 1, t < part->end, c, count, d_y + t * channels + c, d_u, &d_taps);
            else
                memset(d_u[0], 0, sizeof *ring.row);
            if (d_x) finish_rows(part, &taps, width, t - width + 1, tokens, c, count, &ring, d_x);
        }
        add_taps(&d_taps, width, c, count, d_weight, d_bias);
    }
}

void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        backward(part, 4, DR_ACTIVATION_SILU, d_y, d_x, d_weight, d_bias);
    else
        backward(part, part->conv->width, part->conv->activation, d_y, d_x, d_weight, d_bias);
}
