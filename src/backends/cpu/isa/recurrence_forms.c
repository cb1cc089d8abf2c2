/* Tensors in other forms than floats (dr_forms), on their way into a chunk and out of it: types of 16 bits are widened and
 * rounded row by row, and what the recurrence reads is made of what the caller gave.
 *
 *     query, key   y = x / n, n = sqrt(x . x + eps)        dx = (dy - y (y . dy)) / n
 *     beta         factor sigmoid(x)                       times its slope
 *     log_decay    with u = x + dt_bias, r = exp(A_log):
 *                  -r softplus(u)                          d_u = -d r sigmoid(u),            d_A_log = -d r softplus(u)
 *                  bound sigmoid(r u)                      d_u = d bound r sigmoid'(r u),    d_A_log = d bound sigmoid'(r u) r
 * u
 *
 * The backward makes y again from x, which costs less than memory for it. Where the gradient of a log decay is 0, as that of
 * -inf is, so are those of what it was made of. Sums over tokens go into one partial sum a segment and head, so that segments
 * may be taken in any order. */
#include "backends/cpu/isa/recurrence_stages.h"
#include "base/half.h"
#include <math.h>

/* ---- types ----------------------------------------------------------------------------------------------------------- */

static float element(dr_dtype dtype, const void *from, int64_t at) {
    if (dtype == DR_BF16) return dr_bf16_to_float(((const uint16_t *)from)[at]);
    if (dtype == DR_F16) return dr_f16_to_float(((const uint16_t *)from)[at]);
    return ((const float *)from)[at];
}

static void put_element(dr_dtype dtype, float value, void *to, int64_t at) {
    if (dtype == DR_BF16)
        ((uint16_t *)to)[at] = dr_bf16_from_float(value);
    else if (dtype == DR_F16)
        ((uint16_t *)to)[at] = dr_f16_from_float(value);
    else
        ((float *)to)[at] = value;
}

static const void *address(dr_dtype dtype, const void *tensor, int64_t at) {
    return (const char *)tensor + at * (int64_t)dr_dtype_size(dtype);
}

static void load_typed_row(dr_dtype dtype, int64_t width, const void *from, float *to) {
    if (dtype == DR_F32) {
        load_row(width, from, to);
        return;
    }
    int64_t d = 0;
    for (; dtype == DR_BF16 && d + LANES <= width; d += LANES) lanes_store(to + d, lanes_load_bf16((const uint16_t *)from + d));
    for (; d < width; d++) to[d] = element(dtype, from, d);
    for (; d < round_to_tile(width); d++) to[d] = 0;
}

static void store_typed_row(dr_dtype dtype, int64_t width, const float *from, void *to) {
    if (dtype == DR_F32) {
        copy_row(width, from, to);
        return;
    }
    int64_t d = 0;
    for (; dtype == DR_BF16 && d + LANES <= width; d += LANES) lanes_store_bf16((uint16_t *)to + d, lanes_load(from + d));
    for (; d < width; d++) put_element(dtype, from[d], to, d);
}

void dr_rows_load(dr_dtype dtype, int64_t rows, int64_t width, const void *from, int64_t stride, float *to, int64_t pitch) {
    for (int64_t i = 0; i < rows; i++) load_typed_row(dtype, width, address(dtype, from, i * stride), to + i * pitch);
}

void dr_rows_store(dr_dtype dtype, int64_t rows, int64_t width, const float *from, int64_t pitch, void *to, int64_t stride) {
    for (int64_t i = 0; i < rows; i++) store_typed_row(dtype, width, from + i * pitch, (void *)address(dtype, to, i * stride));
}

/* ---- places ---------------------------------------------------------------------------------------------------------- */

/* The element of a row of the chunk and head where tokens are `token` elements apart. */
static int64_t row_at(const dr_cpu_input *input, const dr_cpu_chunk *chunk, int64_t token, int64_t row, int64_t head) {
    return (chunk->first + row / input->steps) * token + (row % input->steps * input->heads + head) * input->width;
}

/* One number a row, zero up to whole vectors. */
static void load_scalars(const dr_cpu_input *input, const dr_cpu_chunk *chunk, const void *tensor, int64_t head, float *to) {
    const int64_t rows = chunk->tokens * input->steps;
    for (int64_t row = 0; row < rows; row++)
        to[row] = element(input->dtype, tensor, row_at(input, chunk, input->token, row, head));
    for (int64_t row = rows; row % LANES != 0; row++) to[row] = 0;
}

static void store_scalars(const dr_cpu_input *input, const dr_cpu_chunk *chunk, const float *from, void *tensor, int64_t head) {
    const int64_t rows = chunk->tokens * input->steps;
    for (int64_t row = 0; tensor && row < rows; row++)
        put_element(input->dtype, from[row], tensor, row_at(input, chunk, input->d_token, row, head));
}

/* ---- what is made ---------------------------------------------------------------------------------------------------- */

