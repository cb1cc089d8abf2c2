/* States on their way between a caller's layout or pool and the dense ones that the engines take. */
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/forms/tensors.h"

enum { TILE = 32, DEEP = 8, THREADS = TILE * DEEP };

/* A tile of a head's matrix passes through shared memory, so that reading and writing both go along rows. */
static __global__ void __launch_bounds__(THREADS)
    move_states(const __grid_constant__ dr_cuda_state_moves m, const float *from, float *to) {
    __shared__ float tile[TILE][TILE + 1];
    const int across = (m.columns + TILE - 1) / TILE, down = (m.rows + TILE - 1) / TILE;
    const int column = (int)(blockIdx.x % across) * TILE, row = (int)(blockIdx.x / across % down) * TILE;
    const int64_t head = blockIdx.x / across / down % m.heads, i = blockIdx.x / across / down / m.heads;
    const int64_t reads = m.reads ? m.reads[i] : i + m.read_first, writes = m.writes ? m.writes[i] : i + m.write_first;
    const int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    if (writes < 0 || (m.only && m.only[i / m.per_sequence] < 0) || (reads < 0 && m.keep)) return;
    const int64_t size = (int64_t)m.rows * m.columns;
    const float *source = from + (reads * m.heads + head) * size;
    float *target = to + (writes * m.heads + head) * size;
    for (int r = y; r < TILE; r += DEEP) {
        const bool inside = row + r < m.rows && column + x < m.columns;
        tile[r][x] = inside && reads >= 0 ? source[(int64_t)(row + r) * m.columns + column + x] : 0;
    }
    __syncthreads();
    for (int r = y; r < TILE; r += DEEP) {
        if (m.turned && column + r < m.columns && row + x < m.rows)
            target[(int64_t)(column + r) * m.rows + row + x] = tile[x][r];
        if (!m.turned && row + r < m.rows && column + x < m.columns)
            target[(int64_t)(row + r) * m.columns + column + x] = tile[r][x];
    }
}

dr_status dr_cuda_move_states(const dr_cuda_state_moves *moves, const float *from, float *to, dr_cuda_stream stream) {
    const int64_t sizes[] = {moves->count, moves->heads, (moves->rows + TILE - 1) / TILE, (moves->columns + TILE - 1) / TILE};
    return dr_cuda_launch("move_states", move_states, sizes, THREADS, 0, stream, *moves, from, to);
}

static __global__ void __launch_bounds__(THREADS) compact_slots(const int32_t *from, const int32_t *to, int64_t sequences,
                                                                int64_t tokens, int32_t *compact_from, int32_t *compact_to) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < sequences) compact_from[i] = from[i] < 0 ? -1 : (int32_t)i;
    if (to && i < sequences * tokens) compact_to[i] = to[i] < 0 ? -1 : (int32_t)(sequences + i);
}

dr_status dr_cuda_compact_slots(const int32_t *from, const int32_t *to, int64_t sequences, int64_t tokens,
                                int32_t *compact_from, int32_t *compact_to, dr_cuda_stream stream) {
    return dr_cuda_launch("compact_slots", compact_slots, {(sequences * tokens + THREADS - 1) / THREADS}, THREADS, 0, stream,
                          from, to, sequences, tokens, compact_from, compact_to);
}
