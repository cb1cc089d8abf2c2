/* deltarule experiment: runs the cells of an experiment's grid, several at once as processes of `deltarule train`, and tells
 * what came out of those that are done. */
#include <deltarule/experiment.h>

#include "cli/cells.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/machine.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SEEDS,
    SMALL,
    OUT,
    JOBS,
    MOST,
    TABLE,
    JSON,
    CSV,
    LIST,
    PICTURE,
    CORPUS,
    TOKENIZER,
    TEXT,
    TASKS,
    SETTINGS,
    ONLY,
    PARTIAL,
    RESULTS,
    MACHINE,
    BACKEND,
    DTYPE,
    GPUS,
    THREADS,
    FLAGS
};
enum { MOST_FILES = 1000, MACHINE_SIZE = 200 };

/* ---- where experiments are ------------------------------------------------------------------------------------------ */

static bool is_there(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0;
}

/* The folder of experiments: that of the current folder, the installed one (PREFIX/bin beside PREFIX/share), or that of the
 * source tree above a build folder. */
static bool find_folder(char folder[PATH_MAX]) {
    static const char *const places[] = {"../share/deltarule/experiments", "../../experiments", "../experiments"};
    char program[PATH_MAX / 2];
    snprintf(folder, PATH_MAX, "experiments");
    if (is_there(folder)) return true;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return false;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(folder, PATH_MAX, "%s/%s", program, places[i]);
        if (is_there(folder)) return true;
    }
    return false;
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), of_end = strlen(end);
    return length > of_end && strcmp(text + length - of_end, end) == 0;
}

static int by_text(const void *one, const void *other) {
    return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Names of the experiments of a folder, in order; free each and the list. */
static char **list_names(const char *folder, int *count) {
    *count = 0;
    char **names = calloc(MOST_FILES + 1, sizeof *names);
    DIR *directory = names ? opendir(folder) : NULL;
    for (struct dirent *entry; directory && *count < MOST_FILES && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.' || !ends_with(entry->d_name, ".json")) continue;
        names[*count] = strndup(entry->d_name, strlen(entry->d_name) - strlen(".json"));
        if (names[*count]) ++*count;
    }
    if (directory) closedir(directory);
    if (names) qsort(names, (size_t)*count, sizeof *names, by_text);
    return names;
}

static void free_names(char **names, int count) {
    for (int i = 0; names && i < count; i++) free(names[i]);
    free(names);
}

static const char *name_at(const void *context, int i) {
    return ((char *const *)context)[i];
}

/* The file of an experiment that the user names, by its name or by a path. */
static bool find_file(const char *name, char file[PATH_MAX], int *status) {
    char folder[PATH_MAX];
    if (ends_with(name, ".json") || strchr(name, '/')) {
        snprintf(file, PATH_MAX, "%s", name);
        return true;
    }
    if (!find_folder(folder)) {
        *status = cli_usage(&cli_experiment, "there is no folder of experiments: name a file, FILE.json");
        return false;
    }
    if (snprintf(file, PATH_MAX, "%.*s/%s.json", PATH_MAX - 300, folder, name) < PATH_MAX && is_there(file)) return true;
    int count;
    char **names = list_names(folder, &count);
    const char *near = names ? cli_nearest(name, name_at, names) : NULL;
    *status = cli_usage(&cli_experiment, "%s has no experiment '%s'%s%s%s; --list tells which there are", folder, name,
                        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    free_names(names, count);
    return false;
}

static int list(void) {
    char folder[PATH_MAX];
    int count, exit_status = 0;
    if (!find_folder(folder)) return cli_usage(&cli_experiment, "there is no folder of experiments");
    char **names = list_names(folder, &count);
    for (int i = 0; i < count; i++) {
        char file[2 * PATH_MAX];
        dr_experiment *experiment = NULL;
        snprintf(file, sizeof file, "%s/%s.json", folder, names[i]);
        dr_status status = dr_experiment_open(file, NULL, &experiment);
        if (status != DR_OK) {
            exit_status = cli_failure(&cli_experiment, status);
            continue;
        }
        printf("%-20s %s\n%-20s %s; %d runs\n", names[i], dr_experiment_title(experiment), "", dr_experiment_source(experiment),
               dr_experiment_cells(experiment));
        dr_experiment_close(experiment);
    }
    free_names(names, count);
    return exit_status;
}

/* ---- reports -------------------------------------------------------------------------------------------------------- */

static void print_line(void *context, const char *text) {
    (void)context;
    puts(text);
}

/* Draws picture.gp of the folder, where gnuplot is installed. */
static void draw(const char *folder) {
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
        if (chdir(folder) == 0) execlp("gnuplot", "gnuplot", "picture.gp", (char *)NULL);
        _exit(127);
    }
    int how = 0;
    waitpid(child, &how, 0);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0)
        fprintf(stderr, "picture: %s/picture.png\n", folder);
    else if (WIFEXITED(how) && WEXITSTATUS(how) == 127)
        fprintf(stderr, "deltarule experiment: no picture: gnuplot is missing; %s/picture.gp has its commands\n", folder);
    else
        fprintf(stderr, "deltarule experiment: no picture: gnuplot failed on %s/picture.gp\n", folder);
}

