/* Calls of plans with forms: every rule with everything made of its inputs, at sizes that kernels have and others; tensors with
 * pitches, of other types, states with values first; decoding; and forwards whose states lie in a pool. */
#include "formed.h"
#include "../formed_tensors.h"

#include <deltarule/prefill.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 3, SLOTS = 7 };

static bool done(formed_trials *t, dr_status status, const char *of) {
    return status == DR_OK || fault_is(t->what, "%s: %s", of, dr_last_error());
}

/* ---- problems ---------------------------------------------------------------------------------------------------------- */

static problem *problem_of(const dr_rule *rule, int64_t K, int64_t V, int64_t tokens, dr_random *random) {
    const int64_t cu_seqlens[SEQUENCES + 1] = {0, tokens * 3 / 10, tokens * 3 / 10, tokens};
    const dr_recurrence sizes = {.layout = {.sequences = SEQUENCES, .rows = tokens, .cu_seqlens = cu_seqlens},
                                 .key_heads = 2,
                                 .value_heads = rule->tied_scan ? 2 : 4,
                                 .key_size = K,
                                 .value_size = V,
                                 .forget = DR_FORGET};
    problem *p = problem_create(rule, &sizes, false, random);
    p->recurrence.rule = &p->rule;
    return p;
}

static bool has_raw_decay(const dr_rule *rule) {
    return rule->decay == DR_DECAY_SCALAR || rule->decay == DR_DECAY_CHANNEL;
}

/* Everything that the rule has is made of what is given. */
static formed made_of(const formed_trials *t, problem *p, dr_decay_form decay, dr_random *random) {
    formed f = {.p = p, .forms = dr_forms_default(t->tested)};
    f.forms.normalize = true;
    if (dr_rule_uses(&p->rule, DR_INPUT_BETA)) f.forms.beta_factor = p->recurrence.key_size % 2 ? 1 : 2;
    if (!has_raw_decay(&p->rule)) return f;
    f.forms.decay = decay;
    f.forms.lower_bound = -5;
    f.A_log = numbers(p->recurrence.value_heads);
    f.dt_bias = numbers(bias_count(&f));
    for (int64_t i = 0; i < p->recurrence.value_heads; i++) f.A_log[i] = (float)uniform(random, -1, 1);
    for (int64_t i = 0; i < bias_count(&f); i++) f.dt_bias[i] = (float)uniform(random, -1, 1);
    return f;
}

static void formed_end(formed *f) {
    free(f->A_log), free(f->dt_bias);
    problem_free(f->p);
}

