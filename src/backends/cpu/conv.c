/* Depthwise causal convolution. The forward cuts rows into parts, which threads take sequence by sequence; in the backward,
 * where the taps' gradients are sums over all rows, threads share out the channels. */
#include "backends/cpu/kernels.h"
#include "backends/cpu/operations.h"
#include "base/error.h"

enum {
    ROWS = 64,    /* tokens that the forward takes at once: their inputs stay in cache from one block of channels to the next */
    CHANNELS = 16 /* of one task of the backward: a cache line, and whole vectors on every instruction set */
};

static dr_status check_width(const dr_conv *conv) {
    if (conv->width >= 1 && conv->width <= DR_CPU_MAX_CONV_WIDTH) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "a convolution of %lld taps does not run on the CPU backend: it has 1 to %d",
                   (long long)conv->width, DR_CPU_MAX_CONV_WIDTH);
}

static dr_cpu_conv sequence_of(const dr_conv *conv, int64_t i, const float *x, const float *weight, const float *bias,
                               const float *initial) {
    int64_t begin = dr_layout_begin(&conv->layout, i);
    return (dr_cpu_conv){.conv = conv,
                         .x = x + begin * conv->channels,
                         .weight = weight,
                         .bias = bias,
                         .initial = initial ? initial + i * (conv->width - 1) * conv->channels : NULL,
                         .end = dr_layout_begin(&conv->layout, i + 1) - begin,
                         .last = conv->channels};
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
    int64_t kept = conv->width - 1, channels = conv->channels;
    dr_cpu_conv s = sequence_of(conv, i, x, NULL, NULL, initial);
    for (int64_t j = 0; j < kept; j++) {
        int64_t t = s.end - kept + j;
        const float *from = t >= 0 ? s.x + t * channels : s.initial ? s.initial + (t + kept) * channels : NULL;
        float *to = final + (i * kept + j) * channels;
        for (int64_t c = 0; c < channels; c++) to[c] = from ? from[c] : 0.0f;
    }
}

dr_status dr_cpu_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                              const void *initial, void *y, void *final) {
    DR_TRY(check_width(conv));
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t rows = conv->layout.rows, parts = (rows + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, parts, rows * conv->channels))
    for (int64_t part = 0; part < parts; part++) {
        int64_t row = part * ROWS, end = row + ROWS < rows ? row + ROWS : rows;
        for (int64_t i = sequence_at(&conv->layout, row); row < end; i++) {
            dr_cpu_conv s = sequence_of(conv, i, x, weight, bias, initial);
            int64_t begin = dr_layout_begin(&conv->layout, i);
            s.begin = row - begin;
            if (s.end > end - begin) s.end = end - begin;
            kernels->conv_forward(&s, (float *)y + begin * conv->channels);
            row = begin + s.end;
        }
    }
    for (int64_t i = 0; final && i < conv->layout.sequences; i++) keep_inputs(conv, i, x, initial, final);
    return DR_OK;
}

dr_status dr_cpu_conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    DR_TRY(check_width(conv));
    const dr_cpu_kernels *kernels = dr_cpu_kernels_of(backend);
    int64_t channels = conv->channels, parts = (channels + CHANNELS - 1) / CHANNELS;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, parts, conv->layout.rows *channels))
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = 0; i < conv->layout.sequences; i++) {
            dr_cpu_conv s = sequence_of(conv, i, x, weight, bias, initial);
            int64_t at = dr_layout_begin(&conv->layout, i) * channels;
            s.first = part * CHANNELS;
            s.last = s.first + CHANNELS < channels ? s.first + CHANNELS : channels;
            kernels->conv_backward(&s, (const float *)d_y + at, d_x ? (float *)d_x + at : NULL, d_weight, d_bias);
        }
    return DR_OK;
}
