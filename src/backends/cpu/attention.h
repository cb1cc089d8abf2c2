/* What the forward and the backward of softmax attention share: how a call is cut into blocks, and where a block's keys lie. */
#ifndef DR_CPU_ATTENTION_H
#define DR_CPU_ATTENTION_H

#include "backends/cpu/kernels.h"

enum {
    DR_CPU_ATTENTION_ROWS = 128,     /* rows of a block of queries, unless one token has more */
    DR_CPU_ATTENTION_FEW = 8,        /* rows for which values are read in place rather than copied for a product */
    DR_CPU_ATTENTION_STEP = 32,      /* columns are a multiple of it in the forward, as the product's tiles on every isa */
    DR_CPU_ATTENTION_GRAIN = 1 << 18 /* multiplications below which another thread costs more than it saves */
};

/* How queries are cut: `tokens` tokens of the `group` heads that share a key head make a block of rows, token by token. */
typedef struct {
    int64_t group, tokens, rows; /* rows = tokens group */
} dr_cpu_attention_cut;

static inline dr_cpu_attention_cut dr_cpu_attention_cut_of(const dr_attention *attention) {
    const int64_t group = attention->heads / attention->key_heads;
    const int64_t tokens = group < DR_CPU_ATTENTION_ROWS ? DR_CPU_ATTENTION_ROWS / group : 1;
    return (dr_cpu_attention_cut){group, tokens, tokens * group};
}

static inline int64_t dr_cpu_attention_blocks(int64_t tokens, int64_t block) {
    return (tokens + block - 1) / block;
}

/* The first position that a query at `position` sees. */
static inline int64_t dr_cpu_attention_first(const dr_attention *attention, int64_t position) {
    return attention->window > 0 && position >= attention->window ? position - attention->window + 1 : 0;
}

/* Products with a call's heads, in double since they may be many. */
double dr_cpu_attention_work(const dr_attention *attention, const dr_attention_memory *memory);

/* Tasks of a call: for each sequence, one for each key head and block of `block` tokens. ends [sequences] gets the number of
 * tasks up to the end of each sequence; returns that of all. */
int64_t dr_cpu_attention_tasks(const dr_attention *attention, int64_t block, int64_t *ends);

typedef struct {
    int64_t sequence, key_head, block; /* of all tasks, a head's last block comes first: it sees most keys */
    int64_t begin, length;             /* rows of the sequence in this call */
} dr_cpu_attention_task;

dr_cpu_attention_task dr_cpu_attention_task_at(const dr_attention *attention, int64_t block, const int64_t *ends, int64_t task);

/* to [tokens group, size] = factor times the heads of a key head in x [rows, heads, size], from row `first` on */
void dr_cpu_attention_load(const dr_attention *attention, int64_t key_head, int64_t first, int64_t tokens, int64_t size,
                           float factor, const float *x, float *to);

/* scores [rows, columns] = q [rows, size] k^T, k [columns] rows k_row apart; for the scores' gradient o and v likewise */
void dr_cpu_attention_scores(const dr_cpu_kernels *kernels, const dr_cpu_scores *scores, int64_t size, const float *q,
                             const float *k, int64_t k_row, float *space);

#endif
