/* The type of a configuration, and what the readers of all types share. */
#include "formats/names/published.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_LAYERS = 1 << 14 };

static const char *const idle[] = {"model_type",
                                   "architectures",
                                   "dtype",
                                   "torch_dtype",
                                   "transformers_version",
                                   "use_cache",
                                   "auto_map",
                                   "_name_or_path",
                                   "name_or_path",
                                   "bos_token_id",
                                   "eos_token_id",
                                   "pad_token_id",
                                   "sep_token_id",
                                   "decoder_start_token_id",
                                   "tokenizer_class",
                                   "initializer_range",
                                   "attention_dropout",
                                   "hidden_dropout",
                                   "pretraining_tp",
                                   "output_router_logits",
                                   "output_attentions",
                                   "output_hidden_states",
                                   "return_dict",
                                   "use_return_dict",
                                   "chunk_size_feed_forward",
                                   "id2label",
                                   "label2id",
                                   "problem_type",
                                   "task_specific_params",
                                   "is_encoder_decoder",
                                   "is_decoder",
                                   "add_cross_attention",
                                   "_attn_implementation",
                                   "attn_implementation",
                                   "_experts_implementation",
                                   "num_logits_to_keep",
                                   "logits_to_keep",
                                   "fuse_norm",
                                   "fuse_swiglu",
                                   "fuse_cross_entropy",
                                   "fuse_linear_cross_entropy",
                                   "use_l2warp",
                                   "rescale_prenorm_residual",
                                   "prenorm_residual_strategy",
                                   "residual_in_fp32",
                                   "z_loss_coefficient",
                                   NULL};
const dr_key_table dr_published_idle = {.idle = idle};

static const dr_published_type *const families[] = {dr_published_attention_types, dr_published_hybrid_types,
                                                    dr_published_latent_types, dr_published_mamba_types,
                                                    dr_published_fla_types};

/* Types that need what is not built, and what that is. */
static const struct {
    const char *model_type, *missing;
} refused[] = {
    {.model_type = "glm5_next", "hyper-connections between its layers and attention to tokens that an indexer chooses"},
    {.model_type = "glm5_next_text", "hyper-connections between its layers and attention to tokens that an indexer chooses"},
    {.model_type = "qwen4_exp", "hyper-connections, attention to blocks that an indexer chooses, and embeddings of n-grams"},
    {.model_type = "qwen4_exp_text",
     "hyper-connections, attention to blocks that an indexer chooses, and embeddings of n-grams"},
};

static dr_status refuse_type(const char *name) {
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strcmp(name, refused[i].model_type) == 0)
            return dr_fail(DR_ERROR_UNSUPPORTED, "\"model_type\" is \"%s\", which needs %s: these are not supported", name,
                           refused[i].missing);
    char known[700] = "deltarule";
    size_t used = strlen(known);
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (const dr_published_type *type = families[f]; type->model_type && used < sizeof known; type++)
            used += (size_t)snprintf(known + used, sizeof known - used, ", %s", type->model_type);
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"model_type\" is \"%.60s\"; supported are %s", name, known);
}

dr_status dr_published_read(const json_t *config, dr_description *description) {
    const char *name = NULL;
    *description = (dr_description){0};
    DR_TRY(dr_json_text(config, "model_type", &name));
    if (!name) return dr_fail(DR_ERROR_FORMAT, "the key \"model_type\" is missing");
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (const dr_published_type *type = families[f]; type->model_type; type++) {
            if (strcmp(name, type->model_type) != 0) continue;
            description->model_type = type->model_type;
            const dr_status status = type->read(config, description);
            if (status != DR_OK) dr_description_release(description);
            return status;
        }
    return refuse_type(name);
}

dr_status dr_published_layers(dr_description *description, int64_t count) {
    void *memory = NULL;
    if (count < 1 || count > MOST_LAYERS)
        return dr_fail(DR_ERROR_FORMAT, "\"num_hidden_layers\" is %" PRId64 "; it must be from 1 to %d", count, MOST_LAYERS);
    DR_TRY(dr_allocate_zero((size_t)count * sizeof(dr_layer_description), "a model's layers", &memory));
    description->layers = memory;
    description->count = count;
    description->embedding_scale = description->logits_scale = 1;
    return DR_OK;
}

dr_status dr_published_need(int64_t size, const char *key) {
    return size > 0 ? DR_OK : dr_fail(DR_ERROR_FORMAT, "the key \"%s\" is missing", key);
}

dr_mixer_description *dr_published_mixer(dr_layer_description *layer, dr_mixer_kind kind) {
    dr_mixer_description *mixer = &layer->mixer[layer->mixers++];
    *mixer = (dr_mixer_description){.kind = kind, .input_scale = 1, .output_scale = 1};
    return mixer;
}

dr_norm_description dr_published_rms(double eps, double offset) {
    return (dr_norm_description){.kind = DR_NORM_RMS, .eps = eps, .offset = offset};
}

dr_feed_description dr_published_swiglu(int64_t width) {
    return (dr_feed_description){
        .kind = DR_FEED_GATED,
        .of.forward = {.width = width, .function = DR_FUNCTION_SILU, .gate_factor = 1, .down_factor = 1}};
}

dr_attention_description dr_published_attention(int64_t heads, int64_t key_heads, int64_t size) {
    return (dr_attention_description){.heads = heads,
                                      .key_heads = key_heads,
                                      .key_size = size,
                                      .value_size = size,
                                      .scale = 1 / sqrt((double)size),
                                      .key_factor = 1};
}

