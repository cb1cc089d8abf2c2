/* Reading recorded recurrences: rule and options, then sizes, then every tensor with its shape.
 *
 * The files use the short names of the papers, in which one letter means different things in different rules (a, b). The table
 * below gives for each input of the library the names it has in files; since a rule reads an input or does not, no table by
 * rule is needed. A composition ("rule": "compose") has its rule as JSON in its options, and its inputs under the library's
 * names. Everything is checked here, so that running the case can trust it: an unexpected tensor, a missing one or a wrong size
 * is DR_ERROR_FORMAT. */
#include "check/verify/recurrence_case.h"

#include "base/error.h"
#include "base/memory.h"
#include "formats/json.h"
#include "rules/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SIZE = 1 << 30, MAX_SUBSTEPS = 64, MAX_CG_ITERS = 1 << 20 };

static const struct {
    const char *name;
    dr_input input;
} names[] = {
    {"q", DR_INPUT_QUERY},          {"k", DR_INPUT_KEY},
    {"v", DR_INPUT_VALUE},          {"g", DR_INPUT_LOG_DECAY},
    {"beta", DR_INPUT_BETA},        {"e", DR_INPUT_ERASE_KEY},
    {"gamma", DR_INPUT_ERASE_GAIN}, {"lam", DR_INPUT_LAMBDA},
    {"p", DR_INPUT_FEEDBACK_KEY},  /* comba */
    {"kk", DR_INPUT_FEEDBACK_KEY}, /* rwkv7 */
    {"a", DR_INPUT_FREE_READ},     /* dplr */
    {"b", DR_INPUT_FREE_WRITE},    /* dplr */
    {"a", DR_INPUT_RATE},          /* rwkv7 */
    {"b", DR_INPUT_ERASE_GATE},    /* gdn2 */
    {"w", DR_INPUT_WRITE_GATE},    /* gdn2 */
    {"d", DR_INPUT_CORRECTION},     {"gP", DR_INPUT_SCAN_LOG_DECAY},
    {"bP", DR_INPUT_SCAN_GAIN},     {"mu", DR_INPUT_SCAN_CENTRE},
    {"ridge", DR_INPUT_RIDGE},
};

static bool is_composition(const dr_vector_file *file) {
    return strcmp(file->rule, "compose") == 0;
}

/* The name that the file uses for an input. */
static const char *name_in_file(const dr_vector_file *file, dr_input input) {
    const char *any = dr_input_name(input);
    if (is_composition(file)) return any;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].input != input) continue;
        any = names[i].name;
        if (dr_vector_file_has(file, "in.", any)) break;
    }
    return any;
}

static bool has_normalized_gain(const dr_rule *rule) {
    for (int i = 0; i < rule->rows; i++)
        if (rule->row[i].gain == DR_GAIN_NORMALIZED) return true;
    return false;
}

/* A number of steps turns the exact query into conjugate gradients; without x0 they start as "jacobi". */
static dr_status read_conjugate_gradients(const dr_vector_file *file, dr_rule *rule) {
    const char *start = "jacobi";
    int64_t steps = 0;
    DR_TRY(dr_json_integer(file->options, "cg_iters", 1, MAX_CG_ITERS, &steps));
    DR_TRY(dr_json_text(file->options, "x0", &start));
    if (steps == 0) return DR_OK;
    if (strcmp(start, "jacobi") != 0 && strcmp(start, "zero") != 0)
        return dr_fail(DR_ERROR_FORMAT, "its option 'x0' is '%.40s', not jacobi or zero", start);
    rule->query = DR_QUERY_CONJUGATE_GRADIENT;
    rule->cg_iters = (int)steps;
    rule->cg_start = start[0] == 'j' ? DR_CG_JACOBI : DR_CG_ZERO;
    return DR_OK;
}

