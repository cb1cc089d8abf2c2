/* Softmax attention, forward: blocks of queries go past blocks of keys, so that no more than DR_CPU_ATTENTION_KEYS scores of a
 * row are ever there; maximum and sum of a row go on from block to block (Milakov and Gimelshein 2018; Dao et al. 2022).
 *
 * The heads that share a key head make one block of rows, so that keys are read once for all of them. Blocks of keys begin at
 * multiples of their size, counted from the sequence's start, and are cut to what the block of queries sees: a query gets the
 * same bits wherever it stands in a call, so that decoding with memory gives those of the whole sequence at once. Keys are read
 * where they lie if they lie together, else copied: where the ring of memory begins anew, between memory and the call's own
 * rows, and at the end of a sequence, where zero keys make the columns a multiple of the product's tiles. */
#include "backends/cpu/attention.h"

#include "backends/cpu/operations.h"
#include "base/error.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- how a call is cut ----------------------------------------------------------------------------------------------- */

double dr_cpu_attention_work(const dr_attention *attention, const dr_attention_memory *memory) {
    double keys = 0; /* seen, of all queries */
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        const int64_t length = dr_layout_begin(&attention->layout, i + 1) - dr_layout_begin(&attention->layout, i);
        double most = (double)length / 2 + (memory && memory->past ? (double)memory->past[i] : 0);
        if (attention->window > 0 && most > (double)attention->window) most = (double)attention->window;
        keys += (double)length * most;
    }
    return keys * (double)attention->heads * (double)(attention->key_size + attention->value_size);
}

int64_t dr_cpu_attention_tasks(const dr_attention *attention, int64_t block, int64_t *ends) {
    int64_t tasks = 0;
    for (int64_t i = 0; i < attention->layout.sequences; i++) {
        const int64_t length = dr_layout_begin(&attention->layout, i + 1) - dr_layout_begin(&attention->layout, i);
        tasks += dr_cpu_attention_blocks(length, block) * attention->key_heads;
        ends[i] = tasks;
    }
    return tasks;
}

dr_cpu_attention_task dr_cpu_attention_task_at(const dr_attention *attention, int64_t block, const int64_t *ends,
                                               int64_t task) {
    int64_t low = 0, high = attention->layout.sequences - 1; /* the first sequence that ends behind the task */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (ends[middle] > task)
            high = middle;
        else
            low = middle + 1;
    }
    const int64_t begin = dr_layout_begin(&attention->layout, low), end = dr_layout_begin(&attention->layout, low + 1);
    const int64_t blocks = dr_cpu_attention_blocks(end - begin, block), within = task - (low > 0 ? ends[low - 1] : 0);
    return (dr_cpu_attention_task){.sequence = low,
                                   .key_head = within / blocks,
                                   .block = blocks - 1 - within % blocks,
                                   .begin = begin,
                                   .length = end - begin};
}

void dr_cpu_attention_load(const dr_attention *attention, int64_t key_head, int64_t first, int64_t tokens, int64_t size,
                           float factor, const float *x, float *to) {
    const int64_t group = attention->heads / attention->key_heads;
    for (int64_t t = 0; t < tokens; t++) {
        const float *from = x + ((first + t) * attention->heads + key_head * group) * size;
        for (int64_t i = 0; i < group * size; i++) to[t * group * size + i] = factor * from[i];
    }
}

void dr_cpu_attention_scores(const dr_cpu_kernels *kernels, const dr_cpu_scores *scores, int64_t size, const float *q,
                             const float *k, int64_t k_row, float *space) {
    const dr_cpu_product p = {.m = scores->rows,
                              .n = scores->columns,
                              .k = size,
                              .a = q,
                              .a_row = size,
                              .a_step = 1,
                              .b = k,
                              .b_step = 1,
                              .b_column = k_row,
                              .c = scores->scores,
                              .c_row = DR_CPU_ATTENTION_KEYS,
                              .space = space};
    kernels->product(&p, 0, p.m, 0, p.n);
}

/* ---- where keys and values lie --------------------------------------------------------------------------------------- */

/* Keys, or values, of one head of one sequence by position. */
typedef struct {
    int64_t past, capacity, size, row; /* row: from one token to the next */
    const float *own;                  /* of the call's first token, whose position is past */
    const float *remembered;           /* of the first place of the slot */
} store;

static store store_of(const dr_attention *attention, const dr_attention_memory *memory, const dr_cpu_attention_task *task,
                      int64_t size, const float *own, const float *remembered) {
    const int64_t row = attention->key_heads * size, head = task->key_head * size;
    store s = {.capacity = 1, .size = size, .row = row, .own = own + task->begin * row + head};
    if (!memory) return s;
    s.past = memory->past ? memory->past[task->sequence] : 0;
    s.capacity = memory->capacity;
    s.remembered = remembered + (memory->slot ? memory->slot[task->sequence] : task->sequence) * memory->capacity * row + head;
    return s;
}

