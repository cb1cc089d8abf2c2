/* Each value of a schema becomes a node. A node is entered in the list before what is within it is read, so that references may
 * lead back to it. Then alternatives of alternatives are made one list, and each node gets its height, without which a text
 * that began could have no end. */
#include "constrain/schema.h"

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64, REFERENCES = 32 }; /* schemas within each other; references that lead to references */

typedef struct {
    dr_schema *schema;
    const json_t *root;
    const json_t **read; /* [schema->count] what each node was read from; NULL: none */
} reader;

/* ---- nodes ---- */

static dr_status add_node(reader *r, dr_node_kind kind, const json_t *from, int32_t *node) {
    void *nodes = r->schema->nodes, *read = (void *)r->read;
    if (r->schema->count >= DR_SCHEMA_NODES)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the schema describes more than %d values", DR_SCHEMA_NODES);
    DR_TRY(dr_grow(&read, r->schema->count, sizeof(void *), "a schema"));
    r->read = read;
    DR_TRY(dr_grow(&nodes, r->schema->count, sizeof *r->schema->nodes, "a schema"));
    r->schema->nodes = nodes;
    *node = (int32_t)r->schema->count++;
    r->read[*node] = from;
    r->schema->nodes[*node] = (dr_schema_node){.kind = kind, .most = INT64_MAX, .height = INT32_MAX};
    return DR_OK;
}

static dr_status add_child(reader *r, int32_t node, int32_t child) {
    dr_schema_node *parent = &r->schema->nodes[node];
    void *memory = parent->children;
    if (r->schema->children++ >= DR_SCHEMA_CHILDREN)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the values of the schema have more than %d parts", DR_SCHEMA_CHILDREN);
    DR_TRY(dr_grow(&memory, parent->child_count, sizeof child, "a schema"));
    parent->children = memory;
    parent->children[parent->child_count++] = child;
    return DR_OK;
}

static dr_status add_text(reader *r, int32_t node, const char *bytes, size_t count, bool required) {
    dr_schema_node *parent = &r->schema->nodes[node];
    void *memory = parent->texts;
    if (parent->text_count >= DR_SCHEMA_TEXTS)
        return dr_fail(DR_ERROR_UNSUPPORTED, "a value of the schema has more than %d names or constants", DR_SCHEMA_TEXTS);
    r->schema->text_bytes += (int64_t)count;
    if (r->schema->text_bytes > DR_SCHEMA_TEXT_BYTES)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the schema's names and constants have more than %d bytes", DR_SCHEMA_TEXT_BYTES);
    DR_TRY(dr_grow(&memory, parent->text_count, sizeof(dr_schema_text), "a schema"));
    parent->texts = memory;
    DR_TRY(dr_allocate(count + 1, "a schema", &memory));
    memcpy(memory, bytes, count);
    parent->texts[parent->text_count++] = (dr_schema_text){.bytes = memory, .count = (int32_t)count, .required = required};
    return DR_OK;
}

/* The JSON of a value as a text of the node. */
static dr_status add_value(reader *r, int32_t node, const json_t *value, bool required) {
    json_t *list = json_pack("[O]", value);
    char *text = list ? dr_json_format(list, JSON_COMPACT) : NULL; /* in brackets */
    json_decref(list);
    if (!text) return dr_fail(DR_ERROR_MEMORY, "no memory for a schema");
    dr_status status = add_text(r, node, text + 1, strlen(text) - 2, required);
    free(text);
    return status;
}

static dr_status string_node(reader *r, int32_t *node) {
    if (r->schema->string < 0) DR_TRY(add_node(r, DR_NODE_STRING, NULL, &r->schema->string));
    *node = r->schema->string;
    return DR_OK;
}

