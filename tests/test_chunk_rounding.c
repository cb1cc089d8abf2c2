/* Which rules bear it that chunks round to bf16 between stages (docs/cuda.md, Types): the forward and the reverse pass of
 * docs/chunkwise.md in double, rounded where backend cuda rounds, are held row by row to twice the error of a plain loop whose
 * inputs and results are rounded. Rows that take a read off in full of what other rows write (dplr, rwkv7) hold. A row that
 * takes full steps along the key that it writes holds only since the reverse pass takes diag(c) dY in two parts (reverse.cuh).
 * Keys that a diagonal scan has squashed hold without decay, and in gains made of them, although chunks round them.
 */
#include "base/half.h"
#include "ops/shapes.h"
#include "recurrence/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 128, ROWS = 64, TOKENS = 200, MOVED = 6, TENSORS = 4 };

typedef double rows_of[ROWS][SIZE];

/* What a chunk of one head is made of, row by row, and what prepare makes of it. */
typedef struct {
    int tokens, rows, steps, first;
    rows_of read, write, value, query;
    double gain[ROWS], decay[ROWS + 1][SIZE]; /* of the log decays the sum before each row */
    bool undecayed, full;
    rows_of reader, asker, exit;
    double score[ROWS][ROWS], keep[SIZE];
} chunk;

/* o, the gradients of values, of the state before and the state behind, as the passes leave them. */
typedef struct {
    double o[TOKENS][SIZE], d_value[TOKENS][SIZE], d_initial[SIZE][SIZE], final[SIZE][SIZE];
} passes;

static double squashed[TOKENS][SIZE]; /* B * key of every token, rounded */
static dr_backend *reference;
static bool one_part; /* what full steps take off a gradient is rounded once */

static double rounded(double x) {
    return (double)dr_bf16_to_float(dr_bf16_from_float((float)x));
}

/* Two numbers of 16 bits whose sum is nearly x. */
static double in_two_parts(double x) {
    return rounded(x) + rounded(x - rounded(x));
}

