#include "cli/tokenize_shards.h"

#include "base/number.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"

#include <deltarule/shards.h>
#include <inttypes.h>
#include <string.h>

static const char GROUP[] = "Shards";

#define INTEGER_FLAG(key, value, least, most, line)                                                                            \
    { .setting = {key, DR_SETTING_INTEGER, value, least, most, NULL, GROUP, line}, .placeholder = "N" }

const cli_flag cli_shards_flags[CLI_SHARDS_FLAGS] = {
    [CLI_SHARDS_FOLDER] = {.setting = {"shards", DR_SETTING_TEXT, NULL, 0, 0, NULL, GROUP,
                                       "write the token ids of the corpora into this folder, new or begun by the same command"},
                           .placeholder = "DIR"},
    [CLI_SHARDS_FIELD] = {.setting = {"field", DR_SETTING_TEXT, "text", 0, 0, NULL, GROUP,
                                      "of JSON lines: the key of the text"},
                          .placeholder = "KEY"},
    [CLI_SHARDS_MESSAGES] = {.setting = {"messages", DR_SETTING_TEXT, NULL, 0, 0, NULL, GROUP,
                                         "of JSON lines: the key of a list of messages, which the tokenizer's chat template "
                                         "renders; what the assistant says is learned, all else given"},
                             .placeholder = "KEY"},
    [CLI_SHARDS_VALIDATION] = {.setting = {"validation", DR_SETTING_TEXT, NULL, 0, 0, NULL, GROUP,
                                           "other text for a validation set of this name; may be given several times"},
                               .placeholder = "NAME=PATH"},
    [CLI_SHARDS_VALIDATION_SHARE] = {.setting = {"validation_share", DR_SETTING_REAL, "0.01", 0, 0.5, NULL, GROUP,
                                                 "share of the documents that are for validation and not trained on"},
                                     .placeholder = "X"},
    [CLI_SHARDS_SEED] = INTEGER_FLAG("seed", "1", 0, 9007199254740992.0, "of the choice of these documents"),
    [CLI_SHARDS_TOKENS] =
        INTEGER_FLAG("shard_tokens", "10000000", 1, 1e9, "a shard ends with the document that reaches so many"),
    [CLI_SHARDS_LONGEST_DOCUMENT] =
        INTEGER_FLAG("longest_document", "1073741824", 1, 1073741824, "bytes; longer documents, and lines, are refused"),
    [CLI_SHARDS_SKIP_UNREADABLE] = {.setting = {"skip_unreadable", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, GROUP,
                                                "leave out and name files and lines that cannot be used"}},
};

typedef struct {
    const cli_command *command;
    cli_progress progress;
} output;

static void format_line(const dr_shards_progress *p, char *line, size_t size) {
    char rate[32], left[32];
    double share = p->total > 0 ? (double)p->read / (double)p->total : 1;
    double seconds_left = share > 0 ? p->seconds * (1 - share) / share : 0;
    dr_format(line, size, "%.1f%%  %" PRId64 " documents  %" PRId64 " tokens in %" PRId64 " shards  %s bytes/s  %s left",
              100 * share, p->documents, p->tokens, p->shards,
              cli_format_count(p->seconds > 0 ? (double)p->read / p->seconds : 0, rate),
              cli_format_seconds(seconds_left, left));
}

static bool report(void *context, const dr_shards_progress *p) {
    output *self = context;
    if (cli_progress_due(&self->progress)) {
        char line[256];
        format_line(p, line, sizeof line);
        cli_progress_show(&self->progress, false, line);
    }
    return !cli_interrupted();
}

static void report_left_out(void *context, const char *sentence) {
    output *self = context;
    cli_progress_end(&self->progress);
    fprintf(stderr, "deltarule %s: left out: %s\n", self->command->name, sentence);
}

int cli_write_shards(const cli_command *command, const char *tokenizer, const cli_flag *flags, char *const *corpora,
                     int count) {
    dr_shards_options options = dr_shards_defaults();
    dr_shards_progress total;
    output self = {.command = command, .progress = cli_progress_begin(stderr)};
    options.tokenizer = tokenizer;
    options.corpora = (const char *const *)corpora;
    options.corpus_count = count;
    options.validation = flags[CLI_SHARDS_VALIDATION].values;
    options.validation_count = flags[CLI_SHARDS_VALIDATION].value_count;
    options.validation_share = cli_flag_real(&flags[CLI_SHARDS_VALIDATION_SHARE]);
    options.seed = (uint64_t)cli_flag_integer(&flags[CLI_SHARDS_SEED]);
    options.field = flags[CLI_SHARDS_FIELD].value;
    options.messages = flags[CLI_SHARDS_MESSAGES].value;
    options.shard_tokens = cli_flag_integer(&flags[CLI_SHARDS_TOKENS]);
    options.longest_document = cli_flag_integer(&flags[CLI_SHARDS_LONGEST_DOCUMENT]);
    options.skip_unreadable = cli_flag_boolean(&flags[CLI_SHARDS_SKIP_UNREADABLE]);
    options.progress = report;
    options.left_out = report_left_out;
    options.context = &self;
    cli_interrupt_catch("\nstopping; the same command goes on later; once more to leave at once\n");
    dr_status status = dr_shards_write(flags[CLI_SHARDS_FOLDER].value, &options, &total);
    cli_progress_end(&self.progress);
    if (status == DR_ERROR_INTERRUPTED) return CLI_STATUS_INTERRUPTED;
    if (status != DR_OK) return cli_failure(command, status);
    printf("files          %" PRId64 "\n", total.files);
    printf("documents      %" PRId64 "\n", total.documents);
    printf("bytes          %" PRId64 "\n", total.bytes);
    printf("tokens         %" PRId64 "\n", total.tokens);
    printf("shards         %" PRId64 "\n", total.shards);
    dr_print(stdout, "seconds        %.1f\n", total.seconds);
    return 0;
}
