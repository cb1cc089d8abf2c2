/* Choosing tokens from logits: penalties, temperature, restriction to the likeliest, a draw; and their log-probabilities.
 *
 * Threads. A sampler is for one thread at a time; different ones may be used at once. */
#ifndef DELTARULE_SAMPLE_H
#define DELTARULE_SAMPLE_H

#include <deltarule/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DR_MOST_TOP_LOGPROBS = 100 };

typedef struct {
    int32_t id;
    double bias; /* added to the logit of this token; finite, or -infinity: never this token */
} dr_logit_bias;

/* In this order: 1. biases are added to the logits l. 2. A token that occurred in the prompt or the answer gets l / r if l > 0,
 * else l r, with the repetition penalty r (Keskar et al. 2019, CTRL, section 4.1). 3. A token that occurred n > 0 times in the
 * answer loses presence + n frequency. 4. Weights are exp(l / temperature). 5. Of the top_k likeliest stay the fewest that hold
 * top_p of their sum, and of these the ones that weigh at least min_p times the likeliest. 6. One is drawn by weight.
 * Temperature 0: the largest l instead of 4 to 6. Of equals the lower id comes first everywhere. */
typedef struct {
    double temperature;        /* from 0 to 1e6; 1 leaves the model's distribution */
    int64_t top_k;             /* 0: all */
    double top_p;              /* in (0, 1]; 1: all */
    double min_p;              /* in [0, 1]; 0: all */
    double repetition_penalty; /* > 0; 1: none */
    double presence_penalty;   /* finite; 0: none */
    double frequency_penalty;  /* finite; 0: none */
    const dr_logit_bias *bias; /* [bias_count], no id twice; the caller keeps them while the sampler is used */
    int64_t bias_count;
    uint64_t seed;
    int64_t sample;       /* from 0 to 2^56 - 1: which of the texts that the seed gives */
    bool logprobs;        /* tell the log-probability of the token that was chosen, and of the likeliest: */
    int64_t top_logprobs; /* so many, at most DR_MOST_TOP_LOGPROBS */
} dr_sampling;

/* Nothing restricted: temperature 1, top_p 1, no penalties, seed 0. */
DR_API dr_sampling dr_sampling_defaults(void);

/* Whether these are options for a vocabulary of so many ids: DR_ERROR_ARGUMENT names the one that cannot be. */
DR_API dr_status dr_sampling_check(const dr_sampling *sampling, int64_t vocabulary);

typedef struct {
    int32_t id;
    double logprob; /* natural logarithm of the probability */
} dr_token_logprob;

/* The log-probability that logits [vocabulary] give to `id`, and the `top_count` likeliest ids, from the likeliest on, with
 * theirs: logits less the logarithm of the sum of their exponentials, computed in double. A token that is the likeliest has the
 * same double in both. top NULL with top_count 0. DR_ERROR_ARGUMENT; DR_ERROR_NUMERIC if a logit is not a number or none is
 * finite. */
DR_API dr_status dr_token_logprobs(const float *logits, int64_t vocabulary, int32_t id, double *logprob, dr_token_logprob *top,
                                   int64_t top_count);

/* What is drawn. Log-probabilities are of the model: of the logits as they came in. */
typedef struct {
    int32_t id;
    double logprob;              /* 0 unless asked for */
    const dr_token_logprob *top; /* [top_count]; valid until the sampler's next call */
    int64_t top_count;
} dr_choice;

/* The random numbers of one text, and what occurred in it. All memory is taken when it is made. */
typedef struct dr_sampler dr_sampler;

/* vocabulary: ids that can be drawn, which may be fewer than a model has. Errors as dr_sampling_check. */
DR_API dr_status dr_sampler_create(int64_t vocabulary, const dr_sampling *sampling, dr_sampler **sampler);
DR_API void dr_sampler_destroy(dr_sampler *sampler); /* NULL is allowed */
/* As new, with other options, and without taking memory. Errors as dr_sampling_check, which leave it as it was. */
DR_API dr_status dr_sampler_restart(dr_sampler *sampler, const dr_sampling *sampling);
/* Ids of the prompt, for the repetition penalty; those outside of the vocabulary are passed over. */
DR_API dr_status dr_sampler_read(dr_sampler *sampler, const int32_t *ids, int64_t count);
/* The next token from logits [vocabulary], which becomes part of the answer. One uniform number is drawn unless the temperature
 * is 0, so that a text does not depend on which others are made beside it. DR_ERROR_NUMERIC if a logit is not a number, none is
 * finite, or biases leave no token. */
DR_API dr_status dr_sampler_choose(dr_sampler *sampler, const float *logits, dr_choice *choice);

#ifdef __cplusplus
}
#endif
#endif