/* x of a head in place; returns 1 / n */
static float normalize(int64_t width, double eps, float *x) {
    const int64_t padded = round_to_tile(width);
    const float inverse = 1 / sqrtf(dot_rows(padded, x, x) + (float)eps);
    scale_row(padded, inverse, x, x);
    return inverse;
}

/* What the log decays of a value head are made with. */
typedef struct {
    dr_decay_form form;
    float rate, bound;
    const float *bias; /* of the head, or NULL */
    bool one;          /* bias: one number for the whole row */
} raw_decay;

static raw_decay raw_of(const dr_cpu_plan *plan, const dr_cpu_call *call, int64_t head, bool one) {
    float rate[LANES] = {1};
    if (call->A_log) lanes_store(rate, lanes_exp(lanes_set(call->A_log[head])));
    return (raw_decay){.form = plan->forms.decay,
                       .rate = rate[0],
                       .bound = (float)plan->forms.lower_bound,
                       .bias = call->dt_bias ? call->dt_bias + head * plan->bias_size : NULL,
                       .one = one};
}

/* Lanes d on of width numbers x with their bias. */
static lanes biased(const raw_decay *raw, const float *x, int64_t d, int64_t width) {
    lanes u = lanes_load(x + d);
    if (!raw->bias) return u;
    if (raw->one) return u + lanes_set(*raw->bias);
    return u + (width - d >= LANES ? lanes_load(raw->bias + d) : lanes_load_n(raw->bias + d, width - d));
}

/* to and x may be one; zero behind width up to `padded` */
static void make_log_decays(const raw_decay *raw, int64_t width, int64_t padded, const float *x, float *to) {
    const lanes rate = lanes_set(raw->rate);
    for (int64_t d = 0; d < padded; d += LANES) {
        if (d >= width) {
            lanes_store(to + d, lanes_zero());
            continue;
        }
        const lanes u = biased(raw, x, d, width);
        const lanes y =
            raw->form == DR_DECAY_FORM_SOFTPLUS ? -(rate * lanes_softplus(u)) : lanes_set(raw->bound) * lanes_sigmoid(rate * u);
        lanes_store(to + d, lanes_keep_first(y, width - d));
    }
}

/* From d of the log decays, width of them behind which d is 0: d_u in place of x, and of A_log in d_rate. */
static void make_decay_gradients(const raw_decay *raw, int64_t width, const float *d_log_decay, float *x, float *d_rate) {
    const lanes rate = lanes_set(raw->rate), zero = lanes_zero();
    for (int64_t d = 0; d < width; d += LANES) {
        const lanes u = biased(raw, x, d, width), dy = lanes_keep_first(lanes_load(d_log_decay + d), width - d);
        lanes d_u, d_A;
        if (raw->form == DR_DECAY_FORM_SOFTPLUS) {
            d_u = -(dy * rate) * lanes_sigmoid(u);
            d_A = -(dy * rate) * lanes_softplus(u);
        } else {
            const lanes z = rate * u, d_z = dy * lanes_set(raw->bound) * lanes_sigmoid_slope(z);
            d_u = d_z * rate;
            d_A = d_z * z;
        }
        lanes_store(x + d, lanes_select(lanes_equal(dy, zero), zero, d_u));
        lanes_store(d_rate + d, lanes_select(lanes_equal(dy, zero), zero, d_A));
    }
}

/* ---- loads ----------------------------------------------------------------------------------------------------------- */

static void load_made_scalars(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int i, int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    const int64_t rows = chunk->tokens * input->steps;
    float *to = chunk->input[i];
    load_scalars(input, chunk, call->inputs->at[i], head, to);
    if (!input->made) return;
    if (i == DR_INPUT_LOG_DECAY) {
        const raw_decay raw = raw_of(plan, call, head, true);
        make_log_decays(&raw, rows, rows, to, to);
        return;
    }
    for (int64_t row = 0; row < rows; row += LANES)
        lanes_store(to + row, lanes_set((float)plan->forms.beta_factor) * lanes_sigmoid(lanes_load(to + row)));
}

void dr_chunk_load_formed(const dr_cpu_plan *plan, const dr_cpu_call *call, dr_cpu_chunk *chunk, int i, int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    if (input->pitch == 1) {
        load_made_scalars(plan, call, chunk, i, head);
        return;
    }
    const int64_t rows = chunk->tokens * input->steps, K = plan->key_size;
    const raw_decay raw = input->made && i == DR_INPUT_LOG_DECAY ? raw_of(plan, call, head, false) : (raw_decay){0};
    float *to = chunk->input[i];
    for (int64_t row = 0; row < rows; row++, to += input->pitch) {
        const int64_t at = row_at(input, chunk, input->token, row, head) + input->first;
        load_typed_row(input->dtype, input->taken, address(input->dtype, call->inputs->at[i], at), to);
        if (!input->made) continue;
        if (i == DR_INPUT_LOG_DECAY)
            make_log_decays(&raw, K, plan->key_width, to, to);
        else
            normalize(K, plan->forms.normalize_eps, to);
    }
}

