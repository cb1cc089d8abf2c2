/* JSON values, with messages that say where and what.
 *
 * jansson does the parsing: it refuses invalid UTF-8, \u0000, numbers out of range and nesting deeper than 2048, and with
 * JSON_REJECT_DUPLICATES a key given twice. What stands here turns its findings into sentences, and checks types and ranges. */
#include "base/json.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/near.h"
#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson reads and writes reals by strtod() and snprintf(), and puts the locale's decimal point right only if it has one byte
 * and no other thread sets a locale meanwhile. */
static json_t *load(const char *text, size_t length, size_t flags, json_error_t *error) {
    locale_t before = dr_locale_enter();
    json_t *value = json_loadb(text, length, flags, error);
    dr_locale_leave(before);
    return value;
}

static char *dump(const json_t *value, size_t flags) {
    locale_t before = dr_locale_enter();
    char *text = json_dumps(value, flags);
    dr_locale_leave(before);
    return text;
}

json_t *dr_json_value(const char *text) {
    return load(text, strlen(text), JSON_DECODE_ANY, NULL);
}

dr_status dr_json_parse(const char *text, size_t length, const char *source, json_t **object) {
    json_error_t error;
    if (length == 0) return dr_fail(DR_ERROR_FORMAT, "%s is empty: it must be a JSON object, { ... }", source);
    json_t *root = load(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return dr_fail(DR_ERROR_MEMORY, "%s: there is no memory for its JSON", source);
    if (!root && json_error_code(&error) == json_error_null_character)
        return dr_fail(DR_ERROR_FORMAT, "%s, line %d, column %d: a text has a zero byte, \\u0000: take it out", source,
                       error.line, error.column);
    if (!root) return dr_fail(DR_ERROR_FORMAT, "%s, line %d, column %d: %s", source, error.line, error.column, error.text);
    if (!json_is_object(root)) {
        char found[64];
        dr_json_describe(root, found, sizeof found);
        json_decref(root);
        return dr_fail(DR_ERROR_FORMAT, "%s holds %s: it must be a JSON object, { ... }", source, found);
    }
    *object = root;
    return DR_OK;
}

dr_status dr_json_parse_line(const char *line, size_t length, json_t **object) {
    char found[64];
    json_error_t error;
    *object = NULL;
    json_t *value = load(line, length, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!value && json_error_code(&error) == json_error_numeric_overflow)
        value = load(line, length, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &error);
    if (!value && json_error_code(&error) == json_error_out_of_memory)
        return dr_fail(DR_ERROR_MEMORY, "there is no memory for a line of JSON");
    if (!value) return dr_fail(DR_ERROR_FORMAT, "is no JSON: byte %d: %s", error.position, error.text);
    if (json_is_object(value)) {
        *object = value;
        return DR_OK;
    }
    dr_json_describe(value, found, sizeof found);
    json_decref(value);
    return dr_fail(DR_ERROR_FORMAT, "must be a JSON object, and is %s", found);
}

/* ---- what Python's json module and some editors write, and JSON does not have ---------------------------------------- */

enum { MARK_BYTES = 3, LONGEST_INTEGER = 20 };
static const char BYTE_ORDER_MARK[] = "\xef\xbb\xbf";

static const struct {
    const char *word;
    double number;
} not_finite[] = {{"NaN", (double)NAN}, {"Infinity", (double)INFINITY}, {"-Infinity", -(double)INFINITY}};
enum { NOT_FINITE = sizeof not_finite / sizeof not_finite[0] };

static bool in_word(char c) {
    return c && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.", c);
}

static size_t digits_at(const char *at, const char *end) {
    const char *from = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    return (size_t)(at - from);
}

/* How many bytes the number of JSON has that stands at `at`, or 0. *real: whether it has a point or an exponent. */
static size_t number_at(const char *at, const char *end, bool *real) {
    const char *from = at;
    if (at < end && *at == '-') at++;
    size_t digits = digits_at(at, end);
    if (digits == 0 || (digits > 1 && *at == '0')) return 0;
    at += digits;
    *real = at < end && (*at == '.' || *at == 'e' || *at == 'E');
    if (at < end && *at == '.') {
        digits = digits_at(++at, end);
        if (digits == 0) return 0;
        at += digits;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        digits = digits_at(at, end);
        if (digits == 0) return 0;
        at += digits;
    }
    return (size_t)(at - from);
}

/* Whether no int64, or no double where there is a point or an exponent, is near a number of so many bytes. */
static bool is_too_large(const char *at, size_t length, bool real) {
    char text[LONGEST_INTEGER + 1];
    double number;
    int64_t integer;
    if (real) return dr_number_read(at, length, DR_NUMBER_FINITE, &number) == NULL;
    if (length > LONGEST_INTEGER) return true;
    memcpy(text, at, length);
    text[length] = '\0';
    return !dr_integer_parse(text, &integer);
}

/* How many bytes has what stands whole at `at` and jansson does not read: the word for a number that is not finite, or a number
 * that is too large; or 0. */
static size_t word_at(const char *at, const char *end) {
    bool real;
    size_t number = number_at(at, end, &real);
    if (number > 0 && (at + number == end || !in_word(at[number])) && is_too_large(at, number, real)) return number;
    for (int i = 0; i < NOT_FINITE; i++) {
        size_t length = strlen(not_finite[i].word);
        if ((size_t)(end - at) < length || memcmp(at, not_finite[i].word, length) != 0) continue;
        if (at + length == end || !in_word(at[length])) return length;
    }
    return 0;
}

/* The text with quotes around each such word that stands outside of a string, into `quoted`, or counted only where that is
 * NULL. Returns how many bytes that takes. */
static size_t quote_words(const char *text, size_t length, char *quoted) {
    const char *end = text + length;
    size_t used = 0;
    bool in_string = false;
    for (const char *at = text; at < end;) {
        size_t word = in_string || (at > text && in_word(at[-1])) ? 0 : word_at(at, end), taken = word ? word : 1;
        if (in_string && *at == '\\' && end - at > 1) taken = 2; /* what is escaped ends no string */
        if (taken == 1 && *at == '"') in_string = !in_string;
        if (quoted) {
            if (word) quoted[used] = quoted[used + word + 1] = '"';
            memcpy(quoted + used + (word > 0), at, taken);
        }
        used += taken + (word ? 2 : 0);
        at += taken;
    }
    return used;
}

dr_status dr_json_parse_lenient(const char *text, size_t length, const char *source, json_t **object) {
    if (length >= MARK_BYTES && memcmp(text, BYTE_ORDER_MARK, MARK_BYTES) == 0) text += MARK_BYTES, length -= MARK_BYTES;
    size_t quoted_length = quote_words(text, length, NULL);
    if (quoted_length == length) return dr_json_parse(text, length, source, object);
    void *quoted;
    DR_TRY(dr_allocate(quoted_length, "a JSON text", &quoted));
    quote_words(text, length, quoted);
    dr_status status = dr_json_parse(quoted, quoted_length, source, object);
    dr_release(quoted);
    return status;
}

/* Whether it is a number, or the word for one that is not finite. */
static bool as_number(const json_t *value, double *number) {
    const char *text = json_string_value(value);
    for (int i = 0; text && i < NOT_FINITE; i++)
        if (strcmp(text, not_finite[i].word) == 0) {
            *number = not_finite[i].number;
            return true;
        }
    *number = json_number_value(value);
    return json_is_number(value);
}

/* ---- writing and describing ------------------------------------------------------------------------------------------ */

/* 15 digits write 0.02 as 0.02, but do not tell every double from its neighbours; 17 do. */
char *dr_json_format(const json_t *object, size_t flags) {
    char *text = dump(object, flags | JSON_REAL_PRECISION(15));
    json_t *again = text ? load(text, strlen(text), 0, NULL) : NULL;
    bool same = again && json_equal(object, again);
    json_decref(again);
    if (same) return text;
    free(text);
    return dump(object, flags | JSON_REAL_PRECISION(17));
}

/* Bytes of the string of JSON that begins at `at`, with its quotes. */
static size_t string_at(const char *at) {
    const char *end = at + 1;
    while (*end != '"') end += *end == '\\' ? 2 : 1;
    return (size_t)(end - at) + 1;
}

char *dr_json_format_lenient(const json_t *object, size_t flags) {
    static const char own_key[] = "\"__float__\"";
    char *text = dr_json_format(object, flags), *to = text;
    bool own = false; /* the value belongs to that key */
    for (const char *at = text; at && *at;) {
        if (*at != '"') {
            *to++ = *at++;
            continue;
        }
        const size_t bytes = string_at(at);
        const bool key = at[bytes] == ':', word = bytes > 2 && word_at(at + 1, at + bytes - 1) == bytes - 2;
        const size_t quote = word && !key && !own;
        memmove(to, at + quote, bytes - 2 * quote);
        own = key && bytes == sizeof own_key - 1 && memcmp(at, own_key, bytes) == 0;
        to += bytes - 2 * quote;
        at += bytes;
    }
    if (to) *to = '\0';
    return text;
}

/* Whether dr_json_parse_lenient has made a string of it: a number that is too large, or the word for one that is not finite. */
static bool was_number(const json_t *value) {
    const char *text = json_string_value(value);
    const size_t length = json_string_length(value);
    return length > 0 && word_at(text, text + length) == length;
}

void dr_json_describe(const json_t *value, char *text, size_t size) {
    char number[DR_NUMBER_SIZE];
    if (!value) {
        snprintf(text, size, "nothing");
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        snprintf(text, size, "an object");
        break;
    case JSON_ARRAY:
        snprintf(text, size, "an array");
        break;
    case JSON_STRING:
        if (was_number(value))
            snprintf(text, size, "the number %.40s%s", json_string_value(value), json_string_length(value) > 40 ? ".." : "");
        else
            snprintf(text, size, "the string \"%.40s\"", json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(text, size, "the integer %" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        dr_number_write(json_real_value(value), number);
        snprintf(text, size, "the number %s", number);
        break;
    case JSON_TRUE:
        snprintf(text, size, "true");
        break;
    case JSON_FALSE:
        snprintf(text, size, "false");
        break;
    case JSON_NULL:
        snprintf(text, size, "null");
        break;
    }
}

/* The value of a key, or NULL if it is missing or null. */
static const json_t *value_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static dr_status wrong_type(const char *key, const char *wanted, const json_t *value) {
    char found[96];
    double number;
    dr_json_describe(value, found, sizeof found);
    if (was_number(value) && !as_number(value, &number))
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" is %s: it is too large", key, found);
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" must be %s, not %s", key, wanted, found);
}

bool dr_json_whole(const json_t *value, int64_t *number) {
    const double largest = 9007199254740992, real = json_real_value(value);
    if (json_is_real(value) && fabs(real) <= largest && real == floor(real))
        *number = (int64_t)real;
    else if (json_is_integer(value))
        *number = json_integer_value(value);
    else
        return false;
    return true;
}

dr_status dr_json_integer(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *value) {
    const json_t *found = value_of(object, key);
    if (!found) return DR_OK;
    int64_t number;
    if (!dr_json_whole(found, &number)) return wrong_type(key, "an integer", found);
    if (number < least || number > most)
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" is %" PRId64 ": it must be from %" PRId64 " to %" PRId64, key, number, least,
                       most);
    *value = number;
    return DR_OK;
}

