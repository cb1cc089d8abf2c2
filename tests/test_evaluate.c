/* Files of tasks: log-probabilities against sums that are taken from the model's logits by hand, which choice is the right one,
 * and what the formats become. What is printed and refused is in tests/cli/evaluate.sh. */
#include "backends/reference/reference.h"
#include "data/corpus.h"
#include "scratch.h"

#include <deltarule/evaluate.h>
#include <math.h>

enum { MOST_ITEMS = 64, MOST_IDS = 256 };

static dr_backend *backend;
static dr_model *model;

static int begin(void **state) {
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = DR_BYTE_VOCABULARY, config.hidden = 16, config.layers = 1, config.heads = 2, config.intermediate = 24;
    config.initializer_range = 0.3; /* far from uniform, so that choices differ */
    if (dr_reference_open(NULL, &backend) != DR_OK || dr_model_create(backend, &config, 3, &model) != DR_OK) return -1;
    return scratch_begin(state);
}

static int end(void **state) {
    dr_model_destroy(model);
    dr_backend_close(backend);
    return scratch_end(state);
}

/* ---- by hand ---- */

/* A text's ids: the start of a document, then bytes. */
static int64_t ids_of(const char *text, int32_t ids[MOST_IDS]) {
    const int64_t count = (int64_t)strlen(text) + 1;
    assert_in_range(count, 1, MOST_IDS);
    ids[0] = DR_DOCUMENT_START;
    for (int64_t i = 1; i < count; i++) ids[i] = (unsigned char)text[i - 1];
    return count;
}

