/* The tables of names, a family of types at a time: sections that several types share, then the types. Names of parameters are
 * those of formats/names/names.h without "attn." and "mlp.". Where a tensor has had several names, the row that is written
 * comes first. */
#include "formats/names/names.h"

#include <string.h>

/* clang-format off */
#define SAME(name)          {.parameter = {name}, .tensor = {name}}
#define IS(parameter_, tensor_) {.parameter = {parameter_}, .tensor = {tensor_}}
#define ROWS(rows_)         .rows = rows_, .count = sizeof rows_ / sizeof rows_[0]
#define MODEL(rows_)        {.part = DR_PART_MODEL, .prefix = "", ROWS(rows_)}
#define LAYER(rows_)        {.part = DR_PART_LAYER, .prefix = "", ROWS(rows_)}
#define MIXER(kind, prefix_, rows_) {.part = DR_PART_MIXER, .of = DR_MIXER_##kind, .prefix = prefix_, ROWS(rows_)}
#define FEED(kind, prefix_, rows_)  {.part = DR_PART_FEED, .of = DR_FEED_##kind, .prefix = prefix_, ROWS(rows_)}
#define SECTIONS(sections_) .sections = sections_, .count = sizeof sections_ / sizeof sections_[0]
#define CONV(name)          {.parameter = {name}, .tensor = {name}, .shape = DR_SHAPE_CONV}

/* ---- what many types share --------------------------------------------------------------------------------------------- */

/* projections without and with biases, and norms of queries and keys */
static const dr_name_row attention[] = {
    SAME("q_proj.weight"), SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("o_proj.weight"), SAME("q_norm.weight"), SAME("k_norm.weight"),
    SAME("q_proj.bias"), SAME("k_proj.bias"), SAME("v_proj.bias"), SAME("o_proj.bias"),
};

/* a projection of the query whose rows are, head by head, the query's and the gate's */
static const dr_name_row gated_attention[] = {
    {.parameter = {"q_proj.weight", "g_proj.weight"}, .tensor = {"q_proj.weight"}, .turns = DR_TURNS_HEADS},
    {.parameter = {"q_proj.bias", "g_proj.bias"}, .tensor = {"q_proj.bias"}, .turns = DR_TURNS_HEADS},
    SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("o_proj.weight"), SAME("q_norm.weight"), SAME("k_norm.weight"),
    SAME("k_proj.bias"), SAME("v_proj.bias"), SAME("o_proj.bias"),
};

static const dr_name_row feed_forward[] = {
    SAME("gate_proj.weight"), SAME("up_proj.weight"), SAME("down_proj.weight"),
    SAME("gate_proj.bias"), SAME("up_proj.bias"), SAME("down_proj.bias"),
};

/* one tensor an expert, or gate and up of all experts in one, the gate's rows first */
#define EXPERTS_APART(gate, up, down) \
    IS("experts.gate_proj", "experts.%." gate ".weight"), IS("experts.up_proj", "experts.%." up ".weight"), \
    IS("experts.down_proj", "experts.%." down ".weight")
#define EXPERTS_FUSED \
    {.parameter = {"experts.gate_proj", "experts.up_proj"}, .tensor = {"experts.gate_up_proj"}, .turns = DR_TURNS_EXPERTS}, \
    SAME("experts.down_proj")
#define SHARED(name) \
    IS("shared.gate_proj.weight", name ".gate_proj.weight"), IS("shared.up_proj.weight", name ".up_proj.weight"), \
    IS("shared.down_proj.weight", name ".down_proj.weight"), IS("shared_gate.weight", "shared_expert_gate.weight")

static const dr_name_row experts_apart[] = {
    IS("router.weight", "gate.weight"), EXPERTS_APART("gate_proj", "up_proj", "down_proj"), EXPERTS_FUSED, SHARED("shared_expert"),
};
static const dr_name_row experts_fused[] = {
    IS("router.weight", "gate.weight"), EXPERTS_FUSED, EXPERTS_APART("gate_proj", "up_proj", "down_proj"), SHARED("shared_expert"),
};

static const dr_name_row model_rows[] = {
    IS("model.embeddings.weight", "embed_tokens.weight"), IS("model.norm.weight", "norm.weight"), IS("lm_head.weight", "/lm_head.weight"),
};
static const dr_name_row pre_norms[] = {
    IS("attn_norm.weight", "input_layernorm.weight"), IS("mlp_norm.weight", "post_attention_layernorm.weight"),
};

