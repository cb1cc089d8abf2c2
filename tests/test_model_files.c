/* Models on disk: what is saved is loaded to the bit, under the published names where there are some, and every way in which a
 * folder can be wrong has its sentence.
 *
 * DELTARULE_CHECKPOINTS names a folder of more recorded checkpoints than those under tests/checkpoints. */
#include "allocation.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "learner.h"
#include "nn/config.h"
#include "nn/model.h"
#include "scratch.h"

#include <dirent.h>
#include <math.h>

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

static dr_backend *backends[2]; /* reference, cpu */

static int begin(void **state) {
    return scratch_begin(state) != 0 || dr_backend_open("reference", NULL, &backends[0]) != DR_OK ||
           dr_backend_open("cpu", NULL, &backends[1]) != DR_OK;
}

static int end(void **state) {
    for (int i = 0; i < 2; i++) dr_backend_close(backends[i]);
    return scratch_end(state);
}

static void assert_sentence(const char *sentence) {
    if (!strstr(dr_last_error(), sentence)) fail_msg("no \"%s\" in \"%s\"", sentence, dr_last_error());
}

/* ---- round trips ---------------------------------------------------------------------------------------------------- */

static dr_model_config tiny(const dr_rule *rule) {
    dr_model_config config = dr_model_config_default(rule);
    config.vocabulary = 11;
    config.hidden = 12;
    config.layers = 2;
    config.heads = 2;
    config.key_size = 4;
    config.value_size = 7;
    config.intermediate = 10;
    return config;
}

static void assert_same_config(const dr_model_config *one, const dr_model_config *other) {
    json_t *first = dr_config_write(one, "float32"), *second = dr_config_write(other, "float32");
    assert_true(json_equal(first, second));
    json_decref(first);
    json_decref(second);
    assert_memory_equal(&one->vocabulary, &other->vocabulary,
                        offsetof(dr_model_config, output_gate) - offsetof(dr_model_config, vocabulary));
    assert_true(one->output_gate == other->output_gate && one->tied == other->tied &&
                one->a_log_per_channel == other->a_log_per_channel && one->norm_eps == other->norm_eps);
    assert_true(one->initializer_range == other->initializer_range &&
                one->conv_initializer_range == other->conv_initializer_range);
    assert_true(one->gates.gate == other->gates.gate && one->gates.negative_eigenvalues == other->gates.negative_eigenvalues &&
                one->gates.lambda == other->gates.lambda && one->gates.lambda_value == other->gates.lambda_value &&
                one->gates.lambda_bias_learned == other->gates.lambda_bias_learned);
    assert_true(one->gates.gate == DR_GATE_FORM_LOG || one->gates.lower_bound == other->gates.lower_bound);
    assert_true(one->rule.name == other->rule.name && one->rule.decay == other->rule.decay &&
                one->rule.rows == other->rule.rows && one->rule.repeat == other->rule.repeat &&
                one->rule.squash.x == other->rule.squash.x && one->rule.tied_scan == other->rule.tied_scan);
}

/* Saves over what was there, loads, and compares; the folder's config must have this model type. */
static void check_round_trip(dr_backend *backend, const dr_model_config *config, const char *model_type) {
    const char *folder = scratch_path("trip");
    dr_model *model = NULL, *loaded = NULL;
    ASSERT_OK(dr_model_create(backend, config, 3, &model));
    ASSERT_OK(dr_model_save(model, folder));
    ASSERT_OK(dr_model_load(backend, folder, &loaded));
    assert_same_config(dr_model_get_config(model), dr_model_get_config(loaded));
    const dr_parameter *list, *loaded_list;
    int64_t listed = dr_model_parameters(model, &list);
    assert_int_equal(listed, dr_model_parameters(loaded, &loaded_list));
    for (int64_t i = 0; i < listed; i++) assert_string_equal(list[i].name, loaded_list[i].name);
    assert_memory_equal(dr_model_parameter_block(model), dr_model_parameter_block(loaded),
                        (size_t)dr_model_block_count(model) * dr_dtype_size(dr_backend_dtype(backend)));
    json_t *object = NULL;
    const char *type = NULL;
    ASSERT_OK(dr_json_read(scratch_path("trip/config.json"), &object));
    ASSERT_OK(dr_json_text(object, "model_type", &type));
    assert_string_equal(type, model_type);
    json_decref(object);
    learner_destroy(model);
    learner_destroy(loaded);
}

