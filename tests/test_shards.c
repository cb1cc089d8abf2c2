/* Models in several files: a model that was saved whole and cut into shards loads to the same bits, and every way in which an
 * index can be wrong has its sentence. */
#include "allocation.h"
#include "base/half.h"
#include "formats/safetensors.h"
#include "formats/weights.h"
#include "nn/model.h"
#include "scratch.h"

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

enum { MOST = 64 };

static dr_backend *backend;
static int64_t count;
static char names[MOST][96];

static void write_index(const char *text) {
    scratch_write("model/model.safetensors.index.json", text, strlen(text));
}

/* The map of the shards as they were made, with the line of tensor `changed` replaced; -1: none. */
static void write_map(int64_t changed, const char *line) {
    char text[MOST * 200] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
    for (int64_t i = 0; i < count; i++) {
        char own[200];
        snprintf(own, sizeof own, "\"%.95s\": \"part-%d.safetensors\"", names[i], (int)(i % 2));
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.199s", i > 0 ? ", " : "", i == changed ? line : own);
    }
    strcat(text, "}}");
    write_index(text);
}

static void write_shard(int which, const dr_safetensors *file) {
    const char *chosen[MOST];
    dr_tensor tensors[MOST];
    int64_t some = 0;
    for (int64_t i = which; i < count; i += 2, some++) {
        chosen[some] = dr_safetensors_name(file, i);
        tensors[some] = dr_safetensors_tensor(file, i);
    }
    ASSERT_OK(dr_safetensors_write(scratch_path(which ? "model/part-1.safetensors" : "model/part-0.safetensors"), some, chosen,
                                   tensors, NULL));
}

static int begin(void **state) {
    if (scratch_begin(state) != 0 || dr_backend_open("cpu", NULL, &backend) != DR_OK) return 1;
    dr_model_config config = dr_model_config_default(dr_rule_find("kda"));
    dr_model *model;
    dr_safetensors *file;
    config.vocabulary = 11, config.hidden = 16, config.layers = 2, config.heads = 2, config.intermediate = 8;
    if (dr_model_create(backend, &config, 5, &model) != DR_OK || dr_model_save(model, scratch_path("model")) != DR_OK ||
        dr_model_save(model, scratch_path("whole")) != DR_OK)
        return 1;
    dr_model_destroy(model);
    ASSERT_OK(dr_safetensors_open(scratch_path("whole/model.safetensors"), &file));
    count = dr_safetensors_count(file);
    assert_in_range(count, 4, MOST);
    for (int64_t i = 0; i < count; i++) snprintf(names[i], sizeof names[i], "%s", dr_safetensors_name(file, i));
    for (int which = 0; which < 2; which++) write_shard(which, file);
    dr_safetensors_close(file);
    return unlink(scratch_path("model/model.safetensors"));
}

static int end(void **state) {
    dr_backend_close(backend);
    return scratch_end(state);
}

static void test_same_bits(void **state) {
    (void)state;
    dr_model *whole, *cut;
    write_map(-1, NULL);
    ASSERT_OK(dr_model_load(backend, scratch_path("whole"), &whole));
    ASSERT_OK(dr_model_load(backend, scratch_path("model"), &cut));
    assert_int_equal(dr_model_block_count(whole), dr_model_block_count(cut));
    assert_memory_equal(dr_model_parameter_block(whole), dr_model_parameter_block(cut),
                        (size_t)dr_model_block_count(whole) * sizeof(float));
    dr_model_destroy(whole);
    dr_model_destroy(cut);
}

