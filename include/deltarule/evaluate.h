/* Scoring text: loss, perplexity, bits per byte. */
#ifndef DELTARULE_EVALUATE_H
#define DELTARULE_EVALUATE_H

#include <deltarule/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t files, bytes, tokens; /* scored; the first token of a file is predicted from the separator */
    double loss;                  /* nats a token, mean */
    double perplexity;            /* exp(loss) */
    double bits_per_byte;
    double seconds;
} dr_score;

/* Scores a file or all files of a folder with a byte-level model, window tokens a call, state carried from window to window and
 * reset at each file. progress may be NULL; it returns false to stop. */
DR_API dr_status dr_score_corpus(dr_model *model, const char *path, int64_t window,
                                 bool (*progress)(void *context, int64_t done, int64_t total), void *context, dr_score *score);

#ifdef __cplusplus
}
#endif
#endif
