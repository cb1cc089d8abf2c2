/* Statements on erase-then-delta attention: what erasing does to reads, its gates, EDA as KDA on twice the tokens, and the
 * order of its two steps. The engine's read after erasing alone is that of a token with beta = 0. */
#include "base/error.h"
#include "check/theory/theory.h"
#include "check/verify/measure.h"
#include "ops/operations.h"

enum { K = 6, V = 5 };

/* ---- reads after erasing (eq. 12)
 * ---------------------------------------------------------------------------------------------- */

/* One token that decays nothing and writes nothing, with an erase key of any length. */
static dr_status draw_erasure(dr_theory *theory, double erase_length, dr_theory_sequence *s) {
    DR_TRY(dr_theory_draw(theory, "eda", 1, K, V, s));
    put(s, DR_INPUT_LOG_DECAY, 0, zeros(K, 1));
    put(s, DR_INPUT_BETA, 0, zeros(1, 1));
    put(s, DR_INPUT_ERASE_GAIN, 0, filled(1, 1, uniform(&theory->random, 0.2, 0.9)));
    put(s, DR_INPUT_ERASE_KEY, 0, scaled(erase_length, unit_normals(&theory->random, K)));
    return DR_OK;
}

static dr_status read_erased(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 8; draw++) {
        DR_TRY(draw_erasure(theory, uniform(&theory->random, 0.5, 1.2), &s));
        DR_TRY(dr_theory_run(theory, &s));
        matrix query = vector_at(&s, DR_INPUT_QUERY, 0), erase = vector_at(&s, DR_INPUT_ERASE_KEY, 0);
        matrix read = read_out(initial_state(&s), query), removed = read_out(initial_state(&s), erase);
        double gain = number_at(&s, DR_INPUT_ERASE_GAIN, 0);
        matrix right = difference(read, scaled(gain * dot(query, erase), removed));
        matrix without_overlap = difference(read, scaled(gain, removed));
        figures->statement = worse(figures->statement, distance(right, o_at(&s, 0)));
        figures->counter = worse(figures->counter, distance(without_overlap, o_at(&s, 0)));
    }
    return DR_OK;
}

enum { ALONG_ERASE_KEY, ACROSS_ERASE_KEY };

/* At the erase key the read shrinks by 1 - gamma; across it nothing changes. Counter-case: a query that is neither. */
static dr_status read_along(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence s;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 8; draw++) {
        DR_TRY(draw_erasure(theory, 1, &s));
        matrix query = vector_at(&s, DR_INPUT_QUERY, 0), erase = vector_at(&s, DR_INPUT_ERASE_KEY, 0), special = erase;
        double kept = 1 - number_at(&s, DR_INPUT_ERASE_GAIN, 0);
        if (variant == ACROSS_ERASE_KEY) {
            kept = 1;
            special = difference(query, scaled(dot(query, erase), erase));
        }
        DR_TRY(dr_theory_run(theory, &s));
        figures->counter = worse(figures->counter, distance(o_at(&s, 0), scaled(kept, read_out(initial_state(&s), query))));
        put(&s, DR_INPUT_QUERY, 0, special);
        DR_TRY(dr_theory_run(theory, &s));
        figures->statement =
            worse(figures->statement, distance(o_at(&s, 0), scaled(kept, read_out(initial_state(&s), special))));
    }
    return DR_OK;
}

/* ---- the transition (eq. 16)
 * --------------------------------------------------------------------------------------------------- */

