#include "formats/names/keys.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

static const dr_key *find_key(const dr_key_table *table, const char *key) {
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].key, key) == 0) return &table->keys[i];
    return NULL;
}

static bool is_idle(const dr_key_table *table, const char *key) {
    for (int i = 0; table->idle && table->idle[i]; i++)
        if (strcmp(table->idle[i], key) == 0) return true;
    return false;
}

static dr_status check_only(const char *key, const json_t *value, const char *only) {
    const char *at = only;
    do {
        char text[64];
        const size_t length = strcspn(at, "|");
        memcpy(text, at, length < sizeof text ? length : sizeof text - 1);
        text[length < sizeof text ? length : sizeof text - 1] = 0;
        json_t *wanted = dr_json_value(text);
        const bool same = wanted && json_equal(value, wanted);
        json_decref(wanted);
        if (same) return DR_OK;
        at += length + 1;
    } while (at[-1] == '|');
    char found[100];
    dr_json_describe(value, found, sizeof found);
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"%s\" is %s; only %.*s is supported", key, found, (int)strcspn(only, "|"), only);
}

static dr_status check_form(const dr_key *key, const json_t *value) {
    const bool numbers = key->kind == DR_KEY_NUMBERS;
    bool fits = numbers ? json_is_array(value) : json_is_object(value);
    for (size_t i = 0; fits && numbers && i < json_array_size(value); i++) fits = json_is_integer(json_array_get(value, i));
    if (fits) return DR_OK;
    char found[100];
    dr_json_describe(value, found, sizeof found);
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" is %s; it must be %s", key->key, found,
                   numbers ? "an array of whole numbers" : "an object");
}

static dr_status read_key(const json_t *object, const dr_key *key, const json_t *value, char *to) {
    void *field = to + key->at;
    switch (key->kind) {
    case DR_KEY_WHOLE:
        return dr_json_integer(object, key->key, (int64_t)key->least, (int64_t)key->most, field);
    case DR_KEY_REAL:
        return dr_json_real(object, key->key, key->least, key->most, field);
    case DR_KEY_TRUTH:
        return dr_json_boolean(object, key->key, field);
    case DR_KEY_TEXT:
        return dr_json_text(object, key->key, field);
    case DR_KEY_OBJECT:
    case DR_KEY_NUMBERS:
        DR_TRY(check_form(key, value));
        *(const json_t **)field = value;
        return DR_OK;
    case DR_KEY_ANY:
        *(const json_t **)field = value;
        return DR_OK;
    case DR_KEY_ONLY:
        return check_only(key->key, value, key->only);
    }
    return DR_OK;
}

dr_status dr_keys_read(const json_t *object, const dr_key_table *const *tables, void *to) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        const dr_key *key = NULL;
        bool idle = false;
        for (int i = 0; tables[i] && !key; i++) {
            key = find_key(tables[i], name);
            idle = idle || is_idle(tables[i], name);
        }
        if (key && !json_is_null(value)) DR_TRY(read_key(object, key, value, to));
        if (key || idle) continue;
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the key \"%.80s\" is not known for this model type: what it changes would be lost (take it out to "
                       "load the model without it)",
                       name);
    }
    return DR_OK;
}

dr_status dr_keys_real(const json_t *value, const char *key, double *number) {
    const json_t *written = json_is_object(value) ? json_object_get(value, "__float__") : value;
    const char *text = json_string_value(written);
    if (json_is_number(written))
        *number = json_number_value(written);
    else if (text && strcmp(text, "Infinity") == 0)
        *number = (double)INFINITY;
    else {
        char found[100];
        dr_json_describe(value, found, sizeof found);
        return dr_fail(DR_ERROR_FORMAT, "\"%s\" has %s where a number is needed", key, found);
    }
    return DR_OK;
}
