/* One head over some tokens: drawing its inputs, and running the library's engines on them.
 *
 * Keys and queries have length 1, gains and shares are sigmoids of normal numbers, decays exp(-softplus(z)/2) and slower ones
 * for the scan, so that states stay of order 1 and no factor of the papers' forms underflows within a chunk of 64 tokens. */
#include "base/error.h"
#include "check/theory/theory.h"
#include "check/verify/measure.h"

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double softplus(double x) {
    return log1p(exp(x));
}

static dr_recurrence recurrence_of(const dr_theory_sequence *s) {
    return (dr_recurrence){.rule = &s->rule,
                           .layout = {.sequences = 1, .rows = s->tokens},
                           .key_heads = 1,
                           .value_heads = 1,
                           .key_size = s->key_size,
                           .value_size = s->value_size,
                           .scale = 1,
                           .path = DR_PATH_RECURRENT};
}

static int64_t count_of(int rank, const int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= shape[i];
    return count;
}

static int64_t input_count(const dr_theory_sequence *s, dr_input input) {
    dr_recurrence recurrence = recurrence_of(s);
    int64_t shape[DR_MAX_RANK];
    return count_of(dr_recurrence_input_shape(&recurrence, input, shape), shape);
}

static int64_t state_count(const dr_theory_sequence *s, dr_state_kind state) {
    dr_recurrence recurrence = recurrence_of(s);
    int64_t shape[DR_MAX_RANK];
    return count_of(dr_recurrence_state_shape(&recurrence, state, shape), shape);
}

static bool is_parameter(dr_input input) {
    return input == DR_INPUT_CORRECTION || input == DR_INPUT_SCAN_CENTRE || input == DR_INPUT_RIDGE;
}

int dr_theory_width(const dr_theory_sequence *s, dr_input input) {
    int64_t count = input_count(s, input);
    return (int)(is_parameter(input) ? count : count / s->tokens);
}

dr_status dr_theory_blank(const char *rule, int tokens, int key_size, int value_size, dr_theory_sequence *s) {
    const dr_rule *named = dr_rule_find(rule);
    if (!named) return DR_ERROR_ARGUMENT;
    *s = (dr_theory_sequence){.rule = *named, .tokens = tokens, .key_size = key_size, .value_size = value_size};
    return DR_OK;
}

static double draw_number(dr_random *random, dr_input input) {
    double z = dr_random_normal(random);
    switch (input) {
    case DR_INPUT_LOG_DECAY:
        return -0.5 * softplus(z);
    case DR_INPUT_SCAN_LOG_DECAY:
        return -0.1 * softplus(z);
    case DR_INPUT_SCAN_CENTRE:
        return -0.2 + 0.3 * z;
    case DR_INPUT_RIDGE:
        return 0.3 + dr_random_uniform(random);
    case DR_INPUT_QUERY:
    case DR_INPUT_KEY:
    case DR_INPUT_ERASE_KEY:
    case DR_INPUT_FEEDBACK_KEY:
    case DR_INPUT_VALUE:
        return z;
    default:
        return sigmoid(z);
    }
}

static bool is_key(dr_input input) {
    return input == DR_INPUT_QUERY || input == DR_INPUT_KEY || input == DR_INPUT_ERASE_KEY || input == DR_INPUT_FEEDBACK_KEY;
}

dr_status dr_theory_draw(dr_theory *theory, const char *rule, int tokens, int key_size, int value_size, dr_theory_sequence *s) {
    DR_TRY(dr_theory_blank(rule, tokens, key_size, value_size, s));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(&s->rule, (dr_input)i)) continue;
        int64_t count = input_count(s, (dr_input)i);
        for (int64_t j = 0; j < count; j++) s->input[i][j] = draw_number(&theory->random, (dr_input)i);
        for (int t = 0; is_key((dr_input)i) && t < tokens; t++) put(s, (dr_input)i, t, unit(vector_at(s, (dr_input)i, t)));
    }
    for (int j = 0; j < key_size * value_size; j++) s->initial[DR_STATE_S][j] = 0.5 * dr_random_normal(&theory->random);
    for (int j = 0; j < key_size; j++) s->initial[DR_STATE_A][j] = dr_random_uniform(&theory->random);
    return DR_OK;
}

