/* Choosing tokens: each option against numbers worked out by hand. */
#include "allocation.h"
#include "base/random.h"

#include <deltarule/sample.h>
#include <math.h>

enum { VOCABULARY = 6, DRAWS = 20000 };

static dr_sampler *make(const dr_sampling *sampling, int64_t vocabulary) {
    dr_sampler *sampler;
    assert_int_equal(dr_sampler_create(vocabulary, sampling, &sampler), DR_OK);
    return sampler;
}

/* The first token of many samples: their counts. */
static void count_draws(dr_sampling sampling, const int32_t *prompt, int64_t prompt_count, const float *logits,
                        int64_t counts[VOCABULARY]) {
    sampling.seed = 7;
    dr_sampler *sampler = make(&sampling, VOCABULARY);
    memset(counts, 0, VOCABULARY * sizeof(int64_t));
    for (int i = 0; i < DRAWS; i++) {
        dr_choice choice;
        sampling.sample = i;
        assert_int_equal(dr_sampler_restart(sampler, &sampling), DR_OK);
        assert_int_equal(dr_sampler_read(sampler, prompt, prompt_count), DR_OK);
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        assert_in_range(choice.id, 0, VOCABULARY - 1);
        counts[choice.id]++;
    }
    dr_sampler_destroy(sampler);
}

static void assert_shares(dr_sampling sampling, const float *logits, const double shares[VOCABULARY]) {
    int64_t counts[VOCABULARY];
    count_draws(sampling, NULL, 0, logits, counts);
    for (int i = 0; i < VOCABULARY; i++) {
        double deviation = sqrt(DRAWS * shares[i] * (1 - shares[i]));
        if (fabs((double)counts[i] - DRAWS * shares[i]) > 5 * deviation)
            fail_msg("token %d: %lld draws, expected %.1f +- %.1f", i, (long long)counts[i], DRAWS * shares[i], deviation);
    }
}

/* Logits are logarithms of 1, 8, 2, 4, 1, 0: the shares are sixteenths. */
static void test_distribution_of_draws(void **state) {
    (void)state;
    const float logits[VOCABULARY] = {0, logf(8), logf(2), logf(4), 0, -INFINITY};
    const dr_sampling plain = dr_sampling_defaults();
    assert_shares(plain, logits, (double[]){1 / 16., 8 / 16., 2 / 16., 4 / 16., 1 / 16., 0});

    dr_sampling hot = plain; /* square roots of the weights */
    hot.temperature = 2;
    const double sum = 2 + sqrt(8) + sqrt(2) + 2;
    assert_shares(hot, logits, (double[]){1 / sum, sqrt(8) / sum, sqrt(2) / sum, 2 / sum, 1 / sum, 0});

    dr_sampling two = plain;
    two.top_k = 2;
    assert_shares(two, logits, (double[]){0, 8 / 12., 0, 4 / 12., 0, 0});

    dr_sampling tie = plain; /* of two equals the lower id stays */
    tie.top_k = 4;
    assert_shares(tie, logits, (double[]){1 / 15., 8 / 15., 2 / 15., 4 / 15., 0, 0});

    dr_sampling nucleus = plain; /* 8 + 4 are 0.75 of the sum, so 2 comes too */
    nucleus.top_p = 0.8;
    assert_shares(nucleus, logits, (double[]){0, 8 / 14., 2 / 14., 4 / 14., 0, 0});

    dr_sampling both = plain; /* 8 is more than half of the three's 14, but only half of all 16 */
    both.top_k = 3, both.top_p = 0.55;
    assert_shares(both, logits, (double[]){0, 1, 0, 0, 0, 0});

    dr_sampling floor = plain; /* a quarter of the likeliest's 8 is 2 */
    floor.min_p = 0.24;
    assert_shares(floor, logits, (double[]){0, 8 / 14., 2 / 14., 4 / 14., 0, 0});
    floor.min_p = 0.26;
    assert_shares(floor, logits, (double[]){0, 8 / 12., 0, 4 / 12., 0, 0});
    floor.min_p = 0.4, floor.top_p = 0.9; /* the nucleus is 8, 4, 2, 1 */
    assert_shares(floor, logits, (double[]){0, 8 / 12., 0, 4 / 12., 0, 0});
    floor.min_p = 0.24, floor.top_k = 2;
    assert_shares(floor, logits, (double[]){0, 8 / 12., 0, 4 / 12., 0, 0});
    floor.min_p = 1, floor.top_k = 0, floor.top_p = 1;
    assert_shares(floor, logits, (double[]){0, 1, 0, 0, 0, 0});

    dr_sampling biased = plain; /* 1 becomes 8, 8 is forbidden, what had no chance keeps none */
    const dr_logit_bias bias[] = {{4, log(8)}, {1, -INFINITY}, {5, 100}};
    biased.bias = bias, biased.bias_count = 3;
    assert_shares(biased, logits, (double[]){1 / 15., 0, 2 / 15., 4 / 15., 8 / 15., 0});

    dr_sampling greedy = plain;
    greedy.temperature = 0;
    assert_shares(greedy, logits, (double[]){0, 1, 0, 0, 0, 0});
}

