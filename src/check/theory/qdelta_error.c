/* Statements on Q-Delta's error e_t = v_t - S_t^T x_t, x = k + lambda q: how a step contracts it (lemma 3.1), how far it gets
 * while values drift (theorem 3.2), and what that leaves open: the state itself can grow. */
#include "base/error.h"
#include "check/theory/theory.h"

enum { K = 6, V = 5, T = 100 };

static matrix read_key(const dr_theory_sequence *s, int t) {
    return sum(vector_at(s, DR_INPUT_KEY, t), scaled(number_at(s, DR_INPUT_LAMBDA, t), vector_at(s, DR_INPUT_QUERY, t)));
}

/* |1 - beta k.x| */
static double contraction(const dr_theory_sequence *s, int t) {
    return fabs(1 - number_at(s, DR_INPUT_BETA, t) * dot(vector_at(s, DR_INPUT_KEY, t), read_key(s, t)));
}

/* ---- lemma 3.1
 * --------------------------------------------------------------------------------------------------------------- */

static dr_status bound_contraction(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 20; draw++) {
        dr_theory_sequence s;
        DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, &s));
        for (int t = 0; t < T; t++) figures->statement = worse(figures->statement, contraction(&s, t));
        for (int t = 0; t < T; t++) {
            put(&s, DR_INPUT_BETA, t, filled(1, 1, 2 * number_at(&s, DR_INPUT_BETA, t)));
            put(&s, DR_INPUT_LAMBDA, t, filled(1, 1, 2 * number_at(&s, DR_INPUT_LAMBDA, t)));
            figures->counter = worse(figures->counter, contraction(&s, t));
        }
    }
    return DR_OK;
}

enum { UNGATED, GATED };

/* v - S_t^T x against (1 - beta k.x)(v - alpha S_{t-1}^T x). Counter-case: without the factor, or without alpha. */
static dr_status contract_error(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence s, one;
    DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, &s));
    one = s;
    one.tokens = 1;
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < T; t++) {
        dr_theory_token(&s, t, &one);
        if (variant == UNGATED) put(&one, DR_INPUT_LOG_DECAY, 0, zeros(1, 1));
        DR_TRY(dr_theory_run(theory, &one));
        double alpha = exp(number_at(&one, DR_INPUT_LOG_DECAY, 0));
        matrix read = read_key(&s, t), value = vector_at(&s, DR_INPUT_VALUE, t), before = read_out(initial_state(&one), read);
        double factor = 1 - number_at(&s, DR_INPUT_BETA, t) * dot(vector_at(&s, DR_INPUT_KEY, t), read);
        matrix error = difference(value, read_out(final_state(&one), read));
        matrix other = variant == UNGATED ? difference(value, before) : scaled(factor, difference(value, before));
        figures->statement =
            worse(figures->statement, distance(error, scaled(factor, difference(value, scaled(alpha, before)))));
        figures->counter = worse(figures->counter, distance(error, other));
        dr_theory_advance(&one);
    }
    return DR_OK;
}

/* ---- theorem 3.2
 * ----------------------------------------------------------------------------------------------------------------- */

/* Queries near the keys, values that drift, beta such that 1 - beta k.x is in (-0.7, 0.7); alpha = 1 and S_0 = 0. */
static dr_status draw_drift(dr_theory *theory, dr_theory_sequence *s) {
    DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, s));
    start_from(s, zeros(K, V));
    matrix value = zeros(V, 1);
    for (int t = 0; t < T; t++) {
        matrix key = vector_at(s, DR_INPUT_KEY, t), query = vector_at(s, DR_INPUT_QUERY, t);
        value = sum(value, scaled(0.1, vector_at(s, DR_INPUT_VALUE, t)));
        put(s, DR_INPUT_VALUE, t, value);
        put(s, DR_INPUT_LOG_DECAY, t, zeros(1, 1));
        put(s, DR_INPUT_QUERY, t, unit(sum(key, scaled(0.8, query))));
        put(s, DR_INPUT_BETA, t, filled(1, 1, uniform(&theory->random, 0.3, 1.7) / dot(key, read_key(s, t))));
    }
    return DR_OK;
}

/* |e_t| by the engine and the drift r_t = |v_t - v_{t-1} - S_{t-1}^T (x_t - x_{t-1})|, both 0 before the first token */
static dr_status follow_errors(dr_theory *theory, const dr_theory_sequence *s, double error[T], double drift[T]) {
    dr_theory_sequence one = *s;
    matrix last_value = zeros(V, 1), last_read = zeros(K, 1);
    one.tokens = 1;
    for (int t = 0; t < T; t++) {
        matrix value = vector_at(s, DR_INPUT_VALUE, t), read = read_key(s, t);
        matrix shift = read_out(initial_state(&one), difference(read, last_read));
        drift[t] = length(difference(difference(value, last_value), shift));
        dr_theory_token(s, t, &one);
        DR_TRY(dr_theory_run(theory, &one));
        error[t] = length(difference(value, read_out(final_state(&one), read)));
        dr_theory_advance(&one);
        last_value = value;
        last_read = read;
    }
    return DR_OK;
}

