/* What the backward's kernels of warp groups share: products of boxes of 64 x 64 numbers of 16 bits, and what stands in them
 * where a thread's accumulators do. */
#ifndef DR_CUDA_GROUP_TILES_CUH
#define DR_CUDA_GROUP_TILES_CUH

#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/chunkwise/prepare_warpgroups.cuh"
#include "backends/cuda/chunkwise/scan.cuh"

enum { BOX = 64 * 64 * 2 };

/* Over the four lanes that share rows of an accumulator. */
static __device__ inline float2 sum_of_four(float2 x) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const float left = __shfl_xor_sync(0xffffffffu, x.x, step), right = __shfl_xor_sync(0xffffffffu, x.y, step);
        x.x += left;
        x.y += right;
    }
    return x;
}

#ifdef DR_CUDA_WARPGROUPS

/* C (+)= A B, 64 contracted: A rows of a box or (turned) the transpose of its rows; B the transpose of the rows of another
 * (along), or its rows. */
template <typename T, bool turned, bool along>
static __device__ inline void chain(float (&c)[8][4], unsigned a_box, unsigned b_box, bool add) {
    const uint64_t a = dr_group_operand(a_box, 16), b = dr_group_operand(b_box, 16);
    DR_UNROLL (k, 4)
        dr_group_multiply_tiles<turned, along>(T(), c, dr_group_forward(a, k * (turned ? 2048 : 32)),
                                               dr_group_forward(b, k * (along ? 32 : 2048)), add || k > 0);
}

/* C += A B, A in registers, B rows of a box. */
template <typename T> static __device__ inline void chain_rows(float (&c)[8][4], const unsigned (&a)[4][4], unsigned b_box) {
    const uint64_t b = dr_group_operand(b_box, 16);
    DR_UNROLL (k, 4) dr_group_multiply<false>(T(), c, a[k], dr_group_forward(b, k * 2048), 1);
}

/* Accumulators as 16 bits to a box: the warp's 16 rows. */
template <typename T> static __device__ inline void put_box(unsigned box, const unsigned (&x)[4][4]) {
    const int lane = (int)(threadIdx.x % 32), own = lane % 16;
    box += (unsigned)((dr_scan_warp() * 16 + own) * 128);
    DR_UNROLL (n, 4) dr_store_matrices(box + (unsigned)(((2 * n + lane / 16) ^ own % 8) << 4), x[n]);
}

/* Accumulators as operands A, which is also how put_box takes them. */
template <typename T> static __device__ inline void operands_of(unsigned (&a)[4][4], const float (&c)[8][4]) {
    DR_UNROLL (k, 4)
        DR_UNROLL (i, 4) a[k][i] = dr_pack(T(), c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* Accumulators as operands A, a high and a low part. */
template <typename T>
static __device__ inline void halves_of(unsigned (&high)[4][4], unsigned (&low)[4][4], const float (&c)[8][4]) {
    DR_UNROLL (k, 4)
        DR_UNROLL (i, 4) dr_halve<T>(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1], high[k][i], low[k][i]);
}

/* The numbers of a box, two in each register, that stand where the thread's accumulators do: of row + 8 h, columns 8 n + 2 t
 * and the one behind it. */
template <typename T> static __device__ inline void load_places(unsigned box, unsigned (&x)[8][2]) {
    DR_UNROLL_BY (n, 8, 2) {
        dr_operand_a<T> a;
        dr_load_a<T>(a, box, 64, dr_scan_warp() * 16, n * 8);
        x[n][0] = a.x[0], x[n][1] = a.x[1], x[n + 1][0] = a.x[2], x[n + 1][1] = a.x[3];
    }
}

/* Sums over 64 columns of C times what stands in its places, of the thread's two rows; in two chains each. */
template <typename T> static __device__ inline float2 dots_with(const float (&c)[8][4], const unsigned (&x)[8][2]) {
    float2 even = make_float2(0, 0), odd = even;
    DR_UNROLL (n, 8) {
        const float2 upper = dr_unpack(T(), x[n][0]), lower = dr_unpack(T(), x[n][1]);
        even.x = fmaf(c[n][0], upper.x, even.x), odd.x = fmaf(c[n][1], upper.y, odd.x);
        even.y = fmaf(c[n][2], lower.x, even.y), odd.y = fmaf(c[n][3], lower.y, odd.y);
    }
    return sum_of_four(make_float2(even.x + odd.x, even.y + odd.y));
}

template <typename T> static __device__ inline float2 dots_with(const float (&c)[8][4], unsigned box) {
    unsigned x[8][2];
    load_places<T>(box, x);
    return dots_with<T>(c, x);
}

#endif
#endif
