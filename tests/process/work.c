#include "work.h"

#include <deltarule/model.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t mix(uint64_t digest, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return digest;
}

static bool went(dr_status status, const char *what) {
    if (status != DR_OK) fprintf(stderr, "%s: %s: %s\n", what, dr_status_name(status), dr_last_error());
    return status == DR_OK;
}

/* ---- recurrences ----------------------------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 64 };

typedef struct {
    dr_backend *backend;
    void *block[MOST_BLOCKS];
    int blocks;
    uint32_t random;
} memory;

static float draw(memory *m) {
    m->random = m->random * 1664525 + 1013904223;
    return (float)(m->random >> 8) / (1 << 24) - 0.5F;
}

static void *take(memory *m, size_t bytes) {
    void *block = NULL;
    if (m->blocks == MOST_BLOCKS || !went(dr_backend_allocate(m->backend, bytes, &block), "memory")) return NULL;
    dr_backend_zero(m->backend, block, bytes);
    return m->block[m->blocks++] = block;
}

static int64_t count_of(int rank, const int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++) count *= shape[i];
    return count;
}

/* Inputs with numbers that suit: log decays at most 0, gains and ridges above it, short vectors. */
static float suit(dr_input input, float x) {
    switch (input) {
    case DR_INPUT_LOG_DECAY:
    case DR_INPUT_SCAN_LOG_DECAY:
        return -0.5F - x;
    case DR_INPUT_BETA:
    case DR_INPUT_ERASE_GAIN:
    case DR_INPUT_LAMBDA:
    case DR_INPUT_RATE:
    case DR_INPUT_SCAN_GAIN:
    case DR_INPUT_RIDGE:
        return 0.6F + x;
    default:
        return x * 0.2F;
    }
}

static uint64_t recurrence(dr_backend *backend, const char *rule, uint64_t digest) {
    const dr_recurrence r = {.rule = dr_rule_find(rule),
                             .layout = {.sequences = 2, .rows = 32},
                             .key_heads = 2,
                             .value_heads = 2,
                             .key_size = 64,
                             .value_size = 64};
    dr_recurrence_memory needs;
    memory m = {.backend = backend, .random = 7};
    if (!went(dr_recurrence_plan(backend, &r, &needs), rule)) return 0;
    dr_inputs in = {0};
    dr_input_gradients d_in = {0};
    dr_mutable_states final = {0}, d_initial = {0};
    int64_t shape[DR_MAX_RANK], counts[DR_INPUTS] = {0}, states[DR_STATES] = {0};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(r.rule, (dr_input)i)) continue;
        counts[i] = count_of(dr_recurrence_input_shape(&r, (dr_input)i, shape), shape);
        float *to = take(&m, (size_t)counts[i] * sizeof *to);
        for (int64_t j = 0; to && j < counts[i]; j++) to[j] = suit((dr_input)i, draw(&m));
        in.at[i] = to;
        d_in.at[i] = take(&m, (size_t)counts[i] * sizeof(float));
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(r.rule, (dr_state_kind)i)) continue;
        states[i] = count_of(dr_recurrence_state_shape(&r, (dr_state_kind)i, shape), shape);
        final.at[i] = take(&m, (size_t)states[i] * sizeof(float));
        d_initial.at[i] = take(&m, (size_t)states[i] * sizeof(float));
    }
    const size_t values = (size_t)(r.layout.rows * r.value_heads * r.value_size) * sizeof(float);
    void *o = take(&m, values), *saved = take(&m, needs.saved),
         *workspace = take(&m, needs.forward + needs.backward + needs.decode);
    bool right = went(dr_recurrence_forward(backend, &r, &in, NULL, o, &final, saved, workspace), rule);
    digest = mix(digest, o, values);
    right &= went(dr_recurrence_backward(backend, &r, &in, NULL, saved, o, NULL, &d_in, &d_initial, workspace), rule);
    for (int i = 0; i < DR_INPUTS; i++)
        if (in.at[i]) digest = mix(digest, d_in.at[i], (size_t)counts[i] * sizeof(float));
    dr_recurrence one = r;
    one.layout.rows = one.layout.sequences;
    right &= went(dr_recurrence_decode(backend, &one, &in, &final, o, workspace), rule);
    digest = mix(digest, o, values);
    for (int i = 0; i < DR_STATES; i++)
        if (states[i]) digest = mix(digest, final.at[i], (size_t)states[i] * sizeof(float));
    while (m.blocks > 0) dr_backend_free(backend, m.block[--m.blocks]);
    return right ? digest : 0;
}

/* ---- models ---------------------------------------------------------------------------------------------------------- */

static uint64_t model(dr_backend *backend, uint64_t digest) {
    enum { ROWS = 256, VOCABULARY = 64 };
    dr_model_config config = dr_model_config_default(dr_rule_find("gdn"));
    config.vocabulary = VOCABULARY, config.hidden = 64, config.layers = 1, config.heads = 2, config.tied = true;
    dr_model *made = NULL;
    dr_model_state *state = NULL;
    int32_t ids[ROWS], labels[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = i * 7 % VOCABULARY, labels[i] = (i + 1) * 7 % VOCABULARY;
    const dr_batch batch = {.layout = {.sequences = 2, .rows = ROWS}, .ids = ids, .targets = ROWS, .labels = labels};
    dr_session *session = NULL;
    void *gradients = NULL;
    double loss = 0;
    float logits[2 * VOCABULARY];
    bool right = went(dr_model_create(backend, &config, 1, &made), "a model") &&
                 went(dr_model_state_create(made, 2, &state), "a model's state") &&
                 went(dr_session_create(made, &session), "a session") &&
                 went(dr_model_gradients_create(made, &gradients), "gradients") &&
                 went(dr_session_gradient(session, &batch, 1, gradients, &loss, NULL), "a gradient") &&
                 went(dr_session_loss(session, &batch, state, &loss, NULL, NULL, NULL), "a loss");
    if (right) digest = mix(digest, gradients, (size_t)dr_model_block_count(made) * sizeof(float));
    for (int i = 0; right && i < 4; i++) {
        right = went(dr_model_step(made, ids + i, state, logits), "a step");
        digest = mix(digest, logits, sizeof logits);
    }
    if (gradients) dr_backend_free(backend, gradients);
    dr_session_destroy(session);
    dr_model_state_destroy(state);
    dr_model_destroy(made);
    return right ? digest : 0;
}

uint64_t work_on(dr_backend *backend) {
    static const char *const rules[] = {"gdn", "kda", "pkda", "mesanet"};
    uint64_t digest = 14695981039346656037u;
    for (size_t i = 0; digest && i < sizeof rules / sizeof *rules; i++) digest = recurrence(backend, rules[i], digest);
    return digest ? model(backend, digest) : 0;
}

uint64_t work_on_threads(int threads) {
    dr_backend *backend = NULL;
    if (!went(dr_backend_open("cpu", &(dr_backend_options){.threads = threads}, &backend), "a backend")) return 0;
    const uint64_t digest = work_on(backend);
    dr_backend_close(backend);
    return digest;
}
