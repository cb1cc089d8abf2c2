/* How a call is checked (calls.h). */
#include "calls.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

#include <deltarule/deltarule.h>

enum { GUARD = 64, SHIFT = 4, MOST_FAILED = 20, MOST_DRAWS = 24 };
static const double unit_of_vectors = 0x1p-8; /* bf16's */
static const unsigned char untouched = 0x5a;

/* ---- draws --------------------------------------------------------------------------------------------------------------- */

static void wrong(trials *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong(trials *t, const char *format, ...) {
    va_list arguments;
    if (t->wrong[0]) return;
    va_start(arguments, format);
    vsnprintf(t->wrong, sizeof t->wrong, format, arguments);
    va_end(arguments);
}

void *draw_block(trials *t, int64_t count, size_t size) {
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    if (!memory || t->taken == MOST_BLOCKS) {
        fprintf(stderr, "no memory for a test\n");
        exit(2);
    }
    return t->blocks[t->taken++] = memory;
}

static void release_from(trials *t, int first) {
    while (t->taken > first) free(t->blocks[--t->taken]);
}

void release_draws(trials *t) {
    release_from(t, 0);
}

int64_t draw_between(trials *t, int64_t least, int64_t most) {
    return least + (int64_t)dr_random_below(&t->random, (uint64_t)(most - least + 1));
}

bool draw_flip(trials *t) {
    return draw_between(t, 0, 1) == 1;
}

int64_t draw_width(trials *t, int64_t most) {
    static const int64_t real[] = {8, 16, 64, 128, 256};
    int64_t chosen = draw_flip(t) ? draw_between(t, 1, 40) : real[draw_between(t, 0, 4)];
    while (chosen > most) chosen = draw_between(t, 1, most);
    return chosen;
}

int draw_unit(trials *t, int round) {
    return round / 2 % 2 ? 128 : 4 << draw_between(t, 1, 5);
}

columns_drawn draw_columns(trials *t, int64_t columns) {
    columns_drawn drawn = {0, 0};
    if (draw_flip(t)) return drawn;
    drawn.column = 8 * draw_between(t, 0, 2);
    drawn.row = drawn.column + columns + (draw_flip(t) ? draw_between(t, 0, 9) : 8 * draw_between(t, 0, 2));
    return drawn;
}

void *column_of(const dr_backend *b, dr_kind kind, void *panel, int64_t column) {
    return panel ? (char *)panel + dr_kind_bytes(b, kind, column) : NULL;
}

dr_layout draw_layout(trials *t, int64_t most) {
    const int64_t sequences = draw_between(t, 1, 3);
    if (draw_flip(t)) return (dr_layout){.sequences = sequences, .rows = sequences * draw_between(t, 1, most)};
    int64_t *begins = draw_block(t, sequences + 1, sizeof(int64_t));
    for (int64_t i = 0; i < sequences; i++)
        begins[i + 1] = begins[i] + (draw_between(t, 0, 3) == 0 ? 0 : draw_between(t, 1, most));
    return (dr_layout){.sequences = sequences, .rows = begins[sequences], .cu_seqlens = begins};
}

static double stored(const trials *t, double value) {
    return t->tested->storage == DR_BF16 ? (double)dr_bf16_to_float(dr_bf16_from_double(value)) : (double)(float)value;
}

static tensor drawn(trials *t, const char *name, content of, role is, int64_t rows, int64_t row) {
    const int64_t count = rows * row;
    double *values = draw_block(t, count, sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        values[i] = is == WRITTEN ? (double)NAN : dr_random_normal(&t->random);
        values[i] = of == VECTORS ? stored(t, values[i]) : (double)(float)values[i];
    }
    return (tensor){.name = name, .of = of, .is = is, .count = count, .row = row, .values = values};
}

tensor draw_vectors(trials *t, const char *name, role is, int64_t rows, int64_t row) {
    return drawn(t, name, VECTORS, is, rows, row);
}

tensor draw_numbers(trials *t, const char *name, role is, int64_t rows, int64_t row) {
    return drawn(t, name, NUMBERS, is, rows, row);
}

tensor scaled_by(trials *t, tensor of, double by) {
    double *values = of.values;
    for (int64_t i = 0; i < of.count; i++)
        values[i] = of.of == VECTORS ? stored(t, by * values[i]) : (double)(float)(by * values[i]);
    return of;
}

tensor perhaps(trials *t, tensor of) {
    if (draw_between(t, 0, 3) == 0) of.values = NULL;
    return of;
}

tensor integers_of(const char *name, content of, role is, int64_t count, void *values) {
    return (tensor){.name = name, .of = of, .is = is, .count = count, .values = values};
}

tensor boundaries_of(const dr_layout *of) {
    return integers_of("boundaries", INT64S, READ, of->sequences + 1, (void *)of->cu_seqlens);
}

dr_layout placed_layout(const dr_layout *of, void *at) {
    return (dr_layout){.sequences = of->sequences, .rows = of->rows, .cu_seqlens = at};
}

/* ---- a run --------------------------------------------------------------------------------------------------------------- */

static bool is_float(const tensor *x) {
    return x->of == VECTORS || x->of == NUMBERS;
}

static size_t raw_size(content of) {
    switch (of) {
    case DOUBLES:
    case INT64S:
        return 8;
    case INT32S:
        return 4;
    case CONTROLS:
        return sizeof(dr_control);
    case SUMS:
        return sizeof(dr_loss_sum);
    default:
        return 1;
    }
}

static size_t bytes_of(const dr_backend *b, const tensor *x) {
    if (!is_float(x)) return (size_t)x->count * raw_size(x->of);
    return dr_kind_bytes(b, x->of == VECTORS ? DR_VECTOR : DR_NUMBER, x->count);
}

/* What the tensors of a call hold behind it: doubles of vectors and numbers, else as they are. */
typedef struct {
    void *of[MOST_TENSORS];
} results;

/* Elements that a tensor is moved by within its memory. */
static size_t offset_of(const dr_backend *b, const tensor *x) {
    return x->shifted && is_float(x) ? bytes_of(b, &(tensor){.of = x->of, .count = SHIFT - 1}) : 0;
}

static bool put_tensor(dr_backend *b, const tensor *x, char *at) {
    if (!is_float(x)) return b->ops->put(b, at, x->values, bytes_of(b, x)) == DR_OK;
    const dr_dtype dtype = dr_kind_dtype(b, x->of == VECTORS ? DR_VECTOR : DR_NUMBER);
    if (dtype == b->ops->dtype) return b->ops->upload(b, at, x->values, DR_F64, x->count) == DR_OK;
    return b->ops->upload_as(b, at, dtype, x->values, DR_F64, x->count) == DR_OK;
}

static bool get_tensor(dr_backend *b, const tensor *x, const char *at, void *to) {
    if (!is_float(x)) return b->ops->get(b, to, at, bytes_of(b, x)) == DR_OK;
    return dr_kind_download(b, x->of == VECTORS ? DR_VECTOR : DR_NUMBER, to, DR_F64, at, x->count) == DR_OK;
}

static bool is_untouched(trials *t, dr_backend *b, const char *memory, size_t bytes) {
    unsigned char *guard = draw_block(t, (int64_t)bytes, 1);
    if (b->ops->get(b, guard, memory, bytes) != DR_OK) return false;
    for (size_t i = 0; i < bytes; i++)
        if (guard[i] != untouched) return false;
    return true;
}

static results run_on(trials *t, const call *c, dr_backend *b) {
    results r = {{NULL}};
    void *memory[MOST_TENSORS] = {NULL}, *at[MOST_TENSORS] = {NULL};
    for (int i = 0; i < MOST_TENSORS && !t->wrong[0]; i++) {
        const tensor *x = &c->tensors[i];
        if (!x->values) continue;
        const size_t offset = offset_of(b, x), bytes = offset + bytes_of(b, x) + GUARD;
        unsigned char *fill = draw_block(t, (int64_t)bytes, 1);
        memset(fill, untouched, bytes);
        if (b->ops->allocate(b, bytes, &memory[i]) != DR_OK || b->ops->put(b, memory[i], fill, bytes) != DR_OK ||
            !put_tensor(b, x, (char *)memory[i] + offset))
            wrong(t, "%s: %s does not come to the backend: %s", c->name, x->name, dr_last_error());
        at[i] = (char *)memory[i] + offset;
    }
    if (!t->wrong[0] && c->run(c, b, at) != DR_OK) wrong(t, "%s fails: %s", c->name, dr_last_error());
    if (!t->wrong[0] && b->ops->wait && b->ops->wait(b) != DR_OK) wrong(t, "%s fails on the GPU: %s", c->name, dr_last_error());
    for (int i = 0; i < MOST_TENSORS; i++) {
        const tensor *x = &c->tensors[i];
        if (!memory[i]) continue;
        r.of[i] = draw_block(t, x->count + 1, is_float(x) ? sizeof(double) : raw_size(x->of));
        if (!t->wrong[0] && !get_tensor(b, x, at[i], r.of[i])) wrong(t, "%s: %s does not come back", c->name, x->name);
        if (!t->wrong[0] && b == t->tested) {
            if (!is_untouched(t, b, (char *)at[i] + bytes_of(b, x), GUARD) || !is_untouched(t, b, memory[i], offset_of(b, x)))
                wrong(t, "%s writes around %s", c->name, x->name);
            if (x->is == READ && memcmp(r.of[i], x->values, (size_t)x->count * (is_float(x) ? 8 : raw_size(x->of))))
                wrong(t, "%s writes to %s, which it only reads", c->name, x->name);
        }
        b->ops->free(b, memory[i]);
    }
    return r;
}

/* ---- errors -------------------------------------------------------------------------------------------------------------- */

static double norm_of(int64_t count, const double *x) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += isfinite(x[i]) ? x[i] * x[i] : 0;
    return sqrt(sum);
}

