/* Prepare without decay or with a scalar one: scores, inverse, X and P' of every chunk and value head.
 *
 *     scan        with plan.scan_inside: W of the keys, which are R (diagonal_rows.cuh)
 *     products    R W^T and Q W^T, a warp 16 rows each, up to the diagonal
 *     mask        L = diag(c) (R W^T) f below the diagonal, P = scale (Q W^T) f up to it; f(i, j) is a product of decays from
 *                 row j to row i: within half a block of 16 rows made for the pair, between them and between blocks
 *                 head * totals * tail
 *     inverse     A = (I + L)^-1 (triangle.cuh)
 *     combine     P' = P A, P from registers; X = A^T diag(f(N, j+1)) W, the factor on A's rows so that W enters as it is
 *
 * The last two products are tf32 (three of them for float): A must not be rounded to bf16. On sm_90a the products of 16-bit
 * types are those of prepare_warpgroups.cuh. */
#ifndef DR_CUDA_PREPARE_CUH
#define DR_CUDA_PREPARE_CUH

#include "backends/cuda/chunkwise/diagonal_rows.cuh"
#include "backends/cuda/chunkwise/prepare_load.cuh"
#include "backends/cuda/chunkwise/prepare_warpgroups.cuh"
#include "backends/cuda/chunkwise/triangle.cuh"

/* What a chunk keeps beside tiles and matrix. */
typedef struct {
    float gain[64]; /* before that, where a gain is made of it, r . w of its row */
    float lambda[64];
    float head[64], read[64]; /* from the start of its block of 16 to after row i; to what the row reads */
    float tail[64];           /* from after row i to the end of its block */
    float leave[64];          /* from after row i to the end of the chunk */
    float total[4];           /* of a block */
} dr_prepare_small;

/* From after a writer to what a reader of the same block of 16 sees, where the lane's accumulators lie: rows g and g + 8, of
 * the columns 2t and 2t + 1 those in the row's own half of the block and those in the half before. */
typedef struct {
    float2 upper, lower, before;
} dr_prepare_near;

static inline dr_prepare_room dr_prepare_lay(const dr_cuda_chunk_plan &plan, int element) {
    dr_prepare_room room = {};
    const int tile = 64 * plan.key_width * element, matrix = 64 * DR_MATRIX_PITCH * (int)sizeof(float);
    const bool reader = plan.reads && !plan.reader_sum && !plan.rows.tied; /* of a sum the scores are made */
    room.query = tile;
    room.reader = reader ? room.query + tile : 0;
    room.made = room.query;           /* once the products are made */
    room.halves = room.made + matrix; /* a multiple of 1024 */
    const int behind = room.halves + (element == 2 ? DR_HALVES_BYTES : 0);
    int end = room.query + tile + (reader ? tile : 0);
    if (end < behind) end = behind;
    room.rows = end;
    room.scan = end + (int)sizeof(dr_prepare_small);
    room.bytes = room.scan + (plan.scan_inside ? (int)sizeof(dr_inside_room) : 0);
    return room;
}

/* The warp among the four that make a chunk. */
static __device__ inline int dr_prepare_warp() {
    return (int)(threadIdx.x / 32 % 4);
}

/* R W^T and Q W^T: rows 16 warp .. of both, columns up to there. */
template <typename T>
static __device__ inline void dr_prepare_scores(unsigned writer, unsigned reader, unsigned query, int width, bool reads,
                                                float (&l)[8][4], float (&p)[8][4]) {
    const int warp = dr_prepare_warp();
    for (int k = 0; k < width; k += 16) {
        dr_operand_a<T> r, q;
        if (reads) dr_load_a<T>(r, reader, 64, warp * 16, k);
        dr_load_a<T>(q, query, 64, warp * 16, k);
        DR_UNROLL (n, 4)
            if (n <= warp) {
                dr_operand_b<T> w[2];
                dr_load_b<T>(w, writer, 64, n * 16, k);
                DR_UNROLL (h, 2) {
                    if (reads) dr_product<T>(l[2 * n + h], r, w[h]);
                    dr_product<T>(p[2 * n + h], q, w[h]);
                }
            }
    }
}

