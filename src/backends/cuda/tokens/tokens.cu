/* The recurrence token by token, forward: a block takes 32 columns of one value head's state through all its tokens.
 *
 * 128 threads hold the columns in registers: 8 groups of 4 columns by 16 groups of rows, row k in group k % 16, so that a
 * warp's 16-byte accesses cover four rows of 128 bytes. A row of the rule passes over the registers twice: e = r^T D, q^T D and
 * q . w are summed together (over 4 lanes by shuffles, over 4 warps in shared memory, in a fixed order); then u = z - c e, S =
 * D + w u, and o = q^T D + (q . w) u, so that the query needs no pass of its own. Meanwhile each thread makes one channel of
 * the keys; the loads of the state are issued before anything waits. Rows without a read sum no e, rows before a token's last
 * no q^T D.
 *
 * Decoding is this kernel with one token, or a few, and states in slots: memory sees each state once in and once out. */
#include "backends/cuda/tokens/tokens_pass.cuh"

/* The rows of a token, and its output; S and A, this thread's channels of which are in a, move on. */
template <typename T, int KT, int ROWS, int CHANNELS>
static __device__ inline void pass_token(const dr_cuda_tokens &call, const place &at, int64_t token, int &turn,
                                         token_shared<KT> &shared, float4 (&S)[ROWS], float (&a)[CHANNELS]) {
    const dr_cuda_rows &rows = call.rows;
    const int V = rows.value_size;
    float squash[CHANNELS], morrison[CHANNELS], query[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) squash[c] = morrison[c] = query[c] = 0;
    const float alpha = dr_row_alpha(rows, token, at.value_head);
    float key_dot = 0;
    if (rows.diagonal_scan) key_dot = pass_scan<T>(rows, at, token, shared.made, a, squash, morrison);
    make_query<T>(rows, at, token, a, query);
    for (int step = 0; step < rows.steps; step++, turn ^= 1) {
        const row_operands made =
            make_row<T>(rows, at, token, step, turn, alpha, key_dot, squash, morrison, query, shared.made);
        const row_pass pass = pass_row(rows, at, step, turn, made, shared, S);
        if (step < rows.steps - 1 || at.group != 0 || at.column >= V) continue;
        const float4 out = read_output(rows, shared.sums, pass.update);
        const float o[4] = {out.x, out.y, out.z, out.w};
        dr_store_lane<T, 4>((T *)call.o + (token * rows.value_heads + at.value_head) * V + at.column, V - at.column,
                            call.whole_output, o);
    }
}

template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 128 ? 3 : 2) pass_tokens(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size, HV = rows.value_heads;
    const place at = place_of(call, blockIdx.x, slices_of(rows));
    const int64_t size = (int64_t)K * V, slot = call.from ? call.from[at.sequence] : at.sequence;
    if (slot < 0) return;
    float4 S[ROWS];
    clear_state(S);
    if (call.initial) load_state(call.initial + (slot * HV + at.value_head) * size, K, V, at, S);
    float a[CHANNELS];
    load_scan(call, call.initial_scan, slot, at, a);
    int turn = 0;
    for (int64_t t = 0; t < at.tokens; t++) {
        if (call.saved && t % call.chunk == 0) {
            const int64_t kept = at.begin / call.chunk + at.sequence + t / call.chunk;
            store_state(call.saved + (kept * HV + at.value_head) * size, K, V, at, S);
        }
        pass_token<T>(call, at, at.begin + t, turn, shared, S, a);
        if (!call.to) continue;
        const int64_t kept = call.to[at.sequence * at.tokens + t];
        if (kept >= 0) store_state(call.final + (kept * HV + at.value_head) * size, K, V, at, S);
    }
    if (call.final && !call.to) store_state(call.final + (slot * HV + at.value_head) * size, K, V, at, S);
}

