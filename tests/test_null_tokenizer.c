/* Every pointer of tokenizer.h and chat.h, NULL. */
#include "null.h"

#include <deltarule/chat.h>
#include <deltarule/tokenizer.h>

static void test_tokenizer(void **unused) {
    (void)unused;
    dr_tokenizer *tokenizer = NULL, *other = NULL;
    static const char json[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}";
    size_t bytes;
    char file[] = "/tmp/null_tokenizer_XXXXXX";
    const int descriptor = mkstemp(file);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, json, strlen(json)), (ssize_t)strlen(json));
    close(descriptor);
    assert_int_equal(dr_tokenizer_bytes(&tokenizer), DR_OK);
    REFUSED(dr_tokenizer_load, "path", NULL, &other);
    REFUSED(dr_tokenizer_load, "tokenizer", file, NULL);
    REFUSED(dr_tokenizer_parse, "text", NULL, strlen(json), "source", &other);
    REFUSED(dr_tokenizer_parse, "source", json, strlen(json), NULL, &other);
    REFUSED(dr_tokenizer_parse, "tokenizer", json, strlen(json), "source", NULL);
    REFUSED(dr_tokenizer_bytes, "tokenizer", NULL);
    NOTHING(dr_tokenizer_destroy, "tokenizer", NULL);
    HARMLESS(dr_tokenizer_size, "tokenizer", == 0, NULL);
    HARMLESS(dr_tokenizer_id, "tokenizer", == -1, NULL, "a", 1);
    HARMLESS(dr_tokenizer_id, "token", == -1, tokenizer, NULL, 1);
    HARMLESS(dr_tokenizer_token, "tokenizer", == NULL, NULL, 97, &bytes);
    HARMLESS(dr_tokenizer_token, "bytes", == NULL, tokenizer, 97, NULL);
    HARMLESS(dr_tokenizer_special, "tokenizer", == -1, NULL, DR_TOKEN_BOS);
    HARMLESS(dr_tokenizer_is_special, "tokenizer", == false, NULL, 97);
    dr_tokenizer_destroy(tokenizer);
    unlink(file);
    null_all_right();
}

static void test_coding(void **unused) {
    (void)unused;
    dr_tokenizer *tokenizer = NULL;
    dr_encoder *encoder = NULL, *other_encoder;
    dr_decoder *decoder = NULL, *other_decoder;
    const char *text;
    const int32_t *ids, some[] = {97};
    size_t bytes, count;
    assert_int_equal(dr_tokenizer_bytes(&tokenizer), DR_OK);
    assert_int_equal(dr_encoder_create(tokenizer, &encoder), DR_OK);
    assert_int_equal(dr_decoder_create(tokenizer, DR_DECODE_TEXT, &decoder), DR_OK);
    REFUSED(dr_encoder_create, "tokenizer", NULL, &other_encoder);
    REFUSED(dr_encoder_create, "encoder", tokenizer, NULL);
    NOTHING(dr_encoder_destroy, "encoder", NULL);
    REFUSED(dr_encoder_encode, "encoder", NULL, "a", 1, false, &ids, &count);
    REFUSED(dr_encoder_encode, "text", encoder, NULL, 1, false, &ids, &count);
    ALLOWED(dr_encoder_encode, "text", encoder, NULL, 0, false, &ids, &count);
    REFUSED(dr_encoder_encode, "ids", encoder, "a", 1, false, NULL, &count);
    REFUSED(dr_encoder_encode, "count", encoder, "a", 1, false, &ids, NULL);
    REFUSED(dr_decoder_create, "tokenizer", NULL, DR_DECODE_TEXT, &other_decoder);
    REFUSED(dr_decoder_create, "decoder", tokenizer, DR_DECODE_TEXT, NULL);
    NOTHING(dr_decoder_destroy, "decoder", NULL);
    REFUSED(dr_decoder_decode, "decoder", NULL, some, 1, &text, &bytes);
    REFUSED(dr_decoder_decode, "ids", decoder, NULL, 1, &text, &bytes);
    ALLOWED(dr_decoder_decode, "ids", decoder, NULL, 0, &text, &bytes);
    REFUSED(dr_decoder_decode, "text", decoder, some, 1, NULL, &bytes);
    REFUSED(dr_decoder_decode, "bytes", decoder, some, 1, &text, NULL);
    REFUSED(dr_decoder_step, "decoder", NULL, 97, &text, &bytes);
    REFUSED(dr_decoder_step, "text", decoder, 97, NULL, &bytes);
    REFUSED(dr_decoder_step, "bytes", decoder, 97, &text, NULL);
    REFUSED(dr_decoder_finish, "decoder", NULL, &text, &bytes);
    REFUSED(dr_decoder_finish, "text", decoder, NULL, &bytes);
    REFUSED(dr_decoder_finish, "bytes", decoder, &text, NULL);
    dr_decoder_destroy(decoder);
    dr_encoder_destroy(encoder);
    dr_tokenizer_destroy(tokenizer);
    null_all_right();
}

