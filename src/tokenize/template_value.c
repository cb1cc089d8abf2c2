/* The arena of a rendering and its values: making, asking, comparing. Meanings are Python's, which templates are written for.
 */
#include "tokenize/template.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const dr_object dr_object_none = {.kind = DR_OBJECT_NONE};
const dr_object dr_object_true = {.kind = DR_OBJECT_BOOLEAN, .boolean = true};
const dr_object dr_object_false = {.kind = DR_OBJECT_BOOLEAN, .boolean = false};
const dr_object dr_object_empty = {.kind = DR_OBJECT_TEXT, .text = {"", 0}};

/* ---- the arena --------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 32 * 1024, ALIGNED = 16 };

struct dr_block {
    struct dr_block *older;
    size_t bytes;
};

void *dr_template_fail(dr_template *t, const char *format, ...) {
    char text[1000];
    va_list arguments;
    if (t->status != DR_OK) return NULL; /* the first failure counts */
    va_start(arguments, format);
    dr_format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    for (size_t end = strlen(text); end > 0 && end + 4 >= sizeof text; end--) /* no part of a character at the end */
        if ((text[end] & 0xc0) != 0x80 && text[end]) {
            text[end] = '\0';
            break;
        }
    t->status = dr_fail(DR_ERROR_FORMAT, "line %d: %s", t->line, text);
    return NULL;
}

void *dr_template_take(dr_template *t, size_t bytes) {
    if (t->status != DR_OK) return NULL;
    if (bytes > DR_TEMPLATE_MEMORY || t->memory + bytes > DR_TEMPLATE_MEMORY)
        return dr_template_fail(t, "the template needs more than %d MB of memory", DR_TEMPLATE_MEMORY / (1024 * 1024));
    bytes = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    if (bytes > t->block_left || !t->blocks) {
        size_t size = bytes > BLOCK ? bytes : BLOCK;
        void *memory;
        t->status = dr_allocate(sizeof(struct dr_block) + size, "a chat template", &memory);
        if (t->status != DR_OK) return NULL;
        struct dr_block *block = memory;
        *block = (struct dr_block){t->blocks, size};
        t->blocks = block, t->block_left = size;
        t->memory += size;
    }
    char *end = (char *)(t->blocks + 1) + t->blocks->bytes;
    void *taken = end - t->block_left;
    t->block_left -= bytes;
    return taken;
}

void dr_template_release(dr_template *t) {
    while (t->blocks) {
        struct dr_block *older = t->blocks->older;
        dr_release(t->blocks);
        t->blocks = older;
    }
}

bool dr_template_charge(dr_template *t, size_t steps) {
    if (t->status != DR_OK) return false;
    if (steps > DR_TEMPLATE_STEPS || (t->steps += (int64_t)steps) > DR_TEMPLATE_STEPS)
        return dr_template_fail(t, "the template does not end within %d steps", DR_TEMPLATE_STEPS);
    return true;
}

bool dr_template_enter(dr_template *t) {
    if (!dr_template_charge(t, 1)) return false;
    if (++t->depth > DR_TEMPLATE_DEPTH) return dr_template_fail(t, "nested deeper than %d levels", DR_TEMPLATE_DEPTH);
    return true;
}

/* ---- growing ----------------------------------------------------------------------------------------------------------- */

bool dr_builder_append(dr_template *t, dr_builder *builder, const char *bytes, size_t count) {
    if (count == 0) return t->status == DR_OK;
    if (!dr_template_charge(t, count / 16)) return false;
    if (builder->count + count > DR_TEMPLATE_OUTPUT)
        return dr_template_fail(t, "a text becomes longer than %d MB", DR_TEMPLATE_OUTPUT / (1024 * 1024));
    if (count > builder->room - builder->count) {
        size_t room = 2 * builder->room > builder->count + count ? 2 * builder->room : builder->count + count + 32;
        char *grown = dr_template_take(t, room);
        if (!grown) return false;
        if (builder->count) memcpy(grown, builder->bytes, builder->count);
        builder->bytes = grown, builder->room = room;
    }
    memcpy(builder->bytes + builder->count, bytes, count);
    builder->count += count;
    return true;
}

bool dr_builder_string(dr_template *t, dr_builder *builder, const char *string) {
    return dr_builder_append(t, builder, string, strlen(string));
}

const dr_object *dr_builder_value(dr_template *t, const dr_builder *builder) {
    return t->status == DR_OK ? dr_object_text(t, builder->count ? builder->bytes : "", builder->count) : NULL;
}

