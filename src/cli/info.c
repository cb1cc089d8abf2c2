/* deltarule info: version, processor features, kernels, libraries and threads, as the backends tell them; with --rule what runs
 * for a rule, stage by stage. */
#include "cli/bench.h"
#include "cli/commands.h"

#include <deltarule/backend.h>
#include <deltarule/bench.h>
#include <deltarule/plan.h>
#include <stdio.h>
#include <string.h>

static void print_line(void *context, const char *text) {
    (void)context;
    printf("  %s\n", text);
}

/* The stages of 16 sequences of 2,048 tokens, 8 heads of 128 channels. */
static void print_stages(dr_backend *backend, const dr_rule *rule) {
    enum { SEQUENCES = 16, TOKENS = 2048, HEADS = 8, CHANNELS = 128 };
    const dr_recurrence recurrence = {
        .rule = rule,
        .layout = {.sequences = SEQUENCES, .rows = SEQUENCES * TOKENS},
        .key_heads = HEADS,
        .value_heads = HEADS,
        .key_size = CHANNELS,
        .value_size = CHANNELS,
        .forget = DR_FORGET,
    };
    dr_plan *plan;
    if (dr_plan_create(backend, &recurrence, &plan) != DR_OK) {
        printf("  refused: %s\n", dr_last_error());
        return;
    }
    const dr_dtype vectors = dr_recurrence_output_dtype(backend);
    for (dr_stage stage = 0; stage < DR_STAGES; stage++) {
        dr_stage_path path;
        if (dr_plan_path(plan, false, stage, &path) != DR_OK) continue;
        printf("  %-10s %s, %s%s, %lld tokens a chunk, %lld %s\n", dr_stage_name(stage), path.instance,
               dr_dtype_name(path.storage), path.storage == vectors ? "" : " for accuracy", (long long)path.chunk,
               (long long)path.parts, path.parts == 1 ? "part" : "parts");
    }
    dr_plan_destroy(plan);
}

static int run(int argc, char **argv) {
    enum { THREADS, ISA, DEVICE, RULE, DTYPE, FLAGS };
    cli_flag flags[FLAGS] = {
        [THREADS] = CLI_FLAG_THREADS,
        [ISA] = CLI_FLAG_ISA,
        [DEVICE] = CLI_FLAG_DEVICE,
        [RULE] = {.setting = {"rule", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                              "tell which kernels this rule comes to, stage by stage: a rule's name, a rule as JSON or a .json "
                              "file; 16 x 2048 tokens, 8 heads of 128 channels"},
                  .placeholder = "RULE"},
        [DTYPE] = CLI_FLAG_DTYPE,
    };
    int operands, exit_status;
    if (!cli_flags_parse(&cli_info, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    dr_rule rule;
    if (flags[RULE].value) {
        const dr_status status = cli_read_rule(flags[RULE].value, &rule);
        if (status != DR_OK) return cli_failure(&cli_info, status);
    }

    bool gpu_listed = false;
    printf("deltarule %s\n", dr_version());
    for (int i = 0; dr_backend_listed(i); i++) {
        const char *name = dr_backend_listed(i);
        const bool gpu = strcmp(name, "cuda") == 0;
        gpu_listed |= gpu;
        dr_backend_options options = {.threads = (int)cli_flag_integer(&flags[THREADS]),
                                      .isa = strcmp(name, "cpu") == 0 ? flags[ISA].value : NULL,
                                      .dtype = gpu ? cli_flag_dtype(&flags[DTYPE]) : DR_F32,
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
        if (flags[RULE].value)
            print_stages(backend, &rule);
        else
            dr_backend_describe(backend, print_line, NULL);
        dr_backend_close(backend);
    }
    if (flags[RULE].value) return 0;
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
    .details =
        "Version, processor features and GPUs found, kernels chosen, libraries and threads; with --rule the kernels that a "
        "rule comes to on each backend.",
    .run = run,
};
