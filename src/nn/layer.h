/* One layer: modules one after another around the residual stream,
 *
 *     stream_(j+1) = stream_j + after_j(module_j(before_j(stream_j)))
 *
 * from x = stream_0 to y, the stream behind the last. Most layers have two parts, a mixer and a feed-forward, and no norm
 * `after`. Layers of a model that are configured alike share one dr_layer; their parameters lie in different places.
 *
 * Where parts attend to earlier outputs (nn/depth.h) what a part reads is not what its output is added to, and whoever runs the
 * layers runs them part by part. */
#ifndef DR_NN_LAYER_H
#define DR_NN_LAYER_H

#include "nn/depth.h"
#include "nn/norm.h"

enum { DR_LAYER_PARTS = 2 };

typedef struct {
    dr_norm before, after; /* of DR_NORM_NONE where there is none */
    dr_depth_query depth;  /* of earlier outputs, where description->depth_norm is one */
    dr_module *module;
} dr_part;

typedef struct {
    const dr_layer_description *description; /* of the first layer that is configured so */
    int64_t hidden;
    dr_part part[DR_LAYER_PARTS];
    int parts; /* 1 at least */
    dr_layer_parameters list;
} dr_layer;

/* Adds a part to a layer, which owns the module from then on. */
void dr_layer_add(dr_layer *layer, const dr_part *part);
void dr_layer_release(dr_backend *backend, dr_layer *layer);

/* What a forward makes: the stream [rows, hidden] in front of each part, [0] being where the layer before writes; what the
 * module gives where that is not added at once; the modules' own. */
typedef struct {
    void *stream[DR_LAYER_PARTS], *made[DR_LAYER_PARTS];
    void *normed[DR_LAYER_PARTS]; /* what the module reads, where it is kept, else NULL */
    void *module[DR_LAYER_PARTS]; /* host structs */
} dr_layer_memory;

/* What calls use and leave behind, and the plans: one for all layers of a kind. [rows, hidden] each, NULL where not needed. */
typedef struct {
    void *normed;
    void *d_normed, *d_made;                              /* of the backward alone */
    void *plan[DR_LAYER_PARTS], *scratch[DR_LAYER_PARTS]; /* host structs */
} dr_layer_scratch;

/* What a sequence carries through a layer: host structs of its modules. */
typedef struct {
    void *module[DR_LAYER_PARTS];
} dr_layer_state;

/* Host bytes of the modules' structs, handed out from an arena in host memory. */
void dr_layer_host_memory(const dr_layer *layer, dr_arena *host, dr_layer_memory *memory);
void dr_layer_host_scratch(const dr_layer *layer, dr_arena *host, dr_layer_scratch *scratch);
void dr_layer_host_state(const dr_layer *layer, dr_arena *host, dr_layer_state *state);

/* Plans of a call over such a layout, whose boundaries lie in host memory. */
dr_status dr_layer_plan(const dr_layer *layer, dr_backend *backend, const dr_layout *layout, dr_layer_scratch *scratch);

/* Of a call (its module, plan, memory, scratch and state are filled in by the functions here). memory->stream[0] is not handed
 * out: it is where the layer before writes. */
void dr_layer_place(const dr_layer *layer, const dr_module_call *call, bool keep, dr_arena *arena, dr_layer_memory *memory,
                    const dr_layer_scratch *scratch);
void dr_layer_place_scratch(const dr_layer *layer, const dr_module_call *call, bool backward, dr_arena *arena,
                            dr_layer_scratch *scratch);
void dr_layer_place_state(const dr_layer *layer, dr_backend *backend, int64_t sequences, dr_arena *arena,
                          dr_layer_state *state);

/* Room for so many tokens of each sequence, where a state grows with them; and giving that back. */
dr_status dr_layer_reserve_state(const dr_layer *layer, dr_backend *backend, int64_t sequences, int64_t tokens,
                                 const dr_layer_state *state);
void dr_layer_release_state(const dr_layer *layer, dr_backend *backend, const dr_layer_state *state);

/* Tensors of the state that grow, or only how many there are if grown is NULL. */
int64_t dr_layer_grown(const dr_layer *layer, const dr_layer_state *state, dr_grown *grown);
/* The tokens at whose multiples a sequence may be cut without a change of bits. */
dr_status dr_layer_chunk(const dr_layer *layer, dr_backend *backend, int64_t *tokens);

/* y [rows, hidden] from memory->stream[0]; y may be that where no backward follows. state may be NULL. */
dr_status dr_layer_forward(const dr_layer *layer, const dr_module_call *call, void *y, const dr_layer_memory *memory,
                           const dr_layer_scratch *scratch, const dr_layer_state *state);

/* Turns the gradient d [rows, hidden] of y into that of x, in place, and adds to the layer's gradients. */
dr_status dr_layer_backward(const dr_layer *layer, const dr_module_call *call, void *d, const dr_layer_memory *memory,
                            const dr_layer_scratch *scratch);

/* One part: y = base + after(module(before(x))), all [rows, hidden]; base may be y, or NULL: zeros. memory->stream[index] must
 * hold x where a backward follows. */
dr_status dr_layer_part_forward(const dr_layer *layer, int index, const dr_module_call *call, const void *x, const void *base,
                                void *y, const dr_layer_memory *memory, const dr_layer_scratch *scratch,
                                const dr_layer_state *state);
/* The gradient of x, without what comes through base, from that of y; accumulate: it is added to, and may be d_y. */
dr_status dr_layer_part_backward(const dr_layer *layer, int index, const dr_module_call *call, const void *d_y, void *d_x,
                                 bool accumulate, const dr_layer_memory *memory, const dr_layer_scratch *scratch);

#endif
