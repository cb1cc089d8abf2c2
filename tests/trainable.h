/* Which rules have a layer: all named ones but dplr and rwkv7, whose keys no projection makes (test_mixer.c counts them). */
#ifndef DR_TESTS_TRAINABLE_H
#define DR_TESTS_TRAINABLE_H

#include "nn/config.h"

static inline bool is_trainable(const dr_rule *rule) {
    dr_model_config config = dr_model_config_default(rule), resolved;
    return dr_config_resolve(&config, &resolved) != DR_ERROR_UNSUPPORTED;
}

#endif
