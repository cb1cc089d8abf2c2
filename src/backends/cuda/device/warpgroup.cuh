/* Instructions that only sm_90a has: matrix products of a warp group (four warps whose first index is a multiple of four) that
 * read one operand from shared memory by themselves, barriers in shared memory that some threads wait at and others only pass,
 * and registers that one group of warps gives to another. */
#ifndef DR_CUDA_WARPGROUP_CUH
#define DR_CUDA_WARPGROUP_CUH

#include "backends/cuda/device/instructions.cuh"
#include "backends/cuda/device/operand.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define DR_CUDA_WARPGROUPS 1
#endif

/* Whether products of a type can be those of a warp group. */
template <typename T> static __device__ constexpr bool dr_groups_multiply() {
#ifdef DR_CUDA_WARPGROUPS
    return sizeof(T) == 2;
#else
    return false;
#endif
}

/* Bytes of shared memory that a block may have there: with all of them a multiprocessor has no other block. */
constexpr int DR_BLOCK_SHARED = 227 * 1024;

/* ---- barriers: 8 bytes of shared memory ---------------------------------------------------------------------------------- */

static __device__ inline void dr_gate_open(unsigned gate, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gate), "r"(arrivals) : "memory");
}

static __device__ inline void dr_gate_arrive(unsigned gate) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(gate) : "memory");
}

/* Arrives once the copies that this thread has asked for so far have come, and does not wait for them. Whoever waits at the
 * gate for the matrix units needs dr_shared_fence behind it. */
static __device__ inline void dr_gate_arrive_copied(unsigned gate) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(gate) : "memory");
}

/* Until as many have arrived as open said, for the time (turn) that is 0, 1, 0, 1, .. */
static __device__ inline void dr_gate_wait(unsigned gate, unsigned turn) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(gate),
        "r"(turn)
        : "memory");
}

/* Whether that has come. */
static __device__ inline bool dr_gate_passed(unsigned gate, unsigned turn) {
    unsigned passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(gate), "r"(turn)
                 : "memory");
    return passed;
}

/* What this thread wrote to shared memory, or saw written, comes before what the matrix units read there. */
static __device__ inline void dr_shared_fence() {
#ifdef DR_CUDA_WARPGROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifdef DR_CUDA_WARPGROUPS

template <int registers> static __device__ inline void dr_registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> static __device__ inline void dr_registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

/* Before the first product of a chain: registers that were written are there. */
static __device__ inline void dr_group_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* What is computed in these registers comes before the products that follow: of those the compiler knows only their own
 * registers, and would put it between them. */
template <int count> static __device__ inline void dr_group_settle(float (&c)[count][4]) {
    DR_UNROLL (n, count) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]));
}

template <int count> static __device__ inline void dr_group_settle(unsigned (&a)[count][4]) {
    DR_UNROLL (k, count) asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3]));
}

/* Accumulators that a chain begins with: in a loop the compiler would else carry what they held in the turn before, in
 * registers that are not theirs. */
template <int count> static __device__ inline void dr_group_anew(float (&c)[count][4]) {
    DR_UNROLL (n, count) asm volatile("" : "=f"(c[n][0]), "=f"(c[n][1]), "=f"(c[n][2]), "=f"(c[n][3]));
}

/* The products since the last commit are a group; waiting leaves at most that many groups unfinished. */
static __device__ inline void dr_group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int unfinished> static __device__ inline void dr_group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(unfinished) : "memory");
}

/* C [64 x columns] (+)= A [64 x 16] B [16 x columns], A in registers: warp w of the group has rows 16 w .., in the places of
 * fragments.cuh. along: B's columns are rows of the tile (what is contracted is contiguous); else its rows are.
 * dr_group_multiply_tiles: of 32 or 64 columns; A is rows of a tile as well, or (turned) the transpose of contracted rows. */
#define DR_GROUP_ACCUMULATORS4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define DR_GROUP_ACCUMULATORS16(c, n)                                                                                          \
    DR_GROUP_ACCUMULATORS4(c, n), DR_GROUP_ACCUMULATORS4(c, n + 1), DR_GROUP_ACCUMULATORS4(c, n + 2),                          \
        DR_GROUP_ACCUMULATORS4(c, n + 3)
