/* Plans on a GPU: one plan, called from many threads on several streams with other boundaries each, told by the host or on the
 * device, gives the bits of calls alone; every byte of what is saved is written; captured calls take the boundaries that are on
 * the device when they are replayed; what cannot be captured says so. */
#include "suites.h"

#include "base/error.h"

#include <cuda_runtime_api.h>
#include <deltarule/plan.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 8, STREAMS = 4, SEQUENCES = 4, ROWS = 4200, ROUNDS = 2, TOLD = 4 };

/* Of a call: what it reads and writes on the GPU. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
    void *o, *d_o, *saved, *forward, *backward, *boundaries[TOLD];
    int32_t narrow[SEQUENCES + 1];
} tensors;

/* What of it is compared, on the host. */
typedef struct {
    char *bytes;
    size_t count;
} image;

static void *filled(size_t bytes, int with) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes + 256) != cudaSuccess || cudaMemset(memory, with, bytes) != cudaSuccess) abort();
    return memory;
}

static void *on_device(const void *from, size_t bytes) {
    void *memory = filled(bytes, 0);
    if (cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice) != cudaSuccess) abort();
    return memory;
}

static size_t input_bytes(const dr_backend *backend, const problem *p, int i) {
    return (size_t)p->input_count[i] * dr_dtype_size(dr_recurrence_input_dtype(backend, (dr_input)i));
}

static size_t output_bytes(const dr_backend *backend, const problem *p) {
    return (size_t)p->o_count * dr_dtype_size(dr_recurrence_output_dtype(backend));
}

static tensors tensors_of(const dr_backend *backend, const problem *p, const dr_recurrence_memory *memory, int before) {
    const size_t outputs = output_bytes(backend, p);
    tensors t = {.o = filled(outputs, before),
                 .d_o = tensor_in_as(backend, dr_recurrence_output_dtype(backend), p->d_o, p->o_count),
                 .saved = filled(memory->saved, before),
                 .forward = filled(memory->forward, before),
                 .backward = filled(memory->backward, before)};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        t.inputs.at[i] = tensor_in_as(backend, dr_recurrence_input_dtype(backend, (dr_input)i), p->input[i], p->input_count[i]);
        t.d_inputs.at[i] = filled(input_bytes(backend, p, i), before);
    }
    for (int i = 0; i < DR_STATES; i++) {
        const size_t bytes = (size_t)p->state_count[i] * sizeof(float);
        if (!p->initial[i]) continue;
        t.initial.at[i] = tensor_in(backend, p->initial[i], p->state_count[i]);
        t.d_final.at[i] = tensor_in(backend, p->d_final[i], p->state_count[i]);
        t.final.at[i] = filled(bytes, before);
        t.d_initial.at[i] = filled(bytes, before);
    }
    for (int64_t i = 0; i <= p->recurrence.layout.sequences; i++) t.narrow[i] = (int32_t)p->cu_seqlens[i];
    t.boundaries[2] = on_device(p->cu_seqlens, sizeof p->cu_seqlens);
    t.boundaries[3] = on_device(t.narrow, sizeof t.narrow);
    if (cudaStreamSynchronize(NULL) != cudaSuccess) abort(); /* the call's stream does not wait for what fills memory */
    return t;
}

static void tensors_free(const dr_backend *backend, tensors *t) {
    void *own[] = {t->o, t->saved, t->forward, t->backward, t->boundaries[2], t->boundaries[3]};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) cudaFree(own[i]);
    backend_release(backend, t->d_o);
    for (int i = 0; i < DR_INPUTS; i++)
        if (t->inputs.at[i]) backend_release(backend, (void *)t->inputs.at[i]), cudaFree(t->d_inputs.at[i]);
    for (int i = 0; i < DR_STATES; i++) {
        if (!t->initial.at[i]) continue;
        backend_release(backend, (void *)t->initial.at[i]), backend_release(backend, (void *)t->d_final.at[i]);
        cudaFree(t->final.at[i]), cudaFree(t->d_initial.at[i]);
    }
}

