/* The scan: chunk after chunk the state S of 64 columns of V, and the outputs.
 *
 *     Y = Z - diag(c) R~ S      O = Q~ S + P' Y      S := D S + X^T Y
 *
 * One block of four warps holds 64 columns of one head of one sequence; each warp owns 16 of them and shares nothing with the
 * others but the tiles of R~, Q~, X, P' and V in shared memory. It works on transposes, S^T [16 x K], Y^T and O^T [16 x 64], so
 * that every result of a product is operand A of the next and no product waits for shared memory. Row factors then scale
 * columns of accumulators. The tiles of the next chunk are asked for as soon as a barrier says that the last ones are read. */
#ifndef DR_CUDA_SCAN_CUH
#define DR_CUDA_SCAN_CUH

#include "backends/cuda/device/tiles.cuh"
#include "backends/cuda/plan/chunkwise.h"
#include "backends/cuda/plan/find.cuh"
#include "backends/cuda/rows/source.cuh"

enum { SCAN_THREADS = 128 };

/* Bytes of shared memory, and where things lie in it. */
typedef struct {
    int reader, query, exit, score, value, factors, keep, bytes;
} dr_scan_room;

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
    const float *initial;
    float *final;
    void *o, *saved;
    dr_scan_room room;
    bool summary; /* what parts do to a state, without outputs: local and passage */
} dr_scan_call;

static __host__ __device__ inline dr_scan_room dr_scan_lay(const dr_cuda_chunk_plan &plan, int element, bool gated) {
    dr_scan_room room;
    const int keys = plan.key_width * element, query_bytes = plan.query_rows * keys;
    int reader_bytes = plan.reads ? 64 * keys : 0;
    if (gated && reader_bytes < 64 * 64 * element) reader_bytes = 64 * 64 * element; /* the write gate takes its place */
    room.reader = 0;
    room.query = room.reader + reader_bytes;
    room.exit = room.query + query_bytes;
    room.score = room.exit + 64 * keys;
    room.value = room.score + plan.query_rows * 64 * element;
    room.factors = room.value + 64 * 64 * element;
    room.keep = room.factors + (int)sizeof(dr_cuda_factors);
    room.bytes = room.keep + plan.key_width * (int)sizeof(float);
    return room;
}

/* The warp among the four that hold 64 columns. */
static __device__ inline int dr_scan_warp() {
    return (int)(threadIdx.x / 32 % 4);
}

/* What a thread block works on. */
typedef struct {
    const dr_scan_call &call;
    char *shared;
    const dr_scan_room &room;
    int head, key_head, columns; /* columns: the first of V */
    bool unit;                   /* the columns are those of the unit matrix, and there are no values */
} dr_scan_block;

template <typename T, int width>
static __device__ inline void dr_scan_load_reader(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const dr_cuda_rows &rows = plan.rows;
    if (!plan.reads) return;
    char *tile = x.shared + x.room.reader;
    if (plan.reader_direct || plan.reader_sum) { /* of a sum its first part */
        const dr_source source = dr_reader_source(rows);
        const dr_strided<T> from = {(const T *)source.at + place.first * source.token + x.key_head * source.head,
                                    rows.step_axis ? source.step : source.token, place.tokens * rows.steps};
        dr_copy_rows<T>(tile, 64, width / 64, rows.key_size, rows.aligned, 64, 0, 1, from);
    } else {
        const dr_strided<T> from = {(const T *)x.call.tensors.reader + block * 64 * width, width, 64};
        dr_copy_rows<T>(tile, 64, width / 64, width, true, 64, 0, 1, from);
    }
}

/* Vectors of one head of a chunk's tokens, columns `column` .. of `size`, to boxes of 64 rows; zeros where there are none. */
template <typename T>
static __device__ inline void dr_load_tokens(char *tile, const dr_source &source, const dr_chunk_place &place, int head,
                                             int column, int size, int boxes, bool aligned) {
    const dr_strided<T> from = {(const T *)source.at + place.first * source.token + head * source.head + column, source.token,
                                place.tokens};
    dr_copy_rows<T>(tile, 64, boxes, size - column, aligned, 64, 0, 1, from);
}

