/* Rules: the table of named ones, the refusal of senseless combinations, names of options, inputs used, equations. */
#include <deltarule/rule.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the table ------------------------------------------------------------------------------------------------------ */

#define DIAGONAL "A = a_A A + b_A k*k;  "
#define SQUASHED DIAGONAL "B = 1.5^(-s), s = r/(1 + |r|), r = ln(A + 1e-06) - centre;  "

static const struct {
    const char *name, *inputs, *states, *equation; /* inputs beside query, key and value */
    int steps;
} expected[] = {
    {"linear_attention", "", "S", "S = S + k v^T;  o = scale S^T q", 1},
    {"retnet", "log_decay ", "S", "D = a S;  S = D + k v^T;  o = scale S^T q", 1},
    {"mamba2", "log_decay ", "S", "D = a S;  S = D + k v^T;  o = scale S^T q", 1},
    {"gla", "log_decay ", "S", "D = diag(a) S;  S = D + k v^T;  o = scale S^T q", 1},
    {"delta_net", "beta ", "S", "S = S + b k (v - S^T k)^T;  o = scale S^T q", 1},
    {"longhorn", "beta ", "S", "c = b/(1 + b k.k);  S = S + c k (v - S^T k)^T;  o = scale S^T q", 1},
    {"nlms", "", "S", "c = 1/k.k;  S = S + c k (v - S^T k)^T;  o = scale S^T q", 1},
    {"efla", "beta ", "S", "c = (1 - exp(-b k.k))/k.k;  S = S + c k (v - S^T k)^T;  o = scale S^T q", 1},
    {"gdn", "log_decay beta ", "S", "D = a S;  S = D + b k (v - D^T k)^T;  o = scale S^T q", 1},
    {"kda", "log_decay beta ", "S", "D = diag(a) S;  S = D + b k (v - D^T k)^T;  o = scale S^T q", 1},
    {"gdn2", "log_decay erase_gate write_gate ", "S",
     "D = diag(a) S;  S = D + k (write_gate*v - D^T (erase_gate*k))^T;  o = scale S^T q", 1},
    {"comba", "log_decay beta feedback_key correction ", "S",
     "D = a S;  S = D + b k (v - S^T p)^T;  o = scale S^T (q - correction k)", 1},
    {"delta_product", "log_decay beta ", "S",
     "D = a S;  for j = 1 .. 2: {D = D + b_j k_j (v_j - D^T k_j)^T};  S = D;  o = scale S^T q", 2},
    {"dplr", "log_decay free_read free_write ", "S",
     "D = diag(a) S;  D = D - free_write (S^T (-free_read))^T;  S = D + k v^T;  o = scale S^T q", 2},
    {"rwkv7", "log_decay feedback_key rate ", "S",
     "D = diag(a) S;  D = D - (rate*p) (S^T p)^T;  S = D + k v^T;  o = scale S^T q", 2},
    {"qdelta", "log_decay beta lambda ", "S", "D = a S;  S = D + b k (v - D^T (k + lambda q))^T;  o = scale S^T q", 1},
    {"eda", "log_decay beta erase_key erase_gain ", "S",
     "D = diag(a) S;  D = D - gamma e (D^T e)^T;  S = D + b k (v - D^T k)^T;  o = scale S^T q", 2},
    {"pla_exact", "ridge ", "S K", "K = K + k k^T;  S = S + k v^T;  o = scale S^T (K + diag(ridge))^-1 q", 1},
    {"pdn_exact", "ridge ", "S P", "p = P k;  w = p/(1 + k.p);  P = P - w p^T;  S = S + w (v - S^T k)^T;  o = scale S^T q", 1},
    {"pla", "scan_log_decay scan_gain ridge ", "S A", DIAGONAL "S = S + k v^T;  o = scale S^T (q/(A + ridge))", 1},
    {"pmamba2", "log_decay beta scan_log_decay scan_gain ridge ", "S A",
     DIAGONAL "D = a S;  S = D + b k v^T;  o = scale S^T (q/(A + ridge))", 1},
    {"pgla", "log_decay beta scan_log_decay scan_gain ridge ", "S A",
     DIAGONAL "D = diag(a) S;  S = D + b k v^T;  o = scale S^T (q/(A + ridge))", 1},
    {"pdn_unstable", "beta scan_log_decay scan_gain ridge ", "S A",
     "m = k/(A + ridge);  " DIAGONAL "S = S + b (m/(1 + k.m)) (v - S^T k)^T;  o = scale S^T q", 1},
    {"pgdn_unstable", "log_decay beta scan_log_decay scan_gain ridge ", "S A",
     "m = k/(A + ridge);  " DIAGONAL "D = a S;  S = D + b (m/(1 + k.m)) (v - D^T k)^T;  o = scale S^T q", 1},
    {"pkda_unstable", "log_decay beta scan_log_decay scan_gain ridge ", "S A",
     "m = k/(A + ridge);  " DIAGONAL "D = diag(a) S;  S = D + b (m/(1 + k.m)) (v - D^T k)^T;  o = scale S^T q", 1},
    {"pdn", "beta scan_log_decay scan_gain scan_centre ", "S A", SQUASHED "S = S + b (B*k) (v - S^T k)^T;  o = scale S^T q", 1},
    {"pgdn", "log_decay beta scan_log_decay scan_gain scan_centre ", "S A",
     SQUASHED "D = a S;  S = D + b (B*k) (v - D^T k)^T;  o = scale S^T q", 1},
    {"pkda", "log_decay beta scan_log_decay scan_gain scan_centre ", "S A",
     SQUASHED "D = diag(a) S;  S = D + b (B*k) (v - D^T k)^T;  o = scale S^T q", 1},
    {"plonghorn", "beta scan_log_decay scan_gain scan_centre ", "S A",
     SQUASHED "c = b/(1 + b k.(B*k));  S = S + c (B*k) (v - S^T k)^T;  o = scale S^T q", 1},
    {"pmamba2_key", "log_decay scan_log_decay scan_gain scan_centre ", "S A",
     SQUASHED "D = a S;  S = D + (B*k) v^T;  o = scale S^T q", 1},
    {"mesanet", "log_decay beta ridge ", "S K",
     "K = a K + b k k^T;  D = a S;  S = D + b k v^T;  o = scale S^T (K + diag(ridge))^-1 q", 1},
};
enum { EXPECTED = sizeof expected / sizeof expected[0] };

