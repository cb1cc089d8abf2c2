/* Choosing tokens, generating text, scoring text. */
#include "allocation.h"
#include "backends/reference/reference.h"
#include "data/corpus.h"
#include "data/mqar.h"
#include "data/streams.h"
#include "evaluate/score.h"
#include "generate/answer.h"
#include "generate/stop.h"
#include "learner.h"
#include "scratch.h"

#include <deltarule/evaluate.h>
#include <deltarule/generate.h>
#include <math.h>

/* ---- a small model ---- */

static dr_backend *backend;
static dr_model *model;

static dr_model *make_model(int64_t vocabulary) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = vocabulary, config.hidden = 16, config.layers = 2, config.heads = 2, config.intermediate = 24;
    config.initializer_range = 0.3; /* far from uniform, so that greedy choices differ */
    dr_model *made;
    assert_int_equal(dr_model_create(backend, &config, 3, &made), DR_OK);
    return made;
}

static int begin(void **state) {
    if (dr_reference_open(NULL, &backend) != DR_OK) return -1;
    model = make_model(DR_BYTE_VOCABULARY);
    return scratch_begin(state);
}

static int end(void **state) {
    learner_destroy(model);
    dr_backend_close(backend);
    return scratch_end(state);
}

/* ---- one answer ---- */

/* Adds ids to an answer; the text that came of them. */
static dr_finish answer_of(const dr_generate_options *options, const int32_t *ids, int count, char text[64]) {
    dr_answer answer;
    size_t bytes = 0;
    assert_int_equal(dr_answer_create(options, &answer), DR_OK);
    for (int i = 0; i < count && answer.finish == DR_FINISH_NOT; i++) {
        assert_int_equal(dr_answer_add(&answer, ids[i]), DR_OK);
        assert_true(bytes + answer.ready_bytes < 64);
        if (answer.ready_bytes > 0) memcpy(text + bytes, answer.ready, answer.ready_bytes);
        bytes += answer.ready_bytes;
    }
    text[bytes] = '\0';
    const dr_finish finish = answer.finish;
    dr_answer_release(&answer);
    return finish;
}

/* The token that begins a document ends an answer, unless it is to go on; a token to stop at gives no text. */
static void test_tokens_that_end_an_answer(void **state) {
    (void)state;
    static const int32_t ids[] = {'a', 'b', DR_DOCUMENT_START, 'c', 'd', 'e'}, stops[] = {'z', 'd'};
    char text[64];
    dr_tokenizer *tokenizer;
    assert_int_equal(dr_tokenizer_bytes(&tokenizer), DR_OK);
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 6;
    options.tokenizer = tokenizer;
    assert_int_equal(answer_of(&options, ids, 6, text), DR_FINISH_END);
    assert_string_equal(text, "ab");
    options.ignore_eos = true;
    assert_int_equal(answer_of(&options, ids, 6, text), DR_FINISH_LENGTH);
    assert_string_equal(text, "abcde");
    options.stop_tokens = stops, options.stop_token_count = 2;
    assert_int_equal(answer_of(&options, ids, 6, text), DR_FINISH_STOP);
    assert_string_equal(text, "abc");
    dr_tokenizer_destroy(tokenizer);
}

/* ---- generating ---- */

enum { MOST_TEXT = 2048 };

typedef struct {
    char text[MOST_TEXT];
    size_t bytes, calls, stop_after;
} output;

static bool collect(void *context, const char *bytes, size_t count) {
    output *out = context;
    assert_true(count <= 1 && out->bytes + count <= MOST_TEXT);
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
    return ++out->calls != out->stop_after;
}

static output generate(const char *prompt, size_t bytes, dr_generate_options options) {
    output out = {.stop_after = 0};
    assert_int_equal(dr_generate(model, prompt, bytes, &options, collect, &out), DR_OK);
    assert_int_equal(out.calls, options.tokens);
    return out;
}

static dr_generate_options greedy(int64_t tokens) {
    dr_generate_options options = dr_generate_defaults();
    options.tokens = tokens;
    options.sampling = dr_sampling_defaults();
    options.sampling.temperature = 0;
    return options;
}

