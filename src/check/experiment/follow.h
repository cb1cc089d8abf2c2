/* What follows a cell's run: the list "then" of its settings. */
#ifndef DR_CHECK_EXPERIMENT_FOLLOW_H
#define DR_CHECK_EXPERIMENT_FOLLOW_H

#include "check/experiment/experiment.h"

enum { DR_MOST_FOLLOW_UPS = 64, DR_FOLLOW_NAME_SIZE = 128 };

/* Checks a list of follow-ups: DR_ERROR_FORMAT. */
dr_status dr_follow_check(const json_t *then);

/* "probe-erase": the name of a follow-up, under which its result lies in the run folder. */
void dr_follow_name(const json_t *follow_up, char name[DR_FOLLOW_NAME_SIZE]);

/* Appends the arguments of `deltarule` to a list: run: the cell's run folder. DR_ERROR_ARGUMENT if the experiment was opened
 * without what it needs, DR_ERROR_IO if a file of tasks is not there. */
dr_status dr_follow_arguments(const dr_experiment *experiment, const dr_cell *cell, const json_t *follow_up, const char *run,
                              json_t *arguments);

/* From what the command printed, an object a line: the measures, and the objects as a list. DR_ERROR_FORMAT. Both are the
 * caller's to release. */
dr_status dr_follow_measures(const json_t *follow_up, const char *output, json_t **measures, json_t **lines);

#endif
