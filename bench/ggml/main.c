/* ggml's gated_delta_net operator beside deltarule's recurrence, in one process, in turn, on as many threads, with the same
 * inputs: many tokens, and one token for one sequence, scalar decay (gdn) and decay per channel (kda). Both start from a state
 * and give the final one, each in memory of its own allocator, and must agree. ggml's state is transposed, [H, V, K].
 *
 * Usage: bench_ggml THREADS[,THREADS...] REPEATS TOKENS[,TOKENS...] HEADS [CSV] */
#include <deltarule/recurrence.h>

#include <ggml-cpu.h>
#include <ggml.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 128, STATE = SIZE * SIZE /* of a head */, MOST_REPEATS = 99, MOST_NUMBERS = 16 };

static const double LEAST_SECONDS = 0.02, TOLERANCE = 1e-3;

static void stop(const char *message) {
    fprintf(stderr, "bench_ggml: %s\n", message);
    exit(1);
}

static void check(dr_status status) {
    if (status != DR_OK) stop(dr_last_error());
}

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

static double uniform(void) {
    return (double)rand() / ((double)RAND_MAX + 1);
}

static double normal(void) {
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

typedef struct {
    int64_t tokens, heads;
    int gates; /* decays of a token and head: 1, or SIZE */
    float *query, *key, *value, *decay, *beta, *state;
} problem;

static float *take(int64_t count) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)count * sizeof(float)) != 0) stop("no memory");
    memset(memory, 0, (size_t)count * sizeof(float));
    return memory;
}

static float *unit_vectors(int64_t count) {
    float *x = take(count * SIZE);
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int j = 0; j < SIZE; j++) {
            x[i * SIZE + j] = (float)normal();
            sum += (double)x[i * SIZE + j] * x[i * SIZE + j];
        }
        for (int j = 0; j < SIZE; j++) x[i * SIZE + j] /= (float)sqrt(sum);
    }
    return x;
}

/* As deltarule bench draws them. */
static problem draw(int64_t tokens, int64_t heads, bool channel) {
    problem p = {.tokens = tokens, .heads = heads, .gates = channel ? SIZE : 1};
    int64_t rows = tokens * heads, gates = rows * p.gates;
    p.query = unit_vectors(rows);
    p.key = unit_vectors(rows);
    p.value = take(rows * SIZE);
    p.decay = take(gates);
    p.beta = take(rows);
    p.state = take(heads * STATE);
    for (int64_t i = 0; i < rows * SIZE; i++) p.value[i] = (float)normal();
    for (int64_t i = 0; i < gates; i++)
        p.decay[i] = (float)(-(1 + 15 * uniform()) * log1p(exp(0.5 * normal()) * expm1(0.001 * pow(100, uniform()))));
    for (int64_t i = 0; i < rows; i++) p.beta[i] = (float)(1 / (1 + exp(-normal())));
    for (int64_t i = 0; i < heads * STATE; i++) p.state[i] = (float)normal();
    return p;
}

static void release(problem *p) {
    float *const all[] = {p->query, p->key, p->value, p->decay, p->beta, p->state};
    for (int i = 0; i < 6; i++) free(all[i]);
}

/* ---- ggml ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    struct ggml_context *context;
    struct ggml_tensor *result; /* o [tokens, H, V], then the final state [H, V, K] */
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    struct ggml_threadpool *threads;
} theirs;

static struct ggml_tensor *tensor(struct ggml_context *context, const float *from, int64_t a, int64_t b, int64_t c) {
    struct ggml_tensor *made = ggml_new_tensor_4d(context, GGML_TYPE_F32, a, b, c, 1);
    memcpy(made->data, from, ggml_nbytes(made));
    return made;
}

static theirs open_ggml(const problem *p, int threads) {
    theirs t = {0};
    size_t elements = (size_t)(p->tokens * p->heads) * (size_t)(5 * SIZE + p->gates) + 3 * (size_t)p->heads * STATE;
    t.context = ggml_init((struct ggml_init_params){.mem_size = elements * sizeof(float) + (16 << 20)});
    if (!t.context) stop("ggml has no memory");
    struct ggml_tensor *state = ggml_new_tensor_4d(t.context, GGML_TYPE_F32, SIZE, SIZE, p->heads, 1);
    for (int64_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < SIZE; i++)
            for (int64_t j = 0; j < SIZE; j++)
                ((float *)state->data)[(h * SIZE + j) * SIZE + i] = p->state[(h * SIZE + i) * SIZE + j];
    t.result = ggml_gated_delta_net(
        t.context, tensor(t.context, p->query, SIZE, p->heads, p->tokens), tensor(t.context, p->key, SIZE, p->heads, p->tokens),
        tensor(t.context, p->value, SIZE, p->heads, p->tokens), tensor(t.context, p->decay, p->gates, p->heads, p->tokens),
        tensor(t.context, p->beta, 1, p->heads, p->tokens), state, 1);
    t.graph = ggml_new_graph(t.context);
    ggml_build_forward_expand(t.graph, t.result);
    struct ggml_threadpool_params how = ggml_threadpool_params_default(threads);
    t.threads = ggml_threadpool_new(&how);
    t.plan = ggml_graph_plan(t.graph, threads, t.threads);
    t.plan.work_data = t.plan.work_size ? malloc(t.plan.work_size) : NULL;
    return t;
}

