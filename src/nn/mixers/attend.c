/* Attention, its gate and the last projection. The backward makes the gated output again instead of keeping it. */
#include "nn/mixers/attend.h"
#include "base/error.h"

#include <inttypes.h>
#include <math.h>

enum {
    MOST_SIZE = 1 << 20, /* of counts of heads and of channels of a head: their products stay countable */
    FEWEST_TOKENS = 64   /* that a slot has room for, unless a window is shorter */
};

/* ---- life ----------------------------------------------------------------------------------------------------------- */

dr_status dr_attend_check_size(const char *name, int64_t size) {
    if (size >= 1 && size <= MOST_SIZE) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "attention with %s of %" PRId64 "; it must be from 1 to %d", name, size, MOST_SIZE);
}

static dr_status check_sight(dr_sight sight) {
    const char *missing = NULL;
    switch (sight) {
    case DR_SIGHT_DENSE:
        return DR_OK;
    case DR_SIGHT_POOLS:
        missing = "an indexer that chooses pools of tokens";
        break;
    case DR_SIGHT_BLOCKS:
        missing = "an indexer that chooses blocks of tokens";
        break;
    }
    return dr_fail(DR_ERROR_UNSUPPORTED, "attention with %s is not built: a query sees all earlier tokens or a window of them",
                   missing ? missing : "an unknown choice of tokens");
}

dr_status dr_attend_check(const dr_attend_description *description) {
    const dr_attention *attention = &description->attention;
    DR_TRY(check_sight(description->sight));
    DR_TRY(dr_attend_check_size("a number of heads", attention->heads));
    DR_TRY(dr_attend_check_size("a number of key heads", attention->key_heads));
    DR_TRY(dr_attend_check_size("a key size", attention->key_size));
    DR_TRY(dr_attend_check_size("a value size", attention->value_size));
    if (attention->heads % attention->key_heads != 0)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "attention with %" PRId64 " heads and %" PRId64 " key heads: as many heads must share each key head",
                       attention->heads, attention->key_heads);
    if (attention->window < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "attention with a window of %" PRId64 " tokens; it must be 0, for none, or more",
                       attention->window);
    if (!isfinite(attention->scale))
        return dr_fail(DR_ERROR_ARGUMENT, "attention with a scale of %g; it must be finite", attention->scale);
    return DR_OK;
}

static dr_status make_rotary(const dr_attend_description *description, dr_attend *attend) {
    const dr_rotary_spectrum *spectrum = description->spectrum;
    double factor = 1;
    if (!spectrum) return DR_OK;
    if (spectrum->dim > description->attention.key_size)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "a rotary embedding of %" PRId64 " channels of heads that have %" PRId64 ": it must be at most as many",
                       spectrum->dim, description->attention.key_size);
    DR_TRY(dr_rotary_make(spectrum, &attend->frequencies, &factor));
    attend->rotary = (dr_rotary){.dim = spectrum->dim,
                                 .interleaved = description->interleaved,
                                 .factor = factor,
                                 .frequencies = attend->frequencies,
                                 .base = spectrum->base};
    return DR_OK;
}

static int64_t gate_columns(const dr_attend *attend) {
    switch (attend->gate) {
    case DR_GATED_NOT:
        return 0;
    case DR_GATED_BY_ELEMENT:
        return attend->attention.heads * attend->attention.value_size;
    case DR_GATED_BY_HEAD:
        return attend->attention.heads;
    }
    return 0;
}

dr_status dr_attend_create(const dr_attend_description *description, const char *prefix, dr_layer_parameters *list,
                           dr_attend *attend) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0};
    const int64_t hidden = description->hidden, values = description->attention.heads * description->attention.value_size;
    dr_status status = DR_OK;
    *attend = (dr_attend){.attention = description->attention,
                          .hidden = hidden,
                          .gate = description->gate,
                          .gate_weight = DR_NO_PARAMETER,
                          .gate_bias = DR_NO_PARAMETER,
                          .output_bias = DR_NO_PARAMETER};
    DR_TRY(make_rotary(description, attend));
    if (attend->gate != DR_GATED_NOT)
        DR_GO(dr_add_matrix(list, prefix, "g_proj.weight", normal, gate_columns(attend), hidden, 0, &attend->gate_weight));
    if (attend->gate != DR_GATED_NOT && description->gate_bias)
        DR_GO(dr_add_vector(list, prefix, "g_proj.bias", zero, gate_columns(attend), 0, &attend->gate_bias));
    DR_GO(dr_add_matrix(list, prefix, "o_proj.weight", normal, hidden, values, 0, &attend->output));
    if (description->output_bias) DR_GO(dr_add_vector(list, prefix, "o_proj.bias", zero, hidden, 0, &attend->output_bias));
    return DR_OK;
