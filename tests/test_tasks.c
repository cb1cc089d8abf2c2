/* Tasks of synthetic examples: which streams their batches are of, what is told of held-out sets, how runs go on, refusals. */
#include "allocation.h"
#include "data/sizes.h"
#include "data/streams.h"
#include "scratch.h"
#include "statuses.h"
#include "train/task.h"

#include <deltarule/train.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 4096 };

typedef struct {
    int32_t ids[MOST_TOKENS], labels[MOST_TOKENS];
    int64_t positions[MOST_TOKENS];
} example;

static dr_generator *open_generator(const char *name, const dr_generator_options *options, int64_t length, int64_t pairs) {
    dr_generator *generator;
    must(dr_generator_find(name)->create(options, (dr_example_size){length, pairs}, &generator));
    return generator;
}

static dr_backend *cpu;

static dr_train_options *options_of(const char *const *settings) {
    static const char *const tiny[] = {
        "steps",        "2",  "batch",     "4", "hidden",         "8", "layers",   "1", "heads", "1",
        "intermediate", "12", "conv_size", "0", "evaluate_every", "1", "held_out", "6", NULL};
    dr_train_options *options;
    must(dr_train_options_create(&options));
    for (int i = 0; tiny[i]; i += 2) must(dr_train_options_set(options, tiny[i], tiny[i + 1]));
    for (int i = 0; settings[i]; i += 2) must(dr_train_options_set(options, settings[i], settings[i + 1]));
    return options;
}

#define OPTIONS(...) options_of((const char *const[]){__VA_ARGS__, NULL})

/* Batches are examples of the training stream, whose numbers go on from step to step; none is of the held-out stream. */
static void test_batches_are_of_the_training_stream(void **state) {
    (void)state;
    static example one, other;
    static const char *const names[] = {"parity", "arithmetic", "arithmetic_brackets", "group", "mqar"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool recall = strcmp(names[i], "mqar") == 0;
        dr_train_options *options = OPTIONS("task", names[i], "seed", "7", "lengths", recall ? "32/2*3 64/4" : "33-57*2 61",
                                            "held_out_lengths", recall ? "64/4" : "61", "vocabulary", "100");
        const dr_generator_options of_generator = {
            .group = "S3", .tokens = 1, .vocabulary = 100, .power = 0.01, .random_fillers = true};
        dr_generator *generator = open_generator(names[i], &of_generator, 64, 4);
        dr_sizes sizes;
        dr_task *task;
        must(dr_sizes_parse("lengths", dr_train_options_get(options, "lengths"), recall ? 4 : 0, true, &sizes));
        must(dr_sizes_fit(generator, "lengths", &sizes));
        must(dr_task_create(options, &task));
        for (int64_t step = 1, number = 0; step <= 5; step++) {
            dr_batch batch;
            int64_t bytes, row = 0, target = 0;
            must(task->ops->batch(task, step, &batch, &bytes));
            assert_true(batch.layout.sequences == 4 && bytes == 0);
            for (int64_t k = 0; k < 4; k++, number++) {
                dr_random random = dr_stream(7, DR_STREAM_TRAINING_EXAMPLES, number),
                          held_out = dr_stream(7, DR_STREAM_HELD_OUT_EXAMPLES, number);
                const dr_example_size size = dr_sizes_draw(&sizes, generator->kind, &random);
                const int64_t tokens = generator->kind->tokens(generator, size);
                const int64_t targets = generator->kind->targets(generator, size);
                generator->kind->draw(generator, &random, size, &(dr_example){one.ids, one.positions, one.labels});
                generator->kind->draw(generator, &held_out, size, &(dr_example){other.ids, other.positions, other.labels});
                assert_memory_equal(batch.ids + row, one.ids, (size_t)tokens * sizeof(int32_t));
                assert_memory_not_equal(batch.ids + row, other.ids, (size_t)tokens * sizeof(int32_t));
                assert_memory_equal(batch.labels + target, one.labels, (size_t)targets * sizeof(int32_t));
                for (int64_t t = 0; t < targets; t++) assert_int_equal(batch.positions[target + t], one.positions[t] + row);
                assert_int_equal(batch.layout.cu_seqlens ? batch.layout.cu_seqlens[k] : k * tokens, row);
                row += tokens, target += targets;
            }
            assert_true(batch.layout.rows == row && batch.targets == target);
            assert_true(row <= task->rows && target <= task->targets && task->sequences == 4);
        }
        task->ops->destroy(task);
        dr_generator_destroy(generator);
        dr_train_options_destroy(options);
    }
}

/* What a run's last line of metrics says of its sets, and what scoring the model says afterwards; of each task the defaults. */
typedef struct {
    dr_task_score set[4];
    char names[4][32];
    int count;
    int64_t done;
} scores;

static void keep_set(void *context, const dr_task_score *score) {
    scores *self = context;
    assert_in_range(self->count, 0, 3);
    snprintf(self->names[self->count], sizeof self->names[0], "%s", score->set);
    self->set[self->count++] = *score;
}

