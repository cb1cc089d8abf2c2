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

#include "backends/cuda/chunkwise.h"
#include "backends/cuda/places.cuh"
#include "backends/cuda/tiles.cuh"

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
    room.keep = room.factors + 64 * (int)sizeof(dr_cuda_row_factors);
    room.bytes = room.keep + plan.key_width * (int)sizeof(float);
    return room;
}

/* Vectors that reading rows take straight from an input. */
static __device__ inline dr_source dr_reader_source(const dr_cuda_rows &rows) {
    switch (rows.row[0].read) {
    case DR_READ_ERASE_KEY:
        return dr_source_of(rows.input[DR_INPUT_ERASE_KEY]);
    case DR_READ_FEEDBACK:
        return dr_source_of(rows.input[DR_INPUT_FEEDBACK_KEY]);
    case DR_READ_FREE:
        return dr_source_of(rows.input[DR_INPUT_FREE_READ]);
    default:
        return dr_source_of(rows.input[DR_INPUT_KEY]);
    }
}

/* What a thread block works on. */
typedef struct {
    const dr_scan_call &call;
    char *shared;
    const dr_scan_room &room;
    int head, key_head, columns; /* columns: the first of V */
} dr_scan_block;

template <typename T, int width>
static __device__ inline void dr_scan_load_reader(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int steps = rows.steps, alive = place.tokens * steps;
    if (plan.reads && plan.reader_direct) {
        const dr_source source = dr_reader_source(rows);
        const T *from = (const T *)source.at + place.first * source.token + x.key_head * source.head;
        dr_load_tile<T>(x.shared + x.room.reader, 64, width, rows.key_size, rows.aligned, [=](int row) {
            const int token = steps == 1 ? row : row / steps;
            return row < alive ? from + token * source.token + (row - token * steps) * source.step : (const T *)NULL;
        });
    } else if (plan.reads) {
        dr_load_matrix<T>(x.shared + x.room.reader, (const T *)x.call.tensors.reader + block * 64 * width, 64, width);
    }
}

/* A tensor of V's: value or write gate. Rows without a value are zeros. */
template <typename T>
static __device__ inline void dr_scan_load_values(const dr_scan_block &x, const dr_chunk_place &place, dr_input input,
                                                  int offset) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const dr_source source = dr_source_of(rows.input[input]);
    const int steps = rows.steps, alive = place.tokens * steps;
    const bool axis = rows.step_axis, first = rows.row[0].value != DR_VALUE_NONE, second = rows.row[1].value != DR_VALUE_NONE;
    const T *from = (const T *)source.at + place.first * source.token + x.head * source.head + x.columns;
    dr_load_tile<T>(x.shared + offset, 64, 64, rows.value_size - x.columns, rows.aligned, [=](int row) {
        const int token = steps == 1 ? row : row / steps, step = row - token * steps;
        const bool there = row < alive && (axis || step == 0 ? first : second);
        return there ? from + token * source.token + (axis ? step * source.step : 0) : (const T *)NULL;
    });
}

template <typename T>
static __device__ inline void dr_scan_load_rows(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    const int thread = (int)threadIdx.x, width = x.call.plan.key_width;
    dr_scan_load_values<T>(x, place, DR_INPUT_VALUE, x.room.value);
    if (thread < 64)
        dr_copy_async(dr_shared_address(x.shared + x.room.factors) + thread * 16, x.call.tensors.factors + block * 64 + thread,
                      true);
    else if (thread - 64 < width / 4)
        dr_copy_async(dr_shared_address(x.shared + x.room.keep) + (thread - 64) * 16,
                      x.call.tensors.keep + block * width + (thread - 64) * 4, true);
}

template <typename T, int width>
static __device__ inline void dr_scan_load_queries(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const dr_cuda_rows &rows = plan.rows;
    if (plan.query_direct) {
        const dr_source source =
            rows.query == DR_QUERY_RIDGE ? dr_source_made(rows, rows.ridge_query) : dr_source_of(rows.input[DR_INPUT_QUERY]);
        const T *from = (const T *)source.at + place.first * source.token + x.key_head * source.head;
        const int tokens = place.tokens;
        dr_load_tile<T>(x.shared + x.room.query, plan.query_rows, width, rows.key_size, rows.aligned,
                        [=](int row) { return row < tokens ? from + row * source.token : (const T *)NULL; });
    } else {
        dr_load_matrix<T>(x.shared + x.room.query, (const T *)x.call.tensors.query + block * plan.query_rows * width,
                          plan.query_rows, width);
    }
}

template <typename T, int width>
static __device__ inline void dr_scan_load_readers(const dr_scan_block &x, const dr_chunk_place &place, int64_t block) {
    dr_scan_load_reader<T, width>(x, place, block);
    if (x.call.o) dr_scan_load_queries<T, width>(x, place, block);
}

