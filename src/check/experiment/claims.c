/* Claims: an order of the values of one axis, or a bound that they keep, at every point of the other axes.
 *
 * An order compares neighbours seed by seed: runs of one seed draw the same data, so that their difference has less noise than
 * either. Axes in best_of are not compared over: of their values the one with the best median stands for each side, as tuned
 * baselines do. A comparison holds if the whole interval of the differences lies on the right side of 0, and holds in the
 * median if only the median does. Where runs end as soon as a task is solved, figures beyond that ("solved") count as it: how
 * far the last evaluation happened to be above says nothing, and two that solve the task are even.
 *
 * A bound is for the measure of each value named, for its excess over another measure of the same runs ("than"), or for the
 * quotient of the measure at two values, seed by seed ("ratio").
 *
 * A comparison needs every seed of every run that it looks at. Of a partial experiment it takes the seeds that all of them
 * have, and a comparison that has none of them leaves the verdict to the others. */
#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "check/experiment/experiment.h"

#include <math.h>
#include <string.h>

static const char *const keys[] = {"text",   "measure",  "than",    "axis",   "order", "of", "ratio",
                                   "better", "at_least", "at_most", "solved", "where", NULL};
static const char *const needed[] = {"text", "measure", "axis", NULL};

/* ---- reading -------------------------------------------------------------------------------------------------------- */

static dr_status read_values(const dr_experiment *experiment, const json_t *list, const char *key, dr_claim *claim) {
    const dr_axis *axis = &experiment->axis[claim->axis];
    const size_t least = claim->bounded && !claim->ratio ? 1 : 2;
    if (claim->ratio && json_array_size(list) != 2)
        return dr_fail(DR_ERROR_FORMAT, "ratio must be a list of two names of values of axis %s", axis->name);
    if (json_array_size(list) < least || json_array_size(list) > DR_MOST_VALUES)
        return dr_fail(DR_ERROR_FORMAT, "%s must be a list of %zu or more names of values of axis %s", key, least, axis->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *label = json_string_value(json_array_get(list, i));
        if (!label)
            return dr_fail(DR_ERROR_FORMAT, "%s: each must be a string, the name of a value of axis %s", key, axis->name);
        /* a value that the small grid leaves out */
        int value = dr_label_find(axis, label);
        if (value >= 0) claim->value[claim->count++] = value;
    }
    return DR_OK;
}

static dr_status read_bound(const json_t *object, dr_claim *claim) {
    const json_t *least = json_object_get(object, "at_least"), *most = json_object_get(object, "at_most");
    const json_t *bound = least ? least : most;
    claim->ratio = json_object_get(object, "ratio") != NULL;
    claim->bounded = bound || claim->ratio || claim->than;
    claim->at_least = least || !bound; /* of an excess at least 0 */
    if (claim->ratio && !bound) return dr_fail(DR_ERROR_FORMAT, "ratio needs at_least or at_most");
    if (claim->ratio && claim->than) return dr_fail(DR_ERROR_FORMAT, "ratio and than: one of them");
    if (least && most) return dr_fail(DR_ERROR_FORMAT, "at_least and at_most: one of them");
    if (bound && !json_is_number(bound)) return dr_fail(DR_ERROR_FORMAT, "at_least and at_most are numbers");
    if (bound) claim->bound = json_number_value(bound);
    return DR_OK;
}

static dr_status read_solved(const json_t *object, dr_claim *claim) {
    const json_t *solved = json_object_get(object, "solved");
    if (!solved) return DR_OK;
    if (!json_is_number(solved)) return dr_fail(DR_ERROR_FORMAT, "solved is a number, with which a run has solved its task");
    if (claim->bounded) return dr_fail(DR_ERROR_FORMAT, "solved is for an order, which this claim does not have");
    claim->capped = true;
    claim->solved = json_number_value(solved);
    return DR_OK;
}

