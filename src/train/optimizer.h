/* AdamW over the parameter block of a model, and Muon for its matrices where that is wanted, with clipping by the norm of the
 * whole gradient. All of a step is decided in the backend's memory; the host reads what came of it when it wants to know. */
#ifndef DR_TRAIN_OPTIMIZER_H
#define DR_TRAIN_OPTIMIZER_H

#include "base/for_check.h"

#include "ops/operations.h"

#include "train/muon.h"

#include <deltarule/model.h>

/* Neighbours in the block that AdamW updates alike, in one call of the backend; or one parameter of Muon. */
typedef struct {
    int64_t offset, count;
    double rate, decay;    /* a factor of the learning rate; of weights */
    int64_t rows, columns; /* of Muon: of each matrix; 0: AdamW */
} dr_parameter_run;

typedef struct {
    double beta1, beta2, eps, weight_decay;
    double clip;        /* largest norm; 0: any */
    bool muon;          /* for matrices, where no group says another optimizer */
    double momentum;    /* of Muon */
    const char *groups; /* train/groups.h; NULL: none */
} dr_optimizer_settings;

typedef struct {
    dr_model *model;
    dr_optimizer_settings settings;
    int64_t count;       /* elements of the block */
    void *gradient;      /* [count] added to by whoever computes it; in the backend's memory, as the next are */
    void *mean, *square; /* [count] of gradients; mean is Muon's momentum */
    dr_control *control;
    dr_parameter_run *runs;     /* [run_count] */
    dr_adamw_run *adamw;        /* [run_count]: those of AdamW, as the last step took them */
    dr_muon *muon;              /* NULL: no run has Muon */
    int64_t run_count, updates; /* updates: how often parameters were changed */
} dr_optimizer;

DR_FOR_CHECK dr_status dr_optimizer_create(dr_model *model, const dr_optimizer_settings *settings, dr_optimizer **optimizer);
DR_FOR_CHECK void dr_optimizer_destroy(dr_optimizer *optimizer); /* NULL is allowed */

DR_FOR_CHECK void dr_optimizer_zero(dr_optimizer *optimizer); /* the gradient */

/* Changes the parameters by the gradient, unless its norm is not finite; does not wait. */
DR_FOR_CHECK dr_status dr_optimizer_update(dr_optimizer *optimizer, double learning_rate);
/* Of the last update: the gradient's norm before clipping, and whether the step was skipped. */
DR_FOR_CHECK dr_status dr_optimizer_result(dr_optimizer *optimizer, double *norm, bool *skipped);
/* Both of these. */
dr_status dr_optimizer_step(dr_optimizer *optimizer, double learning_rate, double *norm, bool *skipped);

/* Goes on from so many updates. */
dr_status dr_optimizer_resume(dr_optimizer *optimizer, int64_t updates);

#endif
