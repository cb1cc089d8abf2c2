/* Chat templates: an interpreter of the part of Jinja that they are written in.
 *
 * A rendering goes: text -> tokens (template_lex.c) -> tree (template_parse.c) -> output (template_run.c, with expressions in
 * template_evaluate.c, operators, filters, tests, methods and functions beside it). The environment is the one that templates
 * of published models are written for: trim_blocks and lstrip_blocks on, one final line end of the template dropped, no
 * escaping, break and continue, {% generation %}, nothing that changes a value but attributes of namespace().
 *
 * Values cannot change once made (namespaces apart), so they are shared, never copied. All that a rendering makes lies in one
 * arena, which is released as a whole. A template is a program of a stranger: steps, memory, depth and output are bounded.
 *
 * A function that fails sets the rendering's status and returns NULL or false; whoever called it returns at once. */
#ifndef DR_TOKENIZE_TEMPLATE_H
#define DR_TOKENIZE_TEMPLATE_H

#include <deltarule/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dr_object dr_object;
typedef struct dr_node dr_node;
typedef struct dr_scope dr_scope;
typedef struct dr_template dr_template;

/* ---- values ---------------------------------------------------------------------------------------------------------- */

typedef enum {
    DR_OBJECT_UNDEFINED, /* text: what was not there, for messages */
    DR_OBJECT_NONE,
    DR_OBJECT_BOOLEAN,
    DR_OBJECT_INTEGER,
    DR_OBJECT_REAL,
    DR_OBJECT_TEXT,
    DR_OBJECT_LIST,
    DR_OBJECT_TUPLE,
    DR_OBJECT_SERIES, /* what can be walked but is no list: views of a dict, ranges, results of map and select */
    DR_OBJECT_DICT,
    DR_OBJECT_NAMESPACE,
    DR_OBJECT_LOOP,
    DR_OBJECT_MACRO,
    DR_OBJECT_METHOD,  /* of a value: "abc".strip */
    DR_OBJECT_FUNCTION /* a global: range */
} dr_object_kind;

typedef struct {
    const char *bytes; /* UTF-8, no zero byte behind it */
    size_t count;
} dr_span;

typedef struct {
    const dr_object **at;
    size_t count, room;
} dr_values;

/* A dict: at[i] of keys has at[i] of values; in the order in which they were put in. */
typedef struct {
    dr_values keys, values;
} dr_dict;

typedef struct {
    dr_values items;
    size_t index;             /* from 0 */
    int depth;                /* of recursive loops, from 0 */
    const dr_node *node;      /* the loop, if it is recursive */
    dr_scope *scope;          /* that the loop stands in */
    const dr_object *changed; /* the last arguments of loop.changed(), or NULL */
} dr_loop;

typedef struct {
    const dr_node *node;
    dr_scope *scope; /* that the macro stands in */
} dr_macro;

typedef struct dr_call_arguments dr_call_arguments;
typedef const dr_object *dr_function(dr_template *t, const dr_object *self, const dr_call_arguments *call);

struct dr_object {
    dr_object_kind kind;
    bool safe;  /* of a text: by the filters safe and escape */
    bool group; /* of a tuple: one of groupby, with the attributes grouper and list */
    union {
        bool boolean;
        int64_t integer;
        double real;
        dr_span text;
        dr_values list; /* lists and tuples */
        struct {
            dr_values items;
            const char *type; /* "range", "generator", "dict_items" ... */
            bool *spent;      /* of what can be walked once only; else NULL */
        } series;
        dr_dict dict;
        dr_dict *space; /* of a namespace */
        dr_loop *loop;
        dr_macro macro;
        struct {
            const dr_object *self;
            const char *name;
            dr_function *function;
        } method; /* and functions, whose self is NULL */
    };
};

/* Arguments of a call: those without a name in order, and those with one. */
struct dr_call_arguments {
    dr_values arguments;
    dr_dict named;
    const char *name; /* what is called, for messages */
};

extern const dr_object dr_object_none, dr_object_true, dr_object_false, dr_object_empty;

/* ---- a rendering ----------------------------------------------------------------------------------------------------- */

enum {
    DR_TEMPLATE_DEPTH = 800,                /* of nested expressions, statements and calls */
    DR_TEMPLATE_STEPS = 20 * 1000 * 1000,   /* a step is a node visited or some 16 bytes looked at */
    DR_TEMPLATE_MEMORY = 256 * 1024 * 1024, /* bytes of the arena */
    DR_TEMPLATE_OUTPUT = 32 * 1024 * 1024   /* bytes of the text */
};

typedef struct {
    char *bytes;
    size_t count, room;
} dr_builder;

struct dr_scope {
    dr_scope *outer;
    dr_dict names;
};

