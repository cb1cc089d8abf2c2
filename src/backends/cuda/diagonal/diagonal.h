/* The diagonal scan A_t = alpha A_{t-1} + b key * key on a GPU, what it makes of keys and queries, and back.
 *
 *     ends      every chunk from zero: its A at the end, the product of its alphas      parallel over chunks
 *     entries   A before every chunk, and after the last                                 chunk after chunk
 *     replay    every chunk from its entry: write keys, q~                               parallel over chunks
 *
 * and the same three steps for the gradient of A, last chunk first. Where no token needs a sum over channels the three are one
 * pass (diagonal_chain.cuh). Chunks are those of chunkwise.h. All of A is float. */
#ifndef DR_CUDA_DIAGONAL_H
#define DR_CUDA_DIAGONAL_H

#include "backends/cuda/plan/chunkwise.h"

/* What key_scan.cu takes of a row beside vectors. */
typedef struct {
    float alpha, gain;
    float settle;     /* times B * key is to be added to squashed */
    uint16_t unit[2]; /* of 64 channels of squashed, [64][128] whole numbers of 16 bits here (shared_exponent.cuh): the upper
                         halves of two floats */
} dr_cuda_scan_row;

/* What the rows' backward leaves for the scan's, [tokens][H][K] float, sums over the value heads of a key head; and what the
 * scan's backward needs beside it. Those that the rule does not need are NULL. */
typedef struct {
    float *key;
    float *query; /* gradients of the inputs key and query as far as they do not come through the scan; NULL: the query's is
                     complete and where it belongs */
    float *dots;  /* of stages inside: what the two blocks of a chunk with K of 128 tell one another, [slots][H][2][2][64] */
    float *squashed, *morrison, *read_query; /* of what the scan made */
    union {
        float *settle;         /* [tokens][H] times B * key is to be added to squashed; NULL: nothing is */
        dr_cuda_scan_row *row; /* [slots][H][64] with dr_cuda_diagonal_rows_back */
    };
    float *dot;        /* [tokens][H] gradient of key . write key, where gains are made of it before the chunks; else NULL */
    float *end, *exit; /* [slots][H][K] gradient of A before a chunk, from zero after it; after a chunk */
    float *ridge;      /* [slots][H][K] partial sums */
    float *centre;     /* [slots][H] partial sums; of stages inside, [slots][K/64][H] */
} dr_cuda_diagonal_gradients;

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch of the forward, without entry: that may be saved; dr_cuda_diagonal_entry_bytes. */
void dr_cuda_diagonal_lay(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_chain *chain);
size_t dr_cuda_diagonal_entry_bytes(const dr_cuda_chunk_plan *plan);
/* Whether the forward is a single pass. */
bool dr_cuda_diagonal_chained(const dr_cuda_chunk_plan *plan);
/* Whether the stages that take keys can make the scan on their way: write keys B * key of keys that are read as they are,
 * behind the decay, a value head a key head, gains that do not wait for them, all on sm_90a in 16 bits. */
bool dr_cuda_diagonal_inside(const dr_cuda_chunk_plan *plan);
/* Whether the backward's stages do. */
bool dr_cuda_diagonal_inside_back(const dr_cuda_chunk_plan *plan);
/* Whether it is a kernel of its own (key_scan.cu), for which gradients.cu leaves what write keys get in 16 bits. */
bool dr_cuda_diagonal_rows_back(const dr_cuda_chunk_plan *plan);
/* The tensors that rows.h names, which the scan fills: sets plan->rows.input[DR_SOURCE_SQUASHED].at .. key_dot. A forward that
 * a backward follows saves them. */
void dr_cuda_diagonal_lay_made(dr_cuda_chunk_plan *plan, dr_arena *arena);
size_t dr_cuda_diagonal_dots_bytes(const dr_cuda_chunk_plan *plan); /* of theirs */
void dr_cuda_diagonal_lay_gradients(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_diagonal_gradients *gradients);

/* cu: as dr_cuda_chunk_tensors has it. */
dr_status dr_cuda_diagonal_forward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                   dr_cuda_stream stream);
dr_status dr_cuda_diagonal_chain_forward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                         dr_cuda_stream stream); /* which it calls where it can */

/* Before chunks make A for one another, or its gradient: none has told anything; and what is before a sequence of no token goes
 * behind it. */
dr_status dr_cuda_diagonal_begin(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                 dr_cuda_stream stream);
/* The same before prepare makes A (diagonal_rows.cuh); made: what it raises beside the scan (chunkwise.h), or NULL. */
dr_status dr_cuda_diagonal_begin_inside(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                        unsigned *made, dr_cuda_stream stream);

/* The chain of A's gradient, whose final is that of the initial A, in the memory of that of A. */
dr_cuda_diagonal_chain dr_cuda_diagonal_turn(const dr_cuda_diagonal_chain *chain, const dr_cuda_diagonal_gradients *gradients,
                                             const float *d_final, float *d_initial);

/* From ends to entries, chunk after chunk; from, to [sequences][H][K] or NULL. backward: from the last chunk on. */
dr_status dr_cuda_diagonal_carry(const dr_cuda_chunk_plan *plan, const int64_t *cu, const float *end, const float *product,
                                 const float *from, bool backward, float *carried, float *to, dr_cuda_stream stream);

/* Adds to what the rows' backward gave: gradients of key, query, scan gain, scan log decay (tied: beta, log decay, which are
 * added to), partial sums of ridge and centre, and of the initial A. */
dr_status dr_cuda_diagonal_backward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                    const dr_cuda_diagonal_gradients *gradients, const float *d_final, float *d_initial,
                                    dr_cuda_stream stream);

/* What it calls where only write keys B * key come of the scan: all but the sum of the centres' parts. */
dr_status dr_cuda_diagonal_chain_backward(const dr_cuda_chunk_plan *plan, const int64_t *cu,
                                          const dr_cuda_diagonal_chain *chain, const dr_cuda_diagonal_gradients *gradients,
                                          const float *d_final, float *d_initial, dr_cuda_stream stream);

/* to[i] = sum over rows of partial[row][i], in a fixed order; 0 where zero_at[i] is -infinity (zero_at NULL: nowhere). */
dr_status dr_cuda_sum_rows(const float *partial, int64_t rows, int64_t columns, const float *zero_at, float *to,
                           dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
