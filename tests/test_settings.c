/* Every setting of a run, at a value that is not its default, where it is used: what reaches the optimizer's step, the gates,
 * the convolution, the recurrence, the shapes of parameters, the batches and the evaluations. The table at the end names a
 * function for each row of train/settings_table.c; a row without one fails. */
#include "step_settings.h"

#include "data/corpus.h"
#include "data/mqar.h"
#include "data/streams.h"
#include "data/windows.h"
#include <deltarule/tokenizer.h>

/* ---- run ---- */

static void check_task(void) {
    SPY_RUN("task", "mqar");
    assert_true(spy.trained[0].positions && spy.trained[0].targets == 2 * 2);
    SPY_RUN("task", "lm");
    assert_true(!spy.trained[0].positions && spy.trained[0].targets == 2 * 8);
}

static void check_rule(void) {
    SPY_RUN("rule", "eda");
    assert_string_equal(spy.rule.name, "eda");
    assert_true(dr_rule_uses(&spy.rule, DR_INPUT_ERASE_KEY) && spy_parameter("gamma_proj.weight"));
    SPY_RUN("rule", "{\"base\": \"delta_net\", \"decay\": \"constant\"}");
    assert_int_equal(spy.rule.decay, DR_DECAY_CONSTANT);
}

/* All tokens are those of the only text. */
static void check_corpus(void) {
    char text[600];
    memset(text, 'z', sizeof text);
    scratch_write("other/only.txt", text, sizeof text);
    SPY_RUN("corpus", scratch_path("other"));
    for (int64_t i = 0; i < spy.trained[0].rows; i++)
        assert_true(spy.trained[0].ids[i] == 'z' || spy.trained[0].ids[i] == DR_DOCUMENT_START);
    assert_int_equal(spy.evaluated[0].labels[0], 'z');
}

static void check_steps(void) {
    SPY_RUN("task", "mqar", "steps", "5", "learning_rate", "0.5", "min_learning_rate_ratio", "0.25");
    assert_int_equal(spy.steps, 5);
    assert_int_equal(spy.trainings, 5);
    assert_int_equal(spy.progress[0].steps, 5);
    assert_true(fabs(spy.update[spy.updates - 1].run.learning_rate - 0.125) < 1e-15); /* the schedule ends with it */
}

/* Windows, and the documents that begin within them. */
static int64_t sequences_of(const spy_batch *step, int64_t length) {
    int64_t sequences = 0;
    for (int64_t i = 0; i < step->rows; i++) sequences += i % length == 0 || step->ids[i] == DR_DOCUMENT_START;
    return sequences;
}

/* The batches of two steps are windows 0 .. 3 of the documents that this choice leaves, length and seed. */
static void assert_windows_of(uint64_t held_out_seed, double share, uint64_t seed, int64_t batch, int64_t length) {
    dr_corpus *corpus;
    dr_split split;
    dr_windows *windows;
    dr_tokens *tokens;
    int32_t ids[64], labels[64];
    uint8_t marks[64];
    assert_true(length <= 64);
    must(dr_corpus_read(scratch_path("corpus"), false, &corpus));
    must(dr_split_create(corpus, held_out_seed, share, &split));
    must(dr_tokens_of_bytes(&split.training, &tokens));
    must(dr_windows_create(tokens, length, seed, &windows));
    for (int64_t i = 0; i < 2 * batch; i++) {
        const spy_batch *step = &spy.trained[i / batch];
        assert_true(step->sequences == sequences_of(step, length) && step->rows == batch * length);
        must(dr_windows_get(windows, i, ids, labels, marks));
        assert_memory_equal(step->ids + i % batch * length, ids, (size_t)length * sizeof *ids);
        assert_memory_equal(step->labels + i % batch * length, labels, (size_t)length * sizeof *labels);
    }
    dr_windows_destroy(windows);
    dr_tokens_destroy(tokens);
    dr_split_destroy(&split);
    dr_corpus_destroy(corpus);
}

static void assert_windows(uint64_t seed, int64_t batch, int64_t length) {
    assert_windows_of(1, 0, seed, batch, length);
}

