/* A 64-bit hash, of bytes or of words one after another: what says that a file is whole, that two models are one, that two
 * texts begin alike. It keeps accidents apart, not adversaries. Each word is multiplied into the hash and its high half folded
 * back, as in the family of Fowler, Noll and Vo, a word at a time. */
#ifndef DR_BASE_HASH_H
#define DR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DR_HASH_START UINT64_C(0xcbf29ce484222325)

/* The hash of what came before and one more word. */
static inline uint64_t dr_hash_word(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* And of so many bytes more, little-endian words of eight; what is left of the last counts with the number of bytes. */
static inline uint64_t dr_hash_bytes(uint64_t hash, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    uint64_t word;
    size_t left = count;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = dr_hash_word(hash, word);
    }
    word = 0;
    if (left > 0) memcpy(&word, at, left);
    return dr_hash_word(dr_hash_word(hash, word), count);
}

#endif
