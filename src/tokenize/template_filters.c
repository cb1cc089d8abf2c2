/* Filters of single values and texts. Those of lists are in template_lists.c. */
#include "tokenize/template_tree.h"

#include "base/number.h"

#include <math.h>
#include <string.h>

static const dr_object *text_of(dr_template *t, const dr_object *value) {
    return dr_object_as_text(t, value);
}

/* A whole number among the arguments of a filter. */
static bool whole_of(dr_template *t, const dr_call_arguments *call, const dr_object *value, int64_t *number) {
    if (!value || dr_object_as_integer(value, number)) return true;
    return dr_template_fail(t, "%s needs a whole number, not a %s", call->name, dr_object_type(value));
}

static const dr_object *changed(dr_template *t, const dr_object *a, const dr_call_arguments *call, dr_text_case change) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !(a = text_of(t, a))) return NULL;
    return dr_text_change(t, a->text, change, &out) ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *upper(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return changed(t, a, call, DR_TEXT_UPPER);
}

static const dr_object *lower(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return changed(t, a, call, DR_TEXT_LOWER);
}

static const dr_object *capitalize(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !(a = text_of(t, a))) return NULL;
    return dr_text_capitalize(t, a->text, &out) ? dr_builder_value(t, &out) : NULL;
}

/* Words begin behind blanks, hyphens and opening brackets. */
static bool between_words(uint32_t c) {
    return dr_character_blank(c) || (c && c < 0x80 && strchr("-({[<", (int)c));
}

/* The end of the run of characters from `begin` on that are between words, or are not. */
static size_t run_end(dr_span text, size_t begin, bool between) {
    for (size_t at = begin; at < text.count; begin = at)
        if (between_words(dr_character_next(text, &at)) != between) break;
    return begin;
}

static const dr_object *title(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !(a = text_of(t, a))) return NULL;
    for (size_t at = 0; at < a->text.count;) {
        size_t begin = run_end(a->text, at, true), end = run_end(a->text, begin, false), first = 0;
        dr_span word = {a->text.bytes + begin, end - begin};
        if (!dr_builder_append(t, &out, a->text.bytes + at, begin - at)) return NULL;
        if (word.count > 0) dr_character_next(word, &first);
        if (!dr_text_change(t, (dr_span){word.bytes, first}, DR_TEXT_UPPER, &out)) return NULL;
        if (!dr_text_change(t, (dr_span){word.bytes + first, word.count - first}, DR_TEXT_LOWER, &out)) return NULL;
        at = end;
    }
    return dr_builder_value(t, &out);
}

static const dr_object *trim(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[1];
    if (!dr_call_take(t, call, "chars", taken) || !(a = text_of(t, a))) return NULL;
    bool given = taken[0] && taken[0]->kind != DR_OBJECT_NONE;
    if (given && taken[0]->kind != DR_OBJECT_TEXT)
        return dr_template_fail(t, "trim needs a str, not a %s", dr_object_type(taken[0]));
    if (!dr_template_charge(t, a->text.count * (given ? taken[0]->text.count + 1 : 1) / 16)) return NULL;
    dr_span span = dr_text_strip(a->text, given ? &taken[0]->text : NULL, 3);
    return dr_object_text(t, span.bytes, span.count);
}

static const dr_object *replace(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[3];
    int64_t most = -1;
    dr_builder out = {0};
    if (!dr_call_take(t, call, "old new count", taken)) return NULL;
    if (!taken[0] || !taken[1]) return dr_template_fail(t, "replace needs two strings");
    if (taken[2] && taken[2]->kind == DR_OBJECT_NONE) taken[2] = NULL;
    if (!whole_of(t, call, taken[2], &most)) return NULL;
    const dr_object *from = text_of(t, taken[0]), *to = text_of(t, taken[1]);
    if (!from || !to || !(a = text_of(t, a))) return NULL;
    return dr_text_replace(t, a->text, from->text, to->text, most, &out) ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *string(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? text_of(t, a) : NULL;
}

static const dr_object *marked(dr_template *t, const dr_object *text) {
    dr_object *value = text ? (dr_object *)dr_object_text(t, text->text.bytes, text->text.count) : NULL;
    if (value) value->safe = true;
    return value;
}

static const dr_object *safe(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? marked(t, text_of(t, a)) : NULL;
}

static const dr_object *escape(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !(a = text_of(t, a)) || a->safe) return a;
    return dr_text_escape(t, a->text, &out) ? marked(t, dr_builder_value(t, &out)) : NULL;
}

