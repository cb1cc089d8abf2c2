/* The chunkwise engine's entries (engines.h): its stages in order. */
#include "backends/cuda/engines.h"

dr_status dr_cuda_chunkwise_check(const dr_backend *backend, const dr_recurrence *recurrence) {
    (void)recurrence;
    return dr_fail(DR_ERROR_UNSUPPORTED, "backend %s goes token by token only", backend->ops->name);
}

dr_status dr_cuda_chunkwise_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory) {
    (void)memory;
    return dr_cuda_chunkwise_check(backend, recurrence);
}

dr_status dr_cuda_chunkwise_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace) {
    (void)inputs, (void)initial, (void)o, (void) final, (void)saved, (void)workspace;
    return dr_cuda_chunkwise_check(backend, recurrence);
}

dr_status dr_cuda_chunkwise_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace) {
    (void)inputs, (void)initial, (void)saved, (void)d_o, (void)d_final, (void)d_inputs, (void)d_initial, (void)workspace;
    return dr_cuda_chunkwise_check(backend, recurrence);
}

int64_t dr_cuda_chunkwise_chunk(const dr_backend *backend, const dr_recurrence *recurrence) {
    (void)backend, (void)recurrence;
    return 1;
}

dr_status dr_cuda_chunkwise_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                     int64_t sequence, int64_t boundary, const dr_mutable_states *states) {
    (void)saved, (void)sequence, (void)boundary, (void)states;
    return dr_cuda_chunkwise_check(backend, recurrence);
}

int dr_cuda_chunkwise_kernel(const dr_backend *backend, const dr_recurrence *recurrence, char *text, size_t size) {
    (void)recurrence;
    return snprintf(text, size, "cuda chunkwise %s", backend->isa);
}
