/* A JSON schema, compiled: which texts an answer may be. An automaton over bytes (automaton.h) runs on it.
 *
 * The texts are a part of the JSON that the schema allows, such that every one of them is valid: the properties of an object
 * come in the schema's order, and none but these; numbers have at most 15 digits before the point and behind it and two of an
 * exponent; strings have no zero character and no surrogates; between two parts stands at most one blank, or a line end and 20
 * blanks. */
#ifndef DR_CONSTRAIN_SCHEMA_H
#define DR_CONSTRAIN_SCHEMA_H

#include <deltarule/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    DR_SCHEMA_DEPTH = 32,          /* values within each other */
    DR_SCHEMA_ALTERNATIVES = 64,   /* ways to read a text that are followed at once */
    DR_SCHEMA_TEXTS = UINT16_MAX,  /* names of an object, constants of a value */
    DR_SCHEMA_NODES = 10000,       /* values that a schema describes */
    DR_SCHEMA_CHILDREN = 200000,   /* of all of them together */
    DR_SCHEMA_TEXT_BYTES = 1 << 20 /* of names and constants */
};

typedef enum {
    DR_NODE_NONE, /* not read yet */
    DR_NODE_STRING,
    DR_NODE_NUMBER,
    DR_NODE_INTEGER,
    DR_NODE_OBJECT,  /* children: the properties' values, texts: their names in quotes */
    DR_NODE_MAP,     /* an object of any names; child 0: every value */
    DR_NODE_ARRAY,   /* child 0: every item */
    DR_NODE_TEXTS,   /* one of the texts, as they are */
    DR_NODE_ANY_OF,  /* one of the children, none of which is of this kind */
    DR_NODE_SEQUENCE /* the children one behind the other */
} dr_node_kind;

typedef struct {
    char *bytes; /* [count] */
    int32_t count;
    bool required; /* of a property */
} dr_schema_text;

typedef struct {
    dr_node_kind kind;
    int32_t *children; /* [child_count] nodes */
    int32_t child_count;
    dr_schema_text *texts; /* [text_count] */
    int32_t text_count;
    int64_t least, most; /* items of an array, characters of a string */
    int32_t height;      /* values within each other that the least text of it has; above DR_SCHEMA_DEPTH: it has none */
} dr_schema_node;

typedef struct {
    dr_schema_node *nodes; /* [count] */
    int64_t count, text_bytes, children;
    int32_t root;
    int32_t any, string; /* nodes of any value and of any string; -1: not made */
} dr_schema;

/* Reads a JSON schema. DR_ERROR_FORMAT where it is none, DR_ERROR_UNSUPPORTED names a keyword that is not known. */
dr_status dr_schema_create(const json_t *json, dr_schema **schema);
/* Any object. */
dr_status dr_schema_create_object(dr_schema **schema);

/* One of these texts: the words before, a value of the schema json (NULL: any object), the words behind. All texts are copied.
 */
typedef struct {
    const char *before, *behind;
    const json_t *json;
} dr_schema_choice;
dr_status dr_schema_create_choices(const dr_schema_choice *choices, int32_t count, dr_schema **schema);

void dr_schema_destroy(dr_schema *schema); /* NULL is allowed */

#endif
