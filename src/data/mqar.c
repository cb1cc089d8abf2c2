/* The generator of multi-query associative recall, as Zoology defines it.
 *
 * The first 2 K tokens are key 1, value 1, .. key K, value K; the next 2 U are U of these keys, all different, each with a new
 * value that no key has had. The rest falls into (L - 2 K - 2 U)/2 slots of two tokens; a query is the first token of a slot.
 * Key i asks in the i-th slot drawn, and slots are drawn one after another without replacement, each with a probability
 * proportional to its weight among those left: early pairs tend to be asked early. */
#include "data/mqar.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "data/examples.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct dr_mqar {
    dr_generator base;
    dr_mqar_shape shape;
    int64_t slots;  /* of the example at hand */
    double *weight; /* [length/2] as defined; more than any example has slots */
    double
        *left; /* [2 leaves] of the example at hand: node i is the sum of 2i and 2i + 1, slot g is leaves + g, 0 once drawn */
    int64_t leaves; /* the power of two from slots on */
    int32_t *value; /* [length/2] the value asked for in a slot, -1: none */
    uint8_t *taken; /* [vocabulary] ids drawn in this example */
    int32_t *drawn; /* [3 pairs] keys, then values, in order of draws; then which keys are updated */
};

dr_status dr_mqar_check(const dr_mqar_shape *shape) {
    long long length = shape->length, pairs = shape->pairs, vocabulary = shape->vocabulary, updates = shape->updates;
    if (pairs < 1) return dr_fail(DR_ERROR_ARGUMENT, "pairs is %lld: it must be at least 1", pairs);
    if (length % 2) return dr_fail(DR_ERROR_ARGUMENT, "seq_len is %lld: recall needs an even length", length);
    if (length / 4 < pairs)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld pairs do not fit into seq_len %lld: recall needs 4 tokens a pair", pairs,
                       length);
    if (updates < 0 || updates > pairs)
        return dr_fail(DR_ERROR_ARGUMENT, "updates is %lld: of %lld pairs that many cannot get a second value", updates, pairs);
    if (length / 2 < 2 * pairs + updates)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "%lld pairs with %lld updates do not fit into seq_len %lld: recall needs 4 tokens a pair and 2 an update", pairs,
            updates, length);
    if (vocabulary <= length)
        return dr_fail(DR_ERROR_ARGUMENT, "vocabulary is %lld: recall needs more ids than seq_len, which is %lld", vocabulary,
                       length);
    if (!(shape->power > 0)) return dr_fail(DR_ERROR_ARGUMENT, "power_a is %g: it must be above 0", shape->power);
    return DR_OK;
}

static int64_t leaves_for(int64_t slots) {
    int64_t leaves = 1;
    while (leaves < slots) leaves *= 2;
    return leaves;
}

/* shape: length and pairs are the most of examples, which need not go together. */
static dr_status create_largest(const dr_mqar_shape *shape, dr_mqar **mqar) {
    dr_mqar layout = {.shape = *shape};
    const size_t most = (size_t)(shape->length / 2), nodes = 2 * (size_t)leaves_for(shape->length / 2);
    void *memory = NULL;
    for (int pass = 0; pass < 2; pass++) { /* count, then hand out */
        dr_arena arena = {.block = memory};
        dr_arena_take(&arena, sizeof(dr_mqar));
        layout.weight = dr_arena_take(&arena, most * sizeof(double));
        layout.left = dr_arena_take(&arena, nodes * sizeof(double));
        layout.value = dr_arena_take(&arena, most * sizeof(int32_t));
        layout.taken = dr_arena_take(&arena, (size_t)shape->vocabulary);
        layout.drawn = dr_arena_take(&arena, (size_t)(3 * shape->pairs) * sizeof(int32_t));
        if (!memory) DR_TRY(dr_allocate(arena.used, "the recall task", &memory));
    }
    dr_mqar *made = memory;
    *made = layout;
    made->base = (dr_generator){.kind = &dr_generator_mqar, .vocabulary = shape->vocabulary};
    for (size_t g = 0; g < most; g++) made->weight[g] = pow((double)(g + 1), shape->power - 1);
    *mqar = made;
    return DR_OK;
}

dr_status dr_mqar_create(const dr_mqar_shape *shape, dr_mqar **mqar) {
    *mqar = NULL;
    DR_TRY(dr_mqar_check(shape));
    return create_largest(shape, mqar);
}

void dr_mqar_destroy(dr_mqar *mqar) {
    dr_release(mqar);
}

/* count distinct ids, uniform in [first, end) */
static void draw_distinct(dr_mqar *mqar, dr_random *random, int64_t first, int64_t end, int64_t count, int32_t *ids) {
    for (int64_t i = 0; i < count;) {
        int64_t id = first + (int64_t)dr_random_below(random, (uint64_t)(end - first));
        if (mqar->taken[id]) continue;
        mqar->taken[id] = 1;
        ids[i++] = (int32_t)id;
    }
}

static void weigh_slots(dr_mqar *mqar) {
    double *left = mqar->left;
    const int64_t leaves = leaves_for(mqar->slots);
    mqar->leaves = leaves;
    for (int64_t g = 0; g < leaves; g++) left[leaves + g] = g < mqar->slots ? mqar->weight[g] : 0;
    for (int64_t i = leaves - 1; i > 0; i--) left[i] = left[2 * i] + left[2 * i + 1];
}

