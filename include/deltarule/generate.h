/* Sampling text from a model, token by token, in constant memory.
 *
 * Threads. Generating only reads the model: any number of threads may generate from one at once, while nothing writes its
 * parameters. Options may be shared. emit is called on the thread that generates. */
#ifndef DELTARULE_GENERATE_H
#define DELTARULE_GENERATE_H

#include <deltarule/model.h>
#include <deltarule/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t tokens;     /* how many to make */
    double temperature; /* >= 0; 0: the likeliest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    uint64_t seed;
    int64_t sample;          /* >= 0: which of the texts that the seed gives */
    const char *const *stop; /* [stop_count] texts that end it, none empty; NULL if stop_count is 0 */
    int64_t stop_count;
    const dr_tokenizer *tokenizer; /* that of the model; NULL: its ids are bytes */
    bool ignore_eos;               /* with a tokenizer: go on after the token that ends a text */
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

#ifdef __cplusplus
}
#endif
#endif
