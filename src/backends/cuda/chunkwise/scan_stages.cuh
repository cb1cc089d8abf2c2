/* What the scan by warp groups (scan_warpgroups.cuh) keeps in shared memory, and the four warps that fill it: tiles of the
 * chunks ahead, two or more stages of them, which the computing groups share.
 *
 * A stage is filled when all copying threads have passed its first barrier, and free when all computing threads have passed
 * its second one (each thread by itself: racecheck does not follow one that passes for its warp): computing warps wait for
 * nobody but the copies. Whole chunks come by pointers that go from chunk to chunk. Where one group computes, the copying warps
 * also store its outputs, a chunk's when they have asked for the tiles of the third after it, so that they hardly wait for
 * them. */
#ifndef DR_CUDA_SCAN_STAGES_CUH
#define DR_CUDA_SCAN_STAGES_CUH

#include "backends/cuda/chunkwise/scan.cuh"
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/warpgroup.cuh"

enum { DR_SCAN_MOST_STAGES = 4 };

/* What rows read: nothing; a vector that the scan loads; a key and lambda times a query, both of which it loads. */
enum { DR_SCAN_BLIND, DR_SCAN_READS, DR_SCAN_SUMS };

typedef struct {
    dr_scan_call call; /* call.room: of a stage */
    int gate, lambda;  /* where in a stage the write gates lie, and lambda of the rows */
    int stages;
    int gates;  /* where the barriers lie, behind the stages */
    int places; /* that have two barriers each: the stages and, of wide keys, one more */
} dr_group_scan_call;

/* Parts of all heads of all sequences: one that has fewer parts than others leaves blocks idle. */
static inline int64_t dr_group_scan_chains(const dr_cuda_chunk_plan &plan) {
    return plan.sequences * plan.value_heads * plan.parts;
}

/* Groups of 64 columns of V in a thread block, which has a multiprocessor to itself: with two it loads tiles once for both,
 * with one more of the chains' blocks run at once. */
static inline int dr_group_scan_groups(const dr_cuda_chunk_plan &plan) {
    const int64_t columns = plan.value_width / DR_CUDA_COLUMNS;
    return dr_cuda_scan_wide(&plan) || (columns > 1 && dr_group_scan_chains(plan) * columns > plan.processors) ? 2 : 1;
}

/* A stage; every tile begins at a multiple of 1024 bytes. kept: it has a decay of each channel; beside: bytes that the block
 * has beside its stages. Of wide keys two stages have the tiles of keys alone, and one place behind them, with barriers as if
 * it were the third, has the rest of one chunk: there offsets count from the beginning of shared memory. */
static inline dr_group_scan_call dr_group_scan_lay(const dr_scan_call &scan, int groups, bool gated, bool kept = true,
                                                   int beside = 0) {
    const dr_cuda_chunk_plan &plan = scan.plan;
    const bool wide = dr_cuda_scan_wide(&plan);
    const int keys = 64 * plan.key_width * 2, values = groups * 64 * 64 * 2, queries = plan.query_rows * plan.key_width * 2;
    dr_group_scan_call call = {scan, 0, 0, 2, 0, 3};
    dr_scan_room &room = call.call.room;
    int end = 0;
    room.reader = end, end += plan.reads ? keys : 0;
    room.exit = end, end += keys;
    room.query = end, end += scan.o ? queries : 0;
    if (wide) room.bytes = end, end *= call.stages;
    room.score = end, end += scan.o ? plan.query_rows * 64 * 2 : 0;
    room.value = end, end += values;
    call.gate = end, end += gated ? values : 0;
    room.factors = end, end += (int)sizeof(dr_cuda_factors);
    room.keep = end, end += kept ? plan.key_width * (int)sizeof(float) : 0;
    call.lambda = end, end += plan.reader_sum ? 64 * (int)sizeof(float) : 0;
    call.gates = end;
    if (wide) return call;
    room.bytes = (end + 1023) / 1024 * 1024;
    call.stages = (DR_BLOCK_SHARED - beside - 1024) / room.bytes;
    if (call.stages > DR_SCAN_MOST_STAGES) call.stages = DR_SCAN_MOST_STAGES;
    call.gates = call.stages * room.bytes, call.places = call.stages;
    return call;
}

