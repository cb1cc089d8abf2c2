/* What a file of a model's state says without its model: of one sequence and of several, of a hybrid and of recurrent layers
 * alone; any byte that is another one is seen, and so is a file that is none. */
#include "allocation.h"
#include "base/random.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/deltarule.h>
#include <sys/stat.h>

enum { IDS = 32 };

static dr_backend *backend;

static int begin(void **state) {
    backend = open_backend("cpu", NULL, 1);
    return scratch_begin(state);
}

static int end(void **state) {
    dr_backend_close(backend);
    return scratch_end(state);
}

/* A state of `sequences` sequences in a file, which have read 3 tokens and decoded two more of them. */
static dr_model *save(const char *layers, int64_t sequences, const char *file, dr_position *is) {
    dr_model_config config = dr_model_config_default(dr_rule_find("kda"));
    dr_model *model;
    dr_model_state *state;
    float logits[4 * IDS];
    config.vocabulary = IDS, config.hidden = 16, config.heads = 1, config.layers = 2, config.layer_list = layers;
    must(dr_model_create(backend, &config, 1, &model));
    must(dr_model_state_create(model, sequences, &state));
    for (int32_t t = 0; t < 5; t++) must(dr_model_step(model, (const int32_t[]){t, t + 1, t + 2, t + 3}, state, logits));
    for (int64_t s = 0; s < sequences; s++) must(dr_model_state_about(state, s, &is[s]));
    must(dr_model_state_save(state, file));
    dr_model_state_destroy(state);
    return model;
}

static void hold(const char *layers, int64_t sequences, int grown) {
    const char *file = scratch_path("state");
    dr_position is[4], said[4] = {{0}};
    dr_model_state_file told;
    uint64_t identity;
    struct stat about;
    dr_model *model = save(layers, sequences, file, is);
    must(dr_model_identity(model, &identity));
    must(dr_model_state_file_about(file, &told, said, 4));
    assert_int_equal(stat(file, &about), 0);
    assert_true(told.model == identity && told.sequences == sequences && told.ids == 0 && told.file_bytes == about.st_size);
    for (int64_t s = 0; s < sequences; s++) {
        assert_true(said[s].tokens == 5 && said[s].decoded == is[s].decoded && said[s].hash == is[s].hash);
        assert_int_equal(said[s].tokens, is[s].tokens);
    }
    assert_int_equal(told.grown_tensors, grown);
    /* keys and values: floats of one head of 16 channels, for each token */
    assert_int_equal(told.grown_bytes, grown * 5 * sequences * 16 * (int64_t)sizeof(float));
    assert_true(told.fixed_tensors > 0 && told.fixed_bytes > sequences * 16 * 16 * (int64_t)sizeof(float));
    assert_true(told.fixed_dtype == DR_F32 && told.grown_dtype == DR_F32);
    assert_true(told.fixed_bytes + told.grown_bytes < told.file_bytes);
    dr_rule rule;
    must(dr_rule_read_text(told.rule, &rule, NULL));
    assert_string_equal(rule.name, "kda");
    must(dr_model_state_file_about(file, &told, NULL, 0));
    dr_model_destroy(model);
}

static void test_told(void **unused) {
    (void)unused;
    hold(NULL, 1, 0);
    hold(NULL, 3, 0);
    hold("kda attention*2", 1, 4);
    hold("kda attention*2", 4, 4);
}

static void test_bytes(void **unused) {
    (void)unused;
    const char *file = scratch_path("state");
    dr_random random = dr_random_start(5, 0);
    dr_model_state_file told;
    dr_position is[1];
    dr_model_destroy(save("kda attention*2", 1, file, is));
    FILE *stream = fopen(file, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    const long size = ftell(stream);
    for (long i = 0; i < 2000; i++) { /* the header, byte by byte, and some of the rest */
        const long at = i < 1500 ? i : (long)dr_random_below(&random, (uint64_t)size);
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        const int was = fgetc(stream);
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        fputc(was ^ (1 << i % 8), stream);
        fflush(stream);
        if (dr_model_state_file_about(file, &told, NULL, 0) == DR_OK)
            fail_msg("byte %ld of %ld is %#x instead of %#x, and the file is told of", at, size, was ^ (1 << i % 8), was);
        assert_non_null(strstr(dr_last_error(), file));
        assert_int_equal(fseek(stream, at, SEEK_SET), 0);
        fputc(was, stream);
        fflush(stream);
    }
    fclose(stream);
    must(dr_model_state_file_about(file, &told, NULL, 0));
}

/* Another rule of the table in the file's metadata is seen too, with as many letters. */
static void test_rule(void **unused) {
    (void)unused;
    const char *file = scratch_path("state");
    char head[4096] = {0};
    dr_model_state_file told;
    dr_position is[1];
    dr_model *model = save(NULL, 1, file, is);
    dr_model_state *loaded = NULL;
    FILE *stream = fopen(file, "r+b");
    assert_non_null(stream);
    const size_t bytes = fread(head, 1, sizeof head, stream);
    size_t at = 0;
    while (at + 3 < bytes && memcmp(head + at, "kda", 3) != 0) at++;
    assert_true(at + 3 < bytes);
    assert_int_equal(fseek(stream, (long)at, SEEK_SET), 0);
    fputs("gla", stream);
    fclose(stream);
    assert_refused(dr_model_state_file_about(file, &told, NULL, 0), DR_ERROR_FORMAT, "checksum");
    assert_refused(dr_model_state_load(model, file, &loaded), DR_ERROR_FORMAT, "checksum");
    dr_model_destroy(model);
}

static void test_other_files(void **unused) {
    (void)unused;
    const char *file = scratch_path("other");
    dr_model_state_file told;
    dr_state *state;
    dr_recurrence recurrence = dr_recurrence_default();
    recurrence.rule = dr_rule_find("gdn");
    recurrence.layout = (dr_layout){1, 1, NULL};
    recurrence.key_heads = recurrence.value_heads = 1, recurrence.key_size = recurrence.value_size = 4;
    must(dr_state_create(backend, &recurrence, &state));
    must(dr_state_save(state, file));
    dr_state_destroy(state);
    assert_int_equal(dr_model_state_file_about(file, &told, NULL, 0), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "\"deltarule.state\", not \"deltarule.model_state\""));
    assert_int_equal(dr_model_state_file_about(scratch_path("missing"), &told, NULL, 0), DR_ERROR_IO);
    assert_int_equal(dr_model_state_file_about("/", &told, NULL, 0), DR_ERROR_IO);
    assert_int_equal(dr_model_state_file_about(scratch_write("empty", "", 0), &told, NULL, 0), DR_ERROR_FORMAT);
}

static dr_status tell(void *file) {
    dr_model_state_file told;
    return dr_model_state_file_about(file, &told, NULL, 0);
}

static void test_allocations(void **unused) {
    (void)unused;
    char *file = strdup(scratch_path("state"));
    dr_position is[1];
    dr_model_destroy(save("kda attention*2", 1, file, is));
    assert_true(assert_survives_failed_allocations(tell, file) > 3);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_told), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_allocations), cmocka_unit_test(test_rule),
                                       cmocka_unit_test(test_other_files)};
    return cmocka_run_group_tests(tests, begin, end);
}
