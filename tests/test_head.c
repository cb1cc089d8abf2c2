/* The head works on so many targets at a time. What a call over several of these pieces gives must be what calls of one piece
 * each give: logits, losses, hits, gradients and one-token steps, with all rows as targets and with chosen ones. */
#include "base/random.h"
#include "learner.h"
#include "nn/session.h"
#include "statuses.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 7, LENGTH = 2, SMALL = 500, SEQUENCES = 5 * SMALL, ROWS = SEQUENCES * LENGTH };

static dr_backend *backends[2]; /* reference, cpu */

static double close_to(const dr_backend *backend) {
    return dr_backend_dtype(backend) == DR_F64 ? 1e-12 : 2e-5;
}

static dr_model *make(dr_backend *backend) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY, config.hidden = 6, config.layers = 1, config.heads = 1, config.intermediate = 5;
    config.initializer_range = 0.5;
    dr_model *model;
    must(dr_model_create(backend, &config, 2, &model));
    return model;
}

/* Tokens of all sequences, labels of all rows, and every second row of a sequence as a target. */
typedef struct {
    int32_t ids[ROWS], labels[ROWS], chosen_labels[SEQUENCES];
    int64_t chosen[SEQUENCES];
} tokens;

static void draw(tokens *drawn) {
    dr_random random = dr_random_start(11, 0);
    for (int64_t i = 0; i < ROWS; i++) {
        drawn->ids[i] = (int32_t)dr_random_below(&random, VOCABULARY);
        drawn->labels[i] = (int32_t)dr_random_below(&random, VOCABULARY);
    }
    for (int64_t i = 0; i < SEQUENCES; i++) {
        drawn->chosen[i] = i * LENGTH + (int64_t)dr_random_below(&random, LENGTH);
        drawn->chosen_labels[i] = (int32_t)dr_random_below(&random, VOCABULARY);
    }
}

/* A call's sequences first .. first + count - 1. positions [count] is filled where targets are chosen. */
static dr_batch batch_of(const tokens *all, int64_t first, int64_t count, bool chosen, int64_t *positions) {
    dr_batch batch = {.layout = {.sequences = count, .rows = count * LENGTH},
                      .ids = all->ids + first * LENGTH,
                      .targets = count * LENGTH,
                      .labels = all->labels + first * LENGTH};
    if (!chosen) return batch;
    for (int64_t i = 0; i < count; i++) positions[i] = all->chosen[first + i] - first * LENGTH;
    batch.targets = count, batch.positions = positions, batch.labels = all->chosen_labels + first;
    return batch;
}

/* What a model makes of sequences, in calls of so many. */
typedef struct {
    double loss, per_target[ROWS], logits[ROWS * VOCABULARY];
    int64_t hits;
    uint8_t per_hit[ROWS];
    double *gradient; /* the block */
    int64_t count;    /* of it */
    double gradient_loss;
    int64_t gradient_hits;
    float step[SEQUENCES * VOCABULARY];
} results;

static results *compute(dr_backend *backend, const tokens *all, int64_t each, bool chosen) {
    static int64_t positions[SEQUENCES];
    results *made = calloc(1, sizeof *made);
    dr_model *model = make(backend);
    assert_non_null(made);
    for (int64_t first = 0, target = 0; first < SEQUENCES; first += each) {
        double loss;
        int64_t hits;
        dr_batch batch = batch_of(all, first, each, chosen, positions);
        must(learner_loss(model, &batch, NULL, &loss, &hits, made->per_target + target, made->per_hit + target));
        made->loss += loss, made->hits += hits;
        must(learner_loss(model, &batch, NULL, &loss, NULL, NULL, NULL));
        must(learner_logits(model, &batch, NULL, DR_F64, made->logits + target * VOCABULARY));
        must(learner_gradient(model, &batch, 0.5, &loss, &hits));
        made->gradient_loss += loss, made->gradient_hits += hits;
        dr_model_state *state;
        must(dr_model_state_create(model, each, &state));
        must(dr_model_step(model, all->ids + first, state, made->step + first * VOCABULARY));
        dr_model_state_destroy(state);
        target += batch.targets;
    }
    made->count = dr_model_block_count(model);
    made->gradient = calloc((size_t)made->count, sizeof(double));
    assert_non_null(made->gradient);
    must(dr_backend_download(backend, made->gradient, DR_F64, learner_gradients(model), made->count));
    learner_destroy(model);
    return made;
}

