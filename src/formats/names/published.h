/* Configurations of published model types, from their config.json to descriptions. */
#ifndef DR_FORMATS_NAMES_PUBLISHED_H
#define DR_FORMATS_NAMES_PUBLISHED_H

#include "formats/names/description.h"
#include "formats/names/keys.h"

/* The description of a configuration, to be released. DR_ERROR_FORMAT for a value that cannot be; DR_ERROR_UNSUPPORTED for a
 * type, a key or a value that would change what is computed in a way that nothing here does, each by name. */
dr_status dr_published_read(const json_t *config, dr_description *description);

/* ---- for the readers of the families, each in a file of its name -------------------------------------------------------- */

/* What a family of types has: a type's name, and how its configuration is read. */
typedef struct {
    const char *model_type;
    dr_status (*read)(const json_t *config, dr_description *description);
} dr_published_type;

extern const dr_published_type dr_published_attention_types[], dr_published_hybrid_types[], dr_published_latent_types[],
    dr_published_mamba_types[], dr_published_fla_types[]; /* each ends with NULL */

/* Keys that any configuration may have, and that steer other programs: a table without keys that are understood. */
extern const dr_key_table dr_published_idle;

/* Layers for a description, all zero but for scales of one. DR_ERROR_FORMAT unless count is from 1 to 2^14. */
dr_status dr_published_layers(dr_description *description, int64_t count);
/* DR_ERROR_FORMAT unless a size that has no default was read from this key. */
dr_status dr_published_need(int64_t size, const char *key);
/* One more mixer of a layer, with scales of one. */
dr_mixer_description *dr_published_mixer(dr_layer_description *layer, dr_mixer_kind kind);
dr_norm_description dr_published_rms(double eps, double offset);
dr_feed_description dr_published_swiglu(int64_t width);
dr_attention_description dr_published_attention(int64_t heads, int64_t key_heads, int64_t size);
dr_rotary_spectrum dr_published_plain_spectrum(int64_t dim, double base);

/* Recurrent layers: the first rule of the table of a family with this read key and write key; silu after a convolution of conv
 * tokens on query, key and value, unit queries and keys, a gated output with this function. */
dr_recurrent_description dr_published_recurrent(dr_family family, dr_read read, dr_write write);
void dr_published_recurrent_sizes(dr_recurrent_description *recurrent, int64_t heads, int64_t value_heads, int64_t key_size,
                                  int64_t value_size);

/* Rotary embedding as transformers writes it: "rope_scaling" goes before "rope_parameters"; either may be missing. */
typedef struct {
    const json_t *parameters, *scaling;
    double theta, partial; /* of the top of the configuration, or their defaults */
    int64_t positions;     /* "max_position_embeddings" */
} dr_published_rope;
/* Turns so many channels of a head of this size by pairs, the last of which takes one channel more where their number is odd.
 */
void dr_published_turn(int64_t channels, int64_t size, dr_rotary_spectrum *spectrum);
/* The spectrum for heads of this size. *any: whether there is a rotary embedding at all. */
dr_status dr_published_spectrum(const dr_published_rope *rope, int64_t size, bool *any, dr_rotary_spectrum *spectrum);

#endif
