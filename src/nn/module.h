/* A module: one half of a layer, which maps x [rows, hidden] to y [rows, hidden], such as a recurrent mixer or a feed-forward.
 *
 * A module is configured once, by a create function of its own that adds the module's parameters to the layer's list, and is
 * read only from then on: the layers of a model that are configured alike share it, and so do sessions. What differs from
 * layer to layer and from call to call stands in dr_module_call.
 *
 * Memory. A module describes what it needs as plain structs on the host, whose pointers `place` functions fill from an arena
 * that counts first and hands out then (base/memory.h):
 *
 *     plan      what is worked out once for a layout, such as the plan of a recurrence; shared by layers of one kind
 *     memory    what a forward makes; kept until the backward if there is one, of each layer then
 *     scratch   what calls use and leave behind; one for all layers
 *     state     what sequences carry from call to call, of each layer; a part of fixed size that is placed, and one that grows
 *               with their tokens, which the module allocates itself
 *
 * docs/adding-a-module.md writes one. */
#ifndef DR_NN_MODULE_H
#define DR_NN_MODULE_H

#include "base/memory.h"
#include "nn/parameters.h"
#include "ops/operations.h"

#include <math.h>

typedef struct dr_module dr_module;

/* One tensor of a state that grows, [sequences, capacity, columns] vectors. A sequence that has seen n tokens finds there the
 * last `most` of them, or all; that of position p lies at p % capacity of its slot. */
typedef struct {
    void *at;
    int64_t capacity, columns, most;
} dr_grown;

/* A module at work on a call's rows. */
typedef struct {
    dr_backend *backend;
    const dr_module *module;
    const dr_layer_parameter *list; /* of the layer */
    const char *parameters;         /* the layer's part of the block */
    const char *weights;            /* the layer's part of what products read */
    char *gradients;                /* likewise, or NULL */
    dr_layout layout;               /* cu_seqlens in the backend's memory, as is seen */
    int64_t longest;                /* tokens of the longest sequence of the call, 1 at least */
    const int64_t *seen;            /* [sequences] tokens before this call */
    const int64_t *slot; /* [sequences] slots of a state that grows; NULL: sequence i has slot i. Of a state that does not, the
                          * call's sequences are the first ones */
    bool keeps;          /* what is kept for a backward includes what it could make again with little work */
    bool remakes_saved;  /* of a gradient's call: what an engine saves stays in scratch, and a backward has it saved again */
    bool remakes_inputs; /* likewise what convolutions make for an engine; only with remakes_saved */
    bool decode;         /* one token a sequence, or several of one sequence, by decoding engines; needs a state */
    const void *plan;
    const void *memory, *scratch;
    void *state; /* carried in and out, or NULL: from zero */
    /* A loss of the module's own, such as experts' for being used evenly: a forward adds it to extra_loss [1], a number, unless
     * that is NULL, and a backward adds extra_factor times its gradient. */
    void *extra_loss;
    double extra_factor;
    /* What goes from layer to layer beside the stream, such as the value of rwkv7's first layer: [rows, columns], which the
     * first layer that has one writes and later ones read; in a backward later ones add to its gradient, zero at first, before
     * the first reads it. NULL where there is none. */
    void *passed, *d_passed;
    const void *plus; /* [rows, hidden]: what a forward adds y to (dr_linear.plus), or NULL */
} dr_module_call;

