/* deltarule train: one run, from its settings or from the folder of an earlier one.
 *
 * The flags are the library's table of settings, and a few of the command's own. The configuration file is read first and the
 * flags after it, wherever they stand. A first Ctrl-C, SIGTERM or SIGHUP (the terminal was closed) ends the step at hand and
 * writes a checkpoint; a second leaves at once. */
#include "base/number.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/train_plan.h"
#include "cli/train_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONFIG, OUT, RESUME, DRY_RUN, RUNS, JSON, BACKEND, DTYPE, DEVICE, ISA, OWN_FLAGS };
enum { FOLDER_SIZE = 256, NAME_SIZE = 64, MOST_FOLDERS = 1000 };

/* The flags of the command itself, then one for each setting of the library. *count: how many. NULL without memory. */
static cli_flag *make_flags(int *count) {
    const cli_flag own[OWN_FLAGS] = {
        [CONFIG] = {.setting = {"config", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                "settings as a JSON object; flags override it"},
                    .placeholder = "FILE"},
        [OUT] = {.setting = {"out", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                             "run folder, new or empty (default runs/NAME-TIME)"},
                 .placeholder = "DIR"},
        [RESUME] = {.setting = {"resume", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                "continue the run in this folder, bit for bit; of its settings steps, threads, keep_level, "
                                "save_every, save_keep, evaluate_every, skip_unreadable and the places of the corpus and of "
                                "held-out text may change"},
                    .placeholder = "DIR"},
        [DRY_RUN] = {.setting = {"dry_run", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                 "print parameters, memory, steps and, with a corpus, the time of one step; write nothing"}},
        [RUNS] = {.setting = {"runs", DR_SETTING_INTEGER, "1", 1, CLI_MOST_RUNS, NULL, NULL,
                              "so many runs side by side on one GPU, of seeds seed, seed + 1 and so on, in DIR/seed-N; each is "
                              "the run that it is alone"},
                  .placeholder = "N"},
        [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                              "on standard output a JSON object a step and nothing else"}},
        [BACKEND] = CLI_FLAG_BACKEND,
        [DTYPE] = CLI_FLAG_DTYPE,
        [DEVICE] = CLI_FLAG_DEVICE,
        [ISA] = CLI_FLAG_ISA,
    };
    static const char *const placeholders[] = {
        [DR_SETTING_INTEGER] = "N", [DR_SETTING_REAL] = "X", [DR_SETTING_BOOLEAN] = "true|false", [DR_SETTING_TEXT] = "TEXT"};
    const dr_setting *settings;
    int of_library = dr_train_settings(&settings);
    *count = OWN_FLAGS + of_library;
    cli_flag *flags = calloc((size_t)*count, sizeof *flags);
    if (!flags) return NULL;
    memcpy(flags, own, sizeof own);
    for (int i = 0; i < of_library; i++) {
        flags[OWN_FLAGS + i].setting = settings[i];
        flags[OWN_FLAGS + i].placeholder = placeholders[settings[i].type];
        flags[OWN_FLAGS + i].delegated = true;
    }
    return flags;
}

/* Configuration file, then flags. */
static dr_status read_settings(dr_train_options *options, const cli_flag *flags, int count) {
    dr_status status = flags[CONFIG].given ? dr_train_options_read(options, flags[CONFIG].value) : DR_OK;
    for (int i = OWN_FLAGS; i < count && status == DR_OK; i++)
        if (flags[i].given) status = dr_train_options_set(options, flags[i].setting.name, flags[i].value);
    return status;
}

/* runs/NAME-TIME, and of runs that begin in one second the later ones runs/NAME-TIME-2 and so on; a rule that is a composition
 * has no name. number: from 1. */
static void default_folder(const dr_train_options *options, int number, char folder[FOLDER_SIZE]) {
    const char *rule = dr_train_options_get(options, "rule");
    char name[NAME_SIZE], moment[NAME_SIZE];
    static const char of_names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    bool named = rule && *rule && strlen(rule) < NAME_SIZE && strspn(rule, of_names) == strlen(rule);
    snprintf(name, sizeof name, "%s", *dr_train_options_get(options, "init") ? "continued" : named ? rule : "composition");
    time_t seconds = time(NULL);
    struct tm local;
    strftime(moment, sizeof moment, "%Y%m%d-%H%M%S", localtime_r(&seconds, &local));
    int used = snprintf(folder, FOLDER_SIZE, "runs/%s-%s", name, moment);
    if (number > 1) snprintf(folder + used, (size_t)(FOLDER_SIZE - used), "-%d", number);
}

/* One line of progress, what matters most first: a narrow terminal shows no more. Fields that the task does not have are left
 * out. */
