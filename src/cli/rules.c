/* deltarule rules: the table of rules, each with its equation, its option on every axis and its source. */
#include "cli/commands.h"

#include <deltarule/rule.h>
#include <stdio.h>

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
    printf("; scan %s; query %s\n", dr_scan_name(rule->scan), dr_query_name(rule->query));
}

static void print_rule(const dr_rule *rule) {
    printf("%s: %s\n", rule->name, rule->title);
    print_equation(rule);
    print_axes(rule);
    printf("    %s\n", rule->source);
}

static void print_uses(const dr_rule *rule) {
    printf("    inputs:");
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(rule, (dr_input)i)) printf(" %s", dr_input_name((dr_input)i));
    printf("\n    states:");
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(rule, (dr_state_kind)i)) printf(" %s", dr_state_name((dr_state_kind)i));
    printf("\n");
}

static int run(int argc, char **argv) {
    int operands, exit_status;
    if (!cli_flags_parse(&cli_rules, NULL, 0, argc, argv, &operands, &exit_status)) return exit_status;
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
    .arguments = "[NAME]",
    .summary = "the rules: equation, option on each axis, source",
    .details = "Without NAME, all of them; with it, also the inputs that the rule reads and the states that it carries.\n"
               "The symbols are those of docs/notation.md.",
    .run = run,
    .most_operands = 1,
};
