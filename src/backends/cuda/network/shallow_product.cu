/* Products of many rows of up to 128 columns with weights and a bias: y [rows, out] = x [rows, in] W [out, in]^T + bias, bf16,
 * as the second matrix of a gate that is made by two. The time to write y bounds them. A block computes a tile of y, 128 rows
 * and 128 columns, from whole rows of x and W; each of its eight warps computes 32 rows and 64 columns. The bias is added
 * before the sum is rounded. */
#include "backends/cuda/network/shallow_product.h"

#include "backends/cuda/device/fragments.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { THREADS = 256, TILE = 128, DEPTH = 128, PITCH = DEPTH + 8, CHUNK = 8, LEAST_ROWS = 1024 };
enum { TILE_BYTES = TILE * PITCH * 2, WARP_ROWS = 32, WARP_COLUMNS = 64 };

typedef __nv_bfloat16 word;

struct shallow {
    int64_t rows, out, in, x_row, tiles; /* tiles of columns of y */
    const word *x, *weight;
    const float *bias;
    const word *plus; /* [rows, out], or NULL */
    word *y;
};

/* 128 rows of a matrix, zeros behind its last row and column. */
static __device__ void load_tile(unsigned to, const word *from, int64_t row, int64_t first, int64_t rows, int in) {
    for (int i = (int)threadIdx.x; i < TILE * DEPTH / CHUNK; i += THREADS) {
        const int r = i / (DEPTH / CHUNK), column = i % (DEPTH / CHUNK) * CHUNK;
        const bool there = first + r < rows && column < in;
        dr_copy_async(to + (unsigned)(r * PITCH + column) * 2, there ? from + (first + r) * row + column : from, there);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) shallow_product(const __grid_constant__ shallow p) {
    extern __shared__ __align__(16) char shared[];
    const unsigned x = dr_shared_address(shared), w = x + TILE_BYTES;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t first = blockIdx.x / p.tiles * TILE, column = blockIdx.x % p.tiles * TILE;
    const int row = warp / 2 * WARP_ROWS, own = warp % 2 * WARP_COLUMNS; /* of the tile */
    float c[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
    dr_chain();
    load_tile(x, p.x, p.x_row, first, p.rows, (int)p.in);
    load_tile(w, p.weight, p.in, column, p.out, (int)p.in);
    dr_copy_commit();
    dr_copy_wait<0>();
    __syncthreads();
    const unsigned x_at = x + (unsigned)((row + lane % 16) * PITCH + lane / 16 * 8) * 2;
    const unsigned w_at = w + (unsigned)((own + lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
    for (int k = 0; k < (int)p.in; k += 16) {
        unsigned a[WARP_ROWS / 16][4];
#pragma unroll
        for (int m = 0; m < WARP_ROWS / 16; m++) dr_load_matrices(a[m], x_at + (unsigned)(16 * m * PITCH + k) * 2);
#pragma unroll
        for (int n = 0; n < WARP_COLUMNS / 16; n++) {
            unsigned b[4];
            dr_load_matrices(b, w_at + (unsigned)(16 * n * PITCH + k) * 2);
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; m++) {
                dr_multiply(word(), c[m][2 * n], a[m], b[0], b[1]);
                dr_multiply(word(), c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
    __syncthreads(); /* y takes the place of x */
#pragma unroll
    for (int n = 0; n < WARP_COLUMNS / 8; n++) {
        const int at = own + 8 * n + 2 * t;
        const bool there = column + at < p.out;
        const float left = there ? p.bias[column + at] : 0, right = there ? p.bias[column + at + 1] : 0;
#pragma unroll
        for (int m = 0; m < WARP_ROWS / 16; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = row + 16 * m + 8 * h + g;
                float more[2] = {left, right};
                if (p.plus && there && first + r < p.rows) {
                    const word *from = p.plus + (first + r) * p.out + column + at;
                    more[0] += dr_to_float(from[0]), more[1] += dr_to_float(from[1]);
                }
                *(unsigned *)(void *)(shared + (r * PITCH + at) * 2) =
                    dr_pack(word(), c[m][n][2 * h] + more[0], c[m][n][2 * h + 1] + more[1]);
            }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE * TILE / CHUNK; i += THREADS) {
        const int r = i / (TILE / CHUNK), at = i % (TILE / CHUNK) * CHUNK;
        if (first + r < p.rows && column + at < p.out)
            *(uint4 *)(void *)(p.y + (first + r) * p.out + column + at) =
                *(const uint4 *)(void *)(shared + (r * PITCH + at) * 2);
    }
}

bool dr_cuda_shallow_product_takes(const dr_backend *backend, const dr_linear *linear, const void *x, const void *weight,
                                   const void *bias, const void *y) {
    return backend->storage == DR_BF16 && bias && linear->rows >= LEAST_ROWS && linear->in > 0 && linear->in <= DEPTH &&
           dr_can_be_wide(CHUNK, linear->in | dr_linear_pitch(linear) | linear->out, x, weight, y);
}

dr_status dr_cuda_shallow_product(const dr_cuda *gpu, const dr_linear *linear, const void *x, const void *weight,
                                  const void *bias, void *y) {
    const shallow p = {.rows = linear->rows,
                       .out = linear->out,
                       .in = linear->in,
                       .x_row = dr_linear_pitch(linear),
                       .tiles = dr_blocks_of(linear->out, TILE),
                       .x = (const word *)x,
                       .weight = (const word *)weight,
                       .bias = (const float *)bias,
                       .plus = (const word *)linear->plus,
                       .y = (word *)y};
    return dr_launch_chained(gpu, "shallow_product", shallow_product, {p.tiles, dr_blocks_of(p.rows, TILE)}, THREADS,
                             2 * TILE_BYTES, p);
}