dr_status dr_claim_read(const dr_experiment *experiment, const json_t *object, dr_claim *claim) {
    const char *axis = NULL, *better = "higher";
    *claim = (dr_claim){0};
    if (!json_is_object(object)) return dr_fail(DR_ERROR_FORMAT, "it must be an object");
    DR_TRY(dr_json_known(object, keys));
    DR_TRY(dr_json_required(object, needed));
    DR_TRY(dr_json_text(object, "text", &claim->text));
    DR_TRY(dr_json_text(object, "measure", &claim->measure));
    DR_TRY(dr_json_text(object, "axis", &axis));
    DR_TRY(dr_json_text(object, "than", &claim->than));
    DR_TRY(dr_json_text(object, "better", &better));
    claim->lower = strcmp(better, "lower") == 0;
    if (!claim->lower && strcmp(better, "higher") != 0)
        return dr_fail(DR_ERROR_FORMAT, "better is \"%s\": it must be higher or lower", better);
    claim->axis = dr_axis_find(experiment, axis);
    if (claim->axis < 0) return dr_fail(DR_ERROR_FORMAT, "\"%s\" is no axis of the grid", axis);
    DR_TRY(read_bound(object, claim));
    DR_TRY(read_solved(object, claim));
    claim->where = json_object_get(object, "where");
    if (claim->where && !json_is_object(claim->where)) return dr_fail(DR_ERROR_FORMAT, "where must be an object of axes");
    const char *name;
    json_t *label;
    json_object_foreach((json_t *)claim->where, name, label) {
        if (dr_axis_find(experiment, name) < 0 || !json_is_string(label))
            return dr_fail(DR_ERROR_FORMAT, "where: \"%s\" must be an axis of the grid, with the name of a value", name);
    }
    const char *key = claim->ratio ? "ratio" : claim->bounded ? "of" : "order";
    return read_values(experiment, json_object_get(object, key), key, claim);
}

const char *dr_verdict_name(dr_verdict verdict) {
    static const char *const names[] = {[DR_CLAIM_NOT_RUN] = "not run",
                                        [DR_CLAIM_HOLDS] = "holds",
                                        [DR_CLAIM_EVEN] = "no difference",
                                        [DR_CLAIM_IN_MEDIAN] = "holds in the median only",
                                        [DR_CLAIM_FAILS] = "DOES NOT HOLD"};
    return names[verdict];
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const dr_experiment *experiment;
    const dr_claim *claim;
    void (*line)(void *context, const char *text);
    void *context;
} judge;

/* Whether two rows are alike on all axes that are not compared or chosen over. */
static bool same_group(const judge *self, int one, int other) {
    for (int a = 0; a < self->experiment->axes; a++) {
        if (a == self->claim->axis || self->experiment->axis[a].best) continue;
        if (dr_row_value(self->experiment, one, a) != dr_row_value(self->experiment, other, a)) return false;
    }
    return true;
}

/* A row stands for its group where it is the first of it. */
static bool leads_group(const judge *self, int row) {
    for (int a = 0; a < self->experiment->axes; a++) {
        const bool chosen = a == self->claim->axis || self->experiment->axis[a].best;
        const int value = dr_row_value(self->experiment, row, a);
        if (chosen && value != 0) return false;
        const json_t *label = json_object_get(self->claim->where, self->experiment->axis[a].name);
        if (!chosen && label && strcmp(json_string_value(label), self->experiment->axis[a].value[value].label) != 0)
            return false;
    }
    return true;
}

static bool row_is_of(const judge *self, int row, int group, int value) {
    return same_group(self, row, group) && dr_row_value(self->experiment, row, self->claim->axis) == value;
}

/* kept [seeds]: false for each seed for which the row has no value of the measure; the other seeds are left as they were. */
static void keep_measured(const dr_experiment *experiment, int row, const char *measure, bool *kept) {
    double values[DR_MOST_SEEDS];
    int seed[DR_MOST_SEEDS];
    const int count = dr_row_values(experiment, row, measure, values, seed);
    for (int s = 0, found = 0; s < experiment->seeds; s++) {
        const bool has = found < count && seed[found] == s;
        found += has;
        kept[s] = kept[s] && has;
    }
}

/* The seeds by which a group's runs at these values of the claim's axis are compared; returns how many, 0: it is not judged. */
static int seeds_of(const judge *self, int group, const int *value, int values, bool kept[DR_MOST_SEEDS]) {
    const dr_experiment *experiment = self->experiment;
    int count = 0;
    for (int s = 0; s < DR_MOST_SEEDS; s++) kept[s] = true;
    for (int row = 0; row < experiment->rows; row++)
        for (int v = 0; v < values; v++) {
            if (!row_is_of(self, row, group, value[v])) continue;
            keep_measured(experiment, row, self->claim->measure, kept);
            if (self->claim->than) keep_measured(experiment, row, self->claim->than, kept);
        }
    for (int s = 0; s < experiment->seeds; s++) count += kept[s];
    return count == experiment->seeds || experiment->partial ? count : 0;
}

