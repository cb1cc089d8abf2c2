/* The kernels of forms: what a caller's tensor becomes before the recurrence reads it, and where gradients and states go. */
#ifndef DR_CUDA_FORMS_TENSORS_H
#define DR_CUDA_FORMS_TENSORS_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { DR_CUDA_MADE_AS_IT_IS, DR_CUDA_MADE_NORMALIZED, DR_CUDA_MADE_SIGMOID, DR_CUDA_MADE_DECAY } dr_cuda_made;

/* A tensor of each token as the caller has it and as the recurrence does: [tokens][each rows][size], of which the recurrence's
 * is dense. The last axes of `each` rows are heads. */
typedef struct {
    dr_cuda_made made;
    dr_dtype dtype, own;          /* element types, the caller's and the recurrence's */
    int64_t rows, each;           /* of all tokens, of one */
    int64_t token, d_token;       /* elements from a token to the next of the caller's tensor, of its gradient */
    int32_t heads, size;          /* rows of different heads follow one another */
    float epsilon;                /* normalized: x / sqrt(x . x + epsilon) */
    float factor;                 /* sigmoid: factor sg(x) */
    bool bounded;                 /* decay: lower_bound sg(exp(A_log) (x + dt_bias)), else -exp(A_log) sp(x + dt_bias) */
    float lower_bound;            /* sg, sp: the sigmoid and the softplus */
    const float *A_log, *dt_bias; /* [heads], [heads][size]; NULL: zero */
    const int32_t *from;          /* NULL, or: rows of sequences whose slot is negative are left alone, */
    int64_t from_rows;            /* so many to a sequence */
} dr_cuda_tensor;

/* The recurrence's tensor, made of the caller's. */
dr_status dr_cuda_tensor_make(const dr_cuda_tensor *tensor, const void *given, void *dense, dr_cuda_stream stream);
/* The gradient of the caller's tensor `given` from that of the recurrence's. */
dr_status dr_cuda_tensor_return(const dr_cuda_tensor *tensor, const void *given, const void *d_dense, void *d_given,
                                dr_cuda_stream stream);
/* The gradients of A_log and dt_bias, NULL where not wanted, of a raw decay; partial: dr_cuda_decay_sums_bytes. */
dr_status dr_cuda_decay_sums(const dr_cuda_tensor *tensor, const void *given, const float *d_dense, void *partial,
                             float *d_A_log, float *d_dt_bias, dr_cuda_stream stream);
size_t dr_cuda_decay_sums_bytes(int64_t heads, int64_t size);

/* States of `count` sequences that move from one place to another. State i is read from slot i + read_first, or from
 * reads[i]; written to slot i + write_first, or to writes[i]. Each is [heads][rows][columns] where it is read and, turned,
 * [heads][columns][rows] where it is written. A state whose slot to read is negative is zero, or not written where `keep` is
 * set; one whose slot to write is negative goes nowhere; nor does one of a sequence, state i being of i / per_sequence, whose
 * slot in `only` is negative. */
typedef struct {
    int64_t count, heads;
    int32_t rows, columns;
    bool turned, keep;
    const int32_t *reads, *writes, *only;
    int64_t read_first, write_first, per_sequence;
} dr_cuda_state_moves;
dr_status dr_cuda_move_states(const dr_cuda_state_moves *moves, const float *from, float *to, dr_cuda_stream stream);

/* Slots of decoding in a compact pool, [sequences] states as they begin and behind them one for each token: where each
 * sequence starts, and where the state after each token goes. -1 stays -1. */
dr_status dr_cuda_compact_slots(const int32_t *from, const int32_t *to, int64_t sequences, int64_t tokens,
                                int32_t *compact_from, int32_t *compact_to, dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
