/* The CPU backend: float32, OpenMP threads, kernels for the instruction set of the machine. */
#ifndef DR_CPU_CPU_H
#define DR_CPU_CPU_H

#include "ops/operations.h"

/* options may be NULL. DR_ERROR_UNSUPPORTED if the machine lacks the instruction set that options name. */
dr_status dr_cpu_open(const dr_backend_options *options, dr_backend **backend);

/* One to plan recurrences with, which calls nothing. */
dr_backend dr_cpu_imagine(const dr_backend_options *options);

#endif
