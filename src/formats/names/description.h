/* What a model is, whoever published it: its layers one by one, each with the numbers of its parts. Configurations of published
 * types are read into a description (formats/names/config.h), and models are built from it. Every value is resolved: nothing is
 * left to a default or to the family of a rule. Descriptors of operations are used where they say the same thing.
 *
 *     x    = embedding[id] embedding_scale, normed if there is an embedding norm
 *     x   += after(scale mixer(before(x)))      for each layer; of several mixers, their sum
 *     x   += after(scale feed(before(x)))
 *     logits = logits_scale head final(x)
 *
 * Where halves of layers attend to earlier outputs (DR_RESIDUAL_ATTENTION; FLA: attnres_block_size), those of each
 * residual_block halves are summed, block by block, and x is instead, in front of each half and of the head,
 *
 *     x    = sum_l p_l R_l,  p = softmax over l of query . norm(R_l),  R = the embedding, the sums of finished blocks, the sum
 * so far
 *
 * Sizes are counts of elements. Names of parameters that each part has stand in formats/names/names.h. Sources are named by
 * type: FLA is flash-linear-attention 0.6, HF is transformers 5.24. */
#ifndef DR_FORMATS_NAMES_DESCRIPTION_H
#define DR_FORMATS_NAMES_DESCRIPTION_H

#include "ops/experts.h"
#include "ops/function.h"
#include "ops/rotary.h"

#include <deltarule/rule.h>

typedef enum { DR_NORM_NONE, DR_NORM_RMS, DR_NORM_LAYER } dr_norm_kind;

/* RMS: x rsqrt(mean x^2 + eps) (offset + weight). LAYER: (x - mean) rsqrt(var + eps) weight + bias. */
typedef struct {
    dr_norm_kind kind;
    double eps;
    double offset; /* 1 where weights are stored about zero (HF: qwen3_next, qwen3_5), else 0 */
    bool bias;     /* of LAYER (FLA: rwkv7's norm_bias) */
} dr_norm_description;

/* ---- mixers ----------------------------------------------------------------------------------------------------------- */

typedef enum {
    DR_MIXER_RECURRENT, /* a rule of the table */
    DR_MIXER_ATTENTION,
    DR_MIXER_LATENT_ATTENTION,
    DR_MIXER_RWKV7,
    DR_MIXER_MAMBA2,
    DR_MIXER_KINDS
} dr_mixer_kind;

/* How queries and keys are scaled after their function. SUM: x / sum x (FLA: delta_net's qk_norm). */
typedef enum { DR_LENGTH_FREE, DR_LENGTH_UNIT, DR_LENGTH_SUM } dr_length_kind;

/* A projection in one piece (rank 0), or down to rank and up again. */
typedef struct {
    int64_t rank;
    bool bias;    /* of the projection, or of the second one */
    bool by_head; /* rank is that of each head, whose second projection reads its own part alone */
} dr_projection_description;

/* Which streams there are follows from the rule; the family in it says what this does not. */
typedef struct {
    dr_rule rule;
    dr_gates gates;
    int64_t heads, value_heads, key_size, value_size; /* value_heads is a multiple of heads */
    int64_t conv_size;                                /* 0: none */
    bool conv_bias;
    double conv_range;    /* the convolution's first values are uniform within; 0: drawn as the other weights are */
    bool value_conv;      /* whether the value has the convolution too (FLA: mesa_net's has not) */
    dr_function feature;  /* of query and key, after the convolution or in its place */
    dr_function activate; /* of the value, likewise */
    dr_length_kind query_length, key_length;
    double query_scale;                    /* of the read; 0: key_size^-1/2 */
    dr_projection_description decay, beta; /* a decay by channel has a rank, one by head none */
    double decay_factor;    /* log decay = this times logsigmoid(u) (FLA: gla 1/16, mesa_net 1); 0: through A_log and dt_bias */
    double least_decay;     /* log decays below are raised to it (FLA: gla's clamp_min); 0: none are */
    double least_a;         /* A_log starts as ln of a draw between this and 16 */
    bool a_log_per_channel; /* A_log [value_heads, key_size] of a decay by channel, instead of [value_heads] */
    const char *scan_decay; /* name of the scan's decay projection; NULL: a_atk_proj */
    bool gated;
    dr_function gate; /* of the output gate, SILU or SIGMOID */
    dr_projection_description gate_projection;
    bool gate_first; /* RMS of o gate(g) over all heads, weight [value_heads value_size], instead of RMS by head, then the gate
                      */
    double norm_eps; /* of the output's RMS norm, which has one weight [value_size] */
    bool norm_apart; /* norm and gate are two modules of the class, which changes a name (FLA: fuse_norm of gla and retnet) */
    double lambda_bias; /* FLA-style qdelta: subtracted before lambda's sigmoid */
    double least_ridge; /* FLA: mesa_net's lambda_lower_bound */
    bool stepped;       /* mamba2's rule: the value is the decay's step times the projected one, and o += D value */
    bool rotary;        /* of query and key, half-split over the whole key_size (FLA: retnet) */
    dr_rotary_spectrum spectrum;
} dr_recurrent_description;

