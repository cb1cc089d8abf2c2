/* The chunkwise engine in float32 for vectors that are stored in 16 bits: they are widened into the workspace, the engine runs
 * as for float32, and what it gives is rounded once. Chunks round keys, states and updates more often than a loop over tokens
 * does; this is for where that is too much:
 *
 * - fp16, whose bits are worth something: it is taken for its precision;
 * - rows that take full steps, a gain 1 / r . w, or one where a key is read and written: what they leave of a state is a small
 *   difference;
 * - squashed keys without decay or in gains made of them, and normalizers: the gradient of the scan is a sum over all tokens
 *   and channels whose parts cancel. */
#ifndef DR_CUDA_WIDENED_H
#define DR_CUDA_WIDENED_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a call of the backend goes this way. */
bool dr_cuda_widens(const dr_backend *backend, const dr_recurrence *recurrence);

/* As the entries of engines.h without "widened". */
dr_status dr_cuda_widened_plan(const dr_backend *backend, const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_cuda_widened_forward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                  const dr_states *initial, void *o, const dr_mutable_states *final, void *saved,
                                  void *workspace);
dr_status dr_cuda_widened_backward(const dr_backend *backend, const dr_recurrence *recurrence, const dr_inputs *inputs,
                                   const dr_states *initial, const void *saved, const void *d_o, const dr_states *d_final,
                                   const dr_input_gradients *d_inputs, const dr_mutable_states *d_initial, void *workspace);
dr_status dr_cuda_widened_boundary(const dr_backend *backend, const dr_recurrence *recurrence, const void *saved,
                                   int64_t sequence, int64_t boundary, const dr_mutable_states *states);
int dr_cuda_widened_kernel(const dr_backend *backend, const dr_recurrence *recurrence, char *text, size_t size);

/* count elements from one type to the other, narrow being DR_BF16 or DR_F16; rounded to nearest, ties to even. */
dr_status dr_cuda_widen(dr_dtype narrow, const void *from, int64_t count, float *to, cudaStream_t stream);
dr_status dr_cuda_narrow(dr_dtype narrow, const float *from, int64_t count, void *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