/* x and eps belong to the squash, eps alone to a normalized gain. */
static dr_status read_options(const dr_vector_file *file, dr_recurrence_case *read) {
    static const char *const known[] = {"x", "eps", "qk_l2norm", "read_decayed", "cg_iters", "x0", NULL};
    bool decayed = !read->rule.row[0].undecayed;
    if (dr_json_known(file->options, known) != DR_OK)
        return dr_fail_in(DR_ERROR_UNSUPPORTED, "this build does not know its options");
    double *eps = has_normalized_gain(&read->rule) ? &read->rule.gain_eps : &read->rule.squash.eps;
    DR_TRY(dr_json_real(file->options, "x", 1, 2, &read->rule.squash.x));
    DR_TRY(dr_json_real(file->options, "eps", 0, 1, eps));
    DR_TRY(dr_json_real(file->options, "qk_l2norm", 0, 1, &read->qk_l2norm));
    DR_TRY(dr_json_boolean(file->options, "read_decayed", &decayed));
    read->rule.row[0].undecayed = !decayed;
    return read_conjugate_gradients(file, &read->rule);
}

/* A composition's squash is part of its rule, so that eps is that of the gain. */
static dr_status read_composition(const dr_vector_file *file, dr_recurrence_case *read) {
    static const char *const known[] = {"rule", "eps", "qk_l2norm", "cg_iters", "x0", NULL}, *const needed[] = {"rule", NULL};
    int64_t substeps = 1;
    if (dr_json_known(file->options, known) != DR_OK)
        return dr_fail_in(DR_ERROR_UNSUPPORTED, "this build does not know its options");
    DR_TRY(dr_json_required(file->options, needed));
    if (dr_rule_from_json(json_object_get(file->options, "rule"), &read->rule, NULL) != DR_OK)
        return dr_fail_in(DR_ERROR_FORMAT, "its option 'rule'");
    DR_TRY(dr_json_real(file->options, "eps", 0, 1, &read->rule.gain_eps));
    DR_TRY(dr_json_real(file->options, "qk_l2norm", 0, 1, &read->qk_l2norm));
    DR_TRY(read_conjugate_gradients(file, &read->rule));
    DR_TRY(dr_vector_file_integer(file, "substeps", 1, MAX_SUBSTEPS, &substeps));
    if (substeps != read->rule.repeat)
        return dr_fail(DR_ERROR_FORMAT, "its metadata 'substeps' is %lld, but its rule repeats %d times", (long long)substeps,
                       read->rule.repeat);
    if (dr_rule_check(&read->rule) != DR_OK) return dr_fail_in(DR_ERROR_FORMAT, "its options do not fit its rule");
    return DR_OK;
}

static dr_status read_rule(const dr_vector_file *file, dr_recurrence_case *read) {
    if (is_composition(file)) return read_composition(file, read);
    const dr_rule *rule = dr_rule_find(file->rule);
    if (!rule) return dr_fail(DR_ERROR_UNSUPPORTED, "'%.40s' is no rule of this build", file->rule);
    int64_t substeps = 1;
    read->rule = *rule;
    DR_TRY(read_options(file, read));
    DR_TRY(dr_vector_file_integer(file, "substeps", 1, MAX_SUBSTEPS, &substeps));
    read->step_axis = rule->repeat > 1;
    if (substeps > 1 || read->step_axis) read->rule.repeat = (int)substeps;
    return dr_rule_check(&read->rule) == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "its options do not fit the rule");
}

/* Packed sequences: cu_seqlens [N+1], copied because the file's may be unaligned. */
static dr_status read_cu_seqlens(dr_vector_file *file, dr_recurrence_case *read) {
    int64_t shape[] = {read->recurrence.layout.sequences + 1};
    dr_tensor begins;
    void *memory = NULL;
    DR_TRY(dr_vector_file_take(file, "", "cu_seqlens", DR_I64, 1, shape, &begins));
    DR_TRY(dr_allocate((size_t)shape[0] * sizeof(int64_t), "cu_seqlens", &memory));
    read->cu_seqlens = memory;
    memcpy(read->cu_seqlens, begins.data, (size_t)shape[0] * sizeof(int64_t));
    read->recurrence.layout.cu_seqlens = read->cu_seqlens;
    return DR_OK;
}