static void assert_close(const char *what, const double *one, const double *other, int64_t count, double tolerance) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(other[i]));
    assert_true(largest > 0);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(one[i] - other[i]) <= tolerance * largest))
            fail_msg("%s %lld is %.9g over several pieces and %.9g in smaller calls", what, (long long)i, one[i], other[i]);
}

static void test_pieces_are_as_smaller_calls(void **state) {
    (void)state;
    static tokens all;
    draw(&all);
    for (int b = 0; b < 2; b++)
        for (int chosen = 0; chosen < 2; chosen++) {
            results *whole = compute(backends[b], &all, SEQUENCES, chosen), *small = compute(backends[b], &all, SMALL, chosen);
            double tolerance = close_to(backends[b]);
            int64_t targets = chosen ? SEQUENCES : ROWS;
            assert_true(targets > 2 * DR_HEAD_ROWS && SMALL * LENGTH <= DR_HEAD_ROWS);
            assert_close("loss", &whole->loss, &small->loss, 1, tolerance);
            assert_close("the gradient's loss", &whole->gradient_loss, &small->loss, 1, tolerance);
            assert_close("target", whole->per_target, small->per_target, targets, tolerance);
            assert_close("logit", whole->logits, small->logits, targets * VOCABULARY, tolerance);
            assert_close("gradient", whole->gradient, small->gradient, whole->count, 20 * tolerance);
            assert_memory_equal(whole->per_hit, small->per_hit, (size_t)targets);
            assert_true(whole->hits == small->hits && whole->gradient_hits == small->hits && whole->hits > 0);
            for (int64_t i = 0; i < SEQUENCES * VOCABULARY; i++) assert_true(fabsf(whole->step[i] - small->step[i]) < 1e-5F);
            free(whole->gradient);
            free(small->gradient);
            free(whole);
            free(small);
        }
}

/* Losses are those of the logits, and hits too: by hand for each target. */
static void test_losses_are_of_the_logits(void **state) {
    (void)state;
    static tokens all;
    draw(&all);
    for (int b = 0; b < 2; b++) {
        results *whole = compute(backends[b], &all, SEQUENCES, true);
        int64_t hits = 0;
        double sum = 0;
        for (int64_t i = 0; i < SEQUENCES; i++) {
            const double *logits = whole->logits + i * VOCABULARY;
            double total = 0;
            int best = 0;
            for (int v = 0; v < VOCABULARY; v++) {
                total += exp(logits[v]);
                if (logits[v] > logits[best]) best = v;
            }
            double loss = log(total) - logits[all.chosen_labels[i]];
            assert_true(fabs(loss - whole->per_target[i]) < 1e-5);
            assert_int_equal(whole->per_hit[i], best == all.chosen_labels[i]);
            hits += best == all.chosen_labels[i];
            sum += loss;
        }
        assert_int_equal(whole->hits, hits);
        assert_true(fabs(whole->loss - sum) < 1e-5 * sum);
        free(whole->gradient);
        free(whole);
    }
}

static int begin(void **state) {
    (void)state;
    backends[0] = open_backend("reference", NULL, 0);
    backends[1] = open_backend("cpu", NULL, 0);
    return 0;
}

static int end(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) dr_backend_close(backends[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_as_smaller_calls),
        cmocka_unit_test(test_losses_are_of_the_logits),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
