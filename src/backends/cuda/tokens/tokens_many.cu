/* One token each of many sequences on Hopper: what bounds it is memory, which sees each state once in and once out.
 *
 * A block stays on its multiprocessor and takes every so many-th state, whole, [K, V] as it lies in memory. Its threads have
 * three parts to play, and meet at barriers in shared memory only:
 *
 *     makers    2 groups of 4 warps, a state each in turn: the operands of its rows (tokens_pass.cuh), up to two rows ahead of
 *               who needs them
 *     holders   16 warps: state from its place in shared memory to registers, the rows, and from there to memory. Warp w has
 *               the rows w, w + 16, .. of the state, so that it writes 512 bytes side by side
 *     a copier  1 warp: states into places ahead of the holders; and asks for the makers' inputs
 *
 * so that several states are under way at any time without a register that waits for them. Numbers are summed as in tokens.cu,
 * the rows of a thread first and then the 16 parts in pairs: the results are the same bits. */
#include "backends/cuda/device/beside.cuh"
#include "backends/cuda/device/bulk.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens_pass.cuh"

constexpr int LEAST_MANY = 1; /* states a multiprocessor from which on this pays */
constexpr int MAKERS = 2;     /* groups of 128 threads */
constexpr int MAKING = MAKERS * THREADS, HOLDING = 32 * ROW_GROUPS, ALL_THREADS = MAKING + HOLDING + 32;
constexpr unsigned PARTS = 4; /* of a state, copied one by one */
constexpr int MOST_COLUMNS = 128, COLUMN_LANES = MOST_COLUMNS / 4, MOST_PLACES = 4;
constexpr unsigned HOLDERS_MEET = MAKERS; /* the makers' barriers are those before */

typedef struct {
    int places;           /* states that fit in shared memory */
    unsigned states;      /* sequences x HV */
    unsigned state_bytes; /* K V floats */
} many_plan;

template <int KT> struct many_shared {
    made_rows<KT, MAKERS> made[MAKERS];                                      /* channels of two rows in turn */
    float4 value[MAKERS][2][COLUMN_LANES];                                   /* z */
    float4 erased[ROW_GROUPS][COLUMN_LANES], read[ROW_GROUPS][COLUMN_LANES]; /* of each warp of holders */
    float4 all_erased[COLUMN_LANES], all_read[COLUMN_LANES];                 /* their sums */
    float query_write[ROW_GROUPS], all_query_write;
    float gain[MAKERS][2];                              /* c */
    uint64_t row_made[MAKERS][2], row_taken[MAKERS][2]; /* barriers */
    uint64_t loaded[MOST_PLACES], taken[MOST_PLACES];
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

/* Every thread by itself: racecheck does not follow one that arrives for its warp. */
static __device__ inline void arrive(uint64_t &barrier) {
    dr_mbarrier_arrive(dr_shared_address(&barrier));
}

static __device__ inline void wait(uint64_t &barrier, unsigned parity) {
    dr_mbarrier_wait(dr_shared_address(&barrier), parity);
}

/* This block's next state from `state` on whose sequence is not skipped, and the slot that it starts from; plan.states or
 * above: there is none. */
static __device__ inline unsigned next_state(const dr_cuda_tokens &call, const many_plan &plan, unsigned state, int64_t &slot) {
    for (; state < plan.states; state += gridDim.x) {
        const int64_t sequence = state / (unsigned)call.rows.value_heads;
        slot = call.from ? call.from[sequence] : sequence;
        if (slot >= 0) break;
    }
    return state;
}

static __device__ inline int64_t offset_of(const dr_cuda_rows &rows, int64_t slot, unsigned state) {
    const unsigned HV = (unsigned)rows.value_heads;
    return (slot * HV + state % HV) * rows.key_size * rows.value_size;
}

/* Group `maker` of the first threads takes every second state. */
template <typename T, int KT>
static __device__ inline void make_rows(const dr_cuda_tokens &call, const many_plan &plan, many_shared<KT> &shared) {
    const dr_cuda_rows &rows = call.rows;
    const unsigned maker = threadIdx.x / THREADS;
    const int thread = group_thread();
    made_rows<KT, MAKERS> &mine = shared.made[maker];
    unsigned row = 0, number = 0;
    int64_t slot;
    for (unsigned state = next_state(call, plan, blockIdx.x, slot); state < plan.states;
         state = next_state(call, plan, state + gridDim.x, slot)) {
        if (number++ % MAKERS != maker) continue;
        place at = place_of(call, state, 1);
        at.column = 4 * thread;
        const int64_t token = at.sequence;
        float a[1], squash[1] = {0}, morrison[1] = {0}, query[1] = {0};
        load_scan(call, call.initial_scan, slot, at, a);
        const float alpha = dr_row_alpha(rows, token, at.value_head);
        const float key_dot = rows.diagonal_scan ? pass_scan<T>(rows, at, token, mine, a, squash, morrison) : 0;
        make_query<T>(rows, at, token, a, query);
        for (int step = 0; step < rows.steps; step++, row++) {
            const int turn = (int)(row % 2);
            wait(shared.row_taken[maker][turn], row / 2 % 2 ^ 1);
            const row_operands made = make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, mine);
            const float z = row_value_factor(dr_rule_row(rows, step), made.gains);
            if (thread < COLUMN_LANES)
                shared.value[maker][turn][thread] = make_float4(made.z[0] * z, made.z[1] * z, made.z[2] * z, made.z[3] * z);
            if (thread == 0) shared.gain[maker][turn] = made.gains.gain;
            arrive(shared.row_made[maker][turn]);
        }
    }
}

