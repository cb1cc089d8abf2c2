/* Reading text: collect the files in order of names, read each whole, refuse what is not UTF-8.
 *
 * The order is that of strcmp on each folder's names, not of the file system or the locale, because the order of documents
 * decides which are held out and in which order windows are drawn: the same folder must give the same run on every machine. */
#include "data/corpus.h"

#include "base/error.h"
#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dr_status dr_byte_vocabulary_check(int64_t vocabulary) {
    if (vocabulary == DR_BYTE_VOCABULARY) return DR_OK;
    return dr_fail(
        DR_ERROR_UNSUPPORTED,
        "the model has a vocabulary of %lld ids: only byte tokens (%d ids) can be read from text and written to it so far",
        (long long)vocabulary, DR_BYTE_VOCABULARY);
}

static dr_status append_document(dr_documents *documents, const char *name, const uint8_t *text, int64_t bytes) {
    /* doubled at each power of two: the capacity follows from the count */
    int64_t count = documents->count;
    if ((count & (count - 1)) == 0) {
        size_t old_bytes = (size_t)count * sizeof(dr_document),
               new_bytes = (size_t)(count ? 2 * count : 1) * sizeof(dr_document);
        void *memory = documents->at;
        if (memory)
            DR_TRY(dr_resize(&memory, old_bytes, new_bytes, "the list of documents"));
        else
            DR_TRY(dr_allocate(new_bytes, "the list of documents", &memory));
        documents->at = memory;
    }
    documents->at[documents->count++] = (dr_document){.name = name, .text = text, .bytes = bytes};
    documents->bytes += bytes;
    return DR_OK;
}

static dr_status read_all(int file, const char *path, uint8_t *text, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        ssize_t got = read(file, text + done, (size_t)(bytes - done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dr_fail(DR_ERROR_IO, "cannot read %s: %s", path, dr_system_text(errno));
        if (got == 0) return dr_fail(DR_ERROR_IO, "%s became shorter while it was read", path);
        done += got;
    }
    return DR_OK;
}

static dr_status read_document(dr_documents *documents, const char *path) {
    dr_status status = DR_OK;
    void *text = NULL;
    char *name = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe must not hang here */
    if (file < 0) return dr_fail(DR_ERROR_IO, "cannot open %s: %s", path, dr_system_text(errno));
    struct stat facts;
    if (fstat(file, &facts) != 0) {
        status = dr_fail(DR_ERROR_IO, "cannot read %s: %s", path, dr_system_text(errno));
        goto done;
    }
    if (!S_ISREG(facts.st_mode)) {
        status = dr_fail(DR_ERROR_ARGUMENT, "%s is not a regular file: give text files or a folder of them", path);
        goto done;
    }
    if (facts.st_size == 0) goto done;
    DR_GO(dr_allocate((size_t)facts.st_size, path, &text));
    DR_GO(read_all(file, path, text, facts.st_size));
    int64_t valid = dr_utf8_valid(text, facts.st_size);
    if (valid < facts.st_size) {
        status =
            dr_fail(DR_ERROR_FORMAT, "%s is not UTF-8 text: byte %lld (0x%02x) cannot stand there; convert it or take it out",
                    path, (long long)valid, ((uint8_t *)text)[valid]);
        goto done;
    }
    DR_GO(dr_copy_string(path, &name));
    DR_GO(append_document(documents, name, text, facts.st_size));
    text = name = NULL;
done:
    close(file);
    dr_release(text);
    dr_release(name);
    return status;
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static dr_status read_folder(dr_documents *documents, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_visible, by_name);
    if (count < 0) {
        dr_status status = errno == ENOMEM ? DR_ERROR_MEMORY : DR_ERROR_IO;
        return dr_fail(status, "cannot list the folder %s: %s", folder, dr_system_text(errno));
    }
    dr_status status = DR_OK;
    char path[PATH_MAX];
    for (int i = 0; i < count && status == DR_OK; i++) {
        struct stat facts;
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (length >= (int)sizeof path)
            status = dr_fail(DR_ERROR_IO, "the path %s... is too long", path);
        else if (lstat(path, &facts) != 0)
            status = dr_fail(DR_ERROR_IO, "cannot read %s: %s", path, dr_system_text(errno));
        else if (S_ISDIR(facts.st_mode))
            status = read_folder(documents, path);
        else if (S_ISREG(facts.st_mode))
            status = read_document(documents, path);
    }
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return status;
}

dr_status dr_corpus_read(const char *path, dr_corpus **corpus) {
    *corpus = NULL;
    struct stat facts;
    if (stat(path, &facts) != 0) {
        dr_status status = errno == ENOENT || errno == ENOTDIR ? DR_ERROR_ARGUMENT : DR_ERROR_IO;
        return dr_fail(status, "cannot read the corpus \"%s\": %s; give a text file or a folder of them", path,
                       dr_system_text(errno));
    }
    void *memory;
    DR_TRY(dr_allocate_zero(sizeof(dr_corpus), "a corpus", &memory));
    dr_corpus *made = memory;
    char folder[PATH_MAX];
    dr_status status;
    if (S_ISDIR(facts.st_mode)) {
        size_t length = strlen(path);
        while (length > 1 && path[length - 1] == '/') length--;
        snprintf(folder, sizeof folder, "%.*s", (int)length, path);
        DR_GO(read_folder(&made->documents, folder));
    } else {
        DR_GO(read_document(&made->documents, path));
    }
    if (made->documents.count == 0) {
        status = dr_fail(DR_ERROR_ARGUMENT, "the corpus \"%s\" has no text: %s; give a text file or a folder of them", path,
                         S_ISDIR(facts.st_mode) ? "the folder holds no file that is not empty" : "the file is empty");
        goto done;
    }
    *corpus = made;
    return DR_OK;
done:
    dr_corpus_destroy(made);
    return status;
}

void dr_corpus_destroy(dr_corpus *corpus) {
    if (!corpus) return;
    for (int64_t i = 0; i < corpus->documents.count; i++) {
        dr_release((void *)corpus->documents.at[i].name);
        dr_release((void *)corpus->documents.at[i].text);
    }
    dr_release(corpus->documents.at);
    dr_release(corpus);
}

uint64_t dr_corpus_fingerprint(const dr_corpus *corpus) {
    const uint64_t prime = 0x100000001b3;
    uint64_t hash = 0xcbf29ce484222325;
    for (int64_t i = 0; i < corpus->documents.count; i++) {
        const dr_document *document = &corpus->documents.at[i];
        for (int byte = 0; byte < 8; byte++) hash = (hash ^ ((uint64_t)document->bytes >> (8 * byte) & 0xff)) * prime;
        for (int64_t byte = 0; byte < document->bytes; byte++) hash = (hash ^ document->text[byte]) * prime;
    }
    return hash;
}

int64_t dr_utf8_valid(const uint8_t *text, int64_t bytes) {
    int64_t i = 0;
    while (i < bytes) {
        uint8_t first = text[i];
        if (first < 0x80) {
            i++;
            continue;
        }
        int more = first >= 0xc2 && first <= 0xdf ? 1 : (first & 0xf0) == 0xe0 ? 2 : first >= 0xf0 && first <= 0xf4 ? 3 : 0;
        if (more == 0 || more >= bytes - i) return i;
        for (int k = 1; k <= more; k++)
            if ((text[i + k] & 0xc0) != 0x80) return i;
        uint8_t second = text[i + 1];
        if ((first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90)) return i; /* overlong */
        if ((first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f)) return i; /* surrogate, above U+10FFFF */
        i += more + 1;
    }
    return bytes;
}
