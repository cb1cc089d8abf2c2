/* In place of network/products.c, which asks cuBLASLt: plain loops, sums in float. */
#include "backends/cuda/network/products.h"

#include "base/half.h"

static float element(const void *at, dr_dtype dtype, int64_t i) {
    return dtype == DR_BF16 ? dr_bf16_to_float(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

static void store(void *at, dr_dtype dtype, int64_t i, float x) {
    if (dtype == DR_BF16)
        ((uint16_t *)at)[i] = dr_bf16_from_float(x);
    else
        ((float *)at)[i] = x;
}

dr_status dr_cuda_multiply(dr_backend *backend, const dr_cuda_multiplication *p) {
    (void)backend;
    for (int64_t of = 0; of < p->batch; of++)
        for (int64_t r = 0; r < p->rows; r++)
            for (int64_t k = 0; k < p->columns; k++) {
                const int64_t c = of * p->c_apart + r * p->c_row + k;
                float sum = p->plus ? element(p->plus, p->to, c) : p->add ? element(p->c, p->to, c) : 0;
                for (int64_t d = 0; d < p->depth; d++) {
                    const int64_t a = of * p->a_apart + (p->a_turned ? d * p->a_row + r : r * p->a_row + d);
                    const int64_t b = of * p->b_apart + (p->b_turned ? k * p->b_row + d : d * p->b_row + k);
                    sum += element(p->a, p->from, a) * element(p->b, p->from, b);
                }
                store(p->c, p->to, c, sum);
            }
    return DR_OK;
}

dr_status dr_cuda_products_open(const dr_cuda *gpu, struct dr_cuda_products **products) {
    (void)gpu, *products = NULL;
    return DR_OK;
}

void dr_cuda_products_close(struct dr_cuda_products *products) {
    (void)products;
}
