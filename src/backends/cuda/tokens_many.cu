/* One token each of many sequences on Hopper: what bounds it is memory, which sees each state once in and once out.
 *
 * A block stays on its multiprocessor and takes every so many-th state, whole, [K, V] as it lies in memory. Its threads have
 * three parts to play, and meet at barriers in shared memory only:
 *
 *     makers    4 warps: the operands of each row of a token (tokens_pass.cuh), up to two rows ahead of who needs them
 *     holders   4 warps for 32 columns: state from its place in shared memory to registers, the rows, and back to its place
 *     a copier  1 warp: states into places ahead of the holders, and out of them behind, a quarter at a time so that a place is
 *               filled again as soon as it can be; and asks for the makers' inputs
 *
 * so that several states are under way at any time without a register that waits for them. Numbers are summed as in tokens.cu:
 * the results are the same bits. */
#include "backends/cuda/bulk.cuh"
#include "backends/cuda/tokens_pass.cuh"

constexpr int LEAST_MANY = 1; /* states a multiprocessor from which on this pays */
constexpr int AHEAD = 2;      /* states of a block from asking for inputs to making rows of them */
constexpr int PARTS = 4;      /* of a state, copied one by one */
constexpr int MOST_COLUMNS = 128, MOST_SLICES = MOST_COLUMNS / COLUMNS, MOST_PLACES = 4;
constexpr int MOST_THREADS = THREADS * (1 + MOST_SLICES) + 32;

typedef struct {
    int places;           /* states that fit in shared memory */
    unsigned states;      /* sequences x HV */
    unsigned state_bytes; /* K V floats */
} many_plan;

template <int KT> struct many_shared {
    token_shared<KT> made;              /* channels of two rows in turn */
    float4 value[2][MOST_COLUMNS / 4];  /* z */
    float gain[2];                      /* c */
    row_sums sums[MOST_SLICES][2];      /* of the same rows */
    uint64_t row_made[2], row_taken[2]; /* barriers */
    uint64_t loaded[MOST_PLACES], passed[MOST_PLACES];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* One of several things used in turn, and the parity of the turn. */
typedef struct {
    int index;
    unsigned parity;
} turn_of;

static __device__ inline void next_turn(turn_of &turn, int count) {
    if (++turn.index < count) return;
    turn.index = 0;
    turn.parity ^= 1;
}

/* The slot that a state's sequence starts from; negative: it is skipped. */
static __device__ inline int64_t slot_of(const dr_cuda_tokens &call, int64_t sequence) {
    return call.from ? call.from[sequence] : sequence;
}

/* Every thread by itself: racecheck does not follow one that arrives for its warp. */
static __device__ inline void arrive(uint64_t &barrier) {
    dr_mbarrier_arrive(dr_shared_address(&barrier));
}

/* Threads 0 to 127. */
template <typename T, int KT>
static __device__ inline void make_rows(const dr_cuda_tokens &call, const many_plan &plan, many_shared<KT> &shared) {
    const dr_cuda_rows &rows = call.rows;
    unsigned row = 0;
    for (unsigned state = blockIdx.x; state < plan.states; state += gridDim.x) {
        place at = place_of(call, state, 1);
        at.column = 4 * (int)threadIdx.x;
        const int64_t slot = slot_of(call, at.sequence), token = at.sequence;
        if (slot < 0) continue;
        float a[1], squash[1] = {0}, morrison[1] = {0}, query[1] = {0};
        load_scan(call, call.initial_scan, slot, at, a);
        const float alpha = dr_row_alpha(rows, token, at.value_head);
        const float key_dot = rows.diagonal_scan ? pass_scan<T>(rows, at, token, shared.made, a, squash, morrison) : 0;
        make_query<T>(rows, at, token, a, query);
        for (int step = 0; step < rows.steps; step++, row++) {
            const int turn = (int)(row % 2);
            dr_mbarrier_wait(dr_shared_address(&shared.row_taken[turn]), row / 2 % 2 ^ 1);
            const row_operands made =
                make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, shared.made);
            const float z = row_value_factor(dr_rule_row(rows, step), made.gains);
            if (threadIdx.x < MOST_COLUMNS / 4)
                shared.value[turn][threadIdx.x] = make_float4(made.z[0] * z, made.z[1] * z, made.z[2] * z, made.z[3] * z);
            if (threadIdx.x == 0) shared.gain[turn] = made.gains.gain;
            arrive(shared.row_made[turn]);
        }
    }
}

