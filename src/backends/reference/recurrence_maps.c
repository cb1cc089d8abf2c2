/* From inputs to what the recurrence reads, and the gradients back: the decay, a row's read key r, write key w, gain c and
 * value z, and the query. Forward in the order r, w, c, normalizer, z, as each uses those before it; backward in the reverse
 * order, so that a part's gradient is complete when its turn comes. */
#include "backends/reference/recurrence_head.h"
#include "ops/shapes.h"
#include <math.h>
#include <string.h>

/* ---- slices --------------------------------------------------------------------------------------------------------- */

static int64_t offset(const dr_reference_head *head, dr_input input, int64_t token, int64_t step) {
    dr_input_form form = dr_recurrence_input_form(head->recurrence, input);
    int64_t row = form.per_row ? head->first_row + token : 0, at = form.steps > 1 ? step : 0;
    return ((row * form.steps + at) * form.heads + (form.per_value ? head->value_head : head->key_head)) * form.size;
}

const double *dr_reference_input(const dr_reference_head *head, dr_input input, int64_t token, int64_t step) {
    return (const double *)head->inputs->at[input] + offset(head, input, token, step);
}

double *dr_reference_gradient(const dr_reference_head *head, dr_input input, int64_t token, int64_t step) {
    double *gradient = head->gradients->at[input];
    return gradient ? gradient + offset(head, input, token, step) : NULL;
}

static double scalar(const dr_reference_head *head, dr_input input, int64_t token, int64_t step) {
    return *dr_reference_input(head, input, token, step);
}

static void add_scalar(const dr_reference_head *head, dr_input input, int64_t token, int64_t step, double amount) {
    dr_reference_add(1, 1, &amount, dr_reference_gradient(head, input, token, step));
}

/* With two rows a step is a row of the rule; under repeat it is one of the inputs' steps and the row is always the first. */
static const dr_row *row_at(const dr_reference_head *head, int64_t step) {
    const dr_rule *rule = head->recurrence->rule;
    return &rule->row[rule->repeat > 1 ? 0 : step];
}

/* ---- decay ---------------------------------------------------------------------------------------------------------- */

void dr_reference_decay_forward(const dr_reference_head *head, int64_t token, double *alpha) {
    dr_decay decay = head->recurrence->rule->decay;
    int64_t K = head->recurrence->key_size;
    const double *log_decay = decay == DR_DECAY_NONE ? NULL : dr_reference_input(head, DR_INPUT_LOG_DECAY, token, 0);
    for (int64_t i = 0; i < K; i++) alpha[i] = log_decay ? exp(log_decay[decay == DR_DECAY_CHANNEL ? i : 0]) : 1;
}

/* alpha = 0 (log_decay -inf) gives 0, since d_alpha is finite */
void dr_reference_decay_backward(const dr_reference_head *head, int64_t token, const double *alpha, const double *d_alpha) {
    dr_decay decay = head->recurrence->rule->decay;
    int64_t K = head->recurrence->key_size;
    if (decay == DR_DECAY_NONE) return;
    double *d_log_decay = dr_reference_gradient(head, DR_INPUT_LOG_DECAY, token, 0);
    if (decay == DR_DECAY_CHANNEL)
        dr_reference_add_product(K, alpha, d_alpha, d_log_decay);
    else if (d_log_decay)
        *d_log_decay += dr_reference_dot(K, alpha, d_alpha);
}

/* ---- read key ------------------------------------------------------------------------------------------------------- */

static void read_forward(const dr_reference_head *head, int64_t t, int64_t step, double *r) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, step);
    memset(r, 0, (size_t)K * sizeof *r);
    switch (row_at(head, step)->read) {
    case DR_READ_NONE:
        break;
    case DR_READ_KEY:
        dr_reference_add(K, 1, key, r);
        break;
    case DR_READ_GATED_KEY:
        dr_reference_add_product(K, dr_reference_input(head, DR_INPUT_ERASE_GATE, t, 0), key, r);
        break;
    case DR_READ_KEY_PLUS_QUERY:
        dr_reference_add(K, 1, key, r);
        dr_reference_add(K, scalar(head, DR_INPUT_LAMBDA, t, 0), dr_reference_input(head, DR_INPUT_QUERY, t, 0), r);
        break;
    case DR_READ_ERASE_KEY:
        dr_reference_add(K, 1, dr_reference_input(head, DR_INPUT_ERASE_KEY, t, 0), r);
        break;
    case DR_READ_FEEDBACK:
        dr_reference_add(K, 1, dr_reference_input(head, DR_INPUT_FEEDBACK_KEY, t, 0), r);
        break;
    case DR_READ_FREE:
        dr_reference_add(K, -1, dr_reference_input(head, DR_INPUT_FREE_READ, t, 0), r);
        break;
    }
}

