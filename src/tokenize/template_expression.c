/* The tree of an expression, by recursive descent; precedence and oddities are Jinja's: a filter binds closer than any operator
 * before it, ~ closer than + and -, powers group from the left, and the condition of a loop is no choice. */
#include "tokenize/template_parse.h"

static dr_node *postfix(parser *p, dr_node *node);

static dr_node *binary(parser *p, dr_node_kind kind, int operation, dr_node *first, dr_node *second) {
    dr_node *node = first && second ? make(p, kind) : NULL;
    if (!node) return NULL;
    node->line = first->line, node->operation = operation, node->first = first, node->second = second;
    return node;
}

/* What may end a tuple: the end of a tag, a bracket, or the word that follows a loop's target. */
static bool tuple_ends(const parser *p, const char *word) {
    dr_token_kind kind = now(p)->kind;
    return kind == DR_TOKEN_OUTPUT_END || kind == DR_TOKEN_BLOCK_END || kind == DR_TOKEN_END || is_operator(p, ")") ||
           is_operator(p, "=") || (word && is_word(p, word));
}

/* One expression, or several with commas between. brackets: empty is a tuple too. */
dr_node *dr_parse_tuple(parser *p, bool with_choice, const char *end_word, bool brackets, dr_node *(*item)(parser *p)) {
    dr_nodes items = {0};
    bool comma = false;
    int line = now(p)->line;
    while (!tuple_ends(p, end_word)) {
        if (!add(p, &items, item ? item(p) : dr_parse_expression(p, with_choice))) return NULL;
        if (!is_operator(p, ",")) break;
        comma = true;
        step(p);
    }
    if (!comma && items.count == 1) return items.at[0];
    if (!comma && !brackets) return unexpected(p, "an expression");
    dr_node *node = make(p, DR_NODE_TUPLE);
    if (node) node->items = items, node->line = line;
    return node;
}

static dr_node *list_or_dict(parser *p, bool is_dict) {
    dr_node *node = make(p, is_dict ? DR_NODE_DICT : DR_NODE_LIST);
    const char *close = is_dict ? "}" : "]";
    if (!node) return NULL;
    step(p);
    while (!is_operator(p, close)) {
        if (node->items.count && !need_operator(p, ",")) return NULL;
        if (is_operator(p, close)) break;
        if (!add(p, &node->items, dr_parse_expression(p, true))) return NULL;
        if (is_dict && (!need_operator(p, ":") || !add(p, &node->others, dr_parse_expression(p, true)))) return NULL;
    }
    step(p);
    return node;
}

static dr_node *name_or_constant(parser *p) {
    static const struct {
        const char *word;
        const dr_object *value;
    } constants[] = {{"true", &dr_object_true},   {"True", &dr_object_true}, {"false", &dr_object_false},
                     {"False", &dr_object_false}, {"none", &dr_object_none}, {"None", &dr_object_none}};
    dr_node *node = make(p, DR_NODE_NAME);
    if (!node) return NULL;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (is_word(p, constants[i].word)) node->kind = DR_NODE_CONSTANT, node->value = constants[i].value;
    if (node->kind == DR_NODE_CONSTANT) return step(p), node;
    if (p->macro) {
        p->macro->uses_varargs |= is_word(p, "varargs");
        p->macro->uses_kwargs |= is_word(p, "kwargs");
        p->macro->uses_caller |= is_word(p, "caller");
    }
    node->value = name_value(p);
    return node->value ? node : NULL;
}

static dr_node *constant(parser *p) {
    dr_node *node = make(p, DR_NODE_CONSTANT);
    if (!node) return NULL;
    node->value = now(p)->value;
    step(p);
    if (node->value->kind != DR_OBJECT_TEXT) return node;
    dr_builder joined = {0};
    while (now(p)->kind == DR_TOKEN_CONSTANT && now(p)->value->kind == DR_OBJECT_TEXT) { /* strings side by side are one */
        dr_span more = now(p)->value->text;
        if (joined.count == 0 && !dr_builder_append(p->t, &joined, node->value->text.bytes, node->value->text.count))
            return NULL;
        if (!dr_builder_append(p->t, &joined, more.bytes, more.count)) return NULL;
        step(p);
    }
    if (joined.count && !(node->value = dr_builder_value(p->t, &joined))) return NULL;
    return node;
}

dr_node *dr_parse_primary(parser *p) {
    if (now(p)->kind == DR_TOKEN_NAME) return name_or_constant(p);
    if (now(p)->kind == DR_TOKEN_CONSTANT) return constant(p);
    if (is_operator(p, "[")) return list_or_dict(p, false);
    if (is_operator(p, "{")) return list_or_dict(p, true);
    if (!skip_operator(p, "(")) return unexpected(p, "an expression");
    dr_node *node = dr_parse_tuple(p, true, NULL, true, NULL);
    return node && need_operator(p, ")") ? node : NULL;
}

