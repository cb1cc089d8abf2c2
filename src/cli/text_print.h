/* Texts that a model makes, some side by side, on their way to standard output: in order, the first of those that are not over
 * as it comes, the others when their turn comes; or a JSON object a text. */
#ifndef DR_CLI_TEXT_PRINT_H
#define DR_CLI_TEXT_PRINT_H

#include "cli/text.h"

#include <deltarule/generate.h>

/* What has been made of a text. */
typedef struct {
    char *bytes;
    size_t count, room;
    int32_t *ids;   /* [tokens], of JSON */
    char *logprobs; /* [logprob_bytes] JSON, of JSON with logprobs */
    size_t logprob_bytes, logprob_room;
    int64_t tokens, token_room;
    dr_finish finish;
} cli_made_text;

typedef struct {
    const dr_prompt *prompts;
    int64_t prompt_count, samples;
    const dr_tokenizer *tokenizer;
    bool echo, json, logprobs;
    cli_made_text *made; /* [prompt_count samples] */
    int64_t turn;        /* the text that is printed now */
    cli_text printed;
    bool out_of_memory;
} cli_text_print;

/* False without memory. Release it in either case. echo: prompts are printed before what follows them. */
bool cli_text_print_begin(cli_text_print *print, const dr_prompt *prompts, int64_t prompt_count, int64_t samples,
                          const dr_tokenizer *tokenizer, bool echo, bool json, bool logprobs);
/* A piece of one of them; false: it cannot be written, or held. */
bool cli_text_print_add(cli_text_print *print, const dr_piece *piece);
/* The end of the line that a failure has left. */
void cli_text_print_end(cli_text_print *print);
void cli_text_print_release(cli_text_print *print);

/* How fast it was, in one line: for a person, or JSON. */
void cli_print_speed(FILE *stream, const dr_generate_speed *speed, bool json);

#endif
