/* What must hold of every trial:
 *
 *     reference = CPU token by token = CPU chunkwise (planned and given chunk), forward and backward = decode, on every
 *     instruction set of the machine; split = whole, forward and backward; packed = separate, another number of threads,
 * resuming from a chunk's boundary: bit for bit */
#ifndef DR_TESTS_RECURRENCE_CHECKS_H
#define DR_TESTS_RECURRENCE_CHECKS_H

#include "trial.h"

enum { ISAS = 3, MOST_THREADS = 4 };

typedef struct {
    dr_backend *reference, *cpu[ISAS][MOST_THREADS + 1]; /* by instruction set and threads, from 1 */
    int isas;                                            /* that the machine has */
    double worst;                                        /* error so far, in units of what is allowed */
    /* For tests of the checks themselves: changes what an engine gave to the named check ("recurrent", "chunkwise", "decode",
     * "split", "threads", "packed", "resumed"). NULL: nothing. */
    void (*tamper)(const trial *t, const problem *p, const char *check, result *r);
} machine;

/* Ends the program with a message if a backend cannot be opened. */
void machine_open(machine *m);
void machine_close(machine *m);

/* False with a sentence if a property does not hold. */
bool trial_holds(const trial *t, machine *m, fault *what);

#endif