static bool arguments(parser *p, dr_nodes *list) {
    if (!need_operator(p, "(")) return false;
    while (!is_operator(p, ")")) {
        if (list->count && !need_operator(p, ",")) return false;
        if (is_operator(p, ")")) break;
        dr_node *node = make(p, DR_NODE_ARGUMENT);
        if (!node) return false;
        if (skip_operator(p, "**")) {
            node->operation = 2;
        } else if (skip_operator(p, "*")) {
            node->operation = 1;
        } else if (now(p)->kind == DR_TOKEN_NAME && token_is(later(p), DR_TOKEN_OPERATOR, "=")) {
            if (!(node->value = name_value(p))) return false;
            step(p);
        }
        if (!(node->first = dr_parse_expression(p, true)) || !add(p, list, node)) return false;
        size_t last = list->count - 1;
        if (!node->value && node->operation == 0)
            for (size_t i = 0; i < last; i++)
                if (list->at[i]->value || list->at[i]->operation)
                    return dr_template_fail(p->t, "an argument without a name stands behind one with a name");
    }
    step(p);
    return true;
}

static dr_node *call_of(parser *p, dr_node *callee) {
    dr_node *node = make(p, DR_NODE_CALL);
    if (!node || !arguments(p, &node->items)) return NULL;
    node->first = callee;
    return node;
}

/* What stands between [ and ]: one expression, or from : to : step. */
static dr_node *subscript(parser *p, dr_node *first) {
    dr_node *parts[3] = {NULL};
    int colons = 0;
    dr_node *node = make(p, DR_NODE_SUBSCRIPT);
    if (!node) return NULL;
    node->first = first;
    while (!is_operator(p, "]")) {
        if (is_operator(p, ":")) {
            if (++colons > 2) return unexpected(p, "']'");
            step(p);
        } else if (parts[colons]) {
            return unexpected(p, "']'");
        } else if (!(parts[colons] = dr_parse_expression(p, true))) {
            return NULL;
        }
    }
    if (colons == 0 && !parts[0]) return unexpected(p, "an expression");
    step(p);
    node->second = parts[0];
    if (colons == 0) return node;
    node->kind = DR_NODE_SLICE;
    dr_node **at = dr_template_take(p->t, sizeof parts);
    if (!at) return NULL;
    memcpy(at, parts, sizeof parts);
    node->items = (dr_nodes){at, 3, 3};
    return node;
}

dr_node *dr_parse_attribute(parser *p, dr_node *first) {
    dr_node *node = make(p, DR_NODE_ATTRIBUTE);
    if (!node) return NULL;
    node->first = first;
    if (now(p)->kind == DR_TOKEN_CONSTANT && now(p)->value->kind == DR_OBJECT_INTEGER) { /* a.0 is a[0] */
        node->kind = DR_NODE_SUBSCRIPT;
        return (node->second = constant(p)) ? node : NULL;
    }
    return (node->value = name_value(p)) ? node : NULL;
}

static dr_node *postfix(parser *p, dr_node *node) {
    while (node) {
        if (skip_operator(p, "."))
            node = dr_parse_attribute(p, node);
        else if (skip_operator(p, "["))
            node = subscript(p, node);
        else if (is_operator(p, "("))
            node = call_of(p, node);
        else
            break;
    }
    return node;
}

/* A name with points in it. */
static const dr_object *dotted_name(parser *p) {
    const char *begin = now(p)->text.bytes;
    const dr_object *name = name_value(p);
    while (name && skip_operator(p, ".")) {
        const dr_object *more = name_value(p);
        if (!more) return NULL;
        name = dr_object_text(p->t, begin, (size_t)(more->text.bytes + more->text.count - begin));
    }
    return name;
}

dr_node *dr_parse_filter(parser *p, dr_node *first) {
    dr_node *node = make(p, DR_NODE_FILTER);
    if (!node || !(node->value = dotted_name(p))) return NULL;
    node->first = first;
    if (is_operator(p, "(") && !arguments(p, &node->items)) return NULL;
    return node;
}

