/* A copy is prepared as a change of the folder of copies (formats/folder.h), in which it is one subfolder: it gets its name
 * when all of it is on the disk. Older ones are removed after that, so a kill leaves one too many rather than one too few.
 *
 * A run that was set back to an earlier checkpoint finds copies of steps that it has yet to make. They do not count, and each
 * is replaced when the run comes to its step. */
#include "train/kept.h"

#include "base/error.h"
#include "base/number.h"
#include "formats/folder.h"
#include "shards/tokenizer_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_SIZE = 32 };

static const char PREFIX[] = "step-";

static void name_of(int64_t step, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, "%s%06" PRId64, PREFIX, step);
}

/* The step of a copy's folder, or -1 for any other name. */
static int64_t step_of(const char *name) {
    char own[NAME_SIZE];
    int64_t step;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !dr_integer_parse(name + strlen(PREFIX), &step)) return -1;
    name_of(step, own);
    return strcmp(own, name) == 0 ? step : -1;
}

static dr_status fail_long(const dr_run *run) {
    return dr_fail(DR_ERROR_ARGUMENT, "the path of the run folder %s is too long", run->folder);
}

static dr_status write_with_tokenizer(const dr_run *run, const char *folder) {
    dr_folder *change;
    DR_TRY(dr_folder_begin(folder, &change));
    const dr_status status = dr_tokenizer_files_copy(run->folder, change);
    if (status == DR_OK) return dr_checkpoint_finish(change, run->options, run->optimizer, &run->position);
    dr_folder_abandon(change);
    return status;
}

static dr_status write_copy(const dr_run *run, const char *folder, const char *name) {
    dr_folder *change;
    char path[PATH_MAX];
    dr_status status;
    DR_TRY(dr_folder_begin(folder, &change));
    if (snprintf(path, sizeof path, "%s", dr_folder_path(change, name)) >= (int)sizeof path) DR_GO(fail_long(run));
    DR_GO(write_with_tokenizer(run, path));
    return dr_folder_commit(change);
done:
    dr_folder_abandon(change);
    return status;
}

/* How many copies are of steps up to `last`, and which step is the first of them. */
static dr_status count_copies(const char *folder, int64_t last, int64_t *count, int64_t *oldest) {
    DIR *stream = opendir(folder);
    if (!stream) return dr_fail(DR_ERROR_IO, "%s: cannot list the folder: %s", folder, dr_system_text(errno));
    const struct dirent *item;
    *count = 0;
    *oldest = last;
    while ((item = readdir(stream))) {
        const int64_t step = step_of(item->d_name);
        if (step < 0 || step > last) continue;
        ++*count;
        if (step < *oldest) *oldest = step;
    }
    closedir(stream);
    return DR_OK;
}

static dr_status remove_oldest(const char *folder, int64_t last, int64_t keep) {
    char name[NAME_SIZE];
    int64_t count, oldest;
    DR_TRY(count_copies(folder, last, &count, &oldest));
    for (; count > keep; count--) {
        name_of(oldest, name);
        DR_TRY(dr_folder_remove(folder, name));
        int64_t left;
        DR_TRY(count_copies(folder, last, &left, &oldest));
    }
    return DR_OK;
}

dr_status dr_kept_write(const dr_run *run, bool anew) {
    const int64_t keep = dr_setting_integer(run->options, DR_SET_SAVE_KEEP);
    char folder[PATH_MAX], name[NAME_SIZE], path[PATH_MAX + NAME_SIZE];
    if (keep == 0) return DR_OK;
    if (snprintf(folder, sizeof folder, "%s/checkpoints", run->folder) >= (int)sizeof folder) return fail_long(run);
    DR_TRY(dr_run_lock_check(&run->lock));
    DR_TRY(dr_folder_make(folder));
    DR_TRY(dr_folder_recover(folder)); /* a kill may have left a copy whole and without its name */
    name_of(run->position.step, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bool there = access(path, F_OK) == 0;
    if (there && anew) DR_TRY(dr_folder_remove(folder, name));
    if (!there || anew) DR_TRY(write_copy(run, folder, name));
    return remove_oldest(folder, run->position.step, keep);
}
