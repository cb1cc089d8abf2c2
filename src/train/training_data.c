/* Opening what a run learns from. Text is bytes unless a tokenizer is named; shards bring theirs along. All corpora of a run
 * speak of the same ids: the first that brings a tokenizer, or the setting, says which. */
#include "train/training_data.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "data/encode.h"
#include "data/encoded.h"
#include "data/mapping.h"
#include "shards/tokenizer_files.h"
#include "train/mixture_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_HELD_OUT = 16384 /* tokens */ };

/* ---- the tokenizer ---- */

/* Where the tokenizer is: as the setting says, or beside the first shards that have one. */
static const char *find_tokenizer(const dr_train_options *options, const dr_mixture_items *items) {
    const char *given = dr_setting_text(options, DR_SET_TOKENIZER);
    if (*given) return given;
    for (int64_t i = 0; i < items->count; i++)
        if (dr_shards_are(items->at[i].path) && dr_tokenizer_is_in(items->at[i].path)) return items->at[i].path;
    return NULL;
}

static dr_status open_tokenizer(dr_training_data *data, const dr_train_options *options, const dr_mixture_items *items) {
    const char *path = find_tokenizer(options, items);
    if (!path || strcmp(path, "bytes") == 0) return DR_OK;
    DR_TRY(dr_tokenizer_open(path, &data->tokenizer));
    DR_TRY(dr_copy_string(path, &data->tokenizer_path));
    DR_TRY(dr_token_lengths(data->tokenizer, &data->lengths));
    DR_TRY(dr_tokenizer_files_hash(path, &data->fingerprint));
    data->vocabulary = dr_tokenizer_size(data->tokenizer);
    return DR_OK;
}

/* What shards are asked that say nothing about themselves. */
static dr_shards_of expected(const dr_training_data *data, const dr_train_options *options) {
    dr_shards_of of = {.start = -1};
    if (data->tokenizer) {
        of.vocabulary = data->vocabulary;
        if (dr_document_start(data->tokenizer, &of.start) != DR_OK) of.start = -1;
    } else if (dr_setting_is_set(options, DR_SET_VOCABULARY)) {
        of.vocabulary = dr_setting_integer(options, DR_SET_VOCABULARY);
    }
    return of;
}

/* All corpora must have one vocabulary. */
static dr_status agree(dr_training_data *data, const char *path, int64_t vocabulary) {
    if (data->vocabulary == 0) data->vocabulary = vocabulary;
    if (data->vocabulary == vocabulary) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s has a vocabulary of %lld ids, and what was read before it %lld: one run has one",
                   path, (long long)vocabulary, (long long)data->vocabulary);
}

static void mix_fingerprint(dr_training_data *data, uint64_t number) {
    data->fingerprint = dr_hash_bytes(data->fingerprint, &number, sizeof number);
}

/* ---- held-out sets ---- */

/* Whether another set has the name of the last one. */
static bool is_taken(const dr_training_data *data) {
    const int64_t last = data->held_out_count - 1;
    for (int64_t i = 0; i < last; i++)
        if (strcmp(data->held_out[i].name, data->held_out[last].name) == 0) return true;
    return false;
}

/* A name that can stand in a line of CSV: that of the set, behind that of its corpus where there are several corpora. */
static void name_set(const dr_training_data *data, const char *corpus, const char *set, dr_held_out_set *added) {
    const char *slash = strrchr(corpus, '/'), *own = slash && slash[1] ? slash + 1 : corpus;
    for (int number = 1; number == 1 || is_taken(data); number++) {
        int used = 0;
        if (data->count > 1) used = snprintf(added->name, sizeof added->name, "%.30s%s", own, *set ? ":" : "");
        used += snprintf(added->name + used, sizeof added->name - (size_t)used, "%.48s", set);
        if (number > 1) snprintf(added->name + used, sizeof added->name - (size_t)used, "#%d", number);
        for (char *at = added->name; *at; at++)
            if (*at == ',' || *at == '"' || (unsigned char)*at < 0x20) *at = '_';
    }
}

static dr_status add_held_out(dr_training_data *data, const char *corpus, const char *set, dr_held_out_set **added) {
    void *memory = data->held_out;
    dr_status status = dr_grow(&memory, data->held_out_count, sizeof(dr_held_out_set), "the held-out sets");
    data->held_out = memory;
    if (status != DR_OK) return status;
    *added = &data->held_out[data->held_out_count++];
    **added = (dr_held_out_set){0};
    name_set(data, corpus, set, *added);
    return DR_OK;
}