/* 16 parts, `stride` apart, in pairs. */
static __device__ inline float sum_parts(const float *parts, int stride) {
    float warp[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++, parts += 4 * stride)
        warp[i] = (parts[0] + parts[stride]) + (parts[2 * stride] + parts[3 * stride]);
    return sum_warps(warp);
}

/* The sums of all holders' rows; holder: this thread among them. */
template <int KT, int ROWS>
static __device__ inline void sum_holders(bool erases, bool queries, int holder, const float4 (&channel)[KT],
                                          const float4 (&S)[ROWS], many_shared<KT> &shared) {
    const int warp = holder / 32, lane = holder % 32, column = holder % MOST_COLUMNS;
    const channel_sums mine = sum_thread(erases, queries, channel, warp, S);
    if (erases) shared.erased[warp][lane] = mine.erased;
    if (queries) shared.read[warp][lane] = mine.read;
    if (queries && lane == 0) shared.query_write[warp] = mine.query_write;
    __barrier_sync_count(HOLDERS_MEET, HOLDING);
    if (erases && holder / MOST_COLUMNS == 0)
        ((float *)shared.all_erased)[column] = sum_parts((const float *)shared.erased + column, MOST_COLUMNS);
    if (queries && holder / MOST_COLUMNS == 1)
        ((float *)shared.all_read)[column] = sum_parts((const float *)shared.read + column, MOST_COLUMNS);
    if (queries && holder == 2 * MOST_COLUMNS) shared.all_query_write = sum_parts(shared.query_write, 1);
    __barrier_sync_count(HOLDERS_MEET, HOLDING);
}

/* A row that a maker has left at a turn; the token's last one gives the output. */
template <typename T, int KT, int ROWS>
static __device__ inline void hold_row(const dr_cuda_tokens &call, unsigned state, int step, unsigned maker, unsigned turn,
                                       int holder, many_shared<KT> &shared, float4 (&S)[ROWS]) {
    const dr_cuda_rows &rows = call.rows;
    const int V = rows.value_size, warp = holder / 32, lane = holder % 32, column = 4 * lane;
    const bool erases = dr_row_reads(rows, step), last = step == rows.steps - 1;
    const float4(&channel)[KT] = shared.made[maker].channel[turn];
    if (erases || last) sum_holders(erases, last, holder, channel, S, shared);
    float4 update = shared.value[maker][turn][lane];
    if (erases) multiply_add(-shared.gain[maker][turn], shared.all_erased[lane], update);
    if (last && warp == 0 && column < V) {
        float4 out = shared.all_read[lane];
        multiply_add(shared.all_query_write, update, out);
        const float o[4] = {rows.scale * out.x, rows.scale * out.y, rows.scale * out.z, rows.scale * out.w};
        dr_store_lane<T, 4>((T *)call.o + (int64_t)state * V + column, V - column, call.whole_output, o);
    }
    move_state(channel, warp, update, S);
}

