/* The recurrence on a CPU: memory, tasks and sums over sequences.
 *
 * A task is one sequence and one key head; it takes the value heads of that key head in order, so that the gradients of a key
 * have one owner. Tasks share nothing, and parameters are summed from one partial sum a sequence in order: results are the same
 * bits for any number of threads, and a packed sequence gives the bits of a separate one. A forward on more threads than that
 * has a task for each of some blocks of value columns, which makes what belongs to the keys again for each. A backward sums
 * over the columns; there the gradient of the state goes ahead through all chunks by blocks of columns, and then each segment
 * is a task. Decoding, which only streams states, has a task for each value head instead. */
#include "backends/cpu/recurrence.h"
#include "backends/cpu/recurrence_plan.h"
#include "backends/cpu/threads.h"
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

extern const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_portable;
#if defined(__x86_64__)
extern const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_avx2, dr_cpu_recurrence_kernels_avx512;
#elif defined(__aarch64__)
extern const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_neon;
#endif

static const dr_cpu_recurrence_kernels *kernels_of(const dr_backend *backend) {
#if defined(__x86_64__)
    if (!strcmp(backend->isa, "avx512")) return &dr_cpu_recurrence_kernels_avx512;
    if (!strcmp(backend->isa, "avx2")) return &dr_cpu_recurrence_kernels_avx2;
#elif defined(__aarch64__)
    if (!strcmp(backend->isa, "neon")) return &dr_cpu_recurrence_kernels_neon;
#endif
    return &dr_cpu_recurrence_kernels_portable;
}

/* What a plan keeps: the plans of its calls, which lack the boundaries only. */
typedef struct {
    const dr_cpu_recurrence_kernels *kernels;
    dr_cpu_plan plan, decode;
    size_t forward_bytes, backward_bytes, decode_bytes; /* of a thread's chunk */
    bool twice;                                         /* there is room for a backward in two passes */
} cpu_engine;
_Static_assert(sizeof(cpu_engine) <= DR_PLAN_ENGINE_BYTES, "a plan has no room for what the CPU keeps of it");

static const cpu_engine *engine_of(const dr_plan *plan) {
    return (const cpu_engine *)(const void *)&plan->engine;
}

/* The plan of a call: with where its sequences begin. */
static dr_cpu_plan plan_of_call(const dr_plan *plan, const dr_call *call) {
    dr_cpu_plan own = engine_of(plan)->plan;
    own.layout = dr_call_layout(plan, call);
    return own;
}

/* Threads that a call may have now. */
static int threads_of(const dr_plan *plan, const dr_call *call) {
    return dr_cpu_team(call->threads > 0 ? call->threads : plan->backend->threads);
}

/* Threads of a region of so many tasks. */
static int threads_for(int threads, int64_t tasks) {
    return tasks > 1 ? threads : 1;
}

static int64_t tasks_of(const dr_cpu_plan *plan) {
    return plan->layout.sequences * plan->key_heads;
}

/* Time of a task for each of so many blocks of value columns of each task, against one for all of them on a thread of its own:
 * a quarter of the work is the keys' and is done for each block. */
static double block_time(int threads, const dr_cpu_plan *plan, int64_t blocks) {
    const int64_t rounds = (tasks_of(plan) * blocks + threads - 1) / threads;
    return (double)rounds * (0.25 + 0.75 / (double)blocks);
}

/* The number of blocks that ends first. */
static int64_t best_blocks(int threads, const dr_cpu_plan *plan) {
    int64_t best = 1;
    for (int64_t blocks = 2; blocks <= dr_cpu_most_blocks(plan); blocks++)
        if (block_time(threads, plan, blocks) < block_time(threads, plan, best)) best = blocks;
    return best;
}

/* Blocks of value columns of each task of a forward, where there are more threads than tasks. A matrix scan is too dear for
 * that, and a diagonal scan that is carried in place must not be made twice. */
