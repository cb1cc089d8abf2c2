/* 16 bits, held to twice the error of a plain loop that rounds as much: the reference in double, whose inputs and results are
 * rounded to the storage type. Of each tensor the worst row counts, which is what a token (or a sequence) has of a head. */
#include "rounding.h"

#include "base/half.h"
#include "ops/shapes.h"

#include <math.h>

static double rounded(double x, dr_dtype dtype) {
    return dtype == DR_BF16 ? (double)dr_bf16_to_float(dr_bf16_from_float((float)x))
                            : (double)dr_f16_to_float(dr_f16_from_float((float)x));
}

static void round_numbers(double *x, int64_t count, dr_dtype dtype) {
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

enum { TENSORS = 1 + 2 * DR_STATES + DR_INPUTS };

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

/* The norm of the worst row's error over the root mean square of the rows' norms; infinite where a number is not finite. */
static double worst_row(const row_tensor *got, const row_tensor *want) {
    double worst = 0, size = 0;
    for (int64_t i = 0; i < want->rows; i++) {
        double apart = 0;
        for (int64_t j = i * want->width; j < (i + 1) * want->width; j++) {
            if (!isfinite(got->at[j])) return INFINITY;
            apart += (got->at[j] - want->at[j]) * (got->at[j] - want->at[j]);
            size += want->at[j] * want->at[j];
        }
        worst = fmax(worst, apart);
    }
    const double least = least_size_chunkwise * sqrt((double)want->width);
    return sqrt(worst) / fmax(sqrt(size / (double)want->rows), least);
}

/* The errors of the plain loop with rounded inputs and results, the worst of `moves` neighbours of the problem, and at least
 * what rounding alone does to numbers whose logarithm is spread evenly. */
static bool plain_errors(gpu *g, const dr_backend *cuda, const problem *p, int moves, dr_random *random, double errors[TENSORS],
                         fault *what) {
    const double unit = dr_recurrence_output_dtype(cuda) == DR_BF16 ? 0x1p-8 : 0x1p-11;
    const double least = 2 * unit * sqrt(3 / (8 * log(2))) / sqrt(12);
    for (int n = 0; n < TENSORS; n++) errors[n] = least;
    bool holds = true;
    for (int i = 0; i < moves && holds; i++) {
        problem *exact = problem_copy(p);
        if (i > 0) move_vectors(cuda, exact, unit, random);
        problem *coarse = problem_copy(exact);
        round_inputs(cuda, coarse);
        result want = {0}, got = {0};
        holds = problem_run(g->reference, exact, DR_PATH_BEST, 0, true, &want, what) &&
                problem_run(g->reference, coarse, DR_PATH_BEST, 0, true, &got, what);
        if (holds) round_results(cuda, p, &got);
        for (int n = 0; n < TENSORS && holds; n++) {
            const row_tensor of_want = tensor_of(p, &want, n), of_got = tensor_of(p, &got, n);
            if (of_want.at) errors[n] = fmax(errors[n], worst_row(&of_got, &of_want));
        }
        result_free(&want), result_free(&got);
        problem_free(exact), problem_free(coarse);
    }
    return holds;
}

bool rounds_as_plain(gpu *g, int type, const problem *p, dr_path path, int moves, dr_random *random, fault *what) {
    double errors[TENSORS];
    char kernel[96];
    result want = {0}, got = {0};
    dr_recurrence recurrence = p->recurrence;
    recurrence.path = path;
    dr_recurrence_kernel(g->cuda[type], &recurrence, false, kernel, sizeof kernel);
    bool holds = plain_errors(g, g->cuda[type], p, moves, random, errors, what) &&
                 problem_run(g->reference, p, DR_PATH_BEST, 0, true, &want, what) &&
                 problem_run(g->cuda[type], p, path, 0, true, &got, what) && dead_decays(kernel, p, &got, what);
    double worst = 0;
    for (int n = 0; n < TENSORS && holds; n++) {
        const row_tensor of_want = tensor_of(p, &want, n), of_got = tensor_of(p, &got, n);
        if (!of_want.at) continue;
        const double error = worst_row(&of_got, &of_want), ratio = error / (2 * errors[n]);
        g->worst[type] = fmax(g->worst[type], ratio);
        if (ratio <= 1 || ratio <= worst) continue;
        worst = ratio;
        fault_is(what,
                 "%s, K %lld, V %lld, H %lld, HV %lld, %lld tokens: %s has error %.3g in a row, the plain loop %.2g (x%.2f)",
                 kernel, (long long)recurrence.key_size, (long long)recurrence.value_size, (long long)recurrence.key_heads,
                 (long long)recurrence.value_heads, (long long)recurrence.layout.rows, of_want.name, error, errors[n], ratio);
    }
    result_free(&want), result_free(&got);
    g->checks++;
    return holds && worst <= 1;
}
