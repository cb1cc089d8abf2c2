/* Plans whose tensors come in forms (forms.h): what is made of inputs is right on the reference, its gradients are held by
 * central differences, the CPU agrees with it on every instruction set, and forms that only say where numbers lie or how they
 * are rounded change no bit. */
#include "formed.h"

#include "base/cpu.h"

static dr_backend *reference;

/* ---- problems -------------------------------------------------------------------------------------------------------- */

/* Some sequences, one of them empty, grouped value heads where the rule allows them. */
static problem *problem_of(const dr_rule *rule, int64_t K, int64_t V, int64_t tokens, dr_random *random) {
    static const int64_t cu_parts[] = {0, 3, 3, 10};
    int64_t cu_seqlens[4];
    for (int i = 0; i < 4; i++) cu_seqlens[i] = cu_parts[i] * tokens / 10;
    dr_recurrence sizes = {.layout = {.sequences = 3, .rows = tokens, .cu_seqlens = cu_seqlens},
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
static formed formed_of(dr_backend *backend, problem *p, dr_decay_form decay, bool parameters, dr_random *random) {
    formed f = {.p = p, .forms = dr_forms_default(backend)};
    f.forms.normalize = true;
    if (dr_rule_uses(&p->rule, DR_INPUT_BETA)) f.forms.beta_factor = p->recurrence.key_size % 2 ? 1 : 2;
    if (!has_raw_decay(&p->rule)) return f;
    f.forms.decay = decay;
    f.forms.lower_bound = -5;
    if (!parameters) return f;
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

/* ---- what is made ---------------------------------------------------------------------------------------------------- */

/* The inputs that the recurrence reads, by the equations of forms.h. */
static problem *made_of(const formed *f) {
    problem *p = problem_copy(f->p);
    const int64_t K = p->recurrence.key_size;
    static const dr_input normalized[] = {DR_INPUT_QUERY, DR_INPUT_KEY};
    for (int k = 0; k < 2; k++)
        for (int64_t row = 0; row < p->input_count[normalized[k]]; row += K) {
            double *x = p->input[normalized[k]] + row, squares = f->forms.normalize_eps;
            for (int64_t d = 0; d < K; d++) squares += x[d] * x[d];
            for (int64_t d = 0; d < K; d++) x[d] /= sqrt(squares);
        }
    for (int64_t i = 0; f->forms.beta_factor != 0 && i < p->input_count[DR_INPUT_BETA]; i++)
        p->input[DR_INPUT_BETA][i] = f->forms.beta_factor / (1 + exp(-p->input[DR_INPUT_BETA][i]));
    const int64_t biases = bias_count(f), size = dr_forms_bias_size(&p->recurrence);
    for (int64_t i = 0; f->forms.decay != DR_DECAY_FORM_LOG && i < p->input_count[DR_INPUT_LOG_DECAY]; i++) {
        double *x = &p->input[DR_INPUT_LOG_DECAY][i];
        const double rate = f->A_log ? exp(f->A_log[i % biases / size]) : 1, u = *x + (f->dt_bias ? f->dt_bias[i % biases] : 0);
        *x = f->forms.decay == DR_DECAY_FORM_SOFTPLUS ? -rate * log1p(exp(u)) : f->forms.lower_bound / (1 + exp(-rate * u));
    }
    return p;
}

static void near(const char *what, const dr_rule *rule, const double *got, const double *want, int64_t count, double most) {
    if (!want) return;
    const double error = error_of(got, want, count, 1e-3);
    if (!(error <= most)) fail_msg("rule %s: %s is off by %g, more than %g", rule->name, what, error, most);
}

static double *moved(const double *from, const double *along, double by, int64_t count) {
    if (!from) return NULL;
    double *to = numbers(count);
    for (int64_t i = 0; i < count; i++) to[i] = from[i] + by * along[i];
    return to;
}

/* The loss where one input, or with input DR_INPUTS A_log and dt_bias, are moved along a direction. */
static double loss_moved(const formed *f, int input, double *const direction[2], double by) {
    formed other = *f;
    other.p = problem_copy(f->p);
    if (input < DR_INPUTS) {
        for (int64_t i = 0; i < f->p->input_count[input]; i++) other.p->input[input][i] += by * direction[0][i];
    } else {
        other.A_log = moved(f->A_log, direction[0], by, f->p->recurrence.value_heads);
        other.dt_bias = moved(f->dt_bias, direction[1], by, bias_count(f));
    }
    formed_result got = formed_run(reference, &other, false, 0);
    const double loss = formed_loss(&other, &got);
    formed_free(&got);
    if (input == DR_INPUTS) free(other.A_log), free(other.dt_bias);
    problem_free(other.p);
    return loss;
}

static double *direction_of(int64_t count, dr_random *random) {
    double *to = numbers(count);
    for (int64_t i = 0; i < count; i++) to[i] = uniform(random, -1, 1);
    return to;
}

static double along(const double *gradient, const double *direction, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; gradient && i < count; i++) sum += gradient[i] * direction[i];
    return sum;
}

static void check_differences(const formed *f, const formed_result *got, int input, dr_random *random) {
    if (input < DR_INPUTS ? !f->p->input[input] : !f->A_log) return;
    const int64_t count = input < DR_INPUTS ? f->p->input_count[input] : f->p->recurrence.value_heads;
    double *direction[2] = {direction_of(count, random), direction_of(bias_count(f), random)};
    const double h = 1e-5, slope = (loss_moved(f, input, direction, h) - loss_moved(f, input, direction, -h)) / (2 * h);
    double want = input < DR_INPUTS
                      ? along(got->r.gradient[input], direction[0], count)
                      : along(got->d_A_log, direction[0], count) + along(got->d_dt_bias, direction[1], bias_count(f));
    const char *name = input < DR_INPUTS ? dr_input_name((dr_input)input) : "A_log and dt_bias";
    if (!(fabs(slope - want) <= 2e-6 * (1 + fabs(slope))))
        fail_msg("rule %s: the gradient of %s gives %.12g along a direction, differences %.12g", f->p->rule.name, name, want,
                 slope);
    free(direction[0]), free(direction[1]);
}

static void test_reference(void **state) {
    (void)state;
    dr_random random = {.seed = 11};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int decay = DR_DECAY_FORM_SOFTPLUS; decay <= DR_DECAY_FORM_BOUNDED; decay++)
            for (int parameters = 0; parameters < 2; parameters++) {
                formed f = formed_of(reference, problem_of(dr_rule_at(i), 5, 3, 10, &random), (dr_decay_form)decay, parameters,
                                     &random);
                formed plain = {.p = made_of(&f), .forms = dr_forms_default(reference)};
                formed_result got = formed_run(reference, &f, true, 0), want = formed_run(reference, &plain, false, 0);
                near("o", &f.p->rule, got.r.o, want.r.o, f.p->o_count, 1e-13);
                for (int k = 0; k < DR_STATES; k++)
                    near(dr_state_name((dr_state_kind)k), &f.p->rule, got.r.final[k], want.r.final[k], f.p->state_count[k],
                         1e-13);
                check_differences(&f, &got, DR_INPUT_QUERY, &random);
                check_differences(&f, &got, DR_INPUT_KEY, &random);
                check_differences(&f, &got, DR_INPUT_BETA, &random);
                check_differences(&f, &got, DR_INPUT_LOG_DECAY, &random);
                check_differences(&f, &got, DR_INPUTS, &random);
                formed_free(&got), formed_free(&want);
                problem_free(plain.p);
                formed_end(&f);
                if (!has_raw_decay(dr_rule_at(i))) break;
            }
}

/* ---- the CPU --------------------------------------------------------------------------------------------------------- */

static void results_agree(const formed *f, const formed_result *got, const formed_result *want) {
    const problem *p = f->p;
    const dr_rule *rule = &p->rule;
    near("o", rule, got->r.o, want->r.o, p->o_count, 1e-4);
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i])
            near(dr_input_name((dr_input)i), rule, got->r.gradient[i], want->r.gradient[i], p->input_count[i], 1e-3);
    for (int i = 0; i < DR_STATES; i++) {
        near("a final state", rule, got->r.final[i], want->r.final[i], p->state_count[i], 1e-4);
        near("the gradient of a state", rule, got->r.d_initial[i], want->r.d_initial[i], p->state_count[i], 1e-3);
    }
    near("the gradient of A_log", rule, got->d_A_log, want->d_A_log, p->recurrence.value_heads, 1e-3);
    near("the gradient of dt_bias", rule, got->d_dt_bias, want->d_dt_bias, bias_count(f), 1e-3);
}

