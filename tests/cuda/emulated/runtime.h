/* How emulated kernels run (runtime.cpp). */
#ifndef DR_TESTS_CUDA_EMULATED_RUNTIME_H
#define DR_TESTS_CUDA_EMULATED_RUNTIME_H

#ifdef __cplusplus
extern "C" {
#endif

/* The order in which threads take their turns from now on, 0: as they are numbered; other memory before every block, too. */
void emulate_manner(unsigned seed);

#ifdef __cplusplus
}
#endif
#endif