typedef enum { DR_GATED_NOT, DR_GATED_BY_ELEMENT, DR_GATED_BY_HEAD } dr_attention_gate;

/* Which tokens a query sees beside causality and window. What is not DENSE is described so that it can be refused by name. */
typedef enum { DR_SIGHT_DENSE, DR_SIGHT_POOLS, DR_SIGHT_BLOCKS } dr_sight;

typedef struct {
    int64_t heads, key_heads, key_size, value_size;
    double scale;      /* of the scores, key_size^-1/2 */
    double key_factor; /* of keys, before their rotary embedding (HF: falcon_h1's key_multiplier); 1 elsewhere */
    int64_t window;    /* tokens that a query sees, itself among them; 0: all */
    bool query_bias, key_bias, value_bias, output_bias;
    dr_norm_description query_norm, key_norm; /* before the rotary embedding; eps may differ from the model's */
    bool norm_whole; /* over all heads together, weights [heads key_size] (HF: olmo_hybrid); else per head, [key_size] */
    bool rotary;     /* of the first spectrum.dim elements of each head */
    dr_rotary_spectrum spectrum;
    bool interleaved;       /* pairs (2i, 2i + 1) instead of halves */
    dr_attention_gate gate; /* sigmoid of a projection of x, times the output before its projection */
    dr_sight sight;
} dr_attention_description;

/* Keys and values through a latent of few channels. Queries and keys have `plain` channels a head without and `turned` channels
 * with a position; the turned ones of the key are shared by the heads. scale is (plain + turned)^-1/2. */
typedef struct {
    int64_t heads, plain, turned, value_size;
    int64_t query_rank; /* 0: the query is projected in one piece */
    int64_t rank;       /* of the latent */
    double scale;
    dr_norm_description query_norm, norm; /* of the query's low-rank part and of the latent */
    bool rotary;                          /* false: the turned channels are not turned (HF: kimi_linear) */
    dr_rotary_spectrum spectrum;          /* dim = turned */
    bool interleaved;
    dr_attention_gate gate;
    dr_sight sight;
} dr_latent_attention_description;

/* The time mix (FLA: rwkv7). */
typedef struct {
    int64_t heads, key_size, value_size;
    int64_t decay_rank, rate_rank, value_rank, gate_rank; /* of the low-rank projections of w, a, v, g */
    bool first;      /* the model's first layer, whose value the later ones mix in; it has no value_rank projection */
    double norm_eps; /* of the group norm: key_size times the model's */
    double unit_eps; /* inside the root of the key's length: 1e-6 (fuse_norm), or of its clamp 1e-12 */
    bool unit_clamped;
} dr_rwkv7_description;

typedef enum { DR_MAMBA2_NORM_NONE, DR_MAMBA2_NORM_GATED, DR_MAMBA2_NORM_THEN_GATE } dr_mamba2_norm;

typedef struct {
    int64_t heads, head_size, groups, state_size; /* inner width: heads head_size; head h reads group h / (heads / groups) */
    int64_t conv_size;
    bool conv_bias, input_bias, output_bias; /* of the convolution and of the projections before and behind */
    double least_step, most_step;            /* of softplus(dt + dt_bias); most may be infinite */
    dr_mamba2_norm norm;                     /* GATED: RMS of y silu(z); THEN_GATE: RMS of y, times silu(z); NONE: y silu(z) */
    int64_t norm_groups;                     /* the RMS is of inner / norm_groups channels */
    double norm_eps;
    double factor[5]; /* of z, x, B, C, dt as they leave the projection (HF: falcon_h1); 1 elsewhere */
} dr_mamba2_description;

