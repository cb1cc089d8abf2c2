/* Whether a run can run, found out in memory, before anything is written. */
#ifndef DR_TRAIN_TRIAL_H
#define DR_TRAIN_TRIAL_H

#include <deltarule/train.h>

/* DR_ERROR_MEMORY, with both numbers, if a model of this configuration and its optimizer are more than there is. resumed: the
 * sentence asks for no smaller model. */
dr_status dr_trial_fits(dr_backend *backend, const dr_model_config *config, bool resumed);
/* The same of a model that is there, beside which its gradient and the means of the optimizer must fit. */
dr_status dr_trial_fits_beside(const dr_model *model);
/* Plans the memory of a step, and makes the gradient of a few tokens: DR_ERROR_MEMORY, or what the backend says that cannot
 * compute the model. Changes no parameter. */
dr_status dr_trial_run(dr_run *run);
/* Bytes of parameters, gradient and optimizer, and of a step: all but the data and a piece of a tensor that is written. */
int64_t dr_trial_bytes(const dr_run *run);

/* Parameters that a token goes through: of experts those that it chooses. */
int64_t dr_plan_active(const dr_model *model);

#endif
