/* The diagonal scan's backward over rows that a warp holds, two channels a lane, for kernels that have just made what write
 * keys B * key get (d_write):
 *
 *     A           of every row, from A before the chunk
 *     B, slope    s_t = slope key d_write / (A_t + eps)          d_key += B d_write
 *     chain       the gradient of A from the chunks behind       d_t = s_t + alpha_{t+1} d_{t+1}
 *     gradients   d_key += 2 b key d_t       d_b = sum key^2 d_t       d_alpha = sum A_{t-1} d_t
 *
 * A warp has `count` neighbouring rows, all in registers. Both recurrences begin with zero, one multiplication and addition a
 * row, and what was before the rows is added to all of them at once: so a chunk's part is known as soon as may be, and nothing
 * else waits for another row.
 *
 * Chunks make the gradient for one another while they run, in the order of diagonal_chain.cuh, 64 channels by themselves, by
 * numbers that say themselves that they are told (told.cuh); all of product is [H * K/64][slots] here. Every chunk tells what
 * it makes of zero before it waits, so that none waits for long. One warp of those that share a chunk and its channels does. */
#ifndef DR_CUDA_DIAGONAL_ROWS_BACK_CUH
#define DR_CUDA_DIAGONAL_ROWS_BACK_CUH

#include "backends/cuda/device/told.cuh"
#include "backends/cuda/diagonal/diagonal_chain.cuh"

enum { CHAIN_AT_ONCE = 8 };

/* ---- rows ---------------------------------------------------------------------------------------------------------------- */

/* What the lanes need of a row, and its multiple of w that is to be added to d_write (settle_write) apart from it: that comes
 * late. */
typedef struct __align__(16) {
    float alpha, gain;
    float head, tail; /* decay from before the warp's rows to after this one; from after it to behind the warp's last one */
}
dr_scan_number;

/* Of row lane % count, alpha and gain of the lane; they are there for the warp behind __syncwarp. Returns the product of the
 * alphas. */
template <int count> static __device__ inline float dr_scan_put_numbers(float alpha, float gain, dr_scan_number *to) {
    const int lane = (int)(threadIdx.x % 32), own = lane % count;
    float head = alpha, tail = alpha; /* with the rows before, with those behind */
#pragma unroll
    for (int d = 1; d < count; d *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, head, d), behind = __shfl_down_sync(0xffffffffu, tail, d);
        if (own >= d) head *= before;
        if (own + d < count) tail *= behind;
    }
    tail = __shfl_down_sync(0xffffffffu, tail, 1);
    if (own == count - 1) tail = 1;
    const dr_scan_number number = {alpha, gain, head, tail};
    if (lane < count) to[lane] = number;
    return __shfl_sync(0xffffffffu, head, count - 1);
}

/* A after every row if it is zero before. key: of both channels, 16 bits each. */
template <typename T, int count>
static __device__ inline void dr_scan_replay(const unsigned (&key)[count], const dr_scan_number *number, float2 (&a)[count]) {
    float2 x = make_float2(0, 0);
    DR_UNROLL (i, count) {
        const float2 k = dr_unpack(T(), key[i]);
        const dr_scan_number row = number[i];
        x.x = dr_map_scan_step(x.x, row.alpha, row.gain, k.x);
        x.y = dr_map_scan_step(x.y, row.alpha, row.gain, k.y);
        a[i] = x;
    }
}

/* The squash with what can be known before: of z = log2(A + eps) - centre and u = 1 / (log2 e + |z|), s = z u, s' = (u log2
 * e)^2 and B = 2^(offset - factor s). */
typedef struct {
    float eps, centre, offset, factor;
    float slope; /* what the gradient of A has beside B s' / (A + eps) of the powers of two: -factor as the rule has it, and
                    (log2 e)^2 */
} dr_scan_squash;

static __device__ inline dr_scan_squash dr_scan_squash_of(const dr_cuda_rows &rows, float centre) {
    const float log2_e = 1.44269504f;
    return {rows.squash.eps, log2_e * centre, log2_e * rows.squash.offset, log2_e * rows.squash.factor,
            -log2_e * log2_e * rows.squash.factor};
}

