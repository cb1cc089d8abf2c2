/* What one_pass (one_pass.cuh) keeps in shared memory, and what its groups of warps have in common: which part of a head a
 * thread block takes, stages and places with their barriers, decays of a chunk, copies to a stage, and the diagonal scan.
 *
 * Three chunks are under way. Stages, by chunk in threes, have what comes from memory and the numbers of rows; places, in twos,
 * what lies between the groups. */
#ifndef DR_CUDA_ONE_PASS_STAGES_CUH
#define DR_CUDA_ONE_PASS_STAGES_CUH

#include "backends/cuda/chunkwise/early.cuh"
#include "backends/cuda/chunkwise/prepare.cuh"
#include "backends/cuda/chunkwise/scan_warpgroups.cuh"
#include "backends/cuda/chunkwise/stages.h"
#include "backends/cuda/device/boxes.cuh"

enum { ONE_PASS_GROUPS = 4, ONE_PASS_THREADS = ONE_PASS_GROUPS * 128, ONE_PASS_STAGES = 3, ONE_PASS_PLACES = 2 };

/* Decays and factors of a chunk's rows. What a thread's dr_prepare_near is made of: the upper and the lower pair, and of
 * decays within halves of blocks of 16 rows the products to the end of the first one and from the start of the second. */
typedef struct alignas(16) {
    dr_prepare_small small;
    float2 upper[128], lower[128];
    float edge[64];
    dr_cuda_factors factors;
    float keep[2]; /* the chunk's decay, twice */
} dr_one_rows;

/* What a chunk's decays are made of, or its write keys by the diagonal scan, of each row. */
typedef struct {
    float log_decay[64], gain[64], lambda[64];
} dr_one_asked;

/* What a thread block has of the call, in shared memory for want of registers: a sequence and head, or a part of it. Its chunks
 * are counted from the first one that it takes. */
typedef struct alignas(16) {
    int sequence, head, key_head;
    int first, row;    /* token of the first chunk, among all and in the sequence */
    int tokens;        /* from there on */
    int early;         /* chunks that belong to the part before: they make but the state */
    int block;         /* number of the first chunk (chunkwise.h) */
    bool begins, ends; /* with the sequence */
    float centre;      /* of the diagonal scan */
    float factor;      /* of the other vector where something is made of the tiles */
} dr_one_chain;

/* Shared memory: where things begin, tiles at multiples of 1024, and behind all the barriers. What is in threes goes by a
 * chunk's stage, what is in twos by its place. */
