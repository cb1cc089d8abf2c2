/* Files written whole or not at all, and read whole.
 *
 * A full disk shows in write (some or no bytes taken), in fsync or only in close: all three are looked at. A file that could
 * not be finished is removed, so that nobody takes its beginning for the whole; removing is limited to regular files, since the
 * name may be a device. */
#include "formats/file.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dr_status fail_writing(dr_file *file, const char *action) {
    file->status = dr_fail(DR_ERROR_IO, "%s: cannot %s: %s", file->name, action, dr_system_text(errno));
    return file->status;
}

dr_status dr_file_create(const char *name, dr_file *file) {
    *file = (dr_file){.name = name, .status = DR_OK};
    file->descriptor = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
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

dr_status dr_file_finish(dr_file *file) {
    if (file->descriptor < 0) return file->status;
    struct stat about;
    int regular = fstat(file->descriptor, &about) == 0 && S_ISREG(about.st_mode);
    if (file->status == DR_OK && fsync(file->descriptor) != 0) fail_writing(file, "sync");
    if (close(file->descriptor) != 0 && file->status == DR_OK) fail_writing(file, "close");
    file->descriptor = -1;
    if (file->status != DR_OK && regular) unlink(file->name);
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
