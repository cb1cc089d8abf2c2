/* Projections of a recurrent mixer as one product (a panel) against the same projections one by one: the same bits forward, of
 * every rule, instruction set and way to give a batch; gradients that differ by the order of one sum. The same numbers are in
 * both models, since first values follow from names. A backend whose operations take no columns of panels is one without the
 * flag. */
#include "base/cpu.h"
#include "learner.h"
#include "numbers.h"
#include "ops/operations.h"
#include "statuses.h"

#include <deltarule/deltarule.h>
#include <math.h>
#include <stdio.h>

enum { MOST_ROWS = 300, VOCABULARY = 37 };

/* Beside each backend one of the same kernels without panels. */
static dr_operations plain_operations;

typedef struct {
    dr_backend *with, *without;
} pair;

static pair open_pair(const char *name, const char *isa) {
    const dr_backend_options options = {.threads = 2, .isa = isa};
    pair of;
    must(dr_backend_open(name, &options, &of.with));
    must(dr_backend_open(name, &options, &of.without));
    plain_operations = *of.without->ops;
    plain_operations.panels = 0;
    of.without->ops = &plain_operations;
    return of;
}

static void close_pair(pair of) {
    dr_backend_close(of.with);
    dr_backend_close(of.without);
}

/* largest: of the sizes of heads, of which the plain loops of the reference want small ones. */
static dr_model_config draw_config(const char *rule, int largest) {
    static const int64_t sizes[] = {4, 8, 16, 24, 32};
    dr_model_config config = dr_model_config_default(dr_rule_find(rule));
    config.vocabulary = VOCABULARY, config.layers = 2;
    config.heads = number_between(1, 3);
    config.key_size = sizes[number_between(0, largest)];
    config.hidden = config.heads * config.key_size; /* the models of some rules ask for it */
    if (number_flip()) config.hidden *= 2;
    config.intermediate = number_between(1, 70);
    config.initializer_range = 0.15;
    config.norm_eps = 0.1;
    return config;
}

static double *double_of(const dr_model *model, const void *block, const dr_parameter *parameter) {
    double *values = malloc((size_t)parameter->count * sizeof *values);
    dr_backend *backend = dr_model_backend(model);
    assert_non_null(values);
    must(dr_backend_download(backend, values, DR_F64,
                             (const char *)block + (size_t)parameter->offset * dr_dtype_size(dr_backend_dtype(backend)),
                             parameter->count));
    return values;
}

/* |one - other| / |other|, of all gradients together: those of some parameters are next to nothing. */
static double gradients_apart(const dr_model *one, const dr_model *other) {
    const dr_parameter *of_one, *of_other;
    const int64_t count = dr_model_parameters(one, &of_one);
    double apart = 0, size = 0;
    assert_int_equal(dr_model_parameters(other, &of_other), count);
    for (int64_t i = 0; i < count; i++) {
        assert_string_equal(of_one[i].name, of_other[i].name);
        double *x = double_of(one, learner_gradients(one), &of_one[i]),
               *y = double_of(other, learner_gradients(other), &of_other[i]);
        for (int64_t k = 0; k < of_one[i].count; k++) {
            apart += (x[k] - y[k]) * (x[k] - y[k]);
            size += y[k] * y[k];
        }
        free(x);
        free(y);
    }
    assert_true(size > 0);
    return sqrt(apart / size);
}

/* Whether parameters follow each other in the block otherwise than in the list. */
static bool joins(const dr_model *model) {
    const dr_parameter *list;
    const int64_t count = dr_model_parameters(model, &list);
    for (int64_t i = 1; i < count; i++)
        if (list[i].offset < list[i - 1].offset) return true;
    return false;
}

static void draw_layout(int64_t boundaries[4], dr_layout *layout) {
    boundaries[0] = 0;
    boundaries[1] = number_between(0, 35);
    boundaries[2] = boundaries[1] + number_between(1, 80);
    boundaries[3] = boundaries[2] + number_between(0, 2);
    *layout = (dr_layout){3, boundaries[3], boundaries};
}

/* Returns whether there is a panel. */
static bool compare(pair of, const char *rule, int largest, double tolerance) {
    const dr_model_config config = draw_config(rule, largest);
    int32_t ids[MOST_ROWS], labels[MOST_ROWS];
    int64_t boundaries[4];
    double losses[2];
    dr_model *one, *other;
    dr_batch batch = {.ids = ids, .labels = labels};
    must(dr_model_create(of.with, &config, 5, &one));
    must(dr_model_create(of.without, &config, 5, &other));
    draw_layout(boundaries, &batch.layout);
    batch.targets = batch.layout.rows;
    for (int64_t i = 0; i < batch.layout.rows; i++) {
        ids[i] = (int32_t)number_between(0, VOCABULARY - 1);
        labels[i] = (int32_t)number_between(0, VOCABULARY - 1);
    }
    const size_t count = (size_t)(batch.targets * VOCABULARY);
    double *logits[2] = {malloc(count * sizeof(double)), malloc(count * sizeof(double))};
    must(learner_logits(one, &batch, NULL, DR_F64, logits[0]));
    must(learner_logits(other, &batch, NULL, DR_F64, logits[1]));
    if (memcmp(logits[0], logits[1], count * sizeof(double)) != 0)
        fail_msg("%s, hidden %d, %d heads of %d: a forward has other bits with a panel", rule, (int)config.hidden,
                 (int)config.heads, (int)config.key_size);
    must(learner_gradient(one, &batch, 1, &losses[0], NULL));
    must(learner_gradient(other, &batch, 1, &losses[1], NULL));
    assert_true(losses[0] == losses[1]);
    const double apart = gradients_apart(one, other);
    if (!(apart <= tolerance))
        fail_msg("%s, hidden %d, %d heads of %d: gradients are %.3g apart, %.3g at most", rule, (int)config.hidden,
                 (int)config.heads, (int)config.key_size, apart, tolerance);
    const bool joined = joins(one);
    assert_false(joins(other));
    free(logits[0]);
    free(logits[1]);
    learner_destroy(one);
    learner_destroy(other);
    return joined;
}

static void compare_rules(const char *backend, const char *isa, int largest, double tolerance) {
    const pair of = open_pair(backend, isa);
    int joined = 0;
    for (int i = 0; i < dr_rule_count(); i++)
        for (int round = 0; round < 2; round++) joined += compare(of, dr_rule_at(i)->name, largest, tolerance);
    assert_true(joined > dr_rule_count()); /* most rules have a panel */
    close_pair(of);
}

static void test_reference(void **state) {
    (void)state;
    compare_rules("reference", NULL, 1, 1e-12);
}

static void test_cpu(void **state) {
    (void)state;
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const dr_cpu_features features = dr_cpu_detect();
    const bool there[] = {true, features.avx2, features.avx512};
    for (int isa = 0; isa < 3; isa++) {
        if (there[isa])
            compare_rules("cpu", names[isa], 4, 2e-4);
        else
            printf("this machine has no %s: not tested\n", names[isa]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
