/* The diagonal scan's forward where what it makes of a token needs no sum over channels: write keys B * key and queries
 * q / (A + ridge), in one pass (diagonal_chain.cuh). */
#include "backends/cuda/diagonal/diagonal_chain.cuh"

typedef struct {
    dr_cuda_chunk_plan plan;
    const int64_t *cu;
    dr_cuda_diagonal_chain chain;
} forward_call;

static __host__ __device__ inline int room_bytes(int width, int element, bool asks) {
    return (int)sizeof(chain_room) + CHAIN_BLOCKS * width * (int)sizeof(float) + (asks ? 2 : 1) * CHAIN_ROWS * width * element;
}

/* Write keys in the place of the keys, of the warp's rows from A before them. */
template <typename T, bool tanh>
static __device__ inline void make_writes(const dr_cuda_rows &rows, const chain_place &x, const chain_room &room, char *keys,
                                          float2 a) {
    const int column = (int)(threadIdx.x % 32) * 2;
    const float centre = dr_input_scalar(rows, DR_INPUT_SCAN_CENTRE, 0, 0, x.head);
    dr_map_squash squash = rows.squash;
    squash.tanh = tanh; /* known when this is compiled: no branch */
#pragma unroll
    for (int i = x.block * CHAIN_BLOCK; i < (x.block + 1) * CHAIN_BLOCK; i++) {
        const float4 row = room.row[i];
        const float2 key = chain_pair<T>(keys, i, column);
        float slope;
        a.x = dr_map_scan_step(a.x, row.x, row.y, key.x);
        a.y = dr_map_scan_step(a.y, row.x, row.y, key.y);
        const float2 b =
            make_float2(dr_map_squash_value(&squash, a.x, centre, &slope), dr_map_squash_value(&squash, a.y, centre, &slope));
        chain_put_pair<T>(keys, i, column, make_float2(b.x * key.x, b.y * key.y));
    }
}

static __device__ inline float ridge_at(const dr_cuda_rows &rows, int head, int channel) {
    const dr_cuda_input &ridge = rows.input[DR_INPUT_RIDGE];
    return channel < rows.key_size ? ((const float *)ridge.at)[head * ridge.head + channel] : 1.0f;
}

/* Queries q / (A + ridge) in the place of the queries. */
template <typename T>
static __device__ inline void make_queries(const dr_cuda_rows &rows, const chain_place &x, const chain_room &room,
                                           const char *keys, char *queries, float2 a) {
    const int column = (int)(threadIdx.x % 32) * 2;
    const float2 ridge = make_float2(ridge_at(rows, x.head, x.channel), ridge_at(rows, x.head, x.channel + 1));
#pragma unroll
    for (int i = x.block * CHAIN_BLOCK; i < (x.block + 1) * CHAIN_BLOCK; i++) {
        const float4 row = room.row[i];
        const float2 key = chain_pair<T>(keys, i, column), query = chain_pair<T>(queries, i, column);
        a.x = dr_map_scan_step(a.x, row.x, row.y, key.x);
        a.y = dr_map_scan_step(a.y, row.x, row.y, key.y);
        chain_put_pair<T>(
            queries, i, column,
            make_float2(query.x * dr_reciprocal_near(a.x + ridge.x), query.y * dr_reciprocal_near(a.y + ridge.y)));
    }
}

template <typename T>
static __device__ inline void load_box(const dr_cuda_rows &rows, const chain_place &x, dr_input i, char *tile) {
    const dr_cuda_input &input = rows.input[i];
    const dr_strided<T> from = {(const T *)input.at + dr_input_index(input, x.place.first, 0, x.head) + x.box * 64, input.token,
                                x.place.tokens};
    dr_copy_rows<T>(tile, CHAIN_ROWS, 1, rows.key_size - x.box * 64, rows.aligned, CHAIN_ROWS, 0, 1, from);
}

/* To [tokens, H, K]. */
template <typename T>
static __device__ inline void store_box(const dr_cuda_rows &rows, const chain_place &x, const char *tile, int made) {
    const int64_t stride = (int64_t)rows.key_heads * rows.key_size;
    const dr_strided<T> to = {(T *)rows.input[made].at + x.place.first * stride + x.head * rows.key_size + x.box * 64, stride,
                              x.place.tokens};
    dr_store_rows<T>(to, tile, rows.key_size - x.box * 64, rows.aligned);
}

template <typename T, int boxes>
static __global__ void __launch_bounds__(128 * boxes, 8 / boxes) scan_make(const __grid_constant__ forward_call call) {
    extern __shared__ __align__(1024) char shared[];
    constexpr int width = 64 * boxes, tile = CHAIN_ROWS * 64 * (int)sizeof(T);
    const dr_cuda_rows &rows = call.plan.rows;
    const bool asks = rows.input[DR_SOURCE_RIDGE_QUERY].at != NULL;
    chain_room &room = *(chain_room *)(shared + (asks ? 2 : 1) * boxes * tile);
    const chain_place x = chain_find<-1>(call.plan, call.cu);
    if (x.place.tokens <= 0) return;
    char *keys = shared + x.box * tile, *queries = keys + boxes * tile;
    load_box<T>(rows, x, DR_INPUT_KEY, keys);
    if (asks) load_box<T>(rows, x, DR_INPUT_QUERY, queries);
    dr_copy_commit();
    chain_put_row(rows, x, NULL, room);
    dr_copy_wait<0>();
    __syncthreads();
    float *parts = room.part + x.channel;
    *(float2 *)(parts + x.block * width) = chain_sum<T>(room, keys, x.block, x.channel % 64);
    __syncthreads();
    float2 end = make_float2(0, 0);
    DR_UNROLL (b, CHAIN_BLOCKS) end = chain_over(room.product[b], end, parts + b * width);
    const float product = room.product[0] * room.product[1] * (room.product[2] * room.product[3]);
    float2 a = chain_pass<-1>(rows, call.chain, x, product, end);
    for (int b = 0; b < x.block; b++) a = chain_over(room.product[b], a, parts + b * width);
    if (asks) make_queries<T>(rows, x, room, keys, queries, a);
    if (rows.input[DR_SOURCE_SQUASHED].at) {
        if (rows.squash.tanh)
            make_writes<T, true>(rows, x, room, keys, a);
        else
            make_writes<T, false>(rows, x, room, keys, a);
    }
    __syncthreads();
    if (asks) store_box<T>(rows, x, queries, DR_SOURCE_RIDGE_QUERY);
    if (rows.input[DR_SOURCE_SQUASHED].at) store_box<T>(rows, x, keys, DR_SOURCE_SQUASHED);
}

template <typename T, int boxes> static dr_status launch(const forward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    const int bytes = room_bytes(64 * boxes, sizeof(T), plan->rows.input[DR_SOURCE_RIDGE_QUERY].at != NULL);
    return dr_cuda_launch("scan_make", scan_make<T, boxes>, {plan->slots, plan->key_heads}, 128 * boxes, bytes, stream, *call);
}

dr_status dr_cuda_diagonal_chain_forward(const dr_cuda_chunk_plan *plan, const int64_t *cu, const dr_cuda_diagonal_chain *chain,
                                         dr_cuda_stream stream) {
    const forward_call call = {*plan, cu, *chain};
    DR_TRY(dr_cuda_diagonal_begin(plan, cu, chain, stream));
    DR_CUDA_CHUNK_STORAGE(plan->storage, T, DR_CUDA_KEY_BOXES(plan->key_width, boxes, return launch<T, boxes>(&call, stream)));
    return DR_OK;
}
