/* The diagonal scan of backends/cuda/diagonal as passes of their own, which it is where a normalizer asks for sums over
 * channels, on the host (block.h): write keys, their products with keys and the last A are near plain loops in double. Also the
 * scale of queries, which the other programs of this folder take from the plan. A program as those are. */
#include "block.h"

#include "backends/cuda/diagonal/diagonal.cuh"
#include "call.h"

enum { SIZE = 128 };

/* It is called where no token needs a sum over channels, and that is not the case here. */
extern "C" dr_status dr_cuda_diagonal_chain_forward(const dr_cuda_chunk_plan *, const int64_t *, const dr_cuda_diagonal_chain *,
                                                    dr_cuda_stream) {
    grid_fail("the scan is one pass");
}

static const float *floats(const dr_cuda_chunk_plan &plan, dr_input input, int64_t token, int head) {
    const dr_cuda_input &x = plan.rows.input[input];
    return (const float *)x.at + dr_input_index(x, token, 0, head);
}

static void check_passes(const dr_cuda_chunk_plan &plan, const dr_squash &squash, const dr_cuda_diagonal_chain &chain) {
    const dr_cuda_rows &rows = plan.rows;
    const dr_input decays = dr_diagonal_decay_input(rows), gains = dr_diagonal_gain_input(rows);
    distance write = {0, 0}, dots = {0, 0}, last = {0, 0};
    for (int chain_head = 0; chain_head < SEQUENCES * HEADS; chain_head++) {
        const int sequence = chain_head / HEADS, head = chain_head % HEADS;
        double a[SIZE];
        for (int k = 0; k < SIZE; k++) a[k] = (double)chain.initial[chain_head * SIZE + k];
        for (int64_t i = sequence * plan.length; i < (sequence + 1) * plan.length; i++) {
            const double alpha = exp((double)*floats(plan, decays, i, head)), gain = (double)*floats(plan, gains, i, head);
            double dot = 0;
            for (int k = 0; k < SIZE; k++) {
                const double key = element(rows.input[DR_INPUT_KEY].at, (i * HEADS + head) * SIZE + k);
                a[k] = alpha * a[k] + gain * key * key;
                const double r = log(a[k] + squash.eps) - (double)*floats(plan, DR_INPUT_SCAN_CENTRE, 0, head);
                const double made = exp(-log(squash.x) * r / (1 + fabs(r))) * key;
                add_distance(&write, element(rows.input[DR_SOURCE_SQUASHED].at, (i * HEADS + head) * SIZE + k), made);
                dot += key * made;
            }
            add_distance(&dots, (double)rows.key_dot[i * HEADS + head], dot);
        }
        for (int k = 0; k < SIZE; k++) add_distance(&last, (double)chain.final[chain_head * SIZE + k], a[k]);
    }
    check_near(write, "write keys are not those of the plain loops");
    check_near(dots, "products of keys and write keys are not those of the plain loops");
    check_near(last, "the last A is not that of the plain loops");
}

static void check_normalized(int tokens, int processors) {
    check_case("pgdn normalized", tokens, SIZE, [&] {
        call_memory s = {};
        dr_cuda_chunk_plan plan = {};
        dr_rule rule = *dr_rule_find("pgdn");
        rule.normalizer = DR_NORMALIZER_IMPLICIT;
        check(rule.squash.function == DR_SQUASH_RATIONAL && rule.squash.interval == DR_SQUASH_SYMMETRIC,
              "the loops are of another squash");
        make_plan(&s, &rule, tokens, SIZE, &plan, processors);
        check(!dr_cuda_diagonal_chained(&plan), "the plan is not what the case is for");
        const dr_cuda_input &decays = plan.rows.input[dr_diagonal_decay_input(plan.rows)];
        for (int64_t i = 0; i < plan.tokens * HEADS; i++) ((float *)decays.at)[i] *= 0.05f; /* A lasts from chunk to chunk */
        dr_cuda_diagonal_chain chain;
        const auto lay = [&](char *block) {
            dr_arena arena = {};
            arena.block = block;
            dr_cuda_diagonal_lay(&plan, &arena, &chain);
            chain.entry = (float *)dr_arena_take(&arena, dr_cuda_diagonal_entry_bytes(&plan));
            chain.final = (float *)dr_arena_take(&arena, SEQUENCES * HEADS * SIZE * sizeof(float));
            dr_cuda_diagonal_lay_made(&plan, &arena);
            return arena.used;
        };
        lay(add_tensor(&s.left, lay(NULL))->at);
        float *initial = (float *)add_tensor(&s.given, SEQUENCES * HEADS * SIZE * sizeof(float))->at;
        for (int i = 0; i < SEQUENCES * HEADS * SIZE; i++) initial[i] = uniform(&s, 0, 0.1f);
        chain.initial = initial;
        const auto run = [&](unsigned seed, bool late, unsigned char before) {
            return run_kernel(&s, seed, late, before, [&] { return dr_cuda_diagonal_forward(&plan, NULL, &chain, {}); });
        };
        check_orders(
            run, [&] { check_passes(plan, rule.squash, chain); }, (uint16_t *)plan.rows.input[DR_INPUT_KEY].at);
    });
}

/* K^-1/2, and what a call asks for. */
static void check_scale() {
    check_case("scale", 0, SIZE, [] {
        dr_recurrence recurrence = {};
        dr_cuda_rows rows;
        recurrence.rule = dr_rule_find("gdn");
        recurrence.key_heads = recurrence.value_heads = HEADS;
        recurrence.key_size = 64, recurrence.value_size = SIZE;
        dr_cuda_rows_plan(&recurrence, DR_BF16, &rows);
        check(rows.scale == 0.125f, "queries are not scaled by K^-1/2");
        recurrence.scale = 0.75;
        dr_cuda_rows_plan(&recurrence, DR_BF16, &rows);
        check(rows.scale == 0.75f, "queries have another scale than the call asks for");
    });
}

int main() {
    check_scale();
    check_normalized(210, 64);
    check_normalized(64, 2);
    return 0;
}
