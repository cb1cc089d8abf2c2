/* Numbers of whole models, runs, samples and scores on the reference backend, recorded from this implementation. Recorded
 * checkpoints of other implementations hold six families of layers, differences hold every backward to its forward; what holds
 * the other forwards, first values, defaults and draws is that these numbers stay what they are. Whoever changes one on purpose
 * says so and takes over the line that the test prints.
 *
 * The parameters of the models are first values of a large deviation, so that every part of a layer shows in the sums. */
#include "learner.h"
#include "nn/config.h"
#include "nn/parameters.h"
#include "scratch.h"
#include "statuses.h"

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

/* In the order of the list, each parameter at a multiple of DR_OFFSET_UNIT, wherever the block has it. */
static double weighted_gradients(const dr_model *model) {
    const double *gradients = learner_gradients(model);
    const dr_parameter *list;
    const int64_t listed = dr_model_parameters(model, &list);
    double sum = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < listed; at += dr_parameter_room(list[i++].count))
        for (int64_t k = 0; k < list[i].count; k++) sum += gradients[list[i].offset + k] * cos(0.7 * (double)(at + k));
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
    found[1] = weighted_gradients(model);
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
    {"linear_attention", {36.8764487395, 31.6959971366, 44.7224927229, -5.33556764522}},
    {"retnet", {34.240447949, 32.3473814446, 47.2026702635, 2.05395956255}},
    {"mamba2", {32.8430325799, -7.53417613895, 50.8205202389, -1.10167207421}},
    {"gla", {34.3254120562, -23.8971184607, 58.810067602, 2.73882522506}},
    {"delta_net", {37.8882607827, 46.7830157499, 53.5939198934, 2.69954169092}},
    {"longhorn", {36.6022730738, -9.62658625911, 48.0312348155, -5.30254046711}},
    {"nlms", {33.8161526497, -2.92991815524, 47.9306655594, -4.82799503037}},
    {"efla", {36.1081241141, -0.242157154209, 46.7135090468, -5.42821578055}},
    {"gdn", {37.0216416629, -143.902821291, 52.1152842802, -0.996137299505}},
    {"kda", {33.6617652457, 44.957854239, 49.1851110793, 3.53598735366}},
    {"gdn2", {36.6313332427, 48.5766945406, 47.7113801153, 4.81070696564}},
    {"comba", {40.997143846, -0.0708209425792, 55.6958254509, 0.487231156389}},
    {"delta_product", {36.8533876785, 33.3700111064, 55.7407862161, 3.37898714682}},
    {"qdelta", {36.0629212882, -135.235111745, 51.2721066994, -2.69735875954}},
    {"eda", {38.0153746556, -9.93009551851, 50.6191321856, 2.00471265484}},
    {"pla_exact", {33.0264052482, -9.03145483672, 52.9793102909, -0.335658667413}},
    {"pdn_exact", {33.0264052482, -9.03145483672, 52.9793102909, -0.335658667413}},
    {"pla", {37.9089476408, 29.9763613338, 41.7546305308, -5.19913200297}},
    {"pmamba2", {32.8759530073, -12.8998798741, 50.8931133828, -1.13876779813}},
    {"pgla", {36.1716901917, 1.57912102881, 57.0011846134, 1.30712458223}},
    {"pdn_unstable", {37.3790743483, -80.5016963958, 49.4087629325, -2.83996511835}},
    {"pgdn_unstable", {38.4154064289, -22.34789527, 50.4111788365, -3.45265484448}},
    {"pkda_unstable", {34.3183190168, 27.0451457411, 46.2007921731, 1.9082617925}},
    {"pdn", {37.667732818, 63.1914927621, 51.3540311929, 0.210084650795}},
    {"pgdn", {37.5575967941, 52.5884206693, 51.7495186938, -0.765671432273}},
    {"pkda", {33.8436796779, -4.29956438037, 49.1733811177, 0.651064729041}},
    {"plonghorn", {37.1265817881, 6.09203974787, 47.2320381261, -4.90148778744}},
    {"pmamba2_key", {32.8748986178, 28.2886885848, 50.9142582472, -1.14696233501}},
    {"mesanet", {30.9431077239, 23.4850595514, 47.3239578286, 3.38068972325}},
    {"dplr", {35.9909764191, 7.33640440708, 46.0611369249, 4.60873320125}},
    {"rwkv7", {30.9845695001, 46.0726233257, 47.174461718, 1.98536101855}},
};

