/* Values in formats: "%-5s %03d" % (a, b) and "{:>5} {name}".format(a, name=b), for texts and numbers. */
#include "tokenize/template_tree.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDEST = 10000, MOST_DIGITS = 60 };

typedef struct {
    char fill[4];
    size_t fill_bytes;
    char align, sign, type; /* 0: none given */
    bool alternate, comma;
    int64_t width, precision; /* precision -1: none given */
} specification;

static bool padded(dr_template *t, const specification *s, dr_span text, size_t sign, char align, dr_builder *out) {
    int64_t count = dr_text_characters(text), missing = s->width > count ? s->width - count : 0;
    int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0, inner = align == '=' ? missing : 0;
    for (int64_t i = 0; i < left; i++)
        if (!dr_builder_append(t, out, s->fill, s->fill_bytes)) return false;
    if (!dr_builder_append(t, out, text.bytes, sign)) return false;
    for (int64_t i = 0; i < inner; i++)
        if (!dr_builder_append(t, out, s->fill, s->fill_bytes)) return false;
    if (!dr_builder_append(t, out, text.bytes + sign, text.count - sign)) return false;
    for (int64_t i = left + inner; i < missing; i++)
        if (!dr_builder_append(t, out, s->fill, s->fill_bytes)) return false;
    return true;
}

static bool format_text(dr_template *t, const specification *s, dr_span text, char align, dr_builder *out) {
    if (s->precision >= 0) text.count = dr_text_offset(text, s->precision);
    return padded(t, s, text, 0, s->align ? s->align : align, out);
}

/* Commas between groups of three digits of the whole part. */
static void group(char *text, size_t size) {
    size_t begin = text[0] == '-' || text[0] == '+', digits = strspn(text + begin, "0123456789");
    for (size_t i = digits; i > 3; i -= 3) {
        char *at = text + begin + i - 3;
        if (strlen(text) + 2 > size) return;
        memmove(at + 1, at, strlen(at) + 1);
        *at = ',';
    }
}

static bool format_number(dr_template *t, const specification *s, const dr_object *value, dr_builder *out) {
    char text[512], number[480];
    char type = s->type ? s->type : value->kind == DR_OBJECT_REAL ? 'r' : 'd';
    int64_t whole = 0;
    int precision = s->precision < 0 ? 6 : s->precision > MOST_DIGITS ? MOST_DIGITS : (int)s->precision;
    bool is_whole = strchr("dioxXc", type) != NULL;
    if (is_whole && !dr_object_as_integer(value, &whole)) {
        if (fabs(value->real) >= 9e18) return dr_template_fail(t, "the format %c needs a whole number", type);
        whole = (int64_t)value->real;
    }
    double real = dr_object_number(value);
    uint64_t size = whole < 0 ? 0 - (uint64_t)whole : (uint64_t)whole;
    if (type == 'x' || type == 'X' || type == 'o')
        snprintf(number, sizeof number,
                 type == 'x'   ? "%s%" PRIx64
                 : type == 'X' ? "%s%" PRIX64
                               : "%s%" PRIo64,
                 !s->alternate ? ""
                 : type == 'o' ? "0o"
                 : type == 'x' ? "0x"
                               : "0X",
                 size);
    else if (is_whole)
        snprintf(number, sizeof number, "%" PRIu64, size);
    else if (type == 'r' && s->precision < 0)
        dr_real_text(fabs(real), number);
    else if (type == 'r')
        dr_format(number, sizeof number, "%.*g", precision ? precision : 1, fabs(real));
    else if (type == '%')
        dr_format(number, sizeof number, "%.*f%%", precision, fabs(100 * real));
    else
        dr_format(number, sizeof number,
                  type == 'e'   ? "%.*e"
                  : type == 'E' ? "%.*E"
                  : type == 'g' ? "%.*g"
                                : "%.*f",
                  precision, fabs(real));
    bool negative = is_whole ? whole < 0 : signbit(real);
    snprintf(text, sizeof text, "%s%s", negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "", number);
    if (s->comma) group(text, sizeof text);
    size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    return padded(t, s, (dr_span){text, strlen(text)}, sign, s->align ? s->align : '>', out);
}

static bool read_count(dr_template *t, dr_span text, size_t *at, int64_t *count) {
    for (*count = 0; *at < text.count && text.bytes[*at] >= '0' && text.bytes[*at] <= '9'; (*at)++) {
        *count = 10 * *count + (text.bytes[*at] - '0');
        if (*count > WIDEST) return dr_template_fail(t, "a format is wider than %d", WIDEST);
    }
    return true;
}

/* ---- % ------------------------------------------------------------------------------------------------------------------ */

