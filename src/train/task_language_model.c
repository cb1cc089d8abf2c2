/* Language modelling as a task: windows of one or several corpora in shuffled order, packed so that no state leaks from one
 * document to the next, and the score of held-out sets. Held-out text is written into the run folder, so that whoever has the
 * run can score and compress what it never saw, and so is the tokenizer, without which the model could not read. */
#include "base/error.h"
#include "base/memory.h"
#include "data/mixture.h"
#include "data/windows.h"
#include "evaluate/score.h"
#include "evaluate/score_tokens.h"
#include "formats/file.h"
#include "shards/tokenizer_files.h"
#include "train/task.h"
#include "train/training_data.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    dr_task task;
    dr_training_data *data;
    dr_windows **windows; /* [data->count] */
    dr_mixture *mixture;
    int64_t batch, length;   /* windows a batch, tokens a window */
    int64_t evaluate_tokens; /* of a set; 0: all */
    bool resets;             /* at documents */
    int32_t *ids, *labels;   /* [batch, length] */
    uint8_t *marks;          /* [batch, length] */
    int64_t *positions;      /* [batch, length] of the labels, where some tokens are given */
    int64_t *bounds;         /* [batch length + 1] of packed sequences */
    const char **names;      /* [held-out sets] */
    dr_set_evaluation *sets; /* [held-out sets] */
} language;

/* ---- batches ---- */

/* Sequences begin with windows, and with documents if the state does not go over them. */
static int64_t find_bounds(const language *self, int64_t rows) {
    int64_t sequences = 0;
    for (int64_t i = 0; i < rows; i++)
        if (i % self->length == 0 || (self->resets && (self->marks[i] & DR_TOKEN_BEGINS))) self->bounds[sequences++] = i;
    self->bounds[sequences] = rows;
    return sequences;
}

/* Leaves the labels that are to be learned, and their positions; returns how many. */
static int64_t select_labels(const language *self, int64_t rows) {
    int64_t targets = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (self->marks[i] & DR_TOKEN_GIVEN) continue;
        self->positions[targets] = i;
        self->labels[targets++] = self->labels[i];
    }
    return targets;
}

/* Of the text that labels stand for; 0: nobody knows. */
static int64_t count_bytes(const language *self, int64_t targets) {
    const dr_training_data *data = self->data;
    int64_t bytes = 0;
    if (dr_training_data_is_bytes(data)) {
        for (int64_t i = 0; i < targets; i++) bytes += self->labels[i] != DR_DOCUMENT_START;
    } else if (data->lengths) {
        const int64_t known = dr_tokenizer_size(data->tokenizer);
        for (int64_t i = 0; i < targets; i++) bytes += self->labels[i] < known ? data->lengths[self->labels[i]] : 0;
    }
    return bytes;
}

static dr_status batch(dr_task *task, int64_t number, dr_batch *result, int64_t *bytes) {
    language *self = (language *)task;
    int64_t rows = self->batch * self->length;
    for (int64_t i = 0; i < self->batch; i++) {
        int64_t at = i * self->length;
        DR_TRY(
            dr_mixture_get(self->mixture, (number - 1) * self->batch + i, self->ids + at, self->labels + at, self->marks + at));
    }
    int64_t sequences = find_bounds(self, rows), targets = task->selects ? select_labels(self, rows) : rows;
    *bytes = count_bytes(self, targets);
    *result = (dr_batch){
        .layout = {.sequences = sequences, .rows = rows, .cu_seqlens = sequences == self->batch ? NULL : self->bounds},
        .ids = self->ids,
        .targets = targets,
        .positions = task->selects ? self->positions : NULL,
        .labels = self->labels};
    return DR_OK;
}

static void prepare(dr_task *task, int64_t number) {
    language *self = (language *)task;
    dr_mixture_prepare(self->mixture, (number - 1) * self->batch);
}

/* ---- evaluation ---- */

static dr_status score_set(const language *self, const dr_held_out_set *set, dr_session *session, dr_score *score) {
    const dr_training_data *data = self->data;
    dr_score_options options = {.window = self->length};
    if (!set->tokens) return dr_score_documents(session, set->text, self->evaluate_tokens, &options, score);
    dr_token_score_options of_tokens = {.window = self->length,
                                        .most = self->evaluate_tokens,
                                        .lengths = data->lengths,
                                        .known = data->tokenizer ? dr_tokenizer_size(data->tokenizer) : 0};
    return dr_score_tokens(session, set->tokens, &set->documents, &of_tokens, score);
}

