/* Drawing trials: options first, by a random walk over the axes until the rule is right, then sizes within them. */
#include "trial.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- axes ----------------------------------------------------------------------------------------------------------- */

typedef enum { ENUMERATION, SWITCH, INTEGER, REAL } field_kind;

enum { MOST_VALUES = 4, FIRST_ROW = 1, SECOND_ROW = 2 };

typedef struct {
    const char *name;
    field_kind kind;
    size_t field; /* in a trial */
    int row;      /* 1, 2; 0: of no row */
    int options;  /* of numbers and of enumerations beside the rule's; 0: counted */
    double value[MOST_VALUES];
    const char *(*option_name)(int option); /* NULL: a number */
} axis;

#define NAMES(function, type)                                                                                                  \
    static const char *name_of_##function(int option) {                                                                        \
        return dr_##function##_name((type)option);                                                                             \
    }
NAMES(decay, dr_decay)
NAMES(read, dr_read)
NAMES(write, dr_write)
NAMES(gain, dr_gain)
NAMES(value, dr_value)
NAMES(scan, dr_scan)
NAMES(query, dr_query)
NAMES(cg_start, dr_cg_start)
NAMES(normalizer, dr_normalizer)
NAMES(squash_interval, dr_squash_interval)
NAMES(squash_function, dr_squash_function)

#define LIST(function, ...)                                                                                                    \
    static const char *name_of_##function(int option) {                                                                        \
        static const char *const names[] = {__VA_ARGS__};                                                                      \
        return names[option];                                                                                                  \
    }
LIST(packing, "one", "equal", "ragged", "empty")
LIST(heads, "one", "several", "grouped")
LIST(values, "mild", "strong")
LIST(chunking, "one", "short", "long")
LIST(splitting, "start", "inside", "end")
LIST(isa, "portable", "avx2", "avx512")

