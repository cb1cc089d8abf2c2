/* deltarule chat: a conversation with a model, line by line. Each turn reads only what is new; Ctrl-C ends an answer, which
 * stays as far as it came, and not the program. Where nobody types, each line of standard input is a message, and answers alone
 * stand on standard output. */
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/line.h"
#include "cli/model.h"
#include "cli/sampling.h"
#include "cli/text.h"

#include "base/number.h"

#include <deltarule/conversation.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SYSTEM,
    LOAD,
    TEMPLATE,
    SAMPLING,
    TOKENIZER = SAMPLING + CLI_SAMPLING_FLAGS,
    SPEEDS,
    VERBOSE,
    BACKEND,
    DTYPE,
    DEVICE,
    THREADS,
    WEIGHTS,
    ISA,
    FLAGS
};

static const cli_flag table[FLAGS] = {
    [SYSTEM] = {.setting = {"system", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "a first message of the role system"},
                .placeholder = "TEXT"},
    [LOAD] = {.setting = {"load", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "go on with a conversation that /save wrote"},
              .placeholder = "FILE"},
    [TEMPLATE] = {.setting = {"template", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                              "a file with a Jinja chat template; 'plain': lines \"User: ...\" and \"Assistant: ...\"; by "
                              "default that of the tokenizer's folder, else plain"},
                  .placeholder = "FILE"},
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [SPEEDS] = {.setting = {"speeds", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                            "after each answer a line on standard error: tokens kept, read and made, and how fast"}},
    [VERBOSE] = CLI_FLAG_VERBOSE,
    [BACKEND] = CLI_FLAG_BACKEND,
    [DTYPE] = CLI_FLAG_DTYPE,
    [DEVICE] = CLI_FLAG_DEVICE,
    [THREADS] = CLI_FLAG_THREADS,
    [WEIGHTS] = CLI_FLAG_WEIGHTS,
    [ISA] = CLI_FLAG_ISA,
};

typedef struct {
    dr_conversation *conversation;
    dr_generate_options *options; /* each answer is a sample of its own */
    cli_lines *lines;
    cli_text printed;
    bool speeds;
    int failed; /* exit status of what failed where nobody types */
} chat;

/* ---- answers ---- */

static bool emit(void *context, const char *bytes, size_t count) {
    chat *self = context;
    return cli_text_write(&self->printed, bytes, count) && fflush(stdout) == 0 && !cli_interrupted();
}

static void tell_failure(chat *self, dr_status status) {
    const int exit_status = cli_failure(&cli_chat, status);
    if (self->failed == 0) self->failed = exit_status;
}

static void print_turn(const dr_turn *turn) {
    dr_print(stderr,
             "kept %" PRId64 " tokens, read %" PRId64 ", made %" PRId64 "; first token after %.3f s; %.1f tokens a second\n",
             turn->kept, turn->read, turn->made, turn->first_token_seconds,
             turn->made_seconds > 0 ? (double)turn->made / turn->made_seconds : 0);
}

/* False: standard output cannot be written. */
static bool answer(chat *self) {
    dr_turn turn;
    self->printed = cli_text_begin(stdout);
    cli_interrupt_forget();
    const dr_status status = dr_conversation_answer(self->conversation, self->options, emit, self, &turn);
    cli_interrupt_forget();
    self->options->sampling.sample++;
    if (self->printed.last != '\n' && (status == DR_OK || self->printed.last)) putchar('\n'); /* a line an answer */
    if (fflush(stdout) != 0 || ferror(stdout)) return false;
    if (status != DR_OK) {
        tell_failure(self, status);
        dr_conversation_undo(self->conversation);
        return true;
    }
    if (self->speeds) print_turn(&turn);
    return true;
}

/* ---- commands ---- */

typedef enum { GO_ON, ANSWER, LEAVE } next;

static next do_help(chat *self, const char *rest) {
    (void)self, (void)rest;
    fputs("A line is a message; one that ends with \\ goes on in the next line. Ctrl-C ends an answer.\n"
          "/save FILE   write the conversation        /load FILE   go on with another one\n"
          "/undo        take the last message back    /again       another answer to it\n"
          "/messages    print the conversation        /help        this text\n"
          "/quit        leave, as Ctrl-D does         //...        a message that begins with /\n",
          stdout);
    return GO_ON;
}

static next do_save(chat *self, const char *rest) {
    if (!*rest) {
        fprintf(stderr, "deltarule chat: /save FILE: the file is missing\n");
        self->failed = 2;
        return GO_ON;
    }
    const dr_status status = dr_conversation_save(self->conversation, rest);
    if (status != DR_OK) tell_failure(self, status);
    return GO_ON;
}

