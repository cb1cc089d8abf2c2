/* What rows are made of before the chunks (engine/made.cu), on the host (block.h): what is made is near its formula in double,
 * and the gradients that are led to inputs are near differences of the formula. A program that prints a line for each case, and
 * exits with 1 and a sentence at the first check that does not hold. */
#include "block.h"

#include "backends/cuda/engine/made.cu"
#include "call.h"

enum { TOKENS = 5, SIZE = 128 };

/* Of each input its numbers, by what a rule's rows name it. */
typedef std::vector<std::vector<double>> inputs_of_doubles;

/* A rule that makes one thing: the call's rows as they are then, and as its inputs lie (made.from). */
struct setting : call_memory {
    dr_cuda_rows rows;
    dr_cuda_made made;
    std::vector<char> workspace;
    inputs_of_doubles in;
};

static double number(const dr_cuda_input &input, const void *at, size_t i) {
    return input.vector ? element(at, (int64_t)i) : (double)((const float *)at)[i];
}

static double sign_of(bool negative) {
    return negative ? -1 : 1;
}

/* What is made of a head's vectors of a token, `head` counting both: appended to `to`. */
static void make_head(const dr_cuda_rows &rows, const inputs_of_doubles &in, size_t head, std::vector<double> *to) {
    const std::vector<double> &key = in[DR_INPUT_KEY], &query = in[DR_INPUT_QUERY];
    const dr_row_product &product = rows.product[0];
    const dr_cuda_row &row = rows.row[0];
    double dot = 0;
    for (size_t at = head * SIZE; at < (head + 1) * SIZE; at++) {
        if (rows.products) to->push_back(sign_of(product.negative) * in[(size_t)product.of][at] * in[(size_t)product.by][at]);
        if (rows.sum_made) to->push_back(key[at] + in[DR_INPUT_LAMBDA][head] * query[at]);
        if (rows.query_made) to->push_back(query[at] - in[DR_INPUT_CORRECTION][head % HEADS] * key[at]);
        if (rows.gains_made) dot += sign_of(row.negative) * in[(size_t)row.read][at] * in[(size_t)row.write][at];
    }
    if (!rows.gains_made) return;
    const double beta = in[DR_INPUT_BETA].empty() ? 0 : in[DR_INPUT_BETA][head];
    to->push_back(rows.gains_from == DR_GAIN_NORMALIZED ? 1 / (dot + (double)rows.gain_eps) : beta / (1 + beta * dot));
}

static std::vector<double> make_in_double(const dr_cuda_rows &rows, const inputs_of_doubles &in) {
    std::vector<double> made;
    for (size_t head = 0; head < SEQUENCES * TOKENS * HEADS; head++) make_head(rows, in, head, &made);
    return made;
}

/* Where what is made stands. */
static const dr_cuda_input &put_in(const setting &s) {
    const dr_cuda_rows &rows = s.rows;
    return rows.input[rows.products     ? rows.product[0].of
                      : rows.sum_made   ? (int)DR_SOURCE_SUM
                      : rows.query_made ? rows.asked
                                        : (int)DR_SOURCE_GAIN];
}

static void begin(setting *s, const dr_rule &rule) {
    dr_cuda_chunk_plan plan = {};
    make_plan(s, &rule, TOKENS, SIZE, &plan);
    s->rows = plan.rows;
    check(plan.rows.products + plan.rows.sum_made + plan.rows.query_made + plan.rows.gains_made == 1,
          "the rule does not make one thing");
    dr_arena count = {}, arena = {};
    dr_cuda_rows counted = plan.rows;
    dr_cuda_made_lay(true, DR_BF16, plan.tokens, &counted, &count, &s->made);
    s->workspace.resize(count.used + 256);
    arena.block = (char *)(((uintptr_t)s->workspace.data() + 255) / 256 * 256);
    dr_cuda_made_lay(true, DR_BF16, plan.tokens, &s->rows, &arena, &s->made);
    s->in.resize(DR_SOURCES);
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cuda_input &input = s->made.from.input[i];
        const size_t count = input.at ? (size_t)dr_recurrence_input_count(&s->recurrence, (dr_input)i) : 0;
        for (size_t j = 0; j < count; j++) s->in[(size_t)i].push_back(number(input, input.at, j));
    }
}

