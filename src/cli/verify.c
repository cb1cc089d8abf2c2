/* deltarule verify: holds this build against recorded results, a line a case and path, and a last line that counts cases. */
#include "cli/commands.h"

#include <deltarule/verify.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

static void print_line(void *context, const char *text) {
    (void)context;
    puts(text);
    fflush(stdout);
}

static int run(int argc, char **argv) {
    enum { BACKEND, PATH, DTYPE, DEVICE, STRICT, THREADS, ISA, FLAGS };
    cli_flag flags[FLAGS] = {
        [BACKEND] = {.setting = {"backend", DR_SETTING_TEXT, NULL, 0, 0, "reference cpu cuda", NULL,
                                 "only this backend; all by default"},
                     .placeholder = "NAME"},
        [PATH] = {.setting = {"path", DR_SETTING_TEXT, NULL, 0, 0, "recurrent chunkwise decode", NULL,
                              "only this engine; all that apply by default"},
                  .placeholder = "NAME"},
        [DTYPE] = CLI_FLAG_DTYPE,
        [DEVICE] = CLI_FLAG_DEVICE,
        [STRICT] =
            {.setting = {"strict", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                         "count as failed what is skipped otherwise: an unknown rule, a path that exists but was not run"}},
        [THREADS] = CLI_FLAG_THREADS,
        [ISA] = CLI_FLAG_ISA,
    };
    int operands, exit_status;
    if (!cli_flags_parse(&cli_verify, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;

    dr_verify_options options = {.backend = flags[BACKEND].value,
                                 .path = flags[PATH].value,
                                 .isa = flags[ISA].value,
                                 .threads = (int)cli_flag_integer(&flags[THREADS]),
                                 .dtype = cli_flag_dtype(&flags[DTYPE]),
                                 .device = (int)cli_flag_integer(&flags[DEVICE]),
                                 .strict = cli_flag_boolean(&flags[STRICT])};
    dr_verify_counts counts = {0, 0, 0};
    exit_status = 0;
    for (int i = 1; i <= operands; i++) {
        dr_status status = dr_verify(argv[i], &options, print_line, NULL, &counts);
        if (status != DR_OK) exit_status = cli_failure(&cli_verify, status);
    }
    printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n", counts.passed, counts.failed, counts.skipped);
    if (exit_status) return exit_status;
    if (counts.passed + counts.failed == 0) {
        fprintf(stderr, "deltarule verify: nothing was verified: every case was skipped\n");
        return 1;
    }
    return counts.failed ? 1 : 0;
}

const cli_command cli_verify = {
    .name = "verify",
    .arguments = "PATH... [flags]",
    .summary = "holds this build against recorded results",
    .details = "PATH is a .safetensors file of recorded inputs, outputs and gradients, or a folder of them. Every output and\n"
               "gradient is compared, on every path that applies: one line a case and path with the worst relative error\n"
               "and the kernel that ran. Or PATH is the folder of a model with expected.safetensors, or a folder of such\n"
               "folders: its logits, tokens in one call, one by one, in two parts and packed, and its likeliest tokens. The "
               "last line counts cases. The exit status is 0 only if some passed and none failed.",
    .run = run,
    .least_operands = 1,
    .most_operands = INT_MAX - 1,
};
