/* Word problems of finite groups (Merrill et al., "The Illusion of State in State-Space Models", 2024; Siems et al.,
 * "DeltaProduct", 2025): a beginning token, then elements of the group, and at each of them the label is the product so far,
 * acc = acc x. Elements are numbered from the identity, which is 0; the beginning token is the first id behind them. The
 * beginning has no label.
 *
 * S_n and A_n are the permutations and the even permutations of n points in lexicographic order, (p q)(i) = p(q(i)); Z_n adds
 * modulo n. In a product, such as A4xZ5, (a, b) has the number a |second| + b.
 *
 * Where an element takes several tokens, the further ones repeat it or have an id of their own, the second behind the elements,
 * and the label stands at the last of them. */
#include "data/group.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum { MOST_POINTS = 6 };

typedef struct {
    dr_generator base;
    dr_group group;
    char name[DR_GROUP_NAME];
    int64_t moves;
    int64_t inputs; /* elements that move as few points as is wanted */
    int32_t *input; /* [order] these */
    int64_t tokens; /* of an element */
    bool repeats;
} words;

/* ---- permutations ---- */

static int64_t factorial(int64_t n) {
    int64_t product = 1;
    for (int64_t i = 2; i <= n; i++) product *= i;
    return product;
}

/* The permutation of this place in lexicographic order. */
static void unrank(int64_t rank, int points, int p[MOST_POINTS]) {
    int left[MOST_POINTS];
    for (int i = 0; i < points; i++) left[i] = i;
    for (int i = 0; i < points; i++) {
        const int64_t block = factorial(points - 1 - i);
        const int place = (int)(rank / block);
        rank %= block;
        p[i] = left[place];
        for (int j = place; j + 1 < points - i; j++) left[j] = left[j + 1];
    }
}

static int64_t rank_of(const int p[MOST_POINTS], int points) {
    int64_t rank = 0;
    for (int i = 0; i < points; i++) {
        int smaller = 0;
        for (int j = i + 1; j < points; j++) smaller += p[j] < p[i];
        rank += smaller * factorial(points - 1 - i);
    }
    return rank;
}

static bool is_even(const int p[MOST_POINTS], int points) {
    int inversions = 0;
    for (int i = 0; i < points; i++)
        for (int j = i + 1; j < points; j++) inversions += p[j] < p[i];
    return inversions % 2 == 0;
}

/* ---- one factor ---- */

typedef struct {
    char kind; /* 'S', 'A', 'Z' */
    int64_t n; /* points, or the modulus */
    int64_t order;
    int64_t rank[720];   /* of permutations: of each element among all; */
    int64_t number[720]; /* and back; -1: it is no element */
} factor;

static void fill_permutations(factor *one) {
    const int points = (int)one->n;
    one->order = 0;
    for (int64_t rank = 0; rank < factorial(points); rank++) {
        int p[MOST_POINTS];
        unrank(rank, points, p);
        one->number[rank] = -1;
        if (one->kind == 'A' && !is_even(p, points)) continue;
        one->rank[one->order] = rank;
        one->number[rank] = one->order++;
    }
}

static int64_t multiply(const factor *one, int64_t x, int64_t y) {
    if (one->kind == 'Z') return (x + y) % one->n;
    int p[MOST_POINTS], q[MOST_POINTS], product[MOST_POINTS];
    const int points = (int)one->n;
    unrank(one->rank[x], points, p);
    unrank(one->rank[y], points, q);
    for (int i = 0; i < points; i++) product[i] = p[q[i]];
    return one->number[rank_of(product, points)];
}

/* How many points an element does not leave where they are; of Z_n as shifts of n points. */
static int64_t moved_by(const factor *one, int64_t x) {
    if (one->kind == 'Z') return x == 0 ? 0 : one->n;
    int p[MOST_POINTS];
    int64_t moved = 0;
    unrank(one->rank[x], (int)one->n, p);
    for (int i = 0; i < (int)one->n; i++) moved += p[i] != i;
    return moved;
}

static bool read_factor(const char **text, factor *one) {
    int64_t n = 0;
    const char *at = *text;
    one->kind = *at ? *at++ : '\0';
    const char *digits = at;
    for (; *at >= '0' && *at <= '9' && n <= DR_MOST_GROUP; at++) n = 10 * n + (*at - '0');
    *text = at;
    one->n = n;
    if (at == digits || n < 1) return false;
    if (one->kind == 'Z') {
        one->order = n;
        return n <= DR_MOST_GROUP;
    }
    if ((one->kind != 'S' && one->kind != 'A') || n > MOST_POINTS) return false;
    fill_permutations(one);
    return true;
}

/* ---- the group ---- */

