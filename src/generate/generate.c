/* Making texts, some side by side: their prompts go through the chunkwise engine in windows, a window of each prompt in one
 * call, then each token through the decode engine, one of each text in one call. All memory is taken before the first token but
 * for the text of a token: the state's size does not depend on how long a text becomes. A text that is over goes on being
 * computed, with token 0, until the others are over, since a state has a fixed number of sequences; nothing of it is seen. */
#include <deltarule/generate.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/encode.h"
#include "generate/answer.h"
#include "generate/draft.h"
#include "generate/sampling.h"
#include "nn/session.h"

#include <string.h>

enum {
    PROMPT_WINDOW = 512,
    AT_ONCE = 8,
    MOST_AT_ONCE = 4096,
    MANY = 4 /* texts from which on a backend with the host's memory chooses their tokens, if it can */
};

dr_generate_options dr_generate_defaults(void) {
    dr_generate_options options = {.tokens = 512, .at_once = AT_ONCE, .sampling = dr_sampling_defaults()};
    options.sampling.temperature = 0.8;
    options.sampling.top_p = 0.95;
    options.sampling.seed = 1;
    return options;
}

static int64_t drawn_ids(const dr_tokenizer *tokenizer) {
    return tokenizer ? dr_tokenizer_size(tokenizer) : DR_BYTE_VOCABULARY;
}

dr_status dr_generate_check(const dr_model *model, const dr_generate_options *options) {
    DR_NEED(model);
    DR_NEED(options);
    DR_TRY(dr_vocabulary_check(dr_model_get_config(model)->vocabulary, options->tokenizer));
    DR_TRY(dr_sampling_check(&options->sampling, drawn_ids(options->tokenizer)));
    if (options->at_once < 1 || options->at_once > MOST_AT_ONCE)
        return dr_fail(DR_ERROR_ARGUMENT, "at_once is %lld: it must be from 1 to %d", (long long)options->at_once,
                       MOST_AT_ONCE);
    DR_TRY(dr_draft_check(model, options));
    return dr_answer_check(options);
}

typedef bool (*emit_function)(void *context, const dr_piece *piece);

/* One of the texts that are made side by side. */
typedef struct {
    int64_t prompt, sample;
    int32_t *ids; /* [count] of the prompt */
    int64_t count;
    dr_sampler *sampler;
    dr_answer answer;
} text;

typedef struct {
    const dr_model *model;
    const dr_generate_options *options;
    int64_t vocabulary; /* of the model */
    int64_t count;      /* texts side by side */
    text *texts;        /* [count] */
    dr_session *session;
    dr_model_state *state; /* of count sequences */
    float *logits;         /* [count, vocabulary] of each text's next token */
    float *read;           /* [count, vocabulary] of the prompts that end in a window */
    int32_t *ids;          /* [count PROMPT_WINDOW] of a window; then [count] of a step */
    int64_t *begins;       /* [count + 1] */
    int64_t *positions;    /* [count] */
    int64_t *ending;       /* [count] texts whose prompts end in a window */
    dr_draw *draws;        /* [count] and */
    int32_t *chosen;       /* [count] where the backend chooses tokens, else NULL */
    int64_t begun;         /* steps whose tokens it chooses */
    dr_generate_speed *speed;
    double start;
    emit_function emit;
    void *context;
} generator;

/* ---- prompts ---- */

static dr_status check_prompt(const generator *self, const dr_prompt *prompt, int64_t number) {
    if (!prompt->ids) {
        if (prompt->bytes > 0 && !prompt->text)
            return dr_fail(DR_ERROR_ARGUMENT, "prompt %lld is missing: it must not be NULL", (long long)number);
        return DR_OK;
    }
    if (prompt->count < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "prompt %lld has %lld token ids: it must have one at least", (long long)number,
                       (long long)prompt->count);
    for (int64_t i = 0; i < prompt->count; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= self->vocabulary)
            return dr_fail(DR_ERROR_ARGUMENT, "token %lld of prompt %lld is %lld: ids are from 0 to %lld", (long long)i + 1,
                           (long long)number, (long long)prompt->ids[i], (long long)self->vocabulary - 1);
    return DR_OK;
}

