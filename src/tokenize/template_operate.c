/* Operators, comparisons, subscripts and attributes, with Python's meanings. Whole numbers have 64 bits: what needs more fails.
 */
#include "tokenize/template_tree.h"

#include <math.h>
#include <string.h>

static const char *sign_of(int operation) {
    static const char *const signs[] = {"",   "+",  "-", "*",  "/", "//", "%",  "**",    "~",
                                        "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
    return signs[operation];
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------------- */

static const dr_object *too_large(dr_template *t) {
    return dr_template_fail(t, "a whole number does not fit into 64 bits");
}

static const dr_object *whole_power(dr_template *t, int64_t base, int64_t power) {
    int64_t product = 1;
    if (power < 0 && base == 0) return dr_template_fail(t, "division by zero");
    if (power < 0) return dr_object_real(t, pow((double)base, (double)power));
    if (base == 0 || base == 1) return dr_object_integer(t, power == 0 ? 1 : base);
    if (base == -1) return dr_object_integer(t, power % 2 ? -1 : 1);
    for (; power > 0; power--)
        if (__builtin_mul_overflow(product, base, &product)) return too_large(t);
    return dr_object_integer(t, product);
}

static const dr_object *whole(dr_template *t, int operation, int64_t a, int64_t b) {
    int64_t c = 0;
    bool overflow = false;
    switch (operation) {
    case DR_ADD:
        overflow = __builtin_add_overflow(a, b, &c);
        break;
    case DR_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &c);
        break;
    case DR_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &c);
        break;
    case DR_POWER:
        return whole_power(t, a, b);
    case DR_FLOOR:
    case DR_REMAINDER:
        if (b == 0) return dr_template_fail(t, "division by zero");
        overflow = b == -1 && a == INT64_MIN && operation == DR_FLOOR;
        if (b == -1) {
            c = overflow || operation == DR_REMAINDER ? 0 : -a;
        } else {
            int64_t quotient = a / b, rest = a % b;
            if (rest != 0 && (rest < 0) != (b < 0)) quotient--, rest += b;
            c = operation == DR_FLOOR ? quotient : rest;
        }
        break;
    default:
        return dr_template_fail(t, "the operator %s has no meaning for whole numbers", sign_of(operation));
    }
    return overflow ? too_large(t) : dr_object_integer(t, c);
}

static const dr_object *real(dr_template *t, int operation, double a, double b) {
    if (b == 0 && (operation == DR_DIVIDE || operation == DR_FLOOR || operation == DR_REMAINDER))
        return dr_template_fail(t, "division by zero");
    if (operation == DR_POWER && ((a == 0 && b < 0) || (a < 0 && b != floor(b))))
        return dr_template_fail(t, "this power of a negative number or 0 is no real number");
    double rest = 0, floored = 0;
    if (operation == DR_FLOOR || operation == DR_REMAINDER) {
        rest = fmod(a, b);
        floored = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b, floored -= 1;
        if (rest == 0) rest = copysign(0, b);
        floored = floored == 0 ? copysign(0, a / b) : floor(floored) + (floored - floor(floored) > 0.5);
    }
    switch (operation) {
    case DR_ADD:
        return dr_object_real(t, a + b);
    case DR_SUBTRACT:
        return dr_object_real(t, a - b);
    case DR_MULTIPLY:
        return dr_object_real(t, a * b);
    case DR_DIVIDE:
        return dr_object_real(t, a / b);
    case DR_FLOOR:
        return dr_object_real(t, floored);
    case DR_REMAINDER:
        return dr_object_real(t, rest);
    case DR_POWER:
        return dr_object_real(t, pow(a, b));
    default:
        return dr_template_fail(t, "the operator %s has no meaning for numbers", sign_of(operation));
    }
}

/* Two texts. One that is marked as safe makes the other one be escaped, as the marked strings of Jinja do. */
static const dr_object *joined(dr_template *t, const dr_object *a, const dr_object *b) {
    dr_builder out = {0};
    bool safe = a->safe || b->safe;
    for (int i = 0; i < 2; i++) {
        const dr_object *part = i ? b : a;
        bool escapes = safe && !part->safe;
        if (escapes ? !dr_text_escape(t, part->text, &out) : !dr_builder_append(t, &out, part->text.bytes, part->text.count))
            return NULL;
    }
    dr_object *value = (dr_object *)dr_builder_value(t, &out);
    if (value) value->safe = safe;
    return value;
}