static dr_status bound_errors(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    double error[T], drift[T], rho = 0, r = 0;
    DR_TRY(draw_drift(theory, &s));
    DR_TRY(follow_errors(theory, &s, error, drift));
    for (int t = 0; t < T; t++) {
        rho = worse(rho, contraction(&s, t));
        r = worse(r, drift[t]);
    }
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < T; t++) {
        double bound = (1 - pow(rho, t + 1)) / (1 - rho) * rho * r;
        figures->statement = worse(figures->statement, error[t] / bound);
        figures->counter = worse(figures->counter, error[t] / (pow(rho, t) * error[0]));
    }
    return DR_OK;
}

/* ---- the state
 * --------------------------------------------------------------------------------------------------------------------- */

/* The spectral radius of two tokens' transition, alpha = beta = 1. */
static dr_status radius_of_period(dr_theory *theory, dr_theory_sequence *s, double *radius) {
    double real[MATRIX_SIZE], imaginary[MATRIX_SIZE];
    DR_TRY(dr_theory_run(theory, s));
    matrix transition = final_state(s);
    dr_matrix_eigenvalues(&transition, real, imaginary);
    *radius = worse(hypot(real[0], imaginary[0]), hypot(real[1], imaginary[1]));
    return DR_OK;
}

/* The largest radius over random periods whose contractions are all below 0.95; lambda = 1, and 0 in the counter-case. */
static dr_status grow_state(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(dr_theory_blank("qdelta", 2, 2, 2, &s));
    start_from(&s, identity(2));
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 2000; draw++) {
        double radius;
        for (int t = 0; t < 2; t++) {
            put(&s, DR_INPUT_KEY, t, unit_normals(&theory->random, 2));
            put(&s, DR_INPUT_QUERY, t, unit_normals(&theory->random, 2));
            put(&s, DR_INPUT_BETA, t, filled(1, 1, 1));
            put(&s, DR_INPUT_LAMBDA, t, filled(1, 1, 1));
        }
        if (contraction(&s, 0) >= 0.95 || contraction(&s, 1) >= 0.95) continue;
        DR_TRY(radius_of_period(theory, &s, &radius));
        figures->statement = worse(figures->statement, radius);
        for (int t = 0; t < 2; t++) put(&s, DR_INPUT_LAMBDA, t, zeros(1, 1));
        DR_TRY(radius_of_period(theory, &s, &radius));
        figures->counter = worse(figures->counter, radius);
    }
    return DR_OK;
}

static const dr_theory_statement statements[] = {
    {.name = "qdelta.lemma-3.1-setting",
     .statement = "Keys and queries of length 1 and beta, lambda in (0, 1) keep beta k.x in (0, 2).",
     .source = Q "lemma 3.1",
     .measure = "largest |1 - beta k.x| over 2,000 draws",
     .bound = 1,
     .counter_case = "beta and lambda in (0, 2)",
     .counter_bound = 1.1,
     .compute = bound_contraction},
    {.name = "qdelta.lemma-3.1",
     .statement = "Without a decay v - S_t^T x = (1 - beta k.x)(v - S_{t-1}^T x).",
     .source = Q "lemma 3.1",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "without the factor",
     .counter_bound = DIFFERENT,
     .variant = UNGATED,
     .compute = contract_error},
    {.name = "qdelta.lemma-3.1-gated",
     .statement = "With the decay of eq. 19 it is v - alpha S_{t-1}^T x that contracts.",
     .source = Q "lemma 3.1, its scope",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "v - S_{t-1}^T x, as for the ungated rule",
     .counter_bound = DIFFERENT,
     .variant = GATED,
     .compute = contract_error},
    {.name = "qdelta.theorem-3.2",
     .statement = "|e_t| <= rho^t |e_0| + (1 - rho^t)/(1 - rho) rho r over 100 tokens (alpha = 1, e_0 = 0).",
     .source = Q "theorem 3.2",
     .measure = "largest share of the bound",
     .bound = 1,
     .counter_case = "without the drift r: rho^(t-1) |e_1|",
     .counter_bound = 2,
     .compute = bound_errors},
    {.name = "qdelta.theorem-3.2-scope",
     .statement = "It bounds e_t, not S: two inputs in turn that contract can let the state grow (beta = lambda = 1).",
     .source = Q "theorem 3.2, its scope",
     .measure = "largest spectral radius over 2,000 periods",
     .bound = 1.2,
     .at_least = true,
     .counter_case = "lambda = 0, the delta rule",
     .counter_bound = 1.001,
     .compute = grow_state},
};
const dr_theory_chapter dr_theory_qdelta_error = {statements, sizeof statements / sizeof statements[0]};
