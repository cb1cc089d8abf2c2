/* deltarule tokenizer train: makes a byte-level tokenizer of text files. */
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"

#include <deltarule/shards.h>
#include <deltarule/tokenizer.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CORPUS, FIELD, OUT, SIZE, LEAST_COUNT, END_OF_TEXT, FLAGS, DEEPEST = 64 };

typedef struct {
    dr_tokenizer_trainer *trainer;
    cli_progress progress;
    int64_t files, bytes;
    const char *field; /* of JSON lines */
    dr_status status;  /* of the last text */
} training;

static bool add_text(void *context, const char *text, size_t bytes) {
    training *t = context;
    char line[96];
    t->status = dr_tokenizer_trainer_add(t->trainer, text, bytes);
    t->bytes += (int64_t)bytes;
    if (t->progress.live && cli_progress_due(&t->progress)) {
        snprintf(line, sizeof line, "read %" PRId64 " files, %" PRId64 " bytes", t->files, t->bytes);
        cli_progress_show(&t->progress, false, line);
    }
    return t->status == DR_OK && !cli_interrupted();
}

/* JSON lines, and compressed files. */
static bool has_documents(const char *path) {
    static const char *const ends[] = {".jsonl", ".ndjson", ".gz", ".zst"};
    const size_t length = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (length > strlen(ends[i]) && strcmp(path + length - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
}

static int add_documents(training *t, const char *path) {
    dr_shards_options options = dr_shards_defaults();
    options.corpora = &path;
    options.corpus_count = 1;
    options.field = t->field;
    dr_status status = dr_corpora_read(&options, add_text, t);
    if (status == DR_ERROR_INTERRUPTED) status = t->status;
    return status == DR_OK ? 0 : cli_failure(&cli_tokenizer, status);
}

static int add_file(training *t, const char *path) {
    char *text = NULL;
    size_t bytes;
    int exit_status = 0;
    if (has_documents(path)) {
        exit_status = add_documents(t, path);
    } else {
        exit_status = cli_read_input(&cli_tokenizer, path, 0, &text, &bytes);
        if (exit_status == 0 && !add_text(t, text, bytes) && t->status != DR_OK)
            exit_status = cli_failure(&cli_tokenizer, t->status);
    }
    t->files += exit_status == 0;
    free(text);
    return exit_status == 0 && cli_interrupted() ? 130 : exit_status;
}

/* A file, or all files of a folder and its subfolders but those whose names begin with a dot, and no symbolic links. */
static int add_path(training *t, const char *path, int depth) {
    struct stat about;
    if (strcmp(path, "-") == 0 || stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) return add_file(t, path);
    DIR *folder = depth < DEEPEST ? opendir(path) : NULL;
    int exit_status = 0;
    if (!folder) {
        fprintf(stderr, "deltarule tokenizer: cannot read the folder ");
        cli_print_name(stderr, path);
        fputc('\n', stderr);
        return 1;
    }
    for (struct dirent *item; exit_status == 0 && (item = readdir(folder));) {
        size_t room = strlen(path) + strlen(item->d_name) + 2;
        char *name = item->d_name[0] == '.' ? NULL : malloc(room);
        if (!name) continue;
        snprintf(name, room, "%s/%s", path, item->d_name);
        if (lstat(name, &about) == 0 && (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode)))
            exit_status = add_path(t, name, depth + 1);
        free(name);
    }
    closedir(folder);
    return exit_status;
}

static bool report(void *context, int64_t done, int64_t total) {
    training *t = context;
    char line[96];
    if (t->progress.live && cli_progress_due(&t->progress)) {
        snprintf(line, sizeof line, "%" PRId64 " of %" PRId64 " ids", done, total);
        cli_progress_show(&t->progress, false, line);
    }
    return !cli_interrupted();
}

static bool is_same_folder(const char *one, const char *other) {
    struct stat first, second;
    return stat(one, &first) == 0 && stat(other, &second) == 0 && S_ISDIR(first.st_mode) && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* Names with a dot in front are left aside: a write that was killed leaves such. */
static bool has_files(const char *folder) {
    DIR *listing = opendir(folder);
    bool found = false;
    for (struct dirent *item; listing && !found && (item = readdir(listing));) found = item->d_name[0] != '.';
    if (listing) closedir(listing);
    return found;
}

static int train(training *t, const cli_flag *flags) {
    dr_tokenizer_training options = dr_tokenizer_training_defaults();
    int64_t size = 0;
    options.ids = cli_flag_integer(&flags[SIZE]);
    options.least_count = cli_flag_integer(&flags[LEAST_COUNT]);
    options.end_of_text = flags[END_OF_TEXT].value;
    options.progress = report;
    options.context = t;
    if (is_same_folder(flags[CORPUS].value, flags[OUT].value))
        return cli_usage(&cli_tokenizer, "--out is the corpus, whose text the tokenizer would become: choose another folder");
    if (has_files(flags[OUT].value))
        return cli_usage(&cli_tokenizer,
                         "--out %s has files already: nothing is written over, name a folder that is empty or not there",
                         flags[OUT].value);
    dr_status status = dr_tokenizer_trainer_create(&t->trainer);
    if (status != DR_OK) return cli_failure(&cli_tokenizer, status);
    int exit_status = add_path(t, flags[CORPUS].value, 0);
    if (exit_status != 0) return exit_status;
    status = dr_tokenizer_trainer_write(t->trainer, &options, flags[OUT].value, &size);
    cli_progress_end(&t->progress);
    if (status == DR_ERROR_INTERRUPTED) return 130;
    if (status != DR_OK) return cli_failure(&cli_tokenizer, status);
    printf("files  %" PRId64 "\nbytes  %" PRId64 "\nids    %" PRId64 "\n", t->files, t->bytes, size);
    return 0;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [CORPUS] = {.setting = {"corpus", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                "a text file, JSON lines, either as .gz or .zst, a folder of them, or - for standard input"},
                    .placeholder = "PATH",
                    .required = true},
        [FIELD] = {.setting = {"field", DR_SETTING_TEXT, "text", 0, 0, NULL, NULL, "of JSON lines: the key of the text"},
                   .placeholder = "KEY"},
        [OUT] = {.setting = {"out", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                             "folder for tokenizer.json and tokenizer_config.json, new or empty"},
                 .placeholder = "DIR",
                 .required = true},
        [SIZE] = {.setting = {"size", DR_SETTING_INTEGER, "32768", 257, 1 << 24, NULL, NULL,
                              "ids: 256 bytes, what merges make, and the end of a text"},
                  .placeholder = "N"},
        [LEAST_COUNT] = {.setting = {"least_count", DR_SETTING_INTEGER, "2", 1, 1 << 30, NULL, NULL,
                                     "a pair that is rarer is not merged"},
                         .placeholder = "N"},
        [END_OF_TEXT] = {.setting = {"end_of_text", DR_SETTING_TEXT, "<|endoftext|>", 0, 0, NULL, NULL,
                                     "the token that begins and ends texts"},
                         .placeholder = "TEXT"},
    };
    int operands, exit_status;
    training t = {0};
    if (!cli_flags_parse(&cli_tokenizer, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (operands != 1 || strcmp(argv[1], "train") != 0) return cli_usage(&cli_tokenizer, "it has one command: tokenizer train");
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    t.progress = cli_progress_begin(stderr);
    t.field = flags[FIELD].value;
    exit_status = train(&t, flags);
    dr_tokenizer_trainer_destroy(t.trainer);
    return exit_status;
}

const cli_command cli_tokenizer = {
    .name = "tokenizer",
    .arguments = "train --corpus PATH --out DIR [flags]",
    .summary = "make a byte-level BPE tokenizer of text",
    .details = "Words are cut as by the Llama 3 tokenizers. The same texts give the same files. The folder works with tokenize "
               "and with\n"
               "Hugging Face's tokenizers.",
    .run = run,
    .least_operands = 0,
    .most_operands = 1,
};
