/* What softmax attention is asked for, and the memory of keys and values that decoding reads.
 *
 *     o_i = sum_j p_ij v_j,   p_ij = exp(scale q_i . k_j - l_i),   l_i = ln sum_j exp(scale q_i . k_j)
 *
 * over the keys that query i may see: those of its own sequence with j <= i, and i - window < j where there is a window. i and
 * j are positions, which count the tokens of a sequence from 0. Query head h reads key head h / (heads / key_heads). */
#ifndef DR_OPS_ATTENTION_H
#define DR_OPS_ATTENTION_H

#include <deltarule/tensor.h>

typedef struct {
    dr_layout layout;             /* of the tokens that a call brings */
    int64_t heads, key_heads;     /* heads is a multiple of key_heads */
    int64_t key_size, value_size; /* of a head; they may differ */
    double scale;                 /* of the scores */
    int64_t window;               /* keys that a query sees, its own among them; 0: all */
} dr_attention;

/* Keys and values of tokens before a call's, by slots of `capacity` tokens: that of position p lies at p % capacity of its
 * sequence's slot, so that a slot is a ring. A sequence must find there what it may see: its whole past, or with a window the
 * last window - 1 tokens of it. keys [slots, capacity, key_heads, key_size] and values [slots, capacity, key_heads, value_size]
 * are vectors. */
typedef struct {
    int64_t capacity;
    const int64_t *past; /* [sequences] tokens before the call's; NULL: none. The first token of a call has position past */
    const int64_t *slot; /* [sequences], no two alike; NULL: sequence s has slot s */
    void *keys, *values;
} dr_attention_memory;

#endif
