/* Methods of texts, dicts, lists and loops. Those that would change a value are not there. */
#include "tokenize/template.h"

#include <string.h>

/* The text of an argument; NULL where it is missing or None. Fails for other types. */
static bool text_argument(dr_template *t, const dr_call_arguments *call, const dr_object *value, const dr_span **text) {
    *text = NULL;
    if (!value || value->kind == DR_OBJECT_NONE) return true;
    if (value->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", value->text.bytes);
    if (value->kind != DR_OBJECT_TEXT)
        return dr_template_fail(t, "%s needs a str, not a %s", call->name, dr_object_type(value));
    *text = &value->text;
    return true;
}

static bool whole_argument(dr_template *t, const dr_call_arguments *call, const dr_object *value, int64_t *number) {
    if (!value || value->kind == DR_OBJECT_NONE || dr_object_as_integer(value, number)) return true;
    return dr_template_fail(t, "%s needs a whole number, not a %s", call->name, dr_object_type(value));
}

static const dr_object *span_value(dr_template *t, dr_span span) {
    return dr_object_text(t, span.bytes, span.count);
}

static const dr_object *stripped(dr_template *t, const dr_object *self, const dr_call_arguments *call, int sides) {
    const dr_object *taken[1];
    const dr_span *set;
    if (!dr_call_take(t, call, "chars", taken) || !text_argument(t, call, taken[0], &set)) return NULL;
    if (!dr_template_charge(t, self->text.count * (set ? set->count + 1 : 1) / 16)) return NULL;
    return span_value(t, dr_text_strip(self->text, set, sides));
}

static const dr_object *strip(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return stripped(t, self, call, 3);
}

static const dr_object *lstrip(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return stripped(t, self, call, 1);
}

static const dr_object *rstrip(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return stripped(t, self, call, 2);
}

/* ---- splitting ---------------------------------------------------------------------------------------------------------- */

static bool split_at_blanks(dr_template *t, dr_span text, int64_t most, bool from_end, dr_values *parts) {
    int side = from_end ? 2 : 1;
    for (text = dr_text_strip(text, NULL, side); text.count > 0; text = dr_text_strip(text, NULL, side)) {
        size_t begin = 0, end = text.count;
        if (most-- == 0) {
            text = dr_text_strip(text, NULL, 3);
            return dr_values_append(t, parts, span_value(t, text));
        }
        if (from_end) {
            begin = text.count;
            while (begin > 0) {
                size_t before = begin - 1, at;
                while ((text.bytes[before] & 0xc0) == 0x80) before--;
                at = before;
                if (dr_character_blank(dr_character_next(text, &at))) break;
                begin = before;
            }
        } else {
            for (size_t at = 0; at < text.count;) {
                size_t here = at;
                if (!dr_character_blank(dr_character_next(text, &at))) continue;
                end = here;
                break;
            }
        }
        if (!dr_values_append(t, parts, dr_object_text(t, text.bytes + begin, end - begin))) return false;
        if (from_end)
            text.count = begin;
        else
            text.bytes += end, text.count -= end;
    }
    return true;
}

static bool split_at(dr_template *t, dr_span text, dr_span part, int64_t most, bool from_end, dr_values *parts) {
    for (; most != 0; most--) {
        size_t at = from_end ? dr_text_find_last(t, text, part) : dr_text_find(text, part, 0);
        if (!dr_template_charge(t, 1 + (from_end ? 0 : text.count / 1024))) return false;
        if (at > text.count) break;
        dr_span piece =
            from_end ? (dr_span){text.bytes + at + part.count, text.count - at - part.count} : (dr_span){text.bytes, at};
        if (!dr_values_append(t, parts, span_value(t, piece))) return false;
        if (from_end)
            text.count = at;
        else
            text.bytes += at + part.count, text.count -= at + part.count;
    }
    return dr_values_append(t, parts, span_value(t, text));
}

static const dr_object *splitted(dr_template *t, const dr_object *self, const dr_call_arguments *call, bool from_end) {
    const dr_object *taken[2];
    const dr_span *part;
    dr_values parts = {0};
    int64_t most = -1;
    if (!dr_call_take(t, call, "sep maxsplit", taken) || !text_argument(t, call, taken[0], &part)) return NULL;
    if (!whole_argument(t, call, taken[1], &most)) return NULL;
    if (part && part->count == 0) return dr_template_fail(t, "%s: the separator is empty", call->name);
    if (most < 0) most = -1;
    bool done =
        part ? split_at(t, self->text, *part, most, from_end, &parts) : split_at_blanks(t, self->text, most, from_end, &parts);
    if (!done || !dr_template_charge(t, self->text.count / 16)) return NULL;
    for (size_t i = 0; from_end && i < parts.count / 2; i++) {
        const dr_object *other = parts.at[parts.count - 1 - i];
        parts.at[parts.count - 1 - i] = parts.at[i], parts.at[i] = other;
    }
    return dr_object_list(t, DR_OBJECT_LIST, parts);
}

static const dr_object *split(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return splitted(t, self, call, false);
}

static const dr_object *rsplit(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return splitted(t, self, call, true);
}

static const dr_object *splitlines(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *taken[1];
    if (!dr_call_take(t, call, "keepends", taken)) return NULL;
    return dr_text_lines(t, self->text, taken[0] && dr_object_truth(taken[0]));
}

static const dr_object *parted(dr_template *t, const dr_object *self, const dr_call_arguments *call, bool from_end) {
    const dr_object *taken[1];
    const dr_span *part;
    dr_values parts = {0};
    if (!dr_call_take(t, call, "sep", taken) || !text_argument(t, call, taken[0], &part)) return NULL;
    if (!part || part->count == 0) return dr_template_fail(t, "%s needs a separator that is not empty", call->name);
    if (!split_at(t, self->text, *part, 1, from_end, &parts)) return NULL;
    bool found = parts.count == 2;
    const dr_object *whole = parts.at[0], *first = found ? parts.at[from_end] : whole,
                    *last = found ? parts.at[!from_end] : NULL;
    dr_values three = {0};
    if (!found) first = from_end ? &dr_object_empty : whole, last = from_end ? whole : &dr_object_empty;
    if (!dr_values_append(t, &three, first) || !dr_values_append(t, &three, found ? taken[0] : &dr_object_empty)) return NULL;
    return dr_values_append(t, &three, last) ? dr_object_list(t, DR_OBJECT_TUPLE, three) : NULL;
}

static const dr_object *partition(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return parted(t, self, call, false);
}

static const dr_object *rpartition(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return parted(t, self, call, true);
}

/* ---- finding ------------------------------------------------------------------------------------------------------------ */

/* Cuts self to the characters from taken[1] to taken[2]; *empty: from lies behind the end, where nothing is found. */
static bool window(dr_template *t, const dr_call_arguments *call, dr_span self, const dr_object **taken, dr_span *text,
                   bool *outside) {
    int64_t count = dr_text_characters(self), from = 0, to = count;
    if (!whole_argument(t, call, taken[1], &from) || !whole_argument(t, call, taken[2], &to)) return false;
    if (from < 0) from = from + count < 0 ? 0 : from + count;
    if (to < 0) to = to + count < 0 ? 0 : to + count;
    *outside = from > count || from > (to > count ? count : to);
    if (to > count) to = count;
    size_t begin = dr_text_offset(self, from), end = dr_text_offset(self, to);
    *text = *outside ? (dr_span){self.bytes, 0} : (dr_span){self.bytes + begin, end - begin};
    return dr_template_charge(t, self.count / 8);
}

static bool ends_with(dr_span text, dr_span part, bool at_end) {
    return text.count >= part.count &&
           memcmp(at_end ? text.bytes + text.count - part.count : text.bytes, part.bytes, part.count) == 0;
}

static const dr_object *affixed(dr_template *t, const dr_object *self, const dr_call_arguments *call, bool at_end) {
    const dr_object *taken[3];
    dr_span text;
    bool outside, found = false;
    if (!dr_call_take(t, call, at_end ? "suffix start end" : "prefix start end", taken)) return NULL;
    if (!window(t, call, self->text, taken, &text, &outside)) return NULL;
    dr_values one = {&taken[0], taken[0] != NULL, 1};
    const dr_values *parts = taken[0] && taken[0]->kind == DR_OBJECT_TUPLE ? &taken[0]->list : &one;
    if (!taken[0]) return dr_template_fail(t, "%s needs a str", call->name);
    for (size_t i = 0; i < parts->count; i++) {
        const dr_span *part;
        if (!text_argument(t, call, parts->at[i], &part)) return NULL;
        if (!part) return dr_template_fail(t, "%s needs a str, not None", call->name);
        found |= !outside && ends_with(text, *part, at_end);
    }
    return dr_object_boolean(found);
}

static const dr_object *startswith(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return affixed(t, self, call, false);
}

static const dr_object *endswith(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return affixed(t, self, call, true);
}

static const dr_object *without(dr_template *t, const dr_object *self, const dr_call_arguments *call, bool at_end) {
    const dr_object *taken[1];
    const dr_span *part;
    if (!dr_call_take(t, call, at_end ? "suffix" : "prefix", taken) || !text_argument(t, call, taken[0], &part)) return NULL;
    if (!part) return dr_template_fail(t, "%s needs a str", call->name);
    if (!ends_with(self->text, *part, at_end)) return self;
    return dr_object_text(t, self->text.bytes + (at_end ? 0 : part->count), self->text.count - part->count);
}

static const dr_object *removeprefix(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return without(t, self, call, false);
}

static const dr_object *removesuffix(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return without(t, self, call, true);
}

typedef enum { FIND_FIRST, FIND_LAST, FIND_ALL } find_what;

/* The character where a part is, -1: nowhere; or how often it is there. */
static const dr_object *found(dr_template *t, const dr_object *self, const dr_call_arguments *call, find_what what, bool must) {
    const dr_object *taken[3];
    const dr_span *part;
    dr_span text;
    bool outside;
    int64_t count = 0;
    if (!dr_call_take(t, call, "sub start end", taken) || !text_argument(t, call, taken[0], &part)) return NULL;
    if (!part) return dr_template_fail(t, "%s needs a str", call->name);
    if (!window(t, call, self->text, taken, &text, &outside)) return NULL;
    size_t none = text.count + 1, place = none;
    if (what == FIND_ALL && part->count == 0) return dr_object_integer(t, outside ? 0 : dr_text_characters(text) + 1);
    if (!outside) place = what == FIND_LAST ? dr_text_find_last(t, text, *part) : dr_text_find(text, *part, 0);
    for (size_t at = place; at < none && what == FIND_ALL; count++) {
        if (!dr_template_charge(t, 1)) return NULL;
        at = dr_text_find(text, *part, at + part->count);
    }
    if (what == FIND_ALL) return dr_object_integer(t, count);
    if (place == none && must) return dr_template_fail(t, "%s: the text is not there", call->name);
    if (place == none) return dr_object_integer(t, -1);
    return dr_object_integer(t,
                             dr_text_characters((dr_span){self->text.bytes, (size_t)(text.bytes - self->text.bytes) + place}));
}

static const dr_object *find(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return found(t, self, call, FIND_FIRST, false);
}

static const dr_object *rfind(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return found(t, self, call, FIND_LAST, false);
}

static const dr_object *text_index(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return found(t, self, call, FIND_FIRST, true);
}

static const dr_object *rindex_method(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return found(t, self, call, FIND_LAST, true);
}

static const dr_object *text_count(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return found(t, self, call, FIND_ALL, false);
}

/* ---- changing ----------------------------------------------------------------------------------------------------------- */

static const dr_object *changed(dr_template *t, const dr_object *self, const dr_call_arguments *call, dr_text_case change) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL) || !dr_text_change(t, self->text, change, &out)) return NULL;
    return dr_builder_value(t, &out);
}

