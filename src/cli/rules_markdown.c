/* docs/rules.md from the table of rules: an overview, then for each rule its equation, options, inputs, states, cost and what
 * its layer has. The layer's parameters are those of a model made for the purpose, whose sizes are all different, so that a
 * shape tells which sizes it is made of. */
#include "cli/rules_markdown.h"

#include <deltarule/model.h>
#include <stdio.h>
#include <string.h>

/* ---- cost ----------------------------------------------------------------------------------------------------------- */

/* Floating-point operations of a token and value head: times K V, K^2 and K^3 / 3. Vectors of K and V are left out. */
typedef struct {
    int state, matrix, solve;
} cost;

static cost cost_of(const dr_rule *rule) {
    cost c = {.state = 2}; /* the query */
    const int decays = rule->decay != DR_DECAY_NONE;
    for (int i = 0; i < rule->rows; i++) c.state += (rule->row[i].read != DR_READ_NONE ? 4 : 2) * rule->repeat;
    c.state += decays;
    if (rule->scan == DR_SCAN_GRAM) c.matrix += 2 + decays;
    if (rule->scan == DR_SCAN_INVERSE_GRAM) c.matrix += 4;
    if (rule->query == DR_QUERY_CONJUGATE_GRADIENT) c.matrix += 2 * rule->cg_iters;
    if (rule->query == DR_QUERY_EXACT) {
        c.matrix += 2;
        c.solve = 1;
    }
    return c;
}

static void print_cost(const dr_rule *rule) {
    const cost c = cost_of(rule);
    if (!c.matrix) {
        printf("%d HV K V", c.state);
        return;
    }
    printf("HV (%d K V + %d K^2%s)", c.state, c.matrix, c.solve ? " + K^3/3" : "");
}

/* ---- axes ----------------------------------------------------------------------------------------------------------- */

static void print_row(const dr_row *row) {
    printf("read %s%s, write %s, gain %s, value %s", row->undecayed ? "undecayed " : "", dr_read_name(row->read),
           dr_write_name(row->write), dr_gain_name(row->gain), dr_value_name(row->value));
}

static void print_rows(const dr_rule *rule, const char *between) {
    for (int i = 0; i < rule->rows; i++) {
        if (i > 0) printf("%s", between);
        print_row(&rule->row[i]);
    }
    if (rule->repeat > 1) printf("; %d times", rule->repeat);
}

static void print_query(const dr_rule *rule) {
    printf("%s", dr_query_name(rule->query));
    if (rule->query == DR_QUERY_CONJUGATE_GRADIENT)
        printf(", %d steps from %s", rule->cg_iters, dr_cg_start_name(rule->cg_start));
}

static void print_overview(void) {
    printf("| rule | decay | rows | scan | query | states | cost | layer |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < dr_rule_count(); i++) {
        const dr_rule *rule = dr_rule_at(i);
        printf("| [%s](#%s) | %s | ", rule->name, rule->name, dr_decay_name(rule->decay));
        print_rows(rule, "; ");
        printf(" | %s | ", dr_scan_name(rule->scan));
        print_query(rule);
        printf(" |");
        for (int s = 0; s < DR_STATES; s++)
            if (dr_rule_carries(rule, (dr_state_kind)s)) printf(" %s", dr_state_name((dr_state_kind)s));
        printf(" | ");
        print_cost(rule);
        printf(" | %s |\n", dr_family_name(rule->family));
    }
}

/* ---- layers --------------------------------------------------------------------------------------------------------- */

enum { D = 52, H = 3, HV = 9, K = 10, V = 14, HEAD_RANK = 16 }; /* no two products of them below are the same */

static void print_size(const dr_rule *rule, int64_t size) {
    const int64_t n = rule->repeat;
    const struct {
        int64_t size;
        const char *text;
    } known[] = {
        {D, "D"},
        {H, "H"},
        {HV, "HV"},
        {K, "K"},
        {V, "V"},
        {H * K, "H K"},
        {HV * K, "HV K"},
        {HV * V, "HV V"},
        {n * H * K, "n H K"},
        {n * HV * V, "n HV V"},
        {n * HV, "n HV"},
        {HEAD_RANK * H, "16 H"},
        {HEAD_RANK * HV, "16 HV"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].size == size) {
            printf("%s", known[i].text);
            return;
        }
    printf("%lld", (long long)size);
}

static void print_shape(const dr_rule *rule, int rank, const int64_t *shape) {
    printf("[");
    for (int i = 0; i < rank; i++) {
        if (i > 0) printf(", ");
        print_size(rule, shape[i]);
    }
    printf("]");
}

