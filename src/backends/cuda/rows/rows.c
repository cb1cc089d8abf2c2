/* What the load stage is told: from the recurrence what all calls have in common, then the pointers of a call. */
#include "backends/cuda/cuda.h"
#include "backends/cuda/rows/rows_make.h"

static bool begins_at_16(const void *pointer) {
    return (uintptr_t)pointer % 16 == 0;
}

void dr_cuda_rows_plan(const dr_recurrence *recurrence, dr_dtype storage, dr_cuda_rows *rows) {
    const dr_rule *rule = recurrence->rule;
    *rows = (dr_cuda_rows){
        .aligned = true,
        .squash = dr_map_squash_make(&rule->squash),
        .gain_eps = (float)rule->gain_eps,
        .scale = (float)(recurrence->scale != 0 ? recurrence->scale : 1 / sqrt((double)recurrence->key_size)),
        .key_heads = (int32_t)recurrence->key_heads,
        .value_heads = (int32_t)recurrence->value_heads,
        .group = (int32_t)(recurrence->value_heads / recurrence->key_heads),
        .key_size = (int32_t)recurrence->key_size,
        .value_size = (int32_t)recurrence->value_size,
    };
    dr_cuda_rows_traits(rule, rows);
    for (int i = DR_INPUTS; i < DR_SOURCE_GAIN; i++)
        rows->input[i] = (dr_cuda_input){.token = recurrence->key_heads * recurrence->key_size, .head = recurrence->key_size};
    for (int i = 0; i < DR_INPUTS; i++) {
        if (!dr_rule_uses(rule, (dr_input)i)) continue;
        const dr_input_form form = dr_recurrence_input_form(recurrence, (dr_input)i);
        const size_t element = dr_dtype_size(dr_input_is_vector((dr_input)i) ? storage : DR_F32);
        rows->input[i] = (dr_cuda_input){
            .token = form.per_row ? form.steps * form.heads * form.size : 0,
            .step = form.steps > 1 ? form.heads * form.size : 0,
            .head = form.size,
            .bytes = (int32_t)((size_t)form.size * element),
            .element = (int32_t)element,
            .per_value = form.per_value,
            .vector = form.vector,
        };
        if (form.vector && (size_t)form.size * element % 16 != 0) rows->aligned = false;
    }
}

void dr_cuda_rows_point(const dr_inputs *inputs, const dr_input_gradients *gradients, dr_cuda_rows *rows) {
    for (int i = 0; i < DR_INPUTS; i++) {
        dr_cuda_input *input = &rows->input[i];
        if (!input->bytes) continue;
        input->at = inputs->at[i];
        input->gradient = gradients ? gradients->at[i] : NULL;
        if (input->vector && !(begins_at_16(input->at) && begins_at_16(input->gradient))) rows->aligned = false;
    }
}