static void round_all(double *x, int64_t count) {
    for (int64_t i = 0; x && i < count; i++) x[i] = rounded(x[i]);
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------------- */

static const double *vector_of(const problem *p, dr_input input, int token) {
    return p->input[input] + (int64_t)token * SIZE;
}

static double dot(const double *x, const double *y) {
    double sum = 0;
    for (int d = 0; d < SIZE; d++) sum += x[d] * y[d];
    return sum;
}

/* The keys that the diagonal scan makes, of a squash to [1/x, x] by r / (1 + |r|). */
static void make_squashed(const problem *p) {
    double a[SIZE];
    memcpy(a, p->initial[DR_STATE_A], sizeof a);
    for (int t = 0; t < TOKENS; t++) {
        const double *key = vector_of(p, DR_INPUT_KEY, t), alpha = exp(p->input[DR_INPUT_SCAN_LOG_DECAY][t]);
        for (int d = 0; d < SIZE; d++) {
            a[d] = alpha * a[d] + p->input[DR_INPUT_SCAN_GAIN][t] * key[d] * key[d];
            const double r = log(a[d] + p->rule.squash.eps) - p->input[DR_INPUT_SCAN_CENTRE][0];
            squashed[t][d] = rounded(key[d] * exp(-log(p->rule.squash.x) * r / (1 + fabs(r))));
        }
    }
}

/* Row `step` of a token, for the reads and writes of the rules here. */
static void take_row(const problem *p, chunk *x, int row, int token, int step) {
    const dr_row *of = &p->rule.row[step];
    const double *key = vector_of(p, DR_INPUT_KEY, token), *value = vector_of(p, DR_INPUT_VALUE, token);
    const bool free_read = of->read == DR_READ_FREE, free_write = of->write == DR_WRITE_FREE;
    const double *read = free_read                      ? vector_of(p, DR_INPUT_FREE_READ, token)
                         : of->read == DR_READ_FEEDBACK ? vector_of(p, DR_INPUT_FEEDBACK_KEY, token)
                                                        : key;
    for (int d = 0; d < SIZE; d++) {
        x->read[row][d] = of->read == DR_READ_NONE ? 0 : free_read ? -read[d] : read[d];
        x->write[row][d] = free_write                             ? vector_of(p, DR_INPUT_FREE_WRITE, token)[d]
                           : of->write == DR_WRITE_PRECONDITIONED ? squashed[token][d]
                           : of->write == DR_WRITE_RATE_READ      ? vector_of(p, DR_INPUT_RATE, token)[d] * x->read[row][d]
                                                                  : key[d];
        x->value[row][d] = of->value == DR_VALUE_NONE ? 0 : value[d];
    }
    const double *beta = p->input[DR_INPUT_BETA];
    x->gain[row] = of->gain == DR_GAIN_BETA         ? beta[token]
                   : of->gain == DR_GAIN_IMPLICIT   ? beta[token] / (1 + beta[token] * dot(x->read[row], x->write[row]))
                   : of->gain == DR_GAIN_NORMALIZED ? 1 / (dot(x->read[row], x->write[row]) + p->rule.gain_eps)
                                                    : 1;
    x->full =
        (of->gain == DR_GAIN_ONE || of->gain == DR_GAIN_NORMALIZED) && of->read == DR_READ_KEY && of->write == DR_WRITE_KEY;
    for (int d = 0; d < SIZE && of->value == DR_VALUE_GAIN; d++) x->value[row][d] *= x->gain[row];
    if (step == 0) x->undecayed = of->undecayed;
}

static double log_decay(const problem *p, int token, int channel) {
    const double *decay = p->input[DR_INPUT_LOG_DECAY];
    return !decay ? 0 : p->rule.decay == DR_DECAY_CHANNEL ? decay[(int64_t)token * SIZE + channel] : decay[token];
}

static void take_chunk(const problem *p, int first, chunk *x) {
    *x = (chunk){.steps = dr_rule_steps(&p->rule), .first = first};
    const int left = TOKENS - first, most = ROWS / x->steps;
    x->tokens = left < most ? left : most;
    x->rows = x->tokens * x->steps;
    for (int row = 0; row < x->rows; row++) {
        const int token = first + row / x->steps;
        take_row(p, x, row, token, row % x->steps);
        for (int d = 0; d < SIZE; d++) {
            x->decay[row + 1][d] = x->decay[row][d] + (row % x->steps ? 0 : log_decay(p, token, d));
            x->query[row / x->steps][d] = vector_of(p, DR_INPUT_QUERY, token)[d];
        }
    }
}

/* The boundary at which a row reads. */
static int reads_at(const chunk *x, int row) {
    return row + 1 - (x->undecayed && row % x->steps == 0);
}

/* A = (I + L)^-1 of rows of L below its diagonal. */
static void invert(double l[ROWS][ROWS], int rows, double a[ROWS][ROWS]) {
    memset(a, 0, sizeof(double[ROWS][ROWS]));
    for (int i = 0; i < rows; i++) {
        a[i][i] = 1;
        for (int j = 0; j < i; j++)
            for (int k = j; k < i; k++) a[i][j] -= l[i][k] * a[k][j];
    }
}

/* Rows scaled so that all decays are products (docs/chunkwise.md, Mild chunks) are rounded, and what leaves prepare is. */
static void prepare(chunk *x) {
    static rows_of read, write, query, leave;
    static double l[ROWS][ROWS], a[ROWS][ROWS], score[ROWS][ROWS];
    const double *all = x->decay[x->rows], scale = 1 / sqrt((double)SIZE);
    memset(score, 0, sizeof score), memset(x->score, 0, sizeof x->score), memset(x->exit, 0, sizeof x->exit);
    for (int d = 0; d < SIZE; d++) {
        x->keep[d] = exp(all[d]);
        for (int i = 0; i < x->rows; i++) {
            const double at = x->decay[reads_at(x, i)][d], behind = x->decay[i + 1][d];
            read[i][d] = rounded(x->read[i][d] * exp(at - all[d] / 2)), x->reader[i][d] = rounded(x->read[i][d] * exp(at));
            write[i][d] = rounded(x->write[i][d] * exp(all[d] / 2 - behind));
            leave[i][d] = rounded(x->write[i][d] * exp(all[d] - behind));
        }
        for (int t = 0; t < x->tokens; t++) {
            const double at = x->decay[(t + 1) * x->steps][d];
            query[t][d] = rounded(x->query[t][d] * exp(at - all[d] / 2));
            x->asker[t][d] = rounded(scale * x->query[t][d] * exp(at));
        }
    }
    for (int i = 0; i < x->rows; i++)
        for (int j = 0; j < i; j++) l[i][j] = x->gain[i] * dot(read[i], write[j]);
    invert(l, x->rows, a);
    for (int t = 0; t < x->tokens; t++)
        for (int j = 0; j < (t + 1) * x->steps; j++) score[t][j] = scale * dot(query[t], write[j]);
    for (int t = 0; t < x->tokens; t++)
        for (int i = 0; i < x->rows; i++)
            for (int j = 0; j < x->rows; j++) x->score[t][i] += score[t][j] * a[j][i];
    for (int i = 0; i < x->rows; i++)
        for (int j = i; j < x->rows; j++)
            for (int d = 0; d < SIZE; d++) x->exit[i][d] += a[j][i] * leave[j][d];
    round_all(&x->exit[0][0], ROWS * SIZE), round_all(&x->score[0][0], ROWS * ROWS);
}

/* ---- passes over a sequence ------------------------------------------------------------------------------------------- */

/* From the state before a chunk its outputs and the state behind. whole: the state is given, and its rest is not lost. */
static void pass_state(const chunk *x, bool whole, double state[SIZE][SIZE], passes *to) {
    static rows_of update;
    for (int v = 0; v < SIZE; v++) {
        double before[SIZE];
        for (int d = 0; d < SIZE; d++) before[d] = whole ? state[d][v] : rounded(state[d][v]);
        for (int i = 0; i < x->rows; i++) update[i][v] = rounded(x->value[i][v] - x->gain[i] * dot(x->reader[i], before));
        for (int t = 0; t < x->tokens; t++) {
            double o = dot(x->asker[t], before);
            for (int i = 0; i < x->rows; i++) o += x->score[t][i] * update[i][v];
            to->o[x->first + t][v] = rounded(o);
        }
        for (int d = 0; d < SIZE; d++) {
            state[d][v] *= x->keep[d];
            for (int i = 0; i < x->rows; i++) state[d][v] += x->exit[i][d] * update[i][v];
        }
    }
}

/* Back: gradients of values and of the state before from that of the one behind. */
static void pass_back(const problem *p, const chunk *x, bool whole, double state[SIZE][SIZE], passes *to) {
    for (int v = 0; v < SIZE; v++) {
        double behind[SIZE], d_o[ROWS], erased[ROWS];
        for (int d = 0; d < SIZE; d++) behind[d] = whole ? state[d][v] : rounded(state[d][v]), state[d][v] *= x->keep[d];
        for (int t = 0; t < x->tokens; t++) d_o[t] = p->d_o[(int64_t)(x->first + t) * SIZE + v];
        for (int i = 0; i < x->rows; i++) {
            double d_update = dot(x->exit[i], behind);
            for (int t = 0; t < x->tokens; t++) d_update += x->score[t][i] * d_o[t];
            erased[i] = x->full && !one_part ? in_two_parts(x->gain[i] * d_update) : rounded(x->gain[i] * d_update);
            d_update = rounded(d_update);
            if (p->rule.row[i % x->steps].value != DR_VALUE_NONE)
                to->d_value[x->first + i / x->steps][v] =
                    p->rule.row[i % x->steps].value == DR_VALUE_GAIN ? rounded(x->gain[i] * d_update) : d_update;
        }
        for (int d = 0; d < SIZE; d++) {
            for (int t = 0; t < x->tokens; t++) state[d][v] += x->asker[t][d] * d_o[t];
            for (int i = 0; i < x->rows; i++) state[d][v] -= x->reader[i][d] * erased[i];
        }
    }
}

static void run_chunks(const problem *p, passes *to) {
    const int length = ROWS / dr_rule_steps(&p->rule), count = (TOKENS + length - 1) / length;
    chunk *chunks = calloc((size_t)count, sizeof *chunks);
    assert_non_null(chunks);
    if (p->rule.scan == DR_SCAN_DIAGONAL) make_squashed(p);
    memcpy(to->final, p->initial[DR_STATE_S], sizeof to->final);
    for (int i = 0; i < count; i++) {
        take_chunk(p, i * length, &chunks[i]);
        prepare(&chunks[i]);
        pass_state(&chunks[i], i == 0, to->final, to);
    }
    memcpy(to->d_initial, p->d_final[DR_STATE_S], sizeof to->d_initial);
    for (int i = count - 1; i >= 0; i--) pass_back(p, &chunks[i], i == count - 1, to->d_initial, to);
    free(chunks);
}

/* ---- against plain loops ---------------------------------------------------------------------------------------------- */

/* Keys, and free ones, near one direction. */
static void draw_near(problem *p, double near) {
    static const dr_input keys[] = {DR_INPUT_KEY, DR_INPUT_FEEDBACK_KEY, DR_INPUT_FREE_READ, DR_INPUT_FREE_WRITE};
    for (int k = 0; k < 4; k++) {
        double *key = p->input[keys[k]], first[SIZE];
        if (!key) continue;
        memcpy(first, key, sizeof first);
        for (int t = 0; t < TOKENS; t++, key += SIZE) {
            const double size = dot(key, key);
            for (int d = 0; d < SIZE; d++) key[d] = near * first[d] + sqrt(1 - near * near) * key[d];
            const double factor = sqrt(size / dot(key, key));
            for (int d = 0; d < SIZE; d++) key[d] = (float)(key[d] * factor);
        }
    }
}

static problem *rounded_problem(const problem *p) {
    problem *coarse = problem_copy(p);
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_input_is_vector((dr_input)i) && i != DR_INPUT_LOG_DECAY) round_all(coarse->input[i], coarse->input_count[i]);
    round_all(coarse->d_o, coarse->o_count);
    return coarse;
}

