/* Which tokens a chunk slot holds (chunkwise.h says how slots are numbered). */
#ifndef DR_CUDA_PLACES_CUH
#define DR_CUDA_PLACES_CUH

#include "backends/cuda/plan/chunkwise.h"

typedef struct {
    int64_t sequence;
    int64_t first; /* token, among all */
    int tokens;    /* 0: the slot is not used */
    bool last;     /* of its sequence */
} dr_chunk_place;

/* a / b, where both fit into 32 bits by the instructions for those: slots, and the blocks of a grid, nearly always do. */
static __device__ inline int64_t dr_place_divide(int64_t a, int64_t b) {
    return (uint64_t)(a | b) >> 32 ? a / b : (unsigned)a / (unsigned)b;
}

/* First token of a sequence, for sequence from 0 to sequences. */
static __device__ inline int64_t dr_sequence_begin(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t sequence) {
    return plan.length ? sequence * plan.length : cu ? cu[sequence] : 0;
}

static __device__ inline int64_t dr_sequence_slot(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t sequence) {
    if (plan.length || !cu) return sequence * plan.sequence_chunks;
    return dr_place_divide(cu[sequence], plan.chunk) + sequence;
}

static __device__ inline int64_t dr_sequence_chunks(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t sequence) {
    if (plan.length || !cu) return plan.sequence_chunks;
    const int64_t tokens = dr_sequence_begin(plan, cu, sequence + 1) - dr_sequence_begin(plan, cu, sequence);
    return dr_place_divide(tokens + plan.chunk - 1, plan.chunk);
}

/* As dr_cuda_parts. */
static __device__ inline int dr_sequence_parts(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t sequence,
                                               int32_t *length) {
    if (!plan.length && cu) return dr_cuda_parts(&plan, dr_sequence_chunks(plan, cu, sequence), length);
    *length = plan.part_chunks;
    return plan.sequence_parts;
}

/* Chunk `index` of a sequence. */
static __device__ inline dr_chunk_place dr_chunk_of(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t sequence,
                                                    int64_t index) {
    dr_chunk_place place;
    const int64_t end = dr_sequence_begin(plan, cu, sequence + 1);
    place.sequence = sequence;
    place.first = dr_sequence_begin(plan, cu, sequence) + index * plan.chunk;
    const int64_t left = end - place.first;
    place.tokens = left <= 0 ? 0 : left < plan.chunk ? (int)left : plan.chunk;
    place.last = left <= plan.chunk;
    return place;
}

static __device__ inline dr_chunk_place dr_find_chunk(const dr_cuda_chunk_plan &plan, const int64_t *cu, int64_t slot) {
    int64_t low = 0, high = plan.sequences - 1; /* the last sequence whose slots begin at or before this one */
    if (plan.length || !cu) {
        const int64_t chunks = plan.sequence_chunks;
        low = chunks ? dr_place_divide(slot, chunks) : 0;
        return dr_chunk_of(plan, cu, low, slot - low * chunks);
    }
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (dr_sequence_slot(plan, cu, middle) <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    return dr_chunk_of(plan, cu, low, slot - dr_sequence_slot(plan, cu, low));
}

#endif
