/* deltarule score: loss, perplexity and bits per byte of a model on text, over windows with carried state. */
#include "base/number.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model.h"
#include "cli/progress.h"

#include <deltarule/evaluate.h>
#include <inttypes.h>

static bool report(void *context, int64_t done, int64_t total) {
    cli_progress *progress = context;
    if (progress->live && cli_progress_due(progress)) {
        char line[96];
        snprintf(line, sizeof line, "scored %" PRId64 " of %" PRId64 " bytes", done, total);
        cli_progress_show(progress, false, line);
    }
    return !cli_interrupted();
}

static void print_score(const dr_score *score) {
    printf("files          %" PRId64 "\n", score->files);
    printf("bytes          %" PRId64 "\n", score->bytes);
    printf("tokens         %" PRId64 "\n", score->tokens);
    dr_print(stdout, "loss           %.4f\n", score->loss);
    dr_print(stdout, "perplexity     %.3f\n", score->perplexity);
    dr_print(stdout, "bits_per_byte  %.4f\n", score->bits_per_byte);
    dr_print(stdout, "seconds        %.1f\n", score->seconds);
}

static int run(int argc, char **argv) {
    enum { MODEL, CORPUS, WINDOW, BACKEND, THREADS, ISA, FLAGS };
    cli_flag flags[FLAGS] = {
        [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                               "folder with config.json and model.safetensors"},
                   .placeholder = "DIR",
                   .required = true},
        [CORPUS] = {.setting = {"corpus", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "a UTF-8 text file, or a folder of them"},
                    .placeholder = "PATH",
                    .required = true},
        [WINDOW] = {.setting = {"window", DR_SETTING_INTEGER, "1024", 1, 1 << 20, NULL, NULL,
                                "tokens a call; the state is carried from window to window"},
                    .placeholder = "N"},
        [BACKEND] = CLI_FLAG_BACKEND,
        [THREADS] = CLI_FLAG_THREADS,
        [ISA] = CLI_FLAG_ISA,
    };
    int operands, exit_status;
    if (!cli_flags_parse(&cli_score, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;

    dr_backend *backend;
    dr_model *model;
    exit_status =
        cli_model_open(&cli_score, flags[MODEL].value, &flags[BACKEND], &flags[THREADS], &flags[ISA], &backend, &model);
    if (exit_status) return exit_status;
    cli_interrupt_catch("\nstopping; once more to leave at once\n");
    cli_progress progress = cli_progress_begin(stderr);
    dr_score score;
    dr_status status = dr_score_corpus(model, flags[CORPUS].value, cli_flag_integer(&flags[WINDOW]), report, &progress, &score);
    cli_progress_end(&progress);
    if (status == DR_OK)
        print_score(&score);
    else
        exit_status = cli_interrupted() ? CLI_STATUS_INTERRUPTED : cli_failure(&cli_score, status);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return exit_status;
}

const cli_command cli_score = {
    .name = "score",
    .arguments = "--model DIR --corpus PATH [flags]",
    .summary = "loss, perplexity and bits per byte of a model on text",
    .details = "Each file is read from its beginning in windows, the state carried from one to the next. loss is in nats a\n"
               "token, bits_per_byte counts the bytes of the text.",
    .run = run,
};