static dr_status hold_out_text(dr_training_data *data, const char *corpus, const dr_documents *text) {
    dr_held_out_set *set;
    if (text->count == 0) return DR_OK;
    DR_TRY(add_held_out(data, corpus, "", &set));
    set->text = text;
    if (!data->tokenizer) return DR_OK;
    set->owns_tokens = true;
    return dr_tokens_of_text(text, data->tokenizer, &set->tokens, &set->documents);
}

/* The validation sets, or all sets if there are none. */
static dr_status hold_out_shards(dr_training_data *data, const char *corpus, dr_shards *shards, bool others) {
    bool any = false;
    for (int64_t i = 0; i < shards->count; i++) any = any || dr_shard_set_validates(shards->sets[i]);
    for (int64_t i = 0; i < shards->count; i++) {
        dr_held_out_set *set;
        if (dr_shard_set_validates(shards->sets[i]) != any || (!any && !others)) continue;
        DR_TRY(add_held_out(data, corpus, dr_shard_set_name(shards->sets[i]), &set));
        set->tokens = dr_shard_set_tokens(shards->sets[i]);
        DR_TRY(dr_shard_set_documents(shards->sets[i], &set->documents));
    }
    return DR_OK;
}

/* The end of a row from the beginning of a document on: a share of it, or a twentieth and at least 16384 tokens, but at most a
 * fifth. */
static dr_status hold_out_end(dr_training_data *data, dr_training_corpus *corpus, double share) {
    dr_tokens *row = corpus->training;
    dr_held_out_set *set;
    dr_token_documents documents = {0};
    int64_t goal = share > 0 ? (int64_t)ceil((double)row->count * share) : row->count / 20;
    if (share <= 0 && goal < LEAST_HELD_OUT) goal = LEAST_HELD_OUT < row->count / 5 ? LEAST_HELD_OUT : row->count / 5;
    if (goal < 2 || goal >= row->count)
        return dr_fail(DR_ERROR_ARGUMENT, "%s has %lld tokens, too few to train on and to hold some out", corpus->path,
                       (long long)row->count);
    dr_status status;
    DR_GO(dr_shard_set_documents(corpus->shards->sets[0], &documents));
    corpus->cut = row->count - goal;
    for (int64_t i = documents.count - 1; i > 0; i--)
        if (documents.begin[i] <= row->count - goal && documents.begin[i] > row->count - 2 * goal) {
            corpus->cut = documents.begin[i];
            break;
        }
    DR_GO(add_held_out(data, corpus->path, "", &set));
    DR_GO(dr_tokens_part(row, corpus->cut, row->count - corpus->cut, &set->tokens));
    set->owns_tokens = true;
    DR_GO(dr_token_documents_find(set->tokens, &set->documents));
    corpus->row = row;
    corpus->training = NULL;
    DR_GO(dr_tokens_part(row, 0, corpus->cut, &corpus->training));
    corpus->documents = corpus->bytes = -1;
done:
    dr_token_documents_release(&documents);
    return status;
}

/* ---- corpora ---- */

static dr_status split_text(dr_training_data *data, dr_training_corpus *corpus, const dr_train_options *options) {
    const uint64_t seed = (uint64_t)dr_setting_integer(options, DR_SET_HELD_OUT_SEED);
    double share;
    if (data->held_out_text) return dr_split_create_from(corpus->text, data->held_out_text, &corpus->split);
    if (data->held_out_shards) { /* nothing of it is held out */
        const dr_corpus none = {0};
        return dr_split_create_from(corpus->text, &none, &corpus->split);
    }
    DR_TRY(dr_held_out_share(options, &share));
    DR_TRY(dr_split_create(corpus->text, seed, share, &corpus->split));
    return hold_out_text(data, corpus->path, &corpus->split.held_out);
}

static dr_status open_text(dr_training_data *data, dr_training_corpus *corpus, const dr_train_options *options) {
    dr_token_documents places = {0};
    DR_TRY(dr_corpus_read(corpus->path, dr_setting_boolean(options, DR_SET_SKIP_UNREADABLE), &corpus->text));
    uint64_t fingerprint = dr_corpus_fingerprint(corpus->text, 0);
    if (data->count == 1 && !data->tokenizer) /* as runs of earlier versions have it */
        data->fingerprint = fingerprint;
    else
        mix_fingerprint(data, fingerprint);
    DR_TRY(split_text(data, corpus, options));
    const dr_documents *training = &corpus->split.training;
    corpus->documents = training->count;
    corpus->bytes = training->bytes;
    if (!data->tokenizer) {
        DR_TRY(agree(data, corpus->path, DR_BYTE_VOCABULARY));
        return dr_tokens_of_bytes(training, &corpus->training);
    }
    dr_status status = dr_tokens_of_text(training, data->tokenizer, &corpus->training, &places);
    dr_token_documents_release(&places);
    return status;
}

