/* What cannot be done is refused with a sentence, and leaves the backend as it was. */
#include "suites.h"

#include <stdint.h>
#include <string.h>

static bool refuses(gpu *g, const char *name, dr_status got, dr_status want, const char *words, fault *what) {
    g->checks++;
    if (got != want) return fault_is(what, "%s: %s instead of %s", name, dr_status_name(got), dr_status_name(want));
    if (!strstr(dr_last_error(), words)) return fault_is(what, "%s: \"%s\" does not say \"%s\"", name, dr_last_error(), words);
    return true;
}

static dr_status open_with(dr_backend_options options) {
    dr_backend *backend;
    return dr_backend_open("cuda", &options, &backend);
}

static dr_status plan_of_tokens(gpu *g, const char *rule, int64_t tokens, int64_t K, int64_t V, dr_path path, int64_t chunk) {
    const dr_recurrence r = {.rule = dr_rule_find(rule),
                             .forget = DR_FORGET,
                             .layout = {.sequences = 1, .rows = tokens},
                             .key_heads = 1,
                             .value_heads = 1,
                             .key_size = K,
                             .value_size = V,
                             .path = path,
                             .chunk = chunk};
    dr_recurrence_memory memory;
    return dr_recurrence_plan(g->cuda[0], &r, &memory);
}

static dr_status plan_of(gpu *g, const char *rule, int64_t K, int64_t V, dr_path path, int64_t chunk) {
    return plan_of_tokens(g, rule, 10, K, V, path, chunk);
}

bool suite_refusals(gpu *g, fault *what) {
    void *memory;
    float number = 0;
    return refuses(g, "a type", open_with((dr_backend_options){.dtype = DR_F64}), DR_ERROR_ARGUMENT, "F64", what) &&
           refuses(g, "a device", open_with((dr_backend_options){.device = 1000}), DR_ERROR_ARGUMENT, "no GPU 1000", what) &&
           refuses(g, "an instruction set", open_with((dr_backend_options){.isa = "avx2"}), DR_ERROR_ARGUMENT, "avx2", what) &&
           refuses(g, "a Gram scan", plan_of(g, "mesanet", 16, 16, DR_PATH_BEST, 0), DR_ERROR_UNSUPPORTED, "gram", what) &&
           refuses(g, "an inverse Gram scan", plan_of(g, "pdn_exact", 16, 16, DR_PATH_BEST, 0), DR_ERROR_UNSUPPORTED,
                   "inverse_gram", what) &&
           refuses(g, "many channels", plan_of(g, "gdn", 257, 16, DR_PATH_BEST, 0), DR_ERROR_UNSUPPORTED, "257", what) &&
           refuses(g, "many columns", plan_of(g, "gdn", 16, 513, DR_PATH_RECURRENT, 0), DR_ERROR_UNSUPPORTED, "513", what) &&
           refuses(g, "a long chunk", plan_of(g, "gdn", 16, 16, DR_PATH_CHUNKWISE, 65), DR_ERROR_UNSUPPORTED, "65", what) &&
           refuses(g, "many gains", plan_of_tokens(g, "gdn", (int64_t)1 << 31, 16, 16, DR_PATH_CHUNKWISE, 0),
                   DR_ERROR_UNSUPPORTED, "2147483648 tokens", what) &&
           refuses(g, "much memory", dr_backend_allocate(g->cuda[0], (size_t)1 << 50, &memory), DR_ERROR_MEMORY, "free",
                   what) &&
           refuses(g, "no memory for a number", dr_backend_upload_as(g->cuda[0], &number, DR_I32, &number, DR_F32, 1),
                   DR_ERROR_ARGUMENT, "I32", what) &&
           (plan_of(g, "gdn", 256, 256, DR_PATH_BEST, 0) == DR_OK || fault_is(what, "%s", dr_last_error())) &&
           (plan_of_tokens(g, "gdn", (int64_t)1 << 31, 16, 16, DR_PATH_BEST, 0) == DR_OK ||
            fault_is(what, "%s", dr_last_error()));
}
