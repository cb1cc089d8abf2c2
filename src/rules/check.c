/* Which combinations of options make sense. Every refusal says why, so that whoever composes a rule learns what to change;
 * docs/adding-a-rule.md lists the same sentences. Ranges of the options come first: the checks after it index by them. */
#include "base/error.h"
#include <deltarule/rule.h>
#include <math.h>

#define REFUSE_UNLESS(condition, ...)                                                                                          \
    do {                                                                                                                       \
        if (!(condition)) return dr_fail(DR_ERROR_ARGUMENT, __VA_ARGS__);                                                      \
    } while (0)

/* The enumerators of an axis run from 0 to last without gaps. */
#define REQUIRE_OPTION(option, last, axis)                                                                                     \
    REFUSE_UNLESS((int)(option) >= 0 && (int)(option) <= (int)(last), "%s %d is not an option: the last one is %d", axis,      \
                  (int)(option), (int)(last))

static dr_status check_options(const dr_rule *rule) {
    REQUIRE_OPTION(rule->decay, DR_DECAY_CHANNEL, "decay");
    REQUIRE_OPTION(rule->scan, DR_SCAN_INVERSE_GRAM, "scan");
    REQUIRE_OPTION(rule->query, DR_QUERY_CONJUGATE_GRADIENT, "query");
    REQUIRE_OPTION(rule->normalizer, DR_NORMALIZER_DISCOUNTED, "normalizer");
    REQUIRE_OPTION(rule->family, DR_FAMILIES - 1, "family");
    REQUIRE_OPTION(rule->squash.interval, DR_SQUASH_DAMPEN, "squash interval");
    REQUIRE_OPTION(rule->squash.function, DR_SQUASH_TANH, "squash function");
    REFUSE_UNLESS(rule->rows >= 1 && rule->rows <= DR_MAX_ROWS, "a rule has 1 to %d rows, not %d", DR_MAX_ROWS, rule->rows);
    REFUSE_UNLESS(rule->repeat >= 1, "repeat is a whole number from 1, not %d", rule->repeat);
    for (int i = 0; i < rule->rows; i++) {
        REQUIRE_OPTION(rule->row[i].read, DR_READ_FREE, "read key");
        REQUIRE_OPTION(rule->row[i].write, DR_WRITE_EXACT, "write key");
        REQUIRE_OPTION(rule->row[i].gain, DR_GAIN_EXPONENTIAL, "gain");
        REQUIRE_OPTION(rule->row[i].value, DR_VALUE_GATED, "value");
    }
    REFUSE_UNLESS(rule->squash.x >= 1 && rule->squash.x <= 2, "the squash needs 1 <= x <= 2, not %g (dr_rule_blank() sets it)",
                  rule->squash.x);
    REFUSE_UNLESS(rule->squash.eps > 0 && isfinite(rule->squash.eps), "the squash needs a finite eps > 0, not %g",
                  rule->squash.eps);
    REQUIRE_OPTION(rule->cg_start, DR_CG_JACOBI, "start of conjugate gradients");
    REFUSE_UNLESS(rule->cg_eps >= 0 && isfinite(rule->cg_eps), "cg_eps is a finite number >= 0, not %g", rule->cg_eps);
    REFUSE_UNLESS(rule->query != DR_QUERY_CONJUGATE_GRADIENT || rule->cg_iters >= 1,
                  "query conjugate_gradient needs cg_iters from 1, not %d", rule->cg_iters);
    REFUSE_UNLESS(rule->gain_eps >= 0 && isfinite(rule->gain_eps), "gain_eps is a finite number >= 0, not %g", rule->gain_eps);
    return DR_OK;
}

static dr_status check_row(const dr_row *row, int number) {
    bool reads = row->read != DR_READ_NONE;
    bool plain_gain = row->gain == DR_GAIN_ONE || row->gain == DR_GAIN_BETA || row->gain == DR_GAIN_GAMMA;
    REFUSE_UNLESS(reads || row->value != DR_VALUE_NONE, "row %d neither reads nor has a value: it does nothing", number);
    REFUSE_UNLESS(reads || !row->undecayed, "row %d is undecayed, which is a property of a read, and has none", number);
    REFUSE_UNLESS(number == 1 || !row->undecayed,
                  "row %d is undecayed, but only the first row of a token decays: only its read can be undecayed", number);
    REFUSE_UNLESS(reads || row->write != DR_WRITE_RATE_READ, "row %d has write key rate_read, which needs a read key", number);
    REFUSE_UNLESS(reads || plain_gain, "row %d has gain %s, which needs a read key", number, dr_gain_name(row->gain));
    REFUSE_UNLESS(reads || row->value == DR_VALUE_GAIN || row->gain == DR_GAIN_ONE,
                  "row %d has gain %s, which neither a read nor the value uses: gain one says the same", number,
                  dr_gain_name(row->gain));
    REFUSE_UNLESS(row->gain != DR_GAIN_EXPONENTIAL || (row->read == DR_READ_KEY && row->write == DR_WRITE_KEY),
                  "row %d has gain exponential, which needs read key and write key to be the key, not %s and %s", number,
                  dr_read_name(row->read), dr_write_name(row->write));
    return DR_OK;
}

static bool writes(const dr_rule *rule, dr_write write) {
    for (int i = 0; i < rule->rows; i++)
        if (rule->row[i].write == write) return true;
    return false;
}

