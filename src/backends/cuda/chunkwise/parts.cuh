/* What the parts of a cut sequence begin with, from what each part does to a state, part after part; and back, from the last
 * part on, the gradients that they end with:
 *
 *     entry(0) = initial            entry(1) = local(0)              entry(p + 1) = M(p) entry(p) + local(p)
 *     between(last) = of the call   between(last - 1) = local(last)  between(p - 1) = M(p)^T between(p) + local(p)
 *
 * without M(p) where some chunks of part p do (trim_parts.cuh). Without reads M is the product of the decays.
 *
 * A block of threads takes 8 columns of V, with which M is multiplied by mma.sync, all numbers as two of tf32, good to 2^-22. A
 * warp makes 32 channels, over a share of what is contracted; the shares are added in order. M goes straight to registers, a
 * step ahead, since none of it depends on the states. */
#ifndef DR_CUDA_PARTS_CUH
#define DR_CUDA_PARTS_CUH

#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/fragments.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/plan/chunkwise.h"
#include "backends/cuda/plan/find.cuh"

enum { DR_JOIN_COLUMNS = 8 };

template <int width> struct dr_join_shape {
    enum {
        warps = width == 64 ? 4 : 16,
        threads = 32 * warps,
        bands = width / 32,          /* of 32 channels that warps make */
        shares = warps / bands,      /* warps that make the same ones; threads that make the decay of a channel */
        tiles = width / 32 / shares, /* 32 by 32 of M that a warp multiplies by */
        own = DR_JOIN_COLUMNS * width / threads,
        padded = width + 4 /* a row of shared memory */
    };
};

/* local: what comes of each part; to: what parts begin with, or back end with. */
typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
    const float *local;
    float *to;
} dr_join_call;

/* Of the parts that stand at `place` and behind it, every step-th, whether some chunks do: asked for at once by all threads of
 * a block, before its next barrier. */
typedef struct {
    unsigned words[DR_CUDA_TRIM_PARTS / 32];
} dr_trimmed_parts;

static __device__ inline void dr_find_trimmed(const dr_cuda_chunk_tensors &tensors, int64_t place, int step, int parts,
                                              dr_trimmed_parts &trimmed) {
    for (int part = (int)threadIdx.x; tensors.trims && part / 32 * 32 < parts; part += (int)blockDim.x) {
        const unsigned word =
            __ballot_sync(0xffffffffu, part < parts && dr_trim_of(tensors, place + (int64_t)part * step).last >= 0);
        if (part % 32 == 0) trimmed.words[part / 32] = word;
    }
}

static __device__ inline bool dr_is_trimmed(const dr_cuda_chunk_tensors &tensors, const dr_trimmed_parts &trimmed, int part) {
    return tensors.trims && trimmed.words[part / 32] >> part % 32 & 1;
}

/* Decay of channel k over every step-th chunk of a head from begin on; slot: of the sequence. */
static __device__ inline float dr_parts_keep(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors, int64_t slot,
                                             int head, int begin, int end, int step, int k) {
    float kept = 1;
#pragma unroll 8
    for (int chunk = begin; chunk < end; chunk += step)
        kept *= tensors.keep[((slot + chunk) * plan.value_heads + head) * plan.key_width + k];
    return kept;
}

/* 32 by 32 of the passage, [unit j][channel k], as a warp wants it for operands A: forward its rows are contracted, of which a
 * lane has those of its t, four channels of each; back its columns, of which a lane has four of the rows of its g. */
typedef struct {
    float4 x[8];
} dr_join_tile;

template <bool back, int width>
static __device__ inline void dr_join_load(const float *passage, int row, int column, dr_join_tile &m) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (i, 8) {
        const int j = back ? i / 2 * 8 + g : i * 4 + t, k = back ? i % 2 * 16 + t * 4 : g * 4;
        m.x[i] = __ldg((const float4 *)(passage + (row + j) * width + column + k));
    }
}

/* C, 32 channels by 8 columns, += the tile times the state's channels from `first` on. */
template <bool back, int padded>
static __device__ inline void dr_join_multiply(const dr_join_tile &m, const float (&state)[DR_JOIN_COLUMNS][padded], int first,
                                               float (&c)[2][4]) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    const auto number = [&](int i, int e) { return e == 0 ? m.x[i].x : e == 1 ? m.x[i].y : e == 2 ? m.x[i].z : m.x[i].w; };
    DR_UNROLL (s, 4) { /* eight channels that are contracted; back: two of each lane's four */
        const float *from = &state[g][first + (back ? s / 2 * 16 + t * 4 + s % 2 * 2 : s * 8 + t)];
        unsigned high_b[2], low_b[2];
        dr_split(from[0], high_b[0], low_b[0]);
        dr_split(from[back ? 1 : 4], high_b[1], low_b[1]);
        DR_UNROLL (r, 2) {
            unsigned high[4], low[4];
            if constexpr (back)
                dr_split_four(high, low, number(4 * r + s / 2, s % 2 * 2), number(4 * r + 2 + s / 2, s % 2 * 2),
                              number(4 * r + s / 2, s % 2 * 2 + 1), number(4 * r + 2 + s / 2, s % 2 * 2 + 1));
            else
                dr_split_four(high, low, number(2 * s, 2 * r), number(2 * s, 2 * r + 1), number(2 * s + 1, 2 * r),
                              number(2 * s + 1, 2 * r + 1));
            dr_multiply_tf32(c[r], high, low_b[0], low_b[1]);
            dr_multiply_tf32(c[r], low, high_b[0], high_b[1]);
            dr_multiply_tf32(c[r], high, high_b[0], high_b[1]);
        }
    }
}

