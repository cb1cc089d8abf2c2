/* 16 bits, held to twice the error of a plain loop that rounds as much: one whose inputs and results are rounded to the storage
 * type, and nothing else. Of each tensor the worst row counts, which is what a token (or a sequence) has of a head.
 *
 * suite_rounding takes rules of the table and drawn compositions with heads of 64, 128 and 256 channels, packed and grouped,
 * over several chunks; other suites hold theirs to the same bound. */
#include "rounding.h"

#include "base/half.h"
#include "ops/shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double rounded(double x, dr_dtype dtype) {
    return dtype == DR_BF16 ? (double)dr_bf16_to_float(dr_bf16_from_float((float)x))
                            : (double)dr_f16_to_float(dr_f16_from_float((float)x));
}

void round_numbers(double *x, int64_t count, dr_dtype dtype) {
    for (int64_t i = 0; x && i < count; i++) x[i] = rounded(x[i], dtype);
}

static bool is_rounded(const dr_backend *cuda, int input) {
    return dr_recurrence_input_dtype(cuda, (dr_input)input) != DR_F32;
}

/* Vectors by up to a unit in the last place of the type. */
static void move_vectors(const dr_backend *cuda, problem *p, double unit, dr_random *random) {
    for (int i = 0; i < DR_INPUTS; i++)
        for (int64_t j = 0; j < p->input_count[i] && is_rounded(cuda, i); j++)
            p->input[i][j] = (float)(p->input[i][j] * (1 + uniform(random, -unit, unit)));
}

static void round_inputs(const dr_backend *cuda, problem *p) {
    const dr_dtype dtype = dr_recurrence_output_dtype(cuda);
    for (int i = 0; i < DR_INPUTS; i++)
        if (is_rounded(cuda, i)) round_numbers(p->input[i], p->input_count[i], dtype);
    round_numbers(p->d_o, p->o_count, dtype);
}

static void round_results(const dr_backend *cuda, const problem *p, result *r) {
    const dr_dtype dtype = dr_recurrence_output_dtype(cuda);
    for (int i = 0; i < DR_INPUTS; i++)
        if (is_rounded(cuda, i)) round_numbers(r->gradient[i], p->input_count[i], dtype);
    round_numbers(r->o, p->o_count, dtype);
}

static double unit_of(const dr_backend *cuda) {
    return dr_recurrence_output_dtype(cuda) == DR_BF16 ? 0x1p-8 : 0x1p-11;
}

const double times_of_plain = 2;

/* Twice what rounding takes from numbers whose logarithm is spread evenly. */
double least_error(const dr_backend *cuda) {
    return 2 * unit_of(cuda) * sqrt(3 / (8 * log(2))) / sqrt(12);
}

/* A tensor of a result as rows of numbers. */
typedef struct {
    const double *at; /* [rows][width]; NULL: there is none */
    int64_t rows, width;
    char name[64];
} row_tensor;

static row_tensor rows_of(const double *at, int64_t count, int64_t width) {
    return (row_tensor){.at = count > 0 ? at : NULL, .rows = width > 0 ? count / width : 0, .width = width};
}

/* Tensor n of a result: o, final and initial states, inputs. A state's row is a head's whole matrix, or its vector. */
static row_tensor tensor_of(const problem *p, const result *r, int n) {
    row_tensor t;
    if (n == 0) {
        t = rows_of(r->o, p->o_count, p->recurrence.value_size);
        snprintf(t.name, sizeof t.name, "o");
    } else if (n <= 2 * DR_STATES) {
        const int i = (n - 1) / 2;
        int64_t shape[DR_MAX_RANK], width = 1;
        const int rank = dr_recurrence_state_shape(&p->recurrence, (dr_state_kind)i, shape);
        for (int axis = 2; axis < rank; axis++) width *= shape[axis];
        t = rows_of(n % 2 ? r->final[i] : r->d_initial[i], p->state_count[i], width);
        snprintf(t.name, sizeof t.name, "%s %s", n % 2 ? "final" : "gradient of initial", dr_state_name((dr_state_kind)i));
    } else {
        const int i = n - 1 - 2 * DR_STATES;
        const int64_t width = p->input_count[i] ? dr_recurrence_input_form(&p->recurrence, (dr_input)i).size : 1;
        t = rows_of(r->gradient[i], p->input_count[i], width);
        snprintf(t.name, sizeof t.name, "gradient of %s", dr_input_name((dr_input)i));
    }
    return t;
}

