/* Rules as JSON: every named rule written out is that rule, bit for bit in outputs and gradients on both backends; random rules
 * come back as they were; every senseless combination and every wrong text has its sentence. */
#include "recurrence/trial.h"
#include "rules/compare.h"
#include "scratch.h"

#include <deltarule/rule.h>
#include <math.h>

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

/* ---- the named rules written out ------------------------------------------------------------------------------------ */

#define LINEAR      "{'read': 'none', 'write': 'key', 'gain': 'one', 'value': 'v'}"
#define WEIGHTED    "{'read': 'none', 'write': 'key', 'gain': 'beta', 'value': 'gain_v'}"
#define DELTA       "{'read': 'key', 'write': 'key', 'gain': 'beta', 'value': 'gain_v'}"
#define GAIN(name)  "{'read': 'key', 'write': 'key', 'gain': '" name "', 'value': 'gain_v'}"
#define WRITE(name) "{'read': 'key', 'write': '" name "', 'gain': 'beta', 'value': 'gain_v'}"

/* with ' for " */
static const char *const written[][2] = {
    {"linear_attention", "{'decay': 'none', 'rows': [" LINEAR "]}"},
    {"retnet", "{'decay': 'constant', 'rows': [" LINEAR "]}"},
    {"mamba2", "{'decay': 'scalar', 'rows': [" LINEAR "]}"},
    {"gla", "{'decay': 'channel', 'rows': [" LINEAR "]}"},
    {"delta_net", "{'rows': [" DELTA "]}"},
    {"longhorn", "{'rows': [" GAIN("implicit") "]}"},
    {"nlms", "{'rows': [" GAIN("normalized") "], 'gain_eps': 0}"},
    {"efla", "{'rows': [" GAIN("exponential") "]}"},
    {"gdn", "{'decay': 'scalar', 'rows': [" DELTA "]}"},
    {"kda", "{'decay': 'channel', 'rows': [" DELTA "]}"},
    {"gdn2", "{'decay': 'channel', 'rows': [{'read': 'gated_key', 'write': 'key', 'gain': 'one', 'value': 'gated_v'}]}"},
    {"comba", "{'decay': 'scalar', 'query': 'corrected', 'rows': [{'read': 'feedback', 'undecayed': true, 'write': 'key', "
              "'gain': 'beta', 'value': 'gain_v'}]}"},
    {"delta_product", "{'decay': 'scalar', 'repeat': 2, 'rows': [" DELTA "]}"},
    {"dplr", "{'decay': 'channel', 'rows': [{'read': 'free', 'undecayed': true, 'write': 'free'}, " LINEAR "]}"},
    {"rwkv7", "{'decay': 'channel', 'rows': [{'read': 'feedback', 'undecayed': true, 'write': 'rate_read', 'gain': 'one', "
              "'value': 'none'}, " LINEAR "]}"},
    {"qdelta", "{'decay': 'scalar', 'rows': [{'read': 'key_plus_query', 'write': 'key', 'gain': 'beta', 'value': 'gain_v'}]}"},
    {"eda", "{'decay': 'channel', 'rows': [{'read': 'erase_key', 'write': 'erase_key', 'gain': 'gamma'}, " DELTA "]}"},
    {"pla_exact", "{'rows': [" LINEAR "], 'scan': 'gram', 'query': 'exact'}"},
    {"pdn_exact", "{'rows': [{'read': 'key', 'write': 'exact', 'gain': 'one', 'value': 'v'}], 'scan': 'inverse_gram'}"},
    {"pla", "{'rows': [" LINEAR "], 'scan': 'diagonal', 'query': 'ridge'}"},
    {"pmamba2", "{'decay': 'scalar', 'rows': [" WEIGHTED "], 'scan': 'diagonal', 'query': 'ridge'}"},
    {"pgla", "{'decay': 'channel', 'rows': [" WEIGHTED "], 'scan': 'diagonal', 'query': 'ridge'}"},
    {"pdn_unstable", "{'rows': [" WRITE("sherman_morrison") "], 'scan': 'diagonal'}"},
    {"pgdn_unstable", "{'decay': 'scalar', 'rows': [" WRITE("sherman_morrison") "], 'scan': 'diagonal'}"},
    {"pkda_unstable", "{'decay': 'channel', 'rows': [" WRITE("sherman_morrison") "], 'scan': 'diagonal'}"},
    {"pdn", "{'rows': [" WRITE("preconditioned") "], 'scan': 'diagonal'}"},
    {"pgdn",
     "{'decay': 'scalar', 'rows': [" WRITE(
         "preconditioned") "], 'scan': 'diagonal', 'squash': {'x': 1.5, 'eps': 1e-6, "
                           "'interval': 'symmetric', 'function': 'rational'}, 'normalizer': 'none', 'tied_scan': false}"},
    {"pkda", "{'decay': 'channel', 'rows': [" WRITE("preconditioned") "], 'scan': 'diagonal'}"},
    {"plonghorn", "{'rows': [{'read': 'key', 'write': 'preconditioned', 'gain': 'implicit', 'value': 'gain_v'}], "
                  "'scan': 'diagonal'}"},
    {"pmamba2_key", "{'decay': 'scalar', 'rows': [{'write': 'preconditioned', 'value': 'v'}], 'scan': 'diagonal'}"},
    {"mesanet", "{'decay': 'scalar', 'rows': [" WEIGHTED "], 'scan': 'gram', 'query': 'exact', 'cg_iters': 30, "
                "'cg_start': 'zero', 'cg_eps': 0}"},
};
enum { WRITTEN = sizeof written / sizeof written[0] };

