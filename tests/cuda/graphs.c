/* Forward and backward as a CUDA graph: captured once, replayed twice into what was poisoned, with the bits of the calls
 * themselves. A capture fails where anything allocates memory or waits for the device, so this is also what shows that no call
 * does. Sequences that are cut into parts are among them, and rules whose kernels begin with counters that a replay resets,
 * with more chunks than multiprocessors. */
#include "suites.h"

#include "base/error.h"

#include <cuda_runtime_api.h>

enum { REPLAYS = 2, LONG = 4096, HEADS = 3 };

static dr_status replay(problem_calls calls, void *run, void *context) {
    const cudaStream_t stream = context;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    dr_status status = error == cudaSuccess ? calls(run) : DR_OK;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = ended;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < REPLAYS && error == cudaSuccess; i++) error = cudaGraphLaunch(exec, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    if (status == DR_OK && error != cudaSuccess)
        status = dr_fail(DR_ERROR_DEVICE, "a CUDA graph of a forward and a backward: %s", cudaGetErrorString(error));
    return status;
}

static bool graph_is_right(gpu *g, dr_backend *cuda, const problem *p, const char *name, fault *what) {
    result want = {0}, got = {0};
    const bool holds = problem_run(cuda, p, DR_PATH_BEST, 0, true, &want, what) &&
                       problem_run_around(cuda, p, DR_PATH_BEST, 0, true, replay, g->stream, &got, what) &&
                       results_same(name, p, &got, &want, what);
    result_free(&want), result_free(&got);
    g->checks++;
    return holds;
}

static bool rule_is_right(gpu *g, const char *rule, bool cut, fault *what) {
    const int64_t short_seqlens[] = {0, 130, 131, 201}, long_seqlens[] = {0, LONG};
    const dr_recurrence shape = {
        .rule = dr_rule_find(rule),
        .layout = {.sequences = cut ? 1 : 3, .rows = cut ? LONG : 201, .cu_seqlens = cut ? long_seqlens : short_seqlens},
        .key_heads = HEADS,
        .value_heads = HEADS,
        .key_size = 64,
        .value_size = 64,
    };
    dr_random random = dr_random_start(5, 1);
    problem *p = problem_create(shape.rule, &shape, false, &random);
    bool holds = true;
    for (int type = 0; type < 3 && holds; type++) {
        char name[96];
        snprintf(name, sizeof name, "a graph of %s, %s, %lld tokens", rule,
                 dr_dtype_name(dr_recurrence_output_dtype(g->cuda[type])), (long long)shape.layout.rows);
        holds = graph_is_right(g, g->cuda[type], p, name, what);
    }
    problem_free(p);
    return holds;
}

bool suite_graphs(gpu *g, fault *what) {
    static const char *const rules[] = {"gdn",  "kda",  "mamba2",       "eda",          "qdelta",
                                        "pgdn", "pkda", "pdn_unstable", "delta_product"};
    gpu own = {.device = g->device};
    bool holds = gpu_open(&own, what);
    for (size_t n = 0; n < 2 * sizeof rules / sizeof *rules && holds; n++)
        holds = rule_is_right(&own, rules[n / 2], n % 2, what);
    g->checks += own.checks;
    gpu_close(&own);
    return holds;
}
