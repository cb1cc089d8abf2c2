/* The states before the parts of a cut sequence, from what each part does to a state:
 *
 *     entry(0) = initial      entry(1) = local(0)      entry(p + 1) = M(p) entry(p) + local(p)
 *
 * in float32, part after part. A block of threads takes 8 columns of V, a thread one channel of K; without reads M is the
 * product of the decays. */
#ifndef DR_CUDA_PARTS_CUH
#define DR_CUDA_PARTS_CUH

#include "backends/cuda/chunkwise.h"
#include "backends/cuda/places.cuh"

enum { PARTS_COLUMNS = 8 };

typedef struct {
    dr_cuda_chunk_plan plan;
    dr_cuda_chunk_tensors tensors;
} dr_parts_call;

static __global__ void join_parts(const __grid_constant__ dr_parts_call call) {
    __shared__ float4 row[PARTS_COLUMNS][256 / 4];
    const dr_cuda_chunk_plan &plan = call.plan;
    const int groups = plan.value_width / PARTS_COLUMNS, width = plan.key_width, k = (int)threadIdx.x;
    const int64_t chain = blockIdx.x / groups, sequence = chain / plan.value_heads;
    const int head = (int)(chain % plan.value_heads), first = (int)(blockIdx.x % groups) * PARTS_COLUMNS;
    const int64_t slot = dr_sequence_slot(plan, call.tensors.cu, sequence);
    int32_t length;
    const int parts = dr_cuda_parts(&plan, dr_sequence_chunks(plan, call.tensors.cu, sequence), &length);
    float state[PARTS_COLUMNS];
    for (int part = 0; part + 1 < parts; part++) {
        const int64_t place = (slot / DR_CUDA_PART_CHUNKS + part) * plan.value_heads + head;
        const float *local = call.tensors.local + (place * plan.value_width + first) * width + k;
        float next[PARTS_COLUMNS];
#pragma unroll
        for (int v = 0; v < PARTS_COLUMNS; v++) next[v] = local[v * width];
        if (part > 0 && plan.reads) {
            const float *passage = call.tensors.passage + place * width * width + k;
            __syncthreads();
#pragma unroll
            for (int v = 0; v < PARTS_COLUMNS; v++) ((float *)row[v])[k] = state[v];
            __syncthreads();
#pragma unroll 4
            for (int j = 0; j < width; j += 4) {
                const float m[4] = {passage[j * width], passage[(j + 1) * width], passage[(j + 2) * width],
                                    passage[(j + 3) * width]};
#pragma unroll
                for (int v = 0; v < PARTS_COLUMNS; v++) {
                    const float4 e = row[v][j / 4];
                    next[v] = fmaf(m[3], e.w, fmaf(m[2], e.z, fmaf(m[1], e.y, fmaf(m[0], e.x, next[v]))));
                }
            }
        } else if (part > 0) {
            float kept = 1;
            for (int chunk = part * length; chunk < (part + 1) * length; chunk++)
                kept *= call.tensors.keep[((slot + chunk) * plan.value_heads + head) * width + k];
#pragma unroll
            for (int v = 0; v < PARTS_COLUMNS; v++) next[v] = fmaf(kept, state[v], next[v]);
        }
        float *entry = call.tensors.entry + ((place + plan.value_heads) * plan.value_width + first) * width + k;
#pragma unroll
        for (int v = 0; v < PARTS_COLUMNS; v++) entry[v * width] = state[v] = next[v];
    }
}

#endif
