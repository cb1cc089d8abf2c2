/* AdamW over the parameter block of a model, with clipping by the norm of the whole gradient. */
#ifndef DR_TRAIN_OPTIMIZER_H
#define DR_TRAIN_OPTIMIZER_H

#include "base/for_check.h"

#include <deltarule/model.h>

/* Neighbours in the block with one weight decay: one call of the backend. */
typedef struct {
    int64_t offset, count;
    bool decays;
} dr_parameter_run;

typedef struct {
    double beta1, beta2, eps, weight_decay;
    double clip; /* largest norm; 0: any */
} dr_optimizer_settings;

typedef struct {
    dr_model *model;
    dr_optimizer_settings settings;
    int64_t count;              /* elements of the block */
    void *mean, *square;        /* [count] of gradients, in the backend's memory */
    dr_parameter_run *runs;     /* [run_count] */
    int64_t run_count, updates; /* updates: how often parameters were changed */
} dr_optimizer;

DR_FOR_CHECK dr_status dr_optimizer_create(dr_model *model, const dr_optimizer_settings *settings, dr_optimizer **optimizer);
DR_FOR_CHECK void dr_optimizer_destroy(dr_optimizer *optimizer); /* NULL is allowed */

/* Changes the parameters by the model's gradient block and tells the gradient's norm before clipping. If that is not finite,
 * nothing is changed and *skipped is true. */
DR_FOR_CHECK dr_status dr_optimizer_step(dr_optimizer *optimizer, double learning_rate, double *norm, bool *skipped);

#endif