/* ln p of ids[count], and the likeliest id, behind the ids before it. */
static double logprob_of_last(const int32_t *ids, int64_t count, int32_t *likeliest) {
    double logits[DR_BYTE_VOCABULARY], sum = 0;
    const int64_t last = count - 1;
    const dr_batch batch = {.layout = {.sequences = 1, .rows = count}, .ids = ids, .targets = 1, .positions = &last};
    dr_session *session;
    assert_int_equal(dr_session_create(model, &session), DR_OK);
    assert_int_equal(dr_session_logits(session, &batch, NULL, DR_F64, logits), DR_OK);
    dr_session_destroy(session);
    int best = 0;
    for (int i = 0; i < DR_BYTE_VOCABULARY; i++) {
        sum += exp(logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    if (likeliest) *likeliest = best;
    return logits[ids[count]] - log(sum);
}

/* The sum of those of ids [first, count) behind the ids from `from` on. */
static double logprob(const int32_t *ids, int64_t from, int64_t first, int64_t count) {
    double sum = 0;
    for (int64_t t = first; t < count; t++) sum += logprob_of_last(ids + from, t - from, NULL);
    return sum;
}

static void near(double got, double wanted) {
    if (!(fabs(got - wanted) < 1e-9 * fabs(wanted) + 1e-9)) fail_msg("%.12g instead of %.12g", got, wanted);
}

/* ---- by the library ---- */

static struct {
    dr_item_score at[MOST_ITEMS];
    double logprobs[MOST_ITEMS][8];
    int count;
} asked;

static void keep(void *context, const dr_item_score *score) {
    (void)context;
    assert_in_range(asked.count, 0, MOST_ITEMS - 1);
    asked.at[asked.count] = *score;
    for (int64_t i = 0; score->logprobs && i < score->choices; i++) asked.logprobs[asked.count][i] = score->logprobs[i];
    asked.count++;
}

static dr_evaluate_result ask(const char *lines, dr_evaluate_options options) {
    dr_evaluate_result result;
    asked.count = 0;
    options.item = keep;
    const dr_status status = dr_evaluate_file(model, scratch_write("task.jsonl", lines, strlen(lines)), &options, &result);
    if (status != DR_OK) fail_msg("%s", dr_last_error());
    return result;
}

static dr_evaluate_result ask_as(const char *format, const char *lines) {
    dr_evaluate_options options = dr_evaluate_defaults();
    options.format = format;
    return ask(lines, options);
}

/* ---- continuations ---- */

static const char one_choice[] = "{\"context\": \"line 7 of \\t \", \"choices\": [\"file\", \"z\"], \"answer\": 0}\n";

static void test_blanks_belong_to_the_continuation(void **state) {
    (void)state;
    int32_t ids[MOST_IDS];
    ask_as("choices", one_choice);
    const int64_t count = ids_of("line 7 of \t  file", ids);
    near(asked.logprobs[0][0], logprob(ids, 0, 1 + 9, count));
    dr_evaluate_options options = dr_evaluate_defaults();
    options.no_start = true;
    ask(one_choice, options);
    near(asked.logprobs[0][0], logprob(ids, 1, 1 + 9, count));
}

static void test_a_long_request_loses_its_beginning(void **state) {
    (void)state;
    int32_t ids[MOST_IDS];
    dr_evaluate_options options = dr_evaluate_defaults();
    const int64_t count = ids_of("line 7 of \t  file", ids);
    for (int64_t most = 1; most <= count; most += 3) {
        options.max_length = most;
        ask(one_choice, options);
        const int64_t cut = count > most + 1 ? count - most - 1 : 0;
        near(asked.logprobs[0][0], logprob(ids, cut, cut + 1 > 10 ? cut + 1 : 10, count));
    }
}

static void test_a_last_word_is_greedy_in_all_tokens(void **state) {
    (void)state;
    char text[] = "the state a?", line[64];
    int32_t ids[MOST_IDS], likeliest, of_blank;
    int found = 0;
    ids_of(text, ids);
    logprob_of_last(ids, 10, &of_blank);
    assert_int_not_equal(of_blank, ' '); /* so that no word behind this beginning is greedy */
    for (char first = 'a'; first <= 'z'; first++) {
        text[10] = first, text[11] = '?';
        ids_of(text, ids);
        logprob_of_last(ids, 12, &likeliest);
        if (likeliest < 'a' || likeliest > 'z') continue;
        text[11] = (char)likeliest;
        snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", text);
        const dr_evaluate_result result = ask_as("lambada", line);
        assert_false(asked.at[0].greedy);
        assert_true(result.accuracy == 0);
        ids_of(text, ids);
        near(log(result.perplexity), -logprob(ids, 0, 10, 13));
        found++;
    }
    assert_true(found > 0);
}

/* Which choice is the likeliest, also by its characters: neither bytes nor none. */
static void test_choices_are_normalized_by_characters(void **state) {
    (void)state;
    static const char *const choices[] = {"a", "\xc3\xa9\xe2\x82\xac", "abc"};
    static const double characters[] = {1, 2, 3}, bytes[] = {1, 5, 3};
    char lines[4096];
    int used = 0, other_than_plain = 0, other_than_bytes = 0;
    for (char context = 'a'; context <= 'z'; context++)
        used += snprintf(lines + used, sizeof lines - (size_t)used,
                         "{\"context\": \"%c\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"answer\": %d}\n", context, choices[0],
                         choices[1], choices[2], context % 3);
    const dr_evaluate_result result = ask_as("choices", lines);
    int hits = 0, normalized_hits = 0;
    for (int i = 0; i < asked.count; i++) {
        int64_t best[3] = {0, 0, 0}; /* plain, by characters, by bytes */
        for (int c = 1; c < 3; c++) {
            const double *of = asked.logprobs[i];
            if (of[c] > of[best[0]]) best[0] = c;
            if (of[c] / characters[c] > of[best[1]] / characters[best[1]]) best[1] = c;
            if (of[c] / bytes[c] > of[best[2]] / bytes[best[2]]) best[2] = c;
        }
        assert_int_equal(asked.at[i].chosen, best[0]);
        assert_int_equal(asked.at[i].chosen_normalized, best[1]);
        other_than_plain += best[1] != best[0];
        other_than_bytes += best[1] != best[2];
        hits += best[0] == ('a' + i) % 3;
        normalized_hits += best[1] == ('a' + i) % 3;
    }
    assert_int_equal(asked.count, 26);
    assert_true(other_than_plain > 0 && other_than_bytes > 0);
    near(result.accuracy, hits / 26.0);
    near(result.accuracy_normalized, normalized_hits / 26.0);
    near(result.accuracy_error, sqrt(result.accuracy * (1 - result.accuracy) / 25));
}

/* ---- formats ---- */

static void test_the_right_choice(void **state) {
    (void)state;
    static const struct {
        const char *line;
        int64_t gold;
    } items[] = {
        {"{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"c\"}", 1},
        {"{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}", 0},
        {"{\"goal\": \"a\", \"sol1\": \"b\", \"sol2\": \"c\", \"label\": 1}", 1},
        {"{\"activity_label\": \"a\", \"ctx_a\": \"b\", \"ctx_b\": \"c\", \"endings\": [\"d\", \"e\", \"f\"], \"label\": "
         "\"2\"}",
         2},
        {"{\"sentence\": \"a _ b\", \"option1\": \"c\", \"option2\": \"d\", \"answer\": \"1\"}", 0},
        {"{\"sentence\": \"a _ b\", \"option1\": \"c\", \"option2\": \"d\", \"answer\": \"2\"}", 1},
        {"{\"question\": \"a\", \"choices\": {\"text\": [\"b\", \"c\"], \"label\": [\"1\", \"2\"]}, \"answerKey\": \"2\"}", 1},
        {"{\"passage\": \"a\", \"question\": \"b\", \"answer\": true}", 1},
        {"{\"passage\": \"a\", \"question\": \"b\", \"answer\": false}", 0},
        {"{\"passage\": \"a\", \"question\": \"b\", \"label\": 1}", 1},
    };
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        ask(items[i].line, dr_evaluate_defaults());
        assert_int_equal(asked.count, 1);
        assert_int_equal(asked.at[0].gold, items[i].gold);
    }
}

static void test_texts_are_cleaned(void **state) {
    (void)state;
    int32_t ids[MOST_IDS];
    ask_as("hellaswag", "{\"activity_label\": \" Go\", \"ctx_a\": \"one [x] of\", \"ctx_b\": \"the SHIP\", \"endings\": "
                        "[\"a [title] b\", \"c\"], \"label\": 0}");
    const int64_t count = ids_of("Go: one of The ship a. b", ids);
    near(asked.logprobs[0][0], logprob(ids, 0, count - 5, count));
}

/* ---- texts ---- */

static void test_windows_of_a_text(void **state) {
    (void)state;
    static const char text[] = "the state  is\\na matrix \xc2\xa0of the state",
                      plain[] = "the state  is\na matrix \xc2\xa0of the state";
    char line[128];
    int32_t ids[MOST_IDS];
    const int64_t count = ids_of(plain, ids), last = count - 1;
    snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", text);
    for (int64_t most = 0; most <= count; most += 7) {
        dr_evaluate_options options = dr_evaluate_defaults();
        options.format = "rolling", options.max_length = most;
        const dr_evaluate_result result = ask(line, options);
        double wanted = 0;
        for (int64_t t = 1; t < count; t++) { /* windows of `most` predictions; the last begins so early that it is full */
            const int64_t stop = most == 0 ? last : ((t - 1) / most + 1) * most < last ? ((t - 1) / most + 1) * most : last;
            const int64_t from = most > 0 && stop > most ? stop - most : 0;
            wanted += logprob_of_last(ids + from, t - from, NULL);
        }
        near(asked.logprobs[0][0], wanted);
        near(log(result.word_perplexity), -wanted / 8); /* the, state, is, a, matrix, of, the, state */
        near(log(result.byte_perplexity), -wanted / (double)last);
        near(result.bits_per_byte, -wanted / (double)last / log(2));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks_belong_to_the_continuation),
        cmocka_unit_test(test_a_long_request_loses_its_beginning),
        cmocka_unit_test(test_a_last_word_is_greedy_in_all_tokens),
        cmocka_unit_test(test_choices_are_normalized_by_characters),
        cmocka_unit_test(test_the_right_choice),
        cmocka_unit_test(test_texts_are_cleaned),
        cmocka_unit_test(test_windows_of_a_text),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
