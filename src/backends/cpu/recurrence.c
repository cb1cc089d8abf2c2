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
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

extern const dr_cpu_recurrence_kernels dr_cpu_recurrence_kernels_portable, dr_cpu_recurrence_kernels_avx2,
    dr_cpu_recurrence_kernels_avx512;

static const dr_cpu_recurrence_kernels *kernels_of(const dr_backend *backend) {
    if (!strcmp(backend->isa, "avx512")) return &dr_cpu_recurrence_kernels_avx512;
    if (!strcmp(backend->isa, "avx2")) return &dr_cpu_recurrence_kernels_avx2;
    return &dr_cpu_recurrence_kernels_portable;
}

static int threads_for(const dr_backend *backend, int64_t tasks) {
    return tasks < backend->threads ? (int)(tasks > 1 ? tasks : 1) : backend->threads;
}

static int64_t tasks_of(const dr_cpu_plan *plan) {
    return plan->layout.sequences * plan->key_heads;
}

/* Time of a task for each of so many blocks of value columns of each task, against one for all of them on a thread of its own:
 * a quarter of the work is the keys' and is done for each block. */
static double block_time(const dr_backend *backend, const dr_cpu_plan *plan, int64_t blocks) {
    const int64_t rounds = (tasks_of(plan) * blocks + backend->threads - 1) / backend->threads;
    return (double)rounds * (0.25 + 0.75 / (double)blocks);
}

/* The number of blocks that ends first. */
static int64_t best_blocks(const dr_backend *backend, const dr_cpu_plan *plan) {
    int64_t best = 1;
    for (int64_t blocks = 2; blocks <= dr_cpu_most_blocks(plan); blocks++)
        if (block_time(backend, plan, blocks) < block_time(backend, plan, best)) best = blocks;
    return best;
}

/* Blocks of value columns of each task of a forward, where there are more threads than tasks. A matrix scan is too dear for
 * that, and a diagonal scan that is carried in place must not be made twice. */
static int64_t forward_blocks(const dr_backend *backend, const dr_cpu_plan *plan, const dr_cpu_call *call) {
    const void *scan = call->initial ? call->initial->at[DR_STATE_A] : NULL;
    const bool in_place = scan && call->final && call->final->at[DR_STATE_A] == scan;
    if (tasks_of(plan) >= backend->threads || plan->matrix || in_place) return 1;
    return best_blocks(backend, plan);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static size_t chunk_bytes(const dr_cpu_plan *plan, dr_cpu_chunk_use use) {
    dr_arena arena = {0};
    dr_cpu_chunk chunk;
    dr_cpu_chunk_lay(plan, use, &arena, &chunk);
    return arena.used;
}

/* The chunk of the calling thread: the workspace holds one a thread. */
static void lay_own_chunk(const dr_cpu_plan *plan, dr_cpu_chunk_use use, void *workspace, size_t bytes, dr_cpu_chunk *chunk) {
    dr_arena arena = {.block = (char *)workspace + (size_t)omp_get_thread_num() * bytes};
    dr_cpu_chunk_lay(plan, use, &arena, chunk);
}

static bool is_parameter(const dr_cpu_input *input) {
    return input->used && !input->per_token;
}

/* Partial sums of the parameters that are wanted, behind the chunks in the workspace; wanted NULL: of all. */
static void lay_partial_sums(const dr_cpu_plan *plan, const dr_input_gradients *wanted, dr_arena *arena, dr_cpu_call *call) {
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cpu_input *input = &plan->input[i];
        if (!is_parameter(input) || (wanted && !wanted->at[i])) continue;
        size_t count = (size_t)plan->layout.sequences * (size_t)(input->heads * input->width);
        call->d_parameter[i] = dr_arena_take(arena, count * sizeof(double));
    }
}

/* Slots for the states before each segment: at most one a sequence more than whole segments fit into the tokens. */
static int64_t slots_of(const dr_cpu_plan *plan) {
    return plan->layout.rows / dr_cpu_segment(plan) + plan->layout.sequences;
}

