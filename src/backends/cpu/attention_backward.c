/* Softmax attention, backward: blocks of weights p are made again from queries, keys and the saved logarithms of the sums
 * (backends/reference/attention.c has the formulas); what a pair of a block of queries and a block of keys adds to d_q, d_k and
 * d_v are products.
 *
 * A key head of a sequence is one task that meets each pair once, five products; or, where there are too few such tasks for the
 * threads, d_q is made by blocks of queries and then d_k and d_v by blocks of keys, seven products. A gradient gets the same
 * terms in the same order either way: d_q of keys from first to last, d_k and d_v of queries from first to last. */
#include "backends/cpu/attention.h"

#include "backends/cpu/operations.h"
#include "base/error.h"

#include <omp.h>
#include <string.h>

typedef struct {
    const dr_cpu_kernels *kernels;
    const dr_attention *attention;
    dr_cpu_attention_cut cut;
    const float *q, *k, *v, *o, *log_sums, *d_o;
    float *d_q, *d_k, *d_v; /* each may be NULL */
} call;

typedef struct {
    float *q, *d_o, *o, *d_q; /* [rows, key_size] or [rows, value_size]; q and d_q times the scale */
    float *p, *d_s;           /* [rows, DR_CPU_ATTENTION_KEYS] */
    float *log_sums, *along;  /* [rows] */
    float *product;           /* [DR_CPU_PRODUCT_SPACE] */
} workspace;

static int64_t workspace_floats(const dr_attention *attention, int64_t rows) {
    const int64_t sizes = 2 * (attention->key_size + attention->value_size);
    return (DR_CPU_PRODUCT_SPACE + rows * (sizes + 2 * DR_CPU_ATTENTION_KEYS + 2) + 15) / 16 * 16;
}

static workspace workspace_in(const dr_attention *attention, int64_t rows, float *at) {
    workspace w;
    w.product = at;
    w.q = w.product + DR_CPU_PRODUCT_SPACE;
    w.d_q = w.q + rows * attention->key_size;
    w.d_o = w.d_q + rows * attention->key_size;
    w.o = w.d_o + rows * attention->value_size;
    w.p = w.o + rows * attention->value_size;
    w.d_s = w.p + rows * DR_CPU_ATTENTION_KEYS;
    w.log_sums = w.d_s + rows * DR_CPU_ATTENTION_KEYS;
    w.along = w.log_sums + rows;
    return w;
}

/* A block of queries of the task's head: tokens `first` .. first + tokens - 1 of the sequence. */
typedef struct {
    int64_t first, tokens, rows;
} queries;

static queries queries_at(const call *c, int64_t length, int64_t block) {
    const int64_t first = block * c->cut.tokens, left = length - first;
    const int64_t tokens = left < c->cut.tokens ? left : c->cut.tokens;
    return (queries){first, tokens, tokens * c->cut.group};
}

/* What all pairs of a block of queries need. */
static void load(const call *c, const dr_cpu_attention_task *task, queries block, const workspace *w) {
    const dr_attention *a = c->attention;
    const int64_t first = task->begin + block.first, size = a->value_size;
    dr_cpu_attention_load(a, task->key_head, first, block.tokens, a->key_size, (float)a->scale, c->q, w->q);
    dr_cpu_attention_load(a, task->key_head, first, block.tokens, size, 1, c->d_o, w->d_o);
    dr_cpu_attention_load(a, task->key_head, first, block.tokens, size, 1, c->o, w->o);
    dr_cpu_attention_load(a, task->key_head, first, block.tokens, 1, 1, c->log_sums, w->log_sums);
    for (int64_t i = 0; i < block.rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < size; j++) sum += (double)w->d_o[i * size + j] * (double)w->o[i * size + j];
        w->along[i] = (float)sum;
    }
}

/* to [columns] rows to_row apart += weights^T [columns, rows] x [rows, size] */
static void add_columns(const call *c, const dr_cpu_scores *s, const float *weights, int64_t size, const float *x, float *to,
                        int64_t to_row, float *space) {
    const dr_cpu_product p = {.m = s->columns,
                              .n = size,
                              .k = s->rows,
                              .a = weights,
                              .a_row = 1,
                              .a_step = DR_CPU_ATTENTION_KEYS,
                              .b = x,
                              .b_step = size,
                              .b_column = 1,
                              .c = to,
                              .c_row = to_row,
                              .accumulate = true,
                              .space = space};
    c->kernels->product(&p, 0, p.m, 0, p.n);
}

