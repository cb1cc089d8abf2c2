/* The reverse scan of backends/cuda/backward on the host (block.h), where there need be no GPU: by warp groups, with one and
 * with two groups of columns, of rules without reads by carry_linear; and by blocks of four warps, as on Ampere. A program that
 * prints a line for each case, and exits with 1 and a sentence at the first check that does not hold.
 *
 * The plans, the layouts of memory and the choice of the kernels are the project's own; what the forward would have left is
 * made by prepare. Of every case:
 *
 *     the gradient of the state after each chunk is near plain loops in double
 *     its bits, and those of dY, are the same with copies and products as late as may be, and by threads in a random order with
 *     rests or where some warps are far behind
 *     inputs, what prepare made, and memory around the tensors, are as they were
 *     where others are told of chunks that are done, all are told of
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of the gradient of an output that is flipped makes a difference, so that the comparison can fail
 *
 * Of sequences that are cut, whose parts end late or are joined, by all of their chunks or by those that do, the same. */
#include "block.h"

#include "backends/cuda/backward/reverse.cu"
#include "backends/cuda/chunkwise/launch.cuh"
#include "loops.h"

struct setting : call_memory {
    dr_cuda_backward_call call;
    reverse_call reverse;
};

static void make_call(setting *s, const char *rule, int tokens, int processors, bool hopper, int size) {
    dr_cuda_backward_call *call = &s->call;
    dr_cuda_chunk_plan &plan = call->plan;
    make_plan(s, dr_rule_find(rule), tokens, size, &plan, processors, hopper, size);
    check((plan.warpgroups || dr_cuda_scan_wide(&plan)) == hopper && plan.parts == 1 && plan.linear == plan.linear_back,
          "the plan is not what the case is for");
    lay_backward(s, call);
    manner = {0, false, 0};
    if (!plan.linear) check(dr_launch_prepare<T>(&plan, &call->chunk, {}) == DR_OK, "prepare fails");
    s->reverse = {
        {plan, call->chunk, NULL, NULL, (void *)call->d_o, call->back.d_exit, dr_scan_lay(plan, sizeof(T), false), false},
        call->back.d_update,
        NULL,
        NULL,
        NULL,
        false,
        dr_cuda_rows_step_fully(&plan.rows)};
}

static result run(setting *s, unsigned seed, bool late, unsigned char before) {
    return run_kernel(s, seed, late, before, [&] {
        return s->call.plan.key_width == 128 ? launch<T, 2>(&s->reverse, {}) : launch<T, 4>(&s->reverse, {});
    });
}

/* ---- against plain loops ------------------------------------------------------------------------------------------------ */

static double gradient[MOST_SIZE][MOST_SIZE]; /* of the state behind a token, [V][K] */

static void take_token_back(const head_of_doubles &head, int64_t i, const void *d_o) {
    const int size = head.size();
    double query[MOST_SIZE], alpha[MOST_SIZE];
    for (int k = 0; k < size; k++) query[k] = head.number(DR_INPUT_QUERY, i, k), alpha[k] = head.alpha(i, k);
    for (int v = 0; v < size; v++) {
        const double d = head.plan->rows.scale * element(d_o, head.vector_at(i) + v);
        for (int k = 0; k < size; k++) gradient[v][k] += query[k] * d;
    }
    for (int step = head.plan->rows.steps - 1; step >= 0; step--) {
        const row_of_doubles row = head.row(i, step);
        for (int v = 0; v < size; v++) {
            double d_u = 0;
            for (int k = 0; k < size; k++) d_u += gradient[v][k] * row.write[k];
            for (int k = 0; k < size; k++) gradient[v][k] -= row.gain * row.read[k] * d_u;
        }
    }
    for (int v = 0; v < size; v++)
        for (int k = 0; k < size; k++) gradient[v][k] *= alpha[k];
}

/* Gradients of final states, [chains][K][V], are zero where none are given. */
static void begin_back_in_loops(const float *given, int chain, int size) {
    for (int v = 0; v < size; v++)
        for (int k = 0; k < size; k++) gradient[v][k] = given ? (double)given[(chain * size + k) * size + v] : 0;
}

