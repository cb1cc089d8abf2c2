/* Loads a file as the state of a small model, and as a file of a store of prefixes, and asks what it is without the model. What
 * loads must be whole enough to be copied and to decode a token. The seeds are states of this model under an identity of their
 * own, since first values may be rounded differently by another machine. */
#include "fuzz.h"

#include "nn/state_file.h"

static const uint64_t identity = 42;
static dr_backend *backend; /* opened once */
static dr_model *model;

static void read_file(const char *path) {
    dr_safetensors *file = NULL;
    dr_model_state *state = NULL, *copy = NULL;
    dr_position position;
    int32_t *ids = NULL;
    float logits[16 * 4];
    const int32_t next[4] = {0};
    dr_model_state_file about;
    dr_position told[2];
    const dr_status status = dr_model_state_file_about(path, &about, told, 2);
    if (status == DR_OK && (about.sequences < 1 || about.file_bytes <= about.fixed_bytes + about.grown_bytes)) abort();
    if (dr_safetensors_open(path, &file) == DR_OK) dr_state_file_peek(file, identity, &ids, &position);
    dr_safetensors_close(file);
    dr_release(ids);
    if (dr_state_file_read(model, identity, path, &state) != DR_OK) return;
    if (dr_model_state_clone(state, &copy) != DR_OK) abort();
    if (dr_model_state_sequences(copy) <= 4 && dr_model_step(model, next, copy, logits) != DR_OK) abort();
    dr_model_state_destroy(state);
    dr_model_state_destroy(copy);
}

static void open_model(void) {
    if (dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &backend) != DR_OK) abort();
    dr_model_config config = dr_model_config_default(dr_rule_find("kda"));
    config.vocabulary = 16;
    config.hidden = 8;
    config.heads = 1;
    config.layer_list = "[{\"mixer\": \"kda\"}, {\"mixer\": \"attention\", \"window\": 3}, {\"mixer\": \"attention\"}]";
    if (dr_model_create(backend, &config, 1, &model) != DR_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!model) open_model();
    fuzz_with_file(data, size, read_file);
    return 0;
}
