/* Every pointer of train.h and shards.h, NULL. */
#include "null.h"

#include <deltarule/shards.h>
#include <deltarule/train.h>
#include <ftw.h>

static dr_backend *backend;
static dr_train_options *options;
static char folder[] = "/tmp/null_train_XXXXXX", run_folder[64], shards_folder[64], file[64];

static const char *const small[][2] = {{"task", "mqar"},  {"hidden", "16"},  {"layers", "1"},      {"heads", "1"},
                                       {"steps", "1"},    {"batch", "2"},    {"vocabulary", "64"}, {"seq_len", "32"},
                                       {"held_out", "2"}, {"conv_size", "0"}};

static int begin(void **unused) {
    (void)unused;
    const dr_backend_options one_thread = {.threads = 1};
    assert_int_equal(dr_backend_open("cpu", &one_thread, &backend), DR_OK);
    assert_int_equal(dr_train_options_create(&options), DR_OK);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        assert_int_equal(dr_train_options_set(options, small[i][0], small[i][1]), DR_OK);
    assert_non_null(mkdtemp(folder));
    snprintf(run_folder, sizeof run_folder, "%s/run", folder);
    snprintf(file, sizeof file, "%s/settings.json", folder);
    FILE *settings = fopen(file, "w");
    assert_non_null(settings);
    fputs("{\"steps\": 1}", settings);
    return fclose(settings);
}

static int forget(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    (void)facts, (void)kind, (void)where;
    return remove(path);
}

static int end(void **unused) {
    (void)unused;
    nftw(folder, forget, 8, FTW_DEPTH | FTW_PHYS);
    dr_train_options_destroy(options);
    dr_backend_close(backend);
    return 0;
}

static void test_options(void **unused) {
    (void)unused;
    HARMLESS(dr_train_settings, "settings", > 0, NULL);
    REFUSED(dr_train_options_create, "options", NULL);
    NOTHING(dr_train_options_destroy, "options", NULL);
    REFUSED(dr_train_options_set, "options", NULL, "steps", "1");
    REFUSED(dr_train_options_set, "name", options, NULL, "1");
    REFUSED(dr_train_options_set, "value", options, "steps", NULL);
    REFUSED(dr_train_options_read, "options", NULL, file);
    REFUSED(dr_train_options_read, "file", options, NULL);
    HARMLESS(dr_train_options_get, "options", == NULL, NULL, "steps");
    HARMLESS(dr_train_options_get, "name", == NULL, options, NULL);
    null_all_right();
}

static void test_run(void **unused) {
    (void)unused;
    dr_run *run = NULL, *prepared = NULL, *other;
    dr_run_costs costs;
    REFUSED(dr_run_create, "backend", NULL, options, run_folder, &other);
    REFUSED(dr_run_create, "options", backend, NULL, run_folder, &other);
    REFUSED(dr_run_create, "folder", backend, options, NULL, &other);
    REFUSED(dr_run_create, "run", backend, options, run_folder, NULL);
    REFUSED(dr_run_create_beside, "backend", NULL, options, run_folder, &other);
    REFUSED(dr_run_create_beside, "options", backend, NULL, run_folder, &other);
    REFUSED(dr_run_create_beside, "folder", backend, options, NULL, &other);
    REFUSED(dr_run_create_beside, "run", backend, options, run_folder, NULL);
    assert_int_equal(access(run_folder, F_OK), -1);
    REFUSED(dr_run_prepare, "backend", NULL, options, &other);
    REFUSED(dr_run_prepare, "options", backend, NULL, &other);
    REFUSED(dr_run_prepare, "run", backend, options, NULL);
    assert_int_equal(dr_run_prepare(backend, options, &prepared), DR_OK);
    dr_run_plan plan;
    REFUSED(dr_run_plan_make, "backend", NULL, options, 0, &plan);
    REFUSED(dr_run_plan_make, "options", backend, NULL, 0, &plan);
    REFUSED(dr_run_plan_make, "plan", backend, options, 0, NULL);
    REFUSED(dr_run_measure, "run", NULL, &costs);
    REFUSED(dr_run_measure, "costs", prepared, NULL);
    dr_run_destroy(prepared);

    assert_int_equal(dr_run_create(backend, options, run_folder, &run), DR_OK);
    REFUSED(dr_run_train, "run", NULL, NULL, NULL);
    REFUSED(dr_score_task, "model", NULL, options, NULL);
    REFUSED(dr_score_task, "options", dr_run_model(run), NULL, NULL);
    ALLOWED(dr_score_task, "calls", dr_run_model(run), options, NULL);
    ALLOWED(dr_run_train, "callback", run, NULL, NULL);
    HARMLESS(dr_run_model, "run", == NULL, NULL);
    NOTHING(dr_run_describe, "run", NULL, null_line, NULL);
    NOTHING(dr_run_describe, "line", run, NULL, NULL);
    dr_run_destroy(run);
    NOTHING(dr_run_destroy, "run", NULL);
    REFUSED(dr_run_resume, "backend", NULL, run_folder, NULL, &other);
    REFUSED(dr_run_resume, "folder", backend, NULL, NULL, &other);
    ALLOWED(dr_run_resume, "changes", backend, run_folder, NULL, &other);
    REFUSED(dr_run_resume, "run", backend, run_folder, NULL, NULL);
    null_all_right();
}

static bool take_document(void *context, const char *text, size_t bytes) {
    (void)context, (void)text, (void)bytes;
    return true;
}

static void test_shards(void **unused) {
    (void)unused;
    const char *corpus = file;
    dr_shards_options shards = dr_shards_defaults();
    snprintf(shards_folder, sizeof shards_folder, "%s/shards", folder);
    shards.tokenizer = "bytes";
    shards.corpora = &corpus;
    shards.corpus_count = 1;
    REFUSED(dr_shards_write, "folder", NULL, &shards, NULL);
    REFUSED(dr_shards_write, "options", shards_folder, NULL, NULL);
    ALLOWED(dr_shards_write, "total", shards_folder, &shards, NULL);
    REFUSED(dr_corpora_read, "options", NULL, take_document, NULL);
    REFUSED(dr_corpora_read, "document", &shards, NULL, NULL);
    assert_int_equal(dr_corpora_read(&shards, take_document, NULL), DR_OK);
    shards.tokenizer = NULL;
    assert_int_equal(dr_shards_write(shards_folder, &shards, NULL), DR_ERROR_ARGUMENT);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_options), cmocka_unit_test(test_run),
                                       cmocka_unit_test(test_shards)};
    return cmocka_run_group_tests(tests, begin, end);
}
