/* Answers that a JSON schema binds: texts that the automaton lets through are JSON and valid, by a validator of the test's own,
 * for random schemas; what it must refuse it refuses; no text runs into a wall; the mask over tokens is what single bytes say.
 */
#include "allocation.h"
#include "base/random.h"
#include "constrain/token_mask.h"

#include <stdlib.h>

/* ---- a validator, written after the specification and not after the automaton ---- */

static bool is_valid(const json_t *schema, const json_t *root, const json_t *value);

static bool has_type(const char *type, const json_t *value) {
    return strcmp(type, "object") == 0    ? json_is_object(value)
           : strcmp(type, "array") == 0   ? json_is_array(value)
           : strcmp(type, "string") == 0  ? json_is_string(value)
           : strcmp(type, "integer") == 0 ? json_is_integer(value)
           : strcmp(type, "number") == 0  ? json_is_number(value)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(value)
                                          : json_is_null(value);
}

static bool types_allow(const json_t *type, const json_t *value) {
    if (!type) return true;
    if (json_is_string(type)) return has_type(json_string_value(type), value);
    for (size_t i = 0; i < json_array_size(type); i++)
        if (has_type(json_string_value(json_array_get(type, i)), value)) return true;
    return false;
}

static int64_t bound(const json_t *schema, const char *key, int64_t otherwise) {
    const json_t *value = json_object_get(schema, key);
    return value ? json_integer_value(value) : otherwise;
}