/* Numbers that both types of 16 bits hold. */
static void round_problem(problem *p, dr_dtype dtype) {
    double kept[1];
    for (int k = 0; k < DR_INPUTS; k++)
        for (int64_t i = 0; p->input[k] && i < p->input_count[k]; i++)
            write_as(dtype, p->input[k][i], kept, 0), p->input[k][i] = read_as(dtype, kept, 0);
    for (int64_t i = 0; i < p->o_count; i++) write_as(dtype, p->d_o[i], kept, 0), p->d_o[i] = read_as(dtype, kept, 0);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------- */

/* Bytes of host memory in the backend's memory, which go through words. */
static void *sent(const formed_trials *t, const void *from, size_t bytes) {
    if (!from) return NULL;
    const size_t words = bytes / 4 + 1;
    void *on_host = block(4 * words), *to = backend_block(t->tested, 4 * words);
    memcpy(on_host, from, bytes);
    dr_backend_upload(t->tested, to, on_host, DR_F32, (int64_t)words);
    free(on_host);
    return to;
}

static void fetch(const formed_trials *t, void *to, void *from, size_t bytes) {
    if (!from) return;
    const size_t words = bytes / 4 + 1;
    void *on_host = block(4 * words);
    dr_backend_download(t->tested, on_host, DR_F32, from, (int64_t)words);
    memcpy(to, on_host, bytes);
    free(on_host);
    backend_release(t->tested, from);
}

/* The tensors of a call in the backend's memory; what is host's there stays for formed_collect. */
typedef struct {
    formed_tensors host, there;
    void *o, *d_o, *A_log, *dt_bias, *d_A_log, *d_dt_bias, *saved, *workspace;
} operands;

static size_t state_bytes(const formed *f, int i) {
    return (size_t)f->p->state_count[i] * sizeof(float);
}

static operands operands_of(const formed_trials *t, const formed *f, const dr_recurrence_memory *memory) {
    operands x = {.host = formed_tensors_of(t->tested, f)};
    const size_t output = (size_t)(f->p->o_count + 1) * dr_dtype_size(f->forms.output);
    const size_t heads = (size_t)f->p->recurrence.value_heads * sizeof(float), biases = (size_t)bias_count(f) * sizeof(float);
    for (int i = 0; i < DR_INPUTS; i++) {
        x.there.inputs.at[i] = sent(t, x.host.inputs.at[i], x.host.inputs.at[i] ? formed_bytes(f, i, f->forms.pitch[i]) : 0);
        x.there.d_inputs.at[i] =
            sent(t, x.host.d_inputs.at[i], x.host.d_inputs.at[i] ? formed_bytes(f, i, f->forms.gradient_pitch[i]) : 0);
    }
    for (int i = 0; i < DR_STATES; i++) {
        x.there.initial.at[i] = sent(t, x.host.initial.at[i], state_bytes(f, i));
        x.there.d_final.at[i] = sent(t, x.host.d_final.at[i], state_bytes(f, i));
        x.there.final.at[i] = sent(t, x.host.final.at[i], state_bytes(f, i));
        x.there.d_initial.at[i] = sent(t, x.host.d_initial.at[i], state_bytes(f, i));
    }
    void *d_o = numbers_in(f->forms.output, f->p->d_o, f->p->o_count),
         *A_log = numbers_in(DR_F32, f->A_log, f->p->recurrence.value_heads);
    void *dt_bias = numbers_in(DR_F32, f->dt_bias, bias_count(f));
    x.o = backend_block(t->tested, output + 4), x.d_o = sent(t, d_o, output);
    x.A_log = sent(t, A_log, heads), x.dt_bias = sent(t, dt_bias, biases);
    x.d_A_log = sent(t, A_log, heads), x.d_dt_bias = sent(t, dt_bias, biases);
    free(d_o), free(A_log), free(dt_bias);
    x.saved = backend_block(t->tested, memory->saved);
    x.workspace = backend_block(t->tested, memory->forward > memory->backward ? memory->forward : memory->backward);
    return x;
}

/* What a forward and its backward left; the operands are freed. */
static formed_result collected(const formed_trials *t, const formed *f, operands *x) {
    const int64_t heads = f->p->recurrence.value_heads;
    formed_result got = {.r = {0}};
    void *o = block((size_t)(f->p->o_count + 1) * sizeof(double));
    fetch(t, o, x->o, (size_t)f->p->o_count * dr_dtype_size(f->forms.output));
    got.r.o = numbers_out(f->forms.output, o, f->p->o_count);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!x->host.inputs.at[i]) continue;
        backend_release(t->tested, (void *)x->there.inputs.at[i]);
        fetch(t, x->host.d_inputs.at[i], x->there.d_inputs.at[i], formed_bytes(f, i, f->forms.gradient_pitch[i]));
    }
    for (int i = 0; i < DR_STATES; i++) {
        backend_release(t->tested, (void *)x->there.initial.at[i]), backend_release(t->tested, (void *)x->there.d_final.at[i]);
        fetch(t, x->host.final.at[i], x->there.final.at[i], state_bytes(f, i));
        fetch(t, x->host.d_initial.at[i], x->there.d_initial.at[i], state_bytes(f, i));
    }
    formed_collect(t->tested, f, true, &x->host, &got.r);
    float *parameters = block((size_t)(heads + bias_count(f)) * sizeof(float));
    fetch(t, parameters, x->d_A_log, (size_t)heads * sizeof(float));
    fetch(t, parameters + heads, x->d_dt_bias, (size_t)bias_count(f) * sizeof(float));
    if (f->A_log) got.d_A_log = numbers(heads), got.d_dt_bias = numbers(bias_count(f));
    for (int64_t i = 0; f->A_log && i < heads; i++) got.d_A_log[i] = (double)parameters[i];
    for (int64_t i = 0; f->A_log && i < bias_count(f); i++) got.d_dt_bias[i] = (double)parameters[heads + i];
    free(parameters);
    backend_release(t->tested, x->d_o), backend_release(t->tested, x->A_log), backend_release(t->tested, x->dt_bias);
    backend_release(t->tested, x->saved), backend_release(t->tested, x->workspace);
    return got;
}