/* The examples of two steps are those of the training stream of this seed. */
static void assert_recall(uint64_t seed, const dr_mqar_shape *shape, int64_t batch) {
    dr_mqar *mqar;
    int32_t ids[64], labels[16];
    int64_t positions[16];
    assert_true(shape->length <= 64 && shape->pairs <= 16);
    must(dr_mqar_create(shape, &mqar));
    for (int64_t i = 0; i < 2 * batch; i++) {
        const spy_batch *step = &spy.trained[i / batch];
        dr_random random = dr_stream(seed, DR_STREAM_TRAINING_EXAMPLES, i);
        dr_mqar_draw(mqar, &random, shape->length, shape->pairs, ids, positions, labels);
        assert_int_equal(step->targets, batch * shape->pairs);
        assert_memory_equal(step->ids + i % batch * shape->length, ids, (size_t)shape->length * sizeof *ids);
        assert_memory_equal(step->labels + i % batch * shape->pairs, labels, (size_t)shape->pairs * sizeof *labels);
        for (int64_t k = 0; k < shape->pairs; k++)
            assert_int_equal(step->positions[i % batch * shape->pairs + k], positions[k] + i % batch * shape->length);
    }
    dr_mqar_destroy(mqar);
}

/* Parameters, windows and the examples of recall follow from it. */
static void check_seed(void) {
    dr_model *model;
    dr_model_config config;
    SPY_RUN("seed", "3");
    assert_windows(3, 2, 8);
    SPY_RUN("task", "mqar", "seed", "9");
    assert_recall(9, &(dr_mqar_shape){.vocabulary = 16, .length = 8, .pairs = 2, .power = 0.01, .random_fillers = true}, 2);
    dr_train_options *options;
    must(dr_train_options_create(&options));
    must(dr_train_options_read(options, spy_folder));
    must(dr_train_model_config(options, 16, &config));
    must(dr_model_create(spy_backend, &config, 9, &model));
    const dr_parameter *embedding = spy_parameter("embeddings.weight");
    assert_memory_equal(spy.value + embedding->offset, dr_model_parameter_block(model),
                        (size_t)embedding->count * sizeof(double));
    dr_model_destroy(model);
    dr_train_options_destroy(options);
}

/* The command opens its backend with it, and says so. */
static void check_threads(void) {
    char command[3 * PATH_MAX], line[512];
    bool said = false;
    snprintf(command, sizeof command,
             "%s train --task mqar --steps 1 --batch 1 --seq-len 8 --pairs 1 --vocabulary 16 --hidden 8 --layers 1 --heads 1 "
             "--intermediate 8 --held-out 1 --threads 3 --out %s",
             DR_COMMAND, scratch_path("threads"));
    FILE *output = popen(command, "r");
    assert_non_null(output);
    while (fgets(line, sizeof line, output)) said |= strstr(line, ", 3 threads") != NULL;
    assert_int_equal(pclose(output), 0);
    assert_true(said);
}

static void check_save_every(void) {
    SPY_RUN("task", "mqar", "steps", "7", "save_every", "3");
    static const int64_t in_folder[] = {0, 0, 0, 3, 3, 3, 6}; /* while steps 1 .. 7 are told */
    assert_memory_equal(spy.saved, in_folder, sizeof in_folder);
    assert_int_equal(spy_saved_count("step"), 7);
}

static void check_evaluate_every(void) {
    SPY_RUN("task", "mqar", "steps", "7", "evaluate_every", "3");
    static const bool evaluated[] = {false, false, true, false, false, true, true};
    for (int i = 0; i < 7; i++) assert_int_equal(spy.progress[i].evaluated, evaluated[i]);
}

static int64_t targets_evaluated(void) {
    int64_t targets = 0;
    for (int i = 0; i < spy.evaluations; i++) targets += spy.evaluated[i].targets;
    return targets;
}

static void check_evaluate_tokens(void) {
    SPY_RUN("evaluate_tokens", "77", "steps", "1");
    assert_int_equal(targets_evaluated(), 77);
    SPY_RUN("evaluate_tokens", "0", "steps", "1");
    assert_true(targets_evaluated() > 77);
}

/* ---- training ---- */

static void check_batch(void) {
    SPY_RUN("batch", "3");
    assert_windows(1, 3, 8);
}