/* Sizes of the case; *tokens is T. */
static dr_status read_sizes(dr_vector_file *file, dr_recurrence_case *read, int64_t *tokens) {
    dr_recurrence *recurrence = &read->recurrence;
    int64_t batch = 0, packed = 0;
    recurrence->rule = &read->rule;
    DR_TRY(dr_vector_file_integer(file, "B", 1, MAX_SIZE, &batch));
    DR_TRY(dr_vector_file_integer(file, "T", 1, MAX_SIZE, tokens));
    DR_TRY(dr_vector_file_integer(file, "H", 1, MAX_SIZE, &recurrence->key_heads));
    DR_TRY(dr_vector_file_integer(file, "HV", 1, MAX_SIZE, &recurrence->value_heads));
    DR_TRY(dr_vector_file_integer(file, "dk", 1, MAX_SIZE, &recurrence->key_size));
    DR_TRY(dr_vector_file_integer(file, "dv", 1, MAX_SIZE, &recurrence->value_size));
    DR_TRY(dr_vector_file_integer(file, "N", 1, MAX_SIZE, &recurrence->layout.sequences));
    DR_TRY(dr_vector_file_integer(file, "packed", 0, 1, &packed));
    DR_TRY(dr_vector_file_real(file, "scale", &recurrence->scale));
    if (recurrence->scale == 0) return dr_fail(DR_ERROR_FORMAT, "its metadata 'scale' is 0");
    if (recurrence->value_heads % recurrence->key_heads != 0)
        return dr_fail(DR_ERROR_FORMAT, "its %lld value heads are no multiple of its %lld key heads",
                       (long long)recurrence->value_heads, (long long)recurrence->key_heads);
    if (packed ? batch != 1 : recurrence->layout.sequences != batch)
        return dr_fail(DR_ERROR_FORMAT, "its metadata 'N' must be 'B', or 'B' 1 and 'packed' 1");
    recurrence->layout.rows = batch * *tokens;
    if (packed) DR_TRY(read_cu_seqlens(file, read));
    return dr_layout_check(&recurrence->layout) == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "cu_seqlens");
}

/* The shape of an input in the file: that of the library, with [B, T] for the rows of tokens, and an axis for a single step
 * where the rule is one of steps. */
static int shape_in_file(const dr_recurrence_case *read, dr_input input, int64_t tokens, int64_t shape[DR_MAX_RANK + 2]) {
    const dr_recurrence *recurrence = &read->recurrence;
    dr_recurrence longer = *recurrence;
    int64_t of_longer[DR_MAX_RANK];
    int rank = dr_recurrence_input_shape(recurrence, input, shape);
    bool has_steps = input == DR_INPUT_KEY || input == DR_INPUT_VALUE || input == DR_INPUT_BETA;
    longer.layout.rows++;
    dr_recurrence_input_shape(&longer, input, of_longer);
    if (shape[0] == of_longer[0]) return rank; /* a parameter, not a stream of tokens */
    bool single_step = has_steps && read->step_axis && read->rule.repeat == 1;
    memmove(shape + 2 + single_step, shape + 1, (size_t)(rank - 1) * sizeof shape[0]);
    shape[0] = recurrence->layout.rows / tokens;
    shape[1] = tokens;
    if (single_step) shape[2] = 1;
    return rank + 1 + single_step;
}

/* The exact rules are recorded with a ridge [H], the same on every channel. */
static bool has_one_ridge_a_head(const dr_vector_file *file, const char *name) {
    return dr_vector_file_rank(file, "in.", name) == 1;
}

static dr_status read_inputs(dr_vector_file *file, int64_t tokens, dr_recurrence_case *read) {
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_case_input *input = &read->input[i];
        if (!dr_rule_uses(&read->rule, (dr_input)i)) continue;
        int64_t shape[DR_MAX_RANK + 2];
        int rank = shape_in_file(read, (dr_input)i, tokens, shape);
        input->name = name_in_file(file, (dr_input)i);
        if (i == DR_INPUT_RIDGE && has_one_ridge_a_head(file, input->name)) rank = 1;
        input->has_gradient = read->backward;
        DR_TRY(dr_vector_file_take(file, "in.", input->name, DR_F32, rank, shape, &input->value));
        if (read->backward) DR_TRY(dr_vector_file_take(file, "grad.", input->name, DR_F64, rank, shape, &input->gradient));
    }
    return DR_OK;
}