static dr_status keep_ids(text *made, const int32_t *ids, int64_t count) {
    void *memory;
    DR_TRY(dr_allocate((size_t)count * sizeof(int32_t), "the ids of a prompt", &memory));
    memcpy(memory, ids, (size_t)count * sizeof(int32_t));
    made->ids = memory;
    made->count = count;
    return DR_OK;
}

static dr_status keep_prompt(text *made, const dr_tokenizer *tokenizer, const dr_prompt *prompt) {
    /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Branch): it takes a group to be longer than the texts that are left */
    if (prompt->ids) return keep_ids(made, prompt->ids, prompt->count);
    DR_TRY(dr_text_ids(tokenizer, prompt->text ? prompt->text : "", prompt->bytes, prompt->as_is ? DR_TEXT_AS_IS : DR_TEXT_OPEN,
                       &made->ids, &made->count));
    if (made->count > 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the prompt has no tokens, and nothing is to be put before it");
}

/* ---- memory ---- */

static dr_status open_memory(generator *self) {
    const size_t count = (size_t)self->count;
    void *memory;
    DR_TRY(dr_allocate_zero(count * sizeof(text), "the texts", &memory));
    self->texts = memory;
    DR_TRY(dr_allocate(count * (size_t)self->vocabulary * sizeof(float), "the logits", &memory));
    self->logits = memory;
    DR_TRY(dr_allocate(count * (size_t)self->vocabulary * sizeof(float), "the logits", &memory));
    self->read = memory;
    DR_TRY(dr_allocate(count * PROMPT_WINDOW * sizeof(int32_t), "a window of tokens", &memory));
    self->ids = memory;
    DR_TRY(dr_allocate((count + 1) * sizeof(int64_t), "a window of tokens", &memory));
    self->begins = memory;
    DR_TRY(dr_allocate(count * sizeof(int64_t), "a window of tokens", &memory));
    self->positions = memory;
    DR_TRY(dr_allocate(count * sizeof(int64_t), "a window of tokens", &memory));
    self->ending = memory;
    DR_TRY(dr_session_create(self->model, &self->session));
    return dr_model_state_create(self->model, self->count, &self->state);
}

/* Tokens of many texts are chosen where their logits are, if the backend can and the options ask for no more. */
static dr_status open_draws(generator *self) {
    const size_t count = (size_t)self->count;
    void *memory;
    const dr_operations *ops = self->model->backend->ops;
    if (!ops->choose || !dr_sampling_is_plain(&self->options->sampling)) return DR_OK;
    if (self->count < MANY && !ops->device) return DR_OK;
    DR_TRY(dr_allocate(count * sizeof(dr_draw), "the draws", &memory));
    self->draws = memory;
    DR_TRY(dr_allocate(count * sizeof(int32_t), "the tokens that are chosen", &memory));
    self->chosen = memory;
    return DR_OK;
}

/* Text i of those side by side: sample `sample` of a prompt. */
static dr_status open_text(generator *self, int64_t i, const dr_prompt *prompts, int64_t prompt, int64_t sample) {
    text *made = &self->texts[i];
    dr_sampling sampling = self->options->sampling;
    sampling.sample += sample;
    made->prompt = prompt, made->sample = sample;
    DR_TRY(keep_prompt(made, self->options->tokenizer, &prompts[prompt]));
    DR_TRY(dr_sampler_create(drawn_ids(self->options->tokenizer), &sampling, &made->sampler));
    DR_TRY(dr_answer_create(self->options, &made->answer));
    DR_TRY(dr_sampler_read(made->sampler, made->ids, made->count));
    return dr_answer_read(&made->answer, made->ids, made->count);
}