bool dr_values_append(dr_template *t, dr_values *values, const dr_object *value) {
    if (!value || !dr_template_charge(t, 1)) return false;
    if (values->count == values->room) {
        size_t room = values->room ? 2 * values->room : 4;
        const dr_object **at = dr_template_take(t, room * sizeof *at);
        if (!at) return false;
        if (values->count) memcpy(at, values->at, values->count * sizeof *at);
        values->at = at, values->room = room;
    }
    values->at[values->count++] = value;
    return true;
}

bool dr_object_need_key(dr_template *t, const dr_object *value) {
    if (!dr_template_enter(t)) return false;
    if (value->kind == DR_OBJECT_LIST || value->kind == DR_OBJECT_DICT)
        return dr_template_fail(t, "a %s cannot be the key of a dict", dr_object_type(value));
    for (size_t i = 0; value->kind == DR_OBJECT_TUPLE && i < value->list.count; i++)
        if (!dr_object_need_key(t, value->list.at[i])) return false;
    t->depth--;
    return true;
}

/* Where a key is in a dict; its count: nowhere. */
static size_t key_place(dr_template *t, const dr_dict *dict, const dr_object *key) {
    for (size_t i = 0; i < dict->keys.count; i++) {
        const dr_object *other = dict->keys.at[i];
        if (key->kind == DR_OBJECT_TEXT && other->kind == DR_OBJECT_TEXT) {
            if (key->text.count == other->text.count && memcmp(key->text.bytes, other->text.bytes, key->text.count) == 0)
                return i;
        } else if (dr_object_equal(t, key, other)) {
            return i;
        }
    }
    return dict->keys.count;
}

bool dr_dict_put(dr_template *t, dr_dict *dict, const dr_object *key, const dr_object *value) {
    if (!key || !value || !dr_template_charge(t, 1 + dict->keys.count / 4)) return false;
    if (!dr_object_need_key(t, key)) return false;
    size_t place = key_place(t, dict, key);
    if (place < dict->keys.count) return dict->values.at[place] = value, true;
    return dr_values_append(t, &dict->keys, key) && dr_values_append(t, &dict->values, value);
}

const dr_object *dr_dict_get(dr_template *t, const dr_dict *dict, const dr_object *key) {
    if (!dr_template_charge(t, 1 + dict->keys.count / 4)) return NULL;
    size_t place = key_place(t, dict, key);
    return place < dict->keys.count ? dict->values.at[place] : NULL;
}