/* The next 128 threads for each slice of 32 columns. */
template <typename T, int KT>
static __device__ inline void hold_states(const dr_cuda_tokens &call, const many_plan &plan, float *places,
                                          many_shared<KT> &shared) {
    constexpr int ROWS = KT / ROW_GROUPS;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size, slice = (int)threadIdx.x / THREADS - 1;
    const int lane = (int)threadIdx.x % THREADS, group = lane / COLUMN_GROUPS;
    const int column = slice * COLUMNS + 4 * (lane % COLUMN_GROUPS);
    const unsigned barrier = 1 + (unsigned)slice;
    turn_of at = {0, 0};
    unsigned row = 0; /* of those that this block makes: two of them in turn */
    for (unsigned state = blockIdx.x; state < plan.states; state += gridDim.x) {
        if (call.from && call.from[state / (unsigned)rows.value_heads] < 0) continue;
        float *mine = places + at.index * K * V + group * V + column;
        float4 S[ROWS];
        clear_state(S);
        dr_mbarrier_wait(dr_shared_address(&shared.loaded[at.index]), at.parity);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (group + i * ROW_GROUPS < K && column < V) S[i] = *reinterpret_cast<const float4 *>(mine + i * ROW_GROUPS * V);
        for (int step = 0; step < rows.steps; step++, row++) {
            const unsigned turn = row % 2;
            row_sums &sums = shared.sums[slice][turn];
            dr_mbarrier_wait(dr_shared_address(&shared.row_made[turn]), row / 2 % 2);
            const float4 value = shared.value[turn][column / 4];
            const row_pass pass =
                pass_state(rows, step, group, barrier, shared.made.channel[turn], value, shared.gain[turn], sums, S);
            if (step == rows.steps - 1 && group == 0 && column < V) {
                const float4 out = read_output(rows, sums, pass.update);
                const float o[4] = {out.x, out.y, out.z, out.w};
                dr_store_lane<T, 4>((T *)call.o + (int64_t)state * V + column, V - column, call.whole_output, o);
            }
            arrive(shared.row_taken[turn]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (group + i * ROW_GROUPS < K && column < V) *reinterpret_cast<float4 *>(mine + i * ROW_GROUPS * V) = S[i];
        dr_bulk_publish();
        arrive(shared.passed[at.index]);
        next_turn(at, plan.places);
    }
}

/* How the copier copies states of the pool to and from places. */
typedef struct {
    int64_t size;  /* floats of a state */
    unsigned part; /* bytes of a part of it */
    unsigned HV;
    uint64_t policy;
} copy_plan;

static __device__ inline void load_part(const dr_cuda_tokens &call, const copy_plan &copy, int64_t slot, unsigned state,
                                        int part, unsigned place, unsigned barrier) {
    const char *from = (const char *)(call.initial + (slot * copy.HV + state % copy.HV) * copy.size);
    dr_bulk_load(place + (unsigned)part * copy.part, from + (unsigned)part * copy.part, copy.part, barrier, copy.policy);
}

static __device__ inline void store_part(const dr_cuda_tokens &call, const copy_plan &copy, int64_t slot, unsigned state,
                                         int part, unsigned place) {
    char *to = (char *)(call.final + (slot * copy.HV + state % copy.HV) * copy.size);
    dr_bulk_store(to + (unsigned)part * copy.part, place + (unsigned)part * copy.part, copy.part, copy.policy);
}

/* This block's next state from `state` on that is not skipped, and its slot; plan.states or above: there is none. */
static __device__ inline unsigned next_state(const dr_cuda_tokens &call, const many_plan &plan, unsigned state, int64_t &slot) {
    for (; state < plan.states; state += gridDim.x) {
        slot = slot_of(call, state / (unsigned)call.rows.value_heads);
        if (slot >= 0) break;
    }
    return state;
}

static __device__ inline void ask_for_inputs(const dr_cuda_tokens &call, const many_plan &plan, unsigned state) {
    if (state >= plan.states) return;
    const place at = place_of(call, state, 1);
    prefetch_token(call.rows, at, at.sequence, 0, 1);
}

/* The last warp: all lanes ask for inputs, the first one copies. */
template <int KT>
static __device__ inline void copy_states(const dr_cuda_tokens &call, const many_plan &plan, const float *places,
                                          many_shared<KT> &shared) {
    const unsigned HV = (unsigned)call.rows.value_heads, first = dr_shared_address(places);
    const copy_plan copy = {(int64_t)call.rows.key_size * call.rows.value_size, plan.state_bytes / PARTS, HV,
                            dr_bulk_passing()};
    const bool copies = threadIdx.x % 32 == 0;
    int64_t slot = 0, coming = 0;
    unsigned loading = next_state(call, plan, blockIdx.x, coming);
    for (unsigned ahead = 0; ahead < AHEAD; ahead++) ask_for_inputs(call, plan, blockIdx.x + ahead * gridDim.x);
    for (int i = 0; i < plan.places && loading < plan.states && copies; i++) {
        const unsigned barrier = dr_shared_address(&shared.loaded[i]);
        dr_mbarrier_promise(barrier, plan.state_bytes);
        for (int part = 0; part < PARTS; part++)
            load_part(call, copy, coming, loading, part, first + (unsigned)i * plan.state_bytes, barrier);
        loading = next_state(call, plan, loading + gridDim.x, coming);
    }
    turn_of at = {0, 0};
    for (unsigned state = next_state(call, plan, blockIdx.x, slot); state < plan.states;
         state = next_state(call, plan, state + gridDim.x, slot), next_turn(at, plan.places)) {
        ask_for_inputs(call, plan, state + AHEAD * gridDim.x);
        const unsigned place = first + (unsigned)at.index * plan.state_bytes;
        const int64_t kept = call.to ? call.to[state / HV] : slot;
        dr_mbarrier_wait(dr_shared_address(&shared.passed[at.index]), at.parity);
        if (!copies) continue;
        for (int part = 0; part < PARTS; part++) {
            if (kept >= 0) store_part(call, copy, kept, state, part, place);
            dr_bulk_commit();
        }
        if (loading >= plan.states) continue;
        const unsigned barrier = dr_shared_address(&shared.loaded[at.index]);
        dr_mbarrier_promise(barrier, plan.state_bytes);
        dr_bulk_wait_read<3>();
        load_part(call, copy, coming, loading, 0, place, barrier);
        dr_bulk_wait_read<2>();
        load_part(call, copy, coming, loading, 1, place, barrier);
        dr_bulk_wait_read<1>();
        load_part(call, copy, coming, loading, 2, place, barrier);
        dr_bulk_wait_read<0>();
        load_part(call, copy, coming, loading, 3, place, barrier);
        loading = next_state(call, plan, loading + gridDim.x, coming);
    }
    if (copies) dr_bulk_wait<0>();
}

#endif

template <typename T, int KT>
static __global__ void __launch_bounds__(MOST_THREADS, 1)
    decode_many(const __grid_constant__ dr_cuda_tokens call, const __grid_constant__ many_plan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    float *places = reinterpret_cast<float *>(shared);
    many_shared<KT> &rest = *reinterpret_cast<many_shared<KT> *>(shared + (size_t)plan.places * plan.state_bytes);
    const unsigned holders = blockDim.x - THREADS - 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            dr_mbarrier_create(dr_shared_address(&rest.row_made[i]), THREADS);
            dr_mbarrier_create(dr_shared_address(&rest.row_taken[i]), holders);
        }
        for (int i = 0; i < plan.places; i++) {
            dr_mbarrier_create(dr_shared_address(&rest.loaded[i]), 1);
            dr_mbarrier_create(dr_shared_address(&rest.passed[i]), holders);
        }
        dr_mbarrier_publish();
    }
    __syncthreads();
    if (threadIdx.x < THREADS)
        make_rows<T>(call, plan, rest);
    else if (threadIdx.x < THREADS + holders)
        hold_states<T>(call, plan, places, rest);
    else
        copy_states(call, plan, places, rest);
#endif
}

