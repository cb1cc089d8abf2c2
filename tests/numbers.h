/* Random operands for tests: sizes, tensors and layouts from one seeded generator, all released together. */
#ifndef DR_TESTS_NUMBERS_H
#define DR_TESTS_NUMBERS_H

#include "base/random.h"

#include <deltarule/tensor.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

static dr_random numbers_random = {.seed = 20240606, .stream = 0, .drawn = 0};
static void *numbers_blocks[1024];
static int numbers_count;

static inline void *numbers_block(int64_t count, size_t size) {
    assert_in_range(numbers_count, 0, 1023);
    void *block = malloc(count > 0 ? (size_t)count * size : 1);
    assert_non_null(block);
    numbers_blocks[numbers_count++] = block;
    return block;
}

static inline void numbers_release(void) {
    while (numbers_count > 0) free(numbers_blocks[--numbers_count]);
}

static inline int64_t number_between(int64_t least, int64_t most) {
    return least + (int64_t)dr_random_below(&numbers_random, (uint64_t)(most - least + 1));
}

static inline bool number_flip(void) {
    return dr_random_below(&numbers_random, 2) == 1;
}

static inline double *numbers_filled(int64_t count, double value) {
    double *numbers = numbers_block(count, sizeof(double));
    for (int64_t i = 0; i < count; i++) numbers[i] = value;
    return numbers;
}

static inline double *numbers_normal(int64_t count, double deviation) {
    double *numbers = numbers_block(count, sizeof(double));
    for (int64_t i = 0; i < count; i++) numbers[i] = deviation * dr_random_normal(&numbers_random);
    return numbers;
}

static inline double *numbers_copied(const double *from, int64_t count) {
    double *numbers = numbers_block(count, sizeof(double));
    if (count > 0) memcpy(numbers, from, (size_t)count * sizeof(double));
    return numbers;
}

static inline void assert_same_bits(const double *one, const double *other, int64_t count) {
    if (count > 0) assert_memory_equal(one, other, (size_t)count * sizeof(double));
}

/* One to four sequences of none to most tokens each, packed; or of equal lengths. */
static inline dr_layout layout_drawn(int64_t most) {
    int64_t sequences = number_between(1, 4);
    if (number_flip()) return (dr_layout){.sequences = sequences, .rows = sequences * number_between(1, most)};
    int64_t *begins = numbers_block(sequences + 1, sizeof(int64_t));
    begins[0] = 0;
    for (int64_t i = 0; i < sequences; i++) begins[i + 1] = begins[i] + (number_flip() ? 0 : number_between(1, most));
    return (dr_layout){.sequences = sequences, .rows = begins[sequences], .cu_seqlens = begins};
}

#endif
