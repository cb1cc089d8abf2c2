/* The base: messages, memory, random numbers, 16-bit floats, processor features, tensors and layouts. */
#include "allocation.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/random.h"

#include <deltarule/tensor.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* messages */

static void *message_of_fresh_thread(void *context) {
    bool *right = context;
    *right = strcmp(dr_last_error(), "") == 0;
    dr_fail(DR_ERROR_IO, "the other thread's");
    return NULL;
}

static void test_messages(void **state) {
    (void)state;
    assert_int_equal(dr_fail(DR_ERROR_FORMAT, "%d is %s", 7, "odd"), DR_ERROR_FORMAT);
    assert_string_equal(dr_last_error(), "7 is odd");
    assert_int_equal(dr_fail_in(DR_ERROR_IO, "file %s", "a.json"), DR_ERROR_IO);
    assert_string_equal(dr_last_error(), "file a.json: 7 is odd");
    dr_fail(DR_ERROR_IO, "<%s>", dr_last_error());
    assert_string_equal(dr_last_error(), "<file a.json: 7 is odd>");
    dr_fail_in(DR_ERROR_IO, "[%s]", dr_last_error());
    assert_string_equal(dr_last_error(), "[<file a.json: 7 is odd>]: <file a.json: 7 is odd>");

    /* names may hold anything: no message makes a terminal do something, and none is cut within a character */
    dr_fail(DR_ERROR_IO, "%s", "a\x1b[31m\n\t\x7f\xff\xc3\xa9\xc2\x9b\xe2\x82\xac\\x07");
    assert_string_equal(dr_last_error(), "a\\x1b[31m\\x0a\\x09\\x7f\\xff\xc3\xa9\\xc2\\x9b\xe2\x82\xac\\x07");
    dr_fail_in(DR_ERROR_IO, "b\x1b");
    assert_string_equal(dr_last_error(), "b\\x1b: a\\x1b[31m\\x0a\\x09\\x7f\\xff\xc3\xa9\\xc2\\x9b\xe2\x82\xac\\x07");
    char longest[3000];
    for (int i = 0; i < 2997; i++) longest[i] = "\xe2\x82\xac"[i % 3];
    longest[2997] = '\0';
    dr_fail(DR_ERROR_IO, "%s", longest);
    assert_in_range(strlen(dr_last_error()), 1000, 1023);
    assert_memory_equal(dr_last_error(), longest, 1014);

    pthread_t thread;
    bool right = false;
    dr_fail(DR_ERROR_IO, "this thread's");
    assert_int_equal(pthread_create(&thread, NULL, message_of_fresh_thread, &right), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(right);
    assert_string_equal(dr_last_error(), "this thread's");
}

static void test_long_messages_lose_their_end(void **state) {
    (void)state;
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    dr_fail(DR_ERROR_ARGUMENT, "%s", text);
    size_t most = strlen(dr_last_error());
    assert_in_range(most, 500, 4000);
    dr_fail_in(DR_ERROR_ARGUMENT, "tensor %d", 12);
    assert_int_equal(strlen(dr_last_error()), most);
    assert_int_equal(strncmp(dr_last_error(), "tensor 12: xxx", 14), 0);
    dr_fail_in(DR_ERROR_ARGUMENT, "%s", text);
    assert_true(strlen(dr_last_error()) <= most);
    assert_non_null(strstr(dr_last_error(), ": tensor 12: x"));
}

static dr_status passes_on(dr_status status, int *reached) {
    DR_TRY(status);
    ++*reached;
    return DR_OK;
}

static dr_status goes_to_done(dr_status first, int *reached) {
    dr_status status;
    DR_GO(first);
    ++*reached;
done:
    return status;
}

static void test_passing_failures_on(void **state) {
    (void)state;
    int reached = 0;
    assert_int_equal(passes_on(DR_ERROR_NUMERIC, &reached), DR_ERROR_NUMERIC);
    assert_int_equal(goes_to_done(DR_ERROR_NUMERIC, &reached), DR_ERROR_NUMERIC);
    assert_int_equal(reached, 0);
    assert_int_equal(passes_on(DR_OK, &reached), DR_OK);
    assert_int_equal(goes_to_done(DR_OK, &reached), DR_OK);
    assert_int_equal(reached, 2);
}

static void test_names_of_statuses(void **state) {
    (void)state;
    static const char *const names[] = {"DR_OK",           "DR_ERROR_ARGUMENT", "DR_ERROR_UNSUPPORTED", "DR_ERROR_MEMORY",
                                        "DR_ERROR_IO",     "DR_ERROR_FORMAT",   "DR_ERROR_NUMERIC",     "DR_ERROR_INTERRUPTED",
                                        "DR_ERROR_DEVICE", "unknown status"};
    for (int i = 0; i < 10; i++) assert_string_equal(dr_status_name((dr_status)i), names[i]);
    int major, minor, patch;
    char end;
    assert_int_equal(sscanf(dr_version(), "%d.%d.%d%c", &major, &minor, &patch, &end), 3);
}

/* memory */

static void test_allocation(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = NULL;
        assert_int_equal(dr_allocate(sizes[i], "numbers", &memory), DR_OK);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        memset(memory, 1, sizes[i]);
        dr_release(memory);
        assert_int_equal(dr_allocate_zero(sizes[i], "numbers", &memory), DR_OK);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(((char *)memory)[j], 0);
        dr_release(memory);
    }
    dr_release(NULL);
    assert_int_equal(allocation_alive, 0);
}

