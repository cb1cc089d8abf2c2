/* An operation on the reference that stores vectors in 16 bits and, with the same stored values, in double: a vector that it
 * writes must be the double's result rounded once to the nearest by the plain rule below, a number the same bits, and what it
 * only reads must stay. */
#ifndef DR_TESTS_ROUNDING_H
#define DR_TESTS_ROUNDING_H

#include "numbers.h"
#include "ops/operations.h"

#include <math.h>

#include <deltarule/deltarule.h>

static dr_backend *exact, *stored;

enum { DRAWS = 6, MOST_TENSORS = 10 };

/* value to so many significant bits, ties to even, least exponent as the type has it: by exact steps in double */
static inline double rounded(double value) {
    const int bits = stored->storage == DR_BF16 ? 8 : 11, least = stored->storage == DR_BF16 ? -125 : -13;
    int exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    double unit = ldexp(1, (exponent < least ? least : exponent) - bits);
    return nearbyint(value / unit) * unit; /* the default mode takes ties to even */
}

/* ---- operations ----------------------------------------------------------------------------------------------------- */

typedef enum { READ, WRITTEN, ADDED } role;
typedef struct {
    const char *name;
    dr_kind kind;
    role role;
    int64_t count;
    double *values;
} tensor;

typedef struct call {
    const char *name;
    const void *descriptor;
    bool flag;
    tensor tensors[MOST_TENSORS];
    dr_status (*run)(const struct call *, dr_backend *, void *const at[MOST_TENSORS]);
} call;

/* normal numbers, of which those of a vector are stored ones */
static inline double *drawn(dr_kind kind, int64_t count) {
    double *values = numbers_normal(count, 1);
    for (int64_t i = 0; i < count && kind == DR_VECTOR; i++) values[i] = rounded(values[i]);
    return values;
}

static inline tensor make(const char *name, dr_kind kind, role is, int64_t count) {
    return (tensor){name, kind, is, count, is == WRITTEN ? numbers_filled(count, NAN) : drawn(kind, count)};
}
#define VECTOR(name, count)            make(name, DR_VECTOR, READ, count)
#define NUMBER(name, count)            make(name, DR_NUMBER, READ, count)
#define TO_VECTOR(name, count)         make(name, DR_VECTOR, WRITTEN, count)
#define TO_NUMBER(name, count)         make(name, DR_NUMBER, WRITTEN, count)
#define ADD_VECTOR(name, added, count) make(name, DR_VECTOR, (added) ? ADDED : WRITTEN, count)
#define ADD_NUMBER(name, count)        make(name, DR_NUMBER, ADDED, count)

static inline void run_on(const call *c, dr_backend *backend, double *after[MOST_TENSORS]) {
    void *at[MOST_TENSORS] = {NULL};
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *t = &c->tensors[i];
        if (!t->name) continue;
        assert_int_equal(dr_backend_allocate(backend, dr_kind_bytes(backend, t->kind, t->count), &at[i]), DR_OK);
        assert_int_equal(dr_backend_upload_as(backend, at[i], dr_kind_dtype(backend, t->kind), t->values, DR_F64, t->count),
                         DR_OK);
    }
    assert_int_equal(c->run(c, backend, at), DR_OK);
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *t = &c->tensors[i];
        if (!t->name) continue;
        after[i] = numbers_block(t->count, sizeof(double));
        assert_int_equal(dr_kind_download(backend, t->kind, after[i], DR_F64, at[i], t->count), DR_OK);
        dr_backend_free(backend, at[i]);
    }
}

static inline void check(const call *c) {
    double *wanted[MOST_TENSORS], *found[MOST_TENSORS];
    run_on(c, exact, wanted);
    run_on(c, stored, found);
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *t = &c->tensors[i];
        for (int64_t j = 0; t->name && j < t->count; j++) {
            double value = t->kind == DR_VECTOR && t->role != READ ? rounded(wanted[i][j]) : wanted[i][j];
            if (memcmp(&value, &found[i][j], sizeof value) != 0)
                fail_msg("%s: %s[%lld] is %a and must be %a", c->name, t->name, (long long)j, found[i][j], value);
        }
    }
}

#define OPERATION(name) static dr_status name(const call *c, dr_backend *b, void *const at[])

static inline int open_stored(dr_dtype dtype) {
    const dr_backend_options options = {.dtype = dtype};
    return dr_backend_open("reference", NULL, &exact) == DR_OK && dr_backend_open("reference", &options, &stored) == DR_OK ? 0
                                                                                                                           : 1;
}
static inline int open_bf16(void **state) {
    (void)state;
    return open_stored(DR_BF16);
}
static inline int open_f16(void **state) {
    (void)state;
    return open_stored(DR_F16);
}
static inline int close_both(void **state) {
    (void)state;
    dr_backend_close(exact), dr_backend_close(stored);
    return 0;
}

#endif
