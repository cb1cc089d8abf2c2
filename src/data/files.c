/* Finding files in rounds: first the tree that no link belongs to, then what the links found in it lead to, in order of their
 * paths, then what the links found there lead to, and so on. A folder is entered once, by whatever path comes first, so that a
 * link to a folder that contains it ends. Which of its names a file gets thus follows from the tree alone, not from the order
 * in which a file system lists it, and a link never takes the place of the file itself.
 *
 * The order of paths is that of strcmp on each folder's names, not of the locale: the order of documents decides which are held
 * out and in which order windows are drawn, so the same folder must give the same run on every machine. */
#include "data/files.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { PRINTED_NAME = 600, PROBLEM_BYTES = 800 };

typedef struct {
    char **at;
    int64_t count, capacity;
} paths;

/* Folders that were entered: a hash table with open addresses, at most half full. */
typedef struct {
    struct {
        uint64_t device, inode;
        bool used;
    } * at;
    int64_t count, capacity; /* a power of two, or 0 */
} folders;

typedef struct {
    dr_found_files *files;
    paths waiting; /* folders of this round's tree to be listed */
    paths links;   /* found in this round */
    folders entered;
    folders above; /* the folders that the one searched lies in */
    int round;
} search;

/* ---- lists ---- */

/* Takes the path over, whatever happens. */
static dr_status append_path(paths *list, char *path) {
    if (list->count == list->capacity) {
        void *memory = list->at;
        dr_status status = dr_grow(&memory, list->capacity, sizeof(char *), "a list of paths");
        list->at = memory;
        if (status != DR_OK) {
            dr_release(path);
            return status;
        }
        list->capacity = list->capacity ? 2 * list->capacity : 1;
    }
    list->at[list->count++] = path;
    return DR_OK;
}

static void release_paths(paths *list) {
    for (int64_t i = 0; i < list->count; i++) dr_release(list->at[i]);
    dr_release(list->at);
    *list = (paths){0};
}

static int64_t place_of(const folders *set, uint64_t device, uint64_t inode) {
    uint64_t hash = (inode ^ device << 32) * 0x9e3779b97f4a7c15;
    int64_t place = (int64_t)(hash >> 20) & (set->capacity - 1);
    while (set->at[place].used && (set->at[place].device != device || set->at[place].inode != inode))
        place = (place + 1) & (set->capacity - 1);
    return place;
}

/* *first: whether it was not in the set before. */
static dr_status enter(folders *set, uint64_t device, uint64_t inode, bool *first) {
    if (2 * (set->count + 1) > set->capacity) {
        folders larger = {.capacity = set->capacity ? 2 * set->capacity : 64};
        void *memory;
        DR_TRY(dr_allocate_zero((size_t)larger.capacity * sizeof *larger.at, "the set of folders", &memory));
        larger.at = memory;
        for (int64_t i = 0; i < set->capacity; i++)
            if (set->at[i].used) larger.at[place_of(&larger, set->at[i].device, set->at[i].inode)] = set->at[i];
        larger.count = set->count;
        dr_release(set->at);
        *set = larger;
    }
    int64_t place = place_of(set, device, inode);
    *first = !set->at[place].used;
    if (!*first) return DR_OK;
    set->at[place].device = device, set->at[place].inode = inode, set->at[place].used = true;
    set->count++;
    return DR_OK;
}

/* ---- what is found ---- */

