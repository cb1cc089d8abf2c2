/* In place of the project's header of that name, which holds instructions of sm_90a: the same functions by those of block.h. */
#ifndef DR_CUDA_WARPGROUP_CUH
#define DR_CUDA_WARPGROUP_CUH

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/operand.cuh"

#define DR_CUDA_WARPGROUPS 1

template <typename T> static constexpr bool dr_groups_multiply() {
    return sizeof(T) == 2;
}

constexpr int DR_BLOCK_SHARED = SHARED_SIZE;

static inline void dr_gate_open(unsigned gate, int arrivals) {
    gate_open(gate, arrivals);
}

static inline void dr_gate_arrive(unsigned gate) {
    gate_arrive(gate);
}

static inline void dr_gate_arrive_copied(unsigned gate) {
    gate_arrive_copied(gate);
}

static inline void dr_gate_wait(unsigned gate, unsigned turn) {
    gate_wait(gate, turn);
}

static inline bool dr_gate_passed(unsigned, unsigned) {
    grid_fail("dr_gate_passed is not emulated");
}

static inline void dr_shared_fence() {}

template <int registers> static inline void dr_registers_take() {}
template <int registers> static inline void dr_registers_give() {}

static inline void dr_group_begin() {
    __syncwarp();
}

template <int count> static inline void dr_group_anew(float (&)[count][4]) {}

template <int count> static inline void dr_group_settle(float (&)[count][4]) {}
template <int count> static inline void dr_group_settle(unsigned (&)[count][4]) {}

static inline void dr_group_commit() {
    group_commit();
}

template <int unfinished> static inline void dr_group_wait() {
    group_wait(unfinished);
}

template <bool along, int columns>
static inline void dr_group_multiply(__nv_bfloat16, float (&c)[columns][4], const unsigned (&a)[4], uint64_t b, int add) {
    group_multiply(c, columns, a, 0, false, b, along, add != 0);
}

template <bool turned, bool along, int columns>
static inline void dr_group_multiply_tiles(__nv_bfloat16, float (&c)[columns][4], uint64_t a, uint64_t b, int add) {
    group_multiply(c, columns, NULL, a, turned, b, along, add != 0);
}

static inline void dr_group_multiply_tf32(float (&c)[8][4], uint64_t a, uint64_t b) {
    group_multiply(c, 8, NULL, a, false, b, true, true, true);
}

static inline void dr_store_matrices(unsigned address, const unsigned (&x)[4]) {
    unsigned own[4] = {x[0], x[1], x[2], x[3]};
    warp_matrices(own, address, false, false);
}

static inline void dr_store_matrices_transposed(unsigned address, const unsigned (&x)[4]) {
    unsigned own[4] = {x[0], x[1], x[2], x[3]};
    warp_matrices(own, address, false, true);
}

#endif
