/* One text: a file in memory as it is on disk, or a piece of one. */
#ifndef DR_DATA_DOCUMENT_H
#define DR_DATA_DOCUMENT_H

#include "data/files.h"
#include "data/mapping.h"

typedef struct {
    const char *name;    /* the path it was read from */
    const uint8_t *text; /* [bytes] valid UTF-8 without NUL */
    int64_t bytes;       /* >= 1 */
    uint64_t device, inode;
    dr_mapping *mapping; /* of the whole file, shared by pieces of a document; NULL: the text is a copy */
} dr_document;

typedef struct {
    dr_document *at; /* [count] */
    int64_t count, bytes;
} dr_documents;

dr_status dr_documents_append(dr_documents *documents, const dr_document *document);

/* Reads a found file. Large files are mapped, small ones copied, since the system limits the number of mappings; mapped: so
 * many are already. Where the file cannot be read or is no text it gets a problem, and document->bytes is 0, as for an empty
 * file. DR_ERROR_MEMORY is the only failure. */
dr_status dr_document_open(dr_found_file *file, int64_t mapped, dr_document *document);
void dr_document_close(dr_document *document);

/* dr_mapping_check and dr_mapping_forget, where the document's file is mapped. */
dr_status dr_document_check(const dr_document *document);
void dr_document_forget(const dr_document *document);

#endif
