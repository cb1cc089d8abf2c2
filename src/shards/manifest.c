/* Reading and writing shards.json. Names of files come from outside, so only those that a writer gives are taken: none leads
 * out of the folder. */
#include "shards/manifest.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/file.h"
#include "formats/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 28, VERSION = 1, LONGEST_SET = 48, HASH_TEXT = 17 };

static const char NAME[] = "shards.json", FORMAT[] = "deltarule shards";
static const int64_t MOST = INT64_C(1) << 53; /* what other readers of JSON can hold */

static dr_status path_of(const char *folder, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, NAME) < PATH_MAX) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "the path of the shards %s is too long", folder);
}

bool dr_shard_manifest_exists(const char *folder) {
    char path[PATH_MAX];
    return path_of(folder, path) == DR_OK && access(path, F_OK) == 0;
}

bool dr_set_name_fits(const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t length = strlen(name);
    return length > 0 && length <= LONGEST_SET && strspn(name, letters) == length;
}

dr_status dr_shard_manifest_append(dr_shard_manifest *manifest, const dr_shard_entry *entry) {
    void *memory = manifest->shards;
    dr_status status = dr_grow(&memory, manifest->count, sizeof *entry, "the list of shards");
    manifest->shards = memory;
    if (status == DR_OK) manifest->shards[manifest->count++] = *entry;
    return status;
}

void dr_shard_manifest_release(dr_shard_manifest *manifest) {
    dr_release(manifest->shards);
    *manifest = (dr_shard_manifest){0};
}

/* ---- reading ---- */

/* A number of 64 bits, which JSON has no type for. */
static dr_status read_hash(const json_t *object, const char *key, uint64_t *hash) {
    const char *text = "";
    char *end;
    DR_TRY(dr_json_text(object, key, &text));
    *hash = strtoull(text, &end, 16);
    if (*text && !*end && strlen(text) == HASH_TEXT - 1) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "\"%s\" is \"%.40s\": it must be 16 hexadecimal digits", key, text);
}

/* SET_NUMBER.bin */
static bool file_fits(const char *set, const char *file) {
    size_t length = strlen(set);
    if (strncmp(file, set, length) != 0 || file[length] != '_') return false;
    const char *number = file + length + 1;
    size_t digits = strspn(number, "0123456789");
    return digits >= 1 && digits <= 18 && strcmp(number + digits, ".bin") == 0;
}

static dr_status read_shard(const json_t *object, dr_shard_manifest *manifest) {
    static const char *const keys[] = {"set", "file", "tokens", "documents", "bytes", "masked", "hash", NULL};
    const char *set = NULL, *file = NULL;
    dr_shard_entry entry = {0};
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "\"shards\" must be a list of objects");
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, keys));
    DR_TRY(dr_json_text(object, "set", &set));
    DR_TRY(dr_json_text(object, "file", &file));
    DR_TRY(dr_json_integer(object, "tokens", 1, INT32_MAX, &entry.tokens));
    DR_TRY(dr_json_integer(object, "documents", 1, INT32_MAX, &entry.documents));
    DR_TRY(dr_json_integer(object, "bytes", 0, MOST, &entry.bytes));
    DR_TRY(dr_json_boolean(object, "masked", &entry.masked));
    DR_TRY(read_hash(object, "hash", &entry.hash));
    if (!dr_set_name_fits(set)) return dr_fail(DR_ERROR_FORMAT, "\"%.60s\" is no name of a set of shards", set);
    if (!file_fits(set, file))
        return dr_fail(DR_ERROR_FORMAT, "\"%.100s\" is no name of a shard of the set \"%s\": it must be %s_NUMBER.bin", file,
                       set, set);
    snprintf(entry.set, sizeof entry.set, "%s", set);
    snprintf(entry.file, sizeof entry.file, "%s", file);
    return dr_shard_manifest_append(manifest, &entry);
}

static dr_status read_position(const json_t *object, dr_shard_position *position) {
    static const char *const keys[] = {"corpus", "file", "document", "seen", NULL};
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, keys));
    DR_TRY(dr_json_integer(object, "corpus", 0, MOST, &position->corpus));
    DR_TRY(dr_json_integer(object, "file", 0, MOST, &position->file));
    DR_TRY(dr_json_integer(object, "document", 0, MOST, &position->document));
    return dr_json_integer(object, "seen", 0, MOST, &position->seen);
}

