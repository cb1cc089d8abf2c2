/* Every pointer of model.h, evaluate.h and generate.h, NULL. */
#include "null.h"

#include <deltarule/conversation.h>
#include <deltarule/convert.h>
#include <deltarule/evaluate.h>
#include <deltarule/generate.h>

enum { ROWS = 4, TARGETS = 2, VOCABULARY = 257 };

static dr_backend *backend;
static dr_model *model;
static dr_model_state *state;
static dr_session *session;
static void *gradients;
static char folder[] = "/tmp/null_model_XXXXXX", text_file[64];

static int begin(void **unused) {
    (void)unused;
    const dr_backend_options options = {.threads = 1};
    assert_int_equal(dr_backend_open("cpu", &options, &backend), DR_OK);
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY;
    config.hidden = 16;
    config.layers = 1;
    config.heads = 1;
    assert_int_equal(dr_model_create(backend, &config, 1, &model), DR_OK);
    assert_int_equal(dr_model_state_create(model, 1, &state), DR_OK);
    assert_int_equal(dr_session_create(model, &session), DR_OK);
    assert_int_equal(dr_model_gradients_create(model, &gradients), DR_OK);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(dr_model_save(model, folder), DR_OK);
    snprintf(text_file, sizeof text_file, "%s/text.txt", folder);
    FILE *file = fopen(text_file, "w");
    assert_non_null(file);
    fputs("some text", file);
    return fclose(file);
}

static int end(void **unused) {
    (void)unused;
    static const char *const names[] = {"config.json", "model.safetensors", "text.txt"};
    for (int i = 0; i < 3; i++) {
        char file[96];
        snprintf(file, sizeof file, "%s/%s", folder, names[i]);
        unlink(file);
    }
    rmdir(folder);
    dr_model_state_destroy(state);
    dr_session_destroy(session);
    dr_backend_free(backend, gradients);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return 0;
}

static void test_model(void **unused) {
    (void)unused;
    const dr_model_config *config = dr_model_get_config(model);
    dr_model *other;
    dr_model_state *other_state;
    dr_session *other_session;
    void *block;
    const dr_parameter *parameters;
    HARMLESS(dr_model_config_default, "rule", .hidden == 0, NULL);
    REFUSED(dr_model_create, "backend", NULL, config, 1, &other);
    REFUSED(dr_model_create, "config", backend, NULL, 1, &other);
    REFUSED(dr_model_create, "model", backend, config, 1, NULL);
    NOTHING(dr_model_destroy, "model", NULL);
    REFUSED(dr_model_load, "backend", NULL, folder, &other);
    REFUSED(dr_model_load, "folder", backend, NULL, &other);
    REFUSED(dr_model_load, "model", backend, folder, NULL);
    REFUSED(dr_model_save, "model", NULL, folder);
    REFUSED(dr_model_save, "folder", model, NULL);
    REFUSED(dr_model_save_as, "model", NULL, folder, DR_F32, 0);
    REFUSED(dr_model_save_as, "folder", model, NULL, DR_F32, 0);
    HARMLESS(dr_model_outline, "backend", == -1, NULL, "{}", NULL, 0);
    HARMLESS(dr_model_outline, "config", == -1, backend, NULL, NULL, 0);
    HARMLESS(dr_model_outline, "text", == -1, backend, "{}", NULL, 1);
    HARMLESS(dr_model_ignored_count, "model", == 0, NULL);
    HARMLESS(dr_model_ignored_name, "model", == NULL, NULL, 0);
    HARMLESS(dr_model_get_config, "model", == NULL, NULL);
    HARMLESS(dr_model_backend, "model", == NULL, NULL);
    HARMLESS(dr_model_parameters, "model", == 0, NULL, &parameters);
    HARMLESS(dr_model_parameters, "parameters", > 0, model, NULL);
    HARMLESS(dr_model_parameter_count, "model", == 0, NULL);
    HARMLESS(dr_model_block_count, "model", == 0, NULL);
    HARMLESS(dr_model_parameter_block, "model", == NULL, NULL);
    REFUSED(dr_model_changed, "model", NULL);
    REFUSED(dr_model_gradients_create, "model", NULL, &block);
    REFUSED(dr_model_gradients_create, "gradients", model, NULL);
    REFUSED(dr_session_create, "model", NULL, &other_session);
    REFUSED(dr_session_create, "session", model, NULL);
    NOTHING(dr_session_destroy, "session", NULL);
    HARMLESS(dr_session_model, "session", == NULL, NULL);
    REFUSED(dr_model_state_create, "model", NULL, 1, &other_state);
    REFUSED(dr_model_state_create, "state", model, 1, NULL);
    NOTHING(dr_model_state_reset, "state", NULL);
    NOTHING(dr_model_state_destroy, "state", NULL);
    null_all_right();
}

