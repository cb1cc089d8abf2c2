/* Attention by the matrix units of warp groups (sm_90a), in bf16: what the kernels of attention_groups.cu and
 * attention_groups_back.cu share.
 *
 * A block has 128 rows of its own side, 64 for each of two groups of four warps, and goes past tiles of 64 rows of the other
 * side:
 *
 *     four warps   copy: the own rows, then tile after tile of two tensors of the other side to DR_ROOM_STAGES stages
 *     two groups   multiply the tiles that are there by their own rows; a stage is free when both have used it
 *
 * Tiles are those of device/fragments.cuh, 64 rows of up to two boxes of 64 channels; rows and channels that are not there are
 * zeros. A score of a row that is not there is finite and meets zeros only, or ends in a row that nobody stores; so only the
 * order of tokens and the window are asked about, and only in tiles that they cut. */
#ifndef DR_CUDA_NETWORK_ATTENTION_GROUPS_CUH
#define DR_CUDA_NETWORK_ATTENTION_GROUPS_CUH

#include "backends/cuda/device/fragments.cuh"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/network/attention.cuh"

typedef __nv_bfloat16 dr_word;

enum { DR_SIDE = 64, DR_OWN = 128, DR_GROUP_THREADS = 384, DR_ROOM_STAGES = 4, DR_BOX = 64 * 64 * 2 };

/* Of a forward or a backward; what a kernel does not ask for is NULL. */
typedef struct {
    dr_attention_shape shape;
    int group, window, key_size, value_size;
    float scale; /* times log2 e: probabilities are powers of two */
    const dr_word *q, *k, *v, *d_o;
    const float *log_sums, *along; /* [rows][heads] */
    dr_word *o, *d_q, *d_k, *d_v;
    float *sums; /* the forward's log_sums */
} dr_group_attention;

constexpr float DR_LOG2_E = 1.44269504f;

/* Bytes of shared memory for so many tensors of the own side: their tiles, the stages, each with two rows of 64 floats behind
 * its tiles, and the gates: one of the own tiles, then `filled` and `free` of each stage. */
template <int boxes> __host__ __device__ constexpr int dr_stage_bytes() {
    return 2 * boxes * DR_BOX + 1024;
}

template <int boxes> __host__ __device__ constexpr int dr_gates_at(int own) {
    return own * 2 * boxes * DR_BOX + DR_ROOM_STAGES * dr_stage_bytes<boxes>();
}

template <int boxes> __host__ __device__ constexpr int dr_group_bytes(int own) {
    return dr_gates_at<boxes>(own) + (1 + 2 * DR_ROOM_STAGES) * 8;
}

/* Which row of its tensor query row r of a sequence is: dr_query_row in 32 bits. */
static __device__ inline int64_t dr_group_query(const dr_group_attention &call, const dr_attention_place &place, int r) {
    const int token = call.group == 1 ? r : r / call.group;
    return (place.of.begin + token) * call.shape.heads + place.key_head * call.group + (r - token * call.group);
}

/* Whether a query at a position sees a key. */
static __device__ inline bool dr_group_sees(const dr_group_attention &call, int position, int key) {
    return key <= position && (call.window == 0 || key > position - call.window);
}

#ifdef DR_CUDA_WARPGROUPS

/* Addresses of a block's shared memory. */
template <int boxes, int own> struct dr_group_room {
    unsigned at;

    __device__ unsigned tile(int tensor, int group) const { return at + (unsigned)((tensor * 2 + group) * boxes * DR_BOX); }
    __device__ unsigned stage(int i) const {
        return at + (unsigned)(own * 2 * boxes * DR_BOX) + (unsigned)(i * dr_stage_bytes<boxes>());
    }
    __device__ unsigned filled(int i) const { return at + (unsigned)(dr_gates_at<boxes>(own) + 8 + i * 16); }
    __device__ unsigned free(int i) const { return filled(i) + 8; }
    __device__ unsigned ready() const { return at + (unsigned)dr_gates_at<boxes>(own); }

    __device__ void open() const {
        if (threadIdx.x == 0) {
            dr_gate_open(ready(), 128);
            for (int i = 0; i < DR_ROOM_STAGES; i++) dr_gate_open(filled(i), 128), dr_gate_open(free(i), 256);
        }
        __syncthreads();
    }
};