static const dr_object *indent(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[3];
    dr_builder out = {0}, margin = {0}, ended = {0};
    int64_t width = 4;
    if (!dr_call_take(t, call, "width first blank", taken)) return NULL;
    if (a->kind != DR_OBJECT_TEXT) return dr_template_fail(t, "indent needs a str, not a %s", dr_object_type(a));
    bool by_text = taken[0] && taken[0]->kind == DR_OBJECT_TEXT;
    if (!by_text && !whole_of(t, call, taken[0], &width)) return NULL;
    if (by_text && !dr_builder_append(t, &margin, taken[0]->text.bytes, taken[0]->text.count)) return NULL;
    for (int64_t i = 0; !by_text && i < width; i++)
        if (!dr_builder_append(t, &margin, " ", 1)) return NULL;
    bool first = taken[1] && dr_object_truth(taken[1]), blank = taken[2] && dr_object_truth(taken[2]);
    if (!dr_builder_append(t, &ended, a->text.bytes, a->text.count) || !dr_builder_append(t, &ended, "\n", 1)) return NULL;
    const dr_object *lines = dr_text_lines(t, (dr_span){ended.bytes, ended.count}, false);
    for (size_t i = 0; lines && i < lines->list.count; i++) {
        dr_span line = lines->list.at[i]->text;
        if (i > 0 && !dr_builder_append(t, &out, "\n", 1)) return NULL;
        if ((i == 0 ? first : blank || line.count > 0) && !dr_builder_append(t, &out, margin.bytes, margin.count)) return NULL;
        if (!dr_builder_append(t, &out, line.bytes, line.count)) return NULL;
    }
    return lines ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *center(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *name = dr_object_string(t, "center"), *taken[1];
    const char *found;
    int64_t width = 80;
    dr_call_arguments made = {.name = "center"};
    if (!name || !(a = text_of(t, a)) || !dr_call_take(t, call, "width", taken) || !whole_of(t, call, taken[0], &width))
        return NULL;
    if (!dr_values_append(t, &made.arguments, dr_object_integer(t, width))) return NULL;
    return dr_method_find(a, name, &found)(t, a, &made);
}

static const dr_object *shorten(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[4];
    int64_t length = 255, leeway = 5, count;
    dr_builder out = {0};
    dr_span end = {"...", 3};
    if (!dr_call_take(t, call, "length killwords end leeway", taken)) return NULL;
    if (taken[3] && taken[3]->kind == DR_OBJECT_NONE) taken[3] = NULL;
    if (!whole_of(t, call, taken[0], &length) || !whole_of(t, call, taken[3], &leeway)) return NULL;
    if (taken[2] && taken[2]->kind == DR_OBJECT_TEXT) end = taken[2]->text;
    if (length < dr_text_characters(end)) return dr_template_fail(t, "truncate: the length is below that of the end");
    if (leeway < 0) return dr_template_fail(t, "truncate: the leeway is below 0");
    if (!dr_object_length(t, a, &count)) return NULL;
    if (count <= leeway || count - leeway <= length) return a;
    if (a->kind != DR_OBJECT_TEXT) return dr_template_fail(t, "truncate needs a str, not a %s", dr_object_type(a));
    dr_span kept = {a->text.bytes, dr_text_offset(a->text, length - dr_text_characters(end))};
    if (!taken[1] || !dr_object_truth(taken[1])) {
        const char *blank = memrchr(kept.bytes, ' ', kept.count);
        if (blank) kept.count = (size_t)(blank - kept.bytes);
    }
    if (!dr_builder_append(t, &out, kept.bytes, kept.count) || !dr_builder_append(t, &out, end.bytes, end.count)) return NULL;
    return dr_builder_value(t, &out);
}

/* Words are runs of letters, digits and underscores. */
static const dr_object *wordcount(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    int64_t count = 0;
    bool in_word = false;
    if (!dr_call_take(t, call, "", NULL) || !(a = text_of(t, a)) || !dr_template_charge(t, a->text.count / 8)) return NULL;
    for (size_t at = 0; at < a->text.count;) {
        uint32_t c = dr_character_next(a->text, &at);
        bool word = c == '_' || dr_character_letter(c) || dr_character_numeric(c);
        count += word && !in_word;
        in_word = word;
    }
    return dr_object_integer(t, count);
}

static const dr_object *urlencode(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~/",
                      digits[] = "0123456789ABCDEF";
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL)) return NULL;
    if (a->kind == DR_OBJECT_DICT || a->kind == DR_OBJECT_LIST)
        return dr_template_fail(t, "urlencode of a %s is not supported", dr_object_type(a));
    if (!(a = text_of(t, a))) return NULL;
    for (size_t i = 0; i < a->text.count; i++) {
        uint8_t c = (uint8_t)a->text.bytes[i];
        char escaped[3] = {'%', digits[c >> 4], digits[c & 15]};
        bool keeps = c && strchr(plain, c);
        if (!dr_builder_append(t, &out, keeps ? a->text.bytes + i : escaped, keeps ? 1 : 3)) return NULL;
    }
    return dr_builder_value(t, &out);
}

