/* deltarule convert: a model as a folder for other programs, in another type. */
#include "cli/commands.h"
#include "cli/model.h"

#include <deltarule/convert.h>
#include <string.h>

enum { TO, DTYPE, SHARD, VERBOSE, FLAGS };

static const cli_flag table[FLAGS] = {
    [TO] = {.setting = {"to", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                        "folder that is made; it must be empty or not exist yet"},
            .placeholder = "DIR",
            .required = true},
    [DTYPE] = {.setting = {"dtype", DR_SETTING_TEXT, "bf16", 0, 0, "float32 bf16 fp16", NULL,
                           "type of the weights, rounded to the nearest"},
               .placeholder = "TYPE"},
    [SHARD] =
        {.setting = {"shard", DR_SETTING_INTEGER, "5000", 0, 1e9, NULL, NULL,
                     "MB of weights in a file at most, but for one tensor, with an index where there are several; 0: one file"},
         .placeholder = "MB"},
    [VERBOSE] = CLI_FLAG_VERBOSE,
};

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS], backend = CLI_FLAG_BACKEND, threads = CLI_FLAG_THREADS, isa = CLI_FLAG_ISA;
    dr_convert_options options = dr_convert_defaults();
    cli_model of;
    int operands, exit_status;
    memcpy(flags, table, sizeof flags);
    if (!cli_flags_parse(&cli_convert, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    backend.value = backend.setting.fallback, threads.value = threads.setting.fallback;
    const cli_model_flags how = {&backend, &threads, &isa, NULL, cli_flag_boolean(&flags[VERBOSE]), NULL, NULL, NULL};
    options.dtype = strcmp(flags[DTYPE].value, "bf16") == 0   ? DR_BF16
                    : strcmp(flags[DTYPE].value, "fp16") == 0 ? DR_F16
                                                              : DR_F32;
    options.file_bytes = cli_flag_integer(&flags[SHARD]) * 1000000;
    exit_status = cli_model_open(&cli_convert, argv[1], &how, &of);
    if (exit_status) return exit_status;
    const dr_status status = dr_model_convert(of.model, argv[1], flags[TO].value, &options);
    if (status == DR_OK)
        printf("%s: %lld parameters in %s\n", flags[TO].value, (long long)dr_model_parameter_count(of.model),
               flags[DTYPE].value);
    else
        exit_status = cli_failure(&cli_convert, status);
    cli_model_close(&of);
    return exit_status;
}

const cli_command cli_convert = {
    .name = "convert",
    .arguments = "MODEL --to DIR [flags]",
    .summary = "a model as a Hugging Face folder in another type, with tokenizer and model card",
    .details =
        "The folder has config.json of the same type, weights in one or several .safetensors files, what MODEL has of a\n"
        "tokenizer, chat template and generation_config.json, and README.md. It is made whole or not at all, and nothing\n"
        "is written over. Weights in 8 bits are no format of folders: generate, chat, score, evaluate and serve make them\n"
        "of any folder with --weights int8.",
    .run = run,
    .least_operands = 1,
    .most_operands = 1,
};
