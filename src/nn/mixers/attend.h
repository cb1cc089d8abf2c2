/* What both attention mixers do with queries, keys and values once they have them: the rotary embedding, softmax attention over
 * the call's tokens and those that a state remembers, the gate of its output, and the last projection.
 *
 *     o   = attention of q, k, v (ops/attention.h)
 *     y   = o_proj(o * sigmoid(g_proj x)), the gate by element, by head or not there
 *
 * Keys and values of earlier tokens are a state that grows: a slot of `capacity` tokens for each sequence, at least doubled
 * when a call needs more. With a window a slot never has more than the window - 1 tokens that the next query sees and
 * DR_ATTEND_BACK more, and is a ring: so many of the last tokens can be taken back. */
#ifndef DR_NN_MIXERS_ATTEND_H
#define DR_NN_MIXERS_ATTEND_H

#include "formats/names/description.h"
#include "nn/module.h"

enum { DR_ATTEND_BACK = 256 };

typedef struct {
    dr_attention attention; /* without a layout */
    int64_t hidden;
    dr_rotary rotary;    /* of what is turned of a head: without layout, heads, sizes and offset */
    double *frequencies; /* [rotary.dim / 2], or NULL: nothing is turned */
    dr_attention_gate gate;
    int gate_weight, gate_bias, output, output_bias; /* list; DR_NO_PARAMETER: none */
} dr_attend;

/* What of a mixer is here. Without a spectrum nothing is turned. */
typedef struct {
    dr_attention attention;
    int64_t hidden;
    const dr_rotary_spectrum *spectrum;
    bool interleaved;
    dr_attention_gate gate;
    bool gate_bias, output_bias;
    dr_sight sight;
} dr_attend_description;

/* DR_ERROR_ARGUMENT unless a count of heads or of their channels is possible; name is that of the count in the sentence. */
dr_status dr_attend_check_size(const char *name, int64_t size);
/* DR_ERROR_ARGUMENT unless heads, sizes, scale and window are possible, DR_ERROR_UNSUPPORTED with what is missing unless
 * queries see all earlier tokens, or those of a window. */
dr_status dr_attend_check(const dr_attend_description *description);

/* Adds g_proj and o_proj to the list, of a description that was checked. On failure there is nothing to release. */
dr_status dr_attend_create(const dr_attend_description *description, const char *prefix, dr_layer_parameters *list,
                           dr_attend *attend);
void dr_attend_release(dr_attend *attend);

/* Of a forward, for the backward. */
typedef struct {
    void *q, *k, *v; /* [rows, heads, key_size], [rows, key_heads, key_size], [rows, key_heads, value_size] */
    void *o;         /* [rows, heads, value_size] */
    void *log_sums;  /* [rows, heads] numbers, or NULL: there is no backward */
    void *gate;      /* [rows, heads value_size], or [rows, heads] */
    void *factor;    /* [rows, heads] numbers: sigmoid of a gate by head */
} dr_attend_memory;

typedef struct {
    void *gated;                             /* [rows, heads value_size] */
    void *d_q, *d_k, *d_v;                   /* as q, k, v: of the backward alone, as the rest */
    void *d_gated, *d_o, *d_gate, *d_factor; /* as those */
} dr_attend_scratch;

void dr_attend_place(const dr_attend *attend, const dr_module_call *call, bool keep, dr_arena *arena, dr_attend_memory *memory);
void dr_attend_place_scratch(const dr_attend *attend, const dr_module_call *call, bool backward, dr_arena *arena,
                             dr_attend_scratch *scratch);

/* Turns x [rows, heads, size] in place: of each head the elements first .. first + rotary.dim - 1. */
dr_status dr_attend_turn(const dr_attend *attend, const dr_module_call *call, int64_t heads, int64_t size, int64_t first,
                         void *x, bool backward);

/* o from q, k, v of a call by an attention without a layout; what its state remembers is read and these are added to it.
 * log_sums may be NULL. */
dr_status dr_attend_run(const dr_attention *attention, const dr_module_call *call, const void *q, const void *k, const void *v,
                        void *o, void *log_sums);
/* From memory->o and x to y. */
dr_status dr_attend_finish(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory,
                           const dr_attend_scratch *scratch, void *y);
/* Both, from memory->q, k, v and x to y. */
dr_status dr_attend_forward(const dr_attend *attend, const dr_module_call *call, const void *x, const dr_attend_memory *memory,
                            const dr_attend_scratch *scratch, void *y);
/* scratch->d_q, d_k, d_v from d_y. *accumulate: whether d_x has been written, which is so where there is a gate. */
dr_status dr_attend_backward(const dr_attend *attend, const dr_module_call *call, const void *x, const void *d_y,
                             const dr_attend_memory *memory, const dr_attend_scratch *scratch, void *d_x, bool *accumulate);

/* What sequences remember, in one block of the backend's memory; all zero at first. */
typedef struct {
    int64_t capacity; /* tokens of a slot */
    void *keys, *values;
} dr_attend_state;

/* As reserve_state and release_state of nn/module.h. */
dr_status dr_attend_reserve(const dr_attention *attention, dr_backend *backend, int64_t sequences, int64_t tokens,
                            dr_attend_state *state);
void dr_attend_release_state(dr_backend *backend, dr_attend_state *state);
/* As grown of nn/module.h. */
int64_t dr_attend_grown(const dr_attention *attention, const dr_attend_state *state, dr_grown *grown);

#endif
