/* A Gated DeltaNet recurrence computed with the installed library: writes two values under orthogonal keys, overwrites the
 * first, reads all back, and checks what the delta rule promises: the old value is gone and the other one is only decayed. */
#include <deltarule/plan.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 4, K = 2, V = 2 };

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "example: %s\n", dr_last_error());
    exit(1);
}

int main(void) {
    /* tokens: write (1, 2) at key 0; write (3, 4) at key 1; overwrite key 0 with (5, 6); read key 1 without writing */
    const float query[TOKENS][K] = {{1, 0}, {0, 1}, {1, 0}, {0, 1}};
    const float key[TOKENS][K] = {{1, 0}, {0, 1}, {1, 0}, {0, 1}};
    const float value[TOKENS][V] = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};
    const float beta[TOKENS] = {1, 1, 1, 0};
    const float half = logf(0.5f); /* log decay: the state halves before each token */
    const float log_decay[TOKENS] = {half, half, half, half};
    const float expected[TOKENS][V] = {{1, 2}, {3, 4}, {5, 6}, {0.75f, 1}};
    float o[TOKENS][V];

    dr_backend *backend;
    require(dr_backend_open("cpu", NULL, &backend));
    dr_recurrence recurrence = dr_recurrence_default();
    recurrence.rule = dr_rule_find("gdn");
    recurrence.layout = (dr_layout){.sequences = 1, .rows = TOKENS};
    recurrence.key_heads = recurrence.value_heads = 1;
    recurrence.key_size = K;
    recurrence.value_size = V;
    recurrence.scale = 1;
    const dr_inputs inputs = {.at = {[DR_INPUT_QUERY] = query,
                                     [DR_INPUT_KEY] = key,
                                     [DR_INPUT_VALUE] = value,
                                     [DR_INPUT_BETA] = beta,
                                     [DR_INPUT_LOG_DECAY] = log_decay}};
    /* planned once; any number of threads may call it, each with an output and a workspace of its own */
    dr_plan *plan;
    dr_recurrence_memory memory;
    void *workspace;
    require(dr_plan_create(backend, &recurrence, &plan));
    require(dr_plan_memory(plan, &memory));
    require(dr_backend_allocate(backend, memory.forward, &workspace));
    const dr_call call = {.size = sizeof call, .inputs = &inputs, .o = o, .workspace = workspace};
    require(dr_plan_forward(plan, &call));

    char kernel[128];
    dr_recurrence_kernel(backend, &recurrence, false, kernel, sizeof kernel);
    printf("deltarule %s, kernel: %s\n", dr_version(), kernel);
    int wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        printf("token %d: (%g, %g)\n", t, o[t][0], o[t][1]);
        for (int j = 0; j < V; j++) wrong += !(fabsf(o[t][j] - expected[t][j]) < 1e-5f);
    }
    dr_backend_free(backend, workspace);
    dr_plan_destroy(plan);
    dr_backend_close(backend);
    printf(wrong ? "these are not the expected values\n" : "all as expected\n");
    return wrong != 0;
}
