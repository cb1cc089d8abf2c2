/* Which operations a backend has: those all of whose functions stand in its table. */
#include "ops/operations.h"

#include <stddef.h>
#include <string.h>

#define AT(function) offsetof(dr_operations, function)
#define BOTH(name)   AT(name##_forward), AT(name##_backward)

/* functions: their places in the table of a backend, then 0, where its name stands */
static const struct {
    const char *name;
    size_t functions[8];
} operations[DR_OPERATIONS] = {
    [DR_OPERATION_LINEAR] = {"linear", {BOTH(linear)}},
    [DR_OPERATION_GROUPED_LINEAR] = {"grouped_linear", {BOTH(grouped_linear)}},
    [DR_OPERATION_EMBEDDING] = {"embedding", {BOTH(embedding)}},
    [DR_OPERATION_RMS_NORM] = {"rms_norm", {BOTH(rms_norm)}},
    [DR_OPERATION_L2_NORM] = {"l2_norm", {BOTH(l2_norm)}},
    [DR_OPERATION_LAYER_NORM] = {"layer_norm", {BOTH(layer_norm)}},
    [DR_OPERATION_SUM_NORM] = {"sum_norm", {BOTH(sum_norm)}},
    [DR_OPERATION_CONV] = {"conv", {BOTH(conv)}},
    [DR_OPERATION_GATE] = {"gate", {BOTH(gate)}},
    [DR_OPERATION_ROTARY] = {"rotary", {AT(rotary)}},
    [DR_OPERATION_ATTENTION] = {"attention", {BOTH(attention), AT(attention_append)}},
    [DR_OPERATION_ROUTE] = {"route", {BOTH(route), AT(balance)}},
    [DR_OPERATION_EXPERTS] = {"experts", {AT(experts_sort), BOTH(experts_gather), BOTH(experts_linear), BOTH(experts_combine)}},
    [DR_OPERATION_TOKEN_SHIFT] = {"token_shift", {BOTH(token_shift)}},
    [DR_OPERATION_BLEND] = {"blend", {BOTH(blend)}},
    [DR_OPERATION_BONUS] = {"bonus", {BOTH(bonus)}},
    [DR_OPERATION_DEPTH] = {"depth", {BOTH(depth)}},
    [DR_OPERATION_APPLY] = {"apply", {BOTH(apply), BOTH(gated)}},
    [DR_OPERATION_BOUND] = {"bound", {BOTH(bound)}},
    [DR_OPERATION_SWIGLU] = {"swiglu", {BOTH(swiglu)}},
    [DR_OPERATION_ADD] = {"add", {AT(add)}},
    [DR_OPERATION_SCALE_HEADS] = {"scale_heads", {BOTH(scale_heads)}},
    [DR_OPERATION_COPY_HEADS] = {"copy_heads", {AT(copy_heads)}},
    [DR_OPERATION_ROWS_GATHER] = {"rows_gather", {AT(rows_gather)}},
    [DR_OPERATION_ROWS_SCATTER] = {"rows_scatter", {AT(rows_scatter)}},
    [DR_OPERATION_CROSS_ENTROPY] = {"cross_entropy", {AT(cross_entropy)}},
    [DR_OPERATION_SUM_LOSSES] = {"sum_losses", {AT(sum_losses)}},
    [DR_OPERATION_CLIP] = {"clip", {AT(clip)}},
    [DR_OPERATION_SUM_SQUARES] = {"sum_squares", {AT(sum_squares)}},
    [DR_OPERATION_ADAMW] = {"adamw", {AT(adamw)}},
    [DR_OPERATION_MUON] = {"muon", {AT(momentum), AT(descend)}},
    [DR_OPERATION_TIME_RUNS] = {"time_runs", {AT(time_runs)}},
    [DR_OPERATION_BOUNDARY] = {"recurrence_boundary", {AT(recurrence_chunk), AT(recurrence_boundary)}},
};

const char *dr_operation_name(dr_operation operation) {
    return operations[operation].name;
}

bool dr_supports(const dr_backend *backend, dr_operation operation) {
    if ((int)operation < 0 || operation >= DR_OPERATIONS) return false;
    for (const size_t *at = operations[operation].functions; *at != 0; at++) {
        void (*function)(void);
        memcpy(&function, (const char *)backend->ops + *at, sizeof function);
        if (!function) return false;
    }
    return true;
}