double row_error(const double *got, const double *want, int64_t rows, int64_t width) {
    double worst = 0, size = 0;
    for (int64_t i = 0; i < rows; i++) {
        double apart = 0;
        for (int64_t j = i * width; j < (i + 1) * width; j++) {
            if (!isfinite(got[j])) return INFINITY;
            apart += (got[j] - want[j]) * (got[j] - want[j]);
            size += want[j] * want[j];
        }
        worst = fmax(worst, apart);
    }
    return sqrt(worst) / fmax(sqrt(size / (double)rows), least_size_chunkwise * sqrt((double)width));
}

static double worst_row(const row_tensor *got, const row_tensor *want) {
    return row_error(got->at, want->at, want->rows, want->width);
}

/* The plain loop: the reference in double, or the CPU's loop over tokens in float32, whose own error is below a hundredth of
 * what 16 bits cost. Kernels are held to the first, but where that takes long; what rounding costs is taken from the second. */
static bool run_plain(gpu *g, const problem *p, result *r, fault *what) {
    return problem_run(g->cpu, p, DR_PATH_RECURRENT, 0, true, r, what);
}

/* Whether loops take milliseconds. */
static bool is_quick(const problem *p) {
    const dr_recurrence *of = &p->recurrence;
    return (double)of->layout.rows * (double)of->value_heads * (double)of->key_size * (double)of->value_size <= 0x1p24;
}

bool plain_loops(gpu *g, int type, const problem *p, int first, int end, dr_random *random, plain_loop *take, void *context,
                 fault *what) {
    const dr_backend *cuda = g->cuda[type];
    bool holds = true;
    for (int i = first; i < end && holds; i++) {
        problem *exact = problem_copy(p);
        if (i > 0) move_vectors(cuda, exact, unit_of(cuda), random);
        problem *coarse = problem_copy(exact);
        round_inputs(cuda, coarse);
        result of_exact = {0}, of_coarse = {0};
        holds = run_plain(g, exact, &of_exact, what) && run_plain(g, coarse, &of_coarse, what);
        if (holds) round_results(cuda, p, &of_coarse);
        if (holds) take(exact, &of_exact, &of_coarse, context);
        result_free(&of_exact), result_free(&of_coarse);
        problem_free(exact), problem_free(coarse);
    }
    return holds;
}

/* The first problem is the one at hand: what it comes to is kept where loops over others are not in double. */
static void take_errors(const problem *p, result *exact, const result *rounded, void *context) {
    plain_bound *bound = context;
    for (int n = 0; n < ROW_TENSORS; n++) {
        const row_tensor a = tensor_of(p, exact, n), b = tensor_of(p, rounded, n);
        bound->error[bound->draws][n] = a.at ? worst_row(&b, &a) : 0;
    }
    if (bound->draws++ > 0 || is_quick(p)) return;
    bound->want = *exact;
    *exact = (result){0};
}

static bool draw_until(gpu *g, int type, const problem *p, plain_bound *bound, int draws, fault *what) {
    return plain_loops(g, type, p, bound->draws, draws, &bound->random, take_errors, bound, what);
}

/* Twice the largest error of the plain loop in tensor n so far. */
static double allowed_of(const gpu *g, int type, const plain_bound *bound, int n) {
    double largest = least_error(g->cuda[type]);
    for (int i = 0; i < bound->draws; i++) largest = fmax(largest, bound->error[i][n]);
    return times_of_plain * largest;
}

/* "kda cuda chunkwise ... , K 128, V 128, H 1, HV 2, 193 tokens" */
static void name_call(const dr_backend *cuda, const problem *p, dr_path path, char *name, size_t size) {
    char kernel[160];
    dr_recurrence r = p->recurrence;
    r.path = path;
    dr_recurrence_kernel(cuda, &r, false, kernel, sizeof kernel);
    snprintf(name, size, "%s, %s, K %lld, V %lld, H %lld, HV %lld, %lld tokens", p->rule.name, kernel, (long long)r.key_size,
             (long long)r.value_size, (long long)r.key_heads, (long long)r.value_heads, (long long)r.layout.rows);
}

/* Whether every row of every tensor is off by at most allowed[n]; if not, what: the worst tensor, whose number is returned. */
enum { ALL_NEAR = -1 };
static int rows_beyond(gpu *g, int type, const problem *p, dr_path path, const result *got, const result *want,
                       const double allowed[ROW_TENSORS], fault *what) {
    double worst = 0;
    int beyond = ALL_NEAR;
    char name[320];
    for (int n = 0; n < ROW_TENSORS; n++) {
        const row_tensor of_want = tensor_of(p, want, n), of_got = tensor_of(p, got, n);
        if (!of_want.at) continue;
        const double error = worst_row(&of_got, &of_want), ratio = error / allowed[n];
        if (ratio <= worst) continue;
        worst = ratio;
        if (ratio <= 1) continue;
        beyond = n;
        name_call(g->cuda[type], p, path, name, sizeof name);
        fault_is(what, "%s: %s has error %.3g in a row, %.2g is right (x%.2f)", name, of_want.name, error, allowed[n], ratio);
    }
    if (beyond == ALL_NEAR) g->worst[type] = fmax(g->worst[type], worst);
    return beyond;
}

