/* The contract of every operation that a backend offers: one table of functions, filled by each backend in its own file of the
 * same name (backends/reference/conv.c, backends/cpu/conv.c). No arithmetic here.
 *
 * Conventions. Pointers are to dense row-major tensors in the backend's memory; the shape stands beside each. So do token ids,
 * labels, positions, boundaries, losses and what the optimizer decides lie there: the host reads numbers with get, and only
 * when it wants them. Descriptors themselves are the host's. Each is a vector or a number (ops/kind.h): activations, the
 * weights of linear, grouped_linear and embedding are vectors, and what is a number is said at the operation. A gradient is of
 * the kind of what it is the gradient of, but that of a parameter, which is a number always. An operation computes in the
 * backend's own type, and rounds a vector that it writes once, to the nearest; where it adds to one, it rounds the sum. rows
 * counts tokens. A gradient "d_x" is overwritten unless its comment says "added to"; gradients of parameters are always added
 * to. NULL gradients are not computed. Descriptors were checked by whoever made them (ops/shapes.c for the recurrence, the
 * model for the rest). Results are the same bits for any number of threads; a token's result does not depend on which other
 * tokens are in the call (linear: up to the padding of its fixed row blocks), so packed equals separate. */
#ifndef DR_OPS_OPERATIONS_H
#define DR_OPS_OPERATIONS_H

#include "ops/attention.h"
#include "ops/experts.h"
#include "ops/function.h"
#include "ops/kind.h"
#include "ops/plan.h"
#include "ops/rotary.h"

/* Several layers of one x whose weights lie one behind the other are one, [out, in], and y is a *panel*: rows of all their
 * columns. members: how many; columns: of each, out in all. No columns change their bits by standing in a panel. 0: one layer.
 * Operations that take a panel's columns have the distance of its rows in their descriptor, 0 where rows are dense. */
typedef struct {
    int64_t rows, in, out;
    int members;
    const int64_t *columns; /* [members] */
    const void *plus;       /* [rows, out], added to y before that is rounded; not y itself. NULL: nothing */
    int64_t x_row;          /* elements from a row of x, and of its gradient, to the next; 0: in */
    bool computed;          /* weight is what another operation has made, not parameters */
} dr_linear;

/* y[r, g, :] = weight[g] x[r, g, :], one matrix a group (head) */
typedef struct {
    int64_t rows, groups, in, out;
    int64_t x_row; /* as above; 0: groups in */
} dr_grouped_linear;

typedef enum { DR_ACTIVATION_NONE, DR_ACTIVATION_SILU, DR_ACTIVATION_SIGMOID } dr_activation;

/* y = x rsqrt(mean x^2 + eps) weight, times activation(gate) if there is one: after the norm, or (gate_first) x is multiplied
 * by it before. weight is [dim], shared by all rows; or [groups, dim], and vector r has that of group r % groups, rows
 * being a multiple of groups. It counts as weight + weight_offset: 1 where parameters are kept about zero. */
typedef struct {
    int64_t rows, dim;
    double eps;
    dr_activation gate;
    bool gate_first;
    int64_t groups; /* 0 is 1 */
    double weight_offset;
    /* Elements from a row of a panel to the next, of which the gate is `gate_vectors` vectors, and whose gradient is likewise;
     * 0: the gate is dense. Not with groups. */
    int64_t gate_row, gate_vectors;
} dr_rms_norm;

/* y = (x - mean x) / sqrt(mean (x - mean x)^2 + eps) weight + bias, x [rows, groups, dim], weight and bias [groups, dim]: of a
 * whole row with one group, of each head with several */
typedef struct {
    int64_t rows, groups, dim;
    double eps;
} dr_layer_norm;

/* y = x / sqrt(sum x^2 + eps) for each of rows vectors of length dim */
typedef struct {
    int64_t rows, dim;
    double eps;
} dr_l2_norm;

/* Of conv and rotary: cu_seqlens of layout lies in the backend's memory.
 *
 * Depthwise causal convolution, then the activation:
 * y[t, c] = act(bias[c] + sum_{w < width} weight[c, w] x[t - width + 1 + w, c]), x before a sequence's start from the state. */
