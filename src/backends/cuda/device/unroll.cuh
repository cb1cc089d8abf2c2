/* DR_UNROLL(i, count) stands before what is done for every i from 0 on below a constant: straight code, so that arrays indexed
 * by i lie in registers. Loops of any other form say #pragma unroll. */
#ifndef DR_CUDA_UNROLL_CUH
#define DR_CUDA_UNROLL_CUH

#define DR_UNROLL(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)

#endif
