/* What the CPU backend's operations share: the table of kernels of one instruction set, the backend's own state, and how work
 * is cut.
 *
 * Kernels (isa/) are single-threaded and work on a range; operations (this folder) cut the work into ranges for OpenMP threads.
 * A cut never changes a result: ranges are of independent elements, rows or columns, and where rows are summed (gradients of
 * parameters) they are summed in DR_CPU_PARTS parts whose bounds depend on the number of rows only, part by part in order. */
#ifndef DR_CPU_KERNELS_H
#define DR_CPU_KERNELS_H

#include "backends/cpu/threads.h"
#include "base/cpu.h"
#include "ops/operations.h"

#include <stdatomic.h>

enum {
    DR_CPU_PARTS = 16,           /* parts of a sum over rows */
    DR_CPU_GRAIN = 16384,        /* elements below which another thread costs more than it saves */
    DR_CPU_ATTENTION_KEYS = 256, /* columns of a block of attention's scores */
    DR_CPU_MAX_CONV_WIDTH = 16,  /* taps of a convolution: the last inputs are kept in cache */

    /* Elements of the memory that a kernel works in, a thread: too much for the stack of a thread, which may be small. */
    DR_CPU_PRODUCT_SPACE = 256 * 256,                                    /* the block of B that stays in cache */
    DR_CPU_CONV_BLOCK = 1024,                                            /* channels at a time */
    DR_CPU_CONV_SPACE = DR_CPU_CONV_BLOCK * (DR_CPU_MAX_CONV_WIDTH + 1), /* their taps and biases */
    DR_CPU_CONV_BACKWARD_SPACE = 2 * DR_CPU_CONV_SPACE + DR_CPU_CONV_BLOCK * (DR_CPU_MAX_CONV_WIDTH - 1)
};

/* C [m, n] = A [m, k] B [k, n], plus what `accumulate` or `bias` says. Strides count elements. */
typedef struct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step; /* A[i, j] is a[i a_row + j a_step]; one of them is 1 */
    const float *b;
    int64_t b_step, b_column; /* B[i, j] is b[i b_step + j b_column]; one of them is 1 */
    float *c;
    int64_t c_row;     /* C[i, j] is c[i c_row + j] */
    const float *bias; /* [n] added to each row, or NULL; not with accumulate */
    bool accumulate;   /* C is added to */
    float *space;      /* [DR_CPU_PRODUCT_SPACE] */
} dr_cpu_product;

/* y [rows, out] = x [rows, in] W^T + bias with W [out, in] in rows of base/weight_row.h. */
typedef struct {
    dr_dtype type; /* of the weights: DR_BF16 or DR_I8 */
    int64_t rows, in;
    const float *x;
    int64_t x_row; /* elements from row to row */
    const char *weight;
    const float *bias; /* [out] or NULL */
    float *y;
    int64_t y_row;
    bool accumulate; /* of transposed: y is added to */
    float *space;    /* [DR_CPU_PRODUCT_SPACE] */
} dr_cpu_narrow;

/* A projection seen as rows of `columns` channels, with what is added to each and, of a decay, its rate. */
typedef struct {
    dr_gate_kind kind;
    int64_t columns;
    float multiplier, lower_bound, upper_bound; /* upper_bound: infinite where there is none */
    const float *rate;                          /* [columns] exp(A_log), 1 without */
    const float *shift;                         /* [columns] shift + bias */
} dr_cpu_gate;

/* A part of a convolution: the tokens [begin, end) of one sequence of `length`, and the channels [first, last). */
typedef struct {
    const dr_conv *conv;
    const float *x;       /* [length, channels], rows dr_conv_pitch apart; the sequence's first token */
    const float *weight;  /* [channels, width] */
    const float *bias;    /* [channels] or NULL */
    const float *initial; /* [width - 1, channels] of this sequence, or NULL */
    int64_t length, begin, end, first, last;
    /* Where d_x is written over x: copies of the width - 1 rows before and behind the part, which others write; else NULL */
    const float *before, *behind; /* [width - 1, channels] */
    float *space;                 /* [DR_CPU_CONV_SPACE], backward [DR_CPU_CONV_BACKWARD_SPACE] */
} dr_cpu_conv;

/* A block of attention's scores: rows of queries, `group` heads a token, by columns of keys. */
typedef struct {
    int64_t rows, columns, group;
    int64_t first;  /* the position of the first row's token, counted from that of the first column */
    int64_t window; /* as in dr_attention */
    float *scores;  /* [rows, DR_CPU_ATTENTION_KEYS] */
} dr_cpu_scores;