static bool is_list(const dr_object *value) {
    return value->kind == DR_OBJECT_LIST || value->kind == DR_OBJECT_TUPLE;
}

static const dr_object *repeated(dr_template *t, const dr_object *a, int64_t times) {
    dr_builder out = {0};
    dr_values items = {0};
    if ((a->kind == DR_OBJECT_TEXT ? a->text.count : a->list.count) == 0) return a;
    for (int64_t i = 0; i < times; i++) {
        if (!dr_template_charge(t, 1)) return NULL;
        if (a->kind == DR_OBJECT_TEXT && !dr_builder_append(t, &out, a->text.bytes, a->text.count)) return NULL;
        for (size_t j = 0; is_list(a) && j < a->list.count; j++)
            if (!dr_values_append(t, &items, a->list.at[j])) return NULL;
    }
    return a->kind == DR_OBJECT_TEXT ? dr_builder_value(t, &out) : dr_object_list(t, a->kind, items);
}

const dr_object *dr_operate(dr_template *t, int operation, const dr_object *a, const dr_object *b) {
    int64_t x, y;
    if (operation == DR_JOIN) {
        dr_builder out = {0};
        return dr_object_print(t, a, &out) && dr_object_print(t, b, &out) ? dr_builder_value(t, &out) : NULL;
    }
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (operation == DR_REMAINDER && a->kind == DR_OBJECT_TEXT) return dr_text_format(t, a->text, b);
    if (b->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", b->text.bytes);
    bool whole_a = dr_object_as_integer(a, &x), whole_b = dr_object_as_integer(b, &y);
    if (whole_a && whole_b && operation != DR_DIVIDE) return whole(t, operation, x, y);
    if (dr_object_is_number(a) && dr_object_is_number(b)) return real(t, operation, dr_object_number(a), dr_object_number(b));
    if (operation == DR_ADD && a->kind == DR_OBJECT_TEXT && b->kind == DR_OBJECT_TEXT) return joined(t, a, b);
    if (operation == DR_ADD && is_list(a) && a->kind == b->kind) {
        dr_values items = {0};
        for (size_t i = 0; i < a->list.count + b->list.count; i++)
            if (!dr_values_append(t, &items, i < a->list.count ? a->list.at[i] : b->list.at[i - a->list.count])) return NULL;
        return dr_object_list(t, a->kind, items);
    }
    if (operation == DR_MULTIPLY && whole_b && (a->kind == DR_OBJECT_TEXT || is_list(a))) return repeated(t, a, y);
    if (operation == DR_MULTIPLY && whole_a && (b->kind == DR_OBJECT_TEXT || is_list(b))) return repeated(t, b, x);
    return dr_template_fail(t, "a %s %s a %s has no meaning", dr_object_type(a), sign_of(operation), dr_object_type(b));
}

const dr_object *dr_negate(dr_template *t, const dr_object *a, int operation) {
    int64_t integer;
    bool minus = operation == DR_SUBTRACT;
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (a->kind == DR_OBJECT_REAL) return minus ? dr_object_real(t, -a->real) : a;
    if (!dr_object_as_integer(a, &integer)) return dr_template_fail(t, "a %s has no sign", dr_object_type(a));
    return integer == INT64_MIN && minus ? too_large(t) : dr_object_integer(t, minus ? -integer : integer);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------------- */

static bool contains(dr_template *t, const dr_object *all, const dr_object *part, bool *holds) {
    dr_values items;
    *holds = false;
    if (all->kind == DR_OBJECT_TEXT) {
        if (part->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", part->text.bytes);
        if (part->kind != DR_OBJECT_TEXT) return dr_template_fail(t, "a %s cannot be in a str", dr_object_type(part));
        *holds = dr_text_find(all->text, part->text, 0) <= all->text.count;
        return dr_template_charge(t, all->text.count / 16);
    }
    if (all->kind == DR_OBJECT_DICT) {
        *holds = dr_object_need_key(t, part) && dr_dict_get(t, &all->dict, part) != NULL;
        return t->status == DR_OK;
    }
    if (!dr_object_walk(t, all, &items)) return false;
    for (size_t i = 0; i < items.count && !*holds; i++) *holds = dr_object_equal(t, items.at[i], part);
    return t->status == DR_OK;
}

bool dr_compare(dr_template *t, int operation, const dr_object *a, const dr_object *b, bool *holds) {
    int order;
    switch (operation) {
    case DR_EQUAL:
    case DR_UNEQUAL:
        *holds = dr_object_equal(t, a, b) == (operation == DR_EQUAL);
        return t->status == DR_OK;
    case DR_IN:
    case DR_NOT_IN:
        if (!contains(t, b, a, holds)) return false;
        *holds = *holds == (operation == DR_IN);
        return true;
    default:
        break;
    }
    if (!dr_object_order(t, a, b, &order)) return false;
    *holds = order != 2 && (operation == DR_LESS         ? order < 0
                            : operation == DR_LESS_EQUAL ? order <= 0
                            : operation == DR_GREATER    ? order > 0
                                                         : order >= 0);
    return true;
}

/* ---- parts ------------------------------------------------------------------------------------------------------------- */

static const dr_object *loop_attribute(dr_template *t, const dr_object *value, const dr_object *name) {
    const dr_loop *loop = value->loop;
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items.count;
    if (dr_object_is(name, "index")) return dr_object_integer(t, index + 1);
    if (dr_object_is(name, "index0")) return dr_object_integer(t, index);
    if (dr_object_is(name, "revindex")) return dr_object_integer(t, count - index);
    if (dr_object_is(name, "revindex0")) return dr_object_integer(t, count - index - 1);
    if (dr_object_is(name, "first")) return dr_object_boolean(index == 0);
    if (dr_object_is(name, "last")) return dr_object_boolean(index + 1 == count);
    if (dr_object_is(name, "length")) return dr_object_integer(t, count);
    if (dr_object_is(name, "depth")) return dr_object_integer(t, loop->depth + 1);
    if (dr_object_is(name, "depth0")) return dr_object_integer(t, loop->depth);
    if (dr_object_is(name, "previtem"))
        return index > 0 ? loop->items.at[index - 1] : dr_object_undefined(t, "there is no previous item");
    if (dr_object_is(name, "nextitem"))
        return index + 1 < count ? loop->items.at[index + 1] : dr_object_undefined(t, "there is no next item");
    return NULL;
}

/* An attribute or method that is there, or NULL. */
static const dr_object *own_attribute(dr_template *t, const dr_object *a, const dr_object *name) {
    const char *found;
    const dr_object *value = NULL;
    if (a->kind == DR_OBJECT_LOOP) value = loop_attribute(t, a, name);
    if (a->kind == DR_OBJECT_NAMESPACE) return dr_dict_get(t, a->space, name);
    if (a->kind == DR_OBJECT_MACRO && dr_object_is(name, "name")) return a->macro.node->value;
    if (a->group && (dr_object_is(name, "grouper") || dr_object_is(name, "list")))
        value = a->list.at[dr_object_is(name, "list")];
    if (value || t->status != DR_OK) return value;
    dr_function *method = dr_method_find(a, name, &found);
    return method ? dr_object_method(t, a, found, method) : NULL;
}

static const dr_object *no_attribute(dr_template *t, const dr_object *a, const dr_object *name) {
    int count = name->text.count > 60 ? 60 : (int)name->text.count;
    return dr_object_undefined(t, "a %s has no '%.*s'", dr_object_type(a), count, name->text.bytes);
}

const dr_object *dr_attribute(dr_template *t, const dr_object *a, const dr_object *name) {
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    const dr_object *value = own_attribute(t, a, name);
    if (!value && t->status == DR_OK && a->kind == DR_OBJECT_DICT) value = dr_dict_get(t, &a->dict, name);
    if (value || t->status != DR_OK) return value;
    return no_attribute(t, a, name);
}

const dr_object *dr_subscript(dr_template *t, const dr_object *a, const dr_object *key) {
    int64_t place, count;
    const dr_object *value = NULL;
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (a->kind == DR_OBJECT_DICT) value = dr_dict_get(t, &a->dict, key);
    if (value || t->status != DR_OK) return value;
    bool by_place = a->kind == DR_OBJECT_TEXT || is_list(a) || dr_object_is_range(a);
    if (by_place && dr_object_as_integer(key, &place)) {
        if (!dr_object_length(t, a, &count)) return NULL;
        if (place < 0) place += count;
        if (place < 0 || place >= count)
            return dr_object_undefined(t, "a %s of %lld has no such item", dr_object_type(a), (long long)count);
        if (a->kind == DR_OBJECT_SERIES) return a->series.items.at[place];
        if (is_list(a)) return a->list.at[place];
        size_t begin = dr_text_offset(a->text, place), end = begin;
        dr_character_next(a->text, &end);
        return dr_template_charge(t, a->text.count / 16) ? dr_object_text(t, a->text.bytes + begin, end - begin) : NULL;
    }
    if (key->kind != DR_OBJECT_TEXT)
        return dr_object_undefined(t, "a %s has no item for this %s", dr_object_type(a), dr_object_type(key));
    value = own_attribute(t, a, key);
    return value || t->status != DR_OK ? value : no_attribute(t, a, key);
}

/* A bound of a slice within [least, most]. */
static bool bound(dr_template *t, const dr_object *value, int64_t count, int64_t least, int64_t most, int64_t *place) {
    if (value->kind == DR_OBJECT_NONE) return true;
    if (!dr_object_as_integer(value, place))
        return dr_template_fail(t, "the bounds of a slice must be whole numbers, not a %s", dr_object_type(value));
    if (*place < 0) *place += count;
    *place = *place < least ? least : *place > most ? most : *place;
    return true;
}

const dr_object *dr_slice(dr_template *t, const dr_object *a, const dr_object *from, const dr_object *to,
                          const dr_object *step) {
    int64_t by = 1, count, begin, end;
    if (a->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", a->text.bytes);
    if (a->kind != DR_OBJECT_TEXT && !is_list(a) && !dr_object_is_range(a))
        return dr_template_fail(t, "a %s cannot be sliced", dr_object_type(a));
    if (step->kind != DR_OBJECT_NONE && !dr_object_as_integer(step, &by))
        return dr_template_fail(t, "the step of a slice must be a whole number, not a %s", dr_object_type(step));
    if (by == 0) return dr_template_fail(t, "the step of a slice is 0");
    if (!dr_object_length(t, a, &count)) return NULL;
    begin = by > 0 ? 0 : count - 1, end = by > 0 ? count : -1;
    if (!bound(t, from, count, by > 0 ? 0 : -1, by > 0 ? count : count - 1, &begin)) return NULL;
    if (!bound(t, to, count, by > 0 ? 0 : -1, by > 0 ? count : count - 1, &end)) return NULL;
    if (a->kind == DR_OBJECT_TEXT && by == 1) {
        size_t first = dr_text_offset(a->text, begin), last = end > begin ? dr_text_offset(a->text, end) : first;
        return dr_template_charge(t, a->text.count / 8) ? dr_object_text(t, a->text.bytes + first, last - first) : NULL;
    }
    dr_values all, items = {0};
    dr_builder out = {0};
    if (!dr_object_walk(t, a, &all)) return NULL;
    for (int64_t i = begin; by > 0 ? i < end : i > end;) {
        const dr_object *item = all.at[i];
        if (a->kind == DR_OBJECT_TEXT ? !dr_builder_append(t, &out, item->text.bytes, item->text.count)
                                      : !dr_values_append(t, &items, item))
            return NULL;
        if (__builtin_add_overflow(i, by, &i)) break;
    }
    if (a->kind == DR_OBJECT_TEXT) return dr_builder_value(t, &out);
    return a->kind == DR_OBJECT_SERIES ? dr_object_series(t, "range", items, false) : dr_object_list(t, a->kind, items);
}
