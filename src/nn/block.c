/* Norm, mixer, norm and MLP around the residual stream. The backward makes the norms' outputs and the MLP's product again
 * instead of keeping them: three cheap passes against three tensors a layer. */
#include "nn/block.h"
#include "base/error.h"

static size_t bytes_of(const dr_layer *layer, int64_t columns) {
    return dr_kind_bytes(layer->backend, DR_VECTOR, layer->layout.rows * columns);
}

static int64_t width(const dr_layer *layer) {
    return layer->mixer->slot[DR_ROLE_MLP_GATE].shape[0];
}

dr_status dr_block_add_parameters(dr_mixer *mixer, int64_t intermediate) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, one = {DR_INITIAL_CONSTANT, 1};
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_MIXER_NORM, one, mixer->hidden, 0, 0));
    if (intermediate == 0) return DR_OK;
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_MLP_NORM, one, mixer->hidden, 0, 0));
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_MLP_GATE, normal, intermediate, mixer->hidden, 0));
    DR_TRY(dr_slot_fill(mixer->slot, DR_ROLE_MLP_UP, normal, intermediate, mixer->hidden, 0));
    return dr_slot_fill(mixer->slot, DR_ROLE_MLP_DOWN, normal, mixer->hidden, intermediate, 0);
}

void dr_block_place(const dr_layer *layer, bool keep, dr_arena *arena, dr_block_memory *memory) {
    void *x = memory->x;
    *memory = (dr_block_memory){.x = x};
    memory->middle = dr_arena_take(arena, bytes_of(layer, layer->mixer->hidden));
    memory->gate = dr_arena_take(arena, bytes_of(layer, width(layer)));
    memory->up = dr_arena_take(arena, bytes_of(layer, width(layer)));
    dr_mixer_place(layer, keep, arena, &memory->mixer);
}

void dr_block_place_scratch(const dr_layer *layer, bool backward, dr_arena *arena, dr_block_scratch *scratch) {
    *scratch = (dr_block_scratch){0};
    scratch->normed = dr_arena_take(arena, bytes_of(layer, layer->mixer->hidden));
    if (backward) scratch->d_normed = dr_arena_take(arena, bytes_of(layer, layer->mixer->hidden));
    /* the two halves are never at work together */
    size_t halves = arena->used;
    scratch->act = dr_arena_take(arena, bytes_of(layer, width(layer)));
    if (backward) {
        scratch->d_act = dr_arena_take(arena, bytes_of(layer, width(layer)));
        scratch->d_gate = dr_arena_take(arena, bytes_of(layer, width(layer)));
        scratch->d_up = dr_arena_take(arena, bytes_of(layer, width(layer)));
    }
    dr_arena_rewind(arena, halves);
    dr_mixer_place_scratch(layer, backward, arena, &scratch->mixer);
}

static dr_status norm(const dr_layer *layer, dr_role role, const void *x, void *y) {
    dr_rms_norm operation = {.rows = layer->layout.rows, .dim = layer->mixer->hidden, .eps = layer->mixer->norm_eps};
    return layer->backend->ops->rms_norm_forward(layer->backend, &operation, x, dr_layer_parameter(layer, role), NULL, y);
}

/* d += gradient of x */
static dr_status norm_backward(const dr_layer *layer, dr_role role, const void *x, const void *d_y, void *d) {
    dr_rms_norm operation = {.rows = layer->layout.rows, .dim = layer->mixer->hidden, .eps = layer->mixer->norm_eps};
    return layer->backend->ops->rms_norm_backward(layer->backend, &operation, x, dr_layer_parameter(layer, role), NULL, d_y, d,
                                                  true, dr_layer_gradient(layer, role), NULL);
}

