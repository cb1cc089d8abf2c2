/* Models as folders for other programs: config.json, weights in a type and in files of a size, what belongs to the tokenizer,
 * and a model card.
 *
 * Threads. Converting only reads the model. */
#ifndef DELTARULE_CONVERT_H
#define DELTARULE_CONVERT_H

#include <deltarule/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    dr_dtype dtype;     /* of weights: F32, F64, F16 or BF16, rounded to the nearest; BF16 by default */
    int64_t file_bytes; /* of a file of weights at most, but for one tensor; 5 * 10^9 by default, 0: one file */
} dr_convert_options;

DR_API dr_convert_options dr_convert_defaults(void);

/* Writes the model, which was loaded from `folder`, to the folder `to`, which must be empty or not exist yet: config.json of
 * the same type, weights, copies of the tokenizer's files, chat template and generation_config.json that `folder` has, and
 * README.md: that of `folder`, or a new one, with a section that tells type, sizes, rule, weights and source. A failure, or a
 * kill, leaves nothing. options NULL: the defaults. DR_ERROR_ARGUMENT if `to` has files already. */
DR_API dr_status dr_model_convert(const dr_model *model, const char *folder, const char *to, const dr_convert_options *options);

#ifdef __cplusplus
}
#endif
#endif
