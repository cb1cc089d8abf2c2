/* The mixer of Mamba-2. The backward makes the normed output again instead of keeping it. */
#include "nn/mixers/mamba2.h"
#include "base/error.h"
#include "nn/mixers/engine.h"
#include <inttypes.h>
#include <math.h>

/* What the input is projected to, in the order in which the factors stand in the description. */
typedef enum { PIECE_Z, PIECE_X, PIECE_B, PIECE_C, PIECE_STEP, PIECES } piece;

static bool is_convolved(int p) {
    return p == PIECE_X || p == PIECE_B || p == PIECE_C;
}

typedef struct {
    dr_module module;
    dr_mamba2_description of;
    dr_rule rule;
    int64_t inner, size[PIECES];
    int64_t row[PIECES], channel[PIECES]; /* where a piece begins in the projection, and in the convolution */
    int in, in_bias, conv, conv_bias;     /* list; DR_NO_PARAMETER where there is none */
    int a_log, step_bias, skip, norm, out, out_bias;
} mamba2;

/* [rows, size of the piece] but for: */
typedef struct {
    void *raw[PIECES];      /* projections, times their factors */
    void *mapped[PIECES];   /* those that are convolved */
    void *step, *log_decay; /* [rows, heads], numbers */
    void *stepped, *o;      /* [rows, inner] */
    void *saved;            /* the engine's */
} mamba2_memory;

typedef struct {
    void *y, *workspace; /* [rows, inner]; the engine's */
    /* of the backward alone */
    void *d_y, *d_o, *d_stepped; /* [rows, inner] */
    void *d_mapped[PIECES];      /* of z too */
    void *d_raw;                 /* of the widest */
    void *d_step, *d_log_decay;  /* [rows, heads], numbers */
} mamba2_scratch;

typedef struct {
    void *conv[PIECES]; /* [sequences, conv_size - 1, size], the last inputs */
    void *at[DR_STATES];
} mamba2_state;

static const mamba2 *of(const dr_module_call *call) {
    return (const mamba2 *)call->module;
}

static dr_recurrence recurrence_of(const mamba2 *mixer, const dr_layout *layout) {
    return (dr_recurrence){.rule = &mixer->rule,
                           .forget = DR_FORGET,
                           .layout = {layout->sequences, layout->rows, NULL},
                           .key_heads = mixer->of.groups,
                           .value_heads = mixer->of.heads,
                           .key_size = mixer->of.state_size,
                           .value_size = mixer->of.head_size,
                           .scale = 1};
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static dr_status plan(const dr_module *module, dr_backend *backend, const dr_layout *layout, void *plan) {
    return dr_engine_plan(backend, recurrence_of((const mamba2 *)module, layout), layout, plan);
}

static void place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory) {
    const mamba2 *mixer = of(call);
    mamba2_memory *made = memory;
    *made = (mamba2_memory){0};
    for (int p = 0; p < PIECES; p++) {
        made->raw[p] = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->size[p]));
        if (is_convolved(p)) made->mapped[p] = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->size[p]));
    }
    made->step = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->of.heads));
    made->log_decay = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->of.heads));
    made->stepped = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->inner));
    made->o = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->inner));
    if (keep) made->saved = dr_engine_place_saved(call, arena);
}

static void place_backward(const dr_module_call *call, dr_arena *arena, mamba2_scratch *use) {
    const mamba2 *mixer = of(call);
    int64_t widest = 1;
    use->d_y = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->inner));
    use->d_o = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->inner));
    use->d_stepped = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->inner));
    for (int p = 0; p < PIECES; p++) {
        if (p != PIECE_STEP) use->d_mapped[p] = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, mixer->size[p]));
        if (mixer->size[p] > widest) widest = mixer->size[p];
    }
    use->d_raw = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, widest));
    use->d_step = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->of.heads));
    use->d_log_decay = dr_arena_take(arena, dr_module_bytes(call, DR_NUMBER, mixer->of.heads));
}

