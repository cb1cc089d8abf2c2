/* The CUDA backend: recurrences, their gradients and decoding on an NVIDIA GPU. */
#ifndef DR_CUDA_OPEN_H
#define DR_CUDA_OPEN_H

#include "ops/operations.h"

/* options may be NULL. DR_ERROR_UNSUPPORTED with a sentence if the machine has no driver, no such device, or one that the
 * kernels were not built for. */
dr_status dr_cuda_open(const dr_backend_options *options, dr_backend **backend);

/* One to plan recurrences with, which calls nothing and needs no GPU. */
dr_backend dr_cuda_imagine(const dr_backend_options *options);

#endif
