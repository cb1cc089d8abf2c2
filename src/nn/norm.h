/* The norm of the rows of x [rows, dim], with its parameters: in front of a module, behind it, and in front of the head. */
#ifndef DR_NN_NORM_H
#define DR_NN_NORM_H

#include "formats/names/description.h"
#include "nn/module.h"

/* DR_NORM_NONE: there is none, and the functions below are not called. */
typedef struct {
    dr_norm_kind kind;
    int64_t dim;
    double eps;
    double offset;    /* 1 where weights are kept about zero */
    int weight, bias; /* list [dim]; bias may be DR_NO_PARAMETER */
} dr_norm;

/* The norm of a description, with its parameters "weight" and perhaps "bias"; of DR_NORM_NONE there are none. */
dr_status dr_norm_create(const dr_norm_description *description, int64_t dim, const char *prefix, dr_layer_parameters *list,
                         dr_norm *norm);

dr_status dr_norm_forward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, void *y);
/* accumulate: d_x is added to */
dr_status dr_norm_backward(const dr_norm *norm, const dr_module_call *call, int64_t rows, const void *x, const void *d_y,
                           void *d_x, bool accumulate);

#endif
