/* Cases of what works on tokens: tables, rows, rotary embedding, attention, losses, the optimizer, depth, experts. */
#include "calls.h"

#include "base/error.h"

#include <math.h>

#define OPERATION(name) static dr_status name(const call *c, dr_backend *b, void *const at[])
#define CASE(name)      static void name(trials *t, int round)

/* ---- tables and rows ----------------------------------------------------------------------------------------------------- */

OPERATION(embedding) {
    return b->ops->embedding_forward(b, c->numbers[0], c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(embedding_back) {
    return b->ops->embedding_backward(b, c->numbers[0], c->numbers[1], at[0], at[1], at[2]);
}
OPERATION(gather) {
    return b->ops->rows_gather(b, c->numbers[1], c->numbers[2], at[0], at[1], at[2]);
}
OPERATION(scatter) {
    return b->ops->rows_scatter(b, c->numbers[0], c->numbers[1], c->numbers[2], at[0], at[1], at[2]);
}

CASE(tables) {
    const int64_t rows = between(t, round == 0 ? 0 : 1, 300), dim = width(t, 64), vocabulary = between(t, 1, 60);
    int32_t *ids = block(t, rows, sizeof *ids);
    for (int64_t i = 0; i < rows; i++) ids[i] = (int32_t)between(t, 0, vocabulary - 1);
    check(t, &(call){.name = "embedding",
                     .numbers = {rows, dim},
                     .tensors = {integers("ids", INT32S, READ, rows, ids), vectors(t, "table", READ, vocabulary, dim),
                                 vectors(t, "y", WRITTEN, rows, dim)},
                     .run = embedding});
    check(t, &(call){.name = "embedding_back",
                     .numbers = {rows, dim},
                     .tolerance = backward_tolerance,
                     .tensors = {integers("ids", INT32S, READ, rows, ids), vectors(t, "d_y", READ, rows, dim),
                                 numbers(t, "d_table", ADDED, vocabulary, dim)},
                     .run = embedding_back});
    int64_t *positions = block(t, rows, sizeof *positions), count = 0;
    for (int64_t i = 0; i < rows; i++)
        if (flip(t)) positions[count++] = i;
    check(t, &(call){.name = "rows_gather",
                     .numbers = {rows, count, dim},
                     .tensors = {integers("positions", INT64S, READ, count, positions), vectors(t, "x", READ, rows, dim),
                                 vectors(t, "y", WRITTEN, count, dim)},
                     .run = gather});
    check(t, &(call){.name = "rows_scatter",
                     .numbers = {rows, count, dim},
                     .tensors = {integers("positions", INT64S, READ, count, positions), vectors(t, "d_y", READ, count, dim),
                                 vectors(t, "d_x", WRITTEN, rows, dim)},
                     .run = scatter});
}

/* ---- rotary embedding ---------------------------------------------------------------------------------------------------- */

OPERATION(rotary) {
    dr_rotary of = *(const dr_rotary *)c->descriptor;
    of.layout = placed(&of.layout, at[0]), of.offset = at[1];
    return b->ops->rotary(b, &of, at[2], c->numbers[0]);
}

CASE(rotations) {
    dr_rotary n = {.layout = layout(t, 40), .heads = between(t, 1, 4), .size = 2 * width(t, 64), .base = 10000};
    n.dim = round % 3 ? n.size : 2 * between(t, 1, n.size / 2);
    n.first = between(t, 0, n.size - n.dim);
    n.row = n.heads * n.size + between(t, 0, 2), n.interleaved = flip(t), n.factor = flip(t) ? 1 : 1.3;
    int64_t *seen = block(t, n.layout.sequences, sizeof *seen);
    for (int64_t i = 0; i < n.layout.sequences; i++) seen[i] = between(t, 0, 100000);
    check(t, &(call){.name = "rotary",
                     .descriptor = &n,
                     .numbers = {round % 2},
                     .tensors = {boundaries(&n.layout), maybe(t, integers("offset", INT64S, READ, n.layout.sequences, seen)),
                                 vectors(t, "x", ADDED, n.layout.rows, n.row)},
                     .run = rotary});
}

/* ---- attention ----------------------------------------------------------------------------------------------------------- */

OPERATION(attention) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    const dr_attention_memory memory = {c->numbers[0], at[6], at[7], at[8], at[9]};
    of.layout = placed(&of.layout, at[0]);
    return b->ops->attention_forward(b, &of, at[1], at[2], at[3], c->numbers[0] ? &memory : NULL, at[4], at[5]);
}
OPERATION(attention_back) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    of.layout = placed(&of.layout, at[0]);
    return b->ops->attention_backward(b, &of, at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9]);
}
OPERATION(append) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    const dr_attention_memory memory = {c->numbers[0], at[3], at[4], at[5], at[6]};
    of.layout = placed(&of.layout, at[0]);
    return b->ops->attention_append(b, &of, at[1], at[2], &memory);
}

