/* What keys_channel.cu does element by element: a warp has half of a block of rows, eight, and all 64 channels, two a lane.
 *
 * Accumulators pass through shared memory first, in a place of the block's own. Then the warp's rows come one after another:
 * products of alpha run along, pairs within the half are added, gradients take the form in which they leave, and what the log
 * decays get runs along, too (decay.cu says what that is).
 *
 * A pair of a reader and what was written before it counts for the decays between the two and for no others, so that no sum
 * takes off what another one added and one token without a state gives exactly 0. Of the decays of a half,
 *
 *     both within it                      a reader's gradient before writer m is added to it: m's decay (rows_near)
 *     the writer or the entry before it   the same, before any writer of the half is added
 *     the reader behind it                a prefix sum of w . what w gets from behind the half
 *     one before and one behind it        products of whole blocks (put_crossing) */
#ifndef DR_CUDA_KEYS_CHANNEL_CUH
#define DR_CUDA_KEYS_CHANNEL_CUH

#include "backends/cuda/backward/keys.cuh"
#include "backends/cuda/device/warpgroup.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, HALF = 8 }; /* rows of a half block, a warp's */

/* What a rule's rows need; a kernel of its own for each form keeps the code short that a warp runs through. */
enum {
    READS = 1,
    LATE = 2, /* read keys before their decay, or the negatives of inputs */
    GATED = 4,
    FLOATS = 8,  /* gradients that do not all lead to inputs */
    PAIRS = 16,  /* two rows a token: only the first decays, only the second has a query */
    SINGLE = 32, /* one row a token */
    MADE = 64,   /* with SINGLE: write keys that the diagonal scan makes of read keys (keys_channel_scan.cuh) */
    LEAN = 128 /* in 16 bits, with SINGLE or PAIRS: nothing that most calls have no need of, since a warp that runs through its
                  code once waits where that lies apart. No given states; whole boxes of channels, aligned; a key head to each
                  value head. Queries and keys are inputs, and keys are read, where rows read, and written, where the scan does
                  not make that; of two rows, the first reads and writes the erase key */
};

/* Of row i of a half block: whether it is the first of its token, and the last. Where a token's rows are not known to be two,
 * every row counts as one: rows that do not decay have alpha = 1, rows without a query hold zeros. */
template <int form> static __device__ inline bool row_decays(int i) {
    return !(form & PAIRS) || i % 2 == 0;
}

template <int form> static __device__ inline bool row_asks(int i) {
    return !(form & PAIRS) || i % 2 == 1;
}

template <int form> static __device__ inline bool row_late(const dr_cuda_rows &rows, int row) {
    return form & LATE && (form & PAIRS ? row % 2 == 0 && rows.row[0].undecayed : dr_undecayed(rows, row));
}

template <int form> static __device__ inline int row_token(const dr_cuda_rows &rows, int row) {
    return form & PAIRS ? row / 2 : form & SINGLE ? row : dr_row_token(rows, row);
}

/* Where a thread's two channels of its warp's row i lie in a tile of 64 rows: one exclusive-or from row to row, and a constant.
 * A lean form's tiles of inputs and log decays, which no product reads, keep their units as they come; without a form, of a
 * tile for products. */
template <typename T, int form = 0> static __device__ inline unsigned row_at(unsigned thread, int i) {
    constexpr unsigned width = 64 * sizeof(T);
    const unsigned begin = thread / 32 * (HALF * width) + thread % 32 * 2 * (unsigned)sizeof(T);
    return (form & LEAN ? begin : begin ^ (unsigned)i * 16) + (unsigned)i * width;
}

template <typename T, int form = 0> static __device__ inline float2 row_pair(const char *tile, unsigned thread, int i) {
    return dr_load_pair<T>(tile + row_at<T, form>(thread, i));
}

template <typename T, int form = 0> static __device__ inline void set_row(char *tile, unsigned thread, int i, float2 x) {
    dr_store_pair<T>((T *)(tile + row_at<T, form>(thread, i)), x.x, x.y);
}