static const char *published_type(const char *rule) {
    static const char *const types[][2] = {
        {"delta_net", "delta_net"}, {"gdn", "gated_deltanet"},   {"kda", "kda"},     {"pgdn", "precond_gated_deltanet"},
        {"pkda", "precond_kda"},    {"qdelta", "qdelta"},        {"comba", "comba"}, {"delta_product", "gated_deltaproduct"},
        {"gdn2", "gdn2"},           {"pdn", "precond_deltanet"}, {"gla", "gla"},     {"retnet", "retnet"},
        {"mesanet", "mesa_net"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i][0], rule) == 0) return types[i][1];
    return "deltarule";
}

static void test_named_rules(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_model_config config = tiny(dr_rule_at(i));
        if (dr_rule_at(i)->family == DR_FAMILY_MESANET) config.value_size = config.key_size; /* as its class has it */
        for (int b = 0; b < 2; b++) check_round_trip(backends[b], &config, published_type(config.rule.name));
    }
}

static void test_variants(void **state) {
    (void)state;
    dr_model_config config = tiny(dr_rule_find("gdn"));
    config.conv_initializer_range = 0.5;
    check_round_trip(backends[1], &config, "gated_deltanet");
    config.conv_initializer_range = 0;
    config.value_heads = 4;
    config.tied = true;
    config.conv_size = 0;
    config.output_gate = 0;
    config.gates.negative_eigenvalues = true;
    check_round_trip(backends[1], &config, "gated_deltanet");
    config.intermediate = 0;
    check_round_trip(backends[1], &config, "deltarule"); /* the publishers' class always has an MLP */
    config = tiny(dr_rule_find("kda"));
    config.gates.gate = DR_GATE_FORM_KDA_BOUNDED;
    config.gates.lower_bound = -4.25;
    check_round_trip(backends[1], &config, "kda");
    config.gates.lower_bound = -7;
    check_round_trip(backends[1], &config, "deltarule"); /* and refuses this bound */
    config = tiny(dr_rule_find("pgdn"));
    config.rule.squash.x = 1.25;
    config.gates.negative_eigenvalues = config.force = true;
    check_round_trip(backends[1], &config, "precond_gated_deltanet");
    config.rule.squash.interval = DR_SQUASH_DAMPEN;
    check_round_trip(backends[1], &config, "deltarule");
    config = tiny(dr_rule_find("pkda"));
    config.value_heads = 4;
    check_round_trip(backends[1], &config, "deltarule"); /* its class has one scan for each value head */
    config = tiny(dr_rule_find("delta_net"));
    config.value_heads = 4;
    check_round_trip(backends[1], &config, "deltarule");
    config = tiny(dr_rule_find("eda"));
    config.gates.gate = DR_GATE_FORM_LOG;
    check_round_trip(backends[1], &config, "deltarule");
    config.a_log_per_channel = true;
    check_round_trip(backends[1], &config, "deltarule");
    config = tiny(dr_rule_find("qdelta"));
    check_round_trip(backends[1], &config, "qdelta");
    config.gates.lambda_bias_learned = true;
    check_round_trip(backends[1], &config, "deltarule"); /* the publishers' bias is a constant */
    config.gates.lambda_bias_learned = false;
    config.gates.lambda = DR_LAMBDA_FIXED;
    config.gates.lambda_value = 0.2;
    check_round_trip(backends[1], &config, "deltarule");
}

static void test_composition(void **state) {
    (void)state;
    dr_rule rule = dr_rule_blank();
    rule.decay = DR_DECAY_CHANNEL;
    rule.rows = 2;
    rule.row[0] = (dr_row){DR_READ_ERASE_KEY, true, DR_WRITE_ERASE_KEY, DR_GAIN_GAMMA, DR_VALUE_NONE};
    rule.row[1] = (dr_row){DR_READ_KEY, false, DR_WRITE_PRECONDITIONED, DR_GAIN_BETA, DR_VALUE_GAIN};
    rule.scan = DR_SCAN_DIAGONAL;
    rule.squash = (dr_squash){1.75, 1e-5, DR_SQUASH_AMPLIFY, DR_SQUASH_TANH};
    rule.normalizer = DR_NORMALIZER_IMPLICIT;
    rule.name = "mine"; /* not a row of the table: the name is dropped */
    dr_model_config config = tiny(&rule);
    check_round_trip(backends[0], &config, "deltarule");
}