/* The threads behind the makers. */
template <typename T, int KT>
static __device__ inline void hold_states(const dr_cuda_tokens &call, const many_plan &plan, const float *places,
                                          many_shared<KT> &shared) {
    constexpr int ROWS = KT / ROW_GROUPS;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size;
    const int holder = (int)threadIdx.x - MAKING, first = holder / 32, column = 4 * (holder % 32);
    turn_of at = {0, 0};
    unsigned number = 0;
    int64_t slot;
    for (unsigned state = next_state(call, plan, blockIdx.x, slot); state < plan.states;
         state = next_state(call, plan, state + gridDim.x, slot), next_turn(at, plan.places), number++) {
        const int64_t kept = call.to ? call.to[state / (unsigned)rows.value_heads] : slot;
        const float *from = places + (at.index * K + first) * V + column;
        float4 S[ROWS];
        clear_state(S);
        wait(shared.loaded[at.index], at.parity);
        DR_UNROLL (i, ROWS)
            if (first + i * ROW_GROUPS < K && column < V) S[i] = *reinterpret_cast<const float4 *>(from + i * ROW_GROUPS * V);
        arrive(shared.taken[at.index]);
        const unsigned maker = number % MAKERS;
        unsigned row = number / MAKERS * (unsigned)rows.steps; /* of that maker's */
        for (int step = 0; step < rows.steps; step++, row++) {
            const unsigned turn = row % 2;
            wait(shared.row_made[maker][turn], row / 2 % 2);
            hold_row<T>(call, state, step, maker, turn, holder, shared, S);
            arrive(shared.row_taken[maker][turn]);
        }
        if (kept < 0) continue;
        float *to = call.final + offset_of(rows, kept, state) + first * V + column;
        DR_UNROLL (i, ROWS)
            if (first + i * ROW_GROUPS < K && column < V) __stcs(reinterpret_cast<float4 *>(to + i * ROW_GROUPS * V), S[i]);
    }
}

static __device__ inline void ask_for_inputs(const dr_cuda_tokens &call, const many_plan &plan, unsigned state) {
    if (state >= plan.states) return;
    const place at = place_of(call, state, 1);
    prefetch_token(call.rows, at, at.sequence, 0, 1);
}

/* The last warp: the first lane copies, all of them ask for what the makers will read, a state later. */
template <int KT>
static __device__ inline void copy_states(const dr_cuda_tokens &call, const many_plan &plan, const float *places,
                                          many_shared<KT> &shared) {
    const unsigned first = dr_shared_address(places), bytes = plan.state_bytes / PARTS;
    const uint64_t policy = dr_bulk_ordinary();
    turn_of at = {0, 0};
    unsigned before = plan.states;
    int64_t slot;
    for (unsigned state = next_state(call, plan, blockIdx.x, slot); state < plan.states;
         state = next_state(call, plan, state + gridDim.x, slot), next_turn(at, plan.places)) {
        wait(shared.taken[at.index], at.parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            const unsigned barrier = dr_shared_address(&shared.loaded[at.index]);
            dr_mbarrier_promise(barrier, plan.state_bytes);
            const char *from = (const char *)(call.initial + offset_of(call.rows, slot, state));
            for (unsigned part = 0; part < PARTS; part++)
                dr_bulk_load(first + (unsigned)at.index * plan.state_bytes + part * bytes, from + part * bytes, bytes, barrier,
                             policy);
        }
        ask_for_inputs(call, plan, before);
        before = state;
    }
    ask_for_inputs(call, plan, before);
}

#endif

template <typename T, int KT>
static __global__ void __launch_bounds__(ALL_THREADS, 1)
    decode_many(const __grid_constant__ dr_cuda_tokens call, const __grid_constant__ many_plan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    const float *places = reinterpret_cast<const float *>(shared);
    many_shared<KT> &rest = *reinterpret_cast<many_shared<KT> *>(shared + (size_t)plan.places * plan.state_bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * MAKERS; i++) {
            dr_mbarrier_create(dr_shared_address(&rest.row_made[i / 2][i % 2]), THREADS);
            dr_mbarrier_create(dr_shared_address(&rest.row_taken[i / 2][i % 2]), HOLDING);
        }
        for (int i = 0; i < plan.places; i++) {
            dr_mbarrier_create(dr_shared_address(&rest.loaded[i]), 1);
            dr_mbarrier_create(dr_shared_address(&rest.taken[i]), HOLDING);
        }
        dr_mbarrier_publish();
    }
    __syncthreads();
    dr_chain();
    if (threadIdx.x < MAKING)
        make_rows<T>(call, plan, rest);
    else if (threadIdx.x < MAKING + HOLDING)
        hold_states<T>(call, plan, places, rest);
    else
        copy_states(call, plan, places, rest);
#endif
}

template <typename T, int KT> static dr_status launch_width(const dr_cuda *gpu, const dr_cuda_tokens *call, many_plan plan) {
    const size_t bytes = (size_t)plan.places * plan.state_bytes + sizeof(many_shared<KT>);
    const int64_t blocks = plan.states < (unsigned)gpu->processors ? plan.states : (unsigned)gpu->processors;
    return dr_cuda_launch_when(gpu->hopper, "decode_many", decode_many<T, KT>, {blocks}, ALL_THREADS, (int)bytes, gpu->stream,
                               *call, plan);
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
