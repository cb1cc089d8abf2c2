/* The numbers of training against numbers worked out by hand: the mean of the gradient, bits a byte, AdamW, steps without an
 * update, the stream that recall is evaluated on, what a checkpoint keeps and in which order it reaches the disk. */
#include "run_spy.h"

#include "data/mqar.h"
#include "data/streams.h"

/* ---- loss and gradient ---- */

/* Gradients are of the mean over targets; what is told is the mean too, and metrics.csv holds the same number. */
static void test_means(void **state) {
    (void)state;
    static const char *const tasks[] = {"lm", "mqar"};
    for (int task = 0; task < 2; task++) {
        SPY_RUN("task", tasks[task], "batch", "3", "steps", "4");
        for (int i = 0; i < spy.steps; i++) {
            const spy_batch *batch = &spy.trained[i];
            assert_int_equal(batch->targets, task == 0 ? 3 * 8 : 3 * 2);
            assert_true(batch->factor == 1.0 / (double)batch->targets);
            assert_true(fabs(spy.progress[i].loss - batch->loss / (double)batch->targets) < 1e-14);
        }
    }
}

/* A separator is predicted like any token and costs bits, but it is no byte of the text. */
static void test_bits_per_byte(void **state) {
    (void)state;
    int64_t separators = 0;
    SPY_RUN("task", "lm", "steps", "60", "seq_len", "16");
    for (int i = 0; i < spy.steps; i++) {
        const spy_batch *batch = &spy.trained[i];
        int64_t bytes = 0;
        for (int64_t k = 0; k < batch->targets; k++) bytes += batch->labels[k] < 256;
        separators += batch->targets - bytes;
        double bits = batch->loss / 0.6931471805599453 / (double)bytes;
        assert_true(fabs(spy.progress[i].bits_per_byte - bits) < 1e-12 * bits);
    }
    assert_true(separators > 0);
    SPY_RUN("task", "mqar");
    assert_true(isnan(spy.progress[0].bits_per_byte));
}

/* Held-out numbers are means over the targets that were asked. */
static void test_held_out_numbers(void **state) {
    (void)state;
    for (int task = 0; task < 2; task++) {
        double loss = 0;
        int64_t targets = 0;
        SPY_RUN("task", task ? "mqar" : "lm", "steps", "1", "held_out", task ? "5" : "auto");
        for (int i = 0; i < spy.evaluations; i++) loss += spy.evaluated[i].loss, targets += spy.evaluated[i].targets;
        assert_true(fabs(spy.progress[0].held_out - loss / (double)targets) < 1e-12);
    }
    spy_fake_accuracy = 0.5;
    SPY_RUN("task", "mqar", "steps", "1", "held_out", "6");
    spy_fake_accuracy = -1;
    assert_true(spy.progress[0].accuracy == 0.5);
}

/* The cells of a line of metrics.csv. */
static void read_cells(int step, double cells[11]) {
    char path[PATH_MAX + 16];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/metrics.csv", spy_folder);
    char *text = scratch_read_at(path, &bytes), *line = text;
    assert_non_null(text);
    for (int i = 0; i < step; i++) line = strchr(line, '\n') + 1;
    for (int i = 0; i < 11; i++) {
        cells[i] = *line == ',' || *line == '\n' ? NAN : strtod(line, NULL);
        line += strcspn(line, ",\n") + 1;
    }
    free(text);
}

static void assert_near(double one, double other, double tolerance) {
    if (!(fabs(one - other) <= tolerance * fmax(fabs(one), fabs(other))) && !(isnan(one) && isnan(other)))
        fail_msg("%.17g and %.17g differ", one, other);
}

static void test_metrics_say_what_the_run_says(void **state) {
    (void)state;
    double cells[11];
    SPY_RUN("task", "lm", "steps", "3", "evaluate_every", "2", "seq_len", "16");
    for (int i = 0; i < 3; i++) {
        const dr_progress *told = &spy.progress[i];
        read_cells(i + 1, cells);
        const double wanted[] = {(double)told->step,  told->loss,          told->bits_per_byte,
                                 told->learning_rate, told->gradient_norm, told->tokens_per_second};
        for (int c = 0; c < 6; c++) assert_near(cells[c], wanted[c], c == 1 ? 0 : 1e-5);
        assert_near(cells[7], (double)told->skipped, 0);
        assert_near(cells[8], told->evaluated ? told->held_out : NAN, 0);
        assert_near(cells[9], told->evaluated ? told->held_out / 0.6931471805599453 : NAN, 1e-5);
        assert_true(isnan(cells[10]));
    }
}