done:
    dr_attend_release(attend);
    return status;
}

void dr_attend_release(dr_attend *attend) {
    dr_release(attend->frequencies);
    attend->frequencies = NULL;
}

/* ---- memory of a call ----------------------------------------------------------------------------------------------- */

static size_t q_bytes(const dr_attend *attend, const dr_module_call *call) {
    return dr_module_bytes(call, DR_VECTOR, attend->attention.heads * attend->attention.key_size);
}

static size_t k_bytes(const dr_attend *attend, const dr_module_call *call) {
    return dr_module_bytes(call, DR_VECTOR, attend->attention.key_heads * attend->attention.key_size);
}

static size_t v_bytes(const dr_attend *attend, const dr_module_call *call) {
    return dr_module_bytes(call, DR_VECTOR, attend->attention.key_heads * attend->attention.value_size);
}

static size_t o_bytes(const dr_attend *attend, const dr_module_call *call) {
    return dr_module_bytes(call, DR_VECTOR, attend->attention.heads * attend->attention.value_size);
}

void dr_attend_place(const dr_attend *attend, const dr_module_call *call, bool keep, dr_arena *arena,
                     dr_attend_memory *memory) {
    const size_t heads = dr_module_bytes(call, DR_NUMBER, attend->attention.heads);
    *memory = (dr_attend_memory){0};
    memory->q = dr_arena_take(arena, q_bytes(attend, call));
    memory->k = dr_arena_take(arena, k_bytes(attend, call));
    memory->v = dr_arena_take(arena, v_bytes(attend, call));
    memory->o = dr_arena_take(arena, o_bytes(attend, call));
    if (keep) memory->log_sums = dr_arena_take(arena, heads);
    if (attend->gate == DR_GATED_NOT) return;
    memory->gate = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, gate_columns(attend)));
    if (attend->gate == DR_GATED_BY_HEAD) memory->factor = dr_arena_take(arena, heads);
}

void dr_attend_place_scratch(const dr_attend *attend, const dr_module_call *call, bool backward, dr_arena *arena,
                             dr_attend_scratch *scratch) {
    *scratch = (dr_attend_scratch){0};
    if (attend->gate != DR_GATED_NOT) scratch->gated = dr_arena_take(arena, o_bytes(attend, call));
    if (!backward) return;
    scratch->d_q = dr_arena_take(arena, q_bytes(attend, call));
    scratch->d_k = dr_arena_take(arena, k_bytes(attend, call));
    scratch->d_v = dr_arena_take(arena, v_bytes(attend, call));
    scratch->d_o = dr_arena_take(arena, o_bytes(attend, call));
    if (attend->gate == DR_GATED_NOT) return;
    scratch->d_gated = dr_arena_take(arena, o_bytes(attend, call));
    scratch->d_gate = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, gate_columns(attend)));
    if (attend->gate == DR_GATED_BY_HEAD)
        scratch->d_factor = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, attend->attention.heads));
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

dr_status dr_attend_turn(const dr_attend *attend, const dr_module_call *call, int64_t heads, int64_t size, int64_t first,
                         void *x, bool backward) {
    if (!attend->frequencies) return DR_OK;
    dr_rotary rotary = attend->rotary;
    rotary.layout = call->layout;
    rotary.heads = heads, rotary.size = size, rotary.row = heads * size;
    rotary.first = first;
    rotary.offset = call->seen;
    return call->backend->ops->rotary(call->backend, &rotary, x, backward);
}

/* sigmoid from the projection to a factor of each head */
static dr_gate gate_of(const dr_attend *attend, const dr_module_call *call) {
    return (dr_gate){.kind = DR_GATE_SIGMOID,
                     .rows = call->layout.rows,
                     .heads = attend->attention.heads,
                     .dim = 1,
                     .multiplier = 1,
                     .from = DR_VECTOR,
                     .to = DR_NUMBER};
}

/* scratch->gated from memory->o and gate */
static dr_status apply_gate(const dr_attend *attend, const dr_module_call *call, const dr_attend_memory *memory,
                            const dr_attend_scratch *scratch) {
    const dr_operations *ops = call->backend->ops;
    const dr_attention *attention = &attend->attention;
    const int64_t rows = call->layout.rows;
    switch (attend->gate) {
    case DR_GATED_NOT:
        return DR_OK;
    case DR_GATED_BY_ELEMENT:
        return ops->gated_forward(call->backend, DR_FUNCTION_SIGMOID, rows * attention->heads * attention->value_size,
                                  memory->o, memory->gate, scratch->gated);
    case DR_GATED_BY_HEAD:
        return ops->scale_heads_forward(call->backend, rows, attention->heads, attention->value_size, false, memory->factor,
                                        memory->o, scratch->gated, false);
    }
    return DR_OK;
}

