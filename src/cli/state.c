/* deltarule state show: what files of states say of themselves, and whether they are whole. */
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL, JSON, WEIGHTS, BACKEND, FLAGS };

typedef struct {
    const char *file;
    dr_model_state_file about;
    dr_position *positions; /* [about.sequences] */
} shown_file;

/* The name of the rule where it has one, else its JSON; NULL: the model has none. */
static const char *rule_of(const dr_model_state_file *about, dr_rule **handle) {
    *handle = NULL;
    if (!about->rule[0]) return NULL;
    if (dr_rule_create(about->rule, handle) != DR_OK) return about->rule;
    const char *name = dr_rule_get_name(*handle);
    return name ? name : about->rule;
}

static void print_lines(const shown_file *shown) {
    const dr_model_state_file *about = &shown->about;
    dr_rule *handle;
    const char *rule = rule_of(about, &handle);
    cli_print_name(stdout, shown->file);
    printf("\n");
    for (int64_t s = 0; s < about->sequences; s++) {
        const dr_position *at = &shown->positions[s];
        if (about->sequences > 1) printf("  sequence  %" PRId64 "\n", s);
        printf("  position  %" PRId64 " tokens, %" PRId64 " of them decoded one by one\n", at->tokens, at->decoded);
        printf("  hash      %016" PRIx64 ", of the tokens\n", at->hash);
    }
    printf("  ids       %s\n", about->ids > 0 ? "of all tokens: of a store of prefixes" : "none");
    printf("  model     %016" PRIx64 "\n", about->model);
    printf("  rule      ");
    cli_print_name(stdout, rule ? rule : "none: the model has no recurrent layers");
    printf("\n  fixed     %d tensors of %s, %" PRId64 " bytes, whatever the number of tokens\n", about->fixed_tensors,
           dr_dtype_name(about->fixed_dtype), about->fixed_bytes);
    if (about->grown_tensors > 0)
        printf("  grown     %d tensors of %s, %" PRId64 " bytes: keys and values of attention\n", about->grown_tensors,
               dr_dtype_name(about->grown_dtype), about->grown_bytes);
    else
        printf("  grown     none: the model has no attention\n");
    printf("  file      %" PRId64 " bytes\n", about->file_bytes);
    printf("  checksum  %016" PRIx64 ", right\n", about->checksum);
    dr_rule_destroy(handle);
}

static void print_json(const shown_file *shown) {
    const dr_model_state_file *about = &shown->about;
    printf("{");
    cli_print_json_text("file", shown->file);
    printf(", \"sequences\": [");
    for (int64_t s = 0; s < about->sequences; s++)
        printf("%s{\"tokens\": %" PRId64 ", \"decoded\": %" PRId64 ", \"hash\": \"%016" PRIx64 "\"}", s > 0 ? ", " : "",
               shown->positions[s].tokens, shown->positions[s].decoded, shown->positions[s].hash);
    printf("], \"ids\": %" PRId64 ", \"model\": \"%016" PRIx64 "\", \"rule\": %s", about->ids, about->model,
           about->rule[0] ? about->rule : "null");
    printf(", \"fixed\": {\"tensors\": %d, \"dtype\": \"%s\", \"bytes\": %" PRId64 "}", about->fixed_tensors,
           dr_dtype_name(about->fixed_dtype), about->fixed_bytes);
    printf(", \"grown\": {\"tensors\": %d, \"dtype\": \"%s\", \"bytes\": %" PRId64 "}", about->grown_tensors,
           dr_dtype_name(about->grown_dtype), about->grown_bytes);
    printf(", \"bytes\": %" PRId64 ", \"checksum\": \"%016" PRIx64 "\"}\n", about->file_bytes, about->checksum);
}

/* Twice, since the number of sequences stands in the file. */
static dr_status read_file(shown_file *shown) {
    dr_status status = dr_model_state_file_about(shown->file, &shown->about, NULL, 0);
    if (status != DR_OK) return status;
    const int64_t count = shown->about.sequences;
    shown->positions = malloc((size_t)count * sizeof *shown->positions);
    if (!shown->positions) return DR_ERROR_MEMORY;
    status = dr_model_state_file_about(shown->file, &shown->about, shown->positions, count);
    if (shown->about.sequences > count) shown->about.sequences = count; /* the file was replaced meanwhile */
    return status;
}

static int show(const char *file, bool json, const uint64_t *model) {
    shown_file shown = {.file = file};
    int exit_status = 0;
    const dr_status status = read_file(&shown);
    if (status == DR_ERROR_MEMORY) {
        fprintf(stderr, "deltarule state: there is no memory for the sequences of %s\n", file);
        exit_status = 1;
    } else if (status != DR_OK) {
        exit_status = cli_failure(&cli_state, status);
    } else if (model && *model != shown.about.model) {
        fprintf(stderr,
                "deltarule state: %s is a state of the model %016" PRIx64 ", and --model is %016" PRIx64
                ": another configuration, other weights, or another --weights\n",
                file, shown.about.model, *model);
        exit_status = 1;
    } else if (json) {
        print_json(&shown);
    } else {
        print_lines(&shown);
    }
    free(shown.positions);
    return exit_status;
}

/* The identity of the model of a folder. */
static int identify(const cli_flag *flags, uint64_t *identity) {
    cli_flag threads = CLI_FLAG_THREADS, isa = CLI_FLAG_ISA;
    cli_model of;
    threads.value = threads.setting.fallback;
    const cli_model_flags how = {&flags[BACKEND], &threads, &isa, NULL, false, &flags[WEIGHTS], NULL, NULL};
    int exit_status = cli_model_open(&cli_state, flags[MODEL].value, &how, &of);
    if (exit_status) return exit_status;
    const dr_status status = dr_model_identity(of.model, identity);
    if (status != DR_OK) exit_status = cli_failure(&cli_state, status);
    cli_model_close(&of);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [MODEL] = {.setting = {"model", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                               "folder of a model: fail unless the state is of this one"},
                   .placeholder = "DIR"},
        [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL, "a JSON object for each file"}},
        [WEIGHTS] = CLI_FLAG_WEIGHTS,
        [BACKEND] = CLI_FLAG_BACKEND,
    };
    int operands, exit_status = 0;
    uint64_t identity = 0;
    if (!cli_flags_parse(&cli_state, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (operands == 0 || strcmp(argv[1], "show") != 0) return cli_usage(&cli_state, "it has one command: state show FILE");
    if (operands == 1) return cli_usage(&cli_state, "state show needs a FILE");
    if (flags[MODEL].given) exit_status = identify(flags, &identity);
    for (int i = 2; i <= operands && exit_status == 0; i++)
        exit_status = show(argv[i], cli_flag_boolean(&flags[JSON]), flags[MODEL].given ? &identity : NULL);
    return exit_status;
}

const cli_command cli_state = {
    .name = "state",
    .arguments = "show FILE... [flags]",
    .summary = "what files of states say: position, tokens' hash, model, rule, sizes",
    .details =
        "FILE is a state that dr_model_state_save wrote, or one of a server's --state-folder. It is read whole, and its\n"
        "checksum computed anew; a file that is damaged, or no such file, is an error. No model is needed.",
    .run = run,
    .least_operands = 0,
    .most_operands = 1 << 20,
};