#define DR_GROUP_PLACES_0  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DR_GROUP_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DR_GROUP_PLACES_32                                                                                                     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, "    \
    "%55, %56, %57, %58, %59, %60, %61, %62, %63"

#define DR_GROUP_PRODUCT(type, name)                                                                                           \
    template <bool along>                                                                                                      \
    static __device__ inline void dr_group_multiply(type, float(&c)[4][4], const unsigned(&a)[4], uint64_t b, int add) {       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." name "." name     \
                     " {" DR_GROUP_PLACES_0 "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"                                   \
                     : DR_GROUP_ACCUMULATORS16(c, 0)                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(along ? 0 : 1));                      \
    }                                                                                                                          \
    template <bool along>                                                                                                      \
    static __device__ inline void dr_group_multiply(type, float(&c)[8][4], const unsigned(&a)[4], uint64_t b, int add) {       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name     \
                     " {" DR_GROUP_PLACES_0 DR_GROUP_PLACES_16 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                \
                     : DR_GROUP_ACCUMULATORS16(c, 0), DR_GROUP_ACCUMULATORS16(c, 4)                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(along ? 0 : 1));                      \
    }                                                                                                                          \
    template <bool along>                                                                                                      \
    static __device__ inline void dr_group_multiply(type, float(&c)[16][4], const unsigned(&a)[4], uint64_t b, int add) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name    \
                     " {" DR_GROUP_PLACES_0 DR_GROUP_PLACES_16 DR_GROUP_PLACES_32                                              \
                     "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"                                                          \
                     : DR_GROUP_ACCUMULATORS16(c, 0), DR_GROUP_ACCUMULATORS16(c, 4), DR_GROUP_ACCUMULATORS16(c, 8),            \
                       DR_GROUP_ACCUMULATORS16(c, 12)                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(along ? 0 : 1));                      \
    }                                                                                                                          \
    template <bool turned, bool along>                                                                                         \
    static __device__ inline void dr_group_multiply_tiles(type, float(&c)[4][4], uint64_t a, uint64_t b, int add) {            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." name "." name     \
                     " {" DR_GROUP_PLACES_0 "}, %16, %17, p, 1, 1, %19, %20;\n}"                                               \
                     : DR_GROUP_ACCUMULATORS16(c, 0)                                                                           \
                     : "l"(a), "l"(b), "r"(add), "n"(turned ? 1 : 0), "n"(along ? 0 : 1));                                     \
    }                                                                                                                          \
    template <bool turned, bool along>                                                                                         \
    static __device__ inline void dr_group_multiply_tiles(type, float(&c)[8][4], uint64_t a, uint64_t b, int add) {            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name     \
                     " {" DR_GROUP_PLACES_0 DR_GROUP_PLACES_16 "}, %32, %33, p, 1, 1, %35, %36;\n}"                            \
                     : DR_GROUP_ACCUMULATORS16(c, 0), DR_GROUP_ACCUMULATORS16(c, 4)                                            \
                     : "l"(a), "l"(b), "r"(add), "n"(turned ? 1 : 0), "n"(along ? 0 : 1));                                     \
    }

DR_GROUP_PRODUCT(__nv_bfloat16, "bf16")

/* C [64 x 64] += A [64 x 8] B [8 x 64], of floats whose last 13 bits are cut, both as rows of tiles of 32 floats. */
static __device__ inline void dr_group_multiply_tf32(float (&c)[8][4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" DR_GROUP_PLACES_0 DR_GROUP_PLACES_16
                 "}, %32, %33, 1, 1, 1;"
                 : DR_GROUP_ACCUMULATORS16(c, 0), DR_GROUP_ACCUMULATORS16(c, 4)
                 : "l"(a), "l"(b));
}

/* Four 8 x 8 matrices of 16 bits to shared memory: lane l holds elements (l / 4, 2 (l % 4)) and the one right of it, and gives
 * the address of row l % 8 of matrix l / 8. */
static __device__ inline void dr_store_matrices(unsigned address, const unsigned (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Four 8 x 8 matrices of 16 bits to shared memory, transposed: lane l holds elements (l / 4, 2 (l % 4)) and the one right of
 * it, and gives the address of what becomes row l % 8 of matrix l / 8. */
static __device__ inline void dr_store_matrices_transposed(unsigned address, const unsigned (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

#endif
#endif
