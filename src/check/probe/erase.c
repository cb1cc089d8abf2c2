/* Decay, erasing and writing side by side, and what becomes of reading where the erase key is another one (Erase-then-Delta
 * Attention, section 4.5 and figure 2).
 *
 * With a the mean of a token's decays over channels, its retention, the shares are those of 1 - a, a beta and a gamma in their
 * sum; also over the quarters of a head's tokens with the least and the most retention. A share of erase rises with a by its
 * definition; whether the gain gamma itself does is told by its correlation with a over a head's tokens. The recall
 * is raw: the cosine of S_t^T k with the value, after the token's write. In the perturbed runs every erase key of the sequence
 * is another: a random unit vector, that of the next head, or the key; without erasing, the gain is 0. */
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "check/probe/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bins of mean retention: below 0.5, 0.8, 0.95, 0.99, and the rest. */
enum { BINS = 5, DECAYED = 0, WRITTEN = BINS + 1, ERASED = 2 * (BINS + 1) };
enum { RETENTION = 3 * (BINS + 1), COSINE, KEPT, KEPT_FIGURES = 9 };
enum { OF_LEAST = KEPT + KEPT_FIGURES, OF_MOST, CORRELATION, FIGURES };

_Static_assert((int)FIGURES <= (int)DR_PROBE_MOST_FIGURES, "room for the figures");

static const double bin_ends[BINS - 1] = {0.5, 0.8, 0.95, 0.99};

static const char *const names[FIGURES] = {
    "share of decay",
    "share of decay, retention below 0.5",
    "share of decay, retention 0.5 to 0.8",
    "share of decay, retention 0.8 to 0.95",
    "share of decay, retention 0.95 to 0.99",
    "share of decay, retention above 0.99",
    "share of write",
    "share of write, retention below 0.5",
    "share of write, retention 0.5 to 0.8",
    "share of write, retention 0.8 to 0.95",
    "share of write, retention 0.95 to 0.99",
    "share of write, retention above 0.99",
    "share of erase",
    "share of erase, retention below 0.5",
    "share of erase, retention 0.5 to 0.8",
    "share of erase, retention 0.8 to 0.95",
    "share of erase, retention 0.95 to 0.99",
    "share of erase, retention above 0.99",
    "mean retention",
    "absolute cosine of erase and write key",
    "recall at the write key",
    "recall at the write key, random erase keys",
    "recall at the write key, erase keys of the next head",
    "recall at the write key, erase keys equal to keys",
    "recall at the write key, without erasing",
    "change of readouts, random erase keys",
    "change of readouts, erase keys of the next head",
    "change of readouts, erase keys equal to keys",
    "change of readouts, without erasing",
    "share of erase, the quarter of least retention",
    "share of erase, the quarter of most retention",
    "correlation of erase gain and retention",
};

/* The actual run first; each other one has a recall KEPT + run and a change KEPT + RUNS - 1 + run. */
enum { ACTUAL, RANDOM, NEXT_HEAD, EQUAL_TO_KEY, WITHOUT, RUNS };

static bool applies(const dr_rule *rule) {
    const dr_row *erase = &rule->row[0], *write = &rule->row[1];
    return rule->rows == 2 && erase->read == DR_READ_ERASE_KEY && !erase->undecayed && erase->write == DR_WRITE_ERASE_KEY &&
           erase->gain == DR_GAIN_GAMMA && erase->value == DR_VALUE_NONE && write->read == DR_READ_KEY &&
           write->write == DR_WRITE_KEY && write->gain == DR_GAIN_BETA && write->value == DR_VALUE_GAIN;
}