static next do_load(chat *self, const char *rest) {
    if (!*rest) {
        fprintf(stderr, "deltarule chat: /load FILE: the file is missing\n");
        self->failed = 2;
        return GO_ON;
    }
    const dr_status status = dr_conversation_load(self->conversation, rest);
    if (status != DR_OK) tell_failure(self, status);
    return GO_ON;
}

static next do_undo(chat *self, const char *rest) {
    (void)rest;
    const dr_status status = dr_conversation_undo(self->conversation);
    if (status != DR_OK) tell_failure(self, status);
    return GO_ON;
}

/* The last message of the user once more, with the next seed's answer. */
static next do_again(chat *self, const char *rest) {
    (void)rest;
    const char *role, *text = NULL;
    for (int64_t i = dr_conversation_count(self->conversation) - 1; i >= 0 && !text; i--) {
        const char *content;
        if (dr_conversation_message(self->conversation, i, &role, &content) == DR_OK && strcmp(role, "user") == 0)
            text = content;
    }
    char *copy = text ? strdup(text) : NULL;
    dr_status status = dr_conversation_undo(self->conversation);
    if (status == DR_OK && copy) status = dr_conversation_add(self->conversation, "user", copy, strlen(copy));
    free(copy);
    if (status == DR_OK) return ANSWER;
    tell_failure(self, status);
    return GO_ON;
}

static next do_messages(chat *self, const char *rest) {
    (void)rest;
    for (int64_t i = 0; i < dr_conversation_count(self->conversation); i++) {
        const char *role, *text;
        if (dr_conversation_message(self->conversation, i, &role, &text) != DR_OK) break;
        cli_text printed = cli_text_begin(stdout);
        cli_text_write(&printed, role, strlen(role));
        cli_text_write(&printed, ": ", 2);
        cli_text_write(&printed, text, strlen(text));
        if (printed.last != '\n') putchar('\n');
    }
    return GO_ON;
}

static next do_quit(chat *self, const char *rest) {
    (void)self, (void)rest;
    return LEAVE;
}

static const struct {
    const char *name;
    next (*run)(chat *self, const char *rest);
} commands[] = {{"help", do_help},   {"save", do_save},         {"load", do_load}, {"undo", do_undo},
                {"again", do_again}, {"messages", do_messages}, {"quit", do_quit}, {NULL, NULL}};

static const char *command_name(const void *context, int i) {
    (void)context;
    return commands[i].name;
}