/* Logits 2, 1, -1, 0 with temperature 0: which is chosen tells what the penalties made of them. */
static void test_penalties(void **state) {
    (void)state;
    const float logits[4] = {2, 1, -1, 1.5F};
    dr_sampling sampling = dr_sampling_defaults();
    dr_choice choice;
    sampling.temperature = 0;

    sampling.presence_penalty = 0.75; /* 2, then 1.25 after it was made: 1.5 wins, then 0.75, then 1 against 1.25 ... */
    dr_sampler *sampler = make(&sampling, 4);
    static const int32_t presence[] = {0, 3, 0, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        assert_int_equal(choice.id, presence[i]);
    }
    dr_sampler_destroy(sampler);

    sampling.presence_penalty = 0, sampling.frequency_penalty = 0.75; /* 2 1.25 .5; 1.5 .75 0; 1 .25 */
    sampler = make(&sampling, 4);
    static const int32_t frequency[] = {0, 3, 0, 1, 3, 0, 1};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        assert_int_equal(choice.id, frequency[i]);
    }
    dr_sampler_destroy(sampler);

    /* presence and frequency count the answer only; repetition the prompt too: 2/1.5 = 1.33 < 1.5 < 1.5*... */
    sampling.presence_penalty = 0.75;
    sampler = make(&sampling, 4);
    assert_int_equal(dr_sampler_read(sampler, (int32_t[]){0, 0, 0}, 3), DR_OK);
    assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
    assert_int_equal(choice.id, 0);
    dr_sampler_destroy(sampler);
    sampling.presence_penalty = sampling.frequency_penalty = 0, sampling.repetition_penalty = 1.5;
    sampler = make(&sampling, 4);
    assert_int_equal(dr_sampler_read(sampler, (int32_t[]){0, -5, 4000}, 3), DR_OK); /* others than ids are passed over */
    static const int32_t repetition[] = {3, 0, 0};                                  /* 1.33; then 1 (3) 1.33 (0) 1 (1) */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        assert_int_equal(choice.id, repetition[i]);
    }
    dr_sampler_destroy(sampler);

    /* a negative logit is multiplied: -1 becomes -1.5, below -1.25 */
    sampler = make(&sampling, 2);
    const float negative[2] = {-1, -1.25F};
    assert_int_equal(dr_sampler_read(sampler, (int32_t[]){0}, 1), DR_OK);
    assert_int_equal(dr_sampler_choose(sampler, negative, &choice), DR_OK);
    assert_int_equal(choice.id, 1);
    dr_sampler_destroy(sampler);

    /* biases come before penalties: (1 + 2) / 1.5 = 2, a tie that the lower id wins; 1 / 1.5 + 2 would win */
    const dr_logit_bias bias[] = {{1, 2}};
    sampling.bias = bias, sampling.bias_count = 1;
    sampler = make(&sampling, 4);
    assert_int_equal(dr_sampler_read(sampler, (int32_t[]){1}, 1), DR_OK);
    assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
    assert_int_equal(choice.id, 0);
    dr_sampler_destroy(sampler);
}