typedef struct {
    dr_layout layout;
    int64_t channels, width;
    dr_activation activation;
    int64_t x_row; /* elements from a row of x, and of its gradient, to the next; 0: channels */
    int64_t unit;  /* vectors of so many channels of y are divided by sqrt(their sum of squares + eps); 0: they are not */
    double eps;
} dr_conv;

/* Maps of a projection x [rows, heads, dim] to what a rule reads. A_log is [heads], or [heads, dim] if a_log_per_channel;
 * bias is [heads, dim] (dt_bias, or the learned bias of lambda), NULL: zero. u = x + shift + bias. */
typedef enum {
    DR_GATE_SIGMOID,     /* y = multiplier sigmoid(u) */
    DR_GATE_SOFTPLUS,    /* y = softplus(u), at least lower_bound and at most upper_bound; 0: no bound */
    DR_GATE_LOG_DECAY,   /* y = -exp(A_log) softplus(u), the softplus within the same bounds */
    DR_GATE_KDA_BOUNDED, /* y = lower_bound sigmoid(exp(A_log) u) */
    DR_GATE_EDA_BOUNDED, /* y = l - l exp(-(exp(A_log)/|l|) softplus(u)), l = lower_bound */
    DR_GATE_LOG_SIGMOID, /* y = multiplier logsigmoid(u): gla has 1/16 */
    DR_GATE_SILU,        /* y = silu(u) */
    DR_GATE_IDENTITY,    /* y = u: from one kind to the other */
} dr_gate_kind;
typedef struct {
    dr_gate_kind kind;
    int64_t rows, heads, dim;
    double multiplier, shift, lower_bound, upper_bound;
    bool a_log_per_channel;
    dr_kind from, to; /* of x and y: a projection is a vector and a parameter a number; y is of the kind of what reads it */
    int64_t x_row;    /* elements from a row of x, and of its gradient, to the next; 0: heads dim */
} dr_gate;

/* The row pitch of x: elements from a row to the next. */
static inline int64_t dr_linear_pitch(const dr_linear *linear) {
    return linear->x_row > 0 ? linear->x_row : linear->in;
}
static inline int64_t dr_grouped_linear_pitch(const dr_grouped_linear *linear) {
    return linear->x_row > 0 ? linear->x_row : linear->groups * linear->in;
}
static inline int64_t dr_conv_pitch(const dr_conv *conv) {
    return conv->x_row > 0 ? conv->x_row : conv->channels;
}
static inline int64_t dr_gate_pitch(const dr_gate *gate) {
    return gate->x_row > 0 ? gate->x_row : gate->heads * gate->dim;
}
/* Where the gate of a vector begins. */
static inline int64_t dr_rms_norm_gate_at(const dr_rms_norm *norm, int64_t vector) {
    if (norm->gate_row == 0) return vector * norm->dim;
    return vector / norm->gate_vectors * norm->gate_row + vector % norm->gate_vectors * norm->dim;
}

/* y_m[t] = x[t] + (x[t - 1] - x[t]) factor_m for each of `mixes` vectors of factors; x before a sequence from its state */
typedef struct {
    dr_layout layout;
    int64_t dim, mixes;
} dr_token_shift;

/* y += (sum_i r_i k_i u_i) v for each head of each row; u is a parameter [heads, key_size] */
typedef struct {
    int64_t rows, heads, key_size, value_size;
} dr_bonus;

/* Softmax attention over depth: a row of y is the weighted sum of that row of `count` tensors x_l, where
 * y = sum_l p_l x_l, p = softmax over l of query . (weight x_l rsqrt(mean x_l^2 + eps)), x_l and y [rows, dim]. */
enum { DR_DEPTH_MOST = 256 };
typedef struct {
    int64_t rows, dim, count; /* 1 <= count <= DR_DEPTH_MOST */
    double eps;
} dr_depth;

/* What lies in a part of wider rows: element (row, head, i) is read at row from_row + head from_head + i, and written likewise.
 * from_head 0: one vector is read for all heads; to_head 0: their sum is written. */
typedef struct {
    int64_t rows, heads, dim, from_row, from_head, to_row, to_head;
} dr_copy_heads;

