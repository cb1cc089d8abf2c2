/* Depthwise causal convolution over a part of a sequence: u[t] = bias + sum_w weight[w] x[t - W + 1 + w], y = act(u).
 *
 * A few tokens at a time over a block of channels as long as a page: rows are read and written along their length, as memory
 * gives them, and the rows of the next tokens are asked for. The taps, turned so that those of a vector of channels lie side by
 * side, stay in cache, and what the tokens share in registers. The backward makes d_u[t] from a u computed anew, adds it to the
 * gradients of taps and bias, and with the last W rows of it finishes d_x[t - W + 1] = sum_w weight[w] d_u[t - w]. A part goes
 * on W - 1 tokens behind its end, as far as the sequence does, only to finish its own d_x; so parts are independent.
 *
 * One token of each of many sequences, decoding, goes through the taps once for all of them and moves the states on. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    BLOCK = DR_CPU_CONV_BLOCK,
    WIDTH = DR_CPU_MAX_CONV_WIDTH,
    GROUP = 4,
    ROWS = WIDTH + GROUP - 1
}; /* GROUP: tokens at a time */

/* Of each vector of a block of channels [width + 1][LANES]: the taps, then the bias. And d_u of the last W - 1 tokens, likewise
 * [width - 1][LANES]. */
typedef struct {
    float at[BLOCK * (WIDTH + 1)];
} block_taps;
typedef struct {
    float at[BLOCK * (WIDTH - 1)];
} last_gradients;

/* The memory of a part. */
typedef struct {
    block_taps taps;
} forward_space;
typedef struct {
    block_taps taps;
    block_taps d_taps;
    last_gradients last;
} backward_space;
_Static_assert(sizeof(forward_space) == DR_CPU_CONV_SPACE * sizeof(float), "forward");
_Static_assert(sizeof(backward_space) == DR_CPU_CONV_BACKWARD_SPACE * sizeof(float), "backward");

static const float zeros[BLOCK];

static int64_t block_from(const dr_cpu_conv *part, int64_t c) {
    return part->last - c < BLOCK ? part->last - c : BLOCK;
}

/* ---- taps ------------------------------------------------------------------------------------------------------------ */

/* x [4] from vectors that lie one behind the other to those of every fourth element, and back */
INLINE void part_four(lanes x[4]) {
    lanes_part(&x[0], &x[1]);
    lanes_part(&x[2], &x[3]);
    lanes_part(&x[0], &x[2]);
    lanes_part(&x[1], &x[3]);
}
INLINE void deal_four(lanes x[4]) {
    lanes_deal(&x[1], &x[3]);
    lanes_deal(&x[0], &x[2]);
    lanes_deal(&x[2], &x[3]);
    lanes_deal(&x[0], &x[1]);
}

/* the taps of the channels [c, c + count); four of them are turned in registers */
INLINE void load_taps(const dr_cpu_conv *part, int64_t width, int64_t c, int64_t count, block_taps *taps) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const float *weight = part->weight + (c + i) * width;
        float *to = taps->at + i * (width + 1);
        lanes_store(to + width * LANES, part->bias ? lanes_load_n(part->bias + c + i, n) : lanes_zero());
        if (width == 4 && n == LANES) {
            lanes x[4];
            for (int k = 0; k < 4; k++) x[k] = lanes_load(weight + k * LANES);
            part_four(x);
            for (int k = 0; k < 4; k++) lanes_store(to + k * LANES, x[k]);
            continue;
        }
        for (int64_t w = 0; w < width; w++)
            for (int64_t j = 0; j < LANES; j++) to[w * LANES + j] = j < n ? weight[j * width + w] : 0.0f;
    }
}

