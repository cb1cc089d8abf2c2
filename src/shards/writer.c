/* A round's files lie in a change of the folder (formats/folder.h), so a kill leaves all of a round or nothing of it. Ids go to
 * the disk as they come; the index and the mask, a few bytes a document and a bit a token, wait in memory for the end. */
#include "shards/writer.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/file.h"
#include "shards/set.h"

#include <stdio.h>
#include <string.h>

enum { BUFFER = 1 << 16, MOST_SETS = 64 };

typedef struct {
    dr_shard_entry entry;
    char path[PATH_MAX]; /* of the ids */
    dr_file file;
    uint8_t *buffer; /* [BUFFER] */
    size_t used;
    uint8_t *index; /* [index_room] */
    uint8_t *mask;  /* [mask_room] */
    size_t index_room, mask_room;
} open_shard;

struct dr_shard_writer {
    const char *folder;
    dr_shard_manifest *manifest;
    int width;
    dr_folder *change; /* NULL: this round has not begun */
    open_shard *shards[MOST_SETS];
    int count;
    open_shard *at; /* where the document goes that was begun last */
};

dr_status dr_shard_writer_create(const char *folder, dr_shard_manifest *manifest, dr_shard_writer **writer) {
    void *memory;
    *writer = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_shard_writer), "a writer of shards", &memory));
    *writer = memory;
    **writer = (dr_shard_writer){.folder = folder, .manifest = manifest, .width = manifest->vocabulary > DR_SHARD_WIDE ? 4 : 2};
    return DR_OK;
}

static void release_shard(open_shard *shard) {
    if (shard->file.descriptor >= 0) {
        shard->file.status = DR_ERROR_INTERRUPTED; /* so that finishing drops it */
        dr_file_finish(&shard->file);
    }
    dr_release(shard->buffer);
    dr_release(shard->index);
    dr_release(shard->mask);
    dr_release(shard);
}

static void drop_round(dr_shard_writer *writer) {
    for (int i = 0; i < writer->count; i++) release_shard(writer->shards[i]);
    writer->count = 0;
    writer->at = NULL;
    dr_folder_abandon(writer->change);
    writer->change = NULL;
}

void dr_shard_writer_destroy(dr_shard_writer *writer) {
    if (!writer) return;
    drop_round(writer);
    dr_release(writer);
}

dr_status dr_shard_writer_change(dr_shard_writer *writer, dr_folder **change) {
    if (!writer->change) DR_TRY(dr_folder_begin(writer->folder, &writer->change));
    *change = writer->change;
    return DR_OK;
}

/* ---- one shard ---- */

/* How many shards the set has already. */
static int number_of(const dr_shard_manifest *manifest, const char *set) {
    int number = 0;
    for (int64_t i = 0; i < manifest->count; i++) number += strcmp(manifest->shards[i].set, set) == 0;
    return number;
}

static dr_status begin_file(dr_shard_writer *writer, open_shard *shard) {
    static const uint8_t empty[DR_SHARD_HEADER];
    dr_folder *change;
    DR_TRY(dr_shard_writer_change(writer, &change));
    snprintf(shard->path, sizeof shard->path, "%s", dr_folder_path(change, shard->entry.file));
    DR_TRY(dr_file_create(shard->path, &shard->file));
    return dr_file_write(&shard->file, empty, sizeof empty);
}

static dr_status open_in(dr_shard_writer *writer, const char *set, open_shard **opened) {
    void *memory;
    for (int i = 0; i < writer->count; i++)
        if (strcmp(writer->shards[i]->entry.set, set) == 0) {
            *opened = writer->shards[i];
            return DR_OK;
        }
    if (writer->count == MOST_SETS) return dr_fail(DR_ERROR_ARGUMENT, "there are more than %d sets of shards", MOST_SETS);
    DR_TRY(dr_allocate_zero(sizeof(open_shard), "a shard that is written", &memory));
    open_shard *shard = writer->shards[writer->count++] = memory;
    shard->file.descriptor = -1;
    snprintf(shard->entry.set, sizeof shard->entry.set, "%s", set);
    snprintf(shard->entry.file, sizeof shard->entry.file, "%s_%06d.bin", set, number_of(writer->manifest, set));
    DR_TRY(dr_allocate(BUFFER, "a shard that is written", &memory));
    shard->buffer = memory;
    *opened = shard;
    return begin_file(writer, shard);
}

/* Room for `bytes` bytes, zeros where they are new. */
static dr_status reserve(uint8_t **block, size_t *room, size_t bytes) {
    void *memory = *block;
    size_t larger = *room ? *room : 4096;
    if (bytes <= *room) return DR_OK;
    while (larger < bytes) larger *= 2;
    DR_TRY(*room ? dr_resize(&memory, *room, larger, "the index of a shard")
                 : dr_allocate(larger, "the index of a shard", &memory));
    *block = memory;
    memset(*block + *room, 0, larger - *room);
    *room = larger;
    return DR_OK;
}

