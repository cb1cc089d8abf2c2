/* The first call runs the work as it is, which chooses algorithms of products and takes memory between kernels; the second
 * captures it in a graph, and later ones launch that: the host then takes a call's time, not one for each of a thousand
 * kernels, and the kernels are the same, so their results have the same bits.
 *
 * The default stream cannot be captured, and other threads may put work on the backend's stream meanwhile; so capture has a
 * stream of its own, which dr_cuda_of tells this thread's calls of, and which nothing ever runs on. The graph goes to the
 * backend's stream. */
#include "backends/cuda/replay.h"

typedef struct {
    int64_t calls;
    bool refused; /* by something in the work */
    cudaGraphExec_t graph;
} replayed;

static dr_status capture(dr_backend *backend, dr_status (*run)(void *context), void *context, replayed *of) {
    dr_cuda gpu = *dr_cuda_of(backend);
    cudaGraph_t graph = NULL;
    DR_CUDA(cudaStreamCreateWithFlags(&gpu.stream.at, cudaStreamNonBlocking));
    dr_status status =
        dr_cuda_check(cudaStreamBeginCapture(gpu.stream.at, cudaStreamCaptureModeThreadLocal), "beginning a graph");
    if (status == DR_OK) {
        dr_cuda_captured = (dr_cuda_capture){backend->state, &gpu};
        status = run(context);
        dr_cuda_captured = (dr_cuda_capture){NULL, NULL};
        const cudaError_t ended = cudaStreamEndCapture(gpu.stream.at, &graph);
        if (ended != cudaSuccess) cudaGetLastError();
        if (status == DR_OK) status = dr_cuda_check(ended, "ending a graph");
    }
    if (status == DR_OK) status = dr_cuda_check(cudaGraphInstantiate(&of->graph, graph, 0), "making a graph");
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(gpu.stream.at);
    return status;
}

static dr_status replay(dr_backend *backend, dr_status (*run)(void *context), void *context, replayed *of) {
    if (of->calls++ == 0 || of->refused) return run(context);
    if (!of->graph) {
        const dr_status status = capture(backend, run, context, of);
        of->refused = status == DR_ERROR_UNSUPPORTED;
        if (of->refused) return run(context);
        DR_TRY(status);
    }
    return dr_cuda_check(cudaGraphLaunch(of->graph, dr_cuda_of(backend)->stream.at), "launching a graph");
}

dr_status dr_cuda_replay(dr_backend *backend, dr_status (*run)(void *context), void *context, void **kept) {
    int before;
    if (!*kept) DR_TRY(dr_allocate_zero(sizeof(replayed), "a graph", kept));
    DR_TRY(dr_cuda_refuse_capture(dr_cuda_of(backend), "a replay"));
    DR_TRY(dr_cuda_enter(backend, &before));
    const dr_status status = replay(backend, run, context, *kept);
    dr_cuda_leave(before);
    return status;
}

void dr_cuda_forget(dr_backend *backend, void *kept) {
    replayed *of = kept;
    int before;
    if (!of) return;
    if (of->graph && dr_cuda_enter(backend, &before) == DR_OK) {
        cudaGraphExecDestroy(of->graph);
        dr_cuda_leave(before);
    }
    dr_release(of);
}
