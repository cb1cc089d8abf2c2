/* Training: runs that stop, resume, fail and end. The runs are tiny; what they must show is
 * exact, so their size does not matter. */
#include "allocation.h"
#include "formats/json.h"
#include "scratch.h"
#include "train/task.h"

#include <deltarule/train.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

/* Nothing here is about the disk, which would take most of the time. */
int __wrap_fsync(int descriptor);
int __wrap_fsync(int descriptor) {
    return fcntl(descriptor, F_GETFD) < 0 ? -1 : 0;
}

static dr_train_options *new_options(void) {
    dr_train_options *options;
    assert_int_equal(dr_train_options_create(&options), DR_OK);
    return options;
}

static void set(dr_train_options *options, const char *name, const char *value) {
    if (dr_train_options_set(options, name, value) != DR_OK) fail_msg("%s", dr_last_error());
}

static dr_backend *reference, *cpu;

enum { STEPS = 12 };

/* A corpus of 40 small files. */
static const char *write_corpus(void) {
    char name[64], text[1024];
    for (int i = 0; i < 40; i++) {
        int length = snprintf(text, sizeof text, "page %d\n", i);
        for (int line = 0; line < 12; line++)
            length += snprintf(text + length, sizeof text - (size_t)length, "the option -%c of command %d is %s.\n", 'a' + line,
                               i * line % 17, line % 3 ? "common" : "seldom used");
        snprintf(name, sizeof name, "corpus/%02d.txt", i);
        scratch_write(name, text, (size_t)length);
    }
    return scratch_path("corpus");
}

static dr_train_options *tiny(const char *task) {
    static const char *const values[][2] = {{"steps", "12"},        {"batch", "3"},          {"seq_len", "32"},
                                            {"hidden", "16"},       {"layers", "2"},         {"heads", "2"},
                                            {"intermediate", "16"}, {"save_every", "5"},     {"vocabulary", "64"},
                                            {"stop_accuracy", "0"}, {"evaluate_every", "4"}, {"evaluate_tokens", "500"}};
    dr_train_options *options = new_options();
    set(options, "task", task);
    if (strcmp(task, "lm") == 0)
        set(options, "corpus", scratch_path("corpus"));
    else
        set(options, "held_out", "8");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) set(options, values[i][0], values[i][1]);
    return options;
}

/* What a callback saw, and what it should do. */
typedef struct {
    dr_run *run;
    int64_t calls, stop_at, break_at, mend_at; /* steps; 0: never */
    double broken, losses[256], held_out, accuracy;
    int64_t skipped;
} watch;

static bool follow(void *context, const dr_progress *progress) {
    watch *seen = context;
    dr_model *model = dr_run_model(seen->run);
    assert_true(progress->step >= 1 && progress->step <= progress->steps && progress->step < 256);
    seen->calls++;
    seen->losses[progress->step] = progress->loss;
    seen->skipped = progress->skipped;
    if (progress->evaluated) seen->held_out = progress->held_out, seen->accuracy = progress->accuracy;
    if (progress->step == seen->break_at || progress->step == seen->mend_at) {
        dr_backend *backend = dr_model_backend(model);
        double value = progress->step == seen->break_at ? NAN : 0.25;
        assert_int_equal(dr_backend_upload(backend, dr_model_parameter_block(model), &value, DR_F64, 1), DR_OK);
    }
    return progress->step != seen->stop_at;
}

static dr_status train(dr_run *run, watch *seen) {
    seen->run = run;
    return dr_run_train(run, follow, seen);
}

static dr_run *create(dr_backend *backend, dr_train_options *options, const char *folder) {
    dr_run *run;
    if (dr_run_create(backend, options, scratch_path(folder), &run) != DR_OK) fail_msg("%s", dr_last_error());
    return run;
}

static dr_run *resume(dr_backend *backend, const char *folder) {
    dr_run *run;
    if (dr_run_resume(backend, scratch_path(folder), NULL, &run) != DR_OK) fail_msg("%s", dr_last_error());
    return run;
}

