/* The diagonal scan's backward where all that comes of it are write keys B * key: one pass over keys and gradients.
 *
 *     B, slope    of every token from A before the chunk          s_t = slope key d_write / (A_t + eps)
 *     chain       the gradient of A from the chunks behind        d_t = s_t + alpha_{t+1} d_{t+1}
 *     gradients   d_key += B d_write + 2 b key d_t       d_b = sum key^2 d_t       d_alpha = sum A_{t-1} d_t
 *
 * A thread block takes a chunk of a key head, a warp a block of 16 rows of it and 64 channels, a lane two of these. Keys,
 * d_write and d_key come as tiles by asynchronous copies, all asked for at once; A takes the place of d_write, d_key's result
 * that of the keys. Chunks wait for one another as those of the forward do (diagonal_stage.cuh), the last of a sequence first.
 */
#include "backends/cuda/diagonal.cuh"

enum { ROWS = 64, BLOCK_ROWS = 16, BLOCKS = ROWS / BLOCK_ROWS };

/* Shared memory. */
typedef struct {
    float4 row[ROWS];         /* alpha, gain, times w that settle its gradient; weight of the row in A after its block */
    float product[BLOCKS];    /* of the alphas of a block */
    float centre[BLOCKS * 4]; /* of every warp */
    float sums[ROWS][4][2];   /* of a row and 64 channels: for the gain, for alpha */
    float part[];             /* [2][BLOCKS][width]: A after a block from zero, d before a block from zero */
} back_room;

typedef struct {
    dr_cuda_chunk_plan plan;
    const int64_t *cu;
    const float *entry;           /* A before each chunk */
    dr_cuda_diagonal_chain chain; /* of d; initial is that of the final A, and final of the initial one */
    dr_cuda_diagonal_gradients gradients;
} back_call;

/* A tile of the keys, of d_write and of d_key for every 64 channels, then what is above. */
static __host__ __device__ inline int room_bytes(int width, int element) {
    return (int)sizeof(back_room) + (2 * BLOCKS + 2 * ROWS) * width * (int)sizeof(float) + ROWS * width * element;
}

/* A chunk of the sequence, counted from its last one. */
static __device__ inline int64_t find_slot(const back_call &call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const int64_t n = dr_place_divide(blockIdx.x, plan.key_heads);
    if (!plan.length) return plan.slots - 1 - n;
    const int64_t chunks = dr_place_divide(plan.length + plan.chunk - 1, plan.chunk), last = dr_place_divide(n, plan.sequences);
    return (n - last * plan.sequences + 1) * chunks - 1 - last;
}

/* The numbers of row i = the thread, of the first two warps. */
static __device__ inline void put_row(const back_call &call, const dr_chunk_place &place, int head, back_room &room) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int i = (int)threadIdx.x;
    if (i >= ROWS) return;
    const bool there = i < place.tokens;
    const float *settle = call.gradients.settle;
    const float alpha = there ? dr_diagonal_alpha(rows, place.first + i, head) : 1;
    const float gain = there ? dr_diagonal_gain(rows, place.first + i, head) : 0;
    const float more = there && settle ? settle[(place.first + i) * rows.key_heads + head] : 0;
    float after, product;
    dr_diagonal_tail(alpha, after, product);
    room.row[i] = make_float4(alpha, gain, more, gain * after);
    if (i % BLOCK_ROWS == 0) room.product[i / BLOCK_ROWS] = product;
}

/* d behind the chunk, two channels; told is the chunk's own state. */
static __device__ inline float2 chain_exit(const back_call &call, const unsigned *told, int64_t behind, int64_t own,
                                           int channel, int64_t state) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_cuda_diagonal_chain &chain = call.chain;
    const int64_t K = rows.key_size, H = rows.key_heads;
    const int left = rows.key_size - channel;
    float d[2] = {0, 0};
    if (behind == 0) {
        if (chain.initial) dr_load_lane<float, 2>(chain.initial + state, left, rows.aligned, d);
        return make_float2(d[0], d[1]);
    }
    const int between = dr_diagonal_look(told, 1, behind);
    const float *end = chain.end + (own + between * H) * K + channel, *product = chain.product + own + between * H;
    const float *exit = chain.entry + (end - chain.end);
    if (left > 0) d[0] = __ldcg(exit);
    if (left > 1) d[1] = __ldcg(exit + 1);