static void read_backward(const dr_reference_head *head, int64_t t, int64_t step, const double *d_r) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, step);
    double *d_key = dr_reference_gradient(head, DR_INPUT_KEY, t, step);
    switch (row_at(head, step)->read) {
    case DR_READ_NONE:
        break;
    case DR_READ_KEY:
        dr_reference_add(K, 1, d_r, d_key);
        break;
    case DR_READ_GATED_KEY:
        dr_reference_add_product(K, d_r, dr_reference_input(head, DR_INPUT_ERASE_GATE, t, 0), d_key);
        dr_reference_add_product(K, d_r, key, dr_reference_gradient(head, DR_INPUT_ERASE_GATE, t, 0));
        break;
    case DR_READ_KEY_PLUS_QUERY: {
        const double *query = dr_reference_input(head, DR_INPUT_QUERY, t, 0);
        dr_reference_add(K, 1, d_r, d_key);
        dr_reference_add(K, scalar(head, DR_INPUT_LAMBDA, t, 0), d_r, dr_reference_gradient(head, DR_INPUT_QUERY, t, 0));
        add_scalar(head, DR_INPUT_LAMBDA, t, 0, dr_reference_dot(K, d_r, query));
        break;
    }
    case DR_READ_ERASE_KEY:
        dr_reference_add(K, 1, d_r, dr_reference_gradient(head, DR_INPUT_ERASE_KEY, t, 0));
        break;
    case DR_READ_FEEDBACK:
        dr_reference_add(K, 1, d_r, dr_reference_gradient(head, DR_INPUT_FEEDBACK_KEY, t, 0));
        break;
    case DR_READ_FREE:
        dr_reference_add(K, -1, d_r, dr_reference_gradient(head, DR_INPUT_FREE_READ, t, 0));
        break;
    }
}

/* ---- write key ------------------------------------------------------------------------------------------------------ */

/* B = x^-s and its like, s the squash of r = ln(A + eps) - centre; *slope = dB/dr */
static double squash(const dr_squash *form, double A, double centre, double *slope) {
    double r = log(A + form->eps) - centre, ln_x = log(form->x), s, ds, B = 1, dB = 0;
    if (form->function == DR_SQUASH_TANH) {
        s = tanh(r);
        ds = 1 - s * s;
    } else {
        s = r / (1 + fabs(r));
        ds = 1 / ((1 + fabs(r)) * (1 + fabs(r)));
    }
    switch (form->interval) {
    case DR_SQUASH_SYMMETRIC:
        B = exp(-ln_x * s);
        dB = -ln_x * B;
        break;
    case DR_SQUASH_AMPLIFY:
        B = exp(ln_x * (1 - s) / 2);
        dB = -ln_x / 2 * B;
        break;
    case DR_SQUASH_DAMPEN:
        B = exp(-ln_x * (1 + s) / 2);
        dB = -ln_x / 2 * B;
        break;
    }
    *slope = dB * ds;
    return B;
}

static void preconditioned_forward(const dr_reference_head *head, int64_t t, double *w) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *A = head->A + (t + 1) * K;
    double centre = scalar(head, DR_INPUT_SCAN_CENTRE, t, 0), slope;
    for (int64_t i = 0; i < K; i++) w[i] = squash(&head->recurrence->rule->squash, A[i], centre, &slope) * key[i];
}

static void preconditioned_backward(const dr_reference_head *head, int64_t t, const double *d_w) {
    const dr_squash *form = &head->recurrence->rule->squash;
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *A = head->A + (t + 1) * K;
    double *d_key = dr_reference_gradient(head, DR_INPUT_KEY, t, 0), *d_A = head->d_A + (t + 1) * K;
    double centre = scalar(head, DR_INPUT_SCAN_CENTRE, t, 0), d_centre = 0;
    for (int64_t i = 0; i < K; i++) {
        double slope, B = squash(form, A[i], centre, &slope), d_r = d_w[i] * key[i] * slope;
        if (d_key) d_key[i] += d_w[i] * B;
        d_A[i] += d_r / (A[i] + form->eps);
        d_centre -= d_r;
    }
    add_scalar(head, DR_INPUT_SCAN_CENTRE, t, 0, d_centre);
}