static void close_memory(generator *self) {
    for (int64_t i = 0; self->texts && i < self->count; i++) {
        dr_release(self->texts[i].ids);
        dr_sampler_destroy(self->texts[i].sampler);
        dr_answer_release(&self->texts[i].answer);
    }
    dr_release(self->texts);
    dr_release(self->logits);
    dr_release(self->read);
    dr_release(self->ids);
    dr_release(self->begins);
    dr_release(self->positions);
    dr_release(self->ending);
    dr_release(self->draws);
    dr_release(self->chosen);
    dr_model_state_destroy(self->state);
    dr_session_destroy(self->session);
}

/* ---- reading ---- */

/* Tokens from `from` on of every prompt that has so many; *rows 0: none has. */
static dr_status read_window(generator *self, int64_t from, int64_t *rows) {
    const size_t row = (size_t)self->vocabulary;
    int64_t ending = 0;
    *rows = 0;
    for (int64_t i = 0; i < self->count; i++) {
        const text *at = &self->texts[i];
        const int64_t left = at->count - from, count = left < 0 ? 0 : left < PROMPT_WINDOW ? left : PROMPT_WINDOW;
        self->begins[i] = *rows;
        if (count > 0) memcpy(self->ids + *rows, at->ids + from, (size_t)count * sizeof(int32_t));
        *rows += count;
        if (count > 0 && count == left) {
            self->positions[ending] = *rows - 1;
            self->ending[ending++] = i;
        }
    }
    self->begins[self->count] = *rows;
    if (*rows == 0) return DR_OK;
    dr_batch batch = {.layout = {.sequences = self->count, .rows = *rows, .cu_seqlens = self->count > 1 ? self->begins : NULL},
                      .ids = self->ids,
                      .targets = ending,
                      .positions = self->positions};
    DR_TRY(dr_session_logits(self->session, &batch, self->state, DR_F32, self->read));
    for (int64_t i = 0; i < ending; i++)
        memcpy(self->logits + (size_t)self->ending[i] * row, self->read + (size_t)i * row, row * sizeof(float));
    return DR_OK;
}

static dr_status read_prompts(generator *self) {
    const double start = dr_clock_now();
    int64_t rows = 1;
    for (int64_t from = 0; rows > 0; from += PROMPT_WINDOW) {
        DR_TRY(read_window(self, from, &rows));
        self->speed->prompt_tokens += rows;
    }
    self->speed->prompt_seconds += dr_clock_now() - start;
    return DR_OK;
}

/* ---- making ---- */

static dr_status emit_piece(generator *self, const text *at, const dr_choice *choice) {
    const dr_answer *answer = &at->answer;
    const dr_piece piece = {.prompt = at->prompt,
                            .sample = at->sample,
                            .bytes = answer->ready ? answer->ready : "",
                            .count = choice ? answer->ready_bytes : 0,
                            .choice = choice,
                            .finish = answer->finish};
    if (self->speed->first_token_seconds == 0) self->speed->first_token_seconds = dr_clock_now() - self->start;
    if (self->emit(self->context, &piece)) return DR_OK;
    return dr_fail(DR_ERROR_INTERRUPTED, "generation was stopped after %lld tokens", (long long)self->speed->tokens);
}

/* A token that was chosen becomes the next of a text. */
static dr_status add_token(generator *self, text *at, const dr_choice *choice) {
    DR_TRY(dr_answer_add(&at->answer, choice->id));
    self->speed->tokens++;
    return emit_piece(self, at, choice);
}

/* The next token of a text. */
static dr_status choose_token(generator *self, text *at, const float *logits, int32_t *id) {
    dr_choice choice;
    DR_TRY(dr_sampler_choose(at->sampler, logits, &choice));
    *id = choice.id;
    return add_token(self, at, &choice);
}