static int64_t forward_blocks(int threads, const dr_cpu_plan *plan, const dr_cpu_call *call) {
    const void *scan = call->initial ? call->initial->at[DR_STATE_A] : NULL;
    const bool in_place = scan && call->final && call->final->at[DR_STATE_A] == scan;
    if (tasks_of(plan) >= threads || plan->matrix || in_place) return 1;
    return best_blocks(threads, plan);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static size_t chunk_bytes(const dr_cpu_plan *plan, dr_cpu_chunk_use use) {
    dr_arena arena = {0};
    dr_cpu_chunk chunk;
    dr_cpu_chunk_lay(plan, use, &arena, &chunk);
    return arena.used;
}

/* The chunk of a thread: the workspace holds one for each. */
static void lay_chunk(const dr_cpu_plan *plan, dr_cpu_chunk_use use, void *workspace, int thread, size_t bytes,
                      dr_cpu_chunk *chunk) {
    dr_arena arena = {.block = (char *)workspace + (size_t)thread * bytes};
    dr_cpu_chunk_lay(plan, use, &arena, chunk);
}

static bool is_parameter(const dr_cpu_input *input) {
    return input->used && !input->per_token;
}

/* Slots for the states before each segment: at most one a sequence more than whole segments fit into the tokens. */
static int64_t slots_of(const dr_cpu_plan *plan) {
    return plan->layout.rows / dr_cpu_segment(plan) + plan->layout.sequences;
}

/* Partial sums of the parameters that are wanted, behind the chunks in the workspace; wanted NULL: of all. */
static void lay_partial_sums(const dr_cpu_plan *plan, const dr_call *wanted, dr_arena *arena, dr_cpu_call *call) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cpu_input *input = &plan->input[i];
        if (!is_parameter(input) || (wanted && !wanted->d_inputs->at[i])) continue;
        size_t count = (size_t)plan->layout.sequences * (size_t)(input->heads * input->width);
        call->d_parameter[i] = dr_arena_take(arena, count * sizeof(double));
    }
    if (!plan->input[DR_INPUT_LOG_DECAY].made) return;
    const size_t heads = (size_t)(slots_of(plan) * plan->value_heads) * sizeof(double);
    if (!wanted || wanted->d_A_log) call->d_A_log = dr_arena_take(arena, heads);
    if (!wanted || wanted->d_dt_bias) call->d_dt_bias = dr_arena_take(arena, heads * (size_t)plan->bias_size);
}

/* The parts of what a forward saves: bytes of each slot, and of each row. */
enum { SAVED_STATES, SAVED_SCAN, SAVED_MATRIX, SAVED_UPDATES, SAVED_PARTS };

static size_t bytes_of_saved(const dr_cpu_plan *plan, int part) {
    const size_t HV = (size_t)plan->value_heads, K = (size_t)plan->key_size, V = (size_t)plan->values;
    switch (part) {
    case SAVED_STATES:
        return HV * K * V * sizeof(float);
    case SAVED_SCAN:
        return plan->rule->scan == DR_SCAN_DIAGONAL ? (size_t)plan->key_heads * K * sizeof(float) : 0;
    case SAVED_MATRIX:
        return plan->matrix ? HV * K * K * sizeof(float) : 0;
    default:
        return plan->chunkwise && plan->erases ? (size_t)plan->steps * HV * V * sizeof(float) : 0;
    }
}

static dr_saved_size saved_size(const dr_cpu_plan *plan) {
    dr_saved_size size = {.segment = dr_cpu_segment(plan)};
    dr_arena padding = {0};
    for (int part = 0; part < SAVED_PARTS; part++) {
        const size_t bytes = bytes_of_saved(plan, part);
        if (bytes > 0) dr_arena_take(&padding, 1);
        *(part == SAVED_UPDATES ? &size.per_row : &size.per_segment) += bytes;
    }
    size.fixed = padding.used;
    return size;
}

/* Of each part where it begins, NULL: it is not there. */
static void lay_saved(const dr_cpu_plan *plan, void *saved, char *part[SAVED_PARTS]) {
    dr_arena arena = {.block = saved};
    for (int i = 0; i < SAVED_PARTS; i++) {
        const size_t bytes = bytes_of_saved(plan, i), count = (size_t)(i == SAVED_UPDATES ? plan->layout.rows : slots_of(plan));
        part[i] = bytes > 0 ? dr_arena_take(&arena, bytes * count) : NULL;
    }
}