enum {
    ONE_PASS_TILE = 64 * 128 * 2,
    ONE_PASS_QUERY = ONE_PASS_TILE, /* in a stage, behind the keys */
    ONE_PASS_STAGE = 2 * ONE_PASS_TILE,
    ONE_PASS_SCORE = ONE_PASS_TILE,                   /* in a place, behind X; make has A's halves where X will be */
    ONE_PASS_VALUE = ONE_PASS_SCORE + 64 * 64 * 2,    /* and where outputs will be */
    ONE_PASS_MATRIX = ONE_PASS_VALUE + ONE_PASS_TILE, /* A */
    ONE_PASS_PLACE = ONE_PASS_MATRIX + 64 * DR_MATRIX_PITCH * 4,
    ONE_PASS_PLACES_BEGIN = ONE_PASS_STAGES * ONE_PASS_STAGE,
    ONE_PASS_ROWS = ONE_PASS_PLACES_BEGIN + ONE_PASS_PLACES * ONE_PASS_PLACE,
    ONE_PASS_FILLED = ONE_PASS_ROWS + ONE_PASS_STAGES * (int)sizeof(dr_one_rows), /* stages: keys and queries have come */
    ONE_PASS_DECAYED = ONE_PASS_FILLED + ONE_PASS_STAGES * 8,                     /* decays and factors are there */
    ONE_PASS_FREE = ONE_PASS_DECAYED + ONE_PASS_STAGES * 8,                       /* the columns have read all of a chunk */
    ONE_PASS_SOLVED = ONE_PASS_FREE + ONE_PASS_STAGES * 8,                        /* places: A is there */
    ONE_PASS_TURNED = ONE_PASS_SOLVED + ONE_PASS_PLACES * 8,                      /* the matrix is read */
    ONE_PASS_LAID = ONE_PASS_TURNED + ONE_PASS_PLACES * 8,                        /* X and P' are there */
    ONE_PASS_VALUED = ONE_PASS_LAID + ONE_PASS_PLACES * 8,                        /* and groups: values have come */
    ONE_PASS_WRITTEN = ONE_PASS_VALUED + ONE_PASS_PLACES * 2 * 8, /* places: what is made in the tiles is there */
    ONE_PASS_SCANNED = ONE_PASS_WRITTEN + ONE_PASS_PLACES * 8,    /* what those write keys are made of is there */
    ONE_PASS_BROUGHT = ONE_PASS_SCANNED + ONE_PASS_PLACES * 8,    /* what is not in stages of keys and queries has come */
    ONE_PASS_READ = ONE_PASS_BROUGHT + ONE_PASS_PLACES * 8,       /* the columns have read the sums */
    ONE_PASS_CHAIN = (ONE_PASS_READ + ONE_PASS_PLACES * 8 + 15) / 16 * 16, /* dr_one_chain */
    ONE_PASS_ASKED = ONE_PASS_CHAIN + (int)sizeof(dr_one_chain), /* dr_one_asked, by group of columns, and by `solve` */
    ONE_PASS_BYTES = ONE_PASS_ASKED + 3 * (int)sizeof(dr_one_asked),
    /* with the diagonal scan write keys lie where X will be, and of the two places' values the second has A's halves */
    ONE_PASS_HALVES = ONE_PASS_PLACES_BEGIN + ONE_PASS_PLACE + ONE_PASS_VALUE
};
static_assert(ONE_PASS_BYTES <= DR_BLOCK_SHARED, "a thread block has no more shared memory");

/* What rows read and write. */
typedef enum {
#define DR_ONE_PASS_FORM(name) DR_ONE_##name,
#include "backends/cuda/rows/instances.def"
} dr_one_kind;

/* Whether what rows read has a tile of its own, beside their write keys. */
static __host__ __device__ constexpr bool dr_one_reads_apart(dr_one_kind kind) {
    return kind == DR_ONE_SUMS || kind == DR_ONE_APART;
}

static inline dr_one_kind dr_one_kind_of(const dr_cuda_chunk_plan &plan) {
    if (plan.scan_inside) return DR_ONE_SCANS;
    return plan.reader_sum ? DR_ONE_SUMS : plan.rows.tied && !plan.made_within ? DR_ONE_TIED : DR_ONE_APART;
}

typedef struct {
    dr_boxes key, query, value, o; /* key: the vector that rows write; with the diagonal scan, the key that it is made of */
    dr_boxes reader;               /* what rows read, where that is a tensor of its own */
    dr_boxes exit, score, write;   /* with scan.saved */
    dr_scan_call scan;
    bool boxed; /* tensors are as boxes can be: moved by one thread */
} dr_one_pass_call;

