/* Rules as JSON, read and written:
 *
 *     {"base": "kda", "decay": "none|constant|scalar|channel", "repeat": 1,
 *      "rows": [{"read": "key", "undecayed": false, "write": "key", "gain": "beta", "value": "gain_v"}],
 *      "scan": "none", "query": "query", "squash": {"x": 1.5, "eps": 1e-6, "interval": "symmetric", "function": "rational"},
 *      "normalizer": "none", "gain_eps": 0, "cg_iters": 30, "cg_start": "zero", "cg_eps": 0, "tied_scan": false,
 *      "family": "kda", "negative_eigenvalues": false, "lambda": {"kind": "projected", "value": 0.5, "bias": "constant"},
 *      "gate": "log", "lower_bound": -5}
 *
 * Every key may be left out. An object is read on top of the rule that its base names, or of the blank one; its rows replace
 * the base's. The last five keys are for layers: family is a member of dr_rule, the others go into dr_gates. Unknown keys and
 * options, and null, are refused with their place; then dr_rule_check judges the whole. */
#include "rules/json.h"

#include "base/error.h"
#include "base/json.h"
#include "rules/compare.h"
#include "rules/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 1 << 10, MOST_ITERATIONS = 1 << 16 };

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static dr_status check_keys(const json_t *object, const char *const *keys) {
    DR_TRY(dr_json_known(object, keys));
    for (int i = 0; keys[i]; i++)
        if (json_is_null(json_object_get(object, keys[i])))
            return dr_fail(DR_ERROR_FORMAT, "\"%s\" is null: give it a value, or leave it out", keys[i]);
    return DR_OK;
}

/* *option is the place of the value in names; it stays as it was if the object lacks the key. */
static dr_status read_option(const json_t *object, const char *key, const char *const *names, int *option) {
    const char *text = NULL;
    DR_TRY(dr_json_text(object, key, &text));
    if (!text) return DR_OK;
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *option = i;
            return DR_OK;
        }
    return dr_json_fail_unknown(key, text, names);
}

/* The same into an enumeration. */
#define READ_OPTION(object, key, names, type, place)                                                                           \
    do {                                                                                                                       \
        int option_ = (int)(place);                                                                                            \
        DR_TRY(read_option(object, key, names, &option_));                                                                     \
        (place) = (type)option_;                                                                                               \
    } while (0)

static dr_status read_row(const json_t *object, dr_row *row) {
    static const char *const keys[] = {"read", "undecayed", "write", "gain", "value", NULL};
    char found[64];
    *row = (dr_row){0};
    dr_json_describe(object, found, sizeof found);
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "it must be an object, { ... }, not %s", found);
    DR_TRY(check_keys(object, keys));
    READ_OPTION(object, "read", dr_read_names, dr_read, row->read);
    READ_OPTION(object, "write", dr_write_names, dr_write, row->write);
    READ_OPTION(object, "gain", dr_gain_names, dr_gain, row->gain);
    READ_OPTION(object, "value", dr_value_names, dr_value, row->value);
    return dr_json_boolean(object, "undecayed", &row->undecayed);
}

static dr_status read_rows(const json_t *object, dr_rule *rule) {
    const json_t *rows = json_object_get(object, "rows");
    if (!rows) return DR_OK;
    if (!json_is_array(rows) || json_array_size(rows) < 1 || json_array_size(rows) > DR_MAX_ROWS)
        return dr_fail(DR_ERROR_FORMAT, "\"rows\" must be an array of 1 to %d rows", DR_MAX_ROWS);
    rule->rows = (int)json_array_size(rows);
    for (int i = 0; i < rule->rows; i++) {
        dr_status status = read_row(json_array_get(rows, (size_t)i), &rule->row[i]);
        if (status != DR_OK) return dr_fail_in(status, "row %d", i + 1);
    }
    return DR_OK;
}

static dr_status read_squash(const json_t *object, dr_squash *squash) {
    static const char *const keys[] = {"x", "eps", "interval", "function", NULL};
    DR_TRY(check_keys(object, keys));
    DR_TRY(dr_json_real(object, "x", 1, 2, &squash->x));
    DR_TRY(dr_json_real(object, "eps", 1e-300, 1e300, &squash->eps));
    READ_OPTION(object, "interval", dr_squash_interval_names, dr_squash_interval, squash->interval);
    READ_OPTION(object, "function", dr_squash_function_names, dr_squash_function, squash->function);
    return DR_OK;
}

