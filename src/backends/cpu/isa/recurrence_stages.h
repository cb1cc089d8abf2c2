/* The stages of the recurrence on one chunk, in the order in which recurrence_sequence.c runs them. */
#ifndef DR_CPU_RECURRENCE_STAGES_H
#define DR_CPU_RECURRENCE_STAGES_H

#include "backends/cpu/isa/isa.h"
#include "backends/cpu/isa/lanes.h"
#include "backends/cpu/recurrence_plan.h"

#define dr_chunk_load_keys         DR_ISA_NAME(dr_chunk_load_keys)
#define dr_chunk_load_rows         DR_ISA_NAME(dr_chunk_load_rows)
#define dr_chunk_load_replay       DR_ISA_NAME(dr_chunk_load_replay)
#define dr_chunk_load_formed       DR_ISA_NAME(dr_chunk_load_formed)
#define dr_chunk_store_formed      DR_ISA_NAME(dr_chunk_store_formed)
#define dr_rows_load               DR_ISA_NAME(dr_rows_load)
#define dr_rows_store              DR_ISA_NAME(dr_rows_store)
#define dr_chunk_clear_keys        DR_ISA_NAME(dr_chunk_clear_keys)
#define dr_chunk_clear_rows        DR_ISA_NAME(dr_chunk_clear_rows)
#define dr_chunk_store_keys        DR_ISA_NAME(dr_chunk_store_keys)
#define dr_chunk_store_rows        DR_ISA_NAME(dr_chunk_store_rows)
#define dr_chunk_scan_keys         DR_ISA_NAME(dr_chunk_scan_keys)
#define dr_chunk_scan_diagonal     DR_ISA_NAME(dr_chunk_scan_diagonal)
#define dr_chunk_map_query         DR_ISA_NAME(dr_chunk_map_query)
#define dr_chunk_scan_keys_back    DR_ISA_NAME(dr_chunk_scan_keys_back)
#define dr_chunk_scan_matrix       DR_ISA_NAME(dr_chunk_scan_matrix)
#define dr_chunk_scan_matrix_back  DR_ISA_NAME(dr_chunk_scan_matrix_back)
#define dr_system_solve            DR_ISA_NAME(dr_system_solve)
#define dr_system_iterate          DR_ISA_NAME(dr_system_iterate)
#define dr_chunk_map_decay         DR_ISA_NAME(dr_chunk_map_decay)
#define dr_chunk_map_rows          DR_ISA_NAME(dr_chunk_map_rows)
#define dr_chunk_map_writers       DR_ISA_NAME(dr_chunk_map_writers)
#define dr_chunk_map_rows_back     DR_ISA_NAME(dr_chunk_map_rows_back)
#define dr_chunk_fade              DR_ISA_NAME(dr_chunk_fade)
#define dr_chunk_fade_writers      DR_ISA_NAME(dr_chunk_fade_writers)
#define dr_chunk_score             DR_ISA_NAME(dr_chunk_score)
#define dr_chunk_scan              DR_ISA_NAME(dr_chunk_scan)
#define dr_chunk_output            DR_ISA_NAME(dr_chunk_output)
#define dr_chunk_pass              DR_ISA_NAME(dr_chunk_pass)
#define dr_chunk_pass_turned       DR_ISA_NAME(dr_chunk_pass_turned)
#define dr_chunk_solve             DR_ISA_NAME(dr_chunk_solve)
#define dr_chunk_scan_back         DR_ISA_NAME(dr_chunk_scan_back)
#define dr_chunk_pass_back         DR_ISA_NAME(dr_chunk_pass_back)
#define dr_chunk_gradients         DR_ISA_NAME(dr_chunk_gradients)
#define dr_chunk_decay_scalar      DR_ISA_NAME(dr_chunk_decay_scalar)
#define dr_chunk_meet_exit         DR_ISA_NAME(dr_chunk_meet_exit)
#define dr_chunk_channel_readers   DR_ISA_NAME(dr_chunk_channel_readers)
#define dr_chunk_channel_writers   DR_ISA_NAME(dr_chunk_channel_writers)
#define dr_tokens_forward          DR_ISA_NAME(dr_tokens_forward)
#define dr_tokens_backward         DR_ISA_NAME(dr_tokens_backward)
#define dr_decode_heads            DR_ISA_NAME(dr_decode_heads)
#define dr_decode_scan             DR_ISA_NAME(dr_decode_scan)
#define dr_decode_slots            DR_ISA_NAME(dr_decode_slots)
#define dr_matrix_multiply         DR_ISA_NAME(dr_matrix_multiply)
#define dr_matrix_transpose        DR_ISA_NAME(dr_matrix_transpose)
#define dr_ahead_clear             DR_ISA_NAME(dr_ahead_clear)
#define dr_ahead_add               DR_ISA_NAME(dr_ahead_add)
#define dr_ahead_spread            DR_ISA_NAME(dr_ahead_spread)
#define dr_ahead_fetch             DR_ISA_NAME(dr_ahead_fetch)
#define dr_chunk_expect            DR_ISA_NAME(dr_chunk_expect)
#define dr_cpu_recurrence_kernels_ DR_ISA_NAME(dr_cpu_recurrence_kernels)

