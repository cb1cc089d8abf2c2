/* What a backend keeps for the operations of networks: memory between their kernels, which grows with the calls, and the
 * library that multiplies. */
#include "backends/cuda/network/network.h"
#include "backends/cuda/network/products.h"

#include <pthread.h>

enum { LEAST = 1 << 20, MOST_EARLIER = 40 }; /* each is at least twice the one before */

struct dr_cuda_network {
    pthread_mutex_t lock; /* of the scratch memory */
    void *scratch;
    size_t bytes;
    void *earlier[MOST_EARLIER]; /* what was too small: graphs (replay.c) may still use it */
    int grown;
    pthread_mutex_t opening; /* of the products */
    struct dr_cuda_products *products;
};

dr_status dr_cuda_network_open(dr_cuda *gpu) {
    void *memory = NULL;
    DR_TRY(dr_allocate_zero(sizeof(struct dr_cuda_network), "what a GPU keeps for networks", &memory));
    gpu->network = memory;
    pthread_mutex_init(&gpu->network->lock, NULL);
    pthread_mutex_init(&gpu->network->opening, NULL);
    return DR_OK;
}

void dr_cuda_network_close(dr_cuda *gpu) {
    if (!gpu->network) return;
    if (gpu->network->scratch) cudaFree(gpu->network->scratch);
    for (int i = 0; i < gpu->network->grown; i++) cudaFree(gpu->network->earlier[i]);
    dr_cuda_products_close(gpu->network->products);
    pthread_mutex_destroy(&gpu->network->lock);
    pthread_mutex_destroy(&gpu->network->opening);
    dr_release(gpu->network);
    gpu->network = NULL;
}

static dr_status grow(const dr_cuda *gpu, struct dr_cuda_network *network, size_t bytes) {
    size_t room = network->bytes > 0 ? 2 * network->bytes : LEAST;
    void *memory = NULL;
    if (bytes <= network->bytes) return DR_OK;
    if (bytes > room) room = bytes;
    DR_TRY(dr_cuda_refuse_capture(gpu, "a first call of its size, which allocates,"));
    DR_CUDA(cudaMalloc(&memory, room));
    if (network->scratch) network->earlier[network->grown++] = network->scratch;
    network->scratch = memory;
    network->bytes = room;
    return DR_OK;
}

dr_status dr_cuda_scratch_take(dr_backend *backend, size_t bytes, void **memory) {
    const dr_cuda *gpu = dr_cuda_of(backend);
    struct dr_cuda_network *network = gpu->network;
    pthread_mutex_lock(&network->lock);
    const dr_status status = grow(gpu, network, bytes);
    if (status != DR_OK) pthread_mutex_unlock(&network->lock);
    *memory = network->scratch;
    return status;
}

void dr_cuda_scratch_give(dr_backend *backend) {
    pthread_mutex_unlock(&dr_cuda_of(backend)->network->lock);
}

dr_status dr_cuda_products_of(dr_backend *backend, struct dr_cuda_products **products) {
    struct dr_cuda_network *network = dr_cuda_of(backend)->network;
    dr_status status = DR_OK;
    pthread_mutex_lock(&network->opening);
    if (!network->products) status = dr_cuda_products_open(dr_cuda_of(backend), &network->products);
    *products = network->products;
    pthread_mutex_unlock(&network->opening);
    return status;
}
