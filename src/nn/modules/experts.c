/* Experts. The router's scores are numbers; slots (pairs of a token and one of its experts) lie by expert between gather and
 * combine, so that each expert's product is over neighbouring rows. The backward gathers the rows and makes what the last
 * products read again instead of keeping them. */
#include "nn/modules/experts.h"
#include "base/error.h"
#include "nn/modules/feed_forward.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct {
    dr_module module;
    dr_module_operations operations; /* of this module: its structs hold those of the shared expert */
    dr_router router;
    dr_feed_act act;
    double down_factor, balance;
    int64_t width, inner; /* inner: what experts read and write, the latent or hidden */
    dr_module *shared;    /* NULL: there is none */
    int gate, correction; /* list; DR_NO_PARAMETER where there is none */
    int gate_proj, up_proj, down_proj;
    int into_latent, from_latent, into_bias, from_bias;
    int shared_gate;
} experts;

/* slots = rows chosen. Behind the struct lies that of the shared expert. */
typedef struct {
    void *raw, *logits;      /* [rows, experts] as vectors and as numbers; one and the same where these are of one type */
    void *weights;           /* [rows, chosen], numbers */
    int32_t *index;          /* [rows, chosen] */
    int32_t *order, *place;  /* [slots] */
    int32_t *begins;         /* [experts + 1] */
    void *latent, *combined; /* [rows, inner], with a latent */
    void *gate, *up;         /* [slots, width] */
    void *out;               /* [slots, inner] */
    void *shared;            /* [rows, hidden] */
    void *shared_raw, *shared_factor; /* [rows], a vector and a number */
} experts_memory;

/* Likewise. */
typedef struct {
    void *gathered; /* [slots, inner]; in the backward first the gradient of out */
    void *act;      /* [slots, width] */
    dr_feed_bounded bounded;
    /* of the backward alone */
    void *d_gathered;            /* [slots, inner] */
    void *d_act, *d_gate, *d_up; /* [slots, width] */
    void *d_weights, *d_logits, *d_raw;
    void *d_combined, *d_latent; /* [rows, inner] */
    void *d_shared;              /* [rows, hidden] */
    void *d_shared_factor, *d_shared_raw;
    void *loss; /* [1], not read */
} experts_scratch;

static const experts *of(const dr_module_call *call) {
    return (const experts *)call->module;
}

/* The router of the call's rows. */
static dr_router router_of(const dr_module_call *call) {
    dr_router router = of(call)->router;
    router.of.rows = call->layout.rows;
    return router;
}

static int64_t slots_of(const dr_module_call *call) {
    return call->layout.rows * of(call)->router.of.chosen;
}

static dr_module_call shared_call(const dr_module_call *call) {
    dr_module_call shared = *call;
    shared.module = of(call)->shared;
    shared.memory = (const char *)call->memory + sizeof(experts_memory);
    shared.scratch = (const char *)call->scratch + sizeof(experts_scratch);
    return shared;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    const experts *mixture = of(call);
    dr_backend *backend = call->backend;
    const int64_t rows = call->layout.rows, slots = slots_of(call), all = mixture->router.of.experts;
    experts_memory *made = memory;
    *made = (experts_memory){.logits = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, rows * all))};
    made->raw = dr_has_copies(backend) ? dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, rows * all)) : made->logits;
    made->weights = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, slots));
    made->index = dr_arena_take(arena, (size_t)slots * sizeof(int32_t));
    made->order = dr_arena_take(arena, (size_t)slots * sizeof(int32_t));
    made->place = dr_arena_take(arena, (size_t)slots * sizeof(int32_t));
    made->begins = dr_arena_take(arena, (size_t)(all + 1) * sizeof(int32_t));
    if (mixture->into_latent != DR_NO_PARAMETER) {
        made->latent = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->inner));
        made->combined = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->inner));
    }
    if (mixture->act.gated) made->gate = dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, slots * mixture->width));
    made->up = dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, slots * mixture->width));
    made->out = dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, slots * mixture->inner));
    if (!mixture->shared) return;
    made->shared = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->module.hidden));
    if (mixture->shared_gate != DR_NO_PARAMETER) {
        made->shared_raw = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, 1));
        made->shared_factor = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, 1));
    }
    const dr_module_call shared = shared_call(call);
    shared.module->operations->place(&shared, keep, arena, (char *)memory + sizeof(experts_memory));
}

