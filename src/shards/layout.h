/* The files of token ids that training programs of the field exchange: where their ids begin, how wide and how many they are.
 */
#ifndef DR_SHARDS_LAYOUT_H
#define DR_SHARDS_LAYOUT_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

/* The header of llm.c: 256 integers of 32 bits, the first of them magic, version and number of ids; ids of 16 bits follow where
 * magic and version are 20240520 and 1, of 32 bits where they are 20240801 and 7. */
enum {
    DR_SHARD_HEADER = 1024, /* bytes */
    DR_SHARD_WIDE = 65536   /* vocabularies of more ids than this need 32 bits */
};

typedef struct {
    int64_t header; /* bytes before the ids; 0: nanoGPT's files, which have none, and ids of 16 bits */
    int width;      /* bytes of an id: 2 or 4, little-endian */
    int64_t tokens; /* >= 1 */
} dr_shard_layout;

/* What a file of so many bytes is. data: its first bytes, DR_SHARD_HEADER of them or all. name: for messages. DR_ERROR_FORMAT
 * says what is wrong: a length that is not that of the header, no ids, versions and magics that are not known. */
dr_status dr_shard_layout_read(const uint8_t *data, int64_t bytes, const char *name, dr_shard_layout *layout);

/* The header of llm.c for ids of this width. tokens < 2^31. */
void dr_shard_header_write(int width, int64_t tokens, uint8_t header[DR_SHARD_HEADER]);

/* Numbers as the files have them. */
static inline uint32_t dr_shard_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t dr_shard_u64(const uint8_t *at) {
    return dr_shard_u32(at) | (uint64_t)dr_shard_u32(at + 4) << 32;
}

static inline void dr_shard_put(uint64_t value, int bytes, uint8_t *at) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

#endif