dr_status dr_block_forward(const dr_layer *layer, void *y, const dr_block_memory *memory, const dr_block_scratch *scratch,
                           const dr_mixer_state *state) {
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, hidden = layer->mixer->hidden, inner = width(layer);
    DR_TRY(norm(layer, DR_ROLE_MIXER_NORM, memory->x, scratch->normed));
    DR_TRY(dr_mixer_forward(layer, scratch->normed, memory->middle, &memory->mixer, &scratch->mixer, state));
    DR_TRY(ops->add(layer->backend, DR_VECTOR, rows * hidden, 1, memory->x, memory->middle));
    if (inner == 0) {
        ops->zero(layer->backend, y, bytes_of(layer, hidden));
    } else {
        dr_linear in = {rows, hidden, inner}, out = {rows, inner, hidden};
        DR_TRY(norm(layer, DR_ROLE_MLP_NORM, memory->middle, scratch->normed));
        DR_TRY(ops->linear_forward(layer->backend, &in, scratch->normed, dr_layer_weight(layer, DR_ROLE_MLP_GATE), NULL,
                                   memory->gate));
        DR_TRY(ops->linear_forward(layer->backend, &in, scratch->normed, dr_layer_weight(layer, DR_ROLE_MLP_UP), NULL,
                                   memory->up));
        DR_TRY(ops->swiglu_forward(layer->backend, rows * inner, memory->gate, memory->up, scratch->act));
        DR_TRY(ops->linear_forward(layer->backend, &out, scratch->act, dr_layer_weight(layer, DR_ROLE_MLP_DOWN), NULL, y));
    }
    return ops->add(layer->backend, DR_VECTOR, rows * hidden, 1, memory->middle, y);
}

static dr_status mlp_backward(const dr_layer *layer, void *d, const dr_block_memory *memory, const dr_block_scratch *scratch) {
    const dr_operations *ops = layer->backend->ops;
    int64_t rows = layer->layout.rows, hidden = layer->mixer->hidden, inner = width(layer);
    dr_linear in = {rows, hidden, inner}, out = {rows, inner, hidden};
    DR_TRY(norm(layer, DR_ROLE_MLP_NORM, memory->middle, scratch->normed));
    DR_TRY(ops->swiglu_forward(layer->backend, rows * inner, memory->gate, memory->up, scratch->act));
    DR_TRY(ops->linear_backward(layer->backend, &out, scratch->act, dr_layer_weight(layer, DR_ROLE_MLP_DOWN), d, scratch->d_act,
                                false, dr_layer_gradient(layer, DR_ROLE_MLP_DOWN), NULL));
    DR_TRY(ops->swiglu_backward(layer->backend, rows * inner, memory->gate, memory->up, scratch->d_act, scratch->d_gate,
                                scratch->d_up));
    DR_TRY(ops->linear_backward(layer->backend, &in, scratch->normed, dr_layer_weight(layer, DR_ROLE_MLP_GATE), scratch->d_gate,
                                scratch->d_normed, false, dr_layer_gradient(layer, DR_ROLE_MLP_GATE), NULL));
    DR_TRY(ops->linear_backward(layer->backend, &in, scratch->normed, dr_layer_weight(layer, DR_ROLE_MLP_UP), scratch->d_up,
                                scratch->d_normed, true, dr_layer_gradient(layer, DR_ROLE_MLP_UP), NULL));
    return norm_backward(layer, DR_ROLE_MLP_NORM, memory->middle, scratch->d_normed, d);
}

dr_status dr_block_backward(const dr_layer *layer, void *d, const dr_block_memory *memory, const dr_block_scratch *scratch) {
    if (width(layer) > 0) DR_TRY(mlp_backward(layer, d, memory, scratch));
    DR_TRY(norm(layer, DR_ROLE_MIXER_NORM, memory->x, scratch->normed));
    DR_TRY(dr_mixer_backward(layer, scratch->normed, d, scratch->d_normed, &memory->mixer, &scratch->mixer));
    return norm_backward(layer, DR_ROLE_MIXER_NORM, memory->x, scratch->d_normed, d);
}
