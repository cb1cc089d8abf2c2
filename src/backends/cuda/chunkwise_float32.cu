#include "backends/cuda/chunkwise_kernels.h"
#include "backends/cuda/chunkwise_launch.cuh"

DR_CHUNKWISE_KERNELS(float, float32)
