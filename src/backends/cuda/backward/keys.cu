/* keys: what queries, read keys and write keys get, for every chunk, value head and 64 channels of K, with no or scalar decay.
 *
 *     d_query_i = scale f(at_i, 0) (S dO_i) + sum_j G_ij f w_j           d_read_i = f(at_i, 0) (S dY_i) + sum_j M_ij f w_j / s
 *     d_far_j   = f(N, j+1) (dS' U_j)                                   d_near_j = sum_i f (G_ij q_i - c_i M_ij r_i / s)
 *
 * f is in G and M already, the factors from entry and to exit scale rows. With a decay of each channel: keys_channel.cu.
 *
 * One block of four warps; a warp owns 16 rows. Of 16 bits on sm_90a the products with states are those of a warp group. */
#include "backends/cuda/backward/group_tiles.cuh"
#include "backends/cuda/backward/keys.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"

/* ---- factors and sums of rows -------------------------------------------------------------------------------------------- */

static __device__ inline void fades(const dr_cuda_rows &rows, const keys_rows &k) {
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    float head = 1, tail = 1;
    for (int j = 0; j < i; j++) head *= k.alpha[j];
    for (int j = 63; j > i; j--) tail *= k.alpha[j];
    k.head_read[i] = dr_undecayed(rows, i) ? head : head * k.alpha[i];
    k.head_query[i] = head * k.alpha[i];
    k.tail[i] = tail;
}

/* Row sums of c times a tile, of this warp's rows: lane 4 g has rows g and g + 8. */
template <typename T> static __device__ inline float2 dot_rows(const float (&c)[8][4], const char *tile) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4, t = lane % 4;
    float2 sum = make_float2(0, 0);
    DR_UNROLL (n, 8) {
        const float2 upper = tile_pair<T>(tile, row, 8 * n + 2 * t), lower = tile_pair<T>(tile, row + 8, 8 * n + 2 * t);
        sum.x = fmaf(c[n][0], upper.x, fmaf(c[n][1], upper.y, sum.x));
        sum.y = fmaf(c[n][2], lower.x, fmaf(c[n][3], lower.y, sum.y));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
    }
    return sum;
}

/* Row sums of the squares of a tile, likewise. */
template <typename T> static __device__ inline float2 square_rows(const char *tile) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4, t = lane % 4;
    float x[8][4];
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2) {
            const float2 pair = tile_pair<T>(tile, row + 8 * h, 8 * n + 2 * t);
            x[n][2 * h] = pair.x, x[n][2 * h + 1] = pair.y;
        }
    return dot_rows<T>(x, tile);
}

/* Of floats, the pairs of the chunk one by one: G and M become what each pair brings to the gradient of every decay that it
 * spans, and those what all pairs with a writer before row j bring, for each reader. The gradients of rows have all pairs as
 * well, but of those that span nothing only the difference of two sums, and what the matrix units cut off the sums of late rows
 * would stand in the gradients of all decays before. A barrier before. */
static __device__ inline void spread_pairs(const dr_cuda_backward_call &call, char *shared, const keys_room &room,
                                           const keys_rows &k) {
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4, t = lane % 4;
    const unsigned base = dr_shared_address(shared);
    const int kinds = call.plan.reads ? 2 : 1;
#pragma unroll 1
    for (int i = 0; i < kinds; i++) {
        char *pairs = shared + (i == 0 ? room.score : room.erase);
        float scores[8][4] = {};
        dr_multiply_scores<float>(scores, base + (i == 0 ? room.query : room.read), base + room.write);
        DR_UNROLL (h, 2) {
            const float share = i == 0 ? 1 : k.rest[row + 8 * h];
            DR_UNROLL (n, 8) {
                const float2 pair = tile_pair<float>(pairs, row + 8 * h, 8 * n + 2 * t);
                set_pair<float>(pairs, row + 8 * h, 8 * n + 2 * t,
                                make_float2(share * scores[n][2 * h] * pair.x, share * scores[n][2 * h + 1] * pair.y));
            }
        }
    }
    __syncthreads();
    if ((int)threadIdx.x >= 64 * kinds) return;
    const int reader = (int)threadIdx.x % 64;
    char *pairs = shared + (threadIdx.x < 64 ? room.score : room.erase);
    float sum = 0;
    for (int j = 0; j < 64; j += 2) {
        const float2 pair = tile_pair<float>(pairs, reader, j);
        set_pair<float>(pairs, reader, j, make_float2(sum, sum + pair.x));
        sum += pair.x + pair.y;
    }
}

