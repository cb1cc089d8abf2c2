/* Making shards of corpora: each document is read, encoded and appended; after every round (writer.h) shards.json says where to
 * go on. What a document's set is depends on its number and the seed alone, so the same corpora give the same shards, however
 * often their writing was interrupted. */
#include <deltarule/chat.h>
#include <deltarule/shards.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/encode.h"
#include "data/mapping.h"
#include "data/streams.h"
#include "formats/lock.h"
#include "shards/corpora.h"
#include "shards/source.h"
#include "shards/tokenizer_files.h"
#include "shards/writer.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const dr_shards_options *options;
    dr_source_options source_options;
    dr_shard_corpora corpora;
    dr_tokenizer *tokenizer;
    dr_chat *chat; /* NULL: lines are texts */
    dr_document_encoder encoder;
    dr_shard_manifest manifest;
    dr_shard_writer *writer;
    dr_shards_progress progress;
    double start;
    char lock_path[PATH_MAX];
    int lock;  /* -1: none */
    bool made; /* the folder was made by this call */
} job;

dr_shards_options dr_shards_defaults(void) {
    return (dr_shards_options){.size = sizeof(dr_shards_options),
                               .validation_share = 0.01,
                               .seed = 1,
                               .field = "text",
                               .shard_tokens = 10000000,
                               .longest_document = INT64_C(1) << 30};
}

/* ---- options ---- */

static dr_status check_options(const dr_shards_options *options) {
    DR_TRY(dr_corpora_check(options));
    DR_NEED(options->tokenizer);
    if (!(options->validation_share >= 0 && options->validation_share <= 0.5))
        return dr_fail(DR_ERROR_ARGUMENT, "validation_share is %g: it must be from 0 to 0.5", options->validation_share);
    if (options->shard_tokens < 1 || options->shard_tokens > 1000000000)
        return dr_fail(DR_ERROR_ARGUMENT, "shard_tokens is %lld: it must be from 1 to 1000000000",
                       (long long)options->shard_tokens);
    return DR_OK;
}

/* Of what decides the ids, but for the corpora. */
static dr_status make_recipe(job *self, uint64_t *recipe) {
    const dr_shards_options *options = self->options;
    const struct {
        int64_t vocabulary, start, shard_tokens, longest;
        uint64_t seed;
        double share;
    } numbers = {self->manifest.vocabulary, self->manifest.start, options->shard_tokens,
                 options->longest_document, options->seed,        options->validation_share};
    *recipe = dr_hash_bytes(0, &numbers, sizeof numbers);
    *recipe = dr_hash_bytes(*recipe, options->field, (int64_t)strlen(options->field));
    if (options->messages) *recipe = dr_hash_bytes(*recipe, options->messages, (int64_t)strlen(options->messages));
    return dr_tokenizer_files_hash(options->tokenizer, recipe);
}

/* ---- the folder ---- */

static bool has_files(const char *folder) {
    DIR *stream = opendir(folder);
    bool any = false;
    for (const struct dirent *item; stream && !any && (item = readdir(stream));) any = item->d_name[0] != '.';
    if (stream) closedir(stream);
    return any;
}

static dr_status take_folder(job *self, const char *folder) {
    struct stat facts;
    self->made = stat(folder, &facts) != 0;
    DR_TRY(dr_folder_make(folder));
    if (snprintf(self->lock_path, sizeof self->lock_path, "%s/.lock", folder) >= (int)sizeof self->lock_path)
        return dr_fail(DR_ERROR_ARGUMENT, "the path of the folder %s is too long", folder);
    self->lock = dr_lock_take(self->lock_path);
    if (self->lock >= 0) return DR_OK;
    if (errno == EWOULDBLOCK) return dr_fail(DR_ERROR_IO, "another process is writing shards into %s", folder);
    return dr_fail(DR_ERROR_IO, "cannot lock %s: %s", folder, dr_system_text(errno));
}

/* The lock goes; an empty folder that this call made, too. */
static void leave_folder(job *self, const char *folder) {
    if (self->lock >= 0) {
        unlink(self->lock_path);
        close(self->lock);
    }
    if (self->made) rmdir(folder); /* fails where there is something in it */
}

