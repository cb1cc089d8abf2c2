/* Steps: one token of each sequence through the decode engine, in memory that was planned when the state was made. A step
 * allocates nothing, but where layers remember every token, and then seldom: what they have at least doubles. The same work
 * comes with every step until then, so that it goes through the backend's replay.
 *
 * Where the backend chooses the tokens, what it chose is copied to where the next step reads its ids, within the backend's
 * memory; the host may put the next step on the backend before it knows what the last one chose. */
#include "base/error.h"
#include "base/hash.h"
#include "nn/state.h"

#include <inttypes.h>

enum { MOST_UNDER_WAY = 2 };

dr_status dr_model_steps_prepare(dr_model_state *state) {
    const dr_layout layout = {state->sequences, state->sequences, NULL};
    dr_session *made = NULL;
    if (state->step) return DR_OK;
    DR_TRY(dr_session_create(state->model, &made));
    const dr_status status = dr_session_prepare(made, DR_PHASE_DECODE, &layout, state->sequences, false, false);
    if (status == DR_OK)
        state->step = made;
    else
        dr_session_destroy(made);
    return status;
}

dr_status dr_session_steps(dr_session *session, const int32_t *ids, int64_t count, dr_model_state *state, int64_t wanted,
                           float *logits) {
    const dr_batch batch = {.layout = {1, count, NULL}, .ids = ids, .targets = count};
    const int64_t vocabulary = session->model->description.vocabulary;
    DR_TRY(dr_session_prepare(session, DR_PHASE_DECODE, &batch.layout, count, false, false));
    DR_TRY(dr_model_state_reserve(state, &batch.layout));
    DR_TRY(dr_session_upload(session, &batch, state->seen, NULL));
    DR_TRY(dr_session_run(session, state));
    dr_model_state_advance(state, &batch, true);
    if (wanted == 0) return DR_OK;
    DR_TRY(dr_session_head(session, session->x, count - wanted, wanted));
    return dr_kind_download(session->backend, DR_VECTOR, logits, DR_F32, session->logits, wanted * vocabulary);
}

/* ---- the work of a step --------------------------------------------------------------------------------------------- */

typedef struct {
    dr_model_state *state;
    int64_t allowed;
} step_work;

/* Sequences whose logits are computed at once, from `begin` on. */
static int64_t rows_at(const dr_model_state *state, int64_t begin) {
    const int64_t left = state->sequences - begin;
    return left < state->step->head_rows ? left : state->step->head_rows;
}

/* Ends with the first logits. */
static dr_status compute_logits(void *context) {
    const step_work *work = context;
    dr_session *session = work->state->step;
    DR_TRY(dr_session_run(session, work->state));
    return dr_session_head(session, session->x, 0, rows_at(work->state, 0));
}

/* Ends with the next step's ids. */
static dr_status compute_choices(void *context) {
    const step_work *work = context;
    dr_session *session = work->state->step;
    dr_backend *backend = session->backend;
    const int64_t sequences = work->state->sequences, vocabulary = session->model->description.vocabulary;
    DR_TRY(dr_session_run(session, work->state));
    for (int64_t begin = 0; begin < sequences; begin += session->head_rows) {
        const int64_t count = rows_at(work->state, begin);
        DR_TRY(dr_session_head(session, session->x, begin, count));
        DR_TRY(backend->ops->choose(backend, count, vocabulary, work->allowed, session->logits, session->draws + begin,
                                    session->chosen + begin));
    }
    return backend->ops->copy(backend, (void *)session->tokens.ids, session->chosen,
                              (size_t)sequences * sizeof *session->chosen);
}

static bool same_form(const dr_step_form *a, const dr_step_form *b) {
    return a->compute == b->compute && a->block == b->block && a->state == b->state && a->moves == b->moves &&
           a->sequences == b->sequences && a->allowed == b->allowed;
}

static dr_status replay(step_work *work, dr_status (*compute)(void *context)) {
    dr_session *session = work->state->step;
    const dr_operations *ops = session->backend->ops;
    const dr_step_form form = {.compute = compute,
                               .block = session->block,
                               .state = work->state,
                               .moves = work->state->moves,
                               .sequences = work->state->sequences,
                               .allowed = work->allowed};
    if (!ops->replay) return compute(work);
    if (!same_form(&form, &session->last_step)) {
        ops->forget(session->backend, session->kept);
        session->kept = NULL;
    }
    session->last_step = form;
    return ops->replay(session->backend, compute, work, &session->kept);
}

