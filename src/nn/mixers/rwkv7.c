/* The time mix of RWKV-7. The recurrence reads kk as its feedback key and a as its rate; the engines do the rest. A key's
 * length is sqrt(sum + eps); where the published class divides by max(length, eps) instead, it is sqrt(sum + eps^2), which
 * differs for keys about as short as eps = 1e-12 alone. */
#include "nn/mixers/rwkv7.h"
#include "base/error.h"
#include "nn/mixers/engine.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef enum { MIX_R, MIX_W, MIX_K, MIX_V, MIX_A, MIX_G, MIXES } mix; /* in the order of x_mix */

#define LEAST_LOG_DECAY -0.60653065971263342360 /* -e^(-1/2) */

/* A projection through a low rank; rank 0: there is none. */
typedef struct {
    int64_t rank, size;
    dr_function function;
    int down, up, bias; /* list */
} lora;

typedef struct {
    dr_module module;
    dr_rwkv7_description of;
    dr_rule rule;
    int64_t keys, values;      /* heads key_size, heads value_size */
    lora lora[MIXES];          /* of w, v, a, g */
    int x_mix, project[MIXES]; /* of r, k, v */
    int k_k, k_a, r_k, norm, norm_bias, out;
} rwkv7;

/* [rows, keys] or, of v, g and o, [rows, values], but for: */
typedef struct {
    void *mixed;                      /* [MIXES, rows, hidden] */
    void *project[MIXES];             /* r, k, v */
    void *down[MIXES], *inner[MIXES]; /* [rows, rank] before and after the function */
    void *up[MIXES];
    void *log_decay, *rate;
    void *share, *value;      /* of v_first (a number); what the recurrence reads */
    void *long_key, *unit;    /* k k_k, and that of length 1 */
    void *damped, *key;       /* a k; what the recurrence reads */
    void *o, *normed, *saved; /* normed: with the bonus */
} rwkv7_memory;

typedef struct {
    void *y, *workspace; /* [rows, values]; the engine's */
    /* of the backward alone */
    void *d_mixed;                                     /* [MIXES, rows, hidden] */
    void *d_y, *d_o, *d_gate, *d_value, *d_share;      /* [rows, values] */
    void *d_r, *d_key, *d_unit, *d_rate, *d_log_decay; /* [rows, keys] */
    void *d_raw, *d_more;                              /* [rows, keys or values, whichever is more] */
    void *d_inner;                                     /* [rows, highest rank] */
} rwkv7_scratch;

typedef struct {
    void *shift; /* [sequences, hidden], the last x */
    void *at[DR_STATES];
} rwkv7_state;

static const rwkv7 *of(const dr_module_call *call) {
    return (const rwkv7 *)call->module;
}

static dr_recurrence recurrence_of(const rwkv7 *mixer, const dr_layout *layout) {
    return (dr_recurrence){.rule = &mixer->rule,
                           .forget = DR_FORGET,
                           .layout = {layout->sequences, layout->rows, NULL},
                           .key_heads = mixer->of.heads,
                           .value_heads = mixer->of.heads,
                           .key_size = mixer->of.key_size,
                           .value_size = mixer->of.value_size,
                           .scale = 1};
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static dr_status plan(const dr_module *module, dr_backend *backend, const dr_layout *layout, void *plan) {
    return dr_engine_plan(backend, recurrence_of((const rwkv7 *)module, layout), layout, plan);
}

static void *vectors(const dr_module_call *call, dr_arena *arena, int64_t columns) {
    return dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, columns));
}

static int64_t size_of(const rwkv7 *mixer, int m) {
    return m == MIX_V || m == MIX_G ? mixer->values : mixer->keys;
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    const rwkv7 *mixer = of(call);
    rwkv7_memory *made = memory;
    *made = (rwkv7_memory){.mixed = vectors(call, arena, MIXES * mixer->module.hidden)};
    for (int m = 0; m < MIXES; m++) {
        if (mixer->project[m] != DR_NO_PARAMETER) made->project[m] = vectors(call, arena, size_of(mixer, m));
        if (mixer->lora[m].rank == 0) continue;
        made->down[m] = vectors(call, arena, mixer->lora[m].rank);
        made->inner[m] =
            mixer->lora[m].function == DR_FUNCTION_IDENTITY ? made->down[m] : vectors(call, arena, mixer->lora[m].rank);
        made->up[m] = vectors(call, arena, mixer->lora[m].size);
    }
    made->log_decay = dr_arena_take(arena, dr_module_bytes(call, dr_input_kind(DR_INPUT_LOG_DECAY), mixer->keys));
    made->rate = vectors(call, arena, mixer->keys);
    made->value = made->project[MIX_V];
    if (!mixer->of.first) {
        made->share = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->values));
        made->value = vectors(call, arena, mixer->values);
    }
    made->long_key = vectors(call, arena, mixer->keys);
    made->unit = vectors(call, arena, mixer->keys);
    made->damped = vectors(call, arena, mixer->keys);
    made->key = vectors(call, arena, mixer->keys);
    made->o = vectors(call, arena, mixer->values);
    made->normed = vectors(call, arena, mixer->values);
    if (keep) made->saved = dr_engine_place_saved(call, arena);
}

