/* From a description to layers: the modules that it names, with their norms. */
#ifndef DR_NN_BUILD_H
#define DR_NN_BUILD_H

#include "nn/layer.h"

/* layer is zero and refers to the description from then on; whatever happens, dr_layer_release has to follow.
 * DR_ERROR_UNSUPPORTED names what is not built. */
dr_status dr_layer_build(dr_backend *backend, int64_t hidden, const dr_layer_description *description, dr_layer *layer);

/* DR_ERROR_UNSUPPORTED unless the backend has what the layer's norms and modules call. */
dr_status dr_layer_check_backend(const dr_layer *layer, const dr_backend *backend);
/* Likewise of one norm, and of operations, with DR_OPERATIONS behind the last. */
dr_status dr_norm_check_backend(const dr_norm *norm, const dr_backend *backend);
dr_status dr_operations_check_backend(const dr_operation *needed, const dr_backend *backend);

#endif