dr_status dr_file_problem(dr_found_file *file, dr_status status, const char *format, ...) {
    char name[PRINTED_NAME], text[PROBLEM_BYTES];
    int used = snprintf(text, sizeof text, "%s ", dr_printable(file->path, name, sizeof name));
    va_list arguments;
    va_start(arguments, format);
    dr_format_list(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    file->status = status;
    return dr_copy_string(text, &file->problem);
}

/* Takes the path over. */
static dr_status append_file(search *self, char *path, const struct stat *facts, dr_found_file **added) {
    dr_found_files *files = self->files;
    void *memory = files->at;
    dr_status status = dr_grow(&memory, files->count, sizeof(dr_found_file), "the list of files");
    files->at = memory;
    if (status != DR_OK) {
        dr_release(path);
        return status;
    }
    *added = &files->at[files->count++];
    **added = (dr_found_file){.path = path, .links = self->round};
    if (facts) (*added)->device = (uint64_t)facts->st_dev, (*added)->inode = (uint64_t)facts->st_ino;
    return DR_OK;
}

/* A path that cannot be followed, for the reason in errno. Takes it over. */
static dr_status append_unreadable(search *self, char *path, const char *action, int reason) {
    dr_found_file *file;
    DR_TRY(append_file(self, path, NULL, &file));
    return dr_file_problem(file, DR_ERROR_IO, "cannot be %s: %s", action, dr_system_text(reason));
}

static const char *kind_of(mode_t mode) {
    return S_ISFIFO(mode)                   ? "a named pipe"
           : S_ISSOCK(mode)                 ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                            : "of an unknown kind";
}

/* A file, a folder, or what is neither. Takes the path over. */
static dr_status meet(search *self, char *path, const struct stat *facts) {
    dr_found_file *file;
    if (S_ISDIR(facts->st_mode)) return append_path(&self->waiting, path);
    DR_TRY(append_file(self, path, facts, &file));
    if (S_ISREG(facts->st_mode)) return DR_OK;
    return dr_file_problem(file, DR_ERROR_ARGUMENT, "is not a regular file but %s", kind_of(facts->st_mode));
}

/* ---- walking ---- */

static dr_status join(const char *folder, const char *name, char **path) {
    size_t length = strlen(folder), size = length + strlen(name) + 2;
    void *memory;
    DR_TRY(dr_allocate(size, "a path", &memory));
    snprintf(memory, size, "%s%s%s", folder, length > 0 && folder[length - 1] == '/' ? "" : "/", name);
    *path = memory;
    return DR_OK;
}

static dr_status list_entry(search *self, DIR *listing, const char *folder, const char *name) {
    struct stat facts;
    char *path;
    DR_TRY(join(folder, name, &path));
    if (fstatat(dirfd(listing), name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT) return append_unreadable(self, path, "read", errno);
        dr_release(path); /* it went away meanwhile */
        return DR_OK;
    }
    return S_ISLNK(facts.st_mode) ? append_path(&self->links, path) : meet(self, path, &facts);
}

/* Whether the system writes what lies there while it is read, and links there lead through the whole machine. */
static bool is_of_kernel(int descriptor) {
    static const unsigned long kinds[] = {PROC_SUPER_MAGIC,   SYSFS_MAGIC,         DEBUGFS_MAGIC,    TRACEFS_MAGIC,
                                          CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, SECURITYFS_MAGIC, DEVPTS_SUPER_MAGIC};
    struct statfs facts;
    if (fstatfs(descriptor, &facts) != 0) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((unsigned long)facts.f_type == kinds[i]) return true;
    return false;
}

static dr_status append_unfit(search *self, char *path, const char *reason) {
    dr_found_file *file;
    DR_TRY(append_file(self, path, NULL, &file));
    return dr_file_problem(file, DR_ERROR_ARGUMENT, "%s", reason);
}

/* Takes the path over. */
static dr_status list_folder(search *self, char *folder) {
    struct stat facts;
    bool first = false;
    DIR *listing = opendir(folder);
    if (!listing || fstat(dirfd(listing), &facts) != 0) {
        int reason = errno;
        if (listing) closedir(listing);
        return append_unreadable(self, folder, "listed", reason);
    }
    if (is_of_kernel(dirfd(listing))) {
        closedir(listing);
        return append_unfit(self, folder, "is a folder of the system's own, as those of /proc are, not of files");
    }
    dr_status status = enter(&self->entered, (uint64_t)facts.st_dev, (uint64_t)facts.st_ino, &first);
    for (struct dirent *entry; status == DR_OK && first && (errno = 0, entry = readdir(listing));)
        if (entry->d_name[0] != '.') status = list_entry(self, listing, folder, entry->d_name);
    int reason = status == DR_OK && first ? errno : 0;
    closedir(listing);
    if (reason) return append_unreadable(self, folder, "listed", reason);
    dr_release(folder);
    return status;
}

static dr_status list_waiting(search *self) {
    while (self->waiting.count > 0) DR_TRY(list_folder(self, self->waiting.at[--self->waiting.count]));
    return DR_OK;
}

/* The end of a folder's path counts as less than any character of a name: folder by folder. */
static int compare_paths(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    int x = *a == '/' ? 0 : *a ? (unsigned char)*a : -1, y = *b == '/' ? 0 : *b ? (unsigned char)*b : -1;
    return x - y;
}

static int by_path(const void *a, const void *b) {
    return compare_paths(*(char *const *)a, *(char *const *)b);
}

static bool has_entered(const folders *set, const struct stat *facts) {
    return set->count > 0 && set->at[place_of(set, (uint64_t)facts->st_dev, (uint64_t)facts->st_ino)].used;
}

/* The folders that a path lies in, up to the root. */
static dr_status enter_above(folders *above, const char *path) {
    struct stat facts;
    bool first;
    char *real = realpath(path, NULL);
    dr_status status = DR_OK;
    for (char *end = real; status == DR_OK && end && (end = strrchr(real, '/'));) {
        end[end == real] = '\0';
        if (stat(real, &facts) == 0) status = enter(above, (uint64_t)facts.st_dev, (uint64_t)facts.st_ino, &first);
        if (end == real) break;
    }
    free(real);
    return status;
}

static dr_status follow(search *self, char *path) {
    struct stat facts;
    if (stat(path, &facts) != 0) return append_unreadable(self, path, "followed to a file", errno);
    if (has_entered(&self->above, &facts))
        return append_unfit(self, path, "leads to a folder that the corpus itself lies in: link to what is meant of it");
    DR_TRY(meet(self, path, &facts));
    return list_waiting(self);
}

static dr_status follow_links(search *self) {
    while (self->links.count > 0) {
        paths links = self->links;
        self->links = (paths){0};
        self->round++;
        qsort(links.at, (size_t)links.count, sizeof *links.at, by_path);
        dr_status status = DR_OK;
        for (int64_t i = 0; i < links.count; i++) {
            char *path = links.at[i];
            links.at[i] = NULL;
            if (status == DR_OK)
                status = follow(self, path);
            else
                dr_release(path);
        }
        dr_release(links.at);
        DR_TRY(status);
    }
    return DR_OK;
}

/* ---- each file once ---- */

static int by_identity(const void *left, const void *right) {
    const dr_found_file *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    if (a->links != b->links) return a->links - b->links;
    return compare_paths(a->path, b->path);
}

static int by_place(const void *left, const void *right) {
    return compare_paths(((const dr_found_file *)left)->path, ((const dr_found_file *)right)->path);
}

static void release_file(dr_found_file *file) {
    dr_release(file->path);
    dr_release(file->problem);
}

/* Files without an identity are links to nothing and the like: all of them stay. */
static void keep_each_once(dr_found_files *files) {
    int64_t kept = 0;
    if (files->count == 0) return;
    qsort(files->at, (size_t)files->count, sizeof *files->at, by_identity);
    for (int64_t i = 0; i < files->count; i++) {
        const dr_found_file *last = kept > 0 ? &files->at[kept - 1] : NULL;
        bool again =
            last && files->at[i].inode != 0 && last->inode == files->at[i].inode && last->device == files->at[i].device;
        if (again)
            release_file(&files->at[i]);
        else
            files->at[kept++] = files->at[i];
    }
    files->count = kept;
    qsort(files->at, (size_t)kept, sizeof *files->at, by_place);
}

dr_status dr_files_find(const char *path, dr_found_files *files) {
    char *start;
    struct stat facts;
    *files = (dr_found_files){0};
    if (stat(path, &facts) != 0) {
        dr_status status = errno == ENOENT || errno == ENOTDIR ? DR_ERROR_ARGUMENT : DR_ERROR_IO;
        return dr_fail(status, "cannot read the corpus \"%s\": %s; give a text file or a folder of them", path,
                       dr_system_text(errno));
    }
    DR_TRY(dr_copy_string(path, &start));
    for (size_t length = strlen(start); S_ISDIR(facts.st_mode) && length > 1 && start[length - 1] == '/';)
        start[--length] = '\0';
    search self = {.files = files};
    dr_status status = meet(&self, start, &facts);
    if (status == DR_OK && S_ISDIR(facts.st_mode)) status = enter_above(&self.above, path);
    if (status == DR_OK) status = list_waiting(&self);
    if (status == DR_OK) status = follow_links(&self);
    release_paths(&self.waiting);
    release_paths(&self.links);
    dr_release(self.entered.at);
    dr_release(self.above.at);
    if (status == DR_OK)
        keep_each_once(files);
    else
        dr_files_release(files);
    return status;
}

void dr_files_release(dr_found_files *files) {
    for (int64_t i = 0; i < files->count; i++) release_file(&files->at[i]);
    dr_release(files->at);
    *files = (dr_found_files){0};
}