/* y = factor x, raised to low where it is less and lowered to high where it is more; either may be infinite */
typedef struct {
    double factor, low, high; /* low < high */
} dr_bound;

/* One step of AdamW with bias correction over count elements: p -= lr (mhat / (sqrt(vhat) + eps) + weight_decay p). */
typedef struct {
    double beta1, beta2, eps;
} dr_adamw;

/* Neighbours in the blocks that AdamW treats alike. */
typedef struct {
    int64_t begin, count;
    double learning_rate, weight_decay;
} dr_adamw_run;

/* One step along a direction: p -= learning_rate (factor direction + weight_decay p) */
typedef struct {
    double learning_rate, factor, weight_decay;
} dr_descent;

/* How a token is drawn from a row of logits, as sample.h has it, without biases and penalties. */
typedef struct {
    double temperature, top_p, min_p;
    int64_t top_k;
    double point; /* a uniform number in [0, 1): where the draw falls */
} dr_draw;

/* What is decided from step to step, in the backend's memory, so that no step waits for the host. */
typedef struct {
    double squares, norm; /* of the last step's gradient */
    double scale;         /* adamw reads the gradient times this */
    int64_t updates;      /* steps that changed parameters, the last one included */
    int64_t skipped, skipped_in_row;
} dr_control;

/* Over the targets of a batch, in the backend's memory. */
typedef struct {
    double loss;
    int64_t hits;
} dr_loss_sum;

