/* Softmax loss of one row of logits and its gradient: with m the largest, Z = sum exp(l - m), the loss is ln Z - (l[label] -
 * m).
 *
 * Three passes: the largest; the exponentials, kept in d_logits if it is wanted, summed in single precision over PIECE elements
 * and in double beyond; the gradient. A NaN among the logits makes the sum NaN, wherever the first pass put it. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

enum { PIECE = 1024 };

static float largest_of(int64_t count, const float *x) {
    lanes most = lanes_set(-INFINITY);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t n = lanes_left(count, i);
        lanes l = lanes_load_n(x + i, n);
        most = lanes_max(n < LANES ? lanes_select(lanes_first(n), l, most) : l, most);
    }
    return lanes_largest(most);
}

double DR_ISA_NAME(dr_cpu_cross_entropy)(int64_t vocabulary, const float *logits, int32_t label, float factor, uint8_t *hit,
                                         float *d_logits) {
    float most = largest_of(vocabulary, logits), target = logits[label];
    *hit = target == most && (label == 0 || largest_of(label, logits) < most); /* the first of the largest */
    double sum = 0;
    for (int64_t begin = 0; begin < vocabulary; begin += PIECE) {
        int64_t end = vocabulary - begin < PIECE ? vocabulary : begin + PIECE;
        lanes piece = lanes_zero();
        for (int64_t i = begin; i < end; i += LANES) {
            int64_t n = lanes_left(end, i);
            lanes e = lanes_exp(lanes_load_n(logits + i, n) - lanes_set(most));
            if (d_logits) lanes_store_n(d_logits + i, n, e);
            piece = piece + (n < LANES ? lanes_select(lanes_first(n), e, lanes_zero()) : e);
        }
        sum += (double)lanes_sum(piece);
    }
    if (d_logits) {
        lanes share = lanes_set((float)((double)factor / sum));
        for (int64_t i = 0; i < vocabulary; i += LANES) {
            int64_t n = lanes_left(vocabulary, i);
            lanes_store_n(d_logits + i, n, lanes_load_n(d_logits + i, n) * share);
        }
        d_logits[label] -= factor;
    }
    return log(sum) - ((double)target - (double)most);
}