static void place_backward(const dr_module_call *call, dr_arena *arena, rwkv7_scratch *use) {
    const rwkv7 *mixer = of(call);
    const int64_t wider = mixer->keys > mixer->values ? mixer->keys : mixer->values;
    int64_t rank = 1;
    for (int m = 0; m < MIXES; m++) rank = mixer->lora[m].rank > rank ? mixer->lora[m].rank : rank;
    use->d_mixed = vectors(call, arena, MIXES * mixer->module.hidden);
    use->d_y = vectors(call, arena, mixer->values);
    use->d_o = vectors(call, arena, mixer->values);
    use->d_gate = vectors(call, arena, mixer->values);
    use->d_value = vectors(call, arena, mixer->values);
    if (!mixer->of.first) use->d_share = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->values));
    use->d_r = vectors(call, arena, mixer->keys);
    use->d_key = vectors(call, arena, mixer->keys);
    use->d_unit = vectors(call, arena, mixer->keys);
    use->d_rate = vectors(call, arena, mixer->keys);
    use->d_log_decay = dr_arena_take(arena, dr_module_bytes(call, dr_input_kind(DR_INPUT_LOG_DECAY), mixer->keys));
    use->d_raw = vectors(call, arena, wider);
    use->d_more = vectors(call, arena, wider);
    use->d_inner = vectors(call, arena, rank);
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    rwkv7_scratch *use = scratch;
    *use = (rwkv7_scratch){.y = vectors(call, arena, of(call)->values)};
    use->workspace = dr_engine_place_work(call, backward, arena);
    if (backward) place_backward(call, arena, use);
}

static void place_state(const dr_module *module, dr_backend *backend, int64_t sequences, dr_arena *arena, void *memory) {
    const rwkv7 *mixer = (const rwkv7 *)module;
    const dr_layout layout = {sequences, sequences, NULL};
    const dr_recurrence recurrence = recurrence_of(mixer, &layout);
    rwkv7_state *state = memory;
    state->shift = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, sequences * module->hidden));
    dr_engine_place_states(&recurrence, backend, arena, state->at);
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

static void *mixed_at(const dr_module_call *call, void *mixed, int m) {
    return (char *)mixed + (size_t)m * dr_module_bytes(call, DR_VECTOR, of(call)->module.hidden);
}

static dr_token_shift shift_of(const dr_module_call *call) {
    return (dr_token_shift){call->layout, of(call)->module.hidden, MIXES};
}

/* Sigmoid of what stands behind the low rank of m, times the multiplier. */
static dr_gate gate_of(const dr_module_call *call, int m, double multiplier, dr_kind to) {
    return (dr_gate){.kind = DR_GATE_SIGMOID,
                     .rows = call->layout.rows,
                     .heads = 1,
                     .dim = of(call)->lora[m].size,
                     .multiplier = multiplier,
                     .to = to};
}

static dr_gate decay_gate(const dr_module_call *call) {
    return gate_of(call, MIX_W, LEAST_LOG_DECAY, dr_input_kind(DR_INPUT_LOG_DECAY));
}

static dr_l2_norm unit_of(const dr_module_call *call) {
    const dr_rwkv7_description *d = &of(call)->of;
    return (dr_l2_norm){call->layout.rows * d->heads, d->key_size, d->unit_clamped ? d->unit_eps * d->unit_eps : d->unit_eps};
}

