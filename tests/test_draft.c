/* Guessing tokens ahead: several tokens of a sequence through the decode engine have the bits of as many single steps, and a
 * text that is made with guesses is the text without them, whatever guesses and however tokens are chosen. */
#include "allocation.h"
#include "checkpoint_folders.h"
#include "data/corpus.h"
#include "nn/session.h"
#include "scratch.h"
#include "statuses.h"

#include <deltarule/generate.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- steps ---- */

enum { PROMPT = 45, STEPS = 24 };

static void hold_steps(const dr_model *model, const char *name) {
    static const int64_t pieces[] = {1, 5, 2, 9, 3, 4};
    const int64_t vocabulary = dr_model_get_config(model)->vocabulary;
    float *one = malloc((size_t)(STEPS * vocabulary) * sizeof *one),
          *many = malloc((size_t)(STEPS * vocabulary) * sizeof *many);
    dr_model_state *a, *b;
    dr_session *session;
    int32_t ids[PROMPT + STEPS];
    const int64_t last = PROMPT - 1;
    const dr_batch batch = {.layout = {1, PROMPT, NULL}, .ids = ids, .targets = 1, .positions = &last};
    for (int i = 0; i < PROMPT + STEPS; i++) ids[i] = (int32_t)((i * i + 5 * i) % vocabulary);
    must(dr_session_create(model, &session));
    must(dr_model_state_create(model, 1, &a));
    must(dr_session_logits(session, &batch, a, DR_F32, one));
    must(dr_model_state_clone(a, &b));
    for (int i = 0; i < STEPS; i++) must(dr_model_step(model, ids + PROMPT + i, a, one + i * vocabulary));
    for (int64_t at = 0, i = 0; at < STEPS; at += pieces[i++])
        must(dr_session_steps(session, ids + PROMPT + at, pieces[i], b, pieces[i], many + at * vocabulary));
    for (int i = 0; i < STEPS; i++)
        if (memcmp(one + i * vocabulary, many + i * vocabulary, (size_t)vocabulary * sizeof *one) != 0)
            fail_msg("%s: step %d differs", name, i);
    dr_position from_one, from_many;
    must(dr_model_state_about(a, 0, &from_one));
    must(dr_model_state_about(b, 0, &from_many));
    assert_true(from_one.tokens == from_many.tokens && from_one.decoded == from_many.decoded &&
                from_one.hash == from_many.hash);
    must(dr_model_step(model, ids, a, one)); /* and so is what they left behind */
    must(dr_model_step(model, ids, b, many));
    assert_memory_equal(one, many, (size_t)vocabulary * sizeof *one);
    dr_model_state_destroy(a);
    dr_model_state_destroy(b);
    dr_session_destroy(session);
    free(one);
    free(many);
}

static void test_steps_of_all_rules(void **state) {
    (void)state;
    for (int backend = 0; backend < 3; backend++) {
        dr_backend *of;
        const dr_backend_options options = {.threads = 1, .weights = backend == 2 ? DR_I8 : DR_F32};
        must(dr_backend_open(backend ? "cpu" : "reference", &options, &of));
        for (int i = 0; i < dr_rule_count(); i++) {
            dr_model *model;
            dr_model_config config = dr_model_config_default(dr_rule_at(i));
            config.vocabulary = 96, config.hidden = 32, config.layers = 2, config.heads = 2, config.initializer_range = 0.2;
            must(dr_model_create(of, &config, 7, &model));
            hold_steps(model, dr_rule_get_name(dr_rule_at(i)));
            dr_model_destroy(model);
        }
        dr_backend_close(of);
    }
}

static void hold_steps_of_folder(const char *folder, void *backend) {
    dr_model *model;
    must(dr_model_load(backend, folder, &model));
    hold_steps(model, folder);
    dr_model_destroy(model);
}

static void test_steps_of_published_models(void **state) {
    (void)state;
    dr_backend *backend = open_backend("cpu", NULL, 2);
    each_checkpoint(hold_steps_of_folder, backend);
    dr_backend_close(backend);
}

