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

/* Every fourth round has several tiles of rows, of which one id has most. */
CASE(tables) {
    const bool long_one = round % 4 == 2;
    const int64_t rows = long_one ? draw_between(t, 1000, 3500) : draw_between(t, round == 0 ? 0 : 1, 300);
    const int64_t dim = draw_width(t, long_one ? 16 : 64), vocabulary = draw_between(t, 1, long_one ? 600 : 60);
    const int64_t filler = draw_between(t, 0, vocabulary - 1);
    int32_t *ids = draw_block(t, rows, sizeof *ids);
    for (int64_t i = 0; i < rows; i++)
        ids[i] = (int32_t)(long_one && draw_between(t, 0, 3) > 0 ? filler : draw_between(t, 0, vocabulary - 1));
    check_call(t,
               &(call){.name = "embedding",
                       .numbers = {rows, dim},
                       .tensors = {integers_of("ids", INT32S, READ, rows, ids), draw_vectors(t, "table", READ, vocabulary, dim),
                                   draw_vectors(t, "y", WRITTEN, rows, dim)},
                       .run = embedding});
    check_call(t, &(call){.name = "embedding_back",
                          .numbers = {rows, dim},
                          .tolerance = backward_tolerance,
                          .tensors = {integers_of("ids", INT32S, READ, rows, ids), draw_vectors(t, "d_y", READ, rows, dim),
                                      draw_numbers(t, "d_table", ADDED, vocabulary, dim)},
                          .run = embedding_back});
    int64_t *positions = draw_block(t, rows, sizeof *positions), count = 0;
    for (int64_t i = 0; i < rows; i++)
        if (draw_flip(t)) positions[count++] = i;
    check_call(t, &(call){.name = "rows_gather",
                          .numbers = {rows, count, dim},
                          .tensors = {integers_of("positions", INT64S, READ, count, positions),
                                      draw_vectors(t, "x", READ, rows, dim), draw_vectors(t, "y", WRITTEN, count, dim)},
                          .run = gather});
    check_call(t, &(call){.name = "rows_scatter",
                          .numbers = {rows, count, dim},
                          .tensors = {integers_of("positions", INT64S, READ, count, positions),
                                      draw_vectors(t, "d_y", READ, count, dim), draw_vectors(t, "d_x", WRITTEN, rows, dim)},
                          .run = scatter});
}

/* ---- rotary embedding ---------------------------------------------------------------------------------------------------- */

OPERATION(rotary) {
    dr_rotary of = *(const dr_rotary *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]), of.offset = at[1];
    return b->ops->rotary(b, &of, at[2], c->numbers[0]);
}

CASE(rotations) {
    dr_rotary n = {.layout = draw_layout(t, 40), .heads = draw_between(t, 1, 4), .size = 2 * draw_width(t, 64), .base = 10000};
    n.dim = round % 3 ? n.size : 2 * draw_between(t, 1, n.size / 2);
    n.first = draw_between(t, 0, n.size - n.dim);
    n.row = n.heads * n.size + draw_between(t, 0, 2), n.interleaved = draw_flip(t), n.factor = draw_flip(t) ? 1 : 1.3;
    int64_t *seen = draw_block(t, n.layout.sequences, sizeof *seen);
    for (int64_t i = 0; i < n.layout.sequences; i++) seen[i] = draw_between(t, 0, 100000);
    check_call(t, &(call){.name = "rotary",
                          .descriptor = &n,
                          .numbers = {round % 2},
                          .tensors = {boundaries_of(&n.layout),
                                      perhaps(t, integers_of("offset", INT64S, READ, n.layout.sequences, seen)),
                                      draw_vectors(t, "x", ADDED, n.layout.rows, n.row)},
                          .run = rotary});
}

/* ---- attention ----------------------------------------------------------------------------------------------------------- */

