/* Operands of a warp's matrix products, in one vocabulary for all storage types: A [16 x 16] times B [16 x 8] onto C [16 x 8].
 *
 * bf16 uses the instructions of that type. float splits every operand into two tf32 numbers and sums three products,
 * which is as good as float32. Its products take 8 columns of A at once in the order 0 2 4 6 1 3 5 7, so that an accumulator is
 * an operand A without moving between lanes, as it is for 16 bits.
 *
 * Tiles in shared memory: boxes of 64 columns one after another, each [rows][64]; 16-byte units of a row are exchanged by the
 * row's last three bits (the 128-byte swizzle of the copy engine for 16-bit types), so that eight rows of a column of units
 * lie in different banks. */
#ifndef DR_CUDA_FRAGMENTS_CUH
#define DR_CUDA_FRAGMENTS_CUH

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/lanes.cuh"

/* Byte address of element (row, column) of a tile with that many rows. */
template <typename T> static __device__ inline unsigned dr_tile_at(unsigned tile, int rows, int row, int column) {
    constexpr int unit = 16 / (int)sizeof(T);
    const int box = column / 64, within = column % 64;
    return tile + (unsigned)((box * rows + row) * 64 * (int)sizeof(T) + ((within / unit) ^ (row % 8)) * 16 +
                             within % unit * (int)sizeof(T));
}

template <typename T> struct dr_operand_a { unsigned x[4]; };
template <typename T> struct dr_operand_b { unsigned x[2]; };
template <> struct dr_operand_a<float> { unsigned high[2][4], low[2][4]; };
template <> struct dr_operand_b<float> { unsigned high[2][2], low[2][2]; };

/* Two numbers of 11 bits whose sum is x to 2^-22. In float arithmetic: the conversion to tf32 is no instruction of these chips
 * but a dozen. */
static __device__ inline void dr_split(float x, unsigned &high, unsigned &low) {
    const float shifted = __fmul_rn(x, 8193.0f), rounded = __fsub_rn(shifted, __fsub_rn(shifted, x));
    high = __float_as_uint(rounded);
    low = __float_as_uint(__fsub_rn(x, rounded));
}

/* For one tf32 product. The hardware cuts 13 bits off, on average 2^-11 to 2^-12 of the number, which is added beforehand: so
 * the error has nearly the mean and the spread of rounding to nearest, for one multiplication. */
static __device__ inline unsigned dr_round_tf32(float x) {
    return __float_as_uint(x * 1.000345f);
}

static __device__ inline unsigned dr_pack(__nv_bfloat16, float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *(const unsigned *)&pair;
}

