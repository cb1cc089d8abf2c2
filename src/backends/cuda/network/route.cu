/* The router of a mixture of experts (ops/experts.h) and its balancing loss, a warp a token. Scores of a token's experts lie in
 * shared memory. The formulas stand in backends/reference/experts.c. */
#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/functions.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS };

typedef struct {
    dr_router of;
    const float *logits, *bias;
    int32_t *index;
    float *weights;
    const float *d_weights;
    float *d_logits;
} route_call;

/* s [experts] of a token, by all lanes; the sum of what softmax divides by, or of sigmoids. */
static __device__ float scores_of(const dr_router &router, const float *logits, float *s, int lane) {
    const int experts = (int)router.of.experts;
    float most = -INFINITY, sum = 0;
    for (int e = lane; e < experts; e += 32) most = fmaxf(most, logits[e]);
    most = dr_most_of_lanes(most, 32);
    for (int e = lane; e < experts; e += 32) sum += s[e] = router.sigmoid ? dr_sigmoid(logits[e]) : expf(logits[e] - most);
    sum = dr_sum_lanes(sum, 32);
    for (int e = lane; e < experts && !router.sigmoid; e += 32) s[e] /= sum;
    __syncwarp();
    return router.sigmoid ? sum : 1;
}

/* Where the largest of count numbers stands that is not taken, of equal ones the first; it is then taken. */
static __device__ int take_largest(int count, const float *x, float *taken, int lane) {
    int best = count;
    float most = -INFINITY;
    for (int i = lane; i < count; i += 32)
        if (taken[i] == 0 && (best == count || x[i] > most)) best = i, most = x[i];
    for (int apart = 16; apart > 0; apart /= 2) {
        const int other = __shfl_xor_sync(0xffffffff, best, apart);
        const float more = __shfl_xor_sync(0xffffffff, most, apart);
        const bool takes = other < count && (best == count || more > most || (more == most && other < best));
        if (takes) best = other, most = more;
    }
    __syncwarp();
    if (lane == 0) taken[best] = 1;
    __syncwarp();
    return best;
}

static __device__ float two_largest(int count, const float *x) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < count; i++)
        if (x[i] > first)
            second = first, first = x[i];
        else if (x[i] > second)
            second = x[i];
    return first + second;
}

/* Floats of shared memory of a warp: scores, choices, taken; of groups likewise. */
static inline __device__ __host__ int64_t room_of(const dr_router &router) {
    return 3 * router.of.experts + 2 * router.groups;
}

static __global__ void __launch_bounds__(THREADS) route(const __grid_constant__ route_call call) {
    extern __shared__ char shared[];
    const dr_router &router = call.of;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, experts = (int)router.of.experts;
    const int groups = (int)router.groups, size = experts / groups, chosen = (int)router.of.chosen;
    const int64_t token = (int64_t)blockIdx.x * WARPS + warp;
    float *const s = (float *)shared + warp * room_of(router), *const choice = s + experts, *const taken = choice + experts;
    float *const group = taken + experts, *const kept = group + groups;
    if (token >= router.of.rows) return;
    scores_of(router, call.logits + token * experts, s, lane);
    for (int e = lane; e < experts; e += 32) choice[e] = s[e] + (call.bias ? call.bias[e] : 0);
    for (int e = lane; e < experts; e += 32) taken[e] = groups > 1 ? 1 : 0;
    __syncwarp();
    if (groups > 1) {
        for (int g = lane; g < groups; g += 32) group[g] = two_largest(size, choice + g * size), kept[g] = 0;
        __syncwarp();
        for (int k = 0; k < (int)router.kept; k++) {
            const int g = take_largest(groups, group, kept, lane);
            for (int e = lane; e < size; e += 32) taken[g * size + e] = 0;
            __syncwarp();
        }
    }
    float sum = 0;
    for (int j = 0; j < chosen; j++) {
        const int best = take_largest(experts, choice, taken, lane);
        if (lane == 0) call.index[token * chosen + j] = best;
        sum += s[best];
    }
    __syncwarp();
    if (lane != 0) return;
    for (int j = 0; j < chosen; j++)
        call.weights[token * chosen + j] =
            (float)router.scale * s[call.index[token * chosen + j]] / (router.normalised ? sum + 1e-20f : 1);
}

static __global__ void __launch_bounds__(THREADS) route_back(const __grid_constant__ route_call call) {
    extern __shared__ char shared[];
    const dr_router &router = call.of;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, experts = (int)router.of.experts;
    const int chosen = (int)router.of.chosen;
    const int64_t token = (int64_t)blockIdx.x * WARPS + warp;
    if (token >= router.of.rows) return;
    float *const s = (float *)shared + warp * room_of(router), *const d_s = s + experts;
    const float *const logits = call.logits + token * experts, *const d_weights = call.d_weights + token * chosen;
    const int32_t *const index = call.index + token * chosen;
    scores_of(router, logits, s, lane);
    for (int e = lane; e < experts; e += 32) d_s[e] = 0;
    __syncwarp();
    float sum = 0, along = 0, of_all = 0;
    for (int j = 0; j < chosen; j++) sum += s[index[j]], along += d_weights[j] * s[index[j]];
    sum += 1e-20f;
    for (int j = 0; j < chosen; j++) {
        const float d = (float)router.scale * (router.normalised ? (d_weights[j] - along / sum) / sum : d_weights[j]);
        of_all += s[index[j]] * d;
        if (lane == 0) d_s[index[j]] = d;
    }
    __syncwarp();
    for (int e = lane; e < experts; e += 32)
        call.d_logits[token * experts + e] = router.sigmoid ? d_s[e] * dr_sigmoid_slope(logits[e]) : s[e] * (d_s[e] - of_all);
}

