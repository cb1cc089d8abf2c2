/* Reading the documents of corpora, one after another: what shards are made of, for other uses. */
#include <deltarule/shards.h>

#include "base/error.h"
#include "shards/corpora.h"
#include "shards/source.h"

typedef struct {
    const dr_shards_options *options;
    bool (*document)(void *context, const char *text, size_t bytes);
    void *context;
} reader;

static dr_status give(const reader *self, const dr_source_document *document) {
    for (int64_t i = 0; i < document->count; i++)
        if (!self->document(self->context, document->pieces[i].text, (size_t)document->pieces[i].bytes))
            return dr_fail(DR_ERROR_INTERRUPTED, "reading was stopped");
    return DR_OK;
}

static dr_status read_source(const reader *self, dr_source *source) {
    dr_source_document document;
    for (bool more = true; more;) {
        dr_status status = dr_source_next(source, &document, &more);
        bool left_out;
        DR_TRY(dr_corpora_judge(self->options, status, &left_out));
        if (more && !left_out) DR_TRY(give(self, &document));
    }
    return DR_OK;
}

static dr_status read_file(const reader *self, const dr_source_options *source_options, const dr_found_file *file) {
    dr_source *source = NULL;
    bool left_out;
    dr_status status =
        file->problem ? dr_fail(file->status, "%s", file->problem) : dr_source_open(file, source_options, &source);
    DR_TRY(dr_corpora_judge(self->options, status, &left_out));
    if (left_out) return DR_OK;
    status = read_source(self, source);
    dr_source_close(source);
    return status;
}

dr_status dr_corpora_read(const dr_shards_options *options, bool (*document)(void *context, const char *text, size_t bytes),
                          void *context) {
    DR_NEED(options);
    DR_NEED(document);
    DR_TRY(dr_corpora_check(options));
    if (options->messages)
        return dr_fail(DR_ERROR_UNSUPPORTED, "messages must be NULL: lists of messages are read into shards only");
    const reader self = {.options = options, .document = document, .context = context};
    const dr_source_options source_options = {.field = options->field, .longest_document = options->longest_document};
    dr_shard_corpora corpora;
    dr_status status = dr_shard_corpora_find(options, &corpora);
    for (int64_t c = 0; c < corpora.count && status == DR_OK; c++)
        for (int64_t i = 0; i < corpora.at[c].files.count && status == DR_OK; i++)
            status = read_file(&self, &source_options, &corpora.at[c].files.at[i]);
    dr_shard_corpora_release(&corpora);
    return status;
}