/* The product of a group and one more factor, in new memory. */
static dr_status extend(dr_group *group, const factor *one) {
    const int64_t before = group->order, order = before * one->order;
    void *memory;
    DR_TRY(dr_allocate((size_t)(order * order + order) * sizeof(int32_t), "the table of a group", &memory));
    int32_t *product = memory, *moved = product + order * order;
    for (int64_t x = 0; x < order; x++) {
        const int64_t a = x / one->order, b = x % one->order;
        moved[x] = (int32_t)((group->moved ? group->moved[a] : 0) + moved_by(one, b));
        for (int64_t y = 0; y < order; y++) {
            const int64_t first = group->product ? group->product[a * before + y / one->order] : 0;
            product[x * order + y] = (int32_t)(first * one->order + multiply(one, b, y % one->order));
        }
    }
    dr_release(group->product);
    *group = (dr_group){.order = order, .product = product, .moved = moved};
    return DR_OK;
}

dr_status dr_group_create(const char *name, dr_group *group) {
    const char *at = name;
    void *memory;
    *group = (dr_group){.order = 1};
    DR_TRY(dr_allocate(sizeof(factor), "a group", &memory));
    factor *one = memory;
    dr_status status = DR_OK;
    do {
        at += at != name;
        if (!read_factor(&at, one) || (*at != 'x' && *at != '\0') || strlen(name) >= DR_GROUP_NAME)
            status = dr_fail(DR_ERROR_ARGUMENT,
                             "group is \"%s\": it must be S1 to S%d, A1 to A%d or Z1 to Z%d, or a product such as A4xZ5", name,
                             MOST_POINTS, MOST_POINTS, DR_MOST_GROUP);
        else if (group->order * one->order > DR_MOST_GROUP)
            status = dr_fail(DR_ERROR_ARGUMENT, "group %s has more than %d elements, which is the most that there may be", name,
                             DR_MOST_GROUP);
        else
            status = extend(group, one);
    } while (status == DR_OK && *at);
    dr_release(one);
    if (status != DR_OK) dr_group_destroy(group);
    return status;
}

void dr_group_destroy(dr_group *group) {
    dr_release(group->product);
    *group = (dr_group){0};
}

/* ---- the generator ---- */

static void destroy(dr_generator *generator) {
    words *self = (words *)generator;
    dr_group_destroy(&self->group);
    dr_release(self->input);
    dr_release(self);
}

static dr_status choose_inputs(words *self) {
    void *memory;
    DR_TRY(dr_allocate((size_t)self->group.order * sizeof(int32_t), "the elements of a group", &memory));
    self->input = memory;
    for (int64_t x = 0; x < self->group.order; x++)
        if (self->moves == 0 || self->group.moved[x] <= self->moves) self->input[self->inputs++] = (int32_t)x;
    if (self->inputs > 1 || self->moves == 0) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "moves is %lld: of group %s only the identity moves so few points",
                   (long long)self->moves, self->name);
}

static dr_status create(const dr_generator_options *options, dr_example_size largest, dr_generator **generator) {
    void *memory;
    (void)largest;
    DR_TRY(dr_allocate_zero(sizeof(words), "the group task", &memory));
    words *self = memory;
    self->base.kind = &dr_generator_group;
    self->moves = options->moves, self->tokens = options->tokens, self->repeats = options->repeat_elements;
    dr_status status;
    DR_GO(dr_group_create(options->group, &self->group));
    snprintf(self->name, sizeof self->name, "%s", options->group);
    DR_GO(choose_inputs(self));
    self->base.vocabulary = self->group.order + 1 + (self->tokens > 1 && !self->repeats);
    *generator = &self->base;
    return DR_OK;
done:
    destroy(&self->base);
    return status;
}

static int64_t tokens(const dr_generator *generator, dr_example_size size) {
    return 1 + size.length * ((const words *)generator)->tokens;
}

static int64_t targets(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.length;
}

static void draw(dr_generator *generator, dr_random *random, dr_example_size size, dr_example *example) {
    const words *self = (const words *)generator;
    const int32_t begin = (int32_t)self->group.order, further = begin + 1;
    int32_t product = 0;
    int64_t t = 0;
    example->ids[t++] = begin;
    for (int64_t i = 0; i < size.length; i++) {
        const int32_t x = self->input[dr_random_below(random, (uint64_t)self->inputs)];
        product = self->group.product[product * self->group.order + x];
        example->ids[t++] = x;
        for (int64_t k = 1; k < self->tokens; k++) example->ids[t++] = self->repeats ? x : further;
        example->positions[i] = t - 1;
        example->labels[i] = product;
    }
}

static void describe(const dr_generator *generator, char *text, size_t size) {
    const words *self = (const words *)generator;
    char few[64] = "", several[64] = "";
    if (self->moves > 0) snprintf(few, sizeof few, ", those that move at most %lld points", (long long)self->moves);
    if (self->tokens > 1)
        snprintf(several, sizeof several, ", %lld tokens each%s", (long long)self->tokens, self->repeats ? ", repeated" : "");
    snprintf(text, size, "products in group %s of %lld elements%s%s", self->name, (long long)self->group.order, few, several);
}

const dr_generator_kind dr_generator_group = {.name = "group",
                                              .lengths = "128",
                                              .held_out_lengths = "128 256 512",
                                              .shortest = 1,
                                              .step = 1,
                                              .create = create,
                                              .tokens = tokens,
                                              .targets = targets,
                                              .draw = draw,
                                              .describe = describe,
                                              .destroy = destroy};
