/* The stages around an engine, in order: inputs and states become dense, the engine runs, results go where they belong. */
#include "backends/cuda/forms/forms.h"
#include "backends/cuda/forms/saved.h"
#include "backends/cuda/forms/tensors.h"
#include "ops/forms.h"

/* What stands for the caller's tensors; NULL where his own are taken. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    void *o, *d_o;
    void *sums;         /* of a raw decay's parameters */
    int32_t *from, *to; /* slots of a decode's compact pool */
    void *workspace;    /* the engine's */
} dense;

typedef enum { FORWARD, BACKWARD, DECODE } use;

/* ---- what is dense already -------------------------------------------------------------------------------------------- */

static bool is_dense(const dr_plan *plan, dr_input input, const int64_t pitch[DR_INPUTS]) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const dr_input_form form = dr_recurrence_input_form(recurrence, input);
    if (!form.per_row) return true;
    return plan->forms.dtype[input] == dr_recurrence_input_dtype(plan->backend, input) &&
           dr_forms_token(recurrence, input, pitch[input]) == dr_forms_token(recurrence, input, 0) &&
           !dr_forms_make(&plan->forms, input);
}

static bool has_own_output(const dr_plan *plan) {
    return plan->forms.output == dr_recurrence_output_dtype(plan->backend);
}

static bool has_raw_decay(const dr_plan *plan) {
    return dr_forms_make(&plan->forms, DR_INPUT_LOG_DECAY);
}

bool dr_cuda_is_formed(const dr_plan *plan) {
    return plan->formed || plan->calls & DR_CALLS_POOLED;
}

/* ---- where it lies ---------------------------------------------------------------------------------------------------- */

static int64_t output_count(const dr_plan *plan) {
    const dr_recurrence *recurrence = &plan->recurrence;
    return recurrence->layout.rows * recurrence->value_heads * recurrence->value_size;
}

static void lay_inputs(const dr_plan *plan, use of, dr_arena *arena, dense *d) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(&plan->rule, (dr_input)i)) continue;
        const size_t bytes = (size_t)dr_recurrence_input_count(&plan->recurrence, (dr_input)i) *
                             dr_dtype_size(dr_recurrence_input_dtype(plan->backend, (dr_input)i));
        if (!is_dense(plan, (dr_input)i, plan->forms.pitch)) d->inputs.at[i] = dr_arena_take(arena, bytes);
        if (of == BACKWARD && !is_dense(plan, (dr_input)i, plan->forms.gradient_pitch))
            d->d_inputs.at[i] = dr_arena_take(arena, bytes);
    }
    const size_t output = (size_t)output_count(plan) * dr_dtype_size(dr_recurrence_output_dtype(plan->backend));
    if (!has_own_output(plan)) *(of == BACKWARD ? &d->d_o : &d->o) = dr_arena_take(arena, output);
    if (of == BACKWARD && has_raw_decay(plan))
        d->sums =
            dr_arena_take(arena, dr_cuda_decay_sums_bytes(plan->recurrence.value_heads, dr_forms_bias_size(&plan->recurrence)));
}

/* A decode's pool holds the states that sequences start from and those after each token. */
static void lay_states(const dr_plan *plan, use of, dr_arena *arena, dense *d) {
    const dr_layout *layout = &plan->recurrence.layout;
    const bool pool = of == DECODE ? plan->forms.value_first : plan->calls & DR_CALLS_POOLED && of == FORWARD;
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(&plan->rule, (dr_state_kind)i)) continue;
        if (!pool && !(plan->forms.value_first && i == DR_STATE_S)) continue;
        const size_t bytes = (size_t)dr_recurrence_state_count(&plan->recurrence, (dr_state_kind)i) * sizeof(float);
        if (of == DECODE) {
            const size_t slots = (size_t)(layout->sequences + layout->rows);
            d->final.at[i] = dr_arena_take(arena, bytes / (size_t)layout->sequences * slots);
            continue;
        }
        d->initial.at[i] = dr_arena_take(arena, bytes);
        if (of == FORWARD) d->final.at[i] = dr_arena_take(arena, bytes);
        if (of == BACKWARD) d->d_final.at[i] = dr_arena_take(arena, bytes), d->d_initial.at[i] = dr_arena_take(arena, bytes);
    }
    if (of != DECODE || !pool) return;
    d->from = dr_arena_take(arena, (size_t)layout->sequences * sizeof *d->from);
    d->to = dr_arena_take(arena, (size_t)layout->rows * sizeof *d->to);
}

static void lay(const dr_plan *plan, use of, size_t engine, dr_arena *arena, dense *d) {
    *d = (dense){.o = NULL};
    lay_inputs(plan, of, arena, d);
    lay_states(plan, of, arena, d);
    d->workspace = dr_arena_take(arena, engine);
}

