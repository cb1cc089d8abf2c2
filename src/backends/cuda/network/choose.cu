/* Tokens drawn from rows of logits; the weights and their order stand in backends/reference/choose.c. A block takes a row.
 *
 * Nothing is sorted. A set that begins with the likeliest token ends at a place in the order of logits: a logit, and how many
 * of the tokens that have it belong to the set, in the order of ids. Logits become unsigned numbers of the same order, ranks,
 * and the place is found four bits at a time: the block sums the measure of the tokens (their number, or their weights) by the
 * next bits, among those whose higher bits are known, and goes on where the sum from the largest on reaches what is looked for.
 * top_k, top_p and the draw are three such searches. A search reads the row eight times; from the second time on it takes
 * only the tokens whose higher bits match. Sums are in double, in an order that the number of threads decides. */
#include "backends/cuda/network/blocks.cuh"
#include "backends/cuda/network/vectors.cuh"

enum { THREADS = 512, WARPS = THREADS / 32, BITS = 4, BINS = 1 << BITS };

/* A row, and what its threads bring together. */
template <typename T> struct row {
    const T *logits;
    int count; /* tokens that may be drawn */
    bool wide; /* logits can be read 16 bytes at a time */
    double most, temperature;
    double *values; /* [THREADS], shared */
    double *sums;   /* [WARPS + 1, BINS], shared */

    __device__ float logit(int i) const { return dr_to_float(logits[i]); }
    __device__ double weight(float logit) const { return exp(((double)logit - most) / temperature); }

    /* f(id, logit) of the thread's share of the tokens */
    template <typename F> __device__ void each(const F &f) const {
        constexpr int N = dr_wide<T>;
        const int whole = wide ? count / N * N : 0;
        for (int i = (int)threadIdx.x * N; i < whole; i += THREADS * N) {
            const dr_floats<N> x = dr_load_floats<N>(logits + i);
            EACH f(i + n, x.at[n]);
        }
        for (int i = whole + (int)threadIdx.x; i < count; i += THREADS) f(i, logit(i));
    }
};

/* The first tokens of the order: all whose rank is larger, and `ties` of those that have it. */
struct place {
    uint32_t rank;
    int ties;
    bool found;
    double before, each; /* the measure of the larger ones, and of one with this rank */
};

static __device__ uint32_t rank_of(float logit) {
    const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ float logit_of(uint32_t rank) {
    return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank);
}

/* Every thread's BINS sums together, to all of them: those of a warp, of which each lane ends with one, then the warps one
 * after another. */
template <typename T> static __device__ void join_bins(const row<T> &r, double (&bins)[BINS]) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int half = BINS / 2; half > 0; half /= 2)
#pragma unroll
        for (int b = 0; b < half; b++) {
            const bool upper = lane & half;
            const double mine = upper ? bins[b + half] : bins[b], other = upper ? bins[b] : bins[b + half];
            bins[b] = mine + __shfl_xor_sync(0xffffffff, other, half);
        }
    bins[0] += __shfl_xor_sync(0xffffffff, bins[0], BINS);
    __syncthreads();
    if (lane < BINS) r.sums[warp * BINS + lane] = bins[0];
    __syncthreads();
    if (threadIdx.x < BINS) {
        double sum = 0;
        for (int w = 0; w < WARPS; w++) sum += r.sums[w * BINS + lane];
        r.sums[WARPS * BINS + lane] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int b = 0; b < BINS; b++) bins[b] = r.sums[WARPS * BINS + b];
}

/* The sum of one value a thread, to all of them. */
template <typename T> static __device__ double join_sums(const row<T> &r, double mine) {
    double bins[BINS] = {mine};
    join_bins(r, bins);
    return bins[0];
}

/* Sums of one value a thread, one after another: of those of the threads before, and of all. */
typedef struct {
    double before, all;
} shares;

template <typename T> static __device__ shares join_shares(const row<T> &r, double mine) {
    shares s = {0, 0};
    __syncthreads();
    r.values[threadIdx.x] = mine;
    __syncthreads();
    for (int t = 0; t < THREADS; t++) {
        if (t == (int)threadIdx.x) s.before = s.all;
        s.all += r.values[t];
    }
    return s;
}

