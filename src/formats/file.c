/* Files replaced whole, and read whole.
 *
 * A file is written beside its place, synced and renamed: readers have the old file or the new one, those that have mapped the
 * old one keep it, and a kill leaves the old one. Whoever writes FOLDER/NAME takes the first of FOLDER/.NAME.new-0, .NAME.new-1
 * and so on that nobody has locked. So writers of one name never meet in one file, and what a killed writer left is
 * written over by the next.
 *
 * A full disk shows in write (some or no bytes taken) or in fsync; the rename comes after both. */
#include "formats/file.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/folder.h"
#include "formats/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_WRITERS = 256 }; /* of one name at once */

static dr_status fail_writing(dr_file *file, const char *action) {
    file->status = dr_fail(DR_ERROR_IO, "%s: cannot %s: %s", file->name, action, dr_system_text(errno));
    return file->status;
}

/* Length of the folder in a path, with its slash; 0: the name stands alone. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

/* Takes a file beside the target. Another user's, or one that is no plain file, is passed over like one that is locked. */
static int take_fresh(dr_file *file) {
    int folder = folder_length(file->target), why = 0;
    for (int slot = 0; slot < MOST_WRITERS; slot++) {
        struct stat about;
        int length =
            snprintf(file->fresh, sizeof file->fresh, "%.*s.%.200s.new-%d", folder, file->target, file->target + folder, slot);
        if (length >= (int)sizeof file->fresh) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int descriptor = dr_lock_take(file->fresh);
        if (descriptor >= 0 && fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid())
            return descriptor;
        if (slot == 0) why = descriptor >= 0 ? EPERM : errno;
        bool taken = descriptor >= 0 || errno == EWOULDBLOCK || errno == EACCES || errno == ELOOP || errno == EISDIR;
        if (descriptor >= 0) close(descriptor);
        if (!taken) return -1;
    }
    errno = why;
    return -1;
}

/* The name without links, if there is something behind it. */
static dr_status find_target(dr_file *file, bool exists) {
    const size_t length = strlen(file->name);
    if (length >= sizeof file->target) {
        file->status = dr_fail(DR_ERROR_ARGUMENT, "the name of the file is longer than %zu bytes", sizeof file->target - 1);
        return file->status;
    }
    memcpy(file->target, file->name, length + 1);
    return exists && !realpath(file->name, file->target) ? fail_writing(file, "create the file") : DR_OK;
}

dr_status dr_file_create(const char *name, dr_file *file) {
    struct stat about;
    bool exists = stat(name, &about) == 0;
    file->descriptor = -1;
    file->name = name;
    file->status = DR_OK;
    file->fresh[0] = '\0';
    DR_TRY(find_target(file, exists));
    if (exists && !S_ISREG(about.st_mode)) {
        file->descriptor = open(name, O_WRONLY | O_CLOEXEC);
    } else {
        file->descriptor = take_fresh(file);
        if (file->descriptor >= 0) {
            bool ready =
                ftruncate(file->descriptor, 0) == 0 && (!exists || fchmod(file->descriptor, about.st_mode & 0777) == 0);
            if (!ready) return fail_writing(file, "prepare the file");
        }
    }
    return file->descriptor < 0 ? fail_writing(file, "create the file") : DR_OK;
}

dr_status dr_file_write(dr_file *file, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0 && file->status == DR_OK) {
        ssize_t written = write(file->descriptor, at, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC; /* a regular file never takes nothing; without this the loop would not end */
        if (written <= 0) return fail_writing(file, "write");
        at += written;
        bytes -= (size_t)written;
    }
    return file->status;
}

static dr_status write_at(const dr_file *file, int64_t offset, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = pwrite(file->descriptor, at, bytes, offset);
        if (written < 0 && errno == EINTR) continue;
        if (written == 0) errno = ENOSPC;
        if (written <= 0) return dr_fail(DR_ERROR_IO, "%s: cannot write: %s", file->name, dr_system_text(errno));
        at += written, offset += written;
        bytes -= (size_t)written;
    }
    return DR_OK;
}