/* A forward and its backward; got is to be freed in any case. */
static bool run(formed_trials *t, const formed *f, formed_result *got) {
    const dr_recurrence recurrence = formed_recurrence(f);
    dr_plan *plan;
    dr_recurrence_memory memory;
    *got = (formed_result){.r = {0}};
    if (!done(t, dr_plan_create_with_forms(t->tested, &recurrence, &f->forms, &plan), f->p->rule.name)) return false;
    dr_plan_memory(plan, &memory);
    operands x = operands_of(t, f, &memory);
    const dr_call call = {.size = sizeof call,
                          .boundaries = {.at = f->p->cu_seqlens, .dtype = DR_I64},
                          .inputs = &x.there.inputs,
                          .initial = &x.there.initial,
                          .o = x.o,
                          .final = &x.there.final,
                          .saved = x.saved,
                          .workspace = x.workspace,
                          .d_o = x.d_o,
                          .d_final = &x.there.d_final,
                          .d_inputs = &x.there.d_inputs,
                          .d_initial = &x.there.d_initial,
                          .A_log = x.A_log,
                          .dt_bias = x.dt_bias,
                          .d_A_log = x.d_A_log,
                          .d_dt_bias = x.d_dt_bias};
    bool holds =
        done(t, dr_plan_forward(plan, &call), f->p->rule.name) && done(t, dr_plan_backward(plan, &call), f->p->rule.name);
    *got = collected(t, f, &x);
    dr_plan_destroy(plan);
    return holds;
}

/* The same by the reference, whose memory is the host's. */
static bool run_exactly(formed_trials *t, const formed *f, formed_result *got) {
    formed_trials exact = *t;
    formed same = *f;
    same.forms = dr_forms_default(t->reference);
    same.forms.normalize = f->forms.normalize, same.forms.beta_factor = f->forms.beta_factor;
    same.forms.decay = f->forms.decay, same.forms.lower_bound = f->forms.lower_bound;
    const dr_recurrence recurrence = formed_recurrence(&same);
    const int64_t heads = f->p->recurrence.value_heads;
    dr_plan *plan;
    dr_recurrence_memory memory;
    *got = (formed_result){.r = {0}};
    if (!done(&exact, dr_plan_create_with_forms(t->reference, &recurrence, &same.forms, &plan), f->p->rule.name)) return false;
    dr_plan_memory(plan, &memory);
    formed_tensors x = formed_tensors_of(t->reference, &same);
    void *saved = block(memory.saved), *workspace = block(memory.forward > memory.backward ? memory.forward : memory.backward);
    if (f->A_log) got->d_A_log = numbers(heads), got->d_dt_bias = numbers(bias_count(f));
    got->r.o = numbers(f->p->o_count);
    const dr_call call = {.size = sizeof call,
                          .boundaries = {.at = f->p->cu_seqlens, .dtype = DR_I64},
                          .inputs = &x.inputs,
                          .initial = &x.initial,
                          .o = got->r.o,
                          .final = &x.final,
                          .saved = saved,
                          .workspace = workspace,
                          .d_o = f->p->d_o,
                          .d_final = &x.d_final,
                          .d_inputs = &x.d_inputs,
                          .d_initial = &x.d_initial,
                          .A_log = f->A_log,
                          .dt_bias = f->dt_bias,
                          .d_A_log = got->d_A_log,
                          .d_dt_bias = got->d_dt_bias};
    const bool holds =
        done(t, dr_plan_forward(plan, &call), "the reference") && done(t, dr_plan_backward(plan, &call), "the reference");
    formed_collect(t->reference, &same, true, &x, &got->r);
    free(saved), free(workspace);
    dr_plan_destroy(plan);
    return holds;
}