static dr_status expand_transition(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 8; draw++) {
        dr_theory_sequence s;
        DR_TRY(dr_theory_draw(theory, "eda", 1, K, K, &s));
        start_from(&s, identity(K));
        put(&s, DR_INPUT_LOG_DECAY, 0, zeros(K, 1));
        put(&s, DR_INPUT_VALUE, 0, zeros(K, 1));
        DR_TRY(dr_theory_run(theory, &s));
        double beta = number_at(&s, DR_INPUT_BETA, 0), erase_gain = number_at(&s, DR_INPUT_ERASE_GAIN, 0);
        matrix key = vector_at(&s, DR_INPUT_KEY, 0), erase = vector_at(&s, DR_INPUT_ERASE_KEY, 0);
        matrix separate = difference(identity(K), sum(scaled(beta, outer(key, key)), scaled(erase_gain, outer(erase, erase))));
        matrix cross = scaled(beta * erase_gain * dot(key, erase), outer(key, erase));
        figures->statement = worse(figures->statement, distance(sum(separate, cross), final_state(&s)));
        figures->counter = worse(figures->counter, distance(separate, final_state(&s)));
    }
    return DR_OK;
}

/* ---- gates (eq. 14 and 15)
 * ------------------------------------------------------------------------------------------------------ */

enum { GATE_ROWS = 2000, GATE_HEADS = 4 };

static const double LOWER_BOUND = -5;

static dr_status run_gate(dr_backend *backend, dr_gate_kind kind, int rows, int heads, double *x, double *a_log, double *y) {
    dr_device_memory memory = {.backend = backend};
    dr_gate gate = {.kind = kind,
                    .rows = rows,
                    .heads = heads,
                    .dim = 1,
                    .multiplier = 1,
                    .lower_bound = LOWER_BOUND,
                    .from = DR_NUMBER,
                    .to = DR_NUMBER};
    dr_tensor input = {.dtype = DR_F64, .rank = 1, .shape = {(int64_t)rows * heads}, .data = x};
    dr_tensor rates = {.dtype = DR_F64, .rank = 1, .shape = {heads}, .data = a_log};
    void *on_x, *on_a_log, *on_y;
    dr_status status;
    DR_GO(dr_device_fill(&memory, &input, input.shape[0], &on_x));
    DR_GO(dr_device_fill(&memory, &rates, heads, &on_a_log));
    DR_GO(dr_device_unset(&memory, input.shape[0], &on_y));
    DR_GO(backend->ops->gate_forward(backend, &gate, on_x, on_a_log, NULL, on_y));
    DR_GO(dr_backend_download(backend, y, DR_F64, on_y, input.shape[0]));
done:
    dr_device_free(&memory);
    return status;
}

/* The largest |g - l/2|: |l|/2 where every g is in [l, 0]. */
static double extent(const double *g) {
    double largest = 0;
    for (int i = 0; i < GATE_ROWS * GATE_HEADS; i++) largest = worse(largest, fabs(g[i] - LOWER_BOUND / 2));
    return largest;
}

static dr_status bound_gate(dr_theory *theory, int variant, dr_theory_figures *figures) {
    double x[GATE_ROWS * GATE_HEADS], g[GATE_ROWS * GATE_HEADS], a_log[GATE_HEADS];
    for (int i = 0; i < GATE_ROWS * GATE_HEADS; i++) x[i] = 8 * dr_random_normal(&theory->random);
    for (int i = 0; i < GATE_HEADS; i++) a_log[i] = uniform(&theory->random, -1, 1);
    DR_TRY(run_gate(theory->reference, (dr_gate_kind)variant, GATE_ROWS, GATE_HEADS, x, a_log, g));
    figures->statement = extent(g);
    DR_TRY(run_gate(theory->reference, DR_GATE_LOG_DECAY, GATE_ROWS, GATE_HEADS, x, a_log, g));
    figures->counter = extent(g);
    return DR_OK;
}