/* A token of each text that is not over; *left: how many go on. */
static dr_status choose_tokens(generator *self, int64_t *left) {
    *left = 0;
    for (int64_t i = 0; i < self->count; i++) {
        text *at = &self->texts[i];
        self->ids[i] = 0;
        if (at->answer.finish != DR_FINISH_NOT) continue;
        DR_TRY(choose_token(self, at, self->logits + i * self->vocabulary, &self->ids[i]));
        if (at->answer.finish == DR_FINISH_NOT) ++*left;
    }
    return DR_OK;
}

/* ---- tokens that the backend chooses ---- */

/* Begins a step; ids NULL: it takes what the step before it chooses. What it chooses for texts that are over, or turn out to
 * be, nobody sees. */
static dr_status begin_step(generator *self, const int32_t *ids) {
    for (int64_t i = 0; i < self->count; i++) {
        const bool goes_on = self->texts[i].answer.finish == DR_FINISH_NOT;
        self->draws[i] = goes_on ? dr_sampler_draw(self->texts[i].sampler) : (dr_draw){0};
    }
    self->begun++;
    return dr_model_choose_begin(self->model, ids, self->state, drawn_ids(self->options->tokenizer), self->draws);
}

/* What a step chose becomes the next token of each text that is not over, as choose_tokens does with a step's logits. */
static dr_status end_step(generator *self, int64_t *left) {
    DR_TRY(dr_model_choose_end(self->state, self->chosen));
    *left = 0;
    for (int64_t i = 0; i < self->count; i++) {
        text *at = &self->texts[i];
        self->ids[i] = 0;
        if (at->answer.finish != DR_FINISH_NOT) continue;
        self->ids[i] = self->chosen[i];
        dr_sampler_chosen(at->sampler, self->chosen[i]);
        DR_TRY(add_token(self, at, &(dr_choice){.id = self->chosen[i]}));
        if (at->answer.finish == DR_FINISH_NOT) ++*left;
    }
    return DR_OK;
}

/* Where the backend works beside the host, it has the next step to do while the host looks at what the last one chose; so one
 * step too many may be computed when the texts are over. */
static dr_status step_and_choose(generator *self, int64_t *left) {
    const bool beside = self->model->backend->ops->fetch != NULL;
    DR_TRY(begin_step(self, self->ids));
    while (*left > 0) {
        const bool ahead = beside && self->begun + 1 < self->options->tokens; /* each text has one from its prompt */
        if (ahead) DR_TRY(begin_step(self, NULL));
        DR_TRY(end_step(self, left));
        if (*left > 0 && !ahead) DR_TRY(begin_step(self, self->ids));
    }
    dr_model_choose_forget(self->state);
    return DR_OK;
}

/* ---- guesses ---- */

/* Tokens of the guesses' logits until one differs from its guess, or the text is over. */
static dr_status choose_drafted(generator *self, text *at, dr_draft *draft) {
    for (bool same = true; same && at->answer.finish == DR_FINISH_NOT;) {
        const float *logits;
        int32_t id;
        dr_draft_next(draft, &logits);
        DR_TRY(choose_token(self, at, logits, &id));
        DR_TRY(dr_draft_chosen(draft, id, &same));
    }
    return DR_OK;
}

/* The text that there is, with guesses. */
static dr_status make_drafted(generator *self) {
    text *at = self->texts;
    dr_draft *draft = NULL;
    dr_status status;
    int32_t id;
    DR_GO(dr_draft_create(self->model, self->options, self->state, at->ids, at->count, &draft));
    DR_GO(choose_token(self, at, self->logits, &id));
    DR_GO(dr_draft_chosen(draft, id, &(bool){false}));
    while (at->answer.finish == DR_FINISH_NOT) {
        DR_GO(dr_draft_compute(draft));
        DR_GO(choose_drafted(self, at, draft));
    }
done:
    if (draft) dr_draft_count(draft, &self->speed->drafted, &self->speed->accepted);
    dr_draft_destroy(draft);
    return status;
}