OPERATION(attention) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    const dr_attention_memory memory = {c->numbers[0], at[6], at[7], at[8], at[9]};
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->attention_forward(b, &of, at[1], at[2], at[3], c->numbers[0] ? &memory : NULL, at[4], at[5]);
}
OPERATION(attention_back) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->attention_backward(b, &of, at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9]);
}
OPERATION(append) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    const dr_attention_memory memory = {c->numbers[0], at[3], at[4], at[5], at[6]};
    of.layout = placed_layout(&of.layout, at[0]);
    return b->ops->attention_append(b, &of, at[1], at[2], &memory);
}

static int64_t longest_of(const dr_layout *layout) {
    int64_t longest = layout->cu_seqlens ? 0 : layout->rows / layout->sequences;
    for (int64_t i = 0; layout->cu_seqlens && i < layout->sequences; i++)
        if (layout->cu_seqlens[i + 1] - layout->cu_seqlens[i] > longest)
            longest = layout->cu_seqlens[i + 1] - layout->cu_seqlens[i];
    return longest;
}

/* Where each query sees one key alone, the gradients of both are nothing, with which no error can be compared. */
static dr_attention attention_drawn(trials *t, int round) {
    static const int64_t sizes[] = {64, 128, 256}, most[] = {100, 260, 40};
    const int64_t key_heads = draw_between(t, 1, 2);
    dr_layout layout = draw_layout(t, most[round % 3]);
    if (longest_of(&layout) < 2) layout = (dr_layout){.sequences = 1, .rows = 2};
    dr_attention n = {.layout = layout,
                      .heads = key_heads * draw_between(t, 1, 3),
                      .key_heads = key_heads,
                      .key_size = round % 4 == 3 ? draw_between(t, 1, 80) : sizes[round % 3],
                      .window = round % 3 == 1 && draw_flip(t) ? draw_between(t, 2, 150) : 0};
    n.value_size = round % 4 == 2 ? draw_between(t, 1, 150) : n.key_size;
    n.scale = 1 / sqrt((double)n.key_size);
    return n;
}

/* o and the logarithms of sums, for the backward, by the reference in double. */
static void attend(trials *t, call *c, tensor *o, tensor *sums) {
    dr_attention of = *(const dr_attention *)c->descriptor;
    (void)t->exact->ops->attention_forward(t->exact, &of, c->tensors[1].values, c->tensors[2].values, c->tensors[3].values,
                                           NULL, o->values, sums->values);
    *o = scaled_by(t, *o, 1);
    *sums = scaled_by(t, *sums, 1);
}

CASE(attentions) {
    const dr_attention n = attention_drawn(t, round);
    const int64_t rows = n.layout.rows, q = n.heads * n.key_size, k = n.key_heads * n.key_size, v = n.key_heads * n.value_size;
    const int64_t o = n.heads * n.value_size;
    check_call(t, &(call){.name = "attention",
                          .descriptor = &n,
                          .tolerance = backward_tolerance,
                          .tensors = {boundaries_of(&n.layout), draw_vectors(t, "q", READ, rows, q),
                                      draw_vectors(t, "k", READ, rows, k), draw_vectors(t, "v", READ, rows, v),
                                      draw_vectors(t, "o", WRITTEN, rows, o),
                                      perhaps(t, draw_numbers(t, "log_sums", WRITTEN, rows, n.heads))},
                          .run = attention});
    call back = {.name = "attention_back",
                 .descriptor = &n,
                 .tolerance = sum_tolerance,
                 .tensors = {boundaries_of(&n.layout), draw_vectors(t, "q", READ, rows, q), draw_vectors(t, "k", READ, rows, k),
                             draw_vectors(t, "v", READ, rows, v), draw_vectors(t, "o", READ, rows, o),
                             draw_numbers(t, "log_sums", READ, rows, n.heads), draw_vectors(t, "d_o", READ, rows, o),
                             perhaps(t, draw_vectors(t, "d_q", WRITTEN, rows, q)),
                             perhaps(t, draw_vectors(t, "d_k", WRITTEN, rows, k)),
                             perhaps(t, draw_vectors(t, "d_v", WRITTEN, rows, v))},
                 .run = attention_back};
    attend(t, &back, &back.tensors[4], &back.tensors[5]);
    check_call(t, &back);
}