/* one: zeros. */
static inline dr_status dr_one_pass_make(const dr_scan_call &scan, dr_one_pass_call *one) {
    const dr_cuda_rows &rows = scan.plan.rows;
    const int64_t length = scan.plan.length, sequences = scan.plan.sequences;
    const auto boxes = [=](const dr_source &source, int channels, int heads, dr_boxes *to) {
        const dr_plain_rows plain = dr_plain_rows_of(source, 2);
        return dr_boxes_make(to, plain.at, channels, heads, length, sequences, plain.token, plain.head);
    };
    one->scan = scan;
    one->boxed = dr_cuda_chunk_boxed(&scan.plan, scan.o);
    if (!one->boxed) return DR_OK;
    const bool apart = dr_one_kind_of(scan.plan) == DR_ONE_APART;
    DR_TRY(boxes(apart ? dr_write_source(rows) : dr_reader_source(rows), rows.key_size, rows.key_heads, &one->key));
    if (apart) DR_TRY(boxes(dr_reader_source(rows), rows.key_size, rows.key_heads, &one->reader));
    DR_TRY(boxes(dr_source_of(rows.input[DR_INPUT_QUERY]), rows.key_size, rows.key_heads, &one->query));
    DR_TRY(boxes(dr_source_of(rows.input[DR_INPUT_VALUE]), rows.value_size, rows.value_heads, &one->value));
    if (scan.saved) {
        const int64_t tokens = scan.plan.blocks * 64; /* rows of all blocks, which lie one behind the other */
        const int64_t width = scan.plan.key_width;
        DR_TRY(dr_boxes_make(&one->exit, scan.tensors.exit, (int)width, 1, tokens, 1, width * 2, width * 2));
        DR_TRY(dr_boxes_make(&one->score, scan.tensors.score, 64, 1, tokens, 1, 128, 128));
        if (rows.input[DR_SOURCE_SQUASHED].at) DR_TRY(boxes(dr_write_source(rows), rows.key_size, rows.key_heads, &one->write));
    }
    return dr_boxes_make(&one->o, scan.o, rows.value_size, rows.value_heads, length, sequences,
                         (int64_t)rows.value_heads * rows.value_size * 2, (int64_t)rows.value_size * 2);
}

/* A chunk of a chain, its stage and the turn of the stage's barriers. */
typedef struct {
    int chunk, stage;
    unsigned turn;
} dr_one_turn;

#ifdef DR_CUDA_WARPGROUPS

static __device__ inline void dr_one_next(dr_one_turn &at) {
    at.chunk++;
    if (++at.stage == ONE_PASS_STAGES) at.stage = 0, at.turn ^= 1;
}

static __device__ inline dr_one_turn dr_one_after(dr_one_turn at) {
    dr_one_next(at);
    return at;
}

static __device__ inline int dr_one_place_of(const dr_one_turn &at) {
    return (int)((unsigned)at.chunk % ONE_PASS_PLACES);
}

/* The chunk before; before the first one: nothing has to be waited for. */
static __device__ inline dr_one_turn dr_one_before(const dr_one_turn &at) {
    const bool wraps = at.stage == 0;
    return {at.chunk - 1, wraps ? ONE_PASS_STAGES - 1 : at.stage - 1, wraps ? at.turn ^ 1 : at.turn};
}

static __device__ inline unsigned dr_one_stage(unsigned base, int stage) {
    return (unsigned)dr_same_in_warp((int)base + stage * ONE_PASS_STAGE);
}

static __device__ inline unsigned dr_one_place(unsigned base, int place) {
    return (unsigned)dr_same_in_warp((int)base + ONE_PASS_PLACES_BEGIN + place * ONE_PASS_PLACE);
}

/* Keys of a chunk as they come: to its stage; beside what rows read to two tiles that are the keys' of two stages else. */
template <dr_one_kind kind> static __device__ inline unsigned dr_one_keys(unsigned base, const dr_one_turn &at) {
    return dr_one_stage(base, dr_one_reads_apart(kind) ? dr_one_place_of(at) : at.stage);
}

/* Queries likewise: to two tiles with the diagonal scan. */
template <dr_one_kind kind> static __device__ inline unsigned dr_one_queries(unsigned base, const dr_one_turn &at) {
    return dr_one_stage(base, kind == DR_ONE_SCANS ? dr_one_place_of(at) : at.stage) + ONE_PASS_QUERY;
}

/* Where X of a chunk lies, in bytes of shared memory: in its place; with the diagonal scan, whose write keys are there before,
 * in threes, of which the third is the tile that the third stage's queries do not need. */
template <dr_one_kind kind> static __device__ inline int dr_one_exit(const dr_one_turn &at) {
    const int which = kind == DR_ONE_SCANS ? at.stage : dr_one_place_of(at);
    const int third = (ONE_PASS_STAGES - 1) * ONE_PASS_STAGE + ONE_PASS_QUERY;
    return dr_same_in_warp(which < ONE_PASS_PLACES ? ONE_PASS_PLACES_BEGIN + which * ONE_PASS_PLACE : third);
}

