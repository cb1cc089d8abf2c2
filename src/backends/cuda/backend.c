/* The CUDA backend's table of operations, and opening it on a device and a stream. It offers recurrences and, where
 * vectors are float32 or bf16, the operations of networks; fp16, whose range ends at 65,504, has recurrences only. */
#include "backends/cuda/cuda.h"
#include "backends/cuda/measure.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/network/network.h"
#include "backends/cuda/open.h"
#include "backends/cuda/recurrence.h"
#include "backends/cuda/replay.h"
#include "backends/cuda/transfer.h"
#include "base/number.h"

/* ---- opening -------------------------------------------------------------------------------------------------------- */

/* A call whose failure means that this machine has no GPU for us. */
static dr_status check_machine(cudaError_t error) {
    if (error == cudaSuccess) return DR_OK;
    cudaGetLastError(); /* it is no failure of a later call */
    if (error == cudaErrorInsufficientDriver)
        return dr_fail(DR_ERROR_UNSUPPORTED,
                       "backend \"cuda\" finds no NVIDIA driver, or one older than CUDA %d.%d: install a newer driver, or use "
                       "backend \"cpu\"",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend \"cuda\" finds no NVIDIA GPU on this machine: use backend \"cpu\"");
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend \"cuda\" cannot use this machine's GPU: %s (%s)", cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

static dr_status read_properties(dr_cuda *gpu) {
    struct cudaDeviceProp properties;
    DR_TRY(check_machine(cudaGetDeviceProperties(&properties, gpu->device)));
    DR_TRY(check_machine(cudaDriverGetVersion(&gpu->driver)));
    DR_TRY(check_machine(cudaRuntimeGetVersion(&gpu->runtime)));
    snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1, properties.name);
    gpu->processors = properties.multiProcessorCount;
    gpu->shared_limit = properties.sharedMemPerBlockOptin;
    gpu->memory = properties.totalGlobalMem;
    gpu->l2 = (size_t)properties.l2CacheSize;
    gpu->major = properties.major;
    gpu->minor = properties.minor;
    gpu->hopper = gpu->major == 9 && gpu->minor == 0;
    if (!gpu->hopper && gpu->major != 8)
        return dr_fail(
            DR_ERROR_UNSUPPORTED,
            "the kernels of backend \"cuda\" are built for compute capability 9.0 and 8.x, and device %d (%s) has %d.%d",
            gpu->device, gpu->name, gpu->major, gpu->minor);
    return DR_OK;
}

static dr_status find_device(const dr_backend_options *options, dr_cuda *gpu) {
    int count = 0, before;
    *gpu = (dr_cuda){.device = options->device, .stream.at = options->stream};
    DR_TRY(check_machine(cudaGetDeviceCount(&count)));
    if (gpu->device < 0 || gpu->device >= count)
        return dr_fail(DR_ERROR_ARGUMENT, "there is no GPU %d: this machine has %d, counted from 0", gpu->device, count);
    DR_TRY(check_machine(cudaGetDevice(&before)));
    DR_TRY(read_properties(gpu));
    /* the context is made here, so that no later call pays for it */
    dr_status status = check_machine(cudaSetDevice(gpu->device));
    if (status == DR_OK) status = check_machine(cudaFree(NULL));
    dr_cuda_leave(before);
    return status;
}

static void close_backend(dr_backend *backend) {
    int before;
    if (dr_cuda_enter(backend, &before) == DR_OK) {
        cudaStreamSynchronize(dr_cuda_of(backend)->stream.at);
        dr_cuda_product_close(backend->state);
        dr_cuda_network_close(backend->state);
        dr_cuda_transfers_close(backend->state);
        if (dr_cuda_of(backend)->own_stream) cudaStreamDestroy(dr_cuda_of(backend)->stream.at);
        dr_cuda_leave(before);
    }
    dr_release(backend->state);
    dr_release(backend);
}

/* On a stream of its own, which waits for no other. */
static dr_status open_beside(dr_backend *backend, dr_backend **other) {
    dr_backend_options options = {.dtype = backend->storage, .device = dr_cuda_of(backend)->device};
    cudaStream_t stream = NULL;
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = dr_cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    options.stream = stream;
    if (status == DR_OK) status = dr_cuda_open(&options, other);
    if (status == DR_OK)
        ((dr_cuda *)(*other)->state)->own_stream = true;
    else if (stream)
        cudaStreamDestroy(stream);
    dr_cuda_leave(before);
    return status;
}

static dr_status wait_for_stream(dr_backend *backend) {
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    dr_status status = dr_cuda_refuse_capture(dr_cuda_of(backend), "waiting");
    if (status == DR_OK)
        status = dr_cuda_check(cudaStreamSynchronize(dr_cuda_of(backend)->stream.at), "waiting for the stream");
    dr_cuda_leave(before);
    return status;
}

static void describe_device(const dr_cuda *gpu, void (*line)(void *context, const char *text), void *context) {
    char text[256];
    dr_format(text, sizeof text, "cuda device %d: %s, compute capability %d.%d, %d multiprocessors, %.1f GB, L2 %.0f MB",
              gpu->device, gpu->name, gpu->major, gpu->minor, gpu->processors, (double)gpu->memory * 1e-9,
              (double)gpu->l2 * 1e-6);
    line(context, text);
}