/* Small steps D = softplus(x) at the rate A = 2: |g + A D| over (A D)^2/|l|. */
static dr_status expand_gate(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { STEPS = 4 };
    static const double steps[STEPS] = {1e-4, 1e-3, 1e-2, 1e-1};
    double x[STEPS], bounded[STEPS], other[STEPS], a_log[1] = {log(2)};
    for (int i = 0; i < STEPS; i++) x[i] = log(expm1(steps[i]));
    DR_TRY(run_gate(theory->reference, DR_GATE_EDA_BOUNDED, STEPS, 1, x, a_log, bounded));
    DR_TRY(run_gate(theory->reference, DR_GATE_KDA_BOUNDED, STEPS, 1, x, a_log, other));
    *figures = (dr_theory_figures){0, 0};
    for (int i = 0; i < STEPS; i++) {
        double first_order = 2 * steps[i], second_order = first_order * first_order / fabs(LOWER_BOUND);
        figures->statement = worse(figures->statement, fabs(bounded[i] + first_order) / second_order);
        figures->counter = worse(figures->counter, fabs(other[i] + first_order) / second_order);
    }
    return DR_OK;
}

enum { SUBNORMAL_HALF, OVERFLOWING_QUOTIENT };

/* Steps at the bound: e^-5 a step against half precision's least normal number, e^5 a step against float32's largest. */
static dr_status multiply_gates(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)theory;
    const double least_normal_half = 0x1p-14, largest_float = 0x1.fffffep127;
    if (variant == SUBNORMAL_HALF) {
        figures->statement = exp(2 * LOWER_BOUND) / least_normal_half;
        figures->counter = exp(LOWER_BOUND) / least_normal_half;
    } else {
        figures->statement = exp(-18 * LOWER_BOUND) / largest_float;
        figures->counter = exp(-17 * LOWER_BOUND) / largest_float;
    }
    return DR_OK;
}

/* ---- twice the tokens (eq. 17 to 22)
 * -------------------------------------------------------------------------------------------- */

enum { DOUBLED = 50 };

/* KDA's inputs: an erase token with value 0, then a delta token that does not decay. */
static void double_tokens(const dr_theory_sequence *s, dr_theory_sequence *doubled) {
    *doubled = *s;
    doubled->rule = *dr_rule_find("kda");
    doubled->tokens = 2 * s->tokens;
    for (int t = 0; t < s->tokens; t++) {
        put(doubled, DR_INPUT_QUERY, 2 * t, zeros(K, 1));
        put(doubled, DR_INPUT_KEY, 2 * t, vector_at(s, DR_INPUT_ERASE_KEY, t));
        put(doubled, DR_INPUT_VALUE, 2 * t, zeros(V, 1));
        put(doubled, DR_INPUT_BETA, 2 * t, vector_at(s, DR_INPUT_ERASE_GAIN, t));
        put(doubled, DR_INPUT_LOG_DECAY, 2 * t, vector_at(s, DR_INPUT_LOG_DECAY, t));
        put(doubled, DR_INPUT_QUERY, 2 * t + 1, vector_at(s, DR_INPUT_QUERY, t));
        put(doubled, DR_INPUT_KEY, 2 * t + 1, vector_at(s, DR_INPUT_KEY, t));
        put(doubled, DR_INPUT_VALUE, 2 * t + 1, vector_at(s, DR_INPUT_VALUE, t));
        put(doubled, DR_INPUT_BETA, 2 * t + 1, vector_at(s, DR_INPUT_BETA, t));
        put(doubled, DR_INPUT_LOG_DECAY, 2 * t + 1, zeros(K, 1));
    }
}

enum { DOUBLED_OUTPUTS, DOUBLED_STATE, ODD_ROWS };

