/* Rules as JSON. A row of the table is its name; any other rule is an object of axes, read on top of the rule that its "base"
 * names, or of the blank one:
 *
 *     {"base": "kda", "decay": "channel", "repeat": 1, "rows": [{"read": "key", "undecayed": false, "write": "key",
 *      "gain": "beta", "value": "gain_v"}], "scan": "none", "query": "query", "squash": {"x": 1.5, "eps": 1e-6,
 *      "interval": "symmetric", "function": "rational"}, "normalizer": "none", "gain_eps": 0, "tied_scan": false}
 */
#include "base/error.h"
#include "formats/json.h"
#include "nn/config.h"
#include "nn/family.h"
#include <stdio.h>
#include <string.h>

/* ---- names of options ----------------------------------------------------------------------------------------------- */

static const char *const interval_names[] = {"symmetric", "amplify", "dampen"};
static const char *const function_names[] = {"rational", "tanh"};
static const char *const normalizer_names[] = {"none", "inverse", "implicit", "discounted"};

static const char *decay_name(int option) {
    return dr_decay_name((dr_decay)option);
}
static const char *read_name(int option) {
    return dr_read_name((dr_read)option);
}
static const char *write_name(int option) {
    return dr_write_name((dr_write)option);
}
static const char *gain_name(int option) {
    return dr_gain_name((dr_gain)option);
}
static const char *value_name(int option) {
    return dr_value_name((dr_value)option);
}
static const char *scan_name(int option) {
    return dr_scan_name((dr_scan)option);
}
static const char *query_name(int option) {
    return dr_query_name((dr_query)option);
}
static const char *interval_name(int option) {
    return interval_names[option];
}
static const char *function_name(int option) {
    return function_names[option];
}
static const char *normalizer_name(int option) {
    return normalizer_names[option];
}

/* An axis: its key, its options' names in the order of the enum. */
typedef struct {
    const char *key;
    const char *(*name)(int option);
    int options;
} axis;

static const axis decay_axis = {"decay", decay_name, DR_DECAY_CHANNEL + 1};
static const axis read_axis = {"read", read_name, DR_READ_FREE + 1};
static const axis write_axis = {"write", write_name, DR_WRITE_FREE + 1};
static const axis gain_axis = {"gain", gain_name, DR_GAIN_EXPONENTIAL + 1};
static const axis value_axis = {"value", value_name, DR_VALUE_GATED + 1};
static const axis scan_axis = {"scan", scan_name, DR_SCAN_DIAGONAL + 1};
static const axis query_axis = {"query", query_name, DR_QUERY_RIDGE + 1};
static const axis interval_axis = {"interval", interval_name, DR_SQUASH_DAMPEN + 1};
static const axis function_axis = {"function", function_name, DR_SQUASH_TANH + 1};
static const axis normalizer_axis = {"normalizer", normalizer_name, DR_NORMALIZER_DISCOUNTED + 1};

/* ---- reading -------------------------------------------------------------------------------------------------------- */

/* The option of an axis that object names; fallback if it names none. */
static dr_status read_option(const json_t *object, const axis *of, int fallback, int *option) {
    const char *text = NULL;
    char known[160];
    size_t used = 0;
    *option = fallback;
    DR_TRY(dr_json_text(object, of->key, &text));
    if (!text) return DR_OK;
    for (int i = 0; i < of->options; i++) {
        if (strcmp(of->name(i), text) == 0) {
            *option = i;
            return DR_OK;
        }
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", of->name(i));
    }
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" is \"%.40s\"; it must be one of %s", of->key, text, known);
}

static dr_status read_row(const json_t *object, dr_row *row) {
    static const char *const keys[] = {"read", "undecayed", "write", "gain", "value", NULL};
    int read, write, gain, value;
    *row = (dr_row){0};
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "\"rows\" must hold objects with read, write, gain and value");
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(read_option(object, &read_axis, DR_READ_NONE, &read));
    DR_TRY(read_option(object, &write_axis, DR_WRITE_KEY, &write));
    DR_TRY(read_option(object, &gain_axis, DR_GAIN_ONE, &gain));
    DR_TRY(read_option(object, &value_axis, DR_VALUE_NONE, &value));
    DR_TRY(dr_json_boolean(object, "undecayed", &row->undecayed));
    row->read = (dr_read)read;
    row->write = (dr_write)write;
    row->gain = (dr_gain)gain;
    row->value = (dr_value)value;
    return DR_OK;
}

static dr_status read_rows(const json_t *object, dr_rule *rule) {
    const json_t *rows = json_object_get(object, "rows");
    if (!rows || json_is_null(rows)) return DR_OK;
    if (!json_is_array(rows) || json_array_size(rows) < 1 || json_array_size(rows) > DR_MAX_ROWS)
        return dr_fail(DR_ERROR_FORMAT, "\"rows\" must be an array of 1 to %d rows", DR_MAX_ROWS);
    rule->rows = (int)json_array_size(rows);
    for (int i = 0; i < rule->rows; i++) DR_TRY(read_row(json_array_get(rows, (size_t)i), &rule->row[i]));
    return DR_OK;
}