/* ' becomes ". Valid until the next call. */
static const char *quoted(const char *text) {
    static char json[4096];
    size_t length = strlen(text);
    assert_true(length < sizeof json);
    for (size_t i = 0; i <= length; i++) json[i] = text[i] == '\'' ? '"' : text[i];
    return json;
}

static void assert_round_trip(const dr_rule *rule, const dr_gates *gates) {
    char text[4096];
    dr_rule again;
    dr_gates gates_again;
    int length = dr_rule_write_text(rule, gates, text, sizeof text);
    assert_true(length > 0 && (size_t)length == strlen(text));
    if (dr_rule_read_text(text, &again, &gates_again) != DR_OK) fail_msg("%s: %s", text, dr_last_error());
    if (!dr_rule_equal(rule, &again)) fail_msg("%s reads back as another rule", text);
    assert_true(!rule->name == !again.name && (!rule->name || strcmp(rule->name, again.name) == 0));
    assert_true(gates->negative_eigenvalues == gates_again.negative_eigenvalues && gates->gate == gates_again.gate &&
                gates->lower_bound == gates_again.lower_bound && gates->lambda == gates_again.lambda &&
                gates->lambda_value == gates_again.lambda_value &&
                gates->lambda_bias_learned == gates_again.lambda_bias_learned);
}

static void test_named_rules(void **state) {
    (void)state;
    const dr_gates usual = dr_gates_default();
    assert_int_equal(dr_rule_count(), WRITTEN);
    for (int i = 0; i < WRITTEN; i++) {
        const dr_rule *named = dr_rule_at(i);
        dr_rule rule;
        char text[64], based[64];
        assert_string_equal(written[i][0], named->name);
        ASSERT_OK(dr_rule_read_text(quoted(written[i][1]), &rule, NULL));
        if (!dr_rule_equal(named, &rule)) fail_msg("%s is not %s", written[i][1], named->name);
        assert_null(rule.name);
        assert_round_trip(&rule, &usual);
        snprintf(based, sizeof based, "{\"base\":\"%s\"}", named->name);
        ASSERT_OK(dr_rule_read_text(based, &rule, NULL));
        assert_true(dr_rule_equal(named, &rule));
        assert_ptr_equal(rule.name, named->name);
        dr_rule_write_text(named, NULL, text, sizeof text);
        assert_string_equal(text, based);
    }
}