#pragma unroll 4
    for (int i = between; i > 0; i--) {
        const float p = __ldcg(product);
        d[0] = fmaf(p, d[0], left > 0 ? __ldcg(end) : 0);
        d[1] = fmaf(p, d[1], left > 1 ? __ldcg(end + 1) : 0);
        end -= H * K, product -= H;
    }
    return make_float2(d[0], d[1]);
}

/* The warp's tiles. */
typedef struct {
    char *key, *d_write, *d_key;
} back_tiles;

/* From A before the block: A before every row takes the place of d_write, d_key += B d_write, source: s. Returns the channels'
 * part of the centre's gradient. */
template <typename T, bool tanh>
static __device__ inline float take_rows(const dr_cuda_rows &rows, const back_room &room, float centre, int block, int left,
                                         const back_tiles &tiles, float2 a, float2 (&source)[BLOCK_ROWS]) {
    const int column = (int)(threadIdx.x % 32) * 2;
    dr_map_squash squash = rows.squash;
    squash.tanh = tanh; /* known when this is compiled: no branch */
    float d_centre = 0;
#pragma unroll
    for (int i = 0; i < BLOCK_ROWS; i++) {
        const int at = block * BLOCK_ROWS + i;
        const float4 row = room.row[at];
        const float2 k = dr_diagonal_pair<T>(tiles.key, at, column);
        float2 &place = dr_diagonal_floats(tiles.d_write, at, column), &d_key = dr_diagonal_floats(tiles.d_key, at, column);
        const float2 d_write = place;
        place = a;
        a.x = dr_map_scan_step(a.x, row.x, row.y, k.x);
        a.y = dr_map_scan_step(a.y, row.x, row.y, k.y);
        float2 slope;
        const float2 b = make_float2(dr_map_squash_value(&squash, a.x, centre, &slope.x),
                                     dr_map_squash_value(&squash, a.y, centre, &slope.y));
        const float2 d = make_float2(fmaf(row.z, b.x * k.x, d_write.x), fmaf(row.z, b.y * k.y, d_write.y));
        const float2 position = make_float2(slope.x * (k.x * d.x), slope.y * (k.y * d.y));
        d_centre -= (left > 0 ? position.x : 0) + (left > 1 ? position.y : 0);
        d_key = make_float2(fmaf(b.x, d.x, d_key.x), fmaf(b.y, d.y, d_key.y));
        source[i] =
            make_float2(position.x * dr_reciprocal_near(a.x + squash.eps), position.y * dr_reciprocal_near(a.y + squash.eps));
    }
    return d_centre;
}

/* From d behind the block: the keys' gradients take the place of the keys, sums of rows go to shared memory. */
template <typename T>
static __device__ inline void give_rows(back_room &room, int block, int box, const back_tiles &tiles, float2 d,
                                        const float2 (&source)[BLOCK_ROWS]) {
    const int lane = (int)(threadIdx.x % 32), column = 2 * lane;
#pragma unroll
    for (int half = BLOCK_ROWS - 8; half >= 0; half -= 8) {
        float for_gain[8], for_alpha[8];
#pragma unroll
        for (int j = 7; j >= 0; j--) {
            const int at = block * BLOCK_ROWS + half + j;
            const float4 row = room.row[at];
            const float2 k = dr_diagonal_pair<T>(tiles.key, at, column), a = dr_diagonal_floats(tiles.d_write, at, column);
            const float2 d_key = dr_diagonal_floats(tiles.d_key, at, column);
            d = make_float2(d.x + source[half + j].x, d.y + source[half + j].y);
            for_gain[j] = fmaf(k.x * k.x, d.x, k.y * k.y * d.y);
            for_alpha[j] = fmaf(a.x, d.x, a.y * d.y);
            const float twice = 2 * row.y;
            dr_diagonal_put_pair<T>(tiles.key, at, column,
                                    make_float2(fmaf(twice * k.x, d.x, d_key.x), fmaf(twice * k.y, d.y, d_key.y)));
            d = make_float2(row.x * d.x, row.x * d.y);
        }
        dr_warp_sums<8>(for_gain);
        dr_warp_sums<8>(for_alpha);
        float *sums = room.sums[block * BLOCK_ROWS + half + lane / 4][box];
        if (lane % 4 == 0) sums[0] = for_gain[0], sums[1] = for_alpha[0];
    }
}