template <typename T, int form> static __device__ inline float2 row_pair(const char *tile, int i) {
    return row_pair<T, form>(tile, threadIdx.x, i);
}

template <typename T, int form> static __device__ inline void set_row(char *tile, int i, float2 x) {
    set_row<T, form>(tile, threadIdx.x, i, x);
}

/* Where a column of such a tile lies. */
template <typename T, int form> static __device__ inline unsigned unit_at(int row, int column) {
    return form & LEAN ? (unsigned)(row * 64 + column) * (unsigned)sizeof(T) : dr_tile_at<T>(0, 64, row, column);
}

static __device__ inline float2 times(float2 x, float2 y) {
    return make_float2(x.x * y.x, x.y * y.y);
}

/* The read key of a row by what its tile holds and its write key: a lean form's has the gate of a gated key. */
template <typename T, int form> static __device__ inline float2 read_pair(float2 held, float2 write) {
    if constexpr (form & LEAN && form & GATED)
        return dr_unpack(T(), dr_pack(T(), held.x * write.x, held.y * write.y));
    else
        return held;
}

static __device__ inline float2 plus(float2 x, float2 y, float2 z) {
    return make_float2(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

static __device__ inline float2 plus(float s, float2 y, float2 z) {
    return make_float2(fmaf(s, y.x, z.x), fmaf(s, y.y, z.y));
}

/* ---- two channels a lane ------------------------------------------------------------------------------------------------- */

enum { OWN_BYTES = 16 * 64 * (int)sizeof(float) };

/* Of a block's floats [16][64]: units of 16 bytes exchanged so that neither eight rows of an accumulator nor a row meet in a
 * bank. */
static __device__ inline float2 &own_at(char *own, int row, int column) {
    return *(float2 *)(own + row * 256 + ((column / 4) ^ (row % 8 * 2)) * 16 + column % 4 * 4);
}

/* The block of rows, and the first of the channels, of which a warp has the products: where these are a warp group's, each of
 * two groups has 32 channels. */
template <typename T> static __device__ inline int product_block() {
    return (int)(dr_groups_multiply<T>() ? threadIdx.x / 32 % 4 : threadIdx.x / 64);
}

template <typename T> static __device__ inline int product_column() {
    return (int)(dr_groups_multiply<T>() ? threadIdx.x / 128 : threadIdx.x / 32 % 2) * 32;
}

/* The floats of the block of rows of which the warp has the products, from those of the block whose rows it takes. */
template <typename T> static __device__ inline char *product_own(char *own) {
    return own + (product_block<T>() - (int)(threadIdx.x / 64)) * 3 * OWN_BYTES;
}

/* The warps that have the products of a block of rows and those that take its rows. */
template <typename T> static __device__ inline void meet_block() {
    if (dr_groups_multiply<T>())
        __syncthreads();
    else
        __barrier_sync_count(1 + threadIdx.x / 64, 64);
}

/* Accumulators of the warp's products to at(row, column): a row of their block, the first of two channels. */
template <typename T, typename function> static __device__ inline void put_pairs(const float (&c)[4][4], const function &at) {
    const int g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4), column = product_column<T>();
    DR_UNROLL (n, 4)
        DR_UNROLL (h, 2) at(g + 8 * h, column + 8 * n + 2 * t) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
}

/* The same to a block's floats [16][64]; own: of the block whose rows the warp takes. */
template <typename T> static __device__ inline void put_own(char *own, const float (&c)[4][4]) {
    own = product_own<T>(own);
    put_pairs<T>(c, [=](int row, int column) -> float2 & { return own_at(own, row, column); });
}

/* Of the warp's row i. */
static __device__ inline float2 &own_pair(char *own, int i) {
    const unsigned begin = threadIdx.x / 32 % 2 * (HALF * 256) + threadIdx.x % 32 * 8;
    return *(float2 *)(own + ((begin ^ (unsigned)i * 32) + (unsigned)i * 256));
}

/* What the key of a row gets beside the scan, which makes its gradient whole: in the place of the row's scores. */
static __device__ inline float2 &beside_pair(char *shared, const keys_room &room, int row) {
    const int lane = (int)(threadIdx.x % 32);
    return *(float2 *)(shared + (lane < 16 ? room.score : room.erase) + row * 128 + lane % 16 * 8);
}

/* Where a lane's gradients of the block's rows go. Those that lead to inputs go, as T, to the tiles whose rows they are the
 * gradients of, once these are read, and leave together (store_tile); the others go to floats, of row 0 and the lane's
 * channels. */
typedef struct {
    float *query, *read, *write; /* floats; NULL: to the tile, or nowhere */
    int64_t stride;              /* from row to row */
    int rows, left;              /* rows and channels that are there */
    bool aligned, made, padded;  /* floats have all 64 rows and channels */
    float sign[2];     /* by row % 2: times what a read key's gradient is to an input of its own; 0: it joins the write
                          key's */
    const char *gates; /* of token 0 */
    int64_t gate_stride;
    float *gain, *write_dot, *square; /* [64] sums; NULL: not wanted */
} channel_results;

template <typename T, int form>
static __device__ inline channel_results channel_results_of(const dr_cuda_backward_call &call, const dr_row_block &x,
                                                            int first) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const int channel = first + (int)(threadIdx.x % 32) * 2;
    const int64_t part = (x.block * (plan.key_width / 64) + first / 64) * 64;
    const bool direct = !(form & FLOATS);
    channel_results to = {};
    if (form & LEAN) {
        if (form & READS) to.gain = call.back.gain_part + part;
        return to;
    }
    to.made = !direct && rows.made;
    to.aligned = rows.aligned;
    to.left = rows.key_size - channel;
    to.rows = x.rows;
    if ((direct || to.made) && plan.reads) to.gain = call.back.gain_part + part;
    if (to.made) {
        to.stride = (int64_t)rows.key_heads * rows.key_size;
        const int64_t from = x.place.first * to.stride + x.key_head * rows.key_size + channel;
        to.read = call.diagonal.key + from;
        to.write = call.diagonal.squashed + from;
        to.write_dot = call.back.write_part + part;
        to.square = call.back.square_part + part;
    } else if (!direct) {
        const int64_t at = x.block * 64 * plan.key_width + channel;
        to.stride = plan.key_width;
        to.padded = true;
        to.query = call.back.d_query + at;
        to.read = plan.reads ? call.back.d_read + at : NULL;
        to.write = call.back.d_write + at;
    }
    DR_UNROLL (i, 2) {
        const dr_cuda_row &row = dr_rule_row(rows, i < rows.steps ? i : 0);
        to.sign[i] = row.reads != DR_READS_TENSOR ? 0 : row.negative ? -1 : 1;
    }
    if (form & GATED) {
        const dr_cuda_input &gate = rows.input[rows.row[0].read_other];
        to.gates = (const char *)((const T *)gate.at + dr_input_index(gate, x.place.first, 0, x.head) + channel);
        to.gate_stride = gate.token * (int64_t)sizeof(T);
    }
    return to;
}

