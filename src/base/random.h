/* A small counter-based generator (Philox 4x32-10, Salmon et al. 2011): the same numbers on every machine, a state of three
 * words that a checkpoint can hold, and independent streams. */
#ifndef DR_BASE_RANDOM_H
#define DR_BASE_RANDOM_H

#include "base/for_check.h"

#include <stdint.h>

typedef struct {
    uint64_t seed, stream; /* the key and the high half of the counter */
    uint64_t drawn;        /* 32-bit words drawn so far: all of the position */
} dr_random;

/* The block function itself: ten rounds over a counter and a key. */
void dr_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

DR_FOR_CHECK dr_random dr_random_start(uint64_t seed, uint64_t stream);
uint32_t dr_random_word(dr_random *random);
/* uniform in [0, 1), 53 bits */
DR_FOR_CHECK double dr_random_uniform(dr_random *random);
/* uniform integer in [0, bound), bound >= 1, without bias */
DR_FOR_CHECK uint64_t dr_random_below(dr_random *random, uint64_t bound);
/* standard normal (Box-Muller, two words pairs a draw, nothing kept) */
DR_FOR_CHECK double dr_random_normal(dr_random *random);
/* count of them, each `scale` times that, as floats: the same bits as (float)(scale * dr_random_normal(random)), in half the
 * time. A multiple of four words must have been drawn. */
void dr_random_normals(dr_random *random, double scale, int64_t count, float *to);

#endif
