/* Several texts at once: what each is alone, bit for bit on the CPU, whatever is made beside it. */
#include "allocation.h"
#include "data/corpus.h"

#include <deltarule/generate.h>

enum { MOST = 4096, PROMPTS = 4, SAMPLES = 2 };

static dr_backend *backend;
static dr_model *model;
static char letters[1400];

static int begin(void **state) {
    (void)state;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = DR_BYTE_VOCABULARY, config.hidden = 32, config.layers = 2, config.heads = 2, config.intermediate = 48;
    config.initializer_range = 0.3;
    for (size_t i = 0; i < sizeof letters; i++) letters[i] = (char)('a' + i * i % 26);
    if (dr_backend_open("cpu", NULL, &backend) != DR_OK) return -1;
    return dr_model_create(backend, &config, 3, &model) == DR_OK ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    dr_model_destroy(model);
    dr_backend_close(backend);
    return 0;
}

typedef struct {
    char text[PROMPTS][SAMPLES][MOST];
    int32_t ids[PROMPTS][SAMPLES][MOST];
    double logprobs[PROMPTS][SAMPLES][MOST];
    size_t bytes[PROMPTS][SAMPLES];
    int64_t tokens[PROMPTS][SAMPLES], pieces, stop_after;
    dr_finish finish[PROMPTS][SAMPLES];
} output;

static bool collect(void *context, const dr_piece *piece) {
    output *out = context;
    const int64_t p = piece->prompt, s = piece->sample;
    assert_true(p >= 0 && p < PROMPTS && s >= 0 && s < SAMPLES);
    assert_int_equal(out->finish[p][s], DR_FINISH_NOT);
    memcpy(out->text[p][s] + out->bytes[p][s], piece->bytes, piece->count);
    out->bytes[p][s] += piece->count;
    if (piece->choice) {
        out->logprobs[p][s][out->tokens[p][s]] = piece->choice->logprob;
        out->ids[p][s][out->tokens[p][s]++] = piece->choice->id;
    }
    out->finish[p][s] = piece->finish;
    return ++out->pieces != out->stop_after;
}

static output together, alone;

/* Prompts of no byte, a few, more than one window, exactly one; with ends at different times. */
static void test_a_text_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    const dr_prompt prompts[PROMPTS] = {
        {.bytes = 0}, {letters, 5, false, NULL, 0}, {letters, 1400, false, NULL, 0}, {letters, 511, false, NULL, 0}};
    const char *const stops[] = {"e", "qu", "a", "x", "1", "P", "o", "~"};
    dr_generate_options options = dr_generate_defaults();
    dr_generate_speed speed;
    options.tokens = 40, options.stop = stops, options.stop_count = 8;
    options.sampling.logprobs = true, options.sampling.temperature = 1, options.sampling.repetition_penalty = 1.1;
    static const int64_t at_once[] = {1, 3, 8, 100};
    for (int64_t p = 0; p < PROMPTS; p++)
        for (int64_t s = 0; s < SAMPLES; s++) {
            output one = {.pieces = 0};
            options.sampling.sample = s;
            assert_int_equal(dr_generate_texts(model, &prompts[p], 1, 1, &options, collect, &one, &speed), DR_OK);
            assert_int_equal(speed.prompt_tokens, prompts[p].bytes + 1);
            assert_int_equal(speed.tokens, one.tokens[0][0]);
            assert_true(speed.first_token_seconds > 0);
            memcpy(alone.text[p][s], one.text[0][0], MOST);
            memcpy(alone.ids[p][s], one.ids[0][0], sizeof one.ids[0][0]);
            memcpy(alone.logprobs[p][s], one.logprobs[0][0], sizeof one.logprobs[0][0]);
            alone.bytes[p][s] = one.bytes[0][0], alone.tokens[p][s] = one.tokens[0][0];
            alone.finish[p][s] = one.finish[0][0];
        }
    options.sampling.sample = 0;
    int64_t stopped = 0;
    for (int i = 0; i < 4; i++) {
        options.at_once = at_once[i];
        together = (output){.pieces = 0};
        assert_int_equal(dr_generate_texts(model, prompts, PROMPTS, SAMPLES, &options, collect, &together, &speed), DR_OK);
        assert_int_equal(speed.prompt_tokens, SAMPLES * (4 + 5 + 1400 + 511));
        for (int64_t p = 0; p < PROMPTS; p++)
            for (int64_t s = 0; s < SAMPLES; s++) {
                assert_int_equal(together.tokens[p][s], alone.tokens[p][s]);
                assert_memory_equal(together.ids[p][s], alone.ids[p][s], sizeof alone.ids[p][s]);
                assert_memory_equal(together.logprobs[p][s], alone.logprobs[p][s], sizeof alone.logprobs[p][s]);
                assert_int_equal(together.bytes[p][s], alone.bytes[p][s]);
                assert_memory_equal(together.text[p][s], alone.text[p][s], alone.bytes[p][s]);
                assert_int_equal(together.finish[p][s], alone.finish[p][s]);
                stopped += alone.finish[p][s] == DR_FINISH_STOP;
            }
    }
    assert_in_range(stopped, 1, 4 * PROMPTS * SAMPLES - 1);
}