static __device__ inline void put_floats(const channel_results &to, float *at, int row, float2 x) {
    at += row * to.stride;
    if (to.padded || (row < to.rows && to.aligned && to.left > 1)) {
        *(float2 *)at = x;
    } else if (row < to.rows) {
        if (to.left > 0) at[0] = x.x;
        if (to.left > 1) at[1] = x.y;
    }
}

/* The input that a row of a lean form's tile leads to; DR_NO_SOURCE: none. */
template <int form> static __device__ inline int lean_lead(const dr_cuda_rows &rows, int index, int row) {
    const bool last = row_asks<form>(row);
    if (index == LEADS_QUERY) return last ? rows.asked : DR_NO_SOURCE;
    const dr_cuda_row &of = rows.row[form & PAIRS && last];
    if (form & MADE) return of.read;
    return form & GATED && index == LEADS_READ ? of.led : of.written;
}

/* Two channels of a row's gate. */
template <typename T> static __device__ inline float2 load_gate(const channel_results &from, int row) {
    float gate[2] = {};
    if (row < from.rows) dr_load_lane<T, 2>((const T *)(from.gates + row * from.gate_stride), from.left, from.aligned, gate);
    return make_float2(gate[0], gate[1]);
}

/* The warp's rows of a tile to where they lead. */
template <typename T, int form>
static __device__ inline void store_tile(const dr_cuda_rows &rows, const dr_row_block &x, const char *tile, const lead *leads,
                                         int index, int first) {
    constexpr int unit = 16 / (int)sizeof(T), units = 64 / unit;
    const int lane = (int)(threadIdx.x % 32), mine = (int)(threadIdx.x / 32) * HALF, within = lane % units * unit;
    const int left = rows.key_size - first - within, step = 32 / units;
    /* where a token's rows are known to be one or two, all rows of a lane have one place in their tokens */
    constexpr bool known = form & (SINGLE | PAIRS);
    constexpr int steps = form & PAIRS ? 2 : 1;
    const int begin = mine + lane / units;
    if (form & LEAN) {
        const int led = lean_lead<form>(rows, index, begin);
        if (led == DR_NO_SOURCE || !rows.input[led].gradient) return;
        const dr_cuda_input &input = rows.input[led];
        T *at = (T *)input.gradient + dr_gradient_index(rows, input, x.place.first + begin / steps, x.head) + first + within;
        const int64_t stride = step / steps * input.token * dr_gradient_spread(rows, input);
        __builtin_assume(__isGlobal(at));
#pragma unroll
        for (int i = 0; i < HALF; i += step, at += stride)
            if (begin + i < x.rows) *(uint4 *)at = *(const uint4 *)(tile + unit_at<T, form>(begin + i, within));
        return;
    }
    if (form & SINGLE && x.rows == 64 && rows.aligned && left > 0) { /* most often */
        const lead all = leads[2 * index];
        if (!all.at) return;
        T *at = (T *)all.at + begin * all.stride + within;
        __builtin_assume(__isGlobal(at)); /* or what is in shared memory might be meant */
#pragma unroll
        for (int i = 0; i < HALF; i += step, at += step * all.stride)
            *(uint4 *)at = *(const uint4 *)(tile + dr_tile_at<T>(0, 64, begin + i, within));
        return;
    }
    T *to = lead_of<T>(rows, x, leads, index, begin, row_token<form>(rows, begin));
    int64_t stride = 0;
    if (known) {
        if (!to) return;
        const int vectors = rows.step_axis && index != LEADS_QUERY ? step : step / steps;
        stride = leads[2 * index + (rows.step_axis ? 0 : begin % steps)].stride * vectors;
    }
#pragma unroll 1
    for (int row = begin; row < mine + HALF && row < x.rows; row += step, to += stride) {
        if (!known) to = lead_of<T>(rows, x, leads, index, row);
        if (!to) continue;
        const T *from = (const T *)(tile + dr_tile_at<T>(0, 64, row, within));
        if (rows.aligned && left > 0) {
            *(uint4 *)(to + within) = *(const uint4 *)from;
        } else {
#pragma unroll 1
            for (int e = 0; e < unit && e < left; e++) to[within + e] = from[e];
        }
    }
}

