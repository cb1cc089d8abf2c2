/* Products of few rows with weights, as one token of each sequence has them: y [rows, out] = x [rows, in] W [out, in]^T, bf16.
 * What bounds them is reading W once. A block takes 16 rows of W and all rows of x; its warps share the depth, 64 columns
 * at a time in turn, and their sums are added in the order of the warps. So a row of y has the same bits whatever other rows
 * there are.
 *
 * In the instruction's terms W is A and x is B. A lane loads 16 bytes, eight neighbouring columns of its row, of both; two
 * products take them, each four columns of a lane, which are others than the instruction has in mind but the same of A and B.
 *
 * Weights do not follow from the kernel before, so that they are asked for, up to the second-level cache, before its end is
 * waited for. */
#include "backends/cuda/network/rows_product.h"

#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, UNIT = 64, AHEAD = 3, OUTS = 16, EARLY = 1024, LINE = 128 };

typedef __nv_bfloat16 word;

struct product {
    int64_t rows, out, in, x_row;
    const word *x, *weight;
    const float *bias; /* [out], or NULL */
    const word *plus;  /* [rows, out], or NULL */
    word *y;
};

/* Blocks that begin at once ask for their rows of W. */
static __device__ void ask(const product &p, int64_t first) {
    const int64_t rows = p.out - first < OUTS ? p.out - first : (int64_t)OUTS;
    const char *from = (const char *)(p.weight + first * p.in);
    if (blockIdx.x >= EARLY) return;
    for (int64_t at = (int64_t)threadIdx.x * LINE; at < rows * p.in * (int64_t)sizeof(word); at += THREADS * LINE)
        dr_prefetch(from + at);
}

/* Eight neighbours of a row, or zeros. */
static __device__ uint4 load(const word *row, int64_t at, int64_t in) {
    return row && at < in ? *(const uint4 *)(const void *)(row + at) : make_uint4(0, 0, 0, 0);
}

/* 8 WIDE rows of x */
template <int WIDE> static __global__ void __launch_bounds__(THREADS) rows_product(const __grid_constant__ product p) {
    __shared__ float sums[WARPS][8][OUTS]; /* of 8 rows of x at a time */
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int64_t first = (int64_t)blockIdx.x * OUTS;
    const word *w[2], *x[WIDE];
    float c[WIDE][4] = {};
    ask(p, first);
    dr_chain();
#pragma unroll
    for (int h = 0; h < 2; h++) w[h] = first + 8 * h + g < p.out ? p.weight + (first + 8 * h + g) * p.in : NULL;
#pragma unroll
    for (int j = 0; j < WIDE; j++) x[j] = 8 * j + g < p.rows ? p.x + (8 * j + g) * p.x_row : NULL;
    for (int64_t begin = (int64_t)warp * UNIT; begin < p.in; begin += WARPS * UNIT * AHEAD) {
        uint4 a[AHEAD][2][2];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    a[u][half][h] = load(w[h], begin + u * WARPS * UNIT + half * (UNIT / 2) + 8 * t, p.in);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    const uint4 b = load(x[j], begin + u * WARPS * UNIT + half * (UNIT / 2) + 8 * t, p.in);
                    const uint4(&of)[2] = a[u][half];
                    dr_multiply(word(), c[j], {of[0].x, of[1].x, of[0].y, of[1].y}, b.x, b.y);
                    dr_multiply(word(), c[j], {of[0].z, of[1].z, of[0].w, of[1].w}, b.z, b.w);
                }
    }
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        if (j > 0) __syncthreads();
#pragma unroll
        for (int n = 0; n < 4; n++) sums[warp][2 * t + n % 2][n / 2 * 8 + g] = c[j][n];
        __syncthreads();
        if (threadIdx.x >= 8 * OUTS) continue;
        const int64_t row = 8 * j + threadIdx.x / OUTS, column = first + threadIdx.x % OUTS;
        if (row >= p.rows || column >= p.out) continue;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < WARPS; s++) sum += sums[s][threadIdx.x / OUTS][threadIdx.x % OUTS];
        if (p.bias || p.plus) sum += (p.bias ? p.bias[column] : 0) + (p.plus ? dr_to_float(p.plus[row * p.out + column]) : 0);
        p.y[row * p.out + column] = dr_from_float<word>(sum);
    }
}

bool dr_cuda_rows_product_takes(const dr_backend *backend, const dr_linear *linear, const void *x, const void *weight) {
    const int64_t pitch = dr_linear_pitch(linear);
    return backend->storage == DR_BF16 && linear->rows <= DR_CUDA_FEW_ROWS && linear->in > 0 &&
           dr_can_be_wide(8, linear->in | pitch, x, weight);
}

dr_status dr_cuda_rows_product(const dr_cuda *gpu, const dr_linear *linear, const void *x, const void *weight, const void *bias,
                               void *y) {
    const product p = {linear->rows,    linear->out,          linear->in,          dr_linear_pitch(linear),
                       (const word *)x, (const word *)weight, (const float *)bias, (const word *)linear->plus,
                       (word *)y};
    return dr_launch_chained(gpu, "rows_product", p.rows <= 8 ? rows_product<1> : rows_product<2>, {dr_blocks_of(p.out, OUTS)},
                             THREADS, 0, p);
}