static void test_calls(void **unused) {
    (void)unused;
    const int32_t ids[ROWS] = {1, 2, 3, 4}, labels[ROWS] = {2, 3, 4, 5};
    const int64_t positions[TARGETS] = {0, 2};
    const dr_batch batch = {
        .layout = {.sequences = 1, .rows = ROWS}, .ids = ids, .targets = TARGETS, .positions = positions, .labels = labels};
    double loss, per_target[ROWS];
    int64_t hits;
    uint8_t per_hit[ROWS];
    static float logits[ROWS * VOCABULARY];
    REFUSED(dr_session_loss, "session", NULL, &batch, NULL, &loss, &hits, per_target, per_hit);
    REFUSED(dr_session_loss, "batch", session, NULL, NULL, &loss, &hits, per_target, per_hit);
    ALLOWED(dr_session_loss, "state", session, &batch, NULL, &loss, &hits, per_target, per_hit);
    REFUSED(dr_session_loss, "loss", session, &batch, state, NULL, &hits, per_target, per_hit);
    ALLOWED(dr_session_loss, "hits", session, &batch, state, &loss, NULL, per_target, per_hit);
    ALLOWED(dr_session_loss, "per_target", session, &batch, state, &loss, &hits, NULL, per_hit);
    ALLOWED(dr_session_loss, "per_hit", session, &batch, state, &loss, &hits, per_target, NULL);
    REFUSED(dr_session_gradient, "session", NULL, &batch, 1, gradients, &loss, &hits);
    REFUSED(dr_session_gradient, "batch", session, NULL, 1, gradients, &loss, &hits);
    REFUSED(dr_session_gradient, "gradients", session, &batch, 1, NULL, &loss, &hits);
    ALLOWED(dr_session_gradient, "loss", session, &batch, 1, gradients, NULL, &hits);
    ALLOWED(dr_session_gradient, "hits", session, &batch, 1, gradients, &loss, NULL);
    REFUSED(dr_session_result, "session", NULL, &loss, &hits);
    ALLOWED(dr_session_result, "loss", session, NULL, &hits);
    ALLOWED(dr_session_result, "hits", session, &loss, NULL);
    REFUSED(dr_session_extra_loss, "session", NULL, &loss);
    REFUSED(dr_session_extra_loss, "loss", session, NULL);
    REFUSED(dr_session_logits, "session", NULL, &batch, state, DR_F32, logits);
    REFUSED(dr_session_logits, "batch", session, NULL, state, DR_F32, logits);
    ALLOWED(dr_session_logits, "state", session, &batch, NULL, DR_F32, logits);
    REFUSED(dr_session_logits, "logits", session, &batch, state, DR_F32, NULL);
    REFUSED(dr_model_step, "model", NULL, ids, state, logits);
    REFUSED(dr_model_step, "ids", model, NULL, state, logits);
    REFUSED(dr_model_step, "state", model, ids, NULL, logits);
    REFUSED(dr_model_step, "logits", model, ids, state, NULL);

    dr_batch without = batch;
    without.ids = NULL;
    REFUSED(dr_session_loss, "id", session, &without, state, &loss, &hits, NULL, NULL);
    REFUSED(dr_session_gradient, "id", session, &without, 1, gradients, &loss, &hits);
    REFUSED(dr_session_logits, "id", session, &without, state, DR_F32, logits);
    without = batch, without.labels = NULL;
    REFUSED(dr_session_loss, "label", session, &without, state, &loss, &hits, NULL, NULL);
    REFUSED(dr_session_gradient, "label", session, &without, 1, gradients, &loss, &hits);
    ALLOWED(dr_session_logits, "labels", session, &without, state, DR_F32, logits);
    null_all_right();
}