static void lay_saved(const dr_cpu_plan *plan, dr_arena *arena, dr_cpu_call *call) {
    size_t slots = (size_t)slots_of(plan);
    size_t states = slots * (size_t)(plan->value_heads * plan->key_size) * (size_t)plan->value_size;
    call->saved_states = dr_arena_take(arena, states * sizeof(float));
    if (plan->rule->scan == DR_SCAN_DIAGONAL)
        call->saved_scan = dr_arena_take(arena, slots * (size_t)(plan->key_heads * plan->key_size) * sizeof(float));
    size_t matrices = slots * (size_t)(plan->value_heads * plan->key_size) * (size_t)plan->key_size;
    if (plan->matrix) call->saved_matrix = dr_arena_take(arena, matrices * sizeof(float));
    size_t updates = (size_t)(plan->layout.rows * plan->steps) * (size_t)(plan->value_heads * plan->value_size);
    if (plan->chunkwise && plan->erases) call->saved_updates = dr_arena_take(arena, updates * sizeof(float));
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
static int64_t backward_blocks(const dr_backend *backend, const dr_cpu_plan *plan, const dr_input_gradients *wanted) {
    const int64_t tasks = tasks_of(plan);
    if (tasks == 0 || tasks >= backend->threads || !passes_twice(plan, wanted)) return 0;
    const int64_t segments = slots_of(plan) / plan->layout.sequences;
    if (segments < 2) return 0;
    const int64_t blocks = best_blocks(backend, plan), rounds = (tasks * segments + backend->threads - 1) / backend->threads;
    return 0.45 * block_time(backend, plan, blocks) + (double)rounds / (double)segments < 1 ? blocks : 0;
}

dr_status dr_cpu_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_arena saved = {0}, sums = {0};
    dr_cpu_call call = {0};
    lay_saved(&plan, &saved, &call);
    lay_partial_sums(&plan, NULL, &sums, &call);
    if (backward_blocks(backend, &plan, NULL) > 0) lay_kept_states(&plan, &sums, &call);
    size_t threads = (size_t)backend->threads;
    *memory = (dr_recurrence_memory){
        .forward = threads * chunk_bytes(&plan, DR_CHUNK_FORWARD),
        .backward = threads * chunk_bytes(&plan, DR_CHUNK_BACKWARD) + sums.used,
        .saved = saved.used,
    };
    dr_cpu_recurrence_make_plan(recurrence, true, &plan);
    memory->decode = threads * chunk_bytes(&plan, DR_CHUNK_DECODE);
    return DR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

dr_status dr_cpu_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_cpu_call call = {.inputs = inputs, .initial = initial, .o = o, .final = final};
    if (saved) lay_saved(&plan, &(dr_arena){.block = saved}, &call);
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    const int64_t blocks = forward_blocks(backend, &plan, &call), tasks = tasks_of(&plan);
    size_t bytes = chunk_bytes(&plan, DR_CHUNK_FORWARD);
#pragma omp parallel for schedule(static) num_threads(threads_for(backend, tasks *blocks))
    for (int64_t i = 0; i < tasks * blocks; i++) {
        dr_cpu_plan block;
        dr_cpu_chunk chunk;
        dr_cpu_plan_block(&plan, blocks, i % blocks, &block);
        lay_own_chunk(&block, DR_CHUNK_FORWARD, workspace, bytes, &chunk);
        const int64_t task = i / blocks;
        kernels->forward(&block, &call, &chunk, task / plan.key_heads, task % plan.key_heads);
    }
    return DR_OK;
}

/* Sums the partial sums of the sequences, in order. */
static void sum_parameters(const dr_cpu_plan *plan, const dr_cpu_call *call) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!call->d_parameter[i]) continue;
        int64_t count = plan->input[i].heads * plan->input[i].width;
        float *gradient = call->d_inputs->at[i];
        const float *value = call->inputs->at[i];
        for (int64_t j = 0; j < count; j++) {
            double sum = 0;
            for (int64_t n = 0; n < plan->layout.sequences; n++) sum += call->d_parameter[i][n * count + j];
            gradient[j] = i == DR_INPUT_LOG_DECAY && value[j] == -INFINITY ? 0 : (float)sum;
        }
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

static void backward_twice(const dr_backend *backend, const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t blocks,
                           void *workspace, size_t bytes) {
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    const int64_t heads = plan->key_heads, carried = tasks_of(plan) * blocks, segments = slots_of(plan) * heads;
    dr_cpu_call carrying = *call;
    carrying.d_inputs = NULL; /* which it does not write */
#pragma omp parallel num_threads(backend->threads)
    {
        dr_cpu_chunk chunk;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < carried; i++) {
            dr_cpu_plan block;
            dr_cpu_plan_block(plan, blocks, i % blocks, &block);
            lay_own_chunk(&block, DR_CHUNK_BACKWARD, workspace, bytes, &chunk);
            kernels->carry(&block, &carrying, &chunk, i / blocks / heads, i / blocks % heads);
        }
        lay_own_chunk(plan, DR_CHUNK_BACKWARD, workspace, bytes, &chunk);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < segments; i++) {
            const int64_t slot = i / heads, sequence = sequence_of(plan, slot);
            kernels->backward_slot(plan, call, &chunk, sequence, i % heads, slot - dr_cpu_first_slot(plan, sequence));
        }
    }
}

