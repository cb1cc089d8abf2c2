/* Each document from its separator on, window after window, with the model's state carried along: a token is predicted from all
 * that stands before it in its document. The separator is read, never scored: of bytes as many tokens are predicted as the text
 * has, and memory depends on the window alone; with a tokenizer a document's ids are held too. */
#include "evaluate/score.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "data/encode.h"

#include <math.h>
#include <string.h>

enum { WINDOW = 1024 };

struct scorer {
    dr_session *session;
    dr_model_state *state;
    const dr_score_options *options;
    int64_t done, total;         /* bytes, of all documents */
    int64_t tokens;              /* that were predicted */
    int32_t *ids, *labels;       /* [window] */
    dr_document_encoder encoder; /* where there is a tokenizer */
    const int32_t *document_ids; /* of the document at hand */
};

dr_score_options dr_score_defaults(void) {
    return (dr_score_options){.window = WINDOW};
}

/* The ids and labels of a window whose first label is token `from` behind the separator. */
static dr_status fill_window(struct scorer *scorer, const dr_document *document, int64_t from, int64_t count) {
    if (scorer->options->tokenizer) {
        memcpy(scorer->ids, scorer->document_ids + from, (size_t)count * sizeof(int32_t));
        memcpy(scorer->labels, scorer->document_ids + from + 1, (size_t)count * sizeof(int32_t));
        return DR_OK;
    }
    DR_TRY(dr_document_check(document));
    for (int64_t i = 0; i < count; i++) {
        scorer->ids[i] = from + i == 0 ? DR_DOCUMENT_START : document->text[from + i - 1];
        scorer->labels[i] = document->text[from + i];
    }
    dr_document_forget(document);
    return DR_OK;
}

/* Adds the loss of tokens [from, from + count) of a document to *loss. */
static dr_status score_window(struct scorer *scorer, const dr_document *document, int64_t from, int64_t count, double *loss) {
    DR_TRY(fill_window(scorer, document, from, count));
    dr_batch batch = {
        .layout = {.sequences = 1, .rows = count}, .ids = scorer->ids, .targets = count, .labels = scorer->labels};
    double sum;
    DR_TRY(dr_session_loss(scorer->session, &batch, scorer->state, &sum, NULL, NULL, NULL));
    *loss += sum;
    scorer->tokens += count;
    return DR_OK;
}

static dr_status open_scorer(struct scorer *scorer, const dr_model *model) {
    size_t bytes = (size_t)scorer->options->window * sizeof(int32_t);
    void *memory;
    DR_TRY(dr_allocate(bytes, "a window of tokens", &memory));
    scorer->ids = memory;
    DR_TRY(dr_allocate(bytes, "a window of labels", &memory));
    scorer->labels = memory;
    if (scorer->options->tokenizer) DR_TRY(dr_document_encoder_create(scorer->options->tokenizer, &scorer->encoder));
    return dr_model_state_create(model, 1, &scorer->state);
}

static void close_scorer(struct scorer *scorer) {
    dr_release(scorer->ids);
    dr_release(scorer->labels);
    dr_document_encoder_release(&scorer->encoder);
    dr_model_state_destroy(scorer->state);
}

static void fill_score(dr_score *score, int64_t files, int64_t bytes, int64_t tokens, double loss, double seconds) {
    *score = (dr_score){.files = files, .bytes = bytes, .tokens = tokens, .seconds = seconds};
    score->loss = loss / (double)tokens;
    score->perplexity = exp(score->loss);
    score->bits_per_byte = loss / (double)bytes / 0.693147180559945309417; /* ln 2 */
}

/* How many tokens stand for so many bytes from the beginning of a document. A tokenizer encodes all of it. */
static dr_status count_tokens(struct scorer *scorer, const dr_document *document, int64_t bytes, int64_t *tokens) {
    *tokens = bytes;
    if (!scorer->options->tokenizer || bytes == 0) return DR_OK;
    DR_TRY(dr_document_check(document));
    dr_status status = dr_document_encode(&scorer->encoder, (const char *)document->text, bytes, &scorer->document_ids, tokens);
    if (status != DR_OK) return dr_fail_in(status, "%s", document->name);
    dr_document_forget(document);
    --*tokens;
    return DR_OK;
}

/* The first `bytes` of a document; tells the file. */
static dr_status score_document(struct scorer *scorer, const dr_document *document, int64_t bytes, double *loss) {
    const dr_score_options *options = scorer->options;
    const int64_t before = scorer->done;
    double start = dr_clock_now(), own = 0;
    int64_t tokens;
    DR_TRY(count_tokens(scorer, document, bytes, &tokens));
    dr_model_state_reset(scorer->state);
    for (int64_t from = 0; from < tokens; from += options->window) {
        int64_t count = tokens - from < options->window ? tokens - from : options->window;
        double window_loss = 0;
        DR_TRY(score_window(scorer, document, from, count, &window_loss));
        own += window_loss;
        *loss += window_loss; /* in the order of windows, whatever documents they are of */
        scorer->done = before + (int64_t)((__int128)bytes * (from + count) / tokens);
        if (options->progress && !options->progress(options->context, scorer->done, scorer->total))
            return dr_fail(DR_ERROR_INTERRUPTED, "scoring was stopped after %lld of %lld bytes", (long long)scorer->done,
                           (long long)scorer->total);
    }
    scorer->done = before + bytes;
    if (bytes > 0 && options->file) {
        dr_score score;
        fill_score(&score, 1, bytes, tokens, own, dr_clock_now() - start);
        options->file(options->context, document->name, &score);
    }
    return DR_OK;
}