/* A whole run, with what was seen. */
static watch run_through(dr_backend *backend, dr_train_options *options, const char *folder) {
    watch seen = {0};
    dr_run *run = create(backend, options, folder);
    assert_int_equal(train(run, &seen), DR_OK);
    dr_run_destroy(run);
    return seen;
}

static char *read_file(const char *folder, const char *name, size_t *bytes) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", scratch_path(folder), name);
    char *data = scratch_read_at(path, bytes);
    if (!data) fail_msg("%s is not there", path);
    return data;
}

static void assert_same_file(const char *folder, const char *other, const char *name) {
    size_t bytes, other_bytes;
    char *data = read_file(folder, name, &bytes), *other_data = read_file(other, name, &other_bytes);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(data, other_data, bytes);
    free(data);
    free(other_data);
}

/* The lines of metrics.csv must be those of steps 1 .. steps; their losses, held-out losses and accuracies go to columns. */
typedef struct {
    char loss[64][32], held_out[64][32], accuracy[64][32];
} metrics;

static metrics read_metrics(const char *folder, int64_t steps) {
    metrics read = {0};
    size_t bytes;
    char *data = read_file(folder, "metrics.csv", &bytes), *line = data;
    assert_memory_equal(line, "step,loss,", 10);
    for (int64_t step = 1; step <= steps; step++) {
        line = strchr(line, '\n') + 1;
        char *cell = line, *cells[12];
        for (int i = 0; i < 12; i++) {
            cells[i] = cell;
            cell += strcspn(cell, ",\n") + 1;
        }
        assert_int_equal(atoll(line), step);
        assert_int_equal(cell[-1], '\n');
        snprintf(read.loss[step], 32, "%.*s", (int)strcspn(cells[1], ","), cells[1]);
        snprintf(read.held_out[step], 32, "%.*s", (int)strcspn(cells[8], ","), cells[8]);
        snprintf(read.accuracy[step], 32, "%.*s", (int)strcspn(cells[10], ","), cells[10]);
    }
    assert_string_equal(strchr(line, '\n'), "\n");
    free(data);
    return read;
}

static void assert_same_run(const char *folder, const char *other) {
    metrics one = read_metrics(folder, STEPS), two = read_metrics(other, STEPS);
    assert_memory_equal(&one, &two, sizeof one);
    assert_same_file(folder, other, "model.safetensors");
    assert_same_file(folder, other, "settings.json");
}

static void test_resumed_runs_are_the_same(void **state) {
    (void)state;
    static const char *const tasks[] = {"lm", "mqar"};
    dr_backend *const backends[] = {cpu, reference};
    for (int i = 0; i < 4; i++) {
        dr_backend *backend = backends[i / 2];
        dr_train_options *options = tiny(tasks[i % 2]);
        scratch_remove(scratch_path("whole"));
        scratch_remove(scratch_path("parts"));
        run_through(backend, options, "whole");
        watch seen = {.stop_at = 3};
        dr_run *run = create(backend, options, "parts");
        assert_int_equal(train(run, &seen), DR_ERROR_INTERRUPTED);
        assert_non_null(strstr(dr_last_error(), "after step 3 of 12"));
        dr_run_destroy(run);
        seen.stop_at = 9;
        run = resume(backend, "parts");
        assert_int_equal(train(run, &seen), DR_ERROR_INTERRUPTED);
        dr_run_destroy(run);
        seen.stop_at = 0;
        run = resume(backend, "parts");
        assert_int_equal(train(run, &seen), DR_OK);
        assert_int_equal(seen.calls, STEPS);
        assert_int_equal(train(run, &seen), DR_OK); /* nothing is left to do */
        assert_int_equal(seen.calls, STEPS);
        dr_run_destroy(run);
        assert_same_run("whole", "parts");
        dr_train_options_destroy(options);
    }
}

static void copy_file(const char *from, const char *name, const char *to) {
    size_t bytes;
    char path[PATH_MAX], *data = read_file(from, name, &bytes);
    snprintf(path, sizeof path, "%s/%s", to, name);
    scratch_write(path, data, bytes);
    free(data);
}

