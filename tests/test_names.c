/* Published models: their configurations are read, their tensors are claimed by one row each, and what is read from them is
 * written to the same bits. Over the folders of tests/checkpoints, and those of $DELTARULE_CHECKPOINTS where it is set. */
#include "allocation.h"
#include "base/memory.h"
#include "base/random.h"
#include "described_parameters.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/names/published.h"
#include "formats/safetensors.h"
#include "scratch.h"

#include <dirent.h>
#include <math.h>

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static bool is_tied_head(const dr_description *description, const char *name) {
    return description->tied && strcmp(name, "lm_head.weight") == 0;
}

/* Each tensor of the file is in the plan once, or is none of the language model. */
static void check_claims(const char *folder, const dr_description *description, const dr_weights *weights,
                         const dr_name_plan *plan) {
    for (int64_t i = 0; i < plan->unused_count; i++)
        if (!is_tied_head(description, dr_weights_name(weights, plan->unused[i])))
            fail_msg("%s: nothing claims %s", folder, dr_weights_name(weights, plan->unused[i]));
    for (int64_t i = 0; i < plan->tensor_count; i++)
        for (int64_t j = 0; j < i; j++)
            if (strcmp(plan->tensors[i].name, plan->tensors[j].name) == 0)
                fail_msg("%s: two rows claim %s", folder, plan->tensors[i].name);
}

static int64_t elements(const dr_named_parameter *parameter) {
    int64_t count = 1;
    for (int i = 0; i < parameter->rank; i++) count *= parameter->shape[i];
    return count;
}

/* What the plan puts where: all elements of all parameters, each once. */
static double **gather(const described_list *list, const dr_name_plan *plan) {
    double **values = calloc((size_t)list->count, sizeof *values);
    for (int64_t i = 0; i < list->count; i++) {
        values[i] = malloc((size_t)elements(&list->at[i]) * sizeof(double));
        for (int64_t k = 0; k < elements(&list->at[i]); k++) values[i][k] = (double)NAN;
    }
    for (int64_t i = 0; i < plan->tensor_count; i++) {
        const dr_named_tensor *tensor = &plan->tensors[i];
        for (int64_t k = 0; k < tensor->count;) {
            const dr_name_place place = dr_name_bundle_place(&plan->bundles[tensor->bundle], tensor->first + k);
            for (int64_t j = 0; j < place.count && k < tensor->count; j++, k++) {
                assert_true(isnan(values[place.parameter][place.at + j])); /* twice would be wrong */
                values[place.parameter][place.at + j] = dr_tensor_element(&tensor->tensor, k);
            }
        }
    }
    for (int64_t i = 0; i < list->count; i++)
        for (int64_t k = 0; k < elements(&list->at[i]); k++)
            if (isnan(values[i][k]))
                fail_msg("element %d of %s of layer %d is read from nowhere", (int)k, list->at[i].name, (int)list->at[i].layer);
    return values;
}

/* Values of a parameter are written where they were read; a tensor that is cut or named otherwise is passed over. */
static int64_t check_written(const described_list *list, const dr_weights *weights, const dr_name_plan *plan, double **values) {
    int64_t same = 0;
    for (int64_t i = 0; i < plan->tensor_count; i++) {
        const dr_named_tensor *written = &plan->tensors[i];
        dr_tensor found;
        if (!dr_weights_find(weights, written->name, &found) || dr_tensor_count(&found) != written->count) continue;
        same++;
        for (int64_t k = 0; k < written->count; k++) {
            const dr_name_place place = dr_name_bundle_place(&plan->bundles[written->bundle], written->first + k);
            assert_in_range(place.at, 0, elements(&list->at[place.parameter]) - 1);
            if (values[place.parameter][place.at] != dr_tensor_element(&found, k))
                fail_msg("element %d of %s is written from another place", (int)k, written->name);
        }
    }
    return same;
}

