/* OpenBLAS, opened when a limit or a statement asks for it: this library is not linked to it. */
#ifndef DR_CHECK_BLAS_H
#define DR_CHECK_BLAS_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>

/* CBLAS's numbers for matrices whose rows lie one after another, taken as they are. */
enum { DR_BLAS_ROW_MAJOR = 101, DR_BLAS_AS_IT_IS = 111 };

typedef struct {
    /* C [m, n] = alpha A [m, k] B [k, n] + beta C; the strides are those of rows */
    void (*sgemm)(int order, int of_a, int of_b, int m, int n, int k, float alpha, const float *a, int a_stride, const float *b,
                  int b_stride, float beta, float *c, int c_stride);
    /* LAPACK's dgesv and dgeev, by columns; the lengths of the texts stand at the end, as Fortran passes them */
    void (*solve)(const int *order, const int *columns, double *a, const int *a_stride, int *pivots, double *b,
                  const int *b_stride, int *info);
    void (*eigenvalues)(const char *left, const char *right, const int *order, double *a, const int *a_stride, double *real,
                        double *imaginary, double *left_vectors, const int *left_stride, double *right_vectors,
                        const int *right_stride, double *work, const int *work_numbers, int *info, size_t left_length,
                        size_t right_length);
    bool own_threads;               /* it has threads of its own, not OpenMP's */
    int (*threads)(void);           /* how many it would use, */
    void (*set_threads)(int count); /* for the whole process */
    char core[32];                  /* the processor that its kernels are made for: "SkylakeX" */
    char description[256];          /* "OpenBLAS 0.3.21, kernels for SkylakeX" */
    char weak[192];                 /* why its products are no measure of this processor, and what to set; "": they are one */
} dr_blas;

/* Opens it at the first call in the process; it stays open. DR_ERROR_UNSUPPORTED if it is not there, or cannot start. */
dr_status dr_blas_open(const dr_blas **blas);

/* Why kernels for `core` are below what this processor has, and what to set, into text; "" if they are not. */
void dr_blas_judge(const char *core, bool avx2, bool avx512, char *text, size_t size);

#endif