/* The settings of a run as they were before held-out text had a seed, a share and a path of its own. */
static void make_settings_old(const char *folder) {
    char path[PATH_MAX];
    json_t *settings;
    snprintf(path, sizeof path, "%s/settings.json", scratch_path(folder));
    assert_int_equal(dr_json_read(path, &settings), DR_OK);
    assert_int_equal(json_object_del(settings, "held_out_seed"), 0);
    assert_int_equal(json_object_del(settings, "skip_unreadable"), 0);
    const char *task = json_string_value(json_object_get(settings, "task"));
    assert_int_equal(json_object_set_new(settings, "held_out", json_integer(strcmp(task, "lm") == 0 ? 1000 : 8)), 0);
    assert_int_equal(dr_json_write(path, settings), DR_OK);
    json_decref(settings);
}

/* They had one seed for everything. */
static void test_runs_of_earlier_versions_go_on(void **state) {
    (void)state;
    static const char *const tasks[] = {"lm", "mqar"};
    for (int i = 0; i < 2; i++) {
        dr_train_options *options = tiny(tasks[i]);
        set(options, "seed", "7");
        set(options, "held_out_seed", "7");
        scratch_remove(scratch_path("whole"));
        scratch_remove(scratch_path("old"));
        run_through(cpu, options, "whole");
        watch seen = {.stop_at = 5};
        dr_run *run = create(cpu, options, "old");
        assert_int_equal(train(run, &seen), DR_ERROR_INTERRUPTED);
        dr_run_destroy(run);
        make_settings_old("old");
        seen.stop_at = 0;
        run = resume(cpu, "old");
        assert_int_equal(train(run, &seen), DR_OK);
        dr_run_destroy(run);
        assert_same_run("whole", "old");
        dr_train_options_destroy(options);
    }
}

/* A kill after step 9: the checkpoint is that of step 5, metrics go on to step 9 and end within a line. */
static void test_killed_runs_are_the_same(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "optimizer.safetensors", "settings.json"};
    dr_train_options *options = tiny("lm");
    scratch_remove(scratch_path("whole"));
    run_through(cpu, options, "whole");
    watch seen = {.stop_at = 5};
    dr_run *run = create(cpu, options, "left");
    assert_int_equal(train(run, &seen), DR_ERROR_INTERRUPTED);
    dr_run_destroy(run);
    for (int i = 0; i < 4; i++) copy_file("left", files[i], "killed");
    size_t bytes;
    char *data = read_file("whole", "metrics.csv", &bytes);
    scratch_write("killed/metrics.csv", data, (size_t)(strstr(data, "\n9,") - data) + 20);
    free(data);
    seen.stop_at = 0;
    run = resume(cpu, "killed");
    assert_int_equal(train(run, &seen), DR_OK);
    assert_int_equal(seen.calls, STEPS);
    dr_run_destroy(run);
    assert_same_run("whole", "killed");
    dr_train_options_destroy(options);
}

static void test_threads_do_not_change_a_run(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 4};
    static const char *const folders[] = {"one-thread", "two-threads", "four-threads"};
    dr_train_options *options = tiny("lm");
    for (int i = 0; i < 3; i++) {
        dr_backend *backend;
        assert_int_equal(dr_backend_open("cpu", &(dr_backend_options){.threads = threads[i]}, &backend), DR_OK);
        run_through(backend, options, folders[i]);
        dr_backend_close(backend);
        assert_same_run(folders[0], folders[i]);
    }
    dr_train_options_destroy(options);
}

static void test_loss_falls(void **state) {
    (void)state;
    dr_train_options *options = tiny("lm");
    set(options, "steps", "200");
    set(options, "save_every", "0");
    set(options, "evaluate_every", "0");
    set(options, "learning_rate", "0.01");
    watch seen = run_through(cpu, options, "long");
    assert_true(seen.losses[1] > 5 && seen.losses[1] < 6); /* ln 257 = 5.55: it knows nothing */
    assert_true(seen.losses[200] < 2.5);
    assert_true(seen.held_out < 2.5 && isnan(seen.accuracy));
    dr_train_options_destroy(options);
}

