/* Forms on backend cuda, on a GPU and where its kernels run on the host: what is made of inputs against the reference, and what
 * only says where numbers lie against the same numbers dense, bit for bit. */
#ifndef DR_TESTS_CUDA_FORMED_H
#define DR_TESTS_CUDA_FORMED_H

#include "../recurrence/problem.h"

typedef struct {
    dr_backend *tested, *reference;
    bool (*takes)(const dr_rule *rule);
    bool brief;               /* few rules, which have every kernel, on small heads */
    bool saves;               /* engines of its own save states, which checkpoints are read out of */
    double forward, backward; /* errors that are allowed beside the reference */
    long checks;
    double worst; /* error over what is allowed */
    fault *what;
} formed_trials;

bool formed_calls_hold(formed_trials *t, uint64_t seed);

#endif