/* What rows_near and rows_far left in the tiles, to the inputs. */
template <typename T, int form>
static __device__ inline void store_tiles(const dr_cuda_backward_call &call, const dr_row_block &x, const char *shared,
                                          const keys_room &room, const keys_rows &k, int first, const channel_results &to) {
    const dr_cuda_rows &rows = call.plan.rows;
    const int tiles[] = {room.query, room.write, room.read};
    if (to.query) return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i <= LEADS_READ; i++)
        if ((i == LEADS_QUERY || !to.write) && (i != LEADS_READ || room.read != room.write))
            store_tile<T, form>(rows, x, shared + tiles[i], k.leads, i, first);
}

/* What write keys get of readers behind the warp's rows in the chunk, in own without the decays to the border of the half. */
template <int form> static __device__ inline void take_near(const char *alpha, char *own, float2 (&near)[HALF]) {
    float2 tail = make_float2(1, 1);
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) {
        near[i] = times(tail, own_pair(own + 2 * OWN_BYTES, i));
        if (i > 0 && row_decays<form>(i)) tail = times(tail, row_pair<float, form>(alpha, i));
    }
}

/* What row i's read key gets, if not as floats: to where the scan takes it, to a gate and the write key (all), to an input of
 * its own, or to the write key. held: as read_pair has it. */