template <typename T, int KT> static dr_status launch_width(const dr_cuda *gpu, const dr_cuda_tokens *call, many_plan plan) {
    const int64_t slices = (call->rows.value_size + COLUMNS - 1) / COLUMNS;
    const size_t bytes = (size_t)plan.places * plan.state_bytes + sizeof(many_shared<KT>);
    const unsigned blocks = plan.states < (unsigned)gpu->processors ? plan.states : (unsigned)gpu->processors;
    DR_TRY(dr_cuda_allow_shared((const void *)decode_many<T, KT>));
    decode_many<T, KT><<<blocks, (unsigned)(THREADS * (1 + slices)) + 32, bytes, gpu->stream>>>(*call, plan);
    DR_CUDA_LAUNCHED("decode_many");
    return DR_OK;
}

/* Places for states in a block's shared memory beside the rest of it. */
static int places_of(const dr_cuda *gpu, size_t state_bytes) {
    const size_t rest = sizeof(many_shared<128>);
    const size_t places = gpu->shared_limit > rest ? (gpu->shared_limit - rest) / state_bytes : 0;
    return places < MOST_PLACES ? (int)places : MOST_PLACES;
}

bool dr_cuda_tokens_are_many(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const int64_t states = call->layout.sequences * rows->value_heads;
    if (!gpu->hopper || !call->whole || rows->key_size > 128 || rows->value_size > MOST_COLUMNS) return false;
    if (rows->key_size * rows->value_size * sizeof(float) % (16 * PARTS) != 0) return false;
    if (states < LEAST_MANY * gpu->processors || states > INT32_MAX) return false;
    return places_of(gpu, (size_t)rows->key_size * (size_t)rows->value_size * sizeof(float)) >= 3;
}

template <typename T> static dr_status launch(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    many_plan plan = {0, (unsigned)(call->layout.sequences * rows->value_heads),
                      (unsigned)(rows->key_size * rows->value_size) * (unsigned)sizeof(float)};
    plan.places = places_of(gpu, plan.state_bytes);
    return rows->key_size <= 64 ? launch_width<T, 64>(gpu, call, plan) : launch_width<T, 128>(gpu, call, plan);
}

dr_status dr_cuda_tokens_many(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch<T>(gpu, call));
    return DR_OK;
}
