/* Sets of shards. All that can be wrong in a file is found when it is added: afterwards only a file that changes can fail. */
#include "shards/set.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 }; /* tokens */

const uint8_t dr_index_magic[8] = {'d', 'r', 'i', 'n', 'd', 'e', 'x', '1'};

/* ---- files ---- */

/* FOLDER/FILE, with another ending than ".bin" unless ending is NULL. */
static dr_status make_path(const char *folder, const char *file, const char *ending, char **path) {
    size_t stem = strlen(file) - (ending ? strlen(".bin") : 0), room = (folder ? strlen(folder) + 1 : 0) + stem + 16;
    void *memory;
    DR_TRY(dr_allocate(room, "the path of a shard", &memory));
    *path = memory;
    snprintf(*path, room, "%s%s%.*s%s", folder ? folder : "", folder ? "/" : "", (int)stem, file, ending ? ending : "");
    return DR_OK;
}

static dr_status map(dr_shard_file *file) {
    struct stat facts;
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return dr_fail(DR_ERROR_IO, "%s cannot be opened: %s", file->path, dr_system_text(errno));
    dr_status status = DR_OK;
    if (fstat(descriptor, &facts) != 0)
        status = dr_fail(DR_ERROR_IO, "%s cannot be read: %s", file->path, dr_system_text(errno));
    else if (!S_ISREG(facts.st_mode))
        status = dr_fail(DR_ERROR_FORMAT, "%s is not a regular file", file->path);
    else if (facts.st_size == 0)
        status = dr_fail(DR_ERROR_FORMAT, "%s is empty", file->path);
    else
        status = dr_mapping_create(descriptor, &facts, &file->mapping);
    close(descriptor);
    if (status != DR_OK || file->mapping) return status;
    return dr_fail(DR_ERROR_IO, "%s cannot be mapped into memory", file->path);
}

static void close_file(dr_shard_file *file) {
    dr_mapping_destroy(file->mapping);
    dr_release(file->path);
    *file = (dr_shard_file){0};
}

static void close_shard(dr_shard *shard) {
    close_file(&shard->ids);
    close_file(&shard->index);
    close_file(&shard->mask);
}

/* ---- checks ---- */

static uint32_t id_at(const dr_shard *shard, int64_t token) {
    const uint8_t *at = shard->ids.mapping->start + shard->layout.header + token * shard->layout.width;
    return shard->layout.width == 2 ? (uint32_t)at[0] | (uint32_t)at[1] << 8 : dr_shard_u32(at);
}

static uint32_t largest(const dr_shard *shard, int64_t from, int64_t count) {
    const uint8_t *at = shard->ids.mapping->start + shard->layout.header + from * shard->layout.width;
    uint32_t most = 0;
    if (shard->layout.width == 2) {
        uint16_t most16 = 0, id;
        for (int64_t i = 0; i < count; i++) {
            memcpy(&id, at + 2 * i, 2); /* all machines that this library is built for are little-endian */
            most16 = id > most16 ? id : most16;
        }
        return most16;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t id;
        memcpy(&id, at + 4 * i, 4);
        most = id > most ? id : most;
    }
    return most;
}

/* Reads all ids, some at a time, so that the pages of a block are all that is resident. */
static dr_status check_ids(const dr_shard_set *set, const dr_shard *shard) {
    for (int64_t from = 0; from < shard->layout.tokens; from += BLOCK) {
        int64_t count = shard->layout.tokens - from < BLOCK ? shard->layout.tokens - from : BLOCK;
        uint32_t most = largest(shard, from, count);
        dr_mapping_forget(shard->ids.mapping);
        if (most < set->vocabulary) continue;
        int64_t token = from;
        while (id_at(shard, token) != most) token++;
        return dr_fail(DR_ERROR_FORMAT, "%s: token %lld is %u, and the vocabulary has the ids from 0 to %lld", shard->ids.path,
                       (long long)token, most, (long long)set->vocabulary - 1);
    }
    return DR_OK;
}

static uint64_t begin_of(const dr_shard *shard, int64_t document) {
    return dr_shard_u64(shard->index.mapping->start + DR_INDEX_HEADER + document * DR_INDEX_ITEM);
}

static uint64_t bytes_of(const dr_shard *shard, int64_t document) {
    return dr_shard_u64(shard->index.mapping->start + DR_INDEX_HEADER + document * DR_INDEX_ITEM + 8);
}