static void check_seq_len(void) {
    SPY_RUN("seq_len", "13");
    assert_windows(1, 2, 13);
    for (int i = 0; i < spy.evaluations; i++) assert_true(spy.evaluated[i].rows <= 13);
    SPY_RUN("task", "mqar", "seq_len", "12");
    assert_int_equal(spy.trained[0].rows, 2 * 12);
}

static void check_reset_at_documents(void) {
    scratch_write("pieces/a", "abcdefg", 7);
    scratch_write("pieces/b", "hijklm", 6);
    scratch_write("pieces/c", "nopqrstuvw", 10);
    SPY_RUN("corpus", scratch_path("pieces"), "batch", "1", "held_out", "0.2", "reset_at_documents", "false");
    for (int i = 0; i < spy.trainings; i++) assert_int_equal(spy.trained[i].sequences, 1);
    SPY_RUN("corpus", scratch_path("pieces"), "batch", "1", "held_out", "0.2", "steps", "8");
    int64_t most = 0;
    for (int i = 0; i < spy.trainings; i++) {
        assert_int_equal(spy.trained[i].sequences, sequences_of(&spy.trained[i], 8));
        if (spy.trained[i].sequences > most) most = spy.trained[i].sequences;
    }
    assert_true(most > 1);
}

static void assert_rates(int count, const double *rates) {
    int per_step = spy.updates / spy.steps;
    assert_int_equal(spy.steps, count);
    for (int i = 0; i < spy.updates; i++)
        if (fabs(spy.update[i].run.learning_rate - rates[i / per_step]) > 1e-15)
            fail_msg("step %d has learning rate %.17g, not %.17g", i / per_step + 1, spy.update[i].run.learning_rate,
                     rates[i / per_step]);
    for (int i = 0; i < count; i++) assert_true(fabs(spy.progress[i].learning_rate - rates[i]) < 1e-15);
}

static void check_learning_rate(void) {
    SPY_RUN("task", "mqar", "learning_rate", "0.125", "min_learning_rate_ratio", "1");
    assert_rates(2, (double[]){0.125, 0.125});
}

static void check_min_learning_rate_ratio(void) {
    SPY_RUN("task", "mqar", "steps", "3", "learning_rate", "0.5", "min_learning_rate_ratio", "0.5");
    assert_rates(3, (double[]){0.5, 0.375, 0.25});
}

static void check_warmup(void) {
    SPY_RUN("task", "mqar", "steps", "4", "learning_rate", "0.5", "warmup", "0.5", "min_learning_rate_ratio", "1");
    assert_rates(4, (double[]){0.25, 0.5, 0.5, 0.5});
}

/* Of every matrix; never of norms and gates. */
static void check_weight_decay(void) {
    SPY_RUN("task", "mqar", "weight_decay", "0.75");
    int decayed = 0, plain = 0;
    for (int i = 0; i < spy.updates; i++) {
        assert_true(spy.update[i].run.weight_decay == 0.75 || spy.update[i].run.weight_decay == 0);
        decayed += spy.update[i].run.weight_decay == 0.75;
        plain += spy.update[i].run.weight_decay == 0;
    }
    assert_true(decayed > 0 && plain > 0);
}

static void check_betas(void) {
    SPY_RUN("task", "mqar", "beta1", "0.625", "beta2", "0.75", "eps", "0.0625");
    assert_true(spy.updates > 0);
    for (int i = 0; i < spy.updates; i++)
        assert_true(spy.update[i].step.beta1 == 0.625 && spy.update[i].step.beta2 == 0.75 && spy.update[i].step.eps == 0.0625);
}

static void check_clip(void) {
    SPY_RUN("task", "mqar", "clip", "0.001", "steps", "1");
    double norm = spy.progress[0].gradient_norm;
    assert_true(norm > 0.001);
    for (int i = 0; i < spy.updates; i++) assert_true(fabs(spy.update[i].control.scale * norm - 0.001) < 1e-15);
    SPY_RUN("task", "mqar", "clip", "1e6", "steps", "1"); /* a smaller gradient stays as it is */
    for (int i = 0; i < spy.updates; i++) assert_true(spy.update[i].control.scale == 1);
    SPY_RUN("task", "mqar", "clip", "0", "steps", "1");
    for (int i = 0; i < spy.updates; i++) assert_true(spy.update[i].control.scale == 1);
}

