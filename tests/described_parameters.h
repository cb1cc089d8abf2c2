/* The parameters of a description, as src/formats/names/names.h lists them: what models of each part have, with shapes. Include
 * it in one file only. */
#ifndef DR_TESTS_DESCRIBED_PARAMETERS_H
#define DR_TESTS_DESCRIBED_PARAMETERS_H

#include "formats/names/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    dr_named_parameter *at;
    int64_t count, layer;
    const char *prefix;
} described_list;

static void described_add(described_list *list, const char *name, int rank, int64_t a, int64_t b, int64_t c) {
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", list->prefix, name);
    list->at = realloc(list->at, (size_t)(list->count + 1) * sizeof *list->at);
    list->at[list->count++] =
        (dr_named_parameter){.name = strdup(whole), .layer = list->layer, .rank = rank, .shape = {a, b, c}};
}

static inline void described_free(described_list *list) {
    for (int64_t i = 0; i < list->count; i++) free((char *)list->at[i].name);
    free(list->at);
}

#define VECTOR(name, a)     described_add(list, name, 1, a, 0, 0)
#define MATRIX(name, a, b)  described_add(list, name, 2, a, b, 0)
#define CUBE(name, a, b, c) described_add(list, name, 3, a, b, c)
#define VECTOR_IF(condition, name, a)                                                                                          \
    if (condition) VECTOR(name, a)

static void described_norm(described_list *list, const char *name, const dr_norm_description *norm, int64_t size) {
    char whole[64];
    if (norm->kind == DR_NORM_NONE) return;
    snprintf(whole, sizeof whole, "%s.weight", name);
    VECTOR(whole, size);
    snprintf(whole, sizeof whole, "%s.bias", name);
    VECTOR_IF(norm->bias, whole, size);
}

static void described_projection(described_list *list, const char *name, const dr_projection_description *how, int64_t out,
                                 int64_t in) {
    char whole[64];
    snprintf(whole, sizeof whole, how->rank ? "%s.0.weight" : "%s.weight", name);
    MATRIX(whole, how->rank ? how->rank : out, in);
    snprintf(whole, sizeof whole, "%s.1.weight", name);
    if (how->rank) MATRIX(whole, out, how->rank);
    snprintf(whole, sizeof whole, how->rank ? "%s.1.bias" : "%s.bias", name);
    VECTOR_IF(how->bias, whole, out);
}

static void described_recurrent(described_list *list, const dr_recurrent_description *r, int64_t D) {
    const dr_rule *rule = &r->rule;
    const int64_t H = r->heads, HV = r->value_heads, K = r->key_size, V = r->value_size, n = rule->repeat, W = r->conv_size;
    const int64_t streams[3] = {H * K, n * H * K, n * HV * V};
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c_proj.weight", "qkv"[i]);
        MATRIX(name, streams[i], D);
        snprintf(name, sizeof name, "%c_conv1d.weight", "qkv"[i]);
        if (W > 0 && (i < 2 || r->value_conv)) CUBE(name, streams[i], 1, W);
    }
    if (rule->decay == DR_DECAY_SCALAR) described_projection(list, "a_proj", &r->decay, HV, D);
    if (rule->decay == DR_DECAY_CHANNEL) described_projection(list, "f_proj", &r->decay, HV * K, D);
    if ((rule->decay == DR_DECAY_SCALAR || rule->decay == DR_DECAY_CHANNEL) && r->decay_factor == 0) {
        VECTOR("A_log", HV);
        VECTOR("dt_bias", rule->decay == DR_DECAY_SCALAR ? HV : HV * K);
    }
    if (dr_rule_uses(rule, DR_INPUT_BETA)) described_projection(list, "b_proj", &r->beta, n * HV, D);
    if (dr_rule_uses(rule, DR_INPUT_ERASE_GATE)) MATRIX("erase_gate_proj.weight", HV * K, D);
    if (dr_rule_uses(rule, DR_INPUT_WRITE_GATE)) MATRIX("write_gate_proj.weight", HV * V, D);
    if (dr_rule_uses(rule, DR_INPUT_LAMBDA)) MATRIX("lamb_proj.weight", HV, D);
    if (dr_rule_uses(rule, DR_INPUT_SCAN_LOG_DECAY) && rule->scan == DR_SCAN_DIAGONAL) {
        MATRIX("a_atk_proj.weight", H, D);
        VECTOR("A_log_atk", H);
        VECTOR("dt_bias_atk", H);
        MATRIX("b_atk_proj.weight", H, D);
        VECTOR("log_atk_scale", H);
    }
    VECTOR_IF(dr_rule_uses(rule, DR_INPUT_FEEDBACK_KEY), "decay", H);
    VECTOR_IF(rule->query == DR_QUERY_CORRECTED, "D", H);
    if (dr_rule_uses(rule, DR_INPUT_RIDGE)) MATRIX("ridge", H, K);
    if (r->gated) described_projection(list, "g_proj", &r->gate_projection, HV * V, D);
    VECTOR("o_norm.weight", V);
    MATRIX("o_proj.weight", D, HV * V);
}

