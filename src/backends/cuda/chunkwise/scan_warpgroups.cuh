/* The scan (scan.cuh) for sm_90a, 16-bit types and K up to 128: the same transposes in the same registers, but the products are
 * those of warp groups, whose operand B comes from shared memory by itself.
 *
 *     four warps     copy: tiles of the chunks ahead, two or more stages of shared memory
 *     1 or 2 groups  of four warps hold 64 columns each; what they share is the tiles
 *
 * A stage is filled when all copying threads have passed its first barrier, and free when all computing threads have passed
 * its second one (each thread by itself: racecheck does not follow one that passes for its warp): computing warps wait for
 * nobody but the copies. In a chunk U = S R~ and Q~ S are asked for at once, and the values are taken from U while the second
 * is under way; X^T Y goes before P' Y, which nothing waits for. */
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

/* The copies of the chunk that is `behind` chunks back have come: says so. */
template <int behind> static __device__ inline void dr_group_tell(unsigned gate) {
    dr_copy_wait<behind>();
    dr_shared_fence();
    dr_gate_arrive(gate);
}

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

/* columns: of V that the computing groups have, from the first and from the second on; -1: none. */
template <typename T, int boxes>
static __device__ inline void dr_group_copy(const dr_group_scan_call &group_call, char *shared, const dr_scan_place &place,
                                            const int (&columns)[2]) {
    constexpr int width = boxes * 64;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const bool gated = rows.input[DR_INPUT_WRITE_GATE].at != NULL, whole_keys = rows.key_size == width;
    const unsigned gates = dr_shared_address(shared);
    const int thread = (int)threadIdx.x, queries = plan.query_rows, key_head = place.head / rows.group;
    const unsigned mine = (unsigned)(thread / 8 * 128 + ((thread % 8 ^ thread / 8 % 8) << 4));
    const int64_t last = dr_sequence_begin(plan, tensors.cu, place.sequence + 1), heads = plan.value_heads;
    dr_chunk_place now = dr_chunk_of(plan, tensors.cu, place.sequence, place.begin);
    int64_t block = (place.slot + place.begin) * heads + place.head;

    constexpr int row_bytes = width * (int)sizeof(T);
    const auto stored = [=](const void *tensor, int count, int bytes) {
        return dr_group_open((const char *)tensor + block * count * bytes, bytes, count, heads * count * bytes);
    };
    dr_group_stream exit = stored(tensors.exit, 64, row_bytes), score = stored(tensors.score, queries, 128);
    const bool sums = plan.reader_sum, reader_direct = plan.reader_direct || sums;
    dr_group_stream reader = !plan.reads     ? dr_group_stream{NULL, 0, 0}
                             : reader_direct ? dr_group_open_input<T>(plan, dr_reader_source(rows), now.first, key_head, 0, 64,
                                                                      whole_keys && rows.steps == 1)
                                             : stored(tensors.reader, 64, row_bytes);
    dr_group_stream query =
        plan.query_direct ? dr_group_open_input<T>(plan,
                                                   rows.query == DR_QUERY_RIDGE ? dr_source_made(rows, rows.ridge_query)
                                                                                : dr_source_of(rows.input[DR_INPUT_QUERY]),
                                                   now.first, key_head, 0, queries, whole_keys)
                          : stored(tensors.query, queries, row_bytes);
    dr_group_stream values[2];
    const int row = rows.steps == 2 ? dr_group_value_row(rows) : 0, value_row = thread / 8 * rows.steps + row;
    const unsigned value_mine = (unsigned)(value_row * 128 + ((thread % 8 ^ value_row % 8) << 4));
#pragma unroll
    for (int g = 0; g < 2; g++)
        values[g] = dr_group_open_input<T>(
            plan, dr_source_of(rows.input[DR_INPUT_VALUE]), now.first, place.head, columns[g], 64 / rows.steps,
            columns[g] >= 0 && columns[g] + 64 <= rows.value_size && rows.steps <= 2 && row >= 0);

    dr_group_turn at = {0, 1}, told = {0, 0};
    for (int chunk = place.begin; chunk < place.end; chunk++) {
        if (tensors.made) dr_flag_await(tensors.made + block);
        dr_gate_wait(dr_group_free(group_call, gates, at.stage), at.turn);
        const int64_t left = last - now.first;
        now.tokens = left < plan.chunk ? (int)left : plan.chunk;
        const bool full = now.tokens == plan.chunk;
        dr_scan_block x = {call, shared + at.stage * call.room.bytes, call.room, place.head, key_head, 0};
        const unsigned stage = gates + (unsigned)(at.stage * call.room.bytes) + mine;
        if (reader.at && (full || !reader_direct))
            dr_group_fill<boxes>(reader, stage + (unsigned)call.room.reader, 64);
        else
            dr_scan_load_reader<T, width>(x, now, block);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            x.columns = columns[g];
            if (columns[g] < 0) continue;
            const unsigned to = stage - mine + value_mine + (unsigned)(call.room.value + g * 64 * 64 * 2);
            if (full && values[g].at && rows.steps == 1)
                dr_group_fill<1>(values[g], to, 64);
            else if (full && values[g].at)
                dr_group_fill<1, 2>(values[g], to, 32);
            else
                dr_scan_load_values<T>(x, now, DR_INPUT_VALUE, call.room.value + g * 64 * 64 * 2);
            if (gated) dr_scan_load_values<T>(x, now, DR_INPUT_WRITE_GATE, group_call.gate + g * 64 * 64 * 2);
        }
        dr_scan_load_factors(x, block);
        dr_group_fill<boxes>(exit, stage + (unsigned)call.room.exit, 64);
        if (sums) dr_group_load_lambda(group_call, x.shared, now, place.head);
        if (call.o) dr_group_fill<1>(score, stage + (unsigned)call.room.score, queries);
        if (call.o || sums) {
            if (query.at && (full || !plan.query_direct))
                dr_group_fill<boxes>(query, stage + (unsigned)call.room.query, queries);
            else
                dr_scan_load_queries<T, width>(x, now, block);
        }
        dr_copy_commit();
        if (group_call.stages == 2) {
            dr_group_tell<0>(dr_group_filled(group_call, gates, told.stage));
            dr_group_next(told, group_call.stages);
        } else if (chunk > place.begin) {
            dr_group_tell<1>(dr_group_filled(group_call, gates, told.stage));
            dr_group_next(told, group_call.stages);
        }
        dr_group_next(at, group_call.stages);
        now.first += plan.chunk;
        block += heads;
    }
    if (group_call.stages > 2 && place.end > place.begin) dr_group_tell<0>(dr_group_filled(group_call, gates, told.stage));
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

