/* The second table of the design: for each known family of layers what its rule does not decide (docs/adding-a-rule.md).
 * Which projections and gates a layer has follows from the rule's axes alone (nn/mixer.c); this table says how the streams are
 * treated. Everything that is not in it belongs to the row of compositions. */
#include "nn/family.h"
#include "rules/compare.h"
#include <string.h>

/* clang-format off */

/* short convolution with silu; unit queries and keys, or queries only: a unit key would make the gain trivial */
#define CONVOLVED .conv_size = 4, .activated = true
#define DELTA     CONVOLVED, .unit = DR_UNIT_BOTH
#define LENGTHS   CONVOLVED, .unit = DR_UNIT_QUERY
#define SILU      .gate = DR_ACTIVATION_SILU
#define SIGMOID   .gate = DR_ACTIVATION_SIGMOID
#define GATED     .output_gate = true
#define LOG       .form = DR_GATE_FORM_LOG

#define MAMBA2 CONVOLVED, .conv_bias = true, SILU, GATED, .gate_first = true, .expansion = 2, .scale = 1, .a_least = 1, LOG, \
               .stepped = true
#define GLA    SILU, GATED, .expansion = 1, .decay = DR_DECAY_LOW_RANK_BIAS, .log_sigmoid = 1.0 / 16, LOG
#define KDA    DELTA, SIGMOID, GATED, .gate_low_rank = true, .expansion = 1, .decay = DR_DECAY_LOW_RANK, .a_least = 1, LOG
#define MESA   DELTA, .plain_value = true, SILU, .expansion = 1, .scale = 1, LOG

static const dr_family families[] = {
    {.rule = "linear_attention", CONVOLVED, SILU, GATED, .expansion = 1, LOG},
    {.rule = "pla", CONVOLVED, SILU, GATED, .expansion = 1, LOG},
    {.rule = "retnet", SILU, GATED, .expansion = 2, .rotary_base = 10000, LOG},
    {.rule = "mamba2", MAMBA2},
    {.rule = "pmamba2", MAMBA2},
    {.rule = "pmamba2_key", MAMBA2},
    {.rule = "gla", GLA},
    {.rule = "pgla", GLA},
    {.rule = "delta_net", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "longhorn", LENGTHS, SILU, GATED, .expansion = 1, LOG},
    {.rule = "nlms", LENGTHS, SILU, GATED, .expansion = 1, LOG},
    {.rule = "efla", LENGTHS, SILU, GATED, .expansion = 1, LOG},
    {.rule = "plonghorn", LENGTHS, SILU, GATED, .expansion = 1, LOG},
    {.rule = "gdn", DELTA, SILU, GATED, .expansion = 2, LOG},
    {.rule = "qdelta", DELTA, SILU, GATED, .expansion = 2, LOG},
    {.rule = "comba", DELTA, SIGMOID, GATED, .expansion = 2, LOG},
    {.rule = "delta_product", DELTA, SILU, GATED, .expansion = 2, LOG},
    {.rule = "pdn", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "pdn_unstable", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "pgdn", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "pgdn_unstable", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "kda", KDA},
    {.rule = "gdn2", KDA},
    {.rule = "pkda", KDA, .scan_decay_name = "attn.a_proj.weight"},
    {.rule = "pkda_unstable", KDA},
    {.rule = "eda", DELTA, SIGMOID, GATED, .expansion = 1, .decay = DR_DECAY_LOW_RANK_HEADS, .a_least = 1,
     .form = DR_GATE_FORM_EDA_BOUNDED},
    {.rule = "mesanet", MESA, .log_sigmoid = 1, .gains_biased = true},
    {.rule = "pla_exact", MESA},
    {.rule = "pdn_exact", MESA},
};

static const dr_family composition = {DELTA, SILU, GATED, .expansion = 1, LOG};
/* clang-format on */

/* A unit key makes these gains functions of beta alone, so only the query is divided by its length. */
static bool gain_needs_length(const dr_rule *rule) {
    for (int i = 0; i < rule->rows && i < DR_MAX_ROWS; i++) {
        dr_gain gain = rule->row[i].gain;
        if (gain == DR_GAIN_IMPLICIT || gain == DR_GAIN_NORMALIZED || gain == DR_GAIN_EXPONENTIAL) return true;
    }
    return false;
}

static dr_family family_of_composition(const dr_rule *rule) {
    dr_family family = composition;
    if (rule->decay == DR_DECAY_CHANNEL) {
        family.gate = DR_ACTIVATION_SIGMOID;
        family.decay = DR_DECAY_LOW_RANK;
        family.a_least = 1;
    }
    if (gain_needs_length(rule)) family.unit = DR_UNIT_QUERY;
    return family;
}

dr_family dr_family_of(const dr_rule *rule) {
    for (int i = 0; rule->name && i < dr_rule_count(); i++) {
        const dr_rule *named = dr_rule_at(i);
        if (strcmp(named->name, rule->name) != 0 || !dr_rule_same_axes(named, rule)) continue;
        for (size_t k = 0; k < sizeof families / sizeof families[0]; k++)
            if (strcmp(families[k].rule, rule->name) == 0) return families[k];
    }
    return family_of_composition(rule);
}
