/* Softmax attention, query by query and key by key (ops/attention.h). The backward makes p again from the saved logarithms l of
 * the sums:
 *
 *     dp_ij = d_o_i . v_j     ds_ij = p_ij (dp_ij - sum_j p_ij dp_ij) = p_ij (dp_ij - d_o_i . o_i)
 *     d_q_i = scale sum_j ds_ij k_j     d_k_j = scale sum_i ds_ij q_i     d_v_j = sum_i p_ij d_o_i */
#include "backends/reference/reference.h"

#include <math.h>
#include <string.h>

/* One sequence of a call. */
typedef struct {
    const dr_attention *attention;
    const dr_attention_memory *memory; /* NULL: nothing was before the call */
    int64_t begin, past, slot;
} sequence;

static sequence sequence_at(const dr_attention *attention, const dr_attention_memory *memory, int64_t i) {
    return (sequence){.attention = attention,
                      .memory = memory,
                      .begin = dr_layout_begin(&attention->layout, i),
                      .past = memory && memory->past ? memory->past[i] : 0,
                      .slot = memory && memory->slot ? memory->slot[i] : i};
}

/* The key or value of a head at a position: of the call's own rows, or from memory. size: of its vectors. */
static const double *row_of(const sequence *s, const double *own, const double *remembered, int64_t size, int64_t position,
                            int64_t key_head) {
    const int64_t heads = s->attention->key_heads;
    if (position >= s->past) return own + ((s->begin + position - s->past) * heads + key_head) * size;
    return remembered + ((s->slot * s->memory->capacity + position % s->memory->capacity) * heads + key_head) * size;
}

static int64_t first_seen(const dr_attention *attention, int64_t position) {
    return attention->window > 0 && position >= attention->window ? position - attention->window + 1 : 0;
}

static double dot(int64_t size, const double *x, const double *y) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += x[i] * y[i];
    return sum;
}

static void add(int64_t size, double factor, const double *x, double *y) {
    for (int64_t i = 0; i < size; i++) y[i] += factor * x[i];
}

/* o and the logarithm of the sum for one query q of a head */
static double attend(const sequence *s, const double *k, const double *v, const double *q, int64_t position, int64_t key_head,
                     double *o) {
    const dr_attention *a = s->attention;
    const double *keys = s->memory ? s->memory->keys : NULL, *values = s->memory ? s->memory->values : NULL;
    const int64_t first = first_seen(a, position);
    double largest = (double)-INFINITY, sum = 0;
    for (int64_t j = first; j <= position; j++)
        largest = fmax(largest, a->scale * dot(a->key_size, q, row_of(s, k, keys, a->key_size, j, key_head)));
    memset(o, 0, (size_t)a->value_size * sizeof *o);
    for (int64_t j = first; j <= position; j++) {
        const double score = a->scale * dot(a->key_size, q, row_of(s, k, keys, a->key_size, j, key_head));
        const double weight = exp(score - largest);
        sum += weight;
        add(a->value_size, weight, row_of(s, v, values, a->value_size, j, key_head), o);
    }
    for (int64_t i = 0; i < a->value_size; i++) o[i] /= sum;
    return largest + log(sum);
}

dr_status dr_reference_attention_forward(dr_backend *backend, const dr_attention *attention, const void *q_, const void *k,
                                         const void *v, const dr_attention_memory *memory, void *o_, void *log_sums_) {
    (void)backend;
    const int64_t heads = attention->heads, group = heads / attention->key_heads;
    const double *q = q_;
    double *o = o_, *log_sums = log_sums_;
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        const sequence s = sequence_at(attention, memory, i);
        const int64_t end = dr_layout_begin(&attention->layout, i + 1);
        for (int64_t t = s.begin; t < end; t++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t at = t * heads + h;
                const double l = attend(&s, k, v, q + at * attention->key_size, s.past + t - s.begin, h / group,
                                        o + at * attention->value_size);
                if (log_sums) log_sums[at] = l;
            }
    }
    return DR_OK;
}

/* The gradients of a call, each NULL or of the shape of its tensor. */
typedef struct {
    double *q, *k, *v;
} gradients;

static void add_gradients(const sequence *s, const double *q, const double *k, const double *v, const double *o,
                          const double *d_o, double log_sum, int64_t t, int64_t h, const gradients *d) {
    const dr_attention *a = s->attention;
    const int64_t position = t - s->begin, key_head = h / (a->heads / a->key_heads), at = t * a->heads + h;
    const double *query = q + at * a->key_size, *d_out = d_o + at * a->value_size;
    const double along = dot(a->value_size, d_out, o + at * a->value_size);
    for (int64_t j = first_seen(a, position); j <= position; j++) {
        const int64_t to = (s->begin + j) * a->key_heads + key_head;
        const double *key = k + to * a->key_size, *value = v + to * a->value_size;
        const double p = exp(a->scale * dot(a->key_size, query, key) - log_sum);
        const double d_score = a->scale * p * (dot(a->value_size, d_out, value) - along);
        if (d->q) add(a->key_size, d_score, key, d->q + at * a->key_size);
        if (d->k) add(a->key_size, d_score, query, d->k + to * a->key_size);
        if (d->v) add(a->value_size, p, d_out, d->v + to * a->value_size);
    }
}

dr_status dr_reference_attention_backward(dr_backend *backend, const dr_attention *attention, const void *q, const void *k,
                                          const void *v, const void *o, const void *log_sums, const void *d_o, void *d_q,
                                          void *d_k, void *d_v) {
    (void)backend;
    const int64_t rows = attention->layout.rows, heads = attention->heads, key_heads = attention->key_heads;
    const gradients d = {d_q, d_k, d_v};
    if (d_q) memset(d_q, 0, (size_t)(rows * heads * attention->key_size) * sizeof(double));
    if (d_k) memset(d_k, 0, (size_t)(rows * key_heads * attention->key_size) * sizeof(double));
    if (d_v) memset(d_v, 0, (size_t)(rows * key_heads * attention->value_size) * sizeof(double));
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        const sequence s = sequence_at(attention, NULL, i);
        const int64_t end = dr_layout_begin(&attention->layout, i + 1);
        for (int64_t t = s.begin; t < end; t++)
            for (int64_t h = 0; h < heads; h++)
                add_gradients(&s, q, k, v, o, d_o, ((const double *)log_sums)[t * heads + h], t, h, &d);
    }
    return DR_OK;
}

/* Keys and values are moved as they are stored. */
dr_status dr_reference_attention_append(dr_backend *backend, const dr_attention *attention, const void *k, const void *v,
                                        const dr_attention_memory *memory) {
    const size_t key = dr_kind_bytes(backend, DR_VECTOR, attention->key_heads * attention->key_size);
    const size_t value = dr_kind_bytes(backend, DR_VECTOR, attention->key_heads * attention->value_size);
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        const sequence s = sequence_at(attention, memory, i);
        const int64_t length = dr_layout_begin(&attention->layout, i + 1) - s.begin;
        for (int64_t t = length > memory->capacity ? length - memory->capacity : 0; t < length; t++) {
            const size_t to = (size_t)(s.slot * memory->capacity + (s.past + t) % memory->capacity);
            const size_t from = (size_t)(s.begin + t);
            memcpy((char *)memory->keys + to * key, (const char *)k + from * key, key);
            memcpy((char *)memory->values + to * value, (const char *)v + from * value, value);
        }
    }
    return DR_OK;
}
