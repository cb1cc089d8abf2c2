/* deltarule info: version, processor features, kernels, libraries and threads, as the backends tell them. */
#include "cli/commands.h"

#include <deltarule/backend.h>
#include <stdio.h>

static void print_line(void *context, const char *text) {
    (void)context;
    printf("  %s\n", text);
}

static int run(int argc, char **argv) {
    enum { THREADS, ISA, FLAGS };
    cli_flag flags[FLAGS] = {[THREADS] = CLI_FLAG_THREADS, [ISA] = CLI_FLAG_ISA};
    int operands, exit_status;
    if (!cli_flags_parse(&cli_info, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;

    static const char *const names[] = {"cpu", "reference"};
    printf("deltarule %s\n", dr_version());
    for (int i = 0; i < 2; i++) {
        dr_backend_options options = {.threads = (int)cli_flag_integer(&flags[THREADS]),
                                      .isa = i == 0 ? flags[ISA].value : NULL};
        dr_backend *backend;
        dr_status status = dr_backend_open(names[i], &options, &backend);
        if (status != DR_OK) return cli_failure(&cli_info, status);
        printf("backend %s (%s, %s, %d threads)\n", names[i], dr_dtype_name(dr_backend_dtype(backend)), dr_backend_isa(backend),
               dr_backend_threads(backend));
        dr_backend_describe(backend, print_line, NULL);
        dr_backend_close(backend);
    }
    return 0;
}

const cli_command cli_info = {
    .name = "info",
    .arguments = "[flags]",
    .summary = "what this build and this machine have",
    .details = "Version, processor features found, kernels chosen, libraries and threads.",
    .run = run,
};
