/* One block of the network, both halves pre-normed and added to the residual stream:
 *
 *     middle = x + mixer(rms_norm(x))
 *     y      = middle + down(silu(gate h) * up h),   h = rms_norm(middle)       (middle itself without an MLP)
 */
#ifndef DR_NN_BLOCK_H
#define DR_NN_BLOCK_H

#include "nn/mixer.h"

/* What a forward makes, [rows, hidden]; gate and up [rows, intermediate]. */
typedef struct {
    void *x, *middle, *gate, *up;
    dr_mixer_memory mixer;
} dr_block_memory;

/* One for all blocks. */
typedef struct {
    void *normed; /* [rows, hidden] */
    void *act;    /* [rows, intermediate] */
    /* of the backward alone */
    void *d_normed, *d_act, *d_gate, *d_up;
    dr_mixer_scratch mixer;
} dr_block_scratch;

/* Adds the norms' and the MLP's parameters to a mixer's; intermediate 0: no MLP. */
dr_status dr_block_add_parameters(dr_mixer *mixer, int64_t intermediate);

/* memory->x is not handed out here: it is where the block before writes. */
void dr_block_place(const dr_layer *layer, bool keep, dr_arena *arena, dr_block_memory *memory);
void dr_block_place_scratch(const dr_layer *layer, bool backward, dr_arena *arena, dr_block_scratch *scratch);

/* y [rows, hidden] from memory->x; y may be memory->x where no backward follows. state may be NULL. */
dr_status dr_block_forward(const dr_layer *layer, void *y, const dr_block_memory *memory, const dr_block_scratch *scratch,
                           const dr_mixer_state *state);

/* Turns the gradient d [rows, hidden] of y into that of x, in place, and adds to the layer's gradients. */
dr_status dr_block_backward(const dr_layer *layer, void *d, const dr_block_memory *memory, const dr_block_scratch *scratch);

#endif