static void inputs_text(const dr_rule *rule, char *text, size_t size) {
    text[0] = '\0';
    for (dr_input input = DR_INPUT_VALUE + 1; input < DR_INPUTS; input++)
        if (dr_rule_uses(rule, input)) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s ", dr_input_name(input));
        }
}

static void states_text(const dr_rule *rule, char *text, size_t size) {
    text[0] = '\0';
    for (dr_state_kind kind = 0; kind < DR_STATES; kind++)
        if (dr_rule_carries(rule, kind)) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", dr_state_name(kind));
        }
}

static void test_table(void **state) {
    (void)state;
    assert_int_equal(dr_rule_count(), EXPECTED);
    for (int i = 0; i < EXPECTED; i++) {
        const dr_rule *rule = dr_rule_at(i);
        char inputs[512], equation[512];
        assert_string_equal(rule->name, expected[i].name);
        assert_true(strlen(rule->title) > 0);
        assert_non_null(strstr(rule->source, "arXiv"));
        assert_int_equal(dr_rule_check(rule), DR_OK);
        assert_int_equal(dr_rule_steps(rule), expected[i].steps);
        for (dr_input input = 0; input <= DR_INPUT_VALUE; input++) assert_true(dr_rule_uses(rule, input));
        inputs_text(rule, inputs, sizeof inputs);
        assert_string_equal(inputs, expected[i].inputs);
        states_text(rule, inputs, sizeof inputs);
        assert_string_equal(inputs, expected[i].states);
        assert_int_equal(dr_rule_equation(rule, equation, sizeof equation), strlen(expected[i].equation));
        assert_string_equal(equation, expected[i].equation);
    }
    assert_null(dr_rule_at(-1));
    assert_null(dr_rule_at(EXPECTED));
}