/* One token of each sequence, from a state to a state: what the token reads is asked for at once, before the state. */
template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 64    ? 5
                                                  : KT <= 128 ? 4
                                                              : 2) decode_token(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size, HV = rows.value_heads;
    const place at = place_of(call, blockIdx.x, slices_of(rows));
    const int64_t size = (int64_t)K * V, slot = call.from ? call.from[at.sequence] : at.sequence;
    if (slot < 0) return;
    prefetch_token(rows, at, at.sequence, (int)threadIdx.x / 32, WARPS);
    float4 S[ROWS];
    load_state(call.initial + (slot * HV + at.value_head) * size, K, V, at, S);
    float a[CHANNELS];
    load_scan(call, call.initial_scan, slot, at, a);
    const int64_t kept = call.to ? call.to[at.sequence] : slot;
    int turn = 0;
    pass_token<T>(call, at, at.sequence, turn, shared, S, a);
    if (kept >= 0) store_state(call.final + (kept * HV + at.value_head) * size, K, V, at, S);
}

/* A along the tokens, one channel a thread: after the kernel above, which reads the initial A that the final one may replace.
 */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    pass_scan_states(const __grid_constant__ dr_cuda_tokens call, int64_t channels) {
    const dr_cuda_rows &rows = call.rows;
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= channels) return;
    const int K = rows.key_size, H = rows.key_heads, d = (int)(index % K), key_head = (int)(index / K % H);
    const int64_t sequence = index / K / H, begin = sequence_begin(call.layout, sequence);
    const int64_t tokens = sequence_begin(call.layout, sequence + 1) - begin;
    const int64_t slot = call.from ? call.from[sequence] : sequence;
    if (slot < 0) return;
    float a = call.initial_scan ? call.initial_scan[(slot * H + key_head) * K + d] : 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (call.saved_scan && t % call.chunk == 0)
            call.saved_scan[((begin / call.chunk + sequence + t / call.chunk) * H + key_head) * K + d] = a;
        a = scan_step_at<T>(rows, begin + t, key_head, d, a);
        if (!call.to) continue;
        const int64_t kept = call.to[sequence * tokens + t];
        if (kept >= 0) call.final_scan[(kept * H + key_head) * K + d] = a;
    }
    if (call.final_scan && !call.to) call.final_scan[(slot * H + key_head) * K + d] = a;
}

template <typename T, int KT>
static void launch_width(const dr_cuda *gpu, unsigned blocks, bool one, const dr_cuda_tokens *call) {
    if (one)
        decode_token<T, KT><<<blocks, THREADS, 0, gpu->stream>>>(*call);
    else
        pass_tokens<T, KT><<<blocks, THREADS, 0, gpu->stream>>>(*call);
}

template <typename T> static dr_status launch_scan(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const int64_t channels = call->layout.sequences * rows->key_heads * rows->key_size;
    const int64_t scan_blocks = (channels + THREADS - 1) / THREADS;
    unsigned blocks;
    DR_TRY(dr_cuda_grid(&scan_blocks, 1, "pass_scan_states", &blocks));
    pass_scan_states<T><<<blocks, THREADS, 0, gpu->stream>>>(*call, channels);
    DR_CUDA_LAUNCHED("pass_scan_states");
    return DR_OK;
}

template <typename T> static dr_status launch_tokens(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const int64_t slices = (rows->value_size + COLUMNS - 1) / COLUMNS;
    const int64_t sizes[] = {call->layout.sequences, rows->value_heads, slices};
    unsigned blocks;
    DR_TRY(dr_cuda_grid(sizes, 3, "pass_tokens", &blocks));
    const bool one = call->layout.rows == call->layout.sequences && call->decodes;
    if (one && dr_cuda_tokens_are_many(gpu, call))
        DR_TRY(dr_cuda_tokens_many(gpu, storage, call));
    else if (rows->key_size <= 64)
        launch_width<T, 64>(gpu, blocks, one, call);
    else if (rows->key_size <= 128)
        launch_width<T, 128>(gpu, blocks, one, call);
    else
        launch_width<T, 256>(gpu, blocks, one, call);
    DR_CUDA_LAUNCHED("pass_tokens");
    return rows->diagonal_scan && (call->final_scan || call->saved_scan) ? launch_scan<T>(gpu, call) : DR_OK;
}

dr_status dr_cuda_tokens_forward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch_tokens<T>(gpu, storage, call));
    return DR_OK;
}

dr_status dr_cuda_tokens_scan(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch_scan<T>(gpu, call));
    return DR_OK;
}