/* The query's gradient, where row_gradients has left it as floats. */
template <typename T>
static __device__ inline void give_queries(const back_call &call, const dr_chunk_place &place, int head, int block,
                                           int channel) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_cuda_input &input = rows.input[DR_INPUT_QUERY];
    if (!input.gradient || !call.gradients.query) return;
    const int left = rows.key_size - channel;
#pragma unroll 4
    for (int i = block * BLOCK_ROWS; i < (block + 1) * BLOCK_ROWS && i < place.tokens; i++) {
        const int64_t token = place.first + i;
        float d[2];
        dr_load_lane<float, 2>(call.gradients.query + (token * rows.key_heads + head) * rows.key_size + channel, left,
                               rows.aligned, d);
        dr_store_lane<T, 2>((T *)input.gradient + dr_input_index(input, token, 0, head) + channel, left, rows.aligned, d);
    }
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(128 * boxes, 4 / boxes) scan_back(const __grid_constant__ back_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int width = 64 * boxes, floats = ROWS * 64 * (int)sizeof(float), narrow = ROWS * 64 * (int)sizeof(T);
    back_room &room = *(back_room *)(shared + boxes * (narrow + 2 * floats));
    float *ends = room.part, *d_ends = ends + BLOCKS * width;
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int64_t slot = find_slot(call), H = rows.key_heads, K = rows.key_size;
    const int head = (int)(blockIdx.x % (unsigned)rows.key_heads), warp = (int)(threadIdx.x / 32),
              lane = (int)(threadIdx.x % 32);
    const int block = warp % BLOCKS, box = warp / BLOCKS, channel = box * 64 + 2 * lane, left = rows.key_size - channel;
    const int64_t own = slot * H + head;
    const dr_chunk_place place = dr_find_chunk(plan, call.cu, slot);
    if (place.tokens <= 0) {
        if (threadIdx.x == 0) call.gradients.centre[own] = 0;
        return;
    }
    const back_tiles tiles = {shared + boxes * 2 * floats + box * narrow, shared + box * floats,
                              shared + (boxes + box) * floats};
    const dr_cuda_input &input = rows.input[DR_INPUT_KEY];
    const int64_t key_at = dr_input_index(input, place.first, 0, head) + box * 64;
    const int64_t made_at = (place.first * H + head) * K + box * 64;
    const dr_strided<T> keys = {(const T *)input.at + key_at, input.token, place.tokens};
    const dr_strided<float> d_writes = {call.gradients.squashed + made_at, H * K, place.tokens},
                            d_keys = {call.gradients.key + made_at, H * K, place.tokens};
    dr_copy_rows<T>(tiles.key, ROWS, 1, rows.key_size - box * 64, rows.aligned, ROWS, 0, 1, keys);
    dr_copy_commit();
    dr_copy_rows<float>(tiles.d_write, ROWS, 1, rows.key_size - box * 64, rows.aligned, ROWS, 0, 1, d_writes);
    dr_copy_rows<float>(tiles.d_key, ROWS, 1, rows.key_size - box * 64, rows.aligned, ROWS, 0, 1, d_keys);
    dr_copy_commit();
    float entry[2] = {0, 0};
    dr_load_lane<float, 2>(call.entry + own * K + channel, left, rows.aligned, entry);
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, head);
    put_row(call, place, head, room);
    dr_copy_wait<1>();
    __syncthreads();

    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = block * BLOCK_ROWS; i < (block + 1) * BLOCK_ROWS; i++) {
        const float2 k = dr_diagonal_pair<T>(tiles.key, i, 2 * lane);
        sum.x = fmaf(room.row[i].w, k.x * k.x, sum.x);
        sum.y = fmaf(room.row[i].w, k.y * k.y, sum.y);
    }
    *(float2 *)(ends + block * width + channel) = sum;
    dr_copy_wait<0>();
    __syncthreads();
    float2 a = make_float2(entry[0], entry[1]), source[BLOCK_ROWS], d = make_float2(0, 0);
    for (int b = 0; b < block; b++) a = dr_diagonal_over(room.product[b], a, ends + b * width + channel);
    float d_centre = rows.squash.tanh ? take_rows<T, true>(rows, room, centre, block, left, tiles, a, source)
                                      : take_rows<T, false>(rows, room, centre, block, left, tiles, a, source);
