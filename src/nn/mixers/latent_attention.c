/* Projections through latents around attention (nn/mixers/attend.h), in two ways.
 *
 * Training and scoring make keys and values of every head and attend as other mixers do. Where a state remembers, that would be
 * heads (plain + turned + value_size) numbers a token; what is remembered instead is the normed latent and the shared key, rank
 * + turned, and the latent once more, as the value. With key_h = K_h latent and v_h = V_h latent,
 *
 *     q_h . key_h = (K_h^T q_h) . latent        sum_j p_j v_j = V_h sum_j p_j latent_j,
 *
 * so that all heads read one key head and the latents themselves. Both ways differ by rounding only; a text in parts has the
 * same bits as at once.
 *
 * kv_a_proj is one parameter and two products, since what is behind the latent goes another way. */
#include "nn/mixers/latent_attention.h"
#include "base/error.h"
#include "nn/mixers/attend.h"
#include "nn/norm.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    dr_module module;
    dr_attend attend;
    dr_attention remembered; /* of queries in front of the latents */
    int64_t plain, turned, rank, query_rank;
    int query, query_down; /* list: q_proj, or q_b_proj and q_a_proj */
    int down, up;          /* kv_a_proj, kv_b_proj */
    dr_norm query_norm, norm;
} latent_attention;

/* Norms that are not there share memory with what goes into them. */
typedef struct {
    dr_attend_memory attend;
    void *query_low, *query_normed; /* [rows, query_rank] */
    void *latent, *normed;          /* [rows, rank] */
} memory_of_call;

typedef struct {
    dr_attend_scratch attend;
    void *up;     /* [rows, heads, plain + value_size] keys and values, or their gradients */
    void *shared; /* [rows, turned] of the key, or its gradient */
    /* of a call with a state, where `up` is: queries in front of the latents, [latent, shared], what is read of the latents;
     * and of one head its own channels [rows, plain or value_size] and those of the latent [rows, rank] */
    void *q, *k, *o, *head, *head_latent;
    /* of the backward alone */
    void *d_query_low, *d_query_normed, *d_latent, *d_normed;
} scratch_of_call;

static const latent_attention *of(const dr_module_call *call) {
    return (const latent_attention *)call->module;
}

static dr_linear linear_of(const dr_module_call *call, int64_t in, int64_t out) {
    return (dr_linear){.rows = call->layout.rows, .in = in, .out = out};
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void *take(const dr_module_call *call, int64_t columns, dr_arena *arena) {
    return dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, columns));
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *place) {
    const latent_attention *mixer = of(call);
    memory_of_call *memory = place;
    *memory = (memory_of_call){0};
    dr_attend_place(&mixer->attend, call, keep, arena, &memory->attend);
    memory->latent = take(call, mixer->rank, arena);
    memory->normed = mixer->norm.kind == DR_NORM_NONE ? memory->latent : take(call, mixer->rank, arena);
    if (mixer->query_rank == 0) return;
    memory->query_low = take(call, mixer->query_rank, arena);
    memory->query_normed = mixer->query_norm.kind == DR_NORM_NONE ? memory->query_low : take(call, mixer->query_rank, arena);
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *place) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    scratch_of_call *scratch = place;
    *scratch = (scratch_of_call){0};
    dr_attend_place_scratch(&mixer->attend, call, backward, arena, &scratch->attend);
    scratch->shared = take(call, mixer->turned, arena);
    const size_t used = arena->used;
    if (!backward) {
        scratch->q = take(call, attention->heads * (mixer->rank + mixer->turned), arena);
        scratch->k = take(call, mixer->rank + mixer->turned, arena);
        scratch->o = take(call, attention->heads * mixer->rank, arena);
        scratch->head = take(call, mixer->plain > attention->value_size ? mixer->plain : attention->value_size, arena);
        scratch->head_latent = take(call, mixer->rank, arena);
        dr_arena_rewind(arena, used);
    }
    scratch->up = take(call, attention->heads * (mixer->plain + attention->value_size), arena);
    if (!backward) return;
    scratch->d_latent = take(call, mixer->rank, arena);
    scratch->d_normed = mixer->norm.kind == DR_NORM_NONE ? scratch->d_latent : take(call, mixer->rank, arena);
    if (mixer->query_rank == 0) return;
    scratch->d_query_low = take(call, mixer->query_rank, arena);
    scratch->d_query_normed =
        mixer->query_norm.kind == DR_NORM_NONE ? scratch->d_query_low : take(call, mixer->query_rank, arena);
}