/* One conversion behind its %; the value is the next of the arguments or one of a dict. */
static bool convert(dr_template *t, dr_span format, size_t *at, const dr_object *arguments, size_t *used, dr_builder *out) {
    specification s = {.fill = " ", .fill_bytes = 1, .precision = -1};
    const dr_object *value = NULL;
    bool zero = false;
    if (*at < format.count && format.bytes[*at] == '(') {
        const char *close = memchr(format.bytes + *at, ')', format.count - *at);
        if (!close || arguments->kind != DR_OBJECT_DICT)
            return dr_template_fail(t, "%%(name) in a format needs a dict behind the %%");
        dr_object key = {.kind = DR_OBJECT_TEXT, .text = {format.bytes + *at + 1, (size_t)(close - format.bytes) - *at - 1}};
        if (!(value = dr_dict_get(t, &arguments->dict, &key)))
            return dr_template_fail(t, "the dict of a format has no key '%.*s'", (int)key.text.count, key.text.bytes);
        *at = (size_t)(close - format.bytes) + 1;
    }
    for (; *at < format.count && strchr("-+ #0", format.bytes[*at]) && format.bytes[*at]; (*at)++) {
        char c = format.bytes[*at];
        if (c == '-') s.align = '<';
        if (c == '+' || (c == ' ' && !s.sign)) s.sign = c;
        zero |= c == '0', s.alternate |= c == '#';
    }
    if (!read_count(t, format, at, &s.width)) return false;
    if (*at < format.count && format.bytes[*at] == '.') {
        (*at)++;
        if (!read_count(t, format, at, &s.precision)) return false;
    }
    if (*at >= format.count) return dr_template_fail(t, "a format ends within a conversion");
    s.type = format.bytes[(*at)++];
    if (s.type == '%') return dr_builder_append(t, out, "%", 1);
    if (!value && arguments->kind == DR_OBJECT_TUPLE) {
        if (*used >= arguments->list.count) return dr_template_fail(t, "a format needs more values than there are");
        value = arguments->list.at[(*used)++];
    } else if (!value) {
        if ((*used)++ > 0) return dr_template_fail(t, "a format needs more values than there are");
        value = arguments;
    }
    if (s.type == 's' || s.type == 'r') {
        dr_builder text = {0};
        if (!(s.type == 's' ? dr_object_print : dr_object_repr)(t, value, &text)) return false;
        return format_text(t, &s, (dr_span){text.count ? text.bytes : "", text.count}, '>', out);
    }
    if (!strchr("dioxXeEfFg", s.type) || !s.type)
        return dr_template_fail(t, "a format has the unknown conversion %%%c", s.type);
    bool needs_whole = strchr("oxX", s.type) != NULL;
    if (needs_whole ? !dr_object_as_integer(value, &(int64_t){0}) : !dr_object_is_number(value))
        return dr_template_fail(t, "the format %%%c needs a %snumber, not a %s", s.type, needs_whole ? "whole " : "",
                                dr_object_type(value));
    if (s.type == 'i') s.type = 'd';
    if (zero && !s.align) s.align = '=', s.fill[0] = '0';
    return format_number(t, &s, value, out);
}

const dr_object *dr_text_format(dr_template *t, dr_span format, const dr_object *arguments) {
    dr_builder out = {0};
    size_t used = 0;
    for (size_t at = 0; at < format.count;) {
        const char *next = memchr(format.bytes + at, '%', format.count - at);
        size_t plain = next ? (size_t)(next - format.bytes) - at : format.count - at;
        if (!dr_builder_append(t, &out, format.bytes + at, plain)) return NULL;
        at += plain + (next != NULL);
        if (next && !convert(t, format, &at, arguments, &used, &out)) return NULL;
    }
    bool by_key = arguments->kind == DR_OBJECT_DICT || arguments->kind == DR_OBJECT_LIST ||
                  arguments->kind == DR_OBJECT_UNDEFINED || dr_object_is_range(arguments);
    if (used < (arguments->kind == DR_OBJECT_TUPLE ? arguments->list.count : !by_key))
        return dr_template_fail(t, "a format does not use all values");
    return dr_builder_value(t, &out);
}

/* ---- format() ------------------------------------------------------------------------------------------------------------ */

static bool read_specification(dr_template *t, dr_span text, specification *s) {
    size_t at = 0, first = 0;
    *s = (specification){.fill = " ", .fill_bytes = 1, .precision = -1};
    if (text.count > 0) dr_character_next(text, &first);
    if (first > 0 && first < text.count && strchr("<>^=", text.bytes[first])) {
        memcpy(s->fill, text.bytes, first);
        s->fill_bytes = first, s->align = text.bytes[first], at = first + 1;
    } else if (text.count > 0 && strchr("<>^=", text.bytes[0])) {
        s->align = text.bytes[at++];
    }
    if (at < text.count && strchr("+- ", text.bytes[at])) s->sign = text.bytes[at++];
    if (at < text.count && text.bytes[at] == '#') s->alternate = true, at++;
    if (at < text.count && text.bytes[at] == '0') {
        if (!s->align) s->align = '=', s->fill[0] = '0', s->fill_bytes = 1;
        at++;
    }
    if (!read_count(t, text, &at, &s->width)) return false;
    if (at < text.count && text.bytes[at] == ',') s->comma = true, at++;
    if (at < text.count && text.bytes[at] == '.') {
        at++;
        if (!read_count(t, text, &at, &s->precision)) return false;
    }
    if (at < text.count) s->type = text.bytes[at++];
    if (at < text.count || (s->type && !strchr("sdxXoeEfFg%", s->type)))
        return dr_template_fail(t, "the format '%.*s' is not supported", text.count > 60 ? 60 : (int)text.count, text.bytes);
    return true;
}