const dr_object *dr_dict_find(dr_template *t, const dr_dict *dict, const char *key) {
    dr_object name = {.kind = DR_OBJECT_TEXT, .text = {key, strlen(key)}};
    return dr_dict_get(t, dict, &name);
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

static dr_object *make(dr_template *t, dr_object_kind kind) {
    dr_object *value = dr_template_take(t, sizeof *value);
    if (value) *value = (dr_object){.kind = kind};
    return value;
}

const dr_object *dr_object_boolean(bool boolean) {
    return boolean ? &dr_object_true : &dr_object_false;
}

const dr_object *dr_object_integer(dr_template *t, int64_t integer) {
    dr_object *value = make(t, DR_OBJECT_INTEGER);
    if (value) value->integer = integer;
    return value;
}

const dr_object *dr_object_real(dr_template *t, double real) {
    dr_object *value = make(t, DR_OBJECT_REAL);
    if (value) value->real = real;
    return value;
}

const dr_object *dr_object_text(dr_template *t, const char *bytes, size_t count) {
    dr_object *value = make(t, DR_OBJECT_TEXT);
    if (value) value->text = (dr_span){bytes, count};
    return value;
}

const dr_object *dr_object_string(dr_template *t, const char *string) {
    return dr_object_text(t, string, strlen(string));
}

const dr_object *dr_object_list(dr_template *t, dr_object_kind kind, dr_values items) {
    dr_object *value = make(t, kind);
    if (value) value->list = items;
    return value;
}

const dr_object *dr_object_pair(dr_template *t, const dr_object *first, const dr_object *second) {
    dr_values items = {0};
    if (!dr_values_append(t, &items, first) || !dr_values_append(t, &items, second)) return NULL;
    return dr_object_list(t, DR_OBJECT_TUPLE, items);
}

const dr_object *dr_object_series(dr_template *t, const char *type, dr_values items, bool once) {
    dr_object *value = make(t, DR_OBJECT_SERIES);
    if (!value) return NULL;
    value->series.items = items, value->series.type = type;
    if (once && !(value->series.spent = dr_template_take(t, sizeof(bool)))) return NULL;
    if (once) *value->series.spent = false;
    return value;
}

const dr_object *dr_object_dict(dr_template *t, dr_dict dict) {
    dr_object *value = make(t, DR_OBJECT_DICT);
    if (value) value->dict = dict;
    return value;
}

const dr_object *dr_object_method(dr_template *t, const dr_object *self, const char *name, dr_function *function) {
    dr_object *value = make(t, self ? DR_OBJECT_METHOD : DR_OBJECT_FUNCTION);
    if (value) value->method.self = self, value->method.name = name, value->method.function = function;
    return value;
}

const dr_object *dr_object_undefined(dr_template *t, const char *format, ...) {
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    dr_format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    dr_object *value = make(t, DR_OBJECT_UNDEFINED);
    dr_builder copy = {0};
    if (!value || !dr_builder_append(t, &copy, text, strlen(text) + 1)) return NULL;
    value->text = (dr_span){copy.bytes, copy.count - 1};
    return value;
}

const dr_object *dr_object_from_json(dr_template *t, const json_t *json) {
    dr_values items = {0};
    dr_dict dict = {{0}, {0}};
    size_t index;
    const char *key;
    const json_t *part;
    switch (json_typeof(json)) {
    case JSON_NULL:
        return &dr_object_none;
    case JSON_TRUE:
        return &dr_object_true;
    case JSON_FALSE:
        return &dr_object_false;
    case JSON_INTEGER:
        return dr_object_integer(t, json_integer_value(json));
    case JSON_REAL:
        return dr_object_real(t, json_real_value(json));
    case JSON_STRING:
        return dr_object_text(t, json_string_value(json), json_string_length(json));
    case JSON_ARRAY:
        if (!dr_template_enter(t)) return NULL;
        json_array_foreach(json, index, part) {
            if (!dr_values_append(t, &items, dr_object_from_json(t, part))) return NULL;
        }
        t->depth--;
        return dr_object_list(t, DR_OBJECT_LIST, items);
    case JSON_OBJECT:
        if (!dr_template_enter(t)) return NULL;
        json_object_foreach((json_t *)json, key, part) { /* jansson knows no key twice */
            if (!dr_values_append(t, &dict.keys, dr_object_string(t, key))) return NULL;
            if (!dr_values_append(t, &dict.values, dr_object_from_json(t, part))) return NULL;
        }
        t->depth--;
        return dr_object_dict(t, dict);
    }
    return dr_template_fail(t, "a value is of no type that JSON has");
}

/* ---- asking ------------------------------------------------------------------------------------------------------------ */

const char *dr_object_type(const dr_object *value) {
    switch (value->kind) {
    case DR_OBJECT_UNDEFINED:
        return "undefined value";
    case DR_OBJECT_NONE:
        return "None";
    case DR_OBJECT_BOOLEAN:
        return "bool";
    case DR_OBJECT_INTEGER:
        return "int";
    case DR_OBJECT_REAL:
        return "float";
    case DR_OBJECT_TEXT:
        return "str";
    case DR_OBJECT_LIST:
        return "list";
    case DR_OBJECT_TUPLE:
        return "tuple";
    case DR_OBJECT_SERIES:
        return value->series.type;
    case DR_OBJECT_DICT:
        return "dict";
    case DR_OBJECT_NAMESPACE:
        return "namespace";
    case DR_OBJECT_LOOP:
        return "loop";
    case DR_OBJECT_MACRO:
        return "macro";
    case DR_OBJECT_METHOD:
        return "method";
    case DR_OBJECT_FUNCTION:
        return "function";
    }
    return "value";
}

bool dr_object_truth(const dr_object *value) {
    switch (value->kind) {
    case DR_OBJECT_UNDEFINED:
    case DR_OBJECT_NONE:
        return false;
    case DR_OBJECT_BOOLEAN:
        return value->boolean;
    case DR_OBJECT_INTEGER:
        return value->integer != 0;
    case DR_OBJECT_REAL:
        return value->real != 0;
    case DR_OBJECT_TEXT:
        return value->text.count > 0;
    case DR_OBJECT_LIST:
    case DR_OBJECT_TUPLE:
        return value->list.count > 0;
    case DR_OBJECT_SERIES:
        return value->series.spent || value->series.items.count > 0;
    case DR_OBJECT_DICT:
        return value->dict.keys.count > 0;
    case DR_OBJECT_LOOP:
        return value->loop->items.count > 0;
    case DR_OBJECT_NAMESPACE:
    case DR_OBJECT_MACRO:
    case DR_OBJECT_METHOD:
    case DR_OBJECT_FUNCTION:
        return true;
    }
    return true;
}

bool dr_object_is_number(const dr_object *value) {
    return value->kind == DR_OBJECT_BOOLEAN || value->kind == DR_OBJECT_INTEGER || value->kind == DR_OBJECT_REAL;
}

double dr_object_number(const dr_object *value) {
    return value->kind == DR_OBJECT_REAL      ? value->real
           : value->kind == DR_OBJECT_INTEGER ? (double)value->integer
                                              : value->boolean;
}

bool dr_object_is(const dr_object *value, const char *string) {
    return value->kind == DR_OBJECT_TEXT && value->text.count == strlen(string) &&
           memcmp(value->text.bytes, string, value->text.count) == 0;
}

bool dr_object_is_range(const dr_object *value) {
    return value->kind == DR_OBJECT_SERIES && strcmp(value->series.type, "range") == 0;
}

bool dr_object_as_integer(const dr_object *value, int64_t *integer) {
    if (value->kind == DR_OBJECT_INTEGER) return *integer = value->integer, true;
    if (value->kind == DR_OBJECT_BOOLEAN) return *integer = value->boolean, true;
    return false;
}

bool dr_object_walk(dr_template *t, const dr_object *value, dr_values *items) {
    *items = (dr_values){0};
    switch (value->kind) {
    case DR_OBJECT_UNDEFINED:
        return true;
    case DR_OBJECT_LIST:
    case DR_OBJECT_TUPLE:
        *items = value->list;
        return dr_template_charge(t, 1);
    case DR_OBJECT_DICT:
        *items = value->dict.keys;
        return dr_template_charge(t, 1);
    case DR_OBJECT_SERIES:
        if (!value->series.spent || !*value->series.spent) *items = value->series.items;
        if (value->series.spent) *value->series.spent = true;
        return dr_template_charge(t, 1);
    case DR_OBJECT_TEXT:
        for (size_t at = 0; at < value->text.count;) {
            size_t begin = at;
            dr_character_next(value->text, &at);
            if (!dr_values_append(t, items, dr_object_text(t, value->text.bytes + begin, at - begin))) return false;
        }
        return true;
    case DR_OBJECT_LOOP:
        return dr_template_fail(t, "'loop' itself cannot be walked");
    case DR_OBJECT_NONE:
    case DR_OBJECT_BOOLEAN:
    case DR_OBJECT_INTEGER:
    case DR_OBJECT_REAL:
    case DR_OBJECT_NAMESPACE:
    case DR_OBJECT_MACRO:
    case DR_OBJECT_METHOD:
    case DR_OBJECT_FUNCTION:
        break;
    }
    return dr_template_fail(t, "a %s has no items to go through", dr_object_type(value));
}

bool dr_object_length(dr_template *t, const dr_object *value, int64_t *length) {
    *length = 0;
    switch (value->kind) {
    case DR_OBJECT_UNDEFINED:
        return true;
    case DR_OBJECT_TEXT:
        *length = dr_text_characters(value->text);
        return dr_template_charge(t, value->text.count / 16);
    case DR_OBJECT_LIST:
    case DR_OBJECT_TUPLE:
        *length = (int64_t)value->list.count;
        return true;
    case DR_OBJECT_DICT:
        *length = (int64_t)value->dict.keys.count;
        return true;
    case DR_OBJECT_LOOP:
        *length = (int64_t)value->loop->items.count;
        return true;
    case DR_OBJECT_SERIES:
        if (value->series.spent) break;
        *length = (int64_t)value->series.items.count;
        return true;
    case DR_OBJECT_NONE:
    case DR_OBJECT_BOOLEAN:
    case DR_OBJECT_INTEGER:
    case DR_OBJECT_REAL:
    case DR_OBJECT_NAMESPACE:
    case DR_OBJECT_MACRO:
    case DR_OBJECT_METHOD:
    case DR_OBJECT_FUNCTION:
        break;
    }
    return dr_template_fail(t, "a %s has no length", dr_object_type(value));
}

/* ---- comparing --------------------------------------------------------------------------------------------------------- */

static bool equal_lists(dr_template *t, const dr_values *a, const dr_values *b) {
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!dr_object_equal(t, a->at[i], b->at[i])) return false;
    return true;
}

