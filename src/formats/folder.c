/* Atomic replacement of several files of a folder.
 *
 * The protocol. A change is prepared in a subfolder and published by one rename:
 *
 *     1  make FOLDER/.new-XXXXXX; the caller writes files into it
 *     2  sync each of them and the subfolder (what lies in a folder among them, its writer syncs)
 *     3  rename .new-XXXXXX to .commit            <- the publication point
 *     4  sync FOLDER
 *     5  rename each file of .commit over the old one in FOLDER
 *     6  remove the empty .commit, sync FOLDER
 *
 * A kill before 3 leaves the old files and a .new-XXXXXX that nobody reads. A kill after 3 leaves a .commit whose files, taken
 * together with those already moved, are the new version whole: dr_folder_recover does 5 and 6 again, which is right however
 * far they had come. Since readers recover before they read, they see all old files or all new ones. A power failure is covered
 * by the syncs: no name is moved before what it names is on the disk. If 5 fails (say, a full disk whose folder cannot take
 * another name), nothing is lost: the change is published and the next recovery finishes it.
 *
 * Several processes. Publishing and recovering hold an exclusive lock (flock) on FOLDER, so they never interleave. A writer
 * holds a lock on its .new-XXXXXX from its making to its end; the kernel drops it when the process ends, however it ends, which
 * is how recovery tells a dead writer's subfolder (to be removed) from a living one's. A folder in which there is nothing to
 * recover is only listed, so models on read-only media can be read. A reader that opens one file before and another after a
 * publication mixes versions: what readers need together must be opened right after one recovery. */
#include "formats/folder.h"

#include "base/error.h"
#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char COMMIT[] = ".commit", NEW_PREFIX[] = ".new-", NEW_TEMPLATE[] = ".new-XXXXXX";

struct dr_folder {
    char *folder, *path;                   /* FOLDER; room for FOLDER/.new-XXXXXX/name */
    char name[sizeof ".new-XXXXXX"];       /* of the subfolder */
    int folder_descriptor, new_descriptor; /* -1: not open */
    size_t path_bytes;
};

static dr_status fail_io(const char *folder, const char *action) {
    return dr_fail(DR_ERROR_IO, "%s: cannot %s: %s", folder, action, dr_system_text(errno));
}