/* The likeliest next token after ids, by one forward over all of them. */
static int32_t likeliest(const int32_t *ids, int64_t count) {
    double logits[DR_BYTE_VOCABULARY];
    int64_t last = count - 1;
    dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = 1, .positions = &last};
    assert_int_equal(learner_logits(model, &batch, NULL, DR_F64, logits), DR_OK);
    int32_t best = 0;
    for (int32_t i = 1; i < DR_BYTE_VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Prompts of no byte, some, and more than one window. */
static void test_greedy_is_the_argmax_of_full_forwards(void **state) {
    (void)state;
    enum { TOKENS = 12 };
    static const size_t lengths[] = {0, 5, 511, 512, 700};
    char prompt[700];
    for (size_t i = 0; i < sizeof prompt; i++) prompt[i] = (char)(i * i % 251); /* bytes above 127 too */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int32_t ids[1 + 700 + TOKENS] = {DR_DOCUMENT_START};
        int64_t count = 1;
        for (size_t byte = 0; byte < lengths[i]; byte++) ids[count++] = (unsigned char)prompt[byte];
        output out = generate(prompt, lengths[i], greedy(TOKENS));
        for (size_t made = 0, byte = 0; made < TOKENS; made++) {
            int32_t id = likeliest(ids, count);
            ids[count++] = id;
            if (id != DR_DOCUMENT_START) assert_int_equal((unsigned char)out.text[byte++], id);
        }
    }
}

static void test_seeds_repeat(void **state) {
    (void)state;
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 200;
    options.sampling.seed = 5;
    output one = generate("The ", 4, options), again = generate("The ", 4, options);
    options.sampling.seed = 6;
    output other = generate("The ", 4, options);
    assert_int_equal(one.bytes, again.bytes);
    assert_memory_equal(one.text, again.text, one.bytes);
    assert_true(other.bytes != one.bytes || memcmp(one.text, other.text, one.bytes) != 0);
}

static void test_callback_stops(void **state) {
    (void)state;
    dr_generate_options options = dr_generate_defaults();
    output out = {.stop_after = 3};
    assert_int_equal(dr_generate(model, "", 0, &options, collect, &out), DR_ERROR_INTERRUPTED);
    assert_int_equal(out.calls, 3);
    out = generate("", 0, greedy(0));
    assert_int_equal(out.calls, 0);
}

static void test_bad_options_are_refused(void **state) {
    (void)state;
    static const char *const empty_stop[] = {"a", ""};
    static const int32_t no_token[] = {5, 257};
    dr_generate_options bad[6];
    static const char *const parts[6] = {
        "tokens is -1", "top_p is 0", "stop_count is 1", "stop text 2 is empty", "stop token 2 is 257: ids are from 0 to 256",
        "at_once is 0"};
    for (int i = 0; i < 6; i++) bad[i] = dr_generate_defaults();
    bad[0].tokens = -1;
    bad[1].sampling.top_p = 0;
    bad[2].stop_count = 1;
    bad[3].stop = empty_stop, bad[3].stop_count = 2;
    bad[4].stop_tokens = no_token, bad[4].stop_token_count = 2;
    bad[5].at_once = 0;
    output out = {.stop_after = 0};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(dr_generate(model, "", 0, &bad[i], collect, &out), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), parts[i]));
        assert_int_equal(dr_generate_check(model, &bad[i]), DR_ERROR_ARGUMENT);
    }
    assert_int_equal(dr_generate_check(NULL, &bad[0]), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_generate_check(model, NULL), DR_ERROR_ARGUMENT);
    dr_generate_options good = dr_generate_defaults();
    assert_int_equal(dr_generate_check(model, &good), DR_OK);
    assert_int_equal(dr_generate(model, NULL, 1, &good, collect, &out), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_generate(model, "", 0, &good, NULL, &out), DR_ERROR_ARGUMENT);
    dr_model *words = make_model(300);
    dr_generate_options options = dr_generate_defaults();
    assert_int_equal(dr_generate(words, "", 0, &options, collect, &out), DR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(dr_last_error(), "300 ids"));
    assert_int_equal(out.calls, 0);
    learner_destroy(words);
}

/* Where a text ends, by the definition: at the first byte with which one of the stop texts is complete, of several the longest,
 * and before that text. */
static size_t end_by_search(const char *text, size_t bytes, const char *const *stops, int64_t count, bool *found) {
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (int64_t i = 0; i < count; i++) {
            size_t length = strlen(stops[i]);
            if (length <= end && length > longest && memcmp(text + end - length, stops[i], length) == 0) longest = length;
        }
        *found = longest > 0;
        if (*found) return end - longest;
    }
    return bytes;
}

