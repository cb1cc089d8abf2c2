/* The gradients of the recurrence token by token on a GPU. Two kernels:
 *
 *     states    a block takes 32 columns of a value head's state back through its tokens, chunk after chunk from the states
 * that the forward kept, and leaves what its columns give to the keys, the gain and the decay of every row inputs    a block
 * takes a key head back through its tokens: sums those parts in order, over columns and value heads, leads them through the
 * maps and the diagonal scan, and writes the gradients of the inputs
 *
 * All of it is float; the same order of sums every time. It is the engine for what the chunkwise one does not take and the one
 * that it is held against, not the fast one. */
#ifndef DR_CUDA_TOKENS_BACK_H
#define DR_CUDA_TOKENS_BACK_H

#include "backends/cuda/tokens/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    dr_cuda_tokens forward; /* inputs with their gradients, layout, saved states; initial_scan */
    const void *d_o;        /* [rows, HV, V] in the storage type */
    /* S [sequences, HV, K, V], A [sequences, H, K]; NULL: zero, or not wanted */
    const float *d_final, *d_final_scan;
    float *d_initial, *d_initial_scan;

    /* workspace: of each slice of 32 columns, R = rows steps; NULL where the rule has none */
    int32_t slices;
    int32_t blocks;                 /* that the first kernel runs in, each with a replay of its own */
    float *replay;                  /* [blocks][chunk steps + 1][KT][32] the state before each row; one more to put aside */
    float *replay_row;              /* [blocks][chunk steps][2][32] u and e of each row */
    float *replay_scan;             /* [blocks][chunk][256] A before each token */
    float *d_read, *d_write;        /* [slices][R][HV][K] */
    float *d_query;                 /* [slices][rows][HV][K] of q~ */
    float *d_decay;                 /* [slices][rows][HV][K] alpha times the gradient of alpha, by channel whatever the decay */
    float *d_gain;                  /* [slices][R][HV] */
    float *d_value;                 /* [R][HV][V] of z */
    float *scan;                    /* [rows + sequences][H][K] A before each token, and the last */
    double *d_parameter[DR_INPUTS]; /* [sequences][count] partial sums; NULL: not wanted, or no parameter */
    int64_t parameter_count[DR_INPUTS];
} dr_cuda_tokens_back;

/* The two kernels, in this order. */
dr_status dr_cuda_states_backward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens_back *call);
dr_status dr_cuda_inputs_backward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens_back *call);
#ifdef __cplusplus
}
#endif
#endif