CASE(attentions_with_memory) {
    const dr_attention n = attention_drawn(t, round);
    const int64_t rows = n.layout.rows, sequences = n.layout.sequences, slots = sequences + 1;
    const int64_t k = n.key_heads * n.key_size, v = n.key_heads * n.value_size;
    int64_t *past = draw_block(t, sequences, sizeof *past), *slot = draw_block(t, sequences, sizeof *slot);
    const int64_t most = draw_between(t, 1, 90), capacity = n.window ? most + n.window : most + 8;
    for (int64_t i = 0; i < sequences; i++) {
        past[i] = draw_between(t, 0, n.window ? 3 * capacity : most);
        slot[i] = (i + 1) % slots;
    }
    check_call(t, &(call){.name = "attention with memory",
                          .descriptor = &n,
                          .numbers = {capacity},
                          .tolerance = backward_tolerance,
                          .tensors = {boundaries_of(&n.layout), draw_vectors(t, "q", READ, rows, n.heads * n.key_size),
                                      draw_vectors(t, "k", READ, rows, k), draw_vectors(t, "v", READ, rows, v),
                                      draw_vectors(t, "o", WRITTEN, rows, n.heads * n.value_size), (tensor){0},
                                      integers_of("past", INT64S, READ, sequences, past),
                                      integers_of("slot", INT64S, READ, sequences, slot),
                                      draw_vectors(t, "keys", READ, slots * capacity, k),
                                      draw_vectors(t, "values", READ, slots * capacity, v)},
                          .run = attention});
    check_call(t, &(call){.name = "attention_append",
                          .descriptor = &n,
                          .numbers = {capacity},
                          .tensors = {boundaries_of(&n.layout), draw_vectors(t, "k", READ, rows, k),
                                      draw_vectors(t, "v", READ, rows, v), integers_of("past", INT64S, READ, sequences, past),
                                      perhaps(t, integers_of("slot", INT64S, READ, sequences, slot)),
                                      draw_vectors(t, "keys", ADDED, slots * capacity, k),
                                      draw_vectors(t, "values", ADDED, slots * capacity, v)},
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
    /* two rows at least, one of which is no hit: beside the loss of a hit alone, nearly 0, no rounding of logits is small */
    const int64_t count = draw_between(t, 2, 20), vocabulary = sizes[round % 6];
    int32_t *labels = draw_block(t, count, sizeof *labels);
    double *loss = draw_block(t, count, sizeof *loss);
    uint8_t *hit = draw_block(t, count, 1);
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)draw_between(t, 0, vocabulary - 1);
    tensor logits = scaled_by(t, draw_vectors(t, "logits", READ, count, vocabulary), round % 2 ? 3 : 30);
    for (int64_t i = 0; i < count; i += 2) ((double *)logits.values)[i * vocabulary + labels[i]] = 100; /* a hit, or a tie */
    check_call(t, &(call){.name = "cross_entropy",
                          .numbers = {count, vocabulary},
                          .tolerance = backward_tolerance,
                          .tensors = {logits, integers_of("labels", INT32S, READ, count, labels),
                                      integers_of("loss", DOUBLES, WRITTEN, count, loss),
                                      integers_of("hit", BYTES, WRITTEN, count, hit),
                                      perhaps(t, draw_vectors(t, "d_logits", WRITTEN, count, vocabulary))},
                          .run = cross_entropy});
    dr_loss_sum *sum = draw_block(t, 1, sizeof *sum);
    double *result = draw_block(t, 2, sizeof *result);
    *sum = (dr_loss_sum){1.5, 3};
    for (int64_t i = 0; i < count; i++) loss[i] = dr_random_normal(&t->random), hit[i] = draw_flip(t);
    check_call(t,
               &(call){.name = "sum_losses",
                       .numbers = {count},
                       .tensors = {integers_of("loss", DOUBLES, READ, count, loss), integers_of("hit", BYTES, READ, count, hit),
                                   integers_of("sum", SUMS, ADDED, 1, sum), integers_of("of all", DOUBLES, WRITTEN, 2, result)},
                       .run = sum_losses});
}

OPERATION(choose) {
    return b->ops->choose(b, c->numbers[0], c->numbers[1], c->numbers[2], at[0], at[1], at[2]);
}

CASE(choices) {
    static const int64_t sizes[] = {1, 7, 255, 256, 1000, 2304};
    static const double temperatures[] = {0, 0.3, 1, 7}, shares[] = {1, 0.99, 0.5, 1e-6}, floors[] = {0, 0, 0.02, 1};
    const int64_t count = draw_between(t, 1, 20), vocabulary = sizes[round % 6];
    const int64_t allowed = draw_flip(t) ? vocabulary : draw_between(t, 1, vocabulary);
    dr_draw *draws = draw_block(t, count, sizeof *draws);
    int32_t *ids = draw_block(t, count, sizeof *ids);
    tensor logits = scaled_by(t, draw_vectors(t, "logits", READ, count, vocabulary), 3);
    for (int64_t i = 0; i < count; i++) {
        double *row = (double *)logits.values + i * vocabulary;
        for (int64_t v = 0; i % 2 && v < vocabulary; v++) row[v] = floor(row[v]); /* many are equal */
        draws[i] = (dr_draw){.temperature = temperatures[draw_between(t, 0, 3)],
                             .top_p = shares[draw_between(t, 0, 3)],
                             .min_p = floors[draw_between(t, 0, 3)],
                             .top_k = draw_flip(t) ? draw_between(t, 1, allowed + 2) : 0,
                             .point = dr_random_uniform(&t->random)};
        if (i == 5) row[draw_between(t, 0, allowed - 1)] = (double)NAN;
        if (i == 7) row[draw_between(t, 0, allowed - 1)] = (double)-INFINITY;
    }
    check_call(
        t, &(call){.name = "choose",
                   .numbers = {count, vocabulary, allowed},
                   .tensors = {logits,
                               integers_of("draws", INT64S, READ, count * (int64_t)(sizeof *draws / sizeof(int64_t)), draws),
                               integers_of("ids", INT32S, WRITTEN, count, ids)},
                   .run = choose});
}

/* A step of the optimizer, and what it decides as doubles. */
enum { RUNS = 3 };

typedef struct {
    dr_adamw adamw;
    dr_adamw_run run[RUNS];
} optimizer_drawn;

OPERATION(optimizer_step) {
    const optimizer_drawn *of = c->descriptor;
    dr_control control;
    DR_TRY(b->ops->sum_squares(b, c->numbers[0], at[0], at[4]));
    DR_TRY(b->ops->clip(b, (double)c->numbers[1], at[4]));
    DR_TRY(b->ops->adamw(b, &of->adamw, at[4], RUNS, of->run, at[0], at[1], at[2], at[3]));
    DR_TRY(b->ops->get(b, &control, at[4], sizeof control));
    const bool finite = isfinite(control.norm) != 0;
    const double decided[6] = {finite ? control.squares : -1, finite ? control.norm : -1, control.scale,
                               (double)control.updates,       (double)control.skipped,    (double)control.skipped_in_row};
    return b->ops->put(b, at[5], decided, sizeof decided);
}

CASE(steps) {
    static const double odd[] = {1, (double)INFINITY, (double)NAN, 1e15};
    static const int64_t clips[] = {1000000, 1, 2, 1, 0, 1, 2, 2}; /* the first is more than the norm */
    const int64_t count = round % 2 ? 4 * draw_between(t, 1, 900) : draw_between(t, 1, 9000);
    const int64_t cut = 4 * draw_between(t, 0, count / 8);
    const optimizer_drawn of = {{0.9, 0.95, 1e-8}, {{0, cut, 1e-2, 0.1}, {cut, 0, 1, 1}, {cut, count - cut, 2e-2, 0}}};
    dr_control *control = draw_block(t, 1, sizeof *control);
    double *decided = draw_block(t, 6, sizeof *decided);
    tensor gradient = draw_numbers(t, "gradient", READ, 1, count), v = draw_numbers(t, "v", ADDED, 1, count);
    for (int64_t i = 0; i < count; i++) ((double *)v.values)[i] *= ((double *)v.values)[i];
    ((double *)gradient.values)[draw_between(t, 0, count - 1)] = (double)(float)odd[round % 4];
    *control = (dr_control){.scale = 1, .updates = draw_between(t, 0, 9), .skipped = 2, .skipped_in_row = round % 2};
    check_call(
        t, &(call){.name = "a step of the optimizer",
                   .descriptor = &of,
                   .numbers = {count, clips[round % 8]},
                   .tolerance = backward_tolerance,
                   .tensors = {gradient, draw_numbers(t, "parameter", ADDED, 1, count), draw_numbers(t, "m", ADDED, 1, count),
                               v, integers_of("control", CONTROLS, ADDED, 1, control),
                               integers_of("what is decided", DOUBLES, WRITTEN, 6, decided)},
                   .run = optimizer_step});
}

OPERATION(muon_momentum) {
    return b->ops->momentum(b, 0.95, at[0], c->numbers[0], at[1], at[2], at[3]);
}

OPERATION(muon_descend) {
    return b->ops->descend(b, c->descriptor, at[0], c->numbers[0], at[1], at[2]);
}

CASE(muon) {
    const int64_t count = round % 2 ? 8 * draw_between(t, 1, 300) : draw_between(t, 1, 3000);
    const dr_descent of = {1e-2, 0.7, 0.1};
    dr_control *control = draw_block(t, 1, sizeof *control);
    *control = (dr_control){.scale = 0.5, .updates = 3, .skipped_in_row = round % 4 == 3};
    const role y = round % 4 == 3 ? ADDED : WRITTEN; /* nothing is written in a skipped step */
    check_call(
        t, &(call){.name = "momentum",
                   .numbers = {count},
                   .tolerance = backward_tolerance,
                   .tensors = {integers_of("control", CONTROLS, READ, 1, control), draw_numbers(t, "gradient", READ, 1, count),
                               draw_numbers(t, "momentum", ADDED, 1, count), draw_vectors(t, "y", y, 1, count)},
                   .run = muon_momentum});
    check_call(t,
               &(call){.name = "descend",
                       .descriptor = &of,
                       .numbers = {count},
                       .tolerance = backward_tolerance,
                       .tensors = {integers_of("control", CONTROLS, READ, 1, control),
                                   draw_vectors(t, "direction", READ, 1, count), draw_numbers(t, "parameter", ADDED, 1, count)},
                       .run = muon_descend});
}

OPERATION(store) {
    if (b->ops->store_vectors) return b->ops->store_vectors(b, c->numbers[0], at[0], at[1]);
    return b->ops->copy(b, at[1], at[0], (size_t)c->numbers[0] * sizeof(double));
}

CASE(copies) {
    const int64_t count = round % 2 ? 8 * draw_between(t, 1, 300) : draw_between(t, 1, 3000);
    check_call(t, &(call){.name = "store_vectors",
                          .numbers = {count},
                          .tensors = {draw_numbers(t, "x", READ, 1, count), draw_vectors(t, "y", WRITTEN, 1, count)},
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
    const dr_depth n = {draw_between(t, 1, 40), round == 1 ? 512 : draw_width(t, 128), DEPTH, 1e-6};
    call forward = {.name = "depth", .descriptor = &n, .run = depth};
    for (int l = 0; l < DEPTH; l++) forward.tensors[l] = draw_vectors(t, "x", READ, n.rows, n.dim);
    forward.tensors[DEPTH] = draw_numbers(t, "weight", READ, 1, n.dim);
    forward.tensors[DEPTH + 1] = scaled_by(t, draw_numbers(t, "query", READ, 1, n.dim), 0.1);
    call back = forward;
    forward.tensors[DEPTH + 2] = draw_vectors(t, "y", WRITTEN, n.rows, n.dim);
    back.name = "depth_back", back.run = depth_back, back.tolerance = sum_tolerance;
    back.tensors[DEPTH + 2] = draw_vectors(t, "d_y", READ, n.rows, n.dim);
    for (int l = 0; l < DEPTH; l++) back.tensors[DEPTH + 3 + l] = perhaps(t, draw_vectors(t, "d_x", ADDED, n.rows, n.dim));
    back.tensors[2 * DEPTH + 3] = perhaps(t, draw_numbers(t, "d_weight", ADDED, 1, n.dim));
    back.tensors[2 * DEPTH + 4] = perhaps(t, draw_numbers(t, "d_query", ADDED, 1, n.dim));
    check_call(t, &forward);
    check_call(t, &back);
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
    int32_t *index = draw_block(t, n->rows * n->chosen, sizeof *index);
    for (int64_t r = 0; r < n->rows; r++)
        for (int64_t j = 0; j < n->chosen; j++) {
            int32_t *own = index + r * n->chosen;
            bool taken = true;
            while (taken) {
                own[j] = (int32_t)(draw_between(t, 0, n->experts - 1) & (n->experts > 2 * n->chosen ? ~1 : ~0));
                taken = false;
                for (int64_t i = 0; i < j; i++) taken = taken || own[i] == own[j];
            }
        }
    return index;
}

CASE(routes) {
    const int64_t groups = round % 2 ? 4 : 1, experts = groups * draw_between(t, 2, 20);
    const dr_router n = {
        .of = {draw_between(t, round == 0 ? 0 : 1, 60), experts, draw_between(t, 1, experts < 6 ? experts / 2 : 3)},
        .sigmoid = draw_flip(t),
        .normalised = draw_flip(t),
        .groups = groups,
        .kept = groups == 1 ? 1 : 3,
        .scale = 2.5};
    const int64_t rows = n.of.rows, slots = rows * n.of.chosen;
    int32_t *index = indices_drawn(t, &n.of), *found = draw_block(t, slots, sizeof *found);
    check_call(t, &(call){.name = "route",
                          .descriptor = &n,
                          .tolerance = backward_tolerance,
                          .tensors = {draw_numbers(t, "logits", READ, rows, experts),
                                      perhaps(t, scaled_by(t, draw_numbers(t, "bias", READ, 1, experts), 0.1)),
                                      integers_of("index", INT32S, WRITTEN, slots, found),
                                      draw_numbers(t, "weights", WRITTEN, rows, n.of.chosen)},
                          .run = route});
    /* normalised, one expert alone has the same weight whatever its score: a gradient of rounding errors only */
    dr_router several = n;
    several.normalised = n.normalised && n.of.chosen > 1;
    check_call(
        t, &(call){.name = "route_back",
                   .descriptor = &several,
                   .tolerance = sum_tolerance,
                   .tensors = {draw_numbers(t, "logits", READ, rows, experts), integers_of("index", INT32S, READ, slots, index),
                               draw_numbers(t, "d_weights", READ, rows, n.of.chosen),
                               draw_numbers(t, "d_logits", WRITTEN, rows, experts)},
                   .run = route_back});
    check_call(t, &(call){.name = "balance",
                          .descriptor = &n,
                          .tolerance = sum_tolerance,
                          .tensors = {draw_numbers(t, "logits", READ, rows, experts),
                                      integers_of("index", INT32S, READ, slots, index), draw_numbers(t, "loss", ADDED, 1, 1),
                                      perhaps(t, draw_numbers(t, "d_logits", ADDED, rows, experts))},
                          .run = balance});
}

static void check_expert_products(trials *t, const dr_experts *n, int64_t dim, int64_t out, bool add, tensor begun) {
    const int64_t slots = n->rows * n->chosen, experts = n->experts;
    check_call(
        t, &(call){.name = "experts_linear",
                   .descriptor = n,
                   .numbers = {dim, out},
                   .tensors = {begun, draw_vectors(t, "x", READ, slots, dim),
                               draw_vectors(t, "weight", READ, experts * out, dim), draw_vectors(t, "y", WRITTEN, slots, out)},
                   .run = expert_linear});
    check_call(
        t, &(call){.name = "experts_linear_back",
                   .descriptor = n,
                   .numbers = {dim, out, add},
                   .tolerance = backward_tolerance,
                   .tensors = {begun, draw_vectors(t, "x", READ, slots, dim),
                               draw_vectors(t, "weight", READ, experts * out, dim), draw_vectors(t, "d_y", READ, slots, out),
                               perhaps(t, draw_vectors(t, "d_x", add ? ADDED : WRITTEN, slots, dim)),
                               perhaps(t, draw_numbers(t, "d_weight", ADDED, experts * out, dim))},
                   .run = expert_linear_back});
}

CASE(experts) {
    const bool add = round % 2;
    const int64_t experts = draw_between(t, 2, 12), dim = draw_width(t, 64), out = draw_width(t, 128);
    const dr_experts n = {draw_between(t, round == 0 ? 0 : 1, round == 1 ? 300 : 90), experts,
                          draw_between(t, 1, experts < 4 ? 1 : 3)};
    const int64_t rows = n.rows, slots = rows * n.chosen;
    int32_t *index = indices_drawn(t, &n), *order = draw_block(t, slots, sizeof *order),
            *place = draw_block(t, slots, sizeof *place);
    int32_t *begins = draw_block(t, experts + 1, sizeof *begins);
    check_call(t, &(call){.name = "experts_sort",
                          .descriptor = &n,
                          .tensors = {integers_of("index", INT32S, READ, slots, index),
                                      integers_of("order", INT32S, WRITTEN, slots, order),
                                      integers_of("place", INT32S, WRITTEN, slots, place),
                                      integers_of("begins", INT32S, WRITTEN, experts + 1, begins)},
                          .run = sort});
    (void)t->exact->ops->experts_sort(t->exact, &n, index, order, place, begins);
    const tensor ordered = integers_of("order", INT32S, READ, slots, order),
                 placed_at = integers_of("place", INT32S, READ, slots, place),
                 begun = integers_of("begins", INT32S, READ, experts + 1, begins);
    check_call(t,
               &(call){.name = "experts_gather",
                       .descriptor = &n,
                       .numbers = {dim},
                       .tensors = {ordered, draw_vectors(t, "x", READ, rows, dim), draw_vectors(t, "y", WRITTEN, slots, dim)},
                       .run = expert_gather});
    check_call(t, &(call){.name = "experts_gather_back",
                          .descriptor = &n,
                          .numbers = {dim, add},
                          .tensors = {placed_at, draw_vectors(t, "d_y", READ, slots, dim),
                                      draw_vectors(t, "d_x", add ? ADDED : WRITTEN, rows, dim)},
                          .run = expert_gather_back});
    check_call(
        t, &(call){.name = "experts_combine",
                   .descriptor = &n,
                   .numbers = {dim, add},
                   .tensors = {placed_at, draw_numbers(t, "weights", READ, rows, n.chosen),
                               draw_vectors(t, "x", READ, slots, dim), draw_vectors(t, "y", add ? ADDED : WRITTEN, rows, dim)},
                   .run = combine});
    check_call(t, &(call){.name = "experts_combine_back",
                          .descriptor = &n,
                          .numbers = {dim},
                          .tolerance = backward_tolerance,
                          .tensors = {placed_at, draw_numbers(t, "weights", READ, rows, n.chosen),
                                      draw_vectors(t, "x", READ, slots, dim), draw_vectors(t, "d_y", READ, rows, dim),
                                      perhaps(t, draw_numbers(t, "d_weights", WRITTEN, rows, n.chosen)),
                                      perhaps(t, draw_vectors(t, "d_x", WRITTEN, slots, dim))},
                          .run = combine_back});
    check_expert_products(t, &n, dim, out, add, begun);
}

const network_case token_cases[] = {{"tables and rows", tables},
                                    {"rotary", rotations},
                                    {"attention", attentions},
                                    {"attention with memory", attentions_with_memory},
                                    {"losses", losses},
                                    {"choices", choices},
                                    {"optimizer", steps},
                                    {"muon", muon},
                                    {"copies", copies},
                                    {"depth", depths},
                                    {"routes", routes},
                                    {"experts", experts},
                                    {NULL, NULL}};