static void check_folder(const char *folder) {
    char file[PATH_MAX + 16];
    json_t *config = NULL;
    dr_description description;
    dr_weights *weights = NULL;
    dr_name_plan plan, back;
    snprintf(file, sizeof file, "%s/config.json", folder);
    ASSERT_OK(dr_json_read(file, &config));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (strcmp(type, "deltarule") == 0) {
        json_decref(config);
        return;
    }
    dr_status status = dr_published_read(config, &description);
    if (strncmp(type, "glm5", 4) == 0 || strncmp(type, "qwen4", 5) == 0) {
        assert_int_equal(status, DR_ERROR_UNSUPPORTED);
        assert_non_null(strstr(dr_last_error(), "hyper-connections"));
        json_decref(config);
        return;
    }
    if (status != DR_OK) fail_msg("%s: %s", folder, dr_last_error());
    ASSERT_OK(dr_weights_open(folder, &weights));
    described_list list = described_parameters(&description);
    status = dr_names_plan_read(&description, list.at, list.count, weights, &plan);
    if (status != DR_OK) fail_msg("%s: %s", folder, dr_last_error());
    check_claims(folder, &description, weights, &plan);
    double **values = gather(&list, &plan);
    ASSERT_OK(dr_names_plan_write(&description, list.at, list.count, &back));
    const int64_t same = check_written(&list, weights, &back, values);
    if (same < plan.tensor_count / 3) fail_msg("%s: only %d tensors keep their names", folder, (int)same);
    for (int64_t i = 0; i < list.count; i++) free(values[i]);
    free(values);
    dr_name_plan_release(&plan);
    dr_name_plan_release(&back);
    described_free(&list);
    dr_weights_close(weights);
    dr_description_release(&description);
    json_decref(config);
}

/* Returns how many folders there were. */
static int check_folders(const char *root) {
    DIR *stream = opendir(root);
    assert_non_null(stream);
    int count = 0;
    for (const struct dirent *item = readdir(stream); item; item = readdir(stream)) {
        char folder[PATH_MAX], file[PATH_MAX + 16];
        snprintf(folder, sizeof folder, "%s/%s", root, item->d_name);
        snprintf(file, sizeof file, "%s/config.json", folder);
        if (item->d_name[0] == '.' || access(file, R_OK) != 0) continue;
        check_folder(folder);
        count++;
    }
    closedir(stream);
    return count;
}

static void test_folders(void **state) {
    (void)state;
    const char *more = getenv("DELTARULE_CHECKPOINTS");
    assert_in_range(check_folders(DR_TESTS_FOLDER "/checkpoints"), 2, 1000);
    if (more) assert_in_range(check_folders(more), 1, 1000);
}

/* ---- the page of models ------------------------------------------------------------------------------------------------- */

/* The words of a text between spaces and commas, one after another; returns what is behind. */
static const char *next_word(const char *text, char word[64]) {
    text += strspn(text, ", ");
    const size_t length = strcspn(text, ", |\n");
    assert_in_range(length, 0, 63);
    memcpy(word, text, length);
    word[length] = '\0';
    return text + length;
}

static bool is_listed(const char *list, const char *wanted) {
    char word[64];
    for (const char *at = next_word(list, word); word[0]; at = next_word(at, word))
        if (strcmp(word, wanted) == 0) return true;
    return false;
}

/* The table of docs/models.md has the types that are read, each once, and no others; those that are refused stand behind it. */
static void test_page(void **state) {
    (void)state;
    static const char *const refused[] = {"glm5_next", "qwen4_exp"};
    char *page, word[64], types[2000] = "";
    size_t bytes;
    json_t *unknown = json_pack("{s:s}", "model_type", "unknown");
    dr_description description;
    int listed = 0, known = 0;
    assert_int_equal(dr_published_read(unknown, &description), DR_ERROR_UNSUPPORTED);
    json_decref(unknown);
    const char *supported = strstr(dr_last_error(), "deltarule, ");
    assert_non_null(supported);
    supported += strlen("deltarule, ");
    ASSERT_OK(dr_file_read(DR_TESTS_FOLDER "/../docs/models.md", 1 << 20, &page, &bytes));
    const char *row = strstr(page, "| `model_type` | mixers | feed-forward |\n|---|---|---|\n");
    assert_non_null(row);
    for (row = strstr(row, "---|\n") + 5; row[0] == '|'; row = strchr(row, '\n') + 1)
        for (const char *at = next_word(row + 1, word); word[0]; at = next_word(at, word), listed++) {
            if (is_listed(types, word)) fail_msg("docs/models.md lists \"%s\" twice", word);
            if (!is_listed(supported, word)) fail_msg("docs/models.md lists \"%s\", which is not read: %s", word, supported);
            strcat(strcat(types, word), " ");
        }
    for (const char *at = next_word(supported, word); word[0]; at = next_word(at, word), known++)
        if (!is_listed(types, word)) fail_msg("the table of docs/models.md lacks \"%s\"", word);
    assert_int_equal(listed, known);
    assert_true(known > 30);
    const char *sentence = strstr(row, "is refused by name");
    assert_non_null(sentence);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) assert_non_null(strstr(sentence, refused[i]));
    dr_release(page);
}

/* ---- configurations that cannot be read -------------------------------------------------------------------------------- */