/* ---- stores ---------------------------------------------------------------------------------------------------------- */

/* Where the sums of the chunk's segment and a value head are. */
static int64_t sum_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t sequence, int64_t head) {
    const int64_t segment = (chunk->first - dr_layout_begin(&plan->layout, sequence)) / dr_cpu_segment(plan);
    return (dr_cpu_first_slot(plan, sequence) + segment) * plan->value_heads + head;
}

/* Sums of the chunk's gradients of A_log, and of dt_bias: of one number or of the channels. */
static void add_sum(double *sums, int64_t at, int64_t size, const float *x) {
    for (int64_t d = 0; sums && d < size; d++) sums[at * size + d] += (double)x[d];
}

static void add_up(double *sums, int64_t at, int64_t width, const float *x) {
    for (int64_t d = 0; sums && d < width; d++) sums[at] += (double)x[d];
}

static void store_scalar_decays(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t sum,
                                int64_t head) {
    const dr_cpu_input *input = &plan->input[DR_INPUT_LOG_DECAY];
    const raw_decay raw = raw_of(plan, call, head, true);
    load_scalars(input, chunk, call->inputs->at[DR_INPUT_LOG_DECAY], head, chunk->given);
    make_decay_gradients(&raw, chunk->tokens, chunk->d_input[DR_INPUT_LOG_DECAY], chunk->given, chunk->d_rate);
    add_up(call->d_A_log, sum, chunk->tokens, chunk->d_rate);
    add_up(call->d_dt_bias, sum, chunk->tokens, chunk->given);
    store_scalars(input, chunk, chunk->given, call->d_inputs->at[DR_INPUT_LOG_DECAY], head);
}

static void store_betas(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int64_t head) {
    const dr_cpu_input *input = &plan->input[DR_INPUT_BETA];
    const int64_t rows = chunk->tokens * input->steps;
    const float *d_beta = chunk->d_input[DR_INPUT_BETA];
    load_scalars(input, chunk, call->inputs->at[DR_INPUT_BETA], head, chunk->given);
    for (int64_t row = 0; row < rows; row += LANES) {
        const lanes slope = lanes_set((float)plan->forms.beta_factor) * lanes_sigmoid_slope(lanes_load(chunk->given + row));
        lanes_store(chunk->given + row, lanes_load(d_beta + row) * slope);
    }
    store_scalars(input, chunk, chunk->given, call->d_inputs->at[DR_INPUT_BETA], head);
}

/* dy of a row in place of x */
static void make_norm_gradient(const dr_cpu_plan *plan, const float *dy, float *x) {
    const float inverse = normalize(plan->key_size, plan->forms.normalize_eps, x);
    float along = 0;
    for (int64_t d = 0; d < plan->key_size; d++) along += x[d] * dy[d];
    for (int64_t d = 0; d < plan->key_size; d++) x[d] = inverse * (dy[d] - x[d] * along);
}

void dr_chunk_store_formed(const dr_cpu_plan *plan, const dr_cpu_call *call, const dr_cpu_chunk *chunk, int i, int64_t sequence,
                           int64_t head) {
    const dr_cpu_input *input = &plan->input[i];
    const bool is_decay = input->made && i == DR_INPUT_LOG_DECAY;
    void *to = call->d_inputs->at[i];
    if (!to && !(is_decay && (call->d_A_log || call->d_dt_bias))) return;
    const int64_t sum = is_decay ? sum_of(plan, chunk, sequence, head) : 0, rows = chunk->tokens * input->steps;
    const float *from = chunk->d_input[i];
    if (input->pitch == 1) {
        if (is_decay)
            store_scalar_decays(plan, call, chunk, sum, head);
        else if (input->made)
            store_betas(plan, call, chunk, head);
        else
            store_scalars(input, chunk, from, to, head);
        return;
    }
    const raw_decay raw = is_decay ? raw_of(plan, call, head, false) : (raw_decay){0};
    for (int64_t row = 0; row < rows; row++, from += input->pitch) {
        const float *d_row = from;
        if (input->made) {
            const int64_t at = row_at(input, chunk, input->token, row, head);
            load_typed_row(input->dtype, input->width, address(input->dtype, call->inputs->at[i], at), chunk->given);
            if (is_decay) {
                make_decay_gradients(&raw, input->width, from, chunk->given, chunk->d_rate);
                add_up(call->d_A_log, sum, input->width, chunk->d_rate);
                add_sum(call->d_dt_bias, sum, input->width, chunk->given);
            } else {
                make_norm_gradient(plan, from, chunk->given);
            }
            d_row = chunk->given;
        }
        if (!to) continue;
        const int64_t at = row_at(input, chunk, input->d_token, row, head);
        store_typed_row(input->dtype, input->width, d_row, (void *)address(input->dtype, to, at));
    }
}