static void test_allocation_of_too_much(void **state) {
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, (size_t)PTRDIFF_MAX + 1};
    int here;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = &here;
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%zu bytes", sizes[i]);
        assert_int_equal(dr_allocate(sizes[i], "the logits", &memory), DR_ERROR_MEMORY);
        assert_ptr_equal(memory, &here);
        assert_non_null(strstr(dr_last_error(), "the logits"));
        assert_non_null(strstr(dr_last_error(), bytes));
        assert_int_equal(dr_allocate_zero(sizes[i], "the logits", &memory), DR_ERROR_MEMORY);
        assert_ptr_equal(memory, &here);
    }
    assert_int_equal(allocation_alive, 0);
}

static void test_resize(void **state) {
    (void)state;
    void *memory = NULL;
    assert_int_equal(dr_resize(&memory, 0, 100, "a list"), DR_OK);
    for (int i = 0; i < 100; i++) ((char *)memory)[i] = (char)i;
    assert_int_equal(dr_resize(&memory, 100, 5000, "a list"), DR_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(((char *)memory)[i], i);
    void *before = memory;
    assert_int_equal(dr_resize(&memory, 5000, SIZE_MAX, "a list"), DR_ERROR_MEMORY);
    assert_non_null(strstr(dr_last_error(), "a list"));
    assert_ptr_equal(memory, before);
    assert_int_equal(dr_resize(&memory, 5000, 10, "a list"), DR_OK);
    for (int i = 0; i < 10; i++) assert_int_equal(((char *)memory)[i], i);
    assert_int_equal(dr_resize(&memory, 10, 0, "a list"), DR_OK);
    assert_non_null(memory);
    dr_release(memory);
    assert_int_equal(allocation_alive, 0);
}

static void test_copy_of_a_string(void **state) {
    (void)state;
    char text[] = "delta", *copy = NULL;
    assert_int_equal(dr_copy_string(text, &copy), DR_OK);
    text[0] = 'D';
    assert_string_equal(copy, "delta");
    dr_release(copy);
    assert_int_equal(dr_copy_string("", &copy), DR_OK);
    assert_string_equal(copy, "");
    dr_release(copy);
}

static void test_product(void **state) {
    (void)state;
    int64_t product = -1, big = INT64_C(1) << 32;
    assert_true(dr_product(NULL, 0, &product));
    assert_int_equal(product, 1);
    assert_true(dr_product((int64_t[]){3, 5, 7}, 3, &product));
    assert_int_equal(product, 105);
    assert_true(dr_product((int64_t[]){big, big / 4 * 2 - 1}, 2, &product));
    assert_int_equal(product, INT64_MAX - (big - 1));
    assert_true(dr_product((int64_t[]){INT64_MAX, 1}, 2, &product));
    assert_int_equal(product, INT64_MAX);
    assert_true(dr_product((int64_t[]){big, big, big, 0}, 4, &product));
    assert_int_equal(product, 0);
    product = -1;
    assert_false(dr_product((int64_t[]){big, big / 2}, 2, &product));
    assert_false(dr_product((int64_t[]){big, big, big, big}, 4, &product)); /* 2^128 wraps to 0 */
    assert_false(dr_product((int64_t[]){2, -1}, 2, &product));
    assert_false(dr_product((int64_t[]){0, -1}, 2, &product));
    assert_int_equal(product, -1);
}

/* Takes three parts, gives the last back and takes a smaller one. */
static void take_parts(dr_arena *arena, void *parts[4]) {
    parts[0] = dr_arena_take(arena, 1);
    parts[1] = dr_arena_take(arena, 0);
    size_t used = arena->used;
    parts[2] = dr_arena_take(arena, 64);
    dr_arena_rewind(arena, used);
    parts[3] = dr_arena_take(arena, 10);
}

static void test_arena(void **state) {
    (void)state;
    dr_arena plan = {0};
    void *parts[4], *block = NULL;
    take_parts(&plan, parts);
    for (int i = 0; i < 4; i++) assert_null(parts[i]);
    assert_int_equal(plan.used, 128);
    assert_int_equal(plan.peak, 128);
    assert_int_equal(dr_allocate(plan.peak, "an arena", &block), DR_OK);
    dr_arena arena = {.block = block};
    take_parts(&arena, parts);
    assert_ptr_equal(parts[0], block);
    assert_ptr_equal(parts[1], (char *)block + 64);
    assert_ptr_equal(parts[2], (char *)block + 64);
    assert_ptr_equal(parts[3], (char *)block + 64);
    assert_int_equal(arena.peak, plan.peak);
    dr_arena_rewind(&arena, 0);
    assert_int_equal(arena.used, 0);
    assert_int_equal(arena.peak, 128);
    dr_release(block);
}

static void test_arena_saturates(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{SIZE_MAX, 0}, {SIZE_MAX - 10, 1}, {SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1}, {64, SIZE_MAX}};
    for (int i = 0; i < 4; i++) {
        dr_arena plan = {0};
        void *block = NULL;
        dr_arena_take(&plan, sizes[i][0]);
        dr_arena_take(&plan, sizes[i][1]);
        dr_arena_take(&plan, 64);
        assert_int_equal(plan.peak, SIZE_MAX);
        assert_int_equal(dr_allocate(plan.peak, "an arena", &block), DR_ERROR_MEMORY);
    }
}