/* What rows of a chunk read: its keys; or what has tiles of its own, the third stage's tile of keys and, since values have but
 * one place then, the second's. */
template <dr_one_kind kind> static __device__ inline unsigned dr_one_readers(unsigned base, const dr_one_turn &at) {
    if (!dr_one_reads_apart(kind)) return dr_one_stage(base, at.stage);
    const int second = ONE_PASS_PLACES_BEGIN + ONE_PASS_PLACE + ONE_PASS_VALUE;
    return (unsigned)dr_same_in_warp((int)base + (dr_one_place_of(at) ? second : ONE_PASS_PLACES * ONE_PASS_STAGE));
}

static __device__ inline char *dr_one_place_in(char *shared, const dr_one_turn &at) {
    return shared + ONE_PASS_PLACES_BEGIN + dr_one_place_of(at) * ONE_PASS_PLACE;
}

static __device__ inline dr_one_chain dr_one_chain_of(const char *shared) {
    return *(const dr_one_chain *)(shared + ONE_PASS_CHAIN);
}

static __device__ inline int dr_one_chunks(const char *shared) {
    return (dr_one_chain_of(shared).tokens + 63) / 64;
}

/* Whether a chunk's results are the block's to store. */
static __device__ inline bool dr_one_owns(const dr_one_chain &chain, int chunk) {
    return chunk >= chain.early && chunk * 64 < chain.tokens;
}

static __device__ inline bool dr_one_owns(const char *shared, int chunk) {
    return dr_one_owns(dr_one_chain_of(shared), chunk);
}

static __device__ inline dr_one_rows &dr_one_rows_of(char *shared, int stage) {
    return *(dr_one_rows *)(shared + ONE_PASS_ROWS + stage * (int)sizeof(dr_one_rows));
}

/* Waits at the barrier of a chunk's stage, or of its place; arrives there. */
static __device__ inline void dr_one_await_stage(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_wait(base + (unsigned)(barrier + at.stage * 8), at.turn);
}

static __device__ inline void dr_one_await_place(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_wait(base + (unsigned)(barrier + dr_one_place_of(at) * 8), (unsigned)at.chunk / ONE_PASS_PLACES % 2);
}

static __device__ inline void dr_one_tell_stage(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_arrive(base + (unsigned)(barrier + at.stage * 8));
}

static __device__ inline void dr_one_tell_place(unsigned base, int barrier, const dr_one_turn &at) {
    dr_gate_arrive(base + (unsigned)(barrier + dr_one_place_of(at) * 8));
}

/* ---- decays ------------------------------------------------------------------------------------------------------------- */

static __device__ inline unsigned dr_one_sequence(const dr_cuda_chunk_plan &plan) {
    const unsigned chains = (unsigned)(plan.sequences * plan.value_heads);
    return blockIdx.x % chains / (unsigned)plan.value_heads;
}

/* All threads of a warp: whether all parts of the block's sequence can begin early, which is then told. */
static __device__ inline bool dr_one_may(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors) {
    const unsigned chains = (unsigned)(plan.sequences * plan.value_heads), chain = blockIdx.x % chains;
    const unsigned heads = (unsigned)plan.value_heads, each = (unsigned)dr_cuda_early_count(&plan);
    const int32_t *const early = tensors.early + chain / heads * heads * each;
    bool may = true;
    for (unsigned i = threadIdx.x % 32; i < heads * each; i += 32) may = may && early[i] >= 0;
    may = __all_sync(0xffffffffu, may);
    if (blockIdx.x < chains && threadIdx.x == 0) {
        *dr_early_flag(plan, tensors.early, 0, (int)chain) = may;
        dr_fence_device();
    }
    return may;
}

