/* The state over a head's tokens and steps, literally as rule.h writes it; the backward runs forward once more, keeping the
 * state before each step, then turns each line of the equation around, last token first. */
#include "backends/reference/recurrence_head.h"
#include <string.h>

static bool reads(const dr_reference_head *head, int64_t step) {
    const dr_rule *rule = head->recurrence->rule;
    return rule->row[rule->repeat > 1 ? 0 : step].read != DR_READ_NONE;
}

/* The read is of the state before the decay. From a token's second step on there is no decay and no difference. */
static bool reads_undecayed(const dr_reference_head *head, int64_t step) {
    return step == 0 && head->recurrence->rule->row[0].undecayed;
}

/* D = decay . S, e = r^T D (or r^T S), update = z - c e */
static void prepare_step(const dr_reference_head *head, dr_reference_scratch *scratch, int64_t t, int64_t step,
                         const double *S) {
    int64_t K = head->recurrence->key_size, V = head->recurrence->value_size;
    dr_reference_row *row = &scratch->row;
    dr_reference_row_forward(head, t, step, row);
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) scratch->D[k * V + v] = (step == 0 ? scratch->alpha[k] : 1) * S[k * V + v];
    memset(scratch->erased, 0, (size_t)V * sizeof(double));
    if (reads(head, step)) {
        const double *memory = reads_undecayed(head, step) ? S : scratch->D;
        for (int64_t k = 0; k < K; k++) dr_reference_add(V, row->r[k], memory + k * V, scratch->erased);
    }
    for (int64_t v = 0; v < V; v++) scratch->update[v] = row->z[v] - row->c * scratch->erased[v];
}

/* next [K, V], which may be S, = D + w update^T */
static void forward_step(const dr_reference_head *head, dr_reference_scratch *scratch, int64_t t, int64_t step, const double *S,
                         double *next) {
    int64_t K = head->recurrence->key_size, V = head->recurrence->value_size;
    prepare_step(head, scratch, t, step, S);
    for (int64_t k = 0; k < K; k++)
        for (int64_t v = 0; v < V; v++) next[k * V + v] = scratch->D[k * V + v] + scratch->row.w[k] * scratch->update[v];
}

void dr_reference_rows_forward(const dr_reference_head *head, dr_reference_scratch *scratch, double *o) {
    const dr_recurrence *recurrence = head->recurrence;
    int64_t K = recurrence->key_size, V = recurrence->value_size, steps = dr_rule_steps(recurrence->rule);
    for (int64_t t = 0; t < head->tokens; t++) {
        dr_reference_decay_forward(head, t, scratch->alpha);
        for (int64_t step = 0; step < steps; step++) forward_step(head, scratch, t, step, scratch->S, scratch->S);
        double *o_t = o + ((head->first_row + t) * recurrence->value_heads + head->value_head) * V;
        dr_reference_query_forward(head, t, scratch->query);
        memset(o_t, 0, (size_t)V * sizeof(double));
        for (int64_t k = 0; k < K; k++) dr_reference_add(V, scratch->query[k], scratch->S + k * V, o_t);
    }
}

/* d_S: from the gradient of the state after the step to that of the state S before it. */
static void backward_step(const dr_reference_head *head, dr_reference_scratch *scratch, int64_t t, int64_t step,
                          const double *S) {
    int64_t K = head->recurrence->key_size, V = head->recurrence->value_size;
    dr_reference_row *row = &scratch->row, *d_row = &scratch->d_row;
    double *d_S = scratch->d_S, *d_update = d_row->z, *d_erased = scratch->d_erased;
    bool undecayed = reads_undecayed(head, step), reading = reads(head, step);
    prepare_step(head, scratch, t, step, S);

    /* next = D + w update^T, update = z - c e */
    memset(d_update, 0, (size_t)V * sizeof(double));
    for (int64_t k = 0; k < K; k++) {
        d_row->w[k] = dr_reference_dot(V, d_S + k * V, scratch->update);
        dr_reference_add(V, row->w[k], d_S + k * V, d_update);
    }
    d_row->c = -dr_reference_dot(V, d_update, scratch->erased);
    for (int64_t v = 0; v < V; v++) d_erased[v] = -row->c * d_update[v];

    /* e = r^T D or r^T S; D = alpha S */
    for (int64_t k = 0; k < K; k++) {
        const double *memory = undecayed ? S + k * V : scratch->D + k * V;
        d_row->r[k] = reading ? dr_reference_dot(V, memory, d_erased) : 0;
        if (reading && !undecayed) dr_reference_add(V, row->r[k], d_erased, d_S + k * V);
        if (step == 0) {
            scratch->d_alpha[k] = dr_reference_dot(V, S + k * V, d_S + k * V);
            for (int64_t v = 0; v < V; v++) d_S[k * V + v] *= scratch->alpha[k];
        }
        if (reading && undecayed) dr_reference_add(V, row->r[k], d_erased, d_S + k * V);
    }
    dr_reference_row_backward(head, t, step, row, d_row);
}

void dr_reference_rows_backward(const dr_reference_head *head, dr_reference_scratch *scratch, const double *d_o) {
    const dr_recurrence *recurrence = head->recurrence;
    int64_t K = recurrence->key_size, V = recurrence->value_size, steps = dr_rule_steps(recurrence->rule);
    for (int64_t t = 0; t < head->tokens; t++) {
        dr_reference_decay_forward(head, t, scratch->alpha);
        for (int64_t step = 0; step < steps; step++) {
            double *before = scratch->S + (t * steps + step) * K * V;
            forward_step(head, scratch, t, step, before, before + K * V);
        }
    }
    for (int64_t t = head->tokens - 1; t >= 0; t--) {
        const double *before = scratch->S + t * steps * K * V, *after = before + steps * K * V;
        const double *d_o_t = d_o + ((head->first_row + t) * recurrence->value_heads + head->value_head) * V;
        dr_reference_decay_forward(head, t, scratch->alpha);
        dr_reference_query_forward(head, t, scratch->query);
        for (int64_t k = 0; k < K; k++) {
            scratch->d_query[k] = dr_reference_dot(V, after + k * V, d_o_t);
            dr_reference_add(V, scratch->query[k], d_o_t, scratch->d_S + k * V);
        }
        dr_reference_query_backward(head, t, scratch->d_query);
        for (int64_t step = steps - 1; step >= 0; step--) backward_step(head, scratch, t, step, before + step * K * V);
        dr_reference_decay_backward(head, t, scratch->alpha, scratch->d_alpha);
    }
}
