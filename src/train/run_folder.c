/* A run folder is locked by FOLDER/.lock before anything is written into it, and until the run is destroyed. The file says who
 * holds it, for the sentence that others get; the lock itself is the kernel's and ends with the process. */
#include "train/run_folder.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/folder.h"
#include "formats/lock.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char LOCK_FILE[] = ".lock";

enum { LONGEST_HOLDER = 128, CLAIM_TRIES = 100 };

dr_run_lock dr_run_lock_none(void) {
    return (dr_run_lock){.descriptor = -1};
}

static dr_status lock_path(const char *folder, char **path) {
    void *memory;
    size_t bytes = strlen(folder) + sizeof LOCK_FILE + 1;
    DR_TRY(dr_allocate(bytes, "a path", &memory));
    *path = memory;
    snprintf(*path, bytes, "%s/%s", folder, LOCK_FILE);
    return DR_OK;
}

/* ---- who holds a folder --------------------------------------------------------------------------------------------- */

static void host_name(char host[LONGEST_HOLDER]) {
    if (gethostname(host, LONGEST_HOLDER - 1) != 0 || !*host) snprintf(host, LONGEST_HOLDER, "localhost");
    host[LONGEST_HOLDER - 1] = '\0';
}

/* "process 12 on HOST", if the file names one that lives as far as can be seen from here. */
static bool read_holder(const char *path, char holder[2 * LONGEST_HOLDER]) {
    char text[LONGEST_HOLDER], host[LONGEST_HOLDER], own[LONGEST_HOLDER];
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    char *end = text;
    long process = read ? strtol(text, &end, 10) : 0;
    if (process < 1 || *end != ' ') return false;
    snprintf(host, sizeof host, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
    host_name(own);
    if (strcmp(host, own) == 0 && kill((pid_t)process, 0) != 0 && errno == ESRCH) return false;
    snprintf(holder, 2 * LONGEST_HOLDER, "process %ld on %s", process, host);
    return true;
}

/* A holder that has just locked the folder may not yet have written who it is. */
static dr_status fail_held(const char *folder, const char *path) {
    char holder[2 * LONGEST_HOLDER] = "another process";
    for (int i = 0; i < 50 && !read_holder(path, holder); i++) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    return dr_fail(DR_ERROR_IO, "%s is training in the run folder %s: wait for it, or choose another folder", holder, folder);
}

/* What cannot be written, on a full disk, is missing in others' messages only. */
static void write_holder(int descriptor) {
    char host[LONGEST_HOLDER], text[2 * LONGEST_HOLDER];
    host_name(host);
    int length = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    bool written = ftruncate(descriptor, 0) == 0 && pwrite(descriptor, text, (size_t)length, 0) == length;
    (void)written;
}

/* ---- locks ---------------------------------------------------------------------------------------------------------- */

dr_status dr_run_lock_take(const char *folder, dr_run_lock *lock) {
    *lock = (dr_run_lock){.descriptor = -1, .folder = folder};
    DR_TRY(lock_path(folder, &lock->path));
    lock->descriptor = dr_lock_take(lock->path);
    if (lock->descriptor >= 0) {
        write_holder(lock->descriptor);
        return DR_OK;
    }
    dr_status status = errno == EWOULDBLOCK
                           ? fail_held(folder, lock->path)
                           : dr_fail(DR_ERROR_IO, "%s: cannot lock the run folder: %s", folder, dr_system_text(errno));
    dr_run_lock_release(lock);
    return status;
}

dr_status dr_run_lock_check(const dr_run_lock *lock) {
    if (dr_lock_stands(lock->descriptor, lock->path)) return DR_OK;
    if (access(lock->folder, F_OK) != 0)
        return dr_fail(DR_ERROR_IO, "the run folder %s was removed or moved while the run went on", lock->folder);
    return dr_fail(DR_ERROR_IO, "%s was removed while the run went on: the folder may be another run's now", lock->path);
}

void dr_run_lock_release(dr_run_lock *lock) {
    if (lock->descriptor >= 0) {
        if (dr_lock_stands(lock->descriptor, lock->path)) unlink(lock->path);
        close(lock->descriptor);
    }
    dr_release(lock->path);
    *lock = dr_run_lock_none();
}

/* ---- folders of new runs -------------------------------------------------------------------------------------------- */

/* A folder that is there must be empty but for a lock. */
static dr_status check_contents(const char *folder) {
    DR_TRY(dr_folder_recover(folder));
    if (dr_checkpoint_exists(folder))
        return dr_fail(DR_ERROR_ARGUMENT, "%s holds a run already: resume it, or choose another folder", folder);
    DIR *stream = opendir(folder);
    if (!stream) return dr_fail(DR_ERROR_IO, "%s: cannot list the folder: %s", folder, dr_system_text(errno));
    char found[NAME_MAX + 1] = "";
    for (const struct dirent *item; !*found && (item = readdir(stream));)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0 && strcmp(item->d_name, LOCK_FILE) != 0)
            snprintf(found, sizeof found, "%s", item->d_name);
    closedir(stream);
    if (!*found) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the folder %s is not empty (%s is in it) and holds no run: choose a new folder", folder,
                   found);
}

