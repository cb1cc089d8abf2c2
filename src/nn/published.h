/* Models of published types: from the object of a config.json, of whatever type, to a model without weights. */
#ifndef DR_NN_PUBLISHED_H
#define DR_NN_PUBLISHED_H

#include <deltarule/model.h>
#include <jansson.h>

/* The model that the object tells. Where a dr_model_config can say all of it, that is what the model is built from and saved
 * with; else it keeps the object. DR_ERROR_FORMAT, DR_ERROR_UNSUPPORTED. */
dr_status dr_model_build_published(dr_backend *backend, json_t *object, dr_model **model);

/* The configuration that says all of what the object tells; DR_ERROR_UNSUPPORTED if there is none. */
dr_status dr_published_config(const json_t *object, dr_model_config *config);

/* Whether an object tells the model of a resolved configuration. DR_ERROR_MEMORY. */
dr_status dr_published_says(const json_t *object, const dr_model_config *config, bool *all);

#endif