/* 64 columns of a tensor of V's, value or write gate, to a tile of a chunk's rows. Rows without a value are zeros. */
template <typename T>
static __device__ inline void dr_load_values(char *tile, const dr_cuda_rows &rows, const dr_chunk_place &place, int head,
                                             int column, dr_input input) {
    const dr_source source = dr_source_of(rows.input[input]);
    dr_strided<T> from = {(const T *)source.at + place.first * source.token + head * source.head + column, source.token,
                          place.tokens};
    const int size = rows.value_size - column;
    if (rows.step_axis || rows.steps == 1) {
        if (rows.step_axis) from.stride = source.step, from.alive *= rows.steps;
        dr_copy_rows<T>(tile, 64, 1, size, rows.aligned, 64, 0, 1, from);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        dr_strided<T> row = from;
        if (rows.row[i].values == DR_VALUES_NONE) row.at = NULL;
        dr_copy_rows<T>(tile, 64, 1, size, rows.aligned, 32, i, 2, row);
    }
}

template <typename T>
static __device__ inline void dr_scan_load_values(const dr_scan_block &x, const dr_chunk_place &place, dr_input input,
                                                  int offset) {
    char *tile = x.shared + offset;
    const dr_strided<T> none = {NULL, 0, 0};
    if (x.unit)
        dr_copy_rows<T>(tile, 64, 1, 64, true, 64, 0, 1, none);
    else
        dr_load_values<T>(tile, x.call.plan.rows, place, x.head, x.columns, input);
}

static __device__ inline void dr_scan_load_factors(const dr_scan_block &x, int64_t block) {
    const int thread = (int)threadIdx.x, width = x.call.plan.key_width;
    if (thread < 64)
        dr_copy_async(dr_shared_address(x.shared + x.room.factors) + thread * 16,
                      (const char *)(x.call.tensors.factors + block) + thread * 16, true);
    else if (thread - 64 < width / 4)
        dr_copy_async(dr_shared_address(x.shared + x.room.keep) + (thread - 64) * 16,
                      x.call.tensors.keep + block * width + (thread - 64) * 4, true);
}

template <typename T>
static __device__ inline void dr_scan_load_rows(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    dr_scan_load_values<T>(x, place, DR_INPUT_VALUE, x.room.value);
    dr_scan_load_factors(x, block);
}

template <typename T, int width>
static __device__ inline void dr_scan_load_queries(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const dr_cuda_rows &rows = plan.rows;
    char *tile = x.shared + x.room.query;
    if (plan.query_direct) {
        const dr_source source = dr_query_source(rows);
        const dr_strided<T> from = {(const T *)source.at + place.first * source.token + x.key_head * source.head, source.token,
                                    place.tokens};
        dr_copy_rows<T>(tile, plan.query_rows, width / 64, rows.key_size, rows.aligned, plan.query_rows, 0, 1, from);
    } else {
        const dr_strided<T> from = {(const T *)x.call.tensors.query + block * plan.query_rows * width, width, plan.query_rows};
        dr_copy_rows<T>(tile, plan.query_rows, width / 64, width, true, plan.query_rows, 0, 1, from);
    }
}

template <typename T, int width>
static __device__ inline void dr_scan_load_readers(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    dr_scan_load_reader<T, width>(x, place, block);
    if (x.call.o) dr_scan_load_queries<T, width>(x, place, block);
}

/* X */
template <typename T, int width> static __device__ inline void dr_scan_load_exit(const dr_scan_block &x, int64_t block) {
    const dr_strided<T> exit = {(const T *)x.call.tensors.exit + block * 64 * width, width, 64};
    dr_copy_rows<T>(x.shared + x.room.exit, 64, width / 64, width, true, 64, 0, 1, exit);
}

/* P' */
template <typename T> static __device__ inline void dr_scan_load_scores(const dr_scan_block &x, int64_t block) {
    const int queries = x.call.plan.query_rows;
    const dr_strided<T> score = {(const T *)x.call.tensors.score + block * queries * 64, 64, queries};
    dr_copy_rows<T>(x.shared + x.room.score, queries, 1, 64, true, queries, 0, 1, score);
}

template <typename T, int width> static __device__ inline void dr_scan_load_writers(const dr_scan_block &x, int64_t block) {
    dr_scan_load_exit<T, width>(x, block);
    if (x.call.o) dr_scan_load_scores<T>(x, block);
}

