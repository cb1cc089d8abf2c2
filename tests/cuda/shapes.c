/* Fixed shapes, float32 against the reference and 16 bits against the plain loop: sequences of 1, 63, 64 and 65 tokens in one
 * call, head sizes that the kernels have and some between them; sequences that are cut into parts, whose first pass and joins
 * have kernels of their own; and calls without states, for which many kernels have instances of their own; and many heads. */
#include "rounding.h"

#include <stdlib.h>
#include <string.h>

static const char *const rules[] = {"linear_attention", "mamba2", "gla",    "delta_net",     "gdn",  "kda",  "comba", "eda",
                                    "delta_product",    "rwkv7",  "qdelta", "pgdn_unstable", "pkda", "pgla", "gdn2",  "pgdn"};
enum { RULES = sizeof rules / sizeof *rules, SIZES = 10 };
/* Of these rules' sequences the longest are cut: few heads, and three times the least part. With the decays that problems have
 * some chunks of a part do for the first passes; of a head with weak ones none do. */
static const char *const cut_rules[] = {"linear_attention", "mamba2", "gla", "gdn", "kda", "eda", "qdelta"};
enum { CUT_RULES = sizeof cut_rules / sizeof *cut_rules };
/* Value heads beside that so that a thread block takes two groups of columns; narrow keys, and keys as wide as they come. */
static const struct {
    const char *rule;
    int64_t size[3]; /* K, V, value heads of the key head */
} other_cuts[] = {{"mamba2", {64, 128, 8}}, {"mamba2", {128, 128, 8}}, {"gla", {64, 128, 2}}, {"gdn", {256, 64, 2}}};
enum { OTHER_CUTS = sizeof other_cuts / sizeof *other_cuts };
/* With a decay of each channel: chunks of all forms of the kernels for these, mild and not. */
static const char *const channel_rules[] = {"gla", "kda", "gdn2", "pkda", "eda"};
enum { CHANNEL_RULES = sizeof channel_rules / sizeof *channel_rules };
/* Of these one kernel makes all of a forward where heads are many; of the others a block then takes two groups of columns. */
static const char *const many_rules[] = {"delta_net", "gdn", "qdelta", "pgdn",         "pgdn_unstable",
                                         "mamba2",    "gla", "kda",    "delta_product"};
enum { MANY_RULES = sizeof many_rules / sizeof *many_rules };
static const char *const narrow_rules[] = {"delta_net", "gdn"}; /* of these, too, where heads are narrow */
static const int64_t short_seqlens[MOST_SEQUENCES + 1] = {0, 1, 64, 128, 193};
static const int64_t equal_seqlens[MOST_SEQUENCES + 1] = {0, 129, 258, 387, 516}; /* given as equally long */
static const int64_t cut_seqlens[MOST_SEQUENCES + 1] = {0, 3100, 3101, 3165, 6400};
static const int64_t sizes[SIZES][2] = {{64, 64},  {128, 128}, {256, 256}, {1, 1},    {100, 36},
                                        {33, 200}, {256, 512}, {65, 300},  {128, 64}, {64, 128}};

/* Log decays of the first head, so that 1e-3 and more of what it has goes through a part. */
static void weaken(problem *p) {
    double *decay = p->input[DR_INPUT_LOG_DECAY];
    const int64_t heads = p->recurrence.value_heads, tokens = p->recurrence.layout.rows;
    const int64_t channels = decay ? p->input_count[DR_INPUT_LOG_DECAY] / (tokens * heads) : 0;
    for (int64_t i = 0; i < tokens * heads * channels; i++)
        if (i / channels % heads == 0) decay[i] *= 0.05;
}

/* One channel of the log decays of every other 128 tokens, so that chunks there are not mild and others are. */
static void steepen(problem *p) {
    double *decay = p->input[DR_INPUT_LOG_DECAY];
    const int64_t tokens = p->recurrence.layout.rows, width = p->input_count[DR_INPUT_LOG_DECAY] / tokens;
    for (int64_t token = 0; token < tokens; token++)
        if (token / 128 % 2 == 0) decay[token * width + 5] = -5;
}

/* What is done to the log decays that a problem has. */
typedef enum { AS_DRAWN, WEAK, STEEP } decays;

/* bare: without states, as layers call it: kernels have instances for that. group: value heads of the key head. many: 32
 * heads of every sequence, or 64 narrow ones, of which a multiprocessor takes two. */
typedef struct {
    dr_rule rule;
    const int64_t *cu_seqlens;
    int64_t K, V, group;
    decays how;
    bool bare, many;
} shape_case;

enum { MOST_CASES = 512 };
typedef struct {
    shape_case at[MOST_CASES];
    uint64_t count;
} case_list;

static void add(case_list *list, const shape_case *c) {
    if (list->count < MOST_CASES && c->K >= least_key_size(&c->rule)) list->at[list->count++] = *c;
}

