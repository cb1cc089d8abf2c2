/* A state that is kept: a sequence is computed in two sittings, with a file between them, then goes on token by token.
 *
 * The state of a recurrence is all that it remembers, and does not grow. So a long prompt is paid for once: its state is saved
 * and loaded wherever a text begins with it. The example computes the first half of a random sequence, saves the state, loads
 * it as another process would, computes the second half from it, and checks that the outputs are those of the whole sequence in
 * one call. Then it decodes one more token, which updates the state in place.
 *
 * Usage: state [FILE]      where the state is saved; state.safetensors in the current folder */
#include <deltarule/plan.h>
#include <deltarule/state.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 256, HALF = TOKENS / 2, HEADS = 2, SIZE = 64, VECTOR = HEADS * SIZE };

/* Tensors of the sequence, one row a token, and room for one token more. */
static float query[TOKENS + 1][VECTOR], key[TOKENS + 1][VECTOR], value[TOKENS + 1][VECTOR];
static float beta[TOKENS + 1][HEADS], log_decay[TOKENS + 1][HEADS];

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "state: %s\n", dr_last_error());
    exit(1);
}

/* A number in [-1, 1). */
static float draw(void) {
    static unsigned seed = 1;
    seed = seed * 1664525 + 1013904223;
    return (float)(int)seed / 2147483648.0f;
}

/* Vectors of length 1 in each head: the delta rule is stable for such keys. */
static void draw_unit(float *vector) {
    for (int h = 0; h < HEADS; h++, vector += SIZE) {
        float squares = 0;
        for (int i = 0; i < SIZE; i++) {
            vector[i] = draw();
            squares += vector[i] * vector[i];
        }
        for (int i = 0; i < SIZE; i++) vector[i] /= sqrtf(squares);
    }
}

static void draw_sequence(void) {
    for (int t = 0; t <= TOKENS; t++) {
        draw_unit(query[t]);
        draw_unit(key[t]);
        for (int i = 0; i < VECTOR; i++) value[t][i] = draw();
        for (int h = 0; h < HEADS; h++) {
            beta[t][h] = 0.5f + 0.5f * draw();         /* in [0, 1] */
            log_decay[t][h] = -0.05f - 0.05f * draw(); /* the state keeps 90 to 100 of 100 at each token */
        }
    }
}

/* Gated DeltaNet over so many tokens of one sequence. */
static dr_recurrence of_tokens(int64_t tokens) {
    dr_recurrence recurrence = dr_recurrence_default();
    recurrence.rule = dr_rule_find("gdn");
    recurrence.layout = (dr_layout){.sequences = 1, .rows = tokens};
    recurrence.key_heads = recurrence.value_heads = HEADS;
    recurrence.key_size = recurrence.value_size = SIZE;
    return recurrence;
}

/* Where the inputs from token `first` on lie. */
static dr_inputs inputs_from(int first) {
    return (dr_inputs){.at = {[DR_INPUT_QUERY] = query[first],
                              [DR_INPUT_KEY] = key[first],
                              [DR_INPUT_VALUE] = value[first],
                              [DR_INPUT_BETA] = beta[first],
                              [DR_INPUT_LOG_DECAY] = log_decay[first]}};
}

/* Outputs o [tokens, VECTOR] of the tokens from `first` on; the state is read, and then what they leave is in it. */
static void compute(dr_backend *backend, int first, int64_t tokens, dr_state *state, float (*o)[VECTOR]) {
    const dr_recurrence recurrence = of_tokens(tokens);
    const dr_inputs inputs = inputs_from(first);
    dr_plan *plan;
    dr_recurrence_memory memory;
    dr_states initial;
    dr_mutable_states final;
    void *workspace;
    require(dr_plan_create(backend, &recurrence, &plan));
    require(dr_plan_memory(plan, &memory));
    require(dr_backend_allocate(backend, memory.forward, &workspace));
    /* both check that the state is of such a recurrence: its rule, heads, sizes and number of sequences */
    require(dr_state_initial(state, backend, &recurrence, &initial));
    require(dr_state_final(state, backend, &recurrence, &final));
    const dr_call call = {
        .size = sizeof call, .inputs = &inputs, .initial = &initial, .o = o, .final = &final, .workspace = workspace};
    require(dr_plan_forward(plan, &call));
    dr_backend_free(backend, workspace);
    dr_plan_destroy(plan);
}

/* The output o [VECTOR] of the token behind the sequence. A server plans this once and calls it for every token. */
static void decode(dr_backend *backend, dr_state *state, float *o) {
    const dr_recurrence recurrence = of_tokens(1);
    const dr_inputs inputs = inputs_from(TOKENS);
    dr_plan *plan;
    dr_recurrence_memory memory;
    dr_mutable_states states;
    void *workspace;
    require(dr_plan_create(backend, &recurrence, &plan));
    require(dr_plan_memory(plan, &memory));
    require(dr_backend_allocate(backend, memory.decode, &workspace));
    require(dr_state_final(state, backend, &recurrence, &states));
    const dr_call call = {.size = sizeof call, .inputs = &inputs, .o = o, .states = &states, .workspace = workspace};
    require(dr_plan_decode(plan, &call));
    dr_backend_free(backend, workspace);
    dr_plan_destroy(plan);
}

static float largest_difference(const float *a, const float *b, int count) {
    float largest = 0;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, fabsf(a[i] - b[i]));
    return largest;
}

int main(int argc, char **argv) {
    static float whole[TOKENS + 1][VECTOR], halves[TOKENS + 1][VECTOR];
    const char *file = argc > 1 ? argv[1] : "state.safetensors";
    const dr_recurrence recurrence = of_tokens(TOKENS);
    dr_backend *backend;
    dr_state *state;
    draw_sequence();
    require(dr_backend_open("cpu", NULL, &backend));

    /* all tokens at once, and the one behind them */
    require(dr_state_create(backend, &recurrence, &state));
    compute(backend, 0, TOKENS, state, whole);
    decode(backend, state, whole[TOKENS]);

    /* the first half, then the file */
    dr_state_reset(state);
    compute(backend, 0, HALF, state, halves);
    require(dr_state_save(state, file));
    dr_state_destroy(state);

    /* another process, another day: the rest */
    require(dr_state_load(backend, &recurrence, file, &state));
    compute(backend, HALF, TOKENS - HALF, state, &halves[HALF]);
    decode(backend, state, halves[TOKENS]);

    float difference = largest_difference(whole[0], halves[0], (TOKENS + 1) * VECTOR);
    printf("%d tokens in two sittings and one decoded, against all at once: largest difference %g\n", TOKENS, difference);
    dr_state_destroy(state);
    dr_backend_close(backend);
    return !(difference < 1e-5f);
}