/* The warp's columns of the state before the chunk, [V][K] in T. */
template <typename T, int tiles>
static __device__ inline void dr_scan_save(const dr_scan_block &x, int64_t block, const float (&s)[tiles][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int lane = (int)(threadIdx.x % 32), column = x.columns + dr_scan_warp() * 16 + lane / 4;
    T *to = (T *)x.call.saved + (block * plan.value_width + column) * plan.key_width + lane % 4 * 2;
    DR_UNROLL (n, tiles)
        DR_UNROLL (i, 2) dr_store_pair<T>(to + i * 8 * plan.key_width + n * 8, s[n][2 * i], s[n][2 * i + 1]);
}

/* O^T of 32 tokens from `first` on, through the warp's columns of the tile of V, which is read by then, to rows of o. */
template <typename T>
static __device__ inline void dr_scan_store_output(const dr_scan_block &x, const dr_chunk_place &place, int first,
                                                   const float (&o)[4][4]) {
    constexpr int unit = 16 / (int)sizeof(T), units = 16 / unit;
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), mine = dr_scan_warp() * 16;
    char *tile = x.shared + x.room.value;
    __syncwarp();
    DR_UNROLL (n, 4)
        DR_UNROLL (i, 4)
            *(T *)(tile + dr_tile_at<T>(0, 64, n * 8 + lane % 4 * 2 + i % 2, mine + lane / 4 + i / 2 * 8)) =
                dr_from_float<T>(o[n][i]);
    __syncwarp();
    const int columns = rows.value_size - x.columns - mine; /* that exist, of the warp's 16 */
    const int64_t stride = (int64_t)rows.value_heads * rows.value_size;
    T *to = (T *)x.call.o + (place.first + first) * stride + x.head * rows.value_size + x.columns + mine;
    for (int i = lane; i < 32 * units; i += 32) {
        const int token = i / units, column = i % units * unit;
        if (first + token >= place.tokens) break;
        const char *from = tile + dr_tile_at<T>(0, 64, token, mine + column);
        T *at = to + token * stride + column;
        if (rows.aligned && column < columns) {
            *(uint4 *)at = *(const uint4 *)from;
        } else {
            DR_UNROLL (e, unit)
                if (column + e < columns) at[e] = ((const T *)from)[e];
        }
    }
}

/* The state of the warp's columns from or to [K][V] floats; rows and columns behind the true sizes are zero. */
template <int tiles, typename F>
static __device__ inline void dr_scan_each(const dr_scan_block &x, float (&s)[tiles][4], F visit) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), column = x.columns + dr_scan_warp() * 16 + lane / 4;
    DR_UNROLL (n, tiles)
        DR_UNROLL (i, 4) {
            const int k = n * 8 + lane % 4 * 2 + i % 2, v = column + i / 2 * 8;
            if (k < rows.key_size && v < rows.value_size) visit(s[n][i], (int64_t)k * rows.value_size + v);
        }
}

/* C += A B for operands A of `steps` times 16 contracted indices; B: the transpose of rows first .. of a tile at `tile` in
 * shared memory, `count` times 16 of them. */
template <typename T, int steps, int blocks>
static __device__ inline void dr_scan_multiply(const dr_scan_block &x, const float (&a)[2 * steps][4], int tile, int rows,
                                               int first, int count, float (&c)[2 * blocks][4]) {
    DR_UNROLL (k, steps) {
        const unsigned at = dr_forget(dr_shared_address(x.shared)) + (unsigned)tile;
        dr_operand_a<T> left;
        dr_operand_from<T>(left, a[2 * k], a[2 * k + 1]);
        DR_UNROLL (n, blocks)
            if (n < count) {
                dr_operand_b<T> b[2];
                dr_load_b<T>(b, at, rows, first + n * 16, k * 16);
                dr_product<T>(c[2 * n], left, b[0]);
                dr_product<T>(c[2 * n + 1], left, b[1]);
            }
    }
}

