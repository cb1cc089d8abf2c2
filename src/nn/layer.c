/* Norms, modules and sums around the residual stream. The backward makes the outputs of the norms in front of the modules again
 * instead of keeping them: a cheap pass against a tensor a part. */
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

/* Whether the module writes where the stream behind it will be, so that one sum is all there is to do: not where more is done
 * to what it gives, nor where the only part's y may be x. */
static bool adds_at_once(const dr_layer *layer, int index) {
    return layer->parts > 1 && layer->part[index].after.kind == DR_NORM_NONE;
}

void dr_layer_place(const dr_layer *layer, const dr_module_call *call, bool keep, dr_arena *arena, dr_layer_memory *memory,
                    const dr_layer_scratch *scratch) {
    const size_t stream = dr_module_bytes(call, DR_VECTOR, layer->hidden);
    for (int i = 1; i < layer->parts; i++) memory->stream[i] = dr_arena_take(arena, stream);
    for (int i = 0; i < layer->parts; i++) {
        const dr_module_call of = call_of(layer, i, call, memory, scratch);
        if (!adds_at_once(layer, i)) memory->made[i] = dr_arena_take(arena, stream);
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

/* ---- forward -------------------------------------------------------------------------------------------------------- */

static dr_status run(const dr_layer *layer, int index, const dr_module_call *call, const void *x, void *y, void *made,
                     const dr_layer_scratch *scratch) {
    const dr_part *part = &layer->part[index];
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, count = rows * layer->hidden;
    const bool at_once = adds_at_once(layer, index);
    const void *in = x;
    if (part->before.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_forward(&part->before, call, rows, x, scratch->normed));
        in = scratch->normed;
    }
    DR_TRY(part->module->operations->forward(call, in, at_once ? y : made));
    if (at_once) return ops->add(call->backend, DR_VECTOR, count, 1, x, y);
    const void *out = made;
    if (part->after.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_forward(&part->after, call, rows, made, scratch->normed));
        out = scratch->normed;
    }
    if (y != x) DR_TRY(ops->copy(call->backend, y, x, dr_module_bytes(call, DR_VECTOR, layer->hidden)));
    return ops->add(call->backend, DR_VECTOR, count, 1, out, y);
}

dr_status dr_layer_forward(const dr_layer *layer, const dr_module_call *call, void *y, const dr_layer_memory *memory,
                           const dr_layer_scratch *scratch, const dr_layer_state *state) {
    for (int i = 0; i < layer->parts; i++) {
        dr_module_call of = call_of(layer, i, call, memory, scratch);
        of.state = state ? state->module[i] : NULL;
        void *to = i + 1 < layer->parts ? memory->stream[i + 1] : y;
        DR_TRY(run(layer, i, &of, memory->stream[i], to, memory->made[i], scratch));
    }
    return DR_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

static dr_status run_back(const dr_layer *layer, int index, const dr_module_call *call, void *d, const dr_layer_memory *memory,
                          const dr_layer_scratch *scratch) {
    const dr_part *part = &layer->part[index];
    const int64_t rows = call->layout.rows;
    const void *x = memory->stream[index], *in = x, *d_made = d;
    if (part->after.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_backward(&part->after, call, rows, memory->made[index], d, scratch->d_made, false));
        d_made = scratch->d_made;
    }
    if (part->before.kind != DR_NORM_NONE) {
        DR_TRY(dr_norm_forward(&part->before, call, rows, x, scratch->normed));
        in = scratch->normed;
    }
    DR_TRY(part->module->operations->backward(call, in, d_made, scratch->d_normed));
    if (part->before.kind == DR_NORM_NONE)
        return call->backend->ops->add(call->backend, DR_VECTOR, rows * layer->hidden, 1, scratch->d_normed, d);
    return dr_norm_backward(&part->before, call, rows, x, scratch->d_normed, d, true);
}

dr_status dr_layer_backward(const dr_layer *layer, const dr_module_call *call, void *d, const dr_layer_memory *memory,
                            const dr_layer_scratch *scratch) {
    for (int i = layer->parts - 1; i >= 0; i--) {
        const dr_module_call of = call_of(layer, i, call, memory, scratch);
        DR_TRY(run_back(layer, i, &of, d, memory, scratch));
    }
    return DR_OK;
}
