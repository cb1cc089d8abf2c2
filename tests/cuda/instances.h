/* Which instances of the kernels ran. */
#ifndef DR_TESTS_CUDA_INSTANCES_H
#define DR_TESTS_CUDA_INSTANCES_H

#include "suites.h"

/* Adds what a backend has launched so far. Threads may call it at once. */
void instances_note(const dr_backend *cuda);
/* Prints what ran. every: prints what did not as well, and fails if that is anything. */
bool instances_report(bool every, fault *what);

#endif