static dr_status read_lambda(const json_t *object, dr_gates *gates) {
    static const char *const keys[] = {"kind", "value", "bias", NULL}, *const biases[] = {"constant", "learned", NULL};
    int bias = gates->lambda_bias_learned;
    DR_TRY(check_keys(object, keys));
    READ_OPTION(object, "kind", dr_lambda_names, dr_lambda_kind, gates->lambda);
    DR_TRY(dr_json_real(object, "value", 0, 1, &gates->lambda_value));
    DR_TRY(read_option(object, "bias", biases, &bias));
    gates->lambda_bias_learned = bias;
    return DR_OK;
}

/* The object under a key, or NULL if there is none. */
static dr_status object_at(const json_t *object, const char *key, const json_t **value) {
    char found[64];
    *value = json_object_get(object, key);
    if (!*value || json_is_object(*value)) return DR_OK;
    dr_json_describe(*value, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be an object, { ... }, not %s", key, found);
}

dr_status dr_gates_from_json(const json_t *object, dr_gates *gates) {
    const json_t *lambda;
    DR_TRY(dr_json_boolean(object, "negative_eigenvalues", &gates->negative_eigenvalues));
    READ_OPTION(object, "gate", dr_gate_names, dr_gate_form, gates->gate);
    DR_TRY(dr_json_real(object, "lower_bound", -1000, -1e-9, &gates->lower_bound));
    DR_TRY(object_at(object, "lambda", &lambda));
    dr_status status = lambda ? read_lambda(lambda, gates) : DR_OK;
    return status == DR_OK ? DR_OK : dr_fail_in(status, "lambda");
}

/* The axes and the settings of their options, on top of what the rule has. */
static dr_status read_axes(const json_t *object, dr_rule *rule) {
    const json_t *squash;
    int64_t repeat = rule->repeat, iterations = rule->cg_iters;
    READ_OPTION(object, "decay", dr_decay_names, dr_decay, rule->decay);
    DR_TRY(read_rows(object, rule));
    READ_OPTION(object, "scan", dr_scan_names, dr_scan, rule->scan);
    READ_OPTION(object, "query", dr_query_names, dr_query, rule->query);
    DR_TRY(object_at(object, "squash", &squash));
    dr_status status = squash ? read_squash(squash, &rule->squash) : DR_OK;
    if (status != DR_OK) return dr_fail_in(status, "squash");
    READ_OPTION(object, "normalizer", dr_normalizer_names, dr_normalizer, rule->normalizer);
    READ_OPTION(object, "cg_start", dr_cg_start_names, dr_cg_start, rule->cg_start);
    DR_TRY(dr_json_integer(object, "repeat", 1, MOST_STEPS, &repeat));
    DR_TRY(dr_json_integer(object, "cg_iters", 1, MOST_ITERATIONS, &iterations));
    DR_TRY(dr_json_real(object, "gain_eps", 0, 1e300, &rule->gain_eps));
    DR_TRY(dr_json_real(object, "cg_eps", 0, 1e300, &rule->cg_eps));
    DR_TRY(dr_json_boolean(object, "tied_scan", &rule->tied_scan));
    READ_OPTION(object, "family", dr_family_names, dr_family, rule->family);
    rule->repeat = (int)repeat;
    rule->cg_iters = (int)iterations;
    return DR_OK;
}

static dr_status read_object(const json_t *object, dr_rule *rule, dr_gates *gates) {
    static const char *const keys[] = {
        "base",       "decay",    "repeat",      "rows",     "scan",   "query",     "squash",
        "normalizer", "gain_eps", "cg_iters",    "cg_start", "cg_eps", "tied_scan", "negative_eigenvalues",
        "lambda",     "gate",     "lower_bound", "family",   NULL};
    const char *base = NULL;
    const dr_rule *named = NULL;
    DR_TRY(check_keys(object, keys));
    DR_TRY(dr_json_text(object, "base", &base));
    if (base) {
        named = dr_rule_find(base);
        if (!named) return DR_ERROR_FORMAT; /* dr_rule_find said which are near */
        *rule = *named;
    }
    DR_TRY(read_axes(object, rule));
    if (named && !dr_rule_same_axes(named, rule)) rule->name = rule->title = rule->source = NULL;
    return dr_gates_from_json(object, gates);
}

dr_status dr_rule_from_json(const json_t *value, dr_rule *rule, dr_gates *gates) {
    dr_rule read = dr_rule_blank();
    dr_gates said = dr_gates_default();
    if (json_is_string(value)) {
        const dr_rule *named = dr_rule_find(json_string_value(value));
        if (!named) return DR_ERROR_FORMAT;
        read = *named;
    } else if (json_is_object(value)) {
        DR_TRY(read_object(value, &read, &said));
    } else {
        return dr_fail(DR_ERROR_FORMAT, "a rule must be the name of one, or an object of its axes");
    }
    DR_TRY(dr_rule_check(&read));
    *rule = read;
    if (gates) *gates = said;
    return DR_OK;
}

dr_status dr_rule_read_text(const char *text, dr_rule *rule, dr_gates *gates) {
    DR_NEED(text);
    DR_NEED(rule);
    json_t *object = NULL;
    DR_TRY(dr_json_parse(text, strlen(text), "the rule", &object));
    dr_status status = dr_rule_from_json(object, rule, gates);
    json_decref(object);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static json_t *rows_to_json(const dr_rule *rule) {
    json_t *rows = json_array();
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        json_array_append_new(rows, json_pack("{s:s, s:b, s:s, s:s, s:s}", "read", dr_read_name(row->read), "undecayed",
                                              row->undecayed, "write", dr_write_name(row->write), "gain",
                                              dr_gain_name(row->gain), "value", dr_value_name(row->value)));
    }
    return rows;
}

static json_t *squash_to_json(const dr_squash *squash) {
    return json_pack("{s:f, s:f, s:s, s:s}", "x", squash->x, "eps", squash->eps, "interval",
                     dr_squash_interval_name(squash->interval), "function", dr_squash_function_name(squash->function));
}

int dr_gates_to_json(const dr_gates *gates, json_t *object) {
    dr_gates usual = dr_gates_default();
    int failed = 0;
    if (gates->negative_eigenvalues) failed |= json_object_set_new(object, "negative_eigenvalues", json_true());
    if (gates->gate != usual.gate) failed |= json_object_set_new(object, "gate", json_string(dr_gate_form_name(gates->gate)));
    if (gates->lower_bound != usual.lower_bound)
        failed |= json_object_set_new(object, "lower_bound", json_real(gates->lower_bound));
    if (gates->lambda != usual.lambda || gates->lambda_value != usual.lambda_value || gates->lambda_bias_learned)
        failed |=
            json_object_set_new(object, "lambda",
                                json_pack("{s:s, s:f, s:s}", "kind", dr_lambda_name(gates->lambda), "value",
                                          gates->lambda_value, "bias", gates->lambda_bias_learned ? "learned" : "constant"));
    return failed;
}

json_t *dr_rule_to_json(const dr_rule *rule, const dr_gates *gates) {
    const dr_rule *named = rule->name ? dr_rule_find(rule->name) : NULL;
    json_t *object = NULL;
    if (named && dr_rule_equal(named, rule))
        object = json_pack("{s:s}", "base", named->name);
    else
        object = json_pack("{s:s*, s:s, s:i, s:o, s:s, s:s, s:o, s:s, s:f, s:i, s:s, s:f, s:b}", "base",
                           named && dr_rule_same_axes(named, rule) ? rule->name : NULL, "decay", dr_decay_name(rule->decay),
                           "repeat", rule->repeat, "rows", rows_to_json(rule), "scan", dr_scan_name(rule->scan), "query",
                           dr_query_name(rule->query), "squash", squash_to_json(&rule->squash), "normalizer",
                           dr_normalizer_name(rule->normalizer), "gain_eps", rule->gain_eps, "cg_iters", rule->cg_iters,
                           "cg_start", dr_cg_start_name(rule->cg_start), "cg_eps", rule->cg_eps, "tied_scan", rule->tied_scan);
    const dr_family without = named && dr_rule_same_axes(named, rule) ? named->family : DR_FAMILY_AUTO; /* the key */
    int failed = !object;
    if (object && rule->family != without)
        failed = json_object_set_new(object, "family", json_string(dr_family_name(rule->family)));
    if (!failed && (!gates || dr_gates_to_json(gates, object) == 0)) return object;
    json_decref(object);
    return NULL;
}

int dr_rule_write_text(const dr_rule *rule, const dr_gates *gates, char *text, size_t size) {
    if (!text && size > 0) return -1;
    json_t *object = dr_rule_check(rule) == DR_OK ? dr_rule_to_json(rule, gates) : NULL;
    char *whole = object ? dr_json_format(object, JSON_COMPACT) : NULL;
    int length = whole ? snprintf(text, size, "%s", whole) : -1;
    free(whole);
    json_decref(object);
    return length;
}
