/* Tiles of rows in shared memory (fragments.cuh says how they lie there), loaded by all threads of a block. Rows that are not
 * there and columns behind the true size are zeros: a neighbour's NaN must not reach a product. */
#ifndef DR_CUDA_TILES_CUH
#define DR_CUDA_TILES_CUH

#include "backends/cuda/device/fragments.cuh"

/* ---- rows at one stride ---------------------------------------------------------------------------------------------- */

/* The functions below are for 128 threads, whose first has an index that is a multiple of 128. */
enum { DR_COPY_THREADS = 128 };

static __device__ inline int dr_copy_thread() {
    return (int)(threadIdx.x % DR_COPY_THREADS);
}

/* Where the threads that share tiles meet: `groups` groups of 128 threads in a block have tiles of their own each. */
template <int groups> static __device__ inline void dr_meet() {
    if constexpr (groups == 1)
        __syncthreads();
    else
        __barrier_sync_count(1 + threadIdx.x / DR_COPY_THREADS, DR_COPY_THREADS);
}

/* Rows first, first + spacing, .. of a tile of `boxes` boxes of 64 columns: `rows` of them, of which the first `alive` come
 * from `at`, stride elements from one to the next, and the others are zeros; `size` columns exist. A thread stays in one column
 * of units and, since its rows are 8 or 16 times spacing apart, at one exchange of units: all addresses but one are constants.
 */
template <typename T> struct dr_strided {
    const T *at; /* NULL: zeros */
    int64_t stride;
    int alive;
};

template <typename T>
static __device__ inline void dr_copy_elements(char *tile, int tile_rows, int boxes, int size, int rows, int first, int spacing,
                                               const dr_strided<T> &from) {
#pragma unroll 1
    for (int i = dr_copy_thread(); i < rows * boxes * 64; i += DR_COPY_THREADS) {
        const int row = i / (boxes * 64), column = i % (boxes * 64);
        const bool valid = row < from.alive && column < size;
        *(T *)(tile + dr_tile_at<T>(0, tile_rows, first + spacing * row, column)) =
            valid ? from.at[row * from.stride + column] : dr_from_float<T>(0.0f);
    }
}

template <typename T>
static __device__ inline void dr_copy_rows(char *tile, int tile_rows, int boxes, int size, bool aligned, int rows, int first,
                                           int spacing, const dr_strided<T> &from) {
    constexpr int row_bytes = 64 * (int)sizeof(T), units = row_bytes / 16, step = DR_COPY_THREADS / units,
                  unit = 16 / (int)sizeof(T);
    const int alive = from.at ? from.alive : 0;
    if (!aligned) {
        const dr_strided<T> there = {from.at, from.stride, alive};
        dr_copy_elements<T>(tile, tile_rows, boxes, size, rows, first, spacing, there);
        return;
    }
    const int thread = (int)(dr_forget(threadIdx.x) % DR_COPY_THREADS), row = thread / units, within = thread % units;
    const int place = first + spacing * row;
    const unsigned row_step = (unsigned)(spacing * row_bytes);
    unsigned to = dr_shared_address(tile) + (unsigned)(place * row_bytes + ((within ^ place % 8) << 4));
    const char *at = (const char *)(from.at + row * from.stride + within * unit);
    const int64_t source_step = from.stride * (step * (int)sizeof(T));
    if (rows % step == 0 && alive >= rows && size >= boxes * 64) { /* nothing to ask of a row: two additions a copy */
#pragma unroll 1
        for (int box = 0; box < boxes; box++) {
            const char *source = at;
            DR_UNROLL_BY (j, 64, step) {
                if (j >= rows) break;
                dr_copy_whole(to + j * row_step, source);
                source += source_step;
            }
            to += (unsigned)(tile_rows * row_bytes);
            at += row_bytes;
        }
        return;
    }
#pragma unroll 1
    for (int box = 0; box < boxes; box++) {
        const bool inside = box * 64 + within * unit < size;
        const char *source = at;
        DR_UNROLL_BY (j, 64, step) {
            if (j + step <= rows || j + row < rows) {
                const bool valid = inside && j + row < alive;
                dr_copy_async(to + j * row_step, valid ? source : (const char *)from.at, valid);
            }
            source += source_step;
        }
        to += (unsigned)(tile_rows * row_bytes);
        at += row_bytes;
    }
}