typedef struct {
    const char *name;
    /* product.c: the block [m_begin, m_end) x [n_begin, n_end) of C */
    void (*product)(const dr_cpu_product *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);

    /* narrow.c: the block of rows [m_begin, m_end) and columns [n_begin, n_end) of y. transposed: y [rows, in] = x [rows, out]
     * W, whose columns are the block's. widen: y [columns] = a row of weights. */
    void (*narrow_product)(const dr_cpu_narrow *p, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);
    void (*narrow_transposed)(const dr_cpu_narrow *p, int64_t out, int64_t m_begin, int64_t m_end, int64_t n_begin,
                              int64_t n_end);
    void (*narrow_widen)(dr_dtype type, int64_t columns, const char *row, float *y);

    /* norm.c: rows vectors of length dim. d_weight [dim] is added to. */
    void (*rms_norm_forward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight, const float *gate,
                             float *y);
    void (*rms_norm_backward)(const dr_rms_norm *norm, int64_t rows, const float *x, const float *weight, const float *gate,
                              const float *d_y, float *d_x, bool accumulate, float *d_weight, float *d_gate);
    void (*l2_norm_forward)(const dr_l2_norm *norm, int64_t rows, const float *x, float *y);
    void (*l2_norm_backward)(const dr_l2_norm *norm, int64_t rows, const float *x, const float *d_y, float *d_x);

    /* conv.c. d_x as x, y and d_y dense; d_weight, d_bias as weight, bias, added to. step: one token of each of the sequences
     * [begin, end), x and initial being the first one's; final as initial, or NULL, and may be it. */
    void (*conv_forward)(const dr_cpu_conv *part, float *y);
    void (*conv_step)(const dr_cpu_conv *part, float *y, float *final);
    void (*conv_backward)(const dr_cpu_conv *part, const float *d_y, float *d_x, float *d_weight, float *d_bias);

    /* gate.c: rows rows. d_rate_log, d_bias [columns] are added to; either, and d_x, may be NULL. */
    void (*gate_forward)(const dr_cpu_gate *gate, int64_t rows, const float *x, float *y);
    void (*gate_backward)(const dr_cpu_gate *gate, int64_t rows, const float *x, const float *d_y, float *d_x, bool accumulate,
                          float *d_rate_log, float *d_bias);

    /* rotary.c: rows tokens from a position on, x being the first one's; turns [dim/2] are the frequencies / (2 pi) */
    void (*rotary)(const dr_rotary *rotary, int64_t rows, int64_t position, const double *turns, bool backward, float *x);

    /* attention.c. softmax: scores become weights; o [rows, size], largest and sum [rows] go on from block to block. The
     * columns are a multiple of 32 there. finish: o is divided by sum; log_sums [rows]. gradient: log_sums, along [rows] = d_o
     * . o, d_p as scores. mix: o += weights v, v [columns] rows of `size` v_row apart. finite: whether all of rows such rows
     * are. */
    void (*attention_softmax)(const dr_cpu_scores *scores, float *largest, float *sum, int64_t size, float *o);
    void (*attention_finish)(int64_t rows, int64_t size, const float *largest, const float *sum, float *o, float *log_sums);
    void (*attention_gradient)(const dr_cpu_scores *scores, const float *log_sums, const float *along, float *d_p);
    void (*attention_mix)(const dr_cpu_scores *scores, const float *v, int64_t v_row, int64_t size, float *o);
    bool (*attention_finite)(int64_t rows, int64_t size, const float *v, int64_t v_row);

    /* layer_norm.c: so many tokens. d_weight, d_bias [groups, dim] are added to; either, and d_x, may be NULL. */
    void (*layer_norm_forward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                               const float *bias, float *y);
    void (*layer_norm_backward)(const dr_layer_norm *norm, int64_t tokens, const float *x, const float *weight,
                                const float *d_y, float *d_x, bool accumulate, float *d_weight, float *d_bias);
    void (*sum_norm_forward)(int64_t rows, int64_t dim, const float *x, float *y);
    void (*sum_norm_backward)(int64_t rows, int64_t dim, const float *x, const float *d_y, float *d_x);

    /* mix.c: count elements, or so many rows of heads. z NULL: zeros. add_x and its like: that gradient is added to. */
    void (*blend_forward)(int64_t count, const float *x, const float *z, const float *factor, float *y);
    void (*blend_backward)(int64_t count, const float *x, const float *z, const float *factor, const float *d_y, float *d_x,
                           bool add_x, float *d_z, bool add_z, float *d_factor, bool add_factor);
    void (*bonus_forward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u, const float *v,
                          float *y);
    void (*bonus_backward)(const dr_bonus *bonus, int64_t rows, const float *r, const float *k, const float *u, const float *v,
                           const float *d_y, float *d_r, float *d_k, float *d_u, float *d_v);

    /* depth.c: rows begin .. end - 1; direction [dim] is query weight. d_x [count] pointers, any of which may be NULL;
     * d_direction [dim] is added to and may be NULL. */
    void (*depth_forward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x, const float *direction,
                          float *y);
    void (*depth_backward)(const dr_depth *depth, int64_t begin, int64_t end, const float *const *x, const float *direction,
                           const float *d_y, float *const *d_x, float *d_direction);

    /* function.c: count elements; x NULL: 1 */
    void (*gated_forward)(dr_function function, int64_t count, const float *x, const float *gate, float *y);
    void (*gated_backward)(dr_function function, int64_t count, const float *x, const float *gate, const float *d_y, float *d_x,
                           float *d_gate);

    /* elementwise.c: count elements */
    void (*swiglu_forward)(int64_t count, const float *gate, const float *up, float *y);
    void (*swiglu_backward)(int64_t count, const float *gate, const float *up, const float *d_y, float *d_gate, float *d_up);
    void (*add)(int64_t count, float factor, const float *x, float *y);
    void (*adamw)(const dr_adamw *adamw, const dr_adamw_run *run, const dr_control *control, int64_t count,
                  const float *gradient, float *parameter, float *m, float *v);
    double (*sum_squares)(int64_t count, const float *x);

    /* heads.c: heads vectors of length dim, one factor each */
    void (*scale_forward)(int64_t heads, int64_t dim, const float *factor, const float *x, float *y, bool accumulate);
    void (*scale_backward)(int64_t heads, int64_t dim, const float *factor, const float *x, const float *d_y, float *d_factor,
                           float *d_x, bool accumulate);

    /* cross_entropy.c: one row of logits */
    double (*cross_entropy)(int64_t vocabulary, const float *logits, int32_t label, float factor, uint8_t *hit,
                            float *d_logits);
} dr_cpu_kernels;

