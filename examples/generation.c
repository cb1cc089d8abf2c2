/* Generation: loads a model of a folder (config.json, model.safetensors; examples/training.c and `deltarule train` make such)
 * and continues a prompt, first by dr_generate, which samples, then by hand: the prompt in one call, then a token at a time, of
 * which each is the likeliest. The state that is carried has the same size however long the text becomes.
 *
 * Usage: generation MODEL [PROMPT] [TOKENS] */
#include <deltarule/generate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 }; /* tokens 0 to 255 are bytes; ids from 256 on, like the separator of documents, are none */

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "generation: %s\n", dr_last_error());
    exit(1);
}

/* Called for each token with its bytes; returning false would end the text. */
static bool emit(void *context, const char *bytes, size_t count) {
    return fwrite(bytes, 1, count, context) == count;
}

static int32_t likeliest_byte(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < BYTES; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Continues the prompt by hand, e.g. to use a way of sampling that dr_generate does not have. */
static void by_hand(const dr_model *model, const char *prompt, int64_t tokens) {
    int64_t vocabulary = dr_model_get_config(model)->vocabulary;
    size_t length = strlen(prompt);
    int32_t *ids = malloc(length * sizeof *ids);
    float *logits = malloc((size_t)vocabulary * sizeof *logits);
    dr_model_state *state;
    dr_session *session;
    if (!ids || !logits) exit(1);
    for (size_t i = 0; i < length; i++) ids[i] = (unsigned char)prompt[i];
    require(dr_model_state_create(model, 1, &state)); /* of one sequence */
    require(dr_session_create(model, &session));      /* the memory of calls */

    /* the whole prompt at once; logits are wanted at its last token only */
    const int64_t last = (int64_t)length - 1;
    const dr_batch batch = {.layout = {.sequences = 1, .rows = (int64_t)length}, .ids = ids, .targets = 1, .positions = &last};
    require(dr_session_logits(session, &batch, state, DR_F32, logits));
    for (int64_t i = 0; i < tokens; i++) {
        int32_t next = likeliest_byte(logits);
        putchar(next);
        require(dr_model_step(model, &next, state, logits));
    }
    dr_session_destroy(session);
    dr_model_state_destroy(state);
    free(logits);
    free(ids);
}

int main(int argc, char **argv) {
    if (argc < 2 || (argc > 2 && !*argv[2])) {
        fprintf(stderr, "usage: generation MODEL [PROMPT] [TOKENS]\n");
        return 2;
    }
    const char *folder = argv[1], *prompt = argc > 2 ? argv[2] : "The ";
    dr_backend *backend;
    dr_model *model;
    require(dr_backend_open("cpu", NULL, &backend));
    require(dr_model_load(backend, folder, &model));

    dr_generate_options options = dr_generate_defaults();
    options.tokens = argc > 3 ? atoll(argv[3]) : 200;
    options.sampling.temperature = 0.8;
    options.sampling.seed = 1;
    require(dr_generate_check(model, &options));
    printf("sampled: %s", prompt);
    require(dr_generate(model, prompt, strlen(prompt), &options, emit, stdout));

    printf("\n\nthe likeliest: %s", prompt);
    by_hand(model, prompt, options.tokens);
    printf("\n");

    dr_model_destroy(model);
    dr_backend_close(backend);
    return 0;
}