static void test_rules(void **state) {
    (void)state;
    for (int i = 0; i < dr_rule_count(); i++) {
        dr_model_config config = tiny(dr_rule_at(i)->name);
        measure(dr_rule_at(i)->name, &config, of_rules, sizeof of_rules / sizeof *of_rules);
    }
    none_wrong();
    assert_int_equal(dr_rule_count(), sizeof of_rules / sizeof *of_rules);
}

static const record of_variants[] = {
    {"tied", {41.9094666551, -64.5554920758, 48.6838761481, -6.59626070083}},
    {"value heads", {38.6653618831, -55.7312885737, 54.5845754226, -5.99705612039}},
    {"value size", {40.7519546012, -23.4290762081, 68.9889364722, 3.19622455549}},
    {"no convolution", {39.3243718131, -30.5755542099, 58.4943858111, 2.06880469963}},
    {"wide convolution", {46.8493989297, -19.3984459318, 66.916535986, -2.42226487026}},
    {"no output gate", {36.8103227408, 9.63875135865, 50.1991054541, -1.09735097459}},
    {"output gate", {36.5856750822, -39.0503198222, 45.9303313372, -3.31702877843}},
    {"no MLP", {39.571588596, -37.9716646067, 62.0339399682, 0.0304968658439}},
    {"usual MLP", {36.4795083522, -24.4530372519, 53.2309075969, 1.51794584378}},
    {"negative eigenvalues", {37.9216079978, -24.229508918, 53.1452180242, -1.92606471627}},
    {"forced", {37.9274290209, 9.49022373648, 49.7531179901, -0.962632949226}},
    {"bounded", {34.6629513298, 39.3571084688, 48.8855699463, 2.16125863541}},
    {"bounded as eda", {37.0299039474, -118.397141843, 52.3022863612, -1.00329071559}},
    {"unbounded", {37.883365775, 0.158082413736, 50.5403720962, 1.9909098122}},
    {"A_log by channel", {32.9382686213, 19.4192464589, 47.2624912774, -1.34631157908}},
    {"lambda bias", {35.212064808, -137.752981939, 50.9999603097, -4.34554185677}},
    {"lambda learned", {35.993396157, -146.865924332, 51.2412221389, -2.827084794}},
    {"lambda fixed", {36.4025813878, -133.649242975, 51.9513077413, -0.805480289341}},
    {"lambda fixed to zero", {37.0216416629, -143.902821291, 52.1152842802, -0.996137299505}}, /* as gdn */
    {"norm eps", {33.5095011353, 15.1021943613, 46.6840038884, -1.00476676617}},
    {"squash", {36.4180271233, 32.4881479794, 50.6135459309, 2.50916985715}},
    {"taps", {37.0093133728, -62.5420877249, 55.8727945193, 4.12838077886}},
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
    {"lm", {-3.28073968324, 0.920504013777, -0.0124538230458, 3.55124293649}},
    {"sample and score", {287875, 579835, 3.61514772542, 5.21555569554}},
    {"mqar", {-1.72332860776, -2.07269298232, -0.0124538230458, 3.58362031283}},
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
            options.sampling.top_k = 5, options.sampling.top_p = 1, options.sampling.temperature = 0.5,
            options.sampling.seed = 9;
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
    assert_true(generate.tokens == 512 && generate.at_once == 8 && generate.sampling.temperature == 0.8);
    assert_true(generate.sampling.top_k == 0 && generate.sampling.top_p == 0.95 && generate.sampling.min_p == 0);
    assert_true(generate.sampling.seed == 1 && generate.sampling.repetition_penalty == 1);
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