/* Whether an instance's keys, of so many boxes of 64 channels, are wide. */
static __host__ __device__ constexpr bool dr_scan_is_wide(int boxes) {
    return boxes * 64 > DR_CUDA_STAGE_KEYS;
}

/* Behind the stages: for each, the barrier that says it is filled and the one that says it is free. */
static __host__ __device__ inline int dr_group_scan_bytes(const dr_group_scan_call &call) {
    return call.gates + call.places * 2 * (int)sizeof(uint64_t);
}

/* Where one group computes, outputs leave by the copying warps, so that nothing of them stands between one chunk's products and
 * the next one's. Behind the stages' barriers one that says that a chunk's outputs are laid, and one that they are taken; then
 * their tile. */
enum { DR_LEAVE_LAID = 0, DR_LEAVE_TAKEN = 8, DR_LEAVE_BYTES = 1024 + 64 * 64 * 2 };

static __host__ __device__ inline int dr_leave_tile(const dr_group_scan_call &call) {
    return (dr_group_scan_bytes(call) + 16 + 1023) / 1024 * 1024;
}

#ifdef DR_CUDA_WARPGROUPS

static __device__ inline unsigned dr_group_filled(const dr_group_scan_call &call, unsigned shared, int stage) {
    return shared + (unsigned)(call.gates + stage * 16);
}

static __device__ inline unsigned dr_group_free(const dr_group_scan_call &call, unsigned shared, int stage) {
    return dr_group_filled(call, shared, stage) + 8;
}

/* The same place, of which the compiler does not know that it can be found again, by an instruction that takes long. */
static __device__ inline char *dr_group_forget(char *shared) {
    return (char *)__cvta_shared_to_generic(dr_forget(dr_shared_address(shared)));
}

/* Opens the barriers of a block in which so many groups compute, before any thread meets at one. */
static __device__ inline void dr_group_open(const dr_group_scan_call &call, unsigned shared, int busy, bool leaves = false) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < call.places; i++) {
            dr_gate_open(dr_group_filled(call, shared, i), 128);
            dr_gate_open(dr_group_free(call, shared, i), 128 * busy);
        }
        const unsigned leave = shared + (unsigned)dr_group_scan_bytes(call);
        if (leaves) dr_gate_open(leave + DR_LEAVE_LAID, 128), dr_gate_open(leave + DR_LEAVE_TAKEN, 128);
    }
    __syncthreads();
}

/* Stage and turn of a chunk, both by counting. */
typedef struct {
    int stage;
    unsigned turn;
} dr_group_turn;

static __device__ inline void dr_group_next(dr_group_turn &at, int stages) {
    if (++at.stage == stages) at.stage = 0, at.turn ^= 1;
}

/* ---- copying ------------------------------------------------------------------------------------------------------------- */

/* lambda of a chunk's tokens, to a stage. */
static __device__ inline void dr_group_load_lambda(const dr_group_scan_call &call, char *stage, const dr_chunk_place &place,
                                                   int head) {
    const dr_cuda_input &input = call.call.plan.rows.input[DR_INPUT_LAMBDA];
    const float *lambda = (const float *)input.at + head * input.head;
    const int thread = (int)threadIdx.x;
    const bool there = thread < place.tokens;
    if (thread < 64)
        dr_copy_word(dr_shared_address(stage + call.lambda) + thread * 4,
                     there ? lambda + (place.first + thread) * input.token : lambda, there);
}

/* Rows at one stride that fill a tile chunk after chunk: what the thread copies of the next one, rows 16 apart. */
typedef struct {
    const char *at; /* NULL: the rows are not of this kind, or there are none */
    int step;       /* bytes from a row to the 16th after it */
    int64_t skip;   /* what is added to those of the rows to come to the next chunk */
} dr_group_stream;

/* `row`: the first, a vector of its own `stride` bytes behind the one before; `chunk` bytes from chunk to chunk. */
static __device__ inline dr_group_stream dr_group_open(const void *row, int64_t stride, int rows, int64_t chunk) {
    const int thread = (int)threadIdx.x;
    dr_group_stream stream;
    stream.at = (const char *)row + thread / 8 * stride + thread % 8 * 16;
    stream.step = (int)(16 * stride);
    stream.skip = chunk - rows * stride;
    if (16 * stride >> 31) stream.at = NULL;
    return stream;
}