/* ---- what is made ------------------------------------------------------------------------------------------------------ */

static bool is_near(formed_trials *t, const problem *p, const char *of, const double *got, const double *want, int64_t count,
                    double allowed) {
    if (!want || count == 0) return true;
    const double error = error_of(got, want, count, 1e-3);
    t->worst = fmax(t->worst, error / allowed);
    t->checks++;
    return error <= allowed ||
           fault_is(t->what, "forms of rule %s, %lld x %lld: %s has error %.3g, at most %.2g is right", p->rule.name,
                    (long long)p->recurrence.key_size, (long long)p->recurrence.value_size, of, error, allowed);
}

static bool made_is_near(formed_trials *t, const formed *f) {
    const problem *p = f->p;
    formed_result got, want;
    bool holds = run(t, f, &got);
    holds = run_exactly(t, f, &want) && holds;
    holds = holds && is_near(t, p, "o", got.r.o, want.r.o, p->o_count, t->forward);
    for (int i = 0; i < DR_INPUTS; i++)
        holds = holds && is_near(t, p, dr_input_name((dr_input)i), got.r.gradient[i], want.r.gradient[i], p->input_count[i],
                                 t->backward);
    for (int i = 0; i < DR_STATES; i++) {
        holds = holds && is_near(t, p, "a final state", got.r.final[i], want.r.final[i], p->state_count[i], t->forward);
        holds = holds && is_near(t, p, "the gradient of a state", got.r.d_initial[i], want.r.d_initial[i], p->state_count[i],
                                 t->backward);
    }
    holds = holds && is_near(t, p, "the gradient of A_log", got.d_A_log, want.d_A_log, p->recurrence.value_heads, t->backward);
    holds = holds && is_near(t, p, "the gradient of dt_bias", got.d_dt_bias, want.d_dt_bias, bias_count(f), t->backward);
    formed_free(&got), formed_free(&want);
    return holds;
}

/* ---- where numbers lie ------------------------------------------------------------------------------------------------- */

static bool is_same(formed_trials *t, const formed *f, const formed_result *a, const formed_result *b) {
    const problem *p = f->p;
    const char *name = p->rule.name;
    bool holds = numbers_same(name, "o of other forms", a->r.o, b->r.o, p->o_count, t->what);
    for (int i = 0; i < DR_INPUTS && holds; i++)
        if (p->input[i])
            holds =
                numbers_same(name, dr_input_name((dr_input)i), a->r.gradient[i], b->r.gradient[i], p->input_count[i], t->what);
    for (int i = 0; i < DR_STATES && holds; i++)
        if (p->state_count[i])
            holds =
                numbers_same(name, "a final state of other forms", a->r.final[i], b->r.final[i], p->state_count[i], t->what) &&
                numbers_same(name, "a state's gradient of other forms", a->r.d_initial[i], b->r.d_initial[i], p->state_count[i],
                             t->what);
    t->checks++;
    return holds;
}

/* The types in which the backend stores what the forms give otherwise. */
static void round_result(const formed *f, const formed *narrow, formed_result *got) {
    double kept[1];
    for (int64_t i = 0; i < f->p->o_count; i++)
        write_as(narrow->forms.output, got->r.o[i], kept, 0), got->r.o[i] = read_as(narrow->forms.output, kept, 0);
    for (int k = 0; k < DR_INPUTS; k++)
        for (int64_t i = 0; f->p->input[k] && i < f->p->input_count[k]; i++)
            write_as(narrow->forms.dtype[k], got->r.gradient[k][i], kept, 0),
                got->r.gradient[k][i] = read_as(narrow->forms.dtype[k], kept, 0);
}

