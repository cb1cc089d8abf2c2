/* The backward of the chunkwise engine on a GPU, after what prepare made is there (chunkwise.h):
 *
 *     reverse    chunk after chunk, last first    dY = P'^T dO + X dS'      dS = D dS' + Q~^T dO - R~^T diag(c) dY
 *     updates    every chunk at once              U = A (Z - diag(c) R~ S)      G = scale dO U^T, M = s dY U^T,
 *                                                 masked and, with scalar decay, decayed      gradients of values
 *     keys       every chunk at once              what q~, r and w get: from S, from dS', from the pairs of the chunk;
 *                                                 led on to the inputs where nothing is to be summed (rows.direct)
 *     decay      every chunk at once              d log decay
 *     rows       every token at once              gradients of gains, and of the inputs that keys has not led to,
 *                                                 summed over the value heads of a key head in order
 *     sum_heads  every token at once              of inputs that keys has led to, the same sum, of what it left of each
 *                                                 value head
 *
 * gradients is updates, keys and decay in one, on sm_90a for the rules that it fits. Where rows read nothing and the forward
 * took all from the inputs (plan.linear_back), so does the backward: reverse makes dS' alone, gradients_linear the rest.
 *
 * s = c, or 1 where |c| < 2^-20: G and M are rounded once and serve both of their products. In updates, keys and what they
 * leave, a query stands in the last row of its token, so that readers and writers have the same 64 rows. */
#ifndef DR_CUDA_BACKWARD_H
#define DR_CUDA_BACKWARD_H

#include "backends/cuda/diagonal/diagonal.h"
#include "backends/cuda/plan/chunkwise.h"

/* [blocks][...] as in chunkwise.h. T: the storage type. */
typedef struct {
    void *d_exit;     /* [Vp][Kp] T dS': gradient of the state after the chunk */
    void *d_update;   /* [64][Vp] T dY; not with plan.linear_back */
    void *update;     /* [64][Vp] T U */
    void *d_score;    /* [64][64] T G */
    void *d_erase;    /* [64][64] T M; NULL where no row reads */
    float *d_query;   /* [64][Kp] of q~; this and the next two NULL where keys leads them on */
    float *d_read;    /* [64][Kp] minus the gradient of r without its gain: r gets -c of it, c gets -r . it */
    float *d_write;   /* [64][Kp] of w */
    float *value_dot; /* [64] sum over V of (gate) value dz */
    float *write_dot; /* [64] sum over V of u dz, which is w . its gradient */
    /* by 64 channels */
    void *heads_part;   /* T, input after input [tokens][..][HV][K]: gradients of vectors of key heads, of each value head
                         * (backward.c); NULL: heads have key heads of their own, or the gradients go through floats */
    float *decay_part;  /* [Kp/64][64] scalar decay: of every row's decay (decay.cu) */
    float *gain_part;   /* [Kp/64][64] -r . d_read, where keys leads the rows' gradients */
    float *lambda_part; /* [Kp/64][64] of lambda, likewise; NULL: no row reads the query */
    float *write_part;  /* [Kp/64][64] w . d_write, where keys.cu writes it for the scan's backward; */
    float *square_part; /* [Kp/64][64] w . w */
    float *scan_gain_part, *scan_decay_part; /* [Kp/64][64] of the diagonal scan's gain and alpha, where keys makes its backward
                                              * with a decay of each channel */
    /* of the parts of a cut sequence, as local and entry of the forward: the gradient before a part that ended with zero, and
     * the gradient after it */
    float *local, *between;
    float *passage; /* with plan.linear: of every part, its decay */
    /* per token */
    float *d_log_decay;  /* [tokens][HV] where a constant decay sums them */
    float *d_correction; /* [tokens][H] */
} dr_cuda_backward_tensors;

typedef struct {
    dr_cuda_chunk_plan plan; /* with inputs, gradients and what the diagonal scan made */
    dr_cuda_chunk_tensors chunk;
    dr_cuda_backward_tensors back;
    dr_cuda_diagonal_gradients diagonal;
    dr_cuda_diagonal_chain chain; /* of the gradient of A */
    const void *saved;            /* [blocks][Vp][Kp] T states before each chunk */
    const void *d_o;              /* [tokens][HV][V] T */
    const float *initial, *d_final;
    float *d_initial; /* [sequences][HV][K][V] or NULL, all three */
} dr_cuda_backward_call;

#ifdef __cplusplus
extern "C" {
#endif

void dr_cuda_backward_lay(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_backward_tensors *tensors);
/* All stages but prepare and the diagonal scan's; call: everything filled in. */
dr_status dr_cuda_backward_run(const dr_cuda_backward_call *call, dr_cuda_stream stream);

/* The stages. */
dr_status dr_cuda_backward_reverse(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_updates(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_keys(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_keys_channel(const dr_cuda_backward_call *call, dr_cuda_stream stream); /* keys calls it */
/* Updates, keys and decay in one, where that fits. */
bool dr_cuda_backward_fuses(const dr_cuda_chunk_plan *plan);
dr_status dr_cuda_backward_gradients(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_gradients_linear(const dr_cuda_backward_call *call, dr_cuda_stream stream); /* gradients calls it */
/* The diagonal scan's backward behind gradients (dr_cuda_diagonal_rows_back). */
dr_status dr_cuda_backward_key_scan(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_decay(const dr_cuda_backward_call *call, dr_cuda_stream stream);
dr_status dr_cuda_backward_rows(const dr_cuda_backward_call *call, dr_cuda_stream stream);
/* Adds an input's parts of value heads up, in their order; rows: of all tokens and steps. */
dr_status dr_cuda_backward_sum_heads(const dr_cuda_chunk_plan *plan, const void *parts, int64_t rows, void *gradient,
                                     dr_cuda_stream stream);

#ifdef __cplusplus
}
#endif
#endif
