/* Reads a config.json as a published one; and as one of our own, fills in what it leaves open, and writes it again: what
 * resolves must read back. */
#include "formats/json.h"
#include "formats/names/names.h"
#include "formats/names/published.h"
#include "fuzz.h"
#include "nn/config.h"
#include "nn/describe.h"

static void write_and_read(const dr_model_config *config) {
    dr_model_config resolved, again;
    dr_description description;
    char *layer_list;
    if (dr_config_resolve(config, &resolved) != DR_OK || resolved.layers > 64) return;
    if (dr_describe(&resolved, &description) == DR_OK) dr_description_release(&description);
    json_t *written = dr_config_write(&resolved, "float32");
    if (!written || dr_config_read(written, &again, &layer_list) != DR_OK) abort();
    free(layer_list);
    json_decref(written);
}

static void check(const json_t *object) {
    dr_model_config config;
    char *layer_list = NULL;
    if (dr_config_read(object, &config, &layer_list) == DR_OK) write_and_read(&config);
    free(layer_list);
}

/* A published configuration: what is read has layers, and a table of names. */
static void check_published(const json_t *object) {
    dr_description description;
    if (dr_published_read(object, &description) != DR_OK) return;
    if (description.count < 1 || !dr_names_of(description.model_type)) abort();
    dr_description_release(&description);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *object = NULL;
    if (dr_json_parse_lenient((const char *)data, size, "config.json", &object) == DR_OK) {
        check(object);
        check_published(object);
    }
    json_decref(object);
    return 0;
}
