/* Products of few rows with weights, as one token of each sequence has them: y [rows, out] = x [rows, in] W [out, in]^T, bf16.
 * What bounds them is reading W once. A block takes 16 TALL rows of W and 8 WIDE rows of x; its warps share the depth, 64
 * columns at a time in turn, and their sums are added in the order of the warps. So a row of y has the same bits whatever other
 * rows there are, and whatever the sizes of a block.
 *
 * In the instruction's terms W is A and x is B. A lane loads 16 bytes, eight neighbouring columns of its row, of both; two
 * products take them, each four columns of a lane, which are others than the instruction has in mind but the same of A and B.
 *
 * Parameters do not follow from the kernel before: what a warp multiplies first of them, all of it if the depth is not beyond
 * 512 AHEAD, is in registers when that kernel's end is waited for, and the rest is asked for, up to the second-level cache.
 * What writes parameters therefore lets no kernel begin before it has ended (dr_cuda_store_vectors). */
#include "backends/cuda/network/rows_product.h"

#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, UNIT = 64, STEP = WARPS * UNIT, OUTS = 16, EARLY = 1024, LINE = 128 };

typedef __nv_bfloat16 word;

struct product {
    int64_t rows, out, in, x_row, tiles; /* tiles of rows of W, of each tile of rows of x in turn */
    const word *x, *weight;
    const float *bias; /* [out], or NULL */
    const word *plus;  /* [rows, out], or NULL */
    word *y;
    bool computed, wide; /* y, bias and plus can be reached four elements at a time */
};

/* Blocks that begin at once ask for their rows of W from a column on. */
static __device__ void ask(const product &p, int64_t first, int outs, int64_t from) {
    const int64_t rows = p.out - first < outs ? p.out - first : (int64_t)outs;
    if (blockIdx.x >= EARLY || from >= p.in) return;
    const int64_t bytes = (p.in - from) * (int64_t)sizeof(word), lines = (bytes + LINE - 1) / LINE;
    for (int64_t i = threadIdx.x; i < rows * lines; i += THREADS) {
        const int64_t at = i % lines * LINE; /* the last line of a row ends within it */
        dr_prefetch((const char *)(p.weight + (first + i / lines) * p.in + from) + (at < bytes ? at : bytes - 1));
    }
}

/* Eight neighbours of a row, or zeros. */
static __device__ uint4 load(const word *row, int64_t at, int64_t in) {
    return row && at < in ? *(const uint4 *)(const void *)(row + at) : make_uint4(0, 0, 0, 0);
}

/* sums [WARPS][rows of x][PITCH]: a warp's lanes store to all banks, and float4 are aligned */
template <int TALL, int WIDE> struct block {
    static constexpr int PITCH = OUTS * TALL + 4, ROWS = 8 * WIDE, EACH_THREAD = OUTS * TALL * ROWS >= 4 * THREADS ? 4 : 1;
    static constexpr int BYTES = WARPS * ROWS * PITCH * (int)sizeof(float);
};

/* Neighbours of a row of y, from a row of the block on. */
template <int TALL, int WIDE>
static __device__ void finish(const product &p, const float *sums, int64_t first_row, int64_t first) {
    typedef block<TALL, WIDE> of;
    constexpr int N = of::EACH_THREAD, LOADS = OUTS * TALL / N;
    for (int i = (int)threadIdx.x; i < of::ROWS * LOADS; i += THREADS) {
        const int inner = i / LOADS;
        const int64_t row = first_row + inner, column = first + i % LOADS * N;
        if (row >= p.rows || column >= p.out) continue;
        dr_floats<N> sum = dr_same<N>(0);
#pragma unroll
        for (int s = 0; s < WARPS; s++) {
            const float *part = sums + (s * of::ROWS + inner) * of::PITCH + i % LOADS * N;
            EACH sum.at[n] += part[n];
        }
        if (p.wide) {
            const dr_floats<N> b = p.bias ? dr_load_floats<N>(p.bias + column) : dr_same<N>(0);
            const dr_floats<N> added = p.plus ? dr_load_floats<N>(p.plus + row * p.out + column) : dr_same<N>(0);
            EACH sum.at[n] += b.at[n] + added.at[n];
            dr_store_floats<N>(p.y + row * p.out + column, sum);
            continue;
        }
        for (int n = 0; n < N && column + n < p.out; n++) {
            const float b = p.bias ? p.bias[column + n] : 0;
            const float added = p.plus ? dr_to_float(p.plus[row * p.out + column + n]) : 0;
            p.y[row * p.out + column + n] = dr_from_float<word>(sum.at[n] + (b + added));
        }
    }
}