/* "/name rest" */
static next run_command(chat *self, char *line) {
    char *name = line + 1, *rest = name + strcspn(name, " \t");
    while (*rest == ' ' || *rest == '\t') *rest++ = '\0';
    for (int i = 0; commands[i].name; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(self, rest);
    const char *near = cli_nearest(name, command_name, NULL);
    fprintf(stderr, "deltarule chat: there is no command /");
    cli_print_name(stderr, name);
    fprintf(stderr, "%s%s%s; /help lists them\n", near ? "; did you mean /" : "", near ? near : "", near ? "?" : "");
    self->failed = 2;
    return GO_ON;
}

/* ---- lines ---- */

static next take_line(chat *self, char *line, size_t bytes) {
    if (bytes == 0) return GO_ON;
    if (line[0] == '/' && line[1] != '/') return run_command(self, line);
    if (line[0] == '/') line++, bytes--;
    const dr_status status = dr_conversation_add(self->conversation, "user", line, bytes);
    if (status == DR_OK) return ANSWER;
    tell_failure(self, status);
    return GO_ON;
}

static int talk(chat *self) {
    const bool typed = cli_lines_typed(self->lines);
    if (typed) printf("A line is a message; /help tells more.\n");
    for (;;) {
        char *line;
        size_t bytes;
        const cli_line_kind kind = cli_lines_read(self->lines, "> ", CLI_MOST_PROMPT, &line, &bytes);
        if (kind == CLI_LINE_INTERRUPTED) {
            if (!typed) return CLI_STATUS_INTERRUPTED;
            cli_interrupt_forget();
            printf("\n");
            continue;
        }
        if (kind == CLI_LINE_FAILED) {
            fprintf(stderr, "deltarule chat: cannot read a line: %s\n",
                    errno == EFBIG ? "it has more than 64 MiB" : strerror(errno));
            return 1;
        }
        const next after = kind == CLI_LINE_END ? LEAVE : take_line(self, line, bytes);
        if (after == LEAVE && kind == CLI_LINE_END && typed) printf("\n");
        if (after == LEAVE || (after == ANSWER && !answer(self))) break;
        fflush(stdout);
    }
    return typed ? 0 : self->failed;
}

/* ---- opening ---- */

/* *template NULL: the plain one. */
static int open_template(const cli_flag *flags, const char *folder, dr_chat **template) {
    *template = NULL;
    if (flags[TEMPLATE].given && strcmp(flags[TEMPLATE].value, "plain") == 0) return 0;
    if (flags[TEMPLATE].given) {
        char *text;
        size_t bytes;
        const int status = cli_read_input(&cli_chat, flags[TEMPLATE].value, CLI_MOST_PROMPT, &text, &bytes);
        if (status) return status;
        const dr_status made = dr_chat_create(text, bytes, template);
        free(text);
        return made == DR_OK ? 0 : cli_failure(&cli_chat, made);
    }
    if (flags[TOKENIZER].given) folder = flags[TOKENIZER].value;
    const dr_status status = strcmp(folder, "bytes") == 0 ? DR_ERROR_UNSUPPORTED : dr_chat_load(folder, template);
    if (status == DR_OK) return 0;
    if (status != DR_ERROR_UNSUPPORTED) {
        char path[4096];
        snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
        if (access(path, F_OK) == 0) return cli_failure(&cli_chat, status);
    }
    fprintf(stderr, "deltarule chat: there is no chat template: the model gets lines \"User: ...\" and \"Assistant: ...\"\n");
    return 0;
}

static int begin(const cli_flag *flags, chat *self, const dr_model *model, const dr_tokenizer *tokenizer,
                 const dr_chat *template) {
    dr_status status = dr_conversation_create(model, tokenizer, template, &self->conversation);
    if (status == DR_OK && flags[LOAD].given) status = dr_conversation_load(self->conversation, flags[LOAD].value);
    if (status == DR_OK && flags[SYSTEM].given)
        status = dr_conversation_add(self->conversation, "system", flags[SYSTEM].value, strlen(flags[SYSTEM].value));
    if (status != DR_OK) return cli_failure(&cli_chat, status);
    self->lines = cli_lines_open();
    if (self->lines) return 0;
    fprintf(stderr, "deltarule chat: not enough memory\n");
    return 1;
}

static int hold(const cli_flag *flags, const char *folder, dr_generate_options *options) {
    const cli_model_flags how = {
        &flags[BACKEND], &flags[THREADS], &flags[ISA],   &flags[TOKENIZER], cli_flag_boolean(&flags[VERBOSE]),
        &flags[WEIGHTS], &flags[DTYPE],   &flags[DEVICE]};
    cli_model of;
    dr_chat *template = NULL;
    chat self = {.options = options, .speeds = cli_flag_boolean(&flags[SPEEDS])};
    int exit_status = cli_model_open(&cli_chat, folder, &how, &of);
    if (exit_status) return exit_status;
    options->tokenizer = of.tokenizer;
    const dr_status status = dr_generate_check(of.model, options);
    exit_status = status == DR_OK ? 0 : cli_failure(&cli_chat, status);
    if (exit_status == 0) exit_status = open_template(flags, folder, &template);
    if (exit_status == 0) exit_status = begin(flags, &self, of.model, of.tokenizer, template);
    cli_interrupt_each();
    if (exit_status == 0) exit_status = talk(&self);
    cli_lines_close(self.lines);
    dr_conversation_destroy(self.conversation);
    dr_chat_destroy(template);
    cli_model_close(&of);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    cli_sampling_room room;
    dr_generate_options options;
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    cli_sampling_flags(flags + SAMPLING, &room);
    if (!cli_flags_parse(&cli_chat, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (flags[LOAD].given && flags[SYSTEM].given)
        return cli_usage(&cli_chat, "--system begins a conversation and --load goes on with one: leave one out");
    exit_status = cli_sampling_read(&cli_chat, flags + SAMPLING, &room, &options);
    return exit_status ? exit_status : hold(flags, argv[1], &options);
}

const cli_command cli_chat = {
    .name = "chat",
    .arguments = "MODEL [flags]",
    .summary = "a conversation with a model",
    .details = "A line is a message; /help lists the commands, such as /save, /load and /undo. Each turn reads only what is\n"
               "new. Ctrl-C ends an answer and not the program. Without a terminal each line of standard input is a message\n"
               "and answers alone are printed.",
    .run = run,
    .least_operands = 1,
    .most_operands = 1,
};
