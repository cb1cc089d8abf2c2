/* Which stream of random numbers serves what, so that no two uses share numbers under one seed. The purpose stands in the high
 * byte of the stream, the index (an epoch, an example) in the rest: the position of any data in a run is an integer or two.
 * Purpose 0 belongs to the parameters of models. */
#ifndef DR_DATA_STREAMS_H
#define DR_DATA_STREAMS_H

#include "base/random.h"

typedef enum {
    DR_STREAM_SPLIT = 1,         /* choice of held-out files */
    DR_STREAM_WINDOWS,           /* order of training windows, by epoch */
    DR_STREAM_TRAINING_EXAMPLES, /* synthetic ones, by number */
    DR_STREAM_HELD_OUT_EXAMPLES, /* likewise */
    DR_STREAM_SAMPLING,          /* of generated tokens */
    DR_STREAM_MIXTURE,           /* order of the members of a mixture, by block of windows */
    DR_STREAM_VALIDATION,        /* choice of the documents of a validation set, by document */
} dr_stream_purpose;

static inline dr_random dr_stream(uint64_t seed, dr_stream_purpose purpose, int64_t index) {
    return dr_random_start(seed, (uint64_t)purpose << 56 | (uint64_t)index);
}

#endif
