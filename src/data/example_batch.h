/* Examples one after another, as a model takes them. */
#ifndef DR_DATA_EXAMPLE_BATCH_H
#define DR_DATA_EXAMPLE_BATCH_H

#include "data/examples.h"

typedef struct {
    int64_t sequences, rows, targets; /* that are in it */
    bool even;                        /* all sequences have as many rows */
    int32_t *ids;                     /* [rows] */
    int64_t *positions;               /* [targets] rows of the batch */
    int32_t *labels;                  /* [targets] */
    int64_t *bounds;                  /* [sequences + 1] the first row of each, then rows */
    int64_t *target_bounds;           /* [sequences + 1] likewise of targets */
    int64_t most_rows, most_targets;  /* that fit */
} dr_example_batch;

/* Room for so many sequences of the largest size. DR_ERROR_ARGUMENT if that is more than can be counted. */
dr_status dr_example_batch_create(const dr_generator *generator, dr_example_size largest, int64_t sequences,
                                  dr_example_batch *batch);
void dr_example_batch_destroy(dr_example_batch *batch); /* of one that is all zeros too */
void dr_example_batch_clear(dr_example_batch *batch);
/* Draws one more. */
void dr_example_batch_draw(dr_example_batch *batch, dr_generator *generator, dr_random *random, dr_example_size size);

#endif
