/* Parity of a row of bits (Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues", 2024): of
 * length n, n - 1 symbols 1 or 2 are shown, and the label at the last of them is 1 if the number of 2s is even, else 2. The
 * n-th place is that of the answer, which is not given; 0 pads and never comes up. */
#include "data/examples.h"

#include <stdio.h>

static dr_status create(const dr_generator_options *options, dr_example_size largest, dr_generator **generator) {
    (void)options, (void)largest;
    return dr_generator_create_plain(&dr_generator_parity, 3, generator);
}

static int64_t tokens(const dr_generator *generator, dr_example_size size) {
    (void)generator;
    return size.length - 1;
}

static void draw(dr_generator *generator, dr_random *random, dr_example_size size, dr_example *example) {
    int32_t odd = 0;
    (void)generator;
    for (int64_t t = 0; t < size.length - 1; t++) {
        const int32_t bit = (int32_t)dr_random_below(random, 2);
        example->ids[t] = 1 + bit;
        odd ^= bit;
    }
    example->positions[0] = size.length - 2;
    example->labels[0] = 1 + odd;
}

static void describe(const dr_generator *generator, char *text, size_t size) {
    (void)generator;
    snprintf(text, size, "parity of bits");
}

const dr_generator_kind dr_generator_parity = {.name = "parity",
                                               .lengths = "3-40",
                                               .held_out_lengths = "3-40 40-256",
                                               .shortest = 2,
                                               .step = 1,
                                               .create = create,
                                               .tokens = tokens,
                                               .targets = dr_generator_one_target,
                                               .draw = draw,
                                               .describe = describe,
                                               .destroy = dr_generator_release};