/* Any value at all. */
static dr_status any_node(reader *r, int32_t *node) {
    static const dr_node_kind kinds[] = {DR_NODE_NUMBER, DR_NODE_MAP, DR_NODE_ARRAY, DR_NODE_TEXTS};
    static const char *const words[] = {"true", "false", "null"};
    int32_t child = -1;
    *node = r->schema->any;
    if (*node >= 0) return DR_OK;
    DR_TRY(add_node(r, DR_NODE_ANY_OF, NULL, node));
    r->schema->any = *node;
    DR_TRY(string_node(r, &child)); /* the names of the map too */
    DR_TRY(add_child(r, *node, child));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        DR_TRY(add_node(r, kinds[i], NULL, &child));
        DR_TRY(add_child(r, *node, child));
        if (kinds[i] == DR_NODE_MAP || kinds[i] == DR_NODE_ARRAY) DR_TRY(add_child(r, child, *node));
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) DR_TRY(add_text(r, child, words[i], strlen(words[i]), false));
    return DR_OK;
}

/* ---- keywords ---- */

/* What says nothing about the value. */
static const char *const notes[] = {"title",    "description", "default",   "examples",   "$schema", "$id",         "$anchor",
                                    "$comment", "readOnly",    "writeOnly", "deprecated", "$defs",   "definitions", NULL};
/* What is known beside them. */
static const char *const known[] = {"type",      "properties", "required", "additionalProperties",
                                    "items",     "minItems",   "maxItems", "minLength",
                                    "maxLength", "enum",       "const",    "anyOf",
                                    "allOf",     "$ref",       NULL};

static bool among(const char *word, const char *const *words) {
    for (; *words; words++)
        if (strcmp(word, *words) == 0) return true;
    return false;
}

/* A keyword that says nothing with this value, as some writers of schemas put it. */
static bool says_nothing(const char *key, const json_t *value) {
    return (strcmp(key, "uniqueItems") == 0 || strcmp(key, "nullable") == 0) && json_is_false(value);
}

static dr_status check_keywords(const json_t *json) {
    const char *key;
    json_t *value;
    json_object_foreach(
        (json_t *)json, key,
        value) if (!among(key, notes) && !among(key, known) &&
                   !says_nothing(key, value)) return dr_fail(DR_ERROR_UNSUPPORTED,
                                                             "the keyword \"%.60s\" of JSON schemas is not supported", key);
    return DR_OK;
}

/* Whether the keyword stands alone but for notes. */
static dr_status check_alone(const json_t *json, const char *alone) {
    const char *key;
    json_t *value;
    json_object_foreach(
        (json_t *)json, key,
        value) if (strcmp(key, alone) != 0 && !among(key, notes) &&
                   !says_nothing(key, value)) return dr_fail(DR_ERROR_UNSUPPORTED,
                                                             "a schema has \"%s\" beside \"%.60s\": that is not supported",
                                                             alone, key);
    return DR_OK;
}

/* The schema that "#/$defs/name" names; "~1" and "~0" stand for "/" and "~" (RFC 6901). */
static const json_t *find_reference(const json_t *root, const char *path) {
    char name[256];
    if (*path++ != '#') return NULL;
    while (root && *path == '/') {
        size_t used = 0;
        for (path++; *path && *path != '/'; path++) {
            char byte = *path;
            if (byte == '~' && (path[1] == '0' || path[1] == '1')) byte = *++path == '0' ? '~' : '/';
            if (used + 1 == sizeof name) return NULL;
            name[used++] = byte;
        }
        name[used] = 0;
        root = json_object_get(root, name);
    }
    return *path ? NULL : root;
}

static dr_status follow_references(const reader *r, const json_t **json) {
    for (int i = 0; i < REFERENCES; i++) {
        const json_t *reference = json_object_get(*json, "$ref");
        if (!reference) return DR_OK;
        DR_TRY(check_alone(*json, "$ref"));
        const char *path = json_string_value(reference);
        *json = path ? find_reference(r->root, path) : NULL;
        if (!*json)
            return dr_fail(DR_ERROR_FORMAT, "the schema has no \"%.100s\": a \"$ref\" must be like \"#/$defs/name\"",
                           path ? path : "");
    }
    return dr_fail(DR_ERROR_FORMAT, "a \"$ref\" of the schema leads to itself");
}

/* ---- values ---- */

static dr_status read_schema(reader *r, const json_t *json, int deep, int32_t *node);