static void add_shares(const dr_probe_layer *layer, int64_t token, int64_t j, dr_probe_samples samples[FIGURES]) {
    const int64_t K = layer->recurrence.key_size;
    const double beta = *dr_probe_input(layer, DR_INPUT_BETA, token, j),
                 gamma = *dr_probe_input(layer, DR_INPUT_ERASE_GAIN, token, j);
    double a = 0;
    int bin = 0;
    for (int64_t i = 0; i < K; i++) a += dr_probe_decay(layer, token, j, i) / (double)K;
    while (bin < BINS - 1 && a >= bin_ends[bin]) bin++;
    const double whole = 1 - a + a * beta + a * gamma;
    const double shares[] = {(1 - a) / whole, a * beta / whole, a * gamma / whole};
    static const int first[] = {DECAYED, WRITTEN, ERASED};
    for (int i = 0; i < 3; i++) {
        dr_probe_add(&samples[first[i]], shares[i]);
        dr_probe_add(&samples[first[i] + 1 + bin], shares[i]);
    }
    dr_probe_add(&samples[RETENTION], a);
    dr_probe_add(&samples[COSINE], fabs(dr_probe_cosine(K, dr_probe_input(layer, DR_INPUT_ERASE_KEY, token, j),
                                                        dr_probe_input(layer, DR_INPUT_KEY, token, j))));
}

/* The erase key of a run at a token; random: room for a drawn one [K]. */
static const double *erase_key(const dr_probe_layer *layer, int run, int64_t token, int64_t j, dr_random *random,
                               double *drawn) {
    const int64_t K = layer->recurrence.key_size, heads = layer->recurrence.value_heads;
    const int64_t of_key_head = heads / layer->recurrence.key_heads;
    if (run == EQUAL_TO_KEY) return dr_probe_input(layer, DR_INPUT_KEY, token, j);
    if (run == NEXT_HEAD) return dr_probe_input(layer, DR_INPUT_ERASE_KEY, token, (j + of_key_head) % heads);
    if (run != RANDOM) return dr_probe_input(layer, DR_INPUT_ERASE_KEY, token, j);
    for (int64_t i = 0; i < K; i++) drawn[i] = dr_random_normal(random);
    const double length = dr_probe_norm(K, drawn);
    for (int64_t i = 0; i < K; i++) drawn[i] /= length;
    return drawn;
}

/* Vectors of a run, and the readouts of the actual one, [tokens, V]. */
typedef struct {
    double *state, *read, *drawn, *readouts;
} head;

static void place(const dr_probe_layer *layer, dr_arena *arena, head *of) {
    const size_t K = (size_t)layer->recurrence.key_size, V = (size_t)layer->recurrence.value_size * sizeof(double);
    of->state = dr_arena_take(arena, K * V);
    of->read = dr_arena_take(arena, V);
    of->drawn = dr_arena_take(arena, K * sizeof(double));
    of->readouts = dr_arena_take(arena, (size_t)layer->tokens * V);
}

/* |o - actual|/|actual|. */
static double change(int64_t count, const double *readout, const double *actual) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (readout[i] - actual[i]) * (readout[i] - actual[i]);
    return sqrt(sum) / dr_probe_norm(count, actual);
}

static void run_token(const dr_probe_layer *layer, int run, int64_t token, int64_t j, dr_random *random, const head *of,
                      dr_probe_samples samples[FIGURES]) {
    const dr_recurrence *recurrence = &layer->recurrence;
    const int64_t V = recurrence->value_size;
    const double *key = dr_probe_input(layer, DR_INPUT_KEY, token, j), *value = dr_probe_input(layer, DR_INPUT_VALUE, token, j);
    const double *erase = erase_key(layer, run, token, j, random, of->drawn);
    const double gamma = run == WITHOUT ? 0 : *dr_probe_input(layer, DR_INPUT_ERASE_GAIN, token, j);
    dr_probe_state_decay(layer, token, j, of->state);
    dr_probe_state_read(recurrence, of->state, erase, of->read);
    dr_probe_state_write(recurrence, gamma, erase, NULL, of->read, of->state);
    dr_probe_state_read(recurrence, of->state, key, of->read);
    dr_probe_state_write(recurrence, *dr_probe_input(layer, DR_INPUT_BETA, token, j), key, value, of->read, of->state);
    dr_probe_state_read(recurrence, of->state, key, of->read);
    dr_probe_add(&samples[KEPT + run], dr_probe_cosine(V, of->read, value));
    double *actual = of->readouts + token * V;
    dr_probe_state_read(recurrence, of->state, dr_probe_input(layer, DR_INPUT_QUERY, token, j),
                        run == ACTUAL ? actual : of->read);
    if (run != ACTUAL) dr_probe_add(&samples[KEPT + RUNS - 1 + run], change(V, of->read, actual));
}