/* Y^T as operands A, from U^T and the values. Of two rows a token only one may be gated; gate: the tile of write gates. */
template <typename T, bool reads, bool gated>
static __device__ inline void dr_group_update(const dr_cuda_rows &rows, const dr_cuda_row_factors *factors, unsigned gate,
                                              const unsigned (&v)[4][4], const float (&u)[8][4], unsigned (&y)[4][4]) {
    factors += threadIdx.x % 4 * 2;
    const bool even = gated && rows.row[0].value == DR_VALUE_GATED;
    const bool odd = gated && rows.steps == 2 ? rows.row[1].value == DR_VALUE_GATED : even;
    unsigned w[4][4];
    if (gated) dr_group_values<T>(false, 0xffffffffu, gate, w);
#pragma unroll
    for (int n = 0; n < 8; n++) { /* two rows, and columns g and g + 8 */
        const float4 f = *(const float4 *)&factors[n * 8], h = *(const float4 *)&factors[n * 8 + 1];
        float2 upper = dr_unpack(T(), v[n / 2][n % 2 * 2]), lower = dr_unpack(T(), v[n / 2][n % 2 * 2 + 1]);
        upper.x *= f.z, upper.y *= h.z, lower.x *= f.z, lower.y *= h.z; /* gain, reader, value, query */
        if (gated) {
            const float2 first = dr_unpack(T(), w[n / 2][n % 2 * 2]), second = dr_unpack(T(), w[n / 2][n % 2 * 2 + 1]);
            upper.x *= even ? first.x : 1.0f, upper.y *= odd ? first.y : 1.0f;
            lower.x *= even ? second.x : 1.0f, lower.y *= odd ? second.y : 1.0f;
        }
        if (reads) {
            const float read = -f.x * f.y, read_right = -h.x * h.y;
            upper.x = fmaf(read, u[n][0], upper.x), upper.y = fmaf(read_right, u[n][1], upper.y);
            lower.x = fmaf(read, u[n][2], lower.x), lower.y = fmaf(read_right, u[n][3], lower.y);
        }
        y[n / 2][n % 2 * 2] = dr_pack(T(), upper.x, upper.y);
        y[n / 2][n % 2 * 2 + 1] = dr_pack(T(), lower.x, lower.y);
    }
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

/* The same; and S^T := S^T D. */
template <typename T, int tiles>
static __device__ inline void dr_group_leave(const float *keep, float (&s)[tiles][4], unsigned (&a)[tiles / 2][4]) {
    keep += threadIdx.x % 4 * 2;
    dr_group_state<T, tiles>(s, a);
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        const float2 d = *(const float2 *)(keep + n * 8);
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
template <typename T, int boxes, int queries, int reading>
static __device__ inline void dr_group_compute(const dr_group_scan_call &group_call, char *shared, int group, unsigned columns,
                                               unsigned rest) {
    constexpr int tiles = boxes * 8, steps = tiles / 2, rows = queries ? queries / 8 : 8;
    constexpr bool reads = reading != DR_SCAN_BLIND, asks = queries || reading == DR_SCAN_SUMS;
    const dr_scan_call &call = group_call.call;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
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
        const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(stage + call.room.factors);
        unsigned a[steps][4], v[4][4], y[4][4];
        float u[8][4], o[rows][4];
        dr_gate_wait(dr_group_filled(group_call, gates, at.stage), at.turn);
        dr_group_leave<T, tiles>((const float *)(stage + call.room.keep), s, a);
        dr_group_begin();
        if (reads) dr_group_chain<T, true>(u, a, tile + (unsigned)call.room.reader, 8192, false), dr_group_commit();
        if (asks) {
            dr_group_chain<T, true>(o, a, tile + (unsigned)call.room.query, plan.query_rows * 128, false);
            dr_group_commit();
            if (queries && call.saved) dr_group_save<T, steps>(call, place, block, a);
        }
        dr_group_values<T>(place.unit, there, value, v);
        if (reads) dr_group_wait<reading == DR_SCAN_READS && asks ? 1 : 0>();
        if constexpr (reading == DR_SCAN_SUMS) {
            const float *lambda = (const float *)(stage + group_call.lambda) + threadIdx.x % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) u[n][i] = fmaf(lambda[n * 8 + i % 2], o[n][i], u[n][i]);
        }
        if (gated && !place.unit)
            dr_group_update<T, reads, true>(plan.rows, factors, tile + (unsigned)(group_call.gate + group * 64 * 64 * 2), v, u,
                                            y);
        else
            dr_group_update<T, reads, false>(plan.rows, factors, 0, v, u, y);
        if (queries) {
            dr_group_wait<0>();
#pragma unroll
            for (int n = 0; n < rows; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) o[n][i] *= factors[n * 8 + threadIdx.x % 4 * 2 + i % 2].query;
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

template <typename T, int boxes, int groups, int queries, int reading>
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
        dr_group_copy<T, boxes>(group_call, shared, dr_scan_find(call, first, rest), columns);
    } else {
        if (groups == 2) dr_registers_take<224>();
        const unsigned g = threadIdx.x / 128 - 1;
        if (first + g < all) dr_group_compute<T, boxes, queries, reading>(group_call, shared, (int)g, first + g, rest);
    }
#endif
}

#endif
