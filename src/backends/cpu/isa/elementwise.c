/* Operations on single elements: SwiGLU, adding, AdamW; and the sum of squares. All of them are bound by memory traffic. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

void DR_ISA_NAME(dr_cpu_swiglu_forward)(int64_t count, const float *gate, const float *up, float *y) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes_store_n(y + i, n, lanes_silu(lanes_load_n(gate + i, n)) * lanes_load_n(up + i, n));
    }
}

void DR_ISA_NAME(dr_cpu_swiglu_backward)(int64_t count, const float *gate, const float *up, const float *d_y, float *d_gate,
                                         float *d_up) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes g = lanes_load_n(gate + i, n), u = lanes_load_n(up + i, n), d = lanes_load_n(d_y + i, n);
        lanes tail = lanes_sigmoid_tail(g), s = lanes_sigmoid_of_tail(g, tail);
        if (d_up) lanes_store_n(d_up + i, n, d * g * s);
        if (d_gate) lanes_store_n(d_gate + i, n, d * u * lanes_fma(g, lanes_sigmoid_slope_of_tail(tail), s));
    }
}

void DR_ISA_NAME(dr_cpu_add)(int64_t count, float factor, const float *x, float *y) {
    lanes f = lanes_set(factor);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes_store_n(y + i, n, lanes_fma(f, lanes_load_n(x + i, n), lanes_load_n(y + i, n)));
    }
}

/* mhat / (sqrt vhat + eps) with mhat = m / (1 - beta1^t), vhat = v / (1 - beta2^t); the two divisors are made in double */
void DR_ISA_NAME(dr_cpu_adamw)(const dr_adamw *adamw, const dr_adamw_run *run, const dr_control *control, int64_t count,
                               const float *gradient, float *parameter, float *m, float *v) {
    double first = 1 - pow(adamw->beta1, (double)control->updates), second = 1 - pow(adamw->beta2, (double)control->updates);
    lanes scale = lanes_set((float)control->scale), eps = lanes_set((float)adamw->eps);
    lanes keep_m = lanes_set((float)adamw->beta1), take_m = lanes_set((float)(1 - adamw->beta1));
    lanes keep_v = lanes_set((float)adamw->beta2), take_v = lanes_set((float)(1 - adamw->beta2));
    lanes step = lanes_set((float)(run->learning_rate / first)), root = lanes_set((float)(1 / sqrt(second)));
    lanes decay = lanes_set((float)(run->learning_rate * run->weight_decay));
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes g = lanes_load_n(gradient + i, n) * scale, p = lanes_load_n(parameter + i, n);
        lanes mean = lanes_fma(keep_m, lanes_load_n(m + i, n), take_m * g);
        lanes square = lanes_fma(keep_v, lanes_load_n(v + i, n), take_v * g * g);
        lanes_store_n(m + i, n, mean);
        lanes_store_n(v + i, n, square);
        lanes direction = mean / lanes_fma(lanes_sqrt(square), root, eps);
        lanes_store_n(parameter + i, n, p - lanes_fma(step, direction, decay * p));
    }
}

/* 16 sums on every instruction set, so that all of them give the same bits */
double DR_ISA_NAME(dr_cpu_sum_squares)(int64_t count, const float *x) {
    double sums[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++) sums[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < count; i++, j++) sums[j] += (double)x[i] * (double)x[i];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}