/* Tokens that a step begins with; ids NULL: those that the backend chose. */
static dr_status begin_step(const dr_model *model, const int32_t *ids, dr_model_state *state) {
    const int64_t vocabulary = model->description.vocabulary;
    if (state->model != model) return dr_fail(DR_ERROR_ARGUMENT, "the state is of another model");
    for (int64_t i = 0; ids && i < state->sequences; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "id %" PRId64 " is %" PRId32 "; it must be from 0 to %" PRId64, i, ids[i],
                           vocabulary - 1);
    const dr_batch batch = {.layout = {state->sequences, state->sequences, NULL}, .ids = ids, .targets = state->sequences};
    DR_TRY(dr_model_steps_prepare(state));
    DR_TRY(dr_model_state_reserve(state, &batch.layout));
    return dr_session_upload(state->step, &batch, state->seen, NULL);
}

static void count_step(const int32_t *ids, dr_model_state *state) {
    const dr_batch batch = {.layout = {state->sequences, state->sequences, NULL}, .ids = ids, .targets = state->sequences};
    dr_model_state_advance(state, &batch, true);
}

dr_status dr_model_step(const dr_model *model, const int32_t *ids, dr_model_state *state, float *logits) {
    DR_NEED(model);
    DR_NEED(ids);
    DR_NEED(state);
    DR_NEED(logits);
    const int64_t vocabulary = model->description.vocabulary;
    step_work work = {.state = state};
    DR_TRY(begin_step(model, ids, state));
    DR_TRY(replay(&work, compute_logits));
    count_step(ids, state);
    for (int64_t begin = 0, count; begin < state->sequences; begin += count) {
        count = rows_at(state, begin);
        if (begin > 0) DR_TRY(dr_session_head(state->step, state->step->x, begin, count));
        DR_TRY(dr_kind_download(model->backend, DR_VECTOR, logits + begin * vocabulary, DR_F32, state->step->logits,
                                count * vocabulary));
    }
    return DR_OK;
}

/* ---- tokens that the backend chooses --------------------------------------------------------------------------------- */

static size_t chosen_bytes(const dr_model_state *state) {
    return (size_t)state->sequences * sizeof(int32_t);
}

dr_status dr_model_choose_begin(const dr_model *model, const int32_t *ids, dr_model_state *state, int64_t allowed,
                                const dr_draw *draws) {
    dr_backend *backend = model->backend;
    step_work work = {.state = state, .allowed = allowed};
    if (state->under_way == (backend->ops->fetch ? MOST_UNDER_WAY : 1))
        return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " steps are under way, as many as there can be", state->under_way);
    DR_TRY(begin_step(model, ids, state));
    const dr_session *session = state->step;
    DR_TRY(backend->ops->put(backend, session->draws, draws, (size_t)state->sequences * sizeof *draws));
    DR_TRY(replay(&work, compute_choices));
    count_step(ids, state);
    if (backend->ops->fetch)
        DR_TRY(backend->ops->fetch(backend, session->chosen, chosen_bytes(state), &state->choosing[state->under_way]));
    state->under_way++;
    return DR_OK;
}

/* The first of the steps under way. */
static dr_status fetch_chosen(dr_model_state *state, int32_t *chosen) {
    dr_backend *backend = state->backend;
    void *const transfer = state->choosing[0];
    state->choosing[0] = state->choosing[1];
    state->choosing[1] = NULL;
    state->under_way--;
    if (backend->ops->fetched) return backend->ops->fetched(backend, transfer, chosen);
    return chosen ? backend->ops->get(backend, chosen, state->step->chosen, chosen_bytes(state)) : DR_OK;
}

dr_status dr_model_choose_end(dr_model_state *state, int32_t *chosen) {
    DR_TRY(fetch_chosen(state, chosen));
    for (int64_t i = 0; i < state->sequences; i++)
        if (chosen[i] < 0)
            return dr_fail(DR_ERROR_NUMERIC, "the logits of sequence %" PRId64 " are not numbers, or none is finite", i);
    for (int64_t i = 0; state->under_way > 0 && i < state->sequences; i++) /* the next step took them */
        state->hash[i] = dr_hash_word(state->hash[i], (uint64_t)chosen[i]);
    return DR_OK;
}

void dr_model_choose_forget(dr_model_state *state) {
    while (state->under_way > 0) fetch_chosen(state, NULL);
}