static bool forms_change_no_bit(formed_trials *t, const formed *made, bool plain, dr_random *random) {
    formed f = *made, other;
    if (plain) f.forms = dr_forms_default(t->tested), f.A_log = f.dt_bias = NULL;
    other = f;
    for (int k = 0; k < DR_INPUTS; k++) {
        const dr_input_form form = dr_recurrence_input_form(&f.p->recurrence, (dr_input)k);
        if (!form.per_row || !f.p->input[k]) continue;
        if (f.forms.dtype[k] == DR_F32) other.forms.dtype[k] = DR_BF16;
        other.forms.pitch[k] = form.steps * form.heads * form.size + between(random, 0, 5);
        other.forms.gradient_pitch[k] = form.steps * form.heads * form.size + between(random, 0, 5);
    }
    other.forms.value_first = true;
    if (f.forms.output == DR_F32) other.forms.output = DR_BF16;
    formed_result want, got;
    bool holds = run(t, &f, &want);
    holds = run(t, &other, &got) && holds;
    if (holds) round_result(&f, &other, &want);
    holds = holds && is_same(t, &f, &got, &want);
    formed_free(&want), formed_free(&got);
    return holds;
}

/* ---- pools ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    double *o, *pool[DR_STATES];
} pooled_result;

static void pooled_free(pooled_result *r) {
    free(r->o);
    for (int i = 0; i < DR_STATES; i++) free(r->pool[i]);
}

/* A forward or a decode whose states lie in a pool, all of whose slots hold numbers of their own. */
static bool run_pooled(formed_trials *t, const formed *f, double *const pool[DR_STATES], const dr_slots *slots, bool decodes,
                       pooled_result *got) {
    const problem *p = f->p;
    const dr_recurrence recurrence = formed_recurrence(f);
    dr_plan *plan;
    dr_recurrence_memory memory;
    *got = (pooled_result){.o = NULL};
    if (!done(t, dr_plan_create_for_slots(t->tested, &recurrence, &f->forms, &plan), p->rule.name)) return false;
    dr_plan_memory(plan, &memory);
    if (memory.forward < memory.decode) memory.forward = memory.decode;
    operands x = operands_of(t, f, &memory);
    dr_mutable_states states = {{NULL}};
    dr_states initial = {{NULL}};
    double *turned[DR_STATES] = {NULL};
    for (int i = 0; i < DR_STATES; i++) {
        if (!pool[i]) continue;
        const int64_t size = p->state_count[i] / SEQUENCES;
        float *narrow = block((size_t)(SLOTS * size) * sizeof(float));
        for (int64_t k = 0; k < SLOTS * size; k++) narrow[state_at(f, i, k)] = (float)pool[i][k];
        initial.at[i] = states.at[i] = sent(t, narrow, (size_t)(SLOTS * size) * sizeof(float));
        turned[i] = numbers(SLOTS * size);
        free(narrow);
    }
    const dr_call call = {.size = sizeof call,
                          .boundaries = decodes ? (dr_boundaries){0} : (dr_boundaries){.at = p->cu_seqlens, .dtype = DR_I64},
                          .inputs = &x.there.inputs,
                          .initial = &initial,
                          .o = x.o,
                          .final = &states,
                          .states = &states,
                          .saved = x.saved,
                          .slots = slots,
                          .workspace = x.workspace,
                          .A_log = x.A_log,
                          .dt_bias = x.dt_bias};
    bool holds = done(t, decodes ? dr_plan_decode(plan, &call) : dr_plan_forward(plan, &call), p->rule.name);
    for (int i = 0; i < DR_STATES; i++) {
        if (!pool[i]) continue;
        const int64_t count = SLOTS * (p->state_count[i] / SEQUENCES);
        float *narrow = block((size_t)count * sizeof(float));
        fetch(t, narrow, states.at[i], (size_t)count * sizeof(float));
        for (int64_t k = 0; k < count; k++) turned[i][k] = (double)narrow[state_at(f, i, k)];
        got->pool[i] = turned[i];
        free(narrow);
    }
    formed_result rest = collected(t, f, &x);
    got->o = rest.r.o, rest.r.o = NULL;
    formed_free(&rest);
    dr_plan_destroy(plan);
    return holds;
}

static void *list_in(const formed_trials *t, const int32_t *list, int64_t count) {
    return sent(t, list, (size_t)count * sizeof *list);
}

