/* Statements on exact preconditioning: the least-squares solution as attention (exact PLA) and as a delta rule (exact PDN), the
 * Sherman-Morrison formula that ties them, and what of it the diagonal forms keep. */
#include "base/error.h"
#include "check/theory/theory.h"

enum { T = 40, K = 8, V = 5 };

static dr_status run_exact_pair(dr_theory *theory, dr_theory_sequence *attention, dr_theory_sequence *delta) {
    DR_TRY(dr_theory_run(theory, attention));
    return dr_theory_run(theory, delta);
}

static dr_status run_exact_pair_in_float(dr_theory *theory, dr_theory_sequence *attention, dr_theory_sequence *delta) {
    DR_TRY(dr_theory_run_chunkwise(theory->cpu, 16, attention));
    return dr_theory_run_chunkwise(theory->cpu, 16, delta);
}

/* The same random tokens for exact PLA and exact PDN, ridge 1/2 in every channel. */
static dr_status draw_exact_pair(dr_theory *theory, dr_theory_sequence *attention, dr_theory_sequence *delta) {
    DR_TRY(dr_theory_draw(theory, "pla_exact", T, K, V, attention));
    put(attention, DR_INPUT_RIDGE, 0, filled(K, 1, 0.5));
    *delta = *attention;
    delta->rule = *dr_rule_find("pdn_exact");
    return DR_OK;
}

static matrix square_state(const dr_theory_sequence *s, dr_state_kind state) {
    return from_numbers(s->key_size, s->key_size, s->final[state]);
}

/* G = K + ridge I after the last token */
static matrix gram_of(const dr_theory_sequence *attention) {
    return sum(square_state(attention, DR_STATE_K), diagonal(vector_at(attention, DR_INPUT_RIDGE, 0)));
}

enum { IN_DOUBLE, IN_FLOAT };

static dr_status compare_outputs(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_status (*run_pair)(dr_theory *, dr_theory_sequence *, dr_theory_sequence *) =
        variant == IN_FLOAT ? run_exact_pair_in_float : run_exact_pair;
    dr_theory_sequence attention, delta;
    DR_TRY(draw_exact_pair(theory, &attention, &delta));
    DR_TRY(run_pair(theory, &attention, &delta)); /* both from the same S_0, which is not zero */
    figures->counter = dr_theory_relative(T * V, attention.o, delta.o);
    start_from(&attention, zeros(K, V));
    start_from(&delta, zeros(K, V));
    DR_TRY(run_pair(theory, &attention, &delta));
    figures->statement = dr_theory_relative(T * V, attention.o, delta.o);
    return DR_OK;
}

enum { FINAL_STATE, INVERSE_GRAM };

static dr_status compare_states(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence attention, delta;
    DR_TRY(draw_exact_pair(theory, &attention, &delta));
    start_from(&attention, zeros(K, V));
    start_from(&delta, zeros(K, V));
    DR_TRY(run_exact_pair(theory, &attention, &delta));
    matrix gram = gram_of(&attention), diagonal_of_gram = zeros(K, 1);
    for (int i = 0; i < K; i++) diagonal_of_gram.at[i] = gram.at[i * K + i];
    matrix diagonal_inverse = diagonal(quotient(filled(K, 1, 1), diagonal_of_gram));
    if (variant == FINAL_STATE) {
        figures->statement = distance(solved(gram, final_state(&attention)), final_state(&delta));
        figures->counter = distance(product(diagonal_inverse, final_state(&attention)), final_state(&delta));
    } else {
        figures->statement = distance(inverse(gram), square_state(&delta, DR_STATE_P));
        figures->counter = distance(diagonal_inverse, square_state(&delta, DR_STATE_P));
    }
    return DR_OK;
}

static dr_status compare_write_keys(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    matrix gram = definite(&theory->random, K), key = normals(&theory->random, K, 1), before = solved(gram, key);
    matrix after = solved(sum(gram, outer(key, key)), key);
    figures->statement = distance(scaled(1 / (1 + dot(key, before)), before), after);
    figures->counter = distance(before, after);
    return DR_OK;
}

/* G_t^-1 k from G_{t-1}^-1 by the lines of C.1: row k^T G^-1 times ((1 + s) I - k k^T G^-1) / (1 + s), s = k^T G^-1 k */
static dr_status compare_derivation(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    matrix gram = definite(&theory->random, K), key = normals(&theory->random, K, 1), before = solved(gram, key);
    double s = dot(key, before);
    matrix rank_one = outer(key, before), expected = transpose(scaled(1 / (1 + s), before));
    matrix right = difference(scaled(1 + s, identity(K)), rank_one);
    matrix printed = difference(sum(identity(K), filled(K, K, s)), rank_one);
    figures->statement = distance(scaled(1 / (1 + s), product(transpose(before), right)), expected);
    figures->counter = distance(scaled(1 / (1 + s), product(transpose(before), printed)), expected);
    return DR_OK;
}