/* Of one channel and row: d_write becomes s, d_key gets B d_write. Returns what the centre gets, over -slope. */
static __device__ inline float dr_scan_source(const dr_scan_squash &squash, float a, float key, float more, float &d,
                                              float &d_key) {
    const float sum = a + squash.eps, z = dr_log2_near(sum) - squash.centre;
    const float u = dr_reciprocal_near(1.44269504f + fabsf(z));
    const float b = dr_exp2_near(fmaf(-squash.factor, z * u, squash.offset)), w = b * key, d_write = fmaf(more, w, d);
    const float position = u * u * (w * d_write);
    d_key = fmaf(b, d_write, d_key);
    d = squash.slope * (position * dr_reciprocal_near(sum));
    return position;
}

/* The same of all rows. entry: A before them; a: from zero before, and then A after each; d: d_write, and then s. Returns the
 * lane's part of the centre's gradient. */
template <typename T, int count>
static __device__ inline float dr_scan_sources(const dr_scan_squash &squash, const unsigned (&key)[count],
                                               const dr_scan_number *number, const float *more, float2 entry,
                                               float2 (&a)[count], float2 (&d)[count], float2 (&d_key)[count]) {
    float sum = 0;
    DR_UNROLL (i, count) {
        const float2 k = dr_unpack(T(), key[i]);
        const float head = number[i].head, settle = more[i];
        a[i] = make_float2(fmaf(head, entry.x, a[i].x), fmaf(head, entry.y, a[i].y));
        sum += dr_scan_source(squash, a[i].x, k.x, settle, d[i].x, d_key[i].x);
        sum += dr_scan_source(squash, a[i].y, k.y, settle, d[i].y, d_key[i].y);
    }
    return -squash.slope * sum;
}

/* From s to d if it is zero behind the rows; returns d before them. */
template <int count> static __device__ inline float2 dr_scan_back(const dr_scan_number *number, float2 (&d)[count]) {
    float2 x = d[count - 1];
#pragma unroll
    for (int i = count - 1; i > 0; i--) {
        const float alpha = number[i].alpha;
        x = d[i - 1] = make_float2(fmaf(alpha, x.x, d[i - 1].x), fmaf(alpha, x.y, d[i - 1].y));
    }
    return make_float2(number[0].alpha * x.x, number[0].alpha * x.y);
}

/* entry: A before the rows, behind: d behind them. d_key becomes whole, d_gain and d_alpha are the lane's parts of sums. */
template <typename T, int count>
static __device__ inline void dr_scan_give(const unsigned (&key)[count], const dr_scan_number *number, float2 entry,
                                           float2 behind, const float2 (&a)[count], const float2 (&d)[count],
                                           float2 (&d_key)[count], float (&d_gain)[count], float (&d_alpha)[count]) {
    DR_UNROLL (i, count) {
        const dr_scan_number row = number[i];
        const float2 k = dr_unpack(T(), key[i]), before = i == 0 ? entry : a[i - 1];
        const float2 all = make_float2(fmaf(row.tail, behind.x, d[i].x), fmaf(row.tail, behind.y, d[i].y));
        const float2 of_key = make_float2(k.x * all.x, k.y * all.y);
        const float twice = 2 * row.gain;
        d_gain[i] = fmaf(k.x, of_key.x, k.y * of_key.y);
        d_alpha[i] = fmaf(before.x, all.x, before.y * all.y);
        d_key[i] = make_float2(fmaf(twice, of_key.x, d_key[i].x), fmaf(twice, of_key.y, d_key[i].y));
    }
}

/* ---- chunks -------------------------------------------------------------------------------------------------------------- */

/* The lane's two channels of a chunk, on the way from a sequence's last chunk to its first. */
typedef struct {
    int64_t at;         /* of [slots][H][K] */
    int64_t state;      /* of [sequences][H][K] */
    int64_t product;    /* of [H][K/64][slots] */
    int64_t stride;     /* H K */
    int behind, before; /* chunks of the sequence behind this one, which come earlier, and before it */
} dr_chain_back;

static __device__ inline dr_chain_back dr_chain_back_of(const dr_cuda_chunk_plan &plan, int64_t sequence, int64_t slot,
                                                        int head, int box, int behind, int before) {
    const int K = plan.rows.key_size, channel = box * 64 + (int)(threadIdx.x % 32) * 2;
    const int64_t H = plan.key_heads;
    return {(slot * H + head) * K + channel,
            (sequence * H + head) * K + channel,
            ((int64_t)head * (K / 64) + box) * plan.slots + slot,
            H * K,
            behind,
            before};
}

