/* Calls of plans with forms (forms.h) for tests: a forward and its backward. */
#ifndef DR_TESTS_FORMED_H
#define DR_TESTS_FORMED_H

#include "formed_tensors.h"
#include "statuses.h"

#include <stdio.h>

/* A forward and, if backwards, its backward on so many threads. */
static inline formed_result formed_run(dr_backend *backend, const formed *f, bool backwards, int threads) {
    const problem *p = f->p;
    const int64_t heads = p->recurrence.value_heads;
    const dr_dtype own = dr_backend_dtype(backend), output = f->forms.output;
    const dr_recurrence recurrence = formed_recurrence(f);
    formed_tensors t = formed_tensors_of(backend, f);
    formed_result got = {.r = {0}};
    dr_plan *plan;
    dr_recurrence_memory memory;
    must(dr_plan_create_with_forms(backend, &recurrence, &f->forms, &plan));
    must(dr_plan_memory(plan, &memory));
    void *saved = block(memory.saved), *workspace = block(memory.forward > memory.backward ? memory.forward : memory.backward);
    dr_call call = {.size = sizeof call,
                    .threads = threads,
                    .boundaries = {.at = p->cu_seqlens, .dtype = DR_I64},
                    .inputs = &t.inputs,
                    .initial = &t.initial,
                    .o = block((size_t)(p->o_count + 1) * sizeof(double)),
                    .final = &t.final,
                    .saved = saved,
                    .workspace = workspace,
                    .A_log = numbers_in(own, f->A_log, heads),
                    .dt_bias = numbers_in(own, f->dt_bias, bias_count(f))};
    must(dr_plan_forward(plan, &call));
    got.r.o = numbers_out(output, call.o, p->o_count);
    if (backwards) {
        void *d_o = numbers_in(output, p->d_o, p->o_count);
        call.d_o = d_o, call.d_final = &t.d_final, call.d_inputs = &t.d_inputs, call.d_initial = &t.d_initial;
        if (f->A_log) call.d_A_log = block((size_t)(heads + 1) * sizeof(double));
        if (f->dt_bias) call.d_dt_bias = block((size_t)(bias_count(f) + 1) * sizeof(double));
        must(dr_plan_backward(plan, &call));
        got.d_A_log = numbers_out(own, call.d_A_log, heads);
        got.d_dt_bias = numbers_out(own, call.d_dt_bias, bias_count(f));
        free(d_o);
    }
    formed_collect(backend, f, backwards, &t, &got.r);
    free((void *)call.A_log), free((void *)call.dt_bias), free(saved), free(workspace);
    dr_plan_destroy(plan);
    return got;
}

/* <o, d_o> + <final, d_final> */
static inline double formed_loss(const formed *f, const formed_result *got) {
    double loss = 0;
    for (int64_t i = 0; i < f->p->o_count; i++) loss += got->r.o[i] * f->p->d_o[i];
    for (int k = 0; k < DR_STATES; k++)
        for (int64_t i = 0; f->p->d_final[k] && i < f->p->state_count[k]; i++) loss += got->r.final[k][i] * f->p->d_final[k][i];
    return loss;
}

#endif