/* w = m / (1 + key . m), m = key / (A_{t-1} + ridge) */
static void sherman_morrison_forward(const dr_reference_head *head, int64_t t, double *w) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *ridge = dr_reference_input(head, DR_INPUT_RIDGE, t, 0);
    const double *A = head->A + t * K;
    for (int64_t i = 0; i < K; i++) w[i] = key[i] / (A[i] + ridge[i]);
    double denominator = 1 + dr_reference_dot(K, key, w);
    for (int64_t i = 0; i < K; i++) w[i] /= denominator;
}

static void sherman_morrison_backward(const dr_reference_head *head, int64_t t, const double *w, const double *d_w) {
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0), *ridge = dr_reference_input(head, DR_INPUT_RIDGE, t, 0);
    const double *A = head->A + t * K;
    double *d_key = dr_reference_gradient(head, DR_INPUT_KEY, t, 0), *d_A = head->d_A + t * K;
    double *d_ridge = dr_reference_gradient(head, DR_INPUT_RIDGE, t, 0), denominator = 1;
    for (int64_t i = 0; i < K; i++) denominator += key[i] * key[i] / (A[i] + ridge[i]);
    double d_denominator = -dr_reference_dot(K, d_w, w) / denominator; /* of w = m / denominator */
    for (int64_t i = 0; i < K; i++) {
        double inverse = 1 / (A[i] + ridge[i]), m = key[i] * inverse;
        double d_m = d_w[i] / denominator + d_denominator * key[i], d_sum = -d_m * m * inverse;
        if (d_key) d_key[i] += d_m * inverse + d_denominator * m;
        if (d_ridge) d_ridge[i] += d_sum;
        d_A[i] += d_sum;
    }
}

static void write_forward(const dr_reference_head *head, int64_t t, int64_t step, const double *r, double *w) {
    int64_t K = head->recurrence->key_size;
    memset(w, 0, (size_t)K * sizeof *w);
    switch (row_at(head, step)->write) {
    case DR_WRITE_KEY:
        dr_reference_add(K, 1, dr_reference_input(head, DR_INPUT_KEY, t, step), w);
        break;
    case DR_WRITE_PRECONDITIONED:
        preconditioned_forward(head, t, w);
        break;
    case DR_WRITE_SHERMAN_MORRISON:
        sherman_morrison_forward(head, t, w);
        break;
    case DR_WRITE_ERASE_KEY:
        dr_reference_add(K, 1, dr_reference_input(head, DR_INPUT_ERASE_KEY, t, 0), w);
        break;
    case DR_WRITE_RATE_READ:
        dr_reference_add_product(K, dr_reference_input(head, DR_INPUT_RATE, t, 0), r, w);
        break;
    case DR_WRITE_FREE:
        dr_reference_add(K, 1, dr_reference_input(head, DR_INPUT_FREE_WRITE, t, 0), w);
        break;
    case DR_WRITE_EXACT:
        dr_reference_add(K, 1, head->solved + t * K, w);
        break;
    }
}

static void write_backward(const dr_reference_head *head, int64_t t, int64_t step, const dr_reference_row *row,
                           dr_reference_row *d_row) {
    int64_t K = head->recurrence->key_size;
    const double *d_w = d_row->w;
    switch (row_at(head, step)->write) {
    case DR_WRITE_KEY:
        dr_reference_add(K, 1, d_w, dr_reference_gradient(head, DR_INPUT_KEY, t, step));
        break;
    case DR_WRITE_PRECONDITIONED:
        preconditioned_backward(head, t, d_w);
        break;
    case DR_WRITE_SHERMAN_MORRISON:
        sherman_morrison_backward(head, t, row->w, d_w);
        break;
    case DR_WRITE_ERASE_KEY:
        dr_reference_add(K, 1, d_w, dr_reference_gradient(head, DR_INPUT_ERASE_KEY, t, 0));
        break;
    case DR_WRITE_RATE_READ:
        dr_reference_add_product(K, d_w, row->r, dr_reference_gradient(head, DR_INPUT_RATE, t, 0));
        dr_reference_add_product(K, d_w, dr_reference_input(head, DR_INPUT_RATE, t, 0), d_row->r);
        break;
    case DR_WRITE_FREE:
        dr_reference_add(K, 1, d_w, dr_reference_gradient(head, DR_INPUT_FREE_WRITE, t, 0));
        break;
    case DR_WRITE_EXACT:
        dr_reference_add(K, 1, d_w, head->d_solved + t * K);
        break;
    }
}

