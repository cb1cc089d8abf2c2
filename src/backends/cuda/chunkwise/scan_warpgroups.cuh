/* The scan (scan.cuh) for sm_90a, 16-bit types and K up to 128: the same transposes in the same registers, but the products are
 * those of warp groups, whose operand B comes from shared memory by itself.
 *
 *     four warps     copy: tiles of the chunks ahead, two or more stages of shared memory
 *     1 or 2 groups  of four warps hold 64 columns each; what they share is the tiles
 *
 * A stage is filled when all copying threads have passed its first barrier, and free when all computing threads have passed
 * its second one (each thread by itself: racecheck does not follow one that passes for its warp): computing warps wait for
 * nobody but the copies. In a chunk U = S R~ and Q~ S are asked for at once. While they are under way the state decays, and
 * rows are made ready, so that little stands between U and X^T Y, which goes before P' Y, which nothing waits for. Where a key
 * and lambda times a query are read, Q~ S goes first and joins what the rows write while U is under way. */
#ifndef DR_CUDA_SCAN_WARPGROUPS_CUH
#define DR_CUDA_SCAN_WARPGROUPS_CUH

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
} dr_group_scan_call;

/* Parts of all heads of all sequences: one that has fewer parts than others leaves blocks idle. */
static inline int64_t dr_group_scan_chains(const dr_cuda_chunk_plan &plan) {
    return plan.sequences * plan.value_heads * plan.parts;
}

/* Groups of 64 columns of V in a thread block, which has a multiprocessor to itself: with two it loads tiles once for both,
 * with one more of the chains' blocks run at once. */
static inline int dr_group_scan_groups(const dr_cuda_chunk_plan &plan) {
    const int64_t columns = plan.value_width / DR_CUDA_COLUMNS;
    return columns > 1 && dr_group_scan_chains(plan) * columns > plan.processors ? 2 : 1;
}

/* A stage; every tile begins at a multiple of 1024 bytes. beside: bytes that the block has beside its stages. */
static inline dr_group_scan_call dr_group_scan_lay(const dr_scan_call &scan, int groups, bool gated, int beside) {
    const dr_cuda_chunk_plan &plan = scan.plan;
    const int keys = 64 * plan.key_width * 2, values = groups * 64 * 64 * 2, queries = plan.query_rows * plan.key_width * 2;
    dr_group_scan_call call = {scan, 0, 0, 0};
    dr_scan_room &room = call.call.room;
    int end = 0;
    room.reader = end, end += plan.reads ? keys : 0;
    room.exit = end, end += keys;
    room.query = end, end += scan.o || plan.reader_sum ? queries : 0;
    room.score = end, end += scan.o ? plan.query_rows * 64 * 2 : 0;
    room.value = end, end += values;
    call.gate = end, end += gated ? values : 0;
    room.factors = end, end += 64 * (int)sizeof(dr_cuda_row_factors);
    room.keep = end, end += plan.key_width * (int)sizeof(float);
    call.lambda = end, end += plan.reader_sum ? 64 * (int)sizeof(float) : 0;
    room.bytes = (end + 1023) / 1024 * 1024;
    call.stages = (DR_BLOCK_SHARED - beside - 1024) / room.bytes;
    if (call.stages > DR_SCAN_MOST_STAGES) call.stages = DR_SCAN_MOST_STAGES;
    return call;
}

/* Behind the stages: for each, the barrier that says it is filled and the one that says it is free. */
static __host__ __device__ inline int dr_group_scan_bytes(const dr_group_scan_call &call) {
    return call.stages * (call.call.room.bytes + 2 * (int)sizeof(uint64_t));
}

#ifdef DR_CUDA_WARPGROUPS

static __device__ inline unsigned dr_group_filled(const dr_group_scan_call &call, unsigned shared, int stage) {
    return shared + (unsigned)(call.stages * call.call.room.bytes + stage * 16);
}

static __device__ inline unsigned dr_group_free(const dr_group_scan_call &call, unsigned shared, int stage) {
    return dr_group_filled(call, shared, stage) + 8;
}

