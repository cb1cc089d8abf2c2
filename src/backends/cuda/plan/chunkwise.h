/* The chunkwise engine on a GPU: geometry, the tensors between its stages, the launches.
 *
 *     prepare   every chunk and value head at once    L = strict(diag(c) R W^T decayed), A = (I + L)^-1, P = lower(scale Q W^T
 *                                                     decayed), X = A^T W~, P' = P A
 *     scan      chunk after chunk, all columns of V    Y = Z - diag(c) R~ S     O = Q~ S + P' Y     S := D S + X^T Y
 *
 * with R~ = R f(at, 0), Q~ = scale Q f((t+1) n, 0), W~ = W f(N, j+1), D = f(N, 0) (docs/chunkwise.md). The write key never
 * enters the scan, and two products follow one another in it instead of three. Rows without a read have no part in L; if no row
 * reads, A = I, X = W~, P' = P.
 *
 * A chunk has at most 64 rows, C = 64 / steps tokens; its tensors have DR_CUDA_CHUNK_ROWS = 64 rows (query side: C rounded up
 * to 16) and are zero behind the rows that are there, so that no product has a tail. "block" = chunk slot * HV + value head;
 * every tensor below is [blocks][...], dense, in the call's storage type T unless float is said. Kp = K rounded up to 64, 128
 * or 256, Vp = V to a multiple of 64; zero behind the true size.
 *
 * Sequence s has ceil(T_s / C) chunks, in slots one after another: from s ceil(T/C) with equal lengths, from cu[s]/C + s when
 * packed, where some slots stay unused. All of it follows from shapes and the device model, nothing from the batch. */
#ifndef DR_CUDA_CHUNKWISE_H
#define DR_CUDA_CHUNKWISE_H

#include "backends/cuda/cuda.h"
#include "backends/cuda/plan/pad.h"
#include "backends/cuda/rows/chain.h"
#include "backends/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DR_CUDA_CHUNK_ROWS = 64,
    DR_CUDA_TILE = 16,
    DR_CUDA_COLUMNS = 64 /* of V a thread block of the scan holds */,
    DR_CUDA_STAGE_KEYS = 128 /* key channels that fit a stage of the scan by warp groups; more are wide */,
    DR_CUDA_PART_TOKENS = 1024,
    DR_CUDA_PART_CHUNKS = DR_CUDA_PART_TOKENS / DR_CUDA_CHUNK_ROWS,
    DR_CUDA_MOST_PROCESSORS = 160 /* multiprocessors that plans count with: what is saved has room for as many parts */,
    DR_CUDA_EARLY_MOST = 64 /* chunks that a part begins early */,
    DR_CUDA_TRIM_PARTS = 256 /* parts of a sequence, if some chunks of them may do */
};

/* Where the scan has fewer blocks than there are multiprocessors, prepare runs beside it on those that are left
 * (prepare_beside.cuh). */
typedef struct {
    int32_t processors; /* that are left; 0: prepare ends before the scan begins */
    int32_t groups;     /* blocks that prepare makes at once on a multiprocessor */
    int32_t rounds;     /* of prepare in which all multiprocessors take part, before the scan begins */
} dr_cuda_beside;

/* Parts that begin some chunks early, from zero, where decays leave nothing of what was before: one kernel makes all of a
 * forward of a sequence whose every part may (early.cuh), of all its heads; the parts of other sequences are joined. */
typedef struct {
    int32_t parts;  /* of every sequence; 0: there are none */
    int32_t chunks; /* of each but the last */
    int32_t most;   /* chunks that a part may begin early: with more it would cost what it saves */
} dr_cuda_early;

