/* The stages of the recurrence on one chunk, in the order in which recurrence_sequence.c runs them. */
#ifndef DR_CPU_RECURRENCE_STAGES_H
#define DR_CPU_RECURRENCE_STAGES_H

#include "backends/cpu/isa/isa.h"
#include "backends/cpu/isa/lanes.h"
#include "backends/cpu/recurrence_plan.h"

#define dr_chunk_load_keys         DR_ISA_NAME(dr_chunk_load_keys)
#define dr_chunk_load_rows         DR_ISA_NAME(dr_chunk_load_rows)
#define dr_chunk_clear_keys        DR_ISA_NAME(dr_chunk_clear_keys)
#define dr_chunk_clear_rows        DR_ISA_NAME(dr_chunk_clear_rows)
#define dr_chunk_store_keys        DR_ISA_NAME(dr_chunk_store_keys)
#define dr_chunk_store_rows        DR_ISA_NAME(dr_chunk_store_rows)
#define dr_chunk_scan_keys         DR_ISA_NAME(dr_chunk_scan_keys)
#define dr_chunk_scan_keys_back    DR_ISA_NAME(dr_chunk_scan_keys_back)
#define dr_chunk_scan_matrix       DR_ISA_NAME(dr_chunk_scan_matrix)
#define dr_chunk_scan_matrix_back  DR_ISA_NAME(dr_chunk_scan_matrix_back)
#define dr_system_solve            DR_ISA_NAME(dr_system_solve)
#define dr_system_iterate          DR_ISA_NAME(dr_system_iterate)
#define dr_chunk_map_decay         DR_ISA_NAME(dr_chunk_map_decay)
#define dr_chunk_map_rows          DR_ISA_NAME(dr_chunk_map_rows)
#define dr_chunk_map_rows_back     DR_ISA_NAME(dr_chunk_map_rows_back)
#define dr_chunk_prepare           DR_ISA_NAME(dr_chunk_prepare)
#define dr_chunk_scan              DR_ISA_NAME(dr_chunk_scan)
#define dr_chunk_output            DR_ISA_NAME(dr_chunk_output)
#define dr_chunk_solve             DR_ISA_NAME(dr_chunk_solve)
#define dr_chunk_scan_back         DR_ISA_NAME(dr_chunk_scan_back)
#define dr_chunk_pass_back         DR_ISA_NAME(dr_chunk_pass_back)
#define dr_chunk_gradients         DR_ISA_NAME(dr_chunk_gradients)
#define dr_chunk_decay_scalar      DR_ISA_NAME(dr_chunk_decay_scalar)
#define dr_chunk_decay_channel     DR_ISA_NAME(dr_chunk_decay_channel)
#define dr_tokens_forward          DR_ISA_NAME(dr_tokens_forward)
#define dr_tokens_backward         DR_ISA_NAME(dr_tokens_backward)
#define dr_matrix_multiply         DR_ISA_NAME(dr_matrix_multiply)
#define dr_matrix_transpose        DR_ISA_NAME(dr_matrix_transpose)
#define dr_ahead_clear             DR_ISA_NAME(dr_ahead_clear)
#define dr_ahead_add               DR_ISA_NAME(dr_ahead_add)
#define dr_ahead_fetch             DR_ISA_NAME(dr_ahead_fetch)
#define dr_chunk_expect_keys       DR_ISA_NAME(dr_chunk_expect_keys)
#define dr_chunk_expect_rows       DR_ISA_NAME(dr_chunk_expect_rows)
#define dr_cpu_recurrence_kernels_ DR_ISA_NAME(dr_cpu_recurrence_kernels)

/* ---- recurrence_load.c: tensors to chunk and back ---------------------------------------------------------------------- */

