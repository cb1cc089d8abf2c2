/* Mapped files.
 *
 * A mapped file costs no memory of ours: the system reads pages as they are touched and drops them when it needs room. So that
 * the resident size of a run does not grow to that of its corpus, whoever has read a part says so (dr_mapping_forget); what
 * goes is only this process's view, the file stays in the system's cache. All of the mapping goes, since the system maps pages
 * around each one that is touched, up to megabytes of them: windows that are read here and there would gather the file.
 *
 * A mapping shows what others do to the file. A file that becomes shorter takes pages away, and touching one raises SIGBUS,
 * which no library may handle in its host's place. Readers therefore ask dr_mapping_check first, which compares the file's
 * size and time of change with what they were, at the cost of one system call a window. What is left is the moment between
 * that call and the reading; the command line has a handler that explains it. */
#include "data/mapping.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 1 << 22 };

dr_status dr_mapping_create(int descriptor, const struct stat *facts, dr_mapping **mapping) {
    void *memory;
    *mapping = NULL;
    DR_TRY(dr_allocate(sizeof(dr_mapping), "a mapped file", &memory));
    void *start = mmap(NULL, (size_t)facts->st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (start == MAP_FAILED) {
        dr_release(memory);
        return DR_OK;
    }
    *mapping = memory;
    **mapping = (dr_mapping){.start = start,
                             .bytes = facts->st_size,
                             .device = (uint64_t)facts->st_dev,
                             .inode = (uint64_t)facts->st_ino,
                             .changed = facts->st_mtim};
    return DR_OK;
}

void dr_mapping_destroy(dr_mapping *mapping) {
    if (!mapping) return;
    munmap((void *)mapping->start, (size_t)mapping->bytes);
    dr_release(mapping);
}

uint64_t dr_hash_bytes(uint64_t hash, const void *data, int64_t count) {
    const uint8_t *bytes = data;
    uint64_t word = 0;
    int64_t i = 0;
    for (; count - i >= 8; i += 8) {
        memcpy(&word, bytes + i, 8);
        hash = ((hash ^ word) * 0x9e3779b97f4a7c15) ^ hash >> 29;
    }
    word = 0;
    memcpy(&word, bytes + i, (size_t)(count - i));
    return ((hash ^ word) * 0x9e3779b97f4a7c15) ^ hash >> 29;
}

static uint64_t hash_of(const dr_mapping *mapping) {
    uint64_t hash = (uint64_t)mapping->bytes;
    for (int64_t at = 0; at < mapping->bytes; at += BLOCK) {
        int64_t count = mapping->bytes - at < BLOCK ? mapping->bytes - at : BLOCK;
        hash = dr_hash_bytes(hash, mapping->start + at, count);
        dr_mapping_forget(mapping);
    }
    return hash;
}

void dr_mapping_hash(dr_mapping *mapping) {
    mapping->hash = hash_of(mapping);
}

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

dr_status dr_mapping_check(dr_mapping *mapping, const char *name) {
    struct stat facts;
    if (stat(name, &facts) != 0) return DR_OK; /* without a name nobody else finds it */
    if ((uint64_t)facts.st_dev != mapping->device || (uint64_t)facts.st_ino != mapping->inode) return DR_OK;
    if (facts.st_size >= mapping->bytes && same_time(facts.st_mtim, mapping->changed)) return DR_OK;
    if (facts.st_size < mapping->bytes)
        return dr_fail(DR_ERROR_IO, "%s became shorter while it was in use: it had %lld bytes and has %lld", name,
                       (long long)mapping->bytes, (long long)facts.st_size);
    if (hash_of(mapping) != mapping->hash)
        return dr_fail(DR_ERROR_IO, "%s was changed while it was in use: what was computed from it is of no one text", name);
    mapping->changed = facts.st_mtim; /* touched, or grown */
    return DR_OK;
}

void dr_mapping_forget(const dr_mapping *mapping) {
    if (mapping) madvise((void *)mapping->start, (size_t)mapping->bytes, MADV_DONTNEED); /* it is no harm if it is not taken */
}
