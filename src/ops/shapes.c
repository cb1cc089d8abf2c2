/* Shapes of the recurrence's inputs and states, and the check of its descriptor. One table row an input says which axes it has;
 * shapes, counts and offsets follow. */
#include "ops/shapes.h"
#include "base/error.h"
#include "base/memory.h"
#include <math.h>

typedef enum { ONE, KEY_SIZE, VALUE_SIZE } element;

typedef struct {
    bool per_row, per_step, per_value;
    element element;
} input_axes;

/* log_decay's form depends on the decay, see dr_recurrence_input_form */
static const input_axes axes_of[DR_INPUTS] = {
    [DR_INPUT_QUERY] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_KEY] = {.per_row = true, .per_step = true, .element = KEY_SIZE},
    [DR_INPUT_VALUE] = {.per_row = true, .per_step = true, .per_value = true, .element = VALUE_SIZE},
    [DR_INPUT_LOG_DECAY] = {.per_row = true, .per_value = true},
    [DR_INPUT_BETA] = {.per_row = true, .per_step = true, .per_value = true},
    [DR_INPUT_ERASE_KEY] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_ERASE_GAIN] = {.per_row = true, .per_value = true},
    [DR_INPUT_LAMBDA] = {.per_row = true, .per_value = true},
    [DR_INPUT_FEEDBACK_KEY] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_FREE_READ] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_FREE_WRITE] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_RATE] = {.per_row = true, .element = KEY_SIZE},
    [DR_INPUT_ERASE_GATE] = {.per_row = true, .per_value = true, .element = KEY_SIZE},
    [DR_INPUT_WRITE_GATE] = {.per_row = true, .per_value = true, .element = VALUE_SIZE},
    [DR_INPUT_CORRECTION] = {.element = ONE},
    [DR_INPUT_SCAN_LOG_DECAY] = {.per_row = true},
    [DR_INPUT_SCAN_GAIN] = {.per_row = true},
    [DR_INPUT_SCAN_CENTRE] = {.element = ONE},
    [DR_INPUT_RIDGE] = {.element = KEY_SIZE},
};

dr_input_form dr_recurrence_input_form(const dr_recurrence *recurrence, dr_input input) {
    input_axes axes = axes_of[input];
    if (input == DR_INPUT_LOG_DECAY) {
        axes.per_row = recurrence->rule->decay != DR_DECAY_CONSTANT;
        if (recurrence->rule->decay == DR_DECAY_CHANNEL) axes.element = KEY_SIZE;
    }
    return (dr_input_form){
        .per_row = axes.per_row,
        .steps = axes.per_step ? recurrence->rule->repeat : 1,
        .per_value = axes.per_value,
        .heads = axes.per_value ? recurrence->value_heads : recurrence->key_heads,
        .size = axes.element == KEY_SIZE     ? recurrence->key_size
                : axes.element == VALUE_SIZE ? recurrence->value_size
                                             : 1,
        .vector = axes.element != ONE,
    };
}

bool dr_input_is_vector(dr_input input) {
    return axes_of[input].per_row && axes_of[input].element != ONE;
}

int dr_recurrence_input_shape(const dr_recurrence *recurrence, dr_input input, int64_t shape[DR_MAX_RANK]) {
    if (!recurrence || !recurrence->rule || !shape) return 0;
    dr_input_form form = dr_recurrence_input_form(recurrence, input);
    int rank = 0;
    if (form.per_row) shape[rank++] = recurrence->layout.rows;
    if (form.steps > 1) shape[rank++] = form.steps;
    shape[rank++] = form.heads;
    if (form.vector) shape[rank++] = form.size;
    return rank;
}

int dr_recurrence_state_shape(const dr_recurrence *recurrence, dr_state_kind state, int64_t shape[DR_MAX_RANK]) {
    if (!recurrence || !shape) return 0;
    int rank = 0;
    shape[rank++] = recurrence->layout.sequences;
    shape[rank++] = state == DR_STATE_A ? recurrence->key_heads : recurrence->value_heads;
    shape[rank++] = recurrence->key_size;
    if (state != DR_STATE_A) shape[rank++] = state == DR_STATE_S ? recurrence->value_size : recurrence->key_size;
    return rank;
}

int64_t dr_recurrence_input_count(const dr_recurrence *recurrence, dr_input input) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_input_shape(recurrence, input, shape), &count);
    return count;
}

int64_t dr_recurrence_state_count(const dr_recurrence *recurrence, dr_state_kind state) {
    int64_t shape[DR_MAX_RANK], count = 0;
    dr_product(shape, dr_recurrence_state_shape(recurrence, state, shape), &count);
    return count;
}

int64_t dr_layout_longest(const dr_layout *layout) {
    int64_t longest = 0;
    for (int64_t i = 0; i < layout->sequences; i++) {
        int64_t length = dr_layout_begin(layout, i + 1) - dr_layout_begin(layout, i);
        if (length > longest) longest = length;
    }
    return longest;
}

