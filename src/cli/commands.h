/* The commands of `deltarule`, one file each. */
#ifndef DR_CLI_COMMANDS_H
#define DR_CLI_COMMANDS_H

#include "cli/flags.h"

extern const cli_command cli_rules, cli_train, cli_score, cli_generate, cli_chat, cli_verify, cli_theory, cli_bench, cli_info,
    cli_tokenize, cli_detokenize, cli_tokenizer, cli_chat_template, cli_serve, cli_experiment, cli_probe, cli_evaluate,
    cli_convert, cli_state;

#endif