/* Inputs that belong to the key head (and what a tied scan takes from its value head), those of a value head. */
void dr_chunk_load_keys(const dr_cpu_plan *, const dr_inputs *, dr_cpu_chunk *, int64_t key_head);
void dr_chunk_load_rows(const dr_cpu_plan *, const dr_inputs *, dr_cpu_chunk *, int64_t value_head);
void dr_chunk_clear_keys(const dr_cpu_plan *, dr_cpu_chunk *);
void dr_chunk_clear_rows(const dr_cpu_plan *, dr_cpu_chunk *);
void dr_chunk_store_keys(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
void dr_chunk_store_rows(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t value_head);

/* What these loads will read for a chunk that begins at token `first`, to be fetched ahead. */
void dr_chunk_expect_keys(const dr_cpu_plan *, const dr_inputs *, dr_cpu_chunk *, int64_t first, int64_t tokens,
                          int64_t key_head);
void dr_chunk_expect_rows(const dr_cpu_plan *, const dr_inputs *, dr_cpu_chunk *, int64_t first, int64_t tokens,
                          int64_t value_head);

/* ---- recurrence_diagonal.c: the diagonal scan and the query, per key head ---------------------------------------------- */

/* From scan[0], A before the chunk: A of every token, B, Sherman-Morrison keys, q~. */
void dr_chunk_scan_keys(const dr_cpu_plan *, dr_cpu_chunk *);
/* From d_read_query, d_squash, d_morrison and d_scan (of A after the chunk): gradients of the inputs, d_scan of A before. */
void dr_chunk_scan_keys_back(const dr_cpu_plan *, dr_cpu_chunk *);

/* ---- recurrence_matrix.c: Gram matrix or its inverse, per value head --------------------------------------------------- */

/* From matrix [K][Kp] before the chunk: that after token t at (t + 1) stride (0: in place), and solved. Needs alpha. */
void dr_chunk_scan_matrix(const dr_cpu_plan *, dr_cpu_chunk *, float *matrix, int64_t stride);
/* From d_solved and d_matrix (after the chunk): gradients of the inputs, d_matrix before it. */
void dr_chunk_scan_matrix_back(const dr_cpu_plan *, dr_cpu_chunk *, const float *matrix, int64_t stride, float *d_matrix);

/* ---- recurrence_solve.c: systems of a head's size ----------------------------------------------------------------------- */

/* x [n] := matrix^-1 x, matrix [n][n] symmetric and positive definite; overwrites the matrix. */
void dr_system_solve(int64_t n, double *matrix, double *x);
/* The same by the rule's conjugate gradients; scratch [3][n]. */
void dr_system_iterate(const dr_rule *, int64_t n, const double *matrix, double *x, double *scratch);

/* ---- recurrence_rows.c: the rows of a value head ------------------------------------------------------------------------ */

/* alpha, which the matrix scans need too. */
void dr_chunk_map_decay(const dr_cpu_plan *, dr_cpu_chunk *);
/* reader, write, gain and, in update, z. */
void dr_chunk_map_rows(const dr_cpu_plan *, dr_cpu_chunk *);
/* From d_reader, d_write, d_update, d_gain, d_log_decay: gradients of the inputs. */
void dr_chunk_map_rows_back(const dr_cpu_plan *, dr_cpu_chunk *);

/* ---- the chunkwise engine ------------------------------------------------------------------------------------------------ */

/* recurrence_prepare.c: decay factors; score = diag(c) Lh for erase rows, P for queries. */
void dr_chunk_prepare(const dr_cpu_plan *, dr_cpu_chunk *);
/* recurrence_scan.c: read = readers . S, update = u. */
void dr_chunk_scan(const dr_cpu_plan *, dr_cpu_chunk *, const float *state);
/* recurrence_scan.c: output and the state after the chunk. */
void dr_chunk_output(const dr_cpu_plan *, dr_cpu_chunk *, float *state);
/* recurrence_scan.c: rows := (I + L)^-1 rows, or its transpose. */
void dr_chunk_solve(const dr_cpu_plan *, const dr_cpu_chunk *, float *rows, bool transposed);
/* recurrence_backward.c: d_update = dz and the cotangents of what the readers read; d_state: after the chunk. */
void dr_chunk_scan_back(const dr_cpu_plan *, dr_cpu_chunk *, const float *d_state);
/* recurrence_gradients.c: d_reader, d_write, d_gain, d_log_decay; state: before the chunk, d_state: after it. */
void dr_chunk_gradients(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
/* recurrence_decay.c: d_log_decay, called by the gradients at the point where what it needs is there. */
void dr_chunk_decay_scalar(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
void dr_chunk_decay_channel(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
/* recurrence_backward.c: d_state from after the chunk to before it. */
void dr_chunk_pass_back(const dr_cpu_plan *, dr_cpu_chunk *, float *d_state);

/* ---- recurrence_tokens.c: token by token ----------------------------------------------------------------------------------
 */

/* state [K] rows of `pitch`, of which value_width take part: from before the chunk to after it. Fills output, update = u, read
 * = what the erase rows read and, if there is room for it, states. */
void dr_tokens_forward(const dr_cpu_plan *, dr_cpu_chunk *, float *state, int64_t pitch);
/* After a forward that filled states: d_reader, d_write, d_update, d_gain, d_log_decay; d_state from after to before. */
void dr_tokens_backward(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, float *d_state);

/* ---- recurrence_products.c: small dense matrices ------------------------------------------------------------------------- */

typedef enum { DR_PRODUCT_SET, DR_PRODUCT_ADD, DR_PRODUCT_SUBTRACT } dr_product_mode;

/* Memory that will be wanted soon: forgets what is left of the last chunk; adds rows of `width` floats, `stride` floats apart;
 * asks for a few lines of it. */
void dr_ahead_clear(dr_cpu_ahead *);
void dr_ahead_add(dr_cpu_ahead *, const float *at, int64_t stride, int64_t rows, int64_t width);
void dr_ahead_fetch(dr_cpu_ahead *);

/* C [rows][columns] (=, +=, -=) A B. A(i, k) is a[i a_row + k a_step], so that a transposed A costs nothing; B [depth][columns]
 * and C have pitches; columns is a multiple of 16. keep, if not NULL, multiplies row i of C by keep[i] first. Each element is
 * one sum over k in order, whatever the shape. ahead, if not NULL, is fetched from with every tile. */
void dr_matrix_multiply(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                        const float *b, int64_t b_pitch, float *c, int64_t c_pitch, dr_product_mode mode, const float *keep,
                        dr_cpu_ahead *ahead);

/* to[j][i] = from[i][j] for i < rows, j < columns (a multiple of 4); to[j][i] = 0 for i from rows up to to_width, a multiple of
 * 4. */
void dr_matrix_transpose(int64_t rows, int64_t columns, const float *from, int64_t from_pitch, float *to, int64_t to_pitch,
                         int64_t to_width);

/* ---- decay by channel, in blocks -------------------------------------------------------------------------------------------
 */

/* From the start of its block to a reader of token t, NULL: 1. */
static inline const float *dr_cpu_reader_head(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t, bool undecayed) {
    if (!undecayed) return chunk->head + t * plan->key_pitch;
    return t % plan->block ? chunk->head + (t - 1) * plan->key_pitch : NULL;
}

/* Decay of the channels from d on over the blocks between block `from` and block `to`. */
static inline lanes dr_cpu_between(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t to, int64_t from, int64_t d) {
    lanes product = lanes_set(1.0f);
    for (int64_t b = from + 1; b < to; b++) product = product * lanes_load(chunk->total + b * plan->key_pitch + d);
    return product;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------
 */

static inline int64_t round_to_tile(int64_t size) {
    return (size + DR_CHUNK_TILE - 1) / DR_CHUNK_TILE * DR_CHUNK_TILE;
}

/* x . y over width (a multiple of 16) floats */
static inline float dot_rows(int64_t width, const float *x, const float *y) {
    lanes sum = lanes_zero();
    for (int64_t d = 0; d < width; d += LANES) sum = lanes_fma(lanes_load(x + d), lanes_load(y + d), sum);
    return lanes_sum(sum);
}

/* y += factor x */
static inline void add_row(int64_t width, float factor, const float *x, float *y) {
    for (int64_t d = 0; d < width; d += LANES)
        lanes_store(y + d, lanes_fma(lanes_set(factor), lanes_load(x + d), lanes_load(y + d)));
}

/* y = factor x */
static inline void scale_row(int64_t width, float factor, const float *x, float *y) {
    for (int64_t d = 0; d < width; d += LANES) lanes_store(y + d, lanes_set(factor) * lanes_load(x + d));
}

#endif
