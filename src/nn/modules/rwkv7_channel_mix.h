/* The feed-forward of RWKV-7: y = down(relu(up(x_t + (x_(t-1) - x_t) mix))^2). A sequence carries its last x. */
#ifndef DR_NN_MODULES_RWKV7_CHANNEL_MIX_H
#define DR_NN_MODULES_RWKV7_CHANNEL_MIX_H

#include "nn/module.h"

/* Parameters x_mix [1, hidden], up_proj.weight [width, hidden], down_proj.weight [hidden, width]. */
dr_status dr_rwkv7_channel_mix_create(dr_backend *backend, int64_t hidden, int64_t width, const char *prefix,
                                      dr_layer_parameters *list, dr_module **module);

#endif
