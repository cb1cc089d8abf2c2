/* Text to learn from or to score: the files of a folder as byte tokens, and which of them are held out. */
#ifndef DR_DATA_CORPUS_H
#define DR_DATA_CORPUS_H

#include <deltarule/status.h>
#include <stddef.h>
#include <stdint.h>

/* Token ids: a byte is itself; the last id stands before each document. */
enum { DR_DOCUMENT_START = 256, DR_BYTE_VOCABULARY = 257 };

/* DR_ERROR_UNSUPPORTED unless a vocabulary of so many ids is that of byte tokens. */
dr_status dr_byte_vocabulary_check(int64_t vocabulary);

typedef struct {
    const char *name;    /* the path it was read from */
    const uint8_t *text; /* [bytes] valid UTF-8 */
    int64_t bytes;       /* >= 1 */
} dr_document;

typedef struct {
    dr_document *at; /* [count] */
    int64_t count, bytes;
} dr_documents;

/* Documents and the memory behind them. */
typedef struct {
    dr_documents documents; /* in order of names */
} dr_corpus;

/* Reads a file, or all files of a folder and its subfolders. Inside a folder, names that begin with a dot, symbolic links (man
 * pages alias each other by them) and empty files are left out. DR_ERROR_ARGUMENT if there is no such path or no text in it,
 * DR_ERROR_FORMAT with file and offset where text is not UTF-8, DR_ERROR_IO if the system refuses. */
dr_status dr_corpus_read(const char *path, dr_corpus **corpus);
void dr_corpus_destroy(dr_corpus *corpus); /* NULL is allowed */

/* A number that changes with any text of the corpus (64-bit FNV-1a over lengths and bytes; names do not count). */
uint64_t dr_corpus_fingerprint(const dr_corpus *corpus);

/* First offset at which text is not valid UTF-8 (RFC 3629: no overlong forms, no surrogates), or bytes if all of it is. */
int64_t dr_utf8_valid(const uint8_t *text, int64_t bytes);

/* Training and held-out documents: views into the corpus, which must outlive them. */
typedef struct {
    dr_documents training, held_out;
    const char *cut; /* the document whose end is held out while its beginning is trained on, or NULL */
} dr_split;

/* Holds out whole documents, drawn by the seed, until they are 5% of the bytes and at least 100 KB, but never more than a fifth
 * of a small corpus. Where whole documents cannot do it (a single file), the end of the largest one from a line's start is held
 * out for the rest, and *cut names it. DR_ERROR_ARGUMENT if there is too little text to hold any out. */
dr_status dr_split_create(const dr_corpus *corpus, uint64_t seed, dr_split *split);
void dr_split_destroy(dr_split *split);

#endif