dr_status dr_cpu_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_cpu_call call = {
        .inputs = inputs, .initial = initial, .d_o = d_o, .d_final = d_final, .d_inputs = d_inputs, .d_initial = d_initial};
    lay_saved(&plan, &(dr_arena){.block = (char *)saved}, &call);
    size_t bytes = chunk_bytes(&plan, DR_CHUNK_BACKWARD);
    dr_arena sums = {.block = (char *)workspace + (size_t)backend->threads * bytes};
    lay_partial_sums(&plan, d_inputs, &sums, &call);
    const int64_t blocks = backward_blocks(backend, &plan, d_inputs);
    if (blocks > 0) {
        lay_kept_states(&plan, &sums, &call);
        backward_twice(backend, &plan, &call, blocks, workspace, bytes);
        return DR_OK;
    }
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    const int64_t tasks = tasks_of(&plan);
#pragma omp parallel num_threads(threads_for(backend, tasks))
    {
        dr_cpu_chunk chunk;
        lay_own_chunk(&plan, DR_CHUNK_BACKWARD, workspace, bytes, &chunk);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tasks; i++) kernels->backward(&plan, &call, &chunk, i / plan.key_heads, i % plan.key_heads);
    }
    sum_parameters(&plan, &call);
    return DR_OK;
}

dr_status dr_cpu_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                   const dr_mutable_states *states, void *o, void *workspace) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, true, &plan);
    dr_cpu_call call = {.inputs = inputs, .o = o, .final = states};
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    const int64_t heads = plan.layout.sequences * plan.value_heads, keys = plan.layout.sequences * plan.key_heads;
    const int threads = threads_for(backend, heads);
    /* A is shared by the value heads of a key head: where these go to several threads, it moves on once all have read it */
    const bool whole = keys >= threads;
    const int64_t scans = !whole && plan.rule->scan == DR_SCAN_DIAGONAL ? keys : 0, unit = whole ? plan.group : 1;
    size_t bytes = chunk_bytes(&plan, DR_CHUNK_DECODE);
#pragma omp parallel num_threads(threads)
    {
        dr_cpu_chunk chunk;
        const int64_t self = omp_get_thread_num(), all = omp_get_num_threads();
        lay_own_chunk(&plan, DR_CHUNK_DECODE, workspace, bytes, &chunk);
        kernels->decode(&plan, &call, &chunk, heads / unit * self / all * unit, heads / unit * (self + 1) / all * unit, whole);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < scans; i++) kernels->decode_scan(&plan, &call, &chunk, i / plan.key_heads, i % plan.key_heads);
    }
    return DR_OK;
}

/* ---- what a forward saved -------------------------------------------------------------------------------------------- */

int64_t dr_cpu_recurrence_chunk(const dr_backend *backend, const dr_recurrence *recurrence) {
    (void)backend;
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    return dr_cpu_segment(&plan);
}

static void copy_slot(const float *saved, int64_t slot, int64_t count, void *to) {
    if (saved && to) memcpy(to, saved + slot * count, (size_t)count * sizeof(float));
}

dr_status dr_cpu_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                                     int64_t boundary, const dr_mutable_states *states) {
    (void)backend;
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_cpu_call call = {0};
    lay_saved(&plan, &(dr_arena){.block = (char *)saved}, &call);
    const int64_t slot = dr_cpu_first_slot(&plan, sequence) + boundary;
    const int64_t HV = plan.value_heads, K = plan.key_size;
    copy_slot(call.saved_states, slot, HV * K * plan.value_size, states->at[DR_STATE_S]);
    copy_slot(call.saved_scan, slot, plan.key_heads * K, states->at[DR_STATE_A]);
    copy_slot(call.saved_matrix, slot, HV * K * K, states->at[DR_STATE_K]);
    copy_slot(call.saved_matrix, slot, HV * K * K, states->at[DR_STATE_P]);
    return DR_OK;
}

int dr_cpu_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text, size_t size) {
    if (decode) return snprintf(text, size, "cpu decode %s", backend->isa);
    if (recurrence->path == DR_PATH_RECURRENT) return snprintf(text, size, "cpu recurrent %s", backend->isa);
    return snprintf(text, size, "cpu chunkwise %s chunk %lld", backend->isa, (long long)dr_cpu_chunk_length(recurrence, false));
}
