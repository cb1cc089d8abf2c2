/* One file is a list of one shard. A name is looked for in every shard: there are tens of them at most. */
#include "formats/weights.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "formats/json.h"
#include "formats/safetensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_SHARDS = 4096 };

static const char SINGLE_FILE[] = "model.safetensors", INDEX_FILE[] = "model.safetensors.index.json";

typedef struct {
    const char *name; /* lives in the index */
    dr_safetensors *tensors;
} shard;

struct dr_weights {
    char file[PATH_MAX];
    json_t *index; /* NULL: a single file */
    shard *shards;
    int64_t count, tensors;
};

static dr_status join(const char *folder, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the path of the folder %s is too long", folder);
}

static dr_status open_shard(dr_weights *weights, const char *folder, const char *name) {
    char path[PATH_MAX];
    DR_TRY(join(folder, name, path));
    shard *opened = &weights->shards[weights->count];
    opened->name = name;
    DR_TRY(dr_safetensors_open(path, &opened->tensors));
    weights->count++;
    weights->tensors += dr_safetensors_count(opened->tensors);
    return DR_OK;
}

/* A file right in the folder, and none that is hidden. */
static bool is_plain_name(const char *name) {
    static const char end[] = ".safetensors";
    size_t length = strlen(name);
    return length > strlen(end) && length <= NAME_MAX && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name + length - strlen(end), end) == 0;
}

static shard *find_shard(const dr_weights *weights, const char *name) {
    for (int64_t i = 0; i < weights->count; i++)
        if (strcmp(weights->shards[i].name, name) == 0) return &weights->shards[i];
    return NULL;
}

/* The shard that the index names for a tensor, which must be in it. */
static dr_status read_line(dr_weights *weights, const char *folder, const char *tensor, const json_t *value) {
    const char *name = json_string_value(value);
    char text[200], file[200];
    dr_printable(tensor, text, sizeof text);
    if (!name || !is_plain_name(name))
        return dr_fail(DR_ERROR_FORMAT, "the file of '%s' is \"%s\": it must be the name of a .safetensors file in the folder",
                       text, name ? dr_printable(name, file, sizeof file) : "no text");
    if (!find_shard(weights, name)) {
        if (weights->count == MOST_SHARDS) return dr_fail(DR_ERROR_FORMAT, "it names more than %d files", MOST_SHARDS);
        DR_TRY(open_shard(weights, folder, name));
    }
    if (dr_safetensors_find(find_shard(weights, name)->tensors, tensor, &(dr_tensor){0})) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "the tensor '%s' is not in %s", text, dr_printable(name, file, sizeof file));
}

static dr_status read_index(dr_weights *weights, const char *folder) {
    DR_TRY(dr_json_read(weights->file, &weights->index));
    const json_t *map = json_object_get(weights->index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return dr_fail(DR_ERROR_FORMAT, "it has no \"weight_map\" from names of tensors to names of files");
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) DR_TRY(read_line(weights, folder, tensor, value));
    if (weights->tensors == (int64_t)json_object_size(map)) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "it names %zu tensors, but its files have %" PRId64, json_object_size(map),
                   weights->tensors);
}

static dr_status open_files(dr_weights *weights, const char *folder) {
    void *memory = NULL;
    DR_TRY(join(folder, SINGLE_FILE, weights->file));
    bool single = access(weights->file, F_OK) == 0;
    if (!single) {
        DR_TRY(join(folder, INDEX_FILE, weights->file));
        single = access(weights->file, F_OK) != 0; /* neither: the message is about the single file */
    }
    DR_TRY(dr_allocate_zero((single ? 1 : MOST_SHARDS) * sizeof(shard), "the list of a model's files", &memory));
    weights->shards = memory;
    if (!single) {
        dr_status status = read_index(weights, folder);
        return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", weights->file);
    }
    DR_TRY(join(folder, SINGLE_FILE, weights->file));
    return open_shard(weights, folder, SINGLE_FILE);
}

dr_status dr_weights_open(const char *folder, dr_weights **weights) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_weights), "a model's files", &memory));
    dr_status status = open_files(memory, folder);
    if (status == DR_OK)
        *weights = memory;
    else
        dr_weights_close(memory);
    return status;
}

void dr_weights_close(dr_weights *weights) {
    if (!weights) return;
    for (int64_t i = 0; i < weights->count; i++) dr_safetensors_close(weights->shards[i].tensors);
    dr_release(weights->shards);
    json_decref(weights->index);
    dr_release(weights);
}

const char *dr_weights_file(const dr_weights *weights) {
    return weights->file;
}

int64_t dr_weights_count(const dr_weights *weights) {
    return weights->tensors;
}

/* The shard that has tensor *index of all, and its index there. */
static const dr_safetensors *shard_of(const dr_weights *weights, int64_t *index) {
    const shard *at = weights->shards;
    while (*index >= dr_safetensors_count(at->tensors)) *index -= dr_safetensors_count(at++->tensors);
    return at->tensors;
}

const char *dr_weights_name(const dr_weights *weights, int64_t index) {
    const dr_safetensors *tensors = shard_of(weights, &index);
    return dr_safetensors_name(tensors, index);
}

dr_tensor dr_weights_tensor(const dr_weights *weights, int64_t index) {
    const dr_safetensors *tensors = shard_of(weights, &index);
    return dr_safetensors_tensor(tensors, index);
}

int64_t dr_weights_index(const dr_weights *weights, const char *name) {
    int64_t before = 0;
    for (int64_t i = 0; i < weights->count; i++) {
        const int64_t index = dr_safetensors_index(weights->shards[i].tensors, name);
        if (index >= 0) return before + index;
        before += dr_safetensors_count(weights->shards[i].tensors);
    }
    return -1;
}

int dr_weights_find(const dr_weights *weights, const char *name, dr_tensor *tensor) {
    const int64_t index = dr_weights_index(weights, name);
    if (index >= 0) *tensor = dr_weights_tensor(weights, index);
    return index >= 0;
}
