/* Facts about a rule that follow from its axes: names of the options, near names in the table, the inputs and states it uses.
 * Which inputs an option needs is said once, in dr_rule_uses; everything else (shapes, layers, verification) asks there. */
#include "base/error.h"
#include "base/near.h"
#include "rules/compare.h"
#include "rules/names.h"
#include <deltarule/rule.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static const char *const input_names[DR_INPUTS] = {
    [DR_INPUT_QUERY] = "query",
    [DR_INPUT_KEY] = "key",
    [DR_INPUT_VALUE] = "value",
    [DR_INPUT_LOG_DECAY] = "log_decay",
    [DR_INPUT_BETA] = "beta",
    [DR_INPUT_ERASE_KEY] = "erase_key",
    [DR_INPUT_ERASE_GAIN] = "erase_gain",
    [DR_INPUT_LAMBDA] = "lambda",
    [DR_INPUT_FEEDBACK_KEY] = "feedback_key",
    [DR_INPUT_FREE_READ] = "free_read",
    [DR_INPUT_FREE_WRITE] = "free_write",
    [DR_INPUT_RATE] = "rate",
    [DR_INPUT_ERASE_GATE] = "erase_gate",
    [DR_INPUT_WRITE_GATE] = "write_gate",
    [DR_INPUT_CORRECTION] = "correction",
    [DR_INPUT_SCAN_LOG_DECAY] = "scan_log_decay",
    [DR_INPUT_SCAN_GAIN] = "scan_gain",
    [DR_INPUT_SCAN_CENTRE] = "scan_centre",
    [DR_INPUT_RIDGE] = "ridge",
};
static const char *const state_names[DR_STATES] = {
    [DR_STATE_S] = "S", [DR_STATE_A] = "A", [DR_STATE_K] = "K", [DR_STATE_P] = "P"};
const char *const dr_decay_names[] = {"none", "constant", "scalar", "channel", NULL};
const char *const dr_read_names[] = {"none", "key", "gated_key", "key_plus_query", "erase_key", "feedback", "free", NULL};
const char *const dr_write_names[] = {"key", "preconditioned", "sherman_morrison", "erase_key", "rate_read", "free", "exact",
                                      NULL};
const char *const dr_gain_names[] = {"one", "beta", "gamma", "implicit", "normalized", "exponential", NULL};
const char *const dr_value_names[] = {"none", "v", "gain_v", "gated_v", NULL};
const char *const dr_scan_names[] = {"none", "diagonal", "gram", "inverse_gram", NULL};
const char *const dr_query_names[] = {"query", "corrected", "ridge", "exact", "conjugate_gradient", NULL};

const char *const dr_cg_start_names[] = {"zero", "jacobi", NULL};
const char *const dr_squash_interval_names[] = {"symmetric", "amplify", "dampen", NULL};
const char *const dr_squash_function_names[] = {"rational", "tanh", NULL};
const char *const dr_normalizer_names[] = {"none", "inverse", "implicit", "discounted", NULL};
const char *const dr_family_names[] = {
    "auto",      "composition", "linear_attention", "retnet", "mamba2", "gla",  "delta_net", "longhorn",
    "gdn",       "comba",       "qdelta",           "pgdn",   "kda",    "pkda", "eda",       "mesanet",
    "pla_exact", NULL};
_Static_assert(sizeof dr_family_names / sizeof *dr_family_names == DR_FAMILIES + 1, "every family has a name");
const char *const dr_gate_names[] = {"auto", "log", "kda_bounded", "eda_bounded", NULL};
const char *const dr_lambda_names[] = {"projected", "fixed", NULL};

/* An option outside its axis has the name "unknown"; dr_rule_check refuses it. */
static const char *name_of(const char *const *names, size_t count, size_t option) {
    return option < count && names[option] ? names[option] : "unknown";
}
#define NAME_OF(names, option) name_of(names, sizeof(names) / sizeof(names)[0], (size_t)(option))

/* clang-format off */
const char *dr_input_name(dr_input input) { return NAME_OF(input_names, input); }
const char *dr_state_name(dr_state_kind state) { return NAME_OF(state_names, state); }
const char *dr_decay_name(dr_decay decay) { return NAME_OF(dr_decay_names, decay); }
const char *dr_read_name(dr_read read) { return NAME_OF(dr_read_names, read); }
const char *dr_write_name(dr_write write) { return NAME_OF(dr_write_names, write); }
const char *dr_gain_name(dr_gain gain) { return NAME_OF(dr_gain_names, gain); }
const char *dr_value_name(dr_value value) { return NAME_OF(dr_value_names, value); }
const char *dr_scan_name(dr_scan scan) { return NAME_OF(dr_scan_names, scan); }
const char *dr_query_name(dr_query query) { return NAME_OF(dr_query_names, query); }
const char *dr_cg_start_name(dr_cg_start start) { return NAME_OF(dr_cg_start_names, start); }
const char *dr_squash_interval_name(dr_squash_interval interval) { return NAME_OF(dr_squash_interval_names, interval); }
const char *dr_squash_function_name(dr_squash_function function) { return NAME_OF(dr_squash_function_names, function); }
const char *dr_normalizer_name(dr_normalizer normalizer) { return NAME_OF(dr_normalizer_names, normalizer); }
const char *dr_family_name(dr_family family) { return NAME_OF(dr_family_names, family); }
const char *dr_gate_form_name(dr_gate_form form) { return NAME_OF(dr_gate_names, form); }
const char *dr_lambda_name(dr_lambda_kind kind) { return NAME_OF(dr_lambda_names, kind); }
/* clang-format on */

