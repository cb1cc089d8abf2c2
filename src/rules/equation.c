/* A rule's equation as text, generated from its axes so that it cannot differ from what runs. Parts in the order in which a
 * token computes them: the scan, the keys and gains that are derived, the decay, the rows, the output. D stands for the state
 * within a token, S for the state between tokens, so that an undecayed read is a read of S. Letters: a decay factor, b beta,
 * c a derived gain, e erase key, k key, p feedback key, q query, v value; * is elementwise, . the inner product. */
#include "base/number.h"

#include <deltarule/rule.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct {
    char *text;
    size_t size;
    int length; /* needed so far, without the closing zero */
} line;

static void put(line *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(line *out, const char *format, ...) {
    size_t used = (size_t)out->length;
    va_list arguments;
    va_start(arguments, format);
    int written =
        dr_format_list(used < out->size ? out->text + used : NULL, used < out->size ? out->size - used : 0, format, arguments);
    va_end(arguments);
    if (written > 0) out->length += written;
}

/* The letters of one row; step is "_j" under repeat, where key, value and beta differ from step to step. */
static const char *key_letter(const dr_rule *rule) {
    return rule->repeat > 1 ? "k_j" : "k";
}
static const char *value_letter(const dr_rule *rule) {
    return rule->repeat > 1 ? "v_j" : "v";
}
static const char *beta_letter(const dr_rule *rule) {
    return rule->repeat > 1 ? "b_j" : "b";
}

static const char *read_text(const dr_rule *rule, const dr_row *row) {
    switch (row->read) {
    case DR_READ_NONE:
        break;
    case DR_READ_KEY:
        return key_letter(rule);
    case DR_READ_GATED_KEY:
        return "(erase_gate*k)";
    case DR_READ_KEY_PLUS_QUERY:
        return "(k + lambda q)";
    case DR_READ_ERASE_KEY:
        return "e";
    case DR_READ_FEEDBACK:
        return "p";
    case DR_READ_FREE:
        return "(-free_read)";
    }
    return "";
}

static void put_write(line *out, const dr_rule *rule, const dr_row *row) {
    switch (row->write) {
    case DR_WRITE_KEY:
        put(out, "%s", key_letter(rule));
        break;
    case DR_WRITE_PRECONDITIONED:
        put(out, "(B*k)");
        break;
    case DR_WRITE_SHERMAN_MORRISON:
        put(out, "(m/(1 + k.m))");
        break;
    case DR_WRITE_ERASE_KEY:
        put(out, "e");
        break;
    case DR_WRITE_RATE_READ:
        put(out, "(rate*%s)", read_text(rule, row));
        break;
    case DR_WRITE_FREE:
        put(out, "free_write");
        break;
    case DR_WRITE_EXACT:
        put(out, "w");
        break;
    }
}

static bool has_normalizer(const dr_rule *rule, const dr_row *row) {
    return rule->normalizer != DR_NORMALIZER_NONE && row->write == DR_WRITE_PRECONDITIONED;
}

/* The gain with a blank after it, as a factor before what it multiplies; nothing for one. */
static const char *gain_text(const dr_rule *rule, const dr_row *row) {
    switch (row->gain) {
    case DR_GAIN_ONE:
        return "";
    case DR_GAIN_BETA:
        return rule->repeat > 1 ? "b_j " : "b ";
    case DR_GAIN_GAMMA:
        return "gamma ";
    case DR_GAIN_IMPLICIT:
    case DR_GAIN_NORMALIZED:
    case DR_GAIN_EXPONENTIAL:
        return rule->repeat > 1 ? "c_j " : "c ";
    }
    return "";
}

/* A = ...;  B = ...;  m = ...; */
static void put_diagonal(line *out, const dr_rule *rule) {
    bool preconditioned = false, sherman_morrison = false;
    for (int i = 0; i < rule->rows; i++) {
        preconditioned = preconditioned || rule->row[i].write == DR_WRITE_PRECONDITIONED;
        sherman_morrison = sherman_morrison || rule->row[i].write == DR_WRITE_SHERMAN_MORRISON;
    }
    if (sherman_morrison) put(out, "m = k/(A + ridge);  ");
    put(out, rule->tied_scan ? "A = a A + b k*k;  " : "A = a_A A + b_A k*k;  ");
    if (!preconditioned) return;
    const dr_squash *squash = &rule->squash;
    const char *exponent = squash->interval == DR_SQUASH_AMPLIFY  ? "(1 - s)/2"
                           : squash->interval == DR_SQUASH_DAMPEN ? "-(1 + s)/2"
                                                                  : "-s";
    put(out, "B = %g^(%s), ", squash->x, exponent);
    put(out, squash->function == DR_SQUASH_TANH ? "s = tanh r, " : "s = r/(1 + |r|), ");
    put(out, "r = ln(A + %g) - centre;  ", squash->eps);
}

/* The scan and what the write keys take from it. */
static void put_scan(line *out, const dr_rule *rule) {
    const char *weight = dr_rule_uses(rule, DR_INPUT_BETA) ? "b " : "";
    switch (rule->scan) {
    case DR_SCAN_NONE:
        break;
    case DR_SCAN_DIAGONAL:
        put_diagonal(out, rule);
        break;
    case DR_SCAN_GRAM:
        put(out, "K = %sK + %sk k^T;  ", rule->decay != DR_DECAY_NONE ? "a " : "", weight);
        break;
    case DR_SCAN_INVERSE_GRAM:
        put(out, "p = P k;  w = p/(1 + %sk.p);  P = P - %sw p^T;  ", weight, weight);
        break;
    }
}

/* c = ...;  n = ...; where the row's gain or normalizer is derived */
static void put_gain(line *out, const dr_rule *rule, const dr_row *row) {
    const char *read = read_text(rule, row), *step = rule->repeat > 1 ? "_j" : "";
    if (row->gain == DR_GAIN_IMPLICIT) {
        put(out, "c%s = %s/(1 + %s %s.", step, beta_letter(rule), beta_letter(rule), read);
        put_write(out, rule, row);
        put(out, ");  ");
    } else if (row->gain == DR_GAIN_NORMALIZED) {
        put(out, rule->gain_eps > 0 ? "c%s = 1/(%s." : "c%s = 1/%s.", step, read);
        put_write(out, rule, row);
        if (rule->gain_eps > 0) put(out, " + %g)", rule->gain_eps);
        put(out, ";  ");
    } else if (row->gain == DR_GAIN_EXPONENTIAL) {
        const char *k = key_letter(rule);
        put(out, "c%s = (1 - exp(-%s %s.%s))/%s.%s;  ", step, beta_letter(rule), k, k, k, k);
    }
    if (!has_normalizer(rule, row)) return;
    if (rule->normalizer == DR_NORMALIZER_INVERSE) put(out, "n = 1/k.(B*k);  ");
    if (rule->normalizer == DR_NORMALIZER_IMPLICIT) put(out, "n = 1/(1 + k.(B*k));  ");
    if (rule->normalizer == DR_NORMALIZER_DISCOUNTED) put(out, "n = 1/(a + b k.(B*k));  ");
}

/* w (z - c e)^T after the sign, with the gain in front of w where it multiplies value and read alike */
static void put_row(line *out, const dr_rule *rule, const dr_row *row, const char *memory) {
    const char *gain = gain_text(rule, row), *read = read_text(rule, row), *v = value_letter(rule);
    bool reads = row->read != DR_READ_NONE;
    bool in_front = row->value == DR_VALUE_NONE || row->value == DR_VALUE_GAIN;
    put(out, row->value == DR_VALUE_NONE ? " - " : " + ");
    if (has_normalizer(rule, row)) put(out, "n ");
    if (in_front) put(out, "%s", gain);
    put_write(out, rule, row);
    if (row->value == DR_VALUE_NONE) {
        put(out, " (%s^T %s)^T", memory, read);
        return;
    }
    const char *value = row->value == DR_VALUE_GATED ? "write_gate*v" : v;
    if (reads)
        put(out, " (%s - %s%s^T %s)^T", value, in_front ? "" : gain, memory, read);
    else
        put(out, row->value == DR_VALUE_GATED ? " (%s)^T" : " %s^T", value);
}

static void put_rows(line *out, const dr_rule *rule) {
    bool decays = rule->decay != DR_DECAY_NONE;
    if (decays) put(out, rule->decay == DR_DECAY_CHANNEL ? "D = diag(a) S;  " : "D = a S;  ");
    if (rule->repeat > 1) {
        const char *memory = rule->row[0].undecayed && decays ? "(S if j = 1 else D)" : "D";
        if (!decays) put(out, "D = S;  ");
        put(out, "for j = 1 .. %d: {", rule->repeat);
        put_gain(out, rule, &rule->row[0]);
        put(out, "D = D");
        put_row(out, rule, &rule->row[0], memory);
        put(out, "};  S = D;  ");
        return;
    }
    for (int i = 0; i < rule->rows; i++) {
        bool first = i == 0, last = i == rule->rows - 1;
        const char *from = first && !decays ? "S" : "D";
        put_gain(out, rule, &rule->row[i]);
        put(out, "%s = %s", last ? "S" : "D", from);
        put_row(out, rule, &rule->row[i], rule->row[i].undecayed ? "S" : from);
        put(out, ";  ");
    }
}

int dr_rule_equation(const dr_rule *rule, char *text, size_t size) {
    if (!rule || (!text && size > 0)) return -1;
    line out = {.text = text, .size = size};
    put_scan(&out, rule);
    put_rows(&out, rule);
    switch (rule->query) {
    case DR_QUERY_PLAIN:
        put(&out, "o = scale S^T q");
        break;
    case DR_QUERY_CORRECTED:
        put(&out, "o = scale S^T (q - correction k)");
        break;
    case DR_QUERY_RIDGE:
        put(&out, "o = scale S^T (q/(A + ridge))");
        break;
    case DR_QUERY_EXACT:
        put(&out, "o = scale S^T (K + diag(ridge))^-1 q");
        break;
    case DR_QUERY_CONJUGATE_GRADIENT:
        put(&out, "(K + diag(ridge)) x = q by %d steps of conjugate gradients from %s", rule->cg_iters,
            rule->cg_start == DR_CG_JACOBI ? "q/(diag K + ridge)" : "0");
        if (rule->cg_eps > 0) put(&out, " with eps %g", rule->cg_eps);
        put(&out, ";  o = scale S^T x");
        break;
    }
    return out.length;
}
