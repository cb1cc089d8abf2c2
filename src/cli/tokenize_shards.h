/* deltarule tokenize --shards: corpora into shards. */
#ifndef DR_CLI_TOKENIZE_SHARDS_H
#define DR_CLI_TOKENIZE_SHARDS_H

#include "cli/flags.h"

/* The flags that tokenize has for shards, in their place in its table. */
enum {
    CLI_SHARDS_FOLDER,
    CLI_SHARDS_FIELD,
    CLI_SHARDS_MESSAGES,
    CLI_SHARDS_VALIDATION,
    CLI_SHARDS_VALIDATION_SHARE,
    CLI_SHARDS_SEED,
    CLI_SHARDS_TOKENS,
    CLI_SHARDS_LONGEST_DOCUMENT,
    CLI_SHARDS_SKIP_UNREADABLE,
    CLI_SHARDS_FLAGS,
    CLI_MOST_VALIDATIONS = 48
};
extern const cli_flag cli_shards_flags[CLI_SHARDS_FLAGS];

/* Writes the shards of the corpora [count]; returns the exit status. flags: those above, as they were parsed. */
int cli_write_shards(const cli_command *command, const char *tokenizer, const cli_flag *flags, char *const *corpora, int count);

#endif