static void add_bytes(image *to, const void *from, size_t bytes) {
    to->bytes = realloc(to->bytes, to->count + bytes + 1);
    if (!to->bytes || cudaMemcpy(to->bytes + to->count, from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess) abort();
    to->count += bytes;
}

/* saved: also what was saved. */
static image image_of(const dr_backend *backend, const problem *p, const tensors *t, size_t saved) {
    image all = {0};
    add_bytes(&all, t->o, output_bytes(backend, p));
    for (int i = 0; i < DR_STATES; i++) {
        const size_t bytes = (size_t)p->state_count[i] * sizeof(float);
        if (p->initial[i]) add_bytes(&all, t->final.at[i], bytes), add_bytes(&all, t->d_initial.at[i], bytes);
    }
    for (int i = 0; i < DR_INPUTS; i++)
        if (p->input[i]) add_bytes(&all, t->d_inputs.at[i], input_bytes(backend, p, i));
    if (saved) add_bytes(&all, t->saved, saved);
    return all;
}

static size_t first_difference(const image *a, const image *b) {
    size_t i = 0;
    while (i < a->count && a->bytes[i] == b->bytes[i]) i++;
    return i;
}

static dr_call call_of(const problem *p, tensors *t, int told, void *stream) {
    dr_call call = {.size = sizeof call,
                    .stream = stream,
                    .inputs = &t->inputs,
                    .initial = &t->initial,
                    .o = t->o,
                    .final = &t->final,
                    .saved = t->saved,
                    .workspace = t->forward,
                    .d_o = t->d_o,
                    .d_final = &t->d_final,
                    .d_inputs = &t->d_inputs,
                    .d_initial = &t->d_initial};
    if (told >= 0)
        call.boundaries = (dr_boundaries){.at = told == 0   ? (const void *)p->cu_seqlens
                                                : told == 1 ? (const void *)t->narrow
                                                            : t->boundaries[told],
                                          .dtype = told % 2 ? DR_I32 : DR_I64,
                                          .device = told >= 2};
    return call;
}

static dr_status run(const dr_plan *plan, const problem *p, tensors *t, int told, void *stream) {
    dr_call call = call_of(p, t, told, stream);
    DR_TRY(dr_plan_forward(plan, &call));
    call.workspace = t->backward;
    return dr_plan_backward(plan, &call);
}

/* ---- many threads, several streams ----------------------------------------------------------------------------------- */

static problem *problem_of(const char *rule, int64_t size, uint64_t seed, bool even) {
    dr_random random = dr_random_start(34, seed);
    int64_t cu_seqlens[SEQUENCES + 1] = {0, ROWS / 4, ROWS / 2, ROWS / 4 * 3, ROWS};
    for (int i = 1; i < SEQUENCES && !even; i++) cu_seqlens[i] = between(&random, cu_seqlens[i - 1], i == 1 ? 200 : ROWS);
    const dr_recurrence shape = {.rule = dr_rule_find(rule),
                                 .layout = {.sequences = SEQUENCES, .rows = ROWS, .cu_seqlens = cu_seqlens},
                                 .key_heads = 2,
                                 .value_heads = 2,
                                 .key_size = size,
                                 .value_size = size,
                                 .forget = DR_FORGET};
    return problem_create(shape.rule, &shape, false, &random);
}

typedef struct {
    const dr_plan *plan;
    const dr_backend *backend;
    problem *p[ROUNDS];
    image want[ROUNDS];
    dr_recurrence_memory memory;
    cudaStream_t stream;
    int number, device;
    char wrong[512];
} caller;

static void *call_in_turn(void *context) {
    caller *c = context;
    cudaSetDevice(c->device);
    for (int i = 0; i < ROUNDS; i++) {
        tensors t = tensors_of(c->backend, c->p[i], &c->memory, 0xA5);
        const dr_status status = run(c->plan, c->p[i], &t, (i + c->number) % TOLD, c->stream);
        cudaStreamSynchronize(c->stream);
        image got = image_of(c->backend, c->p[i], &t, c->memory.saved);
        const size_t at = first_difference(&c->want[i], &got);
        if (!c->wrong[0] && status != DR_OK) snprintf(c->wrong, sizeof c->wrong, "%s", dr_last_error());
        if (!c->wrong[0] && at < got.count)
            snprintf(c->wrong, sizeof c->wrong, "byte %zu of %zu (saved from %zu on) is %02x for %02x", at, got.count,
                     got.count - c->memory.saved, (unsigned char)got.bytes[at], (unsigned char)c->want[i].bytes[at]);
        free(got.bytes);
        tensors_free(c->backend, &t);
    }
    return NULL;
}

static bool rule_is_right(gpu *g, int type, const char *rule, int64_t size, fault *what) {
    caller callers[CALLERS] = {{0}};
    pthread_t thread[CALLERS];
    cudaStream_t stream[STREAMS];
    dr_backend *backend = g->cuda[type];
    dr_plan *plan = NULL;
    bool holds = true;
    for (int i = 0; i < STREAMS; i++)
        if (cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking) != cudaSuccess) return fault_is(what, "no stream");
    for (int i = 0; i < CALLERS && holds; i++) {
        callers[i] = (caller){.backend = backend, .stream = stream[i % STREAMS], .number = i, .device = g->device};
        for (int k = 0; k < ROUNDS && holds; k++) {
            problem *p = callers[i].p[k] = problem_of(rule, size, (uint64_t)(i * ROUNDS + k), false);
            if (!plan && dr_plan_create(backend, &p->recurrence, &plan) != DR_OK) return fault_is(what, "%s", dr_last_error());
            dr_plan_memory(plan, &callers[i].memory);
            tensors t = tensors_of(backend, p, &callers[i].memory, 0x5A);
            holds = run(plan, p, &t, 0, NULL) == DR_OK && dr_backend_wait(backend) == DR_OK;
            if (!holds) fault_is(what, "%s", dr_last_error());
            callers[i].want[k] = image_of(backend, p, &t, callers[i].memory.saved);
            tensors_free(backend, &t);
        }
        callers[i].plan = plan;
    }
    for (int i = 0; i < CALLERS && holds; i++) pthread_create(&thread[i], NULL, call_in_turn, &callers[i]);
    for (int i = 0; i < CALLERS && holds; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < CALLERS; i++) {
        if (holds && callers[i].wrong[0])
            holds = fault_is(what, "one plan of %s %s, K %lld, thread %d: %s", rule,
                             dr_dtype_name(dr_recurrence_output_dtype(backend)), (long long)size, i, callers[i].wrong);
        for (int k = 0; k < ROUNDS; k++) {
            if (callers[i].p[k]) problem_free(callers[i].p[k]);
            free(callers[i].want[k].bytes);
            g->checks++;
        }
    }
    for (int i = 0; i < STREAMS; i++) cudaStreamDestroy(stream[i]);
    dr_plan_destroy(plan);
    return holds;
}

