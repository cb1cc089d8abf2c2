/* Language modelling as a task: windows of a corpus of byte tokens in shuffled order, and the score of held-out documents. The
 * held-out text is written into the run folder, so that whoever has the run can score and compress what it never saw. */
#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "data/corpus.h"
#include "data/windows.h"
#include "evaluate/score.h"
#include "formats/file.h"
#include "train/task.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    dr_task task;
    dr_corpus *corpus;
    dr_corpus *held_out; /* given by its path; NULL: a part of the corpus */
    dr_split split;
    dr_windows *windows;
    int64_t batch, length;   /* windows a step, tokens a window */
    int64_t evaluate_tokens; /* 0: all */
    int32_t *ids, *labels;   /* [batch, length] */
} language;

static dr_status batch(dr_task *task, int64_t step, dr_batch *result, int64_t *bytes) {
    language *self = (language *)task;
    int64_t rows = self->batch * self->length;
    for (int64_t i = 0; i < self->batch; i++)
        DR_TRY(dr_windows_get(self->windows, (step - 1) * self->batch + i, self->ids + i * self->length,
                              self->labels + i * self->length));
    *bytes = 0;
    for (int64_t i = 0; i < rows; i++) *bytes += self->labels[i] != DR_DOCUMENT_START;
    *result = (dr_batch){
        .layout = {.sequences = self->batch, .rows = rows}, .ids = self->ids, .targets = rows, .labels = self->labels};
    return DR_OK;
}

static void prepare(dr_task *task, int64_t step) {
    language *self = (language *)task;
    dr_windows_prepare(self->windows, (step - 1) * self->batch);
}

static dr_status evaluate(dr_task *task, dr_model *model, dr_evaluation *evaluation) {
    language *self = (language *)task;
    dr_score score;
    dr_score_options options = {.window = self->length};
    DR_TRY(dr_score_documents(model, &self->split.held_out, self->evaluate_tokens, &options, &score));
    *evaluation = (dr_evaluation){.loss = score.loss, .bits_per_byte = score.bits_per_byte, .accuracy = (double)NAN};
    return DR_OK;
}

static dr_status publish_document(const dr_document *document, const char *path) {
    dr_file file;
    DR_TRY(dr_document_check(document));
    dr_file_create(path, &file);
    dr_file_write(&file, document->text, (size_t)document->bytes);
    dr_document_forget(document, 0, document->bytes);
    return dr_file_finish(&file);
}

/* held_out/00000-NAME and so on, in the order of the corpus. */
static dr_status publish(const dr_task *task, dr_folder *change) {
    const language *self = (const language *)task;
    const dr_documents *held_out = &self->split.held_out;
    char name[NAME_MAX + 1];
    DR_TRY(dr_folder_subfolder(change, "held_out"));
    for (int64_t i = 0; i < held_out->count; i++) {
        const dr_document *document = &held_out->at[i];
        const char *slash = strrchr(document->name, '/');
        snprintf(name, sizeof name, "held_out/%05lld-%.200s", (long long)i, slash ? slash + 1 : document->name);
        DR_TRY(publish_document(document, dr_folder_path(change, name)));
    }
    return DR_OK;
}

/* The files that were left out, by name as far as a screen goes, and how many there are. */
static void describe_left_out(const dr_corpus *corpus, void (*line)(void *context, const char *text), void *context) {
    enum { MOST_NAMED = 10 };
    char text[1024];
    int64_t count = corpus->left_out.count;
    for (int64_t i = 0; i < count && i < MOST_NAMED; i++) {
        snprintf(text, sizeof text, "left out: %s", corpus->left_out.at[i].problem);
        line(context, text);
    }
    if (count == 0) return;
    snprintf(text, sizeof text, "left out in all: %lld files", (long long)count);
    line(context, text);
}