/* ---- softmax attention: llama, mistral, qwen2, qwen3, qwen3_moe -------------------------------------------------------- */

static const dr_name_section softmax[] = {
    MODEL(model_rows), LAYER(pre_norms), MIXER(ATTENTION, "self_attn.", attention), FEED(GATED, "mlp.", feed_forward),
    FEED(EXPERTS, "mlp.", experts_apart),
};

/* ---- Qwen's hybrids of gated delta rule and gated attention ------------------------------------------------------------- */

#define JOINED_CONV  {.parameter = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}, .tensor = {"conv1d.weight"}, .shape = DR_SHAPE_CONV}

/* rows key head by key head */
static const dr_name_row next_recurrent[] = {
    {.parameter = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight"}, .tensor = {"in_proj_qkvz.weight"}, .turns = DR_TURNS_HEADS},
    {.parameter = {"b_proj.weight", "a_proj.weight"}, .tensor = {"in_proj_ba.weight"}, .turns = DR_TURNS_HEADS},
    JOINED_CONV, SAME("A_log"), SAME("dt_bias"), IS("o_norm.weight", "norm.weight"), IS("o_proj.weight", "out_proj.weight"),
};
static const dr_name_section qwen3_next[] = {
    MODEL(model_rows), LAYER(pre_norms), MIXER(RECURRENT, "linear_attn.", next_recurrent),
    MIXER(ATTENTION, "self_attn.", gated_attention), FEED(GATED, "mlp.", feed_forward), FEED(EXPERTS, "mlp.", experts_apart),
};

static const dr_name_row plain_recurrent[] = {
    {.parameter = {"q_proj.weight", "k_proj.weight", "v_proj.weight"}, .tensor = {"in_proj_qkv.weight"}},
    IS("g_proj.weight", "in_proj_z.weight"), IS("b_proj.weight", "in_proj_b.weight"), IS("a_proj.weight", "in_proj_a.weight"),
    JOINED_CONV, SAME("A_log"), SAME("dt_bias"), IS("o_norm.weight", "norm.weight"), IS("o_proj.weight", "out_proj.weight"),
};
static const dr_name_section qwen3_5[] = {
    MODEL(model_rows), LAYER(pre_norms), MIXER(RECURRENT, "linear_attn.", plain_recurrent),
    MIXER(ATTENTION, "self_attn.", gated_attention), FEED(GATED, "mlp.", feed_forward), FEED(EXPERTS, "mlp.", experts_fused),
};

/* ---- lara_mini ----------------------------------------------------------------------------------------------------------- */

static const dr_name_row lara_recurrent[] = {
    {.parameter = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight", "b_proj.weight", "a_proj.weight"}, .tensor = {"in_proj.weight"}},
    JOINED_CONV, SAME("A_log"), SAME("dt_bias"), IS("o_norm.weight", "out_norm.weight"), IS("o_proj.weight", "out_proj.weight"),
};
static const dr_name_section lara_mini[] = {
    MODEL(model_rows), LAYER(pre_norms), MIXER(RECURRENT, "linear_attn.", lara_recurrent),
    MIXER(ATTENTION, "self_attn.", attention), FEED(EXPERTS, "mlp.", experts_fused),
};

/* ---- olmo_hybrid: released names first, then those that transformers saves ------------------------------------------------ */

static const dr_name_row olmo_layer[] = {
    IS("attn_norm.weight", "attention_layer_norm.weight"), IS("attn_norm.weight", "input_layernorm.weight"),
    IS("mlp_norm.weight", "feedforward_layer_norm.weight"), IS("mlp_norm.weight", "post_attention_layernorm.weight"),
    IS("attn_post_norm.weight", "post_attention_layernorm.weight"), IS("attn_post_norm.weight", "feedforward_layer_norm.weight"),
    IS("mlp_post_norm.weight", "post_feedforward_layernorm.weight"),
};
static const dr_name_row olmo_recurrent[] = {
    /* transformers cuts the joined convolution into thirds, whatever the sizes of query, key and value are */
    {.parameter = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"},
     .tensor = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}, .shape = DR_SHAPE_CONV, .recut = true},
    CONV("q_conv1d.weight"), CONV("k_conv1d.weight"), CONV("v_conv1d.weight"),
    SAME("q_proj.weight"), SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("a_proj.weight"), SAME("b_proj.weight"),
    SAME("g_proj.weight"), SAME("o_proj.weight"), SAME("o_norm.weight"), SAME("A_log"), SAME("dt_bias"),
};
static const dr_name_section olmo_hybrid[] = {
    MODEL(model_rows), LAYER(olmo_layer), MIXER(RECURRENT, "linear_attn.", olmo_recurrent),
    MIXER(ATTENTION, "self_attn.", attention), FEED(GATED, "mlp.", feed_forward),
};

/* ---- kimi_linear, bailing_hybrid: Kimi delta attention and latent attention ----------------------------------------------- */

#define LATENT \
    SAME("q_proj.weight"), SAME("q_a_proj.weight"), IS("q_a_norm.weight", "q_a_layernorm.weight"), SAME("q_b_proj.weight"), \
    IS("kv_a_proj.weight", "kv_a_proj_with_mqa.weight"), IS("kv_a_norm.weight", "kv_a_layernorm.weight"), SAME("kv_b_proj.weight"), \
    SAME("g_proj.weight")
#define KIMI_RECURRENT \
    SAME("q_proj.weight"), SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("b_proj.weight"), SAME("o_norm.weight"), SAME("dt_bias"), \
    CONV("q_conv1d.weight"), CONV("k_conv1d.weight"), CONV("v_conv1d.weight")

static const dr_name_row kimi_recurrent[] = {
    KIMI_RECURRENT, {.parameter = {"A_log"}, .tensor = {"A_log"}, .shape = DR_SHAPE_HEADS}, SAME("o_proj.weight"),
    IS("f_proj.0.weight", "f_a_proj.weight"), IS("f_proj.1.weight", "f_b_proj.weight"),
    IS("g_proj.0.weight", "g_a_proj.weight"), IS("g_proj.1.weight", "g_b_proj.weight"),
};
static const dr_name_row kimi_latent[] = {LATENT, SAME("o_proj.weight")};
static const dr_name_row kimi_feed[] = {
    IS("gate_proj.weight", "mlp.gate_proj.weight"), IS("gate_proj.weight", "block_sparse_moe.gate_proj.weight"),
    IS("up_proj.weight", "mlp.up_proj.weight"), IS("up_proj.weight", "block_sparse_moe.up_proj.weight"),
    IS("down_proj.weight", "mlp.down_proj.weight"), IS("down_proj.weight", "block_sparse_moe.down_proj.weight"),
};
static const dr_name_row kimi_experts[] = {
    IS("router.weight", "gate.weight"), IS("router.bias", "gate.e_score_correction_bias"),
    EXPERTS_APART("w1", "w3", "w2"), EXPERTS_FUSED, SHARED("shared_experts"),
};
static const dr_name_section kimi_linear[] = {
    MODEL(model_rows), LAYER(pre_norms), MIXER(RECURRENT, "self_attn.", kimi_recurrent),
    MIXER(LATENT_ATTENTION, "self_attn.", kimi_latent), FEED(GATED, "", kimi_feed), FEED(EXPERTS, "block_sparse_moe.", kimi_experts),
};

static const dr_name_row bailing_model[] = {
    IS("model.embeddings.weight", "word_embeddings.weight"), IS("model.norm.weight", "norm.weight"), IS("lm_head.weight", "/lm_head.weight"),
};
static const dr_name_row bailing_recurrent[] = {
    KIMI_RECURRENT, SAME("A_log"), IS("o_proj.weight", "dense.weight"), SAME("f_proj.weight"), SAME("g_proj.weight"),
};
static const dr_name_row bailing_latent[] = {LATENT, IS("o_proj.weight", "dense.weight")};
static const dr_name_row bailing_experts[] = {
    IS("router.weight", "gate.weight"), IS("router.bias", "gate.expert_bias"),
    EXPERTS_APART("gate_proj", "up_proj", "down_proj"), EXPERTS_FUSED, SHARED("shared_experts"),
};
static const dr_name_section bailing_hybrid[] = {
    MODEL(bailing_model), LAYER(pre_norms), MIXER(RECURRENT, "attention.", bailing_recurrent),
    MIXER(LATENT_ATTENTION, "attention.", bailing_latent), FEED(GATED, "mlp.", feed_forward), FEED(EXPERTS, "mlp.", bailing_experts),
};

/* ---- Mamba-2 and hybrids with it ------------------------------------------------------------------------------------------- */

static const dr_name_row mamba2_mixer[] = {
    SAME("in_proj.weight"), SAME("in_proj.bias"), CONV("conv1d.weight"), SAME("conv1d.bias"), SAME("A_log"), SAME("D"), SAME("dt_bias"),
    SAME("norm.weight"), IS("o_proj.weight", "out_proj.weight"), IS("o_proj.bias", "out_proj.bias"),
};
static const dr_name_row mamba2_model[] = {
    IS("model.embeddings.weight", "embeddings.weight"), IS("model.embeddings.weight", "embedding.weight"), IS("model.norm.weight", "norm_f.weight"),
    IS("lm_head.weight", "/lm_head.weight"),
};
static const dr_name_row one_norm[] = {IS("attn_norm.weight", "norm.weight"), IS("mlp_norm.weight", "norm.weight")};
static const dr_name_section mamba2[] = {MODEL(mamba2_model), LAYER(one_norm), MIXER(MAMBA2, "mixer.", mamba2_mixer)};

static const dr_name_row nemotron_experts[] = {
    IS("router.weight", "gate.weight"), IS("router.bias", "gate.e_score_correction_bias"),
    IS("experts.up_proj", "experts.%.up_proj.weight"), IS("experts.down_proj", "experts.%.down_proj.weight"),
    SAME("experts.up_proj"), SAME("experts.down_proj"),
    IS("shared.up_proj.weight", "shared_experts.up_proj.weight"), IS("shared.down_proj.weight", "shared_experts.down_proj.weight"),
    IS("latent_down.weight", "fc1_latent_proj.weight"), IS("latent_up.weight", "fc2_latent_proj.weight"),
    IS("latent_down.bias", "fc1_latent_proj.bias"), IS("latent_up.bias", "fc2_latent_proj.bias"),
    IS("shared.up_proj.bias", "shared_experts.up_proj.bias"), IS("shared.down_proj.bias", "shared_experts.down_proj.bias"),
};
static const dr_name_section nemotron_h[] = {
    MODEL(mamba2_model), LAYER(one_norm), MIXER(MAMBA2, "mixer.", mamba2_mixer), MIXER(ATTENTION, "mixer.", attention),
    FEED(PLAIN, "mixer.", feed_forward), FEED(EXPERTS, "mixer.", nemotron_experts),
};

static const dr_name_row bamba_model[] = {
    IS("model.embeddings.weight", "embed_tokens.weight"), IS("model.norm.weight", "final_layernorm.weight"), IS("lm_head.weight", "/lm_head.weight"),
};
static const dr_name_row bamba_layer[] = {
    IS("attn_norm.weight", "input_layernorm.weight"), IS("mlp_norm.weight", "pre_ff_layernorm.weight"),
};
static const dr_name_section bamba[] = {
    MODEL(bamba_model), LAYER(bamba_layer), MIXER(MAMBA2, "mamba.", mamba2_mixer), MIXER(ATTENTION, "self_attn.", attention),
    FEED(GATED, "feed_forward.", feed_forward),
};

/* ---- flash-linear-attention ------------------------------------------------------------------------------------------------ */

static const dr_name_row fla_model[] = {
    IS("model.embeddings.weight", "embeddings.weight"), IS("model.norm.weight", "norm.weight"),
    IS("model.norm.bias", "norm.bias"), IS("lm_head.weight", "/lm_head.weight"),
    IS("model.res_proj.weight", "res_proj.weight"), IS("model.res_norm.weight", "res_norm.weight"),
    IS("model.embedding_norm.weight", "/model.layers.0.pre_norm.weight"), IS("model.embedding_norm.bias", "/model.layers.0.pre_norm.bias"),
};
static const dr_name_row fla_layer[] = {
    IS("attn_norm.weight", "attn_norm.weight"), IS("mlp_norm.weight", "mlp_norm.weight"),
    IS("attn_res_proj.weight", "attn_res_proj.weight"), IS("attn_res_norm.weight", "attn_res_norm.weight"),
    IS("mlp_res_proj.weight", "mlp_res_proj.weight"), IS("mlp_res_norm.weight", "mlp_res_norm.weight"),
};
#define FLA_RECURRENT \
    SAME("q_proj.weight"), SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("o_proj.weight"), SAME("o_norm.weight"), \
    SAME("g_proj.weight"), SAME("g_proj.0.weight"), SAME("g_proj.1.weight"), SAME("g_proj.1.bias"), SAME("A_log"), SAME("dt_bias"), \
    CONV("q_conv1d.weight"), CONV("k_conv1d.weight"), CONV("v_conv1d.weight")

/* scalar or channel decay, beta, preconditioner, Comba's couplings, Q-Delta's lambda */
static const dr_name_row fla_delta[] = {
    FLA_RECURRENT, SAME("a_proj.weight"), SAME("b_proj.weight"), SAME("f_proj.0.weight"), SAME("f_proj.1.weight"),
    SAME("a_atk_proj.weight"), SAME("b_atk_proj.weight"), SAME("A_log_atk"), SAME("dt_bias_atk"), SAME("log_atk_scale"),
    SAME("decay"), SAME("D"), SAME("lamb_proj.weight"),
};
static const dr_name_row fla_precond_kda[] = {
    FLA_RECURRENT, SAME("b_proj.weight"), SAME("f_proj.0.weight"), SAME("f_proj.1.weight"),
    IS("a_atk_proj.weight", "a_proj.weight"), SAME("a_proj.weight"), SAME("b_atk_proj.weight"), SAME("A_log_atk"), SAME("dt_bias_atk"), SAME("log_atk_scale"),
};
static const dr_name_row fla_gdn2[] = {
    FLA_RECURRENT, SAME("f_proj.0.weight"), SAME("f_proj.1.weight"), IS("erase_gate_proj.weight", "b_proj.weight"),
    IS("write_gate_proj.weight", "w_proj.weight"),
};
static const dr_name_row fla_gla[] = {
    {.parameter = {"o_norm.weight"}, .tensor = {"g_norm_swish_gate.weight"}, .joined = true},
    IS("o_norm.weight", "g_norm.weight"), FLA_RECURRENT,
    IS("f_proj.0.weight", "gk_proj.0.weight"), IS("f_proj.1.weight", "gk_proj.1.weight"), IS("f_proj.1.bias", "gk_proj.1.bias"),
};
static const dr_name_row fla_mesa_net[] = {
    FLA_RECURRENT, SAME("a_proj.weight"), SAME("a_proj.bias"), SAME("b_proj.weight"), SAME("b_proj.bias"),
    {.parameter = {"ridge"}, .tensor = {"lambda_params"}, .shape = DR_SHAPE_FLAT},
};
#define FLA(name, rows) \
    static const dr_name_section name[] = { \
        MODEL(fla_model), LAYER(fla_layer), MIXER(RECURRENT, "attn.", rows), MIXER(ATTENTION, "attn.", attention), \
        FEED(GATED, "mlp.", feed_forward), \
    }
FLA(delta, fla_delta);
FLA(precond_kda, fla_precond_kda);
FLA(gdn2, fla_gdn2);
FLA(gla, fla_gla);
FLA(mesa_net, fla_mesa_net);

static const dr_name_row rwkv7_layer[] = {
    IS("attn_norm.weight", "attn_norm.weight"), IS("attn_norm.bias", "attn_norm.bias"), IS("mlp_norm.weight", "ffn_norm.weight"),
    IS("mlp_norm.bias", "ffn_norm.bias"),
};
#define LORA(name) \
    IS(name ".0.weight", name ".lora.0.weight"), IS(name ".1.weight", name ".lora.2.weight"), IS(name ".1.bias", name ".lora.2.bias")
static const dr_name_row rwkv7_mixer[] = {
    {.parameter = {"x_mix"}, .tensor = {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"}, .shape = DR_SHAPE_MIDDLE},
    SAME("r_proj.weight"), SAME("k_proj.weight"), SAME("v_proj.weight"), SAME("o_proj.weight"), SAME("k_k"), SAME("k_a"), SAME("r_k"),
    LORA("w_lora"), LORA("a_lora"), LORA("v_lora"), LORA("g_lora"), SAME("g_norm.weight"), SAME("g_norm.bias"),
};
static const dr_name_row rwkv7_feed[] = {
    {.parameter = {"x_mix"}, .tensor = {"x_k"}, .shape = DR_SHAPE_FLAT}, IS("up_proj.weight", "key.weight"), IS("down_proj.weight", "value.weight"),
};
static const dr_name_section rwkv7[] = {
    MODEL(fla_model), LAYER(rwkv7_layer), MIXER(RWKV7, "attn.", rwkv7_mixer), MIXER(ATTENTION, "attn.", attention),
    FEED(RWKV7, "ffn.", rwkv7_feed),
};

/* ---- the types -------------------------------------------------------------------------------------------------------------- */

static const char *const not_text[] = {"model.visual.", "mtp.", NULL}; /* images, and the prediction of further tokens */
static const char *const no_prediction[] = {"mtp.", NULL};

#define PLAIN      .root = "model.", .layers = "model.layers."
#define NESTED     .root = "model.language_model.", .layers = "model.language_model.layers.", .ignored = not_text
#define BACKBONE   .root = "backbone.", .layers = "backbone.layers.", .ignored = no_prediction

static const dr_names tables[] = {
    {.model_type = "deltarule", PLAIN, .same = true},
    {.model_type = "llama", PLAIN, SECTIONS(softmax)},
    {.model_type = "mistral", PLAIN, SECTIONS(softmax)},
    {.model_type = "qwen2", PLAIN, SECTIONS(softmax)},
    {.model_type = "qwen3", PLAIN, SECTIONS(softmax)},
    {.model_type = "qwen3_moe", PLAIN, SECTIONS(softmax)},
    {.model_type = "qwen3_next", PLAIN, SECTIONS(qwen3_next), .ignored = no_prediction},
    {.model_type = "qwen3_5_text", PLAIN, SECTIONS(qwen3_5), .ignored = no_prediction},
    {.model_type = "qwen3_5_moe_text", PLAIN, SECTIONS(qwen3_5), .ignored = no_prediction},
    {.model_type = "qwen3_5", NESTED, SECTIONS(qwen3_5)},
    {.model_type = "qwen3_5_moe", NESTED, SECTIONS(qwen3_5)},
    {.model_type = "lara_mini", PLAIN, SECTIONS(lara_mini)},
    {.model_type = "olmo_hybrid", PLAIN, SECTIONS(olmo_hybrid)},
    {.model_type = "kimi_linear", PLAIN, SECTIONS(kimi_linear), .more_layers = true},
    {.model_type = "bailing_hybrid", PLAIN, SECTIONS(bailing_hybrid), .more_layers = true},
    {.model_type = "mamba2", BACKBONE, SECTIONS(mamba2)},
    {.model_type = "nemotron_h", BACKBONE, SECTIONS(nemotron_h)},
    {.model_type = "bamba", PLAIN, SECTIONS(bamba)},
    {.model_type = "falcon_h1", PLAIN, SECTIONS(bamba)},
    {.model_type = "delta_net", PLAIN, SECTIONS(delta)},
    {.model_type = "gated_deltanet", PLAIN, SECTIONS(delta)},
    {.model_type = "gated_deltaproduct", PLAIN, SECTIONS(delta)},
    {.model_type = "comba", PLAIN, SECTIONS(delta)},
    {.model_type = "qdelta", PLAIN, SECTIONS(delta)},
    {.model_type = "precond_deltanet", PLAIN, SECTIONS(delta)},
    {.model_type = "precond_gated_deltanet", PLAIN, SECTIONS(delta)},
    {.model_type = "kda", PLAIN, SECTIONS(delta)},
    {.model_type = "precond_kda", PLAIN, SECTIONS(precond_kda)},
    {.model_type = "gdn2", PLAIN, SECTIONS(gdn2)},
    {.model_type = "gla", PLAIN, SECTIONS(gla)},
    {.model_type = "retnet", PLAIN, SECTIONS(gla)},
    {.model_type = "mesa_net", PLAIN, SECTIONS(mesa_net)},
    {.model_type = "rwkv7", PLAIN, SECTIONS(rwkv7)},
    {.model_type = "transformer", PLAIN, SECTIONS(delta)},
};
/* clang-format on */

const dr_names *dr_names_of(const char *model_type) {
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strcmp(tables[i].model_type, model_type) == 0) return &tables[i];
    return NULL;
}