/* ---- one call -------------------------------------------------------------------------------------------------------- */

/* Equal lengths: what is saved does not depend on what was there, its size is the formula's, computed without the device, and
 * the bits are those without a plan. */
static bool even_is_right(gpu *g, int type, const char *rule, int64_t size, fault *what) {
    dr_backend *backend = g->cuda[type];
    problem *p = problem_of(rule, size, 99, true);
    dr_plan *plan;
    dr_recurrence_memory memory;
    dr_saved_size formula;
    const dr_backend_options options = {.isa = dr_backend_isa(backend), .dtype = dr_recurrence_output_dtype(backend)};
    bool holds = dr_plan_create(backend, &p->recurrence, &plan) == DR_OK && dr_plan_memory(plan, &memory) == DR_OK &&
                 dr_recurrence_saved("cuda", &options, &p->recurrence, &formula) == DR_OK;
    if (!holds) return fault_is(what, "%s", dr_last_error());
    if (dr_saved_bytes(&formula, ROWS, SEQUENCES) != memory.saved)
        holds = fault_is(what, "%s saves %zu bytes, the formula says %zu", rule, memory.saved,
                         dr_saved_bytes(&formula, ROWS, SEQUENCES));
    image of[2] = {{0}};
    for (int i = 0; i < 2 && holds; i++) {
        tensors t = tensors_of(backend, p, &memory, i ? 0xA5 : 0x5A);
        holds =
            (run(plan, p, &t, -1, NULL) == DR_OK && dr_backend_wait(backend) == DR_OK) || fault_is(what, "%s", dr_last_error());
        of[i] = image_of(backend, p, &t, memory.saved);
        tensors_free(backend, &t);
    }
    if (holds && first_difference(&of[0], &of[1]) < of[0].count)
        holds = fault_is(what, "%s %s K %lld, equal lengths: byte %zu of %zu (saved from %zu on) is not written", rule,
                         dr_dtype_name(options.dtype), (long long)size, first_difference(&of[0], &of[1]), of[0].count,
                         of[0].count - memory.saved);
    free(of[0].bytes), free(of[1].bytes);
    dr_plan_destroy(plan);
    problem_free(p);
    g->checks++;
    return holds;
}

/* ---- graphs ---------------------------------------------------------------------------------------------------------- */