/* ---- AdamW by hand ---- */

/* beta1 1/2, beta2 3/4, eps 1, rate 1/8, decay 1/4; p = 2, gradient 6 read at scale 1/2 as 3, then -2 read as -1.
 * Step 1: m = 3/2, v = 9/4; mhat = 3, vhat = 9; p = 2 - (3/(3 + 1) + 2/4)/8 = 2 - 5/32 = 59/32.
 * Step 2: m = 1/4, v = 31/16; mhat = 1/3, vhat = (31/16)/(7/16) = 31/7. */
static void test_adamw_by_hand(void **state) {
    (void)state;
    static const char *const names[] = {"reference", "cpu"};
    for (int i = 0; i < 2; i++) {
        dr_backend *backend = open_backend(names[i], NULL, 1);
        const double gradients[] = {6, -2}, start = 2;
        const double first = 59.0 / 32, second = first - (1.0 / 3 / (sqrt(31.0 / 7) + 1) + first / 4) / 8;
        const double wanted[] = {first, second};
        void *gradient, *parameter, *m, *v;
        must(dr_backend_allocate(backend, sizeof(double), &gradient));
        must(dr_backend_allocate(backend, sizeof(double), &parameter));
        must(dr_backend_allocate(backend, sizeof(double), &m));
        must(dr_backend_allocate(backend, sizeof(double), &v));
        dr_backend_zero(backend, m, sizeof(double));
        dr_backend_zero(backend, v, sizeof(double));
        must(dr_backend_upload(backend, parameter, &start, DR_F64, 1));
        for (int step = 1; step <= 2; step++) {
            const dr_adamw adamw = {.beta1 = 0.5, .beta2 = 0.75, .eps = 1};
            const dr_adamw_run run = {.count = 1, .learning_rate = 0.125, .weight_decay = 0.25};
            const dr_control control = {.scale = 0.5, .updates = step};
            double value;
            must(dr_backend_upload(backend, gradient, &gradients[step - 1], DR_F64, 1));
            must(backend->ops->adamw(backend, &adamw, &control, 1, &run, gradient, parameter, m, v));
            must(dr_backend_download(backend, &value, DR_F64, parameter, 1));
            assert_near(value, wanted[step - 1], 1e-6);
        }
        dr_backend_free(backend, gradient);
        dr_backend_free(backend, parameter);
        dr_backend_free(backend, m);
        dr_backend_free(backend, v);
        dr_backend_close(backend);
    }
}

/* Steps of AdamW count from 1; a step without an update does not count. */
static bool breaks_second(int64_t step) {
    return step == 2;
}

static void test_updates_are_counted(void **state) {
    (void)state;
    spy_breaks = breaks_second;
    SPY_RUN("task", "mqar", "steps", "4");
    spy_breaks = NULL;
    int per_step = spy.updates / 3;
    static const int64_t wanted[] = {1, 2, 3};
    for (int i = 0; i < spy.updates; i++) assert_int_equal(spy.update[i].control.updates, wanted[i / per_step]);
    assert_int_equal(spy_saved_count("updates"), 3);
    assert_int_equal(spy_saved_count("step"), 4);
}

/* ---- steps without an update ---- */

static bool breaks_but_50(int64_t step) {
    return step != 50;
}

static bool breaks_all(int64_t step) {
    (void)step;
    return true;
}

static bool breaks_2_4_5(int64_t step) {
    return step == 2 || step == 4 || step == 5;
}