typedef struct {
    double retention, share, gain;
} erasing;

static int by_retention(const void *one, const void *other) {
    const double a = ((const erasing *)one)->retention, b = ((const erasing *)other)->retention;
    return (a > b) - (a < b);
}

/* The quarters of a head's tokens, and the correlation of gamma and a. */
static dr_status add_quarters(const dr_probe_layer *layer, int64_t j, dr_probe_samples samples[FIGURES]) {
    const int64_t count = layer->tokens, K = layer->recurrence.key_size, quarter = count / 4;
    void *memory;
    double a = 0, gain = 0, of_both = 0, of_a = 0, of_gain = 0;
    DR_TRY(dr_allocate_zero((size_t)count * sizeof(erasing), "the tokens of a probe", &memory));
    erasing *tokens = memory;
    for (int64_t t = 0; t < count; t++) {
        erasing *of = &tokens[t];
        const double beta = *dr_probe_input(layer, DR_INPUT_BETA, t, j);
        of->gain = *dr_probe_input(layer, DR_INPUT_ERASE_GAIN, t, j);
        for (int64_t i = 0; i < K; i++) of->retention += dr_probe_decay(layer, t, j, i) / (double)K;
        of->share = of->retention * of->gain / (1 - of->retention + of->retention * (beta + of->gain));
        a += of->retention / (double)count;
        gain += of->gain / (double)count;
    }
    qsort(tokens, (size_t)count, sizeof *tokens, by_retention);
    for (int64_t t = 0; t < count; t++) {
        of_both += (tokens[t].retention - a) * (tokens[t].gain - gain);
        of_a += (tokens[t].retention - a) * (tokens[t].retention - a);
        of_gain += (tokens[t].gain - gain) * (tokens[t].gain - gain);
        if (t < quarter) dr_probe_add(&samples[OF_LEAST], tokens[t].share);
        if (t >= count - quarter) dr_probe_add(&samples[OF_MOST], tokens[t].share);
    }
    dr_probe_add(&samples[CORRELATION], of_both / sqrt(of_a * of_gain));
    dr_release(memory);
    return DR_OK;
}

static dr_status run_head(const dr_probe_layer *layer, int64_t j, dr_probe_samples samples[FIGURES]) {
    const size_t state = (size_t)(layer->recurrence.key_size * layer->recurrence.value_size) * sizeof(double);
    dr_arena arena = {0};
    dr_random random = dr_random_start((uint64_t)layer->layer, (uint64_t)j);
    head of;
    void *memory;
    place(layer, &arena, &of);
    DR_TRY(dr_allocate_zero(arena.used, "the state of a probe", &memory));
    arena = (dr_arena){.block = memory};
    place(layer, &arena, &of);
    for (int64_t t = 0; t < layer->tokens; t++) add_shares(layer, t, j, samples);
    for (int run = 0; run < RUNS; run++) {
        memset(of.state, 0, state);
        for (int64_t t = 0; t < layer->tokens; t++) run_token(layer, run, t, j, &random, &of, samples);
    }
    dr_release(memory);
    return add_quarters(layer, j, samples);
}

const dr_probe_kind_entry dr_probe_erase = {
    "erase", "a rule that erases along a key of its own before it writes", applies, names, FIGURES, run_head};
