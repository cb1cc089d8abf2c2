/* The parameters of a layer: a list that its modules add to, each with its name, shape, first values and place in the layer's
 * part of the block. A module keeps the indices of its own. */
#ifndef DR_NN_PARAMETERS_H
#define DR_NN_PARAMETERS_H

#include <deltarule/model.h>

enum {
    DR_OFFSET_UNIT = 16, /* offsets in the block are multiples of this many elements: 64 bytes of float32 */
    DR_NO_PARAMETER = -1 /* in place of an index: there is no such parameter */
};

typedef enum {
    DR_INITIAL_NORMAL,   /* N(0, initializer_range) */
    DR_INITIAL_UNIFORM,  /* U(-value, value) */
    DR_INITIAL_CONSTANT, /* value */
    DR_INITIAL_A_LOG,    /* ln U(value, 16), the draw at least 1e-2 */
    DR_INITIAL_STEP,     /* inverse softplus of a log-uniform draw in [1e-3, 0.1] */
} dr_initial_kind;

typedef struct {
    dr_initial_kind kind;
    double value;
} dr_initial;

/* One parameter. */
typedef struct {
    char name[sizeof((dr_parameter){0}.name)]; /* after "model.layers.N." */
    dr_initial initial;
    bool decays; /* by weight decay */
    bool weight; /* read by products alone */
    int rank;
    int64_t shape[3];      /* sizes past the rank are 0 */
    int64_t count, offset; /* elements; from the layer's start in the block, or -1: it has no numbers (dr_weights_apart) */
    size_t weight_at;      /* of one without numbers: bytes from the layer's start in the block of weights */
    int next;              /* index of the parameter right behind this one, with no gap; or DR_NO_PARAMETER: any may be */
    bool follows;          /* it is the next one of another */
} dr_layer_parameter;

/* Those of one layer, in the order in which they are listed; the block holds them in that order too, but for what is joined. */
typedef struct {
    dr_layer_parameter *at; /* [count] */
    int count;
    int64_t elements;          /* of the layer's part of the block, gaps included */
    const dr_backend *backend; /* which may store weights apart; NULL: none are */
    size_t weight_bytes;       /* of the layer's part of weights that are stored apart, gaps included */
} dr_layer_parameters;

/* Adds a matrix that products read and weight decay applies to, [rows, columns], or [rows, columns, depth] where depth is not
 * 0; the same of numbers, such as taps; or a vector [rows], or [rows, columns], without decay. Its name is prefix and name.
 * *index is its place in the list. DR_ERROR_ARGUMENT if its elements overflow. */
dr_status dr_add_matrix(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                        int64_t columns, int64_t depth, int *index);
dr_status dr_add_numbers(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                         int64_t columns, int64_t depth, int *index);
dr_status dr_add_vector(dr_layer_parameters *list, const char *prefix, const char *name, dr_initial initial, int64_t rows,
                        int64_t columns, int *index);
/* Places parameters one right behind the other, the first where it was, so that matrices with as many columns are one matrix of
 * all their rows. Each was added to the list and is joined once. */
void dr_join_parameters(dr_layer_parameters *list, const int *indices, int count);
void dr_layer_parameters_release(dr_layer_parameters *list);

/* count elements and the gap behind them. */
static inline int64_t dr_parameter_room(int64_t count) {
    return (count + DR_OFFSET_UNIT - 1) / DR_OFFSET_UNIT * DR_OFFSET_UNIT;
}

/* count first values of the parameter of this name: they depend on nothing but the seed and the name, so that a parameter
 * more or less changes no other. */
void dr_initial_draw(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t count, double *values);
/* count of them from number `first` on, the same numbers. */
void dr_initial_draw_part(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t first,
                          int64_t count, double *values);
/* The same numbers as floats. */
void dr_initial_draw_floats(const dr_initial *initial, double range, uint64_t seed, const char *name, int64_t first,
                            int64_t count, float *values);

#endif