/* One token with key, value and ridge [1, 1], zero before it. Reads row 0 of the map: o for the query [1, 0]. */
static dr_status read_first_token(dr_theory *theory, const char *rule, double expected, double *figure) {
    dr_theory_sequence s;
    matrix ones = filled(2, 1, 1);
    DR_TRY(dr_theory_blank(rule, 1, 2, 2, &s));
    put(&s, DR_INPUT_QUERY, 0, column(2, (double[]){1, 0}));
    put(&s, DR_INPUT_KEY, 0, ones);
    put(&s, DR_INPUT_VALUE, 0, ones);
    put(&s, DR_INPUT_RIDGE, 0, ones);
    put(&s, DR_INPUT_BETA, 0, filled(1, 1, 1));
    put(&s, DR_INPUT_SCAN_GAIN, 0, filled(1, 1, 1));
    DR_TRY(dr_theory_run(theory, &s));
    *figure = distance(o_at(&s, 0), filled(2, 1, expected));
    return DR_OK;
}

enum { DIAGONAL_ATTENTION, DIAGONAL_DELTA };

/* The exact forms give 1/3 both; the diagonal forms 1/2 and 1/3. */
static dr_status read_diagonal_forms(dr_theory *theory, int variant, dr_theory_figures *figures) {
    if (variant == DIAGONAL_ATTENTION) {
        DR_TRY(read_first_token(theory, "pla", 1.0 / 2, &figures->statement));
        return read_first_token(theory, "pla_exact", 1.0 / 2, &figures->counter);
    }
    DR_TRY(read_first_token(theory, "pdn_unstable", 1.0 / 3, &figures->statement));
    return read_first_token(theory, "pla", 1.0 / 3, &figures->counter);
}

/* Recursive least squares with discount alpha against MesaNet's exact solve, whose Gram matrix starts from I with ridge 0. */
static dr_status compare_discounted(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { TOKENS = 9, SIZE = 4 }; /* few: what has decayed away leaves the Gram matrix ill-conditioned */
    dr_theory_sequence s;
    DR_TRY(dr_theory_draw(theory, "mesanet", TOKENS, SIZE, V, &s));
    matrix gram = identity(SIZE), undecayed = zeros(SIZE, V), decayed = undecayed;
    start_from(&s, undecayed);
    for (int i = 0; i < SIZE * SIZE; i++) s.initial[DR_STATE_K][i] = gram.at[i];
    put(&s, DR_INPUT_RIDGE, 0, zeros(SIZE, 1));
    DR_TRY(dr_theory_run(theory, &s));
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < TOKENS; t++) {
        double alpha = exp(number_at(&s, DR_INPUT_LOG_DECAY, t)), beta = number_at(&s, DR_INPUT_BETA, t);
        matrix key = vector_at(&s, DR_INPUT_KEY, t), value = vector_at(&s, DR_INPUT_VALUE, t);
        matrix query = vector_at(&s, DR_INPUT_QUERY, t), solution = solved(gram, key);
        matrix write = scaled(beta / (alpha + beta * dot(key, solution)), solution);
        decayed = scaled(alpha, decayed);
        decayed = sum(decayed, outer(write, difference(value, read_out(decayed, key))));
        undecayed = sum(undecayed, outer(write, difference(value, read_out(undecayed, key))));
        gram = sum(scaled(alpha, gram), scaled(beta, outer(key, key)));
        figures->statement = worse(figures->statement, distance(o_at(&s, t), read_out(undecayed, query)));
        figures->counter = worse(figures->counter, distance(o_at(&s, t), read_out(decayed, query)));
    }
    return DR_OK;
}

enum { BETA_ONE, BETA_WEIGHS_GRAM };

/* The GDN write beta G_t^-1 k against the Longhorn write gain G_{t-1}^-1 k, G_t = G_{t-1} + weight k k^T. */
static double compare_gains(matrix gram, matrix key, double beta, double weight) {
    matrix before = solved(gram, key), after = solved(sum(gram, scaled(weight, outer(key, key))), key);
    return distance(scaled(beta, after), scaled(beta / (1 + beta * dot(key, before)), before));
}