/* Of the worst row, beside its norm, that of its terms or the mean norm of a row. */
static double error_of(const tensor *x, const double *is, const double *wanted) {
    const int64_t row = x->of == VECTORS && x->row > 0 ? x->row : x->count, rows = row > 0 ? x->count / row : 0;
    double worst = 0, mean = 0;
    for (int64_t r = 0; r < rows; r++) mean += norm_of(row, wanted + r * row) / (double)rows;
    for (int64_t r = 0; r < rows; r++) {
        double error = 0;
        const double result = norm_of(row, wanted + r * row), terms = x->terms ? norm_of(row, x->terms + r * row) : 0;
        const double norm = result > terms ? result : terms;
        for (int64_t i = r * row; i < (r + 1) * row; i++) {
            const double d = is[i] == wanted[i] ? 0 : is[i] - wanted[i];
            error += d * d;
        }
        error = sqrt(error);
        if (error == 0) continue;
        error /= (norm > mean ? norm : mean) + 1e-12;
        if (!(error <= worst)) worst = error; /* NaN too */
    }
    return worst;
}

/* What the reference loses in tensor i that stores vectors as tested does, of so many neighbours of the call: the largest. A
 * neighbour's vectors are moved by up to a unit in the last place. */
static double loss_of_neighbours(trials *t, const call *c, int i, int draws) {
    const int before = t->taken;
    dr_random random = t->random;
    double largest = 0;
    for (int draw = 0; draw < draws && !t->wrong[0]; draw++) {
        call moved = *c;
        for (int k = 0; k < MOST_TENSORS; k++) {
            tensor *x = &moved.tensors[k];
            if (!x->values || x->of != VECTORS || x->is == WRITTEN) continue;
            double *values = draw_block(t, x->count, sizeof(double));
            const double *from = x->values;
            for (int64_t j = 0; j < x->count; j++)
                values[j] = stored(t, from[j] * (1 + unit_of_vectors * (2 * dr_random_uniform(&random) - 1)));
            x->values = values;
        }
        const results exact = run_on(t, &moved, t->exact), rounded = run_on(t, &moved, t->rounded);
        if (!t->wrong[0]) largest = fmax(largest, error_of(&c->tensors[i], rounded.of[i], exact.of[i]));
        release_from(t, before);
    }
    return largest;
}