static void place_backward(const dr_module_call *call, dr_arena *arena, experts_scratch *use) {
    const experts *mixture = of(call);
    dr_backend *backend = call->backend;
    const int64_t rows = call->layout.rows, slots = slots_of(call), all = mixture->router.of.experts;
    const size_t wide = dr_kind_bytes(backend, DR_VECTOR, slots * mixture->width);
    use->d_gathered = dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, slots * mixture->inner));
    use->d_act = dr_arena_take(arena, wide);
    if (mixture->act.gated) use->d_gate = dr_arena_take(arena, wide);
    use->d_up = mixture->act.gated ? dr_arena_take(arena, wide) : use->d_act;
    use->d_weights = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, slots));
    use->d_logits = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, rows * all));
    use->d_raw = dr_has_copies(backend) ? dr_arena_take(arena, dr_kind_bytes(backend, DR_VECTOR, rows * all)) : use->d_logits;
    use->loss = dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, 1));
    if (mixture->into_latent == DR_NO_PARAMETER) return;
    use->d_combined = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->inner));
    use->d_latent = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->inner));
}

/* The shared expert is at work when the others are not. */
static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    const experts *mixture = of(call);
    experts_scratch *use = scratch;
    *use = (experts_scratch){0};
    if (backward && mixture->shared_gate != DR_NO_PARAMETER) {
        use->d_shared = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixture->module.hidden));
        use->d_shared_factor = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, 1));
        use->d_shared_raw = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, 1));
    }
    const size_t turns = arena->used;
    if (mixture->shared) {
        const dr_module_call shared = shared_call(call);
        shared.module->operations->place_scratch(&shared, backward, arena, (char *)scratch + sizeof(experts_scratch));
        dr_arena_rewind(arena, turns);
    }
    const size_t wide = dr_kind_bytes(call->backend, DR_VECTOR, slots_of(call) * mixture->width);
    use->gathered = dr_arena_take(arena, dr_kind_bytes(call->backend, DR_VECTOR, slots_of(call) * mixture->inner));
    use->act = dr_arena_take(arena, wide);
    dr_feed_act_place(&mixture->act, wide, arena, &use->bounded);
    if (backward) place_backward(call, arena, use);
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

static dr_gate identity(int64_t count, dr_kind from, dr_kind to) {
    return (dr_gate){.kind = DR_GATE_IDENTITY, .rows = count, .heads = 1, .dim = 1, .from = from, .to = to};
}

static dr_gate shared_sigmoid(const dr_module_call *call) {
    return (dr_gate){
        .kind = DR_GATE_SIGMOID, .rows = call->layout.rows, .heads = 1, .dim = 1, .multiplier = 1, .to = DR_NUMBER};
}

/* Scores, choices, weights, and the order of slots; and the loss that balances them, where it is wanted. */
static dr_status route(const dr_module_call *call, const void *x, const experts_memory *made) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_router router = router_of(call);
    const dr_linear scores = {.rows = router.of.rows, .in = mixture->module.hidden, .out = router.of.experts};
    DR_TRY(ops->linear_forward(call->backend, &scores, x, dr_module_weight(call, mixture->gate), NULL, made->raw));
    if (made->raw != made->logits) {
        const dr_gate exact = identity(router.of.rows * router.of.experts, DR_VECTOR, DR_NUMBER);
        DR_TRY(ops->gate_forward(call->backend, &exact, made->raw, NULL, NULL, made->logits));
    }
    DR_TRY(ops->route_forward(call->backend, &router, made->logits, dr_module_parameter(call, mixture->correction), made->index,
                              made->weights));
    if (call->extra_loss && mixture->balance != 0)
        DR_TRY(ops->balance(call->backend, &router, made->logits, made->index, mixture->balance, call->extra_loss, NULL));
    return ops->experts_sort(call->backend, &router.of, made->index, made->order, made->place, made->begins);
}

