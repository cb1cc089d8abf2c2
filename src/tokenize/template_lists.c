/* Filters of lists, dicts and all else that can be walked. */
#include "tokenize/template_tree.h"

#include <string.h>

static bool whole_of(dr_template *t, const dr_call_arguments *call, const dr_object *value, int64_t *number) {
    if (!value || dr_object_as_integer(value, number)) return true;
    return dr_template_fail(t, "%s needs a whole number, not a %s", call->name, dr_object_type(value));
}

/* An item's attribute by a name with points ("function.name"), a number, or None for the item itself. Where one is missing,
 * `missing` stands for it unless that is NULL. */
static const dr_object *attribute_of(dr_template *t, const dr_object *item, const dr_object *attribute,
                                     const dr_object *missing) {
    if (!attribute || attribute->kind == DR_OBJECT_NONE) return item;
    if (attribute->kind != DR_OBJECT_TEXT) return dr_subscript(t, item, attribute);
    dr_span rest = attribute->text;
    while (item) {
        const char *point = memchr(rest.bytes, '.', rest.count);
        dr_span name = {rest.bytes, point ? (size_t)(point - rest.bytes) : rest.count};
        dr_object text = {.kind = DR_OBJECT_TEXT, .text = name}, number = {.kind = DR_OBJECT_INTEGER};
        bool digits = name.count > 0 && name.count < 18;
        for (size_t i = 0; i < name.count && digits; i++) {
            digits = name.bytes[i] >= '0' && name.bytes[i] <= '9';
            number.integer = 10 * number.integer + (name.bytes[i] - '0');
        }
        item = dr_subscript(t, item, digits ? &number : &text);
        if (item && missing && item->kind == DR_OBJECT_UNDEFINED) item = missing;
        if (!point) break;
        rest.bytes += name.count + 1, rest.count -= name.count + 1;
    }
    return item;
}

/* What is compared: an attribute, in small letters unless case counts. */
static const dr_object *key_of(dr_template *t, const dr_object *item, const dr_object *attribute, const dr_object *missing,
                               bool exact) {
    const dr_object *key = attribute_of(t, item, attribute, missing);
    dr_builder small = {0};
    if (!key || exact || key->kind != DR_OBJECT_TEXT) return key;
    return dr_text_change(t, key->text, DR_TEXT_LOWER, &small) ? dr_builder_value(t, &small) : NULL;
}

/* Several attributes with commas between give a list of keys. */
static const dr_object *keys_of(dr_template *t, const dr_object *item, const dr_object *attribute, bool exact) {
    dr_values keys = {0};
    if (!attribute || attribute->kind != DR_OBJECT_TEXT || !memchr(attribute->text.bytes, ',', attribute->text.count))
        return key_of(t, item, attribute, NULL, exact);
    for (dr_span rest = attribute->text;;) {
        const char *comma = memchr(rest.bytes, ',', rest.count);
        dr_object one = {.kind = DR_OBJECT_TEXT, .text = {rest.bytes, comma ? (size_t)(comma - rest.bytes) : rest.count}};
        if (!dr_values_append(t, &keys, key_of(t, item, &one, NULL, exact))) return NULL;
        if (!comma) break;
        rest.bytes += one.text.count + 1, rest.count -= one.text.count + 1;
    }
    return dr_object_list(t, DR_OBJECT_LIST, keys);
}

/* ---- sorting ------------------------------------------------------------------------------------------------------------ */

bool dr_values_sort(dr_template *t, const dr_values *keys, bool reverse, size_t *places) {
    size_t count = keys->count, *from = places, *to = dr_template_take(t, count * sizeof *to), *merged = to;
    if (!to) return false;
    for (size_t i = 0; i < count; i++) places[i] = i;
    for (size_t run = 1; run < count; run *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * run) {
            size_t middle = begin + run < count ? begin + run : count, end = middle + run < count ? middle + run : count;
            for (size_t a = begin, b = middle, at = begin; at < end; at++) {
                int order = 0;
                bool both = a < middle && b < end;
                if (both && (!dr_template_charge(t, 1) || !dr_object_order(t, keys->at[from[b]], keys->at[from[a]], &order)))
                    return false;
                bool takes_b = both ? (reverse ? order > 0 && order != 2 : order < 0) : a == middle;
                merged[at] = takes_b ? from[b++] : from[a++];
            }
        }
        size_t *sorted = merged;
        merged = from, from = sorted;
    }
    if (from != places) memcpy(places, from, count * sizeof *places);
    return true;
}