dr_status dr_json_real(const json_t *object, const char *key, double least, double most, double *value) {
    const json_t *found = value_of(object, key);
    if (!found) return DR_OK;
    double number;
    if (!as_number(found, &number)) return wrong_type(key, "a number", found);
    if (!(number >= least && number <= most))
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" is %g: it must be from %g to %g", key, number, least, most);
    *value = number;
    return DR_OK;
}

dr_status dr_json_boolean(const json_t *object, const char *key, bool *value) {
    const json_t *found = value_of(object, key);
    if (!found) return DR_OK;
    if (!json_is_boolean(found)) return wrong_type(key, "true or false", found);
    *value = json_is_true(found);
    return DR_OK;
}

dr_status dr_json_text(const json_t *object, const char *key, const char **value) {
    const json_t *found = value_of(object, key);
    if (!found) return DR_OK;
    if (!json_is_string(found)) return wrong_type(key, "a string", found);
    *value = json_string_value(found);
    return DR_OK;
}

/* "a, b, c" of a list that ends with NULL, as far as it fits. */
static void join(const char *const *keys, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; keys[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", keys[i]);
}

/* At most two letters away, and at most half of the word; NULL if none is. */
static const char *nearest_of(const char *word, const char *const *words) {
    const char *nearest = NULL;
    int least = (int)strlen(word) >= 4 ? 3 : (int)strlen(word) / 2 + 1;
    for (int i = 0; words[i]; i++) {
        int distance = dr_edit_distance(word, words[i]);
        if (distance >= least) continue;
        least = distance;
        nearest = words[i];
    }
    return nearest;
}

dr_status dr_json_fail_unknown(const char *what, const char *word, const char *const *words) {
    char known[700];
    const char *nearest = nearest_of(word, words);
    if (nearest) return dr_fail(DR_ERROR_FORMAT, "unknown %s \"%.80s\"; did you mean \"%s\"?", what, word, nearest);
    join(words, known, sizeof known);
    return dr_fail(DR_ERROR_FORMAT, "unknown %s \"%.80s\"; known are %s", what, word, known);
}

dr_status dr_json_known(const json_t *object, const char *const *keys) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) { /* it does not write; jansson's iterator takes no const */
        int i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0) i++;
        if (!keys[i]) return dr_json_fail_unknown("key", key, keys);
    }
    return DR_OK;
}

dr_status dr_json_required(const json_t *object, const char *const *keys) {
    for (int i = 0; keys[i]; i++)
        if (!value_of(object, keys[i])) return dr_fail(DR_ERROR_FORMAT, "the key \"%s\" is missing", keys[i]);
    return DR_OK;
}
