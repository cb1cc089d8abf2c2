/* A mixture of experts as the feed-forward of a layer (ops/experts.h, formats/names/description.h):
 *
 *     y = sum over the chosen experts e of w_e expert_e(x)  (+ shared(x), or sigmoid(s x) shared(x))
 *
 * with the weights w of a router. Experts are feed-forwards of one shape, gated or plain; with a latent width they read and
 * write a projection of x. Every token goes to all experts that it chose: none is dropped, and its result depends on no other
 * token. In training a loss of its own keeps the experts in equal use. */
#ifndef DR_NN_MODULES_EXPERTS_H
#define DR_NN_MODULES_EXPERTS_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters router.weight [experts, hidden]; router.bias [experts] where the choice is corrected, which has no gradient and
 * does not decay; experts.gate_proj (gated), experts.up_proj [experts, width, in], experts.down_proj [experts, in, width], in
 * being the latent or hidden; latent_down.weight [latent, hidden], latent_up.weight [hidden, latent]; shared.*, a feed-forward;
 * shared_gate.weight [1, hidden]. DR_ERROR_ARGUMENT if numbers do not fit each other; DR_ERROR_UNSUPPORTED: experts with
 * biases. */
dr_status dr_experts_create(dr_backend *backend, int64_t hidden, const dr_experts_description *description, const char *prefix,
                            dr_layer_parameters *list, dr_module **module);

#endif
