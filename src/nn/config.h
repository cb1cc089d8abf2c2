/* A model's configuration: filled in and checked; to and from config.json. */
#ifndef DR_NN_CONFIG_H
#define DR_NN_CONFIG_H

#include <deltarule/model.h>
#include <jansson.h>

/* Of any one size: products of three stay within 64 bits by far. */
enum { DR_LARGEST_SIZE = 1 << 24 };

/* *resolved is config with every 0, -1 and auto filled in. DR_ERROR_ARGUMENT names the field that cannot be,
 * DR_ERROR_UNSUPPORTED a rule that has no layer. */
dr_status dr_config_resolve(const dr_model_config *config, dr_model_config *resolved);

/* From the object of a config.json, by its model_type, not yet resolved; DR_ERROR_FORMAT or DR_ERROR_UNSUPPORTED. */
dr_status dr_config_read(const json_t *object, dr_model_config *config);

/* The object to write for a resolved configuration: a published model type where that can say all of it, else "deltarule".
 * NULL if there is no memory. dtype: of the weights, "float32". */
json_t *dr_config_write(const dr_model_config *config, const char *dtype);

#endif
