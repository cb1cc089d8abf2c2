/* Feed-forwards. The backward makes what the last projection reads again instead of keeping it. */
#include "nn/modules/feed_forward.h"
#include "base/error.h"
#include <inttypes.h>
#include <math.h>

typedef struct {
    dr_module module;
    int64_t width;
    dr_feed_act act;
    double down_factor;
    bool panel;         /* gate and up are one product, whose weights are one behind the other */
    int64_t columns[2]; /* of it: width each */
    struct {
        int weight, bias; /* list */
    } gate, up, down;
} feed_forward;

typedef struct {
    void *gate, *up; /* [rows, width]; not gated: no gate; one product: up is NULL, gate the panel, then its gradient */
    void *act;       /* likewise, what the last product reads, where it is kept, else NULL */
} feed_memory;

typedef struct {
    void *act; /* [rows, width] */
    dr_feed_bounded bounded;
    void *d_act, *d_gate, *d_up; /* likewise, of the backward alone */
    void *d_out;                 /* [rows, hidden], where the output has a factor */
} feed_scratch;

static const feed_forward *of(const dr_module_call *call) {
    return (const feed_forward *)call->module;
}

/* ---- between the projections ---------------------------------------------------------------------------------------- */

static bool is_bounded(const dr_bound *bound) {
    return bound->factor != 1 || isfinite(bound->low) || isfinite(bound->high);
}

dr_feed_act dr_feed_act_of(const dr_feed_forward_description *description, bool gated) {
    const double limit = gated && description->limit > 0 ? description->limit : (double)INFINITY;
    return (dr_feed_act){.gated = gated,
                         .function = description->function,
                         .gate = {description->gate_factor, (double)-INFINITY, limit},
                         .up = {1, -limit, limit}};
}

void dr_feed_act_place(const dr_feed_act *act, size_t bytes, dr_arena *arena, dr_feed_bounded *bounded) {
    if (act->gated && is_bounded(&act->gate)) bounded->gate = dr_arena_take(arena, bytes);
    if (is_bounded(&act->up)) bounded->up = dr_arena_take(arena, bytes);
}

dr_status dr_feed_act_forward(dr_backend *backend, const dr_feed_act *act, int64_t count, const void *gate, const void *up,
                              const dr_feed_bounded *bounded, void *y) {
    const dr_operations *ops = backend->ops;
    if (!act->gated) return ops->apply_forward(backend, act->function, count, up, y);
    if (is_bounded(&act->gate)) {
        DR_TRY(ops->bound_forward(backend, &act->gate, count, gate, bounded->gate));
        gate = bounded->gate;
    }
    if (is_bounded(&act->up)) {
        DR_TRY(ops->bound_forward(backend, &act->up, count, up, bounded->up));
        up = bounded->up;
    }
    if (act->function == DR_FUNCTION_SILU) return ops->swiglu_forward(backend, count, gate, up, y);
    return ops->gated_forward(backend, act->function, count, up, gate, y);
}

