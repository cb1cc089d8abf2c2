/* Numbers of whole models, runs, samples and scores on the reference backend, recorded from this implementation. Recorded
 * checkpoints of other implementations hold six families of layers, differences hold every backward to its forward; what holds
 * the other forwards, first values, defaults and draws is that these numbers stay what they are. Whoever changes one on purpose
 * says so and takes over the line that the test prints.
 *
 * The parameters of the models are first values of a large deviation, so that every part of a layer shows in the sums. */
#include "learner.h"
#include "nn/config.h"
#include "scratch.h"
#include "statuses.h"
#include "trainable.h"

#include <deltarule/evaluate.h>
#include <deltarule/generate.h>
#include <deltarule/train.h>
#include <math.h>

int __wrap_fsync(int);
int __wrap_fsync(int descriptor) { /* nothing here is about the disk */
    (void)descriptor;
    return 0;
}

static dr_backend *reference;

/* ---- comparing ------------------------------------------------------------------------------------------------------- */

enum { NUMBERS = 4 };

typedef struct {
    const char *name;
    double at[NUMBERS];
} record;

static int mistakes;

/* Mathematical functions of other C libraries differ in the last place; the last number may come from floats. */
static void compare(const char *name, const double found[NUMBERS], const record *records, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(records[i].name, name) != 0) continue;
        bool same = true;
        for (int k = 0; k < NUMBERS; k++)
            same &= fabs(found[k] - records[i].at[k]) <= (k == NUMBERS - 1 ? 1e-5 : 1e-9) * fmax(1, fabs(records[i].at[k]));
        if (same) return;
    }
    print_message("    {\"%s\", {%.12g, %.12g, %.12g, %.12g}},\n", name, found[0], found[1], found[2], found[3]);
    mistakes++;
}

static void none_wrong(void) {
    int found = mistakes;
    mistakes = 0;
    if (found > 0) fail_msg("%d lines are not as recorded; above is what they are now", found);
}

static double weighted(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * cos(0.7 * (double)i);
    return sum;
}

/* ---- models ---------------------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 13, ROWS = 12 };

static dr_model_config tiny(const char *rule) {
    dr_model_config config = dr_model_config_default(dr_rule_find(rule));
    config.vocabulary = VOCABULARY, config.hidden = 12, config.layers = 2, config.heads = 2, config.key_size = 4;
    config.intermediate = 10, config.initializer_range = 0.4;
    return config;
}

/* Loss of packed sequences; their gradient; losses of one sequence in two windows; logits of one more token. */
static void measure(const char *name, const dr_model_config *config, const record *records, int count) {
    static const int32_t ids[ROWS] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, labels[ROWS] = {2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5};
    static const int64_t begins[] = {0, 5, 5, 12};
    const dr_batch packed = {
        .layout = {.sequences = 3, .rows = ROWS, .cu_seqlens = begins}, .ids = ids, .targets = ROWS, .labels = labels};
    dr_batch window = {.layout = {.sequences = 1, .rows = 7}, .ids = ids, .targets = 7, .labels = labels};
    dr_model *model;
    dr_model_state *state;
    double found[NUMBERS], loss, first;
    float step[VOCABULARY];
    must(dr_model_create(reference, config, 5, &model));
    must(learner_gradient(model, &packed, 0.5, &found[0], NULL));
    found[1] = weighted(learner_gradients(model), dr_model_block_count(model));
    must(dr_model_state_create(model, 1, &state));
    must(learner_loss(model, &window, state, &first, NULL, NULL, NULL));
    window.ids += 7, window.labels += 7, window.targets = window.layout.rows = 5;
    must(learner_loss(model, &window, state, &loss, NULL, NULL, NULL));
    found[2] = first + 2 * loss;
    must(dr_model_step(model, (const int32_t[]){7}, state, step));
    found[3] = 0;
    for (int i = 0; i < VOCABULARY; i++) found[3] += cos(i) * (double)step[i];
    /* a state that is reset has seen nothing: neither memory, nor inputs of convolutions, nor positions */
    window.ids -= 7, window.labels -= 7, window.targets = window.layout.rows = 7;
    dr_model_state_reset(state);
    must(learner_loss(model, &window, state, &loss, NULL, NULL, NULL));
    assert_true(loss == first);
    dr_model_state_destroy(state);
    learner_destroy(model);
    compare(name, found, records, count);
}

