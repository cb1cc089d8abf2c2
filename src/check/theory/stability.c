/* Statements on what one token does to the state: eigenvalues of the transition of PGDN, the range of the squash B, and the
 * write keys of the unstable form. A transition is read off the engine: with value 0 it takes the state I to the matrix itself.
 */
#include "base/error.h"
#include "check/theory/theory.h"

enum { POINTS = SEQUENCE_NUMBERS };

/* ---- write keys of the unstable form (C.3) --------------------------------------------------------------------------- */

enum { STABLE_FORM, UNSTABLE_FORM };

static dr_status bound_products(dr_theory *theory, int variant, dr_theory_figures *figures) {
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 1000; draw++) {
        dr_theory_sequence s;
        int size = 2 + (int)dr_random_below(&theory->random, 7);
        matrix key = scaled(2, normals(&theory->random, size, 1)), write_key;
        matrix ridge = exponentials(scaled(3, normals(&theory->random, size, 1)));
        double unstable = dot(key, quotient(key, sum(ridge, times(key, key))));
        if (variant == UNSTABLE_FORM) {
            figures->statement = worse(figures->statement, unstable / size);
            figures->counter = worse(figures->counter, unstable / 2);
            continue;
        }
        DR_TRY(dr_theory_blank("pdn_unstable", 1, size, 1, &s));
        put(&s, DR_INPUT_KEY, 0, key);
        put(&s, DR_INPUT_RIDGE, 0, ridge);
        DR_TRY(dr_theory_write_key(theory, "pdn_unstable", &s, &write_key));
        figures->statement = worse(figures->statement, fabs(dot(key, write_key) - 0.5));
        figures->counter = worse(figures->counter, fabs(unstable - 0.5));
    }
    return DR_OK;
}

/* ---- eigenvalues of a transition (E.1 to E.3) ------------------------------------------------------------------------ */

/* One token of PGDN with value 0 and state I. */
static dr_status draw_transition(dr_theory *theory, int size, matrix key, double alpha, double beta, dr_theory_sequence *s) {
    DR_TRY(dr_theory_draw(theory, "pgdn", 1, size, size, s));
    start_from(s, identity(size));
    put(s, DR_INPUT_VALUE, 0, zeros(size, 1));
    put(s, DR_INPUT_KEY, 0, key);
    put(s, DR_INPUT_LOG_DECAY, 0, filled(1, 1, log(alpha)));
    put(s, DR_INPUT_BETA, 0, filled(1, 1, beta));
    return DR_OK;
}

static void sort(int count, double *numbers) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && numbers[j - 1] > numbers[j]; j--) {
            double swapped = numbers[j];
            numbers[j] = numbers[j - 1];
            numbers[j - 1] = swapped;
        }
}

/* How far the eigenvalues of a are from `repeated`, but for one, and `single`. */
static double spectrum_distance(matrix a, double repeated, double single) {
    double real[MATRIX_SIZE], imaginary[MATRIX_SIZE], expected[MATRIX_SIZE];
    for (int i = 0; i < a.rows; i++) expected[i] = i == 0 ? single : repeated;
    dr_matrix_eigenvalues(&a, real, imaginary);
    sort(a.rows, real);
    sort(a.rows, expected);
    return worse(dr_theory_distance(a.rows, real, expected), dr_theory_distance(a.rows, imaginary, zeros(a.rows, 1).at));
}

static double least_eigenvalue(matrix a) {
    double real[MATRIX_SIZE], imaginary[MATRIX_SIZE];
    dr_matrix_eigenvalues(&a, real, imaginary);
    sort(a.rows, real);
    return real[0];
}

static double spectral_radius(matrix a) {
    double real[MATRIX_SIZE], imaginary[MATRIX_SIZE], largest = 0;
    dr_matrix_eigenvalues(&a, real, imaginary);
    for (int i = 0; i < a.rows; i++) largest = worse(largest, hypot(real[i], imaginary[i]));
    return largest;
}

static dr_status find_eigenvalues(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 300; draw++) {
        dr_theory_sequence s;
        int size = 2 + (int)dr_random_below(&theory->random, 6);
        double alpha = uniform(&theory->random, 0.1, 1), beta = dr_random_uniform(&theory->random);
        matrix key = normals(&theory->random, size, 1), write_key;
        DR_TRY(draw_transition(theory, size, key, alpha, beta, &s));
        DR_TRY(dr_theory_write_key(theory, "pdn", &s, &write_key));
        DR_TRY(dr_theory_run(theory, &s));
        double preconditioned = alpha * (1 - beta * dot(write_key, key)), plain = alpha * (1 - beta * dot(key, key));
        figures->statement = worse(figures->statement, spectrum_distance(final_state(&s), alpha, preconditioned));
        figures->counter = worse(figures->counter, spectrum_distance(final_state(&s), alpha, plain));
    }
    return DR_OK;
}