/* The documents of a shard follow each other from its first token on. */
static dr_status check_index(const dr_shard *shard, const dr_shard_entry *entry) {
    const dr_mapping *index = shard->index.mapping;
    const char *path = shard->index.path;
    uint64_t bytes = 0;
    if (index->bytes < DR_INDEX_HEADER || memcmp(index->start, dr_index_magic, sizeof dr_index_magic) != 0)
        return dr_fail(DR_ERROR_FORMAT, "%s is no index of documents", path);
    if (dr_shard_u64(index->start + 8) != (uint64_t)entry->documents ||
        index->bytes != DR_INDEX_HEADER + DR_INDEX_ITEM * entry->documents)
        return dr_fail(DR_ERROR_FORMAT, "%s has %lld bytes: the index of %lld documents has %lld", path,
                       (long long)index->bytes, (long long)entry->documents,
                       (long long)(DR_INDEX_HEADER + DR_INDEX_ITEM * entry->documents));
    for (int64_t i = 0; i < entry->documents; i++) {
        uint64_t least = i == 0 ? 0 : begin_of(shard, i - 1) + 1, begin = begin_of(shard, i);
        bool fits = i == 0 ? begin == 0 : begin >= least && begin < (uint64_t)shard->layout.tokens;
        if (!fits)
            return dr_fail(DR_ERROR_FORMAT, "%s: document %lld begins with token %llu of %lld", path, (long long)i,
                           (unsigned long long)begin, (long long)shard->layout.tokens);
        bytes += bytes_of(shard, i);
    }
    if (bytes == (uint64_t)entry->bytes) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "%s: the documents have %llu bytes of text, and shards.json says %lld", path,
                   (unsigned long long)bytes, (long long)entry->bytes);
}

static dr_status check_entry(const dr_shard_set *set, const dr_shard *shard, const dr_shard_entry *entry) {
    int width = set->vocabulary > DR_SHARD_WIDE ? 4 : 2;
    if (shard->layout.header == 0 || shard->layout.width != width)
        return dr_fail(DR_ERROR_FORMAT, "%s is no file of ids of %d bits, as shards.json has it", shard->ids.path, 8 * width);
    if (shard->layout.tokens != entry->tokens)
        return dr_fail(DR_ERROR_FORMAT, "%s has %lld tokens, and shards.json says %lld", shard->ids.path,
                       (long long)shard->layout.tokens, (long long)entry->tokens);
    if (shard->mask.mapping && shard->mask.mapping->bytes != (entry->tokens + 7) / 8)
        return dr_fail(DR_ERROR_FORMAT, "%s has %lld bytes: the mask of %lld tokens has %lld", shard->mask.path,
                       (long long)shard->mask.mapping->bytes, (long long)entry->tokens, (long long)(entry->tokens + 7) / 8);
    DR_TRY(check_index(shard, entry));
    if (shard->hash == entry->hash) return DR_OK;
    return dr_fail(DR_ERROR_FORMAT, "%s, its index or its mask is not what shards.json was written for", shard->ids.path);
}

/* ---- the set ---- */

static uint64_t hash_of(const dr_shard *shard) {
    uint64_t hash = 0;
    const dr_shard_file *files[] = {&shard->ids, &shard->index, &shard->mask};
    for (int i = 0; i < 3; i++) {
        if (!files[i]->mapping) continue;
        dr_mapping_hash(files[i]->mapping);
        hash = dr_hash_bytes(hash, &files[i]->mapping->hash, sizeof files[i]->mapping->hash);
    }
    return hash;
}

/* Maps its files, and computes their hash. */
static dr_status map_shard(const char *folder, const char *file, bool indexed, bool masked, dr_shard *shard) {
    DR_TRY(make_path(folder, file, NULL, &shard->ids.path));
    DR_TRY(map(&shard->ids));
    if (indexed) {
        DR_TRY(make_path(folder, file, ".index", &shard->index.path));
        DR_TRY(map(&shard->index));
    }
    if (masked) {
        DR_TRY(make_path(folder, file, ".mask", &shard->mask.path));
        DR_TRY(map(&shard->mask));
    }
    shard->hash = hash_of(shard);
    return DR_OK;
}

static dr_status open_shard(const dr_shard_set *set, const char *folder, const char *file, const dr_shard_entry *entry,
                            dr_shard *shard) {
    DR_TRY(map_shard(folder, file, entry != NULL, entry && entry->masked, shard));
    DR_TRY(dr_shard_layout_read(shard->ids.mapping->start, shard->ids.mapping->bytes, shard->ids.path, &shard->layout));
    if (entry) {
        DR_TRY(check_entry(set, shard, entry));
        shard->documents = entry->documents;
    }
    return check_ids(set, shard);
}

dr_status dr_shard_hash(const char *folder, const char *file, bool masked, uint64_t *hash) {
    dr_shard shard = {0};
    dr_status status = map_shard(folder, file, true, masked, &shard);
    *hash = shard.hash;
    close_shard(&shard);
    return status;
}

dr_status dr_shard_set_add(dr_shard_set *set, const char *folder, const char *file, const dr_shard_entry *entry) {
    dr_shard shard = {0};
    void *memory = set->shards;
    dr_status status = open_shard(set, folder, file, entry, &shard);
    if (status == DR_OK) status = dr_grow(&memory, set->count, sizeof shard, "the shards of a set");
    set->shards = memory;
    if (status != DR_OK) {
        close_shard(&shard);
        return status;
    }
    set->hash = dr_hash_bytes(set->hash, &shard.hash, sizeof shard.hash);
    shard.first = set->tokens.count;
    set->tokens.count += shard.layout.tokens;
    set->tokens.gives = set->tokens.gives || shard.mask.mapping;
    set->documents = entry && set->documents >= 0 ? set->documents + entry->documents : -1;
    set->bytes = entry && set->bytes >= 0 ? set->bytes + entry->bytes : -1;
    set->shards[set->count++] = shard;
    return DR_OK;
}

