/* A block of page-locked memory is taken for a copy and free again when the copy's event has come to pass. There are as many
 * blocks as copies were ever under way at once, MOST_BLOCKS at most: then the oldest copy is waited for. Blocks of a power of
 * two bytes serve copies of several sizes. */
#include "backends/cuda/transfer.h"

#include "backends/cuda/memory.h"

#include <pthread.h>

enum { MOST_BLOCKS = 16, LEAST_ROOM = 4096 };

typedef struct {
    void *at;
    size_t room, bytes; /* bytes: of the copy */
    cudaEvent_t done;
    int64_t turn; /* when it was last taken */
    bool taken;   /* a fetch that nobody has ended */
} block;

struct dr_cuda_transfers {
    pthread_mutex_t lock;
    block block[MOST_BLOCKS];
    int count;
    int64_t turns;
};

dr_status dr_cuda_transfers_open(dr_cuda *gpu) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(struct dr_cuda_transfers), "transfers", &memory));
    gpu->transfers = memory;
    pthread_mutex_init(&gpu->transfers->lock, NULL);
    return DR_OK;
}

static void forget(block *b) {
    if (b->at) cudaFreeHost(b->at);
    if (b->done) cudaEventDestroy(b->done);
    *b = (block){0};
}

void dr_cuda_transfers_close(dr_cuda *gpu) {
    struct dr_cuda_transfers *transfers = gpu->transfers;
    if (!transfers) return;
    for (int i = 0; i < transfers->count; i++) forget(&transfers->block[i]);
    pthread_mutex_destroy(&transfers->lock);
    dr_release(transfers);
    gpu->transfers = NULL;
}

static dr_status make(block *b, size_t bytes) {
    size_t room = LEAST_ROOM;
    while (room < bytes) room *= 2;
    *b = (block){.room = room};
    DR_CUDA(cudaHostAlloc(&b->at, room, cudaHostAllocDefault));
    DR_CUDA(cudaEventCreateWithFlags(&b->done, cudaEventDisableTiming));
    return DR_OK;
}

/* Whether the copy of a block has ended; that it has not is no error of a later call. */
static bool is_done(const block *b) {
    const bool done = cudaEventQuery(b->done) == cudaSuccess;
    if (!done) cudaGetLastError();
    return done;
}

/* The block that was taken first of those that no fetch holds; NULL: there is none. */
static block *oldest(struct dr_cuda_transfers *transfers) {
    block *found = NULL;
    for (int i = 0; i < transfers->count; i++) {
        block *b = &transfers->block[i];
        if (!b->taken && (!found || b->turn < found->turn)) found = b;
    }
    return found;
}

static dr_status make_anew(block *b, size_t bytes) {
    forget(b);
    const dr_status status = make(b, bytes);
    if (status != DR_OK) forget(b);
    return status;
}

/* A block for so many bytes; the lock is held. */
static dr_status take(struct dr_cuda_transfers *transfers, size_t bytes, block **taken) {
    block *b = NULL;
    for (int i = 0; i < transfers->count && !b; i++) {
        block *candidate = &transfers->block[i];
        if (!candidate->taken && candidate->room >= bytes && is_done(candidate)) b = candidate;
    }
    if (!b && transfers->count < MOST_BLOCKS) {
        b = &transfers->block[transfers->count];
        DR_TRY(make_anew(b, bytes));
        transfers->count++;
    }
    if (!b) {
        b = oldest(transfers);
        if (!b) return dr_fail(DR_ERROR_MEMORY, "%d copies to the host are under way, as many as there can be", MOST_BLOCKS);
        DR_CUDA(cudaEventSynchronize(b->done));
        if (b->room < bytes) DR_TRY(make_anew(b, bytes));
    }
    b->turn = ++transfers->turns;
    b->bytes = bytes;
    *taken = b;
    return DR_OK;
}

static dr_status copy(const dr_cuda *gpu, void *to, const void *from, const block *b, enum cudaMemcpyKind kind) {
    DR_CUDA(cudaMemcpyAsync(to, from, b->bytes, kind, gpu->stream.at));
    return dr_cuda_check(cudaEventRecord(b->done, gpu->stream.at), "cudaEventRecord");
}

static dr_status put(const dr_cuda *gpu, void *to, const void *from, size_t bytes) {
    struct dr_cuda_transfers *transfers = gpu->transfers;
    block *b;
    pthread_mutex_lock(&transfers->lock);
    dr_status status = take(transfers, bytes, &b);
    if (status == DR_OK) {
        memcpy(b->at, from, bytes);
        status = copy(gpu, to, b->at, b, cudaMemcpyHostToDevice);
    }
    pthread_mutex_unlock(&transfers->lock);
    return status;
}

dr_status dr_cuda_put(dr_backend *backend, void *to, const void *from, size_t bytes) {
    int before;
    if (bytes == 0) return DR_OK;
    if (bytes > DR_CUDA_MOST_STAGED) return dr_cuda_put_and_wait(backend, to, from, bytes);
    DR_TRY(dr_cuda_refuse_capture(dr_cuda_of(backend), "a copy between host and GPU"));
    DR_TRY(dr_cuda_enter(backend, &before));
    const dr_status status = put(dr_cuda_of(backend), to, from, bytes);
    dr_cuda_leave(before);
    return status;
}

static dr_status fetch(const dr_cuda *gpu, const void *from, size_t bytes, void **transfer) {
    struct dr_cuda_transfers *transfers = gpu->transfers;
    block *b;
    pthread_mutex_lock(&transfers->lock);
    dr_status status = take(transfers, bytes, &b);
    if (status == DR_OK) status = copy(gpu, b->at, from, b, cudaMemcpyDeviceToHost);
    if (status == DR_OK) {
        b->taken = true;
        *transfer = b;
    }
    pthread_mutex_unlock(&transfers->lock);
    return status;
}

dr_status dr_cuda_fetch(dr_backend *backend, const void *from, size_t bytes, void **transfer) {
    int before;
    *transfer = NULL;
    DR_TRY(dr_cuda_refuse_capture(dr_cuda_of(backend), "a copy between host and GPU"));
    DR_TRY(dr_cuda_enter(backend, &before));
    const dr_status status = fetch(dr_cuda_of(backend), from, bytes, transfer);
    dr_cuda_leave(before);
    return status;
}

dr_status dr_cuda_fetched(dr_backend *backend, void *transfer, void *to) {
    struct dr_cuda_transfers *transfers = dr_cuda_of(backend)->transfers;
    block *b = transfer;
    int before;
    DR_TRY(dr_cuda_enter(backend, &before));
    const dr_status status = dr_cuda_check(cudaEventSynchronize(b->done), "waiting for a copy to the host");
    dr_cuda_leave(before);
    if (status == DR_OK && to) memcpy(to, b->at, b->bytes);
    pthread_mutex_lock(&transfers->lock);
    b->taken = false;
    pthread_mutex_unlock(&transfers->lock);
    return status;
}