/* ---- recurrence_load.c: tensors to chunk and back ---------------------------------------------------------------------- */

/* Inputs that belong to the key head (and what a tied scan takes from its value head), those of a value head. */
void dr_chunk_load_keys(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t key_head);
void dr_chunk_load_rows(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t value_head);
/* The inputs of a key head, or of a value head, that a replay needs. */
void dr_chunk_load_replay(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t head, bool keys);
void dr_chunk_clear_keys(const dr_cpu_plan *, dr_cpu_chunk *);
void dr_chunk_clear_rows(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t value_head);
void dr_chunk_store_keys(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
void dr_chunk_store_rows(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t value_head);

/* Which inputs: those that a replay reads, or the others and where a backward will store gradients. */
typedef enum { DR_EXPECT_ALL, DR_EXPECT_REPLAYED, DR_EXPECT_REST } dr_cpu_expected;
/* What the loads of a value head, and of its key head if `keys`, will read for a chunk that begins at token `first`, and where
 * a backward will store gradients: to be fetched ahead. */
void dr_chunk_expect(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t first, int64_t tokens,
                     int64_t value_head, bool keys, dr_cpu_expected);

/* ---- recurrence_forms.c: tensors in other forms than floats -------------------------------------------------------------- */

/* As the loads and stores of an input above, of one that is not as it is. */
void dr_chunk_load_formed(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int i, int64_t head);
void dr_chunk_store_formed(const dr_cpu_plan *, const dr_cpu_call *, const dr_cpu_chunk *, int i, int64_t sequence,
                           int64_t head);
/* Rows of `width` elements between a tensor of some type and a chunk, whose rows are zero up to whole tiles. */
void dr_rows_load(dr_dtype, int64_t rows, int64_t width, const void *from, int64_t stride, float *to, int64_t pitch);
void dr_rows_store(dr_dtype, int64_t rows, int64_t width, const float *from, int64_t pitch, void *to, int64_t stride);

/* ---- recurrence_diagonal.c: the diagonal scan and the query, per key head ---------------------------------------------- */

/* From scan[0], A before the chunk: A of every token, B, Sherman-Morrison keys. */
void dr_chunk_scan_diagonal(const dr_cpu_plan *, dr_cpu_chunk *);
/* q~ */
void dr_chunk_map_query(const dr_cpu_plan *, dr_cpu_chunk *);
/* both */
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
/* reader, write, gain and, if `values`, z in update. */
void dr_chunk_map_rows(const dr_cpu_plan *, dr_cpu_chunk *, bool values);
/* write, and what replayed updates need if they are the values. */
void dr_chunk_map_writers(const dr_cpu_plan *, dr_cpu_chunk *);
/* From d_reader, d_write, d_update, d_gain, d_log_decay: gradients of the inputs. */
void dr_chunk_map_rows_back(const dr_cpu_plan *, dr_cpu_chunk *);

/* ---- the chunkwise engine ------------------------------------------------------------------------------------------------ */

/* recurrence_prepare.c: decay factors; those of writers only. */
void dr_chunk_fade(const dr_cpu_plan *, dr_cpu_chunk *);
void dr_chunk_fade_writers(const dr_cpu_plan *, dr_cpu_chunk *);
/* recurrence_prepare.c: score = diag(c) Lh for erase rows, P for queries. */
void dr_chunk_score(const dr_cpu_plan *, dr_cpu_chunk *);
/* recurrence_scan.c: update = u. */
void dr_chunk_scan(const dr_cpu_plan *, dr_cpu_chunk *, const float *state);
/* recurrence_scan.c: output, in rows of `pitch`. */
void dr_chunk_output(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, float *to, int64_t pitch);
/* recurrence_scan.c: the state after the chunk. */
void dr_chunk_pass(const dr_cpu_plan *, dr_cpu_chunk *, float *state);
/* The same from a transposed state [V][Kp] to another. */
void dr_chunk_pass_turned(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, float *after);
/* recurrence_scan.c: rows := (I + L)^-1 rows, or its transpose. */
void dr_chunk_solve(const dr_cpu_plan *, const dr_cpu_chunk *, float *rows, bool transposed);
/* The backward takes states and their gradients transposed, [V][Kp]: then only what has the size of a chunk is ever turned.
 * recurrence_backward.c: d_update = dz and the cotangents of what the readers read; d_state: after the chunk. */
void dr_chunk_scan_back(const dr_cpu_plan *, dr_cpu_chunk *, const float *d_state);
/* recurrence_gradients.c: d_reader, d_write, d_gain, d_log_decay; state: before the chunk, d_state: after it. */
void dr_chunk_gradients(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
/* recurrence_decay.c: d_log_decay under scalar decay, called by the gradients at the point where what it needs is there; exit =
 * keep (S . dS') of every channel, which both kinds of decay begin with. */
void dr_chunk_decay_scalar(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
void dr_chunk_meet_exit(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, const float *d_state);
/* recurrence_channel.c: d_reader without gain and what readers give to d_log_decay, from exit on; d_write and what writers give
 * to it. */
void dr_chunk_channel_readers(const dr_cpu_plan *, dr_cpu_chunk *);
void dr_chunk_channel_writers(const dr_cpu_plan *, dr_cpu_chunk *);
/* recurrence_backward.c: d_state from after the chunk to before it. */
void dr_chunk_pass_back(const dr_cpu_plan *, dr_cpu_chunk *, float *d_state);

/* ---- recurrence_tokens.c: token by token ----------------------------------------------------------------------------------
 */

/* state [K] rows of `pitch`, of which value_width take part: from before the chunk to after it. Fills output, update = u, read
 * = what the erase rows read and, if there is room for it, states. */
void dr_tokens_forward(const dr_cpu_plan *, dr_cpu_chunk *, float *state, int64_t pitch);
/* After a forward that filled states: d_reader, d_write, d_update, d_gain, d_log_decay; d_state from after to before. */
void dr_tokens_backward(const dr_cpu_plan *, dr_cpu_chunk *, const float *state, float *d_state);

/* ---- recurrence_decode.c: one token for many sequences ------------------------------------------------------------------ */

/* One token of the value heads begin .. end - 1, counted through all sequences. whole: they are all
 * value heads of their key heads, so that the diagonal scan of these may move on with them; else it does in dr_decode_scan,
 * once all of them are done. */
void dr_decode_heads(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t begin, int64_t end, bool whole);
void dr_decode_scan(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
/* The tokens of a sequence whose states lie in the pool, for the value heads of a key head. */
void dr_decode_slots(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);

/* ---- recurrence_products.c: small dense matrices ------------------------------------------------------------------------- */

/* Memory that will be wanted soon: forgets what is left of the last chunk; adds rows of `width` elements of `item` bytes,
 * `stride` elements apart; spreads all of it over the tiles of a product of that size and a quarter more; asks for the lines of
 * a tile. */
void dr_ahead_clear(dr_cpu_ahead *);
void dr_ahead_add(dr_cpu_ahead *, const void *at, int64_t stride, int64_t rows, int64_t width, int64_t item);
void dr_ahead_spread(dr_cpu_ahead *, int64_t rows, int64_t columns);
void dr_ahead_fetch(dr_cpu_ahead *);

/* C [rows][columns] = base + factor A B + A' B', each element one sum over k in order, whatever the shape. A(i, k) is a[i a_row
 * + k a_step], so that a transposed A costs nothing; columns is a multiple of LANES.
 *
 * The rows of a triangle: row i belongs to token t = i / token_rows. Its sum begins at k = t token_begin, or ends before
 * (t + 1) token_end; A is zero elsewhere, and what is infinite or NaN in B there does not come to the row. Only the columns
 * before (t + 1) token_columns are computed, exactly or with what else the tile of the row has, which must then not be wanted
 * in C. 0: no such limit. */
typedef struct dr_matrix_product {
    int64_t rows, columns, depth;
    const float *a; /* [rows][depth] */
    int64_t a_row, a_step;
    const float *b; /* [depth][columns] */
    int64_t b_pitch;
    float *c; /* [rows][columns] */
    int64_t c_pitch;
    const float *base;         /* rows as of C, and may be C; NULL: 0 */
    bool subtract;             /* base - A B */
    const float *keep;         /* [rows] multiplies the rows of base, */
    const float *keep_columns; /* [columns] or its columns */
    const float *factor;       /* [rows] multiplies the rows of A B */
    int64_t token_rows, token_begin, token_end, token_columns;
    const struct dr_matrix_product *also; /* A' B': only its a, b, depth, token_rows, token_begin and token_end are read */
    dr_cpu_ahead *ahead;                  /* is fetched from with every tile; NULL: nothing */
} dr_matrix_product;
void dr_matrix_multiply(const dr_matrix_product *);

/* to[j][i] = from[i][j] for i < rows, j < columns, 0 for other i < to_width, j < to_rows. */
void dr_matrix_transpose(int64_t rows, int64_t columns, const float *from, int64_t from_pitch, float *to, int64_t to_pitch,
                         int64_t to_rows, int64_t to_width);

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

/* The readers of tokens begin .. end - 1: first and count of the erase rows, of the queries. */
typedef struct {
    int64_t first[2], count[2];
} dr_cpu_reader_range;

static inline dr_cpu_reader_range dr_cpu_readers_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t begin,
                                                    int64_t end) {
    return (dr_cpu_reader_range){{begin * plan->erases, chunk->erases + begin}, {(end - begin) * plan->erases, end - begin}};
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------
 */

static inline int64_t round_to_tile(int64_t size) {
    return (size + DR_CHUNK_TILE - 1) / DR_CHUNK_TILE * DR_CHUNK_TILE;
}

/* the first n lanes of x, zero in the others; n may be negative or beyond LANES */
static inline lanes lanes_keep_first(lanes x, int64_t n) {
    if (n >= LANES) return x;
    return n <= 0 ? lanes_zero() : lanes_select(lanes_first(n), x, lanes_zero());
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

/* y = x, width any */
static inline void copy_row(int64_t width, const float *x, float *y) {
    int64_t d = 0;
    for (; d + LANES <= width; d += LANES) lanes_store(y + d, lanes_load(x + d));
    if (d < width) lanes_store_n(y + d, width - d, lanes_load_n(x + d, width - d));
}

/* The same into a row of a chunk: y is zero up to whole tiles. x NULL: zero */
static inline void load_row(int64_t width, const float *x, float *y) {
    int64_t d = 0;
    for (; x && d + LANES <= width; d += LANES) lanes_store(y + d, lanes_load(x + d));
    if (x && d < width) {
        lanes_store(y + d, lanes_load_n(x + d, width - d));
        d += LANES;
    }
    for (; d < round_to_tile(width); d += LANES) lanes_store(y + d, lanes_zero());
}

/* y = factor x */
static inline void scale_row(int64_t width, float factor, const float *x, float *y) {
    for (int64_t d = 0; d < width; d += LANES) lanes_store(y + d, lanes_set(factor) * lanes_load(x + d));
}

#endif