static problem *problem_for(const shape_case *c, uint64_t seed) {
    /* by one kernel only where each head has a key */
    const bool alone = dr_rule_uses(&c->rule, DR_INPUT_SCAN_CENTRE) || dr_rule_uses(&c->rule, DR_INPUT_ERASE_GATE);
    const int64_t many = c->K <= 64 && c->V <= 64 ? 64 : 32, heads = c->many ? alone ? many : many / 2 : 1;
    const dr_recurrence shape = {
        .rule = &c->rule,
        .layout = {.sequences = MOST_SEQUENCES, .rows = c->cu_seqlens[MOST_SEQUENCES], .cu_seqlens = c->cu_seqlens},
        .key_heads = heads,
        .value_heads = c->many             ? many
                       : c->rule.tied_scan ? 1
                                           : c->group,
        .key_size = c->K,
        .value_size = c->V,
    };
    dr_random random = dr_random_start(seed, 7);
    problem *p = problem_create(&c->rule, &shape, false, &random);
    if (c->bare) problem_forget_states(p);
    if (c->how == WEAK) weaken(p);
    if (c->how == STEEP) steepen(p);
    if (c->cu_seqlens == equal_seqlens) p->recurrence.layout.cu_seqlens = NULL;
    return p;
}

static bool floats_are_right(gpu *g, const problem *p, fault *what) {
    result want = {0};
    const bool holds = problem_run(g->reference, p, DR_PATH_BEST, 0, true, &want, what) &&
                       floats_are_near(g, p, DR_PATH_CHUNKWISE, &want, what) &&
                       floats_are_near(g, p, DR_PATH_RECURRENT, &want, what);
    result_free(&want);
    return holds;
}

/* A forward has the same bits whether a backward follows or not, and those of two kernels, which packed sequences take; but for
 * key + lambda query, a sum that one kernel rounds and two add in float. All are held to the same bound. */
static bool many_are_right(gpu *g, problem *p, dr_random *random, fault *what) {
    plain_bound bound;
    result alone = {0}, followed = {0}, packed = {0};
    bool holds = plain_bound_create(g, 1, p, random, &bound, what) && within_bound(g, 1, p, DR_PATH_CHUNKWISE, &bound, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &alone, what) &&
                 problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &followed, what);
    p->recurrence.layout.cu_seqlens = equal_seqlens;
    holds = holds && problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &packed, what) &&
            within_bound(g, 1, p, DR_PATH_CHUNKWISE, &bound, what);
    result_free(&bound.want);
    const bool sums = dr_rule_uses(&p->rule, DR_INPUT_LAMBDA);
    const int64_t count[] = {p->o_count, p->state_count[DR_STATE_S], p->state_count[DR_STATE_A]};
    const double *const first[] = {alone.o, alone.final[DR_STATE_S], alone.final[DR_STATE_A]};
    const double *const second[] = {followed.o, followed.final[DR_STATE_S], followed.final[DR_STATE_A]};
    const double *const two[] = {packed.o, packed.final[DR_STATE_S], packed.final[DR_STATE_A]};
    for (int i = 0; i < 3 && holds; i++) {
        if (!first[i]) continue;
        const size_t size = (size_t)count[i] * sizeof(double);
        g->checks += 2;
        if (memcmp(first[i], second[i], size))
            holds = fault_is(what, "%s of many heads: a forward that a backward follows has other bits", p->rule.name);
        else if (!sums && memcmp(first[i], two[i], size))
            holds = fault_is(what, "%s of many heads: a forward has other bits than of packed sequences", p->rule.name);
    }
    result_free(&alone), result_free(&followed), result_free(&packed);
    return holds;
}

static bool case_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    const shape_case *c = &((const case_list *)context)->at[n];
    problem *p = problem_for(c, n);
    dr_random random = dr_random_start(n, 8);
    const bool holds = c->many
                           ? many_are_right(own, p, &random, what)
                           : floats_are_right(own, p, what) && rounds_as_plain(own, 1, p, DR_PATH_CHUNKWISE, &random, what) &&
                                 rounds_as_plain(own, 2, p, DR_PATH_CHUNKWISE, &random, what);
    problem_free(p);
    return holds;
}

static bool cases_are_right(gpu *g, case_list *list, fault *what) {
    const bool holds = (list->count < MOST_CASES || fault_is(what, "there are more cases than room for them")) &&
                       gpu_share(g, 0, list->count - 1, case_is_right, list, what);
    free(list);
    return holds;
}

/* The repeat of delta_product is a layer's choice: three here, as tokens then do not begin where tiles of 16 rows do; and also
 * with its first read before the decay, which a token's first row alone has. What takes longest comes first. */