static dr_status makes_three(void *context) {
    (void)context;
    void *first = NULL, *second = NULL;
    char *third = NULL;
    dr_status status;
    DR_GO(dr_allocate(10, "first", &first));
    DR_GO(dr_allocate_zero(10, "second", &second));
    DR_GO(dr_copy_string("third", &third));
    DR_GO(dr_resize(&first, 10, 20, "more"));
done:
    dr_release(first);
    dr_release(second);
    dr_release(third);
    return status;
}

static void test_failing_allocations_one_by_one(void **state) {
    (void)state;
    assert_int_equal(assert_survives_failed_allocations(makes_three, NULL), 4);
}

/* random numbers */

/* Known answers of the Random123 distribution (kat_vectors, philox4x32, 10 rounds). */
static void test_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t words[4];
        dr_random_philox(known[i].counter, known[i].key, words);
        for (int j = 0; j < 4; j++) assert_int_equal(words[j], known[i].words[j]);
    }
}

/* Word i is word i mod 4 of block i / 4, wherever a draw begins and however many words it takes. */
static void test_random_positions(void **state) {
    (void)state;
    uint64_t seed = 0x0123456789abcdef, stream = 0xfedcba9876543210;
    uint32_t words[40];
    for (uint32_t block = 0; block < 10; block++) {
        uint32_t counter[4] = {block, 0, 0x76543210, 0xfedcba98}, key[2] = {0x89abcdef, 0x01234567};
        dr_random_philox(counter, key, words + 4 * block);
    }
    dr_random random = dr_random_start(seed, stream);
    for (int i = 0; i < 40; i++) assert_int_equal(dr_random_word(&random), words[i]);
    assert_int_equal(random.drawn, 40);
    for (int begin = 0; begin < 4; begin++) {
        random = (dr_random){seed, stream, (uint64_t)begin};
        for (int i = begin; i + 2 <= 40; i += 2) {
            uint64_t bits = (uint64_t)words[i + 1] << 32 | words[i];
            assert_true(dr_random_uniform(&random) == (double)(bits >> 11) / 9007199254740992.0);
        }
        random = (dr_random){seed, stream, (uint64_t)begin};
        dr_random_normal(&random);
        assert_int_equal(random.drawn, begin + 4);
        assert_int_equal(dr_random_word(&random), words[begin + 4]);
    }
    random = (dr_random){seed, stream, (UINT64_C(1) << 34) + 3}; /* block 2^32: the counter's second word is 1 */
    uint32_t counter[4] = {0, 1, 0x76543210, 0xfedcba98}, key[2] = {0x89abcdef, 0x01234567};
    dr_random_philox(counter, key, words);
    assert_int_equal(dr_random_word(&random), words[3]);
}