static const float *row_at(const store *s, int64_t position) {
    return position >= s->past ? s->own + (position - s->past) * s->row : s->remembered + position % s->capacity * s->row;
}

/* The rows of positions first .. first + count - 1, and zero ones up to `padded`, *row apart: where they lie, or in copy. */
static const float *rows_at(const store *s, int64_t first, int64_t count, int64_t padded, float *copy, int64_t *row) {
    const bool own = first >= s->past;
    const bool together = own || (first + count <= s->past && first % s->capacity + count <= s->capacity);
    if (together && padded == count) {
        *row = s->row;
        return row_at(s, first);
    }
    const size_t bytes = (size_t)s->size * sizeof *copy;
    for (int64_t i = 0; i < count; i++) memcpy(copy + i * s->size, row_at(s, first + i), bytes);
    memset(copy + count * s->size, 0, (size_t)(padded - count) * bytes);
    *row = s->size;
    return copy;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* A call, and what a thread works in. */
typedef struct {
    const dr_cpu_kernels *kernels;
    const dr_attention *attention;
    const dr_attention_memory *memory;
    dr_cpu_attention_cut cut;
    const float *q, *k, *v;
    float *o, *log_sums;
} call;

typedef struct {
    float *q, *o, *scores;           /* [rows, key_size], [rows, value_size], [rows, DR_CPU_ATTENTION_KEYS] */
    float *largest, *sum, *log_sums; /* [rows] */
    float *keys, *values, *product;  /* [DR_CPU_ATTENTION_KEYS] rows; [DR_CPU_PRODUCT_SPACE] */
} workspace;

static int64_t workspace_floats(const dr_attention *attention, int64_t rows) {
    const int64_t sizes = attention->key_size + attention->value_size, keys = DR_CPU_ATTENTION_KEYS;
    return (DR_CPU_PRODUCT_SPACE + rows * (sizes + keys + 3) + keys * sizes + 15) / 16 * 16;
}

static workspace workspace_in(const dr_attention *attention, int64_t rows, float *at) {
    const int64_t key = attention->key_size, value = attention->value_size, keys = DR_CPU_ATTENTION_KEYS;
    workspace space, *w = &space;
    w->product = at;
    w->q = w->product + DR_CPU_PRODUCT_SPACE;
    w->o = w->q + rows * key;
    w->scores = w->o + rows * value;
    w->keys = w->scores + rows * keys;
    w->values = w->keys + keys * key;
    w->largest = w->values + keys * value;
    w->sum = w->largest + rows;
    w->log_sums = w->sum + rows;
    return space;
}

/* o += weights values. Values that are not finite are kept from rows that do not see them. The product adds up a single column
 * in another order than attention_mix, so values of size 1 always take the latter. */
static void mix(const call *c, const dr_cpu_scores *scores, const float *values, int64_t row, const workspace *w) {
    const int64_t size = c->attention->value_size, last = scores->first + (scores->rows - 1) / scores->group;
    const bool all_seen = scores->first + 1 >= scores->columns && (scores->window == 0 || last < scores->window);
    if (scores->rows <= DR_CPU_ATTENTION_FEW || size == 1 ||
        (!all_seen && !c->kernels->attention_finite(scores->columns, size, values, row))) {
        c->kernels->attention_mix(scores, values, row, size, w->o);
        return;
    }
    const dr_cpu_product p = {.m = scores->rows,
                              .n = size,
                              .k = scores->columns,
                              .a = scores->scores,
                              .a_row = DR_CPU_ATTENTION_KEYS,
                              .a_step = 1,
                              .b = values,
                              .b_step = row,
                              .b_column = 1,
                              .c = w->o,
                              .c_row = size,
                              .accumulate = true,
                              .space = w->product};
    c->kernels->product(&p, 0, p.m, 0, p.n);
}

/* One block of queries of one head. */
static void attend(const call *c, const dr_cpu_attention_task *task, const workspace *w) {
    const dr_attention *a = c->attention;
    const dr_attention_memory *memory = c->memory;
    const int64_t first = task->block * c->cut.tokens, left = task->length - first, group = c->cut.group;
    const int64_t tokens = left < c->cut.tokens ? left : c->cut.tokens, rows = tokens * group;
    const store keys = store_of(a, memory, task, a->key_size, c->k, memory ? memory->keys : NULL);
    const store values = store_of(a, memory, task, a->value_size, c->v, memory ? memory->values : NULL);
    const int64_t position = keys.past + first, end = position + tokens;
    const int64_t seen = dr_cpu_attention_first(a, position) / DR_CPU_ATTENTION_STEP * DR_CPU_ATTENTION_STEP;
    dr_cpu_attention_load(a, task->key_head, task->begin + first, tokens, a->key_size, (float)a->scale, c->q, w->q);
    memset(w->o, 0, (size_t)(rows * a->value_size) * sizeof *w->o);
    for (int64_t i = 0; i < rows; i++) w->largest[i] = -INFINITY, w->sum[i] = 0;
    for (int64_t from = seen; from < end;) {
        int64_t to = (from / DR_CPU_ATTENTION_KEYS + 1) * DR_CPU_ATTENTION_KEYS, k_row, v_row;
        if (to > end) to = end;
        const int64_t padded = dr_cpu_attention_blocks(to - from, DR_CPU_ATTENTION_STEP) * DR_CPU_ATTENTION_STEP;
        const dr_cpu_scores scores = {rows, padded, group, position - from, a->window, w->scores};
        const float *k = rows_at(&keys, from, to - from, padded, w->keys, &k_row);
        dr_cpu_attention_scores(c->kernels, &scores, a->key_size, w->q, k, k_row, w->product);
        c->kernels->attention_softmax(&scores, w->largest, w->sum, a->value_size, w->o);
        const float *v = rows_at(&values, from, to - from, padded, w->values, &v_row);
        mix(c, &scores, v, v_row, w);
        from = to;
    }
    c->kernels->attention_finish(rows, a->value_size, w->largest, w->sum, w->o, w->log_sums);
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t at = (task->begin + first + t) * a->heads + task->key_head * group;
        memcpy(c->o + at * a->value_size, w->o + t * group * a->value_size, (size_t)(group * a->value_size) * sizeof *c->o);
        if (c->log_sums) memcpy(c->log_sums + at, w->log_sums + t * group, (size_t)group * sizeof *c->log_sums);
    }
}