/* The gradient of every row's decay, as far as these channels go (decay.cu), from lane 4 g's sums of rows g and g + 8: a suffix
 * sum over rows of reader . its gradient, a prefix sum of writer . its gradient from the exit, the exit. An undecayed read
 * counts as one of the row before. Of 16-bit types readers' gradients are whole, and their sum has writer . d_near taken off:
 * pairs that do not span a row cancel, as G and M are rounded once for both. Of floats they are those from the entry, and pairs
 * come beside them. reads: times -c. */
template <typename T>
static __device__ inline void decay_sums(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                         const keys_room &room, const keys_rows &k, float2 reader, float2 read, float2 far) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), row = (int)(threadIdx.x / 32) * 16 + lane / 4, m = (int)threadIdx.x;
    float *readers = k.total, *reads = readers + 64, *writers = reads + 64;
    if (lane % 4 == 0) {
        readers[row] = reader.x, readers[row + 8] = reader.y;
        reads[row] = read.x, reads[row + 8] = read.y;
        writers[row] = far.x, writers[row + 8] = far.y;
    }
    __syncthreads();
    if constexpr (sizeof(T) == 4) {
        spread_pairs(call, shared, room, k);
        __syncthreads();
    }
    if (m >= 64) return;
    const bool late = dr_undecayed(rows, m);
    float sum = 0, behind = 0;
    for (int d = 0; d < 64; d++) sum += k.exit[d];
    for (int j = 0; j < m; j++) sum += writers[j];
    for (int i = 63; i >= m; i--) {
        const bool spans = i > m || !late;
        behind += readers[i] + (spans ? reads[i] : 0);
        if constexpr (sizeof(T) == 4) {
            behind += *(const float *)(shared + room.score + dr_tile_at<T>(0, 64, i, m));
            if (call.plan.reads && spans) behind += *(const float *)(shared + room.erase + dr_tile_at<T>(0, 64, i, m));
        }
    }
    const int parts = call.plan.key_width / 64;
    call.back.decay_part[(x.block * parts + blockIdx.x % parts) * 64 + m] = sum + behind;
}

/* ---- results ------------------------------------------------------------------------------------------------------------- */

static __device__ inline void store_rows(float *to, int width, const float (&c)[8][4]) {
    const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
    DR_UNROLL (n, 8)
        DR_UNROLL (h, 2)
            *(float2 *)(to + (int64_t)(row + 8 * h) * width + 8 * n + 2 * t) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
}

/* ---- gradients at once --------------------------------------------------------------------------------------------------- */

/* This lane's channels of an accumulator's half h to a vector, `to` its channel `first`; NULL: not wanted. */
template <typename U>
static __device__ inline void store_vector(const dr_cuda_rows &rows, U *to, int first, const float (&c)[8][4], int h) {
    if (!to) return;
    const int t = (int)(threadIdx.x % 4), left = rows.key_size - first - 2 * t;
    DR_UNROLL (n, 8) {
        U *pair = to + 2 * t + 8 * n;
        if (rows.aligned && 8 * n + 1 < left) {
            dr_store_pair<U>(pair, c[n][2 * h], c[n][2 * h + 1]);
            continue;
        }
        if (8 * n < left) pair[0] = dr_from_float<U>(c[n][2 * h]);
        if (8 * n + 1 < left) pair[1] = dr_from_float<U>(c[n][2 * h + 1]);
    }
}

/* r, times -c, to where it leads: to the gradients of the write key and the query beside it, or what stays in r to an input of
 * its own. Part of lambda's gradient on the way. */