static dr_status project(const dr_module_call *call, int m, const rwkv7_memory *made) {
    const rwkv7 *mixer = of(call);
    const lora *low = &mixer->lora[m];
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mixer->module.hidden;
    const void *x = mixed_at(call, made->mixed, m);
    if (mixer->project[m] != DR_NO_PARAMETER) {
        const dr_linear linear = {.rows = rows, .in = hidden, .out = size_of(mixer, m)};
        DR_TRY(
            ops->linear_forward(call->backend, &linear, x, dr_module_weight(call, mixer->project[m]), NULL, made->project[m]));
    }
    if (low->rank == 0) return DR_OK;
    const dr_linear down = {.rows = rows, .in = hidden, .out = low->rank},
                    up = {.rows = rows, .in = low->rank, .out = low->size};
    DR_TRY(ops->linear_forward(call->backend, &down, x, dr_module_weight(call, low->down), NULL, made->down[m]));
    if (low->function != DR_FUNCTION_IDENTITY)
        DR_TRY(ops->apply_forward(call->backend, low->function, rows * low->rank, made->down[m], made->inner[m]));
    return ops->linear_forward(call->backend, &up, made->inner[m], dr_module_weight(call, low->up),
                               dr_module_parameter(call, low->bias), made->up[m]);
}

/* The value: handed on by the first layer, mixed with that by the others. */
static dr_status make_value(const dr_module_call *call, const rwkv7_memory *made) {
    const rwkv7 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    if (mixer->of.first) {
        if (!call->passed) return DR_OK;
        return ops->copy(call->backend, call->passed, made->value, dr_module_bytes(call, DR_VECTOR, mixer->values));
    }
    const dr_gate share = gate_of(call, MIX_V, 1, DR_NUMBER);
    DR_TRY(ops->gate_forward(call->backend, &share, made->up[MIX_V], NULL, NULL, made->share));
    return ops->blend_forward(call->backend, call->layout.rows, mixer->values, false, made->project[MIX_V], call->passed,
                              made->share, made->value);
}

static dr_status make_keys(const dr_module_call *call, const rwkv7_memory *made) {
    const rwkv7 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, keys = mixer->keys;
    const void *k = made->project[MIX_K];
    const dr_gate rate = gate_of(call, MIX_A, 1, DR_VECTOR);
    const dr_l2_norm unit = unit_of(call);
    DR_TRY(ops->gate_forward(call->backend, &rate, made->up[MIX_A], NULL, NULL, made->rate));
    DR_TRY(ops->scale_heads_forward(call->backend, rows, keys, 1, true, dr_module_parameter(call, mixer->k_k), k,
                                    made->long_key, false));
    DR_TRY(ops->l2_norm_forward(call->backend, &unit, made->long_key, made->unit));
    DR_TRY(ops->gated_forward(call->backend, DR_FUNCTION_IDENTITY, rows * keys, k, made->rate, made->damped));
    return ops->blend_forward(call->backend, rows, keys, true, k, made->damped, dr_module_parameter(call, mixer->k_a),
                              made->key);
}

static dr_inputs inputs_of(const rwkv7_memory *made) {
    dr_inputs inputs = {{NULL}};
    inputs.at[DR_INPUT_QUERY] = made->project[MIX_R];
    inputs.at[DR_INPUT_KEY] = made->key;
    inputs.at[DR_INPUT_VALUE] = made->value;
    inputs.at[DR_INPUT_LOG_DECAY] = made->log_decay;
    inputs.at[DR_INPUT_FEEDBACK_KEY] = made->unit;
    inputs.at[DR_INPUT_RATE] = made->rate;
    return inputs;
}

static dr_status recur(const dr_module_call *call, const rwkv7_memory *made, const rwkv7_scratch *use) {
    const rwkv7_state *state = call->state;
    const dr_inputs inputs = inputs_of(made);
    return dr_engine_forward(call, &inputs, made->saved, use->workspace, state ? state->at : NULL, made->o);
}

static dr_layer_norm norm_of(const dr_module_call *call) {
    const dr_rwkv7_description *d = &of(call)->of;
    return (dr_layer_norm){call->layout.rows, d->heads, d->value_size, d->norm_eps};
}

static dr_bonus bonus_of(const dr_module_call *call) {
    const dr_rwkv7_description *d = &of(call)->of;
    return (dr_bonus){call->layout.rows, d->heads, d->key_size, d->value_size};
}

