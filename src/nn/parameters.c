/* Lists of parameters, and their first values. */
#include "nn/parameters.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "ops/kind.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Weights that are stored apart have rows of their last size. */
static void place(dr_layer_parameters *list, dr_layer_parameter *parameter) {
    if (parameter->weight && list->backend && dr_weights_apart(list->backend)) {
        const int64_t columns = parameter->shape[parameter->rank - 1];
        parameter->offset = -1;
        parameter->weight_at = list->weight_bytes;
        list->weight_bytes += (dr_weight_bytes(list->backend, parameter->count / columns, columns) + 63) / 64 * 64;
        return;
    }
    parameter->offset = list->elements;
    list->elements += dr_parameter_room(parameter->count);
}

static dr_status add(dr_layer_parameters *list, const char *prefix, const char *name, dr_layer_parameter parameter,
                     int *index) {
    void *memory = list->at;
    snprintf(parameter.name, sizeof parameter.name, "%s%s", prefix, name);
    if (!dr_product(parameter.shape, parameter.rank, &parameter.count) || parameter.count > INT64_C(1) << 40)
        return dr_fail(DR_ERROR_ARGUMENT, "%s would be %" PRId64 " by %" PRId64 ": at most 2^40 elements are possible",
                       parameter.name, parameter.shape[0], parameter.shape[1]);
    DR_TRY(dr_grow(&memory, list->count, sizeof parameter, "the list of a layer's parameters"));
    list->at = memory;
    parameter.next = DR_NO_PARAMETER;
    place(list, &parameter);
    *index = list->count;
    list->at[list->count++] = parameter;
    return DR_OK;
}

dr_status dr_add_matrix(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                        int64_t columns, int64_t depth, int *index) {
    dr_layer_parameter parameter = {.initial = initial, .decays = true, .rank = depth ? 3 : 2, .shape = {rows, columns, depth}};
    parameter.weight = true;
    return add(list, prefix, name, parameter, index);
}

dr_status dr_add_numbers(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                         int64_t columns, int64_t depth, int *index) {
    dr_layer_parameter parameter = {.initial = initial, .decays = true, .rank = depth ? 3 : 2, .shape = {rows, columns, depth}};
    return add(list, prefix, name, parameter, index);
}

dr_status dr_add_vector(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                        int64_t columns, int *index) {
    dr_layer_parameter parameter = {.initial = initial, .rank = columns ? 2 : 1, .shape = {rows, columns, 0}};
    return add(list, prefix, name, parameter, index);
}

void dr_join_parameters(dr_layer_parameters *list, const int *indices, int count) {
    for (int i = 0; i + 1 < count; i++) {
        list->at[indices[i]].next = indices[i + 1];
        list->at[indices[i + 1]].follows = true;
    }
    int64_t end = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->at[i].follows) continue;
        for (int j = i; j != DR_NO_PARAMETER; j = list->at[j].next) {
            list->at[j].offset = end;
            end += list->at[j].count;
        }
        end = dr_parameter_room(end);
    }
    list->elements = end;
}

void dr_layer_parameters_release(dr_layer_parameters *list) {
    dr_release(list->at);
    *list = (dr_layer_parameters){0};
}

/* ---- first values --------------------------------------------------------------------------------------------------- */

static double draw(const dr_initial *initial, double range, dr_random *random) {
    switch (initial->kind) {
    case DR_INITIAL_NORMAL:
        return range * dr_random_normal(random);
    case DR_INITIAL_UNIFORM:
        return initial->value * (2 * dr_random_uniform(random) - 1);
    case DR_INITIAL_CONSTANT:
        return initial->value;
    case DR_INITIAL_A_LOG:
        /* a draw of zero would give a decay that no gradient can change */
        return log(fmax(initial->value + (16 - initial->value) * dr_random_uniform(random), 1e-2));
    case DR_INITIAL_STEP: {
        double step = exp(log(1e-3) + dr_random_uniform(random) * (log(0.1) - log(1e-3)));
        return step + log(-expm1(-step));
    }
    }
    return 0;
}

/* FNV-1a: the number of a name's random stream. */
static uint64_t hash(const char *name) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) sum = (sum ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return sum;
}

/* Words of a random stream that each value takes. */
static uint64_t words_of(const dr_initial *initial) {
    switch (initial->kind) {
    case DR_INITIAL_NORMAL:
        return 4;
    case DR_INITIAL_UNIFORM:
    case DR_INITIAL_A_LOG:
    case DR_INITIAL_STEP:
        return 2;
    case DR_INITIAL_CONSTANT:
        return 0;
    }
    return 0;
}

void dr_initial_draw_part(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t first,
                          int64_t count, double *values) {
    dr_random random = dr_random_start(seed, hash(name));
    random.drawn = (uint64_t)first * words_of(initial);
    for (int64_t i = 0; i < count; i++) values[i] = draw(initial, range, &random);
}

void dr_initial_draw_floats(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t first,
                            int64_t count, float *values) {
    dr_random random = dr_random_start(seed, hash(name));
    random.drawn = (uint64_t)first * words_of(initial);
    if (initial->kind == DR_INITIAL_NORMAL)
        dr_random_normals(&random, range, count, values);
    else
        for (int64_t i = 0; i < count; i++) values[i] = (float)draw(initial, range, &random);
}

void dr_initial_draw(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t count, double *values) {
    dr_initial_draw_part(initial, range, seed, name, 0, count, values);
}
