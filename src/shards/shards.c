/* Opening shards: by shards.json, or by the names of files that other programs wrote. */
#include "shards/shards.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "formats/folder.h"
#include "shards/set.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PRINTED = 600 };

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

static int is_bin(const struct dirent *item) {
    return item->d_name[0] != '.' && ends_with(item->d_name, ".bin");
}

bool dr_shards_are(const char *path) {
    if (!is_folder(path)) return ends_with(path, ".bin");
    if (dr_shard_manifest_exists(path)) return true;
    DIR *folder = opendir(path);
    bool any = false, others = false, training = false;
    for (const struct dirent *item; folder && (item = readdir(folder));) {
        if (item->d_name[0] == '.') continue;
        any = any || is_bin(item);
        training = training || (is_bin(item) && strstr(item->d_name, "train"));
        others = others || !(is_bin(item) || ends_with(item->d_name, ".json") || ends_with(item->d_name, ".pkl"));
    }
    if (folder) closedir(folder);
    return training || (any && !others);
}

/* ---- sets ---- */

static dr_status set_named(dr_shards *shards, const char *name, dr_shard_set **set) {
    for (int64_t i = 0; i < shards->count; i++)
        if (strcmp(dr_shard_set_name(shards->sets[i]), name) == 0) {
            *set = shards->sets[i];
            return DR_OK;
        }
    void *memory = shards->sets;
    dr_status status = dr_grow(&memory, shards->count, sizeof(dr_shard_set *), "the sets of shards");
    shards->sets = memory;
    if (status != DR_OK) return status;
    DR_TRY(dr_shard_set_create(name, shards->vocabulary, shards->start, set));
    shards->sets[shards->count++] = *set;
    return DR_OK;
}

static int by_use(const void *left, const void *right) {
    const dr_shard_set *a = *(dr_shard_set *const *)left, *b = *(dr_shard_set *const *)right;
    if (a->validates != b->validates) return a->validates ? 1 : -1;
    return strcmp(a->name, b->name);
}

static dr_status add_file(dr_shards *shards, const char *folder, const char *file, const char *set_name,
                          const dr_shard_entry *entry) {
    dr_shard_set *set;
    DR_TRY(set_named(shards, set_name, &set));
    return dr_shard_set_add(set, folder, file, entry);
}

/* ---- this library's ---- */

static dr_status check_whole(const char *path, const dr_shard_manifest *manifest, const dr_shards_of *of) {
    if (!manifest->complete)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "the shards in %s are not complete: give the command that writes them once more, and it goes on", path);
    if (of->vocabulary > 0 && of->vocabulary != manifest->vocabulary)
        return dr_fail(DR_ERROR_ARGUMENT, "the shards in %s have a vocabulary of %lld ids, and the tokenizer %lld", path,
                       (long long)manifest->vocabulary, (long long)of->vocabulary);
    if (manifest->count == 0) return dr_fail(DR_ERROR_FORMAT, "%s/shards.json names no shards", path);
    return DR_OK;
}

static dr_status open_own(const char *path, const dr_shards_of *of, dr_shards *shards) {
    dr_shard_manifest manifest = {0};
    dr_status status;
    DR_TRY(dr_folder_recover(path));
    DR_GO(dr_shard_manifest_read(path, &manifest));
    DR_GO(check_whole(path, &manifest, of));
    shards->own = true;
    shards->vocabulary = manifest.vocabulary;
    shards->start = manifest.start;
    for (int64_t i = 0; i < manifest.count; i++)
        DR_GO(add_file(shards, path, manifest.shards[i].file, manifest.shards[i].set, &manifest.shards[i]));
done:
    dr_shard_manifest_release(&manifest);
    return status;
}

/* ---- others' ---- */

static const char *use_of(const char *file) {
    const char *slash = strrchr(file, '/');
    return strstr(slash ? slash + 1 : file, "val") ? "val" : "train";
}

static int by_name(const struct dirent **left, const struct dirent **right) {
    return strcmp((*left)->d_name, (*right)->d_name);
}

static dr_status open_folder(const char *path, dr_shards *shards) {
    struct dirent **items;
    int count = scandir(path, &items, is_bin, by_name);
    dr_status status = DR_OK;
    if (count < 0) return dr_fail(DR_ERROR_IO, "the folder %s cannot be listed: %s", path, dr_system_text(errno));
    for (int i = 0; i < count; i++) {
        if (status == DR_OK) status = add_file(shards, path, items[i]->d_name, use_of(items[i]->d_name), NULL);
        free(items[i]);
    }
    free(items);
    return status;
}

static dr_status open_foreign(const char *path, const dr_shards_of *of, dr_shards *shards) {
    struct stat facts;
    if (stat(path, &facts) != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "cannot read the shards \"%s\": %s", path, dr_system_text(errno));
    if (of->vocabulary <= 0)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%s does not say how many ids its vocabulary has: give the tokenizer that made it, or the vocabulary",
                       path);
    shards->vocabulary = of->vocabulary;
    shards->start = of->start;
    return S_ISDIR(facts.st_mode) ? open_folder(path, shards) : add_file(shards, NULL, path, use_of(path), NULL);
}

/* ---- the whole ---- */

dr_status dr_shards_open(const char *path, const dr_shards_of *of, dr_shards **shards) {
    void *memory;
    char name[PRINTED];
    *shards = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_shards), "shards", &memory));
    dr_shards *made = memory;
    dr_status status;
    bool own = is_folder(path) && dr_shard_manifest_exists(path);
    DR_GO(own ? open_own(path, of, made) : open_foreign(path, of, made));
    if (made->count == 0) {
        status = dr_fail(DR_ERROR_ARGUMENT, "the folder %s holds no shards", dr_printable(path, name, sizeof name));
        goto done;
    }
    qsort(made->sets, (size_t)made->count, sizeof(dr_shard_set *), by_use);
    for (int64_t i = 0; i < made->count; i++)
        made->fingerprint = dr_hash_bytes(made->fingerprint, &made->sets[i]->hash, sizeof made->sets[i]->hash);
    *shards = made;
    return DR_OK;
done:
    dr_shards_close(made);
    return status;
}

void dr_shards_close(dr_shards *shards) {
    if (!shards) return;
    for (int64_t i = 0; i < shards->count; i++) dr_shard_set_destroy(shards->sets[i]);
    dr_release(shards->sets);
    dr_release(shards);
}
