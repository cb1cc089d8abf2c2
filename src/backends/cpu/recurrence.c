/* The recurrence on a CPU: memory, tasks and sums over sequences.
 *
 * A task is one sequence and one key head; it takes the value heads of that key head in order, so that the gradients of a key
 * have one owner. Tasks share nothing, and parameters are summed from one partial sum a sequence in order: results are the same
 * bits for any number of threads, and a packed sequence gives the bits of a separate one. A forward on more threads than that
 * has a task for each of some blocks of value columns, which makes what belongs to the keys again for each. Decoding, which
 * only streams states, has a task for each value head instead. */
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

dr_status dr_cpu_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_arena saved = {0}, sums = {0};
    dr_cpu_call call = {0};
    lay_saved(&plan, &saved, &call);
    lay_partial_sums(&plan, NULL, &sums, &call);
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

static int threads_for(const dr_backend *backend, int64_t tasks) {
    return tasks < backend->threads ? (int)(tasks > 1 ? tasks : 1) : backend->threads;
}

/* Blocks of value columns of each task of a forward, where there are more threads than tasks: the number that ends first, if a
 * quarter of the work is the keys' and is done for each block. A matrix scan is too dear for that, and a diagonal scan that is
 * carried in place must not be made twice. */
static int64_t blocks_of(const dr_backend *backend, const dr_cpu_plan *plan, const dr_cpu_call *call) {
    const int64_t tasks = plan->layout.sequences * plan->key_heads, threads = backend->threads;
    const void *scan = call->initial ? call->initial->at[DR_STATE_A] : NULL;
    const bool in_place = scan && call->final && call->final->at[DR_STATE_A] == scan;
    if (tasks >= threads || plan->matrix || in_place) return 1;
    int64_t best = 1;
    double least = 1;
    for (int64_t blocks = 2; blocks <= dr_cpu_most_blocks(plan); blocks++) {
        const int64_t rounds = (tasks * blocks + threads - 1) / threads;
        const double time = (double)rounds * (0.25 + 0.75 / (double)blocks);
        if (time >= least) continue;
        least = time;
        best = blocks;
    }
    return best;
}

dr_status dr_cpu_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace) {
    dr_cpu_plan plan;
    dr_cpu_recurrence_make_plan(recurrence, false, &plan);
    dr_cpu_call call = {.inputs = inputs, .initial = initial, .o = o, .final = final};
    if (saved) lay_saved(&plan, &(dr_arena){.block = saved}, &call);
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    const int64_t blocks = blocks_of(backend, &plan, &call), tasks = plan.layout.sequences * plan.key_heads;
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
    const dr_cpu_recurrence_kernels *kernels = kernels_of(backend);
    int64_t tasks = plan.layout.sequences * plan.key_heads;
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
