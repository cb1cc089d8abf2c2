/* Which operations a backend has: those whose functions stand in its table, forward and backward. */
#include "ops/operations.h"

const char *dr_operation_name(dr_operation operation) {
    static const char *const names[DR_OPERATIONS] = {
        [DR_OPERATION_LINEAR] = "linear",
        [DR_OPERATION_GROUPED_LINEAR] = "grouped_linear",
        [DR_OPERATION_EMBEDDING] = "embedding",
        [DR_OPERATION_RMS_NORM] = "rms_norm",
        [DR_OPERATION_L2_NORM] = "l2_norm",
        [DR_OPERATION_LAYER_NORM] = "layer_norm",
        [DR_OPERATION_SUM_NORM] = "sum_norm",
        [DR_OPERATION_CONV] = "conv",
        [DR_OPERATION_GATE] = "gate",
        [DR_OPERATION_ROTARY] = "rotary",
        [DR_OPERATION_ATTENTION] = "attention",
        [DR_OPERATION_ROUTE] = "route",
        [DR_OPERATION_EXPERTS] = "experts",
        [DR_OPERATION_TOKEN_SHIFT] = "token_shift",
        [DR_OPERATION_BLEND] = "blend",
        [DR_OPERATION_BONUS] = "bonus",
        [DR_OPERATION_APPLY] = "apply",
        [DR_OPERATION_SWIGLU] = "swiglu",
        [DR_OPERATION_ADD] = "add",
        [DR_OPERATION_SCALE_HEADS] = "scale_heads",
        [DR_OPERATION_ROWS_GATHER] = "rows_gather",
        [DR_OPERATION_ROWS_SCATTER] = "rows_scatter",
        [DR_OPERATION_CROSS_ENTROPY] = "cross_entropy",
        [DR_OPERATION_SUM_SQUARES] = "sum_squares",
        [DR_OPERATION_ADAMW] = "adamw",
        [DR_OPERATION_TIME_RUNS] = "time_runs",
        [DR_OPERATION_BOUNDARY] = "recurrence_boundary",
    };
    return names[operation];
}

bool dr_supports(const dr_backend *backend, dr_operation operation) {
    const dr_operations *ops = backend->ops;
    switch (operation) {
    case DR_OPERATION_LINEAR:
        return ops->linear_forward && ops->linear_backward;
    case DR_OPERATION_GROUPED_LINEAR:
        return ops->grouped_linear_forward && ops->grouped_linear_backward;
    case DR_OPERATION_EMBEDDING:
        return ops->embedding_forward && ops->embedding_backward;
    case DR_OPERATION_RMS_NORM:
        return ops->rms_norm_forward && ops->rms_norm_backward;
    case DR_OPERATION_L2_NORM:
        return ops->l2_norm_forward && ops->l2_norm_backward;
    case DR_OPERATION_LAYER_NORM:
        return ops->layer_norm_forward && ops->layer_norm_backward;
    case DR_OPERATION_SUM_NORM:
        return ops->sum_norm_forward && ops->sum_norm_backward;
    case DR_OPERATION_CONV:
        return ops->conv_forward && ops->conv_backward;
    case DR_OPERATION_GATE:
        return ops->gate_forward && ops->gate_backward;
    case DR_OPERATION_ROTARY:
        return ops->rotary;
    case DR_OPERATION_ATTENTION:
        return ops->attention_forward && ops->attention_backward && ops->attention_append;
    case DR_OPERATION_ROUTE:
        return ops->route_forward && ops->route_backward && ops->balance;
    case DR_OPERATION_EXPERTS:
        return ops->experts_sort && ops->experts_gather_forward && ops->experts_gather_backward &&
               ops->experts_linear_forward && ops->experts_linear_backward && ops->experts_combine_forward &&
               ops->experts_combine_backward;
    case DR_OPERATION_TOKEN_SHIFT:
        return ops->token_shift_forward && ops->token_shift_backward;
    case DR_OPERATION_BLEND:
        return ops->blend_forward && ops->blend_backward;
    case DR_OPERATION_BONUS:
        return ops->bonus_forward && ops->bonus_backward;
    case DR_OPERATION_APPLY:
        return ops->apply_forward && ops->apply_backward && ops->gated_forward && ops->gated_backward;
    case DR_OPERATION_SWIGLU:
        return ops->swiglu_forward && ops->swiglu_backward;
    case DR_OPERATION_ADD:
        return ops->add;
    case DR_OPERATION_SCALE_HEADS:
        return ops->scale_heads_forward && ops->scale_heads_backward;
    case DR_OPERATION_ROWS_GATHER:
        return ops->rows_gather;
    case DR_OPERATION_ROWS_SCATTER:
        return ops->rows_scatter;
    case DR_OPERATION_CROSS_ENTROPY:
        return ops->cross_entropy;
    case DR_OPERATION_SUM_SQUARES:
        return ops->sum_squares;
    case DR_OPERATION_ADAMW:
        return ops->adamw;
    case DR_OPERATION_TIME_RUNS:
        return ops->time_runs;
    case DR_OPERATION_BOUNDARY:
        return ops->recurrence_chunk && ops->recurrence_boundary;
    case DR_OPERATIONS:
        break;
    }
    return false;
}