/* The disk begins with what was written while more is; what it makes of it, the sync at the end tells. */
dr_status dr_file_write_at(const dr_file *file, int64_t offset, const void *data, size_t bytes) {
    DR_TRY(write_at(file, offset, data, bytes));
    sync_file_range(file->descriptor, offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return DR_OK;
}

dr_status dr_file_zeros_at(const dr_file *file, int64_t offset, size_t bytes) {
    static const char zeros[4096];
    if (bytes == 0 || fallocate(file->descriptor, 0, offset, (off_t)bytes) == 0) return DR_OK;
    for (size_t some; bytes > 0; bytes -= some, offset += (int64_t)some) {
        some = bytes < sizeof zeros ? bytes : sizeof zeros;
        DR_TRY(write_at(file, offset, zeros, some));
    }
    return DR_OK;
}

dr_status dr_file_rewrite(dr_file *file, int64_t offset, const void *data, size_t bytes) {
    if (file->status == DR_OK) file->status = write_at(file, offset, data, bytes);
    return file->status;
}

/* After the rename, so that the new name lasts. A folder that may be written but not read cannot be synced, some file systems
 * cannot sync any. */
static dr_status sync_folder(dr_file *file) {
    char folder[PATH_MAX];
    int length = folder_length(file->target);
    snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? file->target : ".");
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return errno == EACCES ? DR_OK : fail_writing(file, "sync its folder");
    if (fsync(descriptor) != 0 && errno != EINVAL) fail_writing(file, "sync its folder");
    close(descriptor);
    return file->status;
}

/* The lock on the fresh file is held until it has its new name: no other writer may take it before. What lies in a change of a
 * folder is synced once, by its commit. */
static dr_status put_in_place(dr_file *file) {
    bool syncs = !dr_folder_syncs(file->target);
    if (syncs && fsync(file->descriptor) != 0) return fail_writing(file, "sync");
    if (rename(file->fresh, file->target) != 0) return fail_writing(file, "put the new file in its place");
    return syncs ? sync_folder(file) : DR_OK;
}

dr_status dr_file_finish(dr_file *file) {
    if (file->descriptor < 0) return file->status;
    bool device = file->fresh[0] == '\0';
    if (file->status == DR_OK && !device) put_in_place(file);
    if (file->status != DR_OK && !device && dr_lock_stands(file->descriptor, file->fresh)) unlink(file->fresh);
    if (close(file->descriptor) != 0 && device && file->status == DR_OK) fail_writing(file, "close");
    file->descriptor = -1;
    return file->status;
}

static dr_status read_descriptor(int descriptor, const char *name, size_t most, char **data, size_t *bytes) {
    struct stat about;
    if (fstat(descriptor, &about) != 0) return dr_fail(DR_ERROR_IO, "%s: cannot read: %s", name, dr_system_text(errno));
    if (!S_ISREG(about.st_mode)) return dr_fail(DR_ERROR_IO, "%s is not a regular file", name);
    size_t size = (size_t)about.st_size, have = 0;
    if (size > most) return dr_fail(DR_ERROR_FORMAT, "%s has %zu bytes: at most %zu are read", name, size, most);
    void *memory = NULL;
    DR_TRY(dr_allocate(size + 1, name, &memory));
    char *text = memory;
    while (have < size) {
        ssize_t got = read(descriptor, text + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            dr_status status = dr_fail(DR_ERROR_IO, "%s: cannot read: %s", name, dr_system_text(errno));
            dr_release(memory);
            return status;
        }
        if (got == 0) break; /* it shrank meanwhile: what is there is the file */
        have += (size_t)got;
    }
    text[have] = '\0';
    *data = text;
    *bytes = have;
    return DR_OK;
}

dr_status dr_file_read(const char *name, size_t most, char **data, size_t *bytes) {
    int descriptor = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hang us */
    if (descriptor < 0) return dr_fail(DR_ERROR_IO, "%s: cannot open: %s", name, dr_system_text(errno));
    dr_status status = read_descriptor(descriptor, name, most, data, bytes);
    close(descriptor);
    return status;
}

dr_status dr_file_append(const char *name, const void *data, size_t bytes) {
    const int file = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return dr_fail(DR_ERROR_IO, "%s cannot be written: %s", name, dr_system_text(errno));
    const ssize_t written = write(file, data, bytes);
    int why = written < 0 ? errno : written < (ssize_t)bytes ? ENOSPC : 0;
    if (close(file) != 0 && !why) why = errno;
    return why ? dr_fail(DR_ERROR_IO, "%s cannot be written: %s", name, dr_system_text(why)) : DR_OK;
}
