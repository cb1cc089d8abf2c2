/* cuda_coverage: whether a rule costs on the GPU what it must move. Of gdn and kda every legal rule at one option's distance is
 * measured beside its base in one run, in bf16, 16 x 2048 tokens, 8 heads of 128. What counts is the quotient
 *
 *     (its time / its base's) / (its bytes / its base's)      bytes: of inputs, outputs and, with the backward, their gradients
 *
 * forward and with the backward. At most 1.3; with a diagonal scan 1.7; with several rows a token 1.15 a row. Gram scans are
 * left out. Then heads of other shapes beside those of the base, for which its time is divided by how many times the values are
 * computed: several value heads a key head, also decoding; 64, 120 and 256 key channels; values twice as wide. Then rules that
 * are computed in float32 beside gdn, and a composition of two rows beside kda. Prints a line each; exit status 1 if one is
 * beyond its bound, 77 with the reason without a GPU.
 *
 *     cuda_coverage [RULE...]      gdn kda */
#include "../../recurrence/trial.h"

#include "rules/compare.h"

#include <deltarule/bench.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int measured, beyond;
} counts;

static dr_recurrence sizes_of(const dr_rule *rule) {
    dr_recurrence r = dr_recurrence_default();
    r.rule = rule;
    r.layout.sequences = 16;
    r.layout.rows = 16 * 2048;
    r.key_heads = r.value_heads = 8;
    r.key_size = r.value_size = 128;
    return r;
}

static double bound_of(const dr_rule *rule) {
    if (dr_rule_steps(rule) > 1) return 1.15 * dr_rule_steps(rule);
    return rule->scan == DR_SCAN_DIAGONAL ? 1.7 : 1.3;
}

static double quotient_of(const dr_bench_work *work, const dr_bench_work *base) {
    return work->ratio / (work->moved.bytes / base->moved.bytes);
}

static const dr_bench_options options = {
    .repeats = 5, .threads = (const int[]){1}, .thread_counts = 1, .seed = 1, .backend = "cuda", .dtype = DR_BF16};

/* Rules beside their base, measured together: the base once for all of them. */
enum { MOST_TOGETHER = 6 };
typedef struct {
    int count;
    dr_rule rule[MOST_TOGETHER + 1]; /* behind the base */
    char what[MOST_TOGETHER + 1][64];
} together;

static void print_line(const char *base, const char *what, const dr_rule *rule, const dr_bench_op_result *of_base,
                       const dr_bench_op_result *own, counts *c) {
    const double bound = bound_of(rule), forward = quotient_of(&own->forward, &of_base->forward),
                 both = quotient_of(&own->forward_backward, &of_base->forward_backward);
    const bool within = forward <= bound && both <= bound;
    printf("%-6s %-31s %7.1f %7.1f MB %8.1f %8.1f us  x%5.2f x%5.2f  at most %.2f %s\n", base, what,
           1e-6 * own->forward.moved.bytes, 1e-6 * own->forward_backward.moved.bytes, 1e6 * own->forward.seconds.median,
           1e6 * own->forward_backward.seconds.median, forward, both, bound, within ? "" : "BEYOND");
    printf("       %s\n", own->kernel);
    c->measured++;
    c->beyond += !within;
}

/* A line for each of the rules, which are then forgotten; false: they could not be measured. */
static bool measure(const dr_rule *base, together *t, counts *c) {
    dr_recurrence sizes[MOST_TOGETHER + 1];
    dr_bench_op_result results[MOST_TOGETHER + 1];
    if (t->count == 0) return true;
    t->rule[0] = *base;
    for (int i = 0; i <= t->count; i++) sizes[i] = sizes_of(&t->rule[i]);
    if (dr_bench_op(&options, false, t->count + 1, sizes, results) != DR_OK) {
        fprintf(stderr, "cuda_coverage: neighbours of %s, %s to %s: %s\n", base->name, t->what[1], t->what[t->count],
                dr_last_error());
        return false;
    }
    for (int i = 1; i <= t->count; i++) print_line(base->name, t->what[i], &t->rule[i], &results[0], &results[i], c);
    fflush(stdout);
    t->count = 0;
    return true;
}

/* Adds a rule; measures all when there are as many as go together. */
static bool add(const dr_rule *base, const dr_rule *rule, const char *axis, const char *option, together *t, counts *c) {
    const int i = ++t->count;
    t->rule[i] = *rule;
    snprintf(t->what[i], sizeof t->what[i], "%-12s %s", axis, option);
    return t->count < MOST_TOGETHER || measure(base, t, c);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    int heads, value_heads, key_size, value_size;
} head_shape;

static const struct {
    head_shape base, other;
    double times; /* as many values, or columns of them */
    double bound;
} shapes[] = {
    {{8, 8, 128, 128}, {8, 16, 128, 128}, 2, 1.15}, {{8, 8, 128, 128}, {8, 32, 128, 128}, 4, 1.15},
    {{8, 8, 128, 128}, {16, 16, 64, 64}, 1, 1.25},  {{8, 8, 128, 128}, {4, 4, 256, 256}, 1, 2.5},
    {{8, 8, 128, 128}, {8, 8, 128, 256}, 2, 1.25},  {{4, 4, 256, 256}, {4, 4, 256, 512}, 2, 1.25},
    {{8, 8, 128, 128}, {8, 8, 120, 120}, 1, 1.1},
};

static dr_recurrence shaped(const dr_rule *rule, const head_shape *shape) {
    dr_recurrence r = sizes_of(rule);
    r.key_heads = shape->heads;
    r.value_heads = shape->value_heads;
    r.key_size = shape->key_size;
    r.value_size = shape->value_size;
    return r;
}