/* X and P' */
template <typename T, int width> static __device__ inline void dr_scan_load_writers(const dr_scan_block &x, int64_t block) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    dr_load_matrix<T>(x.shared + x.room.exit, (const T *)x.call.tensors.exit + block * 64 * width, 64, width);
    if (x.call.o)
        dr_load_matrix<T>(x.shared + x.room.score, (const T *)x.call.tensors.score + block * plan.query_rows * 64,
                          plan.query_rows, 64);
}

/* The warp's columns of the state before the chunk, [V][K] in T. */
template <typename T, int tiles>
static __device__ inline void dr_scan_save(const dr_scan_block &x, int64_t block, const float (&s)[tiles][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int lane = (int)(threadIdx.x % 32), column = x.columns + (int)(threadIdx.x / 32) * 16 + lane / 4;
    T *to = (T *)x.call.saved + (block * plan.value_width + column) * plan.key_width + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) dr_store_pair<T>(to + i * 8 * plan.key_width + n * 8, s[n][2 * i], s[n][2 * i + 1]);
}

/* O^T of 32 tokens from `first` on, through the warp's columns of the tile of V, which is read by then, to rows of o. */
template <typename T>
static __device__ inline void dr_scan_store_output(const dr_scan_block &x, const dr_chunk_place &place, int first,
                                                   const float (&o)[4][4]) {
    constexpr int unit = 16 / (int)sizeof(T), units = 16 / unit;
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), mine = (int)(threadIdx.x / 32) * 16;
    char *tile = x.shared + x.room.value;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
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
#pragma unroll
            for (int e = 0; e < unit; e++)
                if (column + e < columns) at[e] = ((const T *)from)[e];
        }
    }
}

/* The state of the warp's columns from or to [K][V] floats; rows and columns behind the true sizes are zero. */
template <int tiles, typename F>
static __device__ inline void dr_scan_each(const dr_scan_block &x, float (&s)[tiles][4], F visit) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), column = x.columns + (int)(threadIdx.x / 32) * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int k = n * 8 + lane % 4 * 2 + i % 2, v = column + i / 2 * 8;
            if (k < rows.key_size && v < rows.value_size) visit(s[n][i], (int64_t)k * rows.value_size + v);
        }
}

/* U^T = S^T R~^T */
template <typename T, int tiles>
static __device__ inline void dr_scan_read(const dr_scan_block &x, const float (&s)[tiles][4], float (&u)[8][4]) {
#pragma unroll
    for (int k = 0; k < tiles / 2; k++) {
        const unsigned reader = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.reader;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, s[2 * k], s[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            dr_operand_b<T> b[2];
            dr_load_b<T>(b, reader, 64, n * 16, k * 16);
            dr_product<T>(u[2 * n], a, b[0]);
            dr_product<T>(u[2 * n + 1], a, b[1]);
        }
    }
}

/* Y^T in place of U^T. Of two rows a token only one may be gated. */
template <typename T> static __device__ inline void dr_scan_update(const dr_scan_block &x, bool gated, float (&u)[8][4]) {
    const dr_cuda_rows &rows = x.call.plan.rows;
    const int mine = (int)(threadIdx.x / 32) * 16, t = (int)(threadIdx.x % 4);
    const unsigned tile = dr_forget(dr_shared_address(x.shared));
    const unsigned value = tile + (unsigned)x.room.value, gate = tile + (unsigned)x.room.reader;
    const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(x.shared + x.room.factors);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float z[2][4];
        dr_load_transposed<T>(z, value, 64, n * 16, mine);
        if (gated) {
            float w[2][4];
            dr_load_transposed<T>(w, gate, 64, n * 16, mine);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (rows.row[rows.steps == 2 ? i % 2 : 0].value == DR_VALUE_GATED) z[i / 4][i % 4] *= w[i / 4][i % 4];
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const dr_cuda_row_factors f = factors[n * 16 + h * 8 + 2 * t + j];
                const float read = f.gain * f.reader;
                float(&row)[4] = u[2 * n + h];
                row[j] = f.value * z[h][j] - read * row[j];
                row[j + 2] = f.value * z[h][j + 2] - read * row[j + 2];
            }
    }
}

