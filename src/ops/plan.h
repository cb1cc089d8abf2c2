/* A plan as backends see it: what was asked for, and what they keep about it. */
#ifndef DR_OPS_PLAN_H
#define DR_OPS_PLAN_H

#include <deltarule/plan.h>

/* What calls may be: each sequence has as many rows, or boundaries tell. A call without a plan is of one kind only. */
enum { DR_CALLS_EVEN = 1, DR_CALLS_PACKED = 2 };

enum { DR_PLAN_ENGINE_BYTES = 12288, DR_POINTER_ALIGNMENT = 16 };

struct dr_plan {
    dr_backend *backend;
    dr_recurrence recurrence; /* rule is the one below; no cu_seqlens; longest is 1 at least */
    dr_rule rule;
    dr_forms forms; /* those of dr_forms_default unless formed */
    bool formed;
    bool bounded; /* longest is the caller's bound, not that of the rows */
    unsigned calls;
    dr_recurrence_memory memory;
    dr_saved_size saved;
    size_t room; /* at the head of a workspace, for boundaries that ops widens to int64 */
    union {      /* the backend's own, plain data that may be copied */
        double number;
        const void *pointer;
        unsigned char bytes[DR_PLAN_ENGINE_BYTES];
    } engine;
};

static inline int64_t dr_boundaries_at(const dr_boundaries *boundaries, int64_t i) {
    return boundaries->dtype == DR_I32 ? ((const int32_t *)boundaries->at)[i] : ((const int64_t *)boundaries->at)[i];
}

/* The layout of a call whose boundaries, if it has any, are int64 in host memory. */
static inline dr_layout dr_call_layout(const dr_plan *plan, const dr_call *call) {
    dr_layout layout = plan->recurrence.layout;
    layout.cu_seqlens = (const int64_t *)call->boundaries.at;
    return layout;
}

#endif