/* The measures of the tokens whose rank has `prefix` above the bits at `shift`, by these bits. */
template <typename T>
static __device__ void measure(const row<T> &r, bool counted, uint32_t prefix, int shift, double (&bins)[BINS]) {
#pragma unroll
    for (int b = 0; b < BINS; b++) bins[b] = 0;
    r.each([&](int, float logit) {
        const uint32_t rank = rank_of(logit), bin = rank >> shift & (BINS - 1);
        if (shift + BITS < 32 && rank >> (shift + BITS) != prefix) return;
        const double value = counted ? 1 : r.weight(logit);
#pragma unroll
        for (int b = 0; b < BINS; b++) bins[b] += b == (int)bin ? value : 0;
    });
    join_bins(r, bins);
}

/* The shortest beginning of the order whose measure reaches the target, or exceeds it. */
template <typename T> static __device__ place find(const row<T> &r, bool counted, double target, bool exceeds) {
    place p = {0, 1, true, 0, 1};
    double within = 0; /* the measure of the tokens that have p.rank so far */
    for (int shift = 32 - BITS; shift >= 0; shift -= BITS) {
        double bins[BINS], before = p.before, last_before = 0;
        int chosen = -1, last = 0;
        measure(r, counted, p.rank, shift, bins);
#pragma unroll
        for (int b = BINS - 1; b >= 0; b--) {
            if (chosen >= 0 || bins[b] == 0) continue;
            last = b, last_before = before;
            before += bins[b];
            if (exceeds ? before > target : before >= target) chosen = b;
        }
        if (chosen < 0) p.found = p.found && shift + BITS < 32; /* below the first bits only rounding leaves it short */
        p.rank = p.rank << BITS | (uint32_t)(chosen < 0 ? last : chosen);
        p.before = last_before;
#pragma unroll
        for (int b = 0; b < BINS; b++)
            if (b == last) within = bins[b];
    }
    p.each = counted ? 1 : r.weight(logit_of(p.rank));
    const int there = p.each > 0 ? (int)(within / p.each + 0.5) : 1;
    const double missing = p.each > 0 ? (target - p.before) / p.each : 0;
    const double wanted = exceeds ? floor(missing) + 1 : ceil(missing);
    p.ties = wanted < 1 ? 1 : wanted < there ? (int)wanted : there < 1 ? 1 : there;
    return p;
}

/* The weight of the tokens up to a place. */
template <typename T> static __device__ double weigh(const row<T> &r, const place &end) {
    double sum = 0;
    r.each([&](int, float logit) {
        if (rank_of(logit) > end.rank) sum += r.weight(logit);
    });
    return join_sums(r, sum) + end.ties * r.weight(logit_of(end.rank));
}

static __device__ bool is_beyond(const place &p, const place &end) {
    return p.rank < end.rank || (p.rank == end.rank && p.ties > end.ties);
}

