/* Expressions. */
#include "tokenize/template_tree.h"

#include <string.h>

static const dr_object *name(dr_template *t, const dr_node *node) {
    for (const dr_scope *scope = t->scope; scope; scope = scope->outer) {
        const dr_object *value = dr_dict_get(t, &scope->names, node->value);
        if (value || t->status != DR_OK) return value;
    }
    int count = node->value->text.count > 80 ? 80 : (int)node->value->text.count;
    return dr_object_undefined(t, "'%.*s' is undefined", count, node->value->text.bytes);
}

static const dr_object *list(dr_template *t, const dr_node *node, dr_object_kind kind) {
    dr_values items = {0};
    for (size_t i = 0; i < node->items.count; i++)
        if (!dr_values_append(t, &items, dr_evaluate(t, node->items.at[i]))) return NULL;
    return dr_object_list(t, kind, items);
}

static const dr_object *dict(dr_template *t, const dr_node *node) {
    dr_dict pairs = {{0}, {0}};
    for (size_t i = 0; i < node->items.count; i++) {
        const dr_object *key = dr_evaluate(t, node->items.at[i]), *value = key ? dr_evaluate(t, node->others.at[i]) : NULL;
        if (!dr_dict_put(t, &pairs, key, value)) return NULL;
    }
    return dr_object_dict(t, pairs);
}

/* a < b < c: each is evaluated once, and no further than the first that does not hold. */
static const dr_object *comparison(dr_template *t, const dr_node *node) {
    const dr_object *left = dr_evaluate(t, node->first);
    bool holds = true;
    for (size_t i = 0; left && holds && i < node->items.count; i++) {
        const dr_object *right = dr_evaluate(t, node->items.at[i]->first);
        if (!right || !dr_compare(t, node->items.at[i]->operation, left, right, &holds)) return NULL;
        left = right;
    }
    return left ? dr_object_boolean(holds) : NULL;
}

static const dr_object *choice(dr_template *t, const dr_node *node) {
    const dr_object *condition = dr_evaluate(t, node->second);
    if (!condition) return NULL;
    if (dr_object_truth(condition)) return dr_evaluate(t, node->first);
    return node->third ? dr_evaluate(t, node->third) : dr_object_undefined(t, "an 'if' without 'else' does not hold");
}

static const dr_object *slice(dr_template *t, const dr_node *node) {
    const dr_object *all = dr_evaluate(t, node->first), *parts[3];
    for (int i = 0; all && i < 3; i++) {
        parts[i] = node->items.at[i] ? dr_evaluate(t, node->items.at[i]) : &dr_object_none;
        if (!parts[i]) return NULL;
    }
    return all ? dr_slice(t, all, parts[0], parts[1], parts[2]) : NULL;
}

static bool spread(dr_template *t, const dr_node *node, const dr_object *value, dr_call_arguments *call) {
    dr_values items;
    if (node->operation == 2) {
        if (value->kind != DR_OBJECT_DICT)
            return dr_template_fail(t, "behind ** stands a %s: it must be a dict", dr_object_type(value));
        for (size_t i = 0; i < value->dict.keys.count; i++)
            if (!dr_dict_put(t, &call->named, value->dict.keys.at[i], value->dict.values.at[i])) return false;
        return true;
    }
    if (!dr_object_walk(t, value, &items)) return false;
    for (size_t i = 0; i < items.count; i++)
        if (!dr_values_append(t, &call->arguments, items.at[i])) return false;
    return true;
}

bool dr_arguments(dr_template *t, const dr_nodes *nodes, dr_call_arguments *call) {
    for (size_t i = 0; i < nodes->count; i++) {
        const dr_node *node = nodes->at[i];
        const dr_object *value = dr_evaluate(t, node->first);
        if (!value) return false;
        if (node->operation ? !spread(t, node, value, call)
            : node->value   ? !dr_dict_put(t, &call->named, node->value, value)
                            : !dr_values_append(t, &call->arguments, value))
            return false;
    }
    return true;
}

static const dr_object *call(dr_template *t, const dr_node *node) {
    const dr_object *callee = dr_evaluate(t, node->first);
    dr_call_arguments made = {.name = "the call"};
    if (!callee || !dr_arguments(t, &node->items, &made)) return NULL;
    t->line = node->line;
    return dr_call_value(t, callee, &made);
}

