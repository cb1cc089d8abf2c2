/* What a thread of tests has of the GPU: a backend of each storage type, on a stream of its own.
 *
 * Their memory is kept when it is freed, for the next tensor of the same size: a composition has hundreds of tensors of few
 * sizes, and allocating and freeing them, for which the driver lets one thread at a time pass and waits for all streams, takes
 * longer than everything else. A block has the size that was asked for, so that accesses beyond it are still found. */
#include "instances.h"

#include "ops/operations.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { MOST_KEPT = 512 };
static const size_t most_kept_bytes = (size_t)512 << 20; /* of a backend; unused blocks are freed beyond it */

typedef struct {
    void *memory;
    size_t bytes;
    bool used;
} kept_block;

/* The table of a backend whose memory is kept. */
typedef struct {
    dr_operations table;
    const dr_operations *own;
    kept_block block[MOST_KEPT];
    int count;
    size_t bytes; /* of these blocks */
} keeper;

static keeper *keeper_of(const dr_backend *backend) {
    return (keeper *)(void *)backend->ops;
}

static void free_unused(dr_backend *backend, keeper *k) {
    int used = 0;
    for (int i = 0; i < k->count; i++)
        if (k->block[i].used)
            k->block[used++] = k->block[i];
        else
            k->bytes -= k->block[i].bytes, k->own->free(backend, k->block[i].memory);
    k->count = used;
}

static dr_status allocate_kept(dr_backend *backend, size_t bytes, void **memory) {
    keeper *k = keeper_of(backend);
    for (int i = 0; i < k->count; i++) {
        kept_block *block = &k->block[i];
        if (block->used || block->bytes != bytes) continue;
        block->used = true;
        *memory = block->memory;
        return DR_OK;
    }
    if (k->count == MOST_KEPT || k->bytes + bytes > most_kept_bytes) free_unused(backend, k);
    const dr_status status = k->own->allocate(backend, bytes, memory);
    if (status == DR_OK && k->count < MOST_KEPT) k->block[k->count++] = (kept_block){*memory, bytes, true}, k->bytes += bytes;
    return status;
}

static void free_kept(dr_backend *backend, void *memory) {
    keeper *k = keeper_of(backend);
    for (int i = 0; i < k->count; i++) {
        if (k->block[i].memory != memory) continue;
        k->block[i].used = false;
        return;
    }
    k->own->free(backend, memory);
}

static bool keep_memory(dr_backend *backend) {
    keeper *k = malloc(sizeof *k);
    if (!k) return false;
    k->own = backend->ops;
    k->table = *backend->ops;
    k->table.allocate = allocate_kept;
    k->table.free = free_kept;
    k->count = 0, k->bytes = 0;
    backend->ops = &k->table;
    return true;
}

static void close_kept(dr_backend *backend) {
    keeper *k = keeper_of(backend);
    free_unused(backend, k);
    backend->ops = k->own;
    free(k);
    dr_backend_close(backend);
}

bool gpu_open(gpu *g, fault *what) {
    static const dr_dtype types[3] = {DR_F32, DR_BF16, DR_F16};
    cudaStream_t stream;
    if (cudaSetDevice(g->device) != cudaSuccess || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return fault_is(what, "no stream on GPU %d", g->device);
    g->stream = stream;
    if (dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &g->cpu) != DR_OK)
        return fault_is(what, "%s", dr_last_error());
    for (int i = 0; i < 3; i++) {
        const dr_backend_options options = {.dtype = types[i], .device = g->device, .stream = stream};
        if (dr_backend_open("cuda", &options, &g->cuda[i]) != DR_OK) return fault_is(what, "%s", dr_last_error());
        if (!keep_memory(g->cuda[i])) return fault_is(what, "no memory for a backend's table");
    }
    return true;
}

void gpu_close(gpu *g) {
    for (int i = 0; i < 3; i++)
        if (g->cuda[i]) instances_note(g->cuda[i]), close_kept(g->cuda[i]);
    dr_backend_close(g->cpu);
    if (g->stream) cudaStreamDestroy(g->stream);
}

bool gpu_takes(const dr_rule *rule) {
    return rule->scan == DR_SCAN_NONE || rule->scan == DR_SCAN_DIAGONAL;
}