/* The same problem under both, on the reference and on both engines of the CPU. */
static void assert_same_bits(const dr_rule *named, const dr_rule *composed, dr_backend *const backends[2], dr_random *random) {
    static const dr_path paths[] = {DR_PATH_RECURRENT, DR_PATH_CHUNKWISE};
    int64_t cu_seqlens[MOST_SEQUENCES + 1];
    dr_recurrence sizes = draw_sizes(random, named, cu_seqlens);
    problem *one = problem_create(named, &sizes, false, random), *other = problem_copy(one);
    other->rule = *composed;
    for (int b = 0; b < 2; b++)
        for (int p = 0; p < (b == 0 ? 1 : 2); p++) {
            fault what = {""};
            result of_one = {0}, of_other = {0};
            bool same = problem_run(backends[b], one, paths[p], 0, true, &of_one, &what) &&
                        problem_run(backends[b], other, paths[p], 0, true, &of_other, &what) &&
                        results_same(named->name, one, &of_one, &of_other, &what);
            if (!same) fail_msg("%s: %s", named->name, what.text);
            result_free(&of_one);
            result_free(&of_other);
        }
    problem_free(one);
    problem_free(other);
}

static void test_named_rules_bit_for_bit(void **state) {
    (void)state;
    dr_random random = dr_random_start(31, 0);
    dr_backend *backends[2];
    ASSERT_OK(dr_backend_open("reference", NULL, &backends[0]));
    ASSERT_OK(dr_backend_open("cpu", NULL, &backends[1]));
    for (int i = 0; i < WRITTEN; i++)
        for (int round = 0; round < 3; round++) {
            dr_rule composed;
            ASSERT_OK(dr_rule_read_text(quoted(written[i][1]), &composed, NULL));
            assert_same_bits(dr_rule_find(written[i][0]), &composed, backends, &random);
        }
    dr_backend_close(backends[0]);
    dr_backend_close(backends[1]);
}

/* ---- bases, settings, gates ----------------------------------------------------------------------------------------- */

static dr_rule read_rule(const char *text) {
    dr_rule rule;
    if (dr_rule_read_text(quoted(text), &rule, NULL) != DR_OK) fail_msg("%s: %s", text, dr_last_error());
    return rule;
}

static void test_base(void **state) {
    (void)state;
    const dr_gates usual = dr_gates_default();
    dr_rule rule =
        read_rule("{'base': 'kda', 'rows': [{'read': 'erase_key', 'write': 'erase_key', 'gain': 'gamma'}, {'read': "
                  "'key_plus_query', 'write': 'preconditioned', 'gain': 'beta', 'value': 'gain_v'}], 'scan': 'diagonal'}");
    assert_true(rule.decay == DR_DECAY_CHANNEL && rule.rows == 2 && rule.scan == DR_SCAN_DIAGONAL && !rule.name);
    assert_true(rule.row[1].read == DR_READ_KEY_PLUS_QUERY && rule.row[0].value == DR_VALUE_NONE);
    assert_round_trip(&rule, &usual);
    rule = read_rule("{'base': 'pgdn', 'squash': {'x': 1.25}}"); /* a setting of an option: still pgdn */
    assert_true(rule.squash.x == 1.25 && rule.squash.eps == 1e-6);
    assert_string_equal(rule.name, "pgdn");
    assert_round_trip(&rule, &usual);
    rule = read_rule("{'base': 'delta_product', 'repeat': 3}");
    assert_int_equal(rule.repeat, 3);
    assert_string_equal(rule.name, "delta_product");
    assert_null(read_rule("{'base': 'delta_product', 'repeat': 1}").name);
    rule = read_rule("{'base': 'mesanet', 'query': 'conjugate_gradient', 'cg_iters': 7, 'cg_start': 'jacobi', 'cg_eps': 1e-5}");
    assert_true(rule.cg_iters == 7 && rule.cg_start == DR_CG_JACOBI && rule.cg_eps == 1e-5);
    assert_string_equal(rule.name, "mesanet");
    assert_round_trip(&rule, &usual);
    assert_null(read_rule("{'base': 'comba', 'query': 'query'}").name);
    assert_null(read_rule("{'base': 'gdn', 'decay': 'channel'}").name); /* kda by another way is a composition */
}

