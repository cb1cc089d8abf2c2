/* What the parser's two files share: the place in the tokens, and nodes. Expressions are in template_expression.c, statements
 * in template_parse.c. Functions that return NULL or false have set the failure. */
#ifndef DR_TOKENIZE_TEMPLATE_PARSE_H
#define DR_TOKENIZE_TEMPLATE_PARSE_H

#include "tokenize/template_tree.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    dr_template *t;
    const dr_tokens *tokens;
    size_t at;
    dr_node *macro; /* whose body is read, or NULL */
    int loops;      /* around what is read, within the macro */
} parser;

/* with_choice: whether "a if b else c" may follow. */
dr_node *dr_parse_expression(parser *p, bool with_choice);
/* An operand with its sign, subscripts and calls, and with_filter its filters and tests. */
dr_node *dr_parse_unary(parser *p, bool with_filter);
/* A name, a constant, or what stands in brackets. */
dr_node *dr_parse_primary(parser *p);
/* One item (of this function, or an expression), or several with commas between; end_word ends it, or NULL. brackets: no item
 * is an empty tuple. */
dr_node *dr_parse_tuple(parser *p, bool with_choice, const char *end_word, bool brackets, dr_node *(*item)(parser *p));
/* The attribute of `first` that stands behind a point. */
dr_node *dr_parse_attribute(parser *p, dr_node *first);
/* One filter of `first`, behind its |; and all filters, tests and calls that follow. */
dr_node *dr_parse_filter(parser *p, dr_node *first);
dr_node *dr_parse_filters(parser *p, dr_node *node);

static inline const dr_token *now(const parser *p) {
    return &p->tokens->at[p->at];
}

static inline const dr_token *later(const parser *p) {
    return now(p)->kind == DR_TOKEN_END ? now(p) : now(p) + 1;
}

static inline void step(parser *p) {
    if (now(p)->kind != DR_TOKEN_END) p->at++;
    p->t->line = now(p)->line;
}

static inline bool token_is(const dr_token *token, dr_token_kind kind, const char *text) {
    return token->kind == kind && token->text.count == strlen(text) && memcmp(token->text.bytes, text, token->text.count) == 0;
}

static inline bool is_operator(const parser *p, const char *text) {
    return token_is(now(p), DR_TOKEN_OPERATOR, text);
}

static inline bool is_word(const parser *p, const char *text) {
    return token_is(now(p), DR_TOKEN_NAME, text);
}

static inline bool skip_operator(parser *p, const char *text) {
    bool is = is_operator(p, text);
    if (is) step(p);
    return is;
}

static inline bool skip_word(parser *p, const char *text) {
    bool is = is_word(p, text);
    if (is) step(p);
    return is;
}

static inline void *unexpected(parser *p, const char *wanted) {
    const dr_token *token = now(p);
    int count = token->text.count > 60 ? 60 : (int)token->text.count;
    p->t->line = token->line;
    return dr_template_fail(p->t, "expected %s, found '%.*s'", wanted, count, token->text.bytes);
}

static inline bool need_operator(parser *p, const char *text) {
    char wanted[16];
    if (skip_operator(p, text)) return true;
    snprintf(wanted, sizeof wanted, "'%s'", text);
    return unexpected(p, wanted);
}

static inline dr_node *make(parser *p, dr_node_kind kind) {
    dr_node *node = dr_template_take(p->t, sizeof *node);
    if (node) *node = (dr_node){.kind = kind, .line = now(p)->line};
    return node;
}

static inline bool add(parser *p, dr_nodes *nodes, dr_node *node) {
    if (!node) return false;
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? 2 * nodes->room : 4;
        dr_node **at = dr_template_take(p->t, room * sizeof *at);
        if (!at) return false;
        if (nodes->count) memcpy(at, nodes->at, nodes->count * sizeof *at);
        nodes->at = at, nodes->room = room;
    }
    nodes->at[nodes->count++] = node;
    return true;
}

static inline const dr_object *name_value(parser *p) {
    if (now(p)->kind != DR_TOKEN_NAME) return unexpected(p, "a name");
    const dr_object *value = dr_object_text(p->t, now(p)->text.bytes, now(p)->text.count);
    step(p);
    return value;
}

#endif