/* Which stage a tile has, and whose turn it is there. */
typedef struct {
    int stage;
    unsigned turn;
} dr_stage_turn;

static __device__ inline void dr_next_stage(dr_stage_turn &at) {
    if (++at.stage == DR_ROOM_STAGES) at.stage = 0, at.turn ^= 1;
}

/* Tiles of the other side from row `begin`, a multiple of 64, to before `end`. */
typedef struct {
    int begin, end;
} dr_stretch;

/* ---- copying: 128 threads ------------------------------------------------------------------------------------------------ */

/* For dr_copy_side: the rows from `first` on of a sequence's queries, of a tensor [rows][heads][size]; `rows` queries are
 * there. */
static __device__ inline auto dr_query_rows(const dr_group_attention &call, const dr_attention_place &place, int rows,
                                            const dr_word *tensor, int size, int first) {
    return [&call, &place, rows, tensor, size, first](int r) -> const dr_word * {
        return first + r < rows ? tensor + dr_group_query(call, place, first + r) * size : NULL;
    };
}

/* The same of a sequence's keys, of a tensor [tokens][key heads][size]. */
static __device__ inline auto dr_key_rows(const dr_group_attention &call, const dr_attention_place &place, int tokens,
                                          const dr_word *tensor, int size, int first) {
    return [&call, &place, tokens, tensor, size, first](int r) -> const dr_word * {
        return first + r < tokens ? tensor + dr_key_row(call.shape, place, first + r) * size : NULL;
    };
}

/* row_at(r): where row r of the tile begins, NULL: it is zero. */
template <int boxes, typename F>
static __device__ inline void dr_copy_side(unsigned tile, int size, const dr_word *any, const F &row_at) {
    const int thread = (int)threadIdx.x % 128, first = thread / 8, unit = thread % 8;
    const unsigned to = tile + (unsigned)(first * 128 + ((unit ^ first % 8) << 4));
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const dr_word *const row = row_at(first + 16 * j);
#pragma unroll
        for (int box = 0; box < boxes; box++) {
            const bool there = row && box * 64 + unit * 8 < size;
            dr_copy_async(to + (unsigned)(j * 2048 + box * DR_BOX), there ? row + box * 64 + unit * 8 : any, there);
        }
    }
}

/* fill(stage, row): asks for the tiles that begin at a row. */
template <int boxes, int own, typename F>
static __device__ inline void dr_fill_stages(const dr_group_room<boxes, own> &room, dr_stretch rows, const F &fill) {
    dr_stage_turn at = {0, 1}; /* before a stage was used it counts as free */
    for (int row = rows.begin; row < rows.end; row += DR_SIDE) {
        if (row >= rows.begin + DR_ROOM_STAGES * DR_SIDE) dr_gate_wait(room.free(at.stage), at.turn);
        fill(room.stage(at.stage), row);
        dr_gate_arrive_copied(room.filled(at.stage));
        dr_next_stage(at);
    }
}

/* ---- multiplying: each of two groups ------------------------------------------------------------------------------------- */

/* Every tile of the block's stretch; multiply(stage, row) for those of the group's own stretch, which lies within. */
template <int boxes, int own, typename F>
static __device__ inline void dr_use_stages(const dr_group_room<boxes, own> &room, dr_stretch all, dr_stretch mine,
                                            const F &multiply) {
    dr_stage_turn at = {0, 0};
    int row = all.begin;
    const auto next = [&] {
        dr_gate_arrive(room.free(at.stage));
        dr_next_stage(at), row += DR_SIDE;
    };
    for (; row < mine.begin; next()) dr_gate_wait(room.filled(at.stage), at.turn);
    for (; row < mine.end; next()) {
        dr_gate_wait(room.filled(at.stage), at.turn);
        dr_shared_fence();
        multiply(room.stage(dr_same_in_warp(at.stage)), row);
    }
    for (; row < all.end; next()) dr_gate_wait(room.filled(at.stage), at.turn);
}

