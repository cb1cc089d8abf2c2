/* deltarule probe: what the recurrences of a model do on a text, as the papers look at theirs. */
#include <deltarule/probe.h>

#include "base/number.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/model.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL, CORPUS, TOKENIZER, TOKENS, JSON, BACKEND, THREADS, ISA, FLAGS };

typedef struct {
    bool json, begun;
    int64_t layer;
} output;

static void print_json(const dr_probe_figure *figure) {
    printf("{\"layer\": %" PRId64 ", ", figure->layer);
    cli_print_json_text("figure", figure->name);
    printf(", \"count\": %" PRId64, figure->count);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"mean", figure->mean},     {"least", figure->least}, {"low", figure->low},
                   {"median", figure->median}, {"high", figure->high},   {"most", figure->most}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        printf(", ");
        cli_print_json_number(numbers[i].key, numbers[i].value);
    }
    printf("}\n");
}

static void print(void *context, const dr_probe_figure *figure) {
    output *self = context;
    if (self->json) {
        print_json(figure);
        return;
    }
    if (!self->begun || figure->layer != self->layer)
        printf("%slayer %-49" PRId64 "%9s %10s %10s %10s %10s %10s %10s\n", self->begun ? "\n" : "", figure->layer, "count",
               "mean", "least", "5%", "median", "95%", "most");
    self->begun = true;
    self->layer = figure->layer;
    dr_print(stdout, "%-55s%9" PRId64 " %10.4g %10.4g %10.4g %10.4g %10.4g %10.4g\n", figure->name, figure->count, figure->mean,
             figure->least, figure->low, figure->median, figure->high, figure->most);
}

static int probe(const cli_flag *flags, const char *kind, const char *text, size_t bytes) {
    const cli_model_flags how = {&flags[BACKEND], &flags[THREADS], &flags[ISA], &flags[TOKENIZER], false, NULL, NULL, NULL};
    cli_model of;
    int exit_status = cli_model_open(&cli_probe, flags[MODEL].value, &how, &of);
    if (exit_status) return exit_status;
    output self = {.json = cli_flag_boolean(&flags[JSON])};
    dr_status status = dr_probe(of.model, kind, text, bytes, cli_flag_integer(&flags[TOKENS]), of.tokenizer, print, &self);
    if (status != DR_OK) exit_status = cli_failure(&cli_probe, status);
    cli_model_close(&of);
    return exit_status;
}

static const char *kind_at(const void *context, int i) {
    (void)context;
    return dr_probe_kind(i);
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL, "folder of the model, or of its run"},
                   .placeholder = "DIR",
                   .required = true},
        [CORPUS] = {.setting = {"corpus", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                "a UTF-8 text file, of which the beginning is read; -: standard input"},
                    .placeholder = "FILE",
                    .required = true},
        [TOKENIZER] = CLI_FLAG_TOKENIZER,
        [TOKENS] = {.setting = {"tokens", DR_SETTING_INTEGER, "1024", 2, 1e6, NULL, NULL, "how many of the text at most"},
                    .placeholder = "N"},
        [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "a JSON object a figure"}},
        [BACKEND] = CLI_FLAG_BACKEND,
        [THREADS] = CLI_FLAG_THREADS,
        [ISA] = CLI_FLAG_ISA,
    };
    int operands, exit_status;
    char *text = NULL;
    size_t bytes = 0;
    if (!cli_flags_parse(&cli_probe, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    bool known = false;
    for (int i = 0; dr_probe_kind(i); i++) known = known || strcmp(dr_probe_kind(i), argv[1]) == 0;
    if (!known) {
        const char *near = cli_nearest(argv[1], kind_at, NULL);
        return cli_usage(&cli_probe, "there is no probe '%s'%s%s%s; there are value, preconditioner and erase", argv[1],
                         near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    exit_status = cli_read_input(&cli_probe, flags[CORPUS].value, 0, &text, &bytes);
    if (exit_status == 0) exit_status = probe(flags, argv[1], text, bytes);
    free(text);
    return exit_status;
}

const cli_command cli_probe = {
    .name = "probe",
    .arguments = "KIND --model DIR --corpus FILE [flags]",
    .summary = "what the recurrences of a model do on a text",
    .details =
        "KIND is value (value predictions, contractions, drifts, energy in principal components), preconditioner (scan,\n"
        "its squash, transitions, Gram spectrum) or erase (shares of decay, erase and write, other erase keys). Each\n"
        "figure is a distribution over the tokens and heads of a layer (docs/experiments.md). Eigenvalues are found by\n"
        "LAPACK, which OpenBLAS contains; without it their figures are left out.",
    .run = run,
    .least_operands = 1,
    .most_operands = 1,
};
