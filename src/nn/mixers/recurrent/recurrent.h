/* The recurrent mixer: what stands between its input x [rows, hidden] and the recurrence, and after it.
 *
 * A mixer is a list of nodes over values. A *value* is a tensor that a forward makes or reads: x, a projection of it, a
 * parameter, the output of the recurrence. A *node* makes one value from others: a projection, a convolution, a gate, a norm, a
 * product with a factor. The list is made once from the rule's axes and the description (build.c says which parameters and
 * streams there are, list.c which nodes); the forward walks it, and the backward walks it in reverse, each node turning the
 * gradient of what it made into those of what it read (nodes.c). Nothing but the list knows the rule.
 *
 * Memory. A value may share its memory with the value that it is made from, where the node works in place; and its gradient
 * with that of a value made from it, where the node's backward does. Projections that a convolution, a gate or the output's
 * norm reads are columns of one *panel*: their weights lie one behind the other in the block, so that all of them are one
 * product, and in the backward two. Its gradient is written over the panel itself: each column of it is read once more in the
 * backward, by the operation that writes its gradient. */
#ifndef DR_NN_MIXERS_RECURRENT_H
#define DR_NN_MIXERS_RECURRENT_H

#include "formats/names/description.h"
#include "nn/module.h"

enum {
    DR_MAX_VALUES = 96,
    DR_MAX_NODES = 96,
    DR_MAX_CONVS = 3, /* query, key, value */
    DR_MAX_STREAMS = 16,
    DR_VALUE_X = 0, /* what the call gives */
    DR_VALUE_Y = 1, /* what it wants */
    DR_NO_VALUE = -1
};

/* Where the gradient of a value stands while a backward runs. */
typedef enum {
    DR_GRADIENT_NONE,      /* nowhere: the value is constant */
    DR_GRADIENT_OWN,       /* in memory of its own, from the first node that gives to it on */
    DR_GRADIENT_NORMED,    /* in that of the normed output, which is not read any more when it is written */
    DR_GRADIENT_IN_PLACE,  /* in the memory of the value, which nothing reads once its gradient is there */
    DR_GRADIENT_SHARED,    /* with that of the value `gradient` */
    DR_GRADIENT_BRIEF,     /* in one buffer for all such values: the next node of the walk takes it */
    DR_GRADIENT_BRIEF_LOW, /* likewise, of values between the two matrices of a projection */
    DR_GRADIENT_PARAMETER  /* with those of the parameters, which are added to */
} dr_gradient_place;

typedef struct {
    dr_kind kind;
    bool of_rows; /* [rows, columns], or [columns] */
    int64_t columns;
    int parameter;        /* whose memory it is, or DR_NO_PARAMETER */
    const void *constant; /* its memory where that is the mixer's, or NULL */
    int memory;           /* the value whose memory it has, itself perhaps */
    bool kept;            /* has memory of its own where a backward follows */
    bool remade;          /* a convolution makes it, and nodes that work on that in place, from what is kept */
    int panel;            /* the value whose columns it is, from `column` on; or DR_NO_VALUE */
    int64_t column;
    dr_gradient_place place;
    int gradient; /* of DR_GRADIENT_SHARED */
} dr_node_value;

typedef struct dr_node dr_node;
typedef struct dr_node_call dr_node_call;

typedef struct {
    const char *name;
    dr_status (*forward)(const dr_node_call *, const dr_node *);
    dr_status (*backward)(const dr_node_call *, const dr_node *); /* NULL: nothing that it reads has a gradient */
} dr_node_operations;

struct dr_node {
    const dr_node_operations *operations;
    int from, with, to; /* values: read, read beside it or DR_NO_VALUE, and made */
    int weight, bias;   /* parameters, or DR_NO_PARAMETER */
    int64_t heads, dim; /* of what it makes, or of what it works on */
    int members;        /* of a panel that it makes; 0: it makes none */
    double factor;
    dr_gate gate;         /* without rows */
    dr_function function; /* of each element */
    dr_rms_norm norm;     /* of the output, without rows */
    bool activated;       /* silu in a convolution */
    bool divides;         /* a convolution, the vectors of heads by their lengths */
    bool adds;            /* to what stands in `to` */
    int conv;             /* index of a convolution's state */
    bool accumulates;     /* in the backward: nodes behind have given to the gradient of `from` before */
};

typedef struct {
    dr_module module;
    dr_recurrent_description is; /* its rule is the caller's; the one below is run */
    dr_rule rule;                /* as the engine runs it: the query's correction is made before the norm, by the mixer */
    int64_t heads, value_heads, key_size, value_size;
    double *frequencies; /* [key_size / 2] of the rotary embedding, or NULL */
    double rotary_factor;
    dr_node_value value[DR_MAX_VALUES];
    int values;
    dr_node node[DR_MAX_NODES];
    int nodes;
    int64_t panel_columns[DR_MAX_STREAMS]; /* [panel_members] of the projections that are one product */
    int panel_members;
    int input[DR_INPUTS]; /* the value that the recurrence reads as each, or DR_NO_VALUE */
    int output;           /* the value that it makes */
    int64_t conv_channels[DR_MAX_CONVS];
    int convs;
    void *constant_decay; /* [HV] in the backend's memory, where the rule has it */
    void *ridge_floor;    /* [H, K], added to the ridge */
} dr_recurrent;