static void test_cpu_agrees(void **state) {
    const char *isa = *state;
    static const int64_t sizes[][2] = {{5, 3}, {16, 32}, {64, 64}};
    dr_backend *cpu = open_backend("cpu", isa, 2);
    dr_random random = {.seed = 12};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int path = DR_PATH_RECURRENT; path <= DR_PATH_CHUNKWISE; path++) {
            const size_t s = (size_t)(i + path) % 3; /* each rule at two of the sizes */
            const dr_decay_form decay = (i + (int)s) % 2 ? DR_DECAY_FORM_SOFTPLUS : DR_DECAY_FORM_BOUNDED;
            formed f = formed_of(cpu, problem_of(dr_rule_at(i), sizes[s][0], sizes[s][1], 80, &random), decay, s != 1, &random);
            f.path = (dr_path)path;
            formed exact = f;
            exact.forms = dr_forms_default(reference);
            exact.forms.normalize = f.forms.normalize, exact.forms.beta_factor = f.forms.beta_factor;
            exact.forms.decay = f.forms.decay, exact.forms.lower_bound = f.forms.lower_bound;
            formed_result got = formed_run(cpu, &f, true, 0), want = formed_run(reference, &exact, true, 0);
            results_agree(&f, &got, &want);
            formed_free(&got), formed_free(&want);
            formed_end(&f);
        }
    dr_backend_close(cpu);
}

