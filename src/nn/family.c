/* The second table of the design: for each family of layers what its rule does not decide (docs/adding-a-rule.md). Which
 * projections and gates a layer has follows from the rule's axes alone (nn/mixers/recurrent/build.c); this table says how the
 * streams are treated. A rule says which family it has, so that a variant of a named rule keeps that rule's layer. */
#include "nn/family.h"
#include "rules/compare.h"

/* clang-format off */

/* short convolution with silu; unit queries and keys, or queries only: a unit key would make the gain trivial */
#define CONVOLVED .conv_size = 4, .activated = true
#define DELTA     CONVOLVED, .unit = DR_UNIT_BOTH
#define LENGTHS   CONVOLVED, .unit = DR_UNIT_QUERY
#define SILU      .gate = DR_ACTIVATION_SILU
#define SIGMOID   .gate = DR_ACTIVATION_SIGMOID
#define GATED     .output_gate = true
#define LOG       .form = DR_GATE_FORM_LOG

#define KDA    DELTA, SIGMOID, GATED, .gate_low_rank = true, .expansion = 1, .decay = DR_DECAY_LOW_RANK, .a_least = 1, LOG
#define MESA   DELTA, .plain_value = true, SILU, .expansion = 1, .scale = 1, LOG

static const dr_layer_family families[DR_FAMILIES] = {
    [DR_FAMILY_COMPOSITION] = {DELTA, SILU, GATED, .expansion = 1, LOG},
    [DR_FAMILY_LINEAR_ATTENTION] = {CONVOLVED, SILU, GATED, .expansion = 1, LOG},
    [DR_FAMILY_RETNET] = {SILU, GATED, .expansion = 2, .rotary_base = 10000, LOG},
    [DR_FAMILY_MAMBA2] = {CONVOLVED, .conv_bias = true, SILU, GATED, .gate_first = true, .expansion = 2, .scale = 1,
                          .a_least = 1, LOG, .stepped = true},
    [DR_FAMILY_GLA] = {SILU, GATED, .expansion = 1, .decay = DR_DECAY_LOW_RANK_BIAS, .log_sigmoid = 1.0 / 16, LOG},
    [DR_FAMILY_DELTA_NET] = {DELTA, SILU, .expansion = 1, LOG},
    [DR_FAMILY_LONGHORN] = {LENGTHS, SILU, GATED, .expansion = 1, LOG},
    [DR_FAMILY_GDN] = {DELTA, SILU, GATED, .expansion = 2, LOG},
    [DR_FAMILY_COMBA] = {DELTA, SIGMOID, GATED, .expansion = 2, LOG},
    [DR_FAMILY_QDELTA] = {DELTA, SILU, GATED, .expansion = 2, LOG},
    [DR_FAMILY_PGDN] = {DELTA, SILU, .expansion = 1, LOG},
    [DR_FAMILY_KDA] = {KDA},
    [DR_FAMILY_PKDA] = {KDA, .scan_decay_name = "a_proj.weight"},
    [DR_FAMILY_EDA] = {DELTA, SIGMOID, GATED, .expansion = 1, .decay = DR_DECAY_LOW_RANK_HEADS, .a_least = 1,
                       .form = DR_GATE_FORM_EDA_BOUNDED},
    [DR_FAMILY_MESANET] = {MESA, .log_sigmoid = 1, .gains_biased = true},
    [DR_FAMILY_PLA_EXACT] = {MESA},
};
/* clang-format on */

/* A unit key makes these gains functions of beta alone, so only the query is divided by its length. */
static bool gain_needs_length(const dr_rule *rule) {
    for (int i = 0; i < rule->rows && i < DR_MAX_ROWS; i++) {
        dr_gain gain = rule->row[i].gain;
        if (gain == DR_GAIN_IMPLICIT || gain == DR_GAIN_NORMALIZED || gain == DR_GAIN_EXPONENTIAL) return true;
    }
    return false;
}

/* Only compositions follow the axes: what is said of the others holds whatever became of their rule. */
static void follow_axes(const dr_rule *rule, dr_layer_family *family) {
    if (rule->decay == DR_DECAY_CHANNEL) {
        family->gate = DR_ACTIVATION_SIGMOID;
        family->decay = DR_DECAY_LOW_RANK;
        family->a_least = 1;
    }
    if (gain_needs_length(rule)) family->unit = DR_UNIT_QUERY;
}

dr_layer_family dr_layer_family_of(const dr_rule *rule) {
    const dr_family kind = dr_rule_family(rule);
    dr_layer_family family = families[kind < DR_FAMILIES ? kind : DR_FAMILY_COMPOSITION];
    if (kind == DR_FAMILY_COMPOSITION) follow_axes(rule, &family);
    return family;
}