/* ---- gain ----------------------------------------------------------------------------------------------------------- */

/* 1 / x, or 0 where that is infinite: a zero key erases and writes nothing, and passes no gradient on. */
static double reciprocal(double x) {
    const double quotient = 1 / x;
    return isinf(quotient) ? 0 : quotient;
}

/* (1 - exp(-x)) / x and its derivative ((1 + x) exp(-x) - 1) / x^2. Near 0 the quotients lose their digits: there the series
 * sum (-x)^n / (n + 1)!, whose 20 terms are exact to rounding for |x| < 1/2. */
static double relative_decay(double x, double *slope) {
    if (fabs(x) >= 0.5) {
        *slope = ((1 + x) * exp(-x) - 1) / (x * x);
        return -expm1(-x) / x;
    }
    double value = 1, term = 1; /* (-x)^n / (n + 1)! */
    *slope = 0;
    for (int n = 1; n < 20; n++) {
        double power = term / (n + 1); /* (-x)^(n - 1) / (n + 1)! */
        term = -x * power;
        value += term;
        *slope -= n * power;
    }
    return value;
}

/* the gain without the normalizer's factor */
static double gain_forward(const dr_reference_head *head, int64_t t, int64_t step, const double *r, const double *w) {
    int64_t K = head->recurrence->key_size;
    switch (row_at(head, step)->gain) {
    case DR_GAIN_ONE:
        break;
    case DR_GAIN_BETA:
        return scalar(head, DR_INPUT_BETA, t, step);
    case DR_GAIN_GAMMA:
        return scalar(head, DR_INPUT_ERASE_GAIN, t, 0);
    case DR_GAIN_IMPLICIT: {
        double beta = scalar(head, DR_INPUT_BETA, t, step);
        return beta / (1 + beta * dr_reference_dot(K, r, w));
    }
    case DR_GAIN_NORMALIZED:
        return reciprocal(dr_reference_dot(K, r, w) + head->recurrence->rule->gain_eps);
    case DR_GAIN_EXPONENTIAL: {
        double beta = scalar(head, DR_INPUT_BETA, t, step), slope;
        return beta * relative_decay(beta * dr_reference_dot(K, r, w), &slope);
    }
    }
    return 1;
}

/* gain: what gain_forward gave. The product r . w gives to d_row->r and d_row->w. */
static void gain_backward(const dr_reference_head *head, int64_t t, int64_t step, const dr_reference_row *row, double gain,
                          double d_gain, dr_reference_row *d_row) {
    int64_t K = head->recurrence->key_size;
    double d_product = 0;
    switch (row_at(head, step)->gain) {
    case DR_GAIN_ONE:
        return;
    case DR_GAIN_BETA:
        add_scalar(head, DR_INPUT_BETA, t, step, d_gain);
        return;
    case DR_GAIN_GAMMA:
        add_scalar(head, DR_INPUT_ERASE_GAIN, t, 0, d_gain);
        return;
    case DR_GAIN_IMPLICIT: {
        double share = 1 / (1 + scalar(head, DR_INPUT_BETA, t, step) * dr_reference_dot(K, row->r, row->w));
        add_scalar(head, DR_INPUT_BETA, t, step, d_gain * share * share);
        d_product = -d_gain * gain * gain;
        break;
    }
    case DR_GAIN_NORMALIZED:
        d_product = -d_gain * gain * gain;
        break;
    case DR_GAIN_EXPONENTIAL: {
        double beta = scalar(head, DR_INPUT_BETA, t, step), product = dr_reference_dot(K, row->r, row->w), slope;
        relative_decay(beta * product, &slope);
        add_scalar(head, DR_INPUT_BETA, t, step, d_gain * exp(-beta * product));
        d_product = d_gain * beta * beta * slope;
        break;
    }
    }
    dr_reference_add(K, d_product, row->w, d_row->r);
    dr_reference_add(K, d_product, row->r, d_row->w);
}

/* ---- normalizer ----------------------------------------------------------------------------------------------------- */

static dr_normalizer normalizer_at(const dr_reference_head *head, int64_t step) {
    return row_at(head, step)->write == DR_WRITE_PRECONDITIONED ? head->recurrence->rule->normalizer : DR_NORMALIZER_NONE;
}

