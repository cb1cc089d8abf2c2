/* The folder of a store of prefixes: a file of nn/state_file.h for each snapshot, HASH-TOKENS.prefix, or -decoded.prefix for
 * one that is not exact. Files are written beside their place and renamed, so that a kill leaves whole ones; what it leaves of
 * one that was being written has a name of its own (formats/file.h) and is removed once it is an hour old. */
#include "nn/prefix.h"

#include "base/error.h"
#include "formats/folder.h"
#include "formats/lock.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char ENDING[] = ".prefix", FRESH[] = ".prefix.new-";

static dr_status path_in(const dr_prefixes *prefixes, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", prefixes->folder, name) < PATH_MAX) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s: the name of the folder is too long", prefixes->folder);
}

/* The model's identity keeps the files of two models in one folder apart. */
static dr_status path_of(const dr_prefixes *prefixes, const dr_prefix *prefix, char path[PATH_MAX]) {
    char name[2 * DR_PREFIX_NAME];
    snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 "-%" PRId64 "%s%s", prefixes->identity, prefix->sequence.hash,
             prefix->sequence.tokens, prefix->exact ? "" : "-decoded", ENDING);
    return path_in(prefixes, name, path);
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static bool has_state_of(const dr_prefixes *prefixes, const char *name) {
    char identity[18];
    snprintf(identity, sizeof identity, "%016" PRIx64 "-", prefixes->identity);
    return strncmp(name, identity, strlen(identity)) == 0;
}

/* A file of the folder that has the name of one of the store's. What cannot be one of ours is left out and, being ours by its
 * name, removed. */
static dr_status list_file(dr_prefixes *prefixes, const char *name) {
    char path[PATH_MAX], own[PATH_MAX];
    struct stat about;
    dr_safetensors *file = NULL;
    int32_t *ids = NULL;
    dr_position sequence;
    dr_prefix *prefix;
    if (!has_state_of(prefixes, name)) {
        prefixes->counts.files_of_others++;
        return DR_OK;
    }
    DR_TRY(path_in(prefixes, name, path));
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode)) return DR_OK;
    dr_status status = dr_safetensors_open(path, &file);
    if (status == DR_OK) status = dr_state_file_peek(file, prefixes->identity, &ids, &sequence);
    dr_safetensors_close(file);
    if (status == DR_ERROR_MEMORY) return status;
    if (status != DR_OK || !ids) {
        prefixes->counts.files_damaged++;
        unlink(path);
        return DR_OK;
    }
    DR_TRY(dr_prefix_append(prefixes, ids, &sequence, &prefix));
    prefix->file_bytes = (size_t)about.st_size;
    DR_TRY(path_of(prefixes, prefix, own));
    if (strcmp(own, path) != 0) { /* another name than its contents have: a copy */
        prefix->file_bytes = 0;
        dr_prefix_drop(prefixes, prefixes->count - 1);
        return DR_OK;
    }
    prefixes->counts.files++;
    prefixes->counts.file_bytes += prefix->file_bytes;
    return DR_OK;
}

static bool ends_with(const char *name, const char *ending) {
    const size_t length = strlen(name), own = strlen(ending);
    return length > own && strcmp(name + length - own, ending) == 0;
}

/* What a writer that was killed left. No writer takes an hour for a file. */
static void remove_leftover(const dr_prefixes *prefixes, const char *name) {
    enum { HOUR = 3600 };
    char path[PATH_MAX];
    struct stat about;
    if (path_in(prefixes, name, path) != DR_OK || lstat(path, &about) != 0 || !S_ISREG(about.st_mode)) return;
    if (time(NULL) - about.st_mtime < HOUR) return;
    const int lock = dr_lock_take(path);
    if (lock < 0) return;
    unlink(path);
    close(lock);
}

dr_status dr_prefix_open_folder(dr_prefixes *prefixes) {
    dr_status status = DR_OK;
    DR_TRY(dr_folder_make(prefixes->folder));
    DIR *listing = opendir(prefixes->folder);
    if (!listing) return dr_fail(DR_ERROR_IO, "%s: cannot read the folder: %s", prefixes->folder, dr_system_text(errno));
    for (const struct dirent *item = readdir(listing); item && status == DR_OK; item = readdir(listing)) {
        const char *name = item->d_name;
        if (name[0] == '.' && strstr(name, FRESH)) remove_leftover(prefixes, name);
        if (name[0] != '.' && ends_with(name, ENDING)) status = list_file(prefixes, name);
    }
    closedir(listing);
    if (status == DR_OK) dr_prefix_bound_files(prefixes);
    return status;
}

/* ---- one file ------------------------------------------------------------------------------------------------------- */

void dr_prefix_forget_file(dr_prefixes *prefixes, dr_prefix *prefix) {
    prefixes->counts.files--;
    prefixes->counts.file_bytes -= prefix->file_bytes;
    prefix->file_bytes = 0;
}

void dr_prefix_bound_files(dr_prefixes *prefixes) {
    char path[PATH_MAX];
    while (prefixes->counts.file_bytes > prefixes->options.folder_bytes) {
        int64_t oldest = -1;
        for (int64_t i = 0; i < prefixes->count; i++)
            if (prefixes->at[i].file_bytes > 0 && (oldest < 0 || prefixes->at[i].used < prefixes->at[oldest].used)) oldest = i;
        dr_prefix *prefix = &prefixes->at[oldest];
        if (path_of(prefixes, prefix, path) == DR_OK) unlink(path);
        dr_prefix_forget_file(prefixes, prefix);
        prefixes->counts.files_evicted++;
        if (!prefix->state) dr_prefix_remember_gone(prefixes, prefix);
        dr_prefix_drop(prefixes, oldest);
    }
}

dr_status dr_prefix_write_file(dr_prefixes *prefixes, int64_t index) {
    dr_prefix *prefix = &prefixes->at[index];
    char path[PATH_MAX];
    struct stat about;
    DR_TRY(path_of(prefixes, prefix, path));
    DR_TRY(dr_state_file_write(prefix->state, prefixes->identity, prefix->ids, prefix->sequence.tokens, path));
    if (stat(path, &about) != 0) return DR_OK; /* another process removed it */
    prefix->file_bytes = (size_t)about.st_size;
    prefixes->counts.files++;
    prefixes->counts.file_bytes += prefix->file_bytes;
    dr_prefix_bound_files(prefixes);
    return DR_OK;
}

dr_status dr_prefix_read_file(dr_prefixes *prefixes, int64_t index, dr_model_state **state) {
    dr_prefix *prefix = &prefixes->at[index];
    dr_model_state *read = NULL;
    char path[PATH_MAX];
    *state = NULL;
    DR_TRY(path_of(prefixes, prefix, path));
    dr_status status = dr_state_file_read(prefixes->model, prefixes->identity, path, &read);
    if (status == DR_OK &&
        (read->sequences != 1 || read->seen[0] != prefix->sequence.tokens || read->hash[0] != prefix->sequence.hash)) {
        dr_model_state_destroy(read);
        status = DR_ERROR_FORMAT;
    }
    if (status == DR_OK) *state = read;
    if (status == DR_OK || status == DR_ERROR_MEMORY) return status;
    if (access(path, F_OK) == 0) prefixes->counts.files_damaged++; /* else another process removed it */
    unlink(path);
    dr_prefix_forget_file(prefixes, prefix);
    dr_prefix_drop(prefixes, index);
    return DR_OK;
}
