/* The tree of a template: its statements, by recursive descent. */
#include "tokenize/template_parse.h"

static bool body_until(parser *p, dr_nodes *body, const char *const *ends);

static bool need_end_of_tag(parser *p) {
    if (now(p)->kind != DR_TOKEN_BLOCK_END) return unexpected(p, "the end of the tag, %}");
    step(p);
    return true;
}

static dr_node *target_item(parser *p) {
    dr_node *node = dr_parse_primary(p);
    if (!node) return NULL;
    if (node->kind == DR_NODE_NAME && skip_operator(p, ".")) return dr_parse_attribute(p, node);
    if (node->kind != DR_NODE_NAME && node->kind != DR_NODE_TUPLE) {
        p->t->line = node->line;
        return dr_template_fail(p->t, "something other than a name cannot be set");
    }
    return node;
}

static dr_node *target(parser *p, const char *end_word) {
    return dr_parse_tuple(p, false, end_word, false, target_item);
}

/* The end of a block, its tag read whole. */
static bool block_body(parser *p, dr_nodes *body, const char *end) {
    const char *ends[] = {end, NULL};
    if (!need_end_of_tag(p) || !body_until(p, body, ends)) return false;
    step(p);
    return need_end_of_tag(p);
}

static dr_node *for_block(parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    dr_node *node = make(p, DR_NODE_FOR);
    if (!node || !(node->first = target(p, "in"))) return NULL;
    if (!skip_word(p, "in")) return unexpected(p, "'in'");
    if (!(node->second = dr_parse_tuple(p, false, "recursive", false, NULL))) return NULL;
    if (skip_word(p, "if") && !(node->third = dr_parse_expression(p, true))) return NULL;
    node->flag = skip_word(p, "recursive");
    p->loops++;
    if (!need_end_of_tag(p) || !body_until(p, &node->items, ends)) return NULL;
    p->loops--;
    if (skip_word(p, "else")) {
        if (!need_end_of_tag(p) || !body_until(p, &node->others, last)) return NULL;
    }
    step(p);
    return need_end_of_tag(p) ? node : NULL;
}

static dr_node *if_block(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    dr_node *node = make(p, DR_NODE_IF);
    if (!node) return NULL;
    for (;;) {
        dr_node *branch = make(p, DR_NODE_BRANCH);
        if (!branch || !(branch->first = dr_parse_tuple(p, false, NULL, false, NULL))) return NULL;
        if (!need_end_of_tag(p) || !body_until(p, &branch->items, ends) || !add(p, &node->items, branch)) return NULL;
        if (!skip_word(p, "elif")) break;
    }
    if (skip_word(p, "else")) {
        dr_node *branch = make(p, DR_NODE_BRANCH);
        if (!branch || !need_end_of_tag(p) || !body_until(p, &branch->items, last) || !add(p, &node->items, branch))
            return NULL;
    }
    step(p);
    return need_end_of_tag(p) ? node : NULL;
}

/* A chain of filters over the text of a block: | a | b(1). */
static dr_node *block_filters(parser *p) {
    return dr_parse_filters(p, make(p, DR_NODE_CAPTURED));
}

static dr_node *set_block(parser *p) {
    dr_node *node = make(p, DR_NODE_SET);
    if (!node || !(node->first = target(p, NULL))) return NULL;
    if (skip_operator(p, "=")) {
        if (!(node->second = dr_parse_tuple(p, true, NULL, false, NULL))) return NULL;
        return need_end_of_tag(p) ? node : NULL;
    }
    node->kind = DR_NODE_SET_BLOCK;
    return (node->second = block_filters(p)) && block_body(p, &node->items, "endset") ? node : NULL;
}

static bool parameters(parser *p, dr_nodes *list) {
    if (!need_operator(p, "(")) return false;
    while (!is_operator(p, ")")) {
        if (list->count && !need_operator(p, ",")) return false;
        dr_node *node = make(p, DR_NODE_PARAMETER);
        if (!node || !(node->value = name_value(p))) return false;
        if (skip_operator(p, "=")) {
            if (!(node->first = dr_parse_expression(p, true))) return false;
        } else if (list->count && list->at[list->count - 1]->first) {
            return dr_template_fail(p->t, "a parameter without a default stands behind one with a default");
        }
        if (!add(p, list, node)) return false;
    }
    step(p);
    return true;
}

static bool macro_body(parser *p, dr_node *macro, const char *end) {
    dr_node *around = p->macro;
    int loops = p->loops;
    p->macro = macro, p->loops = 0;
    if (!block_body(p, &macro->others, end)) return false;
    p->macro = around, p->loops = loops;
    return true;
}

static dr_node *macro_block(parser *p) {
    dr_node *node = make(p, DR_NODE_MACRO);
    if (!node || !(node->value = name_value(p)) || !parameters(p, &node->items)) return NULL;
    return macro_body(p, node, "endmacro") ? node : NULL;
}