/* ---- recorded checkpoints ------------------------------------------------------------------------------------------- */

/* What is loaded from a folder of a published type is saved as that type, and comes back to the bit. */
static bool comes_back(const char *folder) {
    dr_model *first = NULL, *again = NULL;
    const dr_status status = dr_model_load(backends[1], folder, &first);
    if (status == DR_ERROR_UNSUPPORTED) return false; /* a part of it is not built; `deltarule verify` says which */
    if (status != DR_OK) fail_msg("%s", dr_last_error());
    ASSERT_OK(dr_model_save(first, scratch_path("again")));
    ASSERT_OK(dr_model_load(backends[1], scratch_path("again"), &again));
    assert_int_equal(dr_model_block_count(first), dr_model_block_count(again));
    assert_memory_equal(dr_model_parameter_block(first), dr_model_parameter_block(again),
                        (size_t)dr_model_block_count(first) * sizeof(float));
    assert_same_config(dr_model_get_config(first), dr_model_get_config(again));
    learner_destroy(first);
    learner_destroy(again);
    return true;
}

static int check_folder(const char *root) {
    DIR *stream = opendir(root);
    int count = 0;
    assert_non_null(stream);
    for (const struct dirent *item = readdir(stream); item; item = readdir(stream)) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s/%s", root, item->d_name);
        if (item->d_name[0] != '.' && item->d_type == DT_DIR) count += comes_back(folder);
    }
    closedir(stream);
    return count;
}

static void test_recorded_checkpoints(void **state) {
    (void)state;
    const char *more = getenv("DELTARULE_CHECKPOINTS");
    assert_in_range(check_folder(DR_TESTS_FOLDER "/checkpoints"), 14, 1000);
    if (more) assert_in_range(check_folder(more), 1, 1000);
}

/* ---- configurations that are refused -------------------------------------------------------------------------------- */

static const char *const published = "{\"model_type\": \"kda\", \"vocab_size\": 11, \"hidden_size\": 12, "
                                     "\"num_hidden_layers\": 1, \"num_heads\": 2, \"head_dim\": 4, \"intermediate_size\": 10";
static const char *const own = "{\"model_type\": \"deltarule\", \"rule\": \"eda\", \"vocabulary\": 11, \"hidden\": 12, "
                               "\"layers\": 1, \"heads\": 2";

static void refuse(const char *text, dr_status wanted, const char *sentence) {
    dr_model *model = NULL;
    scratch_write("bad/config.json", text, strlen(text));
    dr_status status = dr_model_load(backends[0], scratch_path("bad"), &model);
    assert_null(model);
    if (status != wanted) fail_msg("%s for %s: %s", dr_status_name(status), text, dr_last_error());
    assert_sentence(sentence);
    assert_sentence("bad/config.json");
}

/* base without its closing brace, then a key and its value */
static void refuse_key(const char *base, const char *key, dr_status wanted, const char *sentence) {
    char text[1024];
    snprintf(text, sizeof text, "%s, %s}", base, key);
    refuse(text, wanted, sentence);
}