bool plain_bound_create(gpu *g, int type, const problem *p, dr_random *random, plain_bound *bound, fault *what) {
    *bound = (plain_bound){.random = *random};
    dr_random_word(random); /* what follows does not depend on how many are drawn */
    return draw_until(g, type, p, bound, 1, what) &&
           (!is_quick(p) || problem_run(g->reference, p, DR_PATH_BEST, 0, true, &bound->want, what));
}

/* How far tensor n of each drawn problem is off, so that a case that does not hold need not be run again to be understood. */
static void tell_draws(const plain_bound *bound, int n, const fault *what) {
    flockfile(stdout);
    printf("%s; twice what plain loops lose:", what->text);
    for (int i = 0; i < bound->draws; i++) printf(" %.3g", times_of_plain * bound->error[i][n]);
    printf("\n");
    funlockfile(stdout);
}

bool within_bound(gpu *g, int type, const problem *p, dr_path path, plain_bound *bound, fault *what) {
    result got = {0};
    bool holds = problem_run(g->cuda[type], p, path, 0, true, &got, what) && dead_decays(p->rule.name, p, &got, what);
    g->checks++;
    for (int beyond = 0; holds && beyond != ALL_NEAR;) {
        double allowed[ROW_TENSORS];
        for (int n = 0; n < ROW_TENSORS; n++) allowed[n] = allowed_of(g, type, bound, n);
        beyond = rows_beyond(g, type, p, path, &got, &bound->want, allowed, what);
        if (beyond == ALL_NEAR) break;
        if (bound->draws == MOST_DRAWS)
            tell_draws(bound, beyond, what), holds = false;
        else
            holds = draw_until(g, type, p, bound, bound->draws < 3 ? 3 : 2 * bound->draws, what);
    }
    result_free(&got);
    return holds;
}

bool rounds_as_plain(gpu *g, int type, const problem *p, dr_path path, dr_random *random, fault *what) {
    plain_bound bound;
    const bool holds = plain_bound_create(g, type, p, random, &bound, what) && within_bound(g, type, p, path, &bound, what);
    result_free(&bound.want);
    return holds;
}

bool floats_are_near(gpu *g, const problem *p, dr_path path, const result *want, fault *what) {
    double allowed[ROW_TENSORS];
    for (int n = 0; n < ROW_TENSORS; n++)
        allowed[n] = n == 0 || (n <= 2 * DR_STATES && n % 2) ? tolerance_forward : tolerance_backward;
    result got = {0};
    const bool holds = problem_run(g->cuda[0], p, path, 0, true, &got, what) &&
                       rows_beyond(g, 0, p, path, &got, want, allowed, what) == ALL_NEAR;
    g->checks++;
    result_free(&got);
    return holds;
}

/* ---- heads of 64, 128, 256 channels -------------------------------------------------------------------------------------- */

/* Sizes and lengths for a drawn composition; a loop in double over wide heads takes long, so these have fewer tokens. */
static void widen(trial *t, dr_random *random) {
    static const int64_t sizes[] = {64, 64, 128, 128, 128, 256};
    t->key_size = sizes[dr_random_below(random, 6)];
    t->value_size = dr_random_below(random, 4) ? t->key_size : sizes[dr_random_below(random, 6)];
    t->values = VALUES_MILD;
    if (t->key_heads > 2) t->key_heads = 2;
    if (t->sequences > 3) t->sequences = 3;
    const int64_t most = t->key_size * t->value_size > 128 * 128 ? 100 : 200;
    const int64_t equal = between(random, 60, most);
    for (int64_t i = 0; i < t->sequences; i++)
        if (t->length[i] > 0 || t->packing != PACKING_EMPTY)
            t->length[i] = t->packing == PACKING_EQUAL || t->packing == PACKING_ONE ? equal : between(random, 1, most);
}

/* Trial n: of a drawn composition or of a rule of the table. */
static trial draw_wide(uint64_t n) {
    trial t = trial_draw(n);
    dr_random random = dr_random_start(n, 5);
    if (n % 2) t.rule = *dr_rule_at((int)(n / 2 % (uint64_t)dr_rule_count()));
    if (t.rule.tied_scan) t.group = 1;
    widen(&t, &random);
    return t;
}

static bool wide_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    (void)context;
    const trial t = draw_wide(n);
    if (!gpu_takes(&t.rule)) return true;
    problem *p = trial_problem(&t);
    dr_random random = dr_random_start(n, 6);
    const bool holds = rounds_as_plain(own, 1, p, DR_PATH_CHUNKWISE, &random, what);
    if (!holds) trial_tell(&t);
    problem_free(p);
    return holds;
}