dr_status dr_shard_writer_begin(dr_shard_writer *writer, const char *set, int64_t bytes) {
    open_shard *shard = NULL;
    DR_TRY(open_in(writer, set, &shard));
    size_t at = DR_INDEX_HEADER + (size_t)shard->entry.documents * DR_INDEX_ITEM;
    DR_TRY(reserve(&shard->index, &shard->index_room, at + DR_INDEX_ITEM));
    dr_shard_put((uint64_t)shard->entry.tokens, 8, shard->index + at);
    dr_shard_put((uint64_t)bytes, 8, shard->index + at + 8);
    shard->entry.documents++;
    shard->entry.bytes += bytes;
    writer->at = shard;
    return DR_OK;
}

static dr_status mark_given(open_shard *shard, int64_t count) {
    const int64_t end = shard->entry.tokens + count;
    DR_TRY(reserve(&shard->mask, &shard->mask_room, (size_t)(end + 7) / 8));
    for (int64_t i = shard->entry.tokens; i < end; i++) shard->mask[i / 8] |= (uint8_t)(1 << i % 8);
    shard->entry.masked = true;
    return DR_OK;
}

dr_status dr_shard_writer_add(dr_shard_writer *writer, const int32_t *ids, int64_t count, bool given) {
    open_shard *shard = writer->at;
    if (given) DR_TRY(mark_given(shard, count));
    for (int64_t i = 0; i < count; i++) {
        dr_shard_put((uint64_t)ids[i], writer->width, shard->buffer + shard->used);
        shard->used += (size_t)writer->width;
        if (shard->used < BUFFER) continue;
        DR_TRY(dr_file_write(&shard->file, shard->buffer, BUFFER));
        shard->used = 0;
    }
    shard->entry.tokens += count;
    return DR_OK;
}

int64_t dr_shard_writer_tokens(const dr_shard_writer *writer) {
    int64_t most = 0;
    for (int i = 0; i < writer->count; i++)
        if (writer->shards[i]->entry.tokens > most) most = writer->shards[i]->entry.tokens;
    return most;
}

/* ---- the end of a round ---- */

static dr_status write_beside(dr_folder *change, const dr_shard_entry *entry, const char *ending, const void *data,
                              size_t bytes) {
    char name[DR_SHARD_NAME], path[PATH_MAX];
    dr_file file;
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(entry->file) - strlen(".bin")), entry->file, ending);
    snprintf(path, sizeof path, "%s", dr_folder_path(change, name));
    dr_file_create(path, &file);
    dr_file_write(&file, data, bytes);
    return dr_file_finish(&file);
}

static dr_status finish_shard(dr_shard_writer *writer, open_shard *shard) {
    uint8_t header[DR_SHARD_HEADER];
    char *slash;
    dr_shard_header_write(writer->width, shard->entry.tokens, header);
    DR_TRY(dr_file_write(&shard->file, shard->buffer, shard->used));
    DR_TRY(dr_file_rewrite(&shard->file, 0, header, sizeof header));
    DR_TRY(dr_file_finish(&shard->file));
    memcpy(shard->index, dr_index_magic, sizeof dr_index_magic);
    dr_shard_put((uint64_t)shard->entry.documents, 8, shard->index + 8);
    DR_TRY(write_beside(writer->change, &shard->entry, ".index", shard->index,
                        DR_INDEX_HEADER + (size_t)shard->entry.documents * DR_INDEX_ITEM));
    if (shard->entry.masked) {
        size_t bytes = (size_t)(shard->entry.tokens + 7) / 8;
        DR_TRY(reserve(&shard->mask, &shard->mask_room, bytes));
        DR_TRY(write_beside(writer->change, &shard->entry, ".mask", shard->mask, bytes));
    }
    slash = strrchr(shard->path, '/');
    *slash = '\0'; /* the change's folder */
    DR_TRY(dr_shard_hash(shard->path, shard->entry.file, shard->entry.masked, &shard->entry.hash));
    return dr_shard_manifest_append(writer->manifest, &shard->entry);
}

dr_status dr_shard_writer_commit(dr_shard_writer *writer) {
    dr_folder *change;
    DR_TRY(dr_shard_writer_change(writer, &change));
    for (int i = 0; i < writer->count; i++) DR_TRY(finish_shard(writer, writer->shards[i]));
    DR_TRY(dr_shard_manifest_write(dr_folder_path(change, "shards.json"), writer->manifest));
    writer->change = NULL; /* the commit removes it, whatever comes of it */
    dr_status status = dr_folder_commit(change);
    drop_round(writer);
    return status;
}
