/* The layers of a hybrid, one by one, as text: a short form for patterns, or a JSON list that can say everything.
 * docs/models.md has both.
 *
 *     (eda*3 attention)*6                                     24 layers: three of rule eda, then one of attention, six times
 *     gdn+experts*2 attention+experts                         with a mixture of experts as feed-forward
 *     [{"mixer": "attention", "window": 512, "repeat": 3}]
 *
 * A layer has the numbers of the model's configuration where its own object says nothing. */
#ifndef DR_NN_LAYER_LIST_H
#define DR_NN_LAYER_LIST_H

#include "formats/names/description.h"

#include <deltarule/model.h>
#include <jansson.h>

/* The list that a text of either form says, as a JSON array; DR_ERROR_ARGUMENT. Free with json_decref. */
dr_status dr_layer_list_parse(const char *text, json_t **list);
/* The array in one line, which parses to the same; DR_ERROR_MEMORY. Free with dr_release. */
dr_status dr_layer_list_text(const json_t *list, char **text);

/* How many layers a list has. DR_ERROR_ARGUMENT if it is none of lists of layers, or has none or too many. */
dr_status dr_layer_list_count(const json_t *list, int64_t *count);

/* Describes each layer into layers [the count of the list]. defaults: not resolved. DR_ERROR_ARGUMENT, DR_ERROR_UNSUPPORTED
 * tell which layer. */
dr_status dr_layer_list_describe(const json_t *list, const dr_model_config *defaults, dr_layer_description *layers);

#endif