/* Each width of weights, in files of at most so many bytes: what comes back is what was there, rounded once. */
static void test_saved_in_files(void **state) {
    (void)state;
    static const dr_dtype types[] = {DR_F32, DR_F64, DR_BF16, DR_F16};
    dr_model *whole;
    ASSERT_OK(dr_model_load(backend, scratch_path("whole"), &whole));
    const float *values = dr_model_parameter_block(whole);
    for (int i = 0; i < 4; i++) {
        dr_model *cut;
        dr_weights *weights;
        char folder[32];
        snprintf(folder, sizeof folder, "cut%d", i);
        ASSERT_OK(dr_model_save_as(whole, scratch_path(folder), types[i], 2000));
        ASSERT_OK(dr_weights_open(scratch_path(folder), &weights));
        assert_non_null(strstr(dr_weights_file(weights), "model.safetensors.index.json"));
        for (int64_t k = 0; k < dr_weights_count(weights); k++) assert_int_equal(dr_weights_tensor(weights, k).dtype, types[i]);
        dr_weights_close(weights);
        ASSERT_OK(dr_model_load(backend, scratch_path(folder), &cut));
        const float *read = dr_model_parameter_block(cut);
        for (int64_t k = 0; k < dr_model_block_count(whole); k++) {
            const float wanted = types[i] == DR_BF16  ? dr_bf16_to_float(dr_bf16_from_float(values[k]))
                                 : types[i] == DR_F16 ? dr_f16_to_float(dr_f16_from_float(values[k]))
                                                      : values[k];
            assert_true(read[k] == wanted);
        }
        dr_model_destroy(cut);
    }
    assert_int_equal(access(scratch_path("cut0/model.safetensors"), F_OK), -1);
    /* shards beside a single file would not be read; one file beside shards is */
    assert_int_equal(dr_model_save_as(whole, scratch_path("whole"), DR_F32, 2000), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "save it in another folder"));
    assert_int_equal(dr_model_save_as(whole, scratch_path("more"), DR_I64, 0), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_model_save_as(whole, scratch_path("more"), DR_F32, -1), DR_ERROR_ARGUMENT);
    assert_int_equal(access(scratch_path("more"), F_OK), -1);
    dr_model_destroy(whole);
}

static void refuse(const char *sentence) {
    dr_model *model = NULL;
    assert_int_not_equal(dr_model_load(backend, scratch_path("model"), &model), DR_OK);
    assert_null(model);
    if (!strstr(dr_last_error(), sentence)) fail_msg("no \"%s\" in \"%s\"", sentence, dr_last_error());
    assert_non_null(strstr(dr_last_error(), "model/"));
}

static void test_refusals(void **state) {
    (void)state;
    static const char *const places[] = {"../part-0.safetensors",
                                         "/etc/passwd",
                                         "a/part-0.safetensors",
                                         ".safetensors",
                                         "..",
                                         "part-0.bin",
                                         ".part-0.safetensors",
                                         ""};
    char line[200];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(line, sizeof line, "\"%.95s\": \"%s\"", names[0], places[i]);
        write_map(0, line);
        refuse("it must be the name of a .safetensors file in the folder");
    }
    snprintf(line, sizeof line, "\"%.95s\": 7", names[0]);
    write_map(0, line);
    refuse("\"no text\"");
    snprintf(line, sizeof line, "\"%.95s\": \"part-7.safetensors\"", names[0]);
    write_map(0, line);
    refuse("part-7.safetensors: cannot open");
    snprintf(line, sizeof line, "\"%.95s\": \"part-1.safetensors\"", names[0]);
    write_map(0, line);
    refuse("is not in part-1.safetensors");
    write_map(0, "\"no.such.weight\": \"part-0.safetensors\"");
    refuse("'no.such.weight' is not in part-0.safetensors");
    snprintf(line, sizeof line, "\"%.95s\": \"part-0.safetensors\"", names[2]);
    write_map(0, line); /* a name twice, and one of the file's tensors without a line */
    refuse("model.safetensors.index.json");
    write_index("{\"weight_map\": {}}");
    refuse("it has no \"weight_map\"");
    write_index("{}");
    refuse("it has no \"weight_map\"");
    write_index("{\"weight_map\": [\"part-0.safetensors\"]}");
    refuse("it has no \"weight_map\"");
    write_index("{");
    refuse("model.safetensors.index.json");
    assert_int_equal(unlink(scratch_path("model/model.safetensors.index.json")), 0);
    refuse("model.safetensors: cannot open");
}

/* A file with tensors that the index does not name: another state of the model may lie there. */
static void test_unnamed_tensors(void **state) {
    (void)state;
    char text[400];
    snprintf(text, sizeof text, "{\"weight_map\": {\"%.95s\": \"part-0.safetensors\"}}", names[0]);
    write_index(text);
    refuse("it names 1 tensors, but its files have");
}

static dr_status load(void *context) {
    dr_model *model = NULL;
    dr_status status = dr_model_load(backend, context, &model);
    dr_model_destroy(model);
    return status;
}

static void test_failing_allocations(void **state) {
    (void)state;
    write_map(-1, NULL);
    assert_survives_failed_allocations(load, (void *)scratch_path("model"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits), cmocka_unit_test(test_saved_in_files),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_unnamed_tensors),
                                       cmocka_unit_test(test_failing_allocations)};
    return cmocka_run_group_tests(tests, begin, end);
}