static dr_status make_gate(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory) {
    const dr_operations *ops = call->backend->ops;
    const dr_linear linear = {.rows = call->layout.rows, .in = attend->hidden, .out = gate_columns(attend)};
    if (attend->gate == DR_GATED_NOT) return DR_OK;
    DR_TRY(ops->linear_forward(call->backend, &linear, x, dr_module_weight(call, attend->gate_weight),
                               dr_module_parameter(call, attend->gate_bias), memory->gate));
    if (attend->gate != DR_GATED_BY_HEAD) return DR_OK;
    const dr_gate gate = gate_of(attend, call);
    return ops->gate_forward(call->backend, &gate, memory->gate, NULL, NULL, memory->factor);
}

static dr_attention attention_of(const dr_attention *attention, const dr_module_call *call) {
    dr_attention of = *attention;
    of.layout = call->layout;
    return of;
}

dr_status dr_attend_run(const dr_attention *attention, const dr_module_call *call, const void *q, const void *k, const void *v,
                        void *o, void *log_sums) {
    const dr_operations *ops = call->backend->ops;
    const dr_attention of = attention_of(attention, call);
    const dr_attend_state *state = call->state;
    if (!state) return ops->attention_forward(call->backend, &of, q, k, v, NULL, o, log_sums);
    const dr_attention_memory past = {
        .capacity = state->capacity, .past = call->seen, .slot = call->slot, .keys = state->keys, .values = state->values};
    DR_TRY(ops->attention_forward(call->backend, &of, q, k, v, &past, o, log_sums));
    return ops->attention_append(call->backend, &of, k, v, &past);
}

dr_status dr_attend_finish(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory,
                           const dr_attend_scratch *scratch, void *y) {
    const dr_attention *attention = &attend->attention;
    const dr_linear linear = {
        .rows = call->layout.rows, .in = attention->heads * attention->value_size, .out = attend->hidden, .plus = call->plus};
    DR_TRY(make_gate(attend, call, x, memory));
    DR_TRY(apply_gate(attend, call, memory, scratch));
    return call->backend->ops->linear_forward(call->backend, &linear, attend->gate == DR_GATED_NOT ? memory->o : scratch->gated,
                                              dr_module_weight(call, attend->output),
                                              dr_module_parameter(call, attend->output_bias), y);
}

