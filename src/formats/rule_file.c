/* Rules in JSON files; what may stand in them is the business of rules/json.c. */
#include "base/error.h"
#include "formats/json.h"
#include "rules/json.h"

dr_status dr_rule_read_file(const char *file, dr_rule *rule, dr_gates *gates) {
    DR_NEED(file);
    DR_NEED(rule);
    json_t *object = NULL;
    DR_TRY(dr_json_read(file, &object));
    dr_status status = dr_rule_from_json(object, rule, gates);
    json_decref(object);
    return status == DR_OK ? DR_OK : dr_fail_in(status, "%s", file);
}