static void run_ggml(void *context) {
    theirs *t = context;
    if (ggml_graph_compute(t->graph, &t->plan) != GGML_STATUS_SUCCESS) stop("ggml_graph_compute failed");
}

static void close_ggml(theirs *t) {
    free(t->plan.work_data);
    ggml_threadpool_free(t->threads);
    ggml_free(t->context);
}

/* ---- deltarule ------------------------------------------------------------------------------------------------------- */

enum { BLOCKS = 8 };

typedef struct {
    dr_backend *backend;
    dr_recurrence recurrence;
    dr_inputs inputs;
    dr_states initial;
    dr_mutable_states states;
    void *o, *workspace, *block[BLOCKS];
    int blocks;
} ours;

/* Memory of the backend, with a copy of count numbers if there are any. */
static void *place(ours *u, size_t bytes, const float *from, int64_t count) {
    check(dr_backend_allocate(u->backend, bytes, &u->block[u->blocks]));
    dr_backend_zero(u->backend, u->block[u->blocks], bytes);
    if (from) check(dr_backend_upload(u->backend, u->block[u->blocks], from, DR_F32, count));
    return u->block[u->blocks++];
}

static void *place_copy(ours *u, const float *from, int64_t count) {
    return place(u, (size_t)count * sizeof(float), from, count);
}

static ours open_deltarule(const problem *p, int threads) {
    ours u = {.recurrence = {.rule = dr_rule_find(p->gates == 1 ? "gdn" : "kda"),
                             .layout = {.sequences = 1, .rows = p->tokens},
                             .key_heads = p->heads,
                             .value_heads = p->heads,
                             .key_size = SIZE,
                             .value_size = SIZE}};
    int64_t rows = p->tokens * p->heads;
    dr_recurrence_memory bytes;
    check(dr_backend_open("cpu", &(dr_backend_options){.threads = threads}, &u.backend));
    check(dr_recurrence_plan(u.backend, &u.recurrence, &bytes));
    u.inputs.at[DR_INPUT_QUERY] = place_copy(&u, p->query, rows * SIZE);
    u.inputs.at[DR_INPUT_KEY] = place_copy(&u, p->key, rows * SIZE);
    u.inputs.at[DR_INPUT_VALUE] = place_copy(&u, p->value, rows * SIZE);
    u.inputs.at[DR_INPUT_LOG_DECAY] = place_copy(&u, p->decay, rows * p->gates);
    u.inputs.at[DR_INPUT_BETA] = place_copy(&u, p->beta, rows);
    u.states.at[DR_STATE_S] = place_copy(&u, p->state, p->heads * STATE);
    u.initial.at[DR_STATE_S] = p->state;
    u.o = place(&u, (size_t)(rows * SIZE) * sizeof(float), NULL, 0);
    u.workspace = place(&u, bytes.forward > bytes.decode ? bytes.forward : bytes.decode, NULL, 0);
    return u;
}

/* One token goes through the decode engine, which updates the state in place. */
static void run_deltarule(void *context) {
    ours *u = context;
    if (u->recurrence.layout.rows == 1)
        check(dr_recurrence_decode(u->backend, &u->recurrence, &u->inputs, &u->states, u->o, u->workspace));
    else
        check(dr_recurrence_forward(u->backend, &u->recurrence, &u->inputs, &u->initial, u->o, &u->states, NULL, u->workspace));
}

