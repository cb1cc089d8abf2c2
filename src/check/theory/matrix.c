/* Solving and eigenvalues of small matrices by LAPACK, which OpenBLAS contains. Debian's package of OpenBLAS has no header for
 * it: the two functions are declared here, with the lengths of their texts at the end as Fortran passes them.
 *
 * LAPACK takes columns first. A solution needs A and B turned around; the eigenvalues of A^T are those of A. */
#include "check/theory/matrix.h"

#include <stddef.h>

void dgesv_(const int *order, const int *columns, double *a, const int *a_stride, int *pivots, double *b, const int *b_stride,
            int *info);
void dgeev_(const char *left, const char *right, const int *order, double *a, const int *a_stride, double *real,
            double *imaginary, double *left_vectors, const int *left_stride, double *right_vectors, const int *right_stride,
            double *work, const int *work_numbers, int *info, size_t left_length, size_t right_length);

matrix dr_matrix_solve(const matrix *a, const matrix *b) {
    matrix factors = transpose(*a), solution = transpose(*b); /* b.columns x b.rows here is b.rows x b.columns there */
    int pivots[MATRIX_SIZE], info = 0;
    dgesv_(&a->rows, &b->columns, factors.at, &a->rows, pivots, solution.at, &a->rows, &info);
    return info == 0 ? transpose(solution) : filled(b->rows, b->columns, NAN);
}

void dr_matrix_eigenvalues(const matrix *a, double real[MATRIX_SIZE], double imaginary[MATRIX_SIZE]) {
    matrix working = *a;
    double none[1], work[8 * MATRIX_SIZE];
    const int one = 1, work_numbers = 8 * MATRIX_SIZE;
    int info = isfinite(length(*a)) ? 0 : 1; /* its iteration must not see NaN */
    if (info == 0)
        dgeev_("N", "N", &a->rows, working.at, &a->rows, real, imaginary, none, &one, none, &one, work, &work_numbers, &info, 1,
               1);
    for (int i = 0; info != 0 && i < a->rows; i++) real[i] = imaginary[i] = NAN;
}