/* the factor on gain and value; w is the preconditioned key */
static double normalizer_forward(const dr_reference_head *head, int64_t t, int64_t step, const double *w) {
    double m = dr_reference_dot(head->recurrence->key_size, dr_reference_input(head, DR_INPUT_KEY, t, step), w);
    switch (normalizer_at(head, step)) {
    case DR_NORMALIZER_NONE:
        break;
    case DR_NORMALIZER_INVERSE:
        return reciprocal(m);
    case DR_NORMALIZER_IMPLICIT:
        return 1 / (1 + m);
    case DR_NORMALIZER_DISCOUNTED:
        return reciprocal(exp(scalar(head, DR_INPUT_LOG_DECAY, t, 0)) + scalar(head, DR_INPUT_BETA, t, 0) * m);
    }
    return 1;
}

static void normalizer_backward(const dr_reference_head *head, int64_t t, int64_t step, const double *w, double factor,
                                double d_factor, double *d_w) {
    dr_normalizer normalizer = normalizer_at(head, step);
    if (normalizer == DR_NORMALIZER_NONE) return;
    int64_t K = head->recurrence->key_size;
    const double *key = dr_reference_input(head, DR_INPUT_KEY, t, step);
    double d_m = -factor * factor * d_factor;
    if (normalizer == DR_NORMALIZER_DISCOUNTED) {
        add_scalar(head, DR_INPUT_LOG_DECAY, t, 0, exp(scalar(head, DR_INPUT_LOG_DECAY, t, 0)) * d_m);
        add_scalar(head, DR_INPUT_BETA, t, 0, dr_reference_dot(K, key, w) * d_m);
        d_m *= scalar(head, DR_INPUT_BETA, t, 0);
    }
    dr_reference_add(K, d_m, w, dr_reference_gradient(head, DR_INPUT_KEY, t, step));
    dr_reference_add(K, d_m, key, d_w);
}

/* ---- value ---------------------------------------------------------------------------------------------------------- */

/* z without the normalizer's factor */
static void value_forward(const dr_reference_head *head, int64_t t, int64_t step, double gain, double *z) {
    int64_t V = head->recurrence->value_size;
    const double *value = dr_reference_input(head, DR_INPUT_VALUE, t, step);
    memset(z, 0, (size_t)V * sizeof *z);
    switch (row_at(head, step)->value) {
    case DR_VALUE_NONE:
        break;
    case DR_VALUE_V:
        dr_reference_add(V, 1, value, z);
        break;
    case DR_VALUE_GAIN:
        dr_reference_add(V, gain, value, z);
        break;
    case DR_VALUE_GATED:
        dr_reference_add_product(V, dr_reference_input(head, DR_INPUT_WRITE_GATE, t, 0), value, z);
        break;
    }
}

/* returns what z gives to the gain */
static double value_backward(const dr_reference_head *head, int64_t t, int64_t step, double gain, const double *d_z) {
    int64_t V = head->recurrence->value_size;
    const double *value = dr_reference_input(head, DR_INPUT_VALUE, t, step);
    double *d_value = dr_reference_gradient(head, DR_INPUT_VALUE, t, step);
    switch (row_at(head, step)->value) {
    case DR_VALUE_NONE:
        break;
    case DR_VALUE_V:
        dr_reference_add(V, 1, d_z, d_value);
        break;
    case DR_VALUE_GAIN:
        dr_reference_add(V, gain, d_z, d_value);
        return dr_reference_dot(V, d_z, value);
    case DR_VALUE_GATED:
        dr_reference_add_product(V, d_z, dr_reference_input(head, DR_INPUT_WRITE_GATE, t, 0), d_value);
        dr_reference_add_product(V, d_z, value, dr_reference_gradient(head, DR_INPUT_WRITE_GATE, t, 0));
        break;
    }
    return 0;
}

/* ---- a row ---------------------------------------------------------------------------------------------------------- */

void dr_reference_row_forward(const dr_reference_head *head, int64_t t, int64_t step, dr_reference_row *row) {
    read_forward(head, t, step, row->r);
    write_forward(head, t, step, row->r, row->w);
    double gain = gain_forward(head, t, step, row->r, row->w), factor = normalizer_forward(head, t, step, row->w);
    value_forward(head, t, step, gain, row->z);
    row->c = gain * factor;
    for (int64_t i = 0; i < head->recurrence->value_size; i++) row->z[i] *= factor;
}

