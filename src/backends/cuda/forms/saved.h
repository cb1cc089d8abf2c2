/* Taking states out of what a forward saved. */
#ifndef DR_CUDA_FORMS_SAVED_H
#define DR_CUDA_FORMS_SAVED_H

#include "backends/cuda/engine/engines.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DR_ERROR_UNSUPPORTED where what the call's forward saves is rounded to 16 bits, DR_ERROR_ARGUMENT where it saves nothing. */
dr_status dr_cuda_find_saved(const dr_cuda_call *call, dr_cuda_saved_states *saved);

/* The states of a slot; NULL where not wanted. */
dr_status dr_cuda_read_saved(const dr_cuda_saved_states *saved, const dr_recurrence *recurrence, bool value_first, int64_t slot,
                             const dr_mutable_states *states, dr_cuda_stream stream);

/* Those before the rows that the checkpoints name, to their slots of the pool. */
dr_status dr_cuda_read_checkpoints(const dr_cuda_saved_states *saved, const dr_recurrence *recurrence, bool value_first,
                                   const dr_cuda_layout *layout, const dr_slots *slots, const dr_mutable_states *pool,
                                   dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
