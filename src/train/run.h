/* A run: what dr_run_create and dr_run_resume put together (run.c) and dr_run_train moves on (loop.c). */
#ifndef DR_TRAIN_RUN_H
#define DR_TRAIN_RUN_H

#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/step.h"

struct dr_run {
    char *folder; /* NULL: it is kept nowhere, and can only be measured */
    dr_run_lock lock;
    dr_train_options *options;
    dr_task *task;
    dr_model *model;
    dr_session *session; /* of training and evaluation */
    dr_optimizer *optimizer;
    dr_schedule schedule;
    dr_step_numbers numbers; /* of steps that are under way */
    bool balances;           /* the model has a balancing loss of experts */
    dr_metrics metrics;
    dr_run_position position;
    int64_t earlier_steps;  /* of the schedule before a resumed run was given others; else 0 */
    dr_backend *own;        /* beside which others run; NULL: the caller has it */
    struct dr_saver *saver; /* train/save.h; NULL until a checkpoint is written beside the run */
    bool saves_alone;       /* which it cannot be */
    bool is_empty;          /* the folder has no checkpoint yet: the first is under way, or failed */
};

#endif