template <typename T>
static __device__ inline void lead_read(const dr_cuda_backward_call &call, const dr_row_block &x, const char *shared,
                                        const keys_room &room, int first, int row, int h, float gain, float (&q)[8][4],
                                        float (&r)[8][4], float (&w)[8][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int t = (int)(threadIdx.x % 4), token = dr_row_token(rows, row);
    const dr_cuda_row &spec = dr_rule_row(rows, row - token * rows.steps);
    const float sign = spec.negative ? gain : -gain;
    DR_UNROLL (n, 8) {
        float &left = r[n][2 * h], &right = r[n][2 * h + 1];
        left *= sign, right *= sign;
        if (spec.reads == DR_READS_TIED || spec.reads == DR_READS_AFFINE) w[n][2 * h] += left, w[n][2 * h + 1] += right;
    }
    if (spec.reads == DR_READS_AFFINE) {
        const bool there = row < x.rows;
        const float lambda = there ? dr_input_scalar(rows, spec.read_factor, x.place.first + token, 0, x.head) : 0;
        float sum = 0;
        DR_UNROLL (n, 8) {
            const float2 query = tile_pair<T>(shared + room.query, row, 8 * n + 2 * t);
            sum = fmaf(query.x, r[n][2 * h], fmaf(query.y, r[n][2 * h + 1], sum));
            q[n][2 * h] = fmaf(lambda, r[n][2 * h], q[n][2 * h]);
            q[n][2 * h + 1] = fmaf(lambda, r[n][2 * h + 1], q[n][2 * h + 1]);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) call.back.lambda_part[(x.block * (call.plan.key_width / 64) + first / 64) * 64 + row] = sum;
    }
    if (spec.reads == DR_READS_PRODUCT && row < x.rows) {
        const dr_cuda_input &input = rows.input[spec.read_other];
        const T *gates = (const T *)input.at + dr_input_index(input, x.place.first + token, 0, x.head) + first + 2 * t;
        DR_UNROLL (n, 8) {
            const float2 key = tile_pair<T>(shared + room.write, row, 8 * n + 2 * t);
            float gate[2];
            dr_load_lane<T, 2>(gates + 8 * n, rows.key_size - first - 8 * n - 2 * t, rows.aligned, gate);
            w[n][2 * h] = fmaf(gate[0], r[n][2 * h], w[n][2 * h]);
            w[n][2 * h + 1] = fmaf(gate[1], r[n][2 * h + 1], w[n][2 * h + 1]);
            r[n][2 * h] *= key.x, r[n][2 * h + 1] *= key.y;
        }
    }
}

/* For rules whose rows lead to inputs (rows.direct). */
template <typename T>
static __device__ inline void store_direct(const dr_cuda_backward_call &call, const dr_row_block &x, const char *shared,
                                           const keys_room &room, const keys_rows &k, int first, float (&q)[8][4],
                                           float (&r)[8][4], float (&w)[8][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    DR_UNROLL (h, 2) {
        const int row = (int)(threadIdx.x / 32) * 16 + (int)(threadIdx.x % 32) / 4 + 8 * h;
        if (call.plan.reads) {
            lead_read<T>(call, x, shared, room, first, row, h, k.gain[row], q, r, w);
            store_vector<T>(rows, lead_of<T>(rows, x, k.leads, LEADS_READ, row), first, r, h);
        }
        store_vector<T>(rows, lead_of<T>(rows, x, k.leads, LEADS_QUERY, row), first, q, h);
        store_vector<T>(rows, lead_of<T>(rows, x, k.leads, LEADS_WRITE, row), first, w, h);
    }
}

/* For rules whose write key the scan makes (rows.made): the gradient of the query, and what the scan's backward needs. */
template <typename T>
static __device__ inline void store_made(const dr_cuda_backward_call &call, const dr_row_block &x, const char *shared,
                                         const keys_room &room, const keys_rows &k, int first, const float (&q)[8][4],
                                         float (&r)[8][4], const float (&w)[8][4]) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int lane = (int)(threadIdx.x % 32), mine = (int)(threadIdx.x / 32) * 16 + lane / 4;
    const int64_t stride = (int64_t)rows.key_heads * rows.key_size, from = x.place.first * stride + x.key_head * rows.key_size;
    DR_UNROLL (h, 2) {
        const int row = mine + 8 * h;
        const float gain = call.plan.reads ? -k.gain[row] : 0;
        DR_UNROLL (n, 8) r[n][2 * h] *= gain, r[n][2 * h + 1] *= gain;
        store_vector<T>(rows, lead_of<T>(rows, x, k.leads, LEADS_QUERY, row), first, q, h);
        if (row >= x.rows) continue;
        store_vector<float>(rows, call.diagonal.key + from + row * stride + first, first, r, h);
        store_vector<float>(rows, call.diagonal.squashed + from + row * stride + first, first, w, h);
    }
    const float2 write = dot_rows<T>(w, shared + room.write), square = square_rows<T>(shared + room.write);
    if (lane % 4 != 0) return;
    const int64_t at = (x.block * (call.plan.key_width / 64) + first / 64) * 64 + mine;
    call.back.write_part[at] = write.x;
    call.back.write_part[at + 8] = write.y;
    call.back.square_part[at] = square.x;
    call.back.square_part[at + 8] = square.y;
}

/* ---- the kernel, second half: after the states --------------------------------------------------------------------------- */

template <typename T>
static __device__ inline void finish(const dr_cuda_backward_call &call, const dr_row_block &x, char *shared,
                                     const keys_room &room, const keys_rows &k, int first, float (&q)[8][4], float (&r)[8][4],
                                     float (&w)[8][4]) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int warp = (int)(threadIdx.x / 32), row = warp * 16 + (int)(threadIdx.x % 32) / 4;
    const unsigned base = dr_shared_address(shared);
    scale_rows(q, k.head_query, row, rows.scale);
    scale_rows(w, k.tail, row, 1);
    if (plan.reads) {
        scale_rows(r, k.head_read, row, 1);
        scale_rows(r, k.split, row, 1);
    }
    constexpr bool apart = sizeof(T) == 4;
    float2 reader = make_float2(0, 0), far = reader, read = reader, entry = reader;
    if (rows.scalar_decay) far = dot_rows<T>(w, shared + room.write);
    if (apart && rows.scalar_decay) {
        reader = dot_rows<T>(q, shared + room.query);
        if (plan.reads) entry = dot_rows<T>(r, shared + room.read);
    }
    dr_multiply_tiles<T, false>(q, base + room.score, base + room.write, 0, warp + 1);
    dr_multiply_turned<T>(w, base + room.score, base + room.query, warp, 4, NULL);
    if (plan.reads) {
        dr_multiply_tiles<T, false>(r, base + room.erase, base + room.write, 0, warp + 1);
        dr_multiply_turned<T>(w, base + room.erase, base + room.read, warp, 4, k.rest);
        scale_rows(r, k.inverse, row, 1);
        read = dot_rows<T>(r, shared + room.read);
    }
    if (!apart && rows.scalar_decay) {
        const float2 query = dot_rows<T>(q, shared + room.query), write = dot_rows<T>(w, shared + room.write);
        reader = make_float2(query.x - (write.x - far.x), query.y - (write.y - far.y));
    }
    const bool made = rows.made, direct = rows.direct;
    if (plan.reads && (made || direct) && threadIdx.x % 4 == 0) {
        float *part = call.back.gain_part + (x.block * (plan.key_width / 64) + first / 64) * 64 + row;
        part[0] = -read.x;
        part[8] = -read.y;
    }
    if (direct) {
        store_direct<T>(call, x, shared, room, k, first, q, r, w);
    } else if (made) {
        store_made<T>(call, x, shared, room, k, first, q, r, w);
    } else {
        const int64_t at = x.block * 64 * plan.key_width + first;
        if (plan.reads) store_rows(call.back.d_read + at, plan.key_width, r);
        store_rows(call.back.d_query + at, plan.key_width, q);
        store_rows(call.back.d_write + at, plan.key_width, w);
    }
    if (!rows.scalar_decay) return;
    if (apart) read = make_float2(k.inverse[row] * entry.x, k.inverse[row + 8] * entry.y);
    read.x *= -k.gain[row];
    read.y *= -k.gain[row + 8];
    decay_sums<T>(call, x, shared, room, k, reader, read, far);
}