/* How many chunks the thread block's part begins early. */
static __device__ inline int dr_one_ahead(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors) {
    const unsigned chains = (unsigned)(plan.sequences * plan.value_heads), part = blockIdx.x / chains;
    return part > 0 ? tensors.early[blockIdx.x % chains * (unsigned)dr_cuda_early_count(&plan) + part - 1] : 0;
}

/* What the thread block takes: of all sequences and heads the first part, then the second ones. */
static __device__ inline dr_one_chain dr_one_find(const dr_cuda_chunk_plan &plan, int ahead) {
    const unsigned chains = (unsigned)(plan.sequences * plan.value_heads), which = blockIdx.x % chains;
    const int part = (int)(blockIdx.x / chains), length = (int)plan.length;
    dr_one_chain chain = {};
    chain.sequence = (int)dr_one_sequence(plan);
    chain.head = (int)(which % (unsigned)plan.value_heads);
    chain.key_head = chain.head / plan.rows.group;
    chain.early = ahead;
    const int begin = part * plan.early.chunks - chain.early;
    const int end = part + 1 < plan.early.parts ? (part + 1) * plan.early.chunks * 64 : length;
    chain.row = begin * 64;
    chain.first = chain.sequence * length + chain.row;
    chain.tokens = end - chain.row;
    chain.block = ((length + 63) / 64 * chain.sequence + begin) * plan.value_heads + chain.head;
    chain.begins = begin == 0, chain.ends = end == length;
    return chain;
}

/* A chunk, or what would be one behind the last. */
static __device__ inline dr_prepare_block dr_one_block(const dr_cuda_chunk_plan &plan, const dr_one_chain &chain, int chunk) {
    dr_prepare_block x = {};
    x.head = chain.head, x.key_head = chain.key_head;
    x.block = chain.block + chunk * plan.value_heads;
    x.place.first = chain.first + chunk * 64;
    const int left = chain.tokens - chunk * 64;
    x.alive = x.place.tokens = left < 64 ? left : 64;
    return x;
}

static __device__ inline dr_prepare_block dr_one_block(const dr_cuda_chunk_plan &plan, const char *shared, int chunk) {
    return dr_one_block(plan, dr_one_chain_of(shared), chunk);
}

/* Copies of what a chunk's decays are made of, by a group: a warp those of the 16 rows whose decays it makes. scan: of the
 * diagonal scan. */
template <bool sums>
static __device__ inline void dr_one_ask(const dr_cuda_rows &rows, const dr_prepare_block &x, dr_one_asked &asked,
                                         bool scan = false) {
    const int lane = (int)(threadIdx.x % 32), row = dr_prepare_warp() * 16 + lane % 16;
    const auto copy = [&](int which, float *to) {
        const dr_cuda_input &input = rows.input[which];
        dr_copy_word(dr_shared_address(to + row), dr_chunk_scalar_at(input, x, row, 0, x.head), input.at && row < x.alive);
    };
    if (lane < 16)
        copy(scan ? dr_diagonal_decay_input(rows) : DR_INPUT_LOG_DECAY, asked.log_decay);
    else
        copy(scan ? dr_diagonal_gain_input(rows) : rows.row[0].gain, asked.gain);
    if (sums && lane < 16) copy(DR_INPUT_LAMBDA, asked.lambda);
    dr_copy_commit();
}

