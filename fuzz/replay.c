/* Runs a fuzzer without libFuzzer: the files named on the command line as they are, then mutations of them, the same ones on
 * every machine. `fuzz_NAME COUNT FILE...`
 *
 * Most mutations keep the length, because the formats carry lengths and a wrong one is refused before anything else is read.
 * Positions lean towards the beginning of a file, where headers are. */
#include "base/random.h"
#include "fuzz.h"

#include <string.h>

typedef struct {
    uint8_t *bytes;
    size_t size;
} seed;

static seed read_seed(const char *path) {
    seed result = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    result.size = (size_t)ftell(file);
    result.bytes = malloc(result.size + 1);
    rewind(file);
    if (!result.bytes || fread(result.bytes, 1, result.size, file) != result.size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return result;
}

/* Small positions are likelier. */
static size_t position(dr_random *random, size_t size) {
    return dr_random_below(random, dr_random_below(random, size) + 1);
}

static void mutate(dr_random *random, uint8_t *bytes, size_t *size) {
    static const char characters[] = "0123456789-.eE\"\\[]{}:, \x00\x1f\x7f\xff";
    size_t at = position(random, *size), other = position(random, *size);
    size_t furthest = at > other ? at : other, length = 1 + dr_random_below(random, 24);
    if (length > *size - furthest) length = *size - furthest;
    switch (dr_random_below(random, 8)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << dr_random_below(random, 8));
        break;
    case 1:
        bytes[at] = (uint8_t)dr_random_word(random);
        break;
    case 2: /* a piece over another: names and numbers change places */
        memmove(bytes + at, bytes + other, length);
        break;
    case 3:
        *size = at + 1;
        break;
    case 4: /* the nearest digit after here becomes another */
        while (at + 1 < *size && (bytes[at] < '0' || bytes[at] > '9')) at++;
        bytes[at] = (uint8_t)('0' + dr_random_below(random, 10));
        break;
    default:
        bytes[at] = (uint8_t)characters[dr_random_below(random, sizeof characters - 1)];
    }
}

/* A block of exactly that size, so that a sanitizer sees a read behind it. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (!copy) exit(1);
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: %s COUNT FILE...\n", arguments[0]);
        return 2;
    }
    long mutations = strtol(arguments[1], NULL, 10);
    for (int f = 2; f < count; f++) {
        seed original = read_seed(arguments[f]);
        uint8_t *changed = malloc(original.size + 1);
        run(original.bytes, original.size);
        for (long m = 0; m < mutations && changed && original.size > 0; m++) {
            dr_random random = dr_random_start((uint64_t)f, (uint64_t)m);
            size_t size = original.size;
            memcpy(changed, original.bytes, size);
            for (uint64_t times = 1 + dr_random_below(&random, 4); times > 0; times--) mutate(&random, changed, &size);
            run(changed, size);
        }
        free(changed);
        free(original.bytes);
    }
    printf("%d files, %ld mutations each\n", count - 2, mutations);
    return 0;
}