static void find_saved(const dr_cpu_plan *plan, void *saved, dr_cpu_call *call) {
    char *part[SAVED_PARTS];
    lay_saved(plan, saved, part);
    call->saved_states = (float *)(void *)part[SAVED_STATES];
    call->saved_scan = (float *)(void *)part[SAVED_SCAN];
    call->saved_matrix = (float *)(void *)part[SAVED_MATRIX];
    call->saved_updates = (float *)(void *)part[SAVED_UPDATES];
}

/* Zeros in the slots that no sequence uses, and behind each part: what is saved has no byte that nobody wrote. */
static void pad_saved(const dr_plan *plan, const dr_cpu_plan *own, char *saved) {
    char *part[SAVED_PARTS + 1], *const end = saved + plan->memory.saved;
    lay_saved(own, saved, part);
    part[SAVED_PARTS] = end;
    for (int64_t i = 0; i < own->layout.sequences; i++) {
        const int64_t tokens = dr_layout_begin(&own->layout, i + 1) - dr_layout_begin(&own->layout, i),
                      each = dr_cpu_segment(own);
        const int64_t used = dr_cpu_first_slot(own, i) + tokens / each + (tokens % each > 0);
        const int64_t next = i + 1 < own->layout.sequences ? dr_cpu_first_slot(own, i + 1) : slots_of(own);
        for (int k = 0; k < SAVED_UPDATES; k++) {
            const size_t bytes = bytes_of_saved(own, k);
            if (part[k] && next > used) memset(part[k] + (size_t)used * bytes, 0, (size_t)(next - used) * bytes);
        }
    }
    for (int k = 0; k < SAVED_PARTS; k++) {
        if (!part[k]) continue;
        const size_t count = (size_t)(k == SAVED_UPDATES ? own->layout.rows : slots_of(own));
        char *behind = part[k] + bytes_of_saved(own, k) * count, *next = end;
        for (int j = SAVED_PARTS; j > k; j--)
            if (part[j]) next = part[j];
        memset(behind, 0, (size_t)(next - behind));
    }
}

/* Whether a backward may go in two passes: nothing but the state is carried from chunk to chunk, and no parameter's gradient is
 * wanted, whose sum goes through the sequence in order. wanted NULL: none is. */
static bool passes_twice(const dr_cpu_plan *plan, const dr_input_gradients *wanted) {
    if (!plan->chunkwise || plan->rule->scan != DR_SCAN_NONE) return false;
    for (int i = 0; i < DR_INPUTS; i++)
        if (is_parameter(&plan->input[i]) && wanted && wanted->at[i]) return false;
    return true;
}

static void lay_kept_states(const dr_cpu_plan *plan, dr_arena *arena, dr_cpu_call *call) {
    const size_t rows = (size_t)(slots_of(plan) * plan->value_heads) * (size_t)plan->values;
    call->kept_states = dr_arena_take(arena, rows * (size_t)plan->key_pitch * sizeof(float));
}

/* Blocks of value columns of the first pass of a backward, 0: it has one pass only. The first is some 0.45 of the work of the
 * second, whose tasks are segments. */
static int64_t backward_blocks(int threads, const dr_cpu_plan *plan, const dr_input_gradients *wanted) {
    const int64_t tasks = tasks_of(plan);
    if (tasks == 0 || tasks >= threads || !passes_twice(plan, wanted)) return 0;
    const int64_t segments = slots_of(plan) / plan->layout.sequences;
    if (segments < 2) return 0;
    const int64_t blocks = best_blocks(threads, plan), rounds = (tasks * segments + threads - 1) / threads;
    return 0.45 * block_time(threads, plan, blocks) + (double)rounds / (double)segments < 1 ? blocks : 0;
}

