/* Sampling text: the prompt goes through the chunkwise engine in windows, then each token through the decode engine. All memory
 * is taken before the first token but for the text of a token: the state's size does not depend on how long the text becomes.
 */
#include <deltarule/generate.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/encode.h"
#include "data/streams.h"
#include "generate/sampling.h"
#include "generate/stop.h"

#include <string.h>

enum { PROMPT_WINDOW = 512 };

dr_generate_options dr_generate_defaults(void) {
    return (dr_generate_options){.tokens = 512, .temperature = 0.8, .top_k = 0, .top_p = 0.95, .seed = 1};
}

typedef bool (*emit_function)(void *context, const char *bytes, size_t count);

struct sampler {
    const dr_model *model;
    dr_session *session; /* of the prompt */
    dr_model_state *state;
    const dr_tokenizer *tokenizer; /* NULL: bytes */
    dr_document_encoder encoder;
    dr_decoder *decoder;
    int32_t start, end;       /* begins a text; ends one: -1: none */
    int64_t vocabulary;       /* ids that can be drawn */
    float *logits;            /* [of the model] of the next token */
    dr_candidate *candidates; /* [vocabulary] */
    dr_stop stop;
    char *ready; /* [ready_room] text that is certain and not emitted yet */
    size_t ready_bytes, ready_room;
};

static dr_status open_tokenizer(struct sampler *sampler) {
    sampler->start = DR_DOCUMENT_START;
    sampler->end = -1;
    sampler->vocabulary = DR_BYTE_VOCABULARY;
    if (!sampler->tokenizer) return DR_OK;
    DR_TRY(dr_document_encoder_create(sampler->tokenizer, &sampler->encoder));
    sampler->start = sampler->encoder.start;
    sampler->end = dr_tokenizer_special(sampler->tokenizer, DR_TOKEN_EOS);
    sampler->vocabulary = dr_tokenizer_size(sampler->tokenizer);
    return dr_decoder_create(sampler->tokenizer, DR_DECODE_TEXT | DR_DECODE_NO_SPECIAL, &sampler->decoder);
}

static dr_status open_sampler(struct sampler *sampler, const dr_generate_options *options) {
    void *memory;
    DR_TRY(dr_stop_create(options, &sampler->stop));
    DR_TRY(open_tokenizer(sampler));
    size_t logits = (size_t)dr_model_get_config(sampler->model)->vocabulary;
    DR_TRY(dr_allocate(logits * sizeof(float), "the logits", &memory));
    sampler->logits = memory;
    DR_TRY(dr_allocate((size_t)sampler->vocabulary * sizeof(dr_candidate), "the candidates", &memory));
    sampler->candidates = memory;
    DR_TRY(dr_session_create(sampler->model, &sampler->session));
    return dr_model_state_create(sampler->model, 1, &sampler->state);
}

static void close_sampler(struct sampler *sampler) {
    dr_document_encoder_release(&sampler->encoder);
    dr_decoder_destroy(sampler->decoder);
    dr_release(sampler->logits);
    dr_release(sampler->candidates);
    dr_release(sampler->ready);
    dr_stop_destroy(&sampler->stop);
    dr_model_state_destroy(sampler->state);
    dr_session_destroy(sampler->session);
}

/* ---- the prompt ---- */

static dr_status read_ids(struct sampler *sampler, const int32_t *ids, int64_t count) {
    const int64_t last = count - 1;
    dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = 1, .positions = &last};
    return dr_session_logits(sampler->session, &batch, sampler->state, DR_F32, sampler->logits);
}

/* Token 0 is the separator, token i + 1 byte i of the prompt: there is always one token to predict from. */
static dr_status read_bytes(struct sampler *sampler, const char *prompt, int64_t bytes) {
    int32_t ids[PROMPT_WINDOW];
    for (int64_t from = 0; from < bytes + 1; from += PROMPT_WINDOW) {
        int64_t count = bytes + 1 - from < PROMPT_WINDOW ? bytes + 1 - from : PROMPT_WINDOW;
        for (int64_t i = 0; i < count; i++) ids[i] = from + i == 0 ? DR_DOCUMENT_START : (unsigned char)prompt[from + i - 1];
        DR_TRY(read_ids(sampler, ids, count));
    }
    return DR_OK;
}

/* The ids of a document that is not over yet. Its text goes through the decoder, since that of later ids depends on it. */
static dr_status read_text(struct sampler *sampler, const char *prompt, int64_t bytes) {
    const int32_t *ids;
    const char *text;
    int64_t count;
    size_t text_bytes;
    DR_TRY(dr_document_encode(&sampler->encoder, prompt, bytes, &ids, &count));
    if (count > 1 && ids[count - 1] == sampler->end) count--;
    for (int64_t from = 0; from < count; from += PROMPT_WINDOW)
        DR_TRY(read_ids(sampler, ids + from, count - from < PROMPT_WINDOW ? count - from : PROMPT_WINDOW));
    for (int64_t i = 0; i < count; i++) {
        dr_status status = dr_decoder_step(sampler->decoder, ids[i], &text, &text_bytes);
        if (status != DR_OK && status != DR_ERROR_FORMAT) return status; /* the stream goes on from the next id */
    }
    return DR_OK;
}

