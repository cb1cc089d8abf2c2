/* Tiles of 16 KB that a warp copies by itself, so that four warps have four on their way: rows of 64 columns at one stride. A
 * lane has 16 bytes of every fourth row; its places in the tile are two addresses and constants, since rows 8 apart have their
 * units exchanged alike. */
#ifndef DR_CUDA_COPY_TILES_CUH
#define DR_CUDA_COPY_TILES_CUH

#include "backends/cuda/device/tiles.cuh"
#include "backends/cuda/rows/source.cuh"

/* `rows` rows of `boxes` boxes of 64 columns each, of which the first `alive` are there and `size` columns exist; from: the
 * first, stride elements from one to the next. */
template <typename T, int rows, int boxes>
static __device__ inline void warp_copy_rows(char *tile, const T *from, int64_t stride, int alive, int size, bool aligned) {
    const int lane = (int)(dr_forget(threadIdx.x) % 32), row = lane / 8, unit = lane % 8;
    if (!aligned) {
#pragma unroll 1
        for (int i = lane; i < rows * boxes * 64; i += 32) {
            const int r = i / (boxes * 64), column = i % (boxes * 64);
            const bool valid = r < alive && column < size;
            *(T *)(tile + dr_tile_at<T>(0, rows, r, column)) = valid ? from[r * stride + column] : dr_from_float<T>(0.0f);
        }
        return;
    }
    const unsigned to = dr_shared_address(tile) + (unsigned)(row * 128);
    unsigned place[2] = {to + (unsigned)((unit ^ row) << 4), to + (unsigned)((unit ^ (row + 4)) << 4)};
    const int64_t step = 4 * stride * (int)sizeof(T);
    const char *at = (const char *)(from + row * stride + unit * 8);
    if (alive >= rows) {
        const bool there = (boxes - 1) * 64 + unit * 8 < size; /* the lane's bytes of the last box */
#pragma unroll 1
        for (int i = 0; i < rows / 16; i++) {
            DR_UNROLL (j, 4) {
                const unsigned put = place[j % 2] + (unsigned)(j * 512);
                DR_UNROLL (box, boxes - 1) dr_copy_whole(put + (unsigned)(box * rows * 128), at + j * step + box * 128);
                dr_copy_async(put + (unsigned)((boxes - 1) * rows * 128), at + j * step + (boxes - 1) * 128, there);
            }
            place[0] += 16 * 128, place[1] += 16 * 128;
            at += 4 * step;
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < rows / 8; i++) {
        DR_UNROLL (j, 2)
            DR_UNROLL (box, boxes) {
                const bool valid = row + 8 * i + 4 * j < alive && box * 64 + unit * 8 < size;
                dr_copy_async(place[j] + (unsigned)(j * 512 + box * rows * 128),
                              valid ? at + j * step + box * 128 : (const char *)from, valid);
            }
        place[0] += 8 * 128, place[1] += 8 * 128;
        at += 2 * step;
    }
}

/* A tile as it lies. */
static __device__ inline void warp_copy_tile(char *tile, const char *from) {
    const int mine = (int)(threadIdx.x % 32) * 16;
    const unsigned to = dr_shared_address(tile) + (unsigned)mine;
    from += mine;
#pragma unroll 8
    for (int i = 0; i < 16 * 1024; i += 32 * 16) dr_copy_whole(to + (unsigned)i, from + i);
}

#endif