/* What is there of earlier calls. */
static dr_status read_folder(job *self, const char *folder) {
    dr_shard_manifest there;
    DR_TRY(dr_folder_recover(folder));
    if (!dr_shard_manifest_exists(folder)) {
        if (!has_files(folder)) return DR_OK;
        return dr_fail(DR_ERROR_ARGUMENT, "the folder %s has files in it and no shards.json: give a new or an empty one",
                       folder);
    }
    dr_status status = dr_shard_manifest_read(folder, &there);
    bool same_recipe = there.recipe == self->manifest.recipe && there.vocabulary == self->manifest.vocabulary;
    if (status == DR_OK && !same_recipe)
        status = dr_fail(DR_ERROR_ARGUMENT,
                         "the shards in %s were begun with another tokenizer or other options: give those, or another folder",
                         folder);
    else if (status == DR_OK && there.contents != self->manifest.contents)
        status =
            dr_fail(DR_ERROR_ARGUMENT,
                    "the shards in %s were begun with other text: put that back as it was, or give another folder", folder);
    if (status != DR_OK) {
        dr_shard_manifest_release(&there);
        return status;
    }
    self->manifest = there;
    for (int64_t i = 0; i < there.count; i++) {
        self->progress.documents += there.shards[i].documents;
        self->progress.bytes += there.shards[i].bytes;
        self->progress.tokens += there.shards[i].tokens;
    }
    return DR_OK;
}

/* ---- documents ---- */

static dr_status report(job *self, int64_t consumed) {
    const dr_shards_options *options = self->options;
    dr_shards_progress now = self->progress;
    now.read += consumed;
    now.shards = self->manifest.count;
    now.seconds = dr_clock_now() - self->start;
    if (!options->progress || options->progress(options->context, &now)) return DR_OK;
    return dr_fail(DR_ERROR_INTERRUPTED, "stopped after %lld documents: the same command goes on", (long long)now.documents);
}

static dr_status commit(job *self) {
    dr_folder *change;
    if (self->manifest.count == 0) { /* the tokenizer comes with the first round */
        DR_TRY(dr_shard_writer_change(self->writer, &change));
        DR_TRY(dr_tokenizer_files_copy(self->options->tokenizer, change));
    }
    return dr_shard_writer_commit(self->writer);
}

static const char *set_of(const job *self, const dr_shard_corpus *corpus) {
    dr_random random = dr_stream(self->options->seed, DR_STREAM_VALIDATION, self->manifest.position.seen);
    if (*corpus->set) return corpus->set;
    return dr_random_uniform(&random) < self->options->validation_share ? "val" : "train";
}

/* The pieces of a chat: their special tokens stand in them. */
static dr_status add_pieces(job *self, const dr_source_document *document) {
    const int32_t *ids;
    size_t count;
    for (int64_t i = 0; i < document->count; i++) {
        const dr_text_piece *piece = &document->pieces[i];
        DR_TRY(dr_encoder_encode(self->encoder.encoder, piece->text, (size_t)piece->bytes, false, &ids, &count));
        if (i == 0 && (count == 0 || ids[0] != self->encoder.start)) {
            DR_TRY(dr_shard_writer_add(self->writer, &self->encoder.start, 1, true));
            self->progress.tokens++;
        }
        DR_TRY(dr_shard_writer_add(self->writer, ids, (int64_t)count, piece->given));
        self->progress.tokens += (int64_t)count;
    }
    return DR_OK;
}

static dr_status add_text(job *self, const dr_shard_corpus *corpus, const dr_source_document *document) {
    const int32_t *ids;
    int64_t count;
    DR_TRY(dr_document_encode(&self->encoder, document->pieces[0].text, document->pieces[0].bytes, &ids, &count));
    DR_TRY(dr_shard_writer_begin(self->writer, set_of(self, corpus), document->bytes));
    self->progress.tokens += count;
    return dr_shard_writer_add(self->writer, ids, count, false);
}

static dr_status add_document(job *self, const dr_shard_corpus *corpus, const dr_source_document *document) {
    if (document->count == 0) return DR_OK;
    if (document->template) {
        DR_TRY(dr_shard_writer_begin(self->writer, set_of(self, corpus), document->bytes));
        DR_TRY(add_pieces(self, document));
    } else {
        DR_TRY(add_text(self, corpus, document));
    }
    self->progress.documents++;
    self->progress.bytes += document->bytes;
    return DR_OK;
}

