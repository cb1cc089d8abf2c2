/* Forms of a plan's tensors: the default ones, and whether others can be. */
#include "ops/forms.h"
#include "base/error.h"
#include "ops/kind.h"
#include "ops/operations.h"
#include "ops/shapes.h"
#include <math.h>
#include <string.h>

dr_forms dr_forms_default(const dr_backend *backend) {
    dr_forms forms = {.size = sizeof forms, .normalize_eps = 1e-6};
    for (int i = 0; i < DR_INPUTS; i++) forms.dtype[i] = dr_recurrence_input_dtype(backend, (dr_input)i);
    forms.output = dr_recurrence_output_dtype(backend);
    return forms;
}

bool dr_forms_make(const dr_forms *forms, dr_input input) {
    switch (input) {
    case DR_INPUT_QUERY:
    case DR_INPUT_KEY:
        return forms->normalize;
    case DR_INPUT_BETA:
        return forms->beta_factor != 0;
    case DR_INPUT_LOG_DECAY:
        return forms->decay != DR_DECAY_FORM_LOG;
    default:
        return false;
    }
}

bool dr_forms_are_plain(const dr_backend *backend, const dr_forms *forms) {
    const dr_forms plain = dr_forms_default(backend);
    for (int i = 0; i < DR_INPUTS; i++)
        if (forms->dtype[i] != plain.dtype[i] || forms->pitch[i] != 0 || forms->gradient_pitch[i] != 0 ||
            dr_forms_make(forms, (dr_input)i))
            return false;
    return forms->output == plain.output && !forms->value_first;
}

int64_t dr_forms_token(const dr_recurrence *recurrence, dr_input input, int64_t pitch) {
    const dr_input_form form = dr_recurrence_input_form(recurrence, input);
    if (!form.per_row) return 0;
    return pitch != 0 ? pitch : form.steps * form.heads * form.size;
}

int64_t dr_forms_bias_size(const dr_recurrence *recurrence) {
    return dr_recurrence_input_form(recurrence, DR_INPUT_LOG_DECAY).size;
}

static bool is_floating(const dr_backend *backend, dr_dtype dtype) {
    return dtype == DR_F32 || dtype == DR_BF16 || dtype == DR_F16 || (dtype == DR_F64 && backend->ops->dtype == DR_F64);
}

static dr_status check_dtype(const dr_backend *backend, dr_dtype dtype, const char *what) {
    if (is_floating(backend, dtype)) return DR_OK;
    return dr_fail(DR_ERROR_ARGUMENT, "%s of type %s: backend %s takes F32, BF16 and F16%s", what, dr_dtype_name(dtype),
                   backend->ops->name, backend->ops->dtype == DR_F64 ? ", and F64" : "");
}

static dr_status check_pitch(const dr_recurrence *recurrence, dr_input input, int64_t pitch, const char *of) {
    const dr_input_form form = dr_recurrence_input_form(recurrence, input);
    const int64_t least = form.steps * form.heads * form.size, rows = recurrence->layout.rows;
    if (pitch == 0) return DR_OK;
    if (!form.per_row)
        return dr_fail(DR_ERROR_ARGUMENT, "%s%s has no tokens, and a pitch of %lld from token to token", of,
                       dr_input_name(input), (long long)pitch);
    if (pitch < least)
        return dr_fail(DR_ERROR_ARGUMENT, "the pitch %lld of %s%s is less than the %lld elements of a token", (long long)pitch,
                       of, dr_input_name(input), (long long)least);
    if (rows > 0 && pitch > INT64_MAX / (int64_t)sizeof(double) / rows)
        return dr_fail(DR_ERROR_ARGUMENT, "%s%s has a pitch of %lld, with which %lld tokens cannot be addressed", of,
                       dr_input_name(input), (long long)pitch, (long long)rows);
    return DR_OK;
}

static dr_status check_input(const dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms,
                             dr_input input) {
    if (!dr_rule_uses(recurrence->rule, input)) return DR_OK;
    const dr_dtype dtype = forms->dtype[input], own = backend->ops->dtype;
    if (!dr_recurrence_input_form(recurrence, input).per_row && dtype != own)
        return dr_fail(DR_ERROR_ARGUMENT, "%s, which all tokens share, is %s: it must be %s, the backend's own type",
                       dr_input_name(input), dr_dtype_name(dtype), dr_dtype_name(own));
    DR_TRY(check_dtype(backend, dtype, dr_input_name(input)));
    DR_TRY(check_pitch(recurrence, input, forms->pitch[input], ""));
    return check_pitch(recurrence, input, forms->gradient_pitch[input], "the gradient of ");
}

static dr_status check_decay(const dr_recurrence *recurrence, const dr_forms *forms) {
    const dr_rule *rule = recurrence->rule;
    switch (forms->decay) {
    case DR_DECAY_FORM_LOG:
        return DR_OK;
    case DR_DECAY_FORM_SOFTPLUS:
        break;
    case DR_DECAY_FORM_BOUNDED:
        if (!(forms->lower_bound < 0 && forms->lower_bound > -HUGE_VAL))
            return dr_fail(DR_ERROR_ARGUMENT, "lower_bound %g of a bounded log decay must be below 0, and finite",
                           forms->lower_bound);
        break;
    default:
        return dr_fail(DR_ERROR_ARGUMENT, "there is no form %d of a log decay", (int)forms->decay);
    }
    if (rule->decay != DR_DECAY_SCALAR && rule->decay != DR_DECAY_CHANNEL)
        return dr_fail(
            DR_ERROR_ARGUMENT,
            "a raw decay is asked for, and the rule's decay is %s: only scalar and channel ones come with each token",
            dr_decay_name(rule->decay));
    return DR_OK;
}

dr_status dr_forms_check(const dr_backend *backend, const dr_recurrence *recurrence, const dr_forms *forms) {
    if (forms->size != sizeof *forms)
        return dr_fail(DR_ERROR_ARGUMENT, "the forms say that they have %zu bytes: a dr_forms of this library has %zu",
                       forms->size, sizeof *forms);
    for (int i = 0; i < DR_INPUTS; i++) DR_TRY(check_input(backend, recurrence, forms, (dr_input)i));
    DR_TRY(check_dtype(backend, forms->output, "the output"));
    if (forms->normalize && !(forms->normalize_eps >= 0 && forms->normalize_eps < HUGE_VAL))
        return dr_fail(DR_ERROR_ARGUMENT, "normalize_eps %g must be at least 0, and finite", forms->normalize_eps);
    if (!(forms->beta_factor >= 0 && forms->beta_factor < HUGE_VAL))
        return dr_fail(DR_ERROR_ARGUMENT, "beta_factor %g must be positive, or 0 for beta itself", forms->beta_factor);
    if (forms->beta_factor != 0 && !dr_rule_uses(recurrence->rule, DR_INPUT_BETA))
        return dr_fail(DR_ERROR_ARGUMENT, "beta_factor is %g, but the rule does not use beta", forms->beta_factor);
    return check_decay(recurrence, forms);
}