/* Random texts and stop texts of two letters, so that beginnings overlap in every way. */
static void test_stop_texts(void **state) {
    (void)state;
    dr_random random = dr_random_start(11, 0);
    int64_t found_in = 0;
    for (int trial = 0; trial < 5000; trial++) {
        char text[33] = "", words[4][9], shown[33];
        const char *stops[4];
        int64_t count = (int64_t)dr_random_below(&random, 4) + 1;
        size_t most = 0, emitted = 0, bytes = 1 + dr_random_below(&random, 32);
        for (int64_t i = 0; i < count; i++) {
            size_t length = 1 + dr_random_below(&random, 8);
            for (size_t c = 0; c < length; c++) words[i][c] = (char)('a' + dr_random_below(&random, 2));
            words[i][length] = '\0';
            stops[i] = words[i];
            if (length > most) most = length;
        }
        for (size_t c = 0; c < bytes; c++) text[c] = (char)('a' + dr_random_below(&random, 2));
        dr_stop stop;
        bool ended = false, found = false;
        size_t wanted = end_by_search(text, bytes, stops, count, &found), read = 0;
        assert_int_equal(dr_stop_create(&(dr_generate_options){.stop = stops, .stop_count = count}, &stop), DR_OK);
        while (read < bytes && !ended) {
            size_t certain;
            ended = dr_stop_add(&stop, text[read++], &certain);
            memcpy(shown + emitted, stop.held, certain);
            emitted += certain;
            dr_stop_take(&stop, certain);
            assert_true(ended || stop.held_bytes < most);
        }
        assert_int_equal(ended, found);
        if (!ended) memcpy(shown + emitted, stop.held, stop.held_bytes), emitted += stop.held_bytes;
        assert_int_equal(emitted, wanted);
        assert_memory_equal(shown, text, wanted);
        found_in += found;
        dr_stop_destroy(&stop);
    }
    assert_in_range(found_in, 1000, 4900);
}

static bool append(void *context, const char *bytes, size_t count) {
    output *out = context;
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
    return ++out->calls != out->stop_after;
}

static void test_generation_ends_before_a_stop_text(void **state) {
    (void)state;
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 300;
    output whole = generate("The ", 4, options);
    while (whole.bytes < 300) { /* a document ended in it, and no stop text goes on in the next */
        options.sampling.seed++;
        whole = generate("The ", 4, options);
    }
    for (size_t from = 20; from + 4 < whole.bytes; from += 41) {
        char word[4] = {whole.text[from], whole.text[from + 1], whole.text[from + 2]};
        const char *const stops[] = {"not in it, since it is far too long to come by chance", word};
        bool found;
        if (strlen(word) < 3) continue; /* a byte 0 */
        size_t wanted = end_by_search(whole.text, whole.bytes, stops, 2, &found);
        options.stop = stops, options.stop_count = 2;
        output out = {.stop_after = 0};
        assert_int_equal(dr_generate(model, "The ", 4, &options, append, &out), DR_OK);
        assert_true(found);
        assert_int_equal(out.bytes, wanted);
        assert_memory_equal(out.text, whole.text, wanted);
    }
    /* the beginning of one at the end of the tokens is text */
    char cut[] = {whole.text[whole.bytes - 2], whole.text[whole.bytes - 1], '\n', '\1', '\2', '\3', '\0'};
    const char *const never[] = {cut};
    options.stop = never, options.stop_count = 1;
    output out = {.stop_after = 0};
    assert_int_equal(dr_generate(model, "The ", 4, &options, append, &out), DR_OK);
    assert_int_equal(out.bytes, whole.bytes);
    assert_memory_equal(out.text, whole.text, whole.bytes);
}

static void test_samples_are_independent(void **state) {
    (void)state;
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 100;
    output first = generate("The ", 4, options);
    options.sampling.sample = 1;
    output second = generate("The ", 4, options), again = generate("The ", 4, options);
    assert_true(second.bytes == again.bytes && memcmp(second.text, again.text, again.bytes) == 0);
    assert_true(first.bytes != second.bytes || memcmp(first.text, second.text, first.bytes) != 0);
}

/* ---- scoring ---- */

static int64_t last_done;

static bool remember(void *context, int64_t done, int64_t total) {
    assert_true(done > last_done && done <= total);
    last_done = done;
    return context == NULL;
}