static void test_ties_go_to_the_lower_id(void **state) {
    (void)state;
    enum { MANY = 1000 };
    float logits[MANY];
    for (int i = 0; i < MANY; i++) logits[i] = i % 10 == 7 ? 3.25F : 1;
    dr_sampling sampling = dr_sampling_defaults();
    dr_choice choice;
    sampling.logprobs = true, sampling.top_logprobs = 5;
    for (int kind = 0; kind < 3; kind++) {
        sampling.temperature = kind == 0 ? 0 : 1;
        sampling.top_k = kind == 1 ? 1 : 0;
        sampling.top_p = kind == 2 ? 1e-9 : 1;
        dr_sampler *sampler = make(&sampling, MANY);
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        assert_int_equal(choice.id, 7);
        for (int i = 0; i < 5; i++) assert_int_equal(choice.top[i].id, 7 + 10 * i);
        dr_sampler_destroy(sampler);
    }
}

/* Weights 1, 8, 2, 4, 1, 0 of 16, whatever the options make of them. */
static void test_logprobs(void **state) {
    (void)state;
    const float logits[VOCABULARY] = {0, logf(8), logf(2), logf(4), 0, -INFINITY};
    static const int32_t order[] = {1, 3, 2, 0, 4, 5};
    static const double shares[] = {8, 4, 2, 1, 1, 0};
    dr_token_logprob top[VOCABULARY];
    double logprob;
    for (int32_t id = 0; id < VOCABULARY; id++) {
        assert_int_equal(dr_token_logprobs(logits, VOCABULARY, id, &logprob, top, VOCABULARY), DR_OK);
        for (int i = 0; i < VOCABULARY; i++) {
            assert_int_equal(top[i].id, order[i]);
            if (i < 5) assert_true(fabs(top[i].logprob - log(shares[i] / 16)) < 1e-6);
            if (top[i].id == id) assert_true(top[i].logprob == logprob);
        }
    }
    assert_true(isinf(logprob) && logprob < 0);
    assert_int_equal(dr_token_logprobs(logits, VOCABULARY, 6, &logprob, NULL, 0), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_token_logprobs(logits, VOCABULARY, -1, &logprob, NULL, 0), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_token_logprobs(logits, VOCABULARY, 0, &logprob, top, VOCABULARY + 1), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_token_logprobs((float[]){0, NAN}, 2, 0, &logprob, NULL, 0), DR_ERROR_NUMERIC);
    /* far from zero nothing is lost: the second is exp(-1) of the first */
    assert_int_equal(dr_token_logprobs((float[]){10000, 9999}, 2, 1, &logprob, NULL, 0), DR_OK);
    assert_true(fabs(logprob - (-1 - log1p(exp(-1)))) < 1e-12);

    dr_sampling sampling = dr_sampling_defaults();
    const dr_logit_bias bias[] = {{0, 50}};
    dr_choice choice;
    sampling.bias = bias, sampling.bias_count = 1, sampling.temperature = 0.5, sampling.top_k = 1;
    sampling.logprobs = true, sampling.top_logprobs = 2;
    dr_sampler *sampler = make(&sampling, VOCABULARY);
    assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
    assert_int_equal(choice.id, 0);
    assert_true(fabs(choice.logprob - log(1 / 16.)) < 1e-6 && choice.top_count == 2);
    assert_true(choice.top[0].id == 1 && choice.top[1].id == 3);
    sampling.top_logprobs = 20; /* more than there are ids: all */
    assert_int_equal(dr_sampler_restart(sampler, &sampling), DR_OK);
    assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
    assert_int_equal(choice.top_count, VOCABULARY);
    dr_sampler_destroy(sampler);
}

