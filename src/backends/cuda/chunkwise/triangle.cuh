/* A = (I + L)^-1 of a chunk, 64 x 64 floats in shared memory, in place.
 *
 * The four blocks of 16 on the diagonal by substitution in float32, a warp each, a column a lane. Then pairs of blocks, 16 to
 * 32 and 32 to 64: the block below is -A22 (L21 A11). Both products are made on the transposes, so that the first one's result
 * is operand A of the second. precise: as good as float32 (three tf32 products), else one tf32 product, which costs a product
 * with bf16 operands nothing (docs/lab/cuda/forward.md). */
#ifndef DR_CUDA_TRIANGLE_CUH
#define DR_CUDA_TRIANGLE_CUH

#include "backends/cuda/device/tiles.cuh"

/* Floats from row to row: columns of a fragment then lie in different banks. */
enum { DR_MATRIX_PITCH = 68 };

/* x as an operand. cut: left to the hardware, which cuts it, so that what comes out is multiplied by DR_CUT_LIFT (dr_round_tf32
 * says why): not for an inverse, since the ones on its diagonal lose nothing. */
constexpr float DR_CUT_LIFT = 1.000345f;

template <bool precise, bool cut = false> static __device__ inline void dr_round(float x, unsigned &high, unsigned &low) {
    if (precise) {
        dr_split(x, high, low);
    } else {
        high = cut ? __float_as_uint(x) : dr_round_tf32(x);
        low = 0;
    }
}

/* C [16 x 8] += A [16 x 8] B [8 x 8] */
template <bool precise>
static __device__ inline void dr_product_rounded(float (&c)[4], const unsigned (&a_high)[4], const unsigned (&a_low)[4],
                                                 const unsigned (&b_high)[2], const unsigned (&b_low)[2]) {
    if (precise) {
        dr_multiply_tf32(c, a_high, b_low[0], b_low[1]);
        dr_multiply_tf32(c, a_low, b_high[0], b_high[1]);
    }
    dr_multiply_tf32(c, a_high, b_high[0], b_high[1]);
}

/* L to the matrix, from accumulators of rows 16 block .., zero above its diagonal blocks: of those, with `whole` all, else the
 * two that dr_halves_put reads. */
template <bool whole> static __device__ inline void dr_matrix_put(const float (&l)[8][4], int block, float *matrix) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (n, 8)
        if (whole || n / 2 <= (block | 1))
            DR_UNROLL (h, 2)
                *(float2 *)(matrix + (block * 16 + g + 8 * h) * DR_MATRIX_PITCH + n * 8 + 2 * t) =
                    make_float2(l[n][2 * h], l[n][2 * h + 1]);
}

/* Operands of eight contracted indices, in the order of fragments.cuh. m points at the block in question. */
template <bool precise> struct dr_eight_a { unsigned high[4], low[4]; };
template <bool precise> struct dr_eight_b { unsigned high[2], low[2]; };

/* A [16 x 8] = rows k .. k + 7 of m, transposed; columns 0 .. 15; row k multiplied by factor[k], if there is one. */
template <bool precise>
static __device__ inline void dr_matrix_a_transposed(dr_eight_a<precise> &a, const float *m, int k, const float *factor) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (i, 2) {
        const float *row = m + (k + 2 * t + i) * DR_MATRIX_PITCH;
        const float f = factor ? factor[k + 2 * t + i] : 1.0f;
        dr_round<precise>(f * row[g], a.high[2 * i], a.low[2 * i]);
        dr_round<precise>(f * row[g + 8], a.high[2 * i + 1], a.low[2 * i + 1]);
    }
}

/* A [16 x 8] from an accumulator, cut. */
template <bool precise> static __device__ inline void dr_accumulator_a(dr_eight_a<precise> &a, const float (&c)[4]) {
    DR_UNROLL (i, 4) dr_round<precise, true>(c[i], a.high[i % 2 * 2 + i / 2], a.low[i % 2 * 2 + i / 2]);
}

/* B [8 x 8] = rows n .. n + 7 of m, transposed; columns k .. k + 7. cut: as dr_round has it. */
template <bool precise, bool cut>
static __device__ inline void dr_matrix_b_transposed(dr_eight_b<precise> &b, const float *m, int n, int k) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const float2 pair = *(const float2 *)(m + (n + g) * DR_MATRIX_PITCH + k + 2 * t);
    const float x[2] = {pair.x, pair.y};
    DR_UNROLL (i, 2) dr_round<precise, cut>(x[i], b.high[i], b.low[i]);
}

/* B [8 x 8] = rows k .. k + 7, columns n .. n + 7 of m. */
template <bool precise> static __device__ inline void dr_matrix_b(dr_eight_b<precise> &b, const float *m, int k, int n) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    dr_round<precise>(m[(k + 2 * t) * DR_MATRIX_PITCH + n + g], b.high[0], b.low[0]);
    dr_round<precise>(m[(k + 2 * t + 1) * DR_MATRIX_PITCH + n + g], b.high[1], b.low[1]);
}

