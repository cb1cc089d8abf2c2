/* The matrix scans of a value head, token by token, and what they feed, forward and backward. b weighs a key: beta if the rule
 * reads beta, else 1.
 *
 *     gram            K_t = alpha K_{t-1} + b k k^T,  solved = x: (K_t + Diag(ridge)) x = query, exactly or by conjugate
 * gradients inverse gram    p = P_{t-1} k,  solved = w = p / (1 + b k.p),  P_t = P_{t-1} - b w p^T
 *
 * The backward takes the result of conjugate gradients as the solution: y from (K_t + Diag(ridge))^T y = d_x is solved exactly,
 * the query gets y, and the matrix gets -y x^T. */
#include "backends/reference/recurrence_head.h"
#include <math.h>
#include <string.h>

static const dr_rule *rule_of(const dr_reference_head *head) {
    return head->recurrence->rule;
}

static double weight(const dr_reference_head *head, int64_t t) {
    return dr_rule_uses(rule_of(head), DR_INPUT_BETA) ? *dr_reference_input(head, DR_INPUT_BETA, t, 0) : 1;
}

static void add_weight(const dr_reference_head *head, int64_t t, double d_b) {
    if (dr_rule_uses(rule_of(head), DR_INPUT_BETA))
        dr_reference_add(1, 1, &d_b, dr_reference_gradient(head, DR_INPUT_BETA, t, 0));
}

/* y = M x, or M^T x; all [n] and [n, n] */
static void multiply(int64_t n, const double *M, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] = dr_reference_dot(n, M + i * n, x);
}

static void multiply_transposed(int64_t n, const double *M, const double *x, double *y) {
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) dr_reference_add(n, x[i], M + i * n, y);
}

/* ---- systems -------------------------------------------------------------------------------------------------------- */

/* M = L U in place, L with ones on its diagonal. No pivoting: the matrix is symmetric and positive definite. */
static void factorize(int64_t n, double *M) {
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = j + 1; i < n; i++) {
            M[i * n + j] /= M[j * n + j];
            for (int64_t c = j + 1; c < n; c++) M[i * n + c] -= M[i * n + j] * M[j * n + c];
        }
}

/* x := (L U)^-1 x */
static void solve(int64_t n, const double *LU, double *x) {
    for (int64_t i = 0; i < n; i++) x[i] -= dr_reference_dot(i, LU + i * n, x);
    for (int64_t i = n - 1; i >= 0; i--)
        x[i] = (x[i] - dr_reference_dot(n - 1 - i, LU + i * n + i + 1, x + i + 1)) / LU[i * n + i];
}

/* x := (L U)^-T x */
static void solve_transposed(int64_t n, const double *LU, double *x) {
    for (int64_t i = 0; i < n; i++) {
        x[i] /= LU[i * n + i];
        dr_reference_add(n - 1 - i, -x[i], LU + i * n + i + 1, x + i + 1);
    }
    for (int64_t i = n - 1; i >= 0; i--) dr_reference_add(i, -x[i], LU + i * n, x);
}

/* numerator / denominator, or 0 where the denominator is: a step without curvature is no step */
static double quotient(double numerator, double denominator) {
    return denominator > 0 ? numerator / denominator : 0;
}

/* x from M x = b; r, p, y are scratch, all [n] */
static void conjugate_gradients(const dr_rule *rule, int64_t n, const double *M, const double *b, double *x, double *r,
                                double *p, double *y) {
    for (int64_t i = 0; i < n; i++) x[i] = rule->cg_start == DR_CG_JACOBI ? b[i] / M[i * n + i] : 0;
    multiply(n, M, x, y);
    for (int64_t i = 0; i < n; i++) p[i] = r[i] = b[i] - y[i];
    double square = dr_reference_dot(n, r, r);
    for (int step = 0; step < rule->cg_iters; step++) {
        multiply(n, M, p, y);
        double length = quotient(square, dr_reference_dot(n, p, y) + rule->cg_eps);
        dr_reference_add(n, length, p, x);
        dr_reference_add(n, -length, y, r);
        double next = dr_reference_dot(n, r, r), turn = quotient(next, square + rule->cg_eps);
        for (int64_t i = 0; i < n; i++) p[i] = r[i] + turn * p[i];
        square = next;
    }
}