static dr_status tell(const cli_flag *flags, const dr_experiment *experiment) {
    const dr_report report = cli_flag_boolean(&flags[JSON])  ? DR_REPORT_JSON
                             : cli_flag_boolean(&flags[CSV]) ? DR_REPORT_CSV
                                                             : DR_REPORT_TABLE;
    return dr_experiment_report(experiment, report, print_line, NULL);
}

/* Whether this build has the backend and its type of numbers: refused here once, not by every run. A GPU is not opened, since
 * this process would keep memory on it while the runs need it. */
static dr_status check_backend(const cli_flag *flags) {
    const char *name = flags[BACKEND].value;
    dr_backend *backend = NULL;
    for (int i = 0; strcmp(name, "cuda") == 0 && dr_backend_listed(i); i++)
        if (strcmp(dr_backend_listed(i), name) == 0) return DR_OK;
    const dr_backend_options options = {.dtype = cli_flag_dtype(&flags[DTYPE])};
    const dr_status status = dr_backend_open(name, &options, &backend);
    dr_backend_close(backend);
    return status;
}

static int run_and_tell(const cli_flag *flags, dr_experiment *experiment, const char *folder) {
    dr_status status = DR_OK;
    int exit_status = 0;
    if (!cli_flag_boolean(&flags[TABLE])) {
        const cli_cells_options options = {.jobs = (int)cli_flag_integer(&flags[JOBS]),
                                           .most = (int)cli_flag_integer(&flags[MOST]),
                                           .gpus = (int)cli_flag_integer(&flags[GPUS]),
                                           .backend = flags[BACKEND].value,
                                           .dtype = flags[DTYPE].value,
                                           .threads = flags[THREADS].value};
        status = check_backend(flags);
        if (status != DR_OK) return cli_failure(&cli_experiment, status);
        cli_interrupt_catch("\nthe runs write their checkpoints; once more to leave at once\n");
        bool refused;
        exit_status = cli_cells_run(experiment, folder, &options, &refused);
        if (refused) return exit_status; /* before a table of nothing hides why */
        status = dr_experiment_write(experiment, folder);
        if (status != DR_OK) return cli_failure(&cli_experiment, status);
        if (exit_status != CLI_STATUS_INTERRUPTED) draw(folder);
    } else {
        status = dr_experiment_load(experiment, folder);
        if (status == DR_OK && cli_flag_boolean(&flags[PICTURE])) status = dr_experiment_write(experiment, folder);
        if (status != DR_OK) return cli_failure(&cli_experiment, status);
        if (cli_flag_boolean(&flags[PICTURE])) draw(folder);
    }
    status = tell(flags, experiment);
    return status == DR_OK ? exit_status : cli_failure(&cli_experiment, status);
}

/* The name of an experiment's file without its folder and its ending. */
static const char *name_of(const char *file, int *length) {
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    *length = (int)(strlen(name) - (ends_with(name, ".json") ? strlen(".json") : 0));
    return name;
}

/* runs/experiment-NAME, and -small of the small form. */
static void default_folder(const char *file, bool small, char folder[PATH_MAX]) {
    int length;
    const char *name = name_of(file, &length);
    snprintf(folder, PATH_MAX, "runs/experiment-%.*s%s", length, name, small ? "-small" : "");
}

