/* What the programs of this folder have in common: a call of random numbers with the project's own plan and layout of its
 * tensors, each with room around it that nobody may write to; a run of a kernel on it; and checks of what that leaves. */
#ifndef DR_TESTS_CUDA_EMULATED_CALL_H
#define DR_TESTS_CUDA_EMULATED_CALL_H

#include "backends/cuda/backward/backward.h"
#include "backends/cuda/diagonal/diagonal.h"
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

/* What a kernel reads of memory that it also writes to: put back before each run. */
typedef struct {
    char *at;
    std::vector<char> bytes;
} read_again;

/* given: what a kernel reads; left: what it writes, or may, but for what earlier stages left in it. */
struct call_memory {
    dr_recurrence recurrence;
    std::deque<tensor> given, left;
    std::vector<read_again> earlier;
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

static inline void keep_earlier(call_memory *s, const void *at, size_t size) {
    s->earlier.push_back({(char *)at, std::vector<char>((const char *)at, (const char *)at + size)});
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

/* A call of two sequences without states, as engine.c makes it on a GPU of so many multiprocessors, Hopper or Ampere. */
static void make_plan(call_memory *s, const dr_rule *rule, int tokens, int size, dr_cuda_chunk_plan *plan, int processors = 2,
                      bool hopper = true, int value_size = 128) {
    dr_operations operations = {};
    const_cast<dr_dtype &>(operations.dtype) = DR_F32;
    dr_cuda gpu = {};
    gpu.hopper = hopper, gpu.processors = processors, gpu.shared_limit = SHARED_SIZE, gpu.major = hopper ? 9 : 8;
    dr_backend backend = {};
    backend.ops = &operations, backend.isa = hopper ? "sm_90a" : "sm_80", backend.storage = DR_BF16, backend.state = &gpu;
    s->random = dr_random_start(7, 1);
    s->recurrence.rule = rule;
    s->recurrence.layout.sequences = SEQUENCES, s->recurrence.layout.rows = SEQUENCES * tokens;
    s->recurrence.key_heads = s->recurrence.value_heads = HEADS;
    s->recurrence.key_size = size;
    s->recurrence.value_size = value_size;
    dr_inputs inputs = {};
    dr_input_gradients gradients = {};
    add_inputs(s, &backend, &inputs, &gradients);
    s->recurrence.forget = DR_FORGET;
    check(dr_cuda_chunk_make_plan(&s->recurrence, false, DR_BF16, &gpu, plan) == DR_OK, "the engine makes no plan of the call");
    dr_cuda_rows_point(&inputs, &gradients, &plan->rows);
    plan->scan_inside = plan->rows.diagonal_scan && dr_cuda_diagonal_inside(plan);
}

/* Log decays of the first chunks of each sequence: a channel whose sum is nearly as far below 0 as mild chunks may have it
 * (chunkwise/mild.cuh), and in the second head's another one for which the chunk is not mild. */
static inline void make_steep(const dr_cuda_chunk_plan &plan) {
    const dr_cuda_input &decays = plan.rows.input[DR_INPUT_LOG_DECAY];
    for (int64_t token = 0; token < plan.tokens; token++)
        for (int head = 0; head < HEADS && token % plan.length < plan.chunk; head++) {
            float *decay = (float *)decays.at + dr_input_index(decays, token, 0, head);
            decay[3] = -119.0f / (float)plan.chunk;
            if (head == 1) decay[37] = -200.0f / (float)plan.chunk;
        }
}

/* What lies between the stages of a forward that a backward follows. */
static inline void lay_stages(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors) {
    *tensors = {};
    dr_cuda_chunk_lay_between(plan, true, arena, tensors);
    dr_cuda_chunk_lay_rest(plan, arena, tensors);
}

/* The tensors of a backward: what its forward saves is given, the workspace is left. States before each chunk,
 * gradients of those after and of outputs are random numbers. */
static inline void lay_backward(call_memory *s, dr_cuda_backward_call *call) {
    dr_cuda_chunk_plan *plan = &call->plan;
    dr_cuda_diagonal_chain chain;
    void *states = NULL, *entry = NULL;
    const auto lay_saved = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        lay_stages(plan, &arena, &call->chunk);
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
}

/* The bytes of every tensor left. */
typedef std::vector<std::vector<char>> result;

static result bytes_of(const std::deque<tensor> &tensors) {
    result bytes;
    for (const tensor &t : tensors) bytes.emplace_back(t.at, t.at + t.size);
    return bytes;
}

/* before: every byte of what is left, of shared memory and of stacks. launch: of the kernel. */
template <typename F>
static result run_kernel(call_memory *s, unsigned seed, bool late, unsigned char before, const F &launch) {
    const result given = bytes_of(s->given);
    for (tensor &t : s->left) memset(t.at, before, t.size);
    for (const read_again &x : s->earlier) memcpy(x.at, x.bytes.data(), x.bytes.size());
    manner = {seed, late, before};
    check(launch() == DR_OK, "the launch fails");
    check(bytes_of(s->given) == given, "an input is written to");
    for (const read_again &x : s->earlier)
        check(!memcmp(x.at, x.bytes.data(), x.bytes.size()), "what an earlier stage left is written to");
    for (const tensor &t : s->given) check(room_is_untouched(t), "memory around an input is written to");
    for (const tensor &t : s->left) check(room_is_untouched(t), "memory around an output is written to");
    return bytes_of(s->left);
}

/* Where the kernel makes the diagonal scan or its backward: as the stage before it does. */
static inline dr_status begin_scan(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain) {
    if (!plan.scan_inside) return DR_OK;
    const grid_manner own = manner;
    manner = {0, false, own.fill};
    const dr_status status = dr_cuda_diagonal_begin_inside(&plan, NULL, &chain, NULL, {});
    manner = own;
    return status;
}

/* Bytes that differ are those that nobody has written. */
static inline bool same_where_written(const result &a, unsigned char before_a, const result &b, unsigned char before_b) {
    for (size_t i = 0; i < a.size(); i++)
        for (size_t j = 0; j < a[i].size(); j++)
            if (a[i][j] != b[i][j] && (a[i][j] != (char)before_a || b[i][j] != (char)before_b)) return false;
    return true;
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

typedef struct {
    double error, size; /* sums of squares */
} distance;

static inline double element(const void *tensor, int64_t at) {
    return (double)__bfloat162float(((const T *)tensor)[at]);
}

static inline void add_distance(distance *d, double is, double wanted) {
    d->error += (is - wanted) * (is - wanted);
    d->size += wanted * wanted;
}

/* Within a hundredth, by the norm: bf16 alone makes a quarter of that. */
static inline void check_near(const distance &d, const char *sentence) {
    check(d.error < 1e-4 * d.size, sentence);
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

enum { BEFORE = 0xa5, BEFORE_AGAIN = 0x5a }; /* bytes of memory before a run */

/* Has all the checks made, and tells how it went. */
template <typename F> static void check_case(const char *rule, int tokens, int size, const F &make_checks) {
    char name[32];
    snprintf(name, sizeof name, "%s %d", rule, tokens);
    case_name = name;
    const double start = dr_clock_now();
    const long before = checks;
    make_checks();
    printf("%-13s K %3d %6ld checks %6.1f s  all right\n", name, size, checks - before, dr_clock_now() - start);
    fflush(stdout);
}

/* Of two instances of a kernel, the general one and one for calls such as this: run(whether the latter, seed, late, before).
 * loops: holds what the general one has left to plain loops. key: an element of the keys. */
template <typename R, typename L> static inline void check_instances(const R &run, const L &loops, uint16_t *key) {
    static const struct {
        unsigned seed;
        bool late;
    } manners[] = {{0, false}, {0, true}, {1, true}, {2, false}, {4, false}};
    const result want = run(false, 0, false, BEFORE);
    loops();
    for (const auto &m : manners) {
        if (m.late)
            check(run(false, m.seed, m.late, BEFORE) == want, "the general instance depends on the order of what happens");
        check(run(true, m.seed, m.late, BEFORE) == want, "the other instance leaves other bits than the general one");
    }
    check(same_where_written(want, BEFORE, run(true, 0, false, BEFORE_AGAIN), BEFORE_AGAIN),
          "results depend on what was in memory before");
    *key ^= 8;
    check(run(true, 0, false, BEFORE) != want, "a bit of a key makes no difference");
}

/* Of a kernel alone: run(seed, late, before). loops: holds what it has left to plain loops. word: of an input. */
template <typename R, typename L> static inline void check_orders(const R &run, const L &loops, uint16_t *word) {
    const result want = run(0, false, BEFORE);
    loops();
    for (unsigned seed = 0; seed < 3; seed++)
        check(run(seed, seed < 2, BEFORE) == want, "bits depend on the order of what happens");
    check(same_where_written(want, BEFORE, run(0, false, BEFORE_AGAIN), BEFORE_AGAIN),
          "results depend on what was in memory before");
    *word ^= 8;
    check(run(0, false, BEFORE) != want, "a bit of an input makes no difference");
}

#endif