/* The number of queries of each example of 200 batches; the first of them is where the tokens of an example begin anew. */
static void test_recall_of_a_mixture(void **state) {
    (void)state;
    enum { LENGTH = 32, BATCH = 3, STEPS_DRAWN = 200 };
    dr_train_options *options = tiny("mqar");
    set(options, "pairs", "8");
    set(options, "least_pairs", "2");
    dr_task *task;
    assert_int_equal(dr_task_create(options, &task), DR_OK);
    int64_t with[9] = {0};
    for (int64_t step = 1; step <= STEPS_DRAWN; step++) {
        dr_batch batch;
        int64_t bytes, queries[BATCH] = {0};
        assert_int_equal(task->ops->batch(task, step, &batch, &bytes), DR_OK);
        for (int64_t i = 0; i < batch.targets; i++) {
            const int64_t position = batch.positions[i], example = position / LENGTH;
            assert_in_range(position, 0, BATCH * LENGTH - 1);
            queries[example]++;
            bool shown = false; /* the key, with the label as its value */
            for (int64_t t = example * LENGTH; t < position; t++)
                shown |= batch.ids[t] == batch.ids[position] && batch.ids[t + 1] == batch.labels[i];
            assert_true(shown);
        }
        for (int i = 0; i < BATCH; i++) {
            assert_in_range(queries[i], 2, 8);
            with[queries[i]]++;
        }
    }
    assert_int_equal(with[2] + with[4] + with[8], BATCH * STEPS_DRAWN);
    for (int pairs = 2; pairs <= 8; pairs *= 2) assert_in_range(with[pairs], 150, 250); /* a third of 600, 4.3 deviations */
    task->ops->destroy(task);
    dr_train_options_destroy(options);
}

