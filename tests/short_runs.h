/* Runs of a few steps of a tiny model, and what their callbacks were told. Include it in one file of a program, which is linked
 * with --wrap=fsync: nothing here is about the disk. */
#ifndef DR_TESTS_SHORT_RUNS_H
#define DR_TESTS_SHORT_RUNS_H

#include "scratch.h"
#include "statuses.h"

#include <deltarule/train.h>
#include <math.h>
#include <stdlib.h>

enum { SHORT_MOST = 64 };

int __wrap_fsync(int);
int __wrap_fsync(int descriptor) {
    (void)descriptor;
    return 0;
}

/* What a run told, and when it is to stop. */
typedef struct {
    dr_progress told[SHORT_MOST + 1]; /* by step */
    int64_t calls, last, stop_at;
} short_run;

static bool short_follow(void *context, const dr_progress *progress) {
    short_run *seen = context;
    assert_true(progress->step > 0 && progress->step <= SHORT_MOST);
    seen->told[progress->step] = *progress;
    seen->calls++;
    seen->last = progress->step;
    return progress->step != seen->stop_at;
}

/* Texts of 30 files. */
static inline void short_write_corpus(void) {
    char name[64], text[1024];
    for (int i = 0; i < 30; i++) {
        int length = snprintf(text, sizeof text, "page %d\n", i);
        for (int line = 0; line < 14; line++)
            length += snprintf(text + length, sizeof text - (size_t)length, "the option -%c of command %d is %s.\n", 'a' + line,
                               i * line % 17, line % 3 ? "common" : "seldom used");
        snprintf(name, sizeof name, "corpus/%02d.txt", i);
        scratch_write(name, text, (size_t)length);
    }
}

/* A tiny language model, with settings "name", "value", .., NULL over its own. */
static inline dr_train_options *short_options(const char *const *settings) {
    static const char *const tiny[] = {"steps",           "6",   "batch", "4", "seq_len", "16", "hidden",       "16",
                                       "layers",          "1",   "heads", "2", "clip",    "1",  "intermediate", "16",
                                       "evaluate_every",  "0",   "seed",  "3", "warmup",  "0",  "save_every",   "0",
                                       "evaluate_tokens", "200", NULL};
    dr_train_options *options;
    must(dr_train_options_create(&options));
    must(dr_train_options_set(options, "corpus", scratch_path("corpus")));
    for (int i = 0; tiny[i]; i += 2) must(dr_train_options_set(options, tiny[i], tiny[i + 1]));
    for (int i = 0; settings[i]; i += 2) must(dr_train_options_set(options, settings[i], settings[i + 1]));
    return options;
}

/* Trains in a folder that is made anew; what dr_run_train came to. */
static inline dr_status short_train(dr_backend *backend, const char *folder, short_run *seen, const char *const *settings) {
    dr_train_options *options = short_options(settings);
    dr_run *run;
    scratch_remove(scratch_path(folder));
    must(dr_run_create(backend, options, scratch_path(folder), &run));
    const dr_status status = dr_run_train(run, short_follow, seen);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    return status;
}

static inline dr_status short_resume(dr_backend *backend, const char *folder, short_run *seen) {
    dr_run *run;
    must(dr_run_resume(backend, scratch_path(folder), NULL, &run));
    const dr_status status = dr_run_train(run, short_follow, seen);
    dr_run_destroy(run);
    return status;
}

/* No run can be made of these settings, for a reason with these words. */
static inline void short_refused(dr_backend *backend, const char *words, const char *const *settings) {
    dr_train_options *options = short_options(settings);
    dr_run *run = NULL;
    assert_refused(dr_run_prepare(backend, options, &run), DR_ERROR_ARGUMENT, words);
    assert_null(run);
    dr_train_options_destroy(options);
}

static inline void short_assert_same_file(const char *folder, const char *other, const char *name) {
    char path[PATH_MAX];
    size_t bytes = 0, other_bytes = 0;
    snprintf(path, sizeof path, "%s/%s", scratch_path(folder), name);
    char *one = scratch_read_at(path, &bytes);
    snprintf(path, sizeof path, "%s/%s", scratch_path(other), name);
    char *two = scratch_read_at(path, &other_bytes);
    assert_non_null(one);
    assert_non_null(two);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(one, two, bytes);
    free(one);
    free(two);
}

#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
