/* The engines of the GPU as recurrence.c calls them: token by token, chunkwise, decoding. Entries are called with checked
 * arguments, the backend's device current, and rules, heads and sizes that recurrence.c lets through. Structs of states are
 * never NULL. */
#ifndef DR_CUDA_ENGINES_H
#define DR_CUDA_ENGINES_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills forward, backward and saved. */
dr_status dr_cuda_recurrent_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_cuda_recurrent_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace);
dr_status dr_cuda_recurrent_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace);
/* Tokens from one saved state to the next. */
int64_t dr_cuda_recurrent_chunk(const dr_recurrence *recurrence);
dr_status dr_cuda_recurrent_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                     int64_t sequence, int64_t boundary, const dr_mutable_states *states);

/* DR_ERROR_UNSUPPORTED with a sentence for what the chunkwise engine does not take; DR_PATH_BEST then goes token by token. */
dr_status dr_cuda_chunkwise_check(const dr_backend *backend, const dr_recurrence *recurrence);
/* The others as above. */
dr_status dr_cuda_chunkwise_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_cuda_chunkwise_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                    void *workspace);
dr_status dr_cuda_chunkwise_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                     const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace);
int64_t dr_cuda_chunkwise_chunk(const dr_backend *backend, const dr_recurrence *recurrence);
dr_status dr_cuda_chunkwise_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                     int64_t sequence, int64_t boundary, const dr_mutable_states *states);
/* Like snprintf. */
int dr_cuda_chunkwise_kernel(const dr_backend *backend, const dr_recurrence *recurrence, char *text, size_t size);

/* Fills decode. */
dr_status dr_cuda_decode_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
/* slots NULL: sequence i has slot i, one token each. */
dr_status dr_cuda_decode(const dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                         const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