/* y [rows, hidden] of the chosen experts */
static dr_status run_experts(const dr_module_call *call, const void *x, const experts_memory *made, const experts_scratch *use,
                             void *y) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_experts routed = router_of(call).of;
    const int64_t hidden = mixture->module.hidden, inner = mixture->inner, width = mixture->width, slots = slots_of(call);
    const bool latent = mixture->into_latent != DR_NO_PARAMETER;
    const dr_linear into = {.rows = routed.rows, .in = hidden, .out = inner},
                    from = {.rows = routed.rows, .in = inner, .out = hidden};
    if (latent)
        DR_TRY(ops->linear_forward(call->backend, &into, x, dr_module_weight(call, mixture->into_latent),
                                   dr_module_parameter(call, mixture->into_bias), made->latent));
    DR_TRY(ops->experts_gather_forward(call->backend, &routed, inner, made->order, latent ? made->latent : x, use->gathered));
    if (mixture->act.gated)
        DR_TRY(ops->experts_linear_forward(call->backend, &routed, inner, width, made->begins, use->gathered,
                                           dr_module_weight(call, mixture->gate_proj), made->gate));
    DR_TRY(ops->experts_linear_forward(call->backend, &routed, inner, width, made->begins, use->gathered,
                                       dr_module_weight(call, mixture->up_proj), made->up));
    DR_TRY(dr_feed_act_forward(call->backend, &mixture->act, slots * width, made->gate, made->up, &use->bounded, use->act));
    DR_TRY(ops->experts_linear_forward(call->backend, &routed, width, inner, made->begins, use->act,
                                       dr_module_weight(call, mixture->down_proj), made->out));
    if (mixture->down_factor != 1)
        DR_TRY(dr_module_scale(call->backend, mixture->down_factor, slots * inner, made->out, made->out));
    DR_TRY(ops->experts_combine_forward(call->backend, &routed, inner, made->place, made->weights, made->out,
                                        latent ? made->combined : y, false));
    if (!latent) return DR_OK;
    return ops->linear_forward(call->backend, &from, made->combined, dr_module_weight(call, mixture->from_latent),
                               dr_module_parameter(call, mixture->from_bias), y);
}

/* y += the shared expert's output, times its gate */
static dr_status add_shared(const dr_module_call *call, const void *x, const experts_memory *made, void *y) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mixture->module.hidden;
    const dr_module_call shared = shared_call(call);
    DR_TRY(shared.module->operations->forward(&shared, x, made->shared));
    if (mixture->shared_gate == DR_NO_PARAMETER) return ops->add(call->backend, DR_VECTOR, rows * hidden, 1, made->shared, y);
    const dr_linear one = {.rows = rows, .in = hidden, .out = 1};
    const dr_gate gate = shared_sigmoid(call);
    DR_TRY(ops->linear_forward(call->backend, &one, x, dr_module_weight(call, mixture->shared_gate), NULL, made->shared_raw));
    DR_TRY(ops->gate_forward(call->backend, &gate, made->shared_raw, NULL, NULL, made->shared_factor));
    return ops->scale_heads_forward(call->backend, rows, 1, hidden, false, made->shared_factor, made->shared, y, true);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const experts_memory *made = call->memory;
    DR_TRY(route(call, x, made));
    DR_TRY(run_experts(call, x, made, call->scratch, y));
    return of(call)->shared ? add_shared(call, x, made, y) : DR_OK;
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

