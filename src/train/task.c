/* The tasks by name. */
#include "train/task.h"

#include <string.h>

dr_status dr_task_create(const dr_train_options *options, dr_task **task) {
    *task = NULL;
    if (strcmp(dr_setting_text(options, DR_SET_TASK), "mqar") == 0) return dr_task_mqar_create(options, task);
    return dr_task_language_model_create(options, task);
}