static const record of_rules[] = {
    {"linear_attention", {44.2613527013, -53.0968502962, 61.8414575999, 6.30461461913}},
    {"retnet", {36.3112702125, -106.53697602, 51.8867235847, -5.2273475402}},
    {"mamba2", {43.6109358458, 12.4782295964, 65.5016270906, -3.06072848749}},
    {"gla", {35.9255414159, 101.478521922, 56.1907665167, -7.58030528016}},
    {"delta_net", {37.3757007624, -103.220437494, 54.3104434909, -1.22354325482}},
    {"longhorn", {43.1919967011, 44.5029350198, 72.7191681197, -5.25052756761}},
    {"nlms", {37.2964916233, -113.948206807, 49.1464388262, -1.48234555552}},
    {"efla", {43.59175369, -9.7788805986, 72.714160323, -3.89127556232}},
    {"gdn", {43.29765278, 6.29269091572, 52.6553415534, -3.11885273514}},
    {"kda", {39.2813977815, -17.9596561014, 55.6517417817, -2.47855388908}},
    {"gdn2", {35.8045443086, -0.0140864699322, 48.713576119, 4.06122312665}},
    {"comba", {34.8860946791, -107.137612241, 52.2652399074, 4.8953335305}},
    {"delta_product", {34.7941580961, -18.2214219886, 50.0271226854, -3.00137228544}},
    {"qdelta", {40.2536048772, -17.0632859199, 51.1652163037, 5.59560449528}},
    {"eda", {35.7295044909, -31.908750721, 47.6507970718, 1.43648111635}},
    {"pla_exact", {38.1474435695, -264.055002837, 50.7794942772, -1.50432750771}},
    {"pdn_exact", {38.1474435695, -264.055002837, 50.7794942772, -1.50432750771}},
    {"pla", {39.8344926386, -255.804637171, 51.1190139448, 2.93303354559}},
    {"pmamba2", {44.3422590412, 14.2217827393, 60.4511530896, 2.23592011815}},
    {"pgla", {42.1472608245, -77.3763563533, 50.4575934718, 3.12577779382}},
    {"pdn_unstable", {39.566745107, -19.8863288657, 61.6314614357, -6.03368415218}},
    {"pgdn_unstable", {34.403661762, -310.749536196, 49.3910089047, 1.28445518271}},
    {"pkda_unstable", {34.5220564029, -154.095446719, 53.8157851721, -3.43657323754}},
    {"pdn", {38.1478103903, 108.297123303, 54.1358936798, -0.116871084561}},
    {"pgdn", {35.0465314795, 64.6697315716, 54.6448829975, 3.58473997166}},
    {"pkda", {35.7839714148, -76.5865143312, 52.8985157231, -5.47202356604}},
    {"plonghorn", {44.1366393732, -31.6791112033, 57.7530245621, 7.61625666411}},
    {"pmamba2_key", {34.5646563189, 29.6959622897, 51.3743826288, -3.27977941733}},
    {"mesanet", {39.726289862, -67.7658875829, 54.3358486621, -2.97715662294}},
};

static void test_rules(void **state) {
    (void)state;
    int trainable = 0;
    for (int i = 0; i < dr_rule_count(); i++) {
        if (!is_trainable(dr_rule_at(i))) continue;
        dr_model_config config = tiny(dr_rule_at(i)->name);
        measure(dr_rule_at(i)->name, &config, of_rules, sizeof of_rules / sizeof *of_rules);
        trainable++;
    }
    none_wrong();
    assert_int_equal(trainable, sizeof of_rules / sizeof *of_rules);
}

static const record of_variants[] = {
    {"tied", {43.1720135828, 26.6803995967, 53.3133769718, 2.96077706256}},
    {"value heads", {36.5813344081, -99.4621577571, 67.2759370173, 7.1672188918}},
    {"value size", {35.9430925936, -150.13737695, 51.9062948174, 9.54542426884}},
    {"no convolution", {48.1199163814, -1.23766501651, 65.4006229839, -3.26534943045}},
    {"wide convolution", {35.8599350662, -67.0943591107, 47.2719893108, 0.412471723654}},
    {"no output gate", {30.0028058254, -218.913994042, 48.4398501146, 1.49366239407}},
    {"output gate", {41.9608546068, 59.2826277115, 66.5345253871, -8.3779563409}},
    {"no MLP", {39.3846936094, 28.890567434, 52.7465067243, 4.18489209027}},
    {"usual MLP", {41.0185704525, 26.7516583206, 64.948259535, -4.78961151418}},
    {"negative eigenvalues", {34.8606904977, 19.8508522289, 55.9047864931, 2.87266438562}},
    {"forced", {34.5185691547, 21.0845015626, 51.45829965, 3.81633831562}},
    {"bounded", {39.3919393107, -14.2102294897, 56.9994446841, -5.50411784006}},
    {"bounded as eda", {42.4036536459, -19.1610693678, 54.2058677266, -2.57094584484}},
    {"unbounded", {35.8968388887, -31.3567093051, 47.6097451881, 1.38567491928}},
    {"A_log by channel", {39.1126418473, -7.94234271949, 59.4191439332, -4.54497157208}},
    {"lambda bias", {40.5110791638, -65.3750951221, 47.8992524318, 6.06372105015}},
    {"lambda learned", {43.6873711206, -71.0720383217, 57.1520637636, 0.992667414222}},
    {"lambda fixed", {42.5192724219, 7.85229111818, 52.9768569254, -3.26975017177}},
    {"lambda fixed to zero", {43.29765278, 6.29269091572, 52.6553415534, -3.11885273514}}, /* as gdn */
    {"norm eps", {40.3875401505, 4.21605528955, 55.3867179352, -1.34536076697}},
    {"squash", {34.2460978608, 12.6861368017, 53.2094644392, 4.49641545404}},
    {"taps", {41.8043779088, 75.0452501886, 59.0083413, -3.38453624993}},
};

