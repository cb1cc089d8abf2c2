/* A module on every backend in host memory: the CPU against the reference, the same bits for any number of threads, packed
 * sequences against separate ones, a sequence in pieces and token by token against the whole. */
#ifndef TESTS_MODULE_BACKENDS_H
#define TESTS_MODULE_BACKENDS_H

#include "cpu_backends.h"
#include "nn/module.h"
#include "ops/shapes.h"

#define MADE_OK(call)                                                                                                          \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

/* How a module is made, and what it is called in messages. */
typedef struct {
    const char *name;
    dr_status (*create)(dr_backend *, int64_t hidden, const void *description, dr_layer_parameters *, dr_module **);
    const void *description;
    int64_t hidden;
    double extra_factor; /* of the gradient of the module's own loss */
} module_maker;

typedef struct {
    const module_maker *maker;
    dr_backend *backend;
    dr_module *module;
    dr_layer_parameters list;
    char *parameters, *weights, *gradients;
    void *state, *state_block; /* host struct, and its memory */
    int64_t *seen;
    double extra;   /* the module's own loss in the last gradient */
    double *passed; /* what the last run wrote of what is passed from layer to layer, or of its gradient */
} made_module;

static inline void *made_upload(dr_backend *b, const double *values, int64_t count) {
    void *memory = NULL;
    MADE_OK(dr_allocate_zero((size_t)(count + 1) * sizeof(double), "test", &memory));
    if (values) MADE_OK(b->ops->upload(b, memory, values, DR_F64, count));
    return memory;
}

static inline double *made_download(dr_backend *b, void *from, int64_t count) {
    double *values = numbers_block(count, sizeof(double));
    MADE_OK(b->ops->download(b, values, DR_F64, from, count));
    dr_release(from);
    return values;
}

/* Likewise vectors, in the backend's storage type. */
static inline void *made_upload_vectors(dr_backend *b, const double *values, int64_t count) {
    if (!dr_has_copies(b)) return made_upload(b, values, count);
    void *memory = made_upload(b, NULL, count);
    if (values) MADE_OK(b->ops->upload_as(b, memory, b->storage, values, DR_F64, count));
    return memory;
}

static inline double *made_download_vectors(dr_backend *b, void *from, int64_t count) {
    double *values = numbers_block(count, sizeof(double));
    MADE_OK(dr_kind_download(b, DR_VECTOR, values, DR_F64, from, count));
    dr_release(from);
    return values;
}

/* Parameters as they are first drawn, moved by a normal draw; single precision holds them. */
static inline void made_begin(const module_maker *maker, dr_backend *backend, made_module *of) {
    *of = (made_module){.maker = maker, .backend = backend};
    MADE_OK(maker->create(backend, maker->hidden, maker->description, &of->list, &of->module));
    double *values = numbers_filled(of->list.elements, 0);
    dr_random random = dr_random_start(17, 3);
    for (int p = 0; p < of->list.count; p++) {
        const dr_layer_parameter *parameter = &of->list.at[p];
        double *at = values + parameter->offset;
        /* of matrices the usual 1/sqrt(in), so that wide modules stay of size 1 */
        const double range = parameter->rank > 1 ? 1 / sqrt((double)parameter->shape[parameter->rank - 1]) : 0.2;
        dr_initial_draw(&parameter->initial, range, 7, parameter->name, parameter->count, at);
        for (int64_t i = 0; i < parameter->count; i++)
            at[i] = (double)(float)(at[i] + (parameter->rank > 1 ? 0 : 0.2 * dr_random_normal(&random)));
    }
    of->parameters = made_upload(backend, values, of->list.elements);
    of->weights = made_upload_vectors(backend, values, of->list.elements);
    of->gradients = made_upload(backend, NULL, of->list.elements);
}

/* The values of a parameter on a backend of doubles; NULL: there is none of this name. */
static inline const double *made_optional(const made_module *of, const char *name) {
    for (int i = 0; i < of->list.count; i++)
        if (strcmp(of->list.at[i].name, name) == 0) return (const double *)(const void *)of->parameters + of->list.at[i].offset;
    return NULL;
}

static inline const double *made_values(const made_module *of, const char *name) {
    const double *values = made_optional(of, name);
    if (!values) fail_msg("there is no %s", name);
    return values;
}

