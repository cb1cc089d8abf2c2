/* deltarule chat-template: messages as the text that a tokenizer's chat template makes of them. */
#include "cli/commands.h"
#include "cli/input.h"

#include <deltarule/chat.h>

#include <stdio.h>
#include <stdlib.h>

enum { TOKENIZER, TOOLS, DOCUMENTS, VARIABLES, NAME, GENERATION_PROMPT, TIME, FLAGS };

#define FLAG_FILE(flag_name, meaning)                                                                                          \
    { .setting = {flag_name, DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, meaning}, .placeholder = "FILE" }

/* The file that a flag names, or NULL. */
static int read_flag(const cli_flag *flag, char **text) {
    size_t bytes;
    return flag->value ? cli_read_input(&cli_chat_template, flag->value, CLI_MOST_PROMPT, text, &bytes) : 0;
}

static int render(const cli_flag *flags, char *const *texts, const char *messages) {
    dr_chat *chat;
    char *text;
    size_t length;
    dr_chat_options options = {.size = sizeof options,
                               .messages = messages,
                               .tools = texts[TOOLS],
                               .documents = texts[DOCUMENTS],
                               .variables = texts[VARIABLES],
                               .name = flags[NAME].value,
                               .add_generation_prompt = cli_flag_boolean(&flags[GENERATION_PROMPT]),
                               .has_time = flags[TIME].given};
    if (options.has_time) options.time = cli_flag_integer(&flags[TIME]);
    dr_status status = dr_chat_load(flags[TOKENIZER].value, &chat);
    if (status != DR_OK) return cli_failure(&cli_chat_template, status);
    status = dr_chat_render(chat, &options, &text, &length);
    dr_chat_destroy(chat);
    if (status != DR_OK) return cli_failure(&cli_chat_template, status);
    fwrite(text, 1, length, stdout);
    dr_chat_free_text(text);
    return 0;
}

static int run_chat_template(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [TOKENIZER] = {.setting = {"tokenizer", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                   "folder with tokenizer_config.json or chat_template.jinja"},
                       .placeholder = "DIR",
                       .required = true},
        [TOOLS] = FLAG_FILE("tools", "JSON list of tools that the model may call"),
        [DOCUMENTS] = FLAG_FILE("documents", "JSON list of documents"),
        [VARIABLES] = FLAG_FILE("variables", "JSON object with more variables of the template"),
        [NAME] = {.setting = {"name", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "which of several templates of the folder"},
                  .placeholder = "NAME"},
        [GENERATION_PROMPT] = {.setting = {"generation_prompt", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                           "begin the answer of the assistant"}},
        [TIME] = {.setting = {"time", DR_SETTING_INTEGER, NULL, 0, 253402300799, NULL, NULL,
                              "seconds since 1970 that the template takes for now"},
                  .placeholder = "SECONDS"},
    };
    char *texts[FLAGS] = {NULL}, *messages = NULL;
    size_t bytes;
    int operands, status;
    if (!cli_flags_parse(&cli_chat_template, flags, FLAGS, argc, argv, &operands, &status)) return status;
    status = cli_read_input(&cli_chat_template, operands ? argv[1] : "-", CLI_MOST_PROMPT, &messages, &bytes);
    for (int i = TOOLS; i <= VARIABLES && status == 0; i++) status = read_flag(&flags[i], &texts[i]);
    if (status == 0) status = render(flags, texts, messages);
    for (int i = TOOLS; i <= VARIABLES; i++) free(texts[i]);
    free(messages);
    return status;
}

const cli_command cli_chat_template = {
    .name = "chat-template",
    .arguments = "--tokenizer DIR [flags] [MESSAGES.json]",
    .summary = "messages as the text that a model's chat template makes of them",
    .details = "Reads a JSON list of messages, [{\"role\": \"user\", \"content\": \"Hi\"}], from the file or standard input. "
               "The text holds\n"
               "the special tokens already: give it to 'deltarule tokenize --no-special'.",
    .run = run_chat_template,
    .most_operands = 1,
};
