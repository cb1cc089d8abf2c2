/* deltarule tokenize, deltarule detokenize: text to token ids and back, on the standard streams. */
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/json_line.h"
#include "cli/text.h"
#include "cli/tokenize_shards.h"

#include <deltarule/tokenizer.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENIZER, NO_SPECIAL, JSON, FLAGS };

#define FLAG_TOKENIZER                                                                                                         \
    {                                                                                                                          \
        .setting = {"tokenizer", DR_SETTING_TEXT,                                                                              \
                    NULL,        0,                                                                                            \
                    0,           NULL,                                                                                         \
                    NULL,        "folder with tokenizer.json, or such a file; 'bytes': bytes are the ids"},                    \
        .placeholder = "DIR", .required = true                                                                                 \
    }
#define FLAG_JSON(meaning)                                                                                                     \
    {                                                                                                                          \
        .setting = { "json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, meaning }                                          \
    }

static dr_status open_tokenizer(const char *name, dr_tokenizer **tokenizer) {
    return strcmp(name, "bytes") == 0 ? dr_tokenizer_bytes(tokenizer) : dr_tokenizer_load(name, tokenizer);
}

static int cannot_read(const cli_command *command) {
    fprintf(stderr, "deltarule %s: cannot read standard input: %s\n", command->name, strerror(errno));
    return 1;
}

static int bad_line(const cli_command *command, long line, const char *what) {
    fprintf(stderr, "deltarule %s: line %ld: %s\n", command->name, line, what);
    return 1;
}

static int failed_line(const cli_command *command, long line) {
    return bad_line(command, line, dr_last_error());
}

/* Calls one(context, ...) for each line; what it prints arrives before the next line is read. */
static int for_lines(const cli_command *command, int (*one)(void *context, char *text, size_t bytes, long line),
                     void *context) {
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    int exit_status = 0;
    errno = 0;
    for (long line = 1; exit_status == 0 && (bytes = getline(&text, &room, stdin)) >= 0; line++) {
        exit_status = one(context, text, (size_t)bytes, line);
        fflush(stdout);
    }
    if (exit_status == 0 && !feof(stdin)) exit_status = cannot_read(command);
    free(text);
    return exit_status;
}

/* ---- tokenize -------------------------------------------------------------------------------------------------------- */

typedef struct {
    dr_encoder *encoder;
    bool special;
} encoding;

static void print_ids(const int32_t *ids, size_t count, const char *separator) {
    for (size_t i = 0; i < count; i++) printf("%s%d", i > 0 ? separator : "", ids[i]);
}

static int encode_line(void *context, char *text, size_t bytes, long line) {
    const encoding *e = context;
    const char *what;
    const int32_t *ids;
    size_t count, text_bytes;
    if (!cli_json_string(text, bytes, &text_bytes, &what)) return bad_line(&cli_tokenize, line, what);
    if (dr_encoder_encode(e->encoder, text, text_bytes, e->special, &ids, &count) != DR_OK)
        return failed_line(&cli_tokenize, line);
    putchar('[');
    print_ids(ids, count, ",");
    puts("]");
    return 0;
}

static int encode_whole(const encoding *e) {
    char *text = NULL;
    const int32_t *ids;
    size_t bytes, count;
    int exit_status = cli_read_input(&cli_tokenize, "-", 0, &text, &bytes);
    if (exit_status == 0) {
        dr_status status = dr_encoder_encode(e->encoder, text, bytes, e->special, &ids, &count);
        if (status != DR_OK) {
            exit_status = cli_failure(&cli_tokenize, status);
        } else {
            print_ids(ids, count, " ");
            putchar('\n');
        }
    }
    free(text);
    return exit_status;
}

static int tokenize_input(const cli_flag *flags) {
    dr_tokenizer *tokenizer = NULL;
    encoding e = {.special = !cli_flag_boolean(&flags[NO_SPECIAL])};
    int exit_status;
    dr_status status = open_tokenizer(flags[TOKENIZER].value, &tokenizer);
    if (status == DR_OK) status = dr_encoder_create(tokenizer, &e.encoder);
    if (status != DR_OK)
        exit_status = cli_failure(&cli_tokenize, status);
    else
        exit_status = cli_flag_boolean(&flags[JSON]) ? for_lines(&cli_tokenize, encode_line, &e) : encode_whole(&e);
    dr_encoder_destroy(e.encoder);
    dr_tokenizer_destroy(tokenizer);
    return exit_status;
}

/* Flags and operands of the other use would be passed over in silence. */
static int check_use(const cli_flag *flags, int operands, char **argv) {
    const bool shards = flags[FLAGS + CLI_SHARDS_FOLDER].given;
    if (shards && (flags[NO_SPECIAL].given || flags[JSON].given))
        return cli_usage(&cli_tokenize, "--%s is for text from standard input: leave it out with --shards",
                         flags[JSON].given ? "json" : "no-special");
    if (shards && operands == 0 && !flags[FLAGS + CLI_SHARDS_VALIDATION].given)
        return cli_usage(&cli_tokenize, "--shards needs a corpus: a text file, JSON lines, or a folder of them");
    for (int i = FLAGS; i < FLAGS + CLI_SHARDS_FLAGS && !shards; i++)
        if (flags[i].given)
            return cli_usage(&cli_tokenize, "%s is a setting of shards: add --shards DIR", flags[i].setting.name);
    if (!shards && operands > 0)
        return cli_usage(&cli_tokenize, "without --shards DIR text comes from standard input: <%s", argv[1]);
    return 0;
}

static int run_tokenize(int argc, char **argv) {
    cli_flag flags[FLAGS + CLI_SHARDS_FLAGS] = {
        [TOKENIZER] = FLAG_TOKENIZER,
        [NO_SPECIAL] = {.setting = {"no_special", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                    "without the tokens that the template puts around a text"}},
        [JSON] = FLAG_JSON("a JSON string a line in, a JSON list of ids a line out"),
    };
    const char *validations[CLI_MOST_VALIDATIONS];
    int operands, exit_status;
    memcpy(flags + FLAGS, cli_shards_flags, sizeof cli_shards_flags);
    flags[FLAGS + CLI_SHARDS_VALIDATION].values = validations;
    flags[FLAGS + CLI_SHARDS_VALIDATION].most_values = CLI_MOST_VALIDATIONS;
    if (!cli_flags_parse(&cli_tokenize, flags, FLAGS + CLI_SHARDS_FLAGS, argc, argv, &operands, &exit_status))
        return exit_status;
    exit_status = check_use(flags, operands, argv);
    if (exit_status != 0) return exit_status;
    if (!flags[FLAGS + CLI_SHARDS_FOLDER].given) return tokenize_input(flags);
    return cli_write_shards(&cli_tokenize, flags[TOKENIZER].value, flags + FLAGS, argv + 1, operands);
}

const cli_command cli_tokenize = {
    .name = "tokenize",
    .arguments = "--tokenizer DIR [--no-special] [--json] <TEXT | --tokenizer DIR --shards DIR CORPUS...",
    .summary = "text to the token ids of a published model's tokenizer",
    .details =
        "Reads standard input: one text as a whole, whose ids are printed with blanks between; with --json a text a line.\n"
        "With --shards it turns corpora into files of ids to train from: text files, JSON lines (.jsonl, .ndjson), both also\n"
        "as .gz and .zst, and folders of them. After a kill the same command goes on where it was.",
    .run = run_tokenize,
    .most_operands = 100000,
};

/* ---- detokenize ------------------------------------------------------------------------------------------------------ */

static int decode_line(void *context, char *line_text, size_t bytes, long line) {
    dr_decoder *decoder = context;
    const char *what, *text;
    size_t count = 1, text_bytes;
    for (size_t i = 0; i < bytes; i++) count += line_text[i] == ',';
    int32_t *ids = malloc(count * sizeof *ids);
    int exit_status = 0;
    if (!ids)
        exit_status = bad_line(&cli_detokenize, line, "out of memory");
    else if (!cli_json_ids(line_text, bytes, ids, &count, &what))
        exit_status = bad_line(&cli_detokenize, line, what);
    else if (dr_decoder_decode(decoder, ids, count, &text, &text_bytes) != DR_OK)
        exit_status = failed_line(&cli_detokenize, line);
    if (exit_status == 0) {
        cli_json_print(stdout, text, text_bytes);
        putchar('\n');
    }
    free(ids);
    return exit_status;
}

/* Ids with blanks between, in place of their digits' text: at most one for every two bytes. */
static bool read_ids(const char *text, int32_t *ids, size_t *count) {
    *count = 0;
    for (const char *at = text + strspn(text, " \t\r\n"); *at; at += strspn(at, " \t\r\n")) {
        int64_t id = 0;
        const char *begin = at;
        for (; *at >= '0' && *at <= '9' && id <= INT32_MAX; at++) id = 10 * id + (*at - '0');
        if (at == begin || id > INT32_MAX || (*at && !strchr(" \t\r\n", *at))) return false;
        ids[(*count)++] = (int32_t)id;
    }
    return true;
}

/* A terminal gets no control characters. */
static void print_text(const char *text, size_t bytes) {
    cli_text out = cli_text_begin(stdout);
    if (out.plain)
        cli_text_write(&out, text, bytes);
    else
        fwrite(text, 1, bytes, stdout);
}

static int decode_whole(dr_decoder *decoder) {
    char *input = NULL;
    const char *text;
    size_t input_bytes, count, bytes;
    int exit_status = cli_read_input(&cli_detokenize, "-", 0, &input, &input_bytes);
    int32_t *ids = exit_status == 0 ? malloc((input_bytes / 2 + 1) * sizeof *ids) : NULL;
    if (exit_status == 0 && (!ids || strlen(input) < input_bytes || !read_ids(input, ids, &count))) {
        fprintf(stderr, "deltarule detokenize: %s\n",
                ids ? "standard input must be token ids with blanks between" : "out of memory");
        exit_status = 1;
    }
    if (exit_status == 0) {
        dr_status status = dr_decoder_decode(decoder, ids, count, &text, &bytes);
        if (status != DR_OK)
            exit_status = cli_failure(&cli_detokenize, status);
        else
            print_text(text, bytes);
    }
    free(ids);
    free(input);
    return exit_status;
}

static int run_detokenize(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [TOKENIZER] = FLAG_TOKENIZER,
        [NO_SPECIAL] = {.setting = {"no_special", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "leave special tokens out"}},
        [JSON] = FLAG_JSON("a JSON list of ids a line in, a JSON string a line out"),
    };
    int operands, exit_status;
    dr_tokenizer *tokenizer = NULL;
    dr_decoder *decoder = NULL;
    if (!cli_flags_parse(&cli_detokenize, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    const bool json = cli_flag_boolean(&flags[JSON]);
    const int what =
        (json ? DR_DECODE_TEXT : DR_DECODE_BYTES) | (cli_flag_boolean(&flags[NO_SPECIAL]) ? DR_DECODE_NO_SPECIAL : 0);
    dr_status status = open_tokenizer(flags[TOKENIZER].value, &tokenizer);
    if (status == DR_OK) status = dr_decoder_create(tokenizer, what, &decoder);
    if (status != DR_OK)
        exit_status = cli_failure(&cli_detokenize, status);
    else
        exit_status = json ? for_lines(&cli_detokenize, decode_line, decoder) : decode_whole(decoder);
    dr_decoder_destroy(decoder);
    dr_tokenizer_destroy(tokenizer);
    return exit_status;
}

const cli_command cli_detokenize = {
    .name = "detokenize",
    .arguments = "--tokenizer DIR [--no-special] [--json] <IDS",
    .summary = "token ids to text",
    .details = "Reads ids with blanks between from standard input and prints their text, byte for byte; with --json a list a "
               "line, whose\n"
               "text has U+FFFD for what is not UTF-8.",
    .run = run_detokenize,
};
