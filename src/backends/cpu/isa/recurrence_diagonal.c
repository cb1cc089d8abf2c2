/* The diagonal scan and what it feeds, per key head: A of every token, the squash B, Sherman-Morrison write keys, the query q~.
 * All value heads of the key head share it; the backward runs once, after all of them have added their gradients. */
#include "backends/cpu/isa/recurrence_stages.h"
#include "maps/diagonal.h"

static const float *key_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t) {
    return chunk->input[DR_INPUT_KEY] + t * plan->key_pitch;
}

static const float *scan_gain_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk) {
    return chunk->input[plan->rule->tied_scan ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN];
}

/* m = key . (B key) */
static void dot_keys(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const float *key = key_of(plan, chunk, t), *squash = chunk->squash + t * plan->key_pitch;
        lanes sum = lanes_zero();
        for (int64_t d = 0; d < plan->key_width; d += LANES) {
            lanes k = lanes_load(key + d);
            sum = lanes_fma(k, lanes_load(squash + d) * k, sum);
        }
        chunk->key_dot[t] = lanes_sum(sum);
    }
}

/* One vector of channels from d on through all tokens: A, which stays in a register; if the rule preconditions, B and its
 * slope, or only the write key. */
static inline __attribute__((always_inline)) void scan_channels(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t d,
                                                                const bool squashes, const bool writes) {
    const int64_t pitch = plan->key_pitch, end = chunk->tokens * pitch;
    const dr_map_squash squash = plan->squash;
    const lanes centre = squashes ? lanes_set(chunk->input[DR_INPUT_SCAN_CENTRE][0]) : lanes_zero();
    const float *alpha = chunk->scan_alpha, *gain = scan_gain_of(plan, chunk), *keys = chunk->input[DR_INPUT_KEY];
    float *scan = chunk->scan + pitch, *slopes = chunk->squash_slope, *to = writes ? chunk->write : chunk->squash;
    lanes a = lanes_load(chunk->scan + d), slope;
    for (int64_t at = d; at < end; at += pitch) {
        const lanes key = lanes_load(keys + at);
        a = dr_map_scan_step(a, lanes_set(*alpha++), lanes_set(*gain++), key);
        if (!writes) lanes_store(scan + at, a);
        if (!squashes) continue;
        lanes b = dr_map_squash_value(&squash, a, centre, &slope);
        lanes_store(to + at, writes ? b * key : b);
        if (!writes && slopes) lanes_store(slopes + at, slope);
    }
    if (writes) lanes_store(chunk->scan + end + d, a);
}

static void scan_forward(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const float *log_decay = chunk->input[plan->rule->tied_scan ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY];
    for (int64_t t = 0; t < chunk->tokens; t += LANES) {
        int64_t left = lanes_left(chunk->tokens, t);
        lanes_store_n(chunk->scan_alpha + t, left, lanes_exp(lanes_load_n(log_decay + t, left)));
    }
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        if (!plan->preconditioned)
            scan_channels(plan, chunk, d, false, false);
        else if (chunk->writes_scanned)
            scan_channels(plan, chunk, d, true, true);
        else
            scan_channels(plan, chunk, d, true, false);
    }
    if (plan->preconditioned && plan->rule->normalizer != DR_NORMALIZER_NONE) dot_keys(plan, chunk);
}

/* w = m / (1 + key . m), m = key / (A_{t-1} + ridge) */
static void sherman_morrison(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const float *ridge = chunk->input[DR_INPUT_RIDGE];
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const float *key = key_of(plan, chunk, t), *a = chunk->scan + t * plan->key_pitch;
        float *w = chunk->morrison + t * plan->key_pitch;
        lanes sum = lanes_zero();
        for (int64_t d = 0; d < plan->key_width; d += LANES) {
            lanes k = lanes_load(key + d), m = k / (lanes_load(a + d) + lanes_load(ridge + d));
            lanes_store(w + d, m);
            sum = lanes_fma(k, m, sum);
        }
        float factor = chunk->morrison_factor[t] = 1 / (1 + lanes_sum(sum));
        scale_row(plan->key_width, factor, w, w);
    }
}

