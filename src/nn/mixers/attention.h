/* Softmax attention as a mixer (Vaswani et al. 2017), with what models have made of it: queries in groups that share keys
 * (Ainslie et al. 2023), norms of queries and keys over each head or over all of them, rotary embedding of all channels of a
 * head, of the first ones or of none, a sliding window, biases, and a sigmoid gate of the output by element or by head (Qiu
 * et al. 2025).
 *
 *     q = turn(norm(q_proj x))    k = turn(key_factor norm(k_proj x))    v = v_proj x
 *     y = o_proj(sigmoid(g_proj x) * attention(q, k, v)) */
#ifndef DR_NN_MIXERS_ATTENTION_H
#define DR_NN_MIXERS_ATTENTION_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters q_proj [heads key_size, hidden], k_proj [key_heads key_size, hidden], v_proj [key_heads value_size, hidden],
 * o_proj [hidden, heads value_size]; g_proj [heads value_size, hidden] or [heads, hidden], with a bias where queries have one;
 * q_norm and k_norm [key_size], or of all heads. DR_ERROR_ARGUMENT where the description cannot be, DR_ERROR_UNSUPPORTED where
 * queries see a choice of tokens. */
dr_status dr_attention_create(dr_backend *backend, int64_t hidden, const dr_attention_description *description,
                              const char *prefix, dr_layer_parameters *list, dr_module **module);

#endif