/* Captured with some boundaries on the device, replayed with others there. */
static bool graph_is_right(gpu *g, const char *rule, int told, fault *what) {
    gpu own = {.device = g->device};
    if (!gpu_open(&own, what)) return false;
    dr_backend *backend = own.cuda[1];
    problem *p[2] = {problem_of(rule, 64, 1, false), problem_of(rule, 64, 1, false)};
    p[1]->cu_seqlens[1] = 777, p[1]->cu_seqlens[2] = 778, p[1]->cu_seqlens[3] = 3000;
    dr_plan *plan;
    dr_recurrence_memory memory;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (dr_plan_create(backend, &p[0]->recurrence, &plan) != DR_OK) return fault_is(what, "%s", dr_last_error());
    dr_plan_memory(plan, &memory);
    tensors want = tensors_of(backend, p[1], &memory, 0x5A), got = tensors_of(backend, p[0], &memory, 0xA5);
    bool holds = run(plan, p[1], &want, 0, NULL) == DR_OK && dr_backend_wait(backend) == DR_OK;
    cudaStream_t stream = own.stream;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    const dr_status status = run(plan, p[0], &got, told, NULL);
    float number = 0;
    const dr_status refused = dr_backend_upload(backend, got.o, &number, DR_F32, 1);
    const bool said = refused == DR_ERROR_UNSUPPORTED && strstr(dr_last_error(), "cannot be captured");
    const bool waits = dr_backend_wait(backend) == DR_ERROR_UNSUPPORTED;
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    if (told == 2) cudaMemcpy(got.boundaries[2], p[1]->cu_seqlens, sizeof p[1]->cu_seqlens, cudaMemcpyHostToDevice);
    if (told == 3) cudaMemcpy(got.boundaries[3], want.narrow, sizeof want.narrow, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) error = cudaGraphLaunch(exec, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (!holds || status != DR_OK) holds = fault_is(what, "%s", dr_last_error());
    if (holds && !(said && waits)) holds = fault_is(what, "an upload or a wait was not refused while a stream was captured");
    if (holds && error != cudaSuccess) holds = fault_is(what, "a graph of a plan of %s: %s", rule, cudaGetErrorString(error));
    if (holds) {
        image a = image_of(backend, p[1], &want, memory.saved), b = image_of(backend, p[1], &got, memory.saved);
        if (first_difference(&a, &b) < a.count)
            holds = fault_is(what, "a graph of a plan of %s, other boundaries: byte %zu of %zu differs", rule,
                             first_difference(&a, &b), a.count);
        free(a.bytes), free(b.bytes);
    }
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    tensors_free(backend, &want), tensors_free(backend, &got);
    dr_plan_destroy(plan);
    problem_free(p[0]), problem_free(p[1]);
    gpu_close(&own);
    g->checks++;
    return holds;
}

/* ---- nothing forgotten ----------------------------------------------------------------------------------------------- */

/* With forget 0 a long sequence of few heads has the bits alone that it has beside another one. */
static bool forget_is_right(gpu *g, const char *rule, fault *what) {
    enum { LONG = 16384, MORE = 100 };
    const int64_t cu_seqlens[] = {0, LONG, LONG + MORE};
    const dr_recurrence shape = {.rule = dr_rule_find(rule),
                                 .layout = {.sequences = 2, .rows = LONG + MORE, .cu_seqlens = cu_seqlens},
                                 .key_heads = 1,
                                 .value_heads = 1,
                                 .key_size = 128,
                                 .value_size = 128};
    dr_random random = dr_random_start(34, 7);
    problem *p = problem_create(shape.rule, &shape, false, &random);
    const int64_t first = 0, tokens = LONG;
    problem *own = problem_part(p, 0, 1, &first, &tokens, NULL);
    p->recurrence.forget = own->recurrence.forget = 0;
    result together = {0}, alone = {0};
    own->recurrence.layout.cu_seqlens = NULL;
    fault apart;
    const bool holds = problem_run(g->cuda[1], p, DR_PATH_CHUNKWISE, 0, true, &together, what) &&
                       problem_run(g->cuda[1], own, DR_PATH_CHUNKWISE, 0, true, &alone, what) &&
                       (sequence_same(p, own, 0, &together, &alone, &apart) ||
                        fault_is(what, "%s that forgets nothing: %s", rule, apart.text));
    result_free(&together), result_free(&alone);
    problem_free(p), problem_free(own);
    g->checks++;
    return holds;
}

static bool case_is_right(gpu *own, uint64_t n, void *context, fault *what) {
    static const char *const rules[] = {"gdn", "pgdn", "kda", "eda", "mamba2", "delta_net", "pkda", "efla", "comba"};
    static const char *const forgetting[] = {"gdn", "pgdn", "kda", "mamba2"};
    enum { RULES = sizeof rules / sizeof *rules, FORGETTING = 4 };
    (void)context;
    if (n < FORGETTING) return forget_is_right(own, forgetting[n], what);
    const int i = (int)n - FORGETTING, rule = i % RULES, size = rule % 3 == 2 ? 40 : 64;
    if (i < RULES) return rule_is_right(own, rule % 4 == 3 ? 0 : 1, rules[rule], size, what);
    if (i < 4 * RULES) return even_is_right(own, i / RULES - 1, rules[rule], size, what);
    return graph_is_right(own, i % 2 ? "gdn" : "pkda", 2 + (i - 4 * RULES) / 2, what);
}

bool suite_plans(gpu *g, fault *what) {
    return gpu_share(g, 0, 4 + 4 * 9 + 2 * (TOLD - 2) - 1, case_is_right, NULL, what);
}
