/* The recurrence on a GPU: what it takes, and which engine runs. Two engines share what this table entry offers: token by
 * token and chunkwise, which DR_PATH_BEST prefers where it takes the recurrence. Decoding is the first
 * one's. The thread's device is set here, once a call. */
#include "backends/cuda/recurrence.h"

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/engine/engines.h"
#include "backends/cuda/engine/widened.h"
#include "backends/cuda/forms/forms.h"
#include "backends/cuda/forms/saved.h"
#include "backends/cuda/rows/rows_make.h"

/* The rules and sizes that no engine of the GPU takes. */
static dr_status check(const dr_recurrence *recurrence) {
    DR_TRY(dr_cuda_rule_check(recurrence->rule));
    if (recurrence->key_size > DR_CUDA_MOST_KEY || recurrence->value_size > DR_CUDA_MOST_VALUE)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend cuda takes heads of at most %d key and %d value channels, not %lld and %lld: use backend cpu",
                       DR_CUDA_MOST_KEY, DR_CUDA_MOST_VALUE, (long long)recurrence->key_size,
                       (long long)recurrence->value_size);
    return DR_OK;
}

static const dr_cuda_engine *engine_of(const dr_plan *plan) {
    return (const dr_cuda_engine *)(const void *)&plan->engine;
}

_Static_assert(sizeof(dr_cuda_engine) <= DR_PLAN_ENGINE_BYTES, "a plan has no room for what the GPU keeps of it");

/* Chooses for the calls that the plan is for; DR_ERROR_UNSUPPORTED if the chunkwise engine is asked for and does not take the
 * recurrence. */
static dr_status choose(const dr_plan *plan, dr_cuda_engine *engine) {
    const dr_recurrence *recurrence = &plan->recurrence;
    const dr_cuda *gpu = dr_cuda_of(plan->backend);
    const dr_dtype storage = plan->backend->storage;
    DR_TRY(check(recurrence));
    dr_cuda_rows_plan(recurrence, storage, &engine->rows);
    engine->kind = DR_CUDA_RECURRENT;
    if (recurrence->path == DR_PATH_RECURRENT) return DR_OK;
    const bool widens = dr_cuda_widens(storage, recurrence);
    dr_status status = DR_OK;
    if (plan->calls & DR_CALLS_EVEN)
        status = dr_cuda_chunkwise_make(gpu, widens ? DR_F32 : storage, recurrence, false, &engine->even);
    if (status == DR_OK && plan->calls & DR_CALLS_PACKED)
        status = dr_cuda_chunkwise_make(gpu, widens ? DR_F32 : storage, recurrence, true, &engine->packed);
    if (status == DR_OK) engine->kind = widens ? DR_CUDA_WIDENED : DR_CUDA_CHUNKWISE;
    return recurrence->path == DR_PATH_CHUNKWISE ? status : DR_OK;
}