/* d_q of the block of queries += scale d_s keys */
static void add_to_queries(const call *c, const dr_cpu_attention_task *task, queries block, const dr_cpu_scores *s,
                           const float *keys, const workspace *w) {
    const dr_attention *a = c->attention;
    const int64_t size = a->key_size, group = c->cut.group;
    const dr_cpu_product p = {.m = s->rows,
                              .n = size,
                              .k = s->columns,
                              .a = w->d_s,
                              .a_row = DR_CPU_ATTENTION_KEYS,
                              .a_step = 1,
                              .b = keys,
                              .b_step = a->key_heads * size,
                              .b_column = 1,
                              .c = w->d_q,
                              .c_row = size,
                              .space = w->product};
    c->kernels->product(&p, 0, p.m, 0, p.n);
    for (int64_t t = 0; t < block.tokens; t++) {
        float *to = c->d_q + ((task->begin + block.first + t) * a->heads + task->key_head * group) * size;
        c->kernels->add(group * size, (float)a->scale, w->d_q + t * group * size, to);
    }
}

/* A loaded block of queries meets the block of keys from token `from` on. */
static void meet(const call *c, const dr_cpu_attention_task *task, queries block, int64_t from, bool to_queries, bool to_keys,
                 const workspace *w) {
    const dr_attention *a = c->attention;
    const int64_t k_row = a->key_heads * a->key_size, v_row = a->key_heads * a->value_size;
    const int64_t k_at = (task->begin + from) * k_row + task->key_head * a->key_size;
    const int64_t v_at = (task->begin + from) * v_row + task->key_head * a->value_size;
    int64_t columns = block.first + block.tokens - from; /* that the last query sees */
    if (columns > DR_CPU_ATTENTION_KEYS) columns = DR_CPU_ATTENTION_KEYS;
    dr_cpu_scores s = {block.rows, columns, c->cut.group, block.first - from, a->window, w->d_s};
    dr_cpu_attention_scores(c->kernels, &s, a->value_size, w->d_o, c->v + v_at, v_row, w->product);
    s.scores = w->p;
    dr_cpu_attention_scores(c->kernels, &s, a->key_size, w->q, c->k + k_at, k_row, w->product);
    c->kernels->attention_gradient(&s, w->log_sums, w->along, w->d_s);
    if (to_queries) add_to_queries(c, task, block, &s, c->k + k_at, w);
    if (to_keys && c->d_v) add_columns(c, &s, w->p, a->value_size, w->d_o, c->d_v + v_at, v_row, w->product);
    if (to_keys && c->d_k) add_columns(c, &s, w->d_s, a->key_size, w->q, c->d_k + k_at, k_row, w->product);
}

/* The block of keys with number `block` meets all queries that see some of it. */
static void meet_keys(const call *c, const dr_cpu_attention_task *task, int64_t block, bool to_queries, bool to_keys,
                      const workspace *w) {
    const dr_attention *a = c->attention;
    const int64_t from = block * DR_CPU_ATTENTION_KEYS;
    int64_t to = from + DR_CPU_ATTENTION_KEYS, last = task->length - 1;
    if (to > task->length) to = task->length;
    if (a->window > 0 && last > to - 1 + a->window - 1) last = to - 1 + a->window - 1;
    for (int64_t i = from / c->cut.tokens; i * c->cut.tokens <= last; i++) {
        const queries seeing = queries_at(c, task->length, i);
        load(c, task, seeing, w);
        meet(c, task, seeing, from, to_queries, to_keys, w);
    }
}

/* A block of queries meets all keys that it sees some of. */
static void meet_queries(const call *c, const dr_cpu_attention_task *task, const workspace *w) {
    const queries seeing = queries_at(c, task->length, task->block);
    const int64_t seen = dr_cpu_attention_first(c->attention, seeing.first);
    load(c, task, seeing, w);
    for (int64_t from = seen / DR_CPU_ATTENTION_KEYS * DR_CPU_ATTENTION_KEYS; from < seeing.first + seeing.tokens;
         from += DR_CPU_ATTENTION_KEYS)
        meet(c, task, seeing, from, true, false, w);
}