/* A problem with so many tokens in each sequence, without states of its own; pool: what its slots hold. */
static problem *pool_problem(const dr_rule *rule, int64_t K, int64_t V, const int64_t tokens[SEQUENCES],
                             double *pool[DR_STATES], dr_random *random) {
    problem *p = problem_of(rule, K, V, tokens[0] + tokens[1] + tokens[2], random);
    for (int i = 0; i < SEQUENCES; i++) p->cu_seqlens[i + 1] = p->cu_seqlens[i] + tokens[i];
    problem_forget_states(p);
    for (int i = 0; i < DR_STATES; i++) {
        pool[i] = NULL;
        if (!dr_rule_carries(&p->rule, (dr_state_kind)i)) continue;
        const int64_t count = SLOTS * (p->state_count[i] / SEQUENCES);
        pool[i] = numbers(count);
        for (int64_t k = 0; k < count; k++) pool[i][k] = (float)uniform(random, 0.1, 0.5);
    }
    return p;
}

/* Sequences start from slots 5, none and 2 and end in others; the same call with these states, its own: the same bits. */
static bool prefill_is_right(formed_trials *t, const dr_rule *rule, int64_t K, int64_t V, bool in_place, bool value_first,
                             dr_random *random) {
    static const int32_t from[SEQUENCES] = {5, -1, 2}, to[SEQUENCES] = {1, 6, -1};
    static const int64_t tokens[SEQUENCES] = {10, 0, 70};
    double *pool[DR_STATES];
    problem *p = pool_problem(rule, K, V, tokens, pool, random);
    formed f = {.p = p, .forms = dr_forms_default(t->tested)}, plain = f;
    f.forms.value_first = value_first;
    dr_slots slots = {.slots = SLOTS, .from = list_in(t, from, SEQUENCES), .to = in_place ? NULL : list_in(t, to, SEQUENCES)};
    pooled_result got;
    formed_result want = {.r = {0}};
    for (int i = 0; i < DR_STATES; i++) {
        if (!pool[i]) continue;
        const int64_t size = p->state_count[i] / SEQUENCES;
        p->initial[i] = numbers(p->state_count[i]);
        for (int64_t k = 0; k < p->state_count[i]; k++) {
            const int32_t slot = from[k / size];
            p->initial[i][k] = slot < 0 ? 0 : pool[i][slot * size + k % size];
        }
    }
    bool holds = run(t, &plain, &want);
    holds = run_pooled(t, &f, pool, &slots, false, &got) && holds;
    holds = holds && numbers_same(p->rule.name, "o from a pool", got.o, want.r.o, p->o_count, t->what);
    for (int i = 0; i < DR_STATES; i++) {
        if (!pool[i]) continue;
        const int64_t size = p->state_count[i] / SEQUENCES;
        for (int s = 0; s < SEQUENCES && holds; s++) {
            const int32_t end = in_place ? from[s] : to[s];
            if (end >= 0) memcpy(pool[i] + end * size, want.r.final[i] + s * size, (size_t)size * sizeof(double));
        }
        holds = holds && numbers_same(p->rule.name, "the pool", got.pool[i], pool[i], SLOTS * size, t->what);
        free(pool[i]);
    }
    t->checks++;
    backend_release(t->tested, (void *)slots.from), backend_release(t->tested, (void *)slots.to);
    pooled_free(&got), formed_free(&want);
    problem_free(p);
    return holds;
}