/* 49 and 49 with a good one between them are no 50 in a row; the 50th in a row ends the run. */
static void test_skipped_in_a_row(void **state) {
    (void)state;
    spy_breaks = breaks_but_50;
    SPY_RUN("task", "mqar", "steps", "99");
    assert_int_equal(spy.status, DR_OK);
    assert_int_equal(spy.progress[98].skipped, 98);
    spy_breaks = breaks_all;
    SPY_RUN("task", "mqar", "steps", "99");
    assert_int_equal(spy.status, DR_ERROR_NUMERIC);
    assert_int_equal(spy.steps, 49);
    assert_non_null(strstr(spy.message, "50 steps in a row"));
    spy_breaks = breaks_2_4_5;
    SPY_RUN("task", "mqar", "steps", "5");
    assert_int_equal(spy_saved_count("skipped"), 3);
    assert_int_equal(spy_saved_count("skipped_in_row"), 2);
    SPY_RUN("task", "mqar", "steps", "6");
    assert_int_equal(spy_saved_count("skipped"), 3);
    assert_int_equal(spy_saved_count("skipped_in_row"), 0);
    static const int64_t skipped[] = {0, 1, 1, 2, 3, 3};
    for (int i = 0; i < 6; i++) assert_int_equal(spy.progress[i].skipped, skipped[i]);
    spy_breaks = NULL;
}

/* ---- recall ---- */

/* Held-out examples come from the stream of their own, in order, none twice, and not from what is trained on. */
static void test_recall_is_evaluated_on_its_own_stream(void **state) {
    (void)state;
    const dr_mqar_shape shape = {.vocabulary = 64, .length = 16, .pairs = 2, .power = 0.01, .random_fillers = true};
    dr_mqar *mqar;
    int32_t ids[16], labels[2];
    int64_t positions[2], example = 0;
    SPY_RUN("task", "mqar", "vocabulary", "64", "seq_len", "16", "held_out", "7", "steps", "1", "seed", "6", "held_out_seed",
            "5");
    must(dr_mqar_create(&shape, &mqar));
    for (int i = 0; i < spy.evaluations; i++) {
        const spy_batch *batch = &spy.evaluated[i];
        for (int64_t k = 0; k < batch->sequences; k++, example++) {
            dr_random random = dr_stream(5, DR_STREAM_HELD_OUT_EXAMPLES, example);
            dr_mqar_draw(mqar, &random, 16, 2, ids, positions, labels);
            assert_memory_equal(batch->ids + 16 * k, ids, sizeof ids);
            assert_memory_equal(batch->labels + 2 * k, labels, sizeof labels);
            assert_int_equal(batch->positions[2 * k], positions[0] + 16 * k);
            assert_true(memcmp(spy.trained[0].ids + 16 * (k % 2), ids, sizeof ids) != 0);
        }
    }
    assert_int_equal(example, 7);
    dr_mqar_destroy(mqar);
}

/* ---- checkpoints ---- */

static void edit_optimizer(const char *from, const char *to) {
    char path[PATH_MAX + 32];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/optimizer.safetensors", spy_folder);
    char *data = scratch_read_at(path, &bytes);
    assert_non_null(data);
    char *found = memmem(data, bytes, from, strlen(from));
    if (!found) fail_msg("optimizer.safetensors lacks %s", from);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(found, to, strlen(to));
    scratch_write_at(path, data, bytes);
    free(data);
}

static void test_negative_counts_are_refused(void **state) {
    (void)state;
    static const char *const keys[] = {"step", "skipped", "skipped_in_row", "updates"};
    spy_breaks = breaks_all; /* so that every count has two digits */
    SPY_RUN("task", "mqar", "steps", "12");
    spy_breaks = NULL;
    for (int i = 0; i < 4; i++) {
        char good[64], bad[64];
        dr_run *run;
        snprintf(good, sizeof good, "\"%s\":\"%s\"", keys[i], i == 3 ? "0" : "12");
        snprintf(bad, sizeof bad, "\"%s\":\"%s\"", keys[i], i == 3 ? "-" : "-2");
        edit_optimizer(good, bad);
        assert_refused(dr_run_resume(spy_backend, spy_folder, NULL, &run), DR_ERROR_FORMAT, "it must be a count");
        edit_optimizer(bad, good);
    }
}

/* Resuming begins with what was saved: every number of the position. */
static void test_position_is_kept(void **state) {
    (void)state;
    dr_run *run;
    spy_breaks = breaks_2_4_5;
    spy_fake_accuracy = 0.5;
    SPY_RUN("task", "mqar", "steps", "5");
    spy_breaks = NULL;
    spy_fake_accuracy = -1;
    must(dr_run_resume(spy_backend, spy_folder, NULL, &run));
    assert_int_equal(run->position.step, 5);
    assert_int_equal(run->position.skipped, 3);
    assert_int_equal(run->position.skipped_in_row, 2);
    assert_int_equal(run->optimizer->updates, 2);
    assert_true(run->position.held_out == spy.progress[4].held_out);
    assert_true(run->position.accuracy == 0.5);
    assert_true(run->position.seconds == spy.progress[4].seconds);
    assert_true(run->position.fingerprint == spy.fingerprint);
    dr_run_destroy(run);
}