static dr_status evaluate(dr_task *task, dr_session *session, dr_evaluation *evaluation) {
    language *self = (language *)task;
    const dr_training_data *data = self->data;
    double loss = 0, bits = 0;
    int64_t tokens = 0, bytes = 0;
    for (int64_t i = 0; i < data->held_out_count; i++) {
        dr_score score;
        DR_TRY(score_set(self, &data->held_out[i], session, &score));
        self->sets[i] = (dr_set_evaluation){score.loss, score.bits_per_byte, (double)NAN, (double)NAN};
        if (score.tokens == 0) continue;
        loss += score.loss * (double)score.tokens;
        bits += score.bits_per_byte * (double)score.bytes;
        tokens += score.tokens, bytes += score.bytes;
    }
    bool single = data->held_out_count == 1; /* its own numbers to the last bit */
    *evaluation = (dr_evaluation){.loss = single ? self->sets[0].loss : loss / (double)tokens,
                                  .bits_per_byte = single ? self->sets[0].bits_per_byte : bits / (double)bytes,
                                  .accuracy = (double)NAN,
                                  .sets = self->sets};
    return DR_OK;
}

/* ---- what the run folder gets ---- */

static dr_status publish_document(const dr_document *document, const char *path) {
    dr_file file;
    DR_TRY(dr_document_check(document));
    dr_file_create(path, &file);
    dr_file_write(&file, document->text, (size_t)document->bytes);
    dr_document_forget(document);
    return dr_file_finish(&file);
}

/* held_out/00000-NAME and so on, in the order of the corpora; and the tokenizer's files. */
static dr_status publish(const dr_task *task, dr_folder *change) {
    const dr_training_data *data = ((const language *)task)->data;
    char name[NAME_MAX + 1];
    int64_t number = 0;
    if (data->tokenizer_path) DR_TRY(dr_tokenizer_files_copy(data->tokenizer_path, change));
    for (int64_t set = 0; set < data->held_out_count; set++) {
        const dr_documents *text = data->held_out[set].text;
        for (int64_t i = 0; text && i < text->count; i++, number++) {
            const dr_document *document = &text->at[i];
            const char *slash = strrchr(document->name, '/');
            if (number == 0) DR_TRY(dr_folder_subfolder(change, "held_out"));
            snprintf(name, sizeof name, "held_out/%05lld-%.200s", (long long)number, slash ? slash + 1 : document->name);
            DR_TRY(publish_document(document, dr_folder_path(change, name)));
        }
    }
    return DR_OK;
}

static void describe(const dr_task *task, void (*line)(void *context, const char *text), void *context) {
    const language *self = (const language *)task;
    char text[256];
    dr_training_data_describe(self->data, line, context);
    for (int64_t i = 0; i < self->data->count; i++) {
        snprintf(text, sizeof text, "an epoch: %lld windows of %lld tokens", (long long)self->windows[i]->windows,
                 (long long)self->length);
        if (self->data->count == 1) line(context, text);
    }
}

/* ---- making and destroying ---- */

static void destroy(dr_task *task) {
    language *self = (language *)task;
    dr_mixture_destroy(self->mixture);
    for (int64_t i = 0; self->windows && i < self->data->count; i++) dr_windows_destroy(self->windows[i]);
    dr_release(self->windows);
    dr_training_data_close(self->data);
    dr_release(self->ids);
    dr_release(self->labels);
    dr_release(self->marks);
    dr_release(self->positions);
    dr_release(self->bounds);
    dr_release(self->names);
    dr_release(self->sets);
    dr_release(self);
}