/* The calling warp's block on the diagonal: each of 16 lanes solves for one column, so a row of L is read by all at once, four
 * numbers of it. The other lanes do the same and keep it for themselves. */
static __device__ inline void dr_triangle_substitute(float *block) {
    const int lane = (int)(threadIdx.x % 32), column = lane % 16;
    float x[16];
    DR_UNROLL (i, 16) {
        float sum = i == column ? 1.0f : 0.0f;
        DR_UNROLL_BY (k, i, 4) {
            float row[4];
            dr_take_fours(block + i * DR_MATRIX_PITCH + k, row);
            DR_UNROLL (e, 4)
                if (k + e < i) sum = fmaf(-row[e], x[k + e], sum);
        }
        x[i] = sum;
    }
    __syncwarp();
    if (lane < 16) {
        DR_UNROLL (i, 16) block[i * DR_MATRIX_PITCH + column] = x[i];
    }
    __syncwarp();
}

/* Transpose of L21 A11 for 16 of its columns, from `column` on: `size` x `size` blocks, L21 below A11 at `upper`. */
template <bool precise, int size>
static __device__ inline void dr_triangle_first(float (&c)[size / 8][4], const float *upper, int column) {
    const float *below = upper + size * DR_MATRIX_PITCH;
    DR_UNROLL_BY (k, size, 8) {
        dr_eight_a<precise> a;
        dr_matrix_a_transposed<precise>(a, upper + column, k, NULL);
        DR_UNROLL (n, size / 8) {
            dr_eight_b<precise> b;
            dr_matrix_b_transposed<precise, true>(b, below, n * 8, k);
            dr_product_rounded<precise>(c[n], a.high, a.low, b.high, b.low);
        }
    }
}

/* From that, -A22 times it for rows row .. row + rows - 1, as a transpose. */
template <bool precise, int size, int rows>
static __device__ inline void dr_triangle_second(float (&d)[rows / 8][4], const float (&c)[size / 8][4], const float *upper,
                                                 int row) {
    const float *right = upper + size * DR_MATRIX_PITCH + size;
    DR_UNROLL (k, size / 8) {
        dr_eight_a<precise> a;
        dr_accumulator_a<precise>(a, c[k]);
        DR_UNROLL (n, rows / 8) {
            dr_eight_b<precise> b;
            dr_matrix_b_transposed<precise, false>(b, right, row + n * 8, k * 8);
            dr_product_rounded<precise>(d[n], a.high, a.low, b.high, b.low);
        }
    }
}

/* Writes -D^T to rows row .., columns column .. of the block at `to`. Two of its operands were cut, L and the first product. */
template <bool precise, int rows>
static __device__ inline void dr_triangle_put(const float (&d)[rows / 8][4], float *to, int row, int column) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    constexpr float factor = precise ? -1.0f : -DR_CUT_LIFT * DR_CUT_LIFT;
    DR_UNROLL (n, rows / 8)
        DR_UNROLL (i, 4) to[(row + n * 8 + 2 * t + i % 2) * DR_MATRIX_PITCH + column + g + i / 2 * 8] = factor * d[n][i];
}

/* 128 threads, one of `groups` such groups of the block, each of whose warps has put rows of its `block` of 16. matrix: L
 * strictly below the diagonal; what is on and above it is not read in the diagonal blocks, and is zero above them. Ends with a
 * barrier. */
template <bool precise, int groups> static __device__ inline void dr_triangle_invert(float *matrix, int block) {
    const int warp = dr_copy_thread() / 32;
    __syncwarp();
    dr_triangle_substitute(matrix + block * 16 * (DR_MATRIX_PITCH + 1));
    dr_meet<groups>();
    if (warp < 2) {
        float *upper = matrix + warp * 32 * (DR_MATRIX_PITCH + 1);
        float c[2][4] = {}, d[2][4] = {};
        dr_triangle_first<precise, 16>(c, upper, 0);
        dr_triangle_second<precise, 16, 16>(d, c, upper, 0);
        __syncwarp();
        dr_triangle_put<precise, 16>(d, upper + 16 * DR_MATRIX_PITCH, 0, 0);
    }
    dr_meet<groups>();
    float c[4][4] = {}, d[2][4] = {};
    dr_triangle_first<precise, 32>(c, matrix, warp % 2 * 16);
    dr_triangle_second<precise, 32, 16>(d, c, matrix, warp / 2 * 16);
    dr_meet<groups>();
    dr_triangle_put<precise, 16>(d, matrix + 32 * DR_MATRIX_PITCH, warp / 2 * 16, warp % 2 * 16);
    dr_meet<groups>();
}

#endif
