/* The diagonal scan, whose chunks take A up from one another while they run, and hand its gradient back. A sequence of one
 * token beside one of thousands, none at all, fewer and more chunks than the GPU has multiprocessors, sequences that are cut
 * and sequences whose first stage runs beside the second, initial states and gradients of final ones:
 *
 *     every row is within the bound of a plain loop
 *     together = alone = another run, bit for bit, and so is a forward that no backward follows
 *     a parameter's gradient is the sum of what it is for each sequence alone
 *
 * And several backends at once, each on a stream of its own: thread blocks that wait for others must not keep these from the
 * multiprocessors, nor see what another call has told. */
#include "rounding.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int64_t heads, length[MOST_SEQUENCES];
    bool equal, strong;
    int every; /* of the rules below the second of so many; 0: all */
} layout;

enum { LAYOUTS = 5, RUNS = 2 };
static const layout layouts[LAYOUTS] = {
    {.heads = 12, .length = {750, 750, 750, 750}, .equal = true, .every = 3}, /* beside, more than all blocks take at once */
    {.heads = 3, .length = {5000, 1, 63, 64}},                                /* the first is cut into parts */
    {.heads = 12, .length = {200, 200, 200, 200}, .equal = true},             /* prepare beside the scan */
    {.heads = 10, .length = {65, 0, 600, 127}},
    {.heads = 20, .length = {300, 1, 64, 0}, .strong = true}, /* decays of 0, zero keys */
};

typedef struct {
    const char *rule;
    int64_t key_size, value_size;
} head;

static const head heads[] = {{"pgdn", 128, 128}, {"pgdn", 64, 128}, {"pgdn", 128, 64}, {"pkda", 128, 128},
                             {"pkda", 64, 128},  {"pkda", 128, 64}, {"pdn", 128, 128}, {"plonghorn", 128, 64}};
enum { HEADS = sizeof heads / sizeof *heads };

static problem *problem_of(const head *h, const layout *l, uint64_t seed) {
    int64_t cu_seqlens[MOST_SEQUENCES + 1] = {0};
    for (int i = 0; i < MOST_SEQUENCES; i++) cu_seqlens[i + 1] = cu_seqlens[i] + l->length[i];
    const dr_recurrence shape = {
        .rule = dr_rule_find(h->rule),
        .layout = {.sequences = MOST_SEQUENCES, .rows = cu_seqlens[MOST_SEQUENCES], .cu_seqlens = cu_seqlens},
        .key_heads = l->heads,
        .value_heads = l->heads,
        .key_size = h->key_size,
        .value_size = h->value_size,
    };
    dr_random random = dr_random_start(seed, 13);
    problem *p = problem_create(shape.rule, &shape, l->strong, &random);
    if (l->equal) p->recurrence.layout.cu_seqlens = NULL;
    return p;
}

/* ---- one call ---------------------------------------------------------------------------------------------------------- */

/* Adds what the parameters of a sequence alone get, and their size. */
static void add_parameters(const problem *p, const result *alone, double *const sum[DR_INPUTS], double *const size[DR_INPUTS]) {
    for (int i = 0; i < DR_INPUTS; i++)
        for (int64_t j = 0; sum[i] && j < p->input_count[i]; j++) {
            sum[i][j] += alone->gradient[i][j];
            size[i][j] += fabs(alone->gradient[i][j]);
        }
}

static bool parameters_are_sums(const problem *p, const result *together, double *const sum[DR_INPUTS],
                                double *const size[DR_INPUTS], fault *what) {
    for (int i = 0; i < DR_INPUTS; i++)
        for (int64_t j = 0; sum[i] && j < p->input_count[i]; j++)
            if (!(fabs(together->gradient[i][j] - sum[i][j]) <= 0x1p-22 * size[i][j]))
                return fault_is(what, "gradient of %s[%lld] is %.9g, its sequences' add up to %.9g", dr_input_name((dr_input)i),
                                (long long)j, together->gradient[i][j], sum[i][j]);
    return true;
}

static double *zeros(int64_t count) {
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = 0;
    return x;
}

static bool parts_are_whole(gpu *g, const problem *p, const result *together, fault *what) {
    double *sum[DR_INPUTS] = {0}, *size[DR_INPUTS] = {0};
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i] && !is_per_token(p, (dr_input)i)) sum[i] = zeros(p->input_count[i]), size[i] = zeros(p->input_count[i]);
    bool holds = true;
    for (int64_t i = 0; i < MOST_SEQUENCES && holds; i++) {
        const int64_t first = 0, tokens = p->cu_seqlens[i + 1] - p->cu_seqlens[i];
        problem *own = problem_part(p, i, 1, &first, &tokens, NULL);
        result alone = {0};
        holds = problem_run(g->cuda[1], own, DR_PATH_CHUNKWISE, 0, true, &alone, what) &&
                sequence_same(p, own, i, together, &alone, what);
        if (holds) add_parameters(p, &alone, sum, size);
        result_free(&alone);
        problem_free(own);
    }
    holds = holds && parameters_are_sums(p, together, sum, size, what);
    for (int i = 0; i < DR_INPUTS; i++) free(sum[i]), free(size[i]);
    return holds;
}