/* Values and nodes of a mixer; its constants are made on the backend. */
dr_status dr_recurrent_create(dr_backend *backend, int64_t hidden, const dr_recurrent_description *description,
                              const char *prefix, dr_layer_parameters *list, dr_module **module);

/* What a sequence carries through a mixer. */
typedef struct {
    void *conv[DR_MAX_CONVS]; /* [sequences, conv_size - 1, channels] of each convolution */
    void *at[DR_STATES];
} dr_recurrent_state;

/* What a forward makes of each value; NULL for what is not the mixer's own, or stands in the scratch. */
typedef struct {
    void *at[DR_MAX_VALUES];
    void *saved; /* the engine's, unless it stands in the scratch */
    void *y;     /* as in the scratch, where it is kept, else NULL */
} dr_recurrent_memory;

/* What calls use and leave behind; one for all layers. */
typedef struct {
    void *y;         /* [rows, HV, V] normed and gated; then the gradient of what it is made from */
    void *workspace; /* the engine's; in the backward, before it runs, d_y */
    /* of the backward alone */
    void *d[DR_MAX_VALUES];          /* of values whose gradient has memory of its own */
    void *d_brief, *d_low;           /* of the widest value whose gradient stands there */
    void *d_y;                       /* of y above */
    void *at[DR_MAX_VALUES], *saved; /* as in the memory, of what a backward makes again; else NULL */
} dr_recurrent_scratch;

extern const dr_module_operations dr_recurrent_operations; /* nn/module.h */

/* The mixer of a call. */
static inline const dr_recurrent *dr_recurrent_of(const dr_module_call *call) {
    return (const dr_recurrent *)call->module;
}

/* Of a mixer for such a layout, without boundaries. */
dr_recurrence dr_recurrent_recurrence(const dr_recurrent *mixer, const dr_layout *layout);

/* A node at work. */
struct dr_node_call {
    const dr_module_call *call;
    const dr_recurrent *mixer;
    const dr_recurrent_memory *memory;
    const dr_recurrent_scratch *scratch;
    const dr_recurrent_state *state; /* or NULL */
    const void *x;
    void *y;         /* of a forward */
    const void *d_y; /* of a backward */
    void *d_x;
};

/* What the recurrence reads, once the nodes before it are done. */
dr_inputs dr_node_inputs(const dr_node_call *n);
/* The same of a call that is over, from the memory that it left. */
dr_inputs dr_recurrent_inputs(const dr_module_call *call, const dr_recurrent_memory *memory);

/* The value whose memory stands for the gradient of this one. */
static inline int dr_gradient_of(const dr_recurrent *mixer, int value) {
    while (mixer->value[value].place == DR_GRADIENT_SHARED) value = mixer->value[value].gradient;
    return value;
}

/* The nodes (nodes.c). */
extern const dr_node_operations dr_node_linear, dr_node_grouped_linear, dr_node_conv, dr_node_gate, dr_node_function,
    dr_node_unit, dr_node_sum, dr_node_rotary, dr_node_scale, dr_node_add, dr_node_fill, dr_node_read, dr_node_recurrence,
    dr_node_output;

/* What build.c says of an input of the recurrence that is a projection of x: a *stream*. */
typedef enum { DR_MAP_NONE, DR_MAP_CONV, DR_MAP_GATE } dr_map;

typedef struct {
    dr_input input; /* what the recurrence calls it; DR_INPUTS: the gate of the output */
    int down;       /* parameter: x [hidden] -> [rank] before weight, or DR_NO_PARAMETER */
    int weight;     /* parameter: -> [heads, dim] */
    int bias;       /* parameter, of weight, or DR_NO_PARAMETER */
    bool grouped;   /* weight is [heads, dim, rank / heads], one matrix a head */
    int64_t rank;   /* what weight takes in: hidden, or less behind down */
    int64_t heads, dim;
    dr_map map;
    int map_weight, map_bias; /* list of the convolution; or of A_log and dt_bias of the gate; or DR_NO_PARAMETER */
    dr_gate gate;             /* of DR_MAP_GATE, without rows; fewer heads than the stream's share its parameters */
    bool activated;           /* silu in the convolution */
    dr_function feature;      /* after the map; DR_FUNCTION_IDENTITY: none */
    dr_length_kind length;    /* of each head, after that */
    bool rotated;
} dr_stream;

/* The streams in the order in which d_x is summed over them, and the parameters that no stream has. */
typedef struct {
    dr_stream stream[DR_MAX_STREAMS];
    int streams;
    int of[DR_INPUTS + 1]; /* index of an input's stream, of the output gate's at DR_INPUTS; -1: none */
    double fixed_lambda;   /* of every token and head; negative: lambda is a stream, or not read */
    int feedback, correction, scan_centre, ridge, step_bias, skip, output_norm, output; /* DR_NO_PARAMETER: there is none */
} dr_recurrent_parts;

/* The list of nodes (list.c); the mixer is complete but for it. Joins the weights of the panel in the layer's list. */
void dr_recurrent_list(dr_backend *backend, const dr_recurrent_parts *parts, dr_layer_parameters *list, dr_recurrent *mixer);

#endif