template <typename T, int form>
static __device__ inline void lead_read(char *shared, const keys_room &room, const channel_results &to, int i, float2 w,
                                        float2 held, float2 got, float2 &all) {
    const int row = (int)(threadIdx.x / 32) * HALF + i;
    const float sign = to.sign[i % 2];
    if (form & MADE) {
        __syncwarp(); /* what was in the row's place is read */
        beside_pair(shared, room, row) = got;
    } else if (form & GATED) {
        all = plus(form & LEAN ? held : load_gate<T>(to, row), got, all);
        set_row<T, form>(shared + room.read, i, times(w, got));
    } else if (sign != 0) {
        set_row<T, form>(shared + room.read, i, make_float2(sign * got.x, sign * got.y));
    } else {
        all = make_float2(all.x + got.x, all.y + got.y);
    }
}

/* What the warp's rows give the log decays, of every token: from it on (behind), and as it was written. */
template <int form> struct decay_sums {
    enum { steps = form & PAIRS ? 2 : 1, tokens = HALF / steps };
    float2 behind[tokens], written[tokens];
    bool decayed; /* an alpha may be 0: a lane's product of them is */
};

/* Readers of the warp's rows, and writers as far as readers of the chunk go. own: twice [16][64]: in, d_query and d_read
 * without the decays from the border of the half; out, in the second, what the write key has got of its own row, of its read
 * key too where that leads to it. near: of readers behind the warp's rows, and then of all. decay: of each token, what its
 * decay gets of pairs with one end or both in the warp's rows, the exit left out. */