/* By the group that asked. store: to memory, too; width: of keys there. */
template <dr_one_kind kind, int width = 128>
static __device__ inline void dr_one_decay(const dr_scan_call &call, const dr_prepare_block &x, const dr_one_asked &asked,
                                           dr_one_rows &put, bool store) {
    const dr_cuda_rows &rows = call.plan.rows;
    dr_prepare_small &small = put.small;
    const int i = dr_copy_thread(), lane = (int)(threadIdx.x % 32), row = dr_prepare_warp() * 16 + lane % 16;
    dr_copy_wait<0>();
    __syncwarp();
    const dr_prepare_half half = dr_prepare_halve(expf(asked.log_decay[row]));
    const dr_prepare_near near = dr_prepare_pairs(rows, half, false);
    dr_prepare_spread(rows, half, small);
    put.upper[i] = near.upper, put.lower[i] = near.lower;
    if (lane < 16) put.edge[row] = lane < 8 ? half.tail : half.head;
    dr_meet<ONE_PASS_GROUPS>();
    if (i < 64) {
        dr_map_gain_inputs inputs = {};
        inputs.beta = inputs.erase_gain = asked.gain[i];
        dr_row_factors factors =
            dr_prepare_factors<DR_PREPARE_PLAIN>(rows, x, i, dr_prepare_gain<DR_PREPARE_PLAIN>(rows, x, i, inputs, 0));
        const bool negative = kind == DR_ONE_APART && rows.row[0].negative;
        small.gain[i] = negative ? -factors.gain : factors.gain;
        small.leave[i] = dr_prepare_span(rows, small, i, x.place.tokens, factors);
        if (negative) factors.reader = -factors.reader;
        dr_put_factors(put.factors, i, factors);
        if (kind == DR_ONE_SUMS) small.lambda[i] = asked.lambda[i];
        if (i < 2) put.keep[i] = small.total[0] * small.total[1] * small.total[2] * small.total[3];
        if (store) dr_put_factors(call.tensors.factors[x.block], i, factors);
    }
    if (store && i < width)
        call.tensors.keep[x.block * width + i] = small.total[0] * small.total[1] * small.total[2] * small.total[3];
}

/* Decays between the rows of a block. undecayed: rows read the state before they decay it. Row i then reads what the query of
 * row i - 1 reads, so it takes that row's decays; the first row of a half reads nothing of its own half. */
static __device__ inline dr_prepare_near dr_one_near(const dr_one_rows &rows, bool undecayed) {
    const int i = dr_copy_thread(), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const bool first = undecayed && g == 0, before = undecayed && g > 0;
    const float head = first ? 1.0f : rows.edge[i / 32 * 16 + g + 8 - before];
    const float2 tail = *(const float2 *)&rows.edge[i / 32 * 16 + 2 * t];
    const int seen = before ? i - 4 : i;
    return {rows.upper[seen], rows.lower[seen], make_float2(head * tail.x, head * tail.y)};
}

/* ---- copies ------------------------------------------------------------------------------------------------------------- */

/* Behind copies that all threads of a group have asked for. */
static __device__ inline void dr_one_loaded(unsigned gate) {
    dr_copy_commit();
    dr_copy_wait<0>();
    dr_shared_fence();
    dr_gate_arrive(gate);
}

/* Keys and queries of a chunk to its stage; apart: what goes to one of two tiles instead, when that is free, keys beside what
 * rows read, and that, or with the diagonal scan queries. */
template <typename T, dr_one_kind kind, bool boxed, bool apart>
static __device__ inline void dr_one_fill(const dr_one_pass_call &one, const char *shared, const dr_one_turn &at) {
    constexpr bool keys = kind == DR_ONE_TIED || dr_one_reads_apart(kind) == apart, readers = kind == DR_ONE_APART && apart;
    constexpr bool queries = kind == DR_ONE_TIED || (kind == DR_ONE_SCANS) == apart;
    const dr_cuda_rows &rows = one.scan.plan.rows;
    const unsigned base = dr_shared_address(shared);
    const unsigned key = dr_one_keys<kind>(base, at), query = dr_one_queries<kind>(base, at),
                   reader = readers ? dr_one_readers<kind>(base, at) : 0;
    const unsigned come =
        base + (unsigned)(apart ? ONE_PASS_BROUGHT + dr_one_place_of(at) * 8 : ONE_PASS_FILLED + at.stage * 8);
    if constexpr (boxed) {
        if (dr_copy_thread() > 0) return;
        const dr_one_chain chain = dr_one_chain_of(shared);
        const auto load = [&](const dr_boxes &boxes, unsigned tile, int box) {
            dr_boxes_load(boxes, tile + (unsigned)box * 8192, come, box * 64, chain.key_head, chain.row + at.chunk * 64,
                          chain.sequence);
        };
#pragma unroll
        for (int box = 0; box < 2; box++) {
            if (keys) load(one.key, key, box);
            if (queries) load(one.query, query, box);
            if (readers) load(one.reader, reader, box);
        }
        dr_mbarrier_promise(come, (keys + queries + readers) * ONE_PASS_TILE);
        return;
    }
    const dr_prepare_block x = dr_one_block(one.scan.plan, shared, at.chunk);
    const auto load = [&](const dr_source &source, unsigned tile) {
        dr_load_tokens<T>((char *)__cvta_shared_to_generic(tile), source, x.place, x.key_head, 0, rows.key_size, 2,
                          rows.aligned);
    };
    if (keys) load(dr_reader_source(rows), key);
    if (queries) load(dr_source_of(rows.input[DR_INPUT_QUERY]), query);
    dr_one_loaded(come);
}