dr_status dr_feed_act_backward(dr_backend *backend, const dr_feed_act *act, int64_t count, const void *gate, const void *up,
                               const dr_feed_bounded *bounded, const void *d_y, void *d_gate, void *d_up) {
    const dr_operations *ops = backend->ops;
    if (!act->gated) return ops->apply_backward(backend, act->function, count, up, d_y, d_up);
    const bool gates = is_bounded(&act->gate), ups = is_bounded(&act->up);
    const void *gate_read = gates ? bounded->gate : gate, *up_read = ups ? bounded->up : up;
    if (act->function == DR_FUNCTION_SILU)
        DR_TRY(ops->swiglu_backward(backend, count, gate_read, up_read, d_y, d_gate, d_up));
    else
        DR_TRY(ops->gated_backward(backend, act->function, count, up_read, gate_read, d_y, d_up, d_gate));
    if (gates) DR_TRY(ops->bound_backward(backend, &act->gate, count, gate, d_gate, d_gate));
    return ups ? ops->bound_backward(backend, &act->up, count, up, d_up, d_up) : DR_OK;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    const size_t inner = dr_module_bytes(call, DR_VECTOR, of(call)->width);
    feed_memory *made = memory;
    const dr_feed_act *act = &of(call)->act; /* a bounded one leaves more in scratch than its output */
    const bool kept = keep && call->keeps && !is_bounded(&act->gate) && !is_bounded(&act->up);
    made->act = kept ? dr_arena_take(arena, inner) : NULL;
    const bool panel = of(call)->panel;
    made->gate = of(call)->act.gated ? dr_arena_take(arena, panel ? 2 * inner : inner) : NULL;
    made->up = panel ? NULL : dr_arena_take(arena, inner);
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    const feed_forward *mlp = of(call);
    const size_t inner = dr_module_bytes(call, DR_VECTOR, mlp->width);
    feed_scratch *use = scratch;
    *use = (feed_scratch){.act = dr_arena_take(arena, inner)};
    dr_feed_act_place(&mlp->act, inner, arena, &use->bounded);
    if (!backward) return;
    use->d_act = dr_arena_take(arena, inner);
    if (mlp->panel) return;
    if (mlp->act.gated) use->d_gate = dr_arena_take(arena, inner);
    use->d_up = mlp->act.gated ? dr_arena_take(arena, inner) : use->d_act;
    if (mlp->down_factor != 1) use->d_out = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mlp->module.hidden));
}

/* ---- gate and up as one product -------------------------------------------------------------------------------------- */

/* What the last product reads: kept, or of the scratch. */
static void *act_of(const dr_module_call *call) {
    const feed_memory *made = call->memory;
    const feed_scratch *use = call->scratch;
    return made->act ? made->act : use->act;
}

static dr_linear panel_of(const dr_module_call *call) {
    const feed_forward *mlp = of(call);
    return (dr_linear){
        .rows = call->layout.rows, .in = mlp->module.hidden, .out = 2 * mlp->width, .members = 2, .columns = mlp->columns};
}

static dr_status forward_panel(const dr_module_call *call, const void *x, void *y) {
    const feed_forward *mlp = of(call);
    const feed_memory *made = call->memory;
    const dr_operations *ops = call->backend->ops;
    const dr_linear in = panel_of(call), out = {.rows = in.rows, .in = mlp->width, .out = in.in, .plus = call->plus};
    DR_TRY(ops->linear_forward(call->backend, &in, x, dr_module_weight(call, mlp->gate.weight), NULL, made->gate));
    DR_TRY(ops->swiglu_panel_forward(call->backend, in.rows, mlp->width, made->gate, act_of(call)));
    return ops->linear_forward(call->backend, &out, act_of(call), dr_module_weight(call, mlp->down.weight), NULL, y);
}

static dr_status backward_panel(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const feed_forward *mlp = of(call);
    const feed_memory *made = call->memory;
    const feed_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const dr_linear in = panel_of(call), out = {.rows = in.rows, .in = mlp->width, .out = in.in};
    if (!made->act) DR_TRY(ops->swiglu_panel_forward(call->backend, in.rows, mlp->width, made->gate, use->act));
    DR_TRY(ops->linear_backward(call->backend, &out, act_of(call), dr_module_weight(call, mlp->down.weight), d_y, use->d_act,
                                false, dr_module_gradient(call, mlp->down.weight), NULL));
    DR_TRY(ops->swiglu_panel_backward(call->backend, in.rows, mlp->width, made->gate, use->d_act, made->gate));
    return ops->linear_backward(call->backend, &in, x, dr_module_weight(call, mlp->gate.weight), made->gate, d_x, false,
                                dr_module_gradient(call, mlp->gate.weight), NULL);
}

