/* The command line: finds the command named first, runs it, and makes sure that what it printed has arrived.
 *
 * Exit status: 0 done; 1 it failed; 2 the command line or an argument was wrong; 130 interrupted. */
#include "cli/commands.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {
    &cli_rules,    &cli_train,      &cli_score,      &cli_evaluate,      &cli_convert, &cli_generate, &cli_chat,
    &cli_tokenize, &cli_detokenize, &cli_tokenizer,  &cli_chat_template, &cli_serve,   &cli_verify,   &cli_theory,
    &cli_bench,    &cli_info,       &cli_experiment, &cli_probe,         &cli_state,   NULL};

static const cli_command whole = {.name = ""};

static const char *command_name(const void *context, int i) {
    (void)context;
    return commands[i] ? commands[i]->name : NULL;
}

static void print_help(FILE *stream) {
    fprintf(stream, "deltarule %s: sequence models with a matrix memory\n\nUsage: deltarule COMMAND [...]\n\n", dr_version());
    for (int i = 0; commands[i]; i++) fprintf(stream, "  %-13s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(stream, "\n'deltarule COMMAND --help' tells a command's flags; the manual is deltarule(1).\n");
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return CLI_STATUS_REFUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return cli_finish_output(&whole);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("deltarule %s\n", dr_version());
        return cli_finish_output(&whole);
    }
    for (int i = 0; commands[i]; i++) {
        if (strcmp(argv[1], commands[i]->name) != 0) continue;
        int status = commands[i]->run(argc - 1, argv + 1);
        int written = cli_finish_output(commands[i]);
        return status ? status : written;
    }
    const char *near = cli_nearest(argv[1], command_name, NULL);
    fprintf(stderr, "deltarule: there is no command '%s'%s%s%s\nTry 'deltarule --help'.\n", argv[1],
            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return CLI_STATUS_REFUSED;
}

/* Threads that spin while they wait for each other are up to ten times slower on a busy machine. Threads that sleep at once
 * make decoding a token, some hundred short operations, half as long again: they are woken for each. So they look three
 * thousand times, which takes some 180 us, and then sleep (docs/lab/decoding.md). The OpenMP runtime reads that when it is
 * loaded, before main, so the program starts itself again with it in its environment, unless the user has chosen a policy.
 * Where that fails, it goes on as it is.
 */
static void let_waiting_threads_sleep(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || setenv("GOMP_SPINCOUNT", "3000", 0) != 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0)
        return;
    execv("/proc/self/exe", argv);
}

/* A file that is opened while descriptor 0, 1 or 2 is closed gets its number: what is printed would land in metrics.csv. So
 * closed ones are taken first, by a directory that can be neither read nor written: both fail with EBADF, as they do on a
 * closed descriptor, and commands report it. */
static bool take_standard_descriptors(void) {
    for (int wanted = STDIN_FILENO; wanted <= STDERR_FILENO; wanted++)
        if (fcntl(wanted, F_GETFD) < 0 && open("/", O_PATH | O_DIRECTORY) != wanted) return false; /* the least that is free */
    return true;
}

int main(int argc, char **argv) {
    if (!take_standard_descriptors()) {
        fprintf(stderr, "deltarule: a standard stream is closed, and no descriptor can be opened in its place: %s\n",
                strerror(errno));
        return 1;
    }
    let_waiting_threads_sleep(argv);
    /* A reader that goes away, or a file that reaches the limit of its size, shows as a write error, which commands report,
     * instead of killing a run. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    cli_explain_lost_files();
    return run(argc, argv);
}
