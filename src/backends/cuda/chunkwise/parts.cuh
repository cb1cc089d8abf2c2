/* The states before the parts of a cut sequence, from what each part does to a state:
 *
 *     entry(0) = initial      entry(1) = local(0)      entry(p + 1) = M(p) entry(p) + local(p)
 *
 * in float32, part after part. A block of threads takes 8 columns of V. A thread makes one channel of K, over a quarter of what
 * is contracted, so that its loads are all under way at once; the quarters are added in order. Without reads M is the product
 * of the decays. */
#ifndef DR_CUDA_PARTS_CUH
#define DR_CUDA_PARTS_CUH

#include "backends/cuda/chunkwise/chunkwise.h"
#include "backends/cuda/chunkwise/places.cuh"

enum { PARTS_COLUMNS = 8 };

/* Threads that share a channel. */
static __host__ __device__ inline int dr_parts_shares(int width) {
    return width > 128 ? 2 : 4;
}

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
} dr_parts_call;

/* Decay of channel k over every step-th chunk from begin on. */
static __device__ inline float dr_parts_keep(const dr_parts_call &call, int64_t slot, int head, int begin, int end, int step,
                                             int k) {
    float kept = 1;
#pragma unroll 2
    for (int chunk = begin; chunk < end; chunk += step)
        kept *= call.tensors.keep[((slot + chunk) * call.plan.value_heads + head) * call.plan.key_width + k];
    return kept;
}

/* M(part) times the state in row, over count channels of what is contracted. */
static __device__ inline void dr_parts_multiply(const float *passage, int width, int first, int count, const float (*row)[256],
                                                float (&sum)[PARTS_COLUMNS]) {
#pragma unroll 1
    for (int j = first; j < first + count; j += 8) {
        float m[8];
#pragma unroll
        for (int i = 0; i < 8; i++) m[i] = __ldg(passage + (j + i) * width);
#pragma unroll
        for (int i = 0; i < 8; i += 4)
#pragma unroll
            for (int v = 0; v < PARTS_COLUMNS; v++) {
                const float4 e = *(const float4 *)&row[v][j + i];
                sum[v] = fmaf(m[i + 3], e.w, fmaf(m[i + 2], e.z, fmaf(m[i + 1], e.y, fmaf(m[i], e.x, sum[v]))));
            }
    }
}

static __global__ void __launch_bounds__(512, 1) join_parts(const __grid_constant__ dr_parts_call call) {
    __shared__ __align__(16) float row[PARTS_COLUMNS][256];
    __shared__ float share[512][PARTS_COLUMNS];
    const dr_cuda_chunk_plan &plan = call.plan;
    const int groups = plan.value_width / PARTS_COLUMNS, width = plan.key_width;
    const int shares = dr_parts_shares(width), k = (int)threadIdx.x % width, q = (int)threadIdx.x / width;
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads), first = (int)(blockIdx.x % groups) * PARTS_COLUMNS;
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    int32_t length;
    const int parts = dr_cuda_parts(&plan, dr_sequence_chunks(plan, call.tensors.cu, sequence), &length);
    for (int part = 0; part + 1 < parts; part++) {
        const int64_t place = (slot / DR_CUDA_PART_CHUNKS + part) * plan.value_heads + head;
        const float *local = call.tensors.local + (place * plan.value_width + first) * width + k;
        float *entry = call.tensors.entry + ((place + plan.value_heads) * plan.value_width + first) * width + k;
        float sum[PARTS_COLUMNS] = {};
        if (part > 0 && plan.reads) {
            dr_parts_multiply(call.tensors.passage + place * width * width + k, width, q * (width / shares), width / shares,
                              row, sum);
#pragma unroll
            for (int v = 0; v < PARTS_COLUMNS; v++) share[threadIdx.x][v] = sum[v];
        } else if (part > 0) {
            share[threadIdx.x][0] = dr_parts_keep(call, slot, head, part * length + q, (part + 1) * length, shares, k);
        }
        __syncthreads();
        for (int v = q; v < PARTS_COLUMNS; v += shares) { /* a thread adds up some of the columns */
            float next = local[v * width], kept = 1;
            for (int i = 0; i < shares && part > 0; i++) {
                if (plan.reads)
                    next += share[i * width + k][v];
                else
                    kept *= share[i * width + k][0];
            }
            if (part > 0 && !plan.reads) next = fmaf(kept, row[v][k], next);
            row[v][k] = entry[v * width] = next;
        }
        __syncthreads();
    }
}

#endif
