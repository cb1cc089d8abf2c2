/* What the tests of the CPU backend's operations share: the reference and one CPU backend for every instruction set of the
 * machine and 1, 2 and 4 threads; and sizes. */
#ifndef DR_TESTS_CPU_BACKENDS_H
#define DR_TESTS_CPU_BACKENDS_H

#include "backends/cpu/cpu.h"
#include "backends/reference/reference.h"
#include "base/cpu.h"
#include "numbers.h"

#include <math.h>
#include <stdio.h>

enum { ISAS = 3, THREADS = 3 };

static const int thread_counts[THREADS] = {1, 2, 4};
static dr_backend *reference, *cpu[ISAS][THREADS];
static int isas; /* how many the machine has: portable, avx2, avx512; or portable, neon */

/* Small sizes, sizes about the vectors', and now and then one that threads share out. */
static inline int64_t size_drawn(int64_t large) {
    static const int64_t edges[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33};
    int64_t kind = number_between(0, 3);
    if (kind == 0) return number_between(large / 2, large);
    return kind == 1 ? number_between(1, 12) : edges[number_between(0, sizeof edges / sizeof *edges - 1)];
}

/* normal numbers that single precision holds */
static inline double *floats(int64_t count, double deviation) {
    double *values = numbers_normal(count, deviation);
    for (int64_t i = 0; i < count; i++) values[i] = (double)(float)values[i];
    return values;
}

static inline int open_backends(void **state) {
    (void)state;
#ifdef __aarch64__
    static const char *const names[] = {"portable", "neon"};
    isas = 2;
#else
    static const char *const names[ISAS] = {"portable", "avx2", "avx512"};
    dr_cpu_features features = dr_cpu_detect();
    isas = features.avx512 ? 3 : features.avx2 ? 2 : 1;
    if (isas < ISAS) printf("this machine has no %s: not tested\n", names[isas]);
#endif
    if (dr_reference_open(NULL, &reference) != DR_OK) return 1;
    for (int isa = 0; isa < isas; isa++)
        for (int i = 0; i < THREADS; i++)
            if (dr_cpu_open(&(dr_backend_options){.isa = names[isa], .threads = thread_counts[i]}, &cpu[isa][i]) != DR_OK)
                return 1;
    return 0;
}

static inline int close_backends(void **state) {
    (void)state;
    reference->ops->close(reference);
    for (int isa = 0; isa < isas; isa++)
        for (int i = 0; i < THREADS; i++) cpu[isa][i]->ops->close(cpu[isa][i]);
    return 0;
}

#endif