/* Keys that the diagonal scan has made: any. */
static void put_squashed(setting *s) {
    dr_cuda_input &input = s->rows.input[DR_SOURCE_SQUASHED];
    const size_t count = (size_t)(SEQUENCES * TOKENS * input.token);
    input.at = add_tensor(&s->given, count * sizeof(T))->at;
    fill_normal(s, (void *)input.at, count, 1 / sqrtf((float)SIZE));
    for (size_t i = 0; i < count; i++) s->in[DR_SOURCE_SQUASHED].push_back(element(input.at, (int64_t)i));
}

static void check_made(const setting &s) {
    const dr_cuda_input &put = put_in(s);
    const std::vector<double> want = make_in_double(s.rows, s.in);
    distance far = {};
    manner = {1, false, 0};
    check(dr_cuda_made_make(&s.made, &s.rows, DR_BF16, false, {}) == DR_OK, "making fails");
    for (size_t i = 0; i < want.size(); i++)
        add_distance(&far, s.rows.gains_made ? (double)((const float *)put.at)[i] : element(put.at, (int64_t)i), want[i]);
    check(far.size > 0 && far.error <= 1e-5 * far.size, "what is made is far from its formula");
}

/* Of an input: what its gradient was before, by every 17th number, against what it is. */
static void check_gradient(const setting &s, int i, const std::vector<double> &before, const std::vector<double> &d) {
    const dr_cuda_input &input = s.made.from.input[i];
    const double step = 1e-5;
    distance off = {};
    for (size_t j = 0; j < s.in[(size_t)i].size() && j < 2 * SIZE * HEADS; j += 17) {
        inputs_of_doubles moved = s.in;
        moved[(size_t)i][j] += step;
        const std::vector<double> up = make_in_double(s.rows, moved);
        moved[(size_t)i][j] -= 2 * step;
        const std::vector<double> down = make_in_double(s.rows, moved);
        double slope = before.empty() ? 0 : before[j];
        for (size_t m = 0; m < d.size(); m++) slope += d[m] * (up[m] - down[m]) / (2 * step);
        add_distance(&off, number(input, input.gradient, j), slope);
    }
    check(off.error <= 1e-4 * off.size, "a gradient is far from differences");
}

/* Gradients of vectors are there, but of those that only what is made has; and then that of what is made. */
static void check_led(setting *s) {
    const dr_cuda_input &put = put_in(*s);
    const dr_row_product &product = s->rows.product[0];
    inputs_of_doubles before(DR_INPUTS);
    std::vector<double> d(make_in_double(s->rows, s->in).size());
    for (int i = 0; i < DR_INPUTS; i++) {
        const dr_cuda_input &input = s->made.from.input[i];
        for (size_t j = 0; j < s->in[(size_t)i].size() && input.vector; j++) ((T *)input.gradient)[j] = normal(s, 1);
        const bool replaced = s->rows.products && (product.of == i || (product.by == i && !product.adds));
        for (size_t j = 0; j < s->in[(size_t)i].size() && input.vector && !replaced; j++)
            before[(size_t)i].push_back(element(input.gradient, (int64_t)j));
    }
    for (size_t i = 0; i < d.size(); i++) {
        const T x = normal(s, 1);
        d[i] = (double)__bfloat162float(x);
        if (s->rows.gains_made)
            ((float *)put.gradient)[i] = (float)d[i];
        else
            ((T *)put.gradient)[i] = x;
    }
    if (s->rows.query_made) before[(size_t)s->rows.asked].clear(); /* what is made has its place */
    check(dr_cuda_made_lead(&s->made, &s->rows, DR_BF16, {}) == DR_OK, "leading gradients fails");
    for (int i = 0; i < DR_INPUTS; i++)
        if (s->made.from.input[i].vector || i == DR_INPUT_LAMBDA || i == DR_INPUT_CORRECTION ||
            (i == DR_INPUT_BETA && s->rows.gains_made))
            check_gradient(*s, i, before[(size_t)i], d);
}

