/* What prepare does on sm_90a for 16-bit types: its products as those of a warp group, whose warp w has rows 16 w ...
 *
 * The inverse must not be rounded to 16 bits. So it goes into products as two numbers, a high part and what that leaves, which
 * together are good to 2^-16; P likewise. Two or three products of 16 bits are as fast as one of tf32, and their operands need
 * no arithmetic on the way from shared memory. */
#ifndef DR_CUDA_PREPARE_WARPGROUPS_CUH
#define DR_CUDA_PREPARE_WARPGROUPS_CUH

#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/chunkwise/triangle.cuh"
#include "backends/cuda/device/warpgroup.cuh"

/* Bytes of both halves of a 64 x 64 matrix, as tiles. */
enum { DR_HALVES_BYTES = 2 * 64 * 64 * 2 };

#ifdef DR_CUDA_WARPGROUPS

/* x, y as a pair of the type, and what is lost by that. */
template <typename T> static __device__ inline void dr_halve(float x, float y, unsigned &high, unsigned &low) {
    high = dr_pack(T(), x, y);
    const float2 rounded = dr_unpack(T(), high);
    low = dr_pack(T(), x - rounded.x, y - rounded.y);
}

/* R W^T and Q W^T of 64 columns of their tiles, begun; C begins with them, or they are added. */
template <typename T, bool add>
static __device__ inline void dr_group_scores_box(unsigned writer, unsigned reader, unsigned query, float (&l)[8][4],
                                                  float (&p)[8][4]) {
    const uint64_t w = dr_group_operand(writer, 16), r = dr_group_operand(reader, 16), q = dr_group_operand(query, 16);
    dr_group_begin();
    DR_UNROLL (k, 4) {
        dr_group_multiply_tiles<false, true>(T(), l, dr_group_forward(r, k * 32), dr_group_forward(w, k * 32), add || k > 0);
        dr_group_multiply_tiles<false, true>(T(), p, dr_group_forward(q, k * 32), dr_group_forward(w, k * 32), add || k > 0);
    }
    dr_group_commit();
}

/* R W^T and Q W^T of tiles of `boxes` boxes. */
template <typename T>
static __device__ inline void dr_group_scores(unsigned writer, unsigned reader, unsigned query, int boxes, float (&l)[8][4],
                                              float (&p)[8][4]) {
    dr_group_scores_box<T, false>(writer, reader, query, l, p);
#pragma unroll 1
    for (int box = 1; box < boxes; box++) {
        writer += 8192, reader += 8192, query += 8192;
        dr_group_scores_box<T, true>(writer, reader, query, l, p);
    }
    dr_group_wait<0>();
}

/* The halves of the matrix by eights, half a row of it a thread: put(i, at, high, low), at: bytes into a tile; a warp of the
 * four has nothing but zeros. */
template <typename T, typename F> static __device__ inline void dr_halves_each(const float *matrix, F put) {
    const int row = dr_copy_thread() % 64, column = dr_copy_thread() / 64 * 32;
    const bool zeros = dr_copy_thread() / 32 == 2; /* rows 0 .. 31, columns 32 .. 63 */
    DR_UNROLL_BY (i, 32, 8) {
        uint4 high = make_uint4(0, 0, 0, 0), low = high;
        if (!zeros) {
            const float *from = matrix + row * DR_MATRIX_PITCH + column + i;
            const float4 left = *(const float4 *)from, right = *(const float4 *)(from + 4);
            dr_halve<T>(left.x, left.y, high.x, low.x);
            dr_halve<T>(left.z, left.w, high.y, low.y);
            dr_halve<T>(right.x, right.y, high.z, low.z);
            dr_halve<T>(right.z, right.w, high.w, low.w);
        }
        put(i / 8, dr_tile_at<T>(0, 64, row, column + i), high, low);
    }
}

/* Those as tiles, the low one behind the high one. */
template <typename T> static __device__ inline void dr_halves_put(const float *matrix, char *halves) {
    dr_halves_each<T>(matrix, [&](int, unsigned at, uint4 high, uint4 low) {
        *(uint4 *)(halves + at) = high;
        *(uint4 *)(halves + at + DR_HALVES_BYTES / 2) = low;
    });
}

/* Both halves to memory as they lie. */
static __device__ inline void dr_halves_save(char *to, const char *halves) {
    DR_UNROLL_BY (i, DR_HALVES_BYTES, PREPARE_THREADS * 16) {
        const int at = i + dr_copy_thread() * 16;
        *(uint4 *)(to + at) = *(const uint4 *)(halves + at);
    }
}