static const dr_object *format(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    if (call->arguments.count && call->named.keys.count)
        return dr_template_fail(t, "format takes values in order or by name, not both");
    const dr_object *values =
        call->named.keys.count ? dr_object_dict(t, call->named) : dr_object_list(t, DR_OBJECT_TUPLE, call->arguments);
    return values && (a = text_of(t, a)) ? dr_text_format(t, a->text, values) : NULL;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------------ */

static const dr_object *absolute(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    if (!dr_call_take(t, call, "", NULL)) return NULL;
    if (!dr_object_is_number(a)) return dr_template_fail(t, "abs needs a number, not a %s", dr_object_type(a));
    if (dr_object_number(a) < 0) return dr_negate(t, a, DR_SUBTRACT);
    return a->kind == DR_OBJECT_REAL ? dr_object_real(t, fabs(a->real)) : dr_negate(t, a, DR_ADD);
}

/* The number that a text holds, blanks around it and single underscores between digits left out; false: none. */
static bool text_number(dr_span text, char plain[400]) {
    size_t count = 0;
    text = dr_text_strip(text, NULL, 3);
    if (text.count >= 400) return false;
    for (size_t i = 0; i < text.count; i++) {
        bool between = i > 0 && i + 1 < text.count && text.bytes[i - 1] >= '0' && text.bytes[i - 1] <= '9' &&
                       text.bytes[i + 1] >= '0' && text.bytes[i + 1] <= '9';
        if (text.bytes[i] != '_' || !between) plain[count++] = text.bytes[i];
    }
    plain[count] = '\0';
    return strlen(plain) == count;
}

static const dr_object *to_integer(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    int64_t number, base = 10;
    double real;
    char plain[400];
    if (!dr_call_take(t, call, "default base", taken) || !whole_of(t, call, taken[1], &base)) return NULL;
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (dr_object_as_integer(a, &number)) return dr_object_integer(t, number);
    if (base != 10) return dr_template_fail(t, "int of base %lld is not supported", (long long)base);
    bool is_number = a->kind == DR_OBJECT_REAL || (a->kind == DR_OBJECT_TEXT && text_number(a->text, plain));
    if (a->kind == DR_OBJECT_TEXT && is_number && dr_integer_parse(plain, &number)) return dr_object_integer(t, number);
    if (is_number && a->kind == DR_OBJECT_TEXT)
        is_number = plain[strspn(plain, "+-")] != '0' || !strpbrk(plain, "xX") ? dr_number_parse(plain, DR_NUMBER_FINITE, &real)
                                                                               : false;
    if (a->kind == DR_OBJECT_REAL) real = a->real;
    if (is_number && fabs(real) < 9.2e18) return dr_object_integer(t, (int64_t)real);
    return taken[0] ? taken[0] : dr_object_integer(t, 0);
}

static const dr_object *to_real(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[1];
    double real;
    char plain[400];
    if (!dr_call_take(t, call, "default", taken)) return NULL;
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (dr_object_is_number(a)) return dr_object_real(t, dr_object_number(a));
    if (a->kind == DR_OBJECT_TEXT && text_number(a->text, plain) && !strpbrk(plain, "xX") &&
        dr_number_parse(plain, DR_NUMBER_ANY, &real))
        return dr_object_real(t, real);
    return taken[0] ? taken[0] : dr_object_real(t, 0);
}

static const dr_object *rounded(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    int64_t precision = 0;
    char text[400];
    double value, scale;
    if (!dr_call_take(t, call, "precision method", taken) || !whole_of(t, call, taken[0], &precision)) return NULL;
    if (!dr_object_is_number(a)) return dr_template_fail(t, "round needs a number, not a %s", dr_object_type(a));
    if (precision < -300 || precision > 300)
        return dr_template_fail(t, "round: the precision %lld is beyond 300", (long long)precision);
    bool common = !taken[1] || dr_object_is(taken[1], "common"), up = taken[1] && dr_object_is(taken[1], "ceil");
    if (!common && !up && !dr_object_is(taken[1], "floor"))
        return dr_template_fail(t, "round: the method must be common, ceil or floor");
    if (common && a->kind != DR_OBJECT_REAL && precision >= 0) return dr_negate(t, a, DR_ADD);
    value = dr_object_number(a), scale = pow(10, (double)precision);
    if (!isfinite(value)) return dr_object_real(t, value);
    if (!common) return dr_object_real(t, (up ? ceil(value * scale) : floor(value * scale)) / scale);
    if (precision < 0) {
        double whole = nearbyint(value / pow(10, (double)-precision)) * pow(10, (double)-precision);
        return a->kind == DR_OBJECT_REAL ? dr_object_real(t, whole) : dr_object_integer(t, (int64_t)whole);
    }
    if (precision > 30 || fabs(value) >= 1e22) return a;
    dr_format(text, sizeof text, "%.*f", (int)precision,
              value); /* rounds the exact value, to even where it lies in the middle */
    return dr_number_parse(text, DR_NUMBER_FINITE, &value) ? dr_object_real(t, value) : NULL;
}

/* ---- others ------------------------------------------------------------------------------------------------------------- */

static const dr_object *fallback(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    if (!dr_call_take(t, call, "default_value boolean", taken)) return NULL;
    bool missing = a->kind == DR_OBJECT_UNDEFINED || (taken[1] && dr_object_truth(taken[1]) && !dr_object_truth(a));
    return !missing ? a : taken[0] ? taken[0] : &dr_object_empty;
}

static const dr_object *attribute(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[1], *value;
    if (!dr_call_take(t, call, "name", taken) || !taken[0]) return dr_template_fail(t, "attr needs a name");
    if (!(taken[0] = text_of(t, taken[0]))) return NULL;
    dr_object nothing = {.kind = DR_OBJECT_DICT};
    value = dr_attribute(t, a->kind == DR_OBJECT_DICT ? &nothing : a, taken[0]); /* attributes only, no items */
    if (value && value->kind == DR_OBJECT_METHOD && a->kind == DR_OBJECT_DICT)
        return dr_object_method(t, a, value->method.name, value->method.function);
    return value;
}

static const dr_object *tojson(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[4];
    dr_json_style style = {.comma = {", ", 2}, .colon = {": ", 2}};
    dr_builder out = {0}, margin = {0};
    int64_t width = 0;
    if (!dr_call_take(t, call, "ensure_ascii indent separators sort_keys", taken)) return NULL;
    style.ascii = taken[0] && dr_object_truth(taken[0]);
    style.sorted = taken[3] && dr_object_truth(taken[3]);
    style.indented = taken[1] && taken[1]->kind != DR_OBJECT_NONE;
    if (style.indented) style.comma = (dr_span){",", 1};
    if (style.indented && taken[1]->kind == DR_OBJECT_TEXT) {
        style.indent = taken[1]->text;
    } else if (style.indented) {
        if (!whole_of(t, call, taken[1], &width)) return NULL;
        for (int64_t i = 0; i < width; i++)
            if (!dr_builder_append(t, &margin, " ", 1)) return NULL;
        style.indent = (dr_span){margin.count ? margin.bytes : "", margin.count};
    }
    if (taken[2] && taken[2]->kind != DR_OBJECT_NONE) {
        dr_values parts;
        if (!dr_object_walk(t, taken[2], &parts)) return NULL;
        if (parts.count != 2 || parts.at[0]->kind != DR_OBJECT_TEXT || parts.at[1]->kind != DR_OBJECT_TEXT)
            return dr_template_fail(t, "tojson: separators must be two strings");
        style.comma = parts.at[0]->text, style.colon = parts.at[1]->text;
    }
    return dr_object_json(t, a, &style, 0, &out) ? dr_builder_value(t, &out) : NULL;
}

const dr_named_function dr_filters_of_text[] = {{"upper", upper},      {"lower", lower},         {"capitalize", capitalize},
                                                {"title", title},      {"trim", trim},           {"replace", replace},
                                                {"string", string},    {"safe", safe},           {"escape", escape},
                                                {"e", escape},         {"indent", indent},       {"center", center},
                                                {"truncate", shorten}, {"wordcount", wordcount}, {"urlencode", urlencode},
                                                {"format", format},    {"abs", absolute},        {"int", to_integer},
                                                {"float", to_real},    {"round", rounded},       {"default", fallback},
                                                {"d", fallback},       {"attr", attribute},      {"tojson", tojson},
                                                {NULL, NULL}};

dr_function *dr_filter_find(const dr_object *name) {
    dr_function *function = dr_function_find(dr_filters_of_text, name);
    return function ? function : dr_function_find(dr_filters_of_lists, name);
}