static bool keep_progress(void *context, int64_t done, int64_t total) {
    scores *self = context;
    assert_true(done > self->done && done <= total);
    self->done = done;
    return true;
}

static double cell(const char *file, const char *column) {
    size_t bytes;
    char *text = scratch_read_at(file, &bytes), *line = strrchr(text, '\n');
    double value = -1;
    *line = '\0';
    line = strrchr(text, '\n') + 1;
    char *end = strchr(text, '\n');
    *end = '\0';
    for (char *name = text; name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL) {
        if (strcspn(name, ",") == strlen(column) && strncmp(name, column, strlen(column)) == 0) value = strtod(line, NULL);
        line += strcspn(line, ",") + 1;
    }
    free(text);
    return value;
}

static void test_sets_are_scored(void **state) {
    (void)state;
    static const struct {
        const char *task, *lengths, *held_out;
        int sets;
    } cases[] = {{"parity", "auto", "auto", 2},
                 {"arithmetic", "3-9", "11 15 3-40", 3},
                 {"arithmetic_brackets", "auto", "auto", 2},
                 {"group", "5", "5 9 40", 3},
                 {"mqar", "32/2*2 64/4", "auto", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char column[80], file[PATH_MAX];
        dr_train_options *options = OPTIONS("task", cases[i].task, "lengths", cases[i].lengths, "held_out_lengths",
                                            cases[i].held_out, "vocabulary", "100");
        dr_run *run;
        scores found = {.count = 0};
        scratch_remove(scratch_path("run"));
        must(dr_run_create(cpu, options, scratch_path("run"), &run));
        must(dr_run_train(run, NULL, NULL));
        must(dr_score_task(dr_run_model(run), options, &(dr_task_score_calls){keep_progress, keep_set, &found}));
        assert_int_equal(found.count, cases[i].sets);
        assert_int_equal(found.done, 6 * cases[i].sets);
        snprintf(file, sizeof file, "%s", scratch_path("run/metrics.csv"));
        double mean = 0;
        for (int k = 0; k < found.count; k++) {
            const dr_task_score *set = &found.set[k];
            assert_true(set->examples == 6 && set->sets == found.count);
            assert_true(set->sequence_accuracy <= set->accuracy);
            snprintf(column, sizeof column, "held_out_loss:%s", found.names[k]);
            assert_true(fabs(cell(file, column) - set->loss) < 1e-6 * set->loss);
            snprintf(column, sizeof column, "accuracy:%s", found.names[k]);
            assert_true(fabs(cell(file, column) - set->accuracy) < 1e-5);
            snprintf(column, sizeof column, "sequence_accuracy:%s", found.names[k]);
            assert_true(fabs(cell(file, column) - set->sequence_accuracy) < 1e-5);
            mean += set->accuracy / found.count;
        }
        assert_true(fabs(cell(file, "accuracy") - mean) < 1e-5);
        must(dr_score_task(dr_run_model(run), options, NULL));
        dr_run_destroy(run);
        dr_train_options_destroy(options);
    }
}

/* Of one example alone: it is whole where all of its answers are right, and then only. */
static void test_whole_examples(void **state) {
    (void)state;
    dr_train_options *options = OPTIONS("task", "group", "lengths", "5", "held_out_lengths", "5");
    dr_run *run;
    int some = 0;
    scratch_remove(scratch_path("run"));
    must(dr_run_create(cpu, options, scratch_path("run"), &run));
    must(dr_run_train(run, NULL, NULL));
    must(dr_train_options_set(options, "held_out", "1"));
    for (int length = 2; length <= 40; length++) {
        char text[16];
        scores found = {.count = 0};
        snprintf(text, sizeof text, "%d", length);
        must(dr_train_options_set(options, "held_out_lengths", text));
        must(dr_score_task(dr_run_model(run), options, &(dr_task_score_calls){NULL, keep_set, &found}));
        assert_true(found.count == 1 && found.set[0].examples == 1);
        assert_true(found.set[0].sequence_accuracy == (found.set[0].accuracy == 1));
        some += found.set[0].accuracy > 0 && found.set[0].accuracy < 1;
    }
    assert_true(some > 4);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

static bool stop_at_two(void *context, const dr_progress *progress) {
    (void)context;
    return progress->step < 2;
}

/* Two steps, two more after a checkpoint, and four at once: the same numbers. */
static void test_runs_resume(void **state) {
    (void)state;
    static const char *const names[] = {"parity", "arithmetic", "group", "mqar"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double loss[2];
        for (int parts = 1; parts <= 2; parts++) {
            dr_train_options *options =
                OPTIONS("task", names[i], "steps", "4", "save_every", "2", "vocabulary", "100", "updates", "2");
            dr_run *run;
            scratch_remove(scratch_path("run"));
            must(dr_run_create(cpu, options, scratch_path("run"), &run));
            if (parts == 2) {
                assert_int_equal(dr_run_train(run, stop_at_two, NULL), DR_ERROR_INTERRUPTED);
                dr_run_destroy(run);
                must(dr_run_resume(cpu, scratch_path("run"), NULL, &run));
            }
            must(dr_run_train(run, NULL, NULL));
            dr_run_destroy(run);
            loss[parts - 1] = cell(scratch_path("run/metrics.csv"), "held_out_loss");
            dr_train_options_destroy(options);
        }
        assert_true(loss[0] == loss[1] && loss[0] > 0);
    }
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *task, *name, *value, *part;
    } cases[] = {{"parity", "lengths", "1-5", "lengths has 1-5: examples of parity have lengths from 2 on"},
                 {"parity", "lengths", "64/4", "\"64/4\" is not a length"},
                 {"parity", "held_out_lengths", "64*2", "held_out_lengths is \"64*2\""},
                 {"parity", "seq_len", "64", "seq_len is 64, but task parity has examples of several lengths"},
                 {"arithmetic", "lengths", "8", "lengths has 8: examples of arithmetic have lengths 3, 5 and so on"},
                 {"arithmetic", "held_out_lengths", "40", "held_out_lengths has 40"},
                 {"arithmetic_brackets", "lengths", "4", "have lengths from 5 on up to 4096"},
                 {"arithmetic_brackets", "lengths", "5-4097", "have lengths from 5 on up to 4096"},
                 {"group", "group", "S7", "group is \"S7\": it must be S1 to S6"},
                 {"group", "group", "", "group is \"\""},
                 {"group", "group", "S3x", "group is \"S3x\""},
                 {"group", "group", "D4", "group is \"D4\""},
                 {"group", "group", "Z1025", "group is \"Z1025\""},
                 {"group", "group", "S5xZ60", "group S5xZ60 has more than 1024 elements"},
                 {"group", "group", "Z99999999999999999999", "group is \"Z9"},
                 {"group", "moves", "1", "moves is 1: of group S3 only the identity"},
                 {"mqar", "updates", "5", "updates is 5: of 4 pairs"},
                 {"mqar", "lengths", "18/4 63", "seq_len is 63"},
                 {"mqar", "lengths", "64/17", "17 pairs do not fit into seq_len 64"},
                 {"mqar", "lengths", "10000/4", "vocabulary is 8192"},
                 {"mqar", "held_out_lengths", "8192", "vocabulary is 8192"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dr_task *task = (dr_task *)1;
        dr_train_options *options = OPTIONS("task", cases[i].task, cases[i].name, cases[i].value);
        assert_refused(dr_task_create(options, &task), DR_ERROR_ARGUMENT, cases[i].part);
        assert_null(task);
        dr_train_options_destroy(options);
    }
}

static void test_only_models_of_a_task_are_scored(void **state) {
    (void)state;
    dr_train_options *options = OPTIONS("task", "parity"), *other = OPTIONS("task", "group"), *text = OPTIONS("task", "lm");
    dr_run *run;
    must(dr_run_prepare(cpu, options, &run));
    assert_refused(dr_score_task(dr_run_model(run), other, NULL), DR_ERROR_ARGUMENT, "the model has 3 ids, and task group");
    assert_int_equal(dr_score_task(dr_run_model(run), text, NULL), DR_ERROR_ARGUMENT);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    dr_train_options_destroy(other);
    dr_train_options_destroy(text);
}

/* ---- failed allocations ---- */

/* Making a task, a batch, and a score of a model. */
static dr_status use_tasks(void *context) {
    dr_model *model = context;
    static const char *const names[] = {"parity", "arithmetic", "arithmetic_brackets", "group", "mqar"};
    dr_status status = DR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == DR_OK; i++) {
        dr_train_options *options = NULL;
        dr_task *task = NULL;
        dr_batch batch;
        int64_t bytes;
        status = dr_train_options_create(&options);
        if (status == DR_OK) status = dr_train_options_set(options, "task", names[i]);
        if (status == DR_OK) status = dr_train_options_set(options, "batch", "2");
        if (status == DR_OK) status = dr_train_options_set(options, "held_out", "3");
        if (status == DR_OK) status = dr_task_create(options, &task);
        if (status == DR_OK) status = task->ops->batch(task, 1, &batch, &bytes);
        if (status == DR_OK && i == 0) status = dr_score_task(model, options, NULL);
        if (task) task->ops->destroy(task);
        dr_train_options_destroy(options);
    }
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    dr_train_options *options = OPTIONS("task", "parity");
    dr_run *run;
    must(dr_run_prepare(cpu, options, &run));
    assert_true(assert_survives_failed_allocations(use_tasks, dr_run_model(run)) > 20);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

static int begin(void **state) {
    must(dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &cpu));
    return scratch_begin(state);
}

static int end(void **state) {
    dr_backend_close(cpu);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_of_the_training_stream),
        cmocka_unit_test(test_sets_are_scored),
        cmocka_unit_test(test_whole_examples),
        cmocka_unit_test(test_runs_resume),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_only_models_of_a_task_are_scored),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