static dr_status read_bounds(reader *r, const json_t *json, const char *least, const char *most, int32_t node) {
    dr_schema_node *made = &r->schema->nodes[node];
    DR_TRY(dr_json_integer(json, least, 0, INT32_MAX, &made->least));
    DR_TRY(dr_json_integer(json, most, 0, INT32_MAX, &made->most));
    if (made->least <= made->most) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "the schema has \"%s\" above \"%s\"", least, most);
}

static bool is_required(const json_t *required, const char *name) {
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *word = json_string_value(json_array_get(required, i));
        if (word && strcmp(word, name) == 0) return true;
    }
    return false;
}

static dr_status check_required(const json_t *required, const json_t *properties) {
    if (required && !json_is_array(required))
        return dr_fail(DR_ERROR_FORMAT, "\"required\" of a schema must be a list of names");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *word = json_string_value(json_array_get(required, i));
        if (!word) return dr_fail(DR_ERROR_FORMAT, "\"required\" of a schema must be a list of names");
        if (!json_object_get(properties, word))
            return dr_fail(DR_ERROR_UNSUPPORTED, "a schema requires \"%.60s\", which its \"properties\" do not have", word);
    }
    return DR_OK;
}

static dr_status read_object(reader *r, const json_t *json, int deep, int32_t node) {
    const json_t *properties = json_object_get(json, "properties"), *more = json_object_get(json, "additionalProperties");
    const json_t *required = json_object_get(json, "required");
    const char *name;
    json_t *value;
    int32_t child;
    if (properties && !json_is_object(properties))
        return dr_fail(DR_ERROR_FORMAT, "\"properties\" of a schema must be an object");
    if (more && !json_is_boolean(more) && !json_is_object(more))
        return dr_fail(DR_ERROR_FORMAT, "\"additionalProperties\" of a schema must be true, false or a schema");
    DR_TRY(check_required(required, properties));
    if (json_object_size(properties) == 0 && !json_is_false(more)) {
        r->schema->nodes[node].kind = DR_NODE_MAP;
        DR_TRY(json_is_object(more) ? read_schema(r, more, deep, &child) : any_node(r, &child));
        DR_TRY(add_child(r, node, child));
        return string_node(r, &child); /* for the names */
    }
    json_object_foreach((json_t *)properties, name, value) {
        json_t *text = json_string(name);
        dr_status status =
            text ? add_value(r, node, text, is_required(required, name)) : dr_fail(DR_ERROR_MEMORY, "no memory for a schema");
        json_decref(text);
        DR_TRY(status);
        DR_TRY(read_schema(r, value, deep, &child));
        DR_TRY(add_child(r, node, child));
    }
    return DR_OK;
}

static dr_status read_array(reader *r, const json_t *json, int deep, int32_t node) {
    const json_t *items = json_object_get(json, "items");
    int32_t child;
    DR_TRY(read_bounds(r, json, "minItems", "maxItems", node));
    DR_TRY(items ? read_schema(r, items, deep, &child) : any_node(r, &child));
    return add_child(r, node, child);
}

static const struct {
    const char *name;
    dr_node_kind kind;
} types[] = {
    {"string", DR_NODE_STRING}, {"number", DR_NODE_NUMBER}, {"integer", DR_NODE_INTEGER}, {"object", DR_NODE_OBJECT},
    {"array", DR_NODE_ARRAY},   {"boolean", DR_NODE_TEXTS}, {"null", DR_NODE_TEXTS},
};
enum { TYPES = sizeof types / sizeof *types };

static bool is_of_type(const json_t *value, const char *type) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return strcmp(type, "object") == 0;
    case JSON_ARRAY:
        return strcmp(type, "array") == 0;
    case JSON_STRING:
        return strcmp(type, "string") == 0;
    case JSON_INTEGER:
        return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    case JSON_REAL:
        return strcmp(type, "number") == 0;
    case JSON_TRUE:
    case JSON_FALSE:
        return strcmp(type, "boolean") == 0;
    case JSON_NULL:
        return strcmp(type, "null") == 0;
    }
    return false;
}