typedef enum { WHOLE_HEADS, BLOCKS_OF_QUERIES, BLOCKS_OF_KEYS } pass;

static int64_t block_of(const call *c, pass way) {
    switch (way) {
    case WHOLE_HEADS:
        return INT64_MAX / 2; /* more than any sequence has */
    case BLOCKS_OF_QUERIES:
        return c->cut.tokens;
    case BLOCKS_OF_KEYS:
        break;
    }
    return DR_CPU_ATTENTION_KEYS;
}

static void run_task(const call *c, pass way, const dr_cpu_attention_task *task, const workspace *w) {
    switch (way) {
    case WHOLE_HEADS:
        for (int64_t block = 0; block * DR_CPU_ATTENTION_KEYS < task->length; block++)
            meet_keys(c, task, block, c->d_q, true, w);
        break;
    case BLOCKS_OF_QUERIES:
        meet_queries(c, task, w);
        break;
    case BLOCKS_OF_KEYS:
        meet_keys(c, task, task->block, false, true, w);
        break;
    }
}

static void run(const call *c, pass way, int team, int64_t rows, dr_cpu_scratch *scratch) {
    const int64_t each = workspace_floats(c->attention, rows), block = block_of(c, way);
    float *const memory = (float *)scratch->memory;
    int64_t *const ends = (int64_t *)(void *)(memory + team * each);
    const int64_t tasks = dr_cpu_attention_tasks(c->attention, block, ends);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t i = 0; i < tasks; i++) {
        const dr_cpu_attention_task task = dr_cpu_attention_task_at(c->attention, block, ends, i);
        const workspace w = workspace_in(c->attention, rows, memory + omp_get_thread_num() * each);
        run_task(c, way, &task, &w);
    }
}

/* Whether whole heads keep the threads busy enough: the other way costs 7 products for 5. */
static bool heads_suffice(const dr_attention *attention, int team) {
    const int64_t heads = attention->layout.sequences * attention->key_heads;
    return (heads + team - 1) / team * team * 5 <= heads * 7;
}

dr_status dr_cpu_attention_backward(dr_backend *backend, const dr_attention *attention, const void *q, const void *k,
                                    const void *v, const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k,
                                    void *d_v) {
    const call c = {
        dr_cpu_kernels_of(backend), attention, dr_cpu_attention_cut_of(attention), q, k, v, o, log_sums, d_o, d_q, d_k, d_v};
    const int64_t rows_of_call = attention->layout.rows, key = attention->key_size, value = attention->value_size;
    const int team = dr_cpu_attention_work(attention, NULL) < DR_CPU_ATTENTION_GRAIN ? 1 : dr_cpu_team(backend->threads);
    int64_t rows = c.cut.rows; /* of the largest block */
    if (rows > rows_of_call * c.cut.group) rows = rows_of_call * c.cut.group;
    if (d_q) memset(d_q, 0, (size_t)(rows_of_call * attention->heads * key) * sizeof(float));
    if (d_k) memset(d_k, 0, (size_t)(rows_of_call * attention->key_heads * key) * sizeof(float));
    if (d_v) memset(d_v, 0, (size_t)(rows_of_call * attention->key_heads * value) * sizeof(float));
    dr_cpu_scratch *scratch;
    const size_t bytes = (size_t)(team * workspace_floats(attention, rows)) * sizeof(float);
    DR_TRY(dr_cpu_scratch_take(backend, bytes + (size_t)attention->layout.sequences * sizeof(int64_t), &scratch));
    const bool to_keys = d_k || d_v;
    if (to_keys && d_q && heads_suffice(attention, team)) {
        run(&c, WHOLE_HEADS, team, rows, scratch);
    } else {
        if (d_q) run(&c, BLOCKS_OF_QUERIES, team, rows, scratch);
        if (to_keys) run(&c, BLOCKS_OF_KEYS, team, rows, scratch);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}