void dr_cuda_forms_plan(dr_plan *plan) {
    dr_recurrence_memory *memory = &plan->memory;
    size_t *const bytes[] = {&memory->forward, &memory->backward, &memory->decode};
    dense d;
    for (int of = FORWARD; of <= DECODE; of++) {
        dr_arena arena = {0};
        lay(plan, (use)of, *bytes[of], &arena, &d);
        *bytes[of] = arena.used;
    }
}

static dense laid(const dr_plan *plan, use of, const dr_call *given) {
    dense d;
    lay(plan, of, 0, &(dr_arena){.block = given->workspace}, &d);
    return d;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------------ */

static dr_cuda_made made_of(const dr_plan *plan, dr_input input) {
    if (!dr_forms_make(&plan->forms, input)) return DR_CUDA_MADE_AS_IT_IS;
    return input == DR_INPUT_BETA        ? DR_CUDA_MADE_SIGMOID
           : input == DR_INPUT_LOG_DECAY ? DR_CUDA_MADE_DECAY
                                         : DR_CUDA_MADE_NORMALIZED;
}

static dr_cuda_tensor tensor_of(const dr_plan *plan, const dr_call *given, dr_input input) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const dr_forms *forms = &plan->forms;
    const dr_input_form form = dr_recurrence_input_form(recurrence, input);
    return (dr_cuda_tensor){
        .made = made_of(plan, input),
        .dtype = forms->dtype[input],
        .own = dr_recurrence_input_dtype(plan->backend, input),
        .rows = recurrence->layout.rows * form.steps * form.heads,
        .each = form.steps * form.heads,
        .token = dr_forms_token(recurrence, input, forms->pitch[input]),
        .d_token = dr_forms_token(recurrence, input, forms->gradient_pitch[input]),
        .heads = (int32_t)form.heads,
        .size = (int32_t)form.size,
        .epsilon = (float)forms->normalize_eps,
        .factor = (float)forms->beta_factor,
        .bounded = forms->decay == DR_DECAY_FORM_BOUNDED,
        .lower_bound = (float)forms->lower_bound,
        .A_log = given->A_log,
        .dt_bias = given->dt_bias,
    };
}

/* Rows of heads of the output, whose own type is that of the backend's vectors. */
static dr_cuda_tensor output_of(const dr_plan *plan) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const int64_t heads = recurrence->value_heads, size = recurrence->value_size;
    return (dr_cuda_tensor){
        .dtype = plan->forms.output,
        .own = dr_recurrence_output_dtype(plan->backend),
        .rows = recurrence->layout.rows * heads,
        .each = heads,
        .token = heads * size,
        .d_token = heads * size,
        .heads = (int32_t)heads,
        .size = (int32_t)size,
    };
}

/* The inputs as the engine reads them. */
static dr_status make_inputs(const dr_plan *plan, const dr_call *given, dr_cuda_stream stream, dense *d) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!d->inputs.at[i]) {
            d->inputs.at[i] = given->inputs->at[i];
            continue;
        }
        const dr_cuda_tensor tensor = tensor_of(plan, given, (dr_input)i);
        DR_TRY(dr_cuda_tensor_make(&tensor, given->inputs->at[i], (void *)d->inputs.at[i], stream));
    }
    return DR_OK;
}

static bool wants_decay_parameters(const dr_call *given) {
    return given->d_A_log || given->d_dt_bias;
}

/* Where the engine puts gradients: dense ones of what is wanted. */
static void point_gradients(const dr_call *given, dense *d) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const bool sums = i == DR_INPUT_LOG_DECAY && wants_decay_parameters(given);
        if (!d->d_inputs.at[i] || !(given->d_inputs->at[i] || sums)) d->d_inputs.at[i] = given->d_inputs->at[i];
    }
}

static dr_status return_gradients(const dr_plan *plan, const dr_call *given, dr_cuda_stream stream, const dense *d) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const void *gradient = d->d_inputs.at[i], *from = given->inputs->at[i];
        if (gradient == given->d_inputs->at[i]) continue;
        const dr_cuda_tensor tensor = tensor_of(plan, given, (dr_input)i);
        if (i == DR_INPUT_LOG_DECAY && wants_decay_parameters(given))
            DR_TRY(dr_cuda_decay_sums(&tensor, from, (const float *)gradient, d->sums, (float *)given->d_A_log,
                                      (float *)given->d_dt_bias, stream));
        if (given->d_inputs->at[i]) DR_TRY(dr_cuda_tensor_return(&tensor, from, gradient, given->d_inputs->at[i], stream));
    }
    return DR_OK;
}

/* ---- states ------------------------------------------------------------------------------------------------------------ */

