/* A saved state is a matrix of each head, padded and turned or not (engines.h); a state is [HV, K, V], or [HV, V, K]. */
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/forms/saved.h"

enum { THREADS = 256 };

typedef struct {
    dr_cuda_saved_states saved;
    dr_cuda_layout layout;
    const int32_t *row, *to; /* of checkpoints; NULL: one state, of `slot` */
    int64_t slot;
    int64_t heads, K, V;
    bool value_first;
} reading;

static __device__ inline int64_t sequence_of(const dr_cuda_layout &layout, int64_t row) {
    int64_t low = 0, high = layout.sequences - 1;
    if (!layout.offsets) return row / layout.tokens;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (layout.offsets[middle] > row)
            high = middle - 1;
        else
            low = middle;
    }
    return low;
}

static __device__ inline int64_t slot_of(const reading &r, int64_t checkpoint) {
    if (!r.row) return r.slot;
    const int64_t row = r.row[checkpoint], sequence = sequence_of(r.layout, row), begin = sequence_begin(r.layout, sequence);
    const int64_t first = r.saved.chunks ? sequence * r.saved.chunks : begin / r.saved.chunk + sequence;
    return first + (row - begin) / r.saved.chunk;
}

static __global__ void __launch_bounds__(THREADS) read_states(const __grid_constant__ reading r, int64_t blocks, float *S) {
    const int64_t i = blockIdx.x % blocks * THREADS + threadIdx.x, checkpoint = blockIdx.x / blocks, head = i / (r.K * r.V);
    const int64_t to = r.to ? r.to[checkpoint] : 0, within = i % (r.K * r.V);
    if (head >= r.heads || to < 0) return;
    const int64_t k = r.value_first ? within % r.K : within / r.V, v = r.value_first ? within / r.K : within % r.V;
    S[to * r.heads * r.K * r.V + i] =
        r.saved.S[slot_of(r, checkpoint) * r.saved.slot + head * r.saved.head + k * r.saved.key + v * r.saved.value];
}

static __global__ void __launch_bounds__(THREADS) read_scans(const __grid_constant__ reading r, int64_t blocks, float *A) {
    const int64_t i = blockIdx.x % blocks * THREADS + threadIdx.x, checkpoint = blockIdx.x / blocks;
    const int64_t to = r.to ? r.to[checkpoint] : 0;
    if (i < r.saved.scan_slot && to >= 0)
        A[to * r.saved.scan_slot + i] = r.saved.A[slot_of(r, checkpoint) * r.saved.scan_slot + i];
}

static int64_t blocks_of(int64_t count) {
    return (count + THREADS - 1) / THREADS;
}

static dr_status read(const reading &r, int64_t count, const dr_mutable_states *states, dr_cuda_stream stream) {
    const int64_t state = blocks_of(r.heads * r.K * r.V), scan = blocks_of(r.saved.scan_slot);
    if (states->at[DR_STATE_S])
        DR_TRY(dr_cuda_launch("read_states", read_states, {count, state}, THREADS, 0, stream, r, state,
                              (float *)states->at[DR_STATE_S]));
    if (states->at[DR_STATE_A] && r.saved.A)
        DR_TRY(dr_cuda_launch("read_scans", read_scans, {count, scan}, THREADS, 0, stream, r, scan,
                              (float *)states->at[DR_STATE_A]));
    return DR_OK;
}

static reading reading_of(const dr_cuda_saved_states *saved, const dr_recurrence *recurrence, bool value_first) {
    reading r = {};
    r.saved = *saved;
    r.heads = recurrence->value_heads, r.K = recurrence->key_size, r.V = recurrence->value_size;
    r.value_first = value_first;
    return r;
}

dr_status dr_cuda_read_saved(const dr_cuda_saved_states *saved, const dr_recurrence *recurrence, bool value_first, int64_t slot,
                             const dr_mutable_states *states, dr_cuda_stream stream) {
    reading r = reading_of(saved, recurrence, value_first);
    r.slot = slot;
    return read(r, 1, states, stream);
}

dr_status dr_cuda_read_checkpoints(const dr_cuda_saved_states *saved, const dr_recurrence *recurrence, bool value_first,
                                   const dr_cuda_layout *layout, const dr_slots *slots, const dr_mutable_states *pool,
                                   dr_cuda_stream stream) {
    reading r = reading_of(saved, recurrence, value_first);
    r.layout = *layout;
    r.row = slots->row, r.to = slots->slot;
    return read(r, slots->checkpoints, pool, stream);
}
