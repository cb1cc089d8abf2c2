/* Reads a config.json, fills in what it leaves open, and writes it again: what resolves must read back. */
#include "formats/json.h"
#include "fuzz.h"
#include "nn/config.h"

static void check(const json_t *object) {
    dr_model_config config, resolved, again;
    if (dr_config_read(object, &config) != DR_OK || dr_config_resolve(&config, &resolved) != DR_OK) return;
    json_t *written = dr_config_write(&resolved, "float32");
    if (!written || dr_config_read(written, &again) != DR_OK) abort();
    json_decref(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *object = NULL;
    if (dr_json_parse_lenient((const char *)data, size, "config.json", &object) == DR_OK) check(object);
    json_decref(object);
    return 0;
}