/* d_x [rows, hidden] (overwritten) from the shared expert */
static dr_status shared_backward(const dr_module_call *call, const void *x, const experts_memory *made,
                                 const experts_scratch *use, const void *d_y, void *d_x) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows, hidden = mixture->module.hidden;
    const dr_module_call shared = shared_call(call);
    if (mixture->shared_gate == DR_NO_PARAMETER) return shared.module->operations->backward(&shared, x, d_y, d_x);
    const dr_linear one = {.rows = rows, .in = hidden, .out = 1};
    const dr_gate gate = shared_sigmoid(call);
    DR_TRY(ops->scale_heads_backward(call->backend, rows, 1, hidden, false, made->shared_factor, made->shared, d_y,
                                     use->d_shared_factor, use->d_shared, false));
    DR_TRY(shared.module->operations->backward(&shared, x, use->d_shared, d_x));
    DR_TRY(ops->gate_backward(call->backend, &gate, made->shared_raw, NULL, NULL, use->d_shared_factor, use->d_shared_raw,
                              false, NULL, NULL));
    return ops->linear_backward(call->backend, &one, x, dr_module_weight(call, mixture->shared_gate), use->d_shared_raw, d_x,
                                true, dr_module_gradient(call, mixture->shared_gate), NULL);
}

/* From the gradient of out, in use->gathered, to that of what the experts read, in use->d_gathered. */
static dr_status slots_backward(const dr_module_call *call, const void *x, const experts_memory *made,
                                const experts_scratch *use) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_experts routed = router_of(call).of;
    const int64_t inner = mixture->inner, width = mixture->width, slots = slots_of(call);
    DR_TRY(dr_feed_act_forward(call->backend, &mixture->act, slots * width, made->gate, made->up, &use->bounded, use->act));
    DR_TRY(ops->experts_linear_backward(call->backend, &routed, width, inner, made->begins, use->act,
                                        dr_module_weight(call, mixture->down_proj), use->gathered, use->d_act, false,
                                        dr_module_gradient(call, mixture->down_proj)));
    DR_TRY(dr_feed_act_backward(call->backend, &mixture->act, slots * width, made->gate, made->up, &use->bounded, use->d_act,
                                use->d_gate, use->d_up));
    DR_TRY(ops->experts_gather_forward(call->backend, &routed, inner, made->order, x, use->gathered));
    if (mixture->act.gated)
        DR_TRY(ops->experts_linear_backward(call->backend, &routed, inner, width, made->begins, use->gathered,
                                            dr_module_weight(call, mixture->gate_proj), use->d_gate, use->d_gathered, false,
                                            dr_module_gradient(call, mixture->gate_proj)));
    return ops->experts_linear_backward(call->backend, &routed, inner, width, made->begins, use->gathered,
                                        dr_module_weight(call, mixture->up_proj), use->d_up, use->d_gathered,
                                        mixture->act.gated, dr_module_gradient(call, mixture->up_proj));
}

/* d_x (added to if accumulate) from the experts; the gradient of the router's weights */
static dr_status experts_backward(const dr_module_call *call, const void *x, const experts_memory *made,
                                  const experts_scratch *use, const void *d_y, void *d_x, bool accumulate) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_experts routed = router_of(call).of;
    const int64_t hidden = mixture->module.hidden, inner = mixture->inner, slots = slots_of(call);
    const bool latent = mixture->into_latent != DR_NO_PARAMETER;
    const dr_linear into = {.rows = routed.rows, .in = hidden, .out = inner},
                    from = {.rows = routed.rows, .in = inner, .out = hidden};
    if (latent) {
        DR_TRY(ops->linear_backward(call->backend, &from, made->combined, dr_module_weight(call, mixture->from_latent), d_y,
                                    use->d_combined, false, dr_module_gradient(call, mixture->from_latent),
                                    dr_module_gradient(call, mixture->from_bias)));
        d_y = use->d_combined;
    }
    DR_TRY(ops->experts_combine_backward(call->backend, &routed, inner, made->place, made->weights, made->out, d_y,
                                         use->d_weights, use->gathered));
    if (mixture->down_factor != 1)
        DR_TRY(dr_module_scale(call->backend, mixture->down_factor, slots * inner, use->gathered, use->gathered));
    DR_TRY(slots_backward(call, latent ? made->latent : x, made, use));
    if (!latent)
        return ops->experts_gather_backward(call->backend, &routed, hidden, made->place, use->d_gathered, d_x, accumulate);
    DR_TRY(ops->experts_gather_backward(call->backend, &routed, inner, made->place, use->d_gathered, use->d_latent, false));
    return ops->linear_backward(call->backend, &into, x, dr_module_weight(call, mixture->into_latent), use->d_latent, d_x,
                                accumulate, dr_module_gradient(call, mixture->into_latent),
                                dr_module_gradient(call, mixture->into_bias));
}

