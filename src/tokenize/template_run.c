/* Statements, calls, and a rendering as a whole. */
#include "tokenize/template_tree.h"

#include "base/error.h"
#include "base/memory.h"

#include <string.h>

dr_scope *dr_scope_open(dr_template *t, dr_scope *outer) {
    dr_scope *scope = dr_template_take(t, sizeof *scope);
    if (!scope) return NULL;
    *scope = (dr_scope){.outer = outer};
    return t->scope = scope;
}

static bool set_name(dr_template *t, const char *name, const dr_object *value) {
    return value && dr_dict_put(t, &t->scope->names, dr_object_string(t, name), value);
}

bool dr_assign(dr_template *t, const dr_node *target, const dr_object *value) {
    dr_values items;
    const dr_object *space;
    t->line = target->line;
    switch (target->kind) {
    case DR_NODE_NAME:
        return dr_dict_put(t, &t->scope->names, target->value, value);
    case DR_NODE_ATTRIBUTE:
        if (!(space = dr_evaluate(t, target->first))) return false;
        if (space->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", space->text.bytes);
        if (space->kind != DR_OBJECT_NAMESPACE)
            return dr_template_fail(t, "an attribute of a %s cannot be set, only those of namespace()", dr_object_type(space));
        return dr_dict_put(t, space->space, target->value, value);
    default:
        break;
    }
    if (!dr_object_walk(t, value, &items)) return false;
    if (items.count != target->items.count)
        return dr_template_fail(t, "%zu values stand for %zu names", items.count, target->items.count);
    for (size_t i = 0; i < items.count; i++)
        if (!dr_assign(t, target->items.at[i], items.at[i])) return false;
    return true;
}

/* Runs a body with names of its own and gathers what it prints. */
static const dr_object *captured(dr_template *t, const dr_nodes *body, dr_scope *outer) {
    dr_scope *scope = t->scope;
    dr_builder *out = t->out, text = {0};
    if (!dr_scope_open(t, outer)) return NULL;
    t->out = &text;
    dr_flow flow = dr_run(t, body);
    t->out = out, t->scope = scope;
    if (flow == DR_FLOW_BREAK || flow == DR_FLOW_CONTINUE)
        return dr_template_fail(t, "break and continue cannot leave a block whose text is gathered");
    return flow == DR_FLOW_FAILED ? NULL : dr_builder_value(t, &text);
}

/* ---- loops ------------------------------------------------------------------------------------------------------------- */

/* The items that the loop's condition lets through. */
static bool chosen(dr_template *t, const dr_node *node, dr_values *items) {
    dr_values kept = {0};
    dr_scope *scope = t->scope;
    for (size_t i = 0; i < items->count; i++) {
        if (!dr_scope_open(t, scope) || !dr_assign(t, node->first, items->at[i])) return false;
        const dr_object *holds = dr_evaluate(t, node->third);
        if (!holds || (dr_object_truth(holds) && !dr_values_append(t, &kept, items->at[i]))) return false;
    }
    t->scope = scope;
    *items = kept;
    return true;
}

static dr_flow loop(dr_template *t, const dr_node *node, const dr_object *over, dr_scope *scope, int depth) {
    dr_loop *state = dr_template_take(t, sizeof *state);
    dr_object *value = dr_template_take(t, sizeof *value);
    dr_flow flow = DR_FLOW_ON;
    bool ended = false; /* one went to its end, without break and continue: what else is for, as Jinja has it */
    if (!state || !value) return DR_FLOW_FAILED;
    *state = (dr_loop){.depth = depth, .node = node->flag ? node : NULL, .scope = scope};
    *value = (dr_object){.kind = DR_OBJECT_LOOP};
    value->loop = state;
    if (!dr_object_walk(t, over, &state->items)) return DR_FLOW_FAILED;
    t->scope = scope;
    if (node->third && !chosen(t, node, &state->items)) return DR_FLOW_FAILED;
    for (; state->index < state->items.count && flow != DR_FLOW_BREAK; state->index++) {
        if (!dr_scope_open(t, scope) || !set_name(t, "loop", value)) return DR_FLOW_FAILED;
        if (!dr_assign(t, node->first, state->items.at[state->index])) return DR_FLOW_FAILED;
        flow = dr_run(t, &node->items);
        if (flow == DR_FLOW_FAILED) return flow;
        ended |= flow == DR_FLOW_ON;
    }
    if (!ended) {
        if (!dr_scope_open(t, scope) || dr_run(t, &node->others) == DR_FLOW_FAILED) return DR_FLOW_FAILED;
    }
    t->scope = scope;
    return DR_FLOW_ON;
}

/* loop(items) within a recursive loop. */
static const dr_object *call_loop(dr_template *t, const dr_loop *outer, const dr_call_arguments *call) {
    const dr_object *over = NULL;
    dr_scope *scope = t->scope;
    dr_builder *out = t->out, text = {0};
    if (!outer->node) return dr_template_fail(t, "'loop' can be called in a loop that is marked as recursive only");
    if (!dr_call_take(t, call, "iterable", &over)) return NULL;
    if (!over) return dr_template_fail(t, "loop() needs something to go through");
    t->out = &text;
    dr_flow flow = loop(t, outer->node, over, outer->scope, outer->depth + 1);
    t->out = out, t->scope = scope;
    return flow == DR_FLOW_FAILED ? NULL : dr_builder_value(t, &text);
}

/* ---- macros ------------------------------------------------------------------------------------------------------------ */

/* Whether a named argument is one of the macro's parameters. */
static bool is_parameter(dr_template *t, const dr_node *macro, const dr_object *name) {
    for (size_t i = 0; i < macro->items.count; i++)
        if (dr_object_equal(t, macro->items.at[i]->value, name)) return true;
    return macro->uses_caller && dr_object_is(name, "caller");
}

/* Arguments that no parameter takes: varargs and kwargs, or a failure. */
static bool bind_others(dr_template *t, const dr_node *macro, const dr_call_arguments *call) {
    dr_values rest = {0};
    dr_dict named = {{0}, {0}};
    const dr_object *caller = macro->uses_caller ? dr_dict_find(t, &call->named, "caller") : NULL;
    for (size_t i = macro->items.count; i < call->arguments.count; i++)
        if (!dr_values_append(t, &rest, call->arguments.at[i])) return false;
    for (size_t i = 0; i < call->named.keys.count; i++)
        if (!is_parameter(t, macro, call->named.keys.at[i]) &&
            !dr_dict_put(t, &named, call->named.keys.at[i], call->named.values.at[i]))
            return false;
    if (rest.count > 0 && !macro->uses_varargs)
        return dr_template_fail(t, "the macro takes %zu arguments, not %zu", macro->items.count, call->arguments.count);
    if (named.keys.count > 0 && !macro->uses_kwargs) {
        const dr_object *name = dr_object_as_text(t, named.keys.at[0]);
        return name && dr_template_fail(t, "the macro has no parameter '%.*s'", (int)name->text.count, name->text.bytes);
    }
    if (macro->uses_varargs && !set_name(t, "varargs", dr_object_list(t, DR_OBJECT_TUPLE, rest))) return false;
    if (macro->uses_kwargs && !set_name(t, "kwargs", dr_object_dict(t, named))) return false;
    if (!macro->uses_caller) return true;
    return set_name(t, "caller", caller ? caller : dr_object_undefined(t, "no caller is defined"));
}

static bool bind(dr_template *t, const dr_node *macro, const dr_call_arguments *call) {
    for (size_t i = 0; i < macro->items.count; i++) {
        const dr_node *parameter = macro->items.at[i];
        const dr_object *value = dr_dict_get(t, &call->named, parameter->value);
        if (value && i < call->arguments.count)
            return dr_template_fail(t, "the macro gets its parameter %zu twice, by its place and by its name", i + 1);
        if (i < call->arguments.count) value = call->arguments.at[i];
        if (!value && t->status == DR_OK)
            value = parameter->first
                        ? dr_evaluate(t, parameter->first)
                        : dr_object_undefined(t, "parameter '%.*s' was not given",
                                              parameter->value->text.count > 80 ? 80 : (int)parameter->value->text.count,
                                              parameter->value->text.bytes);
        if (!dr_dict_put(t, &t->scope->names, parameter->value, value)) return false;
    }
    return bind_others(t, macro, call);
}

static const dr_object *call_macro(dr_template *t, const dr_macro *macro, const dr_call_arguments *call) {
    dr_scope *scope = t->scope;
    dr_builder *out = t->out, text = {0};
    if (!dr_template_enter(t) || !dr_scope_open(t, macro->scope)) return NULL;
    t->out = &text;
    bool done = bind(t, macro->node, call) && dr_run(t, &macro->node->others) != DR_FLOW_FAILED;
    t->out = out, t->scope = scope;
    t->depth--;
    return done ? dr_builder_value(t, &text) : NULL;
}

static const dr_object *macro_value(dr_template *t, const dr_node *node) {
    dr_object *value = dr_template_take(t, sizeof *value);
    if (!value) return NULL;
    *value = (dr_object){.kind = DR_OBJECT_MACRO};
    value->macro = (dr_macro){node, t->scope};
    return value;
}

const dr_object *dr_call_value(dr_template *t, const dr_object *callee, const dr_call_arguments *call) {
    dr_call_arguments named = *call;
    if (callee->kind == DR_OBJECT_MACRO) return call_macro(t, &callee->macro, call);
    if (callee->kind == DR_OBJECT_LOOP) return call_loop(t, callee->loop, call);
    if (callee->kind == DR_OBJECT_UNDEFINED) return dr_template_fail(t, "%s", callee->text.bytes);
    if (callee->kind != DR_OBJECT_METHOD && callee->kind != DR_OBJECT_FUNCTION)
        return dr_template_fail(t, "a %s cannot be called", dr_object_type(callee));
    named.name = callee->method.name;
    return callee->method.function(t, callee->method.self, &named);
}

static bool call_block(dr_template *t, const dr_node *node) {
    dr_call_arguments call = {.name = "the call"};
    const dr_object *callee = dr_evaluate(t, node->first->first), *caller = macro_value(t, node->second);
    if (!callee || !caller || !dr_arguments(t, &node->first->items, &call)) return false;
    if (!dr_dict_put(t, &call.named, dr_object_string(t, "caller"), caller)) return false;
    t->line = node->line;
    const dr_object *text = dr_call_value(t, callee, &call);
    return text && dr_object_print(t, text, t->out);
}

/* ---- statements -------------------------------------------------------------------------------------------------------- */

static dr_flow run_if(dr_template *t, const dr_node *node) {
    for (size_t i = 0; i < node->items.count; i++) {
        const dr_node *branch = node->items.at[i];
        const dr_object *holds = branch->first ? dr_evaluate(t, branch->first) : &dr_object_true;
        if (!holds) return DR_FLOW_FAILED;
        if (dr_object_truth(holds)) return dr_run(t, &branch->items);
    }
    return DR_FLOW_ON;
}

/* The text of a block, through the block's filters. */
static const dr_object *filtered(dr_template *t, const dr_nodes *body, const dr_node *filters) {
    const dr_object *text = captured(t, body, t->scope), *before = t->captured;
    if (!text) return NULL;
    t->captured = text;
    text = dr_evaluate(t, filters);
    t->captured = before;
    return text;
}

static bool run_with(dr_template *t, const dr_node *node, dr_flow *flow) {
    dr_scope *scope = t->scope;
    dr_values values = {0};
    for (size_t i = 0; i < node->items.count; i++)
        if (!dr_values_append(t, &values, dr_evaluate(t, node->items.at[i]->second))) return false;
    if (!dr_scope_open(t, scope)) return false;
    for (size_t i = 0; i < node->items.count; i++)
        if (!dr_assign(t, node->items.at[i]->first, values.at[i])) return false;
    *flow = dr_run(t, &node->others);
    t->scope = scope;
    return *flow != DR_FLOW_FAILED;
}

static dr_flow run_for(dr_template *t, const dr_node *node) {
    const dr_object *over = dr_evaluate(t, node->second);
    return over ? loop(t, node, over, t->scope, 0) : DR_FLOW_FAILED;
}

static bool output(dr_template *t, const dr_node *node) {
    for (size_t i = 0; i < node->items.count; i++) {
        const dr_object *value = dr_evaluate(t, node->items.at[i]);
        if (!value || !dr_object_print(t, value, t->out)) return false;
    }
    return true;
}

static dr_flow run_node(dr_template *t, const dr_node *node) {
    const dr_object *value = NULL;
    dr_flow flow = DR_FLOW_ON;
    bool done = false;
    switch (node->kind) {
    case DR_NODE_DATA:
        done = dr_builder_append(t, t->out, node->value->text.bytes, node->value->text.count);
        break;
    case DR_NODE_OUTPUT:
        done = output(t, node);
        break;
    case DR_NODE_FOR:
        return run_for(t, node);
    case DR_NODE_IF:
        return run_if(t, node);
    case DR_NODE_SET:
        done = (value = dr_evaluate(t, node->second)) && dr_assign(t, node->first, value);
        break;
    case DR_NODE_SET_BLOCK:
        done = (value = filtered(t, &node->items, node->second)) && dr_assign(t, node->first, value);
        break;
    case DR_NODE_FILTER_BLOCK:
        done = (value = filtered(t, &node->items, node->first)) && dr_object_print(t, value, t->out);
        break;
    case DR_NODE_MACRO:
        done = dr_dict_put(t, &t->scope->names, node->value, macro_value(t, node));
        break;
    case DR_NODE_CALL_BLOCK:
        done = call_block(t, node);
        break;
    case DR_NODE_WITH:
        done = run_with(t, node, &flow);
        break;
    case DR_NODE_SCOPE:
        done = (value = captured(t, &node->items, t->scope)) && dr_object_print(t, value, t->out);
        break;
    case DR_NODE_BREAK:
        return DR_FLOW_BREAK;
    case DR_NODE_CONTINUE:
        return DR_FLOW_CONTINUE;
    default:
        dr_template_fail(t, "an expression stands where a statement must stand"); /* the parser makes none */
    }
    return done ? flow : DR_FLOW_FAILED;
}

dr_flow dr_run(dr_template *t, const dr_nodes *body) {
    dr_flow flow = DR_FLOW_ON;
    if (!dr_template_enter(t)) return DR_FLOW_FAILED;
    for (size_t i = 0; i < body->count && flow == DR_FLOW_ON; i++) {
        t->line = body->at[i]->line;
        flow = run_node(t, body->at[i]);
    }
    t->depth--;
    return t->status == DR_OK ? flow : DR_FLOW_FAILED;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

static dr_status render(dr_template *t, dr_span source, const json_t *variables, dr_builder *out) {
    dr_tokens tokens = {0};
    dr_nodes body = {0};
    const dr_object *given = NULL;
    t->line = 1;
    if (!dr_text_valid(t, source) || !dr_scope_open(t, NULL) || !dr_globals_put(t, &t->scope->names)) return t->status;
    if (!(given = dr_object_from_json(t, variables)) || !dr_scope_open(t, t->scope)) return t->status;
    t->scope->names = given->dict;
    if (!dr_template_lex(t, source, &tokens) || !dr_template_parse(t, &tokens, &body)) return t->status;
    t->out = out;
    if (dr_scope_open(t, t->scope)) dr_run(t, &body);
    return t->status;
}

dr_status dr_template_render(const char *source, size_t length, const json_t *variables, int64_t now, char **text,
                             size_t *bytes) {
    dr_template t = {.now = now};
    dr_builder out = {0};
    void *copy = NULL;
    dr_status status = render(&t, (dr_span){source, length}, variables, &out);
    if (status == DR_OK) status = dr_allocate(out.count + 1, "the text of a chat", &copy);
    if (status == DR_OK) {
        if (out.count) memcpy(copy, out.bytes, out.count);
        ((char *)copy)[out.count] = '\0';
        *text = copy, *bytes = out.count;
    }
    dr_template_release(&t);
    return status;
}