typedef struct {
    dr_mixer_kind kind;
    double input_scale, output_scale; /* HF: falcon_h1; 1 elsewhere */
    union {
        dr_recurrent_description recurrent;
        dr_attention_description attention;
        dr_latent_attention_description latent;
        dr_rwkv7_description rwkv7;
        dr_mamba2_description mamba2;
    } of;
} dr_mixer_description;

/* ---- feed-forward ------------------------------------------------------------------------------------------------------ */

typedef enum {
    DR_FEED_NONE,
    DR_FEED_GATED, /* down(function(gate x) * (up x)): swiglu where the function is SILU */
    DR_FEED_PLAIN, /* down(function(up x)) */
    DR_FEED_EXPERTS,
    DR_FEED_RWKV7, /* the channel mix: value(relu(key(shifted x))^2) */
    DR_FEED_KINDS
} dr_feed_kind;

/* One feed-forward, also that of an expert. GATED: up x clamped to +-limit and gate x from above, if limit > 0. */
typedef struct {
    int64_t width;
    dr_function function;
    bool bias;
    double limit;                    /* HF: glm5_next's swiglu_limit */
    double gate_factor, down_factor; /* HF: falcon_h1's mlp_multipliers; 1 elsewhere */
} dr_feed_forward_description;

typedef struct {
    dr_router router; /* `of.rows` is 0: it is a call's */
    bool corrected;   /* a bias [experts] is added to the scores for the choice */
    bool gated;       /* experts are GATED, else PLAIN */
    dr_feed_forward_description expert;
    int64_t latent;   /* width that experts read and write, between two projections (HF: nemotron_h); 0: the model's */
    int64_t shared;   /* width of the shared expert, which reads x itself; 0: there is none */
    bool outer_bias;  /* of the shared expert's projections and of those of the latent (HF: nemotron_h's mlp_bias) */
    bool shared_gate; /* sigmoid of a projection of x to one number, times the shared expert's output */
    double balance;   /* factor of the loss in training that keeps experts in equal use; 0: there is none */
} dr_experts_description;

typedef struct {
    dr_feed_kind kind;
    union {
        dr_feed_forward_description forward; /* GATED, PLAIN; RWKV7 reads width */
        dr_experts_description experts;
    } of;
} dr_feed_description;

/* ---- layers and models ------------------------------------------------------------------------------------------------- */

enum { DR_LAYER_MIXERS = 2 };

typedef struct {
    int mixers; /* 0: only a feed-forward. 2: both read the same normed x, and their outputs are summed (HF: falcon_h1) */
    dr_mixer_description mixer[DR_LAYER_MIXERS];
    dr_feed_description feed;
    dr_norm_description mixer_norm, mixer_after; /* before the mixer; of its output, before it is added (HF: olmo_hybrid) */
    dr_norm_description feed_norm, feed_after;
    dr_norm_description depth_norm; /* of the earlier outputs that each half weighs; NONE: it reads their sum */
} dr_layer_description;

/* How x goes from layer to layer. */
typedef enum {
    DR_RESIDUAL_SUM,
    DR_RESIDUAL_ATTENTION, /* each half-layer reads a weighted sum of earlier outputs (FLA: attnres_block_size) */
    DR_RESIDUAL_SINKHORN,  /* streams, mixed by matrices made doubly stochastic (HF: glm5_next) */
    DR_RESIDUAL_STREAMS,   /* streams, mixed by gates of low rank (HF: qwen4_exp) */
} dr_residual_kind;

typedef struct {
    const char *model_type; /* as published, such as "qwen3_next" */
    int64_t vocabulary, hidden;
    bool tied; /* the head is the embedding */
    double embedding_scale, logits_scale;
    dr_norm_description embedding_norm, final_norm; /* embedding_norm: FLA's rwkv7, named as a part of layer 0 */
    dr_residual_kind residual;
    int64_t residual_block;         /* ATTENTION: half-layers after which the list grows */
    dr_norm_description depth_norm; /* ATTENTION: of what the head weighs */
    int64_t streams;                /* SINKHORN, STREAMS */
    bool ngrams;                    /* layers that add embeddings of n-grams (HF: qwen4_exp) */
    int64_t count;
    dr_layer_description *layers; /* [count] */
} dr_description;

void dr_description_release(dr_description *description); /* its layers; what is zero is allowed */

#endif
