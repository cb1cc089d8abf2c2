/* Reading mixtures. */
#include "train/mixture_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CORPORA = 1000 };

bool dr_is_mixture_file(const char *path) {
    static const char end[] = ".json";
    struct stat facts;
    size_t length = strlen(path);
    return length >= sizeof end && strcmp(path + length - strlen(end), end) == 0 && stat(path, &facts) == 0 &&
           !S_ISDIR(facts.st_mode);
}

static dr_status append(dr_mixture_items *items, const char *folder, int folder_length, const char *path, double weight) {
    void *memory = items->at;
    dr_status status = dr_grow(&memory, items->count, sizeof(dr_mixture_item), "the corpora of a mixture");
    items->at = memory;
    if (status != DR_OK) return status;
    const size_t room = (size_t)folder_length + strlen(path) + 2;
    DR_TRY(dr_allocate(room, "the path of a corpus", &memory));
    snprintf(memory, room, "%.*s%s", *path == '/' ? 0 : folder_length, folder, path);
    items->at[items->count++] = (dr_mixture_item){.path = memory, .weight = weight};
    return DR_OK;
}

dr_status dr_mixture_single(const char *path, dr_mixture_items *items) {
    *items = (dr_mixture_items){0};
    return append(items, "", 0, path, 1);
}

static dr_status read_item(const char *file, const json_t *object, dr_mixture_items *items) {
    static const char *const keys[] = {"corpus", "weight", NULL};
    const char *path = NULL, *slash = strrchr(file, '/');
    double weight = 0;
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "\"mixture\" must be a list of objects");
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, keys));
    DR_TRY(dr_json_text(object, "corpus", &path));
    DR_TRY(dr_json_real(object, "weight", 1e-9, 1e9, &weight));
    if (!*path) return dr_fail(DR_ERROR_FORMAT, "\"corpus\" is empty: it must be a path");
    return append(items, file, slash ? (int)(slash - file) + 1 : 0, path, weight);
}

static dr_status read_object(const char *file, const json_t *object, dr_mixture_items *items) {
    static const char *const keys[] = {"mixture", NULL};
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, keys));
    const json_t *list = json_object_get(object, "mixture");
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MOST_CORPORA)
        return dr_fail(DR_ERROR_FORMAT, "\"mixture\" must be a list of 1 to %d objects", MOST_CORPORA);
    for (size_t i = 0; i < json_array_size(list); i++) DR_TRY(read_item(file, json_array_get(list, i), items));
    return DR_OK;
}

dr_status dr_mixture_file_read(const char *path, dr_mixture_items *items) {
    json_t *object;
    *items = (dr_mixture_items){0};
    DR_TRY(dr_json_read(path, &object));
    dr_status status = read_object(path, object, items);
    json_decref(object);
    return status == DR_OK || status == DR_ERROR_MEMORY ? status : dr_fail_in(status, "%s", path);
}

void dr_mixture_items_release(dr_mixture_items *items) {
    for (int64_t i = 0; i < items->count; i++) dr_release(items->at[i].path);
    dr_release(items->at);
    *items = (dr_mixture_items){0};
}