typedef struct dr_operations {
    const char *name;
    dr_dtype dtype;
    bool bf16_state; /* whether recurrences may have it */
    bool device;     /* memory is not the host's, and work goes to streams */
    bool pools;      /* whether decoding takes slots */
    bool prefill;    /* whether a forward does */
    bool forms;      /* whether plans may have others than the default ones */
    int64_t panels;  /* what the columns of each member of a panel are a multiple of, for operations that take them; 0: they
                        take none, and every distance of rows and every `members` is 0 */
    bool sums;       /* whether linear_forward takes dr_linear.plus, which is NULL elsewhere */
    /* Whether conv takes a `unit` with that width; NULL: never. */
    bool (*conv_units)(int64_t width, int64_t unit);
    bool chains; /* whether linear and grouped_linear take columns of panels, too; else their x_row is 0 */

    /* memory: as the public functions of backend.h */
    dr_status (*allocate)(dr_backend *, size_t bytes, void **memory);
    void (*free)(dr_backend *, void *memory);
    void (*zero)(dr_backend *, void *memory, size_t bytes);
    dr_status (*upload)(dr_backend *, void *to, const void *from, dr_dtype from_dtype, int64_t count);
    dr_status (*download)(dr_backend *, void *to, dr_dtype to_dtype, const void *from, int64_t count);
    /* with another type on the backend's side than its own; NULL: there is no other */
    dr_status (*upload_as)(dr_backend *, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype, int64_t count);
    dr_status (*download_as)(dr_backend *, void *to, dr_dtype to_dtype, const void *from, dr_dtype from_dtype, int64_t count);
    int64_t (*available)(dr_backend *); /* bytes for tensors that are free; NULL: the host's */
    dr_status (*copy)(dr_backend *, void *to, const void *from, size_t bytes); /* within the backend's memory */
    /* bytes from and to host memory, as they are; from may change when put has returned, and to is there when get has */
    dr_status (*put)(dr_backend *, void *to, const void *from, size_t bytes);
    dr_status (*get)(dr_backend *, void *to, const void *from, size_t bytes);
    dr_status (*wait)(dr_backend *); /* NULL: nothing is ever under way */
    /* Another backend over the same memory, whose work goes on beside this one's and waits for none of it. Closed before this
     * one is. NULL: there is none. */
    dr_status (*beside)(dr_backend *, dr_backend **other);
    /* A copy of bytes to the host beside later work. fetch asks for it; fetched waits for it alone, not for what was asked
     * after it, and ends it with the bytes in to (NULL: nobody wants them any more). Both NULL: nothing is ever under way. */
    dr_status (*fetch)(dr_backend *, const void *from, size_t bytes, void **transfer);
    dr_status (*fetched)(dr_backend *, void *transfer, void *to);

    /* Measuring; NULL where calls return when their work is done, so that the clock of the process tells its time.
     * time_runs: seconds of so many calls of run, one after another, as the device counts them. run puts work on the backend
     * and neither waits nor allocates. replay: without what launching takes on the host.
     * product: c = a b of square matrices of BF16, by the fastest library for it; DR_ERROR_UNSUPPORTED with a sentence where
     * this machine has none. */
    dr_status (*time_runs)(dr_backend *, dr_status (*run)(void *context), void *context, int64_t runs, bool replay,
                           double *seconds);
    dr_status (*product)(dr_backend *, int64_t size, const void *a, const void *b, void *c);

    void (*describe)(const dr_backend *, void (*line)(void *context, const char *text), void *context);
    void (*close)(dr_backend *);

    /* y [rows, out] = x [rows, in] weight[out, in]^T + bias[out]; bias may be NULL.
     * accumulate: d_x is added to. d_weight, d_bias are added to. bias is a number. */
    dr_status (*linear_forward)(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *bias, void *y);
    dr_status (*linear_backward)(dr_backend *, const dr_linear *, const void *x, const void *weight, const void *d_y, void *d_x,
                                 bool accumulate, void *d_weight, void *d_bias);

    /* x [rows, groups, in], weight [groups, out, in], y [rows, groups, out] */
    dr_status (*grouped_linear_forward)(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight, void *y);
    dr_status (*grouped_linear_backward)(dr_backend *, const dr_grouped_linear *, const void *x, const void *weight,
                                         const void *d_y, void *d_x, void *d_weight);

    /* y [rows, dim] = table[ids[row]], 0 <= id < vocabulary. d_table is added to, in order of rows. */
    dr_status (*embedding_forward)(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *table, void *y);
    dr_status (*embedding_backward)(dr_backend *, int64_t rows, int64_t dim, const int32_t *ids, const void *d_y,
                                    void *d_table);

    /* x, gate, y [rows, dim]; gate NULL where the descriptor has none. accumulate: d_x is added to. d_gate may be gate. weight
     * is a number. */
    dr_status (*rms_norm_forward)(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                  void *y);
    dr_status (*rms_norm_backward)(dr_backend *, const dr_rms_norm *, const void *x, const void *weight, const void *gate,
                                   const void *d_y, void *d_x, bool accumulate, void *d_weight, void *d_gate);

    /* x, y [rows, dim]; y may be x, d_x may be d_y */
    dr_status (*l2_norm_forward)(dr_backend *, const dr_l2_norm *, const void *x, void *y);
    dr_status (*l2_norm_backward)(dr_backend *, const dr_l2_norm *, const void *x, const void *d_y, void *d_x);

    /* x, y [rows, groups, dim]; bias may be NULL. accumulate: d_x is added to. weight and bias are numbers. */
    dr_status (*layer_norm_forward)(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *bias,
                                    void *y);
    dr_status (*layer_norm_backward)(dr_backend *, const dr_layer_norm *, const void *x, const void *weight, const void *d_y,
                                     void *d_x, bool accumulate, void *d_weight, void *d_bias);

    /* y = x / sum x for each of rows vectors of length dim; y may be x, d_x may be d_y */
    dr_status (*sum_norm_forward)(dr_backend *, int64_t rows, int64_t dim, const void *x, void *y);
    dr_status (*sum_norm_backward)(dr_backend *, int64_t rows, int64_t dim, const void *x, const void *d_y, void *d_x);

    /* x, y [rows, channels], weight [channels, width], bias [channels] or NULL; state [sequences, width - 1, channels], the
     * last inputs, oldest first: initial NULL is zero, final NULL is not wanted; final may be initial. The backward takes x and
     * the initial state and gives no gradient to the state; d_x may be x. weight, bias and state are numbers. */
    dr_status (*conv_forward)(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                              const void *initial, void *y, void *final);
    dr_status (*conv_backward)(dr_backend *, const dr_conv *, const void *x, const void *weight, const void *bias,
                               const void *initial, const void *d_y, void *d_x, void *d_weight, void *d_bias);

    /* x, y [rows, heads, dim] of the descriptor's kinds; where they are of one type, y may be x and d_x may be d_y; d_x may be
     * x, which is then not added to. accumulate: d_x is added to. d_a_log, d_bias are added to. a_log and bias are numbers. */
    dr_status (*gate_forward)(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias, void *y);
    dr_status (*gate_backward)(dr_backend *, const dr_gate *, const void *x, const void *a_log, const void *bias,
                               const void *d_y, void *d_x, bool accumulate, void *d_a_log, void *d_bias);

    /* x [rows, heads, size] turned in place. backward: d_x turned back, times the factor as x was */
    dr_status (*rotary)(dr_backend *, const dr_rotary *, void *x, bool backward);

    /* q [rows, heads, key_size], k [rows, key_heads, key_size], v [rows, key_heads, value_size], o [rows, heads, value_size],
     * log_sums [rows, heads] or NULL: numbers, which the backward needs. memory: of the tokens before, or NULL; it is only
     * read. The backward is that of a call without memory. append: k and v of the call's tokens go to their places in memory.
     */
    dr_status (*attention_forward)(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                   const dr_attention_memory *memory, void *o, void *log_sums);
    dr_status (*attention_backward)(dr_backend *, const dr_attention *, const void *q, const void *k, const void *v,
                                    const void *o, const void *log_sums, const void *d_o, void *d_q, void *d_k, void *d_v);
    dr_status (*attention_append)(dr_backend *, const dr_attention *, const void *k, const void *v,
                                  const dr_attention_memory *memory);

    /* x [rows, dim], factors [mixes, dim], y [mixes, rows, dim]; state [sequences, dim], the last x: initial NULL is zero,
     * final NULL is not wanted; final may be initial. The state gets no gradient. accumulate: d_x is added to. factors and
     * state are numbers. */
    dr_status (*token_shift_forward)(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                     const void *initial, void *y, void *final);
    dr_status (*token_shift_backward)(dr_backend *, const dr_token_shift *, const void *x, const void *factors,
                                      const void *initial, const void *d_y, void *d_x, bool accumulate, void *d_factors);

    /* y = x + (z - x) factor, x, z, y [rows, dim], factor [rows, dim] or, shared, a parameter [dim] whose gradient is added to.
     * accumulate: d_z is added to. factor is a number. */
    dr_status (*blend_forward)(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                               const void *factor, void *y);
    dr_status (*blend_backward)(dr_backend *, int64_t rows, int64_t dim, bool shared, const void *x, const void *z,
                                const void *factor, const void *d_y, void *d_x, void *d_z, bool accumulate, void *d_factor);

    /* r, k [rows, heads, key_size], u [heads, key_size], v, y [rows, heads, value_size]. y and all gradients are added to. u is
     * a number. */
    dr_status (*bonus_forward)(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                               void *y);
    dr_status (*bonus_backward)(dr_backend *, const dr_bonus *, const void *r, const void *k, const void *u, const void *v,
                                const void *d_y, void *d_r, void *d_k, void *d_u, void *d_v);

    /* x: count pointers to tensors [rows, dim]; weight, query [dim] are numbers. Gradients are all added to; d_x has count
     * pointers, any of which may be NULL. */
    dr_status (*depth_forward)(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                               void *y);
    dr_status (*depth_backward)(dr_backend *, const dr_depth *, const void *const *x, const void *weight, const void *query,
                                const void *d_y, void *const *d_x, void *d_weight, void *d_query);

    /* y = f(x), count elements; y may be x, d_x may be d_y */
    dr_status (*apply_forward)(dr_backend *, dr_function, int64_t count, const void *x, void *y);
    dr_status (*apply_backward)(dr_backend *, dr_function, int64_t count, const void *x, const void *d_y, void *d_x);

    /* y = f(gate) x, count elements; y may be x, d_x may be d_y */
    dr_status (*gated_forward)(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, void *y);
    dr_status (*gated_backward)(dr_backend *, dr_function, int64_t count, const void *x, const void *gate, const void *d_y,
                                void *d_x, void *d_gate);

    /* count elements; y may be x, d_x may be d_y. Where y is at a bound d_x is 0. */
    dr_status (*bound_forward)(dr_backend *, const dr_bound *, int64_t count, const void *x, void *y);
    dr_status (*bound_backward)(dr_backend *, const dr_bound *, int64_t count, const void *x, const void *d_y, void *d_x);

    /* y = silu(gate) * up, count elements */
    dr_status (*swiglu_forward)(dr_backend *, int64_t count, const void *gate, const void *up, void *y);
    dr_status (*swiglu_backward)(dr_backend *, int64_t count, const void *gate, const void *up, const void *d_y, void *d_gate,
                                 void *d_up);
    /* The same where gate and up are the columns of one panel [rows, 2 columns], y [rows, columns]; d_panel may be panel. Both
     * NULL: they are not taken so. */
    dr_status (*swiglu_panel_forward)(dr_backend *, int64_t rows, int64_t columns, const void *panel, void *y);
    dr_status (*swiglu_panel_backward)(dr_backend *, int64_t rows, int64_t columns, const void *panel, const void *d_y,
                                       void *d_panel);

    /* logits [rows, experts], bias [experts] or NULL, weights [rows, chosen]: numbers; index [rows, chosen]. The bias has no
     * gradient. balance: loss [1], a number, is added to: factor experts sum_e f_e P_e with f_e the share of slots of expert e,
     * times chosen, and P_e the mean over rows of softmax(logits)_e, or of sigmoid(logits)_e divided by their sum; d_logits is
     * added to, NULL: not. f has no gradient; without rows nothing happens. */
    dr_status (*route_forward)(dr_backend *, const dr_router *, const void *logits, const void *bias, int32_t *index,
                               void *weights);
    dr_status (*route_backward)(dr_backend *, const dr_router *, const void *logits, const int32_t *index,
                                const void *d_weights, void *d_logits);
    dr_status (*balance)(dr_backend *, const dr_router *, const void *logits, const int32_t *index, double factor, void *loss,
                         void *d_logits);

    /* order, place [rows chosen], begins [experts + 1]: sort gives order, the slots as they lie by expert, place, where each
     * slot lies, and begins, where each expert's lie. gather: x [rows, dim], y [rows chosen, dim]. linear: x [rows chosen, in],
     * weight [experts, out, in], y [rows chosen, out]. combine: weights [rows, chosen], numbers, x [rows chosen, dim],
     * y [rows, dim]; accumulate: y (forward) is added to. In backwards d_x is added to if accumulate; d_weight is added to. */
    dr_status (*experts_sort)(dr_backend *, const dr_experts *, const int32_t *index, int32_t *order, int32_t *place,
                              int32_t *begins);
    dr_status (*experts_gather_forward)(dr_backend *, const dr_experts *, int64_t dim, const int32_t *order, const void *x,
                                        void *y);
    dr_status (*experts_gather_backward)(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place, const void *d_y,
                                         void *d_x, bool accumulate);
    dr_status (*experts_linear_forward)(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                        const void *x, const void *weight, void *y);
    dr_status (*experts_linear_backward)(dr_backend *, const dr_experts *, int64_t in, int64_t out, const int32_t *begins,
                                         const void *x, const void *weight, const void *d_y, void *d_x, bool accumulate,
                                         void *d_weight);
    dr_status (*experts_combine_forward)(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                         const void *weights, const void *x, void *y, bool accumulate);
    dr_status (*experts_combine_backward)(dr_backend *, const dr_experts *, int64_t dim, const int32_t *place,
                                          const void *weights, const void *x, const void *d_y, void *d_weights, void *d_x);

    /* y += factor * x, count elements, both of this kind */
    dr_status (*add)(dr_backend *, dr_kind kind, int64_t count, double factor, const void *x, void *y);

    /* y [count] vectors = x [count] numbers: the copies of parameters that products read. NULL where both kinds are of one
     * type, so that there are no copies. */
    dr_status (*store_vectors)(dr_backend *, int64_t count, const void *x, void *y);

    /* Weights that are stored apart (ops/kind.h); NULL where there are none. store: weight [rows, columns] from numbers. load:
     * elements first .. first + count - 1 of a weight, row by row, to host memory. */
    dr_status (*weights_store)(dr_backend *, int64_t rows, int64_t columns, const void *from, void *weight);
    dr_status (*weights_load)(dr_backend *, int64_t columns, int64_t first, int64_t count, const void *weight, void *to,
                              dr_dtype to_dtype);

    /* y [rows, heads, dim] = factor [rows, heads] * x [rows, heads, dim]; accumulate: y (forward), d_x (backward) is added to.
     * shared: factor is a parameter [heads] used by all rows, and d_factor is added to. factor is a number. */
    dr_status (*scale_heads_forward)(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                     const void *x, void *y, bool accumulate);
    dr_status (*scale_heads_backward)(dr_backend *, int64_t rows, int64_t heads, int64_t dim, bool shared, const void *factor,
                                      const void *x, const void *d_y, void *d_factor, void *d_x, bool accumulate);

    /* x and y from the first element of their parts on; they do not overlap, and the rest of y's rows stays as it is. With rows
     * to read and to write exchanged it is its own backward. */
    dr_status (*copy_heads)(dr_backend *, const dr_copy_heads *, const void *x, void *y);

    /* y [count, dim] = x[positions[i]]; scatter: d_x [rows, dim] = 0, then d_x[positions[i]] = d_y[i]; vectors. positions
     * rise, none twice. */
    dr_status (*rows_gather)(dr_backend *, int64_t count, int64_t dim, const int64_t *positions, const void *x, void *y);
    dr_status (*rows_scatter)(dr_backend *, int64_t rows, int64_t count, int64_t dim, const int64_t *positions, const void *d_y,
                              void *d_x);

    /* loss[i] = logsumexp(logits[i]) - logits[i, labels[i]] and hit[i] = (first index of the largest logit == labels[i]); if
     * d_logits (may be logits) is not NULL: d_logits[i] = factor (softmax(logits[i]) - onehot). logits [count,
     * vocabulary], vectors. */
    dr_status (*cross_entropy)(dr_backend *, int64_t count, int64_t vocabulary, const void *logits, const int32_t *labels,
                               double factor, double *loss, uint8_t *hit, void *d_logits);

    /* ids[i] = the token that draws[i] draws from logits[i, 0 .. allowed - 1], which count as single floats; -1 where one of
     * them is not a number or the largest is not finite. logits [count, vocabulary], vectors, allowed <= vocabulary. A token
     * whose weight ends within rounding of the point may give way to its neighbour. NULL: logits go to the host, which draws.
     */
    dr_status (*choose)(dr_backend *, int64_t count, int64_t vocabulary, int64_t allowed, const void *logits,
                        const dr_draw *draws, int32_t *ids);

    /* adds count losses and hits to a sum, in order */
    dr_status (*sum_losses)(dr_backend *, int64_t count, const double *loss, const uint8_t *hit, dr_loss_sum *sum);

    /* squares of count numbers, summed in double in a fixed order, to control; NaN or infinite if any element is */
    dr_status (*sum_squares)(dr_backend *, int64_t count, const void *x, dr_control *control);
    /* From the squares: norm, their root, and scale, clip / norm where the norm is above clip (0: any may be), else 1. One more
     * update; or, where the norm is not finite, one more skipped. */
    dr_status (*clip)(dr_backend *, double clip, dr_control *control);
    /* Blocks of numbers, of which parameter, m and v are updated in place where the runs lie; nothing is done in a skipped
     * step. */
    dr_status (*adamw)(dr_backend *, const dr_adamw *, const dr_control *control, int runs, const dr_adamw_run *run,
                       const void *gradient, void *parameter, void *m, void *v);

    /* momentum [count] = beta momentum + g, y [count] = g + beta momentum, where g = scale gradient: y is a vector, the others
     * numbers. descend: direction [count] is a vector, parameter a number. Nothing is done in a skipped step. */
    dr_status (*momentum)(dr_backend *, double beta, const dr_control *, int64_t count, const void *gradient, void *momentum,
                          void *y);
    dr_status (*descend)(dr_backend *, const dr_descent *, const dr_control *, int64_t count, const void *direction,
                         void *parameter);

    /* The recurrence. A plan comes with recurrence and calls filled in and checked; recurrence_plan fills in memory, saved and
     * engine, or refuses with DR_ERROR_UNSUPPORTED. Calls come with checked arguments (ops/plan.c); where memory is the host's,
     * with boundaries in int64. */
    dr_status (*recurrence_plan)(dr_plan *);
    dr_status (*recurrence_forward)(const dr_plan *, const dr_call *);
    dr_status (*recurrence_backward)(const dr_plan *, const dr_call *);
    dr_status (*recurrence_decode)(const dr_plan *, const dr_call *);
    /* tokens from one saved state to the next, and the saved states; both NULL where a forward saves none */
    int64_t (*recurrence_chunk)(const dr_plan *);
    dr_status (*recurrence_boundary)(const dr_plan *, const dr_call *, int64_t sequence, int64_t boundary,
                                     const dr_mutable_states *states);
    int (*recurrence_kernel)(const dr_plan *, bool decode, char *text, size_t size);
    void (*recurrence_path)(const dr_plan *, bool packed, dr_stage, dr_stage_path *);

    /* Work that comes again and again, with less of the host's time. run puts it on the backend: calls of this table with the
     * same arguments each time, none of which waits. *kept is NULL at first, then what replay keeps of it; the first call of
     * replay always calls run, which takes the memory that it needs. Both NULL: run is called instead. */
    dr_status (*replay)(dr_backend *, dr_status (*run)(void *context), void *context, void **kept);
    void (*forget)(dr_backend *, void *kept); /* NULL is allowed */
} dr_operations;

