/* JSON files: base/json.h parses and checks what is in them. */
#include "formats/json.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/file.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 100000000 };

dr_status dr_json_read(const char *file, json_t **object) {
    char *text = NULL;
    size_t length = 0;
    DR_TRY(dr_file_read(file, MAX_FILE_BYTES, &text, &length));
    dr_status status = dr_json_parse_lenient(text, length, file, object);
    dr_release(text);
    return status;
}

/* text: to be freed, or NULL without memory */
static dr_status write_text(const char *file, char *text) {
    if (!text) return dr_fail(DR_ERROR_MEMORY, "%s: there is no memory for its JSON", file);
    dr_file out;
    dr_file_create(file, &out);
    dr_file_write(&out, text, strlen(text));
    dr_file_write(&out, "\n", 1);
    free(text);
    return dr_file_finish(&out);
}

dr_status dr_json_write(const char *file, const json_t *object) {
    return write_text(file, dr_json_format(object, JSON_INDENT(2)));
}

dr_status dr_json_write_lenient(const char *file, const json_t *object) {
    return write_text(file, dr_json_format_lenient(object, JSON_INDENT(2)));
}