/* A launch of a block for each WARPS tokens. */
template <typename... P>
static dr_status run(const dr_cuda *gpu, const char *name, void (*kernel)(P...), const dr_router &router, const P &...given) {
    const int64_t bytes = WARPS * room_of(router) * (int64_t)sizeof(float);
    if (bytes > (int64_t)gpu->shared_limit)
        return dr_fail(DR_ERROR_UNSUPPORTED, "backend cuda routes among fewer experts than %lld", (long long)router.of.experts);
    return dr_cuda_launch(name, kernel, {dr_blocks_of(router.of.rows, WARPS)}, THREADS, (int)bytes, gpu->stream, given...);
}

dr_status dr_cuda_route_forward(dr_backend *backend, const dr_router *router, const void *logits, const void *bias,
                                int32_t *index, void *weights) {
    DR_NETWORK_ENTER(backend);
    const route_call call = {*router, (const float *)logits, (const float *)bias, index, (float *)weights, NULL, NULL};
    return run(gpu, "route", route, *router, call);
}

dr_status dr_cuda_route_backward(dr_backend *backend, const dr_router *router, const void *logits, const int32_t *index,
                                 const void *d_weights, void *d_logits) {
    DR_NETWORK_ENTER(backend);
    const route_call call = {*router,          (const float *)logits, NULL, (int32_t *)index, NULL, (const float *)d_weights,
                             (float *)d_logits};
    return run(gpu, "route_back", route_back, *router, call);
}

/* ---- balance --------------------------------------------------------------------------------------------------------------
 */

enum { COUNT_THREADS = 256 };

/* slope[e]: of the loss by the share p_e of any token, from the slots of expert e; a block an expert */
static __global__ void __launch_bounds__(COUNT_THREADS)
    balance_slopes(const int32_t *index, int64_t slots, float unit, float *slope) {
    __shared__ int64_t counts[COUNT_THREADS];
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < slots; i += COUNT_THREADS) count += index[i] == (int32_t)blockIdx.x;
    count = dr_join_threads<COUNT_THREADS>(count, counts, [](int64_t a, int64_t b) { return a + b; });
    if (threadIdx.x == 0) slope[blockIdx.x] = (float)count * unit;
}

/* means [rows]: what each token adds to the loss; its gradients */
static __global__ void __launch_bounds__(THREADS)
    balance_tokens(const __grid_constant__ route_call call, const float *slope, float *means) {
    extern __shared__ char shared[];
    const dr_router &router = call.of;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, experts = (int)router.of.experts;
    const int64_t token = (int64_t)blockIdx.x * WARPS + warp;
    if (token >= router.of.rows) return;
    float *const s = (float *)shared + warp * room_of(router);
    const float *const logits = call.logits + token * experts;
    const float sum = scores_of(router, logits, s, lane);
    float mean = 0;
    for (int e = lane; e < experts; e += 32) mean += s[e] / sum * slope[e];
    mean = dr_sum_lanes(mean, 32);
    if (lane == 0) means[token] = mean;
    for (int e = lane; e < experts && call.d_logits; e += 32)
        call.d_logits[token * experts + e] +=
            router.sigmoid ? (slope[e] - mean) / sum * dr_sigmoid_slope(logits[e]) : s[e] * (slope[e] - mean);
}

static __global__ void __launch_bounds__(COUNT_THREADS) balance_loss(const float *means, int64_t rows, float *loss) {
    __shared__ double sums[COUNT_THREADS];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += COUNT_THREADS) sum += (double)means[i];
    sum = dr_join_threads<COUNT_THREADS>(sum, sums, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) *loss += (float)sum;
}

dr_status dr_cuda_balance(dr_backend *backend, const dr_router *router, const void *logits, const int32_t *index, double factor,
                          void *loss, void *d_logits) {
    DR_NETWORK_ENTER(backend);
    const int64_t rows = router->of.rows, experts = router->of.experts;
    if (rows == 0) return DR_OK;
    const dr_scratch scratch(backend, (rows + experts) * (int64_t)sizeof(float));
    DR_TRY(scratch.status);
    float *const slope = (float *)scratch.at, *const means = slope + experts;
    const float unit = (float)(factor * (double)experts / ((double)rows * (double)rows));
    const route_call call = {*router, (const float *)logits, NULL, NULL, NULL, NULL, (float *)d_logits};
    DR_TRY(dr_cuda_launch("balance_slopes", balance_slopes, {experts}, COUNT_THREADS, 0, gpu->stream, index,
                          rows * router->of.chosen, unit, slope));
    DR_TRY(run(gpu, "balance_tokens", balance_tokens, *router, call, (const float *)slope, means));
    return dr_cuda_launch("balance_loss", balance_loss, {1}, COUNT_THREADS, 0, gpu->stream, (const float *)means, rows,
                          (float *)loss);
}
