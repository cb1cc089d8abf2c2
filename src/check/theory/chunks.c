/* Statements on chunkwise forms: each paper's formulas, corrected, against the token-by-token recurrence on the reference, and
 * this library's chunkwise engine in float32 against the same. The counter-case is the form as printed, where there is a
 * misprint. Chunks of 1, 2, 7, 16 and 64 tokens over 100 tokens, from a state that is not zero. */
#include "base/error.h"
#include "check/theory/chunk.h"

enum { T = 100, K = 6, V = 5, COUNTER_CHUNK = 16 };

static const int chunks[] = {1, 2, 7, 16, 64};
enum { CHUNKS = sizeof chunks / sizeof chunks[0] };

/* A rule, and the form that its counter-case takes. */
static const struct {
    const char *rule;
    dr_theory_form counter;
} forms[] = {
    {"pdn", FORM_SWAPPED_PRODUCT},    {"pgdn", FORM_UNDECAYED},
    {"pgdn", FORM_NO_ROW_FACTOR},     {"pkda", FORM_UNDECAYED},
    {"pla", FORM_RAW_QUERY},          {"pmamba2", FORM_RAW_QUERY},
    {"pgla", FORM_RAW_QUERY},         {"pgdn_unstable", FORM_GRAM_AFTER},
    {"qdelta", FORM_SWAPPED_PRODUCT}, {"qdelta", FORM_NO_GAMMA},
    {"qdelta", FORM_WHOLE_LOWER},     {"qdelta", FORM_TURNED_STATE},
    {"eda", FORM_DECAY_FROM_I},       {"eda", FORM_END_FROM_I},
    {"eda", FORM_NO_INVERSE},         {"eda", FORM_NO_GAIN},
};
enum {
    PDN,
    PGDN,
    PGDN_ROW_FACTOR,
    PKDA,
    PLA,
    PMAMBA2,
    PGLA,
    UNSTABLE,
    QDELTA,
    QDELTA_GAMMA,
    QDELTA_LOWER,
    QDELTA_STATE,
    EDA,
    EDA_END,
    EDA_INVERSE,
    EDA_GAIN
};

/* Draws a sequence and computes it token by token. A state that is read turned around must be square. */
static dr_status draw_and_run(dr_theory *theory, int variant, dr_theory_sequence *s) {
    int key_size = forms[variant].counter == FORM_TURNED_STATE ? V : K;
    DR_TRY(dr_theory_draw(theory, forms[variant].rule, T, key_size, V, s));
    return dr_theory_run(theory, s);
}

static double state_distance(const dr_theory_sequence *one, const dr_theory_sequence *other) {
    return worse(dr_theory_distance(T * V, one->o, other->o), distance(final_state(one), final_state(other)));
}

static dr_status compare_form(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence expected, formed;
    DR_TRY(draw_and_run(theory, variant, &expected));
    formed = expected;
    DR_TRY(dr_theory_form_run(forms[variant].counter, COUNTER_CHUNK, &formed));
    *figures = (dr_theory_figures){.counter = state_distance(&formed, &expected)};
    for (int i = 0; i < CHUNKS; i++) {
        DR_TRY(dr_theory_form_run(FORM_CORRECT, chunks[i], &formed));
        figures->statement = worse(figures->statement, state_distance(&formed, &expected));
    }
    return DR_OK;
}

/* The same of the engine on the CPU, in relative errors of o. */
static dr_status compare_engine(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence expected, other;
    DR_TRY(draw_and_run(theory, variant, &expected));
    other = expected;
    DR_TRY(dr_theory_form_run(forms[variant].counter, COUNTER_CHUNK, &other));
    *figures = (dr_theory_figures){.counter = dr_theory_relative(T * V, other.o, expected.o)};
    for (int i = 0; i < CHUNKS; i++) {
        DR_TRY(dr_theory_run_chunkwise(theory->cpu, chunks[i], &other));
        figures->statement = worse(figures->statement, dr_theory_relative(T * V, other.o, expected.o));
    }
    return DR_OK;
}

