/* The diagonal scan's backward where all that comes of it are write keys B * key:
 *
 *     B, slope    of every token from A before the chunk          s_t = slope key d_write / (A_t + eps)
 *     chain       the gradient of A from the chunks behind        d_t = s_t + alpha_{t+1} d_{t+1}
 *     gradients   d_key += B d_write + 2 b key d_t       d_b = sum key^2 d_t       d_alpha = sum A_{t-1} d_t
 *
 * in one pass over the chunks from the last one on (diagonal_chain.cuh). Keys, d_write and d_key come as tiles by asynchronous
 * copies, all asked for at once; A takes the place of d_write, the keys' gradient that of the keys. */
#include "backends/cuda/diagonal/diagonal_chain.cuh"

typedef struct {
    dr_cuda_chunk_plan plan;
    const int64_t *cu;
    const float *entry;           /* A before each chunk */
    dr_cuda_diagonal_chain chain; /* of d; initial is that of the final A, and final of the initial one */
    dr_cuda_diagonal_gradients gradients;
} back_call;

/* A tile of the keys, of d_write and of d_key for every 64 channels, then what is above. */
static __host__ __device__ inline int room_bytes(int width, int element) {
    return (int)sizeof(chain_room) + (2 * CHAIN_BLOCKS + 2 * CHAIN_ROWS) * width * (int)sizeof(float) +
           CHAIN_ROWS * width * element;
}

/* The warp's tiles. */
typedef struct {
    char *key, *d_write, *d_key;
} back_tiles;

/* From A before the block: A before every row takes the place of d_write, d_key += B d_write, source: s. Returns the channels'
 * part of the centre's gradient. */
template <typename T, bool tanh>
static __device__ inline float take_rows(const dr_cuda_rows &rows, const chain_place &x, const chain_room &room,
                                         const back_tiles &tiles, float2 a, float2 (&source)[CHAIN_BLOCK]) {
    const int column = (int)(threadIdx.x % 32) * 2;
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.head);
    dr_map_squash squash = rows.squash;
    squash.tanh = tanh; /* known when this is compiled: no branch */
    float d_centre = 0;
    DR_UNROLL (i, CHAIN_BLOCK) {
        const int at = x.block * CHAIN_BLOCK + i;
        const float4 row = room.row[at];
        const float2 k = chain_pair<T>(tiles.key, at, column);
        float2 &place = chain_floats(tiles.d_write, at, column), &d_key = chain_floats(tiles.d_key, at, column);
        const float2 d_write = place;
        place = a;
        a.x = dr_map_scan_step(a.x, row.x, row.y, k.x);
        a.y = dr_map_scan_step(a.y, row.x, row.y, k.y);
        float2 slope;
        const float2 b = make_float2(dr_map_squash_value(&squash, a.x, centre, &slope.x),
                                     dr_map_squash_value(&squash, a.y, centre, &slope.y));
        const float2 w = make_float2(b.x * k.x, b.y * k.y);
        const float dot = room.dot[at];
        const float2 d = make_float2(fmaf(row.z, w.x, fmaf(dot, k.x, d_write.x)), fmaf(row.z, w.y, fmaf(dot, k.y, d_write.y)));
        const float2 position = make_float2(slope.x * (k.x * d.x), slope.y * (k.y * d.y));
        d_centre -= (x.left > 0 ? position.x : 0) + (x.left > 1 ? position.y : 0);
        d_key = make_float2(fmaf(b.x, d.x, fmaf(dot, w.x, d_key.x)), fmaf(b.y, d.y, fmaf(dot, w.y, d_key.y)));
        source[i] =
            make_float2(position.x * dr_reciprocal_near(a.x + squash.eps), position.y * dr_reciprocal_near(a.y + squash.eps));
    }
    return d_centre;
}