static void check_against_loops(const setting *s) {
    const dr_cuda_chunk_plan &plan = s->call.plan;
    const int size = plan.rows.key_size;
    distance exit = {0, 0};
    for (int chain = 0; chain < SEQUENCES * HEADS; chain++) {
        const head_of_doubles head = {&plan, chain / HEADS, chain % HEADS};
        begin_back_in_loops(s->reverse.scan.initial, chain, size);
        for (int64_t i = plan.length - 1; i >= 0; i--) {
            const bool last = i == plan.length - 1 || i % plan.chunk == plan.chunk - 1; /* of its chunk */
            for (int v = 0; v < size && last; v++)
                for (int k = 0; k < size; k++)
                    add_distance(&exit,
                                 element(s->call.back.d_exit, (head.block(i) * plan.value_width + v) * plan.key_width + k),
                                 gradient[v][k]);
            take_token_back(head, i, s->call.d_o);
        }
    }
    check_near(exit, "gradients of states are not those of the plain loops");
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

/* groups: of columns, by warp groups; 0: by blocks. full: what rows take off a gradient goes through its product in two parts,
 * as if they took full steps. */
static void check_rule(const char *rule, int tokens, int processors, int groups, bool full = false, int size = SIZE) {
    char name[32];
    snprintf(name, sizeof name, "%s%s", rule, full ? " full" : "");
    check_case(name, tokens, size, [&] {
        setting s = {};
        make_call(&s, rule, tokens, processors, groups > 0, size);
        s.reverse.full = full;
        check(groups == 0 || dr_group_scan_groups(s.call.plan) == groups, "not so many groups compute as the case is for");
        check_orders([&](auto... how) { return run(&s, how...); }, [&] { check_against_loops(&s); },
                     (uint16_t *)s.call.d_o + (tokens - 1) * HEADS * size);
    });
}

/* The reverse scan of a call that is cut, behind a gradient of its final states, must be near the loops. */
static void check_cut(setting *s) {
    const dr_cuda_backward_call &call = s->call;
    float *given = (float *)add_tensor(&s->given, SEQUENCES * HEADS * SIZE * SIZE * sizeof(float))->at;
    for (int i = 0; i < SEQUENCES * HEADS * SIZE * SIZE; i++) given[i] = uniform(s, -1, 1);
    s->reverse = {{call.plan, call.chunk, given, NULL, (void *)call.d_o, call.back.d_exit,
                   dr_scan_lay(call.plan, sizeof(T), false), false},
                  call.back.d_update,
                  call.back.local,
                  call.back.between,
                  NULL,
                  false,
                  dr_cuda_rows_step_fully(&call.plan.rows)};
    check_orders([&](auto... how) { return run(s, how...); }, [&] { check_against_loops(s); },
                 (uint16_t *)call.d_o + (call.plan.length - 1) * HEADS * SIZE);
}

/* Sequences that are cut in three. Of the first one parts end late: two chunks, or of one head's second part as many as there
 * are, so that it begins with the gradient of the final state. Of the second one those of one head do, and the other one's are
 * joined; of its states nothing comes through a part, which is what the passages, zeros, say. */
static void check_late(const char *rule, int tokens) {
    check_case(rule, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_backward_call &call = s.call;
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &call.plan, 16);
        const int chunks = (tokens + 63) / 64;
        int32_t length;
        check(dr_cuda_parts(&call.plan, chunks, &length) == 3, "the plan is not what the case is for");
        call.plan.early = {1, chunks, chunks}, call.plan.trims = false;
        lay_backward(&s, &call);
        int32_t *const early = call.chunk.early;
        const int32_t counts[] = {2, 2, 2, chunks - 2 * length, -1, -1, 2, 2, 1, 1, 0, 1};
        call.chunk.early = NULL; /* as prepare is to make all */
        manner = {0, false, 0};
        check(dr_launch_prepare<T>(&call.plan, &call.chunk, {}) == DR_OK, "prepare fails");
        call.chunk.early = early;
        memcpy(early, counts, sizeof counts);
        check_cut(&s);
    });
}

/* Sequences that are cut in four, of whose parts the first passes take the chunks that do, or whole ones
 * where a channel keeps all. What parts do to a state is the forward's. */
static void check_trimmed(const char *rule, int tokens) {
    char name[32];
    snprintf(name, sizeof name, "%s trim", rule);
    check_case(name, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_backward_call &call = s.call;
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &call.plan, 16);
        check(call.plan.trims, "the plan is not what the case is for");
        keep_channels(call.plan);
        lay_backward(&s, &call);
        manner = {0, false, 0};
        check(dr_launch_prepare<T>(&call.plan, &call.chunk, {}) == DR_OK, "prepare fails");
        check(dr_launch_scan<T>(&call.plan, &call.chunk, NULL,
                                add_tensor(&s.given, (size_t)call.plan.tokens * HEADS * SIZE * sizeof(T))->at, NULL,
                                (void *)call.saved, {}) == DR_OK,
              "the scan fails");
        check_trims(call.plan, call.chunk);
        check_cut(&s);
    });
}

int main() {
    static const char *const rules[] = {"gdn", "kda", "qdelta", "gla", "eda", "mamba2"};
    for (const char *rule : rules) {
        check_rule(rule, 210, 64, 1);
        check_rule(rule, 150, 2, 2);
    }
    for (const char *rule : {"gdn", "kda"}) {
        check_rule(rule, 210, 64, 1, true);
        check_rule(rule, 150, 2, 2, false, 120);
        check_rule(rule, 210, 64, 1, false, 120);
    }
    for (const char *rule : {"gdn", "qdelta", "gla"}) check_rule(rule, 150, 2, 0);
    for (const char *rule : {"gdn", "kda"}) check_rule(rule, 150, 2, 2, false, 256);
    check_rule("gdn", 150, 2, 2, true, 256);
    check_late("gdn", 3 * 1024 + 40);
    check_trimmed("kda", 4 * 1024 + 40);
    return 0;
}
