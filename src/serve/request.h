/* What a client asks: the JSON body of a request, read and checked before anything is computed.
 *
 * Parsing needs no model and no connection, so that it can be tested and fuzzed alone. Keys that are not known are passed over,
 * as clients send many; keys that are known and would change the answer in a way that is not done are refused. */
#ifndef DR_SERVE_REQUEST_H
#define DR_SERVE_REQUEST_H

#include "constrain/schema.h"

#include <deltarule/generate.h>
#include <jansson.h>

typedef enum {
    DR_REQUEST_COMPLETION, /* /v1/completions */
    DR_REQUEST_CHAT,       /* /v1/chat/completions */
    DR_REQUEST_EMBEDDING,  /* /v1/embeddings */
    DR_REQUEST_TOKENIZE,   /* /tokenize */
    DR_REQUEST_DETOKENIZE  /* /detokenize */
} dr_request_kind;

enum { DR_MOST_PROMPTS = 1024, DR_MOST_CHOICES = 128, DR_MOST_STOPS = 16, DR_MOST_SHOWN = 20 };

/* One prompt: a text, or token ids as they are. */
typedef struct {
    const char *text; /* [bytes], NULL: ids */
    size_t bytes;
    int32_t *ids; /* [count] */
    int64_t count;
} dr_request_prompt;

typedef struct {
    dr_request_kind kind;
    json_t *json;      /* owns the texts */
    const char *param; /* after a failure: the key that it is about, or NULL */
    const char *model; /* NULL: the first that is served */
    dr_request_prompt *prompts;
    int64_t prompt_count, prompt_room;
    char *messages, *tools, *variables; /* of a chat, JSON as the template takes it; NULL: none */
    bool add_generation_prompt;
    bool must_call;              /* the answer must be a call of a tool */
    const char *tool;            /* of this one; NULL: of any */
    dr_schema *schema;           /* what the answer must be; NULL: any text */
    dr_generate_options options; /* sampling, stop texts, ignore_eos; the tokenizer is still to come */
    const char *stops[DR_MOST_STOPS];
    dr_logit_bias *bias; /* [options.sampling.bias_count] */
    int64_t choices;     /* answers for each prompt */
    int64_t max_tokens;  /* -1: what the context leaves */
    int64_t top;         /* logprobs of so many of the likeliest tokens; -1: no logprobs */
    bool seeded;         /* the client chose the seed */
    bool echo, stream, include_usage;
    bool special; /* tokenize: with what the tokenizer's template adds */
    bool base64;  /* embeddings as base64 of float32, little-endian */
} dr_request;

/* Reads a body. request is to be released after a failure too. DR_ERROR_FORMAT, DR_ERROR_UNSUPPORTED or DR_ERROR_MEMORY with a
 * sentence for the client. */
dr_status dr_request_parse(dr_request_kind kind, const char *body, size_t bytes, dr_request *request);
void dr_request_release(dr_request *request);

#endif
