/* One factor a head, y = f x, and its gradient d_f = sum d_y x over the head. */
#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa/lanes.h"

void DR_ISA_NAME(dr_cpu_scale_forward)(int64_t heads, int64_t dim, const float *factor, const float *x, float *y,
                                       bool accumulate) {
    for (int64_t h = 0; h < heads; h++, x += dim, y += dim) {
        lanes f = lanes_set(factor[h]);
        for (int64_t i = 0; i < dim; i += LANES) {
            int64_t n = lanes_left(dim, i);
            lanes before = accumulate ? lanes_load_n(y + i, n) : lanes_zero();
            lanes_store_n(y + i, n, lanes_fma(f, lanes_load_n(x + i, n), before));
        }
    }
}

/* d_factor [heads] is overwritten; it and d_x may be NULL */
void DR_ISA_NAME(dr_cpu_scale_backward)(int64_t heads, int64_t dim, const float *factor, const float *x, const float *d_y,
                                        float *d_factor, float *d_x, bool accumulate) {
    for (int64_t h = 0; h < heads; h++, x += dim, d_y += dim) {
        lanes f = lanes_set(factor[h]), sum = lanes_zero();
        float *to = d_x ? d_x + h * dim : NULL;
        for (int64_t i = 0; i < dim; i += LANES) {
            int64_t n = lanes_left(dim, i);
            lanes d = lanes_load_n(d_y + i, n);
            sum = lanes_fma(d, lanes_load_n(x + i, n), sum);
            if (to) lanes_store_n(to + i, n, lanes_fma(f, d, accumulate ? lanes_load_n(to + i, n) : lanes_zero()));
        }
        if (d_factor) d_factor[h] = lanes_sum(sum);
    }
}