/* ---- model ---- */

static void check_hidden(void) {
    SPY_RUN("hidden", "20");
    spy_assert_shape("embeddings.weight", 257, 20);
    spy_assert_shape("layers.0.attn.o_proj.weight", 20, 0);
    spy_assert_shape("mlp.down_proj.weight", 20, 12);
    assert_int_equal(spy.recurrence.key_size, 10);
}

static void check_layers(void) {
    SPY_RUN("layers", "3");
    assert_non_null(spy_parameter("layers.2.attn.q_proj.weight"));
    assert_null(spy_parameter("layers.3.attn.q_proj.weight"));
}

static void check_layer_list(void) {
    SPY_RUN("layer_list", "(gdn eda)*2 gdn+none");
    assert_non_null(spy_parameter("layers.3.attn.e_proj.0.weight"));
    assert_null(spy_parameter("layers.2.attn.e_proj.0.weight"));
    assert_non_null(spy_parameter("layers.4.attn.q_proj.weight"));
    assert_null(spy_parameter("layers.4.mlp.up_proj.weight"));
}

static void check_heads(void) {
    SPY_RUN("heads", "4");
    assert_int_equal(spy.recurrence.key_heads, 4);
    assert_int_equal(spy.recurrence.key_size, 2);
    spy_assert_shape("attn.A_log", 4, 0);
}

static void check_value_heads(void) {
    SPY_RUN("value_heads", "6");
    assert_int_equal(spy.recurrence.key_heads, 2);
    assert_int_equal(spy.recurrence.value_heads, 6);
    spy_assert_shape("attn.A_log", 6, 0);
    spy_assert_shape("attn.v_proj.weight", 6 * 8, 8);
}

static void check_key_size(void) {
    SPY_RUN("key_size", "5");
    assert_int_equal(spy.recurrence.key_size, 5);
    assert_int_equal(spy.recurrence.value_size, 10); /* twice as many: the family's expansion */
    spy_assert_shape("attn.k_proj.weight", 2 * 5, 8);
}

static void check_value_size(void) {
    SPY_RUN("value_size", "7");
    assert_int_equal(spy.recurrence.value_size, 7);
    assert_int_equal(spy.recurrence.key_size, 4);
    spy_assert_shape("attn.v_proj.weight", 2 * 7, 8);
    spy_assert_shape("attn.o_norm.weight", 7, 0);
}

static void check_intermediate(void) {
    SPY_RUN("intermediate", "19");
    spy_assert_shape("mlp.gate_proj.weight", 19, 8);
    spy_assert_shape("mlp.up_proj.weight", 19, 8);
    spy_assert_shape("mlp.down_proj.weight", 8, 19);
    SPY_RUN("intermediate", "-1");
    spy_assert_shape("mlp.up_proj.weight", 256, 8);
    SPY_RUN("intermediate", "0");
    assert_null(spy_parameter("mlp.up_proj.weight"));
}

static void check_conv_size(void) {
    SPY_RUN("conv_size", "3");
    assert_true(spy.convs >= 3);
    for (int i = 0; i < spy.convs; i++) assert_int_equal(spy.conv[i].width, 3);
    SPY_RUN("conv_size", "0");
    assert_int_equal(spy.convs, 0);
    SPY_RUN("conv_size", "auto");
    assert_int_equal(spy.conv[0].width, 4);
}

static void check_tied(void) {
    SPY_RUN("tied", "false");
    spy_assert_shape("lm_head.weight", 257, 8);
    SPY_RUN("tied", "true");
    assert_null(spy_parameter("lm_head.weight"));
}

static bool has_gated_norm(void) {
    bool gated = false;
    for (int i = 0; i < spy.norms; i++) gated |= spy.norm[i].gate != DR_ACTIVATION_NONE;
    return gated;
}

static void check_output_gate(void) {
    SPY_RUN("output_gate", "false");
    assert_false(has_gated_norm() || spy_parameter("attn.g_proj.weight"));
    SPY_RUN("rule", "delta_net", "output_gate", "true");
    assert_true(has_gated_norm() && spy_parameter("attn.g_proj.weight"));
    SPY_RUN("rule", "delta_net", "output_gate", "auto");
    assert_false(has_gated_norm());
}