static void test_refused_configs(void **state) {
    (void)state;
    refuse("{", DR_ERROR_FORMAT, "line");
    refuse("[1]", DR_ERROR_FORMAT, "object");
    refuse("{}", DR_ERROR_FORMAT, "\"model_type\" is missing");
    refuse("{\"model_type\": 3}", DR_ERROR_FORMAT, "\"model_type\" must be");
    refuse("{\"model_type\": \"bert\"}", DR_ERROR_UNSUPPORTED, "\"model_type\" is \"bert\"; supported are deltarule, llama");
    refuse("{\"model_type\": \"kda\", \"vocab_size\": 11}", DR_ERROR_FORMAT, "\"hidden_size\" is missing");
    static const char *const formats[][2] = {
        {"\"num_heads\": \"2\"", "num_heads"},
        {"\"head_dim\": 0", "\"head_dim\" is 0"},
        {"\"hidden_size\": 12.5", "hidden_size"},
        {"\"num_v_heads\": 3", "\"num_v_heads\" is 3; it must be a multiple of \"num_heads\", 2"},
        {"\"use_short_conv\": 1", "use_short_conv"},
        {"\"conv_size\": 0", "conv_size"},
        {"\"expand_v\": 0", "expand_v"},
        {"\"expand_v\": 0.1", "the heads would have 4 key and 0 value channels"},
        {"\"lower_bound\": 5", "lower_bound"},
        {"\"safe_gate\": true", "\"safe_gate\" is true without \"lower_bound\""},
        {"\"norm_eps\": -1", "norm_eps"},
        {"\"tie_word_embeddings\": \"no\"", "tie_word_embeddings"},
        {"\"num_hidden_layers\": 100000", "\"num_hidden_layers\" is 100000"},
        {"\"num_hidden_layers\": 9223372036854775807", "num_hidden_layers"},
    };
    static const char *const unsupported[][2] = {
        {"\"attn_resolution\": 4", "the key \"attn_resolution\" is not known"},
        {"\"hidden_act\": \"gelu\"", "\"hidden_act\" is the string \"gelu\"; only \"swish\" is supported"},
        {"\"quantization_config\": {}", "quantization_config"},
        {"\"qk_norm\": \"sum\"", "qk_norm"},
        {"\"qk_activation\": \"elu\"", "qk_activation"},
        {"\"use_beta\": false", "use_beta"},
        {"\"conv_bias\": true", "conv_bias"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        char base[512]; /* a key that is there already is taken out: keys must not repeat */
        snprintf(base, sizeof base, "%s", published);
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)(strchr(formats[i][0], ':') - formats[i][0]), formats[i][0]);
        char *there = strstr(base, key), *end = there ? strchr(there, ',') : NULL;
        if (end)
            memset(there, ' ', (size_t)(end + 1 - there));
        else if (there)
            strcpy(there - 2, "");
        refuse_key(base, formats[i][0], DR_ERROR_FORMAT, formats[i][1]);
    }
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        refuse_key(published, unsupported[i][0], DR_ERROR_UNSUPPORTED, unsupported[i][1]);
    refuse("{\"model_type\": \"precond_kda\", \"vocab_size\": 11, \"hidden_size\": 12, \"num_hidden_layers\": 1, "
           "\"num_heads\": 2, \"num_v_heads\": 4, \"head_dim\": 4}",
           DR_ERROR_UNSUPPORTED, "\"num_v_heads\" is 4; it must be equal to \"num_heads\", 2");
}