/* Both of a pair: two instructions, where taking the halves apart and widening them is three. */
static __device__ inline float2 dr_unpack(__nv_bfloat16, unsigned pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* x y + z of pairs, rounded once. */
static __device__ inline unsigned dr_pair_fma(__nv_bfloat16, unsigned x, unsigned y, unsigned z) {
    const __nv_bfloat162 sum = __hfma2(*(const __nv_bfloat162 *)&x, *(const __nv_bfloat162 *)&y, *(const __nv_bfloat162 *)&z);
    return *(const unsigned *)&sum;
}

/* Two neighbouring elements, the first at an even place. */
template <typename T> static __device__ inline void dr_store_pair(T *to, float x, float y) {
    if constexpr (sizeof(T) == 4)
        *(float2 *)to = make_float2(x, y);
    else
        *(unsigned *)to = dr_pack(T(), x, y);
}

/* ---- C += A B -------------------------------------------------------------------------------------------------------- */

template <typename T>
static __device__ inline void dr_product(float (&c)[4], const dr_operand_a<T> &a, const dr_operand_b<T> &b) {
    dr_multiply(T(), c, a.x, b.x[0], b.x[1]);
}

/* The matrix units cut sums off rather than round them: half a unit of the last place each time, always to the same side. A
 * state that is added to for thousands of tokens loses digits so, and so do gradients of gains, which are what large sums leave
 * of one another. So C is added to in ordinary arithmetic. */
template <>
__device__ inline void dr_product<float>(float (&c)[4], const dr_operand_a<float> &a, const dr_operand_b<float> &b) {
    float sum[4] = {};
    DR_UNROLL (i, 2) {
        dr_multiply_tf32(sum, a.high[i], b.low[i][0], b.low[i][1]);
        dr_multiply_tf32(sum, a.low[i], b.high[i][0], b.high[i][1]);
        dr_multiply_tf32(sum, a.high[i], b.high[i][0], b.high[i][1]);
    }
    DR_UNROLL (i, 4) c[i] += sum[i];
}

/* ---- operand A ------------------------------------------------------------------------------------------------------- */

/* From two accumulators that lie side by side: columns 0..7 and 8..15. */
template <typename T>
static __device__ inline void dr_operand_from(dr_operand_a<T> &a, const float (&left)[4], const float (&right)[4]) {
    a.x[0] = dr_pack(T(), left[0], left[1]);
    a.x[1] = dr_pack(T(), left[2], left[3]);
    a.x[2] = dr_pack(T(), right[0], right[1]);
    a.x[3] = dr_pack(T(), right[2], right[3]);
}

static __device__ inline void dr_split_four(unsigned (&high)[4], unsigned (&low)[4], float g0, float h0, float g1, float h1) {
    dr_split(g0, high[0], low[0]);
    dr_split(h0, high[1], low[1]);
    dr_split(g1, high[2], low[2]);
    dr_split(h1, high[3], low[3]);
}

template <>
__device__ inline void dr_operand_from<float>(dr_operand_a<float> &a, const float (&left)[4], const float (&right)[4]) {
    dr_split_four(a.high[0], a.low[0], left[0], left[2], left[1], left[3]);
    dr_split_four(a.high[1], a.low[1], right[0], right[2], right[1], right[3]);
}

/* ---- places in a tile ------------------------------------------------------------------------------------------------ */

/* The loads below take rows and columns that are multiples of 8 and 16: what a lane adds to the place is then the same
 * everywhere but for the exchange of units, in which the column's bits are exclusive-ored. So a lane's part is computed once.
 *
 * Along: of rows that are not contracted, or of transposes. Across: of contracted rows. */
template <typename T> static __device__ inline unsigned dr_lane_along() {
    const unsigned lane = threadIdx.x % 32;
    return (lane % 8 + lane / 16 * 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
}
template <> __device__ inline unsigned dr_lane_along<float>() {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return g * 256 + ((t / 2 ^ g) << 4) + t % 2 * 8;
}

template <typename T> static __device__ inline unsigned dr_lane_across() {
    const unsigned lane = threadIdx.x % 32;
    return lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
}
template <> __device__ inline unsigned dr_lane_across<float>() {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return 2 * t * 256 + ((g / 4 ^ 2 * t) << 4) + g % 4 * 4;
}

/* From the place of a lane in the tile at (0, 0) to that at (row, column). */
template <typename T> static __device__ inline unsigned dr_lane_at(unsigned base, int rows, int row, int column) {
    constexpr unsigned size = sizeof(T);
    return (base ^ (unsigned)(column % 64 / 16) << (size == 4 ? 6 : 5)) + (unsigned)(column / 64 * rows + row) * (64 * size);
}

/* From a tile: rows row .., columns column .., multiples of 16. */
template <typename T>
static __device__ inline void dr_load_a(dr_operand_a<T> &a, unsigned tile, int rows, int row, int column) {
    dr_load_matrices(a.x, dr_lane_at<T>(tile + dr_lane_across<T>(), rows, row, column));
}

template <> __device__ inline void dr_load_a<float>(dr_operand_a<float> &a, unsigned tile, int rows, int row, int column) {
    const unsigned at = dr_lane_at<float>(tile + dr_lane_along<float>(), rows, row, column);
    DR_UNROLL (i, 2) {
        const float2 upper = dr_load_shared2(at ^ (unsigned)i << 5);
        const float2 lower = dr_load_shared2((at ^ (unsigned)i << 5) + 8 * 256);
        dr_split_four(a.high[i], a.low[i], upper.x, lower.x, upper.y, lower.y);
    }
}

/* ---- operand B, two of them: columns 0..7 and 8..15 of B [16 x 16] ------------------------------------------------------ */

/* B is the transpose of rows row .., columns column .. of a tile: what is contracted is contiguous. */
template <typename T>
static __device__ inline void dr_load_b(dr_operand_b<T> (&b)[2], unsigned tile, int rows, int row, int column) {
    unsigned x[4];
    dr_load_matrices(x, dr_lane_at<T>(tile + dr_lane_along<T>(), rows, row, column));
    b[0].x[0] = x[0], b[0].x[1] = x[1];
    b[1].x[0] = x[2], b[1].x[1] = x[3];
}

template <> __device__ inline void dr_load_b<float>(dr_operand_b<float> (&b)[2], unsigned tile, int rows, int row, int column) {
    const unsigned at = dr_lane_at<float>(tile + dr_lane_along<float>(), rows, row, column);
    DR_UNROLL (n, 2)
        DR_UNROLL (i, 2) {
            const float2 pair = dr_load_shared2((at ^ (unsigned)i << 5) + (unsigned)n * 8 * 256);
            dr_split(pair.x, b[n].high[i][0], b[n].low[i][0]);
            dr_split(pair.y, b[n].high[i][1], b[n].low[i][1]);
        }
}

/* B is rows row .. (contracted), columns column .. of a tile. */
template <typename T>
static __device__ inline void dr_load_b_straight(dr_operand_b<T> (&b)[2], unsigned tile, int rows, int row, int column) {
    unsigned x[4];
    dr_load_matrices_transposed(x, dr_lane_at<T>(tile + dr_lane_across<T>(), rows, row, column));
    b[0].x[0] = x[0], b[0].x[1] = x[1];
    b[1].x[0] = x[2], b[1].x[1] = x[3];
}

template <>
__device__ inline void dr_load_b_straight<float>(dr_operand_b<float> (&b)[2], unsigned tile, int rows, int row, int column) {
    const unsigned at = dr_lane_at<float>(tile + dr_lane_across<float>(), rows, row, column);
    DR_UNROLL (n, 2)
        DR_UNROLL (i, 2)
            DR_UNROLL (j, 2) /* column + 8 n, row + 8 i + j */
                dr_split(dr_load_shared((at ^ (unsigned)n << 5 ^ (unsigned)j << 4) + (unsigned)(8 * i + j) * 256),
                         b[n].high[i][j], b[n].low[i][j]);
}

/* ---- accumulators ---------------------------------------------------------------------------------------------------- */

/* Of numbers that belong to the columns of accumulators side by side: those of the thread's two columns of the nth. */
static __device__ inline float2 dr_column_pair(const float *numbers, int n) {
    return *(const float2 *)(numbers + threadIdx.x % 4 * 2 + n * 8);
}

/* Columns of accumulators, of which c[0] is number `first` of those side by side, times what belongs to them. */
template <int count> static __device__ inline void dr_scale_columns(float (&c)[count][4], const float *numbers, int first = 0) {
    DR_UNROLL (n, count) {
        const float2 f = dr_column_pair(numbers, first + n);
        c[n][0] *= f.x, c[n][1] *= f.y, c[n][2] *= f.x, c[n][3] *= f.y;
    }
}

/* Two accumulators of the transpose of rows row .., columns column .. of a tile: C(g, 2t) is the tile's (row + 2t, column + g);
 * rows row + 8 .. are the second accumulator. */
template <typename T>
static __device__ inline void dr_load_transposed(float (&c)[2][4], unsigned tile, int rows, int row, int column) {
    unsigned x[4];
    dr_load_matrices_transposed(x, dr_lane_at<T>(tile + dr_lane_along<T>(), rows, row, column));
    DR_UNROLL (i, 4) {
        const T *pair = (const T *)&x[i];
        c[i / 2][i % 2 * 2] = dr_to_float(pair[0]);
        c[i / 2][i % 2 * 2 + 1] = dr_to_float(pair[1]);
    }
}

template <> __device__ inline void dr_load_transposed<float>(float (&c)[2][4], unsigned tile, int rows, int row, int column) {
    const unsigned at = dr_lane_at<float>(tile + dr_lane_across<float>(), rows, row, column);
    DR_UNROLL (n, 2)
        DR_UNROLL (i, 4) /* row + 8 n + i % 2, column + i / 2 * 8 */
            c[n][i] = dr_load_shared((at ^ (unsigned)(i / 2) << 5 ^ (unsigned)(i % 2) << 4) + (unsigned)(8 * n + i % 2) * 256);
}

#endif
