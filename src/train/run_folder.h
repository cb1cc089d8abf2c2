/* Whose a run folder is: one process at a time may write a run into a folder, and a new run only into one of its own. */
#ifndef DR_TRAIN_RUN_FOLDER_H
#define DR_TRAIN_RUN_FOLDER_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stddef.h>

/* FOLDER/.lock, held; it is removed when it is let go. */
typedef struct {
    int descriptor; /* -1: not held */
    char *path;
    const char *folder; /* borrowed */
    size_t there;       /* bytes of the folder's path that were there before */
} dr_run_lock;

/* An empty lock, that may be released. */
dr_run_lock dr_run_lock_none(void);
/* DR_ERROR_ARGUMENT for a name that no folder can have. */
dr_status dr_run_folder_check_name(const char *folder);
/* Refuses, DR_ERROR_ARGUMENT or DR_ERROR_IO with the reason, a folder that a new run may not have: it holds a run, is another
 * process's, or has files in it. A folder that is not there will do. Changes nothing. */
dr_status dr_run_folder_check(const char *folder);
/* Makes the folder and its parents where they are missing, locks it and checks it again. What was made is removed when this
 * fails. */
dr_status dr_run_folder_claim(const char *folder, dr_run_lock *lock);
/* Locks the folder of a run. DR_ERROR_IO names the process that holds it. */
dr_status dr_run_lock_take(const char *folder, dr_run_lock *lock);
/* DR_ERROR_IO if the folder was removed, moved or replaced since, or the lock was: then nothing may be written there. */
dr_status dr_run_lock_check(const dr_run_lock *lock);
void dr_run_lock_release(dr_run_lock *lock);
/* Releases the lock of a run that never began, and removes the folder and its parents as far as dr_run_folder_claim made them
 * and they are empty. */
void dr_run_folder_give_back(dr_run_lock *lock);

#endif