static void close_deltarule(ours *u) {
    for (int i = 0; i < u->blocks; i++) dr_backend_free(u->backend, u->block[i]);
    dr_backend_close(u->backend);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------- */

/* The largest difference of output and final state after one run of each, relative to the largest number. */
static double difference(const problem *p, const theirs *t, const ours *u) {
    const float *o = t->result->data, *our_o = u->o, *our_state = u->states.at[DR_STATE_S],
                *state = o + p->tokens * p->heads * SIZE;
    double worst = 0, largest = 0, worst_state = 0, largest_state = 0;
    for (int64_t i = 0; i < p->tokens * p->heads * SIZE; i++) {
        worst = fmax(worst, fabs(o[i] - our_o[i]));
        largest = fmax(largest, fabs(o[i]));
    }
    for (int64_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < SIZE; i++)
            for (int64_t j = 0; j < SIZE; j++) {
                double x = state[(h * SIZE + j) * SIZE + i], y = our_state[(h * SIZE + i) * SIZE + j];
                worst_state = fmax(worst_state, fabs(x - y));
                largest_state = fmax(largest_state, fabs(x));
            }
    return fmax(worst / largest, worst_state / largest_state);
}

static double seconds_of(void (*run)(void *), void *context, int runs) {
    double start = now();
    for (int i = 0; i < runs; i++) run(context);
    return (now() - start) / runs;
}

static int runs_of(void (*run)(void *), void *context) {
    double seconds = seconds_of(run, context, 1);
    return seconds < LEAST_SECONDS ? (int)(LEAST_SECONDS / (seconds + 1e-7)) + 1 : 1;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, rising);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

static void compare(int64_t tokens, int64_t heads, bool channel, int threads, int repeats, FILE *csv) {
    problem p = draw(tokens, heads, channel);
    theirs t = open_ggml(&p, threads);
    ours u = open_deltarule(&p, threads);
    run_ggml(&t);
    run_deltarule(&u);
    double worst = difference(&p, &t, &u), their_seconds[MOST_REPEATS], our_seconds[MOST_REPEATS], ratio[MOST_REPEATS];
    int their_runs = runs_of(run_ggml, &t), our_runs = runs_of(run_deltarule, &u);
    for (int n = 0; n < repeats; n++) {
        their_seconds[n] = seconds_of(run_ggml, &t, their_runs);
        our_seconds[n] = seconds_of(run_deltarule, &u, our_runs);
        ratio[n] = their_seconds[n] / our_seconds[n];
    }
    double theirs_median = median(their_seconds, repeats), ours_median = median(our_seconds, repeats);
    printf("ggml gated_delta_net %-4s %7d %7lld %6lld %11.4f %11.4f %6.2fx %6.2fx %10.1e\n", channel ? "kda" : "gdn", threads,
           (long long)tokens, (long long)heads, 1e3 * theirs_median, 1e3 * ours_median, median(ratio, repeats),
           their_seconds[0] / our_seconds[0], worst);
    fflush(stdout);
    if (csv)
        fprintf(csv, "ggml gated_delta_net %s,forward,%d,%lld,%lld,%.9g,%.9g,%.6g\n", channel ? "kda" : "gdn", threads,
                (long long)tokens, (long long)heads, theirs_median, ours_median, median(ratio, repeats));
    close_deltarule(&u);
    close_ggml(&t);
    release(&p);
    if (!(worst < TOLERANCE)) stop("the two sides do not agree");
}

static int read_numbers(const char *text, long numbers[MOST_NUMBERS]) {
    for (int count = 0; count < MOST_NUMBERS; text++) {
        char *end;
        numbers[count] = strtol(text, &end, 10);
        if (end == text || numbers[count] < 1 || (*end && *end != ',')) break;
        count++;
        text = end;
        if (!*end) return count;
    }
    stop("expected numbers with commas between");
    return 0;
}

int main(int argc, char **argv) {
    long threads[MOST_NUMBERS], tokens[MOST_NUMBERS], repeats[MOST_NUMBERS], heads[MOST_NUMBERS];
    if (argc < 5) stop("usage: bench_ggml THREADS[,THREADS...] REPEATS TOKENS[,TOKENS...] HEADS [CSV]");
    int thread_counts = read_numbers(argv[1], threads), lengths = read_numbers(argv[3], tokens);
    read_numbers(argv[2], repeats);
    read_numbers(argv[4], heads);
    if (repeats[0] > MOST_REPEATS) stop("too many repeats");
    FILE *csv = argc > 5 ? fopen(argv[5], "a") : NULL;
    if (argc > 5 && !csv) stop("cannot write the CSV file");
    srand(1);
    ggml_cpu_init();
    printf("deltarule %s, ggml %s (%s), heads of %d x %d\n", dr_version(), ggml_version(), ggml_commit(), SIZE, SIZE);
    printf("%-25s %7s %7s %6s %11s %11s %7s %7s %10s\n", "peer", "threads", "tokens", "heads", "theirs ms", "ours ms", "ratio",
           "best", "difference");
    for (int i = 0; i < lengths; i++)
        for (int c = 0; c < 2; c++)
            for (int n = 0; n < thread_counts; n++) compare(tokens[i], heads[0], c == 1, (int)threads[n], (int)repeats[0], csv);
    if (csv && fclose(csv) != 0) stop("cannot write the CSV file");
    return 0;
}