static const dr_object *sorted(dr_template *t, const dr_values *items, const dr_values *keys, bool reverse) {
    dr_values list = {0};
    size_t *places = dr_template_take(t, items->count * sizeof *places);
    if (!places || !dr_values_sort(t, keys, reverse, places)) return NULL;
    for (size_t i = 0; i < items->count; i++)
        if (!dr_values_append(t, &list, items->at[places[i]])) return NULL;
    return dr_object_list(t, DR_OBJECT_LIST, list);
}

static const dr_object *sort(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[3];
    dr_values items, keys = {0};
    if (!dr_call_take(t, call, "reverse case_sensitive attribute", taken) || !dr_object_walk(t, a, &items)) return NULL;
    bool exact = taken[1] && dr_object_truth(taken[1]);
    for (size_t i = 0; i < items.count; i++)
        if (!dr_values_append(t, &keys, keys_of(t, items.at[i], taken[2], exact))) return NULL;
    return sorted(t, &items, &keys, taken[0] && dr_object_truth(taken[0]));
}

static const dr_object *dictsort(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[3];
    dr_values items = {0}, keys = {0};
    if (!dr_call_take(t, call, "case_sensitive by reverse", taken)) return NULL;
    if (a->kind != DR_OBJECT_DICT) return dr_template_fail(t, "dictsort needs a dict, not a %s", dr_object_type(a));
    bool by_value = taken[1] && dr_object_is(taken[1], "value"), exact = taken[0] && dr_object_truth(taken[0]);
    if (taken[1] && !by_value && !dr_object_is(taken[1], "key"))
        return dr_template_fail(t, "dictsort: by must be key or value");
    for (size_t i = 0; i < a->dict.keys.count; i++) {
        const dr_object *key = key_of(t, by_value ? a->dict.values.at[i] : a->dict.keys.at[i], NULL, NULL, exact);
        if (!dr_values_append(t, &keys, key)) return NULL;
        if (!dr_values_append(t, &items, dr_object_pair(t, a->dict.keys.at[i], a->dict.values.at[i]))) return NULL;
    }
    return sorted(t, &items, &keys, taken[2] && dr_object_truth(taken[2]));
}

static const dr_object *groupby(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[3];
    dr_values items, keys = {0}, groups = {0};
    if (!dr_call_take(t, call, "attribute default case_sensitive", taken) || !dr_object_walk(t, a, &items)) return NULL;
    if (!taken[0]) return dr_template_fail(t, "groupby needs an attribute");
    bool exact = taken[2] && dr_object_truth(taken[2]);
    for (size_t i = 0; i < items.count; i++)
        if (!dr_values_append(t, &keys, key_of(t, items.at[i], taken[0], taken[1], exact))) return NULL;
    size_t *places = dr_template_take(t, items.count * sizeof *places);
    if (!places || !dr_values_sort(t, &keys, false, places)) return NULL;
    for (size_t i = 0; i < items.count;) {
        dr_values members = {0};
        size_t first = i;
        for (; i < items.count && dr_object_equal(t, keys.at[places[i]], keys.at[places[first]]); i++)
            if (!dr_values_append(t, &members, items.at[places[i]])) return NULL;
        if (i == first) { /* not equal to itself: not a number */
            if (t->status != DR_OK || !dr_values_append(t, &members, items.at[places[i++]])) return NULL;
        }
        const dr_object *key = attribute_of(t, items.at[places[first]], taken[0], taken[1]);
        dr_object *group = key ? (dr_object *)dr_object_pair(t, key, dr_object_list(t, DR_OBJECT_LIST, members)) : NULL;
        if (!group) return NULL;
        group->group = true;
        if (!dr_values_append(t, &groups, group)) return NULL;
    }
    return dr_object_list(t, DR_OBJECT_LIST, groups);
}

static const dr_object *unique(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    dr_values items, kept = {0};
    dr_dict seen = {{0}, {0}};
    if (!dr_call_take(t, call, "case_sensitive attribute", taken) || !dr_object_walk(t, a, &items)) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_object *key = key_of(t, items.at[i], taken[1], NULL, taken[0] && dr_object_truth(taken[0]));
        if (!key) return NULL;
        if (dr_dict_get(t, &seen, key)) continue;
        if (!dr_dict_put(t, &seen, key, key) || !dr_values_append(t, &kept, items.at[i])) return NULL;
    }
    return dr_object_series(t, "generator", kept, true);
}

static const dr_object *extreme(dr_template *t, const dr_object *a, const dr_call_arguments *call, int wanted) {
    const dr_object *taken[2], *best = NULL, *best_key = NULL;
    dr_values items;
    if (!dr_call_take(t, call, "case_sensitive attribute", taken) || !dr_object_walk(t, a, &items)) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_object *key = key_of(t, items.at[i], taken[1], NULL, taken[0] && dr_object_truth(taken[0]));
        int order = wanted;
        if (!key || (best && !dr_object_order(t, key, best_key, &order))) return NULL;
        if (order != 2 && (wanted < 0 ? order < 0 : order > 0)) best = items.at[i], best_key = key;
    }
    return best ? best : dr_object_undefined(t, "%s of nothing", wanted < 0 ? "min" : "max");
}