static dr_status allocate(language *self) {
    void *memory;
    int64_t bytes;
    if (!dr_product((int64_t[]){self->batch, self->length, sizeof(int64_t)}, 3, &bytes))
        return dr_fail(DR_ERROR_ARGUMENT, "batch %lld times seq_len %lld is more than can be counted", (long long)self->batch,
                       (long long)self->length);
    const size_t rows = (size_t)bytes / sizeof(int64_t);
    DR_TRY(dr_allocate(rows * sizeof(int32_t), "a batch of tokens", &memory));
    self->ids = memory;
    DR_TRY(dr_allocate(rows * sizeof(int32_t), "a batch of labels", &memory));
    self->labels = memory;
    DR_TRY(dr_allocate(rows, "the marks of a batch", &memory));
    self->marks = memory;
    DR_TRY(dr_allocate((rows + 1) * sizeof(int64_t), "the sequences of a batch", &memory));
    self->bounds = memory;
    if (!self->task.selects) return DR_OK;
    DR_TRY(dr_allocate(rows * sizeof(int64_t), "the positions of a batch", &memory));
    self->positions = memory;
    return DR_OK;
}

/* The windows of each corpus, and their mixture. */
static dr_status make_windows(language *self, const dr_train_options *options) {
    const dr_training_data *data = self->data;
    const uint64_t seed = (uint64_t)dr_setting_integer(options, DR_SET_SEED);
    void *memory;
    DR_TRY(dr_allocate_zero((size_t)data->count * sizeof(dr_windows *), "the windows of corpora", &memory));
    self->windows = memory;
    DR_TRY(dr_allocate((size_t)data->count * sizeof(double), "the weights of corpora", &memory));
    double *weights = memory;
    dr_status status = DR_OK;
    for (int64_t i = 0; i < data->count && status == DR_OK; i++) {
        weights[i] = data->corpora[i].weight;
        self->task.selects = self->task.selects || data->corpora[i].training->gives;
        status = dr_windows_create(data->corpora[i].training, self->length, seed, &self->windows[i]);
        if (status != DR_OK && data->count > 1) dr_fail_in(status, "%s", data->corpora[i].path);
    }
    if (status == DR_OK) status = dr_mixture_create(self->windows, weights, data->count, seed, &self->mixture);
    dr_release(weights);
    return status;
}

/* Sets that are told apart in the metrics. */
static dr_status name_sets(language *self) {
    const dr_training_data *data = self->data;
    void *memory;
    DR_TRY(dr_allocate_zero((size_t)data->held_out_count * sizeof(dr_set_evaluation), "the results of held-out sets", &memory));
    self->sets = memory;
    DR_TRY(dr_allocate((size_t)data->held_out_count * sizeof(char *), "the names of held-out sets", &memory));
    self->names = memory;
    for (int64_t i = 0; i < data->held_out_count; i++) self->names[i] = data->held_out[i].name;
    if (data->held_out_count > 1) self->task.sets = (dr_set_names){self->names, (int)data->held_out_count, true};
    return DR_OK;
}

dr_status dr_task_language_model_create(const dr_train_options *options, dr_task **task) {
    static const dr_task_operations operations = {
        .batch = batch, .prepare = prepare, .evaluate = evaluate, .publish = publish, .describe = describe, .destroy = destroy};
    void *memory;
    if (!*dr_setting_text(options, DR_SET_CORPUS))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "corpus is missing: task lm learns from text; give a file or a folder, or choose another task");
    DR_TRY(dr_allocate_zero(sizeof(language), "the language modelling task", &memory));
    language *self = memory;
    self->task = (dr_task){.ops = &operations};
    self->length = dr_setting_integer(options, DR_SET_SEQ_LEN);
    self->evaluate_tokens = dr_setting_integer(options, DR_SET_EVALUATE_TOKENS);
    self->resets = dr_setting_boolean(options, DR_SET_RESET_AT_DOCUMENTS);
    dr_status status;
    int64_t all;
    DR_GO(dr_train_batch(options, self->length, &all, &self->batch));
    DR_GO(dr_training_data_open(options, &self->data));
    DR_GO(make_windows(self, options));
    DR_GO(name_sets(self));
    DR_GO(allocate(self));
    self->task.vocabulary = self->data->vocabulary;
    self->task.fingerprint = self->data->fingerprint;
    self->task.sequences = self->batch;
    self->task.rows = self->task.targets = self->batch * self->length;
    *task = &self->task;
    return DR_OK;
done:
    destroy(&self->task);
    return status;
}
