/* JSON with messages a user can act on: a syntax error names file, line and column; a value of the wrong type names its key,
 * the type it needs and what was found. Values are jansson's json_t (include <jansson.h> for arrays and the like). */
#ifndef DR_BASE_JSON_H
#define DR_BASE_JSON_H

#include "base/for_check.h"

#include <deltarule/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses a text that must be one object in UTF-8, no key twice. source names it in messages. Free with json_decref.
 * DR_ERROR_FORMAT. */
DR_FOR_CHECK dr_status dr_json_parse(const char *text, size_t length, const char *source, json_t **object);

/* The same of a text as other programs write it: a byte order mark before it is passed over, and NaN, Infinity and -Infinity
 * outside of strings, which JSON does not have, become the strings of these words. dr_json_real takes those as numbers, so that
 * a range decides whether they will do. Numbers that no int64 or double holds become strings too, which no key takes;
 * messages call all of these numbers. */
dr_status dr_json_parse_lenient(const char *text, size_t length, const char *source, json_t **object);

/* A line of a data set, which must be one object: strings may have zero bytes in them, and whole numbers that are too large are
 * taken as real ones, since nobody reads what stands beside the text. DR_ERROR_FORMAT, "is no JSON: ..", for the caller to say
 * of which line. */
dr_status dr_json_parse_line(const char *line, size_t length, json_t **object);

/* The value that a text holds, of any type; NULL if it holds none or there is no memory. Free with json_decref. */
DR_FOR_CHECK json_t *dr_json_value(const char *text);

/* The text of an object or a list, keys in the order in which they were set, every number such that it reads back the same.
 * flags: jansson's, JSON_INDENT(2) or JSON_COMPACT. Free with free(); NULL if there is no memory. */
DR_FOR_CHECK char *dr_json_format(const json_t *object, size_t flags);
/* The same as other programs read it: what dr_json_parse_lenient made strings of stands without quotes again, but for the value
 * of a key "__float__", which is a string to them too. */
char *dr_json_format_lenient(const json_t *object, size_t flags);

/* Whether the value is a whole number, also one that is written as 32.0 or 1e3; reals up to 2^53. */
DR_FOR_CHECK bool dr_json_whole(const json_t *value, int64_t *number);

/* Values of an object's keys. Where the key is missing or null, *value stays as it was (put the default there before) and DR_OK
 * is returned. DR_ERROR_FORMAT otherwise; add the file's name with dr_fail_in. */
DR_FOR_CHECK dr_status dr_json_integer(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *value);
DR_FOR_CHECK dr_status dr_json_real(const json_t *object, const char *key, double least, double most,
                                    double *value); /* integers too */
DR_FOR_CHECK dr_status dr_json_boolean(const json_t *object, const char *key, bool *value);
DR_FOR_CHECK dr_status dr_json_text(const json_t *object, const char *key,
                                    const char **value); /* lives as long as the object */

/* DR_ERROR_FORMAT if the object has a key that is not in the list, which ends with NULL. The message names a near key, or
 * else lists them. */
DR_FOR_CHECK dr_status dr_json_known(const json_t *object, const char *const *keys);
/* DR_ERROR_FORMAT: 'unknown WHAT "word"', and which word of the list, which ends with NULL, was likely meant, or else all. */
dr_status dr_json_fail_unknown(const char *what, const char *word, const char *const *words);
/* DR_ERROR_FORMAT if a key of the list is missing or null. */
DR_FOR_CHECK dr_status dr_json_required(const json_t *object, const char *const *keys);

/* What a value is, for messages: "the string \"abc\"", "the integer 5", "an array". Writes at most size bytes. */
DR_FOR_CHECK void dr_json_describe(const json_t *value, char *text, size_t size);

#endif