/* The likeliest are taken from a heap, and the draw is made among them in order: against sorting, at random. */
static int32_t choose_by_sorting(const dr_sampling *sampling, const float *logits, int64_t count, double uniform) {
    int32_t order[200];
    double weights[200], sum = 0, held = 0;
    int64_t kept = 0, most = sampling->top_k > 0 && sampling->top_k < count ? sampling->top_k : count;
    for (int32_t i = 0; i < count; i++) {
        int64_t place = i;
        for (; place > 0 && logits[order[place - 1]] < logits[i]; place--) order[place] = order[place - 1];
        order[place] = i;
    }
    for (int64_t i = 0; i < count; i++)
        weights[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / sampling->temperature);
    for (int64_t i = 0; i < most; i++) sum += weights[i];
    while (kept < most && (kept == 0 || held < sampling->top_p * sum) && weights[kept] >= sampling->min_p)
        held += weights[kept++];
    double passed = 0;
    for (int64_t i = 0; i < kept; i++)
        if ((passed += weights[i]) > uniform * held) return order[i];
    return order[0];
}

static void test_against_sorting(void **state) {
    (void)state;
    dr_random random = dr_random_start(3, 0);
    int64_t restricted = 0;
    for (int trial = 0; trial < 3000; trial++) {
        float logits[200];
        const int64_t count = 1 + (int64_t)dr_random_below(&random, 200);
        for (int64_t i = 0; i < count; i++) logits[i] = (float)dr_random_below(&random, 40) / 8; /* many are equal */
        dr_sampling sampling = dr_sampling_defaults();
        sampling.temperature = 0.1 + 2 * dr_random_uniform(&random);
        sampling.top_k = (int64_t)dr_random_below(&random, 2) * (int64_t)dr_random_below(&random, 300);
        sampling.top_p = 1 - 0.999 * dr_random_uniform(&random);
        sampling.min_p = (double)dr_random_below(&random, 2) * dr_random_uniform(&random);
        sampling.seed = (uint64_t)trial;
        dr_sampler *sampler = make(&sampling, count);
        dr_choice choice;
        assert_int_equal(dr_sampler_choose(sampler, logits, &choice), DR_OK);
        dr_random own = dr_random_start((uint64_t)trial, (uint64_t)5 << 56); /* the stream of sample 0 */
        assert_int_equal(choice.id, choose_by_sorting(&sampling, logits, count, dr_random_uniform(&own)));
        restricted += sampling.top_k > 0 && sampling.top_k < count;
        dr_sampler_destroy(sampler);
    }
    assert_true(restricted > 300);
}

static void test_extreme_logits(void **state) {
    (void)state;
    dr_sampling sampling = dr_sampling_defaults();
    const dr_logit_bias none[] = {{0, -INFINITY}, {1, -INFINITY}};
    dr_choice choice;
    sampling.temperature = 1e-3;
    dr_sampler *sampler = make(&sampling, 2);
    assert_int_equal(dr_sampler_choose(sampler, (float[]){1e30f, -1e30f}, &choice), DR_OK);
    assert_int_equal(choice.id, 0);
    assert_int_equal(dr_sampler_choose(sampler, (float[]){0, NAN}, &choice), DR_ERROR_NUMERIC);
    assert_non_null(strstr(dr_last_error(), "token 1"));
    assert_int_equal(dr_sampler_choose(sampler, (float[]){0, INFINITY}, &choice), DR_ERROR_NUMERIC);
    assert_int_equal(dr_sampler_choose(sampler, (float[]){-INFINITY, -INFINITY}, &choice), DR_ERROR_NUMERIC);
    sampling.bias = none, sampling.bias_count = 2;
    assert_int_equal(dr_sampler_restart(sampler, &sampling), DR_OK);
    assert_int_equal(dr_sampler_choose(sampler, (float[]){0, 0}, &choice), DR_ERROR_NUMERIC);
    assert_non_null(strstr(dr_last_error(), "leave no token"));
    dr_sampler_destroy(sampler);
}

