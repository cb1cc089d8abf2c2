/* The mixer of Mamba-2 (Dao and Gu 2024) as its published models have it:
 *
 *     z, x, B, C, dt    projections of the input, each times a factor
 *     x, B, C           convolved, then SiLU
 *     step              softplus(dt + dt_bias), clamped
 *     S_t = exp(-exp(A_log) step) S_(t-1) + B (step x)^T,   o = S_t^T C + D x       for each head; B and C are a group's
 *     y                 projection of the RMS norm by groups of o silu(z); or of norm(o) silu(z), or of o silu(z)
 *
 * The recurrence is that of linear attention with a scalar decay: B is its key, C its query, step x its value, and head h reads
 * group h / (heads / groups). */
#ifndef DR_NN_MIXERS_MAMBA2_H
#define DR_NN_MIXERS_MAMBA2_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters in_proj.weight [rows, hidden] and, with biases, in_proj.bias [rows], whose rows are those of z and x (inner =
 * heads head_size each), B and C (groups state_size each) and dt (heads); conv1d.weight [channels, 1, conv_size] and, with
 * biases, conv1d.bias [channels], the channels of x, B and C; A_log, dt_bias, D [heads]; norm.weight [inner] where there is a
 * norm; o_proj.weight [hidden, inner] and, with biases, o_proj.bias. DR_ERROR_ARGUMENT if numbers do not fit each other. */
dr_status dr_mamba2_create(dr_backend *backend, int64_t hidden, const dr_mamba2_description *description, const char *prefix,
                           dr_layer_parameters *list, dr_module **module);

#endif
