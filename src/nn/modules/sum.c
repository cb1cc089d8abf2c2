/* A sum of modules is a module whose structs are those of its parts one behind another: its operations differ from sum to sum
 * in their sizes and needs, and so lie in the module itself. */
#include "nn/modules/sum.h"
#include "base/error.h"

enum { MOST_NEEDS = 48 };

/* Where the parts' structs begin, in bytes. */
typedef struct {
    size_t plan, memory, scratch, state;
} places;

typedef struct {
    dr_module module;
    dr_module_operations operations;
    dr_operation needs[MOST_NEEDS + 1];
    int count;
    dr_summand of[DR_SUM_MOST];
    places at[DR_SUM_MOST];
} sum;

/* What the sum itself makes; stands before the parts' structs. */
typedef struct {
    void *scaled, *made; /* [rows, hidden]; scaled is NULL where no input is */
    void *d_made, *d_x;  /* of the backward alone */
} sum_scratch;

static const sum *of(const dr_module_call *call) {
    return (const sum *)call->module;
}

static bool scales_inputs(const sum *s) {
    for (int i = 0; i < s->count; i++)
        if (s->of[i].input_scale != 1) return true;
    return false;
}

static void *behind(const void *block, size_t bytes) {
    return block ? (char *)block + bytes : NULL;
}

/* The call of a part. */
static dr_module_call part_call(const dr_module_call *call, int i) {
    const sum *s = of(call);
    dr_module_call part = *call;
    part.module = s->of[i].module;
    part.plan = behind(call->plan, s->at[i].plan);
    part.memory = behind(call->memory, s->at[i].memory);
    part.scratch = behind(call->scratch, s->at[i].scratch);
    part.state = behind(call->state, s->at[i].state);
    return part;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static dr_status plan(const dr_module *module, dr_backend *backend, const dr_layout *layout, void *memory) {
    const sum *s = (const sum *)module;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->plan) DR_TRY(part->operations->plan(part, backend, layout, behind(memory, s->at[i].plan)));
    }
    return DR_OK;
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    const sum *s = of(call);
    for (int i = 0; i < s->count; i++) {
        const dr_module_call part = part_call(call, i);
        part.module->operations->place(&part, keep, arena, behind(memory, s->at[i].memory));
    }
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    const sum *s = of(call);
    const size_t stream = dr_module_bytes(call, DR_VECTOR, s->module.hidden);
    sum_scratch *use = scratch;
    *use = (sum_scratch){.made = dr_arena_take(arena, stream)};
    if (scales_inputs(s)) use->scaled = dr_arena_take(arena, stream);
    if (backward) {
        use->d_made = dr_arena_take(arena, stream);
        use->d_x = dr_arena_take(arena, stream);
    }
    /* the parts work one after another */
    const size_t shared = arena->used;
    size_t end = shared;
    for (int i = 0; i < s->count; i++) {
        const dr_module_call part = part_call(call, i);
        dr_arena_rewind(arena, shared);
        part.module->operations->place_scratch(&part, backward, arena, behind(scratch, s->at[i].scratch));
        if (arena->used > end) end = arena->used;
    }
    dr_arena_rewind(arena, end);
}

static void place_state(const dr_module *module, dr_backend *backend, int64_t sequences, dr_arena *arena, void *state) {
    const sum *s = (const sum *)module;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->place_state)
            part->operations->place_state(part, backend, sequences, arena, behind(state, s->at[i].state));
    }
}

static dr_status reserve_state(const dr_module *module, dr_backend *backend, int64_t sequences, int64_t tokens, void *state) {
    const sum *s = (const sum *)module;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->reserve_state)
            DR_TRY(part->operations->reserve_state(part, backend, sequences, tokens, behind(state, s->at[i].state)));
    }
    return DR_OK;
}

static void release_state(const dr_module *module, dr_backend *backend, void *state) {
    const sum *s = (const sum *)module;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->release_state) part->operations->release_state(part, backend, behind(state, s->at[i].state));
    }
}

static int64_t grown(const dr_module *module, const void *state, dr_grown *tensors) {
    const sum *s = (const sum *)module;
    int64_t count = 0;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->grown)
            count += part->operations->grown(part, behind((void *)state, s->at[i].state), tensors ? tensors + count : NULL);
    }
    return count;
}

static dr_status chunk(const dr_module *module, dr_backend *backend, int64_t *tokens) {
    const sum *s = (const sum *)module;
    *tokens = 1;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        int64_t own = 1;
        if (part->operations->chunk) DR_TRY(part->operations->chunk(part, backend, &own));
        *tokens = dr_common_multiple(*tokens, own);
    }
    return DR_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