/* The warp's 32 channels from `first` on, to its share of the sums. */
template <bool back, int padded>
static __device__ inline void dr_join_put(const float (&c)[2][4], int first, float (&sums)[DR_JOIN_COLUMNS][padded]) {
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    DR_UNROLL (v, 2) {
        float *to = &sums[2 * t + v][first];
        if constexpr (back)
            DR_UNROLL (i, 4) to[i * 8 + g] = c[i / 2][i % 2 * 2 + v];
        else
            *(float4 *)(to + g * 4) = make_float4(c[0][v], c[0][2 + v], c[1][v], c[1][2 + v]);
    }
}

template <bool back, int width>
static __global__ void __launch_bounds__(dr_join_shape<width>::threads) join_parts(const __grid_constant__ dr_join_call call) {
    typedef dr_join_shape<width> shape;
    enum { threads = shape::threads, padded = shape::padded };
    __shared__ __align__(16) float state[DR_JOIN_COLUMNS][padded];
    __shared__ __align__(16) float sums[shape::shares][DR_JOIN_COLUMNS][padded];
    __shared__ dr_trimmed_parts trimmed;
    static_assert((int)shape::threads == (int)shape::shares * width, "decays lie where sums do");
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_chunk_tensors &tensors = call.tensors;
    const int groups = plan.value_width / DR_JOIN_COLUMNS, thread = (int)threadIdx.x;
    const int band = thread / 32 % shape::bands * 32, share = thread / 32 / shape::bands,
              contracted = share * shape::tiles * 32;
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads), first = (int)(blockIdx.x % groups) * DR_JOIN_COLUMNS;
    if (dr_begins_early(plan, tensors, sequence, head)) return;
    if (tensors.early) dr_beside_close();
    const int64_t slot = dr_sequence_slot(plan, tensors.cu, sequence);
    int32_t length;
    const int parts = dr_sequence_parts(plan, tensors.cu, sequence, &length);
    const auto place_of = [&](int part) { return (slot / DR_CUDA_PART_CHUNKS + part) * plan.value_heads + head; };
    if (plan.reads) dr_find_trimmed(tensors, place_of(0), plan.value_heads, parts, trimmed);
    __syncthreads();
    const auto part_of = [&](int step) { return back ? parts - 1 - step : step; };
    /* whether what comes to a part goes through it */
    const auto passes = [&](int step) {
        return step > 0 && step + 1 < parts && !(plan.reads && dr_is_trimmed(tensors, trimmed, part_of(step)));
    };
    const auto ask = [&](int step, int tile, dr_join_tile &m) {
        if (!plan.reads || !passes(step)) return;
        const int j = contracted + tile * 32;
        dr_join_load<back, width>(tensors.passage + place_of(part_of(step)) * width * width, back ? band : j, back ? j : band,
                                  m);
    };
    dr_join_tile m;
    ask(1, 0, m);
    for (int step = 0; step + 1 < parts; step++) {
        const int part = part_of(step);
        const bool joins = passes(step);
        const float *local = call.local + (place_of(part) * plan.value_width + first) * width + thread;
        float *to = call.to + (place_of(part_of(step + 1)) * plan.value_width + first) * width + thread;
        float x[shape::own], c[2][4] = {};
        DR_UNROLL (i, shape::own) x[i] = local[i * threads];
        if (joins && plan.reads) {
            DR_UNROLL (tile, shape::tiles) {
                const bool last = tile + 1 == shape::tiles;
                dr_join_tile next;
                ask(last ? step + 1 : step, last ? 0 : tile + 1, next);
                dr_join_multiply<back>(m, state, contracted + tile * 32, c);
                m = next;
            }
            dr_join_put<back>(c, band, sums[share]);
        } else if (plan.reads) {
            if (step > 0) ask(step + 1, 0, m);
        } else if (joins) {
            sums[thread / width][0][thread % width] = dr_parts_keep(plan, tensors, slot, head, part * length + thread / width,
                                                                    (part + 1) * length, shape::shares, thread % width);
        }
        __syncthreads();
        DR_UNROLL (i, shape::own) {
            const int v = (i * threads + thread) / width, k = (i * threads + thread) % width;
            float kept = 1;
            for (int s = 0; s < shape::shares && joins; s++) {
                if (plan.reads)
                    x[i] += sums[s][v][k];
                else
                    kept *= sums[s][0][k];
            }
            if (joins && !plan.reads) x[i] = fmaf(kept, state[v][k], x[i]);
            to[i * threads] = state[v][k] = x[i];
        }
        __syncthreads();
    }
}

template <bool back, int width> static dr_status dr_launch_join_width(const dr_join_call &call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan &plan = call.plan;
    return dr_cuda_launch_when(!back && call.tensors.early, "join_parts", join_parts<back, width>,
                               {plan.sequences, plan.value_heads, plan.value_width / DR_JOIN_COLUMNS},
                               dr_join_shape<width>::threads, 0, stream, call);
}

template <bool back> static dr_status dr_launch_join(const dr_join_call &call, dr_cuda_stream stream) {
    DR_CUDA_KEY_BOXES(call.plan.key_width, boxes, return dr_launch_join_width<back, 64 * boxes>(call, stream));
}

#endif