static dr_attention attention_drawn(trials *t, int round) {
    static const int64_t sizes[] = {64, 128, 256};
    const int64_t key_heads = between(t, 1, 2);
    dr_attention n = {.layout = layout(t, round % 3 ? 40 : 100),
                      .heads = key_heads * between(t, 1, 3),
                      .key_heads = key_heads,
                      .key_size = round % 4 == 3 ? between(t, 1, 80) : sizes[round % 3],
                      .window = round % 3 == 1 ? between(t, 1, 30) : 0};
    n.value_size = round % 4 == 2 ? between(t, 1, 150) : n.key_size;
    n.scale = 1 / sqrt((double)n.key_size);
    return n;
}

/* o and the logarithms of sums, for the backward, by the reference in double. */
static void attend(trials *t, call *c, tensor *o, tensor *sums) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    (void)t->exact->ops->attention_forward(t->exact, &of, c->tensors[1].values, c->tensors[2].values, c->tensors[3].values,
                                           NULL, o->values, sums->values);
    *o = scaled(t, *o, 1);
    *sums = scaled(t, *sums, 1);
}

CASE(attentions) {
    const dr_attention n = attention_drawn(t, round);
    const int64_t rows = n.layout.rows, q = n.heads * n.key_size, k = n.key_heads * n.key_size, v = n.key_heads * n.value_size;
    const int64_t o = n.heads * n.value_size;
    check(t, &(call){.name = "attention",
                     .descriptor = &n,
                     .tolerance = backward_tolerance,
                     .tensors = {boundaries(&n.layout), vectors(t, "q", READ, rows, q), vectors(t, "k", READ, rows, k),
                                 vectors(t, "v", READ, rows, v), vectors(t, "o", WRITTEN, rows, o),
                                 maybe(t, numbers(t, "log_sums", WRITTEN, rows, n.heads))},
                     .run = attention});
    call back = {.name = "attention_back",
                 .descriptor = &n,
                 .tolerance = sum_tolerance,
                 .tensors = {boundaries(&n.layout), vectors(t, "q", READ, rows, q), vectors(t, "k", READ, rows, k),
                             vectors(t, "v", READ, rows, v), vectors(t, "o", READ, rows, o),
                             numbers(t, "log_sums", READ, rows, n.heads), vectors(t, "d_o", READ, rows, o),
                             maybe(t, vectors(t, "d_q", WRITTEN, rows, q)), maybe(t, vectors(t, "d_k", WRITTEN, rows, k)),
                             maybe(t, vectors(t, "d_v", WRITTEN, rows, v))},
                 .run = attention_back};
    attend(t, &back, &back.tensors[4], &back.tensors[5]);
    check(t, &back);
}