static void place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch) {
    mamba2_scratch *use = scratch;
    *use = (mamba2_scratch){.y = dr_arena_take(arena, dr_module_bytes(call, DR_VECTOR, of(call)->inner))};
    use->workspace = dr_engine_place_work(call, backward, arena);
    if (backward) place_backward(call, arena, use);
}

static void place_state(const dr_module *module, dr_backend *backend, int64_t sequences, dr_arena *arena, void *memory) {
    const mamba2 *mixer = (const mamba2 *)module;
    const dr_layout layout = {sequences, sequences, NULL};
    const dr_recurrence recurrence = recurrence_of(mixer, &layout);
    mamba2_state *state = memory;
    for (int p = 0; p < PIECES; p++)
        if (is_convolved(p))
            state->conv[p] =
                dr_arena_take(arena, dr_kind_bytes(backend, DR_NUMBER, sequences * (mixer->of.conv_size - 1) * mixer->size[p]));
    dr_engine_place_states(&recurrence, backend, arena, state->at);
}

/* ---- parameters of a piece ------------------------------------------------------------------------------------------ */

static const void *weight_of(const dr_module_call *call, int p) {
    const mamba2 *mixer = of(call);
    return (const char *)dr_module_weight(call, mixer->in) +
           dr_weight_bytes(call->backend, mixer->row[p], mixer->module.hidden);
}

/* count: elements of the parameter before the piece's */
static const void *behind(const dr_module_call *call, int parameter, int64_t count) {
    const void *at = dr_module_parameter(call, parameter);
    return at ? (const char *)at + dr_kind_bytes(call->backend, DR_NUMBER, count) : NULL;
}

static void *gradient_behind(const dr_module_call *call, int parameter, int64_t count) {
    void *at = dr_module_gradient(call, parameter);
    return at ? (char *)at + dr_kind_bytes(call->backend, DR_NUMBER, count) : NULL;
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */

/* Of the step (SOFTPLUS) or the log decay, of which both clamp the step. */
static dr_gate gate_of(const dr_module_call *call, dr_gate_kind kind) {
    const dr_mamba2_description *of_mixer = &of(call)->of;
    return (dr_gate){.kind = kind,
                     .rows = call->layout.rows,
                     .heads = of_mixer->heads,
                     .dim = 1,
                     .lower_bound = of_mixer->least_step,
                     .upper_bound = isfinite(of_mixer->most_step) ? of_mixer->most_step : 0,
                     .to = DR_NUMBER};
}

static dr_conv conv_of(const dr_module_call *call, int p) {
    return (dr_conv){.layout = call->layout,
                     .channels = of(call)->size[p],
                     .width = of(call)->of.conv_size,
                     .activation = DR_ACTIVATION_SILU};
}

static dr_status project(const dr_module_call *call, int p, const void *x, const mamba2_memory *made) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const mamba2_state *state = call->state;
    const dr_linear linear = {.rows = call->layout.rows, .in = mixer->module.hidden, .out = mixer->size[p]};
    DR_TRY(ops->linear_forward(call->backend, &linear, x, weight_of(call, p), behind(call, mixer->in_bias, mixer->row[p]),
                               made->raw[p]));
    DR_TRY(dr_module_scale(call->backend, mixer->of.factor[p], call->layout.rows * mixer->size[p], made->raw[p], made->raw[p]));
    if (!is_convolved(p)) return DR_OK;
    const dr_conv conv = conv_of(call, p);
    void *carried = state ? state->conv[p] : NULL;
    return ops->conv_forward(call->backend, &conv, made->raw[p],
                             behind(call, mixer->conv, mixer->channel[p] * mixer->of.conv_size),
                             behind(call, mixer->conv_bias, mixer->channel[p]), carried, made->mapped[p], carried);
}

static dr_status make_steps(const dr_module_call *call, const mamba2_memory *made) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_gate step = gate_of(call, DR_GATE_SOFTPLUS), decay = gate_of(call, DR_GATE_LOG_DECAY);
    const void *bias = dr_module_parameter(call, mixer->step_bias), *a_log = dr_module_parameter(call, mixer->a_log);
    DR_TRY(ops->gate_forward(call->backend, &step, made->raw[PIECE_STEP], NULL, bias, made->step));
    DR_TRY(ops->gate_forward(call->backend, &decay, made->raw[PIECE_STEP], a_log, bias, made->log_decay));
    return ops->scale_heads_forward(call->backend, call->layout.rows, mixer->of.heads, mixer->of.head_size, false, made->step,
                                    made->mapped[PIECE_X], made->stepped, false);
}

