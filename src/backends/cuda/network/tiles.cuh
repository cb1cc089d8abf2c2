/* Products of tiles in shared memory by one warp each: c [16][8 NB] += a [16][depth] b [8 NB][depth]^T, sums in float.
 *
 * bf16 goes by mma.sync, float by ordinary multiplications (TF32 would cost float32 its precision). Both hold c as mma.sync
 * does: c[nb][i] of a lane is row lane / 4 + i / 2 * 8, column 8 nb + lane % 4 * 2 + i % 2. Rows of tiles are DR_TILE_ROW
 * elements apart, so that the 32 lanes of a load of operands find 32 banks. */
#ifndef DR_CUDA_NETWORK_TILES_CUH
#define DR_CUDA_NETWORK_TILES_CUH

#include "backends/cuda/network/vectors.cuh"

enum { DR_TILE = 64, DR_TILE_ROW = DR_TILE + 8, DR_TILE_WARPS = 4, DR_TILE_THREADS = 32 * DR_TILE_WARPS };

/* Bytes of a tile of 64 rows. */
template <typename T> constexpr int dr_tile_bytes() {
    return DR_TILE * DR_TILE_ROW * (int)sizeof(T);
}

static __device__ inline unsigned dr_pair_at(const __nv_bfloat16 *at) {
    unsigned pair;
    memcpy(&pair, at, sizeof pair);
    return pair;
}

/* depth: a multiple of 16. All lanes of the warp call it. */
template <int NB>
static __device__ inline void dr_multiply_tiles(float (&c)[NB][4], const __nv_bfloat16 *a, const __nv_bfloat16 *b, int depth) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int k = 0; k < depth; k += 16) {
        const __nv_bfloat16 *const at = a + g * DR_TILE_ROW + k + 2 * t;
        const unsigned rows[4] = {dr_pair_at(at), dr_pair_at(at + 8 * DR_TILE_ROW), dr_pair_at(at + 8),
                                  dr_pair_at(at + 8 * DR_TILE_ROW + 8)};
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const __nv_bfloat16 *const column = b + (8 * nb + g) * DR_TILE_ROW + k + 2 * t;
            dr_multiply(__nv_bfloat16(), c[nb], rows, dr_pair_at(column), dr_pair_at(column + 8));
        }
    }
}

template <int NB>
static __device__ inline void dr_multiply_tiles(float (&c)[NB][4], const float *a, const float *b, int depth) {
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int k = 0; k < depth; k++) {
        const float upper = a[g * DR_TILE_ROW + k], lower = a[(g + 8) * DR_TILE_ROW + k];
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const float left = b[(8 * nb + 2 * t) * DR_TILE_ROW + k], right = b[(8 * nb + 2 * t + 1) * DR_TILE_ROW + k];
            c[nb][0] += upper * left, c[nb][1] += upper * right;
            c[nb][2] += lower * left, c[nb][3] += lower * right;
        }
    }
}

template <int NB> static __device__ inline void dr_zero_tile(float (&c)[NB][4]) {
#pragma unroll
    for (int nb = 0; nb < NB; nb++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[nb][i] = 0;
}

/* Row and column of c[nb][i]. */
static __device__ inline int dr_tile_row(int i) {
    return (int)threadIdx.x % 32 / 4 + i / 2 * 8;
}

static __device__ inline int dr_tile_column(int nb, int i) {
    return 8 * nb + (int)threadIdx.x % 4 * 2 + i % 2;
}

#endif