dr_status dr_cpu_recurrence_plan(dr_plan *plan) {
    cpu_engine *engine = (cpu_engine *)(void *)&plan->engine;
    const size_t threads = (size_t)plan->backend->threads;
    engine->kernels = kernels_of(plan->backend);
    dr_cpu_recurrence_make_plan(&plan->recurrence, &plan->forms, false, &engine->plan);
    dr_cpu_recurrence_make_plan(&plan->recurrence, &plan->forms, true, &engine->decode);
    engine->forward_bytes = chunk_bytes(&engine->plan, DR_CHUNK_FORWARD);
    engine->backward_bytes = chunk_bytes(&engine->plan, DR_CHUNK_BACKWARD);
    engine->decode_bytes = chunk_bytes(&engine->decode, DR_CHUNK_DECODE);
    engine->twice = backward_blocks(plan->backend->threads, &engine->plan, NULL) > 0;
    dr_arena sums = {0};
    dr_cpu_call call = {0};
    lay_partial_sums(&engine->plan, NULL, &sums, &call);
    if (engine->twice) lay_kept_states(&engine->plan, &sums, &call);
    plan->saved = saved_size(&engine->plan);
    plan->memory = (dr_recurrence_memory){
        .forward = threads * engine->forward_bytes,
        .backward = threads * engine->backward_bytes + sums.used,
        .saved = dr_saved_bytes(&plan->saved, plan->recurrence.layout.rows, plan->recurrence.layout.sequences),
        .decode = threads * engine->decode_bytes,
    };
    return DR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

dr_status dr_cpu_recurrence_forward(const dr_plan *plan, const dr_call *given) {
    const cpu_engine *engine = engine_of(plan);
    const dr_cpu_plan own = plan_of_call(plan, given);
    dr_cpu_call call = {.inputs = given->inputs,
                        .initial = given->initial,
                        .o = given->o,
                        .final = given->final,
                        .slots = given->slots,
                        .A_log = given->A_log,
                        .dt_bias = given->dt_bias};
    if (given->saved) {
        find_saved(&own, given->saved, &call);
        pad_saved(plan, &own, given->saved);
    }
    const int most = threads_of(plan, given);
    const int64_t blocks = forward_blocks(most, &own, &call), tasks = tasks_of(&own);
    const int threads = threads_for(most, tasks * blocks);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < tasks * blocks; i++) {
        dr_cpu_plan part;
        const dr_cpu_plan *block = &own;
        dr_cpu_chunk chunk;
        if (blocks > 1) {
            dr_cpu_plan_block(&own, blocks, i % blocks, &part);
            block = &part;
        }
        lay_chunk(block, DR_CHUNK_FORWARD, given->workspace, omp_get_thread_num(), engine->forward_bytes, &chunk);
        const int64_t task = i / blocks;
        engine->kernels->forward(block, &call, &chunk, task / own.key_heads, task % own.key_heads);
    }
    return DR_OK;
}

/* Of each of count numbers the sum over the first axis of parts [of][count], in order. */
static void sum_parts(const double *parts, int64_t of, int64_t count, float *to) {
    for (int64_t j = 0; parts && j < count; j++) {
        double sum = 0;
        for (int64_t n = 0; n < of; n++) sum += parts[n * count + j];
        to[j] = (float)sum;
    }
}

static void sum_decay_parameters(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_call *given) {
    sum_parts(call->d_A_log, slots_of(plan), plan->value_heads, given->d_A_log);
    sum_parts(call->d_dt_bias, slots_of(plan), plan->value_heads * plan->bias_size, given->d_dt_bias);
}

/* The segments of a call, of which some slots have none, add to what is zero. */
static void clear_decay_sums(const dr_cpu_plan *plan, const dr_cpu_call *call) {
    const size_t heads = (size_t)(slots_of(plan) * plan->value_heads) * sizeof(double);
    if (call->d_A_log) memset(call->d_A_log, 0, heads);
    if (call->d_dt_bias) memset(call->d_dt_bias, 0, heads * (size_t)plan->bias_size);
}

/* Sums the partial sums of the sequences, in order. */
static void sum_parameters(const dr_cpu_plan *plan, const dr_cpu_call *call) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!call->d_parameter[i]) continue;
        sum_parts(call->d_parameter[i], plan->layout.sequences, plan->input[i].heads * plan->input[i].width,
                  call->d_inputs->at[i]);
    }
}

/* The sequence that has a slot among its own. */
static int64_t sequence_of(const dr_cpu_plan *plan, int64_t slot) {
    int64_t low = 0, high = plan->layout.sequences - 1;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (dr_cpu_first_slot(plan, middle) > slot)
            high = middle - 1;
        else
            low = middle;
    }
    return low;
}