/* The sign of a zero may differ: some gradients are added to a zero on the way, others are not. */
static void same_numbers(const char *what, const dr_rule *rule, const double *a, const double *b, int64_t count) {
    for (int64_t i = 0; a && i < count; i++)
        if (a[i] != b[i]) fail_msg("rule %s: element %lld of %s is %.9g and %.9g", rule->name, (long long)i, what, a[i], b[i]);
}

static void same_results(const formed *f, const formed_result *a, const formed_result *b) {
    const problem *p = f->p;
    same_numbers("o", &p->rule, a->r.o, b->r.o, p->o_count);
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i])
            same_numbers(dr_input_name((dr_input)i), &p->rule, a->r.gradient[i], b->r.gradient[i], p->input_count[i]);
    for (int i = 0; i < DR_STATES; i++) {
        same_numbers("a final state", &p->rule, a->r.final[i], b->r.final[i], p->state_count[i]);
        same_numbers("the gradient of a state", &p->rule, a->r.d_initial[i], b->r.d_initial[i], p->state_count[i]);
    }
    same_numbers("the gradient of A_log", &p->rule, a->d_A_log, b->d_A_log, p->recurrence.value_heads);
    same_numbers("the gradient of dt_bias", &p->rule, a->d_dt_bias, b->d_dt_bias, bias_count(f));
}

/* Rounds what the result has as the forms' types do. */
static void round_result(const formed *f, const dr_forms *forms, formed_result *got) {
    for (int64_t i = 0; i < f->p->o_count; i++) {
        double kept[1];
        write_as(forms->output, got->r.o[i], kept, 0);
        got->r.o[i] = read_as(forms->output, kept, 0);
    }
    for (int k = 0; k < DR_INPUTS; k++)
        for (int64_t i = 0; f->p->input[k] && i < f->p->input_count[k]; i++) {
            double kept[1];
            write_as(forms->dtype[k], got->r.gradient[k][i], kept, 0);
            got->r.gradient[k][i] = read_as(forms->dtype[k], kept, 0);
        }
}