static int open_folder(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void close_descriptor(int *descriptor) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

/* Waits for the lock; a signal only makes it try again. */
static dr_status lock_folder(int descriptor, const char *folder) {
    while (flock(descriptor, LOCK_EX) != 0)
        if (errno != EINTR) return fail_io(folder, "lock the folder");
    return DR_OK;
}

static bool is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Calls visit for every name of a folder, which may remove or move that name. */
static dr_status each_name(int descriptor, const char *folder,
                           dr_status (*visit)(int descriptor, const char *folder, const char *name)) {
    int copy = open_folder(descriptor, "."); /* closedir closes what it was given */
    DIR *stream = copy < 0 ? NULL : fdopendir(copy);
    if (!stream) {
        close_descriptor(&copy);
        return fail_io(folder, "list the folder");
    }
    dr_status status = DR_OK;
    for (;;) {
        errno = 0;
        const struct dirent *item = readdir(stream);
        if (!item && errno != 0) status = fail_io(folder, "list the folder");
        if (!item || status != DR_OK) break;
        if (!is_dots(item->d_name)) status = visit(descriptor, folder, item->d_name);
        if (status != DR_OK) break;
    }
    closedir(stream);
    return status;
}

static dr_status sync_file(int descriptor, const char *folder, const char *name) {
    int file = openat(descriptor, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    dr_status status = file < 0 || fsync(file) != 0 ? fail_io(folder, "sync a new file") : DR_OK;
    close_descriptor(&file);
    return status;
}

/* A file, or a subfolder with what is in it. Sets no message of its own: what fails here is waste left behind, and the message
 * of the failure that led here must survive. */
static dr_status remove_name(int descriptor, const char *folder, const char *name) {
    if (unlinkat(descriptor, name, 0) == 0) return DR_OK;
    int below = errno == EISDIR ? open_folder(descriptor, name) : -1;
    if (below < 0) return DR_ERROR_IO;
    dr_status status = each_name(below, folder, remove_name);
    close_descriptor(&below);
    return status == DR_OK && unlinkat(descriptor, name, AT_REMOVEDIR) == 0 ? DR_OK : DR_ERROR_IO;
}

/* descriptor is that of .commit, whose parent is the folder. */
static dr_status move_file(int descriptor, const char *folder, const char *name) {
    int parent = open_folder(descriptor, "..");
    dr_status status = DR_OK;
    if (parent < 0 || renameat(descriptor, name, parent, name) != 0)
        status = dr_fail(DR_ERROR_IO, "%s: cannot move %s to its place (it is safe in %s/%s): %s", folder, name, folder, COMMIT,
                         dr_system_text(errno));
    close_descriptor(&parent);
    return status;
}

/* Steps 5 and 6, with the lock held. No .commit: nothing to do. */
static dr_status finish_commit(int folder_descriptor, const char *folder) {
    int commit = open_folder(folder_descriptor, COMMIT);
    if (commit < 0) return errno == ENOENT ? DR_OK : fail_io(folder, "open its .commit");
    dr_status status = each_name(commit, folder, move_file);
    close_descriptor(&commit);
    DR_TRY(status);
    if (unlinkat(folder_descriptor, COMMIT, AT_REMOVEDIR) != 0) return fail_io(folder, "remove its empty .commit");
    return fsync(folder_descriptor) != 0 ? fail_io(folder, "sync the folder") : DR_OK;
}

/* Removes a subfolder of prepared files, its lock held by us. What cannot be removed is only waste: not a failure. */
static void drop_new(int folder_descriptor, const char *folder, const char *name, int new_descriptor) {
    if (each_name(new_descriptor, folder, remove_name) == DR_OK) unlinkat(folder_descriptor, name, AT_REMOVEDIR);
}

/* Drops name if it is the subfolder of a writer that no longer lives. */
static dr_status drop_stale(int folder_descriptor, const char *folder, const char *name) {
    if (strncmp(name, NEW_PREFIX, strlen(NEW_PREFIX)) != 0) return DR_OK;
    int stale = open_folder(folder_descriptor, name);
    if (stale >= 0 && flock(stale, LOCK_EX | LOCK_NB) == 0) drop_new(folder_descriptor, folder, name, stale);
    close_descriptor(&stale);
    return DR_OK;
}

/* DR_ERROR_INTERRUPTED ends the walk at the first name that recovery is for. */
static dr_status look_for_remains(int descriptor, const char *folder, const char *name) {
    (void)descriptor, (void)folder;
    bool remains = strcmp(name, COMMIT) == 0 || strncmp(name, NEW_PREFIX, strlen(NEW_PREFIX)) == 0;
    return remains ? DR_ERROR_INTERRUPTED : DR_OK;
}

static dr_status recover_open(int descriptor, const char *folder) {
    dr_status look = each_name(descriptor, folder, look_for_remains);
    if (look != DR_ERROR_INTERRUPTED) return look;
    DR_TRY(lock_folder(descriptor, folder));
    DR_TRY(finish_commit(descriptor, folder));
    return each_name(descriptor, folder, drop_stale);
}

dr_status dr_folder_recover(const char *folder) {
    int descriptor = open_folder(AT_FDCWD, folder);
    if (descriptor < 0) return fail_io(folder, "open the folder");
    dr_status status = recover_open(descriptor, folder);
    close_descriptor(&descriptor); /* and with it the lock */
    return status;
}

/* With the prefix of a dead writer's subfolder, recovery removes it. */
static dr_status remove_open(int descriptor, const char *folder, const char *name) {
    char nameless[NAME_MAX + 1];
    snprintf(nameless, sizeof nameless, "%s%s", NEW_PREFIX, name);
    DR_TRY(recover_open(descriptor, folder)); /* one of this name may be left from an earlier call */
    if (renameat(descriptor, name, descriptor, nameless) != 0) return fail_io(folder, "remove a subfolder");
    if (fsync(descriptor) != 0) return fail_io(folder, "sync the folder");
    return recover_open(descriptor, folder);
}

dr_status dr_folder_remove(const char *folder, const char *name) {
    int descriptor = open_folder(AT_FDCWD, folder);
    if (descriptor < 0) return fail_io(folder, "open the folder");
    dr_status status = remove_open(descriptor, folder, name);
    close_descriptor(&descriptor); /* and with it the lock */
    return status;
}

/* Makes path and its parents where they are missing, each synced into its parent. path is written to and restored. */
static dr_status make_folders(char *path) {
    for (size_t end = 1; path[end - 1] != '\0'; end++) {
        if (path[end] != '/' && path[end] != '\0') continue;
        char kept = path[end];
        path[end] = '\0';
        int made = mkdir(path, 0777), why = errno;
        int folder = made == 0 ? open_folder(AT_FDCWD, path) : -1, parent = folder < 0 ? -1 : open_folder(folder, "..");
        bool synced = parent >= 0 && fsync(parent) == 0;
        if (made == 0 && !synced) why = errno;
        close_descriptor(&folder);
        close_descriptor(&parent);
        errno = why;
        dr_status status = (made != 0 && why != EEXIST) || (made == 0 && !synced) ? fail_io(path, "make the folder") : DR_OK;
        path[end] = kept;
        if (status != DR_OK || kept == '\0') return status;
    }
    return DR_OK;
}

dr_status dr_folder_make(const char *folder) {
    char *path;
    if (folder[0] == '\0') return dr_fail(DR_ERROR_ARGUMENT, "the name of a folder is empty");
    DR_TRY(dr_copy_string(folder, &path));
    dr_status status = make_folders(path);
    dr_release(path);
    return status;
}

static void destroy(dr_folder *change) {
    if (!change) return;
    close_descriptor(&change->new_descriptor);
    close_descriptor(&change->folder_descriptor);
    dr_release(change->folder);
    dr_release(change->path);
    dr_release(change);
}

/* Makes and locks the subfolder, under the folder's lock: recovery cannot see it unlocked. */
static dr_status make_new(dr_folder *change) {
    DR_TRY(lock_folder(change->folder_descriptor, change->folder));
    snprintf(change->path, change->path_bytes, "%s/%s", change->folder, NEW_TEMPLATE);
    if (!mkdtemp(change->path)) return fail_io(change->folder, "make a subfolder");
    snprintf(change->name, sizeof change->name, "%s", strrchr(change->path, '/') + 1);
    change->new_descriptor = open_folder(change->folder_descriptor, change->name);
    if (change->new_descriptor < 0 || flock(change->new_descriptor, LOCK_EX | LOCK_NB) != 0)
        return fail_io(change->folder, "lock a subfolder");
    flock(change->folder_descriptor, LOCK_UN);
    return DR_OK;
}

dr_status dr_folder_begin(const char *folder, dr_folder **change) {
    if (folder[0] == '\0') return dr_fail(DR_ERROR_ARGUMENT, "the name of a folder is empty");
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_folder), "a folder's change", &memory));
    dr_folder *begun = memory;
    begun->folder_descriptor = begun->new_descriptor = -1;
    dr_status status;
    begun->path_bytes = strlen(folder) + sizeof NEW_TEMPLATE + NAME_MAX + 2; /* no longer name can be made */
    DR_GO(dr_allocate(begun->path_bytes, "a path", &memory));
    begun->path = memory;
    DR_GO(dr_copy_string(folder, &begun->folder));
    DR_GO(make_folders(begun->folder));
    DR_GO(dr_folder_recover(folder)); /* gives back the room that dead writers took */
    begun->folder_descriptor = open_folder(AT_FDCWD, folder);
    if (begun->folder_descriptor < 0) DR_GO(fail_io(folder, "open the folder"));
    DR_GO(make_new(begun));
    *change = begun;
    return DR_OK;