static void test_trainer(void **unused) {
    (void)unused;
    dr_tokenizer_trainer *trainer = NULL;
    dr_tokenizer_training training = dr_tokenizer_training_defaults();
    int64_t size;
    char folder[] = "/tmp/null_trainer_XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_int_equal(dr_tokenizer_trainer_create(&trainer), DR_OK);
    assert_int_equal(dr_tokenizer_trainer_add(trainer, "some text", 9), DR_OK);
    REFUSED(dr_tokenizer_trainer_create, "trainer", NULL);
    NOTHING(dr_tokenizer_trainer_destroy, "trainer", NULL);
    REFUSED(dr_tokenizer_trainer_add, "trainer", NULL, "some text", 9);
    REFUSED(dr_tokenizer_trainer_add, "text", trainer, NULL, 9);
    ALLOWED(dr_tokenizer_trainer_add, "text", trainer, NULL, 0);
    REFUSED(dr_tokenizer_trainer_write, "trainer", NULL, &training, folder, &size);
    REFUSED(dr_tokenizer_trainer_write, "options", trainer, NULL, folder, &size);
    REFUSED(dr_tokenizer_trainer_write, "folder", trainer, &training, NULL, &size);
    REFUSED(dr_tokenizer_trainer_write, "size", trainer, &training, folder, NULL);
    training.end_of_text = NULL;
    REFUSED(dr_tokenizer_trainer_write, "(end_of_text)", trainer, &training, folder, &size);
    dr_tokenizer_trainer_destroy(trainer);
    rmdir(folder);
    null_all_right();
}

static void test_chat(void **unused) {
    (void)unused;
    dr_chat *chat = NULL, *other = NULL;
    dr_chat_options options = {.size = sizeof options, .messages = "[]"};
    char *text, folder[] = "/tmp/null_chat_XXXXXX", file[64];
    size_t length;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/chat_template.jinja", folder);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    assert_true(fputs("a", stream) >= 0 && fclose(stream) == 0);
    assert_int_equal(dr_chat_create("a", 1, &chat), DR_OK);
    REFUSED(dr_chat_load, "folder", NULL, &other);
    REFUSED(dr_chat_load, "chat", folder, NULL);
    REFUSED(dr_chat_create, "text", NULL, 1, &other);
    ALLOWED(dr_chat_create, "text", NULL, 0, &other);
    REFUSED(dr_chat_create, "chat", "a", 1, NULL);
    NOTHING(dr_chat_destroy, "chat", NULL);
    REFUSED(dr_chat_render, "chat", NULL, &options, &text, &length);
    REFUSED(dr_chat_render, "options", chat, NULL, &text, &length);
    REFUSED(dr_chat_render, "text", chat, &options, NULL, &length);
    REFUSED(dr_chat_render, "length", chat, &options, &text, NULL);
    NOTHING(dr_chat_free_text, "text", NULL);
    options.messages = NULL;
    REFUSED(dr_chat_render, "options->messages", chat, &options, &text, &length);
    dr_chat_destroy(chat);
    unlink(file);
    rmdir(folder);
    null_all_right();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokenizer), cmocka_unit_test(test_coding),
                                       cmocka_unit_test(test_trainer), cmocka_unit_test(test_chat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