/* Parameters of the mixer, as model.safetensors names them below model.layers.N.attn. */
static void print_parameters(const dr_rule *rule, const dr_model *model) {
    static const char mixer[] = ".attn.", weight[] = ".weight";
    const dr_parameter *parameter;
    const int64_t count = dr_model_parameters(model, &parameter);
    const char *between = "";
    for (int64_t i = 0; i < count; i++) {
        const char *name = strstr(parameter[i].name, mixer);
        if (!name) continue;
        name += sizeof mixer - 1;
        const char *end = strstr(name, weight);
        printf("%s`%.*s` ", between, (int)(end ? end - name : (long)strlen(name)), name);
        print_shape(rule, parameter[i].rank, parameter[i].shape);
        between = ", ";
    }
}

static dr_status print_layer(dr_backend *backend, const dr_rule *rule) {
    dr_model_config config = dr_model_config_default(rule);
    dr_model *model;
    config.vocabulary = 2;
    config.hidden = D;
    config.layers = 1;
    config.heads = H;
    config.value_heads = HV;
    config.key_size = K;
    config.value_size = V;
    config.intermediate = 0;
    dr_status status = dr_model_create(backend, &config, 1, &model);
    if (status != DR_OK) return status;
    printf("family %s: ", dr_family_name(rule->family));
    print_parameters(rule, model);
    dr_model_destroy(model);
    return DR_OK;
}

/* ---- rules ---------------------------------------------------------------------------------------------------------- */

static void print_inputs(const dr_rule *rule) {
    const char *between = "";
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(rule, (dr_input)i)) {
            printf("%s%s", between, dr_input_name((dr_input)i));
            between = ", ";
        }
}

/* Shapes of one sequence. */
static void print_states(const dr_rule *rule) {
    const dr_recurrence recurrence = {
        .rule = rule, .layout = {.sequences = 1, .rows = 1}, .key_heads = H, .value_heads = HV, .key_size = K, .value_size = V};
    const char *between = "";
    for (int s = 0; s < DR_STATES; s++) {
        int64_t shape[DR_MAX_RANK];
        if (!dr_rule_carries(rule, (dr_state_kind)s)) continue;
        const int rank = dr_recurrence_state_shape(&recurrence, (dr_state_kind)s, shape);
        printf("%s%s ", between, dr_state_name((dr_state_kind)s));
        print_shape(rule, rank - 1, shape + 1);
        between = ", ";
    }
}

static dr_status print_rule(dr_backend *backend, const dr_rule *rule) {
    char equation[1024];
    dr_rule_equation(rule, equation, sizeof equation);
    printf("\n## %s\n\n%s. %s.\n\n    %s\n\n| | |\n|---|---|\n", rule->name, rule->title, rule->source, equation);
    printf("| decay | %s |\n", dr_decay_name(rule->decay));
    for (int i = 0; i < rule->rows; i++) {
        printf("| row %d | ", i + 1);
        print_row(&rule->row[i]);
        if (rule->repeat > 1) printf("; n = %d times", rule->repeat);
        printf(" |\n");
    }
    printf("| scan | %s |\n| query | ", dr_scan_name(rule->scan));
    print_query(rule);
    printf(" |\n| inputs | ");
    print_inputs(rule);
    printf(" |\n| states | ");
    print_states(rule);
    printf(" |\n| cost | ");
    print_cost(rule);
    printf(" |\n| layer | ");
    dr_status status = print_layer(backend, rule);
    printf(" |\n");
    return status;
}

static void print_introduction(void) {
    printf(
        "# Rules\n\n"
        "The %d named rules, each with a layer. This page is printed by `deltarule rules --markdown` and held against it "
        "by\n"
        "the tests; the symbols are those of [notation.md](notation.md), and [adding-a-rule.md](adding-a-rule.md) tells how to "
        "compose\nothers.\n\n"
        "*Cost*: floating-point operations of a token, token by token. Each value head spends 2 K V on every read of its "
        "memory, 2 K V on\nevery write, 2 K V on the query and K V on the decay. A Gram matrix costs 2 K^2 to write and K^2 "
        "to decay, an inverse one 4 K^2, a step\nof conjugate gradients 2 K^2, an exact solve K^3/3 + 2 K^2. What "
        "grows with K or V alone, such as the diagonal scan, is left out. The\nchunkwise engine does more operations, most "
        "of them in products of matrices ([chunkwise.md](chunkwise.md)).\n\n"
        "*States*: of one sequence. *Layer*: the parameters of the mixer in a model, as `model.safetensors` names them below "
        "`model.layers.N.attn`,\nwith the output gate, convolutions and norms of the rule's family; D is the width of the "
        "model, the kernel of a convolution is 4.\n\n",
        dr_rule_count());
}

dr_status cli_print_rules_markdown(void) {
    dr_backend *backend;
    dr_status status = dr_backend_open("reference", NULL, &backend);
    if (status != DR_OK) return status;
    print_introduction();
    print_overview();
    for (int i = 0; i < dr_rule_count() && status == DR_OK; i++) status = print_rule(backend, dr_rule_at(i));
    dr_backend_close(backend);
    return status;
}