static bool equal_dicts(dr_template *t, const dr_dict *a, const dr_dict *b) {
    if (a->keys.count != b->keys.count) return false;
    for (size_t i = 0; i < a->keys.count; i++) {
        const dr_object *other = dr_dict_get(t, b, a->keys.at[i]);
        if (!other || !dr_object_equal(t, a->values.at[i], other)) return false;
    }
    return true;
}

/* A number without rounding: a long double holds every int64. */
static long double exact(const dr_object *value) {
    int64_t whole = 0;
    return dr_object_as_integer(value, &whole) ? (long double)whole : (long double)value->real;
}

/* -1, 0 or 1; 2 where one is not a number. */
static int numbers_order(const dr_object *a, const dr_object *b) {
    if (a->kind == DR_OBJECT_REAL || b->kind == DR_OBJECT_REAL) {
        long double x = exact(a), y = exact(b);
        return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
    }
    int64_t x = 0, y = 0;
    dr_object_as_integer(a, &x);
    dr_object_as_integer(b, &y);
    return x < y ? -1 : x > y;
}

bool dr_object_equal(dr_template *t, const dr_object *a, const dr_object *b) {
    bool equal = false;
    if (!dr_template_enter(t)) return false;
    if (dr_object_is_number(a) && dr_object_is_number(b)) {
        equal = numbers_order(a, b) == 0;
    } else if (a->kind == b->kind) {
        switch (a->kind) {
        case DR_OBJECT_UNDEFINED:
        case DR_OBJECT_NONE:
            equal = true;
            break;
        case DR_OBJECT_TEXT:
            equal = a->text.count == b->text.count && dr_template_charge(t, a->text.count / 16) &&
                    memcmp(a->text.bytes, b->text.bytes, a->text.count) == 0;
            break;
        case DR_OBJECT_LIST:
        case DR_OBJECT_TUPLE:
            equal = equal_lists(t, &a->list, &b->list);
            break;
        case DR_OBJECT_DICT:
            equal = equal_dicts(t, &a->dict, &b->dict);
            break;
        case DR_OBJECT_SERIES:
            equal = a == b || (!a->series.spent && !b->series.spent && strcmp(a->series.type, b->series.type) == 0 &&
                               equal_lists(t, &a->series.items, &b->series.items));
            break;
        case DR_OBJECT_MACRO:
            equal = a->macro.node == b->macro.node && a->macro.scope == b->macro.scope;
            break;
        case DR_OBJECT_METHOD:
            equal = a->method.function == b->method.function && a->method.self == b->method.self;
            break;
        case DR_OBJECT_FUNCTION:
            equal = a->method.function == b->method.function;
            break;
        case DR_OBJECT_BOOLEAN:
        case DR_OBJECT_INTEGER:
        case DR_OBJECT_REAL:
            break; /* above */
        case DR_OBJECT_NAMESPACE:
        case DR_OBJECT_LOOP:
            equal = a == b;
            break;
        }
    }
    t->depth--;
    return equal && t->status == DR_OK;
}

