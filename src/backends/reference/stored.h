/* The table of the reference whose vectors are stored in 16 bits. */
#ifndef DR_BACKENDS_REFERENCE_STORED_H
#define DR_BACKENDS_REFERENCE_STORED_H

#include "ops/operations.h"

extern const dr_operations dr_reference_stored_operations;

#endif