static dr_status upload(dr_device_memory *memory, double *numbers, int64_t count, void **block) {
    dr_tensor tensor = {.dtype = DR_F64, .rank = 1, .shape = {count}, .data = numbers};
    return dr_device_fill(memory, &tensor, count, block);
}

static dr_status run_with(dr_device_memory *memory, const dr_recurrence *recurrence, dr_theory_sequence *s) {
    dr_inputs inputs = {0};
    dr_states initial = {0};
    dr_mutable_states final = {0};
    dr_recurrence_memory sizes;
    void *block, *o, *workspace;
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(&s->rule, (dr_input)i)) continue;
        DR_TRY(upload(memory, s->input[i], input_count(s, (dr_input)i), &block));
        inputs.at[i] = block;
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(&s->rule, (dr_state_kind)i)) continue;
        DR_TRY(upload(memory, s->initial[i], state_count(s, (dr_state_kind)i), &block));
        initial.at[i] = block;
        DR_TRY(dr_device_unset(memory, state_count(s, (dr_state_kind)i), &final.at[i]));
    }
    int64_t o_count = (int64_t)s->tokens * s->value_size;
    DR_TRY(dr_recurrence_plan(memory->backend, recurrence, &sizes));
    DR_TRY(dr_device_unset(memory, o_count, &o));
    DR_TRY(dr_device_bytes(memory, sizes.forward, &workspace));
    DR_TRY(dr_recurrence_forward(memory->backend, recurrence, &inputs, &initial, o, &final, NULL, workspace));
    DR_TRY(dr_backend_download(memory->backend, s->o, DR_F64, o, o_count));
    for (int i = 0; i < DR_STATES; i++)
        if (final.at[i])
            DR_TRY(dr_backend_download(memory->backend, s->final[i], DR_F64, final.at[i], state_count(s, (dr_state_kind)i)));
    return DR_OK;
}

static dr_status run_on(dr_backend *backend, const dr_recurrence *recurrence, dr_theory_sequence *s) {
    dr_device_memory memory = {.backend = backend};
    dr_status status = run_with(&memory, recurrence, s);
    dr_device_free(&memory);
    return status;
}

dr_status dr_theory_run(dr_theory *theory, dr_theory_sequence *s) {
    dr_recurrence recurrence = recurrence_of(s);
    return run_on(theory->reference, &recurrence, s);
}

dr_status dr_theory_run_chunkwise(dr_backend *backend, int64_t chunk, dr_theory_sequence *s) {
    dr_recurrence recurrence = recurrence_of(s);
    recurrence.path = DR_PATH_CHUNKWISE;
    recurrence.chunk = chunk;
    return run_on(backend, &recurrence, s);
}

void dr_theory_token(const dr_theory_sequence *from, int token, dr_theory_sequence *one) {
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(&one->rule, (dr_input)i)) continue;
        int width = dr_theory_width(one, (dr_input)i), first = is_parameter((dr_input)i) ? 0 : token * width;
        for (int j = 0; j < width; j++) one->input[i][j] = from->input[i][first + j];
    }
}

void dr_theory_advance(dr_theory_sequence *s) {
    for (int i = 0; i < DR_STATES; i++)
        for (int j = 0; j < SEQUENCE_NUMBERS; j++) s->initial[i][j] = s->final[i][j];
}

dr_status dr_theory_write_key(dr_theory *theory, const char *rule, const dr_theory_sequence *s, matrix *write_key) {
    dr_theory_sequence probe = *s;
    matrix first = zeros(s->value_size, 1);
    first.at[0] = 1;
    probe.rule = *dr_rule_find(rule);
    probe.rule.squash = s->rule.squash;
    start_from(&probe, zeros(s->key_size, s->value_size));
    put(&probe, DR_INPUT_BETA, 0, filled(1, 1, 1));
    put(&probe, DR_INPUT_VALUE, 0, first);
    DR_TRY(dr_theory_run(theory, &probe));
    *write_key = product(final_state(&probe), first);
    return DR_OK;
}