/* ---- keys of heads -------------------------------------------------------------------------------------------------- */

/* What lies where: in `up` a head's key before its value, in k a head's own channels before the shared ones. */
typedef struct {
    dr_copy_heads key, value, shared;
    size_t value_at, shared_at; /* bytes from the start of up, of k */
} parts;

static parts parts_of(const dr_module_call *call) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    const int64_t rows = call->layout.rows, heads = attention->heads, size = attention->key_size,
                  values = attention->value_size;
    const int64_t up = mixer->plain + values;
    return (parts){.key = {rows, heads, mixer->plain, heads * up, up, heads * size, size},
                   .value = {rows, heads, values, heads * up, up, heads * values, values},
                   .shared = {rows, heads, mixer->turned, mixer->turned, 0, heads * size, size},
                   .value_at = dr_kind_bytes(call->backend, DR_VECTOR, mixer->plain),
                   .shared_at = dr_kind_bytes(call->backend, DR_VECTOR, mixer->plain)};
}

/* k and v from up and shared */
static dr_status join(const dr_module_call *call, const memory_of_call *memory, const scratch_of_call *scratch) {
    const parts p = parts_of(call);
    const dr_operations *ops = call->backend->ops;
    DR_TRY(ops->copy_heads(call->backend, &p.key, scratch->up, memory->attend.k));
    DR_TRY(ops->copy_heads(call->backend, &p.shared, scratch->shared, (char *)memory->attend.k + p.shared_at));
    return ops->copy_heads(call->backend, &p.value, (const char *)scratch->up + p.value_at, memory->attend.v);
}

static dr_copy_heads back(const dr_copy_heads *copy) {
    return (dr_copy_heads){copy->rows, copy->heads, copy->dim, copy->to_row, copy->to_head, copy->from_row, copy->from_head};
}

/* the gradients of up and shared from d_k and d_v */
static dr_status part(const dr_module_call *call, const scratch_of_call *scratch) {
    const parts p = parts_of(call);
    const dr_copy_heads key = back(&p.key), value = back(&p.value), shared = back(&p.shared);
    const dr_operations *ops = call->backend->ops;
    DR_TRY(ops->copy_heads(call->backend, &key, scratch->attend.d_k, scratch->up));
    DR_TRY(ops->copy_heads(call->backend, &shared, (const char *)scratch->attend.d_k + p.shared_at, scratch->shared));
    return ops->copy_heads(call->backend, &value, scratch->attend.d_v, (char *)scratch->up + p.value_at);
}

/* ---- latents of a state --------------------------------------------------------------------------------------------- */

/* dim elements of each row, the rows lying so far apart. */
static dr_status copy_head(const dr_module_call *call, int64_t dim, const void *x, int64_t from_row, void *y, int64_t to_row) {
    const dr_copy_heads copy = {call->layout.rows, 1, dim, from_row, 0, to_row, 0};
    return call->backend->ops->copy_heads(call->backend, &copy, x, y);
}

static char *behind(const dr_module_call *call, const void *x, int64_t elements) {
    return (char *)x + dr_kind_bytes(call->backend, DR_VECTOR, elements);
}

/* The rows of a weight behind so many others. */
static const void *weight_rows(const dr_module_call *call, int parameter, int64_t rows, int64_t columns) {
    return (const char *)dr_module_weight(call, parameter) + dr_weight_bytes(call->backend, rows, columns);
}