/* The same place, of which the compiler does not know that it can be found again, by an instruction that takes long. */
static __device__ inline char *dr_group_forget(char *shared) {
    return (char *)__cvta_shared_to_generic(dr_forget(dr_shared_address(shared)));
}

/* Opens the barriers of a block in which so many groups compute, before any thread meets at one. */
static __device__ inline void dr_group_open(const dr_group_scan_call &call, unsigned shared, int busy) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < call.stages; i++) {
            dr_gate_open(dr_group_filled(call, shared, i), 128);
            dr_gate_open(dr_group_free(call, shared, i), 128 * busy);
        }
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

/* rows: 64 or a multiple of 16 below, of which every spacing-th of the tile is meant; to: the thread's place in the tile. */
template <int boxes, int spacing = 1>
static __device__ inline void dr_group_fill(dr_group_stream &stream, unsigned to, int rows) {
#pragma unroll
    for (int j = 0; j < 4 / spacing; j++) {
        if (j * 16 >= rows) break;
#pragma unroll
        for (int box = 0; box < boxes; box++)
            dr_copy_whole(to + j * spacing * 2048 + (unsigned)(box * rows * 128), stream.at + box * 128);
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
    const bool first = rows.row[0].value != DR_VALUE_NONE, second = rows.row[1].value != DR_VALUE_NONE;
    return first == second ? -1 : second;
}

/* All that fills a stage but write gates, chunk after chunk: X, P', R~, Q~, values, and 16 bytes a thread of factors and
 * decays, which lie one behind the other in memory of a stage; lambda. */
typedef struct {
    dr_group_stream exit, score, reader, query, values[2], numbers;
    const float *lambda;
    int64_t lambda_skip;
    unsigned mine, value_mine; /* the thread's place in a tile */
    bool pairs;                /* values are every second row of their tile */
    bool whole;                /* a whole chunk comes from here */
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
    const bool whole_keys = rows.key_size == width, asks = queries || reading == DR_SCAN_SUMS;
    const auto stored = [=](const void *tensor, int count, int bytes) {
        return dr_group_open((const char *)tensor + block * count * bytes, bytes, count, chunk * count * bytes);
    };
    dr_group_tiles x = {};
    x.exit = stored(tensors.exit, 64, row_bytes), x.score = stored(tensors.score, asked, 128);
    if (reading != DR_SCAN_BLIND)
        x.reader = plan.reader_direct || reading == DR_SCAN_SUMS
                       ? dr_group_open_input<T>(plan, dr_reader_source(rows), first, key_head, 0, 64,
                                                whole_keys && rows.steps == 1, step)
                       : stored(tensors.reader, 64, row_bytes);
    if (asks)
        x.query = plan.query_direct
                      ? dr_group_open_input<T>(plan,
                                               rows.query == DR_QUERY_RIDGE ? dr_source_made(rows, rows.ridge_query)
                                                                            : dr_source_of(rows.input[DR_INPUT_QUERY]),
                                               first, key_head, 0, asked, whole_keys, step)
                      : stored(tensors.query, asked, row_bytes);
    x.whole = (reading == DR_SCAN_BLIND || x.reader.at) && (!asks || (x.query.at && asked == (queries ? queries : 64))) &&
              value_rows > 0;
#pragma unroll
    for (int g = 0; g < 2; g++)
        if (columns[g] >= 0) {
            x.values[g] = dr_group_open_input<T>(plan, value, first, place.head, columns[g], value_rows,
                                                 columns[g] + 64 <= rows.value_size, step);
            x.whole = x.whole && x.values[g].at;
        }
    x.numbers.at = thread < 64 ? (const char *)(tensors.factors + block * 64 + thread)
                               : (const char *)(tensors.keep + block * width + (thread - 64) * 4);
    x.numbers.skip = chunk * (thread < 64 ? 64 * (int64_t)sizeof(dr_cuda_row_factors) : width * (int64_t)sizeof(float));
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

/* queries: rows of the tile of Q~, 0: there is none, nor P'; value_rows: of the tile of values that are not in pairs. */
template <int boxes, int queries, int reading, int value_rows>
static __device__ inline void dr_group_fill_tiles(const dr_group_scan_call &group_call, dr_group_tiles &x, unsigned stage) {
    const dr_scan_room &room = group_call.call.room;
    const int thread = (int)threadIdx.x;
    const unsigned to = stage + x.mine;
    dr_group_fill<boxes>(x.exit, to + (unsigned)room.exit, 64);
    if (reading != DR_SCAN_BLIND) dr_group_fill<boxes>(x.reader, to + (unsigned)room.reader, 64);
    if (queries) dr_group_fill<1>(x.score, to + (unsigned)room.score, queries);
    if (queries || reading == DR_SCAN_SUMS) dr_group_fill<boxes>(x.query, to + (unsigned)room.query, queries ? queries : 64);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        const unsigned value = stage + x.value_mine + (unsigned)(room.value + g * 64 * 64 * 2);
        if (!x.values[g].at) continue;
        if (!x.pairs)
            dr_group_fill<1>(x.values[g], value, value_rows);
        else
            dr_group_fill<1, 2>(x.values[g], value, 32);
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

/* columns: of V that the computing groups have, from the first and from the second on; -1: none. */
template <typename T, int boxes, int queries, int reading>
static __device__ inline void dr_group_copy(const dr_group_scan_call &group_call, char *shared, const dr_scan_place &place,
                                            const int (&columns)[2]) {
    constexpr int width = boxes * 64;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const bool gated = rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    shared = dr_group_forget(shared);
    const unsigned gates = dr_shared_address(shared);
    const int64_t last = dr_sequence_begin(plan, tensors.cu, place.sequence + 1);
    dr_chunk_place now = dr_chunk_of(plan, tensors.cu, place.sequence, place.begin);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    const int key_head = place.head / rows.group, row = rows.steps == 2 ? dr_group_value_row(rows) : 0;
    dr_group_tiles tiles = dr_group_open_tiles<T, boxes, queries, reading>(
        group_call, place, key_head, block, now.first, columns, dr_source_of(rows.input[DR_INPUT_VALUE]),
        rows.steps <= 2 && row >= 0 ? 64 / rows.steps : 0, row, 1);

    dr_group_turn at = {0, 1}, told = {0, 0};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        if (tensors.made) dr_flag_await(tensors.made + block);
        dr_gate_wait(dr_group_free(group_call, gates, at.stage), at.turn);
        const int64_t left = last - now.first;
        now.tokens = left < plan.chunk ? (int)left : plan.chunk;
        dr_scan_block x = {call, shared + at.stage * call.room.bytes, call.room, place.head, key_head, 0};
        const auto load = [&](dr_input input, int tile) {
#pragma unroll
            for (int g = 0; g < 2; g++) {
                x.columns = columns[g];
                if (columns[g] >= 0) dr_scan_load_values<T>(x, now, input, tile + g * 64 * 64 * 2);
            }
        };
        if (tiles.whole && now.tokens == plan.chunk) {
            dr_group_fill_tiles<boxes, queries, reading, 64>(group_call, tiles, gates + (unsigned)(at.stage * call.room.bytes));
        } else {
            dr_scan_load_reader<T, width>(x, now, block);
            dr_scan_load_factors(x, block);
            dr_scan_load_writers<T, width>(x, block);
            if (reading == DR_SCAN_SUMS) dr_group_load_lambda(group_call, x.shared, now, place.head);
            if (queries || reading == DR_SCAN_SUMS) dr_scan_load_queries<T, width>(x, now, block);
            load(DR_INPUT_VALUE, call.room.value);
        }
        if (gated) load(DR_INPUT_WRITE_GATE, group_call.gate);
        dr_copy_commit();
        if (group_call.stages == 2)
            dr_group_tell<0>(group_call, gates, told);
        else if (chunk > place.begin)
            dr_group_tell<1>(group_call, gates, told);
        dr_group_next(at, group_call.stages);
        now.first += plan.chunk;
        block += plan.value_heads;
    }
    if (group_call.stages > 2 && place.end > place.begin) dr_group_tell<0>(group_call, gates, told);
    if (tensors.made) dr_beside_close();
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* C (+)= A B for operands A of `steps` times 16 contracted indices, B from a tile; box: bytes from one box of 64 columns to the
 * next. */
template <typename T, bool along, int columns, int steps>
static __device__ inline void dr_group_chain(float (&c)[columns][4], const unsigned (&a)[steps][4], unsigned tile, unsigned box,
                                             bool add) {
    const uint64_t b = dr_group_operand(tile, along ? 16 : box);
#pragma unroll
    for (int k = 0; k < steps; k++)
        dr_group_multiply<along>(T(), c, a[k], dr_group_forward(b, along ? k % 4 * 32 + k / 4 * box : k * 2048), add || k > 0);
}

/* The warp's columns of a tile of V as accumulators of the transpose, two numbers in each register (dr_load_transposed): asked
 * for while products are under way. there: the bits that are values, the even row's below; zeros for the others, and for
 * columns of the unit matrix. */
template <typename T>
static __device__ inline void dr_group_values(bool unit, unsigned there, unsigned tile, unsigned (&v)[4][4]) {
    const int mine = dr_scan_warp() * 16;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (!unit) dr_load_matrices_transposed(v[n], dr_lane_at<T>(tile + dr_lane_along<T>(), 64, n * 16, mine));
#pragma unroll
        for (int i = 0; i < 4; i++) v[n][i] = unit ? 0 : v[n][i] & there;
    }
}

/* Of eight rows of Y^T, of which a thread has two: what they write beside what they read, and the factors of that. */
typedef struct {
    float write[4], erase[2];
} dr_group_rows;

/* factors: of the thread's first row; v, w: values and write gates of the even and the odd row, and of two columns. */
template <typename T, bool gated>
static __device__ inline dr_group_rows dr_group_write(const dr_cuda_row_factors *factors, const unsigned *v, const unsigned *w,
                                                      bool even, bool odd) {
    const float4 f = *(const float4 *)factors, h = *(const float4 *)(factors + 1); /* gain, reader, value, query */
    float2 upper = dr_unpack(T(), v[0]), lower = dr_unpack(T(), v[1]);
    upper.x *= f.z, upper.y *= h.z, lower.x *= f.z, lower.y *= h.z;
    if (gated) {
        const float2 first = dr_unpack(T(), w[0]), second = dr_unpack(T(), w[1]);
        upper.x *= even ? first.x : 1.0f, upper.y *= odd ? first.y : 1.0f;
        lower.x *= even ? second.x : 1.0f, lower.y *= odd ? second.y : 1.0f;
    }
    return dr_group_rows{{upper.x, upper.y, lower.x, lower.y}, {-f.x * f.y, -h.x * h.y}};
}

/* Y^T of the rows as operands A. */
template <typename T, bool reads>
static __device__ inline void dr_group_update(const dr_group_rows &rows, const float (&u)[4], unsigned *y) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = reads ? fmaf(rows.erase[i % 2], u[i], rows.write[i]) : rows.write[i];
    y[0] = dr_pack(T(), x[0], x[1]), y[1] = dr_pack(T(), x[2], x[3]);
}

/* The same of all rows where values are gated, of two rows a token maybe only one; gate: the tile of write gates. */
template <typename T, bool reads>
static __device__ inline void dr_group_update_gated(const dr_cuda_rows &rows, const dr_cuda_row_factors *factors, unsigned gate,
                                                    const unsigned (&v)[4][4], const float (&u)[8][4], unsigned (&y)[4][4]) {
    const bool even = rows.row[0].value == DR_VALUE_GATED;
    const bool odd = rows.steps == 2 ? rows.row[1].value == DR_VALUE_GATED : even;
    unsigned w[4][4];
    dr_group_values<T>(false, 0xffffffffu, gate, w);
#pragma unroll
    for (int n = 0; n < 8; n++)
        dr_group_update<T, reads>(
            dr_group_write<T, true>(factors + n * 8, &v[n / 2][n % 2 * 2], &w[n / 2][n % 2 * 2], even, odd), u[n],
            &y[n / 2][n % 2 * 2]);
}

/* Where rows read key + lambda query, the query's part of it joins what they write. lambda, o: of the rows. */
static __device__ inline void dr_group_join(dr_group_rows &rows, const float *lambda, const float (&o)[4]) {
    const float2 mix = *(const float2 *)lambda;
    const float erase[2] = {rows.erase[0] * mix.x, rows.erase[1] * mix.y};
#pragma unroll
    for (int i = 0; i < 4; i++) rows.write[i] = fmaf(erase[i % 2], o[i], rows.write[i]);
}

/* S^T as operands A. */
template <typename T, int tiles>
static __device__ inline void dr_group_state(const float (&s)[tiles][4], unsigned (&a)[tiles / 2][4]) {
#pragma unroll
    for (int k = 0; k < tiles / 2; k++) {
        dr_operand_a<T> operand;
        dr_operand_from<T>(operand, s[2 * k], s[2 * k + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = operand.x[i];
    }
}

/* S^T := S^T D; channel: each channel has a decay of its own. One of all is read as a pair: read alone, ptxas serialises the
 * products that it stands between. */
template <int tiles, bool channel> static __device__ inline void dr_group_decay(const float *keep, float (&s)[tiles][4]) {
    const float2 all = *(const float2 *)keep;
    keep += threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        const float2 d = channel ? *(const float2 *)(keep + n * 8) : all;
        s[n][0] *= d.x, s[n][1] *= d.y, s[n][2] *= d.x, s[n][3] *= d.y;
    }
}

/* O^T to rows of o, through the warp's columns of the tile of V, which is read by then. */
template <typename T, int tiles>
static __device__ inline void dr_group_put_output(const dr_scan_call &call, const dr_scan_place &place, unsigned tile,
                                                  const char *shared, int64_t token, int tokens, const float (&o)[tiles][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), mine = dr_scan_warp() * 16;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < tiles; n += 2) {
        const unsigned x[4] = {dr_pack(T(), o[n][0], o[n][1]), dr_pack(T(), o[n][2], o[n][3]),
                               dr_pack(T(), o[n + 1][0], o[n + 1][1]), dr_pack(T(), o[n + 1][2], o[n + 1][3])};
        dr_store_matrices_transposed(dr_tile_at<T>(tile, 64, n * 8 + lane / 16 * 8 + lane % 8, mine + lane / 8 % 2 * 8), x);
    }
    __syncwarp();
    const int row = lane / 2, column = lane % 2 * 8, columns = rows.value_size - place.columns - mine - column; /* that exist */
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    T *to = (T *)call.o + (token + row) * stride + place.head * rows.value_size + place.columns + mine + column;
    const char *from = shared + (dr_tile_at<T>(tile, 64, row, mine + column) - dr_shared_address(shared));
    uint4 x[tiles / 2];
#pragma unroll
    for (int i = 0; i < tiles / 2; i++) x[i] = *(const uint4 *)(from + i * 16 * 128);
    if (columns <= 0) return;
    if (rows.aligned) {
#pragma unroll
        for (int i = 0; i < tiles / 2; i++) {
            if (i * 16 + row < tokens) *(uint4 *)to = x[i];
            to += 16 * stride;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < tiles / 2; i++) {
        const T *element = (const T *)&x[i];
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (i * 16 + row < tokens && e < columns) to[e] = element[e];
        to += 16 * stride;
    }
}

/* Four lanes that hold a column of a 4 x 4 matrix each take a row of it each. */
static __device__ inline void dr_group_exchange(unsigned (&x)[4]) {
    const int lane = (int)(threadIdx.x % 4);
#pragma unroll
    for (int step = 1; step <= 2; step++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned &low = x[step == 1 ? 2 * i : i], &high = x[step == 1 ? 2 * i + 1 : i + 2];
            const unsigned come = __shfl_xor_sync(0xffffffffu, lane & step ? low : high, step);
            low = lane & step ? come : low;
            high = lane & step ? high : come;
        }
}

/* The warp's columns of the state before the chunk, [V][K], from its operands: 16 bytes a lane. */
template <typename T, int steps>
static __device__ inline void dr_group_save(const dr_scan_call &call, const dr_scan_place &place, int64_t block,
                                            const unsigned (&a)[steps][4]) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int lane = (int)(threadIdx.x % 32), column = place.columns + dr_scan_warp() * 16 + lane / 4;
    T *to = (T *)call.saved + (block * plan.value_width + column) * (steps * 16) + lane % 4 * 8;
#pragma unroll
    for (int k = 0; k < steps; k += 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned x[4] = {a[k][i], a[k][i + 2], a[k + 1][i], a[k + 1][i + 2]};
            dr_group_exchange(x);
            *(uint4 *)(to + i * 8 * steps * 16 + k * 16) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

/* queries: columns of O^T, 32 or 64, or 0 where what parts do to a state is wanted, without outputs. */
template <typename T, int boxes, int groups, int queries, int reading, bool channel>
static __device__ inline void dr_group_compute(const dr_group_scan_call &group_call, char *shared, int group, unsigned columns,
                                               unsigned rest) {
    constexpr int tiles = boxes * 8, steps = tiles / 2, rows = queries ? queries / 8 : 8;
    constexpr bool reads = reading != DR_SCAN_BLIND, sums = reading == DR_SCAN_SUMS;
    /* what registers hold while products are under way: numbers of rows made ahead, eighths; decays of each channel */
    constexpr int ahead = queries ? groups == 1 && !channel ? 4 : 0 : channel ? 4 : 8;
    constexpr bool decays_ahead = queries && groups == 2 && channel;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    shared = dr_group_forget(shared);
    const unsigned gates = dr_shared_address(shared);
    const dr_scan_place place = dr_scan_find(call, columns, rest);
    if (dr_scan_idle(call, place)) return;
    const dr_scan_block x = {call, shared, call.room, place.head, place.head / plan.rows.group, place.columns, place.unit};
    const int only = plan.rows.steps == 2 && !plan.rows.step_axis ? dr_group_value_row(plan.rows) : -1;
    const unsigned there = only == 0 ? 0x0000ffffu : only == 1 ? 0xffff0000u : 0xffffffffu;
    float s[tiles][4] = {};
    dr_scan_begin<tiles>(x, place, s);
    int64_t token = dr_sequence_begin(plan, call.tensors.cu, place.sequence) + (int64_t)place.begin * plan.chunk;
    const int64_t end = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1);
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    dr_group_turn at = {0, 0};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        const char *stage = shared + at.stage * call.room.bytes;
        const unsigned tile = gates + (unsigned)(at.stage * call.room.bytes);
        const unsigned value = tile + (unsigned)(call.room.value + group * 64 * 64 * 2);
        const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(stage + call.room.factors) + threadIdx.x % 4 * 2;
        const float *lambda = (const float *)(stage + group_call.lambda) + threadIdx.x % 4 * 2;
        unsigned a[steps][4], v[4][4], y[4][4];
        float u[8][4], o[rows][4];
        dr_group_rows ready[8];
        dr_gate_wait(dr_group_filled(group_call, gates, at.stage), at.turn);
        const float *keep = (const float *)(stage + call.room.keep);
        dr_group_state<T, tiles>(s, a);
        if (decays_ahead) dr_group_decay<tiles, channel>(keep, s);
        dr_group_settle(s);
        dr_group_begin();
        if (sums) dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, 8192, false), dr_group_commit();
        if (reads) dr_group_chain<T, true>(u, a, tile + (unsigned)call.room.reader, 8192, false), dr_group_commit();
        if (queries && !sums)
            dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, plan.query_rows * 128, false), dr_group_commit();
        if (queries && call.saved) dr_group_save<T, steps>(call, place, block, a);
        dr_group_settle(s);
        if (!decays_ahead) dr_group_decay<tiles, channel>(keep, s);
        dr_group_values<T>(place.unit, there, value, v);
        const bool gates_now = !sums && gated && !place.unit;
        const auto make = [&](int n) {
            dr_group_rows made = dr_group_write<T, false>(factors + n * 8, &v[n / 2][n % 2 * 2], NULL, false, false);
            if constexpr (sums) dr_group_join(made, lambda + n * 8, o[n]);
            return made;
        };
        if (sums) dr_group_wait<1>();
        if (!gates_now)
#pragma unroll
            for (int n = 0; n < ahead; n++) ready[n] = make(n);
        if (reads) dr_group_wait<queries && !sums ? 1 : 0>();
        if (gates_now)
            dr_group_update_gated<T, reads>(plan.rows, factors, tile + (unsigned)(group_call.gate + group * 64 * 64 * 2), v, u,
                                            y);
        else
#pragma unroll
            for (int n = 0; n < 8; n++) dr_group_update<T, reads>(n < ahead ? ready[n] : make(n), u[n], &y[n / 2][n % 2 * 2]);
        if (queries) {
            dr_group_wait<0>();
#pragma unroll
            for (int n = 0; n < rows; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) o[n][i] *= factors[n * 8 + i % 2].query;
        }
        dr_group_begin();
        dr_group_chain<T, false>(s, y, tile + (unsigned)call.room.exit, 8192, true);
        if (queries) dr_group_chain<T, true>(o, y, tile + (unsigned)call.room.score, 0, true);
        dr_group_commit();
        dr_group_wait<0>();
        if (queries) {
            const int64_t left = end - token;
            dr_group_put_output<T, rows>(call, place, value, shared, token, left < plan.chunk ? (int)left : plan.chunk, o);
        }
        dr_gate_arrive(dr_group_free(group_call, gates, at.stage));
        dr_group_next(at, group_call.stages);
        token += plan.chunk;
        block += plan.value_heads;
    }
    /* found once more rather than kept in registers */
    dr_scan_end<tiles>(x, dr_scan_find(call, dr_forget(columns), dr_forget(rest)), s);
}

