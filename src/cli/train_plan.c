/* deltarule train --dry-run. Numbers that follow from the settings come first: they need neither text nor memory. */
#include "cli/train_plan.h"

#include "base/number.h"
#include "cli/progress.h"

#include <string.h>

static void print_line(void *context, const char *text) {
    (void)context;
    puts(text);
}

static void print_part(const char *name, int64_t count, int64_t all) {
    if (count > 0) dr_print(stdout, "  %-14s %14lld  %5.1f%%\n", name, (long long)count, 100 * (double)count / (double)all);
}

static void print_bytes(const char *name, int64_t bytes) {
    dr_print(stdout, "  %-14s %14.1f MB\n", name, 1e-6 * (double)bytes);
}

static void print_plan(const dr_run_plan *plan) {
    const int64_t bytes = plan->parameter_bytes + plan->gradient_bytes + plan->optimizer_bytes + plan->step_bytes;
    printf("parameters: %lld\n", (long long)plan->parameters);
    print_part("embedding", plan->embedding, plan->parameters);
    print_part("mixers", plan->mixers, plan->parameters);
    print_part("feed-forwards", plan->feed_forwards, plan->parameters);
    print_part("norms", plan->norms, plan->parameters);
    print_part("head", plan->head, plan->parameters);
    if (plan->active != plan->parameters)
        printf("active parameters: %lld a token, of experts those that it chooses\n", (long long)plan->active);
    dr_print(stdout, "memory: %.1f MB beside the data\n", 1e-6 * (double)bytes);
    print_bytes("parameters", plan->parameter_bytes);
    print_bytes("gradients", plan->gradient_bytes);
    print_bytes("optimizer", plan->optimizer_bytes);
    print_bytes("a step", plan->step_bytes);
    printf("steps: %lld of %lld tokens\n", (long long)plan->steps, (long long)plan->tokens);
    dr_print(stdout, "tokens in all: %.4g\n", (double)plan->steps * (double)plan->tokens);
}

/* Some steps of a run that is kept nowhere. */
static int measure(const cli_command *command, dr_run *run) {
    char left[32], rate[32];
    dr_run_costs costs;
    const dr_status status = dr_run_measure(run, &costs);
    if (status != DR_OK) return cli_failure(command, status);
    dr_print(stdout, "time of one step: %.4g s, %s tokens/s; of all steps without evaluations: %s\n", costs.step_seconds,
             cli_format_count((double)costs.tokens / costs.step_seconds, rate),
             cli_format_seconds((double)costs.steps * costs.step_seconds, left));
    return 0;
}

int cli_train_plan(const cli_command *command, dr_backend *backend, const dr_train_options *options) {
    const bool has_data = strcmp(dr_train_options_get(options, "task"), "lm") != 0 || *dr_train_options_get(options, "corpus");
    dr_run *run = NULL;
    dr_run_plan plan;
    dr_status status = has_data ? dr_run_prepare(backend, options, &run) : DR_OK;
    if (run) dr_run_describe(run, print_line, NULL);
    const int64_t vocabulary = run ? dr_model_get_config(dr_run_model(run))->vocabulary : 0;
    if (status == DR_OK) status = dr_run_plan_make(backend, options, vocabulary, &plan);
    int exit_status = 0;
    if (status != DR_OK) {
        exit_status = cli_failure(command, status);
    } else {
        print_plan(&plan);
        if (run)
            exit_status = measure(command, run);
        else
            puts("time of one step: not measured without a corpus");
    }
    dr_run_destroy(run);
    return exit_status;
}