struct dr_template {
    struct dr_block *blocks; /* the arena, newest first */
    size_t block_left, memory;
    int64_t steps;
    int depth;
    int line; /* of the node at work */
    dr_status status;
    dr_builder *out;           /* where output goes now */
    dr_scope *scope;           /* names as seen now */
    const dr_object *captured; /* the text that a block's filter works on */
    int64_t now;               /* seconds since 1970, for strftime_now */
};

/* Sets the status and the message "line N: ..."; returns NULL. */
void *dr_template_fail(dr_template *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Memory of the arena, 16-byte aligned, not initialised; NULL: failed. */
void *dr_template_take(dr_template *t, size_t bytes);
void dr_template_release(dr_template *t); /* the arena */
/* Counts steps; false: there were too many. */
bool dr_template_charge(dr_template *t, size_t steps);
/* One level deeper; false: too deep. Undo with t->depth--. */
bool dr_template_enter(dr_template *t);

bool dr_builder_append(dr_template *t, dr_builder *builder, const char *bytes, size_t count);
bool dr_builder_string(dr_template *t, dr_builder *builder, const char *string);
const dr_object *dr_builder_value(dr_template *t, const dr_builder *builder);
/* Grows a list or a dict that is being made. dict_put replaces the value of a key that is there. */
bool dr_values_append(dr_template *t, dr_values *values, const dr_object *value);
bool dr_dict_put(dr_template *t, dr_dict *dict, const dr_object *key, const dr_object *value);

/* ---- template_value.c: making, asking, comparing ----------------------------------------------------------------------- */

const dr_object *dr_object_boolean(bool boolean);
const dr_object *dr_object_integer(dr_template *t, int64_t integer);
const dr_object *dr_object_real(dr_template *t, double real);
const dr_object *dr_object_text(dr_template *t, const char *bytes, size_t count); /* borrows the bytes */
const dr_object *dr_object_string(dr_template *t, const char *string);            /* borrows a string */
const dr_object *dr_object_list(dr_template *t, dr_object_kind kind, dr_values items);
const dr_object *dr_object_pair(dr_template *t, const dr_object *first, const dr_object *second); /* a tuple */
const dr_object *dr_object_series(dr_template *t, const char *type, dr_values items, bool once);
const dr_object *dr_object_dict(dr_template *t, dr_dict dict);
const dr_object *dr_object_method(dr_template *t, const dr_object *self, const char *name, dr_function *function);
/* What is not there: the sentence is kept for the failure when it is used. */
const dr_object *dr_object_undefined(dr_template *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
const dr_object *dr_object_from_json(dr_template *t, const json_t *json);

const char *dr_object_type(const dr_object *value); /* Python's name of the type */
bool dr_object_truth(const dr_object *value);
bool dr_object_is_number(const dr_object *value); /* booleans too */
double dr_object_number(const dr_object *value);
bool dr_object_is(const dr_object *value, const char *string);
bool dr_object_is_range(const dr_object *value);
/* A whole number (or a boolean) as int64. */
bool dr_object_as_integer(const dr_object *value, int64_t *integer);
/* The places of the keys in order, equal ones as they stood. Fails for what has no order. */
bool dr_values_sort(dr_template *t, const dr_values *keys, bool reverse, size_t *places);
/* Whether they are equal; false too if it failed (see t->status). */
bool dr_object_equal(dr_template *t, const dr_object *a, const dr_object *b);
/* *order is -1, 0 or 1, and 2 where one is not a number. Fails for what has no order. */
bool dr_object_order(dr_template *t, const dr_object *a, const dr_object *b, int *order);
/* Fails unless it can be the key of a dict: no list, no dict, no tuple with one. */
bool dr_object_need_key(dr_template *t, const dr_object *value);
/* The items that a loop would see. */
bool dr_object_walk(dr_template *t, const dr_object *value, dr_values *items);
/* How many items or characters; fails where there is no length. */
bool dr_object_length(dr_template *t, const dr_object *value, int64_t *length);
/* The value of a key, or NULL (not a failure, unless t->status says so). */
const dr_object *dr_dict_get(dr_template *t, const dr_dict *dict, const dr_object *key);
const dr_object *dr_dict_find(dr_template *t, const dr_dict *dict, const char *key);

/* ---- template_print.c: values as text ---------------------------------------------------------------------------------- */

bool dr_object_print(dr_template *t, const dr_object *value, dr_builder *out); /* str() */
bool dr_object_repr(dr_template *t, const dr_object *value, dr_builder *out);  /* repr() */
const dr_object *dr_object_as_text(dr_template *t, const dr_object *value);    /* str() as a value */
void dr_real_text(double real, char text[40]);                                 /* Python's repr of a float */
typedef struct {
    bool ascii, sorted, indented;
    dr_span indent, comma, colon;
} dr_json_style;
bool dr_object_json(dr_template *t, const dr_object *value, const dr_json_style *style, int level, dr_builder *out);

/* ---- template_text.c: characters --------------------------------------------------------------------------------------- */

uint32_t dr_character_next(dr_span text, size_t *at); /* the character at *at, which moves behind it */
size_t dr_character_bytes(uint32_t character, char bytes[4]);
bool dr_character_blank(uint32_t character);     /* Python's str.isspace */
bool dr_character_line_end(uint32_t character);  /* Python's str.splitlines */
bool dr_character_printable(uint32_t character); /* Python's str.isprintable */
bool dr_character_cased(uint32_t character);
bool dr_character_letter(uint32_t character);     /* Python's str.isalpha */
bool dr_character_digit(uint32_t character);      /* Python's str.isdigit */
bool dr_character_numeric(uint32_t character);    /* Python's str.isnumeric, without ideographs */
bool dr_text_valid(dr_template *t, dr_span text); /* whether it is UTF-8; fails with the line if not */
int64_t dr_text_characters(dr_span text);
size_t dr_text_offset(dr_span text, int64_t character); /* the byte where a character begins */
typedef enum { DR_TEXT_UPPER, DR_TEXT_LOWER, DR_TEXT_TITLE, DR_TEXT_FOLD, DR_TEXT_SWAP } dr_text_case;
/* Appends the text with its letters changed, Unicode's special cases too. */
bool dr_text_change(dr_template *t, dr_span text, dr_text_case change, dr_builder *out);
bool dr_text_capitalize(dr_template *t, dr_span text, dr_builder *out); /* the first letter a capital, the others small */
/* Appends the text with a part replaced, at most `most` times (below 0: everywhere). */
bool dr_text_replace(dr_template *t, dr_span text, dr_span from, dr_span to, int64_t most, dr_builder *out);
bool dr_text_escape(dr_template *t, dr_span text, dr_builder *out); /* &amp; and so on */
/* Without the characters of a set (NULL: blanks) at its beginning (sides & 1) and end (sides & 2). */
dr_span dr_text_strip(dr_span text, const dr_span *set, int sides);
/* The first place of a part at or behind a byte; text.count + 1: none. */
size_t dr_text_find(dr_span text, dr_span part, size_t from);
/* The last place of a part; text.count + 1: none, or it failed (see t->status). */
size_t dr_text_find_last(dr_template *t, dr_span text, dr_span part);
const dr_object *dr_text_lines(dr_template *t, dr_span text, bool keep_ends);

/* ---- template_operate.c: operators, subscripts, attributes -------------------------------------------------------------- */

const dr_object *dr_operate(dr_template *t, int operation, const dr_object *a, const dr_object *b);
const dr_object *dr_negate(dr_template *t, const dr_object *a, int operation); /* - or + before a value */
bool dr_compare(dr_template *t, int operation, const dr_object *a, const dr_object *b, bool *holds);
const dr_object *dr_subscript(dr_template *t, const dr_object *a, const dr_object *key);
const dr_object *dr_attribute(dr_template *t, const dr_object *a, const dr_object *name);
const dr_object *dr_slice(dr_template *t, const dr_object *a, const dr_object *from, const dr_object *to,
                          const dr_object *step);

/* ---- functions: found by name, NULL if there is none -------------------------------------------------------------------- */

/* The argument at a place or with a name, or NULL. Fails if too many or unknown ones are given: names lists all, with blanks
 * between. */
bool dr_call_take(dr_template *t, const dr_call_arguments *call, const char *names, const dr_object **taken);
const dr_object *dr_call_value(dr_template *t, const dr_object *callee, const dr_call_arguments *call); /* template_run.c */

typedef struct {
    const char *name;
    dr_function *function;
} dr_named_function;
dr_function *dr_function_find(const dr_named_function *table, const dr_object *name);

dr_function *dr_filter_find(const dr_object *name);
dr_function *dr_test_find(const dr_object *name);
dr_function *dr_method_find(const dr_object *self, const dr_object *name, const char **found);
bool dr_globals_put(dr_template *t, dr_dict *names);
extern const dr_named_function dr_filters_of_text[], dr_filters_of_lists[];
/* template_format.c: "%s" % arguments, and "{}".format(...). */
const dr_object *dr_text_format(dr_template *t, dr_span format, const dr_object *arguments);
dr_function dr_text_format_method;

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

/* Renders a template (valid UTF-8 or refused) with the variables of a JSON object. now: seconds since 1970. text has a zero
 * byte behind it and is released with dr_release. DR_ERROR_FORMAT says the line of the template. */
dr_status dr_template_render(const char *source, size_t length, const json_t *variables, int64_t now, char **text,
                             size_t *bytes);

#endif
