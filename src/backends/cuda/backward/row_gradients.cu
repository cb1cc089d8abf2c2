/* rows: from the gradients of q~, r, w, c and z to those of the inputs. A warp takes a token of a key head and goes through its
 * value heads and steps in order, so that what a key head owns is summed by one owner in one order. */
#include "backends/cuda/backward/row_tiles.cuh"
#include "backends/cuda/device/device.cuh"
#include "backends/cuda/device/launch.cuh"
#include "backends/cuda/diagonal/diagonal.cuh"

enum { WARPS = 4 };

/* Sums over the steps of a token and value head. */
struct value_sums {
    float beta, erase_gain, lambda, alpha;
};

template <int E> static __device__ inline void clear(float (&x)[E]) {
    DR_UNROLL (e, E) x[e] = 0;
}

template <int E> static __device__ inline void add(float (&to)[E], const float (&x)[E]) {
    DR_UNROLL (e, E) to[e] += x[e];
}

template <typename T, int E>
static __device__ inline void store_gradient(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head,
                                             const float (&x)[E]) {
    const dr_cuda_input &input = rows.input[i];
    if (!input.at || !input.gradient) return;
    const int first = dr_lane_first<E>();
    dr_store_lane<T, E>((T *)input.gradient + dr_input_index(input, token, step, head) + first, rows.key_size - first,
                        rows.aligned, x);
}

static __device__ inline void put_scalar(const dr_cuda_rows &rows, int i, int64_t token, int step, int head, float x) {
    const dr_cuda_input &input = rows.input[i];
    if (input.at && input.gradient) ((float *)input.gradient)[dr_input_index(input, token, step, head)] = x;
}

/* One value per warp: x is the same in all lanes. */
static __device__ inline void store_scalar(const dr_cuda_rows &rows, dr_input i, int64_t token, int step, int head, float x) {
    if (threadIdx.x % 32 == 0) put_scalar(rows, i, token, step, head, x);
}

/* A row of a block, [64][Kp] floats. */
template <int E>
static __device__ inline void load_row(const dr_cuda_chunk_plan &plan, const float *from, int64_t block, int row,
                                       float (&to)[E]) {
    dr_load_lane<float, E>(from + (block * 64 + row) * plan.key_width + dr_lane_first<E>(), E, true, to);
}

/* w only ever stands beside c u, so scaling it is scaling c: w . dw = u . dz, and c dc is that less what z = factor v gets.
 * What rounded products bring to the two sides differs, and gradients through a gain that divides by r . w, or through the
 * scan, are differences of them: so dw's part along w and dc both come from u . dz. In 16 bits dc does in any case: u is at
 * hand in float there, and r . dr has been through scores and updates that were rounded. Where c is too small to divide by, dc
 * stays as it is: what float rounds off u . dz is divided too, and products of floats are better than that sooner than those of
 * 16 bits. */
static __device__ inline void settle_gain(dr_dtype storage, const dr_cuda_row &spec, const dr_row_gains &gains, float value_dot,
                                          float write_dot, float *d_gain) {
    const bool own_factor = spec.values != DR_VALUES_NONE && spec.values != DR_VALUES_GAINED;
    const float least = storage == DR_F32 ? 0x1p-4f : 0x1p-10f;
    if (spec.reads == DR_READS_NONE && spec.values != DR_VALUES_GAINED) return;
    if (fabsf(gains.gain) >= least) *d_gain = (own_factor ? write_dot - gains.factor * value_dot : write_dot) / gains.gain;
}

/* Adds a multiple of w to its gradient such that their product is `target`. */
template <int E> static __device__ inline void settle_write(const float (&w)[E], float target, float (&d_w)[E]) {
    const float square = dr_lane_dot<E>(w, w), dot = dr_lane_dot<E>(w, d_w);
    const float more = dr_settle_by(target, dot, square);
    DR_UNROLL (e, E) d_w[e] = fmaf(more, w[e], d_w[e]);
}