/* A row's values of a measure at the seeds that are kept, in their order. */
static void figures_of(const dr_experiment *experiment, int row, const char *measure, const bool *kept, double *figures) {
    double values[DR_MOST_SEEDS];
    int seed[DR_MOST_SEEDS], used = 0;
    const int count = dr_row_values(experiment, row, measure, values, seed);
    for (int i = 0; i < count; i++)
        if (kept[seed[i]]) figures[used++] = values[i];
}

/* The row of a group with this value on the claim's axis whose median over the seeds that are kept is best. */
static int best_row(const judge *self, int group, int value, const bool *kept, int count) {
    int best = -1;
    double best_median = 0, values[DR_MOST_SEEDS];
    for (int row = 0; row < self->experiment->rows; row++) {
        if (!row_is_of(self, row, group, value)) continue;
        figures_of(self->experiment, row, self->claim->measure, kept, values);
        const double median = dr_spread_of(values, count).median;
        if (best < 0 || (self->claim->lower ? median < best_median : median > best_median)) best = row, best_median = median;
    }
    return best;
}

static int describe_group(const judge *self, int group, char *text, size_t size) {
    int used = snprintf(text, size, "    ");
    for (int a = 0; a < self->experiment->axes; a++) {
        if (a == self->claim->axis || self->experiment->axis[a].best) continue;
        used += snprintf(text + used, size - (size_t)used, "%s %s, ", self->experiment->axis[a].name,
                         self->experiment->axis[a].value[dr_row_value(self->experiment, group, a)].label);
    }
    return used;
}

static dr_verdict verdict_of(const dr_spread *spread) {
    if (spread->low > 0) return DR_CLAIM_HOLDS;
    if (spread->median > 0) return DR_CLAIM_IN_MEDIAN;
    return spread->median == 0 ? DR_CLAIM_EVEN : DR_CLAIM_FAILS;
}

/* A figure of an order: no better than what solves the task. */
static double capped(const dr_claim *claim, double figure) {
    if (!claim->capped) return figure;
    return claim->lower ? fmax(figure, claim->solved) : fmin(figure, claim->solved);
}

/* Tells one comparison: the figures, their interval, and of how many seeds where some are missing. */
static void tell(const judge *self, int group, const char *what, const dr_spread *shown, dr_verdict verdict) {
    enum { LINE = 2048 };
    char text[LINE], seeds[64] = "";
    int used = describe_group(self, group, text, sizeof text);
    if (shown->count < self->experiment->seeds)
        snprintf(seeds, sizeof seeds, ", by %d of %d seeds", shown->count, self->experiment->seeds);
    dr_format(text + used, sizeof text - (size_t)used, "%s: %.4g [%.4g, %.4g], %s%s", what, shown->median, shown->low,
              shown->high, dr_verdict_name(verdict), seeds);
    self->line(self->context, text);
}

/* What a comparison came to. */
typedef struct {
    dr_verdict verdict;
    int seeds; /* it was judged by */
} comparison;

/* Differences of two values of the axis in one group, the better one's figure first. */
static comparison compare(const judge *self, int group, int better, int worse) {
    const dr_experiment *experiment = self->experiment;
    const dr_axis *axis = &experiment->axis[self->claim->axis];
    bool kept[DR_MOST_SEEDS];
    double of_one[DR_MOST_SEEDS] = {0}, of_other[DR_MOST_SEEDS] = {0};
    const int count = seeds_of(self, group, (int[]){better, worse}, 2, kept);
    if (count == 0) return (comparison){DR_CLAIM_NOT_RUN, 0};
    figures_of(experiment, best_row(self, group, better, kept, count), self->claim->measure, kept, of_one);
    figures_of(experiment, best_row(self, group, worse, kept, count), self->claim->measure, kept, of_other);
    for (int s = 0; s < count; s++) {
        const double one = capped(self->claim, of_one[s]), other = capped(self->claim, of_other[s]);
        of_one[s] = self->claim->lower ? other - one : one - other;
    }
    dr_spread spread = dr_spread_of(of_one, count);
    char what[4 * DR_LABEL_SIZE];
    snprintf(what, sizeof what, "%s better than %s by", axis->value[better].label, axis->value[worse].label);
    const dr_verdict verdict = verdict_of(&spread);
    tell(self, group, what, &spread, verdict);
    return (comparison){verdict, count};
}

