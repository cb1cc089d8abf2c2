/* Products of matrices as operations ask for them, row by row; products.c has cuBLASLt make them. */
#ifndef DR_CUDA_NETWORK_PRODUCTS_H
#define DR_CUDA_NETWORK_PRODUCTS_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c [rows][columns] = a [rows][depth] b [depth][columns], or added to c; sums are float, c is rounded once. A row of a matrix
 * is a_row (b_row, c_row) elements behind the one before. turned: the matrix lies as its transpose, a [depth][rows] or
 * b [columns][depth]. batch: so many products, whose matrices are a_apart (b_apart, c_apart) elements apart. */
typedef struct {
    int64_t rows, columns, depth;
    const void *a, *b;
    void *c;
    int64_t a_row, b_row, c_row;
    bool a_turned, b_turned, add;
    dr_dtype from, to; /* of a and b; of c: float32 or, for both, bf16 */
    int64_t batch, a_apart, b_apart, c_apart;
    const void *plus; /* a tensor laid out as c, added to the product; the old values of c are not; NULL: none */
} dr_cuda_multiplication;

/* DR_ERROR_UNSUPPORTED with a sentence where the library is missing. */
dr_status dr_cuda_multiply(dr_backend *backend, const dr_cuda_multiplication *product);

/* The library on a device, for a backend's products (state.c). */
struct dr_cuda_products;
dr_status dr_cuda_products_open(const dr_cuda *gpu, struct dr_cuda_products **products);
void dr_cuda_products_close(struct dr_cuda_products *products); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