/* scratch->q: K_h^T q_h of each head before its turned channels. The product with a transpose is the backward of one. */
static dr_status absorb_queries(const dr_module_call *call, const memory_of_call *memory, const scratch_of_call *scratch) {
    const latent_attention *mixer = of(call);
    const dr_attention *own = &mixer->attend.attention;
    const int64_t rank = mixer->rank, plain = mixer->plain, size = own->key_size, wide = rank + mixer->turned;
    const int64_t up = plain + own->value_size, row = own->heads * size, wide_row = own->heads * wide;
    const dr_operations *ops = call->backend->ops;
    const dr_linear linear = linear_of(call, rank, plain);
    const dr_copy_heads turned = {call->layout.rows, own->heads, mixer->turned, row, size, wide_row, wide};
    for (int64_t h = 0; h < own->heads; h++) {
        const void *weight = weight_rows(call, mixer->up, h * up, rank);
        DR_TRY(copy_head(call, plain, behind(call, memory->attend.q, h * size), row, scratch->head, plain));
        DR_TRY(ops->linear_backward(call->backend, &linear, memory->normed, weight, scratch->head, scratch->head_latent, false,
                                    NULL, NULL));
        DR_TRY(copy_head(call, rank, scratch->head_latent, rank, behind(call, scratch->q, h * wide), wide_row));
    }
    return ops->copy_heads(call->backend, &turned, behind(call, memory->attend.q, plain), behind(call, scratch->q, rank));
}

/* memory->attend.o: V_h of what each head read of the latents */
static dr_status project_values(const dr_module_call *call, const memory_of_call *memory, const scratch_of_call *scratch) {
    const latent_attention *mixer = of(call);
    const dr_attention *own = &mixer->attend.attention;
    const int64_t rank = mixer->rank, value = own->value_size, up = mixer->plain + value;
    const dr_linear linear = linear_of(call, rank, value);
    for (int64_t h = 0; h < own->heads; h++) {
        const void *weight = weight_rows(call, mixer->up, h * up + mixer->plain, rank);
        DR_TRY(copy_head(call, rank, behind(call, scratch->o, h * rank), own->heads * rank, scratch->head_latent, rank));
        DR_TRY(call->backend->ops->linear_forward(call->backend, &linear, scratch->head_latent, weight, NULL, scratch->head));
        DR_TRY(copy_head(call, value, scratch->head, value, behind(call, memory->attend.o, h * value), own->heads * value));
    }
    return DR_OK;
}

static dr_status attend_latents(const dr_module_call *call, const memory_of_call *memory, const scratch_of_call *scratch) {
    const latent_attention *mixer = of(call);
    const int64_t rank = mixer->rank, wide = rank + mixer->turned;
    DR_TRY(absorb_queries(call, memory, scratch));
    DR_TRY(copy_head(call, rank, memory->normed, rank, scratch->k, wide));
    DR_TRY(copy_head(call, mixer->turned, scratch->shared, mixer->turned, behind(call, scratch->k, rank), wide));
    DR_TRY(dr_attend_run(&mixer->remembered, call, scratch->q, scratch->k, memory->normed, scratch->o, NULL));
    return project_values(call, memory, scratch);
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

/* Elements of kv_a_proj in front of the rows that make the shared key. */
static int64_t shared_weight(const latent_attention *mixer) {
    return mixer->rank * mixer->module.hidden;
}

static dr_status forward_query(const dr_module_call *call, const void *x, const memory_of_call *memory) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    const dr_operations *ops = call->backend->ops;
    const int64_t hidden = mixer->module.hidden, rank = mixer->query_rank;
    const dr_linear query = linear_of(call, rank > 0 ? rank : hidden, attention->heads * attention->key_size),
                    down = linear_of(call, hidden, rank);
    if (rank > 0)
        DR_TRY(
            ops->linear_forward(call->backend, &down, x, dr_module_weight(call, mixer->query_down), NULL, memory->query_low));
    if (rank > 0 && mixer->query_norm.kind != DR_NORM_NONE)
        DR_TRY(dr_norm_forward(&mixer->query_norm, call, call->layout.rows, memory->query_low, memory->query_normed));
    DR_TRY(ops->linear_forward(call->backend, &query, rank > 0 ? memory->query_normed : x, dr_module_weight(call, mixer->query),
                               NULL, memory->attend.q));
    return dr_attend_turn(&mixer->attend, call, attention->heads, attention->key_size, mixer->plain, memory->attend.q, false);
}