/* R W^T of r = key + lambda query, from K W^T and Q W^T. */
static __device__ inline void dr_prepare_sum(const dr_prepare_small &small, float (&l)[8][4], const float (&p)[8][4]) {
    DR_UNROLL (h, 2) {
        const float lambda = small.lambda[dr_prepare_warp() * 16 + threadIdx.x % 32 / 4 + 8 * h];
        DR_UNROLL (n, 8)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) l[n][e] = fmaf(lambda, p[n][e], l[n][e]);
    }
}

/* The rows key + lambda query themselves, two channels at once: what the first pass over parts reads. Lambda is rounded to T,
 * too, which takes no more from the sum than its own rounding. */
template <typename T>
static __device__ inline void dr_prepare_put_sum(const dr_prepare_small &small, const char *keys, const char *queries,
                                                 int boxes, T *to) {
    const int thread = dr_copy_thread(), row = thread / 8, width = boxes * 64;
    keys += thread * 16, queries += thread * 16;
    to += row * width + (thread ^ row) % 8 * 8;
#pragma unroll 1
    for (int box = 0; box < boxes; box++) {
        DR_UNROLL_BY (j, 64, 16) {
            const int at = (box * 64 + j) * 128;
            const uint4 k = *(const uint4 *)(keys + at), q = *(const uint4 *)(queries + at);
            const unsigned lambda = dr_pack(T(), small.lambda[row + j], small.lambda[row + j]);
            *(uint4 *)(to + j * width + box * 64) =
                make_uint4(dr_pair_fma(T(), lambda, q.x, k.x), dr_pair_fma(T(), lambda, q.y, k.y),
                           dr_pair_fma(T(), lambda, q.z, k.z), dr_pair_fma(T(), lambda, q.w, k.w));
        }
    }
}

/* r . w of every row, which is on the diagonal of R W^T. */
static __device__ inline void dr_prepare_dots(const float (&l)[8][4], float *dot) {
    const int warp = dr_prepare_warp(), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    if (g / 2 != t) return;
    DR_UNROLL (n, 8)
        if (n / 2 == warp) dot[n * 8 + g] = g % 2 ? l[n][n % 2 * 2 + 1] : l[n][n % 2 * 2];
}

/* The log decay of row 16 warp + lane % 16: 0 but at the first row of a token. Asked for long before it is needed. */
static __device__ inline float dr_prepare_log_decay(const dr_cuda_rows &rows, const dr_prepare_block &x) {
    const int i = dr_prepare_warp() * 16 + (int)(threadIdx.x % 16), token = dr_row_token(rows, i);
    if (!rows.scalar_decay || i >= x.alive || i != token * rows.steps) return 0.0f;
    return dr_chunk_scalar(rows, DR_INPUT_LOG_DECAY, x, token, 0, x.head);
}

/* Decays of the warp's 16 rows, by lane % 16, and their products within each half of them. */
typedef struct {
    float alpha, head, before, tail; /* from the start of the half to after the row, to before it; from after it to the end */
} dr_prepare_half;

static __device__ inline dr_prepare_half dr_prepare_halve(float alpha) {
    const int own = (int)(threadIdx.x % 8);
    dr_prepare_half x = {alpha, alpha, 1, alpha};
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        const float above = __shfl_up_sync(0xffffffffu, x.head, step), below = __shfl_down_sync(0xffffffffu, x.tail, step);
        x.head *= own >= step ? above : 1.0f;
        x.tail *= own + step < 8 ? below : 1.0f;
    }
    const float above = __shfl_up_sync(0xffffffffu, x.head, 1), below = __shfl_down_sync(0xffffffffu, x.tail, 1);
    x.before = own == 0 ? 1.0f : above;
    x.tail = own == 7 ? 1.0f : below;
    return x;
}