/* A^T diag(leave) as operands, rows of the warp. */
template <typename T>
static __device__ inline void dr_halves_turn(const float *matrix, const float *leave, unsigned (&high)[4][4],
                                             unsigned (&low)[4][4]) {
    const int warp = dr_copy_thread() / 32, g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (k, 4)
        DR_UNROLL (i, 4) {
            const int row = k * 16 + i / 2 * 8 + 2 * t, column = warp * 16 + i % 2 * 8 + g;
            float x = 0, y = 0;
            if (k >= warp) { /* A^T is zero left of its diagonal */
                x = matrix[row * DR_MATRIX_PITCH + column], y = matrix[(row + 1) * DR_MATRIX_PITCH + column];
                const float2 leaves = *(const float2 *)(leave + row);
                x *= leaves.x, y *= leaves.y;
            }
            dr_halve<T>(x, y, high[k][i], low[k][i]);
        }
}

/* P from accumulators, zero behind its block of rows, as operands. */
template <typename T>
static __device__ inline void dr_halves_score(const float (&p)[8][4], int block, unsigned (&high)[4][4],
                                              unsigned (&low)[4][4]) {
    DR_UNROLL (k, 4)
        DR_UNROLL (i, 4) {
            high[k][i] = low[k][i] = 0;
            if (k <= block) dr_halve<T>(p[2 * k + i / 2][i % 2 * 2], p[2 * k + i / 2][i % 2 * 2 + 1], high[k][i], low[k][i]);
        }
}

/* P A, A in its tiles. */
template <typename T>
static __device__ inline void dr_halves_combine(float (&c)[8][4], const unsigned (&p_high)[4][4], const unsigned (&p_low)[4][4],
                                                unsigned halves) {
    const uint64_t high = dr_group_operand(halves, 16), low = dr_group_operand(halves + DR_HALVES_BYTES / 2, 16);
    dr_group_begin();
    DR_UNROLL (k, 4) {
        dr_group_multiply<false>(T(), c, p_high[k], dr_group_forward(high, k * 2048), k > 0);
        dr_group_multiply<false>(T(), c, p_low[k], dr_group_forward(high, k * 2048), 1);
        dr_group_multiply<false>(T(), c, p_high[k], dr_group_forward(low, k * 2048), 1);
    }
    dr_group_commit();
    dr_group_wait<0>();
}

/* Rows 16 warp .. to a tile of 64 columns; the warp may read them at once. */
template <typename T> static __device__ inline void dr_group_lay_rows(char *tile, const float (&c)[8][4]) {
    const int lane = (int)(threadIdx.x % 32), row = dr_copy_thread() / 32 * 16 + lane % 16;
    const unsigned to = dr_shared_address(tile);
    __syncwarp();
    DR_UNROLL_BY (n, 8, 2) {
        const unsigned x[4] = {dr_pack(T(), c[n][0], c[n][1]), dr_pack(T(), c[n][2], c[n][3]),
                               dr_pack(T(), c[n + 1][0], c[n + 1][1]), dr_pack(T(), c[n + 1][2], c[n + 1][3])};
        dr_store_matrices(dr_tile_at<T>(to, 64, row, (n + lane / 16) * 8), x);
    }
    __syncwarp();
}

/* The warp's 16 rows of 64 columns, through its rows of a tile: eight lanes write a row. put(row, unit, x): eight elements of
 * row 0 .. 15. */
template <typename T, typename F> static __device__ inline void dr_group_put_rows(char *tile, const float (&c)[8][4], F put) {
    const int lane = (int)(threadIdx.x % 32), first = dr_copy_thread() / 32 * 16;
    dr_group_lay_rows<T>(tile, c);
    DR_UNROLL (i, 4) {
        const int row = i * 4 + lane / 8, unit = lane % 8;
        put(row, unit, *(const uint4 *)(tile + dr_tile_at<T>(0, 64, first + row, unit * 8)));
    }
}

/* 64 columns of X, rows of the warp, through `stage` to memory. */
template <typename T> static __device__ inline void dr_halves_leave(const float (&x)[8][4], int width, char *stage, T *to) {
    to += dr_copy_thread() / 32 * 16 * width;
    dr_group_put_rows<T>(stage, x, [=](int row, int unit, uint4 eight) { *(uint4 *)(to + row * width + unit * 8) = eight; });
}

/* 64 columns of X = A^T diag(leave) W, A^T diag(leave) as operands, of W's box at `writer`. */
template <typename T>
static __device__ inline void dr_halves_exit_box(const unsigned (&high)[4][4], const unsigned (&low)[4][4], unsigned writer,
                                                 float (&x)[8][4]) {
    const uint64_t w = dr_group_operand(writer, 16);
    dr_group_begin();
    DR_UNROLL (k, 4) {
        dr_group_multiply<false>(T(), x, high[k], dr_group_forward(w, k * 2048), k > 0);
        dr_group_multiply<false>(T(), x, low[k], dr_group_forward(w, k * 2048), 1);
    }
    dr_group_commit();
    dr_group_wait<0>();
}