static int bytes_order(dr_span a, dr_span b) {
    int order = memcmp(a.bytes, b.bytes, a.count < b.count ? a.count : b.count);
    if (order != 0) return order < 0 ? -1 : 1;
    return a.count < b.count ? -1 : a.count > b.count;
}

bool dr_object_order(dr_template *t, const dr_object *a, const dr_object *b, int *order) {
    if (dr_object_is_number(a) && dr_object_is_number(b)) return *order = numbers_order(a, b), true;
    if (a->kind == DR_OBJECT_TEXT && b->kind == DR_OBJECT_TEXT) {
        *order = bytes_order(a->text, b->text); /* the order of UTF-8 is that of the characters */
        return dr_template_charge(t, a->text.count / 16);
    }
    if (a->kind == b->kind && (a->kind == DR_OBJECT_LIST || a->kind == DR_OBJECT_TUPLE)) {
        size_t i = 0, least = a->list.count < b->list.count ? a->list.count : b->list.count;
        while (i < least && dr_object_equal(t, a->list.at[i], b->list.at[i])) i++;
        if (t->status != DR_OK) return false;
        *order = a->list.count < b->list.count ? -1 : a->list.count > b->list.count;
        if (i == least) return true;
        if (!dr_template_enter(t) || !dr_object_order(t, a->list.at[i], b->list.at[i], order)) return false;
        t->depth--;
        return true;
    }
    if (a->kind == DR_OBJECT_UNDEFINED || b->kind == DR_OBJECT_UNDEFINED)
        return dr_template_fail(t, "%s", (a->kind == DR_OBJECT_UNDEFINED ? a : b)->text.bytes);
    return dr_template_fail(t, "a %s and a %s have no order", dr_object_type(a), dr_object_type(b));
}