/* AHEAD: turns of a warp whose weights it loads at once */
template <int TALL, int WIDE, int AHEAD>
static __global__ void __launch_bounds__(THREADS) rows_product(const __grid_constant__ product p) {
    extern __shared__ __align__(16) char shared[];
    typedef block<TALL, WIDE> of;
    float *const sums = (float *)(void *)shared;
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int64_t first = blockIdx.x % p.tiles * (OUTS * TALL), first_row = blockIdx.x / p.tiles * of::ROWS;
    const word *w[TALL][2], *const x = p.x + (first_row + g) * p.x_row;
    const int left = p.rows - first_row - g < of::ROWS ? (int)(p.rows - first_row) - g : of::ROWS; /* rows from the lane's on */
    float c[TALL][WIDE][4] = {};
    uint4 a[AHEAD][2][TALL][2];
    const auto load_weights = [&](int64_t begin) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int h = 0; h < 2 * TALL; h++)
                    a[u][half][h / 2][h % 2] = load(w[h / 2][h % 2], begin + u * STEP + half * (UNIT / 2) + 8 * t, p.in);
    };
    const int64_t own = (int64_t)warp * UNIT;
#pragma unroll
    for (int h = 0; h < 2 * TALL; h++)
        w[h / 2][h % 2] = first + 8 * h + g < p.out ? p.weight + (first + 8 * h + g) * p.in : NULL;
    if (p.computed) dr_chain();
    load_weights(own);
    ask(p, first, OUTS * TALL, AHEAD * STEP);
    if (!p.computed) dr_chain();
    for (int64_t begin = own; begin < p.in; begin += AHEAD * STEP) {
        if (begin != own) load_weights(begin);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    const int64_t at = begin + u * STEP + half * (UNIT / 2) + 8 * t;
                    const uint4 b = load(8 * j < left ? x + 8 * j * p.x_row : NULL, at, p.in);
#pragma unroll
                    for (int k = 0; k < TALL; k++) {
                        const uint4(&rows)[2] = a[u][half][k];
                        dr_multiply(word(), c[k][j], {rows[0].x, rows[1].x, rows[0].y, rows[1].y}, b.x, b.y);
                        dr_multiply(word(), c[k][j], {rows[0].z, rows[1].z, rows[0].w, rows[1].w}, b.z, b.w);
                    }
                }
            }
    }
#pragma unroll
    for (int k = 0; k < TALL; k++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                sums[(warp * of::ROWS + 8 * j + 2 * t + n % 2) * of::PITCH + OUTS * k + n / 2 * 8 + g] = c[k][j][n];
    __syncthreads();
    finish<TALL, WIDE>(p, sums, first_row, first);
}

bool dr_cuda_rows_product_takes(const dr_backend *backend, const dr_linear *linear, const void *x, const void *weight) {
    const int64_t pitch = dr_linear_pitch(linear);
    return backend->storage == DR_BF16 && linear->rows <= DR_CUDA_FEW_ROWS && linear->in > 0 &&
           dr_can_be_wide(8, linear->in | pitch, x, weight);
}

template <int TALL, int WIDE, int AHEAD> static dr_status launch(const dr_cuda *gpu, product p) {
    p.tiles = dr_blocks_of(p.out, OUTS * TALL);
    return dr_launch_chained(gpu, "rows_product", rows_product<TALL, WIDE, AHEAD>, {p.tiles, dr_blocks_of(p.rows, 8 * WIDE)},
                             THREADS, block<TALL, WIDE>::BYTES, p);
}

/* Of up to 32 and of more rows: as many rows of W a block as leave each multiprocessor one, since every block reads its rows of
 * x anew. */
template <int WIDE> static dr_status launch_some(const dr_cuda *gpu, const product &p) {
    if (p.out > 4096) return launch < 3, WIDE, WIDE == 8 ? 1 : 2 > (gpu, p);
    if (p.out > 2048) return launch<2, WIDE, 2>(gpu, p);
    return p.in > 2 * STEP ? launch < 1, WIDE, WIDE == 8 ? 3 : 6 > (gpu, p) : launch<1, WIDE, 2>(gpu, p);
}

template <int WIDE> static dr_status launch_few(const dr_cuda *gpu, const product &p) {
    return p.in > 2 * STEP ? launch<1, WIDE, 6>(gpu, p) : launch<1, WIDE, 2>(gpu, p);
}

dr_status dr_cuda_rows_product(const dr_cuda *gpu, const dr_linear *linear, const void *x, const void *weight, const void *bias,
                               void *y) {
    const product p = {.rows = linear->rows,
                       .out = linear->out,
                       .in = linear->in,
                       .x_row = dr_linear_pitch(linear),
                       .tiles = 0,
                       .x = (const word *)x,
                       .weight = (const word *)weight,
                       .bias = (const float *)bias,
                       .plus = (const word *)linear->plus,
                       .y = (word *)y,
                       .computed = linear->computed,
                       .wide = dr_can_be_wide(4, linear->out, y, bias, linear->plus)};
    if (p.rows <= 8) return launch_few<1>(gpu, p);
    if (p.rows <= 16) return launch_few<2>(gpu, p);
    return p.rows <= 32 ? launch_some<4>(gpu, p) : launch_some<8>(gpu, p);
}
