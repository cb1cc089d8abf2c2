/* Sampling text: the prompt goes through the chunkwise engine in windows, then each token through the decode engine. All memory
 * is taken before the first token: the state's size does not depend on how long the text becomes. */
#include <deltarule/generate.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/streams.h"
#include "generate/sampling.h"
#include "generate/stop.h"

enum { PROMPT_WINDOW = 512 };

dr_generate_options dr_generate_defaults(void) {
    return (dr_generate_options){.tokens = 512, .temperature = 0.8, .top_k = 0, .top_p = 0.95, .seed = 1};
}

typedef bool (*emit_function)(void *context, const char *bytes, size_t count);

struct sampler {
    dr_model *model;
    dr_model_state *state;
    float *logits;            /* [DR_BYTE_VOCABULARY] of the next token */
    dr_candidate *candidates; /* [DR_BYTE_VOCABULARY] */
    dr_stop stop;
};

static dr_status open_sampler(struct sampler *sampler, const dr_generate_options *options) {
    void *memory;
    DR_TRY(dr_stop_create(options, &sampler->stop));
    DR_TRY(dr_allocate(DR_BYTE_VOCABULARY * sizeof(float), "the logits", &memory));
    sampler->logits = memory;
    DR_TRY(dr_allocate(DR_BYTE_VOCABULARY * sizeof(dr_candidate), "the candidates", &memory));
    sampler->candidates = memory;
    return dr_model_state_create(sampler->model, 1, &sampler->state);
}

static void close_sampler(struct sampler *sampler) {
    dr_release(sampler->logits);
    dr_release(sampler->candidates);
    dr_stop_destroy(&sampler->stop);
    dr_model_state_destroy(sampler->state);
}

/* Token 0 is the separator, token i + 1 byte i of the prompt: there is always one token to predict from. */
static dr_status read_prompt(struct sampler *sampler, const char *prompt, int64_t bytes) {
    int32_t ids[PROMPT_WINDOW];
    for (int64_t from = 0; from < bytes + 1; from += PROMPT_WINDOW) {
        int64_t count = bytes + 1 - from < PROMPT_WINDOW ? bytes + 1 - from : PROMPT_WINDOW, last = count - 1;
        for (int64_t i = 0; i < count; i++) ids[i] = from + i == 0 ? DR_DOCUMENT_START : (unsigned char)prompt[from + i - 1];
        dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = 1, .positions = &last};
        DR_TRY(dr_model_logits(sampler->model, &batch, sampler->state, DR_F32, sampler->logits));
    }
    return DR_OK;
}

/* Emits what a token makes certain. *ended: a stop text is complete. */
static dr_status emit_token(struct sampler *sampler, int32_t id, int64_t made, emit_function emit, void *context, bool *ended) {
    dr_stop *stop = &sampler->stop;
    size_t certain = stop->held_bytes; /* a document that ends: no stop text goes on in the next */
    *ended = id != DR_DOCUMENT_START && dr_stop_add(stop, (char)id, &certain);
    if (!emit(context, stop->held, certain))
        return dr_fail(DR_ERROR_INTERRUPTED, "generation was stopped after %lld tokens", (long long)made);
    dr_stop_take(stop, certain);
    return DR_OK;
}

static dr_status make_tokens(struct sampler *sampler, const dr_generate_options *options, emit_function emit, void *context) {
    dr_random random = dr_stream(options->seed, DR_STREAM_SAMPLING, options->sample);
    bool ended = false;
    for (int64_t made = 0; made < options->tokens && !ended; made++) {
        int32_t id;
        DR_TRY(dr_sample(options, sampler->logits, DR_BYTE_VOCABULARY, sampler->candidates, &random, &id));
        DR_TRY(emit_token(sampler, id, made + 1, emit, context, &ended));
        if (!ended && made + 1 < options->tokens) DR_TRY(dr_model_step(sampler->model, &id, sampler->state, sampler->logits));
    }
    if (ended || sampler->stop.held_bytes == 0 || emit(context, sampler->stop.held, sampler->stop.held_bytes)) return DR_OK;
    return dr_fail(DR_ERROR_INTERRUPTED, "generation was stopped after %lld tokens", (long long)options->tokens);
}

dr_status dr_generate_check(const dr_model *model, const dr_generate_options *options) {
    DR_NEED(model);
    DR_NEED(options);
    DR_TRY(dr_byte_vocabulary_check(dr_model_get_config(model)->vocabulary));
    return dr_sampling_check(options);
}

dr_status dr_generate(dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                      bool (*emit)(void *context, const char *bytes, size_t count), void *context) {
    DR_TRY(dr_generate_check(model, options));
    if (prompt_bytes > 0) DR_NEED(prompt);
    DR_NEED(emit);
    struct sampler sampler = {.model = model};
    dr_status status;
    DR_GO(open_sampler(&sampler, options));
    DR_GO(read_prompt(&sampler, prompt, (int64_t)prompt_bytes));
    DR_GO(make_tokens(&sampler, options, emit, context));
done:
    close_sampler(&sampler);
    return status;
}
