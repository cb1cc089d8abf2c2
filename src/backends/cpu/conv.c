/* Depthwise causal convolution. Threads share out the tokens, each part going through its sequences; in the backward there are
 * DR_CPU_PARTS of them, each with sums of the gradients of taps and bias of its own. Where every sequence has one token, they
 * share out the channels instead, so that taps are read once for all sequences. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"
#include "ops/shapes.h"

#include <omp.h>
#include <string.h>

enum { FORWARD_ROWS = 128, STEP_CHANNELS = 512 }; /* tokens of a part of the forward; channels of one of a single token */

static dr_status check_width(const dr_conv *conv) {
    if (conv->width >= 1 && conv->width <= DR_CPU_MAX_CONV_WIDTH) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "a convolution of %lld taps does not run on the CPU backend: it has 1 to %d",
                   (long long)conv->width, DR_CPU_MAX_CONV_WIDTH);
}

/* the sequence that holds a row: the last that begins at or before it and is not empty */
static int64_t sequence_at(const dr_layout *layout, int64_t row) {
    int64_t low = 0, high = layout->sequences - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (dr_layout_begin(layout, middle + 1) > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* the last width - 1 inputs of sequence i; rising, so that final may be initial */
static void keep_inputs(const dr_conv *conv, int64_t i, const float *x, const float *initial, float *final) {
    int64_t kept = conv->width - 1, channels = conv->channels, begin = dr_layout_begin(&conv->layout, i);
    int64_t length = dr_layout_begin(&conv->layout, i + 1) - begin;
    for (int64_t j = 0; j < kept; j++) {
        int64_t t = length - kept + j;
        const float *from = t >= 0    ? x + (begin + t) * dr_conv_pitch(conv)
                            : initial ? initial + (i * kept + t + kept) * channels
                                      : NULL;
        float *to = final + (i * kept + j) * channels;
        for (int64_t c = 0; c < channels; c++) to[c] = from ? from[c] : 0.0f;
    }
}

/* Sequence i from row `row` on, up to row `end` or its own end. */
static dr_cpu_conv part_of(const dr_conv *conv, int64_t i, int64_t row, int64_t end, const float *x, const float *weight,
                           const float *bias, const float *initial) {
    int64_t begin = dr_layout_begin(&conv->layout, i), length = dr_layout_begin(&conv->layout, i + 1) - begin;
    return (dr_cpu_conv){.conv = conv,
                         .x = x + begin * dr_conv_pitch(conv),
                         .weight = weight,
                         .bias = bias,
                         .initial = initial ? initial + i * (conv->width - 1) * conv->channels : NULL,
                         .length = length,
                         .begin = row - begin,
                         .end = length < end - begin ? length : end - begin,
                         .last = conv->channels};
}

/* Memory for the kernels of a team of threads, of so many elements each; that of the calling thread. */
static dr_status take_space(dr_backend *backend, int team, int64_t elements, dr_cpu_scratch **scratch) {
    return dr_cpu_scratch_take(backend, (size_t)(team * elements) * sizeof(float), scratch);
}

static float *space_of_thread(dr_cpu_scratch *scratch, int64_t elements) {
    return (float *)scratch->memory + omp_get_thread_num() * elements;
}

static dr_status forward_step(dr_backend *backend, const dr_conv *conv, const float *x, const float *weight, const float *bias,
                              const float *initial, float *y, float *final) {
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    const int64_t channels = conv->channels, parts = (channels + STEP_CHANNELS - 1) / STEP_CHANNELS;
    const int team = dr_cpu_threads(backend, parts, conv->layout.rows * channels);
    dr_cpu_scratch *scratch;
    DR_TRY(take_space(backend, team, DR_CPU_CONV_SPACE, &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t p = 0; p < parts; p++) {
        dr_cpu_conv part = {
            .conv = conv, .x = x, .weight = weight, .bias = bias, .initial = initial, .end = conv->layout.sequences};
        part.space = space_of_thread(scratch, DR_CPU_CONV_SPACE);
        part.first = p * STEP_CHANNELS;
        part.last = part.first + STEP_CHANNELS < channels ? part.first + STEP_CHANNELS : channels;
        kernels->conv_step(&part, y, final);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

dr_status dr_cpu_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                              const void *initial, void *y, void *final) {
    DR_TRY(check_width(conv));
    if (conv->layout.rows == conv->layout.sequences && dr_layout_longest(&conv->layout) == 1)
        return forward_step(backend, conv, x, weight, bias, initial, y, final);
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t rows = conv->layout.rows, parts = (rows + FORWARD_ROWS - 1) / FORWARD_ROWS;
    const int team = dr_cpu_threads(backend, parts, rows * conv->channels);
    dr_cpu_scratch *scratch;
    DR_TRY(take_space(backend, team, DR_CPU_CONV_SPACE, &scratch));
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t p = 0; p < parts; p++) {
        int64_t row = p * FORWARD_ROWS, end = row + FORWARD_ROWS < rows ? row + FORWARD_ROWS : rows;
        for (int64_t i = sequence_at(&conv->layout, row); row < end; i++) {
            dr_cpu_conv part = part_of(conv, i, row, end, x, weight, bias, initial);
            int64_t begin = row - part.begin;
            part.space = space_of_thread(scratch, DR_CPU_CONV_SPACE);
            kernels->conv_forward(&part, (float *)y + begin * conv->channels);
            row = begin + part.end;
        }
    }
    dr_cpu_scratch_give(backend, scratch);
    for (int64_t i = 0; final && i < conv->layout.sequences; i++) keep_inputs(conv, i, x, initial, final);
    return DR_OK;
}

/* The rows around the ends of parts, [DR_CPU_PARTS + 1, 2 (width - 1), channels], as they are before d_x is written over x. */
static void copy_borders(const dr_conv *conv, const float *x, float *borders) {
    const int64_t kept = conv->width - 1, rows = conv->layout.rows;
    for (int p = 0; p <= DR_CPU_PARTS; p++) {
        const int64_t border = dr_cpu_part(rows, p, DR_CPU_PARTS);
        for (int64_t r = border - kept; r < border + kept; r++, borders += conv->channels)
            if (r >= 0 && r < rows) memcpy(borders, x + r * dr_conv_pitch(conv), (size_t)conv->channels * sizeof *x);
    }
}

dr_status dr_cpu_conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    DR_TRY(check_width(conv));
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t rows = conv->layout.rows, channels = conv->channels, taps = channels * conv->width;
    dr_cpu_scratch *scratch = NULL;
    const int team = dr_cpu_threads(backend, DR_CPU_PARTS, rows * channels);
    const int64_t spaces = team * (int64_t)DR_CPU_CONV_BACKWARD_SPACE, sums = DR_CPU_PARTS * (taps + channels);
    const int64_t border = d_x == x ? (conv->width - 1) * channels : 0;
    DR_TRY(take_space(backend, 1, spaces + sums + (DR_CPU_PARTS + 1) * 2 * border, &scratch));
    float *tap_sums = (float *)scratch->memory + spaces,
          *bias_sums = tap_sums + DR_CPU_PARTS * taps; /* [DR_CPU_PARTS, channels, width], [.., channels] */
    float *borders = tap_sums + sums;
    if (border > 0) copy_borders(conv, x, borders);
    memset(tap_sums, 0, (size_t)sums * sizeof *tap_sums);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int p = 0; p < DR_CPU_PARTS; p++) {
        int64_t row = dr_cpu_part(rows, p, DR_CPU_PARTS), end = dr_cpu_part(rows, p + 1, DR_CPU_PARTS);
        if (row == end) continue;
        for (int64_t i = sequence_at(&conv->layout, row); row < end; i++) {
            dr_cpu_conv part = part_of(conv, i, row, end, x, weight, bias, initial);
            int64_t begin = row - part.begin;
            part.space = space_of_thread(scratch, DR_CPU_CONV_BACKWARD_SPACE);
            part.before = border > 0 ? borders + 2 * p * border : NULL;
            part.behind = border > 0 ? borders + (2 * p + 3) * border : NULL;
            kernels->conv_backward(&part, (const float *)d_y + begin * channels,
                                   d_x ? (float *)d_x + begin * dr_conv_pitch(conv) : NULL,
                                   d_weight ? tap_sums + p * taps : NULL, d_bias ? bias_sums + p * channels : NULL);
            row = begin + part.end;
        }
    }
    if (d_weight) dr_cpu_add_parts(tap_sums, taps, d_weight);
    if (d_bias) dr_cpu_add_parts(bias_sums, channels, d_bias);
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
