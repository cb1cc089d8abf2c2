/* Products of few rows with weights, in bf16 (rows_product.cu). */
#ifndef DR_CUDA_NETWORK_ROWS_PRODUCT_H
#define DR_CUDA_NETWORK_ROWS_PRODUCT_H

#include "backends/cuda/cuda.h"

enum { DR_CUDA_FEW_ROWS = 64 }; /* more are faster by cuBLASLt */

/* Whether it takes a layer; y, bias and plus may begin anywhere. */
bool dr_cuda_rows_product_takes(const dr_backend *backend, const dr_linear *linear, const void *x, const void *weight);
/* y [rows, out], of which each row has the same bits whatever the others are; bias and plus as in the operation linear. */
dr_status dr_cuda_rows_product(const dr_cuda *gpu, const dr_linear *linear, const void *x, const void *weight, const void *bias,
                               void *y);

#endif