template <typename T, int form>
static __device__ inline void rows_near(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k,
                                        char *own, const channel_results &to, float2 (&near)[HALF],
                                        float2 (&decay)[decay_sums<form>::tokens]) {
    constexpr bool reads = form & READS, undecayed = form & LATE, floats = form & FLOATS;
    constexpr int steps = decay_sums<form>::steps;
    const int lane = (int)(threadIdx.x % 32), d = lane * 2, start = (int)(threadIdx.x / 32) * HALF;
    const char *alpha = shared + room.alpha;
    const float2 one = make_float2(1, 1), none = make_float2(0, 0);
    float2 x[HALF], fade[HALF]; /* of each writer: w times the decay since, that decay */
    float2 head = one, prefix = none;
    float gains[HALF];
    DR_UNROLL (i, HALF) {
        const int row = start + i;
        const bool decays = row_decays<form>(i), asks = row_asks<form>(i);
        const bool late = decays && row_late<form>(rows, row);
        const float2 a = decays ? row_pair<float, form>(alpha, i) : one, before = head;
        const float2 w = row_pair<T, form>(shared + room.write, i);
        float2 q = none, d_q = none, r = none, d_r = none, rest = none, held = none;
        const float2 left = reads ? make_float2(k.rest[row], k.rest[row]) : none;
        float score[HALF] = {}, erase[HALF];
        if (decays) head = times(head, a), decay[i / steps] = prefix;
        prefix = plus(w, near[i], prefix); /* of readers behind the half, as yet */
        if (asks) {
            q = row_pair<T, form>(shared + room.query, i);
            dr_take_eight<T>(shared + room.score, 64, row, start, score);
            d_q = times(own_pair(own, i), head);
        }
        if (reads) {
            dr_take_eight<T>(shared + room.erase, 64, row, start, erase);
            held = row_pair<T, form>(shared + room.read, i);
            r = read_pair<T, form>(held, w);
            rest = times(left, r);
            d_r = times(own_pair(own + OWN_BYTES, i), late ? before : head);
        }
        DR_UNROLL (j, i) {
            const float2 fade_before = fade[j], x_before = x[j];
            float2 more = none;
            if (row_decays<form>(j)) { /* all that was written before it */
                if (asks) decay[j / steps] = plus(q, d_q, decay[j / steps]);
                if (reads) decay[j / steps] = plus(rest, d_r, decay[j / steps]);
            }
            if (decays) {
                fade[j] = times(fade[j], a);
                x[j] = times(x[j], a);
            }
            if (asks) {
                d_q = plus(score[j], x[j], d_q);
                more = times(make_float2(score[j], score[j]), q);
            }
            if (reads) {
                d_r = plus(erase[j], late ? x_before : x[j], d_r);
                if (undecayed)
                    near[j] = plus(late ? fade_before : fade[j], times(make_float2(erase[j], erase[j]), rest), near[j]);
                else
                    more = plus(erase[j], rest, more);
            }
            if (asks || (reads && !undecayed)) near[j] = plus(fade[j], more, near[j]);
        }
        x[i] = w;
        fade[i] = one;
        float2 all = none;
        if (decays && asks) decay[i / steps] = plus(q, d_q, decay[i / steps]);
        if (decays && reads && !late) decay[i / steps] = plus(rest, d_r, decay[i / steps]);
        if (asks) {
            all = times(make_float2(score[i], score[i]), q);
            d_q = plus(score[i], w, d_q); /* no decay lies between a row and itself */
        }
        if (reads) {
            const float inverse = k.inverse[row];
            gains[i] = -inverse * (r.x * d_r.x + r.y * d_r.y);
            const float2 erased = times(left, d_r);
            if (floats)
                put_floats(to, to.read, row, to.made ? erased : make_float2(inverse * d_r.x, inverse * d_r.y));
            else
                lead_read<T, form>(shared, room, to, i, w, held, erased, all);
        } else if (floats && to.read) {
            put_floats(to, to.read, row, none);
        }
        own_pair(own + OWN_BYTES, i) = all;
        if (!asks) continue;
        if (floats && to.query)
            put_floats(to, to.query, row, d_q);
        else
            set_row<T, form>(shared + room.query, i, d_q);
    }
    if (reads && to.gain) {
        dr_warp_sums<HALF>(gains);
        if (lane % 4 == 0) to.gain[start + lane / 4] = gains[0];
    }
}

/* ---- pairs that cross a half --------------------------------------------------------------------------------------------- */

/* Places of 64 numbers in k.half: of pairs that cross the first half of a block, since their readers are in its second one; the
 * second half, since their writers are in its first one; both, by the block of their readers. The last ones are free while
 * products are made, the others behind them, and all until put_warp_sums. */
static __device__ inline float *crossing_first(const keys_rows &k, int block) {
    return k.half + block * 64;
}

static __device__ inline float *crossing_second(const keys_rows &k, int block) {
    return k.half + (4 + block) * 64;
}

static __device__ inline float *crossing_block(const keys_rows &k, int block, int readers) {
    return k.half + (8 + readers * (readers - 1) / 2 + block) * 64;
}

