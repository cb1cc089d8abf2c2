/* Projections and norms around attention (nn/mixers/attend.h). The factor of the keys is one of the scores, wherever queries
 * and keys are turned, so it is multiplied into their scale. */
#include "nn/mixers/attention.h"
#include "base/error.h"
#include "nn/mixers/attend.h"
#include "nn/norm.h"

#include <stdio.h>

/* A projection of x to heads of so many channels, and the norm behind it. */
typedef struct {
    int64_t heads, size;
    int weight, bias; /* list */
    dr_norm norm;     /* of vectors of norm.dim channels; DR_NORM_NONE: none */
} branch;

typedef struct {
    dr_module module;
    dr_attend attend;
    branch q, k, v;
} softmax_attention;

typedef struct {
    dr_attend_memory attend;
    void *q, *k; /* before the norm, where there is one */
} memory_of_call;

typedef struct {
    dr_attend_scratch attend;
    void *d_raw; /* of q or k before the norm */
} scratch_of_call;

static const softmax_attention *of(const dr_module_call *call) {
    return (const softmax_attention *)call->module;
}

static int64_t columns(const branch *b) {
    return b->heads * b->size;
}

static bool normed(const branch *b) {
    return b->norm.kind != DR_NORM_NONE;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *place) {
    const softmax_attention *mixer = of(call);
    memory_of_call *memory = place;
    dr_attend_place(&mixer->attend, call, keep, arena, &memory->attend);
    memory->q = normed(&mixer->q) ? dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, columns(&mixer->q))) : NULL;
    memory->k = normed(&mixer->k) ? dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, columns(&mixer->k))) : NULL;
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *place) {
    const softmax_attention *mixer = of(call);
    scratch_of_call *scratch = place;
    int64_t widest = normed(&mixer->k) ? columns(&mixer->k) : 0;
    if (normed(&mixer->q) && columns(&mixer->q) > widest) widest = columns(&mixer->q);
    dr_attend_place_scratch(&mixer->attend, call, backward, arena, &scratch->attend);
    scratch->d_raw = backward && widest > 0 ? dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, widest)) : NULL;
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

static dr_status project(const dr_module_call *call, const branch *b, const void *x, void *raw, void *y) {
    const int64_t rows = call->layout.rows;
    const dr_linear linear = {.rows = rows, .in = of(call)->module.hidden, .out = columns(b)};
    DR_TRY(call->backend->ops->linear_forward(call->backend, &linear, x, dr_module_weight(call, b->weight),
                                              dr_module_parameter(call, b->bias), normed(b) ? raw : y));
    return normed(b) ? dr_norm_forward(&b->norm, call, rows * columns(b) / b->norm.dim, raw, y) : DR_OK;
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const softmax_attention *mixer = of(call);
    const memory_of_call *memory = call->memory;
    const scratch_of_call *scratch = call->scratch;
    const dr_attend *attend = &mixer->attend;
    DR_TRY(project(call, &mixer->q, x, memory->q, memory->attend.q));
    DR_TRY(project(call, &mixer->k, x, memory->k, memory->attend.k));
    DR_TRY(project(call, &mixer->v, x, NULL, memory->attend.v));
    DR_TRY(dr_attend_turn(attend, call, mixer->q.heads, mixer->q.size, 0, memory->attend.q, false));
    DR_TRY(dr_attend_turn(attend, call, mixer->k.heads, mixer->k.size, 0, memory->attend.k, false));
    return dr_attend_forward(attend, call, x, &memory->attend, &scratch->attend, y);
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

static dr_status project_back(const dr_module_call *call, const branch *b, const void *x, const void *raw, const void *d_y,
                              void *d_raw, void *d_x, bool accumulate) {
    const int64_t rows = call->layout.rows;
    const dr_linear linear = {.rows = rows, .in = of(call)->module.hidden, .out = columns(b)};
    if (normed(b)) DR_TRY(dr_norm_backward(&b->norm, call, rows * columns(b) / b->norm.dim, raw, d_y, d_raw, false));
    return call->backend->ops->linear_backward(call->backend, &linear, x, dr_module_weight(call, b->weight),
                                               normed(b) ? d_raw : d_y, d_x, accumulate, dr_module_gradient(call, b->weight),
                                               dr_module_gradient(call, b->bias));
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const softmax_attention *mixer = of(call);
    const memory_of_call *memory = call->memory;
    const scratch_of_call *scratch = call->scratch;
    const dr_attend *attend = &mixer->attend;
    const dr_attend_scratch *d = &scratch->attend;
    bool accumulate;
    DR_TRY(dr_attend_backward(attend, call, x, d_y, &memory->attend, d, d_x, &accumulate));
    DR_TRY(dr_attend_turn(attend, call, mixer->q.heads, mixer->q.size, 0, d->d_q, true));
    DR_TRY(dr_attend_turn(attend, call, mixer->k.heads, mixer->k.size, 0, d->d_k, true));
    DR_TRY(project_back(call, &mixer->q, x, memory->q, d->d_q, scratch->d_raw, d_x, accumulate));
    DR_TRY(project_back(call, &mixer->k, x, memory->k, d->d_k, scratch->d_raw, d_x, true));
    return project_back(call, &mixer->v, x, NULL, d->d_v, NULL, d_x, true);
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static dr_status reserve_state(const dr_module *module, dr_backend *backend, int64_t sequences, int64_t tokens, void *state) {
    return dr_attend_reserve(&((const softmax_attention *)module)->attend.attention, backend, sequences, tokens, state);
}

static void release_state(const dr_module *module, dr_backend *backend, void *state) {
    (void)module;
    dr_attend_release_state(backend, state);
}

static int64_t grown(const dr_module *module, const void *state, dr_grown *tensors) {
    return dr_attend_grown(&((const softmax_attention *)module)->attend.attention, state, tensors);
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_attend_release(&((softmax_attention *)module)->attend);
    dr_release(module);
}

static const dr_operation needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_RMS_NORM,    DR_OPERATION_ROTARY,    DR_OPERATION_GATE,
                                     DR_OPERATION_APPLY,  DR_OPERATION_SCALE_HEADS, DR_OPERATION_ATTENTION, DR_OPERATIONS};

static bool sums(const dr_module *module) {
    (void)module;
    return true;
}

static const dr_module_operations operations = {.name = "attention",
                                                .needs = needs,
                                                .memory_size = sizeof(memory_of_call),
                                                .scratch_size = sizeof(scratch_of_call),
                                                .state_size = sizeof(dr_attend_state),
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .reserve_state = reserve_state,
                                                .release_state = release_state,
                                                .grown = grown,
                                                .sums = sums,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

/* name: "q"; description NULL: no norm */
static dr_status add_branch(int64_t hidden, const char *prefix, const char *name, bool biased, const dr_norm_description *norm,
                            bool whole, dr_layer_parameters *list, branch *b) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0};
    char part[sizeof((dr_layer_parameter){0}.name)];
    snprintf(part, sizeof part, "%s%s_proj.", prefix, name);
    b->bias = DR_NO_PARAMETER;
    DR_TRY(dr_add_matrix(list, part, "weight", normal, columns(b), hidden, 0, &b->weight));
    if (biased) DR_TRY(dr_add_vector(list, part, "bias", zero, columns(b), 0, &b->bias));
    if (!norm || norm->kind == DR_NORM_NONE) return DR_OK;
    if (norm->kind != DR_NORM_RMS)
        return dr_fail(DR_ERROR_UNSUPPORTED, "attention with layer norms of queries and keys is not built: RMS norms are");
    snprintf(part, sizeof part, "%s%s_norm.", prefix, name);
    return dr_norm_create(norm, whole ? columns(b) : b->size, part, list, &b->norm);
}