static int64_t characters(const char *text) {
    int64_t count = 0;
    for (; *text; text++) count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

static bool object_is_valid(const json_t *schema, const json_t *root, const json_t *value) {
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const json_t *more = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *item;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach((json_t *)value, key, item) {
        const json_t *property = json_object_get(properties, key);
        if (property ? !is_valid(property, root, item) : json_is_false(more)) return false;
        if (!property && json_is_object(more) && !is_valid(more, root, item)) return false;
    }
    return true;
}

static bool is_valid(const json_t *schema, const json_t *root, const json_t *value) {
    const json_t *list = json_object_get(schema, "anyOf"), *constants = json_object_get(schema, "enum");
    const json_t *constant = json_object_get(schema, "const"), *reference = json_object_get(schema, "$ref");
    bool found = false;
    if (json_is_true(schema)) return true;
    if (reference) {
        const char *name = strrchr(json_string_value(reference), '/');
        return is_valid(name ? json_object_get(json_object_get(root, "$defs"), name + 1) : root, root, value);
    }
    if (constant && !json_equal(constant, value)) return false;
    for (size_t i = 0; i < json_array_size(constants); i++) found |= json_equal(json_array_get(constants, i), value);
    if (constants && !found) return false;
    found = false;
    for (size_t i = 0; i < json_array_size(list); i++) found |= is_valid(json_array_get(list, i), root, value);
    if (list && !found) return false;
    if (!types_allow(json_object_get(schema, "type"), value)) return false;
    if (json_is_string(value)) {
        const int64_t count = characters(json_string_value(value));
        return count >= bound(schema, "minLength", 0) && count <= bound(schema, "maxLength", INT64_MAX);
    }
    if (json_is_array(value)) {
        const int64_t count = (int64_t)json_array_size(value);
        if (count < bound(schema, "minItems", 0) || count > bound(schema, "maxItems", INT64_MAX)) return false;
        for (int64_t i = 0; i < count && json_object_get(schema, "items"); i++)
            if (!is_valid(json_object_get(schema, "items"), root, json_array_get(value, (size_t)i))) return false;
    }
    return !json_is_object(value) || object_is_valid(schema, root, value);
}

/* ---- random schemas ---- */

static int64_t below(dr_random *random, int64_t most) {
    return (int64_t)dr_random_below(random, (uint64_t)most);
}

static json_t *random_constant(dr_random *random) {
    static const char *const texts[] = {"\"a\"", "\"a\\\"b\"", "\"ab\"",     "\"\"",         "1",  "12", "123", "-1.5", "true",
                                        "null",  "[1,2]",      "{\"k\":[]}", "\"\xc3\xa4\"", "{}", "1e3"};
    return json_loads(texts[below(random, 15)], JSON_DECODE_ANY, NULL);
}

static json_t *random_schema(dr_random *random, int deep);

static json_t *random_object(dr_random *random, int deep) {
    static const char *const names[] = {"a", "ab", "abc", "b", "a b", "\"", "\xc3\xa4", "\xc3\xa5", "name", "names"};
    json_t *properties = json_object(), *required = json_array();
    const int64_t count = below(random, 5);
    for (int64_t i = 0; i < count; i++) {
        const char *name = names[below(random, 10)];
        if (json_object_get(properties, name)) continue;
        json_object_set_new(properties, name, random_schema(random, deep + 1));
        if (below(random, 2)) json_array_append_new(required, json_string(name));
    }
    json_t *schema = json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required", required);
    if (below(random, 2)) json_object_set_new(schema, "additionalProperties", json_false());
    if (json_object_size(properties) == 0 && below(random, 2))
        json_object_set_new(schema, "additionalProperties", random_schema(random, deep + 1));
    return schema;
}

static json_t *with_bounds(dr_random *random, json_t *schema, const char *least, const char *most) {
    const int64_t low = below(random, 4);
    if (below(random, 2)) json_object_set_new(schema, least, json_integer(low));
    if (below(random, 2)) json_object_set_new(schema, most, json_integer(low + below(random, 3)));
    return schema;
}

static json_t *random_schema(dr_random *random, int deep) {
    static const char *const plain[] = {"number", "integer", "boolean", "null"};
    json_t *list;
    switch (below(random, deep > 4 ? 6 : 10)) {
    case 0:
    case 1:
        return json_pack("{s:s}", "type", plain[below(random, 4)]);
    case 2:
        return with_bounds(random, json_pack("{s:s}", "type", "string"), "minLength", "maxLength");
    case 3:
        list = json_array();
        for (int64_t i = below(random, 6); i >= 0; i--) json_array_append_new(list, random_constant(random));
        return json_pack("{s:o, s:s}", "enum", list, "title", "constants");
    case 4:
        return json_pack("{s:o}", "const", random_constant(random));
    case 5:
        if (deep > 0) return json_pack("{s:s}", "$ref", below(random, 2) ? "#/$defs/tree" : "#/$defs/leaf");
        return json_pack("{s:[s, s, s]}", "type", "null", "integer", "string");
    case 6:
        list = json_array();
        for (int64_t i = below(random, 4); i >= 0; i--) json_array_append_new(list, random_schema(random, deep + 1));
        return json_pack("{s:o}", "anyOf", list);
    case 7:
        return with_bounds(random, json_pack("{s:s, s:o}", "type", "array", "items", random_schema(random, deep + 1)),
                           "minItems", "maxItems");
    default:
        return random_object(random, deep);
    }
}

/* A root with two definitions, one of which has itself within. */
static json_t *random_root(dr_random *random) {
    json_t *root = random_object(random, 0);
    json_t *defs =
        json_loads("{\"leaf\": {\"type\": [\"boolean\", \"null\"]}, \"tree\": {\"type\": \"object\", \"properties\": "
                   "{\"v\": {\"type\": \"integer\"}, \"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/tree\"}, {\"type\": "
                   "\"null\"}]}, \"list\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/tree\"}}}, "
                   "\"required\": [\"next\"], \"additionalProperties\": false}}",
                   0, NULL);
    json_object_set_new(root, "$defs", defs);
    return root;
}

/* ---- random texts ---- */

enum { LONGEST_TEXT = 4000 };

static dr_automaton now, next;

/* A byte that can come, drawn at random; what ends something is preferred behind many bytes. -1: none can. */
static int draw_byte(const dr_schema *schema, dr_random *random, int64_t bytes) {
    static const char ends[] = "}]\",:0";
    int chosen = -1, count = 0;
    for (int i = 0; bytes > 60 && i < 6; i++)
        if (below(random, 4) && dr_automaton_take(schema, &now, (uint8_t)ends[i], &next)) return (uint8_t)ends[i];
    for (int byte = 0; byte < 256; byte++)
        if (dr_automaton_take(schema, &now, (uint8_t)byte, &next) && below(random, ++count) == 0) chosen = byte;
    return chosen;
}

static int64_t write_text(const dr_schema *schema, dr_random *random, char text[LONGEST_TEXT + 1]) {
    int64_t bytes = 0;
    dr_automaton_begin(schema, &now);
    while (bytes < LONGEST_TEXT) {
        const bool whole = dr_automaton_complete(schema, &now);
        if (whole && (bytes > 60 || below(random, 3) == 0)) break;
        const int byte = draw_byte(schema, random, bytes);
        if (byte < 0) {
            assert_true(whole); /* no wall */
            break;
        }
        assert_true(dr_automaton_take(schema, &now, (uint8_t)byte, &next));
        now = next;
        text[bytes++] = (char)byte;
    }
    text[bytes] = 0;
    return bytes;
}

static void test_random_schemas(void **state) {
    static char text[LONGEST_TEXT + 1];
    dr_random random = dr_random_start(5, 0);
    int64_t whole = 0, refused = 0;
    (void)state;
    for (int trial = 0; trial < 400; trial++) {
        json_t *root = random_root(&random);
        dr_schema *schema;
        if (dr_schema_create(root, &schema) != DR_OK) {
            refused++;
            json_decref(root);
            continue;
        }
        for (int i = 0; i < 6; i++) {
            const int64_t bytes = write_text(schema, &random, text);
            if (!dr_automaton_complete(schema, &now)) continue; /* it became too long */
            json_error_t error;
            json_t *value = json_loadb(text, (size_t)bytes, JSON_DECODE_ANY, &error);
            if (!value || !is_valid(root, root, value))
                fail_msg("%s of %s: %s", text, json_dumps(root, 0), value ? "wrong" : error.text);
            json_decref(value);
            whole++;
        }
        dr_schema_destroy(schema);
        json_decref(root);
    }
    assert_true(whole > 1500);
    assert_true(refused < 40);
}

/* ---- texts by hand ---- */

static bool allows(const dr_schema *schema, const char *text) {
    dr_automaton_begin(schema, &now);
    for (; *text; text++) {
        if (!dr_automaton_take(schema, &now, (uint8_t)*text, &next)) return false;
        now = next;
    }
    return dr_automaton_complete(schema, &now);
}

static const struct {
    const char *schema, *good[6], *bad[12];
} cases[] = {
    {"{\"type\": \"number\"}",
     {"0", "-0", "12", "-1.5", "1e9", "1.25E-3"},
     {"", "01", "1.", ".5", "+1", "1e", "1e999", "1234567890123456", "--1", "1 ", "NaN", "1.e3"}},
    {"{\"type\": \"array\", \"items\": {}}", {"[]", "[{\"a\": [1, \"b\"]}, null]"}, {"{}", "[{1: 2}]", "[a]"}},
    {"{\"type\": \"integer\"}", {"0", "-7", "123456789012345"}, {"1.0", "1e3", "-", "00", "a"}},
    {"{\"type\": \"string\", \"maxLength\": 2}",
     {"\"\"", "\"ab\"", "\"\xc3\xa4\xe2\x82\xac\"", "\"\\n\\u00e4\"", "\"\xf0\x9f\x98\x80\"", "\"\\ud7ff\""},
     {"\"abc\"", "\"\n\"", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\\ud800\"", "\"\\u0000\"", "\"\\x\"", "\"a",
      "a\"", "\"\xf5\x80\x80\x80\"", "\"\\u12\""}},
    {"{\"enum\": [1, 12, \"a\", \"ab\", null, {\"x\": 1}]}",
     {"1", "12", "\"a\"", "\"ab\"", "null", "{\"x\":1}"},
     {"2", "123", "a", "\"abc\"", "nul", "{\"x\": 1}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"ab\": {\"type\": \"boolean\"}, \"c\": "
     "{\"type\": "
     "\"null\"}}, \"required\": [\"ab\"], \"additionalProperties\": false}",
     {"{\"ab\":true}", "{\"a\": 1, \"ab\": false}", "{\n  \"a\": 1,\n  \"ab\": true,\n  \"c\": null\n}", "{ \"ab\": true }",
      "{\"ab\":true,\"c\":null}"},
     {"{}", "{\"a\":1}", "{\"ab\":1}", "{\"ab\":true,\"a\":1}", "{\"ab\":true,}", "{\"x\":1,\"ab\":true}",
      "{\"ab\":true,\"ab\":true}", "{\"ab\"  :true}", "{\"ab\":true", "{,\"ab\":true}", "[]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 2}",
     {"[1]", "[1, 2]", "[\n 1,\n 2\n]"},
     {"[]", "[1,2,3]", "[1,]", "[,1]", "[1 2]", "[true]", "1"}},
    {"{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"x\"}, \"v\": {\"type\": \"integer\"}}, "
     "\"required\": "
     "[\"k\", \"v\"]}, {\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"y\"}, \"w\": {\"type\": \"null\"}}, "
     "\"required\": "
     "[\"k\", \"w\"]}]}",
     {"{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\",\"w\":null}"},
     {"{\"k\":\"x\",\"w\":null}", "{\"k\":\"y\",\"v\":1}", "{\"k\":\"z\"}", "{}"}},
    {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
     {"{}", "{\"a\":1,\"b\":2}"},
     {"{\"a\":\"b\"}", "{a:1}", "{\"a\":1,}"}},
    {"{\"type\": \"object\"}",
     {"{}", "{\"a\":[1,{\"b\":null}],\"c\":\"d\"}"},
     {"[]", "1", "{\"a\"}", "{\"a\":}", "{\"a\":tru}"}},
};

static void test_by_hand(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = json_loads(cases[i].schema, 0, NULL);
        dr_schema *schema;
        assert_int_equal(dr_schema_create(json, &schema), DR_OK);
        for (int k = 0; k < 6 && cases[i].good[k]; k++)
            if (!allows(schema, cases[i].good[k])) fail_msg("%s refuses %s", cases[i].schema, cases[i].good[k]);
        for (int k = 0; k < 12 && cases[i].bad[k]; k++)
            if (allows(schema, cases[i].bad[k])) fail_msg("%s allows %s", cases[i].schema, cases[i].bad[k]);
        dr_schema_destroy(schema);
        json_decref(json);
    }
}

/* Lists within each other, and in the innermost an object with a property that it must have, which is two values within each
 * other: where there is room for one it is not begun. */
static void test_room(void **state) {
    json_t *json = json_loads("{\"type\": \"array\", \"items\": {\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"object\", "
                              "\"properties\": {\"x\": {\"type\": \"null\"}}, \"required\": [\"x\"]}]}}",
                              0, NULL);
    dr_schema *schema;
    (void)state;
    assert_non_null(json);
    assert_int_equal(dr_schema_create(json, &schema), DR_OK);
    for (int deep = DR_SCHEMA_DEPTH - 2; deep < DR_SCHEMA_DEPTH; deep++) {
        dr_automaton_begin(schema, &now);
        for (int i = 0; i < deep; i++) {
            assert_true(dr_automaton_take(schema, &now, '[', &next));
            now = next;
        }
        assert_int_equal(dr_automaton_take(schema, &now, '{', &next), deep + 2 <= DR_SCHEMA_DEPTH);
    }
    dr_schema_destroy(schema);
    json_decref(json);
}

static void test_depth(void **state) {
    dr_schema *schema;
    char text[4 * DR_SCHEMA_DEPTH + 8];
    (void)state;
    assert_int_equal(dr_schema_create_object(&schema), DR_OK);
    for (int deep = DR_SCHEMA_DEPTH - 1; deep <= DR_SCHEMA_DEPTH; deep++) {
        strcpy(text, "{\"a\":");
        memset(text + 5, '[', (size_t)deep);
        memset(text + 5 + deep, ']', (size_t)deep);
        strcpy(text + 5 + 2 * deep, "}");
        assert_int_equal(allows(schema, text), deep < DR_SCHEMA_DEPTH);
    }
    dr_schema_destroy(schema);
}

static void test_choices(void **state) {
    json_t *json =
        json_loads("{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}, \"required\": [\"x\"]}", 0, NULL);
    const dr_schema_choice choices[] = {{"<call>one ", "</call>", json}, {"<call>two ", "", NULL}};
    dr_schema *schema;
    (void)state;
    assert_int_equal(dr_schema_create_choices(choices, 2, &schema), DR_OK);
    assert_true(allows(schema, "<call>one {\"x\":1}</call>"));
    assert_true(allows(schema, "<call>two {\"y\":[]}"));
    assert_false(allows(schema, "<call>one {\"x\":1}"));
    assert_false(allows(schema, "<call>one {\"y\":1}</call>"));
    assert_false(allows(schema, "<call>three {}"));
    dr_schema_destroy(schema);
    json_decref(json);
}

static void test_refused(void **state) {
    static const char *const wrong[][2] = {
        {"{\"type\": \"string\", \"pattern\": \"a*\"}", "\"pattern\""},
        {"{\"type\": \"integer\", \"minimum\": 1}", "\"minimum\""},
        {"{\"type\": \"string\", \"format\": \"date\"}", "\"format\""},
        {"{\"oneOf\": [{\"type\": \"null\"}]}", "\"oneOf\""},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"type\": \"number\", "
         "\"multipleOf\": 2}}}}",
         "\"multipleOf\""},
        {"{\"type\": \"array\", \"uniqueItems\": true}", "\"uniqueItems\""},
        {"{\"type\": \"text\"}", "\"type\""},
        {"{\"type\": []}", "empty list"},
        {"{\"type\": \"object\", \"required\": [\"a\"]}", "requires \"a\""},
        {"{\"type\": \"object\", \"properties\": []}", "\"properties\""},
        {"{\"enum\": []}", "\"enum\""},
        {"{\"enum\": [1], \"type\": \"string\"}", "no value of its \"type\""},
        {"{\"$ref\": \"#/$defs/none\"}", "#/$defs/none"},
        {"{\"$ref\": \"#\"}", "leads to itself"},
        {"{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"type\": \"integer\", \"maximum\": 3}}}", "\"maximum\""},
        {"{\"minLength\": 1}", "no \"type\""},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 1}", "above"},
        {"{\"type\": \"string\", \"minLength\": -1}", "minLength"},
        {"{\"anyOf\": [], \"title\": \"x\"}", "\"anyOf\""},
        {"{\"anyOf\": [{\"type\": \"null\"}], \"type\": \"null\"}", "beside"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", "no end"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *json = json_loads(wrong[i][0], 0, NULL);
        dr_schema *schema;
        assert_non_null(json);
        assert_int_not_equal(dr_schema_create(json, &schema), DR_OK);
        if (!strstr(dr_last_error(), wrong[i][1])) fail_msg("%s: %s", wrong[i][0], dr_last_error());
        json_decref(json);
    }
}

/* ---- tokens ---- */

/* Every token alone, byte by byte, against the mask over all of them; and a text of tokens that it lets through. */
static void check_tokens(const dr_tokenizer *tokenizer, int32_t end) {
    const int64_t size = dr_tokenizer_size(tokenizer);
    json_t *json =
        json_loads("{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 6}, \"list\": "
                   "{\"type\": \"array\", \"items\": {\"type\": \"number\"}, \"maxItems\": 3}}, \"required\": [\"list\"]}",
                   0, NULL);
    float *logits = calloc((size_t)size, sizeof *logits);
    const float *masked;
    dr_token_mask *mask;
    dr_schema *schema;
    dr_random random = dr_random_start(3, 0);
    assert_int_equal(dr_token_mask_create(tokenizer, &mask), DR_OK);
    assert_int_equal(dr_schema_create(json, &schema), DR_OK);
    dr_automaton_begin(schema, &now);
    for (int step = 0;; step++) {
        int32_t chosen = -1;
        int64_t count = 0;
        assert_true(step < 500);
        assert_int_equal(dr_token_mask_apply(mask, schema, &now, end, logits, &masked), DR_OK);
        for (int32_t id = 0; id < size; id++) {
            next = now;
            const bool allowed = id == end ? dr_automaton_complete(schema, &now) : dr_token_mask_take(mask, schema, &next, id);
            assert_int_equal(masked[id] == 0, allowed);
            if (allowed && below(&random, ++count) == 0) chosen = id;
        }
        if (chosen == end) break;
        assert_true(dr_token_mask_take(mask, schema, &now, chosen));
    }
    dr_schema_destroy(schema);
    dr_token_mask_destroy(mask);
    free(logits);
    json_decref(json);
}

static void test_tokens(void **state) {
    static const char *const folders[] = {"qwen2", "llama2", "gpt2"};
    dr_tokenizer *tokenizer;
    (void)state;
    assert_int_equal(dr_tokenizer_bytes(&tokenizer), DR_OK);
    check_tokens(tokenizer, 256);
    dr_tokenizer_destroy(tokenizer);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/tokenizers/%s", DR_TESTS_FOLDER, folders[i]);
        assert_int_equal(dr_tokenizer_load(path, &tokenizer), DR_OK);
        check_tokens(tokenizer, dr_tokenizer_special(tokenizer, DR_TOKEN_EOS));
        dr_tokenizer_destroy(tokenizer);
    }
}

static dr_status make_all(void *context) {
    const dr_schema_choice choice = {"a", "b", context};
    dr_schema *schema = NULL, *other = NULL, *object = NULL;
    dr_token_mask *mask = NULL;
    dr_tokenizer *tokenizer = NULL;
    dr_status status;
    DR_GO(dr_schema_create(context, &schema));
    DR_GO(dr_schema_create_choices(&choice, 1, &other));
    DR_GO(dr_schema_create_object(&object));
    DR_GO(dr_tokenizer_bytes(&tokenizer));
    DR_GO(dr_token_mask_create(tokenizer, &mask));
done:
    dr_schema_destroy(schema);
    dr_schema_destroy(other);
    dr_schema_destroy(object);
    dr_token_mask_destroy(mask);
    dr_tokenizer_destroy(tokenizer);
    return status;
}

static void test_allocations(void **state) {
    json_t *json =
        json_loads("{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1, 2]}, \"b\": true}}, {\"type\": "
                   "\"array\"}]}",
                   0, NULL);
    (void)state;
    assert_survives_failed_allocations(make_all, json);
    json_decref(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schemas), cmocka_unit_test(test_by_hand), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_choices),        cmocka_unit_test(test_refused), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_allocations),    cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
