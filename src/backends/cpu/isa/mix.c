/* Mixing of rows (backends/reference/mix.c): by factors, and the bonus of a head. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

/* y = x + (z - x) factor; z NULL: zeros */
void DR_ISA_NAME(dr_cpu_blend_forward)(int64_t count, const float *x, const float *z, const float *factor, float *y) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const lanes from = lanes_load_n(x + i, n), to = z ? lanes_load_n(z + i, n) : lanes_zero();
        lanes_store_n(y + i, n, lanes_fma(to - from, lanes_load_n(factor + i, n), from));
    }
}

/* each gradient may be NULL: d_x = d_y (1 - factor), d_z = d_y factor, d_factor = d_y (z - x), added where it says so */
void DR_ISA_NAME(dr_cpu_blend_backward)(int64_t count, const float *x, const float *z, const float *factor, const float *d_y,
                                        float *d_x, bool add_x, float *d_z, bool add_z, float *d_factor, bool add_factor) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t n = lanes_left(count, i);
        const lanes d = lanes_load_n(d_y + i, n), f = lanes_load_n(factor + i, n), part = d * f;
        if (d_x) lanes_store_n(d_x + i, n, (add_x ? lanes_load_n(d_x + i, n) : lanes_zero()) + (d - part));
        if (d_z) lanes_store_n(d_z + i, n, (add_z ? lanes_load_n(d_z + i, n) : lanes_zero()) + part);
        if (d_factor) {
            const lanes way = (z ? lanes_load_n(z + i, n) : lanes_zero()) - lanes_load_n(x + i, n);
            lanes_store_n(d_factor + i, n, lanes_fma(d, way, add_factor ? lanes_load_n(d_factor + i, n) : lanes_zero()));
        }
    }
}

static float agreement(int64_t size, const float *r, const float *k, const float *u) {
    lanes sum = lanes_zero();
    for (int64_t i = 0; i < size; i += LANES) {
        const int64_t n = lanes_left(size, i);
        sum = lanes_fma(lanes_load_n(r + i, n) * lanes_load_n(k + i, n), lanes_load_n(u + i, n), sum);
    }
    return lanes_sum(sum);
}

void DR_ISA_NAME(dr_cpu_bonus_forward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u,
                                       const float *v, float *y) {
    const int64_t key = bonus->key_size, value = bonus->value_size;
    for (int64_t h = 0; h < rows * bonus->heads; h++) {
        const lanes sum = lanes_set(agreement(key, r + h * key, k + h * key, u + h % bonus->heads * key));
        for (int64_t i = 0; i < value; i += LANES) {
            const int64_t n = lanes_left(value, i);
            float *to = y + h * value + i;
            lanes_store_n(to, n, lanes_fma(sum, lanes_load_n(v + h * value + i, n), lanes_load_n(to, n)));
        }
    }
}

/* to += factor x y, unless to is NULL */
static void add_product(int64_t size, lanes factor, const float *x, const float *y, float *to) {
    for (int64_t i = 0; i < size && to; i += LANES) {
        const int64_t n = lanes_left(size, i);
        lanes_store_n(to + i, n, lanes_fma(factor * lanes_load_n(x + i, n), lanes_load_n(y + i, n), lanes_load_n(to + i, n)));
    }
}

void DR_ISA_NAME(dr_cpu_bonus_backward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u,
                                        const float *v, const float *d_y, float *d_r, float *d_k, float *d_u, float *d_v) {
    const int64_t key = bonus->key_size, value = bonus->value_size;
    for (int64_t h = 0; h < rows * bonus->heads; h++) {
        const int64_t at = h * key, shared = h % bonus->heads * key;
        const lanes sum = lanes_set(agreement(key, r + at, k + at, u + shared));
        lanes along = lanes_zero();
        for (int64_t i = 0; i < value; i += LANES) {
            const int64_t n = lanes_left(value, i);
            const lanes d = lanes_load_n(d_y + h * value + i, n);
            along = lanes_fma(d, lanes_load_n(v + h * value + i, n), along);
            if (d_v) lanes_store_n(d_v + h * value + i, n, lanes_fma(sum, d, lanes_load_n(d_v + h * value + i, n)));
        }
        const lanes d_sum = lanes_set(lanes_sum(along));
        add_product(key, d_sum, k + at, u + shared, d_r ? d_r + at : NULL);
        add_product(key, d_sum, r + at, u + shared, d_k ? d_k + at : NULL);
        add_product(key, d_sum, r + at, k + at, d_u ? d_u + shared : NULL);
    }
}