static dr_status add_source(job *self, const dr_shard_corpus *corpus, dr_source *source) {
    dr_shard_position *position = &self->manifest.position;
    dr_source_document document;
    bool more = true, left_out = false;
    for (int64_t i = 0; i < position->document && more; i++) DR_TRY(dr_source_skip(source, &more));
    while (more) {
        DR_TRY(dr_corpora_judge(self->options, dr_source_next(source, &document, &more), &left_out));
        if (left_out || !more) document.count = 0;
        dr_status status = add_document(self, corpus, &document);
        if (status == DR_ERROR_FORMAT)
            DR_TRY(dr_corpora_judge(self->options, status, &left_out)); /* no ids for it */
        else
            DR_TRY(status);
        position->document += more;
        position->seen += more;
        DR_TRY(report(self, dr_source_consumed(source)));
        if (dr_shard_writer_tokens(self->writer) >= self->options->shard_tokens) DR_TRY(commit(self));
    }
    return DR_OK;
}

static dr_status add_file(job *self, const dr_shard_corpus *corpus, const dr_found_file *file) {
    struct stat facts;
    dr_source *source = NULL;
    bool left_out;
    dr_status opened =
        file->problem ? dr_fail(file->status, "%s", file->problem) : dr_source_open(file, &self->source_options, &source);
    DR_TRY(dr_corpora_judge(self->options, opened, &left_out));
    dr_status status = left_out ? DR_OK : add_source(self, corpus, source);
    dr_source_close(source);
    self->progress.files++;
    if (stat(file->path, &facts) == 0) self->progress.read += facts.st_size;
    return status;
}

static dr_status add_corpora(job *self) {
    dr_shard_position *position = &self->manifest.position;
    int64_t passed = 0;
    for (int64_t c = 0; c < self->corpora.count; c++) {
        const dr_shard_corpus *corpus = &self->corpora.at[c];
        for (int64_t i = 0; i < corpus->files.count; i++) {
            struct stat facts;
            bool done = c < position->corpus || (c == position->corpus && i < position->file);
            passed++;
            if (done) {
                self->progress.files = passed;
                if (stat(corpus->files.at[i].path, &facts) == 0) self->progress.read += facts.st_size;
                continue;
            }
            if (position->corpus != c || position->file != i) position->document = 0;
            position->corpus = c, position->file = i;
            DR_TRY(add_file(self, corpus, &corpus->files.at[i]));
        }
    }
    return DR_OK;
}

/* ---- the whole ---- */

static dr_status prepare(job *self) {
    DR_TRY(check_options(self->options));
    DR_TRY(dr_tokenizer_open(self->options->tokenizer, &self->tokenizer));
    DR_TRY(dr_document_encoder_create(self->tokenizer, &self->encoder));
    DR_TRY(dr_shard_corpora_find(self->options, &self->corpora));
    self->manifest.vocabulary = dr_tokenizer_size(self->tokenizer);
    self->manifest.start = self->encoder.start;
    self->manifest.contents = self->corpora.contents;
    if (self->options->messages) {
        dr_status status = dr_chat_load(self->options->tokenizer, &self->chat);
        if (status != DR_OK) return dr_fail_in(status, "lists of messages need a chat template");
    }
    self->source_options = (dr_source_options){.field = self->options->field,
                                               .messages = self->options->messages,
                                               .chat = self->chat,
                                               .longest_document = self->options->longest_document};
    self->progress.total = self->corpora.bytes;
    return make_recipe(self, &self->manifest.recipe);
}

static dr_status write_all(job *self, const char *folder) {
    if (self->manifest.complete) {
        self->progress.files = self->corpora.files;
        self->progress.read = self->corpora.bytes;
        return DR_OK;
    }
    DR_TRY(dr_shard_writer_create(folder, &self->manifest, &self->writer));
    DR_TRY(add_corpora(self));
    if (self->progress.tokens == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "the corpora have no text: give text files, JSON lines or folders of them");
    self->manifest.complete = true;
    return commit(self);
}

dr_status dr_shards_write(const char *folder, const dr_shards_options *options, dr_shards_progress *total) {
    DR_NEED(folder);
    DR_NEED(options);
    job self = {.options = options, .start = dr_clock_now(), .lock = -1};
    dr_status status = prepare(&self);
    if (status == DR_OK) {
        status = take_folder(&self, folder);
        if (status == DR_OK) status = read_folder(&self, folder);
        if (status == DR_OK) status = write_all(&self, folder);
        self.progress.shards = self.manifest.count;
        self.progress.seconds = dr_clock_now() - self.start;
        dr_shard_writer_destroy(self.writer);
        leave_folder(&self, folder);
    }
    if (status == DR_OK && total) *total = self.progress;
    dr_shard_manifest_release(&self.manifest);
    dr_shard_corpora_release(&self.corpora);
    dr_document_encoder_release(&self.encoder);
    dr_tokenizer_destroy(self.tokenizer);
    dr_chat_destroy(self.chat);
    return status;
}