static dr_status read_object(const json_t *object, dr_shard_manifest *manifest) {
    static const char *const keys[] = {"format", "version",  "complete", "vocabulary", "start",
                                       "recipe", "contents", "position", "shards",     NULL};
    const char *format = NULL;
    int64_t version, start = 0;
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, keys));
    DR_TRY(dr_json_text(object, "format", &format));
    if (strcmp(format, FORMAT) != 0) return dr_fail(DR_ERROR_FORMAT, "\"format\" is \"%.40s\", not \"%s\"", format, FORMAT);
    DR_TRY(dr_json_integer(object, "version", VERSION, VERSION, &version));
    DR_TRY(dr_json_boolean(object, "complete", &manifest->complete));
    DR_TRY(dr_json_integer(object, "vocabulary", 1, INT32_MAX, &manifest->vocabulary));
    DR_TRY(dr_json_integer(object, "start", 0, manifest->vocabulary - 1, &start));
    manifest->start = (int32_t)start;
    DR_TRY(read_hash(object, "recipe", &manifest->recipe));
    DR_TRY(read_hash(object, "contents", &manifest->contents));
    const json_t *position = json_object_get(object, "position"), *shards = json_object_get(object, "shards");
    if (!json_is_object(position)) return dr_fail(DR_ERROR_FORMAT, "\"position\" must be an object");
    if (!json_is_array(shards)) return dr_fail(DR_ERROR_FORMAT, "\"shards\" must be a list of objects");
    DR_TRY(read_position(position, &manifest->position));
    for (size_t i = 0; i < json_array_size(shards); i++) DR_TRY(read_shard(json_array_get(shards, i), manifest));
    return DR_OK;
}

dr_status dr_shard_manifest_parse(const char *text, size_t bytes, const char *source, dr_shard_manifest *manifest) {
    json_t *object;
    *manifest = (dr_shard_manifest){0};
    DR_TRY(dr_json_parse_lenient(text, bytes, source, &object));
    dr_status status = read_object(object, manifest);
    json_decref(object);
    return status == DR_OK || status == DR_ERROR_MEMORY ? status : dr_fail_in(status, "%s", source);
}

dr_status dr_shard_manifest_read(const char *folder, dr_shard_manifest *manifest) {
    char path[PATH_MAX], *text;
    size_t bytes;
    *manifest = (dr_shard_manifest){0};
    DR_TRY(path_of(folder, path));
    DR_TRY(dr_file_read(path, MOST_BYTES, &text, &bytes));
    dr_status status = dr_shard_manifest_parse(text, bytes, path, manifest);
    dr_release(text);
    return status;
}

/* ---- writing ---- */

static json_t *hash_text(uint64_t hash) {
    char text[HASH_TEXT];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

static json_t *shard_object(const dr_shard_entry *entry) {
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:o}", "set", entry->set, "file", entry->file, "tokens",
                     (json_int_t)entry->tokens, "documents", (json_int_t)entry->documents, "bytes", (json_int_t)entry->bytes,
                     "masked", (int)entry->masked, "hash", hash_text(entry->hash));
}

static json_t *manifest_object(const dr_shard_manifest *manifest) {
    const dr_shard_position *position = &manifest->position;
    json_t *shards = json_array();
    bool whole = shards != NULL;
    for (int64_t i = 0; i < manifest->count; i++)
        whole = json_array_append_new(shards, shard_object(&manifest->shards[i])) == 0 && whole;
    if (!whole) {
        json_decref(shards);
        return NULL;
    }
    return json_pack("{s:s, s:i, s:b, s:I, s:i, s:o, s:o, s:{s:I, s:I, s:I, s:I}, s:o}", "format", FORMAT, "version", VERSION,
                     "complete", (int)manifest->complete, "vocabulary", (json_int_t)manifest->vocabulary, "start",
                     (int)manifest->start, "recipe", hash_text(manifest->recipe), "contents", hash_text(manifest->contents),
                     "position", "corpus", (json_int_t)position->corpus, "file", (json_int_t)position->file, "document",
                     (json_int_t)position->document, "seen", (json_int_t)position->seen, "shards", shards);
}

dr_status dr_shard_manifest_write(const char *path, const dr_shard_manifest *manifest) {
    json_t *object = manifest_object(manifest);
    if (!object) return dr_fail(DR_ERROR_MEMORY, "there is no memory for %s", NAME);
    dr_status status = dr_json_write(path, object);
    json_decref(object);
    return status;
}
