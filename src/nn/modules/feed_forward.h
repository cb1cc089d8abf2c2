/* Feed-forwards of two projections with a function between them (formats/names/description.h):
 *
 *     gated    y = down_factor down(f(gate_factor gate x) * up x)      SwiGLU (Shazeer 2020) where f is SiLU
 *     plain    y = down_factor down(f(up x))
 *
 * and what stands between the projections, which experts have too. */
#ifndef DR_NN_MODULES_FEED_FORWARD_H
#define DR_NN_MODULES_FEED_FORWARD_H

#include "formats/names/description.h"
#include "nn/module.h"

/* Parameters gate_proj.weight (gated), up_proj.weight [width, hidden], down_proj.weight [hidden, width] and, with biases, a
 * .bias of each. DR_ERROR_ARGUMENT if a number of the description cannot be. */
dr_status dr_feed_forward_create(dr_backend *backend, int64_t hidden, const dr_feed_forward_description *description,
                                 bool gated, const char *prefix, dr_layer_parameters *list, dr_module **module);

/* DR_ERROR_ARGUMENT with a sentence unless width is positive, and function, limit and factors are some that can be. */
dr_status dr_feed_forward_check(const dr_feed_forward_description *description);

/* ---- between the projections ------------------------------------------------------------------------------------------ */

/* From gate and up, what the projections gave, to act, what the last one reads, by elements. Not gated: gate is NULL. */
typedef struct {
    bool gated;
    dr_function function;
    dr_bound gate, up; /* of each before anything else; of factor 1 and without bounds: nothing is done */
} dr_feed_act;

dr_feed_act dr_feed_act_of(const dr_feed_forward_description *description, bool gated);

/* Scratch of count elements for those that are bounded. */
typedef struct {
    void *gate, *up;
} dr_feed_bounded;

void dr_feed_act_place(const dr_feed_act *act, size_t bytes, dr_arena *arena, dr_feed_bounded *bounded);

dr_status dr_feed_act_forward(dr_backend *backend, const dr_feed_act *act, int64_t count, const void *gate, const void *up,
                              const dr_feed_bounded *bounded, void *y);
/* bounded as a forward left it. d_up may be d_y. */
dr_status dr_feed_act_backward(dr_backend *backend, const dr_feed_act *act, int64_t count, const void *gate, const void *up,
                               const dr_feed_bounded *bounded, const void *d_y, void *d_gate, void *d_up);

#endif