/* The value that a field names: "", "0" or "name". */
static const dr_object *field_value(dr_template *t, dr_span field, const dr_call_arguments *call, size_t *automatic) {
    size_t at = 0;
    int64_t place = (int64_t)*automatic;
    if (field.count > 0 && !read_count(t, field, &at, &place)) return NULL;
    if (at == 0 && field.count > 0) {
        dr_object key = {.kind = DR_OBJECT_TEXT, .text = field};
        const dr_object *value = dr_dict_get(t, &call->named, &key);
        if (!value) dr_template_fail(t, "format has no argument '%.*s'", field.count > 60 ? 60 : (int)field.count, field.bytes);
        return value;
    }
    if (field.count == 0) (*automatic)++;
    if (at < field.count || place >= (int64_t)call->arguments.count)
        return dr_template_fail(t, "format has no argument '%.*s'", field.count > 60 ? 60 : (int)field.count, field.bytes);
    return call->arguments.at[place];
}

/* Whether a number can be written so: whole numbers have no precision, others no x, and digits of x no commas. */
static bool fits(dr_template *t, const specification *s, const dr_object *value) {
    bool as_whole = s->type ? strchr("dxXo", s->type) != NULL : value->kind != DR_OBJECT_REAL;
    if (as_whole && value->kind == DR_OBJECT_REAL)
        return dr_template_fail(t, "the format %c needs a whole number, not a float", s->type);
    if (as_whole && s->precision >= 0) return dr_template_fail(t, "the format of a whole number has a precision");
    if (as_whole && s->comma && s->type && s->type != 'd') return dr_template_fail(t, "the format %c has no commas", s->type);
    return true;
}

/* What stands between { and }. */
static bool replace_field(dr_template *t, dr_span field, const dr_call_arguments *call, size_t *automatic, dr_builder *out) {
    const char *colon = memchr(field.bytes, ':', field.count);
    dr_span name = {field.bytes, colon ? (size_t)(colon - field.bytes) : field.count};
    dr_span rest = {colon ? colon + 1 : "", colon ? field.count - name.count - 1 : 0};
    bool as_repr = name.count >= 2 && memcmp(name.bytes + name.count - 2, "!r", 2) == 0;
    bool as_text = name.count >= 2 && memcmp(name.bytes + name.count - 2, "!s", 2) == 0;
    specification s;
    if (as_repr || as_text) name.count -= 2;
    const dr_object *value = field_value(t, name, call, automatic);
    if (!value || !read_specification(t, rest, &s)) return false;
    bool plain = !as_repr && !as_text;
    if (plain && rest.count > 0 && value->kind != DR_OBJECT_TEXT && !dr_object_is_number(value))
        return dr_template_fail(t, "a %s has no format '%.*s'", dr_object_type(value), rest.count > 60 ? 60 : (int)rest.count,
                                rest.bytes);
    if (plain && dr_object_is_number(value) && s.type != 's') {
        if (rest.count == 0) return dr_object_print(t, value, out);
        return fits(t, &s, value) && format_number(t, &s, value, out);
    }
    dr_builder text = {0};
    if (s.comma) return dr_template_fail(t, "the format ',' needs a number, not a %s", dr_object_type(value));
    if (s.type && s.type != 's')
        return dr_template_fail(t, "the format %c needs a number, not a %s", s.type, dr_object_type(value));
    if (!(as_repr ? dr_object_repr : dr_object_print)(t, value, &text)) return false;
    return format_text(t, &s, (dr_span){text.count ? text.bytes : "", text.count}, '<', out);
}

const dr_object *dr_text_format_method(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    dr_span format = self->text;
    dr_builder out = {0};
    size_t automatic = 0;
    for (size_t at = 0; at < format.count; at++) {
        char c = format.bytes[at];
        if ((c == '{' || c == '}') && at + 1 < format.count && format.bytes[at + 1] == c) {
            at++;
        } else if (c == '}') {
            return dr_template_fail(t, "a single '}' stands in a format");
        } else if (c == '{') {
            const char *close = memchr(format.bytes + at, '}', format.count - at);
            if (!close) return dr_template_fail(t, "a '{' in a format has no '}'");
            dr_span field = {format.bytes + at + 1, (size_t)(close - format.bytes) - at - 1};
            if (!replace_field(t, field, call, &automatic, &out)) return NULL;
            at = (size_t)(close - format.bytes);
            continue;
        }
        if (!dr_builder_append(t, &out, &c, 1)) return NULL;
    }
    return dr_builder_value(t, &out);
}