CASE(attentions_with_memory) {
    const dr_attention n = attention_drawn(t, round);
    const int64_t rows = n.layout.rows, sequences = n.layout.sequences, slots = sequences + 1;
    const int64_t k = n.key_heads * n.key_size, v = n.key_heads * n.value_size;
    int64_t *past = block(t, sequences, sizeof *past), *slot = block(t, sequences, sizeof *slot);
    const int64_t most = between(t, 1, 90), capacity = n.window ? most + n.window : most + 8;
    for (int64_t i = 0; i < sequences; i++) {
        past[i] = between(t, 0, n.window ? 3 * capacity : most);
        slot[i] = (i + 1) % slots;
    }
    check(t, &(call){.name = "attention with memory",
                     .descriptor = &n,
                     .numbers = {capacity},
                     .tolerance = backward_tolerance,
                     .tensors = {boundaries(&n.layout), vectors(t, "q", READ, rows, n.heads * n.key_size),
                                 vectors(t, "k", READ, rows, k), vectors(t, "v", READ, rows, v),
                                 vectors(t, "o", WRITTEN, rows, n.heads * n.value_size), (tensor){0},
                                 integers("past", INT64S, READ, sequences, past),
                                 integers("slot", INT64S, READ, sequences, slot),
                                 vectors(t, "keys", READ, slots * capacity, k), vectors(t, "values", READ, slots * capacity, v)},
                     .run = attention});
    check(t, &(call){.name = "attention_append",
                     .descriptor = &n,
                     .numbers = {capacity},
                     .tensors = {boundaries(&n.layout), vectors(t, "k", READ, rows, k), vectors(t, "v", READ, rows, v),
                                 integers("past", INT64S, READ, sequences, past),
                                 maybe(t, integers("slot", INT64S, READ, sequences, slot)),
                                 vectors(t, "keys", ADDED, slots * capacity, k),
                                 vectors(t, "values", ADDED, slots * capacity, v)},
                     .run = append});
}

/* ---- loss and optimizer -------------------------------------------------------------------------------------------------- */

OPERATION(cross_entropy) {
    return b->ops->cross_entropy(b, c->numbers[0], c->numbers[1], at[0], at[1], 0.125, at[2], at[3], at[4]);
}
OPERATION(sum_losses) {
    dr_loss_sum sum;
    const dr_status status = b->ops->sum_losses(b, c->numbers[0], at[0], at[1], at[2]);
    if (status != DR_OK || b->ops->get(b, &sum, at[2], sizeof sum) != DR_OK) return status;
    const double result[2] = {sum.loss, (double)sum.hits};
    return b->ops->put(b, at[3], result, sizeof result);
}

CASE(losses) {
    static const int64_t sizes[] = {1, 7, 64, 257, 1000, 2304};
    const int64_t count = between(t, 1, 20), vocabulary = sizes[round % 6];
    int32_t *labels = block(t, count, sizeof *labels);
    double *loss = block(t, count, sizeof *loss);
    uint8_t *hit = block(t, count, 1);
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)between(t, 0, vocabulary - 1);
    tensor logits = scaled(t, vectors(t, "logits", READ, count, vocabulary), round % 2 ? 3 : 30);
    for (int64_t i = 0; i < count; i += 2) ((double *)logits.values)[i * vocabulary + labels[i]] = 100; /* a hit, or a tie */
    check(t, &(call){.name = "cross_entropy",
                     .numbers = {count, vocabulary},
                     .tolerance = backward_tolerance,
                     .tensors = {logits, integers("labels", INT32S, READ, count, labels),
                                 integers("loss", DOUBLES, WRITTEN, count, loss), integers("hit", BYTES, WRITTEN, count, hit),
                                 maybe(t, vectors(t, "d_logits", WRITTEN, count, vocabulary))},
                     .run = cross_entropy});
    dr_loss_sum *sum = block(t, 1, sizeof *sum);
    double *result = block(t, 2, sizeof *result);
    *sum = (dr_loss_sum){1.5, 3};
    for (int64_t i = 0; i < count; i++) loss[i] = dr_random_normal(&t->random), hit[i] = flip(t);
    check(t, &(call){.name = "sum_losses",
                     .numbers = {count},
                     .tensors = {integers("loss", DOUBLES, READ, count, loss), integers("hit", BYTES, READ, count, hit),
                                 integers("sum", SUMS, ADDED, 1, sum), integers("of all", DOUBLES, WRITTEN, 2, result)},
                     .run = sum_losses});
}

/* A step of the optimizer, and what it decides as doubles. */
OPERATION(optimizer_step) {
    const dr_adamw *of = c->descriptor;
    dr_control control;
    DR_TRY(b->ops->sum_squares(b, c->numbers[0], at[0], at[4]));
    DR_TRY(b->ops->clip(b, (double)c->numbers[1], at[4]));
    DR_TRY(b->ops->adamw(b, of, at[4], c->numbers[0], at[0], at[1], at[2], at[3]));
    DR_TRY(b->ops->get(b, &control, at[4], sizeof control));
    const bool finite = isfinite(control.norm) != 0;
    const double decided[6] = {finite ? control.squares : -1,  finite ? control.norm : -1,
                               control.scale,                  (double)control.updates,
                               (double)control.skipped,        (double)control.skipped_in_row};
    return b->ops->put(b, at[5], decided, sizeof decided);
}

