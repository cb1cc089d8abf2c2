/* Scoring tokens. Where not all are to be scored, documents are chosen that lie evenly over the row, whole if they are no
 * longer than a window: beginnings alone would be harder than text is. */
#include "evaluate/score_tokens.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <math.h>

static const double LN_2 = 0.693147180559945309417;

typedef struct {
    dr_session *session;
    dr_model_state *state;
    dr_tokens *tokens;
    const dr_token_score_options *options;
    int32_t *ids, *labels; /* [window + 1] */
    int64_t *positions;    /* [window] */
    uint8_t *marks;        /* [window + 1] */
    double loss;
    int64_t scored, bytes;
} token_scorer;

static dr_status allocate(token_scorer *self) {
    const size_t window = (size_t)self->options->window;
    void *memory;
    DR_TRY(dr_allocate((window + 1) * sizeof(int32_t), "a window of tokens", &memory));
    self->ids = memory;
    DR_TRY(dr_allocate((window + 1) * sizeof(int32_t), "a window of labels", &memory));
    self->labels = memory;
    DR_TRY(dr_allocate(window * sizeof(int64_t), "the positions of a window", &memory));
    self->positions = memory;
    DR_TRY(dr_allocate(window + 1, "the marks of a window", &memory));
    self->marks = memory;
    return dr_model_state_create(dr_session_model(self->session), 1, &self->state);
}

static void release(token_scorer *self) {
    dr_release(self->ids);
    dr_release(self->labels);
    dr_release(self->positions);
    dr_release(self->marks);
    dr_model_state_destroy(self->state);
}

/* Tokens from, .., from + count are read, and those behind the first are predicted. */
static dr_status score_window(token_scorer *self, int64_t from, int64_t count) {
    int64_t targets = 0;
    double sum = 0;
    DR_TRY(self->tokens->read(self->tokens, from, count + 1, self->ids, self->marks));
    for (int64_t i = 0; i < count; i++) {
        const int32_t label = self->ids[i + 1];
        if (self->marks[i + 1] & DR_TOKEN_GIVEN) continue;
        self->positions[targets] = i;
        self->labels[targets++] = label;
        if (self->options->lengths && label < self->options->known) self->bytes += self->options->lengths[label];
    }
    dr_batch batch = {.layout = {.sequences = 1, .rows = count},
                      .ids = self->ids,
                      .targets = targets,
                      .positions = self->positions,
                      .labels = self->labels};
    DR_TRY(dr_session_loss(self->session, &batch, self->state, &sum, NULL, NULL, NULL));
    self->loss += sum;
    self->scored += targets;
    return DR_OK;
}

/* The first `count` tokens of the document that begins at `begin`. */
static dr_status score_document(token_scorer *self, int64_t begin, int64_t count) {
    dr_model_state_reset(self->state);
    for (int64_t from = 0; from + 1 < count; from += self->options->window) {
        int64_t left = count - 1 - from;
        DR_TRY(score_window(self, begin + from, left < self->options->window ? left : self->options->window));
    }
    return DR_OK;
}

/* How many tokens of a document are scored when `budget` may be. */
static int64_t take(int64_t tokens, int64_t budget, int64_t window) {
    int64_t least = tokens < window ? tokens : window;
    return budget < least ? 0 : budget < tokens ? budget : tokens;
}

static dr_status score_all(token_scorer *self, const dr_token_documents *documents, int64_t *files) {
    const int64_t window = self->options->window, total = self->tokens->count, wanted = self->options->most;
    const int64_t most = wanted > 0 && wanted < total ? wanted : total;
    int64_t done = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        int64_t begin = documents->begin[i], end = documents->begin[i + 1];
        int64_t count = take(end - begin, (int64_t)((__int128)end * most / total) - done, window);
        if (count == 0 && done == 0 && i + 1 == documents->count) count = most < end - begin ? most : end - begin;
        if (count == 0) continue;
        int64_t bytes = self->bytes;
        DR_TRY(score_document(self, begin, count));
        bool whole = count == end - begin && !self->tokens->gives;
        if (whole && documents->bytes) self->bytes = bytes + documents->bytes[i]; /* what a normalizer took away too */
        done += count;
        ++*files;
    }
    return DR_OK;
}

dr_status dr_score_tokens(dr_session *session, dr_tokens *tokens, const dr_token_documents *documents,
                          const dr_token_score_options *options, dr_score *score) {
    token_scorer self = {.session = session, .tokens = tokens, .options = options};
    double start = dr_clock_now();
    int64_t files = 0;
    dr_status status;
    DR_GO(allocate(&self));
    DR_GO(score_all(&self, documents, &files));
    *score = (dr_score){.files = files, .bytes = self.bytes, .tokens = self.scored, .seconds = dr_clock_now() - start};
    score->loss = self.scored > 0 ? self.loss / (double)self.scored : (double)NAN;
    score->perplexity = exp(score->loss);
    score->bits_per_byte = self.bytes > 0 ? self.loss / (double)self.bytes / LN_2 : (double)NAN;
done:
    release(&self);
    return status;
}