static inline void made_forget(made_module *of) {
    dr_release(of->state_block);
    free(of->state);
    free(of->seen);
    of->state = of->state_block = of->seen = NULL;
}

static inline void made_end(made_module *of) {
    made_forget(of);
    of->module->operations->destroy(of->backend, of->module);
    dr_layer_parameters_release(&of->list);
    dr_release(of->parameters);
    dr_release(of->weights);
    dr_release(of->gradients);
}

/* From here on calls carry a state. */
static inline void made_remember(made_module *of, int64_t sequences) {
    const dr_module_operations *operations = of->module->operations;
    dr_arena arena = {0};
    made_forget(of);
    of->state = calloc(1, operations->state_size + 1);
    of->seen = calloc((size_t)sequences, sizeof(int64_t));
    assert_true(of->state && of->seen);
    if (!operations->place_state) return;
    operations->place_state(of->module, of->backend, sequences, &arena, of->state);
    MADE_OK(dr_allocate_zero(arena.peak + 64, "test", &of->state_block));
    arena = (dr_arena){.block = of->state_block};
    operations->place_state(of->module, of->backend, sequences, &arena, of->state);
}

/* The memory of a call, full of NaN: whoever reads what nobody wrote is found out. */
static inline void *made_place(const dr_module_call *call, bool backward, void *memory, void *scratch) {
    const dr_module_operations *operations = call->module->operations;
    dr_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        void *block = arena.block;
        if (pass == 1) {
            MADE_OK(dr_allocate(arena.peak + 64, "test", &block));
            memset(block, 0xff, arena.peak);
        }
        arena = (dr_arena){.block = block};
        operations->place(call, backward, &arena, memory);
        operations->place_scratch(call, backward, &arena, scratch);
    }
    return arena.block;
}

/* y [rows, hidden] from x; with d_y the gradients too, d_x [rows, hidden] and those of the parameters. */
static inline double *made_run(made_module *of, const dr_layout *layout, bool decode, const double *x, const double *d_y,
                               double **d_x) {
    const dr_module_operations *operations = of->module->operations;
    const int64_t count = layout->rows * of->module->hidden;
    void *plan = calloc(1, operations->plan_size + 1), *memory = calloc(1, operations->memory_size + 1),
         *scratch = calloc(1, operations->scratch_size + 1);
    dr_module_call call = {.backend = of->backend,
                           .module = of->module,
                           .list = of->list.at,
                           .parameters = of->parameters,
                           .weights = of->weights,
                           .gradients = d_y ? of->gradients : NULL,
                           .layout = *layout,
                           .longest = dr_layout_longest(layout),
                           .seen = of->seen,
                           .decode = decode,
                           .plan = plan,
                           .memory = memory,
                           .scratch = scratch,
                           .state = of->state_block};
    if (of->state_block) call.state = of->state;
    if (call.longest < 1) call.longest = 1;
    if (operations->plan) MADE_OK(operations->plan(of->module, of->backend, layout, plan));
    void *block = made_place(&call, d_y != NULL, memory, scratch);
    bool writes = false;
    const int64_t passed = operations->passed ? operations->passed(of->module, &writes) : 0;
    double *told = numbers_filled(layout->rows * passed, 0);
    for (int64_t i = 0; i < layout->rows * passed; i++) /* follows from x, so that a row's does not depend on the others */
        told[i] = x[i / passed * of->module->hidden + i % passed % of->module->hidden];
    void *value = made_upload_vectors(of->backend, told, layout->rows * passed),
         *d_value = made_upload_vectors(of->backend, told, layout->rows * passed);
    if (passed > 0) call.passed = value, call.d_passed = d_y ? d_value : NULL;
    void *from = made_upload_vectors(of->backend, x, count), *to = made_upload_vectors(of->backend, NULL, count),
         *extra = made_upload(of->backend, NULL, 1);
    if (d_y) {
        call.extra_loss = extra;
        call.extra_factor = of->maker->extra_factor;
    }
    MADE_OK(operations->forward(&call, from, to));
    if (d_y) {
        void *d_to = made_upload_vectors(of->backend, d_y, count), *d_from = made_upload_vectors(of->backend, NULL, count);
        memset(d_from, 0xff, dr_kind_bytes(of->backend, DR_VECTOR, count)); /* it is overwritten */
        MADE_OK(operations->backward(&call, from, d_to, d_from));
        *d_x = made_download_vectors(of->backend, d_from, count);
        dr_release(d_to);
    }
    of->extra = made_download(of->backend, extra, 1)[0];
    of->passed = made_download_vectors(of->backend, writes ? value : d_value, layout->rows * passed);
    dr_release(writes ? d_value : value);
    dr_release(from);
    dr_release(block);
    free(plan);
    free(memory);
    free(scratch);
    return made_download_vectors(of->backend, to, count);
}