/* Ids are the prompt as it is; a stop token ends a text and is none of it. */
static void test_ids_and_stop_tokens(void **state) {
    (void)state;
    const int32_t ids[] = {DR_DOCUMENT_START, 'a', 'b'};
    const dr_prompt of_ids = {.ids = ids, .count = 3}, of_text = {.text = "ab", .bytes = 2};
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 30, options.sampling.temperature = 0;
    together = alone = (output){.pieces = 0};
    assert_int_equal(dr_generate_texts(model, &of_ids, 1, 1, &options, collect, &together, NULL), DR_OK);
    assert_int_equal(dr_generate_texts(model, &of_text, 1, 1, &options, collect, &alone, NULL), DR_OK);
    assert_memory_equal(&together, &alone, sizeof alone);
    assert_int_equal(alone.finish[0][0], DR_FINISH_LENGTH);
    int64_t first = 0; /* where the token that comes last in the text comes first */
    const int32_t stop = alone.ids[0][0][7];
    while (alone.ids[0][0][first] != stop) first++;
    options.stop_tokens = &stop, options.stop_token_count = 1;
    together = (output){.pieces = 0};
    assert_int_equal(dr_generate_texts(model, &of_text, 1, 1, &options, collect, &together, NULL), DR_OK);
    assert_int_equal(together.tokens[0][0], first + 1);
    assert_int_equal(together.ids[0][0][first], stop);
    assert_int_equal(together.finish[0][0], DR_FINISH_STOP);
    assert_int_equal(together.bytes[0][0], first);
    assert_memory_equal(together.text[0][0], alone.text[0][0], (size_t)first);
}

static void test_what_cannot_be(void **state) {
    (void)state;
    const int32_t ids[] = {5, 257};
    const dr_prompt outside = {.ids = ids, .count = 2}, none = {.ids = ids, .count = 0}, missing = {.bytes = 3}, good = {0};
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 3;
    together = (output){.pieces = 0};
    static const char *const parts[] = {"token 2 of prompt 1 is 257: ids are from 0 to 256", "prompt 1 has 0 token ids",
                                        "prompt 1 is missing"};
    const dr_prompt *const bad[] = {&outside, &none, &missing};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dr_generate_texts(model, bad[i], 1, 1, &options, collect, &together, NULL), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), parts[i]));
    }
    assert_int_equal(dr_generate_texts(model, &good, 0, 1, &options, collect, &together, NULL), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_generate_texts(model, &good, 1, 0, &options, collect, &together, NULL), DR_ERROR_ARGUMENT);
    options.sampling.sample = ((int64_t)1 << 56) - 1;
    assert_int_equal(dr_generate_texts(model, &good, 1, 2, &options, collect, &together, NULL), DR_ERROR_ARGUMENT);
    assert_int_equal(together.pieces, 0);
    options.sampling.sample = 0;
    together.stop_after = 2;
    assert_int_equal(dr_generate_texts(model, &good, 1, 2, &options, collect, &together, NULL), DR_ERROR_INTERRUPTED);
    assert_int_equal(together.pieces, 2);
    options.tokens = 0; /* a piece without a token tells that the text is over */
    together = (output){.pieces = 0};
    assert_int_equal(dr_generate_texts(model, &good, 1, 2, &options, collect, &together, NULL), DR_OK);
    assert_true(together.pieces == 2 && together.tokens[0][1] == 0 && together.finish[0][1] == DR_FINISH_LENGTH);
}

static dr_status make_two(void *context) {
    const dr_prompt prompts[2] = {{.text = "abc", .bytes = 3}, {.text = "d", .bytes = 1}};
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 3;
    together = (output){.pieces = 0};
    return dr_generate_texts(model, prompts, 2, 1, &options, collect, context ? context : &together, NULL);
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    assert_int_equal(make_two(NULL), DR_OK);
    assert_true(assert_survives_failed_allocations(make_two, NULL) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_does_not_depend_on_its_neighbours),
        cmocka_unit_test(test_ids_and_stop_tokens),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