static dr_status check_matrix_scan(const dr_rule *rule) {
    bool gram = rule->query == DR_QUERY_EXACT || rule->query == DR_QUERY_CONJUGATE_GRADIENT;
    bool inverse = writes(rule, DR_WRITE_EXACT);
    REFUSE_UNLESS(!gram || rule->scan == DR_SCAN_GRAM, "query %s needs scan gram, not %s", dr_query_name(rule->query),
                  dr_scan_name(rule->scan));
    REFUSE_UNLESS(rule->scan != DR_SCAN_GRAM || gram, "scan gram is not used by the query");
    REFUSE_UNLESS(rule->scan != DR_SCAN_GRAM || rule->decay != DR_DECAY_CHANNEL,
                  "the Gram matrix decays by a scalar: scan gram does not go with decay channel");
    REFUSE_UNLESS(!inverse || rule->scan == DR_SCAN_INVERSE_GRAM, "write key exact needs scan inverse_gram, not %s",
                  dr_scan_name(rule->scan));
    REFUSE_UNLESS(rule->scan != DR_SCAN_INVERSE_GRAM || inverse, "scan inverse_gram is used by no write key");
    REFUSE_UNLESS(rule->scan != DR_SCAN_INVERSE_GRAM || rule->decay == DR_DECAY_NONE,
                  "the inverse Gram matrix would have to be divided by the decay: scan inverse_gram needs decay none, not %s",
                  dr_decay_name(rule->decay));
    return DR_OK;
}

static dr_status check_scan(const dr_rule *rule) {
    DR_TRY(check_matrix_scan(rule));
    bool diagonal = rule->scan == DR_SCAN_DIAGONAL;
    bool wanted =
        writes(rule, DR_WRITE_PRECONDITIONED) || writes(rule, DR_WRITE_SHERMAN_MORRISON) || rule->query == DR_QUERY_RIDGE;
    REFUSE_UNLESS(!wanted || diagonal, "a preconditioned or sherman_morrison write key and a ridge query need scan diagonal");
    REFUSE_UNLESS(!diagonal || wanted, "scan diagonal is used by no write key and not by the query");
    REFUSE_UNLESS(!rule->tied_scan || diagonal, "tied_scan needs scan diagonal");
    REFUSE_UNLESS(!rule->tied_scan || rule->decay == DR_DECAY_SCALAR, "tied_scan needs decay scalar, not %s",
                  dr_decay_name(rule->decay));
    REFUSE_UNLESS(!rule->tied_scan || dr_rule_uses(rule, DR_INPUT_BETA), "tied_scan needs a gain with beta");
    return DR_OK;
}

static dr_status check_normalizer(const dr_rule *rule) {
    if (rule->normalizer == DR_NORMALIZER_NONE) return DR_OK;
    REFUSE_UNLESS(writes(rule, DR_WRITE_PRECONDITIONED), "a normalizer needs a preconditioned write key");
    for (int i = 0; i < rule->rows; i++) {
        const dr_row *row = &rule->row[i];
        if (row->write != DR_WRITE_PRECONDITIONED) continue;
        REFUSE_UNLESS(row->gain == DR_GAIN_ONE || row->gain == DR_GAIN_BETA || row->gain == DR_GAIN_GAMMA,
                      "row %d has gain %s, which is normalized already: no normalizer goes with it", i + 1,
                      dr_gain_name(row->gain));
        if (rule->normalizer != DR_NORMALIZER_DISCOUNTED) continue;
        REFUSE_UNLESS(rule->decay == DR_DECAY_SCALAR, "normalizer discounted needs decay scalar, not %s",
                      dr_decay_name(rule->decay));
        REFUSE_UNLESS(row->gain == DR_GAIN_BETA && (row->value == DR_VALUE_GAIN || row->value == DR_VALUE_NONE),
                      "normalizer discounted needs gain beta and value gain_v or none, but row %d has %s and %s", i + 1,
                      dr_gain_name(row->gain), dr_value_name(row->value));
    }
    return DR_OK;
}

static dr_status check_repeat(const dr_rule *rule) {
    if (rule->repeat == 1) return DR_OK;
    const dr_row *row = &rule->row[0];
    REFUSE_UNLESS(rule->rows == 1, "repeat %d needs a single row, not %d", rule->repeat, rule->rows);
    REFUSE_UNLESS((row->read == DR_READ_NONE || row->read == DR_READ_KEY) && row->write == DR_WRITE_KEY,
                  "repeat needs read key key or none and write key key, not %s and %s", dr_read_name(row->read),
                  dr_write_name(row->write));
    REFUSE_UNLESS(row->gain != DR_GAIN_GAMMA && row->value != DR_VALUE_GATED, "repeat has no erase gain and no gated value");
    REFUSE_UNLESS(rule->scan == DR_SCAN_NONE && rule->query == DR_QUERY_PLAIN,
                  "repeat goes with neither a scan nor another query than the plain one");
    return DR_OK;
}

dr_status dr_rule_check(const dr_rule *rule) {
    DR_NEED(rule);
    DR_TRY(check_options(rule));
    bool stores = false;
    for (int i = 0; i < rule->rows; i++) {
        DR_TRY(check_row(&rule->row[i], i + 1));
        stores = stores || rule->row[i].value != DR_VALUE_NONE;
    }
    REFUSE_UNLESS(stores, "no row has a value: nothing is ever stored");
    DR_TRY(check_scan(rule));
    DR_TRY(check_normalizer(rule));
    return check_repeat(rule);
}
