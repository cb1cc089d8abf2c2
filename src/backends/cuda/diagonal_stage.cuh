/* The diagonal scan A_t = alpha A_{t-1} + b key * key where the rows of a chunk are loaded: write keys B * key and queries
 * q / (A + ridge) are made in the tiles, and go through memory only where others read them: queries for the scan over chunks,
 * keys for a backward.
 *
 *     sums      A after each block of 16 rows that began at zero: sum of weight * key * key, a block a warp, two channels a
 * lane enter     A before the chunk, and so before its blocks: a thread a channel make      the rows of a block one after
 * another
 *
 * In the backward, A before each chunk is known. In the forward the chunks of a sequence make it for one another while they run
 * (dr_diagonal_chain_enter): each tells what it makes of A = 0, looks back for the last chunk before it that has A, and goes
 * from there through what the chunks between told, always in the same order: so the bits do not depend on who came first.
 * Thread blocks start in the order of their index, and a chunk waits for those of lower index only. */
#ifndef DR_CUDA_DIAGONAL_STAGE_CUH
#define DR_CUDA_DIAGONAL_STAGE_CUH

#include "backends/cuda/diagonal.cuh"
#include "backends/cuda/prepare_load.cuh"

/* In shared memory, until the tiles are made. */
typedef struct {
    float weight[64]; /* gain times the decay from after the row to the end of its block */
    float2 step[64];  /* alpha, gain */
    float product[4]; /* of the alphas of a block */
    float part[];     /* [4][width] A after a block from zero, then A before it */
} dr_diagonal_room;

static __host__ __device__ inline int dr_diagonal_room_bytes(int width) {
    return (int)sizeof(dr_diagonal_room) + 4 * width * (int)sizeof(float);
}

/* What the scan needs of row i = the thread; asked for before tiles are waited for. */
typedef struct {
    float log_decay, gain;
} dr_diagonal_row;

static __device__ inline dr_diagonal_row dr_diagonal_fetch(const dr_cuda_rows &rows, const dr_prepare_block &x) {
    const int i = (int)threadIdx.x;
    dr_diagonal_row row = {0, 0};
    if (i >= x.alive) return row;
    row.log_decay = dr_input_scalar(rows, dr_diagonal_decay_input(rows), x.place.first + i, 0, x.key_head);
    row.gain = dr_input_scalar(rows, dr_diagonal_gain_input(rows), x.place.first + i, 0, x.key_head);
    return row;
}

/* Rows' numbers to shared memory: of all threads, those of the first 64 rows. A barrier behind. */
static __device__ inline void dr_diagonal_rows_put(dr_diagonal_room &room, const dr_diagonal_row &row) {
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    const float alpha = expf(row.log_decay);
    float after, product;
    dr_diagonal_tail(alpha, after, product);
    room.weight[i] = row.gain * after;
    room.step[i] = make_float2(alpha, row.gain);
    if (i % 16 == 0) room.product[i / 16] = product;
}

/* A barrier before and behind. */
template <typename T> static __device__ inline void dr_diagonal_sums(dr_diagonal_room &room, const char *keys, int width) {
    const int block = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
#pragma unroll 1
    for (int channel = 2 * lane; channel < width; channel += 64) {
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float2 key = dr_diagonal_pair<T>(keys, block * 16 + i, channel);
            const float weight = room.weight[block * 16 + i];
            sum.x = fmaf(weight, key.x * key.x, sum.x);
            sum.y = fmaf(weight, key.y * key.y, sum.y);
        }
        *(float2 *)(room.part + block * width + channel) = sum;
    }
}

/* A after the chunk if it is zero before. */
static __device__ inline float dr_diagonal_end(const dr_diagonal_room &room, int width, int channel) {
    float a = room.part[channel];
#pragma unroll
    for (int b = 1; b < 4; b++) a = fmaf(room.product[b], a, room.part[b * width + channel]);
    return a;
}

/* From A before the chunk to A before its blocks. */
static __device__ inline void dr_diagonal_enter(dr_diagonal_room &room, int width, int channel, float a) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        float &part = room.part[b * width + channel];
        const float next = fmaf(room.product[b], a, part);
        part = a;
        a = next;
    }
}