/* What callers ask for by name, a forward and its backward together: not every backend has all of it. */
typedef enum {
    DR_OPERATION_LINEAR,
    DR_OPERATION_GROUPED_LINEAR,
    DR_OPERATION_EMBEDDING,
    DR_OPERATION_RMS_NORM,
    DR_OPERATION_L2_NORM,
    DR_OPERATION_LAYER_NORM,
    DR_OPERATION_SUM_NORM,
    DR_OPERATION_CONV,
    DR_OPERATION_GATE,
    DR_OPERATION_ROTARY,
    DR_OPERATION_ATTENTION, /* and attention_append */
    DR_OPERATION_ROUTE,     /* and balance */
    DR_OPERATION_EXPERTS,   /* what goes by experts: sort, gather, linear, combine */
    DR_OPERATION_TOKEN_SHIFT,
    DR_OPERATION_BLEND,
    DR_OPERATION_BONUS,
    DR_OPERATION_DEPTH,
    DR_OPERATION_APPLY, /* and gated */
    DR_OPERATION_BOUND,
    DR_OPERATION_SWIGLU,
    DR_OPERATION_ADD,
    DR_OPERATION_SCALE_HEADS,
    DR_OPERATION_COPY_HEADS,
    DR_OPERATION_ROWS_GATHER,
    DR_OPERATION_ROWS_SCATTER,
    DR_OPERATION_CROSS_ENTROPY,
    DR_OPERATION_SUM_LOSSES,
    DR_OPERATION_SUM_SQUARES,
    DR_OPERATION_CLIP,
    DR_OPERATION_ADAMW,
    DR_OPERATION_MUON, /* momentum and descend */
    DR_OPERATION_TIME_RUNS,
    DR_OPERATION_BOUNDARY, /* recurrence_chunk and recurrence_boundary */
    DR_OPERATIONS
} dr_operation;

DR_FOR_CHECK bool dr_supports(const dr_backend *backend, dr_operation operation);
const char *dr_operation_name(dr_operation operation); /* "linear" */

struct dr_backend {
    const dr_operations *ops;
    const char *isa; /* "double", "portable", "avx2", "avx512", "sm_90a", "sm_80" */
    int threads;
    dr_dtype storage; /* of vectors: ops->dtype, DR_BF16 or DR_F16 */
    dr_dtype weights; /* of weights stored apart: DR_BF16 or DR_I8; else not used */
    void *state;      /* the backend's own */
};

#endif
