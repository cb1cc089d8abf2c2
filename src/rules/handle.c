/* Rules as handles: a rule in memory of its own, from a name or from JSON. */
#include "base/error.h"
#include "base/memory.h"
#include <deltarule/rule.h>
#include <string.h>

static dr_status fill(const char *text, dr_rule *rule) {
    if (text[strspn(text, " \t\r\n")] == '{') return dr_rule_read_text(text, rule, NULL);
    const dr_rule *named = dr_rule_find(text);
    if (!named) return DR_ERROR_ARGUMENT; /* which has said what names there are */
    *rule = *named;
    return DR_OK;
}

dr_status dr_rule_create(const char *text, dr_rule **rule) {
    void *memory;
    DR_NEED(text);
    DR_NEED(rule);
    DR_TRY(dr_allocate(sizeof(dr_rule), "a rule", &memory));
    const dr_status status = fill(text, memory);
    if (status != DR_OK) {
        dr_release(memory);
        return status;
    }
    *rule = memory;
    return DR_OK;
}

void dr_rule_destroy(dr_rule *rule) {
    dr_release(rule);
}

const char *dr_rule_get_name(const dr_rule *rule) {
    return rule ? rule->name : NULL;
}

const char *dr_rule_get_title(const dr_rule *rule) {
    return rule ? rule->title : NULL;
}

const char *dr_rule_get_source(const dr_rule *rule) {
    return rule ? rule->source : NULL;
}

int dr_rule_get_repeat(const dr_rule *rule) {
    return rule ? rule->repeat : 0;
}
