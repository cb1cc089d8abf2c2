/* What a call of the recurrence works with: sizes and flags that follow from the descriptor, and the memory of one chunk.
 *
 * A chunk is C tokens of one sequence, N = steps C rows. Its buffers hold one key head and, in turn, each of its value heads.
 * Every matrix of it has rows of `pitch` floats, of which the first `width` (a multiple of 16) take part in the arithmetic and
 * those behind the true size are zero: no kernel has a tail. Readers are what reads the state: first the erase rows, then one
 * query a token. Everything here depends on shapes only, never on the machine's caches, the batch or the threads. */
#ifndef DR_CPU_RECURRENCE_PLAN_H
#define DR_CPU_RECURRENCE_PLAN_H

#include "base/memory.h"
#include "maps/squash.h"
#include "ops/forms.h"
#include "ops/operations.h"

enum { DR_CHUNK_TILE = 16 };  /* floats that widths are rounded up to; rows of a triangle that is substituted in registers */
enum { DR_BLOCK_TOKENS = 8 }; /* at most, of a block of rows under decay by channel */

/* How the tensor of an input is laid out, and a chunk's copy of it. */
typedef struct {
    bool used, per_token, key_owned;
    int64_t heads, width;   /* of the tensor: [tokens, steps, heads, width] */
    int64_t first, taken;   /* the elements of a row that this plan is about */
    int64_t steps;          /* rows a token */
    int64_t pitch;          /* floats from row to row in a chunk; 1 where width is */
    dr_dtype dtype;         /* of the tensor and its gradient */
    int64_t token, d_token; /* elements from token to token, in the tensor and its gradient; 0: it has no tokens */
    bool made;              /* what is read is made of the tensor (dr_forms) */
    bool as_it_is;          /* floats, and nothing made */
    bool direct;            /* maps read it where it is: no copy is made */
    bool direct_gradient;   /* one row of one value head makes it, where it is wanted */
} dr_cpu_input;

typedef struct {
    const dr_rule *rule;
    dr_layout layout;
    int64_t key_heads, value_heads, group; /* value heads a key head */
    int64_t key_size, key_width, key_pitch, value_size, value_width, value_pitch;
    int64_t value_first, values; /* of a head's values in the tensors, the value_size from value_first on belong to this plan */
    bool chunkwise;
    int64_t chunk;          /* tokens a chunk, none longer than the longest sequence */
    int64_t segment;        /* chunks from one saved state to the next */
    int64_t segment_tokens; /* tokens from one to the next, whatever the longest sequence is */
    int64_t block;          /* tokens of a block of rows, see isa/recurrence_prepare.c */
    int64_t steps;          /* rows a token */
    bool step_axis;
    /* rows with a read: how many a token; the i-th of a chunk is row erase_first + i erase_stride */
    int64_t erases, erase_first, erase_stride;
    int read_input, write_input;           /* the input that the read, write keys of all rows are as it is; -1: none */
    bool scalar, channel;                  /* decay: one factor a token, or one for each channel */
    bool preconditioned, sherman_morrison; /* a row writes such a key */
    bool matrix;                           /* the scan is a matrix of each value head, */
    dr_state_kind matrix_state;            /* this state, */
    bool solved_query;                     /* and gives the query, not a write key */
    bool query_in_place;                   /* q~ takes the place of the query, and its gradient that of the query's */
    bool bf16_state;                       /* S outside of a call */
    int64_t load_ahead;                    /* decoding: asks for the inputs of so many heads later */
    dr_forms forms;
    bool value_major;  /* S is [V][K] between calls */
    int64_t bias_size; /* of a dt_bias of a head */
    float scale;
    dr_map_squash squash;
    dr_cpu_input input[DR_INPUTS];
    bool replayed[DR_INPUTS]; /* what a replay reads */
} dr_cpu_plan;

/* Memory that the next chunk reads or writes: rows of `bytes`, `stride` bytes apart. The large products fetch it into cache
 * tile by tile (isa/recurrence_products.c), so that memory and arithmetic work at the same time. */
typedef struct {
    const char *at;
    int64_t stride, rows, bytes;
} dr_cpu_span;
enum { DR_CPU_SPANS = 2 * DR_INPUTS + 8 };
typedef struct {
    dr_cpu_span span[DR_CPU_SPANS];
    int spans, next; /* next: the span to fetch from, */
    int64_t byte;    /* from this byte of its first row on */
    int64_t lines, lines_a_tile;
} dr_cpu_ahead;