extern const dr_cpu_kernels dr_cpu_kernels_portable;
#if defined(__x86_64__)
extern const dr_cpu_kernels dr_cpu_kernels_avx2, dr_cpu_kernels_avx512;
#elif defined(__aarch64__)
extern const dr_cpu_kernels dr_cpu_kernels_neon;
#endif

/* Scratch memory of one call. */
typedef struct {
    size_t bytes;
    _Alignas(64) char memory[]; /* [bytes] */
} dr_cpu_scratch;

enum { DR_CPU_SCRATCH_PLACES = 16 };

typedef struct {
    const dr_cpu_kernels *kernels;
    dr_cpu_features features;
    dr_operations operations; /* where weights are stored apart */
    /* What no call uses at the moment. A block grows to the largest size asked for, so that a step in use allocates nothing. */
    _Atomic(dr_cpu_scratch *) scratch[DR_CPU_SCRATCH_PLACES];
} dr_cpu_state;

static inline const dr_cpu_kernels *dr_cpu_kernels_of(const dr_backend *backend) {
    return ((const dr_cpu_state *)backend->state)->kernels;
}

/* At least bytes of scratch memory, the caller's alone until it gives them back; NULL is given back as well. */
dr_status dr_cpu_scratch_take(dr_backend *backend, size_t bytes, dr_cpu_scratch **scratch);
void dr_cpu_scratch_give(dr_backend *backend, dr_cpu_scratch *scratch);

/* Threads for a region of tasks of `elements` elements in all: one thread where the work is small. */
static inline int dr_cpu_threads(const dr_backend *backend, int64_t tasks, int64_t elements) {
    return tasks > 1 && elements >= DR_CPU_GRAIN ? dr_cpu_team(backend->threads) : 1;
}

/* The first of `count` things that part i of `parts` holds; part `parts` begins at count. */
static inline int64_t dr_cpu_part(int64_t count, int64_t i, int64_t parts) {
    return count / parts * i + (count % parts) * i / parts;
}

/* Adds sums [DR_CPU_PARTS, columns] to total [columns], part by part. */
void dr_cpu_add_parts(const float *sums, int64_t columns, float *total);

#endif
