/* deltarule rules: the table of rules, each with its equation, its option on every axis and its source; or a rule composed in a
 * JSON file. */
#include "base/number.h"
#include "cli/commands.h"
#include "cli/rules_markdown.h"

#include <deltarule/rule.h>
#include <stdio.h>

enum { SHOW, MARKDOWN, FLAGS };

static void print_equation(const dr_rule *rule) {
    char text[1024];
    dr_rule_equation(rule, text, sizeof text);
    printf("    %s\n", text);
}

static void print_axes(const dr_rule *rule) {
    printf("    decay %s", dr_decay_name(rule->decay));
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        printf("; row %d: read %s%s, write %s, gain %s, value %s", i + 1, row->undecayed ? "undecayed " : "",
               dr_read_name(row->read), dr_write_name(row->write), dr_gain_name(row->gain), dr_value_name(row->value));
    }
    if (rule->repeat > 1) printf("; repeat %d", rule->repeat);
    printf("; scan %s%s; query %s", rule->tied_scan ? "tied " : "", dr_scan_name(rule->scan), dr_query_name(rule->query));
    if (rule->query == DR_QUERY_CONJUGATE_GRADIENT)
        printf(" of %d steps from %s", rule->cg_iters, dr_cg_start_name(rule->cg_start));
    if (rule->normalizer != DR_NORMALIZER_NONE) printf("; normalizer %s", dr_normalizer_name(rule->normalizer));
    putchar('\n');
}

static void print_layer(const dr_rule *rule) {
    printf("    layer of family %s\n", dr_family_name(rule->family));
}

static void print_rule(const dr_rule *rule) {
    printf("%s: %s\n", rule->name, rule->title);
    print_equation(rule);
    print_axes(rule);
    print_layer(rule);
    printf("    %s\n", rule->source);
}

static void print_uses(const dr_rule *rule) {
    printf("    inputs:");
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(rule, (dr_input)i)) printf(" %s", dr_input_name((dr_input)i));
    printf("\n    states:");
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(rule, (dr_state_kind)i)) printf(" %s", dr_state_name((dr_state_kind)i));
    putchar('\n');
}

/* What the file says about the layers of its rule; nothing where it leaves all to the family. */
static void print_gates(const dr_gates *gates) {
    if (gates->negative_eigenvalues) printf("    negative eigenvalues\n");
    if (gates->gate != DR_GATE_AUTO) printf("    decay gate %s", dr_gate_form_name(gates->gate));
    if (gates->gate == DR_GATE_FORM_KDA_BOUNDED || gates->gate == DR_GATE_FORM_EDA_BOUNDED)
        dr_print(stdout, ", lower bound %g", gates->lower_bound);
    if (gates->gate != DR_GATE_AUTO) putchar('\n');
    if (gates->lambda == DR_LAMBDA_FIXED)
        dr_print(stdout, "    lambda fixed to %g\n", gates->lambda_value);
    else if (gates->lambda_bias_learned)
        printf("    lambda with a learned bias\n");
}

static int show(const char *file) {
    dr_rule rule;
    dr_gates gates;
    dr_status status = dr_rule_read_file(file, &rule, &gates);
    if (status != DR_OK) return cli_failure(&cli_rules, status);
    printf("%s: %s\n", file, rule.name ? rule.title : "a composition");
    print_equation(&rule);
    print_axes(&rule);
    print_layer(&rule);
    print_uses(&rule);
    print_gates(&gates);
    return 0;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS] = {
        [SHOW] = {.setting = {"show", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                              "a JSON file that composes a rule, or names one as its base"},
                  .placeholder = "FILE"},
        [MARKDOWN] = {.setting = {"markdown", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                                  "all rules as a page of documentation, with states, cost and layers: docs/rules.md"}},
    };
    int operands, exit_status;
    if (!cli_flags_parse(&cli_rules, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (cli_flag_boolean(&flags[MARKDOWN])) {
        if (flags[SHOW].given || operands == 1) return cli_usage(&cli_rules, "--markdown prints all rules: leave out the rest");
        dr_status status = cli_print_rules_markdown();
        return status == DR_OK ? 0 : cli_failure(&cli_rules, status);
    }
    if (flags[SHOW].given && operands == 1)
        return cli_usage(&cli_rules, "--show %s shows that rule only: leave out %s", flags[SHOW].value, argv[1]);
    if (flags[SHOW].given) return show(flags[SHOW].value);
    if (operands == 1) {
        const dr_rule *rule = dr_rule_find(argv[1]);
        if (!rule) return cli_failure(&cli_rules, DR_ERROR_ARGUMENT);
        print_rule(rule);
        print_uses(rule);
        return 0;
    }
    for (int i = 0; i < dr_rule_count(); i++) {
        if (i > 0) putchar('\n');
        print_rule(dr_rule_at(i));
    }
    return 0;
}

const cli_command cli_rules = {
    .name = "rules",
    .arguments = "[NAME | --show FILE | --markdown]",
    .summary = "the rules: equation, option on each axis, layer, source",
    .details = "Without NAME, all of them; with it, also the inputs that the rule reads and the states that it carries.\n"
               "The symbols are those of docs/notation.md; docs/adding-a-rule.md tells what stands in a FILE.",
    .run = run,
    .most_operands = 1,
};
