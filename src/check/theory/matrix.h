/* Small matrices as values, for statements that read like their formulas: at most 64 numbers, so that copying them costs
 * nothing and nothing is allocated. A vector is a matrix of one column. Sizes are the caller's to match: all of them are
 * constants of the statements. */
#ifndef DR_THEORY_MATRIX_H
#define DR_THEORY_MATRIX_H

#include "base/random.h"

#include <math.h>

enum { MATRIX_NUMBERS = 64, MATRIX_SIZE = 8 };

typedef struct {
    int rows, columns;
    double at[MATRIX_NUMBERS]; /* row-major */
} matrix;

/* X with A X = B; NaN where A is singular or there is no LAPACK. A is square, with B's rows. */
matrix dr_matrix_solve(const matrix *a, const matrix *b);
/* The real and the imaginary parts of a square matrix' eigenvalues, in no order. NaN if they are not found, or there is no
 * LAPACK. */
void dr_matrix_eigenvalues(const matrix *a, double real[MATRIX_SIZE], double imaginary[MATRIX_SIZE]);

static inline matrix zeros(int rows, int columns) {
    return (matrix){.rows = rows, .columns = columns};
}

static inline matrix from_numbers(int rows, int columns, const double *numbers) {
    matrix a = zeros(rows, columns);
    for (int i = 0; i < rows * columns; i++) a.at[i] = numbers[i];
    return a;
}

static inline matrix column(int size, const double *numbers) {
    return from_numbers(size, 1, numbers);
}

/* Row `row` of an array [rows, size], as a column. */
static inline matrix row_of(const double *rows, int row, int size) {
    return column(size, rows + (int64_t)row * size);
}

static inline matrix filled(int rows, int columns, double value) {
    matrix a = zeros(rows, columns);
    for (int i = 0; i < rows * columns; i++) a.at[i] = value;
    return a;
}

static inline matrix identity(int size) {
    matrix a = zeros(size, size);
    for (int i = 0; i < size; i++) a.at[i * size + i] = 1;
    return a;
}

static inline matrix diagonal(matrix v) {
    matrix a = zeros(v.rows, v.rows);
    for (int i = 0; i < v.rows; i++) a.at[i * v.rows + i] = v.at[i];
    return a;
}

static inline matrix scaled(double factor, matrix a) {
    for (int i = 0; i < a.rows * a.columns; i++) a.at[i] *= factor;
    return a;
}

static inline matrix sum(matrix a, matrix b) {
    for (int i = 0; i < a.rows * a.columns; i++) a.at[i] += b.at[i];
    return a;
}

static inline matrix difference(matrix a, matrix b) {
    return sum(a, scaled(-1, b));
}

/* element by element */
static inline matrix times(matrix a, matrix b) {
    for (int i = 0; i < a.rows * a.columns; i++) a.at[i] *= b.at[i];
    return a;
}

static inline matrix quotient(matrix a, matrix b) {
    for (int i = 0; i < a.rows * a.columns; i++) a.at[i] /= b.at[i];
    return a;
}

static inline matrix transpose(matrix a) {
    matrix b = zeros(a.columns, a.rows);
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.columns; j++) b.at[j * a.rows + i] = a.at[i * a.columns + j];
    return b;
}

static inline matrix product(matrix a, matrix b) {
    matrix c = zeros(a.rows, b.columns);
    for (int i = 0; i < a.rows; i++)
        for (int k = 0; k < a.columns; k++)
            for (int j = 0; j < b.columns; j++) c.at[i * b.columns + j] += a.at[i * a.columns + k] * b.at[k * b.columns + j];
    return c;
}

/* u v^T of two columns */
static inline matrix outer(matrix u, matrix v) {
    return product(u, transpose(v));
}

/* S^T q: what a query reads */
static inline matrix read_out(matrix state, matrix query) {
    return product(transpose(state), query);
}

/* sum of products of elements */
static inline double dot(matrix a, matrix b) {
    double total = 0;
    for (int i = 0; i < a.rows * a.columns; i++) total += a.at[i] * b.at[i];
    return total;
}

static inline double length(matrix a) {
    return sqrt(dot(a, a));
}

static inline matrix unit(matrix a) {
    return scaled(1 / length(a), a);
}

static inline matrix solved(matrix a, matrix b) {
    return dr_matrix_solve(&a, &b);
}

static inline matrix inverse(matrix a) {
    return solved(a, identity(a.rows));
}

static inline matrix exponentials(matrix a) {
    for (int i = 0; i < a.rows * a.columns; i++) a.at[i] = exp(a.at[i]);
    return a;
}

static inline matrix normals(dr_random *random, int rows, int columns) {
    matrix a = zeros(rows, columns);
    for (int i = 0; i < rows * columns; i++) a.at[i] = dr_random_normal(random);
    return a;
}

static inline matrix unit_normals(dr_random *random, int size) {
    return unit(normals(random, size, 1));
}

static inline double uniform(dr_random *random, double from, double to) {
    return from + (to - from) * dr_random_uniform(random);
}

static inline matrix uniforms(dr_random *random, int rows, int columns, double from, double to) {
    matrix a = zeros(rows, columns);
    for (int i = 0; i < rows * columns; i++) a.at[i] = uniform(random, from, to);
    return a;
}

/* symmetric, eigenvalues at least 1 */
static inline matrix definite(dr_random *random, int size) {
    matrix a = normals(random, size, size);
    return sum(identity(size), scaled(1.0 / size, product(a, transpose(a))));
}

#endif