static const dr_object *least(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return extreme(t, a, call, -1);
}

static const dr_object *most(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return extreme(t, a, call, 1);
}

/* ---- choosing ----------------------------------------------------------------------------------------------------------- */

/* Calls a filter or test that is named by the argument at `at`, with the arguments behind it. */
static const dr_object *apply(dr_template *t, const dr_object *item, const dr_call_arguments *call, size_t at, bool is_test) {
    const dr_object *name = call->arguments.at[at];
    dr_function *function = is_test ? dr_test_find(name) : dr_filter_find(name);
    dr_call_arguments made = {.name = call->name, .named = call->named};
    if (!function) {
        name = dr_object_as_text(t, name);
        if (!name) return NULL;
        int count = name->text.count > 80 ? 80 : (int)name->text.count;
        return dr_template_fail(t, "there is no %s '%.*s'", is_test ? "test" : "filter", count, name->text.bytes);
    }
    made.arguments = (dr_values){call->arguments.at + at + 1, call->arguments.count - at - 1, call->arguments.count - at - 1};
    return function(t, item, &made);
}

static const dr_object *chosen(dr_template *t, const dr_object *a, const dr_call_arguments *call, bool by_attribute,
                               bool wanted) {
    dr_values items, kept = {0};
    if (by_attribute && call->arguments.count == 0) return dr_template_fail(t, "selectattr and rejectattr need an attribute");
    if (!dr_object_walk(t, a, &items)) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_object *holds = by_attribute ? attribute_of(t, items.at[i], call->arguments.at[0], NULL) : items.at[i];
        if (holds && call->arguments.count > by_attribute) holds = apply(t, holds, call, by_attribute, true);
        if (!holds || (dr_object_truth(holds) == wanted && !dr_values_append(t, &kept, items.at[i]))) return NULL;
    }
    return dr_object_series(t, "generator", kept, true);
}

static const dr_object *select_items(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return chosen(t, a, call, false, true);
}

static const dr_object *reject(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return chosen(t, a, call, false, false);
}

static const dr_object *selectattr(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return chosen(t, a, call, true, true);
}

static const dr_object *rejectattr(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    return chosen(t, a, call, true, false);
}

static const dr_object *map(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_values items, made = {0};
    const dr_object *taken[2] = {NULL, NULL};
    if (call->arguments.count == 0 && call->named.keys.count == 0)
        return dr_template_fail(t, "map needs a filter or an attribute");
    if (call->arguments.count == 0 && !dr_call_take(t, call, "attribute default", taken)) return NULL;
    if (!dr_object_walk(t, a, &items)) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_object *item =
            call->arguments.count ? apply(t, items.at[i], call, 0, false) : attribute_of(t, items.at[i], taken[0], taken[1]);
        if (!dr_values_append(t, &made, item)) return NULL;
    }
    return dr_object_series(t, "generator", made, true);
}

/* ---- others ------------------------------------------------------------------------------------------------------------- */

static const dr_object *length(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    int64_t count;
    if (!dr_call_take(t, call, "", NULL) || !dr_object_length(t, a, &count)) return NULL;
    return dr_object_integer(t, count);
}

static const dr_object *first(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_values items;
    if (!dr_call_take(t, call, "", NULL) || !dr_object_walk(t, a, &items)) return NULL;
    return items.count ? items.at[0] : dr_object_undefined(t, "there is no first item");
}

static const dr_object *last(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_values items;
    if (!dr_call_take(t, call, "", NULL) || !dr_object_walk(t, a, &items)) return NULL;
    return items.count ? items.at[items.count - 1] : dr_object_undefined(t, "there is no last item");
}

static const dr_object *join(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2], *between = &dr_object_empty;
    dr_values items;
    dr_builder out = {0};
    if (!dr_call_take(t, call, "d attribute", taken) || !dr_object_walk(t, a, &items)) return NULL;
    if (taken[0] && !(between = dr_object_as_text(t, taken[0]))) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_object *item = attribute_of(t, items.at[i], taken[1], NULL);
        if (i > 0 && !dr_builder_append(t, &out, between->text.bytes, between->text.count)) return NULL;
        if (!item || !dr_object_print(t, item, &out)) return NULL;
    }
    return dr_builder_value(t, &out);
}

static const dr_object *list(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_values items;
    if (!dr_call_take(t, call, "", NULL) || !dr_object_walk(t, a, &items)) return NULL;
    return dr_object_list(t, DR_OBJECT_LIST, items);
}

