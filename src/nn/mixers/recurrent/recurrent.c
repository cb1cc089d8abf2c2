/* A mixer as a module: memory of its values and their gradients, and the walks over its nodes. */
#include "nn/mixers/recurrent/recurrent.h"
#include "base/error.h"
#include "nn/mixers/engine.h"

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static size_t value_bytes(const dr_module_call *call, const dr_node_value *value) {
    const int64_t rows = value->of_rows ? call->layout.rows : 1;
    return dr_kind_bytes(call->backend, value->kind, rows * value->columns);
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory_) {
    dr_recurrent_memory *memory = memory_;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    *memory = (dr_recurrent_memory){0};
    for (int i = DR_VALUE_Y + 1; i < mixer->values; i++) {
        const dr_node_value *value = &mixer->value[i];
        if (value->parameter != DR_NO_PARAMETER || value->constant || value->panel != DR_NO_VALUE) continue;
        if (keep && call->remakes_inputs && value->remade) continue;
        const bool own = value->memory == i || (keep && value->kept);
        memory->at[i] = own ? dr_arena_take(arena, value_bytes(call, value)) : memory->at[value->memory];
    }
    if (keep && !call->remakes_saved) memory->saved = dr_engine_place_saved(call, arena);
    if (keep && call->keeps) memory->y = dr_arena_take(arena, value_bytes(call, &mixer->value[mixer->output]));
}

static void place_backward(const dr_module_call *call, dr_arena *arena, dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    size_t brief = 0, low = 0;
    for (int i = DR_VALUE_Y + 1; i < mixer->values; i++) {
        const dr_node_value *value = &mixer->value[i];
        const size_t bytes = value_bytes(call, value);
        if (value->place == DR_GRADIENT_OWN) scratch->d[i] = dr_arena_take(arena, bytes);
        if (value->place == DR_GRADIENT_BRIEF && bytes > brief) brief = bytes;
        if (value->place == DR_GRADIENT_BRIEF_LOW && bytes > low) low = bytes;
    }
    scratch->d_brief = dr_arena_take(arena, brief);
    scratch->d_low = dr_arena_take(arena, low);
}

/* What stands here in place of each layer's memory. */
static void place_remade(const dr_module_call *call, dr_arena *arena, dr_recurrent_scratch *scratch) {
    const dr_recurrent *mixer = dr_recurrent_of(call);
    if (call->remakes_saved) scratch->saved = dr_engine_place_saved(call, arena);
    for (int i = 0; call->remakes_inputs && i < mixer->values; i++) {
        const dr_node_value *value = &mixer->value[i];
        if (!value->remade) continue;
        const bool own = value->memory == i || value->kept;
        scratch->at[i] = own ? dr_arena_take(arena, value_bytes(call, value)) : scratch->at[value->memory];
    }
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch_) {
    dr_recurrent_scratch *scratch = scratch_;
    const dr_recurrent *mixer = dr_recurrent_of(call);
    *scratch = (dr_recurrent_scratch){0};
    const size_t output = value_bytes(call, &mixer->value[mixer->output]);
    if (backward) place_remade(call, arena, scratch);
    scratch->y = dr_arena_take(arena, output);
    const size_t before = arena->used;
    scratch->workspace = dr_engine_place_work(call, backward, arena);
    if (!backward) return;
    scratch->d_y = scratch->workspace;
    if (arena->used < before + output) dr_arena_take(arena, before + output - arena->used);
    place_backward(call, arena, scratch);
}

/* Shapes as dr_recurrence_state_shape and the convolution's. */
static void place_state(const dr_module *module, dr_backend *backend, int64_t sequences, dr_arena *arena, void *memory) {
    const dr_recurrent *mixer = (const dr_recurrent *)module;
    const dr_layout layout = {sequences, sequences, NULL};
    const dr_recurrence recurrence = dr_recurrent_recurrence(mixer, &layout);
    dr_recurrent_state *state = memory;
    for (int i = 0; i < mixer->convs; i++) {
        const int64_t count = sequences * (mixer->is.conv_size - 1) * mixer->conv_channels[i];
        state->conv[i] = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, count));
    }
    dr_engine_place_states(&recurrence, backend, arena, state->at);
}