/* A prompt that holds an earlier answer, read on from the state behind that answer, against all of it read anew. */
static void test_a_decoded_answer_agrees_to_rounding(void **state) {
    (void)state;
    enum { QUESTION = 100, ANSWER = 120, MORE = 77, ALL = QUESTION + ANSWER + MORE, VOCABULARY = 96 };
    static const char *const models[][2] = {{"gdn", NULL},
                                            {"kda", NULL},
                                            {"mesanet", NULL},
                                            {"delta_product", NULL},
                                            {"gdn", "[{\"mixer\": \"gdn\"}, {\"mixer\": \"attention\"}]"}};
    dr_backend *backend = open_backend("cpu", NULL, 2);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        dr_model *model;
        dr_session *session;
        dr_model_state *decoded, *anew, *loaded;
        int32_t ids[ALL];
        float step[VOCABULARY], kept[VOCABULARY], whole[VOCABULARY];
        dr_model_config config = dr_model_config_default(dr_rule_find(models[m][0]));
        config.vocabulary = VOCABULARY, config.hidden = 128, config.layers = 2, config.heads = 2,
        config.layer_list = models[m][1];
        must(dr_model_create(backend, &config, 9, &model));
        must(dr_session_create(model, &session));
        must(dr_model_state_create(model, 1, &decoded));
        must(dr_model_state_create(model, 1, &anew));
        for (int i = 0; i < ALL; i++) ids[i] = (int32_t)((i * i + 7 * i) % VOCABULARY);
        const int64_t ends[] = {QUESTION - 1, MORE - 1, ALL - 1};
        const dr_batch question = {.layout = {1, QUESTION, NULL}, .ids = ids, .targets = 1, .positions = &ends[0]},
                       more = {.layout = {1, MORE, NULL}, .ids = ids + QUESTION + ANSWER, .targets = 1, .positions = &ends[1]},
                       all = {.layout = {1, ALL, NULL}, .ids = ids, .targets = 1, .positions = &ends[2]};
        must(dr_session_logits(session, &question, decoded, DR_F32, step));
        for (int i = 0; i < ANSWER; i++) must(dr_model_step(model, ids + QUESTION + i, decoded, step));
        must(dr_model_state_save(decoded, scratch_path("decoded.safetensors")));
        must(dr_model_state_load(model, scratch_path("decoded.safetensors"), &loaded));
        must(dr_session_logits(session, &more, loaded, DR_F32, kept));
        must(dr_session_logits(session, &all, anew, DR_F32, whole));
        double error = 0, size = 0;
        for (int i = 0; i < VOCABULARY; i++) {
            error = error > (double)kept[i] - (double)whole[i] ? error : (double)kept[i] - (double)whole[i];
            error = error > (double)whole[i] - (double)kept[i] ? error : (double)whole[i] - (double)kept[i];
            size = size > (double)whole[i] ? size : (double)whole[i];
        }
        printf("%s%s: a decoded answer is %.1e of the largest logit off\n", models[m][0], models[m][1] ? ", attention" : "",
               error / size);
        assert_true(error <= 1e-5 * size);
        dr_model_state_destroy(decoded);
        dr_model_state_destroy(loaded);
        dr_model_state_destroy(anew);
        dr_session_destroy(session);
        dr_model_destroy(model);
    }
    dr_backend_close(backend);
}

/* ---- texts ---- */

enum { MOST = 300 };

typedef struct {
    int32_t ids[MOST];
    int64_t count;
    char text[4 * MOST];
    size_t bytes;
    dr_finish finish;
    dr_generate_speed speed;
} made_text;

static bool collect(void *context, const dr_piece *piece) {
    made_text *made = context;
    memcpy(made->text + made->bytes, piece->bytes, piece->count);
    made->bytes += piece->count;
    if (piece->choice) made->ids[made->count++] = piece->choice->id;
    made->finish = piece->finish;
    return true;
}

static dr_model *make(dr_backend *backend, const char *rule, const char *layers, uint64_t seed) {
    dr_model *model;
    dr_model_config config = dr_model_config_default(dr_rule_find(rule));
    config.vocabulary = DR_BYTE_VOCABULARY, config.hidden = 32, config.layers = 2, config.heads = 2, config.intermediate = 48;
    config.initializer_range = 0.1, config.layer_list = layers;
    must(dr_model_create(backend, &config, seed, &model));
    return model;
}

static const char PROMPT_TEXT[] = "the cat and the dog and the cat and the dog and the cat and the ";

static made_text generate(const dr_model *model, const dr_generate_options *options) {
    made_text made = {.count = 0};
    const dr_prompt prompt = {PROMPT_TEXT, sizeof PROMPT_TEXT - 1, false, NULL, 0};
    must(dr_generate_texts(model, &prompt, 1, 1, options, collect, &made, &made.speed));
    return made;
}

static void assert_same_text(const made_text *a, const made_text *b) {
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->text, b->text, a->bytes);
    assert_int_equal(a->finish, b->finish);
}