/* read: what read keys see; else what queries do. */
static __device__ inline dr_prepare_near dr_prepare_pairs(const dr_cuda_rows &rows, const dr_prepare_half &half, bool read) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4), own = (int)(threadIdx.x % 16);
    const int row = dr_prepare_warp() * 16; /* the warp's first; steps need not divide it */
    const bool undecayed = read && rows.row[0].undecayed;
    const int upper_last = undecayed && (row + g) % rows.steps == 0 ? g - 1 : g; /* whose decay the row sees last */
    const int lower_last = undecayed && (row + g + 8) % rows.steps == 0 ? g - 1 : g;
    /* from after column 2t + 1, the first of two neighbours: two of them at once, and the last row where it has none */
    const float both = half.alpha * __shfl_xor_sync(0xffffffffu, half.alpha, 1);
    float upper = __shfl_sync(0xffffffffu, half.alpha, upper_last & 7);
    float lower = __shfl_sync(0xffffffffu, half.alpha, (lower_last & 7) + 8);
    upper = upper_last % 2 == 0 && upper_last > 2 * t ? upper : 1.0f;
    lower = lower_last % 2 == 0 && lower_last > 2 * t ? lower : 1.0f;
#pragma unroll
    for (int m = 2; m < 8; m += 2) {
        const float first = __shfl_sync(0xffffffffu, both, m), second = __shfl_sync(0xffffffffu, both, m + 8);
        upper *= m > 2 * t && m < upper_last ? first : 1.0f;
        lower *= m > 2 * t && m < lower_last ? second : 1.0f;
    }
    const float first = __shfl_sync(0xffffffffu, half.alpha, 2 * t + 1);
    const float second = __shfl_sync(0xffffffffu, half.alpha, 2 * t + 9);
    const float own_head = undecayed && (row + own) % rows.steps == 0 ? half.before : half.head;
    const float head = __shfl_sync(0xffffffffu, own_head, g + 8);
    const float left = __shfl_sync(0xffffffffu, half.tail, 2 * t), right = __shfl_sync(0xffffffffu, half.tail, 2 * t + 1);
    dr_prepare_near near;
    near.upper = make_float2(2 * t + 1 <= upper_last ? first * upper : upper, upper);
    near.lower = make_float2(2 * t + 1 <= lower_last ? second * lower : lower, lower);
    near.before = make_float2(head * left, head * right);
    return near;
}

/* What the other warps need of the warp's block. blind: one row a token, which reads nothing. */
template <bool blind = false>
static __device__ inline void dr_prepare_spread(const dr_cuda_rows &rows, const dr_prepare_half &half,
                                                dr_prepare_small &small) {
    const int own = (int)(threadIdx.x % 16), i = dr_prepare_warp() * 16 + own;
    const float upper = __shfl_sync(0xffffffffu, half.head, 7), lower = __shfl_sync(0xffffffffu, half.head, 15);
    const float over = own < 8 ? 1.0f : upper;
    if (threadIdx.x % 32 >= 16) return;
    small.head[i] = over * half.head;
    if (!blind) small.read[i] = over * (rows.row[0].undecayed && i % rows.steps == 0 ? half.before : half.head);
    small.tail[i] = own < 8 ? half.tail * lower : half.tail;
    if (own == 15) small.total[i / 16] = upper * lower;
}

/* From the gain and value of row i, with all decays there: what its readers are scaled by. Returns the decay from after the row
 * to the end of the chunk. blind: as above. */
template <bool blind = false>
static __device__ inline float dr_prepare_span(const dr_cuda_rows &rows, const dr_prepare_small &small, int i, int tokens,
                                               dr_row_factors &factors) {
    const float4 total = *(const float4 *)small.total;
    const int block = i / 16;
    const float before = (block > 0 ? total.x : 1.0f) * (block > 1 ? total.y : 1.0f) * (block > 2 ? total.z : 1.0f);
    const float after = (block < 1 ? total.y : 1.0f) * (block < 2 ? total.z : 1.0f) * (block < 3 ? total.w : 1.0f);
    if (!blind) factors.reader = before * small.read[i];
    if (i < tokens) {
        const int last = blind ? i : (i + 1) * rows.steps - 1;
        factors.query = rows.scale * small.head[last];
        if (blind || rows.steps == 1)
            factors.query *= before;
        else
            for (int b = 0; b < last / 16; b++) factors.query *= small.total[b];
    }
    return small.tail[i] * after;
}

/* Masks and scales scores of the warp's rows. strict: a row does not see what it writes itself. Before the warp's block, f is
 * the row's part, from_start, times the column's. factor: of the lane's rows, g and g + 8 of the block. */
