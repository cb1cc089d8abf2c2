/* The second table of the design: for each known family of layers what its rule does not decide (docs/adding-a-rule.md).
 * Which projections and gates a layer has follows from the rule's axes alone (nn/mixer.c); this table says how the streams are
 * treated. Everything that is not in it belongs to the row of compositions. */
#include "nn/family.h"
#include "rules/compare.h"
#include <string.h>

/* clang-format off */

/* short convolution with silu, unit queries and keys */
#define DELTA   .conv_size = 4, .activated = true, .unit = DR_UNIT_BOTH
#define SILU    .gate = DR_ACTIVATION_SILU
#define SIGMOID .gate = DR_ACTIVATION_SIGMOID
#define LOG     .form = DR_GATE_FORM_LOG

static const dr_family families[] = {
    {.rule = "linear_attention", .conv_size = 4, .activated = true, SILU, .output_gate = true, .expansion = 1, LOG},
    {.rule = "retnet", SILU, .output_gate = true, .expansion = 2, .rotary_base = 10000, LOG},
    {.rule = "mamba2", .conv_size = 4, .conv_bias = true, .activated = true, SILU, .output_gate = true, .gate_first = true,
     .expansion = 2, .scale = 1, .a_least = 1, LOG, .stepped = true},
    {.rule = "gla", SILU, .output_gate = true, .expansion = 1, .decay = DR_DECAY_LOW_RANK_BIAS, .log_sigmoid = true, LOG},
    {.rule = "delta_net", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "gdn", DELTA, SILU, .output_gate = true, .expansion = 2, LOG},
    {.rule = "qdelta", DELTA, SILU, .output_gate = true, .expansion = 2, LOG},
    {.rule = "pdn", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "pgdn", DELTA, SILU, .expansion = 1, LOG},
    {.rule = "kda", DELTA, SIGMOID, .output_gate = true, .gate_low_rank = true, .expansion = 1,
     .decay = DR_DECAY_LOW_RANK, .a_least = 1, LOG},
    {.rule = "pkda", DELTA, SIGMOID, .output_gate = true, .gate_low_rank = true, .expansion = 1,
     .decay = DR_DECAY_LOW_RANK, .a_least = 1, LOG, .scan_decay_name = "attn.a_proj.weight"},
    {.rule = "eda", DELTA, SIGMOID, .output_gate = true, .expansion = 1, .decay = DR_DECAY_LOW_RANK_HEADS, .a_least = 1,
     .form = DR_GATE_FORM_EDA_BOUNDED},
};

static const dr_family composition = {DELTA, SILU, .output_gate = true, .expansion = 1, LOG};
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