static void backward_twice(const cpu_engine *engine, const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t blocks,
                           void *workspace, int threads) {
    const dr_cpu_recurrence_kernels *kernels = engine->kernels;
    const int64_t heads = plan->key_heads, carried = tasks_of(plan) * blocks, segments = slots_of(plan) * heads;
    dr_cpu_call carrying = *call;
    carrying.d_inputs = NULL; /* which it does not write */
#pragma omp parallel num_threads(threads)
    {
        dr_cpu_chunk chunk;
        const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < carried; i++) {
            dr_cpu_plan block;
            dr_cpu_plan_block(plan, blocks, i % blocks, &block);
            lay_chunk(&block, DR_CHUNK_BACKWARD, workspace, thread, engine->backward_bytes, &chunk);
            kernels->carry(&block, &carrying, &chunk, i / blocks / heads, i / blocks % heads);
        }
        lay_chunk(plan, DR_CHUNK_BACKWARD, workspace, thread, engine->backward_bytes, &chunk);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < segments; i++) {
            const int64_t slot = i / heads, sequence = sequence_of(plan, slot);
            kernels->backward_slot(plan, call, &chunk, sequence, i % heads, slot - dr_cpu_first_slot(plan, sequence));
        }
    }
}

dr_status dr_cpu_recurrence_backward(const dr_plan *plan, const dr_call *given) {
    const cpu_engine *engine = engine_of(plan);
    const dr_cpu_plan own = plan_of_call(plan, given);
    dr_cpu_call call = {.inputs = given->inputs,
                        .initial = given->initial,
                        .d_o = given->d_o,
                        .d_final = given->d_final,
                        .d_inputs = given->d_inputs,
                        .d_initial = given->d_initial,
                        .A_log = given->A_log,
                        .dt_bias = given->dt_bias};
    find_saved(&own, given->saved, &call);
    const int most = threads_of(plan, given);
    dr_arena sums = {.block = (char *)given->workspace + (size_t)plan->backend->threads * engine->backward_bytes};
    lay_partial_sums(&own, given, &sums, &call);
    clear_decay_sums(&own, &call);
    const int64_t blocks = engine->twice ? backward_blocks(most, &own, given->d_inputs) : 0;
    if (blocks > 0) {
        lay_kept_states(&own, &sums, &call);
        backward_twice(engine, &own, &call, blocks, given->workspace, most);
        sum_decay_parameters(&own, &call, given);
        return DR_OK;
    }
    const int64_t tasks = tasks_of(&own);
    const int threads = threads_for(most, tasks);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        dr_cpu_chunk chunk;
        lay_chunk(&own, DR_CHUNK_BACKWARD, given->workspace, omp_get_thread_num(), engine->backward_bytes, &chunk);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tasks; i++)
            engine->kernels->backward(&own, &call, &chunk, i / own.key_heads, i % own.key_heads);
    }
    sum_parameters(&own, &call);
    sum_decay_parameters(&own, &call, given);
    return DR_OK;
}

/* Each sequence's tokens in turn: a task is one sequence and one key head. */
static void decode_slots(const cpu_engine *engine, const dr_cpu_call *call, const dr_call *given, int threads) {
    const dr_cpu_plan *plan = &engine->decode;
    const int64_t tasks = plan->layout.sequences * plan->key_heads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        dr_cpu_chunk chunk;
        lay_chunk(plan, DR_CHUNK_DECODE, given->workspace, omp_get_thread_num(), engine->decode_bytes, &chunk);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tasks; i++)
            engine->kernels->decode_slots(plan, call, &chunk, i / plan->key_heads, i % plan->key_heads);
    }
}

