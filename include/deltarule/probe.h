/* Probes: what the recurrences of a model do on a text, as the papers look at theirs.
 *
 * A probe runs the model over the first tokens of a text, takes what each layer's recurrence reads, and computes figures from
 * it in double, each a distribution over tokens and heads. docs/experiments.md says what each figure is.
 *
 * Threads. All functions of this header may be called at once from any number of threads, as those of evaluate.h. */
#ifndef DELTARULE_PROBE_H
#define DELTARULE_PROBE_H

#include <deltarule/model.h>
#include <deltarule/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t layer;    /* from 0 */
    const char *name; /* "cosine of readout and value prediction"; valid during the call that tells of it */
    int64_t count;    /* of samples */
    double mean, least, low, median, high, most; /* low and high: 5% of the samples lie below and above */
} dr_probe_figure;

/* The kinds: value (of rules that write a value at a key), preconditioner (of rules that precondition the write key by a
 * diagonal scan), erase (of rules that erase along a key of its own before they write). NULL beyond the last. */
DR_API const char *dr_probe_kind(int index);

/* Tells the figures of all layers that have what the kind looks at. text: UTF-8, as one document; tokens: how many of it at
 * most; tokenizer: that of the model, NULL: ids are bytes. DR_ERROR_ARGUMENT: no such kind, or the text has no two tokens;
 * DR_ERROR_UNSUPPORTED: no layer of the model has it. */
DR_API dr_status dr_probe(const dr_model *model, const char *kind, const char *text, size_t bytes, int64_t tokens,
                          const dr_tokenizer *tokenizer, void (*figure)(void *context, const dr_probe_figure *figure),
                          void *context);

#ifdef __cplusplus
}
#endif
#endif