/* out.G is K + Diag(ridge), ridge [H] or [H, K]; K is what the engines give. */
static dr_status read_ridged_gram(dr_vector_file *file, int rank, const int64_t *shape, dr_recurrence_case *read) {
    dr_case_state *state = &read->state[DR_STATE_K];
    const dr_tensor *ridge = &read->input[DR_INPUT_RIDGE].value;
    dr_tensor recorded;
    void *memory = NULL;
    DR_TRY(dr_vector_file_take(file, "out.", "G", DR_F64, rank, shape, &recorded));
    int64_t count = dr_tensor_count(&recorded), size = shape[rank - 1], heads = shape[1],
            group = heads / read->recurrence.key_heads;
    int64_t each = read->recurrence.key_heads * size / dr_tensor_count(ridge);
    DR_TRY(dr_allocate((size_t)count * sizeof(double), "a Gram matrix", &memory));
    read->gram = memory;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = i / size % size, column = i % size, head = i / (size * size) % heads / group;
        read->gram[i] = dr_tensor_element(&recorded, i);
        if (row == column) read->gram[i] -= dr_tensor_element(ridge, (head * size + row) / each);
    }
    state->final_name = "G";
    state->final = recorded;
    state->final.data = read->gram;
    return DR_OK;
}

/* Final states must all be recorded; initial ones (absent: zero) and cotangents (absent: zero) need not. */
static dr_status read_states(dr_vector_file *file, dr_recurrence_case *read) {
    for (int i = 0; i < DR_STATES; i++) {
        dr_case_state *state = &read->state[i];
        const char *name = dr_state_name((dr_state_kind)i);
        if (!dr_rule_carries(&read->rule, (dr_state_kind)i)) continue;
        int64_t shape[DR_MAX_RANK];
        int rank = dr_recurrence_state_shape(&read->recurrence, (dr_state_kind)i, shape);
        snprintf(state->initial_name, sizeof state->initial_name, "%s0", name);
        state->final_name = name;
        state->has_final = true;
        if (i == DR_STATE_K && dr_vector_file_has(file, "out.", "G"))
            DR_TRY(read_ridged_gram(file, rank, shape, read));
        else
            DR_TRY(dr_vector_file_take(file, "out.", name, DR_F64, rank, shape, &state->final));
        state->has_initial = dr_vector_file_has(file, "in.", state->initial_name);
        state->has_initial_gradient = read->backward && state->has_initial;
        state->has_cotangent = read->backward && dr_vector_file_has(file, "cot.", name);
        if (state->has_initial)
            DR_TRY(dr_vector_file_take(file, "in.", state->initial_name, DR_F32, rank, shape, &state->initial));
        if (state->has_initial_gradient)
            DR_TRY(dr_vector_file_take(file, "grad.", state->initial_name, DR_F64, rank, shape, &state->initial_gradient));
        if (state->has_cotangent) DR_TRY(dr_vector_file_take(file, "cot.", name, DR_F32, rank, shape, &state->cotangent));
    }
    return DR_OK;
}

static dr_status read_output(dr_vector_file *file, int64_t tokens, dr_recurrence_case *read) {
    const dr_recurrence *recurrence = &read->recurrence;
    int64_t shape[] = {recurrence->layout.rows / tokens, tokens, recurrence->value_heads, recurrence->value_size};
    read->has_output = true;
    DR_TRY(dr_vector_file_take(file, "out.", "o", DR_F64, 4, shape, &read->output));
    return read->backward ? dr_vector_file_take(file, "cot.", "o", DR_F32, 4, shape, &read->output_cotangent) : DR_OK;
}

dr_status dr_recurrence_case_read(dr_vector_file *file, dr_recurrence_case *read) {
    int64_t tokens = 0;
    *read = (dr_recurrence_case){.backward = file->backward};
    dr_status status;
    DR_GO(read_rule(file, read));
    DR_GO(read_sizes(file, read, &tokens));
    DR_GO(read_inputs(file, tokens, read));
    DR_GO(read_states(file, read));
    DR_GO(read_output(file, tokens, read));
    DR_GO(dr_vector_file_all_taken(file));
    return DR_OK;
done:
    dr_recurrence_case_close(read);
    return status;
}

static const float zero = 0, one = 1;

