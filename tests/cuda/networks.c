/* Networks on a GPU, in float32 and bf16: their operations (network/calls.h) and whole models (network/models.h). */
#include "network/calls.h"
#include "network/models.h"
#include "suites.h"

static bool hold(gpu *g, int type, int rounds, fault *what) {
    const dr_backend_options stored = {.dtype = DR_BF16};
    trials t = {.exact = g->reference, .tested = g->cuda[type], .random = dr_random_start(11, (uint64_t)type)};
    t.worst_call = "none";
    if (type == 1 && dr_backend_open("reference", &stored, &t.rounded) != DR_OK) return fault_is(what, "%s", dr_last_error());
    t.only = g->operation;
    const bool right = network_cases(&t, rounds);
    g->checks += t.checks;
    if (t.worst > g->worst[type]) g->worst[type] = t.worst;
    release_draws(&t);
    dr_backend_close(t.rounded);
    return right || fault_is(what, "%s: %s", dr_dtype_name(g->cuda[type]->storage), t.wrong);
}

bool suite_networks(gpu *g, fault *what) {
    const int rounds = g->operation ? 2 : g->brief ? 8 : 64;
    const bool float32 = hold(g, 0, rounds, what), bf16 = hold(g, 1, rounds, what);
    return float32 && bf16;
}

bool suite_models(gpu *g, fault *what) {
    bool right = true;
    for (int type = 0; type < 2; type++)
        for (int recurrent = 0; recurrent < 2; recurrent++)
            right = models_hold(g->cuda[type], models_to_hold(recurrent == 1), g->threads, &g->checks) && right;
    return right || fault_is(what, "the lines above tell which models do not hold");
}
