/* The feed-forward of RWKV-7. The backward squares again instead of keeping the squares. */
#include "nn/modules/rwkv7_channel_mix.h"
#include "base/error.h"
#include <inttypes.h>

typedef struct {
    dr_module module;
    int64_t width;
    int x_mix, up, down; /* list */
} channel_mix;

typedef struct {
    void *mixed; /* [rows, hidden] */
    void *inner; /* [rows, width] */
} channel_memory;

typedef struct {
    void *squared;           /* [rows, width] */
    void *d_inner, *d_mixed; /* of the backward alone */
} channel_scratch;

typedef struct {
    void *shift; /* [sequences, hidden], the last x */
} channel_state;

static const channel_mix *of(const dr_module_call *call) {
    return (const channel_mix *)call->module;
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    (void)keep;
    channel_memory *made = memory;
    made->mixed = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->module.hidden));
    made->inner = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->width));
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    channel_scratch *use = scratch;
    use->squared = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->width));
    if (!backward) return;
    use->d_inner = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->width));
    use->d_mixed = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->module.hidden));
}

static void place_state(const dr_module *module, dr_backend *backend, int64_t sequences, dr_arena *arena, void *memory) {
    channel_state *state = memory;
    state->shift = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, sequences * module->hidden));
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const channel_mix *mlp = of(call);
    const channel_memory *made = call->memory;
    const channel_scratch *use = call->scratch;
    const channel_state *state = call->state;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, width = mlp->width;
    const dr_token_shift shift = {call->layout, hidden, 1};
    const dr_linear up = {.rows = rows, .in = hidden, .out = width}, down = {.rows = rows, .in = width, .out = hidden};
    void *carried = state ? state->shift : NULL;
    DR_TRY(ops->token_shift_forward(call->backend, &shift, x, dr_module_parameter(call, mlp->x_mix), carried, made->mixed,
                                    carried));
    DR_TRY(ops->linear_forward(call->backend, &up, made->mixed, dr_module_weight(call, mlp->up), NULL, made->inner));
    DR_TRY(ops->apply_forward(call->backend, DR_FUNCTION_SQUARED_RELU, rows * width, made->inner, use->squared));
    return ops->linear_forward(call->backend, &down, use->squared, dr_module_weight(call, mlp->down), NULL, y);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const channel_mix *mlp = of(call);
    const channel_memory *made = call->memory;
    const channel_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, width = mlp->width;
    const dr_token_shift shift = {call->layout, hidden, 1};
    const dr_linear up = {.rows = rows, .in = hidden, .out = width}, down = {.rows = rows, .in = width, .out = hidden};
    DR_TRY(ops->apply_forward(call->backend, DR_FUNCTION_SQUARED_RELU, rows * width, made->inner, use->squared));
    DR_TRY(ops->linear_backward(call->backend, &down, use->squared, dr_module_weight(call, mlp->down), d_y, use->d_inner, false,
                                dr_module_gradient(call, mlp->down), NULL));
    DR_TRY(ops->apply_backward(call->backend, DR_FUNCTION_SQUARED_RELU, rows * width, made->inner, use->d_inner, use->d_inner));
    DR_TRY(ops->linear_backward(call->backend, &up, made->mixed, dr_module_weight(call, mlp->up), use->d_inner, use->d_mixed,
                                false, dr_module_gradient(call, mlp->up), NULL));
    return ops->token_shift_backward(call->backend, &shift, x, dr_module_parameter(call, mlp->x_mix), NULL, use->d_mixed, d_x,
                                     false, dr_module_gradient(call, mlp->x_mix));
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_release(module);
}

static const dr_operation needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_TOKEN_SHIFT, DR_OPERATION_APPLY, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "rwkv7_channel_mix",
                                                .needs = needs,
                                                .memory_size = sizeof(channel_memory),
                                                .scratch_size = sizeof(channel_scratch),
                                                .state_size = sizeof(channel_state),
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .place_state = place_state,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

dr_status dr_rwkv7_channel_mix_create(dr_backend *backend, int64_t hidden, int64_t width, const char *prefix,
                                      dr_layer_parameters *list, dr_module **module) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, half = {DR_INITIAL_CONSTANT, 0.5};
    void *memory = NULL;
    dr_status status = DR_OK;
    (void)backend;
    if (width < 1) return dr_fail(DR_ERROR_ARGUMENT, "a feed-forward of width %" PRId64 "; it must be 1 at least", width);
    DR_TRY(dr_allocate_zero(sizeof(channel_mix), "a feed-forward", &memory));
    channel_mix *mlp = memory;
    mlp->module = (dr_module){.operations = &operations, .hidden = hidden};
    mlp->width = width;
    DR_GO(dr_add_vector(list, prefix, "x_mix", half, 1, hidden, &mlp->x_mix));
    DR_GO(dr_add_matrix(list, prefix, "up_proj.weight", normal, width, hidden, 0, &mlp->up));
    DR_GO(dr_add_matrix(list, prefix, "down_proj.weight", normal, hidden, width, 0, &mlp->down));
    *module = &mlp->module;
    return DR_OK;
done:
    dr_release(mlp);
    return status;
}
