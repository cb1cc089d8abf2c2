/* What texts begin with, as a user names it. */
#ifndef DR_CLI_PROMPTS_H
#define DR_CLI_PROMPTS_H

#include "cli/flags.h"

#include <deltarule/generate.h>

enum { CLI_MOST_PROMPTS = 1024 };

typedef struct {
    dr_prompt *prompts; /* [count] */
    int64_t count;
    char *text;    /* of a file, which the prompts point into; NULL: of flags */
    int32_t **ids; /* [count] of prompts that are ids, else NULL */
} cli_prompts;

/* Prompts of flags that may be repeated, texts first, or of a file: all of it is one prompt, or, `lines`, each line that is not
 * empty is one, a JSON string or a JSON list of token ids. "-": standard input. Nothing given: one empty prompt. On failure
 * says so and returns the exit status, else 0; release in either case. */
int cli_prompts_read(const cli_command *command, const cli_flag *texts, const cli_flag *ids, const cli_flag *file,
                     const cli_flag *lines, cli_prompts *prompts);
void cli_prompts_release(cli_prompts *prompts);

#endif