template <bool strict>
static __device__ inline void dr_prepare_mask(const dr_prepare_small &small, const dr_prepare_near &near,
                                              const float *from_start, const float (&factor)[2], float (&c)[8][4]) {
    const int warp = dr_prepare_warp(), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    float row[2]; /* times the blocks between */
    DR_UNROLL (h, 2) row[h] = factor[h] * from_start[warp * 16 + g + 8 * h];
#pragma unroll
    for (int b = 3; b >= 0; b--) {
        if (b > warp) {
            DR_UNROLL (e, 8) c[2 * b + e / 4][e % 4] = 0;
        } else if (b < warp) {
#pragma unroll
            for (int n = 2 * b; n < 2 * b + 2; n++) {
                const float2 tail = *(const float2 *)&small.tail[n * 8 + 2 * t];
                DR_UNROLL (h, 2) c[n][2 * h] *= row[h] * tail.x, c[n][2 * h + 1] *= row[h] * tail.y;
            }
            DR_UNROLL (h, 2) row[h] *= small.total[b];
        } else {
            float(&left)[4] = c[2 * b], (&right)[4] = c[2 * b + 1];
            /* whether columns 2t and 2t + 1 of the half are seen by row g of it */
            const bool even = strict ? 2 * t < g : 2 * t <= g, odd = strict ? 2 * t + 1 < g : 2 * t + 1 <= g;
            left[0] = even ? factor[0] * near.upper.x * left[0] : 0.0f;
            left[1] = odd ? factor[0] * near.upper.y * left[1] : 0.0f;
            left[2] *= factor[1] * near.before.x, left[3] *= factor[1] * near.before.y;
            right[0] = right[1] = 0;
            right[2] = even ? factor[1] * near.lower.x * right[2] : 0.0f;
            right[3] = odd ? factor[1] * near.lower.y * right[3] : 0.0f;
        }
    }
}

/* L of what read keys make with keys; P of what queries do. */
static __device__ inline void dr_prepare_mask_reads(const dr_prepare_small &small, const dr_prepare_near &near,
                                                    float (&l)[8][4]) {
    const float *gain = small.gain + dr_prepare_warp() * 16 + threadIdx.x % 32 / 4, factor[2] = {gain[0], gain[8]};
    dr_prepare_mask<true>(small, near, small.read, factor, l);
}

static __device__ inline void dr_prepare_mask_queries(const dr_cuda_rows &rows, const dr_prepare_small &small,
                                                      const dr_prepare_near &near, float (&p)[8][4]) {
    const float factor[2] = {rows.scale, rows.scale};
    dr_prepare_mask<false>(small, near, small.head, factor, p);
}

/* P' = P A: rows 16 warp .. of P from registers. */
template <bool precise>
static __device__ inline void dr_prepare_combine(const float *matrix, int warp, const float (&p)[8][4], float (&c)[8][4]) {
    DR_UNROLL (k, 8)
        if (k < 2 * warp + 2) { /* P is zero behind the warp's diagonal block, A above the row */
            dr_eight_a<precise> a;
            dr_accumulator_a<precise>(a, p[k]);
#pragma unroll
            for (int n = 0; n <= k; n++) {
                dr_eight_b<precise> b;
                dr_matrix_b<precise>(b, matrix, k * 8, n * 8);
                dr_product_rounded<precise>(c[n], a.high, a.low, b.high, b.low);
            }
        }
    DR_UNROLL (n, 8)
        DR_UNROLL (e, 4) c[n][e] *= precise ? 1.0f : DR_CUT_LIFT;
}

/* Rows 16 warp .. of P' that belong to a query, and zeros behind them all. pairs: the upper rows are queries 8 warp ... */
template <typename T, bool pairs>
static __device__ inline void dr_prepare_put_score(const dr_cuda_chunk_plan &plan, T *to, int warp, const float (&c)[8][4]) {
    const dr_cuda_rows &rows = plan.rows;
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (h, 2) {
        const int i = warp * 16 + g + 8 * h, token = pairs ? warp * 8 + g : dr_row_token(rows, i);
        if (token >= plan.chunk || (pairs ? h > 0 : i - token * rows.steps != rows.steps - 1)) continue;
        T *row = to + token * 64 + 2 * t;
        DR_UNROLL (n, 8) dr_store_pair<T>(row + n * 8, c[n][2 * h], c[n][2 * h + 1]);
    }
#pragma unroll 1
    for (int i = plan.chunk * 64 + dr_copy_thread(); i < plan.query_rows * 64; i += PREPARE_THREADS)
        to[i] = dr_from_float<T>(0.0f);
}

