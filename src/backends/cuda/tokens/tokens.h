/* The recurrence token by token on a GPU: what the kernels of tokens.cu are told. One description serves whole sequences (from
 * states of sequences to states of sequences, keeping some on the way for a backward) and decoding from slots of a pool. */
#ifndef DR_CUDA_TOKENS_H
#define DR_CUDA_TOKENS_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    dr_cuda_rows rows;
    dr_cuda_layout layout;
    /* S [sequences or slots, HV, K, V], A [sequences or slots, H, K]; NULL: zero, or not wanted. initial may be final. */
    const float *initial, *initial_scan;
    float *final, *final_scan;
    void *o; /* [rows, HV, V] in the storage type */
    /* States before tokens 0, chunk, 2 chunk, .. of each sequence, in slots one after another: those of sequence i from
     * begin / chunk + i on. [slots, HV, K, V], [slots, H, K]; NULL: not kept. */
    float *saved, *saved_scan;
    int64_t chunk;
    /* Decoding from a pool; from NULL: no pool. As in dr_slots. */
    const int32_t *from, *to;
    bool decodes;             /* from states to states, equally many tokens of each sequence */
    bool whole, whole_output; /* states, o: 4 columns of V begin at 16 bytes, and are read and written at once */
} dr_cuda_tokens;

/* Outputs and S; then A, which the first kernel still reads. */
dr_status dr_cuda_tokens_forward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call);
/* One token of each sequence, S and outputs only. */
dr_status dr_cuda_tokens_decode(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call);
/* The kernel that does it. */
const char *dr_cuda_tokens_decode_kernel(const dr_cuda *gpu, const dr_cuda_tokens *call);
/* The same, through shared memory, which pays where there are so many states. */
bool dr_cuda_tokens_are_many(const dr_cuda *gpu, const dr_cuda_tokens *call);
dr_status dr_cuda_tokens_many(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call);
/* A alone. */
dr_status dr_cuda_tokens_scan(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call);

#ifdef __cplusplus
}
#endif
#endif
