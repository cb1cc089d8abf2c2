/* Arithmetic modulo 5 (Grazzi et al., 2024, after Deletang et al., "Neural Networks and the Chomsky Hierarchy", 2022): an
 * expression is shown, then "="; the label at "=" is its value. A length n counts the place of the answer.
 *
 * Without brackets, ids: 0 pads, 1 '+', 2 '-', 3 '*', 4 '=', 5 .. 9 the digits 0 .. 4. Digits and operators are uniform, and *
 * goes before + and -. n is odd: (n - 1)/2 digits.
 *
 * With brackets, ids: 0 .. 4 the digits, 5 '+', 6 '-', 7 '*', 8 '(', 9 ')', 10 '=', 11 pads. An expression of length 1 .. 4 is
 * d, -d, (d) or (-d); a longer one (L op R), L and R of lengths whose sum is 3 less, all splits alike, op + or -. The published
 * sequence has a pad after the answer, which n counts too: the expression has n - 3 tokens. */
#include "data/examples.h"

#include <stdio.h>

enum { MODULUS = 5 };

/* ---- without brackets ---- */

enum { PLUS = 1, MINUS, TIMES, EQUALS, DIGIT };

static dr_status create(const dr_generator_options *options, dr_example_size largest, dr_generator **generator) {
    (void)options, (void)largest;
    return dr_generator_create_plain(&dr_generator_arithmetic, 10, generator);
}

static int64_t tokens(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.length - 1;
}

static void draw(dr_generator *generator, dr_random *random, dr_example_size size, dr_example *example) {
    int64_t sum = 0, product = 1; /* of the terms before the one at hand; of that one so far */
    const int64_t end = size.length - 2;
    (void)generator;
    for (int64_t t = 0; t < end; t += 2) {
        const int64_t digit = (int64_t)dr_random_below(random, MODULUS);
        example->ids[t] = (int32_t)(DIGIT + digit);
        product = product * digit % MODULUS;
        if (t + 1 == end) break;
        const int32_t sign = PLUS + (int32_t)dr_random_below(random, 3);
        example->ids[t + 1] = sign;
        if (sign == TIMES) continue;
        sum = (sum + product) % MODULUS;
        product = sign == PLUS ? 1 : MODULUS - 1;
    }
    example->ids[end] = EQUALS;
    example->positions[0] = end;
    example->labels[0] = (int32_t)(DIGIT + (sum + product) % MODULUS);
}

static void describe(const dr_generator *generator, char *text, size_t size) {
    (void)generator;
    snprintf(text, size, "arithmetic modulo 5 without brackets");
}

const dr_generator_kind dr_generator_arithmetic = {.name = "arithmetic",
                                                   .lengths = "3-40",
                                                   .held_out_lengths = "3-40 40-256",
                                                   .shortest = 3,
                                                   .step = 2,
                                                   .create = create,
                                                   .tokens = tokens,
                                                   .targets = dr_generator_one_target,
                                                   .draw = draw,
                                                   .describe = describe,
                                                   .destroy = dr_generator_release};

/* ---- with brackets ---- */

enum { BRACKET_PLUS = 5, BRACKET_MINUS, OPEN = 8, CLOSE, BRACKET_EQUALS, LONGEST_EXPRESSION = 4096 };

static dr_status create_brackets(const dr_generator_options *options, dr_example_size largest, dr_generator **generator) {
    (void)options, (void)largest;
    return dr_generator_create_plain(&dr_generator_arithmetic_brackets, 12, generator);
}

static int64_t tokens_brackets(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.length - 2;
}

/* d, -d, (d) or (-d); returns the value. */
static int64_t draw_terminal(dr_random *random, int64_t length, int32_t *ids) {
    const int64_t digit = (int64_t)dr_random_below(random, MODULUS);
    const bool negative = length % 2 == 0;
    if (length > 2) *ids++ = OPEN;
    if (negative) *ids++ = BRACKET_MINUS;
    *ids++ = (int32_t)digit;
    if (length > 2) *ids = CLOSE;
    return negative ? (MODULUS - digit) % MODULUS : digit;
}

/* Returns the value. It goes no deeper than a quarter of the length: the longest is bounded. */
static int64_t draw_expression(dr_random *random, int64_t length, int32_t *ids) {
    if (length < 5) return draw_terminal(random, length, ids);
    const int64_t left = 1 + (int64_t)dr_random_below(random, (uint64_t)(length - 4)), right = length - 3 - left;
    const bool minus = dr_random_below(random, 2);
    ids[0] = OPEN;
    const int64_t first = draw_expression(random, left, ids + 1);
    ids[1 + left] = minus ? BRACKET_MINUS : BRACKET_PLUS;
    const int64_t second = draw_expression(random, right, ids + 2 + left);
    ids[length - 1] = CLOSE;
    return (first + (minus ? MODULUS - second : second)) % MODULUS;
}

static void draw_brackets(dr_generator *generator, dr_random *random, dr_example_size size, dr_example *example) {
    const int64_t length = size.length - 3;
    (void)generator;
    example->labels[0] = (int32_t)draw_expression(random, length, example->ids);
    example->ids[length] = BRACKET_EQUALS;
    example->positions[0] = length;
}

static void describe_brackets(const dr_generator *generator, char *text, size_t size) {
    (void)generator;
    snprintf(text, size, "arithmetic modulo 5 with brackets");
}

const dr_generator_kind dr_generator_arithmetic_brackets = {.name = "arithmetic_brackets",
                                                            .lengths = "5-40",
                                                            .held_out_lengths = "5-40 40-256",
                                                            .shortest = 5,
                                                            .longest = LONGEST_EXPRESSION,
                                                            .step = 1,
                                                            .create = create_brackets,
                                                            .tokens = tokens_brackets,
                                                            .targets = dr_generator_one_target,
                                                            .draw = draw_brackets,
                                                            .describe = describe_brackets,
                                                            .destroy = dr_generator_release};
