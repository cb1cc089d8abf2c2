/* Locks by flock, which the kernel drops when the last descriptor of the holder is closed. Between opening and locking a file
 * its holder before may have removed or renamed it: then a lock on it says nothing, and the name is opened again. */
#include "formats/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool dr_lock_stands(int descriptor, const char *path) {
    struct stat held, named;
    return fstat(descriptor, &held) == 0 && lstat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* Closes the descriptor and keeps errno. */
static void drop(int descriptor) {
    int why = errno;
    close(descriptor);
    errno = why;
}

static int lock(int descriptor, int kind) {
    int locked;
    do locked = flock(descriptor, kind | LOCK_NB);
    while (locked != 0 && errno == EINTR);
    return locked;
}

bool dr_lock_held(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) return false;
    const bool held = lock(descriptor, LOCK_SH) != 0 && errno == EWOULDBLOCK;
    close(descriptor);
    return held;
}

int dr_lock_take(const char *path) {
    for (;;) {
        int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (descriptor < 0) return -1;
        if (lock(descriptor, LOCK_EX) != 0) {
            drop(descriptor);
            return -1;
        }
        if (dr_lock_stands(descriptor, path)) return descriptor;
        drop(descriptor);
    }
}