/* Holds figures of the seeds, which are reordered, to the claim's bound. */
static comparison hold(const judge *self, int group, const char *what, double *figures, int count) {
    double margins[DR_MOST_SEEDS];
    char text[4 * DR_LABEL_SIZE];
    const double sign = self->claim->at_least ? 1 : -1, bound = self->claim->bound;
    for (int s = 0; s < count; s++) margins[s] = sign * (figures[s] - bound);
    const dr_spread margin = dr_spread_of(margins, count), shown = dr_spread_of(figures, count);
    /* what keeps a bound may be equal to it */
    dr_verdict verdict = margin.low >= 0 ? DR_CLAIM_HOLDS : margin.median >= 0 ? DR_CLAIM_IN_MEDIAN : DR_CLAIM_FAILS;
    dr_format(text, sizeof text, "%s, %s %.4g", what, self->claim->at_least ? "at least" : "at most", bound);
    tell(self, group, text, &shown, verdict);
    return (comparison){verdict, count};
}

/* The measure of one value, or its excess over another measure of the same runs. */
static comparison hold_to_bound(const judge *self, int group, int value) {
    bool kept[DR_MOST_SEEDS];
    double figures[DR_MOST_SEEDS] = {0}, others[DR_MOST_SEEDS] = {0};
    const int count = seeds_of(self, group, &value, 1, kept);
    if (count == 0) return (comparison){DR_CLAIM_NOT_RUN, 0};
    const int row = best_row(self, group, value, kept, count);
    figures_of(self->experiment, row, self->claim->measure, kept, figures);
    if (self->claim->than) {
        figures_of(self->experiment, row, self->claim->than, kept, others);
        for (int s = 0; s < count; s++) figures[s] -= others[s];
    }
    return hold(self, group, self->experiment->axis[self->claim->axis].value[value].label, figures, count);
}

/* The measure of one value over that of another, seed by seed. */
static comparison hold_ratio(const judge *self, int group, int over, int under) {
    const dr_axis *axis = &self->experiment->axis[self->claim->axis];
    bool kept[DR_MOST_SEEDS];
    double figures[DR_MOST_SEEDS] = {0}, others[DR_MOST_SEEDS] = {0};
    char what[3 * DR_LABEL_SIZE];
    const int count = seeds_of(self, group, (int[]){over, under}, 2, kept);
    if (count == 0) return (comparison){DR_CLAIM_NOT_RUN, 0};
    figures_of(self->experiment, best_row(self, group, over, kept, count), self->claim->measure, kept, figures);
    figures_of(self->experiment, best_row(self, group, under, kept, count), self->claim->measure, kept, others);
    for (int s = 0; s < count; s++) figures[s] /= others[s];
    snprintf(what, sizeof what, "%s over %s", axis->value[over].label, axis->value[under].label);
    return hold(self, group, what, figures, count);
}

/* The worst of two; one that was not run leaves the whole not run unless another fails. */
static dr_verdict worse_of(dr_verdict one, dr_verdict other) {
    static const int badness[] = {
        [DR_CLAIM_HOLDS] = 0, [DR_CLAIM_EVEN] = 1, [DR_CLAIM_IN_MEDIAN] = 2, [DR_CLAIM_NOT_RUN] = 3, [DR_CLAIM_FAILS] = 4};
    return badness[one] > badness[other] ? one : other;
}

static void add(dr_judgement *judgement, comparison found, bool partial) {
    judgement->comparisons++;
    if (found.seeds == 0 && partial) return; /* it leaves the verdict to the others */
    judgement->verdict = worse_of(judgement->verdict, found.verdict);
    if (found.seeds == 0) return;
    if (judgement->judged++ == 0 || found.seeds < judgement->least_seeds) judgement->least_seeds = found.seeds;
}

dr_judgement dr_claim_judge(const dr_experiment *experiment, const dr_claim *claim,
                            void (*line)(void *context, const char *text), void *context) {
    const judge self = {experiment, claim, line, context};
    dr_judgement judgement = {.verdict = DR_CLAIM_HOLDS};
    for (int row = 0; row < experiment->rows; row++) {
        if (!leads_group(&self, row)) continue;
        for (int i = claim->bounded && !claim->ratio ? 0 : 1; i < claim->count; i++) {
            const int value = claim->value[i], before = i > 0 ? claim->value[i - 1] : value;
            add(&judgement,
                claim->ratio     ? hold_ratio(&self, row, before, value)
                : claim->bounded ? hold_to_bound(&self, row, value)
                                 : compare(&self, row, before, value),
                experiment->partial);
        }
    }
    if (judgement.comparisons == 0 || (experiment->partial && judgement.judged == 0)) judgement.verdict = DR_CLAIM_NOT_RUN;
    return judgement;
}