/* The last of the tokens, which weigh min_p at least. */
template <typename T> static __device__ place last_of(const row<T> &r, double min_p) {
    __shared__ uint32_t ranks[THREADS];
    uint32_t least = 0xffffffffu;
    double ties = 0;
    r.each([&](int, float logit) {
        const uint32_t rank = rank_of(logit);
        if (rank < least && (min_p == 0 || r.weight(logit) >= min_p)) least = rank;
    });
    least = dr_join_threads<THREADS>(least, ranks, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
    r.each([&](int, float logit) { ties += rank_of(logit) == least; });
    return {least, (int)join_sums(r, ties), true, 0, 0};
}

/* Where the tokens that may be drawn end. */
template <typename T> static __device__ place end_of(const row<T> &r, const dr_draw &draw) {
    place end = last_of(r, 0);
    if (draw.top_k > 0 && draw.top_k < r.count) end = find(r, true, (double)draw.top_k, false);
    if (draw.top_p < 1) {
        const place held = find(r, false, draw.top_p * weigh(r, end), false);
        if (held.found && !is_beyond(held, end)) end = held;
    }
    if (draw.min_p > 0 && r.weight(logit_of(end.rank)) < draw.min_p) end = last_of(r, draw.min_p);
    return end;
}

/* Writes the id of the last token of those up to a place: the thread in whose share of the ids it stands. */
template <typename T> static __device__ void write_last(const row<T> &r, const place &p, int32_t *id) {
    const int share = (r.count + THREADS - 1) / THREADS, begin = (int)threadIdx.x * share;
    const int end = begin + share < r.count ? begin + share : r.count;
    int own = 0;
    for (int i = begin; i < end; i++) own += rank_of(r.logit(i)) == p.rank;
    int before = (int)join_shares(r, own).before;
    for (int i = begin; i < end && before < p.ties; i++)
        if (rank_of(r.logit(i)) == p.rank && ++before == p.ties) *id = i;
}

/* Draws in the order of ids among those that weigh min_p at least. Shares of the ids are summed, then the share in which the
 * point falls is walked through. */
template <typename T> static __device__ void draw_by_id(const row<T> &r, const dr_draw &draw, int32_t *id) {
    const int share = (r.count + THREADS - 1) / THREADS, begin = (int)threadIdx.x * share;
    const int end = begin + share < r.count ? begin + share : r.count;
    double own = 0;
    for (int i = begin; i < end; i++) {
        const double weight = r.weight(r.logit(i));
        if (weight >= draw.min_p) own += weight;
    }
    const shares s = join_shares(r, own);
    const double target = draw.point * s.all;
    if (!(s.before <= target && s.before + own > target)) return;
    double passed = 0;
    for (int i = begin; i < end; i++) {
        const double weight = r.weight(r.logit(i));
        if (weight < draw.min_p || weight == 0) continue;
        passed += weight;
        *id = i; /* the last one of the share, where rounding leaves the point at its end */
        if (s.before + passed > target) return;
    }
}

/* The largest logit and its first place; NaN where there is one. */
typedef struct {
    float most;
    int first;
} largest;

static __device__ largest larger(const largest &a, const largest &b) {
    if (isnan(a.most) || isnan(b.most)) return isnan(a.most) ? a : b;
    return b.most > a.most || (b.most == a.most && b.first < a.first) ? b : a;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    choose(int64_t vocabulary, int count, bool wide, const T *logits, const dr_draw *draws, int32_t *ids) {
    __shared__ largest found[THREADS];
    __shared__ double values[THREADS], sums[(WARPS + 1) * BINS];
    dr_chain();
    const dr_draw draw = draws[blockIdx.x];
    row<T> r = {logits + (int64_t)blockIdx.x * vocabulary, count, wide, 0, draw.temperature, values, sums};
    int32_t *const id = ids + blockIdx.x;
    largest most = {-INFINITY, count};
    r.each([&](int i, float logit) { most = larger(most, {logit, i}); });
    most = dr_join_threads<THREADS>(most, found, larger);
    const bool is_finite = isfinite(most.most);
    if (threadIdx.x == 0) *id = is_finite ? most.first : -1; /* and where rounding leaves the point at the sum of all */
    if (!is_finite || draw.temperature == 0) return;
    __syncthreads();
    r.most = (double)most.most;
    if (draw.top_k == 0 && draw.top_p == 1) {
        draw_by_id(r, draw, id);
        return;
    }
    const place end = end_of(r, draw), drawn = find(r, false, draw.point * weigh(r, end), true);
    if (drawn.found && !is_beyond(drawn, end)) write_last(r, drawn, id);
}

dr_status dr_cuda_choose(dr_backend *backend, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                         const dr_draw *draws, int32_t *ids) {
    DR_NETWORK_ENTER(backend);
    DR_NETWORK_TYPE(backend, T,
                    return dr_launch_chained(gpu, "choose", choose<T>, {count}, THREADS, 0, vocabulary, (int)allowed,
                                             dr_can_be_wide(dr_wide<T>, vocabulary, logits), (const T *)logits, draws, ids))
}