/* The states of sequences, read as the caller has them. */
static dr_cuda_state_moves moves_of(const dr_plan *plan, int state) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const int32_t K = (int32_t)recurrence->key_size, V = (int32_t)recurrence->value_size;
    dr_cuda_state_moves moves = {.count = recurrence->layout.sequences, .heads = recurrence->value_heads, .per_sequence = 1};
    moves.rows = K, moves.columns = state == DR_STATE_S ? V : K;
    if (state == DR_STATE_A) moves.heads = recurrence->key_heads, moves.rows = 1;
    moves.turned = state == DR_STATE_S && plan->forms.value_first;
    if (moves.turned) moves.rows = V, moves.columns = K;
    return moves;
}

/* The same on the way back. */
static dr_cuda_state_moves back(dr_cuda_state_moves moves) {
    const int32_t rows = moves.rows;
    if (moves.turned) moves.rows = moves.columns, moves.columns = rows;
    return moves;
}

/* Of what the caller gives, whose members may be NULL; slots: of a pool, or NULL. */
static dr_status bring_states(const dr_plan *plan, const dr_states *given, const int32_t *slots, dr_cuda_stream stream,
                              dr_states *to) {
    for (int i = 0; i < DR_STATES; i++) {
        if (!to->at[i] || !given->at[i]) {
            to->at[i] = given->at[i];
            continue;
        }
        dr_cuda_state_moves moves = moves_of(plan, i);
        moves.reads = slots;
        DR_TRY(dr_cuda_move_states(&moves, (const float *)given->at[i], (float *)to->at[i], stream));
    }
    return DR_OK;
}

/* Before the engine: what it writes in the place of what the caller wants. */
static void point_states(const dr_mutable_states *given, dr_mutable_states *to) {
    for (int i = 0; i < DR_STATES; i++)
        if (!given->at[i] || !to->at[i]) to->at[i] = given->at[i];
}

static dr_status return_states(const dr_plan *plan, const dr_mutable_states *from, const int32_t *slots, dr_cuda_stream stream,
                               const dr_mutable_states *given) {
    for (int i = 0; i < DR_STATES; i++) {
        if (from->at[i] == given->at[i]) continue;
        dr_cuda_state_moves moves = back(moves_of(plan, i));
        moves.writes = slots;
        DR_TRY(dr_cuda_move_states(&moves, (const float *)from->at[i], (float *)given->at[i], stream));
    }
    return DR_OK;
}

dr_status dr_cuda_find_saved(const dr_cuda_call *call, dr_cuda_saved_states *saved) {
    const dr_cuda_engine *engine = call->engine;
    const dr_cuda_chunk_plan *plan = dr_cuda_packed(call) ? &engine->packed : &engine->even;
    if (!call->saved)
        return dr_fail(DR_ERROR_ARGUMENT, "checkpoints are read out of what the forward saves on backend cuda: give it saved");
    if (engine->kind != DR_CUDA_RECURRENT && plan->storage != DR_F32)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "the states that a forward saves on backend cuda are rounded to %s: open it with F32, "
                       "or end the forward where the state is wanted",
                       dr_dtype_name(call->storage));
    *saved = engine->kind == DR_CUDA_RECURRENT ? dr_cuda_recurrent_saved(call) : dr_cuda_chunkwise_saved(call);
    return DR_OK;
}