static void set_constant(dr_recurrence_case *read, dr_input input, const float *value) {
    read->input[input] = (dr_case_input){.name = dr_input_name(input), .value = {.dtype = DR_F32, .data = (void *)value}};
}

/* The engines have no entry for the squash alone, but one token of S_t = S + (B_t * key) value^T from S = 0 with key = 1 and
 * value = 1 (V = 1) leaves S = B_t, and with scan_log_decay = 0 and scan_gain = 0 A_t is the initial A. So each vector of
 * A [B, T, HV, dk] is the initial A of a sequence of one token, out.y is the final S [B T, HV, dk, 1], grad.A is the gradient
 * of the initial A and grad.mu that of the centre. This runs the very maps that the rules run. */
dr_status dr_squash_case_read(dr_vector_file *file, dr_recurrence_case *read) {
    static const char *const known[] = {"x", "eps", NULL};
    dr_case_state *a = &read->state[DR_STATE_A], *s = &read->state[DR_STATE_S];
    dr_case_input *centre = &read->input[DR_INPUT_SCAN_CENTRE];
    *read = (dr_recurrence_case){.rule = dr_rule_blank(), .backward = file->backward};
    read->rule.rows = 1;
    read->rule.row[0] = (dr_row){.read = DR_READ_NONE, .write = DR_WRITE_PRECONDITIONED, .value = DR_VALUE_V};
    read->rule.row[0].gain = DR_GAIN_ONE;
    read->rule.scan = DR_SCAN_DIAGONAL;
    DR_TRY(dr_json_known(file->options, known));
    DR_TRY(dr_json_real(file->options, "x", 1, 2, &read->rule.squash.x));
    DR_TRY(dr_json_real(file->options, "eps", 0, 1, &read->rule.squash.eps));
    if (dr_rule_check(&read->rule) != DR_OK) return dr_fail_in(DR_ERROR_FORMAT, "its options do not fit the squash");

    DR_TRY(dr_vector_file_take_any(file, "in.", "A", DR_F32, 4, &a->initial));
    const int64_t *shape = a->initial.shape;
    DR_TRY(dr_vector_file_take(file, "in.", "mu", DR_F32, 1, &shape[2], &centre->value));
    DR_TRY(dr_vector_file_take(file, "out.", "y", DR_F64, 4, shape, &s->final));
    if (dr_tensor_count(&a->initial) == 0) return dr_fail(DR_ERROR_FORMAT, "the tensor 'in.A' is empty");
    if (read->backward) {
        DR_TRY(dr_vector_file_take(file, "cot.", "y", DR_F32, 4, shape, &s->cotangent));
        DR_TRY(dr_vector_file_take(file, "grad.", "A", DR_F64, 4, shape, &a->initial_gradient));
        DR_TRY(dr_vector_file_take(file, "grad.", "mu", DR_F64, 1, &shape[2], &centre->gradient));
    }
    s->has_final = a->has_initial = true;
    s->final_name = "y";
    s->has_cotangent = a->has_initial_gradient = centre->has_gradient = read->backward;
    snprintf(a->initial_name, sizeof a->initial_name, "A");
    centre->name = "mu";
    set_constant(read, DR_INPUT_QUERY, &one);
    set_constant(read, DR_INPUT_KEY, &one);
    set_constant(read, DR_INPUT_VALUE, &one);
    set_constant(read, DR_INPUT_SCAN_LOG_DECAY, &zero);
    set_constant(read, DR_INPUT_SCAN_GAIN, &zero);
    read->output_cotangent = (dr_tensor){.dtype = DR_F32, .data = (void *)&zero};
    read->recurrence = (dr_recurrence){
        .forget = DR_FORGET,
        .rule = &read->rule,
        .layout = {.sequences = shape[0] * shape[1], .rows = shape[0] * shape[1]},
        .key_heads = shape[2],
        .value_heads = shape[2],
        .key_size = shape[3],
        .value_size = 1,
        .scale = 1,
    };
    return dr_vector_file_all_taken(file);
}

void dr_recurrence_case_close(dr_recurrence_case *read) {
    dr_release(read->cu_seqlens);
    dr_release(read->gram);
    read->cu_seqlens = NULL;
    read->gram = NULL;
}
