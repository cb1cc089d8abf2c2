/* Sampling text from a model, token by token, in constant memory. */
#ifndef DELTARULE_GENERATE_H
#define DELTARULE_GENERATE_H

#include <deltarule/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t tokens;     /* how many to make */
    double temperature; /* >= 0; 0: the likeliest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    uint64_t seed;
} dr_generate_options;

DR_API dr_generate_options dr_generate_defaults(void);

/* Reads the prompt (bytes; may be empty) chunkwise, then makes tokens. emit gets each as bytes as it comes (none where the
 * model ends one document and begins the next); it returns false to stop, which gives DR_ERROR_INTERRUPTED. A seed repeats a
 * text. DR_ERROR_ARGUMENT names an option that cannot be, DR_ERROR_UNSUPPORTED a model that does not read bytes. */
DR_API dr_status dr_generate(dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                             bool (*emit)(void *context, const char *bytes, size_t count), void *context);

#ifdef __cplusplus
}
#endif
#endif