template <typename T, int E>
static __device__ inline void row_back(const dr_cuda_backward_call &call, int64_t token, int step, int key_head, int head,
                                       int64_t block, int row, dr_key_sums<E> &sums, value_sums &own) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_cuda_row &spec = dr_rule_row(rows, step);
    const bool reads = spec.reads != DR_READS_NONE;
    const int64_t at = block * 64 + row;
    float r[E], w[E], d_r[E], d_w[E];
    /* asked for before anything waits */
    load_row<E>(plan, call.back.d_write, block, row, d_w);
    if (reads)
        load_row<E>(plan, call.back.d_read, block, row, d_r);
    else
        clear<E>(d_r);
    const float value_dot = call.back.value_dot[at], write_dot = call.back.write_dot[at];
    const float factor = dr_read_factor(rows, spec, token, head);
    dr_key_lanes<E> x;
    dr_load_key_lanes<T, E>(rows, spec, token, step, key_head, head, dr_lane_first<E>(), x);
    dr_make_keys<E>(spec, x, factor, r, w);
    const float dot = dr_row_needs_dot(rows, step) ? dr_lane_dot<E>(r, w) : 0;
    const dr_map_gain_inputs scalars = dr_row_gain_inputs(rows, token, step, key_head, head, dot);
    const dr_row_gains gains = dr_row_gain_of(rows, step, scalars);

    float d_gain = 0, d_factor = 0;
    if (reads) {
        d_gain = -dr_lane_dot<E>(r, d_r);
        DR_UNROLL (e, E) d_r[e] *= -gains.gain;
    }
    if (spec.values != DR_VALUES_NONE) {
        if (spec.values == DR_VALUES_GAINED)
            d_gain += value_dot;
        else
            d_factor += value_dot;
    }
    const bool differs = reads && (rows.diagonal_scan || dr_row_needs_dot(rows, step));
    if (differs || (reads && sizeof(T) == 2)) settle_gain(plan.storage, spec, gains, value_dot, write_dot, &d_gain);
    if (differs) settle_write<E>(w, write_dot, d_w);
    dr_map_gain_inputs d = {};
    dr_map_base_gain_backward(spec.formula, &scalars, gains.base, d_gain * gains.factor, &d);
    dr_map_normalizer_backward(spec.normalizer, &scalars, gains.factor, d_factor + d_gain * gains.base, &d);
    own.beta += d.beta;
    own.erase_gain += d.erase_gain;
    own.alpha += d.alpha * scalars.alpha;

    DR_UNROLL (e, E) {
        d_r[e] = fmaf(d.dot, w[e], d_r[e]);
        d_w[e] = fmaf(d.dot, r[e], d_w[e]);
    }
    if (spec.normalized) {
        float key[E];
        dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, 0, key_head, rows.key_size, dr_lane_first<E>(), key);
        DR_UNROLL (e, E) {
            d_w[e] = fmaf(d.key_dot, key[e], d_w[e]);
            sums.key[e] += d.key_dot * w[e];
        }
    }
    const float d_read_factor = dr_keys_back<E>(spec, x, factor, r, d_r, d_w, sums);
    if (spec.reads == DR_READS_AFFINE) own.lambda += dr_warp_sum(d_read_factor);
}

template <int E>
static __device__ inline void store_for_scan(const dr_cuda_rows &rows, float *at, int64_t token, int head,
                                             const float (&x)[E]) {
    if (!at) return;
    const int first = dr_lane_first<E>();
    dr_store_lane<float, E>(at + (token * rows.key_heads + head) * rows.key_size + first, rows.key_size - first, rows.aligned,
                            x);
}