/* finite: the first document whose loss is not finite ends it. */
static dr_status score_all(dr_session *session, const dr_documents *documents, int64_t most, const dr_score_options *options,
                           bool finite, dr_score *score) {
    if (options->window < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "window is %lld: it must be at least 1 token", (long long)options->window);
    DR_TRY(dr_vocabulary_check(dr_model_get_config(dr_session_model(session))->vocabulary, options->tokenizer));
    double start = dr_clock_now(), loss = 0;
    int64_t files = 0, seen = 0;
    struct scorer scorer = {.session = session, .options = options};
    scorer.total = most > 0 && most < documents->bytes ? most : documents->bytes;
    dr_status status;
    DR_GO(open_scorer(&scorer, dr_session_model(session)));
    for (int64_t i = 0; i < documents->count; i++) {
        const dr_document *document = &documents->at[i];
        seen += document->bytes;
        int64_t bytes = (int64_t)((__int128)seen * scorer.total / documents->bytes) - scorer.done;
        files += bytes > 0;
        DR_GO(score_document(&scorer, document, bytes, &loss));
        if (!finite || isfinite(loss)) continue;
        status = dr_fail(DR_ERROR_NUMERIC, "the loss of %s is %s: the model computes no finite numbers, and there is no score",
                         document->name, isnan(loss) ? "not a number" : "infinite");
        goto done;
    }
    if (scorer.tokens == 0) {
        status = dr_fail(DR_ERROR_ARGUMENT, "the text has no tokens to predict: the tokenizer leaves nothing of it");
        goto done;
    }
    fill_score(score, files, scorer.total, scorer.tokens, loss, dr_clock_now() - start);
done:
    close_scorer(&scorer);
    return status;
}

/* In a session of its own. */
static dr_status score_model(const dr_model *model, const dr_documents *documents, const dr_score_options *options,
                             dr_score *score) {
    dr_session *session = NULL;
    DR_TRY(dr_session_create(model, &session));
    dr_status status = score_all(session, documents, 0, options, true, score);
    dr_session_destroy(session);
    return status;
}

dr_status dr_score_documents(dr_session *session, const dr_documents *documents, int64_t most, const dr_score_options *options,
                             dr_score *score) {
    return score_all(session, documents, most, options, false, score);
}

dr_status dr_score_files(const dr_model *model, const char *path, const dr_score_options *options, dr_score *score) {
    dr_score_options defaults = dr_score_defaults();
    dr_corpus *corpus;
    DR_NEED(model);
    DR_NEED(path);
    DR_NEED(score);
    if (!options) options = &defaults;
    DR_TRY(dr_vocabulary_check(dr_model_get_config(model)->vocabulary, options->tokenizer));
    DR_TRY(dr_corpus_read(path, options->skip_unreadable, &corpus));
    for (int64_t i = 0; i < corpus->left_out.count && options->left_out; i++)
        options->left_out(options->context, corpus->left_out.at[i].problem);
    dr_status status = score_model(model, &corpus->documents, options, score);
    dr_corpus_destroy(corpus);
    return status;
}

dr_status dr_score_text(const dr_model *model, const char *name, const char *text, size_t bytes,
                        const dr_score_options *options, dr_score *score) {
    dr_score_options defaults = dr_score_defaults();
    DR_NEED(model);
    DR_NEED(name);
    DR_NEED(text);
    DR_NEED(score);
    if (bytes == 0) return dr_fail(DR_ERROR_ARGUMENT, "%s has no text", name);
    const char *zero = memchr(text, 0, bytes);
    int64_t valid = dr_utf8_valid((const uint8_t *)text, zero ? zero - text : (int64_t)bytes);
    if (valid < (int64_t)bytes)
        return dr_fail(DR_ERROR_FORMAT, "%s is not UTF-8 text: byte %lld (0x%02x) cannot stand there", name, (long long)valid,
                       (unsigned char)text[valid]);
    dr_document document = {.name = name, .text = (const uint8_t *)text, .bytes = (int64_t)bytes};
    dr_documents documents = {.at = &document, .count = 1, .bytes = (int64_t)bytes};
    return score_model(model, &documents, options ? options : &defaults, score);
}

dr_status dr_score_corpus(const dr_model *model, const char *path, int64_t window,
                          bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_score *score) {
    dr_score_options options = {.window = window, .progress = progress, .context = context};
    return dr_score_files(model, path, &options, score);
}
