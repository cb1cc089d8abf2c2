/* Norms, modules and sums around the residual stream. The backward makes the outputs of the norms in front of the modules again
 * instead of keeping them, a cheap pass against a tensor a part, unless the call says that they are kept. */
#include "nn/layer.h"
#include "base/error.h"

void dr_layer_add(dr_layer *layer, const dr_part *part) {
    layer->part[layer->parts++] = *part;
}

void dr_layer_release(dr_backend *backend, dr_layer *layer) {
    for (int i = 0; i < layer->parts; i++) layer->part[i].module->operations->destroy(backend, layer->part[i].module);
    dr_layer_parameters_release(&layer->list);
    *layer = (dr_layer){0};
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

void dr_layer_host_memory(const dr_layer *layer, dr_arena *host, dr_layer_memory *memory) {
    for (int i = 0; i < layer->parts; i++)
        memory->module[i] = dr_arena_take(host, layer->part[i].module->operations->memory_size);
}

void dr_layer_host_scratch(const dr_layer *layer, dr_arena *host, dr_layer_scratch *scratch) {
    for (int i = 0; i < layer->parts; i++) {
        const dr_module_operations *operations = layer->part[i].module->operations;
        scratch->plan[i] = dr_arena_take(host, operations->plan_size);
        scratch->scratch[i] = dr_arena_take(host, operations->scratch_size);
    }
}

void dr_layer_host_state(const dr_layer *layer, dr_arena *host, dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++)
        state->module[i] = dr_arena_take(host, layer->part[i].module->operations->state_size);
}

dr_status dr_layer_plan(const dr_layer *layer, dr_backend *backend, const dr_layout *layout, dr_layer_scratch *scratch) {
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        if (module->operations->plan) DR_TRY(module->operations->plan(module, backend, layout, scratch->plan[i]));
    }
    return DR_OK;
}

static dr_module_call call_of(const dr_layer *layer, int index, const dr_module_call *call, const dr_layer_memory *memory,
                              const dr_layer_scratch *scratch) {
    dr_module_call of = *call;
    of.module = layer->part[index].module;
    of.list = layer->list.at;
    of.plan = scratch->plan[index];
    of.scratch = scratch->scratch[index];
    of.memory = memory ? memory->module[index] : NULL;
    return of;
}

static bool has_depth(const dr_layer *layer) {
    return layer->description->depth_norm.kind != DR_NORM_NONE;
}

/* Whether the module writes where the stream behind it will be, so that one sum is all there is to do: not where more is done
 * to what it gives, nor where y may be what is added to it: behind the only part, or where parts attend to earlier outputs. */
static bool adds_at_once(const dr_layer *layer, int index) {
    return layer->parts > 1 && layer->part[index].after.kind == DR_NORM_NONE && !has_depth(layer);
}

void dr_layer_place(const dr_layer *layer, const dr_module_call *call, bool keep, dr_arena *arena, dr_layer_memory *memory,
                    const dr_layer_scratch *scratch) {
    const size_t stream = dr_module_bytes(call, DR_VECTOR, layer->hidden);
    for (int i = 1; i < layer->parts; i++) memory->stream[i] = dr_arena_take(arena, stream);
    for (int i = 0; i < layer->parts; i++) {
        const dr_module_call of = call_of(layer, i, call, memory, scratch);
        if (!adds_at_once(layer, i)) memory->made[i] = dr_arena_take(arena, stream);
        const bool kept = keep && call->keeps && layer->part[i].before.kind != DR_NORM_NONE;
        memory->normed[i] = kept ? dr_arena_take(arena, stream) : NULL;
        of.module->operations->place(&of, keep, arena, memory->module[i]);
    }
}

void dr_layer_place_scratch(const dr_layer *layer, const dr_module_call *call, bool backward, dr_arena *arena,
                            dr_layer_scratch *scratch) {
    const size_t stream = dr_module_bytes(call, DR_VECTOR, layer->hidden);
    bool behind = false;
    for (int i = 0; i < layer->parts; i++) behind |= layer->part[i].after.kind != DR_NORM_NONE;
    scratch->normed = dr_arena_take(arena, stream);
    if (backward) scratch->d_normed = dr_arena_take(arena, stream);
    if (backward && behind) scratch->d_made = dr_arena_take(arena, stream);
    /* no two modules are ever at work together */
    const size_t shared = arena->used;
    for (int i = 0; i < layer->parts; i++) {
        const dr_module_call of = call_of(layer, i, call, NULL, scratch);
        dr_arena_rewind(arena, shared);
        of.module->operations->place_scratch(&of, backward, arena, scratch->scratch[i]);
    }
}

void dr_layer_place_state(const dr_layer *layer, dr_backend *backend, int64_t sequences, dr_arena *arena,
                          dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        if (module->operations->place_state)
            module->operations->place_state(module, backend, sequences, arena, state->module[i]);
    }
}