static const dr_object *reverse(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    dr_values items, turned = {0};
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !dr_object_walk(t, a, &items)) return NULL;
    for (size_t i = items.count; i-- > 0;) {
        bool text = a->kind == DR_OBJECT_TEXT;
        if (text ? !dr_object_print(t, items.at[i], &out) : !dr_values_append(t, &turned, items.at[i])) return NULL;
    }
    return a->kind == DR_OBJECT_TEXT ? dr_builder_value(t, &out) : dr_object_series(t, "list_reverseiterator", turned, true);
}

static const dr_object *items_of(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *name = dr_object_string(t, "items");
    const char *found;
    dr_values none = {0};
    if (!name || a->kind == DR_OBJECT_UNDEFINED) return dr_object_series(t, "generator", none, true);
    if (a->kind != DR_OBJECT_DICT) return dr_template_fail(t, "items needs a dict, not a %s", dr_object_type(a));
    return dr_method_find(a, name, &found)(t, a, call);
}

static const dr_object *sum(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2], *total;
    dr_values items;
    if (!dr_call_take(t, call, "attribute start", taken) || !dr_object_walk(t, a, &items)) return NULL;
    total = taken[1] ? taken[1] : dr_object_integer(t, 0);
    for (size_t i = 0; i < items.count && total; i++) {
        const dr_object *item = attribute_of(t, items.at[i], taken[0], NULL);
        total = item ? dr_operate(t, DR_ADD, total, item) : NULL;
    }
    return total;
}

/* `count` items from `begin` on, filled up to `width`, as one item of lists. */
static bool append_part(dr_template *t, const dr_values *items, size_t begin, size_t count, size_t width, const dr_object *fill,
                        dr_values *lists) {
    dr_values part = {0};
    for (size_t i = 0; i < count; i++)
        if (!dr_values_append(t, &part, items->at[begin + i])) return false;
    while (fill && part.count < width)
        if (!dr_values_append(t, &part, fill)) return false;
    return dr_values_append(t, lists, dr_object_list(t, DR_OBJECT_LIST, part));
}

static const dr_object *batch(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    dr_values items, lists = {0};
    int64_t size = 0;
    if (!dr_call_take(t, call, "linecount fill_with", taken) || !whole_of(t, call, taken[0], &size) ||
        !dr_object_walk(t, a, &items))
        return NULL;
    if (size < 1) return dr_template_fail(t, "batch needs a count of at least 1");
    if (taken[1] && taken[1]->kind == DR_OBJECT_NONE) taken[1] = NULL;
    for (size_t at = 0; at < items.count; at += (size_t)size) {
        size_t left = items.count - at, count = left < (size_t)size ? left : (size_t)size;
        if (!append_part(t, &items, at, count, (size_t)size, taken[1], &lists)) return NULL;
    }
    return dr_object_series(t, "generator", lists, true);
}

static const dr_object *slices(dr_template *t, const dr_object *a, const dr_call_arguments *call) {
    const dr_object *taken[2];
    dr_values items, lists = {0};
    int64_t parts = 0;
    size_t at = 0;
    if (!dr_call_take(t, call, "slices fill_with", taken) || !whole_of(t, call, taken[0], &parts) ||
        !dr_object_walk(t, a, &items))
        return NULL;
    if (parts < 1) return dr_template_fail(t, "slice needs a count of at least 1");
    if (taken[1] && taken[1]->kind == DR_OBJECT_NONE) taken[1] = NULL;
    size_t each = items.count / (size_t)parts, more = items.count % (size_t)parts;
    for (size_t i = 0; i < (size_t)parts; i++) {
        size_t count = each + (i < more);
        if (!append_part(t, &items, at, count, i >= more ? each + 1 : 0, taken[1], &lists)) return NULL;
        at += count;
    }
    return dr_object_series(t, "generator", lists, true);
}

const dr_named_function dr_filters_of_lists[] = {{"length", length},
                                                 {"count", length},
                                                 {"first", first},
                                                 {"last", last},
                                                 {"join", join},
                                                 {"list", list},
                                                 {"reverse", reverse},
                                                 {"items", items_of},
                                                 {"map", map},
                                                 {"select", select_items},
                                                 {"reject", reject},
                                                 {"selectattr", selectattr},
                                                 {"rejectattr", rejectattr},
                                                 {"sort", sort},
                                                 {"dictsort", dictsort},
                                                 {"groupby", groupby},
                                                 {"unique", unique},
                                                 {"min", least},
                                                 {"max", most},
                                                 {"sum", sum},
                                                 {"batch", batch},
                                                 {"slice", slices},
                                                 {NULL, NULL}};