/* Y^T in place of U^T. Of two rows a token only one may be gated. */
template <typename T> static __device__ inline void dr_scan_update(const dr_scan_block &x, bool gated, float (&u)[8][4]) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int mine = dr_scan_warp() * 16, t = (int)(threadIdx.x % 4);
    const unsigned tile = dr_forget(dr_shared_address(x.shared));
    const unsigned value = tile + (unsigned)x.room.value, gate = tile + (unsigned)x.room.reader;
    const dr_cuda_factors &factors = *(const dr_cuda_factors *)(x.shared + x.room.factors);
    DR_UNROLL (n, 4) {
        float z[2][4];
        dr_load_transposed<T>(z, value, 64, n * 16, mine);
        if (gated) {
            float w[2][4];
            dr_load_transposed<T>(w, gate, 64, n * 16, mine);
            DR_UNROLL (i, 8)
                if (rows.row[rows.steps == 2 ? i % 2 : 0].values == DR_VALUES_GATED) z[i / 4][i % 4] *= w[i / 4][i % 4];
        }
        DR_UNROLL (h, 2)
            DR_UNROLL (j, 2) {
                const int i = n * 16 + h * 8 + 2 * t + j;
                const float write = factors.value[i], erase = factors.erase[i];
                float(&row)[4] = u[2 * n + h];
                row[j] = write * z[h][j] - erase * row[j];
                row[j + 2] = write * z[h][j + 2] - erase * row[j + 2];
            }
    }
}

/* O^T = S^T Q~^T + Y^T P'^T of 32 tokens from `first` on */
template <typename T, int tiles>
static __device__ inline void dr_scan_output(const dr_scan_block &x, const float (&s)[tiles][4], const float (&y)[8][4],
                                             int first, float (&o)[4][4]) {
    const int rows = x.call.plan.query_rows, count = rows - first > 16 ? 2 : 1, t = (int)(threadIdx.x % 4);
    const float *factors = ((const dr_cuda_factors *)(x.shared + x.room.factors))->query + first;
    dr_scan_multiply<T, tiles / 2, 2>(x, s, x.room.query, rows, first, count, o);
    DR_UNROLL (i, 16) o[i / 4][i % 4] *= factors[i / 4 * 8 + 2 * t + i % 2];
    dr_scan_multiply<T, 4, 2>(x, y, x.room.score, rows, first, count, o);
}

/* S^T := S^T D + Y^T X */
template <typename T, int tiles>
static __device__ inline void dr_scan_write(const dr_scan_block &x, float (&s)[tiles][4], const float (&y)[8][4]) {
    dr_scale_columns(s, (const float *)(x.shared + x.room.keep));
    DR_UNROLL (k, 4) {
        const unsigned exit = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.exit;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, y[2 * k], y[2 * k + 1]);
        DR_UNROLL (n, tiles / 2) {
            dr_operand_b<T> b[2];
            dr_load_b_straight<T>(b, exit, 64, k * 16, n * 16);
            dr_product<T>(s[2 * n], a, b[0]);
            dr_product<T>(s[2 * n + 1], a, b[1]);
        }
    }
}

/* The state of the warp's columns from or to [V][K] floats, whole: those between parts. */
template <int tiles, bool store>
static __device__ inline void dr_scan_pass(const dr_scan_block &x, float (&s)[tiles][4], float *states) {
    const int lane = (int)(threadIdx.x % 32), column = x.columns + dr_scan_warp() * 16 + lane / 4;
    float *at = states + column * tiles * 8 + lane % 4 * 2;
    DR_UNROLL (n, tiles)
        DR_UNROLL (i, 2) {
            float2 *pair = (float2 *)(at + i * 8 * tiles * 8 + n * 8);
            if (store) {
                *pair = make_float2(s[n][2 * i], s[n][2 * i + 1]);
            } else {
                const float2 from = *pair;
                s[n][2 * i] = from.x, s[n][2 * i + 1] = from.y;
            }
        }
}

template <int tiles> static __device__ inline void dr_scan_unit(const dr_scan_block &x, float (&s)[tiles][4]) {
    const int lane = (int)(threadIdx.x % 32), column = x.columns + dr_scan_warp() * 16 + lane / 4;
    DR_UNROLL (n, tiles)
        DR_UNROLL (i, 4) s[n][i] = n * 8 + lane % 4 * 2 + i % 2 == column + i / 2 * 8 ? 1.0f : 0.0f;
}

/* Which columns of which part of which chain a thread block takes. */
typedef struct {
    int64_t sequence, chain;
    int head, columns, part, parts, begin, end; /* chunks of the part */
    bool unit;
    bool trimmed;        /* of a summary: they are those of its chunks that do */
    int64_t slot, place; /* the first of the sequence's slots; of the part among those of parts and heads */
} dr_scan_place;

