/* Reading text: finds the files, opens each, and says which of them are no text. */
#include "data/corpus.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>
#include <sys/stat.h>

enum { FINGERPRINT_BLOCK = 1 << 22 };

/* Opens every file against which nothing is known yet. */
static dr_status open_documents(dr_found_files *files, dr_documents *documents) {
    int64_t mapped = 0;
    for (int64_t i = 0; i < files->count; i++) {
        dr_document document;
        if (files->at[i].problem) continue;
        DR_TRY(dr_document_open(&files->at[i], mapped, &document));
        if (document.bytes == 0) continue;
        dr_status status = dr_documents_append(documents, &document);
        if (status != DR_OK) {
            dr_document_close(&document);
            return status;
        }
        mapped += document.mapping != NULL;
    }
    return DR_OK;
}

/* Leaves only the files with a problem in the list. */
static void keep_problems(dr_found_files *files) {
    int64_t kept = 0;
    for (int64_t i = 0; i < files->count; i++) {
        dr_found_file file = files->at[i];
        if (file.problem)
            files->at[kept++] = file;
        else
            dr_release(file.path);
    }
    files->count = kept;
}

/* What to do about files that cannot be used. whole: the path that was given is such a file itself. */
static dr_status fail_unreadable(const dr_corpus *corpus, bool whole) {
    const dr_found_file *first = &corpus->left_out.at[0];
    long long bad = corpus->left_out.count, good = corpus->documents.count;
    if (whole || good == 0) return dr_fail(first->status, "%s; give a text file or a folder of them", first->problem);
    if (bad == 1) return dr_fail(first->status, "%s; --skip-unreadable goes on without it", first->problem);
    return dr_fail(first->status, "%s; %lld of %lld files cannot be used; --skip-unreadable goes on without them",
                   first->problem, bad, bad + good);
}

static dr_status fail_empty(const char *path, const dr_corpus *corpus, bool whole) {
    if (corpus->left_out.count == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "the corpus \"%s\" has no text: %s; give a text file or a folder of them", path,
                       whole ? "the file is empty" : "the folder holds no file that is not empty");
    return dr_fail(corpus->left_out.at[0].status, "the corpus \"%s\" has no text: %lld files cannot be used, the first: %s",
                   path, (long long)corpus->left_out.count, corpus->left_out.at[0].problem);
}

dr_status dr_corpus_read(const char *path, bool skip_unreadable, dr_corpus **corpus) {
    void *memory;
    struct stat facts;
    dr_status status;
    *corpus = NULL;
    DR_TRY(dr_allocate_zero(sizeof(dr_corpus), "a corpus", &memory));
    dr_corpus *made = memory;
    DR_GO(dr_files_find(path, &made->left_out));
    DR_GO(open_documents(&made->left_out, &made->documents));
    keep_problems(&made->left_out);
    bool whole = stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode);
    if (made->left_out.count > 0 && (whole || !skip_unreadable)) {
        status = fail_unreadable(made, whole);
        goto done;
    }
    if (made->documents.count == 0) {
        status = fail_empty(path, made, whole);
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
    for (int64_t i = 0; i < corpus->documents.count; i++) dr_document_close(&corpus->documents.at[i]);
    dr_release(corpus->documents.at);
    dr_files_release(&corpus->left_out);
    dr_release(corpus);
}

uint64_t dr_corpus_fingerprint(const dr_corpus *corpus, uint64_t seed) {
    const uint64_t prime = 0x100000001b3;
    uint64_t hash = 0xcbf29ce484222325 ^ seed;
    for (int64_t i = 0; i < corpus->documents.count; i++) {
        const dr_document *document = &corpus->documents.at[i];
        for (int byte = 0; byte < 8; byte++) hash = (hash ^ ((uint64_t)document->bytes >> (8 * byte) & 0xff)) * prime;
        for (int64_t at = 0; at < document->bytes; at += FINGERPRINT_BLOCK) {
            int64_t end = document->bytes - at < FINGERPRINT_BLOCK ? document->bytes : at + FINGERPRINT_BLOCK;
            for (int64_t byte = at; byte < end; byte++) hash = (hash ^ document->text[byte]) * prime;
            dr_document_forget(document);
        }
    }
    return hash;
}
