/* An operation of networks on backend cuda, or on what stands for it (emulated/network.c), against the reference in double from
 * the same stored values. Of every call:
 *
 *     float32    vectors and numbers are within the tolerances of the CPU's tests, by the norm of a tensor
 *     bf16       a vector's worst row is within twice the error of the reference that stores vectors in bf16, plus that of
 *                float32; a row's error counts beside its own norm, or the mean one where that is larger. Of the reference's
 *                error the largest of up to 24 draws counts, the call's own and those of its neighbours (../rounding.h)
 *     integers   are the reference's
 *     again      gives the same bits; what is only read stays, as do the bytes behind every tensor; what is written begins as
 * NaN
 *
 * Where a value is a difference, terms of it may be far larger than it, and so are the rounding errors: the error then counts
 * beside the terms (tensor.terms).
 *
 * A case draws shapes and values from a generator, describes its call, and hands it to check_call. */
#ifndef DR_TESTS_CUDA_NETWORK_CALLS_H
#define DR_TESTS_CUDA_NETWORK_CALLS_H

#include "base/random.h"
#include "ops/operations.h"

enum { MOST_TENSORS = 12, MOST_BLOCKS = 4096 };

typedef struct {
    dr_backend *exact, *rounded; /* the reference; rounded stores vectors as tested does, NULL: in double */
    dr_backend *tested;
    dr_random random;
    const char *only;           /* the case that is run, NULL: all */
    void (*vary)(unsigned run); /* how the next kernels run, or NULL */
    char wrong[512];            /* a sentence on the first that is, "" while all is right */
    const char *worst_call;
    double worst; /* error over what is allowed */
    long checks;
    void *blocks[MOST_BLOCKS]; /* of host memory */
    int taken;
} trials;

typedef enum { READ, WRITTEN, ADDED } role;
typedef enum { VECTORS, NUMBERS, DOUBLES, BYTES, INT32S, INT64S, CONTROLS, SUMS } content;

typedef struct {
    const char *name;
    content of;
    role is;
    int64_t count, row;  /* elements; elements of a row, 0: all of one */
    bool shifted;        /* begins behind a 16-byte boundary */
    void *values;        /* before the call: doubles of vectors and numbers, else as they are; NULL: the tensor is not passed */
    const double *terms; /* [count]: what each element of the result is the difference of and something else; or NULL */
} tensor;

typedef struct call {
    const char *name;
    const void *descriptor;
    int64_t numbers[6]; /* what run reads beside the descriptor */
    double tolerance;   /* of floats; 0: that of a forward */
    bool aligned;       /* every tensor begins at 16 bytes */
    tensor tensors[MOST_TENSORS];
    dr_status (*run)(const struct call *, dr_backend *, void *const at[MOST_TENSORS]);
} call;

/* Where columns begin in the rows of a panel, and its rows' length, which is 0 where there is no panel. */
typedef struct {
    int64_t column, row;
} columns_drawn;

columns_drawn draw_columns(trials *t, int64_t columns);
/* Columns of a panel from `column` on; NULL of NULL. */
void *column_of(const dr_backend *b, dr_kind kind, void *panel, int64_t column);

void check_call(trials *t, const call *c);

/* Memory until the case ends. */
void *draw_block(trials *t, int64_t count, size_t size);
void release_draws(trials *t);

int64_t draw_between(trials *t, int64_t least, int64_t most);
bool draw_flip(trials *t);
/* A width of rows, real ones among them: 1 to most. */
int64_t draw_width(trials *t, int64_t most);
/* Channels of a head whose convolution divides it by its length: in half of all rounds as many as a warp takes. */
int draw_unit(trials *t, int round);
/* One to three sequences, packed or equally long. */
dr_layout draw_layout(trials *t, int64_t most);

tensor draw_vectors(trials *t, const char *name, role is, int64_t rows, int64_t row);
tensor draw_numbers(trials *t, const char *name, role is, int64_t rows, int64_t row);
tensor scaled_by(trials *t, tensor of, double by);
tensor perhaps(trials *t, tensor of);
tensor integers_of(const char *name, content of, role is, int64_t count, void *values);
/* Boundaries of a packed layout, or a tensor that is not passed. */
tensor boundaries_of(const dr_layout *layout);
/* The layout with boundaries at `at`. */
dr_layout placed_layout(const dr_layout *layout, void *at);

static const double forward_tolerance = 3e-6, backward_tolerance = 2e-5, sum_tolerance = 2e-4;

/* Every case, rounds times; false with t->wrong where one is wrong, and a line of standard output on each that is. */
bool network_cases(trials *t, int rounds);
/* Their names, to standard output. */
void network_cases_list(void);

/* A list of cases. */
typedef struct {
    const char *name;
    void (*draw)(trials *t, int round);
} network_case;
extern const network_case layer_cases[], step_cases[], token_cases[]; /* each ends with a case without a name */

#endif