#define VARIANT(name, rule_name, change)                                                                                       \
    do {                                                                                                                       \
        dr_model_config config = tiny(rule_name);                                                                              \
        change;                                                                                                                \
        measure(name, &config, of_variants, sizeof of_variants / sizeof *of_variants);                                         \
    } while (0)

static void test_variants(void **state) {
    (void)state;
    VARIANT("tied", "gdn", config.tied = true);
    VARIANT("value heads", "gdn", config.value_heads = 6);
    VARIANT("value size", "kda", config.value_size = 3);
    VARIANT("no convolution", "gdn", config.conv_size = 0);
    VARIANT("wide convolution", "qdelta", config.conv_size = 5);
    VARIANT("no output gate", "kda", config.output_gate = 0);
    VARIANT("output gate", "delta_net", config.output_gate = 1);
    VARIANT("no MLP", "gdn", config.intermediate = 0);
    VARIANT("usual MLP", "gdn", config.intermediate = -1);
    VARIANT("negative eigenvalues", "gdn2", config.gates.negative_eigenvalues = true);
    VARIANT("forced", "pgdn", config.gates.negative_eigenvalues = config.force = true);
    VARIANT("bounded", "kda", (config.gates.gate = DR_GATE_FORM_KDA_BOUNDED, config.gates.lower_bound = -3));
    VARIANT("bounded as eda", "gdn", (config.gates.gate = DR_GATE_FORM_EDA_BOUNDED, config.gates.lower_bound = -2));
    VARIANT("unbounded", "eda", config.gates.gate = DR_GATE_FORM_LOG);
    VARIANT("A_log by channel", "kda", config.a_log_per_channel = true);
    VARIANT("lambda bias", "qdelta", config.lambda_bias = -0.5);
    VARIANT("lambda learned", "qdelta", config.gates.lambda_bias_learned = true);
    VARIANT("lambda fixed", "qdelta", (config.gates.lambda = DR_LAMBDA_FIXED, config.gates.lambda_value = 0.3));
    VARIANT("lambda fixed to zero", "qdelta", (config.gates.lambda = DR_LAMBDA_FIXED, config.gates.lambda_value = 0));
    VARIANT("norm eps", "gdn", config.norm_eps = 0.1);
    VARIANT("squash", "pgdn", config.rule.squash = ((dr_squash){1.75, 1e-3, DR_SQUASH_AMPLIFY, DR_SQUASH_TANH}));
    VARIANT("taps", "gdn", config.conv_initializer_range = 0.7);
    none_wrong();
}

/* ---- runs, samples, scores ------------------------------------------------------------------------------------------- */

static const char *corpus(void) {
    char name[64], text[700];
    for (int i = 0; i < 12; i++) {
        int length = snprintf(text, sizeof text, "page %d\n", i);
        for (int word = 0; word < 60; word++)
            length += snprintf(text + length, sizeof text - (size_t)length, "%c%d%s", 'a' + (i * word) % 26, word % 10,
                               word % 9 ? " " : ".\n");
        snprintf(name, sizeof name, "corpus/%02d.txt", i);
        scratch_write(name, text, (size_t)length);
    }
    return scratch_path("corpus");
}