INLINE void add_taps(const block_taps *d_taps, int64_t width, int64_t c, int64_t count, float *d_weight, float *d_bias) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const float *from = d_taps->at + i * (width + 1);
        float *to = d_weight ? d_weight + (c + i) * width : NULL;
        if (d_bias) lanes_store_n(d_bias + c + i, n, lanes_load_n(d_bias + c + i, n) + lanes_load(from + width * LANES));
        if (width == 4 && n == LANES && to) {
            lanes x[4];
            for (int k = 0; k < 4; k++) x[k] = lanes_load(from + k * LANES);
            deal_four(x);
            for (int k = 0; k < 4; k++) lanes_store(to + k * LANES, lanes_load(to + k * LANES) + x[k]);
            continue;
        }
        for (int64_t w = 0; to && w < width; w++)
            for (int64_t j = 0; j < n; j++) to[j * width + w] += from[w * LANES + j];
    }
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* row[k]: the inputs at token t - W + 1 + k for k < count, which are in the state before the sequence's start */
INLINE void find_rows(const dr_cpu_conv *part, int64_t width, int64_t t, int64_t c, int64_t count, const float *row[ROWS]) {
    const int64_t channels = part->conv->channels, x_row = dr_conv_pitch(part->conv);
    for (int64_t k = 0; k < count; k++) {
        int64_t at = t - width + 1 + k;
        row[k] = at >= 0 ? part->x + at * x_row + c : part->initial ? part->initial + (at + width - 1) * channels + c : zeros;
        if (part->before && at >= 0 && at < part->begin) row[k] = part->before + (at - part->begin + width - 1) * channels + c;
        if (part->behind && at >= part->end) row[k] = part->behind + (at - part->end) * channels + c;
    }
}

/* tap [width + 1]: the taps, then the bias */
INLINE void load_vector(const block_taps *taps, int64_t width, int64_t i, lanes tap[WIDTH + 1]) {
#pragma GCC unroll 8
    for (int64_t w = 0; w <= width; w++) tap[w] = lanes_load(taps->at + i * (width + 1) + w * LANES);
}

/* x [width]: the inputs from token t - W + 1 to token t */
INLINE lanes convolved(const lanes *tap, int64_t width, const lanes *x) {
    lanes u = tap[width];
#pragma GCC unroll 8
    for (int64_t w = 0; w < width; w++) u = lanes_fma(tap[w], x[w], u);
    return u;
}

INLINE lanes activate(dr_activation act, lanes u) {
    return act == DR_ACTIVATION_SILU ? lanes_silu(u) : act == DR_ACTIVATION_SIGMOID ? lanes_sigmoid(u) : u;
}

/* the rows of `tokens` tokens, n channels from i on */
INLINE void load_inputs(const float *const row[ROWS], int64_t width, const int tokens, int64_t i, int64_t n, lanes x[ROWS]) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < width + tokens - 1; k++) x[k] = lanes_load_n(row[k] + i, n);
}

/* asks for a vector of each of the next tokens; beyond the end, where there may be none, that does nothing */
INLINE void ask(const float *x, int64_t row, const int tokens, int64_t i) {
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++) lanes_prefetch(x + (tokens + g) * row + i);
}

/* y of some tokens, n channels from i on */
INLINE void forward_lanes(const float *const row[ROWS], const block_taps *taps, int64_t width, dr_activation act,
                          const int tokens, int64_t i, int64_t n, int64_t x_row, int64_t channels, float *y) {
    lanes x[ROWS], tap[WIDTH + 1];
    load_inputs(row, width, tokens, i, n, x);
    load_vector(taps, width, i, tap);
    ask(row[width - 1], x_row, tokens, i);
    ask(y, channels, tokens, i);
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++) lanes_store_n(y + g * channels + i, n, activate(act, convolved(tap, width, x + g)));
}

/* y of the tokens t .. t + tokens - 1 */
INLINE void forward_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, dr_activation act, int64_t t,
                         const int tokens, int64_t c, int64_t count, float *y) {
    const int64_t channels = part->conv->channels, x_row = dr_conv_pitch(part->conv);
    const float *row[ROWS];
    int64_t i = 0;
    find_rows(part, width, t, c, width + tokens - 1, row);
    for (; i + LANES <= count; i += LANES) forward_lanes(row, taps, width, act, tokens, i, LANES, x_row, channels, y);
    if (i < count) forward_lanes(row, taps, width, act, tokens, i, count - i, x_row, channels, y);
}

/* width and act are constants for the usual 4 taps with SiLU */
INLINE void forward(const dr_cpu_conv *part, int64_t width, dr_activation act, float *y) {
    const int64_t channels = part->conv->channels;
    block_taps *taps = &((forward_space *)part->space)->taps;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        int64_t count = block_from(part, c), t = part->begin;
        load_taps(part, width, c, count, taps);
        for (; t + GROUP <= part->end; t += GROUP)
            forward_rows(part, taps, width, act, t, GROUP, c, count, y + t * channels + c);
        for (; t < part->end; t++) forward_rows(part, taps, width, act, t, 1, c, count, y + t * channels + c);
    }
}