static dr_status compare_doubled(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence s, doubled;
    DR_TRY(dr_theory_draw(theory, "eda", DOUBLED, K, V, &s));
    DR_TRY(dr_theory_run(theory, &s));
    double_tokens(&s, &doubled);
    DR_TRY(dr_theory_run(theory, &doubled));
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < DOUBLED && variant != DOUBLED_STATE; t++) {
        matrix odd = o_at(&doubled, 2 * t), even = o_at(&doubled, 2 * t + 1);
        figures->statement =
            worse(figures->statement, variant == ODD_ROWS ? distance(odd, zeros(V, 1)) : distance(even, o_at(&s, t)));
        figures->counter = worse(figures->counter, distance(odd, o_at(&s, t)));
    }
    if (variant != DOUBLED_STATE) return DR_OK;
    figures->statement = distance(final_state(&doubled), final_state(&s));
    for (int t = 0; t < DOUBLED; t++) /* every token decays twice */
        put(&doubled, DR_INPUT_LOG_DECAY, 2 * t + 1, vector_at(&s, DR_INPUT_LOG_DECAY, t));
    DR_TRY(dr_theory_run(theory, &doubled));
    figures->counter = distance(final_state(&doubled), final_state(&s));
    return DR_OK;
}

enum { ROWS = 14 };

typedef struct {
    matrix w[ROWS], u[ROWS];
} wy_rows;

/* Product of D from row i + 1 to row r, or from row i. i = -1: from the first. */
static matrix decay_between(const dr_theory_sequence *rows, int i, int r, bool from_i) {
    matrix total = zeros(K, 1);
    for (int j = i + 1 - (from_i && i >= 0); j <= r; j++) total = sum(total, vector_at(rows, DR_INPUT_LOG_DECAY, j));
    return exponentials(total);
}

static void add_wy_row(const dr_theory_sequence *rows, int r, bool from_i, wy_rows *wy) {
    double gain = number_at(rows, DR_INPUT_BETA, r);
    matrix key = vector_at(rows, DR_INPUT_KEY, r);
    matrix w = times(decay_between(rows, -1, r, from_i), key), u = vector_at(rows, DR_INPUT_VALUE, r);
    for (int i = 0; i < r; i++) {
        double overlap = dot(vector_at(rows, DR_INPUT_KEY, i), times(decay_between(rows, i, r, from_i), key));
        w = difference(w, scaled(overlap, wy->w[i]));
        u = difference(u, scaled(overlap, wy->u[i]));
    }
    wy->w[r] = scaled(gain, w);
    wy->u[r] = scaled(gain, u);
}

/* (D - sum (D k) w^T) S_0 + sum (D k) u^T */
static matrix wy_state(const dr_theory_sequence *rows, int r, bool from_i, const wy_rows *wy) {
    matrix p = diagonal(decay_between(rows, -1, r, from_i)), h = zeros(K, V);
    for (int i = 0; i <= r; i++) {
        matrix carried = times(decay_between(rows, i, r, from_i), vector_at(rows, DR_INPUT_KEY, i));
        p = difference(p, outer(carried, wy->w[i]));
        h = sum(h, outer(carried, wy->u[i]));
    }
    return sum(product(p, initial_state(rows)), h);
}

static dr_status recur_wy(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s, one, rows;
    wy_rows right, printed;
    DR_TRY(dr_theory_draw(theory, "eda", ROWS / 2, K, V, &s));
    double_tokens(&s, &rows);
    one = s;
    one.tokens = 1;
    *figures = (dr_theory_figures){0, 0};
    for (int r = 0; r < ROWS; r++) {
        add_wy_row(&rows, r, false, &right);
        add_wy_row(&rows, r, true, &printed);
        if (r % 2 == 0) continue;
        dr_theory_token(&s, r / 2, &one);
        DR_TRY(dr_theory_run(theory, &one));
        figures->statement = worse(figures->statement, distance(wy_state(&rows, r, false, &right), final_state(&one)));
        figures->counter = worse(figures->counter, distance(wy_state(&rows, r, true, &printed), final_state(&one)));
        dr_theory_advance(&one);
    }
    return DR_OK;
}

/* The product of a token's transitions, delta times erase times decay. */
static matrix transition_at(const dr_theory_sequence *s, int t) {
    matrix key = vector_at(s, DR_INPUT_KEY, t), erase = vector_at(s, DR_INPUT_ERASE_KEY, t);
    matrix delta = difference(identity(K), scaled(number_at(s, DR_INPUT_BETA, t), outer(key, key)));
    matrix erased = difference(identity(K), scaled(number_at(s, DR_INPUT_ERASE_GAIN, t), outer(erase, erase)));
    return product(product(delta, erased), diagonal(exponentials(vector_at(s, DR_INPUT_LOG_DECAY, t))));
}

