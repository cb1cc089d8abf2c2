/* Folders for other programs: every parameter comes back as its type rounds it, of one file and of many; what belongs to the
 * model is beside it; nothing is written over, and a failure leaves nothing. */
#include "allocation.h"
#include "base/half.h"
#include "nn/model.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/convert.h>
#include <math.h>

static dr_backend *backend;

static int begin(void **state) {
    backend = open_backend("cpu", NULL, 1);
    return scratch_begin(state);
}

static int end(void **state) {
    dr_backend_close(backend);
    return scratch_end(state);
}

static const char *checkpoint(const char *name) {
    static char path[4][600];
    static int next;
    char *text = path[next++ % 4];
    snprintf(text, sizeof path[0], "%s/checkpoints/%s", DR_TESTS_FOLDER, name);
    return text;
}

static dr_model *load(const char *folder) {
    dr_model *model;
    must(dr_model_load(backend, folder, &model));
    return model;
}

static bool exists(const char *folder, const char *name) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static float rounded(float value, dr_dtype dtype) {
    return dtype == DR_BF16  ? dr_bf16_to_float(dr_bf16_from_float(value))
           : dtype == DR_F16 ? dr_f16_to_float(dr_f16_from_float(value))
                             : value;
}

/* The model of a folder is another one, rounded. */
static void hold(const dr_model *model, const char *folder, dr_dtype dtype) {
    dr_model *other = load(folder);
    const dr_parameter *list;
    const int64_t count = dr_model_parameters(model, &list);
    assert_int_equal(dr_model_parameters(other, NULL), count);
    for (int64_t i = 0; i < count; i++) {
        const float *from = (const float *)(const void *)model->values + list[i].offset,
                    *to = (const float *)(const void *)other->values + other->parameters[i].offset;
        assert_string_equal(other->parameters[i].name, list[i].name);
        for (int64_t k = 0; k < list[i].count; k++)
            if (to[k] != rounded(from[k], dtype)) fail_msg("%s: %s differs", folder, list[i].name);
    }
    dr_model_destroy(other);
}

static void test_round_trips(void **state) {
    (void)state;
    static const char *const names[] = {"gla",        "qwen2_tied", "qwen3_5_bf16_sharded", "rwkv7", "mamba2_hf",
                                        "nemotron_h", "qwen3_moe"};
    static const dr_dtype types[] = {DR_BF16, DR_F32, DR_F16};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        dr_model *model = load(checkpoint(names[n]));
        for (int t = 0; t < 6; t++) {
            char name[64];
            snprintf(name, sizeof name, "%s-%d", names[n], t);
            const char *to = scratch_path(name);
            const dr_convert_options options = {.dtype = types[t % 3], .file_bytes = t < 3 ? 0 : 3000};
            must(dr_model_convert(model, checkpoint(names[n]), to, &options));
            assert_true(exists(to, "README.md") && exists(to, "config.json"));
            assert_true(exists(to, t < 3 ? "model.safetensors" : "model.safetensors.index.json"));
            assert_false(exists(to, t < 3 ? "model.safetensors.index.json" : "model.safetensors"));
            hold(model, to, options.dtype);
        }
        dr_model_destroy(model);
    }
}

static void test_what_is_beside_the_weights(void **state) {
    (void)state;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    dr_model *model;
    char text[20000];
    config.vocabulary = 257, config.hidden = 32, config.layers = 3, config.heads = 2;
    must(dr_model_create(backend, &config, 1, &model));
    must(dr_model_save(model, scratch_path("own")));
    scratch_write("own/tokenizer.json", "{}", 2);
    scratch_write("own/chat_template.jinja", "x", 1);
    scratch_write("own/settings.json", "{}", 2);
    must(dr_model_convert(model, scratch_path("own"), scratch_path("for-others"), NULL));
    const char *to = scratch_path("for-others");
    assert_true(exists(to, "tokenizer.json") && exists(to, "chat_template.jinja") && !exists(to, "settings.json"));
    FILE *card = fopen(scratch_path("for-others/README.md"), "rb");
    text[fread(text, 1, sizeof text - 1, card)] = '\0';
    fclose(card);
    static const char *const told[] = {"---\ntags:",     "# for-others",   "| type | deltarule |", "| weights | BF16 |",
                                       "| rule | gdn |", "| layers | 3 |", "folder `own`",         "S = D"};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        if (!strstr(text, told[i])) fail_msg("no '%s' in:\n%s", told[i], text);
    hold(model, to, DR_BF16);

    scratch_write("own/README.md", "---\nlicense: mit\n---\nOurs.\n", 27);
    must(dr_model_convert(model, scratch_path("own"), scratch_path("again"), NULL));
    card = fopen(scratch_path("again/README.md"), "rb");
    text[fread(text, 1, sizeof text - 1, card)] = '\0';
    fclose(card);
    assert_true(strncmp(text, "---\nlicense: mit\n---\nOurs.\n", 27) == 0 && strstr(text, "| rule | gdn |"));

    /* nothing is written over */
    assert_refused(dr_model_convert(model, scratch_path("own"), scratch_path("again"), NULL), DR_ERROR_ARGUMENT,
                   "has files already");
    assert_refused(dr_model_convert(model, scratch_path("own"), scratch_path("own"), NULL), DR_ERROR_ARGUMENT,
                   "has files already");
    assert_refused(dr_model_convert(model, scratch_path("own"), scratch_path("own/README.md"), NULL), DR_ERROR_ARGUMENT,
                   "is no folder");
    assert_refused(dr_model_convert(model, scratch_path("own"), scratch_path("x"), &(dr_convert_options){.dtype = DR_I8}),
                   DR_ERROR_ARGUMENT, "only as F32");
    assert_refused(dr_model_convert(model, scratch_path("own"), scratch_path("x"), &(dr_convert_options){.file_bytes = -1}),
                   DR_ERROR_ARGUMENT, "no bound");
    assert_false(exists(scratch_path("x"), "."));

    /* a failure leaves nothing */
    for (long failing = 1;; failing++) {
        const long alive = allocation_alive;
        allocation_fail_at(failing);
        const dr_status status = dr_model_convert(model, scratch_path("own"), scratch_path("failed"), NULL);
        allocation_fail_at(0);
        if (status == DR_OK) {
            assert_true(failing > 10);
            break;
        }
        assert_int_equal(status, DR_ERROR_MEMORY);
        assert_int_equal(allocation_alive, alive);
        assert_false(exists(scratch_path("failed"), "."));
    }
    hold(model, scratch_path("failed"), DR_BF16);
    dr_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trips), cmocka_unit_test(test_what_is_beside_the_weights)};
    return cmocka_run_group_tests(tests, begin, end);
}