/* memory->normed and scratch->shared */
static dr_status forward_latent(const dr_module_call *call, const void *x, const memory_of_call *memory,
                                const scratch_of_call *scratch) {
    const latent_attention *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t hidden = mixer->module.hidden;
    const dr_linear down = linear_of(call, hidden, mixer->rank), shared = linear_of(call, hidden, mixer->turned);
    const void *weight = dr_module_weight(call, mixer->down);
    DR_TRY(ops->linear_forward(call->backend, &down, x, weight, NULL, memory->latent));
    if (mixer->turned > 0) {
        weight = weight_rows(call, mixer->down, mixer->rank, hidden);
        DR_TRY(ops->linear_forward(call->backend, &shared, x, weight, NULL, scratch->shared));
        DR_TRY(dr_attend_turn(&mixer->attend, call, 1, mixer->turned, 0, scratch->shared, false));
    }
    if (mixer->norm.kind == DR_NORM_NONE) return DR_OK;
    return dr_norm_forward(&mixer->norm, call, call->layout.rows, memory->latent, memory->normed);
}

/* Every head's keys and values from the latent. */
static dr_status attend_heads(const dr_module_call *call, const memory_of_call *memory, const scratch_of_call *scratch) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    const dr_linear up = linear_of(call, mixer->rank, attention->heads * (mixer->plain + attention->value_size));
    DR_TRY(call->backend->ops->linear_forward(call->backend, &up, memory->normed, dr_module_weight(call, mixer->up), NULL,
                                              scratch->up));
    DR_TRY(join(call, memory, scratch));
    return dr_attend_run(attention, call, memory->attend.q, memory->attend.k, memory->attend.v, memory->attend.o,
                         memory->attend.log_sums);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const memory_of_call *memory = call->memory;
    const scratch_of_call *scratch = call->scratch;
    DR_TRY(forward_query(call, x, memory));
    DR_TRY(forward_latent(call, x, memory, scratch));
    DR_TRY((call->state ? attend_latents : attend_heads)(call, memory, scratch));
    return dr_attend_finish(&of(call)->attend, call, x, &memory->attend, &scratch->attend, y);
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

static dr_status backward_query(const dr_module_call *call, const void *x, const memory_of_call *memory,
                                const scratch_of_call *scratch, void *d_x, bool accumulate) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    const dr_operations *ops = call->backend->ops;
    const int64_t hidden = mixer->module.hidden, rank = mixer->query_rank;
    const dr_linear query = linear_of(call, rank > 0 ? rank : hidden, attention->heads * attention->key_size),
                    down = linear_of(call, hidden, rank);
    void *d_q = scratch->attend.d_q;
    DR_TRY(dr_attend_turn(&mixer->attend, call, attention->heads, attention->key_size, mixer->plain, d_q, true));
    if (rank == 0)
        return ops->linear_backward(call->backend, &query, x, dr_module_weight(call, mixer->query), d_q, d_x, accumulate,
                                    dr_module_gradient(call, mixer->query), NULL);
    DR_TRY(ops->linear_backward(call->backend, &query, memory->query_normed, dr_module_weight(call, mixer->query), d_q,
                                scratch->d_query_normed, false, dr_module_gradient(call, mixer->query), NULL));
    if (mixer->query_norm.kind != DR_NORM_NONE)
        DR_TRY(dr_norm_backward(&mixer->query_norm, call, call->layout.rows, memory->query_low, scratch->d_query_normed,
                                scratch->d_query_low, false));
    return ops->linear_backward(call->backend, &down, x, dr_module_weight(call, mixer->query_down), scratch->d_query_low, d_x,
                                accumulate, dr_module_gradient(call, mixer->query_down), NULL);
}