void DR_ISA_NAME(dr_cpu_conv_forward)(const dr_cpu_conv *part, float *y) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        forward(part, 4, DR_ACTIVATION_SILU, y);
    else
        forward(part, part->conv->width, part->conv->activation, y);
}

/* ---- one token of each sequence -------------------------------------------------------------------------------------- */

/* n channels of a sequence; initial, final: the first row of its state, or NULL */
INLINE void step_lanes(const float *tap_at, int64_t width, dr_activation act, int64_t n, int64_t channels, const float *initial,
                       const float *x_at, float *y, float *final) {
    lanes x[WIDTH], tap[WIDTH + 1];
#pragma GCC unroll 8
    for (int64_t w = 0; w <= width; w++) tap[w] = lanes_load(tap_at + w * LANES);
#pragma GCC unroll 8
    for (int64_t k = 0; k < width - 1; k++) x[k] = initial ? lanes_load_n(initial + k * channels, n) : lanes_zero();
    x[width - 1] = lanes_load_n(x_at, n);
    if (final)
#pragma GCC unroll 8
        for (int64_t k = 0; k < width - 1; k++) lanes_store_n(final + k * channels, n, x[k + 1]);
    lanes_store_n(y, n, activate(act, convolved(tap, width, x)));
}

INLINE void step(const dr_cpu_conv *part, int64_t width, dr_activation act, float *y, float *final) {
    const int64_t channels = part->conv->channels, state = (width - 1) * channels;
    block_taps *taps = &((forward_space *)part->space)->taps;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        const int64_t count = block_from(part, c);
        load_taps(part, width, c, count, taps);
        for (int64_t s = part->begin; s < part->end; s++) {
            const float *before = part->initial ? part->initial + s * state + c : NULL,
                        *x = part->x + s * dr_conv_pitch(part->conv) + c;
            float *after = final ? final + s * state + c : NULL, *to = y + s * channels + c;
            for (int64_t i = 0; i < count; i += LANES)
                step_lanes(taps->at + i * (width + 1), width, act, lanes_left(count, i), channels, before ? before + i : NULL,
                           x + i, to + i, after ? after + i : NULL);
        }
    }
}

void DR_ISA_NAME(dr_cpu_conv_step)(const dr_cpu_conv *part, float *y, float *final) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        step(part, 4, DR_ACTIVATION_SILU, y, final);
    else
        step(part, part->conv->width, part->conv->activation, y, final);
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

INLINE lanes slope(dr_activation act, lanes u) {
    if (act == DR_ACTIVATION_SILU) return lanes_silu_slope(u);
    if (act == DR_ACTIVATION_SIGMOID) return lanes_sigmoid_slope(u);
    return lanes_set(1.0f);
}

/* Some tokens of a block of channels, from token t on. */
typedef struct {
    const float *row[ROWS], *d_y;
    float *d_x;          /* of token t - W + 1, the first one that is finished, or NULL */
    int64_t channels;    /* from token to token of d_y */
    int64_t x_row;       /* likewise, of x and d_x */
    int64_t first, last; /* of the finished tokens those that are the part's */
    bool counts;         /* tokens behind the part count in the next one */
} backward_tokens;

/* n channels from i on: their d_u, the d_x that it finishes, and what it brings to the gradients of taps and bias, which are
 * held like them. there: the tokens are not behind the sequence, where d_u is zero. */
INLINE void backward_lanes(const backward_tokens *at, const block_taps *taps, int64_t width, dr_activation act,
                           const int tokens, const bool there, int64_t i, int64_t n, last_gradients *last, block_taps *d_taps) {
    const int64_t kept = width - 1;
    float *d_last = last->at + i * kept, *d_tap = d_taps->at + i * (width + 1);
    lanes x[ROWS], d[ROWS], tap[WIDTH + 1]; /* d: d_u from token t - W + 1 on */
    load_vector(taps, width, i, tap);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kept; k++) d[k] = lanes_load(d_last + k * LANES);
    if (there) {
        load_inputs(at->row, width, tokens, i, n, x);
        ask(at->row[kept], at->x_row, tokens, i);
        ask(at->d_y, at->channels, tokens, i);
    }
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++)
        d[kept + g] =
            there ? lanes_load_n(at->d_y + g * at->channels + i, n) * slope(act, convolved(tap, width, x + g)) : lanes_zero();
