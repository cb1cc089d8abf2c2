/* States of sequences in a backend's memory: one block holds S, A, K and P, whichever the rule carries, one after the other.
 * All that is done with them goes through the backend's operations; rows of sequences are copied by gathering. */
#include "states/state.h"

#include "base/error.h"
#include "base/memory.h"
#include "ops/shapes.h"
#include "rules/compare.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- making --------------------------------------------------------------------------------------------------------- */

dr_status dr_state_describe(dr_backend *backend, const dr_recurrence *recurrence, dr_state *state) {
    DR_NEED(backend);
    DR_TRY(dr_recurrence_check(recurrence));
    if (recurrence->bf16_state && !backend->ops->bf16_state)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no states in bfloat16", backend->ops->name);
    const int64_t sequences = recurrence->layout.sequences;
    *state = (dr_state){.backend = backend, .rule = *recurrence->rule};
    state->rule.name = state->rule.title = state->rule.source = NULL; /* they may not live as long */
    state->recurrence = (dr_recurrence){
        .layout = {.sequences = sequences, .rows = sequences},
        .key_heads = recurrence->key_heads,
        .value_heads = recurrence->value_heads,
        .key_size = recurrence->key_size,
        .value_size = recurrence->value_size,
        .bf16_state = recurrence->bf16_state,
    };
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(&state->rule, (dr_state_kind)i))
            state->count[i] = dr_recurrence_state_count(recurrence, (dr_state_kind)i) / sequences;
    return DR_OK;
}

dr_dtype dr_state_dtype(const dr_state *state, dr_state_kind kind) {
    return dr_recurrence_state_dtype(&state->recurrence, kind, state->backend->ops->dtype);
}

int64_t dr_state_words(const dr_state *state, dr_state_kind kind) {
    return state->count[kind] * (int64_t)dr_dtype_size(dr_state_dtype(state, kind)) /
           (int64_t)dr_dtype_size(state->backend->ops->dtype);
}

static void lay(dr_state *state, dr_arena *arena) {
    for (int i = 0; i < DR_STATES; i++)
        if (state->count[i])
            state->at[i] = dr_arena_take(arena, (size_t)(state->recurrence.layout.sequences * state->count[i]) *
                                                    dr_dtype_size(dr_state_dtype(state, (dr_state_kind)i)));
}

dr_status dr_state_create(dr_backend *backend, const dr_recurrence *recurrence, dr_state **state) {
    dr_state described;
    void *memory = NULL;
    DR_NEED(state);
    DR_NEED(backend);
    DR_TRY(dr_state_describe(backend, recurrence, &described));
    DR_TRY(dr_allocate(sizeof(dr_state), "a recurrent state", &memory));
    dr_state *made = memory;
    *made = described;
    made->recurrence.rule = &made->rule;
    dr_arena arena = {0};
    lay(made, &arena);
    made->bytes = arena.used;
    dr_status status = backend->ops->allocate(backend, made->bytes, &made->block);
    if (status != DR_OK) {
        dr_release(made);
        return status;
    }
    arena = (dr_arena){.block = made->block};
    lay(made, &arena);
    dr_state_reset(made);
    *state = made;
    return DR_OK;
}

void dr_state_reset(dr_state *state) {
    if (state) state->backend->ops->zero(state->backend, state->block, state->bytes);
}

void dr_state_destroy(dr_state *state) {
    if (!state) return;
    state->backend->ops->free(state->backend, state->block);
    dr_release(state);
}

const dr_recurrence *dr_state_recurrence(const dr_state *state) {
    return state ? &state->recurrence : NULL;
}

dr_backend *dr_state_backend(const dr_state *state) {
    return state ? state->backend : NULL;
}

/* ---- does it fit? --------------------------------------------------------------------------------------------------- */

static dr_status fail_of_rules(const dr_rule *one, const char *what, const dr_rule *two, const char *other) {
    char equation[512], other_equation[512];
    dr_rule_equation(one, equation, sizeof equation);
    dr_rule_equation(two, other_equation, sizeof other_equation);
    if (strcmp(equation, other_equation) == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%s and %s are of rules that differ in a setting, though both have the equation %s",
                       what, other, equation);
    return dr_fail(DR_ERROR_ARGUMENT, "%s is of the rule %s, but %s of the rule %s", what, equation, other, other_equation);
}

static const char *type_of(const dr_recurrence *recurrence) {
    return recurrence->bf16_state ? "bfloat16" : "the backend's type";
}

dr_status dr_state_compare(const dr_recurrence *one, const char *what, const dr_recurrence *two, const char *other,
                           bool sequences) {
    const struct {
        const char *name;
        int64_t one, two;
    } sizes[] = {
        {"key heads", one->key_heads, two->key_heads},
        {"value heads", one->value_heads, two->value_heads},
        {"as key size", one->key_size, two->key_size},
        {"as value size", one->value_size, two->value_size},
        {"sequences", sequences ? one->layout.sequences : 0, sequences ? two->layout.sequences : 0},
    };
    if (!dr_rule_equal(one->rule, two->rule)) return fail_of_rules(one->rule, what, two->rule, other);
    if (one->bf16_state != two->bf16_state)
        return dr_fail(DR_ERROR_ARGUMENT, "%s keeps S in %s, but %s in %s", what, type_of(one), other, type_of(two));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].one != sizes[i].two)
            return dr_fail(DR_ERROR_ARGUMENT, "%s has %" PRId64 " %s, but %s has %" PRId64, what, sizes[i].one, sizes[i].name,
                           other, sizes[i].two);
    return DR_OK;
}