static void test_good_enough_ends_a_run(void **state) {
    (void)state;
    dr_train_options *options = tiny("mqar");
    set(options, "vocabulary", "40");
    set(options, "held_out", "300"); /* by chance some of 2400 answers out of 40 are right */
    set(options, "stop_accuracy", "0.0001");
    set(options, "seed", "3");
    watch seen = run_through(cpu, options, "good");
    assert_int_equal(seen.calls, 4);
    assert_true(seen.accuracy >= 0.0001 && seen.accuracy < 0.5);
    dr_run *run = resume(cpu, "good");
    assert_int_equal(train(run, &seen), DR_OK);
    assert_int_equal(seen.calls, 4);
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

static void test_broken_gradients_are_skipped(void **state) {
    (void)state;
    dr_train_options *options = tiny("mqar");
    watch seen = {.break_at = 3, .mend_at = 6};
    dr_run *run = create(cpu, options, "skips");
    assert_int_equal(train(run, &seen), DR_OK);
    assert_int_equal(seen.skipped, 3);
    for (int step = 1; step <= STEPS; step++) assert_int_equal(isfinite(seen.losses[step]) != 0, step < 4 || step > 6);
    dr_run_destroy(run);

    set(options, "steps", "100");
    seen = (watch){.break_at = 1};
    run = create(cpu, options, "broken");
    assert_int_equal(train(run, &seen), DR_ERROR_NUMERIC);
    assert_non_null(strstr(dr_last_error(), "50 steps in a row, up to step 51"));
    dr_run_destroy(run);
    dr_train_options_destroy(options);
}

/* The files in held_out of a run folder are files of the corpus. */
static void test_held_out_text_is_published(void **state) {
    (void)state;
    dr_train_options *options = tiny("lm");
    dr_run *run = create(cpu, options, "published");
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    int64_t found = 0;
    for (int i = 0; i < 40; i++) {
        char original[64], published[64];
        snprintf(original, sizeof original, "%02d.txt", i);
        snprintf(published, sizeof published, "published/held_out/%05d-%02d.txt", (int)found, i);
        if (access(scratch_path(published), F_OK) != 0) continue;
        size_t bytes, original_bytes;
        char *data = read_file("published/held_out", published + strlen("published/held_out/"), &bytes);
        char *original_data = read_file("corpus", original, &original_bytes);
        assert_int_equal(bytes, original_bytes);
        assert_memory_equal(data, original_data, bytes);
        free(data);
        free(original_data);
        found++;
    }
    assert_in_range(found, 8, 9); /* a fifth of so small a corpus */
}

/* ---- refusals ---- */

static void assert_create_fails(dr_train_options *options, const char *folder, dr_status status, const char *part) {
    dr_run *run = (dr_run *)1;
    assert_int_equal(dr_run_create(cpu, options, scratch_path(folder), &run), status);
    assert_null(run);
    if (!strstr(dr_last_error(), part)) fail_msg("\"%s\" lacks \"%s\"", dr_last_error(), part);
    dr_train_options_destroy(options);
}

static dr_train_options *tiny_with(const char *task, const char *name, const char *value) {
    dr_train_options *options = tiny(task);
    set(options, name, value);
    return options;
}

static void test_impossible_runs_are_refused(void **state) {
    (void)state;
    scratch_write("blank/nothing", "", 0);
    scratch_write("latin1", "caf\xe9", 4);
    assert_create_fails(tiny_with("lm", "corpus", ""), "no", DR_ERROR_ARGUMENT, "corpus is missing");
    assert_create_fails(tiny_with("lm", "corpus", "/no/such/corpus"), "no", DR_ERROR_ARGUMENT, "/no/such/corpus");
    assert_create_fails(tiny_with("lm", "corpus", scratch_path("blank")), "no", DR_ERROR_ARGUMENT, "has no text");
    assert_create_fails(tiny_with("lm", "corpus", scratch_path("latin1")), "no", DR_ERROR_FORMAT, "not UTF-8");
    static const char *const shares[] = {"0", "1", "8", "-0.1", "1e400x", "1000000"};
    for (int i = 0; i < 6; i++)
        assert_create_fails(tiny_with("lm", "held_out", shares[i]), "no", DR_ERROR_ARGUMENT,
                            i == 4 ? "cannot read the corpus \"1e400x\"" : "it must be a share above 0 and below 1");
    assert_create_fails(tiny_with("lm", "held_out", "/no/such/text"), "no", DR_ERROR_ARGUMENT, "/no/such/text");
    assert_create_fails(tiny_with("lm", "held_out", scratch_path("corpus")), "no", DR_ERROR_ARGUMENT, "none is left");
    assert_create_fails(tiny_with("mqar", "held_out", "0.5"), "no", DR_ERROR_ARGUMENT, "a whole number from 1 to 1000000");
    assert_create_fails(tiny_with("mqar", "held_out", "corpus"), "no", DR_ERROR_ARGUMENT, "held_out is \"corpus\"");
    assert_create_fails(tiny_with("lm", "seq_len", "1000000"), "no", DR_ERROR_ARGUMENT, "seq_len");
    assert_create_fails(tiny_with("mqar", "pairs", "9"), "no", DR_ERROR_ARGUMENT, "9 pairs do not fit");
    assert_create_fails(tiny_with("mqar", "least_pairs", "3"), "no", DR_ERROR_ARGUMENT, "least_pairs is 3: doubling");
    assert_create_fails(tiny_with("mqar", "least_pairs", "8"), "no", DR_ERROR_ARGUMENT, "pairs, which is 4");
    assert_create_fails(tiny_with("mqar", "heads", "3"), "no", DR_ERROR_ARGUMENT, "heads");
    assert_int_not_equal(access(scratch_path("no"), F_OK), 0); /* nothing was left behind */
    dr_train_options *options = tiny("mqar");
    dr_run_destroy(create(cpu, options, "taken"));
    assert_create_fails(options, "taken", DR_ERROR_ARGUMENT, "holds a run already");
    scratch_write("a-file", "x", 1);
    assert_create_fails(tiny("mqar"), "a-file", DR_ERROR_IO, "a-file");
}

static void assert_resume_fails(dr_backend *backend, const char *folder, const char *name, const char *value, dr_status status,
                                const char *part) {
    dr_train_options *changes = new_options();
    if (name) set(changes, name, value);
    dr_run *run = (dr_run *)1;
    assert_int_equal(dr_run_resume(backend, scratch_path(folder), changes, &run), status);
    assert_null(run);
    if (!strstr(dr_last_error(), part)) fail_msg("\"%s\" lacks \"%s\"", dr_last_error(), part);
    dr_train_options_destroy(changes);
}

static void test_impossible_resumes_are_refused(void **state) {
    (void)state;
    dr_train_options *options = tiny("lm");
    dr_run *run = create(cpu, options, "kept");
    assert_resume_fails(cpu, "kept", NULL, NULL, DR_ERROR_IO, "is training in the run folder");
    dr_run_destroy(run);
    assert_resume_fails(cpu, "nowhere", NULL, NULL, DR_ERROR_ARGUMENT, "holds no run");
    assert_resume_fails(cpu, "kept", "learning_rate", "0.5", DR_ERROR_ARGUMENT, "learning_rate cannot be changed from");
    assert_resume_fails(cpu, "kept", "rule", "kda", DR_ERROR_ARGUMENT, "rule cannot be changed from gdn to kda");
    assert_resume_fails(reference, "kept", NULL, NULL, DR_ERROR_ARGUMENT, "resume it on the backend that began it");

    dr_train_options *changes = new_options();
    set(changes, "steps", "2");
    set(changes, "batch", "3"); /* as it is */
    set(changes, "threads", "1");
    assert_int_equal(dr_run_resume(cpu, scratch_path("kept"), changes, &run), DR_OK);
    watch seen = {0};
    assert_int_equal(train(run, &seen), DR_OK);
    assert_int_equal(seen.calls, 2);
    dr_run_destroy(run);
    dr_train_options_destroy(changes);

    scratch_write("other-corpus/00.txt", "another text\n", 13);
    char text[4000];
    memset(text, 'x', sizeof text);
    scratch_write("other-corpus/01.txt", text, sizeof text);
    assert_resume_fails(cpu, "kept", "corpus", scratch_path("other-corpus"), DR_ERROR_ARGUMENT, "is not the text");
    dr_train_options_destroy(options);
}

static void test_hostile_checkpoints_are_refused(void **state) {
    (void)state;
    dr_train_options *options = tiny("mqar");
    dr_run_destroy(create(cpu, options, "hostile"));
    size_t bytes, settings_bytes;
    char *optimizer = read_file("hostile", "optimizer.safetensors", &bytes);
    char *settings = read_file("hostile", "settings.json", &settings_bytes);
    scratch_write("hostile/optimizer.safetensors", optimizer, bytes - 5);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "optimizer.safetensors");
    scratch_write("hostile/optimizer.safetensors", optimizer, 4);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "optimizer.safetensors");
    char *square = memmem(optimizer, bytes, "\"square\"", 8), *step = memmem(optimizer, bytes, "\"step\":\"0\"", 10);
    assert_true(square && step);
    memcpy(square, "\"sqware\"", 8);
    scratch_write("hostile/optimizer.safetensors", optimizer, bytes);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "no tensor \"square\"");
    memcpy(square, "\"square\"", 8);
    memcpy(step, "\"step\":\"z\"", 10);
    scratch_write("hostile/optimizer.safetensors", optimizer, bytes);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "\"step\"");
    memcpy(step, "\"steq\":\"0\"", 10);
    scratch_write("hostile/optimizer.safetensors", optimizer, bytes);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "no \"step\"");
    memcpy(step, "\"step\":\"0\"", 10);
    scratch_write("hostile/optimizer.safetensors", optimizer, bytes);
    scratch_write("hostile/settings.json", settings, settings_bytes / 2);
    assert_resume_fails(cpu, "hostile", NULL, NULL, DR_ERROR_FORMAT, "settings.json");
    char *hidden = strstr(settings, "\"hidden\": 16");
    assert_non_null(hidden);
    scratch_write("hostile/settings.json", settings, settings_bytes);
    dr_run_destroy(resume(cpu, "hostile")); /* all is whole again */
    free(optimizer);
    free(settings);
    dr_train_options_destroy(options);
}