static void test_random_streams_differ(void **state) {
    (void)state;
    dr_random first = dr_random_start(1, 0), again = first, seed = dr_random_start(2, 0), stream = dr_random_start(1, 1);
    int same_seed = 0, same_stream = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t word = dr_random_word(&first);
        assert_int_equal(word, dr_random_word(&again));
        same_seed += word == dr_random_word(&seed);
        same_stream += word == dr_random_word(&stream);
    }
    assert_true(same_seed <= 1 && same_stream <= 1);
}

enum { DRAWS = 200000, BINS = 50 };

/* chi-square with 49 degrees of freedom is within (20, 95) but for one in ten thousand; the draws are fixed */
static void assert_even(const int counts[BINS]) {
    double expected = (double)DRAWS / BINS, chi_square = 0;
    for (int i = 0; i < BINS; i++) chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    assert_true(chi_square > 20 && chi_square < 95);
}

static void test_uniform_is_even(void **state) {
    (void)state;
    dr_random random = dr_random_start(42, 7);
    int counts[BINS] = {0}, pairs[BINS] = {0};
    double sum = 0, before = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x = dr_random_uniform(&random);
        assert_true(x >= 0 && x < 1);
        counts[(int)(x * BINS)]++;
        pairs[(int)(fmod(x + before, 1) * BINS)]++; /* of independent neighbours the sum modulo 1 is even too */
        before = x;
        sum += x;
    }
    assert_even(counts);
    assert_even(pairs);
    assert_true(fabs(sum / DRAWS - 0.5) < 4 / sqrt(12.0 * DRAWS));
}

static void test_below_is_even(void **state) {
    (void)state;
    dr_random random = dr_random_start(43, 7);
    int counts[BINS] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint64_t x = dr_random_below(&random, BINS);
        assert_true(x < BINS);
        counts[x]++;
    }
    assert_even(counts);
    assert_int_equal(dr_random_below(&random, 1), 0);
    /* with 3/4 of 2^64 a plain remainder would fall below a quarter half of the time instead of a third */
    uint64_t bound = UINT64_C(3) << 62, low = 0;
    for (int i = 0; i < DRAWS; i++) {
        uint64_t x = dr_random_below(&random, bound);
        assert_true(x < bound);
        low += x < UINT64_C(1) << 62;
    }
    assert_true(fabs((double)low / DRAWS - 1.0 / 3) < 4 * sqrt(2.0 / 9 / DRAWS));
}

static void test_normal_moments(void **state) {
    (void)state;
    dr_random random = dr_random_start(44, 7);
    double moments[5] = {0};
    for (int i = 0; i < DRAWS; i++) {
        double x = dr_random_normal(&random), power = 1;
        assert_true(isfinite(x));
        for (int k = 1; k <= 4; k++) moments[k] += (power *= x) / DRAWS;
    }
    double root = sqrt(DRAWS); /* four standard errors of each moment */
    assert_true(fabs(moments[1]) < 4 / root);
    assert_true(fabs(moments[2] - 1) < 4 * sqrt(2) / root);
    assert_true(fabs(moments[3]) < 4 * sqrt(15) / root);
    assert_true(fabs(moments[4] - 3) < 4 * sqrt(96) / root);
}

/* 16-bit floats */

