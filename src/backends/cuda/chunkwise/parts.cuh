/* The states before the parts of a cut sequence, from what each part does to a state:
 *
 *     entry(0) = initial      entry(1) = local(0)      entry(p + 1) = M(p) entry(p) + local(p)
 *
 * in float32, part after part; without M(p) where some chunks of part p do (trim_parts.cuh). A block of threads takes 8 columns of V. A thread makes one channel of K, over a part of what is
 * contracted; the parts are added in order. What a step needs of memory is asked for a step ahead, since none of it depends on
 * the states. Without reads M is the product of the decays. */
#ifndef DR_CUDA_PARTS_CUH
#define DR_CUDA_PARTS_CUH

#include "backends/cuda/chunkwise/chunkwise.h"
#include "backends/cuda/chunkwise/find.cuh"

enum { PARTS_COLUMNS = 8 };

/* Threads that share a channel, how many channels a thread contracts, and how many of them it asks for at once. */
template <int width> struct dr_parts_shape {
    enum { shares = width > 128 ? 2 : 4, threads = shares * width, count = width / shares, ahead = width == 128 ? 32 : 16 };
};

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
} dr_parts_call;

/* Decay of channel k over every step-th chunk of a head from begin on; slot: of the sequence. */
static __device__ inline float dr_parts_keep(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors, int64_t slot,
                                             int head, int begin, int end, int step, int k) {
    float kept = 1;
#pragma unroll 8
    for (int chunk = begin; chunk < end; chunk += step)
        kept *= tensors.keep[((slot + chunk) * plan.value_heads + head) * plan.key_width + k];
    return kept;
}

template <int width>
static __global__ void __launch_bounds__(dr_parts_shape<width>::threads)
    join_parts(const __grid_constant__ dr_parts_call call) {
    typedef dr_parts_shape<width> shape;
    enum { shares = shape::shares, ahead = shape::ahead, columns = PARTS_COLUMNS / shares };
    __shared__ __align__(16) float row[PARTS_COLUMNS][width];
    __shared__ float share[shape::threads][PARTS_COLUMNS];
    __shared__ dr_trimmed_parts trimmed;
    const dr_cuda_chunk_plan &plan = call.plan;
    const int groups = plan.value_width / PARTS_COLUMNS, k = (int)threadIdx.x % width, q = (int)threadIdx.x / width;
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads), first = (int)(blockIdx.x % groups) * PARTS_COLUMNS;
    if (dr_begins_early(plan, call.tensors, sequence)) return;
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    int32_t length;
    const int parts = dr_sequence_parts(plan, call.tensors.cu, sequence, &length);
    const auto place_of = [&](int part) { return (slot / DR_CUDA_PART_CHUNKS + part) * plan.value_heads + head; };
    if (plan.reads) dr_find_trimmed(call.tensors, place_of(0), plan.value_heads, parts, trimmed);
    __syncthreads();
    const auto passes = [&](int part) { return !plan.reads || !dr_is_trimmed(call.tensors, trimmed, part); };
    /* of M(part): channel k of the columns j .. j + ahead - 1 of this thread's share */
    const auto ask = [&](int part, int j, float(&m)[ahead]) {
        const float *passage = call.tensors.passage + (place_of(part) * width + q * shape::count + j) * width + k;
        if (!plan.reads || part + 1 >= parts || !passes(part)) return;
#pragma unroll
        for (int i = 0; i < ahead; i++) m[i] = __ldg(passage + i * width);
    };
    float m[ahead];
    ask(1, 0, m);
    for (int part = 0; part + 1 < parts; part++) {
        const float *local = call.tensors.local + (place_of(part) * plan.value_width + first + q) * width + k;
        float *entry = call.tensors.entry + (place_of(part + 1) * plan.value_width + first + q) * width + k;
        float own[columns], sum[PARTS_COLUMNS] = {};
#pragma unroll
        for (int i = 0; i < columns; i++) own[i] = local[i * shares * width];
        const bool joins = part > 0 && passes(part);
        if (joins && plan.reads) {
#pragma unroll
            for (int j = 0; j < shape::count; j += ahead) {
                const bool last = j + ahead == shape::count;
                float next[ahead];
                ask(last ? part + 1 : part, last ? 0 : j + ahead, next);
#pragma unroll
                for (int i = 0; i < ahead; i += 4)
#pragma unroll
                    for (int v = 0; v < PARTS_COLUMNS; v++) {
                        const float4 e = *(const float4 *)&row[v][q * shape::count + j + i];
                        sum[v] = fmaf(m[i + 3], e.w, fmaf(m[i + 2], e.z, fmaf(m[i + 1], e.y, fmaf(m[i], e.x, sum[v]))));
                    }
#pragma unroll
                for (int i = 0; i < ahead; i++) m[i] = next[i];
            }
#pragma unroll
            for (int v = 0; v < PARTS_COLUMNS; v++) share[threadIdx.x][v] = sum[v];
        } else if (part > 0 && plan.reads) {
            ask(part + 1, 0, m);
        } else if (part > 0) {
            share[threadIdx.x][0] =
                dr_parts_keep(plan, call.tensors, slot, head, part * length + q, (part + 1) * length, shares, k);
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < columns; c++) { /* a thread adds up some of the columns */
            const int v = q + c * shares;
            float next = own[c], kept = 1;
            for (int i = 0; i < shares && joins; i++) {
                if (plan.reads)
                    next += share[i * width + k][v];
                else
                    kept *= share[i * width + k][0];
            }
            if (joins && !plan.reads) next = fmaf(kept, row[v][k], next);
            row[v][k] = entry[c * shares * width] = next;
        }
        __syncthreads();
    }
}

#endif
