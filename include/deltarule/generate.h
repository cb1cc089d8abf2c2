/* Making text with a model, token by token, in constant memory; several texts at once.
 *
 * Threads. Generating only reads the model: any number of threads may generate from one at once, while nothing writes its
 * parameters. Options may be shared. emit is called on the thread that generates. */
#ifndef DELTARULE_GENERATE_H
#define DELTARULE_GENERATE_H

#include <deltarule/model.h>
#include <deltarule/sample.h>
#include <deltarule/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DR_MOST_DRAFT_TOKENS = 64 };

typedef struct {
    int64_t tokens;          /* how many to make at most */
    dr_sampling sampling;    /* how they are chosen */
    const char *const *stop; /* [stop_count] texts that end it, none empty; NULL if stop_count is 0 */
    int64_t stop_count;
    const int32_t *stop_tokens; /* [stop_token_count] ids that end it; NULL if stop_token_count is 0 */
    int64_t stop_token_count;
    const dr_tokenizer *tokenizer; /* that of the model; NULL: its ids are bytes */
    bool ignore_eos;               /* with a tokenizer: go on after the token that ends a text */
    int64_t at_once;               /* texts that dr_generate_texts makes side by side, >= 1 */
    /* Guesses, up to so many tokens at a time, that the model then computes together: the text is the same, bit for bit on the
     * CPU, since a guess stays only where it is the token that is chosen without it. 0: none. Texts are then made one by one.
     */
    int64_t draft_tokens; /* at most DR_MOST_DRAFT_TOKENS */
    const dr_model
        *draft; /* what guesses, of the same vocabulary; NULL: what followed the last tokens where they stood before */
} dr_generate_options;

DR_API dr_generate_options dr_generate_defaults(void);

/* Whether dr_generate would take these options for this model: DR_ERROR_ARGUMENT names an option that cannot be,
 * DR_ERROR_UNSUPPORTED a model whose vocabulary is not that of the tokenizer, or of bytes without one. */
DR_API dr_status dr_generate_check(const dr_model *model, const dr_generate_options *options);

/* Reads the prompt (may be empty) chunkwise, then makes tokens. emit is called for each with the text that is certain: none
 * where the model ends one document and begins the next, and none while it may be the beginning of a stop text, which is never
 * emitted and ends the generation with DR_OK; the prompt is not searched for it. With a tokenizer the text comes in whole
 * characters, U+FFFD for what is none, special tokens left out, and the token that ends or begins a text ends the generation.
 * Without one a character of several bytes may come in several calls. emit returns false to stop, which gives
 * DR_ERROR_INTERRUPTED. A seed repeats a text. Errors as dr_generate_check. */
DR_API dr_status dr_generate(const dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                             bool (*emit)(void *context, const char *bytes, size_t count), void *context);

/* ---- several texts ---- */

/* What a text begins with: a text, or token ids. */
typedef struct {
    const char *text; /* [bytes]; NULL: none */
    size_t bytes;
    bool as_is;         /* with a tokenizer: nothing is put before the text's own ids, as a rendered chat needs it */
    const int32_t *ids; /* [count] instead of a text, read as they are; NULL: the text. count >= 1 */
    int64_t count;
} dr_prompt;

/* Why a text ended. */
typedef enum {
    DR_FINISH_NOT,    /* it goes on */
    DR_FINISH_LENGTH, /* as many tokens as were asked for */
    DR_FINISH_END,    /* the token that ends or begins a text */
    DR_FINISH_STOP,   /* a stop text, or a stop token */
} dr_finish;

/* A token of one text; the last one comes with the reason. */
typedef struct {
    int64_t prompt, sample;  /* of which prompt; which of its samples */
    const char *bytes;       /* [count] text that has become certain, as dr_generate emits it; of a stop token none */
    size_t count;            /* valid during the call */
    const dr_choice *choice; /* NULL: there is none, since no token was asked for */
    dr_finish finish;
} dr_piece;

typedef struct {
    int64_t prompt_tokens, tokens; /* that were read, of all prompts and samples; that were made */
    double prompt_seconds;         /* reading prompts */
    double first_token_seconds;    /* from the call to the first piece */
    double token_seconds;          /* making tokens, each text's first included */
    int64_t drafted, accepted;     /* tokens that were guessed; those of them that stayed */
} dr_generate_speed;

/* `samples` texts of each prompt, options->at_once side by side: the samples of the first prompt, then those of the next.
 * Sample s of a prompt is the text that options->sampling.sample + s gives, whatever is made beside it; on the CPU bit for bit.
 * emit gets pieces of texts that are made side by side in turn and returns false to stop (DR_ERROR_INTERRUPTED). speed: NULL,
 * or filled also after a failure. Errors as dr_generate_check. */
DR_API dr_status dr_generate_texts(const dr_model *model, const dr_prompt *prompts, int64_t prompt_count, int64_t samples,
                                   const dr_generate_options *options, bool (*emit)(void *context, const dr_piece *piece),
                                   void *context, dr_generate_speed *speed);

#ifdef __cplusplus
}
#endif
#endif
