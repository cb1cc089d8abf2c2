/* Comparing results: near the reference as far as float32 can be, or the same bits. */
#include "ops/shapes.h"
#include "problem.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

/* those of the recorded results */
const double tolerance_forward = 2e-5, tolerance_backward = 1e-4;
const double least_size = 1e-6, least_size_chunkwise = 1e-2;

enum { MULTIPLE = 20 };

double error_of(const double *got, const double *want, int64_t count, double least) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(got[i])) return INFINITY;
        apart += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(apart) / fmax(sqrt(size), least * sqrt((double)count));
}

bool problem_run_plain(const problem *p, int try, result *r, fault *what) {
    static const int directions[MOVES] = {FE_UPWARD, FE_DOWNWARD, FE_TONEAREST};
    fesetround(directions[try % MOVES]);
    bool ran = problem_run(plain_float_backend(), p, DR_PATH_BEST, 0, true, r, what);
    fesetround(FE_TONEAREST);
    return ran;
}

bool standard_create(dr_backend *reference, const problem *p, dr_random *random, standard *s, fault *what) {
    *s = (standard){0};
    if (!problem_run(reference, p, DR_PATH_BEST, 0, true, &s->want, what)) return false;
    for (int i = 0; i < MOVES; i++) {
        problem *shifted = problem_copy(p);
        move_inputs(shifted, random);
        bool ran = problem_run(reference, shifted, DR_PATH_BEST, 0, true, &s->moved[i], what) &&
                   problem_run_plain(shifted, i, &s->moved_plain[i], what);
        problem_free(shifted);
        if (!ran) return false;
    }
    return true;
}

void standard_free(standard *s) {
    result_free(&s->want);
    for (int i = 0; i < MOVES; i++) result_free(&s->moved[i]), result_free(&s->moved_plain[i]);
}

/* One tensor of the results. */
typedef struct {
    const char *of, *name; /* "gradient of", "beta" */
    const double *got, *want, *moved[MOVES], *moved_plain[MOVES];
    int64_t count;
    double tolerance, least;
} comparison;

static bool is_near(const char *name, comparison c, double *worst, fault *what) {
    if (c.count == 0) return true;
    double error = error_of(c.got, c.want, c.count, c.least), cost = 0;
    for (int i = 0; i < MOVES; i++) {
        cost = fmax(cost, error_of(c.moved[i], c.want, c.count, c.least));
        cost = fmax(cost, error_of(c.moved_plain[i], c.moved[i], c.count, c.least));
    }
    double allowed = c.tolerance + MULTIPLE * cost;
    *worst = fmax(*worst, error / allowed);
    return error <= allowed ||
           fault_is(what, "%s: %s %s has error %.3g, at most %.2g is right", name, c.of, c.name, error, allowed);
}

#define COMPARISON(phrase, part, member, elements, bound)                                                                      \
    (comparison) {                                                                                                             \
        .of = phrase, .name = part, .got = got->member, .want = s->want.member,                                                \
        .moved = {s->moved[0].member, s->moved[1].member, s->moved[2].member},                                                 \
        .moved_plain = {s->moved_plain[0].member, s->moved_plain[1].member, s->moved_plain[2].member}, .count = elements,      \
        .tolerance = bound, .least = least                                                                                     \
    }

bool results_near(const char *name, const problem *p, const result *got, const standard *s, bool backwards, dr_path path,
                  double *worst, fault *what) {
    const double root = path == DR_PATH_CHUNKWISE ? sqrt(fmax((double)dr_layout_longest(&p->recurrence.layout), 1)) : 1;
    const double least = path == DR_PATH_CHUNKWISE ? least_size_chunkwise * root : least_size;
    if (!is_near(name, COMPARISON("output", "o", o, p->o_count, tolerance_forward), worst, what)) return false;
    for (int i = 0; i < DR_STATES; i++) {
        const char *state = dr_state_name((dr_state_kind)i);
        if (!is_near(name, COMPARISON("final", state, final[i], p->state_count[i], tolerance_forward), worst, what))
            return false;
        if (!backwards) continue;
        if (!is_near(name, COMPARISON("gradient of initial", state, d_initial[i], p->state_count[i], tolerance_backward), worst,
                     what))
            return false;
    }
    for (int i = 0; i < DR_INPUTS && backwards; i++) {
        const char *input = dr_input_name((dr_input)i);
        comparison c = COMPARISON("gradient of", input, gradient[i], p->input_count[i], tolerance_backward);
        if (i == DR_INPUT_LOG_DECAY) c.least *= p->rule.decay == DR_DECAY_CONSTANT ? root * root : root;
        if (!is_near(name, c, worst, what)) return false;
    }
    return true;
}

bool numbers_same(const char *name, const char *of, const double *a, const double *b, int64_t count, fault *what) {
    if (count == 0 || memcmp(a, b, (size_t)count * sizeof(double)) == 0) return true;
    return fault_is(what, "%s: %s differs in its bits", name, of);
}

bool results_same(const char *name, const problem *p, const result *a, const result *b, fault *what) {
    if (!numbers_same(name, "o", a->o, b->o, p->o_count, what)) return false;
    for (int i = 0; i < DR_INPUTS; i++)
        if (!numbers_same(name, dr_input_name((dr_input)i), a->gradient[i], b->gradient[i], p->input_count[i], what))
            return false;
    for (int i = 0; i < DR_STATES; i++) {
        if (!p->initial[i]) continue;
        if (!numbers_same(name, "a final state", a->final[i], b->final[i], p->state_count[i], what) ||
            !numbers_same(name, "a gradient of an initial state", a->d_initial[i], b->d_initial[i], p->state_count[i], what))
            return false;
    }
    return true;
}

bool sequence_same(const problem *p, const problem *own, int64_t sequence, const result *packed, const result *alone,
                   fault *what) {
    const int64_t row = p->cu_seqlens[sequence], width = p->recurrence.value_heads * p->recurrence.value_size;
    if (!numbers_same("packed", "o", packed->o + row * width, alone->o, own->o_count, what)) return false;
    for (int i = 0; i < DR_INPUTS; i++) { /* a parameter's gradient is a sum over sequences */
        if (!own->input[i] || !is_per_token(own, (dr_input)i)) continue;
        const double *of_packed = packed->gradient[i] + row * input_width(own, (dr_input)i);
        if (!numbers_same("packed: gradient of", dr_input_name((dr_input)i), of_packed, alone->gradient[i], own->input_count[i],
                          what))
            return false;
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!own->initial[i]) continue;
        const int64_t count = own->state_count[i];
        const double *final = packed->final[i] + sequence * count, *d_initial = packed->d_initial[i] + sequence * count;
        if (!numbers_same("packed: final", dr_state_name((dr_state_kind)i), final, alone->final[i], count, what) ||
            !numbers_same("packed: gradient of", dr_state_name((dr_state_kind)i), d_initial, alone->d_initial[i], count, what))
            return false;
    }
    return true;
}

bool dead_decays(const char *name, const problem *p, const result *r, fault *what) {
    static const dr_input decays[2] = {DR_INPUT_LOG_DECAY, DR_INPUT_SCAN_LOG_DECAY};
    for (int n = 0; n < 2; n++)
        for (int64_t i = 0; i < p->input_count[decays[n]]; i++)
            if (p->input[decays[n]][i] == -INFINITY && r->gradient[decays[n]][i] != 0)
                return fault_is(what, "%s: gradient of %s at -inf is %g", name, dr_input_name(decays[n]),
                                r->gradient[decays[n]][i]);
    return true;
}
