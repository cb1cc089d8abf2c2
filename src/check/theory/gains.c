/* Statements on the objectives that updates come from, and on gains: an update S_1 of the engine must be a stationary point of
 *
 *     f(S) = |S - anchor|^2 in the metric P^-1  +  fit |S^T k - v|^2  -  2 (S^T k) . pull
 *
 * All of these are quadratic, so a central difference with a large step gives the slope of f exactly but for rounding. */
#include "base/error.h"
#include "check/theory/theory.h"

enum { K = 4, V = 3, DRAWS = 8, DIRECTIONS = 20, FLOW_STEPS = 500 };

typedef struct {
    matrix anchor, key, value, pull;
    matrix metric; /* diagonal of P^-1, [K] */
    double fit;
    bool rooted; /* the norm without its square */
} objective;

static double value_of(const objective *f, matrix state) {
    matrix away = difference(state, f->anchor), read = read_out(state, f->key), miss = difference(read, f->value);
    double norm = dot(away, product(diagonal(f->metric), away));
    return (f->rooted ? sqrt(norm) : norm) + f->fit * dot(miss, miss) - 2 * dot(read, f->pull);
}

/* The largest derivative of f at a state along random directions. */
static double slope(const objective *f, matrix state, dr_random *random) {
    const double step = 1e-3;
    double largest = 0;
    for (int i = 0; i < DIRECTIONS; i++) {
        matrix along = scaled(step, normals(random, K, V));
        double rise = value_of(f, sum(state, along)) - value_of(f, difference(state, along));
        largest = worse(largest, fabs(rise) / (2 * step));
    }
    return largest;
}

enum { ERROR_PULL, QUERY_PULL, VALUE_PULL, FIT };
enum { COUNTER_RULE, FLIPPED_FIT, ROOTED };

/* An update rule, the kind of its objective, and the counter-case: the update of another rule, or another objective. */
static const struct {
    const char *rule, *other;
    int kind, counter;
} updates[] = {
    {"pgdn", "gdn", ERROR_PULL, COUNTER_RULE},
    {"plonghorn", "pdn", FIT, COUNTER_RULE},
    {"pmamba2_key", "mamba2", VALUE_PULL, COUNTER_RULE},
    {"qdelta", "gdn", QUERY_PULL, COUNTER_RULE},
    {"longhorn", NULL, FIT, FLIPPED_FIT},
    {"gdn", NULL, ERROR_PULL, ROOTED},
};
enum { PGDN, PLONGHORN, PMAMBA2_KEY, QDELTA, LONGHORN, GDN };

static dr_status objective_of(dr_theory *theory, const dr_theory_sequence *s, int kind, objective *f) {
    double alpha = dr_rule_uses(&s->rule, DR_INPUT_LOG_DECAY) ? exp(number_at(s, DR_INPUT_LOG_DECAY, 0)) : 1;
    double beta = number_at(s, DR_INPUT_BETA, 0);
    *f = (objective){.anchor = scaled(alpha, initial_state(s)),
                     .key = vector_at(s, DR_INPUT_KEY, 0),
                     .value = vector_at(s, DR_INPUT_VALUE, 0),
                     .pull = zeros(V, 1),
                     .metric = filled(K, 1, 1),
                     .fit = kind == FIT ? beta : 0};
    matrix error = difference(f->value, read_out(f->anchor, f->key));
    if (kind == ERROR_PULL) f->pull = scaled(beta, error);
    if (kind == VALUE_PULL) f->pull = f->value;
    if (kind == QUERY_PULL) {
        matrix mixed = scaled(number_at(s, DR_INPUT_LAMBDA, 0), read_out(f->anchor, vector_at(s, DR_INPUT_QUERY, 0)));
        f->pull = scaled(beta, difference(error, mixed));
    }
    if (s->rule.scan == DR_SCAN_DIAGONAL) {
        matrix write_key;
        DR_TRY(dr_theory_write_key(theory, "pdn", s, &write_key));
        f->metric = quotient(f->key, write_key);
    }
    return DR_OK;
}

static dr_status check_update(dr_theory *theory, int variant, dr_theory_figures *figures) {
    *figures = (dr_theory_figures){0, 0};
    for (int draw = 0; draw < DRAWS; draw++) {
        dr_theory_sequence s;
        objective f;
        DR_TRY(dr_theory_draw(theory, updates[variant].rule, 1, K, V, &s));
        DR_TRY(objective_of(theory, &s, updates[variant].kind, &f));
        DR_TRY(dr_theory_run(theory, &s));
        figures->statement = worse(figures->statement, slope(&f, final_state(&s), &theory->random));
        if (updates[variant].counter == COUNTER_RULE) {
            s.rule = *dr_rule_find(updates[variant].other);
            DR_TRY(dr_theory_run(theory, &s));
        }
        if (updates[variant].counter == FLIPPED_FIT) f.fit = -f.fit;
        f.rooted = updates[variant].counter == ROOTED;
        figures->counter = worse(figures->counter, slope(&f, final_state(&s), &theory->random));
    }
    return DR_OK;
}

