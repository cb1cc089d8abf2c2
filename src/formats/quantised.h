/* Models that are stored quantised, which are not read: they are refused by the name of what they are, with what would be
 * right. */
#ifndef DR_FORMATS_QUANTISED_H
#define DR_FORMATS_QUANTISED_H

#include "formats/weights.h"
#include <jansson.h>

/* DR_ERROR_UNSUPPORTED with a sentence: of a path that is a GGUF file, or a folder that has one and no weights beside it; of a
 * configuration with "quantization_config"; of a tensor whose name such formats alone have, or whose type. */
dr_status dr_quantised_check_path(const char *path);
dr_status dr_quantised_check_config(const json_t *config);
dr_status dr_quantised_check_tensors(const dr_weights *weights);
/* dtype: as a safetensors file says it. DR_OK of all that are not quantised, known or not. */
dr_status dr_quantised_check_dtype(const char *tensor, const char *dtype);

#endif
