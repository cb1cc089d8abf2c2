/* Making a failing trial small: steps that each halve or drop something, taken as long as the trial keeps failing. A step is
 * named, so that a list of names repeats what the search found. */
#include "trial.h"

#include <string.h>

static bool is_right(const trial *t) {
    return dr_rule_check(&t->rule) == DR_OK && t->key_size >= least_key_size(&t->rule);
}

typedef bool (*shrink_step)(trial *t); /* false if there is nothing to make smaller */

static bool lower(int64_t *size, int64_t to) {
    if (*size <= to) return false;
    *size = to;
    return true;
}

static int64_t at_least_one(int64_t size) {
    return size > 1 ? size : 1;
}

/* ---- shapes --------------------------------------------------------------------------------------------------------- */

static void keep_sequences(trial *t, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        t->length[i] = t->length[first + i];
        t->cut[i] = t->cut[first + i];
    }
    t->sequences = count;
}

static bool first_sequences(trial *t) {
    if (t->sequences < 2) return false;
    keep_sequences(t, 0, t->sequences - t->sequences / 2);
    return true;
}
static bool last_sequences(trial *t) {
    if (t->sequences < 2) return false;
    keep_sequences(t, t->sequences / 2, t->sequences - t->sequences / 2);
    return true;
}

static bool shorten(trial *t, int64_t (*shorter)(int64_t length)) {
    bool less = false;
    for (int64_t i = 0; i < t->sequences; i++) {
        less |= lower(&t->length[i], shorter(t->length[i]));
        if (t->cut[i] > t->length[i]) t->cut[i] = t->length[i];
    }
    return less;
}
static int64_t half_of(int64_t length) {
    return length > 1 ? length / 2 : length;
}
static int64_t one_less(int64_t length) {
    return length > 0 ? length - 1 : 0;
}
static bool half_tokens(trial *t) {
    return shorten(t, half_of);
}
static bool token(trial *t) {
    return shorten(t, one_less);
}

static bool key_size(trial *t) {
    return lower(&t->key_size, at_least_one(t->key_size / 2));
}
static bool value_size(trial *t) {
    return lower(&t->value_size, at_least_one(t->value_size / 2));
}
static bool key_heads(trial *t) {
    return lower(&t->key_heads, 1);
}
static bool group(trial *t) {
    return lower(&t->group, 1);
}
static bool chunk(trial *t) {
    return lower(&t->chunk, at_least_one(t->chunk / 2));
}
static bool cut(trial *t) {
    bool less = false;
    for (int64_t i = 0; i < t->sequences; i++) less |= lower(&t->cut[i], t->cut[i] / 2);
    return less;
}
static bool scale(trial *t) {
    bool less = t->scale != 0;
    t->scale = 0;
    return less;
}
/* One of two rows, with a value: a rule must store something. */
static bool only_row(trial *t, int row) {
    if (t->rule.rows < 2) return false;
    t->rule.row[0] = t->rule.row[row];
    t->rule.row[1] = (dr_row){0};
    t->rule.rows = 1;
    if (t->rule.row[0].value == DR_VALUE_NONE) t->rule.row[0].value = DR_VALUE_V;
    return true;
}
static bool first_row(trial *t) {
    return only_row(t, 0);
}
static bool second_row(trial *t) {
    return only_row(t, 1);
}

static const struct {
    const char *name;
    shrink_step step;
} steps_of_shapes[] = {
    {"first_sequences", first_sequences},
    {"last_sequences", last_sequences},
    {"half_tokens", half_tokens},
    {"token", token},
    {"key_size", key_size},
    {"value_size", value_size},
    {"key_heads", key_heads},
    {"group", group},
    {"chunk", chunk},
    {"cut", cut},
    {"scale", scale},
    {"first_row", first_row},
    {"second_row", second_row},
};
enum { SHAPE_STEPS = sizeof steps_of_shapes / sizeof steps_of_shapes[0] };

/* ---- options -------------------------------------------------------------------------------------------------------- */

/* Makes one axis plain. Where the rule is then no longer right, up to two others become plain with it: a scan goes with the
 * write key that needed it. */
static bool plain_option(trial *t, int axis) {
    const int axes = axis_count();
    trial less = *t;
    if (option_of(t, axis) == 0) return false;
    set_option(&less, axis, 0);
    for (int i = -1; i < axes && !is_right(&less); i++)
        for (int j = i; j < axes && !is_right(&less); j++) {
            less = *t;
            set_option(&less, axis, 0);
            if (i >= 0) set_option(&less, i, 0);
            if (j >= 0) set_option(&less, j, 0);
        }
    if (!is_right(&less)) return false;
    *t = less;
    return true;
}

/* The step that makes an axis plain has the axis's name, blanks as underscores. */
static void step_name(int step, char text[32]) {
    snprintf(text, 32, "%s", step < SHAPE_STEPS ? steps_of_shapes[step].name : axis_name(step - SHAPE_STEPS));
    for (char *c = text; *c; c++)
        if (*c == ' ') *c = '_';
}

static bool take_step(trial *t, int step) {
    trial less = *t;
    if (step < SHAPE_STEPS ? !steps_of_shapes[step].step(&less) : !plain_option(&less, step - SHAPE_STEPS)) return false;
    if (!is_right(&less)) return false;
    *t = less;
    return true;
}

bool trial_shrink_by(trial *t, const char *name) {
    char text[32];
    for (int step = 0; step < SHAPE_STEPS + axis_count(); step++) {
        step_name(step, text);
        if (strcmp(text, name) == 0) return take_step(t, step);
    }
    return false;
}

void trial_shrink(trial *t, bool (*holds)(const trial *t, void *context), void *context, char *steps, size_t size) {
    size_t used = 0;
    char text[32];
    steps[0] = '\0';
    for (int step = 0; step < SHAPE_STEPS + axis_count();) {
        trial less = *t;
        step_name(step, text);
        if (used + strlen(text) + 2 > size || !take_step(&less, step) || holds(&less, context)) {
            step++;
            continue;
        }
        *t = less;
        used += (size_t)snprintf(steps + used, size - used, "%s%s", used ? "," : "", text);
        step = 0; /* what could not be left out before perhaps can be now */
    }
}