/* q += dO S, r += dY S and w += U dS' of the columns in the stages: those wanted, behind a barrier that each thread has passed
 * dr_shared_fence before. They are there after end_states. */
template <typename T>
static __device__ inline void multiply_states(unsigned base, const keys_room &room, bool entry, bool reads, bool beyond,
                                              float (&q)[8][4], float (&r)[8][4], float (&w)[8][4]) {
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (dr_groups_multiply<T>()) {
        const auto add = [&](float(&c)[8][4], int a, int b) {
            dr_group_settle(c);
            dr_group_begin();
            chain<T, false, false>(c, base + (unsigned)room.stage[a], base + (unsigned)room.stage[b], true);
            dr_group_commit();
        };
        if (entry) add(q, 0, 3);
        if (entry && reads) add(r, 1, 3);
        if (beyond) add(w, 2, 4);
        return;
    }
#endif
    if (entry) dr_multiply_tiles<T, false>(q, base + room.stage[0], base + room.stage[3], 0, 4);
    if (entry && reads) dr_multiply_tiles<T, false>(r, base + room.stage[1], base + room.stage[3], 0, 4);
    if (beyond) dr_multiply_tiles<T, false>(w, base + room.stage[2], base + room.stage[4], 0, 4);
}

template <typename T> static __device__ inline void end_states(float (&q)[8][4], float (&r)[8][4], float (&w)[8][4]) {
#ifdef DR_CUDA_WARPGROUPS
    if constexpr (dr_groups_multiply<T>()) {
        dr_group_wait<0>();
        dr_group_settle(q), dr_group_settle(r), dr_group_settle(w);
    }
#endif
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK_THREADS, sizeof(T) == 4 ? 1 : 3)
    keys(const __grid_constant__ dr_cuda_backward_call call) {
    extern __shared__ __align__(1024) char shared[];
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int parts = plan.key_width / 64, first = (int)(blockIdx.x % parts) * 64;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x / parts);
    if (x.rows == 0) return;
    keys_room room = lay_room(sizeof(T), false);
    if (!plan.reads || rows.tied) room.read = room.write;
    const keys_rows k = lay_rows(shared, room);
    const int thread = (int)threadIdx.x;
    const int64_t block = x.block;
    const unsigned base = dr_shared_address(shared);
    put_gains(call, x, k);
    put_leads<T>(rows, x, first, k.leads);
    if (thread < 64) {
        const bool decays = thread < x.rows && thread % rows.steps == 0;
        k.alpha[thread] = decays ? dr_row_alpha(rows, x.place.first + thread / rows.steps, x.head) : 1;
    }
    __syncthreads();
    fades(rows, k);

    /* from the states: S dO, S dY, dS' U; of 16-bit types also with the rest of the states that are given in float */
    constexpr bool narrow = sizeof(T) == 2;
    const float *entry = dr_given_state(call, x, false), *beyond = dr_given_state(call, x, true);
    float q[8][4] = {}, r[8][4] = {}, w[8][4] = {};
    float2 exit = make_float2(0, 0);
    load_states<T>(call, x, shared, room, first, 0, COPY_ALL);
    dr_copy_commit();