/* States on the way, out of what the forward has saved. The engine needs its workspace no more. */
static dr_status keep_checkpoints(const dr_plan *plan, const dr_slots *slots, const dr_cuda_call *call,
                                  const dr_mutable_states *pool) {
    dr_cuda_saved_states saved;
    dr_cuda_layout layout;
    DR_TRY(dr_cuda_find_saved(call, &saved));
    DR_TRY(dr_cuda_layout_put(call->gpu, &plan->recurrence.layout, call->boundaries, call->workspace, &layout));
    return dr_cuda_read_checkpoints(&saved, &plan->recurrence, plan->forms.value_first, &layout, slots, pool,
                                    call->gpu->stream);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------- */

dr_status dr_cuda_formed_forward(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call, dr_cuda_run engine) {
    const dr_cuda_stream stream = call->gpu->stream;
    const dr_slots *slots = given->slots;
    dense d = laid(plan, FORWARD, given);
    if (!slots && !plan->forms.value_first) d.initial = (dr_states){{NULL}}, d.final = (dr_mutable_states){{NULL}};
    DR_TRY(make_inputs(plan, given, stream, &d));
    DR_TRY(bring_states(plan, call->initial, slots ? slots->from : NULL, stream, &d.initial));
    point_states(call->final, &d.final);
    dr_cuda_call own = *call;
    own.inputs = &d.inputs, own.initial = &d.initial, own.final = &d.final, own.workspace = d.workspace;
    if (d.o) own.o = d.o;
    DR_TRY(engine(&own));
    const dr_cuda_tensor output = output_of(plan);
    if (d.o) DR_TRY(dr_cuda_tensor_return(&output, NULL, d.o, call->o, stream));
    const int32_t *ends = !slots ? NULL : slots->to ? slots->to : slots->from;
    DR_TRY(return_states(plan, &d.final, ends, stream, call->final));
    return slots && slots->checkpoints > 0 ? keep_checkpoints(plan, slots, &own, call->final) : DR_OK;
}

dr_status dr_cuda_formed_backward(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call, dr_cuda_run engine) {
    const dr_cuda_stream stream = call->gpu->stream;
    dense d = laid(plan, BACKWARD, given);
    DR_TRY(make_inputs(plan, given, stream, &d));
    DR_TRY(bring_states(plan, call->initial, NULL, stream, &d.initial));
    DR_TRY(bring_states(plan, call->d_final, NULL, stream, &d.d_final));
    point_gradients(given, &d);
    point_states(call->d_initial, &d.d_initial);
    const dr_cuda_tensor output = output_of(plan);
    if (d.d_o) DR_TRY(dr_cuda_tensor_make(&output, call->d_o, d.d_o, stream));
    dr_cuda_call own = *call;
    own.inputs = &d.inputs, own.initial = &d.initial, own.d_final = &d.d_final, own.d_inputs = &d.d_inputs;
    own.d_initial = &d.d_initial, own.workspace = d.workspace;
    if (d.d_o) own.d_o = d.d_o;
    DR_TRY(engine(&own));
    DR_TRY(return_gradients(plan, given, stream, &d));
    return return_states(plan, &d.d_initial, NULL, stream, call->d_initial);
}

/* The states that sequences start from lie first in the compact pool. */
static dr_status compact(const dr_plan *plan, const dr_call *given, dr_cuda_stream stream, dense *d) {
    const dr_layout *layout = &plan->recurrence.layout;
    const dr_slots *slots = given->slots;
    if (slots && plan->forms.value_first)
        DR_TRY(dr_cuda_compact_slots(slots->from, slots->to, layout->sequences, slots->tokens, d->from, d->to, stream));
    for (int i = 0; i < DR_STATES; i++) {
        float *pool = given->states->at[i];
        if (!slots && i != DR_STATE_S) d->final.at[i] = NULL;
        if (!d->final.at[i]) {
            d->final.at[i] = pool;
            continue;
        }
        dr_cuda_state_moves moves = moves_of(plan, i);
        moves.reads = slots ? slots->from : NULL;
        DR_TRY(dr_cuda_move_states(&moves, pool, d->final.at[i], stream));
    }
    return DR_OK;
}

/* Back to the slots that the caller names. */
static dr_status spread(const dr_plan *plan, const dr_call *given, dr_cuda_stream stream, const dense *d) {
    const dr_layout *layout = &plan->recurrence.layout;
    const dr_slots *slots = given->slots;
    for (int i = 0; i < DR_STATES; i++) {
        float *pool = given->states->at[i];
        if (d->final.at[i] == pool) continue;
        dr_cuda_state_moves moves = back(moves_of(plan, i));
        moves.keep = true;
        moves.writes = slots ? slots->from : NULL;
        if (slots && slots->to) {
            moves.count = layout->rows, moves.read_first = layout->sequences, moves.writes = slots->to;
            moves.only = slots->from, moves.per_sequence = slots->tokens;
        }
        DR_TRY(dr_cuda_move_states(&moves, d->final.at[i], pool, stream));
    }
    return DR_OK;
}

dr_status dr_cuda_formed_decode(const dr_plan *plan, const dr_call *given, const dr_cuda_call *call,
                                dr_cuda_decode_run engine) {
    const dr_cuda_stream stream = call->gpu->stream;
    const dr_slots *slots = given->slots;
    dense d = laid(plan, DECODE, given);
    DR_TRY(make_inputs(plan, given, stream, &d));
    DR_TRY(compact(plan, given, stream, &d));
    dr_cuda_call own = *call;
    own.inputs = &d.inputs;
    if (d.o) own.o = d.o;
    dr_slots compacted = slots ? *slots : (dr_slots){0};
    if (slots && plan->forms.value_first) {
        compacted.slots = plan->recurrence.layout.sequences + plan->recurrence.layout.rows;
        compacted.from = d.from;
        if (slots->to) compacted.to = d.to;
    }
    DR_TRY(engine(&own, slots ? &compacted : NULL, &d.final));
    dr_cuda_tensor output = output_of(plan);
    if (slots) output.from = slots->from, output.from_rows = slots->tokens * output.each;
    if (d.o) DR_TRY(dr_cuda_tensor_return(&output, NULL, d.o, call->o, stream));
    return spread(plan, given, stream, &d);
}