static result run_plain(const problem *p) {
    result r = {0};
    fault what;
    if (!problem_run(reference, p, DR_PATH_BEST, 0, true, &r, &what)) fail_msg("%s", what.text);
    return r;
}

/* Of o, the gradients of values, that of the state before and the state behind: the worst row over the rows' mean. */
static void errors_of(const double *const is[TENSORS], const result *want, double errors[TENSORS]) {
    const double *const right[] = {want->o, want->gradient[DR_INPUT_VALUE], want->d_initial[DR_STATE_S],
                                   want->final[DR_STATE_S]};
    static const int rows[] = {TOKENS, TOKENS, 1, 1}, width[] = {SIZE, SIZE, SIZE * SIZE, SIZE * SIZE};
    for (int n = 0; n < TENSORS; n++) {
        double worst = 0, size = 0;
        for (int i = 0; i < rows[n]; i++) {
            double apart = 0;
            for (int64_t j = (int64_t)i * width[n]; j < (int64_t)(i + 1) * width[n]; j++)
                apart += (is[n][j] - right[n][j]) * (is[n][j] - right[n][j]), size += right[n][j] * right[n][j];
            worst = fmax(worst, apart);
        }
        errors[n] = fmax(errors[n], sqrt(worst / (size / rows[n])));
    }
}

