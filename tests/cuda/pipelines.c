/* One small call of each pipeline of kernels, for compute-sanitizer, which takes a thousand times as long as a GPU alone: a
 * forward and a backward, twice, with the same bits. Each says which kernel it is there for, and fails if plans choose another.
 */
#include "suites.h"

#include <string.h>

/* Of sequences: as any, as equal ones, as equal ones without states. */
typedef enum { PACKED, EQUAL, BARE } lengths;

typedef struct {
    const char *name, *rule, *kernel; /* kernel: what dr_recurrence_kernel names among others */
    int type;                         /* of gpu.cuda */
    dr_path path;
    int64_t sequences, tokens, heads, group, key_size, value_size; /* group: value heads of a key head */
    lengths how;
} pipeline;

static const pipeline pipelines[] = {
    {"one_pass", "gdn", "one_pass", 1, DR_PATH_CHUNKWISE, 4, 70, 25, 1, 128, 128, EQUAL},
    {"one_pass_narrow", "gdn", "one_pass_narrow", 1, DR_PATH_CHUNKWISE, 4, 70, 50, 1, 64, 64, EQUAL},
    {"one_pass_sum", "qdelta", "one_pass", 1, DR_PATH_CHUNKWISE, 4, 70, 25, 1, 128, 128, EQUAL},
    {"one_pass_apart", "pgdn_unstable", "one_pass", 1, DR_PATH_CHUNKWISE, 4, 70, 25, 1, 128, 128, EQUAL},
    {"one_pass_scan", "pgdn", "one_pass", 1, DR_PATH_CHUNKWISE, 4, 70, 25, 1, 128, 128, EQUAL},
    {"prepare", "gdn", "prepare,", 1, DR_PATH_CHUNKWISE, 2, 130, 2, 1, 128, 128, PACKED},
    {"channel", "kda", "prepare_channel", 1, DR_PATH_CHUNKWISE, 2, 130, 2, 1, 128, 128, PACKED},
    {"beside", "kda", "prepare_beside", 1, DR_PATH_CHUNKWISE, 1, 200, 2, 1, 128, 128, EQUAL},
    {"two_groups", "kda", "scan_warpgroups", 1, DR_PATH_CHUNKWISE, 2, 70, 40, 1, 64, 128, PACKED},
    {"parts", "kda", "3 parts", 1, DR_PATH_CHUNKWISE, 1, 3200, 1, 1, 64, 64, PACKED},
    {"linear", "mamba2", "scan_linear", 1, DR_PATH_CHUNKWISE, 2, 130, 2, 1, 128, 128, PACKED},
    {"linear_parts", "mamba2", "3 parts", 1, DR_PATH_CHUNKWISE, 1, 3200, 1, 1, 64, 64, PACKED},
    {"pairs", "eda", "keys_channel", 1, DR_PATH_CHUNKWISE, 2, 70, 2, 1, 128, 128, PACKED},
    {"scan_keys", "pkda", "keys_channel", 1, DR_PATH_CHUNKWISE, 2, 130, 2, 1, 128, 128, PACKED},
    {"scan_keys_bare", "pkda", "keys_channel", 1, DR_PATH_CHUNKWISE, 4, 256, 8, 1, 128, 128, BARE},
    {"value_heads", "gdn", "sum_heads", 1, DR_PATH_CHUNKWISE, 2, 70, 2, 2, 128, 128, PACKED},
    {"row_gradients", "pgdn", "row_gradients", 1, DR_PATH_CHUNKWISE, 2, 70, 2, 2, 128, 128, PACKED},
    {"wide_keys", "gdn", "keys", 1, DR_PATH_CHUNKWISE, 2, 70, 1, 1, 256, 64, PACKED},
    {"float32", "gdn", "keys", 0, DR_PATH_CHUNKWISE, 2, 130, 2, 1, 64, 64, PACKED},
    {"float32_channel", "kda", "keys_channel", 0, DR_PATH_CHUNKWISE, 2, 130, 1, 1, 64, 64, PACKED},
    {"float32_scan", "nlms", "F32", 1, DR_PATH_CHUNKWISE, 2, 70, 1, 1, 40, 40, PACKED},
    {"tokens", "eda", "recurrent", 1, DR_PATH_RECURRENT, 2, 20, 2, 2, 64, 64, PACKED},
};
enum { PIPELINES = sizeof pipelines / sizeof *pipelines };

static bool pipeline_is_right(gpu *g, const pipeline *of, uint64_t seed, fault *what) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    for (int64_t i = 0; i <= of->sequences; i++) cu_seqlens[i] = i * of->tokens;
    const dr_recurrence shape = {
        .rule = dr_rule_find(of->rule),
        .layout = {.sequences = of->sequences, .rows = of->sequences * of->tokens, .cu_seqlens = cu_seqlens},
        .key_heads = of->heads,
        .value_heads = of->heads * of->group,
        .key_size = of->key_size,
        .value_size = of->value_size,
    };
    char kernel[256], name[320];
    dr_random random = dr_random_start(seed, 15);
    problem *p = problem_create(shape.rule, &shape, false, &random);
    if (of->how != PACKED) p->recurrence.layout.cu_seqlens = NULL;
    if (of->how == BARE) problem_forget_states(p);
    p->recurrence.path = of->path;
    dr_recurrence_kernel(g->cuda[of->type], &p->recurrence, false, kernel, sizeof kernel);
    snprintf(name, sizeof name, "%s (%s)", of->name, kernel);
    result first = {0}, again = {0};
    const bool known = !strstr(kernel, "sm_90") || strstr(kernel, of->kernel); /* other devices have fewer kernels */
    const bool holds = (known || fault_is(what, "%s does not run %s", name, of->kernel)) &&
                       problem_run(g->cuda[of->type], p, of->path, 0, true, &first, what) &&
                       problem_run(g->cuda[of->type], p, of->path, 0, true, &again, what) &&
                       results_same(name, p, &first, &again, what);
    result_free(&first), result_free(&again);
    problem_free(p);
    g->checks++;
    return holds;
}

/* Those of g->pipeline, or all. */
bool suite_pipelines(gpu *g, fault *what) {
    bool holds = true, found = false;
    for (int i = 0; i < PIPELINES && holds; i++) {
        if (g->pipeline && strcmp(g->pipeline, pipelines[i].name) != 0) continue;
        found = true;
        holds = pipeline_is_right(g, &pipelines[i], (uint64_t)i, what);
    }
    return holds && (found || fault_is(what, "there is no pipeline %s: cuda_tests --list-pipelines names them", g->pipeline));
}

void pipelines_list(void) {
    for (int i = 0; i < PIPELINES; i++) puts(pipelines[i].name);
}
