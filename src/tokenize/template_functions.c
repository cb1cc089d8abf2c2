/* Arguments by place and by name; the global functions; the tests. */
#include "tokenize/template_tree.h"

#include "base/number.h"

#include <math.h>
#include <string.h>
#include <time.h>

bool dr_call_take(dr_template *t, const dr_call_arguments *call, const char *names, const dr_object **taken) {
    size_t count = 0, found = 0;
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, " ");
        dr_object key = {.kind = DR_OBJECT_TEXT, .text = {name, length}};
        const dr_object *named = dr_dict_get(t, &call->named, &key);
        taken[count] = count < call->arguments.count ? call->arguments.at[count] : named;
        if (named && count < call->arguments.count)
            return dr_template_fail(t, "%s gets '%.*s' twice", call->name, (int)length, name);
        found += named != NULL, count++;
        name += length;
        name += *name == ' ';
    }
    if (call->arguments.count > count)
        return dr_template_fail(t, "%s takes at most %zu arguments, not %zu", call->name, count, call->arguments.count);
    if (found < call->named.keys.count)
        return dr_template_fail(t, "%s knows these names only: %s", call->name, *names ? names : "none");
    return t->status == DR_OK;
}

dr_function *dr_function_find(const dr_named_function *table, const dr_object *name) {
    for (; table->name; table++)
        if (dr_object_is(name, table->name)) return table->function;
    return NULL;
}

/* ---- global functions -------------------------------------------------------------------------------------------------- */

static const dr_object *raise_exception(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *message = NULL;
    (void)self;
    if (!dr_call_take(t, call, "message", &message)) return NULL;
    if (message) message = dr_object_as_text(t, message);
    if (t->status != DR_OK) return NULL;
    int count = !message ? 0 : message->text.count > 700 ? 700 : (int)message->text.count;
    return dr_template_fail(t, "the template says: %.*s", count, message ? message->text.bytes : "");
}