static void format_progress(const dr_progress *p, char *line, size_t size) {
    char rate[32], left[32];
    int used = dr_format(line, size, "step %lld/%lld  loss %.4f", (long long)p->step, (long long)p->steps, p->loss);
    if (isfinite(p->bits_per_byte)) used += dr_format(line + used, size - (size_t)used, "  %.3f bits/byte", p->bits_per_byte);
    used += snprintf(line + used, size - (size_t)used, "  %s tokens/s  %s left", cli_format_count(p->tokens_per_second, rate),
                     cli_format_seconds(p->seconds_left, left));
    if (isfinite(p->utilization))
        used +=
            dr_format(line + used, size - (size_t)used, "  MFU %.1f%%  %.1f GB", 100 * p->utilization, 1e-9 * (double)p->bytes);
    if (isfinite(p->accuracy)) used += dr_format(line + used, size - (size_t)used, "  accuracy %.2f%%", 100 * p->accuracy);
    if (isfinite(p->held_out)) used += dr_format(line + used, size - (size_t)used, "  held-out loss %.4f", p->held_out);
    if (p->skipped) snprintf(line + used, size - (size_t)used, "  %lld steps skipped", (long long)p->skipped);
}

/* The columns of metrics.csv, and what the line of progress has beside them; null: there is none. */
static void print_json(const dr_progress *p) {
    const struct {
        const char *key;
        double value;
        bool there;
    } numbers[] = {{"loss", p->loss, true},
                   {"bits_per_byte", p->bits_per_byte, true},
                   {"learning_rate", p->learning_rate, true},
                   {"gradient_norm", p->gradient_norm, true},
                   {"tokens_per_second", p->tokens_per_second, true},
                   {"seconds", p->seconds, true},
                   {"seconds_left", p->seconds_left, true},
                   {"held_out_loss", p->held_out, p->evaluated},
                   {"accuracy", p->accuracy, p->evaluated},
                   {"balancing_loss", p->balancing_loss, true},
                   {"mfu", p->utilization, true}};
    printf("{\"step\": %lld, \"steps\": %lld, \"skipped\": %lld, \"bytes\": %lld", (long long)p->step, (long long)p->steps,
           (long long)p->skipped, (long long)p->bytes);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].there && isfinite(numbers[i].value))
            dr_print(stdout, ", \"%s\": %.9g", numbers[i].key, numbers[i].value);
        else
            printf(", \"%s\": null", numbers[i].key);
    puts("}");
    fflush(stdout);
}

static bool report_json(void *context, const dr_progress *p) {
    const cli_progress *progress = context;
    print_json(p);
    return !cli_interrupted() && !cli_progress_lost(progress);
}

/* Ends the run when the user wants it or when nobody can see the output any more. */
static bool report(void *context, const dr_progress *p) {
    cli_progress *progress = context;
    bool lasting = p->evaluated || p->step == p->steps;
    if (lasting || p->step == 1 || cli_progress_due(progress)) {
        char line[256];
        format_progress(p, line, sizeof line);
        cli_progress_show(progress, lasting, line);
    }
    return !cli_interrupted() && !cli_progress_lost(progress);
}

static void print_line(void *context, const char *text) {
    (void)context;
    puts(text);
}

/* A folder's name as a shell takes it. */
static void print_quoted(FILE *stream, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%=";
    if (*text && text[strspn(text, plain)] == '\0') {
        fputs(text, stream);
        return;
    }
    fputc('\'', stream);
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stream);
        else
            fputc(*text, stream);
    }
    fputc('\'', stream);
}

/* Trains and tells how it ended. */
static int train(dr_run *run, const char *folder, bool json) {
    if (!json) dr_run_describe(run, print_line, NULL);
    if (!json) printf("run folder: %s\n", folder);
    cli_interrupt_catch("\nfinishing this step and writing a checkpoint; once more to leave at once\n");
    cli_progress progress = cli_progress_begin(stdout);
    dr_status status = dr_run_train(run, json ? report_json : report, &progress);
    cli_progress_end(&progress);
    if (status == DR_OK) {
        if (!json) printf("model: %s\n", folder);
        return 0;
    }
    if (status != DR_ERROR_INTERRUPTED) return cli_failure(&cli_train, status);
    fprintf(stderr, "deltarule train: %s; continue with: deltarule train --resume ", dr_last_error());
    print_quoted(stderr, folder);
    fputc('\n', stderr);
    return cli_interrupted() ? CLI_STATUS_INTERRUPTED : 1;
}

/* A run in a new folder of the default name. Where others take the name meanwhile, the next one is tried. */
static dr_status create_somewhere(dr_backend *backend, const dr_train_options *options, char folder[FOLDER_SIZE],
                                  dr_run **run) {
    dr_status status = DR_ERROR_ARGUMENT;
    for (int number = 1; number <= MOST_FOLDERS; number++) {
        default_folder(options, number, folder);
        if (access(folder, F_OK) == 0) continue;
        status = dr_run_create(backend, options, folder, run);
        if (status == DR_OK || access(folder, F_OK) != 0) break;
    }
    return status;
}