typedef struct {
    dr_cuda_rows rows;
    dr_dtype storage;    /* T: DR_F32, DR_BF16; fp16 is widened (widened.h) */
    int32_t chunk;       /* C tokens */
    int32_t query_rows;  /* C rounded up to 16 */
    int32_t key_width;   /* Kp */
    int32_t value_width; /* Vp */
    int32_t key_heads, value_heads;
    bool reads;         /* some row has a read */
    bool reader_direct; /* R~ = factor * a row of an input, so it is not stored */
    bool query_direct;  /* likewise Q~ */
    bool reader_sum;    /* R~ = factor * (key + lambda * query), rows of two inputs: stored for a first pass over parts only */
    bool linear;        /* no row reads, and the scan takes all from the inputs: there is no prepare */
    bool linear_back;   /* and so does the backward, for which nothing but states is kept */
    bool trims;         /* first passes over parts may do with some of their chunks (trim_parts.cuh) */
    bool one_pass;      /* prepare and scan are one kernel (one_pass.cuh) */
    bool made_within;   /* it makes the product or the query that `rows` says is made before, in a forward */
    bool scan_inside;   /* prepare and the backward's keys make the diagonal scan on their way (dr_cuda_diagonal_inside) */
    bool halves;        /* A goes to the backward as two tiles of T, a high and a low part, else as floats */
    bool hopper;        /* the kernels for sm_90a run */
    bool warpgroups;    /* the scan is that of sm_90a's warp groups; K of up to 128 */
    int32_t processors; /* streaming multiprocessors, at most DR_CUDA_MOST_PROCESSORS */
    bool forgets;       /* forget of the recurrence is not 0 */
    float forgotten;    /* its logarithm: the sum of log decays at which a state is taken as gone. 2^-20 is a 2048th of what
                           vectors    of 16 bits round, so that it is not missed where what follows is a thousand times smaller */
    int64_t sequences, tokens;
    int64_t length; /* tokens of every sequence; 0: packed, see cu */
    int64_t slots;  /* of chunks */
    int64_t blocks; /* slots * HV */
    /* A long sequence of few heads is cut into parts that the scan takes at once: as many as `parts_wanted`, but none shorter
     * than DR_CUDA_PART_TOKENS, at least DR_CUDA_PART_CHUNKS chunks, and none if fewer than three came of it. */
    int32_t parts_wanted;
    int32_t parts; /* that no sequence has more than */
    /* of every sequence, where none are packed, so that no thread divides for it: chunks, parts, chunks of each part but the
     * last */
    int32_t sequence_chunks, sequence_parts, part_chunks;
    dr_cuda_early early;
    dr_cuda_beside beside;
} dr_cuda_chunk_plan;

/* Whether the scan is that of warp groups of 256 key channels, too, but for first passes over parts. */
static inline bool dr_cuda_scan_wide(const dr_cuda_chunk_plan *plan) {
    const dr_values values = plan->rows.row[0].values;
    return plan->halves && plan->key_width > DR_CUDA_STAGE_KEYS && plan->chunk == DR_CUDA_CHUNK_ROWS && plan->reads &&
           (values == DR_VALUES_PLAIN || values == DR_VALUES_GAINED);
}

/* Whether rows read a tensor that is not what they write, nor made of it. */
static inline bool dr_cuda_reads_apart(const dr_cuda_chunk_plan *plan) {
    return plan->reader_direct && !plan->rows.tied && !plan->scan_inside && plan->rows.row[0].writes != DR_WRITES_PRODUCT;
}

/* Whether the one kernel for a forward takes the call only if its vectors lie as boxes can: where rows read what they do not
 * write, and of narrow heads. */
static inline bool dr_cuda_one_pass_boxed(const dr_cuda_chunk_plan *plan) {
    return plan->reader_sum || dr_cuda_reads_apart(plan) || plan->key_width == 64;
}

/* Factors of the rows of a block, a kind side by side: of what the scan wants of a row, two numbers at once are two of those
 * rows that a thread has. */
typedef struct {
    float value[64]; /* Z_i = value * (value row, times the write gate where there is one); 0 for rows without a value */
    float erase[64]; /* c_i R~_i = erase * (the row that the scan loads): c_i, where R~ is not stored times f(at_i, 0) and the
                        sign of the input; 0 for rows without a read */
    float query[64]; /* i is a token of the chunk here: Q~_i = query * (the row that the scan loads); it holds the scale */
    float gain[64];  /* c_i */
} dr_cuda_factors;

/* Of a part and head: how many of its chunks, those that come last, make the state behind it, and how many that come first the
 * gradient before it, from zero or what the call gives; if one of them is -1, both take all. */
typedef struct {
    int32_t last, first;
} dr_cuda_trim;