/* A before the chunk from the chunks before it, and A after it for those behind. Of the value heads of a key head the first one
 * does so, the others wait for it. Barriers before and behind. */
static __device__ inline void dr_diagonal_chain_enter(const dr_cuda_chunk_plan &plan, const dr_cuda_diagonal_chain &chain,
                                                      const dr_prepare_block &x, int64_t first_slot, dr_diagonal_room &room) {
    const int64_t H = plan.key_heads, K = plan.rows.key_size, own = x.slot * H + x.key_head;
    const bool tells = x.head % plan.rows.group == 0, first = tells && x.slot == first_slot;
    unsigned *told = chain.told + x.key_head * plan.slots + x.slot;
    float *end = chain.end + own * K, *entry = chain.entry + own * K;
    const float product = room.product[0] * room.product[1] * (room.product[2] * room.product[3]);
    if (tells && !first) {
        for (int d = (int)threadIdx.x; d < K; d += PREPARE_THREADS) end[d] = dr_diagonal_end(room, plan.key_width, d);
        if (threadIdx.x == 0) chain.product[own] = product;
        __syncthreads();
        dr_diagonal_tell(told, DR_DIAGONAL_SUM);
    }
    const int back = first ? 0 : tells ? dr_diagonal_look(told, -1, x.slot - first_slot) : dr_diagonal_look(told + 1, -1, 1);
    const int64_t of_state = (x.place.sequence * H + x.key_head) * K;
    for (int d = (int)threadIdx.x; d < plan.key_width; d += PREPARE_THREADS) {
        float a = 0;
        if (d < K && !first) {
            a = __ldcg(entry - back * H * K + d);
#pragma unroll 4
            for (int64_t i = back; i > 0; i--) a = fmaf(__ldcg(chain.product + own - i * H), a, __ldcg(end - i * H * K + d));
        } else if (d < K && chain.initial) {
            a = chain.initial[of_state + d];
        }
        if (tells && d < K) {
            if (first) entry[d] = a;
            const float after = fmaf(product, a, dr_diagonal_end(room, plan.key_width, d));
            if (!x.place.last)
                entry[H * K + d] = after;
            else if (chain.final)
                chain.final[of_state + d] = after;
        }
        dr_diagonal_enter(room, plan.key_width, d, a);
    }
    __syncthreads();
    if (tells) dr_diagonal_tell(told, DR_DIAGONAL_WHOLE);
}

static __device__ inline float dr_diagonal_ridge(const dr_cuda_rows &rows, int head, int channel) {
    const dr_cuda_input &ridge = rows.input[DR_INPUT_RIDGE];
    return ridge.at && channel < rows.key_size ? ((const float *)ridge.at)[head * ridge.head + channel] : 1.0f;
}

/* Rows of a tile to what the scan makes, [tokens, H, K]; a barrier before. */
template <typename T>
static __device__ inline void dr_diagonal_keep(const dr_cuda_chunk_plan &plan, const dr_prepare_block &x, const char *tile,
                                               void *made) {
    for (int box = 0; box < x.boxes; box++) {
        dr_strided<T> to = dr_rows_made<T>(plan.rows, x, made);
        to.at += box * 64;
        dr_store_rows<T>(to, tile + box * 64 * 64 * (int)sizeof(T), plan.rows.key_size - box * 64, plan.rows.aligned);
    }
}

/* Write keys B * key from the key tile to the tile `writer`, which may be the same. A barrier before. */
template <typename T, bool tanh>
static __device__ inline void dr_diagonal_make_writes(const dr_cuda_rows &rows, const dr_prepare_block &x,
                                                      const dr_diagonal_room &room, int width, const char *keys, char *writer) {
    const int block = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.key_head);
    dr_map_squash squash = rows.squash;
    squash.tanh = tanh; /* known when this is compiled: no branch */
