/* Gradients of one operation against differences. It is described once: its operands, how its forward and its backward are
 * called. Then every gradient is held against differences of <d_y, y>; a gradient that is added to starts from random numbers
 * and one that is overwritten from NaN; and each gradient asked for alone must have the same bits as beside the others. */
#ifndef DR_TESTS_OPERATION_GRADIENTS_H
#define DR_TESTS_OPERATION_GRADIENTS_H

#include "differences.h"
#include "numbers.h"

enum { MAX_OPERANDS = 6 };

typedef struct {
    const char *name;
    double *at; /* NULL: the operation is called without it */
    int64_t count;
    bool added; /* its gradient is added to */
} operand;

typedef struct operation {
    const void *descriptor, *extra;
    operand operands[MAX_OPERANDS];
    double *y, *d_y; /* [count] */
    int64_t count;
    bool accumulate;
    dr_status (*forward)(const struct operation *);
    dr_status (*backward)(const struct operation *, double *const gradients[MAX_OPERANDS]);
} operation;

static inline double weighted_output(void *context) {
    const operation *o = context;
    double sum = 0;
    assert_int_equal(o->forward(o), DR_OK);
    for (int64_t i = 0; i < o->count; i++) sum += o->d_y[i] * o->y[i];
    return sum;
}

static inline void check_operation(operation *o) {
    double *before[MAX_OPERANDS], *after[MAX_OPERANDS];
    o->y = numbers_filled(o->count, NAN);
    if (!o->d_y) o->d_y = numbers_normal(o->count, 1);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        const operand *x = &o->operands[i];
        before[i] = !x->at ? NULL : x->added ? numbers_normal(x->count, 1) : numbers_filled(x->count, NAN);
        after[i] = x->at ? numbers_copied(before[i], x->count) : NULL;
    }
    assert_int_equal(o->backward(o, after), DR_OK);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        const operand *x = &o->operands[i];
        if (!x->at) continue;
        double *alone[MAX_OPERANDS] = {NULL}, *gradient = numbers_copied(after[i], x->count);
        for (int64_t j = 0; x->added && j < x->count; j++) gradient[j] -= before[i][j];
        assert_gradient(x->name, weighted_output, o, x->at, x->count, gradient, 1e-7);
        alone[i] = before[i];
        assert_int_equal(o->backward(o, alone), DR_OK);
        assert_same_bits(alone[i], after[i], x->count);
    }
}

#endif