/* Stage results in the workspace. NULL: not wanted, or not needed by this rule. */
typedef struct {
    int64_t *cu; /* [sequences + 1] cu_seqlens on the device (dr_cuda_layout_put), where packed */
    /* with plan.linear only for a backward that is not linear_back */
    void *exit;    /* [blocks][64][Kp] X */
    void *score;   /* [blocks][query_rows][64] P' */
    void *reader;  /* [blocks][64][Kp] R~; with plan.reader_sum `sums` */
    void *sums;    /* [blocks][64][Kp] rows of key + lambda query, for a first pass over parts: no backward reads them */
    void *query;   /* [blocks][query_rows][Kp] Q~ without the scale */
    void *inverse; /* [blocks][64][64] A, four bytes each; the backward asks for it */
    dr_cuda_factors *factors;    /* [blocks] */
    float *keep;                 /* [blocks][Kp] D */
    unsigned *made;              /* [blocks] flags of what prepare makes beside the scan; NULL: it ends before */
    dr_cuda_diagonal_chain scan; /* of A; in a backward only entry is there */
    /* parts p of sequence s have slots slot(s) / DR_CUDA_PART_CHUNKS + p; NULL: nothing is cut */
    float *local;   /* [part slots][HV][Vp][Kp] the state after a part that began at zero; the first: at the initial state */
    float *entry;   /* [part slots][HV][Vp][Kp] the state before a part */
    float *passage; /* [part slots][HV][Kp][Kp] what a part makes of the state before it: column j is where unit j goes; with
                     * plan.linear [part slots][HV], its decay */
    dr_cuda_trim *trims; /* [part slots][HV]; where not all chunks are taken, local is that of those, and there is no passage.
                          * NULL: all are */
    int32_t *early; /* [sequences][HV][dr_cuda_early_count] chunks that each of plan.early's parts but the first begins early
                     * and, back, each of `parts` but the last ends late; -1: more than early.most. Behind them
                     * [sequences][HV] whether a head's parts do, and how many thread blocks of the kernel that makes these
                     * parts have ended. NULL: none is to */
} dr_cuda_chunk_tensors;

/* Boundaries between parts of either kind, of a value head. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    dr_cuda_early_count(const dr_cuda_chunk_plan *plan) {
    return plan->early.parts - 1 + plan->parts - 1;
}

/* The most parts that a sequence of that many chunks, or a shorter one, may have. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    dr_cuda_most_parts(const dr_cuda_chunk_plan *plan, int64_t chunks) {
    const int64_t parts = chunks / (DR_CUDA_PART_TOKENS / plan->chunk);
    return parts < 3 ? 1 : parts < plan->parts_wanted ? (int32_t)parts : plan->parts_wanted;
}

/* Parts of a sequence of that many chunks, and the chunks of each but the last (*length may be NULL). Chunks are shared out
 * evenly, and so a longer sequence may have fewer parts. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    dr_cuda_parts(const dr_cuda_chunk_plan *plan, int64_t chunks, int32_t *length) {
    const int64_t parts = dr_cuda_most_parts(plan, chunks), each = chunks > 0 ? (chunks + parts - 1) / parts : 0;
    if (length) *length = (int32_t)each;
    return each > 0 ? (int32_t)((chunks + each - 1) / each) : 1;
}

/* Everything but what belongs to a call: the tensors of rows, and the layout's place on the device. DR_ERROR_UNSUPPORTED where
 * the engine has no kernel. */
dr_status dr_cuda_chunk_make_plan(const dr_recurrence *recurrence, bool packed, dr_dtype storage, const dr_cuda *gpu,
                                  dr_cuda_chunk_plan *plan);
/* Then, when it is known who makes the diagonal scan: whether one kernel makes all, or prepare runs beside the scan. */
void dr_cuda_chunk_plan_stages(dr_cuda_chunk_plan *plan);

/* Lay these out in the arena, or count them: what prepare makes, exit .. keep, if it is saved with the inverse; and the others.
 * Of what is saved only what first passes say of parts is among these, which is laid last and returns where it begins. */
void dr_cuda_chunk_lay_between(const dr_cuda_chunk_plan *plan, bool saved, dr_arena *arena, dr_cuda_chunk_tensors *tensors);
void dr_cuda_chunk_lay_rest(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors);
void *dr_cuda_chunk_lay_saved_parts(const dr_cuda_chunk_plan *plan, dr_arena *arena, dr_cuda_chunk_tensors *tensors);

/* Adds the tensors that prepare makes and a forward saves. */
void dr_cuda_chunk_pad(const dr_cuda_chunk_plan *plan, const dr_cuda_chunk_tensors *tensors, dr_cuda_saved_pad *pad);

/* Floats of one state for every part and value head. */
size_t dr_cuda_chunk_part_states(const dr_cuda_chunk_plan *plan);

/* What a forward saves for its backward: the state before each chunk, [blocks][Vp][Kp] in T (transposed: K is contiguous). */
size_t dr_cuda_chunk_saved_bytes(const dr_cuda_chunk_plan *plan);
/* Adds all of these to a formula that holds for any number of rows and multiprocessors; longest: bounds sequences, 0: nothing
 * does. */
void dr_cuda_chunk_saved_size(const dr_cuda_chunk_plan *plan, int64_t longest, dr_saved_size *size);

#ifdef __cplusplus
}
#endif
#endif