static const dr_object *upper(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return changed(t, self, call, DR_TEXT_UPPER);
}

static const dr_object *lower(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return changed(t, self, call, DR_TEXT_LOWER);
}

static const dr_object *title(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return changed(t, self, call, DR_TEXT_TITLE);
}

static const dr_object *casefold(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return changed(t, self, call, DR_TEXT_FOLD);
}

static const dr_object *swapcase(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return changed(t, self, call, DR_TEXT_SWAP);
}

static const dr_object *capitalize(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    dr_builder out = {0};
    if (!dr_call_take(t, call, "", NULL)) return NULL;
    return dr_text_capitalize(t, self->text, &out) ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *replace(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *taken[3];
    const dr_span *from, *to;
    dr_builder out = {0};
    int64_t most = -1;
    if (!dr_call_take(t, call, "old new count", taken)) return NULL;
    if (!text_argument(t, call, taken[0], &from) || !text_argument(t, call, taken[1], &to)) return NULL;
    if (!from || !to) return dr_template_fail(t, "replace needs two strings");
    if (!whole_argument(t, call, taken[2], &most)) return NULL;
    return dr_text_replace(t, self->text, *from, *to, most, &out) ? dr_builder_value(t, &out) : NULL;
}

static const dr_object *join(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *taken[1];
    dr_values items;
    dr_builder out = {0};
    if (!dr_call_take(t, call, "iterable", taken)) return NULL;
    if (!taken[0]) return dr_template_fail(t, "join needs something to go through");
    if (!dr_object_walk(t, taken[0], &items)) return NULL;
    for (size_t i = 0; i < items.count; i++) {
        const dr_span *part;
        if (!text_argument(t, call, items.at[i], &part)) return NULL;
        if (!part) return dr_template_fail(t, "join: item %zu is None, not a str", i);
        if (i > 0 && !dr_builder_append(t, &out, self->text.bytes, self->text.count)) return NULL;
        if (!dr_builder_append(t, &out, part->bytes, part->count)) return NULL;
    }
    return dr_builder_value(t, &out);
}

/* left and right: shares of the filling, in halves. */
static const dr_object *filled(dr_template *t, const dr_object *self, const dr_call_arguments *call, int side) {
    const dr_object *taken[2];
    const dr_span *fill;
    dr_span blank = {" ", 1};
    dr_builder out = {0};
    int64_t width = 0, count = dr_text_characters(self->text);
    if (!dr_call_take(t, call, "width fillchar", taken)) return NULL;
    if (!whole_argument(t, call, taken[0], &width) || !text_argument(t, call, taken[1], &fill)) return NULL;
    if (!fill) fill = &blank;
    if (dr_text_characters(*fill) != 1) return dr_template_fail(t, "%s: the filling must be one character", call->name);
    int64_t missing = width > count ? width - count : 0, left = side == 0  ? missing / 2 + (missing & width & 1)
                                                                : side > 0 ? missing
                                                                           : 0;
    for (int64_t i = 0; i < left; i++)
        if (!dr_builder_append(t, &out, fill->bytes, fill->count)) return NULL;
    if (!dr_builder_append(t, &out, self->text.bytes, self->text.count)) return NULL;
    for (int64_t i = left; i < missing; i++)
        if (!dr_builder_append(t, &out, fill->bytes, fill->count)) return NULL;
    return dr_builder_value(t, &out);
}

static const dr_object *ljust(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return filled(t, self, call, -1);
}

static const dr_object *rjust(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return filled(t, self, call, 1);
}

static const dr_object *center(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return filled(t, self, call, 0);
}

static const dr_object *zfill(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *taken[1];
    dr_builder out = {0};
    int64_t width = 0;
    if (!dr_call_take(t, call, "width", taken) || !whole_argument(t, call, taken[0], &width)) return NULL;
    size_t sign = self->text.count > 0 && (self->text.bytes[0] == '+' || self->text.bytes[0] == '-');
    if (!dr_builder_append(t, &out, self->text.bytes, sign)) return NULL;
    for (int64_t i = dr_text_characters(self->text); i < width; i++)
        if (!dr_builder_append(t, &out, "0", 1)) return NULL;
    return dr_builder_append(t, &out, self->text.bytes + sign, self->text.count - sign) ? dr_builder_value(t, &out) : NULL;
}

/* ---- what characters a text has ----------------------------------------------------------------------------------------- */

#define ALL_CHARACTERS(name, is)                                                                                               \
    static const dr_object *name(dr_template *t, const dr_object *self, const dr_call_arguments *call) {                       \
        bool all = self->text.count > 0;                                                                                       \
        if (!dr_call_take(t, call, "", NULL) || !dr_template_charge(t, self->text.count / 16)) return NULL;                    \
        for (size_t at = 0; at < self->text.count && all;) all = is(dr_character_next(self->text, &at));                       \
        return dr_object_boolean(all);                                                                                         \
    }
static bool letter_or_digit(uint32_t c) {
    return dr_character_letter(c) || dr_character_digit(c) || dr_character_numeric(c);
}
static bool is_ascii(uint32_t c) {
    return c < 0x80;
}
ALL_CHARACTERS(isspace_method, dr_character_blank)
ALL_CHARACTERS(isdigit_method, dr_character_digit)
ALL_CHARACTERS(isalpha_method, dr_character_letter)
ALL_CHARACTERS(isalnum_method, letter_or_digit)
ALL_CHARACTERS(isascii_some, is_ascii)

static const dr_object *isascii_method(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return self->text.count ? isascii_some(t, self, call) : &dr_object_true;
}

static const dr_object *case_test(dr_template *t, const dr_object *self, const dr_call_arguments *call, const char *name) {
    dr_object test = {.kind = DR_OBJECT_TEXT, .text = {name, strlen(name)}};
    return dr_test_find(&test)(t, self, call);
}

static const dr_object *isupper_method(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return case_test(t, self, call, "upper");
}

static const dr_object *islower_method(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return case_test(t, self, call, "lower");
}

/* ---- dicts, lists and loops ---------------------------------------------------------------------------------------------- */

static const dr_object *get(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *taken[2];
    if (!dr_call_take(t, call, "key default", taken)) return NULL;
    if (!taken[0]) return dr_template_fail(t, "get needs a key");
    if (!dr_object_need_key(t, taken[0])) return NULL;
    const dr_object *value = dr_dict_get(t, &self->dict, taken[0]);
    if (value || t->status != DR_OK) return value;
    return taken[1] ? taken[1] : &dr_object_none;
}

static const dr_object *items(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    dr_values pairs = {0};
    if (!dr_call_take(t, call, "", NULL)) return NULL;
    for (size_t i = 0; i < self->dict.keys.count; i++)
        if (!dr_values_append(t, &pairs, dr_object_pair(t, self->dict.keys.at[i], self->dict.values.at[i]))) return NULL;
    return dr_object_series(t, "dict_items", pairs, false);
}

static const dr_object *keys(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? dr_object_series(t, "dict_keys", self->dict.keys, false) : NULL;
}

static const dr_object *values(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? dr_object_series(t, "dict_values", self->dict.values, false) : NULL;
}

static const dr_object *copy(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return dr_call_take(t, call, "", NULL) ? self : NULL;
}

static const dr_object *list_found(dr_template *t, const dr_object *self, const dr_call_arguments *call, bool counts) {
    const dr_object *taken[1];
    dr_values items;
    int64_t count = 0;
    if (!dr_call_take(t, call, "value", taken) || !dr_object_walk(t, self, &items)) return NULL;
    if (!taken[0]) return dr_template_fail(t, "%s needs a value", call->name);
    for (size_t i = 0; i < items.count; i++) {
        if (!dr_object_equal(t, items.at[i], taken[0])) continue;
        if (!counts) return dr_object_integer(t, (int64_t)i);
        count++;
    }
    return counts ? dr_object_integer(t, count) : dr_template_fail(t, "index: the value is not in the list");
}

static const dr_object *list_index(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return list_found(t, self, call, false);
}

static const dr_object *list_count(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    return list_found(t, self, call, true);
}

static const dr_object *cycle(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    if (call->arguments.count == 0) return dr_template_fail(t, "loop.cycle needs values");
    return call->arguments.at[self->loop->index % call->arguments.count];
}

static const dr_object *loop_changed(dr_template *t, const dr_object *self, const dr_call_arguments *call) {
    const dr_object *before = self->loop->changed, *now = dr_object_list(t, DR_OBJECT_TUPLE, call->arguments);
    if (!now) return NULL;
    self->loop->changed = now;
    return dr_object_boolean(!before || !dr_object_equal(t, before, now));
}

static const dr_named_function text_methods[] = {{"strip", strip},
                                                 {"lstrip", lstrip},
                                                 {"rstrip", rstrip},
                                                 {"split", split},
                                                 {"rsplit", rsplit},
                                                 {"splitlines", splitlines},
                                                 {"partition", partition},
                                                 {"rpartition", rpartition},
                                                 {"startswith", startswith},
                                                 {"endswith", endswith},
                                                 {"removeprefix", removeprefix},
                                                 {"removesuffix", removesuffix},
                                                 {"find", find},
                                                 {"rfind", rfind},
                                                 {"index", text_index},
                                                 {"rindex", rindex_method},
                                                 {"count", text_count},
                                                 {"upper", upper},
                                                 {"lower", lower},
                                                 {"title", title},
                                                 {"casefold", casefold},
                                                 {"swapcase", swapcase},
                                                 {"capitalize", capitalize},
                                                 {"replace", replace},
                                                 {"join", join},
                                                 {"ljust", ljust},
                                                 {"rjust", rjust},
                                                 {"center", center},
                                                 {"zfill", zfill},
                                                 {"isspace", isspace_method},
                                                 {"isdigit", isdigit_method},
                                                 {"isalpha", isalpha_method},
                                                 {"isalnum", isalnum_method},
                                                 {"isascii", isascii_method},
                                                 {"isupper", isupper_method},
                                                 {"islower", islower_method},
                                                 {"format", dr_text_format_method},
                                                 {NULL, NULL}};
static const dr_named_function dict_methods[] = {{"get", get},       {"items", items}, {"keys", keys},
                                                 {"values", values}, {"copy", copy},   {NULL, NULL}};
static const dr_named_function list_methods[] = {{"copy", copy}, {"index", list_index}, {"count", list_count}, {NULL, NULL}};
static const dr_named_function *const sequence_methods = list_methods + 1; /* of what is not copied: tuples and ranges */
static const dr_named_function loop_methods[] = {{"cycle", cycle}, {"changed", loop_changed}, {NULL, NULL}};

dr_function *dr_method_find(const dr_object *self, const dr_object *name, const char **found_name) {
    const dr_named_function *table = self->kind == DR_OBJECT_TEXT                                ? text_methods
                                     : self->kind == DR_OBJECT_DICT                              ? dict_methods
                                     : self->kind == DR_OBJECT_LIST                              ? list_methods
                                     : self->kind == DR_OBJECT_LOOP                              ? loop_methods
                                     : self->kind == DR_OBJECT_TUPLE || dr_object_is_range(self) ? sequence_methods
                                                                                                 : NULL;
    for (; table && table->name; table++) {
        if (!dr_object_is(name, table->name)) continue;
        *found_name = table->name;
        return table->function;
    }
    return NULL;
}