static dr_inputs inputs_of(const mamba2_memory *made) {
    dr_inputs inputs = {{NULL}};
    inputs.at[DR_INPUT_QUERY] = made->mapped[PIECE_C];
    inputs.at[DR_INPUT_KEY] = made->mapped[PIECE_B];
    inputs.at[DR_INPUT_VALUE] = made->stepped;
    inputs.at[DR_INPUT_LOG_DECAY] = made->log_decay;
    return inputs;
}

static dr_status recur(const dr_module_call *call, const mamba2_memory *made, const mamba2_scratch *use) {
    const mamba2_state *state = call->state;
    const dr_inputs inputs = inputs_of(made);
    return dr_engine_forward(call, &inputs, made->saved, use->workspace, state ? state->at : NULL, made->o);
}

static dr_rms_norm norm_of(const dr_module_call *call) {
    const dr_mamba2_description *of_mixer = &of(call)->of;
    return (dr_rms_norm){.rows = call->layout.rows * of_mixer->norm_groups,
                         .dim = of(call)->inner / of_mixer->norm_groups,
                         .eps = of_mixer->norm_eps,
                         .gate = DR_ACTIVATION_SILU,
                         .gate_first = of_mixer->norm == DR_MAMBA2_NORM_GATED,
                         .groups = of_mixer->norm_groups};
}

/* use->y from o and z */
static dr_status gate_output(const dr_module_call *call, const mamba2_memory *made, const mamba2_scratch *use) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    if (mixer->of.norm == DR_MAMBA2_NORM_NONE)
        return ops->gated_forward(call->backend, DR_FUNCTION_SILU, call->layout.rows * mixer->inner, made->o,
                                  made->raw[PIECE_Z], use->y);
    const dr_rms_norm norm = norm_of(call);
    return ops->rms_norm_forward(call->backend, &norm, made->o, dr_module_parameter(call, mixer->norm), made->raw[PIECE_Z],
                                 use->y);
}

static dr_status forward(const dr_module_call *call, const void *x, void *y) {
    const mamba2 *mixer = of(call);
    const mamba2_memory *made = call->memory;
    const mamba2_scratch *use = call->scratch;
    const dr_operations *ops = call->backend->ops;
    const dr_linear out = {.rows = call->layout.rows, .in = mixer->inner, .out = mixer->module.hidden};
    for (int p = 0; p < PIECES; p++) DR_TRY(project(call, p, x, made));
    DR_TRY(make_steps(call, made));
    DR_TRY(recur(call, made, use));
    DR_TRY(ops->scale_heads_forward(call->backend, call->layout.rows, mixer->of.heads, mixer->of.head_size, true,
                                    dr_module_parameter(call, mixer->skip), made->mapped[PIECE_X], made->o, true));
    DR_TRY(gate_output(call, made, use));
    return ops->linear_forward(call->backend, &out, use->y, dr_module_weight(call, mixer->out),
                               dr_module_parameter(call, mixer->out_bias), y);
}

/* ---- backward ------------------------------------------------------------------------------------------------------- */