static inline void made_near(const char *name, const char *what, const double *got, const double *wanted, int64_t count,
                             double tolerance) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    if (!(sqrt(error) <= tolerance * sqrt(norm))) /* not >: NaN must fail */
        fail_msg("%s: %s is off by %g of %g", name, what, sqrt(error), sqrt(norm));
}

/* ---- what is held ------------------------------------------------------------------------------------------------------ */

typedef struct {
    double *y, *d_x, *gradients, *passed, extra;
} made_outcome;

static inline made_outcome made_gradient(const module_maker *maker, dr_backend *b, const dr_layout *layout, const double *x,
                                         const double *d_y, dr_layer_parameters *list) {
    made_module of;
    made_outcome outcome;
    made_begin(maker, b, &of);
    outcome.y = made_run(&of, layout, false, x, d_y, &outcome.d_x);
    outcome.extra = of.extra;
    outcome.passed = of.passed;
    outcome.gradients = numbers_block(of.list.elements, sizeof(double));
    MADE_OK(b->ops->download(b, outcome.gradients, DR_F64, of.gradients, of.list.elements));
    if (list) *list = of.list, of.list = (dr_layer_parameters){0};
    made_end(&of);
    return outcome;
}

/* The CPU against the reference, each gradient of a parameter alone, to 1e-5; and the same bits for 1, 2 and 4 threads. */
static inline void module_on_cpu(const module_maker *maker, const dr_layout *layout) {
    const int64_t count = layout->rows * maker->hidden;
    const double *x = floats(count, 1), *d_y = floats(count, 1);
    dr_layer_parameters list = {0};
    const made_outcome wanted = made_gradient(maker, reference, layout, x, d_y, &list);
    for (int isa = 0; isa < isas; isa++) {
        dr_layer_parameters own = {0}; /* which may lie otherwise: what the backends join */
        const made_outcome got = made_gradient(maker, cpu[isa][0], layout, x, d_y, &own);
        assert_int_equal(own.count, list.count);
        made_near(maker->name, "y", got.y, wanted.y, count, 1e-5);
        made_near(maker->name, "the module's own loss", &got.extra, &wanted.extra, 1, 1e-5);
        bool writes = false;
        made_module asked;
        made_begin(maker, reference, &asked);
        if (asked.module->operations->passed)
            made_near(maker->name, "what is passed", got.passed, wanted.passed,
                      layout->rows * asked.module->operations->passed(asked.module, &writes), 1e-5);
        made_end(&asked);
        made_near(maker->name, "d_x", got.d_x, wanted.d_x, count, 1e-5);
        for (int p = 0; p < list.count; p++)
            made_near(maker->name, list.at[p].name, got.gradients + own.at[p].offset, wanted.gradients + list.at[p].offset,
                      list.at[p].count, 1e-5);
        for (int threads = 1; threads < THREADS; threads++) {
            const made_outcome other = made_gradient(maker, cpu[isa][threads], layout, x, d_y, NULL);
            assert_same_bits(other.y, got.y, count);
            assert_same_bits(other.d_x, got.d_x, count);
            assert_same_bits(other.gradients, got.gradients, own.elements);
        }
        dr_layer_parameters_release(&own);
    }
    dr_layer_parameters_release(&list);
}

/* The reference with vectors of 16 bits stays near the one in double: what is a vector and what is a number is never mistaken.
 */