/* Two operands B of eight contracted rows each, two times eight columns: rows row .. row + 15, columns column .. column + 15 of
 * a tile, as tf32. w[k][n] */
template <typename T>
static __device__ inline void dr_load_rounded(dr_eight_b<false> (&w)[2][2], unsigned tile, int row, int column) {
    const int lane = (int)(threadIdx.x % 32);
    unsigned x[4];
    dr_load_matrices_transposed(x, dr_tile_at<T>(tile, 64, row + lane % 16, column + lane / 16 * 8));
    DR_UNROLL (i, 4) {
        const T *pair = (const T *)&x[i];
        w[i % 2][i / 2].high[0] = __float_as_uint(dr_to_float(pair[0]));
        w[i % 2][i / 2].high[1] = __float_as_uint(dr_to_float(pair[1]));
    }
}

template <> __device__ inline void dr_load_rounded<float>(dr_eight_b<false> (&w)[2][2], unsigned tile, int row, int column) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (i, 8) {
        const int k = i / 4, n = i / 2 % 2, j = i % 2;
        w[k][n].high[j] =
            dr_round_tf32(dr_load_shared(dr_tile_at<float>(tile, 64, row + 8 * k + 2 * t + j, column + 8 * n + g)));
    }
}

/* X = A^T diag(leave) W, 32 channels of a warp at a time; W a tile of type from_type. leave NULL: 1. */
template <typename T, typename from_type>
static __device__ inline void dr_prepare_put_exit(const dr_cuda_chunk_plan &plan, const float *matrix, const float *leave,
                                                  unsigned writer, T *to) {
    constexpr bool precise = sizeof(T) == 4;
    const int warp = dr_prepare_warp(), g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    for (int column = warp * 32; column < plan.key_width; column += PREPARE_THREADS) {
        DR_UNROLL (m, 4) { /* rows 16 m .. of X; A^T is zero left of them */
            float x[4][4] = {};
#pragma unroll
            for (int k = 16 * m; k < 64; k += 16) {
                dr_eight_a<precise> a[2];
                dr_matrix_a_transposed<precise>(a[0], matrix + 16 * m, k, leave);
                dr_matrix_a_transposed<precise>(a[1], matrix + 16 * m, k + 8, leave);
                DR_UNROLL (n, 2) {
                    if constexpr (precise) {
                        dr_operand_b<float> w[2];
                        dr_load_b_straight<float>(w, writer, 64, k, column + 16 * n);
                        DR_UNROLL (i, 2)
                            DR_UNROLL (h, 2)
                                dr_product_rounded<true>(x[2 * n + h], a[i].high, a[i].low, w[h].high[i], w[h].low[i]);
                    } else {
                        dr_eight_b<false> w[2][2];
                        dr_load_rounded<from_type>(w, writer, k, column + 16 * n);
                        DR_UNROLL (i, 2)
                            DR_UNROLL (h, 2)
                                dr_product_rounded<false>(x[2 * n + h], a[i].high, a[i].low, w[i][h].high, w[i][h].low);
                    }
                }
            }
            T *row = to + (16 * m + g) * plan.key_width + column + 2 * t;
            DR_UNROLL (n, 4)
                DR_UNROLL (i, 2) dr_store_pair<T>(row + i * 8 * plan.key_width + n * 8, x[n][2 * i], x[n][2 * i + 1]);
        }
    }
}

static __device__ inline void dr_prepare_put_inverse(const dr_cuda_chunk_tensors &tensors, const dr_prepare_block &x,
                                                     const float *matrix) {
    float *to = (float *)tensors.inverse + x.block * 64 * 64;
    if (!tensors.inverse) return;
#pragma unroll 4
    for (int e = dr_copy_thread(); e < 64 * 64; e += PREPARE_THREADS) to[e] = matrix[e / 64 * DR_MATRIX_PITCH + e % 64];
}

