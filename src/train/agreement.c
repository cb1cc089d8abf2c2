/* Whether the settings of a run and the configuration of its model say the same: a resumed run takes its model from
 * config.json, so a setting that was edited would be believed to have been used. */
#include "base/error.h"
#include "base/memory.h"
#include "nn/config.h"
#include "nn/layer_list.h"
#include "rules/compare.h"
#include "train/settings.h"

#include <stdio.h>
#include <string.h>

static dr_status refuse(const char *folder, const char *name, double says, double is) {
    return dr_fail(DR_ERROR_ARGUMENT,
                   "%s: settings.json makes %s %.10g, but the model in config.json has %.10g: put back the value that the run "
                   "began with",
                   folder, name, says, is);
}

/* What of gates and biases the model computes with. */
static dr_status check_gates(const dr_model_config *says, const dr_model_config *is, const char *folder) {
    static const char *const forms[] = {[DR_GATE_AUTO] = "auto",
                                        [DR_GATE_FORM_LOG] = "log",
                                        [DR_GATE_FORM_KDA_BOUNDED] = "kda_bounded",
                                        [DR_GATE_FORM_EDA_BOUNDED] = "eda_bounded"};
    if (says->gates.gate != is->gates.gate)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%s: settings.json makes gate %s, but the model in config.json has %s: put back the value that the run "
                       "began with",
                       folder, forms[says->gates.gate], forms[is->gates.gate]);
    if (says->gates.negative_eigenvalues != is->gates.negative_eigenvalues)
        return refuse(folder, "negative_eigenvalues", says->gates.negative_eigenvalues, is->gates.negative_eigenvalues);
    bool bounded = is->gates.gate != DR_GATE_FORM_LOG;
    if (bounded && says->gates.lower_bound != is->gates.lower_bound)
        return refuse(folder, "lower_bound", says->gates.lower_bound, is->gates.lower_bound);
    if (dr_rule_uses(&is->rule, DR_INPUT_LAMBDA) && says->lambda_bias != is->lambda_bias)
        return refuse(folder, "lambda_bias", says->lambda_bias, is->lambda_bias);
    return DR_OK;
}

/* In the one form that texts of the same list have. */
static dr_status check_list(const dr_model_config *says, const dr_model_config *is, const char *folder) {
    json_t *list = NULL;
    if (!says->layer_list && !is->layer_list) return DR_OK;
    if (says->layer_list) DR_TRY(dr_layer_list_parse(says->layer_list, &list));
    char *text = NULL;
    const dr_status status = list ? dr_layer_list_text(list, &text) : DR_OK;
    const bool same = text && is->layer_list && strcmp(text, is->layer_list) == 0;
    dr_release(text);
    json_decref(list);
    if (status != DR_OK || same) return status;
    return dr_fail(DR_ERROR_ARGUMENT,
                   "%s: layer_list in settings.json is not the list of layers in config.json: put back the value that the run "
                   "began with",
                   folder);
}

dr_status dr_train_check_model(const dr_train_options *options, const dr_model_config *is, const char *folder) {
    dr_model_config own, says;
    /* a rule without a base had the layers of compositions once, and has those of the named rule with its axes today */
    DR_TRY(dr_train_model_config_of(options, is->rule.family, is->vocabulary, &own));
    dr_status status = dr_config_resolve(&own, &says);
    if (status != DR_OK) return dr_fail_in(status, "%s: settings.json", folder);
    const struct {
        const char *name;
        int64_t says, is;
    } sizes[] = {{"hidden", says.hidden, is->hidden},
                 {"layers", says.layers, is->layers},
                 {"heads", says.heads, is->heads},
                 {"value_heads", says.value_heads, is->value_heads},
                 {"key_size", says.key_size, is->key_size},
                 {"value_size", says.value_size, is->value_size},
                 {"intermediate", says.intermediate, is->intermediate},
                 {"conv_size", says.conv_size, is->conv_size},
                 {"output_gate", says.output_gate, is->output_gate},
                 {"tied", says.tied, is->tied}};
    if (!dr_rule_equal(&says.rule, &is->rule))
        return dr_fail(DR_ERROR_ARGUMENT,
                       "%s: the rule in settings.json is not that of the model in config.json: put back the rule that the run "
                       "began with",
                       folder);
    if (says.rule.family != is->rule.family)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "%s: the rule in settings.json has the layers of family %s, but the model in config.json those of %s: put "
            "back the rule that the run began with",
            folder, dr_family_name(says.rule.family), dr_family_name(is->rule.family));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].says != sizes[i].is) return refuse(folder, sizes[i].name, (double)sizes[i].says, (double)sizes[i].is);
    DR_TRY(check_list(&says, is, folder));
    return check_gates(&says, is, folder);
}
