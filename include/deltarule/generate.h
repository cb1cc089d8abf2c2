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

/* Reads the prompt (bytes; may be empty) chunkwise, then makes tokens. emit gets each as bytes as it comes; it returns false to
 * stop. */
DR_API dr_status dr_generate(dr_model *model, const char *prompt, size_t prompt_bytes, const dr_generate_options *options,
                             bool (*emit)(void *context, const char *bytes, size_t count), void *context);

#ifdef __cplusplus
}
#endif
#endif