/* Two files through windows of any size against the definition: every byte predicted from the separator and the bytes before.
 */
static void test_windows_do_not_change_a_score(void **state) {
    (void)state;
    const char *const texts[] = {"The quick brown fox jumps over the lazy dog; \xc3\xa9t\xc3\xa9 comes early this year.\n",
                                 "x"};
    scratch_write("score/a", texts[0], strlen(texts[0]));
    scratch_write("score/b", texts[1], strlen(texts[1]));
    double sum = 0;
    int64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        int32_t ids[100] = {DR_DOCUMENT_START}, labels[100];
        int64_t count = (int64_t)strlen(texts[i]);
        for (int64_t t = 0; t < count; t++) ids[t + 1] = labels[t] = (unsigned char)texts[i][t];
        dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = count, .labels = labels};
        double loss;
        assert_int_equal(learner_loss(model, &batch, NULL, &loss, NULL, NULL, NULL), DR_OK);
        sum += loss;
        bytes += count;
    }
    static const int64_t windows[] = {1, 7, 64, 100000};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        dr_score score;
        last_done = 0;
        assert_int_equal(dr_score_corpus(model, scratch_path("score"), windows[i], remember, NULL, &score), DR_OK);
        assert_int_equal(last_done, bytes);
        assert_int_equal(score.files, 2);
        assert_int_equal(score.bytes, bytes);
        assert_int_equal(score.tokens, bytes);
        double loss = sum / (double)bytes;
        assert_true(fabs(score.loss - loss) < 1e-12 * loss);
        assert_true(fabs(score.perplexity - exp(loss)) < 1e-10 * exp(loss));
        assert_true(fabs(score.bits_per_byte - loss / log(2)) < 1e-12 * loss);
    }
}

/* A score of some tokens only is that of the beginning of every document, by its share of the text. */
static void test_some_tokens_come_from_all_documents(void **state) {
    (void)state;
    dr_document whole[] = {{.text = (const uint8_t *)"one two three four five", .bytes = 23},
                           {.text = (const uint8_t *)"six", .bytes = 3},
                           {.text = (const uint8_t *)"seven eight ni", .bytes = 14}};
    dr_document beginning[3];
    dr_score part, score;
    const dr_score_options options = {.window = 8};
    dr_session *session = NULL;
    int64_t wanted[] = {11, 2, 7}; /* 20 of 40: to 11.5, to 13, to 20 */
    assert_int_equal(dr_session_create(model, &session), DR_OK);
    memcpy(beginning, whole, sizeof whole);
    for (int i = 0; i < 3; i++) beginning[i].bytes = wanted[i];
    assert_int_equal(dr_score_documents(session, &(dr_documents){whole, 3, 40}, 20, &options, &part), DR_OK);
    assert_int_equal(dr_score_documents(session, &(dr_documents){beginning, 3, 20}, 0, &options, &score), DR_OK);
    assert_int_equal(part.tokens, 20);
    assert_int_equal(part.files, 3);
    assert_true(part.loss == score.loss);
    assert_int_equal(dr_score_documents(session, &(dr_documents){whole, 3, 40}, 2, &options, &part), DR_OK);
    assert_int_equal(part.tokens, 2); /* to 1.15, to 1.3, to 2 */
    assert_int_equal(part.files, 2);
    dr_session_destroy(session);
}

