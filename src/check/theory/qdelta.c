/* Statements on Q-Delta as a recurrence: its equations 8 to 25 against the engine, token by token. */
#include "base/error.h"
#include "check/theory/theory.h"

enum { K = 6, V = 5 };

/* x = k + lambda q */
static matrix read_key(const dr_theory_sequence *s, int t) {
    return sum(vector_at(s, DR_INPUT_KEY, t), scaled(number_at(s, DR_INPUT_LAMBDA, t), vector_at(s, DR_INPUT_QUERY, t)));
}

static double alpha_at(const dr_theory_sequence *s, int t) {
    return exp(number_at(s, DR_INPUT_LOG_DECAY, t));
}

/* The transition of a token: alpha (I - beta k x^T) */
static matrix transition_at(const dr_theory_sequence *s, int t) {
    matrix key = vector_at(s, DR_INPUT_KEY, t);
    matrix erased = scaled(number_at(s, DR_INPUT_BETA, t), outer(key, read_key(s, t)));
    return scaled(alpha_at(s, t), difference(identity(K), erased));
}

/* ---- the update (eq. 17 to 20) ---------------------------------------------------------------------------------------------
 */

static dr_status compare_updates(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { T = 100 };
    dr_theory_sequence s, one;
    DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, &s));
    one = s;
    one.tokens = 1;
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < T; t++) {
        dr_theory_token(&s, t, &one);
        DR_TRY(dr_theory_run(theory, &one));
        double beta = number_at(&s, DR_INPUT_BETA, t);
        matrix key = vector_at(&s, DR_INPUT_KEY, t), decayed = scaled(alpha_at(&s, t), initial_state(&one));
        matrix mixed = scaled(number_at(&s, DR_INPUT_LAMBDA, t), outer(key, vector_at(&s, DR_INPUT_QUERY, t)));
        matrix written = scaled(beta, outer(key, vector_at(&s, DR_INPUT_VALUE, t)));
        matrix right = difference(identity(K), scaled(beta, sum(outer(key, key), mixed)));
        matrix turned = difference(identity(K), scaled(beta, sum(outer(key, key), transpose(mixed))));
        figures->statement = worse(figures->statement, distance(sum(product(right, decayed), written), final_state(&one)));
        figures->counter = worse(figures->counter, distance(sum(product(turned, decayed), written), final_state(&one)));
        dr_theory_advance(&one);
    }
    return DR_OK;
}

static dr_status drop_lambda(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { T = 30 };
    dr_theory_sequence s, plain;
    DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, &s));
    plain = s;
    plain.rule = *dr_rule_find("gdn");
    DR_TRY(dr_theory_run(theory, &plain));
    DR_TRY(dr_theory_run(theory, &s));
    figures->counter = dr_theory_distance(T * V, s.o, plain.o);
    for (int t = 0; t < T; t++) put(&s, DR_INPUT_LAMBDA, t, zeros(1, 1));
    DR_TRY(dr_theory_run(theory, &s));
    figures->statement = dr_theory_distance(T * V, s.o, plain.o);
    return DR_OK;
}

/* ---- mixing of values (eq. 8 to 15) -----------------------------------------------------------------------------------------
 */

/* sum over earlier tokens of eta <q_t, k'> v, k' the key carried to t by the transitions between; oldest_first: their product
 * in ascending order. */
static matrix mixed_values(const dr_theory_sequence *s, int t, bool oldest_first) {
    matrix mixed = zeros(V, 1), query = vector_at(s, DR_INPUT_QUERY, t);
    for (int earlier = 0; earlier < t; earlier++) {
        matrix carried = vector_at(s, DR_INPUT_KEY, earlier);
        int between = t - earlier - 1;
        for (int j = 0; j < between; j++)
            carried = product(transition_at(s, oldest_first ? t - 1 - j : earlier + 1 + j), carried);
        double weight = number_at(s, DR_INPUT_BETA, earlier) * dot(query, carried);
        mixed = sum(mixed, scaled(weight, vector_at(s, DR_INPUT_VALUE, earlier)));
    }
    return mixed;
}

enum { NEWEST_LEFT, WITHOUT_CARRYING };

static dr_status mix_values(dr_theory *theory, int variant, dr_theory_figures *figures) {
    enum { T = 12 };
    dr_theory_sequence s, one;
    DR_TRY(dr_theory_draw(theory, "qdelta", T, K, V, &s));
    start_from(&s, zeros(K, V));
    one = s;
    one.tokens = 1;
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < T; t++) {
        matrix query = vector_at(&s, DR_INPUT_QUERY, t), read = read_out(initial_state(&one), query);
        matrix attended = zeros(V, 1); /* with the keys as they were */
        for (int i = 0; i < t; i++) {
            double weight = number_at(&s, DR_INPUT_BETA, i) * dot(query, vector_at(&s, DR_INPUT_KEY, i));
            attended = sum(attended, scaled(weight, vector_at(&s, DR_INPUT_VALUE, i)));
        }
        matrix other = variant == NEWEST_LEFT ? mixed_values(&s, t, true) : attended;
        figures->statement = worse(figures->statement, distance(mixed_values(&s, t, false), read));
        figures->counter = worse(figures->counter, distance(other, read));
        dr_theory_token(&s, t, &one);
        DR_TRY(dr_theory_run(theory, &one));
        dr_theory_advance(&one);
    }
    return DR_OK;
}

