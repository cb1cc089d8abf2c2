/* Guesses come from a model, which reads what was chosen and goes on by its largest logits, or from the text itself: what
 * followed the last tokens, LONGEST of them if there is such a place, else fewer, where they stood last before. */
#include "generate/draft.h"

#include "base/error.h"
#include "base/memory.h"
#include "generate/context.h"
#include "nn/session.h"

#include <string.h>

enum { LONGEST = 3, MOST_PENDING = 8, LOOK_BACK = 1 << 16 };

struct dr_draft {
    const dr_model *model;
    const dr_generate_options *options;
    dr_session *session;
    dr_model_state *state, *before; /* before: `pending` tokens at the text's end are not in it */
    bool ahead;                     /* the state has read guesses that did not stay */
    int32_t *ids;                   /* [count] the text */
    int64_t count, room, pending;
    int32_t guess[DR_MOST_DRAFT_TOKENS];
    int64_t guessed, at; /* at: the guess that the next token is held to */
    float *logits;       /* [draft_tokens + 1, vocabulary] behind the text's last token and each guess */
    dr_context own;      /* of a model that guesses */
    dr_model_state *own_before;
    int64_t own_count; /* tokens in own_before */
    int64_t drafted, accepted;
};

dr_status dr_draft_check(const dr_model *model, const dr_generate_options *options) {
    if (options->draft_tokens < 0 || options->draft_tokens > DR_MOST_DRAFT_TOKENS)
        return dr_fail(DR_ERROR_ARGUMENT, "draft_tokens is %lld: it must be from 0 to %d", (long long)options->draft_tokens,
                       DR_MOST_DRAFT_TOKENS);
    if (!options->draft) return DR_OK;
    if (options->draft_tokens == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "there is a draft model, but draft_tokens is 0: give 1 at least");
    const int64_t own = dr_model_get_config(options->draft)->vocabulary, whole = dr_model_get_config(model)->vocabulary;
    if (own == whole) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the draft model has %lld tokens and the model %lld: they must have one tokenizer",
                   (long long)own, (long long)whole);
}

static dr_status append(dr_draft *draft, const int32_t *ids, int64_t count) {
    if (draft->count + count > draft->room) {
        const int64_t room = 2 * (draft->count + count) + 1024;
        void *memory = draft->ids;
        const size_t bytes = (size_t)room * sizeof(int32_t);
        DR_TRY(memory ? dr_resize(&memory, (size_t)draft->room * sizeof(int32_t), bytes, "the ids of a text")
                      : dr_allocate(bytes, "the ids of a text", &memory));
        draft->ids = memory;
        draft->room = room;
    }
    memcpy(draft->ids + draft->count, ids, (size_t)count * sizeof(int32_t));
    draft->count += count;
    return DR_OK;
}

static dr_status open_own(dr_draft *draft) {
    const dr_model *model = draft->options->draft;
    if (!model) return DR_OK;
    DR_TRY(dr_context_create(model, &draft->own));
    return dr_model_state_create(model, 1, &draft->own_before);
}

static dr_status open(dr_draft *draft, const int32_t *ids, int64_t count) {
    const int64_t rows = draft->options->draft_tokens + 1, vocabulary = dr_model_get_config(draft->model)->vocabulary;
    void *memory = NULL;
    DR_TRY(dr_allocate((size_t)(rows * vocabulary) * sizeof(float), "the logits of guesses", &memory));
    draft->logits = memory;
    DR_TRY(dr_session_create(draft->model, &draft->session));
    DR_TRY(dr_model_state_clone(draft->state, &draft->before));
    DR_TRY(append(draft, ids, count));
    return open_own(draft);
}

dr_status dr_draft_create(const dr_model *model, const dr_generate_options *options, dr_model_state *state, const int32_t *ids,
                          int64_t count, dr_draft **draft) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_draft), "guesses", &memory));
    dr_draft *made = memory;
    made->model = model, made->options = options, made->state = state;
    const dr_status status = open(made, ids, count);
    if (status == DR_OK)
        *draft = made;
    else
        dr_draft_destroy(made);
    return status;
}

void dr_draft_destroy(dr_draft *draft) {
    if (!draft) return;
    dr_context_release(&draft->own);
    dr_model_state_destroy(draft->own_before);
    dr_model_state_destroy(draft->before);
    dr_session_destroy(draft->session);
    dr_release(draft->logits);
    dr_release(draft->ids);
    dr_release(draft);
}