/* One token whose key has another length than 1. */
static dr_status draw_long_key(dr_theory *theory, const char *rule, dr_theory_sequence *s) {
    DR_TRY(dr_theory_draw(theory, rule, 1, K, V, s));
    put(s, DR_INPUT_KEY, 0, scaled(uniform(&theory->random, 1.2, 1.8), vector_at(s, DR_INPUT_KEY, 0)));
    return DR_OK;
}

static double miss_of(const dr_theory_sequence *s) {
    return distance(read_out(final_state(s), vector_at(s, DR_INPUT_KEY, 0)), vector_at(s, DR_INPUT_VALUE, 0));
}

static dr_status store_exactly(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(draw_long_key(theory, "longhorn", &s)); /* which reads what nlms does, and beta */
    DR_TRY(dr_theory_run(theory, &s));
    figures->counter = miss_of(&s);
    s.rule = *dr_rule_find("nlms");
    DR_TRY(dr_theory_run(theory, &s));
    figures->statement = miss_of(&s);
    return DR_OK;
}

/* dS/ds = k (v - S^T k)^T */
static matrix flow(matrix state, matrix key, matrix value) {
    return outer(key, difference(value, read_out(state, key)));
}

/* That flow over time beta by the classical Runge-Kutta method. */
static matrix flown(matrix state, matrix key, matrix value, double beta) {
    double h = beta / FLOW_STEPS;
    for (int i = 0; i < FLOW_STEPS; i++) {
        matrix k1 = flow(state, key, value), k2 = flow(sum(state, scaled(h / 2, k1)), key, value);
        matrix k3 = flow(sum(state, scaled(h / 2, k2)), key, value), k4 = flow(sum(state, scaled(h, k3)), key, value);
        state = sum(state, scaled(h / 6, sum(sum(k1, k4), scaled(2, sum(k2, k3)))));
    }
    return state;
}

static dr_status follow_flow(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(draw_long_key(theory, "efla", &s));
    put(&s, DR_INPUT_BETA, 0, filled(1, 1, uniform(&theory->random, 0.3, 1)));
    matrix exact = flown(initial_state(&s), vector_at(&s, DR_INPUT_KEY, 0), vector_at(&s, DR_INPUT_VALUE, 0),
                         number_at(&s, DR_INPUT_BETA, 0));
    DR_TRY(dr_theory_run(theory, &s));
    figures->statement = distance(final_state(&s), exact);
    s.rule = *dr_rule_find("delta_net");
    DR_TRY(dr_theory_run(theory, &s));
    figures->counter = distance(final_state(&s), exact);
    return DR_OK;
}

#define SLOPE .measure = "largest slope of the objective", .bound = 1e-9, .counter_bound = DIFFERENT, .compute = check_update

static const dr_theory_statement statements[] = {
    {.name = "pdn.g1-objective",
     .statement = "The PGDN update is the stationary point of its objective in the metric P^-1.",
     .source = P "appendix G.1",
     .counter_case = "the update of GDN",
     .variant = PGDN,
     SLOPE},
    {.name = "pdn.g2-objective",
     .statement = "The preconditioned Longhorn update minimises its objective.",
     .source = P "appendix G.2",
     .counter_case = "the update of PDN, whose gain is beta",
     .variant = PLONGHORN,
     SLOPE},
    {.name = "pdn.g3-objective",
     .statement = "The key-preconditioned Mamba-2 update is the stationary point of its objective.",
     .source = P "appendix G.3",
     .counter_case = "the update of Mamba-2",
     .variant = PMAMBA2_KEY,
     SLOPE},
    {.name = "pdn.app-b-objective",
     .statement = "The GDN update is the stationary point of |S - alpha S'|^2 + beta l, with the square.",
     .source = P "appendix B, first formula, corrected",
     .counter_case = "as printed: the norm without its square",
     .variant = GDN,
     SLOPE},
    {.name = "qdelta.table-1-objective",
     .statement = "The Q-Delta update is the stationary point of its objective.",
     .source = Q "table 1",
     .counter_case = "the update of GDN (lambda = 0)",
     .variant = QDELTA,
     SLOPE},
    {.name = "qdelta.table-1-longhorn",
     .statement = "The Longhorn update minimises |S - S'|^2 + beta |S^T k - v|^2.",
     .source = Q "table 1, corrected",
     .counter_case = "as printed: minus beta",
     .variant = LONGHORN,
     SLOPE},
    {.name = "pdn.table-2-nlms",
     .statement = "The NLMS gain 1/(k.k) stores the value exactly: S^T k = v for keys of any length.",
     .source = P "table 2",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "the gain of Longhorn",
     .counter_bound = DIFFERENT,
     .compute = store_exactly},
    {.name = "pdn.table-2-efla",
     .statement = "The gain (1 - exp(-beta k.k))/(k.k) is the exact flow of dS/ds = k (v - S^T k)^T over time beta.",
     .source = P "table 2",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "gain beta, one step of Euler's method",
     .counter_bound = DIFFERENT,
     .compute = follow_flow},
};
const dr_theory_chapter dr_theory_gains = {statements, sizeof statements / sizeof statements[0]};