#define RULE(member) offsetof(trial, rule.member)
/* clang-format off */
#define ROW(n, i)                                                                                                              \
    {.name = "read " #n,      .kind = ENUMERATION, .field = RULE(row[i].read),      .row = n, .option_name = name_of_read},     \
    {.name = "undecayed " #n, .kind = SWITCH,      .field = RULE(row[i].undecayed), .row = n},                                  \
    {.name = "write " #n,     .kind = ENUMERATION, .field = RULE(row[i].write),     .row = n, .option_name = name_of_write},    \
    {.name = "gain " #n,      .kind = ENUMERATION, .field = RULE(row[i].gain),      .row = n, .option_name = name_of_gain},     \
    {.name = "value " #n,     .kind = ENUMERATION, .field = RULE(row[i].value),     .row = n, .option_name = name_of_value}

static const axis axes[] = {
    {.name = "decay",      .kind = ENUMERATION, .field = RULE(decay), .option_name = name_of_decay},
    {.name = "rows",       .kind = INTEGER,     .field = RULE(rows), .options = 2, .value = {1, 2}},
    ROW(1, 0),
    ROW(2, 1),
    {.name = "repeat",     .kind = INTEGER,     .field = RULE(repeat), .options = 3, .value = {1, 2, 3}},
    {.name = "scan",       .kind = ENUMERATION, .field = RULE(scan), .option_name = name_of_scan},
    {.name = "tied scan",  .kind = SWITCH,      .field = RULE(tied_scan)},
    {.name = "query",      .kind = ENUMERATION, .field = RULE(query), .option_name = name_of_query},
    {.name = "cg iters",   .kind = INTEGER,     .field = RULE(cg_iters), .options = 2, .value = {30, 3}},
    {.name = "cg start",   .kind = ENUMERATION, .field = RULE(cg_start), .option_name = name_of_cg_start},
    {.name = "cg eps",     .kind = REAL,        .field = RULE(cg_eps), .options = 2, .value = {0, 1e-5}},
    {.name = "normalizer", .kind = ENUMERATION, .field = RULE(normalizer), .option_name = name_of_normalizer},
    {.name = "squash x",   .kind = REAL,        .field = RULE(squash.x), .options = 3, .value = {1.5, 1, 2}},
    {.name = "squash eps", .kind = REAL,        .field = RULE(squash.eps), .options = 2, .value = {1e-6, 0.1}},
    {.name = "interval",   .kind = ENUMERATION, .field = RULE(squash.interval), .option_name = name_of_squash_interval},
    {.name = "squash",     .kind = ENUMERATION, .field = RULE(squash.function), .option_name = name_of_squash_function},
    {.name = "gain eps",   .kind = REAL,        .field = RULE(gain_eps), .options = 2, .value = {0.5, 0}},
    {.name = "packing",    .kind = ENUMERATION, .field = offsetof(trial, packing), .options = 4, .option_name = name_of_packing},
    {.name = "heads",      .kind = ENUMERATION, .field = offsetof(trial, heads), .options = 3, .option_name = name_of_heads},
    {.name = "numbers",    .kind = ENUMERATION, .field = offsetof(trial, values), .options = 2, .option_name = name_of_values},
    {.name = "chunking",   .kind = ENUMERATION, .field = offsetof(trial, chunking), .options = 3, .option_name = name_of_chunking},
    {.name = "split",      .kind = ENUMERATION, .field = offsetof(trial, splitting), .options = 3, .option_name = name_of_splitting},
    {.name = "threads",    .kind = INTEGER,     .field = offsetof(trial, threads), .options = 3, .value = {2, 3, 4}},
    {.name = "isa",        .kind = INTEGER,     .field = offsetof(trial, isa), .options = 3, .value = {0, 1, 2}, .option_name = name_of_isa},
};
/* clang-format on */

enum { AXES = sizeof axes / sizeof axes[0] };
static_assert(sizeof(dr_decay) == sizeof(int), "an enumeration is read and written as an int");

int axis_count(void) {
    return AXES;
}

const char *axis_name(int of) {
    return axes[of].name;
}

static void *field_of(trial *t, const axis *of) {
    return (char *)t + of->field;
}

static void write_field(trial *t, const axis *of, int option) {
    void *field = field_of(t, of);
    switch (of->kind) {
    case ENUMERATION:
        memcpy(field, &option, sizeof option);
        break;
    case SWITCH:
        *(bool *)field = option != 0;
        break;
    case INTEGER:
        *(int *)field = (int)of->value[option];
        break;
    case REAL:
        *(double *)field = of->value[option];
        break;
    }
}

int option_of(const trial *t, int number) {
    const axis *of = &axes[number];
    const void *field = (const char *)t + of->field;
    int option = 0;
    switch (of->kind) {
    case ENUMERATION:
        memcpy(&option, field, sizeof option);
        break;
    case SWITCH:
        option = *(const bool *)field;
        break;
    case INTEGER:
        while (option < of->options && (int)of->value[option] != *(const int *)field) option++;
        break;
    case REAL:
        while (option < of->options && of->value[option] != *(const double *)field) option++;
        break;
    }
    return option;
}

void set_option(trial *t, int number, int option) {
    write_field(t, &axes[number], option);
}

static trial plain_trial(void) {
    trial t = {.rule = dr_rule_blank(), .threads = 2};
    t.rule.rows = 1;
    t.rule.row[0].value = DR_VALUE_V;
    return t;
}

/* Options that dr_rule_check takes to be of the axis: it looks at ranges before anything else, and says so. */
static int count_enumerators(const axis *of) {
    for (int option = 1;; option++) {
        trial t = plain_trial();
        t.rule.rows = DR_MAX_ROWS;
        t.rule.row[1] = t.rule.row[0];
        write_field(&t, of, option);
        if (dr_rule_check(&t.rule) != DR_OK && strstr(dr_last_error(), "is not an option")) return option;
    }
}

int axis_options(int number) {
    static int counted[AXES]; /* counting is slow, and asked for often */
    const axis *of = &axes[number];
    if (of->options) return of->options;
    if (!counted[number]) counted[number] = of->kind == SWITCH ? 2 : count_enumerators(of);
    return counted[number];
}

const char *option_name(int number, int option) {
    static char text[32];
    const axis *of = &axes[number];
    if (of->option_name) return of->option_name(option);
    if (of->kind == SWITCH) return option ? "yes" : "no";
    snprintf(text, sizeof text, "%g", of->kind == ENUMERATION ? option : of->value[option]);
    return text;
}

static bool any_row(const dr_rule *rule, bool (*is)(const dr_row *row)) {
    return is(&rule->row[0]) || (rule->rows > 1 && is(&rule->row[1]));
}
static bool is_preconditioned(const dr_row *row) {
    return row->write == DR_WRITE_PRECONDITIONED;
}
static bool is_normalized(const dr_row *row) {
    return row->gain == DR_GAIN_NORMALIZED;
}

bool axis_matters(const trial *t, int number) {
    const axis *of = &axes[number];
    const size_t field = of->field;
    if (of->row == SECOND_ROW) return t->rule.rows == 2;
    if (field == RULE(cg_iters) || field == RULE(cg_start) || field == RULE(cg_eps))
        return t->rule.query == DR_QUERY_CONJUGATE_GRADIENT;
    if (field >= RULE(squash) && field < RULE(squash) + sizeof(dr_squash)) return any_row(&t->rule, is_preconditioned);
    if (field == RULE(gain_eps)) return any_row(&t->rule, is_normalized);
    return true;
}

/* ---- options -------------------------------------------------------------------------------------------------------- */

static void draw_option(dr_random *random, trial *t, int number) {
    set_option(t, number, (int)dr_random_below(random, (uint64_t)axis_options(number)));
}

/* A tied scan leaves no groups. */
static bool is_right(const trial *t) {
    return (!t->rule.tied_scan || t->heads != HEADS_GROUPED) && dr_rule_check(&t->rule) == DR_OK;
}

/* Options that do not matter become plain, so that two trials that are the same look the same. */
static void clear_idle_options(trial *t) {
    for (int i = 0; i < AXES; i++)
        if (!axis_matters(t, i)) set_option(t, i, 0);
}

/* Options that a trial must have. */
typedef struct {
    bool has[AXES];
    int option[AXES];
} wishes;

static bool has_all(const trial *t, const wishes *wanted) {
    for (int i = 0; i < AXES; i++)
        if (wanted->has[i] && (option_of(t, i) != wanted->option[i] || !axis_matters(t, i))) return false;
    return true;
}

enum { STEPS = 12, TRIES_OF_WISH = 8, TRIES_OF_CHANGE = 40, ROUNDS = 10, WISHES = 8 };

/* One axis after the other is drawn anew, or made plain, until the trial has what is wanted and is right. Only few: more would
 * wander off from a start in which much fits already. */
static bool walk(dr_random *random, const wishes *wanted, trial *t) {
    for (int i = 0; i < AXES; i++)
        if (wanted->has[i]) set_option(t, i, wanted->option[i]);
    for (int step = 0; step < STEPS; step++) {
        if (has_all(t, wanted) && is_right(t)) return true;
        const int number = (int)dr_random_below(random, AXES);
        if (wanted->has[number]) continue;
        if (dr_random_below(random, 3))
            draw_option(random, t, number);
        else
            set_option(t, number, 0);
    }
    return false;
}

/* The same, as often as it takes, but not more often than tries. t stays as it is where nothing was found. */
static bool search(dr_random *random, const wishes *wanted, int tries, trial *t) {
    for (int i = 0; i < tries; i++) {
        trial changed = *t;
        if (!walk(random, wanted, &changed)) continue;
        *t = changed;
        return true;
    }
    return false;
}

bool trial_change(dr_random *random, trial *t, int number, int option, int other, int other_option) {
    wishes wanted = {{0}, {0}};
    wanted.has[number] = wanted.has[other] = true;
    wanted.option[number] = option;
    wanted.option[other] = other_option;
    return search(random, &wanted, TRIES_OF_CHANGE, t);
}

/* Wishes for an option, which is granted where it goes with those before. */
static void wish(dr_random *random, wishes *wanted, int number, int option, trial *t) {
    if (wanted->has[number]) return;
    wanted->has[number] = true;
    wanted->option[number] = option;
    wanted->has[number] = search(random, wanted, TRIES_OF_WISH, t);
}

/* Whether dr_rule_check has a say in the axis. */
static bool is_of_rule(int number) {
    return axes[number].field < offsetof(trial, packing);
}

static int rule_options(void) {
    int all = 0;
    for (int i = 0; i < AXES; i++) all += is_of_rule(i) ? axis_options(i) : 0;
    return all;
}

/* The axis of the index-th of all options of rules, whose index within the axis is left. */
static int axis_of_option(int *index) {
    int number = 0;
    for (; !is_of_rule(number) || *index >= axis_options(number); number++)
        *index -= is_of_rule(number) ? axis_options(number) : 0;
    return number;
}

/* A named rule, or its first row behind another's, which need not be right; and anything beside. */
static trial draw_start(dr_random *random, int number) {
    const dr_rule *rule = dr_rule_at(number % dr_rule_count());
    trial t = plain_trial();
    t.rule = *rule;
    t.rule.name = t.rule.title = t.rule.source = NULL;
    if (dr_random_below(random, 2)) {
        t.rule.rows = 2;
        t.rule.repeat = 1;
        t.rule.row[1] = rule->row[0];
        t.rule.row[0] = dr_rule_at((int)dr_random_below(random, (uint64_t)dr_rule_count()))->row[0];
    }
    for (int i = 0; i < AXES; i++)
        if (!is_of_rule(i)) draw_option(random, &t, i);
    if (t.rule.tied_scan) t.heads = HEADS_ONE;
    return t;
}

uint64_t trial_cycle(void) {
    const uint64_t all = (uint64_t)rule_options();
    return all * (all / 2);
}

/* The seed's pair of options of rules, first among the wishes. Few pairs cannot be, and are given up. Over a cycle of seeds
 * every option meets each other one: it is paired with those at a distance of up to half of all. */
static trial draw_pair(dr_random *random, uint64_t seed, wishes *wanted) {
    const uint64_t all = (uint64_t)rule_options(),
                   turn = seed % trial_cycle() * 999983 % trial_cycle(); /* far pairs early too */
    int option = (int)(turn % all), other_option = (int)((turn % all + 1 + turn / all) % all);
    const int of = axis_of_option(&option), other = axis_of_option(&other_option);
    const int start = (int)dr_random_below(random, (uint64_t)dr_rule_count());
    for (int i = 0; i < ROUNDS * dr_rule_count() && of != other; i++) {
        trial t = draw_start(random, start + i);
        wanted->has[of] = wanted->has[other] = true;
        wanted->option[of] = option;
        wanted->option[other] = other_option;
        if (search(random, wanted, TRIES_OF_WISH, &t)) return t;
    }
    *wanted = (wishes){{0}, {0}};
    trial t;
    do t = draw_start(random, start);
    while (!is_right(&t));
    return t;
}

/* From a named rule, options are wished for one after the other: first a pair, so that all come up in turn, then others, each
 * as likely. */
static void draw_options(dr_random *random, uint64_t seed, trial *t) {
    wishes wanted = {{0}, {0}};
    *t = draw_pair(random, seed, &wanted);
    for (int i = 0; i < WISHES; i++) {
        int option = (int)dr_random_below(random, (uint64_t)rule_options());
        const int number = axis_of_option(&option);
        wish(random, &wanted, number, option, t);
    }
    clear_idle_options(t);
}

dr_rule draw_rule(dr_random *random) {
    trial t;
    draw_options(random, dr_random_word(random), &t);
    return t.rule;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------- */

/* Mostly below a vector, at times around one, two, three. */
static int64_t draw_size(dr_random *random) {
    return dr_random_below(random, 6) ? between(random, 1, 9) : between(random, 15, 35);
}

/* Mostly short; at times around the chunks that are planned, 16 to 32 tokens. */
static int64_t draw_length(dr_random *random) {
    return dr_random_below(random, 4) ? between(random, 1, 9) : between(random, 10, 40);
}

static void draw_sizes_within(dr_random *random, trial *t) {
    t->key_heads = t->heads == HEADS_ONE ? 1 : t->heads == HEADS_SEVERAL ? between(random, 2, 3) : between(random, 1, 2);
    t->group = t->heads == HEADS_GROUPED ? between(random, 2, 3) : 1;
    t->key_size = draw_size(random);
    if (t->key_size < least_key_size(&t->rule)) t->key_size = least_key_size(&t->rule);
    t->value_size = draw_size(random);
    t->scale = dr_random_below(random, 2) ? uniform(random, 0.2, 2) : 0;
    t->sequences = t->packing == PACKING_ONE ? 1 : between(random, 2, MOST_SEQUENCES);
    const int64_t equal = draw_length(random);
    for (int64_t i = 0; i < t->sequences; i++) t->length[i] = t->packing == PACKING_EQUAL ? equal : draw_length(random);
    if (t->packing == PACKING_EMPTY) t->length[dr_random_below(random, (uint64_t)t->sequences)] = 0;
    int64_t longest = 0;
    for (int64_t i = 0; i < t->sequences; i++) {
        if (t->length[i] > longest) longest = t->length[i];
        t->cut[i] = t->splitting == SPLIT_START ? 0
                    : t->splitting == SPLIT_END ? t->length[i]
                                                : between(random, 0, t->length[i]);
    }
    t->chunk = t->chunking == CHUNK_ONE     ? 1
               : t->chunking == CHUNK_SHORT ? between(random, 2, 2 + longest / 2)
                                            : between(random, longest + 1, 64);
}

trial trial_draw(uint64_t seed) {
    trial t;
    dr_random random = dr_random_start(seed, 0);
    draw_options(&random, seed, &t);
    draw_sizes_within(&random, &t);
    t.seed = seed;
    return t;
}

problem *trial_problem(const trial *t) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1] = {0};
    for (int64_t i = 0; i < t->sequences; i++) cu_seqlens[i + 1] = cu_seqlens[i] + t->length[i];
    const dr_recurrence sizes = {
        .rule = &t->rule,
        .layout = {.sequences = t->sequences, .rows = cu_seqlens[t->sequences], .cu_seqlens = cu_seqlens},
        .key_heads = t->key_heads,
        .value_heads = t->key_heads * t->group,
        .key_size = t->key_size,
        .value_size = t->value_size,
        .scale = t->scale,
    };
    dr_random random = dr_random_start(t->seed, 1);
    return problem_create(&t->rule, &sizes, t->values == VALUES_STRONG, &random);
}

void trial_print(const trial *t, FILE *to) {
    char equation[1024];
    dr_rule_equation(&t->rule, equation, sizeof equation);
    fprintf(to, "    %s\n   ", equation);
    for (int i = 0; i < AXES; i++) {
        int option = option_of(t, i);
        if (axis_matters(t, i)) fprintf(to, " %s: %s%s", axis_name(i), option_name(i, option), i < AXES - 1 ? ";" : "");
    }
    fprintf(to, "\n    H %lld, HV %lld, K %lld, V %lld, scale %g, chunk %lld; tokens", (long long)t->key_heads,
            (long long)(t->key_heads * t->group), (long long)t->key_size, (long long)t->value_size, t->scale,
            (long long)t->chunk);
    for (int64_t i = 0; i < t->sequences; i++)
        fprintf(to, " %lld (split after %lld)", (long long)t->length[i], (long long)t->cut[i]);
    fprintf(to, "\n");
}