static dr_status gate_output(const dr_module_call *call, const rwkv7_memory *made, const rwkv7_scratch *use) {
    return call->backend->ops->gated_forward(call->backend, DR_FUNCTION_IDENTITY, call->layout.rows * of(call)->values,
                                             made->normed, made->up[MIX_G], use->y);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const rwkv7 *mixer = of(call);
    const rwkv7_memory *made = call->memory;
    const rwkv7_scratch *use = call->scratch;
    const rwkv7_state *state = call->state;
    const dr_operations *ops = call->backend->ops;
    const dr_token_shift shift = shift_of(call);
    const dr_gate decay = decay_gate(call);
    const dr_layer_norm norm = norm_of(call);
    const dr_bonus bonus = bonus_of(call);
    const dr_linear out = {.rows = call->layout.rows, .in = mixer->values, .out = mixer->module.hidden};
    void *carried = state ? state->shift : NULL;
    DR_TRY(ops->token_shift_forward(call->backend, &shift, x, dr_module_parameter(call, mixer->x_mix), carried, made->mixed,
                                    carried));
    for (int m = 0; m < MIXES; m++) DR_TRY(project(call, m, made));
    DR_TRY(ops->gate_forward(call->backend, &decay, made->up[MIX_W], NULL, NULL, made->log_decay));
    DR_TRY(make_value(call, made));
    DR_TRY(make_keys(call, made));
    DR_TRY(recur(call, made, use));
    DR_TRY(ops->layer_norm_forward(call->backend, &norm, made->o, dr_module_parameter(call, mixer->norm),
                                   dr_module_parameter(call, mixer->norm_bias), made->normed));
    DR_TRY(ops->bonus_forward(call->backend, &bonus, made->project[MIX_R], made->key, dr_module_parameter(call, mixer->r_k),
                              made->value, made->normed));
    DR_TRY(gate_output(call, made, use));
    return ops->linear_forward(call->backend, &out, use->y, dr_module_weight(call, mixer->out), NULL, y);
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

/* The gradients of the gate, and of all that the recurrence and the bonus read. */
static dr_status output_backward(const dr_module_call *call, const rwkv7_memory *made, const rwkv7_scratch *use,
                                 const void *d_y) {
    const rwkv7 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows;
    const dr_linear out = {.rows = rows, .in = mixer->values, .out = mixer->module.hidden};
    const dr_layer_norm norm = norm_of(call);
    const dr_bonus bonus = bonus_of(call);
    const dr_inputs inputs = inputs_of(made);
    dr_input_gradients gradients = {{NULL}};
    DR_TRY(gate_output(call, made, use));
    DR_TRY(ops->linear_backward(call->backend, &out, use->y, dr_module_weight(call, mixer->out), d_y, use->d_y, false,
                                dr_module_gradient(call, mixer->out), NULL));
    DR_TRY(ops->gated_backward(call->backend, DR_FUNCTION_IDENTITY, rows * mixer->values, made->normed, made->up[MIX_G],
                               use->d_y, use->d_y, use->d_gate));
    DR_TRY(ops->layer_norm_backward(call->backend, &norm, made->o, dr_module_parameter(call, mixer->norm), use->d_y, use->d_o,
                                    false, dr_module_gradient(call, mixer->norm), dr_module_gradient(call, mixer->norm_bias)));
    gradients.at[DR_INPUT_QUERY] = use->d_r;
    gradients.at[DR_INPUT_KEY] = use->d_key;
    gradients.at[DR_INPUT_VALUE] = use->d_value;
    gradients.at[DR_INPUT_LOG_DECAY] = use->d_log_decay;
    gradients.at[DR_INPUT_FEEDBACK_KEY] = use->d_unit;
    gradients.at[DR_INPUT_RATE] = use->d_rate;
    DR_TRY(dr_engine_backward(call, &inputs, made->saved, use->workspace, use->d_o, &gradients));
    return ops->bonus_backward(call->backend, &bonus, made->project[MIX_R], made->key, dr_module_parameter(call, mixer->r_k),
                               made->value, use->d_y, use->d_r, use->d_key, dr_module_gradient(call, mixer->r_k), use->d_value);
}

/* d_raw [rows, keys], the gradient of the projected key, and the keys' part of that of the rate */
static dr_status keys_backward(const dr_module_call *call, const rwkv7_memory *made, const rwkv7_scratch *use) {
    const rwkv7 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, keys = mixer->keys, count = rows * keys;
    const void *k = made->project[MIX_K];
    const dr_l2_norm unit = unit_of(call);
    DR_TRY(ops->blend_backward(call->backend, rows, keys, true, k, made->damped, dr_module_parameter(call, mixer->k_a),
                               use->d_key, use->d_raw, use->d_more, false, dr_module_gradient(call, mixer->k_a)));
    /* d_key is free from here on: the rate's part */
    DR_TRY(
        ops->gated_backward(call->backend, DR_FUNCTION_IDENTITY, count, k, made->rate, use->d_more, use->d_more, use->d_key));
    DR_TRY(ops->add(call->backend, DR_VECTOR, count, 1, use->d_more, use->d_raw));
    DR_TRY(ops->add(call->backend, DR_VECTOR, count, 1, use->d_key, use->d_rate));
    DR_TRY(ops->l2_norm_backward(call->backend, &unit, made->long_key, use->d_unit, use->d_unit));
    return ops->scale_heads_backward(call->backend, rows, keys, 1, true, dr_module_parameter(call, mixer->k_k), k, use->d_unit,
                                     dr_module_gradient(call, mixer->k_k), use->d_raw, true);
}

/* d_raw [rows, values], the gradient of the projected value, and that of what the first layer passed on */
static dr_status value_backward(const dr_module_call *call, const rwkv7_memory *made, const rwkv7_scratch *use) {
    const rwkv7 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows;
    if (!mixer->of.first)
        return ops->blend_backward(call->backend, rows, mixer->values, false, made->project[MIX_V], call->passed, made->share,
                                   use->d_value, use->d_raw, call->d_passed, true, use->d_share);
    DR_TRY(ops->copy(call->backend, use->d_raw, use->d_value, dr_module_bytes(call, DR_VECTOR, mixer->values)));
    if (!call->d_passed) return DR_OK;
    return ops->add(call->backend, DR_VECTOR, rows * mixer->values, 1, call->d_passed, use->d_raw);
}

/* d_mixed of m (added to if accumulate) from the gradient of what its low rank gives */
static dr_status lora_backward(const dr_module_call *call, int m, const rwkv7_memory *made, const rwkv7_scratch *use,
                               const void *d_up, bool accumulate) {
    const rwkv7 *mixer = of(call);
    const lora *low = &mixer->lora[m];
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows;
    const dr_linear down = {.rows = rows, .in = mixer->module.hidden, .out = low->rank},
                    up = {.rows = rows, .in = low->rank, .out = low->size};
    DR_TRY(ops->linear_backward(call->backend, &up, made->inner[m], dr_module_weight(call, low->up), d_up, use->d_inner, false,
                                dr_module_gradient(call, low->up), dr_module_gradient(call, low->bias)));
    if (low->function != DR_FUNCTION_IDENTITY)
        DR_TRY(ops->apply_backward(call->backend, low->function, rows * low->rank, made->down[m], use->d_inner, use->d_inner));
    return ops->linear_backward(call->backend, &down, mixed_at(call, made->mixed, m), dr_module_weight(call, low->down),
                                use->d_inner, mixed_at(call, use->d_mixed, m), accumulate, dr_module_gradient(call, low->down),
                                NULL);
}

static dr_status gated_lora_backward(const dr_module_call *call, int m, const dr_gate *gate, const rwkv7_memory *made,
                                     const rwkv7_scratch *use, const void *d_gated, bool accumulate) {
    DR_TRY(call->backend->ops->gate_backward(call->backend, gate, made->up[m], NULL, NULL, d_gated, use->d_more, false, NULL,
                                             NULL));
    return lora_backward(call, m, made, use, use->d_more, accumulate);
}

static dr_status project_backward(const dr_module_call *call, int m, const rwkv7_memory *made, const rwkv7_scratch *use,
                                  const void *d) {
    const rwkv7 *mixer = of(call);
    const dr_linear linear = {.rows = call->layout.rows, .in = mixer->module.hidden, .out = size_of(mixer, m)};
    return call->backend->ops->linear_backward(call->backend, &linear, mixed_at(call, made->mixed, m),
                                               dr_module_weight(call, mixer->project[m]), d, mixed_at(call, use->d_mixed, m),
                                               false, dr_module_gradient(call, mixer->project[m]), NULL);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const rwkv7_memory *made = call->memory;
    const rwkv7_scratch *use = call->scratch;
    const dr_token_shift shift = shift_of(call);
    const dr_gate decay = decay_gate(call), rate = gate_of(call, MIX_A, 1, DR_VECTOR),
                  share = gate_of(call, MIX_V, 1, DR_NUMBER);
    DR_TRY(output_backward(call, made, use, d_y));
    DR_TRY(project_backward(call, MIX_R, made, use, use->d_r));
    DR_TRY(keys_backward(call, made, use));
    DR_TRY(project_backward(call, MIX_K, made, use, use->d_raw));
    DR_TRY(value_backward(call, made, use));
    DR_TRY(project_backward(call, MIX_V, made, use, use->d_raw));
    if (!of(call)->of.first) DR_TRY(gated_lora_backward(call, MIX_V, &share, made, use, use->d_share, true));
    DR_TRY(gated_lora_backward(call, MIX_W, &decay, made, use, use->d_log_decay, false));
    DR_TRY(gated_lora_backward(call, MIX_A, &rate, made, use, use->d_rate, false));
    DR_TRY(lora_backward(call, MIX_G, made, use, use->d_gate, false));
    return call->backend->ops->token_shift_backward(call->backend, &shift, x, dr_module_parameter(call, of(call)->x_mix), NULL,
                                                    use->d_mixed, d_x, false, dr_module_gradient(call, of(call)->x_mix));
}

static int64_t passed(const dr_module *module, bool *writes) {
    *writes = ((const rwkv7 *)module)->of.first;
    return ((const rwkv7 *)module)->values;
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

static dr_status chunk(const dr_module *module, dr_backend *backend, int64_t *tokens) {
    const dr_layout layout = {1, 1, NULL};
    return dr_engine_chunk(backend, recurrence_of((const rwkv7 *)module, &layout), tokens);
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_release(module);
}

static const dr_operation needs[] = {
    DR_OPERATION_LINEAR,     DR_OPERATION_TOKEN_SHIFT, DR_OPERATION_BLEND, DR_OPERATION_BONUS,
    DR_OPERATION_APPLY,      DR_OPERATION_GATE,        DR_OPERATION_ADD,   DR_OPERATION_L2_NORM,
    DR_OPERATION_LAYER_NORM, DR_OPERATION_SCALE_HEADS, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "rwkv7_time_mix",
                                                .needs = needs,
                                                .plan_size = sizeof(dr_plan),
                                                .memory_size = sizeof(rwkv7_memory),
                                                .scratch_size = sizeof(rwkv7_scratch),
                                                .state_size = sizeof(rwkv7_state),
                                                .plan = plan,
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .place_state = place_state,
                                                .chunk = chunk,
                                                .passed = passed,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

static dr_status check(const dr_rwkv7_description *d) {
    enum { MOST = 1 << 30 };
    const int64_t sizes[] = {d->heads, d->key_size, d->value_size, d->decay_rank, d->rate_rank, d->gate_rank, d->value_rank};
    static const char *const names[] = {
        "heads", "key size", "value size", "rank of the decay", "rank of the rate", "rank of the gate", "rank of the value"};
    for (int i = 0; i < 7 - d->first; i++) /* the first layer reads no rank of the value */
        if (sizes[i] < 1 || sizes[i] > MOST)
            return dr_fail(DR_ERROR_ARGUMENT, "the %s of an rwkv7 mixer: %" PRId64 "; it must be from 1 to %d", names[i],
                           sizes[i], MOST);
    return DR_OK;
}

static dr_status add_lora(rwkv7 *mixer, int m, const char *name, double bias, const char *prefix, dr_layer_parameters *list) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, first = {DR_INITIAL_CONSTANT, bias};
    lora *low = &mixer->lora[m];
    char full[40];
    if (low->rank == 0) return DR_OK;
    snprintf(full, sizeof full, "%s_lora.0.weight", name);
    DR_TRY(dr_add_matrix(list, prefix, full, normal, low->rank, mixer->module.hidden, 0, &low->down));
    snprintf(full, sizeof full, "%s_lora.1.weight", name);
    DR_TRY(dr_add_matrix(list, prefix, full, normal, low->size, low->rank, 0, &low->up));
    snprintf(full, sizeof full, "%s_lora.1.bias", name);
    return m == MIX_G ? DR_OK : dr_add_vector(list, prefix, full, first, low->size, 0, &low->bias);
}

static dr_status add_parameters(rwkv7 *mixer, const char *prefix, dr_layer_parameters *list) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0}, one = {DR_INITIAL_CONSTANT, 1},
                     half = {DR_INITIAL_CONSTANT, 0.5}, short_of_one = {DR_INITIAL_CONSTANT, 0.85};
    const int64_t hidden = mixer->module.hidden, keys = mixer->keys, values = mixer->values;
    DR_TRY(dr_add_vector(list, prefix, "x_mix", half, MIXES, hidden, &mixer->x_mix));
    DR_TRY(dr_add_matrix(list, prefix, "r_proj.weight", normal, keys, hidden, 0, &mixer->project[MIX_R]));
    DR_TRY(dr_add_matrix(list, prefix, "k_proj.weight", normal, keys, hidden, 0, &mixer->project[MIX_K]));
    DR_TRY(dr_add_matrix(list, prefix, "v_proj.weight", normal, values, hidden, 0, &mixer->project[MIX_V]));
    DR_TRY(add_lora(mixer, MIX_W, "w", -2, prefix, list)); /* a memory of some tens of tokens */
    DR_TRY(add_lora(mixer, MIX_A, "a", 0, prefix, list));
    DR_TRY(add_lora(mixer, MIX_V, "v", 0, prefix, list));
    DR_TRY(add_lora(mixer, MIX_G, "g", 0, prefix, list));
    DR_TRY(dr_add_vector(list, prefix, "k_k", short_of_one, keys, 0, &mixer->k_k));
    DR_TRY(dr_add_vector(list, prefix, "k_a", one, keys, 0, &mixer->k_a));
    DR_TRY(dr_add_vector(list, prefix, "r_k", zero, mixer->of.heads, mixer->of.key_size, &mixer->r_k));
    DR_TRY(dr_add_vector(list, prefix, "g_norm.weight", one, values, 0, &mixer->norm));
    DR_TRY(dr_add_vector(list, prefix, "g_norm.bias", zero, values, 0, &mixer->norm_bias));
    return dr_add_matrix(list, prefix, "o_proj.weight", normal, hidden, values, 0, &mixer->out);
}

