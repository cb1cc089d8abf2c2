/* Names of a layer's parameters by role, their places, and their first values. The names are those of flash-linear-attention
 * where it has the parameter, so that a checkpoint of a published model type needs no translation. */
#include "nn/parameters.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include <inttypes.h>
#include <math.h>

static const struct {
    const char *name;
    bool decays;
} roles[DR_ROLES] = {
    [DR_ROLE_MIXER_NORM] = {"attn_norm.weight", false},
    [DR_ROLE_QUERY] = {"attn.q_proj.weight", true},
    [DR_ROLE_KEY] = {"attn.k_proj.weight", true},
    [DR_ROLE_VALUE] = {"attn.v_proj.weight", true},
    [DR_ROLE_QUERY_CONV] = {"attn.q_conv1d.weight", true},
    [DR_ROLE_QUERY_CONV_BIAS] = {"attn.q_conv1d.bias", false},
    [DR_ROLE_KEY_CONV] = {"attn.k_conv1d.weight", true},
    [DR_ROLE_KEY_CONV_BIAS] = {"attn.k_conv1d.bias", false},
    [DR_ROLE_VALUE_CONV] = {"attn.v_conv1d.weight", true},
    [DR_ROLE_VALUE_CONV_BIAS] = {"attn.v_conv1d.bias", false},
    [DR_ROLE_DECAY] = {"attn.a_proj.weight", true},
    [DR_ROLE_DECAY_BIAS] = {"attn.a_proj.bias", false},
    [DR_ROLE_DECAY_DOWN] = {"attn.f_proj.0.weight", true},
    [DR_ROLE_DECAY_UP] = {"attn.f_proj.1.weight", true},
    [DR_ROLE_DECAY_UP_BIAS] = {"attn.f_proj.1.bias", false},
    [DR_ROLE_A_LOG] = {"attn.A_log", false},
    [DR_ROLE_DT_BIAS] = {"attn.dt_bias", false},
    [DR_ROLE_BETA] = {"attn.b_proj.weight", true},
    [DR_ROLE_BETA_BIAS] = {"attn.b_proj.bias", false},
    [DR_ROLE_ERASE_KEY_DOWN] = {"attn.e_proj.0.weight", true},
    [DR_ROLE_ERASE_KEY_UP] = {"attn.e_proj.1.weight", true},
    [DR_ROLE_ERASE_GAIN] = {"attn.gamma_proj.weight", true},
    [DR_ROLE_LAMBDA] = {"attn.lamb_proj.weight", true},
    [DR_ROLE_LAMBDA_BIAS] = {"attn.lamb_bias", false},
    [DR_ROLE_ERASE_GATE] = {"attn.erase_gate_proj.weight", true},
    [DR_ROLE_WRITE_GATE] = {"attn.write_gate_proj.weight", true},
    [DR_ROLE_FEEDBACK] = {"attn.decay", false},
    [DR_ROLE_CORRECTION] = {"attn.D", false},
    [DR_ROLE_SCAN_DECAY] = {"attn.a_atk_proj.weight", true},
    [DR_ROLE_SCAN_GAIN] = {"attn.b_atk_proj.weight", true},
    [DR_ROLE_SCAN_A_LOG] = {"attn.A_log_atk", false},
    [DR_ROLE_SCAN_DT_BIAS] = {"attn.dt_bias_atk", false},
    [DR_ROLE_SCAN_CENTRE] = {"attn.log_atk_scale", false},
    [DR_ROLE_RIDGE] = {"attn.ridge", false},
    [DR_ROLE_SKIP] = {"attn.D_skip", false},
    [DR_ROLE_GATE] = {"attn.g_proj.weight", true},
    [DR_ROLE_GATE_DOWN] = {"attn.g_proj.0.weight", true},
    [DR_ROLE_GATE_UP] = {"attn.g_proj.1.weight", true},
    [DR_ROLE_GATE_UP_BIAS] = {"attn.g_proj.1.bias", false},
    [DR_ROLE_OUTPUT_NORM] = {"attn.o_norm.weight", false},
    [DR_ROLE_OUTPUT] = {"attn.o_proj.weight", true},
    [DR_ROLE_MLP_NORM] = {"mlp_norm.weight", false},
    [DR_ROLE_MLP_GATE] = {"mlp.gate_proj.weight", true},
    [DR_ROLE_MLP_UP] = {"mlp.up_proj.weight", true},
    [DR_ROLE_MLP_DOWN] = {"mlp.down_proj.weight", true},
};

dr_status dr_slot_fill(dr_slot slots[DR_ROLES], dr_role role, dr_initial initial, int64_t rows, int64_t columns,
                       int64_t depth) {
    dr_slot slot = {
        .name = roles[role].name, .initial = initial, .decays = roles[role].decays, .shape = {rows, columns, depth}};
    slot.rank = depth ? 3 : columns ? 2 : 1;
    if (!dr_product(slot.shape, slot.rank, &slot.count) || slot.count > INT64_C(1) << 40)
        return dr_fail(DR_ERROR_ARGUMENT, "%s would be %" PRId64 " by %" PRId64 ": at most 2^40 elements are possible",
                       slot.name, rows, columns);
    slots[role] = slot;
    return DR_OK;
}

int64_t dr_slots_place(dr_slot slots[DR_ROLES]) {
    int64_t offset = 0;
    for (int role = 0; role < DR_ROLES; role++) {
        slots[role].offset = offset;
        offset += (slots[role].count + DR_OFFSET_UNIT - 1) / DR_OFFSET_UNIT * DR_OFFSET_UNIT;
    }
    return offset;
}

static double draw(const dr_initial *initial, double range, dr_random *random) {
    switch (initial->kind) {
    case DR_INITIAL_NORMAL:
        return range * dr_random_normal(random);
    case DR_INITIAL_UNIFORM:
        return initial->value * (2 * dr_random_uniform(random) - 1);
    case DR_INITIAL_CONSTANT:
        return initial->value;
    case DR_INITIAL_A_LOG:
        /* a draw of zero would give a decay that no gradient can change */
        return log(fmax(initial->value + (16 - initial->value) * dr_random_uniform(random), 1e-2));
    case DR_INITIAL_STEP: {
        double step = exp(log(1e-3) + dr_random_uniform(random) * (log(0.1) - log(1e-3)));
        return step + log(-expm1(-step));
    }
    }
    return 0;
}

void dr_initial_draw(const dr_initial *initial, double range, uint64_t seed, uint64_t stream, int64_t count, double *values) {
    dr_random random = dr_random_start(seed, stream);
    for (int64_t i = 0; i < count; i++) values[i] = draw(initial, range, &random);
}
