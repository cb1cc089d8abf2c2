/* The parameters of a layer: which there are, their names, shapes, first values and places in the layer's part of the block. */
#ifndef DR_NN_PARAMETERS_H
#define DR_NN_PARAMETERS_H

#include <deltarule/model.h>

/* Offsets in the block are multiples of this many elements: 64 bytes of float32. */
enum { DR_OFFSET_UNIT = 16 };

/* What a parameter is for, in the order in which a layer holds them. DR_ROLES also stands for "none". */
typedef enum {
    DR_ROLE_MIXER_NORM,
    DR_ROLE_QUERY,
    DR_ROLE_KEY,
    DR_ROLE_VALUE,
    DR_ROLE_QUERY_CONV,
    DR_ROLE_QUERY_CONV_BIAS,
    DR_ROLE_KEY_CONV,
    DR_ROLE_KEY_CONV_BIAS,
    DR_ROLE_VALUE_CONV,
    DR_ROLE_VALUE_CONV_BIAS,
    DR_ROLE_DECAY,
    DR_ROLE_DECAY_BIAS,
    DR_ROLE_DECAY_DOWN,
    DR_ROLE_DECAY_UP,
    DR_ROLE_DECAY_UP_BIAS,
    DR_ROLE_A_LOG,
    DR_ROLE_DT_BIAS,
    DR_ROLE_BETA,
    DR_ROLE_BETA_BIAS,
    DR_ROLE_ERASE_KEY_DOWN,
    DR_ROLE_ERASE_KEY_UP,
    DR_ROLE_ERASE_GAIN,
    DR_ROLE_LAMBDA,
    DR_ROLE_LAMBDA_BIAS,
    DR_ROLE_ERASE_GATE,
    DR_ROLE_WRITE_GATE,
    DR_ROLE_FEEDBACK,
    DR_ROLE_CORRECTION,
    DR_ROLE_SCAN_DECAY,
    DR_ROLE_SCAN_GAIN,
    DR_ROLE_SCAN_A_LOG,
    DR_ROLE_SCAN_DT_BIAS,
    DR_ROLE_SCAN_CENTRE,
    DR_ROLE_RIDGE,
    DR_ROLE_SKIP,
    DR_ROLE_GATE,
    DR_ROLE_GATE_DOWN,
    DR_ROLE_GATE_UP,
    DR_ROLE_GATE_UP_BIAS,
    DR_ROLE_OUTPUT_NORM,
    DR_ROLE_OUTPUT,
    DR_ROLE_MLP_NORM,
    DR_ROLE_MLP_GATE,
    DR_ROLE_MLP_UP,
    DR_ROLE_MLP_DOWN,
    DR_ROLES
} dr_role;

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

/* One parameter of a layer; count 0: the layer has none of that role. */
typedef struct {
    const char *name; /* after "model.layers.N." */
    dr_initial initial;
    bool decays; /* by weight decay */
    int rank;
    int64_t shape[3];
    int64_t count, offset; /* elements; from the layer's start */
} dr_slot;

/* Fills in the slot of a role; sizes past the rank are 0. DR_ERROR_ARGUMENT if its elements overflow. */
dr_status dr_slot_fill(dr_slot slots[DR_ROLES], dr_role role, dr_initial initial, int64_t rows, int64_t columns, int64_t depth);

/* Gives every slot its offset, in the order of roles; returns the elements of a layer. */
int64_t dr_slots_place(dr_slot slots[DR_ROLES]);

/* count first values, the same for the same seed and stream on every machine. */
void dr_initial_draw(const dr_initial *initial, double range, uint64_t seed, uint64_t stream, int64_t count, double *values);

#endif