/* The backend's device, then what other devices the machine has. */
static void describe(const dr_backend *backend, void (*line)(void *context, const char *text), void *context) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    char text[256];
    int count = 0;
    describe_device(gpu, line, context);
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int i = 0; i < count; i++) {
        dr_cuda other = {.device = i};
        if (i == gpu->device) continue;
        if (read_properties(&other) == DR_OK)
            describe_device(&other, line, context);
        else
            line(context, dr_last_error());
    }
    snprintf(text, sizeof text, "cuda runtime %d.%d, driver for CUDA %d.%d", gpu->runtime / 1000, gpu->runtime % 1000 / 10,
             gpu->driver / 1000, gpu->driver % 1000 / 10);
    line(context, text);
    snprintf(text, sizeof text, "cuda kernels chosen: %s for recurrences; vectors stored as %s, states and gates as F32",
             backend->isa, dr_dtype_name(backend->storage));
    line(context, text);
    line(context, backend->storage == DR_F16
                      ? "cuda computes networks in F32 and BF16, and recurrences only in F16"
                      : "cuda computes networks; products by cuBLASLt, opened when the first is asked for");
}

#define MEMORY_AND_RECURRENCES                                                                                                 \
    .name = "cuda", .dtype = DR_F32, .device = true, .pools = true, .prefill = true, .forms = true, .panels = 8, .sums = true, \
    .chains = true, .allocate = dr_cuda_allocate, .free = dr_cuda_free, .zero = dr_cuda_zero, .upload = dr_cuda_upload,        \
    .download = dr_cuda_download, .upload_as = dr_cuda_upload_as, .download_as = dr_cuda_download_as, .wait = wait_for_stream, \
    .beside = open_beside, .time_runs = dr_cuda_time_runs, .product = dr_cuda_product, .describe = describe,                   \
    .close = close_backend, .copy = dr_cuda_copy, .put = dr_cuda_put, .get = dr_cuda_get, .fetch = dr_cuda_fetch,              \
    .fetched = dr_cuda_fetched, .available = dr_cuda_available, .replay = dr_cuda_replay, .forget = dr_cuda_forget,            \
    .recurrence_plan = dr_cuda_recurrence_plan, .recurrence_forward = dr_cuda_recurrence_forward,                              \
    .recurrence_backward = dr_cuda_recurrence_backward, .recurrence_decode = dr_cuda_recurrence_decode,                        \
    .recurrence_chunk = dr_cuda_recurrence_chunk, .recurrence_boundary = dr_cuda_recurrence_boundary,                          \
    .recurrence_kernel = dr_cuda_recurrence_kernel, .recurrence_path = dr_cuda_recurrence_path

static const dr_operations operations = {MEMORY_AND_RECURRENCES, DR_CUDA_NETWORK_OPERATIONS};
static const dr_operations recurrences = {MEMORY_AND_RECURRENCES};

static const dr_operations *operations_of(dr_dtype storage) {
    return storage == DR_F16 ? &recurrences : &operations;
}

/* Hopper's kernels unless the options say otherwise; what is saved depends on no other property of a device. */
dr_backend dr_cuda_imagine(const dr_backend_options *options) {
    static const dr_cuda sm_90a = {.major = 9, .hopper = true, .processors = 132, .shared_limit = 232448},
                         sm_80 = {.major = 8, .processors = 108, .shared_limit = 166912};
    const bool older = options && options->isa && !strcmp(options->isa, "sm_80");
    const dr_dtype storage = options ? options->dtype : DR_F32;
    return (dr_backend){.ops = operations_of(storage),
                        .isa = older ? "sm_80" : "sm_90a",
                        .threads = 1,
                        .storage = storage,
                        .state = (void *)(older ? &sm_80 : &sm_90a)};
}

dr_status dr_cuda_open(const dr_backend_options *options, dr_backend **backend) {
    const dr_backend_options chosen = options ? *options : (dr_backend_options){0};
    dr_cuda gpu;
    if (chosen.dtype != DR_F32 && chosen.dtype != DR_BF16 && chosen.dtype != DR_F16)
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"cuda\" stores vectors as F32, BF16 or F16, not %s",
                       dr_dtype_name(chosen.dtype));
    if (chosen.isa)
        return dr_fail(DR_ERROR_ARGUMENT, "backend \"cuda\" has no instruction set to choose, such as \"%s\"", chosen.isa);
    DR_TRY(find_device(&chosen, &gpu));
    void *memory = NULL, *state = NULL;
    DR_TRY(dr_allocate(sizeof(dr_backend), "a backend", &memory));
    dr_status status = dr_allocate_zero(sizeof(dr_cuda_state), "a backend's state", &state);
    if (status == DR_OK) status = dr_cuda_network_open(&gpu);
    if (status == DR_OK) status = dr_cuda_transfers_open(&gpu);
    if (status != DR_OK) {
        dr_cuda_network_close(&gpu);
        dr_release(state);
        dr_release(memory);
        return status;
    }
    gpu.stream.kernels = &((dr_cuda_state *)state)->kernels;
    dr_cuda_open_kernels(gpu.stream.kernels);
    *(dr_cuda *)state = gpu;
    dr_backend *opened = memory;
    *opened = (dr_backend){.ops = operations_of(chosen.dtype),
                           .isa = gpu.hopper ? "sm_90a" : "sm_80",
                           .threads = 1,
                           .storage = chosen.dtype,
                           .state = state};
    *backend = opened;
    return DR_OK;
}