/* *folder: where the run is, in `chosen` if the user has not said it. */
static dr_status open_run(const cli_flag *flags, dr_train_options *options, dr_backend *backend, char chosen[FOLDER_SIZE],
                          const char **folder, dr_run **run) {
    *folder = flags[RESUME].given ? flags[RESUME].value : flags[OUT].given ? flags[OUT].value : chosen;
    if (flags[RESUME].given) return dr_run_resume(backend, *folder, options, run);
    return flags[OUT].given ? dr_run_create(backend, options, *folder, run) : create_somewhere(backend, options, chosen, run);
}

/* Settings for each run, which differ in their seeds. */
static int train_side_by_side(const cli_flag *flags, int count, dr_train_options *options, dr_backend *backend) {
    const int runs = (int)cli_flag_integer(&flags[RUNS]);
    dr_train_options *all[CLI_MOST_RUNS] = {NULL};
    dr_status status = DR_OK;
    int64_t seed = 0;
    char folder[FOLDER_SIZE], text[32];
    dr_integer_parse(dr_train_options_get(options, "seed"), &seed);
    default_folder(options, 1, folder);
    for (int i = 0; i < runs && status == DR_OK; i++) {
        status = dr_train_options_create(&all[i]);
        if (status == DR_OK) status = read_settings(all[i], flags, count);
        snprintf(text, sizeof text, "%lld", (long long)seed + i);
        if (status == DR_OK) status = dr_train_options_set(all[i], "seed", text);
    }
    const int exit_status = status == DR_OK
                                ? cli_train_runs(&cli_train, backend, all, runs, flags[OUT].given ? flags[OUT].value : folder)
                                : cli_failure(&cli_train, status);
    for (int i = 0; i < runs; i++) dr_train_options_destroy(all[i]);
    return exit_status;
}

static int open_and_train(const cli_flag *flags, int count, dr_train_options *options) {
    char chosen[FOLDER_SIZE];
    const char *folder;
    int64_t threads = 0;
    dr_integer_parse(dr_train_options_get(options, "threads"), &threads); /* it was checked when it was set */
    dr_backend_options backend_options = {.threads = (int)threads,
                                          .isa = flags[ISA].value,
                                          .dtype = cli_flag_dtype(&flags[DTYPE]),
                                          .device = (int)cli_flag_integer(&flags[DEVICE])};
    dr_backend *backend;
    dr_status status = dr_backend_open(flags[BACKEND].value, &backend_options, &backend);
    if (status != DR_OK) return cli_failure(&cli_train, status);
    dr_run *run = NULL;
    int exit_status;
    if (cli_flag_boolean(&flags[DRY_RUN])) {
        exit_status = cli_train_plan(&cli_train, backend, options);
    } else if (cli_flag_integer(&flags[RUNS]) > 1) {
        exit_status = train_side_by_side(flags, count, options, backend);
    } else {
        status = open_run(flags, options, backend, chosen, &folder, &run);
        exit_status = status == DR_OK ? train(run, folder, cli_flag_boolean(&flags[JSON])) : cli_failure(&cli_train, status);
    }
    dr_run_destroy(run);
    dr_backend_close(backend);
    return exit_status;
}

static int run(int argc, char **argv) {
    int count, operands, exit_status;
    cli_flag *flags = make_flags(&count);
    dr_train_options *options = NULL;
    dr_status status = DR_OK;
    if (!flags) {
        fprintf(stderr, "deltarule train: out of memory\n");
        return 1;
    }
    if (!cli_flags_parse(&cli_train, flags, count, argc, argv, &operands, &exit_status)) goto done;
    if (flags[RESUME].given && (flags[OUT].given || flags[CONFIG].given)) {
        exit_status = cli_usage(&cli_train, "--resume goes on in its own folder with its own settings: leave out --%s",
                                flags[OUT].given ? "out" : "config");
        goto done;
    }
    if (flags[RESUME].given && cli_flag_boolean(&flags[DRY_RUN])) {
        exit_status = cli_usage(&cli_train, "--dry-run is of a new run: leave out --resume");
        goto done;
    }
    if (cli_flag_integer(&flags[RUNS]) > 1 &&
        (flags[RESUME].given || cli_flag_boolean(&flags[DRY_RUN]) || cli_flag_boolean(&flags[JSON]))) {
        exit_status = cli_usage(&cli_train, "--runs begins runs of its own: leave out --%s",
                                flags[RESUME].given              ? "resume"
                                : cli_flag_boolean(&flags[JSON]) ? "json"
                                                                 : "dry-run");
        goto done;
    }
    status = dr_train_options_create(&options);
    if (status == DR_OK) status = read_settings(options, flags, count);
    exit_status = status == DR_OK ? open_and_train(flags, count, options) : cli_failure(&cli_train, status);
done:
    dr_train_options_destroy(options);
    free(flags);
    return exit_status;
}

const cli_command cli_train = {
    .name = "train",
    .arguments = "[flags]",
    .summary = "trains a model; --resume continues a run",
    .details = "The run folder holds config.json and model.safetensors (the model), metrics.csv, and what --resume needs;\n"
               "with --save-keep, copies of the last checkpoints too.\n"
               "Every setting is a flag and, with underscores, a key of the configuration file.",
    .run = run,
    .makes_files = true,
};
