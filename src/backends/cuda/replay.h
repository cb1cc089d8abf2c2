/* Work that comes again and again, as a CUDA graph: entries of the table of operations. */
#ifndef DR_CUDA_REPLAY_H
#define DR_CUDA_REPLAY_H

#include "backends/cuda/cuda.h"

dr_status dr_cuda_replay(dr_backend *backend, dr_status (*run)(void *context), void *context, void **kept);
void dr_cuda_forget(dr_backend *backend, void *kept);

#endif