#pragma unroll
    for (int i = BLOCK_ROWS - 1; i >= 0; i--) {
        const float alpha = room.row[block * BLOCK_ROWS + i].x;
        d = make_float2(alpha * (d.x + source[i].x), alpha * (d.y + source[i].y));
    }
    *(float2 *)(d_ends + block * width + channel) = d;
    d_centre = dr_warp_sum(d_centre);
    if (lane == 0) room.centre[warp] = d_centre;
    __syncthreads();

    /* the chain: the warps of the first rows tell, all of them look */
    const float product = room.product[0] * room.product[1] * (room.product[2] * room.product[3]);
    const int64_t index = slot - dr_sequence_slot(plan, call.cu, place.sequence);
    const int64_t behind = dr_sequence_chunks(plan, call.cu, place.sequence) - 1 - index;
    const int64_t state = (place.sequence * H + head) * K + channel;
    unsigned *told = call.chain.told + head * plan.slots + slot;
    float2 end = make_float2(0, 0);
#pragma unroll
    for (int b = BLOCKS - 1; b >= 0; b--) end = dr_diagonal_over(room.product[b], end, d_ends + b * width + channel);
    const float ends_at[2] = {end.x, end.y};
    if (behind > 0) {
        if (block == 0) dr_store_lane<float, 2>(call.chain.end + own * K + channel, left, rows.aligned, ends_at);
        if (threadIdx.x == 0) call.chain.product[own] = product;
        __syncthreads();
        dr_diagonal_tell(told, DR_DIAGONAL_SUM);
    }
    d = chain_exit(call, told, behind, own, channel, state);
    if (block == 0) {
        const float all[2] = {fmaf(product, d.x, end.x), fmaf(product, d.y, end.y)};
        if (index > 0)
            dr_store_lane<float, 2>(call.chain.entry + (own - H) * K + channel, left, rows.aligned, all);
        else if (call.chain.final)
            dr_store_lane<float, 2>(call.chain.final + state, left, rows.aligned, all);
    }
    __syncthreads();
    dr_diagonal_tell(told, DR_DIAGONAL_WHOLE);

    for (int b = BLOCKS - 1; b > block; b--) d = dr_diagonal_over(room.product[b], d, d_ends + b * width + channel);
    give_rows<T>(room, block, box, tiles, d, source);
    give_queries<T>(call, place, head, block, channel);
    __syncthreads();
    if (input.gradient) {
        const dr_strided<T> to = {(T *)input.gradient + key_at, input.token, place.tokens};
        dr_store_rows<T>(to, tiles.key, rows.key_size - box * 64, rows.aligned);
    }
    if (threadIdx.x < (unsigned)place.tokens) {
        const int i = (int)threadIdx.x;
        float d_gain = 0, d_alpha = 0;
#pragma unroll
        for (int box = 0; box < boxes; box++) d_gain += room.sums[i][box][0], d_alpha += room.sums[i][box][1];
        dr_diagonal_put_scalars(rows, place.first + i, head, room.row[i].x, d_gain, d_alpha);
    }
    if (threadIdx.x == 0) {
        float all = 0;
        for (int w = 0; w < BLOCKS * boxes; w++) all += room.centre[w];
        call.gradients.centre[own] = all;
    }
}

template <typename T, int boxes> static dr_status launch(const back_call *call, cudaStream_t stream) {
    const int64_t tasks = call->plan.slots * call->plan.key_heads;
    return dr_diagonal_launch("scan_back", scan_back<T, boxes>, tasks, 128 * boxes, room_bytes(64 * boxes, sizeof(T)), stream,
                              *call);
}

dr_status dr_cuda_diagonal_back_chain(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                      const dr_cuda_diagonal_gradients *gradients, const float *d_final, float *d_initial,
                                      cudaStream_t stream) {
    const dr_cuda_diagonal_chain back = {gradients->end, chain->product, gradients->exit, chain->told, d_final, d_initial};
    const back_call call = {*plan, cu, chain->entry, back, *gradients};
    DR_TRY(dr_cuda_diagonal_begin(plan, cu, &back, stream));
    DR_CUDA_CHUNK_STORAGE(plan->storage, T, {
        return plan->key_width == 64    ? launch<T, 1>(&call, stream)
               : plan->key_width == 128 ? launch<T, 2>(&call, stream)
                                        : launch<T, 4>(&call, stream);
    });
    return DR_OK;
}