/* d behind the chunk as it is now, which dr_chain_known asks about when it has come; at the end what the call gives. */
static __device__ inline float2 dr_chain_peek(const dr_cuda_rows &rows, const dr_cuda_diagonal_chain &chain,
                                              const dr_chain_back &x) {
    if (x.behind > 0) return make_float2(dr_hear(chain.entry + x.at), dr_hear(chain.entry + x.at + 1));
    return chain.initial ? chain_load(rows, chain.initial + x.state, 2) : make_float2(0, 0);
}

/* Whether all lanes have what another chunk tells. */
static __device__ inline bool dr_chain_known(float2 d) {
    return __all_sync(0xffffffffu, dr_is_told(d.x) && dr_is_told(d.y));
}

/* By a warp, before it waits: what the chunk makes of zero. */
static __device__ inline void dr_chain_tell(const dr_cuda_diagonal_chain &chain, const dr_chain_back &x, float product,
                                            float2 end) {
    if (x.before == 0) return;
    dr_tell(chain.end + x.at, end.x);
    dr_tell(chain.end + x.at + 1, end.y);
    if (threadIdx.x % 32 == 0) dr_tell(chain.product + x.product, product);
}

/* Waits for d behind the chunk: what the nearest chunk behind has by now behind itself, through what those between make of it,
 * eight of them in one trip to the second-level cache. Not what the call gives, which may be any number. By a whole warp, a
 * lane of which looks for each of 32 chunks. */
static __device__ inline float2 dr_chain_await(const dr_cuda_diagonal_chain &chain, const dr_chain_back &x) {
    const int lane = (int)(threadIdx.x % 32);
    const float *entry = chain.entry + x.at, *end = chain.end + x.at, *product = chain.product + x.product;
    int between;
    do {
        const bool there = lane < x.behind && dr_is_told(dr_hear(entry - 2 * lane + lane * x.stride));
        between = __ffs((int)__ballot_sync(0xffffffffu, there)) - 1;
    } while (between < 0);
    float2 d = make_float2(0, 0);
    float passed = 0; /* lane l: the alphas of the lth chunk between, from the last on */
    for (int i = 0;;) {
        float2 y[CHAIN_AT_ONCE];
        if (i == 0) {
            d = make_float2(dr_hear(entry + between * x.stride), dr_hear(entry + between * x.stride + 1));
            if (lane < between) passed = dr_hear(product + between - lane);
        }
        DR_UNROLL (n, CHAIN_AT_ONCE) {
            const float *at = end + (i + n < between ? between - i - n : 0) * x.stride;
            y[n] = make_float2(dr_hear(at), dr_hear(at + 1));
        }
        bool told = dr_is_told(d.x) && dr_is_told(d.y) && dr_is_told(passed);
        DR_UNROLL (n, CHAIN_AT_ONCE) told = told && (i + n >= between || (dr_is_told(y[n].x) && dr_is_told(y[n].y)));
        if (!__all_sync(0xffffffffu, told)) continue;
        DR_UNROLL (n, CHAIN_AT_ONCE) {
            const float over = __shfl_sync(0xffffffffu, passed, i + n);
            if (i + n < between) d = make_float2(fmaf(over, d.x, y[n].x), fmaf(over, d.y, y[n].y));
        }
        if ((i += CHAIN_AT_ONCE) >= between) return d;
    }
}

/* By a warp: d, behind the chunk, goes before it. */
static __device__ inline void dr_chain_leave(const dr_cuda_rows &rows, const dr_cuda_diagonal_chain &chain,
                                             const dr_chain_back &x, float product, float2 end, float2 d) {
    const float2 leaves = make_float2(fmaf(product, d.x, end.x), fmaf(product, d.y, end.y));
    if (x.before > 0) {
        dr_tell(chain.entry + x.at - x.stride, leaves.x);
        dr_tell(chain.entry + x.at - x.stride + 1, leaves.y);
    } else if (chain.final) {
        chain_store(rows, chain.final + x.state, 2, leaves);
    }
}

#endif
