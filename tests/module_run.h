/* A module on any backend whose memory is the host's: its parameters, a run over a packed call
 * with its gradients, and calls that carry a state from one to the next. */
#ifndef TESTS_MODULE_RUN_H
#define TESTS_MODULE_RUN_H

#include "allocation.h"
#include "cpu_backends.h"
#include "module_problem.h"

typedef struct {
    dr_backend *backend;
    dr_module *module;
    dr_layer_parameters list;
    void *parameters, *gradients; /* the layer's part of the block */
    void *copies;                 /* the same as vectors, or NULL: these are of the numbers' type */
    void *state;                  /* the module's struct, or NULL: calls begin from nothing */
    int64_t sequences;            /* of the state */
    int64_t seen[8];              /* by each of them */
} module_run;

/* What a run gives: doubles that live until numbers_release. */
typedef struct {
    double *y, *d_x, *gradients;
} module_made;

static inline void *backend_numbers(dr_backend *backend, int64_t count, const double *from) {
    void *memory = NULL;
    ASSERT_OK(backend->ops->allocate(backend, dr_kind_bytes(backend, DR_NUMBER, count + 1), &memory));
    backend->ops->zero(backend, memory, dr_kind_bytes(backend, DR_NUMBER, count + 1));
    if (from) ASSERT_OK(backend->ops->upload(backend, memory, from, DR_F64, count));
    return memory;
}

static inline void *backend_vectors(dr_backend *backend, int64_t count, const double *from) {
    void *memory = NULL;
    const size_t bytes = dr_kind_bytes(backend, DR_VECTOR, count + 1);
    if (!dr_has_copies(backend)) return backend_numbers(backend, count, from);
    ASSERT_OK(backend->ops->allocate(backend, bytes, &memory));
    backend->ops->zero(backend, memory, bytes);
    if (from) ASSERT_OK(backend->ops->upload_as(backend, memory, dr_kind_dtype(backend, DR_VECTOR), from, DR_F64, count));
    return memory;
}

static inline double *host_vectors(dr_backend *backend, const void *from, int64_t count) {
    double *values = numbers_filled(count, NAN);
    ASSERT_OK(dr_kind_download(backend, DR_VECTOR, values, DR_F64, from, count));
    return values;
}

static inline double *host_numbers(dr_backend *backend, const void *from, int64_t count) {
    double *values = numbers_filled(count, NAN);
    ASSERT_OK(backend->ops->download(backend, values, DR_F64, from, count));
    return values;
}

/* module and list are filled in. Parameters depend on their names alone, and single precision holds them. */
static inline void run_begin(module_run *of) {
    double *values = numbers_filled(of->list.elements, 0);
    for (int p = 0; p < of->list.count; p++) {
        const dr_layer_parameter *parameter = &of->list.at[p];
        double *at = values + parameter->offset;
        const dr_initial normal = {DR_INITIAL_NORMAL, 0};
        const double range = parameter->rank > 1 ? 1 / sqrt((double)parameter->shape[1]) : 0.2;
        dr_initial_draw(&normal, range, 3, parameter->name, parameter->count, at);
        for (int64_t i = 0; i < parameter->count; i++) {
            if (parameter->initial.kind == DR_INITIAL_CONSTANT) at[i] += parameter->initial.value;
            at[i] = (double)(float)at[i];
        }
    }
    of->parameters = backend_numbers(of->backend, of->list.elements, values);
    of->gradients = backend_numbers(of->backend, of->list.elements, NULL);
    of->copies = dr_has_copies(of->backend) ? backend_vectors(of->backend, of->list.elements, values) : NULL;
}

static inline void run_state(module_run *of, int64_t sequences) {
    assert_in_range(sequences, 1, 8);
    of->sequences = sequences;
    memset(of->seen, 0, sizeof of->seen);
    of->state = calloc(1, of->module->operations->state_size + 1);
    assert_non_null(of->state);
}

static inline void run_state_end(module_run *of) {
    if (of->state) of->module->operations->release_state(of->module, of->backend, of->state);
    free(of->state);
    of->state = NULL;
}

static inline void run_end(module_run *of) {
    run_state_end(of);
    of->module->operations->destroy(of->backend, of->module);
    dr_layer_parameters_release(&of->list);
    of->backend->ops->free(of->backend, of->parameters);
    of->backend->ops->free(of->backend, of->gradients);
    if (of->copies) of->backend->ops->free(of->backend, of->copies);
}

static inline void run_reserve(module_run *of, const dr_layout *layout) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t length = dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
        if (of->seen[i] + length > tokens) tokens = of->seen[i] + length;
    }
    ASSERT_OK(of->module->operations->reserve_state(of->module, of->backend, layout->sequences, tokens, of->state));
}

static inline void run_place(const module_run *of, dr_module_call *call, bool keep, dr_arena *arena, void *memory,
                             void *scratch) {
    of->module->operations->place(call, keep, arena, memory);
    of->module->operations->place_scratch(call, keep, arena, scratch);
}

/* x, d_y [rows, hidden]; d_y NULL: a forward alone. A state is carried on. */
static inline module_made run_call(module_run *of, const dr_layout *layout, const double *x, const double *d_y) {
    const dr_module_operations *operations = of->module->operations;
    dr_backend *b = of->backend;
    const int64_t count = layout->rows * of->module->hidden;
    void *memory = calloc(1, operations->memory_size + 1), *scratch = calloc(1, operations->scratch_size + 1), *block = NULL;
    dr_module_call call = {.backend = b,
                           .module = of->module,
                           .list = of->list.at,
                           .parameters = of->parameters,
                           .weights = of->copies ? of->copies : of->parameters,
                           .gradients = of->gradients,
                           .layout = *layout,
                           .longest = dr_layout_longest(layout),
                           .memory = memory,
                           .scratch = scratch,
                           .state = of->state};
    if (of->state) run_reserve(of, layout), call.seen = of->seen;
    if (call.longest < 1) call.longest = 1;
    dr_arena arena = {0};
    run_place(of, &call, d_y != NULL, &arena, memory, scratch);
    ASSERT_OK(b->ops->allocate(b, arena.peak, &block));
    arena = (dr_arena){.block = block};
    run_place(of, &call, d_y != NULL, &arena, memory, scratch);
    void *in = backend_vectors(b, count, x), *out = backend_vectors(b, count, NULL);
    module_made made = {0};
    ASSERT_OK(operations->forward(&call, in, out));
    made.y = host_vectors(b, out, count);
    if (d_y) {
        void *from = backend_vectors(b, count, d_y);
        b->ops->zero(b, of->gradients, dr_kind_bytes(b, DR_NUMBER, of->list.elements));
        ASSERT_OK(operations->backward(&call, in, from, out));
        made.d_x = host_vectors(b, out, count);
        made.gradients = host_numbers(b, of->gradients, of->list.elements);
        b->ops->free(b, from);
    }
    for (int64_t i = 0; of->state && i < layout->sequences; i++)
        of->seen[i] += dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
    b->ops->free(b, in);
    b->ops->free(b, out);
    b->ops->free(b, block);
    free(memory);
    free(scratch);
    return made;
}

/* ||x - wanted|| / ||wanted|| */
static inline double distance(const double *x, const double *wanted, int64_t count) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) error += (x[i] - wanted[i]) * (x[i] - wanted[i]), norm += wanted[i] * wanted[i];
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

static inline void assert_near(const char *what, const double *x, const double *wanted, int64_t count, double tolerance) {
    const double error = distance(x, wanted, count);
    if (!(error <= tolerance)) fail_msg("%s: off by %.3g, at most %g is allowed", what, error, tolerance);
}

#endif
