/* Whether two rules are the same, and what follows for layers. */
#ifndef DR_RULES_COMPARE_H
#define DR_RULES_COMPARE_H

#include <deltarule/rule.h>

/* All that the recurrence is: everything but name, title, source and family. */
bool dr_rule_equal(const dr_rule *one, const dr_rule *other);

/* Decay, rows, scan and query: what makes a rule the one that its name says. Settings of an option (the squash, how many
 * Householder steps if there are several, conjugate gradients in place of the exact solve) may differ. */
bool dr_rule_same_axes(const dr_rule *one, const dr_rule *other);

/* The named rule with the same axes, or NULL. */
const dr_rule *dr_rule_with_axes(const dr_rule *rule);

/* The family of its layers; never DR_FAMILY_AUTO. */
dr_family dr_rule_family(const dr_rule *rule);

#endif