/* Decoding from a pool whose states have values first, or are to be turned on the way, against the same with keys first. */
static bool decode_is_right(formed_trials *t, const dr_rule *rule, int64_t K, int64_t V, bool in_place, dr_random *random) {
    static const int32_t from[SEQUENCES] = {5, -1, 2}, to[SEQUENCES][2] = {{1, 5}, {6, 6}, {-1, 3}};
    static const int64_t tokens[SEQUENCES] = {2, 2, 2};
    double *pool[DR_STATES];
    problem *p = pool_problem(rule, K, V, tokens, pool, random);
    formed f = {.p = p, .forms = dr_forms_default(t->tested)}, plain = f;
    f.forms.value_first = true;
    for (int k = 0; k < DR_INPUTS; k++) {
        const dr_input_form form = dr_recurrence_input_form(&p->recurrence, (dr_input)k);
        if (form.per_row && p->input[k]) f.forms.pitch[k] = form.steps * form.heads * form.size + 3;
    }
    dr_slots slots = {.slots = SLOTS,
                      .tokens = 2,
                      .from = list_in(t, from, SEQUENCES),
                      .to = in_place ? NULL : list_in(t, to[0], 2 * SEQUENCES)};
    pooled_result got, want;
    bool holds = run_pooled(t, &plain, pool, &slots, true, &want);
    holds = run_pooled(t, &f, pool, &slots, true, &got) && holds;
    const int64_t width = p->o_count / SEQUENCES; /* the second sequence is skipped */
    for (int s = 0; s < SEQUENCES && holds; s += 2)
        holds = numbers_same(p->rule.name, "o of a decode", got.o + s * width, want.o + s * width, width, t->what);
    for (int i = 0; i < DR_STATES; i++) {
        if (pool[i] && holds)
            holds = numbers_same(p->rule.name, "the pool of a decode", got.pool[i], want.pool[i],
                                 SLOTS * (p->state_count[i] / SEQUENCES), t->what);
        free(pool[i]);
    }
    t->checks++;
    backend_release(t->tested, (void *)slots.from), backend_release(t->tested, (void *)slots.to);
    pooled_free(&got), pooled_free(&want);
    problem_free(p);
    return holds;
}

/* The tokens that states on the way are apart at least. */
static int64_t tokens_between(formed_trials *t, const formed *f) {
    const dr_recurrence recurrence = formed_recurrence(f);
    const dr_call call = {.size = sizeof call, .boundaries = {.at = f->p->cu_seqlens, .dtype = DR_I64}};
    int64_t chunk = 0, count;
    dr_plan *plan;
    if (!done(t, dr_plan_create_for_slots(t->tested, &recurrence, &f->forms, &plan), f->p->rule.name)) return 0;
    if (!done(t, dr_plan_boundaries(plan, &call, 0, &chunk, &count), "the boundaries of a plan")) chunk = 0;
    dr_plan_destroy(plan);
    return chunk;
}

/* States on the way to slots of the pool, against forwards that end where those lie: of rows begin to `row`, from slot `from`.
 */
static bool state_before_is_right(formed_trials *t, formed *f, double *const pool[DR_STATES], const pooled_result *got,
                                  int64_t begin, int64_t row, int32_t from, int32_t slot) {
    problem *p = f->p;
    const int32_t starts[SEQUENCES] = {-1, from, -1}, ends[SEQUENCES] = {-1, 0, -1};
    const int64_t own[2] = {p->cu_seqlens[1], p->cu_seqlens[2]};
    dr_slots slots = {.slots = SLOTS, .from = list_in(t, starts, SEQUENCES), .to = list_in(t, ends, SEQUENCES)};
    pooled_result want;
    p->cu_seqlens[1] = begin, p->cu_seqlens[2] = row;
    bool holds = run_pooled(t, f, pool, &slots, false, &want);
    p->cu_seqlens[1] = own[0], p->cu_seqlens[2] = own[1];
    for (int i = 0; i < DR_STATES && holds; i++) {
        const int64_t size = p->state_count[i] / SEQUENCES;
        if (pool[i]) holds = is_near(t, p, "a state on the way", got->pool[i] + slot * size, want.pool[i], size, t->forward);
    }
    backend_release(t->tested, (void *)slots.from), backend_release(t->tested, (void *)slots.to);
    pooled_free(&want);
    return holds;
}

/* Three states on the way of two sequences, the last one that sequence 2 starts from. Where the backend saves rounded states
 * the call is refused. */
