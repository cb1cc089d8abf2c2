/* Opening texts.
 *
 * A mapped file costs no memory of ours: the system reads pages as they are touched and drops them when it needs room. So that
 * the resident size of a run does not grow to that of its corpus, whoever has read a part says so (dr_document_forget); what
 * goes is only this process's view, the file stays in the system's cache.
 *
 * A mapping shows what others do to the file. A file that becomes shorter takes pages away, and touching one raises SIGBUS,
 * which no library may handle in its host's place. Readers therefore ask dr_document_check first, which compares the file's
 * size and time of change with what they were, at the cost of one system call a window. What is left is the moment between
 * that call and the reading; the command line has a handler that explains it. */
#include "data/document.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_MAPPED = 1 << 16, MOST_MAPPINGS = 20000, BLOCK = 1 << 22, LONGEST_CHARACTER = 4 };

struct dr_mapping {
    void *start;
    int64_t bytes;
    struct timespec changed;
    uint64_t hash; /* of the bytes */
};

dr_status dr_documents_append(dr_documents *documents, const dr_document *document) {
    void *memory = documents->at;
    dr_status status = dr_grow(&memory, documents->count, sizeof(dr_document), "the list of documents");
    documents->at = memory;
    if (status != DR_OK) return status;
    documents->at[documents->count++] = *document;
    documents->bytes += document->bytes;
    return DR_OK;
}

/* ---- reading ---- */

