/* Configurations of both attention mixers: every option, alone and some together, and the sizes of models that there are. */
#ifndef TESTS_ATTENTION_VARIANTS_H
#define TESTS_ATTENTION_VARIANTS_H

#include "module_run.h"
#include "nn/mixers/attention.h"
#include "nn/mixers/latent_attention.h"

enum { VARIANTS = 64 };

/* One configuration of one of the mixers. */
typedef struct {
    const char *name;
    dr_mixer_kind kind;
    int64_t hidden;
    dr_attention_description attention;
    dr_latent_attention_description latent;
} variant;

static inline dr_status create(dr_backend *backend, const variant *v, dr_layer_parameters *list, dr_module **module) {
    if (v->kind == DR_MIXER_ATTENTION) return dr_attention_create(backend, v->hidden, &v->attention, "", list, module);
    return dr_latent_attention_create(backend, v->hidden, &v->latent, "", list, module);
}

static const dr_norm_description rms = {.kind = DR_NORM_RMS, .eps = 0.3},
                                 offset = {.kind = DR_NORM_RMS, .eps = 0.2, .offset = 1};

static inline dr_rotary_spectrum plain(int64_t dim) {
    return (dr_rotary_spectrum){.kind = DR_ROTARY_PLAIN, .dim = dim, .base = 100};
}

static inline dr_rotary_spectrum yarn(int64_t dim) {
    return (dr_rotary_spectrum){
        .kind = DR_ROTARY_YARN, .dim = dim, .base = 100, .stretch = 4, .original = 16, .fast = 32, .slow = 1};
}

static inline dr_rotary_spectrum llama3(int64_t dim) {
    return (dr_rotary_spectrum){
        .kind = DR_ROTARY_LLAMA3, .dim = dim, .base = 100, .stretch = 8, .original = 32, .low = 1, .high = 4};
}

static inline variant attention(const char *name, int64_t hidden, int64_t heads, int64_t key_heads, int64_t key_size,
                                int64_t value_size) {
    return (variant){.name = name,
                     .kind = DR_MIXER_ATTENTION,
                     .hidden = hidden,
                     .attention = {.heads = heads,
                                   .key_heads = key_heads,
                                   .key_size = key_size,
                                   .value_size = value_size,
                                   .scale = 1 / sqrt((double)key_size),
                                   .key_factor = 1}};
}

static inline void rotate(variant *v, dr_rotary_spectrum spectrum, bool interleaved) {
    v->attention.rotary = true, v->attention.spectrum = spectrum, v->attention.interleaved = interleaved;
}

static inline variant latent(const char *name, int64_t hidden, int64_t heads, int64_t plain_size, int64_t turned,
                             int64_t value_size, int64_t rank) {
    return (variant){.name = name,
                     .kind = DR_MIXER_LATENT_ATTENTION,
                     .hidden = hidden,
                     .latent = {.heads = heads,
                                .plain = plain_size,
                                .turned = turned,
                                .value_size = value_size,
                                .rank = rank,
                                .scale = 1 / sqrt((double)(plain_size + turned)),
                                .norm = rms}};
}

static inline int latent_variants(int64_t size, int64_t hidden, variant *list) {
    const int64_t turned = 2 * size, value = size + 1, rank = size + 2;
    int n = 0;
    variant v = latent("latent", hidden, 3, size, turned, value, rank);
    list[n++] = v;
    v.name = "latent, rotary of pairs", v.latent.rotary = true, v.latent.spectrum = plain(turned), v.latent.interleaved = true;
    list[n++] = v;
    v.name = "latent, yarn", v.latent.spectrum = yarn(turned), v.latent.interleaved = false, list[n++] = v;
    v.name = "latent, queries of low rank", v.latent.query_rank = size + 3, v.latent.query_norm = offset, list[n++] = v;
    v.name = "latent, gate by head", v.latent.gate = DR_GATED_BY_HEAD, list[n++] = v;
    v.name = "latent, gate by element", v.latent.gate = DR_GATED_BY_ELEMENT, v.latent.query_rank = 0, list[n++] = v;
    v = latent("latent, nothing shared", hidden, 2, size, 0, value, rank), list[n++] = v;
    v.name = "latent, no norms", v.latent.norm.kind = DR_NORM_NONE, v.latent.query_rank = size, list[n++] = v;
    return n;
}