/* What crosses the warp's rows, of the lane's channels. */
static __device__ inline float2 take_crossing(const keys_rows &k) {
    const int warp = (int)(threadIdx.x / 32), d = (int)(threadIdx.x % 32) * 2, block = warp / 2;
    float2 sum = *(const float2 *)((warp % 2 ? crossing_second(k, block) : crossing_first(k, block)) + d);
    for (int readers = block + 1; readers < 4; readers++) {
        const float2 more = *(const float2 *)(crossing_block(k, block, readers) + d);
        sum = make_float2(sum.x + more.x, sum.y + more.y);
    }
    return sum;
}

/* What the warp's rows add to the log decays of the warps before it (suffix) and behind it (prefix): what a warp needs of the
 * others lies side by side. The factors of halves are read: their place is free for these sums. */
static __device__ inline void put_warp_sums(const keys_rows &k, float2 suffix, float2 prefix) {
    const int warp = (int)(threadIdx.x / 32), d = (int)(threadIdx.x % 32) * 2;
    *(float2 *)(k.half + warp * 64 + d) = suffix;
    *(float2 *)(k.half + (WARPS + warp) * 64 + d) = prefix;
}

/* What the warp's log decays get of the other warps and of the exit; behind a barrier. */
static __device__ inline float2 take_warp_sums(const keys_rows &k) {
    const int warp = (int)(threadIdx.x / 32), d = (int)(threadIdx.x % 32) * 2;
    const float *from = k.half + (warp + 1) * 64 + d;
    float2 sum = *(const float2 *)(k.exit + d), more[WARPS - 1]; /* asked for at once */
    DR_UNROLL (i, WARPS - 1) more[i] = *(const float2 *)(from + i * 64);
    DR_UNROLL (i, WARPS - 1) sum = make_float2(sum.x + more[i].x, sum.y + more[i].y);
    return sum;
}

/* The gradients of the log decays, when all warps' sums are there; where alpha is 0 so are they. */
template <int form>
static __device__ inline void give_decays(const dr_cuda_rows &rows, const dr_row_block &x, const char *alpha,
                                          const keys_rows &k, int first, const decay_sums<form> &sums) {
    typedef decay_sums<form> counts;
    constexpr bool known = form & (PAIRS | SINGLE);
    const int start = (int)(threadIdx.x / 32) * HALF, d = (int)(threadIdx.x % 32) * 2,
              left = form & LEAN ? 2 : rows.key_size - first - d;
    const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
    if (!decay.gradient) return;
    float *const begin = (float *)decay.gradient + dr_input_index(decay, x.place.first, 0, x.head) + first + d +
                         row_token<form>(rows, start + rows.steps - 1) * decay.token; /* of the first token that begins here */
    float *to = begin;
    float2 rest = take_warp_sums(k), sum[counts::tokens];
    DR_UNROLL (i, counts::tokens) {
        sum[i] = make_float2(sums.behind[i].x + rest.x, sums.behind[i].y + rest.y);
        rest = make_float2(rest.x + sums.written[i].x, rest.y + sums.written[i].y);
    }
    if (form & LEAN) {
#pragma unroll
        for (int i = 0; i < counts::tokens; i++, to += decay.token)
            if (start + i * counts::steps < x.rows) *(float2 *)to = sum[i];
    } else if (known && x.rows == 64 && rows.aligned && left > 1) { /* most often */
#pragma unroll
        for (int i = 0; i < counts::tokens; i++, to += decay.token) *(float2 *)to = sum[i];
    } else {
        DR_UNROLL (i, counts::tokens) {
            const int row = start + i * counts::steps;
            if (row >= x.rows || (!known && row % rows.steps != 0)) continue;
            if (left > 0) to[0] = sum[i].x;
            if (left > 1) to[1] = sum[i].y;
            to += decay.token;
        }
    }
    if (!sums.decayed) return;
    to = begin;
#pragma unroll 1
    for (int row = start; row < start + HALF && row < x.rows; row += counts::steps) {
        if (!known && row % rows.steps != 0) continue;
        const float2 a = *(const float2 *)(alpha + unit_at<float, form>(row, d));
        if (left > 0 && a.x == 0) to[0] = 0;
        if (left > 1 && a.y == 0) to[1] = 0;
        to += decay.token;
    }
}

