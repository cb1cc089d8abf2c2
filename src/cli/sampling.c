#include "cli/sampling.h"

#include "base/number.h"

#include <string.h>

#define REAL_FLAG(key, value, least, most, line)                                                                               \
    { .setting = {key, DR_SETTING_REAL, value, least, most, NULL, NULL, line}, .placeholder = "X" }

const cli_flag cli_sampling_table[CLI_SAMPLING_FLAGS] = {
    [CLI_TOKENS] = {.setting = {"tokens", DR_SETTING_INTEGER, "500", 0, 1e15, NULL, NULL, "how many tokens to make"},
                    .placeholder = "N"},
    [CLI_TEMPERATURE] = REAL_FLAG("temperature", "1", 0, 100, "0: always the likeliest token"),
    [CLI_TOP_K] = {.setting = {"top_k", DR_SETTING_INTEGER, "0", 0, 1e9, NULL, NULL,
                               "draw from the K likeliest only; 0: from all"},
                   .placeholder = "K"},
    [CLI_TOP_P] = {.setting = {"top_p", DR_SETTING_REAL, "1", 0, 1, NULL, NULL,
                               "draw from the likeliest that together have this probability"},
                   .placeholder = "P"},
    [CLI_MIN_P] = {.setting = {"min_p", DR_SETTING_REAL, "0", 0, 1, NULL, NULL,
                               "draw only from what is at least P times as likely as the likeliest"},
                   .placeholder = "P"},
    [CLI_REPETITION_PENALTY] =
        REAL_FLAG("repetition_penalty", "1", 0, 1e6,
                  "divide positive logits of tokens that occurred, also in the prompt, and multiply negative ones; 1: none"),
    [CLI_PRESENCE_PENALTY] =
        REAL_FLAG("presence_penalty", "0", -1e6, 1e6, "take this from the logits of tokens that the text has so far"),
    [CLI_FREQUENCY_PENALTY] =
        REAL_FLAG("frequency_penalty", "0", -1e6, 1e6, "take this from them for each time that the text has them"),
    [CLI_LOGIT_BIAS] = {.setting = {"logit_bias", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                    "add X to the logit of token ID, -inf: never make it; may be given several times"},
                        .placeholder = "ID=X"},
    [CLI_STOP] = {.setting = {"stop", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                              "end before this text appears; may be given several times"},
                  .placeholder = "TEXT"},
    [CLI_STOP_TOKEN] = {.setting = {"stop_token", DR_SETTING_INTEGER, NULL, 0, 2147483647, NULL, NULL,
                                    "end at this token; may be given several times"},
                        .placeholder = "ID"},
    [CLI_SEED] = {.setting = {"seed", DR_SETTING_INTEGER, "0", 0, 9007199254740992.0, NULL, NULL,
                              "the same seed gives the same text"},
                  .placeholder = "N"},
};

void cli_sampling_flags(cli_flag *flags, cli_sampling_room *room) {
    memcpy(flags, cli_sampling_table, sizeof cli_sampling_table);
    flags[CLI_STOP].values = room->stops, flags[CLI_STOP].most_values = CLI_MOST_STOPS;
    flags[CLI_STOP_TOKEN].values = room->stop_tokens, flags[CLI_STOP_TOKEN].most_values = CLI_MOST_STOPS;
    flags[CLI_LOGIT_BIAS].values = room->biases, flags[CLI_LOGIT_BIAS].most_values = CLI_MOST_BIASES;
}

/* "ID=X" */
static bool read_bias(const char *text, dr_logit_bias *bias) {
    const char *equals = strchr(text, '=');
    char number[32];
    int64_t id;
    if (!equals || equals - text >= (ptrdiff_t)sizeof number) return false;
    memcpy(number, text, (size_t)(equals - text));
    number[equals - text] = '\0';
    if (!dr_integer_parse(number, &id) || id < 0 || id > INT32_MAX) return false;
    bias->id = (int32_t)id;
    return dr_number_parse(equals + 1, DR_NUMBER_ANY, &bias->bias);
}

int cli_sampling_read(const cli_command *command, const cli_flag *flags, cli_sampling_room *room,
                      dr_generate_options *options) {
    *options = dr_generate_defaults();
    options->tokens = cli_flag_integer(&flags[CLI_TOKENS]);
    options->sampling.temperature = cli_flag_real(&flags[CLI_TEMPERATURE]);
    options->sampling.top_k = cli_flag_integer(&flags[CLI_TOP_K]);
    options->sampling.top_p = cli_flag_real(&flags[CLI_TOP_P]);
    options->sampling.min_p = cli_flag_real(&flags[CLI_MIN_P]);
    options->sampling.repetition_penalty = cli_flag_real(&flags[CLI_REPETITION_PENALTY]);
    options->sampling.presence_penalty = cli_flag_real(&flags[CLI_PRESENCE_PENALTY]);
    options->sampling.frequency_penalty = cli_flag_real(&flags[CLI_FREQUENCY_PENALTY]);
    options->sampling.seed = (uint64_t)cli_flag_integer(&flags[CLI_SEED]);
    options->stop = flags[CLI_STOP].values;
    options->stop_count = flags[CLI_STOP].value_count;
    for (int i = 0; i < flags[CLI_STOP_TOKEN].value_count; i++) {
        int64_t id = 0;
        dr_integer_parse(room->stop_tokens[i], &id); /* the flag's bounds have been checked */
        room->stop_ids[i] = (int32_t)id;
    }
    options->stop_tokens = room->stop_ids;
    options->stop_token_count = flags[CLI_STOP_TOKEN].value_count;
    for (int i = 0; i < flags[CLI_LOGIT_BIAS].value_count; i++)
        if (!read_bias(room->biases[i], &room->bias[i]))
            return cli_usage(command, "--logit-bias %s: it must be ID=X, a token's id and a number, such as 50256=-inf",
                             room->biases[i]);
    options->sampling.bias = room->bias;
    options->sampling.bias_count = flags[CLI_LOGIT_BIAS].value_count;
    return 0;
}