static dr_status fill(int64_t hidden, const dr_attention_description *d, const char *prefix, dr_layer_parameters *list,
                      softmax_attention *mixer) {
    DR_TRY(add_branch(hidden, prefix, "q", d->query_bias, &d->query_norm, d->norm_whole, list, &mixer->q));
    DR_TRY(add_branch(hidden, prefix, "k", d->key_bias, &d->key_norm, d->norm_whole, list, &mixer->k));
    return add_branch(hidden, prefix, "v", d->value_bias, NULL, false, list, &mixer->v);
}

dr_status dr_attention_create(dr_backend *backend, int64_t hidden, const dr_attention_description *d, const char *prefix,
                              dr_layer_parameters *list, dr_module **module) {
    (void)backend;
    const dr_attend_description shared = {.attention = {.heads = d->heads,
                                                        .key_heads = d->key_heads,
                                                        .key_size = d->key_size,
                                                        .value_size = d->value_size,
                                                        .scale = d->scale * d->key_factor,
                                                        .window = d->window},
                                          .hidden = hidden,
                                          .spectrum = d->rotary ? &d->spectrum : NULL,
                                          .interleaved = d->interleaved,
                                          .gate = d->gate,
                                          .gate_bias = d->query_bias,
                                          .output_bias = d->output_bias,
                                          .sight = d->sight};
    void *memory = NULL;
    DR_TRY(dr_attend_check(&shared));
    DR_TRY(dr_allocate_zero(sizeof(softmax_attention), "an attention mixer", &memory));
    softmax_attention *mixer = memory;
    mixer->module = (dr_module){&operations, hidden};
    mixer->q = (branch){.heads = d->heads, .size = d->key_size};
    mixer->k = (branch){.heads = d->key_heads, .size = d->key_size};
    mixer->v = (branch){.heads = d->key_heads, .size = d->value_size};
    dr_status status = fill(hidden, d, prefix, list, mixer);
    if (status == DR_OK) status = dr_attend_create(&shared, prefix, list, &mixer->attend);
    if (status != DR_OK) {
        destroy(backend, &mixer->module);
        return status;
    }
    *module = &mixer->module;
    return DR_OK;
}
