/* Whether two rules are the same. */
#ifndef DR_RULES_COMPARE_H
#define DR_RULES_COMPARE_H

#include <deltarule/rule.h>

/* Everything but name, title and source. */
bool dr_rule_equal(const dr_rule *one, const dr_rule *other);

/* Decay, rows, scan and query: what makes a rule the one that its name says. Settings of an option (the squash, how many
 * Householder steps if there are several, conjugate gradients in place of the exact solve) may differ. */
bool dr_rule_same_axes(const dr_rule *one, const dr_rule *other);

#endif