/* Copies the thread's part of a tile. rows: of the tile, 64 or a smaller multiple of 16; spacing: every spacing-th row is
 * copied; to: the thread's place in the tile. there: false where vectors end before the thread's 16 bytes of the last box,
 * which become zeros. */
template <int boxes, int spacing = 1>
static __device__ inline void dr_group_fill(dr_group_stream &stream, unsigned to, int rows, bool there = true) {
    DR_UNROLL (j, 4 / spacing) {
        if (j * 16 >= rows) break;
        DR_UNROLL (box, boxes - 1) dr_copy_whole(to + j * spacing * 2048 + (unsigned)(box * rows * 128), stream.at + box * 128);
        dr_copy_async(to + j * spacing * 2048 + (unsigned)((boxes - 1) * rows * 128), stream.at + (boxes - 1) * 128, there);
        stream.at += stream.step;
    }
    stream.at += stream.skip;
}

/* An input's rows, where a vector begins at 16 bytes and `tokens` of them make up a chunk; step: 1, or -1 where the chunk
 * before is the next. */
template <typename T>
static __device__ inline dr_group_stream dr_group_open_input(const dr_cuda_chunk_plan &plan, const dr_source &source,
                                                             int64_t first, int head, int column, int tokens, bool whole,
                                                             int step = 1) {
    const dr_group_stream none = {NULL, 0, 0};
    const int64_t size = sizeof(T);
    if (!whole || !plan.rows.aligned || plan.rows.step_axis || plan.chunk != tokens) return none;
    return dr_group_open((const T *)source.at + first * source.token + head * source.head + column, source.token * size, tokens,
                         step * tokens * source.token * size);
}

/* Of two rows a token the one whose value is stored in the tile, if it is only one, else -1. */
static __device__ inline int dr_group_value_row(const dr_cuda_rows &rows) {
    const bool first = rows.row[0].values != DR_VALUES_NONE, second = rows.row[1].values != DR_VALUES_NONE;
    return first == second ? -1 : second;
}

/* All that fills a stage but write gates, chunk after chunk: X, P', R~, Q~, values, and 16 bytes a thread of factors and
 * decays, which lie one behind the other in memory of a stage; lambda. */
typedef struct {
    dr_group_stream exit, score, reader, query, values[2], numbers;
    const float *lambda;
    int64_t lambda_skip;
    unsigned mine, value_mine;           /* the thread's place in a tile */
    bool keys_there[2], values_there[2]; /* of the last box of R~ and of Q~; of values */
    bool pairs;                          /* values are every second row of their tile */
    bool whole;                          /* a whole chunk comes from here */
} dr_group_tiles;

/* block, first: of the chunk and its tokens that come first; step: 1, or -1 where the chunk before is the next. value: where
 * values come from, value_rows of them a chunk; row: of two rows a token the one that they are, else 0. */