/* The released kernel's K X^T: right with one token a chunk, else not the same for any two lengths. */
static dr_status depend_on_chunk(dr_theory *theory, int variant, dr_theory_figures *figures) {
    dr_theory_sequence expected, formed;
    DR_TRY(draw_and_run(theory, variant, &expected));
    formed = expected;
    DR_TRY(dr_theory_form_run(FORM_SWAPPED_PRODUCT, 64, &formed));
    figures->statement = dr_theory_distance(T * V, formed.o, expected.o);
    DR_TRY(dr_theory_form_run(FORM_SWAPPED_PRODUCT, 1, &formed));
    figures->counter = dr_theory_distance(T * V, formed.o, expected.o);
    return DR_OK;
}

#define FORM(which)                                                                                                            \
    .measure = LARGEST_DIFFERENCE, .bound = EQUAL, .counter_bound = DIFFERENT, .variant = (which), .compute = compare_form
#define ENGINE(which)                                                                                                          \
    .measure = "largest relative error", .bound = 2e-5, .counter_bound = DIFFERENT, .variant = (which),                        \
    .compute = compare_engine
#define IN_FLOAT " The chunkwise engine in float32 computes it."

static const dr_theory_statement statements[] = {
    {.name = "pdn.f2.1-pdn",
     .statement = "PDN in chunks: U and W with strict(b K K~^T) give the recurrence.",
     .source = P "appendix F.2.1",
     .counter_case = "K~ K^T",
     FORM(PDN)},
    {.name = "pdn.f2.1-pgdn",
     .statement = "PGDN in chunks: U with strict(b Gamma K K~^T), W with strict(b K K~^T), its rows times gamma.",
     .source = P "appendix F.2.1, corrected",
     .counter_case = "as printed: T, W, U of (F.2.6) and (F.2.7), which have no decay",
     FORM(PGDN)},
    {.name = "pdn.f2.1-pgdn-rows",
     .statement = "In PGDN the rows of W carry the factor gamma_r even with the decayed T.",
     .source = P "appendix F.2.1, corrected",
     .counter_case = "as printed: W for W with its arrow",
     FORM(PGDN_ROW_FACTOR)},
    {.name = "pdn.f2.1-pkda",
     .statement = "PKDA in chunks: U and W with strict(b (K Lambda)(K~/Lambda)^T), W of K Lambda.",
     .source = P "appendix F.2.1, corrected",
     .counter_case = "as printed: T, W, U of (F.2.6) and (F.2.7), which have no decay",
     FORM(PKDA)},
    {.name = "pdn.f2.2-pla",
     .statement = "PLA in chunks.",
     .source = P "appendix F.2.2",
     .counter_case = "the query without (A_t + ridge)^-1",
     FORM(PLA)},
    {.name = "pdn.f2.2-pmamba2",
     .statement = "P-Mamba-2 in chunks.",
     .source = P "appendix F.2.2; E.3 with (A_t + ridge)^-1",
     .counter_case = "the query without (A_t + ridge)^-1",
     FORM(PMAMBA2)},
    {.name = "pdn.f2.2-pgla",
     .statement = "PGLA in chunks.",
     .source = P "appendix F.2.2",
     .counter_case = "the query without (A_t + ridge)^-1",
     FORM(PGLA)},
    {.name = "pdn.f1.2-f2.1-unstable",
     .statement = "The chunk form of A_{t-1} and that of PGDN together are the unstable PGDN.",
     .source = P "appendix F.1.2 and F.2.1",
     .counter_case = "A_t for A_{t-1}",
     FORM(UNSTABLE)},
    {.name = "qdelta.eq-27-x-k",
     .statement = "Q-Delta in chunks: row r, column i of the triangle is x_r . k_i, X K^T.",
     .source = Q "eq. 22 to 27; appendix D.2 corrected",
     .counter_case = "as printed in D.2: K X^T",
     FORM(QDELTA)},
    {.name = "qdelta.d2-chunk-length",
     .statement = "With K X^T, which the released kernel computes too, the result depends on the chunk length: 64 tokens.",
     .source = Q "appendix D.2: a remark",
     .measure = LARGEST_DIFFERENCE,
     .bound = 1e-2,
     .at_least = true,
     .counter_case = "chunks of one token",
     .counter_bound = 1e-9,
     .variant = QDELTA,
     .compute = depend_on_chunk},
    {.name = "qdelta.eq-26-decay",
     .statement = "M of the output carries Gamma, gamma_i/gamma_j, beside the causal mask.",
     .source = Q "eq. 26, corrected",
     .counter_case = "as printed: the causal mask alone",
     FORM(QDELTA_GAMMA)},
    {.name = "qdelta.eq-27-strict",
     .statement = "Lower is strictly lower.",
     .source = Q "eq. 27, corrected",
     .counter_case = "as printed: Lower, with its diagonal",
     FORM(QDELTA_LOWER)},
    {.name = "qdelta.eq-26-state",
     .statement = "The state is read as W S with S [K, V], which is W S^T in the paper's orientation.",
     .source = Q "eq. 6 and 26, corrected",
     .counter_case = "as printed: turned around (K = V, else the sizes do not fit)",
     FORM(QDELTA_STATE)},
    {.name = "eda.eq-20-decay",
     .statement = "EDA in chunks of doubled rows: the decay from row i starts at j = i + 1.",
     .source = E "eq. 19 to 22, corrected",
     .counter_case = "as printed in eq. 20: from j = i",
     FORM(EDA)},
    {.name = "eda.eq-21-end",
     .statement = "So does that of A_{i->2t}, which carries rows to the end of the chunk.",
     .source = E "eq. 21, corrected",
     .counter_case = "as printed: D_{1->2t}, .., D_{2t->2t}",
     FORM(EDA_END)},
    {.name = "eda.eq-21-inverse",
     .statement = "W and U are M^-1 Diag(beta') times their right sides.",
     .source = E "eq. 21, corrected",
     .counter_case = "as printed: M times them",
     FORM(EDA_INVERSE)},
    {.name = "eda.eq-21-gain",
     .statement = "Diag(beta') stands beside M^-1.",
     .source = E "eq. 21, corrected",
     .counter_case = "as printed: without it",
     FORM(EDA_GAIN)},
    {.name = "pdn.chunkwise-pdn",
     .statement = "PDN in chunks." IN_FLOAT,
     .source = P "appendix F.2.1",
     .counter_case = "the form with K~ K^T",
     ENGINE(PDN)},
    {.name = "pdn.chunkwise-pgdn",
     .statement = "PGDN in chunks." IN_FLOAT,
     .source = P "appendix F.2.1, corrected",
     .counter_case = "the form as printed",
     ENGINE(PGDN)},
    {.name = "pdn.chunkwise-pkda",
     .statement = "PKDA in chunks." IN_FLOAT,
     .source = P "appendix F.2.1, corrected",
     .counter_case = "the form as printed",
     ENGINE(PKDA)},
    {.name = "pdn.chunkwise-pla",
     .statement = "PLA in chunks." IN_FLOAT,
     .source = P "appendix F.2.2",
     .counter_case = "the form without (A_t + ridge)^-1",
     ENGINE(PLA)},
    {.name = "pdn.chunkwise-pmamba2",
     .statement = "P-Mamba-2 in chunks." IN_FLOAT,
     .source = P "appendix F.2.2",
     .counter_case = "the form without (A_t + ridge)^-1",
     ENGINE(PMAMBA2)},
    {.name = "pdn.chunkwise-pgla",
     .statement = "PGLA in chunks." IN_FLOAT,
     .source = P "appendix F.2.2",
     .counter_case = "the form without (A_t + ridge)^-1",
     ENGINE(PGLA)},
    {.name = "pdn.chunkwise-unstable",
     .statement = "The unstable PGDN in chunks." IN_FLOAT,
     .source = P "appendix F.1.2 and F.2.1",
     .counter_case = "the form with A_t for A_{t-1}",
     ENGINE(UNSTABLE)},
    {.name = "qdelta.chunkwise",
     .statement = "Q-Delta in chunks." IN_FLOAT,
     .source = Q "eq. 22 to 27, corrected",
     .counter_case = "the form with K X^T",
     ENGINE(QDELTA)},
    {.name = "eda.chunkwise",
     .statement = "EDA in chunks." IN_FLOAT,
     .source = E "eq. 19 to 22, corrected",
     .counter_case = "the form with eq. 20 as printed",
     ENGINE(EDA)},
};
const dr_theory_chapter dr_theory_chunks = {statements, sizeof statements / sizeof statements[0]};
