/* The elementwise part of softmax attention, on a block of scores: rows of queries, columns of keys. The products around it are
 * those of product.c.
 *
 * A row's result must not depend on how keys were cut into blocks or which rows stand beside it. A block of which a row sees
 * nothing leaves its maximum, its sum and its output as they are, bit for bit: weights are exactly 0 where a key is not seen.
 */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

/* The columns [begin, end) that a row sees. */
typedef struct {
    int64_t begin, end;
} seen;

static seen seen_by(const dr_cpu_scores *s, int64_t row) {
    const int64_t own = s->first + row / s->group; /* the column of the row's own token */
    seen range = {s->window > 0 && own >= s->window ? own - s->window + 1 : 0, own + 1};
    if (range.end > s->columns) range.end = s->columns;
    if (range.end < range.begin) range.end = range.begin; /* nothing */
    return range;
}

/* x [columns] outside the range */
static void fill_outside(float *x, int64_t columns, seen range, float value) {
    const int64_t begin = range.begin < columns ? range.begin : columns;
    for (int64_t j = 0; j < begin; j++) x[j] = value;
    for (int64_t j = range.end; j < columns; j++) x[j] = value;
}

static void scale_row(int64_t size, float factor, float *x) {
    const lanes f = lanes_set(factor);
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t n = lanes_left(size, i);
        lanes_store_n(x + i, n, lanes_load_n(x + i, n) * f);
    }
}

/* Scores become weights exp(score - largest), and what was summed before is scaled to the new largest. */
void DR_ISA_NAME(dr_cpu_attention_softmax)(const dr_cpu_scores *s, float *largest, float *sum, int64_t size, float *o) {
    for (int64_t i = 0; i < s->rows; i++) {
        float *x = s->scores + i * DR_CPU_ATTENTION_KEYS;
        fill_outside(x, s->columns, seen_by(s, i), -INFINITY);
        lanes most = lanes_set(largest[i]), total = lanes_zero();
        for (int64_t j = 0; j < s->columns; j += LANES) most = lanes_max(most, lanes_load(x + j));
        const float now = lanes_largest(most), base = now == -INFINITY ? 0.0f : now;
        for (int64_t j = 0; j < s->columns; j += LANES) {
            const lanes weight = lanes_exp(lanes_load(x + j) - lanes_set(base));
            lanes_store(x + j, weight);
            total = total + weight;
        }
        if (now != largest[i]) {
            const float factor = lanes_sum(lanes_exp(lanes_set(largest[i] - base))) / LANES;
            sum[i] *= factor;
            scale_row(size, factor, o + i * size);
        }
        sum[i] += lanes_sum(total);
        largest[i] = now;
    }
}

void DR_ISA_NAME(dr_cpu_attention_finish)(int64_t rows, int64_t size, const float *largest, const float *sum, float *o,
                                          float *log_sums) {
    for (int64_t i = 0; i < rows; i += LANES) {
        const int64_t n = lanes_left(rows, i);
        lanes_store_n(log_sums + i, n, lanes_load_n(largest + i, n) + lanes_log(lanes_load_n(sum + i, n)));
    }
    for (int64_t i = 0; i < rows; i++) scale_row(size, 1.0f / sum[i], o + i * size);
}

/* Scores become p = exp(score - log_sum), and d_p what the scores' gradient is but for the scale, p (d_p - along). */
void DR_ISA_NAME(dr_cpu_attention_gradient)(const dr_cpu_scores *s, const float *log_sums, const float *along, float *d_p) {
    for (int64_t i = 0; i < s->rows; i++) {
        float *x = s->scores + i * DR_CPU_ATTENTION_KEYS, *d = d_p + i * DR_CPU_ATTENTION_KEYS;
        const lanes log_sum = lanes_set(log_sums[i]), mean = lanes_set(along[i]);
        for (int64_t j = 0; j < s->columns; j += LANES) {
            const int64_t n = lanes_left(s->columns, j);
            const lanes p = lanes_exp(lanes_load_n(x + j, n) - log_sum);
            lanes_store_n(x + j, n, p);
            lanes_store_n(d + j, n, p * (lanes_load_n(d + j, n) - mean));
        }
        fill_outside(x, s->columns, seen_by(s, i), 0.0f);
        fill_outside(d, s->columns, seen_by(s, i), 0.0f);
    }
}

/* `rows` rows that see the same columns */
static inline __attribute__((always_inline)) void mix_rows(const int rows, const float *p, seen range, const float *v,
                                                           int64_t v_row, int64_t size, float *o) {
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t n = lanes_left(size, i);
        lanes sum[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[r] = lanes_zero();
        for (int64_t j = range.begin; j < range.end; j++) {
            const lanes value = lanes_load_n(v + j * v_row + i, n);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r] = lanes_fma(lanes_set(p[r * DR_CPU_ATTENTION_KEYS + j]), value, sum[r]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) lanes_store_n(o + r * size + i, n, lanes_load_n(o + r * size + i, n) + sum[r]);
    }
}

/* The same sums in the same order as the product makes them, of the seen columns alone: those not seen, with their weights 0,
 * would add nothing but where a value is not finite. */
void DR_ISA_NAME(dr_cpu_attention_mix)(const dr_cpu_scores *s, const float *v, int64_t v_row, int64_t size, float *o) {
    for (int64_t i = 0; i < s->rows;) {
        const float *p = s->scores + i * DR_CPU_ATTENTION_KEYS;
        const int64_t same = s->group - i % s->group; /* rows of this token from here on */
        const int rows = same >= 4 ? 4 : same >= 2 ? 2 : 1;
        switch (rows) {
        case 4:
            mix_rows(4, p, seen_by(s, i), v, v_row, size, o + i * size);
            break;
        case 2:
            mix_rows(2, p, seen_by(s, i), v, v_row, size, o + i * size);
            break;
        case 1:
            mix_rows(1, p, seen_by(s, i), v, v_row, size, o + i * size);
            break;
        }
        i += rows;
    }
}

bool DR_ISA_NAME(dr_cpu_attention_finite)(int64_t rows, int64_t size, const float *v, int64_t v_row) {
    lanes sum = lanes_zero();
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < size; i += LANES)
            sum = lanes_fma(lanes_load_n(v + r * v_row + i, lanes_left(size, i)), lanes_zero(), sum);
    return lanes_sum(sum) == 0.0f;
}