/* A file system that takes no more than a few KB a file, like a full disk: the run ends with a sentence, the checkpoint before
 * it is whole, and the resumed run makes the numbers of one that was never disturbed. */
static void test_full_disk_loses_nothing(void **state) {
    (void)state;
    dr_train_options *options = tiny("lm");
    scratch_remove(scratch_path("whole"));
    run_through(cpu, options, "whole");
    dr_run *run = create(cpu, options, "full");
    struct rlimit unlimited, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    limit = unlimited;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    watch seen = {0};
    dr_status status = train(run, &seen);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, DR_ERROR_IO);
    assert_non_null(strstr(dr_last_error(), "File too large"));
    assert_int_equal(seen.calls, 5); /* the checkpoint after step 5 did not fit */
    dr_run_destroy(run);
    run = resume(cpu, "full");
    seen.calls = 0;
    assert_int_equal(train(run, &seen), DR_OK);
    assert_int_equal(seen.calls, STEPS);
    dr_run_destroy(run);
    assert_same_run("whole", "full");
    dr_train_options_destroy(options);
}

/* ---- failed allocations ---- */

static bool go_on(void *context, const dr_progress *progress) {
    (void)context, (void)progress;
    return true;
}

/* On the CPU: where a checkpoint could be written beside the run, one for which there is no memory is written within it. */
static dr_status run_from_begin_to_end(void *context) {
    dr_train_options *options = NULL;
    dr_run *run = NULL;
    dr_status status;
    scratch_remove(scratch_path("allocations"));
    DR_GO(dr_train_options_create(&options));
    DR_GO(dr_train_options_read(options, context));
    DR_GO(dr_run_create(cpu, options, scratch_path("allocations"), &run));
    DR_GO(dr_run_train(run, go_on, NULL));
    dr_run_destroy(run);
    run = NULL;
    DR_GO(dr_run_resume(cpu, scratch_path("allocations"), options, &run));
done:
    dr_run_destroy(run);
    dr_train_options_destroy(options);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    char text[PATH_MAX + 256];
    snprintf(text, sizeof text,
             "{\"corpus\": \"%s\", \"steps\": 1, \"batch\": 1, \"seq_len\": 8, \"hidden\": 4, \"layers\": 1, \"heads\": 1, "
             "\"intermediate\": 4, \"evaluate_tokens\": 8, \"save_keep\": 1}",
             scratch_path("corpus"));
    const char *file = scratch_write("allocations.json", text, strlen(text));
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", file);
    assert_true(assert_survives_failed_allocations(run_from_begin_to_end, path) > 50);
}

static int begin(void **state) {
    if (scratch_begin(state) != 0) return -1;
    write_corpus();
    if (dr_backend_open("reference", NULL, &reference) != DR_OK) return -1;
    return dr_backend_open("cpu", &(dr_backend_options){.threads = 1}, &cpu) == DR_OK ? 0 : -1;
}

static int end(void **state) {
    dr_backend_close(reference);
    dr_backend_close(cpu);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resumed_runs_are_the_same),
        cmocka_unit_test(test_killed_runs_are_the_same),
        cmocka_unit_test(test_runs_of_earlier_versions_go_on),
        cmocka_unit_test(test_threads_do_not_change_a_run),
        cmocka_unit_test(test_loss_falls),
        cmocka_unit_test(test_recall_of_a_mixture),
        cmocka_unit_test(test_good_enough_ends_a_run),
        cmocka_unit_test(test_broken_gradients_are_skipped),
        cmocka_unit_test(test_held_out_text_is_published),
        cmocka_unit_test(test_impossible_runs_are_refused),
        cmocka_unit_test(test_impossible_resumes_are_refused),
        cmocka_unit_test(test_hostile_checkpoints_are_refused),
        cmocka_unit_test(test_full_disk_loses_nothing),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
