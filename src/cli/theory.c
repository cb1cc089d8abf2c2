/* deltarule theory: the papers' statements on random data, each with the figure, the bound and a counter-case that must fail.
 */
#include "base/number.h"
#include "cli/commands.h"

#include <deltarule/theory.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *statement_name(const void *context, int i) {
    (void)context;
    return dr_theory_name(i);
}

/* The statement of that name, or one of the paper before the point: "pdn" and "pdn.lemma-e1" both name the latter. */
static bool names(const char *name, const char *statement) {
    size_t length = strlen(name);
    return strncmp(name, statement, length) == 0 && (statement[length] == '\0' || statement[length] == '.');
}

static bool is_wanted(char *const *wanted, int count, const char *statement) {
    for (int i = 0; i < count; i++)
        if (names(wanted[i], statement)) return true;
    return count == 0;
}

static bool all_are_known(char *const *wanted, int count) {
    for (int i = 0; i < count; i++) {
        bool known = false;
        for (int k = 0; k < dr_theory_count() && !known; k++) known = names(wanted[i], dr_theory_name(k));
        if (known) continue;
        const char *near = cli_nearest(wanted[i], statement_name, NULL);
        cli_usage(&cli_theory, "there is no statement '%s'%s%s%s", wanted[i], near ? "; did you mean '" : "", near ? near : "",
                  near ? "'?" : "");
        return false;
    }
    return true;
}

static bool is_sound(const dr_theory_result *result) {
    return result->holds && result->counter_fails;
}

static void print_text(const dr_theory_result *result) {
    printf("%-32s %s\n", result->name, result->holds ? "holds" : "DOES NOT HOLD");
    printf("    %s\n    %s\n", result->statement, result->source);
    dr_print(stdout, "    %s: %.5g, %s %g\n", result->measure, result->figure, result->at_least ? "at least" : "at most",
             result->bound);
    dr_print(stdout, "    counter-case: %s: %.5g, %s\n", result->counter_case, result->counter_figure,
             result->counter_fails ? "fails as it must" : "DOES NOT FAIL");
}

static void print_json_text(const char *key, const char *text) {
    printf("\"%s\": \"", key);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') putchar('\\');
        putchar(*c);
    }
    printf("\", ");
}

/* JSON has no number for what is not finite. */
static void print_json_number(const char *key, double number) {
    if (isfinite(number))
        dr_print(stdout, "\"%s\": %.17g, ", key, number);
    else
        printf("\"%s\": null, ", key);
}

/* One that needs LAPACK where there is none. */
static void print_unchecked(const char *name, bool json) {
    if (!json) {
        printf("%-32s not checked\n    %s\n", name, dr_last_error());
        return;
    }
    putchar('{');
    print_json_text("name", name);
    print_json_text("lacking", dr_last_error());
    printf("\"holds\": null}\n");
}

static void print_json(const dr_theory_result *result) {
    putchar('{');
    print_json_text("name", result->name);
    print_json_text("statement", result->statement);
    print_json_text("source", result->source);
    print_json_text("measure", result->measure);
    print_json_number("figure", result->figure);
    print_json_number("bound", result->bound);
    print_json_text("relation", result->at_least ? "at least" : "at most");
    print_json_text("counter_case", result->counter_case);
    print_json_number("counter_figure", result->counter_figure);
    print_json_number("counter_bound", result->counter_bound);
    printf("\"counter_fails\": %s, ", result->counter_fails ? "true" : "false");
    printf("\"holds\": %s}\n", result->holds ? "true" : "false");
}

static int run(int argc, char **argv) {
    enum { SEED, JSON, FLAGS };
    cli_flag flags[FLAGS] = {
        [SEED] = {.setting = {"seed", DR_SETTING_INTEGER, "1", 0, 9007199254740992.0, NULL, NULL, "of the random data"},
                  .placeholder = "N"},
        [JSON] = {.setting = {"json", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                              "a JSON object a line, and one with the counts last"}},
    };
    int operands, exit_status, hold = 0, fail = 0, unchecked = 0;
    if (!cli_flags_parse(&cli_theory, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (!all_are_known(argv + 1, operands)) return CLI_STATUS_REFUSED;
    bool json = cli_flag_boolean(&flags[JSON]);
    for (int i = 0; i < dr_theory_count(); i++) {
        dr_theory_result result;
        if (!is_wanted(argv + 1, operands, dr_theory_name(i))) continue;
        dr_status status = dr_theory_check(i, (uint64_t)cli_flag_integer(&flags[SEED]), &result);
        if (status == DR_ERROR_UNSUPPORTED) {
            print_unchecked(dr_theory_name(i), json);
            unchecked++;
            continue;
        }
        if (status != DR_OK) return cli_failure(&cli_theory, status);
        (json ? print_json : print_text)(&result);
        fflush(stdout);
        *(is_sound(&result) ? &hold : &fail) += 1;
    }
    if (json)
        printf("{\"hold\": %d, \"do_not\": %d, \"not_checked\": %d}\n", hold, fail, unchecked);
    else if (unchecked)
        printf("%d hold, %d do not, %d were not checked\n", hold, fail, unchecked);
    else
        printf("%d hold, %d do not\n", hold, fail);
    if (unchecked)
        fprintf(stderr, "deltarule theory: %d statements were not checked: they need LAPACK, which OpenBLAS contains\n",
                unchecked);
    return fail || unchecked ? 1 : 0;
}

const cli_command cli_theory = {
    .name = "theory",
    .arguments = "[NAME...] [flags]",
    .summary = "the papers' statements, computed on random data",
    .details =
        "NAME is a statement, or a paper: linear, pdn, qdelta, eda. Without one, all of them. Each says what it states,\n"
        "where it is from, its figure and the bound, and a counter-case, which must fail: an assumption violated, or the\n"
        "form as printed where that is a misprint. The last line counts; a counter-case that does not fail counts as a\n"
        "statement that does not hold. Some solve equations or find eigenvalues by LAPACK, which OpenBLAS contains; without\n"
        "it they are not checked. The exit status is 0 only if all are checked and hold. docs/papers.md gives the equations.",
    .run = run,
    .most_operands = INT_MAX - 1,
};
