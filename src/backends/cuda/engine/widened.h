/* The chunkwise engine in float32 for vectors that are stored in 16 bits: they are widened into the workspace, the engine runs
 * as for float32, and what it gives is rounded once. Chunks round keys, states and updates more often than a loop over tokens
 * does; this is for where that is too much:
 *
 * - fp16, whose bits are worth something: it is taken for its precision;
 * - rows that take full steps, a gain 1 / r . w, or one where a key is read and written, or where there are other rows: what
 *   they leave of a state is a small difference;
 * - heads of fewer than 64 key or value channels: a gain, a decay and the scan's centre get sums over a head's channels, and
 *   over few of them rounding does not average out;
 * - normalizers: the gradient of the scan is a sum over all tokens and channels whose parts cancel. Squashed keys without decay
 *   or in gains made of them need none (tests/test_chunk_rounding.c). */
#ifndef DR_CUDA_WIDENED_H
#define DR_CUDA_WIDENED_H

#include "backends/cuda/engine/engines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether calls go this way; the plan's paths then say F32 (dr_plan_path). */
bool dr_cuda_widens(dr_dtype storage, const dr_recurrence *recurrence);

/* Adds what lies before the engine's workspaces to their bytes. */
void dr_cuda_widened_plan(const dr_recurrence *recurrence, dr_recurrence_memory *memory);
dr_status dr_cuda_widened_forward(const dr_cuda_call *call);
dr_status dr_cuda_widened_backward(const dr_cuda_call *call);

/* count elements from one type to the other, narrow being DR_BF16 or DR_F16; rounded to nearest, ties to even. */
dr_status dr_cuda_widen(dr_dtype narrow, const void *from, int64_t count, float *to, dr_cuda_stream stream);
dr_status dr_cuda_narrow(dr_dtype narrow, const float *from, int64_t count, void *to, dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
