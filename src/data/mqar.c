/* The generator of multi-query associative recall, as Zoology defines it.
 *
 * The first 2 K tokens are key 1, value 1, .. key K, value K. The rest falls into (L - 2 K)/2 slots of two tokens; a query is
 * the first token of a slot. Key i asks in the i-th slot drawn, and slots are drawn one after another without replacement, each
 * with a probability proportional to its weight among those left: early pairs tend to be asked early. */
#include "data/mqar.h"

#include "base/error.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

struct dr_mqar {
    dr_mqar_shape shape;
    int64_t slots;  /* of the example at hand */
    double *weight; /* [length/2] as defined; more than any example has slots */
    double *left;   /* [length/2] weights in this example: 0 once drawn */
    int32_t *value; /* [length/2] the value asked for in a slot, -1: none */
    uint8_t *taken; /* [vocabulary] ids drawn in this example */
    int32_t *drawn; /* [2 pairs] keys, then values, in order of draws */
};

static dr_status check(const dr_mqar_shape *shape) {
    long long length = shape->length, pairs = shape->pairs, vocabulary = shape->vocabulary;
    if (pairs < 1) return dr_fail(DR_ERROR_ARGUMENT, "pairs is %lld: it must be at least 1", pairs);
    if (length % 2) return dr_fail(DR_ERROR_ARGUMENT, "seq_len is %lld: recall needs an even length", length);
    if (length / 4 < pairs)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld pairs do not fit into seq_len %lld: recall needs 4 tokens a pair", pairs,
                       length);
    if (vocabulary <= length)
        return dr_fail(DR_ERROR_ARGUMENT, "vocabulary is %lld: recall needs more ids than seq_len, which is %lld", vocabulary,
                       length);
    if (!(shape->power > 0)) return dr_fail(DR_ERROR_ARGUMENT, "power_a is %g: it must be above 0", shape->power);
    return DR_OK;
}

dr_status dr_mqar_create(const dr_mqar_shape *shape, dr_mqar **mqar) {
    *mqar = NULL;
    DR_TRY(check(shape));
    dr_mqar layout = {.shape = *shape};
    const size_t most = (size_t)(shape->length / 2);
    void *memory = NULL;
    for (int pass = 0; pass < 2; pass++) { /* count, then hand out */
        dr_arena arena = {.block = memory};
        dr_arena_take(&arena, sizeof(dr_mqar));
        layout.weight = dr_arena_take(&arena, most * sizeof(double));
        layout.left = dr_arena_take(&arena, most * sizeof(double));
        layout.value = dr_arena_take(&arena, most * sizeof(int32_t));
        layout.taken = dr_arena_take(&arena, (size_t)shape->vocabulary);
        layout.drawn = dr_arena_take(&arena, (size_t)(2 * shape->pairs) * sizeof(int32_t));
        if (!memory) DR_TRY(dr_allocate(arena.used, "the recall task", &memory));
    }
    dr_mqar *made = memory;
    *made = layout;
    for (size_t g = 0; g < most; g++) made->weight[g] = pow((double)(g + 1), shape->power - 1);
    *mqar = made;
    return DR_OK;
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

/* A slot that was not drawn before, by the weights of those left. */
static int64_t draw_slot(dr_mqar *mqar, dr_random *random) {
    double total = 0, sum = 0;
    for (int64_t g = 0; g < mqar->slots; g++) total += mqar->left[g];
    double point = dr_random_uniform(random) * total;
    int64_t slot = -1;
    for (int64_t g = 0; g < mqar->slots && !(slot >= 0 && sum > point); g++) {
        if (mqar->left[g] > 0) slot = g; /* the last of them if rounding leaves the point at the total */
        sum += mqar->left[g];
    }
    mqar->left[slot] = 0;
    return slot;
}

void dr_mqar_draw(dr_mqar *mqar, dr_random *random, int64_t pairs, int32_t *ids, int64_t *positions, int32_t *labels) {
    const dr_mqar_shape *shape = &mqar->shape;
    int64_t vocabulary = shape->vocabulary, context = 2 * pairs;
    mqar->slots = shape->length / 2 - pairs;
    int32_t *key = mqar->drawn, *value = mqar->drawn + pairs;
    memset(mqar->taken, 0, (size_t)vocabulary);
    draw_distinct(mqar, random, 1, vocabulary / 2, pairs, key);
    draw_distinct(mqar, random, vocabulary / 2, vocabulary, pairs, value);
    memset(ids, 0, (size_t)shape->length * sizeof(int32_t));
    for (int64_t i = 0; i < pairs; i++) ids[2 * i] = key[i], ids[2 * i + 1] = value[i];

    memcpy(mqar->left, mqar->weight, (size_t)mqar->slots * sizeof(double));
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
    if (!shape->random_fillers) return;
    for (int64_t t = context; t < shape->length; t++)
        if (ids[t] == 0) ids[t] = (int32_t)dr_random_below(random, (uint64_t)vocabulary);
}