dr_status dr_run_folder_check_name(const char *folder) {
    enum { LONGEST = PATH_MAX - 256 }; /* with the names of files in it */
    if (!*folder) return dr_fail(DR_ERROR_ARGUMENT, "the name of the run folder is empty");
    if (strlen(folder) <= LONGEST) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the name of the run folder has %zu bytes, and may have %d: %.40s ..", strlen(folder),
                   LONGEST, folder);
}

dr_status dr_run_folder_check(const char *folder) {
    struct stat about;
    char holder[2 * LONGEST_HOLDER], *path;
    DR_TRY(dr_run_folder_check_name(folder));
    /* what is there by now, and is no link, was made by another process in between */
    if (stat(folder, &about) != 0 && errno == ENOENT && lstat(folder, &about) == 0 && S_ISLNK(about.st_mode))
        return dr_fail(DR_ERROR_IO, "%s: cannot make the run folder: it is a link that leads nowhere", folder);
    if (stat(folder, &about) != 0)
        return errno == ENOENT ? DR_OK
                               : dr_fail(DR_ERROR_IO, "%s: cannot make the run folder: %s", folder, dr_system_text(errno));
    if (!S_ISDIR(about.st_mode)) return dr_fail(DR_ERROR_IO, "%s: cannot make the run folder: it is a file", folder);
    DR_TRY(lock_path(folder, &path));
    /* the process that the file names may have ended and still be there until its parent asks for its status */
    bool held = read_holder(path, holder) && dr_lock_held(path);
    dr_status status = held ? fail_held(folder, path) : check_contents(folder);
    /* what is in it may be of a process that has begun in between */
    if (status != DR_OK && !held && read_holder(path, holder) && dr_lock_held(path)) status = fail_held(folder, path);
    dr_release(path);
    return status;
}

/* Removes the folder and its parents as far as they are empty and longer than `kept` bytes. */
static void remove_folders(const char *folder, size_t kept) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) return;
    for (size_t length = strlen(path); length > kept; length = strlen(path)) {
        while (length > 1 && path[length - 1] == '/') path[--length] = '\0';
        if (length <= kept || rmdir(path) != 0) return;
        char *slash = strrchr(path, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* The length of the longest part of the path that is there. */
static size_t length_there(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) return strlen(folder);
    while (*path && access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = '\0';
    }
    return strlen(path);
}

dr_status dr_run_folder_claim(const char *folder, dr_run_lock *lock) {
    size_t there = length_there(folder);
    dr_status status = DR_OK;
    *lock = dr_run_lock_none();
    /* another process that gives the folder up may remove it between the two steps */
    for (int i = 0; i < CLAIM_TRIES && status == DR_OK && lock->descriptor < 0; i++) {
        status = dr_folder_make(folder);
        if (status == DR_OK) status = dr_run_lock_take(folder, lock);
        bool gone = status == DR_ERROR_IO && access(folder, F_OK) != 0 && errno == ENOENT;
        if (gone && i + 1 < CLAIM_TRIES) status = DR_OK;
    }
    if (status == DR_OK) {
        lock->there = there;
        status = check_contents(folder);
        if (status != DR_OK) dr_run_folder_give_back(lock);
    } else {
        remove_folders(folder, there);
    }
    return status;
}

void dr_run_folder_give_back(dr_run_lock *lock) {
    const char *folder = lock->folder;
    size_t there = lock->there;
    dr_run_lock_release(lock);
    remove_folders(folder, there);
}