/* A test may have one argument without brackets: x is divisibleby 3. */
static dr_node *test(parser *p, dr_node *first) {
    bool negated = skip_word(p, "not");
    dr_node *node = make(p, DR_NODE_TEST);
    if (!node || !(node->value = dotted_name(p))) return NULL;
    node->first = first;
    if (is_operator(p, "(")) {
        if (!arguments(p, &node->items)) return NULL;
    } else if ((now(p)->kind == DR_TOKEN_NAME && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and")) ||
               now(p)->kind == DR_TOKEN_CONSTANT || is_operator(p, "[") || is_operator(p, "{")) {
        if (is_word(p, "is"))
            return dr_template_fail(p->t, "two tests with 'is' stand one behind the other: write 'and' between");
        dr_node *argument = make(p, DR_NODE_ARGUMENT);
        if (!argument || !(argument->first = postfix(p, dr_parse_primary(p))) || !add(p, &node->items, argument)) return NULL;
    }
    if (!negated) return node;
    dr_node *not = make(p, DR_NODE_NOT);
    if (not ) not ->first = node;
    return not ;
}

dr_node *dr_parse_filters(parser *p, dr_node *node) {
    while (node) {
        if (skip_operator(p, "|"))
            node = dr_parse_filter(p, node);
        else if (skip_word(p, "is"))
            node = test(p, node);
        else if (is_operator(p, "("))
            node = call_of(p, node);
        else
            break;
    }
    return node;
}

dr_node *dr_parse_unary(parser *p, bool with_filter) {
    dr_node *node = NULL;
    if (!dr_template_enter(p->t)) return NULL;
    if (is_operator(p, "-") || is_operator(p, "+")) {
        node = make(p, DR_NODE_NEGATION);
        if (node) node->operation = is_operator(p, "-") ? DR_SUBTRACT : DR_ADD;
        step(p);
        if (node && !(node->first = dr_parse_unary(p, false))) node = NULL;
    } else {
        node = dr_parse_primary(p);
    }
    node = postfix(p, node);
    p->t->depth--;
    return with_filter ? dr_parse_filters(p, node) : node;
}

static const struct {
    const char *text;
    int level, operation; /* levels bind closer the higher they are */
} operators[] = {{"+", 1, DR_ADD},    {"-", 1, DR_SUBTRACT}, {"~", 2, DR_JOIN},      {"*", 3, DR_MULTIPLY},
                 {"/", 3, DR_DIVIDE}, {"//", 3, DR_FLOOR},   {"%", 3, DR_REMAINDER}, {"**", 4, DR_POWER}};
enum { LEVELS = 5 };

static dr_node *operation(parser *p, int level) {
    if (level == LEVELS) return dr_parse_unary(p, true);
    dr_node *node = operation(p, level + 1);
    for (size_t i = 0; node && i < sizeof operators / sizeof *operators;) {
        if (operators[i].level == level && skip_operator(p, operators[i].text)) {
            node = binary(p, DR_NODE_OPERATION, operators[i].operation, node, operation(p, level + 1));
            i = 0;
        } else {
            i++;
        }
    }
    return node;
}

static int comparison_at(parser *p) {
    static const struct {
        const char *text;
        int operation;
    } signs[] = {{"==", DR_EQUAL},      {"!=", DR_UNEQUAL}, {"<", DR_LESS},
                 {"<=", DR_LESS_EQUAL}, {">", DR_GREATER},  {">=", DR_GREATER_EQUAL}};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (skip_operator(p, signs[i].text)) return signs[i].operation;
    if (skip_word(p, "in")) return DR_IN;
    if (is_word(p, "not") && token_is(later(p), DR_TOKEN_NAME, "in")) return step(p), step(p), DR_NOT_IN;
    return 0;
}

static dr_node *comparison(parser *p) {
    dr_node *first = operation(p, 1), *node = NULL;
    int sign;
    while (first && (sign = comparison_at(p)) != 0) {
        dr_node *compared = make(p, DR_NODE_COMPARED);
        if (!node && (node = make(p, DR_NODE_COMPARISON))) node->first = first;
        if (!compared || !node || !(compared->first = operation(p, 1))) return NULL;
        compared->operation = sign;
        if (!add(p, &node->items, compared)) return NULL;
    }
    return node ? node : first;
}

static dr_node *negation(parser *p) {
    if (!is_word(p, "not")) return comparison(p);
    dr_node *node = make(p, DR_NODE_NOT);
    step(p);
    if (!node || !dr_template_enter(p->t)) return NULL;
    node->first = negation(p);
    p->t->depth--;
    return node->first ? node : NULL;
}

static dr_node *conjunction(parser *p) {
    dr_node *node = negation(p);
    while (node && skip_word(p, "and")) node = binary(p, DR_NODE_AND, 0, node, negation(p));
    return node;
}

static dr_node *disjunction(parser *p) {
    dr_node *node = conjunction(p);
    while (node && skip_word(p, "or")) node = binary(p, DR_NODE_OR, 0, node, conjunction(p));
    return node;
}

dr_node *dr_parse_expression(parser *p, bool with_choice) {
    if (!dr_template_enter(p->t)) return NULL;
    dr_node *node = disjunction(p);
    while (node && with_choice && skip_word(p, "if")) {
        node = binary(p, DR_NODE_CHOICE, 0, node, disjunction(p));
        if (node && skip_word(p, "else") && !(node->third = dr_parse_expression(p, true))) node = NULL;
    }
    p->t->depth--;
    return node;
}