/* ---- reading ---- */

/* The shard that a token of the set lies in. */
static const dr_shard *shard_of(const dr_shard_set *set, int64_t token) {
    int64_t low = 0, high = set->count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (set->shards[middle].first <= token)
            low = middle;
        else
            high = middle;
    }
    return &set->shards[low];
}

/* The first document that begins with this token of the shard or a later one. */
static int64_t document_from(const dr_shard *shard, int64_t token) {
    int64_t low = 0, high = shard->documents;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (begin_of(shard, middle) >= (uint64_t)token)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Tokens of one shard. */
static dr_status read_shard(const dr_shard_set *set, const dr_shard *shard, int64_t from, int64_t count, int32_t *ids,
                            uint8_t *marks) {
    const dr_shard_file *files[] = {&shard->index, &shard->mask};
    DR_TRY(dr_mapping_check(shard->ids.mapping, shard->ids.path));
    for (int i = 0; i < 2; i++)
        if (files[i]->mapping) DR_TRY(dr_mapping_check(files[i]->mapping, files[i]->path));
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)id_at(shard, from + i);
        marks[i] = !shard->index.mapping && ids[i] == set->start ? DR_TOKEN_BEGINS : 0;
    }
    dr_mapping_forget(shard->ids.mapping);
    if (shard->index.mapping) {
        for (int64_t i = document_from(shard, from); i < shard->documents && begin_of(shard, i) < (uint64_t)(from + count); i++)
            marks[(int64_t)begin_of(shard, i) - from] |= DR_TOKEN_BEGINS;
        dr_mapping_forget(shard->index.mapping);
    }
    if (!shard->mask.mapping) return DR_OK;
    for (int64_t i = 0; i < count; i++)
        if (shard->mask.mapping->start[(from + i) / 8] >> (from + i) % 8 & 1) marks[i] |= DR_TOKEN_GIVEN;
    dr_mapping_forget(shard->mask.mapping);
    return DR_OK;
}

static dr_status read_set(dr_tokens *tokens, int64_t from, int64_t count, int32_t *ids, uint8_t *marks) {
    const dr_shard_set *set = (const dr_shard_set *)tokens;
    for (const dr_shard *shard = shard_of(set, from); count > 0; shard++) {
        int64_t own = from - shard->first, left = shard->layout.tokens - own, some = left < count ? left : count;
        DR_TRY(read_shard(set, shard, own, some, ids, marks));
        from += some, count -= some, ids += some, marks += some;
    }
    return DR_OK;
}

static void destroy_nothing(dr_tokens *tokens) {
    (void)tokens; /* the set goes with its shards */
}

dr_status dr_shard_set_create(const char *name, int64_t vocabulary, int32_t start, dr_shard_set **set) {
    void *memory;
    *set = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_shard_set), "a set of shards", &memory));
    *set = memory;
    **set = (dr_shard_set){.tokens = {.read = read_set, .destroy = destroy_nothing}, .vocabulary = vocabulary, .start = start};
    snprintf((*set)->name, sizeof(*set)->name, "%s", name);
    (*set)->validates = strncmp(name, "val", 3) == 0;
    return DR_OK;
}

void dr_shard_set_destroy(dr_shard_set *set) {
    if (!set) return;
    for (int64_t i = 0; i < set->count; i++) close_shard(&set->shards[i]);
    dr_release(set->shards);
    dr_release(set);
}

dr_tokens *dr_shard_set_tokens(dr_shard_set *set) {
    return &set->tokens;
}

const char *dr_shard_set_name(const dr_shard_set *set) {
    return set->name;
}

bool dr_shard_set_validates(const dr_shard_set *set) {
    return set->validates;
}

int64_t dr_shard_set_document_count(const dr_shard_set *set) {
    return set->documents;
}

int64_t dr_shard_set_bytes(const dr_shard_set *set) {
    return set->bytes;
}

dr_status dr_shard_set_documents(dr_shard_set *set, dr_token_documents *documents) {
    void *memory;
    *documents = (dr_token_documents){0};
    if (set->documents < 0) return dr_token_documents_find(&set->tokens, documents);
    DR_TRY(dr_allocate((size_t)(set->documents + 1) * sizeof(int64_t), "the places of documents", &memory));
    documents->begin = memory;
    DR_TRY(dr_allocate((size_t)set->documents * sizeof(int64_t), "the lengths of documents", &memory));
    documents->bytes = memory;
    for (int64_t i = 0; i < set->count; i++)
        for (int64_t k = 0; k < set->shards[i].documents; k++) {
            documents->begin[documents->count] = set->shards[i].first + (int64_t)begin_of(&set->shards[i], k);
            documents->bytes[documents->count++] = (int64_t)bytes_of(&set->shards[i], k);
        }
    documents->begin[documents->count] = set->tokens.count;
    return DR_OK;
}
