/* How published model types spell their tensors. For each type a table (formats/names/types.c): a
 * row joins some tensors of a file, in order, to one run of elements, and cuts that run into parameters. The same row reads and
 * writes. Nothing is changed but places: every element of a parameter is one element of a file.
 *
 * Parameters have names that do not depend on the publisher: those of flash-linear-attention where it has the parameter. D is
 * the hidden size. Names of a layer's mixer begin with "attn.", of a second one beside it with "attn2.", of its feed-forward
 * with "mlp.":
 *
 *     model
 *         model.embeddings.weight, lm_head.weight [vocabulary, D]
 *         model.embedding_norm, model.norm .{weight,bias} [D]
 *         model.res_proj.weight [1, D], model.res_norm.weight [D] (attention residuals)
 *     layer
 *         attn_norm, attn_post_norm, mlp_norm, mlp_post_norm .{weight,bias} [D]
 *         attn_res_proj, mlp_res_proj .weight [1, D], attn_res_norm, mlp_res_norm .weight [D]
 *     recurrent (H, HV, K, V of the description; n steps a token)
 *         q_proj, k_proj, v_proj .weight [heads size, D]
 *         q_conv1d, k_conv1d, v_conv1d .weight [heads size, 1, width] and .bias
 *         a_proj.{weight,bias} [HV, D], a scalar decay
 *         f_proj.weight [HV K, D], or f_proj.0.weight [rank, D] and f_proj.1.{weight,bias} [HV K, rank], a channel decay
 *         A_log [HV], dt_bias [HV] or [HV K]
 *         b_proj.{weight,bias} [n HV, D]
 *         erase_gate_proj.weight [HV K, D], write_gate_proj.weight [HV V, D], lamb_proj.weight [HV, D]
 *         a_atk_proj, b_atk_proj .weight [H, D], A_log_atk, dt_bias_atk, log_atk_scale [H]
 *         decay, D [H]; ridge [H, K]
 *         g_proj.weight [HV V, D], or g_proj.0.weight, g_proj.1.{weight,bias}
 *         o_norm.weight [V], o_proj.weight [D, HV V]
 *     attention
 *         q_proj, k_proj, v_proj, o_proj .{weight,bias}; q_norm, k_norm .weight
 *         g_proj.{weight,bias}, the gate: [heads value_size, D] by element or [heads, D] by head
 *     latent attention
 *         q_proj.weight, or q_a_proj.weight [query_rank, D], q_a_norm.weight, q_b_proj.weight
 *         kv_a_proj.weight [rank + turned, D], kv_a_norm.weight [rank]
 *         kv_b_proj.weight [heads (plain + value_size), rank], a head at a time
 *         o_proj.weight, g_proj.weight
 *     rwkv7
 *         x_mix [6, D], of r, w, k, v, a, g; r_proj, k_proj, v_proj, o_proj .weight
 *         w_lora, a_lora, v_lora, g_lora .0.weight [rank, D], .1.weight [heads size, rank], .1.bias
 *         k_k, k_a [D]; r_k [heads, key_size]; g_norm.{weight,bias} [D]
 *     mamba2
 *         in_proj.{weight,bias}, rows z, x, B, C, dt
 *         conv1d.weight [inner + 2 groups state_size, 1, width], .bias
 *         A_log, D, dt_bias [heads]; norm.weight [inner]; o_proj.{weight,bias}
 *     gated, plain
 *         gate_proj (gated only), up_proj, down_proj .{weight,bias}
 *     rwkv7's feed-forward
 *         x_mix [1, D]; up_proj.weight, down_proj.weight
 *     experts
 *         router.weight [E, D], router.bias [E]
 *         experts.gate_proj, experts.up_proj [E, width, D or latent], experts.down_proj [E, D or latent, width]
 *         shared.{gate,up,down}_proj.{weight,bias}, shared_gate.weight [1, D]
 *         latent_down.{weight,bias} [latent, D], latent_up.{weight,bias} [D, latent]
 *
 * Models of deltarule's own type have these names in their files. */
#ifndef DR_FORMATS_NAMES_NAMES_H
#define DR_FORMATS_NAMES_NAMES_H

#include "formats/names/description.h"
#include "formats/weights.h"

enum { DR_NAME_PIECES = 6, DR_NAME_TENSORS = 6, DR_NAME_BYTES = 256 };

/* How often the parameters of a row take turns in the joined tensors. */
typedef enum {
    DR_TURNS_ONE,     /* the first one whole, then the second, .. */
    DR_TURNS_HEADS,   /* a head's part of the first, of the second, ..; then the next head: heads of the layer's mixer */
    DR_TURNS_EXPERTS, /* likewise of experts */
} dr_turns;

