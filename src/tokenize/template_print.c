/* Values as text: Python's str() and repr(), and JSON as json.dumps writes it. */
#include "tokenize/template_tree.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Python's repr: the fewest digits that read back the same, with an exponent below 1e-4 and from 1e16 on. */
void dr_real_text(double real, char text[40]) {
    char digits[DR_NUMBER_SIZE], plain[DR_NUMBER_SIZE] = "";
    int count = 0, point = 0, exponent = 0;
    bool behind = false;
    if (isnan(real) || isinf(real)) {
        snprintf(text, 40, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    dr_number_write(real, digits);
    const char *sign = digits[0] == '-' ? "-" : "";
    for (const char *c = digits + (*sign != 0); *c; c++) {
        if (*c == 'e') {
            exponent = (int)strtol(c + 1, NULL, 10);
            break;
        }
        if (*c == '.')
            behind = true;
        else if (count > 0 || *c != '0')
            plain[count++] = *c, point += !behind;
        else if (behind)
            point--;
    }
    while (count > 1 && plain[count - 1] == '0') count--;
    plain[count] = '\0';
    point += exponent; /* the value is 0.plain times 10^point */
    if (count == 0) {
        sprintf(text, "%s0.0", sign);
    } else if (point > -4 && point <= 16) {
        text += sprintf(text, "%s%s", sign, point > 0 ? "" : "0.");
        for (int i = point; i < 0; i++) *text++ = '0';
        for (int i = 0; i < count || i < point; i++) {
            if (i == point && point > 0) *text++ = '.';
            *text++ = i < count ? plain[i] : '0';
        }
        if (point >= count) *text++ = '.', *text++ = '0';
        *text = '\0';
    } else {
        snprintf(text, 40, "%s%c%s%se%c%02d", sign, plain[0], count > 1 ? "." : "", plain + 1, point > 0 ? '+' : '-',
                 abs(point - 1) % 1000);
    }
}

static bool repr_text(dr_template *t, dr_span text, dr_builder *out) {
    bool has_single = memchr(text.bytes, '\'', text.count), has_double = memchr(text.bytes, '"', text.count);
    char quote = has_single && !has_double ? '"' : '\'', escaped[16];
    if (!dr_builder_append(t, out, &quote, 1)) return false;
    for (size_t at = 0; at < text.count;) {
        size_t begin = at;
        uint32_t c = dr_character_next(text, &at);
        const char *simple = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
        if (simple)
            snprintf(escaped, sizeof escaped, "%s", simple);
        else if (c == (uint32_t)quote)
            snprintf(escaped, sizeof escaped, "\\%c", quote);
        else if (!dr_character_printable(c))
            snprintf(escaped, sizeof escaped, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else
            snprintf(escaped, sizeof escaped, "%.*s", (int)(at - begin), text.bytes + begin);
        if (!dr_builder_string(t, out, escaped)) return false;
    }
    return dr_builder_append(t, out, &quote, 1);
}

static bool repr_items(dr_template *t, const dr_values *items, const dr_values *values, const char *open, const char *close,
                       dr_builder *out) {
    if (!dr_builder_string(t, out, open)) return false;
    for (size_t i = 0; i < items->count; i++) {
        if (i > 0 && !dr_builder_string(t, out, ", ")) return false;
        if (!dr_object_repr(t, items->at[i], out)) return false;
        if (values && (!dr_builder_string(t, out, ": ") || !dr_object_repr(t, values->at[i], out))) return false;
    }
    return dr_builder_string(t, out, close);
}

static bool repr_series(dr_template *t, const dr_object *value, dr_builder *out) {
    char open[48];
    const dr_values *items = &value->series.items;
    if (value->series.spent) {
        snprintf(open, sizeof open, "<%s object>", value->series.type);
        return dr_builder_string(t, out, open);
    }
    if (strcmp(value->series.type, "range") == 0) {
        int64_t from = items->count ? items->at[0]->integer : 0, to = from + (int64_t)items->count, step = 1;
        if (items->count > 1) step = items->at[1]->integer - from;
        if (step != 1) to = from + (int64_t)items->count * step;
        char range[100];
        snprintf(range, sizeof range,
                 step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", from, to,
                 step);
        return dr_builder_string(t, out, range);
    }
    snprintf(open, sizeof open, "%s([", value->series.type);
    return repr_items(t, items, NULL, open, "])", out);
}

static bool repr(dr_template *t, const dr_object *value, dr_builder *out) {
    char text[64];
    switch (value->kind) {
    case DR_OBJECT_UNDEFINED:
        return dr_builder_string(t, out, "Undefined");
    case DR_OBJECT_NONE:
        return dr_builder_string(t, out, "None");
    case DR_OBJECT_BOOLEAN:
        return dr_builder_string(t, out, value->boolean ? "True" : "False");
    case DR_OBJECT_INTEGER:
        snprintf(text, sizeof text, "%" PRId64, value->integer);
        return dr_builder_string(t, out, text);
    case DR_OBJECT_REAL:
        dr_real_text(value->real, text);
        return dr_builder_string(t, out, text);
    case DR_OBJECT_TEXT:
        return repr_text(t, value->text, out);
    case DR_OBJECT_LIST:
        return repr_items(t, &value->list, NULL, "[", "]", out);
    case DR_OBJECT_TUPLE:
        return repr_items(t, &value->list, NULL, "(", value->list.count == 1 ? ",)" : ")", out);
    case DR_OBJECT_SERIES:
        return repr_series(t, value, out);
    case DR_OBJECT_DICT:
        return repr_items(t, &value->dict.keys, &value->dict.values, "{", "}", out);
    case DR_OBJECT_NAMESPACE:
        return dr_builder_string(t, out, "<Namespace ") &&
               repr_items(t, &value->space->keys, &value->space->values, "{", "}", out) && dr_builder_string(t, out, ">");
    case DR_OBJECT_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", value->loop->index + 1, value->loop->items.count);
        return dr_builder_string(t, out, text);
    case DR_OBJECT_MACRO:
        return dr_builder_string(t, out, "<Macro ") && dr_object_repr(t, value->macro.node->value, out) &&
               dr_builder_string(t, out, ">");
    case DR_OBJECT_METHOD:
    case DR_OBJECT_FUNCTION:
        return dr_builder_string(t, out, "<function ") && dr_builder_string(t, out, value->method.name) &&
               dr_builder_string(t, out, ">");
    }
    return true;
}

bool dr_object_repr(dr_template *t, const dr_object *value, dr_builder *out) {
    if (!dr_template_enter(t) || !repr(t, value, out)) return false;
    t->depth--;
    return true;
}

bool dr_object_print(dr_template *t, const dr_object *value, dr_builder *out) {
    if (value->kind == DR_OBJECT_TEXT) return dr_builder_append(t, out, value->text.bytes, value->text.count);
    return value->kind == DR_OBJECT_UNDEFINED || dr_object_repr(t, value, out);
}

const dr_object *dr_object_as_text(dr_template *t, const dr_object *value) {
    dr_builder out = {0};
    if (value->kind == DR_OBJECT_TEXT) return value;
    return dr_object_print(t, value, &out) ? dr_builder_value(t, &out) : NULL;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------- */

static bool json_text(dr_template *t, dr_span text, bool ascii, dr_builder *out) {
    static const char from[] = "\"\\\n\r\t\f\b", *const to[] = {"\\\"", "\\\\", "\\n", "\\r", "\\t", "\\f", "\\b"};
    if (!dr_builder_append(t, out, "\"", 1)) return false;
    for (size_t at = 0; at < text.count;) {
        size_t begin = at;
        uint32_t c = dr_character_next(text, &at);
        const char *simple = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        char escaped[16];
        if (simple)
            snprintf(escaped, sizeof escaped, "%s", to[simple - from]);
        else if (ascii && c >= 0x10000)
            snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + ((c - 0x10000) & 0x3ff));
        else if (c < 0x20 || (ascii && c >= 0x7f))
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        else
            snprintf(escaped, sizeof escaped, "%.*s", (int)(at - begin), text.bytes + begin);
        if (!dr_builder_string(t, out, escaped)) return false;
    }
    return dr_builder_append(t, out, "\"", 1);
}

static bool json_line(dr_template *t, const dr_json_style *style, int level, dr_builder *out) {
    if (!style->indented) return true;
    if (!dr_builder_append(t, out, "\n", 1)) return false;
    for (int i = 0; i < level; i++)
        if (!dr_builder_append(t, out, style->indent.bytes, style->indent.count)) return false;
    return true;
}

static bool write_real(dr_template *t, double real, dr_builder *out) {
    char text[40];
    dr_real_text(real, text);
    return dr_builder_string(t, out, isnan(real) ? "NaN" : isinf(real) ? real > 0 ? "Infinity" : "-Infinity" : text);
}

static bool json_key(dr_template *t, const dr_object *key, const dr_json_style *style, dr_builder *out) {
    dr_builder text = {0};
    if (key->kind == DR_OBJECT_TEXT) return json_text(t, key->text, style->ascii, out);
    if (key->kind != DR_OBJECT_NONE && !dr_object_is_number(key))
        return dr_template_fail(t, "tojson: a %s cannot be a key in JSON", dr_object_type(key));
    return dr_object_json(t, key, style, 0, &text) && json_text(t, (dr_span){text.bytes, text.count}, style->ascii, out);
}

static bool json_dict(dr_template *t, const dr_dict *dict, const dr_json_style *style, int level, dr_builder *out) {
    size_t *places = dr_template_take(t, dict->keys.count * sizeof *places);
    if (!places) return false;
    for (size_t i = 0; i < dict->keys.count; i++) places[i] = i;
    if (style->sorted && !dr_values_sort(t, &dict->keys, false, places)) return false;
    if (!dr_builder_append(t, out, "{", 1)) return false;
    for (size_t i = 0; i < dict->keys.count; i++) {
        if (i > 0 && !dr_builder_append(t, out, style->comma.bytes, style->comma.count)) return false;
        if (!json_line(t, style, level + 1, out) || !json_key(t, dict->keys.at[places[i]], style, out)) return false;
        if (!dr_builder_append(t, out, style->colon.bytes, style->colon.count)) return false;
        if (!dr_object_json(t, dict->values.at[places[i]], style, level + 1, out)) return false;
    }
    return (dict->keys.count == 0 || json_line(t, style, level, out)) && dr_builder_append(t, out, "}", 1);
}

static bool json_list(dr_template *t, const dr_values *list, const dr_json_style *style, int level, dr_builder *out) {
    if (!dr_builder_append(t, out, "[", 1)) return false;
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0 && !dr_builder_append(t, out, style->comma.bytes, style->comma.count)) return false;
        if (!json_line(t, style, level + 1, out) || !dr_object_json(t, list->at[i], style, level + 1, out)) return false;
    }
    return (list->count == 0 || json_line(t, style, level, out)) && dr_builder_append(t, out, "]", 1);
}

bool dr_object_json(dr_template *t, const dr_object *value, const dr_json_style *style, int level, dr_builder *out) {
    bool done = false;
    if (!dr_template_enter(t)) return false;
    switch (value->kind) {
    case DR_OBJECT_NONE:
        done = dr_builder_string(t, out, "null");
        break;
    case DR_OBJECT_BOOLEAN:
        done = dr_builder_string(t, out, value->boolean ? "true" : "false");
        break;
    case DR_OBJECT_INTEGER:
        done = dr_object_repr(t, value, out);
        break;
    case DR_OBJECT_REAL:
        done = write_real(t, value->real, out);
        break;
    case DR_OBJECT_TEXT:
        done = json_text(t, value->text, style->ascii, out);
        break;
    case DR_OBJECT_LIST:
    case DR_OBJECT_TUPLE:
        done = json_list(t, &value->list, style, level, out);
        break;
    case DR_OBJECT_DICT:
        done = json_dict(t, &value->dict, style, level, out);
        break;
    case DR_OBJECT_UNDEFINED:
        dr_template_fail(t, "tojson: %s", value->text.bytes);
        break;
    case DR_OBJECT_SERIES:
    case DR_OBJECT_NAMESPACE:
    case DR_OBJECT_LOOP:
    case DR_OBJECT_MACRO:
    case DR_OBJECT_METHOD:
    case DR_OBJECT_FUNCTION:
        dr_template_fail(t, "tojson: a %s cannot be written as JSON", dr_object_type(value));
        break;
    }
    t->depth--;
    return done;
}