/* ---- forward and backward ------------------------------------------------------------------------------------------- */

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const feed_forward *mlp = of(call);
    const feed_memory *made = call->memory;
    const feed_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, inner = mlp->width;
    const dr_linear in = {.rows = rows, .in = hidden, .out = inner};
    const dr_linear out = {.rows = rows, .in = inner, .out = hidden, .plus = call->plus};
    void *act = act_of(call);
    if (mlp->panel) return forward_panel(call, x, y);
    if (mlp->act.gated)
        DR_TRY(ops->linear_forward(call->backend, &in, x, dr_module_weight(call, mlp->gate.weight),
                                   dr_module_parameter(call, mlp->gate.bias), made->gate));
    DR_TRY(ops->linear_forward(call->backend, &in, x, dr_module_weight(call, mlp->up.weight),
                               dr_module_parameter(call, mlp->up.bias), made->up));
    DR_TRY(dr_feed_act_forward(call->backend, &mlp->act, rows * inner, made->gate, made->up, &use->bounded, act));
    DR_TRY(ops->linear_forward(call->backend, &out, act, dr_module_weight(call, mlp->down.weight),
                               dr_module_parameter(call, mlp->down.bias), y));
    return dr_module_scale(call->backend, mlp->down_factor, rows * hidden, y, y);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const feed_forward *mlp = of(call);
    const feed_memory *made = call->memory;
    const feed_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mlp->module.hidden, inner = mlp->width;
    const dr_linear in = {.rows = rows, .in = hidden, .out = inner}, out = {.rows = rows, .in = inner, .out = hidden};
    void *act = act_of(call);
    if (mlp->panel) return backward_panel(call, x, d_y, d_x);
    if (mlp->down_factor != 1) {
        DR_TRY(dr_module_scale(call->backend, mlp->down_factor, rows * hidden, d_y, use->d_out));
        d_y = use->d_out;
    }
    if (!made->act)
        DR_TRY(dr_feed_act_forward(call->backend, &mlp->act, rows * inner, made->gate, made->up, &use->bounded, act));
    DR_TRY(ops->linear_backward(call->backend, &out, act, dr_module_weight(call, mlp->down.weight), d_y, use->d_act, false,
                                dr_module_gradient(call, mlp->down.weight), dr_module_gradient(call, mlp->down.bias)));
    DR_TRY(dr_feed_act_backward(call->backend, &mlp->act, rows * inner, made->gate, made->up, &use->bounded, use->d_act,
                                use->d_gate, use->d_up));
    if (mlp->act.gated)
        DR_TRY(ops->linear_backward(call->backend, &in, x, dr_module_weight(call, mlp->gate.weight), use->d_gate, d_x, false,
                                    dr_module_gradient(call, mlp->gate.weight), dr_module_gradient(call, mlp->gate.bias)));
    return ops->linear_backward(call->backend, &in, x, dr_module_weight(call, mlp->up.weight), use->d_up, d_x, mlp->act.gated,
                                dr_module_gradient(call, mlp->up.weight), dr_module_gradient(call, mlp->up.bias));
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_release(module);
}

static bool sums(const dr_module *module) {
    return ((const feed_forward *)module)->down_factor == 1; /* else y is multiplied behind the last product */
}

#define OPERATIONS(needed)                                                                                                     \
    {                                                                                                                          \
        .name = "feed_forward", .needs = needed, .memory_size = sizeof(feed_memory), .scratch_size = sizeof(feed_scratch),     \
        .place = place, .place_scratch = place_scratch, .sums = sums, .forward = forward, .backward = backward,                \
        .destroy = destroy                                                                                                     \
    }

/* A plain SwiGLU asks a backend for less than the others. */
static const dr_operation swiglu_needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_SWIGLU, DR_OPERATIONS};
static const dr_operation needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_SWIGLU, DR_OPERATION_APPLY, DR_OPERATION_BOUND,
                                     DR_OPERATIONS};
static const dr_module_operations swiglu_operations = OPERATIONS(swiglu_needs), operations = OPERATIONS(needs);

