/* Scoring synthetic examples, from the stream of held-out ones: the same for a seed wherever they are asked, so that a training
 * run and `score` evaluate on the same. */
#ifndef DR_EVALUATE_EXAMPLES_H
#define DR_EVALUATE_EXAMPLES_H

#include "data/example_batch.h"
#include "data/sizes.h"

#include <deltarule/model.h>

typedef struct {
    dr_generator *generator;
    const dr_size_range *size; /* which the generator can draw */
    int64_t examples;          /* example i is drawn from stream i */
    int64_t batch, rows;       /* the most sequences and tokens of a call; one sequence at least */
    uint64_t seed;
} dr_examples_options;

typedef struct {
    int64_t examples, targets;
    double loss;              /* nats a target, mean */
    double accuracy;          /* share of targets whose likeliest token is the label */
    double sequence_accuracy; /* share of examples of which all targets are right */
    double seconds;
} dr_examples_score;

/* DR_ERROR_NUMERIC, with the score, if the loss is not finite. progress counts examples and may be NULL. */
dr_status dr_score_examples(dr_session *session, const dr_examples_options *options,
                            bool (*progress)(void *context, int64_t done, int64_t total), void *context,
                            dr_examples_score *score);

/* A batch of examples as a model takes it; it points into the examples. */
dr_batch dr_examples_as_batch(const dr_example_batch *examples);

#endif
