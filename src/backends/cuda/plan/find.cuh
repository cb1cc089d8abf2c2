/* Which chunk and head a thread block takes, by divisions that the launch has prepared (device/divide.cuh). Blocks are numbered
 * as in chunkwise.h, or chunks of equally long sequences come in turn, of all sequences and heads at once. And whether there is
 * anything left to do for a head. */
#ifndef DR_CUDA_FIND_CUH
#define DR_CUDA_FIND_CUH

#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/plan/places.cuh"

typedef struct {
    dr_divider heads, chunks,
        chains; /* value heads; of equal sequences, chunks, and how many begin with a chunk of each head */
} dr_block_dividers;

static inline dr_block_dividers dr_block_dividers_of(const dr_cuda_chunk_plan &plan) {
    dr_block_dividers by;
    by.heads = dr_divider_of(plan.value_heads);
    by.chunks = dr_divider_of(plan.length ? plan.sequence_chunks : 1);
    by.chains = dr_divider_of(plan.sequences * plan.value_heads);
    return by;
}

typedef struct {
    unsigned slot, head;
    unsigned sequence, before; /* before: chunks of the sequence before this one; of equal sequences, until dr_block_chunk */
} dr_block_place;

/* The `index`th block; in_turn: where chunks of equally long sequences are taken one after another, of all sequences and heads
 * at once. */
static __device__ inline dr_block_place dr_block_find(const dr_block_dividers &by, unsigned index, bool in_turn) {
    dr_block_place at;
    if (in_turn) {
        at.before = dr_divide(index, by.chains);
        const unsigned chain = index - at.before * by.chains.by;
        at.sequence = dr_divide(chain, by.heads);
        at.head = chain - at.sequence * by.heads.by;
        at.slot = at.sequence * by.chunks.by + at.before;
    } else {
        at.slot = dr_divide(index, by.heads);
        at.head = index - at.slot * by.heads.by;
        at.sequence = dr_divide(at.slot, by.chunks);
        at.before = at.slot - at.sequence * by.chunks.by;
    }
    return at;
}

/* Its number (chunkwise.h). */
static __device__ inline unsigned dr_block_number(const dr_block_dividers &by, const dr_block_place &at) {
    return at.slot * by.heads.by + at.head;
}

/* Its tokens; then `at` is right of packed sequences as well. equal: that none are packed is known. */
template <bool equal = false>
static __device__ inline dr_chunk_place dr_block_chunk(const dr_cuda_chunk_plan &plan, const int64_t *cu, dr_block_place &at) {
    dr_chunk_place place;
    if (equal || plan.length) {
        const int behind = (int)at.before * plan.chunk, left = (int)plan.length - behind;
        place.sequence = at.sequence;
        place.first = (int)(at.sequence * (unsigned)plan.length) + behind;
        place.tokens = left < plan.chunk ? left : plan.chunk;
        place.last = left <= plan.chunk;
    } else {
        place = dr_find_chunk(plan, cu, at.slot);
        at.sequence = (unsigned)place.sequence;
        at.before = at.slot - (unsigned)dr_sequence_slot(plan, cu, place.sequence);
    }
    return place;
}

/* Of each value head of each sequence behind the counts of all (tensors.early): whether its parts begin early, which one_pass
 * says. */
static __device__ inline int32_t *dr_early_flag(const dr_cuda_chunk_plan &plan, int32_t *early, int64_t sequence, int head) {
    return early + plan.sequences * plan.value_heads * dr_cuda_early_count(&plan) + sequence * plan.value_heads + head;
}

/* Behind those: how many blocks of that kernel have ended, and how many there are. */
static __device__ inline unsigned *dr_early_ended(const dr_cuda_chunk_plan &plan, int32_t *early) {
    return (unsigned *)dr_early_flag(plan, early, plan.sequences, 0);
}

static __device__ inline unsigned dr_early_blocks(const dr_cuda_chunk_plan &plan) {
    return (unsigned)(plan.sequences * plan.value_heads * plan.early.parts);
}

/* Whether one kernel makes all of a head's forward, in parts that begin early; by kernels that may begin before it ends. */
static __device__ inline bool dr_begins_early(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                              int64_t sequence, int head) {
    return tensors.early && __ldcg(dr_early_flag(plan, tensors.early, sequence, head));
}

/* What chunks of a part do for the first passes (trim_parts.cuh); place: of the part and its head. */
static __device__ inline dr_cuda_trim dr_trim_of(const dr_cuda_chunk_tensors &tensors, int64_t place) {
    const dr_cuda_trim all = {-1, -1}, trim = tensors.trims ? tensors.trims[place] : all;
    return trim.last < 0 || trim.first < 0 ? all : trim;
}

#endif