/* S_T by eq. 19 with the products of transitions in one order or the other. */
static matrix unrolled(const dr_theory_sequence *s, bool newest_left) {
    matrix state = zeros(K, V);
    for (int from = -1; from < s->tokens; from++) { /* what entered with token `from`, or before the first */
        matrix carried = identity(K);
        for (int t = from + 1; t < s->tokens; t++)
            carried = newest_left ? product(transition_at(s, t), carried) : product(carried, transition_at(s, t));
        matrix entered = initial_state(s);
        if (from >= 0)
            entered = scaled(number_at(s, DR_INPUT_BETA, from),
                             outer(vector_at(s, DR_INPUT_KEY, from), vector_at(s, DR_INPUT_VALUE, from)));
        state = sum(state, product(carried, entered));
    }
    return state;
}

static dr_status unroll(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(dr_theory_draw(theory, "eda", 5, K, V, &s));
    DR_TRY(dr_theory_run(theory, &s));
    figures->statement = distance(unrolled(&s, true), final_state(&s));
    figures->counter = distance(unrolled(&s, false), final_state(&s));
    return DR_OK;
}

/* ---- two steps or one (3.3)
 * -------------------------------------------------------------------------------------------------------- */

/* One correction at the key with erase gain c and write gain beta; keys have length 1. added: c = gamma + beta. */
static dr_status correct_once(dr_theory *theory, const dr_theory_sequence *s, bool added, double *figure) {
    dr_theory_sequence once = *s;
    once.rule.rows = 1;
    once.rule.row[0] = (dr_row){.read = DR_READ_KEY, .write = DR_WRITE_KEY, .gain = DR_GAIN_BETA, .value = DR_VALUE_GATED};
    for (int t = 0; t < s->tokens; t++) {
        double beta = number_at(s, DR_INPUT_BETA, t), erase_gain = number_at(s, DR_INPUT_ERASE_GAIN, t);
        double gain = added ? beta + erase_gain : 1 - (1 - beta) * (1 - erase_gain);
        put(&once, DR_INPUT_BETA, t, filled(1, 1, gain));
        put(&once, DR_INPUT_WRITE_GATE, t, filled(V, 1, beta));
    }
    DR_TRY(dr_theory_run(theory, &once));
    *figure = distance(final_state(&once), final_state(s));
    return DR_OK;
}

static dr_status collapse(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { T = 30 };
    dr_theory_sequence s;
    DR_TRY(dr_theory_draw(theory, "eda", T, K, V, &s));
    for (int t = 0; t < T; t++) put(&s, DR_INPUT_ERASE_KEY, t, vector_at(&s, DR_INPUT_KEY, t));
    DR_TRY(dr_theory_run(theory, &s));
    DR_TRY(correct_once(theory, &s, false, &figures->statement));
    return correct_once(theory, &s, true, &figures->counter);
}

/* How far erase-then-delta is from delta-then-erase after one token without decay. */
static dr_status order_distance(dr_theory *theory, dr_theory_sequence *s, double *figure) {
    dr_theory_sequence other = *s;
    other.rule.row[0] = s->rule.row[1];
    other.rule.row[1] = s->rule.row[0];
    DR_TRY(dr_theory_run(theory, s));
    DR_TRY(dr_theory_run(theory, &other));
    *figure = distance(final_state(s), final_state(&other));
    return DR_OK;
}