/* ---- the Gram matrix ------------------------------------------------------------------------------------------------ */

/* scratch->matrix = K_t + Diag(ridge) */
static void add_ridge(const dr_reference_head *head, const double *K_t, double *sum) {
    int64_t K = head->recurrence->key_size;
    memcpy(sum, K_t, (size_t)(K * K) * sizeof *sum);
    for (int64_t i = 0; i < K; i++) sum[i * K + i] += dr_reference_input(head, DR_INPUT_RIDGE, 0, 0)[i];
}

static double gram_decay(const dr_reference_head *head, int64_t t) {
    dr_reference_decay_forward(head, t, head->matrix_scratch);
    return head->matrix_scratch[0]; /* no decay by channel goes with the Gram matrix */
}

static void gram_forward(const dr_reference_head *head, int64_t t, const double *before, double *after) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *query = dr_reference_input(head, DR_INPUT_QUERY, t, 0);
    double alpha = gram_decay(head, t), b = weight(head, t), *x = head->solved + t * K;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) after[i * K + j] = alpha * before[i * K + j] + b * key[i] * key[j];
    add_ridge(head, after, head->system);
    if (rule_of(head)->query == DR_QUERY_CONJUGATE_GRADIENT) {
        double *scratch = head->matrix_scratch;
        conjugate_gradients(rule_of(head), K, head->system, query, x, scratch, scratch + K, scratch + 2 * K);
        return;
    }
    memcpy(x, query, (size_t)K * sizeof *x);
    factorize(K, head->system);
    solve(K, head->system, x);
}

static void gram_backward(const dr_reference_head *head, int64_t t, const double *before, const double *after) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *x = head->solved + t * K;
    double *y = head->d_solved + t * K, *d_matrix = head->d_matrix,
           *d_ridge = dr_reference_gradient(head, DR_INPUT_RIDGE, 0, 0);
    add_ridge(head, after, head->system);
    factorize(K, head->system);
    solve_transposed(K, head->system, y);
    dr_reference_add(K, 1, y, dr_reference_gradient(head, DR_INPUT_QUERY, t, 0));
    for (int64_t i = 0; i < K; i++) {
        dr_reference_add(K, -y[i], x, d_matrix + i * K);
        if (d_ridge) d_ridge[i] -= y[i] * x[i];
    }
    double alpha = gram_decay(head, t), b = weight(head, t), *from_rows = head->matrix_scratch, *from_columns = from_rows + K;
    multiply(K, d_matrix, key, from_rows);
    multiply_transposed(K, d_matrix, key, from_columns);
    add_weight(head, t, dr_reference_dot(K, key, from_rows));
    dr_reference_add(K, b, from_rows, dr_reference_gradient(head, DR_INPUT_KEY, t, 0));
    dr_reference_add(K, b, from_columns, dr_reference_gradient(head, DR_INPUT_KEY, t, 0));
    double d_log_decay = alpha * dr_reference_dot(K * K, d_matrix, before);
    if (rule_of(head)->decay != DR_DECAY_NONE)
        dr_reference_add(1, 1, &d_log_decay, dr_reference_gradient(head, DR_INPUT_LOG_DECAY, t, 0));
    for (int64_t i = 0; i < K * K; i++) d_matrix[i] *= alpha;
}

/* ---- the inverse Gram matrix ---------------------------------------------------------------------------------------- */

/* The inverse before the first token, in place of a matrix of zeros. */
static bool is_unset(const double *P) {
    return P[0] == 0;
}