static void test_gates(void **state) {
    (void)state;
    dr_rule rule;
    dr_gates gates;
    const char *said = "{'base': 'qdelta', 'negative_eigenvalues': true, 'gate': 'eda_bounded', 'lower_bound': -3.5, "
                       "'lambda': {'kind': 'fixed', 'value': 0.2, 'bias': 'learned'}}";
    ASSERT_OK(dr_rule_read_text(quoted(said), &rule, &gates));
    assert_true(gates.negative_eigenvalues && gates.gate == DR_GATE_FORM_EDA_BOUNDED && gates.lower_bound == -3.5);
    assert_true(gates.lambda == DR_LAMBDA_FIXED && gates.lambda_value == 0.2 && gates.lambda_bias_learned);
    assert_ptr_equal(rule.name, dr_rule_find("qdelta")->name); /* they make no other rule */
    assert_round_trip(&rule, &gates);
    ASSERT_OK(dr_rule_read_text("{\"base\": \"gdn\"}", &rule, &gates));
    assert_true(!gates.negative_eigenvalues && gates.gate == DR_GATE_AUTO && gates.lower_bound == -5 &&
                gates.lambda == DR_LAMBDA_PROJECTED && !gates.lambda_bias_learned);
}

static void test_random_rules(void **state) {
    (void)state;
    dr_random random = dr_random_start(5, 0);
    for (int i = 0; i < 2000; i++) {
        dr_rule rule = draw_rule(&random);
        dr_gates gates = dr_gates_default();
        rule.squash.x = uniform(&random, 1, 2); /* numbers that need all their digits */
        rule.squash.eps = exp(uniform(&random, -30, 3));
        rule.gain_eps = uniform(&random, 0, 1);
        if (i % 2) {
            gates.lower_bound = -uniform(&random, 0.1, 9);
            gates.gate = (dr_gate_form)between(&random, 0, 3);
            gates.lambda_value = dr_random_uniform(&random);
            gates.lambda = (dr_lambda_kind)between(&random, 0, 1);
            gates.lambda_bias_learned = between(&random, 0, 1);
            gates.negative_eigenvalues = between(&random, 0, 1);
        }
        rule.name = rule.title = rule.source = NULL;
        assert_round_trip(&rule, &gates);
    }
}