/* ---- times ---- */

/* A resumed run goes on with the seconds that it had; speed is of the tokens of a step; nothing is left at the end. */
static void test_times(void **state) {
    (void)state;
    dr_run *run;
    dr_train_options *changes;
    SPY_RUN("task", "mqar", "steps", "3", "batch", "3", "held_out", "50");
    for (int i = 0; i < 3; i++) {
        const dr_progress *told = &spy.progress[i];
        assert_true(told->seconds > (i ? told[-1].seconds : 0));
        assert_true(told->tokens_per_second > 3 * 8 * (i + 1) / told->seconds / 2);
        assert_true(i == 2 ? told->seconds_left == 0 : told->seconds_left > 0);
    }
    const double before = spy.progress[2].seconds;
    must(dr_train_options_create(&changes));
    must(dr_train_options_set(changes, "steps", "4"));
    must(dr_run_resume(spy_backend, spy_folder, changes, &run));
    must(dr_run_train(run, spy_follow, NULL));
    assert_int_equal(spy.steps, 4);
    assert_true(spy.progress[3].step == 4 && spy.progress[3].seconds > before);
    dr_run_destroy(run);
    dr_train_options_destroy(changes);
}

/* ---- the order in which things reach the disk ---- */

static char synced[SPY_MOST][64]; /* the last part of each path, in order; a folder's ends in '/' */
static int syncs;

static void note_sync(int descriptor) {
    char link[64], path[PATH_MAX];
    struct stat facts;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    assert_true(length > 0 && fstat(descriptor, &facts) == 0);
    path[length] = '\0';
    if (syncs < SPY_MOST)
        snprintf(synced[syncs++], sizeof synced[0], "%.60s%s", strrchr(path, '/') + 1, S_ISDIR(facts.st_mode) ? "/" : "");
}

static int sync_of(const char *name, int from) {
    for (int i = from; i < syncs; i++)
        if (strcmp(synced[i], name) == 0) return i;
    return -1;
}

/* Each checkpoint after the first comes behind a sync of the metrics of its steps, and syncs its files and its folder; the
 * folder that holds a new run folder is synced too. */
static void test_what_is_synced(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "settings.json"};
    char parent[64];
    syncs = 0;
    spy_on_sync = note_sync;
    SPY_RUN("task", "mqar", "steps", "4", "save_every", "2");
    spy_on_sync = NULL;
    snprintf(parent, sizeof parent, "%s/", strrchr(scratch_folder, '/') + 1);
    assert_true(sync_of(parent, 0) >= 0);
    for (int checkpoint = 0, from = 0; checkpoint < 3; checkpoint++) {
        int metrics = checkpoint ? sync_of("metrics.csv", from) : from, last = metrics;
        assert_true(metrics >= 0);
        for (int i = 0; i < 4; i++) {
            int at = sync_of(files[i], metrics);
            if (at < 0) fail_msg("checkpoint %d does not sync %s after metrics.csv", checkpoint, files[i]);
            if (at > last) last = at;
        }
        from = sync_of("run/", last);
        if (from < 0) fail_msg("checkpoint %d does not sync its folder after its files", checkpoint);
    }
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    spy_write_corpus();
    spy_open();
    return 0;
}

static int end(void **state) {
    spy_close();
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_bits_per_byte),
        cmocka_unit_test(test_held_out_numbers),
        cmocka_unit_test(test_metrics_say_what_the_run_says),
        cmocka_unit_test(test_adamw_by_hand),
        cmocka_unit_test(test_updates_are_counted),
        cmocka_unit_test(test_skipped_in_a_row),
        cmocka_unit_test(test_recall_is_evaluated_on_its_own_stream),
        cmocka_unit_test(test_negative_counts_are_refused),
        cmocka_unit_test(test_position_is_kept),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_what_is_synced),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
