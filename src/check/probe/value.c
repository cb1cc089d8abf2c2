/* The value prediction and the readout, and the error that a write leaves (Q-Delta, figures 2 and 3, lemma 3.1, theorem 3.2).
 *
 * With D = diag(alpha) S_{t-1} and x the read key: the value prediction is D^T k, the readout D^T q, the contraction b k.x, the
 * error after the token v - S_t^T x, the drift v_t - v_{t-1} - S_{t-1}^T (x_t - x_{t-1}), of which the theorem takes the
 * length. The recall at the write key, the cosine of S_t^T k with v, stands beside that of the erase probe (Erase-then-Delta
 * Attention, section 4.5). */
#include "base/error.h"
#include "base/memory.h"
#include "check/probe/probe.h"

#include <math.h>
#include <string.h>

static bool applies(const dr_rule *rule) {
    const dr_row *row = &rule->row[0];
    return rule->rows == 1 && rule->repeat == 1 && (row->read == DR_READ_KEY || row->read == DR_READ_KEY_PLUS_QUERY) &&
           !row->undecayed && row->write == DR_WRITE_KEY && row->gain == DR_GAIN_BETA && row->value == DR_VALUE_GAIN;
}

enum {
    COSINE,
    CONTRACTION,
    ERROR_BEFORE,
    ERROR_AFTER,
    DRIFT,
    RECALL,
    ENERGY_1,
    ENERGY_4,
    ENERGY_16,
    READ_1,
    READ_4,
    READ_16,
    FIGURES
};

static const char *const names[FIGURES] = {
    [COSINE] = "cosine of readout and value prediction",
    [CONTRACTION] = "beta times key and read key",
    [ERROR_BEFORE] = "error before the write",
    [ERROR_AFTER] = "error after the write",
    [DRIFT] = "drift",
    [RECALL] = "recall at the write key",
    [ENERGY_1] = "energy of value predictions in 1 principal component",
    [ENERGY_4] = "energy of value predictions in 4 principal components",
    [ENERGY_16] = "energy of value predictions in 16 principal components",
    [READ_1] = "energy of readouts in 1 principal component",
    [READ_4] = "energy of readouts in 4 principal components",
    [READ_16] = "energy of readouts in 16 principal components",
};

/* Of one value head: vectors as the names above, and the second moments of the two readings, [V, V]. */
typedef struct {
    double *state, *predicted, *readout, *read, *error, *before, *key, *of_predictions, *of_readouts, *eigenvalues;
} head;

static void place(const dr_recurrence *recurrence, dr_arena *arena, head *of) {
    const size_t K = (size_t)recurrence->key_size * sizeof(double), V = (size_t)recurrence->value_size * sizeof(double);
    of->state = dr_arena_take(arena, (size_t)recurrence->key_size * V);
    of->of_predictions = dr_arena_take(arena, (size_t)recurrence->value_size * V);
    of->of_readouts = dr_arena_take(arena, (size_t)recurrence->value_size * V);
    of->predicted = dr_arena_take(arena, V);
    of->readout = dr_arena_take(arena, V);
    of->read = dr_arena_take(arena, V);
    of->error = dr_arena_take(arena, V);
    of->before = dr_arena_take(arena, V);
    of->eigenvalues = dr_arena_take(arena, V);
    of->key = dr_arena_take(arena, 2 * K);
}

static void add_moment(int64_t count, const double *a, double *moment) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < count; j++) moment[i * count + j] += a[i] * a[j];
}

/* The read key of a token: k, and lambda q where the rule has it. */
static void read_key(const dr_probe_layer *layer, int64_t token, int64_t j, double *x) {
    const int64_t K = layer->recurrence.key_size;
    const double *key = dr_probe_input(layer, DR_INPUT_KEY, token, j), *query = dr_probe_input(layer, DR_INPUT_QUERY, token, j);
    const bool mixed = layer->recurrence.rule->row[0].read == DR_READ_KEY_PLUS_QUERY;
    const double lambda = mixed ? *dr_probe_input(layer, DR_INPUT_LAMBDA, token, j) : 0;
    for (int64_t i = 0; i < K; i++) x[i] = key[i] + lambda * query[i];
}

