/* A model's configuration: filled in and checked; to and from config.json. */
#ifndef DR_NN_CONFIG_H
#define DR_NN_CONFIG_H

#include <deltarule/model.h>
#include <jansson.h>

/* Of any one size: products of three stay within 64 bits by far. */
enum { DR_LARGEST_SIZE = 1 << 24, DR_MOST_LAYERS = 1 << 14 };

/* *resolved is config with every 0, -1 and auto filled in. DR_ERROR_ARGUMENT names the field that cannot be,
 * DR_ERROR_UNSUPPORTED a rule that has no layer. With a list of layers the sizes of 0 and -1 stay: each layer fills in its own.
 */
dr_status dr_config_resolve(const dr_model_config *config, dr_model_config *resolved);

/* Of the MLP where nothing is said: 8/3 of hidden, rounded up to a multiple of 256. */
int64_t dr_config_intermediate(int64_t hidden);

/* From the object of a config.json, by its model_type, not yet resolved; DR_ERROR_FORMAT or DR_ERROR_UNSUPPORTED. *layer_list
 * is the text that the configuration points to where it has a list of layers, else NULL; free it with dr_release. */
dr_status dr_config_read(const json_t *object, dr_model_config *config, char **layer_list);

/* The keys of one layer of a list whose mixer is a rule (nn/layer_list.h), over what config has. DR_ERROR_FORMAT. */
dr_status dr_config_read_layer(const json_t *item, dr_model_config *config);

/* The object to write for a resolved configuration: a published model type where that can say all of it, else "deltarule".
 * NULL if there is no memory. dtype: of the weights, "float32". */
json_t *dr_config_write(const dr_model_config *config, const char *dtype);
/* The same as "deltarule", whether or not a published type can say it. */
json_t *dr_config_write_own(const dr_model_config *config, const char *dtype);

#endif