/* Random A over many orders of magnitude, x in [1, 2]; counter-case: beta twice as large, alpha = 1. */
static dr_status bound_eigenvalues(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 2000; draw++) {
        dr_theory_sequence s;
        matrix key = unit_normals(&theory->random, 4), write_key;
        double alpha = dr_random_uniform(&theory->random), beta = dr_random_uniform(&theory->random);
        DR_TRY(draw_transition(theory, 4, key, alpha, beta, &s));
        s.rule.squash.x = uniform(&theory->random, 1, 2);
        for (int i = 0; i < 4; i++) s.initial[DR_STATE_A][i] = exp(6 * dr_random_normal(&theory->random));
        DR_TRY(dr_theory_write_key(theory, "pdn", &s, &write_key));
        double m = dot(key, write_key);
        figures->statement = worse(figures->statement, fabs(alpha * (1 - beta * m)));
        figures->counter = worse(figures->counter, fabs(1 - 2 * beta * m));
    }
    return DR_OK;
}

/* The least eigenvalue of a transition with B = x I: the tanh squash takes a small A there, to the last bit. */
static dr_status amplified_eigenvalue(dr_theory *theory, double x, double key_length, double alpha, double beta,
                                      double *least) {
    dr_theory_sequence s;
    matrix key = scaled(key_length, unit_normals(&theory->random, 5));
    DR_TRY(draw_transition(theory, 5, key, alpha, beta, &s));
    s.rule.squash = (dr_squash){.x = x, .eps = 1e-6, .function = DR_SQUASH_TANH};
    put(&s, DR_INPUT_SCAN_CENTRE, 0, filled(1, 1, 50)); /* ln A - 50 is far below 0 */
    DR_TRY(dr_theory_run(theory, &s));
    *least = least_eigenvalue(final_state(&s));
    return DR_OK;
}

enum { SHARP_BOUND, NEGATIVE_EIGENVALUE };

static dr_status reach_eigenvalue(dr_theory *theory, int variant, dr_theory_figures *figures) {
    double least, counter, expected = variant == SHARP_BOUND ? -1 : 0.9 * (1 - 0.8 * 1.5);
    if (variant == SHARP_BOUND) {
        DR_TRY(amplified_eigenvalue(theory, 2, 1, 1, 1, &least));
        DR_TRY(amplified_eigenvalue(theory, 2, 1, 1, 1.1, &counter));
    } else {
        DR_TRY(amplified_eigenvalue(theory, 1.5, 1, 0.9, 0.8, &least));
        DR_TRY(amplified_eigenvalue(theory, 1.5, 0.8, 0.9, 0.8, &counter));
    }
    figures->statement = fabs(least - expected);
    figures->counter = fabs(counter - expected);
    return DR_OK;
}

/* ---- products of transitions ------------------------------------------------------------------------------------------ */

/* Two inputs in turn at which PDN grows, found by search. */
static const struct {
    double x, key[2][2], scan_decay[2], scan_gain[2], centre;
} cycles[] = {
    {1.5, {{-.54798222, .83648998}, {-.49146044, .8708999}}, {2.67e-6, 7.47e-4}, {.00401746, .08175939}, -3.43017697},
    {2, {{-.88953649, -.45686414}, {.81871902, .57419436}}, {.18120241, 1.9116e-4}, {.66934278, .01476941}, -1.06656713},
};

/* The spectral radius of one period, with A at its limit cycle. */
static dr_status radius_of_cycle(dr_theory *theory, int which, double x, double *radius) {
    enum { SETTLING = 118, PERIOD = 2 };
    dr_theory_sequence s;
    DR_TRY(dr_theory_blank("pdn", SETTLING, 2, 2, &s));
    s.rule.squash.x = x;
    put(&s, DR_INPUT_SCAN_CENTRE, 0, filled(1, 1, cycles[which].centre));
    for (int t = 0; t < SETTLING; t++) {
        put(&s, DR_INPUT_KEY, t, unit(column(2, cycles[which].key[t % 2])));
        put(&s, DR_INPUT_BETA, t, filled(1, 1, 1));
        put(&s, DR_INPUT_SCAN_LOG_DECAY, t, filled(1, 1, log(cycles[which].scan_decay[t % 2])));
        put(&s, DR_INPUT_SCAN_GAIN, t, filled(1, 1, cycles[which].scan_gain[t % 2]));
    }
    DR_TRY(dr_theory_run(theory, &s));
    dr_theory_advance(&s);
    start_from(&s, identity(2));
    s.tokens = PERIOD;
    DR_TRY(dr_theory_run(theory, &s));
    *radius = spectral_radius(final_state(&s));
    return DR_OK;
}