/* Fills a node with what one type allows. */
static dr_status read_type(reader *r, const json_t *json, const json_t *type, int deep, int32_t node) {
    const char *name = json_string_value(type);
    int found = 0;
    while (name && found < TYPES && strcmp(types[found].name, name) != 0) found++;
    if (!name || found == TYPES)
        return dr_fail(DR_ERROR_FORMAT,
                       "\"type\" of a schema must be string, number, integer, object, array, boolean, null or a list of these");
    r->schema->nodes[node].kind = types[found].kind;
    switch (types[found].kind) {
    case DR_NODE_OBJECT:
        return read_object(r, json, deep, node);
    case DR_NODE_ARRAY:
        return read_array(r, json, deep, node);
    case DR_NODE_STRING:
        return read_bounds(r, json, "minLength", "maxLength", node);
    case DR_NODE_TEXTS:
        if (strcmp(name, "null") == 0) return add_text(r, node, "null", 4, false);
        DR_TRY(add_text(r, node, "true", 4, false));
        return add_text(r, node, "false", 5, false);
    case DR_NODE_NUMBER:
    case DR_NODE_INTEGER:
    case DR_NODE_NONE:
    case DR_NODE_MAP:
    case DR_NODE_ANY_OF:
    case DR_NODE_SEQUENCE:
        break;
    }
    return DR_OK;
}

static dr_status read_types(reader *r, const json_t *json, const json_t *list, int deep, int32_t node) {
    int32_t child;
    r->schema->nodes[node].kind = DR_NODE_ANY_OF;
    if (json_array_size(list) == 0) return dr_fail(DR_ERROR_FORMAT, "\"type\" of a schema is an empty list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        DR_TRY(add_node(r, DR_NODE_NONE, NULL, &child));
        DR_TRY(add_child(r, node, child));
        DR_TRY(read_type(r, json, json_array_get(list, i), deep, child));
    }
    return DR_OK;
}

/* Constants that the type allows. */
static dr_status read_constants(reader *r, const json_t *values, const json_t *type, int32_t node) {
    r->schema->nodes[node].kind = DR_NODE_TEXTS;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        bool allowed = !type || (json_is_string(type) && is_of_type(value, json_string_value(type)));
        for (size_t k = 0; k < json_array_size(type) && !allowed; k++) {
            const char *word = json_string_value(json_array_get(type, k));
            allowed = word && is_of_type(value, word);
        }
        if (allowed) DR_TRY(add_value(r, node, value, false));
    }
    if (r->schema->nodes[node].text_count > 0) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"enum\" or \"const\" of a schema has no value of its \"type\"");
}

static dr_status read_alternatives(reader *r, const json_t *json, const char *key, int deep, int32_t node) {
    const json_t *list = json_object_get(json, key);
    const bool all = strcmp(key, "allOf") == 0;
    int32_t child;
    DR_TRY(check_alone(json, key));
    if (json_array_size(list) == 0) return dr_fail(DR_ERROR_FORMAT, "\"%s\" of a schema must be a list of schemas", key);
    if (all && json_array_size(list) > 1)
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"allOf\" of more than one schema is not supported");
    r->schema->nodes[node].kind = DR_NODE_ANY_OF;
    for (size_t i = 0; i < json_array_size(list); i++) {
        DR_TRY(read_schema(r, json_array_get(list, i), deep, &child));
        DR_TRY(add_child(r, node, child));
    }
    return DR_OK;
}

static dr_status fill_node(reader *r, const json_t *json, int deep, int32_t node) {
    const json_t *type = json_object_get(json, "type"), *constant = json_object_get(json, "const");
    const json_t *constants = json_object_get(json, "enum");
    if (constants && (!json_is_array(constants) || json_array_size(constants) == 0))
        return dr_fail(DR_ERROR_FORMAT, "\"enum\" of a schema must be a list of values");
    if (constant) {
        json_t *one = json_pack("[O]", constant);
        dr_status status = one ? read_constants(r, one, type, node) : dr_fail(DR_ERROR_MEMORY, "no memory for a schema");
        json_decref(one);
        return status;
    }
    if (constants) return read_constants(r, constants, type, node);
    if (json_object_get(json, "anyOf")) return read_alternatives(r, json, "anyOf", deep, node);
    if (json_object_get(json, "allOf")) return read_alternatives(r, json, "allOf", deep, node);
    if (json_is_array(type)) return read_types(r, json, type, deep, node);
    if (type) return read_type(r, json, type, deep, node);
    if (json_object_get(json, "properties")) {
        r->schema->nodes[node].kind = DR_NODE_OBJECT;
        return read_object(r, json, deep, node);
    }
    return dr_fail(DR_ERROR_UNSUPPORTED, "a schema has keywords but no \"type\": say of which type its value is");
}