/* A short buffer gets what fits, and the length it would have needed. */
static void test_short_buffer(void **state) {
    (void)state;
    char text[16];
    dr_rule rule = read_rule("{'base': 'gdn'}");
    assert_int_equal(dr_rule_write_text(&rule, NULL, text, sizeof text), 14);
    assert_string_equal(text, "{\"base\":\"gdn\"}");
    assert_int_equal(dr_rule_write_text(&rule, NULL, text, 5), 14);
    assert_string_equal(text, "{\"ba");
    assert_int_equal(dr_rule_write_text(&rule, NULL, NULL, 0), 14);
    rule.rows = 7;
    assert_int_equal(dr_rule_write_text(&rule, NULL, text, sizeof text), -1);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------- */

static void refuse(const char *text, dr_status status, const char *sentence) {
    dr_rule rule = dr_rule_blank(), before = rule;
    dr_gates gates = {.lower_bound = -77};
    dr_status got = dr_rule_read_text(text, &rule, &gates);
    if (got != status || !strstr(dr_last_error(), sentence))
        fail_msg("%s: %s instead of %s, no \"%s\" in \"%s\"", text, dr_status_name(got), dr_status_name(status), sentence,
                 dr_last_error());
    assert_true(dr_rule_equal(&rule, &before) && gates.lower_bound == -77); /* nothing is written */
}

#define SCALAR "{'decay': 'scalar', 'rows': ["
#define PRE    "{'read': 'key', 'write': 'preconditioned', 'gain': 'beta', 'value': 'gain_v'}"

static void test_senseless(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {SCALAR "{'value': 'none'}]}", "row 1 neither reads nor has a value"},
        {SCALAR "{'read': 'none', 'undecayed': true, 'value': 'v'}]}", "row 1 is undecayed, which is a property of a read"},
        {SCALAR DELTA ", {'read': 'key', 'undecayed': true, 'gain': 'beta'}]}", "row 2 is undecayed, but only the first row"},
        {SCALAR "{'write': 'rate_read', 'gain': 'beta', 'value': 'gain_v'}]}",
         "row 1 has write key rate_read, which needs a read key"},
        {SCALAR "{'gain': 'implicit', 'value': 'gain_v'}]}", "row 1 has gain implicit, which needs a read key"},
        {SCALAR "{'gain': 'beta', 'value': 'v'}]}", "row 1 has gain beta, which neither a read nor the value uses"},
        {SCALAR "{'read': 'erase_key', 'gain': 'exponential', 'value': 'gain_v'}]}", "gain exponential"},
        {SCALAR "{'read': 'key', 'write': 'preconditioned', 'gain': 'exponential', 'value': 'gain_v'}], 'scan': 'diagonal'}",
         "row 1 has gain exponential"},
        {SCALAR WRITE("exact") "]}", "write key exact needs scan inverse_gram"},
        {SCALAR "{'read': 'key', 'gain': 'beta'}]}", "no row has a value"},
        {SCALAR DELTA "], 'scan': 'inverse_gram'}", "scan inverse_gram is used by no write key"},
        {SCALAR WRITE("exact") "], 'scan': 'inverse_gram'}", "scan inverse_gram needs decay none"},
        {SCALAR PRE "]}", "preconditioned or sherman_morrison write key"},
        {SCALAR WRITE("sherman_morrison") "]}", "preconditioned or sherman_morrison write key"},
        {SCALAR DELTA "], 'query': 'ridge'}", "a ridge query need scan diagonal"},
        {SCALAR DELTA "], 'query': 'exact'}", "query exact needs scan gram, not none"},
        {SCALAR DELTA "], 'query': 'exact', 'scan': 'diagonal'}", "scan"},
        {SCALAR DELTA "], 'query': 'conjugate_gradient'}", "query conjugate_gradient needs scan gram"},
        {SCALAR DELTA "], 'scan': 'diagonal'}", "scan diagonal is used by no write key"},
        {SCALAR DELTA "], 'scan': 'gram'}", "scan gram is not used by the query"},
        {"{'decay': 'channel', 'rows': [" DELTA "], 'scan': 'gram', 'query': 'exact'}",
         "scan gram does not go with decay channel"},
        {SCALAR DELTA "], 'tied_scan': true}", "tied_scan needs scan diagonal"},
        {"{'decay': 'channel', 'rows': [" PRE "], 'scan': 'diagonal', 'tied_scan': true}", "tied_scan needs decay scalar"},
        {SCALAR "{'read': 'key', 'write': 'preconditioned', 'value': 'v'}], 'scan': 'diagonal', 'tied_scan': true}",
         "tied_scan needs a gain with beta"},
        {SCALAR DELTA "], 'normalizer': 'inverse'}", "a normalizer needs a preconditioned write key"},
        {SCALAR "{'read': 'key', 'write': 'preconditioned', 'gain': 'implicit', 'value': 'gain_v'}], 'scan': 'diagonal', "
                "'normalizer': 'inverse'}",
         "normalized already"},
        {"{'decay': 'channel', 'rows': [" PRE "], 'scan': 'diagonal', 'normalizer': 'discounted'}",
         "normalizer discounted needs decay scalar"},
        {SCALAR "{'read': 'key', 'write': 'preconditioned', 'gain': 'beta', 'value': 'v'}], 'scan': 'diagonal', "
                "'normalizer': 'discounted'}",
         "normalizer discounted needs gain beta and value gain_v or none"},
        {SCALAR DELTA ", " DELTA "], 'repeat': 2}", "repeat 2 needs a single row"},
        {SCALAR "{'read': 'erase_key', 'gain': 'beta', 'value': 'gain_v'}], 'repeat': 2}", "repeat needs read key key or none"},
        {SCALAR "{'read': 'key', 'gain': 'gamma', 'value': 'gain_v'}], 'repeat': 2}", "repeat has no erase gain"},
        {SCALAR DELTA "], 'query': 'corrected', 'repeat': 2}", "repeat goes with neither a scan nor another query"},
        {"{'decay': 'none'}", "a rule has 1 to 2 rows, not 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) refuse(quoted(cases[i][0]), DR_ERROR_ARGUMENT, cases[i][1]);
}

static void test_wrong_texts(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{'base': 'nobody'}", "no rule is named"},
        {"{'base': 'gdm'}", "did you mean gdn?"},
        {"{'base': 3}", "\"base\" must be a string, not the integer 3"},
        {"{'base': null}", "\"base\" is null"},
        {"{'base': 'gdn', 'colour': 1}", "unknown key \"colour\""},
        {"{'base': 'gdn', 'sqash': {}}", "unknown key \"sqash\"; did you mean \"squash\"?"},
        {"{'decay': 'wide'}", "unknown decay \"wide\"; known are none, constant, scalar, channel"},
        {"{'base': 'gdn', 'decay': 'scaler'}", "unknown decay \"scaler\"; did you mean \"scalar\"?"},
        {"{'base': 'gdn', 'decay': null}", "\"decay\" is null"},
        {"{'base': 'gdn', 'decay': 2}", "\"decay\" must be a string"},
        {"{'rows': [{'read': 'value'}]}", "row 1: unknown read \"value\""},
        {"{'rows': [{'value': 'v'}, {'shape': 1}]}", "row 2: unknown key \"shape\""},
        {"{'rows': [{'value': 'v'}, {'gain': 'betta'}]}", "row 2: unknown gain \"betta\"; did you mean \"beta\"?"},
        {"{'rows': [{'write': null}]}", "row 1: \"write\" is null"},
        {"{'rows': [{'undecayed': 1}]}", "row 1: \"undecayed\" must be true or false"},
        {"{'rows': [[]]}", "row 1: it must be an object, { ... }, not an array"},
        {"{'rows': []}", "1 to 2 rows"},
        {"{'rows': {}}", "1 to 2 rows"},
        {"{'rows': [{'value': 'v'}, {'value': 'v'}, {'value': 'v'}]}", "1 to 2 rows"},
        {"{'base': 'gdn', 'repeat': 0}", "\"repeat\" is 0"},
        {"{'base': 'gdn', 'repeat': 2.5}", "\"repeat\" must be an integer"},
        {"{'base': 'gdn', 'repeat': 4611686018427387904}", "\"repeat\" is 4611686018427387904"},
        {"{'base': 'pgdn', 'squash': {'x': 3.0}}", "squash: \"x\" is 3"},
        {"{'base': 'pgdn', 'squash': {'x': 0.5}}", "squash: \"x\" is 0.5"},
        {"{'base': 'pgdn', 'squash': {'y': 1}}", "squash: unknown key \"y\""},
        {"{'base': 'pgdn', 'squash': {'eps': 0}}", "squash: \"eps\" is 0"},
        {"{'base': 'pgdn', 'squash': {'interval': 'wide'}}", "squash: unknown interval \"wide\""},
        {"{'base': 'pgdn', 'squash': {'function': 'tan'}}", "squash: unknown function \"tan\"; did you mean"},
        {"{'base': 'pgdn', 'squash': 2}", "\"squash\" must be an object"},
        {"{'base': 'pgdn', 'normalizer': 'l2'}", "unknown normalizer"},
        {"{'base': 'nlms', 'gain_eps': -1}", "\"gain_eps\" is -1"},
        {"{'base': 'mesanet', 'cg_iters': 0}", "\"cg_iters\" is 0"},
        {"{'base': 'mesanet', 'cg_start': 'one'}", "unknown cg_start"},
        {"{'base': 'qdelta', 'lambda': 0.5}", "\"lambda\" must be an object, { ... }, not the number 0.5"},
        {"{'base': 'qdelta', 'lambda': {'kind': 'fixd'}}", "lambda: unknown kind \"fixd\"; did you mean \"fixed\"?"},
        {"{'base': 'qdelta', 'lambda': {'value': 1.5}}", "lambda: \"value\" is 1.5"},
        {"{'base': 'qdelta', 'lambda': {'bias': 'free'}}", "lambda: unknown bias \"free\""},
        {"{'base': 'kda', 'gate': 'open'}", "unknown gate \"open\""},
        {"{'base': 'kda', 'lower_bound': 1}", "\"lower_bound\" is 1"},
        {"{'base': 'kda', 'negative_eigenvalues': 'yes'}", "\"negative_eigenvalues\" must be true or false"},
        /* no JSON, or hardly */
        {"", "the rule is empty: it must be a JSON object"},
        {"{'base': 'gdn'", "the rule, line 1"},
        {"{'base': 'gdn'} {}", "the rule, line 1"},
        {"{'base': 'gdn', 'base': 'kda'}", "duplicate object key"},
        {"['gdn']", "the rule holds an array"},
        {"'gdn'", "the rule"},
        {"{'base': 'gd\\u0000n'}", "the rule"},
        {"{'base': 'gd\xff'}", "the rule"},
        {"{'base': 'gdn', 'gain_eps': 1e999}", "the rule"},
        {"{'base': 'gdn', 'gain_eps': NaN}", "the rule"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) refuse(quoted(cases[i][0]), DR_ERROR_FORMAT, cases[i][1]);
}

/* Nesting far beyond any stack, and a name far beyond any buffer. */
static void test_large_texts(void **state) {
    (void)state;
    enum { SIZE = 1 << 20 };
    char *text = malloc(SIZE + 64);
    assert_non_null(text);
    strcpy(text, "{\"rows\": ");
    memset(text + strlen(text), '[', SIZE);
    text[SIZE] = '\0';
    refuse(text, DR_ERROR_FORMAT, "the rule, line 1");
    static const char *const heads[] = {"{\"base\": \"", "{\"decay\": \"", "{\"", "{\"rows\": [{\"gain\": \""};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        size_t head = strlen(heads[i]);
        memcpy(text, heads[i], head);
        memset(text + head, 'x', SIZE);
        strcpy(text + head + SIZE, i == 2 ? "\": 1}" : i == 3 ? "\"}]}" : "\"}");
        refuse(text, DR_ERROR_FORMAT, "xxx");
    }
    free(text);
}

static void write_rule(const char *text) {
    scratch_write("rule.json", text, strlen(text));
}

static void test_files(void **state) {
    (void)state;
    dr_rule rule;
    dr_gates gates;
    const char *path = scratch_path("rule.json");
    write_rule("{\"base\": \"kda\", \"gate\": \"kda_bounded\"}\n");
    ASSERT_OK(dr_rule_read_file(path, &rule, &gates));
    assert_true(strcmp(rule.name, "kda") == 0 && gates.gate == DR_GATE_FORM_KDA_BOUNDED);
    write_rule("{\"base\": \"kda\",\n \"gait\": \"log\"}\n");
    assert_int_equal(dr_rule_read_file(path, &rule, NULL), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "rule.json: unknown key \"gait\"; did you mean \"gate\"?"));
    write_rule("{\"base\": \"kda\"\n \"gate\": \"log\"}\n");
    assert_int_equal(dr_rule_read_file(path, &rule, NULL), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "rule.json, line 2"));
    assert_int_equal(dr_rule_read_file(scratch_path("none.json"), &rule, NULL), DR_ERROR_IO);
    assert_int_equal(dr_rule_read_file(scratch_folder, &rule, NULL), DR_ERROR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),  cmocka_unit_test(test_named_rules_bit_for_bit),
        cmocka_unit_test(test_base),         cmocka_unit_test(test_gates),
        cmocka_unit_test(test_random_rules), cmocka_unit_test(test_short_buffer),
        cmocka_unit_test(test_senseless),    cmocka_unit_test(test_wrong_texts),
        cmocka_unit_test(test_large_texts),  cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