static void described_attention(described_list *list, const dr_attention_description *a, int64_t D) {
    const int64_t q = a->heads * a->key_size, k = a->key_heads * a->key_size, v = a->key_heads * a->value_size;
    const int64_t o = a->heads * a->value_size;
    MATRIX("q_proj.weight", q, D);
    MATRIX("k_proj.weight", k, D);
    MATRIX("v_proj.weight", v, D);
    MATRIX("o_proj.weight", D, o);
    VECTOR_IF(a->query_bias, "q_proj.bias", q);
    VECTOR_IF(a->key_bias, "k_proj.bias", k);
    VECTOR_IF(a->value_bias, "v_proj.bias", v);
    VECTOR_IF(a->output_bias, "o_proj.bias", D);
    described_norm(list, "q_norm", &a->query_norm, a->norm_whole ? q : a->key_size);
    described_norm(list, "k_norm", &a->key_norm, a->norm_whole ? k : a->key_size);
    if (a->gate == DR_GATED_NOT) return;
    const int64_t gate = a->gate == DR_GATED_BY_HEAD ? a->heads : o;
    MATRIX("g_proj.weight", gate, D);
    VECTOR_IF(a->query_bias, "g_proj.bias", gate);
}

static void described_latent(described_list *list, const dr_latent_attention_description *a, int64_t D) {
    const int64_t q = a->heads * (a->plain + a->turned);
    if (a->query_rank > 0) {
        MATRIX("q_a_proj.weight", a->query_rank, D);
        VECTOR("q_a_norm.weight", a->query_rank);
        MATRIX("q_b_proj.weight", q, a->query_rank);
    } else {
        MATRIX("q_proj.weight", q, D);
    }
    MATRIX("kv_a_proj.weight", a->rank + a->turned, D);
    VECTOR("kv_a_norm.weight", a->rank);
    MATRIX("kv_b_proj.weight", a->heads * (a->plain + a->value_size), a->rank);
    MATRIX("o_proj.weight", D, a->heads * a->value_size);
    if (a->gate == DR_GATED_BY_HEAD) MATRIX("g_proj.weight", a->heads, D);
}

static void described_rwkv7(described_list *list, const dr_rwkv7_description *r, int64_t D) {
    const int64_t inner = r->heads * r->key_size, ranks[4] = {r->decay_rank, r->rate_rank, r->value_rank, r->gate_rank};
    MATRIX("x_mix", 6, D);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c_proj.weight", "rkv"[i]);
        MATRIX(name, inner, D);
    }
    MATRIX("o_proj.weight", D, inner);
    for (int i = 0; i < 4; i++) {
        char name[32];
        if ("wavg"[i] == 'v' && r->first) continue;
        snprintf(name, sizeof name, "%c_lora", "wavg"[i]);
        const dr_projection_description how = {.rank = ranks[i], .bias = "wavg"[i] != 'g'};
        described_projection(list, name, &how, inner, D);
    }
    VECTOR("k_k", inner);
    VECTOR("k_a", inner);
    MATRIX("r_k", r->heads, r->key_size);
    VECTOR("g_norm.weight", inner);
    VECTOR("g_norm.bias", inner);
}

static void described_mamba2(described_list *list, const dr_mamba2_description *m, int64_t D) {
    const int64_t inner = m->heads * m->head_size, conv = inner + 2 * m->groups * m->state_size, in = inner + conv + m->heads;
    MATRIX("in_proj.weight", in, D);
    VECTOR_IF(m->input_bias, "in_proj.bias", in);
    CUBE("conv1d.weight", conv, 1, m->conv_size);
    VECTOR_IF(m->conv_bias, "conv1d.bias", conv);
    VECTOR("A_log", m->heads);
    VECTOR("D", m->heads);
    VECTOR("dt_bias", m->heads);
    VECTOR_IF(m->norm != DR_MAMBA2_NORM_NONE, "norm.weight", inner);
    MATRIX("o_proj.weight", D, inner);
    VECTOR_IF(m->output_bias, "o_proj.bias", D);
}

