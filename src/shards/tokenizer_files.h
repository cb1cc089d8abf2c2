/* The files of a tokenizer, which stand beside whatever was made with it. */
#ifndef DR_SHARDS_TOKENIZER_FILES_H
#define DR_SHARDS_TOKENIZER_FILES_H

#include "formats/folder.h"

#include <deltarule/tokenizer.h>

/* The tokenizer that a folder or a tokenizer.json has; "bytes": that of bytes. */
dr_status dr_tokenizer_open(const char *path, dr_tokenizer **tokenizer);
/* Whether a folder has tokenizer.json. */
bool dr_tokenizer_is_in(const char *folder);
/* Goes on with a hash over the files of the tokenizer; of "bytes" there are none. */
dr_status dr_tokenizer_files_hash(const char *path, uint64_t *hash);
/* Writes copies of the files into a change of a folder. */
dr_status dr_tokenizer_files_copy(const char *path, dr_folder *change);

#endif