static bool only_notes(const json_t *json) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) if (!among(key, notes)) return false;
    return true;
}

/* The node of a schema, which is made unless it is there. */
static dr_status read_schema(reader *r, const json_t *json, int deep, int32_t *node) {
    if (json_is_true(json)) return any_node(r, node);
    if (!json_is_object(json)) return dr_fail(DR_ERROR_FORMAT, "a schema must be an object or true");
    if (deep >= DEEPEST) return dr_fail(DR_ERROR_UNSUPPORTED, "more than %d schemas stand within each other", DEEPEST);
    DR_TRY(check_keywords(json));
    DR_TRY(follow_references(r, &json));
    if (json_is_true(json)) return any_node(r, node);
    if (!json_is_object(json)) return dr_fail(DR_ERROR_FORMAT, "a schema must be an object or true");
    DR_TRY(check_keywords(json));
    if (only_notes(json)) return any_node(r, node);
    for (int64_t i = 0; i < r->schema->count; i++)
        if (r->read[i] == json) {
            *node = (int32_t)i;
            return DR_OK;
        }
    DR_TRY(add_node(r, DR_NODE_NONE, json, node));
    return fill_node(r, json, deep + 1, *node);
}

/* ---- the whole ---- */

/* Adds the nodes that are no alternatives themselves, each once. */
static dr_status flatten(reader *r, int32_t from, int32_t node, bool *seen) {
    if (seen[from]) return DR_OK;
    seen[from] = true;
    if (r->schema->nodes[from].kind != DR_NODE_ANY_OF) return add_child(r, node, from);
    for (int32_t i = 0; i < r->schema->nodes[from].child_count; i++)
        DR_TRY(flatten(r, r->schema->nodes[from].children[i], node, seen));
    return DR_OK;
}

/* Alternatives of alternatives become alternatives. */
static dr_status flatten_all(reader *r) {
    const int64_t count = r->schema->count;
    void *memory;
    dr_status status = DR_OK;
    DR_TRY(dr_allocate((size_t)count * sizeof(bool), "a schema", &memory));
    bool *seen = memory;
    for (int64_t i = 0; i < count && status == DR_OK; i++) {
        int32_t list;
        if (r->schema->nodes[i].kind != DR_NODE_ANY_OF) continue;
        memset(seen, 0, (size_t)count * sizeof(bool));
        status = add_node(r, DR_NODE_SEQUENCE, NULL, &list);
        if (status == DR_OK) status = flatten(r, (int32_t)i, list, seen);
        if (status != DR_OK) break;
        dr_schema_node *new = &r->schema->nodes[list], *old = &r->schema->nodes[i];
        dr_release(old->children);
        old->children = new->children;
        old->child_count = new->child_count;
        new->children = NULL;
        new->child_count = 0;
    }
    dr_release(seen);
    return status;
}

static int32_t height_of(const dr_schema *schema, const dr_schema_node *node) {
    int32_t most = 0, least = INT32_MAX;
    for (int32_t i = 0; i < node->child_count; i++) {
        const int32_t height = schema->nodes[node->children[i]].height;
        if (height < least) least = height;
        if (node->kind == DR_NODE_OBJECT && !node->texts[i].required) continue;
        if (height > most) most = height;
    }
    switch (node->kind) {
    case DR_NODE_ANY_OF:
        return least;
    case DR_NODE_ARRAY:
        if (node->least == 0) return 1;
        return least == INT32_MAX ? least : least + 1;
    case DR_NODE_OBJECT:
    case DR_NODE_SEQUENCE:
        return most == INT32_MAX ? most : most + 1;
    case DR_NODE_STRING:
    case DR_NODE_NUMBER:
    case DR_NODE_INTEGER:
    case DR_NODE_TEXTS:
    case DR_NODE_MAP:
        return 1;
    case DR_NODE_NONE:
        break;
    }
    return INT32_MAX;
}

