/* Opening texts: small files are copied, large ones mapped (data/mapping.c), and what is no text is told by its first wrong
 * byte. */
#include "data/document.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_MAPPED = 1 << 16, MOST_MAPPINGS = 20000, BLOCK = 1 << 22, LONGEST_CHARACTER = 4 };

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
    DR_TRY(dr_mapping_create(descriptor, facts, &document->mapping));
    if (!document->mapping) return DR_OK;
    document->text = document->mapping->start;
    document->bytes = document->mapping->bytes;
    return DR_OK;
}

/* ---- is it text? ---- */

/* The first byte that no text has, block by block, or document->bytes. */
static int64_t text_end(const dr_document *document) {
    int64_t at = 0;
    while (at < document->bytes) {
        int64_t count = document->bytes - at < BLOCK ? document->bytes - at : BLOCK;
        bool last = at + count == document->bytes;
        const uint8_t *nul = memchr(document->text + at, 0, (size_t)count);
        int64_t valid = dr_utf8_valid(document->text + at, nul ? nul - document->text - at : count);
        dr_document_forget(document);
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
        if (document->mapping) dr_mapping_hash(document->mapping);
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
        dr_mapping_destroy(document->mapping);
    } else {
        dr_release((void *)document->text);
    }
    dr_release((void *)document->name);
    *document = (dr_document){0};
}

/* ---- mapped files in use ---- */

dr_status dr_document_check(const dr_document *document) {
    return document->mapping ? dr_mapping_check(document->mapping, document->name) : DR_OK;
}

void dr_document_forget(const dr_document *document) {
    dr_mapping_forget(document->mapping);
}
