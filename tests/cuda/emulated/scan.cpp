/* The forward by chunks of backends/cuda/chunkwise on the host (block.h), where there need be no GPU: prepare and, behind it,
 * the scan by warp groups, with one and with two groups of columns; or one kernel for both. A program that prints a line for
 * each case, and exits with 1 and a sentence at the first check that does not hold.
 *
 * The plans, the layouts of memory and the choice of the kernels are the project's own. Of every case:
 *
 *     outputs, the states before each chunk and those behind the sequences are near plain loops in double
 *     their bits are the same with copies and products as late as may be, and by threads in a random order with rests or where
 *     some warps are far behind
 *     inputs, and memory around the tensors, are as they were
 *     other bytes in memory beforehand give the same results, and what is not written is not touched
 *     a bit of a key that is flipped makes a difference, so that the comparison can fail */
#include "block.h"

#include "backends/cuda/chunkwise/launch.cuh"
#include "loops.h"

struct setting : call_memory {
    dr_scan_call call;
};

static result run(setting *s, unsigned seed, bool late, unsigned char before) {
    return run_kernel(s, seed, late, before, [&] {
        if (!s->call.plan.one_pass) {
            check(begin_scan(s->call.plan, s->call.tensors.scan) == DR_OK, "what goes before the diagonal scan fails");
            check(dr_launch_prepare<T>(&s->call.plan, &s->call.tensors, NULL) == DR_OK, "prepare fails");
        }
        return dr_launch_group_scan<T>(&s->call, NULL);
    });
}

/* processors: what the number of groups follows from. beside: prepare's blocks stay, in the scan's order, and raise flags. */
static void check_rule(const char *rule, int tokens, int processors, int groups, bool beside = false) {
    check_case(rule, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &plan, processors);
        if (beside) dr_cuda_chunk_plan_stages(s.recurrence.rule, &plan);
        check((plan.beside.processors > 0) == beside, "prepare is not where the case is for");
        check(plan.warpgroups && !plan.linear && plan.parts == 1 && !plan.scan_inside && dr_group_scan_groups(plan) == groups,
              "the plan is not what the case is for");
        lay_forward(&s, plan, &s.call);
        check_orders([&](auto... how) { return run(&s, how...); }, [&] { check_scan(s.call); }, last_key(plan));
    });
}

/* What the diagonal scan is made in, with an A before the sequences and one behind them. */
static dr_cuda_diagonal_chain lay_scan(setting *s, const dr_cuda_chunk_plan &plan) {
    dr_cuda_diagonal_chain chain = {};
    const auto lay = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        dr_cuda_diagonal_lay(&plan, &arena, &chain);
        chain.entry = (float *)dr_arena_take(&arena, dr_cuda_diagonal_entry_bytes(&plan));
        chain.final = (float *)dr_arena_take(&arena, SEQUENCES * HEADS * SIZE * sizeof(float));
        return arena.used;
    };
    lay(add_tensor(&s->left, lay(NULL))->at);
    float *initial = (float *)add_tensor(&s->given, SEQUENCES * HEADS * SIZE * sizeof(float))->at;
    for (int i = 0; i < SEQUENCES * HEADS * SIZE; i++) initial[i] = uniform(s, 0, 0.1f);
    chain.initial = initial;
    return chain;
}

/* One kernel for both stages: the bits of the two, and with the diagonal scan of A behind the sequences, too. boxed: tensors
 * are moved as boxes; tanh: of the squash. */
static void check_one_pass(const char *rule, int tokens, bool boxed, bool tanh = false) {
    check_case(tanh ? "tanh" : rule, tokens, SIZE, [&] {
        setting s = {};
        dr_cuda_chunk_plan plan = {};
        make_plan(&s, dr_rule_find(rule), tokens, SIZE, &plan);
        dr_cuda_chunk_plan_stages(s.recurrence.rule, &plan);
        check(plan.one_pass, "prepare and scan are not one kernel");
        lay_forward(&s, plan, &s.call);
        s.call.saved = NULL;
        if (plan.scan_inside) s.call.tensors.scan = lay_scan(&s, plan);
        s.call.plan.rows.aligned = boxed;
        s.call.plan.rows.squash.tanh = tanh;
        const size_t outputs = (size_t)(SEQUENCES * tokens * HEADS * SIZE), states = SEQUENCES * HEADS * SIZE * SIZE;
        const auto left = [&] {
            const T *o = (const T *)s.call.o;
            std::vector<float> behind(s.call.final, s.call.final + states);
            if (const float *a = s.call.tensors.scan.final) behind.insert(behind.end(), a, a + SEQUENCES * HEADS * SIZE);
            return std::make_pair(std::vector<T>(o, o + outputs), behind);
        };
        s.call.plan.one_pass = false;
        run(&s, 0, false, BEFORE);
        const auto two = left();
        s.call.plan.one_pass = true;
        check_orders([&](auto... how) { return run(&s, how...); },
                     [&] {
                         if (!plan.scan_inside) check_scan(s.call); /* whose loops know no diagonal scan */
                         const auto one = left();
                         check(!memcmp(one.first.data(), two.first.data(), outputs * sizeof(T)) && one.second == two.second,
                               "one kernel for both stages leaves other bits than the two");
                     },
                     last_key(plan));
    });
}

int main() {
    static const char *const rules[] = {"gdn", "kda", "qdelta", "gla", "eda"};
    for (const char *rule : rules) {
        check_rule(rule, 210, 64, 1);
        check_rule(rule, 150, 2, 2);
        check_rule(rule, 210, 16, 1, true);
    }
    for (const char *rule : {"gdn", "qdelta", "delta_net", "pgdn"}) check_one_pass(rule, 390, true);
    for (const char *rule : {"gdn", "qdelta", "pgdn"}) check_one_pass(rule, 150, false);
    check_one_pass("pgdn", 150, true, true);
    return 0;
}
