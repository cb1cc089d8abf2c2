/* Options of `generate` in the library's call: a part of test_options.c, which replaces that call and has `seen`, GENERATE and
 * `output`. */
#ifndef DR_TESTS_OPTIONS_OF_GENERATE_H
#define DR_TESTS_OPTIONS_OF_GENERATE_H

static void generate_model(void) {
    assert_int_equal(call(&cli_generate, (char *[]){"generate", "--model", "the/model", NULL}), 0);
    assert_string_equal(seen.model, "the/model");
}

static void generate_prompt(void) {
    GENERATE("--prompt", "Once");
    assert_string_equal(seen.prompt, "Once");
    assert_string_equal(output, "Oncemade\n");
}

static void generate_tokens(void) {
    GENERATE("--tokens", "17");
    assert_int_equal(seen.generate.tokens, 17);
}

static void generate_temperature(void) {
    GENERATE("--temperature", "0.375");
    assert_true(seen.generate.sampling.temperature == 0.375);
}

static void generate_top_k(void) {
    GENERATE("--top-k", "5");
    assert_int_equal(seen.generate.sampling.top_k, 5);
}

static void generate_top_p(void) {
    GENERATE("--top-p", "0.625");
    assert_true(seen.generate.sampling.top_p == 0.625);
}

static void generate_seed(void) {
    GENERATE("--seed", "9007199254740991");
    assert_true(seen.generate.sampling.seed == 9007199254740991U);
}

static void generate_dtype(void) {
    GENERATE("--prompt", "a", "--dtype", "bf16", "--device", "3");
    assert_int_equal(seen.dtype, DR_BF16);
    assert_int_equal(seen.device, 3);
}

static void generate_backend(void) {
    GENERATE("--backend", "reference", "--isa", "portable");
    assert_string_equal(seen.backend, "reference");
    assert_string_equal(seen.isa, "portable");
}

static void generate_draft(void) {
    GENERATE("--draft", "the/draft", "--draft-tokens", "7");
    assert_string_equal(seen.model, "the/draft");
    assert_ptr_equal(seen.generate.draft, true_model);
    assert_int_equal(seen.generate.draft_tokens, 7);
    GENERATE("--draft", "ngram");
    assert_null(seen.generate.draft);
    assert_int_equal(seen.generate.draft_tokens, 4);
    GENERATE("--tokens", "3");
    assert_int_equal(seen.generate.draft_tokens, 0);
}

static void generate_weights(void) {
    GENERATE("--weights", "bf16");
    assert_int_equal(seen.weights, DR_BF16);
    GENERATE("--weights", "int8");
    assert_int_equal(seen.weights, DR_I8);
}

static void generate_threads(void) {
    GENERATE("--threads", "3");
    assert_int_equal(seen.threads, 3);
}

static void generate_prompt_file(void) {
    GENERATE("--prompt-file", (char *)scratch_write("prompt", "from a file\n", 12));
    assert_string_equal(seen.prompt, "from a file\n");
    assert_string_equal(output, "from a file\nmade\n");
}

static void generate_no_echo(void) {
    GENERATE("--prompt", "Once", "--no-echo");
    assert_string_equal(seen.prompt, "Once");
    assert_string_equal(output, "made\n");
}

static void generate_stop(void) {
    GENERATE("--stop", "one", "--stop", "two");
    assert_int_equal(seen.generate.stop_count, 2);
    assert_string_equal(seen.stops[0], "one");
    assert_string_equal(seen.stops[1], "two");
}

static void generate_samples(void) {
    GENERATE("--samples", "3", "--prompt", "P");
    assert_int_equal(seen.samples, 3);
    assert_int_equal(seen.generate.sampling.sample, 0);
    assert_string_equal(output, "--- sample 1 of 3 ---\nPmade\n--- sample 2 of 3 ---\nPmade\n--- sample 3 of 3 ---\nPmade\n");
    GENERATE("--samples", "1");
}

static void generate_at_once(void) {
    GENERATE("--at-once", "5");
    assert_int_equal(seen.generate.at_once, 5);
}

static void generate_min_p(void) {
    GENERATE("--min-p", "0.125");
    assert_true(seen.generate.sampling.min_p == 0.125);
}

