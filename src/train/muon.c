/* Muon's step from the operations of a backend. X keeps its shape [rows, columns]; A = X X^T where it is wide and X^T X where
 * it is tall, so that the products are with matrices of the shorter side:
 *
 *     wide   A = linear(X, X)                B X by the gradient of linear with weight X and d_y = B
 *     tall   A = the gradient of a weight    X B = linear(X, B), B being symmetric
 */
#include "train/muon.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>

enum { ITERATIONS = 5 };
static const double A = 3.4445, B = -4.7750, C = 2.0315;
static const double LEAST_SQUARE = 1e-30; /* added to the square of a norm, so that a step of zeros stays zero */
static const double STEP_SIZE = 0.2;

struct dr_muon {
    dr_backend *backend;
    int64_t elements, side;
    void *x, *next;       /* [elements] vectors */
    void *gram, *squared; /* [side, side] vectors */
    void *sums;           /* [side, side] numbers, where vectors are of another type; else NULL */
};

static dr_status check_backend(const dr_backend *backend) {
    static const dr_operation needed[] = {DR_OPERATION_LINEAR, DR_OPERATION_L2_NORM, DR_OPERATION_BOUND, DR_OPERATION_ADD,
                                          DR_OPERATION_MUON};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!dr_supports(backend, needed[i]))
            return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no operation %s, which Muon needs: choose optimizer adamw",
                           dr_backend_name(backend), dr_operation_name(needed[i]));
    return DR_OK;
}

static dr_status allocate(dr_muon *muon) {
    dr_backend *backend = muon->backend;
    const size_t matrix = dr_kind_bytes(backend, DR_VECTOR, muon->elements);
    const size_t square = dr_kind_bytes(backend, DR_VECTOR, muon->side * muon->side);
    const size_t sums = dr_kind_bytes(backend, DR_NUMBER, muon->side * muon->side);
    DR_TRY(dr_backend_allocate(backend, matrix, &muon->x));
    dr_backend_zero(backend, muon->x, matrix); /* it is read in a step that is skipped, though nothing comes of it */
    DR_TRY(dr_backend_allocate(backend, matrix, &muon->next));
    DR_TRY(dr_backend_allocate(backend, square, &muon->gram));
    DR_TRY(dr_backend_allocate(backend, square, &muon->squared));
    return dr_has_copies(backend) ? dr_backend_allocate(backend, sums, &muon->sums) : DR_OK;
}

dr_status dr_muon_create(dr_backend *backend, int64_t elements, int64_t side, dr_muon **muon) {
    void *memory;
    *muon = NULL;
    DR_TRY(check_backend(backend));
    DR_TRY(dr_allocate_zero(sizeof(dr_muon), "Muon", &memory));
    dr_muon *made = memory;
    made->backend = backend, made->elements = elements, made->side = side;
    const dr_status status = allocate(made);
    if (status != DR_OK)
        dr_muon_destroy(made);
    else
        *muon = made;
    return status;
}

void dr_muon_destroy(dr_muon *muon) {
    if (!muon) return;
    dr_backend_free(muon->backend, muon->x);
    dr_backend_free(muon->backend, muon->next);
    dr_backend_free(muon->backend, muon->gram);
    dr_backend_free(muon->backend, muon->squared);
    dr_backend_free(muon->backend, muon->sums);
    dr_release(muon);
}

int64_t dr_muon_bytes(const dr_muon *muon) {
    if (!muon) return 0;
    const size_t squares = 2 * dr_kind_bytes(muon->backend, DR_VECTOR, muon->side * muon->side);
    const size_t sums = muon->sums ? dr_kind_bytes(muon->backend, DR_NUMBER, muon->side * muon->side) : 0;
    return (int64_t)(2 * dr_kind_bytes(muon->backend, DR_VECTOR, muon->elements) + squares + sums);
}

/* y = factor x, count vectors. */
static dr_status scale(dr_backend *backend, double factor, int64_t count, const void *x, void *y) {
    const dr_bound bound = {factor, (double)-INFINITY, (double)INFINITY};
    return backend->ops->bound_forward(backend, &bound, count, x, y);
}

/* gram = X X^T of a wide matrix, X^T X of a tall one. */
static dr_status multiply_by_itself(dr_muon *muon, int64_t rows, int64_t columns) {
    const dr_operations *ops = muon->backend->ops;
    void *sums = muon->sums ? muon->sums : muon->gram;
    if (rows <= columns)
        return ops->linear_forward(muon->backend, &(dr_linear){.rows = rows, .in = columns, .out = rows, .computed = true},
                                   muon->x, muon->x, NULL, muon->gram);
    dr_backend_zero(muon->backend, sums, dr_kind_bytes(muon->backend, DR_NUMBER, columns * columns));
    DR_TRY(ops->linear_backward(muon->backend, &(dr_linear){.rows = rows, .in = columns, .out = columns}, muon->x, muon->gram,
                                muon->x, NULL, false, sums, NULL));
    return muon->sums ? ops->store_vectors(muon->backend, columns * columns, sums, muon->gram) : DR_OK;
}

/* X = a X + (b A + c A^2) X, or X (b A + c A^2). */
static dr_status iterate(dr_muon *muon, int64_t rows, int64_t columns) {
    dr_backend *backend = muon->backend;
    const dr_operations *ops = backend->ops;
    const int64_t side = rows <= columns ? rows : columns;
    void *x = muon->x;
    DR_TRY(multiply_by_itself(muon, rows, columns));
    DR_TRY(ops->linear_forward(backend, &(dr_linear){.rows = side, .in = side, .out = side, .computed = true}, muon->gram,
                               muon->gram, NULL, muon->squared));
    DR_TRY(scale(backend, C, side * side, muon->squared, muon->squared));
    DR_TRY(ops->add(backend, DR_VECTOR, side * side, B, muon->gram, muon->squared));
    if (rows <= columns) {
        DR_TRY(scale(backend, A, rows * columns, x, muon->next));
        DR_TRY(ops->linear_backward(backend, &(dr_linear){.rows = rows, .in = columns, .out = rows}, x, x, muon->squared,
                                    muon->next, true, NULL, NULL));
    } else {
        DR_TRY(ops->linear_forward(backend, &(dr_linear){.rows = rows, .in = columns, .out = columns, .computed = true}, x,
                                   muon->squared, NULL, muon->next));
        DR_TRY(ops->add(backend, DR_VECTOR, rows * columns, A, x, muon->next));
    }
    muon->x = muon->next;
    muon->next = x;
    return DR_OK;
}

dr_status dr_muon_update(dr_muon *muon, const dr_muon_step *step, const dr_control *control, const void *gradient,
                         void *parameter, void *momentum) {
    const dr_operations *ops = muon->backend->ops;
    const int64_t rows = step->rows, columns = step->columns, count = rows * columns;
    const dr_l2_norm unit = {.rows = 1, .dim = count, .eps = LEAST_SQUARE};
    const dr_descent descent = {.learning_rate = step->learning_rate,
                                .factor = STEP_SIZE * sqrt((double)(rows > columns ? rows : columns)),
                                .weight_decay = step->weight_decay};
    DR_TRY(ops->momentum(muon->backend, step->beta, control, count, gradient, momentum, muon->x));
    DR_TRY(ops->l2_norm_forward(muon->backend, &unit, muon->x, muon->x));
    for (int i = 0; i < ITERATIONS; i++) DR_TRY(iterate(muon, rows, columns));
    return ops->descend(muon->backend, &descent, control, count, muon->x, parameter);
}
