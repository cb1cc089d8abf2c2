/* Measuring on the GPU. Runs to be replayed are captured in a CUDA graph: what the host needs to launch them is not in their
 * time, as it is not in that of a program that replays graphs or runs ahead of its GPU. The default stream cannot be captured,
 * so that a backend on it gets a stream of its own meanwhile. A copy must not be replayed: in a graph it is left to the copy
 * engines, which are a third slower.
 *
 * cuBLAS is for comparison only, so nothing is linked with it: it is looked for when a product is asked for. Its interface is
 * declared here as far as it is needed; the numbers are those of cublas_api.h. */
#include "backends/cuda/measure.h"

#include <dlfcn.h>
#include <library_types.h>

/* ---- times ----------------------------------------------------------------------------------------------------------- */

static dr_status capture(const dr_cuda *gpu, dr_status (*run)(void *context), void *context, int64_t runs,
                         cudaGraphExec_t *exec) {
    cudaGraph_t graph = NULL;
    dr_status status =
        dr_cuda_check(cudaStreamBeginCapture(gpu->stream.at, cudaStreamCaptureModeThreadLocal), "beginning a graph");
    if (status != DR_OK) return status;
    for (int64_t i = 0; i < runs && status == DR_OK; i++) status = run(context);
    dr_status ended = dr_cuda_check(cudaStreamEndCapture(gpu->stream.at, &graph), "ending a graph");
    if (status == DR_OK) status = ended; /* a failed run comes first */
    if (status == DR_OK) status = dr_cuda_check(cudaGraphInstantiate(exec, graph, 0), "making a graph");
    if (graph) cudaGraphDestroy(graph);
    return status;
}

/* Between two events: the graph, or the runs one by one. */
static dr_status run_between(const dr_cuda *gpu, cudaGraphExec_t exec, dr_status (*run)(void *context), void *context,
                             int64_t runs, const cudaEvent_t event[2], double *seconds) {
    float milliseconds = 0;
    if (exec) DR_CUDA(cudaGraphUpload(exec, gpu->stream.at));
    DR_CUDA(cudaEventRecord(event[0], gpu->stream.at));
    if (exec) DR_CUDA(cudaGraphLaunch(exec, gpu->stream.at));
    for (int64_t i = 0; i < runs && !exec; i++) DR_TRY(run(context));
    DR_CUDA(cudaEventRecord(event[1], gpu->stream.at));
    DR_CUDA(cudaEventSynchronize(event[1]));
    DR_CUDA(cudaEventElapsedTime(&milliseconds, event[0], event[1]));
    *seconds = 1e-3 * (double)milliseconds;
    return DR_OK;
}

static dr_status time_on_stream(const dr_cuda *gpu, dr_status (*run)(void *context), void *context, int64_t runs, bool replay,
                                double *seconds) {
    cudaGraphExec_t exec = NULL;
    cudaEvent_t event[2] = {NULL, NULL};
    dr_status status;
    if (replay) DR_GO(capture(gpu, run, context, runs, &exec));
    DR_GO(dr_cuda_check(cudaEventCreate(&event[0]), "making an event"));
    DR_GO(dr_cuda_check(cudaEventCreate(&event[1]), "making an event"));
    DR_GO(run_between(gpu, exec, run, context, runs, event, seconds));
done:
    for (int i = 0; i < 2; i++)
        if (event[i]) cudaEventDestroy(event[i]);
    if (exec) cudaGraphExecDestroy(exec);
    return status;
}

dr_status dr_cuda_time_runs(dr_backend *backend, dr_status (*run)(void *context), void *context, int64_t runs, bool replay,
                            double *seconds) {
    dr_cuda *gpu = backend->state;
    const cudaStream_t own = gpu->stream.at;
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = dr_cuda_check(cudaStreamSynchronize(own), "waiting for the stream");
    if (status == DR_OK && replay && !own)
        status = dr_cuda_check(cudaStreamCreateWithFlags(&gpu->stream.at, cudaStreamNonBlocking), "making a stream");
    if (status == DR_OK) status = time_on_stream(gpu, run, context, runs, replay, seconds);
    if (gpu->stream.at != own) {
        cudaStreamDestroy(gpu->stream.at);
        gpu->stream.at = own;
    }
    dr_cuda_leave(before);
    return status;
}

