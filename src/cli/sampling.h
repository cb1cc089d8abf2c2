/* How tokens are chosen and what ends a text: flags of every command that makes text. */
#ifndef DR_CLI_SAMPLING_H
#define DR_CLI_SAMPLING_H

#include "cli/flags.h"

#include <deltarule/generate.h>

enum {
    CLI_TOKENS,
    CLI_TEMPERATURE,
    CLI_TOP_K,
    CLI_TOP_P,
    CLI_MIN_P,
    CLI_REPETITION_PENALTY,
    CLI_PRESENCE_PENALTY,
    CLI_FREQUENCY_PENALTY,
    CLI_LOGIT_BIAS,
    CLI_STOP,
    CLI_STOP_TOKEN,
    CLI_SEED,
    CLI_SAMPLING_FLAGS
};
enum { CLI_MOST_STOPS = 64, CLI_MOST_BIASES = 1024 };

extern const cli_flag cli_sampling_table[CLI_SAMPLING_FLAGS];

/* What repeated flags give; it lives as long as the options that point into it. */
typedef struct {
    const char *stops[CLI_MOST_STOPS], *stop_tokens[CLI_MOST_STOPS], *biases[CLI_MOST_BIASES];
    int32_t stop_ids[CLI_MOST_STOPS];
    dr_logit_bias bias[CLI_MOST_BIASES];
} cli_sampling_room;

/* Copies the table to flags, a part of a command's, and lets those that may be repeated write to room. */
void cli_sampling_flags(cli_flag *flags, cli_sampling_room *room);
/* Options as the library has them by default, and over them the flags. On failure says so and returns the exit status, else 0.
 */
int cli_sampling_read(const cli_command *command, const cli_flag *flags, cli_sampling_room *room, dr_generate_options *options);

#endif
