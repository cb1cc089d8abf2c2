/* The recurrence token by token, forward: a block takes 32 columns of one value head's state through all its tokens.
 *
 * 128 threads hold the columns in registers: 8 groups of 4 columns by 16 groups of rows, row k in group k % 16, so that a
 * warp's 16-byte accesses cover four rows of 128 bytes. A row of the rule passes over the registers twice: e = r^T D, q^T D and
 * q . w are summed together (over 4 lanes by shuffles, over 4 warps in shared memory, in a fixed order); then u = z - c e, S =
 * D + w u, and o = q^T D + (q . w) u, so that the query needs no pass of its own. Meanwhile each thread makes one channel of
 * the keys; the loads of the state are issued before anything waits. Rows without a read sum no e, rows before a token's last
 * no q^T D.
 *
 * Decoding a few tokens is this kernel with states in slots; one token has a kernel of its own (decode.cu). */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens_pass.cuh"

template <typename T, int KT>
static __global__ void __launch_bounds__(THREADS, KT <= 128 ? 3 : 2) pass_tokens(const __grid_constant__ dr_cuda_tokens call) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size;
    const place at = place_of(call, blockIdx.x, slices_of(rows));
    const int64_t slot = first_slot(call, at);
    if (slot < 0) return;
    float4 S[ROWS];
    clear_state(S);
    if (call.initial) load_state(call.initial + state_at(rows, slot, at), K, V, at, S);
    float a[CHANNELS];
    load_scan(call, call.initial_scan, slot, at, a);
    int turn = 0;
    for (int64_t t = 0; t < at.tokens; t++) {
        if (call.saved && t % call.chunk == 0) {
            const int64_t kept = at.begin / call.chunk + at.sequence + t / call.chunk;
            store_state(call.saved + state_at(rows, kept, at), K, V, at, S);
        }
        pass_token<T>(call, at, at.begin + t, turn, shared, S, a);
        if (!call.to) continue;
        const int64_t kept = call.to[at.sequence * at.tokens + t];
        if (kept >= 0) store_state(call.final + state_at(rows, kept, at), K, V, at, S);
    }
    if (call.final && !call.to) store_state(call.final + state_at(rows, slot, at), K, V, at, S);
}

/* A along the tokens, one channel a thread: after the kernel above, which reads the initial A; the final may replace it. */
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

template <typename T> static dr_status launch_scan(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    const int64_t channels = call->layout.sequences * rows->key_heads * rows->key_size;
    return dr_cuda_launch("pass_scan_states", pass_scan_states<T>, {(channels + THREADS - 1) / THREADS}, THREADS, 0,
                          gpu->stream, *call, channels);
}

template <typename T> static dr_status launch_tokens(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const int K = call->rows.key_size;
    const int64_t sizes[] = {call->layout.sequences, call->rows.value_heads, slices_of(call->rows)};
    void (*const kernel)(dr_cuda_tokens) = K <= 64 ? pass_tokens<T, 64> : K <= 128 ? pass_tokens<T, 128> : pass_tokens<T, 256>;
    return dr_cuda_launch("pass_tokens", kernel, sizes, THREADS, 0, gpu->stream, *call);
}

template <typename T> static dr_status launch_all(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    const bool one = call->decodes && call->layout.rows == call->layout.sequences;
    DR_TRY(one ? dr_cuda_tokens_decode(gpu, storage, call) : launch_tokens<T>(gpu, call));
    return call->rows.diagonal_scan && (call->final_scan || call->saved_scan) ? launch_scan<T>(gpu, call) : DR_OK;
}

dr_status dr_cuda_tokens_forward(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch_all<T>(gpu, storage, call));
    return DR_OK;
}

dr_status dr_cuda_tokens_scan(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    DR_CUDA_STORAGE(storage, T, return launch_scan<T>(gpu, call));
    return DR_OK;
}
