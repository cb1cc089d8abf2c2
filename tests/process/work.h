/* Work of every kind for a backend, through the public headers alone, and one number for all bits of its results. */
#ifndef DR_TESTS_WORK_H
#define DR_TESTS_WORK_H

#include <deltarule/model.h>

/* Forward, backward and decoding of some rules, and a model's loss, gradient and steps. Work for several threads everywhere. 0:
 * something failed, which is written to stderr. */
uint64_t work_on(dr_backend *backend);

/* A backend "cpu" with so many threads, for which it works, closed again; 0: it failed. */
uint64_t work_on_threads(int threads);

#endif