/* d_x is added to. */
static dr_status route_backward(const dr_module_call *call, const void *x, const experts_memory *made,
                                const experts_scratch *use, void *d_x) {
    const experts *mixture = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_router router = router_of(call);
    const dr_linear scores = {.rows = router.of.rows, .in = mixture->module.hidden, .out = router.of.experts};
    DR_TRY(ops->route_backward(call->backend, &router, made->logits, made->index, use->d_weights, use->d_logits));
    if (mixture->balance * call->extra_factor != 0)
        DR_TRY(ops->balance(call->backend, &router, made->logits, made->index, mixture->balance * call->extra_factor, use->loss,
                            use->d_logits));
    if (use->d_raw != use->d_logits) {
        const dr_gate exact = identity(router.of.rows * router.of.experts, DR_VECTOR, DR_NUMBER);
        DR_TRY(ops->gate_backward(call->backend, &exact, made->raw, NULL, NULL, use->d_logits, use->d_raw, false, NULL, NULL));
    }
    return ops->linear_backward(call->backend, &scores, x, dr_module_weight(call, mixture->gate), use->d_raw, d_x, true,
                                dr_module_gradient(call, mixture->gate), NULL);
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const experts_memory *made = call->memory;
    const experts_scratch *use = call->scratch;
    const bool shared = of(call)->shared != NULL;
    if (shared) DR_TRY(shared_backward(call, x, made, use, d_y, d_x));
    DR_TRY(experts_backward(call, x, made, use, d_y, d_x, shared));
    return route_backward(call, x, made, use, d_x);
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

/* Slots are counted in int32. */
static dr_status plan(const dr_module *module, dr_backend *backend, const dr_layout *layout, void *plan) {
    (void)backend, (void)plan;
    const int64_t chosen = ((const experts *)module)->router.of.chosen;
    if (layout->rows <= INT32_MAX / chosen) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "a batch of %" PRId64 " rows that go to %" PRId64 " experts each; at most %" PRId64
                   " are possible in one call",
                   layout->rows, chosen, INT32_MAX / chosen);
}

static void destroy(dr_backend *backend, dr_module *module) {
    experts *mixture = (experts *)module;
    if (mixture->shared) mixture->shared->operations->destroy(backend, mixture->shared);
    dr_release(mixture);
}

static const dr_operation needs[] = {DR_OPERATION_LINEAR,      DR_OPERATION_GATE,  DR_OPERATION_ROUTE,  DR_OPERATION_EXPERTS,
                                     DR_OPERATION_APPLY,       DR_OPERATION_BOUND, DR_OPERATION_SWIGLU, DR_OPERATION_ADD,
                                     DR_OPERATION_SCALE_HEADS, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "experts",
                                                .needs = needs,
                                                .memory_size = sizeof(experts_memory),
                                                .scratch_size = sizeof(experts_scratch),
                                                .plan = plan,
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

static dr_status check(const dr_experts_description *description) {
    const int64_t latent = description->latent, shared = description->shared;
    DR_TRY(dr_router_check(&description->router));
    DR_TRY(dr_feed_forward_check(&description->expert));
    if (description->expert.bias) return dr_fail(DR_ERROR_UNSUPPORTED, "experts with biases are not built");
    if (latent < 0 || shared < 0)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "experts with a latent of %" PRId64 " and a shared expert of %" PRId64 "; neither may "
                       "be negative",
                       latent, shared);
    if (description->shared_gate && shared == 0)
        return dr_fail(DR_ERROR_ARGUMENT, "a gate of the shared expert, but no shared expert");
    if (!isfinite(description->balance) || description->balance < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "the factor of the experts' balancing loss is %g; it must be 0 at least",
                       description->balance);
    return DR_OK;
}