dr_status dr_cuda_recurrence_plan(dr_plan *plan) {
    dr_cuda_engine *engine = (dr_cuda_engine *)(void *)&plan->engine;
    const dr_recurrence *recurrence = &plan->recurrence;
    DR_TRY(choose(plan, engine));
    plan->memory = (dr_recurrence_memory){0};
    for (unsigned kind = DR_CALLS_EVEN; kind <= DR_CALLS_PACKED; kind <<= 1) {
        const bool packed = kind == DR_CALLS_PACKED;
        if (!(plan->calls & kind)) continue;
        if (engine->kind == DR_CUDA_RECURRENT)
            dr_cuda_recurrent_plan(dr_cuda_of(plan->backend), recurrence, packed, &plan->memory, &plan->saved);
        else
            dr_cuda_chunkwise_plan(packed ? &engine->packed : &engine->even, recurrence, packed,
                                   plan->bounded ? recurrence->longest : 0, &plan->memory, &plan->saved);
    }
    if (engine->kind == DR_CUDA_WIDENED) dr_cuda_widened_plan(recurrence, &plan->memory);
    if (dr_cuda_is_formed(plan)) dr_cuda_forms_plan(plan);
    plan->memory.saved = dr_saved_bytes(&plan->saved, recurrence->layout.rows, recurrence->layout.sequences);
    return DR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

static const dr_states no_states;
static const dr_mutable_states no_mutable_states;

/* The call as engines take it; gpu gets the device's data with the call's stream. */
static dr_cuda_call call_of(const dr_plan *plan, const dr_call *call, dr_cuda *gpu) {
    *gpu = *dr_cuda_of(plan->backend);
    if (call->stream) gpu->stream.at = call->stream;
    return (dr_cuda_call){
        .gpu = gpu,
        .storage = plan->backend->storage,
        .recurrence = &plan->recurrence,
        .engine = engine_of(plan),
        .boundaries = &call->boundaries,
        .inputs = call->inputs,
        .initial = call->initial ? call->initial : &no_states,
        .o = call->o,
        .final = call->final ? call->final : &no_mutable_states,
        .saved = call->saved,
        .saved_bytes = plan->memory.saved,
        .workspace = call->workspace,
        .d_o = call->d_o,
        .d_final = call->d_final ? call->d_final : &no_states,
        .d_inputs = call->d_inputs,
        .d_initial = call->d_initial ? call->d_initial : &no_mutable_states,
    };
}

dr_status dr_cuda_recurrence_forward(const dr_plan *plan, const dr_call *given) {
    dr_status (*const forward[])(const dr_cuda_call *) = {dr_cuda_recurrent_forward, dr_cuda_chunkwise_forward,
                                                          dr_cuda_widened_forward};
    dr_cuda gpu;
    const dr_cuda_call call = call_of(plan, given, &gpu);
    const dr_cuda_run run = forward[call.engine->kind];
    int before;
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status = dr_cuda_is_formed(plan) ? dr_cuda_formed_forward(plan, given, &call, run) : run(&call);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_backward(const dr_plan *plan, const dr_call *given) {
    dr_status (*const backward[])(const dr_cuda_call *) = {dr_cuda_recurrent_backward, dr_cuda_chunkwise_backward,
                                                           dr_cuda_widened_backward};
    dr_cuda gpu;
    const dr_cuda_call call = call_of(plan, given, &gpu);
    const dr_cuda_run run = backward[call.engine->kind];
    int before;
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status = dr_cuda_is_formed(plan) ? dr_cuda_formed_backward(plan, given, &call, run) : run(&call);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_recurrence_decode(const dr_plan *plan, const dr_call *given) {
    dr_cuda gpu;
    const dr_cuda_call call = call_of(plan, given, &gpu);
    int before;
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status = dr_cuda_is_formed(plan) ? dr_cuda_formed_decode(plan, given, &call, dr_cuda_decode)
                                               : dr_cuda_decode(&call, given->slots, given->states);
    dr_cuda_leave(before);
    return status;
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

/* Of either kind of call: they have the same chunks. */
static const dr_cuda_chunk_plan *chunk_plan_of(const dr_plan *plan) {
    const dr_cuda_engine *engine = engine_of(plan);
    return plan->calls & DR_CALLS_EVEN ? &engine->even : &engine->packed;
}

int64_t dr_cuda_recurrence_chunk(const dr_plan *plan) {
    return engine_of(plan)->kind == DR_CUDA_RECURRENT ? dr_cuda_recurrent_chunk(&plan->recurrence) : chunk_plan_of(plan)->chunk;
}

dr_status dr_cuda_recurrence_boundary(const dr_plan *plan, const dr_call *given, int64_t sequence, int64_t boundary,
                                      const dr_mutable_states *states) {
    const dr_layout *layout = &plan->recurrence.layout;
    dr_cuda gpu;
    dr_cuda_saved_states saved;
    const dr_cuda_call call = call_of(plan, given, &gpu);
    int before;
    DR_TRY(dr_cuda_find_saved(&call, &saved));
    const int64_t begin =
        dr_cuda_packed(&call) ? dr_boundaries_at(call.boundaries, sequence) : layout->rows / layout->sequences * sequence;
    const int64_t first = saved.chunks ? sequence * saved.chunks : begin / saved.chunk + sequence;
    DR_TRY(dr_cuda_enter(plan->backend, &before));
    dr_status status =
        dr_cuda_read_saved(&saved, &plan->recurrence, plan->forms.value_first, first + boundary, states, gpu.stream);
    dr_cuda_leave(before);
    return status;
}

/* ---- what runs ------------------------------------------------------------------------------------------------------- */

/* Who takes the state from chunk to chunk. */
static const char *state_pass_of(const dr_cuda_chunk_plan *plan) {
    if (plan->one_pass) return plan->key_width == 64 ? "one_pass_narrow" : "one_pass";
    if (plan->early.parts) return "one_pass in parts, or scan_warpgroups";
    return plan->linear ? "scan_linear" : plan->warpgroups || dr_cuda_scan_wide(plan) ? "scan_warpgroups" : "scan";
}

static const char *prepare_of(const dr_cuda_chunk_plan *plan) {
    if (plan->one_pass || plan->linear) return state_pass_of(plan);
    return plan->beside.processors ? "prepare_beside" : plan->rows.channel_decay ? "prepare_channel" : "prepare";
}

/* Whether something is made that stands in no input (engine/made.h). */
static bool makes_rows(const dr_cuda_chunk_plan *plan) {
    const dr_cuda_rows *rows = &plan->rows;
    return rows->gains_made || rows->query_made || rows->sum_made || rows->products;
}

/* Of inputs of key heads, what brings the gradients of several value heads together, if anything does. */
static const char *heads_of(const dr_cuda_chunk_plan *plan) {
    if (plan->rows.direct) return plan->rows.group > 1 ? ", sum_heads" : "";
    return plan->rows.made ? "" : ", row_gradients";
}

static int backward_of(const dr_cuda_chunk_plan *plan, char *text, size_t size) {
    const char *gradients = plan->linear_back              ? "gradients_linear"
                            : dr_cuda_backward_fuses(plan) ? "gradients"
                            : plan->rows.channel_decay     ? "updates, keys_channel"
                                                           : "updates, keys";
    return snprintf(text, size, "%s, %s%s%s", plan->linear_back ? "carry_linear" : "reverse", gradients, heads_of(plan),
                    makes_rows(plan) ? ", lead_rows" : "");
}

/* Parts of the longest sequence, of either kind. */
static int32_t parts_of(const dr_cuda_chunk_plan *plan) {
    return plan->early.parts > plan->parts ? plan->early.parts : plan->parts;
}

static const char *decode_of(const dr_plan *plan) {
    return dr_cuda_decode_kernel(dr_cuda_of(plan->backend), &plan->recurrence, plan->backend->storage);
}

int dr_cuda_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size) {
    const char *isa = plan->backend->isa, *storage = dr_dtype_name(plan->backend->storage);
    if (decode) return snprintf(text, size, "cuda decode %s %s: %s", isa, storage, decode_of(plan));
    if (engine_of(plan)->kind == DR_CUDA_RECURRENT) return snprintf(text, size, "cuda recurrent %s %s", isa, storage);
    const dr_cuda_chunk_plan *chunks = chunk_plan_of(plan);
    const char *prepare = prepare_of(chunks), *pass = state_pass_of(chunks);
    char cut[32] = "", backward[64];
    if (parts_of(chunks) > 1) snprintf(cut, sizeof cut, ", %d parts", parts_of(chunks));
    backward_of(chunks, backward, sizeof backward);
    return snprintf(text, size, "cuda chunkwise %s %s chunk %lld%s: %s%s%s%s; %s", isa, dr_dtype_name(chunks->storage),
                    (long long)chunks->chunk, cut, makes_rows(chunks) && !chunks->made_within ? "make_rows, " : "", prepare,
                    prepare == pass ? "" : ", ", prepare == pass ? "" : pass, backward);
}

void dr_cuda_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path) {
    const dr_cuda_engine *engine = engine_of(plan);
    const char *isa = plan->backend->isa, *instance = stage == DR_STAGE_DECODE ? decode_of(plan) : "tokens";
    char backward[64];
    *path = (dr_stage_path){.storage = plan->backend->storage, .chunk = 1, .parts = 1};
    if (stage != DR_STAGE_DECODE && engine->kind != DR_CUDA_RECURRENT) {
        const dr_cuda_chunk_plan *chunks = packed ? &engine->packed : &engine->even;
        path->storage = chunks->storage;
        path->chunk = chunks->chunk;
        path->parts = parts_of(chunks);
        backward_of(chunks, backward, sizeof backward);
        instance = stage == DR_STAGE_PREPARE    ? prepare_of(chunks)
                   : stage == DR_STAGE_BACKWARD ? backward
                                                : state_pass_of(chunks);
    }
    snprintf(path->instance, sizeof path->instance, "%.56s %s", instance, isa);
}