#define REFUSED(change, part)                                                                                                  \
    do {                                                                                                                       \
        dr_sampling wrong = dr_sampling_defaults();                                                                            \
        change;                                                                                                                \
        assert_int_equal(dr_sampling_check(&wrong, 10), DR_ERROR_ARGUMENT);                                                    \
        assert_non_null(strstr(dr_last_error(), part));                                                                        \
        assert_int_equal(dr_sampler_restart(sampler, &wrong), DR_ERROR_ARGUMENT);                                              \
    } while (0)

static void test_options_that_cannot_be(void **state) {
    (void)state;
    const dr_sampling good = dr_sampling_defaults();
    dr_sampler *sampler = make(&good, 10);
    const dr_logit_bias outside[] = {{10, 1}}, twice[] = {{3, 1}, {3, 1}}, infinite[] = {{3, INFINITY}}, nan[] = {{3, NAN}};
    REFUSED(wrong.temperature = -0.5, "temperature is -0.5");
    REFUSED(wrong.temperature = NAN, "temperature is nan");
    REFUSED(wrong.top_k = -2, "top_k is -2");
    REFUSED(wrong.top_p = 0, "top_p is 0");
    REFUSED(wrong.top_p = 1.5, "top_p is 1.5");
    REFUSED(wrong.top_p = NAN, "top_p is nan");
    REFUSED(wrong.min_p = -0.1, "min_p is -0.1");
    REFUSED(wrong.min_p = 1.1, "min_p is 1.1");
    REFUSED(wrong.min_p = NAN, "min_p is nan");
    REFUSED(wrong.repetition_penalty = 0, "repetition_penalty is 0");
    REFUSED(wrong.repetition_penalty = NAN, "repetition_penalty is nan");
    REFUSED(wrong.presence_penalty = INFINITY, "presence_penalty is inf");
    REFUSED(wrong.frequency_penalty = NAN, "frequency_penalty is nan");
    REFUSED(wrong.sample = -1, "sample is -1");
    REFUSED(wrong.sample = (int64_t)1 << 56, "sample is 7205");
    REFUSED(wrong.top_logprobs = 1, "without logprobs");
    REFUSED((wrong.logprobs = true, wrong.top_logprobs = 101), "top_logprobs is 101");
    REFUSED((wrong.bias = outside, wrong.bias_count = 1), "names token 10: ids are from 0 to 9");
    REFUSED((wrong.bias = twice, wrong.bias_count = 2), "token 3 has two logit biases");
    REFUSED((wrong.bias = infinite, wrong.bias_count = 1), "the logit bias of token 3 is inf");
    REFUSED((wrong.bias = nan, wrong.bias_count = 1), "the logit bias of token 3 is nan");
    REFUSED(wrong.bias_count = 1, "bias_count is 1");
    dr_sampler_destroy(sampler);
    assert_int_equal(dr_sampler_create(0, &good, &sampler), DR_ERROR_ARGUMENT);
    assert_int_equal(dr_sampler_create((int64_t)1 << 40, &good, &sampler), DR_ERROR_ARGUMENT);
}

static dr_status make_and_choose(void *context) {
    dr_sampling sampling = dr_sampling_defaults();
    dr_sampler *sampler;
    dr_choice choice;
    (void)context;
    DR_TRY(dr_sampler_create(3, &sampling, &sampler));
    dr_status status = dr_sampler_choose(sampler, (float[]){0, 1, 2}, &choice);
    dr_sampler_destroy(sampler);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    assert_int_equal(assert_survives_failed_allocations(make_and_choose, NULL), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution_of_draws),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_ties_go_to_the_lower_id),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_against_sorting),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_options_that_cannot_be),

        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