template <typename T, int boxes, int queries, int reading>
static __device__ inline dr_group_tiles dr_group_open_tiles(const dr_group_scan_call &group_call, const dr_scan_place &place,
                                                            int key_head, int64_t block, int64_t first, const int (&columns)[2],
                                                            const dr_source &value, int value_rows, int row, int step) {
    constexpr int width = boxes * 64, row_bytes = width * (int)sizeof(T);
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const int thread = (int)threadIdx.x, asked = plan.query_rows;
    const int64_t chunk = step * (int64_t)plan.value_heads; /* in blocks */
    const auto stored = [=](const void *tensor, int count, int bytes) {
        return dr_group_open((const char *)tensor + block * count * bytes, bytes, count, chunk * count * bytes);
    };
    dr_group_tiles x = {};
    x.exit = stored(tensors.exit, 64, row_bytes), x.score = stored(tensors.score, asked, 128);
    if (reading != DR_SCAN_BLIND)
        x.reader = plan.reader_direct || reading == DR_SCAN_SUMS
                       ? dr_group_open_input<T>(plan, dr_reader_source(rows), first, key_head, 0, 64, rows.steps == 1, step)
                       : stored(tensors.reader, 64, row_bytes);
    if (queries)
        x.query = plan.query_direct ? dr_group_open_input<T>(plan, dr_query_source(rows), first, key_head, 0, asked, true, step)
                                    : stored(tensors.query, asked, row_bytes);
    const int unit = thread % 8 * 8;
    const bool keys = width - 64 + unit < rows.key_size;
    x.keys_there[0] = keys || !(plan.reader_direct || reading == DR_SCAN_SUMS), x.keys_there[1] = keys || !plan.query_direct;
    x.whole = (reading == DR_SCAN_BLIND || x.reader.at) && (!queries || (x.query.at && asked == queries)) && value_rows > 0;
    DR_UNROLL (g, 2)
        if (columns[g] >= 0) {
            x.values[g] = dr_group_open_input<T>(plan, value, first, place.head, columns[g], value_rows, true, step);
            x.values_there[g] = columns[g] + unit < rows.value_size;
            x.whole = x.whole && x.values[g].at;
        }
    x.numbers.at = thread < 64 ? (const char *)(tensors.factors + block) + thread * 16
                               : (const char *)(tensors.keep + block * width + (thread - 64) * 4);
    x.numbers.skip = chunk * (thread < 64 ? (int64_t)sizeof(dr_cuda_factors) : width * (int64_t)sizeof(float));
    if (reading == DR_SCAN_SUMS) {
        const dr_cuda_input &lambda = rows.input[DR_INPUT_LAMBDA];
        x.lambda = (const float *)lambda.at + place.head * lambda.head + (first + thread) * lambda.token;
        x.lambda_skip = step * plan.chunk * lambda.token;
    }
    x.pairs = step > 0 && rows.steps == 2;
    const int value_row = x.pairs ? thread / 8 * 2 + row : thread / 8;
    x.mine = (unsigned)(thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4));
    x.value_mine = (unsigned)(value_row * 128 + ((thread % 8 ^ value_row % 8) << 4));
    return x;
}

/* Tiles as wide as keys. queries: rows of the tile of Q~, 0: there is none, nor P'. */
template <int boxes, int queries, int reading>
static __device__ inline void dr_group_fill_tiles(const dr_group_scan_call &group_call, dr_group_tiles &x, unsigned stage) {
    const dr_scan_room &room = group_call.call.room;
    const unsigned to = stage + x.mine;
    if (reading != DR_SCAN_BLIND) dr_group_fill<boxes>(x.reader, to + (unsigned)room.reader, 64, x.keys_there[0]);
    dr_group_fill<boxes>(x.exit, to + (unsigned)room.exit, 64);
    if (queries) dr_group_fill<boxes>(x.query, to + (unsigned)room.query, queries, x.keys_there[1]);
}

/* The others. value_rows: of the tile of values that are not in pairs. */
template <int boxes, int queries, int reading, int value_rows>
static __device__ inline void dr_group_fill_rest(const dr_group_scan_call &group_call, dr_group_tiles &x, unsigned stage) {
    const dr_scan_room &room = group_call.call.room;
    const int thread = (int)threadIdx.x;
    if (queries) dr_group_fill<1>(x.score, stage + x.mine + (unsigned)room.score, queries);
    DR_UNROLL (g, 2) {
        const unsigned value = stage + x.value_mine + (unsigned)(room.value + g * 64 * 64 * 2);
        if (!x.values[g].at) continue;
        if (!x.pairs)
            dr_group_fill<1>(x.values[g], value, value_rows, x.values_there[g]);
        else
            dr_group_fill<1, 2>(x.values[g], value, 32, x.values_there[g]);
    }
    if (thread < 64 + boxes * 16) dr_copy_whole(stage + (unsigned)room.factors + thread * 16, x.numbers.at);
    x.numbers.at += x.numbers.skip;
    if (reading == DR_SCAN_SUMS) {
        if (thread < 64) dr_copy_word(stage + (unsigned)group_call.lambda + thread * 4, x.lambda, true);
        x.lambda += x.lambda_skip;
    }
}