/* O^T = S^T Q~^T + Y^T P'^T of 32 tokens from `first` on */
template <typename T, int tiles>
static __device__ inline void dr_scan_output(const dr_scan_block &x, const float (&s)[tiles][4], const float (&y)[8][4],
                                             int first, float (&o)[4][4]) {
    const dr_cuda_chunk_plan &plan = x.call.plan;
    const int count = plan.query_rows - first > 16 ? 2 : 1, t = (int)(threadIdx.x % 4);
    const dr_cuda_row_factors *factors = (const dr_cuda_row_factors *)(x.shared + x.room.factors) + first;
#pragma unroll
    for (int k = 0; k < tiles / 2; k++) {
        const unsigned query = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.query;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, s[2 * k], s[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (n < count) {
                dr_operand_b<T> b[2];
                dr_load_b<T>(b, query, plan.query_rows, first + n * 16, k * 16);
                dr_product<T>(o[2 * n], a, b[0]);
                dr_product<T>(o[2 * n + 1], a, b[1]);
            }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) o[i / 4][i % 4] *= factors[i / 4 * 8 + 2 * t + i % 2].query;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const unsigned score = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.score;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, y[2 * k], y[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (n < count) {
                dr_operand_b<T> b[2];
                dr_load_b<T>(b, score, plan.query_rows, first + n * 16, k * 16);
                dr_product<T>(o[2 * n], a, b[0]);
                dr_product<T>(o[2 * n + 1], a, b[1]);
            }
    }
}

/* S^T := S^T D + Y^T X */
template <typename T, int tiles>
static __device__ inline void dr_scan_write(const dr_scan_block &x, float (&s)[tiles][4], const float (&y)[8][4]) {
    const float *keep = (const float *)(x.shared + x.room.keep) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        const float2 d = *(const float2 *)(keep + n * 8);
        s[n][0] *= d.x, s[n][1] *= d.y, s[n][2] *= d.x, s[n][3] *= d.y;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const unsigned exit = dr_forget(dr_shared_address(x.shared)) + (unsigned)x.room.exit;
        dr_operand_a<T> a;
        dr_operand_from<T>(a, y[2 * k], y[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < tiles / 2; n++) {
            dr_operand_b<T> b[2];
            dr_load_b_straight<T>(b, exit, 64, k * 16, n * 16);
            dr_product<T>(s[2 * n], a, b[0]);
            dr_product<T>(s[2 * n + 1], a, b[1]);
        }
    }
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(SCAN_THREADS, sizeof(T) == 4 || boxes == 4 ? 1 : 3)
    scan(const __grid_constant__ dr_scan_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int tiles = boxes * 8, width = boxes * 64;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int groups = plan.value_width / 64, group = (int)(blockIdx.x % groups);
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads);
    const bool gated = rows.input[DR_INPUT_WRITE_GATE].at != NULL;
    const dr_scan_block x = {call, shared, call.room, head, head / rows.group, group * 64};
    const int chunks = (int)dr_sequence_chunks(plan, call.tensors.cu, sequence);
    /* where registers are short, and where the write gate needs the place, readers are asked for at the end of a chunk */
    const bool late = gated || boxes == 4 || sizeof(T) == 4;
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    const int64_t state = chain * rows.key_size * rows.value_size;

    float s[tiles][4] = {};
    if (call.initial) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { element = call.initial[state + at]; });

    const auto block_of = [&](int chunk) { return (slot + chunk) * plan.value_heads + head; };
    const auto place_of = [&](int chunk) { return dr_chunk_of(plan, call.tensors.cu, sequence, chunk); };
    if (chunks > 0) {
        dr_scan_load_reader<T, width>(x, place_of(0), block_of(0));
        dr_copy_commit();
        dr_scan_load_rows<T>(x, place_of(0), block_of(0));
        dr_copy_commit();
        dr_scan_load_writers<T, width>(x, block_of(0));
        if (call.o) dr_scan_load_queries<T, width>(x, place_of(0), block_of(0));
        dr_copy_commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        const bool more = chunk + 1 < chunks;
        float y[8][4] = {};
        if (call.saved) dr_scan_save<T, tiles>(x, block_of(chunk), s);
        dr_copy_wait<2>();
        __syncthreads(); /* R~ is there */
        if (plan.reads) dr_scan_read<T, tiles>(x, s, y);
        dr_copy_wait<1>();
        __syncthreads(); /* values and factors are there; R~ is read */
        if (gated) {
            dr_scan_load_values<T>(x, place_of(chunk), DR_INPUT_WRITE_GATE, call.room.reader);
            dr_copy_commit();
            dr_copy_wait<0>();
            __syncthreads();
        }
        if (more && !late) dr_scan_load_reader<T, width>(x, place_of(chunk + 1), block_of(chunk + 1));
        dr_copy_commit(); /* with nothing in it, too: the waits count groups */
        dr_scan_update<T>(x, gated, y);
        dr_copy_wait<1>();
        __syncthreads(); /* X, P', Q~ are there */
        if (call.o) {
#pragma unroll 1
            for (int first = 0; first < plan.query_rows; first += 32) {
                float o[4][4] = {};
                dr_scan_output<T, tiles>(x, s, y, first, o);
                dr_scan_store_output<T>(x, place_of(chunk), first, o);
            }
        }
        dr_scan_write<T, tiles>(x, s, y);
        __syncthreads(); /* all tiles but R~ are read */
        if (more) {
            if (late) dr_scan_load_reader<T, width>(x, place_of(chunk + 1), block_of(chunk + 1));
            dr_copy_commit();
            dr_scan_load_rows<T>(x, place_of(chunk + 1), block_of(chunk + 1));
            dr_copy_commit();
            dr_scan_load_writers<T, width>(x, block_of(chunk + 1));
            if (call.o) dr_scan_load_queries<T, width>(x, place_of(chunk + 1), block_of(chunk + 1));
            dr_copy_commit();
        }
    }
    if (call.final) dr_scan_each<tiles>(x, s, [&](float &element, int64_t at) { call.final[state + at] = element; });
}

#endif
