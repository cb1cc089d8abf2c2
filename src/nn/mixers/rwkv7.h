/* The time mix of RWKV-7 (Peng et al. 2025) as its published models have it. x_c is x_t + (x_(t-1) - x_t) mix_c for c = r, w,
 * k, v, a, g, and lora_c(u) = up f(down u) + bias with f tanh for w, sigmoid for g, none for a and v:
 *
 *     r, k, v = projections of x_r, x_k, x_v;   a = sigmoid(lora_a(x_a));   g = lora_g(x_g), without a bias
 *     log w   = -e^(-1/2) sigmoid(lora_w(x_w))
 *     v      += (v_first - v) sigmoid(lora_v(x_v)), v_first being the value of the model's first such layer
 *     kk      = unit vector of k k_k of each head;   k += (a k - k) k_a
 *     S_t     = diag(w) S_(t-1) - (a kk)(S_(t-1)^T kk)^T + k v^T,   o = S_t^T r
 *     y       = projection of (group norm of o by heads + (sum r k r_k) v) g */
#ifndef DR_NN_MIXERS_RWKV7_H
#define DR_NN_MIXERS_RWKV7_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters x_mix [6, hidden], of r, w, k, v, a, g; r_proj, k_proj .weight [keys, hidden], v_proj.weight [values, hidden],
 * keys being heads key_size and values heads value_size; w_lora, a_lora, v_lora (not of the first layer), g_lora .0.weight
 * [rank, hidden], .1.weight [keys or values, rank] and, but for g, .1.bias; k_k, k_a [keys]; r_k [heads, key_size];
 * g_norm.{weight,bias} [values]; o_proj.weight [hidden, values]. DR_ERROR_ARGUMENT if a size cannot be. */
dr_status dr_rwkv7_create(dr_backend *backend, int64_t hidden, const dr_rwkv7_description *description, const char *prefix,
                          dr_layer_parameters *list, dr_module **module);

#endif