/* Gains beta / (1 + beta r . w) of keys that the diagonal scan makes: its backward is told of r . w, and nothing else is
 * written. */
static void check_dots(setting *s) {
    const std::vector<double> gain = make_in_double(s->rows, s->in);
    const dr_cuda_input &key = s->made.from.input[DR_INPUT_KEY], &beta = s->made.from.input[DR_INPUT_BETA];
    std::vector<float> d_dot(gain.size());
    distance off = {}, off_beta = {};
    bool untouched = true;
    s->made.d_dot = d_dot.data();
    for (size_t i = 0; i < gain.size(); i++) ((float *)put_in(*s).gradient)[i] = 1 + (float)i;
    memset(key.gradient, 0, s->in[DR_INPUT_KEY].size() * sizeof(T));
    check(dr_cuda_made_lead(&s->made, &s->rows, DR_BF16, {}) == DR_OK, "leading gradients fails");
    for (size_t i = 0; i < gain.size(); i++) {
        const double shrink = gain[i] / s->in[DR_INPUT_BETA][i];
        add_distance(&off, d_dot[i], -(1 + (double)i) * gain[i] * gain[i]);
        add_distance(&off_beta, ((const float *)beta.gradient)[i], (1 + (double)i) * shrink * shrink);
    }
    check(off.size > 0 && off.error <= 1e-5 * off.size, "the gradient of r . w is far from its formula");
    check(off_beta.error <= 1e-5 * off_beta.size, "the gradient of beta is far from its formula");
    for (size_t i = 0; i < s->in[DR_INPUT_KEY].size(); i++) untouched = untouched && element(key.gradient, (int64_t)i) == 0;
    check(untouched, "the gradient of keys, which is the scan's backward's, was written to");
}

static void check_rule(const char *name, const dr_rule &rule) {
    check_case(name, TOKENS, SIZE, [&] {
        setting s = {};
        begin(&s, rule);
        check_made(s);
        check_led(&s);
    });
}

int main() {
    const auto check_changed = [](const char *name, const char *base, auto change) {
        dr_rule rule = *dr_rule_find(base);
        change(rule);
        check_rule(name, rule);
    };
    check_changed("query", "gdn", [](dr_rule &r) { r.query = DR_QUERY_CORRECTED; });
    check_changed("value", "gdn", [](dr_rule &r) { r.row[0].value = DR_VALUE_GATED; });
    check_changed("read", "gdn", [](dr_rule &r) { r.row[0].read = DR_READ_GATED_KEY; });
    check_changed("write", "gdn", [](dr_rule &r) { r.row[0].write = DR_WRITE_RATE_READ; });
    check_changed("sum", "kda", [](dr_rule &r) { r.row[0].read = DR_READ_KEY_PLUS_QUERY; });
    check_changed("gain", "gdn", [](dr_rule &r) { r.row[0].gain = DR_GAIN_IMPLICIT; });
    check_changed("gain apart", "gdn", [](dr_rule &r) { r.row[0].gain = DR_GAIN_IMPLICIT, r.row[0].read = DR_READ_FREE; });
    check_rule("nlms", *dr_rule_find("nlms"));
    check_case("plonghorn", TOKENS, SIZE, [&] {
        setting s = {};
        begin(&s, *dr_rule_find("plonghorn"));
        put_squashed(&s);
        check_made(s);
        check_dots(&s);
    });
    return 0;
}