dr_status dr_cpu_recurrence_decode(const dr_plan *plan, const dr_call *given) {
    const cpu_engine *engine = engine_of(plan);
    const dr_cpu_plan *own = &engine->decode;
    const dr_cpu_call call = {.inputs = given->inputs,
                              .o = given->o,
                              .final = given->states,
                              .slots = given->slots,
                              .A_log = given->A_log,
                              .dt_bias = given->dt_bias};
    if (given->slots) {
        decode_slots(engine, &call, given, threads_for(threads_of(plan, given), own->layout.sequences * own->key_heads));
        return DR_OK;
    }
    const int64_t heads = own->layout.sequences * own->value_heads, keys = own->layout.sequences * own->key_heads;
    const int threads = threads_for(threads_of(plan, given), heads);
    /* A is shared by the value heads of a key head: where these go to several threads, it moves on once all have read it */
    const bool whole = keys >= threads;
    const int64_t scans = !whole && own->rule->scan == DR_SCAN_DIAGONAL ? keys : 0, unit = whole ? own->group : 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        dr_cpu_chunk chunk;
        const int64_t self = omp_get_thread_num(), all = omp_get_num_threads();
        lay_chunk(own, DR_CHUNK_DECODE, given->workspace, (int)self, engine->decode_bytes, &chunk);
        engine->kernels->decode(own, &call, &chunk, heads / unit * self / all * unit, heads / unit * (self + 1) / all * unit,
                                whole);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < scans; i++)
            engine->kernels->decode_scan(own, &call, &chunk, i / own->key_heads, i % own->key_heads);
    }
    return DR_OK;
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

int64_t dr_cpu_recurrence_chunk(const dr_plan *plan) {
    return dr_cpu_segment(&engine_of(plan)->plan);
}

static void copy_slot(const float *saved, int64_t slot, int64_t count, void *to) {
    if (saved && to) memcpy(to, saved + slot * count, (size_t)count * sizeof(float));
}

/* S [HV][K][V] of a slot to [HV][V][K] */
static void turn_slot(const float *saved, int64_t slot, const dr_cpu_plan *plan, float *to) {
    const int64_t K = plan->key_size, V = plan->values;
    const float *from = saved + slot * plan->value_heads * K * V;
    for (int64_t head = 0; to && head < plan->value_heads; head++, from += K * V, to += K * V)
        for (int64_t k = 0; k < K; k++)
            for (int64_t v = 0; v < V; v++) to[v * K + k] = from[k * V + v];
}

dr_status dr_cpu_recurrence_boundary(const dr_plan *plan, const dr_call *given, int64_t sequence, int64_t boundary,
                                     const dr_mutable_states *states) {
    const dr_cpu_plan *own = &engine_of(plan)->plan;
    dr_cpu_call call = {0};
    find_saved(own, given->saved, &call);
    const int64_t begin = given->boundaries.at ? dr_boundaries_at(&given->boundaries, sequence)
                                               : own->layout.rows / own->layout.sequences * sequence;
    const int64_t slot = begin / dr_cpu_segment(own) + sequence + boundary, HV = own->value_heads, K = own->key_size;
    if (own->value_major)
        turn_slot(call.saved_states, slot, own, states->at[DR_STATE_S]);
    else
        copy_slot(call.saved_states, slot, HV * K * own->value_size, states->at[DR_STATE_S]);
    copy_slot(call.saved_scan, slot, own->key_heads * K, states->at[DR_STATE_A]);
    copy_slot(call.saved_matrix, slot, HV * K * K, states->at[DR_STATE_K]);
    copy_slot(call.saved_matrix, slot, HV * K * K, states->at[DR_STATE_P]);
    return DR_OK;
}

/* ---- what runs ------------------------------------------------------------------------------------------------------- */

int dr_cpu_recurrence_kernel(const dr_plan *plan, bool decode, char *text, size_t size) {
    const char *isa = plan->backend->isa;
    if (decode) return snprintf(text, size, "cpu decode %s", isa);
    if (plan->recurrence.path == DR_PATH_RECURRENT) return snprintf(text, size, "cpu recurrent %s", isa);
    return snprintf(text, size, "cpu chunkwise %s chunk %lld", isa, (long long)dr_cpu_chunk_length(&plan->recurrence, false));
}

void dr_cpu_recurrence_path(const dr_plan *plan, bool packed, dr_stage stage, dr_stage_path *path) {
    (void)packed;
    const bool chunkwise = engine_of(plan)->plan.chunkwise, decode = stage == DR_STAGE_DECODE;
    *path = (dr_stage_path){.storage = DR_F32, .parts = 1, .chunk = dr_cpu_chunk_length(&plan->recurrence, decode)};
    const char *engine = decode ? "decode" : chunkwise ? "chunkwise" : "recurrent";
    if (stage != DR_STAGE_DECODE && !chunkwise) path->chunk = 1;
    snprintf(path->instance, sizeof path->instance, "%s %s", engine, plan->backend->isa);
}