static void check_negative_eigenvalues(void) {
    SPY_RUN("negative_eigenvalues", "true");
    assert_true(spy_gate(DR_GATE_SIGMOID)->multiplier == 2);
    SPY_RUN("negative_eigenvalues", "false");
    assert_true(spy_gate(DR_GATE_SIGMOID)->multiplier == 1);
}

static void check_force(void) {
    SPY_RUN("rule", "pgdn", "negative_eigenvalues", "true", "force", "true");
    assert_true(spy_has_gate(DR_GATE_SIGMOID, 2));
    dr_train_options *options;
    dr_run *run;
    must(dr_train_options_create(&options));
    must(dr_train_options_read(options, spy_folder));
    must(dr_train_options_set(options, "force", "false"));
    assert_refused(dr_run_create(spy_backend, options, scratch_path("refused"), &run), DR_ERROR_ARGUMENT, "force");
    dr_train_options_destroy(options);
}

static void check_gate(void) {
    SPY_RUN("gate", "kda_bounded");
    assert_true(spy_gate(DR_GATE_KDA_BOUNDED)->lower_bound == -5);
    SPY_RUN("gate", "eda_bounded");
    assert_true(spy_gate(DR_GATE_EDA_BOUNDED)->lower_bound == -5);
    SPY_RUN("rule", "eda", "gate", "log");
    assert_true(spy_gate(DR_GATE_LOG_DECAY)->heads == 2);
}

static void check_lower_bound(void) {
    SPY_RUN("gate", "kda_bounded", "lower_bound", "-3.5");
    assert_true(spy_gate(DR_GATE_KDA_BOUNDED)->lower_bound == -3.5);
    SPY_RUN("rule", "eda", "lower_bound", "-2.5");
    assert_true(spy_gate(DR_GATE_EDA_BOUNDED)->lower_bound == -2.5);
}

static void check_lambda_bias(void) {
    bool found = false;
    SPY_RUN("rule", "qdelta", "lambda_bias", "1.75");
    for (int i = 0; i < spy.gates; i++) found |= spy.gate[i].kind == DR_GATE_SIGMOID && spy.gate[i].shift == -1.75;
    assert_true(found);
}

/* Root mean square and largest magnitude of a parameter's first values. */
static double spread(const char *ending, double *largest) {
    const dr_parameter *parameter = spy_parameter(ending);
    double sum = 0;
    *largest = 0;
    if (!parameter) fail_msg("the model has no parameter %s", ending);
    for (int64_t i = 0; i < parameter->count; i++) {
        double value = spy.value[parameter->offset + i];
        sum += value * value;
        *largest = fmax(*largest, fabs(value));
    }
    return sqrt(sum / (double)parameter->count);
}

static void check_initializer_range(void) {
    double largest;
    SPY_RUN("initializer_range", "0.5");
    assert_true(fabs(spread("embeddings.weight", &largest) / 0.5 - 1) < 0.1);
    assert_true(fabs(spread("attn.q_proj.weight", &largest) / 0.5 - 1) < 0.3);
    assert_true(fabs(spread("attn.q_conv1d.weight", &largest) / 0.5 - 1) < 0.4);
}

/* A uniform distribution's root mean square is its range over the root of 3. */
static void check_conv_initializer_range(void) {
    double largest;
    SPY_RUN("conv_initializer_range", "0.5", "key_size", "32");
    double rms = spread("attn.q_conv1d.weight", &largest);
    assert_true(largest <= 0.5 && largest > 0.45 && fabs(rms * sqrt(3) / 0.5 - 1) < 0.15);
    assert_true(spread("embeddings.weight", &largest) < 0.03);
}

/* ---- task mqar ---- */

static void check_vocabulary(void) {
    SPY_RUN("task", "mqar", "vocabulary", "40");
    spy_assert_shape("embeddings.weight", 40, 8);
    assert_recall(1, &(dr_mqar_shape){.vocabulary = 40, .length = 8, .pairs = 2, .power = 0.01, .random_fillers = true}, 2);
}

static void check_pairs(void) {
    SPY_RUN("task", "mqar", "pairs", "3", "seq_len", "14");
    assert_recall(1, &(dr_mqar_shape){.vocabulary = 16, .length = 14, .pairs = 3, .power = 0.01, .random_fillers = true}, 2);
    assert_int_equal(targets_evaluated(), 3 * 3);
}

