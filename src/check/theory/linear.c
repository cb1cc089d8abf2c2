/* Statements on linear attention: keys and values summed once for all queries, and which way round the sum is. */
#include "base/error.h"
#include "check/theory/theory.h"

#define NOTES "linear attention (Q-Delta, eq. 1; common derivations of it)"

enum { T = 7 };

static dr_status sum_pairs(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(dr_theory_draw(theory, "linear_attention", T, 4, 3, &s));
    start_from(&s, zeros(4, 3));
    DR_TRY(dr_theory_run(theory, &s));
    *figures = (dr_theory_figures){0, 0};
    for (int t = 0; t < T; t++) {
        matrix query = vector_at(&s, DR_INPUT_QUERY, t), all = zeros(3, 1);
        for (int i = 0; i < T; i++)
            all = sum(all, scaled(dot(query, vector_at(&s, DR_INPUT_KEY, i)), vector_at(&s, DR_INPUT_VALUE, i)));
        figures->statement = worse(figures->statement, distance(all, read_out(final_state(&s), query)));
        figures->counter = worse(figures->counter, distance(all, o_at(&s, t)));
    }
    return DR_OK;
}

static dr_status turn_state(dr_theory *theory, int variant, dr_theory_figures *figures) {
    (void)variant;
    dr_theory_sequence s;
    DR_TRY(dr_theory_draw(theory, "linear_attention", T, 4, 4, &s));
    start_from(&s, zeros(4, 4));
    DR_TRY(dr_theory_run(theory, &s));
    matrix value_by_key = zeros(4, 4);
    for (int t = 0; t < T; t++)
        value_by_key = sum(value_by_key, outer(vector_at(&s, DR_INPUT_VALUE, t), vector_at(&s, DR_INPUT_KEY, t)));
    figures->statement = distance(final_state(&s), transpose(value_by_key));
    figures->counter = distance(final_state(&s), value_by_key);
    return DR_OK;
}

static const dr_theory_statement statements[] = {
    {.name = "linear.sum-of-pairs",
     .statement = "Without a causal mask (Q K^T) V = Q (K^T V), and K^T V is the last state.",
     .source = NOTES,
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "the causal outputs of the recurrence",
     .counter_bound = DIFFERENT,
     .compute = sum_pairs},
    {.name = "linear.transpose",
     .statement = "S = K^T V is the transpose of the sum of v k^T.",
     .source = NOTES ", corrected",
     .measure = LARGEST_DIFFERENCE,
     .bound = EQUAL,
     .counter_case = "as printed: the two are the same matrix (K = V = 4)",
     .counter_bound = DIFFERENT,
     .compute = turn_state},
};
const dr_theory_chapter dr_theory_linear = {statements, sizeof statements / sizeof statements[0]};