bool suite_shapes(gpu *g, fault *what) {
    case_list *list = calloc(1, sizeof *list);
    for (int r = 0; list && r < CUT_RULES; r++)
        for (decays how = AS_DRAWN; how <= WEAK; how++)
            add(list, &(shape_case){*dr_rule_find(cut_rules[r]), cut_seqlens, 128, 128, 2, how, false, false});
    for (int r = 0; list && r < OTHER_CUTS; r++) {
        const int64_t *size = other_cuts[r].size;
        add(list,
            &(shape_case){*dr_rule_find(other_cuts[r].rule), cut_seqlens, size[0], size[1], size[2], AS_DRAWN, false, false});
    }
    for (int r = 0; list && r < RULES; r++)
        for (int s = 0; s < SIZES; s++) {
            shape_case c = {*dr_rule_find(rules[r]), short_seqlens, sizes[s][0], sizes[s][1], 2, AS_DRAWN, false, false};
            const bool repeats = c.rule.repeat > 1;
            if (repeats) c.rule.repeat = 3;
            add(list, &c);
            c.rule.row[0].undecayed = true;
            if (repeats) add(list, &c);
        }
    for (int r = 0; list && r < CHANNEL_RULES; r++)
        for (int bare = 0; bare < 2; bare++)
            add(list,
                &(shape_case){*dr_rule_find(channel_rules[r]), equal_seqlens, 128, 128, bare ? 1 : 2, STEEP, bare, false});
    shape_case late = {*dr_rule_find("eda"), short_seqlens, 128, 128, 1, AS_DRAWN, true, false};
    late.rule.row[0].undecayed = true;
    if (list) add(list, &late);
    shape_case sum = {*dr_rule_find("kda"), short_seqlens, 128, 128, 1, AS_DRAWN, false, false};
    sum.rule.row[0].read = DR_READ_KEY_PLUS_QUERY; /* a sum that is made before the chunks (engine/made.h) */
    if (list) add(list, &sum);
    return list ? cases_are_right(g, list, what) : fault_is(what, "no memory for a list of cases");
}

/* Neighbours of gdn whose queries, write or read keys the kernel for a whole forward makes of its tiles. */
static void add_made(case_list *list) {
    dr_rule rule[3];
    for (int i = 0; i < 3; i++) rule[i] = *dr_rule_find("gdn");
    rule[0].query = DR_QUERY_CORRECTED;
    rule[1].row[0].write = DR_WRITE_RATE_READ;
    rule[2].row[0].read = DR_READ_GATED_KEY;
    for (int i = 0; i < 3; i++) {
        add(list, &(shape_case){rule[i], equal_seqlens, 128, 128, 1, AS_DRAWN, false, true});
        add(list, &(shape_case){rule[i], equal_seqlens, 120, 72, 1, AS_DRAWN, true, true});
    }
}

/* Packed sequences and equal ones: some instances take only these. What takes longest comes first. */
bool suite_layers(gpu *g, fault *what) {
    case_list *list = calloc(1, sizeof *list);
    if (list) add_made(list);
    for (int r = 0; list && r < MANY_RULES; r++) {
        const dr_rule *rule = dr_rule_find(many_rules[r]);
        add(list, &(shape_case){*rule, equal_seqlens, 128, 128, 1, AS_DRAWN, true, true});
        add(list, &(shape_case){*rule, equal_seqlens, 128, 128, 1, AS_DRAWN, false, true});
        add(list, &(shape_case){*rule, equal_seqlens, 64, 128, 1, AS_DRAWN, r % 2, true});
        add(list, &(shape_case){*rule, equal_seqlens, 100, 72, 1, AS_DRAWN, false, true});
        add(list, &(shape_case){*rule, equal_seqlens, 120, 104, 1, AS_DRAWN, r % 2, true});
        add(list, &(shape_case){*rule, equal_seqlens, 128, 100, 1, AS_DRAWN, false, true});
    }
    for (int r = 0; list && r < 2; r++) {
        add(list, &(shape_case){*dr_rule_find(narrow_rules[r]), equal_seqlens, 64, 64, 1, AS_DRAWN, r % 2, true});
        add(list, &(shape_case){*dr_rule_find(narrow_rules[r]), equal_seqlens, 40, 56, 1, AS_DRAWN, false, true});
    }
    for (int64_t K = 64; list && K <= 128; K += 64) { /* rows that read before the decay */
        shape_case late = {*dr_rule_find("gdn"), equal_seqlens, K, K, 1, AS_DRAWN, false, true};
        late.rule.row[0].undecayed = true;
        add(list, &late);
        late.rule.decay = DR_DECAY_CHANNEL;
        late.many = false;
        add(list, &late);
    }
    for (int r = 0; list && r < RULES; r++) {
        const dr_rule *rule = dr_rule_find(rules[r]);
        add(list, &(shape_case){*rule, short_seqlens, 128, 128, 1, AS_DRAWN, true, false});
        for (int s = 0; s < 3; s++)
            for (int64_t group = 1; group <= 4; group *= 2)
                add(list, &(shape_case){*rule, equal_seqlens, sizes[s][0], sizes[s][1], group, AS_DRAWN, true, false});
    }
    return list ? cases_are_right(g, list, what) : fault_is(what, "no memory for a list of cases");
}