static dr_status copy_file(dr_found_file *file, int descriptor, int64_t bytes, dr_document *document) {
    void *memory;
    DR_TRY(dr_allocate((size_t)bytes, "a text", &memory));
    document->text = memory;
    for (int64_t done = 0; done < bytes;) {
        ssize_t got = read(descriptor, (uint8_t *)memory + done, (size_t)(bytes - done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dr_file_problem(file, DR_ERROR_IO, "cannot be read: %s", dr_system_text(errno));
        if (got == 0) return dr_file_problem(file, DR_ERROR_IO, "became shorter while it was read");
        done += got;
    }
    document->bytes = bytes;
    return DR_OK;
}

/* Leaves document->mapping NULL where the system does not map the file. */
static dr_status map_file(int descriptor, const struct stat *facts, dr_document *document) {
    void *memory;
    DR_TRY(dr_allocate(sizeof(dr_mapping), "a mapped file", &memory));
    void *start = mmap(NULL, (size_t)facts->st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (start == MAP_FAILED) {
        dr_release(memory);
        return DR_OK;
    }
    document->mapping = memory;
    *document->mapping = (dr_mapping){.start = start, .bytes = facts->st_size, .changed = facts->st_mtim};
    document->text = start;
    document->bytes = facts->st_size;
    return DR_OK;
}

/* ---- is it text? ---- */

/* Of bytes [from, from + count), eight at a time. */
static uint64_t hash_bytes(uint64_t hash, const uint8_t *text, int64_t count) {
    uint64_t word = 0;
    int64_t i = 0;
    for (; count - i >= 8; i += 8) {
        memcpy(&word, text + i, 8);
        hash = ((hash ^ word) * 0x9e3779b97f4a7c15) ^ hash >> 29;
    }
    word = 0;
    memcpy(&word, text + i, (size_t)(count - i));
    return ((hash ^ word) * 0x9e3779b97f4a7c15) ^ hash >> 29;
}

static uint64_t hash_document(const dr_document *document) {
    uint64_t hash = (uint64_t)document->bytes;
    for (int64_t at = 0; at < document->bytes; at += BLOCK) {
        int64_t count = document->bytes - at < BLOCK ? document->bytes - at : BLOCK;
        hash = hash_bytes(hash, document->text + at, count);
        dr_document_forget(document, at, count);
    }
    return hash;
}

/* The first byte that no text has, block by block, or document->bytes. */
static int64_t text_end(const dr_document *document) {
    int64_t at = 0;
    while (at < document->bytes) {
        int64_t count = document->bytes - at < BLOCK ? document->bytes - at : BLOCK;
        bool last = at + count == document->bytes;
        const uint8_t *nul = memchr(document->text + at, 0, (size_t)count);
        int64_t valid = dr_utf8_valid(document->text + at, nul ? nul - document->text - at : count);
        dr_document_forget(document, at, valid);
        /* a character may reach into the next block, which then begins with it */
        bool cut = !nul && !last && valid < count && valid > count - LONGEST_CHARACTER;
        if (valid < count && !cut) return at + valid;
        at += valid;
    }
    return document->bytes;
}

static dr_status judge_text(dr_found_file *file, dr_document *document) {
    int64_t end = text_end(document);
    if (end == document->bytes) {
        if (document->mapping) document->mapping->hash = hash_document(document);
        return DR_OK;
    }
    uint8_t byte = document->text[end];
    if (byte == 0)
        return dr_file_problem(file, DR_ERROR_FORMAT, "is not text but binary: byte %lld is 0; take it out", (long long)end);
    return dr_file_problem(file, DR_ERROR_FORMAT,
                           "is not UTF-8 text: byte %lld (0x%02x) cannot stand there; convert it or take it out",
                           (long long)end, byte);
}

/* Files that the system writes as they are read, in /proc and /sys, have a size of 0. */
static dr_status judge_empty(dr_found_file *file, int descriptor) {
    char byte;
    ssize_t got = read(descriptor, &byte, 1);
    if (got == 0) return DR_OK;
    if (got < 0) return dr_file_problem(file, DR_ERROR_IO, "cannot be read: %s", dr_system_text(errno));
    return dr_file_problem(file, DR_ERROR_ARGUMENT, "has a size of 0 and yet text, as files of /proc have: give a copy of it");
}

static dr_status read_open_file(dr_found_file *file, int descriptor, int64_t mapped, dr_document *document) {
    struct stat facts;
    if (fstat(descriptor, &facts) != 0) return dr_file_problem(file, DR_ERROR_IO, "cannot be read: %s", dr_system_text(errno));
    if (!S_ISREG(facts.st_mode)) return dr_file_problem(file, DR_ERROR_ARGUMENT, "is not a regular file any more");
    if (facts.st_size == 0) return judge_empty(file, descriptor);
    if (facts.st_size >= LEAST_MAPPED && mapped < MOST_MAPPINGS) DR_TRY(map_file(descriptor, &facts, document));
    if (!document->mapping) DR_TRY(copy_file(file, descriptor, facts.st_size, document));
    if (document->bytes > 0) DR_TRY(judge_text(file, document));
    return DR_OK;
}

dr_status dr_document_open(dr_found_file *file, int64_t mapped, dr_document *document) {
    *document = (dr_document){.device = file->device, .inode = file->inode};
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* should it have become a named pipe */
    if (descriptor < 0) return dr_file_problem(file, DR_ERROR_IO, "cannot be opened: %s", dr_system_text(errno));
    char *name = NULL;
    dr_status status = read_open_file(file, descriptor, mapped, document);
    close(descriptor);
    if (status == DR_OK && !file->problem && document->bytes > 0) status = dr_copy_string(file->path, &name);
    document->name = name;
    if (status != DR_OK || file->problem) dr_document_close(document);
    return status;
}

void dr_document_close(dr_document *document) {
    if (document->mapping) {
        munmap(document->mapping->start, (size_t)document->mapping->bytes);
        dr_release(document->mapping);
    } else {
        dr_release((void *)document->text);
    }
    dr_release((void *)document->name);
    *document = (dr_document){0};
}

/* ---- mapped files in use ---- */

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

dr_status dr_document_check(const dr_document *document) {
    dr_mapping *mapping = document->mapping;
    struct stat facts;
    if (!mapping || stat(document->name, &facts) != 0) return DR_OK; /* without a name nobody else finds it */
    if ((uint64_t)facts.st_dev != document->device || (uint64_t)facts.st_ino != document->inode) return DR_OK;
    if (facts.st_size >= mapping->bytes && same_time(facts.st_mtim, mapping->changed)) return DR_OK;
    if (facts.st_size < mapping->bytes)
        return dr_fail(DR_ERROR_IO, "%s became shorter while it was in use: it had %lld bytes and has %lld", document->name,
                       (long long)mapping->bytes, (long long)facts.st_size);
    dr_document whole = {.text = mapping->start, .bytes = mapping->bytes, .mapping = mapping};
    if (hash_document(&whole) != mapping->hash)
        return dr_fail(DR_ERROR_IO, "%s was changed while it was in use: what was computed from it is of no one text",
                       document->name);
    mapping->changed = facts.st_mtim; /* touched, or grown */
    return DR_OK;
}

void dr_document_forget(const dr_document *document, int64_t from, int64_t count) {
    if (!document->mapping || count < 1) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE); /* the mapping begins at one and ends with one */
    const uint8_t *begin = document->text + from, *end = begin + count;
    begin -= (uintptr_t)begin % page;
    madvise((void *)begin, (size_t)(end - begin), MADV_DONTNEED); /* advice: it is no harm if it is not taken */
}
