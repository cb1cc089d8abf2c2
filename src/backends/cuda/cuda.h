/* What the files of the CUDA backend share on the host: the backend's own data, checked calls, and what kernels are told of the
 * layout. C and CUDA files include it; the project's C headers come through here, so that their functions are C to both.
 *
 * Every call of the runtime goes through DR_CUDA, and every launch through dr_cuda_launch (device/launch.cuh). All work is put
 * on the backend's stream; nothing is allocated and nothing waits outside backend.c, memory.c, transfer.c and measure.c. Grids
 * are one-dimensional: only x may exceed 65,535. Offsets into tensors are int64_t. */
#ifndef DR_CUDA_CUDA_H
#define DR_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/error.h"
#include "base/memory.h"
#include "ops/operations.h"
#include "ops/shapes.h"

/* Sizes that kernels take: beyond them a recurrence is refused. */
enum { DR_CUDA_MOST_KEY = 256, DR_CUDA_MOST_VALUE = 512 };

/* Kernels that were launched, by their addresses: a table that threads share, to which entries are added only. The driver's
 * launch takes half of the host's time of the runtime's, which looks up kernel, device and context each time. */
enum { DR_CUDA_MOST_KERNELS = 512 };
typedef struct {
    const void *kernel;
    void *function; /* the driver's CUfunction; NULL: not known yet */
    bool raised;    /* its limit of shared memory */
} dr_cuda_kernel;
typedef struct {
    void *launch; /* the driver's cuLaunchKernelEx */
    dr_cuda_kernel kernel[DR_CUDA_MOST_KERNELS];
} dr_cuda_kernels;

/* Where launches go. */
typedef struct {
    cudaStream_t at;
    dr_cuda_kernels *kernels; /* of the backend */
} dr_cuda_stream;

typedef struct {
    int device;
    dr_cuda_stream stream; /* of the backend, or in a call's copy of this the call's */
    bool own_stream;       /* which closing the backend destroys */
    int processors;        /* streaming multiprocessors */
    size_t shared_limit;   /* bytes of shared memory that a block may have */
    size_t memory, l2;     /* bytes */
    int major, minor;      /* compute capability */
    bool hopper;           /* the kernels for sm_90a run; else those for sm_80 */
    int driver, runtime;   /* versions, 1000 major + 10 minor */
    char name[128];
    struct dr_cuda_product *product;     /* a library for measuring, opened when first asked for (measure.c) */
    struct dr_cuda_network *network;     /* what operations of networks keep (network/state.c) */
    struct dr_cuda_transfers *transfers; /* copies under way between host and GPU (transfer.c) */
} dr_cuda;

/* The device's data and, in a heap block of its own, what its launches share. */
typedef struct {
    dr_cuda gpu;
    dr_cuda_kernels kernels;
} dr_cuda_state;

/* While the calling thread captures a graph (replay.c): the backend's data with the stream that is captured, and whose it is.
 */
typedef struct {
    const void *state;
    const dr_cuda *gpu;
} dr_cuda_capture;
extern __thread dr_cuda_capture dr_cuda_captured;

static inline const dr_cuda *dr_cuda_of(const dr_backend *backend) {
    return dr_cuda_captured.state == backend->state ? dr_cuda_captured.gpu : (const dr_cuda *)backend->state;
}

/* DR_OK, or a status and a sentence about the call: DR_ERROR_MEMORY, else DR_ERROR_DEVICE. */
dr_status dr_cuda_check(cudaError_t error, const char *call);

#define DR_CUDA(call) DR_TRY(dr_cuda_check((call), #call))

/* The calling thread's device is the caller's affair: every entry of the backend's table sets its own and puts back what was;
 * before: the device that was, -1 if it is the backend's. */
dr_status dr_cuda_enter(const dr_backend *backend, int *before);
void dr_cuda_leave(int before);

/* DR_ERROR_UNSUPPORTED unless so many blocks, a product of sizes, can be launched; *blocks is their number. */
dr_status dr_cuda_grid(const int64_t *sizes, int count, const char *kernel, unsigned *blocks);

/* The driver's function for a kernel, NULL: there is none, and the runtime launches it. Lets launches of more than
 * DR_CUDA_SHARED_AS_IT_IS bytes have as much shared memory as a block may: the limit belongs to the kernel, which other threads
 * of the process launch with other sizes, so that one that fitted a launch would not fit theirs. The runtime is asked once a
 * kernel and backend. */
dr_status dr_cuda_find_kernel(dr_cuda_kernels *kernels, const void *kernel, int bytes, void **function);
/* Of a backend that is opened. */
void dr_cuda_open_kernels(dr_cuda_kernels *kernels);
enum { DR_CUDA_SHARED_AS_IT_IS = 48 * 1024 }; /* bytes that every launch may have */

/* DR_ERROR_UNSUPPORTED while the stream is captured in a graph, which `what` cannot be and would break. */
dr_status dr_cuda_refuse_capture(const dr_cuda *gpu, const char *what);

/* How rows fall into sequences, for kernels. */
typedef struct {
    int64_t sequences, rows;
    int64_t tokens;         /* of each sequence, where they are equally long */
    const int64_t *offsets; /* [sequences + 1] on the device; NULL: equally long */
} dr_cuda_layout;

/* Bytes of the workspace that boundaries of so many sequences need on the device, and the layout there. Boundaries in host
 * memory are written by kernels whose arguments hold the numbers, so that nothing waits, no host memory has to stay, and a
 * graph may capture it; those on the device are read where they are, or widened to int64. */
size_t dr_cuda_layout_bytes(const dr_layout *layout, bool packed);
dr_status dr_cuda_layout_put(const dr_cuda *gpu, const dr_layout *layout, const dr_boundaries *boundaries, void *memory,
                             dr_cuda_layout *put);

#ifdef __cplusplus
}
#endif
#endif
