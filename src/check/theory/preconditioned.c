/* Statements on the preconditioned rules token by token: the scan A and its chunk formula, the WY recursions of PDN, and how
 * the rules are tied to the diagonal-plus-low-rank form S_t = (Diag(alpha) - b a^T) S_{t-1} + w v^T. */
#include "base/error.h"
#include "check/theory/chunk.h"

enum { T = 100, K = 6, V = 5, DRAWS = 8 };

/* ---- the scan ------------------------------------------------------------------------------------------------------------ */

/* A after each token as the engine carries it, [T, K], and that before it. */
static dr_status scan_of_engine(dr_theory *theory, const dr_theory_sequence *s, double *before, double *after) {
    dr_theory_sequence one = *s;
    one.tokens = 1;
    for (int t = 0; t < s->tokens; t++) {
        dr_theory_token(s, t, &one);
        DR_TRY(dr_theory_run(theory, &one));
        for (int i = 0; i < K; i++) before[t * K + i] = one.initial[DR_STATE_A][i];
        for (int i = 0; i < K; i++) after[t * K + i] = one.final[DR_STATE_A][i];
        dr_theory_advance(&one);
    }
    return DR_OK;
}

enum { GRAM_AFTER, GRAM_BEFORE };

static dr_status compare_scans(dr_theory *theory, int variant, dr_theory_figures *figures) {
    static const int chunks[] = {1, 2, 7, 16, 64};
    dr_theory_sequence s;
    double before[T * K], after[T * K], formed[T * K];
    const double *expected = variant == GRAM_BEFORE ? before : after;
    DR_TRY(dr_theory_draw(theory, "pgdn", T, K, V, &s));
    DR_TRY(scan_of_engine(theory, &s, before, after));
    *figures = (dr_theory_figures){0, 0};
    for (int i = 0; i < 5; i++) {
        dr_theory_gram(&s, chunks[i], variant == GRAM_BEFORE, false, formed);
        figures->statement = worse(figures->statement, dr_theory_distance(T * K, formed, expected));
    }
    dr_theory_gram(&s, 16, false, variant == GRAM_AFTER, formed); /* slipped products, or A_t for A_{t-1} */
    figures->counter = dr_theory_distance(T * K, formed, expected);
    return DR_OK;
}

/* 20 tokens without decay, from A = 0 */
static dr_status draw_sums(dr_theory *theory, dr_theory_sequence *s, double *after) {
    double before[20 * K];
    DR_TRY(dr_theory_draw(theory, "pgdn", 20, K, V, s));
    for (int t = 0; t < 20; t++) {
        put(s, DR_INPUT_SCAN_LOG_DECAY, t, zeros(1, 1));
        put(s, DR_INPUT_SCAN_GAIN, t, filled(1, 1, 1));
    }
    for (int i = 0; i < K; i++) s->initial[DR_STATE_A][i] = 0;
    return scan_of_engine(theory, s, before, after);
}

static matrix sum_of_squares(const dr_theory_sequence *s, int first, int end) {
    matrix total = zeros(K, 1);
    for (int t = first; t < end; t++) {
        matrix key = vector_at(s, DR_INPUT_KEY, t);
        total = sum(total, times(key, key));
    }
    return total;
}

enum { WITHIN_CHUNK, BETWEEN_CHUNKS };

static dr_status compare_sums(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence s;
    double after[20 * K], formed[20 * K];
    DR_TRY(draw_sums(theory, &s, after));
    *figures = (dr_theory_figures){0, 0};
    if (variant == BETWEEN_CHUNKS) {
        matrix at_10 = row_of(after, 9, K);
        figures->statement = distance(sum_of_squares(&s, 0, 10), at_10);
        figures->counter = distance(sum_of_squares(&s, 10, 20), at_10);
        return DR_OK;
    }
    dr_theory_gram(&s, 10, true, false, formed);
    for (int t = 0; t < 20; t++) {
        matrix expected = row_of(after, t, K), pre = row_of(formed, t, K);
        figures->statement = worse(figures->statement, distance(sum(pre, sum_of_squares(&s, t, t + 1)), expected));
        figures->counter = worse(figures->counter, distance(pre, expected));
    }
    return DR_OK;
}

/* ---- WY recursions (F.2.3 to F.2.5) ------------------------------------------------------------------------------------- */

enum { ROWS = 16 };

typedef struct {
    matrix read[ROWS], write[ROWS], w[ROWS], u[ROWS];
} wy_rows;