CASE(steps) {
    static const double odd[] = {1, (double)INFINITY, (double)NAN, 1e30};
    const int64_t count = round % 2 ? 4 * between(t, 1, 900) : between(t, 1, 9000);
    const dr_adamw of = {1e-2, 0.9, 0.95, 1e-8, 0.1};
    dr_control *control = block(t, 1, sizeof *control);
    double *decided = block(t, 6, sizeof *decided);
    tensor gradient = numbers(t, "gradient", READ, 1, count), v = numbers(t, "v", ADDED, 1, count);
    for (int64_t i = 0; i < count; i++) ((double *)v.values)[i] *= ((double *)v.values)[i];
    ((double *)gradient.values)[between(t, 0, count - 1)] = (double)(float)odd[round % 4];
    *control = (dr_control){.scale = 1, .updates = between(t, 0, 9), .skipped = 2, .skipped_in_row = round % 2};
    check(t, &(call){.name = "a step of the optimizer",
                     .descriptor = &of,
                     .numbers = {count, round % 3},
                     .tolerance = backward_tolerance,
                     .tensors = {gradient, numbers(t, "parameter", ADDED, 1, count), numbers(t, "m", ADDED, 1, count), v,
                                 integers("control", CONTROLS, ADDED, 1, control),
                                 integers("what is decided", DOUBLES, WRITTEN, 6, decided)},
                     .run = optimizer_step});
}

OPERATION(store) {
    if (b->ops->store_vectors) return b->ops->store_vectors(b, c->numbers[0], at[0], at[1]);
    return b->ops->copy(b, at[1], at[0], (size_t)c->numbers[0] * sizeof(double));
}

CASE(copies) {
    const int64_t count = round % 2 ? 8 * between(t, 1, 300) : between(t, 1, 3000);
    check(t, &(call){.name = "store_vectors",
                     .numbers = {count},
                     .tensors = {numbers(t, "x", READ, 1, count), vectors(t, "y", WRITTEN, 1, count)},
                     .run = store});
}

/* ---- depth --------------------------------------------------------------------------------------------------------------- */

enum { DEPTH = 3 };

OPERATION(depth) {
    return b->ops->depth_forward(b, c->descriptor, (const void *const *)at, at[DEPTH], at[DEPTH + 1], at[DEPTH + 2]);
}
OPERATION(depth_back) {
    return b->ops->depth_backward(b, c->descriptor, (const void *const *)at, at[DEPTH], at[DEPTH + 1], at[DEPTH + 2],
                                  &at[DEPTH + 3], at[2 * DEPTH + 3], at[2 * DEPTH + 4]);
}

CASE(depths) {
    const dr_depth n = {between(t, 1, 40), round == 1 ? 512 : width(t, 128), DEPTH, 1e-6};
    call forward = {.name = "depth", .descriptor = &n, .run = depth};
    for (int l = 0; l < DEPTH; l++) forward.tensors[l] = vectors(t, "x", READ, n.rows, n.dim);
    forward.tensors[DEPTH] = numbers(t, "weight", READ, 1, n.dim);
    forward.tensors[DEPTH + 1] = scaled(t, numbers(t, "query", READ, 1, n.dim), 0.1);
    call back = forward;
    forward.tensors[DEPTH + 2] = vectors(t, "y", WRITTEN, n.rows, n.dim);
    back.name = "depth_back", back.run = depth_back, back.tolerance = sum_tolerance;
    back.tensors[DEPTH + 2] = vectors(t, "d_y", READ, n.rows, n.dim);
    for (int l = 0; l < DEPTH; l++) back.tensors[DEPTH + 3 + l] = maybe(t, vectors(t, "d_x", ADDED, n.rows, n.dim));
    back.tensors[2 * DEPTH + 3] = maybe(t, numbers(t, "d_weight", ADDED, 1, n.dim));
    back.tensors[2 * DEPTH + 4] = maybe(t, numbers(t, "d_query", ADDED, 1, n.dim));
    check(t, &forward);
    check(t, &back);
}