void dr_reference_row_backward(const dr_reference_head *head, int64_t t, int64_t step, const dr_reference_row *row,
                               dr_reference_row *d_row) {
    int64_t V = head->recurrence->value_size;
    double gain = gain_forward(head, t, step, row->r, row->w), factor = normalizer_forward(head, t, step, row->w);
    /* c = factor gain and z = factor z', so that <z, d_z> / factor is what z gives to the factor; a factor of 0 passes nothing
     * on */
    double d_factor = factor == 0 ? 0 : d_row->c * gain + dr_reference_dot(V, row->z, d_row->z) / factor;
    for (int64_t i = 0; i < V; i++) d_row->z[i] *= factor;
    double d_gain = d_row->c * factor + value_backward(head, t, step, gain, d_row->z);
    normalizer_backward(head, t, step, row->w, factor, d_factor, d_row->w);
    gain_backward(head, t, step, row, gain, d_gain, d_row);
    write_backward(head, t, step, row, d_row);
    read_backward(head, t, step, d_row->r);
}

/* ---- query ---------------------------------------------------------------------------------------------------------- */

static double output_scale(const dr_recurrence *recurrence) {
    return recurrence->scale != 0 ? recurrence->scale : 1 / sqrt((double)recurrence->key_size);
}

void dr_reference_query_forward(const dr_reference_head *head, int64_t t, double *query) {
    int64_t K = head->recurrence->key_size;
    double scale = output_scale(head->recurrence);
    memset(query, 0, (size_t)K * sizeof *query);
    dr_reference_add(K, scale, dr_reference_input(head, DR_INPUT_QUERY, t, 0), query);
    switch (head->recurrence->rule->query) {
    case DR_QUERY_PLAIN:
        break;
    case DR_QUERY_CORRECTED:
        dr_reference_add(K, -scale * scalar(head, DR_INPUT_CORRECTION, t, 0), dr_reference_input(head, DR_INPUT_KEY, t, 0),
                         query);
        break;
    case DR_QUERY_RIDGE: {
        const double *ridge = dr_reference_input(head, DR_INPUT_RIDGE, t, 0), *A = head->A + (t + 1) * K;
        for (int64_t i = 0; i < K; i++) query[i] /= A[i] + ridge[i];
        break;
    }
    case DR_QUERY_EXACT:
    case DR_QUERY_CONJUGATE_GRADIENT:
        for (int64_t i = 0; i < K; i++) query[i] = scale * head->solved[t * K + i];
        break;
    }
}

static void ridge_query_backward(const dr_reference_head *head, int64_t t, const double *d_query) {
    int64_t K = head->recurrence->key_size;
    const double *query = dr_reference_input(head, DR_INPUT_QUERY, t, 0);
    const double *ridge = dr_reference_input(head, DR_INPUT_RIDGE, t, 0), *A = head->A + (t + 1) * K;
    double *d_input = dr_reference_gradient(head, DR_INPUT_QUERY, t, 0);
    double *d_ridge = dr_reference_gradient(head, DR_INPUT_RIDGE, t, 0), *d_A = head->d_A + (t + 1) * K;
    double scale = output_scale(head->recurrence);
    for (int64_t i = 0; i < K; i++) {
        double inverse = 1 / (A[i] + ridge[i]), d_sum = -scale * d_query[i] * query[i] * inverse * inverse;
        if (d_input) d_input[i] += scale * d_query[i] * inverse;
        if (d_ridge) d_ridge[i] += d_sum;
        d_A[i] += d_sum;
    }
}

void dr_reference_query_backward(const dr_reference_head *head, int64_t t, const double *d_query) {
    int64_t K = head->recurrence->key_size;
    double scale = output_scale(head->recurrence);
    switch (head->recurrence->rule->query) {
    case DR_QUERY_PLAIN:
        dr_reference_add(K, scale, d_query, dr_reference_gradient(head, DR_INPUT_QUERY, t, 0));
        break;
    case DR_QUERY_CORRECTED: {
        const double *key = dr_reference_input(head, DR_INPUT_KEY, t, 0);
        double correction = scalar(head, DR_INPUT_CORRECTION, t, 0);
        dr_reference_add(K, scale, d_query, dr_reference_gradient(head, DR_INPUT_QUERY, t, 0));
        dr_reference_add(K, -scale * correction, d_query, dr_reference_gradient(head, DR_INPUT_KEY, t, 0));
        add_scalar(head, DR_INPUT_CORRECTION, t, 0, -scale * dr_reference_dot(K, key, d_query));
        break;
    }
    case DR_QUERY_RIDGE:
        ridge_query_backward(head, t, d_query);
        break;
    case DR_QUERY_EXACT:
    case DR_QUERY_CONJUGATE_GRADIENT:
        dr_reference_add(K, scale, d_query, head->d_solved + t * K);
        break;
    }
}
