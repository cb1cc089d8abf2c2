/* Philox 4x32-10: ten rounds of multiplication and exclusive-or turn a counter of four words into four random words.
 *
 * Counter: the number of the block (low half) and the stream (high half); key: the seed. Word i of a stream is word i mod 4 of
 * block i / 4, so the position is one number and any word can be had without those before it. */
#include "base/random.h"

#include <math.h>

void dr_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

/* The next count words; a block is computed once for all of its words that are asked for. */
static void draw(dr_random *random, uint32_t *words, int count) {
    uint32_t block[4];
    for (int i = 0; i < count; i++) {
        unsigned at = (unsigned)(random->drawn % 4);
        if (i == 0 || at == 0) {
            uint64_t number = random->drawn / 4;
            uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)random->stream,
                                   (uint32_t)(random->stream >> 32)};
            uint32_t key[2] = {(uint32_t)random->seed, (uint32_t)(random->seed >> 32)};
            dr_random_philox(counter, key, block);
        }
        words[i] = block[at];
        random->drawn++;
    }
}

static uint64_t draw_64_bits(dr_random *random) {
    uint32_t words[2];
    draw(random, words, 2);
    return (uint64_t)words[1] << 32 | words[0];
}

static double to_unit_interval(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

dr_random dr_random_start(uint64_t seed, uint64_t stream) {
    return (dr_random){.seed = seed, .stream = stream, .drawn = 0};
}

uint32_t dr_random_word(dr_random *random) {
    uint32_t word;
    draw(random, &word, 1);
    return word;
}

double dr_random_uniform(dr_random *random) {
    return to_unit_interval(draw_64_bits(random));
}

uint64_t dr_random_below(dr_random *random, uint64_t bound) {
    /* 2^64 mod bound values at the low end are dropped: what is left is a multiple of bound. Few values are below bound, so
     * that the remainder is rarely asked for. */
    uint64_t bits;
    do bits = draw_64_bits(random);
    while (bits < bound && bits < -bound % bound);
    return bits % bound;
}

double dr_random_normal(dr_random *random) {
    uint32_t words[4];
    draw(random, words, 4);
    double radius = 1 - to_unit_interval((uint64_t)words[1] << 32 | words[0]); /* in (0, 1]: its logarithm is finite */
    double turn = to_unit_interval((uint64_t)words[3] << 32 | words[2]);
    return sqrt(-2 * log(radius)) * cos(6.283185307179586476925 * turn);
}
