/* Multi-query associative recall (Arora et al., "Zoology", 2023): pairs of key and value are shown once, then each key is asked
 * for once, at a distance that follows a power law, among fillers. The label at a query's position is the key's value.
 *
 * Of forgetting recall some keys, chosen at random, are shown again with another value before the first query; the last value
 * of a key counts. */
#ifndef DR_DATA_MQAR_H
#define DR_DATA_MQAR_H

#include "base/random.h"

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t vocabulary;  /* V > length; keys are in [1, V/2 - 1], values in [V/2, V - 1] */
    int64_t length;      /* L, the most of an example; even; 4 pairs + 2 updates <= L */
    int64_t pairs;       /* K, the most of an example */
    double power;        /* a: query slot g = 0, 1, .. has weight (g + 1)^(a - 1) */
    bool random_fillers; /* other tokens are uniform in [0, V), and may collide with keys and values; else they are 0 */
    int64_t updates;     /* U <= pairs: keys that get a second value */
} dr_mqar_shape;

typedef struct dr_mqar dr_mqar;

/* DR_ERROR_ARGUMENT says which size cannot be. */
dr_status dr_mqar_check(const dr_mqar_shape *shape);
dr_status dr_mqar_create(const dr_mqar_shape *shape, dr_mqar **mqar);
void dr_mqar_destroy(dr_mqar *mqar); /* NULL is allowed */

/* One example of these sizes, which must be ones of a shape that can be: ids [length]; positions [pairs] of the queries,
 * rising, and their labels [pairs]. */
void dr_mqar_draw(dr_mqar *mqar, dr_random *random, int64_t length, int64_t pairs, int32_t *ids, int64_t *positions,
                  int32_t *labels);

#endif