dr_dtype dr_recurrence_state_dtype(const dr_recurrence *recurrence, dr_state_kind state, dr_dtype dtype) {
    return recurrence->bf16_state && state == DR_STATE_S ? DR_BF16 : dtype;
}

/* A tensor of that shape has fewer than 2^63 bytes, in any element type. */
static bool countable(int64_t *shape, int rank) {
    int64_t bytes;
    shape[rank] = sizeof(double);
    return dr_product(shape, rank + 1, &bytes);
}

static dr_status check_counts(const dr_recurrence *recurrence) {
    int64_t shape[DR_MAX_RANK];
    for (int i = 0; i < DR_INPUTS; i++)
        if (dr_rule_uses(recurrence->rule, (dr_input)i) &&
            !countable(shape, dr_recurrence_input_shape(recurrence, (dr_input)i, shape)))
            return dr_fail(DR_ERROR_ARGUMENT, "input %s has more elements than can be addressed", dr_input_name((dr_input)i));
    for (int i = 0; i < DR_STATES; i++)
        if (dr_rule_carries(recurrence->rule, (dr_state_kind)i) &&
            !countable(shape, dr_recurrence_state_shape(recurrence, (dr_state_kind)i, shape)))
            return dr_fail(DR_ERROR_ARGUMENT, "state %s has more elements than can be addressed",
                           dr_state_name((dr_state_kind)i));
    return DR_OK;
}

static dr_status check_rule(const dr_recurrence *recurrence) {
    if (!recurrence) return dr_fail(DR_ERROR_ARGUMENT, "the recurrence is missing");
    if (!recurrence->rule) return dr_fail(DR_ERROR_ARGUMENT, "the recurrence has no rule");
    return dr_rule_check(recurrence->rule);
}

static dr_status check_options(const dr_recurrence *r) {
    if (r->key_heads < 1 || r->value_heads < 1 || r->key_size < 1 || r->value_size < 1)
        return dr_fail(DR_ERROR_ARGUMENT,
                       "key heads %lld, value heads %lld, key size %lld, value size %lld: each must be at least 1",
                       (long long)r->key_heads, (long long)r->value_heads, (long long)r->key_size, (long long)r->value_size);
    if (r->value_heads % r->key_heads != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld value heads are not a multiple of %lld key heads", (long long)r->value_heads,
                       (long long)r->key_heads);
    if (r->rule->tied_scan && r->key_heads != r->value_heads)
        return dr_fail(DR_ERROR_ARGUMENT, "tied_scan needs as many value heads as key heads, not %lld and %lld",
                       (long long)r->value_heads, (long long)r->key_heads);
    if (!isfinite(r->scale)) return dr_fail(DR_ERROR_ARGUMENT, "scale %g is not finite; 0 stands for K^-1/2", r->scale);
    if ((int)r->path < 0 || (int)r->path > DR_PATH_CHUNKWISE)
        return dr_fail(DR_ERROR_ARGUMENT, "path %d is none of best, recurrent and chunkwise", (int)r->path);
    if (r->bf16_state && r->value_size % 2 != 0)
        return dr_fail(DR_ERROR_ARGUMENT, "value size %lld is odd; a state in bfloat16 needs an even one",
                       (long long)r->value_size);
    if (!(r->forget >= 0 && r->forget < 1))
        return dr_fail(DR_ERROR_ARGUMENT, "forget %g: it must be at least 0 and less than 1", r->forget);
    if (r->chunk < 0) return dr_fail(DR_ERROR_ARGUMENT, "chunk %lld is below 0; 0 plans it", (long long)r->chunk);
    return check_counts(r);
}

dr_status dr_recurrence_check(const dr_recurrence *recurrence) {
    DR_TRY(check_rule(recurrence));
    DR_TRY(dr_layout_check(&recurrence->layout));
    return check_options(recurrence);
}

/* That so many sequences of at most `longest` tokens can have so many rows. */
static dr_status check_longest(const dr_recurrence *r) {
    const dr_layout *layout = &r->layout;
    if (r->longest < 0)
        return dr_fail(DR_ERROR_ARGUMENT, "longest %lld is below 0; 0 bounds sequences by the rows", (long long)r->longest);
    int64_t most;
    if (r->longest > 0 && dr_product((int64_t[]){layout->sequences, r->longest}, 2, &most) && most < layout->rows)
        return dr_fail(DR_ERROR_ARGUMENT, "%lld sequences of at most %lld tokens cannot have %lld rows",
                       (long long)layout->sequences, (long long)r->longest, (long long)layout->rows);
    return DR_OK;
}

dr_status dr_recurrence_check_bounds(const dr_recurrence *recurrence) {
    DR_TRY(check_rule(recurrence));
    dr_layout whole = recurrence->layout; /* one sequence: lengths may be any */
    whole.cu_seqlens = NULL;
    if (whole.sequences >= 1) whole.sequences = 1;
    DR_TRY(dr_layout_check(&whole));
    DR_TRY(check_longest(recurrence));
    return check_options(recurrence);
}