/* Groups of 64 columns that a part has: of V and, where it is asked what parts do to a state, of the unit matrix. */
static __host__ __device__ inline int dr_scan_groups(const dr_scan_call &call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    return plan.value_width / 64 + (call.summary && plan.reads ? plan.key_width / 64 : 0);
}

/* rest: chain and part. */
static __device__ inline dr_scan_place dr_scan_find(const dr_scan_call &call, unsigned group, unsigned rest) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned value_groups = (unsigned)plan.value_width / 64, chain = rest / (unsigned)plan.parts;
    dr_scan_place place;
    int32_t length;
    place.chain = chain;
    place.sequence = chain / (unsigned)plan.value_heads;
    place.head = (int)(chain % (unsigned)plan.value_heads);
    place.unit = group >= value_groups;
    place.columns = (int)(place.unit ? group - value_groups : group) * 64;
    place.part = (int)(rest % (unsigned)plan.parts);
    const int chunks = (int)dr_sequence_chunks(plan, call.tensors.cu, place.sequence);
    place.parts = dr_sequence_parts(plan, call.tensors.cu, place.sequence, &length);
    place.begin = place.part * length;
    place.end = place.begin + length < chunks ? place.begin + length : chunks;
    place.slot = dr_sequence_slot(plan, call.tensors.cu, place.sequence);
    place.place = (place.slot / DR_CUDA_PART_CHUNKS + place.part) * plan.value_heads + place.head;
    place.trimmed = false;
    return place;
}

/* Of a part that a summary takes: what of its last chunks do, -1: all are wanted. */
static __device__ inline int dr_scan_trim(const dr_scan_call &call, unsigned rest) {
    const dr_scan_place place = dr_scan_find(call, 0, rest);
    return place.part + 1 < place.parts ? dr_trim_of(call.tensors, place.place).last : -1;
}

/* As dr_scan_find, but for what has been trimmed. */
static __device__ inline dr_scan_place dr_scan_find_trimmed(const dr_scan_call &call, unsigned group, unsigned rest, int trim) {
    dr_scan_place place = dr_scan_find(call, group, rest);
    place.trimmed = trim >= 0;
    if (place.trimmed) place.begin = place.end - trim;
    return place;
}

static __device__ inline dr_scan_block dr_scan_block_of(const dr_scan_call &call, char *shared, const dr_scan_place &place) {
    return {call, shared, call.room, place.head, place.head / call.plan.rows.group, place.columns, place.unit};
}

/* Whether there is nothing to do: no such part, or nobody asks what the last one does to a state, or how the first, or one of
 * which some chunks do, passes one on. */
static __device__ inline bool dr_scan_idle(const dr_scan_call &call, const dr_scan_place &place) {
    return place.part >= place.parts ||
           (call.summary && (place.part == place.parts - 1 || (place.unit && (place.part == 0 || place.trimmed))));
}

/* What a part begins with: it stands in `between`, or (edge) is given, and then a summary puts it there, since what is given
 * may lie where the result goes. */
template <int tiles>
static __device__ inline void dr_scan_enter(const dr_scan_block &x, const dr_scan_place &place, bool edge, bool summary,
                                            const float *given, float *between, float (&s)[tiles][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    between += place.place * plan.value_width * plan.key_width;
    if (place.parts > 1 && !summary) {
        dr_scan_pass<tiles, false>(x, s, between);
    } else if (edge) {
        const float *from = given + place.chain * plan.rows.key_size * plan.rows.value_size;
        if (given) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { element = from[at]; });
        if (summary) dr_scan_pass<tiles, true>(x, s, between);
    }
}

/* The state that a part begins with, and where the one after it goes. */
template <int tiles>
static __device__ inline void dr_scan_begin(const dr_scan_block &x, const dr_scan_place &place, float (&s)[tiles][4]) {
    const dr_scan_call &call = x.call;
    if (place.unit)
        dr_scan_unit<tiles>(x, s);
    else
        dr_scan_enter<tiles>(x, place, place.part == 0, call.summary, call.initial, call.tensors.entry, s);
}