/* d_o, the gradient of z, and the skip's part of that of x */
static dr_status output_backward(const dr_module_call *call, const mamba2_memory *made, const mamba2_scratch *use,
                                 const void *d_y) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const int64_t rows = call->layout.rows;
    const dr_linear out = {.rows = rows, .in = mixer->inner, .out = mixer->module.hidden};
    DR_TRY(gate_output(call, made, use));
    DR_TRY(ops->linear_backward(call->backend, &out, use->y, dr_module_weight(call, mixer->out), d_y, use->d_y, false,
                                dr_module_gradient(call, mixer->out), dr_module_gradient(call, mixer->out_bias)));
    if (mixer->of.norm == DR_MAMBA2_NORM_NONE) {
        DR_TRY(ops->gated_backward(call->backend, DR_FUNCTION_SILU, rows * mixer->inner, made->o, made->raw[PIECE_Z], use->d_y,
                                   use->d_o, use->d_mapped[PIECE_Z]));
    } else {
        const dr_rms_norm norm = norm_of(call);
        DR_TRY(ops->rms_norm_backward(call->backend, &norm, made->o, dr_module_parameter(call, mixer->norm), made->raw[PIECE_Z],
                                      use->d_y, use->d_o, false, dr_module_gradient(call, mixer->norm),
                                      use->d_mapped[PIECE_Z]));
    }
    return ops->scale_heads_backward(call->backend, rows, mixer->of.heads, mixer->of.head_size, true,
                                     dr_module_parameter(call, mixer->skip), made->mapped[PIECE_X], use->d_o,
                                     dr_module_gradient(call, mixer->skip), use->d_mapped[PIECE_X], false);
}

static dr_status recur_backward(const dr_module_call *call, const mamba2_memory *made, const mamba2_scratch *use) {
    const mamba2 *mixer = of(call);
    const dr_inputs inputs = inputs_of(made);
    dr_input_gradients gradients = {{NULL}};
    gradients.at[DR_INPUT_QUERY] = use->d_mapped[PIECE_C];
    gradients.at[DR_INPUT_KEY] = use->d_mapped[PIECE_B];
    gradients.at[DR_INPUT_VALUE] = use->d_stepped;
    gradients.at[DR_INPUT_LOG_DECAY] = use->d_log_decay;
    DR_TRY(dr_engine_backward(call, &inputs, made->saved, use->workspace, use->d_o, &gradients));
    return call->backend->ops->scale_heads_backward(call->backend, call->layout.rows, mixer->of.heads, mixer->of.head_size,
                                                    false, made->step, made->mapped[PIECE_X], use->d_stepped, use->d_step,
                                                    use->d_mapped[PIECE_X], true);
}

static dr_status steps_backward(const dr_module_call *call, const mamba2_memory *made, const mamba2_scratch *use) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_gate step = gate_of(call, DR_GATE_SOFTPLUS), decay = gate_of(call, DR_GATE_LOG_DECAY);
    const void *bias = dr_module_parameter(call, mixer->step_bias), *a_log = dr_module_parameter(call, mixer->a_log);
    void *d_bias = dr_module_gradient(call, mixer->step_bias), *d_a_log = dr_module_gradient(call, mixer->a_log);
    DR_TRY(ops->gate_backward(call->backend, &decay, made->raw[PIECE_STEP], a_log, bias, use->d_log_decay, use->d_raw, false,
                              d_a_log, d_bias));
    return ops->gate_backward(call->backend, &step, made->raw[PIECE_STEP], NULL, bias, use->d_step, use->d_raw, true, NULL,
                              d_bias);
}

/* The first piece overwrites d_x, the others add to it. */
static dr_status project_backward(const dr_module_call *call, int p, const void *x, const mamba2_memory *made,
                                  const mamba2_scratch *use, void *d_x) {
    const mamba2 *mixer = of(call);
    const dr_operations *ops = call->backend->ops;
    const dr_linear linear = {.rows = call->layout.rows, .in = mixer->module.hidden, .out = mixer->size[p]};
    void *d_raw = p == PIECE_Z ? use->d_mapped[p] : use->d_raw;
    if (p == PIECE_STEP) DR_TRY(steps_backward(call, made, use));
    if (is_convolved(p)) {
        const dr_conv conv = conv_of(call, p);
        const int64_t taps = mixer->channel[p] * mixer->of.conv_size;
        DR_TRY(ops->conv_backward(call->backend, &conv, made->raw[p], behind(call, mixer->conv, taps),
                                  behind(call, mixer->conv_bias, mixer->channel[p]), NULL, use->d_mapped[p], d_raw,
                                  gradient_behind(call, mixer->conv, taps),
                                  gradient_behind(call, mixer->conv_bias, mixer->channel[p])));
    }
    DR_TRY(dr_module_scale(call->backend, mixer->of.factor[p], call->layout.rows * mixer->size[p], d_raw, d_raw));
    return ops->linear_backward(call->backend, &linear, x, weight_of(call, p), d_raw, d_x, p > 0,
                                gradient_behind(call, mixer->in, mixer->row[p] * mixer->module.hidden),
                                gradient_behind(call, mixer->in_bias, mixer->row[p]));
}