#pragma unroll 1
    for (int channel = 2 * lane; channel < width; channel += 64) {
        float2 a = *(const float2 *)(room.part + block * width + channel);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int row = block * 16 + i;
            const float2 step = room.step[row], key = dr_diagonal_pair<T>(keys, row, channel);
            float slope;
            a.x = dr_map_scan_step(a.x, step.x, step.y, key.x);
            a.y = dr_map_scan_step(a.y, step.x, step.y, key.y);
            const float2 b = make_float2(dr_map_squash_value(&squash, a.x, centre, &slope),
                                         dr_map_squash_value(&squash, a.y, centre, &slope));
            dr_diagonal_put_pair<T>(writer, row, channel, make_float2(b.x * key.x, b.y * key.y));
        }
    }
}

/* Queries q / (A + ridge) in place. A barrier before. */
template <typename T>
static __device__ inline void dr_diagonal_make_queries(const dr_cuda_rows &rows, const dr_prepare_block &x,
                                                       const dr_diagonal_room &room, int width, const char *keys, char *query) {
    const int block = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
#pragma unroll 1
    for (int channel = 2 * lane; channel < width; channel += 64) {
        float2 a = *(const float2 *)(room.part + block * width + channel);
        const float2 ridge = make_float2(dr_diagonal_ridge(rows, x.key_head, x.channel + channel),
                                         dr_diagonal_ridge(rows, x.key_head, x.channel + channel + 1));
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int row = block * 16 + i;
            const float2 step = room.step[row], key = dr_diagonal_pair<T>(keys, row, channel);
            const float2 asked = dr_diagonal_pair<T>(query, row, channel);
            a.x = dr_map_scan_step(a.x, step.x, step.y, key.x);
            a.y = dr_map_scan_step(a.y, step.x, step.y, key.y);
            dr_diagonal_put_pair<T>(
                query, row, channel,
                make_float2(asked.x * dr_reciprocal_near(a.x + ridge.x), asked.y * dr_reciprocal_near(a.y + ridge.y)));
        }
    }
}

/* Both, from A before the blocks. keys: see dr_diagonal_keys. */
template <typename T>
static __device__ inline void dr_diagonal_make(const dr_cuda_rows &rows, const dr_prepare_block &x,
                                               const dr_diagonal_room &room, int width, const char *keys, char *writer,
                                               char *query) {
    if (rows.query == DR_QUERY_RIDGE) dr_diagonal_make_queries<T>(rows, x, room, width, keys, query);
    if (rows.row[0].write != DR_WRITE_PRECONDITIONED) return;
    if (rows.squash.tanh)
        dr_diagonal_make_writes<T, true>(rows, x, room, width, keys, writer);
    else
        dr_diagonal_make_writes<T, false>(rows, x, room, width, keys, writer);
}

/* The tile where the keys stand: that of the read keys where the row reads them, for then they go nowhere else. */
static __device__ inline char *dr_diagonal_keys(const dr_cuda_rows &rows, char *writer, char *reader) {
    return rows.row[0].write == DR_WRITE_PRECONDITIONED && rows.row[0].read == DR_READ_KEY ? reader : writer;
}

/* All of it in a forward: the tiles' copies are there and a barrier is passed; barriers behind. */
template <typename T>
static __device__ inline void dr_diagonal_stage(const dr_cuda_chunk_plan &plan, const dr_cuda_chunk_tensors &tensors,
                                                const dr_prepare_block &x, dr_diagonal_room &room, char *writer, char *reader,
                                                char *query) {
    const char *keys = dr_diagonal_keys(plan.rows, writer, reader);
    dr_diagonal_sums<T>(room, keys, plan.key_width);
    __syncthreads();
    dr_diagonal_chain_enter(plan, tensors.scan, x, dr_sequence_slot(plan, tensors.cu, x.place.sequence), room);
    dr_diagonal_make<T>(plan.rows, x, room, plan.key_width, keys, writer, query);
    __syncthreads();
    if (x.head % plan.rows.group != 0) return;
    if (plan.rows.squashed) dr_diagonal_keep<T>(plan, x, writer, plan.rows.squashed);
    if (plan.rows.ridge_query) dr_diagonal_keep<T>(plan, x, query, plan.rows.ridge_query);
}

#endif