static dr_status read_squash(const json_t *object, dr_squash *squash) {
    static const char *const keys[] = {"x", "eps", "interval", "function", NULL};
    const json_t *value = json_object_get(object, "squash");
    int interval, function;
    if (!value || json_is_null(value)) return DR_OK;
    if (!json_is_object(value)) return dr_fail(DR_ERROR_FORMAT, "\"squash\" must be an object with x, eps, interval, function");
    DR_TRY(dr_json_known(value, keys));
    DR_TRY(dr_json_real(value, "x", 1, 2, &squash->x));
    DR_TRY(dr_json_real(value, "eps", 1e-300, 1e300, &squash->eps));
    DR_TRY(read_option(value, &interval_axis, (int)squash->interval, &interval));
    DR_TRY(read_option(value, &function_axis, (int)squash->function, &function));
    squash->interval = (dr_squash_interval)interval;
    squash->function = (dr_squash_function)function;
    return DR_OK;
}

static dr_status read_axes(const json_t *object, dr_rule *rule) {
    static const char *const keys[] = {"base",   "decay",      "repeat",   "rows",      "scan", "query",
                                       "squash", "normalizer", "gain_eps", "tied_scan", NULL};
    const char *base = NULL;
    int decay, scan, query, normalizer;
    int64_t repeat;
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_text(object, "base", &base));
    *rule = dr_rule_blank();
    if (base) {
        const dr_rule *named = dr_rule_find(base);
        if (!named) return DR_ERROR_FORMAT; /* dr_rule_find said which are near */
        *rule = *named;
    }
    repeat = rule->repeat;
    DR_TRY(read_option(object, &decay_axis, (int)rule->decay, &decay));
    DR_TRY(read_option(object, &scan_axis, (int)rule->scan, &scan));
    DR_TRY(read_option(object, &query_axis, (int)rule->query, &query));
    DR_TRY(read_option(object, &normalizer_axis, (int)rule->normalizer, &normalizer));
    DR_TRY(dr_json_integer(object, "repeat", 1, 1 << 10, &repeat));
    DR_TRY(dr_json_real(object, "gain_eps", 0, 1e300, &rule->gain_eps));
    DR_TRY(dr_json_boolean(object, "tied_scan", &rule->tied_scan));
    DR_TRY(read_squash(object, &rule->squash));
    DR_TRY(read_rows(object, rule));
    rule->decay = (dr_decay)decay;
    rule->scan = (dr_scan)scan;
    rule->query = (dr_query)query;
    rule->normalizer = (dr_normalizer)normalizer;
    rule->repeat = (int)repeat;
    return DR_OK;
}

dr_status dr_rule_read(const json_t *value, dr_rule *rule) {
    if (json_is_string(value)) {
        const dr_rule *named = dr_rule_find(json_string_value(value));
        if (!named) return DR_ERROR_FORMAT;
        *rule = *named;
        return DR_OK;
    }
    if (!json_is_object(value)) return dr_fail(DR_ERROR_FORMAT, "\"rule\" must be the name of a rule or an object of its axes");
    return read_axes(value, rule);
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static bool same_rule(const dr_rule *one, const dr_rule *other) {
    return dr_rule_same_axes(one, other) && one->squash.x == other->squash.x && one->squash.eps == other->squash.eps &&
           one->squash.interval == other->squash.interval && one->squash.function == other->squash.function &&
           one->normalizer == other->normalizer && one->gain_eps == other->gain_eps && one->tied_scan == other->tied_scan;
}

json_t *dr_rule_write(const dr_rule *rule) {
    const dr_rule *named = rule->name ? dr_rule_find(rule->name) : NULL;
    if (named && same_rule(named, rule)) return json_string(rule->name);
    json_t *rows = json_array();
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        json_array_append_new(rows, json_pack("{s:s, s:b, s:s, s:s, s:s}", "read", dr_read_name(row->read), "undecayed",
                                              row->undecayed, "write", dr_write_name(row->write), "gain",
                                              dr_gain_name(row->gain), "value", dr_value_name(row->value)));
    }
    json_t *squash = json_pack("{s:f, s:f, s:s, s:s}", "x", rule->squash.x, "eps", rule->squash.eps, "interval",
                               interval_names[rule->squash.interval], "function", function_names[rule->squash.function]);
    return json_pack("{s:s*, s:s, s:i, s:o, s:s, s:s, s:o, s:s, s:f, s:b}", "base", named ? rule->name : NULL, "decay",
                     dr_decay_name(rule->decay), "repeat", rule->repeat, "rows", rows, "scan", dr_scan_name(rule->scan),
                     "query", dr_query_name(rule->query), "squash", squash, "normalizer", normalizer_names[rule->normalizer],
                     "gain_eps", rule->gain_eps, "tied_scan", rule->tied_scan);
}