static __device__ inline float dr_one_factor(const dr_cuda_rows &rows, int key_head) {
    if (rows.query_made) return -dr_input_scalar(rows, rows.ask_factor, 0, 0, key_head);
    return rows.product[0].negative ? -1.0f : 1.0f;
}

/* What is made of a chunk's tiles (plan.made_within), by a group: a product of what rows read and what they write, in the place
 * of its input, or queries less a part of one of them. The bits are those of what is made in memory (engine/made.cu). */
template <typename T>
static __device__ inline void dr_one_make_tile(const dr_cuda_rows &rows, const char *shared, const dr_one_turn &at) {
    const unsigned base = dr_shared_address(shared), keys = dr_one_keys<DR_ONE_APART>(base, at),
                   readers = dr_one_readers<DR_ONE_APART>(base, at), queries = dr_one_queries<DR_ONE_APART>(base, at);
    const dr_cuda_row &row = rows.row[0];
    const dr_row_product &product = rows.product[0];
    const bool subtracts = rows.query_made;
    const unsigned to = subtracts ? queries : product.of == row.read ? readers : keys;
    const unsigned from = (subtracts ? rows.ask_other == row.write : product.by == row.write) ? keys : readers;
    const float factor = dr_one_chain_of(shared).factor;
    constexpr int each = 16 / (int)sizeof(T);
    dr_lane_pack<T, each> x, y;
#pragma unroll 2
    for (unsigned i = (unsigned)dr_copy_thread() * 16; i < ONE_PASS_TILE; i += 128 * 16) {
        uint4 *const put = (uint4 *)__cvta_shared_to_generic(to + i);
        x.packed[0] = *put, y.packed[0] = *(const uint4 *)__cvta_shared_to_generic(from + i);
        DR_UNROLL (e, each) {
            const float own = dr_to_float(x.element[e]), other = dr_to_float(y.element[e]);
            x.element[e] = dr_from_float<T>(subtracts ? fmaf(factor, other, own) : factor * own * other);
        }
        *put = x.packed[0];
    }
    dr_shared_fence();
    dr_meet<ONE_PASS_GROUPS>();
    dr_one_tell_place(base, ONE_PASS_WRITTEN, at);
}

/* Products of rows of a tile of 128 channels with rows of another one. */
template <typename T> static __device__ inline void dr_one_scores(float (&c)[8][4], unsigned readers, unsigned writers) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint64_t w = dr_group_operand(writers + k / 4 * 8192, 16), r = dr_group_operand(readers + k / 4 * 8192, 16);
        dr_group_multiply_tiles<false, true>(T(), c, dr_group_forward(r, k % 4 * 32), dr_group_forward(w, k % 4 * 32), k > 0);
    }
}

/* ---- the diagonal scan -------------------------------------------------------------------------------------------------- */

/* Where that lies which write keys of a chunk are made of. */
static __device__ inline dr_inside_room &dr_one_room(char *shared, const dr_one_turn &at) {
    static_assert(sizeof(dr_inside_room) <= 64 * DR_MATRIX_PITCH * 4, "the room of the diagonal scan does not fit the matrix");
    return *(dr_inside_room *)(dr_one_place_in(shared, at) + ONE_PASS_MATRIX);
}