/* Heights only fall from "none", and those that do within DR_SCHEMA_DEPTH rounds are all that can be written. */
static dr_status measure(dr_schema *schema) {
    for (int round = 0; round <= 2 * DR_SCHEMA_DEPTH; round++)
        for (int64_t i = 0; i < schema->count; i++) schema->nodes[i].height = height_of(schema, &schema->nodes[i]);
    if (schema->nodes[schema->root].height <= DR_SCHEMA_DEPTH) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "a value of the schema would have more than %d values within each other, or no end",
                   DR_SCHEMA_DEPTH);
}

static dr_status begin(reader *r) {
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_schema), "a schema", &memory));
    r->schema = memory;
    r->schema->count = 0;
    r->schema->any = r->schema->string = -1;
    return DR_OK;
}

static dr_status finish(reader *r, dr_status status, dr_schema **schema) {
    if (status == DR_OK) status = flatten_all(r);
    if (status == DR_OK) status = measure(r->schema);
    dr_release((void *)r->read);
    if (status != DR_OK)
        dr_schema_destroy(r->schema);
    else
        *schema = r->schema;
    return status;
}

dr_status dr_schema_create(const json_t *json, dr_schema **schema) {
    reader r = {.root = json};
    DR_TRY(begin(&r));
    return finish(&r, read_schema(&r, json, 0, &r.schema->root), schema);
}

/* Of any names and values. */
static dr_status object_node(reader *r, int32_t *node) {
    int32_t child;
    DR_TRY(add_node(r, DR_NODE_MAP, NULL, node));
    DR_TRY(string_node(r, &child));
    DR_TRY(any_node(r, &child));
    return add_child(r, *node, child);
}

dr_status dr_schema_create_object(dr_schema **schema) {
    reader r = {0};
    DR_TRY(begin(&r));
    return finish(&r, object_node(&r, &r.schema->root), schema);
}

static dr_status add_words(reader *r, int32_t node, const char *words) {
    int32_t child;
    if (!*words) return DR_OK;
    DR_TRY(add_node(r, DR_NODE_TEXTS, NULL, &child));
    DR_TRY(add_text(r, child, words, strlen(words), false));
    return add_child(r, node, child);
}

static dr_status read_choice(reader *r, const dr_schema_choice *choice) {
    int32_t node = -1, child = -1;
    DR_TRY(add_node(r, DR_NODE_SEQUENCE, NULL, &node));
    DR_TRY(add_child(r, r->schema->root, node));
    DR_TRY(add_words(r, node, choice->before));
    r->root = choice->json;
    DR_TRY(choice->json ? read_schema(r, choice->json, 0, &child) : object_node(r, &child));
    DR_TRY(add_child(r, node, child));
    return add_words(r, node, choice->behind);
}

dr_status dr_schema_create_choices(const dr_schema_choice *choices, int32_t count, dr_schema **schema) {
    reader r = {0};
    DR_TRY(begin(&r));
    dr_status status = add_node(&r, DR_NODE_ANY_OF, NULL, &r.schema->root);
    for (int32_t i = 0; i < count && status == DR_OK; i++) status = read_choice(&r, &choices[i]);
    return finish(&r, status, schema);
}

void dr_schema_destroy(dr_schema *schema) {
    if (!schema) return;
    for (int64_t i = 0; i < schema->count; i++) {
        for (int32_t t = 0; t < schema->nodes[i].text_count; t++) dr_release(schema->nodes[i].texts[t].bytes);
        dr_release(schema->nodes[i].texts);
        dr_release(schema->nodes[i].children);
    }
    dr_release(schema->nodes);
    dr_release(schema);
}