static const dr_object *filter_or_test(dr_template *t, const dr_node *node, bool is_test) {
    const dr_object *first = dr_evaluate(t, node->first);
    dr_call_arguments made = {.name = is_test ? "the test" : "the filter"};
    if (!first) return NULL;
    t->line = node->line;
    dr_function *function = is_test ? dr_test_find(node->value) : dr_filter_find(node->value);
    int count = node->value->text.count > 80 ? 80 : (int)node->value->text.count;
    if (!function)
        return dr_template_fail(t, "there is no %s '%.*s'", is_test ? "test" : "filter", count, node->value->text.bytes);
    if (!dr_arguments(t, &node->items, &made)) return NULL;
    t->line = node->line;
    return function(t, first, &made);
}

static const dr_object *logical(dr_template *t, const dr_node *node) {
    const dr_object *first = dr_evaluate(t, node->first);
    if (!first || dr_object_truth(first) == (node->kind == DR_NODE_OR)) return first;
    return dr_evaluate(t, node->second);
}

/* What needs the values of its one or two operands, and no more. */
static const dr_object *of_operands(dr_template *t, const dr_node *node) {
    const dr_object *first = dr_evaluate(t, node->first), *second = first && node->second ? dr_evaluate(t, node->second) : NULL;
    if (!first || (node->second && !second)) return NULL;
    t->line = node->line;
    if (node->kind == DR_NODE_NOT) return dr_object_boolean(!dr_object_truth(first));
    if (node->kind == DR_NODE_ATTRIBUTE) return dr_attribute(t, first, node->value);
    if (node->kind == DR_NODE_NEGATION) return dr_negate(t, first, node->operation);
    return node->kind == DR_NODE_SUBSCRIPT ? dr_subscript(t, first, second) : dr_operate(t, node->operation, first, second);
}

static const dr_object *evaluate(dr_template *t, const dr_node *node) {
    switch (node->kind) {
    case DR_NODE_CONSTANT:
        return node->value;
    case DR_NODE_NAME:
        return name(t, node);
    case DR_NODE_LIST:
        return list(t, node, DR_OBJECT_LIST);
    case DR_NODE_TUPLE:
        return list(t, node, DR_OBJECT_TUPLE);
    case DR_NODE_DICT:
        return dict(t, node);
    case DR_NODE_AND:
    case DR_NODE_OR:
        return logical(t, node);
    case DR_NODE_COMPARISON:
        return comparison(t, node);
    case DR_NODE_CHOICE:
        return choice(t, node);
    case DR_NODE_SLICE:
        return slice(t, node);
    case DR_NODE_CALL:
        return call(t, node);
    case DR_NODE_FILTER:
        return filter_or_test(t, node, false);
    case DR_NODE_TEST:
        return filter_or_test(t, node, true);
    case DR_NODE_CAPTURED:
        return t->captured;
    case DR_NODE_OPERATION:
    case DR_NODE_SUBSCRIPT:
    case DR_NODE_NEGATION:
    case DR_NODE_NOT:
    case DR_NODE_ATTRIBUTE:
        return of_operands(t, node);
    case DR_NODE_COMPARED:
    case DR_NODE_ARGUMENT:
    case DR_NODE_DATA:
    case DR_NODE_OUTPUT:
    case DR_NODE_FOR:
    case DR_NODE_IF:
    case DR_NODE_BRANCH:
    case DR_NODE_SET:
    case DR_NODE_SET_BLOCK:
    case DR_NODE_MACRO:
    case DR_NODE_PARAMETER:
    case DR_NODE_CALL_BLOCK:
    case DR_NODE_FILTER_BLOCK:
    case DR_NODE_WITH:
    case DR_NODE_SCOPE:
    case DR_NODE_BREAK:
    case DR_NODE_CONTINUE:
        break;
    }
    return dr_template_fail(t, "a statement stands where an expression must stand");
}

const dr_object *dr_evaluate(dr_template *t, const dr_node *node) {
    if (!dr_template_enter(t)) return NULL;
    t->line = node->line;
    const dr_object *value = evaluate(t, node);
    t->depth--;
    return t->status == DR_OK ? value : NULL;
}