static dr_status plan(const dr_module *module, dr_backend *backend, const dr_layout *layout, void *plan) {
    return dr_engine_plan(backend, dr_recurrent_recurrence((const dr_recurrent *)module, layout), layout, plan);
}

dr_recurrence dr_recurrent_recurrence(const dr_recurrent *mixer, const dr_layout *layout) {
    return (dr_recurrence){.rule = &mixer->rule,
                           .forget = DR_FORGET,
                           .layout = {layout->sequences, layout->rows, NULL},
                           .key_heads = mixer->heads,
                           .value_heads = mixer->value_heads,
                           .key_size = mixer->key_size,
                           .value_size = mixer->value_size,
                           .scale = mixer->is.query_scale};
}

/* ---- walks ---------------------------------------------------------------------------------------------------------- */

static dr_node_call call_of(const dr_module_call *call) {
    return (dr_node_call){
        .call = call, .mixer = dr_recurrent_of(call), .memory = call->memory, .scratch = call->scratch, .state = call->state};
}

dr_inputs dr_recurrent_inputs(const dr_module_call *call, const dr_recurrent_memory *memory) {
    dr_node_call n = call_of(call);
    n.memory = memory;
    return dr_node_inputs(&n);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    dr_node_call n = call_of(call);
    n.x = x;
    n.y = y;
    for (int i = 0; i < n.mixer->nodes; i++) DR_TRY(n.mixer->node[i].operations->forward(&n, &n.mixer->node[i]));
    return DR_OK;
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    dr_node_call n = call_of(call);
    n.x = x;
    n.d_y = d_y;
    n.d_x = d_x;
    for (int i = 0; call->remakes_inputs && i < n.mixer->nodes; i++) {
        const dr_node *node = &n.mixer->node[i];
        if (node->to != DR_VALUE_Y && n.mixer->value[node->to].remade) DR_TRY(node->operations->forward(&n, node));
    }
    for (int i = n.mixer->nodes - 1; i >= 0; i--) {
        const dr_node *node = &n.mixer->node[i];
        if (node->operations->backward) DR_TRY(node->operations->backward(&n, node));
    }
    return DR_OK;
}

static dr_status chunk(const dr_module *module, dr_backend *backend, int64_t *tokens) {
    const dr_layout layout = {1, 1, NULL};
    return dr_engine_chunk(backend, dr_recurrent_recurrence((const dr_recurrent *)module, &layout), tokens);
}

static void destroy(dr_backend *backend, dr_module *module) {
    dr_recurrent *mixer = (dr_recurrent *)module;
    if (mixer->constant_decay) backend->ops->free(backend, mixer->constant_decay);
    if (mixer->ridge_floor) backend->ops->free(backend, mixer->ridge_floor);
    dr_release(mixer->frequencies);
    dr_release(mixer);
}

/* A layer may need any of these, whatever its rule. */
static const dr_operation needs[] = {
    DR_OPERATION_LINEAR, DR_OPERATION_GROUPED_LINEAR, DR_OPERATION_RMS_NORM,    DR_OPERATION_L2_NORM, DR_OPERATION_CONV,
    DR_OPERATION_GATE,   DR_OPERATION_ROTARY,         DR_OPERATION_SCALE_HEADS, DR_OPERATION_ADD,     DR_OPERATIONS};

static bool sums(const dr_module *module) {
    (void)module;
    return true;
}

const dr_module_operations dr_recurrent_operations = {.name = "recurrent",
                                                      .needs = needs,
                                                      .plan_size = sizeof(dr_plan),
                                                      .memory_size = sizeof(dr_recurrent_memory),
                                                      .scratch_size = sizeof(dr_recurrent_scratch),
                                                      .state_size = sizeof(dr_recurrent_state),
                                                      .plan = plan,
                                                      .place = place,
                                                      .place_scratch = place_scratch,
                                                      .place_state = place_state,
                                                      .chunk = chunk,
                                                      .sums = sums,
                                                      .forward = forward,
                                                      .backward = backward,
                                                      .destroy = destroy};