static dr_status open_shards(dr_training_data *data, dr_training_corpus *corpus, const dr_train_options *options) {
    const dr_shards_of of = expected(data, options);
    double share;
    DR_TRY(dr_shards_open(corpus->path, &of, &corpus->shards));
    DR_TRY(agree(data, corpus->path, corpus->shards->vocabulary));
    mix_fingerprint(data, corpus->shards->fingerprint);
    dr_shard_set *first = corpus->shards->sets[0];
    if (dr_shard_set_validates(first))
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "%s has shards for validation only: \"val\" is in the name of each; make them of more documents, or with "
            "--validation-share 0",
            corpus->path);
    corpus->training = dr_shard_set_tokens(first);
    corpus->documents = dr_shard_set_document_count(first);
    corpus->bytes = dr_shard_set_bytes(first);
    if (dr_held_out_path(options)) return DR_OK;
    DR_TRY(dr_held_out_share(options, &share));
    bool validates = dr_shard_set_validates(corpus->shards->sets[corpus->shards->count - 1]);
    return share == 0 && validates ? hold_out_shards(data, corpus->path, corpus->shards, false)
                                   : hold_out_end(data, corpus, share);
}

/* Held-out text or shards of their own. */
static dr_status open_held_out(dr_training_data *data, const dr_train_options *options) {
    const char *path = dr_held_out_path(options);
    const dr_shards_of of = expected(data, options);
    if (!path) return DR_OK;
    if (!dr_shards_are(path)) {
        dr_status status = dr_corpus_read(path, dr_setting_boolean(options, DR_SET_SKIP_UNREADABLE), &data->held_out_text);
        if (status != DR_OK) return dr_fail_in(status, "held_out");
        return hold_out_text(data, path, &data->held_out_text->documents);
    }
    DR_TRY(dr_shards_open(path, &of, &data->held_out_shards));
    return hold_out_shards(data, path, data->held_out_shards, true);
}

/* After the corpora, as runs of earlier versions have it. */
static dr_status check_held_out(dr_training_data *data) {
    if (data->held_out_text) {
        uint64_t fingerprint = dr_corpus_fingerprint(data->held_out_text, data->fingerprint);
        data->fingerprint = fingerprint;
    }
    if (data->held_out_shards) {
        DR_TRY(agree(data, "the held-out text", data->held_out_shards->vocabulary));
        mix_fingerprint(data, data->held_out_shards->fingerprint);
    }
    if (data->held_out_count == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "no text is held out: give a held_out share or the path of other text");
    return DR_OK;
}

static dr_status fill(dr_training_data *data, const dr_train_options *options, const dr_mixture_items *items) {
    void *memory;
    DR_TRY(dr_allocate_zero((size_t)items->count * sizeof(dr_training_corpus), "the corpora of a run", &memory));
    data->corpora = memory;
    data->count = items->count;
    DR_TRY(open_tokenizer(data, options, items));
    for (int64_t i = 0; i < items->count; i++) {
        dr_training_corpus *corpus = &data->corpora[i];
        DR_TRY(dr_copy_string(items->at[i].path, &corpus->path));
        corpus->weight = items->at[i].weight;
    }
    DR_TRY(open_held_out(data, options));
    for (int64_t i = 0; i < data->count; i++) {
        dr_training_corpus *corpus = &data->corpora[i];
        DR_TRY(dr_shards_are(corpus->path) ? open_shards(data, corpus, options) : open_text(data, corpus, options));
        if (data->count > 1) mix_fingerprint(data, (uint64_t)llround(corpus->weight * 1e9));
    }
    return check_held_out(data);
}

dr_status dr_training_data_open(const dr_train_options *options, dr_training_data **data) {
    const char *path = dr_setting_text(options, DR_SET_CORPUS);
    dr_mixture_items items = {0};
    void *memory = NULL;
    dr_status status;
    *data = NULL;
    DR_GO(dr_is_mixture_file(path) ? dr_mixture_file_read(path, &items) : dr_mixture_single(path, &items));
    DR_GO(dr_allocate_zero(sizeof(dr_training_data), "the training data", &memory));
    DR_GO(fill(memory, options, &items));
    *data = memory;
    memory = NULL;
done:
    dr_training_data_close(memory);
    dr_mixture_items_release(&items);
    return status;
}

