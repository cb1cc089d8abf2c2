/* The files of a tokenizer: what decides ids, texts and chats. */
#include "shards/tokenizer_files.h"

#include "base/error.h"
#include "base/memory.h"
#include "data/mapping.h"
#include "formats/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                    "chat_template.jinja"};
enum { NAMES = sizeof names / sizeof *names, MOST_BYTES = 1 << 28 };

dr_status dr_tokenizer_open(const char *path, dr_tokenizer **tokenizer) {
    return strcmp(path, "bytes") == 0 ? dr_tokenizer_bytes(tokenizer) : dr_tokenizer_load(path, tokenizer);
}

/* FOLDER/NAME of the tokenizer at path, which may be its tokenizer.json itself; false: there is no such file. */
static bool find(const char *path, int index, char file[PATH_MAX]) {
    struct stat facts;
    int length = (int)strlen(path);
    if (strcmp(path, "bytes") == 0 || stat(path, &facts) != 0) return false;
    if (!S_ISDIR(facts.st_mode)) {
        if (index == 0) return snprintf(file, PATH_MAX, "%s", path) < PATH_MAX;
        const char *slash = strrchr(path, '/');
        if (!slash) return snprintf(file, PATH_MAX, "%s", names[index]) < PATH_MAX && access(file, F_OK) == 0;
        length = (int)(slash - path);
    }
    return snprintf(file, PATH_MAX, "%.*s/%s", length, path, names[index]) < PATH_MAX && access(file, F_OK) == 0;
}

bool dr_tokenizer_is_in(const char *folder) {
    char file[PATH_MAX];
    struct stat facts;
    return stat(folder, &facts) == 0 && S_ISDIR(facts.st_mode) && find(folder, 0, file);
}

dr_status dr_tokenizer_files_hash(const char *path, uint64_t *hash) {
    char file[PATH_MAX], *data;
    size_t bytes;
    for (int i = 0; i < NAMES; i++) {
        if (!find(path, i, file)) continue;
        DR_TRY(dr_file_read(file, MOST_BYTES, &data, &bytes));
        *hash = dr_hash_bytes(dr_hash_bytes(*hash, names[i], (int64_t)strlen(names[i])), data, (int64_t)bytes);
        dr_release(data);
    }
    return DR_OK;
}

dr_status dr_tokenizer_files_copy(const char *path, dr_folder *change) {
    char file[PATH_MAX], target[PATH_MAX], *data;
    size_t bytes;
    for (int i = 0; i < NAMES; i++) {
        dr_file copy;
        if (!find(path, i, file)) continue;
        DR_TRY(dr_file_read(file, MOST_BYTES, &data, &bytes));
        snprintf(target, sizeof target, "%s", dr_folder_path(change, names[i]));
        dr_file_create(target, &copy);
        dr_file_write(&copy, data, bytes);
        dr_release(data);
        DR_TRY(dr_file_finish(&copy));
    }
    return DR_OK;
}