static dr_status make_tokens(generator *self) {
    const double start = dr_clock_now();
    dr_status status = DR_OK;
    int64_t left = 0;
    for (int64_t i = 0; i < self->count && status == DR_OK; i++) {
        if (self->texts[i].answer.finish == DR_FINISH_NOT)
            left++;
        else
            status = emit_piece(self, &self->texts[i], NULL);
    }
    if (left > 0 && status == DR_OK && self->options->draft_tokens > 0) {
        status = make_drafted(self);
        left = 0;
    }
    if (left > 0 && status == DR_OK) status = choose_tokens(self, &left); /* by the logits of the prompts */
    if (left > 0 && status == DR_OK && self->chosen) status = step_and_choose(self, &left);
    while (left > 0 && status == DR_OK) {
        status = dr_model_step(self->model, self->ids, self->state, self->logits);
        if (status == DR_OK) status = choose_tokens(self, &left);
    }
    self->speed->token_seconds += dr_clock_now() - start;
    return status;
}

/* Texts `first` to `first + count - 1` of all. */
static dr_status make_group(generator *self, const dr_prompt *prompts, int64_t samples, int64_t first) {
    dr_status status;
    DR_GO(open_memory(self));
    DR_GO(open_draws(self));
    for (int64_t i = 0; i < self->count; i++) DR_GO(open_text(self, i, prompts, (first + i) / samples, (first + i) % samples));
    if (self->options->tokens > 0) DR_GO(read_prompts(self));
    DR_GO(make_tokens(self));
done:
    close_memory(self);
    return status;
}

dr_status dr_generate_texts(const dr_model *model, const dr_prompt *prompts, int64_t prompt_count, int64_t samples,
                            const dr_generate_options *options, bool (*emit)(void *context, const dr_piece *piece),
                            void *context, dr_generate_speed *speed) {
    dr_generate_speed unseen;
    DR_TRY(dr_generate_check(model, options));
    DR_NEED(prompts);
    DR_NEED(emit);
    if (prompt_count < 1 || samples < 1 || samples > INT64_MAX / prompt_count)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld samples of %lld prompts: there must be one of each at least",
                       (long long)samples, (long long)prompt_count);
    dr_sampling last = options->sampling;
    last.sample += samples - 1;
    DR_TRY(dr_sampling_check(&last, drawn_ids(options->tokenizer)));
    if (!speed) speed = &unseen;
    *speed = (dr_generate_speed){0};
    const generator whole = {.model = model,
                             .options = options,
                             .vocabulary = dr_model_get_config(model)->vocabulary,
                             .speed = speed,
                             .start = dr_clock_now(),
                             .emit = emit,
                             .context = context};
    for (int64_t i = 0; i < prompt_count; i++) DR_TRY(check_prompt(&whole, &prompts[i], i + 1));
    const int64_t texts = prompt_count * samples, at_once = options->draft_tokens > 0 ? 1 : options->at_once;
    for (int64_t first = 0; first < texts; first += at_once) {
        generator group = whole;
        group.count = texts - first < at_once ? texts - first : at_once;
        DR_TRY(make_group(&group, prompts, samples, first));
    }
    return DR_OK;
}

/* ---- one text ---- */

typedef struct {
    bool (*emit)(void *context, const char *bytes, size_t count);
    void *context;
} text_reader;

static bool pass_text(void *context, const dr_piece *piece) {
    const text_reader *reader = context;
    return !piece->choice || reader->emit(reader->context, piece->bytes, piece->count);
}

dr_status dr_generate(const dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                      bool (*emit)(void *context, const char *bytes, size_t count), void *context) {
    DR_NEED(model);
    DR_NEED(options);
    DR_NEED(emit);
    if (prompt_bytes > 0) DR_NEED(prompt);
    const dr_prompt one = {.text = prompt, .bytes = prompt_bytes};
    text_reader reader = {.emit = emit, .context = context};
    return dr_generate_texts(model, &one, 1, 1, options, pass_text, &reader, NULL);
}