/* The shape that a tensor has when it is written. It is read in any shape that differs by sizes of 1. */
typedef enum {
    DR_SHAPE_OWN,  /* the parameter's; of several parameters their rows together; of one of several tensors its share of rows */
    DR_SHAPE_FLAT, /* [count] */
    DR_SHAPE_CONV, /* [channels, 1, width] */
    DR_SHAPE_MIDDLE, /* [1, 1, count] */
    DR_SHAPE_HEADS,  /* [1, 1, count, 1] */
} dr_name_shape;

/* Empty places are NULL. In a tensor's name '%' stands for the number of an expert, and the row has one
 * tensor for each; a name that begins with '/' stands as it is behind that, without root and layer. */
typedef struct {
    const char *parameter[DR_NAME_PIECES];
    const char *tensor[DR_NAME_TENSORS];
    dr_turns turns;
    dr_name_shape shape;
    bool recut;  /* read only: tensors are cut elsewhere than parameters, so that only the sum of their sizes is known */
    bool joined; /* of a recurrent mixer: written only where norm and gate are one module of the class */
} dr_name_row;

typedef enum { DR_PART_MODEL, DR_PART_LAYER, DR_PART_MIXER, DR_PART_FEED } dr_name_part;

/* Rows of one part of a model. of: a dr_mixer_kind or dr_feed_kind. */
typedef struct {
    dr_name_part part;
    int of;
    const char *prefix; /* of tensors, behind the layer's */
    const dr_name_row *rows;
    int count;
} dr_name_section;

typedef struct {
    const char *model_type;
    const char *root;   /* of what belongs to no layer, "model." */
    const char *layers; /* of layers, before the number: "model.layers." */
    const dr_name_section *sections;
    int count;
    bool same; /* tensors have the parameters' names and shapes; there are no sections */
    const char *const
        *ignored;     /* beginnings of names of tensors that are no part of the language model; NULL behind the last */
    bool more_layers; /* layers behind the last may be in the file, and are ignored (predictors of further tokens) */
} dr_names;

/* The table of a published type, or NULL. */
const dr_names *dr_names_of(const char *model_type);

/* A parameter as a model lists it: its name behind the layer's, its layer or -1 for the model's own, its shape. */
typedef struct {
    const char *name;
    int64_t layer;
    int rank;
    int64_t shape[DR_MAX_RANK];
} dr_named_parameter;

/* A row at work in one layer: tensors joined to one run of elements, in which `pieces` parameters take turns, each with `part`
 * elements a turn. */
typedef struct {
    const dr_name_row *row;
    int pieces;
    int64_t parameter[DR_NAME_PIECES]; /* in the model's list */
    int64_t part[DR_NAME_PIECES], turns;
} dr_name_bundle;

/* One tensor of a file: elements first .. first + count - 1 of a bundle's run. */
typedef struct {
    int64_t bundle, first, count;
    char *name;
    dr_tensor tensor; /* reading: the file's. Writing: only rank and shape */
} dr_named_tensor;

typedef struct {
    dr_name_bundle *bundles;
    dr_named_tensor *tensors;
    int64_t bundle_count, tensor_count;
    int64_t *unused; /* reading: tensors of the file that no row took: first those that should not be there, */
    int64_t unused_count, ignored_count; /* then those that the table ignores, ignored_count of them */
} dr_name_plan;

/* How the parameters of a model are read from a folder's weights, or written. Reading refuses with DR_ERROR_FORMAT a parameter
 * for which the weights have no tensors, and a tensor that has another shape or no floating type; what it takes is `count`
 * parameters whole. What was not taken is listed: whoever loads decides. */
dr_status dr_names_plan_read(const dr_description *description, const dr_named_parameter *parameters, int64_t count,
                             const dr_weights *weights, dr_name_plan *plan);
dr_status dr_names_plan_write(const dr_description *description, const dr_named_parameter *parameters, int64_t count,
                              dr_name_plan *plan);
void dr_name_plan_release(dr_name_plan *plan); /* what is zero is allowed */

/* Where element `element` of a bundle's run lies: element `at` of a parameter, and so do the next ones, `count` in all. */
typedef struct {
    int64_t parameter, at, count;
} dr_name_place;
dr_name_place dr_name_bundle_place(const dr_name_bundle *bundle, int64_t element);
/* The other way: where element `at` of the bundle's parameter of number `piece` lies in the run, and how many lie there
 * together. */
int64_t dr_name_bundle_element(const dr_name_bundle *bundle, int piece, int64_t at, int64_t *count);

#endif
