/* Rules as JSON values; deltarule/rule.h has the same for texts and files. */
#ifndef DR_RULES_JSON_H
#define DR_RULES_JSON_H

#include "base/for_check.h"

#include <deltarule/rule.h>
#include <jansson.h>

/* The name of a rule as a string, or an object of its axes; checked (dr_rule_check). What the object does not say is as its
 * base has it, or as in the blank rule. gates: likewise from the defaults, or NULL. A rule that has the axes of its base keeps
 * the base's name. DR_ERROR_FORMAT, DR_ERROR_ARGUMENT: see dr_rule_read_text. */
DR_FOR_CHECK dr_status dr_rule_from_json(const json_t *value, dr_rule *rule, dr_gates *gates);

/* An object that reads back the same. gates: those that are not the defaults are written too; or NULL. NULL without memory. */
json_t *dr_rule_to_json(const dr_rule *rule, const dr_gates *gates);

/* The keys of gates, in an object that may have others. */
dr_status dr_gates_from_json(const json_t *object, dr_gates *gates);
int dr_gates_to_json(const dr_gates *gates, json_t *object); /* those that are not the defaults; not 0: no memory */

#endif