/* From d behind the block: the keys' gradients take the place of the keys, sums of rows go to shared memory. */
template <typename T>
static __device__ inline void give_rows(chain_room &room, const chain_place &x, const back_tiles &tiles, float2 d,
                                        const float2 (&source)[CHAIN_BLOCK]) {
    const int lane = (int)(threadIdx.x % 32), column = 2 * lane;
#pragma unroll
    for (int half = CHAIN_BLOCK - 8; half >= 0; half -= 8) {
        float for_gain[8], for_alpha[8];
#pragma unroll
        for (int j = 7; j >= 0; j--) {
            const int at = x.block * CHAIN_BLOCK + half + j;
            const float4 row = room.row[at];
            const float2 k = chain_pair<T>(tiles.key, at, column), a = chain_floats(tiles.d_write, at, column);
            const float2 d_key = chain_floats(tiles.d_key, at, column);
            d = make_float2(d.x + source[half + j].x, d.y + source[half + j].y);
            for_gain[j] = fmaf(k.x * k.x, d.x, k.y * k.y * d.y);
            for_alpha[j] = fmaf(a.x, d.x, a.y * d.y);
            const float twice = 2 * row.y;
            chain_put_pair<T>(tiles.key, at, column,
                              make_float2(fmaf(twice * k.x, d.x, d_key.x), fmaf(twice * k.y, d.y, d_key.y)));
            d = make_float2(row.x * d.x, row.x * d.y);
        }
        dr_warp_sums<8>(for_gain);
        dr_warp_sums<8>(for_alpha);
        float *sums = room.sums[x.block * CHAIN_BLOCK + half + lane / 4][x.box];
        if (lane % 4 == 0) sums[0] = for_gain[0], sums[1] = for_alpha[0];
    }
}