/* Adds row r: w_r = b (k_r - sum w_i (k~_i . k_r)), u_r likewise from the value; swapped: with k_i . k~_r. */
static void add_wy_row(bool swapped, int r, double beta, matrix value, wy_rows *rows) {
    matrix w = rows->read[r], u = value;
    for (int i = 0; i < r; i++) {
        double overlap = swapped ? dot(rows->read[i], rows->write[r]) : dot(rows->write[i], rows->read[r]);
        w = difference(w, scaled(overlap, rows->w[i]));
        u = difference(u, scaled(overlap, rows->u[i]));
    }
    rows->w[r] = scaled(beta, w);
    rows->u[r] = scaled(beta, u);
}

/* How far I - sum k~ w^T and sum k~ u^T are from the engine's transition and injection after row r. */
static double wy_distance(const wy_rows *rows, int r, const dr_theory_sequence *transition,
                          const dr_theory_sequence *injection) {
    matrix p = identity(K), h = zeros(K, K);
    for (int i = 0; i <= r; i++) {
        p = difference(p, outer(rows->write[i], rows->w[i]));
        h = sum(h, outer(rows->write[i], rows->u[i]));
    }
    return worse(distance(p, final_state(transition)), distance(h, final_state(injection)));
}

static dr_status recur_wy(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s, transition, injection;
    wy_rows right, swapped;
    DR_TRY(dr_theory_draw(theory, "pdn", ROWS, K, K, &s));
    transition = injection = s;
    transition.tokens = injection.tokens = 1;
    start_from(&transition, identity(K));
    start_from(&injection, zeros(K, K));
    *figures = (dr_theory_figures){0, 0};
    for (int r = 0; r < ROWS; r++) {
        double beta = number_at(&s, DR_INPUT_BETA, r);
        dr_theory_token(&s, r, &transition);
        dr_theory_token(&s, r, &injection);
        put(&transition, DR_INPUT_VALUE, 0, zeros(K, 1));
        right.read[r] = swapped.read[r] = vector_at(&s, DR_INPUT_KEY, r);
        DR_TRY(dr_theory_write_key(theory, "pdn", &injection, &right.write[r]));
        swapped.write[r] = right.write[r];
        add_wy_row(false, r, beta, vector_at(&s, DR_INPUT_VALUE, r), &right);
        add_wy_row(true, r, beta, vector_at(&s, DR_INPUT_VALUE, r), &swapped);
        DR_TRY(dr_theory_run(theory, &transition));
        DR_TRY(dr_theory_run(theory, &injection));
        figures->statement = worse(figures->statement, wy_distance(&right, r, &transition, &injection));
        figures->counter = worse(figures->counter, wy_distance(&swapped, r, &transition, &injection));
        dr_theory_advance(&transition);
        dr_theory_advance(&injection);
    }
    return DR_OK;
}

/* ---- ties to the diagonal-plus-low-rank form ------------------------------------------------------------------------------
 */

/* Diag(alpha) S_0 - b (a^T S_0) + w v^T against the engine's state after one token. */
static double tie_distance(const dr_theory_sequence *s, matrix a, matrix b, matrix written) {
    matrix alpha = exponentials(vector_at(s, DR_INPUT_LOG_DECAY, 0)), state = initial_state(s);
    matrix kept = difference(product(diagonal(alpha), state), product(b, product(transpose(a), state)));
    return distance(sum(kept, written), final_state(s));
}

enum { SWAPPED_TIE, UNDECAYED_TIE };

static dr_status tie_pkda(dr_theory *theory, int variant, dr_theory_figures *figures) {
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < DRAWS; draw++) {
        dr_theory_sequence s;
        matrix write_key;
        DR_TRY(dr_theory_draw(theory, "pkda", 1, K, V, &s));
        DR_TRY(dr_theory_write_key(theory, "pdn", &s, &write_key));
        DR_TRY(dr_theory_run(theory, &s));
        double beta = number_at(&s, DR_INPUT_BETA, 0);
        matrix alpha = exponentials(vector_at(&s, DR_INPUT_LOG_DECAY, 0)), key = vector_at(&s, DR_INPUT_KEY, 0);
        matrix written = scaled(beta, outer(write_key, vector_at(&s, DR_INPUT_VALUE, 0)));
        double right = tie_distance(&s, times(alpha, key), scaled(beta, write_key), written);
        double printed = variant == SWAPPED_TIE ? tie_distance(&s, times(alpha, write_key), scaled(beta, key), written)
                                                : tie_distance(&s, key, scaled(beta, write_key), written);
        figures->statement = worse(figures->statement, right);
        figures->counter = worse(figures->counter, printed);
    }
    return DR_OK;
}