/* Every option, alone and some together; head sizes scaled by `size`, so that the same list serves differences and speed. */
static inline int variants(int64_t size, int64_t hidden, variant *list) {
    const int64_t key = 2 * size, value = size + 1;
    int n = 0;
    variant v = list[n++] = attention("plain", hidden, 2, 2, key, value);
    v = attention("shared keys", hidden, 6, 2, key, value), list[n++] = v;
    v = attention("one key head", hidden, 3, 1, key, value), list[n++] = v;
    v = attention("window", hidden, 2, 1, key, value), v.attention.window = 2, list[n++] = v;
    v = attention("own token alone", hidden, 2, 1, key, value), v.attention.window = 1, list[n++] = v;
    v = attention("rotary", hidden, 2, 1, key, value), rotate(&v, plain(key), false), list[n++] = v;
    v = attention("rotary of pairs", hidden, 2, 1, key, value), rotate(&v, plain(key), true), list[n++] = v;
    v = attention("rotary of a part", hidden, 4, 2, key, value), rotate(&v, plain(2), false), list[n++] = v;
    v = attention("pairs of a part", hidden, 4, 2, key, value), rotate(&v, plain(2), true), list[n++] = v;
    v = attention("yarn", hidden, 2, 1, key, value), rotate(&v, yarn(key), false), list[n++] = v;
    v = attention("llama3", hidden, 2, 1, key, value), rotate(&v, llama3(key), false), list[n++] = v;
    v = attention("norms by head", hidden, 4, 2, key, value), v.attention.query_norm = v.attention.key_norm = rms,
    list[n++] = v;
    v = attention("norms about one", hidden, 4, 2, key, value), v.attention.query_norm = offset, v.attention.key_norm = rms;
    rotate(&v, plain(key), false), list[n++] = v;
    v = attention("norms of all heads", hidden, 4, 2, key, value), v.attention.query_norm = v.attention.key_norm = rms;
    v.attention.norm_whole = true, rotate(&v, plain(key), false), list[n++] = v;
    v = attention("norm of keys alone", hidden, 2, 2, key, value), v.attention.key_norm = rms, list[n++] = v;
    v = attention("gate by element", hidden, 4, 2, key, value), v.attention.gate = DR_GATED_BY_ELEMENT, list[n++] = v;
    v = attention("gate by head", hidden, 4, 2, key, value), v.attention.gate = DR_GATED_BY_HEAD, list[n++] = v;
    v = attention("biases", hidden, 4, 2, key, value), v.attention.query_bias = v.attention.key_bias = true;
    v.attention.value_bias = v.attention.output_bias = true, list[n++] = v;
    v = attention("bias of the values alone", hidden, 2, 2, key, value), v.attention.value_bias = true, list[n++] = v;
    v = attention("factor of keys", hidden, 2, 1, key, value), v.attention.key_factor = 0.4, list[n++] = v;
    v = attention("all together", hidden, 6, 3, key, value), v.attention.query_norm = offset, v.attention.key_norm = offset;
    rotate(&v, plain(2), false), v.attention.query_bias = v.attention.key_bias = v.attention.value_bias = true;
    v.attention.output_bias = true, v.attention.gate = DR_GATED_BY_ELEMENT, v.attention.window = 3, list[n++] = v;
    v.name = "all together, gate by head", v.attention.gate = DR_GATED_BY_HEAD, v.attention.norm_whole = true, list[n++] = v;
    n += latent_variants(size, hidden, list + n);
    assert_true(n <= VARIANTS);
    return n;
}

/* Sizes of models that there are: of Llama, Mistral, Qwen3-Next and Ling. */
static inline int real_variants(variant *list) {
    int n = 0;
    variant v = attention("64 channels", 192, 6, 3, 64, 64);
    rotate(&v, llama3(64), false), list[n++] = v;
    v = attention("128 channels", 256, 4, 1, 128, 128), v.attention.query_norm = v.attention.key_norm = rms;
    rotate(&v, plain(128), false), v.attention.window = 37, list[n++] = v;
    v = attention("256 channels", 128, 2, 1, 256, 256), v.attention.query_norm = v.attention.key_norm = offset;
    rotate(&v, plain(64), false), v.attention.gate = DR_GATED_BY_ELEMENT, list[n++] = v;
    v = latent("latent of 128 and 64 channels", 128, 3, 128, 64, 128, 256), v.latent.rotary = v.latent.interleaved = true;
    v.latent.spectrum = plain(64), v.latent.gate = DR_GATED_BY_HEAD, list[n++] = v;
    return n;
}

#endif