/* The copies of the chunk that is `behind` chunks back have come to stage `told`: says so. */
template <int behind>
static __device__ inline void dr_group_tell(const dr_group_scan_call &group_call, unsigned shared, dr_group_turn &told) {
    dr_copy_wait<behind>();
    dr_shared_fence();
    dr_gate_arrive(dr_group_filled(group_call, shared, told.stage));
    dr_group_next(told, group_call.stages);
}

/* Of wide keys what the thread has asked for so far fills a stage, or the one place for the rest of a chunk: says so when it
 * has come, without waiting for it; `whole` chunks are nothing but asynchronous copies. */
static __device__ inline void dr_group_tell_soon(const dr_group_scan_call &group_call, unsigned shared, int stage, bool whole) {
    const unsigned filled = dr_group_filled(group_call, shared, stage);
    if (whole) return dr_gate_arrive_copied(filled);
    dr_copy_commit();
    dr_copy_wait<0>();
    dr_shared_fence();
    dr_gate_arrive(filled);
}

/* What a copying thread knows of the outputs: chunks of which they have left, where its part of the next ones goes, eight
 * columns of every 16th row, and bytes from one to the next and from chunk to chunk; at NULL: by general stores. */
typedef struct {
    int done;
    char *at;
    int64_t step, chunk;
} dr_leave;

template <typename T>
static __device__ inline dr_leave dr_leave_open(const dr_scan_call &call, const dr_scan_place &place, int64_t first) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int thread = (int)threadIdx.x;
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    dr_leave leave = {0, NULL, 16 * stride * (int)sizeof(T), call.plan.chunk * stride * (int)sizeof(T)};
    if (rows.aligned && place.columns + 64 <= rows.value_size)
        leave.at = (char *)((T *)call.o + (first + thread / 8) * stride + place.head * rows.value_size + place.columns +
                            thread % 8 * 8);
    return leave;
}

/* A tile of outputs to rows of o, 64 columns from `column` on. */
template <typename T>
static __device__ inline void dr_group_store_output(const dr_scan_call &call, int head, int column, int64_t token, int tokens,
                                                    const char *tile) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    const dr_strided<T> to = {(T *)call.o + token * stride + head * rows.value_size + column, stride, tokens};
    dr_store_rows<T>(to, tile, rows.value_size - column, rows.aligned);
}

/* The next chunk's outputs, when they are laid. first, last: the part's first token, and where its sequence ends. */
template <typename T, int queries>
static __device__ inline void dr_leave_chunk(const dr_group_scan_call &group_call, const dr_scan_place &place, dr_leave &leave,
                                             int64_t first, int64_t last, char *shared) {
    const dr_scan_call &call = group_call.call;
    const int thread = (int)threadIdx.x, chunk = call.plan.chunk;
    const int64_t token = first + leave.done * (int64_t)chunk, left = last - token;
    const int tokens = left < chunk ? (int)left : chunk;
    const unsigned gates = dr_shared_address(shared) + (unsigned)dr_group_scan_bytes(group_call);
    const char *tile = shared + dr_leave_tile(group_call);
    dr_gate_wait(gates + DR_LEAVE_LAID, (unsigned)leave.done % 2);
    if (leave.at) {
        const char *from = tile + thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4);
        DR_UNROLL (j, queries / 16)
            if (j * 16 + thread / 8 < tokens) *(uint4 *)(leave.at + j * leave.step) = *(const uint4 *)(from + j * 2048);
        leave.at += leave.chunk;
    } else {
        dr_group_store_output<T>(call, place.head, place.columns, token, tokens, tile);
    }
    dr_gate_arrive(gates + DR_LEAVE_TAKEN);
    leave.done++;
}

/* columns: of V that the computing groups have, from the first and from the second on; -1: none. single: one group computes,
 * and prepare may run beside the scan. */