static dr_status backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x) {
    const mamba2_memory *made = call->memory;
    const mamba2_scratch *use = call->scratch;
    DR_TRY(output_backward(call, made, use, d_y));
    DR_TRY(recur_backward(call, made, use));
    for (int p = 0; p < PIECES; p++) DR_TRY(project_backward(call, p, x, made, use, d_x));
    return DR_OK;
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

static dr_status chunk(const dr_module *module, dr_backend *backend, int64_t *tokens) {
    const dr_layout layout = {1, 1, NULL};
    return dr_engine_chunk(backend, recurrence_of((const mamba2 *)module, &layout), tokens);
}

static void destroy(dr_backend *backend, dr_module *module) {
    (void)backend;
    dr_release(module);
}

/* A mixer may need any of these. */
static const dr_operation needs[] = {DR_OPERATION_LINEAR, DR_OPERATION_RMS_NORM, DR_OPERATION_CONV,        DR_OPERATION_GATE,
                                     DR_OPERATION_APPLY,  DR_OPERATION_BOUND,    DR_OPERATION_SCALE_HEADS, DR_OPERATIONS};

static const dr_module_operations operations = {.name = "mamba2_mixer",
                                                .needs = needs,
                                                .plan_size = sizeof(dr_plan),
                                                .memory_size = sizeof(mamba2_memory),
                                                .scratch_size = sizeof(mamba2_scratch),
                                                .state_size = sizeof(mamba2_state),
                                                .plan = plan,
                                                .place = place,
                                                .place_scratch = place_scratch,
                                                .place_state = place_state,
                                                .chunk = chunk,
                                                .forward = forward,
                                                .backward = backward,
                                                .destroy = destroy};

/* Sizes that overflow are refused where the parameters are added. */
static dr_status check(const dr_mamba2_description *of_mixer) {
    enum { MOST = 1 << 30 };
    const int64_t sizes[] = {of_mixer->heads,      of_mixer->head_size, of_mixer->groups,
                             of_mixer->state_size, of_mixer->conv_size, of_mixer->norm_groups};
    static const char *const names[] = {"heads", "head size", "groups", "state size", "convolution size", "norm groups"};
    for (int i = 0; i < 6; i++)
        if (sizes[i] < 1 || sizes[i] > MOST)
            return dr_fail(DR_ERROR_ARGUMENT, "the %s of a mamba2 mixer: %" PRId64 "; it must be from 1 to %d", names[i],
                           sizes[i], MOST);
    if (of_mixer->heads % of_mixer->groups != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " heads of a mamba2 mixer cannot share %" PRId64 " groups equally",
                       of_mixer->heads, of_mixer->groups);
    if (of_mixer->heads * of_mixer->head_size % of_mixer->norm_groups != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%" PRId64 " channels of a mamba2 mixer cannot be normed in %" PRId64 " equal groups",
                       of_mixer->heads * of_mixer->head_size, of_mixer->norm_groups);
    if (!(of_mixer->least_step >= 0) || !(of_mixer->most_step > of_mixer->least_step))
        return dr_fail(DR_ERROR_ARGUMENT, "steps of a mamba2 mixer from %g to %g; they must rise from 0 at least",
                       of_mixer->least_step, of_mixer->most_step);
    for (int p = 0; p < PIECES; p++)
        if (!isfinite(of_mixer->factor[p]))
            return dr_fail(DR_ERROR_ARGUMENT, "a factor of a mamba2 mixer is %g; it must be finite", of_mixer->factor[p]);
    return DR_OK;
}

static dr_status add_parameters(mamba2 *mixer, const char *prefix, dr_layer_parameters *list) {
    const dr_initial normal = {DR_INITIAL_NORMAL, 0}, zero = {DR_INITIAL_CONSTANT, 0}, one = {DR_INITIAL_CONSTANT, 1},
                     decay = {DR_INITIAL_A_LOG, 1}, step = {DR_INITIAL_STEP, 0},
                     filter = {DR_INITIAL_UNIFORM, 1 / sqrt((double)mixer->of.conv_size)};
    const int64_t hidden = mixer->module.hidden, heads = mixer->of.heads, inner = mixer->inner;
    int64_t rows = 0, channels = 0;
    for (int p = 0; p < PIECES; rows += mixer->size[p++]) {
        mixer->row[p] = rows;
        mixer->channel[p] = channels;
        if (is_convolved(p)) channels += mixer->size[p];
    }
    DR_TRY(dr_add_matrix(list, prefix, "in_proj.weight", normal, rows, hidden, 0, &mixer->in));
    if (mixer->of.input_bias) DR_TRY(dr_add_vector(list, prefix, "in_proj.bias", zero, rows, 0, &mixer->in_bias));
    DR_TRY(dr_add_numbers(list, prefix, "conv1d.weight", filter, channels, 1, mixer->of.conv_size, &mixer->conv));
    if (mixer->of.conv_bias) DR_TRY(dr_add_vector(list, prefix, "conv1d.bias", zero, channels, 0, &mixer->conv_bias));
    DR_TRY(dr_add_vector(list, prefix, "A_log", decay, heads, 0, &mixer->a_log));
    DR_TRY(dr_add_vector(list, prefix, "dt_bias", step, heads, 0, &mixer->step_bias));
    DR_TRY(dr_add_vector(list, prefix, "D", one, heads, 0, &mixer->skip));
    if (mixer->of.norm != DR_MAMBA2_NORM_NONE) DR_TRY(dr_add_vector(list, prefix, "norm.weight", one, inner, 0, &mixer->norm));
    DR_TRY(dr_add_matrix(list, prefix, "o_proj.weight", normal, hidden, inner, 0, &mixer->out));
    return mixer->of.output_bias ? dr_add_vector(list, prefix, "o_proj.bias", zero, hidden, 0, &mixer->out_bias) : DR_OK;
}

/* S = e^g S + k v^T */
static dr_rule linear_rule(void) {
    dr_rule rule = dr_rule_blank();
    rule.decay = DR_DECAY_SCALAR;
    rule.rows = 1;
    rule.row[0] = (dr_row){DR_READ_NONE, false, DR_WRITE_KEY, DR_GAIN_ONE, DR_VALUE_V};
    return rule;
}

dr_status dr_mamba2_create(dr_backend *backend, int64_t hidden, const dr_mamba2_description *description, const char *prefix,
                           dr_layer_parameters *list, dr_module **module) {
    void *memory = NULL;
    DR_TRY(check(description));
    DR_TRY(dr_allocate_zero(sizeof(mamba2), "a mixer", &memory));
    mamba2 *mixer = memory;
    const int64_t inner = description->heads * description->head_size, keys = description->groups * description->state_size;
    *mixer = (mamba2){.module = {&operations, hidden},
                      .of = *description,
                      .rule = linear_rule(),
                      .inner = inner,
                      .size = {inner, inner, keys, keys, description->heads},
                      .in = DR_NO_PARAMETER,
                      .in_bias = DR_NO_PARAMETER,
                      .conv = DR_NO_PARAMETER,
                      .conv_bias = DR_NO_PARAMETER,
                      .a_log = DR_NO_PARAMETER,
                      .step_bias = DR_NO_PARAMETER,
                      .skip = DR_NO_PARAMETER,
                      .norm = DR_NO_PARAMETER,
                      .out = DR_NO_PARAMETER,
                      .out_bias = DR_NO_PARAMETER};
    const dr_status status = add_parameters(mixer, prefix, list);
    if (status == DR_OK)
        *module = &mixer->module;
    else
        destroy(backend, &mixer->module);
    return status;
}