void dr_reference_matrix_start(const dr_reference_head *head) {
    int64_t K = head->recurrence->key_size;
    if (rule_of(head)->scan != DR_SCAN_INVERSE_GRAM || !is_unset(head->matrix)) return;
    for (int64_t i = 0; i < K; i++) head->matrix[i * K + i] = 1 / dr_reference_input(head, DR_INPUT_RIDGE, 0, 0)[i];
}

void dr_reference_matrix_start_backward(const dr_reference_head *head, const double *initial) {
    int64_t K = head->recurrence->key_size;
    if (rule_of(head)->scan != DR_SCAN_INVERSE_GRAM || (initial && !is_unset(initial))) return;
    const double *ridge = dr_reference_input(head, DR_INPUT_RIDGE, 0, 0);
    double *d_ridge = dr_reference_gradient(head, DR_INPUT_RIDGE, 0, 0);
    for (int64_t i = 0; d_ridge && i < K; i++) d_ridge[i] -= head->d_matrix[i * K + i] / (ridge[i] * ridge[i]);
}

static void inverse_forward(const dr_reference_head *head, int64_t t, const double *before, double *after) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0);
    double b = weight(head, t), *w = head->solved + t * K, *p = head->matrix_scratch;
    multiply(K, before, key, p);
    double denominator = 1 + b * dr_reference_dot(K, key, p);
    for (int64_t i = 0; i < K; i++) w[i] = p[i] / denominator;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) after[i * K + j] = before[i * K + j] - b * w[i] * p[j];
}

static void inverse_backward(const dr_reference_head *head, int64_t t, const double *before) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *w = head->solved + t * K;
    double b = weight(head, t), *d_w = head->d_solved + t * K, *d_matrix = head->d_matrix;
    double *p = head->matrix_scratch, *d_p = p + K, *product = p + 2 * K;
    double *d_key = dr_reference_gradient(head, DR_INPUT_KEY, t, 0);
    multiply(K, before, key, p);
    double key_p = dr_reference_dot(K, key, p), denominator = 1 + b * key_p;

    /* P_t = P_{t-1} - b w p^T */
    multiply(K, d_matrix, p, product);
    double d_b = -dr_reference_dot(K, w, product);
    dr_reference_add(K, -b, product, d_w);
    multiply_transposed(K, d_matrix, w, product);
    for (int64_t i = 0; i < K; i++) d_p[i] = d_w[i] / denominator - b * product[i];

    /* w = p / denominator, denominator = 1 + b k.p */
    double d_denominator = -dr_reference_dot(K, d_w, w) / denominator;
    d_b += d_denominator * key_p;
    dr_reference_add(K, d_denominator * b, key, d_p);
    dr_reference_add(K, d_denominator * b, p, d_key);

    /* p = P_{t-1} k */
    multiply_transposed(K, before, d_p, product);
    dr_reference_add(K, 1, product, d_key);
    for (int64_t i = 0; i < K; i++) dr_reference_add(K, d_p[i], key, d_matrix + i * K);
    add_weight(head, t, d_b);
}

/* ---- over the tokens ------------------------------------------------------------------------------------------------ */

void dr_reference_matrix_forward(const dr_reference_head *head) {
    for (int64_t t = 0; t < head->tokens; t++) {
        const double *before = head->matrix + t * head->matrix_stride;
        double *after = head->matrix + (t + 1) * head->matrix_stride;
        if (rule_of(head)->scan == DR_SCAN_GRAM)
            gram_forward(head, t, before, after);
        else
            inverse_forward(head, t, before, after);
    }
}

void dr_reference_matrix_backward(const dr_reference_head *head) {
    for (int64_t t = head->tokens - 1; t >= 0; t--) {
        const double *before = head->matrix + t * head->matrix_stride, *after = before + head->matrix_stride;
        if (rule_of(head)->scan == DR_SCAN_GRAM)
            gram_backward(head, t, before, after);
        else
            inverse_backward(head, t, before);
    }
}
