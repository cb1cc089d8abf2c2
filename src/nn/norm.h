/* The norm of the rows of x [rows, dim], with its parameters: in front of a module, behind it, and in front of the head. */
#ifndef DR_NN_NORM_H
#define DR_NN_NORM_H

#include "nn/module.h"

typedef enum {
    DR_NORM_NONE,  /* y = x; the functions below are not called */
    DR_NORM_RMS,   /* y = x rsqrt(mean x^2 + eps) (weight + offset) */
    DR_NORM_LAYER, /* y = (x - mean x) rsqrt(mean (x - mean x)^2 + eps) weight + bias */
} dr_norm_kind;

typedef struct {
    dr_norm_kind kind;
    int64_t dim;
    double eps;
    double offset;    /* 1 where weights are kept about zero */
    int weight, bias; /* list [dim]; bias may be DR_NO_PARAMETER */
} dr_norm;

/* Adds the parameters "weight" and, of a layer norm with `biased`, "bias". */
dr_status dr_norm_add(dr_norm *norm, bool biased, const char *prefix, dr_layer_parameters *list);

dr_status dr_norm_forward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, void *y);
/* accumulate: d_x is added to */
dr_status dr_norm_backward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, const void *d_y,
                           void *d_x, bool accumulate);

#endif