static void test_evaluate(void **unused) {
    (void)unused;
    dr_score score;
    dr_recall_score recall;
    dr_recall_options recall_options = dr_recall_defaults();
    recall_options.seq_len = 32;
    recall_options.examples = 2;
    dr_score_options options = dr_score_defaults();
    REFUSED(dr_score_corpus, "model", NULL, text_file, 8, null_goes_on, NULL, &score);
    REFUSED(dr_score_corpus, "path", model, NULL, 8, null_goes_on, NULL, &score);
    ALLOWED(dr_score_corpus, "progress", model, text_file, 8, NULL, NULL, &score);
    REFUSED(dr_score_corpus, "score", model, text_file, 8, null_goes_on, NULL, NULL);
    REFUSED(dr_score_files, "model", NULL, text_file, &options, &score);
    REFUSED(dr_score_files, "path", model, NULL, &options, &score);
    ALLOWED(dr_score_files, "options", model, text_file, NULL, &score);
    REFUSED(dr_score_files, "score", model, text_file, &options, NULL);
    REFUSED(dr_score_text, "model", NULL, "text", "some text", 9, &options, &score);
    REFUSED(dr_score_text, "name", model, NULL, "some text", 9, &options, &score);
    REFUSED(dr_score_text, "text", model, "name", NULL, 9, &options, &score);
    ALLOWED(dr_score_text, "options", model, "text", "some text", 9, NULL, &score);
    REFUSED(dr_score_text, "score", model, "text", "some text", 9, &options, NULL);
    dr_comparison comparison;
    REFUSED(dr_compare_text, "model", NULL, model, "some text", 9, &options, &comparison);
    REFUSED(dr_compare_text, "other", model, NULL, "some text", 9, &options, &comparison);
    REFUSED(dr_compare_text, "text", model, model, NULL, 9, &options, &comparison);
    ALLOWED(dr_compare_text, "options", model, model, "some text", 9, NULL, &comparison);
    REFUSED(dr_compare_text, "comparison", model, model, "some text", 9, &options, NULL);
    REFUSED(dr_score_recall, "model", NULL, &recall_options, null_goes_on, NULL, &recall);
    ALLOWED(dr_score_recall, "options", model, NULL, null_goes_on, NULL, &recall);
    ALLOWED(dr_score_recall, "progress", model, &recall_options, NULL, NULL, &recall);
    REFUSED(dr_score_recall, "score", model, &recall_options, null_goes_on, NULL, NULL);
    null_all_right();
}

static void test_evaluate_file(void **unused) {
    (void)unused;
    const dr_evaluate_options options = dr_evaluate_defaults();
    dr_evaluate_result result;
    char path[] = "/tmp/null_evaluate_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_true(write(file, "{\"text\": \"a b\", \"value\": \"c\"}\n", 30) == 30);
    close(file);
    char made[] = "/tmp/null_convert_XXXXXX", file_made[64];
    static const char *const files[] = {"config.json", "model.safetensors", "README.md"};
    assert_non_null(mkdtemp(made));
    ALLOWED(dr_model_convert, "options", model, "/nonexistent", made, NULL);
    for (int i = 0; i < 3; i++) {
        snprintf(file_made, sizeof file_made, "%s/%s", made, files[i]);
        unlink(file_made);
    }
    rmdir(made);
    REFUSED(dr_model_convert, "model", NULL, path, path, NULL);
    REFUSED(dr_model_convert, "folder", model, NULL, path, NULL);
    REFUSED(dr_model_convert, "to", model, path, NULL, NULL);
    REFUSED(dr_evaluate_file, "model", NULL, path, &options, &result);
    REFUSED(dr_evaluate_file, "path", model, NULL, &options, &result);
    ALLOWED(dr_evaluate_file, "options", model, path, NULL, &result);
    REFUSED(dr_evaluate_file, "evaluation", model, path, &options, NULL);
    unlink(path);
    null_all_right();
}

static bool emit(void *context, const char *bytes, size_t count) {
    (void)context, (void)bytes, (void)count;
    return true;
}

static void test_generate(void **unused) {
    (void)unused;
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 2;
    REFUSED(dr_generate_check, "model", NULL, &options);
    REFUSED(dr_generate_check, "options", model, NULL);
    REFUSED(dr_generate, "model", NULL, "prompt", 6, &options, emit, NULL);
    REFUSED(dr_generate, "prompt", model, NULL, 6, &options, emit, NULL);
    ALLOWED(dr_generate, "prompt", model, NULL, 0, &options, emit, NULL);
    REFUSED(dr_generate, "options", model, "prompt", 6, NULL, emit, NULL);
    REFUSED(dr_generate, "emit", model, "prompt", 6, &options, NULL, NULL);
    options.stop_count = 1;
    REFUSED(dr_generate, "stop", model, "prompt", 6, &options, emit, NULL);
    const char *const none[] = {NULL};
    options.stop = none;
    REFUSED(dr_generate, "stop text 1", model, "prompt", 6, &options, emit, NULL);
    null_all_right();
}

static bool take_piece(void *context, const dr_piece *piece) {
    (void)context, (void)piece;
    return true;
}

static void test_texts(void **unused) {
    (void)unused;
    dr_generate_options options = dr_generate_defaults();
    const dr_prompt prompt = {.text = "prompt", .bytes = 6};
    dr_generate_speed speed;
    options.tokens = 2;
    REFUSED(dr_generate_texts, "model", NULL, &prompt, 1, 1, &options, take_piece, NULL, &speed);
    REFUSED(dr_generate_texts, "prompts", model, NULL, 1, 1, &options, take_piece, NULL, &speed);
    REFUSED(dr_generate_texts, "options", model, &prompt, 1, 1, NULL, take_piece, NULL, &speed);
    REFUSED(dr_generate_texts, "emit", model, &prompt, 1, 1, &options, NULL, NULL, &speed);
    ALLOWED(dr_generate_texts, "speed", model, &prompt, 1, 1, &options, take_piece, NULL, NULL);
    null_all_right();
}

