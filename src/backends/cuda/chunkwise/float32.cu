#include "backends/cuda/chunkwise/launch.cuh"
#include "backends/cuda/chunkwise/stages.h"

DR_CHUNKWISE_KERNELS(float, float32)