static void test_scores_that_cannot_be(void **state) {
    (void)state;
    scratch_write("words", "some words", 10);
    dr_score score;
    assert_int_equal(dr_score_corpus(model, scratch_path("words"), 0, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "window is 0"));
    assert_int_equal(dr_score_corpus(model, scratch_path("none"), 8, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    last_done = 0;
    assert_int_equal(dr_score_corpus(model, scratch_path("words"), 8, remember, &score, &score), DR_ERROR_INTERRUPTED);
    assert_int_equal(last_done, 8);
    dr_model *words = make_model(300);
    assert_int_equal(dr_score_corpus(words, scratch_path("words"), 8, NULL, NULL, &score), DR_ERROR_UNSUPPORTED);
    learner_destroy(words);
}

typedef struct {
    int64_t files, left_out, bytes;
    double loss; /* sum over bytes */
    char names[4][64];
} told;

static void tell_file(void *context, const char *name, const dr_score *score) {
    told *seen = context;
    assert_int_equal(score->files, 1);
    assert_int_equal(score->tokens, score->bytes);
    assert_true(isnan(score->loss) || fabs(score->bits_per_byte - score->loss / log(2)) < 1e-12);
    snprintf(seen->names[seen->files++], 64, "%s", strrchr(name, '/') ? strrchr(name, '/') + 1 : name);
    seen->bytes += score->bytes;
    seen->loss += score->loss * (double)score->bytes;
}

static void tell_left_out(void *context, const char *sentence) {
    told *seen = context;
    assert_int_equal(seen->files, 0);
    assert_non_null(strstr(sentence, "told/bad is not UTF-8"));
    seen->left_out++;
}

static void test_each_file_is_told(void **state) {
    (void)state;
    scratch_write("told/one", "the first text", 14);
    scratch_write("told/two", "the second", 10);
    scratch_write("told/bad", "\xff", 1);
    dr_score score, single;
    told seen = {0};
    dr_score_options options = dr_score_defaults();
    options.window = 4, options.file = tell_file, options.left_out = tell_left_out, options.context = &seen;
    assert_int_equal(dr_score_files(model, scratch_path("told"), &options, &score), DR_ERROR_FORMAT);
    assert_int_equal(seen.files, 0);
    options.skip_unreadable = true;
    assert_int_equal(dr_score_files(model, scratch_path("told"), &options, &score), DR_OK);
    assert_true(seen.files == 2 && seen.left_out == 1 && seen.bytes == 24);
    assert_string_equal(seen.names[0], "one");
    assert_string_equal(seen.names[1], "two");
    assert_true(fabs(seen.loss - score.loss * 24) < 1e-12 * seen.loss);

    /* the same text from memory */
    seen = (told){0};
    assert_int_equal(dr_score_files(model, scratch_path("told/two"), NULL, &score), DR_OK);
    assert_int_equal(dr_score_text(model, "a name", "the second", 10, &options, &single), DR_OK);
    assert_true(fabs(single.loss - score.loss) < 1e-12);
    assert_string_equal(seen.names[0], "a name");
    assert_int_equal(dr_score_text(model, "a name", "", 0, NULL, &single), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_text(model, "a name", "ab\xc3", 3, NULL, &single), DR_ERROR_FORMAT);
    assert_non_null(strstr(dr_last_error(), "a name is not UTF-8 text: byte 2 (0xc3)"));
    assert_int_equal(dr_score_text(model, "a name", "a\0b", 3, NULL, &single), DR_ERROR_FORMAT);
    assert_int_equal(dr_score_text(NULL, "a", "a", 1, NULL, &single), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_text(model, NULL, "a", 1, NULL, &single), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_text(model, "a", NULL, 1, NULL, &single), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_text(model, "a", "a", 1, NULL, NULL), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_files(model, NULL, NULL, &score), DR_ERROR_ARGUMENT);
}

/* Held-out examples against the definition, in batches of any size; sizes that no run had. */
static void test_recall_is_scored(void **state) {
    (void)state;
    dr_model *words = make_model(128);
    dr_recall_options options = dr_recall_defaults();
    options.seq_len = 24, options.pairs = 3, options.examples = 7, options.seed = 5;
    dr_mqar *mqar;
    double sum = 0;
    int64_t hits = 0;
    assert_int_equal(dr_mqar_create(&(dr_mqar_shape){128, 24, 3, 0.01, true, 0}, &mqar), DR_OK);
    for (int64_t i = 0; i < 7; i++) {
        int32_t ids[24], labels[3];
        int64_t positions[3], hit;
        double loss;
        dr_random random = dr_stream(5, DR_STREAM_HELD_OUT_EXAMPLES, i);
        dr_mqar_draw(mqar, &random, 24, 3, ids, positions, labels);
        dr_batch batch = {
            .layout = {.sequences = 1, .rows = 24}, .ids = ids, .targets = 3, .positions = positions, .labels = labels};
        assert_int_equal(learner_loss(words, &batch, NULL, &loss, &hit, NULL, NULL), DR_OK);
        sum += loss, hits += hit;
    }
    dr_mqar_destroy(mqar);
    static const int64_t batches[] = {1, 2, 64};
    for (int i = 0; i < 3; i++) {
        dr_recall_score score;
        options.batch = batches[i];
        last_done = 0;
        assert_int_equal(dr_score_recall(words, &options, remember, NULL, &score), DR_OK);
        assert_int_equal(last_done, 7);
        assert_true(score.examples == 7 && score.queries == 21);
        assert_true(score.accuracy == (double)hits / 21);
        assert_true(fabs(score.loss - sum / 21) < 1e-12 * score.loss);
    }
    dr_recall_score score;
    options.seq_len = 128;
    assert_int_equal(dr_score_recall(words, &options, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "vocabulary is 128"));
    options = (dr_recall_options){.seq_len = 24, .pairs = 3, .batch = 1, .power_a = 1};
    assert_int_equal(dr_score_recall(words, &options, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "examples is 0"));
    options.examples = INT64_MAX, options.pairs = 4;
    assert_int_equal(dr_score_recall(words, &options, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    options.examples = 5, options.batch = 0;
    assert_int_equal(dr_score_recall(words, &options, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    options.batch = 2;
    last_done = 0;
    assert_int_equal(dr_score_recall(words, &options, remember, &score, &score), DR_ERROR_INTERRUPTED);
    assert_int_equal(dr_score_recall(NULL, &options, NULL, NULL, &score), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_score_recall(words, &options, NULL, NULL, NULL), DR_ERROR_ARGUMENT);
    learner_destroy(words);
}

/* A score that is no number is a failure that names the file; what was told before stands. */
static void test_scores_that_are_no_numbers(void **state) {
    (void)state;
    dr_model *broken = make_model(DR_BYTE_VOCABULARY), *words = make_model(128);
    double *values = dr_model_parameter_block(broken);
    values['!' * 16] = NAN; /* the embedding of one byte */
    ((double *)dr_model_parameter_block(words))[0] = INFINITY;
    scratch_write("nan/a", "all is well", 11);
    scratch_write("nan/b", "but here!?", 10);
    scratch_write("nan/c", "and here!", 9);
    told seen = {0};
    dr_score score;
    dr_recall_score recall;
    dr_score_options options = dr_score_defaults();
    options.file = tell_file, options.context = &seen;
    assert_int_equal(dr_score_files(broken, scratch_path("nan"), &options, &score), DR_ERROR_NUMERIC);
    assert_non_null(strstr(dr_last_error(), "the loss of /"));
    assert_non_null(strstr(dr_last_error(), "nan/b is not a number"));
    assert_int_equal(seen.files, 2);
    assert_int_equal(dr_score_corpus(broken, scratch_path("nan/a"), 8, NULL, NULL, &score), DR_OK);
    assert_int_equal(dr_score_text(broken, "text", "!!", 2, NULL, &score), DR_ERROR_NUMERIC);
    dr_recall_options sizes = dr_recall_defaults();
    sizes.random_fillers = false; /* fillers are id 0 */
    assert_int_equal(dr_score_recall(words, &sizes, NULL, NULL, &recall), DR_ERROR_NUMERIC);
    assert_false(isfinite(recall.loss));
    learner_destroy(broken);
    learner_destroy(words);
}

/* ---- failed allocations ---- */

static dr_status score_and_generate(void *context) {
    dr_score score;
    output out = {.stop_after = 0};
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 3;
    dr_evaluate_result result;
    DR_TRY(dr_score_corpus(model, context, 8, NULL, NULL, &score));
    DR_TRY(dr_evaluate_file(model, scratch_path("items"), NULL, &result));
    return dr_generate(model, "abc", 3, &options, collect, &out);
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    const char items[] = "{\"prompt\": \"a\", \"answer\": [\"b\", \"c\"]}\n";
    scratch_write("items", items, sizeof items - 1);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch_write("few", "a few words", 11));
    assert_int_equal(score_and_generate(path), DR_OK); /* what the model keeps for later calls is there from here on */
    assert_true(assert_survives_failed_allocations(score_and_generate, path) > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_that_end_an_answer),
        cmocka_unit_test(test_greedy_is_the_argmax_of_full_forwards),
        cmocka_unit_test(test_seeds_repeat),
        cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_windows_do_not_change_a_score),
        cmocka_unit_test(test_some_tokens_come_from_all_documents),
        cmocka_unit_test(test_scores_that_cannot_be),
        cmocka_unit_test(test_stop_texts),
        cmocka_unit_test(test_generation_ends_before_a_stop_text),
        cmocka_unit_test(test_samples_are_independent),
        cmocka_unit_test(test_each_file_is_told),
        cmocka_unit_test(test_recall_is_scored),
        cmocka_unit_test(test_scores_that_are_no_numbers),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