/* Numbers that both types of 16 bits hold. */
static void round_inputs(problem *p, dr_dtype dtype) {
    double kept[1];
    for (int k = 0; k < DR_INPUTS; k++)
        for (int64_t i = 0; p->input[k] && i < p->input_count[k]; i++) {
            write_as(dtype, p->input[k][i], kept, 0);
            p->input[k][i] = read_as(dtype, kept, 0);
        }
    for (int64_t i = 0; i < p->o_count; i++) {
        write_as(dtype, p->d_o[i], kept, 0);
        p->d_o[i] = read_as(dtype, kept, 0);
    }
}

/* Pitches, states with values first and types of 16 bits against the same numbers dense and in floats; made inputs too. */
static void test_same_bits(void **state) {
    const char *isa = *state;
    static const int64_t sizes[][2] = {{5, 3}, {16, 32}, {64, 64}, {48, 80}};
    dr_backend *cpu = open_backend("cpu", isa, 4);
    dr_random random = {.seed = 13};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int made = 0; made < 2; made++)
            for (size_t s = (size_t)(i / 2 + made) % 2; s < sizeof sizes / sizeof *sizes; s += 2) {
                const dr_dtype narrow = (i + (int)s) % 2 ? DR_BF16 : DR_F16;
                formed f = formed_of(cpu, problem_of(dr_rule_at(i), sizes[s][0], sizes[s][1], 90, &random),
                                     DR_DECAY_FORM_SOFTPLUS, made, &random);
                f.path = s % 2 ? DR_PATH_RECURRENT : DR_PATH_CHUNKWISE;
                if (!made) f.forms = dr_forms_default(cpu);
                round_inputs(f.p, narrow);
                formed other = f;
                for (int k = 0; k < DR_INPUTS; k++) {
                    const dr_input_form form = dr_recurrence_input_form(&f.p->recurrence, (dr_input)k);
                    if (!form.per_row) continue;
                    other.forms.dtype[k] = narrow;
                    other.forms.pitch[k] = form.steps * form.heads * form.size + between(&random, 0, 5);
                    other.forms.gradient_pitch[k] = form.steps * form.heads * form.size + between(&random, 0, 5);
                }
                other.forms.output = narrow;
                other.forms.value_first = true;
                formed_result want = formed_run(cpu, &f, true, 1), got = formed_run(cpu, &other, true, 4);
                round_result(&f, &other.forms, &want);
                same_results(&f, &got, &want);
                formed_free(&got), formed_free(&want);
                /* the pitches alone, whose rows may be read where they are */
                for (int k = 0; k < DR_INPUTS; k++) other.forms.dtype[k] = DR_F32;
                other.forms.output = DR_F32;
                want = formed_run(cpu, &f, true, 4), got = formed_run(cpu, &other, true, 2);
                same_results(&f, &got, &want);
                formed_free(&got), formed_free(&want);
                formed_end(&f);
            }
    dr_backend_close(cpu);
}

/* Few heads and a long sequence: a backward in two passes gives the sums of one. */
static void test_threads(void **state) {
    const char *isa = *state;
    dr_backend *one = open_backend("cpu", isa, 1), *many = open_backend("cpu", isa, 8);
    dr_random random = {.seed = 14};
    static const char *const rules[] = {"gdn", "kda", "mamba2"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        dr_recurrence sizes = {.layout = {.sequences = 1, .rows = 1000},
                               .key_heads = 1,
                               .value_heads = 2,
                               .key_size = 128,
                               .value_size = 128,
                               .forget = DR_FORGET};
        problem *p = problem_create(dr_rule_find(rules[i]), &sizes, false, &random);
        p->recurrence.rule = &p->rule;
        formed f = formed_of(one, p, DR_DECAY_FORM_SOFTPLUS, true, &random);
        formed_result a = formed_run(one, &f, true, 0), b = formed_run(many, &f, true, 0);
        same_results(&f, &a, &b);
        formed_free(&a), formed_free(&b);
        formed_end(&f);
    }
    dr_backend_close(one), dr_backend_close(many);
}