static void correct_query(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    lanes correction = lanes_set(chunk->input[DR_INPUT_CORRECTION][0]);
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const float *key = key_of(plan, chunk, t), *query = chunk->input[DR_INPUT_QUERY] + t * chunk->pitch[DR_INPUT_QUERY];
        float *read = chunk->read_query + t * plan->key_pitch;
        for (int64_t d = 0; d < plan->key_width; d += LANES)
            lanes_store(read + d, lanes_load(query + d) - correction * lanes_load(key + d));
    }
}

static void ridge_query(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const float *ridge = chunk->input[DR_INPUT_RIDGE];
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const float *query = chunk->input[DR_INPUT_QUERY] + t * chunk->pitch[DR_INPUT_QUERY];
        const float *a = chunk->scan + (t + 1) * plan->key_pitch;
        float *read = chunk->read_query + t * plan->key_pitch;
        for (int64_t d = 0; d < plan->key_width; d += LANES)
            lanes_store(read + d, lanes_load(query + d) / (lanes_load(a + d) + lanes_load(ridge + d)));
    }
}

void dr_chunk_scan_diagonal(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (plan->rule->scan == DR_SCAN_DIAGONAL) scan_forward(plan, chunk);
    if (plan->sherman_morrison) sherman_morrison(plan, chunk);
}

void dr_chunk_map_query(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (plan->rule->query == DR_QUERY_CORRECTED) correct_query(plan, chunk);
    if (plan->rule->query == DR_QUERY_RIDGE) ridge_query(plan, chunk);
}

void dr_chunk_scan_keys(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    dr_chunk_scan_diagonal(plan, chunk);
    dr_chunk_map_query(plan, chunk);
}

/* ---- backward -------------------------------------------------------------------------------------------------------- */

static void add_to(float *to, lanes x) {
    lanes_store(to, lanes_load(to) + x);
}

static void correct_query_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    const lanes correction = lanes_set(chunk->input[DR_INPUT_CORRECTION][0]);
    lanes d_correction = lanes_zero();
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const int64_t row = t * plan->key_pitch;
        const float *key = key_of(plan, chunk, t);
        for (int64_t d = 0; d < plan->key_width; d += LANES) {
            lanes d_read = lanes_load(chunk->d_read_query + row + d);
            if (!plan->query_in_place) add_to(chunk->d_input[DR_INPUT_QUERY] + row + d, d_read);
            add_to(chunk->d_input[DR_INPUT_KEY] + row + d, -(correction * d_read));
            d_correction = lanes_fnma(lanes_load(key + d), d_read, d_correction);
        }
    }
    chunk->d_input[DR_INPUT_CORRECTION][0] += lanes_sum(d_correction);
}

/* q~ = q / (A_t + ridge): the gradient of A_t is returned in d_scan */
static void ridge_query_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t) {
    const int64_t row = t * plan->key_pitch;
    const float *a = chunk->scan + row + plan->key_pitch, *ridge = chunk->input[DR_INPUT_RIDGE];
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes d_query = lanes_load(chunk->d_read_query + row + d) / (lanes_load(a + d) + lanes_load(ridge + d));
        lanes d_sum = -(lanes_load(chunk->read_query + row + d) * d_query);
        add_to(chunk->d_input[DR_INPUT_QUERY] + row + d, d_query);
        add_to(chunk->d_input[DR_INPUT_RIDGE] + d, d_sum);
        add_to(chunk->d_scan + d, d_sum);
    }
}

