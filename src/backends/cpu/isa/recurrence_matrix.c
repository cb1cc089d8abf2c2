/* The matrix scans of a value head over the tokens of a chunk, before its rows, and what they feed: the query or the exact
 * write key, in `solved`. b weighs a key: beta if the rule reads beta, else 1.
 *
 *     gram            K_t = alpha K_{t-1} + b k k^T,   x: (K_t + Diag(ridge)) x = query, exactly or by conjugate gradients
 *     inverse gram    p = P_{t-1} k,   w = p / (1 + b k.p),   P_t = P_{t-1} - b w p^T
 *
 * Neither has a chunkwise form: a solve needs its own matrix, and so does the next inverse. The rows behind them have.
 * A matrix is symmetric to the last bit, since an element and its mirror image are computed alike. The backward keeps the
 * matrix of every token of the chunk; it takes the result of conjugate gradients as the solution. */
#include "backends/cpu/isa/recurrence_stages.h"
#include <string.h>

static const float *key_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t) {
    return chunk->input[DR_INPUT_KEY] + t * plan->key_pitch;
}

static float weight_of(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t) {
    return plan->input[DR_INPUT_BETA].used ? chunk->input[DR_INPUT_BETA][t] : 1;
}

static void add_weight(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, float amount) {
    if (plan->input[DR_INPUT_BETA].used) chunk->d_input[DR_INPUT_BETA][t] += amount;
}

/* rows [K]: to = M x; the pitch of M is that of keys */
static void multiply(const dr_cpu_plan *plan, const float *matrix, const float *x, float *to) {
    memset(to, 0, (size_t)plan->key_width * sizeof(float));
    for (int64_t i = 0; i < plan->key_size; i++) to[i] = dot_rows(plan->key_width, matrix + i * plan->key_pitch, x);
}

/* to = M^T x */
static void multiply_transposed(const dr_cpu_plan *plan, const float *matrix, const float *x, float *to) {
    memset(to, 0, (size_t)plan->key_width * sizeof(float));
    for (int64_t i = 0; i < plan->key_size; i++) add_row(plan->key_width, x[i], matrix + i * plan->key_pitch, to);
}

/* ---- gram ------------------------------------------------------------------------------------------------------------ */

static void gram_step(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, int64_t t, const float *before, float *after) {
    const float *key = key_of(plan, chunk, t);
    const lanes alpha = lanes_set(plan->scalar ? chunk->alpha[t] : 1), b = lanes_set(weight_of(plan, chunk, t));
    for (int64_t i = 0; i < plan->key_size; i++) {
        const int64_t row = i * plan->key_pitch;
        const lanes k = lanes_set(key[i]);
        for (int64_t d = 0; d < plan->key_width; d += LANES)
            lanes_store(after + row + d, lanes_fma(b, k * lanes_load(key + d), alpha * lanes_load(before + row + d)));
    }
}

/* chunk->system = K_t + Diag(ridge), dense */
static void lay_system(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, const float *matrix) {
    const int64_t n = plan->key_size;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) chunk->system[i * n + j] = (double)matrix[i * plan->key_pitch + j];
        chunk->system[i * n + i] += (double)chunk->input[DR_INPUT_RIDGE][i];
    }
}

/* x [K] of a chunk: solves the system with it, in double */
static void solve(const dr_cpu_plan *plan, const dr_cpu_chunk *chunk, bool iterate, const float *from, float *x) {
    const int64_t n = plan->key_size;
    double *solution = chunk->system_scratch;
    for (int64_t i = 0; i < n; i++) solution[i] = (double)from[i];
    if (iterate)
        dr_system_iterate(plan->rule, n, chunk->system, solution, solution + n);
    else
        dr_system_solve(n, chunk->system, solution);
    memset(x, 0, (size_t)plan->key_width * sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = (float)solution[i];
}

static void gram_forward(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, const float *before, float *after) {
    const int64_t row = t * plan->key_pitch;
    gram_step(plan, chunk, t, before, after);
    lay_system(plan, chunk, after);
    solve(plan, chunk, plan->rule->query == DR_QUERY_CONJUGATE_GRADIENT, chunk->input[DR_INPUT_QUERY] + row,
          chunk->solved + row);
}

/* y solves the system with d_x; then d_query = y, and the matrix gets -y x^T */
static void gram_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, const float *before, const float *after,
                      float *d_matrix) {
    const int64_t row = t * plan->key_pitch, K = plan->key_width;
    const float *key = key_of(plan, chunk, t), *x = chunk->solved + row;
    const float alpha = plan->scalar ? chunk->alpha[t] : 1, b = weight_of(plan, chunk, t);
    float *y = chunk->d_solved + row, *d_key = chunk->d_input[DR_INPUT_KEY] + row, *product = chunk->matrix_scratch;
    lay_system(plan, chunk, after);
    solve(plan, chunk, false, y, y);
    add_row(K, 1, y, chunk->d_input[DR_INPUT_QUERY] + row);
    double d_alpha = 0;
    for (int64_t i = 0; i < plan->key_size; i++) {
        float *d_row = d_matrix + i * plan->key_pitch;
        add_row(K, -y[i], x, d_row);
        chunk->d_input[DR_INPUT_RIDGE][i] -= y[i] * x[i];
        d_alpha += (double)dot_rows(K, before + i * plan->key_pitch, d_row);
    }
    multiply(plan, d_matrix, key, product);
    add_weight(plan, chunk, t, dot_rows(K, key, product));
    add_row(K, b, product, d_key);
    multiply_transposed(plan, d_matrix, key, product);
    add_row(K, b, product, d_key);
    if (!plan->scalar) return;
    chunk->d_input[DR_INPUT_LOG_DECAY][plan->input[DR_INPUT_LOG_DECAY].per_token ? t : 0] += alpha * (float)d_alpha;
    for (int64_t i = 0; i < plan->key_size; i++)
        scale_row(K, alpha, d_matrix + i * plan->key_pitch, d_matrix + i * plan->key_pitch);
}

