/* Each document from its separator on, window after window, with the model's state carried along: a token is predicted from all
 * that stands before it in its document, and memory depends on the window alone. The separator is read, never scored: as many
 * tokens are predicted as the text has bytes. */
#include "evaluate/score.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <math.h>

struct scorer {
    dr_model *model;
    dr_model_state *state;
    int64_t window;
    int32_t *ids, *labels; /* [window] */
};

/* Adds the loss of bytes [from, from + count) of a document to *loss. */
static dr_status score_window(struct scorer *scorer, const dr_document *document, int64_t from, int64_t count, double *loss) {
    DR_TRY(dr_document_check(document));
    for (int64_t i = 0; i < count; i++) {
        scorer->ids[i] = from + i == 0 ? DR_DOCUMENT_START : document->text[from + i - 1];
        scorer->labels[i] = document->text[from + i];
    }
    dr_document_forget(document, from, count);
    dr_batch batch = {
        .layout = {.sequences = 1, .rows = count}, .ids = scorer->ids, .targets = count, .labels = scorer->labels};
    double sum;
    DR_TRY(dr_model_loss(scorer->model, &batch, scorer->state, &sum, NULL, NULL, NULL));
    *loss += sum;
    return DR_OK;
}

static dr_status open_scorer(struct scorer *scorer) {
    void *memory;
    DR_TRY(dr_allocate((size_t)scorer->window * sizeof(int32_t), "a window of tokens", &memory));
    scorer->ids = memory;
    DR_TRY(dr_allocate((size_t)scorer->window * sizeof(int32_t), "a window of labels", &memory));
    scorer->labels = memory;
    return dr_model_state_create(scorer->model, 1, &scorer->state);
}

static void close_scorer(struct scorer *scorer) {
    dr_release(scorer->ids);
    dr_release(scorer->labels);
    dr_model_state_destroy(scorer->state);
}

dr_status dr_score_documents(dr_model *model, const dr_documents *documents, int64_t window, int64_t most,
                             bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_score *score) {
    if (window < 1) return dr_fail(DR_ERROR_ARGUMENT, "window is %lld: it must be at least 1 token", (long long)window);
    DR_TRY(dr_byte_vocabulary_check(dr_model_get_config(model)->vocabulary));
    double start = dr_clock_now(), loss = 0;
    int64_t total = most > 0 && most < documents->bytes ? most : documents->bytes, done = 0, files = 0, seen = 0;
    struct scorer scorer = {.model = model, .window = window};
    dr_status status;
    DR_GO(open_scorer(&scorer));
    for (int64_t i = 0; i < documents->count; i++) {
        const dr_document *document = &documents->at[i];
        seen += document->bytes;
        int64_t bytes = (int64_t)((__int128)seen * total / documents->bytes) - done;
        files += bytes > 0;
        dr_model_state_reset(scorer.state);
        for (int64_t from = 0; from < bytes; from += window) {
            int64_t count = bytes - from < window ? bytes - from : window;
            DR_GO(score_window(&scorer, document, from, count, &loss));
            done += count;
            if (progress && !progress(context, done, total)) {
                status = dr_fail(DR_ERROR_INTERRUPTED, "scoring was stopped after %lld of %lld tokens", (long long)done,
                                 (long long)total);
                goto done;
            }
        }
    }
    *score = (dr_score){.files = files, .bytes = total, .tokens = total, .seconds = dr_clock_now() - start};
    score->loss = loss / (double)total;
    score->perplexity = exp(score->loss);
    score->bits_per_byte = loss / (double)total / 0.693147180559945309417; /* ln 2 */
done:
    close_scorer(&scorer);
    return status;
}

dr_status dr_score_corpus(dr_model *model, const char *path, int64_t window,
                          bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_score *score) {
    dr_corpus *corpus;
    DR_TRY(dr_byte_vocabulary_check(dr_model_get_config(model)->vocabulary));
    DR_TRY(dr_corpus_read(path, false, &corpus));
    dr_status status = dr_score_documents(model, &corpus->documents, window, 0, progress, context, score);
    dr_corpus_destroy(corpus);
    return status;
}
