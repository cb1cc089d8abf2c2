/* Multi-head latent attention as a mixer (DeepSeek-V2, 2024): keys and values of all heads come from one latent vector of few
 * channels. A head has `plain` channels of query and key without a position and `turned` ones with it; those of the key are
 * shared by the heads.
 *
 *     q                  = q_proj x, or q_b_proj norm(q_a_proj x)         its turned channels turned
 *     latent, shared     = kv_a_proj x                                    shared [turned] turned
 *     key_h, v_h         = kv_b_proj norm(latent), a head at a time
 *     k_h                = (key_h, shared)
 *     y                  = o_proj(sigmoid(g_proj x) * attention(q, k, v)) */
#ifndef DR_NN_MIXERS_LATENT_ATTENTION_H
#define DR_NN_MIXERS_LATENT_ATTENTION_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters q_proj [heads (plain + turned), hidden], or q_a_proj [query_rank, hidden], q_a_norm and q_b_proj; kv_a_proj [rank
 * + turned, hidden], kv_a_norm [rank], kv_b_proj [heads (plain + value_size), rank], o_proj [hidden, heads value_size] and,
 * with a gate, g_proj [heads value_size, hidden] or [heads, hidden]. DR_ERROR_ARGUMENT where the description cannot be,
 * DR_ERROR_UNSUPPORTED where queries see a choice of tokens. */
dr_status dr_latent_attention_create(dr_backend *backend, int64_t hidden, const dr_latent_attention_description *description,
                                     const char *prefix, dr_layer_parameters *list, dr_module **module);

#endif
