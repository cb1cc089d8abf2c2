/* The mixer of a layer: what stands between its input x [rows, hidden] and the recurrence, and after it.
 *
 * Everything that the recurrence reads token by token is a *stream*: a projection of x, then a convolution or a gate, then
 * perhaps the L2 norm and the rotary embedding. Which streams there are follows from the rule's axes; how they are treated
 * from its family (nn/family.h). The output o [rows, HV, V] is normed, gated and projected to y [rows, hidden]. */
#ifndef DR_NN_MIXER_H
#define DR_NN_MIXER_H

#include "base/memory.h"
#include "nn/family.h"
#include "nn/parameters.h"
#include "ops/plan.h"

enum { DR_MAX_STREAMS = 16 };

typedef enum { DR_MAP_NONE, DR_MAP_CONV, DR_MAP_GATE } dr_map;

typedef struct {
    dr_input input; /* what the recurrence calls it; DR_INPUTS: the gate of the output */
    dr_role down;   /* x [hidden] -> [rank] before weight, or DR_ROLES */
    dr_role weight; /* -> [heads, dim] */
    dr_role bias;   /* of weight, or DR_ROLES */
    bool grouped;   /* weight is [heads, dim, rank / heads], one matrix a head */
    int64_t rank;   /* what weight takes in: hidden, or less behind down */
    int64_t heads, dim;
    dr_map map;
    dr_role map_weight, map_bias; /* of the convolution; or A_log and dt_bias of the gate */
    dr_gate gate;                 /* of DR_MAP_GATE, without rows; fewer heads than the stream's share its parameters */
    bool unit, rotated;
} dr_stream;

/* Of a stream's output and its gradient; its projection is a vector always. */
dr_kind dr_stream_kind(const dr_stream *stream);

typedef struct {
    dr_layer_family family;
    dr_rule rule; /* as the engine runs it: the query's correction is made before the norm, by the mixer */
    int64_t hidden, heads, value_heads, key_size, value_size, conv_size;
    dr_initial conv_initial;
    double scale, norm_eps, rotary_base;
    dr_stream stream[DR_MAX_STREAMS];
    int streams;
    int of[DR_INPUTS + 1]; /* index of an input's stream, of the output gate's at DR_INPUTS; -1: none */
    bool feedback, corrected;
    double fixed_lambda;  /* of every token and head; negative: lambda is a stream, or not read */
    void *constant_decay; /* [HV] in the backend's memory, where the rule has it */
    void *ridge_floor;    /* [H, K], added to the ridge */
    dr_slot slot[DR_ROLES];
} dr_mixer;

/* The mixer of a configuration that was checked (dr_config_resolve): streams and parameters; the constants are made on the
 * backend. Offsets are placed by whoever adds the rest of the layer. */
dr_status dr_mixer_create(dr_backend *backend, const dr_model_config *config, dr_mixer *mixer);
void dr_mixer_destroy(dr_backend *backend, dr_mixer *mixer);

/* What a sequence carries through a mixer. */
typedef struct {
    void *conv[DR_MAX_STREAMS]; /* [sequences, conv_size - 1, channels] of each convolved stream */
    void *at[DR_STATES];
} dr_mixer_state;

/* One layer at work on a call's rows. */
typedef struct {
    const dr_mixer *mixer;
    dr_backend *backend;
    const dr_plan *plan;    /* of the recurrence, for this call */
    const char *parameters; /* the layer's part of the block */
    const char *weights;    /* the same part of the copies that products read */
    char *gradients;        /* likewise, or NULL */
    dr_layout layout;       /* cu_seqlens in the backend's memory, as is seen */
    const int64_t *seen;    /* [sequences] tokens before this call */
    bool decode;            /* one token a sequence, by the decode engine; needs a state */
} dr_layer;

/* A role's parameter, as a number and as a vector; its gradient. NULL if there is none. */
const void *dr_layer_parameter(const dr_layer *layer, dr_role role);
const void *dr_layer_weight(const dr_layer *layer, dr_role role);
void *dr_layer_gradient(const dr_layer *layer, dr_role role);
dr_recurrence dr_layer_recurrence(const dr_layer *layer);              /* without boundaries */
dr_gate dr_layer_gate(const dr_layer *layer, const dr_stream *stream); /* with rows */
dr_rotary dr_layer_rotary(const dr_layer *layer, const dr_stream *stream);

/* What a forward makes of each stream, [rows, heads, dim] but for hidden [rows, rank]. Stages that do nothing share memory. */
typedef struct {
    void *hidden[DR_MAX_STREAMS], *raw[DR_MAX_STREAMS], *mapped[DR_MAX_STREAMS], *out[DR_MAX_STREAMS];
    void *step, *stepped;                       /* [rows, HV], the value times it [rows, HV, V] */
    void *feedback_factor, *feedback, *erasing; /* [H], factor times key [rows, H, K], that with the norm of keys */
    void *correction;                           /* [rows, H, K] */
    void *ridge;                                /* [H, K] */
    void *fixed_lambda;                         /* [rows, HV] */
    void *o, *saved;                            /* [rows, HV, V]; the engine's */
} dr_mixer_memory;

/* What calls use and leave behind; one for all layers. */
typedef struct {
    void *y;         /* [rows, HV, V] normed and gated */
    void *workspace; /* the engine's */
    /* of the backward alone */
    void *d_out[DR_MAX_STREAMS]; /* gradients of the streams' outputs, then of their projections */
    void *d_raw, *d_hidden;      /* of the widest */
    void *d_y, *d_o, *d_step, *d_stepped, *d_erasing, *d_factor, *d_centre, *d_ridge;
} dr_mixer_scratch;

/* Hands out memory for rows tokens. keep: stages overwrite nothing that a backward needs. */
void dr_mixer_place(const dr_layer *layer, bool keep, dr_arena *arena, dr_mixer_memory *memory);
void dr_mixer_place_scratch(const dr_layer *layer, bool backward, dr_arena *arena, dr_mixer_scratch *scratch);

/* y [rows, hidden] from x [rows, hidden]. state: carried in and out, or NULL: from zero. */
dr_status dr_mixer_forward(const dr_layer *layer, const void *x, void *y, const dr_mixer_memory *memory,
                           const dr_mixer_scratch *scratch, const dr_mixer_state *state);

/* d_x [rows, hidden] (overwritten) and the layer's gradients (added to) from d_y [rows, hidden]; x and memory as a forward from
 * zero state with keep left them. */
dr_status dr_mixer_backward(const dr_layer *layer, const void *x, const void *d_y, void *d_x, const dr_mixer_memory *memory,
                            const dr_mixer_scratch *scratch);

/* Norm, gate and order of the output: scratch->y from memory->o. Also the backward's, which does not keep it. */
dr_status dr_mixer_norm_output(const dr_layer *layer, const dr_mixer_memory *memory, const dr_mixer_scratch *scratch);
dr_rms_norm dr_mixer_output_norm(const dr_layer *layer);
/* A call of the plan: boundaries, saved and workspace are filled in. */
dr_call dr_layer_call(const dr_layer *layer, const dr_inputs *inputs, const dr_mixer_memory *memory,
                      const dr_mixer_scratch *scratch);
/* The recurrence's inputs from the streams. */
dr_inputs dr_mixer_inputs(const dr_layer *layer, const dr_mixer_memory *memory);

#endif