static dr_run *run_of(const char *task) {
    static const char *const values[][2] = {{"steps", "12"},        {"batch", "3"},
                                            {"seq_len", "16"},      {"hidden", "16"},
                                            {"layers", "1"},        {"heads", "2"},
                                            {"vocabulary", "32"},   {"held_out_seed", "4"},
                                            {"intermediate", "16"}, {"save_every", "0"},
                                            {"pairs", "3"},         {"warmup", "0.25"},
                                            {"seed", "4"},          {"evaluate_tokens", "400"},
                                            {"stop_accuracy", "0"}, {"learning_rate", "0.02"}};
    dr_train_options *options;
    dr_run *run;
    must(dr_train_options_create(&options));
    must(dr_train_options_set(options, "task", task));
    must(dr_train_options_set(options, "corpus", corpus()));
    if (strcmp(task, "mqar") == 0) must(dr_train_options_set(options, "held_out", "8"));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) must(dr_train_options_set(options, values[i][0], values[i][1]));
    must(dr_run_create(reference, options, scratch_path(task), &run));
    dr_train_options_destroy(options);
    return run;
}

/* Losses, gradients' norms and learning rates of all steps, weighted; the last held-out loss. */
static bool follow(void *context, const dr_progress *progress) {
    double *found = context, weight = cos((double)progress->step);
    found[0] += weight * progress->loss;
    found[1] += weight * progress->gradient_norm;
    found[2] += weight * progress->learning_rate;
    found[3] = progress->held_out;
    return true;
}

/* Bytes as a number. */
static bool gather(void *context, const char *bytes, size_t count) {
    double *sum = context;
    for (size_t i = 0; i < count; i++) *sum = fmod(*sum * 31 + (unsigned char)bytes[i], 1000003);
    return true;
}

static const record of_runs[] = {
    {"lm", {-3.41150512273, 1.87677200987, -0.0124538230458, 3.48806908313}},
    {"sample and score", {703173, 692007, 3.56177559274, 5.1385559844}},
    {"mqar", {-1.95684696184, -1.45959508899, -0.0124538230458, 3.44897609666}},
};

static void test_runs(void **state) {
    (void)state;
    static const char *const tasks[] = {"lm", "mqar"};
    for (int i = 0; i < 2; i++) {
        double found[NUMBERS] = {0};
        dr_run *run = run_of(tasks[i]);
        must(dr_run_train(run, follow, found));
        compare(tasks[i], found, of_runs, sizeof of_runs / sizeof *of_runs);
        if (i == 0) {
            dr_generate_options options = dr_generate_defaults();
            double sample[NUMBERS] = {0};
            dr_score score;
            options.tokens = 40;
            must(dr_generate(dr_run_model(run), "page", 4, &options, gather, &sample[0]));
            options.top_k = 5, options.top_p = 1, options.temperature = 0.5, options.seed = 9;
            must(dr_generate(dr_run_model(run), "", 0, &options, gather, &sample[1]));
            must(dr_score_corpus(dr_run_model(run), scratch_path("corpus/03.txt"), 50, NULL, NULL, &score));
            sample[2] = score.loss, sample[3] = score.bits_per_byte;
            compare("sample and score", sample, of_runs, sizeof of_runs / sizeof *of_runs);
        }
        dr_run_destroy(run);
    }
    none_wrong();
}

/* ---- defaults -------------------------------------------------------------------------------------------------------- */

static void test_defaults(void **state) {
    (void)state;
    const dr_rule blank = dr_rule_blank();
    const dr_gates gates = dr_gates_default();
    const dr_generate_options generate = dr_generate_defaults();
    const dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    assert_true(blank.squash.x == 1.5 && blank.squash.eps == 1e-6 && blank.cg_iters == 30 && blank.repeat == 1);
    assert_true(blank.gain_eps == 0 && blank.cg_eps == 0 && blank.cg_start == DR_CG_ZERO && !blank.tied_scan);
    assert_true(gates.gate == DR_GATE_AUTO && gates.lower_bound == -5 && gates.lambda == DR_LAMBDA_PROJECTED);
    assert_true(!gates.negative_eigenvalues && gates.lambda_value == 0.5 && !gates.lambda_bias_learned);
    assert_true(generate.tokens == 512 && generate.temperature == 0.8 && generate.top_k == 0 && generate.top_p == 0.95);
    assert_true(generate.seed == 1);
    assert_true(config.hidden == 256 && config.layers == 4 && config.heads == 4 && config.intermediate == -1);
    assert_true(config.conv_size == 4 && config.output_gate == -1 && !config.tied && !config.force);
    assert_true(config.lambda_bias == 0.9 && config.norm_eps == 1e-6 && config.initializer_range == 0.02);
    assert_true(config.conv_initializer_range == 0 && !config.a_log_per_channel && config.value_heads == 0);
}

static int begin(void **state) {
    reference = open_backend("reference", NULL, 1);
    return scratch_begin(state);
}

static int end(void **state) {
    dr_backend_close(reference);
    return scratch_end(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
