/* A module on its own in double: its parameters, memory and gradients, for differences of what it computes. Of the test's own
 * making: the module and the list of its parameters. */
#ifndef TESTS_MODULE_PROBLEM_H
#define TESTS_MODULE_PROBLEM_H

#include "base/random.h"
#include "differences.h"
#include "nn/module.h"
#include "ops/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* sequences of 3, 0, 1 and 4 tokens */
enum { MODULE_SEQUENCES = 4, MODULE_ROWS = 8 };
static const int64_t module_begins[MODULE_SEQUENCES + 1] = {0, 3, 3, 4, 8};

#define ASSERT_OK(call)                                                                                                        \
    do {                                                                                                                       \
        if ((call) != DR_OK) fail_msg("%s: %s", #call, dr_last_error());                                                       \
    } while (0)

typedef struct {
    dr_backend *backend;
    dr_module *module;
    dr_layer_parameters list;
    double *parameters, *gradients; /* the layer's part of the block */
    dr_module_call call;
    void *plan, *memory, *scratch; /* host structs */
    void *block;
    double *x, *y, *d_y, *d_x; /* [MODULE_ROWS, hidden] */
    double extra;              /* the module's own loss */
    double *passed, *d_passed; /* [MODULE_ROWS, columns] or NULL: read and to be added to, or written and read */
} module_problem;

static inline double *module_doubles(int64_t count) {
    double *memory = calloc((size_t)count + 1, sizeof(double));
    assert_non_null(memory);
    return memory;
}

static inline void module_place(module_problem *of, dr_arena *arena) {
    const dr_module_operations *operations = of->module->operations;
    operations->place(&of->call, true, arena, of->memory);
    operations->place_scratch(&of->call, true, arena, of->scratch);
}

/* The parameter of this name; NULL: there is none. */
static inline const dr_layer_parameter *module_parameter(const module_problem *of, const char *name) {
    for (int i = 0; i < of->list.count; i++)
        if (strcmp(of->list.at[i].name, name) == 0) return &of->list.at[i];
    return NULL;
}

/* Parameters as they are first drawn, moved by a normal draw: gains in the middle of their range, norms off 1. A decay that is
 * steep in its parameters needs no steeper one than a draw about 0. */
static inline void module_draw(module_problem *of, dr_random *random) {
    for (int p = 0; p < of->list.count; p++) {
        const dr_layer_parameter *parameter = &of->list.at[p];
        double *values = of->parameters + parameter->offset;
        dr_initial_draw(&parameter->initial, 0.5, 7, parameter->name, parameter->count, values);
        for (int64_t i = 0; i < parameter->count; i++) {
            values[i] += 0.2 * dr_random_normal(random);
            if (strcmp(parameter->name, "A_log") == 0) values[i] = 0.3 * dr_random_normal(random);
        }
    }
}

/* backend, module and list are filled in. */
static inline void module_begin(module_problem *of) {
    const dr_module_operations *operations = of->module->operations;
    dr_random random = dr_random_start(11, 0);
    of->parameters = module_doubles(of->list.elements);
    of->gradients = module_doubles(of->list.elements);
    of->plan = calloc(1, operations->plan_size + 1);
    of->memory = calloc(1, operations->memory_size + 1);
    of->scratch = calloc(1, operations->scratch_size + 1);
    assert_true(of->plan && of->memory && of->scratch);
    of->call = (dr_module_call){.backend = of->backend,
                                .module = of->module,
                                .list = of->list.at,
                                .parameters = (const char *)of->parameters,
                                .weights = (const char *)of->parameters,
                                .gradients = (char *)of->gradients,
                                .layout = {MODULE_SEQUENCES, MODULE_ROWS, module_begins},
                                .plan = of->plan,
                                .memory = of->memory,
                                .scratch = of->scratch,
                                .extra_loss = &of->extra,
                                .extra_factor = 0.3};
    of->call.longest = dr_layout_longest(&of->call.layout);
    module_draw(of, &random);
    if (operations->plan) ASSERT_OK(operations->plan(of->module, of->backend, &of->call.layout, of->plan));
    dr_arena arena = {0};
    module_place(of, &arena);
    ASSERT_OK(dr_allocate(arena.peak, "test", &of->block));
    arena = (dr_arena){.block = of->block};
    module_place(of, &arena);
    bool writes = false;
    const int64_t elements = MODULE_ROWS * of->module->hidden,
                  passed = operations->passed ? MODULE_ROWS * operations->passed(of->module, &writes) : 0;
    if (passed > 0) {
        of->call.passed = of->passed = module_doubles(passed);
        of->call.d_passed = of->d_passed = module_doubles(passed);
        for (int64_t i = 0; i < passed; i++) (writes ? of->d_passed : of->passed)[i] = dr_random_normal(&random);
    }
    of->x = module_doubles(elements);
    of->y = module_doubles(elements);
    of->d_x = module_doubles(elements);
    of->d_y = module_doubles(elements);
    for (int64_t i = 0; i < elements; i++) {
        of->x[i] = dr_random_normal(&random);
        of->d_y[i] = dr_random_normal(&random);
    }
}

static inline void module_end(module_problem *of) {
    of->module->operations->destroy(of->backend, of->module);
    dr_layer_parameters_release(&of->list);
    dr_release(of->block);
    free(of->plan);
    free(of->memory);
    free(of->scratch);
    free(of->parameters);
    free(of->gradients);
    free(of->x);
    free(of->y);
    free(of->d_x);
    free(of->d_y);
    free(of->passed);
    free(of->d_passed);
}

/* L = <y, d_y>, and a factor times the module's own loss, and <passed, d_passed> where the module writes that */
static inline double module_objective(void *context) {
    module_problem *of = context;
    double sum = 0;
    of->extra = 0;
    ASSERT_OK(of->module->operations->forward(&of->call, of->x, of->y));
    for (int64_t i = 0; i < MODULE_ROWS * of->module->hidden; i++) sum += of->y[i] * of->d_y[i];
    bool writes = false;
    const int64_t passed = of->passed ? MODULE_ROWS * of->module->operations->passed(of->module, &writes) : 0;
    for (int64_t i = 0; writes && i < passed; i++) sum += of->passed[i] * of->d_passed[i];
    return sum + of->call.extra_factor * of->extra;
}

/* A second backward adds to the gradient of each parameter what the first has put there. */
static inline void module_check_sums(const char *name, module_problem *of) {
    double *before = module_doubles(of->list.elements), largest = 0;
    memcpy(before, of->gradients, (size_t)of->list.elements * sizeof *before);
    for (int64_t i = 0; i < of->list.elements; i++) largest = fmax(largest, fabs(before[i]));
    module_objective(of);
    ASSERT_OK(of->module->operations->backward(&of->call, of->x, of->d_y, of->d_x));
    for (int p = 0; p < of->list.count; p++) {
        const dr_layer_parameter *parameter = &of->list.at[p];
        const double *once = before + parameter->offset, *twice = of->gradients + parameter->offset;
        for (int64_t i = 0; i < parameter->count; i++)
            if (!(fabs(twice[i] - 2 * once[i]) <= 1e-12 * largest))
                fail_msg("%s: %s[%lld]: %g after one backward, %g after two", name, parameter->name, (long long)i, once[i],
                         twice[i]);
    }
    free(before);
}

/* The backward against central differences, by the input and by every parameter; gradients of parameters are added to. */
static inline void module_check(const char *name, module_problem *of, double tolerance) {
    const dr_module_operations *operations = of->module->operations;
    char label[160];
    assert_true(isfinite(module_objective(of)));
    ASSERT_OK(operations->backward(&of->call, of->x, of->d_y, of->d_x));
    snprintf(label, sizeof label, "%s: d_x", name);
    assert_gradient(label, module_objective, of, of->x, MODULE_ROWS * of->module->hidden, of->d_x, tolerance);
    bool writes = false;
    const int64_t passed = of->passed ? MODULE_ROWS * operations->passed(of->module, &writes) : 0;
    snprintf(label, sizeof label, "%s: d_passed", name);
    if (passed > 0 && !writes) assert_gradient(label, module_objective, of, of->passed, passed, of->d_passed, tolerance);
    assert_true(of->list.count > 0);
    for (int i = 0; i < of->list.count; i++) {
        const dr_layer_parameter *parameter = &of->list.at[i];
        snprintf(label, sizeof label, "%s: %s", name, parameter->name);
        assert_gradient(label, module_objective, of, of->parameters + parameter->offset, parameter->count,
                        of->gradients + parameter->offset, tolerance);
    }
    module_check_sums(name, of);
}

#endif
