/* Weights of the reference in 16 or 8 bits. */
#ifndef DR_BACKENDS_REFERENCE_NARROW_H
#define DR_BACKENDS_REFERENCE_NARROW_H

#include "ops/operations.h"

/* Puts the operations that read such weights in the place of those that read vectors. */
void dr_reference_narrow(dr_operations *operations);

#endif