static dr_status swap_steps(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < 8; draw++) {
        dr_theory_sequence s;
        double figure;
        DR_TRY(draw_erasure(theory, 1, &s));
        matrix erase = vector_at(&s, DR_INPUT_ERASE_KEY, 0), key = vector_at(&s, DR_INPUT_KEY, 0);
        put(&s, DR_INPUT_BETA, 0, filled(1, 1, uniform(&theory->random, 0.3, 0.9)));
        put(&s, DR_INPUT_KEY, 0, unit(sum(erase, scaled(0.5, key))));
        DR_TRY(order_distance(theory, &s, &figure));
        figures->statement = worse(figures->statement, figure);
        put(&s, DR_INPUT_KEY, 0, unit(difference(key, scaled(dot(key, erase), erase))));
        DR_TRY(order_distance(theory, &s, &figure));
        figures->counter = worse(figures->counter, figure);
    }
    return DR_OK;
}

/* ---- independent directions (4.5)
 * --------------------------------------------------------------------------------------------------- */

/* The mean |cos| of independent directions in R^128 against Gamma(64)/(sqrt(pi) Gamma(64.5)), in standard errors. */
static dr_status compare_cosines(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    enum { SIZE = 128, PAIRS = 5000 };
    double total = 0, squares = 0;
    for (int i = 0; i < PAIRS; i++) {
        double across = 0, one_squared = 0, other_squared = 0;
        for (int d = 0; d < SIZE; d++) {
            double one = dr_random_normal(&theory->random), other = dr_random_normal(&theory->random);
            across += one * other;
            one_squared += one * one;
            other_squared += other * other;
        }
        double cosine = fabs(across) / sqrt(one_squared * other_squared);
        total += cosine;
        squares += cosine * cosine;
    }
    double mean = total / PAIRS, standard_error = sqrt((squares / PAIRS - mean * mean) / PAIRS);
    double expected = exp(lgamma(SIZE / 2.0) - lgamma(SIZE / 2.0 + 0.5)) / sqrt(acos(-1));
    figures->statement = fabs(mean - expected) / standard_error;
    figures->counter = fabs(mean - 0.105) / standard_error;
    return DR_OK;
}

#define EQUALITY .measure = LARGEST_DIFFERENCE, .bound = EQUAL, .counter_bound = DIFFERENT