static void describe(const dr_task *task, void (*line)(void *context, const char *text), void *context) {
    const language *self = (const language *)task;
    const dr_documents *training = &self->split.training, *held_out = &self->split.held_out;
    char text[512];
    snprintf(text, sizeof text, "data: %lld bytes in %lld files, %lld windows of %lld tokens an epoch",
             (long long)training->bytes, (long long)training->count, (long long)self->windows->windows,
             (long long)self->length);
    line(context, text);
    dr_format(text, sizeof text, "held out: %lld bytes (%.1f%%) in %lld files", (long long)held_out->bytes,
              100 * (double)held_out->bytes / (double)(training->bytes + held_out->bytes), (long long)held_out->count);
    line(context, text);
    if (self->split.cut) {
        char name[400];
        snprintf(text, sizeof text, "whole files would not do: the end of %s is held out",
                 dr_printable(self->split.cut, name, sizeof name));
        line(context, text);
    }
    describe_left_out(self->corpus, line, context);
    if (self->held_out) describe_left_out(self->held_out, line, context);
}

static void destroy(dr_task *task) {
    language *self = (language *)task;
    dr_windows_destroy(self->windows);
    dr_split_destroy(&self->split);
    dr_corpus_destroy(self->corpus);
    dr_corpus_destroy(self->held_out);
    dr_release(self->ids);
    dr_release(self->labels);
    dr_release(self);
}

static dr_status allocate(language *self) {
    void *memory;
    int64_t bytes;
    if (!dr_product((int64_t[]){self->batch, self->length, sizeof(int32_t)}, 3, &bytes))
        return dr_fail(DR_ERROR_ARGUMENT, "batch %lld times seq_len %lld is more than can be counted", (long long)self->batch,
                       (long long)self->length);
    DR_TRY(dr_allocate((size_t)bytes, "a batch of tokens", &memory));
    self->ids = memory;
    DR_TRY(dr_allocate((size_t)bytes, "a batch of labels", &memory));
    self->labels = memory;
    return DR_OK;
}

/* A share of the corpus, chosen by its own seed so that runs of several seeds are held against the same text, or a corpus of
 * its own. */
static dr_status hold_out(language *self, const dr_train_options *options) {
    const uint64_t seed = (uint64_t)dr_setting_integer(options, DR_SET_HELD_OUT_SEED);
    const char *path = dr_held_out_path(options);
    double share;
    if (!path) {
        DR_TRY(dr_held_out_share(options, &share));
        return dr_split_create(self->corpus, seed, share, &self->split);
    }
    dr_status status = dr_corpus_read(path, dr_setting_boolean(options, DR_SET_SKIP_UNREADABLE), &self->held_out);
    if (status != DR_OK) return dr_fail_in(status, "held_out");
    self->task.fingerprint = dr_corpus_fingerprint(self->held_out, self->task.fingerprint);
    return dr_split_create_from(self->corpus, self->held_out, &self->split);
}

dr_status dr_task_language_model_create(const dr_train_options *options, dr_task **task) {
    static const dr_task_operations operations = {
        .batch = batch, .prepare = prepare, .evaluate = evaluate, .publish = publish, .describe = describe, .destroy = destroy};
    const char *path = dr_setting_text(options, DR_SET_CORPUS);
    uint64_t seed = (uint64_t)dr_setting_integer(options, DR_SET_SEED);
    void *memory;
    if (!*path)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "corpus is missing: task lm learns from text; give a file or a folder, or choose task mqar");
    DR_TRY(dr_allocate_zero(sizeof(language), "the language modelling task", &memory));
    language *self = memory;
    self->task = (dr_task){.ops = &operations, .vocabulary = DR_BYTE_VOCABULARY};
    self->batch = dr_setting_integer(options, DR_SET_BATCH);
    self->length = dr_setting_integer(options, DR_SET_SEQ_LEN);
    self->evaluate_tokens = dr_setting_integer(options, DR_SET_EVALUATE_TOKENS);
    dr_status status;
    DR_GO(dr_corpus_read(path, dr_setting_boolean(options, DR_SET_SKIP_UNREADABLE), &self->corpus));
    self->task.fingerprint = dr_corpus_fingerprint(self->corpus, 0);
    DR_GO(hold_out(self, options));
    DR_GO(dr_windows_create(&self->split.training, self->length, seed, &self->windows));
    DR_GO(allocate(self));
    self->task.sequences = self->batch;
    self->task.rows = self->task.targets = self->batch * self->length;
    *task = &self->task;
    return DR_OK;
done:
    destroy(&self->task);
    return status;
}