static void compare(trials *t, const call *c, int i, const results *is, const results *exact, const results *rounded) {
    const tensor *x = &c->tensors[i];
    if (!is_float(x) && x->of != DOUBLES) {
        if (x->of != CONTROLS && x->of != SUMS && memcmp(is->of[i], exact->of[i], (size_t)x->count * raw_size(x->of)))
            wrong(t, "%s: %s is not the reference's", c->name, x->name);
        return;
    }
    double tolerance = c->tolerance > 0 ? c->tolerance : forward_tolerance;
    if (tolerance == backward_tolerance && x->is == ADDED) tolerance = sum_tolerance;
    const bool rounds = rounded && x->of == VECTORS;
    const double error = error_of(x, is->of[i], exact->of[i]);
    double loss = rounds ? error_of(x, rounded->of[i], exact->of[i]) : 0;
    if (rounds && error > tolerance + 2 * loss) loss = fmax(loss, loss_of_neighbours(t, c, i, MOST_DRAWS - 1));
    const double allowed = tolerance + 2 * loss;
    if (!(error / allowed <= t->worst)) t->worst = error / allowed, t->worst_call = c->name;
    if (!(error <= allowed))
        wrong(t, "%s: %s [%lld, rows of %lld] is off by %.3g of its norm, %.3g is allowed", c->name, x->name,
              (long long)x->count, (long long)x->row, error, allowed);
}