static bool runs_are_same(gpu *g, const problem *p, const result *want, fault *what) {
    bool holds = true;
    for (int run = 1; run < RUNS && holds; run++) {
        result got = {0};
        holds = problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &got, what) &&
                results_same("another run", p, &got, want, what);
        result_free(&got);
    }
    result forward = {0};
    holds = holds && problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, false, &forward, what) &&
            numbers_same("without a backward", "o", forward.o, want->o, p->o_count, what);
    for (int i = 0; i < DR_STATES && holds; i++)
        holds = numbers_same("without a backward", dr_state_name((dr_state_kind)i), forward.final[i], want->final[i],
                             p->state_count[i], what);
    result_free(&forward);
    return holds;
}

static bool call_is_right(gpu *g, uint64_t n, void *context, fault *what) {
    (void)context;
    const int h = (int)n % HEADS, l = (int)n / HEADS;
    if (layouts[l].every != 0 && h % layouts[l].every != 1) return true;
    problem *p = problem_of(&heads[h], &layouts[l], (uint64_t)(h * LAYOUTS + l));
    dr_random random = dr_random_start(n, 14);
    result together = {0};
    fault why;
    const bool holds = problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &together, &why) &&
                       dead_decays("bf16", p, &together, &why) && runs_are_same(g, p, &together, &why) &&
                       parts_are_whole(g, p, &together, &why) &&
                       (layouts[l].strong || rounds_as_plain(g, 1, p, DR_PATH_CHUNKWISE, &random, &why));
    if (!holds)
        fault_is(what, "%s K %lld V %lld, %lld heads of %lld tokens and more: %s", heads[h].rule, (long long)heads[h].key_size,
                 (long long)heads[h].value_size, (long long)layouts[l].heads, (long long)layouts[l].length[0], why.text);
    result_free(&together);
    problem_free(p);
    g->checks++;
    return holds;
}

/* ---- several at once --------------------------------------------------------------------------------------------------- */

enum { SIDES = 4, CALLS = 20, MOST_SECONDS = 30 };
static const struct { int head, layout; } sides[SIDES] = {{0, 1}, {3, 3}, {1, 0}, {3, 2}};

typedef struct {
    pthread_t thread;
    pthread_barrier_t *start;
    gpu own;
    problem *p;
    result want;
    bool holds;
    fault what;
} side;

/* Ends the program where the stream does not: what waits on the GPU cannot be taken back. */
static void wait_for(cudaStream_t stream) {
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < 1000 * MOST_SECONDS; i++) {
        if (cudaStreamQuery(stream) != cudaErrorNotReady) return;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "cuda_tests: %d calls on one of %d streams take more than %d s\n", CALLS, SIDES, MOST_SECONDS);
    _exit(1);
}

static dr_status call_often(problem_calls calls, void *run, void *context) {
    side *s = context;
    dr_status status = DR_OK;
    pthread_barrier_wait(s->start);
    for (int i = 0; i < CALLS && status == DR_OK; i++) status = calls(run);
    wait_for(s->own.stream);
    return status;
}

static void *run_side(void *context) {
    side *s = context;
    result got = {0};
    s->holds = problem_run_around(s->own.cuda[1], s->p, DR_PATH_CHUNKWISE, 0, true, call_often, s, &got, &s->what) &&
               results_same("beside other streams", s->p, &got, &s->want, &s->what);
    result_free(&got);
    return NULL;
}

static bool sides_are_right(gpu *g, fault *what) {
    side all[SIDES] = {0};
    pthread_barrier_t start;
    bool holds = true;
    for (int i = 0; i < SIDES && holds; i++) {
        all[i].own.device = g->device, all[i].start = &start;
        all[i].p = problem_of(&heads[sides[i].head], &layouts[sides[i].layout], (uint64_t)(100 + i));
        holds =
            gpu_open(&all[i].own, what) && problem_run(g->cuda[1], all[i].p, DR_PATH_CHUNKWISE, 0, true, &all[i].want, what);
    }
    if (holds) {
        pthread_barrier_init(&start, NULL, SIDES);
        for (int i = 0; i < SIDES; i++)
            if (pthread_create(&all[i].thread, NULL, run_side, &all[i]) != 0) {
                fprintf(stderr, "cuda_tests: no thread could be started\n");
                exit(1);
            }
        for (int i = 0; i < SIDES; i++) pthread_join(all[i].thread, NULL);
        pthread_barrier_destroy(&start);
        for (int i = 0; i < SIDES && holds; i++)
            if (!all[i].holds) holds = fault_is(what, "%s", all[i].what.text);
    }
    for (int i = 0; i < SIDES; i++) {
        gpu_close(&all[i].own);
        result_free(&all[i].want);
        if (all[i].p) problem_free(all[i].p);
    }
    g->checks += SIDES;
    return holds;
}

bool suite_chains(gpu *g, fault *what) {
    return gpu_share(g, 0, HEADS * LAYOUTS - 1, call_is_right, NULL, what) && sides_are_right(g, what);
}
