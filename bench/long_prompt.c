/* A prompt of a million tokens through a gdn model, in pieces, as a server reads it: the time per token and the memory of each
 * tenth. What a recurrence remembers does not grow, so that neither may: the last tenth takes at most 1.10 times as long as the
 * first one, and the process has at most 4 MiB more than behind the first one. Random weights and ids; a token is wanted at the
 * end, so that all of the prompt counts. Pieces are multiples of the pool's grain, so that nothing is read twice; the number of
 * tokens is rounded up to whole pieces.
 *     bench-long_prompt TOKENS [THREADS [HIDDEN [LAYERS]]] */
#include "base/clock.h"

#include <deltarule/pool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCABULARY = 1024, PIECE = 512, TENTHS = 10, HEAD_SIZE = 64, MIB = 1 << 20, MOST_GROWTH = 4 * MIB };
static const double MOST_SLOWER = 1.10;

static void check(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "long_prompt: %s\n", dr_last_error());
    exit(1);
}

/* Bytes of this process that are in memory. */
static double resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*s %ld", &pages) != 1) {
        fprintf(stderr, "long_prompt: cannot read /proc/self/statm\n");
        exit(1);
    }
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void fill(int32_t *ids, int64_t count, uint32_t *seed) {
    for (int64_t i = 0; i < count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)(*seed >> 16) % VOCABULARY;
    }
}

/* Reads the next tokens of the slot; the logits behind the last one where they are wanted. Seconds. */
static double read_part(dr_pool *pool, int64_t tokens, bool last, uint32_t *seed) {
    static float logits[VOCABULARY];
    int32_t ids[PIECE];
    double seconds = 0;
    for (int64_t done = 0; done < tokens;) {
        const int64_t count = tokens - done < PIECE ? tokens - done : PIECE;
        const dr_pool_item item = {.ids = ids, .count = count, .wanted = last && done + count == tokens};
        const dr_pool_results results = {.logits = logits};
        fill(ids, count, seed);
        const double begin = dr_clock_now();
        check(dr_pool_step(pool, &item, 1, &results));
        seconds += dr_clock_now() - begin;
        done += count;
    }
    return seconds;
}

int main(int argc, char **argv) {
    const int64_t pieces = argc > 1 ? (atoll(argv[1]) + PIECE - 1) / PIECE : 0, tokens = pieces * PIECE;
    const dr_backend_options backend_options = {.threads = argc > 2 ? atoi(argv[2]) : 0};
    const dr_pool_options options = {.slots = 1, .rows = PIECE};
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    double a_token[TENTHS], memory[TENTHS];
    uint32_t seed = 1;
    dr_backend *backend;
    dr_model *model;
    dr_pool *pool;
    dr_position about;
    config.vocabulary = VOCABULARY, config.hidden = argc > 3 ? atoll(argv[3]) : 256,
    config.layers = argc > 4 ? atoll(argv[4]) : 4;
    config.heads = config.hidden / HEAD_SIZE;
    if (tokens < TENTHS * PIECE || config.hidden < HEAD_SIZE || config.layers < 1) {
        fprintf(stderr, "usage: long_prompt TOKENS [THREADS [HIDDEN [LAYERS]]]; at least %d tokens, hidden a multiple of %d\n",
                TENTHS * PIECE, HEAD_SIZE);
        return 2;
    }
    check(dr_backend_open("cpu", &backend_options, &backend));
    check(dr_model_create(backend, &config, 1, &model));
    check(dr_pool_create(model, &options, &pool));
    printf("gdn, %ld layers of %ld, %ld parameters; %ld tokens in pieces of %d\n", (long)config.layers, (long)config.hidden,
           (long)dr_model_parameter_count(model), (long)tokens, PIECE);
    read_part(pool, 4 * PIECE, false, &seed); /* what is made at the first call is there before the first tenth */
    check(dr_pool_reset(pool, 0));
    for (int t = 0; t < TENTHS; t++) {
        const int64_t count = (pieces * (t + 1) / TENTHS - pieces * t / TENTHS) * PIECE;
        a_token[t] = read_part(pool, count, t == TENTHS - 1, &seed) / (double)count;
        memory[t] = resident();
        check(dr_pool_about(pool, 0, &about));
        printf("%9ld tokens  %7.2f us a token  %7.1f MiB resident\n", (long)about.tokens, a_token[t] * 1e6, memory[t] / MIB);
        fflush(stdout);
    }
    const double slower = a_token[TENTHS - 1] / a_token[0], more = memory[TENTHS - 1] - memory[0];
    const bool right = about.tokens == tokens && slower <= MOST_SLOWER && more <= MOST_GROWTH;
    printf("a token of the last tenth takes %.3f times as long as one of the first; %.1f MiB more resident: %s\n", slower,
           more / MIB, right ? "constant" : "NOT CONSTANT");
    dr_pool_destroy(pool);
    dr_model_destroy(model);
    dr_backend_close(backend);
    return !right;
}
