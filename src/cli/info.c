/* deltarule info: version, processor features, kernels, libraries and threads, as the backends tell them. */
#include "cli/commands.h"

#include <deltarule/backend.h>
#include <deltarule/bench.h>
#include <stdio.h>
#include <string.h>

static void print_line(void *context, const char *text) {
    (void)context;
    printf("  %s\n", text);
}

static int run(int argc, char **argv) {
    enum { THREADS, ISA, DEVICE, FLAGS };
    cli_flag flags[FLAGS] = {[THREADS] = CLI_FLAG_THREADS, [ISA] = CLI_FLAG_ISA, [DEVICE] = CLI_FLAG_DEVICE};
    int operands, exit_status;
    if (!cli_flags_parse(&cli_info, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;

    bool gpu_listed = false;
    printf("deltarule %s\n", dr_version());
    for (int i = 0; dr_backend_listed(i); i++) {
        const char *name = dr_backend_listed(i);
        const bool gpu = strcmp(name, "cuda") == 0;
        gpu_listed |= gpu;
        dr_backend_options options = {.threads = (int)cli_flag_integer(&flags[THREADS]),
                                      .isa = strcmp(name, "cpu") == 0 ? flags[ISA].value : NULL,
                                      .device = gpu ? (int)cli_flag_integer(&flags[DEVICE]) : 0};
        dr_backend *backend;
        dr_status status = dr_backend_open(name, &options, &backend);
        if (status == DR_ERROR_UNSUPPORTED && gpu) {
            printf("backend %s (not on this machine)\n  %s\n", name, dr_last_error());
            continue;
        }
        if (status != DR_OK) return cli_failure(&cli_info, status);
        printf("backend %s (%s, %s, %d threads)\n", name, dr_dtype_name(dr_backend_dtype(backend)), dr_backend_isa(backend),
               dr_backend_threads(backend));
        dr_backend_describe(backend, print_line, NULL);
        dr_backend_close(backend);
    }
    char blas[512];
    if (dr_bench_blas(blas, sizeof blas) == DR_OK)
        printf("limit of arithmetic, of bench: %s\n", blas);
    else
        printf("limit of arithmetic, of bench: none: %s\n", dr_last_error());
    if (!gpu_listed) printf("backend cuda (not in this build: configure with cmake --preset cuda)\n");
    return 0;
}

const cli_command cli_info = {
    .name = "info",
    .arguments = "[flags]",
    .summary = "what this build and this machine have",
    .details = "Version, processor features and GPUs found, kernels chosen, libraries and threads.",
    .run = run,
};
