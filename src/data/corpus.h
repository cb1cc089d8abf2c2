/* Text to learn from or to score: the files of a folder as byte tokens, and which of them are held out. */
#ifndef DR_DATA_CORPUS_H
#define DR_DATA_CORPUS_H

#include "data/document.h"

#include <stdbool.h>

/* Token ids: a byte is itself; the last id stands before each document. */
enum { DR_DOCUMENT_START = 256, DR_BYTE_VOCABULARY = 257 };

/* Documents, and the files that were left out since they cannot be read or are no text. */
typedef struct {
    dr_documents documents;  /* in order of paths */
    dr_found_files left_out; /* in order of paths, each with its problem; empty unless they were to be skipped */
} dr_corpus;

/* Reads a file, or all files of a folder and its subfolders, links followed (data/files.h). Inside a folder, names that begin
 * with a dot and empty files are left out. Files that cannot be read or are no text (UTF-8 without the byte 0) are left out
 * and told if skip_unreadable is true; else the first of them and their number make the message. DR_ERROR_ARGUMENT if there is
 * no such path or no text in it, DR_ERROR_FORMAT where a file is not text, DR_ERROR_IO if the system refuses. */
dr_status dr_corpus_read(const char *path, bool skip_unreadable, dr_corpus **corpus);
void dr_corpus_destroy(dr_corpus *corpus); /* NULL is allowed */

/* A number that changes with any text of the corpus (64-bit FNV-1a over lengths and bytes; names do not count). seed: 0, or
 * the number of a corpus that goes before this one. */
uint64_t dr_corpus_fingerprint(const dr_corpus *corpus, uint64_t seed);

/* Training and held-out documents: views into their corpora, which must outlive them. */
typedef struct {
    dr_documents training, held_out;
    const char *cut; /* the document whose end is held out while its beginning is trained on, or NULL */
} dr_split;

/* Holds out whole documents, drawn by the seed, until they are `share` of the bytes, in (0, 1); with share 0 until they are 5%
 * and at least 100 KB, but never more than a fifth of a small corpus. Where whole documents cannot do it (a single file), the
 * end of the largest one from a line's start is held out for the rest, and *cut names it. DR_ERROR_ARGUMENT if there is too
 * little text to hold any out. */
dr_status dr_split_create(const dr_corpus *corpus, uint64_t seed, double share, dr_split *split);
/* Holds out all documents of another corpus. What is in both, as the same file, is not trained on. */
dr_status dr_split_create_from(const dr_corpus *corpus, const dr_corpus *held_out, dr_split *split);
void dr_split_destroy(dr_split *split);

#endif