/* All of it. */
template <typename T>
static __device__ inline void dr_halves_exit(const unsigned (&high)[4][4], const unsigned (&low)[4][4], unsigned writer,
                                             int width, char *stage, T *to) {
#pragma unroll 1
    for (int column = 0; column < width; column += 64) {
        float x[8][4];
        dr_halves_exit_box<T>(high, low, writer + (unsigned)column * 128, x);
        dr_halves_leave<T>(x, width, stage, to + column);
    }
}

/* X = A^T W, A in its tiles, W as a tile of T and one of what rounding to T left. */
template <typename T>
static __device__ inline void dr_halves_exit_tiles(unsigned halves, unsigned writer, int width, char *stage, T *to) {
    const uint64_t high = dr_group_operand(halves, 16), low = dr_group_operand(halves + DR_HALVES_BYTES / 2, 16);
#pragma unroll 1
    for (int column = 0; column < width; column += 64) {
        const uint64_t w = dr_group_operand(writer + (unsigned)column * 128, 16);
        const uint64_t v = dr_group_operand(writer + (unsigned)((width + column) * 128), 16);
        float x[8][4];
        dr_group_begin();
        DR_UNROLL (k, 4) {
            const uint64_t upper = dr_group_forward(high, k * 2048), at = dr_group_forward(w, k * 2048);
            dr_group_multiply_tiles<true, false>(T(), x, upper, at, k > 0);
            dr_group_multiply_tiles<true, false>(T(), x, dr_group_forward(low, k * 2048), at, 1);
        }
        DR_UNROLL (k, 4)
            dr_group_multiply_tiles<true, false>(T(), x, dr_group_forward(high, k * 2048), dr_group_forward(v, k * 2048), 1);
        dr_group_commit();
        dr_group_wait<0>();
        dr_halves_leave<T>(x, width, stage, to + column);
    }
}

/* Rows 16 block .. of P' that belong to a query, and zeros behind them all. pairs: the upper rows are queries 8 block ... */
template <typename T, bool pairs>
static __device__ inline void dr_group_put_score(const dr_cuda_chunk_plan &plan, char *stage, int block, const float (&c)[8][4],
                                                 T *score) {
    const int steps = plan.rows.steps;
    dr_group_put_rows<T>(stage, c, [&](int row, int unit, uint4 eight) {
        int token = block * (pairs ? 8 : 16) + row;
        bool asks = !pairs || row < 8;
        if (!pairs && steps > 1) {
            const int step = token % steps;
            token /= steps, asks = step == steps - 1;
        }
        if (asks && token < plan.chunk) *(uint4 *)(score + token * 64 + unit * 8) = eight;
    });
#pragma unroll 1
    for (int i = plan.chunk * 64 + dr_copy_thread(); i < plan.query_rows * 64; i += PREPARE_THREADS)
        score[i] = dr_from_float<T>(0.0f);
}

/* From the inverse in `matrix` and rows 16 block .. of P to P' and X; the halves' tiles lie elsewhere, and the matrix is
 * overwritten. rest: W, which is decayed already, is two tiles; else its rows are multiplied by leave. */
template <typename T, bool rest, bool pairs, int groups>
static __device__ inline void dr_prepare_finish(const dr_cuda_chunk_plan &plan, float *matrix, char *halves, const float *leave,
                                                int block, const float (&p)[8][4], unsigned writer, T *score, T *exit) {
    const unsigned halves_at = dr_shared_address(halves);
    unsigned high[4][4], low[4][4];
    dr_halves_put<T>(matrix, halves);
    if constexpr (!rest) dr_halves_turn<T>(matrix, leave, high, low);
    dr_shared_fence();
    dr_meet<groups>();
    {
        float c[8][4];
        unsigned p_high[4][4], p_low[4][4];
        dr_halves_score<T>(p, block, p_high, p_low);
        dr_halves_combine<T>(c, p_high, p_low, halves_at);
        dr_group_put_score<T, pairs>(plan, (char *)matrix, block, c, score);
    }
    if constexpr (rest)
        dr_halves_exit_tiles<T>(halves_at, writer, plan.key_width, (char *)matrix, exit);
    else
        dr_halves_exit<T>(high, low, writer, plan.key_width, (char *)matrix, exit);
}

#endif
#endif
