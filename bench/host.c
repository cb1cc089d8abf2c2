/* Microseconds that a call takes of the host: of a plan that is made once, and of the functions that plan each time. On cpu one
 * token on one thread; on cuda, where calls only put work on a stream, a forward of 64 tokens, the same that saves with its
 * backward, and a token of decoding, of gdn in bf16. Medians of rounds; before each the stream is idle. */
#include "base/clock.h"
#include "base/order.h"

#include <deltarule/plan.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 201, CALLS = 50 };

static void require(dr_status status) {
    if (status == DR_OK) return;
    fprintf(stderr, "host: %s\n", dr_last_error());
    exit(1);
}

typedef struct {
    dr_backend *backend;
    dr_recurrence recurrence;
    dr_plan *plan;
    dr_call forward, backward, decode;
} setting;

static void *tensor(dr_backend *backend, size_t bytes) {
    void *memory;
    require(dr_backend_allocate(backend, bytes, &memory));
    dr_backend_zero(backend, memory, bytes);
    return memory;
}

static void open_setting(setting *s, const char *name, int64_t tokens, int64_t heads, int64_t size) {
    static dr_inputs inputs;
    static dr_input_gradients gradients;
    static dr_mutable_states states;
    const bool cuda = !strcmp(name, "cuda");
    dr_recurrence_memory memory;
    require(dr_backend_open(name, &(dr_backend_options){.threads = 1, .dtype = cuda ? DR_BF16 : DR_F32}, &s->backend));
    s->recurrence = dr_recurrence_default();
    s->recurrence.rule = dr_rule_find("gdn");
    s->recurrence.layout = (dr_layout){.sequences = 1, .rows = tokens};
    s->recurrence.key_heads = s->recurrence.value_heads = heads;
    s->recurrence.key_size = s->recurrence.value_size = size;
    require(dr_plan_create(s->backend, &s->recurrence, &s->plan));
    require(dr_plan_memory(s->plan, &memory));
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(s->recurrence.rule, (dr_input)i)) continue;
        inputs.at[i] = tensor(s->backend, (size_t)(tokens * heads * size) * sizeof(float));
        gradients.at[i] = tensor(s->backend, (size_t)(tokens * heads * size) * sizeof(float));
    }
    states.at[DR_STATE_S] = tensor(s->backend, (size_t)(heads * size * size) * sizeof(float));
    void *o = tensor(s->backend, (size_t)(tokens * heads * size) * sizeof(float));
    s->forward = (dr_call){.size = sizeof(dr_call), .inputs = &inputs, .o = o, .workspace = tensor(s->backend, memory.forward)};
    s->decode = s->forward;
    s->decode.states = &states;
    s->decode.workspace = tensor(s->backend, memory.decode);
    s->backward = s->forward;
    s->backward.saved = tensor(s->backend, memory.saved);
    s->backward.d_o = o;
    s->backward.d_inputs = &gradients;
    s->backward.workspace = tensor(s->backend, memory.forward > memory.backward ? memory.forward : memory.backward);
}

static dr_status planned_forward(const setting *s) {
    return dr_plan_forward(s->plan, &s->forward);
}

static dr_status planned_both(const setting *s) {
    const dr_status status = dr_plan_forward(s->plan, &s->backward);
    return status == DR_OK ? dr_plan_backward(s->plan, &s->backward) : status;
}

static dr_status planned_decode(const setting *s) {
    return dr_plan_decode(s->plan, &s->decode);
}

static dr_status forward(const setting *s) {
    const dr_call *c = &s->forward;
    return dr_recurrence_forward(s->backend, &s->recurrence, c->inputs, NULL, c->o, NULL, NULL, c->workspace);
}

static dr_status both(const setting *s) {
    const dr_call *c = &s->backward;
    const dr_status status =
        dr_recurrence_forward(s->backend, &s->recurrence, c->inputs, NULL, c->o, NULL, c->saved, c->workspace);
    if (status != DR_OK) return status;
    return dr_recurrence_backward(s->backend, &s->recurrence, c->inputs, NULL, c->saved, c->d_o, NULL, c->d_inputs, NULL,
                                  c->workspace);
}

static dr_status decode(const setting *s) {
    const dr_call *c = &s->decode;
    return dr_recurrence_decode(s->backend, &s->recurrence, c->inputs, c->states, c->o, c->workspace);
}

static double median(const setting *s, dr_status (*run)(const setting *)) {
    static double round[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        require(dr_backend_wait(s->backend));
        const double begin = dr_clock_now();
        for (int k = 0; k < CALLS; k++) require(run(s));
        round[i] = 1e6 * (dr_clock_now() - begin) / CALLS;
    }
    qsort(round, ROUNDS, sizeof *round, dr_ascending);
    return round[ROUNDS / 2];
}

static void print(const setting *s, const char *what, dr_status (*planned)(const setting *),
                  dr_status (*each)(const setting *)) {
    const double a = median(s, planned), b = median(s, each);
    printf("%-44s %8.2f us planned once, %8.2f planned each time\n", what, a, b);
}

int main(int argc, char **argv) {
    setting s;
    if (argc > 1 && !strcmp(argv[1], "cuda")) {
        open_setting(&s, "cuda", 64, 8, 128);
        print(&s, "forward, 64 tokens, 8 heads", planned_forward, forward);
        print(&s, "forward that saves, and backward", planned_both, both);
        open_setting(&s, "cuda", 1, 8, 128);
        print(&s, "decoding, a token, 8 heads", planned_decode, decode);
        return 0;
    }
    open_setting(&s, "cpu", 1, 1, 8);
    print(&s, "forward, a token, a head, K = V = 8", planned_forward, forward);
    print(&s, "forward that saves, and backward", planned_both, both);
    print(&s, "decoding, a token, a head", planned_decode, decode);
    return 0;
}
