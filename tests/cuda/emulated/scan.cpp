/* The forward by chunks of backends/cuda/chunkwise on the host (block.h), where there need be no GPU: prepare and, behind it,
 * the scan by warp groups, with one and with two groups of columns. A program that prints a line for each case, and exits with
 * 1 and a sentence at the first check that does not hold.
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
    dr_prepare_call prepare;
    dr_scan_call scan;
    int groups;
};

/* processors: what the number of groups follows from. */
static void make_call(setting *s, const char *rule, int tokens, int processors) {
    dr_cuda_chunk_plan plan = {};
    make_plan(s, dr_rule_find(rule), tokens, SIZE, &plan, processors);
    check(plan.warpgroups && !plan.linear && plan.parts == 1 && !plan.scan_inside, "the plan is not what the case is for");
    s->groups = dr_group_scan_groups(plan);
    dr_cuda_chunk_tensors tensors;
    const auto lay = [&](char *block) {
        dr_arena arena = {};
        arena.block = block;
        dr_cuda_chunk_lay(&plan, true, &arena, &tensors);
        return arena.used;
    };
    lay(add_tensor(&s->left, lay(NULL))->at);
    s->prepare = dr_prepare_call_of<T>(plan, tensors, dr_prepare_form_of(plan));
    void *o = add_tensor(&s->left, (size_t)plan.tokens * HEADS * SIZE * sizeof(T))->at;
    void *saved = add_tensor(&s->left, (size_t)plan.blocks * SIZE * SIZE * sizeof(T))->at;
    float *last = (float *)add_tensor(&s->left, SEQUENCES * HEADS * SIZE * SIZE * sizeof(float))->at;
    s->scan = {plan, tensors, NULL, last, o, saved, dr_scan_lay(plan, sizeof(T), false), false};
}

static result run(setting *s, unsigned seed, bool late, unsigned char before) {
    const dr_cuda_chunk_plan &plan = s->scan.plan;
    const dr_prepare_form form = dr_prepare_form_of(plan);
    return run_kernel(s, seed, late, before, [&] {
        const dr_status status =
            dr_cuda_launch("prepare", dr_choose_prepare<T>(plan, form, false), {plan.slots, (int64_t)plan.value_heads},
                           PREPARE_THREADS, s->prepare.facts.room.bytes, NULL, s->prepare);
        return status == DR_OK ? dr_launch_group_scan<T>(&s->scan, NULL) : status;
    });
}

/* ---- cases -------------------------------------------------------------------------------------------------------------- */

static void check_rule(const char *rule, int tokens, int processors, int groups) {
    check_case(rule, tokens, SIZE, [&] {
        setting s = {};
        make_call(&s, rule, tokens, processors);
        check(s.groups == groups, "not so many groups compute as the case is for");
        const result want = run(&s, 0, false, BEFORE);
        check_scan(s.scan.plan, s.scan.o, s.scan.saved, s.scan.final);
        for (unsigned seed = 0; seed < 3; seed++)
            check(run(&s, seed, seed < 2, BEFORE) == want, "bits depend on the order of what happens");
        check(same_where_written(want, BEFORE, run(&s, 0, false, BEFORE_AGAIN), BEFORE_AGAIN),
              "results depend on what was in memory before");
        ((uint16_t *)s.scan.plan.rows.input[DR_INPUT_KEY].at)[(tokens - 1) * HEADS * SIZE] ^= 8;
        check(run(&s, 0, false, BEFORE) != want, "a bit of a key makes no difference");
    });
}

int main() {
    static const char *const rules[] = {"gdn", "kda", "qdelta", "gla", "eda"};
    for (const char *rule : rules) {
        check_rule(rule, 210, 64, 1);
        check_rule(rule, 150, 2, 2);
    }
    return 0;
}
