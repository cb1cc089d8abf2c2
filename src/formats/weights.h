/* The weights of a model's folder: `model.safetensors`, or several files (shards) and `model.safetensors.index.json`, whose
 * "weight_map" says in which file each tensor is. All are mapped. Of an index nothing is trusted: it names plain files of the
 * folder, each named tensor is in its file, and a file has no others. */
#ifndef DR_FORMATS_WEIGHTS_H
#define DR_FORMATS_WEIGHTS_H

#include <deltarule/tensor.h>

typedef struct dr_weights dr_weights;

/* If the folder has both, the single file is the model. DR_ERROR_IO or DR_ERROR_FORMAT with the file's name. */
dr_status dr_weights_open(const char *folder, dr_weights **weights);
void dr_weights_close(dr_weights *weights); /* NULL is allowed */

const char *dr_weights_file(const dr_weights *weights); /* the single file or the index, for messages */
int64_t dr_weights_count(const dr_weights *weights);    /* tensors of all files */
const char *dr_weights_name(const dr_weights *weights, int64_t index);
dr_tensor dr_weights_tensor(const dr_weights *weights, int64_t index);
/* As dr_safetensors_index and dr_safetensors_find. */
int64_t dr_weights_index(const dr_weights *weights, const char *name);
int dr_weights_find(const dr_weights *weights, const char *name, dr_tensor *tensor);

#endif