static void test_refused_own_configs(void **state) {
    (void)state;
    static const char *const formats[][2] = {
        {"\"colour\": 1", "unknown key \"colour\""},
        {"\"value_heads\": 3", "value_heads is 3"},
        {"\"key_size\": \"4\"", "key_size"},
        {"\"intermediate\": -2", "intermediate"},
        {"\"output_gate\": 1", "output_gate"},
        {"\"gate\": \"bounded\"", "unknown gate \"bounded\"; known are auto, log, kda_bounded, eda_bounded"},
        {"\"lower_bound\": 0", "\"lower_bound\" is 0"},
        {"\"negative_eigenvalues\": \"yes\"", "negative_eigenvalues"},
        {"\"initializer_range\": -0.5", "initializer_range"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        refuse_key(own, formats[i][0], DR_ERROR_FORMAT, formats[i][1]);
    const char *sizes = "{\"model_type\": \"deltarule\", \"vocabulary\": 11, \"hidden\": 12, \"layers\": 1, \"heads\": 2";
    refuse_key(sizes, "\"dtype\": \"float32\"", DR_ERROR_FORMAT, "\"rule\" is missing");
    static const char *const rules[][2] = {
        {"5", "rule: a rule must be the name of one, or an object"},
        {"\"gdm\"", "gdn"},
        {"{\"base\": \"gdm\"}", "gdn"},
        {"{\"color\": 1}", "rule: unknown key \"color\""},
        {"{\"decay\": \"vector\"}", "unknown decay \"vector\"; known are none, constant, scalar, channel"},
        {"{\"decay\": 2}", "decay"},
        {"{\"rows\": []}", "1 to 2 rows"},
        {"{\"rows\": [1]}", "row 1: it must be an object, { ... }, not the integer 1"},
        {"{\"rows\": [{\"gains\": \"one\"}]}", "row 1: unknown key \"gains\"; did you mean \"gain\"?"},
        {"{\"rows\": [{\"read\": \"value\"}]}", "row 1: unknown read \"value\""},
        {"{\"base\": \"pgdn\", \"squash\": {\"x\": 3}}", "squash: \"x\" is 3"},
        {"{\"base\": \"pgdn\", \"squash\": 3}", "\"squash\" must be an object"},
        {"{\"base\": \"gdn\", \"scan\": \"diagonal\"}", "scan"},
        {"{\"base\": \"gdn\", \"repeat\": 0}", "\"repeat\" is 0"},
        {"{\"decay\": \"scalar\"}", "rows"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        char key[256];
        snprintf(key, sizeof key, "\"rule\": %s", rules[i][0]);
        refuse_key(sizes, key, DR_ERROR_FORMAT, rules[i][1]);
    }
}

/* ---- weights that are refused, or come otherwise than we write them -------------------------------------------------- */

enum { MOST_TENSORS = 64 };

/* The tensors of a small saved model, to be changed and written again. */
typedef struct {
    dr_model *model;
    int64_t count;
    const char *names[MOST_TENSORS];
    dr_tensor tensors[MOST_TENSORS];
} weights;

static weights begin_weights(void) {
    weights of = {0};
    dr_model_config config = tiny(dr_rule_find("gdn"));
    const dr_parameter *list;
    ASSERT_OK(dr_model_create(backends[0], &config, 3, &of.model));
    ASSERT_OK(dr_model_save(of.model, scratch_path("weights")));
    of.count = dr_model_parameters(of.model, &list);
    assert_true(of.count < MOST_TENSORS);
    for (int64_t i = 0; i < of.count; i++) {
        of.names[i] = list[i].name;
        of.tensors[i] = (dr_tensor){.dtype = DR_F64, .rank = list[i].rank};
        memcpy(of.tensors[i].shape, list[i].shape, sizeof list[i].shape);
        of.tensors[i].data = (double *)dr_model_parameter_block(of.model) + list[i].offset;
    }
    return of;
}

static void write_weights(const weights *of) {
    ASSERT_OK(dr_safetensors_write(scratch_path("weights/model.safetensors"), of->count, of->names, of->tensors, NULL));
}

static void refuse_weights(const weights *of, const char *sentence) {
    dr_model *model = NULL;
    write_weights(of);
    assert_int_equal(dr_model_load(backends[0], scratch_path("weights"), &model), DR_ERROR_FORMAT);
    assert_null(model);
    assert_sentence("weights/model.safetensors");
    assert_sentence(sentence);
}

static void test_refused_weights(void **state) {
    (void)state;
    weights of = begin_weights(), changed = of;
    changed.names[0] = "model.embed.weight";
    refuse_weights(&changed, "the tensor model.embeddings.weight of shape [11, 12] is missing");
    changed = of;
    changed.count--;
    refuse_weights(&changed, "lm_head.weight of shape [11, 12] is missing");
    changed = of;
    changed.names[of.count] = "model.layers.2.attn_norm.weight";
    changed.tensors[changed.count++] = of.tensors[1];
    refuse_weights(&changed, "the tensor model.layers.2.attn_norm.weight has no place");
    changed = of;
    changed.tensors[0].shape[0] = 12;
    changed.tensors[0].shape[1] = 11;
    refuse_weights(&changed, "model.embeddings.weight has the shape [12, 11]; the configuration asks for [11, 12]");
    changed = of;
    changed.tensors[0].rank = 1;
    changed.tensors[0].shape[0] = 132;
    refuse_weights(&changed, "has the shape [132]");
    changed = of;
    changed.tensors[1].dtype = DR_I64;
    refuse_weights(&changed, "is of type I64; it must be F32, F64, F16 or BF16");
    changed = of;
    double *norm = changed.tensors[1].data, kept = norm[3];
    norm[3] = (double)NAN;
    refuse_weights(&changed, "element 3 of the tensor model.layers.0.attn_norm.weight is a NaN: weights must be finite");
    norm[3] = (double)INFINITY;
    refuse_weights(&changed, "is infinite: weights must be finite");
    norm[3] = kept;
    dr_model *model = NULL;
    assert_int_equal(truncate(scratch_path("weights/model.safetensors"), 1000), 0);
    assert_int_equal(dr_model_load(backends[0], scratch_path("weights"), &model), DR_ERROR_FORMAT);
    assert_int_equal(unlink(scratch_path("weights/model.safetensors")), 0);
    assert_int_equal(dr_model_load(backends[0], scratch_path("weights"), &model), DR_ERROR_IO);
    assert_sentence("weights/model.safetensors");
    assert_int_equal(dr_model_load(backends[0], scratch_path("nowhere"), &model), DR_ERROR_IO);
    assert_null(model);
    learner_destroy(of.model);
}

static void assert_loads_same(const weights *of) {
    dr_model *loaded = NULL;
    ASSERT_OK(dr_model_load(backends[0], scratch_path("weights"), &loaded));
    assert_memory_equal(dr_model_parameter_block(of->model), dr_model_parameter_block(loaded),
                        (size_t)dr_model_block_count(loaded) * sizeof(double));
    learner_destroy(loaded);
}

/* The same numbers as other types; and in a file whose data begins at an odd place. */
static void test_other_weights(void **state) {
    (void)state;
    weights of = begin_weights();
    float narrow[11 * 12];
    double *embedding = of.tensors[0].data;
    for (int i = 0; i < 11 * 12; i++) embedding[i] = narrow[i] = (float)embedding[i];
    weights changed = of;
    changed.tensors[0].dtype = DR_F32;
    changed.tensors[0].data = narrow;
    write_weights(&changed);
    assert_loads_same(&of);
    uint16_t half[11 * 12];
    for (int i = 0; i < 11 * 12; i++) {
        half[i] = (uint16_t)(0x3F80 + i); /* bfloat16: the upper half of a float's bits */
        uint32_t bits = (uint32_t)half[i] << 16;
        memcpy(&narrow[i], &bits, sizeof bits);
        embedding[i] = narrow[i];
    }
    changed.tensors[0].dtype = DR_BF16;
    changed.tensors[0].data = half;
    write_weights(&changed);
    assert_loads_same(&of);
    size_t bytes = 0;
    write_weights(&of);
    char *file = scratch_read_at(scratch_path("weights/model.safetensors"), &bytes);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    char *shifted = calloc(1, bytes + 1);
    uint64_t longer = header + 1;
    memcpy(shifted, &longer, sizeof longer);
    memcpy(shifted + 8, file + 8, header);
    shifted[8 + header] = ' ';
    memcpy(shifted + 9 + header, file + 8 + header, bytes - 8 - header);
    scratch_write_at(scratch_path("weights/model.safetensors"), shifted, bytes + 1);
    assert_loads_same(&of);
    free(file);
    free(shifted);
    learner_destroy(of.model);
}

/* What other programs store beside the weights: tables that are no weights, and a tied model's head. */
static void test_stored_beside_weights(void **state) {
    (void)state;
    weights of = begin_weights();
    double table[6] = {1, 2, 3, 4, 5, 6};
    const dr_tensor buffer = {.dtype = DR_F64, .rank = 1, .shape = {6}, .data = table};
    weights changed = of;
    changed.names[changed.count] = "model.layers.0.attn.rotary.inv_freq";
    changed.tensors[changed.count++] = buffer;
    changed.names[changed.count] = "position_ids";
    changed.tensors[changed.count++] = buffer;
    write_weights(&changed);
    assert_loads_same(&of);
    dr_model *loaded = NULL;
    ASSERT_OK(dr_model_load(backends[0], scratch_path("weights"), &loaded));
    assert_int_equal(dr_model_ignored_count(loaded), 2);
    assert_string_equal(dr_model_ignored_name(loaded, 0), "model.layers.0.attn.rotary.inv_freq");
    assert_string_equal(dr_model_ignored_name(loaded, 1), "position_ids");
    assert_null(dr_model_ignored_name(loaded, 2));
    assert_null(dr_model_ignored_name(loaded, -1));
    assert_int_equal(dr_model_ignored_count(NULL), 0);
    assert_null(dr_model_ignored_name(NULL, 0));
    learner_destroy(loaded);
    static const char *const weighty[] = {"model.layers.0.attn.bias", "inv_freq.weight", "model.layers.0.attn.rotary.scale"};
    for (int i = 0; i < 3; i++) {
        changed = of;
        changed.names[changed.count] = weighty[i];
        changed.tensors[changed.count++] = buffer;
        refuse_weights(&changed, "has no place in the model");
    }
    learner_destroy(of.model);
}

static dr_status load_and_destroy(void *context) {
    dr_model *loaded = NULL;
    dr_status status = dr_model_load(context, scratch_path("weights"), &loaded);
    learner_destroy(loaded);
    return status;
}

static void test_tied_model_with_a_head(void **state) {
    (void)state;
    weights of = begin_weights();
    learner_destroy(of.model);
    dr_model_config config = tiny(dr_rule_find("gdn"));
    config.tied = true;
    const dr_parameter *list;
    ASSERT_OK(dr_model_create(backends[0], &config, 3, &of.model));
    ASSERT_OK(dr_model_save(of.model, scratch_path("weights")));
    int64_t count = dr_model_parameters(of.model, &list);
    for (int64_t i = 0; i < count; i++) of.names[i] = list[i].name;
    for (int64_t i = 0; i < count; i++) of.tensors[i].data = (double *)dr_model_parameter_block(of.model) + list[i].offset;
    of.count = count;
    double head[11 * 12];
    memcpy(head, of.tensors[0].data, sizeof head);
    weights changed = of;
    changed.names[count] = "lm_head.weight";
    changed.tensors[count] = of.tensors[0];
    changed.tensors[count].data = head;
    changed.count++;
    write_weights(&changed);
    assert_loads_same(&of);
    assert_survives_failed_allocations(load_and_destroy, backends[0]);
    dr_model *loaded = NULL;
    ASSERT_OK(dr_model_load(backends[0], scratch_path("weights"), &loaded));
    assert_string_equal(dr_model_ignored_name(loaded, 0), "lm_head.weight");
    learner_destroy(loaded);

    head[131] += 1e-9;
    refuse_weights(&changed, "lm_head.weight is stored and differs from model.embeddings.weight");
    head[131] -= 1e-9;
    changed.tensors[count].shape[0] = 12;
    changed.tensors[count].shape[1] = 11;
    refuse_weights(&changed, "lm_head.weight is stored and differs");

    changed = of; /* one matrix under the other of its two names */
    changed.names[0] = "lm_head.weight";
    write_weights(&changed);
    assert_loads_same(&of);
    changed.names[0] = "lm_head.bias";
    refuse_weights(&changed, "the tensor model.embeddings.weight of shape [11, 12] is missing");
    learner_destroy(of.model);
}

static void test_config_of_other_programs(void **state) {
    (void)state;
    weights of = begin_weights();
    size_t bytes = 0;
    char *text = scratch_read_at(scratch_path("weights/config.json"), &bytes), changed[4096];
    int length =
        snprintf(changed, sizeof changed, "\xef\xbb\xbf%.*s, \"z_loss_coefficient\": Infinity, \"attention_dropout\": NaN}",
                 (int)(strrchr(text, '}') - text), text);
    scratch_write("weights/config.json", changed, (size_t)length);
    assert_loads_same(&of);
    free(text);
    refuse_key(published, "\"norm_eps\": Infinity", DR_ERROR_FORMAT, "\"norm_eps\" is inf: it must be from");
    refuse_key(published, "\"hidden_act\": NaN", DR_ERROR_UNSUPPORTED, "\"hidden_act\" is");
    learner_destroy(of.model);
}

static dr_status save_and_load(void *context) {
    const dr_model *model = context;
    dr_model *loaded = NULL;
    dr_status status = dr_model_save(model, scratch_path("again"));
    if (status == DR_OK) status = dr_model_load(backends[1], scratch_path("again"), &loaded);
    learner_destroy(loaded);
    return status;
}

static void test_failed_allocations(void **state) {
    (void)state;
    dr_model_config config = tiny(dr_rule_find("eda"));
    dr_model *model = NULL;
    ASSERT_OK(dr_model_create(backends[1], &config, 3, &model));
    assert_true(assert_survives_failed_allocations(save_and_load, model) > 10);
    learner_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_rules),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_composition),
        cmocka_unit_test(test_recorded_checkpoints),
        cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_refused_own_configs),
        cmocka_unit_test(test_refused_weights),
        cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_stored_beside_weights),
        cmocka_unit_test(test_tied_model_with_a_head),
        cmocka_unit_test(test_config_of_other_programs),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