static dr_status add_parameters(experts *mixture, const dr_experts_description *description, const char *prefix,
                                dr_layer_parameters *list) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0};
    const int64_t hidden = mixture->module.hidden, all = mixture->router.of.experts, inner = mixture->inner,
                  width = mixture->width;
    DR_TRY(dr_add_matrix(list, prefix, "router.weight", normal, all, hidden, 0, &mixture->gate));
    if (description->corrected) DR_TRY(dr_add_vector(list, prefix, "router.bias", zero, all, 0, &mixture->correction));
    if (description->latent > 0) {
        DR_TRY(dr_add_matrix(list, prefix, "latent_down.weight", normal, inner, hidden, 0, &mixture->into_latent));
        DR_TRY(dr_add_matrix(list, prefix, "latent_up.weight", normal, hidden, inner, 0, &mixture->from_latent));
        if (description->outer_bias) {
            DR_TRY(dr_add_vector(list, prefix, "latent_down.bias", zero, inner, 0, &mixture->into_bias));
            DR_TRY(dr_add_vector(list, prefix, "latent_up.bias", zero, hidden, 0, &mixture->from_bias));
        }
    }
    if (mixture->act.gated)
        DR_TRY(dr_add_matrix(list, prefix, "experts.gate_proj", normal, all, width, inner, &mixture->gate_proj));
    DR_TRY(dr_add_matrix(list, prefix, "experts.up_proj", normal, all, width, inner, &mixture->up_proj));
    DR_TRY(dr_add_matrix(list, prefix, "experts.down_proj", normal, all, inner, width, &mixture->down_proj));
    if (!description->shared_gate) return DR_OK;
    return dr_add_matrix(list, prefix, "shared_gate.weight", normal, 1, hidden, 0, &mixture->shared_gate);
}

static dr_status add_shared_expert(dr_backend *backend, experts *mixture, const dr_experts_description *description,
                                   const char *prefix, dr_layer_parameters *list) {
    dr_feed_forward_description shared = description->expert;
    char name[sizeof list->at->name];
    shared.width = description->shared;
    shared.bias = description->outer_bias;
    if (snprintf(name, sizeof name, "%sshared.", prefix) >= (int)sizeof name)
        return dr_fail(DR_ERROR_ARGUMENT, "the name of the parameters %sshared.* is too long", prefix);
    DR_TRY(dr_feed_forward_create(backend, mixture->module.hidden, &shared, description->gated, name, list, &mixture->shared));
    mixture->operations.memory_size += mixture->shared->operations->memory_size;
    mixture->operations.scratch_size += mixture->shared->operations->scratch_size;
    return DR_OK;
}

dr_status dr_experts_create(dr_backend *backend, int64_t hidden, const dr_experts_description *description, const char *prefix,
                            dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    dr_status status = DR_OK;
    DR_TRY(check(description));
    DR_TRY(dr_allocate_zero(sizeof(experts), "a mixture of experts", &memory));
    experts *mixture = memory;
    *mixture = (experts){.operations = operations,
                         .router = description->router,
                         .act = dr_feed_act_of(&description->expert, description->gated),
                         .down_factor = description->expert.down_factor,
                         .balance = description->balance,
                         .width = description->expert.width,
                         .inner = description->latent > 0 ? description->latent : hidden,
                         .gate = DR_NO_PARAMETER,
                         .correction = DR_NO_PARAMETER,
                         .gate_proj = DR_NO_PARAMETER,
                         .up_proj = DR_NO_PARAMETER,
                         .down_proj = DR_NO_PARAMETER,
                         .into_latent = DR_NO_PARAMETER,
                         .from_latent = DR_NO_PARAMETER,
                         .into_bias = DR_NO_PARAMETER,
                         .from_bias = DR_NO_PARAMETER,
                         .shared_gate = DR_NO_PARAMETER};
    mixture->module = (dr_module){&mixture->operations, hidden};
    DR_GO(add_parameters(mixture, description, prefix, list));
    if (description->shared > 0) DR_GO(add_shared_expert(backend, mixture, description, prefix, list));
    *module = &mixture->module;
    return DR_OK;
done:
    destroy(backend, &mixture->module);
    return status;
}