#endif

template <typename T, int boxes, int groups, int queries, int reading, bool channel>
static __global__ void __launch_bounds__(128 + 128 * groups, 1)
    scan_warpgroups(const __grid_constant__ dr_group_scan_call group_call) {
#ifdef DR_CUDA_WARPGROUPS
    extern __shared__ __align__(1024) char shared[];
    const dr_scan_call &call = group_call.call;
    const unsigned all = (unsigned)dr_scan_groups(call), blocks = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x % blocks * groups, rest = blockIdx.x / blocks;
    int busy = 0, columns[2] = {-1, -1};
#pragma unroll
    for (int g = 0; g < groups; g++) {
        const dr_scan_place place = dr_scan_find(call, first + g, rest);
        if (first + g >= all || dr_scan_idle(call, place)) continue;
        if (!place.unit) columns[g] = place.columns;
        busy++;
    }
    if (busy == 0) return;
    dr_group_open(group_call, dr_shared_address(shared), busy);
    if (threadIdx.x < 128) {
        if (groups == 2) dr_registers_give<56>();
        dr_group_copy<T, boxes, queries, reading>(group_call, shared, dr_scan_find(call, first, rest), columns);
    } else {
        if (groups == 2) dr_registers_take<224>();
        const unsigned g = threadIdx.x / 128 - 1;
        if (first + g < all)
            dr_group_compute<T, boxes, groups, queries, reading, channel>(group_call, shared, (int)g, first + g, rest);
    }
#endif
}

#endif
