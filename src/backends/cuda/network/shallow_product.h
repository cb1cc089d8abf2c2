/* Products of many short rows with weights and a bias, in bf16 (shallow_product.cu). */
#ifndef DR_CUDA_NETWORK_SHALLOW_PRODUCT_H
#define DR_CUDA_NETWORK_SHALLOW_PRODUCT_H

#include "backends/cuda/cuda.h"

bool dr_cuda_shallow_product_takes(const dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                   const void *bias, const void *y);
dr_status dr_cuda_shallow_product(const dr_cuda *gpu, const dr_linear *linear, const void *x, const void *weight,
                                  const void *bias, void *y);

#endif
