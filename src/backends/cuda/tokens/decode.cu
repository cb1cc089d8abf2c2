/* One token of each sequence, from a state to a state, in place or not: decoding. What bounds it is memory, which sees each
 * state once in and once out, as long as loads and stores of other blocks fill the time in which a block computes.
 *
 * A block of 128 threads has 32 columns of a state, as in tokens.cu: it asks for the inputs of its token and all of its state
 * at once, makes the keys while the state comes, and is done when it has asked for its stores. Nothing stays and nothing is
 * handed over; of such short blocks a multiprocessor holds six, 96 KB of states. That many registers are enough where the
 * compiler knows the call to be one row a token without a scan, heads of 128 by 128, which most are (known_call). Other calls
 * for many sequences are those of tokens_many.cu on Hopper. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/tokens/tokens_pass.cuh"

/* The same call, said in constants where is_known holds: of the code of a row what they rule out is left out. */
static __device__ inline dr_cuda_tokens known_call(const dr_cuda_tokens &call) {
    dr_cuda_tokens known = call;
    dr_cuda_rows &rows = known.rows;
    rows.steps = 1;
    rows.step_axis = rows.diagonal_scan = rows.tied_scan = rows.row[0].undecayed = false;
    rows.normalizer = DR_NORMALIZER_NONE;
    if (rows.query != DR_QUERY_CORRECTED) rows.query = DR_QUERY_PLAIN;
    rows.key_size = rows.value_size = 128;
    rows.aligned = known.whole = known.whole_output = true;
    return known;
}

static bool is_known(const dr_cuda_tokens *call) {
    const dr_cuda_rows *rows = &call->rows;
    return rows->steps == 1 && !rows->step_axis && !rows->diagonal_scan && !rows->row[0].undecayed &&
           rows->normalizer == DR_NORMALIZER_NONE && (rows->query == DR_QUERY_PLAIN || rows->query == DR_QUERY_CORRECTED) &&
           rows->key_size == 128 && rows->value_size == 128 && rows->aligned && call->whole && call->whole_output;
}

/* Blocks a multiprocessor, for whose registers the compiler is to care. */
constexpr int blocks_of(int width, bool known) {
    return known ? 6 : width <= 64 ? 5 : width <= 128 ? 4 : 2;
}

template <typename T, int KT, bool KNOWN>
static __global__ void __launch_bounds__(THREADS, blocks_of(KT, KNOWN))
    decode_token(const __grid_constant__ dr_cuda_tokens given) {
    constexpr int ROWS = KT / ROW_GROUPS, CHANNELS = (KT + THREADS - 1) / THREADS;
    __shared__ token_shared<KT> shared;
    const dr_cuda_tokens known = known_call(given);
    const dr_cuda_tokens &call = KNOWN ? known : given;
    const dr_cuda_rows &rows = call.rows;
    const int K = rows.key_size, V = rows.value_size, HV = rows.value_heads;
    const place at = place_of(call, blockIdx.x, slices_of(rows));
    const int64_t size = (int64_t)K * V, slot = call.from ? call.from[at.sequence] : at.sequence;
    if (slot < 0) return;
    if (!KNOWN) prefetch_token(rows, at, at.sequence, (int)threadIdx.x / 32, WARPS);
    float4 S[ROWS];
    load_state(call.initial + (slot * HV + at.value_head) * size, K, V, at, S);
    float a[CHANNELS];
    load_scan(call, call.initial_scan, slot, at, a);
    const int64_t kept = call.to ? call.to[at.sequence] : slot;
    int turn = 0;
    pass_token<T>(call, at, at.sequence, turn, shared, S, a);
    if (kept >= 0) store_state(call.final + (kept * HV + at.value_head) * size, K, V, at, S);
}

template <typename T, int KT, bool KNOWN> static dr_status launch(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    const int64_t sizes[] = {call->layout.sequences, call->rows.value_heads, slices_of(call->rows)};
    return dr_cuda_launch("decode_token", decode_token<T, KT, KNOWN>, sizes, THREADS, 0, gpu->stream, *call);
}

template <typename T> static dr_status launch(const dr_cuda *gpu, const dr_cuda_tokens *call) {
    if (is_known(call)) return launch<T, 128, true>(gpu, call);
    if (call->rows.key_size <= 64) return launch<T, 64, false>(gpu, call);
    return call->rows.key_size <= 128 ? launch<T, 128, false>(gpu, call) : launch<T, 256, false>(gpu, call);
}

dr_status dr_cuda_tokens_decode(const dr_cuda *gpu, dr_dtype storage, const dr_cuda_tokens *call) {
    if (!is_known(call) && dr_cuda_tokens_are_many(gpu, call)) return dr_cuda_tokens_many(gpu, storage, call);
    DR_CUDA_STORAGE(storage, T, return launch<T>(gpu, call));
    return DR_OK;
}