typedef struct {
    const char *name;
    const dr_operation *needs; /* operations that the backend must have, DR_OPERATIONS behind the last */
    size_t plan_size, memory_size, scratch_size, state_size; /* bytes of the module's structs; 0: it has none */

    /* layout: its boundaries in host memory. NULL: there is nothing to plan. */
    dr_status (*plan)(const dr_module *, dr_backend *, const dr_layout *layout, void *plan);
    /* Of a call that has layout, longest, plan and decode, for its rows. keep: the forward overwrites nothing that the backward
     * reads. backward: there will be one. place_state: for so many sequences, zero bytes at first; NULL: there is none. Each
     * part that it takes is one tensor of numbers, [sequences, ...]. */
    void (*place)(const dr_module_call *, bool keep, dr_arena *, void *memory);
    void (*place_scratch)(const dr_module_call *, bool backward, dr_arena *, void *scratch);
    void (*place_state)(const dr_module *, dr_backend *, int64_t sequences, dr_arena *, void *state);

    /* Of a state that grows, whose struct is all zero at first; NULL: it does not. reserve_state makes room for so many tokens
     * of each sequence, counted from its start, before a call in which a sequence comes to so many. What is remembered stays;
     * on failure the state is as it was. */
    dr_status (*reserve_state)(const dr_module *, dr_backend *, int64_t sequences, int64_t tokens, void *state);
    void (*release_state)(const dr_module *, dr_backend *, void *state);
    /* Its tensors, or only how many there are if grown is NULL. */
    int64_t (*grown)(const dr_module *, const void *state, dr_grown *grown);

    /* Tokens of a chunk of the module's engine on that backend: a sequence that is cut at multiples of it has the bits of the
     * whole. NULL: cut anywhere it has. */
    dr_status (*chunk)(const dr_module *, dr_backend *, int64_t *tokens);

    /* Columns of what the call has as passed, 0: none; writes: whether this module writes it. NULL: there is none. */
    int64_t (*passed)(const dr_module *, bool *writes);

    /* Whether a forward takes the call's plus, on a backend that sums. NULL: it does not. */
    bool (*sums)(const dr_module *);

    /* x, y [rows, hidden]; they do not overlap. */
    dr_status (*forward)(const dr_module_call *, const void *x, void *y);
    /* d_x [rows, hidden] (overwritten) and the parameters' gradients (added to) from d_y [rows, hidden]; x and memory as a
     * forward from zero state left them that was placed with keep. */
    dr_status (*backward)(const dr_module_call *, const void *x, const void *d_y, void *d_x);

    void (*destroy)(dr_backend *, dr_module *); /* releases the module and what it holds */
} dr_module_operations;

/* What every module begins with; each kind has a struct of its own whose first member this is. */
struct dr_module {
    const dr_module_operations *operations;
    int64_t hidden;
};

/* A parameter of the module at work as a number, as a vector that products read, and its gradient; NULL for DR_NO_PARAMETER,
 * and the gradient where no gradients are wanted. */
static inline const void *dr_module_parameter(const dr_module_call *call, int index) {
    if (index == DR_NO_PARAMETER) return NULL;
    return call->parameters + dr_kind_bytes(call->backend, DR_NUMBER, call->list[index].offset);
}

static inline const void *dr_module_weight(const dr_module_call *call, int index) {
    if (index == DR_NO_PARAMETER) return NULL;
    const dr_layer_parameter *parameter = &call->list[index];
    const bool apart = parameter->offset < 0;
    return call->weights + (apart ? parameter->weight_at : dr_kind_bytes(call->backend, DR_VECTOR, parameter->offset));
}

static inline void *dr_module_gradient(const dr_module_call *call, int index) {
    if (index == DR_NO_PARAMETER || !call->gradients) return NULL;
    return call->gradients + dr_kind_bytes(call->backend, DR_NUMBER, call->list[index].offset);
}

/* y = factor x, count vectors; y may be x. Needs DR_OPERATION_BOUND. */
static inline dr_status dr_module_scale(dr_backend *backend, double factor, int64_t count, const void *x, void *y) {
    const dr_bound bound = {factor, (double)-INFINITY, (double)INFINITY};
    if (factor == 1 && x == y) return DR_OK;
    return backend->ops->bound_forward(backend, &bound, count, x, y);
}

/* The least number of tokens that is a multiple of both, which are at least 1. */
static inline int64_t dr_common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x > 0 ? a / x * b : 0;
}

/* Bytes of so many columns of the call's rows. */
static inline size_t dr_module_bytes(const dr_module_call *call, dr_kind kind, int64_t columns) {
    return dr_kind_bytes(call->backend, kind, call->layout.rows * columns);
}

#endif