/* ---- tokens ---- */

/* Adds bytes to those that are ready. */
static dr_status make_ready(struct sampler *sampler, const char *bytes, size_t count) {
    const size_t needed = sampler->ready_bytes + count;
    if (needed > sampler->ready_room) {
        void *memory = sampler->ready;
        size_t room = 2 * needed;
        DR_TRY(memory ? dr_resize(&memory, sampler->ready_room, room, "the text of a token")
                      : dr_allocate(room, "the text of a token", &memory));
        sampler->ready = memory;
        sampler->ready_room = room;
    }
    if (count > 0) memcpy(sampler->ready + sampler->ready_bytes, bytes, count);
    sampler->ready_bytes = needed;
    return DR_OK;
}

/* Looks for stop texts in more text; what is certain becomes ready. *ended: a stop text is complete. */
static dr_status add_text(struct sampler *sampler, const char *text, size_t bytes, bool *ended) {
    dr_stop *stop = &sampler->stop;
    for (size_t i = 0; i < bytes && !*ended; i++) {
        size_t certain;
        *ended = dr_stop_add(stop, text[i], &certain);
        DR_TRY(make_ready(sampler, stop->held, certain));
        dr_stop_take(stop, certain);
    }
    return DR_OK;
}

/* A document ends: no stop text goes on in the next. */
static dr_status give_up_held(struct sampler *sampler) {
    dr_stop *stop = &sampler->stop;
    DR_TRY(make_ready(sampler, stop->held, stop->held_bytes));
    dr_stop_take(stop, stop->held_bytes);
    return DR_OK;
}

static dr_status emit_ready(struct sampler *sampler, int64_t made, emit_function emit, void *context) {
    size_t bytes = sampler->ready_bytes;
    sampler->ready_bytes = 0;
    if (emit(context, sampler->ready ? sampler->ready : "", bytes)) return DR_OK;
    return dr_fail(DR_ERROR_INTERRUPTED, "generation was stopped after %lld tokens", (long long)made);
}

/* The text that a token makes certain. *ended: a stop text is complete. */
static dr_status add_token(struct sampler *sampler, int32_t id, bool *ended) {
    const char *text;
    size_t bytes;
    if (!sampler->tokenizer) {
        const char byte = (char)id;
        return id == DR_DOCUMENT_START ? give_up_held(sampler) : add_text(sampler, &byte, 1, ended);
    }
    dr_status status = dr_decoder_step(sampler->decoder, id, &text, &bytes);
    if (status == DR_ERROR_FORMAT) return DR_OK; /* the stream goes on from the next id */
    DR_TRY(status);
    return add_text(sampler, text, bytes, ended);
}

/* What waits for more, when there is no more. */
static dr_status finish_text(struct sampler *sampler, int64_t made, emit_function emit, void *context) {
    const char *text;
    size_t bytes;
    bool ended = false;
    if (sampler->tokenizer) {
        DR_TRY(dr_decoder_finish(sampler->decoder, &text, &bytes));
        DR_TRY(add_text(sampler, text, bytes, &ended));
    }
    if (!ended) DR_TRY(give_up_held(sampler));
    return sampler->ready_bytes > 0 ? emit_ready(sampler, made, emit, context) : DR_OK;
}

static dr_status make_tokens(struct sampler *sampler, const dr_generate_options *options, emit_function emit, void *context) {
    dr_random random = dr_stream(options->seed, DR_STREAM_SAMPLING, options->sample);
    bool ended = false, over = false; /* by a stop text; by the token that ends a text */
    int64_t made = 0;
    while (made < options->tokens && !ended && !over) {
        int32_t id;
        DR_TRY(dr_sample(options, sampler->logits, sampler->vocabulary, sampler->candidates, &random, &id));
        made++;
        over = sampler->tokenizer && !options->ignore_eos && (id == sampler->end || id == sampler->start);
        if (!over) DR_TRY(add_token(sampler, id, &ended));
        DR_TRY(emit_ready(sampler, made, emit, context));
        if (!ended && !over && made < options->tokens)
            DR_TRY(dr_model_step(sampler->model, &id, sampler->state, sampler->logits));
    }
    return ended ? DR_OK : finish_text(sampler, made, emit, context);
}

dr_status dr_generate_check(const dr_model *model, const dr_generate_options *options) {
    DR_NEED(model);
    DR_NEED(options);
    DR_TRY(dr_vocabulary_check(dr_model_get_config(model)->vocabulary, options->tokenizer));
    return dr_sampling_check(options);
}

dr_status dr_generate(const dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                      bool (*emit)(void *context, const char *bytes, size_t count), void *context) {
    DR_TRY(dr_generate_check(model, options));
    if (prompt_bytes > 0) DR_NEED(prompt);
    DR_NEED(emit);
    struct sampler sampler = {.model = model, .tokenizer = options->tokenizer};
    dr_status status;
    DR_GO(open_sampler(&sampler, options));
    DR_GO(sampler.tokenizer ? read_text(&sampler, prompt, (int64_t)prompt_bytes)
                            : read_bytes(&sampler, prompt, (int64_t)prompt_bytes));
    DR_GO(make_tokens(&sampler, options, emit, context));
done:
    close_sampler(&sampler);
    return status;
}