void check_call(trials *t, const call *given) {
    call c = *given;
    results exact, rounded = {{NULL}}, first, again;
    if (t->wrong[0]) return;
    const bool shifts = draw_between(t, 0, 3) == 0 && !given->aligned;
    for (int i = 0; i < MOST_TENSORS; i++) c.tensors[i].shifted = shifts && draw_flip(t);
    exact = run_on(t, &c, t->exact);
    if (t->rounded) rounded = run_on(t, &c, t->rounded);
    if (t->vary) t->vary(0);
    first = run_on(t, &c, t->tested);
    if (t->vary) t->vary(1 + (unsigned)draw_between(t, 0, 1000));
    again = run_on(t, &c, t->tested);
    for (int i = 0; i < MOST_TENSORS && !t->wrong[0]; i++) {
        const tensor *x = &c.tensors[i];
        if (!x->values) continue;
        if (memcmp(first.of[i], again.of[i], (size_t)x->count * (is_float(x) ? 8 : raw_size(x->of))))
            wrong(t, "%s: %s has other bits in a second run", c.name, x->name);
        if (x->is != READ) compare(t, &c, i, &first, &exact, t->rounded ? &rounded : NULL);
    }
    t->checks++;
}

/* ---- all cases ----------------------------------------------------------------------------------------------------------- */

enum { LISTS = 3 };
static const network_case *const lists[LISTS] = {layer_cases, step_cases, token_cases};

void network_cases_list(void) {
    for (int list = 0; list < LISTS; list++)
        for (const network_case *c = lists[list]; c->name; c++) puts(c->name);
}

bool network_cases(trials *t, int rounds) {
    char first[sizeof t->wrong] = "";
    int failed = 0;
    bool found = !t->only;
    dr_random seeds = t->random;
    for (int list = 0; list < LISTS; list++)
        for (const network_case *c = lists[list]; c->name; c++) {
            t->random = dr_random_start(dr_random_word(&seeds), 1); /* so that no case depends on others */
            if (t->only && strcmp(t->only, c->name) != 0) continue;
            found = true;
            for (int round = 0; round < rounds && failed < MOST_FAILED; round++) {
                c->draw(t, round);
                release_draws(t);
                if (!t->wrong[0]) continue;
                printf("    %s, round %d: %s\n", c->name, round, t->wrong);
                if (failed++ == 0) memcpy(first, t->wrong, sizeof first);
                t->wrong[0] = '\0';
            }
        }
    memcpy(t->wrong, first, sizeof first);
    if (!found) snprintf(t->wrong, sizeof t->wrong, "there is no case %s: cuda_tests --list-operations names them", t->only);
    return found && failed == 0;
}
