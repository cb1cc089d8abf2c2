/* DR_UNROLL(i, count) stands before what is done for every i from 0 on below a constant: straight code, so that arrays indexed
 * by i lie in registers; DR_UNROLL_BY(i, count, step) before what is done for every step-th of them. Loops of any other form
 * say #pragma unroll. */
#ifndef DR_CUDA_UNROLL_CUH
#define DR_CUDA_UNROLL_CUH

#define DR_UNROLL(i, count)          DR_UNROLL_BY (i, count, 1)
#define DR_UNROLL_BY(i, count, step) _Pragma("unroll") for (int i = 0; i < (count); i += (step))

#endif