typedef struct {
    float (*to_float)(uint16_t);
    uint16_t (*from_float)(float);
    int fraction_bits, exponent_bits;
} half_format;

static const half_format formats[] = {{dr_bf16_to_float, dr_bf16_from_float, 7, 8},
                                      {dr_f16_to_float, dr_f16_from_float, 10, 5}};

/* The value by definition: sign (1 + fraction) 2^(exponent - bias). */
static double half_value(const half_format *format, unsigned half) {
    unsigned fraction = half & ((1u << format->fraction_bits) - 1), top = (1u << format->exponent_bits) - 1;
    unsigned exponent = half >> format->fraction_bits & top;
    int bias = (int)top / 2;
    double magnitude = exponent == top && fraction ? NAN
                       : exponent == top           ? INFINITY
                       : exponent == 0
                           ? ldexp(fraction, 1 - bias - format->fraction_bits)
                           : ldexp(fraction + (1u << format->fraction_bits), (int)exponent - bias - format->fraction_bits);
    return half >> 15 ? -magnitude : magnitude;
}

static void test_every_half_converts_and_returns(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++)
        for (unsigned half = 0; half < 65536; half++) {
            double value = half_value(&formats[f], half);
            float converted = formats[f].to_float((uint16_t)half);
            unsigned back = formats[f].from_float(converted), quiet = 1u << (formats[f].fraction_bits - 1);
            if (isnan(value)) {
                assert_true(isnan(converted));
                assert_int_equal(back, half | quiet);
            } else {
                assert_true(converted == value);
                assert_int_equal(signbit(converted) != 0, half >> 15);
                assert_int_equal(back, half);
            }
        }
}

/* Between two neighbours the middle goes to the even one and its own neighbours to the nearer; beyond the largest as if the
 * next power of two were a number. */
static void test_half_rounding(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        const half_format *format = &formats[f];
        unsigned infinity = ((1u << format->exponent_bits) - 1) << format->fraction_bits;
        for (unsigned half = 0; half < infinity; half++) {
            double low = half_value(format, half), step = low - half_value(format, half - 1);
            double high = half + 1 < infinity ? half_value(format, half + 1) : low + step;
            float middle = (float)(low / 2 + high / 2);
            unsigned even = half % 2 == 0 ? half : half + 1;
            assert_int_equal(format->from_float(middle), even);
            assert_int_equal(format->from_float(-middle), even | 0x8000u);
            assert_int_equal(format->from_float(nextafterf(middle, 0)), half);
            assert_int_equal(format->from_float(nextafterf(middle, INFINITY)), half + 1);
        }
        assert_int_equal(format->from_float(FLT_MAX), infinity);
        assert_int_equal(format->from_float(-FLT_MAX), infinity | 0x8000u);
        assert_int_equal(format->from_float(FLT_TRUE_MIN), 0);
        assert_true(isnan(format->to_float(format->from_float(dr_float_of_bits(0x7f800001u)))));
        assert_true(isnan(format->to_float(format->from_float(dr_float_of_bits(0xffffffffu)))));
    }
}

/* processor */

static bool has_flag(const char *flags, const char *name) {
    size_t length = strlen(name);
    for (const char *at = flags; (at = strstr(at, name)); at += length)
        if (at[-1] == ' ' && (at[length] == ' ' || at[length] == '\n')) return true;
    return false;
}