/* A slot that was not drawn before, by the weights of those left: down from the root to the half that the point falls into. */
static int64_t draw_slot(dr_mqar *mqar, dr_random *random) {
    double *left = mqar->left;
    double point = dr_random_uniform(random) * left[1];
    int64_t i = 1;
    while (i < mqar->leaves) {
        i *= 2;
        const bool second = point >= left[i] && left[i + 1] > 0; /* rounding may leave the point behind all that is left */
        point -= second ? left[i] : 0;
        i += second;
    }
    const int64_t slot = i - mqar->leaves;
    left[i] = 0;
    while (i /= 2) left[i] = left[2 * i] + left[2 * i + 1];
    return slot;
}

/* Shows `updates` of the keys again, each with a value that was not shown yet. value [pairs]: the last of each. */
static void draw_updates(dr_mqar *mqar, dr_random *random, int64_t pairs, int32_t *value, int32_t *ids) {
    const int32_t *key = mqar->drawn;
    int32_t *order = mqar->drawn + 2 * pairs;
    for (int64_t i = 0; i < pairs; i++) order[i] = (int32_t)i;
    for (int64_t u = 0; u < mqar->shape.updates; u++) {
        const int64_t other = u + (int64_t)dr_random_below(random, (uint64_t)(pairs - u));
        const int32_t pair = order[other];
        order[other] = order[u];
        draw_distinct(mqar, random, mqar->shape.vocabulary / 2, mqar->shape.vocabulary, 1, &value[pair]);
        ids[2 * u] = key[pair], ids[2 * u + 1] = value[pair];
    }
}

/* Each key asks in a slot of its own; positions and labels in the order of the slots. */
static void draw_queries(dr_mqar *mqar, dr_random *random, int64_t context, int64_t pairs, int32_t *ids, int64_t *positions,
                         int32_t *labels) {
    const int32_t *key = mqar->drawn, *value = mqar->drawn + pairs;
    weigh_slots(mqar);
    for (int64_t g = 0; g < mqar->slots; g++) mqar->value[g] = -1;
    for (int64_t i = 0; i < pairs; i++) {
        int64_t slot = draw_slot(mqar, random);
        mqar->value[slot] = value[i];
        ids[context + 2 * slot] = key[i];
    }
    for (int64_t g = 0, query = 0; g < mqar->slots; g++) {
        if (mqar->value[g] < 0) continue;
        positions[query] = context + 2 * g;
        labels[query++] = mqar->value[g];
    }
}

void dr_mqar_draw(dr_mqar *mqar, dr_random *random, int64_t length, int64_t pairs, int32_t *ids, int64_t *positions,
                  int32_t *labels) {
    const dr_mqar_shape *shape = &mqar->shape;
    const int64_t vocabulary = shape->vocabulary, context = 2 * (pairs + shape->updates);
    int32_t *key = mqar->drawn, *value = mqar->drawn + pairs;
    mqar->slots = (length - context) / 2;
    memset(mqar->taken, 0, (size_t)vocabulary);
    draw_distinct(mqar, random, 1, vocabulary / 2, pairs, key);
    draw_distinct(mqar, random, vocabulary / 2, vocabulary, pairs, value);
    memset(ids, 0, (size_t)length * sizeof(int32_t));
    for (int64_t i = 0; i < pairs; i++) ids[2 * i] = key[i], ids[2 * i + 1] = value[i];
    draw_updates(mqar, random, pairs, value, ids + 2 * pairs);
    draw_queries(mqar, random, context, pairs, ids, positions, labels);
    if (!shape->random_fillers) return;
    for (int64_t t = context; t < length; t++)
        if (ids[t] == 0) ids[t] = (int32_t)dr_random_below(random, (uint64_t)vocabulary);
}

/* ---- as a generator ---- */

static dr_status create(const dr_generator_options *options, dr_example_size largest, dr_generator **generator) {
    const dr_mqar_shape shape = {.vocabulary = options->vocabulary,
                                 .length = largest.length,
                                 .pairs = largest.pairs,
                                 .power = options->power,
                                 .random_fillers = options->random_fillers,
                                 .updates = options->updates};
    dr_mqar *mqar;
    DR_TRY(create_largest(&shape, &mqar));
    *generator = &mqar->base;
    return DR_OK;
}

static dr_status check(const dr_generator *generator, dr_example_size size) {
    dr_mqar_shape shape = ((const dr_mqar *)generator)->shape;
    shape.length = size.length, shape.pairs = size.pairs;
    return dr_mqar_check(&shape);
}

static int64_t tokens(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.length;
}

static int64_t targets(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.pairs;
}

static void draw(dr_generator *generator, dr_random *random, dr_example_size size, dr_example *example) {
    dr_mqar_draw((dr_mqar *)generator, random, size.length, size.pairs, example->ids, example->positions, example->labels);
}

static void describe(const dr_generator *generator, char *text, size_t size) {
    const dr_mqar_shape *shape = &((const dr_mqar *)generator)->shape;
    char updates[48] = "";
    if (shape->updates > 0) snprintf(updates, sizeof updates, " and %lld updates", (long long)shape->updates);
    dr_format(text, size, "associative recall, vocabulary %lld, power %g, %s fillers%s", (long long)shape->vocabulary,
              shape->power, shape->random_fillers ? "random" : "zero", updates);
}

const dr_generator_kind dr_generator_mqar = {.name = "mqar",
                                             .lengths = "",
                                             .held_out_lengths = "",
                                             .shortest = 4,
                                             .step = 2,
                                             .has_pairs = true,
                                             .create = create,
                                             .check = check,
                                             .tokens = tokens,
                                             .targets = targets,
                                             .draw = draw,
                                             .describe = describe,
                                             .destroy = dr_generator_release};