/* A line about the second of two recurrences; times: what its time is divided by. */
static bool compare(const char *what, const dr_recurrence pair[2], double times, double bound, counts *c) {
    dr_bench_op_result results[2];
    if (dr_bench_op(&options, false, 2, pair, results) != DR_OK) {
        fprintf(stderr, "cuda_coverage: %s: %s\n", what, dr_last_error());
        return false;
    }
    const double forward = results[1].forward.ratio / times, both = results[1].forward_backward.ratio / times;
    const bool within = forward <= bound && both <= bound;
    printf("%-38s %7.1f %7.1f MB %8.1f %8.1f us  x%5.2f x%5.2f  at most %.2f %s\n", what, 1e-6 * results[1].forward.moved.bytes,
           1e-6 * results[1].forward_backward.moved.bytes, 1e6 * results[1].forward.seconds.median,
           1e6 * results[1].forward_backward.seconds.median, forward, both, bound, within ? "" : "BEYOND");
    fflush(stdout);
    c->measured++;
    c->beyond += !within;
    return true;
}

static bool compare_decoding(const char *what, const dr_recurrence pair[2], double times, double bound, counts *c) {
    dr_recurrence tokens[2] = {pair[0], pair[1]};
    dr_bench_decode_result results[2];
    for (int i = 0; i < 2; i++) tokens[i].layout.sequences = tokens[i].layout.rows = 256;
    if (dr_bench_decode(&options, 2, tokens, results) != DR_OK) {
        fprintf(stderr, "cuda_coverage: %s, decoding: %s\n", what, dr_last_error());
        return false;
    }
    const double ratio = results[1].token.ratio / times;
    printf("%-29s decoding %14.1f us  x%5.2f  at most %.2f %s\n", what, 1e6 * results[1].token.seconds.median, ratio, bound,
           ratio <= bound ? "" : "BEYOND");
    c->measured++;
    c->beyond += ratio > bound;
    return true;
}

static bool measure_shapes(const dr_rule *rule, counts *c) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const head_shape *o = &shapes[i].other;
        const dr_recurrence pair[2] = {shaped(rule, &shapes[i].base), shaped(rule, o)};
        char what[64];
        snprintf(what, sizeof what, "%s %d/%d %d x %d", rule->name, o->heads, o->value_heads, o->key_size, o->value_size);
        if (!compare(what, pair, shapes[i].times, shapes[i].bound, c)) return false;
        if (o->value_heads > o->heads && !compare_decoding(what, pair, shapes[i].times, shapes[i].bound, c)) return false;
    }
    return true;
}

/* Rules whose 16-bit vectors are computed in float32. */
static bool measure_widened(counts *c) {
    static const char *const names[] = {"pdn", "nlms", "plonghorn"};
    for (int i = 0; i < 3; i++) {
        const dr_recurrence pair[2] = {sizes_of(dr_rule_find("gdn")), sizes_of(dr_rule_find(names[i]))};
        if (!compare(names[i], pair, 1, 2.5, c)) return false;
    }
    return true;
}

/* ---- neighbours --------------------------------------------------------------------------------------------------------- */

/* Every rule that differs from the base in one option. */
static bool measure_neighbours(const dr_rule *base, counts *c) {
    together t = {0};
    for (int axis = 0; axis < axis_count(); axis++)
        for (int option = 0; option < axis_options(axis); option++) {
            trial drawn = trial_draw(1);
            drawn.rule = *base;
            set_option(&drawn, axis, option);
            const dr_rule *rule = &drawn.rule;
            if (dr_rule_equal(rule, base) || dr_rule_check(rule) != DR_OK) continue;
            if (rule->scan != DR_SCAN_NONE && rule->scan != DR_SCAN_DIAGONAL) continue;
            if (!add(base, rule, axis_name(axis), option_name(axis, option), &t, c)) return false;
        }
    return measure(base, &t, c);
}

/* The composition of docs/adding-a-rule.md beside kda. */
static bool measure_composed(counts *c) {
    const dr_rule *kda = dr_rule_find("kda");
    dr_rule rule = *kda;
    rule.rows = 2;
    rule.row[0] = (dr_row){.read = DR_READ_ERASE_KEY, .write = DR_WRITE_ERASE_KEY, .gain = DR_GAIN_GAMMA};
    rule.row[1] = (dr_row){.read = DR_READ_KEY_PLUS_QUERY, .write = DR_WRITE_KEY, .gain = DR_GAIN_BETA, .value = DR_VALUE_GAIN};
    together t = {0};
    return add(kda, &rule, "two rows:", "erase, key + query", &t, c) && measure(kda, &t, c);
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"gdn", "kda"};
    const int count = argc > 1 ? argc - 1 : 2;
    dr_backend *cuda;
    counts c = {0};
    if (dr_backend_open("cuda", NULL, &cuda) != DR_OK) {
        printf("cuda_coverage: skipped: %s\n", dr_last_error());
        return 77;
    }
    dr_backend_close(cuda);
    for (int i = 0; i < count; i++) {
        const char *name = argc > 1 ? argv[i + 1] : usual[i];
        const dr_rule *base = dr_rule_find(name);
        if (!base) {
            fprintf(stderr, "cuda_coverage: '%s' is no rule: deltarule rules lists them\n", name);
            return 2;
        }
        if (!measure_neighbours(base, &c) || !measure_shapes(base, &c)) return 1;
    }
    if (!measure_widened(&c) || !measure_composed(&c)) return 1;
    printf("%d measured, %d beyond their bounds\n", c.measured, c.beyond);
    return c.beyond > 0;
}
