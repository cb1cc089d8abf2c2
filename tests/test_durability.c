/* What a power failure would find: in which order files, folders and names reach the disk. Syncs and renames are noted, and
 * then done by the system; names in a folder have no order, so the notes of one step are compared as a set. */
#include "formats/file.h"
#include "formats/folder.h"
#include "formats/lock.h"
#include "scratch.h"
#include "statuses.h"

#include <fcntl.h>

enum { MOST = 64 };

static char note[MOST][96];
static int notes;

static void add_note(const char *what, const char *name, const char *ending) {
    /* the subfolder of a change has a name that is drawn */
    if (notes < MOST)
        snprintf(note[notes++], sizeof note[0], "%s %.40s%s", what, strncmp(name, ".new-", 5) == 0 ? ".new" : name, ending);
}

int __real_fsync(int);
int __wrap_fsync(int);
int __wrap_fsync(int descriptor) {
    char link[64], path[PATH_MAX];
    struct stat facts;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    assert_true(length > 0 && fstat(descriptor, &facts) == 0);
    path[length] = '\0';
    add_note("sync", strrchr(path, '/') + 1, S_ISDIR(facts.st_mode) ? "/" : "");
    return 0;
}

int __real_renameat(int, const char *, int, const char *);
int __wrap_renameat(int, const char *, int, const char *);
int __wrap_renameat(int from, const char *old, int to, const char *name) {
    add_note("rename", old, "");
    return __real_renameat(from, old, to, name);
}

static const char *moved_from, *moved_to; /* what another writer moves just before a lock is taken; NULL: nothing */

int __real_flock(int, int);
int __wrap_flock(int, int);
int __wrap_flock(int descriptor, int operation) {
    if (moved_from) assert_int_equal(rename(moved_from, moved_to), 0);
    moved_from = NULL;
    return __real_flock(descriptor, operation);
}

static int by_text(const void *one, const void *other) {
    return strcmp(one, other);
}

/* The notes from `at` on begin with these, in any order among them; returns where they end. */
static int expect(int at, int count, const char *const *wanted) {
    char found[8][96];
    assert_true(count <= 8 && at + count <= notes);
    memcpy(found, note[at], (size_t)count * sizeof found[0]);
    qsort(found, (size_t)count, sizeof found[0], by_text);
    for (int i = 0; i < count; i++)
        if (strcmp(found[i], wanted[i]) != 0) fail_msg("step %d: '%s' where '%s' should be", at, found[i], wanted[i]);
    return at + count;
}

#define EXPECT(at, ...)                                                                                                        \
    expect(at, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *), (const char *const[]){__VA_ARGS__})

static void write_file(dr_folder *change, const char *name, const char *text) {
    dr_file file;
    must(dr_file_create(dr_folder_path(change, name), &file));
    must(dr_file_write(&file, text, strlen(text)));
    must(dr_file_finish(&file));
}

static void assert_holds(const char *name, const char *text) {
    size_t bytes = 0;
    char *found = scratch_read_at(scratch_path(name), &bytes);
    if (!found) fail_msg("%s is not there", name);
    assert_string_equal(found, text);
    free(found);
}

/* Two files into two new folders, one in the other. */
static void test_order(void **state) {
    (void)state;
    dr_folder *change;
    char parent[64];
    snprintf(parent, sizeof parent, "sync %s/", strrchr(scratch_folder, '/') + 1);
    notes = 0;
    must(dr_folder_begin(scratch_path("outer/inner"), &change));
    write_file(change, "a", "one");
    write_file(change, "b", "two");
    must(dr_folder_commit(change));
    int at = EXPECT(0, parent);     /* the name of the outer folder */
    at = EXPECT(at, "sync outer/"); /* and of the inner one */
    at = EXPECT(at, "sync a", "sync b");
    at = EXPECT(at, "sync .new/");  /* their names */
    at = EXPECT(at, "rename .new"); /* published */
    at = EXPECT(at, "sync inner/");
    at = EXPECT(at, "rename a", "rename b"); /* only now the old files may go */
    at = EXPECT(at, "sync inner/");
    assert_int_equal(at, notes);
    assert_holds("outer/inner/a", "one");
    assert_holds("outer/inner/b", "two");
}

