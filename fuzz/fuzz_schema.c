/* Compiles a JSON schema; where there is one, writes a text byte by byte as it allows: there is always a byte to go on with,
 * until the text is whole, and a whole text is JSON. */
#include "fuzz.h"

#include "constrain/automaton.h"

#include <deltarule/status.h>

enum { LONGEST = 300 };

static void write_text(const dr_schema *schema, const uint8_t *data, size_t size) {
    static dr_automaton now, next;
    char text[LONGEST];
    size_t bytes = 0;
    dr_automaton_begin(schema, &now);
    while (bytes < LONGEST) {
        int tried = 0;
        const uint8_t first = data[(bytes * 7 + 3) % size];
        while (tried < 256 && !dr_automaton_take(schema, &now, (uint8_t)(first + tried), &next)) tried++;
        if (tried == 256) break;
        text[bytes++] = (char)(first + tried);
        now = next;
    }
    if (bytes < LONGEST && !dr_automaton_complete(schema, &now)) abort();
    if (!dr_automaton_complete(schema, &now)) return;
    json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    if (!value) abort();
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *json = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    dr_schema *schema;
    if (!json) return 0;
    if (dr_schema_create(json, &schema) == DR_OK) {
        write_text(schema, data, size);
        dr_schema_destroy(schema);
    } else if (!*dr_last_error()) {
        abort();
    }
    json_decref(json);
    return 0;
}