/* ---- experts ------------------------------------------------------------------------------------------------------------- */

OPERATION(route) {
    return b->ops->route_forward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(route_back) {
    return b->ops->route_backward(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(balance) {
    return b->ops->balance(b, c->descriptor, at[0], at[1], 0.5, at[2], at[3]);
}
OPERATION(sort) {
    return b->ops->experts_sort(b, c->descriptor, at[0], at[1], at[2], at[3]);
}
OPERATION(expert_gather) {
    return b->ops->experts_gather_forward(b, c->descriptor, c->numbers[0], at[0], at[1], at[2]);
}
OPERATION(expert_gather_back) {
    return b->ops->experts_gather_backward(b, c->descriptor, c->numbers[0], at[0], at[1], at[2], c->numbers[1]);
}
OPERATION(combine) {
    return b->ops->experts_combine_forward(b, c->descriptor, c->numbers[0], at[0], at[1], at[2], at[3], c->numbers[1]);
}
OPERATION(combine_back) {
    return b->ops->experts_combine_backward(b, c->descriptor, c->numbers[0], at[0], at[1], at[2], at[3], at[4], at[5]);
}
OPERATION(expert_linear) {
    return b->ops->experts_linear_forward(b, c->descriptor, c->numbers[0], c->numbers[1], at[0], at[1], at[2], at[3]);
}
OPERATION(expert_linear_back) {
    return b->ops->experts_linear_backward(b, c->descriptor, c->numbers[0], c->numbers[1], at[0], at[1], at[2], at[3], at[4],
                                           c->numbers[2], at[5]);
}

/* The experts of each token: some are never chosen. */
static int32_t *indices_drawn(trials *t, const dr_experts *n) {
    int32_t *index = block(t, n->rows * n->chosen, sizeof *index);
    for (int64_t r = 0; r < n->rows; r++)
        for (int64_t j = 0; j < n->chosen; j++) {
            int32_t *own = index + r * n->chosen;
            bool taken = true;
            while (taken) {
                own[j] = (int32_t)(between(t, 0, n->experts - 1) & (n->experts > 2 * n->chosen ? ~1 : ~0));
                taken = false;
                for (int64_t i = 0; i < j; i++) taken = taken || own[i] == own[j];
            }
        }
    return index;
}

CASE(routes) {
    const int64_t groups = round % 2 ? 4 : 1, experts = groups * between(t, 2, 20);
    const dr_router n = {.of = {between(t, round == 0 ? 0 : 1, 60), experts, between(t, 1, experts < 6 ? experts / 2 : 3)},
                         .sigmoid = flip(t),
                         .normalised = flip(t),
                         .groups = groups,
                         .kept = groups == 1 ? 1 : 3,
                         .scale = 2.5};
    const int64_t rows = n.of.rows, slots = rows * n.of.chosen;
    int32_t *index = indices_drawn(t, &n.of), *found = block(t, slots, sizeof *found);
    check(t, &(call){.name = "route",
                     .descriptor = &n,
                     .tolerance = backward_tolerance,
                     .tensors = {numbers(t, "logits", READ, rows, experts),
                                 maybe(t, scaled(t, numbers(t, "bias", READ, 1, experts), 0.1)),
                                 integers("index", INT32S, WRITTEN, slots, found),
                                 numbers(t, "weights", WRITTEN, rows, n.of.chosen)},
                     .run = route});
    check(t, &(call){.name = "route_back",
                     .descriptor = &n,
                     .tolerance = sum_tolerance,
                     .tensors = {numbers(t, "logits", READ, rows, experts), integers("index", INT32S, READ, slots, index),
                                 numbers(t, "d_weights", READ, rows, n.of.chosen),
                                 numbers(t, "d_logits", WRITTEN, rows, experts)},
                     .run = route_back});
    check(t, &(call){.name = "balance",
                     .descriptor = &n,
                     .tolerance = sum_tolerance,
                     .tensors = {numbers(t, "logits", READ, rows, experts), integers("index", INT32S, READ, slots, index),
                                 numbers(t, "loss", ADDED, 1, 1), maybe(t, numbers(t, "d_logits", ADDED, rows, experts))},
                     .run = balance});
}

CASE(experts) {
    const bool add = round % 2;
    const int64_t experts = between(t, 2, 12), dim = width(t, 64), out = width(t, 128);
    const dr_experts n = {between(t, round == 0 ? 0 : 1, round == 1 ? 300 : 90), experts, between(t, 1, experts < 4 ? 1 : 3)};
    const int64_t rows = n.rows, slots = rows * n.chosen;
    int32_t *index = indices_drawn(t, &n), *order = block(t, slots, sizeof *order), *place = block(t, slots, sizeof *place);
    int32_t *begins = block(t, experts + 1, sizeof *begins);
    check(t, &(call){.name = "experts_sort",
                     .descriptor = &n,
                     .tensors = {integers("index", INT32S, READ, slots, index), integers("order", INT32S, WRITTEN, slots, order),
                                 integers("place", INT32S, WRITTEN, slots, place),
                                 integers("begins", INT32S, WRITTEN, experts + 1, begins)},
                     .run = sort});
    (void)t->exact->ops->experts_sort(t->exact, &n, index, order, place, begins);
    const tensor ordered = integers("order", INT32S, READ, slots, order), placed_at = integers("place", INT32S, READ, slots, place),
                 begun = integers("begins", INT32S, READ, experts + 1, begins);
    check(t, &(call){.name = "experts_gather",
                     .descriptor = &n,
                     .numbers = {dim},
                     .tensors = {ordered, vectors(t, "x", READ, rows, dim), vectors(t, "y", WRITTEN, slots, dim)},
                     .run = expert_gather});
    check(t, &(call){.name = "experts_gather_back",
                     .descriptor = &n,
                     .numbers = {dim, add},
                     .tensors = {placed_at, vectors(t, "d_y", READ, slots, dim),
                                 vectors(t, "d_x", add ? ADDED : WRITTEN, rows, dim)},
                     .run = expert_gather_back});
    check(t, &(call){.name = "experts_combine",
                     .descriptor = &n,
                     .numbers = {dim, add},
                     .tensors = {placed_at, numbers(t, "weights", READ, rows, n.chosen), vectors(t, "x", READ, slots, dim),
                                 vectors(t, "y", add ? ADDED : WRITTEN, rows, dim)},
                     .run = combine});
    check(t, &(call){.name = "experts_combine_back",
                     .descriptor = &n,
                     .numbers = {dim},
                     .tolerance = backward_tolerance,
                     .tensors = {placed_at, numbers(t, "weights", READ, rows, n.chosen), vectors(t, "x", READ, slots, dim),
                                 vectors(t, "d_y", READ, rows, dim), maybe(t, numbers(t, "d_weights", WRITTEN, rows, n.chosen)),
                                 maybe(t, vectors(t, "d_x", WRITTEN, slots, dim))},
                     .run = combine_back});
    check(t, &(call){.name = "experts_linear",
                     .descriptor = &n,
                     .numbers = {dim, out},
                     .tensors = {begun, vectors(t, "x", READ, slots, dim), vectors(t, "weight", READ, experts * out, dim),
                                 vectors(t, "y", WRITTEN, slots, out)},
                     .run = expert_linear});
    check(t, &(call){.name = "experts_linear_back",
                     .descriptor = &n,
                     .numbers = {dim, out, add},
                     .tolerance = backward_tolerance,
                     .tensors = {begun, vectors(t, "x", READ, slots, dim), vectors(t, "weight", READ, experts * out, dim),
                                 vectors(t, "d_y", READ, slots, out),
                                 maybe(t, vectors(t, "d_x", add ? ADDED : WRITTEN, slots, dim)),
                                 maybe(t, numbers(t, "d_weight", ADDED, experts * out, dim))},
                     .run = expert_linear_back});
}

const network_case token_cases[] = {{"tables and rows", tables},
                                    {"rotary", rotations},
                                    {"attention", attentions},
                                    {"attention with memory", attentions_with_memory},
                                    {"losses", losses},
                                    {"optimizer", steps},
                                    {"copies", copies},
                                    {"depth", depths},
                                    {"routes", routes},
                                    {"experts", experts},
                                    {NULL, NULL}};
