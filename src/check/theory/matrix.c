/* Solving and eigenvalues of small matrices by LAPACK, which OpenBLAS contains.
 *
 * LAPACK takes columns first. A solution needs A and B turned around; the eigenvalues of A^T are those of A. */
#include "check/theory/matrix.h"

#include "check/blas.h"

matrix dr_matrix_solve(const matrix *a, const matrix *b) {
    matrix factors = transpose(*a), solution = transpose(*b); /* b.columns x b.rows here is b.rows x b.columns there */
    int pivots[MATRIX_SIZE], info = 0;
    const dr_blas *blas;
    if (dr_blas_open(&blas) != DR_OK) return filled(b->rows, b->columns, (double)NAN);
    blas->solve(&a->rows, &b->columns, factors.at, &a->rows, pivots, solution.at, &a->rows, &info);
    return info == 0 ? transpose(solution) : filled(b->rows, b->columns, (double)NAN);
}

void dr_matrix_eigenvalues(const matrix *a, double real[MATRIX_SIZE], double imaginary[MATRIX_SIZE]) {
    matrix working = *a;
    double none[1], work[8 * MATRIX_SIZE];
    const int one = 1, work_numbers = 8 * MATRIX_SIZE;
    int info = 1;
    const dr_blas *blas;
    bool is_open = dr_blas_open(&blas) == DR_OK;
    if (is_open && isfinite(length(*a))) /* its iteration must not see NaN */
        blas->eigenvalues("N", "N", &a->rows, working.at, &a->rows, real, imaginary, none, &one, none, &one, work,
                          &work_numbers, &info, 1, 1);
    for (int i = 0; info != 0 && i < a->rows; i++) real[i] = imaginary[i] = (double)NAN;
}