/* A token t of chunk slot `slot`. */
template <typename T, int E>
static __device__ inline void token_back(const dr_cuda_backward_call &call, int64_t slot, int t, int64_t token, int key_head) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    dr_key_sums<E> sums = {}; /* but of gates what belongs to the key head */
    float read_query[E] = {};
    if (rows.step_axis) { /* key and beta have a row for each step */
        for (int step = 0; step < rows.steps; step++) {
            clear<E>(sums.key);
            for (int i = 0; i < rows.group; i++) {
                const int head = key_head * rows.group + i;
                value_sums own = {};
                row_back<T, E>(call, token, step, key_head, head, slot * plan.value_heads + head, t * rows.steps + step, sums,
                               own);
                store_scalar(rows, DR_INPUT_BETA, token, step, head, own.beta);
            }
            store_gradient<T, E>(rows, DR_INPUT_KEY, token, step, key_head, sums.key);
        }
    } else {
        for (int i = 0; i < rows.group; i++) {
            const int head = key_head * rows.group + i;
            value_sums own = {};
            clear<E>(sums.erase_gate);
            for (int step = 0; step < rows.steps; step++)
                row_back<T, E>(call, token, step, key_head, head, slot * plan.value_heads + head, t * rows.steps + step, sums,
                               own);
            store_scalar(rows, DR_INPUT_BETA, token, 0, head, own.beta);
            store_scalar(rows, DR_INPUT_ERASE_GAIN, token, 0, head, own.erase_gain);
            store_scalar(rows, DR_INPUT_LAMBDA, token, 0, head, own.lambda);
            store_gradient<T, E>(rows, DR_INPUT_ERASE_GATE, token, 0, head, sums.erase_gate);
            const dr_cuda_input &decay = rows.input[DR_INPUT_LOG_DECAY];
            if (rows.discounted && decay.gradient && threadIdx.x % 32 == 0) {
                const int64_t at = dr_input_index(decay, token, 0, head);
                if (((const float *)decay.at)[at] != -INFINITY) ((float *)decay.gradient)[at] += own.alpha;
            }
        }
    }
    for (int i = 0; i < rows.group; i++) {
        float d[E];
        load_row<E>(plan, call.back.d_query, slot * plan.value_heads + key_head * rows.group + i,
                    t * rows.steps + rows.steps - 1, d);
        add<E>(read_query, d);
    }
    if (rows.asks != DR_ASKS_MADE) add<E>(sums.query, read_query);
    if (rows.asks == DR_ASKS_AFFINE) {
        const float correction = dr_input_scalar(rows, rows.ask_factor, 0, 0, key_head);
        float key[E];
        dr_input_vector<T, E>(rows, DR_INPUT_KEY, token, 0, key_head, rows.key_size, dr_lane_first<E>(), key);
        DR_UNROLL (e, E) sums.key[e] -= correction * read_query[e];
        const float dot = dr_lane_dot<E>(key, read_query);
        if (threadIdx.x % 32 == 0) call.back.d_correction[token * rows.key_heads + key_head] = -dot;
    }
    if (rows.diagonal_scan) {
        store_for_scan<E>(rows, call.diagonal.key, token, key_head, sums.key);
        store_for_scan<E>(rows, call.diagonal.query, token, key_head, sums.query);
        store_for_scan<E>(rows, call.diagonal.squashed, token, key_head, sums.squashed);
        store_for_scan<E>(rows, call.diagonal.morrison, token, key_head, sums.morrison);
        store_for_scan<E>(rows, call.diagonal.read_query, token, key_head, read_query);
    } else {
        if (!rows.step_axis) store_gradient<T, E>(rows, DR_INPUT_KEY, token, 0, key_head, sums.key);
        store_gradient<T, E>(rows, DR_INPUT_QUERY, token, 0, key_head, sums.query);
    }
    store_gradient<T, E>(rows, DR_INPUT_ERASE_KEY, token, 0, key_head, sums.erase_key);
    store_gradient<T, E>(rows, DR_INPUT_FEEDBACK_KEY, token, 0, key_head, sums.feedback_key);
    store_gradient<T, E>(rows, DR_INPUT_FREE_READ, token, 0, key_head, sums.free_read);
    store_gradient<T, E>(rows, DR_INPUT_FREE_WRITE, token, 0, key_head, sums.free_write);
    store_gradient<T, E>(rows, DR_INPUT_RATE, token, 0, key_head, sums.rate);
}

/* A block of threads takes WARPS tokens of a chunk and a key head, a warp one of them. */
static __host__ __device__ inline unsigned token_groups(const dr_cuda_chunk_plan &plan) {
    return ((unsigned)plan.chunk + WARPS - 1) / WARPS;
}

template <typename T, int E>
static __global__ void __launch_bounds__(32 * WARPS) row_gradients(const __grid_constant__ dr_cuda_backward_call call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const unsigned groups = token_groups(plan), rest = blockIdx.x / groups, heads = (unsigned)plan.key_heads;
    const int t = (int)(blockIdx.x % groups * WARPS + threadIdx.x / 32);
    const dr_chunk_place place = dr_find_chunk(plan, call.chunk.cu, rest / heads);
    if (t < place.tokens) token_back<T, E>(call, rest / heads, t, place.first + t, (int)(rest % heads));
}

/* What a row has of each 64 channels. */
typedef struct {
    float of[4];
} parts_of;

static __device__ inline parts_of ask_parts(const float *from, int64_t at, int parts) {
    parts_of x = {};
    DR_UNROLL (p, 4)
        if (from && p < parts) x.of[p] = from[at + p * 64];
    return x;
}

static __device__ inline float add_parts(float sum, const parts_of &x) {
    DR_UNROLL (p, 4) sum += x.of[p];
    return sum;
}

/* Where keys.cu has led the gradients of the vectors to the inputs: those of the gains and of lambda, and for the scan's
 * backward the multiple of w that settles w's, or if that is made the gradients of its gains and decays. One thread a row. */