static dr_status backward_keys(const dr_module_call *call, const void *x, const memory_of_call *memory,
                               const scratch_of_call *scratch, void *d_x) {
    const latent_attention *mixer = of(call);
    const dr_attention *attention = &mixer->attend.attention;
    const dr_operations *ops = call->backend->ops;
    const int64_t hidden = mixer->module.hidden;
    const dr_linear down = linear_of(call, hidden, mixer->rank), shared = linear_of(call, hidden, mixer->turned),
                    up = linear_of(call, mixer->rank, attention->heads * (mixer->plain + attention->value_size));
    const void *weight = dr_module_weight(call, mixer->down);
    char *gradient = dr_module_gradient(call, mixer->down);
    DR_TRY(part(call, scratch));
    DR_TRY(ops->linear_backward(call->backend, &up, memory->normed, dr_module_weight(call, mixer->up), scratch->up,
                                scratch->d_normed, false, dr_module_gradient(call, mixer->up), NULL));
    if (mixer->norm.kind != DR_NORM_NONE)
        DR_TRY(dr_norm_backward(&mixer->norm, call, call->layout.rows, memory->latent, scratch->d_normed, scratch->d_latent,
                                false));
    DR_TRY(ops->linear_backward(call->backend, &down, x, weight, scratch->d_latent, d_x, true, gradient, NULL));
    if (mixer->turned == 0) return DR_OK;
    DR_TRY(dr_attend_turn(&mixer->attend, call, 1, mixer->turned, 0, scratch->shared, true));
    weight = weight_rows(call, mixer->down, mixer->rank, hidden);
    if (gradient) gradient += dr_kind_bytes(call->backend, DR_NUMBER, shared_weight(mixer));
    return ops->linear_backward(call->backend, &shared, x, weight, scratch->shared, d_x, true, gradient, NULL);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const memory_of_call *memory = call->memory;
    const scratch_of_call *scratch = call->scratch;
    bool accumulate;
    DR_TRY(dr_attend_backward(&of(call)->attend, call, x, d_y, &memory->attend, &scratch->attend, d_x, &accumulate));
    DR_TRY(backward_query(call, x, memory, scratch, d_x, accumulate));
    return backward_keys(call, x, memory, scratch, d_x);
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static dr_status reserve_state(const dr_module *module, dr_backend *backend, int64_t sequences, int64_t tokens, void *state) {
    return dr_attend_reserve(&((const latent_attention *)module)->remembered, backend, sequences, tokens, state);
}

static void release_state(const dr_module *module, dr_backend *backend, void *state) {
    (void)module;
    dr_attend_release_state(backend, state);
}

static int64_t grown(const dr_module *module, const void *state, dr_grown *tensors) {
    return dr_attend_grown(&((const latent_attention *)module)->remembered, state, tensors);
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_attend_release(&((latent_attention *)module)->attend);
    dr_release(module);
}

static const dr_operation needs[] = {DR_OPERATION_LINEAR,     DR_OPERATION_RMS_NORM,  DR_OPERATION_ROTARY,
                                     DR_OPERATION_GATE,       DR_OPERATION_APPLY,     DR_OPERATION_SCALE_HEADS,
                                     DR_OPERATION_COPY_HEADS, DR_OPERATION_ATTENTION, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "latent_attention",
                                                .needs = needs,
                                                .memory_size = sizeof(memory_of_call),
                                                .scratch_size = sizeof(scratch_of_call),
                                                .state_size = sizeof(dr_attend_state),
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .reserve_state = reserve_state,
                                                .release_state = release_state,
                                                .grown = grown,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

static dr_status check(const dr_latent_attention_description *d) {
    DR_TRY(dr_attend_check_size("a number of heads", d->heads));
    DR_TRY(dr_attend_check_size("a latent of channels", d->rank));
    DR_TRY(dr_attend_check_size("a number of channels without a position", d->plain));
    if (d->turned != 0) DR_TRY(dr_attend_check_size("a number of channels with a position", d->turned));
    if (d->query_rank != 0) DR_TRY(dr_attend_check_size("a rank of the queries", d->query_rank));
    if (d->rotary && d->spectrum.dim != d->turned)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "a rotary embedding of %" PRId64 " channels where %" PRId64 " have a position: it must be of these",
                       d->spectrum.dim, d->turned);
    if (d->norm.kind == DR_NORM_LAYER || d->query_norm.kind == DR_NORM_LAYER)
        return dr_fail(DR_ERROR_UNSUPPORTED, "latent attention with layer norms is not built: RMS norms are");
    return DR_OK;
}

static dr_status fill(const dr_latent_attention_description *d, const char *prefix, dr_layer_parameters *list,
                      latent_attention *mixer) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0};
    const int64_t hidden = mixer->module.hidden, queries = d->heads * (d->plain + d->turned);
    char part[sizeof((dr_layer_parameter){0}.name)];
    if (d->query_rank > 0) {
        DR_TRY(dr_add_matrix(list, prefix, "q_a_proj.weight", normal, d->query_rank, hidden, 0, &mixer->query_down));
        snprintf(part, sizeof part, "%sq_a_norm.", prefix);
        DR_TRY(dr_norm_create(&d->query_norm, d->query_rank, part, list, &mixer->query_norm));
        DR_TRY(dr_add_matrix(list, prefix, "q_b_proj.weight", normal, queries, d->query_rank, 0, &mixer->query));
    } else {
        DR_TRY(dr_add_matrix(list, prefix, "q_proj.weight", normal, queries, hidden, 0, &mixer->query));
    }
    DR_TRY(dr_add_matrix(list, prefix, "kv_a_proj.weight", normal, d->rank + d->turned, hidden, 0, &mixer->down));
    snprintf(part, sizeof part, "%skv_a_norm.", prefix);
    DR_TRY(dr_norm_create(&d->norm, d->rank, part, list, &mixer->norm));
    return dr_add_matrix(list, prefix, "kv_b_proj.weight", normal, d->heads * (d->plain + d->value_size), d->rank, 0,
                         &mixer->up);
}