void dr_training_data_close(dr_training_data *data) {
    if (!data) return;
    for (int64_t i = 0; i < data->held_out_count; i++) {
        if (data->held_out[i].owns_tokens) dr_tokens_destroy(data->held_out[i].tokens);
        dr_token_documents_release(&data->held_out[i].documents);
    }
    dr_release(data->held_out);
    for (int64_t i = 0; i < data->count; i++) {
        dr_training_corpus *corpus = &data->corpora[i];
        dr_tokens_destroy(corpus->training);
        dr_split_destroy(&corpus->split);
        dr_corpus_destroy(corpus->text);
        dr_shards_close(corpus->shards);
        dr_release(corpus->path);
    }
    dr_release(data->corpora);
    dr_corpus_destroy(data->held_out_text);
    dr_shards_close(data->held_out_shards);
    dr_tokenizer_destroy(data->tokenizer);
    dr_release(data->tokenizer_path);
    dr_release(data->lengths);
    dr_release(data);
}

/* ---- describing ---- */

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

/* ", N documents" and ", N bytes of text" as far as they are known. */
static void describe_row(const char *what, int64_t tokens, int64_t documents, int64_t bytes, char *text, size_t size) {
    int used = snprintf(text, size, "%s: %lld tokens", what, (long long)tokens);
    if (documents >= 0 && used < (int)size)
        used += snprintf(text + used, size - (size_t)used, ", %lld documents", (long long)documents);
    if (bytes >= 0 && used < (int)size) snprintf(text + used, size - (size_t)used, ", %lld bytes of text", (long long)bytes);
}

static void describe_text(const dr_training_data *data, const dr_training_corpus *corpus,
                          void (*line)(void *context, const char *text), void *context) {
    const dr_documents *training = &corpus->split.training;
    const dr_documents *held_out = data->held_out_text ? &data->held_out_text->documents : &corpus->split.held_out;
    char text[512];
    int used =
        snprintf(text, sizeof text, "data: %lld bytes in %lld files", (long long)training->bytes, (long long)training->count);
    if (data->tokenizer)
        snprintf(text + used, sizeof text - (size_t)used, ", %lld tokens of %lld ids", (long long)corpus->training->count,
                 (long long)data->vocabulary);
    line(context, text);
    if (held_out->count > 0) {
        dr_format(text, sizeof text, "held out: %lld bytes (%.1f%%) in %lld files", (long long)held_out->bytes,
                  100 * (double)held_out->bytes / (double)(training->bytes + held_out->bytes), (long long)held_out->count);
        line(context, text);
    }
    if (corpus->split.cut) {
        char name[400];
        snprintf(text, sizeof text, "whole files would not do: the end of %s is held out",
                 dr_printable(corpus->split.cut, name, sizeof name));
        line(context, text);
    }
    describe_left_out(corpus->text, line, context);
}

static void describe_corpus(const dr_training_data *data, const dr_training_corpus *corpus, double share,
                            void (*line)(void *context, const char *text), void *context) {
    char text[1024], name[400];
    if (data->count > 1) {
        dr_format(text, sizeof text, "corpus: %s, %.4g%% of the windows", dr_printable(corpus->path, name, sizeof name),
                  100 * share);
        line(context, text);
    }
    if (corpus->text) {
        describe_text(data, corpus, line, context);
        return;
    }
    describe_row("data", corpus->training->count, corpus->documents, corpus->bytes, text, sizeof text);
    line(context, text);
}

void dr_training_data_describe(const dr_training_data *data, void (*line)(void *context, const char *text), void *context) {
    double sum = 0;
    for (int64_t i = 0; i < data->count; i++) sum += data->corpora[i].weight;
    for (int64_t i = 0; i < data->count; i++)
        describe_corpus(data, &data->corpora[i], data->corpora[i].weight / sum, line, context);
    for (int64_t i = 0; i < data->held_out_count; i++) {
        const dr_held_out_set *set = &data->held_out[i];
        char text[512], what[192];
        if (set->text) continue; /* it was told with its corpus */
        snprintf(what, sizeof what, "held out%s%s", *set->name ? " " : "", set->name);
        describe_row(what, set->tokens->count, set->documents.count, -1, text, sizeof text);
        line(context, text);
    }
    if (data->held_out_text) describe_left_out(data->held_out_text, line, context);
}