#pragma GCC unroll 8
    for (int64_t k = 0; k < kept; k++) lanes_store(d_last + k * LANES, d[k + tokens]);
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++) {
        if (!at->d_x || g < at->first || g >= at->last) continue;
        lanes sum = lanes_zero();
#pragma GCC unroll 8
        for (int64_t w = 0; w < width; w++) sum = lanes_fma(tap[kept - w], d[g + w], sum);
        lanes_store_n(at->d_x + g * at->x_row + i, n, sum);
    }
    if (!there || !at->counts) return;
#pragma GCC unroll 8
    for (int64_t w = 0; w < width; w++) {
        lanes sum = lanes_load(d_tap + w * LANES);
#pragma GCC unroll 4
        for (int g = 0; g < tokens; g++) sum = lanes_fma(d[kept + g], x[g + w], sum);
        lanes_store(d_tap + w * LANES, sum);
    }
    lanes sum = lanes_load(d_tap + width * LANES);
#pragma GCC unroll 4
    for (int g = 0; g < tokens; g++) sum = sum + d[kept + g];
    lanes_store(d_tap + width * LANES, sum);
}

/* The channels [c, c + count) of the tokens from t on. d_y, d_x: of the sequence's first token, d_x or NULL. */
INLINE void backward_rows(const dr_cpu_conv *part, const block_taps *taps, int64_t width, dr_activation act, int64_t t,
                          const int tokens, const bool there, int64_t c, int64_t count, const float *d_y, float *d_x,
                          last_gradients *last, block_taps *d_taps) {
    const int64_t channels = part->conv->channels, x_row = dr_conv_pitch(part->conv), done = t - width + 1;
    backward_tokens at = {.d_y = d_y + t * channels + c,
                          .d_x = d_x ? d_x + done * x_row + c : NULL,
                          .channels = channels,
                          .x_row = x_row,
                          .first = part->begin - done,
                          .last = part->end - done,
                          .counts = t + tokens <= part->end};
    int64_t i = 0;
    if (there) find_rows(part, width, t, c, width + tokens - 1, at.row);
    if (tokens == GROUP && d_x && at.first <= 0) { /* the usual case, as constants: nothing is asked of each vector */
        at.first = 0;
        at.last = tokens;
        at.counts = true;
        for (; i + LANES <= count; i += LANES) backward_lanes(&at, taps, width, act, tokens, there, i, LANES, last, d_taps);
    }
    for (; i < count; i += LANES) backward_lanes(&at, taps, width, act, tokens, there, i, lanes_left(count, i), last, d_taps);
}

/* d_y, d_x: of the sequence's first token */
INLINE void backward(const dr_cpu_conv *part, int64_t width, dr_activation act, const float *d_y, float *d_x, float *d_weight,
                     float *d_bias) {
    const int64_t last_token = d_x ? part->end + width - 1 : part->end;
    backward_space *space = (backward_space *)part->space;
    block_taps *taps = &space->taps, *d_taps = &space->d_taps;
    last_gradients *last = &space->last;
    for (int64_t c = part->first; c < part->last; c += BLOCK) {
        const int64_t count = block_from(part, c), vectors = (count + LANES - 1) / LANES;
        int64_t t = part->begin;
        load_taps(part, width, c, count, taps);
        memset(d_taps->at, 0, (size_t)(vectors * LANES * (width + 1)) * sizeof *d_taps->at);
        memset(last->at, 0, (size_t)(vectors * LANES * (width - 1)) * sizeof *last->at);
        for (; t + GROUP <= part->end; t += GROUP)
            backward_rows(part, taps, width, act, t, GROUP, true, c, count, d_y, d_x, last, d_taps);
        for (; t < last_token && t < part->length; t++)
            backward_rows(part, taps, width, act, t, 1, true, c, count, d_y, d_x, last, d_taps);
        for (; t < last_token; t++) backward_rows(part, taps, width, act, t, 1, false, c, count, d_y, d_x, last, d_taps);
        add_taps(d_taps, width, c, count, d_weight, d_bias);
    }
}

void DR_ISA_NAME(dr_cpu_conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias) {
    if (part->conv->width == 4 && part->conv->activation == DR_ACTIVATION_SILU)
        backward(part, 4, DR_ACTIVATION_SILU, d_y, d_x, d_weight, d_bias);
    else
        backward(part, part->conv->width, part->conv->activation, d_y, d_x, d_weight, d_bias);
}