/* C [64 x 64] = A B^T of two tiles. */
template <int boxes> static __device__ inline void dr_multiply_sides(float (&c)[8][4], unsigned a_tile, unsigned b_tile) {
    const uint64_t a = dr_group_operand(a_tile, 16), b = dr_group_operand(b_tile, 16);
#pragma unroll
    for (int k = 0; k < 4 * boxes; k++) {
        const unsigned bytes = (unsigned)(k / 4 * DR_BOX + k % 4 * 32);
        dr_group_multiply_tiles<false, true>(dr_word(), c, dr_group_forward(a, bytes), dr_group_forward(b, bytes), k > 0);
    }
}

/* C [64 x 64 boxes] += A B, A [64 x 64] in registers, B a tile's rows. */
template <int tiles>
static __device__ inline void dr_multiply_rows(float (&c)[tiles][4], const unsigned (&a)[4][4], unsigned b_tile) {
    const uint64_t b = dr_group_operand(b_tile, DR_BOX);
#pragma unroll
    for (int k = 0; k < 4; k++) dr_group_multiply<false>(dr_word(), c, a[k], dr_group_forward(b, k * 2048), 1);
}

/* Accumulators as operands A. */
static __device__ inline void dr_round_to_operands(unsigned (&a)[4][4], const float (&c)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = dr_pack(dr_word(), c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* Of an accumulator's place: its row within the group's 64, and its column. */
static __device__ inline int dr_group_row(int i) {
    return (int)threadIdx.x / 32 % 4 * 16 + dr_tile_row(i);
}

/* Accumulators times a factor of each of the thread's two rows, to rows of `size` channels, through a tile that no product
 * reads any more: row_at(r): where row r goes, NULL: nowhere. */
template <int tiles, typename F>
static __device__ inline void dr_store_side(char *shared, unsigned tile, const float (&c)[tiles][4], const float (&by)[2],
                                            int size, const F &row_at) {
    const int lane = (int)threadIdx.x % 32, warp_row = (int)threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int n = 0; n < tiles; n += 2) {
        unsigned x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = dr_pack(dr_word(), c[n + i / 2][i % 2 * 2] * by[i % 2], c[n + i / 2][i % 2 * 2 + 1] * by[i % 2]);
        dr_store_matrices(dr_tile_at<dr_word>(tile, 64, warp_row + lane % 16, (n + lane / 16) * 8), x);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < tiles / 2; i++) {
        const int row = warp_row + (i * 32 + lane) / tiles, column = (i * 32 + lane) % tiles * 8;
        dr_word *const to = row_at(row);
        const unsigned from = dr_tile_at<dr_word>(tile, 64, row, column) - dr_shared_address(shared);
        if (to && column < size) *(uint4 *)(to + column) = *(const uint4 *)(shared + from);
    }
}

#endif

/* ---- on the host ----------------------------------------------------------------------------------------------------------
 */

/* Whether these kernels take a call without memory whose tensors lie there. */
template <typename... P>
static inline bool dr_groups_take(const dr_backend *backend, const dr_cuda *gpu, const dr_attention &of, const P *...tensors) {
    const int64_t group = of.heads / of.key_heads, larger = of.key_size > of.value_size ? of.key_size : of.value_size;
    return backend->storage == DR_BF16 && gpu->hopper && larger <= 128 && of.layout.rows * group < INT32_MAX / 2 &&
           of.window < INT32_MAX / 2 && dr_can_be_wide(dr_wide<dr_word>, of.key_size | of.value_size, tensors...);
}

static inline dr_group_attention dr_group_attention_of(const dr_attention &of, const void *q, const void *k, const void *v) {
    dr_group_attention call = {};
    call.shape = dr_attention_shape_of(of);
    call.group = (int)(of.heads / of.key_heads), call.window = (int)of.window;
    call.key_size = (int)of.key_size, call.value_size = (int)of.value_size;
    call.scale = (float)of.scale * DR_LOG2_E;
    call.q = (const dr_word *)q, call.k = (const dr_word *)k, call.v = (const dr_word *)v;
    return call;
}

/* of a call that they take */
dr_status dr_attention_groups_forward(const dr_cuda *gpu, const dr_attention &of, const dr_group_attention &call);
dr_status dr_attention_groups_backward(const dr_cuda *gpu, const dr_attention &of, const dr_group_attention &call);

#endif
