/* Reads a safetensors file and every element of it. What opens must be readable to its last byte. */
#include "formats/safetensors.h"
#include "fuzz.h"

static volatile double sink; /* so that no read is optimised away */

static void read_file(const char *path) {
    dr_safetensors *file = NULL;
    dr_tensor found;
    if (dr_safetensors_open(path, &file) != DR_OK) return;
    for (int64_t i = 0; i < dr_safetensors_count(file); i++) {
        dr_tensor tensor = dr_safetensors_tensor(file, i);
        if (!dr_safetensors_find(file, dr_safetensors_name(file, i), &found) || found.data != tensor.data) abort();
        for (int64_t e = 0; e < dr_tensor_count(&tensor); e++) sink = dr_tensor_element(&tensor, e);
    }
    dr_safetensors_metadata(file, "rule");
    dr_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_with_file(data, size, read_file);
    return 0;
}
