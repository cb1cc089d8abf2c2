/* Symmetric positive definite systems of a head's size, in double: their condition grows with the length of a sequence over the
 * ridge, and what float32 would lose in the factors would be lost in every query. The loops run along rows of the upper
 * triangle, which a compiler turns into vectors without changing the order of a sum. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

/* M = L D L^T in place: D on the diagonal, D L^T above it. What lies below is not read. */
static void factorize(int64_t n, double *matrix) {
    for (int64_t j = 0; j < n; j++) {
        const double *pivot = matrix + j * n;
        for (int64_t i = j + 1; i < n; i++) {
            const double factor = pivot[i] / pivot[j];
            double *row = matrix + i * n;
            for (int64_t c = i; c < n; c++) row[c] -= factor * pivot[c];
        }
    }
}

void dr_system_solve(int64_t n, double *matrix, double *x) {
    factorize(n, matrix);
    for (int64_t j = 0; j < n; j++) {
        const double *row = matrix + j * n;
        x[j] /= row[j];
        for (int64_t i = j + 1; i < n; i++) x[i] -= row[i] * x[j];
    }
    for (int64_t j = n - 1; j >= 0; j--) {
        const double *row = matrix + j * n;
        double sum = 0;
        for (int64_t i = j + 1; i < n; i++) sum += row[i] * x[i];
        x[j] -= sum / row[j];
    }
}

/* ---- conjugate gradients --------------------------------------------------------------------------------------------- */

static double dot(int64_t n, const double *x, const double *y) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* y = M x by columns, which for a symmetric M are rows */
static void multiply(int64_t n, const double *matrix, const double *x, double *y) {
    memset(y, 0, (size_t)n * sizeof(double));
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++) y[i] += x[j] * matrix[j * n + i];
}

/* A step without curvature is no step. */
static double quotient(double numerator, double denominator) {
    return denominator > 0 ? numerator / denominator : 0;
}

void dr_system_iterate(const dr_rule *rule, int64_t n, const double *matrix, double *x, double *scratch) {
    double *rest = scratch, *direction = scratch + n, *image = scratch + 2 * n;
    memcpy(rest, x, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) x[i] = rule->cg_start == DR_CG_JACOBI ? x[i] / matrix[i * n + i] : 0;
    multiply(n, matrix, x, image);
    for (int64_t i = 0; i < n; i++) direction[i] = rest[i] -= image[i];
    double square = dot(n, rest, rest);
    for (int step = 0; step < rule->cg_iters; step++) {
        multiply(n, matrix, direction, image);
        const double length = quotient(square, dot(n, direction, image) + rule->cg_eps);
        for (int64_t i = 0; i < n; i++) {
            x[i] += length * direction[i];
            rest[i] -= length * image[i];
        }
        const double next = dot(n, rest, rest), turn = quotient(next, square + rule->cg_eps);
        for (int64_t i = 0; i < n; i++) direction[i] = rest[i] + turn * direction[i];
        square = next;
    }
}