dr_status dr_cpu_attention_forward(dr_backend *backend, const dr_attention *attention, const void *q, const void *k,
                                   const void *v, const dr_attention_memory *memory, void *o, void *log_sums) {
    const call c = {.kernels = dr_cpu_kernels_of(backend),
                    .attention = attention,
                    .memory = memory,
                    .cut = dr_cpu_attention_cut_of(attention),
                    .q = q,
                    .k = k,
                    .v = v,
                    .o = o,
                    .log_sums = log_sums};
    const int64_t sequences = attention->layout.sequences;
    const int team = dr_cpu_attention_work(attention, memory) < DR_CPU_ATTENTION_GRAIN ? 1 : dr_cpu_team(backend->threads);
    int64_t rows = c.cut.rows; /* of the largest block */
    if (rows > attention->layout.rows * c.cut.group) rows = attention->layout.rows * c.cut.group;
    const int64_t each = workspace_floats(attention, rows);
    dr_cpu_scratch *scratch;
    DR_TRY(dr_cpu_scratch_take(backend, (size_t)(team * each) * sizeof(float) + (size_t)sequences * sizeof(int64_t), &scratch));
    float *const memory_of_threads = (float *)scratch->memory;
    int64_t *const ends = (int64_t *)(void *)(memory_of_threads + team * each);
    const int64_t tasks = dr_cpu_attention_tasks(attention, c.cut.tokens, ends);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t i = 0; i < tasks; i++) {
        const dr_cpu_attention_task task = dr_cpu_attention_task_at(attention, c.cut.tokens, ends, i);
        const workspace w = workspace_in(attention, rows, memory_of_threads + omp_get_thread_num() * each);
        attend(&c, &task, &w);
    }
    dr_cpu_scratch_give(backend, scratch);
    return DR_OK;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* The tokens of one sequence that stay; a ring that begins anew is two copies. */
static void append(const float *own, int64_t row, int64_t first, int64_t count, int64_t capacity, float *slot) {
    while (count > 0) {
        const int64_t place = first % capacity, together = count < capacity - place ? count : capacity - place;
        memcpy(slot + place * row, own, (size_t)(together * row) * sizeof *own);
        own += together * row;
        first += together;
        count -= together;
    }
}

dr_status dr_cpu_attention_append(dr_backend *backend, const dr_attention *attention, const void *k, const void *v,
                                  const dr_attention_memory *memory) {
    const int64_t key = attention->key_heads * attention->key_size, value = attention->key_heads * attention->value_size;
    const int64_t sequences = attention->layout.sequences, capacity = memory->capacity;
#pragma omp parallel for schedule(static) num_threads(dr_cpu_threads(backend, sequences, attention->layout.rows *(key + value)))
    for (int64_t i = 0; i < sequences; i++) {
        const int64_t begin = dr_layout_begin(&attention->layout, i), slot = memory->slot ? memory->slot[i] : i;
        const int64_t length = dr_layout_begin(&attention->layout, i + 1) - begin;
        const int64_t skipped = length > capacity ? length - capacity : 0;
        const int64_t first = (memory->past ? memory->past[i] : 0) + skipped;
        append((const float *)k + (begin + skipped) * key, key, first, length - skipped, capacity,
               (float *)memory->keys + slot * capacity * key);
        append((const float *)v + (begin + skipped) * value, value, first, length - skipped, capacity,
               (float *)memory->values + slot * capacity * value);
    }
    return DR_OK;
}