/* Examples of 1, 2 and 4 pairs come up alike; held-out ones have all. */
static void check_least_pairs(void) {
    int of[5] = {0};
    SPY_RUN("task", "mqar", "pairs", "4", "least_pairs", "1", "seq_len", "20", "vocabulary", "32", "batch", "1", "steps", "90");
    for (int i = 0; i < spy.trainings; i++) {
        assert_in_range(spy.trained[i].targets, 1, 4);
        of[spy.trained[i].targets]++;
    }
    assert_true(of[1] > 15 && of[2] > 15 && of[4] > 15 && of[3] == 0);
    assert_int_equal(targets_evaluated(), 3 * 4);
}

static void check_power_a(void) {
    SPY_RUN("task", "mqar", "power_a", "2.5", "seq_len", "40", "vocabulary", "64");
    assert_recall(1, &(dr_mqar_shape){.vocabulary = 64, .length = 40, .pairs = 2, .power = 2.5, .random_fillers = true}, 2);
}

/* The ids are those of the tokenizer, and the table of embeddings has a row for each. */
static void check_tokenizer(void) {
    static const char folder[] = DR_TESTS_FOLDER "/tokenizers/gpt2";
    dr_tokenizer *tokenizer;
    must(dr_tokenizer_load(folder, &tokenizer));
    SPY_RUN("tokenizer", folder, "seq_len", "4");
    spy_assert_shape("embeddings.weight", dr_tokenizer_size(tokenizer), 8);
    for (int64_t i = 0; i < spy.trained[0].rows; i++)
        assert_non_null(dr_tokenizer_token(tokenizer, spy.trained[0].ids[i], &(size_t){0}));
    dr_tokenizer_destroy(tokenizer);
}

static void check_skip_unreadable(void) {
    spy_write_corpus();
    scratch_write("corpus/binary", "\xff\xfe", 2);
    SPY_RUN("skip_unreadable", "true");
    assert_int_equal(spy.steps, 2);
    assert_int_equal(unlink(scratch_path("corpus/binary")), 0);
    assert_windows(1, 2, 8);
}

static void check_held_out_seed(void) {
    SPY_RUN("held_out_seed", "4", "seed", "6");
    assert_windows_of(4, 0, 6, 2, 8);
    SPY_RUN("task", "mqar", "held_out_seed", "4", "seed", "6", "steps", "1", "vocabulary", "64", "seq_len", "16");
    dr_mqar *mqar;
    int32_t ids[16], labels[2];
    int64_t positions[2];
    must(dr_mqar_create(&(dr_mqar_shape){.vocabulary = 64, .length = 16, .pairs = 2, .power = 0.01, .random_fillers = true},
                        &mqar));
    dr_random random = dr_stream(4, DR_STREAM_HELD_OUT_EXAMPLES, 0);
    dr_mqar_draw(mqar, &random, 16, 2, ids, positions, labels);
    assert_memory_equal(spy.evaluated[0].ids, ids, sizeof ids);
    dr_mqar_destroy(mqar);
}

static void check_held_out(void) {
    char text[600];
    SPY_RUN("held_out", "0.5");
    assert_windows_of(1, 0.5, 1, 2, 8);
    memset(text, 'z', sizeof text);
    scratch_write("other/only.txt", text, sizeof text);
    SPY_RUN("held_out", scratch_path("other"), "steps", "1");
    assert_int_equal(targets_evaluated(), sizeof text);
    assert_int_equal(spy.evaluated[0].labels[0], 'z');
    assert_int_not_equal(spy.trained[0].labels[0], 'z');
    SPY_RUN("task", "mqar", "held_out", "5", "steps", "1");
    assert_int_equal(targets_evaluated(), 5 * 2);
}

#include "task_settings.h"

static void check_stop_accuracy(void) {
    spy_fake_accuracy = 0.5;
    SPY_RUN("task", "mqar", "steps", "6", "evaluate_every", "2", "stop_accuracy", "0.5");
    assert_int_equal(spy.steps, 2);
    assert_int_equal(spy_saved_count("step"), 2);
    SPY_RUN("task", "mqar", "steps", "6", "evaluate_every", "2", "stop_accuracy", "0.75");
    assert_int_equal(spy.steps, 6);
    spy_fake_accuracy = -1;
}