/* Memory of one thread. C chunk, N rows, E erase rows, R = E + C readers, B blocks; Kp, Vp pitches; Np: N as a pitch. */
typedef struct {
    int64_t first, tokens, rows, erases, readers; /* of the chunk at hand; first: its first token among all tokens */
    int64_t at;                                   /* chunks of its segment before it */
    int64_t columns;                              /* Np */
    dr_cpu_ahead ahead;

    float *input[DR_INPUTS];   /* copies of the inputs, [C steps][pitch] or one row; a direct one itself, not written */
    float *d_input[DR_INPUTS]; /* their gradients */
    int64_t pitch[DR_INPUTS], d_pitch[DR_INPUTS];
    float *unwanted;       /* [C steps][max(Kp, Vp)] takes direct gradients that nobody asks for */
    float *given, *d_rate; /* [max(Kp, Vp, C steps)] what the caller gave of a row or of all scalars, of which an input is made;
                            * the gradients of A_log: backward */

    /* key head: see isa/recurrence_diagonal.c. Backward: those of the chunk at hand among the chunks of its segment, one behind
     * the other, so that a replayed chunk is not scanned again */
    float *scan;                             /* [C + 1][Kp] A before the first token, after every token */
    float *scan_alpha;                       /* [C] */
    float *squash, *squash_slope, *d_squash; /* [C][Kp] B, dB/dln A: backward only */
    float *morrison, *d_morrison;            /* [C][Kp] Sherman-Morrison write keys */
    float *morrison_factor;                  /* [C] 1 / (1 + key . m) */
    bool writes_scanned;                     /* write = B key is made with A and B, which then are not kept: forward only */
    float *key_dot;                          /* [C] key . (B key), of the normalizer */
    float *read_query, *d_read_query;        /* [C][Kp] the q~ of the key head */
    float *d_scan;                           /* [Kp] gradient of A, carried backwards over the chunks */

    /* value head: see isa/recurrence_matrix.c */
    float *matrix, *d_matrix; /* [group][K][Kp] K or P; backward: matrix [C + 1][K][Kp], before the first token, after every */
    float *solved, *d_solved; /* [C][Kp] q~ or the exact write key */
    float *matrix_scratch;    /* [3][Kp] */
    double *system, *system_scratch; /* [K][K], [4][K] */

    /* value head: rows of the recurrence */
    float *reader, *d_reader;        /* [R][Kp], of which read_query and some inputs are parts */
    float *write, *d_write, *d_far;  /* [N][Kp]; gradients from within the chunk, from behind it */
    float *update, *d_update;        /* [N][Vp] z, then u; dz */
    float *gain, *d_gain;            /* [N] c */
    float *base_gain, *factor, *dot; /* [N] c = base factor; dot: r . w or key . key */
    float *alpha;                    /* [C] or [C][Kp] */
    float *d_log_decay;              /* [C] or [C][Kp]: what the engine gives */
    float *read;                     /* [R][Vp] reader . S, token by token only */
    float *output, *d_output;        /* [C][Vp] */
    /* [group][K][Vp]; chunkwise backward, transposed: [group][segment][V][Kp] before each chunk of a segment, [group][V][Kp] */
    float *state, *d_state;

    /* chunkwise engine */
    float *write_turned;               /* [Kp][Np] transposed writers, scaled to their block's end */
    float *score, *d_score;            /* [R][Np] */
    float *faded;                      /* [N][Vp] updates, faded to the exit of the chunk (scalar decay) */
    float *factors, *entry;            /* [C + 1][Np], [C + 1] scalar decay factors */
    float *reader_fade, *writer_fade;  /* [R], [N] entry to reader, writer to exit; 1 with decay by channel */
    float *reader_factor;              /* [R] entry to reader, times -c or the scale */
    float *keep;                       /* [Kp] entry to exit */
    float *head, *tail;                /* [C][Kp] block start to after the token, after the token to block end */
    float *total, *before, *after;     /* [B][Kp] a block's own factor, those of all blocks before it, after it */
    float *reader_head, *reader_entry; /* [R][Kp] */
    float *write_tail, *write_exit;    /* [N][Kp] */
    float *scratch;                    /* [max(R, N)][Kp] */
    float *cotangent;                  /* [R][Vp] gradients of what the readers read of the entry state */
    float *update_turned;              /* [Vp][Np] */
    float *exit_turned;                /* [Kp][Np] write_exit transposed */
    float *pairs;                      /* [Np] */
    float *exit;                       /* [Kp] keep (S . dS') */

    /* token by token */
    float *states; /* [N][K][Vp] before every row, backward only */
} dr_cpu_chunk;

/* One call: the tensors as the caller passed them. */
typedef struct {
    const dr_inputs *inputs;
    const dr_states *initial; /* may be NULL, as may their members */
    void *o;
    const dr_mutable_states *final;
    const dr_slots *slots;        /* where the states of sequences lie, NULL: one after the other */
    const float *A_log, *dt_bias; /* of a raw decay, or NULL */
    float *saved_states;          /* [slots][HV][K][V], NULL if no backward follows */
    float *saved_scan;            /* [slots][H][K] */
    float *saved_matrix;          /* [slots][HV][K][K] */
    float *saved_updates;         /* [HV][rows][V] u, chunkwise, and if there are erase rows */
    const void *d_o;
    const dr_states *d_final;
    const dr_input_gradients *d_inputs;
    const dr_mutable_states *d_initial;
    float *kept_states;             /* [slots][HV][V][Kp] backward in two passes: gradients of the states after each segment */
    double *d_parameter[DR_INPUTS]; /* [sequences][heads][width] partial sums, NULL where not wanted */
    double *d_A_log, *d_dt_bias;    /* [slots][HV], [slots][HV][bias_size] likewise; slots as of saved states */
} dr_cpu_call;