/* DIR/NAME.jsonl, and what its records say of this machine. */
static void name_records(const cli_flag *flags, const char *file, char results[PATH_MAX], char machine[MACHINE_SIZE]) {
    int length;
    const char *name = name_of(file, &length), *backend = flags[BACKEND].value, *dtype = flags[DTYPE].value;
    char found[CLI_MACHINE_SIZE];
    snprintf(results, PATH_MAX, "%.*s/%.*s.jsonl", PATH_MAX - 300, flags[RESULTS].value ? flags[RESULTS].value : "", length,
             name);
    cli_machine_name(backend, found);
    snprintf(machine, MACHINE_SIZE, "%.120s, %s, %s", flags[MACHINE].value ? flags[MACHINE].value : found, backend, dtype);
}

static const cli_flag table[FLAGS] = {
    [SEEDS] = {.setting = {"seeds", DR_SETTING_INTEGER, "0", 0, 1000, NULL, NULL, "runs of each point; 0: as the file says"},
               .placeholder = "N"},
    [SMALL] = {.setting = {"small", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "the form that takes minutes on a CPU"}},
    [OUT] = {.setting = {"out", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                         "folder of the runs (default runs/experiment-NAME); what is done there is not run again"},
             .placeholder = "DIR"},
    [JOBS] = {.setting = {"jobs", DR_SETTING_INTEGER, "0", 0, 256, NULL, NULL,
                          "runs at once; 0: as many as the experiment says, at most as there are cores, by threads"},
              .placeholder = "N"},
    [MOST] = {.setting = {"most", DR_SETTING_INTEGER, "0", 0, 1e6, NULL, NULL, "begin so many runs and no more; 0: all"},
              .placeholder = "N"},
    [TABLE] = {.setting = {"table", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                           "run nothing: tell what is done, also while another process runs it"}},
    [PICTURE] =
        {.setting =
             {"picture", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
              "with --table: write the tables and draw picture.png of what is done by now, as a sweep does at its end"}},
    [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                          "JSON, a line each of the runs that are done and of the claims"}},
    [CSV] = {.setting = {"csv", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "the table as CSV"}},
    [LIST] = {.setting = {"list", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "name the experiments that there are"}},
    [CORPUS] = {.setting = {"corpus", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "of language models: as `train` takes it"},
                .placeholder = "PATH"},
    [TOKENIZER] = {.setting = {"tokenizer", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "its folder; none: bytes"},
                   .placeholder = "DIR"},
    [TEXT] = {.setting = {"text", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "a UTF-8 file, which probes of the runs read"},
              .placeholder = "FILE"},
    [TASKS] = {.setting = {"tasks", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                           "folder of what the models are asked, as tools/make-tasks makes it"},
               .placeholder = "DIR"},
    [SETTINGS] = {.setting = {"settings", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                              "a JSON object of settings of all runs instead of the file's: '{\"steps\": 500}'"},
                  .placeholder = "JSON"},
    [ONLY] = {.setting = {"only", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                          "a JSON object of axes with the values that stay of each: '{\"rule\": [\"gdn\", \"pgdn\"]}'"},
              .placeholder = "JSON"},
    [PARTIAL] = {.setting = {"partial", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                             "where runs are missing, judge claims by the seeds that are there, and say how many"}},
    [RESULTS] = {.setting = {"results", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                             "folder of recorded results: what NAME.jsonl there has counts as done, what gets done is added"},
                 .placeholder = "DIR"},
    [MACHINE] = {.setting = {"machine", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                             "what such records call this machine (default: its GPU or processor)"},
                 .placeholder = "NAME"},
    [BACKEND] = CLI_FLAG_BACKEND,
    [DTYPE] = CLI_FLAG_DTYPE,
    [GPUS] = {.setting = {"gpus", DR_SETTING_INTEGER, "0", 0, 64, NULL, NULL,
                          "spread the runs over so many of the visible GPUs; 0: all take the first"},
              .placeholder = "N"},
    [THREADS] = {.setting = {"threads", DR_SETTING_INTEGER, "1", 0, 1024, NULL, NULL,
                             "threads of each run; results do not depend on it"},
                 .placeholder = "N"},
};

