/* The recurrent mixer: what stands between its input x [rows, hidden] and the recurrence, and after it.
 *
 * Everything that the recurrence reads token by token is a *stream*: a projection of x, then a convolution or a gate, then
 * perhaps a feature map, a norm and the rotary embedding. Which streams there are follows from the rule's axes; how they are
 * treated stands in the description. The output o [rows, HV, V] is normed, gated and projected to y [rows, hidden]. */
#ifndef DR_NN_MIXERS_RECURRENT_H
#define DR_NN_MIXERS_RECURRENT_H

#include "formats/names/description.h"
#include "nn/module.h"

enum { DR_MAX_STREAMS = 16 };

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

/* Of a stream's output and its gradient; its projection is a vector always. */
dr_kind dr_stream_kind(const dr_stream *stream);

typedef struct {
    dr_module module;
    dr_recurrent_description is; /* its rule is the caller's; the one below is run */
    dr_rule rule;                /* as the engine runs it: the query's correction is made before the norm, by the mixer */
    int64_t heads, value_heads, key_size, value_size;
    double *frequencies; /* [key_size / 2] of the rotary embedding, or NULL */
    double rotary_factor;
    dr_stream stream[DR_MAX_STREAMS];
    int streams;
    int of[DR_INPUTS + 1]; /* index of an input's stream, of the output gate's at DR_INPUTS; -1: none */
    bool feedback, corrected;
    double fixed_lambda;  /* of every token and head; negative: lambda is a stream, or not read */
    void *constant_decay; /* [HV] in the backend's memory, where the rule has it */
    void *ridge_floor;    /* [H, K], added to the ridge */
    struct {
        int feedback, correction, scan_centre, ridge, step_bias, skip, output_norm, output;
    } own; /* of parameters that no stream has; DR_NO_PARAMETER where there is none */
} dr_recurrent;

/* Streams and parameters of a mixer; its constants are made on the backend. */
dr_status dr_recurrent_create(dr_backend *backend, int64_t hidden, const dr_recurrent_description *description,
                              const char *prefix, dr_layer_parameters *list, dr_module **module);

/* What a sequence carries through a mixer. */
typedef struct {
    void *conv[DR_MAX_STREAMS]; /* [sequences, conv_size - 1, channels] of each convolved stream */
    void *at[DR_STATES];
} dr_recurrent_state;

/* The mixer of a call. */
static inline const dr_recurrent *dr_recurrent_of(const dr_module_call *call) {
    return (const dr_recurrent *)call->module;
}

/* Of a mixer for such a layout, without boundaries. */
dr_recurrence dr_recurrent_recurrence(const dr_recurrent *mixer, const dr_layout *layout);
dr_gate dr_recurrent_gate(const dr_module_call *call, const dr_stream *stream); /* with rows */
dr_rotary dr_recurrent_rotary(const dr_module_call *call, const dr_stream *stream);

/* What a forward makes of each stream, [rows, heads, dim] but for hidden [rows, rank]. Stages that do nothing share memory. */
typedef struct {
    void *hidden[DR_MAX_STREAMS], *raw[DR_MAX_STREAMS], *mapped[DR_MAX_STREAMS], *featured[DR_MAX_STREAMS],
        *out[DR_MAX_STREAMS];
    void *step, *stepped;                       /* [rows, HV], the value times it [rows, HV, V] */
    void *feedback_factor, *feedback, *erasing; /* [H], factor times key [rows, H, K], that with the norm of keys */
    void *correction;                           /* [rows, H, K] */
    void *ridge;                                /* [H, K] */
    void *fixed_lambda;                         /* [rows, HV] */
    void *o, *saved;                            /* [rows, HV, V]; the engine's */
} dr_recurrent_memory;

/* What calls use and leave behind; one for all layers. */
typedef struct {
    void *y;         /* [rows, HV, V] normed and gated */
    void *workspace; /* the engine's */
    /* of the backward alone */
    void *d_out[DR_MAX_STREAMS]; /* gradients of the streams' outputs, then of their projections */
    void *d_raw, *d_hidden;      /* of the widest */
    void *d_y, *d_o, *d_step, *d_stepped, *d_erasing, *d_factor, *d_centre, *d_ridge;
} dr_recurrent_scratch;

/* The module's operations (nn/module.h), but for those that build.c has alone. */
void dr_recurrent_place(const dr_module_call *call, bool keep, dr_arena *arena, void *memory);
void dr_recurrent_place_scratch(const dr_module_call *call, bool backward, dr_arena *arena, void *scratch);
dr_status dr_recurrent_forward(const dr_module_call *call, const void *x, void *y);
dr_status dr_recurrent_backward(const dr_module_call *call, const void *x, const void *d_y, void *d_x);

/* Norm, gate and order of the output: scratch->y from memory->o. Also the backward's, which does not keep it. */
dr_status dr_recurrent_norm_output(const dr_module_call *call, const dr_recurrent_memory *memory,
                                   const dr_recurrent_scratch *scratch);
dr_rms_norm dr_recurrent_output_norm(const dr_module_call *call);
/* The recurrence's inputs from the streams. */
dr_inputs dr_recurrent_inputs(const dr_module_call *call, const dr_recurrent_memory *memory);

#endif