static const dr_theory_statement statements[] = {
    {.name = "eda.eq-12-readout",
     .statement = "A read after erasing is S^T q - gamma (q.e) S^T e.",
     .source = E "eq. 12",
     .counter_case = "without the overlap q.e",
     EQUALITY,
     .compute = read_erased},
    {.name = "eda.eq-12-along",
     .statement = "At q = e of length 1 the read shrinks by 1 - gamma.",
     .source = E "after eq. 12",
     .counter_case = "another query",
     EQUALITY,
     .variant = ALONG_ERASE_KEY,
     .compute = read_along},
    {.name = "eda.eq-12-across",
     .statement = "A query orthogonal to e reads what it read before.",
     .source = E "after eq. 12",
     .counter_case = "another query",
     EQUALITY,
     .variant = ACROSS_ERASE_KEY,
     .compute = read_along},
    {.name = "eda.eq-16-cross-term",
     .statement = "(I - beta k k^T)(I - gamma e e^T) has the cross term beta gamma (k.e) k e^T.",
     .source = E "eq. 16",
     .counter_case = "without the cross term",
     EQUALITY,
     .compute = expand_transition},
    {.name = "eda.eq-15-range",
     .statement = "EDA's gate keeps log decays in [-5, 0].",
     .source = E "eq. 15",
     .measure = "largest |g + 5/2| over 8,000 draws",
     .bound = 2.5,
     .counter_case = "the unbounded gate of eq. 14",
     .counter_bound = 5,
     .variant = DR_GATE_EDA_BOUNDED,
     .compute = bound_gate},
    {.name = "eda.kda-gate-range",
     .statement = "KDA's safe gate keeps them there too.",
     .source = E "section 3.2",
     .measure = "largest |g + 5/2| over 8,000 draws",
     .bound = 2.5,
     .counter_case = "the unbounded gate of eq. 14",
     .counter_bound = 5,
     .variant = DR_GATE_KDA_BOUNDED,
     .compute = bound_gate},
    {.name = "eda.eq-15-taylor",
     .statement = "For small steps D EDA's gate is -A D up to (A D)^2/|l|.",
     .source = E "after eq. 15",
     .measure = "largest remainder over (A D)^2/|l|",
     .bound = 1,
     .counter_case = "KDA's safe gate",
     .counter_bound = 5,
     .compute = expand_gate},
    {.name = "eda.eq-15-half",
     .statement = "Two steps at the bound are no normal half-precision number: eq. 15 protects a step, not a product.",
     .source = E "after eq. 15: a remark",
     .measure = "product over the least normal number",
     .bound = 1,
     .counter_case = "one step",
     .counter_bound = 10,
     .variant = SUBNORMAL_HALF,
     .compute = multiply_gates},
    {.name = "eda.eq-21-overflow",
     .statement = "K'/A of eq. 21 overflows float32 after 17 steps at the bound.",
     .source = E "eq. 21: a remark",
     .measure = "quotient over the largest number",
     .bound = 1,
     .at_least = true,
     .counter_case = "17 steps, the last that fit",
     .counter_bound = 0.5,
     .variant = OVERFLOWING_QUOTIENT,
     .compute = multiply_gates},
    {.name = "eda.eq-17-doubled",
     .statement = "EDA is KDA on the doubled sequence of erase and delta rows.",
     .source = E "eq. 17 and 18",
     .counter_case = "the outputs of the erase rows",
     EQUALITY,
     .variant = DOUBLED_OUTPUTS,
     .compute = compare_doubled},
    {.name = "eda.eq-17-doubled-state",
     .statement = "Its last state is KDA's.",
     .source = E "eq. 17 and 18",
     .counter_case = "with the decay at both rows of a token",
     EQUALITY,
     .variant = DOUBLED_STATE,
     .compute = compare_doubled},
    {.name = "eda.eq-22-even-rows",
     .statement = "Of the doubled rows only the even ones give outputs: the others read with q' = 0.",
     .source = E "eq. 22, corrected",
     .counter_case = "as printed: O has all rows",
     EQUALITY,
     .variant = ODD_ROWS,
     .compute = compare_doubled},
    {.name = "eda.eq-20-recursions",
     .statement = "The recursions of w and u, with decays from row i + 1, give the state after 2 to 14 rows.",
     .source = E "eq. 19 and 20, corrected",
     .counter_case = "as printed: decays from row i",
     EQUALITY,
     .compute = recur_wy},
    {.name = "eda.eq-19-order",
     .statement = "The products of eq. 19 have the newest factor on the left.",
     .source = E "eq. 19, corrected",
     .counter_case = "read from left to right, as printed",
     EQUALITY,
     .compute = unroll},
    {.name = "eda.3.3-same-address",
     .statement = "e = k is one correction at k with erase gain 1 - (1 - gamma)(1 - beta).",
     .source = E "section 3.3",
     .counter_case = "erase gain gamma + beta",
     EQUALITY,
     .compute = collapse},
    {.name = "eda.3.3-order-matters",
     .statement = "Erase-then-delta is not delta-then-erase.",
     .source = E "section 3.3",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-2,
     .at_least = true,
     .counter_case = "an erase key orthogonal to the key",
     .counter_bound = 1e-9,
     .compute = swap_steps},
    {.name = "eda.4.5-cosines",
     .statement = "Independent directions in R^128 have a mean |cos| of 0.0707.",
     .source = E "section 4.5, corrected; 5,000 pairs",
     .measure = "deviation in standard errors",
     .bound = 6,
     .counter_case = "0.105, which the paper calls close to it",
     .counter_bound = 20,
     .compute = compare_cosines},
};
const dr_theory_chapter dr_theory_eda = {statements, sizeof statements / sizeof statements[0]};
