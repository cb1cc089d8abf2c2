/* Tensors of plans with forms (forms.h) for tests: a problem's numbers as such calls take them, in host memory, and what came
 * out as dense doubles again. */
#ifndef DR_TESTS_FORMED_TENSORS_H
#define DR_TESTS_FORMED_TENSORS_H

#include "base/half.h"
#include "ops/forms.h"
#include "ops/shapes.h"
#include "recurrence/problem.h"

#include <deltarule/plan.h>
#include <math.h>
#include <stdlib.h>

/* A problem whose tensors come in forms; A_log [HV] and dt_bias [HV, size] or NULL. */
typedef struct {
    problem *p;
    dr_forms forms;
    double *A_log, *dt_bias;
    dr_path path;
    int64_t chunk;
} formed;

/* As result, and the gradients of the decay's parameters. */
typedef struct {
    result r;
    double *d_A_log, *d_dt_bias;
} formed_result;

static inline int64_t bias_count(const formed *f) {
    return f->p->recurrence.value_heads * dr_forms_bias_size(&f->p->recurrence);
}

static inline double read_as(dr_dtype dtype, const void *tensor, int64_t at) {
    switch (dtype) {
    case DR_F64:
        return ((const double *)tensor)[at];
    case DR_BF16:
        return (double)dr_bf16_to_float(((const uint16_t *)tensor)[at]);
    case DR_F16:
        return (double)dr_f16_to_float(((const uint16_t *)tensor)[at]);
    default:
        return (double)((const float *)tensor)[at];
    }
}

static inline void write_as(dr_dtype dtype, double value, void *tensor, int64_t at) {
    switch (dtype) {
    case DR_F64:
        ((double *)tensor)[at] = value;
        break;
    case DR_BF16:
        ((uint16_t *)tensor)[at] = dr_bf16_from_double(value);
        break;
    case DR_F16:
        ((uint16_t *)tensor)[at] = dr_f16_from_double(value);
        break;
    default:
        ((float *)tensor)[at] = (float)value;
    }
}

/* Where element i of a dense input is, tokens being `token` elements apart. */
static inline int64_t formed_at(const problem *p, int input, int64_t token, int64_t i) {
    const dr_input_form form = dr_recurrence_input_form(&p->recurrence, (dr_input)input);
    const int64_t each = form.steps * form.heads * form.size;
    return form.per_row ? i / each * token + i % each : i;
}

static inline size_t formed_bytes(const formed *f, int input, int64_t pitch) {
    const int64_t token = dr_forms_token(&f->p->recurrence, (dr_input)input, pitch);
    const int64_t rows = f->p->recurrence.layout.rows, count = token > 0 ? rows * token : f->p->input_count[input];
    return (size_t)(count + 1) * dr_dtype_size(f->forms.dtype[input]);
}

/* Where element i of a state S is, whose values may come first. */
static inline int64_t state_at(const formed *f, int state, int64_t i) {
    const int64_t K = f->p->recurrence.key_size, V = f->p->recurrence.value_size, rest = i % (K * V);
    if (!f->forms.value_first || state != DR_STATE_S) return i;
    return i - rest + rest % V * K + rest / V;
}

static inline void *state_in(const formed *f, dr_dtype dtype, int state, const double *from) {
    void *to = block((size_t)f->p->state_count[state] * sizeof(double));
    for (int64_t i = 0; from && i < f->p->state_count[state]; i++) write_as(dtype, from[i], to, state_at(f, state, i));
    return to;
}

static inline double *state_out(const formed *f, dr_dtype dtype, int state, void *from) {
    double *to = numbers(f->p->state_count[state]);
    for (int64_t i = 0; i < f->p->state_count[state]; i++) to[i] = read_as(dtype, from, state_at(f, state, i));
    free(from);
    return to;
}

static inline void *numbers_in(dr_dtype dtype, const double *from, int64_t count) {
    if (!from) return NULL;
    void *to = block((size_t)(count + 1) * sizeof(double));
    for (int64_t i = 0; i < count; i++) write_as(dtype, from[i], to, i);
    return to;
}

static inline double *numbers_out(dr_dtype dtype, void *from, int64_t count) {
    double *to = from ? numbers(count) : NULL;
    for (int64_t i = 0; from && i < count; i++) to[i] = read_as(dtype, from, i);
    free(from);
    return to;
}

static inline dr_recurrence formed_recurrence(const formed *f) {
    dr_recurrence recurrence = f->p->recurrence;
    recurrence.path = f->path;
    recurrence.chunk = f->chunk;
    recurrence.layout.cu_seqlens = NULL;
    return recurrence;
}

/* A problem's tensors in its forms, in the backend's type where forms say nothing. */
typedef struct {
    dr_inputs inputs;
    dr_input_gradients d_inputs;
    dr_states initial, d_final;
    dr_mutable_states final, d_initial;
} formed_tensors;

static inline void *input_in(const formed *f, int i) {
    const int64_t token = dr_forms_token(&f->p->recurrence, (dr_input)i, f->forms.pitch[i]);
    void *tensor = block(formed_bytes(f, i, f->forms.pitch[i]));
    for (int64_t j = 0; j < f->p->input_count[i]; j++)
        write_as(f->forms.dtype[i], f->p->input[i][j], tensor, formed_at(f->p, i, token, j));
    return tensor;
}

static inline formed_tensors formed_tensors_of(const dr_backend *backend, const formed *f) {
    const problem *p = f->p;
    const dr_dtype own = dr_backend_dtype(backend);
    formed_tensors t = {.inputs = {{0}}};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        t.inputs.at[i] = input_in(f, i);
        t.d_inputs.at[i] = block(formed_bytes(f, i, f->forms.gradient_pitch[i]));
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!dr_rule_carries(&p->rule, (dr_state_kind)i)) continue;
        if (p->initial[i]) t.initial.at[i] = state_in(f, own, i, p->initial[i]);
        if (p->d_final[i]) t.d_final.at[i] = state_in(f, own, i, p->d_final[i]);
        t.final.at[i] = state_in(f, own, i, NULL);
        t.d_initial.at[i] = state_in(f, own, i, NULL);
    }
    return t;
}

/* What the tensors have come to; they are freed. */
static inline void formed_collect(const dr_backend *backend, const formed *f, bool backwards, formed_tensors *t, result *r) {
    const problem *p = f->p;
    const dr_dtype own = dr_backend_dtype(backend);
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!p->input[i]) continue;
        const int64_t token = dr_forms_token(&p->recurrence, (dr_input)i, f->forms.gradient_pitch[i]);
        if (backwards) r->gradient[i] = numbers(p->input_count[i]);
        for (int64_t j = 0; backwards && j < p->input_count[i]; j++)
            r->gradient[i][j] = read_as(f->forms.dtype[i], t->d_inputs.at[i], formed_at(p, i, token, j));
        free((void *)t->inputs.at[i]), free(t->d_inputs.at[i]);
    }
    for (int i = 0; i < DR_STATES; i++) {
        if (!t->final.at[i]) continue;
        r->final[i] = state_out(f, own, i, t->final.at[i]);
        r->d_initial[i] = state_out(f, own, i, t->d_initial.at[i]);
        free((void *)t->initial.at[i]), free((void *)t->d_final.at[i]);
    }
}

static inline void formed_free(formed_result *got) {
    result_free(&got->r);
    free(got->d_A_log), free(got->d_dt_bias);
}

#endif
