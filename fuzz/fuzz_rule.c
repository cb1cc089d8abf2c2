/* Reads a rule from JSON; what reads must have an equation and must come back the same when it is written. */
#include "fuzz.h"
#include "rules/compare.h"

#include <string.h>

enum { LONGEST = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[LONGEST], equation[1024];
    dr_rule rule, again;
    dr_gates gates;
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (dr_rule_read_text(text, &rule, &gates) != DR_OK) return 0;
    if (dr_rule_equation(&rule, equation, sizeof equation) <= 0) abort();
    if (dr_rule_write_text(&rule, &gates, text, sizeof text) >= LONGEST) abort();
    if (dr_rule_read_text(text, &again, NULL) != DR_OK || !dr_rule_equal(&rule, &again)) abort();
    return 0;
}
