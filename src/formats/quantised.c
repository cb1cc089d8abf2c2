/* What the ways to quantise leave in a folder. GGUF is a format of files (llama.cpp); the others are safetensors folders whose
 * config.json names the way, in "quantization_config" or, of old folders of compressed-tensors, "compression_config". */
#include "formats/quantised.h"

#include "base/error.h"
#include "base/utf8.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CURE                                                                                                                   \
    "take the folder that it was made from, with weights in bf16, fp16 or float32; --weights int8 or bf16 keeps these small "  \
    "in "                                                                                                                      \
    "memory"

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------------ */

static bool begins_as_gguf(const char *path) {
    char magic[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const bool whole = fread(magic, sizeof magic, 1, file) == 1;
    fclose(file);
    return whole && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static bool has(const char *folder, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, F_OK) == 0;
}

dr_status dr_quantised_check_path(const char *path) {
    struct stat facts;
    if (stat(path, &facts) != 0) return DR_OK; /* whoever opens it says so */
    if (!S_ISDIR(facts.st_mode)) {
        if (begins_as_gguf(path) || ends_with(path, ".gguf"))
            return dr_fail(DR_ERROR_UNSUPPORTED, "%s is a GGUF file, which is not read: " CURE, path);
        return dr_fail(DR_ERROR_ARGUMENT, "%s is a file: a model is a folder with config.json and model.safetensors", path);
    }
    if (has(path, "model.safetensors") || has(path, "model.safetensors.index.json")) return DR_OK;
    DIR *listing = opendir(path);
    char found[NAME_MAX + 1] = "";
    for (const struct dirent *item = listing ? readdir(listing) : NULL; item && !*found; item = readdir(listing))
        if (ends_with(item->d_name, ".gguf")) snprintf(found, sizeof found, "%s", item->d_name);
    if (listing) closedir(listing);
    if (!*found) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "%s has no model.safetensors but %s, a GGUF file, which is not read: " CURE, path,
                   found);
}

/* ---- folders --------------------------------------------------------------------------------------------------------- */

/* How people know a way whose name in the file is another. */
static const char *method_name(const char *method) {
    static const char *const names[][2] = {
        {"gptq", "GPTQ"}, {"awq", "AWQ"}, {"bitsandbytes", "bitsandbytes"}, {"compressed-tensors", "compressed-tensors"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(method, names[i][0]) == 0) return names[i][1];
    return method;
}

dr_status dr_quantised_check_config(const json_t *config) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    const json_t *const places[] = {config, json_object_get(config, "text_config")};
    for (size_t i = 0; i < 4; i++) {
        const json_t *found = json_object_get(places[i / 2], keys[i % 2]);
        if (!found || json_is_null(found)) continue;
        const char *method = json_string_value(json_object_get(found, "quant_method"));
        const bool bits = json_object_get(found, "load_in_4bit") || json_object_get(found, "load_in_8bit");
        char text[80];
        if (!method) method = i % 2 ? "compressed-tensors" : bits ? "bitsandbytes" : "a way that it does not name";
        return dr_fail(DR_ERROR_UNSUPPORTED, "\"%s\" says that the weights are quantised by %s, which is not read: " CURE,
                       keys[i % 2], dr_printable(method_name(method), text, sizeof text));
    }
    return DR_OK;
}

static const struct {
    const char *part, *way; /* in the name of a tensor */
} marks[] = {{".qweight", "GPTQ or AWQ"},
             {".qzeros", "GPTQ or AWQ"},
             {".weight_packed", "compressed-tensors"},
             {".weight_scale", "fp8 or compressed-tensors"},
             {".weight_scale_inv", "fp8"},
             {".input_scale", "fp8"},
             {".absmax", "bitsandbytes"},
             {".quant_map", "bitsandbytes"},
             {".SCB", "bitsandbytes"}};

dr_status dr_quantised_check_tensors(const dr_weights *weights) {
    char text[200];
    for (int64_t t = 0; t < dr_weights_count(weights); t++) {
        const char *name = dr_weights_name(weights, t);
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
            if (ends_with(name, marks[i].part))
                return dr_fail(DR_ERROR_UNSUPPORTED,
                               "the tensor '%s' is part of weights quantised by %s, which are not read: " CURE,
                               dr_printable(name, text, sizeof text), marks[i].way);
    }
    return DR_OK;
}

dr_status dr_quantised_check_dtype(const char *tensor, const char *dtype) {
    char text[200], type[40];
    const bool small = strncmp(dtype, "F8_", 3) == 0 || strncmp(dtype, "F6_", 3) == 0 || strcmp(dtype, "F4") == 0;
    if (!small) return DR_OK;
    return dr_fail(DR_ERROR_UNSUPPORTED, "the tensor '%s' is quantised to %s (dtype %s), which is not read: " CURE,
                   dr_printable(tensor, text, sizeof text), strncmp(dtype, "F8_", 3) == 0 ? "fp8" : "a small floating type",
                   dr_printable(dtype, type, sizeof type));
}