#define LLAMA                                                                                                                  \
    "\"model_type\": \"llama\", \"vocab_size\": 10, \"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": "   \
    "2, "                                                                                                                      \
    "\"intermediate_size\": 12"
#define NEXT                                                                                                                   \
    "\"model_type\": \"qwen3_next\", \"vocab_size\": 10, \"hidden_size\": 8, \"num_hidden_layers\": 2, "                       \
    "\"num_attention_heads\": 1, \"intermediate_size\": 4"
#define DELTA                                                                                                                  \
    "\"model_type\": \"gated_deltanet\", \"vocab_size\": 10, \"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_heads\": 2, " \
    "\"head_dim\": 4"

static void test_refusals(void **state) {
    static const struct {
        const char *config, *sentence;
    } cases[] = {
        {"{}", "\"model_type\" is missing"},
        {"{\"model_type\": \"bert\"}", "\"bert\"; supported are deltarule, llama,"},
        {"{\"model_type\": \"llama\"}", "vocab_size"},
        {"{\"model_type\": \"glm5_next\"}",
         "hyper-connections between its layers and attention to tokens that an indexer chooses"},
        {"{\"model_type\": \"glm5_next_text\"}", "attention to tokens that an indexer chooses: these are not supported"},
        {"{\"model_type\": \"qwen4_exp\"}",
         "hyper-connections, attention to blocks that an indexer chooses, and embeddings of n-grams"},
        {"{\"model_type\": \"qwen4_exp_text\"}", "embeddings of n-grams: these are not supported"},
        {"{" LLAMA ", \"sliding_widow\": 3}", "the key \"sliding_widow\" is not known"},
        {"{" LLAMA ", \"sliding_window\": 3}", "the key \"sliding_window\" is not known"},
        {"{" LLAMA ", \"hidden_act\": \"gelu\"}", "\"hidden_act\" is the string \"gelu\"; only \"silu\" is supported"},
        {"{" LLAMA ", \"quantization_config\": {}}", "only null is supported"},
        {"{" LLAMA ", \"rms_norm_eps\": -1}", "rms_norm_eps"},
        {"{" LLAMA ", \"head_dim\": 5}", "turned in pairs"},
        {"{" LLAMA ", \"num_key_value_heads\": 3}", "multiple of \"num_key_value_heads\", 3"},
        {"{" LLAMA ", \"num_key_value_heads\": 1e99}", "num_key_value_heads"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
         "\"dynamic\"; default, linear, llama3 and yarn"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}}", "needs a \"factor\""},
        {"{" LLAMA ", \"rope_scaling\": 5}", "rope_scaling"},
        {"{" LLAMA ", \"rope_parameters\": {\"spin\": 1}}", "rope_parameters: the key \"spin\""},
        {"{" NEXT ", \"layer_types\": [\"full_attention\"]}", "an array of 2 texts"},
        {"{" NEXT ", \"layer_types\": [\"full_attention\", \"conv\"]}", "\"conv\" for layer 1"},
        {"{" NEXT ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}", "full_attention and linear_attention"},
        {"{" NEXT "}", "\"linear_num_key_heads\""},
        {"{" DELTA ", \"output_gate_activation\": \"relu\"}", "swish, silu and sigmoid"},
        {"{" DELTA ", \"attn\": 3}", "\"attn\" must be an object"},
        {"{" DELTA ", \"attn\": {\"layers\": [0]}}", "num_heads"},
        {"{" DELTA ", \"attn\": {\"layers\": [0], \"num_heads\": 3}}", "each must divide the next"},
        {"{" DELTA ", \"attnres_block_size\": 3}", "1 or even"},
        {"{" DELTA ", \"num_v_heads\": 3}", "a multiple of \"num_heads\", 2"},
        {"{\"model_type\": \"gated_deltanet\", \"vocab_size\": 10, \"hidden_size\": 8, \"num_hidden_layers\": 99999999, "
         "\"num_heads\": 2, \"head_dim\": 4}",
         "\"num_hidden_layers\" is 99999999"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *config = NULL;
        dr_description description;
        ASSERT_OK(dr_json_parse_lenient(cases[i].config, strlen(cases[i].config), "text", &config));
        if (dr_published_read(config, &description) == DR_OK) fail_msg("%s is read", cases[i].config);
        if (!strstr(dr_last_error(), cases[i].sentence))
            fail_msg("%s: \"%s\" does not say '%s'", cases[i].config, dr_last_error(), cases[i].sentence);
        assert_null(description.layers);
        json_decref(config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests_name("names", tests, scratch_begin, scratch_end);
}