/* ---- finding -------------------------------------------------------------------------------------------------------- */

/* Appends a name to a list in text, with the separator if it is not the first. */
static void append_name(char *text, size_t size, const char *separator, const char *name) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? separator : "", name);
}

/* Says which names are nearest, at most two letters away, or all names if none is. */
static void fail_unknown(const char *name) {
    char near[512] = "", all[2048] = "";
    int least = 3;
    for (int i = 0; i < dr_rule_count(); i++) {
        const char *candidate = dr_rule_at(i)->name;
        int distance = dr_edit_distance(name, candidate);
        append_name(all, sizeof all, ", ", candidate);
        if (distance < least) near[0] = '\0', least = distance;
        if (distance == least && distance < 3) append_name(near, sizeof near, " or ", candidate);
    }
    if (near[0])
        dr_fail(DR_ERROR_ARGUMENT, "no rule is named \"%s\"; did you mean %s?", name, near);
    else
        dr_fail(DR_ERROR_ARGUMENT, "no rule is named \"%.63s\"; the rules are %s", name, all);
}

const dr_rule *dr_rule_find(const char *name) {
    if (!name) {
        dr_fail(DR_ERROR_ARGUMENT, "name is missing: it must not be NULL");
        return NULL;
    }
    for (int i = 0; i < dr_rule_count(); i++)
        if (strcmp(dr_rule_at(i)->name, name) == 0) return dr_rule_at(i);
    fail_unknown(name);
    return NULL;
}

/* ---- what a rule uses ----------------------------------------------------------------------------------------------- */

int dr_rule_steps(const dr_rule *rule) {
    if (!rule) return 0;
    return rule->repeat > 1 ? rule->repeat : rule->rows;
}

bool dr_rule_carries(const dr_rule *rule, dr_state_kind state) {
    if (!rule) return false;
    switch (state) {
    case DR_STATE_S:
        return true;
    case DR_STATE_A:
        return rule->scan == DR_SCAN_DIAGONAL;
    case DR_STATE_K:
        return rule->scan == DR_SCAN_GRAM;
    case DR_STATE_P:
        return rule->scan == DR_SCAN_INVERSE_GRAM;
    case DR_STATES:
        break;
    }
    return false;
}

static bool row_uses(const dr_row *row, dr_input input) {
    switch (input) {
    case DR_INPUT_BETA:
        return row->gain == DR_GAIN_BETA || row->gain == DR_GAIN_IMPLICIT || row->gain == DR_GAIN_EXPONENTIAL;
    case DR_INPUT_ERASE_KEY:
        return row->read == DR_READ_ERASE_KEY || row->write == DR_WRITE_ERASE_KEY;
    case DR_INPUT_ERASE_GAIN:
        return row->gain == DR_GAIN_GAMMA;
    case DR_INPUT_LAMBDA:
        return row->read == DR_READ_KEY_PLUS_QUERY;
    case DR_INPUT_FEEDBACK_KEY:
        return row->read == DR_READ_FEEDBACK;
    case DR_INPUT_FREE_READ:
        return row->read == DR_READ_FREE;
    case DR_INPUT_FREE_WRITE:
        return row->write == DR_WRITE_FREE;
    case DR_INPUT_RATE:
        return row->write == DR_WRITE_RATE_READ;
    case DR_INPUT_ERASE_GATE:
        return row->read == DR_READ_GATED_KEY;
    case DR_INPUT_WRITE_GATE:
        return row->value == DR_VALUE_GATED;
    case DR_INPUT_SCAN_CENTRE:
        return row->write == DR_WRITE_PRECONDITIONED;
    case DR_INPUT_RIDGE:
        return row->write == DR_WRITE_SHERMAN_MORRISON || row->write == DR_WRITE_EXACT;
    default:
        return false;
    }
}

bool dr_rule_uses(const dr_rule *rule, dr_input input) {
    if (!rule) return false;
    switch (input) {
    case DR_INPUT_QUERY:
    case DR_INPUT_KEY:
    case DR_INPUT_VALUE:
        return true;
    case DR_INPUT_LOG_DECAY:
        return rule->decay != DR_DECAY_NONE;
    case DR_INPUT_SCAN_LOG_DECAY:
    case DR_INPUT_SCAN_GAIN:
        return rule->scan == DR_SCAN_DIAGONAL && !rule->tied_scan;
    case DR_INPUT_CORRECTION:
        return rule->query == DR_QUERY_CORRECTED;
    case DR_INPUT_RIDGE:
        if (rule->query != DR_QUERY_PLAIN && rule->query != DR_QUERY_CORRECTED) return true;
        break;
    default:
        break;
    }
    for (int i = 0; i < rule->rows; i++)
        if (row_uses(&rule->row[i], input)) return true;
    return false;
}

/* ---- gates of layers ------------------------------------------------------------------------------------------------ */

dr_gates dr_gates_default(void) {
    return (dr_gates){.gate = DR_GATE_AUTO, .lower_bound = -5, .lambda = DR_LAMBDA_PROJECTED, .lambda_value = 0.5};
}