/* CUDA_VISIBLE_DEVICES, where it is set, names as many GPUs as runs are to be spread over. */
static bool check_gpus(int gpus, int *exit_status) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return true;
    int count = *visible != '\0';
    for (const char *c = visible; *c; c++) count += *c == ',';
    if (gpus <= count) return true;
    *exit_status =
        cli_usage(&cli_experiment, "--gpus is %d, and CUDA_VISIBLE_DEVICES (%s) leaves %d visible", gpus, visible, count);
    return false;
}

/* Names that are given have letters: an empty folder of results would be that of all files. --table looks into a folder, or
 * where none is yet. */
static bool check_names(const cli_flag *flags, int *exit_status) {
    static const int named[] = {OUT, RESULTS, MACHINE, TEXT, TASKS};
    struct stat facts;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (flags[named[i]].given && !*flags[named[i]].value) {
            *exit_status =
                cli_usage(&cli_experiment, "--%s is empty: give a name, or leave it out", flags[named[i]].setting.name);
            return false;
        }
    const char *out = flags[OUT].given ? flags[OUT].value : ".";
    if (stat(out, &facts) != 0 || S_ISDIR(facts.st_mode)) return true;
    *exit_status = cli_usage(&cli_experiment, "--out: %s is not a folder", out);
    return false;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    int operands, exit_status;
    char file[PATH_MAX], chosen[PATH_MAX], results[PATH_MAX], machine[MACHINE_SIZE];
    memcpy(flags, table, sizeof flags);
    if (!cli_flags_parse(&cli_experiment, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (cli_flag_boolean(&flags[JSON]) && cli_flag_boolean(&flags[CSV]))
        return cli_usage(&cli_experiment, "--json and --csv: one of them");
    if (cli_flag_boolean(&flags[PICTURE]) && !cli_flag_boolean(&flags[TABLE]))
        return cli_usage(&cli_experiment, "--picture is for --table: a sweep draws its picture at its end");
    if (cli_flag_boolean(&flags[LIST])) return list();
    if (!check_gpus((int)cli_flag_integer(&flags[GPUS]), &exit_status) || !check_names(flags, &exit_status)) return exit_status;
    if (operands < 1) return cli_usage(&cli_experiment, "which experiment? --list tells which there are");
    if (!find_file(argv[1], file, &exit_status)) return exit_status;
    if (cli_flag_boolean(&flags[TABLE]) && flags[RESULTS].given && !is_there(flags[RESULTS].value))
        return cli_usage(&cli_experiment, "there is no folder of recorded results %s", flags[RESULTS].value);
    name_records(flags, file, results, machine);
    const dr_experiment_options options = {.small = cli_flag_boolean(&flags[SMALL]),
                                           .seeds = cli_flag_integer(&flags[SEEDS]),
                                           .corpus = flags[CORPUS].value,
                                           .tokenizer = flags[TOKENIZER].value,
                                           .text = flags[TEXT].value,
                                           .tasks = flags[TASKS].value,
                                           .settings = flags[SETTINGS].value,
                                           .only = flags[ONLY].value,
                                           .partial = cli_flag_boolean(&flags[PARTIAL]),
                                           .results = flags[RESULTS].given ? results : NULL,
                                           .machine = machine};
    dr_experiment *experiment = NULL;
    dr_status status = dr_experiment_open(file, &options, &experiment);
    if (status != DR_OK) return cli_failure(&cli_experiment, status);
    default_folder(file, options.small, chosen);
    exit_status = run_and_tell(flags, experiment, flags[OUT].given ? flags[OUT].value : chosen);
    dr_experiment_close(experiment);
    return exit_status;
}

const cli_command cli_experiment = {
    .name = "experiment",
    .arguments = "NAME [flags]",
    .summary = "runs a grid of training runs, and says which claims hold",
    .details =
        "NAME is an experiment that --list names, or a file, FILE.json (docs/experiments.md). Each run has a folder of its\n"
        "own below DIR; a command that was stopped or killed goes on where it was when it is given again. DIR gets\n"
        "table.txt, table.csv, cells.jsonl and, by gnuplot, picture.png. The exit status is 1 if a run failed; that a\n"
        "claim does not hold is a result.",
    .run = run,
    .most_operands = 1,
};
