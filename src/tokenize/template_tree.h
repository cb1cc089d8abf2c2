/* Tokens and the tree of a template. */
#ifndef DR_TOKENIZE_TEMPLATE_TREE_H
#define DR_TOKENIZE_TEMPLATE_TREE_H

#include "tokenize/template.h"

typedef enum {
    DR_TOKEN_DATA,
    DR_TOKEN_OUTPUT_BEGIN, /* {{ */
    DR_TOKEN_OUTPUT_END,
    DR_TOKEN_BLOCK_BEGIN, /* {% */
    DR_TOKEN_BLOCK_END,
    DR_TOKEN_NAME,
    DR_TOKEN_CONSTANT, /* value: a text or a number */
    DR_TOKEN_OPERATOR,
    DR_TOKEN_END
} dr_token_kind;

typedef struct {
    dr_token_kind kind;
    int line;
    dr_span text;           /* as it stands in the template; data without what the blocks around it strip */
    const dr_object *value; /* of a constant */
} dr_token;

typedef struct {
    dr_token *at;
    size_t count, room;
} dr_tokens;

bool dr_template_lex(dr_template *t, dr_span source, dr_tokens *tokens); /* ends with DR_TOKEN_END */

/* Operators with two operands, and comparisons. */
enum {
    DR_ADD = 1,
    DR_SUBTRACT,
    DR_MULTIPLY,
    DR_DIVIDE,
    DR_FLOOR,
    DR_REMAINDER,
    DR_POWER,
    DR_JOIN,
    DR_EQUAL,
    DR_UNEQUAL,
    DR_LESS,
    DR_LESS_EQUAL,
    DR_GREATER,
    DR_GREATER_EQUAL,
    DR_IN,
    DR_NOT_IN
};

typedef enum {
    /* expressions */
    DR_NODE_CONSTANT,   /* value */
    DR_NODE_NAME,       /* value: the name */
    DR_NODE_LIST,       /* items */
    DR_NODE_TUPLE,      /* items */
    DR_NODE_DICT,       /* items: keys; others: values */
    DR_NODE_OPERATION,  /* first, second */
    DR_NODE_NEGATION,   /* first; operation: DR_SUBTRACT or DR_ADD */
    DR_NODE_NOT,        /* first */
    DR_NODE_AND,        /* first, second */
    DR_NODE_OR,         /* first, second */
    DR_NODE_COMPARISON, /* first; items: the nodes of DR_NODE_COMPARED, each with operation and first */
    DR_NODE_COMPARED,
    DR_NODE_CHOICE,    /* first if second else third (or NULL) */
    DR_NODE_ATTRIBUTE, /* first . value */
    DR_NODE_SUBSCRIPT, /* first [ second ] */
    DR_NODE_SLICE,     /* first [ items: from, to, step; each may be NULL ] */
    DR_NODE_CALL,      /* first ( items: arguments ) */
    DR_NODE_FILTER,    /* first | value ( items ) */
    DR_NODE_TEST,      /* first is value ( items ) */
    DR_NODE_ARGUMENT,  /* first; value: its name or NULL; operation: 1 for *first, 2 for **first */
    DR_NODE_CAPTURED,  /* the text of the block around */
    /* statements */
    DR_NODE_DATA,   /* value */
    DR_NODE_OUTPUT, /* items, one printed after the other */
    DR_NODE_FOR,    /* first: target; second: over what; third: condition or NULL; items: body; others: else; flag: recursive */
    DR_NODE_IF,     /* items: DR_NODE_BRANCH */
    DR_NODE_BRANCH, /* first: condition, NULL for else; items: body */
    DR_NODE_SET,    /* first: target; second */
    DR_NODE_SET_BLOCK,    /* first: target; second: filters of DR_NODE_CAPTURED; items: body */
    DR_NODE_MACRO,        /* value: name; items: DR_NODE_PARAMETER; others: body; uses_* */
    DR_NODE_PARAMETER,    /* value: name; first: default or NULL */
    DR_NODE_CALL_BLOCK,   /* first: the call; second: the macro that is its caller */
    DR_NODE_FILTER_BLOCK, /* first: filters of DR_NODE_CAPTURED; items: body */
    DR_NODE_WITH,         /* items: DR_NODE_SET; others: body */
    DR_NODE_SCOPE,        /* items: a body with names of its own */
    DR_NODE_BREAK,
    DR_NODE_CONTINUE
} dr_node_kind;

typedef struct {
    dr_node **at;
    size_t count, room;
} dr_nodes;

struct dr_node {
    dr_node_kind kind;
    int line, operation;
    bool flag, uses_varargs, uses_kwargs, uses_caller;
    const dr_object *value;
    dr_node *first, *second, *third;
    dr_nodes items, others;
};

bool dr_template_parse(dr_template *t, const dr_tokens *tokens, dr_nodes *body);

/* template_evaluate.c and template_run.c */
const dr_object *dr_evaluate(dr_template *t, const dr_node *node);
bool dr_arguments(dr_template *t, const dr_nodes *nodes, dr_call_arguments *call); /* evaluates those of a call */
typedef enum { DR_FLOW_ON, DR_FLOW_BREAK, DR_FLOW_CONTINUE, DR_FLOW_FAILED } dr_flow;
dr_flow dr_run(dr_template *t, const dr_nodes *body);
bool dr_assign(dr_template *t, const dr_node *target, const dr_object *value);
dr_scope *dr_scope_open(dr_template *t, dr_scope *outer); /* and makes it the one that is seen */

#endif