dr_status dr_layer_reserve_state(const dr_layer *layer, dr_backend *backend, int64_t sequences, int64_t tokens,
                                 const dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        if (module->operations->reserve_state)
            DR_TRY(module->operations->reserve_state(module, backend, sequences, tokens, state->module[i]));
    }
    return DR_OK;
}

void dr_layer_release_state(const dr_layer *layer, dr_backend *backend, const dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        if (module->operations->release_state) module->operations->release_state(module, backend, state->module[i]);
    }
}

int64_t dr_layer_grown(const dr_layer *layer, const dr_layer_state *state, dr_grown *grown) {
    int64_t count = 0;
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        if (module->operations->grown)
            count += module->operations->grown(module, state->module[i], grown ? grown + count : NULL);
    }
    return count;
}

dr_status dr_layer_chunk(const dr_layer *layer, dr_backend *backend, int64_t *tokens) {
    *tokens = 1;
    for (int i = 0; i < layer->parts; i++) {
        const dr_module *module = layer->part[i].module;
        int64_t own = 1;
        if (module->operations->chunk) DR_TRY(module->operations->chunk(module, backend, &own));
        *tokens = dr_common_multiple(*tokens, own);
    }
    return DR_OK;
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

dr_status dr_layer_part_forward(const dr_layer *layer, int index, const dr_module_call *call, const void *x, const void *base,
                                void *y, const dr_layer_memory *memory, const dr_layer_scratch *scratch,
                                const dr_layer_state *state) {
    const dr_part *part = &layer->part[index];
    const dr_operations *ops = call->backend->ops;
    dr_module_call of = call_of(layer, index, call, memory, scratch);
    of.state = state ? state->module[index] : NULL;
    const int64_t rows = call->layout.rows, count = rows * layer->hidden;
    const bool at_once = adds_at_once(layer, index);
    const void *in = x;
    if (part->before.kind != DR_NORM_NONE) {
        void *normed = memory->normed[index] ? memory->normed[index] : scratch->normed;
        DR_TRY(dr_norm_forward(&part->before, &of, rows, x, normed));
        in = normed;
    }
    const dr_module_operations *operations = part->module->operations;
    if (at_once && ops->sums && operations->sums && operations->sums(part->module)) of.plus = base;
    DR_TRY(operations->forward(&of, in, at_once ? y : memory->made[index]));
    if (at_once) return base && !of.plus ? ops->add(of.backend, DR_VECTOR, count, 1, base, y) : DR_OK;
    const void *out = memory->made[index];
    if (part->after.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_forward(&part->after, &of, rows, out, scratch->normed));
        out = scratch->normed;
    }
    const size_t bytes = dr_module_bytes(&of, DR_VECTOR, layer->hidden);
    if (!base) return ops->copy(of.backend, y, out, bytes);
    if (y != base) DR_TRY(ops->copy(of.backend, y, base, bytes));
    return ops->add(of.backend, DR_VECTOR, count, 1, out, y);
}

dr_status dr_layer_forward(const dr_layer *layer, const dr_module_call *call, void *y, const dr_layer_memory *memory,
                           const dr_layer_scratch *scratch, const dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++) {
        const void *x = memory->stream[i];
        void *to = i + 1 < layer->parts ? memory->stream[i + 1] : y;
        DR_TRY(dr_layer_part_forward(layer, i, call, x, x, to, memory, scratch, state));
    }
    return DR_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

dr_status dr_layer_part_backward(const dr_layer *layer, int index, const dr_module_call *call, const void *d_y, void *d_x,
                                 bool accumulate, const dr_layer_memory *memory, const dr_layer_scratch *scratch) {
    const dr_part *part = &layer->part[index];
    const dr_operations *ops = call->backend->ops;
    const dr_module_call of = call_of(layer, index, call, memory, scratch);
    const int64_t rows = call->layout.rows;
    const void *x = memory->stream[index], *in = x, *d_made = d_y;
    if (part->after.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_backward(&part->after, &of, rows, memory->made[index], d_y, scratch->d_made, false));
        d_made = scratch->d_made;
    }
    if (memory->normed[index]) {
        in = memory->normed[index];
    } else if (part->before.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_forward(&part->before, &of, rows, x, scratch->normed));
        in = scratch->normed;
    }
    DR_TRY(part->module->operations->backward(&of, in, d_made, scratch->d_normed));
    if (part->before.kind != DR_NORM_NONE)
        return dr_norm_backward(&part->before, &of, rows, x, scratch->d_normed, d_x, accumulate);
    if (accumulate) return ops->add(of.backend, DR_VECTOR, rows * layer->hidden, 1, scratch->d_normed, d_x);
    return ops->copy(of.backend, d_x, scratch->d_normed, dr_module_bytes(&of, DR_VECTOR, layer->hidden));
}

dr_status dr_layer_backward(const dr_layer *layer, const dr_module_call *call, void *d, const dr_layer_memory *memory,
                            const dr_layer_scratch *scratch) {
    for (int i = layer->parts - 1; i >= 0; i--) DR_TRY(dr_layer_part_backward(layer, i, call, d, d, true, memory, scratch));
    return DR_OK;
}
