/* Depthwise causal convolution over the tokens of each sequence, with the inputs before its start in a state.
 *
 *     u[t, c] = bias[c] + sum_{w < W} weight[c, w] x[t - W + 1 + w, c],   y = act(u)
 *
 * The state of a sequence holds x at t = -(W - 1) .. -1; what a call leaves behind is the same window at its end. */
#include "backends/reference/activation.h"
#include "backends/reference/reference.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

/* One sequence of a call. */
typedef struct {
    int64_t length, channels, width, row; /* row: from one of x to the next */
    const double *x;                      /* [length, channels], rows apart */
    const double *initial;                /* [width - 1, channels], or NULL: zero */
    const double *weight;                 /* [channels, width] */
    const double *bias;                   /* [channels], or NULL: zero */
} sequence;

static sequence sequence_at(const dr_conv *conv, int64_t i, const double *x, const double *weight, const double *bias,
                            const double *initial) {
    int64_t begin = dr_layout_begin(&conv->layout, i), end = dr_layout_begin(&conv->layout, i + 1);
    return (sequence){.length = end - begin,
                      .channels = conv->channels,
                      .width = conv->width,
                      .row = dr_conv_pitch(conv),
                      .x = x + begin * dr_conv_pitch(conv),
                      .initial = initial ? initial + i * (conv->width - 1) * conv->channels : NULL,
                      .weight = weight,
                      .bias = bias};
}

/* x at token t >= -(W - 1) of the sequence, from the state where t < 0 */
static double input(const sequence *s, int64_t t, int64_t c) {
    if (t >= 0) return s->x[t * s->row + c];
    return s->initial ? s->initial[(t + s->width - 1) * s->channels + c] : 0;
}

static double convolved(const sequence *s, int64_t t, int64_t c) {
    double u = s->bias ? s->bias[c] : 0;
    for (int64_t w = 0; w < s->width; w++) u += s->weight[c * s->width + w] * input(s, t - s->width + 1 + w, c);
    return u;
}

static dr_l2_norm unit_of(const dr_conv *conv) {
    return (dr_l2_norm){conv->layout.rows * conv->channels / conv->unit, conv->unit, conv->eps};
}

dr_status dr_reference_conv_forward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight,
                                    const void *bias, const void *initial, void *y_, void *final_) {
    int64_t channels = conv->channels, kept = conv->width - 1;
    for (int64_t i = 0; i < conv->layout.sequences; i++) {
        sequence s = sequence_at(conv, i, x, weight, bias, initial);
        double *y = (double *)y_ + dr_layout_begin(&conv->layout, i) * channels;
        for (int64_t t = 0; t < s.length; t++)
            for (int64_t c = 0; c < channels; c++) y[t * channels + c] = activation(conv->activation, convolved(&s, t, c));
        if (!final_) continue;
        double *final = (double *)final_ + i * kept * channels;
        /* rising, so that final may be initial: row j reads row j + length of the state at the earliest */
        for (int64_t j = 0; j < kept; j++)
            for (int64_t c = 0; c < channels; c++) final[j * channels + c] = input(&s, s.length - kept + j, c);
    }
    if (conv->unit == 0) return DR_OK;
    const dr_l2_norm unit = unit_of(conv);
    return dr_reference_l2_norm_forward(backend, &unit, y_, y_);
}

/* The backward of a convolution whose vectors are divided: through what it divides, made again. */
static dr_status unit_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias) {
    const int64_t count = conv->layout.rows * conv->channels;
    const dr_l2_norm unit = unit_of(conv);
    dr_conv plain = *conv;
    void *made = NULL;
    plain.unit = 0;
    DR_TRY(dr_allocate((size_t)(2 * count + 1) * sizeof(double), "what a convolution divides", &made));
    double *const y = made, *const d = y + count;
    dr_status status = dr_reference_conv_forward(backend, &plain, x, weight, bias, initial, y, NULL);
    if (status == DR_OK) status = dr_reference_l2_norm_backward(backend, &unit, y, d_y, d);
    if (status == DR_OK)
        status = dr_reference_conv_backward(backend, &plain, x, weight, bias, initial, d, d_x, d_weight, d_bias);
    dr_release(made);
    return status;
}

/* The columns in front of x in its rows, which are not its own, are not read: the copy begins at x. */
static dr_status copy_input(const dr_conv *conv, const double *x, void **copy) {
    const int64_t rows = conv->layout.rows, row = dr_conv_pitch(conv);
    DR_TRY(dr_allocate((size_t)(rows * row + 1) * sizeof *x, "a copy of what a convolution read", copy));
    for (int64_t r = 0; r < rows; r++) memcpy((double *)*copy + r * row, x + r * row, (size_t)conv->channels * sizeof *x);
    return DR_OK;
}

dr_status dr_reference_conv_backward(dr_backend *backend, const dr_conv *conv, const void *x, const void *weight,
                                     const void *bias, const void *initial, const void *d_y_, void *d_x_, void *d_weight_,
                                     void *d_bias_) {
    if (conv->unit > 0) return unit_backward(backend, conv, x, weight, bias, initial, d_y_, d_x_, d_weight_, d_bias_);
    int64_t channels = conv->channels, width = conv->width;
    double *d_weight = d_weight_, *d_bias = d_bias_;
    void *copy = NULL; /* of x, where d_x is written over it */
    if (d_x_ == x) DR_TRY(copy_input(conv, x, &copy));
    for (int64_t i = 0; i < conv->layout.sequences; i++) {
        sequence s = sequence_at(conv, i, copy ? copy : x, weight, bias, initial);
        int64_t begin = dr_layout_begin(&conv->layout, i);
        const double *d_y = (const double *)d_y_ + begin * channels;
        double *d_x = d_x_ ? (double *)d_x_ + begin * s.row : NULL;
        for (int64_t t = 0; d_x && t < s.length; t++)
            for (int64_t c = 0; c < channels; c++) d_x[t * s.row + c] = 0;
        for (int64_t t = 0; t < s.length; t++)
            for (int64_t c = 0; c < channels; c++) {
                double d_u = d_y[t * channels + c] * activation_derivative(conv->activation, convolved(&s, t, c));
                if (d_bias) d_bias[c] += d_u;
                for (int64_t w = 0; w < width; w++) {
                    int64_t from = t - width + 1 + w;
                    if (d_weight) d_weight[c * width + w] += d_u * input(&s, from, c);
                    if (d_x && from >= 0) d_x[from * s.row + c] += d_u * s.weight[c * width + w];
                }
            }
    }
    dr_release(copy);
    return DR_OK;
}
