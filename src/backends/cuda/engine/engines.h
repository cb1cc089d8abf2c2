/* The engines of the GPU as recurrence.c calls them: token by token, chunkwise, decoding. Entries are called with checked
 * arguments, the device current, and rules, heads and sizes that recurrence.c lets through. */
#ifndef DR_CUDA_ENGINES_H
#define DR_CUDA_ENGINES_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/plan/chunkwise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { DR_CUDA_RECURRENT, DR_CUDA_CHUNKWISE, DR_CUDA_WIDENED } dr_cuda_engine_kind;

/* What a plan keeps: all that calls of one kind have in common. */
typedef struct {
    dr_cuda_engine_kind kind;
    dr_cuda_rows rows;               /* in the storage type, of the engine token by token and of decoding */
    dr_cuda_chunk_plan even, packed; /* of the chunkwise engine, if it is chosen, for calls without and with boundaries */
} dr_cuda_engine;

/* A call on its way to an engine. Structs of states are never NULL. */
typedef struct {
    const dr_cuda *gpu; /* with the call's stream */
    dr_dtype storage;   /* of vectors */
    const dr_recurrence *recurrence;
    const dr_cuda_engine *engine;
    const dr_boundaries *boundaries;
    const dr_inputs *inputs;
    const dr_states *initial;
    void *o;
    const dr_mutable_states *final;
    void *saved;
    size_t saved_bytes;
    void *workspace;
    const void *d_o;
    const dr_states *d_final;
    const dr_input_gradients *d_inputs;
    const dr_mutable_states *d_initial;
} dr_cuda_call;

static inline bool dr_cuda_packed(const dr_cuda_call *call) {
    return call->boundaries->at != NULL;
}

static inline bool dr_cuda_begins_at_16(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

/* What a forward saved of its states, where they are floats: S of a slot is [HV, K, V] with these distances, A [H, K]. */
typedef struct {
    const float *S, *A; /* A: NULL without a diagonal scan */
    int64_t slot, scan_slot, head, key, value;
    int64_t chunk;  /* tokens from a slot to the next */
    int64_t chunks; /* slots of each sequence; 0: those of a sequence begin at its first row / chunk + its number */
} dr_cuda_saved_states;

/* The bytes of calls without or with boundaries: raise forward and backward of *memory to them; saved: the formula. */
void dr_cuda_recurrent_plan(const dr_cuda *gpu, const dr_recurrence *recurrence, bool packed, dr_recurrence_memory *memory,
                            dr_saved_size *saved);
dr_status dr_cuda_recurrent_forward(const dr_cuda_call *call);
dr_status dr_cuda_recurrent_backward(const dr_cuda_call *call);
/* Tokens from one saved state to the next. */
int64_t dr_cuda_recurrent_chunk(const dr_recurrence *recurrence);
dr_cuda_saved_states dr_cuda_recurrent_saved(const dr_cuda_call *call);

/* DR_ERROR_UNSUPPORTED with a sentence for what the chunkwise engine does not take; DR_PATH_BEST then goes token by token. */
dr_status dr_cuda_chunkwise_make(const dr_cuda *gpu, dr_dtype storage, const dr_recurrence *recurrence, bool packed,
                                 dr_cuda_chunk_plan *plan);
/* The others as above. longest: the caller's bound, 0: there is none. */
void dr_cuda_chunkwise_plan(const dr_cuda_chunk_plan *plan, const dr_recurrence *recurrence, bool packed, int64_t longest,
                            dr_recurrence_memory *memory, dr_saved_size *saved);
dr_status dr_cuda_chunkwise_forward(const dr_cuda_call *call);
dr_status dr_cuda_chunkwise_backward(const dr_cuda_call *call);
dr_cuda_saved_states dr_cuda_chunkwise_saved(const dr_cuda_call *call);

/* One token of each sequence, or from slots; slots NULL: sequence i has slot i. It needs no workspace. */
dr_status dr_cuda_decode(const dr_cuda_call *call, const dr_slots *slots, const dr_mutable_states *states);
/* The kernel of such a call with one token each, whose tensors begin at 16 bytes. */
const char *dr_cuda_decode_kernel(const dr_cuda *gpu, const dr_recurrence *recurrence, dr_dtype storage);

#ifdef __cplusplus
}
#endif
#endif
