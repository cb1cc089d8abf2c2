/* The recurrence on a GPU: the entries of the table of operations, as ops/operations.h says. */
#ifndef DR_CUDA_RECURRENCE_H
#define DR_CUDA_RECURRENCE_H

#include "backends/cuda/cuda.h"

dr_status dr_cuda_recurrence_plan(dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_cuda_recurrence_forward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                     const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                     void *workspace);
dr_status dr_cuda_recurrence_backward(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                      const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                      const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace);
dr_status dr_cuda_recurrence_decode(dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                    const dr_mutable_states *states, void *o, void *workspace);
dr_status dr_cuda_recurrence_decode_slots(dr_backend *backend, const dr_recurrence *recurrence, const dr_slots *slots,
                                          const dr_inputs *inputs, const dr_mutable_states *states, void *o, void *workspace);
int64_t dr_cuda_recurrence_chunk(const dr_backend *backend, const dr_recurrence *recurrence);
dr_status dr_cuda_recurrence_boundary(dr_backend *backend, const dr_recurrence *recurrence, const void *saved, int64_t sequence,
                                      int64_t boundary, const dr_mutable_states *states);
int dr_cuda_recurrence_kernel(const dr_backend *backend, const dr_recurrence *recurrence, bool decode, char *text, size_t size);

#endif