/* What a part reads. */
static dr_status input_of(const dr_module_call *call, int i, const void *x, const void **in) {
    const sum_scratch *use = call->scratch;
    const double factor = of(call)->of[i].input_scale;
    *in = factor == 1 ? x : use->scaled;
    if (factor == 1) return DR_OK;
    return dr_module_scale(call->backend, factor, call->layout.rows * call->module->hidden, x, use->scaled);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const sum *s = of(call);
    const sum_scratch *use = call->scratch;
    const int64_t count = call->layout.rows * s->module.hidden;
    call->backend->ops->zero(call->backend, y, dr_module_bytes(call, DR_VECTOR, s->module.hidden));
    for (int i = 0; i < s->count; i++) {
        const dr_module_call part = part_call(call, i);
        const void *in;
        DR_TRY(input_of(call, i, x, &in));
        DR_TRY(part.module->operations->forward(&part, in, use->made));
        DR_TRY(call->backend->ops->add(call->backend, DR_VECTOR, count, s->of[i].output_scale, use->made, y));
    }
    return DR_OK;
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const sum *s = of(call);
    const sum_scratch *use = call->scratch;
    const int64_t count = call->layout.rows * s->module.hidden;
    call->backend->ops->zero(call->backend, d_x, dr_module_bytes(call, DR_VECTOR, s->module.hidden));
    for (int i = 0; i < s->count; i++) {
        const dr_module_call part = part_call(call, i);
        const void *in;
        DR_TRY(input_of(call, i, x, &in));
        DR_TRY(dr_module_scale(call->backend, s->of[i].output_scale, count, d_y, use->d_made));
        DR_TRY(part.module->operations->backward(&part, in, use->d_made, use->d_x));
        DR_TRY(call->backend->ops->add(call->backend, DR_VECTOR, count, s->of[i].input_scale, use->d_x, d_x));
    }
    return DR_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static void destroy(dr_backend *backend, dr_module *module) {
    sum *s = (sum *)module;
    for (int i = 0; i < s->count; i++) s->of[i].module->operations->destroy(backend, s->of[i].module);
    dr_release(s);
}

static size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Puts the structs of part i behind those of the parts before. */
static void append(sum *s, int i) {
    const dr_module_operations *part = s->of[i].module->operations;
    dr_module_operations *own = &s->operations;
    s->at[i] = (places){own->plan_size, own->memory_size, own->scratch_size, own->state_size};
    own->plan_size += aligned(part->plan_size);
    own->memory_size += aligned(part->memory_size);
    own->scratch_size += aligned(part->scratch_size);
    own->state_size += aligned(part->state_size);
    if (part->place_state) own->place_state = place_state;
    if (part->reserve_state) own->reserve_state = reserve_state, own->release_state = release_state;
    if (part->grown) own->grown = grown;
    if (part->chunk) own->chunk = chunk;
}

/* That of the part that has one. */
static int64_t passed(const dr_module *module, bool *writes) {
    const sum *s = (const sum *)module;
    for (int i = 0; i < s->count; i++) {
        const dr_module *part = s->of[i].module;
        if (part->operations->passed) return part->operations->passed(part, writes);
    }
    return 0;
}

dr_status dr_sum_create(int count, const dr_summand *summands, dr_module **module) {
    void *memory = NULL;
    int needs = 0;
    DR_TRY(dr_allocate_zero(sizeof(sum), "a sum of mixers", &memory));
    sum *s = memory;
    s->operations = (dr_module_operations){.name = "sum",
                                           .needs = s->needs,
                                           .scratch_size = aligned(sizeof(sum_scratch)),
                                           .plan = plan,
                                           .place = place,
                                           .place_scratch = place_scratch,
                                           .passed = passed,
                                           .forward = forward,
                                           .backward = backward,
                                           .destroy = destroy};
    s->module = (dr_module){&s->operations, summands[0].module->hidden};
    s->needs[needs++] = DR_OPERATION_ADD, s->needs[needs++] = DR_OPERATION_BOUND;
    for (s->count = 0; s->count < count; s->count++) {
        const dr_operation *of_part = summands[s->count].module->operations->needs;
        s->of[s->count] = summands[s->count];
        append(s, s->count);
        for (; *of_part != DR_OPERATIONS && needs < MOST_NEEDS; of_part++) s->needs[needs++] = *of_part;
    }
    s->needs[needs] = DR_OPERATIONS;
    *module = &s->module;
    return DR_OK;
}