/* ---- inverse gram ---------------------------------------------------------------------------------------------------- */

static void inverse_forward(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, const float *before, float *after) {
    const int64_t K = plan->key_width;
    const float *key = key_of(plan, chunk, t), b = weight_of(plan, chunk, t);
    float *w = chunk->solved + t * plan->key_pitch, *p = chunk->matrix_scratch;
    multiply(plan, before, key, p);
    const float factor = 1 / (1 + b * dot_rows(K, key, p));
    scale_row(K, factor, p, w);
    const lanes drop = lanes_set(b * factor);
    for (int64_t i = 0; i < plan->key_size; i++) {
        const int64_t row = i * plan->key_pitch;
        const lanes p_i = lanes_set(p[i]);
        for (int64_t d = 0; d < K; d += LANES)
            lanes_store(after + row + d, lanes_fnma(drop, p_i * lanes_load(p + d), lanes_load(before + row + d)));
    }
}

static void inverse_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, int64_t t, const float *before, float *d_matrix) {
    const int64_t row = t * plan->key_pitch, K = plan->key_width;
    const float *key = key_of(plan, chunk, t), *w = chunk->solved + row, b = weight_of(plan, chunk, t);
    float *d_w = chunk->d_solved + row, *d_key = chunk->d_input[DR_INPUT_KEY] + row;
    float *p = chunk->matrix_scratch, *d_p = p + plan->key_pitch, *product = d_p + plan->key_pitch;
    multiply(plan, before, key, p);
    const float key_p = dot_rows(K, key, p), factor = 1 / (1 + b * key_p);

    /* P_t = P_{t-1} - b w p^T */
    multiply(plan, d_matrix, p, product);
    float d_b = -dot_rows(K, w, product);
    add_row(K, -b, product, d_w);
    multiply_transposed(plan, d_matrix, w, product);
    scale_row(K, factor, d_w, d_p);
    add_row(K, -b, product, d_p);

    /* w = factor p, 1 / factor = 1 + b k.p */
    const float d_denominator = -factor * dot_rows(K, d_w, w);
    d_b += d_denominator * key_p;
    add_row(K, d_denominator * b, key, d_p);
    add_row(K, d_denominator * b, p, d_key);

    /* p = P_{t-1} k */
    multiply_transposed(plan, before, d_p, product);
    add_row(K, 1, product, d_key);
    for (int64_t i = 0; i < plan->key_size; i++) add_row(K, d_p[i], key, d_matrix + i * plan->key_pitch);
    add_weight(plan, chunk, t, d_b);
}

/* ---- stages ---------------------------------------------------------------------------------------------------------- */

void dr_chunk_scan_matrix(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, float *matrix, int64_t stride) {
    for (int64_t t = 0; t < chunk->tokens; t++) {
        const float *before = matrix + t * stride;
        float *after = matrix + (t + 1) * stride;
        if (plan->rule->scan == DR_SCAN_GRAM)
            gram_forward(plan, chunk, t, before, after);
        else
            inverse_forward(plan, chunk, t, before, after);
    }
}

void dr_chunk_scan_matrix_back(const dr_cpu_plan *plan, dr_cpu_chunk *chunk, const float *matrix, int64_t stride,
                               float *d_matrix) {
    for (int64_t t = chunk->tokens - 1; t >= 0; t--) {
        const float *before = matrix + t * stride, *after = before + stride;
        if (plan->rule->scan == DR_SCAN_GRAM)
            gram_back(plan, chunk, t, before, after, d_matrix);
        else
            inverse_back(plan, chunk, t, before, d_matrix);
    }
}
