/* From the own configuration of a model to its description (formats/names/description.h), from which models are built. */
#ifndef DR_NN_DESCRIBE_H
#define DR_NN_DESCRIBE_H

#include "formats/names/description.h"
#include <deltarule/model.h>

/* The mixer of a layer; config was resolved (dr_config_resolve) and has no list of layers. */
void dr_describe_recurrent(const dr_model_config *config, dr_recurrent_description *mixer);

/* config was resolved. Release with dr_description_release. */
dr_status dr_describe(const dr_model_config *config, dr_description *description);

#endif