/* X = diag(leave) W: no row reads, A = I. */
template <typename T>
static __device__ inline void dr_prepare_put_written(const dr_cuda_chunk_plan &plan, const float *leave, const char *writer,
                                                     T *to) {
    constexpr int unit = 16 / (int)sizeof(T);
    const int units = plan.key_width / unit;
    for (int i = dr_copy_thread(); i < 64 * units; i += PREPARE_THREADS) {
        const int row = i / units, column = i % units * unit;
        union {
            uint4 words;
            T element[unit];
        } pack;
        pack.words = *(const uint4 *)(writer + dr_tile_at<T>(0, 64, row, column));
        DR_UNROLL (e, unit) pack.element[e] = dr_from_float<T>(leave[row] * dr_to_float(pack.element[e]));
        *(uint4 *)(to + row * plan.key_width + column) = pack.words;
    }
}

/* A chunk of a value head, by 128 threads that have `shared` to themselves, one of `groups` such groups of the block. alone()
 * is called, where rows read, once nothing of the chunk waits for other chunks any more. */
template <typename T, int groups, dr_prepare_form form, typename function>
static __device__ inline void dr_prepare_chunk(const dr_prepare_call &call, const dr_prepare_block &x, char *shared,
                                               const function &alone) {
    constexpr bool precise = sizeof(T) == 4, warpgroups = dr_groups_multiply<T>(), scans = dr_prepare_scans(form),
                   lean = form != DR_PREPARE_ANY, apart = form == DR_PREPARE_APART;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const dr_cuda_rows &rows = plan.rows;
    const dr_prepare_room &room = call.facts.room;
    const bool reads = lean || plan.reads, dots = !lean && call.facts.dots;
    dr_prepare_small &small = *(dr_prepare_small *)(shared + room.rows);
    float *matrix = (float *)(shared + room.made);
    char *reader = shared + room.reader;
    const uint64_t tile = (uint64_t)(unsigned)x.block * (unsigned)(64 * plan.key_width);

    dr_prepare_load<T, false, form>(call, x, shared);
    const int i = dr_copy_thread();
    dr_inside_early early;
    if constexpr (scans) early = dr_inside_ask(plan, tensors, x);
    const dr_map_gain_inputs gain_inputs = dr_prepare_gain_inputs<form>(rows, x, i < 64 ? i : x.alive);
    const float lambda = !scans && plan.reader_sum && i < x.alive ? dr_chunk_scalar(rows, DR_INPUT_LAMBDA, x, i, 0, x.head) : 0;
    const float log_decay = dr_prepare_log_decay(rows, x);
    if constexpr (scans) {
        dr_inside_room &scan = *(dr_inside_room *)(shared + room.scan);
        dr_inside_put_rows(plan, early, scan);
        dr_copy_wait<1>();
        dr_meet<groups>();
        dr_inside_make<T, dr_prepare_scan_channels(form), groups>(plan, tensors, x, early, scan, reader, shared + room.writer);
    }
    const dr_prepare_half half = dr_prepare_halve(expf(log_decay));
    const dr_prepare_near near = dr_prepare_pairs(rows, half, false);
    const dr_prepare_near near_read = !lean && rows.row[0].undecayed ? dr_prepare_pairs(rows, half, true) : near;
    dr_prepare_spread(rows, half, small);
    if (!scans && plan.reader_sum && i < 64) small.lambda[i] = lambda;
    dr_copy_wait<0>();
    dr_shared_fence();
    dr_meet<groups>();
    if constexpr (scans)
        dr_inside_keep<T>(plan, x, shared + room.writer);
    else if (apart && call.facts.late)
        dr_finish_apart<T, groups>(rows, x, shared + room.writer, reader);
    else if (!lean && call.facts.late)
        dr_finish_rows<T, groups>(plan, x, shared + room.writer, reader, shared + room.query);

    float l[8][4], p[8][4];
    const unsigned writer_at = dr_shared_address(shared + room.writer), query_at = dr_shared_address(shared + room.query);
    const unsigned reader_at = dr_shared_address(reader);
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (!precise) {
        if (!scans && (int)x.before < call.facts.sums)
            dr_prepare_put_sum<T>(small, shared + room.writer, shared + room.query, x.boxes, (T *)tensors.reader + tile);
        dr_group_scores<T>(writer_at, reader_at, query_at, x.boxes, l, p);
    } else
#endif
    {
        DR_UNROLL (n, 8)
            DR_UNROLL (e, 4) l[n][e] = p[n][e] = 0;
        dr_prepare_scores<T>(writer_at, reader_at, query_at, plan.key_width, reads, l, p);
    }
    if (!scans && plan.reader_sum) dr_prepare_sum(small, l, p);
    if (dots) dr_prepare_dots(l, small.gain);
    if ((!lean || apart) && !plan.reader_sum && tensors.reader)
        dr_put_tile<T>(plan, reader, (T *)tensors.reader + tile, 64, 0, 1);
    if (!lean && tensors.query)
        dr_put_tile<T>(plan, shared + room.query, (T *)tensors.query + x.block * plan.query_rows * plan.key_width,
                       plan.query_rows, rows.steps - 1, rows.steps);
    dr_meet<groups>();
    dr_row_factors factors = {0, 0, 0, 0};
    if (i < 64) {
        const float dot = dots ? small.gain[i] : 0.0f;
        factors = dr_prepare_factors<form>(rows, x, i, dr_prepare_gain<form>(rows, x, i, gain_inputs, dot));
        small.gain[i] = factors.gain;
    }
    dr_meet<groups>(); /* all tiles but that of the write keys are read; decays and gains are there */
    if (i < 64) {
        small.leave[i] = dr_prepare_span(rows, small, i, x.place.tokens, factors);
        if ((!lean || apart) && plan.reader_direct && rows.row[0].negative) factors.reader = -factors.reader;
        dr_put_factors(tensors.factors[x.block], i, factors);
    }
    const float kept = small.total[0] * small.total[1] * small.total[2] * small.total[3];
    float *keep = tensors.keep + x.block * plan.key_width;
#pragma unroll 1
    for (int k = i; k < plan.key_width; k += PREPARE_THREADS) keep[k] = kept;
    if (reads) dr_prepare_mask_reads(small, near_read, l);
    dr_prepare_mask_queries(rows, small, near, p);
    const int warp = dr_prepare_warp();
    if (reads) dr_matrix_put<!warpgroups>(l, warp, matrix);
    T *score = (T *)tensors.score + x.block * plan.query_rows * 64, *exit = (T *)tensors.exit + tile;
    if (!reads) {
        dr_meet<groups>();
#ifdef DR_CUDA_WARPGROUPS
        if constexpr (!precise)
            dr_group_put_score<T, false>(plan, (char *)matrix, warp, p, score);
        else
#endif
            dr_prepare_put_score<T, false>(plan, score, warp, p);
        dr_prepare_put_written<T>(plan, small.leave, shared + room.writer, exit);
        return;
    }
    alone();
    dr_triangle_invert<precise, groups>(matrix, warp);
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (!precise) {
        dr_prepare_finish<T, false, false, groups>(plan, matrix, shared + room.halves, small.leave, warp, p, writer_at, score,
                                                   exit);
        if (tensors.inverse) dr_halves_save((char *)tensors.inverse + x.block * DR_HALVES_BYTES, shared + room.halves);
        return;
    }
#endif
    dr_prepare_put_inverse(tensors, x, matrix);
    float c[8][4] = {};
    dr_prepare_combine<precise>(matrix, warp, p, c);
    dr_prepare_put_score<T, false>(plan, score, warp, c);
    dr_prepare_put_exit<T, T>(plan, matrix, small.leave, writer_at, exit);
}

/* Where the scan is made chunks of equal sequences take turns, so that those they wait for have begun long before. */
template <typename T, dr_prepare_form form>
static __global__ void __launch_bounds__(PREPARE_THREADS, sizeof(T) == 2 ? 4 : 3)
    prepare(const __grid_constant__ dr_prepare_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr bool scans = dr_prepare_scans(form);
    const dr_prepare_block x = dr_prepare_find(call, blockIdx.x, scans && call.plan.length);
    if (x.place.tokens > 0 && !dr_begins_early(call.plan, call.tensors, x.place.sequence, x.head))
        dr_prepare_chunk<T, 1, form>(call, x, shared, [] {});
    else if (scans && !call.tensors.early)
        dr_beside_close();
}

#endif