template <int tiles>
static __device__ inline void dr_scan_end(const dr_scan_block &x, const dr_scan_place &place, float (&s)[tiles][4]) {
    const dr_scan_call &call = x.call;
    const dr_cuda_rows &rows = call.plan.rows;
    const int64_t width = call.plan.key_width;
    if (call.summary) {
        dr_scan_pass<tiles, true>(x, s,
                                  place.unit ? call.tensors.passage + place.place * width * width
                                             : call.tensors.local + place.place * call.plan.value_width * width);
    } else if (call.final && place.part == place.parts - 1) {
        float *final = call.final + place.chain * rows.key_size * rows.value_size;
        dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { final[at] = element; });
    }
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(SCAN_THREADS, sizeof(T) == 4 || boxes == 4 ? 1 : 3)
    scan(const __grid_constant__ dr_scan_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int tiles = boxes * 8, width = boxes * 64;
    const dr_cuda_chunk_plan &plan = call.plan;
    const bool gated = plan.rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    /* where registers are short, and where the write gate needs the place, readers are asked for at the end of a chunk */
    const bool late = gated || boxes == 4 || sizeof(T) == 4;
    const unsigned groups = (unsigned)dr_scan_groups(call);
    const dr_scan_place place = dr_scan_find(call, blockIdx.x % groups, blockIdx.x / groups);
    const dr_scan_block x = dr_scan_block_of(call, shared, place);
    if (dr_scan_idle(call, place)) return;
    float s[tiles][4] = {};
    dr_scan_begin<tiles>(x, place, s);

    /* chunk at hand, and where it is; block: of the tensors between the stages */
    dr_chunk_place now = dr_chunk_of(plan, call.tensors.cu, place.sequence, place.begin), next = now;
    int left = place.end - place.begin;
    int64_t block = (place.slot + place.begin) * plan.value_heads + place.head;
    if (left > 0) {
        dr_scan_load_reader<T, width>(x, now, block);
        dr_copy_commit();
        dr_scan_load_rows<T>(x, now, block);
        dr_copy_commit();
        dr_scan_load_writers<T, width>(x, block);
        if (call.o) dr_scan_load_queries<T, width>(x, now, block);
        dr_copy_commit();
    }
    int64_t tokens = dr_sequence_begin(plan, call.tensors.cu, place.sequence + 1) - now.first; /* from this chunk on */
    for (; left > 0; left--) {
        const bool more = left > 1;
        float y[8][4] = {};
        now.tokens = tokens < plan.chunk ? (int)tokens : plan.chunk;
        next.first = now.first + plan.chunk;
        next.tokens = tokens < 2 * plan.chunk ? (int)tokens - plan.chunk : plan.chunk;
        if (call.saved) dr_scan_save<T, tiles>(x, block, s);
        dr_copy_wait<2>();
        __syncthreads(); /* R~ is there */
        if (plan.reads) dr_scan_multiply<T, tiles / 2, 4>(x, s, x.room.reader, 64, 0, 4, y);
        dr_copy_wait<1>();
        __syncthreads(); /* values and factors are there; R~ is read */
        if (gated) {
            dr_scan_load_values<T>(x, now, DR_INPUT_WRITE_GATE, call.room.reader);
            dr_copy_commit();
            dr_copy_wait<0>();
            __syncthreads();
        }
        if (more && !late) dr_scan_load_reader<T, width>(x, next, block + plan.value_heads);
        dr_copy_commit(); /* with nothing in it, too: the waits count groups */
        dr_scan_update<T>(x, gated, y);
        dr_copy_wait<1>();
        __syncthreads(); /* X, P', Q~ are there */
        if (call.o) {
#pragma unroll 1
            for (int first = 0; first < plan.query_rows; first += 32) {
                float o[4][4] = {};
                dr_scan_output<T, tiles>(x, s, y, first, o);
                dr_scan_store_output<T>(x, now, first, o);
            }
        }
        dr_scan_write<T, tiles>(x, s, y);
        __syncthreads(); /* all tiles but R~ are read */
        now.first = next.first;
        tokens -= plan.chunk;
        block += plan.value_heads;
        if (more) {
            if (late) dr_scan_load_reader<T, width>(x, next, block);
            dr_copy_commit();
            dr_scan_load_rows<T>(x, next, block);
            dr_copy_commit();
            dr_scan_load_writers<T, width>(x, block);
            if (call.o) dr_scan_load_queries<T, width>(x, next, block);
            dr_copy_commit();
        }
    }
    const unsigned again = dr_forget(blockIdx.x); /* found once more rather than kept in registers */
    dr_scan_end<tiles>(x, dr_scan_find(call, again % groups, again / groups), s);
}

#endif
