/* What the programs of this folder have in common: a call of random numbers with the project's own plan and layout of its
 * tensors, each with room around it that nobody may write to, and checks. */
#ifndef DR_TESTS_CUDA_EMULATED_CALL_H
#define DR_TESTS_CUDA_EMULATED_CALL_H

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/rows/diagonal.h"
#include "backends/cuda/rows/rows_make.h"
extern "C" {
#include "base/clock.h"
#include "base/random.h"
}

#include <deque>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

typedef __nv_bfloat16 T;

enum { SEQUENCES = 2, HEADS = 2, ROOM = 8192, AROUND = 0xee };

static const char *case_name;
static long checks;

static void check(bool holds, const char *sentence) {
    checks++;
    if (holds) return;
    printf("%-9s FAIL: %s\n", case_name, sentence);
    exit(1);
}

/* Memory with room before and behind it that nobody may write to. */
typedef struct {
    std::vector<char> memory;
    char *at;
    size_t size;
} tensor;

/* given: what a kernel reads; left: what it writes, or may. */
struct call_memory {
    dr_recurrence recurrence;
    std::deque<tensor> given, left;
    dr_random random;
};

static tensor *add_tensor(std::deque<tensor> *to, size_t size) {
    to->push_back({std::vector<char>(size + 2 * ROOM, (char)AROUND), NULL, size});
    tensor *t = &to->back();
    t->at = (char *)(((uintptr_t)t->memory.data() + ROOM / 2 + 255) / 256 * 256);
    memset(t->at, 0, size);
    return t;
}

static bool room_is_untouched(const tensor &t) {
    const char *begin = t.memory.data(), *end = begin + t.memory.size();
    for (const char *at = begin; at < end; at++)
        if ((at < t.at || at >= t.at + t.size) && *at != (char)AROUND) return false;
    return true;
}

static float uniform(call_memory *s, float low, float high) {
    return low + (high - low) * (float)dr_random_uniform(&s->random);
}

static T normal(call_memory *s, float size) {
    return __float2bfloat16_rn(size * (float)dr_random_normal(&s->random));
}

static void fill_normal(call_memory *s, void *to, size_t count, float size) {
    for (size_t i = 0; i < count; i++) ((T *)to)[i] = normal(s, size);
}

static void add_inputs(call_memory *s, const dr_backend *backend, dr_inputs *inputs, dr_input_gradients *gradients) {
    for (int n = 0; n < DR_INPUTS; n++) {
        const dr_input input = (dr_input)n;
        if (!dr_rule_uses(s->recurrence.rule, input)) continue;
        const size_t count = (size_t)dr_recurrence_input_count(&s->recurrence, input),
                     element = dr_dtype_size(dr_recurrence_input_dtype(backend, input));
        const bool decay = input == DR_INPUT_LOG_DECAY || input == DR_INPUT_SCAN_LOG_DECAY;
        char *at = add_tensor(&s->given, count * element)->at;
        inputs->at[n] = at;
        gradients->at[n] = add_tensor(&s->left, count * element)->at;
        if (element == sizeof(T))
            fill_normal(s, at, count, input == DR_INPUT_VALUE ? 1 : 1 / sqrtf((float)s->recurrence.key_size));
        for (size_t i = 0; i < count && element == sizeof(float); i++)
            ((float *)at)[i] = decay ? uniform(s, -0.3f, 0) : uniform(s, 0.05f, 1);
    }
}

/* A call of two sequences without states, as engine.c makes it. */
static void make_plan(call_memory *s, const char *rule, int tokens, int size, dr_cuda_chunk_plan *plan) {
    dr_operations operations = {};
    const_cast<dr_dtype &>(operations.dtype) = DR_F32;
    dr_cuda gpu = {};
    gpu.hopper = true, gpu.processors = 2, gpu.shared_limit = SHARED_SIZE, gpu.major = 9;
    dr_backend backend = {};
    backend.ops = &operations, backend.isa = "sm_90a", backend.storage = DR_BF16, backend.state = &gpu;
    s->random = dr_random_start(7, 1);
    s->recurrence.rule = dr_rule_find(rule);
    s->recurrence.layout.sequences = SEQUENCES, s->recurrence.layout.rows = SEQUENCES * tokens;
    s->recurrence.key_heads = s->recurrence.value_heads = HEADS;
    s->recurrence.key_size = size;
    s->recurrence.value_size = 128;
    dr_inputs inputs = {};
    dr_input_gradients gradients = {};
    add_inputs(s, &backend, &inputs, &gradients);
    check(dr_cuda_chunk_make_plan(&s->recurrence, DR_BF16, &gpu, plan) == DR_OK, "the engine makes no plan of the call");
    dr_cuda_rows_make(&backend, &s->recurrence, &inputs, &gradients, &plan->rows);
    plan->halves = true;
    plan->scan_inside = plan->rows.diagonal_scan && dr_cuda_diagonal_inside(plan);
}

/* The tensors of a backward: what its forward saves is given, the workspace is left, and returned. States before each chunk,
 * gradients of those after and of outputs are random numbers. */
static inline tensor *lay_backward(call_memory *s, dr_cuda_backward_call *call) {
    dr_cuda_chunk_plan *plan = &call->plan;
    dr_cuda_diagonal_chain chain;
    void *states = NULL, *entry = NULL;
    const auto lay_saved = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        dr_cuda_chunk_lay(plan, true, &arena, &call->chunk);
        states = dr_arena_take(&arena, dr_cuda_chunk_saved_bytes(plan));
        entry = dr_arena_take(&arena, dr_cuda_diagonal_entry_bytes(plan));
        dr_cuda_diagonal_lay_made(plan, &arena);
        return arena.used;
    };
    const auto lay_workspace = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        dr_cuda_diagonal_lay(plan, &arena, &chain);
        dr_cuda_backward_lay(plan, &arena, &call->back);
        dr_cuda_diagonal_lay_gradients(plan, &arena, &call->diagonal);
        return arena.used;
    };
    lay_saved(add_tensor(&s->given, lay_saved(NULL))->at);
    tensor *workspace = add_tensor(&s->left, lay_workspace(NULL));
    lay_workspace(workspace->at);
    call->saved = states;
    call->chunk.scan.entry = (float *)entry;
    call->chain = dr_cuda_diagonal_turn(&chain, &call->diagonal, NULL, NULL);
    const size_t outputs = (size_t)plan->tokens * HEADS * (size_t)plan->value_width,
                 units = (size_t)plan->blocks * (size_t)plan->value_width * (size_t)plan->key_width;
    char *d_o = add_tensor(&s->given, outputs * sizeof(T))->at;
    call->d_o = d_o;
    fill_normal(s, d_o, outputs, 1);
    fill_normal(s, states, units, 0.3f);
    fill_normal(s, call->back.d_exit, units, 0.3f);
    return workspace;
}

/* The bytes of every tensor left. */
typedef std::vector<std::vector<char>> result;

static result bytes_of(const std::deque<tensor> &tensors) {
    result bytes;
    for (const tensor &t : tensors) bytes.emplace_back(t.at, t.at + t.size);
    return bytes;
}

/* Bytes that differ are those that nobody has written. */
static bool same_where_written(const result &a, unsigned char before_a, const result &b, unsigned char before_b) {
    for (size_t i = 0; i < a.size(); i++)
        for (size_t j = 0; j < a[i].size(); j++)
            if (a[i][j] != b[i][j] && (a[i][j] != (char)before_a || b[i][j] != (char)before_b)) return false;
    return true;
}

#endif
