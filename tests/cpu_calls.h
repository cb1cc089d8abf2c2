/* An operation of the CPU backend against the reference: a call and its tensors. Each call runs on the reference and then, for
 * every instruction set, with 1, 2 and 4 threads: results must be within the tolerances of the reference and the same bits for
 * any number of threads; what is overwritten starts as NaN, what is added to as random numbers, inputs and the memory behind
 * every tensor must stay as they are. */
#ifndef DR_TESTS_CPU_CALLS_H
#define DR_TESTS_CPU_CALLS_H

#include "cpu_backends.h"

/* ||cpu - reference|| / ||reference|| of a whole tensor; the last for gradients of parameters, which are sums over rows that
 * may cancel to a hundredth of their terms */
static const double tolerance_forward = 2e-6, tolerance_backward = 1e-5, tolerance_sum = 1e-4;

enum { MOST_TENSORS = 12, GUARD = 32, DRAWS = 12 };

typedef enum { INPUT, OVERWRITTEN, ADDED } role;

typedef struct {
    const char *name;
    role role;
    int64_t count;
    double *values; /* before the call, each a float; NULL: the tensor is not passed */
} tensor;

typedef struct call {
    const char *name;
    const void *descriptor, *extra;
    double tolerance;
    tensor tensors[MOST_TENSORS];
    dr_status (*run)(const struct call *, dr_backend *, void *const at[MOST_TENSORS]);
} call;

static inline tensor input(const char *name, int64_t count) {
    return (tensor){name, INPUT, count, floats(count, 1)};
}
static inline tensor overwritten(const char *name, int64_t count) {
    return (tensor){name, OVERWRITTEN, count, numbers_filled(count, NAN)};
}
static inline tensor added(const char *name, int64_t count) {
    return (tensor){name, ADDED, count, floats(count, 1)};
}
static inline tensor accumulated(const char *name, int64_t count, bool accumulate) {
    return accumulate ? added(name, count) : overwritten(name, count);
}
/* a tensor that is sometimes not passed */
static inline tensor maybe(tensor t) {
    if (number_flip()) t.values = NULL;
    return t;
}

/* Runs the call on copies of its tensors; after [MOST_TENSORS] are its tensors after it, as doubles. */
static inline void run_on(const call *c, dr_backend *backend, double *after[MOST_TENSORS]) {
    const dr_operations *ops = backend->ops;
    size_t size = dr_dtype_size(ops->dtype);
    void *at[MOST_TENSORS] = {NULL};
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *t = &c->tensors[i];
        after[i] = NULL;
        if (!t->values) continue;
        assert_int_equal(ops->allocate(backend, (size_t)t->count * size + GUARD, &at[i]), DR_OK);
        assert_int_equal(ops->upload(backend, at[i], t->values, DR_F64, t->count), DR_OK);
        memset((char *)at[i] + (size_t)t->count * size, 0x5a, GUARD);
    }
    assert_int_equal(c->run(c, backend, at), DR_OK);
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *t = &c->tensors[i];
        if (!at[i]) continue;
        for (int j = 0; j < GUARD; j++)
            if (((char *)at[i])[(size_t)t->count * size + (size_t)j] != 0x5a)
                fail_msg("%s on %s writes behind %s", c->name, backend->isa, t->name);
        after[i] = numbers_block(t->count, sizeof(double));
        assert_int_equal(ops->download(backend, after[i], DR_F64, at[i], t->count), DR_OK);
        if (t->role == INPUT) assert_same_bits(after[i], t->values, t->count);
        ops->free(backend, at[i]);
    }
}

static inline void assert_near(const call *c, const tensor *t, const char *isa, const double *got, const double *wanted) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < t->count; i++) {
        double difference = got[i] == wanted[i] ? 0 : got[i] - wanted[i];
        error += difference * difference;
        norm += isfinite(wanted[i]) ? wanted[i] * wanted[i] : 0;
    }
    double tolerance = c->tolerance == tolerance_backward && t->role == ADDED ? tolerance_sum : c->tolerance;
    /* not <: NaN must fail. 1e-12: a sum of numbers of size 1 may cancel */
    if (!(sqrt(error) <= tolerance * sqrt(norm) + 1e-12 * sqrt((double)t->count)))
        fail_msg("%s on %s: %s [%lld] is off by %g of %g", c->name, isa, t->name, (long long)t->count, sqrt(error), sqrt(norm));
}

static inline void check(const call *c) {
    double *wanted[MOST_TENSORS], *first[MOST_TENSORS], *other[MOST_TENSORS];
    run_on(c, reference, wanted);
    for (int isa = 0; isa < isas; isa++) {
        run_on(c, cpu[isa][0], first);
        for (int i = 0; i < MOST_TENSORS; i++)
            if (first[i]) assert_near(c, &c->tensors[i], cpu[isa][0]->isa, first[i], wanted[i]);
        for (int threads = 1; threads < THREADS; threads++) {
            run_on(c, cpu[isa][threads], other);
            for (int i = 0; i < MOST_TENSORS; i++)
                if (first[i] && c->tensors[i].count > 0 && memcmp(first[i], other[i], (size_t)c->tensors[i].count * 8))
                    fail_msg("%s on %s: %s with %d threads is not what it is with one", c->name, cpu[isa][0]->isa,
                             c->tensors[i].name, thread_counts[threads]);
        }
    }
}

#endif