static __global__ void __launch_bounds__(64) gain_gradients(const __grid_constant__ dr_cuda_backward_call call) {
    const dr_cuda_chunk_plan &plan = call.plan;
    const dr_cuda_rows &rows = plan.rows;
    const dr_row_block x = dr_row_block_of(plan, call.chunk.cu, blockIdx.x);
    const int i = (int)threadIdx.x, parts = plan.key_width / 64;
    if (i >= x.rows) return;
    const int token = dr_row_token(rows, i), step = i - token * rows.steps;
    const dr_cuda_row &spec = dr_rule_row(rows, step);
    const bool reads = spec.reads != DR_READS_NONE;
    const int64_t at = x.block * 64 + i, part = x.block * parts * 64 + i;
    const int64_t scanned = x.place.first + i; /* the scan's token: rules with one have one row a token here */
    const dr_cuda_backward_tensors &back = call.back;
    const bool settles = call.diagonal.settle, beside = settles && !call.diagonal.key; /* beside the units, which are there */

    /* asked for before any of it is waited for */
    const parts_of gained = ask_parts(reads ? back.gain_part : NULL, part, parts),
                   lambdas = ask_parts(back.lambda_part, part, parts);
    const parts_of dots = ask_parts(settles && reads ? back.write_part : NULL, part, parts);
    const parts_of squares = ask_parts(settles && reads ? back.square_part : NULL, part, parts);
    const parts_of scan_gains = ask_parts(back.scan_gain_part, part, parts),
                   scan_decays = ask_parts(back.scan_decay_part, part, parts);
    const float value_dot = back.value_dot[at], write_dot = back.write_dot[at];
    const bool settled = reads && (rows.diagonal_scan || plan.storage != DR_F32);
    const float gain = settled ? call.chunk.factors[x.block].gain[i] : 0;
    const float alpha = beside || back.scan_gain_part ? dr_diagonal_alpha(rows, scanned, x.key_head) : 0;
    const float scan_gain = beside ? dr_diagonal_gain(rows, scanned, x.key_head) : 0;

    float sum = add_parts(spec.values == DR_VALUES_GAINED ? value_dot : 0, gained);
    if (settled) {
        const dr_row_gains gains = {gain, gain, 1};
        settle_gain(plan.storage, spec, gains, value_dot, write_dot, &sum);
    }
    if (settles) {
        const float settle = dr_settle_by(write_dot, add_parts(0, dots), add_parts(0, squares));
        if (beside) {
            dr_cuda_scan_row &to = call.diagonal.row[at];
            to.alpha = alpha, to.gain = scan_gain, to.settle = settle;
        } else {
            call.diagonal.settle[scanned * rows.key_heads + x.key_head] = settle;
        }
    }
    if (spec.gained != DR_NO_SOURCE)
        put_scalar(rows, spec.gained, x.place.first + token, dr_step_index(rows, step), x.head, sum);
    if (back.lambda_part) put_scalar(rows, DR_INPUT_LAMBDA, x.place.first + token, 0, x.head, add_parts(0, lambdas));
    if (back.scan_gain_part)
        dr_diagonal_put_scalars(rows, scanned, x.key_head, alpha, add_parts(0, scan_gains), add_parts(0, scan_decays));
}

/* Whether a rule's rows leave gain_gradients anything to do. */
static bool has_gains(const dr_cuda_backward_call *call) {
    const dr_cuda_rows *rows = &call->plan.rows;
    bool gained = call->plan.rows.diagonal_scan || call->back.lambda_part;
    for (int i = 0; i < rows->kinds; i++) gained |= rows->row[i].gained != DR_NO_SOURCE;
    return gained;
}

template <typename T, int E> static dr_status launch(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    return dr_cuda_launch("row_gradients", row_gradients<T, E>, {plan->slots, plan->key_heads, token_groups(*plan)}, 32 * WARPS,
                          0, stream, *call);
}

dr_status dr_cuda_backward_rows(const dr_cuda_backward_call *call, dr_cuda_stream stream) {
    const dr_cuda_chunk_plan *plan = &call->plan;
    if (plan->slots > 0 && (plan->rows.direct || plan->rows.made)) {
        const bool written = dr_cuda_backward_fuses(plan) && plan->rows.direct; /* by gradients.cu */
        if (!written && has_gains(call))
            DR_TRY(dr_cuda_launch("gain_gradients", gain_gradients, {plan->blocks}, 64, 0, stream, *call));
    } else if (plan->slots > 0) {
        DR_CUDA_CHUNK_STORAGE(plan->storage, T,
                              DR_CUDA_KEY_BOXES(plan->key_width, boxes, DR_TRY((launch<T, 2 * boxes>(call, stream)))));
    }
    const dr_cuda_input *correction = &plan->rows.input[DR_INPUT_CORRECTION], *decay = &plan->rows.input[DR_INPUT_LOG_DECAY];
    if (plan->rows.asks == DR_ASKS_AFFINE && correction->gradient)
        DR_TRY(dr_cuda_sum_rows(call->back.d_correction, plan->tokens, plan->key_heads, NULL, (float *)correction->gradient,
                                stream));
    if (plan->rows.constant_decay && decay->gradient)
        DR_TRY(dr_cuda_sum_rows(call->back.d_log_decay, plan->tokens, plan->value_heads, (const float *)decay->at,
                                (float *)decay->gradient, stream));
    return DR_OK;
}
