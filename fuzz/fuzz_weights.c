/* Opens a folder of weights whose index is what is given, beside one file that is right. */
#include "formats/safetensors.h"
#include "formats/weights.h"
#include "fuzz.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/fuzz-weights-XXXXXX";

static void join(const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
}

static void leave(void) {
    char path[PATH_MAX];
    join("a.safetensors", path);
    unlink(path);
    join("model.safetensors.index.json", path);
    unlink(path);
    rmdir(folder);
}

static void make_folder(void) {
    static const float values[6] = {0};
    const char *const names[] = {"x", "y"};
    const dr_tensor tensors[] = {{.dtype = DR_F32, .rank = 1, .shape = {2}, .data = (void *)values},
                                 {.dtype = DR_F32, .rank = 2, .shape = {2, 2}, .data = (void *)values}};
    char path[PATH_MAX];
    if (!mkdtemp(folder)) abort();
    atexit(leave);
    join("a.safetensors", path);
    if (dr_safetensors_write(path, 2, names, tensors, NULL) != DR_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int made;
    char path[PATH_MAX];
    dr_weights *weights;
    if (!made++) make_folder();
    join("model.safetensors.index.json", path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
    if (dr_weights_open(folder, &weights) != DR_OK) return 0;
    if (dr_weights_count(weights) != 2 || dr_weights_index(weights, "y") < 0) abort();
    dr_weights_close(weights);
    return 0;
}