/* ---- WY recursions (eq. 21 to 25)
 * -------------------------------------------------------------------------------------------- */

enum { ROWS = 16 };

typedef struct {
    matrix w[ROWS], u[ROWS];
    double decay[ROWS]; /* gamma_r */
} wy_rows;

static void add_wy_row(const dr_theory_sequence *s, int r, bool decayed, wy_rows *rows) {
    matrix read = read_key(s, r), w = read, u = vector_at(s, DR_INPUT_VALUE, r);
    for (int i = 0; i < r; i++) {
        double overlap = dot(vector_at(s, DR_INPUT_KEY, i), read);
        w = difference(w, scaled(overlap, rows->w[i]));
        u = difference(u, scaled(overlap * (decayed ? rows->decay[r] / rows->decay[i] : 1), rows->u[i]));
    }
    rows->w[r] = scaled(number_at(s, DR_INPUT_BETA, r), w);
    rows->u[r] = scaled(number_at(s, DR_INPUT_BETA, r), u);
}

/* gamma_r P_r S_0 + G_r, P_r = I - sum k w^T, G_r = sum gamma_r/gamma_i k u^T */
static matrix wy_state(const dr_theory_sequence *s, int r, const wy_rows *rows) {
    matrix p = identity(K), g = zeros(K, V);
    for (int i = 0; i <= r; i++) {
        matrix key = vector_at(s, DR_INPUT_KEY, i);
        p = difference(p, outer(key, rows->w[i]));
        g = sum(g, scaled(rows->decay[r] / rows->decay[i], outer(key, rows->u[i])));
    }
    return sum(scaled(rows->decay[r], product(p, initial_state(s))), g);
}

static dr_status recur_wy(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s, one;
    wy_rows right, undecayed;
    double decay = 1;
    DR_TRY(dr_theory_draw(theory, "qdelta", ROWS, K, V, &s));
    one = s;
    one.tokens = 1;
    *figures = (dr_theory_figures){0, 0};
    for (int r = 0; r < ROWS; r++) {
        right.decay[r] = undecayed.decay[r] = decay *= alpha_at(&s, r);
        add_wy_row(&s, r, true, &right);
        add_wy_row(&s, r, false, &undecayed);
        dr_theory_token(&s, r, &one);
        DR_TRY(dr_theory_run(theory, &one));
        figures->statement = worse(figures->statement, distance(wy_state(&s, r, &right), final_state(&one)));
        figures->counter = worse(figures->counter, distance(wy_state(&s, r, &undecayed), final_state(&one)));
        dr_theory_advance(&one);
    }
    return DR_OK;
}

#define EQUALITY .measure = LARGEST_DIFFERENCE, .bound = EQUAL, .counter_bound = DIFFERENT

static const dr_theory_statement statements[] = {
    {.name = "qdelta.eq-18-transition",
     .statement = "Erasing with k + lambda q is the transition I - beta (k k^T + lambda k q^T).",
     .source = Q "eq. 17 to 20",
     .counter_case = "lambda q k^T for lambda k q^T",
     EQUALITY,
     .compute = compare_updates},
    {.name = "qdelta.lambda-zero",
     .statement = "lambda = 0 gives Gated DeltaNet.",
     .source = Q "eq. 19",
     .counter_case = "lambda in (0, 1)",
     EQUALITY,
     .compute = drop_lambda},
    {.name = "qdelta.eq-12-value-mixing",
     .statement = "S_{t-1}^T q_t mixes earlier values with weights eta <q_t, k'>, k' the keys carried to t.",
     .source = Q "eq. 8 to 15",
     .counter_case = "the keys as they were",
     EQUALITY,
     .variant = WITHOUT_CARRYING,
     .compute = mix_values},
    {.name = "qdelta.eq-11-order",
     .statement = "They are carried by P_{t-1}^T .. P_{i+1}^T, the newest factor on the left.",
     .source = Q "eq. 11 and 13, corrected",
     .counter_case = "as the product sign of eq. 21 and 22 reads: the oldest on the left",
     EQUALITY,
     .variant = NEWEST_LEFT,
     .compute = mix_values},
    {.name = "qdelta.eq-25-recursions",
     .statement = "The recursions of w and u~ give P_r, G_r and the state, for 1 to 16 tokens.",
     .source = Q "eq. 21 to 25",
     .counter_case = "u~ without gamma_r/gamma_i",
     EQUALITY,
     .compute = recur_wy},
};
const dr_theory_chapter dr_theory_qdelta = {statements, sizeof statements / sizeof statements[0]};