static void generate_repetition_penalty(void) {
    GENERATE("--repetition-penalty", "1.25");
    assert_true(seen.generate.sampling.repetition_penalty == 1.25);
}

static void generate_presence_penalty(void) {
    GENERATE("--presence-penalty", "0.5");
    assert_true(seen.generate.sampling.presence_penalty == 0.5 && seen.generate.sampling.frequency_penalty == 0);
}

static void generate_frequency_penalty(void) {
    GENERATE("--frequency-penalty", "-0.75");
    assert_true(seen.generate.sampling.frequency_penalty == -0.75 && seen.generate.sampling.presence_penalty == 0);
}

static void generate_logit_bias(void) {
    GENERATE("--logit-bias", "5=1.5", "--logit-bias", "2=-inf");
    assert_int_equal(seen.generate.sampling.bias_count, 2);
    assert_true(seen.bias[0].id == 5 && seen.bias[0].bias == 1.5);
    assert_true(seen.bias[1].id == 2 && seen.bias[1].bias == -INFINITY);
}

static void generate_stop_token(void) {
    GENERATE("--stop-token", "3", "--stop-token", "256");
    assert_int_equal(seen.generate.stop_token_count, 2);
    assert_true(seen.stop_tokens[0] == 3 && seen.stop_tokens[1] == 256);
}

static void generate_prompt_ids(void) {
    GENERATE("--prompt-ids", "104, 105 256");
    assert_true(seen.ids[0] == 104 && seen.ids[1] == 105 && seen.ids[2] == 256);
    assert_string_equal(output, "himade\n"); /* 256 is no byte */
}

static void generate_prompts(void) {
    static const char lines[] = "\"A\\u0042\"\n\n [67] \n\"D\"";
    GENERATE("--prompts", (char *)scratch_write("prompts", lines, sizeof lines - 1));
    assert_int_equal(seen.prompts, 3);
    assert_string_equal(output, "--- prompt 1 of 3 ---\nABmade\n--- prompt 2 of 3 ---\nCmade\n--- prompt 3 of 3 ---\nDmade\n");
}

static void generate_json(void) {
    GENERATE("--prompt", "P", "--json", "--samples", "2");
    assert_false(seen.generate.sampling.logprobs);
    assert_string_equal(output, "{\"prompt\": 0, \"sample\": 0, \"text\": \"made\", \"finish\": \"stop\", \"tokens\": 1, "
                                "\"ids\": [7]}\n{\"prompt\": 0, \"sample\": 1, \"text\": \"made\", \"finish\": \"stop\", "
                                "\"tokens\": 1, \"ids\": [7]}\n");
}

static void generate_logprobs(void) {
    GENERATE("--json", "--logprobs", "3");
    assert_true(seen.generate.sampling.logprobs && seen.generate.sampling.top_logprobs == 3);
    assert_non_null(
        strstr(output, "\"logprobs\": [{\"id\": 7, \"logprob\": -0.5, \"top\": [{\"id\": 9, \"logprob\": -0.25}]}]}"));
}

/* A tokenizer of 257 ids, which fits a model of bytes. */
static char *small_tokenizer(void) {
    static char folder[PATH_MAX];
    dr_tokenizer_training training = dr_tokenizer_training_defaults();
    dr_tokenizer_trainer *trainer;
    int64_t size;
    training.ids = 257;
    snprintf(folder, sizeof folder, "%s", scratch_path("tokenizer"));
    assert_int_equal(dr_tokenizer_trainer_create(&trainer), DR_OK);
    assert_int_equal(dr_tokenizer_trainer_add(trainer, "some text", 9), DR_OK);
    assert_int_equal(dr_tokenizer_trainer_write(trainer, &training, folder, &size), DR_OK);
    dr_tokenizer_trainer_destroy(trainer);
    return folder;
}

static void generate_tokenizer(void) {
    GENERATE("--tokenizer", "bytes");
    assert_null(seen.generate.tokenizer);
    GENERATE("--tokenizer", small_tokenizer());
    assert_non_null(seen.generate.tokenizer);
}

static void generate_ignore_eos(void) {
    GENERATE("--tokens", "3");
    assert_false(seen.generate.ignore_eos);
    GENERATE("--ignore-eos");
    assert_true(seen.generate.ignore_eos);
}

#endif