dr_status dr_attend_forward(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory,
                            const dr_attend_scratch *scratch, void *y) {
    DR_TRY(dr_attend_run(&attend->attention, call, memory->q, memory->k, memory->v, memory->o, memory->log_sums));
    return dr_attend_finish(attend, call, x, memory, scratch, y);
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

/* d_o from d_gated, and through the gate to d_x */
static dr_status gate_back(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory,
                           const dr_attend_scratch *scratch, void *d_x) {
    const dr_operations *ops = call->backend->ops;
    const dr_attention *attention = &attend->attention;
    const int64_t rows = call->layout.rows;
    const dr_linear linear = {.rows = rows, .in = attend->hidden, .out = gate_columns(attend)};
    if (attend->gate == DR_GATED_BY_ELEMENT) {
        DR_TRY(ops->gated_backward(call->backend, DR_FUNCTION_SIGMOID, rows * attention->heads * attention->value_size,
                                   memory->o, memory->gate, scratch->d_gated, scratch->d_o, scratch->d_gate));
    } else {
        const dr_gate gate = gate_of(attend, call);
        DR_TRY(ops->scale_heads_backward(call->backend, rows, attention->heads, attention->value_size, false, memory->factor,
                                         memory->o, scratch->d_gated, scratch->d_factor, scratch->d_o, false));
        DR_TRY(ops->gate_backward(call->backend, &gate, memory->gate, NULL, NULL, scratch->d_factor, scratch->d_gate, false,
                                  NULL, NULL));
    }
    return ops->linear_backward(call->backend, &linear, x, dr_module_weight(call, attend->gate_weight), scratch->d_gate, d_x,
                                false, dr_module_gradient(call, attend->gate_weight),
                                dr_module_gradient(call, attend->gate_bias));
}

dr_status dr_attend_backward(const dr_attend *attend, const dr_module_call *call, const void *x, const void *d_y,
                             const dr_attend_memory *memory, const dr_attend_scratch *scratch, void *d_x, bool *accumulate) {
    const dr_operations *ops = call->backend->ops;
    const dr_attention attention = attention_of(&attend->attention, call);
    const dr_linear linear = {.rows = call->layout.rows, .in = attention.heads * attention.value_size, .out = attend->hidden};
    const bool gated = attend->gate != DR_GATED_NOT;
    DR_TRY(apply_gate(attend, call, memory, scratch));
    DR_TRY(ops->linear_backward(call->backend, &linear, gated ? scratch->gated : memory->o,
                                dr_module_weight(call, attend->output), d_y, gated ? scratch->d_gated : scratch->d_o, false,
                                dr_module_gradient(call, attend->output), dr_module_gradient(call, attend->output_bias)));
    if (gated) DR_TRY(gate_back(attend, call, x, memory, scratch, d_x));
    *accumulate = gated;
    return ops->attention_backward(call->backend, &attention, memory->q, memory->k, memory->v, memory->o, memory->log_sums,
                                   scratch->d_o, scratch->d_q, scratch->d_k, scratch->d_v);
}

/* ---- what sequences remember ---------------------------------------------------------------------------------------- */

/* Tokens that a slot should have room for, where it has room for too few. */
static int64_t grown(const dr_attention *attention, int64_t capacity, int64_t tokens) {
    int64_t most = tokens > 2 * capacity ? tokens : 2 * capacity;
    if (most < FEWEST_TOKENS) most = FEWEST_TOKENS;
    const int64_t kept = attention->window - 1 + DR_ATTEND_BACK;
    return attention->window > 0 && most > kept ? kept : most;
}

/* Copies the tokens of each slot, whose vectors have `columns` elements. */
static dr_status move_slots(dr_backend *backend, int64_t sequences, int64_t columns, int64_t old, const void *from,
                            int64_t capacity, void *to) {
    const size_t kept = dr_kind_bytes(backend, DR_VECTOR, old * columns),
                 slot = dr_kind_bytes(backend, DR_VECTOR, capacity * columns);
    for (int64_t i = 0; i < sequences; i++)
        DR_TRY(backend->ops->copy(backend, (char *)to + (size_t)i * slot, (const char *)from + (size_t)i * kept, kept));
    return DR_OK;
}

/* Below its final capacity a ring has not begun anew: position p lies at p before and after. */
dr_status dr_attend_reserve(const dr_attention *attention, dr_backend *backend, int64_t sequences, int64_t tokens,
                            dr_attend_state *state) {
    const int64_t capacity = grown(attention, state->capacity, tokens), old = state->capacity;
    const int64_t keys = attention->key_heads * attention->key_size, values = attention->key_heads * attention->value_size;
    const int64_t sizes[] = {sequences, capacity, keys + values};
    int64_t elements;
    if (tokens <= old || capacity == old) return DR_OK;
    if (!dr_product(sizes, 3, &elements) || elements > INT64_C(1) << 56)
        return dr_fail(DR_ERROR_MEMORY,
                       "the keys and values of %" PRId64 " tokens of %" PRId64 " sequences are more than can be addressed",
                       capacity, sequences);
    void *block = NULL;
    dr_arena arena = {0};
    dr_attend_state made = {.capacity = capacity};
    const size_t key_bytes = dr_kind_bytes(backend, DR_VECTOR, sequences * capacity * keys),
                 value_bytes = dr_kind_bytes(backend, DR_VECTOR, sequences * capacity * values);
    dr_arena_take(&arena, key_bytes);
    dr_arena_take(&arena, value_bytes);
    DR_TRY(backend->ops->allocate(backend, arena.used, &block));
    arena = (dr_arena){.block = block};
    made.keys = dr_arena_take(&arena, key_bytes);
    made.values = dr_arena_take(&arena, value_bytes);
    dr_status status = move_slots(backend, sequences, keys, old, state->keys, capacity, made.keys);
    if (status == DR_OK) status = move_slots(backend, sequences, values, old, state->values, capacity, made.values);
    if (status != DR_OK) {
        backend->ops->free(backend, block);
        return status;
    }
    dr_attend_release_state(backend, state);
    *state = made;
    return DR_OK;
}

int64_t dr_attend_grown(const dr_attention *attention, const dr_attend_state *state, dr_grown *grown) {
    if (!grown) return 2;
    const int64_t most = attention->window > 0 ? attention->window - 1 : INT64_MAX;
    grown[0] = (dr_grown){state->keys, state->capacity, attention->key_heads * attention->key_size, most};
    grown[1] = (dr_grown){state->values, state->capacity, attention->key_heads * attention->value_size, most};
    return 2;
}

/* keys are the first of the block */
void dr_attend_release_state(dr_backend *backend, dr_attend_state *state) {
    if (state->keys) backend->ops->free(backend, state->keys);
    *state = (dr_attend_state){0};
}