static dr_status check_backend(const dr_state *state, const char *what, const dr_backend *backend) {
    const dr_operations *own = state->backend->ops, *wanted = backend->ops;
    if (own == wanted) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s lies in the memory of backend %s as %s, but is wanted by backend %s as %s", what,
                   own->name, dr_dtype_name(own->dtype), wanted->name, dr_dtype_name(wanted->dtype));
}

dr_status dr_state_check(const dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence) {
    DR_NEED(state);
    DR_NEED(backend);
    DR_TRY(dr_recurrence_check(recurrence));
    DR_TRY(check_backend(state, "the state", backend));
    return dr_state_compare(&state->recurrence, "the state", recurrence, "the recurrence", true);
}

dr_status dr_state_initial(const dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence,
                           dr_states *initial) {
    DR_TRY(dr_state_check(state, backend, recurrence));
    DR_NEED(initial);
    for (int i = 0; i < DR_STATES; i++) initial->at[i] = state->at[i];
    return DR_OK;
}

dr_status dr_state_final(dr_state *state, const dr_backend *backend, const dr_recurrence *recurrence,
                         dr_mutable_states *final) {
    DR_TRY(dr_state_check(state, backend, recurrence));
    DR_NEED(final);
    for (int i = 0; i < DR_STATES; i++) final->at[i] = state->at[i];
    return DR_OK;
}

/* ---- sequences ------------------------------------------------------------------------------------------------------ */

/* Copies sequences first .. of `from` to those from `begin` on of `to`, which has room for count. */
static dr_status copy_sequences(const dr_state *from, int64_t first, int64_t count, dr_state *to, int64_t begin) {
    const dr_backend *backend = to->backend;
    for (int i = 0; i < DR_STATES; i++) {
        if (!to->count[i]) continue;
        const size_t bytes = dr_kind_bytes(backend, DR_NUMBER, dr_state_words(to, (dr_state_kind)i));
        DR_TRY(backend->ops->copy(to->backend, (char *)to->at[i] + (size_t)begin * bytes,
                                  (const char *)from->at[i] + (size_t)first * bytes, (size_t)count * bytes));
    }
    return DR_OK;
}

/* A state like another one, of so many sequences. */
static dr_status create_like(const dr_state *state, int64_t sequences, dr_state **made) {
    dr_recurrence recurrence = state->recurrence;
    recurrence.layout = (dr_layout){.sequences = sequences, .rows = sequences};
    return dr_state_create(state->backend, &recurrence, made);
}

dr_status dr_state_slice(const dr_state *state, int64_t first, int64_t count, dr_state **part) {
    DR_NEED(state);
    DR_NEED(part);
    const int64_t sequences = state->recurrence.layout.sequences;
    if (first < 0 || count < 1 || first > sequences - count)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%" PRId64 " sequences from %" PRId64 " on are not among the %" PRId64 " of the state", count, first,
                       sequences);
    dr_state *made;
    DR_TRY(create_like(state, count, &made));
    dr_status status = copy_sequences(state, first, count, made, 0);
    if (status != DR_OK) {
        dr_state_destroy(made);
        return status;
    }
    *part = made;
    return DR_OK;
}

dr_status dr_state_clone(const dr_state *state, dr_state **copy) {
    DR_NEED(state);
    DR_NEED(copy);
    return dr_state_slice(state, 0, state->recurrence.layout.sequences, copy);
}

static dr_status check_parts(const dr_state *const *parts, int64_t count, int64_t *sequences) {
    char what[32];
    *sequences = 0;
    for (int64_t i = 0; i < count; i++) {
        snprintf(what, sizeof what, "part %" PRId64, i);
        if (!parts[i]) return dr_fail(DR_ERROR_ARGUMENT, "%s is missing", what);
        DR_TRY(check_backend(parts[i], what, parts[0]->backend));
        DR_TRY(dr_state_compare(&parts[i]->recurrence, what, &parts[0]->recurrence, "part 0", false));
        *sequences += parts[i]->recurrence.layout.sequences;
    }
    return DR_OK;
}

dr_status dr_state_concatenate(const dr_state *const *parts, int64_t count, dr_state **whole) {
    int64_t sequences, begin = 0;
    dr_state *made;
    DR_NEED(parts);
    DR_NEED(whole);
    if (count < 1) return dr_fail(DR_ERROR_ARGUMENT, "there must be at least one part to put together");
    DR_TRY(check_parts(parts, count, &sequences));
    DR_TRY(create_like(parts[0], sequences, &made));
    for (int64_t i = 0; i < count; i++) {
        const int64_t own = parts[i]->recurrence.layout.sequences;
        dr_status status = copy_sequences(parts[i], 0, own, made, begin);
        if (status != DR_OK) {
            dr_state_destroy(made);
            return status;
        }
        begin += own;
    }
    *whole = made;
    return DR_OK;
}
