/* The papers' checkable statements, computed on random data with this library's engines.
 *
 * A statement is a theorem, a lemma, an equation or a remark of a paper, or a misprint: then it says that the corrected form
 * is right. Its figure is one number, and it holds if that is at most (or at least) a bound. Beside it stands a counter-case:
 * the same figure where an assumption is violated, or of the form as printed, which must miss the bound by far. So a check
 * that could not fail shows. docs/papers.md gives the equations.
 *
 * Threads. All functions of this header may be called at once from any number of threads: each check opens backends and draws
 * data of its own. It computes on a thread that it makes and ends, whatever stack the caller has. */
#ifndef DELTARULE_THEORY_H
#define DELTARULE_THEORY_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;      /* "pdn.theorem-3.1"; what is before the point is the paper */
    const char *statement; /* a sentence */
    const char *source;    /* paper, and equation or section */
    const char *measure;   /* what the figure is: "largest difference" */
    double figure, bound;
    bool at_least; /* whether the figure must be at least the bound, not at most */
    bool holds;
    const char *counter_case; /* what is different there */
    double counter_figure, counter_bound;
    bool counter_fails; /* as it must: the figure is on the other side of counter_bound, which is no nearer than the bound */
} dr_theory_result;

/* The statements, paper by paper; the name of one, or NULL beyond the last. */
DR_API int dr_theory_count(void);
DR_API const char *dr_theory_name(int index);

/* Computes a statement and its counter-case. The same seed draws the same data. A statement that does not hold is a result, not
 * an error; DR_ERROR_ARGUMENT for an index that is out of range, and errors of the backends. Some statements solve equations or
 * find eigenvalues by LAPACK, which OpenBLAS contains: DR_ERROR_UNSUPPORTED where it cannot be opened. */
DR_API dr_status dr_theory_check(int index, uint64_t seed, dr_theory_result *result);

#ifdef __cplusplus
}
#endif
#endif
