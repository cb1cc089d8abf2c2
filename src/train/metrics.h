/* metrics.csv of a run folder: a line a step, in order, none twice. */
#ifndef DR_TRAIN_METRICS_H
#define DR_TRAIN_METRICS_H

#include "train/task.h"

#include <stdio.h>

typedef struct {
    FILE *file;
    char *path;
} dr_metrics;

/* Opens or makes FOLDER/metrics.csv, drops lines of steps after `step` and a last line that a kill cut short, and locks it
 * against other processes until it is closed. DR_ERROR_IO, also if another process trains in the folder. */
dr_status dr_metrics_open(const char *folder, int64_t step, dr_metrics *metrics);
/* One line, flushed. evaluation: NULL if there was none at this step. */
dr_status dr_metrics_append(dr_metrics *metrics, const dr_progress *progress, const dr_evaluation *evaluation);
/* On the disk before a checkpoint says that its steps are done. */
dr_status dr_metrics_sync(dr_metrics *metrics);
void dr_metrics_close(dr_metrics *metrics);

#endif