/* Chunks' worst error over what is allowed. */
static double worst_of(const dr_rule *rule, double near, double decays) {
    static passes got;
    const int64_t cu_seqlens[] = {0, TOKENS};
    const dr_recurrence shape = {.rule = rule,
                                 .layout = {.sequences = 1, .rows = TOKENS, .cu_seqlens = cu_seqlens},
                                 .key_heads = 1,
                                 .value_heads = 1,
                                 .key_size = SIZE,
                                 .value_size = SIZE};
    dr_random random = dr_random_start(1, 1);
    problem *p = problem_create(rule, &shape, false, &random);
    draw_near(p, near);
    static const dr_input logs[] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->input_count[logs[k]]; i++) p->input[logs[k]][i] *= decays;
    /* at least what rounding alone does to numbers whose logarithm is spread evenly */
    const double least = 0x1p-7 * sqrt(3 / (8 * log(2))) / sqrt(12);
    double allowed[TENSORS] = {least, least, least, least}, errors[TENSORS] = {0}, worst = 0;
    for (int i = 0; i < MOVED; i++) {
        problem *exact = problem_copy(p);
        for (int k = 0; k < DR_INPUTS && i > 0; k++)
            for (int64_t j = 0; j < p->input_count[k] && dr_input_is_vector((dr_input)k) && k != DR_INPUT_LOG_DECAY; j++)
                exact->input[k][j] = (float)(exact->input[k][j] * (1 + uniform(&random, -0x1p-8, 0x1p-8)));
        problem *coarse = rounded_problem(exact);
        result of_exact = run_plain(exact), of_coarse = run_plain(coarse);
        round_all(of_coarse.o, p->o_count), round_all(of_coarse.gradient[DR_INPUT_VALUE], p->input_count[DR_INPUT_VALUE]);
        const double *const plain[] = {of_coarse.o, of_coarse.gradient[DR_INPUT_VALUE], of_coarse.d_initial[DR_STATE_S],
                                       of_coarse.final[DR_STATE_S]};
        errors_of(plain, &of_exact, allowed);
        result_free(&of_exact), result_free(&of_coarse);
        problem_free(exact), problem_free(coarse);
    }
    problem *coarse = rounded_problem(p);
    run_chunks(coarse, &got);
    result want = run_plain(p);
    const double *const chunks[] = {got.o[0], got.d_value[0], got.d_initial[0], got.final[0]};
    errors_of(chunks, &want, errors);
    for (int n = 0; n < TENSORS; n++) worst = fmax(worst, errors[n] / (2 * allowed[n]));
    result_free(&want);
    problem_free(coarse), problem_free(p);
    return worst;
}