/* The best of the ties a = k', b = c k' with one number c. */
static double best_scalar_tie(const dr_theory_sequence *s, matrix key, matrix written) {
    double best = (double)INFINITY;
    for (int i = 0; i <= 1200; i++) best = fmin(best, tie_distance(s, key, scaled(i / 1000.0, key), written));
    return best;
}

static dr_status tie_rwkv7(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < DRAWS; draw++) {
        dr_theory_sequence s;
        DR_TRY(dr_theory_draw(theory, "rwkv7", 1, K, V, &s));
        DR_TRY(dr_theory_run(theory, &s));
        matrix removed = vector_at(&s, DR_INPUT_FEEDBACK_KEY, 0), rate = vector_at(&s, DR_INPUT_RATE, 0);
        matrix written = outer(vector_at(&s, DR_INPUT_KEY, 0), vector_at(&s, DR_INPUT_VALUE, 0));
        figures->statement = worse(figures->statement, tie_distance(&s, removed, times(rate, removed), written));
        figures->counter = worse(figures->counter, best_scalar_tie(&s, removed, written));
    }
    return DR_OK;
}

#define EQUALITY .measure = LARGEST_DIFFERENCE, .bound = EQUAL, .counter_bound = DIFFERENT

static const dr_theory_statement statements[] = {
    {.name = "pdn.f1.1-scan",
     .statement = "The chunk formula of A_t gives what the engine carries, in chunks of 1, 2, 7, 16 and 64.",
     .source = P "appendix F.1.1 and F.1.3",
     .counter_case = "products of alpha from token k on, not from k + 1",
     EQUALITY,
     .variant = GRAM_AFTER,
     .compute = compare_scans},
    {.name = "pdn.f1.2-scan-before",
     .statement = "So does that of A_{t-1}.",
     .source = P "appendix F.1.2",
     .counter_case = "A_t in its place",
     EQUALITY,
     .variant = GRAM_BEFORE,
     .compute = compare_scans},
    {.name = "pdn.eq-8-sum",
     .statement = "Without decay A_{t-1} + k*k is the running sum of k*k.",
     .source = P "eq. 8",
     .counter_case = "without the token's own k*k",
     EQUALITY,
     .variant = WITHIN_CHUNK,
     .compute = compare_sums},
    {.name = "pdn.eq-8-chunks",
     .statement = "The state at the end of chunk i adds the tokens of chunk i: (i-1)C + 1 to iC.",
     .source = P "eq. 8, corrected",
     .counter_case = "with the chunks of section 2, which begin at iC + 1",
     EQUALITY,
     .variant = BETWEEN_CHUNKS,
     .compute = compare_sums},
    {.name = "pdn.f2.3-recursions",
     .statement = "The recursions of w and u give the products of PDN's transitions and what is written, for 1 to 16 tokens.",
     .source = P "appendix F.2.3 to F.2.5",
     .counter_case = "k_i . k~_r for k~_i . k_r",
     EQUALITY,
     .compute = recur_wy},
    {.name = "pdn.4.1-ties",
     .statement = "In S_t = (D - b a^T) S_{t-1} + w v^T PKDA reads with a = alpha*k and writes with b = beta B*k.",
     .source = P "section 4.1, corrected",
     .counter_case = "as printed: a = B*k, b = k",
     EQUALITY,
     .variant = SWAPPED_TIE,
     .compute = tie_pkda},
    {.name = "pdn.table-3-kda",
     .statement = "There the read key carries the decay of each channel: a = alpha*k.",
     .source = P "table 3, appendix D.2 (ii), corrected",
     .counter_case = "as printed: a = k",
     EQUALITY,
     .variant = UNDECAYED_TIE,
     .compute = tie_pkda},
    {.name = "pdn.table-3-rwkv7",
     .statement = "RWKV-7 has the low-rank term (rate*k') k'^T, with a rate a channel.",
     .source = P "table 3, appendix D.2 (iii), corrected",
     .counter_case = "as printed: a = b, up to the best number between them",
     EQUALITY,
     .compute = tie_rwkv7},
};
const dr_theory_chapter dr_theory_preconditioned = {statements, sizeof statements / sizeof statements[0]};