/* A raw decay of +infinity is a decay of 0 (log decay -infinity), and no gradient comes of it. */
static void test_closed_gate(void **state) {
    (void)state;
    dr_backend *backends[] = {reference, open_backend("cpu", NULL, 1)};
    dr_random random = {.seed = 15};
    for (int b = 0; b < 2; b++) {
        formed f =
            formed_of(backends[b], problem_of(dr_rule_find("kda"), 16, 16, 40, &random), DR_DECAY_FORM_SOFTPLUS, true, &random);
        f.p->input[DR_INPUT_LOG_DECAY][7] = (double)INFINITY;
        formed_result got = formed_run(backends[b], &f, true, 0);
        assert_true(got.r.gradient[DR_INPUT_LOG_DECAY][7] == 0);
        for (int64_t i = 0; i < bias_count(&f); i++) assert_true(isfinite(got.d_dt_bias[i]));
        for (int64_t i = 0; i < f.p->recurrence.value_heads; i++) assert_true(isfinite(got.d_A_log[i]));
        for (int64_t i = 0; i < f.p->o_count; i++) assert_true(isfinite(got.r.o[i]));
        formed_free(&got);
        formed_end(&f);
    }
    dr_backend_close(backends[1]);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

/* One token each, by a decode and by a forward of the same plan: the same numbers to rounding, the states in place. */
static void decode_agrees(dr_backend *backend, const formed *f, double most) {
    const problem *p = f->p;
    const dr_dtype own = dr_backend_dtype(backend);
    const dr_recurrence recurrence = formed_recurrence(f);
    formed_result want = formed_run(backend, f, false, 0);
    dr_plan *plan;
    dr_recurrence_memory memory;
    dr_inputs inputs = {{0}};
    dr_mutable_states states = {{0}};
    must(dr_plan_create_with_forms(backend, &recurrence, &f->forms, &plan));
    must(dr_plan_memory(plan, &memory));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        inputs.at[i] = input_in(f, i);
    }
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(&p->rule, (dr_state_kind)i)) states.at[i] = state_in(f, own, i, p->initial[i]);
    void *workspace = block(memory.decode);
    dr_call call = {.size = sizeof call,
                    .inputs = &inputs,
                    .states = &states,
                    .o = block((size_t)(p->o_count + 1) * sizeof(double)),
                    .workspace = workspace,
                    .A_log = numbers_in(own, f->A_log, p->recurrence.value_heads),
                    .dt_bias = numbers_in(own, f->dt_bias, bias_count(f))};
    must(dr_plan_decode(plan, &call));
    double *o = numbers_out(f->forms.output, call.o, p->o_count);
    near("o of a decode", &p->rule, o, want.r.o, p->o_count, most);
    for (int i = 0; i < DR_STATES; i++) {
        if (!states.at[i]) continue;
        double *after = state_out(f, own, i, states.at[i]);
        near("a decoded state", &p->rule, after, want.r.final[i], p->state_count[i], 1e-4);
        free(after);
    }
    for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
    free((void *)call.A_log), free((void *)call.dt_bias), free(o), free(workspace);
    formed_free(&want);
    dr_plan_destroy(plan);
}