dr_status dr_feed_forward_check(const dr_feed_forward_description *description) {
    if (description->width < 1)
        return dr_fail(DR_ERROR_ARGUMENT, "a feed-forward of width %" PRId64 "; it must be 1 at least", description->width);
    if ((int)description->function < 0 || description->function >= DR_FUNCTIONS)
        return dr_fail(DR_ERROR_ARGUMENT, "%d is no function of a feed-forward", (int)description->function);
    if (!isfinite(description->limit) || description->limit < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "the limit of a feed-forward is %g; it must be positive, or 0 for none",
                       description->limit);
    if (!isfinite(description->gate_factor) || !isfinite(description->down_factor))
        return dr_fail(DR_ERROR_ARGUMENT, "the factors of a feed-forward are %g and %g; they must be finite",
                       description->gate_factor, description->down_factor);
    return DR_OK;
}

static dr_status add(dr_layer_parameters *list, const char *prefix, const char *weight, const char *bias, int64_t rows,
                     int64_t columns, int *weight_index, int *bias_index) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0};
    DR_TRY(dr_add_matrix(list, prefix, weight, normal, rows, columns, 0, weight_index));
    return bias ? dr_add_vector(list, prefix, bias, zero, rows, 0, bias_index) : DR_OK;
}

static dr_status add_all(feed_forward *mlp, bool bias, const char *prefix, dr_layer_parameters *list) {
    const int64_t hidden = mlp->module.hidden, width = mlp->width;
    if (mlp->act.gated)
        DR_TRY(add(list, prefix, "gate_proj.weight", bias ? "gate_proj.bias" : NULL, width, hidden, &mlp->gate.weight,
                   &mlp->gate.bias));
    DR_TRY(add(list, prefix, "up_proj.weight", bias ? "up_proj.bias" : NULL, width, hidden, &mlp->up.weight, &mlp->up.bias));
    return add(list, prefix, "down_proj.weight", bias ? "down_proj.bias" : NULL, hidden, width, &mlp->down.weight,
               &mlp->down.bias);
}

/* Where the backend takes panels, of a plain SwiGLU without biases. */
static void join_columns(const dr_backend *backend, dr_layer_parameters *list, feed_forward *mlp) {
    const dr_operations *ops = backend->ops;
    const int weights[] = {mlp->gate.weight, mlp->up.weight};
    mlp->panel = ops->panels && ops->swiglu_panel_forward && mlp->width % ops->panels == 0 && !dr_weights_apart(backend);
    if (!mlp->panel) return;
    mlp->columns[0] = mlp->columns[1] = mlp->width;
    dr_join_parameters(list, weights, 2);
}

dr_status dr_feed_forward_create(dr_backend *backend, int64_t hidden, const dr_feed_forward_description *description,
                                 bool gated, const char *prefix, dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    DR_TRY(dr_feed_forward_check(description));
    DR_TRY(dr_allocate_zero(sizeof(feed_forward), "a feed-forward", &memory));
    feed_forward *mlp = memory;
    *mlp = (feed_forward){.module = {&operations, hidden},
                          .width = description->width,
                          .act = dr_feed_act_of(description, gated),
                          .down_factor = description->down_factor,
                          .gate = {DR_NO_PARAMETER, DR_NO_PARAMETER},
                          .up = {DR_NO_PARAMETER, DR_NO_PARAMETER},
                          .down = {DR_NO_PARAMETER, DR_NO_PARAMETER}};
    if (gated && description->function == DR_FUNCTION_SILU && !is_bounded(&mlp->act.gate) && !is_bounded(&mlp->act.up) &&
        mlp->down_factor == 1)
        mlp->module.operations = &swiglu_operations;
    const dr_status status = add_all(mlp, description->bias, prefix, list);
    if (status == DR_OK && mlp->module.operations == &swiglu_operations && !description->bias) join_columns(backend, list, mlp);
    if (status == DR_OK)
        *module = &mlp->module;
    else
        destroy(backend, &mlp->module);
    return status;
}
