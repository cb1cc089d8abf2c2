/* A step of decoding by operation: how much of the time of a model's step lies in products, in the recurrence, and in what is
 * between them. Every operation of the backend's table is timed where the model calls it; the median of the steps counts.
 *
 * Usage: step [RULE [HIDDEN [SEQUENCES [THREADS [STEPS]]]]]      two layers, heads of 128, a vocabulary of bytes */
#include "base/clock.h"
#include "check/bench/limit.h"
#include "ops/operations.h"

#include <deltarule/backend.h>
#include <deltarule/model.h>
#include <deltarule/rule.h>
#include <deltarule/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEAD_SIZE = 128 };

typedef enum { PRODUCTS, RECURRENCE, CONVOLUTION, NORM, LENGTH, GATE, HEADS, ROTARY, SWIGLU, ADD, EMBEDDING, KINDS } kind;
static const char *const names[KINDS] = {"products",    "recurrence", "convolution", "rms norm", "l2 norm",  "gates",
                                         "scale heads", "rotary",     "swiglu",      "add",      "embedding"};

static const dr_operations *plain; /* the backend's own table */
static double seconds[KINDS];      /* of the step at hand */

/* An operation of the table with its time added to that of its kind: parameters in parentheses, then arguments. */
#define TIMED(of, name, parameters, arguments)                                                                                 \
    static dr_status name parameters {                                                                                         \
        const double start = dr_clock_now();                                                                                   \
        const dr_status status = plain->name arguments;                                                                        \
        seconds[of] += dr_clock_now() - start;                                                                                 \
        return status;                                                                                                         \
    }
TIMED(PRODUCTS, linear_forward,
      (dr_backend * b, const dr_linear *l, const void *x, const void *weight, const void *bias, void *y),
      (b, l, x, weight, bias, y))
TIMED(PRODUCTS, grouped_linear_forward,
      (dr_backend * b, const dr_grouped_linear *l, const void *x, const void *weight, void *y), (b, l, x, weight, y))
TIMED(RECURRENCE, recurrence_decode, (const dr_plan *plan, const dr_call *call), (plan, call))
TIMED(CONVOLUTION, conv_forward,
      (dr_backend * b, const dr_conv *c, const void *x, const void *weight, const void *bias, const void *initial, void *y,
       void *final),
      (b, c, x, weight, bias, initial, y, final))
TIMED(NORM, rms_norm_forward,
      (dr_backend * b, const dr_rms_norm *n, const void *x, const void *weight, const void *gate, void *y),
      (b, n, x, weight, gate, y))
TIMED(LENGTH, l2_norm_forward, (dr_backend * b, const dr_l2_norm *n, const void *x, void *y), (b, n, x, y))
TIMED(GATE, gate_forward, (dr_backend * b, const dr_gate *g, const void *x, const void *a_log, const void *bias, void *y),
      (b, g, x, a_log, bias, y))
TIMED(HEADS, scale_heads_forward,
      (dr_backend * b, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor, const void *x, void *y,
       bool accumulate),
      (b, rows, heads, dim, shared, factor, x, y, accumulate))
TIMED(ROTARY, rotary, (dr_backend * b, const dr_rotary *r, void *x, bool inverse), (b, r, x, inverse))
TIMED(SWIGLU, swiglu_forward, (dr_backend * b, int64_t count, const void *gate, const void *up, void *y),
      (b, count, gate, up, y))
TIMED(ADD, add, (dr_backend * b, dr_kind of, int64_t count, double factor, const void *x, void *y),
      (b, of, count, factor, x, y))
TIMED(EMBEDDING, embedding_forward, (dr_backend * b, int64_t rows, int64_t dim, const int32_t *ids, const void *table, void *y),
      (b, rows, dim, ids, table, y))

static void must(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "step: %s\n", dr_last_error());
    exit(1);
}

/* The time of each kind in each step, the last one that of the whole. */
static void run(dr_backend *backend, const dr_model_config *config, int64_t sequences, int steps,
                double taken[KINDS + 1][DR_BENCH_MOST_REPEATS]) {
    dr_model *model;
    dr_model_state *state;
    must(dr_model_create(backend, config, 1, &model));
    must(dr_model_state_create(model, sequences, &state));
    int32_t *ids = calloc((size_t)sequences, sizeof *ids);
    float *logits = calloc((size_t)(sequences * config->vocabulary), sizeof *logits);
    if (!ids || !logits) abort();
    for (int n = -1; n < steps; n++) { /* the first warms up */
        memset(seconds, 0, sizeof seconds);
        const double start = dr_clock_now();
        must(dr_model_step(model, ids, state, logits));
        if (n < 0) continue;
        taken[KINDS][n] = dr_clock_now() - start;
        for (int k = 0; k < KINDS; k++) taken[k][n] = seconds[k];
    }
    free(logits);
    free(ids);
    dr_model_state_destroy(state);
    dr_model_destroy(model);
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "gdn";
    const int64_t hidden = count > 2 ? strtoll(words[2], NULL, 10) : 1024,
                  sequences = count > 3 ? strtoll(words[3], NULL, 10) : 64;
    const int threads = count > 4 ? atoi(words[4]) : 1, steps = count > 5 ? atoi(words[5]) : 21;
    if (hidden < HEAD_SIZE || sequences < 1 || threads < 1 || steps < 1 || steps > DR_BENCH_MOST_REPEATS) {
        fprintf(stderr, "usage: step [RULE [HIDDEN [SEQUENCES [THREADS [STEPS]]]]]\n");
        return 2;
    }
    const dr_rule *rule = dr_rule_find(name);
    if (!rule) {
        fprintf(stderr, "step: there is no rule '%s'\n", name);
        return 2;
    }
    dr_model_config config = dr_model_config_default(rule);
    config.vocabulary = 256;
    config.hidden = hidden;
    config.layers = LAYERS;
    config.heads = hidden / HEAD_SIZE;
    dr_backend *backend;
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = threads}, &backend));
    plain = backend->ops;
    dr_operations timed = *plain;
#define SET(name) timed.name = name
    SET(linear_forward), SET(grouped_linear_forward), SET(recurrence_decode), SET(conv_forward), SET(rms_norm_forward);
    SET(l2_norm_forward), SET(gate_forward), SET(scale_heads_forward), SET(rotary), SET(swiglu_forward), SET(add);
    SET(embedding_forward);
    backend->ops = &timed;
    static double taken[KINDS + 1][DR_BENCH_MOST_REPEATS];
    run(backend, &config, sequences, steps, taken);
    backend->ops = plain;
    const double whole = dr_bench_summary(taken[KINDS], steps).median;
    printf("%s, %s, width %lld, %lld sequences, %d threads: a step of %d layers takes %.3f ms\n", backend->isa, name,
           (long long)hidden, (long long)sequences, threads, LAYERS, whole * 1e3);
    printf("%-16s %9s %7s\n", "operation", "us", "share");
    for (int k = 0; k < KINDS; k++) {
        const double median = dr_bench_summary(taken[k], steps).median;
        if (median > 0) printf("%-16s %9.1f %6.2f%%\n", names[k], median * 1e6, 100 * median / whole);
    }
    dr_backend_close(backend);
    return 0;
}
