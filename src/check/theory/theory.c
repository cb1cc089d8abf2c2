/* Running the statements: finds the one asked for, opens the backends, and judges its figures. Each statement draws from its
 * own random stream, so that it is the same alone and among all. */
#include "check/theory/theory.h"

#include "base/error.h"
#include "check/blas.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

static const dr_theory_chapter *const chapters[] = {
    &dr_theory_linear,         &dr_theory_exact,  &dr_theory_gains,        &dr_theory_risk, &dr_theory_stability,
    &dr_theory_preconditioned, &dr_theory_qdelta, &dr_theory_qdelta_error, &dr_theory_eda,  &dr_theory_chunks,
};
enum { CHAPTERS = sizeof chapters / sizeof chapters[0] };

static const dr_theory_statement *find(int index) {
    for (int c = 0; c < CHAPTERS && index >= 0; c++) {
        if (index < chapters[c]->count) return &chapters[c]->statement[index];
        index -= chapters[c]->count;
    }
    return NULL;
}

int dr_theory_count(void) {
    int count = 0;
    for (int c = 0; c < CHAPTERS; c++) count += chapters[c]->count;
    return count;
}

const char *dr_theory_name(int index) {
    const dr_theory_statement *statement = find(index);
    return statement ? statement->name : NULL;
}

void dr_theory_judge(dr_theory_result *result) {
    double figure = result->figure, counter = result->counter_figure;
    result->holds = isfinite(figure) && (result->at_least ? figure >= result->bound : figure <= result->bound);
    result->counter_fails =
        isfinite(counter) && (result->at_least ? counter < result->counter_bound : counter > result->counter_bound);
}

double dr_theory_distance(int count, const double *one, const double *other) {
    double largest = 0;
    for (int i = 0; i < count; i++) largest = worse(largest, fabs(one[i] - other[i]));
    return largest;
}

double dr_theory_relative(int count, const double *one, const double *other) {
    double squares = 0, of_other = 0;
    for (int i = 0; i < count; i++) {
        squares += (one[i] - other[i]) * (one[i] - other[i]);
        of_other += other[i] * other[i];
    }
    return isnan(squares) ? (double)INFINITY : sqrt(squares / of_other);
}

static dr_status compute(const dr_theory_statement *statement, dr_theory *theory, dr_theory_figures *figures) {
    dr_backend_options options = {.threads = 1}; /* the problems are tiny */
    dr_status status;
    DR_GO(dr_backend_open("reference", &options, &theory->reference));
    DR_GO(dr_backend_open("cpu", &options, &theory->cpu));
    DR_GO(statement->compute(theory, statement->variant, figures));
done:
    dr_backend_close(theory->cpu);
    dr_backend_close(theory->reference);
    return status;
}

/* ---- a stack of its own ---------------------------------------------------------------------------------------------- */

/* Statements keep sequences and matrices as values, up to some 0.5 MB: more than the stack of a host's thread may have. */
enum { STACK_BYTES = 4 << 20, MESSAGE_BYTES = 1024 };

typedef struct {
    const dr_theory_statement *statement;
    dr_theory *theory;
    dr_theory_figures *figures;
    dr_status status;
    char message[MESSAGE_BYTES]; /* of the status; the caller's thread has a last error of its own */
} computation;

static void *compute_there(void *argument) {
    computation *self = argument;
    self->status = compute(self->statement, self->theory, self->figures);
    if (self->status != DR_OK) snprintf(self->message, sizeof self->message, "%s", dr_last_error());
    return NULL;
}

/* On a thread that takes none of the host's signals. */
static dr_status compute_apart(const dr_theory_statement *statement, dr_theory *theory, dr_theory_figures *figures) {
    computation self = {.statement = statement, .theory = theory, .figures = figures};
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_attr_init(&attributes);
    if (error == 0) {
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
        if (error == 0) error = pthread_create(&thread, &attributes, compute_there, &self);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    if (error != 0) return dr_fail(DR_ERROR_UNSUPPORTED, "the thread of a statement cannot be made: %s", dr_system_text(error));
    pthread_join(thread, NULL);
    return self.status == DR_OK ? DR_OK : dr_fail(self.status, "%s", self.message);
}

dr_status dr_theory_check(int index, uint64_t seed, dr_theory_result *result) {
    DR_NEED(result);
    const dr_theory_statement *statement = find(index);
    if (!statement)
        return dr_fail(DR_ERROR_ARGUMENT, "there is no statement %d: they are numbered from 0 to %d", index,
                       dr_theory_count() - 1);
    dr_theory theory = {.random = dr_random_start(seed, (uint64_t)index)};
    dr_theory_figures figures = {.statement = (double)NAN, .counter = (double)NAN};
    dr_status status = compute_apart(statement, &theory, &figures);
    const dr_blas *blas;
    if (status == DR_OK && !(isfinite(figures.statement) && isfinite(figures.counter)))
        status = dr_blas_open(&blas); /* without it LAPACK's results are NaN */
    if (status != DR_OK) return dr_fail_in(status, "%s", statement->name);
    *result = (dr_theory_result){.name = statement->name,
                                 .statement = statement->statement,
                                 .source = statement->source,
                                 .measure = statement->measure,
                                 .figure = figures.statement,
                                 .bound = statement->bound,
                                 .at_least = statement->at_least,
                                 .counter_case = statement->counter_case,
                                 .counter_figure = figures.counter,
                                 .counter_bound = statement->counter_bound};
    dr_theory_judge(result);
    return DR_OK;
}