static void described_mixer(described_list *list, const dr_mixer_description *mixer, int64_t D) {
    switch (mixer->kind) {
    case DR_MIXER_RECURRENT:
        described_recurrent(list, &mixer->of.recurrent, D);
        return;
    case DR_MIXER_ATTENTION:
        described_attention(list, &mixer->of.attention, D);
        return;
    case DR_MIXER_LATENT_ATTENTION:
        described_latent(list, &mixer->of.latent, D);
        return;
    case DR_MIXER_RWKV7:
        described_rwkv7(list, &mixer->of.rwkv7, D);
        return;
    case DR_MIXER_MAMBA2:
        described_mamba2(list, &mixer->of.mamba2, D);
        return;
    case DR_MIXER_KINDS:
        return;
    }
}

static void described_experts(described_list *list, const dr_experts_description *e, int64_t D) {
    const int64_t E = e->router.of.experts, F = e->expert.width, in = e->latent > 0 ? e->latent : D;
    MATRIX("router.weight", E, D);
    VECTOR_IF(e->corrected, "router.bias", E);
    if (e->gated) CUBE("experts.gate_proj", E, F, in);
    CUBE("experts.up_proj", E, F, in);
    CUBE("experts.down_proj", E, in, F);
    if (e->latent > 0) {
        MATRIX("latent_down.weight", e->latent, D);
        MATRIX("latent_up.weight", D, e->latent);
        if (e->outer_bias) VECTOR("latent_down.bias", e->latent);
        if (e->outer_bias) VECTOR("latent_up.bias", D);
    }
    if (e->shared == 0) return;
    if (e->gated) MATRIX("shared.gate_proj.weight", e->shared, D);
    MATRIX("shared.up_proj.weight", e->shared, D);
    MATRIX("shared.down_proj.weight", D, e->shared);
    if (e->outer_bias) VECTOR("shared.up_proj.bias", e->shared);
    if (e->outer_bias) VECTOR("shared.down_proj.bias", D);
    if (e->shared_gate) MATRIX("shared_gate.weight", 1, D);
}

static void described_feed(described_list *list, const dr_feed_description *feed, int64_t D) {
    const dr_feed_forward_description *f = &feed->of.forward;
    switch (feed->kind) {
    case DR_FEED_GATED:
        MATRIX("gate_proj.weight", f->width, D);
        VECTOR_IF(f->bias, "gate_proj.bias", f->width);
        /* fall through */
    case DR_FEED_PLAIN:
        MATRIX("up_proj.weight", f->width, D);
        MATRIX("down_proj.weight", D, f->width);
        VECTOR_IF(f->bias, "up_proj.bias", f->width);
        VECTOR_IF(f->bias, "down_proj.bias", D);
        return;
    case DR_FEED_EXPERTS:
        described_experts(list, &feed->of.experts, D);
        return;
    case DR_FEED_RWKV7:
        MATRIX("x_mix", 1, D);
        MATRIX("up_proj.weight", f->width, D);
        MATRIX("down_proj.weight", D, f->width);
        return;
    case DR_FEED_NONE:
    case DR_FEED_KINDS:
        return;
    }
}

static void described_layer(described_list *list, const dr_description *description, const dr_layer_description *layer) {
    const int64_t D = description->hidden;
    list->prefix = "";
    described_norm(list, "attn_norm", &layer->mixer_norm, D);
    described_norm(list, "attn_post_norm", &layer->mixer_after, D);
    described_norm(list, "mlp_norm", &layer->feed_norm, D);
    described_norm(list, "mlp_post_norm", &layer->feed_after, D);
    if (description->residual == DR_RESIDUAL_ATTENTION) {
        MATRIX("attn_res_proj.weight", 1, D);
        VECTOR("attn_res_norm.weight", D);
        MATRIX("mlp_res_proj.weight", 1, D);
        VECTOR("mlp_res_norm.weight", D);
    }
    for (int i = 0; i < layer->mixers; i++) {
        list->prefix = i == 0 ? "attn." : "attn2.";
        described_mixer(list, &layer->mixer[i], D);
    }
    list->prefix = "mlp.";
    described_feed(list, &layer->feed, D);
}

static inline described_list described_parameters(const dr_description *description) {
    described_list made = {.layer = -1, .prefix = ""}, *list = &made;
    const int64_t D = description->hidden;
    MATRIX("model.embeddings.weight", description->vocabulary, D);
    if (!description->tied) MATRIX("lm_head.weight", description->vocabulary, D);
    described_norm(list, "model.embedding_norm", &description->embedding_norm, D);
    described_norm(list, "model.norm", &description->final_norm, D);
    if (description->residual == DR_RESIDUAL_ATTENTION) {
        MATRIX("model.res_proj.weight", 1, D);
        VECTOR("model.res_norm.weight", D);
    }
    for (list->layer = 0; list->layer < description->count; list->layer++)
        described_layer(list, description, &description->layers[list->layer]);
    return made;
}

#endif