/* Linux lists only what it lets programs use, so its list and ours must agree. */
static void test_processor_features(void **state) {
    (void)state;
    static char text[1 << 16];
    FILE *file = fopen("/proc/cpuinfo", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char *flags = strstr(text, "\nflags");
    dr_cpu_features features = dr_cpu_detect();
#if !defined(__x86_64__)
    flags = NULL; /* under qemu-user they are those of the host */
#endif
    if (!flags) { /* not an x86 processor */
        assert_false(features.avx2 || features.avx512);
        return;
    }
    flags += 1;
    char *end = strchr(flags, '\n');
    assert_non_null(end);
    end[1] = '\0';
    bool avx2 = has_flag(flags, "avx2") && has_flag(flags, "fma") && has_flag(flags, "f16c");
    bool avx512 = avx2 && has_flag(flags, "avx512f") && has_flag(flags, "avx512bw") && has_flag(flags, "avx512dq") &&
                  has_flag(flags, "avx512vl");
    assert_int_equal(features.avx2, avx2);
    assert_int_equal(features.avx512, avx512);
}

/* tensors and layouts */

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        dr_dtype dtype;
        size_t size;
        const char *name;
    } types[] = {{DR_F32, 4, "F32"}, {DR_F64, 8, "F64"}, {DR_F16, 2, "F16"}, {DR_BF16, 2, "BF16"},
                 {DR_I32, 4, "I32"}, {DR_I64, 8, "I64"}, {DR_U8, 1, "U8"},   {(dr_dtype)99, 0, "unknown type"}};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(dr_dtype_size(types[i].dtype), types[i].size);
        assert_string_equal(dr_dtype_name(types[i].dtype), types[i].name);
    }
    assert_int_equal(dr_tensor_count(&(dr_tensor){.rank = 0, .shape = {5}}), 1);
    assert_int_equal(dr_tensor_count(&(dr_tensor){.rank = 3, .shape = {5, 2, 3, 7}}), 30);
    assert_int_equal(dr_tensor_count(&(dr_tensor){.rank = 2, .shape = {5, 0}}), 0);
}

static void test_good_layouts(void **state) {
    (void)state;
    dr_layout equal = {.sequences = 3, .rows = 12};
    assert_int_equal(dr_layout_check(&equal), DR_OK);
    for (int64_t i = 0; i <= 3; i++) assert_int_equal(dr_layout_begin(&equal, i), 4 * i);
    dr_layout empty = {.sequences = 2, .rows = 0};
    assert_int_equal(dr_layout_check(&empty), DR_OK);
    assert_int_equal(dr_layout_begin(&empty, 2), 0);
    static const int64_t begins[] = {0, 0, 5, 5, 6, 6};
    dr_layout packed = {.sequences = 5, .rows = 6, .cu_seqlens = begins};
    assert_int_equal(dr_layout_check(&packed), DR_OK);
    for (int64_t i = 0; i <= 5; i++) assert_int_equal(dr_layout_begin(&packed, i), begins[i]);
}

static void test_bad_layouts(void **state) {
    (void)state;
    static const int64_t from_one[] = {1, 2, 4}, negative[] = {-1, 2, 4}, falling[] = {0, 3, 2, 4}, fall_at_end[] = {0, 5, 4};
    static const int64_t short_of[] = {0, 2, 3}, beyond[] = {0, 2, 5};
    static const struct {
        dr_layout layout;
        const char *message;
    } bad[] = {
        {{0, 4, NULL}, "0 sequences"},
        {{-2, 4, NULL}, "-2 sequences"},
        {{0, 0, short_of}, "0 sequences"},
        {{1, -3, NULL}, "-3 rows"},
        {{1, -3, short_of}, "-3 rows"},
        {{3, 4, NULL}, "4 rows cannot be 3 sequences"},
        {{2, 4, from_one}, "cu_seqlens[0] is 1"},
        {{2, 4, negative}, "cu_seqlens[0] is -1"},
        {{3, 4, falling}, "falls from 3 to 2 at sequence 1"},
        {{2, 4, fall_at_end}, "falls from 5 to 4 at sequence 1"},
        {{2, 4, short_of}, "ends at 3"},
        {{2, 4, beyond}, "ends at 5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dr_layout_check(&bad[i].layout), DR_ERROR_ARGUMENT);
        assert_non_null(strstr(dr_last_error(), bad[i].message));
    }
    assert_int_equal(dr_layout_check(NULL), DR_ERROR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_long_messages_lose_their_end),
        cmocka_unit_test(test_passing_failures_on),
        cmocka_unit_test(test_names_of_statuses),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_allocation_of_too_much),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_copy_of_a_string),
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_saturates),
        cmocka_unit_test(test_failing_allocations_one_by_one),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_random_positions),
        cmocka_unit_test(test_random_streams_differ),
        cmocka_unit_test(test_uniform_is_even),
        cmocka_unit_test(test_below_is_even),
        cmocka_unit_test(test_normal_moments),
        cmocka_unit_test(test_every_half_converts_and_returns),
        cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_processor_features),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_good_layouts),
        cmocka_unit_test(test_bad_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