dr_recurrent_description dr_published_recurrent(dr_family family, dr_read read, dr_write write) {
    int i = 0;
    while (dr_rule_at(i)->family != family || dr_rule_at(i)->row[0].read != read || dr_rule_at(i)->row[0].write != write) i++;
    dr_recurrent_description recurrent = {.rule = *dr_rule_at(i),
                                          .gates = dr_gates_default(),
                                          .conv_size = 4,
                                          .value_conv = true,
                                          .feature = DR_FUNCTION_SILU,
                                          .activate = DR_FUNCTION_SILU,
                                          .query_length = DR_LENGTH_UNIT,
                                          .key_length = DR_LENGTH_UNIT,
                                          .least_ridge = 0.25,
                                          .gated = true,
                                          .gate = DR_FUNCTION_SILU};
    recurrent.gates.gate = DR_GATE_FORM_LOG;
    return recurrent;
}

void dr_published_recurrent_sizes(dr_recurrent_description *recurrent, int64_t heads, int64_t value_heads, int64_t key_size,
                                  int64_t value_size) {
    recurrent->heads = heads;
    recurrent->value_heads = value_heads;
    recurrent->key_size = key_size;
    recurrent->value_size = value_size;
}

/* ---- rotary embedding --------------------------------------------------------------------------------------------------- */

dr_rotary_spectrum dr_published_plain_spectrum(int64_t dim, double base) {
    return (dr_rotary_spectrum){.kind = DR_ROTARY_PLAIN, .dim = dim, .base = base};
}

typedef struct {
    const char *type, *old_type;
    double theta, partial, factor, low, high, fast, slow, attention_factor, mscale, mscale_dims;
    int64_t original;
    bool truncate;
} rope_keys;

static const dr_key keys_of_rope[] = {
    DR_KEY(TEXT, rope_keys, "rope_type", type),
    DR_KEY(TEXT, rope_keys, "type", old_type),
    DR_KEY_RANGE(REAL, rope_keys, "rope_theta", theta, 1, 1e300),
    DR_KEY_RANGE(REAL, rope_keys, "partial_rotary_factor", partial, 0, 1),
    DR_KEY_RANGE(REAL, rope_keys, "factor", factor, 1e-9, 1e9),
    DR_KEY_RANGE(WHOLE, rope_keys, "original_max_position_embeddings", original, 1, 1LL << 40),
    DR_KEY_RANGE(REAL, rope_keys, "low_freq_factor", low, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "high_freq_factor", high, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "beta_fast", fast, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "beta_slow", slow, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "attention_factor", attention_factor, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "mscale", mscale, 0, 1e9),
    DR_KEY_RANGE(REAL, rope_keys, "mscale_all_dim", mscale_dims, 0, 1e9),
    DR_KEY(TRUTH, rope_keys, "truncate", truncate),
};
/* positions on three axes, which are equal in text */
static const char *const idle_of_rope[] = {"mrope_section", "mrope_interleaved", NULL};
static const dr_key_table rope_table = {keys_of_rope, sizeof keys_of_rope / sizeof keys_of_rope[0], idle_of_rope};
static const dr_key_table *const rope_tables[] = {&rope_table, NULL};

static const struct {
    const char *name;
    dr_rotary_kind kind;
} kinds[] = {
    {"default", DR_ROTARY_PLAIN}, {"linear", DR_ROTARY_LINEAR}, {"llama3", DR_ROTARY_LLAMA3}, {"yarn", DR_ROTARY_YARN}};

static dr_status find_kind(const char *name, dr_rotary_kind *kind) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].name) == 0) {
            *kind = kinds[i].kind;
            return DR_OK;
        }
    return dr_fail(DR_ERROR_UNSUPPORTED, "\"rope_type\" is \"%.40s\"; default, linear, llama3 and yarn are supported", name);
}

void dr_published_turn(int64_t channels, int64_t size, dr_rotary_spectrum *spectrum) {
    const bool room = channels + channels % 2 <= size;
    spectrum->dim = room ? channels + channels % 2 : channels; /* which dr_rotary_check refuses */
    spectrum->counted = channels;
}

dr_status dr_published_spectrum(const dr_published_rope *rope, int64_t size, bool *any, dr_rotary_spectrum *spectrum) {
    const json_t *object = rope->scaling ? rope->scaling : rope->parameters;
    rope_keys keys = {
        .theta = rope->theta, .partial = rope->partial, .original = rope->positions, .fast = 32, .slow = 1, .truncate = true};
    dr_rotary_kind kind = DR_ROTARY_PLAIN;
    if (object) {
        dr_status status = dr_keys_read(object, rope_tables, &keys);
        if (status != DR_OK) return dr_fail_in(status, "%s", rope->scaling ? "rope_scaling" : "rope_parameters");
    }
    const json_t *theta = json_object_get(object, "rope_theta");
    *any = !json_is_null(theta);
    const char *name = keys.type ? keys.type : keys.old_type;
    if (name) DR_TRY(find_kind(name, &kind));
    if (kind != DR_ROTARY_PLAIN && keys.factor == 0)
        return dr_fail(DR_ERROR_FORMAT, "\"rope_type\" is \"%s\", which needs a \"factor\"", name);
    *spectrum = (dr_rotary_spectrum){.kind = kind,
                                     .base = keys.theta,
                                     .stretch = keys.factor,
                                     .original = (double)keys.original,
                                     .low = keys.low,
                                     .high = keys.high,
                                     .fast = keys.fast,
                                     .slow = keys.slow,
                                     .exact_ends = !keys.truncate,
                                     .attention_factor = keys.attention_factor,
                                     .mscale = keys.mscale,
                                     .mscale_dims = keys.mscale_dims};
    dr_published_turn((int64_t)((double)size * keys.partial), size, spectrum);
    if (!*any) return DR_OK;
    const dr_status status = dr_rotary_check(spectrum);
    return status == DR_OK ? DR_OK : dr_fail_in(DR_ERROR_FORMAT, "the rotary embedding");
}