typedef struct {
    void (*forward)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
    void (*backward)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
    /* the same in two passes: kept_states, by blocks of values; then each segment from them, of a sequence that has it */
    void (*carry)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
    void (*backward_slot)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head,
                          int64_t segment);
    /* one token: isa/recurrence_stages.h */
    void (*decode)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t begin, int64_t end, bool whole);
    void (*decode_scan)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
    /* the tokens of a sequence whose states lie in a pool, for the value heads of a key head */
    void (*decode_slots)(const dr_cpu_plan *, const dr_cpu_call *, dr_cpu_chunk *, int64_t sequence, int64_t key_head);
} dr_cpu_recurrence_kernels;

typedef enum { DR_CHUNK_FORWARD, DR_CHUNK_BACKWARD, DR_CHUNK_DECODE } dr_cpu_chunk_use;

/* The only place where chunk length and blocks are chosen; recurrence->longest bounds the sequences. */
void dr_cpu_recurrence_make_plan(const dr_recurrence *recurrence, const dr_forms *forms, bool decode, dr_cpu_plan *plan);

/* The plan of block i of so many blocks of value columns, at most dr_cpu_most_blocks: after a forward of each, all is done.
 * Columns never meet in a forward, so that results are the same bits for any number of blocks. */
void dr_cpu_plan_block(const dr_cpu_plan *plan, int64_t blocks, int64_t i, dr_cpu_plan *block);
int64_t dr_cpu_most_blocks(const dr_cpu_plan *plan); /* as many as tiles of the products */

int64_t dr_cpu_chunk_length(const dr_recurrence *recurrence, bool decode); /* before it is cut to the longest sequence */

/* Lays out the memory of one thread in the arena, or counts it. */
void dr_cpu_chunk_lay(const dr_cpu_plan *plan, dr_cpu_chunk_use use, dr_arena *arena, dr_cpu_chunk *chunk);

/* Tokens from one saved state to the next. */
static inline int64_t dr_cpu_segment(const dr_cpu_plan *plan) {
    return plan->segment_tokens;
}

/* Where the states before each segment of a sequence are saved: slots of different sequences never meet, without a table. */
static inline int64_t dr_cpu_first_slot(const dr_cpu_plan *plan, int64_t sequence) {
    return dr_layout_begin(&plan->layout, sequence) / dr_cpu_segment(plan) + sequence;
}

/* Room for a state, transposed or not. */
static inline int64_t dr_cpu_state_floats(const dr_cpu_plan *plan) {
    const int64_t plain = plan->key_width * plan->value_pitch, turned = plan->value_width * plan->key_pitch;
    return plain > turned ? plain : turned;
}

static inline int64_t dr_cpu_erase_row(const dr_cpu_plan *plan, int64_t i) {
    return plan->erase_first + i * plan->erase_stride;
}

/* The chunk at hand: its sizes, and where its queries are, behind as many erase rows as it has. */
static inline void dr_cpu_set_tokens(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t first, int64_t tokens) {
    chunk->first = first;
    chunk->tokens = tokens;
    chunk->rows = tokens * plan->steps;
    chunk->erases = tokens * plan->erases;
    chunk->readers = chunk->erases + tokens;
    if (!plan->solved_query) chunk->read_query = chunk->reader + chunk->erases * plan->key_pitch;
    if (plan->query_in_place && !plan->input[DR_INPUT_QUERY].direct) chunk->input[DR_INPUT_QUERY] = chunk->read_query;
}

/* Which chunk of its segment the scan is about. */
static inline void dr_cpu_set_at(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t at) {
    const int64_t tokens = (at - chunk->at) * plan->chunk, rows = tokens * plan->key_pitch;
    chunk->at = at;
    if (plan->rule->scan != DR_SCAN_DIAGONAL) return;
    chunk->scan += rows;
    chunk->scan_alpha += tokens;
    if (plan->preconditioned) {
        chunk->squash += rows;
        chunk->squash_slope += rows;
        chunk->key_dot += tokens;
    }
    if (plan->sherman_morrison) {
        chunk->morrison += rows;
        chunk->morrison_factor += tokens;
    }
}

/* The row of the rule's table that row `row` of a chunk stands for. */
static inline const dr_row *dr_cpu_rule_row(const dr_cpu_plan *plan, int64_t row) {
    return &plan->rule->row[plan->step_axis ? 0 : row % plan->steps];
}

/* Whether row `row` reads the state before the decay of its token. */
static inline bool dr_cpu_reads_undecayed(const dr_cpu_plan *plan, int64_t row) {
    return row % plan->steps == 0 && dr_cpu_rule_row(plan, row)->undecayed;
}

/* Tokens whose decay lies before what erase row i reads. */
static inline int64_t dr_cpu_erase_boundary(const dr_cpu_plan *plan, int64_t i) {
    int64_t row = dr_cpu_erase_row(plan, i);
    return row / plan->steps + !dr_cpu_reads_undecayed(plan, row);
}

#endif