/* The thread's channel of the head's A. */
static __device__ inline float *dr_one_state(const dr_scan_call &call, const char *shared, const float *states) {
    const dr_one_chain chain = dr_one_chain_of(shared);
    return (float *)states + ((int64_t)chain.sequence * call.plan.key_heads + chain.key_head) * 128 + dr_copy_thread();
}

/* What write keys of a chunk are made of, where its matrix will be: the rows' numbers, and X before each block of them where
 * the parts were (A, where the squash is made as it is defined). asked: by the group that calls; before: A before the chunk,
 * a channel a thread, and then behind it. */
template <typename T, bool saves>
static __device__ inline void dr_one_scan_rows(const dr_scan_call &call, char *shared, const dr_one_turn &at,
                                               const dr_one_asked &asked, float &before) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned base = dr_shared_address(shared);
    const int thread = dr_copy_thread(), warp = dr_prepare_warp(), row = warp * INSIDE_BLOCK + thread % INSIDE_BLOCK;
    dr_inside_room &room = dr_one_room(shared, at);
    dr_copy_wait<0>();
    __syncwarp();
    const dr_inside_early rows = {{}, asked.log_decay[row], asked.gain[row], dr_one_chain_of(shared).centre};
    const dr_inside_squash squash = dr_inside_squash_of(plan.rows.squash, rows.centre);
    dr_one_await_place(base, ONE_PASS_TURNED, dr_one_before(dr_one_before(at))); /* the place */
    dr_inside_put_rows(plan, rows, room);
    __syncwarp();
    float part[4], over[INSIDE_BLOCKS], end = 0;
    dr_one_await_stage(base, ONE_PASS_FILLED, at);
    dr_inside_from_zero<T>(room, shared + at.stage * ONE_PASS_STAGE, part);
    dr_inside_lay(room.part[warp] + thread % 32 * 4, part);
    dr_meet<ONE_PASS_GROUPS>();
    dr_take_fours(room.product, over);
    float a = before;
#pragma unroll
    for (int b = 0; b < INSIDE_BLOCKS; b++) {
        const float own = room.part[b][thread];
        room.part[b][thread] = squash.eps == 0 ? a : fmaf(squash.scale, a, squash.eps);
        end = fmaf(over[b], end, own), a = fmaf(over[b], a, own);
    }
    if (saves && dr_one_owns(shared, at.chunk))
        call.tensors.scan.entry[dr_one_block(plan, shared, at.chunk).block * 128 + thread] = before;
    before = fmaf(over[0] * over[1] * (over[2] * over[3]), before, end);
    dr_one_tell_place(base, ONE_PASS_SCANNED, at);
}

/* 64 channels of the write keys of a chunk, where X will be, by one of the two groups of columns. */
template <typename T>
static __device__ inline void dr_one_write_keys(const dr_cuda_rows &rows, char *shared, const dr_one_turn &at, int group) {
    const unsigned base = dr_shared_address(shared);
    char *const writes = shared + dr_one_exit<DR_ONE_SCANS>(at) + group * 8192;
    const char *const keys = shared + at.stage * ONE_PASS_STAGE + group * 8192;
    const dr_inside_room &room = dr_one_room(shared, at);
    const float centre = dr_one_chain_of(shared).centre;
    float x[2];
    dr_one_await_stage(base, ONE_PASS_FILLED, at);
    dr_one_await_place(base, ONE_PASS_SCANNED, at);
    dr_inside_take(room.part[dr_prepare_warp()] + group * 64 + threadIdx.x % 32 * 2, x);
    const dr_inside_squash squash = dr_inside_squash_of(rows.squash, centre);
    if (squash.eps == 0)
        dr_inside_writes_slowly<T>(room, rows.squash, centre, keys, writes, x);
    else
        dr_inside_writes<T, 2, 8>(room, squash, keys, writes, x);
    dr_shared_fence();
    dr_one_tell_place(base, ONE_PASS_WRITTEN, at);
}

#endif

#endif
