/* SwiGLU. The backward makes the product silu(gate) * up again instead of keeping it. */
#include "nn/modules/swiglu.h"
#include "base/error.h"

typedef struct {
    dr_module module;
    int64_t intermediate;
    int gate, up, down; /* list */
} swiglu;

typedef struct {
    void *gate, *up; /* [rows, intermediate] */
} swiglu_memory;

typedef struct {
    void *act;                   /* [rows, intermediate] */
    void *d_act, *d_gate, *d_up; /* likewise, of the backward alone */
} swiglu_scratch;

static const swiglu *of(const dr_module_call *call) {
    return (const swiglu *)call->module;
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    (void)keep;
    const size_t inner = dr_module_bytes(call, DR_VECTOR, of(call)->intermediate);
    swiglu_memory *made = memory;
    made->gate = dr_arena_take(arena, inner);
    made->up = dr_arena_take(arena, inner);
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    const size_t inner = dr_module_bytes(call, DR_VECTOR, of(call)->intermediate);
    swiglu_scratch *use = scratch;
    use->act = dr_arena_take(arena, inner);
    if (!backward) return;
    use->d_act = dr_arena_take(arena, inner);
    use->d_gate = dr_arena_take(arena, inner);
    use->d_up = dr_arena_take(arena, inner);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const swiglu *mlp = of(call);
    const swiglu_memory *made = call->memory;
    const swiglu_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, inner = mlp->intermediate;
    const dr_linear in = {rows, hidden, inner}, out = {rows, inner, hidden};
    DR_TRY(ops->linear_forward(call->backend, &in, x, dr_module_weight(call, mlp->gate), NULL, made->gate));
    DR_TRY(ops->linear_forward(call->backend, &in, x, dr_module_weight(call, mlp->up), NULL, made->up));
    DR_TRY(ops->swiglu_forward(call->backend, rows * inner, made->gate, made->up, use->act));
    return ops->linear_forward(call->backend, &out, use->act, dr_module_weight(call, mlp->down), NULL, y);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const swiglu *mlp = of(call);
    const swiglu_memory *made = call->memory;
    const swiglu_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, inner = mlp->intermediate;
    const dr_linear in = {rows, hidden, inner}, out = {rows, inner, hidden};
    DR_TRY(ops->swiglu_forward(call->backend, rows * inner, made->gate, made->up, use->act));
    DR_TRY(ops->linear_backward(call->backend, &out, use->act, dr_module_weight(call, mlp->down), d_y, use->d_act, false,
                                dr_module_gradient(call, mlp->down), NULL));
    DR_TRY(ops->swiglu_backward(call->backend, rows * inner, made->gate, made->up, use->d_act, use->d_gate, use->d_up));
    DR_TRY(ops->linear_backward(call->backend, &in, x, dr_module_weight(call, mlp->gate), use->d_gate, d_x, false,
                                dr_module_gradient(call, mlp->gate), NULL));
    return ops->linear_backward(call->backend, &in, x, dr_module_weight(call, mlp->up), use->d_up, d_x, true,
                                dr_module_gradient(call, mlp->up), NULL);
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_release(module);
}

static const dr_operation needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_SWIGLU, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "swiglu",
                                                .needs = needs,
                                                .memory_size = sizeof(swiglu_memory),
                                                .scratch_size = sizeof(swiglu_scratch),
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

dr_status dr_swiglu_create(int64_t hidden, int64_t intermediate, const char *prefix, dr_layer_parameters *list,
                           dr_module **module) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0};
    void *memory = NULL;
    dr_status status = DR_OK;
    DR_TRY(dr_allocate_zero(sizeof(swiglu), "a feed-forward", &memory));
    swiglu *mlp = memory;
    mlp->module = (dr_module){&operations, hidden};
    mlp->intermediate = intermediate;
    DR_GO(dr_add_matrix(list, prefix, "gate_proj.weight", normal, intermediate, hidden, 0, &mlp->gate));
    DR_GO(dr_add_matrix(list, prefix, "up_proj.weight", normal, intermediate, hidden, 0, &mlp->up));
    DR_GO(dr_add_matrix(list, prefix, "down_proj.weight", normal, hidden, intermediate, 0, &mlp->down));
    *module = &mlp->module;
    return DR_OK;
done:
    dr_release(mlp);
    return status;
}