/* from dB, the gradient of A_t; returns that of the centre, in lanes */
static lanes precondition_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t) {
    const int64_t row = t * plan->key_pitch;
    const float *a = chunk->scan + row + plan->key_pitch, *d_squash = chunk->d_squash + row;
    const lanes eps = lanes_set(plan->squash.eps);
    lanes d_centre = lanes_zero();
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes d_position = lanes_load(chunk->squash_slope + row + d) * lanes_load(d_squash + d);
        d_centre = d_centre - d_position;
        add_to(chunk->d_scan + d, d_position / (lanes_load(a + d) + eps));
    }
    return d_centre;
}

/* A_t = alpha A_{t-1} + b key * key: from d_scan of A_t to that of A_{t-1} */
static void scan_step_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t) {
    const int64_t row = t * plan->key_pitch;
    const float *key = key_of(plan, chunk, t), *a = chunk->scan + row;
    const float alpha = chunk->scan_alpha[t], b = scan_gain_of(plan, chunk)[t];
    lanes d_gain = lanes_zero(), d_alpha = lanes_zero(), twice = lanes_set(2 * b);
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes k = lanes_load(key + d), d_scan = lanes_load(chunk->d_scan + d);
        d_gain = lanes_fma(k * k, d_scan, d_gain);
        d_alpha = lanes_fma(lanes_load(a + d), d_scan, d_alpha);
        add_to(chunk->d_input[DR_INPUT_KEY] + row + d, twice * k * d_scan);
        lanes_store(chunk->d_scan + d, lanes_set(alpha) * d_scan);
    }
    bool tied = plan->rule->tied_scan;
    chunk->d_input[tied ? DR_INPUT_BETA : DR_INPUT_SCAN_GAIN][t] += lanes_sum(d_gain);
    chunk->d_input[tied ? DR_INPUT_LOG_DECAY : DR_INPUT_SCAN_LOG_DECAY][t] += alpha * lanes_sum(d_alpha);
}

/* w = f m, f = 1 / (1 + key . m), m = key / (A_{t-1} + ridge): dm = f dw - f^2 (m . dw) key */
static void sherman_morrison_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t) {
    const int64_t row = t * plan->key_pitch;
    const float *key = key_of(plan, chunk, t), *a = chunk->scan + row, *ridge = chunk->input[DR_INPUT_RIDGE];
    const float *w = chunk->morrison + row, *d_w = chunk->d_morrison + row;
    const float f = chunk->morrison_factor[t], d_dot = -f * dot_rows(plan->key_width, w, d_w);
    for (int64_t d = 0; d < plan->key_width; d += LANES) {
        lanes k = lanes_load(key + d), sum = lanes_load(a + d) + lanes_load(ridge + d), m = k / sum;
        lanes d_m = lanes_fma(lanes_set(d_dot), k, lanes_set(f) * lanes_load(d_w + d)) / sum;
        lanes d_sum = -(m * d_m);
        add_to(chunk->d_input[DR_INPUT_KEY] + row + d, lanes_fma(lanes_set(d_dot), m, d_m));
        add_to(chunk->d_input[DR_INPUT_RIDGE] + d, d_sum);
        add_to(chunk->d_scan + d, d_sum);
    }
}

void dr_chunk_scan_keys_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk) {
    if (plan->rule->query == DR_QUERY_CORRECTED) correct_query_back(plan, chunk);
    if (plan->rule->scan != DR_SCAN_DIAGONAL) return;
    lanes d_centre = lanes_zero();
    for (int64_t t = chunk->tokens - 1; t >= 0; t--) {
        if (plan->rule->query == DR_QUERY_RIDGE) ridge_query_back(plan, chunk, t);
        if (plan->preconditioned) d_centre = d_centre + precondition_back(plan, chunk, t);
        scan_step_back(plan, chunk, t);
        if (plan->sherman_morrison) sherman_morrison_back(plan, chunk, t);
    }
    if (plan->preconditioned) chunk->d_input[DR_INPUT_SCAN_CENTRE][0] += lanes_sum(d_centre);
}