static bool checkpoints_are_right(formed_trials *t, const dr_rule *rule, int64_t K, int64_t V, bool value_first,
                                  dr_random *random) {
    static const int32_t from[SEQUENCES] = {5, -1, 2}, to[SEQUENCES] = {1, 6, -1}, slot[3] = {3, 4, 0};
    static const int64_t tokens[SEQUENCES] = {133, 0, 200};
    double *pool[DR_STATES];
    problem *p = pool_problem(rule, K, V, tokens, pool, random);
    formed f = {.p = p, .forms = dr_forms_default(t->tested)};
    f.forms.value_first = value_first;
    const int64_t chunk = tokens_between(t, &f);
    bool holds = chunk > 0;
    if (holds) {
        const int32_t row[3] = {(int32_t)(132 / chunk * chunk), (int32_t)(133 + 199 / chunk * chunk), 133};
        dr_slots slots = {.slots = SLOTS,
                          .from = list_in(t, from, SEQUENCES),
                          .to = list_in(t, to, SEQUENCES),
                          .checkpoints = 3,
                          .row = list_in(t, row, 3),
                          .slot = list_in(t, slot, 3)};
        pooled_result got;
        holds = run_pooled(t, &f, pool, &slots, false, &got);
        if (!holds && f.forms.output != DR_F32 && strstr(t->what->text, "are rounded to")) {
            *t->what = (fault){""}, holds = true;
        } else {
            holds = holds && state_before_is_right(t, &f, pool, &got, 0, row[0], from[0], slot[0]) &&
                    state_before_is_right(t, &f, pool, &got, 133, row[1], from[2], slot[1]) &&
                    state_before_is_right(t, &f, pool, &got, 133, row[2], from[2], slot[2]);
        }
        backend_release(t->tested, (void *)slots.from), backend_release(t->tested, (void *)slots.to);
        backend_release(t->tested, (void *)slots.row), backend_release(t->tested, (void *)slots.slot);
        pooled_free(&got);
    }
    for (int i = 0; i < DR_STATES; i++) free(pool[i]);
    problem_free(p);
    return holds;
}

bool formed_calls_hold(formed_trials *t, uint64_t seed) {
    static const int64_t whole[][2] = {{5, 3}, {64, 64}, {48, 80}}, small[][2] = {{5, 3}, {33, 8}, {8, 40}};
    static const char *const pooled[] = {"gdn", "pgdn", "kda", "delta_product"}, *const few[] = {"gdn", "kda", "delta_product",
                                                                                                 "pgdn"};
    const int64_t(*const sizes)[2] = t->brief ? small : whole;
    dr_random random = dr_random_start(seed, 3);
    for (int i = 0; i < (t->brief ? 4 : dr_rule_count()); i++)
        for (int s = 0; s < 3; s++) {
            const dr_rule *rule = t->brief ? dr_rule_find(few[i]) : dr_rule_at(i);
            if (!t->takes(rule)) continue;
            const dr_decay_form decay = (i + s) % 2 ? DR_DECAY_FORM_SOFTPLUS : DR_DECAY_FORM_BOUNDED;
            formed f = made_of(t, problem_of(rule, sizes[s][0], sizes[s][1], t->brief ? 20 : 80, &random), decay, &random);
            round_problem(f.p, DR_BF16);
            const bool holds = made_is_near(t, &f) && forms_change_no_bit(t, &f, true, &random) &&
                               (s != 1 || forms_change_no_bit(t, &f, false, &random));
            formed_end(&f);
            if (!holds) return false;
        }
    for (size_t i = 0; i < (t->brief ? 2 : sizeof pooled / sizeof *pooled); i++)
        for (int s = 0; s < 3 && t->saves; s++)
            if (!checkpoints_are_right(t, dr_rule_find(pooled[i]), sizes[s][0], sizes[s][1], s == 1, &random)) return false;
    for (size_t i = 0; i < (t->brief ? 2 : sizeof pooled / sizeof *pooled); i++)
        for (int s = 0; s < 3; s++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const dr_rule *rule = dr_rule_find(pooled[i]);
                if (!prefill_is_right(t, rule, sizes[s][0], sizes[s][1], in_place, (i + (size_t)s) % 2, &random) ||
                    !decode_is_right(t, rule, sizes[s][0], sizes[s][1], in_place, &random))
                    return false;
            }
    return true;
}