/* ---- full steps ---------------------------------------------------------------------------------------------------------- */

/* Gains of one and of 1 / (k . k), along keys near one direction: what each step takes off, the ones before have left little of
 * (dr_cuda_rows_step_fully). */
static const char *const stepping[] = {"delta_net", "gdn", "kda"};
static const int64_t step_sizes[][2] = {{64, 64}, {128, 128}, {128, 64}, {256, 256}};
enum { STEPPING = sizeof stepping / sizeof *stepping, STEP_SIZES = sizeof step_sizes / sizeof *step_sizes };

static void bring_near(problem *p, double near) {
    const int64_t K = p->recurrence.key_size, heads = p->recurrence.key_heads;
    double *key = p->input[DR_INPUT_KEY];
    for (int64_t i = heads; i < p->input_count[DR_INPUT_KEY] / K; i++) {
        const double *first = key + i % heads * K;
        double *own = key + i * K, before = 0, after = 0;
        for (int64_t d = 0; d < K; d++) before += own[d] * own[d];
        for (int64_t d = 0; d < K; d++) {
            own[d] = near * first[d] + sqrt(1 - near * near) * own[d];
            after += own[d] * own[d];
        }
        for (int64_t d = 0; d < K; d++) own[d] = (float)(own[d] * sqrt(before / after));
    }
}

/* Two sequences, keys of that cosine, log decays so many times as drawn. */
static bool near_is_right(gpu *own, const dr_rule *rule, uint64_t seed, const int64_t size[2], double near, double decays,
                          fault *what) {
    const int64_t cu_seqlens[] = {0, 200, 330};
    const dr_recurrence shape = {.rule = rule,
                                 .layout = {.sequences = 2, .rows = 330, .cu_seqlens = cu_seqlens},
                                 .key_heads = 2,
                                 .value_heads = 2,
                                 .key_size = size[0],
                                 .value_size = size[1]};
    static const dr_input logs[] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};
    dr_random random = dr_random_start(seed, 9);
    problem *p = problem_create(rule, &shape, false, &random);
    bring_near(p, near);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->input_count[logs[k]]; i++) p->input[logs[k]][i] *= decays;
    const bool holds = rounds_as_plain(own, 1, p, DR_PATH_CHUNKWISE, &random, what);
    problem_free(p);
    return holds;
}

static bool steps_are_right(gpu *own, uint64_t n, void *context, fault *what) {
    (void)context;
    const bool far = n / 2 / STEPPING / STEP_SIZES % 2;
    dr_rule rule = *dr_rule_find(stepping[n / 2 % STEPPING]);
    rule.row[0].gain = n % 2 ? DR_GAIN_NORMALIZED : DR_GAIN_ONE;
    rule.row[0].value = DR_VALUE_V;
    return near_is_right(own, &rule, n, step_sizes[n / 2 / STEPPING % STEP_SIZES], far ? 0.5 : 0.95, far ? 1 : 0.02, what);
}

/* Keys of the diagonal scan whose state nothing decays, and gains made of them: gradients of the scan are sums over all tokens
 * whose parts cancel. */
static const char *const scanning[] = {"pdn", "plonghorn"};
static const double scan_nears[] = {0, 0.5, 0.95}, scan_decays[] = {1, 0.02, 0};
enum { SCANNING = 2, SCAN_SIZES = 2, SCAN_NEARS = 3, SCAN_DECAYS = 3 };

static bool scans_are_right(gpu *own, uint64_t n, void *context, fault *what) {
    (void)context;
    const uint64_t of = n / SCANNING / SCAN_SIZES;
    return near_is_right(own, dr_rule_find(scanning[n % SCANNING]), n, step_sizes[n / SCANNING % SCAN_SIZES],
                         scan_nears[of % SCAN_NEARS], scan_decays[of / SCAN_NEARS], what);
}

bool suite_rounding(gpu *g, fault *what) {
    fault steps = {""}, scans = {""};
    const bool wide = gpu_share(g, 1, (g->brief ? 4 : 16) * (uint64_t)dr_rule_count(), wide_is_right, NULL, what);
    const bool full = gpu_share(g, 0, 4 * STEPPING * STEP_SIZES - 1, steps_are_right, NULL, &steps);
    const bool scan = gpu_share(g, 0, SCANNING * SCAN_SIZES * SCAN_NEARS * SCAN_DECAYS - 1, scans_are_right, NULL, &scans);
    if (wide && !full) return fault_is(what, "full steps: %s", steps.text);
    return wide && !scan ? fault_is(what, "keys of a scan: %s", scans.text) : wide && full && scan;
}