/* The query's gradient, where row_gradients has left it as floats. */
template <typename T> static __device__ inline void give_queries(const back_call &call, const chain_place &x) {
    const dr_cuda_rows &rows = call.plan.rows;
    const dr_cuda_input &input = rows.input[DR_INPUT_QUERY];
    if (!input.gradient || !call.gradients.query) return;
#pragma unroll 4
    for (int i = x.block * CHAIN_BLOCK; i < (x.block + 1) * CHAIN_BLOCK && i < x.place.tokens; i++) {
        const int64_t token = x.place.first + i;
        float d[2];
        dr_load_lane<float, 2>(call.gradients.query + (token * rows.key_heads + x.head) * rows.key_size + x.channel, x.left,
                               rows.aligned, d);
        dr_store_lane<T, 2>((T *)input.gradient + dr_input_index(input, token, 0, x.head) + x.channel, x.left, rows.aligned, d);
    }
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(128 * boxes, 4 / boxes) scan_back(const __grid_constant__ back_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int width = 64 * boxes, floats = CHAIN_ROWS * 64 * (int)sizeof(float), narrow = CHAIN_ROWS * 64 * (int)sizeof(T);
    const dr_cuda_rows &rows = call.plan.rows;
    chain_room &room = *(chain_room *)(shared + boxes * (narrow + 2 * floats));
    const chain_place x = chain_find<1>(call.plan, call.cu);
    if (x.place.tokens <= 0) {
        if (threadIdx.x == 0) call.gradients.centre[x.own] = 0;
        return;
    }
    float *parts = room.part + x.channel, *d_parts = parts + CHAIN_BLOCKS * width;
    const back_tiles tiles = {shared + boxes * 2 * floats + x.box * narrow, shared + x.box * floats,
                              shared + (boxes + x.box) * floats};
    const int64_t H = rows.key_heads, K = rows.key_size;
    const dr_cuda_input &input = rows.input[DR_INPUT_KEY];
    const int64_t key_at = dr_input_index(input, x.place.first, 0, x.head) + x.box * 64;
    const int64_t made_at = (x.place.first * H + x.head) * K + x.box * 64;
    const int size = rows.key_size - x.box * 64;
    const dr_strided<T> keys = {(const T *)input.at + key_at, input.token, x.place.tokens};
    const dr_strided<float> d_writes = {call.gradients.squashed + made_at, H * K, x.place.tokens},
                            d_keys = {call.gradients.key + made_at, H * K, x.place.tokens};
    dr_copy_rows<T>(tiles.key, CHAIN_ROWS, 1, size, rows.aligned, CHAIN_ROWS, 0, 1, keys);
    dr_copy_commit();
    dr_copy_rows<float>(tiles.d_write, CHAIN_ROWS, 1, size, rows.aligned, CHAIN_ROWS, 0, 1, d_writes);
    dr_copy_rows<float>(tiles.d_key, CHAIN_ROWS, 1, size, rows.aligned, CHAIN_ROWS, 0, 1, d_keys);
    dr_copy_commit();
    float2 a = chain_load(rows, call.entry + x.own * K + x.channel, x.left), source[CHAIN_BLOCK], d = make_float2(0, 0);
    chain_put_row(rows, x, call.gradients.settle, room);
    if (threadIdx.x < CHAIN_ROWS)
        room.dot[threadIdx.x] = call.gradients.dot && threadIdx.x < (unsigned)x.place.tokens
                                    ? call.gradients.dot[(x.place.first + threadIdx.x) * H + x.head]
                                    : 0;
    dr_copy_wait<1>();
    __syncthreads();
    *(float2 *)(parts + x.block * width) = chain_sum<T>(room, tiles.key, x.block, x.channel % 64);
    dr_copy_wait<0>();
    __syncthreads();
    for (int b = 0; b < x.block; b++) a = chain_over(room.product[b], a, parts + b * width);
    float d_centre = rows.squash.tanh ? take_rows<T, true>(rows, x, room, tiles, a, source)
                                      : take_rows<T, false>(rows, x, room, tiles, a, source);
#pragma unroll
    for (int i = CHAIN_BLOCK - 1; i >= 0; i--) {
        const float alpha = room.row[x.block * CHAIN_BLOCK + i].x;
        d = make_float2(alpha * (d.x + source[i].x), alpha * (d.y + source[i].y));
    }
    *(float2 *)(d_parts + x.block * width) = d;
    d_centre = dr_warp_sum(d_centre);
    if (threadIdx.x % 32 == 0) room.centre[x.warp] = d_centre;
    __syncthreads();

    float2 end = make_float2(0, 0);
#pragma unroll
    for (int b = CHAIN_BLOCKS - 1; b >= 0; b--) end = chain_over(room.product[b], end, d_parts + b * width);
    const float product = room.product[0] * room.product[1] * (room.product[2] * room.product[3]);
    d = chain_pass<1>(rows, call.chain, x, product, end);
    for (int b = CHAIN_BLOCKS - 1; b > x.block; b--) d = chain_over(room.product[b], d, d_parts + b * width);
    give_rows<T>(room, x, tiles, d, source);
    give_queries<T>(call, x);
    __syncthreads();
    if (input.gradient) {
        const dr_strided<T> to = {(T *)input.gradient + key_at, input.token, x.place.tokens};
        dr_store_rows<T>(to, tiles.key, size, rows.aligned);
    }
    if (threadIdx.x < (unsigned)x.place.tokens) {
        const int i = (int)threadIdx.x;
        float d_gain = 0, d_alpha = 0;
        DR_UNROLL (box, boxes) d_gain += room.sums[i][box][0], d_alpha += room.sums[i][box][1];
        dr_diagonal_put_scalars(rows, x.place.first + i, x.head, room.row[i].x, d_gain, d_alpha);
    }
    if (threadIdx.x == 0) {
        float all = 0;
        for (int w = 0; w < CHAIN_BLOCKS * boxes; w++) all += room.centre[w];
        call.gradients.centre[x.own] = all;
    }
}

template <typename T, int boxes> static dr_status launch(const back_call *call, dr_cuda_stream stream) {
    return dr_cuda_launch("scan_back", scan_back<T, boxes>, {call->plan.slots, call->plan.key_heads}, 128 * boxes,
                          room_bytes(64 * boxes, sizeof(T)), stream, *call);
}

dr_status dr_cuda_diagonal_chain_backward(const dr_cuda_chunk_plan *plan, const int64_t *cu,
                                          const dr_cuda_diagonal_chain *chain, const dr_cuda_diagonal_gradients *gradients,
                                          const float *d_final, float *d_initial, dr_cuda_stream stream) {
    const dr_cuda_diagonal_chain back = dr_cuda_diagonal_turn(chain, gradients, d_final, d_initial);
    const back_call call = {*plan, cu, chain->entry, back, *gradients};
    DR_TRY(dr_cuda_diagonal_begin(plan, cu, &back, stream));
    DR_CUDA_CHUNK_STORAGE(plan->storage, T, DR_CUDA_KEY_BOXES(plan->key_width, boxes, return launch<T, boxes>(&call, stream)));
    return DR_OK;
}