static dr_node *call_block(parser *p) {
    dr_node *node = make(p, DR_NODE_CALL_BLOCK), *caller = make(p, DR_NODE_MACRO);
    if (!node || !caller || !(caller->value = dr_object_string(p->t, "caller"))) return NULL;
    if (is_operator(p, "(") && !parameters(p, &caller->items)) return NULL;
    if (!(node->first = dr_parse_unary(p, true))) return NULL;
    if (node->first->kind != DR_NODE_CALL) return dr_template_fail(p->t, "a call block needs a call: {%% call NAME(...) %%}");
    node->second = caller;
    return macro_body(p, caller, "endcall") ? node : NULL;
}

static dr_node *filter_block(parser *p) {
    dr_node *node = make(p, DR_NODE_FILTER_BLOCK), *captured = make(p, DR_NODE_CAPTURED);
    if (!node || !captured || !(node->first = dr_parse_filters(p, dr_parse_filter(p, captured)))) return NULL;
    return block_body(p, &node->items, "endfilter") ? node : NULL;
}

static dr_node *with_block(parser *p) {
    dr_node *node = make(p, DR_NODE_WITH);
    if (!node) return NULL;
    while (now(p)->kind != DR_TOKEN_BLOCK_END) {
        dr_node *set = make(p, DR_NODE_SET);
        if (node->items.count && !need_operator(p, ",")) return NULL;
        if (!set || !(set->first = target_item(p)) || !need_operator(p, "=") || !(set->second = dr_parse_expression(p, true)))
            return NULL;
        if (!add(p, &node->items, set)) return NULL;
    }
    return block_body(p, &node->others, "endwith") ? node : NULL;
}

static dr_node *generation_block(parser *p) {
    dr_node *node = make(p, DR_NODE_SCOPE);
    int loops = p->loops;
    p->loops = 0;
    if (!node || !block_body(p, &node->items, "endgeneration")) return NULL;
    p->loops = loops;
    return node;
}

static dr_node *leave_loop(parser *p, dr_node_kind kind) {
    if (p->loops == 0) return dr_template_fail(p->t, "break or continue stands outside of a loop");
    dr_node *node = make(p, kind);
    return node && need_end_of_tag(p) ? node : NULL;
}

static dr_node *break_statement(parser *p) {
    return leave_loop(p, DR_NODE_BREAK);
}

static dr_node *continue_statement(parser *p) {
    return leave_loop(p, DR_NODE_CONTINUE);
}

/* {% print a, b %}: one output after the other. */
static dr_node *print_statement(parser *p) {
    dr_node *node = make(p, DR_NODE_OUTPUT);
    if (!node) return NULL;
    do
        if (!add(p, &node->items, dr_parse_expression(p, true))) return NULL;
    while (skip_operator(p, ","));
    return need_end_of_tag(p) ? node : NULL;
}

static const struct {
    const char *word;
    dr_node *(*parse)(parser *p);
} statements[] = {{"for", for_block},         {"if", if_block},
                  {"set", set_block},         {"macro", macro_block},
                  {"call", call_block},       {"filter", filter_block},
                  {"with", with_block},       {"generation", generation_block},
                  {"break", break_statement}, {"continue", continue_statement},
                  {"print", print_statement}};

static dr_node *statement(parser *p) {
    static const char *const refused[] = {"include", "import", "from", "extends", "block", "autoescape", "trans", "do"};
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (skip_word(p, statements[i].word)) return statements[i].parse(p);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_word(p, refused[i])) return dr_template_fail(p->t, "a chat template cannot have the tag '%s'", refused[i]);
    return unexpected(p, "a tag such as for, if, set or macro");
}

static dr_node *output(parser *p) {
    dr_node *node = make(p, DR_NODE_OUTPUT);
    step(p);
    if (!node || !add(p, &node->items, dr_parse_tuple(p, true, NULL, false, NULL))) return NULL;
    if (now(p)->kind != DR_TOKEN_OUTPUT_END) return unexpected(p, "the end of the tag, }}");
    step(p);
    return node;
}

/* Statements until a tag begins with one of these words (NULL: until the end of the template), which is then the token at hand.
 */
static bool body_until(parser *p, dr_nodes *body, const char *const *ends) {
    if (!dr_template_enter(p->t)) return false;
    while (now(p)->kind != DR_TOKEN_END) {
        dr_node *node;
        if (now(p)->kind == DR_TOKEN_DATA) {
            if (!(node = make(p, DR_NODE_DATA))) return false;
            if (!(node->value = dr_object_text(p->t, now(p)->text.bytes, now(p)->text.count))) return false;
            step(p);
        } else if (now(p)->kind == DR_TOKEN_OUTPUT_BEGIN) {
            node = output(p);
        } else {
            step(p);
            for (int i = 0; ends && ends[i]; i++)
                if (is_word(p, ends[i])) return p->t->depth--, true;
            node = statement(p);
        }
        if (!add(p, body, node)) return false;
    }
    p->t->depth--;
    if (!ends) return true;
    while (ends[1]) ends++;
    return dr_template_fail(p->t, "the template ends before {%% %s %%}", ends[0]);
}

bool dr_template_parse(dr_template *t, const dr_tokens *tokens, dr_nodes *body) {
    parser p = {.t = t, .tokens = tokens};
    t->line = 1;
    return body_until(&p, body, NULL);
}