static void test_decode(void **state) {
    (void)state;
    dr_backend *cpu = open_backend("cpu", NULL, 2);
    dr_random random = {.seed = 16};
    const int64_t cu_seqlens[] = {0, 1, 2, 3};
    for (int i = 0; i < dr_rule_count(); i++)
        for (int b = 0; b < 2; b++) {
            dr_backend *backend = b ? cpu : reference;
            dr_recurrence sizes = {.layout = {.sequences = 3, .rows = 3, .cu_seqlens = cu_seqlens},
                                   .key_heads = 2,
                                   .value_heads = dr_rule_at(i)->tied_scan ? 2 : 4,
                                   .key_size = 24,
                                   .value_size = 40,
                                   .forget = DR_FORGET};
            problem *p = problem_create(dr_rule_at(i), &sizes, false, &random);
            p->recurrence.rule = &p->rule;
            formed f = formed_of(backend, p, DR_DECAY_FORM_SOFTPLUS, true, &random);
            round_inputs(p, DR_BF16);
            for (int k = 0; k < DR_INPUTS; k++) {
                const dr_input_form form = dr_recurrence_input_form(&p->recurrence, (dr_input)k);
                if (form.per_row) f.forms.dtype[k] = DR_BF16, f.forms.pitch[k] = form.steps * form.heads * form.size + 3;
            }
            f.forms.output = DR_BF16;
            f.forms.value_first = true;
            decode_agrees(backend, &f, 5e-3); /* beside one rounding to bfloat16 */
            formed_end(&f);
        }
    dr_backend_close(cpu);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------- */

static dr_status create(dr_backend *backend, const dr_recurrence *recurrence, dr_forms forms) {
    dr_plan *plan = NULL;
    const dr_status status = dr_plan_create_with_forms(backend, recurrence, &forms, &plan);
    dr_plan_destroy(plan);
    return status;
}

static void test_refused(void **state) {
    (void)state;
    dr_backend *cpu = open_backend("cpu", NULL, 1);
    dr_recurrence recurrence = dr_recurrence_default();
    recurrence.rule = dr_rule_find("gdn");
    recurrence.layout = (dr_layout){.sequences = 1, .rows = 8};
    recurrence.key_heads = recurrence.value_heads = 2, recurrence.key_size = recurrence.value_size = 8;
    const dr_forms good = dr_forms_default(cpu);
    dr_forms forms = good;
    must(create(cpu, &recurrence, good));
#define REFUSED_FORM(member, value, words)                                                                                     \
    forms = good;                                                                                                              \
    forms.member = value;                                                                                                      \
    assert_refused(create(cpu, &recurrence, forms), DR_ERROR_ARGUMENT, words)
    REFUSED_FORM(size, 8, "bytes");
    REFUSED_FORM(dtype[DR_INPUT_QUERY], DR_F64, "query of type F64");
    REFUSED_FORM(dtype[DR_INPUT_BETA], DR_I32, "beta of type I32");
    REFUSED_FORM(output, DR_U8, "the output of type U8");
    REFUSED_FORM(pitch[DR_INPUT_KEY], 15, "pitch 15 of key");
    REFUSED_FORM(pitch[DR_INPUT_KEY], -16, "pitch -16 of key");
    REFUSED_FORM(pitch[DR_INPUT_KEY], INT64_MAX, "cannot be addressed");
    REFUSED_FORM(gradient_pitch[DR_INPUT_VALUE], 3, "the gradient of value");
    REFUSED_FORM(beta_factor, -1, "beta_factor");
    REFUSED_FORM(beta_factor, (double)NAN, "beta_factor");
    REFUSED_FORM(decay, (dr_decay_form)9, "form 9");
    forms = good, forms.normalize = true, forms.normalize_eps = -1;
    assert_refused(create(cpu, &recurrence, forms), DR_ERROR_ARGUMENT, "normalize_eps");
    forms = good, forms.decay = DR_DECAY_FORM_BOUNDED, forms.lower_bound = 0;
    assert_refused(create(cpu, &recurrence, forms), DR_ERROR_ARGUMENT, "lower_bound");
    recurrence.rule = dr_rule_find("retnet");
    REFUSED_FORM(decay, DR_DECAY_FORM_SOFTPLUS, "raw decay");
    REFUSED_FORM(beta_factor, 1, "does not use beta");
    REFUSED_FORM(pitch[DR_INPUT_LOG_DECAY], 2, "has no tokens");
    REFUSED_FORM(dtype[DR_INPUT_LOG_DECAY], DR_BF16, "all tokens share");
    dr_backend_close(cpu);
}

/* Parameters of a raw decay without one, and gradients of parameters that are not there. */
static void test_refused_calls(void **state) {
    (void)state;
    dr_random random = {.seed = 17};
    dr_backend *cpu = open_backend("cpu", NULL, 1);
    problem *p = problem_of(dr_rule_find("gdn"), 8, 8, 10, &random);
    const dr_recurrence recurrence = formed_recurrence(&(formed){.p = p});
    float numbers_of[64] = {0};
    dr_plan *plain, *raw;
    dr_forms forms = dr_forms_default(cpu);
    forms.decay = DR_DECAY_FORM_SOFTPLUS;
    must(dr_plan_create(cpu, &recurrence, &plain));
    must(dr_plan_create_with_forms(cpu, &recurrence, &forms, &raw));
    dr_recurrence_memory memory;
    must(dr_plan_memory(raw, &memory));
    dr_inputs inputs = {{0}};
    dr_input_gradients gradients = {{0}};
    for (int i = 0; i < DR_INPUTS; i++) inputs.at[i] = p->input[i] ? block((size_t)p->input_count[i] * sizeof(float)) : NULL;
    void *saved = block(memory.saved), *workspace = block(memory.backward), *d_o = block((size_t)p->o_count * sizeof(float));
    dr_call call = {.size = sizeof call,
                    .boundaries = {.at = p->cu_seqlens, .dtype = DR_I64},
                    .inputs = &inputs,
                    .o = d_o,
                    .saved = saved,
                    .workspace = workspace,
                    .d_o = d_o,
                    .d_inputs = &gradients,
                    .A_log = numbers_of};
    assert_refused(dr_plan_forward(plain, &call), DR_ERROR_ARGUMENT, "A_log is given");
    call.A_log = NULL, call.d_dt_bias = numbers_of;
    assert_refused(dr_plan_backward(plain, &call), DR_ERROR_ARGUMENT, "d_dt_bias is given");
    assert_refused(dr_plan_backward(raw, &call), DR_ERROR_ARGUMENT, "dt_bias is missing");
    call.d_dt_bias = NULL, call.d_A_log = numbers_of;
    assert_refused(dr_plan_backward(raw, &call), DR_ERROR_ARGUMENT, "A_log is missing");
    for (int i = 0; i < DR_INPUTS; i++) free((void *)inputs.at[i]);
    free(saved), free(workspace), free(d_o);
    dr_plan_destroy(plain), dr_plan_destroy(raw);
    problem_free(p);
    dr_backend_close(cpu);
}

static int begin(void **state) {
    (void)state;
    reference = open_backend("reference", NULL, 1);
    return 0;
}

static int end(void **state) {
    (void)state;
    dr_backend_close(reference);
    return 0;
}

int main(void) {
    static char portable[] = "portable", avx2[] = "avx2", avx512[] = "avx512";
    char *const isa[] = {portable, avx2, avx512};
    const dr_cpu_features features = dr_cpu_detect();
    const int isas = features.avx512 ? 3 : features.avx2 ? 2 : 1;
    struct CMUnitTest tests[32] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_closed_gate),
                                   cmocka_unit_test(test_decode), cmocka_unit_test(test_refused),
                                   cmocka_unit_test(test_refused_calls)};
    int count = 5;
    for (int i = 0; i < isas; i++) {
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_cpu_agrees, isa[i]);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_same_bits, isa[i]);
        tests[count++] = (struct CMUnitTest)cmocka_unit_test_prestate(test_threads, isa[i]);
    }
    return _cmocka_run_group_tests("forms", tests, (size_t)count, begin, end);
}