static inline void module_stored(const module_maker *maker, const dr_layout *layout) {
    const int64_t count = layout->rows * maker->hidden;
    double *x = floats(count, 1), *d_y = floats(count, 1);
    dr_backend *stored;
    MADE_OK(dr_reference_open(&(dr_backend_options){.dtype = DR_BF16}, &stored));
    const made_outcome wanted = made_gradient(maker, reference, layout, x, d_y, NULL),
                       got = made_gradient(maker, stored, layout, x, d_y, NULL);
    made_near(maker->name, "y of stored vectors", got.y, wanted.y, count, 0.1);
    made_near(maker->name, "d_x of stored vectors", got.d_x, wanted.d_x, count, 0.2);
    stored->ops->close(stored);
}

/* Packed sequences give the bits that each gives alone, but for a loss over the whole batch. */
static inline void module_packed(const module_maker *given, dr_backend *b, const dr_layout *layout) {
    module_maker without = *given;
    without.extra_factor = 0;
    const module_maker *maker = &without;
    const int64_t hidden = maker->hidden, count = layout->rows * hidden;
    const double *x = floats(count, 1), *d_y = floats(count, 1);
    const made_outcome packed = made_gradient(maker, b, layout, x, d_y, NULL);
    for (int64_t i = 0; i < layout->sequences; i++) {
        const int64_t begin = dr_layout_begin(layout, i) * hidden, end = dr_layout_begin(layout, i + 1) * hidden;
        const dr_layout one = {.sequences = 1, .rows = (end - begin) / hidden};
        if (begin == end) continue;
        const made_outcome alone = made_gradient(maker, b, &one, x + begin, d_y + begin, NULL);
        made_module of;
        made_begin(maker, b, &of);
        assert_same_bits(alone.y, packed.y + begin, end - begin);
        assert_same_bits(alone.d_x, packed.d_x + begin, end - begin);
        assert_same_bits(made_run(&of, &one, false, x + begin, NULL, NULL), packed.y + begin, end - begin); /* without keep */
        made_end(&of);
    }
}

/* Two sequences in two pieces of unlike length, then token by token, against each whole. */
static inline void module_carried(const module_maker *maker, dr_backend *b, int64_t first, int64_t second, int64_t tokens,
                                  double tolerance) {
    enum { SEQUENCES = 2 };
    const int64_t hidden = maker->hidden, all = first + second + tokens;
    const double *x = floats(SEQUENCES * all * hidden, 1);
    const dr_layout whole = {.sequences = SEQUENCES, .rows = SEQUENCES * all};
    made_module of;
    made_begin(maker, b, &of);
    const double *wanted = made_run(&of, &whole, false, x, NULL, NULL);
    double *got = numbers_filled(SEQUENCES * all * hidden, NAN);
    made_remember(&of, SEQUENCES);
    for (int64_t at = 0; at < all;) {
        const int64_t length = at == 0 ? first : at == first ? second : 1;
        const dr_layout piece = {.sequences = SEQUENCES, .rows = SEQUENCES * length};
        double *in = numbers_block(SEQUENCES * length * hidden, sizeof(double));
        for (int s = 0; s < SEQUENCES; s++)
            memcpy(in + s * length * hidden, x + (s * all + at) * hidden, (size_t)(length * hidden) * sizeof(double));
        const double *out = made_run(&of, &piece, at >= first + second, in, NULL, NULL);
        for (int s = 0; s < SEQUENCES; s++)
            memcpy(got + (s * all + at) * hidden, out + s * length * hidden, (size_t)(length * hidden) * sizeof(double));
        for (int s = 0; s < SEQUENCES; s++) of.seen[s] += length;
        at += length;
    }
    made_near(maker->name, "a sequence in pieces", got, wanted, SEQUENCES * all * hidden, tolerance);
    made_end(&of);
}

/* All of these: random layouts of small sizes on every instruction set, and one of many rows. */
static inline void module_on_backends(const module_maker *maker, int64_t most_rows) {
    static const int64_t boundaries[] = {0, 1, 5, 5, 24};
    const dr_layout packed = {4, 24, boundaries}, many = {1, most_rows, NULL};
    module_on_cpu(maker, &packed);
    module_on_cpu(maker, &many);
    module_stored(maker, &packed);
    numbers_release();
    for (int isa = 0; isa < isas; isa++) module_packed(maker, cpu[isa][0], &packed);
    module_packed(maker, reference, &packed);
    module_carried(maker, reference, 5, 3, 3, 1e-12);
    module_carried(maker, cpu[isas - 1][0], 70, 3, 3, 1e-5);
    numbers_release();
}

#endif
