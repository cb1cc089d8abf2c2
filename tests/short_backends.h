/* The backends of a program of short runs (short_runs.h): the double reference and the CPU with one thread, and the corpus.
 * Give short_begin and short_end to the group of tests. */
#ifndef DR_TESTS_SHORT_BACKENDS_H
#define DR_TESTS_SHORT_BACKENDS_H

#include "short_runs.h"

static dr_backend *reference, *cpu;

static int short_begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    short_write_corpus();
    reference = open_backend("reference", NULL, 1);
    cpu = open_backend("cpu", NULL, 1);
    return 0;
}

static int short_end(void **state) {
    dr_backend_close(reference);
    dr_backend_close(cpu);
    return scratch_end(state);
}

#endif
