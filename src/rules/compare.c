/* Comparing rules, field by field: structures have padding. */
#include "rules/compare.h"

static bool same_row(const dr_row *one, const dr_row *other) {
    return one->read == other->read && one->undecayed == other->undecayed && one->write == other->write &&
           one->gain == other->gain && one->value == other->value;
}

/* The query of an option and of its approximation. */
static dr_query converged(dr_query query) {
    return query == DR_QUERY_CONJUGATE_GRADIENT ? DR_QUERY_EXACT : query;
}

bool dr_rule_same_axes(const dr_rule *one, const dr_rule *other) {
    if (one->decay != other->decay || one->rows != other->rows || one->scan != other->scan ||
        converged(one->query) != converged(other->query) || (one->repeat > 1) != (other->repeat > 1))
        return false;
    for (int i = 0; i < one->rows; i++)
        if (!same_row(&one->row[i], &other->row[i])) return false;
    return true;
}

const dr_rule *dr_rule_with_axes(const dr_rule *rule) {
    for (int i = 0; i < dr_rule_count(); i++)
        if (dr_rule_same_axes(dr_rule_at(i), rule)) return dr_rule_at(i);
    return NULL;
}

dr_family dr_rule_family(const dr_rule *rule) {
    const dr_rule *named = rule->family == DR_FAMILY_AUTO ? dr_rule_with_axes(rule) : rule;
    return named && named->family != DR_FAMILY_AUTO ? named->family : DR_FAMILY_COMPOSITION;
}

static bool same_squash(const dr_squash *one, const dr_squash *other) {
    return one->x == other->x && one->eps == other->eps && one->interval == other->interval && one->function == other->function;
}

bool dr_rule_equal(const dr_rule *one, const dr_rule *other) {
    return dr_rule_same_axes(one, other) && one->repeat == other->repeat && one->query == other->query &&
           same_squash(&one->squash, &other->squash) && one->normalizer == other->normalizer &&
           one->gain_eps == other->gain_eps && one->cg_iters == other->cg_iters && one->cg_start == other->cg_start &&
           one->cg_eps == other->cg_eps && one->tied_scan == other->tied_scan;
}