static void test_find(void **state) {
    (void)state;
    for (int i = 0; i < EXPECTED; i++) assert_ptr_equal(dr_rule_find(expected[i].name), dr_rule_at(i));
    assert_null(dr_rule_find("pgdm"));
    assert_non_null(strstr(dr_last_error(), "\"pgdm\""));
    assert_non_null(strstr(dr_last_error(), "did you mean"));
    assert_non_null(strstr(dr_last_error(), "pgdn"));
    assert_null(dr_rule_find("transformer"));
    for (int i = 0; i < EXPECTED; i++) assert_non_null(strstr(dr_last_error(), expected[i].name));
    assert_null(dr_rule_find(""));
    assert_null(dr_rule_find("GDN"));
    assert_null(dr_rule_find(NULL));
    char *endless = malloc(100001);
    memset(endless, 'x', 100000);
    endless[100000] = '\0';
    assert_null(dr_rule_find(endless));
    assert_non_null(strstr(dr_last_error(), "linear_attention"));
    free(endless);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------- */

static const dr_row delta = {.read = DR_READ_KEY, .write = DR_WRITE_KEY, .gain = DR_GAIN_BETA, .value = DR_VALUE_GAIN};
static const dr_row linear = {.read = DR_READ_NONE, .write = DR_WRITE_KEY, .gain = DR_GAIN_ONE, .value = DR_VALUE_V};

static dr_rule one_row(dr_decay decay, dr_row row) {
    dr_rule rule = dr_rule_blank();
    rule.decay = decay;
    rule.row[0] = row;
    rule.rows = 1;
    return rule;
}

static dr_rule two_rows(dr_row first, dr_row second) {
    dr_rule rule = one_row(DR_DECAY_SCALAR, first);
    rule.row[1] = second;
    rule.rows = 2;
    return rule;
}

/* a preconditioned delta row with scalar decay, right as it is */
static dr_rule preconditioned(void) {
    dr_rule rule = one_row(DR_DECAY_SCALAR, delta);
    rule.row[0].write = DR_WRITE_PRECONDITIONED;
    rule.scan = DR_SCAN_DIAGONAL;
    return rule;
}

static void assert_refused(dr_rule rule, const char *reason) {
    dr_status status = dr_rule_check(&rule);
    if (status != DR_ERROR_ARGUMENT) fail_msg("not refused: %s", reason);
    if (!strstr(dr_last_error(), reason)) fail_msg("\"%s\" does not say \"%s\"", dr_last_error(), reason);
}

static void assert_allowed(dr_rule rule) {
    if (dr_rule_check(&rule) != DR_OK) fail_msg("refused: %s", dr_last_error());
}

/* refused with one field of a right rule changed; rows by their fields */
#define REFUSED_WITH(rule_, change, reason)                                                                                    \
    do {                                                                                                                       \
        dr_rule rule = rule_;                                                                                                  \
        dr_row *row = &rule.row[0];                                                                                            \
        (void)row;                                                                                                             \
        assert_allowed(rule);                                                                                                  \
        change;                                                                                                                \
        assert_refused(rule, reason);                                                                                          \
    } while (0)

static void test_refuses_options_outside_their_axis(void **state) {
    (void)state;
    assert_int_equal(dr_rule_check(NULL), DR_ERROR_ARGUMENT);
    assert_refused(dr_rule_blank(), "1 to 2 rows, not 0");
    dr_rule right = preconditioned();
    REFUSED_WITH(right, rule.decay = DR_DECAY_CHANNEL + 1, "decay 4");
    REFUSED_WITH(right, rule.decay = (dr_decay)-1, "decay -1");
    REFUSED_WITH(right, rule.scan = DR_SCAN_INVERSE_GRAM + 1, "scan 4");
    REFUSED_WITH(right, rule.query = DR_QUERY_CONJUGATE_GRADIENT + 1, "query 5");
    REFUSED_WITH(right, rule.normalizer = DR_NORMALIZER_DISCOUNTED + 1, "normalizer 4");
    REFUSED_WITH(right, rule.squash.interval = DR_SQUASH_DAMPEN + 1, "squash interval 3");
    REFUSED_WITH(right, rule.squash.function = DR_SQUASH_TANH + 1, "squash function 2");
    REFUSED_WITH(right, row->read = DR_READ_FREE + 1, "read key 7");
    REFUSED_WITH(right, row->write = DR_WRITE_EXACT + 1, "write key 7");
    REFUSED_WITH(right, row->gain = DR_GAIN_EXPONENTIAL + 1, "gain 6");
    REFUSED_WITH(right, row->value = DR_VALUE_GATED + 1, "value 4");
    REFUSED_WITH(right, rule.rows = 3, "1 to 2 rows, not 3");
    REFUSED_WITH(right, rule.repeat = 0, "repeat");
    REFUSED_WITH(right, rule.squash.x = 3, "1 <= x <= 2, not 3");
    REFUSED_WITH(right, rule.squash.x = 0.0 / 0.0, "1 <= x <= 2");
    REFUSED_WITH(right, rule.squash.eps = 0, "eps > 0");
    REFUSED_WITH(right, rule.gain_eps = -1, "gain_eps");
    REFUSED_WITH(right, rule.cg_start = DR_CG_JACOBI + 1, "start of conjugate gradients 2");
    REFUSED_WITH(right, rule.cg_eps = -1e-5, "cg_eps is a finite number >= 0, not -1e-05");
    REFUSED_WITH(right, rule.cg_eps = 1.0 / 0.0, "cg_eps");
}

static void test_refuses_senseless_rows(void **state) {
    (void)state;
    dr_rule plain = one_row(DR_DECAY_SCALAR, delta), write_only = one_row(DR_DECAY_SCALAR, linear);
    REFUSED_WITH(write_only, row->value = DR_VALUE_NONE, "neither reads nor has a value");
    REFUSED_WITH(write_only, row->undecayed = true, "a property of a read");
    REFUSED_WITH(two_rows(delta, delta), rule.row[1].undecayed = true, "only the first row of a token decays");
    REFUSED_WITH(write_only, row->write = DR_WRITE_RATE_READ, "needs a read key");
    REFUSED_WITH(write_only, (row->gain = DR_GAIN_IMPLICIT, row->value = DR_VALUE_GAIN),
                 "gain implicit, which needs a read key");
    REFUSED_WITH(write_only, (row->gain = DR_GAIN_NORMALIZED, row->value = DR_VALUE_GAIN), "gain normalized");
    REFUSED_WITH(write_only, row->gain = DR_GAIN_BETA, "neither a read nor the value uses");
    REFUSED_WITH(plain, (row->read = DR_READ_ERASE_KEY, row->gain = DR_GAIN_EXPONENTIAL), "gain exponential");
    REFUSED_WITH(preconditioned(), row->gain = DR_GAIN_EXPONENTIAL, "gain exponential");
    REFUSED_WITH(plain, row->value = DR_VALUE_NONE, "nothing is ever stored");
    dr_rule undecayed = plain;
    undecayed.row[0].undecayed = true;
    assert_allowed(undecayed);
    assert_allowed(two_rows(linear, delta));
}

static void test_refuses_senseless_scans(void **state) {
    (void)state;
    dr_rule plain = one_row(DR_DECAY_SCALAR, delta), right = preconditioned();
    REFUSED_WITH(right, rule.scan = DR_SCAN_NONE, "need scan diagonal");
    REFUSED_WITH(plain, row->write = DR_WRITE_SHERMAN_MORRISON, "need scan diagonal");
    REFUSED_WITH(plain, rule.query = DR_QUERY_RIDGE, "need scan diagonal");
    REFUSED_WITH(plain, rule.scan = DR_SCAN_DIAGONAL, "used by no write key");
    REFUSED_WITH(plain, rule.tied_scan = true, "tied_scan needs scan diagonal");
    REFUSED_WITH(right, (rule.tied_scan = true, rule.decay = DR_DECAY_CHANNEL), "tied_scan needs decay scalar, not channel");
    REFUSED_WITH(right, (rule.tied_scan = true, row->gain = DR_GAIN_ONE, row->value = DR_VALUE_V), "a gain with beta");
    right.tied_scan = true;
    assert_allowed(right);
    assert_false(dr_rule_uses(&right, DR_INPUT_SCAN_GAIN));
    assert_false(dr_rule_uses(&right, DR_INPUT_SCAN_LOG_DECAY));
}

/* linear attention with an exact query; a delta row with an exact write key */
static dr_rule gram(void) {
    dr_rule rule = one_row(DR_DECAY_SCALAR, linear);
    rule.scan = DR_SCAN_GRAM;
    rule.query = DR_QUERY_EXACT;
    return rule;
}

static dr_rule inverse_gram(void) {
    dr_rule rule = one_row(DR_DECAY_NONE, delta);
    rule.row[0].write = DR_WRITE_EXACT;
    rule.scan = DR_SCAN_INVERSE_GRAM;
    return rule;
}

static void test_refuses_senseless_matrices(void **state) {
    (void)state;
    REFUSED_WITH(gram(), rule.scan = DR_SCAN_NONE, "query exact needs scan gram, not none");
    REFUSED_WITH(gram(), (rule.scan = DR_SCAN_DIAGONAL, rule.query = DR_QUERY_CONJUGATE_GRADIENT),
                 "query conjugate_gradient needs scan gram, not diagonal");
    REFUSED_WITH(gram(), rule.query = DR_QUERY_PLAIN, "scan gram is not used by the query");
    REFUSED_WITH(gram(), rule.decay = DR_DECAY_CHANNEL, "scan gram does not go with decay channel");
    REFUSED_WITH(gram(), row->write = DR_WRITE_EXACT, "write key exact needs scan inverse_gram, not gram");
    REFUSED_WITH(gram(), rule.tied_scan = true, "tied_scan needs scan diagonal");
    REFUSED_WITH(gram(), rule.repeat = 2, "neither a scan nor another query");
    REFUSED_WITH(gram(), (rule.query = DR_QUERY_CONJUGATE_GRADIENT, rule.cg_iters = 0), "cg_iters from 1, not 0");
    REFUSED_WITH(inverse_gram(), rule.scan = DR_SCAN_NONE, "write key exact needs scan inverse_gram, not none");
    REFUSED_WITH(inverse_gram(), row->write = DR_WRITE_KEY, "scan inverse_gram is used by no write key");
    REFUSED_WITH(inverse_gram(), rule.decay = DR_DECAY_SCALAR, "scan inverse_gram needs decay none, not scalar");
    REFUSED_WITH(inverse_gram(), rule.query = DR_QUERY_RIDGE, "need scan diagonal");
    dr_rule rule = gram();
    rule.cg_iters = 0; /* of a query that has none */
    assert_allowed(rule);
}

static void test_refuses_senseless_normalizers(void **state) {
    (void)state;
    dr_rule plain = one_row(DR_DECAY_SCALAR, delta), right = preconditioned();
    REFUSED_WITH(plain, rule.normalizer = DR_NORMALIZER_INVERSE, "needs a preconditioned write key");
    right.normalizer = DR_NORMALIZER_INVERSE;
    REFUSED_WITH(right, row->gain = DR_GAIN_IMPLICIT, "normalized already");
    right.normalizer = DR_NORMALIZER_DISCOUNTED;
    REFUSED_WITH(right, rule.decay = DR_DECAY_CHANNEL, "needs decay scalar, not channel");
    REFUSED_WITH(right, row->value = DR_VALUE_V, "needs gain beta and value gain_v or none");
    REFUSED_WITH(right, row->gain = DR_GAIN_GAMMA, "needs gain beta and value gain_v or none");
}

static void test_refuses_senseless_repeats(void **state) {
    (void)state;
    dr_rule right = one_row(DR_DECAY_SCALAR, delta);
    right.repeat = 2;
    assert_int_equal(dr_rule_steps(&right), 2);
    REFUSED_WITH(right, (rule.rows = 2, rule.row[1] = delta), "single row");
    REFUSED_WITH(right, row->read = DR_READ_ERASE_KEY, "read key key or none");
    REFUSED_WITH(right, row->write = DR_WRITE_FREE, "write key key");
    REFUSED_WITH(right, row->gain = DR_GAIN_GAMMA, "no erase gain");
    REFUSED_WITH(right, row->value = DR_VALUE_GATED, "no gated value");
    REFUSED_WITH(right, rule.query = DR_QUERY_CORRECTED, "neither a scan nor another query");
    REFUSED_WITH(right, (rule.query = DR_QUERY_RIDGE, rule.scan = DR_SCAN_DIAGONAL), "neither a scan nor another query");
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

/* The names of an axis are there, differ from one another, and end where the axis ends. */
#define ASSERT_NAMES(name, type, count)                                                                                        \
    do {                                                                                                                       \
        for (int i = 0; i < (int)(count); i++) {                                                                               \
            assert_string_not_equal(name((type)i), "unknown");                                                                 \
            for (int j = 0; j < i; j++) assert_string_not_equal(name((type)i), name((type)j));                                 \
        }                                                                                                                      \
        assert_string_equal(name((type)(count)), "unknown");                                                                   \
        assert_string_equal(name((type)-1), "unknown");                                                                        \
    } while (0)

static void test_names(void **state) {
    (void)state;
    ASSERT_NAMES(dr_input_name, dr_input, DR_INPUTS);
    ASSERT_NAMES(dr_state_name, dr_state_kind, DR_STATES);
    ASSERT_NAMES(dr_decay_name, dr_decay, DR_DECAY_CHANNEL + 1);
    ASSERT_NAMES(dr_read_name, dr_read, DR_READ_FREE + 1);
    ASSERT_NAMES(dr_write_name, dr_write, DR_WRITE_EXACT + 1);
    ASSERT_NAMES(dr_gain_name, dr_gain, DR_GAIN_EXPONENTIAL + 1);
    ASSERT_NAMES(dr_value_name, dr_value, DR_VALUE_GATED + 1);
    ASSERT_NAMES(dr_scan_name, dr_scan, DR_SCAN_INVERSE_GRAM + 1);
    ASSERT_NAMES(dr_query_name, dr_query, DR_QUERY_CONJUGATE_GRADIENT + 1);
    assert_string_equal(dr_input_name(DR_INPUT_SCAN_LOG_DECAY), "scan_log_decay");
    assert_string_equal(dr_read_name(DR_READ_KEY_PLUS_QUERY), "key_plus_query");
    assert_string_equal(dr_write_name(DR_WRITE_SHERMAN_MORRISON), "sherman_morrison");
    assert_string_equal(dr_gain_name(DR_GAIN_EXPONENTIAL), "exponential");
    assert_string_equal(dr_value_name(DR_VALUE_GAIN), "gain_v");
}

/* ---- inputs and equations of compositions --------------------------------------------------------------------------- */

static void assert_composition(dr_rule rule, const char *inputs, const char *equation) {
    char text[512];
    assert_allowed(rule);
    inputs_text(&rule, text, sizeof text);
    assert_string_equal(text, inputs);
    int length = dr_rule_equation(&rule, text, sizeof text);
    assert_string_equal(text, equation);
    assert_int_equal(length, strlen(equation));
}

static void test_compositions(void **state) {
    (void)state;
    dr_rule rule = *dr_rule_find("delta_product");
    rule.repeat = 3;
    assert_composition(rule, "log_decay beta ",
                       "D = a S;  for j = 1 .. 3: {D = D + b_j k_j (v_j - D^T k_j)^T};  S = D;  o = scale S^T q");
    rule.row[0].undecayed = true;
    rule.row[0].gain = DR_GAIN_IMPLICIT;
    assert_composition(rule, "log_decay beta ",
                       "D = a S;  for j = 1 .. 3: {c_j = b_j/(1 + b_j k_j.k_j);  "
                       "D = D + c_j k_j (v_j - (S if j = 1 else D)^T k_j)^T};  S = D;  o = scale S^T q");

    rule = *dr_rule_find("nlms");
    rule.gain_eps = 0.125;
    rule.row[0].value = DR_VALUE_V;
    assert_composition(rule, "", "c = 1/(k.k + 0.125);  S = S + k (v - c S^T k)^T;  o = scale S^T q");
    rule.row[0].gain = DR_GAIN_EXPONENTIAL;
    assert_composition(rule, "beta ", "c = (1 - exp(-b k.k))/k.k;  S = S + k (v - c S^T k)^T;  o = scale S^T q");

    rule = preconditioned();
    rule.tied_scan = true;
    rule.normalizer = DR_NORMALIZER_DISCOUNTED;
    rule.squash = (dr_squash){.x = 2, .eps = 0.01, .interval = DR_SQUASH_AMPLIFY, .function = DR_SQUASH_TANH};
    assert_composition(rule, "log_decay beta scan_centre ",
                       "A = a A + b k*k;  B = 2^((1 - s)/2), s = tanh r, r = ln(A + 0.01) - centre;  D = a S;  "
                       "n = 1/(a + b k.(B*k));  S = D + n b (B*k) (v - D^T k)^T;  o = scale S^T q");

    rule = one_row(DR_DECAY_NONE, delta);
    rule.row[0].write = DR_WRITE_SHERMAN_MORRISON;
    rule.scan = DR_SCAN_DIAGONAL;
    rule.query = DR_QUERY_RIDGE;
    assert_composition(rule, "beta scan_log_decay scan_gain ridge ",
                       "m = k/(A + ridge);  A = a_A A + b_A k*k;  S = S + b (m/(1 + k.m)) (v - S^T k)^T;  "
                       "o = scale S^T (q/(A + ridge))");

    rule = gram();
    rule.query = DR_QUERY_CONJUGATE_GRADIENT;
    assert_composition(rule, "log_decay ridge ",
                       "K = a K + k k^T;  D = a S;  S = D + k v^T;  "
                       "(K + diag(ridge)) x = q by 30 steps of conjugate gradients from 0;  o = scale S^T x");
    rule.cg_start = DR_CG_JACOBI;
    rule.cg_iters = 5;
    rule.cg_eps = 1e-5;
    rule.decay = DR_DECAY_NONE;
    assert_composition(rule, "ridge ",
                       "K = K + k k^T;  S = S + k v^T;  (K + diag(ridge)) x = q by 5 steps of conjugate gradients from "
                       "q/(diag K + ridge) with eps 1e-05;  o = scale S^T x");
    assert_composition(inverse_gram(), "beta ridge ",
                       "p = P k;  w = p/(1 + b k.p);  P = P - b w p^T;  S = S + b w (v - S^T k)^T;  o = scale S^T q");

    rule = one_row(DR_DECAY_SCALAR, linear);
    rule.row[0] = (dr_row){.read = DR_READ_NONE, .gain = DR_GAIN_GAMMA, .value = DR_VALUE_GAIN};
    assert_composition(rule, "log_decay erase_gain ", "D = a S;  S = D + gamma k v^T;  o = scale S^T q");
    rule.row[0] = (dr_row){.read = DR_READ_NONE, .value = DR_VALUE_GATED};
    assert_composition(rule, "log_decay write_gate ", "D = a S;  S = D + k (write_gate*v)^T;  o = scale S^T q");
}

/* Like snprintf: never more than size bytes, always the whole length. */
static void test_equation_is_cut_at_size(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        char whole[512], part[512];
        int length = dr_rule_equation(dr_rule_at(i), whole, sizeof whole);
        assert_int_equal(dr_rule_equation(dr_rule_at(i), NULL, 0), length);
        for (size_t size = 1; size <= (size_t)length + 1; size++) {
            memset(part, '#', sizeof part);
            assert_int_equal(dr_rule_equation(dr_rule_at(i), part, size), length);
            assert_int_equal(strlen(part), size - 1);
            assert_memory_equal(part, whole, size - 1);
            assert_int_equal(part[size], '#');
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_refuses_options_outside_their_axis),
        cmocka_unit_test(test_refuses_senseless_rows),
        cmocka_unit_test(test_refuses_senseless_scans),
        cmocka_unit_test(test_refuses_senseless_matrices),
        cmocka_unit_test(test_refuses_senseless_normalizers),
        cmocka_unit_test(test_refuses_senseless_repeats),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_compositions),
        cmocka_unit_test(test_equation_is_cut_at_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