static dr_status grow_over_period(dr_theory *theory, int variant, dr_theory_figures *figures) {
    DR_TRY(radius_of_cycle(theory, variant, cycles[variant].x, &figures->statement));
    return radius_of_cycle(theory, variant, 1, &figures->counter);
}

/* ---- the squash -------------------------------------------------------------------------------------------------------- */

/* B at A = 10^-300 .. 10^300: what keys of ones write. */
static dr_status squash_curve(dr_theory *theory, dr_squash squash, double curve[POINTS]) {
    dr_theory_sequence s;
    DR_TRY(dr_theory_blank("pdn", 1, POINTS, 1, &s));
    s.rule.squash = squash;
    for (int i = 0; i < POINTS; i++) {
        s.input[DR_INPUT_KEY][i] = 1;
        s.initial[DR_STATE_A][i] = pow(10, -300 + 600.0 * i / (POINTS - 1)); /* the scan's gain is 0: A stays */
    }
    s.input[DR_INPUT_SCAN_CENTRE][0] = 0.3;
    s.input[DR_INPUT_BETA][0] = s.input[DR_INPUT_VALUE][0] = 1;
    DR_TRY(dr_theory_run(theory, &s));
    for (int i = 0; i < POINTS; i++) curve[i] = s.final[DR_STATE_S][i];
    return DR_OK;
}

/* The largest |ln B| / ln x on a curve. */
static double extent(const double curve[POINTS], double x) {
    double largest = 0;
    for (int i = 0; i < POINTS; i++) largest = worse(largest, fabs(log(curve[i])) / log(x));
    return largest;
}

enum { CLOSED_RANGE, OPEN_RANGE, FALLING };

static dr_status check_squash(dr_theory *theory, int variant, dr_theory_figures *figures) {
    double curve[POINTS], other[POINTS];
    dr_squash squash = {.x = 1.5, .eps = 1e-300}, changed = squash;
    DR_TRY(squash_curve(theory, squash, curve));
    if (variant == FALLING) {
        *figures = (dr_theory_figures){-(double)INFINITY, -(double)INFINITY};
        for (int i = 1; i < POINTS; i++) {
            figures->statement = worse(figures->statement, curve[i] - curve[i - 1]);
            figures->counter = worse(figures->counter, 1 / curve[i] - 1 / curve[i - 1]);
        }
        return DR_OK;
    }
    if (variant == CLOSED_RANGE) changed.x = 1.8;
    if (variant == OPEN_RANGE) changed.function = DR_SQUASH_TANH;
    DR_TRY(squash_curve(theory, changed, other));
    figures->statement = extent(curve, 1.5);
    figures->counter = extent(other, 1.5);
    return DR_OK;
}

/* B as printed, ln A without eps */
static double printed_squash(double a, double x) {
    double r = log(a);
    return exp(-log(x) * (r / (1 + fabs(r))));
}

static dr_status squash_zero(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    matrix write_key;
    DR_TRY(dr_theory_draw(theory, "pdn", 1, 4, 1, &s));
    for (int i = 0; i < 4; i++) s.initial[DR_STATE_A][i] = 0;
    put(&s, DR_INPUT_SCAN_GAIN, 0, zeros(1, 1));
    DR_TRY(dr_theory_write_key(theory, "pdn", &s, &write_key));
    *figures = (dr_theory_figures){0, 0};
    for (int i = 0; i < 4; i++) {
        figures->statement += !isfinite(write_key.at[i]);
        figures->counter += !isfinite(printed_squash(0, 1.5));
    }
    return DR_OK;
}

static dr_status squash_to_one(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { T = 30, K = 6, V = 5 };
    dr_theory_sequence preconditioned, plain;
    DR_TRY(dr_theory_draw(theory, "pgdn", T, K, V, &preconditioned));
    plain = preconditioned;
    plain.rule = *dr_rule_find("gdn");
    DR_TRY(dr_theory_run(theory, &plain));
    DR_TRY(dr_theory_run(theory, &preconditioned));
    figures->counter = dr_theory_distance(T * V, preconditioned.o, plain.o);
    preconditioned.rule.squash.x = 1;
    DR_TRY(dr_theory_run(theory, &preconditioned));
    figures->statement = dr_theory_distance(T * V, preconditioned.o, plain.o);
    return DR_OK;
}