static const dr_object *strftime_now(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *format = NULL;
    (void)self;
    if (!dr_call_take(t, call, "format", &format)) return NULL;
    if (!format || format->kind != DR_OBJECT_TEXT)
        return dr_template_fail(t, "strftime_now needs a format such as \"%%d %%b %%Y\"");
    char pattern[128], text[512];
    time_t seconds = (time_t)t->now;
    struct tm local;
    if (format->text.count >= sizeof pattern - 1)
        return dr_template_fail(t, "the format of strftime_now has more than 126 bytes");
    memcpy(pattern, format->text.bytes, format->text.count);
    memcpy(pattern + format->text.count, "|", 2); /* so that no text is empty, which strftime reports as too long */
    if (!localtime_r(&seconds, &local)) return dr_template_fail(t, "the time %lld is no date", (long long)t->now);
    size_t length = dr_format_time(text, sizeof text, pattern, &local);
    dr_builder out = {0};
    if (length == 0) return dr_template_fail(t, "the text of strftime_now has more than 511 bytes");
    return dr_builder_append(t, &out, text, length - 1) ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *range(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    enum { MOST = 100000 };
    int64_t bounds[3] = {0, 0, 1};
    size_t count = call->arguments.count;
    dr_values items = {0};
    (void)self;
    if (count < 1 || count > 3 || call->named.keys.count) return dr_template_fail(t, "range takes one to three whole numbers");
    for (size_t i = 0; i < count; i++)
        if (!dr_object_as_integer(call->arguments.at[i], &bounds[count == 1 ? 1 : i]))
            return dr_template_fail(t, "range takes whole numbers, not a %s", dr_object_type(call->arguments.at[i]));
    if (bounds[2] == 0) return dr_template_fail(t, "the step of a range is 0");
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
        if (items.count == MOST) return dr_template_fail(t, "a range has more than %d items", MOST);
        if (!dr_values_append(t, &items, dr_object_integer(t, i))) return NULL;
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return dr_object_series(t, "range", items, false);
}

/* What dict() and namespace() take: a dict or pairs, and names. */
static bool gather(dr_template *t, const dr_call_arguments *call, dr_dict *dict) {
    if (call->arguments.count > 1) return dr_template_fail(t, "%s takes one argument without a name at most", call->name);
    const dr_object *first = call->arguments.count ? call->arguments.at[0] : NULL;
    dr_values pairs = {0}, pair;
    if (first && first->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", first->text.bytes);
    if (first && first->kind == DR_OBJECT_DICT) {
        for (size_t i = 0; i < first->dict.keys.count; i++)
            if (!dr_dict_put(t, dict, first->dict.keys.at[i], first->dict.values.at[i])) return false;
    } else if (first && !dr_object_walk(t, first, &pairs)) {
        return false;
    }
    for (size_t i = 0; i < pairs.count; i++) {
        if (!dr_object_walk(t, pairs.at[i], &pair)) return false;
        if (pair.count != 2) return dr_template_fail(t, "%s needs pairs; item %zu has %zu parts", call->name, i, pair.count);
        if (!dr_dict_put(t, dict, pair.at[0], pair.at[1])) return false;
    }
    for (size_t i = 0; i < call->named.keys.count; i++)
        if (!dr_dict_put(t, dict, call->named.keys.at[i], call->named.values.at[i])) return false;
    return true;
}

static const dr_object *make_dict(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    dr_dict dict = {{0}, {0}};
    (void)self;
    return gather(t, call, &dict) ? dr_object_dict(t, dict) : NULL;
}

static const dr_object *make_namespace(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    dr_dict *space = dr_template_take(t, sizeof *space);
    dr_object *value = dr_template_take(t, sizeof *value);
    (void)self;
    if (!space || !value) return NULL;
    *space = (dr_dict){{0}, {0}};
    *value = (dr_object){.kind = DR_OBJECT_NAMESPACE};
    value->space = space;
    return gather(t, call, space) ? value : NULL;
}

bool dr_globals_put(dr_template *t, dr_dict *names) {
    static const dr_named_function globals[] = {{"range", range},
                                                {"dict", make_dict},
                                                {"namespace", make_namespace},
                                                {"raise_exception", raise_exception},
                                                {"strftime_now", strftime_now}};
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        const dr_object *value = dr_object_method(t, NULL, globals[i].name, globals[i].function);
        if (!dr_dict_put(t, names, dr_object_string(t, globals[i].name), value)) return false;
    }
    return true;
}

/* ---- tests ------------------------------------------------------------------------------------------------------------- */

/* The one argument of a test. */
static const dr_object *argument(dr_template *t, const dr_call_arguments *call) {
    if (call->arguments.count != 1 || call->named.keys.count) return dr_template_fail(t, "the test needs one argument");
    return call->arguments.at[0];
}

static const dr_object *compared(dr_template *t, const dr_object *a, const dr_call_arguments *call, int operation) {
    const dr_object *b = argument(t, call);
    bool holds;
    return b && dr_compare(t, operation, a, b, &holds) ? dr_object_boolean(holds) : NULL;
}

static bool is_iterable(const dr_object *value) {
    return value->kind == DR_OBJECT_UNDEFINED || value->kind == DR_OBJECT_TEXT || value->kind == DR_OBJECT_LIST ||
           value->kind == DR_OBJECT_TUPLE || value->kind == DR_OBJECT_SERIES || value->kind == DR_OBJECT_DICT ||
           value->kind == DR_OBJECT_LOOP;
}

static bool is_sequence(const dr_object *value) {
    if (value->kind == DR_OBJECT_SERIES) return dr_object_is_range(value);
    return is_iterable(value) && value->kind != DR_OBJECT_LOOP;
}

/* Whether str(value) has letters with a case, and all of this one. */
static const dr_object *has_case(dr_template *t, const dr_object *value, dr_text_case wanted) {
    const dr_object *text = dr_object_as_text(t, value);
    dr_builder changed = {0};
    bool cased = false;
    if (!text || !dr_text_change(t, text->text, wanted, &changed)) return NULL;
    for (size_t at = 0; at < text->text.count;) cased |= dr_character_cased(dr_character_next(text->text, &at));
    return dr_object_boolean(cased && changed.count == text->text.count &&
                             memcmp(changed.bytes, text->text.bytes, changed.count) == 0);
}

/* A test without arguments that looks at the value only. */
#define SIMPLE(name, holds)                                                                                                    \
    static const dr_object *name(dr_template *t, const dr_object *a, const dr_call_arguments *call) {                          \
        return dr_call_take(t, call, "", NULL) ? dr_object_boolean(holds) : NULL;                                              \
    }
#define COMPARED(name, operation)                                                                                              \
    static const dr_object *name(dr_template *t, const dr_object *a, const dr_call_arguments *call) {                          \
        return compared(t, a, call, operation);                                                                                \
    }

SIMPLE(is_defined, a->kind != DR_OBJECT_UNDEFINED)
SIMPLE(is_undefined, a->kind == DR_OBJECT_UNDEFINED)
SIMPLE(is_none, a->kind == DR_OBJECT_NONE)
SIMPLE(is_boolean, a->kind == DR_OBJECT_BOOLEAN)
SIMPLE(is_true, a->kind == DR_OBJECT_BOOLEAN && a->boolean)
SIMPLE(is_false, a->kind == DR_OBJECT_BOOLEAN && !a->boolean)
SIMPLE(is_integer, a->kind == DR_OBJECT_INTEGER)
SIMPLE(is_float, a->kind == DR_OBJECT_REAL)
SIMPLE(is_number, dr_object_is_number(a))
SIMPLE(is_string, a->kind == DR_OBJECT_TEXT)
SIMPLE(is_mapping, a->kind == DR_OBJECT_DICT)
SIMPLE(is_iterable_test, is_iterable(a))
SIMPLE(is_sequence_test, is_sequence(a))
SIMPLE(is_callable, a->kind == DR_OBJECT_UNDEFINED || a->kind == DR_OBJECT_MACRO || a->kind == DR_OBJECT_METHOD ||
                        a->kind == DR_OBJECT_FUNCTION || a->kind == DR_OBJECT_LOOP)
SIMPLE(is_escaped, a->kind == DR_OBJECT_TEXT && a->safe)
SIMPLE(is_filter, dr_filter_find(a) != NULL)
SIMPLE(is_test, dr_test_find(a) != NULL)
COMPARED(is_equal, DR_EQUAL)
COMPARED(is_unequal, DR_UNEQUAL)
COMPARED(is_less, DR_LESS)
COMPARED(is_less_equal, DR_LESS_EQUAL)
COMPARED(is_greater, DR_GREATER)
COMPARED(is_greater_equal, DR_GREATER_EQUAL)
COMPARED(is_in, DR_IN)

static const dr_object *is_upper(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? has_case(t, a, DR_TEXT_UPPER) : NULL;
}

static const dr_object *is_lower(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? has_case(t, a, DR_TEXT_LOWER) : NULL;
}

static const dr_object *divided(dr_template *t, const dr_object *a, const dr_object *by, double wanted) {
    const dr_object *rest = by ? dr_operate(t, DR_REMAINDER, a, by) : NULL;
    if (rest && !dr_object_is_number(rest)) return dr_template_fail(t, "the test needs a number, not a %s", dr_object_type(a));
    return rest ? dr_object_boolean(dr_object_number(rest) == wanted) : NULL;
}

static const dr_object *is_even(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? divided(t, a, dr_object_integer(t, 2), 0) : NULL;
}

static const dr_object *is_odd(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? divided(t, a, dr_object_integer(t, 2), 1) : NULL;
}

static const dr_object *is_divisible(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return divided(t, a, argument(t, call), 0);
}

/* Python's "is": for values that cannot change, the same type and value. */
static const dr_object *is_same(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *b = argument(t, call);
    if (!b) return NULL;
    bool small = a->kind == b->kind && (a->kind == DR_OBJECT_NONE || a->kind == DR_OBJECT_BOOLEAN ||
                                        a->kind == DR_OBJECT_INTEGER || a->kind == DR_OBJECT_TEXT);
    return dr_object_boolean(a == b || (small && dr_object_equal(t, a, b)));
}

dr_function *dr_test_find(const dr_object *name) {
    static const dr_named_function tests[] = {{"defined", is_defined},
                                              {"undefined", is_undefined},
                                              {"none", is_none},
                                              {"boolean", is_boolean},
                                              {"true", is_true},
                                              {"false", is_false},
                                              {"integer", is_integer},
                                              {"float", is_float},
                                              {"number", is_number},
                                              {"string", is_string},
                                              {"mapping", is_mapping},
                                              {"iterable", is_iterable_test},
                                              {"sequence", is_sequence_test},
                                              {"callable", is_callable},
                                              {"escaped", is_escaped},
                                              {"filter", is_filter},
                                              {"test", is_test},
                                              {"eq", is_equal},
                                              {"equalto", is_equal},
                                              {"==", is_equal},
                                              {"ne", is_unequal},
                                              {"!=", is_unequal},
                                              {"lt", is_less},
                                              {"lessthan", is_less},
                                              {"<", is_less},
                                              {"le", is_less_equal},
                                              {"<=", is_less_equal},
                                              {"gt", is_greater},
                                              {"greaterthan", is_greater},
                                              {">", is_greater},
                                              {"ge", is_greater_equal},
                                              {">=", is_greater_equal},
                                              {"in", is_in},
                                              {"upper", is_upper},
                                              {"lower", is_lower},
                                              {"even", is_even},
                                              {"odd", is_odd},
                                              {"divisibleby", is_divisible},
                                              {"sameas", is_same},
                                              {NULL, NULL}};
    return dr_function_find(tests, name);
}