template <typename T, int boxes, int queries, int reading, bool single>
static __device__ inline void dr_group_copy(const dr_group_scan_call &group_call, char *shared, const dr_scan_place &place,
                                            const int (&columns)[2]) {
    constexpr int width = boxes * 64;
    constexpr bool wide = dr_scan_is_wide(boxes);
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const bool gated = !wide && rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    shared = dr_group_forget(shared);
    const unsigned gates = dr_shared_address(shared);
    const int64_t last = dr_sequence_begin(plan, tensors.cu, place.sequence + 1);
    dr_chunk_place now = dr_chunk_of(plan, tensors.cu, place.sequence, place.begin);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    const int key_head = place.head / rows.group, row = rows.steps == 2 ? dr_group_value_row(rows) : 0;
    dr_group_tiles tiles = dr_group_open_tiles<T, boxes, queries, reading>(
        group_call, place, key_head, block, now.first, columns, dr_source_of(rows.input[DR_INPUT_VALUE]),
        rows.steps <= 2 && row >= 0 ? 64 / rows.steps : 0, row, 1);

    const int64_t first = now.first;
    dr_leave leave = {};
    if (single) leave = dr_leave_open<T>(call, place, first);
    dr_group_turn at = {0, 1}, told = {0, 0};
    int seen = 0; /* chunks from the next one on whose flags are known to be raised */
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        if (single && tensors.made && seen-- == 0) {
            const unsigned laid = gates + (unsigned)dr_group_scan_bytes(group_call) + DR_LEAVE_LAID;
            while ((seen = dr_flags_look(tensors.made + block, plan.value_heads, place.end - chunk)) == 0)
                if (leave.done < chunk - place.begin && __all_sync(0xffffffffu, dr_gate_passed(laid, (unsigned)leave.done % 2)))
                    dr_leave_chunk<T, queries>(group_call, place, leave, first, last, shared);
            seen--;
        }
        dr_gate_wait(dr_group_free(group_call, gates, at.stage), at.turn);
        const int64_t left = last - now.first;
        now.tokens = left < plan.chunk ? (int)left : plan.chunk;
        dr_scan_block x = {call, shared + at.stage * call.room.bytes, call.room, place.head, key_head, 0};
        const auto load = [&](dr_input input, int tile) {
            DR_UNROLL (g, 2) {
                x.columns = columns[g];
                if (columns[g] >= 0) dr_scan_load_values<T>(x, now, input, tile + g * 64 * 64 * 2);
            }
        };
        const bool whole = tiles.whole && now.tokens == plan.chunk;
        const unsigned stage = gates + (unsigned)(at.stage * call.room.bytes);
        if (whole) {
            dr_group_fill_tiles<boxes, queries, reading>(group_call, tiles, stage);
        } else {
            dr_scan_load_reader<T, width>(x, now, block);
            dr_scan_load_exit<T, width>(x, block);
            if (queries) dr_scan_load_queries<T, width>(x, now, block);
        }
        if constexpr (wide) {
            dr_group_tell_soon(group_call, gates, at.stage, whole);
            dr_gate_wait(dr_group_free(group_call, gates, group_call.stages), (unsigned)(chunk - place.begin + 1) % 2);
            x.shared = shared;
        }
        if (whole) {
            dr_group_fill_rest<boxes, queries, reading, 64>(group_call, tiles, wide ? gates : stage);
        } else {
            dr_scan_load_factors(x, block);
            if (queries) dr_scan_load_scores<T>(x, block);
            if (reading == DR_SCAN_SUMS) dr_group_load_lambda(group_call, x.shared, now, place.head);
            load(DR_INPUT_VALUE, call.room.value);
        }
        if (gated) load(DR_INPUT_WRITE_GATE, group_call.gate);
        if constexpr (wide)
            dr_group_tell_soon(group_call, gates, group_call.stages, whole);
        else
            dr_copy_commit();
        if (single) /* of chunks that have left their stage */
            while (leave.done <= chunk - place.begin - group_call.stages)
                dr_leave_chunk<T, queries>(group_call, place, leave, first, last, shared);
        if (!wide && group_call.stages == 2)
            dr_group_tell<0>(group_call, gates, told);
        else if (!wide && chunk > place.begin)
            dr_group_tell<1>(group_call, gates, told);
        dr_group_next(at, group_call.stages);
        now.first += plan.chunk;
        block += plan.value_heads;
    }
    if (wide) dr_copy_commit(), dr_copy_wait<0>();
    if (!wide && group_call.stages > 2 && place.end > place.begin) dr_group_tell<0>(group_call, gates, told);
    if (single)
        while (leave.done < place.end - place.begin) dr_leave_chunk<T, queries>(group_call, place, leave, first, last, shared);
    if (single && tensors.made) dr_beside_close();
}

#endif

#endif