/* From a tile of 64 columns to rows that lie at a stride, `size` columns of which exist; `to` says where, and is written. */
template <typename T>
static __device__ inline void dr_store_rows(const dr_strided<T> &to, const char *tile, int size, bool aligned) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit;
    for (int i = dr_copy_thread(); i < to.alive * units; i += DR_COPY_THREADS) {
        const int row = i / units, column = i % units * unit;
        const T *from = (const T *)(tile + dr_tile_at<T>(0, 64, row, column));
        T *at = (T *)to.at + row * to.stride + column;
        if (aligned && column + unit <= size) {
            *(uint4 *)at = *(const uint4 *)from;
        } else {
            for (int e = 0; e < unit && column + e < size; e++) at[e] = from[e];
        }
    }
}

/* Zeros in the rows that first, first + spacing, .. leave out; first < spacing. */
template <typename T>
static __device__ inline void dr_clear_rows(char *tile, int tile_rows, int boxes, int first, int spacing) {
    constexpr int units = 64 * (int)sizeof(T) / 16;
    const int thread = dr_copy_thread(), step = DR_COPY_THREADS / units;
#pragma unroll 1
    for (int begin = first == 0; begin < spacing; begin += begin + 1 == first ? 2 : 1)
#pragma unroll 1
        for (int row = begin + spacing * (thread / units); row < tile_rows; row += spacing * step)
            for (int box = 0; box < boxes; box++)
                *(uint4 *)(tile + ((box * tile_rows + row) * units + thread % units) * 16) = make_uint4(0, 0, 0, 0);
}

/* What a row is made of where it stands in no tensor: x and y at the same row and column, s a number of the row. */
typedef enum { DR_FORM_COPY, DR_FORM_NEGATIVE, DR_FORM_TIMES, DR_FORM_PLUS } dr_form;

static __device__ inline float dr_form_of(dr_form form, float s, float x, float y) {
    return form == DR_FORM_TIMES ? x * y : form == DR_FORM_PLUS ? fmaf(s, y, x) : form == DR_FORM_NEGATIVE ? -x : x;
}

/* s of a row: floats at a stride, times `sign`; at NULL: sign alone. */
typedef struct {
    const float *at;
    int64_t stride;
    float sign;
} dr_form_factor;

static __device__ inline float dr_form_factor_of(const dr_form_factor &factor, int row, int alive) {
    return factor.at && row < alive ? factor.sign * factor.at[row * factor.stride] : factor.sign;
}

/* Eight channels of row `row`, from `column` on, as floats. */
template <typename T>
static __device__ inline void dr_fetch_eight(const dr_strided<T> &from, int row, int column, int size, bool aligned,
                                             float (&x)[8]) {
    const bool there = from.at && row < from.alive;
    const T *at = from.at + row * from.stride + column;
    if (aligned && there && column + 8 <= size) {
        constexpr int words = 8 * (int)sizeof(T) / 16;
        union {
            uint4 word[words];
            T element[8];
        } pack;
        DR_UNROLL (i, words) pack.word[i] = __ldg((const uint4 *)at + i);
        DR_UNROLL (e, 8) x[e] = dr_to_float(pack.element[e]);
        return;
    }
    DR_UNROLL (e, 8) x[e] = there && column + e < size ? dr_to_float(at[e]) : 0.0f;
}

