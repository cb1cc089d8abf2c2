/* Plans: what was asked for is checked and copied, and the backend settles the rest. */
#include "ops/plan.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/forms.h"
#include "ops/operations.h"
#include "ops/plan_make.h"
#include "ops/shapes.h"
#include <deltarule/prefill.h>

dr_status dr_plan_make(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms, unsigned calls,
                       dr_plan *plan) {
    if (recurrence->bf16_state && !backend->ops->bf16_state)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s has no states in bfloat16", backend->ops->name);
    plan->backend = backend;
    plan->rule = *recurrence->rule;
    plan->recurrence = *recurrence;
    plan->recurrence.rule = &plan->rule;
    plan->recurrence.layout.cu_seqlens = NULL;
    plan->bounded = recurrence->longest > 0;
    if (!plan->bounded) plan->recurrence.longest = recurrence->layout.rows > 1 ? recurrence->layout.rows : 1;
    plan->calls = calls;
    plan->forms = forms ? *forms : dr_forms_default(backend);
    plan->formed = forms && !dr_forms_are_plain(backend, forms);
    if (plan->formed && !backend->ops->forms)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend %s takes dense tensors in its own types, and makes nothing of inputs before "
                       "it reads them: give it those",
                       backend->ops->name);
    plan->room = 0;
    return backend->ops->recurrence_plan(plan);
}

/* A workspace also holds the boundaries of calls that have them as int32. */
static void add_room(dr_plan *plan) {
    dr_arena room = {0};
    if (plan->backend->ops->device || !(plan->calls & DR_CALLS_PACKED)) return;
    dr_arena_take(&room, (size_t)(plan->recurrence.layout.sequences + 1) * sizeof(int64_t));
    plan->room = room.used;
    plan->memory.forward += room.used;
    plan->memory.backward += room.used;
}

static dr_status make_for(unsigned calls, dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                          dr_plan *plan) {
    DR_TRY(dr_recurrence_check_bounds(recurrence));
    if (forms) DR_TRY(dr_forms_check(backend, recurrence, forms));
    const dr_layout *layout = &recurrence->layout;
    const unsigned even = layout->rows % layout->sequences == 0 ? DR_CALLS_EVEN : 0;
    DR_TRY(dr_plan_make(backend, recurrence, forms, DR_CALLS_PACKED | even | calls, plan));
    plan->rule.name = plan->rule.title = plan->rule.source = NULL; /* text of the caller's */
    add_room(plan);
    return DR_OK;
}

dr_status dr_plan_make_any(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms, dr_plan *plan) {
    return make_for(0, backend, recurrence, forms, plan);
}

dr_status dr_plan_create(dr_backend *backend, const dr_recurrence *recurrence, dr_plan **plan) {
    return dr_plan_create_with_forms(backend, recurrence, NULL, plan);
}

static dr_status create_for(unsigned calls, dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                            dr_plan **plan) {
    DR_NEED(backend);
    DR_NEED(plan);
    void *memory;
    DR_TRY(dr_allocate(sizeof(dr_plan), "a plan", &memory));
    const dr_status status = make_for(calls, backend, recurrence, forms, memory);
    if (status != DR_OK) {
        dr_release(memory);
        return status;
    }
    *plan = memory;
    return DR_OK;
}

dr_status dr_plan_create_with_forms(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                                    dr_plan **plan) {
    return create_for(0, backend, recurrence, forms, plan);
}

dr_status dr_plan_create_for_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                                   dr_plan **plan) {
    return create_for(DR_CALLS_POOLED, backend, recurrence, forms, plan);
}

void dr_plan_destroy(dr_plan *plan) {
    dr_release(plan);
}

/* ---- what it tells --------------------------------------------------------------------------------------------------- */

dr_status dr_plan_memory(const dr_plan *plan, dr_recurrence_memory *memory) {
    DR_NEED(plan);
    DR_NEED(memory);
    *memory = plan->memory;
    return DR_OK;
}

dr_status dr_plan_saved(const dr_plan *plan, dr_saved_size *saved) {
    DR_NEED(plan);
    DR_NEED(saved);
    *saved = plan->saved;
    return DR_OK;
}

static size_t add_product(size_t sum, size_t each, int64_t count) {
    size_t product;
    if (count < 0 || __builtin_mul_overflow(each, (size_t)count, &product) || __builtin_add_overflow(sum, product, &sum))
        return SIZE_MAX;
    return sum;
}

size_t dr_saved_bytes(const dr_saved_size *saved, int64_t rows, int64_t sequences) {
    if (!saved || saved->segment < 1 || rows < 0 || sequences < 0 || rows / saved->segment > INT64_MAX - sequences)
        return SIZE_MAX;
    size_t bytes = add_product(saved->fixed, saved->per_row, rows);
    bytes = add_product(bytes, saved->per_sequence, sequences);
    return add_product(bytes, saved->per_segment, rows / saved->segment + sequences);
}

const char *dr_stage_name(dr_stage stage) {
    switch (stage) {
    case DR_STAGE_PREPARE:
        return "prepare";
    case DR_STAGE_STATE_PASS:
        return "state pass";
    case DR_STAGE_OUTPUT:
        return "output";
    case DR_STAGE_BACKWARD:
        return "backward";
    case DR_STAGE_DECODE:
        return "decode";
    case DR_STAGES:
        break;
    }
    return "unknown stage";
}

dr_status dr_plan_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path) {
    DR_NEED(plan);
    DR_NEED(path);
    if ((int)stage < 0 || stage >= DR_STAGES)
        return dr_fail(DR_ERROR_ARGUMENT, "there is no stage %d: they are 0 to %d", (int)stage, DR_STAGES - 1);
    if (!packed && !(plan->calls & DR_CALLS_EVEN))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%lld rows cannot be %lld sequences of one length: calls of this plan have boundaries",
                       (long long)plan->recurrence.layout.rows, (long long)plan->recurrence.layout.sequences);
    plan->backend->ops->recurrence_path(plan, packed, stage, path);
    return DR_OK;
}