static dr_status compare_preconditioners(dr_theory *theory, int variant, dr_theory_figures *figures) {
    matrix gram = definite(&theory->random, 4), key = normals(&theory->random, 4, 1);
    key = scaled(1 + uniform(&theory->random, 0, 1), unit(key));
    double beta = variant == BETA_ONE ? 1 : 0.6;
    figures->statement = compare_gains(gram, key, beta, beta);
    figures->counter = compare_gains(gram, key, 0.6, 1);
    return DR_OK;
}

static const dr_theory_statement statements[] = {
    {.name = "pdn.theorem-3.1",
     .statement = "Exact PLA and exact PDN give the same outputs if both start from S_0 = 0 and the same ridge.",
     .source = P "theorem 3.1",
     .measure = "relative difference",
     .bound = EQUAL,
     .counter_case = "both start from the same S_0 != 0",
     .counter_bound = DIFFERENT,
     .variant = IN_DOUBLE,
     .compute = compare_outputs},
    {.name = "pdn.theorem-3.1-float32",
     .statement = "They do in float32 too, by the chunkwise engine.",
     .source = P "theorem 3.1",
     .measure = "relative difference",
     .bound = 2e-5,
     .counter_case = "both start from the same S_0 != 0",
     .counter_bound = DIFFERENT,
     .variant = IN_FLOAT,
     .compute = compare_outputs},
    {.name = "pdn.theorem-3.1-state",
     .statement = "The state of exact PDN is that of exact PLA, preconditioned: S = G^-1 C.",
     .source = P "theorem 3.1",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "with the diagonal of G alone",
     .counter_bound = DIFFERENT,
     .variant = FINAL_STATE,
     .compute = compare_states},
    {.name = "pdn.c4-sherman-morrison",
     .statement = "The Sherman-Morrison recurrence keeps P the inverse of the Gram matrix G.",
     .source = P "appendix C.4",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "with the diagonal of G alone",
     .counter_bound = DIFFERENT,
     .variant = INVERSE_GRAM,
     .compute = compare_states},
    {.name = "pdn.c1-write-key",
     .statement = "The exact write key P_{t-1} k / (1 + k . P_{t-1} k) is P_t k.",
     .source = P "appendix C.1",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "without the denominator",
     .counter_bound = DIFFERENT,
     .compute = compare_write_keys},
    {.name = "pdn.c1-derivation",
     .statement = "The derivation of the write key holds with (1 + k^T G^-1 k) I.",
     .source = P "appendix C.1, lines 6 and 7, corrected",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "as printed: I + k^T G^-1 k, a matrix and a number",
     .counter_bound = DIFFERENT,
     .compute = compare_derivation},
    {.name = "pdn.c2-diagonal-attention",
     .statement = "Diagonal PLA gives 1/2 after one token with key, value and ridge [1, 1].",
     .source = P "appendix C.2",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-15,
     .counter_case = "exact PLA, which gives 1/3",
     .counter_bound = 0.1,
     .variant = DIAGONAL_ATTENTION,
     .compute = read_diagonal_forms},
    {.name = "pdn.c2-diagonal-delta",
     .statement = "Diagonal PDN gives 1/3 after that token: theorem 3.1 does not pass on to the diagonal forms.",
     .source = P "appendix C.2",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-15,
     .counter_case = "diagonal PLA, which gives 1/2",
     .counter_bound = 0.1,
     .variant = DIAGONAL_DELTA,
     .compute = read_diagonal_forms},
    {.name = "pdn.table-7-discounted",
     .statement = "Gain beta/(alpha + beta k.Pk) with an undecayed S is exact discounted least squares, what MesaNet solves.",
     .source = P "table 7; table 2 (MesaNet)",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "with S decayed by alpha",
     .counter_bound = DIFFERENT,
     .compute = compare_discounted},
    {.name = "pdn.g2-preconditioners",
     .statement = "For beta = 1, GDN with P = G_t^-1 and Longhorn with P = G_{t-1}^-1 make the same update.",
     .source = P "appendix G.2, last line",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "beta = 0.6",
     .counter_bound = DIFFERENT,
     .variant = BETA_ONE,
     .compute = compare_preconditioners},
    {.name = "pdn.g2-preconditioners-weighted",
     .statement = "For any beta they do if G_t = G_{t-1} + beta k k^T.",
     .source = P "appendix G.2, last line, corrected",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "as printed: G_t = G_{t-1} + k k^T, beta = 0.6",
     .counter_bound = DIFFERENT,
     .variant = BETA_WEIGHS_GRAM,
     .compute = compare_preconditioners},
};
const dr_theory_chapter dr_theory_exact = {statements, sizeof statements / sizeof statements[0]};