/* ---- limits ---------------------------------------------------------------------------------------------------------- */

enum { AS_IT_IS = 0, COMPUTE_32F = 68, DEFAULT_ALGORITHM = -1 };
enum { WORKSPACE = 1 << 26 }; /* given to it, so that it allocates nothing within a graph */

typedef int (*multiply_function)(void *handle, int of_a, int of_b, int m, int n, int k, const void *alpha, const void *a,
                                 cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
                                 void *c, cudaDataType c_type, int ldc, int compute, int algorithm);

struct dr_cuda_product {
    void *library, *handle, *workspace;
    int (*set_stream)(void *handle, cudaStream_t stream); /* it forgets the workspace */
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*destroy)(void *handle);
    multiply_function multiply;
};

/* POSIX gives functions as pointers to data. */
static void find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

static dr_status start(struct dr_cuda_product *blas) {
    int (*create)(void **handle);
    find(blas->library, "cublasCreate_v2", &create);
    find(blas->library, "cublasSetWorkspace_v2", &blas->set_workspace);
    find(blas->library, "cublasSetStream_v2", &blas->set_stream);
    find(blas->library, "cublasDestroy_v2", &blas->destroy);
    find(blas->library, "cublasGemmEx", &blas->multiply);
    if (!create || !blas->set_workspace || !blas->set_stream || !blas->destroy || !blas->multiply)
        return dr_fail(DR_ERROR_UNSUPPORTED, "the cuBLAS of this machine lacks a function that is needed");
    DR_CUDA(cudaMalloc(&blas->workspace, WORKSPACE));
    return create(&blas->handle) == 0 ? DR_OK : dr_fail(DR_ERROR_UNSUPPORTED, "cuBLAS did not start on this GPU");
}

void dr_cuda_product_close(dr_cuda *gpu) {
    struct dr_cuda_product *blas = gpu->product;
    gpu->product = NULL;
    if (!blas) return;
    if (blas->handle) blas->destroy(blas->handle);
    if (blas->workspace) cudaFree(blas->workspace);
    if (blas->library) dlclose(blas->library);
    dr_release(blas);
}

static dr_status open_product(dr_cuda *gpu) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    void *memory = NULL, *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return dr_fail(DR_ERROR_UNSUPPORTED, "there is no libcublas.so.13 or .12 in the loader's path");
    dr_status status = dr_allocate_zero(sizeof(struct dr_cuda_product), "a library", &memory);
    if (status != DR_OK) {
        dlclose(library);
        return status;
    }
    gpu->product = memory;
    gpu->product->library = library;
    status = start(gpu->product);
    if (status != DR_OK) dr_cuda_product_close(gpu);
    return status;
}

static dr_status multiply(dr_cuda *gpu, int64_t size, const void *a, const void *b, void *c) {
    const float one = 1, zero = 0;
    const int n = (int)size;
    if (!gpu->product) DR_TRY(open_product(gpu));
    const struct dr_cuda_product *blas = gpu->product;
    int failed = blas->set_stream(blas->handle, gpu->stream.at);
    if (!failed) failed = blas->set_workspace(blas->handle, blas->workspace, WORKSPACE);
    /* row by row, a b is what cuBLAS, which goes column by column, takes for b a */
    if (!failed)
        failed = blas->multiply(blas->handle, AS_IT_IS, AS_IT_IS, n, n, n, &one, b, CUDA_R_16BF, n, a, CUDA_R_16BF, n, &zero, c,
                                CUDA_R_16BF, n, COMPUTE_32F, DEFAULT_ALGORITHM);
    return failed ? dr_fail(DR_ERROR_DEVICE, "cuBLAS failed with status %d", failed) : DR_OK;
}

dr_status dr_cuda_product(dr_backend *backend, int64_t size, const void *a, const void *b, void *c) {
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = multiply(backend->state, size, a, b, c);
    dr_cuda_leave(before);
    return status;
}