/* |v_t - v_{t-1} - S_{t-1}^T (x_t - x_{t-1})|, what was before the first token being 0. */
static double drift(const dr_probe_layer *layer, int64_t token, int64_t j, const double *x, const double *before,
                    const head *of) {
    const dr_recurrence *recurrence = &layer->recurrence;
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    double *step = of->key + K, sum = 0;
    const double *value = dr_probe_input(layer, DR_INPUT_VALUE, token, j);
    const double *last = token > 0 ? dr_probe_input(layer, DR_INPUT_VALUE, token - 1, j) : NULL;
    for (int64_t i = 0; i < K; i++) step[i] = x[i] - before[i];
    dr_probe_state_read(recurrence, of->state, step, of->error);
    for (int64_t i = 0; i < V; i++) {
        const double by = value[i] - (last ? last[i] : 0) - of->error[i];
        sum += by * by;
    }
    return sqrt(sum);
}

static double distance(int64_t count, const double *a, const double *b) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

static void run_token(const dr_probe_layer *layer, int64_t token, int64_t j, double *x, const double *before, head *of,
                      dr_probe_samples samples[FIGURES]) {
    const dr_recurrence *recurrence = &layer->recurrence;
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    const double *key = dr_probe_input(layer, DR_INPUT_KEY, token, j), *value = dr_probe_input(layer, DR_INPUT_VALUE, token, j);
    const double beta = *dr_probe_input(layer, DR_INPUT_BETA, token, j);
    read_key(layer, token, j, x);
    dr_probe_add(&samples[DRIFT], drift(layer, token, j, x, before, of));
    dr_probe_state_decay(layer, token, j, of->state);
    dr_probe_state_read(recurrence, of->state, key, of->predicted);
    dr_probe_state_read(recurrence, of->state, dr_probe_input(layer, DR_INPUT_QUERY, token, j), of->readout);
    dr_probe_state_read(recurrence, of->state, x, of->read);
    dr_probe_add(&samples[COSINE], dr_probe_cosine(V, of->readout, of->predicted));
    dr_probe_add(&samples[CONTRACTION], beta * dr_probe_dot(K, key, x));
    dr_probe_add(&samples[ERROR_BEFORE], distance(V, value, of->read));
    add_moment(V, of->predicted, of->of_predictions);
    add_moment(V, of->readout, of->of_readouts);
    dr_probe_state_write(recurrence, beta, key, value, of->read, of->state);
    dr_probe_state_read(recurrence, of->state, x, of->read);
    dr_probe_add(&samples[ERROR_AFTER], distance(V, value, of->read));
    dr_probe_state_read(recurrence, of->state, key, of->read);
    dr_probe_add(&samples[RECALL], dr_probe_cosine(V, of->read, value));
}

/* Shares of the sum of squares in the first components; without LAPACK there are none. */
static dr_status add_energy(int64_t count, double *moment, double *eigenvalues, dr_probe_samples samples[3]) {
    static const int64_t components[] = {1, 4, 16};
    double whole = 0, part = 0;
    for (int64_t i = 0; i < count; i++) whole += moment[i * count + i];
    if (!(whole > 0) || !isfinite(whole)) return DR_OK;
    const dr_status status = dr_probe_eigenvalues(count, moment, eigenvalues);
    if (status == DR_ERROR_UNSUPPORTED) return DR_OK;
    DR_TRY(status);
    for (int64_t i = 0, next = 0; i < count && next < 3; i++) {
        part += eigenvalues[i];
        if (i + 1 == components[next]) dr_probe_add(&samples[next++], part / whole);
    }
    return DR_OK;
}

static dr_status run_head(const dr_probe_layer *layer, int64_t j, dr_probe_samples samples[FIGURES]) {
    const dr_recurrence *recurrence = &layer->recurrence;
    const int64_t K = recurrence->key_size, V = recurrence->value_size;
    dr_arena arena = {0};
    head of;
    void *memory, *read_keys;
    place(recurrence, &arena, &of);
    DR_TRY(dr_allocate_zero(arena.used, "the state of a probe", &memory));
    arena = (dr_arena){.block = memory};
    place(recurrence, &arena, &of);
    dr_status status = dr_allocate_zero((size_t)(layer->tokens + 1) * (size_t)K * sizeof(double), "the read keys", &read_keys);
    if (status == DR_OK) {
        double *x = read_keys; /* [tokens + 1, K], zeros before the first token */
        for (int64_t t = 0; t < layer->tokens; t++) run_token(layer, t, j, x + (t + 1) * K, x + t * K, &of, samples);
        dr_release(read_keys);
        status = add_energy(V, of.of_predictions, of.eigenvalues, &samples[ENERGY_1]);
    }
    if (status == DR_OK) status = add_energy(V, of.of_readouts, of.eigenvalues, &samples[READ_1]);
    dr_release(memory);
    return status;
}

const dr_probe_kind_entry dr_probe_value = {
    "value", "a rule that writes values at keys with a gain beta, reading the key or the key and the query",
    applies, names,
    FIGURES, run_head};