/* A file by itself: its content, then its name. */
static void test_order_of_one_file(void **state) {
    (void)state;
    dr_file file;
    scratch_write("alone/file", "old", 3);
    notes = 0;
    must(dr_file_create(scratch_path("alone/file"), &file));
    must(dr_file_write(&file, "new", 3));
    must(dr_file_finish(&file));
    int at = EXPECT(0, "sync .file.new-0");
    at = EXPECT(at, "sync alone/");
    assert_int_equal(at, notes);
    assert_holds("alone/file", "new");
}

/* Files in a folder of a change, which moves as one: they and their names are on the disk before it does. */
static void test_order_of_a_subfolder(void **state) {
    (void)state;
    dr_folder *change;
    must(dr_folder_begin(scratch_path("with"), &change));
    must(dr_folder_subfolder(change, "below"));
    notes = 0;
    write_file(change, "below/a", "one");
    must(dr_folder_commit(change));
    int at = EXPECT(0, "sync .a.new-0");
    at = EXPECT(at, "sync below/"); /* the name of a */
    at = EXPECT(at, "sync below/");
    at = EXPECT(at, "sync .new/"); /* the name of the folder */
    EXPECT(at, "rename .new");
    assert_holds("with/below/a", "one");
    must(dr_folder_begin(scratch_path("with"), &change));
    must(dr_folder_subfolder(change, "given-up"));
    write_file(change, "given-up/a", "one");
    dr_folder_abandon(change);
    scratch_remove(scratch_path("with/below"));
    assert_int_equal(rmdir(scratch_path("with")), 0); /* nothing is left of it */
}

/* Another writer published a change while this one was being prepared, and was killed before it had moved its files. It came
 * first: its files that this change does not have stay, those of both are this change's. */
static void test_another_writers_commit_is_finished_first(void **state) {
    (void)state;
    dr_folder *change;
    must(dr_folder_begin(scratch_path("shared"), &change));
    write_file(change, "a", "mine");
    scratch_write("shared/.commit/a", "theirs", 6);
    scratch_write("shared/.commit/b", "theirs", 6);
    must(dr_folder_commit(change));
    assert_holds("shared/a", "mine");
    assert_holds("shared/b", "theirs");
    assert_int_not_equal(access(scratch_path("shared/.commit"), F_OK), 0);
}

/* The same by a reader, and by a writer that only begins. */
static void test_readers_finish_a_commit(void **state) {
    (void)state;
    dr_folder *change;
    scratch_write("left/a", "old", 3);
    scratch_write("left/.commit/a", "new", 3);
    notes = 0;
    must(dr_folder_recover(scratch_path("left")));
    EXPECT(EXPECT(0, "rename a"), "sync left/");
    assert_holds("left/a", "new");
    scratch_write("left/.commit/a", "newer", 5);
    must(dr_folder_begin(scratch_path("left"), &change));
    assert_holds("left/a", "newer");
    dr_folder_abandon(change);
    assert_holds("left/a", "newer");
}

/* Between opening and locking, the holder before moved the file to its place: the lock is then taken on the name again. */
static void test_a_lock_is_of_the_name(void **state) {
    (void)state;
    char path[PATH_MAX], place[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch_path("lock"));
    snprintf(place, sizeof place, "%s", scratch_path("in its place"));
    moved_from = path;
    moved_to = place;
    int descriptor = dr_lock_take(path);
    assert_true(descriptor >= 0 && !moved_from);
    assert_true(dr_lock_stands(descriptor, path));
    assert_false(dr_lock_stands(descriptor, place));
    assert_int_equal(dr_lock_take(path), -1); /* held */
    close(descriptor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_order_of_one_file),
        cmocka_unit_test(test_order_of_a_subfolder),
        cmocka_unit_test(test_another_writers_commit_is_finished_first),
        cmocka_unit_test(test_readers_finish_a_commit),
        cmocka_unit_test(test_a_lock_is_of_the_name),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