done:
    destroy(begun);
    return status;
}

const char *dr_folder_path(dr_folder *change, const char *name) {
    snprintf(change->path, change->path_bytes, "%s/%s/%s", change->folder, change->name, name);
    return change->path;
}

bool dr_folder_syncs(const char *path) {
    const char *name = strrchr(path, '/'), *at = name;
    if (!name) return false;
    while (at > path && at[-1] != '/') at--;
    return (size_t)(name - at) == strlen(NEW_TEMPLATE) && strncmp(at, NEW_PREFIX, strlen(NEW_PREFIX)) == 0;
}

dr_status dr_folder_subfolder(dr_folder *change, const char *name) {
    return mkdir(dr_folder_path(change, name), 0777) != 0 ? fail_io(change->folder, "make a subfolder") : DR_OK;
}

/* Steps 3 to 6, with the lock held. *published tells whether step 3 was done. */
static dr_status publish(dr_folder *change, bool *published) {
    int at = change->folder_descriptor;
    DR_TRY(finish_commit(at, change->folder)); /* another writer's that was killed: it came first */
    if (renameat(at, change->name, at, COMMIT) != 0) return fail_io(change->folder, "publish the new files");
    *published = true;
    if (fsync(at) != 0) return fail_io(change->folder, "sync the folder");
    return finish_commit(at, change->folder);
}

dr_status dr_folder_commit(dr_folder *change) {
    bool published = false;
    dr_status status;
    DR_GO(each_name(change->new_descriptor, change->folder, sync_file));
    if (fsync(change->new_descriptor) != 0) DR_GO(fail_io(change->folder, "sync the new files"));
    DR_GO(lock_folder(change->folder_descriptor, change->folder));
    DR_GO(publish(change, &published));
done:
    if (published)
        destroy(change);
    else
        dr_folder_abandon(change);
    return status;
}

void dr_folder_abandon(dr_folder *change) {
    if (!change) return;
    drop_new(change->folder_descriptor, change->folder, change->name, change->new_descriptor);
    destroy(change);
}
