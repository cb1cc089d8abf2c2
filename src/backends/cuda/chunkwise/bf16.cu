#include "backends/cuda/chunkwise/kernels.h"
#include "backends/cuda/chunkwise/launch.cuh"

DR_CHUNKWISE_KERNELS(__nv_bfloat16, bf16)