/* ---- guesses --------------------------------------------------------------------------------------------------------- */

/* Behind the last place within LOOK_BACK tokens where the last `length` tokens stood before; 0: there is none. */
static int64_t find_before(const dr_draft *draft, int64_t length) {
    const int32_t *last = draft->ids + draft->count - length;
    const int64_t first = draft->count > LOOK_BACK ? draft->count - LOOK_BACK : 0;
    for (int64_t begin = draft->count - length - 1; begin >= first; begin--)
        if (memcmp(draft->ids + begin, last, (size_t)length * sizeof *last) == 0) return begin + length;
    return 0;
}

static void guess_by_text(dr_draft *draft) {
    int64_t from = 0;
    for (int64_t length = LONGEST; length > 0 && from == 0; length--)
        if (length < draft->count) from = find_before(draft, length);
    while (from > 0 && from + draft->guessed < draft->count && draft->guessed < draft->options->draft_tokens) {
        draft->guess[draft->guessed] = draft->ids[from + draft->guessed];
        draft->guessed++;
    }
}

static int32_t largest(const float *logits, int64_t count) {
    int64_t at = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[at]) at = i;
    return (int32_t)at;
}

static dr_status guess_by_model(dr_draft *draft) {
    dr_context *own = &draft->own;
    const int64_t vocabulary = dr_model_get_config(own->model)->vocabulary;
    if (own->count > draft->own_count) DR_TRY(dr_model_state_restore(own->state, draft->own_before));
    own->count = draft->own_count;
    DR_TRY(dr_context_read(own, draft->ids + own->count, draft->count - own->count));
    DR_TRY(dr_model_state_restore(draft->own_before, own->state));
    draft->own_count = own->count;
    for (;;) {
        const int32_t id = largest(own->logits, vocabulary);
        draft->guess[draft->guessed++] = id;
        if (draft->guessed == draft->options->draft_tokens) return DR_OK;
        DR_TRY(dr_context_step(own, id));
    }
}

/* ---- rounds ---------------------------------------------------------------------------------------------------------- */

/* The state reads the tokens that stayed, but for the last, where they have become many. */
static dr_status settle(dr_draft *draft) {
    if (draft->pending <= MOST_PENDING) return DR_OK;
    DR_TRY(dr_session_steps(draft->session, draft->ids + draft->count - draft->pending, draft->pending - 1, draft->state, 0,
                            NULL));
    draft->pending = 1;
    return dr_model_state_restore(draft->before, draft->state);
}

dr_status dr_draft_compute(dr_draft *draft) {
    int32_t rows[2 * DR_MOST_DRAFT_TOKENS + MOST_PENDING + 1];
    if (draft->ahead) DR_TRY(dr_model_state_restore(draft->state, draft->before));
    draft->ahead = false;
    DR_TRY(settle(draft));
    draft->guessed = draft->at = 0;
    if (draft->options->draft)
        DR_TRY(guess_by_model(draft));
    else
        guess_by_text(draft);
    draft->drafted += draft->guessed;
    memcpy(rows, draft->ids + draft->count - draft->pending, (size_t)draft->pending * sizeof *rows);
    memcpy(rows + draft->pending, draft->guess, (size_t)draft->guessed * sizeof *rows);
    draft->ahead = true;
    return dr_session_steps(draft->session, rows, draft->pending + draft->guessed, draft->state, draft->guessed + 1,
                            draft->logits);
}

void dr_draft_next(dr_draft *draft, const float **logits) {
    *logits = draft->logits + draft->at * dr_model_get_config(draft->model)->vocabulary;
}

dr_status dr_draft_chosen(dr_draft *draft, int32_t id, bool *same) {
    *same = draft->ahead && draft->at < draft->guessed && draft->guess[draft->at] == id;
    DR_TRY(append(draft, &id, 1));
    draft->pending++;
    if (*same) draft->accepted++;
    if (draft->ahead && draft->at == draft->guessed) { /* all stayed: the state has read all but this one */
        draft->ahead = false;
        draft->pending = 1;
        DR_TRY(dr_model_state_restore(draft->before, draft->state));
    }
    draft->at++;
    return DR_OK;
}

void dr_draft_count(const dr_draft *draft, int64_t *drafted, int64_t *accepted) {
    *drafted += draft->drafted;
    *accepted += draft->accepted;
}