static void check_free_keys_hold(void **state) {
    (void)state;
    static const char *const names[] = {"dplr", "rwkv7"};
    for (int i = 0; i < 2; i++)
        for (int near = 0; near < 2; near++)
            for (int weak = 0; weak < 2; weak++) {
                const double worst = worst_of(dr_rule_find(names[i]), near * 0.8, weak ? 0.02 : 1);
                if (worst > 1) fail_msg("%s, near %g: %.2f times what is allowed", names[i], near * 0.8, worst);
            }
}

/* delta_net and gdn with a gain of one or 1 / (k . k), near keys among them. */
static void check_full_steps_hold(void **state) {
    (void)state;
    static const char *const names[] = {"delta_net", "gdn"};
    static const dr_gain gains[] = {DR_GAIN_ONE, DR_GAIN_NORMALIZED};
    for (int i = 0; i < 2; i++)
        for (int g = 0; g < 2; g++)
            for (int near = 0; near < 2; near++) {
                dr_rule rule = *dr_rule_find(names[i]);
                rule.row[0].gain = gains[g];
                rule.row[0].value = DR_VALUE_V;
                const double worst = worst_of(&rule, near * 0.95, 0.02);
                if (worst > 1)
                    fail_msg("%s, gain %s, near %g: %.2f times what is allowed", names[i], dr_gain_name(gains[g]), near * 0.95,
                             worst);
            }
}

/* Of pdn and plonghorn, with and without decays of the scan. Of cosine 0.8 and without decay plonghorn is on the border, 1.01
 * in the gradient of values (docs/lab/cuda/schedules.md). */
static void check_squashed_keys_hold(void **state) {
    (void)state;
    static const char *const names[] = {"pdn", "plonghorn"};
    static const double nears[] = {0, 0.5, 0.95};
    for (int i = 0; i < 2; i++)
        for (int near = 0; near < 3; near++)
            for (int weak = 0; weak < 2; weak++) {
                const double worst = worst_of(dr_rule_find(names[i]), nears[near], weak ? 0 : 1);
                if (worst > 1) fail_msg("%s, near %g: %.2f times what is allowed", names[i], nears[near], worst);
            }
}

static void check_one_part_does_not(void **state) {
    (void)state;
    dr_rule rule = *dr_rule_find("delta_net");
    rule.row[0].gain = DR_GAIN_ONE;
    rule.row[0].value = DR_VALUE_V;
    one_part = true;
    assert_true(worst_of(&rule, 0.95, 1) > 1);
    one_part = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(check_free_keys_hold), cmocka_unit_test(check_full_steps_hold),
                                       cmocka_unit_test(check_squashed_keys_hold), cmocka_unit_test(check_one_part_does_not)};
    if (dr_backend_open("reference", NULL, &reference) != DR_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dr_backend_close(reference);
    return failed;
}
