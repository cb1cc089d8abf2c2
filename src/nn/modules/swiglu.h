/* The feed-forward of most models (Shazeer 2020): y = down(silu(gate x) * up x). */
#ifndef DR_NN_MODULES_SWIGLU_H
#define DR_NN_MODULES_SWIGLU_H

#include "nn/module.h"

/* Parameters gate_proj and up_proj [intermediate, hidden], down_proj [hidden, intermediate]. */
dr_status dr_swiglu_create(int64_t hidden, int64_t intermediate, const char *prefix, dr_layer_parameters *list,
                           dr_module **module);

#endif