/* S = diag(e^g) S - (a kk)(S^T kk)^T + k v^T, kk reading the state before it decays */
static dr_rule rate_rule(void) {
    dr_rule rule = dr_rule_blank();
    rule.decay = DR_DECAY_CHANNEL;
    rule.rows = 2;
    rule.row[0] = (dr_row){DR_READ_FEEDBACK, true, DR_WRITE_RATE_READ, DR_GAIN_ONE, DR_VALUE_NONE};
    rule.row[1] = (dr_row){DR_READ_NONE, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_V};
    return rule;
}

dr_status dr_rwkv7_create(dr_backend *backend, int64_t hidden, const dr_rwkv7_description *description, const char *prefix,
                          dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    DR_TRY(check(description));
    DR_TRY(dr_allocate_zero(sizeof(rwkv7), "a mixer", &memory));
    rwkv7 *mixer = memory;
    const int64_t keys = description->heads * description->key_size, values = description->heads * description->value_size;
    *mixer = (rwkv7){.module = {&operations, hidden},
                     .of = *description,
                     .rule = rate_rule(),
                     .keys = keys,
                     .values = values,
                     .k_k = DR_NO_PARAMETER,
                     .k_a = DR_NO_PARAMETER,
                     .r_k = DR_NO_PARAMETER,
                     .norm = DR_NO_PARAMETER,
                     .norm_bias = DR_NO_PARAMETER,
                     .out = DR_NO_PARAMETER};
    for (int m = 0; m < MIXES; m++) {
        mixer->project[m] = DR_NO_PARAMETER;
        mixer->lora[m] = (lora){0, size_of(mixer, m), DR_FUNCTION_IDENTITY, DR_NO_PARAMETER, DR_NO_PARAMETER, DR_NO_PARAMETER};
    }
    mixer->lora[MIX_W].rank = description->decay_rank;
    mixer->lora[MIX_W].function = DR_FUNCTION_TANH;
    mixer->lora[MIX_A].rank = description->rate_rank;
    mixer->lora[MIX_V].rank = description->first ? 0 : description->value_rank;
    mixer->lora[MIX_G].rank = description->gate_rank;
    mixer->lora[MIX_G].function = DR_FUNCTION_SIGMOID;
    const dr_status status = add_parameters(mixer, prefix, list);
    if (status == DR_OK)
        *module = &mixer->module;
    else
        destroy(backend, &mixer->module);
    return status;
}