/* What the warp's rows make, in registers: w's gradients, what the log decays get; w . d_w and w . w of the lane's channels. */
template <int form> struct made_rows {
    float2 d_write[HALF];
    float dot[HALF], square[HALF];
    decay_sums<form> decays;
};

/* The rest of w's gradients, and what the log decays get of the exit. own: what w has got of its own row, as rows_near has it,
 * and d_far without the decays to the border. */
template <typename T, int form>
static __device__ inline void rows_far(char *shared, const keys_room &room, const keys_rows &k, char *own,
                                       const float2 (&near)[HALF], made_rows<form> &r) {
    constexpr int steps = decay_sums<form>::steps;
    const float2 none = make_float2(0, 0);
    float2 prefix = none, tail = make_float2(1, 1), f = none;
#pragma unroll
    for (int i = HALF - 1; i >= 0; i--) {
        const float2 w = row_pair<T, form>(shared + room.write, i), got = near[i], mine = own_pair(own + OWN_BYTES, i);
        const float2 far = times(tail, own_pair(own + 2 * OWN_BYTES, i));
        const float2 all = make_float2(mine.x + got.x + far.x, mine.y + got.y + far.y);
        if (row_asks<form>(i)) f = none;
        f = plus(far, w, f);
        r.d_write[i] = all;
        r.dot[i] = fmaf(w.x, all.x, w.y * all.y);
        r.square[i] = fmaf(w.x, w.x, w.y * w.y);
        if (!row_decays<form>(i)) continue;
        tail = times(tail, row_pair<float, form>(shared + room.alpha, i));
        prefix = make_float2(prefix.x + f.x, prefix.y + f.y);
        r.decays.written[i / steps] = f;
    }
    r.decays.decayed = tail.x == 0 || tail.y == 0;
    put_warp_sums(k, none, prefix);
}

/* w's gradients to where they go. */
template <typename T, int form>
static __device__ inline void put_writes(char *shared, const keys_room &room, const channel_results &to, made_rows<form> &r) {
    const int start = (int)(threadIdx.x / 32) * HALF, lane = (int)(threadIdx.x % 32);
    DR_UNROLL (i, HALF) {
        if (form & FLOATS)
            put_floats(to, to.write, start + i, r.d_write[i]);
        else
            set_row<T, form>(shared + room.write, i, r.d_write[i]);
    }
    if (!(form & FLOATS) || !to.made) return;
    dr_warp_sums<HALF>(r.dot);
    dr_warp_sums<HALF>(r.square);
    if (lane % 4 == 0) to.write_dot[start + lane / 4] = r.dot[0], to.square[start + lane / 4] = r.square[0];
}

/* All of it but what the gradients lead to; w: dS' U, of the warp's products. */
template <typename T, int form>
static __device__ inline void make_rows(const dr_cuda_rows &rows, char *shared, const keys_room &room, const keys_rows &k,
                                        char *own, const float (&w)[4][4], const channel_results &to, made_rows<form> &r) {
    float2 near[HALF];
    const float2 crossing = take_crossing(k);
    take_near<form>(shared + room.alpha, own, near);
    __syncthreads(); /* the place of what crosses is free, too */
    put_own<T>(own + 2 * OWN_BYTES, w);
    rows_near<T, form>(rows, shared, room, k, own, to, near, r.decays.behind);
    meet_block<T>();
    rows_far<T, form>(shared, room, k, own, near, r);
    DR_UNROLL (i, decay_sums<form>::tokens)
        r.decays.behind[i] = make_float2(r.decays.behind[i].x + crossing.x, r.decays.behind[i].y + crossing.y);
}

#endif
