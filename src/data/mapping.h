/* A file that is mapped into memory: what it was when it was opened, and whether it still is that. */
#ifndef DR_DATA_MAPPING_H
#define DR_DATA_MAPPING_H

#include <deltarule/status.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    const uint8_t *start; /* [bytes] */
    int64_t bytes;        /* >= 1 */
    uint64_t device, inode;
    struct timespec changed;
    uint64_t hash; /* of the bytes, once dr_mapping_hash was called */
} dr_mapping;

/* Maps an open file of at least one byte, whose facts fstat gave. *mapping is NULL where the system does not map it.
 * DR_ERROR_MEMORY. */
dr_status dr_mapping_create(int descriptor, const struct stat *facts, dr_mapping **mapping);
void dr_mapping_destroy(dr_mapping *mapping); /* NULL is allowed */

/* Computes the hash, which dr_mapping_check compares with. */
void dr_mapping_hash(dr_mapping *mapping);
/* Goes on with a hash over more bytes, eight at a time. */
uint64_t dr_hash_bytes(uint64_t hash, const void *data, int64_t count);

/* Before bytes of it are read: a file that was cut short since then would end the program with SIGBUS, and one that was written
 * to would be another one. name: the path it was opened by. DR_ERROR_IO if its file is shorter or other than it was. (A file
 * that was replaced by another of its name is whole in memory still, and so is one that has only grown.) */
dr_status dr_mapping_check(dr_mapping *mapping, const char *name);
/* After bytes of it were read: its pages need not stay resident. NULL is allowed. */
void dr_mapping_forget(const dr_mapping *mapping);

#endif