static void test_sampling(void **unused) {
    (void)unused;
    const dr_sampling good = dr_sampling_defaults();
    const float logits[2] = {0, 1};
    const int32_t ids[1] = {1};
    dr_sampler *sampler;
    dr_choice choice;
    double logprob;
    dr_token_logprob top[1];
    REFUSED(dr_sampling_check, "sampling", NULL, 2);
    REFUSED(dr_token_logprobs, "logits", NULL, 2, 0, &logprob, top, 1);
    REFUSED(dr_token_logprobs, "logprob", logits, 2, 0, NULL, top, 1);
    REFUSED(dr_token_logprobs, "top", logits, 2, 0, &logprob, NULL, 1);
    REFUSED(dr_sampler_create, "sampling", 2, NULL, &sampler);
    REFUSED(dr_sampler_create, "sampler", 2, &good, NULL);
    NOTHING(dr_sampler_destroy, "sampler", NULL);
    assert_int_equal(dr_sampler_create(2, &good, &sampler), DR_OK);
    REFUSED(dr_sampler_restart, "sampler", NULL, &good);
    REFUSED(dr_sampler_restart, "sampling", sampler, NULL);
    REFUSED(dr_sampler_read, "sampler", NULL, ids, 1);
    REFUSED(dr_sampler_read, "ids", sampler, NULL, 1);
    REFUSED(dr_sampler_choose, "sampler", NULL, logits, &choice);
    REFUSED(dr_sampler_choose, "logits", sampler, NULL, &choice);
    REFUSED(dr_sampler_choose, "choice", sampler, logits, NULL);
    dr_sampler_destroy(sampler);
    null_all_right();
}

static void test_conversation(void **unused) {
    (void)unused;
    dr_generate_options options = dr_generate_defaults();
    dr_conversation *conversation;
    dr_chat *chat;
    dr_turn turn;
    const char *role, *text;
    options.tokens = 2;
    assert_int_equal(dr_chat_create("a", 1, &chat), DR_OK);
    REFUSED(dr_conversation_create, "model", NULL, NULL, chat, &conversation);
    ALLOWED(dr_conversation_create, "tokenizer", model, NULL, chat, &conversation);
    ALLOWED(dr_conversation_create, "chat", model, NULL, NULL, &conversation);
    REFUSED(dr_conversation_create, "conversation", model, NULL, chat, NULL);
    NOTHING(dr_conversation_destroy, "conversation", NULL);
    assert_int_equal(dr_conversation_create(model, NULL, chat, &conversation), DR_OK);
    REFUSED(dr_conversation_add, "conversation", NULL, "user", "a", 1);
    REFUSED(dr_conversation_add, "role", conversation, NULL, "a", 1);
    REFUSED(dr_conversation_add, "text", conversation, "user", NULL, 1);
    REFUSED(dr_conversation_undo, "conversation", NULL);
    HARMLESS(dr_conversation_count, "conversation", == 0, NULL);
    assert_int_equal(dr_conversation_add(conversation, "user", "a", 1), DR_OK);
    REFUSED(dr_conversation_message, "conversation", NULL, 0, &role, &text);
    ALLOWED(dr_conversation_message, "role", conversation, 0, NULL, &text);
    ALLOWED(dr_conversation_message, "text", conversation, 0, &role, NULL);
    REFUSED(dr_conversation_answer, "conversation", NULL, &options, emit, NULL, &turn);
    REFUSED(dr_conversation_answer, "options", conversation, NULL, emit, NULL, &turn);
    REFUSED(dr_conversation_answer, "emit", conversation, &options, NULL, NULL, &turn);
    ALLOWED(dr_conversation_answer, "turn", conversation, &options, emit, NULL, NULL);
    REFUSED(dr_conversation_save, "conversation", NULL, "file");
    REFUSED(dr_conversation_save, "file", conversation, NULL);
    REFUSED(dr_conversation_load, "conversation", NULL, "file");
    REFUSED(dr_conversation_load, "file", conversation, NULL);
    dr_conversation_destroy(conversation);
    dr_chat_destroy(chat);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_evaluate_file), cmocka_unit_test(test_conversation),
                                       cmocka_unit_test(test_texts),         cmocka_unit_test(test_sampling),
                                       cmocka_unit_test(test_model),         cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_evaluate),      cmocka_unit_test(test_generate)};
    return cmocka_run_group_tests(tests, begin, end);
}