#pragma unroll 1
    for (int column = 0; column < plan.value_width; column += 64) {
        dr_copy_wait<0>();
        dr_shared_fence();
        __syncthreads();
        multiply_states<T>(base, room, true, plan.reads, true, q, r, w);
        exit_part<T, 16>(rows, shared, room, narrow ? entry : NULL, narrow ? beyond : NULL, first, column, exit);
        end_states<T>(q, r, w);
        if (narrow && (entry || beyond)) {
            __syncthreads();
            if (entry) dr_load_rest<T>(shared + room.stage[3], rows, entry, column, first);
            if (beyond) dr_load_rest<T>(shared + room.stage[4], rows, beyond, column, first);
            dr_shared_fence();
            __syncthreads();
            multiply_states<T>(base, room, entry, plan.reads, beyond, q, r, w);
            end_states<T>(q, r, w);
        }
        __syncthreads(); /* the stage is read */
        if (column + 64 < plan.value_width)
            load_states<T>(call, x, shared, room, first, column + 64, COPY_ALL);
        else
            load_pairs<T>(call, x, shared, room, first, COPY_ALL);
        dr_copy_commit();
    }
    *(float2 *)(k.total + thread / 32 * 64 + thread % 32 * 2) = exit;
    __syncthreads();
    if (thread < 64)
        k.exit[thread] = call.chunk.keep[block * plan.key_width + first + thread] *
                         (k.total[thread] + k.total[64 + thread] + k.total[128 + thread] + k.total[192 + thread]);
    dr_copy_wait<0>();
    __syncthreads();
    finish_pairs<T>(call, x, shared, room, first);
    finish<T>(call, x, shared, room, k, first, q, r, w);
}

template <typename T> static dr_status launch(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    return dr_cuda_launch("keys", keys<T>, {call->plan.blocks, call->plan.key_width / 64}, BLOCK_THREADS,
                          lay_room(sizeof(T), false).bytes, stream, *call);
}

dr_status dr_cuda_backward_keys(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    if (call->plan.blocks == 0) return DR_OK;
    if (call->plan.rows.channel_decay) return dr_cuda_backward_keys_channel(call, stream);
    DR_CUDA_CHUNK_STORAGE(call->plan.storage, T, return launch<T>(call, stream));
    return DR_OK;
}