static void test_a_text_with_guesses_is_the_text_without(void **state) {
    (void)state;
    static const char *const models[][2] = {
        {"gdn", NULL},
        {"kda", NULL},
        {"mesanet", NULL},
        {"delta_product", NULL},
        {"mamba2", NULL},
        {"gdn", "[{\"mixer\": \"gdn\"}, {\"mixer\": \"attention\"}, {\"mixer\": \"attention\", \"window\": 12}]"}};
    static const int64_t lengths[] = {1, 4, 13, DR_MOST_DRAFT_TOKENS};
    dr_backend *backend = open_backend("cpu", NULL, 1);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        dr_model *model = make(backend, models[m][0], models[m][1], 11), *other = make(backend, "gla", NULL, 12);
        int64_t by_text = 0, by_itself = 0, drafted_by_itself = 0;
        for (int trial = 0; trial < 8; trial++) {
            dr_generate_options options = dr_generate_defaults();
            options.tokens = 30 + trial;
            options.sampling.temperature = trial % 4 < 2 ? 0 : trial % 4 == 2 ? 0.3 : 1;
            options.sampling.repetition_penalty = trial % 4 == 1 ? 1.3 : 1;
            const made_text plain = generate(model, &options);
            options.draft_tokens = lengths[trial / 2];
            made_text guessed = generate(model, &options);
            assert_same_text(&guessed, &plain);
            assert_true(guessed.speed.accepted <= guessed.speed.drafted && guessed.speed.tokens == plain.count);
            if (trial % 4 == 0) by_text += guessed.speed.accepted;
            options.draft = model;
            guessed = generate(model, &options);
            assert_same_text(&guessed, &plain);
            if (trial % 4 == 0) by_itself += guessed.speed.accepted, drafted_by_itself += guessed.speed.drafted;
            options.draft = other;
            guessed = generate(model, &options);
            assert_same_text(&guessed, &plain);
            if (plain.count > 3) {
                options.stop_tokens = &plain.ids[plain.count / 2], options.stop_token_count = 1;
                guessed = generate(model, &options);
                options.draft = NULL, options.draft_tokens = 0;
                const made_text stopped = generate(model, &options);
                assert_same_text(&guessed, &stopped);
            }
        }
        printf("%s%s: %ld guesses of the text stayed, %ld of %ld of the model's own\n", models[m][0],
               models[m][1] ? ", attention" : "", (long)by_text, (long)by_itself, (long)drafted_by_itself);
        assert_true(10 * by_itself > 5 * drafted_by_itself && by_itself > 0);
        dr_model_destroy(model);
        dr_model_destroy(other);
    }
    dr_backend_close(backend);
}

static void test_what_cannot_be(void **state) {
    (void)state;
    dr_backend *backend = open_backend("cpu", NULL, 1);
    dr_model *model = make(backend, "gdn", NULL, 1), *wide;
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = 300, config.hidden = 32, config.layers = 1, config.heads = 2;
    must(dr_model_create(backend, &config, 1, &wide));
    dr_generate_options options = dr_generate_defaults();
    options.draft_tokens = -1;
    assert_refused(dr_generate_check(model, &options), DR_ERROR_ARGUMENT, "draft_tokens is -1");
    options.draft_tokens = DR_MOST_DRAFT_TOKENS + 1;
    assert_refused(dr_generate_check(model, &options), DR_ERROR_ARGUMENT, "from 0 to 64");
    options.draft_tokens = 0, options.draft = model;
    assert_refused(dr_generate_check(model, &options), DR_ERROR_ARGUMENT, "draft_tokens is 0");
    options.draft_tokens = 3, options.draft = wide;
    assert_refused(dr_generate_check(model, &options), DR_ERROR_ARGUMENT, "one tokenizer");
    dr_model_destroy(model);
    dr_model_destroy(wide);
    dr_backend_close(backend);
}

static void test_failed_allocations(void **state) {
    (void)state;
    dr_backend *backend = open_backend("cpu", NULL, 1);
    dr_model *model = make(backend, "gdn", NULL, 1);
    dr_generate_options options = dr_generate_defaults();
    options.tokens = 12, options.draft_tokens = 3, options.draft = model;
    const dr_prompt prompt = {PROMPT_TEXT, sizeof PROMPT_TEXT - 1, false, NULL, 0};
    for (long failing = 1;; failing++) {
        made_text made = {.count = 0};
        const long alive = allocation_alive;
        allocation_fail_at(failing);
        const dr_status status = dr_generate_texts(model, &prompt, 1, 1, &options, collect, &made, NULL);
        allocation_fail_at(0);
        if (status == DR_OK) {
            assert_true(failing > 20);
            break;
        }
        assert_int_equal(status, DR_ERROR_MEMORY);
        assert_true(allocation_alive <= alive + 1); /* the backend keeps memory for its calls */
    }
    dr_model_destroy(model);
    dr_backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_of_all_rules),
        cmocka_unit_test(test_steps_of_published_models),
        cmocka_unit_test(test_a_decoded_answer_agrees_to_rounding),
        cmocka_unit_test(test_a_text_with_guesses_is_the_text_without),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
