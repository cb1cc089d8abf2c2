/* The tasks by name. */
#include "train/task.h"

#include "data/examples.h"

dr_status dr_task_create(const dr_train_options *options, dr_task **task) {
    *task = NULL;
    const bool draws = dr_generator_find(dr_setting_text(options, DR_SET_TASK)) != NULL;
    return draws ? dr_task_examples_create(options, task) : dr_task_language_model_create(options, task);
}
