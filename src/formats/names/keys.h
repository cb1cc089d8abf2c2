/* Keys of a published configuration, each in one of two tables: understood, with what it may be and where it goes, or idle:
 * known to change nothing that a model computes. Any other is refused by name. */
#ifndef DR_FORMATS_NAMES_KEYS_H
#define DR_FORMATS_NAMES_KEYS_H

#include "base/json.h"

typedef enum {
    DR_KEY_WHOLE,   /* int64_t from least to most */
    DR_KEY_REAL,    /* double from least to most */
    DR_KEY_TRUTH,   /* bool */
    DR_KEY_TEXT,    /* const char *, as long as the object lives */
    DR_KEY_ANY,     /* const json_t *, likewise */
    DR_KEY_OBJECT,  /* likewise, an object */
    DR_KEY_NUMBERS, /* likewise, an array of whole numbers */
    DR_KEY_ONLY,    /* nowhere: it must be `only`, which is JSON, or one of several behind '|' */
} dr_key_kind;

typedef struct {
    const char *key;
    dr_key_kind kind;
    size_t at; /* offset in what is filled in */
    double least, most;
    const char *only;
} dr_key;

#define DR_KEY(kind_, structure, name, field)                                                                                  \
    { .key = name, .kind = DR_KEY_##kind_, .at = offsetof(structure, field) }
#define DR_KEY_RANGE(kind_, structure, name, field, least_, most_)                                                             \
    { .key = name, .kind = DR_KEY_##kind_, .at = offsetof(structure, field), .least = least_, .most = most_ }
#define DR_KEY_MUST(name, only_)                                                                                               \
    { .key = name, .kind = DR_KEY_ONLY, .only = only_ }

/* `idle` ends with NULL, or is NULL. */
typedef struct {
    const dr_key *keys;
    int count;
    const char *const *idle;
} dr_key_table;

/* Fills in what the object has; where a key is missing or null, what was there stays. tables: a list that ends with NULL.
 * DR_ERROR_FORMAT for a value of the wrong type or range, DR_ERROR_UNSUPPORTED for a key that no table has and for one that
 * must be something else. */
dr_status dr_keys_read(const json_t *object, const dr_key_table *const *tables, void *to);

/* A number that transformers may have written as {"__float__": "Infinity"}. */
dr_status dr_keys_real(const json_t *value, const char *key, double *number);

#endif