dr_status dr_latent_attention_create(dr_backend *backend, int64_t hidden, const dr_latent_attention_description *d,
                                     const char *prefix, dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    DR_TRY(check(d));
    const dr_attend_description shared = {.attention = {.heads = d->heads,
                                                        .key_heads = d->heads,
                                                        .key_size = d->plain + d->turned,
                                                        .value_size = d->value_size,
                                                        .scale = d->scale},
                                          .hidden = hidden,
                                          .spectrum = d->rotary ? &d->spectrum : NULL,
                                          .interleaved = d->interleaved,
                                          .gate = d->gate,
                                          .sight = d->sight};
    DR_TRY(dr_attend_check(&shared));
    DR_TRY(dr_allocate_zero(sizeof(latent_attention), "a latent attention mixer", &memory));
    latent_attention *mixer = memory;
    mixer->module = (dr_module){&operations, hidden};
    mixer->plain = d->plain, mixer->turned = d->turned, mixer->rank = d->rank, mixer->query_rank = d->query_rank;
    mixer->remembered = (dr_attention){
        .heads = d->heads, .key_heads = 1, .key_size = d->rank + d->turned, .value_size = d->rank, .scale = d->scale};
    dr_status status = fill(d, prefix, list, mixer);
    if (status == DR_OK) status = dr_attend_create(&shared, prefix, list, &mixer->attend);
    if (status != DR_OK) {
        destroy(backend, &mixer->module);
        return status;
    }
    *module = &mixer->module;
    return DR_OK;
}