/* ---- the table ---- */

static void (*const checks[DR_SETTINGS])(void) = {
    STEP_SETTINGS,
    [DR_SET_TASK] = check_task,
    [DR_SET_RULE] = check_rule,
    [DR_SET_CORPUS] = check_corpus,
    [DR_SET_TOKENIZER] = check_tokenizer,
    [DR_SET_SKIP_UNREADABLE] = check_skip_unreadable,
    [DR_SET_HELD_OUT] = check_held_out,
    [DR_SET_HELD_OUT_SEED] = check_held_out_seed,
    [DR_SET_STEPS] = check_steps,
    [DR_SET_SEED] = check_seed,
    [DR_SET_THREADS] = check_threads,
    [DR_SET_SAVE_EVERY] = check_save_every,
    [DR_SET_EVALUATE_EVERY] = check_evaluate_every,
    [DR_SET_EVALUATE_TOKENS] = check_evaluate_tokens,
    [DR_SET_BATCH] = check_batch,
    [DR_SET_SEQ_LEN] = check_seq_len,
    [DR_SET_RESET_AT_DOCUMENTS] = check_reset_at_documents,
    [DR_SET_LEARNING_RATE] = check_learning_rate,
    [DR_SET_MIN_LEARNING_RATE_RATIO] = check_min_learning_rate_ratio,
    [DR_SET_WARMUP] = check_warmup,
    [DR_SET_WEIGHT_DECAY] = check_weight_decay,
    [DR_SET_BETA1] = check_betas,
    [DR_SET_BETA2] = check_betas,
    [DR_SET_EPS] = check_betas,
    [DR_SET_CLIP] = check_clip,
    [DR_SET_HIDDEN] = check_hidden,
    [DR_SET_LAYERS] = check_layers,
    [DR_SET_LAYER_LIST] = check_layer_list,
    [DR_SET_HEADS] = check_heads,
    [DR_SET_VALUE_HEADS] = check_value_heads,
    [DR_SET_KEY_SIZE] = check_key_size,
    [DR_SET_VALUE_SIZE] = check_value_size,
    [DR_SET_INTERMEDIATE] = check_intermediate,
    [DR_SET_CONV_SIZE] = check_conv_size,
    [DR_SET_TIED] = check_tied,
    [DR_SET_OUTPUT_GATE] = check_output_gate,
    [DR_SET_NEGATIVE_EIGENVALUES] = check_negative_eigenvalues,
    [DR_SET_FORCE] = check_force,
    [DR_SET_GATE] = check_gate,
    [DR_SET_LOWER_BOUND] = check_lower_bound,
    [DR_SET_LAMBDA_BIAS] = check_lambda_bias,
    [DR_SET_INITIALIZER_RANGE] = check_initializer_range,
    [DR_SET_CONV_INITIALIZER_RANGE] = check_conv_initializer_range,
    [DR_SET_VOCABULARY] = check_vocabulary,
    [DR_SET_PAIRS] = check_pairs,
    [DR_SET_LEAST_PAIRS] = check_least_pairs,
    [DR_SET_POWER_A] = check_power_a,
    [DR_SET_RANDOM_FILLERS] = check_random_fillers,
    [DR_SET_UPDATES] = check_updates,
    [DR_SET_GROUP] = check_group,
    [DR_SET_MOVES] = check_group,
    [DR_SET_ELEMENT_TOKENS] = check_group,
    [DR_SET_REPEAT_ELEMENTS] = check_group,
    [DR_SET_LENGTHS] = check_lengths,
    [DR_SET_HELD_OUT_LENGTHS] = check_lengths,
    [DR_SET_STOP_ACCURACY] = check_stop_accuracy,
};

static void test_each_setting_arrives(void **state) {
    (void)state;
    for (int id = 0; id < DR_SETTINGS; id++) {
        if (!checks[id]) fail_msg("nothing here holds the setting %s where it is used", dr_setting_table[id].name);
        print_message("[ setting ] %s\n", dr_setting_table[id].name);
        checks[id]();
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_setting_arrives)};
    return cmocka_run_group_tests(tests, begin, end);
}