template <typename T>
static __device__ inline void dr_take_eight(const char *tile, int rows, int row, int column, float (&x)[8]) {
    if constexpr (sizeof(T) == 4) {
        DR_UNROLL_BY (i, 8, 4) {
            const float4 four = *(const float4 *)(tile + dr_tile_at<T>(0, rows, row, column + i));
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
    } else {
        const uint4 word = *(const uint4 *)(tile + dr_tile_at<T>(0, rows, row, column));
        const float2 pair[] = {dr_unpack(T(), word.x), dr_unpack(T(), word.y), dr_unpack(T(), word.z), dr_unpack(T(), word.w)};
        DR_UNROLL_BY (i, 8, 2) x[i] = pair[i / 2].x, x[i + 1] = pair[i / 2].y;
    }
}

/* Two neighbours, the first at an even place: one load. */
template <typename T> static __device__ inline float2 dr_load_pair(const void *at) {
    if constexpr (sizeof(T) == 4)
        return *(const float2 *)at;
    else
        return dr_unpack(T(), *(const unsigned *)at);
}

/* Fours of numbers, from a place that is a multiple of four. */
template <int count> static __device__ inline void dr_take_fours(const float *from, float (&x)[count]) {
    DR_UNROLL_BY (i, count, 4) {
        const float4 four = *(const float4 *)(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

/* Four channels of a row of a tile as they lie, the first a multiple of four; and one of them. */
template <typename T> struct dr_tile_words { unsigned word[sizeof(T)]; };

template <typename T> static __device__ inline dr_tile_words<T> dr_tile_take(const char *tile, int row, int column) {
    dr_tile_words<T> x;
    const char *at = tile + dr_tile_at<T>(0, 64, row, column);
    if constexpr (sizeof(T) == 4) {
        const uint4 all = *(const uint4 *)at;
        x.word[0] = all.x, x.word[1] = all.y, x.word[2] = all.z, x.word[3] = all.w;
    } else {
        const uint2 all = *(const uint2 *)at;
        x.word[0] = all.x, x.word[1] = all.y;
    }
    return x;
}

template <typename T> static __device__ inline float dr_tile_channel(const dr_tile_words<T> &x, int e) {
    if constexpr (sizeof(T) == 4) return __uint_as_float(x.word[e]);
    const float2 pair = dr_unpack(T(), x.word[e / 2]);
    return e % 2 ? pair.y : pair.x;
}

template <typename T> static __device__ inline void dr_tile_four(const char *tile, int row, int column, float (&x)[4]) {
    const dr_tile_words<T> words = dr_tile_take<T>(tile, row, column);
    DR_UNROLL (e, 4) x[e] = dr_tile_channel<T>(words, e);
}

/* Four to a place that is a multiple of four. */
template <typename T> static __device__ inline void dr_put_four(T *to, const float (&x)[4]) {
    union {
        T element[4];
        uint2 pair;
        uint4 all;
    } pack;
    DR_UNROLL (e, 4) pack.element[e] = dr_from_float<T>(x[e]);
    if constexpr (sizeof(T) == 4)
        *(uint4 *)to = pack.all;
    else
        *(uint2 *)to = pack.pair;
}

template <typename T>
static __device__ inline void dr_put_eight(char *tile, int rows, int row, int column, const float (&x)[8]) {
    constexpr int unit = 16 / (int)sizeof(T);
    DR_UNROLL_BY (i, 8, unit) {
        union {
            uint4 word;
            T element[unit];
        } pack;
        DR_UNROLL (e, unit) pack.element[e] = dr_from_float<T>(x[i + e]);
        *(uint4 *)(tile + dr_tile_at<T>(0, rows, row, column + i)) = pack.word;
    }
}

/* Rows of a tile made of rows of two tensors, eight channels at a time. */
template <typename T>
static __device__ inline void dr_form_rows(char *tile, int boxes, int size, bool aligned, int rows, int first, int spacing,
                                           dr_form form, const dr_strided<T> &a, const dr_strided<T> &b,
                                           const dr_form_factor &factor) {
    const int lanes = boxes * 8;
#pragma unroll 1
    for (int i = dr_copy_thread(); i < rows * lanes; i += DR_COPY_THREADS) {
        const int row = i / lanes, column = i % lanes * 8;
        float x[8], y[8];
        dr_fetch_eight<T>(a, row, column, size, aligned, x);
        dr_fetch_eight<T>(b, row, column, size, aligned, y);
        const float s = dr_form_factor_of(factor, row, a.alive);
        DR_UNROLL (e, 8) x[e] = dr_form_of(form, s, x[e], y[e]);
        dr_put_eight<T>(tile, 64, first + spacing * row, column, x);
    }
}

/* The same of tiles that are there, by all threads that share them: x from `left`, y from `right` (any tile where the form does
 * not ask for y), whose row lies `behind` rows behind. The tile may be `left` itself: a thread writes what it alone has read.
 * Four channels at a time, since accumulators may be held meanwhile. */
template <typename T, int groups>
static __device__ inline void dr_form_tiles(char *tile, int boxes, int rows, int first, int spacing, dr_form form,
                                            const char *left, const char *right, int behind, const dr_form_factor &factor,
                                            int alive) {
    const int thread = groups == 1 ? (int)threadIdx.x : dr_copy_thread(), step = (int)blockDim.x / (16 * groups);
#pragma unroll 1
    for (int box = 0; box < boxes; box++) {
        const int column = box * 64 + thread % 16 * 4;
#pragma unroll 1
        for (int row = thread / 16; row < rows; row += step) {
            const int place = first + spacing * row;
            float x[4], y[4];
            dr_tile_four<T>(left, place, column, x);
            dr_tile_four<T>(right, place + behind, column, y);
            const float s = dr_form_factor_of(factor, row, alive);
            DR_UNROLL (e, 4) x[e] = dr_form_of(form, s, x[e], y[e]);
            dr_put_four<T>((T *)(tile + dr_tile_at<T>(0, 64, place, column)), x);
        }
    }
}

#endif