static const dr_theory_statement statements[] = {
    {.name = "pdn.c3-stable-form",
     .statement = "The product k.k^ of a key and its write key k^ = m/(1 + k.m), m = k/A, is in [0, 1].",
     .source = P "appendix C.3, form (1)",
     .measure = "largest |k.k^ - 1/2|",
     .bound = 0.5,
     .counter_case = "form (2), k.k/(A + k*k)",
     .counter_bound = 1,
     .variant = STABLE_FORM,
     .compute = bound_products},
    {.name = "pdn.c3-unstable-form",
     .statement = "Form (2), k.k/(A + k*k), is bounded by K: each of its terms is below 1.",
     .source = P "appendix C.3, corrected",
     .measure = "largest share of the bound",
     .bound = 1,
     .counter_case = "the bound 2 that stability needs",
     .counter_bound = 1.5,
     .variant = UNSTABLE_FORM,
     .compute = bound_products},
    {.name = "pdn.lemma-e1",
     .statement = "The transition's eigenvalues are alpha (K - 1 times) and alpha(1 - beta k.(B k)), for keys of any length.",
     .source = P "lemma E.1",
     .measure = LARGEST_DIFFERENCE " over 300 draws",
     .bound = 1e-6,
     .counter_case = "alpha(1 - beta k.k), those of GDN",
     .counter_bound = 1e-2,
     .compute = find_eigenvalues},
    {.name = "pdn.lemma-e2",
     .statement = "No eigenvalue is outside the unit circle if |k| = 1, beta is in [0, 1] and x in [1, 2].",
     .source = P "lemma E.2",
     .measure = "largest |eigenvalue| over 2,000 draws",
     .bound = 1,
     .counter_case = "beta in [0, 2], alpha = 1",
     .counter_bound = 1.2,
     .compute = bound_eigenvalues},
    {.name = "pdn.lemma-e2-sharp",
     .statement = "Lemma E.2 is sharp: with B = 2 I, beta = 1 and alpha = 1 the eigenvalue is -1.",
     .source = P "lemma E.2",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-12,
     .counter_case = "beta = 1.1",
     .counter_bound = 0.1,
     .variant = SHARP_BOUND,
     .compute = reach_eigenvalue},
    {.name = "pdn.lemma-e3",
     .statement = "B = x I and beta x = 1.2 > 1 give a negative eigenvalue alpha(1 - beta x), if |k| = 1.",
     .source = P "lemma E.3, with its assumption",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-12,
     .counter_case = "a key of length 0.8",
     .counter_bound = 0.1,
     .variant = NEGATIVE_EIGENVALUE,
     .compute = reach_eigenvalue},
    {.name = "pdn.e2-products-1.5",
     .statement = "Lemma E.2 does not bound products: two inputs in turn let the state grow, x = 1.5, beta = 1.",
     .source = P "section 3.5, lemma E.2: a remark on its scope",
     .measure = "spectral radius of a period",
     .bound = 1.004,
     .at_least = true,
     .counter_case = "x = 1, the delta rule",
     .counter_bound = 1.001,
     .variant = 0,
     .compute = grow_over_period},
    {.name = "pdn.e2-products-2",
     .statement = "The same with x = 2.",
     .source = P "section 3.5, lemma E.2: a remark on its scope",
     .measure = "spectral radius of a period",
     .bound = 1.02,
     .at_least = true,
     .counter_case = "x = 1, the delta rule",
     .counter_bound = 1.001,
     .variant = 1,
     .compute = grow_over_period},
    {.name = "pdn.b-range",
     .statement = "B is in [1/x, x] for A from 1e-300 to 1e300.",
     .source = P "section 3.5, eq. 9",
     .measure = "largest |ln B| / ln 1.5",
     .bound = 1,
     .counter_case = "x = 1.8",
     .counter_bound = 1.2,
     .variant = CLOSED_RANGE,
     .compute = check_squash},
    {.name = "pdn.b-falls",
     .statement = "B does not rise with A.",
     .source = P "section 3.5, eq. 9",
     .measure = "largest rise",
     .bound = 0,
     .counter_case = "the exponent without its minus sign",
     .counter_bound = 0.1,
     .variant = FALLING,
     .compute = check_squash},
    {.name = "pdn.b-range-open",
     .statement = "B stays inside (1/x, x): the B = x I of lemma E.3 is approached, not reached.",
     .source = P "appendix E.3, corrected",
     .measure = "largest |ln B| / ln 1.5",
     .bound = 0.999,
     .counter_case = "the tanh squash, which rounds to x",
     .counter_bound = 0.99999,
     .variant = OPEN_RANGE,
     .compute = check_squash},
    {.name = "pdn.eq-9-zero",
     .statement = "ln(A + eps) keeps B finite where A = 0.",
     .source = P "eq. 9, corrected",
     .measure = "channels that are not finite",
     .bound = 0,
     .counter_case = "as printed: ln A",
     .counter_bound = 0.5,
     .compute = squash_zero},
    {.name = "pdn.b-one",
     .statement = "x = 1 turns PGDN into GDN.",
     .source = P "section 3.5",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "x = 1.5",
     .counter_bound = DIFFERENT,
     .compute = squash_to_one},
};
const dr_theory_chapter dr_theory_stability = {statements, sizeof statements / sizeof statements[0]};
