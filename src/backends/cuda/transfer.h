/* Bytes between host and GPU through page-locked memory, beside the work of both: a batch goes up while the kernels before it
 * run, and the numbers of a step come down while the next step is under way. */
#ifndef DR_CUDA_TRANSFER_H
#define DR_CUDA_TRANSFER_H

#include "backends/cuda/cuda.h"

/* The largest copy that goes this way, bytes. */
enum { DR_CUDA_MOST_STAGED = 1 << 24 };

dr_status dr_cuda_transfers_open(dr_cuda *gpu);
void dr_cuda_transfers_close(dr_cuda *gpu); /* nothing is under way */

/* Entries of the table of operations. put returns when `from` was read, and does not wait for the copy where it is staged. */
dr_status dr_cuda_put(dr_backend *backend, void *to, const void *from, size_t bytes);
dr_status dr_cuda_fetch(dr_backend *backend, const void *from, size_t bytes, void **transfer);
dr_status dr_cuda_fetched(dr_backend *backend, void *transfer, void *to);

#endif
